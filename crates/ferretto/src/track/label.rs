//! The common part of all tracks with a name: the name, the place in the hierarchy, and the display options.
//!
//! [`NamedTrack`](super::NamedTrack), [`CounterTrack`](super::CounterTrack) and [`StateTrack`](super::StateTrack) each
//! hold a [`Label`] and get their methods for it from [`labelled_track`].

use ferretto_proto::messages::track_descriptor::{ChildTracksOrdering, SiblingMergeBehavior};
use ferretto_proto::write;

use super::{Parent, Track, identity};

/// The order of the tracks right below a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChildOrdering {
    /// By name.
    Lexicographic,
    /// By the time of their first event.
    Chronological,
    /// By their sibling order ranks.
    Explicit,
}

/// Which tracks right below the same parent are drawn as one.
///
/// By default, viewers merge by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SiblingMerge<'a> {
    /// Tracks of the same name.
    ByName,
    /// None.
    Never,
    /// Tracks with the same key.
    ByKey(&'a str),
    /// Tracks with the same number.
    ByNumber(u64),
}

/// Traces mark dynamic names. A static name is part of the program, and no user's secret, so it passes filters.
#[derive(Clone, Copy, Debug)]
enum Name<'a> {
    Static(&'static str),
    Dynamic(&'a str),
}

/// The common part of a track with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label<'a> {
    name: Name<'a>,
    /// The hash of name and type, before the id is added.
    hash: u64,
    id: u64,
    parent: Parent<'a>,
    /// The track that results from hash, id and parent, computed when they are set.
    track: Track,
    pub(super) description: Option<&'a str>,
    pub(super) sibling_order_rank: Option<i32>,
    pub(super) child_ordering: Option<ChildOrdering>,
    pub(super) sibling_merge: Option<SiblingMerge<'a>>,
}

impl<'a> Label<'a> {
    /// `magic` keeps types of tracks apart: a counter may have the name of a slice track.
    pub(super) const fn new(name: &'static str, magic: u64) -> Self {
        Self::with_name(Name::Static(name), name, magic)
    }

    pub(super) const fn dynamic(name: &'a str, magic: u64) -> Self {
        Self::with_name(Name::Dynamic(name), name, magic)
    }

    const fn with_name(name: Name<'a>, text: &str, magic: u64) -> Self {
        let hash = identity::fnv1a(text.as_bytes()) ^ magic;
        Self {
            name,
            hash,
            id: 0,
            parent: Parent::track(Track::process()),
            track: Track::new(hash),
            description: None,
            sibling_order_rank: None,
            child_ordering: None,
            sibling_merge: None,
        }
    }

    pub(super) const fn set_id(&mut self, id: u64) {
        self.id = id;
        self.track = Track::with_parent(self.hash ^ self.id, self.parent.identity());
    }

    pub(super) const fn set_parent(&mut self, parent: Parent<'a>) {
        self.parent = parent;
        self.track = Track::with_parent(self.hash ^ self.id, self.parent.identity());
    }

    pub(super) const fn parent(&self) -> Parent<'a> {
        self.parent
    }

    #[inline]
    pub(super) const fn identity(&self) -> Track {
        self.track
    }

    /// Writes all fields that do not depend on the type of the track.
    pub(super) fn write(&self, descriptor: &mut write::TrackDescriptor<'_>) {
        super::write_identity(&self.track, descriptor);
        match self.name {
            Name::Static(name) => descriptor.static_name(name),
            Name::Dynamic(name) => descriptor.name(name),
        };
        if let Some(description) = self.description {
            descriptor.description(description);
        }
        if let Some(rank) = self.sibling_order_rank {
            descriptor.sibling_order_rank(rank);
        }
        if let Some(ordering) = self.child_ordering {
            descriptor.child_ordering(match ordering {
                ChildOrdering::Lexicographic => ChildTracksOrdering::LEXICOGRAPHIC,
                ChildOrdering::Chronological => ChildTracksOrdering::CHRONOLOGICAL,
                ChildOrdering::Explicit => ChildTracksOrdering::EXPLICIT,
            });
        }
        match self.sibling_merge {
            None => {}
            Some(SiblingMerge::ByName) => {
                descriptor.sibling_merge_behavior(SiblingMergeBehavior::SIBLING_MERGE_BEHAVIOR_BY_TRACK_NAME);
            }
            Some(SiblingMerge::Never) => {
                descriptor.sibling_merge_behavior(SiblingMergeBehavior::SIBLING_MERGE_BEHAVIOR_NONE);
            }
            Some(SiblingMerge::ByKey(key)) => {
                descriptor
                    .sibling_merge_behavior(SiblingMergeBehavior::SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY)
                    .sibling_merge_key(key);
            }
            Some(SiblingMerge::ByNumber(key)) => {
                descriptor
                    .sibling_merge_behavior(SiblingMergeBehavior::SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY)
                    .sibling_merge_key_int(key);
            }
        }
    }
}

