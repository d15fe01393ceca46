//! Other work of the SDK's thread: sessions that the application runs.

use std::os::fd::BorrowedFd;

use ferretto_client::runtime::Runtime;
use ferretto_ipc::reactor::{Deadlines, Interest};

use super::backend::BackendState;
use crate::options::Backend;
use crate::session::Endpoint;

/// The operations that a descriptor is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// There is something to read, or the end of the stream.
    pub(crate) readable: bool,
    /// There is room to write.
    pub(crate) writable: bool,
    /// The other end is closed.
    pub(crate) hung_up: bool,
}

impl Readiness {
    /// Whether something may have come.
    #[cfg(feature = "in-process")]
    pub(super) const READABLE: Readiness = Readiness {
        readable: true,
        writable: false,
        hung_up: false,
    };
}

/// Whether to go on serving an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Keep,
    /// It is dropped.
    Done,
}

/// Something with work on the SDK's thread. The thread serves it after every wake-up, whatever the reason.
pub(crate) trait Served: Send {
    /// The descriptor to watch, and the readiness to watch for. Always the same descriptor, once there is one.
    fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)>;

    /// The latest times of its next turn.
    fn deadlines(&self) -> Deadlines;

    /// The process exits: makes the last requests, in the next turn. The answers come after the files are complete.
    #[cfg(feature = "in-process")]
    fn before_exit(&mut self);

    /// Does the pending work, without blocking.
    fn turn(&mut self, ready: Readiness, services: &mut Services<'_>) -> Turn;
}

/// The services that this process knows, lent to [`Served`] objects.
pub(crate) struct Services<'a> {
    pub(super) backends: &'a mut [BackendState],
    pub(super) runtime: &'a mut Runtime,
}

/// Why there is no connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unavailable(pub(crate) String);

impl Services<'_> {
    /// The first of the backends of this process, in upstream's order: the system's, the in-process one, the embedder's.
    pub(crate) fn default_backend(&self) -> Option<Backend> {
        self.backends.iter().map(|state| state.backend()).min()
    }

    /// A consumer's connection to a service.
    pub(crate) fn connect_consumer(&mut self, backend: Backend) -> Result<Endpoint, Unavailable> {
        let state = self
            .backends
            .iter_mut()
            .find(|state| state.backend() == backend)
            .ok_or_else(|| {
                Unavailable(format!(
                    "the {backend} is not among the backends given to ferretto::initialize"
                ))
            })?;
        let endpoint = state.connect_consumer().map_err(Unavailable)?;
        // A service that accepts consumers accepts producers too.
        self.runtime.retry_soon(backend.connection());
        Ok(endpoint)
    }
}
