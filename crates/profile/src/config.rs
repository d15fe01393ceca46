//! `PerfEventConfig`, read: the event to sample, how often, and the samples to keep.
//!
//! `PerfConfig::of` takes the config of an instance, current or of the form before `callstack_sampling`, fills in upstream's defaults and refuses what
//! cannot be carried out. It does no I/O but for the numbers of events that an `EventNumbers` looks up.

use std::collections::BTreeSet;
use std::time::Duration;

use ferretto_proto::messages::perf_event_config::{CallstackSampling, Scope as ScopeConfig, UnwindMode};
use ferretto_proto::messages::perf_events::{PerfClock, Timebase, timebase};
use ferretto_proto::messages::{FollowerEvent, MessageField, PerfEventConfig, UnknownFields, follower_event};
use ferretto_proto::write;

use crate::event::{CountingScope, Event, EventNumbers};

/// Samples per second and CPU if the config does not say, as upstream.
const DEFAULT_FREQUENCY: u64 = 10;

/// Pages of 4 KiB of each CPU's ring buffer if the config does not say, as upstream. With stacks it is the least.
const DEFAULT_RING_PAGES: u32 = 256;

/// Pages that a sample with a copy of its stack takes.
const PAGES_OF_STACK: u64 = 16;

/// Pages of the least ring that has room for a sample with a copy of its stack, which has more than the copy.
const LEAST_PAGES_FOR_STACKS: u32 = 32;

/// Pages for samples with copies of stacks that are taken after a number of events.
const PAGES_FOR_BURSTS: u64 = 2048;

/// Pages of all rings of an event together that are taken unless the config says more: 512 MiB.
const MOST_DEFAULT_PAGES: u64 = 1 << 17;

/// 256 MiB for each CPU is more than anybody wants, and the memory cannot be swapped out.
const MOST_RING_PAGES: u32 = 1 << 16;

/// As upstream.
const DEFAULT_READ_PERIOD: Duration = Duration::from_millis(100);

/// As upstream.
const DEFAULT_CLEAR_PERIOD: Duration = Duration::from_secs(300);

/// Events that one config may have: each is a descriptor for each CPU.
const MOST_FOLLOWERS: usize = 32;

/// Patterns and process ids that one config may have.
const MOST_IN_SCOPE: usize = 10_000;

/// One instance's config.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PerfConfig {
    /// The event that decides when a sample is taken.
    pub leader: Event,
    /// The events counted beside it.
    pub followers: Vec<Event>,
    /// How the counters are read.
    pub mode: Mode,
    /// Whose events the kernel counts.
    pub counted: Counted,
    /// The CPUs; all that are online if it is empty.
    pub cpus: BTreeSet<u32>,
    /// The beginnings of the ids of ARM CPUs, as `cpus` makes them. CPUs with another id are left out, unless it is empty.
    pub cpu_ids: Vec<String>,
    /// The consequence if an event cannot be opened on a CPU.
    pub on_open_failure: OnOpenFailure,
}

/// See [`PerfConfig::mode`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mode {
    /// This process reads them, this often.
    Polling(Duration),
    /// The kernel writes samples into ring buffers.
    Sampling(Sampling),
}

/// See [`PerfConfig::counted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// All processes. Samples of those that are not in the [`Scope`] are left out afterwards.
    Everybody,
    /// These processes, without those that they start.
    Processes(BTreeSet<i32>),
    /// This process and all that it starts.
    Family(i32),
}

impl Counted {
    /// The processes that have to be there, or `None` if there need be none.
    pub(crate) fn named(&self) -> Option<BTreeSet<i32>> {
        match self {
            Counted::Everybody => None,
            Counted::Processes(pids) => Some(pids.clone()),
            Counted::Family(pid) => Some([*pid].into()),
        }
    }
}

/// See [`PerfConfig::on_open_failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnOpenFailure {
    /// The instance records nothing.
    RecordNothing,
    /// The CPU is left out.
    LeaveOutCpu,
}

