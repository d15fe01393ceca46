//! The producer's end of the connection to the tracing service (`ProducerPort`).
//!
//! Called by programs with data sources: the probes' daemon, the SDK's thread. The caller watches the endpoint's descriptor for
//! [`interest`](ProducerEndpoint::interest), calls [`on_readable`](ProducerEndpoint::on_readable) and [`flush`](ProducerEndpoint::flush), and takes
//! events until there are none. Requests are queued in order and leave with the next flush; none of them blocks. When the connection ends, the
//! endpoint is of no further use: [`ProducerEvent::Disconnected`] comes last, and the caller decides whether and when to connect again.

mod command;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferretto_ipc::client::{Call, CallError, CallId, ClientEvent, InvokeError};
use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_ipc::ports::{PRODUCER_PORT, ProducerMethod};
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::{Address, Stream};
pub use ferretto_proto::ids::{DataSourceInstanceId, FlushRequestId};
use ferretto_proto::messages::initialize_connection_request::ProducerSMBScrapingMode;
use ferretto_proto::messages::{
    ActivateTriggersRequest, CommitDataRequest, DataSourceDescriptor, InitializeConnectionRequest,
    InitializeConnectionResponse, Message, MessageField, NotifyDataSourceStartedRequest,
    NotifyDataSourceStoppedRequest, RegisterDataSourceRequest, RegisterDataSourceResponse,
    RegisterTraceWriterRequest, UnregisterDataSourceRequest, UnregisterTraceWriterRequest,
    UpdateDataSourceRequest,
};
use ferretto_smb::WriterId;

use crate::arbiter::{BufferId, Request};
use crate::channel::{Channel, Step};
pub use crate::channel::{ConnectError, Disconnect};
pub use command::{DataSourceSetup, Flush, ProducerCommand, SharedMemoryOffer};

/// Far more than the commits of every chunk of the largest shared memory buffer.
const OUTGOING_BYTES: usize = 5 * 1024 * 1024;

/// Whether the service may take chunks that were not committed out of our shared memory at the end of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scraping {
    /// The service's own setting.
    #[default]
    ServiceDefault,
    /// It may.
    Enabled,
    /// It must not.
    Disabled,
}

/// The producer's description of itself when it connects.
#[derive(Debug, Default)]
pub struct ProducerOptions {
    /// The name by which trace configs select it (`producer_name_filter`) and people recognise it.
    pub name: String,
    /// Free text, shown in the service's state.
    pub sdk_version: String,
    /// The page size we would like, in bytes, a multiple of 4096; 0 leaves it to the service. Required with `shared_memory`, because it gives that
    /// memory's layout.
    pub page_size_hint: u32,
    /// The size we would like for the shared memory, in bytes; 0 leaves it to the service.
    pub shared_memory_size_hint: u32,
    /// Whether uncommitted chunks may be scraped.
    pub scraping: Scraping,
    /// Shared memory that we made (a sealed memfd), for tracing that begins before the connection. An old service, or one that refuses it, offers its
    /// own instead; see [`ConnectionFeatures`].
    pub shared_memory: Option<OwnedFd>,
}

/// The options that the service agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionFeatures {
    /// It adopted the shared memory that we offered.
    pub uses_our_shared_memory: bool,
    /// The service lets us patch chunks in shared memory that were not committed yet.
    pub direct_patching: bool,
    /// Memory cannot be shared over this socket: commits carry the chunks' data.
    pub emulates_shared_memory: bool,
}

/// An event of the connection.
#[derive(Debug)]
pub enum ProducerEvent {
    /// The service accepted us. Earlier requests are on their way already.
    Connected(ConnectionFeatures),
    /// A command of the service.
    Command(ProducerCommand),
    /// The service has processed all requests before this [`ProducerEndpoint::sync`].
    Synced(CallId),
    /// The service has copied the chunks of a [`ProducerEndpoint::commit`] that asked for this.
    Committed(CallId),
    /// A request failed; the connection goes on.
    RequestFailed {
        /// The kind of the request.
        method: ProducerMethod,
        /// Why.
        reason: RequestError,
    },
    /// The connection ended: drop the endpoint. No more events follow, except failures of later requests.
    Disconnected(Disconnect),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// It got no reply.
    Call(CallError),
    /// The service refused to register a data source.
    DataSource(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Call(error) => error.fmt(f),
            RequestError::DataSource(value) => write!(f, "the service refused the data source: {value}"),
        }
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RequestError::Call(error) => error.source(),
            _ => None,
        }
    }
}

