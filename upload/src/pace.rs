//! When to go on: after so many bytes, and after a failure.
//!
//! [`uploader`](crate::uploader) asks before it sends something, and before it tries again.

use std::time::Duration;

use tokio::time::Instant;

/// The first and the longest pause after a failure.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// A bound on the bytes in a second, in the long run. One piece may be larger.
#[derive(Debug)]
pub(crate) struct Pace {
    most: Option<u64>,
    /// The time at which the next piece may be sent.
    free_at: Instant,
}

impl Pace {
    pub(crate) fn new(most: Option<u64>) -> Pace {
        Pace {
            most,
            free_at: Instant::now(),
        }
    }

    /// Waits until `bytes` may be sent.
    pub(crate) async fn admit(&mut self, bytes: u64) {
        let Some(most) = self.most else { return };
        tokio::time::sleep_until(self.free_at).await;
        let cost = Duration::from_secs_f64(bytes as f64 / most.max(1) as f64);
        self.free_at = self.free_at.max(Instant::now()) + cost;
    }
}

/// The pauses after failures, each twice as long as the one before. Each is shortened by chance, so that the machines of a fleet do not come back at
/// the same moment.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    failures: u32,
}

impl BackOff {
    /// Returns the pause after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        whole.mul_f64(rand::random_range(0.5..=1.0))
    }

    /// Begins anew, after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_begin_anew_after_a_success() {
        let mut back_off = BackOff::default();
        for _ in 0..2 {
            for failures in 0..100 {
                let whole = FIRST.saturating_mul(1 << failures.min(20)).min(LONGEST);
                let pause = back_off.next();
                assert!(whole / 2 <= pause && pause <= whole, "{failures}: {pause:?}");
            }
            back_off.reset();
        }
    }

    #[test]
    fn no_more_bytes_go_than_are_allowed() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut pace = Pace::new(Some(100));
            let began = Instant::now();
            for _ in 0..10 {
                pace.admit(50).await;
            }
            // The last 50 are on their way.
            assert_eq!(began.elapsed().as_millis(), 4500);
            // Time in which nothing was sent allows no burst.
            tokio::time::sleep(Duration::from_secs(100)).await;
            let began = Instant::now();
            for _ in 0..3 {
                pace.admit(50).await;
            }
            assert_eq!(began.elapsed().as_millis(), 1000);
        });
    }
}
