//! The consumer port: turns calls of consumers into inputs of the service, and its answers into replies.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_ipc::host::{Reply, ReplyTo, Request};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_proto::messages::{
    AttachRequest, CloneSessionResponse, DetachRequest, EnableTracingRequest, EnableTracingResponse,
    FlushRequest, GetTraceStatsResponse, Message, ObservableEvents, ObserveEventsRequest,
    ObserveEventsResponse, QueryCapabilitiesResponse, QueryServiceStateRequest,
    SaveTraceForBugreportResponse, TraceConfig, enable_tracing_response,
};
use ferretto_service::{
    ConfigInput, ConsumerId, FlushOutcome, Now, OutputFile, ReadBatch, Service, SessionId, StateScope,
};
use ferretto_wire::{Reader, Value, Writer};

use super::files::TraceFile;

/// What the daemon keeps of a consumer's connection.
pub(super) struct ConsumerLink {
    pub(super) id: ConsumerId,
    /// The open `EnableTracing` call, answered when tracing ends.
    enable: Option<ReplyTo>,
    /// The open `ReadBuffers` call, answered as the consumer takes the data.
    pub(super) read: Option<ReplyTo>,
    /// The open `ObserveEvents` call.
    observe: Option<ReplyTo>,
    /// Open `Flush` calls by token.
    flushes: VecDeque<(u64, ReplyTo)>,
    last_flush_token: u64,
}

/// What became of a call.
pub(super) struct Outcome {
    /// Replies to this or earlier calls, in order.
    pub(super) replies: Vec<(ReplyTo, Reply)>,
    /// A session began that streams into this file.
    pub(super) file: Option<(SessionId, TraceFile)>,
    /// The peer broke a rule.
    pub(super) violation: Option<String>,
}

impl Outcome {
    fn none() -> Outcome {
        Outcome {
            replies: Vec::new(),
            file: None,
            violation: None,
        }
    }

    fn reply(to: ReplyTo, reply: Reply) -> Outcome {
        Outcome {
            replies: vec![(to, reply)],
            ..Outcome::none()
        }
    }

    fn message(to: ReplyTo, message: &impl Message) -> Outcome {
        Outcome::reply(to, Reply::last(message.encode_to_vec()))
    }
}

impl ConsumerLink {
    pub(super) fn new(id: ConsumerId) -> ConsumerLink {
        ConsumerLink {
            id,
            enable: None,
            read: None,
            observe: None,
            flushes: VecDeque::new(),
            last_flush_token: 0,
        }
    }

