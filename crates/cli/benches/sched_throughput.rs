//! Records events of the kernel at full rate with upstream's daemons and ours in turn, and prints the cost of an event in each: CPU time in the probes
//! and in the service, and bytes of the trace. Scheduler events by default; `--events` has other classes.
//!
//! Run it with `bench/sched-throughput`. It needs root (tracefs) and upstream's binaries (`$PERFETTO_REFERENCE`, or the cache). Times are CPU times,
//! on which other load has only an indirect effect, through caches. Compare the minima.

mod sched;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sched::load::{Load, Rate, cpus};
use sched::process::cpu_time;
use sched::traced_events::TracedEvents;
use support::tracefs::Tracefs;
use support::{Program, Programs, Side, System};

/// Compares what recorded events of the kernel cost with upstream's daemons and with ours.
#[derive(Debug, Parser)]
struct Args {
    /// Class of the events.
    #[arg(long, default_value = "compact")]
    events: Events,
    /// Recordings with each side's daemons.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Seconds of load in each; the recording goes on for one more, so that it holds all of it.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Pairs of threads that wake each other, or threads that set timers.
    #[arg(long, default_value_t = 2)]
    pairs: u32,
    /// CPUs that they run on.
    #[arg(long, default_value = "one")]
    on: On,
    /// Period at which the probes empty the kernel's buffers, in milliseconds.
    #[arg(long, default_value_t = 100)]
    drain_period_ms: u32,
    /// How the trace gets into its file.
    #[arg(long, default_value = "service")]
    written_by: WrittenBy,
    /// Whose daemons.
    #[arg(long, default_value = "both")]
    daemons: Daemons,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Events {
    /// `sched_switch` and `sched_waking` in the compact encoding.
    Compact,
    /// The same with a message of its own type for each event.
    Messages,
    /// `sched_stat_runtime`, for which the trace format has no type.
    Generic,
    /// `hrtimer_start` with the name of the kernel's function that it will call.
    Symbols,
}

impl Events {
    fn load(self, pairs: u32, cpus: &[usize]) -> Load {
        match self {
            Events::Compact | Events::Messages | Events::Generic => Load::new(pairs, cpus, Rate::Full),
            Events::Symbols => Load::of_timers(pairs, cpus),
        }
    }

