//! The end of the daemon: it stops all sessions, lets their consumers read them, and completes files.
//!
//! The shell calls this when a signal comes. The limits below add up to less than the stop timeout of the unit in `contrib/systemd`.

use std::time::Duration;

use ferretto_host::Awaited;
use ferretto_ipc::reactor::{Events, monotonic_now};

use super::Shell;

/// The daemon ends after this long at the latest, apart from files: producers flush and stop in this time, and consumers read.
const PATIENCE: Duration = Duration::from_secs(15);
/// When all sessions have stopped, the daemon is gone once no consumer has read for this long.
const PATIENCE_WITH_READERS: Duration = Duration::from_secs(10);
/// How long the daemon then waits for a file that takes no data.
pub(super) const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a daemon still serves after it was told to end, in times of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    /// The end of the wait for all remaining work.
    until: u64,
    /// The time since which only consumers are waited for, and none of them reads.
    unread_since: Option<u64>,
}

impl Farewell {
    fn begin(now: u64) -> Farewell {
        Farewell {
            until: now + PATIENCE.as_nanos() as u64,
            unread_since: None,
        }
    }

    /// When it is over even if something is left to do.
    fn deadline(&self) -> u64 {
        match self.unread_since {
            Some(since) => self.until.min(since + PATIENCE_WITH_READERS.as_nanos() as u64),
            None => self.until,
        }
    }

    /// Producers or files are still waited for. However long that takes, consumers then have their time to begin to read.
    fn others_are_awaited(&mut self) {
        self.unread_since = None;
    }

    fn only_readers_are_awaited(&mut self, now: u64) {
        self.unread_since.get_or_insert(now);
    }

    fn somebody_reads(&mut self, now: u64) {
        self.unread_since = self.unread_since.map(|_| now);
    }
}

impl Shell {
    /// Closes the listeners and begins to stop all sessions. New clients find no service, or its successor.
    pub(super) fn begin_farewell(&mut self) {
        self.listeners.close(self.host.reactor());
        let has_sessions = self.host.begin_ending();
        self.farewell = Some(Farewell::begin(monotonic_now()));
        if has_sessions {
            crate::log::info(format_args!(
                "traced is ending: sessions are stopped, and their consumers have up to {} s to read them; a second signal ends it at once",
                PATIENCE.as_secs()
            ));
        }
    }

    /// The next time at which [`Shell::is_farewell_over`] may change its answer by itself.
    pub(super) fn farewell_deadline(&self) -> Option<u64> {
        self.farewell.map(|farewell| farewell.deadline())
    }

    /// Whether nothing is left to wait for, or the time is up. `events` are the events of the turn that just ended.
    pub(super) fn is_farewell_over(&mut self, events: &Events) -> bool {
        let Some(farewell) = &mut self.farewell else {
            return false;
        };
        let now = monotonic_now();
        match self.host.awaited() {
            Awaited::Nobody => return true,
            Awaited::Readers => farewell.only_readers_are_awaited(now),
            Awaited::Others => farewell.others_are_awaited(),
        }
        if events
            .ready()
            .iter()
            .any(|event| self.host.is_consumer(event.token))
        {
            farewell.somebody_reads(now);
        }
        now >= farewell.deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const READING: u64 = PATIENCE_WITH_READERS.as_nanos() as u64;

    #[test]
    fn readers_have_their_time_however_late_producers_are() {
        let mut farewell = Farewell::begin(SECOND);
        farewell.others_are_awaited();
        assert_eq!(farewell.deadline(), SECOND + PATIENCE.as_nanos() as u64);
        farewell.only_readers_are_awaited(4 * SECOND);
        assert_eq!(farewell.deadline(), 4 * SECOND + READING);
        // A turn in which no consumer read.
        farewell.only_readers_are_awaited(5 * SECOND);
        assert_eq!(farewell.deadline(), 4 * SECOND + READING);
        farewell.somebody_reads(6 * SECOND);
        assert_eq!(farewell.deadline(), 6 * SECOND + READING);
        farewell.somebody_reads(15 * SECOND);
        assert_eq!(farewell.deadline(), SECOND + PATIENCE.as_nanos() as u64);
        farewell.others_are_awaited();
        farewell.somebody_reads(15 * SECOND);
        assert_eq!(farewell.unread_since, None);
    }
}
