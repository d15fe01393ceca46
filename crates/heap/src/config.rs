//! `HeapprofdConfig`, read: whose heaps are sampled, how often, and when the books are dumped.
//!
//! [`HeapConfig::of`] takes the config of an instance and refuses what cannot be carried out, where upstream's heapprofd logs an error and records
//! nothing. It does no I/O.

use std::collections::BTreeSet;
use std::time::Duration;

use ferretto_heap_client::MALLOC;
use ferretto_heap_client::handshake::{HEAP_NAME_BYTES, MOST_NAMED_HEAPS, Welcome, WhenFull};
use ferretto_heap_client::layout::{MAX_RING_WORDS, MIN_RING_WORDS};
use ferretto_proto::messages::HeapprofdConfig;

use crate::targets::Targets;

/// As upstream.
const DEFAULT_RING_BYTES: u64 = 8 << 20;

/// Processes, patterns and prefixes that one config may have.
const MOST_IN_LIST: usize = 10_000;

/// One instance's config.
#[derive(Clone, Debug, PartialEq)]
pub struct HeapConfig {
    /// Whose heaps.
    pub targets: Targets,
    /// Which of these processes.
    pub(crate) ages: Ages,
    /// A process that ran before must have at least so much anonymous memory, in memory and swapped out, in KiB.
    pub least_anonymous_kb: u64,
    /// The offer to clients.
    pub welcome: Welcome,
    /// Words of each client's ring.
    pub ring_words: usize,
    /// The contents of the trace.
    pub recorded: Recorded,
    /// Dumps before the last one.
    pub continuous: Option<Continuous>,
    /// The profile ends when the daemon needs more memory, in KiB.
    pub most_daemon_memory_kb: Option<u64>,
    /// The profile ends when the daemon has worked longer since its start.
    pub most_daemon_cpu: Option<Duration>,
    /// Beginnings of the paths of files whose functions get no names.
    pub nameless: Vec<Vec<u8>>,
}

/// Which processes are profiled, by their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ages {
    /// All of them.
    Any,
    /// Programs that begin after the profile.
    New,
    /// Programs that ran before.
    Running,
}

/// The contents of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The allocations and releases of each call stack so far.
    Totals,
    /// The holdings of each call stack when all together held most.
    Maximum,
    /// Each sampled allocation, and each release of one, without its stack.
    Stream,
}

/// See [`HeapConfig::continuous`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuous {
    /// From the start to the first dump.
    pub phase: Duration,
    /// From one dump to the next.
    pub interval: Duration,
}

impl HeapConfig {
    /// Reads a config.
    ///
    /// # Errors
    /// If it cannot be carried out, or asks for nothing: a clause that names the field.
    pub fn of(config: &HeapprofdConfig) -> Result<HeapConfig, String> {
        let lists = [
            ("pid", config.pid.len()),
            ("process_cmdline", config.process_cmdline.len()),
            ("skip_symbol_prefix", config.skip_symbol_prefix.len()),
        ];
        if let Some((field, length)) = lists.into_iter().find(|(_, length)| *length > MOST_IN_LIST) {
            return Err(format!(
                "{field} has {length} entries; {MOST_IN_LIST} are possible"
            ));
        }
        let milliseconds = |value: Option<u32>| Duration::from_millis(value.unwrap_or(0).into());
        let dumps = config.continuous_dump_config.as_option();
        let continuous = dumps.and_then(|dumps| {
            let interval = milliseconds(dumps.dump_interval_ms);
            let phase = milliseconds(dumps.dump_phase_ms);
            (!interval.is_zero()).then_some(Continuous { phase, interval })
        });
        let at_least_once = |number: u64| Some(number).filter(|&number| number > 0);
        Ok(HeapConfig {
            targets: targets(config)?,
            ages: ages(config)?,
            least_anonymous_kb: config.min_anonymous_memory_kb.unwrap_or(0).into(),
            welcome: welcome(config)?,
            ring_words: ring_words(config)?,
            recorded: recorded(config)?,
            continuous,
            most_daemon_memory_kb: config
                .max_heapprofd_memory_kb
                .and_then(|kb| at_least_once(kb.into())),
            most_daemon_cpu: config
                .max_heapprofd_cpu_secs
                .and_then(at_least_once)
                .map(Duration::from_secs),
            nameless: config
                .skip_symbol_prefix
                .iter()
                .map(|prefix| prefix.clone().into_bytes())
                .collect(),
        })
    }
}

