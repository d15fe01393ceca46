//! Samples a load with our profiler and with `perf record` in turn, and prints what a sample takes of each: CPU time of the process that takes it, and of
//! the service, and the share of the machine.
//!
//! Run it with `bench/cpu-profile`. It needs root, `perf` and a C compiler. `perf record` copies registers and stack into its file and unwinds them
//! when somebody reads the file; ours has unwound each stack, found its names and made its packet. The two sample the same kind of load at the same
//! frequency, one after the other.

mod sched;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ferretto_proto::write::{PerfSample, TracePacket};
use ferretto_wire::{Reader, Value};
use sched::process::cpu_time;
use support::{Program, Programs, Side, System};

/// Compares what a sample with a stack costs our profiler and `perf record`.
#[derive(Debug, Parser)]
struct Args {
    /// Recordings with each.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Seconds that are measured in each.
    #[arg(long, default_value_t = 4)]
    seconds: u32,
    /// Samples a second on each CPU.
    #[arg(long, default_value_t = 1000)]
    frequency: u32,
    /// The load, one on each CPU.
    #[arg(long, default_value = "steady")]
    load: Load,
    /// Which profilers.
    #[arg(long, default_value = "both")]
    profilers: Profilers,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    /// Programs that run all the time, below some 20 frames without frame pointers.
    Steady,
    /// The same programs, but each runs for some milliseconds, and the next follows.
    Churn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profilers {
    Both,
    Ours,
    Perf,
}

/// `main` calls `middle`, which calls itself twenty times and then `leaf`; as often as the first argument says, or for ever.
const BURNER: &str = r#"
#include <stdint.h>
#include <stdlib.h>
volatile uint64_t sink;
__attribute__((noinline)) void leaf(int n) { for (int i = 0; i < n; i++) sink += i * i; }
__attribute__((noinline)) void middle(int depth) { if (depth) middle(depth - 1); else leaf(100000); sink++; }
int main(int argc, char **argv) { int rounds = argc > 1 ? atoi(argv[1]) : -1; while (rounds--) middle(19); return 0; }
"#;

/// Processes that end with this.
struct Loads(Vec<Child>);

impl Loads {
    fn start(load: Load, burner: &Path) -> Loads {
        let processes = 0..sched::load::cpus().len();
        let start = |_| {
            let mut command = match load {
                Load::Steady => Command::new(burner),
                Load::Churn => {
                    let mut shell = Command::new("sh");
                    shell.args(["-c", r#"while "$0" 30; do :; done"#]).arg(burner);
                    shell
                }
            };
            command.stdin(Stdio::null()).spawn().expect("the load")
        };
        Loads(processes.map(start).collect())
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// One recording.
struct Run {
    samples: u64,
    /// Not known of `perf`, which unwinds later.
    with_stacks: Option<u64>,
    /// Not known of `perf`.
    lost: Option<u64>,
    profiler: Duration,
    service: Duration,
    took: Duration,
}

impl Run {
    fn per_sample(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.samples as f64
    }

    /// Percent of all CPUs.
    fn share(&self) -> f64 {
        let time = (self.profiler + self.service).as_secs_f64();
        time * 100.0 / (self.took.as_secs_f64() * sched::load::cpus().len() as f64)
    }
}

fn main() {
    let args = Args::parse();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(burner) = compile(folder.path()) else {
        println!("skipped: there is no C compiler");
        return;
    };
    let programs = Programs::ours();
    let _loads = Loads::start(args.load, &burner);
    println!(
        "{:>3}  {:<6}{:>9}{:>9}{:>7}{:>16}{:>15}{:>12}",
        "run", "", "samples", "stacks", "lost", "profiler, µs", "service, µs", "of all, %"
    );
    let (mut ours, mut perf) = (Vec::new(), Vec::new());
    for number in 0..args.runs {
        if args.profilers != Profilers::Perf {
            let run = record_ours(&args, &programs);
            print(number, "ours", &run);
            ours.push(run);
        }
        if args.profilers != Profilers::Ours {
            let Some(run) = record_perf(&args, folder.path()) else {
                return;
            };
            print(number, "perf", &run);
            perf.push(run);
        }
    }
    for (name, runs) in [("ours", &ours), ("perf", &perf)] {
        let mut each: Vec<f64> = runs
            .iter()
            .map(|run| run.per_sample(run.profiler + run.service))
            .collect();
        each.sort_by(f64::total_cmp);
        if let (Some(least), Some(median)) = (each.first(), each.get(each.len() / 2)) {
            println!("{name}: {least:.2} / {median:.2} µs a sample, least / median");
        }
    }
}

fn print(number: u32, who: &str, run: &Run) {
    let known = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
    println!(
        "{number:>3}  {who:<6}{:>9}{:>9}{:>7}{:>15.2}{:>14.2}{:>11.2}",
        run.samples,
        known(run.with_stacks),
        known(run.lost),
        run.per_sample(run.profiler),
        run.per_sample(run.service),
        run.share(),
    );
}

fn compile(folder: &Path) -> Option<PathBuf> {
    let (source, program) = (folder.join("burner.c"), folder.join("burner"));
    std::fs::write(&source, BURNER).expect("a file");
    let compiled = Command::new("cc")
        .args(["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-o"])
        .args([&program, &source])
        .status();
    compiled.ok()?.success().then_some(program)
}

fn record_ours(args: &Args, programs: &Programs) -> Run {
    let mut system = System::new(programs);
    let service = system.start(Side::Ours, Program::Traced);
    let profiler = system.start(Side::Ours, Program::TracedPerf);
    let times = || (cpu_time(profiler), cpu_time(service));
    let began = Instant::now();
    let before = times();
    let trace = system.record(Side::Ours, &config(args)).finish();
    let after = times();
    let mut run = Run {
        samples: 0,
        with_stacks: Some(0),
        lost: Some(0),
        profiler: after.0 - before.0,
        service: after.1 - before.1,
        took: began.elapsed(),
    };
    let bytes = std::fs::read(trace).expect("a trace");
    for (_, packet) in fields(&bytes) {
        let Value::Bytes(packet) = packet else { continue };
        for (number, value) in fields(packet) {
            if let (TracePacket::PERF_SAMPLE, Value::Bytes(sample)) = (number, value) {
                run.sample(sample);
            }
        }
    }
    run
}

impl Run {
    fn sample(&mut self, sample: &[u8]) {
        let mut is_sample = true;
        for (number, value) in fields(sample) {
            match (number, value) {
                (PerfSample::CALLSTACK_IID, _) => *self.with_stacks.get_or_insert(0) += 1,
                (PerfSample::KERNEL_RECORDS_LOST, Value::Varint(lost)) => {
                    *self.lost.get_or_insert(0) += lost;
                    is_sample = false;
                }
                (PerfSample::PRODUCER_EVENT, _) => is_sample = false,
                _ => {}
            }
        }
        self.samples += u64::from(is_sample);
    }
}

fn fields(bytes: &[u8]) -> impl Iterator<Item = (u32, Value<'_>)> {
    Reader::new(bytes)
        .map(|field| field.expect("a protobuf message"))
        .map(|field| (field.number, field.value))
}

fn config(args: &Args) -> String {
    let (frequency, seconds) = (args.frequency, args.seconds);
    format!(
        "buffers {{ size_kb: 65536 }} duration_ms: {seconds}000 data_sources {{ config {{ name: 'linux.perf' perf_event_config {{
           timebase {{ frequency: {frequency} counter: SW_CPU_CLOCK }} callstack_sampling {{ kernel_frames: true }}
         }} }} }}"
    )
}

