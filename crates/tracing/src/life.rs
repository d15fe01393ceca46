//! Lives of spans: one slice each from when it was made until it is closed, on a lane.

use ferretto::private::{BeginMark, EventName, Fill, KeptAnnotations, OpenSlice, Parts, Timestamp, emit};
use ferretto::track::NamedTrack;
use ferretto::{EventContext, clock};
use tracing_core::span::Id;

use crate::sites::Site;
use crate::thread::Beginning;

/// The slice, while it is open.
#[derive(Debug)]
pub(crate) struct Life {
    site: &'static Site,
    slice: OpenSlice,
    place: LanePlace,
    /// The number that marks the slices of the span on threads as belonging to this one.
    pub(crate) correlation: u64,
    /// Arguments that were recorded since it began.
    pub(crate) late: KeptAnnotations,
    /// Whether the life of a child stands on the same lane above this one.
    pub(crate) has_tenant: bool,
}

/// The place of a life.
#[derive(Clone, Debug)]
pub(crate) struct LanePlace {
    /// The site that the lane belongs to.
    owner: &'static Site,
    lane: u64,
    /// The span whose life is right below on the lane, if it is not the lane's own.
    host: Option<Id>,
}

impl LanePlace {
    /// A lane where nothing is from `time` on.
    pub(crate) fn own(site: &'static Site, time: u64) -> Self {
        Self {
            owner: site,
            lane: site.lanes.take(time),
            host: None,
        }
    }

    /// The place above the life of a parent, which must be notified.
    pub(crate) fn above(&self, parent: Id) -> Self {
        Self {
            host: Some(parent),
            ..*self
        }
    }

    pub(crate) fn track(&self) -> NamedTrack<'static> {
        self.owner.track.id(self.lane)
    }
}

impl Life {
    /// Begins the life of a span, as of `time`.
    pub(crate) fn begin(
        site: &'static Site,
        place: LanePlace,
        time: u64,
        correlation: u64,
        beginning: &Beginning<'_>,
    ) -> Life {
        let listeners = site.call_site.recorded_by();
        let track = place.track();
        let mark = BeginMark::new();
        let mut recorded = 0;
        if listeners != 0 {
            let parts = Parts {
                category: None,
                name: EventName::OfSite,
                track: Some(&track),
                timestamp: Some(Timestamp::TraceTime(time)),
            };
            let fill = Fill::new(|event: &mut EventContext<'_, '_>| beginning.write(site, event));
            recorded = emit(site.call_site, listeners, parts, &(fill, ()));
        }
        Life {
            site,
            slice: OpenSlice::begun(site.call_site, mark, recorded, Some(&track)),
            place,
            correlation,
            late: KeptAnnotations::default(),
            has_tenant: false,
        }
    }

    pub(crate) fn place(&self) -> &LanePlace {
        &self.place
    }

    /// Whether all instances that record the span now have its life.
    pub(crate) fn is_known_to(&self, listeners: u32) -> bool {
        self.slice.is_recorded_by_all(listeners)
    }

    /// Ends it. Returns the parent that has its place on the lane back, if there is one.
    pub(crate) fn end(self) -> Option<Id> {
        if self.late.is_empty() {
            drop(self.slice);
        } else {
            let track = self.place.track();
            let late = self.late;
            let fill = Fill::new(|event: &mut EventContext<'_, '_>| {
                event.encoded_annotations(late.as_bytes());
            });
            self.slice.end_with(self.site.end(), Some(&track), &(fill, ()));
        }
        if self.place.host.is_none() {
            self.place.owner.lanes.give_back(self.place.lane, clock::now());
        }
        self.place.host
    }
}