impl From<CallError> for RequestError {
    fn from(error: CallError) -> Self {
        RequestError::Call(error)
    }
}

/// Whether a commit is to be answered with [`ProducerEvent::Committed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitReply {
    /// It is.
    Wanted,
    /// No answer, which saves both sides a wake-up.
    Unwanted,
}

/// A producer's connection, see the [module](self).
#[derive(Debug)]
pub struct ProducerEndpoint {
    channel: Channel,
    /// The methods of calls whose reply is awaited.
    calls: HashMap<CallId, ProducerMethod>,
    features: Option<ConnectionFeatures>,
    offered_shared_memory: bool,
    /// Instances set up, since services before Android Q send no setup before the start.
    set_up: HashSet<DataSourceInstanceId>,
    ready: VecDeque<ProducerEvent>,
}

impl ProducerEndpoint {
    /// Connects to the service at `address`.
    ///
    /// # Errors
    /// If there is no connection, or the first requests cannot be queued.
    pub fn connect(address: &Address, options: ProducerOptions) -> Result<ProducerEndpoint, ConnectError> {
        Ok(Self::over(Stream::connect(address)?, options)?)
    }

    /// Uses a stream that is already connected.
    ///
    /// # Errors
    /// If the first requests cannot be queued.
    pub fn over(stream: Stream, options: ProducerOptions) -> Result<ProducerEndpoint, InvokeError> {
        let mut endpoint = ProducerEndpoint {
            channel: Channel::bind(stream, PRODUCER_PORT.name, OUTGOING_BYTES)?,
            calls: HashMap::new(),
            features: None,
            offered_shared_memory: options.shared_memory.is_some(),
            set_up: HashSet::new(),
            ready: VecDeque::new(),
        };
        endpoint.initialize(options)?;
        endpoint.call(ProducerMethod::GetAsyncCommand, Vec::new())?;
        Ok(endpoint)
    }

    fn initialize(&mut self, options: ProducerOptions) -> Result<(), InvokeError> {
        let request = InitializeConnectionRequest {
            producer_name: Some(options.name),
            shared_memory_size_hint_bytes: Some(options.shared_memory_size_hint),
            shared_memory_page_size_hint_bytes: Some(options.page_size_hint),
            smb_scraping_mode: match options.scraping {
                Scraping::ServiceDefault => None,
                Scraping::Enabled => Some(ProducerSMBScrapingMode::SMB_SCRAPING_ENABLED),
                Scraping::Disabled => Some(ProducerSMBScrapingMode::SMB_SCRAPING_DISABLED),
            },
            producer_provided_shmem: options.shared_memory.is_some().then_some(true),
            sdk_version: Some(options.sdk_version),
            ..Default::default()
        };
        let method = ProducerMethod::InitializeConnection;
        let call = Call::new(method.name(), request.encode_to_vec()).with_fd(options.shared_memory);
        let id = self.channel.invoke(call)?;
        self.calls.insert(id, method);
        Ok(())
    }

    /// The readiness to wait for on the descriptor ([`AsFd`]).
    pub fn interest(&self) -> Interest {
        self.channel.interest()
    }

    /// Reads the data that has arrived. Call it when the descriptor is readable, then take events.
    pub fn on_readable(&mut self) {
        self.channel.on_readable();
    }

    /// Sends waiting requests, as far as the socket takes them. Call it after making requests and when the descriptor is writable.
    pub fn flush(&mut self) {
        self.channel.flush();
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), on the monotonic clock; `None` once the service has answered.
    pub fn answer_due(&self) -> Option<u64> {
        self.channel.answer_due()
    }

    /// Gives up a service that has not answered by now ([`Disconnect::Silent`]), or goes on to the next address of its name. Call it when
    /// [`answer_due`](Self::answer_due) has passed, then take events.
    pub fn handle_timeout(&mut self, now: u64) {
        self.channel.handle_timeout(now);
    }

