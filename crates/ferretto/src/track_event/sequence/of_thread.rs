//! The sequences of one thread, and the shortest ways into them.
//!
//! Called through [`super::super::thread`], which lends the state to one caller at a time. An event that needs no descriptions first is written right
//! here, from bytes that its site has prepared; all others go to [`Sequence::write`].

use std::sync::atomic::Ordering;

use ferretto_client::trace_writer::PreparedPacket;
use ferretto_proto::write::{TracePacket, TrackEvent};
use ferretto_wire::{Cursor, ShortMessage};

use super::super::call_site::Registered;
use super::super::event::{EventContext, EventFields};
use super::super::open_slices::{self, InstanceKey};
use super::super::registry::{self, EPOCHS};
use super::super::thread;
use super::super::wire::{AnnotationFront, EventType, ShortFront};
use super::{Event, Name, Sequence, TrackRef, finish_what_others_see};
use crate::process_hooks;
use crate::source::{MAX_INSTANCES, slots};
use crate::track::{self, TrackField};

/// The event for the end of a thread. `begun` is 0, a count at which no instance had started, so that no sequence begins for it.
const END_OF_THREAD: Event<'_> = Event {
    kind: EventType::SliceEnd,
    site: None,
    category: None,
    name: Name::OfSite,
    track: TrackRef::Thread,
    timestamp: None,
    begun: Some(0),
};

/// A thread's state for all instances.
pub(in super::super) struct ThreadState {
    sequences: [Option<Box<Sequence>>; MAX_INSTANCES],
    /// The process that it belongs to: a forked child has a copy.
    process: u32,
    /// Whether its thread is confined ([`super::thread`]): it must not allocate, free or wait.
    pub(in super::super) confined: bool,
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        self.leave_parents_memory();
        for slot in 0..MAX_INSTANCES {
            let leaves_open = self.sequences[slot]
                .as_ref()
                .is_some_and(|sequence| sequence.leaves_open());
            // Sequences of instances that are over have no work.
            if leaves_open && let Some(sequence) = self.sequence(slot, &END_OF_THREAD) {
                sequence.end();
            }
        }
    }
}

impl ThreadState {
    pub(in super::super) fn new() -> Self {
        Self {
            sequences: [const { None }; MAX_INSTANCES],
            process: process_hooks::generation(),
            confined: false,
        }
    }

    /// The serials of the instances that the sequences are for.
    pub(in super::super) fn instances(&self) -> [Option<u32>; MAX_INSTANCES] {
        std::array::from_fn(|slot| Some(self.sequences[slot].as_ref()?.instance.serial))
    }

    /// Prepares the sequences for use on a confined thread: does everything for the fast paths that takes neither memory nor a lock.
    pub(in super::super) fn begin_confined_use(&mut self) {
        self.confined = true;
        for sequence in self.sequences.iter_mut().flatten() {
            sequence.catch_up();
        }
    }

    /// In a forked child the sequences are the parent's. Dropping them would return chunks that the parent is still writing.
    fn leave_parents_memory(&mut self) {
        if self.process != process_hooks::generation() {
            std::mem::forget(std::mem::take(&mut self.sequences));
            self.process = process_hooks::generation();
        }
    }

    /// Ends the use of the state on a confined thread: the event was written, or left out.
    pub(in super::super) fn end_confined_use(&mut self) {
        self.confined = false;
        for sequence in self.sequences.iter_mut().flatten() {
            sequence.end_confined_use();
        }
    }

    /// Writes an event that is prepared except for its time, which is now. False if something has to be written first.
    #[inline(always)]
    pub(in super::super) fn write_prepared(
        &mut self,
        slot: usize,
        prepared: &PreparedPacket,
        site: Option<u32>,
    ) -> bool {
        let Some(Some(sequence)) = self.sequences.get_mut(slot) else {
            return false;
        };
        if sequence.plain_epoch != EPOCHS[slot].load(Ordering::Relaxed) {
            return false;
        }
        if site.is_some_and(|site| !sequence.told.sites.contains(site)) {
            return false;
        }
        let Some(now) = sequence.anchor.now() else {
            return false;
        };
        // A time before the last one gives a very large difference.
        let since_last = now.wrapping_sub(sequence.last);
        if since_last >= u64::from(PreparedPacket::MAX_END) {
            return false;
        }
        let written = sequence.writer.write_prepared(prepared, since_last as u32);
        if written {
            sequence.last = now;
        }
        written
    }

    /// Writes an event with few and simple fields, on a track that readers know, now. False if something has to be written first, or the event is not
    /// that simple.
    #[inline(always)]
    pub(in super::super) fn write_short(
        &mut self,
        slot: usize,
        kind: EventType,
        site: &Registered,
        name: Option<&str>,
        track: Option<u64>,
        fields: &impl EventFields,
    ) -> bool {
        let Some(Some(sequence)) = self.sequences.get_mut(slot) else {
            return false;
        };
        let Some(front) = &site.front else {
            return false;
        };
        if sequence.plain_epoch != EPOCHS[slot].load(Ordering::Relaxed)
            || !sequence.told.sites.contains(site.index)
            || sequence.tracks_version != track::descriptors_version()
        {
            return false;
        }
        let track = match track {
            None => None,
            Some(uuid) => match sequence.told.tracks.field(uuid) {
                None => return false,
                field => field,
            },
        };
        if track.is_some() && kind.is_ordered() {
            if open_slices::any_owed(slot) || (kind.is_loose() && open_slices::any_lost(slot)) {
                return false;
            }
            finish_what_others_see();
        }
        let Some(now) = sequence.anchor.now() else {
            return false;
        };
        let since_last = now.wrapping_sub(sequence.last);
        if since_last >= u64::from(PreparedPacket::MAX_END) {
            return false;
        }
        let written = sequence.writer.write_short(ShortEvent {
            front,
            name,
            track,
            fields,
            annotation_fronts: &site.annotation_fronts,
            since_last: since_last as u32,
        });
        if written {
            sequence.last = now;
        }
        written
    }

