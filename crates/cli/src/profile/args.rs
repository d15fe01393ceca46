//! The flags of `ferretto profile`, in the spelling of `perf record` and `cpu_profile`, and what they mean together.
//!
//! [`run`](super::run) calls it.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};

use super::event::{Event, EventError, event};
use super::targets::{CpuList, TargetError, Targets};
use crate::perfetto::light_config::{LightFlagError, duration_ms};
use crate::profiling::{Goal, GoalError, ProfileFormat};

pub(super) const NAME: &str = "ferretto profile";

/// Samples per second and CPU. A prime, so that samples do not keep step with timers.
const DEFAULT_FREQUENCY: u64 = 999;
const DEFAULT_DURATION: &str = "10s";
/// The kernel's own limit on samples per second.
const MAX_SAMPLE_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// Shows where the time goes: samples call stacks, and lists the functions with the most samples.
///
/// The trace also has the scheduler's decisions and the names of functions. `ferretto open` shows it.
///
/// Examples:
///
///   ferretto profile -- make -j4
///
///   ferretto profile -p 4321 -d 5 -o server.svg
///
///   ferretto profile --off-cpu -o trace.pftrace -- ./server
///
/// With a COMMAND the recording ends with it, and the exit status is the command's.
#[derive(Debug, Parser)]
#[command(name = "profile", bin_name = NAME, disable_version_flag = true, verbatim_doc_comment)]
pub(super) struct Args {
    /// Samples per second and CPU, or max [default: 999]
    #[arg(
        short = 'F',
        long = "freq",
        visible_alias = "rate",
        value_name = "HZ",
        conflicts_with = "count"
    )]
    frequency: Option<String>,
    /// Sample once per PERIOD events; cpu-clock counts nanoseconds
    #[arg(short, long, value_name = "PERIOD", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Sample this event, as in cycles or sched:sched_switch; may be repeated [default: cpu-clock]
    #[arg(short, long, value_name = "EVENT", value_delimiter = ',')]
    event: Vec<String>,
    /// Sample only this process; may be repeated
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) pid: Vec<i32>,
    /// List only this thread, and sample its whole process; may be repeated
    ///
    /// The trace has all threads of the process. The list and other formats have only this one.
    #[arg(short, long, value_name = "TID", value_delimiter = ',', value_parser = tid, conflicts_with = "pid")]
    pub(super) tid: Vec<i32>,
    /// Sample all processes (the default)
    ///
    /// With a COMMAND, the list and formats other than the trace have only the processes of the command. With this flag they have all processes.
    #[arg(short, long, visible_alias = "all-cpus", conflicts_with_all = ["pid", "tid"])]
    pub(super) all: bool,
    /// Sample only on these CPUs, as in 0,2-3
    #[arg(short = 'C', long, value_name = "CPUS")]
    pub(super) cpu: Option<CpuList>,
    /// Also sample where threads wait, weighted by how long
    #[arg(long)]
    pub(super) off_cpu: bool,
    /// Show the functions with the most samples while it records
    ///
    /// The list is of all samples so far, and changes about once a second. With --off-cpu it has no waiting, whose length is known only at the end.
    /// There is none with a COMMAND, which has the terminal: sample it with -p from another one.
    #[arg(long, conflicts_with_all = ["command", "quiet"])]
    pub(super) top: bool,
    /// Record call stacks (the default)
    #[arg(short = 'g')]
    with_stacks: bool,
    /// How to find call stacks; dwarf,SIZE also works
    ///
    /// SIZE changes nothing: each sample has up to 65,280 bytes of its stack.
    #[arg(long, value_name = "HOW", value_parser = CallGraphParser, default_value = "dwarf")]
    pub(super) call_graph: CallGraph,
    /// Stop after so many seconds, or 500ms, 5m, 1h; 0 waits for Ctrl-C [default: 10, or until COMMAND ends]
    #[arg(short, long, value_name = "TIME")]
    duration: Option<String>,
    /// Write into this file [default: a new name]
    #[arg(short, long = "out", visible_alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write this format [default: by the ending of FILE, or else perfetto]
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<ProfileFormat>,
    /// Print only errors and losses, and the file's name unless -o gave it
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Exit with 3 unless everything was recorded and nothing lost
    #[arg(long)]
    pub(super) strict: bool,
    /// Run this command and sample while it runs
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(super) command: Vec<OsString>,
}

/// Reads the id of a thread.
fn tid(typed: &str) -> Result<i32, String> {
    typed.parse().ok().filter(|tid| *tid > 0).ok_or_else(|| {
        "-t chooses a thread, by its number, as for `perf record`; -d says how long to record".to_owned()
    })
}

/// How the frames of programs are found. Those of the kernel are always there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CallGraph {
    /// By the programs' unwind tables, over a copy of the stack
    Dwarf,
    /// By frame pointers, over a copy of the stack
    Fp,
    /// By frame pointers, which the kernel follows: cheapest, and perf's fp
    KernelFp,
}

/// Reads `--call-graph`, also `dwarf,SIZE` as `perf` has it.
#[derive(Debug, Clone)]
struct CallGraphParser;

/// The largest SIZE of `perf record --call-graph dwarf,SIZE`, in bytes: the kernel's bound.
const LARGEST_STACK_COPY: u32 = (1 << 16) - 8;

