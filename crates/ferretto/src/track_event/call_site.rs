//! Call sites: the constant part of an event, and the instances that listen to it.
//!
//! Each use of a macro has one, in a `static`. While nothing is recorded, an event looks only at its mask of listening instances. The first look
//! registers the site ([`super::registry`]). From then on the registry updates the mask whenever instances start or stop, and the site holds its ids
//! and the encoded front of its packets.
//!
//! Where each event may have another category ([`is_same_for_all`](super::written_category::is_same_for_all)), a site is never registered itself, but
//! has a *variant* for each category: a site of its own, made when somebody first listens. Events look theirs up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use ferretto_client::trace_writer::PreparedPacket;

use super::category::{Category, DynamicCategory};
use super::registry;
use super::wire::{AnnotationFront, EventType, ShortFront};
use crate::off::OFF;

mod variants;

use variants::Variant;

/// The mask of a site that is not registered yet.
pub(super) const UNREGISTERED: u32 = 1 << 31;

/// The static part of an event. Made by the macros.
#[doc(hidden)]
#[derive(Debug)]
pub struct CallSite {
    /// A bit for each instance that listens, or [`UNREGISTERED`].
    listeners: AtomicU32,
    pub(super) event: EventType,
    /// The name; empty if it is not known before the event.
    pub(super) name: &'static str,
    pub(super) annotations: &'static [&'static str],
    registered: OnceLock<Registered>,
    /// The first variant, if this is a site with variants, or else the next one of the same site.
    variants: OnceLock<&'static Variant>,
}

/// The results of registration.
#[derive(Debug)]
pub(super) struct Registered {
    /// The site's bit in the sets of sites that sequences have emitted.
    pub(super) index: u32,
    /// Ids of its categories: more than one for a group.
    pub(super) categories: Box<[u32]>,
    /// Id of its name; 0 if that is not known.
    pub(super) name: u32,
    /// Ids of its annotations' names.
    pub(super) annotations: Box<[u32]>,
    /// The first bytes of short packets with its events.
    pub(super) front: Option<ShortFront>,
    /// The first bytes of their arguments.
    pub(super) annotation_fronts: Box<[AnnotationFront]>,
    /// The whole packet without the time, if the event has nothing else and is short.
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
            variants: OnceLock::new(),
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

    /// The results of registration; `None` before.
    #[inline(always)]
    pub(super) fn registered(&self) -> Option<&Registered> {
        // A thread that has seen listeners also sees the results, which were stored before the listeners.
        fence(Ordering::Acquire);
        self.registered.get()
    }

    pub(super) fn set_registered(&self, registered: Registered) {
        // Registered under the registry's lock, so once: nothing is freed here.
        let _ = self.registered.set(registered);
    }
}

/// A type that can be the category of an event.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a category",
    label = "neither a `&'static str` nor a `&'static Category`",
    note = "for a name that is made at run time there is `DynamicCategory(&name)`"
)]
pub trait EventCategory: Copy {
    /// The instances that record events of `site`, if this is their category.
    fn listeners(self, site: &'static CallSite) -> u32;

    /// The same for the beginning of a slice, whose end follows this decision.
    #[inline(always)]
    fn slice_listeners(self, site: &'static CallSite) -> u32 {
        self.listeners(site)
    }

    /// Whether any instance records events of `site`, without recording one.
    #[inline(always)]
    fn is_enabled(self, site: &'static CallSite) -> bool {
        self.listeners(site) != 0
    }

    /// The category's name, if it is not the site's.
    #[inline(always)]
    fn dynamic_name(&self) -> Option<&str> {
        None
    }

    /// The variant of `site` for this category, if each event of `site` may have another. `None` if it cannot be made now.
    fn variant(self, site: &'static CallSite) -> Option<&'static CallSite>;
}

/// Returns the site of an event of this category, and the instances that record the event. `SAME` says that the category is the same for all events
/// of the place in the code whose site is given.
#[doc(hidden)]
#[inline(always)]
pub fn listeners<const SAME: bool, C: EventCategory>(
    category: C,
    site: &'static CallSite,
) -> (&'static CallSite, u32) {
    listeners_by::<SAME, C>(category, site, C::listeners)
}

/// The same for the beginning of a slice.
#[doc(hidden)]
#[inline(always)]
pub fn slice_listeners<const SAME: bool, C: EventCategory>(
    category: C,
    site: &'static CallSite,
) -> (&'static CallSite, u32) {
    listeners_by::<SAME, C>(category, site, C::slice_listeners)
}

/// Whether any instance records events of the category, without recording one.
#[doc(hidden)]
#[inline(always)]
pub fn is_enabled<const SAME: bool, C: EventCategory>(category: C, site: &'static CallSite) -> bool {
    let enabled = |category: C, site| u32::from(category.is_enabled(site));
    listeners_by::<SAME, C>(category, site, enabled).1 != 0
}

#[inline(always)]
fn listeners_by<const SAME: bool, C: EventCategory>(
    category: C,
    site: &'static CallSite,
    ask: impl FnOnce(C, &'static CallSite) -> u32,
) -> (&'static CallSite, u32) {
    if SAME {
        return (site, ask(category, site));
    }
    if !registry::anyone_listens() {
        return (site, 0);
    }
    match category.variant(site) {
        Some(variant) => (variant, ask(category, variant)),
        None => (site, 0),
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

    #[inline]
    fn variant(self, site: &'static CallSite) -> Option<&'static CallSite> {
        site.variant_for(&Category::new(self), 0)
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

    #[inline]
    fn variant(self, site: &'static CallSite) -> Option<&'static CallSite> {
        site.variant_for(self, 0)
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
    fn variant(self, site: &'static CallSite) -> Option<&'static CallSite> {
        // Its events name their category themselves.
        Some(site)
    }

    #[inline(always)]
    fn dynamic_name(&self) -> Option<&str> {
        Some(self.0)
    }
}
