//! Sessions that a trigger stops.

use super::*;

#[test]
fn it_records_at_once_and_stops_a_while_after_the_trigger() {
    let (mut world, producer, consumer) = world();
    let session = world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 100)]),
    );
    assert_eq!(world.count(producer, starts), 1);
    world.commit(producer, 1, world.target(producer), &[&packet("before")]);
    world.advance(HOUR);
    assert!(world.read(consumer).is_empty(), "there was no trigger");

    world.activate(producer, &["t"]);
    world.commit(producer, 1, world.target(producer), &[&packet("after")]);
    world.advance(99);
    assert_eq!(world.count(producer, flushes), 0);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer));
    let trace = world.read(consumer);
    assert_eq!(texts(&trace), ["before", "after"]);
    assert_eq!(triggers(&trace), ["t"]);
    let config = trace_config_of(&trace);
    assert_eq!(
        config.trigger_config.trigger_mode,
        Some(TriggerMode::STOP_TRACING)
    );
    assert_eq!(config.duration_ms, Some(DAY), "the timeout, as upstream has it");
    let state = world.state(consumer, StateScope::Sessions);
    let listed = state
        .tracing_sessions
        .iter()
        .find(|listed| listed.id == Some(session.0));
    assert_eq!(listed.and_then(|listed| listed.duration_ms), Some(DAY));
}

#[test]
fn without_a_trigger_it_ends_after_the_timeout_with_an_empty_trace() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, 50, &[trigger("t", 1)]),
    );
    world.commit(producer, 1, world.target(producer), &[&packet("data")]);
    assert!(world.read(consumer).is_empty());
    world.advance(50);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer));
    assert!(world.read(consumer).is_empty());
}

#[test]
fn the_trigger_overrides_the_timeout() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, 50, &[trigger("t", 1000)]),
    );
    world.advance(49);
    world.activate(producer, &["t"]);
    world.advance(999);
    assert_eq!(world.count(producer, flushes), 0);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer));
}

#[test]
fn the_first_of_several_triggers_stops_it_and_all_are_in_the_trace() {
    let (mut world, producer, consumer) = world();
    let both = [trigger("t1", 1), trigger("t3", 30_000)];
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, 30_000, &both));
    world.activate(producer, &["t1", "t2", "t3"]);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer));
    world.advance(60_000);
    assert_eq!(world.count(producer, flushes), 1, "it stops once");
    assert_eq!(triggers(&world.read(consumer)), ["t1", "t3"]);
}

#[test]
fn a_trigger_without_delay_stops_it_at_once() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 0)]),
    );
    world.activate(producer, &["t"]);
    assert_eq!(world.service.next_deadline(), Some(world.now.monotonic));
    world.advance(0);
    assert_eq!(world.count(producer, flushes), 1);
}

#[test]
fn triggers_that_come_between_two_readings_are_in_the_second() {
    let (mut world, producer, consumer) = world();
    let both = [trigger("t", 1), trigger("t2", 1)];
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, 30_000, &both));
    world.activate(producer, &["t"]);
    let trace = world.read(consumer);
    assert_eq!(triggers(&trace), ["t"]);
    trace_config_of(&trace);
    world.activate(producer, &["t2"]);
    assert_eq!(triggers(&world.read(consumer)), ["t2"]);
}

#[test]
fn packets_that_the_ring_buffer_lost_before_the_trigger_stay_lost() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 1)]),
    );
    let target = world.target(producer);
    // The packets take more than the 64 KB of the buffer.
    for _ in 0..20 {
        world.commit(producer, 1, target, &[&packet(&"x".repeat(3900))]);
    }
    world.commit(producer, 1, target, &[&packet("before")]);
    world.activate(producer, &["t"]);
    world.commit(producer, 1, target, &[&packet("after")]);
    world.advance(1);
    world.acknowledge_flushes(producer);
    let read = texts(&world.read(consumer));
    assert!(read.ends_with(&["before".to_owned(), "after".to_owned()]));
    assert!((2..20).contains(&read.len()), "{}", read.len());
}

#[test]
fn a_trigger_before_the_start_ends_a_deferred_session() {
    let (mut world, producer, consumer) = world();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 10)])
    };
    world.enable(consumer, &deferred);
    world.activate(producer, &["t"]);
    world.advance(10);
    assert!(is_over(&world, consumer));
    assert_eq!(world.count(producer, starts), 0);
    assert_eq!(triggers(&world.read(consumer)), ["t"]);
}

#[test]
fn a_detached_session_ends_for_good() {
    for deferred in [false, true] {
        let (mut world, producer, consumer) = world();
        let config = TraceConfig {
            deferred_start: Some(deferred),
            ..triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 10)])
        };
        world.enable(consumer, &config);
        world.service.detach(consumer, "key").unwrap();
        world.activate(producer, &["t"]);
        world.advance(10);
        world.acknowledge_flushes(producer);
        assert!(
            world.service.attach(consumer, "key").is_err(),
            "deferred: {deferred}"
        );
        assert_eq!(world.service.buffer_bytes(), 0);
    }
}
