//! Tracing sessions that the application runs itself: configure, start, stop, read.
//!
//! ```
//! # #[cfg(feature = "in-process")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ferretto::session::{DataSource, Session, TraceConfig};
//!
//! ferretto::initialize(ferretto::Options::in_process());
//!
//! let session = Session::in_process();
//! session.setup(
//!     &TraceConfig::new()
//!         .buffer_kb(4096)
//!         .data_source(DataSource::track_event()),
//! )?;
//! session.start_blocking()?;
//! // ... what is to be traced ...
//! session.stop_blocking()?;
//! let trace: Vec<u8> = session.read_to_end()?;
//! // Open it at https://ui.perfetto.dev.
//! # assert!(!trace.is_empty());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "in-process"))]
//! # fn main() {}
//! ```

mod asynchronous;
mod clones;
mod command;
mod config;
#[cfg(all(
    not(feature = "off"),
    target_endian = "little",
    any(target_os = "linux", target_os = "android")
))]
mod endpoint;
mod error;
mod losses;
mod reader;
mod recording;
#[cfg(test)]
mod tests;
#[cfg_attr(
    not(all(
        not(feature = "off"),
        target_endian = "little",
        any(target_os = "linux", target_os = "android")
    )),
    path = "no_worker.rs"
)]
mod worker;

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use ferretto_client::consumer::StateScope;
use ferretto_ipc::channel::{Nothing, Sender, channel};
#[cfg(feature = "unstable-proto")]
pub use ferretto_proto::messages::observable_events::Type as ObservableEventType;
#[cfg(feature = "unstable-proto")]
use ferretto_proto::messages::{
    ObservableEvents, TraceStats, TracingServiceCapabilities, TracingServiceState,
};

use crate::handles::{OwnedFile, OwnedSocket};
use crate::muxer::{self, Served, Stream, Waker};
use crate::off::{OFF, WHY_OFF};
use crate::options::Backend;
pub use asynchronous::Reply;
pub use clones::{CloneSource, CloneTrigger, Cloned};
use command::{Answer, Command, Observer, ServicePlace, Sink};
pub use config::{Buffer, DataSource, ExhaustedPolicy, InvalidConfig, TraceConfig, TriggerAction};
#[cfg(all(
    not(feature = "off"),
    target_endian = "little",
    any(target_os = "linux", target_os = "android")
))]
pub(crate) use endpoint::Endpoint;
#[cfg(all(
    feature = "in-process",
    not(feature = "off"),
    target_endian = "little",
    any(target_os = "linux", target_os = "android")
))]
pub(crate) use endpoint::{DataFlow, Valve};
pub use error::SessionError;
pub use losses::{BufferLosses, Losses};
pub use reader::{TraceChunk, TraceReader};
#[cfg(feature = "in-process")]
pub use recording::record_to;
pub use recording::{Recording, RecordingOptions};
use worker::Worker;

/// How long methods wait for the service by default; see [`Session::set_patience`].
const PATIENCE: Duration = Duration::from_secs(30);

/// A tracing session, of which this process is the consumer. It ends when this is dropped, unless it was [detached](Session::detach).
///
/// Methods can be called on any thread. Callbacks run on the SDK's thread and must not block it, so methods that wait fail there with
/// [`SessionError::OnSdkThread`]. They wait no longer than [`Session::set_patience`] says. Requests are carried out in the order in which they are
/// made.
///
/// Errors of requests that do not wait go to [`Session::on_error`], above all the error that ended the session. When the connection to the service
/// ends, the session ends too, and all further requests fail with the reason.
#[must_use = "the session ends when it is dropped"]
pub struct Session {
    commands: Sender<Command>,
    /// The worker, until there is a thread to serve it.
    unserved: Mutex<Option<Box<dyn Served>>>,
    patience: Duration,
}

