//! A WebSocket and the service's socket behind it: the bytes of each go to the other.
//!
//! Called by [`bridge`](super::bridge), in turns. Where messages begin and end means nothing: the service's protocol has frames of its own.
//! Guarantees that at most one message waits in each direction: as long as one does, nothing is read from where it came from, and
//! so the kernel holds up whoever sends faster than the other reads. A turn does a bounded amount of work.

use std::io::ErrorKind;
use std::os::fd::AsFd;

use ferretto_ipc::Stream;
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::Received;
use rustix::io::Errno;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Bytes, Error, Message, WebSocket};

use crate::http::{Browser, PATIENCE, Waits, Wake, send};

/// Bytes of a message from the browser. The UI sends a frame of the service's protocol in each, which are of at most 128 KB.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Bytes read from the service at once, and so of a message to the browser.
pub(super) const MAX_CHUNK: usize = 64 * 1024;
/// Messages in either direction before other connections have their turn.
const MESSAGES_PER_TURN: usize = 64;

/// How things stand after a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// Wait for the sockets.
    Wait,
    /// Others have their turn, then go on whether or not the sockets have news.
    Again,
    /// It is over.
    Over,
    /// It is over, and the browser was told why; what it still sends is of no interest. See [`Session::into_browser`].
    Abandon,
}

/// One connection of a page with the service.
pub(super) struct Session {
    websocket: WebSocket<Browser>,
    /// `None` when the session is closing.
    service: Option<Service>,
    /// There may be bytes that the browser's socket has not taken yet.
    unflushed: bool,
}

struct Service {
    stream: Stream,
    /// What the service has not taken yet.
    pending: Bytes,
    /// It takes nothing any more, but there may be something left to read.
    deaf: bool,
}

/// What one attempt to move bytes came to.
enum Step {
    /// There may be more to do.
    Moved,
    /// Nothing to do, or no way to do it, until a socket has news.
    Stuck,
    End(End),
}

enum End {
    /// No more can be said to the browser.
    Gone,
    /// The browser has broken the protocol, and is to be told so.
    Abandon(CloseCode, &'static str),
}

impl Session {
    /// A session of a browser whose response, still to be sent, grants it; `early` is what it has sent since its request.
    pub(super) fn new(browser: Browser, early: Vec<u8>, service: Stream) -> Session {
        let config = WebSocketConfig::default()
            .read_buffer_size(16 * 1024)
            // A message is tried to be sent at once.
            .write_buffer_size(0)
            // One message, and answers to pings.
            .max_write_buffer_size(2 * MAX_CHUNK)
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        Session {
            websocket: WebSocket::from_partially_read(browser, early, Role::Server, Some(config)),
            service: Some(Service {
                stream: service,
                pending: Bytes::new(),
                deaf: false,
            }),
            unflushed: true,
        }
    }

    /// What it waits for. Nothing is awaited of the service while the session is closing.
    pub(super) fn waits(&self) -> Waits<'_> {
        let service = self.service.as_ref();
        Waits {
            browser: self.websocket.get_ref(),
            interest: Interest::from_wants(self.wants_input(), self.unflushed),
            other: service.map(|service| {
                let interest = Interest::from_wants(!self.unflushed, !service.has_room());
                (service.stream.as_fd(), interest)
            }),
        }
    }

    fn wants_input(&self) -> bool {
        self.service.as_ref().is_none_or(Service::has_room)
    }

    /// Nothing connects it with the service any more, and the browser is awaited to close its end.
    fn hang_up_on_service(&mut self) {
        if self.service.take().is_some() {
            self.websocket.get_mut().allow(Some(PATIENCE));
        }
    }

    /// Closes from this end, for this reason.
    pub(super) fn close(&mut self, code: CloseCode, reason: &'static str) {
        self.hang_up_on_service();
        let frame = CloseFrame {
            code,
            reason: reason.into(),
        };
        // Either it is sent, or it waits to be, or the browser is gone, which the next turn finds out.
        self.unflushed = self.websocket.close(Some(frame)).is_err();
    }

