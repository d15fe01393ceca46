use ferretto_proto::messages::TrackEventConfig;
use ferretto_proto::messages::track_event::{CounterValueField, Type};
use proptest::prelude::*;

use super::super::tests::{Events, Recording, name};
use super::*;
use crate::track::StateTrack;
use crate::{
    trace_category_enabled, trace_counter, trace_event, trace_event_begin, trace_event_end,
    trace_event_instant, trace_state,
};

const EVENTS: u64 = 10_000;

/// The contents of a trace about one sampled category.
#[derive(Debug, Default)]
struct Told {
    begun: u64,
    ended: u64,
    /// The number of slices that each recorded slice stands for, including itself.
    weights: Vec<u64>,
}

fn told(events: &Events) -> Told {
    let mut told = Told::default();
    let (mut left_out, mut counted) = (0, 0);
    for (_, event) in &events.events {
        match event.r#type {
            Some(Type::TYPE_COUNTER) => match event.counter_value_field {
                Some(CounterValueField::CounterValue(value)) => left_out = value as u64,
                _ => panic!("{event:?}"),
            },
            Some(Type::TYPE_SLICE_BEGIN) => {
                told.begun += 1;
                told.weights.push(1 + left_out - counted);
                counted = left_out;
            }
            Some(Type::TYPE_SLICE_END) => told.ended += 1,
            _ => panic!("{event:?}"),
        }
    }
    told
}

#[test]
fn slices_are_sampled_with_their_ends_and_stand_for_the_omitted_ones() {
    static SAMPLED: SampledCategory = Category::new("sampled").sample(0.25);
    let packets = Recording::of(TrackEventConfig::default(), || {
        for number in 0..EVENTS / 2 {
            trace_event!(&SAMPLED, "Slice");
            trace_event!(&SAMPLED, "Inner slice", "number" => number);
        }
    });
    let told = told(&Events::of(&packets));
    assert_eq!(told.begun, told.ended);
    // The expected number is 2500 ± 43. The bounds are six standard deviations away.
    assert!((2240..=2760).contains(&told.begun), "{}", told.begun);
    assert_eq!(told.begun + SAMPLED.left_out(), EVENTS);
    let after_the_last = EVENTS - told.weights.iter().sum::<u64>();
    assert!(after_the_last < 200, "{after_the_last}");
}

fn left_out_and_not_evaluated() -> u32 {
    panic!("it is evaluated")
}

#[test]
fn a_probability_of_one_is_all_and_of_zero_is_none() {
    static ALL: SampledCategory = Category::new("all").sample(1.0);
    static NONE: SampledCategory = Category::new("none").sample(0.0);
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..100 {
            trace_event_instant!(&ALL, "Instant");
            trace_event_instant!(&NONE, "Instant", "number" => left_out_and_not_evaluated());
        }
    });
    let events = Events::of(&packets);
    let instants = events.events.iter().map(|(_, event)| event);
    let instants: Vec<_> = instants
        .filter(|event| event.r#type == Some(Type::TYPE_INSTANT))
        .collect();
    assert_eq!(instants.len(), 100);
    assert!(instants.iter().all(|event| event.categories == ["all"]));
    assert_eq!((ALL.left_out(), NONE.left_out()), (0, 100));
}

#[test]
fn counters_states_and_loose_ends_are_always_recorded() {
    static NONE: SampledCategory = Category::new("sampled to none").sample(0.0);
    static STATE: StateTrack<'_> = StateTrack::new("State");
    let packets = Recording::of(TrackEventConfig::default(), || {
        assert!(trace_category_enabled!(&NONE));
        trace_event_begin!(&NONE, "Begins");
        trace_event_end!(&NONE);
        trace_counter!(&NONE, "Counter", 1);
        trace_state!(&NONE, &STATE, "State");
    });
    let events = Events::of(&packets);
    let recorded: Vec<_> = events
        .events
        .iter()
        .map(|(_, event)| (event.r#type.unwrap(), name(event)))
        .collect();
    assert_eq!(
        recorded,
        [
            // The counter says that no slice was left out so far.
            (Type::TYPE_COUNTER, ""),
            (Type::TYPE_SLICE_BEGIN, "Begins"),
            (Type::TYPE_SLICE_END, ""),
            (Type::TYPE_COUNTER, ""),
            (Type::TYPE_STATE, "State"),
        ]
    );
    assert_eq!(NONE.left_out(), 0, "to ask whether it is enabled is no event");
}

#[test]
fn nothing_is_counted_while_nobody_records_the_category() {
    static NONE: SampledCategory = Category::new("unheard").sample(0.0);
    let config = TrackEventConfig {
        disabled_categories: vec!["*".to_owned()],
        ..Default::default()
    };
    let packets = Recording::of(config, || {
        trace_event!(&NONE, "Slice");
        assert!(!trace_category_enabled!(&NONE));
    });
    assert_eq!(Events::of(&packets).events.len(), 0);
    assert_eq!(NONE.left_out(), 0);
}

#[test]
fn no_more_are_recorded_than_the_rate_allows() {
    static LIMITED: SampledCategory = Category::new("limited").rate_limit(50);
    let begun = clock::now();
    let packets = Recording::of(TrackEventConfig::default(), || {
        for _ in 0..EVENTS {
            trace_event!(&LIMITED, "Slice");
        }
    });
    let elapsed = clock::now() - begun;
    let told = told(&Events::of(&packets));
    assert_eq!(told.begun, told.ended);
    assert_eq!(told.begun + LIMITED.left_out(), EVENTS);
    let at_most = 5 + elapsed / LIMITED.limit.as_ref().unwrap().interval;
    assert!((5..=at_most).contains(&told.begun), "{} of {at_most}", told.begun);
}

proptest! {
    #[test]
    fn a_rate_limit_admits_a_burst_and_then_the_rate(
        per_second in 1u32..100_000,
        pauses in proptest::collection::vec(0u64..50_000_000, 1..200),
    ) {
        let limit = RateLimit::new(per_second);
        let interval = limit.interval;
        let burst = u64::from(per_second / 10).max(1);
        let mut now = 1_000_000_000;
        let mut admitted: Vec<u64> = Vec::new();
        for pause in pauses {
            now += pause;
            let admits = limit.admits(now);
            // Every stretch that ends now has at most a burst and the events that the rate allows.
            let exceeds = admitted.iter().enumerate().any(|(earlier, since)| {
                let count = (admitted.len() - earlier + 1) as u64;
                count > burst + (now - since) / interval
            });
            prop_assert_eq!(admits, !exceeds);
            if admits {
                admitted.push(now);
            }
        }
    }
}

#[test]
fn draws_are_spread_evenly_and_differ_from_thread_to_thread() {
    let draws = || (0..4096).map(|_| draw()).collect::<Vec<u64>>();
    let [one, other] = [draws; 2].map(|draws| std::thread::spawn(draws).join().unwrap());
    assert_ne!(one, other);
    for draws in [one, other] {
        let mut sixteenths = [0u32; 16];
        for draw in draws {
            sixteenths[usize::try_from(draw * 16 / ALL_DRAWS).unwrap()] += 1;
        }
        // 256 ± 15.5 each.
        assert!(
            sixteenths.iter().all(|count| (140..=372).contains(count)),
            "{sixteenths:?}"
        );
    }
}