impl Session {
    fn at(place: ServicePlace) -> Session {
        let (commands, received) = channel();
        Session {
            commands,
            unserved: Mutex::new(match OFF {
                true => None,
                false => Some(Box::new(Worker::new(place, received))),
            }),
            patience: PATIENCE,
        }
    }

    /// A session of the first backend that was given to [`initialize`](crate::initialize), in this order: the system's service, the
    /// one in this process, a custom one.
    pub fn new() -> Session {
        Session::at(ServicePlace::Default)
    }

    /// A session of a service that was among the backends given to [`initialize`](crate::initialize). The session connects when it is first used.
    pub fn with_backend(backend: Backend) -> Session {
        Session::at(ServicePlace::Backend(backend))
    }

    /// A session of the machine's tracing service, which records all programs on this machine and the kernel.
    pub fn system() -> Session {
        Session::with_backend(Backend::System)
    }

    /// A session of the service in this process, which records this process alone.
    #[cfg(feature = "in-process")]
    pub fn in_process() -> Session {
        Session::with_backend(Backend::InProcess)
    }

    /// A session of the service at the other end of a stream socket to its consumer port: for processes that may not connect themselves. The
    /// connection is shut down when the session is dropped, even if it has other descriptors.
    ///
    /// # Errors
    /// If it is no stream socket.
    pub fn over(socket: impl Into<OwnedSocket>) -> Result<Session, SessionError> {
        Stream::from_fd(socket.into())
            .map(|stream| Session::at(ServicePlace::Stream(Box::new(stream))))
            .map_err(|error| SessionError::Unavailable(error.to_string()))
    }

    /// Sets the time limit of methods that wait; for reads it holds for each chunk. The default is 30 s.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sets the config. The service learns of it at the start, unless the config has [`deferred_start`](TraceConfig::deferred_start). May be called
    /// again after the session has ended, to set up another one; the trace of the previous session is gone then.
    ///
    /// Waits until the session is set up, which does not take long. In callbacks it does not wait, and errors go to [`Session::on_error`].
    ///
    /// # Errors
    /// If the service cannot be reached, or the session is running.
    pub fn setup(&self, config: &TraceConfig) -> Result<(), SessionError> {
        self.set_up(config, None)
    }

    /// As [`Session::setup`], for a config with [`write_into_file`](TraceConfig::write_into_file): the service writes into `file`,
    /// which may be a pipe or socket as well.
    ///
    /// # Errors
    /// As [`Session::setup`].
    pub fn setup_with_file(
        &self,
        config: &TraceConfig,
        file: impl Into<OwnedFile>,
    ) -> Result<(), SessionError> {
        self.set_up(config, Some(file.into()))
    }

    fn set_up(&self, config: &TraceConfig, file: Option<OwnedFile>) -> Result<(), SessionError> {
        let config = config.clone();
        if muxer::on_own_thread() {
            self.send(Command::SetUp(config, file, None));
            return Ok(());
        }
        self.wait("set up the session", |answer| {
            Command::SetUp(config, file, Some(answer))
        })
    }

    /// Starts recording, without waiting. The callback of [`Session::on_start`] is called when all data sources have started. If the session is refused,
    /// the callback of [`Session::on_error`] is told, or without one the [log](crate::Options::log).
    pub fn start(&self) {
        self.send(Command::Start(None));
    }

    /// Starts recording, and waits until all data sources have started.
    ///
    /// # Errors
    /// If the service refuses the session, or there is none.
    pub fn start_blocking(&self) -> Result<(), SessionError> {
        self.wait("start the session", |answer| Command::Start(Some(answer)))
    }

    /// Stops recording, without waiting. The callback of [`Session::on_stop`] is called when the session has stopped. The trace can be read then.
    pub fn stop(&self) {
        self.send(Command::Stop(None));
    }

    /// Stops recording, and waits until all data sources have stopped and, if the session streams into a file, until the file is complete.
    ///
    /// # Errors
    /// If the session ended with an error, or there is none.
    pub fn stop_blocking(&self) -> Result<(), SessionError> {
        self.wait("stop the session", |answer| Command::Stop(Some(answer)))
    }

