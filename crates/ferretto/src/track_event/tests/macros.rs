//! The arguments of the macros: names that are part of the program, options in any order, times of the standard library.

use std::time::{Duration, Instant, SystemTime};

use ferretto_proto::messages::{TrackEventConfig, trace_packet, track_event};

use super::{Events, Recording, name};
use crate::track::{NamedTrack, TrackLike};
use crate::{Flow, StaticName, trace_counter, trace_event, trace_event_instant, trace_slice, trace_state};

/// The names of the events that `events` records, and whether each name was interned only once.
fn names(events: impl Fn() + Send) -> Vec<(String, bool)> {
    let packets = Recording::of(TrackEventConfig::default(), move || {
        events();
        events();
    });
    let by_id = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::TrackEvent(event)) => Some(matches!(
            event.name_field,
            Some(track_event::NameField::NameIid(_))
        )),
        _ => None,
    });
    let read = Events::of(&packets);
    let mut told: Vec<(String, bool)> = read
        .events
        .iter()
        .map(|(_, event)| name(event).to_owned())
        .zip(by_id)
        .collect();
    let again = told.split_off(told.len() / 2);
    assert_eq!(told, again);
    told
}

const CONSTANT: &str = "constant";
static STATIC: &str = "static";
const WRAPPED: StaticName = StaticName("wrapped");
/// A name that the macros' own statics could have.
const SITE: &str = "site";

mod elsewhere {
    pub(super) const CONSTANT: &str = "constant elsewhere";
    pub(super) const WRAPPED: crate::StaticName = crate::StaticName("wrapped elsewhere");
}

trait Named {
    const NAME: &'static str;

    fn instant(&self) {
        trace_event_instant!("c", Self::NAME);
    }
}

struct Cat;

impl Named for Cat {
    const NAME: &'static str = "Cat";
}

enum Kind {
    Walk,
}

impl AsRef<str> for Kind {
    fn as_ref(&self) -> &str {
        "Walk"
    }
}

#[test]
fn constants_are_names_that_are_written_once() {
    let told = names(|| {
        trace_event_instant!("c", CONSTANT);
        trace_event_instant!("c", STATIC, "number" => 1);
        trace_event_instant!("c", WRAPPED);
        trace_event_instant!("c", SITE);
        trace_event_instant!("c", concat!("con", "cat", 1));
        trace_event_instant!("c", stringify!(a + b), "number" => 1,);
        trace_event_instant!("c", module_path!());
        trace_event_instant!(
            "c",
            const {
                match CONSTANT.len() {
                    8 => "eight",
                    _ => "other",
                }
            }
        );
        trace_event_instant!("c", elsewhere::CONSTANT);
        trace_event_instant!("c", self::elsewhere::WRAPPED, "number" => 1);
        Cat.instant();
        static LAMP: crate::track::StateTrack = crate::track::StateTrack::new("Lamp");
        trace_state!("c", &LAMP, CONSTANT);
        trace_state!("c", "Lamp", concat!("o", "n"));
    });
    let expected = [
        "constant",
        "static",
        "wrapped",
        "site",
        "concat1",
        "a + b",
        module_path!(),
        "eight",
        "constant elsewhere",
        "wrapped elsewhere",
        "Cat",
        "constant",
        "on",
    ];
    assert_eq!(told, expected.map(|name| (name.to_owned(), true)));
}

#[test]
fn other_names_are_made_when_the_event_happens() {
    let name = String::from("variable");
    let told = names(|| {
        trace_event_instant!("c", name);
        trace_event_instant!("c", &name[..3]);
        trace_event_instant!("c", format!("{name} {}", 1), "number" => 1);
        trace_event_instant!("c", Kind::Walk);
        let slice = trace_slice!("c", name.as_str());
        drop(slice);
    });
    let told: Vec<_> = told.iter().map(|(name, by_id)| (&**name, *by_id)).collect();
    let expected = ["variable", "var", "variable 1", "Walk", "variable", ""];
    assert_eq!(told, expected.map(|name| (name, false)));
}

#[test]
fn options_and_the_closure_come_in_any_order() {
    static TRACK: NamedTrack = NamedTrack::new("Options");
    let flow = Flow::process_scoped(7);
    let fill = |event: &mut crate::EventContext<'_, '_>| {
        event.annotation("filled", true);
    };
    let packets = Recording::of(TrackEventConfig::default(), move || {
        trace_event_instant!("c", "One", track = &TRACK, timestamp = 9, flow = flow, "one" => 1, |event| {
            event.annotation("filled", true);
        });
        trace_event_instant!("c", "One", |event| { event.annotation("filled", true); }, "one" => 1, flow = flow,
            timestamp = 9, track = &TRACK);
        trace_event_instant!("c", "One", "one" => 1, timestamp = 9, fill, flow = flow, track = &TRACK,);
        trace_event_instant!("c", String::from("One"), flow = flow, move |event| _ = event.annotation("filled", true),
            track = &TRACK, "one" => 1, timestamp = 9);
        {
            trace_event!("c", "One", |event| { event.annotation("filled", true); }, track = &TRACK, timestamp = 9,
                "one" => 1, flow = flow);
        }
        trace_counter!(
            "c",
            "Count",
            1,
            |event| {
                event.flow(flow);
            },
            timestamp = 9
        );
    });
    let events = Events::of(&packets);
    for (number, (time, event)) in events.events[..5].iter().enumerate() {
        assert_eq!((*time, name(event)), (9, "One"), "{number}");
        assert_eq!(event.track_uuid, Some(TRACK.uuid()), "{number}");
        assert_eq!(event.flow_ids, [flow.id()], "{number}");
        let mut annotations: Vec<_> = event
            .debug_annotations
            .iter()
            .map(|value| super::annotation(value).0)
            .collect();
        annotations.sort_unstable();
        assert_eq!(annotations, ["filled", "one"], "{number}");
    }
    let (time, counter) = events.events.last().unwrap();
    assert_eq!((*time, &*counter.flow_ids), (9, &[flow.id()][..]));
}

