//! The SDK's thread, seen from the others: they register data sources, leave it commands, and wake it.
//!
//! The thread (see `thread.rs`) is made by the first [`initialize`], is called `ferretto`, and lives as long as the process. It gives the
//! producer's runtime its turns, and serves the sessions of the application. Application threads never wait for it here.

mod backend;
mod registry;
mod served;
mod thread;

use std::cell::Cell;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
#[cfg(feature = "in-process")]
use std::time::Instant;

use ferretto_client::room::lock_with_room;
pub(crate) use ferretto_ipc::Stream;
use ferretto_ipc::channel::{Sender, channel};
pub(crate) use ferretto_ipc::reactor::Waker;
use ferretto_ipc::reactor::{Reactor, boot_now};

pub(crate) use registry::{Entry, once};
pub(crate) use served::{Readiness, Served, Services, Turn};

use crate::options::{BackendOptions, LogLevel, MemoryOptions, Options, Settings};
use crate::process_hooks::Hooks;
use crate::source::Source;
use crate::startup::StartupRequest;
use crate::status::Status;
use crate::{clock, process_hooks, track, track_event};

/// How deep forks may nest whose children initialize tracing and fork again.
const MAX_INCARNATIONS: usize = 16;

/// The SDK's threads, of this process and of its ancestors. An ancestor's thread does not exist in a forked child.
static INCARNATIONS: [OnceLock<Result<&'static Muxer, String>>; MAX_INCARNATIONS] =
    [const { OnceLock::new() }; MAX_INCARNATIONS];

/// The index of this process's thread.
static INCARNATION: AtomicUsize = AtomicUsize::new(0);

/// How many of these threads were begun to be started, at least.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The commands to the SDK's thread.
pub(crate) enum Command {
    AddBackends(Vec<BackendOptions>, MemoryOptions),
    /// A data source was registered, withdrawn or has changed.
    LookAtSources,
    Serve(Box<dyn Served>),
    ActivateTriggers {
        names: Vec<String>,
        /// Boot time in nanoseconds.
        expiry: u64,
    },
    StartUp(StartupRequest),
    /// Give up the startup session of this number.
    AbortStartup(u64),
    /// Call this on the thread.
    Call(Box<dyn FnOnce() + Send>),
    /// Call this when services have processed all earlier requests.
    Sync(Box<dyn FnOnce() + Send>),
    /// The process ends. The thread reports through the sender how far the remaining work has come.
    Drain(Sender<Drained>),
}

/// The handle of the thread, for other threads.
pub(crate) struct Muxer {
    inbox: Mutex<Vec<Command>>,
    waker: Waker,
    settings: Settings,
    status: Mutex<Status>,
}

impl fmt::Debug for Muxer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Muxer").finish_non_exhaustive()
    }
}

/// Sets up tracing for this process: starts the SDK's thread, which connects to the services named in `options` and records for their sessions.
/// Returns at once. The thread tries again and again to reach services that are not there, at least every five seconds. It writes the reason to the
/// log once, and [`status`](crate::status()) tells it.
///
/// May be called again to add backends. Existing backends stay as they are, and so do settings of the whole process.
///
/// A child that a process forks has no tracing, until it calls this itself. If it is forked in a callback, on the SDK's thread, it must not return
/// from that callback.
///
/// ```
/// ferretto::initialize(ferretto::Options::system().producer_name("my-server"));
/// ```
pub fn initialize(options: Options) {
    let Options {
        backends,
        memory,
        settings,
    } = options;
    let incarnation = INCARNATION.load(Ordering::Acquire);
    let Some(place) = INCARNATIONS.get(incarnation) else {
        return log_to(
            &settings,
            LogLevel::Warning,
            "no tracing: too many processes were forked from one another with it",
        );
    };
    // An allocator's events must not need the muxer that is being made here.
    let _confined = track_event::confine();
    if place.get().is_none() {
        // First, because a child that is forked during the next steps would wait for them.
        if let Err(error) = process_hooks::install(&HOOKS) {
            let line = format!("tracing will not notice that this process forks or exits: {error}");
            log_to(&settings, LogLevel::Warning, &line);
        }
        BEGUN.fetch_max(incarnation + 1, Ordering::AcqRel);
    }
    // A failure has been logged.
    if let Ok(muxer) = place.get_or_init(|| start(settings)) {
        muxer.post(Command::AddBackends(backends, memory));
    }
}

/// Whether [`initialize`] was called in this process.
pub fn is_initialized() -> bool {
    current().is_some()
}

/// The thread of this process, if it has one.
pub(crate) fn current() -> Option<&'static Muxer> {
    place()?.as_ref().ok().copied()
}

