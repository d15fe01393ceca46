//! The service's deadlines: an ordered set of what is to happen when.
//!
//! Each names what it is for (a session, a flush of it). When that is gone its timers are swept out, so that the set
//! stays as small as what is going on; one that fires nevertheless is dropped without effect.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Now;
use crate::ids::{FlushRequestId, SessionId};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// `duration_ms` is over.
    Duration(SessionId),
    /// Clocks, sync marker and statistics are due.
    Snapshot(SessionId),
    /// The file is due for a write.
    FileWrite(SessionId),
    /// A periodic flush is due.
    PeriodicFlush(SessionId),
    /// Producers shall forget their incremental state.
    ClearIncrementalState(SessionId),
    /// Producers had their time to acknowledge the stop.
    StopTimeout(SessionId),
    /// Producers had their time to acknowledge the flush.
    FlushTimeout(SessionId, FlushRequestId),
    /// Data sources had their time to start.
    AllStartedTimeout(SessionId),
    /// A trigger had its time to start the session.
    StartTriggerTimeout(SessionId),
    /// A trigger wants the session stopped now.
    TriggeredStop(SessionId),
    /// A trigger wants the session cloned now; the number is that of the hit.
    TriggeredSnapshot(SessionId, u64),
    /// Nobody waits for the file any more, and it had its time to take data.
    FileAbandoned(SessionId),
}

impl Timer {
    /// The session it is for.
    pub(crate) fn session(&self) -> SessionId {
        match *self {
            Timer::Duration(session)
            | Timer::Snapshot(session)
            | Timer::FileWrite(session)
            | Timer::PeriodicFlush(session)
            | Timer::ClearIncrementalState(session)
            | Timer::StopTimeout(session)
            | Timer::FlushTimeout(session, _)
            | Timer::AllStartedTimeout(session)
            | Timer::StartTriggerTimeout(session)
            | Timer::TriggeredStop(session)
            | Timer::TriggeredSnapshot(session, _)
            | Timer::FileAbandoned(session) => session,
        }
    }
}

/// Which clock a deadline is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Stands still while the machine sleeps.
    Monotonic,
    /// Goes on meanwhile.
    Boot,
}

/// A deadline, and what orders those that are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    deadline: u64,
    number: u64,
    timer: Timer,
}

/// Deadlines in nanoseconds of their clocks; those of one clock that are equal fire in the order in which they were
/// set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    monotonic: BinaryHeap<Reverse<Entry>>,
    boot: BinaryHeap<Reverse<Entry>>,
    last_number: u64,
}

impl Timers {
    /// Sets a timer on the monotonic clock.
    pub(crate) fn set(&mut self, deadline: u64, timer: Timer) {
        self.set_on(Clock::Monotonic, deadline, timer);
    }

    pub(crate) fn set_on(&mut self, clock: Clock, deadline: u64, timer: Timer) {
        self.last_number += 1;
        let entry = Entry {
            deadline,
            number: self.last_number,
            timer,
        };
        match clock {
            Clock::Monotonic => self.monotonic.push(Reverse(entry)),
            Clock::Boot => self.boot.push(Reverse(entry)),
        }
    }

    /// Sweeps out the timers that nobody needs any more.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&Timer) -> bool) {
        self.monotonic.retain(|Reverse(entry)| !is_over(&entry.timer));
        self.boot.retain(|Reverse(entry)| !is_over(&entry.timer));
    }

    /// The earliest deadline on this clock.
    pub(crate) fn next_deadline(&self, clock: Clock) -> Option<u64> {
        let queue = match clock {
            Clock::Monotonic => &self.monotonic,
            Clock::Boot => &self.boot,
        };
        queue.peek().map(|Reverse(entry)| entry.deadline)
    }

    /// Takes out one timer that is due.
    pub(crate) fn pop_due(&mut self, now: &Now) -> Option<Timer> {
        [(&mut self.monotonic, now.monotonic), (&mut self.boot, now.boot)]
            .into_iter()
            .find_map(|(queue, now)| {
                let Reverse(first) = *queue.peek()?;
                if first.deadline > now {
                    return None;
                }
                queue.pop();
                Some(first.timer)
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
        timers.set(20, Timer::Duration(a));
        timers.set(10, Timer::Duration(b));
        timers.set(20, Timer::Duration(c));
        assert_eq!(timers.next_deadline(Clock::Monotonic), Some(10));
        assert_eq!(timers.pop_due(&at(9, 9)), None);
        assert_eq!(timers.pop_due(&at(30, 30)), Some(Timer::Duration(b)));
        assert_eq!(timers.pop_due(&at(30, 30)), Some(Timer::Duration(a)));
        assert_eq!(timers.pop_due(&at(30, 30)), Some(Timer::Duration(c)));
        assert_eq!(timers.pop_due(&at(30, 30)), None);
    }

    #[test]
    fn each_timer_is_due_by_its_own_clock() {
        let mut timers = Timers::default();
        let (awake, asleep) = (Timer::Duration(SessionId(1)), Timer::Duration(SessionId(2)));
        timers.set_on(Clock::Monotonic, 10, awake);
        timers.set_on(Clock::Boot, 20, asleep);
        assert_eq!(timers.next_deadline(Clock::Monotonic), Some(10));
        assert_eq!(timers.next_deadline(Clock::Boot), Some(20));
        assert_eq!(timers.pop_due(&at(9, 20)), Some(asleep));
        assert_eq!(timers.pop_due(&at(9, 99)), None);
        assert_eq!(timers.pop_due(&at(10, 99)), Some(awake));
    }
}
