//! The sockets of `ferretto open`: one file over HTTP on 127.0.0.1, until it was fetched.
//!
//! Called by [`run`](super::run); what is answered to whom, [`request`](super::request) decides. One event loop, since a browser
//! opens connections that it may never use, and each must be able to wait. Guarantees: a bounded number of connections, each with a
//! bounded head and no other memory, because the kernel moves the file's bytes (`sendfile`); each connection gets one answer; the
//! file is as long as it was when it was asked for, or the answer is cut off.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use ferretto_ipc::Reactor;
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Signal, Token, monotonic_now};
use rustix::io::Errno;

use super::request::{Answer, LONGEST_HEAD, Policy, Refusal};

/// Connections at a time. Browsers open six at most to one server.
const MOST_CONNECTIONS: usize = 32;
/// What a connection may send of the file before others have their turn.
const TURN: usize = 1 << 20;
/// How long a browser has to take what is left in the kernel's buffers, and to say that it has all, before that is taken as said.
const FAREWELL: Duration = Duration::from_secs(5);

const LISTENER: Token = Token(0);

/// Why a port cannot be served on.
#[derive(Debug)]
pub(super) enum BindError {
    /// Somebody else does.
    Taken,
    /// The kernel will not have it.
    Refused(io::Error),
    /// There is no event loop.
    Reactor(ReactorError),
}

impl From<ReactorError> for BindError {
    fn from(error: ReactorError) -> BindError {
        BindError::Reactor(error)
    }
}

/// Why serving ended otherwise than it should.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// The event loop failed.
    #[error(transparent)]
    Reactor(#[from] ReactorError),
    /// No more connections come in.
    #[error("taking a connection failed: {0}")]
    Accept(io::Error),
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The whole file was fetched.
    Fetched {
        /// Its size.
        bytes: u64,
        /// From request to end.
        took: Duration,
    },
    /// A signal came first.
    Interrupted(Signal),
}

/// Something that the user may want to know, while serving goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incident {
    /// The browser hung up in the middle, after `sent` bytes of `of`.
    CutOff { sent: u64, of: u64 },
    /// The file ended in the middle, after `sent` bytes of `of`.
    Shrunk { sent: u64, of: u64 },
    /// The file could not be read.
    Unreadable(String),
    /// Somebody was refused.
    Refused(Refusal),
}

/// The socket and what is served on it.
#[derive(Debug)]
pub(super) struct Server {
    reactor: Reactor,
    listener: TcpListener,
    port: u16,
    file: File,
    policy: Policy,
    connections: BTreeMap<u64, Connection>,
    last_token: u64,
}

