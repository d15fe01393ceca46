//! A recording of this program into a file, from one line in `main` to the end of the program.
//!
//! [`record_to`] is for the usual case, [`RecordingOptions`] for all others. A [`Recording`] is a [`Session`] that streams into its file, so most of
//! the trace is there however the program ends. The rest gets there by [`Recording`]'s `drop` where `main` returns or unwinds, by
//! [`process_hooks`](crate::process_hooks) where the process exits, and by the service itself if that is another process.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferretto_ipc::channel::channel;
use ferretto_proto::messages;
use ferretto_proto::messages::trace_config::WriteFlushMode;

use super::Session;
use super::command::Command;
use super::config::{DataSource, TraceConfig};
use super::error::SessionError;
use super::losses::{BufferLosses, Losses};
use crate::off::OFF;
use crate::options::{Backend, LogLevel, Options};
use crate::track_event::observer::{self, SessionEvent};
use crate::{muxer, process_hooks};

/// The data that waits while the disk does not keep up, before it is overwritten: 0.8 s of 2 million events a second, of 20 bytes each.
const BUFFER_KB: u32 = 32 * 1024;

/// The period of writes into the file. If the process is killed, the file lacks the events since the last flush before its last write. There is a
/// flush every half period.
const WRITE_PERIOD: Duration = Duration::from_millis(200);

/// How often names are repeated, so that a buffer which was overwritten after all leaves the rest of the file readable.
const CLEAR_PERIOD: Duration = Duration::from_secs(5);

/// How long the machine's service may take to begin recording this program's track events.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// Records this program into a file, until the returned value is dropped: one line in `main`, and the trace opens at <https://ui.perfetto.dev>.
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let _trace = ferretto::record_to("trace.pftrace")?;
///     ferretto::trace_event!("app", "Work");
///     // …
///     Ok(())
/// }
/// ```
///
/// Keep it in a variable with a name: with `let _ = …` the recording ends at once. Sets tracing up for this process if
/// [`initialize`](crate::initialize) was not called. No daemon is needed. All categories are recorded except for those tagged `slow` or `debug`;
/// [`RecordingOptions`] changes that.
///
/// A file of this name is overwritten. The contents of the file depend on how the program ends:
///
/// | the program | the file has |
/// |---|---|
/// | returns from `main`, also with `?` | everything, until the value is dropped |
/// | panics, on whatever thread | everything, until the value is dropped or the process exits |
/// | calls [`std::process::exit`] | everything |
/// | is killed by a signal or aborts | all but the last 0.3 s or so; the same with `panic = "abort"` and with Ctrl-C |
///
/// Nothing is printed unless something is lost; that goes to [`Options::log`]. When threads record faster than the data is taken, their events are
/// dropped; a line says how often, when the recording ends or the process exits. [`DataSource::when_exhausted`] has threads wait instead, and a larger
/// [`Options::shared_memory_size`] bridges longer bursts.
///
/// Where [nothing is recorded](crate#where-nothing-is-recorded), this does nothing, and leaves the file alone.
///
/// # Errors
/// If the file cannot be written, another recording writes it, or the service refuses the session: five can record at once.
#[cfg(feature = "in-process")]
pub fn record_to(path: impl AsRef<Path>) -> Result<Recording, SessionError> {
    RecordingOptions::new().record_to(path)
}

/// The options of a recording into a file: the data and the method.
///
/// ```no_run
/// use ferretto::RecordingOptions;
/// use ferretto::session::DataSource;
///
/// # fn main() -> Result<(), ferretto::session::SessionError> {
/// let _trace = RecordingOptions::new()
///     .buffer_kb(128 * 1024)
///     .track_events(DataSource::track_event().disable_category("chatty.*"))
///     .record_to(format!("trace-{}.pftrace", std::process::id()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is recorded until RecordingOptions::record_to is called"]
pub struct RecordingOptions {
    backend: Backend,
    buffer_kb: u32,
    write_period: Duration,
    /// `None` for the usual ones.
    track_events: Option<DataSource>,
    more: TraceConfig,
}

