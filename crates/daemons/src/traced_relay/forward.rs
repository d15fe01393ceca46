//! A producer's connection and the connection to the service that stands for it: bytes from one to the other, as they come.
//!
//! The relay's loop gives each pair turns. No bytes are looked at. They pass through a buffer that all pairs share. A pair keeps bytes only while the
//! socket that they are for takes none, and then reads no more from the other one: so it holds at most one buffer for each direction.
//!
//! Descriptors that a producer passes are closed, on another thread: a network cannot carry them. The service knows that, because its socket is no Unix
//! socket, and has the producer send its chunks in the commits.
//!
//! Everything that a producer sent before it disconnected reaches the service. `splice` would save a copy on either way, but closes the descriptors that a producer
//! passes on the thread that calls it, and the producer decides how long that takes (`passed_fd.rs` in `ferretto-ipc`).

use std::time::Duration;

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Event, Reactor, Token};
use ferretto_ipc::transport::{Received, TransportError};

use crate::paired_socket::PairedSocket;

/// The size of the buffer that all pairs share.
pub(super) const BUFFER: usize = 128 * 1024;
/// Reads from one socket in one turn.
const READS_PER_TURN: usize = 4;
/// A service that cannot be reached in this time is not there.
const PATIENCE_TO_CONNECT: Duration = Duration::from_secs(10);
/// After a producer has gone, how long the service has to take the rest and close its end.
const PATIENCE_TO_END: Duration = Duration::from_secs(10);
/// A service whose machine says nothing for so long is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// The two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Producer,
    Service,
}

/// Whether a pair goes on.
#[derive(Debug)]
pub(super) enum Fate {
    Lives,
    /// Both ends are to be closed. An error is the producer's: those of the service are also the relay's own, which reports them.
    Over(Option<TransportError>),
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    /// Bytes that were read, and that the other socket did not take yet.
    waiting: Vec<u8>,
    /// How many of them it has taken.
    taken: usize,
    /// The source sends no more.
    ended: bool,
    /// Nobody takes the bytes any more: they are read and dropped.
    drops: bool,
}

impl Lane {
    fn is_stuck(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn wants_input(&self) -> bool {
        !self.ended && !self.is_stuck()
    }

    /// Carries bytes until a socket has no more or takes no more, or the turn is over.
    fn carry(&mut self, from: &mut Stream, to: &mut Stream, buffer: &mut [u8]) -> Result<(), Failed> {
        self.flush(to)?;
        for _ in 0..READS_PER_TURN {
            if !self.wants_input() {
                break;
            }
            // The descriptor, if one comes, is closed here.
            let count = match from.recv(buffer, &mut None).map_err(Failed::Source)? {
                Received::Bytes(count) => count,
                Received::WouldBlock => break,
                Received::Closed => {
                    self.ended = true;
                    to.end_output();
                    break;
                }
            };
            let bytes = &buffer[..count];
            let taken = match self.drops {
                true => count,
                false => to.write(bytes).map_err(|_| Failed::Sink)?,
            };
            self.waiting.extend_from_slice(&bytes[taken..]);
            // The rest would be nothing, most likely.
            if count < buffer.len() {
                break;
            }
        }
        Ok(())
    }

    fn flush(&mut self, to: &mut Stream) -> Result<(), Failed> {
        if !self.is_stuck() {
            return Ok(());
        }
        self.taken += to.write(&self.waiting[self.taken..]).map_err(|_| Failed::Sink)?;
        if self.taken == self.waiting.len() {
            // A pair that waits for nothing keeps no memory.
            self.waiting = Vec::new();
            self.taken = 0;
        }
        Ok(())
    }

    fn drop_all(&mut self) {
        self.drops = true;
        self.waiting = Vec::new();
        self.taken = 0;
    }
}

/// Which end of a lane failed.
enum Failed {
    Source(TransportError),
    Sink,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) uid: u32,
    /// The bytes that the relay is known to keep for it.
    pub(super) held: usize,
    producer: PairedSocket,
    service: PairedSocket,
    up: Lane,
    down: Lane,
    is_connected: bool,
    /// Until when the service has to be reached, or to close its end.
    deadline: Option<u64>,
}

