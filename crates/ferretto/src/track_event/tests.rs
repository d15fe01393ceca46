//! Events as they come out of the shared memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Request, Wake};
use ferretto_proto::messages::Message;
use ferretto_proto::messages::track_event::Type;
use ferretto_proto::messages::{DebugAnnotation, TracePacket, TrackDescriptor, TrackEvent, TrackEventConfig};
use ferretto_proto::messages::{debug_annotation, trace_packet, track_event};
use ferretto_smb::{ChunkHeader, DROPPED_PACKET_SIZE, PageLayout, PageSize};

use ferretto_wire::take_varint;

use super::config::{CategoryFilter, TrackEventOptions};
use super::{Flow, StaticName, Timestamp, registry};
use crate::source::{Output, Slot, slots};
use crate::track::{CounterTrack, NamedTrack, StateTrack, Track, TrackLike};
use crate::{
    Category, DynamicCategory, trace_category_enabled, trace_counter, trace_event, trace_event_begin,
    trace_event_end, trace_event_instant, trace_slice, trace_state,
};

mod callstacks;
mod categories;
mod counters;
mod macros;
mod nesting;

/// The listeners are global to the process, so tests that record take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Silent;

impl Notify for Silent {
    fn wake(&self, _: Wake) {}
}

/// An instance whose packets are kept.
pub(crate) struct Recording {
    slot: Slot,
    arbiter: Arc<Arbiter>,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Recording {
    fn start(config: TrackEventConfig) -> Self {
        let mut recording = Self::start_in(0, &config);
        recording._alone = Some(alone());
        // The instance listens only now, so that it records no events of another test.
        recording.listen(&config);
        recording
    }

    fn start_in(slot: usize, _: &TrackEventConfig) -> Self {
        let arbiter = Arbiter::emulating(PageSize::MIN, PageLayout::Div1, Silent).unwrap();
        Self {
            slot: slots().nth(slot).unwrap(),
            arbiter,
            _alone: None,
        }
    }

    fn listen(&self, config: &TrackEventConfig) {
        let output = Output {
            arbiter: self.arbiter.clone(),
            target: BufferId(1),
            policy: BufferExhaustedPolicy::Drop,
        };
        let serial = self.slot.index() as u32 + 1 + (registry::starts() << 4);
        registry::start(
            self.slot,
            serial,
            output,
            CategoryFilter::new(config),
            TrackEventOptions::new(config),
        );
    }

    /// Records the events of `events`, on a thread of its own.
    pub(crate) fn of(config: TrackEventConfig, events: impl FnOnce() + Send) -> Vec<TracePacket> {
        let recording = Self::start(config);
        on_a_thread(events);
        recording.finish()
    }

    fn finish(self) -> Vec<TracePacket> {
        registry::stop(self.slot);
        self.take()
    }

    /// The packets committed so far, one writer after the other.
    fn take(&self) -> Vec<TracePacket> {
        let packets = packets_in(&self.arbiter).into_iter();
        packets
            .map(|packet| TracePacket::decode_from_slice(&packet).unwrap())
            .collect()
    }
}

/// The packets committed so far, one writer after the other, encoded.
pub(crate) fn packets_in(arbiter: &Arbiter) -> Vec<Vec<u8>> {
    let mut sequences: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    for request in arbiter.take_requests() {
        let Request::CommitData(commit) = request else {
            continue;
        };
        for chunk in commit.chunks_to_move {
            let (header, mut payload) = ChunkHeader::split(chunk.data.as_deref().unwrap()).unwrap();
            let packets = sequences.entry(header.writer.0).or_default();
            for index in 0..header.packet_count {
                let size = take_varint(&mut payload).unwrap();
                if size == DROPPED_PACKET_SIZE.into() {
                    packets.pop_if(|_| index == 0 && header.flags.bits() & 1 != 0);
                    break;
                }
                let packet = payload.split_off(..size as usize).unwrap();
                match packets.last_mut() {
                    Some(last) if index == 0 && header.flags.bits() & 1 != 0 => last.extend(packet),
                    _ => packets.push(packet.to_vec()),
                }
            }
        }
    }
    let packets = sequences.into_values().flatten();
    packets.filter(|packet| !packet.is_empty()).collect()
}

/// Returns when the thread has ended, thread-local memory included, which the end of a scope alone does not wait for.
fn on_a_thread(events: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(events).join()).unwrap();
}

