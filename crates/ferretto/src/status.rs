//! Whether events are recorded, and why not: [`status`].
//!
//! Written by the SDK's thread, read from any.

use std::fmt;
use std::time::Instant;

use crate::muxer;
use crate::off::WHY_OFF;
use crate::options::Backend;

/// The state of the SDK. Its text has a line for each backend, which says why nothing is recorded:
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
    /// Why the SDK is not running: it was not [initialized](crate::initialize), could not be, is just starting, or is
    /// [off](crate#where-nothing-is-recorded).
    pub problem: Option<String>,
}

/// A service, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendStatus {
    /// Which.
    pub backend: Backend,
    /// The state of the connection.
    pub connection: ConnectionStatus,
    /// How many instances of this process's data sources it has started, and not stopped.
    pub instances: usize,
    /// The data sources that record [from startup on](crate::startup_tracing) and that no session has asked for yet. They are among the
    /// instances.
    pub startup: Vec<StartupStatus>,
}

/// A data source that records for a session that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StartupStatus {
    /// Its name.
    pub data_source: String,
    /// How the config of a session that asked for the data source differs from the one given to [`startup_tracing`](crate::startup_tracing). `None`
    /// if no session asked for it with another config.
    pub difference: Option<String>,
}

/// Whether there is a connection to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionStatus {
    /// There is.
    Connected,
    /// The service has not answered yet.
    Connecting,
    /// There is no connection.
    NotConnected {
        /// Why.
        reason: String,
        /// The time of the next attempt.
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

/// Returns the state of the SDK, with the reasons why nothing is recorded. See [`Status`].
pub fn status() -> Status {
    match muxer::current() {
        Some(muxer) => muxer.status(),
        None => Status {
            problem: Some(
                WHY_OFF
                    .or_else(muxer::problem)
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
            for startup in &backend.startup {
                write!(f, ", {:?} for startup", startup.data_source)?;
                if let Some(difference) = &startup.difference {
                    write!(f, " (not for the session that came: {difference})")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn startup_sessions_that_wait_are_in_the_status_with_the_reason() {
        let startup = |data_source: &str, difference: Option<&str>| StartupStatus {
            data_source: data_source.to_owned(),
            difference: difference.map(str::to_owned),
        };
        let status = Status {
            backends: vec![BackendStatus {
                backend: Backend::System,
                connection: ConnectionStatus::Connected,
                instances: 2,
                startup: vec![
                    startup("one", None),
                    startup("two", Some("`name` is not the same")),
                ],
            }],
            ..Status::default()
        };
        assert_eq!(
            status.to_string(),
            "system service: recording, data sources started: 2, \"one\" for startup, \"two\" for startup (not for the session that \
             came: `name` is not the same)"
        );
    }
}