    /// The next event, or `None` when there is none for now.
    pub fn next_event(&mut self) -> Option<ProducerEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.channel.step() {
                Step::Idle => return None,
                Step::Again => {}
                Step::Lost(reason) => return Some(ProducerEvent::Disconnected(reason)),
                Step::Event(ClientEvent::Bound(_)) => {}
                Step::Event(ClientEvent::BindFailed(_)) => {
                    self.channel.end(Disconnect::NoSuchService(PRODUCER_PORT.name));
                }
                Step::Event(ClientEvent::Failed { call, error }) => self.on_failure(call, error),
                Step::Event(ClientEvent::Reply {
                    call, payload, fd, ..
                }) => {
                    let Some(&method) = self.calls.get(&call) else {
                        continue;
                    };
                    if method != ProducerMethod::GetAsyncCommand {
                        self.calls.remove(&call);
                    }
                    match Answer::decode(method, call, payload, fd) {
                        Ok(answer) => self.on_answer(answer),
                        Err(reason) => self.channel.end(reason),
                    }
                }
            }
        }
    }

    /// The options that the service agreed to; `None` until it has accepted us.
    pub fn features(&self) -> Option<ConnectionFeatures> {
        self.features
    }

    /// Offers a data source.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn register_data_source(&mut self, descriptor: DataSourceDescriptor) -> Result<(), InvokeError> {
        let request = RegisterDataSourceRequest {
            data_source_descriptor: MessageField::some(descriptor),
            ..Default::default()
        };
        self.call(ProducerMethod::RegisterDataSource, request.encode_to_vec())
            .map(drop)
    }

    /// Replaces the descriptor of a data source with the same name and id.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn update_data_source(&mut self, descriptor: DataSourceDescriptor) -> Result<(), InvokeError> {
        let request = UpdateDataSourceRequest {
            data_source_descriptor: MessageField::some(descriptor),
            ..Default::default()
        };
        self.call(ProducerMethod::UpdateDataSource, request.encode_to_vec())
            .map(drop)
    }

    /// Withdraws the data source `name`; its instances are stopped.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn unregister_data_source(&mut self, name: &str) -> Result<(), InvokeError> {
        let request = UnregisterDataSourceRequest {
            data_source_name: Some(name.to_owned()),
            ..Default::default()
        };
        self.tell(ProducerMethod::UnregisterDataSource, request.encode_to_vec())
    }

    /// Tells the service which buffer the chunks of a writer go to, for scraping.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn register_trace_writer(&mut self, writer: WriterId, target: BufferId) -> Result<(), InvokeError> {
        let request = RegisterTraceWriterRequest {
            trace_writer_id: Some(writer.0.into()),
            target_buffer: Some(target.0.into()),
            ..Default::default()
        };
        self.tell(ProducerMethod::RegisterTraceWriter, request.encode_to_vec())
    }

    /// Tells the service that a writer is gone.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub(crate) fn unregister_trace_writer(&mut self, writer: WriterId) -> Result<(), InvokeError> {
        let request = UnregisterTraceWriterRequest {
            trace_writer_id: Some(writer.0.into()),
            ..Default::default()
        };
        self.tell(ProducerMethod::UnregisterTraceWriter, request.encode_to_vec())
    }

    /// Hands chunks to the service, patches chunks handed over before, acknowledges a flush. A request larger than a
    /// frame is sent in parts, the acknowledgement with the last.
    ///
    /// # Errors
    /// If so much is waiting to be sent that a part has no room. The parts before it were sent then.
    pub fn commit(
        &mut self,
        request: CommitDataRequest,
        reply: CommitReply,
    ) -> Result<Option<CallId>, InvokeError> {
        let mut parts = split_commit(request);
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            self.tell(ProducerMethod::CommitData, part.encode_to_vec())?;
        }
        match reply {
            CommitReply::Wanted => self
                .call(ProducerMethod::CommitData, last.encode_to_vec())
                .map(Some),
            CommitReply::Unwanted => {
                self.tell(ProducerMethod::CommitData, last.encode_to_vec())?;
                Ok(None)
            }
        }
    }

    /// Sends a request of the arbiter.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room.
    pub fn send(&mut self, request: Request) -> Result<(), InvokeError> {
        match request {
            Request::RegisterTraceWriter(writer, target) => self.register_trace_writer(writer, target),
            Request::CommitData(commit) => self.commit(commit, CommitReply::Unwanted).map(drop),
            Request::UnregisterTraceWriter(writer) => self.unregister_trace_writer(writer),
        }
    }

    /// Acknowledges a flush, and all earlier ones, for which no data remains to be committed.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn acknowledge_flush(&mut self, flush: FlushRequestId) -> Result<(), InvokeError> {
        let request = CommitDataRequest {
            flush_request_id: Some(flush.0),
            ..Default::default()
        };
        self.tell(ProducerMethod::CommitData, request.encode_to_vec())
    }

    /// Reports that an instance runs, for data sources with `will_notify_on_start`.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn notify_data_source_started(&mut self, instance: DataSourceInstanceId) -> Result<(), InvokeError> {
        let request = NotifyDataSourceStartedRequest {
            data_source_id: Some(instance.0),
            ..Default::default()
        };
        self.tell(ProducerMethod::NotifyDataSourceStarted, request.encode_to_vec())
    }

    /// Reports that an instance has stopped, for data sources with `will_notify_on_stop`.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn notify_data_source_stopped(&mut self, instance: DataSourceInstanceId) -> Result<(), InvokeError> {
        let request = NotifyDataSourceStoppedRequest {
            data_source_id: Some(instance.0),
            ..Default::default()
        };
        self.tell(ProducerMethod::NotifyDataSourceStopped, request.encode_to_vec())
    }

    /// Activates triggers by name, in all sessions that wait for them.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn activate_triggers(&mut self, names: &[impl AsRef<str>]) -> Result<(), InvokeError> {
        let trigger_names = names.iter().map(|name| name.as_ref().to_owned()).collect();
        let request = ActivateTriggersRequest {
            trigger_names,
            ..Default::default()
        };
        self.tell(ProducerMethod::ActivateTriggers, request.encode_to_vec())
    }

    /// Asks for [`ProducerEvent::Synced`] once the service has processed all earlier requests.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn sync(&mut self) -> Result<CallId, InvokeError> {
        self.call(ProducerMethod::Sync, Vec::new())
    }

    /// Bytes that may be queued before requests are refused.
    pub fn outgoing_room(&self) -> usize {
        self.channel.outgoing_room()
    }

    /// A request whose reply matters.
    fn call(&mut self, method: ProducerMethod, arguments: Vec<u8>) -> Result<CallId, InvokeError> {
        let id = self.channel.invoke(Call::new(method.name(), arguments))?;
        self.calls.insert(id, method);
        Ok(id)
    }

    /// A request that needs no reply.
    fn tell(&mut self, method: ProducerMethod, arguments: Vec<u8>) -> Result<(), InvokeError> {
        self.channel
            .invoke(Call::new(method.name(), arguments).without_reply())
            .map(drop)
    }

    fn on_failure(&mut self, call: CallId, error: CallError) {
        let method = self.calls.remove(&call);
        match (method, error) {
            // The end of the connection is reported once, for all.
            (_, CallError::ConnectionLost | CallError::UnknownService { .. }) => {}
            (Some(ProducerMethod::InitializeConnection), _) => {
                self.channel.end(Disconnect::Rejected);
            }
            // A service too old for `Sync` has still processed the earlier requests, so its error is a weaker fence.
            (Some(ProducerMethod::Sync), _) => self.ready.push_back(ProducerEvent::Synced(call)),
            (Some(method), error) => {
                self.ready.push_back(ProducerEvent::RequestFailed {
                    method,
                    reason: error.into(),
                });
            }
            // The reply is not awaited, but an old service that lacks the method is worth reporting.
            (
                None,
                CallError::UnknownMethod {
                    service,
                    method: name,
                },
            ) => {
                if let Some(method) = ProducerMethod::from_name(name) {
                    let reason = CallError::UnknownMethod {
                        service,
                        method: name,
                    }
                    .into();
                    self.ready
                        .push_back(ProducerEvent::RequestFailed { method, reason });
                }
            }
            (None, _) => {}
        }
    }

    fn on_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Initialized(features) => {
                self.features = Some(features);
                self.ready.push_back(ProducerEvent::Connected(features));
            }
            Answer::Registered { error } => {
                if let Some(error) = error.filter(|error| !error.is_empty()) {
                    self.ready.push_back(ProducerEvent::RequestFailed {
                        method: ProducerMethod::RegisterDataSource,
                        reason: RequestError::DataSource(error),
                    });
                }
            }
            Answer::Command(command) => self.on_command(command),
            Answer::Synced(call) => self.ready.push_back(ProducerEvent::Synced(call)),
            Answer::Committed(call) => self.ready.push_back(ProducerEvent::Committed(call)),
            Answer::Nothing => {}
        }
    }

    fn on_command(&mut self, command: command::Received) {
        let command = match command {
            command::Received::SetupTracing { page_size, fd } => {
                let features = self.features.unwrap_or_default();
                let memory = match fd {
                    _ if features.emulates_shared_memory => SharedMemoryOffer::Emulated { page_size },
                    Some(fd) => SharedMemoryOffer::FromService { fd, page_size },
                    None if self.offered_shared_memory => SharedMemoryOffer::Ours,
                    None => {
                        return self
                            .channel
                            .end(Disconnect::Nonsense("it set up tracing without shared memory"));
                    }
                };
                ProducerCommand::SetupTracing(memory)
            }
            command::Received::SetupDataSource(setup) => {
                self.set_up.insert(setup.instance);
                ProducerCommand::SetupDataSource(setup)
            }
            command::Received::StartDataSource(setup) => {
                if self.set_up.insert(setup.instance) {
                    let setup = ProducerCommand::SetupDataSource(setup.clone());
                    self.ready.push_back(ProducerEvent::Command(setup));
                }
                ProducerCommand::StartDataSource(setup)
            }
            command::Received::StopDataSource(instance) => {
                self.set_up.remove(&instance);
                ProducerCommand::StopDataSource(instance)
            }
            command::Received::Flush(flush) => ProducerCommand::Flush(flush),
            command::Received::ClearIncrementalState(instances) => {
                ProducerCommand::ClearIncrementalState(instances)
            }
            // A command of a newer service; upstream ignores it too.
            command::Received::Unknown => return,
        };
        self.ready.push_back(ProducerEvent::Command(command));
    }
}

