//! The path from a macro to the sequences of the listening instances.
//!
//! The macros expand to calls of these functions. Only the check whether anybody listens is inlined into the user's code.

use std::marker::PhantomData;

use ferretto_client::trace_writer::PreparedPacket;

use super::call_site::{CallSite, EventCategory, UNREGISTERED};
use super::event::{EventContext, EventFields};
use super::registry;
use super::sequence::{Event, Name, ThreadState, TrackRef};
use super::thread;
use super::timestamp::Timestamp;
use super::wire::EventType;
use crate::source::MAX_INSTANCES;
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

/// Has one listener record an event, and then all others; returns the listeners that recorded it. `others` should be a call that is not inlined: in a
/// loop over all listeners compilers would prepare the invariant parts first, at the cost of the usual case of one listener.
#[inline(always)]
pub(super) fn one_and_others(
    listeners: u32,
    record: impl FnOnce(usize) -> bool,
    others: impl FnOnce(u32) -> u32,
) -> u32 {
    let rest = listeners & listeners.wrapping_sub(1);
    let recorded = match record(listeners.trailing_zeros() as usize) {
        true => listeners ^ rest,
        false => 0,
    };
    if rest == 0 {
        return recorded;
    }
    recorded | others(rest)
}

/// The options of a macro.
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

/// A name that does not change. It is written once for each sequence; other names that are no literals are written with each event.
///
/// For names of which a program has a fixed number: a table of commands, for example. Each thread, and each reader of the trace, remembers it by its
/// address for as long as the session lasts. Names that are made for each request (and leaked to be `'static`) should be dynamic names, which are
/// written with the event and forgotten:
///
/// ```
/// # let request = 7;
/// ferretto::trace_event_instant!("requests", format!("request {request}"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticName(pub &'static str);

/// A type that can be the name of an event.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the name of an event",
    label = "neither text nor a `StaticName`",
    note = "`trace_state!` takes a category, a track and a state"
)]
pub trait IntoEventName {
    fn event_name(&self) -> EventName<'_>;
}

#[diagnostic::do_not_recommend]
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