    /// Writes any event, with the fields that `fill` adds, after everything that it refers to. False if readers will not see it.
    #[must_use]
    pub(in super::super) fn write(
        &mut self,
        slot: usize,
        event: &Event<'_>,
        fill: &dyn Fn(&mut EventContext<'_, '_>),
    ) -> bool {
        if self.confined {
            self.leave_out(slot, event);
            return false;
        }
        match self.sequence(slot, event) {
            Some(sequence) => sequence.write(event, fill),
            None => false,
        }
    }

    /// Hands all packets of the sequences to their services.
    pub(in super::super) fn commit(&mut self) {
        self.leave_parents_memory();
        for sequence in self.sequences.iter_mut().flatten() {
            sequence.writer.flush();
        }
    }

    /// Drops an event of a thread that is confined.
    #[cold]
    fn leave_out(&mut self, slot: usize, event: &Event<'_>) {
        thread::count_unrecorded();
        if let Some(Some(sequence)) = self.sequences.get_mut(slot)
            && matches!(event.track, TrackRef::Thread)
        {
            sequence.leave_out(event.kind);
        }
    }

    /// Has every sequence that records write the new descriptors of tracks that it has described and that have changed.
    pub(in super::super) fn describe_changed_tracks(&mut self) {
        for (sequence, epoch) in self.sequences.iter_mut().zip(&EPOCHS) {
            // A sequence that starts over describes everything anyhow.
            if let Some(sequence) = sequence
                && sequence.epoch == epoch.load(Ordering::Relaxed)
                && sequence.begun
            {
                let now = sequence.now();
                sequence.describe_changes(now);
                if sequence.has_lost() {
                    sequence.start_over(sequence.epoch);
                }
            }
        }
    }

    /// Returns the sequence of a slot, ready for this event; `None` if no instance records it there any more.
    fn sequence(&mut self, slot: usize, event: &Event<'_>) -> Option<&mut Sequence> {
        let epoch = EPOCHS[slot].load(Ordering::Relaxed);
        let is_ready = |sequence: &Sequence| sequence.epoch == epoch;
        if !self.sequences.get(slot)?.as_deref().is_some_and(is_ready) {
            self.renew(slot, event)?;
        }
        self.sequences[slot].as_deref_mut()
    }

    #[cold]
    fn renew(&mut self, slot: usize, event: &Event<'_>) -> Option<()> {
        // The epochs of a child are not those of its parent.
        self.leave_parents_memory();
        // Drops this thread's sequences of sessions that are over, because others need the chunks.
        for (entry, epoch) in self.sequences.iter_mut().zip(&EPOCHS) {
            if epoch.load(Ordering::Relaxed) == 0 {
                *entry = None;
            }
        }
        let entry = &mut self.sequences[slot];
        let Some(found) = slots().nth(slot).and_then(|slot| registry::active(slot, event)) else {
            *entry = None;
            return None;
        };
        let (active, epoch) = (found.active, found.epoch);
        match entry {
            Some(sequence) if sequence.instance.serial == active.serial => {
                sequence.start_over(epoch);
            }
            _ => {
                // The old sequence first, because the new one may need its chunk.
                *entry = None;
                if !found.records_event {
                    return None;
                }
                let writer = active.output.create_trace_writer().ok()?;
                let instance = InstanceKey {
                    slot,
                    serial: active.serial,
                };
                let sequence = Sequence::new(instance, epoch, active.options, writer);
                *entry = Some(Box::new(sequence));
            }
        }
        Some(())
    }
}

/// A packet with an event of few and simple fields.
struct ShortEvent<'a, F> {
    front: &'a ShortFront,
    name: Option<&'a str>,
    track: Option<&'a TrackField>,
    fields: &'a F,
    annotation_fronts: &'a [AnnotationFront],
    since_last: u32,
}

impl<F: EventFields> ShortMessage for ShortEvent<'_, F> {
    #[inline(always)]
    fn put<'w>(self, packet: Cursor<'w>) -> Option<Cursor<'w>> {
        let front = self.front;
        let (mut event, length) = packet.nested_with_front(&front.bytes, front.len, ShortFront::LENGTH_AT)?;
        if let Some(name) = self.name {
            event = event.bytes_field(TrackEvent::NAME, name.as_bytes())?;
        }
        if let Some(track) = self.track {
            event = event.front_of(&track.bytes, track.len())?;
        }
        let event = self.fields.put(event, &mut self.annotation_fronts.iter())?;
        event
            .end_nested(length)
            .short_varint_field(TracePacket::TIMESTAMP, self.since_last)
    }
}