impl Sampling {
    /// Pages of 4 KiB for the ring of each of so many CPUs, in the order in which they are to be tried.
    ///
    /// Unless the config says how many, rings have room for the copies of stacks of a tenth of a second: a busy machine may not let the daemon run for so
    /// long. Users without privileges may not have as much: they get rings that have room for one sample at least, and losses are told.
    pub(crate) fn ring_pages_to_try(&self, cpus: usize) -> Vec<u32> {
        if let Some(pages) = self.ring_pages {
            return vec![pages];
        }
        let copies_stacks = self
            .stacks
            .as_ref()
            .is_some_and(|stacks| stacks.user.copies_stack());
        let wanted = match self.interval {
            _ if !copies_stacks => 0,
            Interval::Frequency(frequency) => frequency.saturating_mul(PAGES_OF_STACK) / 10,
            // The rate is unknown, and the event often comes in bursts.
            Interval::Period(_) => PAGES_FOR_BURSTS,
        };
        let most = MOST_DEFAULT_PAGES / (cpus as u64).max(1);
        let most = most.clamp(DEFAULT_RING_PAGES.into(), MOST_RING_PAGES.into());
        let wanted = wanted.clamp(DEFAULT_RING_PAGES.into(), most) as u32;
        // The next power of two, unless that is more than there may be.
        let largest = match wanted.next_power_of_two() {
            larger if u64::from(larger) > most => larger / 2,
            pages => pages,
        };
        let least = match copies_stacks {
            true => LEAST_PAGES_FOR_STACKS,
            false => 1,
        };
        let sizes = std::iter::successors(Some(largest), |pages| Some(pages / 2));
        sizes.take_while(|&pages| pages >= least).collect()
    }
}

/// Samples in ring buffers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// How often.
    pub interval: Interval,
    /// The clock of the time stamps.
    pub clock: Clock,
    /// Which stacks samples have; `None` if they are only counters.
    pub stacks: Option<Stacks>,
    /// Pages of 4 KiB of each CPU's ring buffer: a power of two. `None` if the config does not say.
    pub ring_pages: Option<u32>,
    /// Rings are read this often, and as soon as a quarter of one is full.
    pub read_period: Duration,
    /// Most memory of samples that wait for being unwound, in bytes.
    pub most_queued: Option<u64>,
    /// The data source stops when the daemon's anonymous memory and swap are larger, in KiB.
    pub most_daemon_memory_kb: Option<u64>,
    /// Facts about processes are forgotten this often.
    pub clear_period: Duration,
}

/// See `Sampling::interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Samples per second and CPU.
    Frequency(u64),
    /// Counts of the leader between two samples.
    Period(u64),
}

/// A clock that `perf_event_open` can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// `CLOCK_REALTIME`.
    Realtime,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// `CLOCK_MONOTONIC_RAW`.
    MonotonicRaw,
    /// `CLOCK_BOOTTIME`, for software events only.
    Boottime,
}

/// The stacks of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Stacks {
    /// Frames of the kernel.
    pub kernel: bool,
    /// Frames of user space.
    pub user: UserFrames,
    /// Whose.
    pub scope: Scope,
}

/// How frames of user space are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserFrames {
    /// They are not.
    Skip,
    /// From a copy of the stack, with the unwind tables of the program's files.
    Dwarf,
    /// From a copy of the stack, by frame pointers.
    FramePointers,
    /// By the kernel, by frame pointers.
    KernelFramePointers,
}

impl UserFrames {
    /// Whether samples need registers and a copy of the stack.
    pub(crate) fn copies_stack(self) -> bool {
        matches!(self, UserFrames::Dwarf | UserFrames::FramePointers)
    }
}

/// Which processes are sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// These.
    pub pids: BTreeSet<i32>,
    /// Processes whose command line matches.
    pub cmdlines: Vec<String>,
    /// But not these.
    pub excluded_pids: BTreeSet<i32>,
    /// Processes with these command lines are not sampled either.
    pub excluded_cmdlines: Vec<String>,
    /// That many more command lines, in the order in which they are seen.
    pub additional_cmdlines: u32,
    /// One of so many parts of all processes.
    pub(crate) shard: Option<Shard>,
}

