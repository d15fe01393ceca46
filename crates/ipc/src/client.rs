//! The client's end of one connection, without I/O.
//!
//! Called by the producer and consumer endpoints of `ferretto-client`: [`bind`](ClientConnection::bind) names a
//! service, [`invoke`](ClientConnection::invoke) calls one of its methods by name, bytes from the socket go in with
//! [`receive`](Connection::receive), replies come out of [`next_event`](ClientConnection::next_event), and
//! bytes to send wait in [`outgoing`](ClientConnection::outgoing).
//!
//! Calls made before the service is bound wait for that. Every call that wants a reply gets at least one event; a
//! call that cannot be made, because the service is older than the method, gets [`CallError::UnknownMethod`], whether
//! it wants a reply or not.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;

use crate::frame::{Frame, FrameDecoder, MAX_PAYLOAD, PayloadTooLarge, Violation, WAITING_COST};
use crate::outgoing::{OutgoingFull, OutgoingQueue};
use crate::passed_fd::PassedFd;
use crate::reactor::Interest;
use crate::transport::Connection;
use crate::wire_protocol::{self, Body, Message, PeerIdentity};

#[cfg(test)]
mod tests;

/// A service that this client bound or is binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceHandle(usize);

/// The id of a call, by which replies are told apart. Unique within a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

/// A method call to be made.
#[derive(Debug)]
pub struct Call {
    method: &'static str,
    arguments: Vec<u8>,
    fd: Option<OwnedFd>,
    reply: ReplyHandling,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyHandling {
    Awaited,
    Dropped,
}

impl Call {
    /// A call of `method` with an encoded request message, whose reply is awaited.
    pub fn new(method: &'static str, arguments: Vec<u8>) -> Call {
        Call {
            method,
            arguments,
            fd: None,
            reply: ReplyHandling::Awaited,
        }
    }

    /// Passes a descriptor along; it is closed here once it is sent.
    pub fn with_fd(mut self, fd: Option<OwnedFd>) -> Call {
        self.fd = fd;
        self
    }

    /// Asks the host for no reply, which saves both sides a wake-up.
    pub fn without_reply(mut self) -> Call {
        self.reply = ReplyHandling::Dropped;
        self
    }

    fn size(&self) -> usize {
        self.arguments.len() + WAITING_COST
    }
}

/// Why a call was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvokeError {
    /// The arguments exceed a frame.
    TooLarge(PayloadTooLarge),
    /// The service does not read.
    Full(OutgoingFull),
}

impl fmt::Display for InvokeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvokeError::TooLarge(error) => error.fmt(f),
            InvokeError::Full(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvokeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            InvokeError::TooLarge(error) => error.source(),
            InvokeError::Full(error) => error.source(),
        }
    }
}

impl From<PayloadTooLarge> for InvokeError {
    fn from(error: PayloadTooLarge) -> Self {
        InvokeError::TooLarge(error)
    }
}

impl From<OutgoingFull> for InvokeError {
    fn from(error: OutgoingFull) -> Self {
        InvokeError::Full(error)
    }
}

/// Why a call has no (further) reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// The host has no such service.
    UnknownService {
        /// The service's name.
        service: String,
    },
    /// The service has no such method: it is older than this client.
    UnknownMethod {
        /// The service's name.
        service: String,
        /// The method's name.
        method: &'static str,
    },
    /// The service made the call fail, and did not say why.
    Rejected,
    /// Why the service made the call fail, or that the host could not make sense of it.
    Host(String),
    /// The connection ended before the reply came.
    ConnectionLost,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::UnknownService { service } => write!(f, "the service offers no {service}"),
            CallError::UnknownMethod { service, method } => write!(
                f,
                "the service does not know the method {service}.{method}; it may be too old"
            ),
            CallError::Rejected => f.write_str("the service rejected the call"),
            CallError::Host(value) => write!(f, "the service answered: {value}"),
            CallError::ConnectionLost => f.write_str("the connection to the service was lost"),
        }
    }
}

impl std::error::Error for CallError {}

/// An event on the connection.
#[derive(Debug)]
pub enum ClientEvent<'a> {
    /// A service is bound.
    Bound(ServiceHandle),
    /// The host has no such service, or the connection ended before it answered.
    BindFailed(ServiceHandle),
    /// A call was answered.
    Reply {
        /// The call.
        call: CallId,
        /// The encoded reply message.
        payload: &'a [u8],
        /// Whether other replies to the same call follow.
        more: More,
        /// A descriptor that came with it.
        fd: Option<OwnedFd>,
    },
    /// A call has no (further) reply.
    Failed {
        /// The call.
        call: CallId,
        /// Why.
        error: CallError,
    },
}