/// The events among packets, with their strings resolved.
#[derive(Debug, Default)]
pub(crate) struct Events {
    names: BTreeMap<u64, String>,
    categories: BTreeMap<u64, String>,
    annotations: BTreeMap<u64, String>,
    pub(crate) events: Vec<(u64, TrackEvent)>,
    tracks: Vec<TrackDescriptor>,
}

impl Events {
    pub(crate) fn of(packets: &[TracePacket]) -> Self {
        let mut all = Self::default();
        let mut clocks = BTreeMap::new();
        for packet in packets {
            if packet.sequence_flags.unwrap_or(0) & 1 != 0 {
                let events = std::mem::take(&mut all.events);
                let tracks = std::mem::take(&mut all.tracks);
                all = Self {
                    events,
                    tracks,
                    ..Self::default()
                };
                clocks.clear();
            }
            if let Some(trace_packet::Data::ClockSnapshot(snapshot)) = &packet.data {
                for clock in &snapshot.clocks {
                    clocks.insert(clock.clock_id.unwrap(), clock.timestamp.unwrap());
                }
            }
            let time = match packet.timestamp_clock_id {
                // The clock snapshot has the clock's start.
                None => *clocks
                    .entry(64)
                    .and_modify(|time| *time += packet.timestamp.unwrap_or(0))
                    .or_default(),
                Some(_) => packet.timestamp.unwrap(),
            };
            if let Some(interned) = packet.interned_data.as_option() {
                for entry in &interned.event_names {
                    all.names.insert(entry.iid.unwrap(), entry.name.clone().unwrap());
                }
                for entry in &interned.event_categories {
                    all.categories
                        .insert(entry.iid.unwrap(), entry.name.clone().unwrap());
                }
                for entry in &interned.debug_annotation_names {
                    all.annotations
                        .insert(entry.iid.unwrap(), entry.name.clone().unwrap());
                }
            }
            match &packet.data {
                Some(trace_packet::Data::TrackEvent(event)) => all.add(time, event),
                Some(trace_packet::Data::TrackDescriptor(track)) => all.tracks.push((**track).clone()),
                _ => {}
            }
        }
        all
    }

    fn add(&mut self, time: u64, event: &TrackEvent) {
        let mut event = event.clone();
        if let Some(track_event::NameField::NameIid(id)) = event.name_field {
            event.name_field = Some(track_event::NameField::Name(self.names[&id].clone()));
        }
        event.categories.extend(
            event
                .category_iids
                .drain(..)
                .map(|id| self.categories[&id].clone()),
        );
        for annotation in &mut event.debug_annotations {
            if let Some(debug_annotation::NameField::NameIid(id)) = annotation.name_field {
                annotation.name_field =
                    Some(debug_annotation::NameField::Name(self.annotations[&id].clone()));
            }
        }
        self.events.push((time, event));
    }

    /// Type, categories and name of each.
    fn summary(&self) -> Vec<(Type, String, String)> {
        let summary = self.events.iter().map(|(_, event)| {
            let kind = event.r#type.unwrap();
            (kind, event.categories.join(","), name(event).to_owned())
        });
        summary.collect()
    }

    pub(crate) fn tracks(&self) -> impl Iterator<Item = &TrackDescriptor> {
        self.tracks.iter()
    }

    pub(crate) fn track(&self, uuid: u64) -> &TrackDescriptor {
        self.tracks.iter().find(|track| track.uuid == Some(uuid)).unwrap()
    }
}

pub(crate) fn name(event: &TrackEvent) -> &str {
    match &event.name_field {
        Some(track_event::NameField::Name(name)) => name,
        _ => "",
    }
}

fn annotation(annotation: &DebugAnnotation) -> (&str, &Option<debug_annotation::Value>) {
    let Some(debug_annotation::NameField::Name(name)) = &annotation.name_field else {
        panic!("{annotation:?}")
    };
    (name, &annotation.value)
}