impl Scope {
    /// The only processes that are in it, if their ids tell.
    pub(crate) fn pids_alone(&self) -> Option<&BTreeSet<i32>> {
        let is_alone = self.cmdlines.is_empty() && self.additional_cmdlines == 0 && self.shard.is_none();
        Some(&self.pids).filter(|pids| is_alone && !pids.is_empty())
    }
}

/// The part of all processes whose id has this rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// How many parts there are.
    pub count: u32,
    /// Which of them is sampled.
    pub chosen: u32,
}

/// How many shards a config asks for.
pub(crate) fn shard_count(config: &PerfEventConfig) -> Option<u32> {
    let scope = config.callstack_sampling.as_option()?.scope.as_option()?;
    scope.process_shard_count.filter(|&count| count > 0)
}

/// The process whose family a config asks for.
fn family_of(config: &PerfEventConfig) -> Option<i32> {
    let scope = config.callstack_sampling.as_option()?.scope.as_option()?;
    scope.family_of
}

impl PerfConfig {
    /// Reads a config. `shard` is the choice of the session, if the config asks for shards.
    ///
    /// # Errors
    /// With the part that cannot be carried out, and a replacement.
    pub(crate) fn of(
        config: &PerfEventConfig,
        shard: Option<Shard>,
        numbers: &dyn EventNumbers,
    ) -> Result<PerfConfig, String> {
        let timebase = config.timebase.as_option();
        let leader = match timebase {
            Some(timebase) => leader(timebase, numbers).map_err(|reason| format!("timebase: {reason}"))?,
            None => Event::cpu_clock(None, CountingScope::default()),
        };
        if config.followers.len() > MOST_FOLLOWERS {
            let count = config.followers.len();
            return Err(format!(
                "there are {count} followers; use at most {MOST_FOLLOWERS}"
            ));
        }
        let followers = config.followers.iter().map(|event| follower(event, numbers));
        let followers = followers
            .collect::<Result<Vec<_>, _>>()
            .map_err(|reason| format!("followers: {reason}"))?;
        let mode = match timebase.and_then(|timebase| timebase.interval.as_ref()) {
            Some(timebase::Interval::PollPeriodMs(period)) if *period > 0 => {
                Mode::Polling(polling(config, Duration::from_millis((*period).into()))?)
            }
            _ => Mode::Sampling(sampling(config, shard)?),
        };
        Ok(PerfConfig {
            counted: counted(&mode, &followers, family_of(config)),
            leader,
            followers,
            mode,
            cpus: config.target_cpu.iter().copied().collect(),
            cpu_ids: config.cpuid.clone(),
            on_open_failure: match config.ignore_open_failure {
                Some(true) => OnOpenFailure::LeaveOutCpu,
                _ => OnOpenFailure::RecordNothing,
            },
        })
    }

    /// The stacks of its samples, if they have any.
    pub(crate) fn stacks(&self) -> Option<&Stacks> {
        match &self.mode {
            Mode::Sampling(sampling) => sampling.stacks.as_ref(),
            Mode::Polling(_) => None,
        }
    }
}

/// The kernel can count only certain processes if the config names them by id, or one with its family, and nothing else. It gives no counts of followers
/// then (before Linux 6.13).
fn counted(mode: &Mode, followers: &[Event], family_of: Option<i32>) -> Counted {
    let stacks = match mode {
        Mode::Sampling(sampling) if followers.is_empty() => sampling.stacks.as_ref(),
        Mode::Sampling(_) | Mode::Polling(_) => None,
    };
    let Some(Stacks { scope, .. }) = stacks else {
        return Counted::Everybody;
    };
    match (scope.pids_alone(), family_of) {
        // To the kernel 0 is the caller, in samples the idle thread.
        (Some(pids), _) if pids.iter().all(|&pid| pid > 0) => Counted::Processes(pids.clone()),
        (None, Some(pid)) if pid > 0 && *scope == Scope::default() => Counted::Family(pid),
        _ => Counted::Everybody,
    }
}

