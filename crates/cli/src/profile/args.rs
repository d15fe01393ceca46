//! The flags of `ferretto profile`, in the spelling of `perf record` and `cpu_profile`, and what they mean together.
//!
//! [`run`](super::run) calls it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::event::{Event, EventError, event};
use crate::convert::Format;
use crate::perfetto::light_config::{LightFlagError, duration_ms};

pub(super) const NAME: &str = "ferretto profile";

/// Samples per second and CPU. A prime, so that samples do not keep step with timers.
const DEFAULT_FREQUENCY: u64 = 999;
const DEFAULT_DURATION: &str = "10s";
/// The kernel's own limit on samples per second.
const MAX_SAMPLE_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// Shows where the time goes: samples call stacks, and lists the functions with the most samples.
///
/// It records what runs (with --off-cpu also what waits) beside the scheduler's decisions, writes the names of functions into the
/// trace, and prints the ten functions with the most samples. The rest is in the trace: `ferretto open` shows it.
///
/// Examples:
///
///   ferretto profile -- make -j4
///
///   ferretto profile -p 4321 --duration 5s -o server.svg
///
///   ferretto profile --off-cpu -o trace.pftrace -- ./server
///
/// With a COMMAND the recording ends with it, and the exit status is the command's.
#[derive(Debug, Parser)]
#[command(name = "profile", bin_name = NAME, disable_version_flag = true, verbatim_doc_comment)]
pub(super) struct Args {
    /// Samples per second and CPU, or max for as many as the kernel allows [default: 999]
    #[arg(short = 'F', long = "freq", value_name = "HZ", conflicts_with = "count")]
    frequency: Option<String>,
    /// Sample after so many events (nanoseconds for cpu-clock), not so often per second
    #[arg(short, long, value_name = "PERIOD", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// The event that is sampled: cpu-clock, cycles, page-faults, context-switches, or a tracepoint GROUP:NAME; may be repeated
    #[arg(short, long, value_name = "EVENT", value_delimiter = ',')]
    event: Vec<String>,
    /// Only this process; may be repeated
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) pid: Vec<i32>,
    /// All processes. This is the default; with COMMAND, the list and other formats then have all processes, too
    #[arg(short, long, visible_alias = "all-cpus", conflicts_with = "pid")]
    pub(super) all: bool,
    /// Also sample where threads wait, weighted by how long
    #[arg(long)]
    pub(super) off_cpu: bool,
    /// Record call stacks, which is the default
    #[arg(short = 'g')]
    with_stacks: bool,
    /// How call stacks are found
    #[arg(long, value_name = "HOW", value_enum, default_value_t = CallGraph::Dwarf)]
    pub(super) call_graph: CallGraph,
    /// How long: a number and ms, s, m or h; 0 is until Ctrl-C [default: 10s, or as long as COMMAND runs]
    #[arg(long, value_name = "TIME")]
    duration: Option<String>,
    /// Write into this file; the default is a name that nothing has
    #[arg(short, long = "out", visible_alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// The format of the file; otherwise its name's ending says it, and else it is a trace
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<ProfileFormat>,
    /// Say nothing but what goes wrong and what was lost
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Exit with 3 unless all was recorded and nothing lost
    #[arg(long)]
    pub(super) strict: bool,
    /// A command to run meanwhile, with its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}

/// How the frames of programs are found. Those of the kernel are always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CallGraph {
    /// By the unwind tables of the programs
    Dwarf,
    /// By frame pointers
    Fp,
    /// By frame pointers, which the kernel follows: cheapest
    KernelFp,
}

/// A format that a profile is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ProfileFormat {
    /// A trace with everything, for `ferretto open`
    Perfetto,
    /// For pprof
    Pprof,
    /// Folded stacks
    Folded,
    /// A flame graph in SVG
    Flamegraph,
    /// For the Firefox profiler
    Firefox,
}

impl ProfileFormat {
    /// Returns the format as `ferretto convert` has it.
    pub(super) fn format(self) -> Format {
        match self {
            ProfileFormat::Perfetto => Format::Perfetto,
            ProfileFormat::Pprof => Format::Pprof,
            ProfileFormat::Folded => Format::Folded,
            ProfileFormat::Flamegraph => Format::Flamegraph,
            ProfileFormat::Firefox => Format::Firefox,
        }
    }

    /// Returns the ending of names of such files.
    fn ending(self) -> &'static str {
        match self {
            ProfileFormat::Perfetto => "pftrace",
            ProfileFormat::Pprof => "pb.gz",
            ProfileFormat::Folded => "folded",
            ProfileFormat::Flamegraph => "svg",
            ProfileFormat::Firefox => "firefox.json",
        }
    }
}

