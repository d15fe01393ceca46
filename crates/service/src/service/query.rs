//! Questions of consumers: the state of the service, the statistics of a session, the service's capabilities.

use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceStats, TracingServiceCapabilities, TracingServiceState,
    observable_events, tracing_service_state,
};
use ferretto_wire::Writer;

use crate::ids::{ConsumerId, ProducerId, SessionId};
use crate::limits;
use crate::machines::Machine;
use crate::producers::{Producer, Registration, RegistrationId};
use crate::service::Service;
use crate::session::{Session, State};
use crate::trace_buffer::TraceBuffer;

/// How much of the service's state is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateScope {
    /// Producers, data sources and sessions.
    Everything,
    /// Sessions only.
    Sessions,
}

/// A question about the service's state, and how far its answer has come. The answer can be long, and the consumer may read it slowly, so it is put
/// together as it is read.
#[derive(Clone, Debug)]
pub struct StateQuery {
    scope: StateScope,
    next: NextPart,
}

impl StateQuery {
    /// A question whose answer has not begun.
    pub fn new(scope: StateScope) -> StateQuery {
        StateQuery {
            scope,
            next: NextPart::Service,
        }
    }
}

/// The part of the state that is next: the one behind these.
#[derive(Clone, Debug)]
enum NextPart {
    Service,
    Producer(ProducerId),
    /// The name and the number of its registration.
    DataSource(String, RegistrationId),
    Session(SessionId),
}

impl Service {
    /// Whether there is such a session: it may have ended, but its buffers were not freed.
    pub fn has_session(&self, session: SessionId) -> bool {
        self.sessions.contains(session)
    }

    /// The state of the service in parts, as they are now; see [`next_state`](Self::next_state).
    pub fn query_state(&self, consumer: ConsumerId, scope: StateScope, max: usize) -> Vec<Vec<u8>> {
        let mut query = StateQuery::new(scope);
        std::iter::from_fn(|| self.next_state(consumer, &mut query, max)).collect()
    }

    /// Returns the next part of the service's state, of at most `max` bytes; `None` after the last one. Each is an encoded `TracingServiceState`, and
    /// so is any row of them; all of them are the whole. Producers come in the order of their ids, data sources in that of their names and
    /// registrations. Descriptors are as their producers sent them, except that one which does not fit is cut down to id and name. Other entries that
    /// do not fit are left out: only names of absurd length can make them that long. Clients that come or go between two parts may be in the answer
    /// or not.
    pub fn next_state(&self, consumer: ConsumerId, query: &mut StateQuery, max: usize) -> Option<Vec<u8>> {
        loop {
            let (part, next) = match &query.next {
                NextPart::Service => (
                    Some(self.service_part()),
                    match query.scope {
                        StateScope::Everything => NextPart::Producer(ProducerId(0)),
                        StateScope::Sessions => NextPart::Session(SessionId(0)),
                    },
                ),
                NextPart::Producer(last) => match self.common.producers.after(*last) {
                    Some((id, producer)) => (Some(producer_part(id, producer)), NextPart::Producer(id)),
                    None => (None, NextPart::DataSource(String::new(), RegistrationId::NONE)),
                },
                NextPart::DataSource(name, last) => match self.common.producers.offer_after(name, *last) {
                    Some((name, offer)) => (
                        self.common
                            .producers
                            .registration(offer)
                            .map(|source| data_source_part(offer.producer, source, max)),
                        NextPart::DataSource(name.to_owned(), offer.registration),
                    ),
                    None => (None, NextPart::Session(SessionId(0))),
                },
                NextPart::Session(last) => {
                    let session = self.sessions.after(*last)?;
                    let part = self.is_visible(session, consumer).then(|| session_part(session));
                    (part, NextPart::Session(session.id))
                }
            };
            query.next = next;
            if let Some(part) = part.filter(|part| part.len() <= max) {
                return Some(part);
            }
        }
    }

