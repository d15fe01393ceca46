//! One sequence of track events: those of one thread for one instance.
//!
//! Called through [`super::thread`]. A sequence is a trace writer together with the *incremental state*, which is everything that readers know from
//! its packets so far: the last time, the strings and the tracks. It starts with a packet that clears all earlier state and sets the thread's track
//! and the clock as defaults. Then it describes everything that an event refers to right before the event. When packets were lost it starts over,
//! because readers trust nothing from before a loss, and makes up for lost ends of slices (`nesting.rs`). It also starts over
//! after so many bytes ([`StartsOver`]), because a ring buffer overwrites the oldest packets, which have the descriptions.

use std::collections::HashMap;
use std::sync::Arc;

use ferretto_client::trace_writer::{PreparedPacket, TraceWriter};
use ferretto_proto::write::{TracePacket, TrackDescriptor};
use ferretto_wire::Writer;

use super::call_site::{CallSite, Registered};
use super::config::TrackEventOptions;
use super::event::{EventContext, LastValue};
use super::interning::{ANNOTATION_NAMES, CATEGORIES, EVENT_NAMES, IdSet};
use super::local_strings::LocalStrings;
use super::open_slices::{InstanceKey, OwedEnd};
use super::registry::NO_EPOCH;
use super::timestamp::Timestamp;
use super::wire::{self, EventType, INCREMENTAL_STATE_CLEARED, NEEDS_INCREMENTAL_STATE};
use crate::clock::{self, Anchor};
use crate::starting_over::StartsOver;
use crate::track::{self, DescriptorSink, SeenTracks, Track, TrackLike, Values};

mod confined;
mod nesting;
mod of_thread;
#[cfg(test)]
mod tests;
mod thread_time;

use confined::LeftOut;
pub(super) use nesting::slices_left_open;
pub(super) use of_thread::ThreadState;
use thread_time::ThreadTime;

/// The clock of packets that contain the time since the last one of their sequence; upstream's number.
const INCREMENTAL_CLOCK: u32 = 64;
/// The clock of absolute times in the config's unit.
const ABSOLUTE_CLOCK: u32 = 65;

/// The most counters that a sequence writes as differences at a time. Readers keep the last value of each until the sequence starts over, so it
/// starts over when there are more.
const MAX_LAST_VALUES: usize = 4096;

/// An event to be written, except for its fields.
pub(super) struct Event<'a> {
    pub(super) kind: EventType,
    /// The call site; ends of slices need none.
    pub(super) site: Option<&'static CallSite>,
    /// Its category, if that is not the site's.
    pub(super) category: Option<&'a str>,
    /// Its name, if that is not the site's.
    pub(super) name: Name<'a>,
    pub(super) track: TrackRef<'a>,
    pub(super) timestamp: Option<Timestamp>,
    /// For the end of a slice: the number of instances that had started when the slice began.
    pub(super) begun: Option<u32>,
}

/// The track of an event.
#[derive(Clone, Copy)]
pub(super) enum TrackRef<'a> {
    /// The thread's track.
    Thread,
    /// A track that the trace already describes.
    Told(u64),
    /// A track that may have to be described first.
    Tell(&'a dyn TrackLike),
}

impl TrackRef<'_> {
    /// Its uuid; `None` for the thread's.
    pub(super) fn uuid(&self) -> Option<u64> {
        match self {
            TrackRef::Thread => None,
            TrackRef::Told(uuid) => Some(*uuid),
            TrackRef::Tell(track) => Some(track.uuid()),
        }
    }
}

