//! The service's end of one connection, without I/O.
//!
//! Called by `ferretto-host`, one [`HostConnection`] for each accepted socket: bytes go in with [`receive`](Connection::receive), requests come out
//! of [`next_request`](HostConnection::next_request), replies are queued with [`reply`](HostConnection::reply) and leave through
//! [`outgoing`](HostConnection::outgoing). Binding, method lists, and rejections of unknown services and methods are handled inside.
//!
//! The peer is hostile: frames and memory are bounded, a turn hands out a bounded amount of work, and a client that
//! does not read its replies is not read from either. A call that cannot be made (no such service, no such method) is rejected; bytes that are
//! no frames end the connection with a [`Violation`] that names the rule.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::frame::{
    Frame, FrameDecoder, MAX_FRAME, MAX_IDENTITY_TEXT, OutgoingFrame, PayloadTooLarge, Violation,
};
use crate::outgoing::{OutgoingFull, OutgoingQueue};
use crate::passed_fd::PassedFd;
use crate::ports::ServiceDescriptor;
use crate::reactor::Interest;
use crate::transport::Connection;
pub use crate::wire_protocol::PeerIdentity;
use crate::wire_protocol::{self, Body, Message};

#[cfg(test)]
mod tests;

/// How much one connection may use.
#[derive(Debug, Clone, Copy)]
pub struct HostLimits {
    /// Frames handled in one turn.
    pub frames_per_turn: u32,
    /// Bytes of frames handled in one turn; the frame that crosses it is still handled.
    pub bytes_per_turn: usize,
    /// Bytes of memory that replies may take until the client has read them; at least three frames' worth is granted.
    pub outgoing_bytes: usize,
}

impl Default for HostLimits {
    fn default() -> Self {
        HostLimits {
            frames_per_turn: 256,
            bytes_per_turn: 512 * 1024,
            outgoing_bytes: 1024 * 1024,
        }
    }
}

/// The source of the peer's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerIdentitySource {
    /// The kernel identifies the peer (Unix sockets). The peer's statements about itself are ignored.
    Kernel,
    /// A relay declares it once, in `SetPeerIdentity` (TCP and vsock). It cannot be verified.
    Declared,
}

/// Why a reply was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyError {
    /// It exceeds a frame.
    TooLarge(PayloadTooLarge),
    /// The client does not read.
    Full(OutgoingFull),
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplyError::TooLarge(error) => error.fmt(f),
            ReplyError::Full(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReplyError::TooLarge(error) => error.source(),
            ReplyError::Full(error) => error.source(),
        }
    }
}

impl From<PayloadTooLarge> for ReplyError {
    fn from(error: PayloadTooLarge) -> Self {
        ReplyError::TooLarge(error)
    }
}

impl From<OutgoingFull> for ReplyError {
    fn from(error: OutgoingFull) -> Self {
        ReplyError::Full(error)
    }
}

/// Which request a reply answers. Streaming methods keep it and use it many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplyTo {
    request_id: u64,
    wanted: ReplyWanted,
}

impl ReplyTo {
    /// Whether the client wants a reply (`drop_reply` is not set).
    pub fn wanted(&self) -> ReplyWanted {
        self.wanted
    }
}

/// Whether the caller of a method waits for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplyWanted {
    /// It does.
    Yes,
    /// It set `drop_reply`; replies are swallowed.
    No,
}

/// A call of a method that exists.
#[derive(Debug)]
pub struct Request<'a> {
    /// The service called.
    pub service: &'static ServiceDescriptor,
    /// The method's name; one of the service's.
    pub method: &'static str,
    /// The encoded request message.
    pub payload: &'a [u8],
    /// A descriptor that came with it.
    pub fd: Option<PassedFd>,
    /// The peer that a relay declared to be at the other end, where declarations count.
    pub identity: Option<&'a PeerIdentity>,
    /// To be passed to [`HostConnection::reply`].
    pub reply_to: ReplyTo,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Reply {
    /// The payload, or the reason why the call failed.
    payload: Result<Vec<u8>, String>,
    has_more: bool,
    fd: Option<OwnedFd>,
}

impl Reply {
    /// The only or the last reply: an encoded reply message.
    pub fn last(payload: Vec<u8>) -> Reply {
        Reply {
            payload: Ok(payload),
            has_more: false,
            fd: None,
        }
    }