    /// Waits until the session ends by itself, because its [duration](TraceConfig::duration) is over or its file is full. Waits `at_most` this long,
    /// whatever [`Session::set_patience`] says.
    ///
    /// # Errors
    /// If the session ended with an error, or not in time.
    pub fn wait_until_stopped(&self, at_most: Duration) -> Result<(), SessionError> {
        self.wait_for(at_most, "wait for the end of the session", Command::AwaitEnd)
    }

    /// Has all data sources write out their data, so that it can be read. `timeout` limits how long they take (milliseconds; zero leaves it to the
    /// config, whose default is 5 s). `done` is called on the SDK's thread.
    pub fn flush(&self, timeout: Duration, done: impl FnOnce(Result<(), SessionError>) + Send + 'static) {
        self.send(Command::Flush(timeout, Answer::to_application(done)));
    }

    /// As [`Session::flush`], and waits until it is done.
    ///
    /// # Errors
    /// If a data source did not flush in time.
    pub fn flush_blocking(&self, timeout: Duration) -> Result<(), SessionError> {
        self.wait_for(self.patience.max(timeout.saturating_mul(2)), "flush", |answer| {
            Command::Flush(timeout, answer)
        })
    }

    /// Reads the trace, as an iterator over chunks or as the bytes of a trace file. Reading removes the data from the session's buffers. May be
    /// called while the session records, for the data that has arrived so far: best after a [flush](Session::flush_blocking).
    ///
    /// While the reader exists but is not read, a service in another process has to wait, and with it all other requests of this session.
    ///
    /// ```no_run
    /// # use ferretto::session::Session;
    /// # let session = Session::system();
    /// let mut size = 0;
    /// for chunk in session.read()? {
    ///     size += chunk?.packets().count();
    /// }
    /// # Ok::<(), ferretto::session::SessionError>(())
    /// ```
    ///
    /// # Errors
    /// If this is the SDK's thread, which has [`Session::read_with`]. The reader reports failures to read the trace.
    pub fn read(&self) -> Result<TraceReader, SessionError> {
        if muxer::on_own_thread() {
            return Err(SessionError::OnSdkThread {
                request: "read the trace",
            });
        }
        let waker = muxer::waker();
        if waker.is_none() && !OFF {
            return Err(SessionError::NotInitialized);
        }
        let (reader, writer) = reader::pipe(waker, self.patience);
        self.send(Command::Read(Sink::Pipe(writer)));
        Ok(reader)
    }

    /// Reads the whole trace.
    ///
    /// # Errors
    /// If the service has none, or the connection to it ends.
    pub fn read_to_end(&self) -> Result<Vec<u8>, SessionError> {
        let mut trace = Vec::new();
        self.write_to(&mut trace)?;
        Ok(trace)
    }

    /// Reads the whole trace into a file, or any other output of bytes. Returns the number of bytes.
    ///
    /// # Errors
    /// If the service has none, the connection to it ends, or the output takes no more.
    pub fn write_to(&self, output: &mut (impl Write + ?Sized)) -> Result<u64, SessionError> {
        self.read()?.write_to(output)
    }

    /// Reads the trace without waiting: `take` is called on the SDK's thread with each chunk, and with `None` or an error at the end.
    pub fn read_with(&self, mut take: impl FnMut(Result<Option<TraceChunk>, SessionError>) + Send + 'static) {
        self.send(Command::Read(Sink::Callback(Box::new(move |chunk| {
            muxer::guarded(|| take(chunk));
        }))));
    }

    /// Changes the config while the session records. Services apply new producer filters only.
    ///
    /// # Errors
    /// If there is no session, or the service refuses.
    pub fn change_config(&self, config: &TraceConfig) -> Result<(), SessionError> {
        let config = config.clone();
        self.wait("change the trace config", |answer| {
            Command::ChangeConfig(config, answer)
        })
    }