/// Whether a reply is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Others follow.
    Follows,
    /// The call is done.
    Last,
}

/// A connection to a host, see the [module](self).
#[derive(Debug)]
pub struct ClientConnection {
    decoder: FrameDecoder,
    outgoing: OutgoingQueue,
    /// Bytes of calls that wait for their service to be bound; they count against the limit of `outgoing`.
    held: usize,
    last_request_id: u64,
    last_call: u64,
    bindings: Vec<Binding>,
    /// By request id.
    pending: HashMap<u64, Pending>,
    /// Events that arose here rather than in a frame.
    local: VecDeque<LocalEvent>,
    lost: bool,
}

#[derive(Debug)]
struct Binding {
    service: String,
    state: BindingState,
}

#[derive(Debug)]
enum BindingState {
    /// The calls wait for the answer.
    Requested(Vec<(CallId, Call)>),
    Bound {
        service_id: u32,
        methods: HashMap<String, u32>,
    },
    Failed,
}

#[derive(Debug, Clone, Copy)]
enum Pending {
    Bind(ServiceHandle),
    Call(CallId),
}

#[derive(Debug)]
enum LocalEvent {
    Bound(ServiceHandle),
    BindFailed(ServiceHandle),
    Failed(CallId, CallError),
}

/// A reply whose payload still lies in the decoder.
struct ReplyAt {
    call: CallId,
    payload: Range<usize>,
    more: More,
}

impl ClientConnection {
    /// A new connection, on which at most `outgoing_bytes` may wait to be sent.
    pub fn new(outgoing_bytes: usize) -> ClientConnection {
        ClientConnection {
            decoder: FrameDecoder::new(),
            outgoing: OutgoingQueue::new(outgoing_bytes),
            held: 0,
            last_request_id: 0,
            last_call: 0,
            bindings: Vec::new(),
            pending: HashMap::new(),
            local: VecDeque::new(),
            lost: false,
        }
    }

    /// Asks the host for the methods of `service`. [`ClientEvent::Bound`] or [`ClientEvent::BindFailed`] follows;
    /// calls can be made right away.
    ///
    /// # Errors
    /// If the service's name is larger than a frame, or so much is waiting to be sent that the request has no room.
    pub fn bind(&mut self, service: &str) -> Result<ServiceHandle, InvokeError> {
        let handle = ServiceHandle(self.bindings.len());
        let request_id = self.last_request_id + 1;
        let frame = wire_protocol::bind_service(request_id, service)?;
        self.outgoing.push(frame)?;
        self.last_request_id = request_id;
        self.pending.insert(request_id, Pending::Bind(handle));
        self.bindings.push(Binding {
            service: service.to_owned(),
            state: BindingState::Requested(Vec::new()),
        });
        Ok(handle)
    }

