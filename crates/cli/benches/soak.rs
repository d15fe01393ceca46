//! Records for a long time into a file and watches the memory of all processes, which must not grow.
//!
//! Run it with `bench/soak`. It needs root (tracefs); `--daemons upstream` also needs upstream's binaries, for comparison. The exit code is 1 if
//! memory grew or anything was lost.

mod sched;
#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use sched::load::{Load, Rate, cpus};
use sched::process::{Memory, cpu_time};
use sched::traced_events::TracedEvents;
use support::tracefs::Tracefs;
use support::{Program, Programs, Side, System};

/// Records scheduler events, processes and counters into a file, and tells whether the memory of the processes stays flat.
#[derive(Debug, Parser)]
struct Args {
    /// Length of the recording in seconds, 60 at least.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(60..))]
    seconds: u32,
    /// Scheduler events of the load in each second.
    #[arg(long, default_value_t = 50_000)]
    rate: u32,
    /// Seconds between two looks at the memory.
    #[arg(long, default_value_t = 5)]
    every: u32,
    /// Whose programs record.
    #[arg(long, default_value = "ours")]
    daemons: Daemons,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Daemons {
    Ours,
    Upstream,
}

/// Until then, buffers fill, caches warm up, and memory may grow.
const WARM_UP: Duration = Duration::from_secs(10);
/// The most by which memory may be higher at the end, in KB; or a twentieth, if that is more.
const SLACK_KB: u64 = 1024;

/// A process with its measurements.
struct Watched {
    name: &'static str,
    pid: u32,
    seen: Vec<(Duration, Memory)>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (side, programs) = match args.daemons {
        Daemons::Ours => (Side::Ours, Some(Programs::ours())),
        Daemons::Upstream => (Side::Upstream, Programs::of_both()),
    };
    let (Some(programs), Some(_tracefs)) = (programs, Tracefs::lock()) else {
        return ExitCode::SUCCESS;
    };
    let mut system = System::new(&programs);
    let service = system.start(side, Program::Traced);
    let probes = system.start(side, Program::TracedProbes);
    let recording = system.record(side, &config(&args));
    let load = Load::new(2, &cpus(), Rate::EventsPerSecond(args.rate));
    load.run();
    let mut watched = [
        ("traced", service),
        ("traced_probes", probes),
        ("perfetto", recording.pid()),
    ]
    .map(|(name, pid)| Watched {
        name,
        pid,
        seen: Vec::new(),
    });
    watch(&args, &mut watched, recording.trace());
    let times = [service, probes].map(cpu_time);
    let trace = recording.finish();
    drop(load);
    let events = TracedEvents::of(&trace);
    println!();
    println!(
        "{} events, {} a second; {:.2} bytes an event; CPU {:.2} % service, {:.2} % probes",
        events.events(),
        events.events() / u64::from(args.seconds),
        events.bytes as f64 / events.events() as f64,
        100.0 * times[0].as_secs_f64() / f64::from(args.seconds),
        100.0 * times[1].as_secs_f64() / f64::from(args.seconds),
    );
    println!("losses: {:?}", events.losses);
    // All processes are checked, so that each prints its line.
    let flat = watched
        .iter()
        .filter(|process| is_flat(process, args.seconds))
        .count()
        == watched.len();
    if flat && events.losses.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn config(args: &Args) -> String {
    let Args { seconds, .. } = args;
    format!(
        r#"
        # Small enough to have been filled once when the warm-up is over, large enough not to wrap between two flushes: until
        # then a packet may wait in it for its end.
        buffers {{ size_kb: 4096 fill_policy: RING_BUFFER }}
        data_sources {{ config {{
          name: "linux.ftrace"
          ftrace_config {{
            ftrace_events: "sched/sched_switch"
            ftrace_events: "sched/sched_waking"
            ftrace_events: "task/task_newtask"
            ftrace_events: "task/task_rename"
            compact_sched {{ enabled: true }}
            buffer_size_kb: 8192
            drain_period_ms: 250
          }}
        }} }}
        data_sources {{ config {{
          name: "linux.process_stats"
          process_stats_config {{ scan_all_processes_on_start: true proc_stats_poll_ms: 1000 }}
        }} }}
        data_sources {{ config {{
          name: "linux.sys_stats"
          sys_stats_config {{ meminfo_period_ms: 1000 vmstat_period_ms: 1000 stat_period_ms: 1000 }}
        }} }}
        duration_ms: {seconds}000
        write_into_file: true
        file_write_period_ms: 1000
        flush_period_ms: 2500
        "#
    )
}

/// Measures the memory until shortly before the recording ends, and prints a line for each measurement.
fn watch(args: &Args, watched: &mut [Watched], trace: &std::path::Path) {
    println!("RSS and PSS in KB");
    print!("{:>6}{:>12}", "s", "file KB");
    watched.iter().for_each(|process| print!("{:>24}", process.name));
    println!();
    let (start, every) = (Instant::now(), Duration::from_secs(args.every.into()));
    let end = Duration::from_secs(args.seconds.into()) - Duration::from_secs(1);
    let mut at = every;
    while at < end {
        std::thread::sleep(at.saturating_sub(start.elapsed()));
        let file = std::fs::metadata(trace).map_or(0, |file| file.len() / 1024);
        print!("{:>6}{file:>12}", at.as_secs());
        for process in &mut *watched {
            let memory = Memory::of(process.pid).unwrap_or_else(|| panic!("{} has ended", process.name));
            print!("{:>12}{:>12}", memory.rss, memory.pss);
            process.seen.push((at, memory));
        }
        println!();
        at += every;
    }
}

/// Compares the highest memory of the last quarter with that of the first one after the warm-up.
fn is_flat(process: &Watched, seconds: u32) -> bool {
    let length = Duration::from_secs(seconds.into());
    let quarter = (length - WARM_UP) / 4;
    let highest = |from: Duration, to: Duration, kind: fn(&Memory) -> u64| {
        let seen = process.seen.iter().filter(|(at, _)| (from..=to).contains(at));
        seen.map(|(_, memory)| kind(memory))
            .max()
            .expect("a look in each quarter")
    };
    let mut flat = true;
    for (name, kind) in [
        ("RSS", (|memory| memory.rss) as fn(&Memory) -> u64),
        ("PSS", |memory| memory.pss),
    ] {
        let first = highest(WARM_UP, WARM_UP + quarter, kind);
        let last = highest(length - quarter, length, kind);
        let fine = last <= first + SLACK_KB.max(first / 20);
        let verdict = if fine { "flat" } else { "GROWS" };
        println!(
            "{:<14} {name}: {first:>7} KB in the first quarter, {last:>7} KB in the last: {verdict}",
            process.name
        );
        flat &= fine;
    }
    flat
}