impl RecordingOptions {
    /// The defaults: the service in this process (without the feature `in-process` the machine's) and a buffer of 32 MB, which is written into the
    /// file every 200 ms.
    pub fn new() -> RecordingOptions {
        RecordingOptions {
            #[cfg(feature = "in-process")]
            backend: Backend::InProcess,
            #[cfg(not(feature = "in-process"))]
            backend: Backend::System,
            buffer_kb: BUFFER_KB,
            write_period: WRITE_PERIOD,
            track_events: None,
            more: TraceConfig::new(),
        }
    }

    /// Has the machine's tracing service record, so that the trace can have events of the kernel beside the program's. The daemons `traced` and (for
    /// the kernel) `traced_probes` must be running. Track events are recorded only of programs that have the same name as this one.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), ferretto::session::SessionError> {
    /// use ferretto::RecordingOptions;
    /// use ferretto::session::DataSource;
    ///
    /// let _trace = RecordingOptions::new()
    ///     .system()
    ///     .data_source(DataSource::ftrace(["sched/sched_switch", "sched/sched_waking"]))
    ///     .data_source(DataSource::new("linux.process_stats"))
    ///     .record_to("trace.pftrace")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the program exits or is killed, the service completes the file. Then nobody tells the program of losses; the file's statistics have them.
    pub fn system(mut self) -> RecordingOptions {
        self.backend = Backend::System;
        self
    }

    /// The memory, in kilobytes, that holds data on its way into the file: 32768 (32 MB) by default. When it is full, the oldest data are
    /// lost first. Configs may bring [buffers of their own](RecordingOptions::config).
    pub fn buffer_kb(mut self, size_kb: u32) -> RecordingOptions {
        self.buffer_kb = size_kb;
        self
    }

    /// Sets the period of writes into the file. Each write follows a flush that is at most half a period old, so a killed process loses up to one and
    /// a half periods. In milliseconds, at least 100; 200 by default.
    pub fn write_period(mut self, period: Duration) -> RecordingOptions {
        self.write_period = period;
        self
    }

    /// Sets the track events to record, in place of all whose category is not tagged `slow` or `debug`.
    pub fn track_events(mut self, source: DataSource) -> RecordingOptions {
        self.track_events = Some(source);
        self
    }

    /// Adds another data source. One of track events takes the place of the default one.
    pub fn data_source(mut self, source: DataSource) -> RecordingOptions {
        self.more = self.more.data_source(source);
        self
    }

    /// Adds further settings: a [duration](TraceConfig::duration), a [largest size](TraceConfig::max_file_size) of the file,
    /// [compression](TraceConfig::compress) and so on. They replace the defaults: the buffers of a config that has some take the place of
    /// [the buffer](RecordingOptions::buffer_kb), and its data source of track events, if it has one, that of the default one. As the config is used as it
    /// is, such a data source records all programs with [`RecordingOptions::system`], unless it names a producer.
    ///
    /// With [`RecordingOptions::track_events`] besides, there are two data sources of track events: events that both ask for are in the trace twice, and a
    /// line in the log says so.
    pub fn config(mut self, config: &TraceConfig) -> RecordingOptions {
        self.more = self.more.merge(config);
        self
    }

