//! The consumer port: turns calls of consumers into inputs of the service, and its answers into replies.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ferretto_ipc::PassedFd;
use ferretto_ipc::frame::{MAX_FRAME, MAX_PAYLOAD};
use ferretto_ipc::host::{Reply, ReplyTo, ReplyWanted, Request};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_proto::messages::{
    AttachRequest, AttachResponse, CloneSessionRequest, CloneSessionResponse, DetachRequest,
    EnableTracingRequest, EnableTracingResponse, FlushRequest, GetTraceStatsResponse, Message,
    ObservableEvents, ObserveEventsRequest, ObserveEventsResponse, QueryCapabilitiesResponse,
    QueryServiceStateRequest, QueryServiceStateResponse, SaveTraceForBugreportResponse, TraceConfig,
    clone_session_request::Selector, enable_tracing_response,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, CloneTrigger, Cloned, ClonedContent, ConfigInput,
    ConsumerId, FlushOutcome, Original, OutputFile, ReadCall, Service, SessionId, StateQuery, StateScope,
};
use ferretto_wire::{Reader, Value, Writer};

use super::bounds::{self, bound_error, bound_stats};
use super::clocks::TurnTime;
use super::connection::{PacketFlow, Replies};
use super::payloads::Payloads;
use super::random;
use super::trace_file::TraceFile;

/// The host's state for a consumer's connection.
pub(crate) struct ConsumerLink {
    pub(crate) id: ConsumerId,
    /// Open `EnableTracing` calls, each answered when its session ends. More than one only while a session that was
    /// freed completes its file.
    enable: Vec<(SessionId, ReplyTo)>,
    /// The open `ReadBuffers` call, answered as the consumer takes the data.
    read: Option<OpenRead>,
    /// Open `QueryServiceState` calls, answered in the same way, one after the other.
    queries: VecDeque<OpenQuery>,
    /// The open `ObserveEvents` call.
    observe: Option<ReplyTo>,
    /// Open `Flush` calls by token.
    flushes: VecDeque<(u64, ReplyTo)>,
    last_flush_token: u64,
    /// Open `CloneSession` calls by the ids of the clones.
    clones: Vec<(SessionId, ReplyTo)>,
}

/// A `ReadBuffers` call that is being answered.
struct OpenRead {
    to: ReplyTo,
    /// The part of the last batch that was not sent yet.
    payloads: Payloads,
    has_more: bool,
    call: ReadCall,
}

/// A `QueryServiceState` call that is being answered.
struct OpenQuery {
    to: ReplyTo,
    query: StateQuery,
    /// The part of the state that did not fit into the last reply.
    part: Vec<u8>,
}

/// Payloads of trace data that are sent before the room is checked again.
const PAYLOADS_AT_ONCE: usize = 4;

/// The effect of a call besides its answer.
pub(crate) enum Effect {
    None,
    /// A session began that streams into this file.
    Streams(SessionId, TraceFile),
    /// The consumer reads: its first packets are due, or the first part of the state.
    Reads,
    /// The buffers of a session are gone.
    Frees,
    /// A clone is being made that may write into this file.
    Clones(SessionId, TraceFile),
}

impl ConsumerLink {
    pub(crate) fn new(id: ConsumerId) -> ConsumerLink {
        ConsumerLink {
            id,
            enable: Vec::new(),
            read: None,
            queries: VecDeque::new(),
            observe: None,
            flushes: VecDeque::new(),
            last_flush_token: 0,
            clones: Vec::new(),
        }
    }

    /// The clones that it waits for.
    pub(crate) fn pending_clones(&self) -> impl Iterator<Item = SessionId> {
        self.clones.iter().map(|(clone, _)| *clone)
    }

    /// Whether there is more to send as soon as there is room: trace data, if that may be sent, or state of the service.
    pub(crate) fn reads(&self, flow: PacketFlow) -> bool {
        self.read.is_some() && flow == PacketFlow::Open || !self.queries.is_empty()
    }