/// `None` if there is no `perf`.
fn record_perf(args: &Args, folder: &Path) -> Option<Run> {
    let data = folder.join("perf.data");
    let seconds = args.seconds.to_string();
    let began = Instant::now();
    let mut perf = Command::new("perf")
        .args([
            "record",
            "-a",
            "-e",
            "cpu-clock",
            "-F",
            &args.frequency.to_string(),
        ])
        // The most that `perf` takes; ours asks for 65,280.
        .args(["--call-graph", "dwarf,65528", "-o"])
        .arg(&data)
        .args(["--", "sleep", &seconds])
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| println!("skipped: cannot run perf: {error}"))
        .ok()?;
    // Its processor time can be read only while it runs.
    let mut profiler = Duration::ZERO;
    while perf.try_wait().expect("a process").is_none() {
        if began.elapsed() < Duration::from_secs(args.seconds.into()) {
            profiler = cpu_time(perf.id());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = std::io::read_to_string(perf.stderr.take()?).ok()?;
    // `[ perf record: Captured and wrote 8.611 MB perf.data (1024 samples) ]`
    let samples = said
        .rsplit_once(" samples)")
        .and_then(|(before, _)| before.rsplit_once('(')?.1.parse().ok());
    let samples = samples.unwrap_or_else(|| panic!("perf says how many samples it has written: {said}"));
    Some(Run {
        samples,
        with_stacks: None,
        lost: None,
        profiler,
        service: Duration::ZERO,
        took: Duration::from_secs(args.seconds.into()),
    })
}