    /// Handles one call.
    pub(super) fn call(
        &mut self,
        service: &mut Service,
        method: ConsumerMethod,
        request: Request<'_>,
        now: &Now,
    ) -> Outcome {
        let Request {
            payload,
            fd,
            reply_to: to,
            ..
        } = request;
        let id = self.id;
        /// Decodes the request or ends the call: what cannot be decoded was not made by any client.
        macro_rules! decode {
            ($message:ty) => {
                match <$message>::decode_from_slice(payload) {
                    Ok(request) => request,
                    Err(error) => {
                        let violation = Some(format!("{error} of {}", method.name()));
                        return Outcome {
                            violation,
                            ..Outcome::none()
                        };
                    }
                }
            };
        }
        let empty = || Reply::last(Vec::new());
        match method {
            ConsumerMethod::EnableTracing => {
                let request = decode!(EnableTracingRequest);
                if request.attach_notification_only.unwrap_or_default() {
                    self.enable = Some(to);
                    return Outcome::none();
                }
                return self.enable_tracing(service, request, payload, fd, to, now);
            }
            ConsumerMethod::StartTracing => service.start_deferred(id, now),
            ConsumerMethod::ChangeTraceConfig => {
                // Both requests carry the config under the same number.
                let request = decode!(EnableTracingRequest);
                if let Some(input) = config_input(request.trace_config.into_option(), payload) {
                    service.change_config(id, &input, now);
                }
            }
            ConsumerMethod::DisableTracing => service.disable_tracing(id, now),
            ConsumerMethod::ReadBuffers => {
                self.read = Some(to);
                return Outcome::none();
            }
            ConsumerMethod::FreeBuffers => service.free_buffers(id, now),
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
                return Outcome::none();
            }
            ConsumerMethod::Detach => {
                let request = decode!(DetachRequest);
                return match service.detach(id, request.key.as_deref().unwrap_or_default()) {
                    Ok(()) => Outcome::reply(to, empty()),
                    Err(error) => reject(to, &error),
                };
            }
            ConsumerMethod::Attach => {
                let request = decode!(AttachRequest);
                return match service.attach(id, request.key.as_deref().unwrap_or_default()) {
                    Ok(config) => {
                        const TRACE_CONFIG: u32 = 1;
                        let mut response = Writer::new();
                        response.bytes_field(TRACE_CONFIG, &config);
                        Outcome::reply(to, Reply::last(response.as_slice().to_vec()))
                    }
                    Err(error) => reject(to, &error),
                };
            }
            ConsumerMethod::GetTraceStats => return self.trace_stats(service, to),
            ConsumerMethod::ObserveEvents => {
                let request = decode!(ObserveEventsRequest);
                let kinds = request
                    .events_to_observe
                    .iter()
                    .fold(0, |kinds, kind| kinds | *kind as u32);
                let mut replies = Vec::new();
                // A new call replaces the one before, whose stream ends.
                if let Some(earlier) = self.observe.take() {
                    replies.push((earlier, empty()));
                }
                if kinds == 0 {
                    replies.push((to, empty()));
                } else {
                    self.observe = Some(to);
                }
                service.observe_events(id, kinds, now);
                return Outcome {
                    replies,
                    ..Outcome::none()
                };
            }
            ConsumerMethod::QueryServiceState => {
                let request = decode!(QueryServiceStateRequest);
                let scope = match request.sessions_only {
                    Some(true) => StateScope::Sessions,
                    _ => StateScope::Everything,
                };
                return Outcome {
                    replies: service_state(service, id, scope, to),
                    ..Outcome::none()
                };
            }
            ConsumerMethod::QueryCapabilities => {
                let response = QueryCapabilitiesResponse {
                    capabilities: Service::query_capabilities().into(),
                    ..Default::default()
                };
                return Outcome::message(to, &response);
            }
            ConsumerMethod::SaveTraceForBugreport => {
                let response = SaveTraceForBugreportResponse {
                    success: Some(false),
                    msg: Some("SaveTraceForBugreport is deprecated; clone the session instead".into()),
                    ..Default::default()
                };
                return Outcome::message(to, &response);
            }
            ConsumerMethod::CloneSession => {
                let response = CloneSessionResponse {
                    success: Some(false),
                    error: Some("cloning sessions is not supported by this version of Ferretto".into()),
                    ..Default::default()
                };
                return Outcome::message(to, &response);
            }
        }
        Outcome::reply(to, empty())
    }

    fn enable_tracing(
        &mut self,
        service: &mut Service,
        request: EnableTracingRequest,
        payload: &[u8],
        fd: Option<OwnedFd>,
        to: ReplyTo,
        now: &Now,
    ) -> Outcome {
        let input =
            config_input(request.trace_config.into_option(), payload).unwrap_or_else(|| ConfigInput {
                config: TraceConfig::default(),
                bytes: Arc::from([]),
            });
        let (output, file) = output_file(&input.config, fd);
        match service.enable_tracing(self.id, input, &output, random_uuid(), now) {
            Ok(session) => {
                self.enable = Some(to);
                Outcome {
                    file: file.map(|file| (session, file)),
                    ..Outcome::none()
                }
            }
            Err(error) => {
                if let Some(file) = file {
                    file.discard();
                }
                crate::log::warning(format_args!("refused a trace config: {error}"));
                Outcome::reply(to, disabled(Some(error)))
            }
        }
    }

    fn trace_stats(&self, service: &mut Service, to: ReplyTo) -> Outcome {
        let Some(mut stats) = service.trace_stats(self.id) else {
            return Outcome::reply(to, Reply::rejected());
        };
        if stats.encoded_len() as usize > MAX_PAYLOAD - 16 {
            // Thousands of writers: what they wrote each does not fit into a reply.
            stats.writer_stats.clear();
        }
        Outcome::message(
            to,
            &GetTraceStatsResponse {
                trace_stats: stats.into(),
                ..Default::default()
            },
        )
    }

    /// Tracing has ended: the answer to `EnableTracing`.
    pub(super) fn tracing_disabled(&mut self, error: Option<String>) -> Option<(ReplyTo, Reply)> {
        Some((self.enable.take()?, disabled(error)))
    }

    /// A flush has ended.
    pub(super) fn flush_done(&mut self, token: u64, outcome: FlushOutcome) -> Option<(ReplyTo, Reply)> {
        let position = self.flushes.iter().position(|(waiting, _)| *waiting == token)?;
        let (_, to) = self.flushes.remove(position)?;
        let reply = match outcome {
            FlushOutcome::Succeeded => Reply::last(Vec::new()),
            FlushOutcome::Failed => Reply::rejected(),
        };
        Some((to, reply))
    }

    /// Something happened that the consumer observes.
    pub(super) fn observed(&self, events: ObservableEvents) -> Option<(ReplyTo, Reply)> {
        let response = ObserveEventsResponse {
            events: events.into(),
            ..Default::default()
        };
        Some((self.observe?, Reply::more(response.encode_to_vec())))
    }
}

