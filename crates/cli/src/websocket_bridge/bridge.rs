//! Connects a browser whose request is granted with the requested service.
//!
//! [`super::run`] and the event loop of [`http`](crate::http) call it. [`request`](super::request) decides which browsers may connect, and
//! [`session`](super::session) moves the bytes. The number of sessions is bounded.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::time::Duration;

use ferretto_daemons::log;
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::transport::TransportError;
use ferretto_ipc::{Address, Stream};
use tungstenite::protocol::frame::coding::CloseCode;

use super::request::{Origins, Target, Upgrade, Verdict, judge};
use super::session::{MAX_CHUNK, Session, Turn};
use crate::http::{Application, Browser, Exchange, Head, MOST_EXCHANGES, State, Waits, Wake};

/// The time that a service has to accept a connection, as in upstream.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The addresses of the targets.
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

/// The application that bridges WebSockets and services.
pub(super) struct Bridge {
    origins: Origins,
    targets: Targets,
    /// The origin that was refused last, for which there has been a warning.
    last_refused: Option<Option<String>>,
    scratch: Vec<u8>,
}

/// A browser that may connect.
pub(super) enum Stage {
    /// Waiting for the target to accept the connection, over a network.
    Connecting(Connecting),
    Session(Box<Session>),
}

pub(super) struct Connecting {
    browser: Browser,
    /// The bytes that the browser has sent since its request.
    early: Vec<u8>,
    upgrade: Upgrade,
    service: Stream,
}

impl Connecting {
    fn connected(mut self) -> State<Stage> {
        self.browser.respond(self.upgrade.grant());
        self.browser.allow(None);
        let session = Session::new(self.browser, self.early, self.service);
        State::Waiting(Stage::Session(Box::new(session)))
    }
}

impl Exchange for Stage {
    fn waits(&self) -> Waits<'_> {
        match self {
            Stage::Connecting(connecting) => Waits {
                browser: &connecting.browser,
                interest: Interest::None,
                other: Some((connecting.service.as_fd(), Interest::Writable)),
            },
            Stage::Session(session) => session.waits(),
        }
    }
}

impl Application for Bridge {
    type Exchange = Stage;

    fn answer(&mut self, head: &Head<'_>, mut browser: Browser, exchanges: usize) -> State<Stage> {
        let upgrade = match judge(head, &self.origins) {
            Verdict::Grant(upgrade) => upgrade,
            Verdict::Respond(response) => return State::respond(browser, response),
            Verdict::RefuseOrigin { origin, response } => {
                self.warn_of_origin(origin);
                return State::respond(browser, response);
            }
        };
        if exchanges >= MOST_EXCHANGES {
            log::warning(format_args!(
                "{MOST_EXCHANGES} connections are open, and that is as many as there may be: close tabs of the UI"
            ));
            return State::respond(browser, upgrade.unavailable("too many connections\n"));
        }
        let address = self.targets.address(upgrade.target);
        let service = match Stream::connect(address) {
            Ok(service) => service,
            Err(error) => {
                log::warning(format_args!("{error}"));
                return State::respond(browser, upgrade.unavailable(NO_SERVICE));
            }
        };
        browser.allow(Some(CONNECT_TIMEOUT));
        let connecting = Connecting {
            browser,
            early: head.rest.to_vec(),
            upgrade,
            service,
        };
        match address.is_unix() {
            true => connecting.connected(),
            false => State::Waiting(Stage::Connecting(connecting)),
        }
    }

    fn turn(&mut self, stage: Stage, wake: Wake) -> State<Stage> {
        match stage {
            // Nothing is read in this stage, so nothing else would show that the browser has gone.
            Stage::Connecting(_) if wake == Wake::HungUp => State::Over,
            Stage::Connecting(mut connecting) => match connecting.service.is_connected() {
                Ok(true) => connecting.connected(),
                Ok(false) if connecting.browser.is_late() => self.refuse(connecting, &"it does not answer"),
                Ok(false) => State::Waiting(Stage::Connecting(connecting)),
                Err(error) => self.refuse(connecting, &error),
            },
            Stage::Session(mut session) => match session.turn(wake, &mut self.scratch) {
                Turn::Wait => State::Waiting(Stage::Session(session)),
                Turn::Again => State::Again(Stage::Session(session)),
                Turn::Over => State::Over,
                Turn::Abandon => State::Leaving(session.into_browser()),
            },
        }
    }

    /// Tells the page that the bridge was ended.
    fn say_goodbye(&mut self, stage: &mut Stage) {
        if let Stage::Session(session) = stage {
            session.close(CloseCode::Away, "websocket_bridge was ended");
        }
    }

    fn cannot_accept(&mut self, error: &TransportError) {
        log::warning(format_args!("{error}"));
    }
}

const NO_SERVICE: &str = "no service is listening\n";

impl Bridge {
    pub(super) fn new(origins: Origins, targets: Targets) -> Bridge {
        Bridge {
            origins,
            targets,
            last_refused: None,
            scratch: vec![0; MAX_CHUNK],
        }
    }

    fn refuse(&self, connecting: Connecting, why: &dyn Display) -> State<Stage> {
        let address = self.targets.address(connecting.upgrade.target);
        log::warning(format_args!("cannot connect to {address}: {why}"));
        State::respond(connecting.browser, connecting.upgrade.unavailable(NO_SERVICE))
    }

    /// Warns of a refused origin, for the user who waits for the page to connect. Pages retry, so a repetition gets no second warning.
    fn warn_of_origin(&mut self, origin: Option<String>) {
        if self.last_refused.as_ref() == Some(&origin) {
            return;
        }
        match &origin {
            Some(origin) => log::warning(format_args!(
                "refused a page from \"{origin}\"; if that is where your UI comes from, name it with --http-additional-cors-origins"
            )),
            None => log::warning(format_args!(
                "refused a connection that names no origin, and so is no web page's"
            )),
        }
        self.last_refused = Some(origin);
    }
}