    /// One reply of a stream, to be followed by others.
    pub fn more(payload: Vec<u8>) -> Reply {
        Reply {
            payload: Ok(payload),
            has_more: true,
            fd: None,
        }
    }

    /// The call failed. Ends a stream too.
    pub fn rejected() -> Reply {
        Reply::rejected_for(String::new())
    }

    /// Reports that the call failed for this reason, which our clients show. Upstream's clients ignore it.
    pub fn rejected_for(reason: String) -> Reply {
        Reply {
            payload: Err(reason),
            has_more: false,
            fd: None,
        }
    }

    /// Bytes of the encoded reply message, or of the reason.
    pub fn size(&self) -> usize {
        match &self.payload {
            Ok(message) => message.len(),
            Err(reason) => reason.len(),
        }
    }

    /// Whether others follow it.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Passes a descriptor along; it is closed here once it is sent.
    pub fn with_fd(mut self, fd: OwnedFd) -> Reply {
        self.fd = Some(fd);
        self
    }
}

/// One client, see the [module](self).
#[derive(Debug)]
pub struct HostConnection {
    /// Service ids are positions in here, plus one.
    services: &'static [&'static ServiceDescriptor],
    identity_source: PeerIdentitySource,
    identity: Option<PeerIdentity>,
    decoder: FrameDecoder,
    outgoing: OutgoingQueue,
    limits: HostLimits,
    frames_left: u32,
    bytes_left: usize,
}