/// The name of an event, unless it is empty.
fn named(name: &Option<String>) -> Option<String> {
    name.clone().filter(|name| !name.is_empty())
}

/// # Errors
/// If the schema has no such value: a newer one may.
fn refuse_unknown(unknown: &UnknownFields, number: u32, field: &str) -> Result<(), String> {
    match unknown.iter().find(|unknown| unknown.number == number) {
        None => Ok(()),
        Some(_) => Err(format!("{field} has a value that this version does not know")),
    }
}

fn leader(timebase: &Timebase, numbers: &dyn EventNumbers) -> Result<Event, String> {
    refuse_unknown(
        &timebase.unknown_fields,
        write::perf_events::Timebase::COUNTER,
        "counter",
    )?;
    let name = named(&timebase.name);
    let scope = CountingScope::of(&timebase.modifiers);
    match &timebase.event {
        Some(timebase::Event::Counter(counter)) => Event::counter(*counter, name, scope),
        Some(timebase::Event::Tracepoint(tracepoint)) => Event::tracepoint(tracepoint, name, scope, numbers),
        Some(timebase::Event::RawEvent(raw)) => Event::raw(raw, name, scope, numbers),
        None => Ok(Event::cpu_clock(name, scope)),
    }
}

fn follower(follower: &FollowerEvent, numbers: &dyn EventNumbers) -> Result<Event, String> {
    refuse_unknown(&follower.unknown_fields, write::FollowerEvent::COUNTER, "counter")?;
    let name = named(&follower.name);
    let scope = CountingScope::of(&follower.modifiers);
    match &follower.event {
        Some(follower_event::Event::Counter(counter)) => Event::counter(*counter, name, scope),
        Some(follower_event::Event::Tracepoint(tracepoint)) => {
            Event::tracepoint(tracepoint, name, scope, numbers)
        }
        Some(follower_event::Event::RawEvent(raw)) => Event::raw(raw, name, scope, numbers),
        None => Ok(Event::cpu_clock(name, scope)),
    }
}

fn polling(config: &PerfEventConfig, period: Duration) -> Result<Duration, String> {
    let sampling_only = [
        (config.callstack_sampling.is_set(), "callstack_sampling"),
        (
            config.ring_buffer_read_period_ms.unwrap_or(0) > 0,
            "ring_buffer_read_period_ms",
        ),
        (config.all_cpus.unwrap_or(false), "all_cpus"),
    ];
    match sampling_only.iter().find(|(is_set, _)| *is_set) {
        None => Ok(period),
        Some((_, field)) => Err(format!(
            "{field} is not possible with poll_period_ms; leave one of them out"
        )),
    }
}

fn sampling(config: &PerfEventConfig, shard: Option<Shard>) -> Result<Sampling, String> {
    let timebase = config.timebase.as_option();
    let at_least_once = |number: u64| Some(number).filter(|&number| number > 0);
    let asked = timebase.and_then(|timebase| match timebase.interval {
        Some(timebase::Interval::Period(period)) => at_least_once(period).map(Interval::Period),
        Some(timebase::Interval::Frequency(frequency)) => at_least_once(frequency).map(Interval::Frequency),
        _ => None,
    });
    let legacy = config
        .sampling_frequency
        .and_then(|frequency| at_least_once(frequency.into()));
    let interval = asked.unwrap_or(Interval::Frequency(legacy.unwrap_or(DEFAULT_FREQUENCY)));

    let ring_pages = match config.ring_buffer_pages {
        None | Some(0) => None,
        Some(pages) if pages.is_power_of_two() && pages <= MOST_RING_PAGES => Some(pages),
        Some(pages) => {
            return Err(format!(
                "ring_buffer_pages: {pages} is not a power of two of at most {MOST_RING_PAGES}"
            ));
        }
    };
    let milliseconds = |value: Option<u32>, default| match value {
        None | Some(0) => default,
        Some(value) => Duration::from_millis(value.into()),
    };
    Ok(Sampling {
        interval,
        clock: clock(timebase),
        stacks: stacks(config, shard)?,
        ring_pages,
        read_period: milliseconds(config.ring_buffer_read_period_ms, DEFAULT_READ_PERIOD),
        most_queued: config
            .max_enqueued_footprint_kb
            .and_then(at_least_once)
            .map(|kb| kb.saturating_mul(1024)),
        most_daemon_memory_kb: config
            .max_daemon_memory_kb
            .and_then(|kb| at_least_once(kb.into())),
        clear_period: milliseconds(config.unwind_state_clear_period_ms, DEFAULT_CLEAR_PERIOD),
    })
}