/// Gives a type with a field `label: Label<'a>` and the methods `write_particulars` and `tells_differences` the methods of a track with a name.
macro_rules! labelled_track {
    ($Track:ident) => {
        impl<'a> $Track<'a> {
            /// Sets a number, which tells the track from others of the same name and parent.
            pub const fn id(mut self, id: u64) -> Self {
                self.label.set_id(id);
                self
            }

            /// Sets the number to an address: that of the object that the track shows.
            pub fn pointer<T: ?Sized>(self, pointer: *const T) -> Self {
                self.id(pointer.addr() as u64)
            }

            /// Puts it below `parent`.
            pub const fn parent(mut self, parent: $crate::track::Track) -> Self {
                self.label.set_parent($crate::track::Parent::track(parent));
                self
            }

            /// Puts it below `parent`, which is described in the trace whenever this track is.
            pub const fn child_of(mut self, parent: &'a $crate::track::NamedTrack<'a>) -> Self {
                self.label.set_parent($crate::track::Parent::named(parent));
                self
            }

            /// Below the thread that records the event: each thread has its own. To stay on one thread's, use
            #[doc = concat!("[`parent`](", stringify!($Track), "::parent) with [`Track::thread`](crate::track::Track::thread).")]
            pub const fn thread_scoped(self) -> Self {
                self.parent($crate::track::Track::EACH_THREAD)
            }

            /// Puts it below no other track: one track for all processes in the trace that use the name (and id).
            pub const fn global(self) -> Self {
                self.parent($crate::track::Track::root())
            }

            /// Sets the description, which viewers show on demand.
            pub const fn description(mut self, description: &'a str) -> Self {
                self.label.description = Some(description);
                self
            }

            /// Sets its rank among tracks with the same parent, lowest first, if the parent orders its children
            /// [explicitly](crate::track::ChildOrdering::Explicit). 0 by default.
            pub const fn sibling_order_rank(mut self, rank: i32) -> Self {
                self.label.sibling_order_rank = Some(rank);
                self
            }

            /// Sets the order of the tracks right below it.
            pub const fn child_ordering(mut self, ordering: $crate::track::ChildOrdering) -> Self {
                self.label.child_ordering = Some(ordering);
                self
            }

            /// Sets which tracks with the same parent are drawn as one with it.
            pub const fn sibling_merge(mut self, merge: $crate::track::SiblingMerge<'a>) -> Self {
                self.label.sibling_merge = Some(merge);
                self
            }
        }

        impl $crate::track::TrackLike for $Track<'_> {
            #[inline]
            fn track(&self) -> $crate::track::Track {
                self.label.identity()
            }

            fn write_descriptor(&self, descriptor: &mut ferretto_wire::Writer) {
                let descriptor = &mut ferretto_proto::write::TrackDescriptor::new(descriptor);
                self.label.write(descriptor);
                self.write_particulars(descriptor);
            }

            fn known_parent(&self) -> Option<$crate::track::Parent<'_>> {
                Some(self.label.parent())
            }

            fn is_incremental(&self) -> bool {
                self.tells_differences()
            }
        }
    };
}

pub(super) use labelled_track;
