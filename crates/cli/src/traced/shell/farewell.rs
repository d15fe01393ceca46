//! The end of the daemon: it stops all sessions, lets their consumers read them, and completes files.
//!
//! The shell calls this when a signal comes. The limits below add up to less than the stop timeout of the unit in `contrib/systemd`.

use std::time::Duration;

use ferretto_ipc::reactor::Events;

use super::{Role, Shell};
use crate::traced::clocks::TurnTime;

/// The daemon is gone after this long at the latest, but for files: producers flush and stop in this time, and consumers read.
const PATIENCE: Duration = Duration::from_secs(15);
/// When all sessions have stopped, the daemon is gone once no consumer has read for this long.
const PATIENCE_WITH_READERS: Duration = Duration::from_secs(3);
/// How long the daemon then waits for a file that takes no data.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a daemon that was told to end still serves: times of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    /// Whatever is left to do.
    until: u64,
    /// If only consumers are left, and none of them reads.
    until_if_unread: u64,
}

impl Shell {
    /// Closes the listeners and begins to stop all sessions. New clients find no service, or its successor.
    pub(super) fn begin_farewell(&mut self) {
        for (token, (listener, _)) in std::mem::take(&mut self.listeners) {
            let _ = self.reactor.deregister(&listener, token);
            listener.close();
        }
        self.resting = None;
        let turn = TurnTime::default();
        self.service.begin_ending(turn.now());
        self.carry_out(&turn);
        self.farewell = Some(Farewell {
            until: after(&turn, PATIENCE),
            until_if_unread: after(&turn, PATIENCE_WITH_READERS),
        });
        if self.service.has_sessions() {
            crate::log::info(format_args!(
                "traced is ending: sessions are stopped, and their consumers have up to {} s to read them; a second signal ends it at once",
                PATIENCE.as_secs()
            ));
        }
    }

    /// The next time at which [`Shell::is_farewell_over`] may change its answer by itself.
    pub(super) fn farewell_deadline(&self) -> Option<u64> {
        let farewell = self.farewell?;
        Some(match self.only_readers_are_awaited() {
            true => farewell.until.min(farewell.until_if_unread),
            false => farewell.until,
        })
    }

    /// Whether nothing is left to wait for, or the time is up. `events` are the events of the turn that just ended.
    pub(super) fn is_farewell_over(&mut self, events: &Events) -> bool {
        let Some(mut farewell) = self.farewell else {
            return false;
        };
        let is_consumers = |token| {
            let connection = self.connections.get(token);
            connection.is_some_and(|connection| matches!(connection.role, Role::Consumer(_)))
        };
        let somebody_reads = events.ready().iter().any(|event| is_consumers(&event.token));
        let turn = TurnTime::default();
        if somebody_reads || !self.only_readers_are_awaited() {
            farewell.until_if_unread = after(&turn, PATIENCE_WITH_READERS);
            self.farewell = Some(farewell);
        }
        let now = turn.now().monotonic;
        let is_late = now >= farewell.until || now >= farewell.until_if_unread;
        is_late || !self.service.has_sessions()
    }

    fn only_readers_are_awaited(&self) -> bool {
        !self.service.has_running_sessions() && self.writers.is_empty()
    }

    /// Ends all sessions and closes all connections. Files still get the rest of their data, as far as they take it.
    pub(super) fn end(&mut self) {
        let turn = TurnTime::default();
        self.service.end_all_sessions(turn.now());
        self.carry_out(&turn);
        while !self.writers.is_empty() {
            let Ok(done) = self.files.wait(LAST_WRITE_TIMEOUT) else {
                let count = self.writers.len();
                crate::log::warning(format_args!(
                    "{count} trace files take no more data and are cut short"
                ));
                break;
            };
            self.file_progressed(done, &turn);
        }
        self.settle(&turn);
        while !self.ending.is_empty() {
            self.settle(&turn);
        }
    }
}

fn after(turn: &TurnTime, patience: Duration) -> u64 {
    turn.now().monotonic + patience.as_nanos() as u64
}
