//! Call sites that are made at run time, for crates that forward the events of other instrumentation: `ferretto-tracing`.
//!
//! No part of the interface. Such a site is leaked, registered at once, and may have tags of its own beside its category's. Its annotations can be
//! encoded before the event, once for all sessions: their names have the same ids everywhere. Such a crate can have its own locks held over forks
//! ([`hold_over_forks`]).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferretto_proto::write::{DebugAnnotation as Field, TrackEvent};
use ferretto_wire::{Reader, Writer};

use super::call_site::{CallSite, UNREGISTERED};
use super::category::Category;
use super::event::EventContext;
use super::observer;
use super::registry;
use super::wire::EventType;
use crate::debug_annotation::{AnnotationValue, DebugAnnotation};
use crate::off::OFF;

static FORK_LOCKS: Mutex<Vec<ForkLocks>> = Mutex::new(Vec::new());

fn fork_locks() -> MutexGuard<'static, Vec<ForkLocks>> {
    // Nothing panics while it holds the lock.
    FORK_LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks that a forked child must not find held by a thread that it does not have.
#[derive(Clone, Copy, Debug)]
pub struct ForkLocks {
    /// Takes the locks, on a thread that is about to fork. Code under these locks may call the SDK, but the SDK's callbacks must not take them.
    pub hold: fn(),
    /// Releases the locks on the same thread, in the parent and in the child, even if it did not take them. Frees no memory.
    pub release: fn(),
}

/// Has these locks held over forks from now on.
pub fn hold_over_forks(locks: ForkLocks) {
    fork_locks().push(locks);
}

/// The locks that a thread holds while it forks: those of other crates, of this file and of the observers.
pub(super) struct HeldForFork {
    all: MutexGuard<'static, Vec<ForkLocks>>,
    _observers: observer::HeldForFork,
    /// The number of locks that were taken: others may have been added since.
    locks: usize,
}

impl HeldForFork {
    /// To be called before any lock of the SDK's is taken.
    pub(super) fn hold() -> Self {
        let locks = fork_locks().clone();
        for locks in &locks {
            (locks.hold)();
        }
        Self {
            all: fork_locks(),
            _observers: observer::HeldForFork::hold(),
            locks: locks.len(),
        }
    }
}

impl Drop for HeldForFork {
    fn drop(&mut self) {
        for locks in &self.all[..self.locks] {
            (locks.release)();
        }
    }
}

/// Whether any session records.
#[inline]
pub fn anyone_listens() -> bool {
    registry::anyone_listens()
}

impl CallSite {
    /// Makes and registers a site. `tags` count together with those of the category.
    pub fn leak(
        event: EventType,
        category: &'static str,
        tags: &'static [&'static str],
        name: &'static str,
        annotations: &'static [&'static str],
    ) -> &'static CallSite {
        let site: &'static CallSite = Box::leak(Box::new(CallSite::new(event, name, annotations)));
        if !OFF {
            registry::register_tagged_site(site, &Category::new(category), tags);
        }
        site
    }

    /// Makes a site for the ends of slices that get annotations only when they end: of `self`, with its annotations.
    pub fn leak_end(&self) -> &'static CallSite {
        Self::leak(EventType::SliceEnd, "", &[], "", self.annotations)
    }

    /// The instances that record its events, if it is registered.
    #[inline(always)]
    pub fn recorded_by(&self) -> u32 {
        self.listeners() & !UNREGISTERED
    }

    /// Ids of the names of its annotations; none before it is registered.
    pub fn annotation_ids(&self) -> &[u32] {
        self.registered()
            .map_or(&[], |registered| &registered.annotations)
    }
}

/// Annotations of a later event, encoded.
#[derive(Default)]
pub struct EncodedAnnotations(Writer);

impl fmt::Debug for EncodedAnnotations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedAnnotations")
            .field("len", &self.0.len())
            .finish()
    }
}

impl EncodedAnnotations {
    /// None yet.
    pub const fn new() -> Self {
        Self(Writer::new())
    }

    /// Adds an annotation whose name has this id: one of [`CallSite::annotation_ids`] of the event's site.
    #[inline]
    pub fn push(&mut self, name: u32, value: impl DebugAnnotation) {
        self.0.nested(TrackEvent::DEBUG_ANNOTATIONS, |annotation| {
            annotation.varint_field(Field::NAME_IID, u64::from(name));
            value.write_annotation(AnnotationValue::new(annotation));
        });
    }

    /// The bytes, for [`EventContext::encoded_annotations`].
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// Forgets them; keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Annotations that are added one after the other, long before their event. Only the last one of each name is kept, so there are no more than there
/// are names.
#[derive(Debug, Default)]
pub struct KeptAnnotations(Vec<u8>);

impl KeptAnnotations {
    /// Adds these annotations, which replace existing ones of the same names.
    pub fn keep(&mut self, new: &EncodedAnnotations) {
        if !self.0.is_empty() {
            let replaced: Vec<u64> = split(new.as_bytes()).map(|(name, _)| name).collect();
            let mut left = Vec::with_capacity(self.0.len() + new.as_bytes().len());
            for (name, annotation) in split(&self.0) {
                if !replaced.contains(&name) {
                    left.extend_from_slice(annotation);
                }
            }
            self.0 = left;
        }
        self.0.extend_from_slice(new.as_bytes());
    }

    /// The bytes, for [`EventContext::encoded_annotations`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Splits annotations that [`EncodedAnnotations`] has put together: the ids of their names, and their bytes.
fn split(annotations: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    Reader::new(annotations).map_while(|field| {
        let field = field.ok()?;
        let name = Reader::new(field.value.as_bytes()?).next()?.ok()?;
        Some((name.value.as_varint()?, field.raw))
    })
}

impl EventContext<'_, '_> {
    /// Adds annotations that were encoded before, with ids of this event's site.
    #[doc(hidden)]
    pub fn encoded_annotations(&mut self, annotations: &[u8]) -> &mut Self {
        if self.has_annotations() {
            self.writer().raw(annotations);
        }
        self
    }
}

#[cfg(test)]
mod tests;
