//! When the runtime's thread is to send the requests of a connection. Writers on any thread bring the time forward, and that thread takes it.
//!
//! No request may be left behind: a writer that has left one either finds that the thread will look in time anyhow, or is told to wake it. That holds
//! whatever the order, since the thread takes the time before it takes requests.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::atomic_word::AtomicWord;

/// No request is due.
const NEVER: u64 = u64::MAX;

/// In monotonic nanoseconds.
pub(super) struct Due<W = AtomicU64>(W);

impl Due {
    /// Nothing is.
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl<W: AtomicWord> Due<W> {
    /// The time at which a request is due, if one is.
    pub(super) fn when(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// Requests that were left are due by `at`. Returns whether they were not due by then before: then wake the thread, unless it is the caller.
    pub(super) fn bring_forward(&self, at: u64) -> bool {
        self.0.fetch_min(at, Ordering::Release) > at
    }

    /// Requests are about to be taken. Requests that come after this bring the time forward again; earlier ones are seen.
    pub(super) fn take(&self) {
        self.0.swap(NEVER, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
