//! `priority_boost`: the service runs at a higher scheduling priority as long as a session asks for it.
//!
//! The highest request of all sessions counts. The driver sets the priority ([`Output::SetPriority`]) and reports a failure. The session that
//! asked then ends, because its trace would not be the one its config describes.

use ferretto_proto::messages::PriorityBoostConfig;
use ferretto_proto::messages::priority_boost_config::BoostPolicy;

use crate::clock::Now;
use crate::ids::SessionId;
use crate::limits;
use crate::output::Output;
use crate::service::Service;

/// A scheduling policy and priority; the order is by which outruns which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorityBoost {
    /// `SCHED_OTHER` with this much subtracted from a `nice` value of 0: 0 to 20.
    Other(u32),
    /// `SCHED_FIFO` at this priority: 1 to 99.
    Fifo(u32),
}

impl PriorityBoost {
    /// What a config asks for.
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

impl Service {
    /// Has the driver run the service at the highest priority that any session asks for, if that is another than
    /// before. `on_behalf_of` is the session that has just begun, if that is why.
    pub(crate) fn adjust_boost(&mut self, on_behalf_of: Option<SessionId>) {
        let highest = self.sessions.live().filter_map(|session| session.boost).max();
        if highest != self.boost {
            self.boost = highest;
            self.common.outbox.push(Output::SetPriority {
                boost: highest,
                on_behalf_of,
            });
        }
    }

    /// The driver could not set the priority ([`SetPriority`](Output::SetPriority)) for this reason. It is unchanged.
    pub fn priority_not_set(
        &mut self,
        boost: Option<PriorityBoost>,
        on_behalf_of: Option<SessionId>,
        error: &str,
        now: &Now,
    ) {
        let line = format!("cannot change the priority of the service: {error}");
        self.common.outbox.warn(line.clone());
        match on_behalf_of.and_then(|session| self.sessions.get_mut(session)) {
            Some(session) => {
                session.boost = None;
                let id = session.id;
                self.abort_session(id, line, now);
            }
            // It was in the shadow of a higher one so far. The session goes on without.
            None => {
                let others = self.sessions.iter_mut();
                others
                    .filter(|session| session.boost.is_some() && session.boost == boost)
                    .for_each(|session| session.boost = None);
            }
        }
        self.adjust_boost(None);
    }
}
