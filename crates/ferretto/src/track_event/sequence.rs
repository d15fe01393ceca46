//! One sequence of track events: those of one thread for one instance.
//!
//! Called through [`super::thread`]. A sequence is a trace writer and what readers know from its packets so far: the time of the
//! last one, which strings and tracks were told (*incremental state*). It starts with a packet that takes back all earlier
//! state, sets the thread's track and the clock as defaults, and then tells whatever an event refers to right before the event.
//! When packets were lost it starts over, for readers trust nothing from before a loss. It also starts over after every
//! [`STARTS_OVER_AFTER`] bytes and some, because a ring buffer overwrites the oldest packets, which are those that told the names.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferretto_client::trace_writer::{PreparedPacket, TraceWriter};
use ferretto_proto::write::{TracePacket, TrackDescriptor, TrackEvent};
use ferretto_wire::Writer;

use super::call_site::{CallSite, Registered};
use super::config::TrackEventOptions;
use super::event::{EventContext, EventFields, LastValue};
use super::interning::{ANNOTATION_NAMES, CATEGORIES, EVENT_NAMES, IdSet};
use super::local_strings::LocalStrings;
use super::registry::{self, EPOCHS, NO_EPOCH};
use super::wire::{self, EventType, INCREMENTAL_STATE_CLEARED, NEEDS_INCREMENTAL_STATE, ShortFront};
use crate::clock::{self, Anchor};
use crate::process_hooks;
use crate::source::{MAX_INSTANCES, Slot};
use crate::track::{
    self, BuiltinCounter, CounterTrack, DescriptorSink, SeenTracks, Track, TrackLike, Values,
};

#[cfg(test)]
mod tests;

/// The clock of packets that tell the time since the last one of their sequence; upstream's number.
const INCREMENTAL_CLOCK: u32 = 64;
/// The clock of absolute times in the config's unit.
const ABSOLUTE_CLOCK: u32 = 65;

/// Counters that a sequence tells in differences at a time. Readers keep the last value of each until the sequence starts over, so with
/// more than these it does.
const MAX_LAST_VALUES: usize = 4096;

/// Bytes after which a sequence starts over. A ring buffer overwrites what readers were told, and leaves events that nobody can read:
/// with this a thread's events are readable if the buffer holds so many bytes of the thread. Few enough for small buffers.
const STARTS_OVER_AFTER: u64 = 128 << 10;

/// For each byte that told of tracks or sites, a sequence starts over this many bytes later: a thread that goes round among thousands of
/// tracks would otherwise tell of each before each event.
const LATER_FOR_EACH_BYTE_TOLD: u64 = 8;

/// But never later than after so many bytes, for there are threads whose tracks are new ones all the time.
const STARTS_OVER_AT_THE_LATEST_AFTER: u64 = 2 << 20;

/// When an event happened, if not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timestamp {
    /// On the trace clock, in nanoseconds ([`crate::clock::now`]).
    TraceTime(u64),
    /// On another clock, in its unit: one of Perfetto's, or one that clock snapshots of the application's relate to those.
    OnClock {
        /// Which clock: a value of Perfetto's `BuiltinClock`, or 64 to 127 for one of the sequence's own, or above.
        clock_id: u32,
        /// What it shows.
        value: u64,
    },
}

impl From<u64> for Timestamp {
    fn from(nanoseconds: u64) -> Self {
        Timestamp::TraceTime(nanoseconds)
    }
}

/// What is to be written of an event, but for its fields.
pub(super) struct Event<'a> {
    pub(super) kind: EventType,
    /// Where it happens; ends of slices need none.
    pub(super) site: Option<&'static CallSite>,
    /// Its category, if that is not the site's.
    pub(super) category: Option<&'a str>,
    /// Its name, if that is not the site's.
    pub(super) name: Name<'a>,
    pub(super) track: TrackRef<'a>,
    pub(super) timestamp: Option<Timestamp>,
    /// Of the end of a slice: how many instances had started when that began.
    pub(super) begun: Option<u32>,
}

