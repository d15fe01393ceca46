//! The errors of sessions.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A request to a session failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SessionError {
    /// This process has no SDK running.
    NotInitialized,
    /// This build [records nothing](crate#where-nothing-is-recorded), for this reason, and the request needs a recording.
    Off(&'static str),
    /// The service cannot be reached.
    Unavailable(String),
    /// The service refused the session: its config is invalid, there are too many others, or the service is ending.
    Refused(String),
    /// The session ended too early, for this reason.
    Failed(String),
    /// The session ended before all of its data sources had started, or the service ended a [recording](super::Recording) that was to go on.
    EndedEarly,
    /// The session was not set up yet.
    NotSetUp {
        /// The request.
        request: &'static str,
    },
    /// The session is running, or is a clone of another: it cannot be set up again.
    InUse,
    /// The trace is in the file that the session streams into, so the service cannot read it back.
    WritesIntoFile,
    /// A data source did not write out its data in time, or there was none.
    NotFlushed,
    /// The service made no clone, for this reason.
    NotCloned(String),
    /// The service did not carry out the request.
    Rejected {
        /// The request.
        request: &'static str,
        /// Why not.
        reason: String,
    },
    /// The connection to the service ended, and the session with it.
    Disconnected(String),
    /// The service took too long.
    TimedOut {
        /// The request.
        request: &'static str,
        /// The duration of the wait.
        after: Duration,
    },
    /// The call would wait on the SDK's thread, where callbacks run, for work that only this thread can do.
    OnSdkThread {
        /// The request.
        request: &'static str,
    },
    /// The trace could not be written to its output.
    Output(Arc<io::Error>),
    /// The trace file could not be opened.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason, and a remedy if one is known.
        reason: String,
    },
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::NotInitialized => {
                f.write_str("there is no tracing in this process: call ferretto::initialize first")
            }
            SessionError::Off(reason) => f.write_str(reason),
            SessionError::Unavailable(reason) => write!(f, "cannot reach the tracing service: {reason}"),
            SessionError::Refused(reason) => write!(f, "the tracing service refused the session: {reason}"),
            SessionError::Failed(reason) => write!(f, "the tracing session ended: {reason}"),
            SessionError::EndedEarly => {
                f.write_str(
                "the tracing session ended early: before all of its data sources had started, or before its recording was to end",
            )
            }
            SessionError::NotSetUp { request } => write!(
                f,
                "cannot {request}: the session has no config; give it one with Session::setup"
            ),
            SessionError::InUse => f.write_str(
                "cannot set up the session: it is one already; stop it first, or make another Session",
            ),
            SessionError::WritesIntoFile => f.write_str(
                "cannot read the trace from the session: it streams into its file; stop the session and read that",
            ),
            SessionError::NotFlushed => {
                f.write_str("not all data sources of the session wrote out what they had in time")
            }
            SessionError::NotCloned(reason) => write!(f, "cannot clone the session: {reason}"),
            SessionError::Rejected { request, reason } => write!(f, "cannot {request}: {reason}"),
            SessionError::Disconnected(reason) => write!(f, "the tracing session is over: {reason}"),
            SessionError::TimedOut { request, after } => write!(
                f,
                "cannot {request}: the service has not answered within {} s",
                after.as_secs_f32()
            ),
            SessionError::OnSdkThread { request } => write!(
                f,
                "cannot {request} and wait for it in a callback: it runs on the thread that is to do it; use what does not wait"
            ),
            SessionError::Output(error) => write!(f, "cannot write the trace: {error}"),
            SessionError::File { path, reason } => {
                write!(f, "cannot write the trace to {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for SessionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SessionError::Output(error) => Some(&**error),
            _ => None,
        }
    }
}
