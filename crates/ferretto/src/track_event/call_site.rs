//! Call sites: what is known of an event before it happens, and who listens.
//!
//! Each use of a macro has one, in a `static`. Its mask of listening instances is the only thing looked at while nothing is
//! recorded. The first time it is looked at, the site is registered ([`super::registry`]): from then on the mask is kept up to
//! date by whoever starts and stops instances, and the ids and the encoded front of the site's packets are there.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ferretto_client::trace_writer::PreparedPacket;

use super::category::{Category, DynamicCategory};
use super::registry;
use super::wire::{AnnotationFront, EventType, ShortFront};
use crate::off::OFF;

/// In the mask of a site that is not registered yet.
pub(super) const UNREGISTERED: u32 = 1 << 31;

/// The static part of an event. Made by the macros.
#[doc(hidden)]
#[derive(Debug)]
pub struct CallSite {
    /// A bit for each instance that listens, or [`UNREGISTERED`].
    listeners: AtomicU32,
    pub(super) event: EventType,
    /// Empty if the name is not known before the event.
    pub(super) name: &'static str,
    pub(super) annotations: &'static [&'static str],
    registered: OnceLock<Registered>,
}

/// What registration finds out.
#[derive(Debug)]
pub(super) struct Registered {
    /// The site's bit in the sets of what sequences have emitted.
    pub(super) index: u32,
    /// Ids of its categories: more than one for a group.
    pub(super) categories: Box<[u32]>,
    /// Id of its name; 0 if that is not known.
    pub(super) name: u32,
    /// Ids of its annotations' names.
    pub(super) annotations: Box<[u32]>,
    /// How short packets with its events begin.
    pub(super) front: Option<ShortFront>,
    /// How their arguments begin.
    pub(super) annotation_fronts: Box<[AnnotationFront]>,
    /// The whole packet but the time, if there is nothing else in it and it is short.
    pub(super) prepared: Option<PreparedPacket>,
}

impl CallSite {
    /// A site for events of this type.
    pub const fn new(event: EventType, name: &'static str, annotations: &'static [&'static str]) -> Self {
        Self {
            listeners: AtomicU32::new(UNREGISTERED),
            event,
            name,
            annotations,
            registered: OnceLock::new(),
        }
    }

    /// The instances that record its events.
    #[inline(always)]
    pub(super) fn listeners(&self) -> u32 {
        if OFF {
            0
        } else {
            self.listeners.load(Ordering::Relaxed)
        }
    }

    pub(super) fn set_listeners(&self, listeners: u32) {
        self.listeners.store(listeners, Ordering::Release);
    }

    /// What registration found out; `None` before.
    #[inline(always)]
    pub(super) fn registered(&self) -> Option<&Registered> {
        // Whoever has seen listeners sees what registration found out before it let them in.
        fence(Ordering::Acquire);
        self.registered.get()
    }

    pub(super) fn set_registered(&self, registered: Registered) {
        // Registered under the registry's lock, so once: nothing is freed here.
        let _ = self.registered.set(registered);
    }
}

/// What can stand for the category of an event.
#[doc(hidden)]
pub trait EventCategory: Copy {
    /// The instances that record events of `site`, if this is their category.
    fn listeners(self, site: &'static CallSite) -> u32;

    /// Likewise, for the beginning of a slice whose end follows what is decided here.
    #[inline(always)]
    fn slice_listeners(self, site: &'static CallSite) -> u32 {
        self.listeners(site)
    }

    /// Whether any instance records events of `site`. None of them happens.
    #[inline(always)]
    fn is_enabled(self, site: &'static CallSite) -> bool {
        self.listeners(site) != 0
    }

    /// Its name, if it is not the site's.
    #[inline(always)]
    fn dynamic_name(&self) -> Option<&str> {
        None
    }
}

impl EventCategory for &'static str {
    #[inline(always)]
    fn listeners(self, site: &'static CallSite) -> u32 {
        match site.listeners() {
            0 => 0,
            listeners if listeners & UNREGISTERED == 0 => listeners,
            _ => registry::register_site(site, &Category::new(self)),
        }
    }
}

impl EventCategory for &'static Category {
    #[inline(always)]
    fn listeners(self, site: &'static CallSite) -> u32 {
        match site.listeners() {
            0 => 0,
            listeners if listeners & UNREGISTERED == 0 => listeners,
            _ => registry::register_site(site, self),
        }
    }
}

impl EventCategory for DynamicCategory<'_> {
    #[inline]
    fn listeners(self, site: &'static CallSite) -> u32 {
        if !registry::anyone_listens() {
            return 0;
        }
        registry::listeners_of_dynamic(site, self.0)
    }

    #[inline(always)]
    fn dynamic_name(&self) -> Option<&str> {
        Some(self.0)
    }
}
