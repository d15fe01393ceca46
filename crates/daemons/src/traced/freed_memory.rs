//! Returns freed memory, which the allocator keeps, to the system.
//!
//! Called by the shell. glibc keeps freed memory, except at the end of its heaps, and keeps more of it the larger the freed pieces are. So a daemon
//! that has once sent a trace would stay as large as it was then. Giving pages back, and getting them again, takes time: it is done a little after
//! much was freed, and not often.
#![allow(unsafe_code)]

use std::time::Duration;

/// From when much was freed until it is given back: more may follow.
const DELAY: Duration = Duration::from_millis(100);
/// The least time between two attempts to return memory.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether and when memory is to be returned.
#[derive(Debug, Default)]
pub(super) struct FreedMemory {
    due: Option<u64>,
    /// The earliest time of the next return.
    earliest: u64,
}

impl FreedMemory {
    /// Much was freed just now, on the monotonic clock.
    pub(super) fn note(&mut self, now: u64) {
        let soon = now + DELAY.as_nanos() as u64;
        self.due.get_or_insert(soon.max(self.earliest));
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), in monotonic time.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.due
    }

    /// Returns freed memory, if it is time.
    pub(super) fn handle_timeout(&mut self, now: u64) {
        if self.due.take_if(|due| *due <= now).is_some() {
            self.earliest = now + INTERVAL.as_nanos() as u64;
            give_back();
        }
    }
}

/// Returns the whole pages of free memory to the system, from the heaps of all threads.
fn give_back() {
    // Others (musl) give back by themselves.
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it touches nothing that is in use, and takes the locks of the heaps.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> u64 {
        milliseconds * 1_000_000
    }

    fn deadline_ms(freed: &FreedMemory) -> Option<u64> {
        Some(freed.deadline()? / 1_000_000)
    }

    #[test]
    fn memory_freed_in_a_row_is_returned_together_and_not_often() {
        let mut freed = FreedMemory::default();
        assert_eq!(deadline_ms(&freed), None);
        freed.note(at(5_000));
        freed.note(at(5_050));
        assert_eq!(deadline_ms(&freed), Some(5_100));
        freed.handle_timeout(at(5_099));
        assert_eq!(deadline_ms(&freed), Some(5_100));
        freed.handle_timeout(at(5_100));
        assert_eq!(deadline_ms(&freed), None);

        freed.note(at(5_200));
        assert_eq!(deadline_ms(&freed), Some(6_100));
        freed.handle_timeout(at(6_100));
        freed.note(at(9_000));
        assert_eq!(deadline_ms(&freed), Some(9_100));
    }
}
