//! The event loop, which drives browsers' connections from the first byte to the last.
//!
//! Programs that serve call it with an [`Application`]. A browser opens connections that it may never use, so each must be able to wait. Memory is
//! bounded: there are at most [`MOST_CONNECTIONS`]. A connection that the application has not taken over has little time, and the oldest such
//! connection makes room for a new one.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ferretto_ipc::reactor::{
    Deadline, Event, Events, Interest, ReactorError, Signal, Token, Watch, monotonic_now,
};
use ferretto_ipc::transport::TransportError;
use ferretto_ipc::{Listener, Reactor, Stream};

use super::browser::{Browser, after};
use super::head::{Head, LONGEST_HEAD};

/// The most connections, in any state.
const MOST_CONNECTIONS: usize = 128;
/// The most connections that an application should take over. Browsers open at most six to one server; a page of the UI has two WebSockets.
pub(crate) const MOST_EXCHANGES: usize = 32;
/// The most connections that are accepted in a row, before connections with data get their turn.
const ADMITTED_AT_ONCE: usize = 16;
/// The pause after accepting has failed, for example for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// Lower tokens are listeners. From here on each connection has two tokens: an even one, which is its number, for the browser's socket, and the next
/// for the other socket.
const FIRST_CONNECTION: u64 = 16;

/// An application of the server. It judges requests and drives the exchanges that it grants.
pub(crate) trait Application {
    /// A connection that it has taken over.
    type Exchange: Exchange;

    /// Answers a browser's request. There are `exchanges` already.
    fn answer(&mut self, head: &Head<'_>, browser: Browser, exchanges: usize) -> State<Self::Exchange>;

    /// Takes one turn of an exchange.
    fn turn(&mut self, exchange: Self::Exchange, wake: Wake) -> State<Self::Exchange>;

    /// Ends an exchange because a signal ends the server.
    fn say_goodbye(&mut self, _exchange: &mut Self::Exchange) {}

    /// Handles a failure to accept; no connections are accepted for a while.
    fn cannot_accept(&mut self, error: &TransportError);

    /// Whether serving is complete.
    fn is_done(&self) -> bool {
        false
    }
}

/// A connection that an application has taken over.
pub(crate) trait Exchange {
    /// Returns the events that its next turn waits for, besides the browser's deadline.
    fn waits(&self) -> Waits<'_>;
}

/// The events that an exchange waits for.
pub(crate) struct Waits<'a> {
    pub(crate) browser: &'a Browser,
    pub(crate) interest: Interest,
    /// Another socket, if the exchange has one. The exchange may close it, but not replace it.
    pub(crate) other: Option<(BorrowedFd<'a>, Interest)>,
}

impl<'a> Waits<'a> {
    pub(crate) fn on(browser: &'a Browser, interest: Interest) -> Waits<'a> {
        Waits {
            browser,
            interest,
            other: None,
        }
    }
}

/// The reason for an exchange's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Ready,
    /// The browser's connection has ended in both directions, or failed. An exchange that reads notices by itself; this tells one that does not.
    HungUp,
}

/// The state of a connection.
#[derive(Debug)]
pub(crate) enum State<E> {
    /// It has sent these bytes of its request.
    Asking(Browser, Vec<u8>),
    /// The application has taken it over; it waits for events.
    Waiting(E),
    /// The application has taken it over, and it needs another turn even without events. Others get their turns first.
    Again(E),
    /// It has its last response, which may be unsent or unread.
    Leaving(Browser),
    Over,
}

impl<E: Exchange> State<E> {
    /// Sends this response and then closes.
    pub(crate) fn respond(mut browser: Browser, response: Vec<u8>) -> State<E> {
        browser.respond(response);
        browser.allow(None);
        State::Leaving(browser)
    }

    fn is_exchange(&self) -> bool {
        matches!(self, State::Waiting(_) | State::Again(_))
    }

