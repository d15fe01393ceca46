//! The consumer's end of the connection to the tracing service (`ConsumerPort`).
//!
//! Called by the command line and the SDK's system sessions, which watch the endpoint's descriptor for
//! [`interest`](ConsumerEndpoint::interest), call [`on_readable`](ConsumerEndpoint::on_readable) and
//! [`flush`](ConsumerEndpoint::flush), and take events until there are none. Every request gets at least one
//! [`ConsumerEvent::Reply`] with its id, an error when the connection ends first; then comes
//! [`ConsumerEvent::Disconnected`], which is the last. Nobody has to answer, so the caller also calls [`handle_timeout`](ConsumerEndpoint::handle_timeout)
//! when [`answer_due`](ConsumerEndpoint::answer_due) has passed.
//!
//! Trace configs are sent as the bytes that the caller passes, so that fields of a newer schema reach the service.

mod reply;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ferretto_ipc::client::{Call, CallError, CallId, ClientEvent, InvokeError, More};
use ferretto_ipc::ports::{CONSUMER_PORT, ConsumerMethod};
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::{Address, Stream};
use ferretto_proto::messages::observable_events::Type as ObservableEventType;
use ferretto_proto::messages::{
    AttachRequest, ChangeTraceConfigRequest, CloneSessionRequest, DetachRequest, EnableTracingRequest,
    FlushRequest, Message, ObserveEventsRequest, QueryServiceStateRequest,
};
use ferretto_wire::Writer;

use crate::channel::{Channel, Step};
pub use crate::channel::{ConnectError, Disconnect};
use reply::Assembly;
pub use reply::ConsumerReply;
pub use values::{Packets, StateScope};

/// Room for the largest config, which has to fit one frame, and many small requests.
const OUTGOING_BYTES: usize = 1024 * 1024;

/// An event of the connection.
#[derive(Debug)]
pub enum ConsumerEvent {
    /// The service has answered. Requests may be made before.
    Connected,
    /// A request was answered; streaming ones ([`ConsumerEndpoint::read_buffers`],
    /// [`ConsumerEndpoint::observe_events`]) many times.
    Reply {
        /// The id that was returned for the request.
        request: CallId,
        /// The kind of the request.
        method: ConsumerMethod,
        /// The answer.
        reply: Result<ConsumerReply, CallError>,
    },
    /// The connection ended: drop the endpoint. No more events follow, except failures of later requests.
    Disconnected(Disconnect),
}

/// A consumer's connection, see the [module](self).
#[derive(Debug)]
pub struct ConsumerEndpoint {
    channel: Channel,
    calls: HashMap<CallId, ConsumerMethod>,
    assembly: Assembly,
    ready: VecDeque<ConsumerEvent>,
}

impl ConsumerEndpoint {
    /// Connects to the service at `address`.
    ///
    /// # Errors
    /// If there is no connection, or the request for the methods of the service cannot be queued.
    pub fn connect(address: &Address) -> Result<ConsumerEndpoint, ConnectError> {
        Ok(Self::over(Stream::connect(address)?)?)
    }