    fn config(self) -> &'static str {
        match self {
            Events::Compact => {
                r#"ftrace_events: "sched/sched_switch" ftrace_events: "sched/sched_waking" compact_sched { enabled: true }"#
            }
            Events::Messages => {
                r#"ftrace_events: "sched/sched_switch" ftrace_events: "sched/sched_waking" compact_sched { enabled: false }"#
            }
            Events::Generic => r#"ftrace_events: "sched/sched_stat_runtime""#,
            Events::Symbols => r#"ftrace_events: "timer/hrtimer_start" symbolize_ksyms: true"#,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum On {
    One,
    All,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WrittenBy {
    /// `write_into_file`, every half second.
    Service,
    /// The command line reads the buffers when the recording is over.
    CommandLine,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Daemons {
    Both,
    Ours,
    Upstream,
}

impl Daemons {
    fn sides(self) -> &'static [Side] {
        match self {
            Daemons::Both => &[Side::Upstream, Side::Ours],
            Daemons::Ours => &[Side::Ours],
            Daemons::Upstream => &[Side::Upstream],
        }
    }
}

/// One recording.
struct Run {
    side: Side,
    events: TracedEvents,
    probes: Duration,
    service: Duration,
}

impl Run {
    fn per_event(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.events.events() as f64
    }
}

/// The name of a figure, and its value in a run.
type Figure = (&'static str, fn(&Run) -> f64);

/// The figures that are compared.
const FIGURES: [Figure; 4] = [
    ("probes, ns/event", |run| run.per_event(run.probes)),
    ("service, ns/event", |run| run.per_event(run.service)),
    ("both, ns/event", |run| run.per_event(run.probes + run.service)),
    ("trace, bytes/event", |run| {
        run.events.bytes as f64 / run.events.events() as f64
    }),
];

fn main() {
    let args = Args::parse();
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(_tracefs) = Tracefs::lock() else { return };
    println!(
        "{:>3}  {:<9}{:>12}{:>10}{:>10}{:>10}{:>8}  losses",
        "run", "daemons", "events", "events/s", "probes", "service", "bytes"
    );
    let cpus = match args.on {
        On::One => vec![0],
        On::All => cpus(),
    };
    let load = args.events.load(args.pairs, &cpus);
    let mut runs = Vec::new();
    for number in 0..args.runs {
        for &side in args.daemons.sides() {
            let run = record(&args, &load, &programs, side);
            let [probes, service, _, bytes] = FIGURES.map(|(_, figure)| figure(&run));
            let rate = run.events.events() / u64::from(args.seconds);
            let events = run.events.events();
            println!(
                "{number:>3}  {side:<9}{events:>12}{rate:>10}{probes:>10.2}{service:>10.2}{bytes:>8.2}  {}",
                losses(&run)
            );
            runs.push(run);
        }
    }
    if let Daemons::Both = args.daemons {
        summarize(&runs);
    }
}

fn record(args: &Args, load: &Load, programs: &Programs, side: Side) -> Run {
    let mut system = System::new(programs);
    let service = system.start(side, Program::Traced);
    let probes = system.start(side, Program::TracedProbes);
    let recording = system.record(side, &config(args));
    let before = (cpu_time(probes), cpu_time(service));
    load.run();
    std::thread::sleep(Duration::from_secs(args.seconds.into()));
    load.rest();
    let trace = recording.finish();
    let after = (cpu_time(probes), cpu_time(service));
    Run {
        side,
        events: TracedEvents::of(&trace),
        probes: after.0 - before.0,
        service: after.1 - before.1,
    }
}

fn config(args: &Args) -> String {
    let (seconds, drain_period_ms, events) = (args.seconds + 1, args.drain_period_ms, args.events.config());
    let written = match args.written_by {
        WrittenBy::Service => "write_into_file: true file_write_period_ms: 500",
        WrittenBy::CommandLine => "",
    };
    format!(
        r#"
        buffers {{ size_kb: 262144 fill_policy: RING_BUFFER }}
        data_sources {{ config {{
          name: "linux.ftrace"
          ftrace_config {{
            {events}
            buffer_size_kb: 65536
            drain_period_ms: {drain_period_ms}
          }}
        }} }}
        duration_ms: {seconds}000
        {written}
        "#
    )
}

fn losses(run: &Run) -> String {
    let losses: Vec<String> = run
        .events
        .losses
        .iter()
        .map(|(cause, count)| format!("{count} {cause}"))
        .collect();
    if losses.is_empty() {
        "none".into()
    } else {
        losses.join(", ")
    }
}

fn summarize(runs: &[Run]) {
    println!();
    println!(
        "{:<22}{:>20}{:>20}{:>20}",
        "", "upstream", "ours", "ours / upstream"
    );
    println!(
        "{:<22}{:>20}{:>20}{:>20}",
        "", "min    median", "min    median", "min    median"
    );
    for (name, figure) in FIGURES {
        let mut by_side: BTreeMap<Side, Vec<f64>> = BTreeMap::new();
        for run in runs {
            by_side.entry(run.side).or_default().push(figure(run));
        }
        let [upstream, ours] = [Side::Upstream, Side::Ours].map(|side| {
            let figures = by_side.get_mut(&side).expect("runs of both sides");
            figures.sort_by(f64::total_cmp);
            (figures[0], figures[figures.len() / 2])
        });
        let pair = |(min, median): (f64, f64)| format!("{min:.2}{median:>10.2}");
        let ratio = (ours.0 / upstream.0, ours.1 / upstream.1);
        println!(
            "{name:<22}{:>20}{:>20}{:>20}",
            pair(upstream),
            pair(ours),
            pair(ratio)
        );
    }
}