use Type::{TYPE_COUNTER as COUNTER, TYPE_INSTANT as INSTANT, TYPE_SLICE_BEGIN as BEGIN};
use Type::{TYPE_SLICE_END as END, TYPE_STATE as STATE};

#[test]
fn slices_begin_and_end_in_the_order_of_scopes_at_increasing_times() {
    let before = crate::clock::now();
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..3 {
            trace_event!("outer", "Outer");
            trace_event!("inner", "Inner");
        }
    });
    let after = crate::clock::now();
    let events = Events::of(&packets);
    let turn = [
        (BEGIN, "outer", "Outer"),
        (BEGIN, "inner", "Inner"),
        (END, "", ""),
        (END, "", ""),
    ];
    let turn = turn.map(|(kind, category, name)| (kind, category.to_owned(), name.to_owned()));
    assert_eq!(events.summary(), [turn.clone(), turn.clone(), turn].concat());
    let times: Vec<u64> = events.events.iter().map(|(time, _)| *time).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(
        before <= times[0] + 1000 && times[11] <= after + 1000,
        "{before} {times:?} {after}"
    );
    // The events are on the thread's track. The sequence begins with it, and describes it with its name and process.
    assert_eq!(packets[0].sequence_flags, Some(1));
    let defaults = packets[0].trace_packet_defaults.as_option().unwrap();
    let thread = defaults.track_event_defaults.track_uuid.unwrap();
    let thread = events.track(thread).thread.as_option().unwrap();
    assert_eq!(thread.pid, Some(std::process::id().cast_signed()));
    assert_eq!(
        events.track(Track::process().uuid()).process.pid,
        Some(std::process::id().cast_signed())
    );
}

#[test]
fn a_slice_in_a_steady_state_takes_few_bytes() {
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..100 {
            trace_event!("category", "Slice");
        }
    });
    let events = packets
        .iter()
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackEvent(_))));
    let bytes: usize = events.map(|packet| 1 + packet.encoded_len()).sum();
    assert!(bytes <= 200 * 13, "{bytes} bytes for 200 events");
}

#[test]
fn events_carry_the_arguments_of_macros() {
    let flow = Flow::process_scoped(7);
    let packets = Recording::of(TrackEventConfig::default(), move || {
        trace_event_instant!("c", "All", "integer" => -3, "text" => "hello", flow = flow,
        terminating_flow = 8, correlation_id = 9, |event| {
            event.annotation("late", true);
            event.source_location("file.rs", Some("function"), 12);
        });
        let name = String::from("dynamic");
        trace_event_instant!("c", name, "one" => 1u8);
        trace_event_instant!("c", StaticName("static"));
        trace_event_instant!("c", "Earlier", timestamp = 1000);
        trace_event_instant!(
            "c",
            "Elsewhere",
            timestamp = Timestamp::OnClock {
                clock_id: 3,
                value: 5
            }
        );
    });
    let events = Events::of(&packets);
    let (_, all) = &events.events[0];
    let annotations: Vec<_> = all.debug_annotations.iter().map(annotation).collect();
    assert_eq!(
        annotations,
        [
            ("integer", &Some(debug_annotation::Value::IntValue(-3))),
            (
                "text",
                &Some(debug_annotation::Value::StringValue("hello".into()))
            ),
            ("late", &Some(debug_annotation::Value::BoolValue(true))),
        ]
    );
    assert_eq!(all.flow_ids, [flow.id()]);
    assert_eq!(all.terminating_flow_ids, [Flow::process_scoped(8).id()]);
    assert_eq!(
        all.correlation_id_field,
        Some(track_event::CorrelationIdField::CorrelationId(9))
    );
    assert!(all.source_location_field.is_some());
    let names: Vec<_> = events.events.iter().map(|(_, event)| name(event)).collect();
    assert_eq!(names, ["All", "dynamic", "static", "Earlier", "Elsewhere"]);
    assert_eq!(events.events[3].0, 1000);
    let elsewhere = packets.last().unwrap();
    assert_eq!(
        (elsewhere.timestamp, elsewhere.timestamp_clock_id),
        (Some(5), Some(3))
    );
}

