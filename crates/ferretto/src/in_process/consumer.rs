//! A consumer of this process: the methods and events of
//! [`ConsumerEndpoint`](ferretto_client::consumer::ConsumerEndpoint), without a socket.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferretto_client::consumer::{ConsumerEvent, ConsumerReply, Packets, StateScope};
use ferretto_ipc::client::{CallError, CallId, More};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_proto::messages::Message;
use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::observable_events::Type as ObservableEventType;
use ferretto_proto::messages::{CloneSessionRequest, CloneSessionResponse, ObservableEvents, TraceConfig};
use ferretto_proto::opaque::decode_state;
use ferretto_service::{
    self as service, CloneFile, CloneFilter, ClonePurpose, CloneRequest, CloneTrigger, Cloned, ClonedContent,
    ConfigInput, ConsumerId, Now, Original, OutputFile, Service, SessionId,
};

use super::files::TraceFile;
use super::{Core, lock, machine};
use crate::session::Flow;
use crate::system;

/// Bytes of trace data in one event, about.
const READ_BATCH: usize = 256 * 1024;

/// What an answer is.
type Answer = Result<ConsumerReply, CallError>;

/// A consumer's end, see the [module](self). Its session ends when this is dropped, unless it was detached.
pub(crate) struct Consumer {
    core: Arc<Mutex<Core>>,
    id: ConsumerId,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("id", &self.id).finish()
    }
}

/// What is kept of a consumer beside the service.
pub(super) struct ConsumerLink {
    events: VecDeque<ConsumerEvent>,
    last_call: u64,
    /// Open requests to enable tracing, each answered when its session ends. More than one only while a session that was
    /// freed completes its file.
    enable: Vec<(SessionId, CallId)>,
    /// The open request to read, answered as the consumer takes events.
    read: Option<CallId>,
    flow: Flow,
    observe: Option<CallId>,
    /// Open requests to clone, by the ids of the clones.
    clones: Vec<(SessionId, CallId)>,
}

impl ConsumerLink {
    fn new() -> ConsumerLink {
        ConsumerLink {
            events: VecDeque::from([ConsumerEvent::Connected]),
            last_call: 0,
            enable: Vec::new(),
            read: None,
            flow: Flow::Open,
            observe: None,
            clones: Vec::new(),
        }
    }

    /// Whether the consumer has something to take.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty() || (self.read.is_some() && self.flow == Flow::Open)
    }

    fn answer(&mut self, request: CallId, method: ConsumerMethod, reply: Answer) {
        self.events.push_back(ConsumerEvent::Reply {
            request,
            method,
            reply,
        });
    }

    /// A session has ended: the answer to the request that enabled it.
    pub(super) fn tracing_disabled(&mut self, session: SessionId, error: Option<String>) {
        if let Some(position) = self.enable.iter().position(|(of, _)| *of == session) {
            let (_, call) = self.enable.swap_remove(position);
            let reply = ConsumerReply::TracingDisabled { error };
            self.answer(call, ConsumerMethod::EnableTracing, Ok(reply));
        }
    }

    /// The flush that was given this token has ended.
    pub(super) fn flush_done(&mut self, token: u64, outcome: service::FlushOutcome) {
        let reply = match outcome {
            service::FlushOutcome::Succeeded => Ok(ConsumerReply::Done),
            service::FlushOutcome::Failed => Err(CallError::Rejected),
        };
        self.answer(CallId::new(token), ConsumerMethod::Flush, reply);
    }

    /// A clone was made, or will not be.
    pub(super) fn session_cloned(&mut self, clone: SessionId, result: Result<Cloned, String>) {
        if let Some(position) = self.clones.iter().position(|(waiting, _)| *waiting == clone) {
            let (_, call) = self.clones.swap_remove(position);
            self.answer(call, ConsumerMethod::CloneSession, Ok(clone_reply(result)));
        }
    }

    /// Something happened that the consumer observes.
    pub(super) fn observed(&mut self, events: Box<ObservableEvents>) {
        if let Some(call) = self.observe {
            let reply = ConsumerReply::Observed(events);
            self.answer(call, ConsumerMethod::ObserveEvents, Ok(reply));
        }
    }
}

impl Consumer {
    pub(super) fn connect(core: Arc<Mutex<Core>>) -> Consumer {
        let id = {
            let mut core = lock(&core);
            let id = core.service.connect_consumer(system::effective_user());
            core.consumers.insert(id, ConsumerLink::new());
            id
        };
        Consumer { core, id }
    }

