//! All data sources of this process, in a list that only grows. It is read without a lock, and a data source may be registered before the thread
//! starts or after. A fork waits for a registration that is under way ([`once`]), so a forked child finds none half done.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::source::Source;

static FIRST: OnceLock<&'static Entry> = OnceLock::new();

/// Held while a data source is registered.
static REGISTERING: Mutex<()> = Mutex::new(());

fn registering() -> MutexGuard<'static, ()> {
    REGISTERING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has `register`, which registers a data source, fill the place, once.
pub(crate) fn once<T>(place: &'static OnceLock<T>, register: impl FnOnce() -> T) -> &'static T {
    match place.get() {
        Some(registered) => registered,
        None => {
            let _registering = registering();
            place.get_or_init(register)
        }
    }
}

thread_local! {
    /// The lock that this thread holds while it forks.
    static HELD_FOR_FORK: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// This thread is about to fork.
pub(super) fn hold_for_fork() {
    let registering = registering();
    // A thread that is past its thread-locals forks as it can.
    let _ = HELD_FOR_FORK.try_with(|held| *held.borrow_mut() = Some(registering));
}

/// This thread has forked, as parent or child.
pub(super) fn release_after_fork() {
    let _ = HELD_FOR_FORK.try_with(|held| held.borrow_mut().take());
}

/// A data source that was registered.
pub(crate) struct Entry {
    pub(super) source: Arc<dyn Source>,
    /// Unique in the process. Services tell data sources of the same name apart by it.
    pub(super) id: u64,
    /// It is offered to services.
    offered: AtomicBool,
    /// Its descriptor has changed since it was last asked for.
    changed: AtomicBool,
    next: OnceLock<&'static Entry>,
}

impl Entry {
    pub(super) fn is_offered(&self) -> bool {
        self.offered.load(Ordering::Acquire)
    }

    /// Whether the descriptor has changed since the last call.
    pub(super) fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn set_changed(&self) {
        self.changed.store(true, Ordering::Release);
    }

    /// See [`Source::forget`].
    pub(super) fn forget_instances(&self) {
        self.source.forget();
    }

    pub(super) fn withdraw(&self) {
        self.offered.store(false, Ordering::Release);
    }
}

/// Adds a data source. It stays in the list for good, even when it is withdrawn: data sources are few, and a program declares them in its source
/// code.
pub(super) fn add(source: Arc<dyn Source>) -> &'static Entry {
    let entry: &'static Entry = Box::leak(Box::new(Entry {
        source,
        id: random_id(),
        offered: AtomicBool::new(true),
        changed: AtomicBool::new(false),
        next: OnceLock::new(),
    }));
    let mut link = &FIRST;
    while link.set(entry).is_err() {
        link = &link.wait().next;
    }
    entry
}

/// All data sources, in the order of their registration.
pub(super) fn entries() -> impl Iterator<Item = &'static Entry> {
    let mut link = &FIRST;
    std::iter::from_fn(move || {
        let entry = *link.get()?;
        link = &entry.next;
        Some(entry)
    })
}

/// Returns a number that is not 0, and most likely unique.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library draws keys from the system for each thread, and counts on from there.
    RandomState::new().hash_one(std::process::id()).max(1)
}
