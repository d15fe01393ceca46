//! The end of the service: it flushes and stops its sessions, and their consumers can still read them.
//!
//! A driver that is told to end calls [`Service::begin_ending`] first. It continues to serve until no consumer reads any more or its time is up, and
//! then calls [`Service::end_all_sessions`].

use crate::clock::Now;
use crate::service::Service;
use crate::session::{LifecycleEvent, State, Stop};

impl Service {
    /// The service is going to end. No session begins any more, and running sessions are flushed and stopped. Consumers are told, and can read their
    /// buffers until [`Service::end_all_sessions`]. The traces of sessions that were still recording contain the end of the service.
    pub fn begin_ending(&mut self, now: &Now) {
        self.common.is_ending = true;
        for id in self.sessions.ids() {
            self.on_session(id, now, |session, common| {
                if session.flushes.has_final() {
                    return;
                }
                match session.state {
                    State::Configured => session.stop(Stop::Graceful, common, now),
                    State::Started => session.notes.note(LifecycleEvent::ServiceEnded, now),
                    _ => {}
                }
                // Sessions that do not run and have no consumer are freed.
                session.flush_and_stop(common, now);
            });
        }
    }

    /// Whether any session still records, or waits for its producers to stop.
    pub fn has_running_sessions(&self) -> bool {
        self.sessions.iter().any(|session| session.state.is_running())
    }

    /// Whether there are sessions: a consumer may still read them, or their files are not complete.
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The service ends now, and every session with it, detached ones as well. Their files are still completed. Pending flushes get no answer: they
    /// did not fail, and the consumer sees the end of the connection.
    pub fn end_all_sessions(&mut self, now: &Now) {
        self.common.is_ending = true;
        for id in self.sessions.ids() {
            self.on_session(id, now, |session, common| session.free(common, now));
        }
    }

    /// # Errors
    /// If no session may begin because the service ends.
    pub(crate) fn check_not_ending(&self) -> Result<(), String> {
        if self.common.is_ending {
            return Err("the tracing service is ending; try again when it is back".into());
        }
        Ok(())
    }
}
