//! Values of counters and states, and counters whose values are differences.

use super::*;

#[test]
fn counters_have_integer_and_fractional_values_and_states_their_names() {
    static HEAP: CounterTrack = CounterTrack::new("Heap");
    static LINK: StateTrack = StateTrack::new("Link");
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_counter!("c", "Frames", 60);
        trace_counter!("c", &HEAP, 1.5, timestamp = 77);
        trace_state!("c", &LINK, "Up");
        trace_state!("c", &LINK, format!("Down {}", 2));
    });
    let events = Events::of(&packets);
    let values: Vec<_> = events
        .events
        .iter()
        .map(|(_, event)| event.counter_value_field.clone())
        .collect();
    assert_eq!(values[0], Some(track_event::CounterValueField::CounterValue(60)));
    assert_eq!(
        values[1],
        Some(track_event::CounterValueField::DoubleCounterValue(1.5))
    );
    assert_eq!(events.events[1].0, 77);
    let expected = [
        (COUNTER, "", ""),
        (COUNTER, "", ""),
        (STATE, "c", "Up"),
        (STATE, "c", "Down 2"),
    ];
    let expected = expected.map(|(kind, category, name)| (kind, category.to_owned(), name.to_owned()));
    assert_eq!(events.summary(), expected);
    assert_eq!(events.events[2].1.track_uuid, Some(LINK.uuid()));
}

#[test]
fn incremental_counters_take_values_and_record_differences_from_zero_on() {
    let whole = CounterTrack::new("Whole").incremental();
    static BROKEN: CounterTrack = CounterTrack::new("Broken").incremental();
    static ABSOLUTE: CounterTrack = CounterTrack::new("Absolute");
    let told = |packets: &[TracePacket]| -> Vec<(u64, f64)> {
        let value = |event: &TrackEvent| match event.counter_value_field {
            Some(track_event::CounterValueField::CounterValue(value)) => value as f64,
            Some(track_event::CounterValueField::DoubleCounterValue(value)) => value,
            _ => panic!("{event:?}"),
        };
        let events = Events::of(packets).events;
        events
            .iter()
            .map(|(_, event)| (event.track_uuid.unwrap(), value(event)))
            .collect()
    };
    // One call site records into two counters, one with differences and one with absolute values.
    let record = || {
        for value in [100, 110, 90, 90, -5] {
            for track in [whole, ABSOLUTE] {
                trace_counter!("c", track, value);
            }
            trace_counter!("c", &BROKEN, f64::from(value) / 4.0);
        }
    };
    let packets = Recording::of(TrackEventConfig::default(), record);
    let expected: Vec<(u64, f64)> = [(100, 100), (10, 110), (-20, 90), (0, 90), (-95, -5)]
        .iter()
        .flat_map(|&(difference, value)| {
            [
                (whole.uuid(), f64::from(difference)),
                (ABSOLUTE.uuid(), f64::from(value)),
                (BROKEN.uuid(), f64::from(difference) / 4.0),
            ]
        })
        .collect();
    assert_eq!(told(&packets), expected);
}

/// Values of counters as readers compute them. From the description of an incremental counter on, its values are differences. A sequence starts at 0.
fn read_values(packets: &[TracePacket]) -> Vec<(u64, i64)> {
    let mut differing: BTreeMap<u64, Option<i64>> = BTreeMap::new();
    let mut values = Vec::new();
    for packet in packets {
        if packet.sequence_flags.unwrap_or(0) & 1 != 0 {
            // The tracks have to be described again.
            differing.clear();
        }
        match &packet.data {
            Some(trace_packet::Data::TrackDescriptor(track)) => {
                let is_incremental = track.counter.is_incremental.unwrap_or(false);
                // Another descriptor for the same track does not change it.
                differing
                    .entry(track.uuid.unwrap())
                    .or_insert(is_incremental.then_some(0));
            }
            Some(trace_packet::Data::TrackEvent(event)) => {
                if let Some(track_event::CounterValueField::CounterValue(told)) = event.counter_value_field {
                    let track = event.track_uuid.unwrap();
                    let value = match differing.get_mut(&track).expect("it is described") {
                        None => told,
                        Some(last) => {
                            *last += told;
                            *last
                        }
                    };
                    values.push((track, value));
                }
            }
            _ => {}
        }
    }
    values
}

#[test]
fn an_incremental_counter_is_one_however_readers_first_heard_of_it() {
    static BY_INSTANT: CounterTrack = CounterTrack::new("told by an instant").incremental();
    static BY_CHILD: CounterTrack = CounterTrack::new("told by a child").incremental();
    static REPLACED: CounterTrack = CounterTrack::new("told as whole").incremental();
    let child = Track::with_parent(5, BY_CHILD.track());
    let mut descriptor = crate::track::track_descriptor(&BY_CHILD);
    descriptor.description = Some("registered".to_owned());
    crate::track::set_track_descriptor(&BY_CHILD, descriptor);
    // An application's own descriptor decides whether a counter is incremental.
    let mut descriptor = crate::track::track_descriptor(&REPLACED);
    descriptor.counter.get_or_insert_default().is_incremental = None;
    crate::track::set_track_descriptor(&REPLACED, descriptor);
    let packets = Recording::of(TrackEventConfig::default(), || {
        trace_event_instant!("c", "On a counter", track = &BY_INSTANT);
        trace_event_instant!("c", "Below a counter", track = child);
        for value in [100, 110, 90] {
            // All use one call site, so the second event tries the short path.
            for track in [&BY_INSTANT, &BY_CHILD, &REPLACED] {
                trace_counter!("c", track, value);
            }
        }
    });
    crate::track::erase_track_descriptor(&BY_CHILD);
    crate::track::erase_track_descriptor(&REPLACED);
    let uuids = [BY_INSTANT.uuid(), BY_CHILD.uuid(), REPLACED.uuid()];
    let expected = [100, 110, 90].map(|value| uuids.map(|uuid| (uuid, value)));
    assert_eq!(read_values(&packets), expected.concat());
}

#[test]
fn any_number_of_incremental_counters_is_right_and_a_limited_number_is_remembered() {
    const COUNTERS: u64 = 5000;
    let mut expected = Vec::new();
    let packets = Recording::of(TrackEventConfig::default(), || {
        for number in 0..COUNTERS {
            let name = format!("counter {number}");
            // The first counter gets a value in every round.
            for track in [CounterTrack::dynamic(&name), CounterTrack::dynamic("counter 0")] {
                let (track, value) = (track.incremental(), 7 + number);
                trace_counter!("c", track, value);
                expected.push((track.uuid(), value.cast_signed()));
            }
        }
    });
    assert_eq!(read_values(&packets), expected);
    let starts = packets
        .iter()
        .filter(|packet| packet.sequence_flags == Some(1))
        .count();
    // The sequence starts over when it has too many counters, or when their names take too many bytes.
    assert!((2..10).contains(&starts), "{starts}");
}
