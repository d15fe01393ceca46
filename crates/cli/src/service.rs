//! The interface by which a command line finds a tracing service.
//!
//! [`running_service`] is the one of `perfetto`: the service that listens on the consumer socket. `ferretto` passes another function, which starts a
//! service if there is none.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;

use ferretto_client::consumer::ConnectError;
use ferretto_ipc::address::Address;
use ferretto_ipc::socket_names::{SocketNameError, consumer_address};

/// A service to connect to.
pub(crate) struct Service {
    /// Its consumer socket.
    pub consumer_socket: Address,
    /// Set if it was started only for this command line.
    pub started: Option<StartedService>,
}

/// A started service, which other programs find only by its address.
pub(crate) struct StartedService {
    /// Its producer socket.
    pub producer_socket: Address,
    /// Where its heap profiler listens for programs, in the form of `FERRETTO_HEAP_SOCK_NAME`; `None` if it is the usual place.
    pub heap_socket: Option<OsString>,
    /// Keeps the service running; dropping this ends it.
    pub _keep_alive: Box<dyn Any>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service at {}", self.consumer_socket)
    }
}

/// The reason why there is no service.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindServiceError {
    /// A socket name in the environment is no address.
    #[error(transparent)]
    Name(#[from] SocketNameError),
    /// A service could not be started.
    #[error("cannot start a tracing service: {0}")]
    Start(String),
}

/// Finds or starts a service. Called at most once.
pub(crate) type FindService<'a> = &'a mut dyn FnMut() -> Result<Service, FindServiceError>;

/// Returns the service at the usual address, or at the one in `PERFETTO_CONSUMER_SOCK_NAME`, without checking that it runs.
///
/// # Errors
/// If the variable holds no address.
pub(crate) fn running_service() -> Result<Service, FindServiceError> {
    Ok(Service {
        consumer_socket: consumer_address()?,
        started: None,
    })
}

/// Describes a failed connection to a service, with advice.
pub(crate) fn unreachable(socket: &Address, error: &ConnectError) -> String {
    match error {
        ConnectError::Transport(transport) if transport.is_unreachable() => format!(
            "no tracing service listens at {socket}. Start one with `ferretto traced &` and `ferretto traced_probes &`; or record \
             with `ferretto`, which starts its own for each recording (but not for --detach and --clone)"
        ),
        error => format!("cannot connect to the tracing service: {error}"),
    }
}