#[test]
fn times_on_the_sequences_own_clocks_are_now() {
    let before = crate::clock::now();
    let packets = Recording::of(TrackEventConfig::default(), || {
        let on = |clock_id| Timestamp::OnClock {
            clock_id,
            value: 3_600_000_000_000_000_000,
        };
        trace_event_instant!("c", "Before");
        trace_event_instant!("c", "First", timestamp = on(64));
        trace_event_instant!("c", "Own", timestamp = on(100), "a" => 1);
        trace_event_instant!("c", "Last", timestamp = on(127));
        trace_event_instant!("c", "After");
        trace_event_instant!("c", "Below", timestamp = on(63));
        trace_event_instant!("c", "Above", timestamp = on(128));
    });
    let after = crate::clock::now();
    let events = Events::of(&packets);
    let times: Vec<u64> = events.events.iter().map(|(time, _)| *time).collect();
    assert!(times[..5].is_sorted(), "{times:?}");
    assert!(
        before <= times[0] + 1000 && times[4] <= after + 1000,
        "{before} {times:?} {after}"
    );
    let clocks: Vec<_> = packets
        .iter()
        .filter_map(|packet| packet.timestamp_clock_id)
        .collect();
    assert_eq!(clocks, [63, 128]);
}

#[test]
fn tracks_are_described_once_before_their_first_event() {
    static PARENT: NamedTrack = NamedTrack::new("Parent");
    static CHILD: NamedTrack = NamedTrack::new("Child").child_of(&PARENT);
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..2 {
            trace_event_begin!("c", "OnTrack", track = &CHILD);
            trace_event_end!("c", track = &CHILD);
        }
        let _slice = trace_slice!("c", "Scoped", track = Track::new(5), "a" => 1);
    });
    let events = Events::of(&packets);
    let on_child = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid == Some(CHILD.uuid()));
    assert_eq!(on_child.count(), 4);
    let on_five = events
        .events
        .iter()
        .filter(|(_, event)| event.track_uuid == Some(Track::new(5).uuid()));
    assert_eq!(on_five.count(), 2);
    let described = |uuid| {
        events
            .tracks
            .iter()
            .filter(|track| track.uuid == Some(uuid))
            .count()
    };
    assert_eq!([described(CHILD.uuid()), described(PARENT.uuid())], [1, 1]);
}

#[test]
fn a_new_description_of_a_track_is_written_at_once() {
    let packets = Recording::of(TrackEventConfig::default(), || {
        let track = Track::new(77);
        trace_event_instant!("c", "Before", track = track);
        let mut descriptor = crate::track::track_descriptor(&track);
        descriptor.description = Some("changed".to_owned());
        crate::track::set_track_descriptor(&track, descriptor);
        crate::track::erase_track_descriptor(&track);
    });
    let events = Events::of(&packets);
    let of_track = events
        .tracks
        .iter()
        .filter(|track| track.uuid == Some(Track::new(77).uuid()));
    let told: Vec<_> = of_track.map(|track| track.description.as_deref()).collect();
    assert_eq!(told, [None, Some("changed")]);
}

#[test]
fn names_that_the_program_chooses_are_in_the_trace_at_once() {
    let mut thread = None;
    let packets = Recording::of(TrackEventConfig::default(), || {
        thread = Some(Track::thread());
        trace_event_instant!("c", "Before");
        crate::track::set_thread_name("A name of more than 15 bytes");
        crate::track::set_process_name("frontend");
        crate::track::erase_track_descriptor(&Track::process());
    });
    let events = Events::of(&packets);
    let last = |track: Track| {
        let mut told = events.tracks.iter().rev();
        told.find(|told| told.uuid == Some(track.uuid())).unwrap()
    };
    let thread = &last(thread.unwrap()).thread;
    assert_eq!(
        thread.thread_name.as_deref(),
        Some("A name of more than 15 bytes")
    );
    assert_eq!(thread.pid, Some(std::process::id() as i32));
    let process = &last(Track::process()).process;
    assert_eq!(process.process_name.as_deref(), Some("frontend"));
    assert!(!process.cmdline.is_empty());
}

