//! Connects a WebSocket with the service's socket: the bytes from each go to the other.
//!
//! [`bridge`](super::bridge) gives it turns. Boundaries of messages have no meaning, because the service's protocol has frames of its own. At most
//! one message waits in each direction. While it waits, nothing is read from its source, so the kernel slows down a sender that is faster than the
//! other side. A turn does a bounded amount of work.

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

/// The most bytes of a message from the browser. The UI sends each frame of the service's protocol in one message; a frame has at most 128 KB.
const MAX_MESSAGE: usize = 1024 * 1024;
/// The most bytes that are read from the service at once, and so the most in a message to the browser.
pub(super) const MAX_CHUNK: usize = 64 * 1024;
/// The messages in either direction after which other connections get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// The state after a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// Wait for the sockets.
    Wait,
    /// Take another turn after the others, even if the sockets have no events.
    Again,
    /// The session is over.
    Over,
    /// The session is over, and the browser has been told why. Further data from it are ignored. See [`Session::into_browser`].
    Abandon,
}

/// One connection of a page with the service.
pub(super) struct Session {
    websocket: WebSocket<Browser>,
    /// The service's side; `None` while the session is closing.
    service: Option<Service>,
    /// Whether the WebSocket may hold bytes that the browser's socket has not taken yet.
    unflushed: bool,
}

struct Service {
    stream: Stream,
    /// The bytes that the service has not taken yet.
    pending: Bytes,
    /// Whether the service has stopped taking bytes. It may have sent some that are still to be read.
    deaf: bool,
}

/// The result of an attempt to move bytes.
enum Step {
    /// There may be more to do.
    Moved,
    /// Nothing can be done before a socket has an event.
    Stuck,
    End(End),
}

enum End {
    /// Nothing more can be sent to the browser.
    Gone,
    /// The browser has broken the protocol, and must be told so.
    Abandon(CloseCode, &'static str),
}

impl Session {
    /// Starts the session of a browser that still has to get the granting response. `early` is the data after its request.
    pub(super) fn new(browser: Browser, early: Vec<u8>, service: Stream) -> Session {
        let config = WebSocketConfig::default()
            .read_buffer_size(16 * 1024)
            // Each message is sent at once if possible.
            .write_buffer_size(0)
            // There is room for one message, and for answers to pings.
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

    /// Returns the events that it waits for. While closing it expects nothing from the service.
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

    /// Disconnects from the service, and gives the browser a time limit to close its end.
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
        // The frame is sent, or waits to be, or the browser is gone, which the next turn notices.
        self.unflushed = self.websocket.close(Some(frame)).is_err();
    }

    /// Moves bytes in both directions. `scratch` has [`MAX_CHUNK`] bytes.
    pub(super) fn turn(&mut self, wake: Wake, scratch: &mut [u8]) -> Turn {
        // Reading would show the end of the connection, but nothing is read until the service takes the waiting message, which may never happen.
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
            // The library has answered it, or holds the answer.
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
        // A consumer receives no descriptors that a browser could use.
        match service.stream.recv(scratch, &mut None) {
            Ok(Received::Bytes(count)) => {
                let message = Message::Binary(Bytes::copy_from_slice(&scratch[..count]));
                self.unflushed = true;
                match self.websocket.write(message) {
                    // The library keeps bytes that the socket did not take.
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
            // The browser does not read either.
            return Turn::Over;
        }
        Turn::Abandon
    }

    /// Returns the browser's connection when the WebSocket's state has become useless.
    pub(super) fn into_browser(self) -> Browser {
        self.websocket.into_inner()
    }
}

impl Service {
    /// Whether all data from the browser have been passed on.
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
            // The service may have sent data before it hung up, which are still to be read.
            Err(_) => {
                self.deaf = true;
                self.pending.clear();
                Step::Moved
            }
        }
    }
}

/// Interprets an error of the WebSocket.
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
        // Both ends have closed, or the socket has failed.
        _ => Step::End(End::Gone),
    }
}