impl HostConnection {
    /// A new connection to a host that exposes `services`.
    pub fn new(
        services: &'static [&'static ServiceDescriptor],
        identity_source: PeerIdentitySource,
        limits: HostLimits,
    ) -> HostConnection {
        HostConnection {
            services,
            identity_source,
            identity: None,
            decoder: FrameDecoder::new(),
            outgoing: OutgoingQueue::new(limits.outgoing_bytes.max(3 * MAX_FRAME)),
            frames_left: limits.frames_per_turn,
            bytes_left: limits.bytes_per_turn,
            limits,
        }
    }

    /// The readiness to wait for on the socket.
    pub fn interest(&self) -> Interest {
        Interest::from_wants(self.wants_input(), !self.outgoing.is_empty())
    }

    /// Starts a turn: the work that [`next_request`](Self::next_request) hands out is counted from here.
    pub fn begin_turn(&mut self) {
        self.frames_left = self.limits.frames_per_turn;
        self.bytes_left = self.limits.bytes_per_turn;
    }

    /// Whether the turn's budget is used up. Other connections should have theirs before the next
    /// [`begin_turn`](Self::begin_turn); requests may be waiting even when the socket has no more bytes.
    pub fn turn_is_over(&self) -> bool {
        self.frames_left == 0 || self.bytes_left == 0
    }

    /// Ends the turn before its budget is used up, because the requests so far took long.
    pub fn end_turn(&mut self) {
        self.frames_left = 0;
    }

    /// Bytes that the host keeps for the client: of unhandled frames, and of unread replies.
    pub fn held_bytes(&self) -> usize {
        self.decoder.pending() + self.outgoing.held()
    }

    /// Whether replies pile up so that no more requests are handed out until the client reads.
    pub fn is_congested(&self) -> bool {
        self.outgoing.room() < 2 * MAX_FRAME
    }

    /// The next call, or `None` when there is none for now: more bytes are needed, the turn is over, or the client has
    /// to read its replies first.
    ///
    /// # Errors
    /// If the client broke a rule of the protocol. The connection must be closed then.
    pub fn next_request(&mut self) -> Result<Option<Request<'_>>, Violation> {
        loop {
            if self.turn_is_over() || self.is_congested() {
                return Ok(None);
            }
            let Some(mut frame) = self.decoder.next_frame()? else {
                return Ok(None);
            };
            let message = Message::decode(self.decoder.body(&frame))?;
            self.frames_left -= 1;
            self.bytes_left = self.bytes_left.saturating_sub(self.decoder.body(&frame).len());
            if let Some(call) = self.handle(message)? {
                let fd = frame.fd.take();
                return Ok(Some(self.request(&frame, call, fd)));
            }
        }
    }

    /// Queues a reply. For a client that wants none it is dropped.
    ///
    /// When the queue is full the reply is lost, and so the connection should be closed; replies of a stream can be
    /// held back instead while [`outgoing_room`](Self::outgoing_room) says so.
    ///
    /// # Errors
    /// If the reply is larger than a frame, or the queue is full.
    pub fn reply(&mut self, to: ReplyTo, reply: Reply) -> Result<(), ReplyError> {
        if to.wanted == ReplyWanted::No {
            return Ok(());
        }
        let frame = match reply.payload {
            Ok(message) => {
                wire_protocol::invoke_method_reply(to.request_id, reply.has_more, message, reply.fd)?
            }
            Err(reason) => wire_protocol::rejection(to.request_id, reason)?,
        };
        Ok(self.outgoing.push(frame)?)
    }

    /// Bytes of replies, with about a hundred for each, that can be queued now.
    pub fn outgoing_room(&self) -> usize {
        self.outgoing.room()
    }

    /// The bytes to send.
    pub fn outgoing(&mut self) -> &mut OutgoingQueue {
        &mut self.outgoing
    }

    /// Answers messages that are not calls of existing methods; returns calls that are.
    fn handle(&mut self, message: Message) -> Result<Option<Call>, Violation> {
        let request_id = message.request_id;
        let answer = match message.body {
            Body::BindService { service } => {
                let found = self
                    .services
                    .iter()
                    .zip(1u32..)
                    .find(|(known, _)| known.name == service);
                wire_protocol::bind_service_reply(
                    request_id,
                    found.map(|(service, id)| (id, (1u32..).zip(service.methods.iter().copied()))),
                )
            }
            Body::InvokeMethod {
                service_id,
                method_id,
                arguments,
                drop_reply,
            } => {
                let Some((service, method)) = self.method(service_id, method_id) else {
                    self.answer(wire_protocol::rejection(request_id, String::new()));
                    return Ok(None);
                };
                let wanted = if drop_reply {
                    ReplyWanted::No
                } else {
                    ReplyWanted::Yes
                };
                return Ok(Some(Call {
                    service,
                    method,
                    arguments,
                    reply_to: ReplyTo { request_id, wanted },
                }));
            }
            Body::SetPeerIdentity(identity) => {
                if self.identity_source == PeerIdentitySource::Declared && self.identity.is_none() {
                    let longest = identity.machine_id_hint.len().max(identity.machine_name.len());
                    if longest > MAX_IDENTITY_TEXT {
                        return Err(Violation::IdentityTooLong { length: longest });
                    }
                    self.identity = Some(identity);
                }
                return Ok(None);
            }
            Body::BindServiceReply { .. }
            | Body::InvokeMethodReply { .. }
            | Body::RequestError { .. }
            | Body::Unknown => wire_protocol::request_error(request_id, "unknown request"),
        };
        self.answer(answer);
        Ok(None)
    }

    fn answer(&mut self, frame: Result<OutgoingFrame, PayloadTooLarge>) {
        // There is room: `next_request` hands nothing out without two frames' worth of it. And these answers
        // consist of a few names of ours.
        let queued = frame.map(|frame| self.outgoing.push(frame));
        debug_assert!(
            matches!(queued, Ok(Ok(()))),
            "an answer of ours found no room: {queued:?}"
        );
    }

    fn method(&self, service_id: u32, method_id: u32) -> Option<(&'static ServiceDescriptor, &'static str)> {
        let service = self
            .services
            .get(usize::try_from(service_id).ok()?.checked_sub(1)?)?;
        let method = service
            .methods
            .get(usize::try_from(method_id).ok()?.checked_sub(1)?)?;
        Some((service, method))
    }

    fn request(&self, frame: &Frame, call: Call, fd: Option<PassedFd>) -> Request<'_> {
        Request {
            service: call.service,
            method: call.method,
            payload: &self.decoder.body(frame)[call.arguments],
            fd,
            identity: self.identity.as_ref(),
            reply_to: call.reply_to,
        }
    }
}

impl Connection for HostConnection {
    /// Takes the bytes of one read of at most [`MAX_FRAME`] bytes. Read only while [`wants_input`](Connection::wants_input).
    fn receive(&mut self, bytes: &[u8], fd: Option<PassedFd>) {
        self.decoder.push(bytes, fd);
    }

    /// Whether to read from the socket: not while earlier requests wait to be handled, nor while the client leaves
    /// its replies unread.
    fn wants_input(&self) -> bool {
        self.decoder.wants_input() && !self.is_congested()
    }
}

/// A call whose method was found.
struct Call {
    service: &'static ServiceDescriptor,
    method: &'static str,
    arguments: std::ops::Range<usize>,
    reply_to: ReplyTo,
}
