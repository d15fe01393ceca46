//! What consumers can ask: state of the service, statistics of a session, capabilities.

use std::ops::Bound;

use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceStats, TracingServiceCapabilities, TracingServiceState,
    observable_events, trace_stats, tracing_service_state,
};
use ferretto_wire::Writer;

use crate::ids::{ConsumerId, ProducerId, SessionId};
use crate::limits;
use crate::machines::Machine;
use crate::producer::{Offer, Producer, Registration, RegistrationId};
use crate::service::Service;
use crate::session::{Session, State};
use crate::trace_buffer::{BufferStats, PayloadHistogram};

/// How much of the service's state is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateScope {
    /// Producers, data sources and sessions.
    Everything,
    /// Sessions only.
    Sessions,
}

/// A question about the service's state, and how far its answer has come. The answer can be long, and whoever asked may read it slowly: it
/// is put together as it is read.
#[derive(Clone, Debug)]
pub struct StateQuery {
    scope: StateScope,
    next: NextPart,
}

impl StateQuery {
    /// Nothing has been answered yet.
    pub fn new(scope: StateScope) -> StateQuery {
        StateQuery {
            scope,
            next: NextPart::Service,
        }
    }
}

/// What of the state is to be told next: what comes behind these.
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
        self.sessions.contains_key(&session)
    }

    /// The state of the service in parts, as they are now; see [`next_state`](Self::next_state).
    pub fn query_state(&self, consumer: ConsumerId, scope: StateScope, max: usize) -> Vec<Vec<u8>> {
        let mut query = StateQuery::new(scope);
        std::iter::from_fn(|| self.next_state(consumer, &mut query, max)).collect()
    }

    /// The next part of the service's state, of at most `max` bytes; `None` if that was all. Each is an encoded
    /// `TracingServiceState`, and so are any of them in a row; all of them are the whole. Producers come in the order of their
    /// ids, data sources in that of their names and registrations. Descriptors are as their producers sent them, except that one which does not fit is cut down to id and name. Other entries that do not fit are left out: only names
    /// of absurd length can make them that long. What comes and goes between two parts may be in the answer or not.
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
                NextPart::Producer(last) => match self.producers.after(last) {
                    Some((id, producer)) => (Some(producer_part(*id, producer)), NextPart::Producer(*id)),
                    None => (None, NextPart::DataSource(String::new(), RegistrationId::NONE)),
                },
                NextPart::DataSource(name, last) => match self.offer_after(name, *last) {
                    Some((name, offer)) => (
                        self.registration(offer)
                            .map(|source| data_source_part(offer.producer, source, max)),
                        NextPart::DataSource(name.to_owned(), offer.registration),
                    ),
                    None => (None, NextPart::Session(SessionId(0))),
                },
                NextPart::Session(last) => {
                    let (id, session) = self.sessions.after(last)?;
                    let part = self
                        .is_visible(session, consumer)
                        .then(|| self.session_part(session));
                    (part, NextPart::Session(*id))
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
            tracing_service_version: Some(self.identity.version.clone()),
            num_sessions: Some(self.sessions.len() as i32),
            num_sessions_started: Some(self.sessions_in(State::Started) as i32),
            supports_tracing_sessions: Some(true),
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// The data source that comes behind this one.
    fn offer_after(&self, name: &str, last: RegistrationId) -> Option<(&str, Offer)> {
        let names = (Bound::Included(name), Bound::Unbounded);
        // Of its namesakes none may be left; of the next name there is at least one.
        let mut two = self.offers.range::<str, _>(names).take(2);
        two.find_map(|(other, offers)| {
            let told = offers.partition_point(|offer| other == name && offer.registration <= last);
            Some((other.as_str(), *offers.get(told)?))
        })
    }

    fn registration(&self, offer: Offer) -> Option<&Registration> {
        let sources = &self.producers.get(&offer.producer)?.data_sources;
        let place = sources.binary_search_by_key(&offer.registration, |source| source.number);
        sources.get(place.ok()?)
    }

    /// A session as a part of the service's state.
    fn session_part(&self, session: &Session) -> Vec<u8> {
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
            buffer_used_bytes: session
                .buffers
                .iter()
                .filter_map(|id| self.buffers.get(id))
                .map(|buffer| buffer.used_size())
                .collect(),
            is_started: (session.state == State::Started).then_some(true),
            ..Default::default()
        }];
        TracingServiceState {
            tracing_sessions,
            ..Default::default()
        }
        .encode_to_vec()
    }

    /// Others' sessions are nobody's business but root's.
    fn is_visible(&self, session: &Session, consumer: ConsumerId) -> bool {
        let uid = self.consumers.get(&consumer).map(|consumer| consumer.uid);
        uid.is_some_and(|uid| uid == 0 || uid == session.uid)
    }

    /// What this service can do that older ones could not.
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
        let session = self.session_of(consumer)?;
        self.trace_stats_of(session, writers)
    }

    pub(crate) fn trace_stats_of(&mut self, id: SessionId, writers: usize) -> Option<TraceStats> {
        let data_sources: usize = self
            .producers
            .values()
            .map(|producer| producer.data_sources.len())
            .sum();
        let sessions = self.sessions.len();
        let session = self.sessions.get_mut(&id)?;
        let mut stats = TraceStats {
            producers_connected: Some(self.producers.len() as u32),
            producers_seen: Some(self.producers_seen.into()),
            data_sources_registered: Some(data_sources as u32),
            data_sources_seen: Some(self.last_instance),
            tracing_sessions: Some(sessions as u32),
            total_buffers: Some(self.buffers.len() as u32),
            chunks_discarded: Some(session.chunks_discarded),
            patches_discarded: Some(session.patches_discarded),
            invalid_packets: Some(session.invalid_packets),
            flushes_requested: Some(session.flushes_requested),
            flushes_succeeded: Some(session.flushes_succeeded),
            flushes_failed: Some(session.flushes_failed),
            final_flush_outcome: Some(session.final_flush_outcome),
            filter_stats: session.filter.as_ref().map(|filter| filter.stats()).into(),
            ..Default::default()
        };
        let with_histograms = !session
            .builtin()
            .disable_chunk_usage_histograms
            .unwrap_or_default();
        for (index, buffer_id) in session.buffers.clone().iter().enumerate() {
            let Some(entry) = self.buffers.get(buffer_id) else {
                continue;
            };
            stats.buffer_stats.push(buffer_stats(entry.stats()));
            if !with_histograms {
                continue;
            }
            let room = writers - stats.writer_stats.len();
            for (producer, writer, histogram) in entry.writer_stats().take(room) {
                if stats.chunk_payload_histogram_def.is_empty() {
                    stats.chunk_payload_histogram_def = PayloadHistogram::BOUNDS.to_vec();
                }
                stats.writer_stats.push(trace_stats::WriterStats {
                    sequence_id: Some(session.sequence_ids.of(producer, writer).into()),
                    buffer: Some(index as u32),
                    chunk_payload_histogram_counts: histogram.counts().to_vec(),
                    chunk_payload_histogram_sum: histogram.sums().to_vec(),
                    ..Default::default()
                });
            }
        }
        Some(stats)
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

/// The counters of a buffer, as the schema has them.
fn buffer_stats(stats: &BufferStats) -> trace_stats::BufferStats {
    trace_stats::BufferStats {
        buffer_size: Some(stats.buffer_size),
        bytes_written: Some(stats.bytes_written),
        bytes_overwritten: Some(stats.bytes_overwritten),
        bytes_read: Some(stats.bytes_read),
        padding_bytes_written: Some(stats.padding_bytes_written),
        padding_bytes_cleared: Some(stats.padding_bytes_cleared),
        chunks_written: Some(stats.chunks_written),
        chunks_rewritten: Some(stats.chunks_rewritten),
        chunks_relocated: Some(stats.chunks_relocated),
        chunks_overwritten: Some(stats.chunks_overwritten),
        chunks_discarded: Some(stats.chunks_discarded),
        chunks_read: Some(stats.chunks_read),
        chunks_committed_out_of_order: Some(stats.chunks_committed_out_of_order),
        write_wrap_count: Some(stats.write_wrap_count),
        patches_succeeded: Some(stats.patches_succeeded),
        patches_failed: Some(stats.patches_failed),
        readaheads_succeeded: Some(stats.readaheads_succeeded),
        readaheads_failed: Some(stats.readaheads_failed),
        abi_violations: Some(stats.abi_violations),
        trace_writer_packet_loss: Some(stats.trace_writer_packet_loss),
        ..Default::default()
    }
}
