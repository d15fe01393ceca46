//! Keeps slices nested for readers when packets are lost.
//!
//! Readers have a stack of slices for each track, and an end ends the topmost. So one missing event shifts all later ends:
//!
//! - A lost end is owed. When there is memory again, owed ends come before anything else, with their original times. Readers sort by time, so slices
//!   end where they did.
//! - The end of a slice whose beginning was lost is left out. A handle knows whether there was a beginning ([`OpenSlice`]); for slices without one
//!   see [`open_slices`].
//!
//! The fields of an owed end are lost. An end on a thread's track is owed by its sequence: until that thread records something or ends, the slice
//! stays open, and nothing comes after it. An end on another track is owed by the next thread that records on such a track.
//!
//! [`OpenSlice`]: super::super::emit::OpenSlice

use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_proto::write::TracePacket;

use super::super::event::EventContext;
use super::super::open_slices::{self, Fate, OwedEnd};
use super::super::wire::{self, EventType, NEEDS_INCREMENTAL_STATE};
use super::{Event, Sequence, Timestamp, TrackRef, finish_what_others_see};
use crate::track::TrackLike;

/// The most ends on its thread's track that a sequence owes, which bounds the depth of slices.
const MAX_OWED: usize = 4096;

/// Slices whose ends were neither written nor are owed any more.
static LEFT_OPEN: AtomicU64 = AtomicU64::new(0);

pub(in super::super) fn slices_left_open() -> u64 {
    LEFT_OPEN.load(Ordering::Relaxed)
}

impl Sequence {
    /// Writes an event that happens now, after everything that it refers to. False if readers will not see it.
    pub(super) fn write(&mut self, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) -> bool {
        if !matches!(event.track, TrackRef::Thread) && event.kind.is_ordered() {
            finish_what_others_see();
        }
        let now = self.now();
        match event.kind {
            EventType::LooseBegin => self.begin_loose(now, event, fill),
            EventType::LooseEnd => match self.fate_of_loose(event) {
                Fate::Recorded => self.write_end(now, event, fill),
                Fate::Lost => false,
            },
            EventType::SliceEnd => self.write_end(now, event, fill),
            _ => self.write_at(now, event, fill),
        }
    }

    /// Writes the end of a slice, now or later.
    fn write_end(&mut self, now: u64, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) -> bool {
        /// An end that is not written yet. Dropping it makes the sequence owe it, also if the user's code panics.
        struct Unwritten<'a> {
            sequence: &'a mut Sequence,
            end: OwedEnd,
        }
        impl Drop for Unwritten<'_> {
            fn drop(&mut self) {
                self.sequence.owe(self.end);
            }
        }
        let end = OwedEnd {
            track: event.track.uuid(),
            timestamp: event.timestamp.unwrap_or(Timestamp::TraceTime(now)),
        };
        let unwritten = Unwritten { sequence: self, end };
        let written = unwritten.sequence.write_at(now, event, fill);
        if written {
            std::mem::forget(unwritten);
        }
        written
    }

    /// Begins a slice without a handle.
    fn begin_loose(&mut self, now: u64, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) -> bool {
        let track = self.uuid_of(event.track);
        let may_begin = open_slices::may_begin(self.instance, track);
        let recorded = may_begin && self.write_at(now, event, fill);
        let fate = if recorded { Fate::Recorded } else { Fate::Lost };
        let more = open_slices::begin(self.instance, track, fate);
        self.heed_loose_slices(track, more);
        recorded
    }

    /// Returns the fate of the beginning of a slice without a handle that ends.
    fn fate_of_loose(&mut self, event: &Event<'_>) -> Fate {
        let track = self.uuid_of(event.track);
        let (fate, more) = open_slices::end(self.instance, track);
        self.heed_loose_slices(track, more);
        fate
    }

    pub(super) fn heed_loose_slices(&mut self, track: u64, more: bool) {
        if track == self.thread.uuid() && more != self.has_loose_slices {
            self.has_loose_slices = more;
            self.update_plain_epoch();
        }
    }

    fn uuid_of(&self, track: TrackRef<'_>) -> u64 {
        track.uuid().unwrap_or_else(|| self.thread.uuid())
    }

    /// Notes that an end was lost.
    pub(super) fn owe(&mut self, end: OwedEnd) {
        let is_owed = match end.track {
            Some(_) => open_slices::owe(self.instance, end),
            None if self.owed_ends.len() < MAX_OWED => {
                self.owed_ends.push(end);
                true
            }
            None => false,
        };
        if !is_owed {
            LEFT_OPEN.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether ends have to be written before anything else.
    pub(super) fn owes_ends(&self) -> bool {
        !self.owed_ends.is_empty() || open_slices::any_owed(self.instance.slot)
    }

    /// Writes the ends that are owed. False if some have to wait once more.
    pub(super) fn pay_owed_ends(&mut self) -> bool {
        let own = std::mem::take(&mut self.owed_ends);
        let written = self.write_ends(&own);
        if written < own.len() {
            self.owed_ends = own;
            self.owed_ends.drain(..written);
            return false;
        }
        let shared = open_slices::take_owed(self.instance);
        let written = self.write_ends(&shared);
        if written < shared.len() {
            open_slices::owe_again(self.instance, &shared[written..]);
        }
        written == shared.len()
    }

    /// Writes ends, and returns how many of them readers will see. If that is not all, the sequence starts over.
    fn write_ends(&mut self, ends: &[OwedEnd]) -> usize {
        for (index, &OwedEnd { track, timestamp }) in ends.iter().enumerate() {
            let stamp = self.stamp_of(timestamp);
            self.writer.packet(|writer| {
                let mut packet = TracePacket::new(writer);
                packet.sequence_flags(NEEDS_INCREMENTAL_STATE as u32);
                stamp.write(&mut packet);
                packet.track_event(|track_event| {
                    wire::head(track_event, EventType::SliceEnd, &[], 0);
                    if let Some(uuid) = track {
                        track_event.track_uuid(uuid);
                    }
                });
            });
            if self.has_lost() {
                self.start_over(self.epoch);
                return index;
            }
        }
        ends.len()
    }

    /// Whether there is work when the thread ends.
    pub(super) fn leaves_open(&self) -> bool {
        self.has_loose_slices || self.owes_ends()
    }

    /// Ends the sequence with its thread, while its instance records. Writes owed ends if there is memory now.
    pub(super) fn end(&mut self) {
        if self.has_loose_slices {
            open_slices::forget_track(self.instance, self.thread.uuid());
        }
        if !self.owes_ends() {
            return;
        }
        let now = self.now();
        if !((self.begun || self.begin(now)) && self.pay_owed_ends()) {
            // From now on, other threads owe the ends on shared tracks.
            LEFT_OPEN.fetch_add(self.owed_ends.len() as u64, Ordering::Relaxed);
        }
    }
}
