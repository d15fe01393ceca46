//! Recognises the states of the machine in which sessions are sealed.
//!
//! The command line looks at the machine a few times a second and passes what it saw. A condition is reported when it becomes true, and again only
//! after it has been false: a machine that stays loaded asks once.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use crate::settings::{Condition, Kind};

/// The state of the machine at a moment. A part that was not looked at, or is not known, is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// The stalled time since boot in microseconds, by resource and line.
    pub stalled: BTreeMap<(&'static str, &'static str), u64>,
    /// The share of the memory that is available.
    pub available_memory: Option<f64>,
    /// The load for each processor.
    pub load: Option<f64>,
    /// When files were last touched, on any clock; only whether it changes counts.
    pub touched: BTreeMap<PathBuf, i128>,
}

/// The conditions and their states.
#[derive(Debug, Default)]
pub struct Conditions {
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    condition: Condition,
    was_true: bool,
    /// For pressure: the stalled time at moments of the window, the oldest first, and one before it.
    samples: VecDeque<(Duration, u64)>,
    /// For a watchdog: its last touch, and when that was seen.
    touch: Option<(Option<i128>, Duration)>,
}

impl Conditions {
    /// Watches for those of these that are states of the machine.
    pub fn new(conditions: Vec<Condition>) -> Conditions {
        let mut watched = Conditions::default();
        watched.replace(conditions);
        watched
    }

    /// Watches for those of these instead that are states of the machine. Those that were watched before keep their states: one that is true is not reported again.
    pub fn replace(&mut self, conditions: Vec<Condition>) {
        let mut before = std::mem::take(&mut self.watched);
        let states = conditions
            .into_iter()
            .filter(|condition| !condition.kind.is_of_journal());
        let watched = states.map(|condition| {
            let same = before.iter().position(|watched| watched.condition == condition);
            match same {
                Some(index) => before.swap_remove(index),
                None => Watched::new(condition),
            }
        });
        self.watched = watched.collect();
    }

    /// Returns the conditions that are watched.
    pub fn all(&self) -> impl Iterator<Item = &Condition> {
        self.watched.iter().map(|watched| &watched.condition)
    }

    /// Returns the conditions that have become true.
    pub fn observe(&mut self, now: Duration, observed: &Observed) -> Vec<Condition> {
        let mut become_true = Vec::new();
        for watched in &mut self.watched {
            let is_true = watched.is_true(now, observed);
            if is_true && !watched.was_true {
                become_true.push(watched.condition.clone());
            }
            watched.was_true = is_true;
        }
        become_true
    }
}

impl Watched {
    fn new(condition: Condition) -> Watched {
        Watched {
            condition,
            was_true: false,
            samples: VecDeque::new(),
            touch: None,
        }
    }