    /// Handles one call; immediate answers go to `replies`.
    ///
    /// # Errors
    /// Why the call is rejected.
    pub(crate) fn call(
        &mut self,
        service: &mut Service,
        method: ConsumerMethod,
        request: Request<'_>,
        replies: &mut Replies,
        turn: &TurnTime,
    ) -> Result<Effect, String> {
        let now = turn.now();
        let Request {
            payload,
            fd,
            reply_to: to,
            ..
        } = request;
        let id = self.id;
        /// Decodes the request or rejects the call.
        macro_rules! decode {
            ($message:ty) => {
                <$message>::decode_from_slice(payload)
                    .map_err(|error| format!("{error} of {}", method.name()))?
            };
        }
        let empty = || Reply::last(Vec::new());
        let reply = match method {
            ConsumerMethod::EnableTracing => {
                let request = decode!(EnableTracingRequest);
                if request.attach_notification_only.unwrap_or_default() {
                    self.await_disabled(service, to, replies);
                    return Ok(Effect::None);
                }
                let input = config_input(request.trace_config.into_option(), payload);
                let input = input.unwrap_or_else(|| ConfigInput {
                    config: TraceConfig::default(),
                    bytes: Arc::from([]),
                });
                return Ok(self.enable_tracing(service, input, fd, to, replies, turn));
            }
            ConsumerMethod::StartTracing => {
                service.start_deferred(id, now);
                empty()
            }
            ConsumerMethod::ChangeTraceConfig => {
                // Both requests carry the config under the same number.
                let request = decode!(EnableTracingRequest);
                if let Some(input) = config_input(request.trace_config.into_option(), payload) {
                    service.change_config(id, &input, now);
                }
                empty()
            }
            ConsumerMethod::DisableTracing => {
                service.disable_tracing(id, now);
                empty()
            }
            ConsumerMethod::ReadBuffers => {
                // A new call takes over from the one before.
                let read = OpenRead {
                    to,
                    payloads: Payloads::default(),
                    has_more: true,
                    call: ReadCall::default(),
                };
                if let Some(earlier) = self.read.replace(read) {
                    replies.push(earlier.to, Reply::rejected());
                }
                return Ok(Effect::Reads);
            }
            ConsumerMethod::FreeBuffers => {
                service.free_buffers(id, now);
                replies.push(to, empty());
                return Ok(Effect::Frees);
            }
            ConsumerMethod::Flush => {
                let request = decode!(FlushRequest);
                self.last_flush_token += 1;
                self.flushes.push_back((self.last_flush_token, to));
                service.flush(
                    id,
                    self.last_flush_token,
                    request.timeout_ms.unwrap_or_default(),
                    request.flags.unwrap_or_default(),
                    now,
                );
                return Ok(Effect::None);
            }
            ConsumerMethod::Detach => {
                let request = decode!(DetachRequest);
                match service.detach(id, request.key.as_deref().unwrap_or_default()) {
                    Ok(()) => empty(),
                    Err(error) => rejected(error, turn),
                }
            }
            ConsumerMethod::Attach => {
                let request = decode!(AttachRequest);
                match service.attach(id, request.key.as_deref().unwrap_or_default()) {
                    Ok(config) => {
                        let mut response = Writer::new();
                        response.bytes_field(AttachResponse::TRACE_CONFIG, &config);
                        Reply::last(response.as_slice().to_vec())
                    }
                    Err(error) => rejected(error, turn),
                }
            }
            ConsumerMethod::GetTraceStats => trace_stats(service, id),
            ConsumerMethod::ObserveEvents => {
                let request = decode!(ObserveEventsRequest);
                let kinds = request
                    .events_to_observe
                    .iter()
                    .fold(0, |kinds, kind| kinds | *kind as u32);
                // A new call replaces the one before, whose stream ends.
                if let Some(earlier) = self.observe.take() {
                    replies.push(earlier, empty());
                }
                service.observe_events(id, kinds, now);
                if kinds != 0 {
                    self.observe = Some(to);
                    return Ok(Effect::None);
                }
                empty()
            }
            // A client that wants no reply could have an unbounded number of these put together in vain.
            ConsumerMethod::QueryServiceState if to.wanted() == ReplyWanted::No => return Ok(Effect::None),
            ConsumerMethod::QueryServiceState => {
                let request = decode!(QueryServiceStateRequest);
                let scope = match request.sessions_only {
                    Some(true) => StateScope::Sessions,
                    _ => StateScope::Everything,
                };
                self.queries.push_back(OpenQuery {
                    to,
                    query: StateQuery::new(scope),
                    part: Vec::new(),
                });
                return Ok(Effect::Reads);
            }
            ConsumerMethod::QueryCapabilities => message(&QueryCapabilitiesResponse {
                capabilities: Service::query_capabilities().into(),
                ..Default::default()
            }),
            ConsumerMethod::SaveTraceForBugreport => message(&SaveTraceForBugreportResponse {
                success: Some(false),
                msg: Some("SaveTraceForBugreport is deprecated; clone the session instead".into()),
                ..Default::default()
            }),
            ConsumerMethod::CloneSession => {
                let (kind, file) = clone_file(fd);
                let request = clone_request(decode!(CloneSessionRequest), kind);
                match service.clone_session(id, request, random::uuid(), now) {
                    Ok(clone) => {
                        self.clones.push((clone, to));
                        return Ok(file.map_or(Effect::None, |file| Effect::Clones(clone, file)));
                    }
                    Err(error) => clone_response(Err(error), turn),
                }
            }
        };
        replies.push(to, reply);
        Ok(Effect::None)
    }