fn targets(config: &HeapprofdConfig) -> Result<Targets, String> {
    let mut pids = BTreeSet::new();
    for &pid in &config.pid {
        match i32::try_from(pid) {
            Ok(pid @ 1..) => pids.insert(pid),
            _ => return Err(format!("pid: {pid} is the id of no process")),
        };
    }
    if !config.all.unwrap_or(false) && pids.is_empty() && config.process_cmdline.is_empty() {
        return Err("no process is chosen: set pid, process_cmdline or all".to_owned());
    }
    let mut targets = Targets {
        all: config.all.unwrap_or(false),
        pids,
        ..Targets::default()
    };
    for pattern in &config.process_cmdline {
        targets.add_cmdline(pattern)?;
    }
    Ok(targets)
}

fn ages(config: &HeapprofdConfig) -> Result<Ages, String> {
    match (
        config.no_startup.unwrap_or(false),
        config.no_running.unwrap_or(false),
    ) {
        (false, false) => Ok(Ages::Any),
        (false, true) => Ok(Ages::New),
        (true, false) => Ok(Ages::Running),
        (true, true) => Err("no_startup and no_running leave no process; set one of them".to_owned()),
    }
}

fn recorded(config: &HeapprofdConfig) -> Result<Recorded, String> {
    match (
        config.stream_allocations.unwrap_or(false),
        config.dump_at_max.unwrap_or(false),
    ) {
        (true, true) => Err(
            "stream_allocations writes no dumps, so dump_at_max has no meaning with it; leave one of them out"
                .to_owned(),
        ),
        (true, false) => Ok(Recorded::Stream),
        (false, true) => Ok(Recorded::Maximum),
        (false, false) => Ok(Recorded::Totals),
    }
}

fn ring_words(config: &HeapprofdConfig) -> Result<usize, String> {
    let bytes = match config.shmem_size_bytes {
        None | Some(0) => DEFAULT_RING_BYTES,
        // As upstream, which takes 500 MiB then.
        Some(bytes) if bytes > 8 * MAX_RING_WORDS as u64 => 8 * MAX_RING_WORDS as u64,
        Some(bytes) => bytes,
    };
    if !bytes.is_power_of_two() || bytes < 8 * MIN_RING_WORDS as u64 {
        return Err(format!(
            "shmem_size_bytes: {bytes} is not a power of two of at least {}",
            8 * MIN_RING_WORDS
        ));
    }
    Ok((bytes / 8) as usize)
}

fn welcome(config: &HeapprofdConfig) -> Result<Welcome, String> {
    let default = config.sampling_interval_bytes.unwrap_or(0);
    let all = config.all_heaps.unwrap_or(false);
    let mut heaps = config.heaps.clone();
    if heaps.is_empty() && !all {
        heaps.push(MALLOC.to_owned());
    }
    let mut intervals = config.heap_sampling_intervals.clone();
    if intervals.is_empty() {
        intervals = vec![default; heaps.len()];
    }
    if intervals.len() != heaps.len() {
        return Err(format!(
            "heap_sampling_intervals has {} entries for the {} of heaps; give each heap one, or leave the field out",
            intervals.len(),
            heaps.len()
        ));
    }
    if let Some(index) = intervals.iter().position(|&interval| interval == 0) {
        return Err(match config.heap_sampling_intervals.is_empty() {
            true => {
                "sampling_interval_bytes is not set; 4096 is a good start, and 1 samples every allocation"
                    .to_owned()
            }
            false => format!("heap_sampling_intervals: the one of {} is 0", heaps[index]),
        });
    }
    if heaps.is_empty() && default == 0 {
        return Err(
            "sampling_interval_bytes is not set, so all_heaps samples nothing; 4096 is a good start"
                .to_owned(),
        );
    }
    let when_full = match config.block_client.unwrap_or(false) {
        false => WhenFull::Lose,
        true => WhenFull::Wait {
            at_most_us: config.block_client_timeout_us.unwrap_or(0),
        },
    };
    let mut welcome = Welcome::new(if all { default } else { 0 }, when_full);
    welcome.adaptive_threshold = config.adaptive_sampling_shmem_threshold.unwrap_or(0);
    welcome.adaptive_most = config.adaptive_sampling_max_sampling_interval_bytes.unwrap_or(0);
    // Exclusions come last in upstream's list too, so that a heap that is named twice is sampled.
    let excluded = config.exclude_heaps.iter().map(|heap| (heap, 0));
    let named = heaps.iter().zip(intervals);
    let count = heaps.len() + config.exclude_heaps.len();
    if count > MOST_NAMED_HEAPS {
        return Err(format!(
            "heaps and exclude_heaps name {count} heaps; {MOST_NAMED_HEAPS} are possible"
        ));
    }
    for (heap, interval) in named.chain(excluded) {
        if !welcome.set_interval(heap.as_bytes(), interval) {
            return Err(format!(
                "heaps: {heap:?} is longer than the {} bytes that the name of a heap may have",
                HEAP_NAME_BYTES - 1
            ));
        }
    }
    Ok(welcome)
}

#[cfg(test)]
mod tests;
