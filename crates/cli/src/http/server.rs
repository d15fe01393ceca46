//! The event loop: browsers' connections from the first byte to the last, each in its turn.
//!
//! Called by the programs that serve, with an [`Application`]. A browser opens connections that it may never use, so each must be able to
//! wait. Guarantees that memory is bounded, whatever is sent: there are at most [`MOST_CONNECTIONS`]; those that an application has not
//! taken over have little time, and the oldest of them makes room for a new one.

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

/// Connections, whatever their state.
const MOST_CONNECTIONS: usize = 128;
/// Those that an application should take over. Browsers open six at most to one server; a page of the UI has two WebSockets.
pub(crate) const MOST_EXCHANGES: usize = 32;
/// Connections that are let in before others have their turn, and can say what they want.
const ADMITTED_AT_ONCE: usize = 16;
/// How long nobody is let in after that has failed, for example for want of descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// Tokens below are listeners. From here on each connection has two: an even one, its number, for the browser's socket, and the next for
/// the other socket.
const FIRST_CONNECTION: u64 = 16;

/// What is served: judges requests, and drives what comes after those that it grants.
pub(crate) trait Application {
    /// A connection that it has taken over.
    type Exchange: Exchange;

    /// The answer to a request of this browser. There are `exchanges` already.
    fn answer(&mut self, head: &Head<'_>, browser: Browser, exchanges: usize) -> State<Self::Exchange>;

    /// One turn of an exchange.
    fn turn(&mut self, exchange: Self::Exchange, wake: Wake) -> State<Self::Exchange>;

    /// A signal ends the server, and so this exchange.
    fn say_goodbye(&mut self, _exchange: &mut Self::Exchange) {}

    /// Nobody is let in for a while.
    fn cannot_accept(&mut self, error: &TransportError);

    /// Whether that was all, and serving ends.
    fn is_done(&self) -> bool {
        false
    }
}

/// A connection that an application has taken over.
pub(crate) trait Exchange {
    /// What its next turn waits for, besides the end of the browser's time.
    fn waits(&self) -> Waits<'_>;
}

/// See [`Exchange::waits`].
pub(crate) struct Waits<'a> {
    pub(crate) browser: &'a Browser,
    pub(crate) interest: Interest,
    /// Another socket, if the exchange has one. It may be closed, but not replaced.
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

/// Why an exchange has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Ready,
    /// The browser's connection has ended in both directions, or failed. Whoever reads finds it out, and this tells those who do not.
    HungUp,
}

/// How far a connection is.
#[derive(Debug)]
pub(crate) enum State<E> {
    /// These bytes of its request have come.
    Asking(Browser, Vec<u8>),
    /// The application has taken it over.
    Waiting(E),
    /// Likewise, and goes on after others had their turn, whether or not the sockets have news.
    Again(E),
    /// The response is the last, but it may not have been sent or read.
    Leaving(Browser),
    Over,
}

impl<E: Exchange> State<E> {
    /// Sends this as the last.
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

    /// When it has a turn without news from its sockets.
    fn deadline(&self) -> Option<u64> {
        match self {
            State::Again(_) => Some(0),
            _ => self.waits()?.browser.deadline(),
        }
    }
}

/// A browser, or whoever it is.
struct Connection<E> {
    state: State<E>,
    browser: Watch,
    other: Watch,
}

impl<E: Exchange> Connection<E> {
    /// Brings what is waited for up to date.
    fn watch(&mut self, reactor: &Reactor) {
        let Some(waits) = self.state.waits() else { return };
        self.browser
            .update(reactor, Some((waits.browser.as_fd(), waits.interest)));
        match waits.other {
            // It may have ended, with something left to read when there is room for it. Until then the reactor would tell of the end again
            // and again.
            Some((fd, Interest::None)) => self.other.end(reactor, fd),
            other => self.other.update(reactor, other),
        }
    }
}

/// A port that is listened on, and the connections that came in.
pub(crate) struct Server<E> {
    reactor: Reactor,
    listeners: Vec<(Listener, Watch)>,
    port: u16,
    /// When accepting goes on, after it has failed.
    paused_until: Option<u64>,
    /// By their even tokens, the oldest first.
    connections: BTreeMap<u64, Connection<E>>,
    /// The next connection's token.
    next: u64,
}

impl<E: Exchange> Server<E> {
    /// Listens on this port of 127.0.0.1, or on any that is free for 0. From now on the signals that end a program are for
    /// [`serve`](Server::serve).
    pub(crate) fn bind(port: u16) -> io::Result<Self> {
        let mut server = Server {
            reactor: Reactor::new().map_err(io::Error::other)?,
            listeners: Vec::new(),
            port,
            paused_until: None,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
        };
        server.listen(Ipv4Addr::LOCALHOST.into())?;
        let signals = [Signal::Interrupt, Signal::Terminate, Signal::HangUp];
        server.reactor.watch_signals(&signals).map_err(io::Error::other)?;
        Ok(server)
    }

    /// Listens on the same port of `[::1]` as well, if this machine has IPv6: what `localhost` means differs from browser to browser.
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

    /// The port's number.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Serves until a signal comes, which it gives, or until the application is done.
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

    /// There is news from a socket.
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

    /// Goes on with whoever waits for a time that is over.
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
        // The kernel forgets sockets that are closed.
        if !matches!(connection.state, State::Over) {
            self.connections.insert(id, connection);
        }
    }

    /// Reads as much of a request as may be of use, and has it answered when its head is whole.
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
            // An end after a whole request is no reason not to answer it.
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

    /// Makes room by hanging up on whoever has been without an exchange for longest.
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