    /// Uses a stream that is already connected.
    ///
    /// # Errors
    /// If the request for the methods of the service cannot be queued.
    pub fn over(stream: Stream) -> Result<ConsumerEndpoint, InvokeError> {
        Ok(ConsumerEndpoint {
            channel: Channel::bind(stream, CONSUMER_PORT.name, OUTGOING_BYTES)?,
            calls: HashMap::new(),
            assembly: Assembly::default(),
            ready: VecDeque::new(),
        })
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
    pub fn next_event(&mut self) -> Option<ConsumerEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            match self.channel.step() {
                Step::Idle => return None,
                Step::Again => {}
                Step::Lost(reason) => return Some(ConsumerEvent::Disconnected(reason)),
                Step::Event(ClientEvent::Bound(_)) => return Some(ConsumerEvent::Connected),
                Step::Event(ClientEvent::BindFailed(_)) => {
                    self.channel.end(Disconnect::NoSuchService(CONSUMER_PORT.name));
                }
                Step::Event(ClientEvent::Failed { call, error }) => {
                    let Some(method) = self.calls.remove(&call) else {
                        continue;
                    };
                    self.assembly.forget(call);
                    // Services before Android R have no capabilities to report.
                    let reply = match (method, error) {
                        (_, error @ (CallError::ConnectionLost | CallError::UnknownService { .. })) => {
                            Err(error)
                        }
                        (ConsumerMethod::QueryCapabilities, _) => {
                            Ok(ConsumerReply::Capabilities(Box::default()))
                        }
                        (_, error) => Err(error),
                    };
                    return Some(ConsumerEvent::Reply {
                        request: call,
                        method,
                        reply,
                    });
                }
                Step::Event(ClientEvent::Reply {
                    call, payload, more, ..
                }) => {
                    let Some(&method) = self.calls.get(&call) else {
                        continue;
                    };
                    if more == More::Last {
                        self.calls.remove(&call);
                    }
                    match self.assembly.take(call, method, payload, more) {
                        Ok(None) => {}
                        Ok(Some(reply)) => self.on_reply(call, method, reply),
                        Err(reason) => self.channel.end(reason),
                    }
                }
            }
        }
    }

    /// Enables tracing as the encoded `trace_config` says. With `write_into_file` the packets go to `file`.
    /// [`ConsumerReply::TracingDisabled`] comes when tracing has ended.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn enable_tracing(
        &mut self,
        trace_config: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<CallId, InvokeError> {
        let request = with_config(EnableTracingRequest::TRACE_CONFIG, trace_config);
        self.invoke(ConsumerMethod::EnableTracing, request, file)
    }

    /// Starts a session enabled with `deferred_start`.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn start_tracing(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::StartTracing, Vec::new(), None)
    }

    /// Changes the parts of a running session's config that can change: producer filters, mostly.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn change_trace_config(&mut self, trace_config: &[u8]) -> Result<CallId, InvokeError> {
        let request = with_config(ChangeTraceConfigRequest::TRACE_CONFIG, trace_config);
        self.invoke(ConsumerMethod::ChangeTraceConfig, request, None)
    }

    /// Stops the session. [`ConsumerReply::TracingDisabled`], for the request that enabled it, reports the end.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn disable_tracing(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::DisableTracing, Vec::new(), None)
    }

    /// Has all producers write out their data. The reply is an error when a producer did not do so within `timeout_ms` (0: the service's default).
    /// `flags` tell the initiator and the reason (upstream's `FlushFlags`).
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn flush_producers(&mut self, timeout_ms: u32, flags: u64) -> Result<CallId, InvokeError> {
        let request = FlushRequest {
            timeout_ms: Some(timeout_ms),
            flags: Some(flags),
            ..Default::default()
        };
        self.invoke(ConsumerMethod::Flush, request.encode_to_vec(), None)
    }

    /// Reads the session's buffers to their end: a stream of [`ConsumerReply::TraceData`].
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn read_buffers(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::ReadBuffers, Vec::new(), None)
    }

    /// Ends the session and frees its buffers.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn free_buffers(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::FreeBuffers, Vec::new(), None)
    }

    /// Leaves the session running, to be attached again under `key`.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn detach(&mut self, key: &str) -> Result<CallId, InvokeError> {
        let request = DetachRequest {
            key: Some(key.to_owned()),
            ..Default::default()
        };
        self.invoke(ConsumerMethod::Detach, request.encode_to_vec(), None)
    }

    /// Takes over a session detached under `key`: [`ConsumerReply::Attached`]. Its end is then reported as for a session of ours, in a reply of the
    /// kind [`ConsumerMethod::EnableTracing`].
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn attach(&mut self, key: &str) -> Result<CallId, InvokeError> {
        let request = AttachRequest {
            key: Some(key.to_owned()),
            ..Default::default()
        };
        self.invoke(ConsumerMethod::Attach, request.encode_to_vec(), None)
    }

    /// Asks for the session's statistics.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn trace_stats(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::GetTraceStats, Vec::new(), None)
    }

    /// Asks for events: a stream of [`ConsumerReply::Observed`] that ends with the next such request. An empty list ends it for good.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn observe_events(&mut self, types: &[ObservableEventType]) -> Result<CallId, InvokeError> {
        let request = ObserveEventsRequest {
            events_to_observe: types.to_vec(),
            ..Default::default()
        };
        self.invoke(ConsumerMethod::ObserveEvents, request.encode_to_vec(), None)
    }

    /// Asks for the service's state: one [`ConsumerReply::ServiceState`].
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn query_service_state(&mut self, scope: StateScope) -> Result<CallId, InvokeError> {
        let request = QueryServiceStateRequest {
            sessions_only: Some(scope == StateScope::SessionsOnly),
            ..Default::default()
        };
        self.invoke(ConsumerMethod::QueryServiceState, request.encode_to_vec(), None)
    }

    /// Asks for the capabilities of the service. A service that is too old to answer has none.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn query_capabilities(&mut self) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::QueryCapabilities, Vec::new(), None)
    }

    /// Clones a session; the clone is ours then, stopped and ready to be read. `file` takes the data when the session
    /// writes into a file.
    ///
    /// # Errors
    /// If the request is larger than a frame, or so much is waiting to be sent that it has no room. Nothing was sent then.
    pub fn clone_session(
        &mut self,
        request: &CloneSessionRequest,
        file: Option<OwnedFd>,
    ) -> Result<CallId, InvokeError> {
        self.invoke(ConsumerMethod::CloneSession, request.encode_to_vec(), file)
    }

    fn invoke(
        &mut self,
        method: ConsumerMethod,
        arguments: Vec<u8>,
        fd: Option<OwnedFd>,
    ) -> Result<CallId, InvokeError> {
        let id = self
            .channel
            .invoke(Call::new(method.name(), arguments).with_fd(fd))?;
        self.calls.insert(id, method);
        Ok(id)
    }

    fn on_reply(&mut self, request: CallId, method: ConsumerMethod, reply: ConsumerReply) {
        if let ConsumerReply::Attached { .. } = reply {
            // The service reports the end of the session to the consumer that asked for it last.
            let mut notification_only = Writer::new();
            notification_only.varint_field(EnableTracingRequest::ATTACH_NOTIFICATION_ONLY, 1);
            let arguments = notification_only.as_slice().to_vec();
            if self
                .invoke(ConsumerMethod::EnableTracing, arguments, None)
                .is_err()
            {
                return self
                    .channel
                    .end(Disconnect::Nonsense("it reads none of our requests"));
            }
        }
        self.ready.push_back(ConsumerEvent::Reply {
            request,
            method,
            reply: Ok(reply),
        });
    }
}

impl AsFd for ConsumerEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A request that has the config in its field of this number.
fn with_config(number: u32, trace_config: &[u8]) -> Vec<u8> {
    let mut request = Writer::with_capacity(trace_config.len() + 16);
    request.bytes_field(number, trace_config);
    request.as_slice().to_vec()
}