    /// Records into this file, which is overwritten, until the returned value is dropped: see [`record_to`](crate::record_to()).
    ///
    /// Returns when everything is being recorded. With [`RecordingOptions::system`] it waits up to 5 s until the service knows this program, and logs
    /// a line if that takes longer.
    ///
    /// # Errors
    /// If the file cannot be written, another recording writes it, or the service cannot be reached or refuses the session. Also in
    /// callbacks, because they run on the thread that would have to start the recording.
    pub fn record_to(self, path: impl AsRef<Path>) -> Result<Recording, SessionError> {
        if muxer::on_own_thread() {
            return Err(SessionError::OnSdkThread {
                request: "start a recording",
            });
        }
        let path = path.as_ref();
        // The working directory may change later.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if OFF {
            // The file may hold an earlier trace, and no session will ever start.
            return Ok(Recording {
                shared: Arc::default(),
                file: None,
                path,
                generation: process_hooks::generation(),
            });
        }
        let failed = |reason| SessionError::File {
            path: path.clone(),
            reason,
        };
        let file = open(&path).map_err(failed)?;
        let handed_over = file.try_clone().map_err(|error| failed(error.to_string()))?;
        match self.backend {
            #[cfg(feature = "in-process")]
            Backend::InProcess => muxer::initialize(Options::in_process()),
            _ => muxer::initialize(Options::system()),
        }
        let session = Session::with_backend(self.backend);
        let config = self.trace_config();
        if records_twice(&config) {
            let line = "the recording has two data sources \"track_event\": events that both ask for will be in the trace twice; \
                        leave out RecordingOptions::track_events, or the one of the config";
            muxer::log(LogLevel::Warning, line);
        }
        let shared = Arc::new(Shared::default());
        let (shown, fate) = (path.clone(), Arc::clone(&shared));
        session.on_error(move |error| {
            log_early_end(&shown, &error);
            fate.lock().early = Some(error);
        });
        session.setup_with_file(&config, handed_over)?;
        let backend = self.backend;
        let (recorded, is_recorded) = channel();
        let _observing = observer::observe_sessions(move |event| {
            if let SessionEvent::Started(session) = event
                && session.backend() == backend
            {
                let _ = recorded.send(());
            }
        });
        session.start_blocking()?;
        let session = Arc::new(session);
        shared.lock().session = Some(Arc::clone(&session));
        // The service in this process ends other sessions only with the process.
        let is_early = self.backend == Backend::System && !ends_by_itself(&config);
        let early = is_early.then_some(SessionError::EndedEarly);
        let (shown, fate) = (path.clone(), Arc::clone(&shared));
        session.on_stop(move || fate.session_ended(shown, early));
        if self.backend != Backend::System {
            let (shown, fate) = (path.clone(), Arc::clone(&shared));
            session.send(Command::BeforeExit(Box::new(move || fate.ask_for_losses(shown))));
        }
        drop(session);
        if is_recorded.receive_within(START_PATIENCE).is_err() {
            let line = format!(
                "the {backend} does not record the track events of this process so far; ask ferretto::status() for the reason"
            );
            muxer::log(LogLevel::Warning, &line);
        }
        Ok(Recording {
            shared,
            file: Some(file),
            path,
            generation: process_hooks::generation(),
        })
    }

    fn trace_config(&self) -> TraceConfig {
        let more = self.more.decoded();
        let track_events = match &self.track_events {
            Some(chosen) => Some(chosen.clone()),
            None if track_event_sources(&more) > 0 => None,
            None => Some(DataSource::track_event()),
        };
        // By default services decide by themselves when to flush for files, and ignore the period.
        let flush_as_told = messages::TraceConfig {
            write_flush_mode: Some(WriteFlushMode::WRITE_FLUSH_DISABLED),
            ..Default::default()
        };
        let mut config = TraceConfig::from_message(&flush_as_told)
            .write_into_file(self.write_period)
            .flush_period(self.write_period / 2)
            .clear_incremental_state(CLEAR_PERIOD);
        if more.buffers.is_empty() {
            config = config.buffer_kb(self.buffer_kb);
        }
        if let Some(mut source) = track_events {
            if self.backend == Backend::System
                && let Some(settings) = muxer::settings()
            {
                source = source.of_producer(&settings.producer_name);
            }
            config = config.data_source(source);
        }
        config.merge(&self.more)
    }
}

