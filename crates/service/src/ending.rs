//! The end of the service: its sessions are flushed and stopped, and their consumers can still read them.
//!
//! A driver that is told to end calls [`Service::begin_ending`] first. It goes on serving as before until nobody reads any more or its time
//! is up, and then calls [`Service::end_all_sessions`].

use crate::clock::Now;
use crate::ids::SessionId;
use crate::service::Service;
use crate::session::{FlushPurpose, LifecycleEvent, Session, State};

impl Service {
    /// The service is going to end. No session begins any more, and running sessions are flushed and stopped. Consumers are told, and can read
    /// their buffers until [`Service::end_all_sessions`]. The traces of sessions that nobody had stopped tell so.
    pub fn begin_ending(&mut self, now: &Now) {
        self.is_ending = true;
        let ends_already = |session: &Session| {
            let mut flushes = session.pending_flushes.values();
            flushes.any(|flush| flush.purpose == FlushPurpose::Final)
        };
        let sessions = self.sessions.values().filter(|session| !ends_already(session));
        let sessions: Vec<(SessionId, State)> = sessions.map(|session| (session.id, session.state)).collect();
        for (id, state) in sessions {
            match state {
                State::Configured => self.disable(id, now),
                State::Started => {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.note(LifecycleEvent::ServiceEnded, now);
                    }
                }
                _ => {}
            }
            // Those that do not run and that nobody can read are freed.
            self.flush_and_disable(id, now);
        }
    }

    /// Whether any session still records, or waits for its producers to stop.
    pub fn has_running_sessions(&self) -> bool {
        let mut sessions = self.sessions.values();
        sessions.any(|session| matches!(session.state, State::Started | State::DisablingWaitingStopAcks))
    }

    /// Whether there are sessions: somebody may still read them, or their files are not complete.
    pub fn has_sessions(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// The service ends now, and every session with it, detached ones as well. Their files are still completed. Pending flushes get no
    /// answer: they did not fail, and the end of the connection tells the consumer what happened.
    pub fn end_all_sessions(&mut self, now: &Now) {
        self.is_ending = true;
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.free_session(session, now);
        }
    }

    /// # Errors
    /// If no session may begin because the service ends.
    pub(crate) fn check_not_ending(&self) -> Result<(), String> {
        if self.is_ending {
            return Err("the tracing service is ending; try again when it is back".into());
        }
        Ok(())
    }
}
