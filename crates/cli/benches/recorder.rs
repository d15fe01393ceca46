//! The cost of recording all the time: CPU time and memory of service, probes and recorder under a steady rate of scheduler events. Upstream's daemons
//! with a `perfetto` that records into a ring buffer do the same beside them.
//!
//! Run it with `bench/recorder`. It needs root (tracefs) and upstream's binaries (`$PERFETTO_REFERENCE`, or the cache). Memory is resident memory
//! without files and without the trace buffers, which are full before the measurement or count as far as they are filled.

mod sched;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Parser;
use sched::load::{Load, Rate, cpus};
use sched::process::{Memory, cpu_time};
use sched::traced_events::TracedEvents;
use support::tracefs::Tracefs;
use support::{Program, Programs, Side, System, spawn_and_await};

/// Measures what recording all the time costs.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds of each recording.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// Recordings of each kind.
    #[arg(long, default_value_t = 2)]
    runs: u32,
    /// Scheduler events per second.
    #[arg(long, default_value_t = 100_000)]
    rate: u32,
    /// Period at which the probes empty the kernel's buffers, in milliseconds.
    #[arg(long, default_value_t = 500)]
    drain_period_ms: u32,
    /// Size of the trace buffer.
    #[arg(long, default_value_t = 65_536)]
    buffer_kb: u32,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The programs that record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Upstream's daemons and command line, into a ring buffer.
    Upstream,
    /// Our daemons and recorder, into a ring buffer.
    InMemory,
    /// Our daemons and recorder, whose session is crash-safe.
    CrashSafe,
}

fn main() {
    let args = Args::parse();
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let Some(_tracefs) = Tracefs::lock() else { return };
    println!(
        "{:>3}  {:<10}{:>10}{:>10}{:>10}{:>10}{:>10}  memory in KB: {:>8}{:>8}{:>9}",
        "run", "kind", "events/s", "service", "probes", "recorder", "all", "service", "probes", "recorder"
    );
    let load = Load::new(2, &cpus(), Rate::EventsPerSecond(args.rate));
    for run in 0..args.runs {
        for kind in [Kind::Upstream, Kind::InMemory, Kind::CrashSafe] {
            measure(&args, &load, &programs, kind, run);
        }
    }
}

fn measure(args: &Args, load: &Load, programs: &Programs, kind: Kind, run: u32) {
    let side = match kind {
        Kind::Upstream => Side::Upstream,
        Kind::InMemory | Kind::CrashSafe => Side::Ours,
    };
    let mut system = System::new(programs);
    let service = system.start(side, Program::Traced);
    let probes = system.start(side, Program::TracedProbes);
    let config = config(args);
    let (recording, recorder) = match kind {
        Kind::Upstream => (Some(system.record(side, &config)), None),
        Kind::InMemory | Kind::CrashSafe => (None, Some(start(&system, &config, kind))),
    };
    let recorder_pid = match (&recording, &recorder) {
        (Some(recording), _) => recording.pid(),
        (_, Some(recorder)) => recorder.pid(),
        _ => return,
    };
    let pids = [service, probes, recorder_pid];
    load.run();
    let running = Instant::now();
    // The start is no part of the steady work.
    std::thread::sleep(Duration::from_secs(2));
    let (began, before) = (Instant::now(), pids.map(cpu_time));
    std::thread::sleep(Duration::from_secs(args.seconds.into()));
    let (after, elapsed) = (pids.map(cpu_time), began.elapsed());
    load.rest();
    let loaded = running.elapsed();
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / elapsed.as_secs_f64();
    let shares: Vec<f64> = (0..3)
        .map(|which| percent(after[which] - before[which]))
        .collect();
    let used: u64 = system
        .state()
        .tracing_sessions
        .iter()
        .flat_map(|session| session.buffer_size_kb.iter())
        .map(|kb| u64::from(*kb))
        .sum();
    let memory = pids.map(|pid| Memory::of(pid).map_or(0, |memory| memory.anonymous));
    let trace = match recording {
        Some(recording) => recording.interrupt(),
        None => seal(&system),
    };
    let rate = TracedEvents::of(&trace).events() as f64 / loaded.as_secs_f64();
    let kind = format!("{kind:?}");
    println!(
        "{run:>3}  {kind:<10}{rate:>10.0}{:>9.3}%{:>9.3}%{:>9.3}%{:>9.3}%  buffers {used:>5}{:>8}{:>8}{:>9}",
        shares[0],
        shares[1],
        shares[2],
        shares.iter().sum::<f64>(),
        memory[0],
        memory[1],
        memory[2],
    );
}

/// Has the recorder seal; returns the file.
fn seal(system: &System<'_>) -> PathBuf {
    let mut command = system.command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "seal.log");
    command
        .args(["recorder", "seal", "--settings"])
        .arg(system.path("recorder.toml"));
    let output = command.stdout(Stdio::piped()).output().expect("a command");
    let path = String::from_utf8(output.stdout).expect("a path");
    path.trim_end().into()
}

/// Starts our recorder with one session, and waits until it records.
fn start(system: &System<'_>, config: &str, kind: Kind) -> support::Running {
    std::fs::create_dir(system.path("recorder.d")).expect("a folder");
    std::fs::write(system.path("recorder.d/sched.conf"), config).expect("a config");
    let crash_safe = if kind == Kind::CrashSafe { "\"sched\"" } else { "" };
    let path = |name| system.path(name).display().to_string();
    let settings = format!(
        "sessions = {:?}\nfolder = {:?}\nsocket = {:?}\ncrash_safe = [{crash_safe}]\nring = \"64 MiB\"\n",
        path("recorder.d"),
        path("sealed"),
        path("control")
    );
    std::fs::write(system.path("recorder.toml"), settings).expect("settings");
    let mut command = system.command(Path::new(env!("CARGO_BIN_EXE_ferretto")), "recorder.log");
    command
        .args(["recorder", "run", "--settings"])
        .arg(system.path("recorder.toml"));
    let started = spawn_and_await(&mut command, |command, fd| {
        command.env("FERRETTO_RECORDER_NOTIFY_FD", fd.to_string());
    });
    let (running, _) = started.expect("a recorder");
    system.await_state(|state| state.num_sessions_started == Some(1));
    running
}

fn config(args: &Args) -> String {
    let Args {
        buffer_kb,
        drain_period_ms,
        ..
    } = args;
    format!(
        r#"
        buffers {{ size_kb: {buffer_kb} fill_policy: RING_BUFFER }}
        data_sources {{ config {{
          name: "linux.ftrace"
          ftrace_config {{
            ftrace_events: "sched/sched_switch"
            ftrace_events: "sched/sched_waking"
            compact_sched {{ enabled: true }}
            buffer_size_kb: 16384
            drain_period_ms: {drain_period_ms}
          }}
        }} }}
        "#
    )
}
