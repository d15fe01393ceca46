//! Samples a load with our profiler, `perf record` and `samply` in turn, and prints what a sample takes of each: CPU time of the process that takes it,
//! and of the service, and the share of the machine.
//!
//! Run it with `bench/cpu-profile`. It needs root, `perf`, a C compiler and, if asked for, `samply`. `perf record` copies registers and stack into its
//! file and unwinds them when somebody reads the file; ours has unwound each stack, found its names and made its packet. `samply` unwinds as it goes too,
//! and makes its file at the end, which is not measured. All sample the same load at the same frequency, one after the other. `samply` samples one
//! process, so with it all do.
//!
//! A start takes as long as some thousand samples: ours reads the kernel's symbols, `samply` the files of the process. So each recording is made
//! twice, for one second and for longer. The bench prints the difference.

mod sched;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::write::{PerfSample, TracePacket};
use ferretto_wire::{Reader, Value};
use sched::process::cpu_time;
use support::process::Stopped;
use support::{Program, Programs, Side, System};

/// Compares what a sample with a stack costs our profiler and others.
#[derive(Debug, Parser)]
struct Args {
    /// Recordings with each.
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Seconds that are measured in each, after the first.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Samples a second on each CPU.
    #[arg(long, default_value_t = 1000)]
    frequency: u32,
    /// The load, on each CPU.
    #[arg(long, default_value = "steady")]
    load: Load,
    /// The profilers to measure.
    #[arg(long, value_delimiter = ',', default_value = "ours,perf")]
    profilers: Vec<Profiler>,
    /// Samples only the process of the load, which has to be steady. Implied by samply.
    #[arg(long)]
    process: bool,
    /// Cargo says this to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    /// A program that runs all the time, on a thread for each CPU, below some 20 frames without frame pointers.
    Steady,
    /// The same program on one thread, as often as there are CPUs, but each runs for some milliseconds, and the next follows.
    Churn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profiler {
    Ours,
    Perf,
    Samply,
}

/// Threads call `middle`, which calls itself twenty times and then `leaf`; as many as the first argument says, as often as the second says, or for ever.
const BURNER: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
volatile uint64_t sink;
int rounds = -1;
__attribute__((noinline)) void leaf(int n) { for (int i = 0; i < n; i++) sink += i * i; }
__attribute__((noinline)) void middle(int depth) { if (depth) middle(depth - 1); else leaf(100000); sink++; }
void *work(void *unused) { for (int left = rounds; left--;) middle(19); return unused; }
int main(int argc, char **argv) {
  if (argc > 2) rounds = atoi(argv[2]);
  pthread_t thread;
  for (int others = argc > 1 ? atoi(argv[1]) - 1 : 0; others > 0; others--) pthread_create(&thread, 0, work, 0);
  work(0);
  return 0;
}
"#;

/// Processes that end with this.
struct Loads(Vec<Child>);

impl Loads {
    fn start(load: Load, burner: &Path) -> Loads {
        let cpus = sched::load::cpus().len();
        let spawn = |command: &mut Command| command.stdin(Stdio::null()).spawn().expect("the load");
        Loads(match load {
            Load::Steady => vec![spawn(Command::new(burner).arg(cpus.to_string()))],
            Load::Churn => {
                let start = |_| {
                    let script = r#"while "$0" 1 30; do :; done"#;
                    spawn(Command::new("sh").args(["-c", script]).arg(burner))
                };
                (0..cpus).map(start).collect()
            }
        })
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

/// `SampleSkipReason.PROFILER_SKIP_NOT_IN_SCOPE`.
const NOT_IN_SCOPE: u64 = SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE as u64;

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
    /// The amounts by which this recording exceeds a shorter one.
    fn after(&self, start: &Run) -> Run {
        let more = |whole: Option<u64>, start: Option<u64>| Some(whole?.saturating_sub(start?));
        Run {
            samples: self.samples.saturating_sub(start.samples),
            with_stacks: more(self.with_stacks, start.with_stacks),
            lost: more(self.lost, start.lost),
            profiler: self.profiler.saturating_sub(start.profiler),
            service: self.service.saturating_sub(start.service),
            took: self.took.saturating_sub(start.took),
        }
    }

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
    let loads = Loads::start(args.load, &burner);
    let alone = args.process || args.profilers.contains(&Profiler::Samply);
    assert!(
        !alone || args.load == Load::Steady,
        "a load of many processes cannot be sampled as one: leave out --process and samply, or use --load steady"
    );
    let only = alone.then(|| loads.0[0].id());
    println!(
        "{:>3}  {:<6}{:>9}{:>9}{:>7}{:>16}{:>15}{:>12}",
        "run", "", "samples", "stacks", "lost", "profiler, µs", "service, µs", "of all, %"
    );
    let mut runs: Vec<Vec<Run>> = args.profilers.iter().map(|_| Vec::new()).collect();
    for number in 0..args.runs {
        for (profiler, runs) in args.profilers.iter().zip(&mut runs) {
            let record = |seconds| match profiler {
                Profiler::Ours => Some(record_ours(&args, &programs, only, seconds)),
                Profiler::Perf => record_perf(&args, folder.path(), only, seconds),
                Profiler::Samply => record_samply(&args, folder.path(), only?, seconds),
            };
            let (Some(start), Some(whole)) = (record(1), record(1 + args.seconds)) else {
                return;
            };
            let run = whole.after(&start);
            print(number, profiler.name(), &run);
            runs.push(run);
        }
    }
    for (profiler, runs) in args.profilers.iter().zip(&runs) {
        let mut each: Vec<f64> = runs
            .iter()
            .map(|run| run.per_sample(run.profiler + run.service))
            .collect();
        each.sort_by(f64::total_cmp);
        if let (Some(least), Some(median)) = (each.first(), each.get(each.len() / 2)) {
            let name = profiler.name();
            println!("{name}: {least:.2} / {median:.2} µs a sample, least / median");
        }
    }
}

impl Profiler {
    fn name(self) -> &'static str {
        match self {
            Profiler::Ours => "ours",
            Profiler::Perf => "perf",
            Profiler::Samply => "samply",
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
        .args([
            "-O2",
            "-fomit-frame-pointer",
            "-fno-optimize-sibling-calls",
            "-pthread",
            "-o",
        ])
        .args([&program, &source])
        .status();
    compiled.ok()?.success().then_some(program)
}

fn record_ours(args: &Args, programs: &Programs, only: Option<u32>, seconds: u32) -> Run {
    let mut system = System::new(programs);
    let service = system.start(Side::Ours, Program::Traced);
    let profiler = system.start(Side::Ours, Program::TracedPerf);
    let times = || (cpu_time(profiler), cpu_time(service));
    let began = Instant::now();
    let before = times();
    let trace = system.record(Side::Ours, &config(args, only, seconds)).finish();
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
                // It is of another process than the one that was asked for.
                (PerfSample::SAMPLE_SKIPPED_REASON, Value::Varint(NOT_IN_SCOPE)) => is_sample = false,
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

fn config(args: &Args, only: Option<u32>, seconds: u32) -> String {
    let frequency = args.frequency;
    let scope = only.map_or(String::new(), |pid| format!("scope {{ target_pid: {pid} }}"));
    format!(
        "buffers {{ size_kb: 65536 }} duration_ms: {seconds}000 data_sources {{ config {{ name: 'linux.perf' perf_event_config {{
           timebase {{ frequency: {frequency} counter: SW_CPU_CLOCK }} callstack_sampling {{ kernel_frames: true {scope} }}
         }} }} }}"
    )
}