/// The track of an event.
#[derive(Clone, Copy)]
pub(super) enum TrackRef<'a> {
    /// The thread's.
    Thread,
    /// One that the trace knows already.
    Told(u64),
    /// One that may have to be described first.
    Tell(&'a dyn TrackLike),
}

/// Where the name of an event comes from.
#[derive(Clone, Copy)]
pub(super) enum Name<'a> {
    /// The site, or there is none.
    OfSite,
    /// It is written as it is.
    Dynamic(&'a str),
    /// It will not change, so it is written once.
    Static(&'static str),
}

/// What a thread has for all instances.
pub(super) struct ThreadState {
    sequences: [Option<Box<Sequence>>; MAX_INSTANCES],
    /// Of which process: a forked child has a copy.
    process: u32,
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        self.leave_parents_memory();
    }
}

impl ThreadState {
    pub(super) fn new() -> Self {
        Self {
            sequences: [const { None }; MAX_INSTANCES],
            process: process_hooks::generation(),
        }
    }

    /// In a forked child: sequences are the parent's. To drop them would give back chunks that it is still writing.
    fn leave_parents_memory(&mut self) {
        if self.process != process_hooks::generation() {
            std::mem::forget(std::mem::take(&mut self.sequences));
            self.process = process_hooks::generation();
        }
    }