    fn waits(&self) -> Option<Waits<'_>> {
        let (browser, interest) = match self {
            State::Waiting(exchange) | State::Again(exchange) => return Some(exchange.waits()),
            State::Asking(browser, _) => (browser, Interest::Readable),
            State::Leaving(browser) => (browser, browser.interest_in_leaving()),
            State::Over => return None,
        };
        Some(Waits::on(browser, interest))
    }

    /// Returns the time of its next turn if its sockets have no events.
    fn deadline(&self) -> Option<u64> {
        match self {
            State::Again(_) => Some(0),
            _ => self.waits()?.browser.deadline(),
        }
    }
}

/// A connection.
struct Connection<E> {
    state: State<E>,
    browser: Watch,
    other: Watch,
}

impl<E: Exchange> Connection<E> {
    /// Registers the events that the connection waits for.
    fn watch(&mut self, reactor: &Reactor) {
        let Some(waits) = self.state.waits() else { return };
        self.browser
            .update(reactor, Some((waits.browser.as_fd(), waits.interest)));
        match waits.other {
            // The socket may have ended with data left to read once there is room. Until then the reactor would report the end again and again.
            Some((fd, Interest::None)) => self.other.end(reactor, fd),
            other => self.other.update(reactor, other),
        }
    }
}

/// A listening port and its connections.
pub(crate) struct Server<E> {
    reactor: Reactor,
    listeners: Vec<(Listener, Watch)>,
    port: u16,
    /// The time at which accepting resumes after a failure.
    paused_until: Option<u64>,
    /// Connections by their even tokens, the oldest first.
    connections: BTreeMap<u64, Connection<E>>,
    /// The next connection's token.
    next: u64,
}