fn clock(timebase: Option<&Timebase>) -> Clock {
    match timebase.and_then(|timebase| timebase.timestamp_clock) {
        Some(PerfClock::PERF_CLOCK_REALTIME) => Clock::Realtime,
        Some(PerfClock::PERF_CLOCK_MONOTONIC) => Clock::Monotonic,
        Some(PerfClock::PERF_CLOCK_BOOTTIME) => Clock::Boottime,
        // Hardware events interrupt even code that holds the lock of the boot clock.
        Some(PerfClock::PERF_CLOCK_MONOTONIC_RAW | PerfClock::UNKNOWN_PERF_CLOCK) | None => {
            Clock::MonotonicRaw
        }
    }
}

fn stacks(config: &PerfEventConfig, shard: Option<Shard>) -> Result<Option<Stacks>, String> {
    // The flag was mandatory when stacks were.
    let is_legacy = config.all_cpus.unwrap_or(false);
    if !config.callstack_sampling.is_set() && !is_legacy {
        return Ok(None);
    }
    let none = CallstackSampling::default();
    let callstacks = config.callstack_sampling.as_option().unwrap_or(&none);
    refuse_unknown(
        &callstacks.unknown_fields,
        CallstackSampling::USER_FRAMES,
        "user_frames",
    )?;
    let user = match callstacks.user_frames {
        Some(UnwindMode::UNWIND_SKIP) => UserFrames::Skip,
        Some(UnwindMode::UNWIND_FRAME_POINTER) => UserFrames::FramePointers,
        Some(UnwindMode::UNWIND_KERNEL_FRAME_POINTER) => UserFrames::KernelFramePointers,
        Some(UnwindMode::UNWIND_DWARF | UnwindMode::UNWIND_UNKNOWN) | None => UserFrames::Dwarf,
    };
    let kernel = callstacks.kernel_frames.unwrap_or(false) || config.kernel_frames.unwrap_or(false);
    if user == UserFrames::Skip && !kernel {
        return Ok(None);
    }
    Ok(Some(Stacks {
        kernel,
        user,
        scope: scope(&callstacks.scope, config, shard)?,
    }))
}

fn scope(
    current: &MessageField<ScopeConfig>,
    config: &PerfEventConfig,
    shard: Option<Shard>,
) -> Result<Scope, String> {
    let legacy = ScopeConfig {
        target_pid: config.target_pid.clone(),
        target_cmdline: config.target_cmdline.clone(),
        exclude_pid: config.exclude_pid.clone(),
        exclude_cmdline: config.exclude_cmdline.clone(),
        additional_cmdline_count: config.additional_cmdline_count,
        ..Default::default()
    };
    let asked = current.as_option().unwrap_or(&legacy);
    let names = [
        asked.target_pid.len(),
        asked.target_cmdline.len(),
        asked.exclude_pid.len(),
        asked.exclude_cmdline.len(),
        asked.additional_cmdline_count.unwrap_or(0) as usize,
    ];
    if names.iter().sum::<usize>() > MOST_IN_SCOPE {
        return Err(format!(
            "scope: processes and command lines are more than {MOST_IN_SCOPE}"
        ));
    }
    Ok(Scope {
        pids: asked.target_pid.iter().copied().collect(),
        cmdlines: asked.target_cmdline.clone(),
        excluded_pids: asked.exclude_pid.iter().copied().collect(),
        excluded_cmdlines: asked.exclude_cmdline.clone(),
        additional_cmdlines: asked.additional_cmdline_count.unwrap_or(0),
        shard,
    })
}

#[cfg(test)]
mod tests;
