//! Tracks: the lines of the timeline on which events are drawn.
//!
//! An event without a track of its own is drawn on its thread's track. Activities that do not follow one thread get tracks:
//!
//! - [`Track`]: a line with a number, such as an address; also the tracks of [threads](Track::thread) and of the [process](Track::process);
//! - [`NamedTrack`]: a line with a name, at any place of the hierarchy;
//! - [`CounterTrack`]: a value over time, with its unit;
//! - [`StateTrack`]: one state at a time, from a change to the next.
//!
//! All of them are small values, to be copied, or `const` where names are static:
//!
//! ```
//! use ferretto::track::{CounterTrack, CounterUnit, NamedTrack, Track, TrackLike};
//!
//! static RENDERING: NamedTrack = NamedTrack::new("Rendering").description("What each frame is made of");
//! static SHADOWS: NamedTrack = NamedTrack::new("Shadows").child_of(&RENDERING);
//! static HEAP: CounterTrack = CounterTrack::new("Heap").unit(CounterUnit::SizeBytes);
//!
//! let request = NamedTrack::new("Request").id(8086);
//! assert_ne!(request.uuid(), SHADOWS.uuid());
//! assert_eq!(SHADOWS.parent_uuid(), RENDERING.uuid());
//! assert_eq!(HEAP.parent_uuid(), Track::process().uuid());
//! ```
//!
//! # Identity
//!
//! A track is known in a trace by its *uuid*, which is the number (or the hash of the name) combined with the uuid of its parent; unless said
//! otherwise the parent is the process. Perfetto's C++ library computes the same uuids, so if both are in one process, events that either records for
//! "the same" track land on one line.
//!
//! A `const` track cannot hold the process's uuid, which is known at run time only. So tracks hold the difference between it and their own uuid, and
//! [`TrackLike::uuid`] combines the two: a load and an exclusive or.
//!
//! Plain numbers are those of threads: `Track::new(7)` is the track of the thread 7. Below threads they need care too, because of the exclusive or: 6
//! below the thread 7 is 1 below the process, for 6 ^ 7 = 1. Addresses, and names with numbers that are no thread's, do not collide.
//!
//! # Descriptors
//!
//! A track's *descriptor* describes the meaning of its uuid: name, parent, unit. The SDK writes it before the first event on the track, and again
//! when the trace buffer may have lost it. It describes known parents with the track. [`set_thread_name`] and [`set_process_name`] change what the
//! kernel calls them. With the feature `unstable-proto`, `set_track_descriptor` replaces the descriptor of any track.

use std::fmt;

use ferretto_proto::messages::{Message, TrackDescriptor};
use ferretto_proto::write;
use ferretto_wire::Writer;

use crate::track_event;

mod counter;
mod descriptor;
mod identity;
mod kept;
mod label;
mod named;
mod names;
mod registry;
mod seen;
mod state;
#[cfg(test)]
mod tests;

pub use counter::{BuiltinCounter, CounterTrack, CounterUnit};
pub use label::{ChildOrdering, SiblingMerge};
pub use named::NamedTrack;
pub use names::{set_process_name, set_thread_name};
pub use state::StateTrack;

pub use descriptor::SystemTracks;
pub(crate) use descriptor::set_system_tracks;
pub(crate) use identity::{process_uuid, reset_after_fork, set_process_uuid};
pub(crate) use kept::KeptTrack;
pub(crate) use registry::version as descriptors_version;
pub(crate) use seen::{SeenTracks, TrackField};

/// The uuid that another one is relative to.
#[derive(Clone, Copy, Debug)]
enum Anchor {
    /// None: the number is the uuid.
    Trace,
    /// The uuid of the process.
    Process,
    /// The uuid of the calling thread.
    Thread,
}

/// A uuid, relative to its anchor.
#[derive(Clone, Copy, Debug)]
struct Uuid {
    offset: u64,
    anchor: Anchor,
}

impl Uuid {
    /// The uuid of the trace's root; in descriptors it stands for no parent.
    const ROOT: Uuid = Uuid {
        offset: 0,
        anchor: Anchor::Trace,
    };
    const PROCESS: Uuid = Uuid {
        offset: 0,
        anchor: Anchor::Process,
    };