/// The source of an event's name.
#[derive(Clone, Copy)]
pub(super) enum Name<'a> {
    /// The site's name, or none.
    OfSite,
    /// A name that is written with the event.
    Dynamic(&'a str),
    /// A name that will not change, so it is written once.
    Static(&'static str),
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
    instance: InstanceKey,
    options: Arc<TrackEventOptions>,
    losses: u64,
    starts_over: StartsOver,
    /// The first packets were written, on which later ones build.
    begun: bool,
    left_out: LeftOut,
    thread: Track,
    thread_time: ThreadTime,
    /// The version of tracks' descriptors that this sequence has written.
    tracks_version: u64,
    /// Ends of slices of the thread's track that were lost, in their order.
    owed_ends: Vec<OwedEnd>,
    /// On the thread's track, a slice without a handle began unrecorded, and has not ended. Other slices like it cannot take the fast path then.
    has_loose_slices: bool,
}

/// The state that the sequence's readers know.
#[derive(Default)]
struct Told {
    /// Sites whose strings were all written.
    sites: IdSet,
    event_names: IdSet,
    categories: IdSet,
    annotation_names: IdSet,
    tracks: SeenTracks,
    /// Counters that are written as differences, whatever they were described for. They are not among `tracks`, so that [`ThreadState::write_short`]
    /// leaves them alone.
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

impl Sequence {
    fn new(instance: InstanceKey, epoch: u32, options: Arc<TrackEventOptions>, writer: TraceWriter) -> Self {
        let mut sequence = Self {
            plain_epoch: NO_EPOCH,
            anchor: Anchor::EXPIRED,
            last: 0,
            writer,
            told: Told::default(),
            epoch,
            instance,
            options,
            losses: 0,
            starts_over: StartsOver::default(),
            begun: false,
            left_out: LeftOut::default(),
            thread: Track::thread(),
            thread_time: ThreadTime::default(),
            tracks_version: track::descriptors_version(),
            owed_ends: Vec::new(),
            has_loose_slices: false,
        };
        sequence.start_over(epoch);
        sequence
    }

    /// Starts over: nothing counts as known to readers any more.
    fn start_over(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.begun = false;
        self.starts_over = StartsOver::again(self.writer.returned());
        self.plain_epoch = NO_EPOCH;
        self.told.clear();
        self.thread_time = ThreadTime::default();
    }

    /// Whether packets were lost since the last call, or are being lost. Then readers will forget their state.
    fn has_lost(&mut self) -> bool {
        let losses = self.writer.losses();
        let lost = losses != self.losses || self.writer.is_losing();
        self.losses = losses;
        lost
    }

    /// Writes an event that happens now, after everything that it refers to; false if a part was lost. If the user's code panics meanwhile, readers
    /// miss data that already counts as written (the elapsed time at least), so the sequence starts over.
    fn write_at(&mut self, now: u64, event: &Event<'_>, fill: &dyn Fn(&mut EventContext<'_, '_>)) -> bool {
        struct Unfinished<'a>(&'a mut Sequence);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.start_over(self.0.epoch);
            }
        }
        let unfinished = Unfinished(self);
        let written = unfinished.0.write_unguarded(now, event, fill);
        std::mem::forget(unfinished);
        written
    }

    fn write_unguarded(
        &mut self,
        now: u64,
        event: &Event<'_>,
        fill: &dyn Fn(&mut EventContext<'_, '_>),
    ) -> bool {
        if self.told.last_values.len() >= MAX_LAST_VALUES || self.starts_over.is_due(self.writer.returned()) {
            self.start_over(self.epoch);
        }
        if !self.begun && !self.begin(now) {
            return false;
        }
        if self.left_out != LeftOut::default() {
            self.make_up(now);
        }
        if self.owes_ends() && !self.pay_owed_ends() {
            return false;
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
        let lost = self.has_lost();
        if lost {
            self.start_over(self.epoch);
        }
        !lost
    }

    fn write_event(
        &mut self,
        event: &Event<'_>,
        registered: Option<&Registered>,
        now: u64,
        fill: &dyn Fn(&mut EventContext<'_, '_>),
    ) {
        let thread_time = match event.track {
            TrackRef::Thread => self.thread_time.sample(now, &self.options),
            _ => None,
        };
        let stamp = match event.timestamp {
            None => self.stamp(now),
            Some(timestamp) => self.stamp_of(timestamp),
        };
        let options = &*self.options;
        let Told {
            local, last_values, ..
        } = &mut self.told;
        let track = event.track.uuid();
        let told = self.writer.packet(|writer| {
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
            local.write_pending(&mut packet)
        });
        self.starts_over.note_told(told);
    }

    /// The time now, never before an earlier result of this sequence.
    #[inline]
    fn now(&mut self) -> u64 {
        match self.anchor.now() {
            Some(now) => now,
            None => self.anchor.renew(self.last),
        }
    }

    /// Writes the first packets: the defaults, and the descriptions of thread and process. False if there is no room for them.
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
            .then(|| thread_time::track_of(thread, multiplier));
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
        self.update_plain_epoch();
        self.begun
    }

    /// Opens the fast path, or closes it.
    pub(super) fn update_plain_epoch(&mut self) {
        let options = &self.options;
        let is_plain = self.begun
            && !self.has_loose_slices
            && self.left_out == LeftOut::default()
            && options.timestamp_unit_multiplier.get() == 1
            && options.incremental_timestamps
            && !options.thread_time_sampling
            && !options.filter_debug_annotations
            && !options.filter_dynamic_event_names;
        self.plain_epoch = if is_plain { self.epoch } else { NO_EPOCH };
    }

    /// The clock of timestamps that name none.
    fn default_clock(&self) -> u32 {
        if self.options.incremental_timestamps {
            INCREMENTAL_CLOCK
        } else if self.options.timestamp_unit_multiplier.get() == 1 {
            clock::chosen().id()
        } else {
            ABSOLUTE_CLOCK
        }
    }

    /// Returns the stamp for the clock's current time.
    #[inline]
    fn stamp(&mut self, now: u64) -> Stamp {
        if !self.options.incremental_timestamps {
            return self.stamp_of(Timestamp::TraceTime(now));
        }
        let multiplier = self.options.timestamp_unit_multiplier.get();
        // The clock was set back, for example with the machine's state.
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

    /// The stamp of a time that the caller supplies. It is absolute, because the next event may have an earlier time.
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

    /// Writes the strings that events of a site refer to.
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
        self.starts_over.note_told(data.len());
    }

    /// Describes a track and its parents, once.
    #[inline]
    fn describe(&mut self, track: &impl TrackLike, now: u64) {
        track::describe(track, &mut Describing { sequence: self, now });
    }

    /// Describes tracks again that were described and have changed since.
    #[inline]
    fn describe_changes(&mut self, now: u64) {
        let version = self.tracks_version;
        let mut describing = Describing { sequence: self, now };
        self.tracks_version = track::describe_changes(version, &mut describing);
    }
}

/// To be called before an event on a track that other threads may write to takes its time. Otherwise the processor might read its counter before it
/// has seen that it is this thread's turn, and slices of one track would overlap.
#[inline(always)]
fn finish_what_others_see() {
    clock::finish_earlier_instructions();
}

/// The destination of descriptors: packets of their own.
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
        self.sequence.starts_over.note_told(told);
    }
}

/// A timestamp in the form of packets.
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
