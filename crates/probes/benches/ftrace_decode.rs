//! The cost of decoding the kernel's ring buffer per event, by class of event: `bench/ftrace-decode [CLASS...]`.
//!
//! A line for each class has the CPU time in ns, least / median of many batches, the bytes of packets, and the instructions, which repeat exactly. A
//! batch is the pages that one read of a CPU's buffer may return, and nothing takes its packets. The instructions are those of valgrind's callgrind:
//! the program runs itself there twice and takes the difference, so that preparing does not count. Without valgrind the column is empty.
//!
//! The format files are those of a 6.18 kernel on x86-64, the events are made up but for the last class.

#![expect(
    clippy::disallowed_macros,
    reason = "a tool of the developers, who have a terminal"
)]

use std::hint::black_box;
use std::process::{Command, ExitCode};

use ferretto_client::runtime::probe::PacketSink;
use ferretto_probes::ftrace::bundle::{BundleWriter, CpuRead, SymbolSource};
use ferretto_probes::ftrace::format::{EventFormat, PageLayout};
use ferretto_probes::ftrace::generic::GenericEncoding;
use ferretto_probes::ftrace::kallsyms::KernelSymbols;
use ferretto_probes::ftrace::printk_formats::PrintkFormats;
use ferretto_probes::ftrace::session::{DecodeConfig, SchedEncoding, Session};
use ferretto_probes::ftrace::table::Table;
use rustix::time::{ClockId, clock_gettime};

const PAGE_SIZE: usize = 4096;
/// Pages of a batch: as many as the probes read at once.
const PAGES: usize = 32;
/// Batches whose time is taken, after a tenth as many that are not.
const BATCHES: usize = 2000;
/// Batches that callgrind counts.
const COUNTED: usize = 20;
/// Has the program only decode so many batches of a class.
const ONLY_DECODE: &str = "--only-decode";

macro_rules! formats {
    ($($group:literal / $name:literal),* $(,)?) => {
        const FORMATS: &[(&str, &str, &str)] =
            &[$(($group, $name, include_str!(concat!("../src/ftrace/testdata/formats/", $group, ".", $name)))),*];
    };
}

formats! {
    "sched" / "sched_switch", "sched" / "sched_waking", "sched" / "sched_process_exec", "task" / "task_rename",
    "ftrace" / "print", "irq" / "softirq_entry", "irq" / "softirq_exit", "irq" / "softirq_raise",
    "workqueue" / "workqueue_execute_start", "raw_syscalls" / "sys_enter", "raw_syscalls" / "sys_exit",
    "power" / "cpu_idle", "rcu" / "rcu_utilization", "block" / "block_bio_queue",
}

const RECORDED: &[u8] = include_bytes!("../src/ftrace/testdata/mixed.pages");

/// Events of one class, and a session's wishes for them.
struct Class {
    name: &'static str,
    pages: fn() -> Pages,
    /// Names of the events that the session records.
    wanted: &'static [&'static str],
    config: fn() -> DecodeConfig,
    symbols: Symbols,
    /// In front of the groups' names: with `other_`, the trace format has messages for none.
    group_prefix: &'static str,
}

/// Whether kernel functions get their names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Symbols {
    Unwanted,
    /// They were told in a packet before.
    Told,
    /// Each batch is the first after the session's state was cleared.
    New,
}

const PLAIN: Class = Class {
    name: "",
    pages: || busy_cpu(PAGES),
    wanted: &["sched_switch", "sched_waking"],
    config: DecodeConfig::default,
    symbols: Symbols::Unwanted,
    group_prefix: "",
};