    #[inline]
    fn resolve(self) -> u64 {
        match self.anchor {
            Anchor::Trace => self.offset,
            Anchor::Process => self.offset ^ process_uuid(),
            Anchor::Thread => self.offset ^ u64::from(identity::thread_id()) ^ process_uuid(),
        }
    }

    /// The uuid of the child with this number. Below no other track, the number is the uuid.
    const fn child(self, id: u64) -> Uuid {
        Uuid {
            offset: self.offset ^ id,
            anchor: self.anchor,
        }
    }
}

/// The meaning of a uuid, as far as the SDK describes it by itself.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The user describes it.
    Custom,
    Process,
    Thread,
}

/// A track without a name: that of a thread or the process, or a line with a number.
///
/// Events that begin on one thread and end on another are matched by their track:
///
/// ```
/// # use ferretto::track::{Track, TrackLike};
/// # let connection = [0; 100];
/// let connection = Track::from_pointer(&connection);
/// let step = Track::with_parent(1, connection);
/// assert_eq!(step.parent_uuid(), connection.uuid());
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a track does nothing until an event is recorded on it"]
pub struct Track {
    uuid: Uuid,
    parent: Uuid,
    kind: Kind,
    parent_kind: Kind,
}

impl Track {
    /// The calling thread, whichever it is at that time.
    const EACH_THREAD: Track = Track {
        uuid: Uuid {
            offset: 0,
            anchor: Anchor::Thread,
        },
        parent: Uuid::PROCESS,
        kind: Kind::Thread,
        parent_kind: Kind::Process,
    };

    /// The track with this number, below the process's. Other processes may use the same number for other things.
    ///
    /// In Perfetto's libraries, the number of a [thread](Track::for_thread) gives the same track. Numbers of requests may well be those of threads,
    /// above all in containers, where both are small. So give such numbers to a track with a name: `NamedTrack::new("Request").id(number)`.
    pub const fn new(id: u64) -> Self {
        Self::with_parent(id, Self::process())
    }

    /// The track with this number below `parent`.
    pub const fn with_parent(id: u64, parent: Track) -> Self {
        Self {
            uuid: parent.uuid.child(id),
            parent: parent.uuid,
            kind: Kind::Custom,
            parent_kind: parent.kind,
        }
    }

    /// The track with this number in the whole trace, below no other.
    ///
    /// All users of the same number, in any process, mean the same track; so choose numbers with care.
    pub const fn global(id: u64) -> Self {
        Self::with_parent(id, Self::root())
    }

    /// The track with this number below the thread that records the event: each thread has its own.
    pub const fn thread_scoped(id: u64) -> Self {
        Self::with_parent(id, Self::EACH_THREAD)
    }

    /// The track of the object at this address, below the process's.
    pub fn from_pointer<T: ?Sized>(pointer: *const T) -> Self {
        Self::new(pointer.addr() as u64)
    }

    /// The process's track, for events that belong to no single thread.
    pub const fn process() -> Self {
        Self {
            uuid: Uuid::PROCESS,
            parent: Uuid::ROOT,
            kind: Kind::Process,
            parent_kind: Kind::Custom,
        }
    }

    /// The track of the calling thread, even when it is used on another thread later.
    pub fn thread() -> Self {
        Self::for_thread(identity::thread_id())
    }

    /// The track of the thread of this process with the number `tid`, which the kernel gave it.
    pub const fn for_thread(tid: u32) -> Self {
        Self {
            uuid: Uuid {
                offset: tid as u64,
                anchor: Anchor::Process,
            },
            parent: Uuid::PROCESS,
            kind: Kind::Thread,
            parent_kind: Kind::Process,
        }
    }

    /// The root of the trace, uuid 0, below which tracks without a parent are. Its descriptor may say how processes and threads are ordered.
    pub const fn root() -> Self {
        Self {
            uuid: Uuid::ROOT,
            parent: Uuid::ROOT,
            kind: Kind::Custom,
            parent_kind: Kind::Custom,
        }
    }

