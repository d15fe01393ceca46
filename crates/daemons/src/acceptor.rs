//! The listening sockets of a daemon in its event loop. While no client can be taken, because descriptors are used up or the number of clients is at
//! its limit, the listeners rest and clients wait in their queues.
//!
//! For daemons that serve many clients, `traced` and `traced_relay`. `P` is what they know of a listener's clients.

use std::collections::BTreeMap;
use std::time::Duration;

use ferretto_ipc::reactor::{Interest, Reactor, ReactorError, Token, monotonic_now};
use ferretto_ipc::{Listener, Stream};

/// How long listeners rest when no client can be taken.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether there is room for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// For one more.
    Some,
    /// For none: the listeners rest.
    None,
}

/// See the [module](self).
pub struct Acceptor<P> {
    listeners: BTreeMap<Token, (Listener, P)>,
    /// Until when the listeners rest.
    resting: Option<u64>,
    /// Accepting a connection failed, and clients have been waiting for theirs since.
    fails: bool,
}

impl<P: Copy> Default for Acceptor<P> {
    fn default() -> Acceptor<P> {
        Acceptor::new()
    }
}

impl<P: Copy> Acceptor<P> {
    /// Without listeners.
    pub fn new() -> Acceptor<P> {
        Acceptor {
            listeners: BTreeMap::new(),
            resting: None,
            fails: false,
        }
    }

    /// Begins to watch a listener.
    ///
    /// # Errors
    /// If the reactor cannot watch a listener.
    pub fn add(
        &mut self,
        reactor: &Reactor,
        token: Token,
        listener: Listener,
        clients: P,
    ) -> Result<(), ReactorError> {
        reactor.register(&listener, token, Interest::Readable)?;
        self.listeners.insert(token, (listener, clients));
        Ok(())
    }

    /// Whether a listener has this token.
    pub fn has(&self, token: Token) -> bool {
        self.listeners.contains_key(&token)
    }

    /// The tokens of all listeners.
    pub fn tokens(&self) -> Vec<Token> {
        self.listeners.keys().copied().collect()
    }

    /// When the listeners have rested.
    pub fn deadline(&self) -> Option<u64> {
        self.resting
    }

    /// Ends the rest if it is time.
    ///
    /// # Errors
    /// If the reactor cannot watch a listener.
    pub fn handle_timeout(&mut self, reactor: &Reactor, now: u64) -> Result<(), ReactorError> {
        if self.resting.is_some_and(|until| until <= now) {
            self.watch(reactor, Interest::Readable)?;
            self.resting = None;
        }
        Ok(())
    }

    /// Takes the next connection of a listener, if there is room for one.
    ///
    /// # Errors
    /// If the reactor cannot watch a listener.
    pub fn accept(
        &mut self,
        reactor: &Reactor,
        token: Token,
        room: Room,
    ) -> Result<Option<(Stream, P)>, ReactorError> {
        let Some((listener, clients)) = self.listeners.get(&token) else {
            return Ok(None);
        };
        if room == Room::None {
            self.rest(reactor, &"there are as many clients as the daemon can serve")?;
            return Ok(None);
        }
        match listener.accept() {
            Ok(Some(stream)) => Ok(Some((stream, *clients))),
            Ok(None) => {
                self.fails = false;
                Ok(None)
            }
            // Out of descriptors, most likely.
            Err(error) => {
                self.rest(reactor, &error)?;
                Ok(None)
            }
        }
    }

    /// Stops listening and removes the sockets' files. New clients find no service, or its successor.
    pub fn close(&mut self, reactor: &Reactor) {
        for (token, (listener, _)) in std::mem::take(&mut self.listeners) {
            let _ = reactor.deregister(&listener, token);
            listener.close();
        }
        self.resting = None;
    }

    /// No client can be accepted for now. The queue stays full, so stop looking at it for a while.
    fn rest(&mut self, reactor: &Reactor, why: &dyn std::fmt::Display) -> Result<(), ReactorError> {
        if !std::mem::replace(&mut self.fails, true) {
            crate::log::warning(format_args!("new clients have to wait: {why}"));
        }
        self.resting = Some(monotonic_now() + PAUSE.as_nanos() as u64);
        self.watch(reactor, Interest::None)
    }

    fn watch(&self, reactor: &Reactor, interest: Interest) -> Result<(), ReactorError> {
        self.listeners
            .iter()
            .try_for_each(|(token, (listener, _))| reactor.reregister(listener, *token, interest))
    }
}