const CLASSES: &[Class] = &[
    Class {
        name: "scheduler, compact",
        ..PLAIN
    },
    Class {
        name: "scheduler, verbose",
        config: || DecodeConfig {
            sched_encoding: SchedEncoding::Verbose,
            ..DecodeConfig::default()
        },
        ..PLAIN
    },
    Class {
        name: "of another session",
        wanted: &["cpu_idle"],
        ..PLAIN
    },
    Class {
        name: "typed, one integer",
        pages: || {
            of_one_kind("softirq_entry", |index, event| {
                event.set("vec", index as u64 % 10)
            })
        },
        wanted: &["softirq_entry"],
        ..PLAIN
    },
    Class {
        name: "typed, fixed strings",
        pages: || {
            of_one_kind("task_rename", |index, event| {
                event.set("pid", 300 + index as u64 % 200);
                event.set_text("oldcomm", "tokio-runtime-w");
                event.set_text("newcomm", "worker-17");
            })
        },
        wanted: &["task_rename"],
        ..PLAIN
    },
    Class {
        name: "typed, __data_loc",
        pages: || {
            of_one_kind("sched_process_exec", |index, event| {
                event.set("pid", 300 + index as u64 % 200);
                event.set_dynamic("filename", "/usr/lib/git-core/git-remote-https");
            })
        },
        wanted: &["sched_process_exec"],
        ..PLAIN
    },
    Class {
        name: "typed, block_bio_queue",
        pages: block,
        wanted: &["block_bio_queue"],
        ..PLAIN
    },
    Class {
        name: "generic, block_bio_queue",
        pages: block,
        wanted: &["block_bio_queue"],
        group_prefix: "other_",
        ..PLAIN
    },
    Class {
        name: "generic, names in each",
        pages: block,
        wanted: &["block_bio_queue"],
        config: || DecodeConfig {
            generic_encoding: GenericEncoding::Names,
            ..DecodeConfig::default()
        },
        group_prefix: "other_",
        ..PLAIN
    },
    Class {
        name: "sys_enter",
        pages: || {
            of_one_kind("sys_enter", |index, event| {
                event.set("id", index as u64 % 300);
                event.set("args", 0x7fff_0000_0000 + index as u64 * 64);
            })
        },
        wanted: &["sys_enter"],
        ..PLAIN
    },
    Class {
        name: "sys_exit",
        pages: || {
            of_one_kind("sys_exit", |index, event| {
                event.set("id", index as u64 % 300);
                event.set("ret", index as u64 % 3000);
            })
        },
        wanted: &["sys_exit"],
        ..PLAIN
    },
    Class {
        name: "print",
        pages: || {
            of_one_kind("print", |index, event| {
                event.set("ip", 0xffff_ffff_8123_4567);
                event.append(["B|1234|DrawFrame 1234567\n\0", "E|1234\n\0"][index % 2]);
            })
        },
        wanted: &["print"],
        ..PLAIN
    },
    Class {
        name: "functions, named before",
        pages: work,
        wanted: WORK,
        symbols: Symbols::Told,
        ..PLAIN
    },
    Class {
        name: "functions, named anew",
        pages: work,
        wanted: WORK,
        symbols: Symbols::New,
        ..PLAIN
    },
    Class {
        name: "a recorded mixture",
        pages: || Pages {
            bytes: RECORDED.to_vec(),
            events: 267,
        },
        wanted: &[
            "softirq_entry",
            "softirq_exit",
            "softirq_raise",
            "sys_enter",
            "sys_exit",
            "cpu_idle",
            "rcu_utilization",
            "sched_switch",
            "sched_waking",
        ],
        ..PLAIN
    },
];

const WORK: &[&str] = &["workqueue_execute_start"];
/// Functions that the work items of a batch have.
const FUNCTIONS: usize = 40;
/// As many as a kernel has.
const KERNEL_FUNCTIONS: usize = 100_000;
const FIRST_FUNCTION: u64 = 0xffff_ffff_8100_0000;
/// Bytes of each.
const FUNCTION_SIZE: u64 = 160;

fn block() -> Pages {
    of_one_kind("block_bio_queue", |index, event| {
        event.set("dev", 8 << 20 | 1);
        event.set("sector", index as u64 * 8 + 1_000_000);
        event.set("nr_sector", 8);
        event.set_text("rwbs", "WS");
        event.set_text("comm", "postgres");
    })
}

fn work() -> Pages {
    of_one_kind("workqueue_execute_start", |index, event| {
        event.set("work", 0xffff_8881_0000_0000 + index as u64 % 100 * 256);
        event.set(
            "function",
            FIRST_FUNCTION + (index % FUNCTIONS) as u64 * 2000 * FUNCTION_SIZE,
        );
    })
}

/// Whole pages of the ring buffer.
struct Pages {
    bytes: Vec<u8>,
    events: usize,
}

/// An event as it lies in the ring buffer.
struct Event {
    format: EventFormat,
    bytes: Vec<u8>,
}

impl Event {
    fn new(name: &str) -> Event {
        let (.., text) = FORMATS
            .iter()
            .find(|(_, known, _)| *known == name)
            .expect("a format file of ours");
        let format = EventFormat::parse(text).expect("the kernel's own");
        let size = format
            .fields
            .iter()
            .map(|field| usize::from(field.end()))
            .max()
            .unwrap_or(8);
        let mut bytes = vec![0; size];
        bytes[..2].copy_from_slice(&format.id.to_le_bytes());
        bytes[4..8].copy_from_slice(&4321_i32.to_le_bytes());
        Event { format, bytes }
    }

