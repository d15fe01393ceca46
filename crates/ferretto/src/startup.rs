//! Startup tracing: recording before the service is reachable, for a session that is expected to ask for it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ferretto_ipc::channel::{Receiver, Sender, channel};
use ferretto_proto::messages::{self, DataSourceConfig, Message};
use ferretto_wire::Reader;

use crate::muxer::{self, Command};
use crate::off::OFF;
use crate::options::Backend;
use crate::session::TraceConfig;

/// How long recorded events wait for a session that asks for them, before they are discarded; upstream's number.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The options of a startup session.
#[derive(Debug)]
#[must_use = "nothing is recorded until it is given to ferretto::startup_tracing"]
pub struct StartupOptions {
    backend: Backend,
    timeout: Option<Duration>,
}

impl Default for StartupOptions {
    fn default() -> Self {
        Self {
            backend: Backend::System,
            timeout: Some(TIMEOUT),
        }
    }
}

impl StartupOptions {
    /// Sets the service whose session is expected; the system service by default. The in-process service needs no startup tracing: a session of it
    /// can be started at once.
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the time after which startup tracing is given up if no session has asked for it; ten seconds by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Never gives the startup session up: the shared memory keeps the oldest events.
    pub fn no_timeout(mut self) -> Self {
        self.timeout = None;
        self
    }
}

/// How startup tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartupOutcome {
    /// Sessions have taken over all recorded events.
    Adopted,
    /// Events were discarded: no session asked for them in time, startup tracing was [aborted](StartupSession::abort), the connection was lost, or
    /// the service would not use this process's memory.
    Aborted,
}

/// Why nothing is recorded for startup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartupError {
    /// [`initialize`](crate::initialize) was not called before.
    NotInitialized,
    /// The config names no registered data source.
    NoDataSource,
    /// The backend does not support startup tracing.
    Backend(String),
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot trace from startup on: ")?;
        match self {
            StartupError::NotInitialized => f.write_str("call ferretto::initialize before"),
            StartupError::NoDataSource => f.write_str(
                "the trace config has no data source that this process has registered and room for",
            ),
            StartupError::Backend(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for StartupError {}

/// A startup session. Dropping this does not end it.
#[derive(Debug)]
pub struct StartupSession {
    number: u64,
    outcome: Receiver<StartupOutcome>,
}

impl StartupSession {
    /// Gives the startup session up: discards everything that no session has asked for so far.
    pub fn abort(&self) {
        muxer::post(Command::AbortStartup(self.number));
    }

    /// Waits until startup tracing is over. Not to be called on the SDK's thread.
    pub fn wait(&self) -> StartupOutcome {
        // Without a thread, no session could take it over.
        self.outcome.receive().unwrap_or(StartupOutcome::Aborted)
    }

    /// Returns the outcome, if startup tracing has ended.
    pub fn outcome(&self) -> Option<StartupOutcome> {
        self.outcome.try_receive().ok()
    }
}

/// Starts the data sources of `config` at once, into memory of this process, and hands their recordings to the session that asks for them with the
/// same config. The session has ten seconds to come, or [`StartupOptions::timeout`]. Until then events that do not fit the shared memory are dropped.
///
/// The configs of a data source have to be equal in all fields that the service does not fill in itself; configs of track events only in their
/// categories and filters. If a session asks for a data source with another config, [`status()`](crate::status()) tells the difference, and so does
/// the log, as a warning once the time is up.
///
/// ```no_run
/// use ferretto::session::{DataSource, TraceConfig};
/// use ferretto::startup::StartupOptions;
///
/// ferretto::initialize(ferretto::Options::system());
/// let config = TraceConfig::new().data_source(DataSource::track_event().enable_category("net"));
/// ferretto::startup_tracing(&config, StartupOptions::default())?;
/// # Ok::<(), ferretto::startup::StartupError>(())
/// ```
///
/// When this returns, the data sources have started. Not to be called on the SDK's thread.
///
/// # Errors
/// If there is nothing to be recorded.
pub fn startup_tracing(
    config: &TraceConfig,
    options: StartupOptions,
) -> Result<StartupSession, StartupError> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if OFF {
        let (over, outcome) = channel();
        let _ = over.send(StartupOutcome::Aborted);
        return Ok(StartupSession { number: 0, outcome });
    }
    let muxer = muxer::current().ok_or(StartupError::NotInitialized)?;
    let (set_up, is_set_up) = channel();
    let (over, outcome) = channel();
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    muxer.post(Command::StartUp(StartupRequest {
        number,
        backend: options.backend,
        timeout: options.timeout,
        config: config.clone(),
        set_up,
        over,
    }));
    match is_set_up.receive() {
        Some(Ok(0)) => Err(StartupError::NoDataSource),
        Some(Ok(_)) => Ok(StartupSession { number, outcome }),
        Some(Err(reason)) => Err(StartupError::Backend(reason)),
        None => Err(StartupError::NotInitialized),
    }
}

/// A startup session, as passed to the SDK's thread.
pub(crate) struct StartupRequest {
    pub(crate) number: u64,
    pub(crate) backend: Backend,
    pub(crate) timeout: Option<Duration>,
    config: TraceConfig,
    set_up: Sender<Result<usize, String>>,
    over: Sender<StartupOutcome>,
}

impl StartupRequest {
    /// The configs of data sources, decoded and as they are.
    pub(crate) fn configs(&self) -> Vec<(Arc<DataSourceConfig>, Arc<[u8]>)> {
        let fields = |message, number| {
            Reader::new(message)
                .map_while(Result::ok)
                .filter(move |field| field.number == number)
                .filter_map(|field| field.value.as_bytes())
        };
        fields(self.config.as_bytes(), messages::TraceConfig::DATA_SOURCES)
            .filter_map(|source| {
                // A config that occurs twice is the two merged.
                let encoded = fields(source, messages::trace_config::DataSource::CONFIG)
                    .collect::<Vec<_>>()
                    .concat();
                let config = DataSourceConfig::decode_from_slice(&encoded).ok()?;
                Some((Arc::new(config), encoded.into()))
            })
            .collect()
    }

    pub(crate) fn set_up(&self, data_sources: usize) {
        let _ = self.set_up.send(Ok(data_sources));
    }

    pub(crate) fn refused(self, reason: String) {
        let _ = self.set_up.send(Err(reason));
    }

    pub(crate) fn adopted(self) {
        let _ = self.over.send(StartupOutcome::Adopted);
    }

    pub(crate) fn aborted(self) {
        let _ = self.over.send(StartupOutcome::Aborted);
    }
}
