//! `priority_boost`: the service runs at a higher scheduling priority as long as a session asks for it.
//!
//! The highest request of all sessions counts. The driver sets the priority ([`Output::SetPriority`]) and reports a failure. The session that
//! asked then ends, because its trace would not be the one its config describes.

use super::Service;
use crate::boost::PriorityBoost;
use crate::clock::Now;
use crate::ids::SessionId;
use crate::output::Output;

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
            // It had no effect so far, because of a higher one. The session goes on without it.
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