impl Server {
    /// Listens on this port of 127.0.0.1, or on any that is free for 0. From now on signals are for [`Server::serve`].
    pub(super) fn bind(port: u16, file: File, policy: Policy) -> Result<Server, BindError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => BindError::Taken,
                _ => BindError::Refused(error),
            })?;
        listener.set_nonblocking(true).map_err(BindError::Refused)?;
        let port = listener.local_addr().map_err(BindError::Refused)?.port();
        let mut reactor = Reactor::new()?;
        reactor.watch_signals(&[Signal::Interrupt, Signal::Terminate, Signal::HangUp])?;
        reactor.register(&listener, LISTENER, Interest::Readable)?;
        Ok(Server {
            reactor,
            listener,
            port,
            file,
            policy,
            connections: BTreeMap::new(),
            last_token: LISTENER.0,
        })
    }

    /// The port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Serves until the file was fetched once, or a signal comes.
    pub(super) fn serve(&mut self, tell: &mut dyn FnMut(Incident)) -> Result<Outcome, ServeError> {
        let mut events = Events::new();
        loop {
            let deadline = self.connections.values().filter_map(Connection::deadline).min();
            self.reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
            if let Some(signal) = events.signals().first() {
                return Ok(Outcome::Interrupted(*signal));
            }
            let now = monotonic_now();
            let overdue: Vec<u64> = self
                .connections
                .iter()
                .filter(|(_, connection)| connection.deadline().is_some_and(|at| at <= now))
                .map(|(token, _)| *token)
                .collect();
            let ready = events.ready().iter().map(|event| event.token.0);
            for token in ready.chain(overdue) {
                if token == LISTENER.0 {
                    self.accept()?;
                } else if let Some(outcome) = self.turn(token, now, tell)? {
                    return Ok(outcome);
                }
            }
        }
    }

    fn accept(&mut self) -> Result<(), ServeError> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    // That connection is gone already.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => continue,
                    _ => return Err(ServeError::Accept(error)),
                },
            };
            if self.connections.len() >= MOST_CONNECTIONS && !self.drop_oldest_idle()? {
                continue;
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.last_token += 1;
            let token = self.last_token;
            self.reactor.register(&stream, Token(token), Interest::Readable)?;
            self.connections.insert(token, Connection::new(stream));
        }
    }

    /// Makes room by hanging up on whoever has asked for nothing for longest; `false` if all are being answered.
    fn drop_oldest_idle(&mut self) -> Result<bool, ServeError> {
        let idle = self
            .connections
            .iter()
            .find(|(_, connection)| !matches!(connection.state, State::Answering(_)))
            .map(|(token, _)| *token);
        if let Some(token) = idle {
            self.hang_up(token)?;
        }
        Ok(idle.is_some())
    }

    fn hang_up(&mut self, token: u64) -> Result<(), ServeError> {
        if let Some(connection) = self.connections.remove(&token) {
            self.reactor.deregister(&connection.stream, Token(token))?;
        }
        Ok(())
    }

    /// Goes on with a connection that is ready, or whose time is over.
    fn turn(
        &mut self,
        token: u64,
        now: u64,
        tell: &mut dyn FnMut(Incident),
    ) -> Result<Option<Outcome>, ServeError> {
        let Some(connection) = self.connections.get_mut(&token) else {
            return Ok(None);
        };
        let before = connection.interest();
        match connection.turn(&self.policy, &self.file, now, tell) {
            Turn::Wait => {
                let interest = connection.interest();
                if interest != before {
                    self.reactor
                        .reregister(&connection.stream, Token(token), interest)?;
                }
                Ok(None)
            }
            Turn::Over(fetched) => {
                self.hang_up(token)?;
                Ok(fetched.map(|Fetched { bytes, took }| Outcome::Fetched { bytes, took }))
            }
        }
    }
}

/// One browser's connection.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    state: State,
}

#[derive(Debug)]
enum State {
    /// These bytes of a request have come.
    Asking(Vec<u8>),
    Answering(Transfer),
    /// All is sent; the other end may not have read it.
    Leaving {
        fetched: Option<Fetched>,
        until: u64,
    },
}

/// An answer on its way.
#[derive(Debug)]
struct Transfer {
    head: Vec<u8>,
    head_sent: usize,
    /// What has still to be sent of the file.
    body: Range<u64>,
    /// The file's size, if it is what is fetched.
    fetching: Option<u64>,
    began: Instant,
}

/// The file has been fetched.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    bytes: u64,
    took: Duration,
}

/// What comes of a turn.
enum Turn {
    /// The connection waits for its [`Connection::interest`].
    Wait,
    /// It is done with.
    Over(Option<Fetched>),
}

