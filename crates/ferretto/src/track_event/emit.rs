//! From a macro to the sequences of those who listen.
//!
//! What the macros expand to. None of it is inlined into the user's code but the question whether anybody listens.

use std::marker::PhantomData;

use ferretto_client::trace_writer::PreparedPacket;

use super::call_site::{CallSite, EventCategory, UNREGISTERED};
use super::event::{EventContext, EventFields};
use super::registry;
use super::sequence::{Event, Name, ThreadState, Timestamp, TrackRef};
use super::thread;
use super::wire::EventType;
use crate::track::TrackLike;

/// `sequence_flags`, an event of type `SLICE_END`, and the tag of its timestamp.
static SLICE_END: PreparedPacket = match PreparedPacket::new(&[0x68, 2, 0x5a, 2, 0x48, 2, 0x40]) {
    Some(packet) => packet,
    None => panic!("it is short"),
};

/// The slots in a mask of listeners.
#[inline(always)]
fn slots(mut listeners: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = (listeners != 0).then(|| listeners.trailing_zeros() as usize);
        listeners &= listeners.wrapping_sub(1);
        slot
    })
}

/// What the options of a macro say.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub category: Option<&'a str>,
    pub name: EventName<'a>,
    pub track: Option<&'a dyn TrackLike>,
    pub timestamp: Option<Timestamp>,
}

impl std::fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The name of an event that is not a literal.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum EventName<'a> {
    OfSite,
    Dynamic(&'a str),
    Static(&'static str),
}

/// A name that stays as it is: written once for each sequence, where other names that are no literals are written each time.
///
/// For names of which a program has a fixed number: a table of commands, say. It is remembered by its address for as long as the session lasts,
/// by each thread and by whoever reads the trace. Names that are made for each request (and leaked to be `'static`) are dynamic ones, which
/// are written as they are and forgotten:
///
/// ```
/// # let request = 7;
/// ferretto::trace_event_instant!("requests", format!("request {request}"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticName(pub &'static str);

/// What can be the name of an event.
#[doc(hidden)]
pub trait IntoEventName {
    fn event_name(&self) -> EventName<'_>;
}

impl<T: AsRef<str> + ?Sized> IntoEventName for T {
    #[inline(always)]
    fn event_name(&self) -> EventName<'_> {
        EventName::Dynamic(self.as_ref())
    }
}

impl IntoEventName for StaticName {
    #[inline(always)]
    fn event_name(&self) -> EventName<'_> {
        EventName::Static(self.0)
    }
}

/// Writes an event that is nothing but its type, category and name, on the thread's track, now.
#[doc(hidden)]
#[inline(always)]
pub fn emit_plain<C: EventCategory>(category: C, site: &'static CallSite, listeners: u32) {
    match category.dynamic_name() {
        None => emit_site(site, listeners),
        category => emit(
            site,
            listeners,
            Parts {
                category,
                name: EventName::OfSite,
                track: None,
                timestamp: None,
            },
            &(),
        ),
    }
}

#[inline(never)]
fn emit_site(site: &'static CallSite, listeners: u32) {
    thread::with(|thread| {
        for slot in slots(listeners) {
            let written = site.registered().is_some_and(|registered| {
                registered
                    .prepared
                    .as_ref()
                    .is_some_and(|prepared| thread.write_prepared(slot, prepared, Some(registered.index)))
            });
            if !written {
                let event = Event {
                    kind: site.event,
                    site: Some(site),
                    category: None,
                    name: Name::OfSite,
                    track: TrackRef::Thread,
                    timestamp: None,
                    begun: None,
                };
                thread.write(slot, &event, &|_| {});
            }
        }
    });
}

/// Writes any event.
#[doc(hidden)]
#[inline(never)]
pub fn emit(site: &'static CallSite, listeners: u32, parts: Parts<'_>, fields: &impl EventFields) {
    let name = match parts.name {
        EventName::Dynamic(name) => Some(name),
        EventName::OfSite | EventName::Static(_) => None,
    };
    let is_short =
        parts.category.is_none() && parts.timestamp.is_none() && !matches!(parts.name, EventName::Static(_));
    let uuid = parts.track.map(TrackLike::uuid);
    thread::with(|thread| {
        for slot in slots(listeners) {
            let written = is_short
                && site.registered().is_some_and(|registered| {
                    thread.write_short(slot, site.event, registered, name, uuid, fields)
                });
            if !written {
                write_long(thread, slot, site, parts, &|context| fields.write(context));
            }
        }
    });
}