impl AsFd for ProducerEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A decoded reply.
enum Answer {
    Initialized(ConnectionFeatures),
    Registered {
        error: Option<String>,
    },
    Command(command::Received),
    Synced(CallId),
    Committed(CallId),
    /// An empty reply without information.
    Nothing,
}

impl Answer {
    fn decode(
        method: ProducerMethod,
        call: CallId,
        payload: &[u8],
        fd: Option<OwnedFd>,
    ) -> Result<Answer, Disconnect> {
        let malformed = |message, reason: ferretto_proto::messages::DecodeError| Disconnect::Malformed {
            message,
            reason: reason.to_string(),
        };
        Ok(match method {
            ProducerMethod::InitializeConnection => {
                let response = InitializeConnectionResponse::decode_from_slice(payload)
                    .map_err(|error| malformed("InitializeConnectionResponse", error))?;
                Answer::Initialized(ConnectionFeatures {
                    uses_our_shared_memory: response.using_shmem_provided_by_producer.unwrap_or(false),
                    direct_patching: response.direct_smb_patching_supported.unwrap_or(false),
                    emulates_shared_memory: response.use_shmem_emulation.unwrap_or(false),
                })
            }
            ProducerMethod::RegisterDataSource => {
                let response = RegisterDataSourceResponse::decode_from_slice(payload)
                    .map_err(|error| malformed("RegisterDataSourceResponse", error))?;
                Answer::Registered {
                    error: response.error,
                }
            }
            ProducerMethod::GetAsyncCommand => {
                let command = command::Received::decode(payload, fd)
                    .map_err(|error| malformed("GetAsyncCommandResponse", error))?;
                Answer::Command(command)
            }
            ProducerMethod::Sync => Answer::Synced(call),
            ProducerMethod::CommitData => Answer::Committed(call),
            _ => Answer::Nothing,
        })
    }
}

