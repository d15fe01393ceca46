//! A descriptor's place in an event loop, for owners whose descriptor comes and goes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::{Interest, Reactor, Token};

/// A watched descriptor, with its token.
#[derive(Debug)]
pub struct Watch {
    token: Token,
    watched: Option<(RawFd, Interest)>,
}

impl Watch {
    /// Makes a watch that waits for nothing yet. Events come with `token`.
    pub fn new(token: Token) -> Self {
        Self { token, watched: None }
    }

    /// The token of its events.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Has the reactor watch the wanted descriptor for the wanted readiness, or nothing.
    pub fn update(&mut self, reactor: &Reactor, wanted: Option<(BorrowedFd<'_>, Interest)>) {
        let Some((fd, interest)) = wanted else {
            // A closed descriptor is no longer watched.
            self.watched = None;
            return;
        };
        let now = Some((fd.as_raw_fd(), interest));
        if self.watched == now {
            return;
        }
        // A number seen before may be another descriptor's by now, which is not watched yet.
        let known = matches!(self.watched, Some((number, _)) if number == fd.as_raw_fd());
        let updated = known && reactor.reregister(fd, self.token, interest).is_ok();
        if updated || reactor.register(fd.as_fd(), self.token, interest).is_ok() {
            self.watched = now;
        }
    }

    /// Stops watching a descriptor that is going to be closed: another process may have a copy of it.
    pub fn end(&mut self, reactor: &Reactor, fd: impl AsFd) {
        if self.watched.take().is_some() {
            // It fails if the kernel has forgotten it already.
            let _ = reactor.deregister(fd, self.token);
        }
    }
}
