//! The event loop: browsers' connections from the first byte to the last, each in its turn.
//!
//! Called by [`super::run`]. Guarantees that memory is bounded, whatever is sent: there are at most [`MAX_CONNECTIONS`], of which
//! [`MAX_SESSIONS`] are sessions; each has a bounded turn; and those that are not sessions have little time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ferretto_ipc::reactor::{Deadline, Event, Events, Interest, ReactorError, Token, monotonic_now};
use ferretto_ipc::{Address, Listener, Reactor, Stream};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use tungstenite::protocol::frame::coding::CloseCode;

use super::browser::Browser;
use super::request::{MAX_REQUEST, Origins, Target, Upgrade, Verdict, judge};
use super::session::{MAX_CHUNK, Session, Turn};
use ferretto_daemons::log;

/// Connections, whatever their state. More wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// Those that are connected with a service, or about to be. A page of the UI has two.
const MAX_SESSIONS: usize = 32;

/// How long a browser has for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a service has to accept a connection. Upstream's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a browser has to close its end after this one was closed.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long nobody is let in after that has failed, for example for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Tokens below are listeners; from here on each connection has two, see [`Connection`].
const FIRST_CONNECTION: u64 = 16;

/// Where targets are.
#[derive(Debug)]
pub(super) struct Targets {
    /// The tracing service.
    pub(super) traced: Address,
    /// The server of Android's debug bridge.
    pub(super) adb: Address,
}

impl Targets {
    fn address(&self, target: Target) -> &Address {
        match target {
            Target::Traced => &self.traced,
            Target::Adb => &self.adb,
        }
    }
}

/// The bridge.
pub(super) struct Server {
    reactor: Reactor,
    listeners: Vec<(Listener, Watch)>,
    /// When accepting goes on, after it has failed.
    paused_until: Option<u64>,
    origins: Origins,
    targets: Targets,
    connections: BTreeMap<u64, Connection>,
    /// Where the next connection's tokens begin.
    next: u64,
    /// Connections that go on without news from their sockets.
    again: BTreeSet<u64>,
    /// The origin that was refused last, and told of.
    last_refused: Option<Option<String>>,
    scratch: Vec<u8>,
}

/// A browser, or whoever it is, by the token of its socket; the next token is that of the service's.
struct Connection {
    state: State,
    browser: Watch,
    service: Watch,
    /// When its patience ends, on the monotonic clock.
    deadline: Option<u64>,
}

enum State {
    /// Its request is coming in.
    Asking(Browser, Vec<u8>),
    /// The target's network takes its time.
    Connecting(Connecting),
    Session(Box<Session>),
    /// It was told no, or why its session is over.
    Leaving(Browser),
    Gone,
}

struct Connecting {
    browser: Browser,
    early: Vec<u8>,
    upgrade: Upgrade,
    service: Stream,
}

/// What the reactor waits for on a socket.
struct Watch {
    token: Token,
    registered: Option<Interest>,
}

/// Whether a watch without an interest still tells of a socket that has failed.
#[derive(Clone, Copy)]
enum Idle {
    /// The end of this one ends the session, at once.
    Watched,
    /// What this one has sent before its end is to be read first, when there is room for it. Until then the reactor would tell of the
    /// end again and again.
    Unwatched,
}

impl Watch {
    fn new(token: u64) -> Watch {
        Watch {
            token: Token(token),
            registered: None,
        }
    }

    fn update(
        &mut self,
        reactor: &Reactor,
        fd: BorrowedFd<'_>,
        interest: Interest,
        idle: Idle,
    ) -> Result<(), ReactorError> {
        let wanted = match (interest, idle) {
            (Interest::None, Idle::Unwatched) => None,
            (interest, _) => Some(interest),
        };
        if wanted == self.registered {
            return Ok(());
        }
        match (self.registered, wanted) {
            (None, Some(interest)) => reactor.register(fd, self.token, interest)?,
            (Some(_), Some(interest)) => reactor.reregister(fd, self.token, interest)?,
            (Some(_), None) => reactor.deregister(fd, self.token)?,
            (None, None) => {}
        }
        self.registered = wanted;
        Ok(())
    }