    /// The methods of a bound service, sorted by name; empty before it is bound.
    pub fn methods(&self, service: ServiceHandle) -> Vec<&str> {
        let BindingState::Bound { methods, .. } = &self.bindings[service.0].state else {
            return Vec::new();
        };
        let mut names: Vec<&str> = methods.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Calls a method. On an error nothing was sent and no event follows.
    ///
    /// # Errors
    /// If the arguments are larger than a frame, or so much is waiting to be sent that the call has no room.
    pub fn invoke(&mut self, service: ServiceHandle, call: Call) -> Result<CallId, InvokeError> {
        if call.arguments.len() > MAX_PAYLOAD {
            return Err(PayloadTooLarge {
                size: call.arguments.len(),
            }
            .into());
        }
        if call.size() > self.outgoing_room() {
            return Err(InvokeError::Full(OutgoingFull {
                queued: self.outgoing.held() + self.held,
                frame: call.size(),
                limit: self.outgoing.held() + self.outgoing.room(),
            }));
        }
        self.last_call += 1;
        let id = CallId(self.last_call);
        if self.lost {
            self.local
                .push_back(LocalEvent::Failed(id, CallError::ConnectionLost));
        } else if let BindingState::Requested(waiting) = &mut self.bindings[service.0].state {
            self.held += call.size();
            waiting.push((id, call));
        } else {
            self.send(service, id, call);
        }
        Ok(id)
    }

    /// Bytes of arguments, with about a hundred for each call, that can be queued now.
    pub fn outgoing_room(&self) -> usize {
        self.outgoing.room().saturating_sub(self.held)
    }

    /// Declares the process that a relay speaks for. Hosts heed it only on connections other than Unix sockets, and only the first.
    ///
    /// # Errors
    /// If the identity is larger than a frame, or so much is waiting to be sent that it has no room.
    pub fn set_peer_identity(&mut self, identity: &PeerIdentity) -> Result<(), InvokeError> {
        Ok(self.outgoing.push(wire_protocol::set_peer_identity(identity)?)?)
    }

    /// The readiness to wait for on the socket.
    pub fn interest(&self) -> Interest {
        Interest::from_wants(self.wants_input(), !self.outgoing.is_empty())
    }

    /// The bytes to send.
    pub fn outgoing(&mut self) -> &mut OutgoingQueue {
        &mut self.outgoing
    }

    /// Reports that the socket is closed: everything outstanding fails, as [`next_event`](Self::next_event) then reports. Frames received before are
    /// still handed out first.
    pub fn connection_lost(&mut self) {
        self.lost = true;
        self.outgoing.clear();
    }

    /// Whether a host has answered what was asked of it, with a service or without.
    pub fn is_answered(&self) -> bool {
        let is_unanswered = |binding: &Binding| matches!(binding.state, BindingState::Requested(_));
        !self.bindings.iter().all(is_unanswered)
    }

    /// Asks another host the same, over a new connection. Only while none [has answered](Self::is_answered): calls wait until then, so nothing is
    /// lost. The identity that [`set_peer_identity`](Self::set_peer_identity) declared is to be declared again.
    pub fn begin_again(&mut self) {
        debug_assert!(!self.is_answered(), "calls may have been sent");
        self.outgoing.clear();
        let mut requests: Vec<u64> = self.pending.keys().copied().collect();
        requests.sort_unstable();
        for request_id in requests {
            if let Some(Pending::Bind(handle)) = self.pending.get(&request_id) {
                let frame = wire_protocol::bind_service(request_id, &self.bindings[handle.0].service);
                let queued = frame.map(|frame| self.outgoing.push(frame));
                debug_assert!(matches!(queued, Ok(Ok(()))), "it had room before: {queued:?}");
            }
        }
        self.decoder = FrameDecoder::new();
        self.lost = false;
    }

    /// The next event, or `None` when there is none for now. A violation, reported once, ends the connection: the next calls report that all
    /// outstanding calls fail.
    ///
    /// # Errors
    /// If the host sent something that is no frame, or a frame that is too large.
    pub fn next_event(&mut self) -> Result<Option<ClientEvent<'_>>, Violation> {
        loop {
            if let Some(event) = self.local.pop_front() {
                return Ok(Some(match event {
                    LocalEvent::Bound(service) => ClientEvent::Bound(service),
                    LocalEvent::BindFailed(service) => ClientEvent::BindFailed(service),
                    LocalEvent::Failed(call, error) => ClientEvent::Failed { call, error },
                }));
            }
            let (mut frame, message) = match self.next_message() {
                Ok(Some(frame_and_message)) => frame_and_message,
                Ok(None) if self.lost && self.fail_outstanding() => continue,
                Ok(None) => return Ok(None),
                Err(violation) => {
                    self.connection_lost();
                    self.decoder = FrameDecoder::new();
                    return Err(violation);
                }
            };
            if let Some(reply) = self.handle(message, &frame) {
                let fd = frame.fd.take().map(PassedFd::into_inner);
                let payload = &self.decoder.body(&frame)[reply.payload];
                return Ok(Some(ClientEvent::Reply {
                    call: reply.call,
                    payload,
                    more: reply.more,
                    fd,
                }));
            }
        }
    }

    fn next_message(&mut self) -> Result<Option<(Frame, Message)>, Violation> {
        let Some(frame) = self.decoder.next_frame()? else {
            return Ok(None);
        };
        let message = Message::decode(self.decoder.body(&frame))?;
        Ok(Some((frame, message)))
    }