    /// The next event, or `None` when there is none for now. Trace data that was asked for is read as it is taken here.
    pub(crate) fn next_event(&mut self) -> Option<ConsumerEvent> {
        let mut core = lock(&self.core);
        if let Some(event) = core.consumers.get_mut(&self.id)?.events.pop_front() {
            return Some(event);
        }
        core.read(self.id)
    }

    /// Lets trace data come among the events, or keeps it back. Other events come all the same.
    pub(crate) fn set_flow(&mut self, flow: Flow) {
        if let Some(link) = lock(&self.core).consumers.get_mut(&self.id) {
            link.flow = flow;
        }
    }

    /// Enables tracing as the encoded `trace_config` says. With `write_into_file` the packets go to `file`.
    /// [`ConsumerReply::TracingDisabled`] comes when tracing has ended.
    pub(crate) fn enable_tracing(&mut self, trace_config: &[u8], file: Option<OwnedFd>) -> CallId {
        self.request(ConsumerMethod::EnableTracing, |core, id, call, now| {
            let input = match config_input(trace_config) {
                Ok(input) => input,
                Err(error) => return Some(Ok(ConsumerReply::TracingDisabled { error: Some(error) })),
            };
            let (output, file) = output_file(&input.config, file);
            match core
                .service
                .enable_tracing(id, input, &output, machine::random_uuid(), now)
            {
                Ok(session) => {
                    core.tell_consumer(id, |link| link.enable.push((session, call)));
                    if let Some(file) = file {
                        core.open_file(session, file);
                    }
                    None
                }
                Err(error) => {
                    if let Some(file) = file {
                        file.discard();
                    }
                    Some(Ok(ConsumerReply::TracingDisabled { error: Some(error) }))
                }
            }
        })
    }

    /// Starts a session enabled with `deferred_start`.
    pub(crate) fn start_tracing(&mut self) -> CallId {
        self.request(ConsumerMethod::StartTracing, |core, id, _, now| {
            core.service.start_deferred(id, now);
            Some(Ok(ConsumerReply::Done))
        })
    }

    /// Changes what can be changed in the config of a running session: producer filters, mostly.
    pub(crate) fn change_trace_config(&mut self, trace_config: &[u8]) -> CallId {
        self.request(ConsumerMethod::ChangeTraceConfig, |core, id, _, now| {
            Some(config_input(trace_config).map_err(CallError::Host).map(|input| {
                core.service.change_config(id, &input, now);
                ConsumerReply::Done
            }))
        })
    }

    /// Stops the session. [`ConsumerReply::TracingDisabled`], for the request that enabled it, tells when it is stopped.
    pub(crate) fn disable_tracing(&mut self) -> CallId {
        self.request(ConsumerMethod::DisableTracing, |core, id, _, now| {
            core.service.disable_tracing(id, now);
            Some(Ok(ConsumerReply::Done))
        })
    }

    /// Has all producers write out what they have. The reply is an error when some did not within `timeout_ms` (0: the
    /// service's default). `flags` tell who asks and why (upstream's `FlushFlags`).
    pub(crate) fn flush_producers(&mut self, timeout_ms: u32, flags: u64) -> CallId {
        self.request(ConsumerMethod::Flush, |core, id, call, now| {
            core.service.flush(id, call.number(), timeout_ms, flags, now);
            None
        })
    }

    /// Reads the session's buffers to their end: a stream of [`ConsumerReply::TraceData`].
    pub(crate) fn read_buffers(&mut self) -> CallId {
        self.request(ConsumerMethod::ReadBuffers, |core, id, call, _| {
            core.tell_consumer(id, |link| {
                // A new request takes over from the one before.
                if let Some(earlier) = link.read.replace(call) {
                    link.answer(earlier, ConsumerMethod::ReadBuffers, Err(CallError::Rejected));
                }
            });
            None
        })
    }

    /// Ends the session and frees its buffers.
    pub(crate) fn free_buffers(&mut self) -> CallId {
        self.request(ConsumerMethod::FreeBuffers, |core, id, _, now| {
            core.service.free_buffers(id, now);
            Some(Ok(ConsumerReply::Done))
        })
    }

    /// Leaves the session running, to be attached again under `key`.
    pub(crate) fn detach(&mut self, key: &str) -> CallId {
        self.request(ConsumerMethod::Detach, |core, id, _, _| {
            let detached = core.service.detach(id, key);
            Some(detached.map(|()| ConsumerReply::Done).map_err(CallError::Host))
        })
    }