    /// Moves what can be moved. `scratch` is of [`MAX_CHUNK`] bytes.
    pub(super) fn turn(&mut self, wake: Wake, scratch: &mut [u8]) -> Turn {
        // Nothing will be read that would tell of the end before something is written, to a service that may never take it.
        if wake == Wake::HungUp && !self.wants_input() || self.websocket.get_ref().is_late() {
            return Turn::Over;
        }
        self.websocket.get_mut().begin_turn();
        for _ in 0..MESSAGES_PER_TURN {
            let steps = [self.browser_to_service(), self.service_to_browser(scratch)];
            let mut moved = false;
            for step in steps {
                match step {
                    Step::Moved => moved = true,
                    Step::Stuck => {}
                    Step::End(End::Gone) => return Turn::Over,
                    Step::End(End::Abandon(code, reason)) => return self.abandon(code, reason),
                }
            }
            if !moved {
                return match self.websocket.get_ref().turn_is_over() {
                    true => Turn::Again,
                    false => Turn::Wait,
                };
            }
        }
        Turn::Again
    }

    fn browser_to_service(&mut self) -> Step {
        if let Some(service) = &mut self.service
            && !service.has_room()
        {
            return service.send_pending();
        }
        match self.websocket.read() {
            Ok(Message::Binary(bytes)) => {
                match &mut self.service {
                    Some(service) if !service.deaf => service.pending = bytes,
                    _ => {}
                }
                Step::Moved
            }
            Ok(Message::Text(_)) => {
                self.close(CloseCode::Unsupported, "only binary messages are understood");
                Step::Moved
            }
            // It has been answered, or the answer waits to be sent.
            Ok(Message::Ping(_)) => {
                self.unflushed = true;
                Step::Moved
            }
            Ok(Message::Close(_)) => {
                self.hang_up_on_service();
                self.unflushed = true;
                Step::Moved
            }
            Ok(Message::Pong(_) | Message::Frame(_)) => Step::Moved,
            Err(error) => failed(&error),
        }
    }

    fn service_to_browser(&mut self, scratch: &mut [u8]) -> Step {
        if self.unflushed {
            return match self.websocket.flush() {
                Ok(()) => {
                    self.unflushed = false;
                    Step::Moved
                }
                Err(error) => failed(&error),
            };
        }
        let Some(service) = &mut self.service else {
            return Step::Stuck;
        };
        // A consumer is sent no descriptors that a browser could take.
        match service.stream.recv(scratch, &mut None) {
            Ok(Received::Bytes(count)) => {
                let message = Message::Binary(Bytes::copy_from_slice(&scratch[..count]));
                self.unflushed = true;
                match self.websocket.write(message) {
                    // What the socket did not take is kept.
                    Ok(()) => Step::Moved,
                    Err(error) => failed(&error),
                }
            }
            Ok(Received::WouldBlock) => Step::Stuck,
            Ok(Received::Closed) | Err(_) => {
                self.close(CloseCode::Away, "the service has closed the connection");
                Step::Moved
            }
        }
    }

    fn abandon(&mut self, code: CloseCode, reason: &'static str) -> Turn {
        self.close(code, reason);
        if self.unflushed {
            // It does not read either.
            return Turn::Over;
        }
        Turn::Abandon
    }

    /// The socket, when the state of the protocol on it is of no use any more.
    pub(super) fn into_browser(self) -> Browser {
        self.websocket.into_inner()
    }
}

impl Service {
    /// Whether all that the browser has sent was passed on.
    fn has_room(&self) -> bool {
        self.pending.is_empty()
    }

    fn send_pending(&mut self) -> Step {
        match send(&self.stream, &self.pending) {
            Ok(sent) => {
                let _ = self.pending.split_to(sent);
                Step::Moved
            }
            Err(Errno::AGAIN) => Step::Stuck,
            // What it said before it hung up is still to be read.
            Err(_) => {
                self.deaf = true;
                self.pending.clear();
                Step::Moved
            }
        }
    }
}

/// What an error of the WebSocket means.
fn failed(error: &Error) -> Step {
    match error {
        Error::Io(error) if error.kind() == ErrorKind::WouldBlock => Step::Stuck,
        Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake) => {
            Step::End(End::Gone)
        }
        Error::Capacity(_) => Step::End(End::Abandon(CloseCode::Size, "a message may have 1 MiB")),
        Error::Protocol(_) => Step::End(End::Abandon(
            CloseCode::Protocol,
            "this breaks the WebSocket protocol",
        )),
        Error::Utf8(_) => Step::End(End::Abandon(
            CloseCode::Unsupported,
            "only binary messages are understood",
        )),
        // Closed by both ends, or the socket has failed.
        _ => Step::End(End::Gone),
    }
}
