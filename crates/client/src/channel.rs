//! A socket and the client's end of the protocol on it: the common part of both endpoints.
//!
//! Called by [`crate::producer`] and [`crate::consumer`]. Guarantees that the reason for the end of the connection is reported once, as the last
//! event, after every outstanding call has failed.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ferretto_ipc::client::{Call, CallId, ClientConnection, ClientEvent, InvokeError, ServiceHandle};
use ferretto_ipc::frame::{MAX_FRAME, Violation};
use ferretto_ipc::reactor::{Interest, monotonic_now};
use ferretto_ipc::transport::{ReadEnd, Stream, TransportError};
use ferretto_wire::bulk::PageAligned;

/// How long whoever listens at the service's address may leave everything unanswered. A service that a service manager starts now, or on a busy machine, is
/// far faster.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Why the connection to the service ended.
#[derive(Debug)]
pub enum Disconnect {
    /// The service closed it: it ended, or it saw a violation of the protocol (then its log says so).
    Closed,
    /// The host at this address has no such service.
    NoSuchService(&'static str),
    /// It turned this producer away.
    Rejected,
    /// The socket failed.
    Transport(TransportError),
    /// Whoever listens at the address has not answered anything for this long.
    Silent(Duration),
    /// The service sent bytes that are no frame.
    Violation(Violation),
    /// The service sent a message that does not decode.
    Malformed {
        /// The message's type.
        message: &'static str,
        /// A description of the error.
        reason: String,
    },
    /// The service sent a message that makes no sense at this point.
    Nonsense(&'static str),
}

impl fmt::Display for Disconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disconnect::Closed => f.write_str("the service closed the connection"),
            Disconnect::NoSuchService(value) => write!(
                f,
                "the host offers no {value}; is this the socket of the other kind of client?"
            ),
            Disconnect::Rejected => {
                f.write_str("the service rejected the producer; it has as many as it can take")
            }
            Disconnect::Transport(error) => error.fmt(f),
            Disconnect::Silent(patience) => write!(
                f,
                "the tracing service has not answered within {} s; see whether it is stopped or overloaded, and whether another program listens at its address",
                patience.as_secs()
            ),
            Disconnect::Violation(value) => write!(f, "the service broke the protocol: {value}"),
            Disconnect::Malformed { message, reason } => {
                write!(f, "the service sent a malformed {message}: {reason}")
            }
            Disconnect::Nonsense(value) => write!(f, "the service broke the protocol: {value}"),
        }
    }
}

impl std::error::Error for Disconnect {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Disconnect::Transport(error) => error.source(),
            Disconnect::Violation(value) => Some(value),
            _ => None,
        }
    }
}

impl From<TransportError> for Disconnect {
    fn from(error: TransportError) -> Self {
        Disconnect::Transport(error)
    }
}

impl From<Violation> for Disconnect {
    fn from(error: Violation) -> Self {
        Disconnect::Violation(error)
    }
}

/// Why there is no endpoint.
#[derive(Debug)]
pub enum ConnectError {
    /// The service could not be reached.
    Transport(TransportError),
    /// The first requests could not be made.
    Handshake(InvokeError),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Transport(error) => error.fmt(f),
            ConnectError::Handshake(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ConnectError::Transport(error) => error.source(),
            ConnectError::Handshake(error) => error.source(),
        }
    }
}

impl From<TransportError> for ConnectError {
    fn from(error: TransportError) -> Self {
        ConnectError::Transport(error)
    }
}

impl From<InvokeError> for ConnectError {
    fn from(error: InvokeError) -> Self {
        ConnectError::Handshake(error)
    }
}

/// One step of an endpoint's loop.
pub(crate) enum Step<'a> {
    Event(ClientEvent<'a>),
    /// Something changed; step again.
    Again,
    /// Nothing more for now.
    Idle,
    /// The connection ended. Reported once.
    Lost(Disconnect),
}

#[derive(Debug)]
pub(crate) struct Channel {
    stream: Stream,
    connection: ClientConnection,
    service: ServiceHandle,
    scratch: PageAligned,
    state: State,
    patience: Patience,
}

/// How long the host may be silent.
#[derive(Debug)]
enum Patience {
    /// Until this monotonic time, unless it answers.
    Until(u64),
    /// The time is over. The bytes that have arrived are still handled.
    LastLook,
    Over,
}

impl Patience {
    fn new() -> Patience {
        Patience::Until(monotonic_now().saturating_add(ANSWER_PATIENCE.as_nanos() as u64))
    }
}