impl<E: Exchange> Server<E> {
    /// Listens on this port of 127.0.0.1, or on any free port for 0. From now on [`serve`](Server::serve) receives the signals that end a program.
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        let mut server = Self::bind_beside_others(port)?;
        let signals = [Signal::Interrupt, Signal::Terminate, Signal::HangUp];
        server.reactor.watch_signals(&signals).map_err(io::Error::other)?;
        Ok(server)
    }

    /// The same, for a thread of a program that receives signals elsewhere.
    pub(crate) fn bind_beside_others(port: u16) -> io::Result<Self> {
        let mut server = Server {
            reactor: Reactor::new().map_err(io::Error::other)?,
            listeners: Vec::new(),
            port,
            paused_until: None,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
        };
        server.listen(Ipv4Addr::LOCALHOST.into())?;
        Ok(server)
    }

    /// Listens on the same port of `[::1]` as well, if this machine has IPv6, because browsers resolve `localhost` differently.
    pub(crate) fn bind_ipv6(&mut self) -> io::Result<()> {
        match self.listen(Ipv6Addr::LOCALHOST.into()) {
            Err(error) if matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::Unsupported) => {
                Ok(())
            }
            bound => bound,
        }
    }

    fn listen(&mut self, address: IpAddr) -> io::Result<()> {
        let listener = TcpListener::bind((address, self.port))?;
        self.port = listener.local_addr()?.port();
        let listener = Listener::from_fd(listener.into()).map_err(io::Error::other)?;
        let watch = Watch::new(Token(self.listeners.len() as u64));
        self.listeners.push((listener, watch));
        Ok(())
    }

    /// Returns the port's number.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Serves until the application is done or a signal arrives; returns the signal.
    pub(crate) fn serve<A>(mut self, application: &mut A) -> Result<Option<Signal>, ReactorError>
    where
        A: Application<Exchange = E>,
    {
        let mut events = Events::new();
        while !application.is_done() {
            let interest = Interest::from_wants(self.paused_until.is_none(), false);
            for (listener, watch) in &mut self.listeners {
                watch.update(&self.reactor, Some((listener.as_fd(), interest)));
            }
            let deadlines = self.connections.values().filter_map(|it| it.state.deadline());
            let deadline = deadlines.chain(self.paused_until).min();
            self.reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
            if let Some(signal) = events.signals().first() {
                self.say_goodbye(application);
                return Ok(Some(*signal));
            }
            for event in events.ready() {
                self.hear(application, event);
            }
            self.expire(application);
        }
        Ok(None)
    }

    /// Handles an event of a socket.
    fn hear<A: Application<Exchange = E>>(&mut self, application: &mut A, event: &Event) {
        let token = event.token.0;
        if token < FIRST_CONNECTION {
            return self.accept(application, token as usize);
        }
        let browser = token & !1;
        let wake = match event.hung_up && token == browser {
            true => Wake::HungUp,
            false => Wake::Ready,
        };
        self.turn(application, browser, wake);
    }

    /// Gives a turn to each connection whose deadline has passed, and ends a pause in accepting.
    fn expire<A: Application<Exchange = E>>(&mut self, application: &mut A) {
        let now = monotonic_now();
        let is_over = |at: &u64| *at <= now;
        self.paused_until = self.paused_until.filter(|at| !is_over(at));
        let late = self.connections.iter();
        let late = late.filter(|(_, connection)| connection.state.deadline().as_ref().is_some_and(is_over));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.turn(application, id, Wake::Ready);
        }
    }

    fn turn<A: Application<Exchange = E>>(&mut self, application: &mut A, id: u64, wake: Wake) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let mut state = match connection.state {
            State::Asking(browser, received) => self.ask(application, browser, received),
            State::Waiting(exchange) | State::Again(exchange) => application.turn(exchange, wake),
            state => state,
        };
        if let State::Leaving(browser) = &mut state
            && browser.leave().is_ready()
        {
            state = State::Over;
        }
        connection.state = state;
        connection.watch(&self.reactor);
        // Dropping a connection closes its sockets, and the kernel then forgets them.
        if !matches!(connection.state, State::Over) {
            self.connections.insert(id, connection);
        }
    }

    /// Reads more of a request, up to the limit, and answers it when its head is complete.
    fn ask<A>(&self, application: &mut A, mut browser: Browser, mut received: Vec<u8>) -> State<E>
    where
        A: Application<Exchange = E>,
    {
        browser.begin_turn();
        let room = LONGEST_HEAD - received.len();
        let read = browser.by_ref().take(room as u64).read_to_end(&mut received);
        let has_more = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        match Head::parse(&received) {
            Ok(None) if has_more && !browser.is_late() => State::Asking(browser, received),
            Ok(None) => State::Over,
            // The browser may have closed its end after a complete request, which still gets its answer.
            Ok(Some(head)) => {
                let exchanges = self.connections.values().filter(|it| it.state.is_exchange());
                browser.allow(None);
                application.answer(&head, browser, exchanges.count())
            }
            Err(bad) => State::respond(browser, bad.response()),
        }
    }

    fn accept<A: Application<Exchange = E>>(&mut self, application: &mut A, listener: usize) {
        for _ in 0..ADMITTED_AT_ONCE {
            match self.listeners[listener].0.accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => return,
                Err(error) => {
                    application.cannot_accept(&error);
                    self.paused_until = Some(after(PAUSE));
                    return;
                }
            }
        }
    }

    /// Adds a connection. If there are too many, drops the oldest one that has no exchange; if all have one, drops the new one.
    fn admit(&mut self, stream: Stream) {
        if self.connections.len() >= MOST_CONNECTIONS {
            let oldest = self.connections.iter().find(|(_, it)| !it.state.is_exchange());
            let Some(oldest) = oldest.map(|(id, _)| *id) else {
                return;
            };
            self.connections.remove(&oldest);
        }
        let mut connection = Connection {
            state: State::Asking(Browser::new(stream), Vec::new()),
            browser: Watch::new(Token(self.next)),
            other: Watch::new(Token(self.next + 1)),
        };
        connection.watch(&self.reactor);
        self.connections.insert(self.next, connection);
        self.next += 2;
    }

    fn say_goodbye<A: Application<Exchange = E>>(&mut self, application: &mut A) {
        for connection in self.connections.values_mut() {
            if let State::Waiting(exchange) | State::Again(exchange) = &mut connection.state {
                application.say_goodbye(exchange);
            }
        }
    }
}
