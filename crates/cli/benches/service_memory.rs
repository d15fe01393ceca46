//! Gives upstream's service and ours the same clients, and prints their memory: idle, for a session, for a producer, for a megabyte in a buffer, and
//! in the end.
//!
//! Run it with `bench/service-memory`. It needs upstream's binaries (`$PERFETTO_REFERENCE`, or the cache). "Resident" is all mapped and present
//! memory (`Rss` in `/proc/PID/smaps_rollup`), including the program's pages and shared memory, which other processes may have as well. "Anonymous"
//! is the process's own memory: heap, buffers, stacks.

mod sched;
mod service;
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use clap::Parser;
use ferretto_proto::text;
use sched::process::Memory;
use service::{Clients, Commits, DATA_SOURCE, EVENT_BYTES, Pace, address};
use support::{Program, Programs, Side, System};

/// Compares the memory that upstream's service and ours take for the same clients.
#[derive(Debug, Parser)]
struct Args {
    /// Services of each side; medians are printed.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Sessions with a buffer of 4 KB, beside a first one.
    #[arg(long, default_value_t = 3)]
    sessions: usize,
    /// Producers with one data source.
    #[arg(long, default_value_t = 64)]
    producers: usize,
    /// Megabytes that they write into the buffer of one more session.
    #[arg(long, default_value_t = 64)]
    megabytes: u64,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The time in which a service comes to rest.
const REST: Duration = Duration::from_millis(300);

/// The growth of memory in KB from one state of the service to the next, for each added item.
#[derive(Debug, Clone, Copy)]
struct Growth {
    resident: f64,
    anonymous: f64,
}

fn main() {
    let args = Args::parse();
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let sides = [Side::Upstream, Side::Ours];
    let mut runs = sides.map(|_| Vec::new());
    for _ in 0..args.runs {
        for (side, runs) in sides.iter().zip(&mut runs) {
            runs.push(run(&args, &programs, *side));
        }
    }
    println!("{:<44}{:>24}{:>24}", "", "resident, KB", "anonymous, KB");
    println!(
        "{:<44}{:>24}{:>24}",
        "", "upstream        ours", "upstream        ours"
    );
    for step in 0..runs[0][0].len() {
        let median = |runs: &[Vec<(String, Growth)>], figure: fn(&Growth) -> f64| {
            let mut figures: Vec<f64> = runs.iter().map(|run| figure(&run[step].1)).collect();
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        };
        let [upstream, ours] = &runs;
        let pair = |figure| format!("{:.1}{:>12.1}", median(upstream, figure), median(ours, figure));
        println!(
            "{:<44}{:>24}{:>24}",
            runs[0][0][step].0,
            pair(|growth| growth.resident),
            pair(|growth| growth.anonymous)
        );
    }
}

/// Takes one service through all steps; returns the growth in each, with its name.
fn run(args: &Args, programs: &Programs, side: Side) -> Vec<(String, Growth)> {
    let mut system = System::new(programs);
    let service = system.start(side, Program::Traced);
    let (for_producers, for_consumers) = (
        address(&system.producer_socket()),
        address(&system.consumer_socket()),
    );
    let mut clients = Clients::new();
    let mut steps = Vec::new();
    let mut before = Growth {
        resident: 0.0,
        anonymous: 0.0,
    };
    let mut step = |name: String, count: usize| {
        std::thread::sleep(REST);
        let memory = Memory::of(service).expect("a service that runs");
        let now = Growth {
            resident: memory.rss as f64,
            anonymous: memory.anonymous as f64,
        };
        let growth = Growth {
            resident: (now.resident - before.resident) / count as f64,
            anonymous: (now.anonymous - before.anonymous) / count as f64,
        };
        before = now;
        steps.push((name, growth));
        now
    };

    step("idle".into(), 1);
    let enable = |clients: &mut Clients| clients.enable(&for_consumers, &config("nobody's", 4), None);
    // Some parts of the program are also needed for the first time.
    let mut quiet = vec![enable(&mut clients)];
    step("+ the first session".into(), 1);
    quiet.extend((0..args.sessions).map(|_| enable(&mut clients)));
    step(format!("+ each of {} more", args.sessions), args.sessions);
    clients.add_producers(&for_producers, args.producers, Commits::EachChunk);
    step(format!("+ each of {} producers", args.producers), args.producers);
    let size_kb = args.megabytes * 1024;
    let session = clients.enable(&for_consumers, &config(DATA_SOURCE, size_kb), None);
    clients.await_producers(1);
    step("+ each one's part in a session".into(), args.producers);
    // Twice around, so that the buffer and all shared memory have been touched.
    let pace = Pace {
        events: 1_000,
        tick: Duration::from_millis(1),
    };
    clients.write(2 * (args.megabytes << 20) / EVENT_BYTES as u64, pace);
    step(
        format!("+ each MB of {} in its buffer", args.megabytes),
        args.megabytes as usize,
    );
    clients.read(session.0, |_| {});
    step("+ reading it".into(), 1);
    for session in quiet.into_iter().chain([session]) {
        clients.disable(session);
        clients.free(session.0);
    }
    drop(clients);
    let left = step("- all of them".into(), 1);
    steps.push(("left".into(), left));
    steps
}

fn config(data_source: &str, size_kb: u64) -> Vec<u8> {
    let config = format!(
        r#"
        buffers {{ size_kb: {size_kb} fill_policy: RING_BUFFER }}
        data_sources {{ config {{ name: "{data_source}" }} }}
        "#
    );
    text::encode(&config, text::TRACE_CONFIG).expect("a config")
}
