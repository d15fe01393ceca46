//! The event loop of the daemon: listeners, signals and the farewell around one [`Host`].
//!
//! Nothing here waits for a peer. While no client can be accepted, because descriptors are used up or the number of clients is at its limit, the
//! listeners rest and clients wait in their queues.

mod farewell;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferretto_host::{Admission, Host, OutOfLine, Port};
use ferretto_ipc::Listener;
use ferretto_ipc::reactor::{Deadlines, Events, Interest, ReactorError, Token, monotonic_now};
use ferretto_service::MachineId;

use super::descriptors;
use super::freed_memory::FreedMemory;
use super::program::Traced;
use crate::open_files::most_descriptors;
use farewell::Farewell;

/// How long a listener rests when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections taken from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

pub(super) struct Shell {
    host: OutOfLine<Host>,
    listeners: BTreeMap<Token, (Listener, Port)>,
    /// Until when the listeners rest.
    resting: Option<u64>,
    /// Accepting a connection failed, and clients have been waiting for theirs since.
    accept_fails: bool,
    freed: FreedMemory,
    /// `Some` after a signal has told the daemon to end.
    farewell: Option<Farewell>,
}

impl Shell {
    pub(super) fn new(listeners: Vec<(Listener, Port)>) -> Result<Shell, ReactorError> {
        let admission = Admission::for_descriptors(most_descriptors());
        let program = Arc::new(Traced::of_this_thread());
        let mut identity = ferretto_host::identity(crate::VERSION, MachineId::HOST);
        identity.extension_descriptors = descriptors::load();
        let mut host = Host::new(identity, admission, program)?;
        host.reactor().watch_signals(&crate::daemon::ending_signals())?;
        let mut shell = Shell {
            host,
            listeners: BTreeMap::new(),
            resting: None,
            accept_fails: false,
            freed: FreedMemory::default(),
            farewell: None,
        };
        for (listener, port) in listeners {
            let token = shell.host.next_token();
            shell
                .host
                .reactor()
                .register(&listener, token, Interest::Readable)?;
            shell.listeners.insert(token, (listener, port));
        }
        Ok(shell)
    }

    /// Serves until a signal comes, and then until all sessions are read or a second signal comes.
    pub(super) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        loop {
            let deadlines = self.deadlines();
            self.host.wait(&mut events, deadlines)?;
            if !events.signals().is_empty() {
                if self.farewell.is_some() {
                    crate::log::info(format_args!("a second signal ends traced at once"));
                    break;
                }
                self.begin_farewell();
            }
            self.turn(&events)?;
            if self.is_farewell_over(&events) {
                break;
            }
        }
        self.host.end(|| farewell::LAST_WRITE_TIMEOUT);
        Ok(())
    }

    /// The shell's own.
    fn deadlines(&self) -> Deadlines {
        let monotonic = [self.resting, self.freed.deadline(), self.farewell_deadline()];
        Deadlines {
            monotonic: monotonic.into_iter().flatten().min(),
            boot: None,
        }
    }

    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        if events.deadline_passed() {
            let now = monotonic_now();
            if self.resting.is_some_and(|until| until <= now) {
                self.watch_listeners(Interest::Readable)?;
                self.resting = None;
            }
            self.freed.handle_timeout(now);
        }
        for event in events.ready() {
            if self.listeners.contains_key(&event.token) {
                self.accept(event.token)?;
            }
        }
        self.host.turn(events);
        if self.host.has_freed() {
            self.freed.note(monotonic_now());
        }
        Ok(())
    }

    fn watch_listeners(&mut self, interest: Interest) -> Result<(), ReactorError> {
        let reactor = self.host.reactor();
        self.listeners
            .iter()
            .try_for_each(|(token, (listener, _))| reactor.reregister(listener, *token, interest))
    }

    fn accept(&mut self, listener: Token) -> Result<(), ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((socket, port)) = self.listeners.get(&listener) else {
                return Ok(());
            };
            if self.host.is_full() {
                return self.rest(&"there are as many clients as the daemon can serve");
            }
            match socket.accept() {
                Ok(Some(stream)) => drop(self.host.connect(stream, *port)),
                Ok(None) => {
                    self.accept_fails = false;
                    return Ok(());
                }
                // Out of descriptors, most likely.
                Err(error) => return self.rest(&error),
            }
        }
        Ok(())
    }

    /// No client can be accepted for now. The queue stays full, so stop looking at it for a while.
    fn rest(&mut self, why: &dyn std::fmt::Display) -> Result<(), ReactorError> {
        if !std::mem::replace(&mut self.accept_fails, true) {
            crate::log::warning(format_args!("new clients have to wait: {why}"));
        }
        self.resting = Some(monotonic_now() + ACCEPT_PAUSE.as_nanos() as u64);
        self.watch_listeners(Interest::None)
    }
}
