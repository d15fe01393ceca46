//! One accepted connection: its socket, its end of the protocol, and what it is to the service.

use std::collections::VecDeque;

use ferretto_ipc::Stream;
use ferretto_ipc::host::{HostConnection, Reply, ReplyError, ReplyTo};
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::PeerCredentials;

use super::consumer_port::ConsumerLink;
use super::producer_port::ProducerLink;

/// Replies that wait for room in the outgoing queue; a client that lets more pile up is cut off.
const MAX_HELD_REPLIES: usize = 4096;

pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) host: HostConnection,
    pub(super) peer: PeerCredentials,
    pub(super) role: Role,
    /// What the reactor watches for now.
    pub(super) interest: Interest,
    /// Replies that did not fit into the outgoing queue yet.
    held: VecDeque<(ReplyTo, Reply)>,
    /// Why the connection is to be closed.
    pub(super) closing: Option<String>,
}

/// What is at the other end.
pub(super) enum Role {
    Producer(ProducerLink),
    Consumer(ConsumerLink),
}

impl Connection {
    pub(super) fn new(stream: Stream, host: HostConnection, peer: PeerCredentials, role: Role) -> Connection {
        Connection {
            stream,
            host,
            peer,
            role,
            interest: Interest::Readable,
            held: VecDeque::new(),
            closing: None,
        }
    }

    /// Queues a reply, behind those that wait already.
    pub(super) fn reply(&mut self, to: ReplyTo, reply: Reply) {
        self.held.push_back((to, reply));
        self.release_held();
        if self.held.len() > MAX_HELD_REPLIES {
            self.closing
                .get_or_insert_with(|| "does not read its replies".into());
        }
    }

    /// Whether a whole frame can be queued now, so that bulk data may be produced.
    pub(super) fn has_room(&self) -> bool {
        self.held.is_empty() && self.host.outgoing_room() >= 4 * ferretto_ipc::frame::MAX_FRAME
    }

    /// Moves what was held into the outgoing queue as far as it has room.
    pub(super) fn release_held(&mut self) {
        while !self.held.is_empty() && self.host.outgoing_room() >= 2 * ferretto_ipc::frame::MAX_FRAME {
            let Some((to, reply)) = self.held.pop_front() else {
                return;
            };
            match self.host.reply(to, reply) {
                Ok(()) => {}
                Err(ReplyError::TooLarge(error)) => {
                    // Nothing of ours is; what a consumer or producer made us repeat may be. Say no instead.
                    crate::log::warning(format_args!("{error}; the call is rejected"));
                    let _ = self.host.reply(to, Reply::rejected());
                }
                Err(ReplyError::Full(error)) => {
                    self.closing.get_or_insert_with(|| error.to_string());
                }
            }
        }
    }
}