impl Default for RecordingOptions {
    fn default() -> RecordingOptions {
        RecordingOptions::new()
    }
}

/// Opens the file, empties it and locks it, so that no other recording writes it while it is open.
fn open(path: &Path) -> Result<File, String> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("{error}; create its folder first"),
        io::ErrorKind::PermissionDenied => format!("{error}; choose a folder that this user may write to"),
        _ => error.to_string(),
    };
    // The old contents stay until it is certain that nobody else writes the file. The file is opened for reading too, because clones begin with its
    // contents.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        // A pipe, for example: several programs may write into it, if its reader wants that.
        return Ok(file);
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(
            "another recording writes it; give each process a file of its own, with std::process::id() in its name say"
                .to_owned(),
        ),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => file.set_len(0).map_err(failed).map(|()| file),
    }
}

/// Whether the service ends a session of this config without being asked to.
fn ends_by_itself(config: &TraceConfig) -> bool {
    let config = config.decoded();
    config.duration_ms.unwrap_or_default() > 0
        || config.max_file_size_bytes.unwrap_or_default() > 0
        || config.trigger_config.is_set()
}

fn track_event_sources(config: &messages::TraceConfig) -> usize {
    let names = config
        .data_sources
        .iter()
        .map(|source| source.config.name.as_deref());
    names.filter(|name| *name == Some("track_event")).count()
}

/// Whether events may be in the trace twice.
fn records_twice(config: &TraceConfig) -> bool {
    track_event_sources(&config.decoded()) > 1
}

fn log_early_end(path: &Path, error: &SessionError) {
    let line = format!("the recording into {} has ended early: {error}", path.display());
    muxer::log(LogLevel::Warning, &line);
}

/// The part of a recording that the SDK's thread has, too.
#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    /// `None` once it has ended.
    session: Option<Arc<Session>>,
    /// Why it ended before it was told to.
    early: Option<SessionError>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service has ended the session, which is given up, unless its owner is ending it: it takes the service memory, and a service that shuts down
    /// waits for it. `early` is the error that the end is, if no other is known.
    fn session_ended(&self, path: PathBuf, early: Option<SessionError>) {
        let (session, known) = {
            let mut state = self.lock();
            let Some(session) = state.session.take() else {
                return;
            };
            let known = state.early.is_some();
            state.early = state.early.take().or(early.clone());
            (session, known)
        };
        match early {
            _ if known => {}
            Some(early) => log_early_end(&path, &early),
            None => log_losses_of(session, path),
        }
    }

    /// The process exits, and the service in it ends all sessions without having been asked to.
    fn ask_for_losses(&self, path: PathBuf) {
        let session = self.lock().session.clone();
        if let Some(session) = session {
            log_losses_of(session, path);
        }
    }
}

/// Has the losses logged when the service has told them, which keeps the session until then.
fn log_losses_of(session: Arc<Session>, path: PathBuf) {
    let asked = Arc::clone(&session);
    asked.losses_with(move |losses| {
        log_losses(&path, losses);
        drop(session);
    });
}

/// Says what the file lacks, if anything. A service that is gone does not know.
fn log_losses(path: &Path, losses: Result<Losses, SessionError>) {
    if let Ok(losses) = losses
        && let Some(line) = about_losses(path, &losses)
    {
        muxer::log(LogLevel::Warning, &line);
    }
}