    /// Returns the parent, if its kind is known.
    fn parent_track(&self) -> Option<Track> {
        match self.parent_kind {
            Kind::Custom => None,
            Kind::Process => Some(Self::process()),
            Kind::Thread => Some(Self {
                uuid: self.parent,
                parent: Uuid::PROCESS,
                kind: Kind::Thread,
                parent_kind: Kind::Process,
            }),
        }
    }
}

/// A track, as the event macros take it.
///
/// Types of your own can be tracks too. The simplest way is to forward to a track that they hold.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no track",
    note = "`trace_counter!` takes a category, a track and a value; `trace_state!` a category, a track and a state",
    note = "a counter or state without a `static` track is given a literal, or `const {{ NAME }}`"
)]
pub trait TrackLike {
    /// The track, with its identity and its place in the hierarchy.
    fn track(&self) -> Track;

    /// Writes the fields of the track's `TrackDescriptor`: uuid, parent and all other properties.
    ///
    /// Called when events are first recorded on the track, not for each. With the feature `unstable-proto`,
    /// `proto::write::TrackDescriptor::new(descriptor)` has a method for each field.
    fn write_descriptor(&self, descriptor: &mut Writer);

    /// The parent, if it is to be described whenever this track is.
    fn known_parent(&self) -> Option<Parent<'_>> {
        self.track().parent_track().map(Parent::track)
    }

    /// Whether traces contain each value of this counter as the difference to the one before ([`CounterTrack::incremental`]). Events pass the values
    /// themselves.
    fn is_incremental(&self) -> bool {
        false
    }

    /// The uuid by which events name this track.
    #[inline]
    fn uuid(&self) -> u64 {
        self.track().uuid.resolve()
    }

    /// The uuid of the parent; 0 if there is none.
    #[inline]
    fn parent_uuid(&self) -> u64 {
        self.track().parent.resolve()
    }
}

impl<T: TrackLike + ?Sized> TrackLike for &T {
    #[inline]
    fn track(&self) -> Track {
        (**self).track()
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        (**self).write_descriptor(descriptor);
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        (**self).known_parent()
    }

    fn is_incremental(&self) -> bool {
        (**self).is_incremental()
    }

    #[inline]
    fn uuid(&self) -> u64 {
        (**self).uuid()
    }

    #[inline]
    fn parent_uuid(&self) -> u64 {
        (**self).parent_uuid()
    }
}

impl TrackLike for Track {
    #[inline]
    fn track(&self) -> Track {
        *self
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        let descriptor = &mut write::TrackDescriptor::new(descriptor);
        write_identity(self, descriptor);
        match (self.kind, self.uuid.anchor) {
            (Kind::Custom, _) => {}
            (Kind::Process, _) => descriptor::write_process(descriptor),
            (Kind::Thread, Anchor::Thread) => descriptor::write_thread(identity::thread_id(), descriptor),
            // Made from a number of 32 bits.
            (Kind::Thread, _) => descriptor::write_thread(self.uuid.offset as u32, descriptor),
        }
    }
}

/// Writes the fields that all descriptors begin with.
fn write_identity(track: &impl TrackLike, descriptor: &mut write::TrackDescriptor<'_>) {
    descriptor.uuid(track.uuid());
    let parent = track.parent_uuid();
    if parent != 0 {
        descriptor.parent_uuid(parent);
    }
}

/// The parent of a track, as far as the child knows it.
#[derive(Clone, Copy, Debug)]
pub struct Parent<'a>(ParentKind<'a>);

#[derive(Clone, Copy)]
enum ParentKind<'a> {
    Track(Track),
    Named(&'a NamedTrack<'a>),
    /// A track that writes its own descriptor, and its identity.
    Like(Track, &'a (dyn TrackLike + Sync)),
}

impl fmt::Debug for ParentKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParentKind::Track(track) | ParentKind::Like(track, _) => track.fmt(f),
            ParentKind::Named(track) => track.fmt(f),
        }
    }
}

impl<'a> Parent<'a> {
    /// A track without a name.
    pub const fn track(track: Track) -> Self {
        Self(ParentKind::Track(track))
    }