#[test]
fn times_are_also_the_standard_librarys() {
    let minute = Duration::from_secs(60);
    let packets = Recording::of(TrackEventConfig::default(), || {
        let (instant, time) = (Instant::now(), SystemTime::now());
        trace_event_instant!("c", "Before", timestamp = instant - minute);
        trace_event_instant!("c", "Before", timestamp = time - minute);
        trace_event_instant!("c", "Now");
    });
    let times: Vec<u64> = Events::of(&packets).events.iter().map(|event| event.0).collect();
    for before in &times[..2] {
        let passed = times[2] - before;
        // The thread may have been interrupted, but not for a minute.
        assert!(
            (60_000_000_000 - 1_000_000..120_000_000_000).contains(&passed),
            "{passed}"
        );
    }
}

#[test]
fn counters_take_names_that_are_computed_when_the_program_is_compiled() {
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_counter!("c", "Jobs queued", 1);
        trace_counter!("c", concat!("Jobs", " ", "queued"), 2);
        trace_counter!("c", const { ["Jobs queued"][0] }, 3, timestamp = 9);
    });
    let tracks: Vec<_> = Events::of(&packets)
        .events
        .iter()
        .map(|(_, event)| event.track_uuid)
        .collect();
    let uuid = crate::track::CounterTrack::new("Jobs queued").uuid();
    assert_eq!(tracks, [Some(uuid); 3]);
}

#[test]
fn ids_are_integers_and_text_of_the_types_that_programs_have() {
    use track_event::CorrelationIdField::{CorrelationId, CorrelationIdStr};
    struct Request {
        id: String,
        number: u32,
    }
    struct OfMine(u64);
    impl From<OfMine> for Flow {
        fn from(OfMine(id): OfMine) -> Self {
            Flow::global(id)
        }
    }
    let request = Request {
        id: "first".into(),
        number: 3,
    };
    let (shared, boxed) = (std::sync::Arc::<str>::from("shared"), Box::<str>::from("boxed"));
    let (signed, size) = (-2_i64, 7_usize);
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_event_instant!("c", "One", correlation_id = request.number, flow = request.number);
        trace_event_instant!("c", "One", correlation_id = &request.id, flow = size);
        trace_event_instant!(
            "c",
            "One",
            correlation_id = format!("{}", request.number),
            flow = 1_u64 << 40
        );
        trace_event_instant!(
            "c",
            "One",
            correlation_id = &*request.id,
            terminating_flow = request.number
        );
        trace_event_instant!("c", "One", correlation_id = shared, flow = OfMine(5));
        trace_event_instant!("c", "One", correlation_id = &boxed, |event| _ =
            event.flow(9.into()));
        trace_event_instant!("c", "One", correlation_id = -signed as u64, flow = -signed as u64);
        trace_event_instant!("c", "One", correlation_id = &size);
        trace_event_instant!("c", "One", correlation_id = signed);
        trace_event_instant!(
            "c",
            "One",
            correlation_id = 0xffff_ffff_ffff,
            flow = 0xffff_ffff_ffff
        );
        trace_event_instant!("c", "One", correlation_id = "literal");
        trace_event_instant!("c", "One", correlation_id = 1 + 1, flow = 1 + 1);
    });
    let events = Events::of(&packets).events.into_iter();
    let (ids, flows): (Vec<_>, Vec<_>) = events
        .map(|(_, event)| (event.correlation_id_field.unwrap(), event.flow_ids))
        .unzip();
    let text = |text: &str| CorrelationIdStr(text.into());
    let expected = [
        CorrelationId(3),
        text("first"),
        text("3"),
        text("first"),
        text("shared"),
        text("boxed"),
        CorrelationId(2),
        CorrelationId(7),
        CorrelationId(u64::MAX - 1),
        CorrelationId(0xffff_ffff_ffff),
        text("literal"),
        CorrelationId(2),
    ];
    assert_eq!(ids, expected);
    let scoped = |id| vec![Flow::process_scoped(id).id()];
    let expected = [
        scoped(3),
        scoped(7),
        scoped(1 << 40),
        vec![],
        vec![5],
        scoped(9),
        scoped(2),
        vec![],
        vec![],
        scoped(0xffff_ffff_ffff),
        vec![],
        scoped(2),
    ];
    assert_eq!(flows, expected);
}

#[test]
fn a_counter_without_a_limit_is_not_below_zero() {
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_counter!("c", "Limit", u64::MAX);
        trace_counter!("c", "Limit", usize::MAX, timestamp = 1);
        trace_counter!("c", "Limit", i64::MAX as u64 - 1);
        trace_counter!("c", "Limit", i64::MIN);
        trace_counter!("c", "Limit", -1_isize);
        trace_counter!("c", "Limit", u32::MAX);
    });
    let events = Events::of(&packets).events.into_iter();
    let values: Vec<_> = events
        .filter_map(|(_, event)| event.counter_value_field)
        .collect();
    let expected = [i64::MAX, i64::MAX, i64::MAX - 1, i64::MIN, -1, u32::MAX.into()];
    assert_eq!(values, expected.map(track_event::CounterValueField::CounterValue));
}
