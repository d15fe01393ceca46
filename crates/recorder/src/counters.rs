//! The outcomes of the requests to seal, for each session and reason.
//!
//! They are a part of the state file, so they go on counting after a restart. Their number is bounded: reasons are names of triggers in configs and
//! settings, or the few of the recorder's own, and beyond a limit the rest is counted as one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::{Reason, SessionName};
use crate::recorder::Outcome;

/// The most pairs of session and reason that are told apart.
const MOST: usize = 1000;
/// The pair for the rest.
const OTHERS: &str = "others";

/// The outcomes for one session and reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Files.
    pub sealed: u64,
    /// Files that lack the newest data, because they would have exceeded their room.
    pub cut: u64,
    /// Requests without a file, by the reason why.
    pub refused: BTreeMap<String, u64>,
}

/// All outcomes, by `SESSION/REASON`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counters(BTreeMap<String, Tally>);

impl Counters {
    /// Counts an outcome.
    pub(crate) fn count(&mut self, session: &SessionName, reason: &Reason, outcome: &Outcome) {
        let key = format!("{session}/{reason}");
        let is_known = self.0.contains_key(&key) || self.0.len() < MOST;
        let tally = self
            .0
            .entry(if is_known { key } else { OTHERS.to_owned() })
            .or_default();
        match outcome {
            Outcome::Sealed { written, .. } => {
                tally.sealed += 1;
                tally.cut += u64::from(written.is_cut);
            }
            Outcome::Refused(refusal) => *tally.refused.entry(refusal.word().to_owned()).or_default() += 1,
        }
    }

    /// Returns them by `SESSION/REASON`.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tally)> {
        self.0.iter().map(|(key, tally)| (key.as_str(), tally))
    }

    /// Returns the number of all requests.
    pub fn total(&self) -> u64 {
        let of = |tally: &Tally| tally.sealed + tally.refused.values().sum::<u64>();
        self.0.values().map(of).sum()
    }
}