    fn is_true(&mut self, now: Duration, observed: &Observed) -> bool {
        match &self.condition.kind {
            Kind::Pressure {
                resource,
                line,
                above,
                window,
            } => {
                let Some(total) = observed.stalled.get(&(*resource, *line)) else {
                    return false;
                };
                let (above, window) = (*above, *window);
                self.samples.push_back((now, *total));
                // The oldest sample that stays is at the beginning of the window or right before it.
                while self.samples.get(1).is_some_and(|(at, _)| *at + window <= now) {
                    self.samples.pop_front();
                }
                let Some((since, before)) = self.samples.front() else {
                    return false;
                };
                let elapsed = now.saturating_sub(*since);
                elapsed >= window && total.saturating_sub(*before) as f64 > above * elapsed.as_micros() as f64
            }
            Kind::MemoryBelow(share) => observed
                .available_memory
                .is_some_and(|available| available < *share),
            Kind::LoadAbove(most) => observed.load.is_some_and(|load| load > *most),
            Kind::Watchdog { file, within } => {
                let touched = observed.touched.get(file).copied();
                match self.touch {
                    // Before its first touch nobody has promised anything.
                    None if touched.is_none() => false,
                    Some((before, since)) if touched.is_none() || before == touched => {
                        now.saturating_sub(since) >= *within
                    }
                    _ => {
                        self.touch = Some((touched, now));
                        false
                    }
                }
            }
            // `Lines` listens for these.
            Kind::Line { .. } | Kind::UnitFailed(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::name::Reason;

    fn conditions(kind: Kind) -> Conditions {
        Conditions::new(vec![Condition {
            name: Reason::new("x"),
            sessions: Vec::new(),
            kind,
        }])
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_state_is_reported_when_it_begins() {
        let mut low = conditions(Kind::MemoryBelow(0.1));
        let mut high = conditions(Kind::LoadAbove(2.0));
        let seen = [
            None,
            Some(0.5),
            Some(0.05),
            Some(0.01),
            Some(0.1),
            Some(0.05),
            None,
            Some(0.05),
        ];
        let reported = seen.map(|available_memory| {
            let observed = Observed {
                available_memory,
                load: available_memory.map(|share| 2.1 - share),
                ..Observed::default()
            };
            let one = low.observe(ms(0), &observed).len();
            assert_eq!(one, high.observe(ms(0), &observed).len(), "{observed:?}");
            one
        });
        assert_eq!(reported, [0, 0, 1, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn conditions_that_stay_keep_their_states_when_others_change() {
        let condition = |name, share| Condition {
            name: Reason::new(name),
            sessions: Vec::new(),
            kind: Kind::MemoryBelow(share),
        };
        let low = Observed {
            available_memory: Some(0.05),
            ..Observed::default()
        };
        let mut conditions = Conditions::new(vec![condition("a", 0.1), condition("b", 0.1)]);
        let reported = |conditions: &mut Conditions| -> Vec<String> {
            let reported = conditions.observe(ms(0), &low);
            reported
                .iter()
                .map(|condition| condition.name.to_string())
                .collect()
        };
        assert_eq!(reported(&mut conditions), ["a", "b"]);
        conditions.replace(vec![
            condition("b", 0.1),
            condition("a", 0.2),
            condition("c", 0.1),
        ]);
        assert_eq!(reported(&mut conditions), ["a", "c"]);
        assert_eq!(conditions.all().count(), 3);
    }

    #[test]
    fn a_watchdog_counts_from_the_first_touch_and_reports_each_miss_once() {
        let file = PathBuf::from("/run/alive");
        let mut conditions = conditions(Kind::Watchdog {
            file: file.clone(),
            within: ms(1000),
        });
        let mut at = |time, touched: Option<i128>| {
            let touched = touched
                .map(|touched| (file.clone(), touched))
                .into_iter()
                .collect();
            let observed = Observed {
                touched,
                ..Observed::default()
            };
            conditions.observe(ms(time), &observed).len()
        };
        assert_eq!(at(0, None) + at(5000, None), 0, "nobody has promised anything");
        assert_eq!(at(6000, Some(77)), 0);
        assert_eq!(at(6999, Some(77)), 0);
        assert_eq!(at(7000, Some(77)), 1);
        assert_eq!(at(9000, Some(77)), 0, "it has been reported");
        // The clock of the file may go back.
        assert_eq!(at(9500, Some(3)), 0);
        assert_eq!(at(10_400, None), 0);
        assert_eq!(at(10_500, None), 1, "a file that is gone is not touched");
    }

    proptest! {
        #[test]
        fn pressure_is_the_share_of_the_window(
            steps in prop::collection::vec((10..400u64, 0..=100u64), 1..60),
            above in 0..100u64,
            window in 100..2000u64,
        ) {
            let mut conditions = conditions(Kind::Pressure {
                resource: "io",
                line: "some",
                above: above as f64 / 100.0,
                window: ms(window),
            });
            let (mut now, mut total, mut samples, mut was) = (0, 0, Vec::new(), false);
            for (step, share) in steps {
                now += step;
                total += step * 10 * share;
                samples.push((now, total));
                let observed = Observed {
                    stalled: [(("io", "some"), total)].into(),
                    ..Observed::default()
                };
                let reported = !conditions.observe(ms(now), &observed).is_empty();
                // The model: from the last sample that is a window old.
                let since = samples.iter().rev().find(|(at, _)| at + window <= now);
                let is = since.is_some_and(|(at, before)| {
                    (total - before) as f64 > above as f64 / 100.0 * ((now - at) * 1000) as f64
                });
                prop_assert_eq!(reported, is && !was);
                was = is;
            }
        }
    }
}
