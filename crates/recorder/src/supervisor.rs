//! When a session that has ended is started again.
//!
//! [`Recorder`](crate::Recorder) has one for each session. The pause doubles from attempt to attempt, up to a bound, and is short again after the session
//! has run for a while: a service that was restarted gets its sessions back at once, and one that refuses a config is not asked all the time.

use std::time::Duration;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A session that ran this long was in order.
const STEADY: Duration = Duration::from_secs(10);

/// The life of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervisor {
    state: State,
    pause: Duration,
    /// How often the session has ended.
    ends: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be started at this time.
    Waiting { until: Duration },
    /// Since this time.
    Running { since: Duration },
}

impl Supervisor {
    pub(crate) fn new(now: Duration) -> Supervisor {
        Supervisor {
            state: State::Waiting { until: now },
            pause: SHORTEST_PAUSE,
            ends: 0,
        }
    }

    /// Whether it is time to start. If so, the session counts as running.
    pub(crate) fn start(&mut self, now: Duration) -> bool {
        match self.state {
            State::Waiting { until } if until <= now => {
                self.state = State::Running { since: now };
                true
            }
            _ => false,
        }
    }

    /// Notes that the session has ended, or could not be started.
    pub(crate) fn ended(&mut self, now: Duration) {
        let State::Running { since } = self.state else {
            return;
        };
        self.ends += 1;
        if now.saturating_sub(since) >= STEADY {
            self.pause = SHORTEST_PAUSE;
        }
        self.state = State::Waiting {
            until: now + self.pause,
        };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Whether the session runs, as far as known.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Returns how often the session has ended.
    pub fn ends(&self) -> u64 {
        self.ends
    }

    /// Returns the time of the next start.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.state {
            State::Waiting { until } => Some(until),
            State::Running { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_are_short_again_after_a_steady_run() {
        let mut now = Duration::from_secs(5);
        let mut supervisor = Supervisor::new(now);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert!(supervisor.start(now) && !supervisor.start(now));
            supervisor.ended(now);
            let until = supervisor.deadline().unwrap();
            assert!(!supervisor.start(until - Duration::from_nanos(1)));
            pauses.push((until - now).as_millis());
            now = until;
        }
        assert_eq!(
            pauses,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]
        );
        assert!(supervisor.start(now));
        now += STEADY;
        supervisor.ended(now);
        assert_eq!(supervisor.deadline(), Some(now + SHORTEST_PAUSE));
        assert_eq!(supervisor.ends(), 11);
    }
}
