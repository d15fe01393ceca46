//! In the place of `muxer.rs` where nothing is recorded: there is no thread that could take commands.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::handles::OwnedSocket;
use crate::options::{LogLevel, Options, Settings};
use crate::source::Source;
use crate::startup::StartupRequest;
use crate::status::Status;

/// The handle of the SDK's thread, which does not exist.
#[derive(Debug)]
pub(crate) enum Muxer {}

/// The commands to the SDK's thread.
pub(crate) enum Command {
    StartUp(StartupRequest),
    AbortStartup(u64),
    Sync(Box<dyn FnOnce() + Send>),
    Call(Box<dyn FnOnce() + Send>),
}

/// The waker of the SDK's thread.
#[derive(Clone, Debug)]
pub(crate) enum Waker {}

/// A connection to a service.
pub(crate) enum Stream {}

/// Something with work on the thread.
pub(crate) trait Served: Send {}

/// A data source that was registered.
pub(crate) struct Entry;

/// Sets up tracing for this process. In this build [nothing is recorded](crate#where-nothing-is-recorded): it does nothing, and
/// [`status`](crate::status()) says so.
pub fn initialize(options: Options) {
    drop(options);
}

/// Whether [`initialize`] has set up tracing in this process. Never in this build, which records nothing.
pub fn is_initialized() -> bool {
    false
}

/// Activates triggers by name. In this build no sessions wait for them.
pub fn activate_triggers(_names: &[impl AsRef<str>], _time_to_live: Duration) {}

pub(crate) fn current() -> Option<&'static Muxer> {
    None
}

pub(crate) fn problem() -> Option<&'static str> {
    None
}

pub(crate) fn settings() -> Option<&'static Settings> {
    None
}

pub(crate) fn once<T>(place: &'static OnceLock<T>, register: impl FnOnce() -> T) -> &'static T {
    place.get_or_init(register)
}

pub(crate) fn register(_: Arc<dyn Source>) -> &'static Entry {
    &Entry
}

pub(crate) fn unregister(_: &'static Entry) {}

pub(crate) fn source_changed(_: &'static Entry) {}

pub(crate) fn serve(served: Box<dyn Served>) -> Result<(), Box<dyn Served>> {
    Err(served)
}

pub(crate) fn waker() -> Option<Waker> {
    None
}

pub(crate) fn post(_: Command) {}

pub(crate) fn log(_: LogLevel, _: &str) {}

pub(crate) fn guarded<R>(call: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

pub(crate) fn on_own_thread() -> bool {
    false
}

impl Muxer {
    pub(crate) fn post(&self, _: Command) {
        match *self {}
    }

    pub(crate) fn status(&self) -> Status {
        match *self {}
    }
}

impl Waker {
    pub(crate) fn wake(&self) {
        match *self {}
    }
}

impl Stream {
    pub(crate) fn from_fd(_: OwnedSocket) -> io::Result<Stream> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
