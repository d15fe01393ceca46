//! Tracks with a name, for slices and instants.

use ferretto_proto::write;

use super::label::{Label, labelled_track};

/// Upstream's, so that names give the uuids that its libraries compute.
const MAGIC: u64 = 0xcd57_1ec5_ead3_7024;

/// A track with a name, for slices and instants.
///
/// It is below the process by default. The same name below the same parent (with the same id) is the same track.
///
/// ```
/// use ferretto::track::{ChildOrdering, NamedTrack, SiblingMerge, TrackLike};
///
/// static QUEUES: NamedTrack = NamedTrack::new("Queues").child_ordering(ChildOrdering::Explicit);
/// static URGENT: NamedTrack = NamedTrack::new("Urgent").child_of(&QUEUES).sibling_order_rank(-1);
///
/// let name = format!("Tenant {}", 7);
/// let tenant = NamedTrack::dynamic(&name).child_of(&QUEUES).sibling_merge(SiblingMerge::Never);
/// assert_eq!(tenant.parent_uuid(), URGENT.parent_uuid());
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a track does nothing until an event is recorded on it"]
pub struct NamedTrack<'a> {
    pub(super) label: Label<'a>,
}

impl<'a> NamedTrack<'a> {
    /// A track with a name that is part of the program.
    pub const fn new(name: &'static str) -> Self {
        Self {
            label: Label::new(name, MAGIC),
        }
    }

    /// A track with a name made at run time. Traces mark such names, because they may hold private data.
    pub const fn dynamic(name: &'a str) -> Self {
        Self {
            label: Label::dynamic(name, MAGIC),
        }
    }

    fn write_particulars(&self, _: &mut write::TrackDescriptor<'_>) {}

    const fn tells_differences(&self) -> bool {
        false
    }
}

labelled_track!(NamedTrack);
