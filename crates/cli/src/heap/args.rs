//! The flags of `ferretto heap`, in the spelling of upstream's script `heap_profile`, and what they mean together.
//!
//! [`run`](super::run) calls it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use ferretto_heap_client::handshake::HEAP_SOCK_NAME;

use super::library::LIBRARY;
use crate::perfetto::light_config::{LightFlagError, duration_ms, size_bytes};
use crate::profiling::{Goal, GoalError, ProfileFormat};

pub(super) const NAME: &str = "ferretto heap";

/// Bytes between two samples, on average. Upstream's default.
const DEFAULT_INTERVAL: &str = "4096";
/// Upstream's default.
const DEFAULT_SHARED_MEMORY: &str = "8m";
/// The bounds of the shared memory of a program.
const SMALLEST_SHARED_MEMORY: u64 = 8192;
const LARGEST_SHARED_MEMORY: u64 = 256 << 20;
/// The longest that a program waits for room, in microseconds. Without a bound it would wait for ever for a profiler that was killed.
const DEFAULT_TIMEOUT_US: u32 = 5_000_000;
/// Below this, a number without a unit may be seconds as for `ferretto profile`, or milliseconds as for `heap_profile`.
const LEAST_BARE_MS: u64 = 1000;

/// Shows where the memory goes: samples allocations, and lists the functions that hold most of it.
///
/// Programs are started with a library that samples what they allocate. `ferretto open` shows the trace.
///
/// Examples:
///
///   ferretto heap -- ./server --port 80
///
///   ferretto heap --at-max -o peak.svg -- python3 script.py
///
///   ferretto heap -p 4321 -d 30s -o leaks.pb.gz
///
/// With a COMMAND the recording ends with it, and the exit status is the command's.
#[derive(Debug, Parser)]
#[command(name = "heap", bin_name = NAME, disable_version_flag = true, verbatim_doc_comment)]
#[command(after_long_help = environment())]
pub(super) struct Args {
    /// Sample once in so many bytes on average; 1 samples every allocation [default: 4096]
    #[arg(short, long, value_name = "BYTES")]
    interval: Option<String>,
    /// Profile this running process, if it carries the client; may be repeated
    ///
    /// A process carries the client if it was started with LD_PRELOAD=libferretto_heap.so, or is built with the client as its allocator.
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(1..))]
    pub(super) pid: Vec<i32>,
    /// Profile processes of this name, * for any letters; may be repeated
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    pub(super) name: Vec<String>,
    /// Profile all processes that carry the client
    #[arg(short, long, conflicts_with_all = ["pid", "name", "command"])]
    pub(super) all: bool,
    /// Stop after this time, as in 30s or 5m; 0 waits for Ctrl-C, the default
    ///
    /// A number without a unit is in milliseconds, as for upstream's heap_profile; below 1000 it needs a unit.
    #[arg(short, long, value_name = "TIME")]
    duration: Option<String>,
    /// Show the memory at the time at which it was largest, not at the end
    #[arg(long, visible_alias = "dump-at-max")]
    pub(super) at_max: bool,
    /// Write the state so often, as in 5s, so that the trace shows how it grew
    ///
    /// A number without a unit is in milliseconds, as for upstream's heap_profile; below 1000 it needs a unit.
    #[arg(short = 'c', long, visible_alias = "continuous-dump", value_name = "TIME")]
    dump_every: Option<String>,
    /// Profile these heaps, as in libc.malloc; may be repeated [default: libc.malloc]
    #[arg(long, value_name = "HEAP", value_delimiter = ',')]
    pub(super) heaps: Vec<String>,
    /// Profile all heaps that the programs tell of
    #[arg(long)]
    pub(super) all_heaps: bool,
    /// Leave out processes that start later
    #[arg(long, hide_short_help = true)]
    pub(super) no_startup: bool,
    /// Leave out processes that run already
    #[arg(long, hide_short_help = true, conflicts_with = "pid")]
    pub(super) no_running: bool,
    /// Have programs wait when their shared memory is full (the default)
    #[arg(long, hide_short_help = true, conflicts_with = "no_block_client")]
    block_client: bool,
    /// Have programs wait at most so many microseconds; then their profile ends [default: 5000000]
    #[arg(long, hide_short_help = true, value_name = "US", conflicts_with = "no_block_client", value_parser = clap::value_parser!(u32).range(1..))]
    block_client_timeout: Option<u32>,
    /// Lose samples when the shared memory of a program is full, and count them
    #[arg(long, hide_short_help = true)]
    no_block_client: bool,
    /// Share so much memory with each program [default: 8m]
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    shmem_size: Option<String>,
    /// End the profile when the profiler needs more memory than this
    #[arg(long, hide_short_help = true, value_name = "BYTES")]
    max_heapprofd_memory: Option<String>,
    /// End the profile when the profiler has run for so many seconds
    #[arg(long, hide_short_help = true, value_name = "SECONDS")]
    pub(super) max_heapprofd_cpu: Option<u64>,
    /// Preload this library [default: libferretto_heap.so, found beside this program]
    #[arg(
        long,
        visible_alias = "preload-library",
        hide_short_help = true,
        value_name = "FILE"
    )]
    pub(super) library: Option<PathBuf>,
    /// Does nothing; upstream's heap_profile has it
    #[arg(long, hide = true)]
    no_start: bool,
    /// Print the trace config, and record nothing
    #[arg(long, hide_short_help = true)]
    pub(super) print_config: bool,
    /// Write into this file [default: a new name]
    #[arg(short, long = "out", visible_alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write this format [default: by the ending of FILE, or else perfetto]
    #[arg(long, value_name = "FORMAT", value_parser = format_parser())]
    format: Option<ProfileFormat>,
    /// Print only errors and losses, and the file's name unless -o gave it
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Exit with 3 unless everything was recorded and nothing lost
    #[arg(long)]
    pub(super) strict: bool,
    /// Run this command and profile it, with all that it starts
    #[arg(value_name = "COMMAND", trailing_var_arg = true, conflicts_with = "pid")]
    pub(super) command: Vec<OsString>,
}

