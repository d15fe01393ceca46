//! Records of a client's ring, checked.
//!
//! [`Record::parse`] takes the private copy of a record that [`Reader`](ferretto_heap_client::ring::Reader) has made. It survives any words: what a client
//! may say is bounded here, and what it means is bounded where it is entered.

use ferretto_heap_client::layout::{Kind, allocation, free, heap};
use ferretto_profile::record::{Sample, UserRegisters};

/// A word of a record, in the byte order of the machine.
pub(crate) type Word = [u8; 8];

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Record<'a> {
    /// A sampled allocation.
    Allocation(Allocation<'a>),
    /// A sampled allocation was given back.
    Free {
        /// As in the allocation.
        address: u64,
        /// The heap.
        heap: u32,
    },
    /// A heap is sampled from now on, or with another interval.
    Heap {
        /// The heap.
        heap: u32,
        /// Bytes between two samples.
        interval: u64,
        /// Its name.
        name: &'a [u8],
    },
}

/// A sampled allocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Allocation<'a> {
    /// `CLOCK_MONOTONIC_COARSE`, in nanoseconds.
    pub timestamp: u64,
    /// Where it is.
    pub address: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Bytes that the sample stands for.
    pub sample_bytes: u64,
    /// The heap.
    pub heap: u32,
    /// The thread.
    pub tid: i32,
    /// In the order of the kernel's `perf_regs.h`.
    pub registers: &'a [Word],
    /// From the stack pointer on.
    pub stack: &'a [u8],
    /// The copy ends before the stack does.
    pub is_stack_cut: bool,
}

impl<'a> Record<'a> {
    /// Reads the payload of a record; `None` if no client of this version writes such a one.
    pub(crate) fn parse(kind: Kind, payload: &'a [Word]) -> Option<Record<'a>> {
        let word = |index: usize| payload.get(index).map(|word| u64::from_ne_bytes(*word));
        let half = |index: usize| word(index).map(|word| word as u32);
        match kind {
            Kind::Padding => None,
            Kind::Allocation => {
                let registers = payload.get(allocation::REGISTERS..allocation::STACK)?;
                let stack = payload.get(allocation::STACK..)?.as_flattened();
                Some(Record::Allocation(Allocation {
                    timestamp: word(allocation::TIMESTAMP)?,
                    address: word(allocation::ADDRESS)?,
                    bytes: word(allocation::SIZE)?,
                    sample_bytes: word(allocation::SAMPLE_SIZE)?,
                    heap: half(allocation::HEAP_AND_THREAD)?,
                    tid: (word(allocation::HEAP_AND_THREAD)? >> 32) as i32,
                    registers,
                    stack: stack.get(..half(allocation::STACK_BYTES)? as usize)?,
                    is_stack_cut: word(allocation::STACK_BYTES)? >> 32 != 0,
                }))
            }
            Kind::Free => Some(Record::Free {
                address: word(free::ADDRESS)?,
                heap: half(free::HEAP)?,
            }),
            Kind::Heap => {
                let name = payload.get(heap::NAME..heap::WORDS)?.as_flattened();
                Some(Record::Heap {
                    heap: half(heap::HEAP)?,
                    interval: word(heap::INTERVAL)?,
                    name: name.split(|&byte| byte == 0).next()?,
                })
            }
        }
    }
}

impl<'a> Allocation<'a> {
    /// The allocation as a sample of a process, for unwinding.
    pub(crate) fn sample(&self, pid: i32) -> Sample<'a> {
        Sample {
            pid,
            tid: self.tid,
            timestamp: self.timestamp,
            registers: Some(UserRegisters {
                is_64_bit: true,
                values: self.registers.into(),
            }),
            stack: self.stack,
            is_stack_cut: self.is_stack_cut,
            ..Sample::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: impl IntoIterator<Item = u64>) -> Vec<Word> {
        words.into_iter().map(u64::to_ne_bytes).collect()
    }

    #[test]
    fn an_allocation_has_its_registers_and_as_much_stack_as_it_says() {
        let mut payload = words([10, 11, 12, 13, 7 << 32 | 3, 1 << 32 | 9]);
        payload.extend(words(100..100 + ferretto_heap_client::layout::REGISTERS as u64));
        payload.extend(words([1, 2]));
        let Some(Record::Allocation(allocation)) = Record::parse(Kind::Allocation, &payload) else {
            panic!("it is one");
        };
        assert_eq!((allocation.timestamp, allocation.address), (10, 11));
        assert_eq!((allocation.bytes, allocation.sample_bytes), (12, 13));
        assert_eq!((allocation.heap, allocation.tid), (3, 7));
        assert_eq!(allocation.registers[0], 100u64.to_ne_bytes());
        assert_eq!(allocation.stack.len(), 9);
        assert_eq!(allocation.stack[..8], 1u64.to_ne_bytes());
        assert!(allocation.is_stack_cut);
        // The stack would be longer than the record.
        payload[5] = 17u64.to_ne_bytes();
        assert_eq!(Record::parse(Kind::Allocation, &payload), None);
        payload.truncate(10);
        assert_eq!(Record::parse(Kind::Allocation, &payload), None);
    }

    #[test]
    fn a_heap_has_a_name_up_to_the_first_zero() {
        let mut payload = words([5, 4096]);
        payload.push(*b"malloc\0x");
        payload.extend(words([u64::MAX; 7]));
        let heap = Record::Heap {
            heap: 5,
            interval: 4096,
            name: b"malloc",
        };
        assert_eq!(Record::parse(Kind::Heap, &payload), Some(heap));
        payload[2] = *b"01234567";
        let Some(Record::Heap { name, .. }) = Record::parse(Kind::Heap, &payload) else {
            panic!("it is one");
        };
        assert_eq!(name.len(), 64);
        payload.pop();
        assert_eq!(Record::parse(Kind::Heap, &payload), None);
    }

    #[test]
    fn a_free_has_two_words() {
        let free = Record::Free { address: 8, heap: 1 };
        assert_eq!(Record::parse(Kind::Free, &words([8, 1])), Some(free));
        assert_eq!(Record::parse(Kind::Free, &words([8])), None);
    }
}