/// Writes an event that has only its type, category and name, on the thread's track, now. Returns the listeners that recorded it. A listener that has
/// no memory for it does not.
#[doc(hidden)]
#[inline(always)]
pub fn emit_plain<C: EventCategory>(category: C, site: &'static CallSite, listeners: u32) -> u32 {
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
fn emit_site(site: &'static CallSite, listeners: u32) -> u32 {
    let record = |slot| {
        let recorded = thread::with(|thread| {
            let written = site.registered().is_some_and(|registered| {
                registered
                    .prepared
                    .as_ref()
                    .is_some_and(|prepared| thread.write_prepared(slot, prepared, Some(registered.index)))
            });
            written || write_plain(thread, slot, site)
        });
        recorded == Some(true)
    };
    one_and_others(listeners, record, |others| emit_site_to_others(site, others))
}

#[cold]
#[inline(never)]
fn emit_site_to_others(site: &'static CallSite, listeners: u32) -> u32 {
    emit_site(site, listeners)
}

#[cold]
#[inline(never)]
fn write_plain(thread: &mut ThreadState, slot: usize, site: &'static CallSite) -> bool {
    let event = Event {
        kind: site.event,
        site: Some(site),
        category: None,
        name: Name::OfSite,
        track: TrackRef::Thread,
        timestamp: None,
        begun: None,
    };
    thread.write(slot, &event, &|_| {})
}

/// Writes any event. Returns the listeners that recorded it, as [`emit_plain`] does.
#[doc(hidden)]
#[inline(always)]
pub fn emit(site: &'static CallSite, listeners: u32, parts: Parts<'_>, fields: &impl EventFields) -> u32 {
    // Most of this is constant where it is inlined.
    match (parts.category, parts.timestamp, parts.name) {
        (None, None, EventName::OfSite) => emit_now(site, listeners, None, parts.track, fields),
        (None, None, EventName::Dynamic(name)) => emit_now(site, listeners, Some(name), parts.track, fields),
        _ => emit_long(site, listeners, parts, &|context| fields.write(context)),
    }
}

/// Writes an event that happens now, of its site's category, and with its site's name unless it has another.
#[inline(never)]
fn emit_now(
    site: &'static CallSite,
    listeners: u32,
    name: Option<&str>,
    track: Option<&dyn TrackLike>,
    fields: &impl EventFields,
) -> u32 {
    let uuid = track.map(TrackLike::uuid);
    let record = |slot| {
        short_or_long(slot, site, site.event, name, uuid, fields, |thread| {
            let parts = Parts {
                category: None,
                name: name.map_or(EventName::OfSite, EventName::Dynamic),
                track,
                timestamp: None,
            };
            write_long(thread, slot, site, parts, &|context| fields.write(context))
        })
    };
    one_and_others(listeners, record, |others| {
        emit_to_others(site, others, name, track, fields)
    })
}

/// Writes an event for one listener: in the short way, or else in the way of `long`. Returns whether it was recorded.
#[inline(always)]
pub(super) fn short_or_long(
    slot: usize,
    site: &'static CallSite,
    kind: EventType,
    name: Option<&str>,
    track: Option<u64>,
    fields: &impl EventFields,
    long: impl FnOnce(&mut ThreadState) -> bool,
) -> bool {
    let recorded = thread::with(|thread| {
        let written = site
            .registered()
            .is_some_and(|registered| thread.write_short(slot, kind, registered, name, track, fields));
        written || long(thread)
    });
    recorded == Some(true)
}

#[cold]
#[inline(never)]
fn emit_to_others(
    site: &'static CallSite,
    listeners: u32,
    name: Option<&str>,
    track: Option<&dyn TrackLike>,
    fields: &impl EventFields,
) -> u32 {
    emit_now(site, listeners, name, track, fields)
}

#[inline(never)]
fn emit_long(
    site: &'static CallSite,
    listeners: u32,
    parts: Parts<'_>,
    fill: &dyn Fn(&mut EventContext<'_, '_>),
) -> u32 {
    let parts = Parts {
        timestamp: parts.timestamp.and_then(Timestamp::or_now),
        ..parts
    };
    let recorded = thread::with(|thread| {
        let mut recorded = listeners;
        for slot in slots(listeners) {
            if !write_long(thread, slot, site, parts, fill) {
                recorded &= !(1 << slot);
            }
        }
        recorded
    });
    recorded.unwrap_or(0)
}

#[cold]
#[inline(never)]
fn write_long(
    thread: &mut ThreadState,
    slot: usize,
    site: &'static CallSite,
    parts: Parts<'_>,
    fill: &dyn Fn(&mut EventContext<'_, '_>),
) -> bool {
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
    thread.write(slot, &event, fill)
}

/// A slice that ends when this is dropped. Made by [`trace_slice!`](crate::trace_slice).
///
/// Slices of a thread must nest, so this stays on its thread; see [`AsyncSlice`](crate::future::AsyncSlice) for slices that move.
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

    /// The same slice, to be ended on any thread. It must not be on this thread's track.
    #[inline(always)]
    pub(crate) fn into_open(self) -> OpenSlice {
        self.open
    }

    /// Whether anybody records it.
    pub fn is_recorded(&self) -> bool {
        self.open.is_recorded()
    }
}

/// The count of starts before the beginning of a slice is written. Make it before the call of [`emit`] or [`emit_plain`] that writes the beginning.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct BeginMark {
    /// The number of instances that have started so far.
    starts: u32,
}

impl BeginMark {
    #[doc(hidden)]
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            starts: registry::starts(),
        }
    }

    /// The beginning, now that these instances have recorded it.
    #[doc(hidden)]
    #[inline(always)]
    pub fn recorded_by(self, recorded: u32) -> Begun {
        let begun = Begun {
            recorded,
            starts: self.starts,
        };
        match registry::starts() == self.starts {
            true => begun,
            false => begun.while_others_started(),
        }
    }
}

impl Default for BeginMark {
    fn default() -> Self {
        Self::new()
    }
}

/// The beginning of a slice that was written.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The instances that recorded it. In others an end would end another slice.
    recorded: u32,
    /// These had started by this count of starts, and any that takes one's slot starts after it.
    starts: u32,
}