/// Returns the part of the long help about the environment.
fn environment() -> String {
    format!(
        "Environment:\n  {LIBRARY}\n          The library to preload, unless --library names one\n  \
         {HEAP_SOCK_NAME}\n          Where programs look for a heap profiler that runs already: /a/path or @abstract-name\n"
    )
}

/// The formats but the one of the Firefox profiler, which needs samples with times.
fn format_parser() -> impl TypedValueParser<Value = ProfileFormat> {
    let formats = ProfileFormat::value_variants().iter();
    let formats = formats.filter(|format| **format != ProfileFormat::Firefox);
    PossibleValuesParser::new(formats.filter_map(ValueEnum::to_possible_value))
        .try_map(|name| ProfileFormat::from_str(&name, false))
}

/// Flags that cannot be used, or not together.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArgsError {
    #[error(
        "whose memory? Name a program to run, as in `ferretto heap -- ./server`, or running ones with -p PID, -n NAME or --all"
    )]
    NoTarget,
    #[error("-i 0: there must be at least 1 byte between two samples")]
    NoInterval,
    #[error(
        "{flag} {typed}: say whether these are seconds or milliseconds, as in {typed}s or {typed}ms; upstream's heap_profile counts milliseconds"
    )]
    NoUnit { flag: &'static str, typed: String },
    #[error(
        "--shmem-size {0}: it must be a power of two from {SMALLEST_SHARED_MEMORY} to {LARGEST_SHARED_MEMORY}; try 16m"
    )]
    SharedMemory(String),
    #[error("--max-heapprofd-memory {0}: it must be at least 1k, and less than 4096g")]
    Memory(String),
    #[error(
        "{0}: a heap profile has sums and no samples with times, which the Firefox profiler needs; use .pftrace, .pb.gz, .folded or .svg"
    )]
    Firefox(String),
    #[error(transparent)]
    Quantity(#[from] LightFlagError),
    #[error(
        "{0}: heap profiles have no format for this ending; use .pftrace, .pb.gz, .folded or .svg, or choose one with --format"
    )]
    Ending(String),
    #[error(transparent)]
    Goal(GoalError),
}