    /// Takes over a session detached under `key`: [`ConsumerReply::Attached`]. Its end is then told as that of a session of
    /// ours, in a reply of the kind [`ConsumerMethod::EnableTracing`].
    pub(crate) fn attach(&mut self, key: &str) -> CallId {
        self.request(ConsumerMethod::Attach, |core, id, call, _| {
            let config = match core.service.attach(id, key) {
                Ok(config) => config,
                Err(error) => return Some(Err(CallError::Host(error))),
            };
            core.tell_consumer(id, |link| {
                let reply = ConsumerReply::Attached {
                    trace_config: config.to_vec(),
                };
                link.answer(call, ConsumerMethod::Attach, Ok(reply));
            });
            if let Some(session) = core.service.await_disabled(id) {
                core.tell_consumer(id, |link| link.enable.push((session, call)));
            }
            None
        })
    }

    /// Asks for the session's statistics.
    pub(crate) fn trace_stats(&mut self) -> CallId {
        self.request(ConsumerMethod::GetTraceStats, |core, id, _, _| {
            let stats = core.service.trace_stats(id);
            Some(
                stats
                    .map(|stats| ConsumerReply::TraceStats(Box::new(stats)))
                    .ok_or(CallError::Rejected),
            )
        })
    }

    /// Asks to be told of events: a stream of [`ConsumerReply::Observed`] that ends with the next such request. An empty
    /// list ends it for good.
    pub(crate) fn observe_events(&mut self, types: &[ObservableEventType]) -> CallId {
        let kinds = types.iter().fold(0, |kinds, kind| kinds | *kind as u32);
        self.request(ConsumerMethod::ObserveEvents, |core, id, call, now| {
            core.tell_consumer(id, |link| {
                let earlier = std::mem::replace(&mut link.observe, (kinds != 0).then_some(call));
                if let Some(earlier) = earlier {
                    let ended = Ok(ConsumerReply::ObservationEnded);
                    link.answer(earlier, ConsumerMethod::ObserveEvents, ended);
                }
            });
            core.service.observe_events(id, kinds, now);
            (kinds == 0).then_some(Ok(ConsumerReply::ObservationEnded))
        })
    }

    /// Asks for the service's state: one [`ConsumerReply::ServiceState`].
    pub(crate) fn query_service_state(&mut self, scope: StateScope) -> CallId {
        let scope = match scope {
            StateScope::Everything => service::StateScope::Everything,
            StateScope::SessionsOnly => service::StateScope::Sessions,
        };
        self.request(ConsumerMethod::QueryServiceState, |core, id, _, _| {
            // Each part is a message, and so are all of them in a row.
            let encoded = core.service.query_state(id, scope, usize::MAX).concat();
            Some(
                decode_state(&encoded)
                    .map_err(|error| CallError::Host(error.to_string()))
                    .map(|state| ConsumerReply::ServiceState {
                        state: Box::new(state),
                        encoded,
                    }),
            )
        })
    }

    /// Asks what the service can do.
    pub(crate) fn query_capabilities(&mut self) -> CallId {
        self.request(ConsumerMethod::QueryCapabilities, |_, _, _, _| {
            let capabilities = Service::query_capabilities();
            Some(Ok(ConsumerReply::Capabilities(Box::new(capabilities))))
        })
    }

    /// Clones a session; the clone is ours then, stopped and ready to be read. `file` takes the data when the session
    /// writes into a file.
    pub(crate) fn clone_session(&mut self, request: &CloneSessionRequest, file: Option<OwnedFd>) -> CallId {
        self.request(ConsumerMethod::CloneSession, |core, id, call, now| {
            let (kind, file) = match file.map(TraceFile::passed) {
                None => (CloneFile::None, None),
                Some(Ok(file)) => (CloneFile::Passed, Some(file)),
                Some(Err(error)) => (CloneFile::Unusable(error), None),
            };
            let request = clone_request(request, kind);
            match core
                .service
                .clone_session(id, request, machine::random_uuid(), now)
            {
                Ok(clone) => {
                    core.tell_consumer(id, |link| link.clones.push((clone, call)));
                    core.files_of_clones.extend(file.map(|file| (clone, file)));
                    None
                }
                Err(error) => Some(Ok(clone_reply(Err(error)))),
            }
        })
    }

    /// Makes a request and has all of what follows done. `handle` gives the answer if there is one at once.
    fn request(
        &mut self,
        method: ConsumerMethod,
        handle: impl FnOnce(&mut Core, ConsumerId, CallId, &Now) -> Option<Answer>,
    ) -> CallId {
        let now = machine::now();
        let mut core = lock(&self.core);
        let call = core.next_call(self.id);
        let reply = handle(&mut core, self.id, call, &now);
        core.called(self.id, call, method, reply, &now);
        call
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let now = machine::now();
        let mut core = lock(&self.core);
        if let Some(link) = core.consumers.remove(&self.id) {
            for (clone, _) in link.clones {
                core.files_of_clones.remove(&clone);
            }
        }
        core.service.disconnect_consumer(self.id, &now);
        core.carry_out(&now);
    }
}

