//! A profile as read from a trace: call stacks, what they were counted for, and in which threads or heaps.
//!
//! [`convert`](crate::convert) calls it, for files and for what `ferretto profile` has just recorded. [`Reader`] takes the packets of a trace one at a
//! time, so that a profile can also be shown while it is recorded. It understands the samples of `linux.perf` (`PerfSample`), those that
//! programs take of themselves ([`stack_sample`]), and the heap profiles of `android.heapprofd` ([`heap`]) with everything that they refer to, as
//! upstream's trace processor does.
//!
//! Names, frames and call stacks are stored once for the whole trace, whatever the number of sequences. [`Totals`] grow with the number of distinct
//! call stacks and threads, not with the number of samples. Everything that cannot be shown is counted in [`Losses`].

mod counted;
mod heap;
mod losses;
mod model;
mod names;
mod reader;
mod sequence;
mod stack_sample;
mod symbols;

use std::collections::HashMap;

#[cfg(test)]
mod tests;

pub(crate) use counted::{COUNTERS, Event, OFF_CPU, Period};
pub(crate) use heap::{Dump, Heap, HeapId, HeapLosses, Measure, dumps, name_of};
pub(crate) use losses::{Losses, Remark};
pub(crate) use model::{FrameId, Profile, StackId, Unnamed};
pub(crate) use names::Names;
pub(crate) use reader::Reader;

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// In ns since boot; `None` if the trace does not relate its clock to boot time.
    pub(crate) time: Option<u64>,
    /// The thread that was sampled.
    pub(crate) thread: Thread,
    pub(crate) cpu: Option<u32>,
    /// Whether the kernel was running.
    pub(crate) mode: Mode,
    /// What was counted.
    pub(crate) event: EventId,
    /// `None` if the sample has no call stack, or none that can be read.
    pub(crate) stack: Option<StackId>,
    /// How many it counts for: 1, unless the event is weighted.
    pub(crate) weight: u64,
}

/// A thread and its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
}

/// What the processor was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Unknown,
    Kernel,
    User,
}

/// The place of an event in [`Profile::events`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EventId(pub(crate) u32);

/// Whose samples they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    Thread(Thread),
    Heap(HeapId),
}

impl Owner {
    /// Returns the process.
    pub(crate) fn pid(self, profile: &Profile) -> u32 {
        match self {
            Owner::Thread(thread) => thread.pid,
            Owner::Heap(heap) => profile.heap(heap).map_or(0, |heap| heap.pid),
        }
    }
}

/// What samples are added up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) event: EventId,
    pub(crate) owner: Owner,
    pub(crate) stack: StackId,
}

/// Samples added up by thread or heap, and call stack.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    counts: HashMap<Key, u64>,
}

impl Totals {
    /// Adds a sample, if it has a call stack.
    pub(crate) fn add(&mut self, sample: &Sample) {
        self.add_weighted(sample, sample.weight);
    }

    /// Adds a sample that counts so many times, if it has a call stack.
    pub(crate) fn add_weighted(&mut self, sample: &Sample, weight: u64) {
        if let Some(stack) = sample.stack {
            let key = Key {
                event: sample.event,
                owner: Owner::Thread(sample.thread),
                stack,
            };
            self.add_to(key, weight);
        }
    }

    fn add_to(&mut self, key: Key, weight: u64) {
        let count = self.counts.entry(key).or_default();
        *count = count.saturating_add(weight);
    }

    /// Whether there is no sample with a call stack.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the number of samples of each event, thread or heap, and call stack, in this order.
    pub(crate) fn sorted(&self) -> Vec<(Key, u64)> {
        let mut all: Vec<(Key, u64)> = self.counts.iter().map(|(key, count)| (*key, *count)).collect();
        all.sort_unstable();
        all
    }
}

/// A trace that was read for its samples.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) profile: Profile,
    pub(crate) totals: Totals,
    /// The samples in the order of the trace, if [`Keep::Samples`] was asked for.
    pub(crate) samples: Vec<Sample>,
    /// The times of the first and the last sample, in ns since boot.
    pub(crate) span: Option<(u64, u64)>,
}

