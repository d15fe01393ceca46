//! A thread's copy of the process's current piece of time. Events get their timestamps from it.
//!
//! Each sequence of events holds one and asks it for every timestamp. No call, no lock, one multiplication.

use super::discipline::MAX_LEAD_NS;
use super::{counter, timeline};

/// A linear piece of the function from the counter's ticks to trace time: the time at `counter`, and the rate for the next `limit` ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// The counter where the piece begins.
    pub(super) counter: u64,
    /// Trace time there, in nanoseconds.
    pub(super) ns: u64,
    /// Nanoseconds per tick, times 2^32.
    pub(super) multiplier: u64,
    /// How many ticks the piece is long. `limit * multiplier` fits in 64 bits.
    pub(super) limit: u64,
}

impl Anchor {
    /// Tells no time: the first use renews it. On machines without a reliable counter anchors stay like this.
    pub(crate) const EXPIRED: Self = Self {
        counter: 0,
        ns: 0,
        multiplier: 0,
        limit: 0,
    };

    /// Tells one time for as long as it exists: for moments at which the time is known and nothing can be renewed.
    pub(crate) fn standing_still(ns: u64) -> Self {
        Self {
            ns,
            limit: u64::MAX,
            ..Self::EXPIRED
        }
    }

    /// Trace time now in nanoseconds; `None` when the anchor has to be [renewed](Self::renew) first.
    #[inline(always)]
    pub(crate) fn now(&self) -> Option<u64> {
        self.at(counter::read())
    }

    /// Trace time when the counter shows `counter`, if that is within the piece. One comparison finds both a piece that is over
    /// and a counter that went backwards.
    #[inline(always)]
    pub(super) fn at(&self, counter: u64) -> Option<u64> {
        let ticks = counter.wrapping_sub(self.counter);
        (ticks < self.limit).then(|| self.after(ticks))
    }

    /// Replaces an anchor that can no longer tell the time, and tells the time. Neither this time nor any that the anchor tells until the next
    /// renewal is before `at_least`, which is the last time that the caller got from it. The function ignores an `at_least` that is further ahead
    /// than an anchor of this process can be ([`MAX_LEAD_NS`]).
    ///
    /// About once in [`MAX_PIECE_NS`](super::discipline::MAX_PIECE_NS) one thread of the process asks the kernel's clock here, and the others copy
    /// its result. Never waits, never allocates.
    #[cold]
    #[inline(never)]
    pub(crate) fn renew(&mut self, at_least: u64) -> u64 {
        let renewed = timeline::renew();
        let is_own = at_least.saturating_sub(renewed.ns) <= MAX_LEAD_NS;
        let at_least = if is_own { at_least } else { 0 };
        *self = renewed.anchor.not_before(at_least, renewed.counter);
        renewed.ns.max(at_least)
    }

    /// Trace time at the end of the piece. The piece tells no later times.
    pub(super) fn end(&self) -> u64 {
        self.after(self.limit)
    }

    /// This piece from `counter` on, but with a pause in place of times before `at_least`.
    pub(super) fn not_before(self, at_least: u64, counter: u64) -> Self {
        let Some(lead) = self
            .at(counter)
            .and_then(|ns| at_least.checked_sub(ns))
            .filter(|&lead| lead > 0)
        else {
            return self;
        };
        let rest = self.limit - counter.wrapping_sub(self.counter);
        let pause = (u128::from(lead) << 32) / u128::from(self.multiplier.max(1)) + 1;
        let limit = pause.min(u128::from(rest)) as u64;
        Self {
            counter,
            ns: at_least,
            multiplier: 0,
            limit,
        }
    }

    #[inline(always)]
    fn after(&self, ticks: u64) -> u64 {
        self.ns + ((ticks * self.multiplier) >> 32)
    }
}