/// Flags that cannot be used, or not together.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArgsError {
    #[error("-F {0:?} is no number of samples per second; write one like 999, or max")]
    Frequency(String),
    #[error(
        "-F {asked}: this kernel takes at most {allowed} samples per second; use -F max, or raise {MAX_SAMPLE_RATE}"
    )]
    TooOften { asked: u64, allowed: u64 },
    #[error(transparent)]
    Event(#[from] EventError),
    #[error(transparent)]
    Duration(#[from] LightFlagError),
    #[error(
        "{0}: profiles have no format for this ending; use .pftrace, .pb.gz, .folded, .svg or .firefox.json, or choose one with --format"
    )]
    Format(String),
    #[error("-p {0}: there is no such process")]
    NoProcess(i32),
    #[error("a profile needs a file: name one with -o, or leave -o out")]
    Stdout,
}

/// How often samples are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interval {
    /// So many times per second and CPU.
    Frequency(u64),
    /// After so many events.
    Period(u64),
}

/// Where the profile goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) format: ProfileFormat,
    /// `None` for a name that nothing has.
    pub(super) file: Option<PathBuf>,
}

impl Args {
    /// Returns the events to sample, each with its interval.
    pub(super) fn events(&self) -> Result<Vec<(Event, Interval)>, ArgsError> {
        let frequency = match self.frequency.as_deref() {
            None => None,
            Some(typed) => Some(frequency(typed)?),
        };
        let names: Vec<&str> = match self.event.is_empty() {
            true => vec!["cpu-clock"],
            false => self.event.iter().map(String::as_str).collect(),
        };
        let mut events = Vec::new();
        for name in names {
            let event = event(name)?;
            let interval = match (self.count, frequency) {
                (Some(count), _) => Interval::Period(count),
                (None, Some(frequency)) => Interval::Frequency(frequency),
                // Such events are rare, and each counts.
                (None, None) if event.is_tracepoint() => Interval::Period(1),
                (None, None) => Interval::Frequency(DEFAULT_FREQUENCY),
            };
            events.push((event, interval));
        }
        Ok(events)
    }

    /// # Errors
    /// If one of the processes is not there.
    pub(super) fn check_processes(&self) -> Result<(), ArgsError> {
        let is_gone = |pid: &&i32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
        match self.pid.iter().find(is_gone) {
            None => Ok(()),
            Some(pid) => Err(ArgsError::NoProcess(*pid)),
        }
    }

    /// Returns the length of the recording in ms; 0 is until it is ended.
    pub(super) fn duration_ms(&self) -> Result<u32, ArgsError> {
        let default = match self.command.is_empty() {
            true => DEFAULT_DURATION,
            false => "0",
        };
        let typed = self.duration.as_deref().unwrap_or(default);
        Ok(duration_ms("--duration", typed)?)
    }

    /// Returns the file and its format.
    pub(super) fn goal(&self) -> Result<Goal, ArgsError> {
        if self.out.as_deref().is_some_and(|out| out.as_os_str() == "-") {
            return Err(ArgsError::Stdout);
        }
        let by_name = self.out.as_deref().and_then(Format::of_file);
        let format = match (self.format, by_name) {
            (Some(format), _) => format,
            (None, None) => ProfileFormat::Perfetto,
            (None, Some(by_name)) => {
                let mut formats = ProfileFormat::value_variants().iter().copied();
                let name = || self.out.iter().map(|out| out.display().to_string()).collect();
                formats
                    .find(|format| format.format() == by_name)
                    .ok_or_else(|| ArgsError::Format(name()))?
            }
        };
        Ok(Goal {
            format,
            file: self.out.clone(),
        })
    }
}

impl Goal {
    /// Returns the file for a profile whose trace would have this name by default.
    pub(super) fn file_beside(&self, trace: PathBuf) -> PathBuf {
        self.file
            .clone()
            .unwrap_or_else(|| trace.with_extension(self.format.ending()))
    }
}

fn frequency(typed: &str) -> Result<u64, ArgsError> {
    let allowed = std::fs::read_to_string(MAX_SAMPLE_RATE);
    let allowed: Option<u64> = allowed.ok().and_then(|text| text.trim().parse().ok());
    let asked = match (typed, allowed) {
        ("max", Some(allowed)) => allowed,
        _ => typed
            .parse()
            .ok()
            .filter(|frequency| *frequency > 0)
            .ok_or_else(|| ArgsError::Frequency(typed.to_owned()))?,
    };
    match allowed {
        Some(allowed) if asked > allowed => Err(ArgsError::TooOften { asked, allowed }),
        _ => Ok(asked),
    }
}