#[derive(Debug)]
enum State {
    Open,
    /// The bytes were no frame. The next step goes on from here.
    Broken(Violation),
    /// Outstanding calls fail, then this is reported.
    Ending(Option<Disconnect>),
}

impl Channel {
    /// Binds `service` over `stream`. At most `outgoing_bytes` may wait to be sent.
    pub(crate) fn bind(stream: Stream, service: &str, outgoing_bytes: usize) -> Result<Channel, InvokeError> {
        let mut connection = ClientConnection::new(outgoing_bytes);
        let service = connection.bind(service)?;
        let scratch = PageAligned::new(MAX_FRAME);
        Ok(Channel {
            stream,
            connection,
            service,
            scratch,
            state: State::Open,
            patience: Patience::new(),
        })
    }

    pub(crate) fn invoke(&mut self, call: Call) -> Result<CallId, InvokeError> {
        self.connection.invoke(self.service, call)
    }

    pub(crate) fn outgoing_room(&self) -> usize {
        self.connection.outgoing_room()
    }

    pub(crate) fn interest(&self) -> Interest {
        match self.state {
            State::Open => self.connection.interest(),
            State::Broken(_) | State::Ending(_) => Interest::None,
        }
    }

    pub(crate) fn on_readable(&mut self) {
        if !matches!(self.state, State::Open) {
            return;
        }
        match self.stream.read_into(&mut self.connection, &mut self.scratch) {
            Ok(ReadEnd::Drained | ReadEnd::Paused) => {}
            Ok(ReadEnd::Closed) => self.failed(Disconnect::Closed),
            Err(error) => self.failed(error.into()),
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` once the host has answered.
    pub(crate) fn answer_due(&self) -> Option<u64> {
        match (&self.state, &self.patience) {
            (State::Open, Patience::Until(at)) if !self.connection.is_answered() => Some(*at),
            _ => None,
        }
    }

    /// Ends the connection if the host has not answered by now. Call it before [`step`](Self::step).
    pub(crate) fn handle_timeout(&mut self, now: u64) {
        if self.answer_due().is_some_and(|due| due <= now) {
            self.patience = Patience::LastLook;
            // This may go on to another address, which has a patience of its own.
            self.on_readable();
        }
    }

    fn failed(&mut self, reason: Disconnect) {
        if !self.tries_another_address() {
            self.end(reason);
        }
    }

    pub(crate) fn flush(&mut self) {
        if !matches!(self.state, State::Open) {
            return;
        }
        if let Err(error) = self.stream.flush(self.connection.outgoing()) {
            if self.tries_another_address() {
                return;
            }
            // Messages that the service sent before it closed may still be unread: its reason to close, perhaps.
            self.on_readable();
            self.end(error.into());
        }
    }

    /// Ends the connection from this side; the first reason counts.
    pub(crate) fn end(&mut self, reason: Disconnect) {
        if matches!(self.state, State::Open) {
            self.state = State::Ending(Some(reason));
            self.connection.connection_lost();
        }
    }

    /// The connection has failed. If no service has answered on it, and the service's name has another address, that is tried instead.
    fn tries_another_address(&mut self) -> bool {
        let has_other = matches!(self.state, State::Open)
            && !self.connection.is_answered()
            && self.stream.connect_to_next();
        if has_other {
            self.connection.begin_again();
            self.patience = Patience::new();
        }
        has_other
    }

    pub(crate) fn step(&mut self) -> Step<'_> {
        if matches!(self.patience, Patience::Over) && !self.connection.is_answered() {
            self.failed(Disconnect::Silent(ANSWER_PATIENCE));
        }
        self.state = match std::mem::replace(&mut self.state, State::Open) {
            State::Broken(_) if self.tries_another_address() => State::Open,
            State::Broken(violation) => State::Ending(Some(violation.into())),
            state => state,
        };
        match self.connection.next_event() {
            Ok(Some(event)) => Step::Event(event),
            Ok(None) if matches!(self.patience, Patience::LastLook) => {
                self.patience = Patience::Over;
                Step::Again
            }
            Ok(None) => match &mut self.state {
                State::Open | State::Broken(_) => Step::Idle,
                State::Ending(reason) => reason.take().map_or(Step::Idle, Step::Lost),
            },
            Err(violation) => {
                if matches!(self.state, State::Open) {
                    self.state = State::Broken(violation);
                }
                Step::Again
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests;
