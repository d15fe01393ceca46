//! Tracks with a name that are in one state at a time.

use ferretto_proto::write;

use super::label::{Label, labelled_track};

/// Upstream's, so that names give the uuids that its libraries compute.
const MAGIC: u64 = 0x2e23_98ec_92e8_9138;

/// A track that is in one state at a time: each event on it names the state that holds until the next.
///
/// States can be read by Perfetto's UI or trace processor of version 57 or later. See [`trace_state!`](crate::trace_state).
///
/// ```
/// use ferretto::track::StateTrack;
///
/// static CONNECTION: StateTrack = StateTrack::new("Connection").description("As the protocol's states are called");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a track does nothing until an event is recorded on it"]
pub struct StateTrack<'a> {
    label: Label<'a>,
}

impl<'a> StateTrack<'a> {
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

    fn write_particulars(&self, descriptor: &mut write::TrackDescriptor<'_>) {
        // The presence of this empty message is enough.
        descriptor.state(|_| {});
    }

    const fn tells_differences(&self) -> bool {
        false
    }
}

labelled_track!(StateTrack);