    /// Answers this call when the session that the consumer attached to ends.
    fn await_disabled(&mut self, service: &mut Service, to: ReplyTo, replies: &mut Replies) {
        let Some(session) = service.await_disabled(self.id) else {
            return replies.push(to, Reply::rejected());
        };
        // A new call takes over from the one before.
        match self.enable.iter_mut().find(|(of, _)| *of == session) {
            Some((_, waiting)) => replies.push(std::mem::replace(waiting, to), Reply::rejected()),
            None => self.await_end(service, session, to),
        }
    }

    /// Keeps the call, to be answered when the session ends. Drops calls for sessions that were detached, and ended without this consumer: they are
    /// never answered.
    fn await_end(&mut self, service: &Service, session: SessionId, to: ReplyTo) {
        self.enable.retain(|(of, _)| service.has_session(*of));
        self.enable.push((session, to));
    }

    fn enable_tracing(
        &mut self,
        service: &mut Service,
        input: ConfigInput,
        fd: Option<PassedFd>,
        to: ReplyTo,
        replies: &mut Replies,
        turn: &TurnTime,
    ) -> Effect {
        let (output, file) = output_file(&input.config, fd);
        match service.enable_tracing(self.id, input, &output, random::uuid(), turn.now()) {
            Ok(session) => {
                self.await_end(service, session, to);
                file.map_or(Effect::None, |file| Effect::Streams(session, file))
            }
            Err(error) => {
                if let Some(file) = file {
                    file.discard();
                }
                turn.program()
                    .refused(format_args!("refused a trace config: {error}"));
                replies.push(to, disabled(Some(error)));
                Effect::None
            }
        }
    }

    /// Answers the open `ReadBuffers` call, if there is one, with as many of `service`'s packets as there is room for among the replies.
    pub(crate) fn send_packets(&mut self, service: &mut Service, replies: &mut Replies, turn: &TurnTime) {
        let Some(read) = &mut self.read else { return };
        if read.payloads.is_empty() {
            service.local_time_offset(turn.program().local_time_offset());
            let begun = Instant::now();
            let mut filtered = None;
            match service.read_buffers(self.id, &mut read.call, 2 * MAX_FRAME, turn.now()) {
                Some(batch) => {
                    filtered = batch.filtered.map(|session| (session, begun.elapsed()));
                    read.has_more = batch.has_more;
                    read.payloads = Payloads::new(batch);
                }
                None => read.has_more = false,
            }
            if let Some((session, took)) = filtered {
                service.filtering_took(session, took);
            }
        }
        for _ in 0..PAYLOADS_AT_ONCE {
            let payload = read.payloads.next();
            if read.payloads.is_empty() && !read.has_more {
                replies.push(read.to, Reply::last(payload.unwrap_or_default()));
                self.read = None;
                return;
            }
            let Some(payload) = payload else { return };
            replies.push(read.to, Reply::more(payload));
        }
    }

