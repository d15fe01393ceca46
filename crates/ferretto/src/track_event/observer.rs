//! Tells the application, and layers over the SDK, when sessions start and stop to record track events, and when that changes whether a category is
//! recorded.
//!
//! Called by [`super::source`] on the SDK's thread, with no lock held. One list holds all observers; an entry leaves it when its [`Observing`] is
//! dropped.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[cfg(feature = "unstable-proto")]
use ferretto_proto::messages::{DataSourceConfig, TrackEventConfig};

use super::category::Category;
use super::registry;
use super::thread::{self, LockedConfined};
use crate::options::Backend;
use crate::source::{Instance, MAX_INSTANCES, Slot};
use crate::{muxer, process_hooks};

/// An event in the life of a session that records track events of this process.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SessionEvent<'a> {
    /// The session was set up. Nothing is recorded for it yet.
    SetUp(&'a ObservedSession),
    /// The session records, including events in the callback.
    Started(&'a ObservedSession),
    /// The session is about to stop. Events in the callback are the last in its trace.
    Stopping(&'a ObservedSession),
    /// The session has stopped recording.
    Stopped(&'a ObservedSession),
    /// The session may have overwritten data that later events refer to, and the SDK writes that data again. The application should repeat everything
    /// that it records once for each session.
    ClearsIncrementalState(&'a ObservedSession),
}

impl<'a> SessionEvent<'a> {
    /// The session of the event.
    pub fn session(&self) -> &'a ObservedSession {
        match *self {
            SessionEvent::SetUp(session)
            | SessionEvent::Started(session)
            | SessionEvent::Stopping(session)
            | SessionEvent::Stopped(session)
            | SessionEvent::ClearsIncrementalState(session) => session,
        }
    }
}

/// A session that records track events of this process: one data source of its config.
#[derive(Clone, Debug)]
pub struct ObservedSession(Instance);

impl ObservedSession {
    /// A number that is unique in this process, and the same in all events of one session.
    pub fn instance(&self) -> u32 {
        self.0.serial
    }

    /// The service whose session it is.
    pub fn backend(&self) -> Backend {
        Backend::of(self.0.connection)
    }

    /// The service's number of the session; 0 while it records for [startup](crate::startup), before a session has asked for it.
    pub fn tracing_session_id(&self) -> u64 {
        self.0.config.tracing_session_id.unwrap_or_default()
    }

    /// The track event options of the session: categories, above all. All fields are unset if the config has none. Of the schema's types, so [not
    /// part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn track_event_config(&self) -> TrackEventConfig {
        self.0
            .config
            .track_event_config
            .as_option()
            .cloned()
            .unwrap_or_default()
    }

    /// The encoded `DataSourceConfig`, as the session has it.
    pub fn encoded_config(&self) -> &[u8] {
        &self.0.encoded_config
    }

    /// The whole config of the data source. Of the schema's types, so [not part of the stable interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn config(&self) -> &DataSourceConfig {
        &self.0.config
    }
}

type Tell = Arc<dyn Fn(SessionEvent<'_>) + Send + Sync>;

static OBSERVERS: Mutex<Observers> = Mutex::new(Observers {
    all: Vec::new(),
    last_id: 0,
    sessions: [const { None }; MAX_INSTANCES],
});

struct Observers {
    all: Vec<(u64, Tell)>,
    last_id: u64,
    /// The sessions that were set up and have not stopped.
    sessions: [Option<Arc<ObservedSession>>; MAX_INSTANCES],
}

/// The list, locked.
fn observers() -> LockedConfined<Observers> {
    thread::lock_confined(|| &OBSERVERS)
}

/// The list, held while a thread forks.
pub(super) struct HeldForFork(
    #[allow(dead_code, reason = "held until it is dropped")] LockedConfined<Observers>,
);

impl HeldForFork {
    pub(super) fn hold() -> Self {
        Self(observers())
    }
}

/// Has `tell` called whenever a session starts or stops to record track events of this process, until the returned value is dropped. May be called
/// before [`initialize`](crate::initialize). `tell` is not called for sessions that record already.
///
/// `tell` runs on the SDK's thread. Starting and stopping wait for it, but a service waits no longer than its config says (5 s usually). It may
/// record events, but must not wait for that thread; session methods that would wait fail there with
/// [`SessionError::OnSdkThread`](crate::session::SessionError::OnSdkThread). It may be called once more while another thread removes it. A panic ends
/// only that call.
///
/// ```
/// use ferretto::{SessionEvent, trace_event_instant};
///
/// let _observing = ferretto::observe_sessions(|event| match event {
///     SessionEvent::Started(_) => trace_event_instant!("app", "Version", "version" => env!("CARGO_PKG_VERSION")),
///     SessionEvent::Stopping(_) => trace_event_instant!("app", "Last words"),
///     _ => {}
/// });
/// ```
pub fn observe_sessions(tell: impl Fn(SessionEvent<'_>) + Send + Sync + 'static) -> Observing {
    Observing(Some(add(Arc::new(tell))))
}

fn add(tell: Tell) -> u64 {
    let mut observers = observers();
    observers.last_id += 1;
    let id = observers.last_id;
    observers.all.push((id, tell));
    id
}

/// Has `tell` called with `true` when the first session begins to record events of `category`, and with `false` when the last one has ended, until
/// the returned value is dropped. Use it for work that only pays off while the category is recorded: a timer that samples counters, for example.
///
/// If the category is recorded already, `tell` is called with `true` soon. It runs on the SDK's thread, as
/// [`observe_sessions`]' does; when it is called with `true` it may record events for the session.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use ferretto::Category;
///
/// static MEMORY: Category = Category::new("memory").description("What is allocated where").tags(&["slow"]);
/// static SAMPLES_MEMORY: AtomicBool = AtomicBool::new(false);
///
/// let _observing = ferretto::observe_category(&MEMORY, |is_recorded| {
///     SAMPLES_MEMORY.store(is_recorded, Ordering::Relaxed);
/// });
/// ```
pub fn observe_category(
    category: &'static Category,
    tell: impl Fn(bool) + Send + Sync + 'static,
) -> Observing {
    registry::register_categories(&[category]);
    let observed = Arc::new(ObservedCategory {
        category,
        told: AtomicU32::new(0),
        tell,
    });
    let for_list = Arc::clone(&observed);
    let observing = observe_sessions(move |event| match event {
        SessionEvent::Started(_) | SessionEvent::Stopped(_) => for_list.look(),
        _ => {}
    });
    // Not here, because two threads could report in the wrong order.
    muxer::post(muxer::Command::Call(Box::new(move || observed.look())));
    observing
}

struct ObservedCategory<F> {
    category: &'static Category,
    /// One more than the [generation](process_hooks::generation) in which the observer last heard that the category is recorded; 0 if it has since
    /// heard that it is not.
    told: AtomicU32,
    tell: F,
}

impl<F: Fn(bool)> ObservedCategory<F> {
    /// Tells the observer if the state has changed. On the SDK's thread only.
    fn look(&self) {
        let recorded = process_hooks::generation() + 1;
        let now = match registry::listeners_of_category(self.category) {
            0 => 0,
            _ => recorded,
        };
        let told = self.told.swap(now, Ordering::Relaxed);
        // The observer in a forked child has heard nothing yet.
        if (told == recorded) != (now == recorded) {
            (self.tell)(now == recorded);
        }
    }
}

/// Keeps an observer registered until it is dropped. See [`observe_sessions`] and [`observe_category`].
#[must_use = "nothing is told any more once this is dropped; keep it, or call forever()"]
pub struct Observing(Option<u64>);

impl Observing {
    /// Keeps the observer for as long as the process lives.
    pub fn forever(mut self) {
        self.0 = None;
    }
}

impl Drop for Observing {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut observers = observers();
        let at = observers.all.iter().position(|(other, _)| *other == id);
        let removed = at.map(|at| observers.all.remove(at));
        drop(observers);
        // The application's values in the observer are not dropped under the lock.
        drop(removed);
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observing").field(&self.0).finish()
    }
}

/// An instance was set up.
pub(super) fn set_up(instance: &Instance) {
    let session = Arc::new(ObservedSession(instance.clone()));
    observers().sessions[instance.slot.index()] = Some(Arc::clone(&session));
    tell_all(SessionEvent::SetUp(&session));
}

/// An instance records.
pub(super) fn started(slot: Slot) {
    tell_of(slot, |session| tell_all(SessionEvent::Started(session)));
}

/// An instance is about to stop.
pub(super) fn stopping(slot: Slot) {
    tell_of(slot, |session| tell_all(SessionEvent::Stopping(session)));
}

/// An instance has stopped.
pub(super) fn stopped(slot: Slot) {
    let session = observers().sessions[slot.index()].take();
    if let Some(session) = session {
        tell_all(SessionEvent::Stopped(&session));
    }
}

/// An instance starts over with the data that packets refer to.
pub(super) fn clears_incremental_state(slot: Slot) {
    tell_of(slot, |session| {
        tell_all(SessionEvent::ClearsIncrementalState(session))
    });
}

/// This is a forked child: there are no sessions here.
pub(super) fn forget() {
    for session in &mut observers().sessions {
        // No memory is freed.
        std::mem::forget(session.take());
    }
}

fn tell_of(slot: Slot, tell: impl FnOnce(&ObservedSession)) {
    let session = observers().sessions[slot.index()].clone();
    if let Some(session) = session {
        tell(&session);
    }
}

fn tell_all(event: SessionEvent<'_>) {
    let all: Vec<Tell> = observers().all.iter().map(|(_, tell)| Arc::clone(tell)).collect();
    for tell in all {
        muxer::guarded(|| tell(event));
    }
}
