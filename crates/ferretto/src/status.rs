//! Why something is recorded, or nothing is: [`status`].
//!
//! Written by the SDK's thread, read from any.

use std::fmt;
use std::time::Instant;

use crate::muxer;
use crate::options::Backend;

/// What the SDK is doing. Its text says, a line for each backend, why nothing is recorded:
///
/// ```text
/// system service: not connected: cannot connect to /run/perfetto/traced-producer.sock: Permission denied (os error 13)
/// in-process service: connected, no session records this process
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The services that this process records for. None before [`initialize`](crate::initialize).
    pub backends: Vec<BackendStatus>,
    /// The data sources of this process.
    pub data_sources: Vec<DataSourceStatus>,
    /// Why there is no SDK at all: it was not [initialized](crate::initialize), could not be, or is just starting.
    pub problem: Option<String>,
}

/// A service, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendStatus {
    /// Which.
    pub backend: Backend,
    /// Whether it can be recorded for.
    pub connection: ConnectionStatus,
    /// How many instances of this process's data sources it has started, and not stopped.
    pub instances: usize,
}

/// Whether there is a connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionStatus {
    /// There is.
    Connected,
    /// The service has not answered yet.
    Connecting,
    /// There is none.
    NotConnected {
        /// Why.
        reason: String,
        /// When it is tried again.
        retry: Instant,
    },
}

/// A data source of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataSourceStatus {
    /// Its name.
    pub name: String,
    /// How many sessions it records for, over all backends.
    pub instances: usize,
}

/// What the SDK is doing, and why nothing is recorded. See [`Status`].
pub fn status() -> Status {
    match muxer::current() {
        Some(muxer) => muxer.status(),
        None => Status {
            problem: Some(
                muxer::problem()
                    .unwrap_or("not initialized: call ferretto::initialize")
                    .to_owned(),
            ),
            ..Status::default()
        },
    }
}

impl Status {
    /// Whether some session records a data source of this process.
    pub fn is_recording(&self) -> bool {
        self.data_sources.iter().any(|source| source.instances > 0)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(problem) = &self.problem {
            return f.write_str(problem);
        }
        for (index, backend) in self.backends.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}: ", backend.backend)?;
            match (&backend.connection, backend.instances) {
                (ConnectionStatus::Connecting, _) => f.write_str("connecting")?,
                (ConnectionStatus::NotConnected { reason, .. }, _) => write!(f, "not connected: {reason}")?,
                (ConnectionStatus::Connected, 0) => {
                    f.write_str("connected, no session records this process")?;
                }
                (ConnectionStatus::Connected, count) => {
                    write!(f, "recording, data sources started: {count}")?
                }
            }
        }
        Ok(())
    }
}