    fn service_part(&self) -> Vec<u8> {
        TracingServiceState {
            tracing_service_version: Some(self.common.identity.version.clone()),
            num_sessions: Some(self.sessions.len() as i32),
            num_sessions_started: Some(self.sessions.in_state(State::Started) as i32),
            supports_tracing_sessions: Some(true),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// Consumers see their own user's sessions, and root sees all.
    fn is_visible(&self, session: &Session, consumer: ConsumerId) -> bool {
        let uid = self.consumers.get(&consumer).map(|consumer| consumer.uid);
        uid.is_some_and(|uid| uid == 0 || uid == session.uid)
    }

    /// The capabilities of this service that older ones lack.
    pub fn query_capabilities() -> TracingServiceCapabilities {
        use observable_events::Type;
        TracingServiceCapabilities {
            has_query_capabilities: Some(true),
            has_trace_config_output_path: Some(true),
            has_clone_session: Some(true),
            observable_events: vec![
                Type::TYPE_DATA_SOURCES_INSTANCES,
                Type::TYPE_ALL_DATA_SOURCES_STARTED,
                Type::TYPE_CLONE_TRIGGER_HIT,
            ],
            ..Default::default()
        }
    }

    /// Statistics of the consumer's session; `None` if it has none.
    pub fn trace_stats(&mut self, consumer: ConsumerId) -> Option<TraceStats> {
        self.trace_stats_up_to(consumer, limits::MAX_WRITERS_IN_STATS)
    }

    /// The same, with no more writers than this.
    pub fn trace_stats_up_to(&mut self, consumer: ConsumerId, writers: usize) -> Option<TraceStats> {
        let census = self.sessions.census();
        let session = self.sessions.get_mut(self.session_of(consumer)?)?;
        Some(session.stats(writers, &self.common, census))
    }
}

/// A producer as a part of the service's state.
fn producer_part(id: ProducerId, producer: &Producer) -> Vec<u8> {
    let machine = match &producer.machine {
        Machine::Host | Machine::Undeclared => None,
        Machine::Other(machine) => Some(machine),
    };
    let producers = vec![tracing_service_state::Producer {
        id: Some(id.0 as i32),
        name: Some(producer.name.clone()),
        sdk_version: Some(producer.sdk_version.clone()),
        uid: Some(producer.credentials.uid as i32),
        pid: producer.credentials.pid,
        frozen: Some(false),
        machine_id: machine.map(|machine| machine.id.0),
        machine_name: machine
            .map(|machine| machine.name.clone())
            .filter(|name| !name.is_empty()),
        ..Default::default()
    }];
    TracingServiceState {
        producers,
        ..Default::default()
    }
    .encode_to_vec()
}

/// A session as a part of the service's state.
fn session_part(session: &Session) -> Vec<u8> {
    let config = &session.config;
    let tracing_sessions = vec![tracing_service_state::TracingSession {
        id: Some(session.id.0),
        consumer_uid: Some(session.uid as i32),
        duration_ms: Some(config.duration_ms.unwrap_or_default()),
        num_data_sources: Some(session.instances.len() as u32),
        unique_session_name: Some(config.unique_session_name.clone().unwrap_or_default()),
        bugreport_score: config.bugreport_score,
        bugreport_filename: config.bugreport_filename.clone(),
        start_realtime_ns: session.start_realtime.map(|ns| ns as i64),
        buffer_size_kb: config
            .buffers
            .iter()
            .map(|b| b.size_kb.unwrap_or_default())
            .collect(),
        state: Some(session.state.name().to_owned()),
        buffer_used_bytes: session.buffers.iter().map(TraceBuffer::used_size).collect(),
        is_started: (session.state == State::Started).then_some(true),
        ..Default::default()
    }];
    TracingServiceState {
        tracing_sessions,
        ..Default::default()
    }
    .encode_to_vec()
}

/// A data source as a part of the service's state.
fn data_source_part(producer: ProducerId, source: &Registration, max: usize) -> Vec<u8> {
    use tracing_service_state::DataSource;
    let encode = |descriptor: &[u8]| {
        let mut state = Writer::new();
        state.nested(TracingServiceState::DATA_SOURCES, |entry| {
            entry.bytes_field(DataSource::DS_DESCRIPTOR, descriptor);
            entry.varint_field(DataSource::PRODUCER_ID, producer.0.into());
        });
        state.as_slice().to_vec()
    };
    let part = encode(&source.descriptor_bytes);
    if part.len() <= max {
        return part;
    }
    let short = DataSourceDescriptor {
        id: source.descriptor.id,
        name: source.descriptor.name.clone(),
        ..Default::default()
    };
    encode(&short.encode_to_vec())
}