    fn place(&self, name: &str) -> std::ops::Range<usize> {
        let field = self.format.fields.iter().find(|field| field.name() == Some(name));
        let field = field.expect("a field of the event");
        field.offset.into()..field.end().into()
    }

    /// Sets an integer, or each of an array of six.
    fn set(&mut self, name: &str, value: u64) {
        let place = self.place(name);
        for word in self.bytes[place].chunks_mut(8) {
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
    }

    fn set_text(&mut self, name: &str, text: &str) {
        let place = self.place(name);
        self.bytes[place][..text.len()].copy_from_slice(text.as_bytes());
    }

    fn set_dynamic(&mut self, name: &str, text: &str) {
        let (place, at) = (self.place(name), self.bytes.len());
        self.bytes[place].copy_from_slice(&(((text.len() + 1) << 16 | at) as u32).to_le_bytes());
        self.append(text);
        self.append("\0");
    }

    fn append(&mut self, text: &str) {
        self.bytes.extend(text.as_bytes());
    }
}

/// Pages that are filled with the events of `next`, 2 µs apart.
fn fill(pages: usize, mut next: impl FnMut() -> (u64, Vec<u8>)) -> Pages {
    let (mut bytes, mut events, mut now) = (Vec::new(), 0, 1_000_000_000_000_u64);
    let mut waiting = None;
    for _ in 0..pages {
        let (start, mut data) = (now, Vec::new());
        loop {
            let (delta, mut payload): (u64, Vec<u8>) = waiting.take().unwrap_or_else(&mut next);
            payload.resize(payload.len().next_multiple_of(4), 0);
            if data.len() + 8 + payload.len() > PAGE_SIZE - 16 {
                waiting = Some((delta, payload));
                break;
            }
            let words = payload.len() as u32 / 4;
            if words <= 28 {
                data.extend((words | (delta as u32) << 5).to_le_bytes());
            } else {
                data.extend(((delta as u32) << 5).to_le_bytes());
                data.extend((payload.len() as u32 + 4).to_le_bytes());
            }
            data.extend(payload);
            now += delta;
            events += 1;
        }
        bytes.extend(start.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(&data);
        bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE), 0);
    }
    Pages { bytes, events }
}

fn of_one_kind(name: &str, set: impl Fn(usize, &mut Event)) -> Pages {
    let mut index = 0;
    fill(PAGES, || {
        let mut event = Event::new(name);
        set(index, &mut event);
        index += 1;
        (2000, event.bytes)
    })
}

/// Wakings and switches in a random order, at random times, of threads that are drawn with a preference for some. Always the same ones.
fn busy_cpu(pages: usize) -> Pages {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |limit: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) % limit
    };
    fill(pages, || {
        // Half of all picks go to an eighth of the threads.
        let thread = if random(2) == 0 { random(25) } else { random(200) };
        let pid = if thread == 0 { 0 } else { 300 + thread * 17 };
        let name = format!("worker-{}", thread % 40);
        let magnitude = 8 + random(10);
        let delta = 500 + random(1 << magnitude);
        let event = if random(5) < 3 {
            let mut event = Event::new("sched_switch");
            event.set("prev_state", [0, 1, 1, 1, 2][random(5) as usize]);
            event.set_text("next_comm", &name);
            event.set("next_pid", pid);
            event.set("next_prio", 120);
            event
        } else {
            let mut event = Event::new("sched_waking");
            event.set_text("comm", &name);
            event.set("pid", pid);
            event.set("prio", 120);
            event.set("target_cpu", random(4));
            event
        };
        (delta, event.bytes)
    })
}

/// Takes packets, counts their bytes and forgets them.
#[derive(Default)]
struct Nowhere {
    bytes: usize,
}

impl PacketSink for Nowhere {
    fn write_packet(&mut self, packet: &[u8]) {
        self.bytes += black_box(packet).len();
    }

    fn losses(&self) -> u64 {
        0
    }
}

/// A class, ready to be decoded again and again.
struct Run {
    pages: Pages,
    table: Table,
    session: Session,
    symbols: Option<KernelSymbols>,
    clears: bool,
    writer: BundleWriter,
    sink: Nowhere,
}

