//! Events about other sessions: with `enable_concurrent_session_events` a trace names the other sessions that existed, with their starts and ends.
//!
//! [`Session::enter`] changes the state of a session and leaves an effect, by which the interested sessions learn of it. They learn of a new clone at
//! once. Each of them keeps the changes until its trace is read.

use std::sync::Arc;

use ferretto_proto::messages::concurrent_session_event;
use ferretto_proto::write;

use crate::ids::SessionId;
use crate::limits;
use crate::session::packets::{Author, service_header};
use crate::session::readout::Readout;
use crate::session::{Session, State};

/// Another session was found in a state, or came into it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Nanoseconds of boot time.
    at: u64,
    pub(crate) session: SessionId,
    state: State,
    uid: u32,
    data_sources: u32,
    name: Arc<str>,
}

/// The changes of other sessions that the trace has yet to contain.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherSessions {
    changes: Vec<Change>,
    /// Bytes of names in all: names may be long.
    name_bytes: usize,
}

impl OtherSessions {
    pub(crate) fn push(&mut self, change: Change) {
        let name_bytes = self.name_bytes + change.name.len();
        if self.changes.len() < limits::MAX_CONCURRENT_SESSION_EVENTS
            && name_bytes <= limits::MAX_CONCURRENT_SESSION_NAME_BYTES
        {
            self.name_bytes = name_bytes;
            self.changes.push(change);
        }
    }
}

impl Session {
    /// The state that it is in.
    pub(crate) fn change(&self) -> Change {
        Change {
            at: self.state_since,
            session: self.id,
            state: self.state,
            uid: self.uid,
            data_sources: self.instances.len() as u32,
            name: self.name.clone(),
        }
    }

    /// Whether it records changes of this other session. The trace of a session that has ended does not change any more.
    pub(crate) fn listens_to(&self, other: SessionId) -> bool {
        self.id != other && self.records_others() && self.state != State::Disabled && !self.is_clone()
    }

    /// Begins with the current state of each of these sessions.
    pub(crate) fn record_others<'s>(&mut self, others: impl Iterator<Item = &'s Session>) {
        if self.records_others() {
            others.for_each(|other| self.notes.other_sessions.push(other.change()));
        }
    }

    fn records_others(&self) -> bool {
        self.builtin()
            .enable_concurrent_session_events
            .unwrap_or_default()
    }
}

/// Writes the changes of other sessions since the last read-back, in order of time.
pub(crate) fn write_other_sessions(session: &mut Session, author: Author, out: &mut Readout) {
    let mut changes = std::mem::take(&mut session.notes.other_sessions).changes;
    changes.sort_by_key(|change| change.at);
    for change in changes {
        out.own_packet(|packet| {
            let mut packet = write::TracePacket::new(packet);
            packet.timestamp(change.at);
            service_header(&mut packet, author);
            packet.concurrent_session_event(|event| {
                event.state(state_in_trace(change.state));
                if !change.name.is_empty() {
                    event.session_name(change.name.as_bytes());
                }
                event
                    .session_id(change.session.0)
                    .consumer_uid(change.uid as i32)
                    .num_data_sources(change.data_sources);
            });
        });
    }
}

fn state_in_trace(state: State) -> concurrent_session_event::State {
    use concurrent_session_event::State as InTrace;
    match state {
        State::Configured => InTrace::STATE_CONFIGURED,
        State::Started => InTrace::STATE_STARTED,
        State::DisablingWaitingStopAcks => InTrace::STATE_DISABLING_WAITING_STOP_ACKS,
        State::Disabled => InTrace::STATE_DISABLED,
        State::ClonedReadOnly => InTrace::STATE_CLONED_READ_ONLY,
    }
}
