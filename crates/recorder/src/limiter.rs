//! How often something may happen: at once a few times, in the long run once in a period.
//!
//! [`Recorder`](crate::Recorder) has one for each session and reason, so that a storm of triggers costs a bounded number of files, and one reason does
//! not use up the share of another.

use std::time::Duration;

/// A bound on how often something happens.
#[derive(Debug, Clone)]
pub(crate) struct Limiter {
    burst: u32,
    period: Duration,
    /// The requests that may still come now.
    left: u32,
    /// Up to when the passing of time has been turned into `left`.
    counted_to: Duration,
}

impl Limiter {
    /// Admits `burst` at once, and one more in each `period` after that.
    pub(crate) fn new(burst: u32, period: Duration, now: Duration) -> Limiter {
        Limiter {
            burst,
            period,
            left: burst,
            counted_to: now,
        }
    }

    /// Whether it may happen now; if so, that counts.
    pub(crate) fn admit(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.counted_to).as_nanos();
        let period = self.period.as_nanos().max(1);
        let periods = elapsed / period;
        self.left = self
            .left
            .saturating_add(u32::try_from(periods).unwrap_or(u32::MAX))
            .min(self.burst);
        let rest = Duration::from_nanos(u64::try_from(elapsed % period).unwrap_or_default());
        self.counted_to = self.counted_to.max(now.saturating_sub(rest));
        match self.left {
            0 => false,
            left => {
                self.left = left - 1;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_window_has_more_than_the_burst_and_one_in_each_period(
            burst in 1..5u32,
            period in 1..50u64,
            steps in prop::collection::vec(0..30u64, 1..200),
        ) {
            let ms = Duration::from_millis;
            let mut limiter = Limiter::new(burst, ms(period), ms(7));
            let (mut now, mut admitted) = (7, Vec::new());
            for step in steps {
                now += step;
                if limiter.admit(ms(now)) {
                    admitted.push(now);
                } else {
                    // It is not stricter than it says, either: the last `burst` came within their time.
                    let recent = admitted.iter().filter(|at| now - **at <= u64::from(burst) * period);
                    prop_assert!(recent.count() >= burst as usize);
                }
            }
            for (first, from) in admitted.iter().enumerate() {
                for (last, to) in admitted.iter().enumerate().skip(first) {
                    let most = u64::from(burst) + (to - from) / period + 1;
                    prop_assert!((last - first + 1) as u64 <= most);
                }
            }
        }
    }
}