impl Core {
    /// A number for the next call of a consumer.
    fn next_call(&mut self, id: ConsumerId) -> CallId {
        let number = self.consumers.get_mut(&id).map_or(0, |link| {
            link.last_call += 1;
            link.last_call
        });
        CallId::new(number)
    }

    /// After a call: its answer, if there is one at once, and what follows.
    fn called(
        &mut self,
        id: ConsumerId,
        call: CallId,
        method: ConsumerMethod,
        reply: Option<Answer>,
        now: &Now,
    ) {
        if let Some(reply) = reply {
            self.tell_consumer(id, |link| link.answer(call, method, reply));
        }
        self.carry_out(now);
    }

    /// The next trace data for a consumer that reads and takes it.
    fn read(&mut self, id: ConsumerId) -> Option<ConsumerEvent> {
        let link = self.consumers.get_mut(&id)?;
        let request = link.read.filter(|_| link.flow == Flow::Open)?;
        let now = machine::now();
        self.service
            .local_time_offset(crate::system::timezone_offset_minutes());
        let begun = Instant::now();
        let mut filtered = None;
        let (mut packets, mut more) = (Packets::default(), More::Last);
        if let Some(batch) = self.service.read_buffers(id, READ_BATCH, &now) {
            filtered = batch.filtered.map(|session| (session, begun.elapsed()));
            packets = Packets::with_capacity(batch.len());
            batch.packets().for_each(|packet| packets.push(packet));
            if batch.has_more {
                more = More::Follows;
            }
        }
        if let Some((session, took)) = filtered {
            self.service.filtering_took(session, took);
        }
        if more == More::Last {
            link.read = None;
        }
        self.carry_out(&now);
        Some(ConsumerEvent::Reply {
            request,
            method: ConsumerMethod::ReadBuffers,
            reply: Ok(ConsumerReply::TraceData { packets, more }),
        })
    }
}

fn config_input(encoded: &[u8]) -> Result<ConfigInput, String> {
    let config = TraceConfig::decode_from_slice(encoded)
        .map_err(|error| format!("the trace config cannot be decoded: {error}"))?;
    Ok(ConfigInput {
        config,
        bytes: encoded.into(),
    })
}

/// The file that a config streams into, if it does.
fn output_file(config: &TraceConfig, fd: Option<OwnedFd>) -> (OutputFile, Option<TraceFile>) {
    if !config.write_into_file.unwrap_or_default() {
        return (OutputFile::None, None);
    }
    let path = config.output_path.as_deref().filter(|path| !path.is_empty());
    let (kind, file) = match (path, fd) {
        (Some(_), Some(_)) => return (OutputFile::Both, None),
        (Some(path), None) => (OutputFile::Created, TraceFile::create(Path::new(path))),
        (None, Some(fd)) => (OutputFile::Passed, TraceFile::passed(fd)),
        (None, None) => return (OutputFile::None, None),
    };
    match file {
        Ok(file) => (kind, Some(file)),
        Err(error) => (OutputFile::Unusable(error), None),
    }
}

fn clone_request(request: &CloneSessionRequest, file: CloneFile) -> CloneRequest {
    let trigger_name = request.clone_trigger_name.clone().filter(|name| !name.is_empty());
    CloneRequest {
        original: match &request.selector {
            Some(Selector::SessionId(id)) => Original::Id(*id),
            Some(Selector::UniqueSessionName(name)) => Original::Name(name.clone()),
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
        trigger: trigger_name.map(|name| CloneTrigger {
            name,
            producer_name: request.clone_trigger_producer_name.clone().unwrap_or_default(),
            producer_uid: request.clone_trigger_trusted_producer_uid.unwrap_or_default(),
            boot_time_ns: request.clone_trigger_boot_time_ns.unwrap_or_default(),
            delay_ms: request.clone_trigger_delay_ms.unwrap_or_default(),
        }),
        file,
    }
}

fn clone_reply(result: Result<Cloned, String>) -> ConsumerReply {
    ConsumerReply::SessionCloned(Box::new(match result {
        Ok(cloned) => CloneSessionResponse {
            success: Some(true),
            error: Some(String::new()),
            uuid_msb: Some((cloned.uuid >> 64) as i64),
            uuid_lsb: Some(cloned.uuid as i64),
            was_write_into_file: Some(cloned.content == ClonedContent::File),
            ..Default::default()
        },
        Err(error) => CloneSessionResponse {
            success: Some(false),
            error: Some(error),
            ..Default::default()
        },
    }))
}
