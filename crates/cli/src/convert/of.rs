//! Which of a trace's numbers are converted: samples of `linux.perf`, or one of those that heap profiles have.
//!
//! [`convert`](super) calls it with `--of`, and `ferretto heap` for its recording.

use std::fmt;

use clap::ValueEnum;

use crate::samples::{EventId, Measure, Recording};

/// The choice of `--of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Of {
    /// Samples of the CPU profiler
    Cpu,
    /// Bytes of the heap that were not freed
    Live,
    /// Bytes of the heap that were allocated, freed or not
    #[value(alias = "total")]
    Allocated,
    /// Sampled allocations that were not freed
    LiveCount,
    /// Sampled allocations, freed or not
    AllocatedCount,
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Of::Cpu => "samples of linux.perf with call stacks",
            Of::Live => "heap profile with memory that was not freed",
            Of::Allocated | Of::AllocatedCount => "heap profile",
            Of::LiveCount => "heap profile with allocations that were not freed",
        })
    }
}

impl Of {
    fn measure(self) -> Option<Measure> {
        match self {
            Of::Cpu => None,
            Of::Live => Some(Measure::LiveSize),
            Of::Allocated => Some(Measure::AllocatedSize),
            Of::LiveCount => Some(Measure::LiveCount),
            Of::AllocatedCount => Some(Measure::AllocatedCount),
        }
    }
}

/// Returns the events to convert; those that formats with room for one event get are first. Without a choice these are the samples of the CPU, and if
/// there are none, the heap profiles.
///
/// # Errors
/// The chosen number, if the recording has none of it.
pub(crate) fn events(recording: &Recording, of: Option<Of>) -> Result<Vec<EventId>, Of> {
    let all = recording.events_with_stacks();
    let (mut heap, cpu): (Vec<EventId>, Vec<EventId>) = all
        .into_iter()
        .partition(|event| recording.measure(*event).is_some());
    let chosen = match of {
        None if cpu.is_empty() => heap,
        None | Some(Of::Cpu) => cpu,
        Some(of) => {
            heap.sort_by_key(|event| recording.measure(*event) != of.measure());
            let has_it = heap.first().map(|event| recording.measure(*event)) == Some(of.measure());
            if has_it { heap } else { Vec::new() }
        }
    };
    match (of, chosen.is_empty()) {
        (Some(of), true) => Err(of),
        _ => Ok(chosen),
    }
}

/// Whether these events are the numbers of heap profiles.
pub(super) fn is_heap(recording: &Recording, events: &[EventId]) -> bool {
    let first = events.first();
    first.is_some_and(|event| recording.measure(*event).is_some())
}

/// Says which events are left out of a format that has room for one. People know that they have chosen one of the numbers of a heap profile.
pub(super) fn others(recording: &Recording, events: &[EventId]) -> Option<String> {
    if is_heap(recording, events) {
        return None;
    }
    let described = &recording.profile.events;
    let mut names = events
        .iter()
        .filter_map(|event| Some(&*described.get(event.0 as usize)?.name));
    let first = names.next()?;
    let others: Vec<&str> = names.collect();
    if others.is_empty() {
        return None;
    }
    Some(format!(
        "this format holds one event: samples of {} are converted, and those of {} are left out; pprof holds all",
        first,
        others.join(", ")
    ))
}
