//! The cost of unwinding: `cargo bench -p ferretto-unwind --bench unwind`. Prints
//!
//! - nanoseconds for a frame whose rule is known, beside `framehop` on the same samples, and how many frames each of them finds;
//! - time for a stack whose rules are all to be found, and units of work for it;
//! - time for a stack whose tables cost as much as a sample's budget allows;
//! - time to load a module, and resident memory for all libraries of this machine, up to 1,000.
//!
//! `FERRETTO_UNWIND_ROUNDS=N` only unwinds N times, for counting instructions: the difference of two runs under
//! `valgrind --tool=callgrind`, divided by the difference of their rounds and by the frames, is what one frame takes.

#[path = "../tests/unwind/made_up.rs"]
#[allow(dead_code)]
mod made_up;
#[path = "../tests/unwind/stopped.rs"]
#[allow(dead_code)]
mod stopped;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ferretto_unwind::{End, Frame, Module, ModuleCache, Process, Registers, StackCopy, Unwinder, WorkBudget};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Unwinder as _};
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSection as _};

use stopped::{Program, compile};

const SHAPES: &str = include_str!("../tests/unwind/shapes.c");
const RUNS: usize = 15;
const ROUNDS: usize = 20_000;

struct Case {
    name: &'static str,
    process: Process,
    registers: Registers,
    stack: Vec<u8>,
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let rounds = std::env::var("FERRETTO_UNWIND_ROUNDS")
        .ok()
        .map(|rounds| rounds.parse().expect("a number"));
    let cache = ModuleCache::new(256 << 20);
    let cases = [("calls", "-DSIGNAL=0"), ("a signal handler", "-DSIGNAL=1")];
    for (name, signal) in cases {
        let flags = ["-O2", "-fomit-frame-pointer", "-DWAIT=pause()", signal];
        let Some(path) = compile(folder.path(), "shapes", SHAPES, &flags) else {
            return;
        };
        let case = sample(name, &path, &cache);
        match rounds {
            None => {
                warm(&case);
                cold(&case);
            }
            Some(rounds) => {
                let frames = unwind_often(&case, rounds);
                println!("{name}: {rounds} rounds of {frames} frames");
                return;
            }
        }
    }
    costly();
    load();
}

fn sample(name: &'static str, path: &Path, cache: &ModuleCache) -> Case {
    let program = Program::start(path);
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let (registers, stack) = program.sample();
    for index in 0..process.maps().mappings().len() {
        process.load(index as u32, cache);
    }
    Case {
        name,
        process,
        registers,
        stack,
    }
}

impl Case {
    fn unwind(&self, unwinder: &mut Unwinder, frames: &mut Vec<Frame>) -> End {
        let stack = StackCopy {
            base: self.registers.stack_pointer(),
            bytes: &self.stack,
            rest: &[],
        };
        let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
        unwinder.unwind(&self.process, &self.registers, &stack, &work, frames)
    }
}

fn unwind_often(case: &Case, rounds: usize) -> usize {
    let (mut unwinder, mut frames) = (Unwinder::new(1024), Vec::with_capacity(1024));
    for _ in 0..rounds {
        black_box(case.unwind(&mut unwinder, &mut frames));
    }
    frames.len()
}

/// Least and median nanoseconds of a frame.
fn timed(frames: usize, mut round: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                round();
            }
            start.elapsed().as_nanos() as f64 / (ROUNDS * frames) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[RUNS / 2])
}

fn warm(case: &Case) {
    let (mut unwinder, mut frames) = (Unwinder::new(1024), Vec::with_capacity(1024));
    let end = case.unwind(&mut unwinder, &mut frames);
    let (least, median) = timed(frames.len(), || {
        black_box(case.unwind(&mut unwinder, &mut frames));
    });
    println!(
        "{}: {} frames, {end:?}; {least:.1} / {median:.1} ns a frame, least / median of {RUNS}",
        case.name,
        frames.len()
    );

    let other = hopping(case);
    let mut cache = CacheX86_64::<_>::new();
    let mut found = Vec::with_capacity(1024);
    let end = hop(case, &other, &mut cache, &mut found);
    let (least, median) = timed(found.len(), || {
        let _ = black_box(hop(case, &other, &mut cache, &mut found));
    });
    println!(
        "  framehop: {} frames, {end:?}; {least:.1} / {median:.1} ns a frame",
        found.len()
    );
}