    /// A track with a name.
    pub const fn named(track: &'a NamedTrack<'a>) -> Self {
        Self(ParentKind::Named(track))
    }

    /// Any track.
    pub fn like(track: &'a (dyn TrackLike + Sync)) -> Self {
        Self(ParentKind::Like(track.track(), track))
    }

    const fn identity(&self) -> Track {
        match self.0 {
            ParentKind::Track(track) | ParentKind::Like(track, _) => track,
            ParentKind::Named(track) => track.label.identity(),
        }
    }

    /// The next track up.
    fn parent(self) -> Option<Parent<'a>> {
        match self.0 {
            ParentKind::Track(track) => track.parent_track().map(Parent::track),
            ParentKind::Named(track) => Some(track.label.parent()),
            ParentKind::Like(_, track) => track.known_parent(),
        }
    }

    fn uuid(self) -> u64 {
        self.identity().uuid.resolve()
    }

    fn write_descriptor(self, descriptor: &mut Writer) {
        match self.0 {
            ParentKind::Track(track) => track.write_descriptor(descriptor),
            ParentKind::Named(track) => track.write_descriptor(descriptor),
            ParentKind::Like(_, track) => track.write_descriptor(descriptor),
        }
    }
}

/// How the values of a counter are written. Its descriptor tells readers. Other tracks have no values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    Whole,
    /// As the difference to the one before on the sequence.
    Differences,
}

impl Values {
    const fn of(is_incremental: bool) -> Self {
        if is_incremental {
            Values::Differences
        } else {
            Values::Whole
        }
    }
}

/// The destination of descriptors: a sequence of packets.
pub(crate) trait DescriptorSink {
    /// Notes that the track with this uuid is described on this sequence from now on, and how its values are written.
    fn note(&mut self, uuid: u64, values: Values);

    /// Whether it was noted.
    fn has_described(&self, uuid: u64) -> bool;

