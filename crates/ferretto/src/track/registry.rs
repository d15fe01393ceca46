//! The descriptors that users have registered for tracks, by uuid.
//!
//! Asked when a sequence describes a track for the first time, never for each event. Sequences that have already written another descriptor learn of
//! changes by [`version`], one load, and [`changes_since`]. The thread that holds the lock is confined ([`crate::track_event`]): an event of the
//! allocator might be on a track that has to be looked up here.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::Values;
use crate::track_event::{self, LockedConfined};

/// A registered descriptor.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    /// The `TrackDescriptor`.
    pub(super) encoded: Arc<[u8]>,
    /// The uuid of the parent; 0 if there is none.
    pub(super) parent: u64,
    /// For a counter: how its values are written.
    pub(super) values: Values,
    version: u64,
}

#[derive(Debug, Default)]
struct Registry {
    by_uuid: HashMap<u64, Registered, BuildHasherDefault<DefaultHasher>>,
    /// Versions, ascending, and the uuids whose descriptors changed with them. Outdated entries, which have changed again or were erased, are no more
    /// than the others.
    history: Vec<(u64, u64)>,
}

impl Registry {
    /// Drops outdated entries from the history, when they may outnumber the others.
    fn tidy(&mut self) {
        let Registry { by_uuid, history } = self;
        if history.len() > 2 * by_uuid.len() {
            history.retain(|(version, uuid)| {
                by_uuid
                    .get(uuid)
                    .is_some_and(|registered| registered.version == *version)
            });
        }
    }
}

/// A registry and, in a forked child, its replacement. The child cannot know whether a thread that no longer exists was holding the lock, and the
/// registered descriptors are about the parent's process and threads anyway.
#[derive(Debug, Default)]
struct Generation {
    registry: Mutex<Registry>,
    next: OnceLock<Box<Generation>>,
}

static FIRST: Generation = Generation {
    registry: Mutex::new(Registry {
        by_uuid: HashMap::with_hasher(BuildHasherDefault::new()),
        history: Vec::new(),
    }),
    next: OnceLock::new(),
};
/// Forks between the process that `FIRST` belonged to and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);
/// Counts changes. Written under the lock.
static VERSION: AtomicU64 = AtomicU64::new(0);

/// The registry, locked.
fn lock() -> LockedConfined<Registry> {
    track_event::lock_confined(|| {
        let mut generation = &FIRST;
        for _ in 0..FORKS.load(Ordering::Relaxed) {
            generation = generation.next.get_or_init(Box::default);
        }
        &generation.registry
    })
}

/// The number of changes: 0 if nothing was ever registered.
#[inline]
pub(crate) fn version() -> u64 {
    VERSION.load(Ordering::Acquire)
}

/// The descriptor of this track, if it was registered.
pub(super) fn find(uuid: u64) -> Option<Registered> {
    if version() == 0 {
        return None;
    }
    lock().by_uuid.get(&uuid).cloned()
}

/// Registers `encoded`, a `TrackDescriptor`.
pub(super) fn set(uuid: u64, parent: u64, values: Values, encoded: &[u8]) {
    let encoded = encoded.into();
    let mut registry = lock();
    let version = version() + 1;
    let registered = Registered {
        encoded,
        parent,
        values,
        version,
    };
    registry.by_uuid.insert(uuid, registered);
    registry.history.push((version, uuid));
    registry.tidy();
    VERSION.store(version, Ordering::Release);
}

/// Forgets the descriptor of this track.
pub(super) fn erase(uuid: u64) {
    let mut registry = lock();
    registry.by_uuid.remove(&uuid);
    registry.tidy();
}

/// The result of [`changes_since`].
#[derive(Debug)]
pub(super) struct Changes {
    /// Uuids with their encoded `TrackDescriptor`s, in the order in which they were registered.
    pub(super) descriptors: Vec<(u64, Arc<[u8]>)>,
    /// The version to ask with next.
    pub(super) version: u64,
}

/// The descriptors that were registered or changed after `version`.
pub(super) fn changes_since(version: u64) -> Changes {
    let registry = lock();
    let news = registry
        .history
        .partition_point(|(changed, _)| *changed <= version);
    let descriptors = registry.history[news..]
        .iter()
        .filter_map(|&(changed, uuid)| {
            let registered = registry.by_uuid.get(&uuid)?;
            (registered.version == changed).then(|| (uuid, Arc::clone(&registered.encoded)))
        })
        .collect();
    Changes {
        descriptors,
        version: self::version(),
    }
}

/// Abandons the registry of the parent: see [`Generation`].
pub(super) fn abandon() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Takes the lock, reports it, and never releases it.
#[cfg(test)]
pub(super) fn hold_for_ever(holding: impl FnOnce()) {
    let _registry = lock();
    holding();
    loop {
        std::thread::park();
    }
}