    /// Answers the oldest open `QueryServiceState` call, if there is one, with as much of the state as a frame holds.
    pub(crate) fn send_state(&mut self, service: &Service, replies: &mut Replies) {
        let limit = MAX_PAYLOAD - 16;
        let Some(open) = self.queries.front_mut() else {
            return;
        };
        let mut state = std::mem::take(&mut open.part);
        let more = loop {
            let Some(part) = service.next_state(self.id, &mut open.query, limit) else {
                break false;
            };
            if state.len() + part.len() > limit {
                open.part = part;
                break true;
            }
            state.extend_from_slice(&part);
        };
        let mut payload = Writer::new();
        payload.bytes_field(QueryServiceStateResponse::SERVICE_STATE, &state);
        let payload = payload.as_slice().to_vec();
        let to = open.to;
        if more {
            replies.push(to, Reply::more(payload));
        } else {
            self.queries.pop_front();
            replies.push(to, Reply::last(payload));
        }
    }

    /// Bytes that wait for the consumer to read them.
    pub(crate) fn held_bytes(&self) -> usize {
        let read = self.read.iter().map(|read| read.payloads.bytes());
        let state = self.queries.iter().map(|query| query.part.len());
        read.chain(state).sum()
    }

    /// Whether a `QueryServiceState` call is open.
    pub(crate) fn asks_for_state(&self) -> bool {
        !self.queries.is_empty()
    }

    /// A session has ended: the answer to its `EnableTracing`.
    pub(crate) fn tracing_disabled(
        &mut self,
        session: SessionId,
        error: Option<String>,
    ) -> Option<(ReplyTo, Reply)> {
        let position = self.enable.iter().position(|(of, _)| *of == session)?;
        let (_, to) = self.enable.swap_remove(position);
        Some((to, disabled(error)))
    }

    /// A flush has ended.
    pub(crate) fn flush_done(&mut self, token: u64, outcome: FlushOutcome) -> Option<(ReplyTo, Reply)> {
        let position = self.flushes.iter().position(|(waiting, _)| *waiting == token)?;
        let (_, to) = self.flushes.remove(position)?;
        let reply = match outcome {
            FlushOutcome::Succeeded => Reply::last(Vec::new()),
            FlushOutcome::Failed => Reply::rejected(),
        };
        Some((to, reply))
    }

    /// A clone was made, or will not be.
    pub(crate) fn session_cloned(
        &mut self,
        clone: SessionId,
        result: Result<Cloned, String>,
        turn: &TurnTime,
    ) -> Option<(ReplyTo, Reply)> {
        let position = self.clones.iter().position(|(waiting, _)| *waiting == clone)?;
        let (_, to) = self.clones.swap_remove(position);
        Some((to, clone_response(result, turn)))
    }

    /// Something happened that the consumer observes.
    pub(crate) fn observed(&self, events: ObservableEvents) -> Option<(ReplyTo, Reply)> {
        let response = ObserveEventsResponse {
            events: events.into(),
            ..Default::default()
        };
        Some((self.observe?, Reply::more(response.encode_to_vec())))
    }
}

fn message(message: &impl Message) -> Reply {
    Reply::last(message.encode_to_vec())
}

fn rejected(mut error: String, turn: &TurnTime) -> Reply {
    turn.program().refused(format_args!("{error}"));
    bound_error(&mut error);
    Reply::rejected_for(error)
}

fn trace_stats(service: &mut Service, consumer: ConsumerId) -> Reply {
    let Some(mut stats) = service.trace_stats_up_to(consumer, bounds::MOST_WRITERS) else {
        return Reply::rejected();
    };
    bound_stats(&mut stats);
    message(&GetTraceStatsResponse {
        trace_stats: stats.into(),
        ..Default::default()
    })
}

/// The request of a consumer for a clone.
fn clone_request(request: CloneSessionRequest, file: CloneFile) -> CloneRequest {
    let name = request.clone_trigger_name.filter(|name| !name.is_empty());
    CloneRequest {
        original: match request.selector {
            Some(Selector::SessionId(id)) => Original::Id(id),
            Some(Selector::UniqueSessionName(name)) => Original::Name(name),
            None => Original::Name(String::new()),
        },
        purpose: match request.for_bugreport {
            Some(true) => ClonePurpose::Bugreport,
            _ => ClonePurpose::Snapshot,
        },
        filter: match request.skip_trace_filter {
            Some(true) => CloneFilter::Skipped,
            _ => CloneFilter::Applied,
        },
        trigger: name.map(|name| CloneTrigger {
            name,
            producer_name: request.clone_trigger_producer_name.unwrap_or_default(),
            producer_uid: request.clone_trigger_trusted_producer_uid.unwrap_or_default(),
            boot_time_ns: request.clone_trigger_boot_time_ns.unwrap_or_default(),
            delay_ms: request.clone_trigger_delay_ms.unwrap_or_default(),
        }),
        file,
    }
}