#[test]
fn a_thread_with_thousands_of_tracks_does_not_describe_each_before_each_event() {
    const TRACKS: u64 = 5000;
    let packets = Recording::of(TrackEventConfig::default(), || {
        for round in 0..4 {
            for number in 0..TRACKS {
                let name = format!("a track of which there are many, {number}");
                trace_counter!("c", CounterTrack::dynamic(&name), round);
            }
        }
    });
    let described = packets
        .iter()
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackDescriptor(_))));
    let described = described.count() as u64;
    assert!((TRACKS..TRACKS + 10).contains(&described), "{described}");
}

#[test]
fn disabled_events_are_neither_recorded_nor_evaluated() {
    let config = TrackEventConfig {
        enabled_categories: vec!["wanted".into(), "dynamic.*".into()],
        disabled_categories: vec!["*".into()],
        ..Default::default()
    };
    static SLOW: Category = Category::new("unwanted.defined").description("d").tags(&["slow"]);
    let packets = Recording::of(config, || {
        trace_event_instant!("unwanted", "No", "value" => {
            assert!(std::hint::black_box(false), "evaluated");
            1
        });
        trace_event_instant!(&SLOW, "No");
        trace_event_instant!("wanted", "Yes");
        trace_event_instant!("unwanted,wanted", "Group");
        trace_event_instant!(DynamicCategory("dynamic.one"), "Dynamic");
        trace_event_instant!(DynamicCategory("other"), "No");
        assert!(trace_category_enabled!("wanted") && !trace_category_enabled!("unwanted"));
    });
    {
        // Other tests may enable the category.
        let _alone = alone();
        assert!(!trace_category_enabled!("wanted"));
    }
    let expected = [
        (INSTANT, "wanted", "Yes"),
        (INSTANT, "unwanted,wanted", "Group"),
        (INSTANT, "dynamic.one", "Dynamic"),
    ];
    let expected = expected.map(|(kind, category, name)| (kind, category.to_owned(), name.to_owned()));
    assert_eq!(Events::of(&packets).summary(), expected);
}

#[test]
fn cleared_state_is_written_again() {
    let recording = Recording::start(TrackEventConfig::default());
    on_a_thread(|| {
        for _ in 0..2 {
            trace_event_instant!("c", "Event", "a" => 1);
            registry::clear_incremental_state(recording.slot);
        }
    });
    let packets = recording.finish();
    let resets = packets
        .iter()
        .filter(|packet| packet.sequence_flags == Some(1))
        .count();
    assert_eq!(resets, 2);
    assert_eq!(Events::of(&packets).summary().len(), 2);
}

#[test]
fn every_instance_gets_the_events_that_it_listens_to() {
    let first = Recording::start(TrackEventConfig::default());
    let second = Recording::start_in(1, &TrackEventConfig::default());
    second.listen(&TrackEventConfig::default());
    on_a_thread(|| {
        trace_event!("c", "Both");
        registry::stop(first.slot);
        trace_event_instant!("c", "Second");
    });
    let second = Events::of(&second.finish()).summary();
    assert_eq!(second.len(), 3, "{second:?}");
    let first = Events::of(&first.finish()).summary();
    assert_eq!(first, [(BEGIN, "c".to_owned(), "Both".to_owned())]);
}

#[test]
fn an_instance_that_starts_in_the_middle_of_a_slice_does_not_see_its_end() {
    let recording = Recording::start(TrackEventConfig::default());
    on_a_thread(|| {
        trace_event!("c", "Long");
        registry::stop(recording.slot);
        recording.listen(&TrackEventConfig::default());
        trace_event_instant!("c", "After");
    });
    let expected = [(BEGIN, "c", "Long"), (INSTANT, "c", "After")];
    let expected = expected.map(|(kind, category, name)| (kind, category.to_owned(), name.to_owned()));
    assert_eq!(Events::of(&recording.finish()).summary(), expected);
}