#[cold]
#[inline(never)]
fn write_long(
    thread: &mut ThreadState,
    slot: usize,
    site: &'static CallSite,
    parts: Parts<'_>,
    fill: &dyn Fn(&mut EventContext<'_, '_>),
) {
    let event = Event {
        kind: site.event,
        site: Some(site),
        category: parts.category,
        name: match parts.name {
            EventName::OfSite => Name::OfSite,
            EventName::Dynamic(name) => Name::Dynamic(name),
            EventName::Static(name) => Name::Static(name),
        },
        track: parts.track.map_or(TrackRef::Thread, TrackRef::Tell),
        timestamp: parts.timestamp,
        begun: None,
    };
    thread.write(slot, &event, fill);
}

/// A slice that ends when this is dropped. Made by [`trace_slice!`](crate::trace_slice).
///
/// Slices of a thread must nest, so this stays on its thread; see [`AsyncSlice`](crate::future::AsyncSlice) for what moves.
///
/// ```compile_fail
/// let slice = ferretto::trace_slice!("files", "Load");
/// std::thread::spawn(move || drop(slice));
/// ```
#[must_use = "the slice ends when this is dropped"]
#[derive(Debug)]
pub struct Slice {
    open: OpenSlice,
    of_thread: PhantomData<*const ()>,
}

impl Slice {
    #[doc(hidden)]
    #[inline(always)]
    pub fn new(open: OpenSlice) -> Self {
        Self {
            open,
            of_thread: PhantomData,
        }
    }

    /// The same, to be ended on any thread: if it is not on this thread's track.
    #[inline(always)]
    pub(crate) fn into_open(self) -> OpenSlice {
        self.open
    }

    /// Whether anybody records it.
    pub fn is_recorded(&self) -> bool {
        self.open.is_recorded()
    }
}

/// The slice itself, whichever thread ends it.
#[doc(hidden)]
#[must_use = "the slice ends when this is dropped"]
#[derive(Debug)]
pub struct OpenSlice {
    pub(super) site: &'static CallSite,
    /// The instances that recorded the beginning.
    pub(super) begun: u32,
    /// How many instances had started by then.
    pub(super) starts: u32,
    /// Of its track, if that is not the thread's.
    pub(super) track: Option<u64>,
}

impl OpenSlice {
    /// One of which nothing was recorded.
    #[doc(hidden)]
    #[inline(always)]
    pub fn none(site: &'static CallSite) -> Self {
        Self {
            site,
            begun: 0,
            starts: 0,
            track: None,
        }
    }

    /// One whose beginning was recorded by these listeners.
    #[doc(hidden)]
    #[inline(always)]
    pub fn begun(site: &'static CallSite, listeners: u32, track: Option<&dyn TrackLike>) -> Self {
        Self {
            site,
            begun: listeners,
            starts: registry::starts(),
            track: track.map(TrackLike::uuid),
        }
    }

    /// Whether anybody records it.
    pub fn is_recorded(&self) -> bool {
        self.begun != 0
    }

    /// Those who recorded the beginning, and still record.
    #[inline(always)]
    fn listeners(&self) -> u32 {
        let mut listeners = match self.site.listeners() {
            // The category is dynamic; instances that are gone are found out below.
            UNREGISTERED => self.begun,
            listeners => self.begun & listeners,
        };
        if registry::starts() != self.starts {
            // A slot may have a new instance, which would find an end without a beginning.
            listeners = registry::started_before(listeners, self.starts);
        }
        listeners
    }

    /// Gives up the end: those who are to write it are returned.
    #[inline(always)]
    pub(super) fn into_listeners(mut self) -> u32 {
        let listeners = if self.begun == 0 { 0 } else { self.listeners() };
        self.begun = 0;
        listeners
    }

    /// Writes the end.
    #[inline(never)]
    fn end(&self) {
        let listeners = self.listeners();
        thread::with(|thread| {
            for slot in slots(listeners) {
                if self.track.is_none() && thread.write_prepared(slot, &SLICE_END, None) {
                    continue;
                }
                let event = Event {
                    kind: EventType::SliceEnd,
                    site: None,
                    category: None,
                    name: Name::OfSite,
                    track: self.track.map_or(TrackRef::Thread, TrackRef::Told),
                    timestamp: None,
                    begun: Some(self.starts),
                };
                thread.write(slot, &event, &|_| {});
            }
        });
    }
}

impl Drop for OpenSlice {
    #[inline(always)]
    fn drop(&mut self) {
        if self.begun != 0 {
            self.end();
        }
    }
}
