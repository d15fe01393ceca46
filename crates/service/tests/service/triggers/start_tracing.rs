//! Sessions that a trigger starts.

use super::*;

#[test]
fn nothing_starts_before_the_trigger_and_then_lasts_as_long_as_it_says() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 100)]),
    );
    world.advance(HOUR);
    assert_eq!(world.instances(producer).len(), 1, "it is set up");
    assert_eq!(world.count(producer, starts), 0);
    assert!(world.read(consumer).is_empty());

    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1);
    world.commit(producer, 1, world.target(producer), &[&packet("data")]);
    world.advance(99);
    assert_eq!(world.count(producer, flushes), 0);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert_eq!(world.count(producer, stops), 1);
    assert!(is_over(&world, consumer));

    let trace = world.read(consumer);
    assert_eq!(texts(&trace), ["data"]);
    assert_eq!(triggers(&trace), ["t"]);
    let config = trace_config_of(&trace);
    assert_eq!(
        config.trigger_config.trigger_mode,
        Some(TriggerMode::START_TRACING)
    );
    assert_eq!(config.duration_ms, Some(100), "the trigger's, as upstream has it");
}

#[test]
fn without_a_trigger_it_ends_after_the_timeout_with_an_empty_trace() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, 50, &[trigger("t", DAY)]),
    );
    world.advance(49);
    assert!(!is_over(&world, consumer));
    world.advance(1);
    assert!(is_over(&world, consumer));
    assert_eq!(world.count(producer, starts), 0);
    assert_eq!(world.count(producer, stops), 1);
    assert!(world.read(consumer).is_empty());
    // It is too late for the trigger.
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 0);
    assert!(world.read(consumer).is_empty());
}

#[test]
fn the_timeout_means_nothing_to_a_session_that_was_triggered() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, 50, &[trigger("t", DAY)]),
    );
    world.activate(producer, &["t"]);
    world.advance(HOUR);
    assert!(!is_over(&world, consumer));
}

#[test]
fn only_producers_whose_whole_name_matches_may_start_it() {
    let (mut world, producer, consumer) = world();
    let only = Trigger {
        producer_name_regex: Some("mock_produc[e-r]+|other".into()),
        ..trigger("t", 1)
    };
    world.enable(consumer, &triggered(TriggerMode::START_TRACING, DAY, &[only]));
    for name in [
        "correct_name",
        "mock_producer_2",
        "a_mock_producer",
        "another",
        "",
    ] {
        let stranger = world.producer(name);
        world.activate(stranger, &["t"]);
        assert_eq!(world.count(producer, starts), 0, "{name}");
    }
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn other_triggers_do_not_start_it_but_may_come_along() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]),
    );
    world.activate(producer, &["not_t", "", "T", "t "]);
    assert_eq!(world.count(producer, starts), 0);
    world.activate(producer, &["not_t", "t"]);
    assert_eq!(world.count(producer, starts), 1);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert_eq!(triggers(&world.read(consumer)), ["t"]);
}

#[test]
fn one_request_starts_all_sessions_that_wait_for_its_triggers() {
    let (mut world, producer, first) = world();
    world.offer(producer, "d2");
    let second = world.consumer();
    let of_first = triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]);
    let of_second = TraceConfig {
        data_sources: config(&["d2"]).data_sources,
        ..triggered(
            TriggerMode::START_TRACING,
            DAY,
            &[trigger("t", 1), trigger("t2", DAY)],
        )
    };
    world.enable(first, &of_first);
    world.enable(second, &of_second);
    world.activate(producer, &["unknown", "t", "t2"]);
    assert_eq!(world.count(producer, starts), 2);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, first) && is_over(&world, second));
    assert_eq!(triggers(&world.read(first)), ["t"]);
    // The first trigger decides how long the session lasts.
    assert_eq!(triggers(&world.read(second)), ["t", "t2"]);
}

#[test]
fn a_trigger_or_the_consumer_starts_it_whichever_comes_first() {
    let (mut world, producer, consumer) = world();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..triggered(TriggerMode::START_TRACING, 50, &[trigger("t", 1)])
    };
    world.enable(consumer, &deferred);
    world.start(consumer);
    assert_eq!(world.count(producer, starts), 1);
    world.advance(HOUR);
    assert!(!is_over(&world, consumer), "it has no duration");
    assert!(world.read(consumer).is_empty(), "and nothing to be read");
    world.activate(producer, &["t"]);
    world.advance(HOUR);
    assert!(!is_over(&world, consumer), "a trigger starts nothing any more");
    assert_eq!(triggers(&world.read(consumer)), ["t"]);
}

#[test]
fn a_delay_of_0_lets_it_go_on_until_it_is_stopped() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, 50, &[trigger("t", 0)]),
    );
    world.activate(producer, &["t"]);
    world.advance(HOUR);
    assert!(!is_over(&world, consumer));
}

#[test]
fn a_file_is_written_once_the_trigger_comes_and_is_empty_otherwise() {
    for activated in [true, false] {
        let (mut world, producer, consumer) = world();
        let streaming = TraceConfig {
            write_into_file: Some(true),
            ..triggered(TriggerMode::START_TRACING, 50, &[trigger("t", 20)])
        };
        let session = world.enable(consumer, &streaming);
        if activated {
            world.activate(producer, &["t"]);
            world.commit(producer, 1, world.target(producer), &[&packet("data")]);
        }
        world.advance(50);
        world.acknowledge_flushes(producer);
        assert!(is_over(&world, consumer));
        assert_eq!(world.closed_files, [session]);
        let trace = ferretto_proto::messages::Trace::decode_from_slice(&world.files[&session])
            .unwrap()
            .packet;
        assert_eq!(texts(&trace), if activated { vec!["data"] } else { vec![] });
        assert_eq!(triggers(&trace), if activated { vec!["t"] } else { vec![] });
        assert_eq!(trace.is_empty(), !activated);
    }
}
