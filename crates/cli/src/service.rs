//! The seam between the command line and whoever knows where a tracing service is.
//!
//! [`running_service`] is `perfetto`'s answer: the one that listens on the consumer socket. `ferretto` passes another, which
//! starts a service if there is none.

use std::any::Any;
use std::fmt;

use ferretto_client::consumer::ConnectError;
use ferretto_ipc::address::Address;
use ferretto_ipc::socket_names::{SocketNameError, consumer_address};

/// A service to connect to.
pub struct Service {
    /// Its consumer socket.
    pub consumer_socket: Address,
    /// If it was started for this command line alone.
    pub started: Option<StartedService>,
}

/// A service of one's own, which nobody else finds.
pub struct StartedService {
    /// Its producer socket.
    pub producer_socket: Address,
    /// What must live as long as the connection: the service ends when this is dropped.
    pub keep_alive: Box<dyn Any>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Service at {}", self.consumer_socket)
    }
}

/// There is no service, and why.
#[derive(Debug, thiserror::Error)]
pub enum FindServiceError {
    /// A socket name in the environment is no address.
    #[error(transparent)]
    Name(#[from] SocketNameError),
    /// A service could not be started.
    #[error("cannot start a tracing service: {0}")]
    Start(String),
}

/// Finds or starts a service; called at most once.
pub type FindService<'a> = &'a mut dyn FnMut() -> Result<Service, FindServiceError>;

/// The service that listens at the usual place, or where `PERFETTO_CONSUMER_SOCK_NAME` says.
///
/// # Errors
/// If the variable holds no address.
pub fn running_service() -> Result<Service, FindServiceError> {
    Ok(Service {
        consumer_socket: consumer_address()?,
        started: None,
    })
}

/// Why a service could not be reached, and what to do about it.
pub(crate) fn unreachable(socket: &Address, error: &ConnectError) -> String {
    match error {
        ConnectError::Transport(transport) if transport.is_unreachable() => format!(
            "no tracing service listens at {socket}. Start one with `ferretto traced &` and `ferretto traced_probes &`; or record \
             with `ferretto`, which starts its own for each recording (but not for --detach and --clone)"
        ),
        error => format!("cannot connect to the tracing service: {error}"),
    }
}