    /// Writes an event that is prepared but for its time, which is now. False if something has to be done first.
    #[inline(always)]
    pub(super) fn write_prepared(
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
        // A time before the last one's is a very long one after.
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

    /// Writes an event with few and simple fields, on a track that readers know, now. False if something has to be done first, or
    /// it is not such an event.
    #[inline(always)]
    pub(super) fn write_short(
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
            || track.is_some_and(|track| !sequence.told.tracks.contains(track))
            || sequence.tracks_version != track::descriptors_version()
        {
            return false;
        }
        if track.is_some() && kind.is_ordered() {
            finish_what_others_see();
        }
        let Some(now) = sequence.anchor.now() else {
            return false;
        };
        let Some(since_last) = now.checked_sub(sequence.last) else {
            return false;
        };
        let written = sequence.writer.write_short(|packet| {
            let filled =
                packet.nested_with_front(&front.bytes, front.len, ShortFront::LENGTH_AT, |event| {
                    let event = match name {
                        None => event,
                        Some(name) => event.bytes_field(TrackEvent::NAME, name.as_bytes())?,
                    };
                    let event = match track {
                        None => event,
                        Some(uuid) => event.varint_field(TrackEvent::TRACK_UUID, uuid)?,
                    };
                    fields.put(event, &mut site.annotations.iter())
                })?;
            filled.varint_field(TracePacket::TIMESTAMP, since_last)
        });
        if written {
            sequence.last = now;
        }
        written
    }

    /// Writes any event, with the fields that `fill` adds, and whatever has to be told before.
    pub(super) fn write(&mut self, slot: usize, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) {
        if let Some(sequence) = self.sequence(slot, event) {
            sequence.write(event, fill);
        }
    }

    /// Has every sequence that records tell what has changed of the tracks that it told of.
    pub(super) fn describe_changed_tracks(&mut self) {
        for (sequence, epoch) in self.sequences.iter_mut().zip(&EPOCHS) {
            // One that starts over tells all anyhow.
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

    /// The sequence of a slot, ready for this event; `None` if nobody records it there any more.
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
        // What this thread has of sessions that are over: others need the chunks.
        for (entry, epoch) in self.sequences.iter_mut().zip(&EPOCHS) {
            if epoch.load(Ordering::Relaxed) == 0 {
                *entry = None;
            }
        }
        let entry = &mut self.sequences[slot];
        let Some(found) = Slot::all()
            .nth(slot)
            .and_then(|slot| registry::active(slot, event))
        else {
            *entry = None;
            return None;
        };
        let (active, epoch) = (found.active, found.epoch);
        match entry {
            Some(sequence) if sequence.serial == active.serial => {
                sequence.start_over(epoch);
            }
            _ => {
                // The old one first, for its chunk may be the one that the new one needs.
                *entry = None;
                if !found.records_event {
                    return None;
                }
                let writer = active.output.create_trace_writer().ok()?;
                let sequence = Sequence::new(active.serial, epoch, active.options, writer);
                *entry = Some(Box::new(sequence));
            }
        }
        Some(())
    }
}

pub(super) struct Sequence {
    /// The epoch, unless packets need more than [`ThreadState::write_prepared`] can do; [`NO_EPOCH`] then.
    plain_epoch: u32,
    anchor: Anchor,
    /// The time up to which incremental timestamps have come, in nanoseconds on the trace clock.
    last: u64,
    writer: TraceWriter,
    told: Told,
    epoch: u32,
    serial: u32,
    options: Arc<TrackEventOptions>,
    losses: u64,
    /// What the writer will have returned when the sequence is to start over.
    starts_over_at: u64,
    /// The most that this may come to be.
    starts_over_by: u64,
    /// The first packets were written: what readers go by from here on.
    begun: bool,
    thread: Track,
    thread_time: ThreadTime,
    /// The changes of tracks' descriptors that this sequence has heeded.
    tracks_version: u64,
}

/// What the sequence's readers know.
#[derive(Default)]
struct Told {
    /// Sites of which all strings were told.
    sites: IdSet,
    event_names: IdSet,
    categories: IdSet,
    annotation_names: IdSet,
    tracks: SeenTracks,
    /// Counters that are told in differences, whatever they were described for. They are not among `tracks`, so that
    /// [`ThreadState::write_short`] leaves them alone.
    last_values: HashMap<u64, LastValue>,
    local: LocalStrings,
}

impl Told {
    fn clear(&mut self) {
        self.sites.clear();
        self.event_names.clear();
        self.categories.clear();
        self.annotation_names.clear();
        self.tracks.clear();
        self.last_values.clear();
        self.local.clear();
    }
}

/// The samples of the thread's CPU time, each told as the difference to the one before.
#[derive(Default)]
struct ThreadTime {
    /// Nanoseconds.
    last: u64,
    /// When that was, on the trace clock.
    sampled_at: u64,
}

impl Sequence {
    fn new(serial: u32, epoch: u32, options: Arc<TrackEventOptions>, writer: TraceWriter) -> Self {
        let mut sequence = Self {
            plain_epoch: NO_EPOCH,
            anchor: Anchor::EXPIRED,
            last: 0,
            writer,
            told: Told::default(),
            epoch,
            serial,
            options,
            losses: 0,
            starts_over_at: 0,
            starts_over_by: 0,
            begun: false,
            thread: Track::thread(),
            thread_time: ThreadTime::default(),
            tracks_version: track::descriptors_version(),
        };
        sequence.start_over(epoch);
        sequence
    }

    /// Forgets what readers know.
    fn start_over(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.begun = false;
        self.starts_over_at = self.writer.returned() + STARTS_OVER_AFTER;
        self.starts_over_by = self.writer.returned() + STARTS_OVER_AT_THE_LATEST_AFTER;
        self.plain_epoch = NO_EPOCH;
        self.told.clear();
        self.thread_time = ThreadTime::default();
    }

    /// A track or a site was told of, in this many bytes.
    fn note_told(&mut self, bytes: usize) {
        let later = self.starts_over_at + LATER_FOR_EACH_BYTE_TOLD * bytes as u64;
        self.starts_over_at = later.min(self.starts_over_by);
    }

    /// Whether packets were lost since this was last asked, or are being lost: then readers will forget all they know.
    fn has_lost(&mut self) -> bool {
        let losses = self.writer.losses();
        let lost = losses != self.losses || self.writer.is_losing();
        self.losses = losses;
        lost
    }

    /// Writes an event, and whatever has to be told before. If the user's code panics meanwhile, readers miss what was counted as
    /// told, be it only the time that has passed: then the sequence starts over.
    fn write(&mut self, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) {
        struct Unfinished<'a>(&'a mut Sequence);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.start_over(self.0.epoch);
            }
        }
        let unfinished = Unfinished(self);
        unfinished.0.write_unguarded(event, fill);
        std::mem::forget(unfinished);
    }

    fn write_unguarded(&mut self, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) {
        if !matches!(event.track, TrackRef::Thread) && event.kind.is_ordered() {
            finish_what_others_see();
        }
        let now = self.now();
        if self.told.last_values.len() >= MAX_LAST_VALUES || self.writer.returned() >= self.starts_over_at {
            self.start_over(self.epoch);
        }
        if !self.begun && !self.begin(now) {
            return;
        }
        let registered = event.site.and_then(CallSite::registered);
        if let Some(registered) = registered
            && self.told.sites.insert(registered.index)
        {
            self.tell_strings(registered);
        }
        self.describe_changes(now);
        if let TrackRef::Tell(track) = event.track {
            self.describe(&track, now);
        }
        self.write_event(event, registered, now, fill);
        if self.has_lost() {
            self.start_over(self.epoch);
        }
    }

    fn write_event(
        &mut self,
        event: &Event<'_>,
        registered: Option<&Registered>,
        now: u64,
        fill: &dyn Fn(&mut EventContext<'_, '_>),
    ) {
        let thread_time = self.sample_thread_time(event, now);
        let stamp = match event.timestamp {
            None => self.stamp(now),
            Some(timestamp) => self.stamp_of(timestamp),
        };
        let options = &*self.options;
        let Told {
            local, last_values, ..
        } = &mut self.told;
        let track = match event.track {
            TrackRef::Thread => None,
            TrackRef::Told(uuid) => Some(uuid),
            TrackRef::Tell(track) => Some(track.uuid()),
        };
        self.writer.packet(|writer| {
            let mut packet = TracePacket::new(writer);
            packet.sequence_flags(NEEDS_INCREMENTAL_STATE as u32);
            stamp.write(&mut packet);
            packet.track_event(|track_event| {
                let (categories, name) = match (registered, event.category, event.name) {
                    (Some(site), None, Name::OfSite) => (&site.categories[..], site.name),
                    (Some(site), None, _) => (&site.categories[..], 0),
                    (Some(site), Some(_), Name::OfSite) => (&[][..], site.name),
                    _ => (&[][..], 0),
                };
                wire::head(track_event, event.kind, categories, name);
                if let Some(category) = event.category
                    && event.kind.tells_category()
                {
                    track_event.categories(category);
                }
                match event.name {
                    Name::OfSite => {}
                    Name::Dynamic(_) if options.filter_dynamic_event_names => {
                        track_event.name("FILTERED");
                    }
                    Name::Dynamic(name) => {
                        track_event.name(name);
                    }
                    Name::Static(name) => {
                        track_event.name_iid(local.event_name(name));
                    }
                }
                if let Some(uuid) = track {
                    track_event.track_uuid(uuid);
                }
                if let Some(value) = thread_time {
                    track_event.extra_counter_values(value);
                }
                let annotations = registered.map_or(&[][..], |site| &site.annotations);
                let last_value = track.and_then(|uuid| last_values.get_mut(&uuid));
                fill(&mut EventContext::new(
                    track_event,
                    local,
                    annotations,
                    options,
                    last_value,
                ));
            });
            local.write_pending(&mut packet);
        });
    }

    /// The time now, never before what this sequence took for now earlier.
    #[inline]
    fn now(&mut self) -> u64 {
        match self.anchor.now() {
            Some(now) => now,
            None => self.anchor.renew(self.last),
        }
    }

    /// Writes the first packets: the defaults, and who this is. False if there is no room for them.
    #[cold]
    fn begin(&mut self, now: u64) -> bool {
        self.last = now;
        let options = self.options.clone();
        let multiplier = options.timestamp_unit_multiplier.get();
        let trace_clock = clock::chosen().id();
        let default_clock = self.default_clock();
        let thread = self.thread;
        let thread_time_track = options
            .thread_time_sampling
            .then(|| thread_time_track(thread, multiplier));
        let stamp = self.stamp(now);
        self.writer.packet(|writer| {
            let mut packet = TracePacket::new(writer);
            packet.sequence_flags(INCREMENTAL_STATE_CLEARED as u32);
            stamp.write(&mut packet);
            packet.trace_packet_defaults(|defaults| {
                defaults.timestamp_clock_id(default_clock);
                defaults.track_event_defaults(|defaults| {
                    defaults.track_uuid(thread.uuid());
                    if let Some(track) = &thread_time_track {
                        defaults.extra_counter_track_uuids(track.uuid());
                    }
                });
            });
            if default_clock != trace_clock {
                packet.clock_snapshot(|snapshot| {
                    snapshot.clocks(|clock| {
                        clock.clock_id(trace_clock).timestamp(now);
                    });
                    if default_clock == INCREMENTAL_CLOCK {
                        snapshot.clocks(|clock| {
                            clock
                                .clock_id(INCREMENTAL_CLOCK)
                                .timestamp(now / multiplier)
                                .is_incremental(true)
                                .unit_multiplier_ns(multiplier);
                        });
                    }
                    if multiplier > 1 {
                        snapshot.clocks(|clock| {
                            clock
                                .clock_id(ABSOLUTE_CLOCK)
                                .timestamp(now / multiplier)
                                .is_incremental(false)
                                .unit_multiplier_ns(multiplier);
                        });
                    }
                });
            }
        });
        if self.has_lost() {
            return false;
        }
        self.describe(&thread, now);
        self.describe(&Track::process(), now);
        if let Some(track) = &thread_time_track {
            self.describe(track, now);
        }
        self.begun = !self.has_lost();
        let plain = multiplier == 1
            && default_clock == INCREMENTAL_CLOCK
            && !options.thread_time_sampling
            && !options.filter_debug_annotations
            && !options.filter_dynamic_event_names;
        if self.begun && plain {
            self.plain_epoch = self.epoch;
        }
        self.begun
    }

    /// The clock of timestamps that do not say which.
    fn default_clock(&self) -> u32 {
        if self.options.incremental_timestamps {
            INCREMENTAL_CLOCK
        } else if self.options.timestamp_unit_multiplier.get() == 1 {
            clock::chosen().id()
        } else {
            ABSOLUTE_CLOCK
        }
    }

    /// How the time that the clock shows now is told.
    #[inline]
    fn stamp(&mut self, now: u64) -> Stamp {
        if !self.options.incremental_timestamps {
            return self.stamp_of(Timestamp::TraceTime(now));
        }
        let multiplier = self.options.timestamp_unit_multiplier.get();
        // The clock was set back, with the machine's state say.
        let Some(since_last) = now.checked_sub(self.last) else {
            return self.stamp_of(Timestamp::TraceTime(now));
        };
        let units = if multiplier == 1 {
            since_last
        } else {
            since_last / multiplier
        };
        self.last += units * multiplier;
        Stamp {
            value: units,
            clock: None,
        }
    }

    /// How a time that the caller supplies is told: whole, for what happens next may have been before.
    fn stamp_of(&self, timestamp: Timestamp) -> Stamp {
        let multiplier = self.options.timestamp_unit_multiplier.get();
        let (value, clock) = match timestamp {
            Timestamp::OnClock { clock_id, value } => (value, clock_id),
            Timestamp::TraceTime(time) if multiplier == 1 => (time, clock::chosen().id()),
            Timestamp::TraceTime(time) => (time / multiplier, ABSOLUTE_CLOCK),
        };
        Stamp {
            value,
            clock: (clock != self.default_clock()).then_some(clock),
        }
    }

    /// Tells the strings that events of a site refer to.
    #[cold]
    fn tell_strings(&mut self, site: &Registered) {
        let told = &mut self.told;
        let mut data = Writer::new();
        let mut interned = ferretto_proto::write::InternedData::new(&mut data);
        for &id in &site.categories {
            if told.categories.insert(id) {
                interned.event_categories(|entry| {
                    entry.iid(u64::from(id)).name(CATEGORIES.string(id));
                });
            }
        }
        if site.name != 0 && told.event_names.insert(site.name) {
            interned.event_names(|entry| {
                entry
                    .iid(u64::from(site.name))
                    .name(EVENT_NAMES.string(site.name));
            });
        }
        for &id in &site.annotations {
            if told.annotation_names.insert(id) {
                interned.debug_annotation_names(|entry| {
                    entry.iid(u64::from(id)).name(ANNOTATION_NAMES.string(id));
                });
            }
        }
        if data.is_empty() {
            return;
        }
        self.writer.packet(|writer| {
            let mut packet = TracePacket::new(writer);
            packet.sequence_flags(NEEDS_INCREMENTAL_STATE as u32);
            packet
                .writer()
                .bytes_field(TracePacket::INTERNED_DATA, data.as_slice());
        });
        self.note_told(data.len());
    }

    /// Tells what a track is, and its parents, once.
    #[inline]
    fn describe(&mut self, track: &impl TrackLike, now: u64) {
        track::describe(track, &mut Describing { sequence: self, now });
    }

    /// Tells again what tracks are that were told and have changed since.
    #[inline]
    fn describe_changes(&mut self, now: u64) {
        let version = self.tracks_version;
        let mut describing = Describing { sequence: self, now };
        self.tracks_version = track::describe_changes(version, &mut describing);
    }

    /// The time that the thread has spent on a CPU since the last sample, if it is sampled.
    #[inline]
    fn sample_thread_time(&mut self, event: &Event<'_>, now: u64) -> Option<i64> {
        if !self.options.thread_time_sampling || !matches!(event.track, TrackRef::Thread) {
            return None;
        }
        let sampling = &mut self.thread_time;
        let subsampling = self.options.thread_time_subsampling_ns;
        let due = subsampling == 0
            || sampling.sampled_at == 0
            || now >= sampling.sampled_at.saturating_add(subsampling);
        if !due {
            return Some(0);
        }
        let time = clock::thread_time_ns();
        let since_last = time.saturating_sub(sampling.last);
        *sampling = ThreadTime {
            last: time,
            sampled_at: now,
        };
        Some((since_last / self.options.timestamp_unit_multiplier.get()).cast_signed())
    }
}

