//! How many of the threads that wait for space in a ring are woken, and when.
//!
//! [`Feed`](crate::feed::Feed) asks after every few records, and whenever it looks at its ring. Thousands of threads may wait. If all of them were woken for
//! a few records of space, nearly all would find none and sleep again. So nobody is woken before half of the ring is free, and then as many as records were
//! read: that is the space there is. If those do not need it, the next look wakes more. A look comes every few milliseconds as long as the session lasts, so
//! nobody sleeps for good. A caller that waits for everything to be read is woken by the same rule: half of an empty ring is free.

use std::sync::atomic::Ordering::Relaxed;

use ferretto_heap_client::layout::header;
use ferretto_heap_client::ring::Ring;

/// A look at a ring with free space wakes at least so many.
const FEWEST: u32 = 16;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Waking {
    /// Records that were read since the last look at which half of the ring was free.
    read: u32,
}

impl Waking {
    /// A record was read.
    pub(crate) fn add(&mut self) {
        self.read = self.read.saturating_add(1);
    }

    /// How many waiting threads should be woken now.
    pub(crate) fn due(&mut self, ring: Ring<'_>) -> Option<u32> {
        if ring.used_bytes() > ring.bytes() / 2 {
            return None;
        }
        let read = std::mem::take(&mut self.read);
        let waiting = ring.header(header::WAITING).load(Relaxed);
        (waiting != 0).then_some(read.max(FEWEST))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicU64;

    use ferretto_heap_client::layout::{HEADER_WORDS, Kind, MIN_RING_WORDS, allocation};
    use ferretto_heap_client::ring::{Next, Reader};

    use super::*;

    const THREADS: u64 = 2000;
    const RECORDS_OF_THREAD: u64 = 10;
    /// Between two looks, as [`thread`](crate::thread) reads.
    const READ_AT_ONCE: u32 = 16;

    /// The steps of threads and the daemon.
    #[derive(Debug, Default)]
    struct Work {
        records: u64,
        /// Tries of threads to take space.
        tries: u64,
        wakes: u64,
    }

    /// Threads that write, and wait until they are woken, and the daemon that reads, in an order that the seed makes.
    fn run(seed: u64) -> Work {
        let memory: Vec<AtomicU64> = (0..HEADER_WORDS + MIN_RING_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let ring = Ring::new(&memory).expect("a possible size");
        let mut random = seed;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let (mut reader, mut waking) = (Reader::new(), Waking::default());
        let mut payload: Vec<u64> = Vec::new();
        // The records that each thread still has to write.
        let mut awake: VecDeque<u64> = (0..THREADS).map(|_| RECORDS_OF_THREAD).collect();
        let mut asleep: VecDeque<u64> = VecDeque::new();
        let mut work = Work::default();
        while !awake.is_empty() || !asleep.is_empty() {
            assert!(work.tries < 100 * THREADS * RECORDS_OF_THREAD, "{work:?}");
            // The daemon often waits for a processor when so many threads run.
            let is_daemon = awake.is_empty() || next() % (4 * seed) == 0;
            if !is_daemon {
                let mut left = awake.pop_front().expect("one is awake");
                work.tries += 1;
                match ring.take(Kind::Allocation, allocation::STACK + (next() % 20) as usize) {
                    Some(space) => {
                        space.complete();
                        left -= 1;
                        if left != 0 {
                            awake.push_back(left);
                        }
                    }
                    None => asleep.push_back(left),
                }
                ring.header(header::WAITING).store(asleep.len() as u64, Relaxed);
                continue;
            }
            for _ in 0..READ_AT_ONCE {
                if reader.next(ring, &mut payload) != Next::Record(Kind::Allocation) {
                    break;
                }
                work.records += 1;
                waking.add();
            }
            let due = waking.due(ring).unwrap_or(0) as usize;
            let woken = asleep.drain(..due.min(asleep.len()));
            work.wakes += woken.len() as u64;
            awake.extend(woken);
            ring.header(header::WAITING).store(asleep.len() as u64, Relaxed);
        }
        while reader.next(ring, &mut payload) == Next::Record(Kind::Allocation) {
            work.records += 1;
        }
        work
    }

    #[test]
    fn of_thousands_of_waiting_threads_about_as_many_wake_as_records_are_read_and_all_in_the_end() {
        for seed in 1..20 {
            let work = run(seed);
            assert_eq!(work.records, THREADS * RECORDS_OF_THREAD, "seed {seed}");
            let most = work.records + work.records / 4;
            assert!(
                work.wakes <= most && work.tries <= most + work.records,
                "seed {seed}: {work:?}"
            );
        }
    }

    #[test]
    fn nobody_is_woken_while_less_than_half_is_free_or_if_nobody_waits() {
        let memory: Vec<AtomicU64> = (0..HEADER_WORDS + MIN_RING_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let ring = Ring::new(&memory).expect("a possible size");
        let (mut waking, words) = (Waking::default(), MIN_RING_WORDS as u64);
        assert_eq!(waking.due(ring), None);
        ring.header(header::WAITING).store(3, Relaxed);
        ring.header(header::WRITE).store(words, Relaxed);
        (0..100).for_each(|_| waking.add());
        ring.header(header::READ).store(words / 2 - 1, Relaxed);
        assert_eq!(waking.due(ring), None);
        ring.header(header::READ).store(words / 2, Relaxed);
        assert_eq!(waking.due(ring), Some(100));
        // These did not need it: others may.
        assert_eq!(waking.due(ring), Some(FEWEST));
    }
}
