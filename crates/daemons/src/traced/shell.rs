//! The event loop of the daemon: listeners, signals and the farewell around one [`Host`].
//!
//! Nothing here waits for a peer.

mod farewell;

use std::sync::Arc;

use ferretto_host::{Admission, Host, OutOfLine, Port};
use ferretto_ipc::Listener;
use ferretto_ipc::reactor::{Deadlines, Events, ReactorError, Token, monotonic_now};
use ferretto_ipc::transport::ACCEPTS_PER_TURN;
use ferretto_service::MachineId;

use super::descriptors;
use super::freed_memory::FreedMemory;
use super::program::Traced;
use crate::acceptor::{Acceptor, Room};
use crate::open_files::most_descriptors;
use farewell::Farewell;

pub(super) struct Shell {
    host: OutOfLine<Host>,
    listeners: Acceptor<Port>,
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
            listeners: Acceptor::new(),
            freed: FreedMemory::default(),
            farewell: None,
        };
        for (listener, port) in listeners {
            let token = shell.host.next_token();
            shell.listeners.add(shell.host.reactor(), token, listener, port)?;
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
        let monotonic = [
            self.listeners.deadline(),
            self.freed.deadline(),
            self.farewell_deadline(),
        ];
        Deadlines {
            monotonic: monotonic.into_iter().flatten().min(),
            boot: None,
        }
    }

    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        if events.deadline_passed() {
            let now = monotonic_now();
            self.listeners.handle_timeout(self.host.reactor(), now)?;
            self.freed.handle_timeout(now);
        }
        for event in events.ready() {
            if self.listeners.has(event.token) {
                self.accept(event.token)?;
            }
        }
        self.host.turn(events);
        if self.host.has_freed() {
            self.freed.note(monotonic_now());
        }
        Ok(())
    }

    fn accept(&mut self, listener: Token) -> Result<(), ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let room = if self.host.is_full() {
                Room::None
            } else {
                Room::Some
            };
            match self.listeners.accept(self.host.reactor(), listener, room)? {
                Some((stream, port)) => drop(self.host.connect(stream, port)),
                None => break,
            }
        }
        Ok(())
    }
}
