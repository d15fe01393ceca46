//! One accepted connection: its socket, its end of the protocol, and its role for the service.

use std::collections::VecDeque;
use std::sync::Arc;

use ferretto_ipc::Stream;
use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::host::{HostConnection, Reply, ReplyError, ReplyTo, ReplyWanted};
use ferretto_ipc::reactor::{Interest, Token};
use ferretto_ipc::transport::{Connection as _, PeerCredentials, Received};

use super::bounds::bound_error;
use super::consumer_port::ConsumerLink;
use super::producer_port::ProducerLink;
use super::program::Program;
use super::relay_port::RelayLink;
use super::turns::Candidate;

/// Bytes of replies that may wait for room in the outgoing queue; a client with more is cut off. Requests are not handled while any wait, so this
/// bounds the answers to one request and the service's own messages.
const MAX_WAITING_REPLIES: usize = 64 * 1024 * 1024;
/// The size that a reply counts for besides its payload.
const REPLY_OVERHEAD: usize = 64;

/// Replies on their way to a client, in order.
#[derive(Default)]
pub(crate) struct Replies {
    waiting: VecDeque<(ReplyTo, Reply)>,
    bytes: usize,
}

impl Replies {
    pub(crate) fn push(&mut self, to: ReplyTo, reply: Reply) {
        // Commits, in most cases.
        if to.wanted() == ReplyWanted::No {
            return;
        }
        self.bytes += reply.size() + REPLY_OVERHEAD;
        self.waiting.push_back((to, reply));
    }

    fn pop(&mut self) -> Option<(ReplyTo, Reply)> {
        let (to, reply) = self.waiting.pop_front()?;
        self.bytes -= reply.size() + REPLY_OVERHEAD;
        Some((to, reply))
    }
}

pub(crate) struct Connection {
    program: Arc<dyn Program>,
    pub(crate) stream: Stream,
    pub(crate) host: HostConnection,
    pub(crate) peer: PeerCredentials,
    pub(crate) role: Role,
    /// The readiness that the reactor watches for now.
    pub(crate) interest: Interest,
    /// Replies that did not fit into the outgoing queue yet.
    pub(crate) replies: Replies,
    /// Why the connection is to be closed.
    pub(crate) closing: Option<String>,
    /// The peer sends no more; the text is an error, or empty if it closed. Its earlier requests are still handled.
    gone: Option<String>,
    /// The peer takes no more replies. Its earlier requests are still handled.
    deaf: bool,
    /// Whether requests may be waiting that were not handed out because the client has to read its replies first.
    held_up: bool,
    /// Whether the log knows that calls of this client are rejected.
    rejection_told: bool,
    /// Trace data is on its way to the client.
    pub(crate) takes_packets: bool,
    /// Whether more of it may follow.
    pub(crate) packet_flow: PacketFlow,
    /// The bytes that the host held for it when they were last counted.
    pub(crate) held: usize,
    /// In which round it was last served.
    pub(crate) served: u64,
}

/// Whether a consumer takes the trace data that it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFlow {
    /// All data.
    Open,
    /// No trace data for now, but all other replies.
    Paused,
}

/// The client at the other end.
pub(crate) enum Role {
    /// A producer or, on sockets that they may use, a relay; a client may be both.
    Producer(ProducerLink, RelayLink),
    Consumer(ConsumerLink),
}

impl Connection {
    pub(crate) fn new(
        stream: Stream,
        host: HostConnection,
        peer: PeerCredentials,
        role: Role,
        program: Arc<dyn Program>,
    ) -> Connection {
        Connection {
            program,
            stream,
            host,
            peer,
            role,
            interest: Interest::Readable,
            replies: Replies::default(),
            closing: None,
            gone: None,
            deaf: false,
            held_up: false,
            rejection_told: false,
            takes_packets: false,
            packet_flow: PacketFlow::Open,
            held: 0,
            served: 0,
        }
    }

    /// This connection, as a candidate for the next turn.
    pub(crate) fn candidate(&self, token: Token) -> Candidate {
        Candidate {
            token,
            uid: self.peer.uid,
            pid: self.peer.pid,
            served: self.served,
        }
    }