impl Run {
    fn new(class: &Class) -> Run {
        let mut table = Table::new(PageLayout::sixty_four_bit(PAGE_SIZE), PrintkFormats::default());
        for (group, name, format) in FORMATS {
            let group = format!("{}{group}", class.group_prefix);
            table
                .add(&group, name, format)
                .expect("the format files are the kernel's");
        }
        let wanted = table
            .plans()
            .filter(|plan| class.wanted.contains(&plan.name.as_str()));
        let config = DecodeConfig {
            events: wanted.map(|plan| plan.id).collect(),
            ..(class.config)()
        };
        let mut run = Run {
            pages: (class.pages)(),
            session: Session::new(&table, config),
            table,
            symbols: (class.symbols != Symbols::Unwanted).then(kernel_symbols),
            clears: class.symbols != Symbols::Told,
            writer: BundleWriter::default(),
            sink: Nowhere::default(),
        };
        assert_eq!(run.decode(), Some(run.pages.events as u64), "of {}", class.name);
        run
    }

    /// One batch. Returns how many events it had.
    fn decode(&mut self) -> Option<u64> {
        let read = CpuRead {
            cpu: 0,
            pages: black_box(&self.pages.bytes),
            page_size: PAGE_SIZE,
            clock: None,
        };
        let symbols = self.symbols.as_ref().map(|symbols| symbols as &dyn SymbolSource);
        let events = self
            .writer
            .encode(&self.table, &mut self.session, &read, symbols, &mut self.sink);
        if self.clears {
            self.session.metadata_mut().clear();
        }
        events
    }
}

fn kernel_symbols() -> KernelSymbols {
    let line = |index: usize| {
        let address = FIRST_FUNCTION + index as u64 * FUNCTION_SIZE;
        let verb = ["init", "release", "update", "flush", "wait"][index % 5];
        format!("{address:016x} t driver_{}_{verb}_work_{index}\n", index % 777)
    };
    let text: String = (0..KERNEL_FUNCTIONS).map(line).collect();
    KernelSymbols::parse(text.as_bytes()).expect("memory can be read")
}

fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The instructions of a program that decodes so many batches, as callgrind counts them.
fn instructions(class: &str, batches: usize) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([ONLY_DECODE, &batches.to_string(), class])
        .output()
        .ok()?;
    let log = String::from_utf8_lossy(&output.stderr);
    let collected = log.lines().find_map(|line| line.split_once("Collected : "))?.1;
    collected.trim().parse().ok()
}

fn print_line(class: &Class) {
    let mut run = Run::new(class);
    let events = run.pages.events as f64;
    for _ in 0..BATCHES / 10 {
        run.decode();
    }
    let bytes_before = run.sink.bytes;
    let mut times: Vec<i64> = (0..BATCHES)
        .map(|_| {
            let before = cpu_nanos();
            run.decode();
            cpu_nanos() - before
        })
        .collect();
    times.sort_unstable();
    let bytes = (run.sink.bytes - bytes_before) as f64 / BATCHES as f64;
    let counted = instructions(class.name, COUNTED).zip(instructions(class.name, 2 * COUNTED));
    let instructions = counted.map_or(String::new(), |(once, twice)| {
        format!("{:.0}", (twice - once) as f64 / COUNTED as f64 / events)
    });
    println!(
        "{:<26}{:>9.1}{:>9.1}{instructions:>14}{:>9.1}",
        class.name,
        times[0] as f64 / events,
        times[BATCHES / 2] as f64 / events,
        bytes / events,
    );
}

fn main() -> ExitCode {
    // Cargo adds a flag to those that were given.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let class = |name: &String| CLASSES.iter().find(|class| class.name == name);
    if let [flag, batches, name] = &arguments[..]
        && flag == ONLY_DECODE
        && let (Ok(batches), Some(class)) = (batches.parse::<usize>(), class(name))
    {
        let mut run = Run::new(class);
        for _ in 0..batches {
            run.decode();
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<&Class> = match arguments.is_empty() {
        true => CLASSES.iter().collect(),
        false => arguments.iter().filter_map(class).collect(),
    };
    if chosen.len() < arguments.len() {
        let names: Vec<&str> = CLASSES.iter().map(|class| class.name).collect();
        eprintln!(
            "ftrace-decode: there is no such class of events; there are: {}",
            names.join("; ")
        );
        return ExitCode::FAILURE;
    }
    println!(
        "{:<26}{:>9}{:>9}{:>14}{:>9}",
        "per event", "ns least", "median", "instructions", "bytes"
    );
    chosen.into_iter().for_each(print_line);
    ExitCode::SUCCESS
}