    /// The socket was closed, and with that the kernel has forgotten it.
    fn closed(&mut self) {
        self.registered = None;
    }
}

impl Server {
    /// A bridge to these targets; the reactor watches for the signals that end it.
    pub(super) fn new(
        reactor: Reactor,
        listeners: Vec<Listener>,
        origins: Origins,
        targets: Targets,
    ) -> Server {
        let listeners = listeners
            .into_iter()
            .zip(0..FIRST_CONNECTION)
            .map(|(listener, token)| (listener, Watch::new(token)))
            .collect();
        Server {
            reactor,
            listeners,
            paused_until: None,
            origins,
            targets,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
            again: BTreeSet::new(),
            last_refused: None,
            scratch: vec![0; MAX_CHUNK],
        }
    }

    /// Serves until a signal comes.
    pub(super) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        loop {
            self.watch_listeners()?;
            let deadline = self.next_deadline().map(Deadline::Monotonic);
            self.reactor.wait(&mut events, deadline)?;
            if !events.signals().is_empty() {
                self.say_goodbye();
                return Ok(());
            }
            let mut due = std::mem::take(&mut self.again);
            for event in events.ready() {
                match event.token.0.checked_sub(FIRST_CONNECTION) {
                    None => self.accept(event.token)?,
                    Some(offset) => due.extend(self.heard(*event, event.token.0 - offset % 2)),
                }
            }
            for id in due {
                self.turn(id)?;
            }
            self.expire()?;
        }
    }

    fn next_deadline(&self) -> Option<u64> {
        if !self.again.is_empty() {
            return Some(0);
        }
        let connections = self
            .connections
            .values()
            .filter_map(|connection| connection.deadline);
        connections.chain(self.paused_until).min()
    }

    /// Nobody is let in when there is no room. Those without a session leave room soon.
    fn watch_listeners(&mut self) -> Result<(), ReactorError> {
        let open = self.connections.len() < MAX_CONNECTIONS && self.paused_until.is_none();
        let interest = Interest::from_wants(open, false);
        for (listener, watch) in &mut self.listeners {
            watch.update(&self.reactor, listener.as_fd(), interest, Idle::Unwatched)?;
        }
        Ok(())
    }

    fn accept(&mut self, token: Token) -> Result<(), ReactorError> {
        while self.connections.len() < MAX_CONNECTIONS {
            let Some((listener, _)) = self.listeners.iter().find(|(_, watch)| watch.token == token) else {
                return Ok(());
            };
            match listener.accept() {
                Ok(Some(stream)) => {
                    let id = self.next;
                    self.next += 2;
                    let connection = Connection {
                        state: State::Asking(Browser::new(stream), Vec::new()),
                        browser: Watch::new(id),
                        service: Watch::new(id + 1),
                        deadline: Some(after(REQUEST_TIMEOUT)),
                    };
                    self.connections.insert(id, connection);
                    self.watch(id)?;
                }
                Ok(None) => return Ok(()),
                Err(error) => {
                    log::warning(format_args!("{error}"));
                    self.paused_until = Some(after(ACCEPT_PAUSE));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Something happened on a socket: which connection is to have a turn.
    fn heard(&mut self, event: Event, id: u64) -> Option<u64> {
        let connection = self.connections.get_mut(&id)?;
        let deaf = !matches!(
            connection.browser.registered,
            Some(Interest::Readable | Interest::Both)
        );
        if event.token.0 == id && event.hung_up && deaf {
            // Reading would find it out. Here nothing will be read before something is written, to a service that may never take it.
            connection.state = State::Gone;
        }
        Some(id)
    }

    fn turn(&mut self, id: u64) -> Result<(), ReactorError> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        match &mut connection.state {
            State::Asking(browser, received) => {
                browser.begin_turn();
                let heard = hear(browser, received, &mut self.scratch);
                match judge(received, &self.origins) {
                    // An end after a whole request is no reason not to answer it.
                    Verdict::Wait if heard == Heard::End => connection.state = State::Gone,
                    Verdict::Wait => {}
                    Verdict::Grant(upgrade) => self.grant(id, upgrade),
                    Verdict::Respond(response) => connection.leave(response),
                    Verdict::RefuseOrigin { origin, response } => {
                        connection.leave(response);
                        self.warn_of_origin(origin);
                    }
                }
            }
            State::Connecting(connecting) => match connecting.outcome() {
                None => {}
                Some(Ok(())) => connection.begin_session(),
                Some(Err(error)) => self.refuse_target(id, &error),
            },
            State::Session(session) => match session.turn(&mut self.scratch) {
                Turn::Wait => {}
                Turn::Again => {
                    self.again.insert(id);
                }
                Turn::Over => connection.state = State::Gone,
                Turn::Abandon => connection.leave_session(),
            },
            State::Leaving(browser) => {
                if browser.leave(&mut self.scratch).is_err() {
                    connection.state = State::Gone;
                }
            }
            State::Gone => {}
        }
        self.watch(id)
    }

    /// Connects a browser that may.
    fn grant(&mut self, id: u64, upgrade: Upgrade) {
        let sessions = self
            .connections
            .values()
            .filter(|connection| matches!(connection.state, State::Session(_) | State::Connecting(_)));
        let full = sessions.count() >= MAX_SESSIONS;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if full {
            log::warning(format_args!(
                "{MAX_SESSIONS} connections are open, and that is as many as there may be: close tabs of the UI"
            ));
            return connection.leave(upgrade.unavailable("too many connections\n"));
        }
        let address = self.targets.address(upgrade.target);
        match Stream::connect(address) {
            Err(error) => {
                log::warning(format_args!("{error}"));
                connection.leave(upgrade.unavailable("no service is listening\n"));
            }
            Ok(service) => {
                let State::Asking(browser, mut received) = connection.state.take() else {
                    return;
                };
                connection.state = State::Connecting(Connecting {
                    browser,
                    early: received.split_off(upgrade.size),
                    upgrade,
                    service,
                });
                if address.is_unix() {
                    connection.begin_session();
                } else {
                    connection.deadline = Some(after(CONNECT_TIMEOUT));
                }
            }
        }
    }

    fn refuse_target(&mut self, id: u64, why: &dyn std::fmt::Display) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let State::Connecting(connecting) = connection.state.take() {
            let address = self.targets.address(connecting.upgrade.target);
            log::warning(format_args!("cannot connect to {address}: {why}"));
            connection.service.closed();
            connection.state = State::Leaving(connecting.browser);
            connection.leave(connecting.upgrade.unavailable("no service is listening\n"));
        }
    }

    /// Brings what is waited for up to date, and removes what is over.
    fn watch(&mut self, id: u64) -> Result<(), ReactorError> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let Connection {
            state,
            browser: browser_watch,
            service: service_watch,
            deadline,
        } = connection;
        let reactor = &self.reactor;
        match state {
            State::Asking(browser, _) => {
                browser_watch.update(reactor, browser.as_fd(), Interest::Readable, Idle::Watched)?;
            }
            State::Connecting(connecting) => {
                let Connecting { browser, service, .. } = connecting;
                browser_watch.update(reactor, browser.as_fd(), Interest::None, Idle::Watched)?;
                service_watch.update(reactor, service.as_fd(), Interest::Writable, Idle::Watched)?;
            }
            State::Session(session) => {
                let (fd, interest) = session.browser();
                browser_watch.update(reactor, fd, interest, Idle::Watched)?;
                match session.service() {
                    Some((fd, interest)) => service_watch.update(reactor, fd, interest, Idle::Unwatched)?,
                    None => service_watch.closed(),
                }
                if session.is_closing() && deadline.is_none() {
                    *deadline = Some(after(LEAVE_TIMEOUT));
                }
            }
            State::Leaving(browser) => {
                let interest = browser.interest_in_leaving();
                browser_watch.update(reactor, browser.as_fd(), interest, Idle::Watched)?;
            }
            State::Gone => {
                self.connections.remove(&id);
            }
        }
        Ok(())
    }

    fn expire(&mut self) -> Result<(), ReactorError> {
        let now = monotonic_now();
        let is_past = |deadline: Option<u64>| deadline.is_some_and(|at| at <= now);
        if is_past(self.paused_until) {
            self.paused_until = None;
        }
        let expired: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_past(connection.deadline))
            .map(|(id, _)| *id)
            .collect();
        for id in expired {
            match self.connections.get(&id).map(|connection| &connection.state) {
                Some(State::Connecting(_)) => {
                    self.refuse_target(id, &"it does not answer");
                    self.watch(id)?;
                }
                _ => {
                    self.connections.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Whoever waits for a page to connect learns why it does not; once, since pages try again and again.
    fn warn_of_origin(&mut self, origin: Option<String>) {
        /// A page says what it likes.
        const MAX_SHOWN: usize = 200;
        if self.last_refused.as_ref() == Some(&origin) {
            return;
        }
        match &origin {
            Some(origin) => {
                let shown: String = origin.chars().take(MAX_SHOWN).collect();
                log::warning(format_args!(
                    "refused a page from {shown:?}; if that is where your UI comes from, name it with --http-additional-cors-origins"
                ));
            }
            None => log::warning(format_args!(
                "refused a connection that names no origin, and so is no web page's"
            )),
        }
        self.last_refused = Some(origin);
    }

    /// Tells the pages that it was not their fault.
    fn say_goodbye(&mut self) {
        for connection in self.connections.values_mut() {
            if let State::Session(session) = &mut connection.state {
                session.close(CloseCode::Away, "websocket_bridge was ended");
            }
        }
    }
}

impl State {
    fn take(&mut self) -> State {
        std::mem::replace(self, State::Gone)
    }
}

impl Connection {
    /// Sends this as the last.
    fn leave(&mut self, response: Vec<u8>) {
        if let State::Asking(mut browser, _) | State::Leaving(mut browser) = self.state.take() {
            browser.respond(response);
            self.state = State::Leaving(browser);
            self.deadline = Some(after(LEAVE_TIMEOUT));
        }
    }

    fn leave_session(&mut self) {
        if let State::Session(session) = self.state.take() {
            self.service.closed();
            self.state = State::Leaving(session.into_browser());
            self.deadline = Some(after(LEAVE_TIMEOUT));
        }
    }

    fn begin_session(&mut self) {
        if let State::Connecting(connecting) = self.state.take() {
            let Connecting {
                mut browser,
                early,
                upgrade,
                service,
            } = connecting;
            browser.respond(upgrade.grant());
            self.state = State::Session(Box::new(Session::new(browser, early, service)));
            self.deadline = None;
        }
    }
}

impl Connecting {
    /// How it ended, if it has.
    fn outcome(&self) -> Option<rustix::io::Result<()>> {
        let mut poll = [PollFd::new(&self.service, PollFlags::OUT)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match rustix::event::poll(&mut poll, Some(&at_once)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => None,
            Ok(_) => Some(sockopt::socket_error(&self.service).and_then(|outcome| outcome)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// How reading a request stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// There may be more.
    Some,
    /// The browser is gone, or has closed its end.
    End,
}

/// Reads as much of a request as may be of use.
fn hear(browser: &mut Browser, received: &mut Vec<u8>, scratch: &mut [u8]) -> Heard {
    while received.len() < MAX_REQUEST {
        let room = MAX_REQUEST - received.len();
        match browser.read(&mut scratch[..room]) {
            Ok(0) => return Heard::End,
            Ok(count) => received.extend_from_slice(&scratch[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Some,
            Err(_) => return Heard::End,
        }
    }
    Heard::Some
}

fn after(duration: Duration) -> u64 {
    monotonic_now().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