    /// Reads once from the socket.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) {
        if self.gone.is_some() || !self.host.wants_input() {
            return;
        }
        let mut fd = None;
        match self.stream.recv(buffer, &mut fd) {
            Ok(Received::Bytes(count)) => self.host.receive(&buffer[..count], fd),
            Ok(Received::WouldBlock) => {}
            Ok(Received::Closed) => self.gone = Some(String::new()),
            Err(error) => self.gone = Some(error.to_string()),
        }
    }

    /// Queues a reply, behind earlier ones.
    pub(crate) fn reply(&mut self, to: ReplyTo, reply: Reply) {
        self.replies.push(to, reply);
        self.release_replies();
    }

    /// Rejects a call that makes no sense, as upstream does: the connection goes on. Only the first one is logged, because a client can make many.
    pub(crate) fn reject(&mut self, to: ReplyTo, why: &str) {
        if !std::mem::replace(&mut self.rejection_told, true) {
            let pid = self.peer.pid.map_or(String::new(), |pid| format!(" (pid {pid})"));
            self.program
                .warning(format_args!("rejected a call of a client{pid}: {why}"));
        }
        let mut reason = why.to_owned();
        bound_error(&mut reason);
        self.reply(to, Reply::rejected_for(reason));
    }

    /// Whether bulk data may be produced.
    pub(crate) fn has_room(&self) -> bool {
        self.replies.waiting.is_empty() && self.host.outgoing_room() >= 4 * MAX_FRAME
    }

    /// Whether another frame may be produced for a client that asked for many, before its next request.
    pub(crate) fn has_room_for_a_frame(&self) -> bool {
        self.replies.waiting.is_empty() && !self.host.is_congested()
    }

    /// Bytes that the host keeps for the client.
    pub(crate) fn held_bytes(&self) -> usize {
        let of_role = match &self.role {
            Role::Producer(link, _) => link.early_bytes(),
            Role::Consumer(link) => link.held_bytes(),
        };
        self.host.held_bytes() + self.replies.bytes + of_role
    }

    /// Moves replies into the outgoing queue as far as it has room.
    pub(crate) fn release_replies(&mut self) {
        if self.deaf {
            self.replies = Replies::default();
            return;
        }
        while self.host.outgoing_room() >= 2 * MAX_FRAME {
            let Some((to, reply)) = self.replies.pop() else {
                return;
            };
            let is_last = !reply.has_more();
            match self.host.reply(to, reply) {
                Ok(()) => {}
                // None of the host's own replies is too large; one that repeats input of a consumer or producer may be.
                Err(ReplyError::TooLarge(error)) if is_last => {
                    self.program
                        .warning(format_args!("{error}; the call is rejected"));
                    let _ = self.host.reply(to, Reply::rejected());
                }
                // A rejection would end the stream, with all further replies.
                Err(ReplyError::TooLarge(error)) => {
                    self.program
                        .warning(format_args!("{error}; it is left out of a stream of replies"));
                }
                Err(ReplyError::Full(error)) => {
                    self.closing.get_or_insert_with(|| error.to_string());
                }
            }
        }
        if self.replies.bytes > MAX_WAITING_REPLIES {
            self.closing
                .get_or_insert_with(|| "does not read its replies".into());
        }
    }

    /// Ends a turn. Returns whether requests may be left for the next.
    pub(crate) fn end_turn(&mut self) -> bool {
        self.held_up = self.host.is_congested();
        let turn_is_over = self.host.turn_is_over();
        if !turn_is_over
            && !self.held_up
            && let Some(why) = &self.gone
        {
            self.closing.get_or_insert_with(|| why.clone());
        }
        turn_is_over
    }

    /// Sends pending replies, as far as the socket takes them. Returns whether there is work that no event of the socket will announce.
    pub(crate) fn send(&mut self) -> bool {
        self.deaf = self.deaf || self.gone.is_some() || self.stream.flush(self.host.outgoing()).is_err();
        if self.deaf {
            self.host.outgoing().clear();
        }
        self.release_replies();
        let reads = matches!(&self.role, Role::Consumer(link) if link.reads(self.packet_flow));
        let catches_up = self.held_up && !self.host.is_congested();
        self.gone.is_some() || catches_up || (reads && self.has_room())
    }

    /// Drops everything that is kept for the client, and sends nothing more: the connection is to be closed.
    pub(crate) fn silence(&mut self) {
        self.deaf = true;
        self.host.outgoing().clear();
        self.release_replies();
    }

    /// Whether the last of the trace data that a client read has just gone out.
    pub(crate) fn has_taken_all_packets(&mut self) -> bool {
        let reads = matches!(&self.role, Role::Consumer(link) if link.reads(PacketFlow::Open));
        let all_sent = !reads && self.replies.waiting.is_empty() && self.host.outgoing().is_empty();
        all_sent && std::mem::take(&mut self.takes_packets)
    }

    /// Returns the readiness to watch the socket for.
    pub(crate) fn wanted(&mut self) -> Interest {
        if self.gone.is_some() {
            return Interest::None;
        }
        let output = !self.host.outgoing().is_empty();
        Interest::from_wants(self.host.wants_input(), output)
    }
}