/// `None` if there is no `perf`.
fn record_perf(args: &Args, folder: &Path, only: Option<u32>, seconds: u32) -> Option<Run> {
    let data = folder.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-e", "cpu-clock", "-F", &args.frequency.to_string()]);
    match only {
        Some(pid) => perf.args(["-p", &pid.to_string()]),
        None => perf.arg("-a"),
    };
    // The most that `perf` takes; ours asks for 65,280.
    perf.args(["--call-graph", "dwarf,65528", "-o"])
        .arg(&data)
        .args(["--", "sleep", &seconds.to_string()]);
    let (said, profiler) = watch(&mut perf, seconds)?;
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
        took: Duration::from_secs(seconds.into()),
    })
}

/// `samply` ends with a program that it has started, so it starts the load, while the other one stands still. `None` if there is no `samply`.
fn record_samply(args: &Args, folder: &Path, other: u32, seconds: u32) -> Option<Run> {
    let file = folder.join("samply.json");
    let _stands_still = Stopped::new(other);
    let mut samply = Command::new("samply");
    samply
        .args([
            "record",
            "--save-only",
            "--rate",
            &args.frequency.to_string(),
            "-o",
        ])
        .arg(&file)
        .args(["--", "timeout", &seconds.to_string()])
        .arg(folder.join("burner"))
        .arg(sched::load::cpus().len().to_string())
        .stdout(Stdio::null());
    let (said, profiler) = watch(&mut samply, seconds)?;
    let profile = std::fs::read(&file).unwrap_or_else(|error| panic!("samply's profile: {error}: {said}"));
    let profile: serde_json::Value = serde_json::from_slice(&profile).expect("samply's JSON");
    let stacks = profile["threads"].as_array().into_iter().flatten();
    let stacks = stacks.flat_map(|thread| thread["samples"]["stack"].as_array().into_iter().flatten());
    let (with, without): (Vec<_>, Vec<_>) = stacks.partition(|stack| !stack.is_null());
    Some(Run {
        samples: (with.len() + without.len()) as u64,
        with_stacks: Some(with.len() as u64),
        lost: None,
        profiler,
        service: Duration::ZERO,
        took: Duration::from_secs(seconds.into()),
    })
}

/// Runs a profiler; returns what it says, and its processor time of the seconds that are measured. `None` if there is no such program.
fn watch(command: &mut Command, seconds: u32) -> Option<(String, Duration)> {
    let began = Instant::now();
    let mut process = command
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| println!("skipped: cannot run {}: {error}", command.get_program().display()))
        .ok()?;
    // It can be read only while the process runs.
    let mut time = Duration::ZERO;
    while process.try_wait().expect("a process").is_none() {
        if began.elapsed() < Duration::from_secs(seconds.into()) {
            time = cpu_time(process.id());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = std::io::read_to_string(process.stderr.take()?).ok()?;
    Some((said, time))
}
