//! The number of activations of each trigger within the last 24 hours, for `max_per_24_h`.
//!
//! The counts outlive sessions, because a limit holds for all sessions that wait for the trigger together. Memory is bounded. All activations within one
//! minute count as one burst, which is forgotten 24 hours after its last activation. If there are too many names, the one that was silent for longest
//! is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::limits;
use crate::ordered::OrderedMap;

const WINDOW: u64 = Duration::from_secs(24 * 3600).as_nanos() as u64;
const MINUTE: u64 = Duration::from_secs(60).as_nanos() as u64;

/// Activations by the name of the trigger. Times are boot time in nanoseconds, and never go back.
#[derive(Debug, Default)]
pub(crate) struct History {
    names: OrderedMap<Arc<str>, Activations>,
}

#[derive(Debug, Default)]
struct Activations {
    /// At most one for each minute of the window.
    bursts: VecDeque<Burst>,
    /// In all bursts.
    total: u64,
}

/// The activations within one minute of the clock.
#[derive(Debug)]
struct Burst {
    last: u64,
    count: u64,
}

impl Activations {
    fn forget_before(&mut self, oldest: u64) {
        while let Some(burst) = self.bursts.front().filter(|burst| burst.last < oldest) {
            self.total -= burst.count;
            self.bursts.pop_front();
        }
    }

    fn last(&self) -> u64 {
        self.bursts.back().map_or(0, |burst| burst.last)
    }
}

impl History {
    /// Activations of this trigger within the 24 hours up to `now`.
    pub(crate) fn count(&mut self, name: &str, now: u64) -> u64 {
        let Some(activations) = self.names.get_mut(name) else {
            return 0;
        };
        activations.forget_before(now.saturating_sub(WINDOW));
        activations.total
    }

    /// The trigger was activated.
    pub(crate) fn add(&mut self, name: &Arc<str>, now: u64) {
        if !self.names.contains_key(name) {
            self.make_room(now);
        }
        let activations = self.names.get_or_insert_with(name.clone(), Activations::default);
        activations.forget_before(now.saturating_sub(WINDOW));
        activations.total += 1;
        match activations.bursts.back_mut() {
            Some(burst) if burst.last / MINUTE == now / MINUTE => {
                burst.last = now;
                burst.count += 1;
            }
            _ => activations.bursts.push_back(Burst { last: now, count: 1 }),
        }
    }

    fn make_room(&mut self, now: u64) {
        if self.names.len() < limits::MAX_TRIGGERS_REMEMBERED {
            return;
        }
        let oldest = now.saturating_sub(WINDOW);
        self.names.retain(|_, activations| activations.last() >= oldest);
        if self.names.len() >= limits::MAX_TRIGGERS_REMEMBERED {
            let silent = self
                .names
                .iter()
                .min_by_key(|(_, activations)| activations.last());
            if let Some(name) = silent.map(|(name, _)| name.clone()) {
                self.names.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * MINUTE;

    #[test]
    fn an_activation_counts_for_24_hours_and_not_a_nanosecond_longer() {
        let mut history = History::default();
        let name: Arc<str> = "t".into();
        history.add(&name, 5);
        assert_eq!(history.count("t", 5 + 24 * HOUR), 1);
        assert_eq!(history.count("t", 6 + 24 * HOUR), 0);
        assert_eq!(history.count("another", 5), 0);
    }

    #[test]
    fn activations_that_come_at_least_a_minute_apart_are_counted_exactly() {
        let mut history = History::default();
        let name: Arc<str> = "t".into();
        let mut times: Vec<u64> = Vec::new();
        let mut now = 0;
        for step in 0..5000u64 {
            now += MINUTE + step * step * 7919 % (20 * MINUTE);
            let within = times.iter().filter(|at| now - **at <= 24 * HOUR).count();
            assert_eq!(history.count("t", now), within as u64, "at {now}");
            history.add(&name, now);
            times.push(now);
        }
    }

    #[test]
    fn a_flood_is_counted_in_full_and_takes_no_more_memory_than_one_activation_a_minute() {
        let mut history = History::default();
        let name: Arc<str> = "t".into();
        let every = MINUTE / 10;
        for step in 0..48 * 600 {
            history.add(&name, step * every);
        }
        let now = 48 * HOUR;
        let counted = history.count("t", now);
        // Either all activations of the oldest minute count, or none.
        assert!((24 * 600 - 10..=24 * 600 + 10).contains(&counted), "{counted}");
        assert!(history.names["t"].bursts.len() <= 24 * 60 + 1);
    }

    #[test]
    fn of_too_many_names_the_one_that_was_silent_for_longest_is_forgotten() {
        let mut history = History::default();
        let name = |number: usize| -> Arc<str> { format!("t{number}").into() };
        for number in 0..limits::MAX_TRIGGERS_REMEMBERED {
            history.add(&name(number), number as u64);
        }
        let now = limits::MAX_TRIGGERS_REMEMBERED as u64;
        history.add(&name(0), now);
        history.add(&"new".into(), now);
        assert_eq!(history.names.len(), limits::MAX_TRIGGERS_REMEMBERED);
        assert_eq!(history.count("t1", now), 0, "the longest silent");
        assert_eq!(history.count("t0", now), 2);
        assert_eq!(history.count("new", now), 1);
        // Names that are out of the window make room first.
        history.add(&"much later".into(), now + 25 * HOUR);
        assert_eq!(history.names.len(), 1);
    }
}
