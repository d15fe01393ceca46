//! Limits the triggers that a producer may send: a burst, and then a number per second.

use crate::clock::Now;
use crate::limits;

const NANOSECONDS_PER_TRIGGER: u64 = 1_000_000_000 / limits::TRIGGERS_PER_SECOND;

/// The remaining budget of one producer.
#[derive(Debug)]
pub(crate) struct TriggerBudget {
    left: u64,
    /// The time on the monotonic clock up to which its earnings are included.
    paid_until: u64,
    /// Whether it sent more than it may, and has not recovered since.
    exceeded: bool,
}

/// The outcome for triggers that a producer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Granted {
    /// All may pass.
    All,
    /// The first ones only; the log already names this producer.
    Some(usize),
    /// The first ones only, and the log has to name the producer.
    SomeForTheFirstTime(usize),
}

impl Default for TriggerBudget {
    fn default() -> TriggerBudget {
        TriggerBudget {
            left: limits::TRIGGER_BURST,
            paid_until: 0,
            exceeded: false,
        }
    }
}

impl TriggerBudget {
    /// The producer sends this many.
    pub(crate) fn take(&mut self, count: usize, now: &Now) -> Granted {
        let earned = now.monotonic.saturating_sub(self.paid_until) / NANOSECONDS_PER_TRIGGER;
        self.left += earned;
        self.paid_until += earned * NANOSECONDS_PER_TRIGGER;
        if self.left >= limits::TRIGGER_BURST {
            self.left = limits::TRIGGER_BURST;
            self.paid_until = now.monotonic;
            self.exceeded = false;
        }
        let wanted = count as u64;
        if wanted <= self.left {
            self.left -= wanted;
            return Granted::All;
        }
        let granted = std::mem::take(&mut self.left) as usize;
        if std::mem::replace(&mut self.exceeded, true) {
            Granted::Some(granted)
        } else {
            Granted::SomeForTheFirstTime(granted)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Now {
        Now {
            monotonic: ns,
            ..Now::default()
        }
    }

    const BURST: usize = limits::TRIGGER_BURST as usize;

    #[test]
    fn a_burst_passes_and_the_rest_does_not() {
        let mut budget = TriggerBudget::default();
        assert_eq!(budget.take(BURST - 1, &at(1)), Granted::All);
        assert_eq!(budget.take(3, &at(1)), Granted::SomeForTheFirstTime(1));
        assert_eq!(budget.take(3, &at(1)), Granted::Some(0));
        assert_eq!(budget.take(0, &at(1)), Granted::All);
    }

    #[test]
    fn it_recovers_at_its_rate_and_is_reported_again_once_it_has() {
        let mut budget = TriggerBudget::default();
        let start = 77;
        assert_eq!(
            budget.take(BURST + 1, &at(start)),
            Granted::SomeForTheFirstTime(BURST)
        );
        let mut passed = 0;
        let second = 1_000_000_000;
        for step in 1..=1000u64 {
            match budget.take(2, &at(start + step * second / 1000)) {
                Granted::All => passed += 2,
                Granted::Some(granted) => passed += granted as u64,
                Granted::SomeForTheFirstTime(_) => panic!("told of twice"),
            }
        }
        assert_eq!(passed, limits::TRIGGERS_PER_SECOND);
        let recovered = start + second + limits::TRIGGER_BURST * NANOSECONDS_PER_TRIGGER;
        assert_eq!(
            budget.take(BURST + 1, &at(recovered)),
            Granted::SomeForTheFirstTime(BURST)
        );
    }
}
