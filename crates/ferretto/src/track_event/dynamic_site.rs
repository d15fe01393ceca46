//! Call sites that are made at run time, for crates that bring the events of other instrumentation here: `ferretto-tracing`.
//!
//! No part of the interface. Such a site is leaked, registered at once, and may have tags of its own beside its category's.
//! Its annotations can be encoded before the event, once for all sessions: their names have the same ids everywhere.
//! Whoever keeps an account of who listens, as `tracing` does, is told when that changes ([`observe_sessions`]).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferretto_proto::write::{DebugAnnotation as Field, TrackEvent};
use ferretto_wire::{Reader, Writer};

use super::call_site::{CallSite, UNREGISTERED};
use super::category::Category;
use super::emit::{EventName, OpenSlice, Parts, emit};
use super::event::{EventContext, EventFields};
use super::registry;
use super::wire::EventType;
use crate::debug_annotation::{AnnotationValue, DebugAnnotation};
use crate::track::TrackLike;

static OBSERVERS: Mutex<Observers> = Mutex::new(Observers {
    tell: Vec::new(),
    locks: Vec::new(),
});

struct Observers {
    /// Called on the SDK's thread.
    tell: Vec<fn()>,
    locks: Vec<ForkLocks>,
}

fn observers() -> MutexGuard<'static, Observers> {
    // Nothing panics while it holds the lock.
    OBSERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks that a child which is forked should not find held by a thread that it does not have.
#[derive(Clone, Copy, Debug)]
pub struct ForkLocks {
    /// Takes them, on a thread that is about to fork. Under them the SDK may be called, but they are not to be taken where it calls.
    pub hold: fn(),
    /// Releases them on the same thread, in the parent and in the child; without having taken them too. Frees no memory.
    pub release: fn(),
}

/// Has these held over forks from now on.
pub fn hold_over_forks(locks: ForkLocks) {
    observers().locks.push(locks);
}

/// What is held of others' and of this file's while a thread forks.
pub(super) struct HeldForFork {
    observers: MutexGuard<'static, Observers>,
    /// How many of the locks: others may have been told of meanwhile.
    locks: usize,
}

impl HeldForFork {
    /// To be called before any lock of the SDK's is taken.
    pub(super) fn hold() -> Self {
        let locks = observers().locks.clone();
        for locks in &locks {
            (locks.hold)();
        }
        Self {
            observers: observers(),
            locks: locks.len(),
        }
    }
}

impl Drop for HeldForFork {
    fn drop(&mut self) {
        for locks in &self.observers.locks[..self.locks] {
            (locks.release)();
        }
    }
}

/// Has `tell` called after each start and stop of an instance: before the service hears of a start. It runs on the SDK's thread, which
/// holds no lock then, and may not wait for that thread.
pub fn observe_sessions(tell: fn()) {
    observers().tell.push(tell);
}

pub(super) fn tell_observers() {
    let all = observers().tell.clone();
    for tell in all {
        // What others do there must not end the SDK's thread.
        let _ = std::panic::catch_unwind(tell);
    }
}

/// Whether any session records.
#[inline]
pub fn anyone_listens() -> bool {
    registry::anyone_listens()
}

impl CallSite {
    /// Makes and registers a site. `tags` decide with those of the category.
    pub fn leak(
        event: EventType,
        category: &'static str,
        tags: &'static [&'static str],
        name: &'static str,
        annotations: &'static [&'static str],
    ) -> &'static CallSite {
        let site: &'static CallSite = Box::leak(Box::new(CallSite::new(event, name, annotations)));
        registry::register_tagged_site(site, &Category::new(category), tags);
        site
    }

    /// A site for the ends of slices that get annotations only when they end: of `self`, with its annotations.
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

impl OpenSlice {
    /// Ends the slice with an event that has fields. `site` is one for ends.
    pub fn end_with(self, site: &'static CallSite, track: Option<&dyn TrackLike>, fields: &impl EventFields) {
        let listeners = self.into_listeners();
        if listeners != 0 {
            let parts = Parts {
                category: None,
                name: EventName::OfSite,
                track,
                timestamp: None,
            };
            emit(site, listeners, parts, fields);
        }
    }
}

/// What there is to keep of a slice on its thread's track, for those who know its site.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    listeners: u32,
    starts: u32,
}

impl Begun {
    /// These listeners have just recorded a beginning.
    #[inline(always)]
    pub fn now(listeners: u32) -> Self {
        Self {
            listeners,
            starts: registry::starts(),
        }
    }

    /// The slice. Each of them ends, so there is to be one.
    #[inline(always)]
    pub fn slice(self, site: &'static CallSite) -> OpenSlice {
        OpenSlice {
            site,
            begun: self.listeners,
            starts: self.starts,
            track: None,
        }
    }
}

/// Annotations of an event that is still to come, encoded.
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

    /// Adds one, whose name has this id: one of [`CallSite::annotation_ids`] of the event's site.
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

/// Annotations that are added one after the other, long before their event: of each name there is the last one, so there are no more of
/// them than there are names.
#[derive(Debug, Default)]
pub struct KeptAnnotations(Vec<u8>);

impl KeptAnnotations {
    /// Adds these, in the place of what there was of their names.
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

/// Takes annotations apart that [`EncodedAnnotations`] has put together: the ids of their names, and their bytes.
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
            self.proto().writer().raw(annotations);
        }
        self
    }
}

#[cfg(test)]
mod tests;