fn reject(to: ReplyTo, error: &str) -> Outcome {
    crate::log::warning(format_args!("{error}"));
    Outcome::reply(to, Reply::rejected())
}

fn disabled(error: Option<String>) -> Reply {
    let response = EnableTracingResponse {
        state: Some(enable_tracing_response::State::Disabled(true)),
        error,
        ..Default::default()
    };
    Reply::last(response.encode_to_vec())
}

/// The config of a request, decoded and as it came.
fn config_input(config: Option<TraceConfig>, payload: &[u8]) -> Option<ConfigInput> {
    const TRACE_CONFIG: u32 = 1;
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

/// The file that a config streams into, if it does.
fn output_file(config: &TraceConfig, fd: Option<OwnedFd>) -> (OutputFile, Option<TraceFile>) {
    if !config.write_into_file.unwrap_or_default() {
        return (OutputFile::None, None);
    }
    match config.output_path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => match TraceFile::create(Path::new(path)) {
            Ok(file) => (OutputFile::Created, Some(file)),
            Err(error) => (OutputFile::CannotCreate(error), None),
        },
        None => match fd {
            Some(fd) => (OutputFile::Passed, Some(TraceFile::passed(fd))),
            None => (OutputFile::None, None),
        },
    }
}

/// A random (version 4) UUID.
fn random_uuid() -> u128 {
    let mut bytes = [0; 16];
    // It fails only before the kernel has gathered entropy at boot; then the time has to do.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) != Ok(16) {
        bytes[..8].copy_from_slice(&super::clocks::now().realtime.to_be_bytes());
        bytes[8..].copy_from_slice(&super::clocks::now().monotonic_raw.to_be_bytes());
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    u128::from_be_bytes(bytes)
}

/// The state of the service as replies that fit into frames: each is a valid message, all of them together the whole.
fn service_state(
    service: &Service,
    consumer: ConsumerId,
    scope: StateScope,
    to: ReplyTo,
) -> Vec<(ReplyTo, Reply)> {
    const SERVICE_STATE: u32 = 1;
    let limit = MAX_PAYLOAD - 16;
    let mut parts = vec![service.query_state(consumer, scope).encode_to_vec()];
    if scope == StateScope::Everything {
        for source in service.query_data_sources() {
            match parts.last_mut() {
                Some(part) if part.len() + source.len() <= limit => part.extend_from_slice(&source),
                _ => parts.push(source),
            }
        }
    }
    let count = parts.len();
    let reply = |(index, part): (usize, Vec<u8>)| {
        let mut payload = Writer::new();
        payload.bytes_field(SERVICE_STATE, &part);
        let payload = payload.as_slice().to_vec();
        (
            to,
            if index + 1 == count {
                Reply::last(payload)
            } else {
                Reply::more(payload)
            },
        )
    };
    parts.into_iter().enumerate().map(reply).collect()
}

/// A batch of packets as payloads of `ReadBuffersResponse`. Packets are cut where a frame is full; the last slice of
/// each is marked.
pub(super) fn read_buffers_payloads(batch: &ReadBatch<'_>) -> Vec<Vec<u8>> {
    const SLICES: u32 = 2;
    const DATA: u32 = 1;
    const LAST_SLICE_FOR_PACKET: u32 = 2;
    /// Tags and lengths around a slice, at most.
    const OVERHEAD: usize = 16;
    let mut payloads = Vec::new();
    let mut payload = Writer::new();
    for packet in batch.packets() {
        let mut slices = packet.peekable();
        while let Some(mut slice) = slices.next() {
            loop {
                let room = MAX_PAYLOAD.saturating_sub(payload.len() + OVERHEAD);
                if room == 0 || (slice.len() > room && payload.len() > MAX_PAYLOAD / 2) {
                    payloads.push(payload.as_slice().to_vec());
                    payload.clear();
                    continue;
                }
                let (now, later) = slice.split_at(slice.len().min(room));
                let last = later.is_empty() && slices.peek().is_none();
                payload.nested(SLICES, |message| {
                    message.bytes_field(DATA, now);
                    message.varint_field(LAST_SLICE_FOR_PACKET, last.into());
                });
                slice = later;
                if slice.is_empty() {
                    break;
                }
            }
        }
    }
    if !payload.is_empty() {
        payloads.push(payload.as_slice().to_vec());
    }
    payloads
}