/// Returns the reason why this process has no thread, if starting one failed.
pub(crate) fn problem() -> Option<&'static str> {
    place()?.as_ref().err().map(String::as_str)
}

fn place() -> Option<&'static Result<&'static Muxer, String>> {
    INCARNATIONS.get(INCARNATION.load(Ordering::Acquire))?.get()
}

/// Returns the settings of the whole process, from the first [`initialize`].
pub(crate) fn settings() -> Option<&'static Settings> {
    current().map(|muxer| &muxer.settings)
}

/// Offers a data source to all services, also to services that are connected later. To be called through [`once`].
pub(crate) fn register(source: Arc<dyn Source>) -> &'static Entry {
    let entry = registry::add(source);
    post(Command::LookAtSources);
    entry
}

/// Withdraws a data source. Its instances are stopped.
pub(crate) fn unregister(entry: &'static Entry) {
    entry.withdraw();
    post(Command::LookAtSources);
}

/// The descriptor of a data source has changed. Services are told a little later, because changes seldom come alone.
pub(crate) fn source_changed(entry: &'static Entry) {
    entry.set_changed();
    post(Command::LookAtSources);
}

/// Has the SDK's thread serve `served`. Returns `served` if there is no thread.
pub(crate) fn serve(served: Box<dyn Served>) -> Result<(), Box<dyn Served>> {
    match current() {
        Some(muxer) => {
            muxer.post(Command::Serve(served));
            Ok(())
        }
        None => Err(served),
    }
}

/// Wakes the SDK's thread.
pub(crate) fn waker() -> Option<Waker> {
    current().map(|muxer| muxer.waker.clone())
}

/// Leaves a command for the thread.
pub(crate) fn post(command: Command) {
    if let Some(muxer) = current() {
        muxer.post(command);
    }
}

/// A line for the log.
pub(crate) fn log(level: LogLevel, line: &str) {
    if let Some(settings) = settings() {
        log_to(settings, level, line);
    }
}

/// Calls the application's code, and records its events as anywhere. The SDK's thread survives a panic of that code. The panic hook has then already
/// reported the message.
pub(crate) fn guarded<R>(call: impl FnOnce() -> R) -> Option<R> {
    // State that the code leaves unfinished by a panic is its own.
    track_event::unconfined(|| catch_unwind(AssertUnwindSafe(call))).ok()
}

fn log_to(settings: &Settings, level: LogLevel, line: &str) {
    match (&settings.log, level) {
        (Some(log), _) => drop(guarded(|| log(level, line))),
        // Standard error may be closed.
        (None, LogLevel::Warning) => drop(writeln!(std::io::stderr(), "[ferretto] {line}")),
        // Without a log of its own, the application does not get good news.
        (None, LogLevel::Info) => {}
    }
}

/// Whether this is the SDK's thread.
pub(crate) fn on_own_thread() -> bool {
    // A thread that is past its thread-locals is not this one.
    OWN_THREAD.try_with(Cell::get).unwrap_or(false)
}

/// Activates triggers by name, in all sessions of the connected services that wait for them. For a service that is not connected, the triggers are
/// kept for `time_to_live`, so that a trigger shortly after the start of a process is not lost; with zero they are not kept.
///
/// ```
/// ferretto::activate_triggers(&["frame-dropped"], std::time::Duration::from_secs(10));
/// ```
pub fn activate_triggers(names: &[impl AsRef<str>], time_to_live: Duration) {
    let names = names.iter().map(|name| name.as_ref().to_owned()).collect();
    let time_to_live = u64::try_from(time_to_live.as_nanos()).unwrap_or(u64::MAX);
    post(Command::ActivateTriggers {
        names,
        expiry: boot_now().saturating_add(time_to_live),
    });
}

/// The hooks for the end and the forks of the process.
static HOOKS: Hooks = Hooks {
    before_fork: || {
        // The first one waits for look-ups in the dynamic loader, and so holds nothing yet. A thread that registers a data source holds no other of these
        // locks, and the reverse.
        track_event::hold_for_fork();
        registry::hold_for_fork();
    },
    after_fork: || {
        registry::release_after_fork();
        track_event::release_after_fork();
    },
    at_exit: drain,
    in_forked_child: forked,
};

/// How far the end of the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Files that sessions of this process stream into are being written.
    #[cfg(feature = "in-process")]
    WritingFiles,
    /// They are complete.
    #[cfg(feature = "in-process")]
    FilesWritten,
    /// All is done.
    All,
}

/// How long files that sessions of this process stream into may take for their last data when the process ends. No other process has that data, so
/// this is longer than the wait for other services, which have the data in shared memory.
#[cfg(feature = "in-process")]
const LAST_WRITE_PATIENCE: Duration = Duration::from_secs(8);

