//! The end of a turn: pending replies are sent, finished connections are closed, and the reactor learns what to watch.
//!
//! The host calls this. However many connections are to be closed, closing takes no more than a round's time in each turn.

use ferretto_ipc::reactor::Token;
use ferretto_ipc::time::{self, Clock};
use ferretto_service::limits;

use super::{Host, Role, candidates};
use crate::admission::Holding;
use crate::clocks::TurnTime;
use crate::turns;

impl Host {
    /// Sends pending replies, closes connections that are over, and tells the reactor what to watch for.
    pub(super) fn settle(&mut self, turn: &TurnTime) {
        self.settle_touched();
        if self.ending.is_empty() {
            return;
        }
        // Each may have much data in its shared memory.
        let mut ending: Vec<Token> = std::mem::take(&mut self.ending).into_iter().collect();
        self.turns
            .put_in_turn_to_close(&mut ending, candidates(&self.connections));
        let until = turns::end_of_round();
        let mut ending = ending.into_iter();
        for token in ending.by_ref() {
            self.close(token, turn);
            if time::now(Clock::MonotonicCoarse) >= until {
                break;
            }
        }
        if ending.len() > 0 {
            self.turns.note_crowded();
            self.ending.extend(ending);
        }
        // Closing them had consequences for others.
        self.settle_touched();
    }

    fn settle_touched(&mut self) {
        while let Some(token) = self.touched.pop_first() {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            let more_to_do = connection.send();
            if connection.has_taken_all_packets() {
                self.freed = true;
            }
            if connection.closing.is_some() {
                if self.ending.insert(token) {
                    let _ = self.reactor.deregister(&connection.stream, token);
                    self.busy.remove(&token);
                    connection.silence();
                    let held = std::mem::take(&mut connection.held);
                    self.admission.holds(connection.peer.uid, held, 0);
                }
                continue;
            }
            let (held, before, uid) = (connection.held_bytes(), connection.held, connection.peer.uid);
            connection.held = held;
            if more_to_do {
                self.busy.insert(token);
            }
            let interest = connection.wanted();
            if interest != connection.interest {
                connection.interest = interest;
                if let Err(error) = self.reactor.reregister(&connection.stream, token, interest) {
                    self.program.warning(format_args!("{error}"));
                }
            }
            if self.admission.holds(uid, before, held) == Holding::TooMuch {
                self.close_greediest(uid);
            }
        }
    }

    /// Closes the connection that holds the most, because the host holds more for this user's connections than for one user allowed.
    fn close_greediest(&mut self, uid: u32) {
        let of_user = self.connections.iter_mut();
        let of_user =
            of_user.filter(|(_, connection)| connection.peer.uid == uid && connection.closing.is_none());
        if let Some((token, connection)) =
            of_user.max_by_key(|(token, connection)| (connection.held, **token))
        {
            connection.closing = Some(format!(
                "the clients of uid {uid} do not read their replies: this one has left {} bytes, all together more than {}",
                connection.held,
                limits::MAX_HELD_BYTES_PER_UID
            ));
            // At once, so that the user's next request does not cost another connection.
            connection.silence();
            let held = std::mem::take(&mut connection.held);
            self.admission.holds(uid, held, 0);
            self.touched.insert(*token);
        }
    }

    /// Closes a connection that the reactor does not watch any more.
    fn close(&mut self, token: Token, turn: &TurnTime) {
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        self.turns.note_closed(&connection.candidate(token));
        self.busy.remove(&token);
        self.admission.holds(connection.peer.uid, connection.held, 0);
        self.admission.leave(connection.peer.uid);
        // The log line comes first: a client that is hung up on may look for the reason at once.
        if let Some(why) = connection.closing.as_ref().filter(|why| !why.is_empty()) {
            let pid = connection
                .peer
                .pid
                .map_or(String::new(), |pid| format!(" (pid {pid})"));
            self.program
                .warning(format_args!("closing the connection of a client{pid}: {why}"));
        }
        connection.stream.hang_up();
        self.freed = true;
        match connection.role {
            Role::Producer(link, relay) => {
                if let Some(relay) = relay.id {
                    self.service.disconnect_relay(relay);
                }
                if let Some(id) = link.id {
                    self.producers.remove(&id);
                    self.service.disconnect_producer(id, turn.now());
                }
            }
            Role::Consumer(link) => {
                self.consumers.remove(&link.id);
                for clone in link.pending_clones() {
                    self.files_of_clones.remove(&clone);
                }
                self.service.disconnect_consumer(link.id, turn.now());
            }
        }
        self.carry_out(turn);
    }
}