#[test]
fn an_instance_that_starts_while_a_beginning_is_written_does_not_see_the_end() {
    let recording = Recording::start(TrackEventConfig::default());
    let change = || {
        registry::stop(recording.slot);
        recording.listen(&TrackEventConfig::default());
    };
    let end_of = |slice: crate::Slice| {
        trace_event_instant!("c", "Inside");
        drop(slice);
    };
    on_a_thread(|| {
        end_of(trace_slice!("c", "First on its sequence", |_| change()));
        end_of(trace_slice!("c", "Later", |_| change()));
        end_of(trace_slice!("c", "Alone", |_| {}));
    });
    let summary = Events::of(&recording.finish()).summary();
    let kinds: Vec<_> = summary.iter().map(|(kind, _, _)| *kind).collect();
    assert_eq!(
        kinds,
        [BEGIN, INSTANT, BEGIN, INSTANT, BEGIN, INSTANT, END],
        "{summary:?}"
    );
}

#[test]
fn events_in_the_middle_of_others_are_counted_and_not_recorded() {
    struct Tracing;
    impl std::fmt::Display for Tracing {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            trace_event_instant!("c", "Nested");
            f.write_str("text")
        }
    }
    let recording = Recording::start(TrackEventConfig::default());
    let before = super::nested_events();
    on_a_thread(|| {
        trace_event_instant!("c", "Outer", "value" => crate::debug_annotation::display(Tracing));
    });
    assert_eq!(super::nested_events(), before + 1);
    let packets = recording.finish();
    assert_eq!(Events::of(&packets).summary().len(), 1);
}

#[test]
fn after_a_loss_everything_is_written_again() {
    let recording = Recording::start(TrackEventConfig::default());
    let (mut sent, mut events) = (0u64, Vec::new());
    on_a_thread(|| {
        for round in 0..3 {
            // These events take more than the memory holds.
            for _ in 0..60_000 {
                trace_event_instant!("c", "Filler", "text" => "0123456789012345678901234567890123456789");
                sent += 1;
            }
            events.extend(recording.take());
            trace_event_instant!("c", "Round", "number" => round);
            sent += 1;
        }
    });
    events.extend(recording.finish());
    let lost = events
        .iter()
        .filter(|packet| packet.previous_packet_dropped.unwrap_or(0) != 0);
    for packet in lost.clone() {
        assert_eq!(packet.sequence_flags, Some(1), "what follows a loss starts over");
    }
    assert_eq!(lost.count(), 3);
    let summary = Events::of(&events).summary();
    assert!((summary.len() as u64) < sent);
    assert_eq!(summary.iter().filter(|(_, _, name)| name == "Round").count(), 3);
}

#[test]
fn a_slice_that_outlasts_its_session_is_left_open_with_any_config() {
    for filter in [false, true] {
        let recording = Recording::start(TrackEventConfig {
            filter_dynamic_event_names: Some(filter),
            ..Default::default()
        });
        on_a_thread(|| {
            trace_event!(DynamicCategory("c"), "Long");
            registry::stop(recording.slot);
        });
        let summary = Events::of(&recording.finish()).summary();
        assert_eq!(summary, [(BEGIN, "c".to_owned(), "Long".to_owned())], "{filter}");
    }
}

#[test]
fn events_after_one_that_has_panicked_are_not_early() {
    struct Panicking;
    impl std::fmt::Display for Panicking {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            panic!("for this test")
        }
    }
    const MILLISECOND: u64 = 1_000_000;
    let mut before = 0;
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_event_instant!("c", "First");
        // Readers would notice if this time were missing.
        let first = crate::clock::now();
        while crate::clock::now() < first + 10 * MILLISECOND {}
        std::panic::catch_unwind(|| {
            trace_event_instant!("c", "Lost", "value" => crate::debug_annotation::display(Panicking));
        })
        .unwrap_err();
        before = crate::clock::now();
        trace_event_instant!("c", "After");
    });
    let events = Events::of(&packets);
    let names: Vec<_> = events.summary().into_iter().map(|(_, _, name)| name).collect();
    assert_eq!(names, ["First", "After"]);
    let (time, _) = events.events[1];
    assert!(time + MILLISECOND > before, "{time}, but not before {before}");
}