/// To be called before the time is taken of an event on a track that other threads may write to: the processor might otherwise read
/// its counter before it has seen that it is this thread's turn, and slices of one track overlap.
#[inline(always)]
fn finish_what_others_see() {
    clock::finish_earlier_instructions();
}

/// The counter of the CPU time of a thread; upstream's name and attributes.
fn thread_time_track(thread: Track, multiplier: u64) -> CounterTrack<'static> {
    CounterTrack::new("thread_time")
        .parent(thread)
        .incremental()
        .unit_multiplier(multiplier.cast_signed())
        .builtin(BuiltinCounter::ThreadTimeNs)
}

/// Where descriptors go: packets of their own.
struct Describing<'a> {
    sequence: &'a mut Sequence,
    now: u64,
}

impl DescriptorSink for Describing<'_> {
    fn note(&mut self, uuid: u64, values: Values) {
        let told = &mut self.sequence.told;
        match values {
            Values::Whole => drop(told.tracks.insert(uuid)),
            Values::Differences => drop(told.last_values.insert(uuid, LastValue::default())),
        }
    }

    #[inline]
    fn has_described(&self, uuid: u64) -> bool {
        let told = &self.sequence.told;
        told.tracks.contains(uuid) || told.last_values.contains_key(&uuid)
    }

    fn emit(&mut self, fill: &mut dyn FnMut(&mut TrackDescriptor<'_>)) {
        let stamp = self.sequence.stamp(self.now);
        let told = self.sequence.writer.packet(|writer| {
            let mut packet = TracePacket::new(writer);
            packet.sequence_flags(NEEDS_INCREMENTAL_STATE as u32);
            stamp.write(&mut packet);
            packet.track_descriptor(|descriptor| fill(descriptor));
            packet.writer().len()
        });
        self.sequence.note_told(told);
    }
}

/// A timestamp as packets tell it.
#[derive(Clone, Copy)]
struct Stamp {
    value: u64,
    /// The clock, if it is not the sequence's default.
    clock: Option<u32>,
}

impl Stamp {
    #[inline]
    fn write(self, packet: &mut TracePacket<'_>) {
        packet.timestamp(self.value);
        if let Some(clock) = self.clock {
            packet.timestamp_clock_id(clock);
        }
    }
}
