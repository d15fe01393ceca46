//! Samples that were read from rings and are not handled yet.
//!
//! [`Profiler`](crate::profiler::Profiler) handles records where they are as long as it keeps up. Records that would take it too long are copied here, so that the
//! kernel gets its memory back, and handled when the rings are empty. Order is kept, because a record can change which program a process runs.

use std::collections::VecDeque;

use crate::record::{Counts, Mapped, Sample, UserRegisters, Words};

/// Bytes that wait at most, if the config does not say.
const DEFAULT_MOST_BYTES: u64 = 64 << 20;

/// Something that waits.
#[derive(Debug)]
pub(crate) enum Item {
    Sample(u32, OwnedSample),
    Exec { pid: i32, timestamp: u64 },
    Fork { pid: i32, parent: i32, timestamp: u64 },
    Exit { pid: i32 },
    Mapped(OwnedMapped),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Queue {
    items: VecDeque<Item>,
    bytes: u64,
    /// Of those, the bytes of changes.
    change_bytes: u64,
    /// `None` if nothing may wait.
    most_bytes: Option<u64>,
    /// Changes had no room.
    has_lost_changes: bool,
}

/// Bytes of changes that wait at most.
const MOST_CHANGE_BYTES: u64 = 16 << 20;

impl Queue {
    pub(crate) fn new(most_bytes: Option<u64>) -> Queue {
        Queue {
            items: VecDeque::new(),
            bytes: 0,
            change_bytes: 0,
            has_lost_changes: false,
            most_bytes: Some(most_bytes.unwrap_or(DEFAULT_MOST_BYTES)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many items wait.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// How many samples wait. The other items are changes, which any process of the machine may cause.
    #[cfg(test)]
    pub(crate) fn samples(&self) -> usize {
        let samples = self.items.iter().filter(|item| matches!(item, Item::Sample(..)));
        samples.count()
    }

    /// Whether a sample with a stack of this size may wait.
    pub(crate) fn has_room_for(&self, sample: &Sample<'_>) -> bool {
        let bytes = self.bytes - self.change_bytes + sample.stack.len() as u64;
        self.most_bytes.is_some_and(|most| bytes <= most)
    }

    /// Leaves no room for samples.
    pub(crate) fn close(&mut self) {
        self.most_bytes = None;
    }

    /// Puts a sample, for which there has to be room, or a change behind all others. A change without room is lost.
    pub(crate) fn push(&mut self, item: Item) {
        let bytes = item.bytes();
        if !matches!(item, Item::Sample(..)) {
            if self.change_bytes + bytes > MOST_CHANGE_BYTES {
                self.has_lost_changes = true;
                return;
            }
            self.change_bytes += bytes;
        }
        self.bytes += bytes;
        self.items.push_back(item);
    }

    pub(crate) fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        let bytes = item.bytes();
        self.bytes -= bytes;
        if !matches!(item, Item::Sample(..)) {
            self.change_bytes -= bytes;
        }
        Some(item)
    }

    /// Whether changes were lost since this was last asked.
    pub(crate) fn take_lost_changes(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_changes)
    }
}

impl Item {
    fn bytes(&self) -> u64 {
        let owned = match self {
            Item::Sample(_, sample) => sample.stack.len() + 8 * sample.words.len(),
            Item::Mapped(mapped) => mapped.path.len(),
            Item::Exec { .. } | Item::Fork { .. } | Item::Exit { .. } => 0,
        };
        (owned + size_of::<Item>()) as u64
    }
}

/// A [`Sample`] with memory of its own.
#[derive(Debug)]
pub(crate) struct OwnedSample {
    cpu_mode: u16,
    pid: i32,
    tid: i32,
    timestamp: u64,
    /// Counts, then the call chain, then registers.
    words: Box<[[u8; 8]]>,
    counts: usize,
    /// Without their words.
    without_words: Counts<'static>,
    callchain: usize,
    /// Whether they are 64-bit registers, if there are any.
    registers: Option<bool>,
    stack: Box<[u8]>,
    is_stack_cut: bool,
}

impl From<&Sample<'_>> for OwnedSample {
    fn from(sample: &Sample<'_>) -> OwnedSample {
        let registers = sample
            .registers
            .map(|registers| registers.values)
            .unwrap_or_default();
        OwnedSample {
            cpu_mode: sample.cpu_mode,
            pid: sample.pid,
            tid: sample.tid,
            timestamp: sample.timestamp,
            words: [sample.counts.words, sample.callchain, registers]
                .map(Words::as_chunks)
                .concat()
                .into(),
            counts: sample.counts.words.len(),
            without_words: Counts {
                words: Words::default(),
                ..sample.counts
            },
            callchain: sample.callchain.len(),
            registers: sample.registers.map(|registers| registers.is_64_bit),
            stack: sample.stack.into(),
            is_stack_cut: sample.is_stack_cut,
        }
    }
}

impl OwnedSample {
    pub(crate) fn borrowed(&self) -> Sample<'_> {
        let (counts, rest) = self.words.split_at(self.counts);
        let (callchain, registers) = rest.split_at(self.callchain);
        Sample {
            cpu_mode: self.cpu_mode,
            pid: self.pid,
            tid: self.tid,
            timestamp: self.timestamp,
            counts: Counts {
                words: counts.into(),
                ..self.without_words
            },
            callchain: callchain.into(),
            registers: self.registers.map(|is_64_bit| UserRegisters {
                is_64_bit,
                values: registers.into(),
            }),
            stack: &self.stack,
            is_stack_cut: self.is_stack_cut,
        }
    }
}