impl Recording {
    /// Returns the events that have samples with call stacks, in the order in which the trace mentions them, but waiting later: its samples mean little
    /// unless they are weighted by its length. The numbers of heap profiles come last, beginning with what was not freed.
    pub(crate) fn events_with_stacks(&self) -> Vec<EventId> {
        let mut events: Vec<EventId> = self.totals.counts.keys().map(|key| key.event).collect();
        events.sort_by_key(|event| (self.measure(*event), self.is_waiting(*event), *event));
        events.dedup();
        events
    }

    /// Returns the number of heap profiles that an event is, if it is one.
    pub(crate) fn measure(&self, event: EventId) -> Option<Measure> {
        self.profile.events.get(event.0 as usize)?.measure
    }

    /// Returns the sum of an event.
    pub(crate) fn sum(&self, event: EventId) -> u64 {
        let of_event = self.totals.counts.iter().filter(|(key, _)| key.event == event);
        of_event.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Whether samples of this event are of waiting.
    pub(crate) fn is_waiting(&self, event: EventId) -> bool {
        let event = self.profile.events.get(event.0 as usize);
        event.is_some_and(|event| event.name == OFF_CPU)
    }
}

/// What is kept of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Only sums.
    Totals,
    /// Each sample as well. Memory grows with the trace.
    Samples,
}

/// Adds up the samples of packets that it takes in, one at a time.
pub(crate) struct Recorder<F> {
    reader: Reader,
    keep: Keep,
    /// Whether the samples of a thread are wanted.
    wants: F,
    recording: Recording,
}

impl<F: FnMut(Thread) -> bool> Recorder<F> {
    pub(crate) fn new(keep: Keep, wants: F) -> Recorder<F> {
        Recorder {
            reader: Reader::default(),
            keep,
            wants,
            recording: Recording::default(),
        }
    }

    /// Takes in a packet.
    pub(crate) fn packet(&mut self, packet: &[u8]) {
        let Some(sample) = self.reader.packet(packet, &mut self.wants) else {
            return;
        };
        self.recording.totals.add(&sample);
        if let Some(time) = sample.time {
            let (first, last) = self.recording.span.unwrap_or((time, time));
            self.recording.span = Some((first.min(time), last.max(time)));
        }
        if self.keep == Keep::Samples {
            self.recording.samples.push(sample);
        }
    }

    /// Lends what was taken in so far, without heap profiles, whose last dump counts alone. Names of addresses may be added to it.
    pub(crate) fn look<R>(&mut self, look: impl FnOnce(&mut Recording) -> R) -> R {
        std::mem::swap(self.reader.profile_mut(), &mut self.recording.profile);
        let looked = look(&mut self.recording);
        std::mem::swap(self.reader.profile_mut(), &mut self.recording.profile);
        looked
    }

    /// Returns the number of entries in the two tables that grow most: distinct stacks by thread, and the tree of stacks. An entry takes about 50 bytes.
    pub(crate) fn entries(&mut self) -> usize {
        self.recording.totals.counts.len() + self.reader.profile_mut().stacks.len()
    }

    /// Returns everything that was taken in.
    pub(crate) fn finish(mut self) -> Recording {
        let (profile, heaps) = self.reader.finish();
        let mut recording = Recording {
            profile,
            ..self.recording
        };
        let profile = &mut recording.profile;
        let places = profile.keep_heaps(|pid| (self.wants)(Thread { pid, tid: pid }));
        let kind = heap::Kind::of(&profile.heaps);
        for measure in Measure::ALL {
            let Some(event) = Event::of_heaps(kind, measure).filter(|_| !heaps.is_empty()) else {
                continue;
            };
            let id = EventId(profile.events.len() as u32);
            profile.events.push(event);
            for ((heap, stack), counts) in &heaps {
                let count = measure.of(counts);
                if let Some(heap) = places.get(heap).filter(|_| count > 0) {
                    let key = Key {
                        event: id,
                        owner: Owner::Heap(*heap),
                        stack: *stack,
                    };
                    recording.totals.add_to(key, count);
                }
            }
        }
        recording
    }
}
