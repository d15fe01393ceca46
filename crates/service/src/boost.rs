//! `priority_boost`: the scheduling priorities that a config can ask for.

use ferretto_proto::messages::PriorityBoostConfig;
use ferretto_proto::messages::priority_boost_config::BoostPolicy;

use crate::limits;

/// A scheduling policy and priority; the order is by which outruns which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorityBoost {
    /// `SCHED_OTHER` with this much subtracted from a `nice` value of 0: 0 to 20.
    Other(u32),
    /// `SCHED_FIFO` at this priority: 1 to 99.
    Fifo(u32),
}

impl PriorityBoost {
    /// Returns the boost that a config asks for.
    ///
    /// # Errors
    /// If there is no such policy or priority.
    pub fn requested(config: &PriorityBoostConfig) -> Result<PriorityBoost, String> {
        let priority = config.priority.unwrap_or_default();
        match config.policy {
            Some(BoostPolicy::POLICY_SCHED_OTHER) if priority <= limits::MAX_BOOST_OTHER => {
                Ok(PriorityBoost::Other(priority))
            }
            Some(BoostPolicy::POLICY_SCHED_OTHER) => Err(format!(
                "priority_boost: priority {priority} is out of range for POLICY_SCHED_OTHER: use 0 to {}",
                limits::MAX_BOOST_OTHER
            )),
            Some(BoostPolicy::POLICY_SCHED_FIFO) if (1..=limits::MAX_BOOST_FIFO).contains(&priority) => {
                Ok(PriorityBoost::Fifo(priority))
            }
            Some(BoostPolicy::POLICY_SCHED_FIFO) => Err(format!(
                "priority_boost: priority {priority} is out of range for POLICY_SCHED_FIFO: use 1 to {}",
                limits::MAX_BOOST_FIFO
            )),
            None | Some(BoostPolicy::POLICY_UNSPECIFIED) => {
                Err("priority_boost: set policy to POLICY_SCHED_OTHER or POLICY_SCHED_FIFO".into())
            }
        }
    }
}