/// A [`Mapped`] with memory of its own.
#[derive(Debug)]
pub(crate) struct OwnedMapped {
    mapped: Mapped<'static>,
    path: Box<[u8]>,
}

impl From<&Mapped<'_>> for OwnedMapped {
    fn from(mapped: &Mapped<'_>) -> OwnedMapped {
        OwnedMapped {
            mapped: Mapped { path: b"", ..*mapped },
            path: mapped.path.into(),
        }
    }
}

impl OwnedMapped {
    pub(crate) fn borrowed(&self) -> Mapped<'_> {
        Mapped {
            path: &self.path,
            ..self.mapped
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::CountFormat;

    #[test]
    fn a_sample_is_the_same_after_it_waited() {
        let word = |number: u64| number.to_ne_bytes();
        let (counts, callchain, registers) = ([word(1), word(2)], [word(3)], [word(4), word(5), word(6)]);
        let sample = Sample {
            cpu_mode: 2,
            pid: 7,
            tid: 8,
            timestamp: 9,
            counts: Counts {
                words: counts.as_slice().into(),
                format: CountFormat::WithLosses,
                before: 17,
            },
            callchain: callchain.as_slice().into(),
            registers: Some(UserRegisters {
                is_64_bit: true,
                values: registers.as_slice().into(),
            }),
            stack: b"stack",
            is_stack_cut: true,
        };
        let mut queue = Queue::new(None);
        queue.push(Item::Sample(3, OwnedSample::from(&sample)));
        let Some(Item::Sample(3, waited)) = queue.pop() else {
            panic!("the sample comes back")
        };
        assert_eq!(waited.borrowed(), sample);
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn stacks_that_wait_are_bounded() {
        let stack = [0; 1000];
        let sample = Sample {
            stack: &stack,
            ..Sample::default()
        };
        let mut queue = Queue::new(Some(2500));
        let mut taken = 0;
        while queue.has_room_for(&sample) {
            queue.push(Item::Sample(0, OwnedSample::from(&sample)));
            taken += 1;
            assert!(taken < 10);
        }
        assert_eq!(taken, 2);
        queue.pop();
        assert!(queue.has_room_for(&sample));
    }
}