/// The behaviour of a program whose shared memory is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// It loses samples.
    Lose,
    /// It waits, at most for so many microseconds.
    Wait(u32),
}

impl Args {
    /// Checks that something is to be profiled.
    ///
    /// # Errors
    /// If nothing is.
    pub(super) fn check_target(&self) -> Result<(), ArgsError> {
        let has_target =
            self.all || !(self.pid.is_empty() && self.name.is_empty() && self.command.is_empty());
        has_target.then_some(()).ok_or(ArgsError::NoTarget)
    }

    /// Returns the bytes between two samples.
    pub(super) fn interval(&self) -> Result<u64, ArgsError> {
        let typed = self.interval.as_deref().unwrap_or(DEFAULT_INTERVAL);
        match size_bytes("--interval", typed)? {
            0 => Err(ArgsError::NoInterval),
            bytes => Ok(bytes),
        }
    }

    /// Returns the length of the recording; `None` if it is ended otherwise.
    pub(super) fn duration(&self) -> Result<Option<Duration>, ArgsError> {
        let milliseconds = milliseconds("--duration", self.duration.as_deref())?;
        Ok(milliseconds.map(|milliseconds| Duration::from_millis(milliseconds.into())))
    }

    /// Returns the time between two dumps, in ms, if there is to be more than the last one.
    pub(super) fn dump_interval_ms(&self) -> Result<Option<u32>, ArgsError> {
        milliseconds("--dump-every", self.dump_every.as_deref())
    }

    /// Returns the bytes of the memory that a program shares with the profiler.
    pub(super) fn shared_memory(&self) -> Result<u64, ArgsError> {
        let typed = self.shmem_size.as_deref().unwrap_or(DEFAULT_SHARED_MEMORY);
        let bytes = size_bytes("--shmem-size", typed)?;
        let is_possible =
            bytes.is_power_of_two() && (SMALLEST_SHARED_MEMORY..=LARGEST_SHARED_MEMORY).contains(&bytes);
        is_possible
            .then_some(bytes)
            .ok_or_else(|| ArgsError::SharedMemory(typed.to_owned()))
    }

    /// Returns the memory at which the profiler ends the profile, in KiB.
    pub(super) fn max_memory_kb(&self) -> Result<Option<u32>, ArgsError> {
        let Some(typed) = self.max_heapprofd_memory.as_deref() else {
            return Ok(None);
        };
        let kb = size_bytes("--max-heapprofd-memory", typed)? >> 10;
        match u32::try_from(kb) {
            Ok(kb @ 1..) => Ok(Some(kb)),
            _ => Err(ArgsError::Memory(typed.to_owned())),
        }
    }

    /// Returns what programs do when their shared memory is full.
    pub(super) fn when_full(&self) -> WhenFull {
        match self.no_block_client {
            true => WhenFull::Lose,
            false => WhenFull::Wait(self.block_client_timeout.unwrap_or(DEFAULT_TIMEOUT_US)),
        }
    }

    /// Returns the file and its format.
    pub(super) fn goal(&self) -> Result<Goal, ArgsError> {
        let goal = Goal::of(self.out.as_deref(), self.format).map_err(|error| match error {
            GoalError::Format(name) => ArgsError::Ending(name),
            error => ArgsError::Goal(error),
        })?;
        match (goal.format, &goal.file) {
            (ProfileFormat::Firefox, Some(file)) => Err(ArgsError::Firefox(file.display().to_string())),
            _ => Ok(goal),
        }
    }
}