impl Pair {
    /// Joins a producer of this user with a connection to the service that has just begun, on which `greeting` is to be sent first.
    pub(super) fn new(
        uid: u32,
        (producer, producer_token): (Stream, Token),
        (mut service, service_token): (Stream, Token),
        greeting: Vec<u8>,
        now: u64,
    ) -> Pair {
        service.end_when_silent_for(SILENCE);
        Pair {
            uid,
            held: 0,
            producer: PairedSocket::new(producer, producer_token),
            service: PairedSocket::new(service, service_token),
            up: Lane {
                waiting: greeting,
                ..Lane::default()
            },
            down: Lane::default(),
            is_connected: false,
            deadline: Some(now + PATIENCE_TO_CONNECT.as_nanos() as u64),
        }
    }

    /// The bytes that wait here.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.up.waiting.len() + self.down.waiting.len()
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Something happened at one end.
    pub(super) fn on_event(&mut self, end: End, event: &Event, buffer: &mut [u8], now: u64) -> Fate {
        match end {
            End::Producer => self.producer.hung_up |= event.hung_up,
            End::Service => self.service.hung_up |= event.hung_up,
        }
        if !self.is_connected {
            match self.service.stream.is_connected() {
                Ok(true) => {
                    self.is_connected = true;
                    self.deadline = None;
                }
                Ok(false) => return Fate::Lives,
                Err(_) => return Fate::Over(None),
            }
        }
        let is_up = matches!(
            (end, event.readable, event.writable),
            (End::Producer, true, _) | (End::Service, _, true)
        );
        let is_down = matches!(
            (end, event.readable, event.writable),
            (End::Service, true, _) | (End::Producer, _, true)
        );
        if is_up && let Some(over) = self.carry_up(buffer, now) {
            return over;
        }
        if is_down && let Some(over) = self.carry_down(buffer) {
            return over;
        }
        Fate::Lives
    }

    /// The [deadline](Self::deadline) may have passed.
    pub(super) fn is_too_late(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    fn carry_up(&mut self, buffer: &mut [u8], now: u64) -> Option<Fate> {
        let carried = self
            .up
            .carry(&mut self.producer.stream, &mut self.service.stream, buffer);
        match carried {
            Ok(()) => {}
            Err(Failed::Source(error)) => return Some(Fate::Over(Some(error))),
            Err(Failed::Sink) => return Some(Fate::Over(None)),
        }
        if self.up.ended && self.deadline.is_none() {
            self.deadline = Some(now + PATIENCE_TO_END.as_nanos() as u64);
        }
        None
    }

    fn carry_down(&mut self, buffer: &mut [u8]) -> Option<Fate> {
        let carried = self
            .down
            .carry(&mut self.service.stream, &mut self.producer.stream, buffer);
        match carried {
            Ok(()) => {}
            Err(Failed::Source(_)) => return Some(Fate::Over(None)),
            // A producer that has gone takes no more replies. Its last requests are still to be forwarded.
            Err(Failed::Sink) => self.down.drop_all(),
        }
        let is_over = self.down.ended && !self.down.is_stuck();
        is_over.then_some(Fate::Over(None))
    }

    /// The producer can send no more. Its data so far is still forwarded, and then the pair is over.
    pub(super) fn end_input(&mut self) {
        self.producer.stream.end_input();
    }

    /// Has the reactor watch both ends for the events that the pair waits for.
    pub(super) fn watch(&mut self, reactor: &Reactor) {
        let up = self.is_connected && self.up.wants_input();
        self.producer.watch(reactor, up, self.down.is_stuck());
        let down = self.is_connected && self.down.wants_input();
        let output = !self.is_connected || self.up.is_stuck();
        self.service.watch(reactor, down, output);
    }

    /// Closes both ends.
    pub(super) fn close(self, reactor: &Reactor) {
        self.producer.close(reactor);
        self.service.close(reactor);
    }
}

#[cfg(test)]
mod tests;
