//! The service's deadlines: an ordered set of what is to happen when.
//!
//! Each names what it is for (a session, a flush of it). When that is gone its timers are swept out, so that the set
//! stays as small as what is going on; one that fires nevertheless is dropped without effect.

use std::collections::BTreeMap;

use crate::ids::{FlushRequestId, SessionId};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            | Timer::TriggeredSnapshot(session, _) => session,
        }
    }
}

/// Deadlines on the monotonic clock, in nanoseconds; equal ones fire in the order in which they were set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queue: BTreeMap<(u64, u64), Timer>,
    last_number: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, deadline: u64, timer: Timer) {
        self.last_number += 1;
        self.queue.insert((deadline, self.last_number), timer);
    }

    /// Sweeps out the timers that nobody needs any more.
    pub(crate) fn forget(&mut self, is_over: impl Fn(&Timer) -> bool) {
        self.queue.retain(|_, timer| !is_over(timer));
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.queue.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Takes out one timer that is due.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Timer> {
        let entry = self.queue.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order_of_deadline_then_of_setting() {
        let mut timers = Timers::default();
        let (a, b, c) = (SessionId(1), SessionId(2), SessionId(3));
        timers.set(20, Timer::Duration(a));
        timers.set(10, Timer::Duration(b));
        timers.set(20, Timer::Duration(c));
        assert_eq!(timers.next_deadline(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(30), Some(Timer::Duration(b)));
        assert_eq!(timers.pop_due(30), Some(Timer::Duration(a)));
        assert_eq!(timers.pop_due(30), Some(Timer::Duration(c)));
        assert_eq!(timers.pop_due(30), None);
    }
}
