//! Events on a thread that is confined: only the fast paths may be taken, because the others lock and allocate ([`super::super::thread`]).
//!
//! Events that the fast paths cannot write are left out. Slices nest all the same: the sequence counts the events that it left out, and makes up for
//! them on its next slow path.

use ferretto_proto::write::TracePacket;
use ferretto_wire::{Cursor, ShortMessage};

use super::super::open_slices::{self, Fate, OwedEnd};
use super::super::timestamp::Timestamp;
use super::super::wire::{EventType, NEEDS_INCREMENTAL_STATE};
use super::{NO_EPOCH, PreparedPacket, Sequence};
use crate::clock::Anchor;
use crate::track::TrackLike;

/// Beginnings and ends of the thread's track that were left out since the thread is confined. They do not include the end of a slice with a handle
/// whose beginning was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Beginnings without a handle whose ends are still to come.
    begins: u32,
    /// Ends without a handle of slices that began before.
    loose_ends: u32,
    /// Ends of slices whose beginning was recorded.
    ends: u32,
}

/// A packet that moves the incremental clock on, by this many nanoseconds.
struct TimePasses(u64);

impl ShortMessage for TimePasses {
    fn put<'w>(self, packet: Cursor<'w>) -> Option<Cursor<'w>> {
        packet
            .varint_field(TracePacket::SEQUENCE_FLAGS, NEEDS_INCREMENTAL_STATE)?
            .varint_field(TracePacket::TIMESTAMP, self.0)
    }
}

impl Sequence {
    /// Reads the time, and moves the incremental clock on if the last event is so long ago that the fast paths cannot express the time since.
    pub(super) fn catch_up(&mut self) {
        let now = self.now();
        // The fast paths need a time, and this piece may be over before they use it, or there may be no counter.
        self.anchor = Anchor::standing_still(now);
        let Some(since_last) = now.checked_sub(self.last) else {
            return;
        };
        if self.plain_epoch == NO_EPOCH || since_last < u64::from(PreparedPacket::MAX_END) {
            return;
        }
        if self.writer.write_short(TimePasses(since_last)) {
            self.last = now;
        }
    }

    /// Ends the use of the sequence on a confined thread.
    pub(super) fn end_confined_use(&mut self) {
        self.anchor = Anchor::EXPIRED;
    }

    /// Counts an event on the thread's track that is left out.
    pub(super) fn leave_out(&mut self, kind: EventType) {
        let left_out = &mut self.left_out;
        match kind {
            EventType::LooseBegin => left_out.begins += 1,
            EventType::LooseEnd if left_out.begins > 0 => left_out.begins -= 1,
            EventType::LooseEnd => left_out.loose_ends += 1,
            EventType::SliceEnd => left_out.ends += 1,
            _ => return,
        }
        self.update_plain_epoch();
    }

    /// Makes up for events that were left out, as far as possible: slices whose beginning is in the trace end now. The ends of slices whose beginning
    /// is not will be left out.
    #[cold]
    pub(super) fn make_up(&mut self, now: u64) {
        let left_out = std::mem::take(&mut self.left_out);
        let track = self.thread.uuid();
        let mut ends = left_out.ends;
        for _ in 0..left_out.loose_ends {
            let (fate, more) = open_slices::end(self.instance, track);
            self.heed_loose_slices(track, more);
            ends += u32::from(fate == Fate::Recorded);
        }
        for _ in 0..left_out.begins {
            let more = open_slices::begin(self.instance, track, Fate::Lost);
            self.heed_loose_slices(track, more);
        }
        for _ in 0..ends {
            self.owe(OwedEnd {
                track: None,
                timestamp: Timestamp::TraceTime(now),
            });
        }
        self.update_plain_epoch();
    }
}
