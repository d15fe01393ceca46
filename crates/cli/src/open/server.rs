//! The sockets of `ferretto open`: a trace, and perhaps a copy of the UI, over HTTP on 127.0.0.1.
//!
//! Called by [`run`](super::run); what is answered to whom, [`request`](super::request) decides, and [`body`](super::body) sends it. One event
//! loop, since a browser opens connections that it may never use, and each must be able to wait. Guarantees: a bounded number of
//! connections, each with a bounded head and body; each connection gets one answer.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ferretto_ipc::Reactor;
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Signal, Token, monotonic_now};

use super::body::{Body, Sent};
use super::request::{Answer, LONGEST_HEAD, Part, Policy, Refusal};
use super::site::Site;
use super::subject::Subject;

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

/// What is served, and to whom.
#[derive(Debug)]
pub(super) struct Exhibition {
    pub(super) policy: Policy,
    pub(super) subject: Subject,
    /// The copy of the UI that shows it. With one, serving goes on after the trace was fetched: the UI loads parts of itself later.
    pub(super) site: Option<Site>,
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The whole trace was fetched.
    Fetched(Fetched),
    /// A signal came; whether the trace was fetched before.
    Interrupted(Signal, Option<Fetched>),
}

/// The trace has been fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fetched {
    /// What was sent of it.
    pub(super) bytes: u64,
    /// From request to end.
    pub(super) took: Duration,
}

/// Something that the user may want to know, while serving goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Incident {
    /// The trace was fetched, and serving goes on.
    Fetched { bytes: u64, took: Duration },
    /// The browser hung up in the middle, after `sent` bytes of `of`, if that is known.
    CutOff { sent: u64, of: Option<u64> },
    /// The file ended in the middle, after `sent` bytes of `of`.
    Shrunk { sent: u64, of: u64 },
    /// The trace could not be expanded to its end. What comes before was sent.
    Broken(String),
    /// Something could not be read: what, and why.
    Unreadable(String, String),
    /// Somebody was refused.
    Refused(Refusal),
}

/// A port that is listened on.
pub(super) struct Port {
    reactor: Reactor,
    listener: TcpListener,
    number: u16,
}

impl Port {
    /// Listens on this port of 127.0.0.1, or on any that is free for 0. From now on signals are for [`Server::serve`].
    pub(super) fn bind(number: u16) -> Result<Port, BindError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, number)).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => BindError::Taken,
                _ => BindError::Refused(error),
            })?;
        listener.set_nonblocking(true).map_err(BindError::Refused)?;
        let number = listener.local_addr().map_err(BindError::Refused)?.port();
        let mut reactor = Reactor::new()?;
        reactor.watch_signals(&[Signal::Interrupt, Signal::Terminate, Signal::HangUp])?;
        reactor.register(&listener, LISTENER, Interest::Readable)?;
        Ok(Port {
            reactor,
            listener,
            number,
        })
    }

    /// Its number.
    pub(super) fn number(&self) -> u16 {
        self.number
    }
}

/// The socket and what is served on it.
pub(super) struct Server {
    reactor: Reactor,
    listener: TcpListener,
    exhibition: Exhibition,
    /// The last time that all of the trace was.
    fetched: Option<Fetched>,
    connections: BTreeMap<u64, Connection>,
    last_token: u64,
}

impl Server {
    /// Serves this there.
    pub(super) fn new(port: Port, exhibition: Exhibition) -> Server {
        Server {
            reactor: port.reactor,
            listener: port.listener,
            exhibition,
            fetched: None,
            connections: BTreeMap::new(),
            last_token: LISTENER.0,
        }
    }

    /// Serves until a signal comes or, without a copy of the UI, until the trace was fetched once.
    pub(super) fn serve(&mut self, tell: &mut dyn FnMut(Incident)) -> Result<Outcome, ServeError> {
        let mut events = Events::new();
        loop {
            let deadline = self.connections.values().filter_map(Connection::deadline).min();
            self.reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
            if let Some(signal) = events.signals().first() {
                return Ok(Outcome::Interrupted(*signal, self.fetched));
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
        match connection.turn(&self.exhibition, now, tell) {
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
                let Some(fetched) = fetched else { return Ok(None) };
                self.fetched = Some(fetched);
                if self.exhibition.site.is_none() {
                    return Ok(Some(Outcome::Fetched(fetched)));
                }
                let Fetched { bytes, took } = fetched;
                tell(Incident::Fetched { bytes, took });
                Ok(None)
            }
        }
    }
}

/// One browser's connection.
struct Connection {
    stream: TcpStream,
    state: State,
}

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
struct Transfer {
    head: Vec<u8>,
    head_sent: usize,
    body: Body,
    /// What was sent of the body's contents.
    sent: u64,
    /// What it is about.
    about: About,
    began: Instant,
}

/// What an answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    /// All of the trace, of this size if that is known.
    Trace(Option<u64>),
    Other,
}