/// Returns a line about the data that the file lacks, if there are any.
fn about_losses(path: &Path, losses: &Losses) -> Option<String> {
    let sum = |count: fn(&BufferLosses) -> u64| -> u64 {
        losses.buffers.iter().map(count).fold(0, u64::saturating_add)
    };
    let gaps = sum(|buffer| buffer.packet_gaps);
    let overwritten = sum(|buffer| buffer.chunks_overwritten);
    let mut causes = Vec::new();
    if gaps > 0 {
        let often = if gaps == 1 {
            "once".to_owned()
        } else {
            format!("{gaps} times")
        };
        causes.push(format!(
            "{often} a thread dropped events because the shared memory was full (let threads wait, with \
             DataSource::when_exhausted(ExhaustedPolicy::Stall), or enlarge Options::shared_memory_size)"
        ));
    }
    if overwritten > 0 {
        causes.push(format!(
            "the buffer was full, and chunks in it were overwritten before they were written into the file: {overwritten} (enlarge \
             RecordingOptions::buffer_kb)"
        ));
    }
    (!causes.is_empty()).then(|| {
        format!(
            "the recording into {} lacks data: {}",
            path.display(),
            causes.join("; ")
        )
    })
}

/// A recording of this program, made by [`record_to`](crate::record_to()). It ends, and its file is complete, when this is dropped.
///
/// Dropping it waits for the last data to be written: 30 s at most. In a forked child it does nothing; the recording is the parent's.
#[must_use = "the recording ends when this is dropped: keep it in a variable with a name"]
pub struct Recording {
    shared: Arc<Shared>,
    /// The file that the service writes, for its lock. `None` where nothing is recorded.
    file: Option<File>,
    path: PathBuf,
    /// The process that made the recording.
    generation: u32,
}

impl Recording {
    /// The file, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has all producers hand over the events that they have recorded so far, so that the next write brings the file up to date. Waits for the
    /// producers.
    ///
    /// # Errors
    /// As [`Session::flush_blocking`].
    pub fn flush(&self, timeout: Duration) -> Result<(), SessionError> {
        // Without the lock, which the thread may need that flushes.
        let (session, early) = {
            let state = self.shared.lock();
            (state.session.clone(), state.early.clone())
        };
        match (session, early) {
            (Some(session), _) => session.flush_blocking(timeout),
            (None, _) if OFF => Ok(()),
            (None, early) => Err(early.unwrap_or_else(|| SessionError::Disconnected("it was ended".into()))),
        }
    }

    /// Ends the recording and returns its result: the path of the file, which is complete.
    ///
    /// # Errors
    /// If the recording ended before, because the disk was full or the service stopped for example; the file has the data written by then. An end that
    /// the config asks for, by a duration, a size or a trigger, is no error.
    pub fn finish(mut self) -> Result<PathBuf, SessionError> {
        self.end()?;
        Ok(std::mem::take(&mut self.path))
    }

    fn end(&mut self) -> Result<(), SessionError> {
        if self.generation != process_hooks::generation() {
            // The thread that serves it is not in this process, and may have held the lock.
            std::mem::forget(Arc::clone(&self.shared));
            return Ok(());
        }
        let (session, early) = {
            let mut state = self.shared.lock();
            (state.session.take(), state.early.clone())
        };
        let Some(session) = session else {
            self.unlock();
            return early.map_or(Ok(()), Err);
        };
        if muxer::on_own_thread() {
            // The service completes the file by itself.
            session.stop();
            return Ok(());
        }
        let ended = session.stop_blocking();
        if matches!(ended, Err(SessionError::TimedOut { .. })) {
            return ended;
        }
        self.unlock();
        log_losses(&self.path, session.losses());
        ended
    }