    /// Turns this session into a clone of another one, which goes on: a snapshot of its buffers, to be read. Not while this session records. Before
    /// the snapshot, producers hand over the events that they have recorded.
    ///
    /// # Errors
    /// If the service cannot make the clone; the error has its reason.
    pub fn clone_session(&self, original: &CloneSource) -> Result<Cloned, SessionError> {
        let request = original.request();
        self.wait("clone the session", |answer| {
            Command::Clone(request, None, answer)
        })
    }

    /// As [`Session::clone_session`], for an original that streams into a file: the clone goes into `file`, which is complete when this returns.
    ///
    /// # Errors
    /// If the service cannot make the clone; the error has its reason.
    pub fn clone_session_into(
        &self,
        original: &CloneSource,
        file: impl Into<OwnedFile>,
    ) -> Result<Cloned, SessionError> {
        let (request, file) = (original.request(), file.into());
        self.wait("clone the session", |answer| {
            Command::Clone(request, Some(file), answer)
        })
    }

    /// As [`Session::clone_session`], without waiting: `done` is called on the SDK's thread.
    pub fn clone_session_with(
        &self,
        original: &CloneSource,
        done: impl FnOnce(Result<Cloned, SessionError>) + Send + 'static,
    ) {
        self.send(Command::Clone(
            original.request(),
            None,
            Answer::to_application(done),
        ));
    }

    /// Leaves the session running by itself. Any process of the same user can attach to it under `key`.
    ///
    /// # Errors
    /// If there is no session, or another one is detached under this key.
    pub fn detach(&self, key: &str) -> Result<(), SessionError> {
        let key = key.to_owned();
        self.wait("detach from the session", |answer| Command::Detach(key, answer))
    }

    /// Takes over the session that was detached under `key`; returns its config.
    ///
    /// # Errors
    /// If there is none.
    pub fn attach(&self, key: &str) -> Result<TraceConfig, SessionError> {
        let key = key.to_owned();
        self.wait("attach to the session", |answer| Command::Attach(key, answer))
    }

    /// Statistics of packets, per buffer. [`Session::losses`] has the losses in stable types. These are the schema's types, so they are [not part of the
    /// stable interface](crate#stability).
    ///
    /// # Errors
    /// If there is no session.
    #[cfg(feature = "unstable-proto")]
    pub fn trace_stats(&self) -> Result<TraceStats, SessionError> {
        self.wait("get the session's statistics", Command::Stats)
            .map(|stats| *stats)
    }

    /// As [`Session::trace_stats`], without waiting: `done` is called on the SDK's thread.
    #[cfg(feature = "unstable-proto")]
    pub fn trace_stats_with(&self, done: impl FnOnce(Result<TraceStats, SessionError>) + Send + 'static) {
        let done = |stats: Result<Box<TraceStats>, _>| done(stats.map(|stats| *stats));
        self.send(Command::Stats(Answer::to_application(done)));
    }

    /// The producers, data sources and sessions that the service knows.
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub fn query_service_state(&self, scope: StateScope) -> Result<ServiceState, SessionError> {
        self.wait("get the service's state", |answer| Command::State(scope, answer))
    }

    /// As [`Session::query_service_state`], without waiting: `done` is called on the SDK's thread.
    pub fn query_service_state_with(
        &self,
        scope: StateScope,
        done: impl FnOnce(Result<ServiceState, SessionError>) + Send + 'static,
    ) {
        self.send(Command::State(scope, Answer::to_application(done)));
    }

    /// The capabilities of the service. An old service that cannot report them has none. Of the schema's types, so [not part of the stable
    /// interface](crate#stability).
    ///
    /// # Errors
    /// If the service cannot be reached.
    #[cfg(feature = "unstable-proto")]
    pub fn query_capabilities(&self) -> Result<TracingServiceCapabilities, SessionError> {
        self.wait("get the service's capabilities", Command::Capabilities)
            .map(|capabilities| *capabilities)
    }

