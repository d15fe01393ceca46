//! How often a trigger may be activated: limits, chance, budgets.

use super::*;

/// Returns whether the trigger `t` stops a session with this config.
fn stops_it(world: &mut World, config: &TraceConfig, random: u64) -> bool {
    let producer = world.producer("p");
    let consumer = world.consumer();
    world.enable(consumer, config);
    world.activate_with(producer, &["t"], random);
    let stopped = !triggers(&world.read(consumer)).is_empty();
    world.lose_consumer(consumer);
    world.lose_producer(producer);
    stopped
}

fn limited(max_per_24_h: u32) -> TraceConfig {
    let trigger = Trigger {
        max_per_24_h: Some(max_per_24_h),
        ..trigger("t", 1)
    };
    triggered(TriggerMode::STOP_TRACING, DAY, &[trigger])
}

#[test]
fn a_limit_holds_for_24_hours_across_sessions_and_producers() {
    let mut world = World::new();
    assert!(stops_it(&mut world, &limited(1), 0));
    world.advance(23 * HOUR);
    assert!(!stops_it(&mut world, &limited(1), 0));
    assert!(
        stops_it(&mut world, &limited(2), 0),
        "the one refused does not count"
    );
    world.advance(HOUR);
    assert!(
        !stops_it(&mut world, &limited(1), 0),
        "24 hours, to the nanosecond"
    );
    world.advance(23 * HOUR + 1);
    assert!(stops_it(&mut world, &limited(1), 0));
}

#[test]
fn activations_for_sessions_without_a_limit_count_as_well() {
    let mut world = World::new();
    assert!(stops_it(&mut world, &limited(0), 0));
    assert!(!stops_it(&mut world, &limited(1), 0));
    assert!(stops_it(&mut world, &limited(0), 0));
}

#[test]
fn an_activation_that_reaches_several_sessions_counts_once() {
    let (mut world, producer, first) = world();
    let second = world.consumer();
    world.enable(first, &limited(2));
    world.enable(second, &limited(2));
    world.activate(producer, &["t"]);
    world.activate(producer, &["t"]);
    world.activate(producer, &["t"]);
    for consumer in [first, second] {
        assert_eq!(triggers(&world.read(consumer)), ["t", "t"]);
    }
}

#[test]
fn the_limit_is_one_for_each_name() {
    let mut world = World::new();
    assert!(stops_it(&mut world, &limited(1), 0));
    let other = Trigger {
        name: Some("another".into()),
        ..limited(1).trigger_config.triggers[0].clone()
    };
    let (producer, consumer) = (world.producer("p"), world.consumer());
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, DAY, &[other]));
    world.activate(producer, &["another"]);
    assert_eq!(triggers(&world.read(consumer)), ["another"]);
}

#[test]
fn triggers_are_skipped_as_often_as_their_probability_says() {
    let with = |skip_probability| {
        let trigger = Trigger {
            skip_probability: Some(skip_probability),
            ..trigger("t", 1)
        };
        triggered(TriggerMode::STOP_TRACING, DAY, &[trigger])
    };
    let mut world = World::new();
    let mut skipped = |probability| {
        (0..1000)
            .filter(|random| !stops_it(&mut world, &with(probability), *random))
            .count()
    };
    assert_eq!(skipped(0.0), 0);
    assert_eq!(skipped(-1.0), 0);
    assert_eq!(skipped(f64::NAN), 0);
    assert_eq!(skipped(1.0), 1000);
    assert_eq!(skipped(2.0), 1000);
    assert!((110..190).contains(&skipped(0.15)));
}

#[test]
fn skipped_activations_do_not_count_towards_the_limit() {
    let mut world = World::new();
    let mut always_skipped = limited(1);
    always_skipped.trigger_config.get_or_insert_default().triggers[0].skip_probability = Some(1.0);
    assert!(!stops_it(&mut world, &always_skipped, 0));
    assert!(stops_it(&mut world, &limited(1), 0));
}

#[test]
fn each_session_draws_for_itself() {
    let half = Trigger {
        skip_probability: Some(0.5),
        ..trigger("t", 1)
    };
    let half = triggered(TriggerMode::STOP_TRACING, DAY, &[half]);
    let mut outcomes = std::collections::BTreeSet::new();
    for random in 0..50 {
        let (mut world, producer, first) = world();
        let second = world.consumer();
        world.enable(first, &half);
        world.enable(second, &half);
        world.activate_with(producer, &["t"], random);
        outcomes.insert([first, second].map(|consumer| world.read(consumer).is_empty()));
    }
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
}

#[test]
fn a_producer_that_floods_is_cut_to_its_budget_and_named_once() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", DAY)]),
    );
    let flood = vec![""; limits::TRIGGER_BURST as usize];
    world.activate(producer, &flood);
    for _ in 0..10 {
        world.activate(producer, &["t"]);
    }
    assert!(world.read(consumer).is_empty(), "unknown names cost as well");
    let named = |world: &World| {
        let lines = world
            .log
            .iter()
            .filter(|line| line.contains("mock_producer") && line.contains("at once"));
        lines.count()
    };
    assert_eq!(named(&world), 1);
    // Other producers may still activate triggers.
    let other = world.producer("other");
    world.activate(other, &["t"]);
    assert_eq!(triggers(&world.read(consumer)), ["t"]);
    world.advance(1000);
    world.activate(producer, &vec!["t"; limits::TRIGGERS_PER_SECOND as usize + 1]);
    let passed = triggers(&world.read(consumer)).len();
    assert_eq!(passed as u64, limits::TRIGGERS_PER_SECOND);
    assert_eq!(named(&world), 1);
}

#[test]
fn a_session_keeps_no_more_triggers_than_the_limit_and_says_so() {
    let (mut world, _, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", DAY)]),
    );
    for number in 0..3 {
        let producer = world.producer(&format!("p{number}"));
        world.activate(producer, &vec!["t"; limits::TRIGGER_BURST as usize]);
    }
    let told = world.log.iter().filter(|line| line.contains("not in the trace"));
    assert_eq!(told.count(), 1);
    assert_eq!(
        triggers(&world.read(consumer)).len(),
        limits::MAX_TRIGGERS_RECEIVED
    );
}