impl Begun {
    /// Returns the slice on its thread's track, for callers that keep its site themselves. Each one ends when it is dropped, so make one only.
    #[doc(hidden)]
    #[inline(always)]
    pub fn slice(self, site: &'static CallSite) -> OpenSlice {
        OpenSlice {
            site,
            begun: self.recorded,
            starts: self.starts,
            track: None,
        }
    }

    /// Instances started while the beginning was written. Either it was this thread's first event for one of them, or one took the slot of another
    /// that has recorded the beginning. The thread's sequences know the instances that they belong to.
    #[cold]
    #[inline(never)]
    fn while_others_started(self) -> Self {
        // A confined thread begins no sequences, so its instances had started before.
        if self.recorded == 0 || thread::is_confined() {
            return self;
        }
        let mut serials = [None; MAX_INSTANCES];
        thread::with_existing(|thread| serials = thread.instances());
        let (recorded, starts) = registry::still_active(self.recorded, &serials);
        Self { recorded, starts }
    }
}

/// The slice itself, whichever thread ends it.
#[doc(hidden)]
#[must_use = "the slice ends when this is dropped"]
#[derive(Debug)]
pub struct OpenSlice {
    pub(super) site: &'static CallSite,
    /// See [`Begun`].
    pub(super) begun: u32,
    /// See [`Begun`].
    pub(super) starts: u32,
    /// The uuid of its track, if that is not the thread's.
    pub(super) track: Option<u64>,
}

impl OpenSlice {
    /// A slice that was not recorded.
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

    /// A slice whose beginning these instances recorded, as [`emit`] returns them.
    #[doc(hidden)]
    #[inline(always)]
    pub fn begun(
        site: &'static CallSite,
        mark: BeginMark,
        recorded: u32,
        track: Option<&dyn TrackLike>,
    ) -> Self {
        let Begun { recorded, starts } = mark.recorded_by(recorded);
        Self {
            site,
            begun: recorded,
            starts,
            track: track.map(TrackLike::uuid),
        }
    }

    /// Whether anybody records it.
    #[inline(always)]
    pub fn is_recorded(&self) -> bool {
        self.begun != 0
    }

    /// Whether each of these listeners has recorded the beginning.
    pub fn is_recorded_by_all(&self, listeners: u32) -> bool {
        listeners & !self.begun == 0 && listeners & !self.listeners() == 0
    }

    /// The listeners that recorded the beginning, and still record.
    #[inline(always)]
    fn listeners(&self) -> u32 {
        let mut listeners = match self.site.listeners() {
            // The category is dynamic; instances that are gone are sorted out below.
            UNREGISTERED => self.begun,
            listeners => self.begun & listeners,
        };
        if registry::starts() != self.starts {
            // A slot may have a new instance, which would find an end without a beginning.
            listeners = registry::started_before(listeners, self.starts);
        }
        listeners
    }

    /// Gives up the end, and returns the listeners that it is to be written for.
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
        if listeners != 0 {
            self.end_for(listeners);
        }
    }

    #[inline(always)]
    fn end_for(&self, listeners: u32) -> u32 {
        let record = |slot| {
            let recorded = thread::with(|thread| {
                let written = self.track.is_none() && thread.write_prepared(slot, &SLICE_END, None);
                written || self.write_end(thread, slot)
            });
            recorded == Some(true)
        };
        one_and_others(listeners, record, |others| self.end_for_others(others))
    }

    #[cold]
    #[inline(never)]
    fn end_for_others(&self, listeners: u32) -> u32 {
        slots(listeners).fold(0, |recorded, slot| recorded | self.end_for(1 << slot))
    }

    #[cold]
    #[inline(never)]
    fn write_end(&self, thread: &mut ThreadState, slot: usize) -> bool {
        let event = Event {
            kind: EventType::SliceEnd,
            site: None,
            category: None,
            name: Name::OfSite,
            track: self.track.map_or(TrackRef::Thread, TrackRef::Told),
            timestamp: None,
            begun: Some(self.starts),
        };
        // If it is lost, the sequence owes it.
        thread.write(slot, &event, &|_| {})
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
