//! What else the SDK's thread serves: sessions that the application runs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use ferretto_client::consumer::ConsumerEndpoint;
use ferretto_ipc::reactor::{Deadlines, Interest, Reactor, Token};

use super::backend::BackendState;
#[cfg(feature = "in-process")]
use crate::in_process::InProcess;
use crate::options::Backend;

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// There is something to read, or the end of the stream.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
}

/// Whether something is to be served on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Keep,
    /// It is dropped.
    Done,
}

/// Something with work on the SDK's thread. Served after every wake-up, for whatever reason that was.
pub(crate) trait Served: Send {
    /// What descriptor to watch, and for what. Always the same one, once there is one.
    fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)>;

    /// When it wants its turn at the latest.
    fn deadlines(&self) -> Deadlines;

    /// Does what there is to do, without blocking.
    fn turn(&mut self, ready: Readiness, services: &mut Services<'_>) -> Turn;
}

/// The services that this process knows, for whoever is served.
pub(crate) struct Services<'a> {
    pub(super) backends: &'a mut [BackendState],
}

/// Why there is no connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable(pub(crate) String);

impl Services<'_> {
    /// The first of the backends of this process, in upstream's order: the system's, the in-process one, the embedder's.
    pub(crate) fn default_backend(&self) -> Option<Backend> {
        self.backends.iter().map(|state| state.backend()).min()
    }

    /// The service in this process, if there is one.
    #[cfg(feature = "in-process")]
    pub(crate) fn in_process(&self) -> Option<&InProcess> {
        self.backends.iter().find_map(BackendState::in_process)
    }

    /// A consumer's connection to a service behind a socket.
    pub(crate) fn connect_consumer(&mut self, backend: Backend) -> Result<ConsumerEndpoint, Unavailable> {
        let state = self
            .backends
            .iter_mut()
            .find(|state| state.backend() == backend)
            .ok_or_else(|| {
                Unavailable(format!(
                    "the {backend} is not among the backends given to ferretto::initialize"
                ))
            })?;
        state.connect_consumer().map_err(Unavailable)
    }
}

/// A descriptor's place in the event loop.
#[derive(Debug)]
pub(super) struct Watch {
    token: Token,
    watched: Option<(RawFd, Interest)>,
}

impl Watch {
    pub(super) fn new(token: Token) -> Self {
        Self { token, watched: None }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    /// Has the loop wait for what is wanted now.
    pub(super) fn update(&mut self, reactor: &Reactor, wanted: Option<(BorrowedFd<'_>, Interest)>) {
        let Some((fd, interest)) = wanted else {
            // A descriptor that was closed is watched no more.
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

    /// Has the loop no longer wait for a descriptor, which is going to be closed: somebody else may have a copy of it.
    pub(super) fn end(&mut self, reactor: &Reactor, watched: Option<(BorrowedFd<'_>, Interest)>) {
        if let (Some((fd, _)), Some(_)) = (watched, self.watched.take()) {
            // It fails if the kernel has forgotten it already.
            let _ = reactor.deregister(fd, self.token);
        }
    }
}