    /// Lets others write the file, because nobody does any more. Closing it is not enough: a program that another thread starts has it open for a
    /// moment, too.
    fn unlock(&self) {
        if let Some(file) = &self.file {
            let _ = file.unlock();
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Other errors were logged as they happened.
        if let Err(error @ SessionError::TimedOut { .. }) = self.end() {
            let line = format!(
                "the recording into {} may lack its end: {error}",
                self.path.display()
            );
            muxer::log(LogLevel::Warning, &line);
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_the_service_ends_is_given_up_and_the_first_reason_stays() {
        let ended = |shared: &Shared| shared.session_ended(PathBuf::new(), Some(SessionError::EndedEarly));
        let shared = Shared::default();
        ended(&shared);
        assert!(shared.lock().early.is_none(), "its owner has it");
        shared.lock().session = Some(Arc::new(Session::system()));
        ended(&shared);
        assert!(shared.lock().session.is_none());
        assert!(matches!(shared.lock().early, Some(SessionError::EndedEarly)));
        // The reason for an end is better than none.
        *shared.lock() = State {
            session: Some(Arc::new(Session::system())),
            early: Some(SessionError::Failed("the disk is full".into())),
        };
        ended(&shared);
        assert!(shared.lock().session.is_none());
        assert!(matches!(shared.lock().early, Some(SessionError::Failed(_))));
    }

    #[test]
    fn configs_that_end_a_session_are_known() {
        let with = TraceConfig::new;
        assert!(!ends_by_itself(&RecordingOptions::new().trace_config()));
        assert!(ends_by_itself(&with().duration(Duration::from_secs(1))));
        assert!(ends_by_itself(&with().max_file_size(1)));
        let second = Duration::from_secs(1);
        assert!(ends_by_itself(&with().trigger(
            "t",
            crate::session::TriggerAction::Stop,
            second,
            second
        )));
    }

    #[test]
    fn buffers_and_track_events_of_a_config_take_the_place_of_the_defaults() {
        let sources = |config: &messages::TraceConfig| -> Vec<Vec<String>> {
            let events = config.data_sources.iter();
            events
                .map(|source| source.config.track_event_config.enabled_categories.clone())
                .collect()
        };
        let made = |options: &RecordingOptions| {
            let config = options.trace_config().decoded();
            let sizes: Vec<_> = config
                .buffers
                .iter()
                .filter_map(|buffer| buffer.size_kb)
                .collect();
            (sizes, sources(&config))
        };
        let chosen = || DataSource::track_event().enable_category("app");
        let default = RecordingOptions::new();
        assert_eq!(made(&default), (vec![BUFFER_KB], vec![vec![]]));
        let whole = TraceConfig::new()
            .buffer_kb(64)
            .buffer_kb(128)
            .data_source(chosen());
        let whole = default.clone().config(&whole);
        assert_eq!(made(&whole), (vec![64, 128], vec![vec!["app".to_owned()]]));
        assert_eq!(whole.trace_config().decoded().write_into_file, Some(true));
        let sized = default.clone().config(&TraceConfig::new().buffer_kb(64));
        assert_eq!(made(&sized), (vec![64], vec![vec![]]));
        let added = default.clone().data_source(chosen());
        assert_eq!(made(&added), (vec![BUFFER_KB], vec![vec!["app".to_owned()]]));
        assert!(!records_twice(&added.trace_config()));
        let twice = added.track_events(DataSource::track_event());
        assert_eq!(made(&twice).1.len(), 2);
        assert!(records_twice(&twice.trace_config()));
    }

    #[test]
    fn each_kind_of_loss_is_said_with_its_remedy() {
        let path = Path::new("/trace");
        let mut losses = Losses {
            buffers: vec![BufferLosses::default(); 2],
            ..Default::default()
        };
        assert_eq!(about_losses(path, &losses), None);
        losses.buffers[0].packet_gaps = 2;
        let line = about_losses(path, &losses).unwrap();
        assert!(line.contains("lacks data: 2 times a thread"), "{line}");
        losses.buffers[1].packet_gaps = 3;
        let line = about_losses(path, &losses).unwrap();
        assert!(line.contains("/trace lacks data: 5 times"), "{line}");
        assert!(
            line.contains("ExhaustedPolicy::Stall") && !line.contains("buffer_kb"),
            "{line}"
        );
        losses.buffers[1].chunks_overwritten = 7;
        let line = about_losses(path, &losses).unwrap();
        assert!(
            line.contains("into the file: 7 (") && line.contains("buffer_kb"),
            "{line}"
        );
    }
}