/// The descriptor that came with a request for a clone.
fn clone_file(fd: Option<PassedFd>) -> (CloneFile, Option<TraceFile>) {
    match fd.map(TraceFile::passed) {
        None => (CloneFile::None, None),
        Some(Ok(file)) => (CloneFile::Passed, Some(file)),
        Some(Err(error)) => (CloneFile::Unusable(error), None),
    }
}

fn clone_response(result: Result<Cloned, String>, turn: &TurnTime) -> Reply {
    let response = match result {
        Ok(cloned) => CloneSessionResponse {
            success: Some(true),
            error: Some(String::new()),
            uuid_msb: Some((cloned.uuid >> 64) as i64),
            uuid_lsb: Some(cloned.uuid as i64),
            was_write_into_file: Some(cloned.content == ClonedContent::File),
            ..Default::default()
        },
        Err(mut error) => {
            bound_error(&mut error);
            turn.program()
                .refused(format_args!("a session was not cloned: {error}"));
            CloneSessionResponse {
                success: Some(false),
                error: Some(error),
                ..Default::default()
            }
        }
    };
    message(&response)
}

fn disabled(mut error: Option<String>) -> Reply {
    error.iter_mut().for_each(bound_error);
    let response = EnableTracingResponse {
        state: Some(enable_tracing_response::State::Disabled(true)),
        error,
        ..Default::default()
    };
    Reply::last(response.encode_to_vec())
}

/// The config of a request, decoded and as it came.
fn config_input(config: Option<TraceConfig>, payload: &[u8]) -> Option<ConfigInput> {
    // `ChangeTraceConfigRequest` has it under the same number.
    const TRACE_CONFIG: u32 = EnableTracingRequest::TRACE_CONFIG;
    let parts = Reader::new(payload)
        .flatten()
        .filter_map(|field| match field.value {
            Value::Bytes(bytes) if field.number == TRACE_CONFIG => Some(bytes),
            _ => None,
        });
    // Parts of a field that comes more than once mean the same in a row.
    let bytes: Vec<u8> = parts.flatten().copied().collect();
    Some(ConfigInput {
        config: config?,
        bytes: bytes.into(),
    })
}

/// The file that a config streams into, if it does. As at upstream's port, a descriptor beside a path is of no use.
fn output_file(config: &TraceConfig, fd: Option<PassedFd>) -> (OutputFile, Option<TraceFile>) {
    if !config.write_into_file.unwrap_or_default() {
        return (OutputFile::None, None);
    }
    let path = config.output_path.as_deref().filter(|path| !path.is_empty());
    let (kind, file) = match (path, fd) {
        (Some(path), _) => (OutputFile::Created, TraceFile::create(Path::new(path))),
        (None, Some(fd)) => (OutputFile::Passed, TraceFile::passed(fd)),
        (None, None) => return (OutputFile::None, None),
    };
    match file {
        Ok(file) => (kind, Some(file)),
        Err(error) => (OutputFile::Unusable(error), None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_file_is_made_if_there_is_a_path_even_beside_a_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let config = TraceConfig {
            write_into_file: Some(true),
            output_path: Some(path.to_string_lossy().into_owned()),
            ..Default::default()
        };
        let passed = || Some(OwnedFd::from(tempfile::tempfile().unwrap()).into());
        for fd in [None, passed()] {
            assert_eq!(output_file(&config, fd).0, OutputFile::Created);
            std::fs::remove_file(&path).unwrap();
        }
        assert_eq!(output_file(&config, None).0, OutputFile::Created);
        assert!(matches!(
            output_file(&config, passed()).0,
            OutputFile::Unusable(_)
        ));
        for none in [None, Some(String::new())] {
            let without = TraceConfig {
                output_path: none,
                ..config.clone()
            };
            assert_eq!(output_file(&without, passed()).0, OutputFile::Passed);
            assert_eq!(output_file(&without, None).0, OutputFile::None);
        }
    }
}