/// Splits a commit so that each part fits a frame, in order; the flush is acknowledged by the last.
fn split_commit(mut request: CommitDataRequest) -> Vec<CommitDataRequest> {
    /// Tag and length of a field, generously.
    const FIELD_OVERHEAD: usize = 8;
    if request.encoded_len() <= MAX_PAYLOAD {
        return vec![request];
    }
    // Leaves room for the flush id and for fields of a future that the last part keeps.
    let limit = MAX_PAYLOAD - 64;
    let mut parts = Vec::new();
    let mut part = CommitDataRequest::default();
    let mut size = 0;
    let mut make_room = |part: &mut CommitDataRequest, needed: usize| {
        if size + needed > limit && size > 0 {
            parts.push(std::mem::take(part));
            size = 0;
        }
        size += needed;
    };
    for chunk in std::mem::take(&mut request.chunks_to_move) {
        make_room(&mut part, chunk.encoded_len() + FIELD_OVERHEAD);
        part.chunks_to_move.push(chunk);
    }
    for patch in std::mem::take(&mut request.chunks_to_patch) {
        make_room(&mut part, patch.encoded_len() + FIELD_OVERHEAD);
        part.chunks_to_patch.push(patch);
    }
    request.chunks_to_move = part.chunks_to_move;
    request.chunks_to_patch = part.chunks_to_patch;
    parts.push(request);
    parts
}
