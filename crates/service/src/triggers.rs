//! Triggers: names that producers activate, and that start, stop or snapshot the sessions whose configs name them.
//!
//! [`Triggers`] is the session's part: the triggers of its config, and the activations. Each producer has a budget of activations.

mod budget;
mod config;
mod history;
mod received;

use std::sync::Arc;

use crate::split_mix;
use crate::work_budget::WorkBudget;

pub(crate) use budget::{Granted, TriggerBudget};
pub(crate) use config::{Mode, TriggerConfig};
pub(crate) use history::History;
pub(crate) use received::{Hit, Kept, Postponed, Triggers};

/// Random numbers from [0, 1) made of one of 64 bits, so that all randomness of an activation is one value among its
/// inputs.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn next(&mut self) -> f64 {
        // As many bits as a double holds exactly.
        (split_mix::next(&mut self.0) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Triggers that a producer activates at once.
pub(crate) struct Activation {
    pub(crate) sender: String,
    /// The part of its name that traces hold.
    pub(crate) sender_in_trace: Arc<str>,
    pub(crate) uid: u32,
    pub(crate) draws: Draws,
    pub(crate) budget: WorkBudget,
}

/// The first bytes of a text, at most `max`.
pub(crate) fn beginning(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_spread_evenly_over_the_interval() {
        let mut tenths = [0; 10];
        for random in 0..1000 {
            let mut draws = Draws(random);
            for _ in 0..10 {
                let draw = draws.next();
                assert!((0.0..1.0).contains(&draw));
                tenths[(draw * 10.0) as usize] += 1;
            }
        }
        assert!(
            tenths.iter().all(|count| (900..1100).contains(count)),
            "{tenths:?}"
        );
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(beginning("caf\u{e9}", 4), "caf");
        assert_eq!(beginning("caf\u{e9}", 5), "caf\u{e9}");
        assert_eq!(beginning("", 5), "");
    }
}