    /// Emits a packet with the descriptor that `fill` writes.
    fn emit(&mut self, fill: &mut dyn FnMut(&mut write::TrackDescriptor<'_>));
}

/// Emits the descriptors that `sequence` lacks for an event on `track`: its own, then those of its parents as far as
/// they are known.
///
/// Called before each event with a track; when there is nothing to do it costs one [`DescriptorSink::has_described`].
#[inline]
pub(crate) fn describe(track: &impl TrackLike, sequence: &mut impl DescriptorSink) {
    let uuid = track.uuid();
    if !sequence.has_described(uuid) {
        describe_new(uuid, track, sequence);
    }
}

#[cold]
fn describe_new(uuid: u64, track: &dyn TrackLike, sequence: &mut dyn DescriptorSink) {
    let registered = registry::find(uuid);
    let values = match &registered {
        Some(registered) => registered.values,
        None => Values::of(track.is_incremental()),
    };
    sequence.note(uuid, values);
    match &registered {
        Some(registered) => sequence.emit(&mut |descriptor| descriptor.writer().raw(&registered.encoded)),
        // The root needs no descriptor.
        None if uuid == 0 => {}
        None => sequence.emit(&mut |descriptor| track.write_descriptor(descriptor.writer())),
    }
    let mut known = track.known_parent();
    let mut child = uuid;
    let mut uuid = registered.map_or_else(|| track.parent_uuid(), |registered| registered.parent);
    while child != 0 {
        // A registered descriptor may have put its track elsewhere.
        known = known.filter(|known| uuid != 0 && known.uuid() == uuid);
        let registered = registry::find(uuid);
        // A parent without a description is not noted: it may be used later, and be described then.
        if (registered.is_none() && known.is_none()) || sequence.has_described(uuid) {
            return;
        }
        // It is a counter only if it was registered as a counter.
        let values = registered
            .as_ref()
            .map_or(Values::Whole, |registered| registered.values);
        sequence.note(uuid, values);
        child = uuid;
        uuid = match (&registered, &known) {
            (Some(registered), _) => {
                sequence.emit(&mut |descriptor| descriptor.writer().raw(&registered.encoded));
                registered.parent
            }
            (None, Some(known)) => {
                sequence.emit(&mut |descriptor| known.write_descriptor(descriptor.writer()));
                known.identity().parent.resolve()
            }
            (None, None) => return,
        };
        known = known.and_then(Parent::parent);
    }
}

/// Emits the descriptors that were registered since `version`, for tracks that `sequence` has described before. Returns the version for the next
/// call; a sequence that has described nothing yet begins with [`descriptors_version`].
///
/// Costs one load and a comparison when nothing was registered.
#[inline]
pub(crate) fn describe_changes(version: u64, sequence: &mut impl DescriptorSink) -> u64 {
    if version == descriptors_version() {
        version
    } else {
        describe_changes_since(version, sequence)
    }
}

#[cold]
fn describe_changes_since(version: u64, sequence: &mut dyn DescriptorSink) -> u64 {
    let changes = registry::changes_since(version);
    for (uuid, encoded) in &changes.descriptors {
        // All tracks are below the root.
        if *uuid == 0 || sequence.has_described(*uuid) {
            sequence.emit(&mut |descriptor| descriptor.writer().raw(encoded));
        }
    }
    changes.version
}

/// Returns the descriptor that is, or would be, written into traces for `track`. Of the schema's types, so [not part of the stable
/// interface](crate#stability).
///
/// To change it, modify it and pass it to [`set_track_descriptor`].
#[cfg(feature = "unstable-proto")]
#[must_use]
pub fn track_descriptor(track: &impl TrackLike) -> TrackDescriptor {
    descriptor_of(track)
}

fn descriptor_of(track: &dyn TrackLike) -> TrackDescriptor {
    let uuid = track.uuid();
    let decoded = match registry::find(uuid) {
        Some(registered) => TrackDescriptor::decode_from_slice(&registered.encoded),
        None => {
            let mut writer = Writer::new();
            track.write_descriptor(&mut writer);
            TrackDescriptor::decode_from_slice(writer.as_slice())
        }
    };
    // A track type of the application may write bytes that are no descriptor.
    decoded.unwrap_or_else(|_| TrackDescriptor {
        uuid: Some(uuid),
        ..Default::default()
    })
}

/// Has `descriptor` written for `track` from now on, in this session and later ones, on any thread, in place of the track's own descriptor.
///
/// It can order processes and threads (by the descriptor of [`Track::root`]). The uuid is filled in, and the parent
/// if `descriptor` names none. For a counter it decides whether values are written as differences (`is_incremental`), in traces that do not have the
/// counter yet. A registered descriptor takes memory until [`erase_track_descriptor`]. Of the schema's types, so [not part of the stable
/// interface](crate#stability).
///
/// ```
/// use ferretto::track::{Track, set_track_descriptor, track_descriptor};
///
/// let mut descriptor = track_descriptor(&Track::process());
/// descriptor.process.get_or_insert_default().process_labels.push("blue".to_owned());
/// set_track_descriptor(&Track::process(), descriptor);
/// assert_eq!(track_descriptor(&Track::process()).process.process_labels, ["blue"]);
/// ```
#[cfg(feature = "unstable-proto")]
pub fn set_track_descriptor(track: &impl TrackLike, descriptor: TrackDescriptor) {
    register(track, descriptor);
}

fn register(track: &dyn TrackLike, mut descriptor: TrackDescriptor) {
    let uuid = track.uuid();
    descriptor.uuid = Some(uuid);
    let parent = *descriptor.parent_uuid.get_or_insert_with(|| track.parent_uuid());
    if parent == 0 {
        descriptor.parent_uuid = None;
    }
    let counter = descriptor.counter.as_option();
    let values = Values::of(counter.is_some_and(|counter| counter.is_incremental.unwrap_or(false)));
    registry::set(uuid, parent, values, &descriptor.encode_to_vec());
    track_event::describe_changed_tracks();
}

/// Forgets the descriptor that [`set_track_descriptor`] registered for `track`. Existing traces keep it.
#[cfg(feature = "unstable-proto")]
pub fn erase_track_descriptor(track: &impl TrackLike) {
    registry::erase(track.uuid());
}