/// What comes of sending.
enum Sending {
    Paused,
    Done,
    Failed(Incident),
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            state: State::Asking(Vec::new()),
        }
    }

    fn interest(&self) -> Interest {
        match self.state {
            State::Asking(_) | State::Leaving { .. } => Interest::Readable,
            State::Answering(_) => Interest::Writable,
        }
    }

    fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Leaving { until, .. } => Some(until),
            State::Asking(_) | State::Answering(_) => None,
        }
    }

    fn turn(&mut self, policy: &Policy, file: &File, now: u64, tell: &mut dyn FnMut(Incident)) -> Turn {
        if let State::Asking(bytes) = &mut self.state {
            let Ok(more) = read_some(&self.stream, bytes) else {
                return Turn::Over(None);
            };
            let answer = match (policy.judge(bytes), more) {
                (Some(answer), _) => answer,
                (None, More::MayCome) => return Turn::Wait,
                (None, More::Ended) => return Turn::Over(None),
            };
            match Transfer::new(&answer, policy, file) {
                Ok(transfer) => self.state = State::Answering(transfer),
                Err(error) => {
                    tell(Incident::Unreadable(error.to_string()));
                    return Turn::Over(None);
                }
            }
            if let Answer::Refused(refusal) = answer {
                tell(Incident::Refused(refusal));
            }
        }
        if let State::Answering(transfer) = &mut self.state {
            match transfer.send(&self.stream, file) {
                Sending::Paused => return Turn::Wait,
                Sending::Failed(incident) => {
                    // Nobody misses an answer without the file.
                    if transfer.fetching.is_some() {
                        tell(incident);
                    }
                    return Turn::Over(None);
                }
                Sending::Done => {}
            }
            if self.stream.shutdown(Shutdown::Write).is_err() {
                return Turn::Over(None);
            }
            self.state = State::Leaving {
                fetched: transfer.fetching.map(|bytes| Fetched {
                    bytes,
                    took: transfer.began.elapsed(),
                }),
                until: now.saturating_add(FAREWELL.as_nanos() as u64),
            };
        }
        if let State::Leaving { fetched, until } = self.state {
            // Closed before it has been read empty, a connection is reset, and takes with it what the browser has not read.
            let mut rest = Vec::new();
            return match read_some(&self.stream, &mut rest) {
                Ok(More::MayCome) if now < until => Turn::Wait,
                Ok(_) => Turn::Over(fetched),
                Err(_) => {
                    if let Some(Fetched { bytes, .. }) = fetched {
                        tell(Incident::CutOff {
                            sent: bytes,
                            of: bytes,
                        });
                    }
                    Turn::Over(None)
                }
            };
        }
        Turn::Wait
    }
}

/// Whether a stream has ended.
enum More {
    MayCome,
    Ended,
}

/// Appends what is there, up to [`LONGEST_HEAD`] bytes in all.
fn read_some(mut stream: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<More> {
    let mut buffer = [0; 4096];
    while bytes.len() < LONGEST_HEAD {
        let room = buffer.len().min(LONGEST_HEAD - bytes.len());
        match stream.read(&mut buffer[..room]) {
            Ok(0) => return Ok(More::Ended),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(More::MayCome)
}

impl Transfer {
    fn new(answer: &Answer, policy: &Policy, file: &File) -> io::Result<Transfer> {
        let size = file.metadata()?.len();
        let fetching = (*answer == Answer::File).then_some(size);
        Ok(Transfer {
            head: policy.head(answer, size),
            head_sent: 0,
            body: 0..fetching.unwrap_or(0),
            fetching,
            began: Instant::now(),
        })
    }

    /// Sends as much as the socket takes, and at most [`TURN`] of the file.
    fn send(&mut self, mut stream: &TcpStream, file: &File) -> Sending {
        while self.head_sent < self.head.len() {
            match stream.write(&self.head[self.head_sent..]) {
                Ok(count) => self.head_sent += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Sending::Paused,
                    ErrorKind::Interrupted => {}
                    _ => return Sending::Failed(self.cut_off()),
                },
            }
        }
        let mut left_of_turn = TURN;
        while !self.body.is_empty() {
            if left_of_turn == 0 {
                return Sending::Paused;
            }
            let left = usize::try_from(self.body.end - self.body.start).unwrap_or(usize::MAX);
            match rustix::fs::sendfile(stream, file, Some(&mut self.body.start), left.min(left_of_turn)) {
                Ok(0) => {
                    return Sending::Failed(Incident::Shrunk {
                        sent: self.body.start,
                        of: self.body.end,
                    });
                }
                Ok(count) => left_of_turn -= count,
                Err(Errno::AGAIN) => return Sending::Paused,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::TIMEDOUT) => {
                    return Sending::Failed(self.cut_off());
                }
                Err(error) => return Sending::Failed(Incident::Unreadable(error.to_string())),
            }
        }
        Sending::Done
    }

    fn cut_off(&self) -> Incident {
        Incident::CutOff {
            sent: self.body.start,
            of: self.body.end,
        }
    }
}