fn cold(case: &Case) {
    let (mut unwinder, mut frames) = (Unwinder::new(1024), Vec::with_capacity(1024));
    let stack = StackCopy {
        base: case.registers.stack_pointer(),
        bytes: &case.stack,
        rest: &[],
    };
    let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
    unwinder.unwind(&case.process, &case.registers, &stack, &work, &mut frames);
    let mut times: Vec<f64> = (0..RUNS * 100)
        .map(|_| {
            unwinder.clear();
            let start = Instant::now();
            black_box(case.unwind(&mut unwinder, &mut frames));
            start.elapsed().as_nanos() as f64 / frames.len() as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "  without known rules: {:.0} / {:.0} ns a frame; {} units of work in all",
        times[0],
        times[times.len() / 2],
        WorkBudget::FOR_SAMPLE - work.left(),
    );
}

/// The time of a sample whose tables cost as much as they may.
fn costly() {
    // Rules for as many registers as a row may have, so that each instruction looks at them all: DW_CFA_same_value, and DW_CFA_offset for the
    // return address.
    let many: Vec<u8> = (17..95).flat_map(|register| [0x08, register]).collect();
    let many = [&many[..], &[0x90, 1]].concat();
    let most = |instructions: &[u8]| {
        let prefix = [&made_up::SHORT_FRAME[..], &many].concat();
        let room = (16 << 10) - 100 - prefix.len();
        [prefix, instructions.repeat(room / instructions.len())].concat()
    };
    let loop_of_steps = [0x0f, 10, 0x08, 240, 0x31, 0x1c, 0x12, 0x28, 0xfa, 0xff, 0x77, 16];
    let long_steps: Vec<u8> = {
        let steps = [0x77, 8, 0x06, 0x13].repeat(45);
        let expression = [steps, vec![0x77, 16]].concat();
        [
            &[
                0x0f,
                0x80 | (expression.len() % 128) as u8,
                (expression.len() / 128) as u8,
            ],
            &expression[..],
        ]
        .concat()
    };
    let cases: [(&str, Vec<u8>); 7] = [
        ("no operations", most(&[0])),
        ("rules", most(&[0x83, 1])),
        ("restored rules", most(&[0xc3])),
        ("rules that go", most(&[0xc3, 0x03 | 0x80, 1])),
        ("remembered rows", most(&[0x0a, 0x0b])),
        ("a loop in an expression", loop_of_steps.to_vec()),
        ("an expression that reads the stack", long_steps),
    ];
    for (what, instructions) in cases {
        let file = made_up::with_instructions(&instructions);
        let mut times = Vec::new();
        let mut end = None;
        for _ in 0..RUNS {
            let (process, bytes) = made_up::deep(&file);
            let start = Instant::now();
            let (ended, frames, spent) = made_up::unwind_deep_stack(&process, &bytes, WorkBudget::FOR_SAMPLE);
            times.push(start.elapsed().as_micros());
            end = Some((ended, frames.len(), spent));
        }
        times.sort_unstable();
        println!("at most: {what}: {} / {} µs, {end:?}", times[0], times[RUNS / 2]);
    }
}

/// The same modules for framehop.
fn hopping(case: &Case) -> UnwinderX86_64<Vec<u8>> {
    let mut unwinder = UnwinderX86_64::new();
    for mapping in case.process.maps().mappings() {
        let Some(file) = mapping
            .path()
            .and_then(|path| std::fs::read(std::str::from_utf8(path).ok()?).ok())
        else {
            continue;
        };
        let Ok(elf) = ElfFile64::<LittleEndian>::parse(file.as_slice()) else {
            continue;
        };
        let section = |name: &str| elf.section_by_name(name);
        let content = |name: &str| Some(section(name)?.data().ok()?.to_vec());
        let range =
            |name: &str| section(name).map(|section| section.address()..section.address() + section.size());
        let info = ExplicitModuleSectionInfo {
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: content(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: content(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        let base = mapping.start - mapping.offset;
        unwinder.add_module(framehop::Module::new(
            String::new(),
            mapping.start..mapping.end,
            base,
            info,
        ));
    }
    unwinder
}

fn hop(
    case: &Case,
    unwinder: &UnwinderX86_64<Vec<u8>>,
    cache: &mut CacheX86_64,
    found: &mut Vec<u64>,
) -> Result<(), framehop::Error> {
    let registers = &case.registers;
    let base = registers.stack_pointer();
    let mut read = |address: u64| {
        let place = address.checked_sub(base).ok_or(())? as usize;
        case.stack
            .get(place..)
            .and_then(|rest| rest.first_chunk())
            .map(|word| u64::from_le_bytes(*word))
            .ok_or(())
    };
    let start = UnwindRegsX86_64::new(registers.pc(), base, registers.get(6).unwrap_or(0));
    let mut frames = unwinder.iter_frames(registers.pc(), start, cache, &mut read);
    found.clear();
    while let Some(frame) = frames.next()? {
        found.push(frame.address());
    }
    Ok(())
}

fn load() {
    let mut libraries = Vec::new();
    for folder in ["/usr/lib", "/usr/local/lib", "/opt", "/usr/bin"] {
        collect(Path::new(folder), &mut libraries);
    }
    let before = resident();
    let start = Instant::now();
    let mut modules: Vec<Arc<Module>> = Vec::new();
    let mut times = Vec::new();
    for path in &libraries {
        if modules.len() == 1000 {
            break;
        }
        let Ok(file) = std::fs::File::open(path) else {
            continue;
        };
        let start = Instant::now();
        if let Ok(module) = Module::read(&file) {
            times.push(start.elapsed().as_micros());
            modules.push(Arc::new(module));
        }
    }
    times.sort_unstable();
    let Some(longest) = times.last() else { return };
    println!(
        "loading {} modules: {} ms; {} µs median, {longest} µs longest; {} MB of resident memory",
        modules.len(),
        start.elapsed().as_millis(),
        times[times.len() / 2],
        (resident() - before) >> 20,
    );
}

fn collect(folder: &Path, libraries: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else {
            continue;
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
        if kind.is_dir() {
            collect(&path, libraries);
        } else if kind.is_file() && (name.contains(".so") || folder.ends_with("bin")) {
            libraries.push(path);
        }
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: usize = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number");
    pages * 4096
}
