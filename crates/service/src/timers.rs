//! The service's deadlines, in order.
//!
//! Each timer belongs to a session. When the session ends, or the flush that the timer is for, the timer is removed, so the set stays small.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Clock, Now};
use crate::ids::{FlushRequestId, SessionId};

/// The purpose of a session's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// `duration_ms` is over.
    Duration,
    /// Clocks, sync marker and statistics are due.
    Snapshot,
    /// The file is due for a write.
    FileWrite,
    /// A periodic flush is due.
    PeriodicFlush,
    /// Producers shall forget their incremental state.
    ClearIncrementalState,
    /// Producers had their time to acknowledge the stop.
    StopTimeout,
    /// Producers had their time to acknowledge the flush.
    FlushTimeout(FlushRequestId),
    /// Data sources had their time to start.
    AllStartedTimeout,
    /// A trigger had its time to start the session.
    StartTriggerTimeout,
    /// A trigger wants the session stopped now.
    TriggeredStop,
    /// A trigger wants the session cloned now; the number is that of the hit.
    TriggeredSnapshot(u64),
    /// No consumer waits for the file any more, and its time to take data is up.
    FileAbandoned,
}

/// A deadline, and a number that orders equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: u64,
    number: u64,
    session: SessionId,
    timer: Timer,
}

/// Deadlines in nanoseconds of their clocks. Equal deadlines of one clock fire in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    monotonic: BinaryHeap<Reverse<Entry>>,
    boot: BinaryHeap<Reverse<Entry>>,
    last_number: u64,
}

impl Timers {
    /// Sets a timer on the monotonic clock.
    pub(crate) fn set(&mut self, session: SessionId, deadline: u64, timer: Timer) {
        self.set_on(Clock::Monotonic, session, deadline, timer);
    }

    pub(crate) fn set_on(&mut self, clock: Clock, session: SessionId, deadline: u64, timer: Timer) {
        self.last_number += 1;
        let entry = Entry {
            deadline,
            number: self.last_number,
            session,
            timer,
        };
        match clock {
            Clock::Monotonic => self.monotonic.push(Reverse(entry)),
            Clock::Boot => self.boot.push(Reverse(entry)),
        }
    }

    /// Sweeps out this timer of a session.
    pub(crate) fn forget(&mut self, session: SessionId, timer: Timer) {
        self.sweep(|entry| entry.session == session && entry.timer == timer);
    }

    /// Sweeps out all timers of a session.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.sweep(|entry| entry.session == session);
    }

    fn sweep(&mut self, is_over: impl Fn(&Entry) -> bool) {
        self.monotonic.retain(|Reverse(entry)| !is_over(entry));
        self.boot.retain(|Reverse(entry)| !is_over(entry));
    }

    /// The earliest deadline on this clock.
    pub(crate) fn next_deadline(&self, clock: Clock) -> Option<u64> {
        let queue = match clock {
            Clock::Monotonic => &self.monotonic,
            Clock::Boot => &self.boot,
        };
        queue.peek().map(|Reverse(entry)| entry.deadline)
    }

    /// Takes out one due timer, with its session.
    pub(crate) fn pop_due(&mut self, now: &Now) -> Option<(SessionId, Timer)> {
        [(&mut self.monotonic, now.monotonic), (&mut self.boot, now.boot)]
            .into_iter()
            .find_map(|(queue, now)| {
                let Reverse(first) = *queue.peek()?;
                if first.deadline > now {
                    return None;
                }
                queue.pop();
                Some((first.session, first.timer))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(monotonic: u64, boot: u64) -> Now {
        Now {
            monotonic,
            boot,
            ..Default::default()
        }
    }

    #[test]
    fn timers_fire_in_order_of_deadline_then_of_setting() {
        let mut timers = Timers::default();
        let (a, b, c) = (SessionId(1), SessionId(2), SessionId(3));
        timers.set(a, 20, Timer::Duration);
        timers.set(b, 10, Timer::Duration);
        timers.set(c, 20, Timer::Duration);
        assert_eq!(timers.next_deadline(Clock::Monotonic), Some(10));
        assert_eq!(timers.pop_due(&at(9, 9)), None);
        assert_eq!(timers.pop_due(&at(30, 30)), Some((b, Timer::Duration)));
        assert_eq!(timers.pop_due(&at(30, 30)), Some((a, Timer::Duration)));
        assert_eq!(timers.pop_due(&at(30, 30)), Some((c, Timer::Duration)));
        assert_eq!(timers.pop_due(&at(30, 30)), None);
    }

    #[test]
    fn each_timer_is_due_by_its_own_clock() {
        let mut timers = Timers::default();
        let (awake, asleep) = (SessionId(1), SessionId(2));
        timers.set_on(Clock::Monotonic, awake, 10, Timer::Duration);
        timers.set_on(Clock::Boot, asleep, 20, Timer::Duration);
        assert_eq!(timers.next_deadline(Clock::Monotonic), Some(10));
        assert_eq!(timers.next_deadline(Clock::Boot), Some(20));
        assert_eq!(timers.pop_due(&at(9, 20)), Some((asleep, Timer::Duration)));
        assert_eq!(timers.pop_due(&at(9, 99)), None);
        assert_eq!(timers.pop_due(&at(10, 99)), Some((awake, Timer::Duration)));
    }

    #[test]
    fn timers_of_a_session_are_removed_from_both_clocks() {
        let mut timers = Timers::default();
        let (a, b, c) = (SessionId(1), SessionId(2), SessionId(3));
        for session in [a, b, c] {
            for clock in [Clock::Monotonic, Clock::Boot] {
                timers.set_on(clock, session, 10, Timer::Duration);
                timers.set_on(clock, session, 20, Timer::Snapshot);
            }
        }
        timers.forget(a, Timer::Duration);
        timers.forget_session(b);
        let left = std::iter::from_fn(|| timers.pop_due(&at(30, 30)));
        let of_each_clock = [(c, Timer::Duration), (a, Timer::Snapshot), (c, Timer::Snapshot)];
        assert!(left.eq(of_each_clock.repeat(2)));
    }
}
