//! Tracks that outlive the values by which they were chosen.

use std::iter::successors;

use ferretto_wire::Writer;

use super::{Anchor, Kind, Parent, Track, TrackLike, Uuid, identity};

/// A track with its descriptor, and those of the tracks above it as far as they are known.
#[derive(Debug)]
pub(crate) struct KeptTrack {
    track: Track,
    /// `None` if the track describes itself.
    descriptor: Option<Box<[u8]>>,
    parent: Option<Box<KeptTrack>>,
}

impl KeptTrack {
    /// Keeps `track` as it is on this thread.
    pub(crate) fn of(track: &dyn TrackLike) -> Self {
        let parents: Vec<Parent<'_>> = successors(track.known_parent(), |parent| parent.parent()).collect();
        let parent = parents.into_iter().rev().fold(None, |above, parent| {
            let descriptor = |writer: &mut Writer| parent.write_descriptor(writer);
            Some(Box::new(Self::new(parent.identity(), descriptor, above)))
        });
        Self::new(track.track(), |writer| track.write_descriptor(writer), parent)
    }

    fn new(track: Track, describe: impl FnOnce(&mut Writer), parent: Option<Box<KeptTrack>>) -> Self {
        let descriptor = matches!(track.kind, Kind::Custom).then(|| {
            let mut descriptor = Writer::new();
            describe(&mut descriptor);
            descriptor.as_slice().into()
        });
        Self {
            track: track.of_this_thread(),
            descriptor,
            parent,
        }
    }
}

impl TrackLike for KeptTrack {
    fn track(&self) -> Track {
        self.track
    }

    fn write_descriptor(&self, descriptor: &mut Writer) {
        match &self.descriptor {
            Some(kept) => descriptor.raw(kept),
            None => self.track.write_descriptor(descriptor),
        }
    }

    fn known_parent(&self) -> Option<Parent<'_>> {
        self.parent.as_deref().map(|parent| Parent::like(parent))
    }
}

impl Track {
    /// The same track, on whichever thread it is used, if it is one that each thread has.
    fn of_this_thread(self) -> Self {
        Self {
            uuid: self.uuid.of_this_thread(),
            parent: self.parent.of_this_thread(),
            ..self
        }
    }
}

impl Uuid {
    fn of_this_thread(self) -> Self {
        match self.anchor {
            Anchor::Trace | Anchor::Process => self,
            Anchor::Thread => Self {
                offset: self.offset ^ u64::from(identity::thread_id()),
                anchor: Anchor::Process,
            },
        }
    }
}