    /// Handles a frame. Returns a successful reply, and turns everything else into local events. Ignores replies to requests that are not ours, as
    /// upstream's client does.
    fn handle(&mut self, message: Message, frame: &Frame) -> Option<ReplyAt> {
        let pending = self.pending.remove(&message.request_id)?;
        match (pending, message.body) {
            (
                Pending::Bind(handle),
                Body::BindServiceReply {
                    success: true,
                    service_id,
                    methods,
                },
            ) => {
                self.bound(handle, service_id, methods);
            }
            (Pending::Bind(handle), _) => self.bind_failed(handle),
            (
                Pending::Call(call),
                Body::InvokeMethodReply {
                    success: true,
                    has_more,
                    reply,
                },
            ) => {
                let more = if has_more { More::Follows } else { More::Last };
                if has_more {
                    self.pending.insert(message.request_id, pending);
                }
                return Some(ReplyAt {
                    call,
                    payload: reply,
                    more,
                });
            }
            (Pending::Call(call), Body::InvokeMethodReply { reply, .. }) => {
                let error = match &*String::from_utf8_lossy(&self.decoder.body(frame)[reply]) {
                    "" => CallError::Rejected,
                    reason => CallError::Host(reason.to_owned()),
                };
                self.fail(call, error);
            }
            (Pending::Call(call), Body::RequestError { error }) => self.fail(call, CallError::Host(error)),
            (Pending::Call(call), _) => {
                self.fail(call, CallError::Host("a reply of the wrong kind".to_owned()));
            }
        }
        None
    }

    fn bound(&mut self, handle: ServiceHandle, service_id: u32, methods: Vec<(u32, String)>) {
        let methods = methods
            .into_iter()
            .filter(|(id, name)| *id != 0 && !name.is_empty())
            .map(|(id, name)| (name, id))
            .collect();
        let state = BindingState::Bound { service_id, methods };
        let waiting = self.replace_state(handle, state);
        self.local.push_back(LocalEvent::Bound(handle));
        for (id, call) in waiting {
            self.send(handle, id, call);
        }
    }

    fn bind_failed(&mut self, handle: ServiceHandle) {
        let waiting = self.replace_state(handle, BindingState::Failed);
        self.local.push_back(LocalEvent::BindFailed(handle));
        for (id, call) in waiting {
            self.send(handle, id, call);
        }
    }

    /// Changes a binding's state and gives back the calls that waited for it.
    fn replace_state(&mut self, handle: ServiceHandle, state: BindingState) -> Vec<(CallId, Call)> {
        let old = std::mem::replace(&mut self.bindings[handle.0].state, state);
        let BindingState::Requested(waiting) = old else {
            return Vec::new();
        };
        self.held -= waiting.iter().map(|(_, call)| call.size()).sum::<usize>();
        waiting
    }

    /// Sends a call whose service's answer is known; room for it was checked when it was made.
    fn send(&mut self, service: ServiceHandle, id: CallId, call: Call) {
        let binding = &self.bindings[service.0];
        let BindingState::Bound { service_id, methods } = &binding.state else {
            let error = if self.lost {
                CallError::ConnectionLost
            } else {
                CallError::UnknownService {
                    service: binding.service.clone(),
                }
            };
            return self.fail(id, error);
        };
        let Some(&method_id) = methods.get(call.method) else {
            let error = CallError::UnknownMethod {
                service: binding.service.clone(),
                method: call.method,
            };
            return self.fail(id, error);
        };
        self.last_request_id += 1;
        let drop_reply = call.reply == ReplyHandling::Dropped;
        let queued = wire_protocol::invoke_method(
            self.last_request_id,
            *service_id,
            method_id,
            drop_reply,
            call.arguments,
            call.fd,
        )
        .map(|frame| self.outgoing.push(frame));
        debug_assert!(
            matches!(queued, Ok(Ok(()))),
            "room for the call was checked: {queued:?}"
        );
        if !drop_reply {
            self.pending.insert(self.last_request_id, Pending::Call(id));
        }
    }

    fn fail(&mut self, call: CallId, error: CallError) {
        self.local.push_back(LocalEvent::Failed(call, error));
    }

    /// Fails all outstanding requests; returns whether there were any.
    fn fail_outstanding(&mut self) -> bool {
        let mut outstanding: Vec<(u64, Pending)> = self.pending.drain().collect();
        outstanding.sort_unstable_by_key(|(request_id, _)| *request_id);
        for (_, pending) in &outstanding {
            match *pending {
                Pending::Bind(handle) => self.bind_failed(handle),
                Pending::Call(call) => self.fail(call, CallError::ConnectionLost),
            }
        }
        !outstanding.is_empty()
    }
}

impl Connection for ClientConnection {
    /// Takes the bytes of one read of at most [`MAX_FRAME`](crate::frame::MAX_FRAME) bytes. Read only while [`wants_input`](Connection::wants_input).
    fn receive(&mut self, bytes: &[u8], fd: Option<PassedFd>) {
        self.decoder.push(bytes, fd);
    }

    /// Whether to read from the socket: not while earlier frames wait to be taken.
    fn wants_input(&self) -> bool {
        self.decoder.wants_input() && !self.lost
    }
}