/// Sends all pending requests and waits until they are sent, but no longer than `patience`, plus the time for [files](LAST_WRITE_PATIENCE) if there
/// are any. The service takes data that threads have not handed over out of the shared memory.
fn drain(patience: Duration) {
    let Some(muxer) = current() else { return };
    if on_own_thread() {
        return;
    }
    let (done, wait) = channel();
    muxer.post(Command::Drain(done));
    let told = wait.receive_within(patience);
    #[cfg(feature = "in-process")]
    if told == Ok(Drained::WritingFiles) || told.is_err() && backend::HAS_FILES.load(Ordering::Acquire) {
        // The wait for the other services does not get longer by this.
        let mut until = Instant::now() + LAST_WRITE_PATIENCE + patience;
        loop {
            match wait.receive_within(until.saturating_duration_since(Instant::now())) {
                // The news that files are being written may come only now.
                Ok(Drained::WritingFiles) => {}
                // The log may be told of losses yet, under a lock that this thread holds.
                Ok(Drained::FilesWritten) => until = Instant::now() + patience,
                Ok(Drained::All) | Err(_) => break,
            }
        }
    }
    #[cfg(not(feature = "in-process"))]
    let _ = told;
}

/// In a child that was just forked, on its only thread: there is no tracing here, until it is initialized.
fn forked() {
    let incarnation = INCARNATION.load(Ordering::Acquire);
    // A thread that was just about to start it does not exist here.
    if BEGUN.load(Ordering::Acquire) > incarnation {
        INCARNATION.store(incarnation + 1, Ordering::Release);
    }
    // The forking thread may have been the SDK's own.
    let _ = OWN_THREAD.try_with(|own| own.set(false));
    #[cfg(feature = "in-process")]
    backend::HAS_FILES.store(false, Ordering::Release);
    track::reset_after_fork();
    for entry in registry::entries() {
        entry.forget_instances();
    }
}

fn start(settings: Settings) -> Result<&'static Muxer, String> {
    if let Err(problem) = clock::choose(settings.clock) {
        log_to(&settings, LogLevel::Warning, &problem.to_string());
    }
    track::set_system_tracks(settings.merging);
    if let Some(uuid) = settings.process_uuid {
        track::set_process_uuid(uuid);
    }
    // So that no event has to compute it.
    track::process_uuid();
    track_event::register();
    let (made, is_made) = channel();
    let for_thread = settings.clone();
    let spawned = std::thread::Builder::new()
        .name("ferretto".to_owned())
        .spawn(move || {
            OWN_THREAD.with(|own| own.set(true));
            // Made here, because it cannot move between threads.
            match Reactor::new() {
                Err(error) => drop(made.send(Err(error.to_string()))),
                Ok(reactor) => {
                    let muxer: &'static Muxer = Box::leak(Box::new(Muxer {
                        inbox: Mutex::default(),
                        waker: reactor.waker(),
                        settings: for_thread,
                        status: Mutex::new(Status {
                            problem: Some("starting".to_owned()),
                            ..Status::default()
                        }),
                    }));
                    drop(made.send(Ok(muxer)));
                    let run = || {
                        // An allocator's events are traced here only as far as that makes no work for this thread.
                        let _confined = track_event::confine();
                        thread::run(muxer, reactor)
                    };
                    if guarded(run).is_none() {
                        muxer.published().problem = Some("the SDK's thread has panicked".to_owned());
                        // Nothing will complete the files any more.
                        #[cfg(feature = "in-process")]
                        backend::HAS_FILES.store(false, Ordering::Release);
                    }
                }
            }
        });
    let started = match spawned {
        Err(error) => Err(format!("cannot start the thread: {error}")),
        Ok(_) => is_made
            .receive()
            .unwrap_or_else(|| Err("the thread has ended".to_owned())),
    };
    if let Err(problem) = &started {
        log_to(&settings, LogLevel::Warning, &format!("no tracing: {problem}"));
    }
    started
}

impl Muxer {
    /// Leaves a command, and wakes the thread if this is another one.
    pub(crate) fn post(&self, command: Command) {
        lock_with_room(|| self.inbox(), |inbox| inbox, 1).push(command);
        if !on_own_thread() {
            self.waker.wake();
        }
    }

    fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut *self.inbox())
    }

    fn has_commands(&self) -> bool {
        !self.inbox().is_empty()
    }

    fn inbox(&self) -> MutexGuard<'_, Vec<Command>> {
        // Nothing panics while it holds the lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        self.published().clone()
    }

    fn published(&self) -> MutexGuard<'_, Status> {
        // Likewise.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