    /// Has `tell` called, on the SDK's thread, with events of these types: data sources that start and stop, triggers that ask for a clone
    /// (which [`Session::on_clone_trigger`] tells too). Another call replaces `tell`. Of the schema's types, so [not part of the stable
    /// interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn observe(
        &self,
        types: &[ObservableEventType],
        mut tell: impl FnMut(&ObservableEvents) + Send + 'static,
    ) {
        self.send(Command::Observe(Observer {
            types: types.to_vec(),
            tell: Box::new(move |events| {
                muxer::guarded(|| tell(events));
            }),
        }));
    }

    /// Has `tell` called, on the SDK's thread, when all data sources have started; at once if they already have.
    pub fn on_start(&self, tell: impl FnOnce() + Send + 'static) {
        self.send(Command::OnStart(Box::new(move || {
            muxer::guarded(tell);
        })));
    }

    /// Has `tell` called, on the SDK's thread, when the session ends, for whatever reason; at once if it has already ended.
    pub fn on_stop(&self, tell: impl FnOnce() + Send + 'static) {
        self.send(Command::OnStop(Box::new(move || {
            muxer::guarded(tell);
        })));
    }

    /// Has `tell` called, on the SDK's thread, with errors that no caller waits for; at once if the session has ended with one.
    pub fn on_error(&self, mut tell: impl FnMut(SessionError) + Send + 'static) {
        self.send(Command::OnError(Box::new(move |error| {
            muxer::guarded(|| tell(error));
        })));
    }

    fn wait<T: Send + 'static>(
        &self,
        request: &'static str,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, SessionError> {
        self.wait_for(self.patience, request, command)
    }

    /// Makes a request and waits for the answer.
    fn wait_for<T: Send + 'static>(
        &self,
        patience: Duration,
        request: &'static str,
        command: impl FnOnce(Answer<T>) -> Command,
    ) -> Result<T, SessionError> {
        if muxer::on_own_thread() {
            return Err(SessionError::OnSdkThread { request });
        }
        // A place for the answer instead of a channel, which would be compiled again for each type.
        let place = Arc::new(Mutex::new(None));
        let (given, waiting) = channel();
        let answer = Arc::clone(&place);
        self.send(command(Answer::new(move |result| {
            *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            // If the answer came too late, the receiver is gone.
            let _ = given.send(());
        })));
        if waiting.receive_within(patience) == Err(Nothing::SoFar) {
            return Err(SessionError::TimedOut {
                request,
                after: patience,
            });
        }
        let result = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Every answer is given, except by a worker that is gone.
        result.unwrap_or_else(|| Err(SessionError::Disconnected("it was ended".into())))
    }

    fn send(&self, command: Command) {
        if let Some(reason) = WHY_OFF {
            return command.do_nothing(reason);
        }
        let Some(waker) = self.served() else {
            return command.refuse(SessionError::NotInitialized);
        };
        match self.commands.send(command) {
            Ok(()) => waker.wake(),
            Err(returned) => returned.refuse(SessionError::Disconnected("it was ended".into())),
        }
    }

    /// Has the worker served, if it is not yet. Returns the waker of the thread that serves it, if there is one.
    fn served(&self) -> Option<Waker> {
        let waker = muxer::waker()?;
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(worker) = unserved.take()
            && let Err(worker) = muxer::serve(worker)
        {
            *unserved = Some(worker);
            return None;
        }
        Some(waker)
    }
}

impl Default for Session {
    fn default() -> Session {
        Session::new()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.commands.send(Command::End).is_ok()
            && let Some(waker) = muxer::waker()
        {
            waker.wake();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// The state of a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceState {
    /// The state, as far as this version knows its fields. Of the schema's types, so [not part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub state: Box<TracingServiceState>,
    /// The encoded `TracingServiceState`, as it came.
    pub encoded: Vec<u8>,
}
