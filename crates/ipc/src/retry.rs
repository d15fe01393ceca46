//! The waits between attempts to connect to a service that is not there, or goes away. For producers and relays.

use std::time::Duration;

/// The first wait before connecting again. Each further one is twice as long.
pub const FIRST: Duration = Duration::from_millis(100);
/// The longest wait. A person who starts a service after its clients does not want to wait long; an attempt costs some ten microseconds.
/// Upstream's daemons wait up to 30 s.
pub const LAST: Duration = Duration::from_secs(5);
/// A connection that ends sooner than this does not reset the waits: the service accepts and closes at once. After a longer one, the client
/// connects again soon, because the service may have crashed and come back.
pub const GOOD_CONNECTION: Duration = Duration::from_millis(250);

/// The attempts since the last good connection.
#[derive(Debug, Default)]
pub struct Retry {
    attempts: u32,
}

impl Retry {
    /// An attempt failed, or a connection ended. Returns the wait before the next one.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.attempts.min(16)).min(LAST);
        self.attempts += 1;
        pause
    }

    /// Notes how long a connection lasted that has ended.
    pub fn lasted(&mut self, duration: Duration) {
        if duration >= GOOD_CONNECTION {
            self.attempts = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_twice_as_long_as_the_last_until_a_connection_has_lasted() {
        let mut retry = Retry::default();
        let mut expected = FIRST;
        for _ in 0..100 {
            assert_eq!(retry.pause(), expected);
            expected = (expected * 2).min(LAST);
        }
        retry.lasted(GOOD_CONNECTION / 2);
        assert_eq!(retry.pause(), LAST);
        retry.lasted(GOOD_CONNECTION);
        assert_eq!(retry.pause(), FIRST);
    }
}