/// What comes of a turn.
enum Turn {
    /// The connection waits for its [`Connection::interest`].
    Wait,
    /// It is done with.
    Over(Option<Fetched>),
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

    fn turn(&mut self, exhibition: &Exhibition, now: u64, tell: &mut dyn FnMut(Incident)) -> Turn {
        if let State::Asking(bytes) = &mut self.state {
            let Ok(more) = read_some(&self.stream, bytes) else {
                return Turn::Over(None);
            };
            let answer = match (exhibition.policy.judge(bytes), more) {
                (Some(answer), _) => answer,
                (None, More::MayCome) => return Turn::Wait,
                (None, More::Ended) => return Turn::Over(None),
            };
            match Transfer::new(&answer, exhibition) {
                Ok(transfer) => self.state = State::Answering(transfer),
                Err(incident) => {
                    tell(incident);
                    return Turn::Over(None);
                }
            }
            if let Answer::Refused(refusal) = answer {
                tell(Incident::Refused(refusal));
            }
        }
        if let State::Answering(transfer) = &mut self.state {
            match (transfer.send(&self.stream), transfer.about) {
                (Sent::Paused, _) => return Turn::Wait,
                (Sent::All, _) => {}
                (Sent::Broken(reason), _) => tell(Incident::Broken(reason)),
                (Sent::HungUp, About::Trace(of)) => {
                    let sent = transfer.sent;
                    tell(Incident::CutOff { sent, of });
                    return Turn::Over(None);
                }
                // Nobody misses an answer without the trace.
                (Sent::HungUp, About::Other) => return Turn::Over(None),
                (Sent::Shrunk, About::Trace(of)) => {
                    let sent = transfer.sent;
                    let of = of.unwrap_or(sent);
                    tell(Incident::Shrunk { sent, of });
                    return Turn::Over(None);
                }
                (Sent::Shrunk, About::Other) => {
                    tell(unreadable_ui("a file of it is shorter than it should be"));
                    return Turn::Over(None);
                }
                (Sent::Unreadable(reason), About::Trace(_)) => {
                    tell(unreadable_trace(reason));
                    return Turn::Over(None);
                }
                (Sent::Unreadable(reason), About::Other) => {
                    tell(unreadable_ui(reason));
                    return Turn::Over(None);
                }
            }
            if self.stream.shutdown(Shutdown::Write).is_err() {
                return Turn::Over(None);
            }
            self.state = State::Leaving {
                fetched: match transfer.about {
                    About::Trace(_) => Some(Fetched {
                        bytes: transfer.sent,
                        took: transfer.began.elapsed(),
                    }),
                    About::Other => None,
                },
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
                            of: Some(bytes),
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

fn unreadable_trace(reason: impl ToString) -> Incident {
    Incident::Unreadable("the trace".to_owned(), reason.to_string())
}

fn unreadable_ui(reason: impl ToString) -> Incident {
    Incident::Unreadable("the copy of the UI".to_owned(), reason.to_string())
}

impl Transfer {
    fn new(answer: &Answer, exhibition: &Exhibition) -> Result<Transfer, Incident> {
        let Exhibition {
            policy,
            subject,
            site,
        } = exhibition;
        let (resource, part) = match answer {
            Answer::File | Answer::Head => {
                let part = match answer {
                    Answer::File => Part::All,
                    _ => Part::Head,
                };
                (subject.resource().map(Some).map_err(unreadable_trace)?, part)
            }
            Answer::Page { path, part } => {
                let found = site.as_ref().map(|site| site.find(path)).transpose();
                (found.map_err(unreadable_ui)?.flatten(), *part)
            }
            Answer::Permission { .. } | Answer::Refused(_) => (None, Part::Head),
        };
        let missing = Answer::Refused(Refusal::NoSuchFile);
        let answer = match (answer, &resource) {
            (Answer::Page { .. }, None) => &missing,
            (answer, _) => answer,
        };
        let (media_type, size) = resource
            .as_ref()
            .map_or(("", None), |resource| (resource.media_type, resource.size));
        let about = match answer {
            Answer::File => About::Trace(size),
            _ => About::Other,
        };
        let body = match (&resource, part) {
            (Some(resource), Part::All) => resource.body().map_err(|error| match about {
                About::Trace(_) => unreadable_trace(error),
                About::Other => unreadable_ui(error),
            })?,
            _ => Body::Nothing,
        };
        Ok(Transfer {
            head: policy.head(answer, media_type, size),
            head_sent: 0,
            body,
            sent: 0,
            about,
            began: Instant::now(),
        })
    }

    /// Sends as much as the socket takes, and at most about [`TURN`] of the body.
    fn send(&mut self, mut stream: &TcpStream) -> Sent {
        while self.head_sent < self.head.len() {
            match stream.write(&self.head[self.head_sent..]) {
                Ok(count) => self.head_sent += count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Sent::Paused,
                    ErrorKind::Interrupted => {}
                    _ => return Sent::HungUp,
                },
            }
        }
        self.body.send(stream, TURN, &mut self.sent)
    }
}