/// Reads a time; `None` if it is 0 or not given.
fn milliseconds(flag: &'static str, typed: Option<&str>) -> Result<Option<u32>, ArgsError> {
    let Some(typed) = typed else { return Ok(None) };
    let milliseconds = match typed.parse::<u64>() {
        Ok(1..LEAST_BARE_MS) => {
            return Err(ArgsError::NoUnit {
                flag,
                typed: typed.to_owned(),
            });
        }
        Ok(LEAST_BARE_MS..) => duration_ms(flag, &format!("{typed}ms"))?,
        _ => duration_ms(flag, typed)?,
    };
    Ok(Some(milliseconds).filter(|milliseconds| *milliseconds > 0))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(line: &str) -> Args {
        Args::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn the_first_help_fits_a_screen() {
        let help = Args::command().term_width(80).render_help().to_string();
        assert!(help.lines().count() < 40, "{help}");
    }

    #[test]
    fn the_long_help_names_the_variables_of_the_environment() {
        let help = Args::command().render_long_help().to_string();
        for variable in ["FERRETTO_HEAP_LIBRARY", "FERRETTO_HEAP_SOCK_NAME"] {
            assert!(help.contains(variable), "{help}");
        }
    }

    #[test]
    fn times_have_units_or_are_milliseconds_as_for_heap_profile() {
        for (typed, milliseconds) in [
            ("30s", Some(30_000)),
            ("500ms", Some(500)),
            ("5m", Some(300_000)),
            ("60000", Some(60_000)),
            ("0", None),
        ] {
            let expected = milliseconds.map(|milliseconds: u32| Duration::from_millis(milliseconds.into()));
            assert_eq!(
                args(&format!("heap -d {typed}")).duration().unwrap(),
                expected,
                "{typed}"
            );
            let every = args(&format!("heap -c {typed}")).dump_interval_ms().unwrap();
            assert_eq!(every, milliseconds, "{typed}");
        }
        assert_eq!(args("heap").duration().unwrap(), None);
        // Nobody means ten milliseconds.
        let error = args("heap -d 10").duration().unwrap_err().to_string();
        assert!(error.contains("10s or 10ms"), "{error}");
        let error = args("heap --continuous-dump 5x")
            .dump_interval_ms()
            .unwrap_err()
            .to_string();
        assert!(error.contains("--dump-every"), "{error}");
    }

    #[test]
    fn sizes_may_have_units() {
        assert_eq!(args("heap").interval().unwrap(), 4096);
        assert_eq!(args("heap -i 1").interval().unwrap(), 1);
        assert_eq!(args("heap --interval 64k").interval().unwrap(), 65_536);
        assert!(args("heap -i 0").interval().is_err());
        assert_eq!(args("heap").shared_memory().unwrap(), 8 << 20);
        assert_eq!(
            args("heap --shmem-size 16777216").shared_memory().unwrap(),
            16 << 20
        );
        for typed in ["0", "4096", "12288", "1g", "3m"] {
            let error = args(&format!("heap --shmem-size {typed}"))
                .shared_memory()
                .unwrap_err();
            assert!(error.to_string().contains("power of two"), "{typed}");
        }
        assert_eq!(
            args("heap --max-heapprofd-memory 1g").max_memory_kb().unwrap(),
            Some(1 << 20)
        );
    }

    #[test]
    fn programs_wait_when_their_shared_memory_is_full_unless_told_not_to() {
        assert_eq!(args("heap").when_full(), WhenFull::Wait(DEFAULT_TIMEOUT_US));
        assert_eq!(
            args("heap --block-client --block-client-timeout 7").when_full(),
            WhenFull::Wait(7)
        );
        assert_eq!(args("heap --no-block-client").when_full(), WhenFull::Lose);
        assert!(Args::try_parse_from(["heap", "--no-block-client", "--block-client"]).is_err());
    }

    #[test]
    fn something_must_be_profiled() {
        for line in ["heap -p 1", "heap -n app,web", "heap --all", "heap -- make -j4"] {
            assert!(args(line).check_target().is_ok(), "{line}");
        }
        let error = args("heap -d 5s").check_target().unwrap_err().to_string();
        assert!(error.contains("ferretto heap -- "), "{error}");
    }

    #[test]
    fn the_firefox_profiler_has_no_heap_profiles() {
        assert!(Args::try_parse_from(["heap", "--format", "firefox"]).is_err());
        let error = args("heap -o a.json").goal().unwrap_err().to_string();
        assert!(error.contains(".pb.gz"), "{error}");
    }
}