impl TypedValueParser for CallGraphParser {
    type Value = CallGraph;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        typed: &OsStr,
    ) -> Result<CallGraph, clap::Error> {
        let modes = EnumValueParser::<CallGraph>::new();
        let Some((mode, size)) = typed.to_str().and_then(|typed| typed.split_once(',')) else {
            return modes.parse_ref(command, arg, typed);
        };
        let mode = modes.parse_ref(command, arg, OsStr::new(mode))?;
        let refused = |reason: String| {
            let message = format!("--call-graph {}: {reason}\n", typed.display());
            Err(clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command))
        };
        match (mode, size.parse()) {
            (CallGraph::Dwarf, Ok(1..=LARGEST_STACK_COPY)) => Ok(mode),
            (CallGraph::Dwarf, _) => refused(format!(
                "{size:?} is no number of bytes from 1 to {LARGEST_STACK_COPY}"
            )),
            (CallGraph::Fp | CallGraph::KernelFp, _) => refused("only dwarf takes a size".to_owned()),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let variants = CallGraph::value_variants().iter();
        Some(Box::new(variants.filter_map(ValueEnum::to_possible_value)))
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
    Target(#[from] TargetError),
    #[error(transparent)]
    Duration(#[from] LightFlagError),
    #[error(transparent)]
    Goal(#[from] GoalError),
}

/// How often samples are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interval {
    /// So many times per second and CPU.
    Frequency(u64),
    /// After so many events.
    Period(u64),
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

    /// Returns what is sampled.
    ///
    /// # Errors
    /// If a process, thread or CPU is not there.
    pub(super) fn targets(&self) -> Result<Targets, ArgsError> {
        Ok(Targets::of(&self.pid, &self.tid, self.cpu.as_ref())?)
    }

    /// Returns the length of the recording; `None` if it is ended otherwise.
    pub(super) fn duration(&self) -> Result<Option<Duration>, ArgsError> {
        let default = match self.command.is_empty() {
            true => DEFAULT_DURATION,
            false => "0",
        };
        let typed = self.duration.as_deref().unwrap_or(default);
        // A number of seconds, as for py-spy and samply.
        let is_bare = typed.bytes().all(|digit| digit.is_ascii_digit()) && typed != "0";
        let milliseconds = match is_bare {
            true => duration_ms("--duration", &format!("{typed}s"))?,
            false => duration_ms("--duration", typed)?,
        };
        Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds.into())))
    }

    /// Returns the file and its format.
    pub(super) fn goal(&self) -> Result<Goal, ArgsError> {
        Ok(Goal::of(self.out.as_deref(), self.format)?)
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(line.split_whitespace())
    }

    fn refusal(line: &str) -> String {
        args(line).unwrap_err().to_string()
    }

    #[test]
    fn the_first_help_fits_a_screen() {
        let help = Args::command().term_width(80).render_help().to_string();
        assert!(help.lines().count() < 40, "{help}");
    }

    #[test]
    fn a_bare_duration_is_in_seconds() {
        let is = Duration::from_millis;
        for (typed, duration) in [
            ("5", Some(is(5_000))),
            ("5s", Some(is(5_000))),
            ("500ms", Some(is(500))),
            ("2m", Some(is(120_000))),
            ("0", None),
        ] {
            for flag in ["-d", "--duration"] {
                let args = args(&format!("profile {flag} {typed}")).unwrap();
                assert_eq!(args.duration().unwrap(), duration, "{flag} {typed}");
            }
        }
        assert_eq!(args("profile").unwrap().duration().unwrap(), Some(is(10_000)));
        assert_eq!(args("profile -- make").unwrap().duration().unwrap(), None);
        for typed in ["five", "5d", "99999999999"] {
            let args = args(&format!("profile -d {typed}")).unwrap();
            let error = args.duration().unwrap_err().to_string();
            assert!(error.contains("--duration"), "{typed}: {error}");
        }
    }

    #[test]
    fn a_size_after_dwarf_is_understood_if_perf_takes_it() {
        for (typed, how) in [
            ("dwarf", CallGraph::Dwarf),
            ("dwarf,8192", CallGraph::Dwarf),
            ("dwarf,65528", CallGraph::Dwarf),
            ("fp", CallGraph::Fp),
        ] {
            let args = args(&format!("profile -g --call-graph {typed}")).unwrap();
            assert_eq!(args.call_graph, how, "{typed}");
        }
        for (typed, said) in [
            ("dwarf,65536", "1 to 65528"),
            ("dwarf,0", "1 to 65528"),
            ("dwarf,", "1 to 65528"),
            ("dwarf,8k", "1 to 65528"),
            ("fp,8192", "only dwarf takes a size"),
            ("lbr", "kernel-fp"),
        ] {
            let said_then = refusal(&format!("profile --call-graph {typed}"));
            assert!(said_then.contains(said), "{typed}: {said_then}");
        }
    }

    #[test]
    fn processes_threads_and_cpus_are_lists() {
        let args = args("profile -p 1,2 -p 3 -C 0,2-3").unwrap();
        assert_eq!(args.pid, [1, 2, 3]);
        assert!(args.cpu.is_some());
        assert_eq!(
            super::tests::args("profile -t 7,8 --tid 9").unwrap().tid,
            [7, 8, 9]
        );
        for (line, said) in [
            ("profile -t 5s", "-d says how long"),
            ("profile -t 0", "-d says how long"),
            ("profile -t 1 -p 1", "cannot be used with"),
            ("profile -C 1-0", "as in 0,2-3"),
        ] {
            assert!(refusal(line).contains(said), "{line}: {}", refusal(line));
        }
    }
}
