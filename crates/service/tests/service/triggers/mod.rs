//! Triggers: what starts, stops or snapshots a session, who may, how often, and what the trace says of it.

mod model;

use buffa::Message;
use ferretto_proto::messages::{
    TraceConfig, TracePacket, observable_events, trace_config,
    trace_config::trigger_config::{Trigger, TriggerMode},
    trace_packet,
};
use ferretto_service::{ConfigInput, ConsumerId, OutputFile, ProducerId, StateScope, limits};

use crate::world::{World, config, flushes, packet, starts, stops, texts};

const HOUR: u64 = 3600 * 1000;
const DAY: u32 = 24 * HOUR as u32;
const CLONE_TRIGGER_HIT: u32 = observable_events::Type::TYPE_CLONE_TRIGGER_HIT as u32;

fn trigger(name: &str, stop_delay_ms: u32) -> Trigger {
    Trigger {
        name: Some(name.into()),
        stop_delay_ms: Some(stop_delay_ms),
        ..Default::default()
    }
}

/// A config with the data source `d` and these triggers.
fn triggered(mode: TriggerMode, timeout_ms: u32, triggers: &[Trigger]) -> TraceConfig {
    TraceConfig {
        trigger_config: trace_config::TriggerConfig {
            trigger_mode: Some(mode),
            trigger_timeout_ms: Some(timeout_ms),
            triggers: triggers.to_vec(),
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    }
}

/// A world with a producer that offers `d`, and a consumer.
fn world() -> (World, ProducerId, ConsumerId) {
    let mut world = World::new();
    let producer = world.producer("mock_producer");
    world.offer(producer, "d");
    let consumer = world.consumer();
    (world, producer, consumer)
}

/// Names of the triggers in a trace.
fn triggers(packets: &[TracePacket]) -> Vec<String> {
    let names = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::Trigger(trigger)) => trigger.trigger_name.clone(),
        _ => None,
    });
    names.collect()
}

/// The config in a trace.
fn trace_config_of(packets: &[TracePacket]) -> &TraceConfig {
    let mut configs = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::TraceConfig(config)) => Some(&**config),
        _ => None,
    });
    let config = configs.next().expect("a config");
    assert_eq!(configs.next(), None, "one config");
    config
}

fn is_over(world: &World, consumer: ConsumerId) -> bool {
    match world.consumers[&consumer].disabled.as_slice() {
        [] => false,
        [None] => true,
        other => panic!("ended more than once, or with an error: {other:?}"),
    }
}

mod start_tracing {
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
        // It is too late for the trigger now.
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
        // The first that comes decides how long the session lasts.
        assert_eq!(triggers(&world.read(second)), ["t", "t2"]);
    }

    #[test]
    fn what_comes_first_starts_it_a_trigger_or_the_consumer() {
        let (mut world, producer, consumer) = world();
        let deferred = TraceConfig {
            deferred_start: Some(true),
            ..triggered(TriggerMode::START_TRACING, 50, &[trigger("t", 1)])
        };
        world.enable(consumer, &deferred);
        let now = world.now;
        world.service.start_deferred(consumer, &now);
        world.run();
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
}

mod stop_tracing {
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
    fn what_the_ring_buffer_lost_before_the_trigger_stays_lost() {
        let (mut world, producer, consumer) = world();
        world.enable(
            consumer,
            &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 1)]),
        );
        let target = world.target(producer);
        // More than the 64 KB of the buffer.
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
}

mod clone_snapshot {
    use super::*;

    fn config() -> TraceConfig {
        let triggers = [trigger("t1", 10), trigger("t2", 10), trigger("t3", 0)];
        triggered(TriggerMode::CLONE_SNAPSHOT, DAY, &triggers)
    }

    fn observing(world: &mut World, consumer: ConsumerId) {
        let now = world.now;
        world.service.observe_events(consumer, CLONE_TRIGGER_HIT, &now);
        world.run();
    }

    fn due(world: &World, consumer: ConsumerId) -> Vec<String> {
        let snapshots = world.consumers[&consumer].snapshots_due.iter();
        snapshots
            .map(|hit| hit.trigger_name.clone().unwrap_or_default())
            .collect()
    }

    #[test]
    fn the_consumer_is_told_when_a_snapshot_is_due_and_of_what() {
        let (mut world, _, consumer) = world();
        observing(&mut world, consumer);
        let session = world.enable(consumer, &config());
        let sender = world.producer_of(77_777, "sender", ferretto_service::Scraping::Disabled);
        world.activate(sender, &["t1"]);
        let at = world.now.boot;
        world.advance(9);
        assert_eq!(due(&world, consumer).len(), 0);
        world.advance(1);
        let expected = observable_events::CloneTriggerHit {
            tracing_session_id: Some(session.0 as i64),
            trigger_name: Some("t1".into()),
            producer_name: Some("sender".into()),
            producer_uid: Some(77_777),
            boot_time_ns: Some(at),
            trigger_delay_ms: Some(10),
            ..Default::default()
        };
        assert_eq!(world.consumers[&consumer].snapshots_due, [expected]);
        // The session goes on.
        world.activate(sender, &["t1"]);
        world.advance(10);
        assert_eq!(due(&world, consumer), ["t1", "t1"]);
        assert!(!is_over(&world, consumer));
    }

    #[test]
    fn snapshots_that_are_due_together_are_each_told_of() {
        let (mut world, producer, consumer) = world();
        observing(&mut world, consumer);
        world.enable(consumer, &config());
        world.activate(producer, &["t1", "t2"]);
        world.jump(10);
        assert_eq!(due(&world, consumer), ["t1", "t2"]);
    }

    #[test]
    fn consumers_that_do_not_observe_or_are_gone_hear_nothing() {
        let (mut world, producer, consumer) = world();
        world.enable(consumer, &config());
        world.activate(producer, &["t1"]);
        world.advance(10);
        assert_eq!(due(&world, consumer).len(), 0);
        observing(&mut world, consumer);
        world.activate(producer, &["t1"]);
        world.service.detach(consumer, "key").unwrap();
        world.advance(10);
        world.service.attach(consumer, "key").unwrap();
        assert_eq!(due(&world, consumer).len(), 0);
        world.activate(producer, &["t1"]);
        // The world panics if it is named after this.
        world.lose_consumer(consumer);
        world.advance(10);
    }

    #[test]
    fn the_session_itself_is_never_read() {
        let (mut world, producer, consumer) = world();
        world.enable(consumer, &config());
        world.commit(producer, 1, world.target(producer), &[&packet("data")]);
        assert!(world.read(consumer).is_empty());
        world.activate(producer, &["t3"]);
        world.advance(1);
        assert!(world.read(consumer).is_empty());
        world.advance(DAY.into());
        world.acknowledge_flushes(producer);
        assert!(is_over(&world, consumer), "the timeout is its duration");
        assert!(world.read(consumer).is_empty());
    }

    #[test]
    fn the_flag_for_older_services_means_the_same() {
        let (mut world, producer, consumer) = world();
        observing(&mut world, consumer);
        let mut config = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 0)]);
        config
            .trigger_config
            .get_or_insert_default()
            .use_clone_snapshot_if_available = Some(true);
        world.enable(consumer, &config);
        world.activate(producer, &["t"]);
        world.advance(1);
        assert_eq!(due(&world, consumer), ["t"]);
        assert_eq!(world.count(producer, flushes), 0, "it does not stop");
    }

    #[test]
    fn no_more_snapshots_wait_than_the_limit() {
        let (mut world, producer, consumer) = world();
        observing(&mut world, consumer);
        world.enable(consumer, &config());
        let many = vec!["t1"; limits::MAX_PENDING_SNAPSHOTS + 1];
        world.activate(producer, &many);
        assert!(world.log.iter().any(|line| line.contains("too many snapshots")));
        world.advance(10);
        assert_eq!(due(&world, consumer).len(), limits::MAX_PENDING_SNAPSHOTS);
        world.activate(producer, &["t1"]);
        world.advance(10);
        assert_eq!(due(&world, consumer).len(), limits::MAX_PENDING_SNAPSHOTS + 1);
    }

    #[test]
    fn the_service_says_that_it_can_tell() {
        let events = ferretto_service::Service::query_capabilities().observable_events;
        assert!(events.contains(&observable_events::Type::TYPE_CLONE_TRIGGER_HIT));
    }
}

mod how_often {
    use super::*;

    /// Whether the trigger `t` of a session with this config stops it.
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
    fn what_is_skipped_does_not_count_towards_the_limit() {
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
        // Others are not held up.
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
}

mod in_the_trace {
    use super::*;

    #[test]
    fn a_trigger_is_a_packet_of_the_service_right_after_the_config() {
        let mut world = World::new();
        let consumer = world.consumer();
        world.enable(
            consumer,
            &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]),
        );
        world.advance(7);
        let sender = world.producer_of(321, "sender", ferretto_service::Scraping::Disabled);
        world.activate(sender, &["t"]);
        let at = world.now.boot;
        world.advance(5);
        let trace = world.read(consumer);
        let position = trace
            .iter()
            .position(|packet| matches!(packet.data, Some(trace_packet::Data::Trigger(_))))
            .expect("a trigger");
        assert!(matches!(
            trace[position - 1].data,
            Some(trace_packet::Data::TraceConfig(_))
        ));
        assert!(matches!(
            trace[position + 1].data,
            Some(trace_packet::Data::TraceUuid(_))
        ));
        let packet = &trace[position];
        assert_eq!(packet.timestamp, Some(at));
        assert_eq!(packet.timestamp_clock_id, Some(6));
        assert!(matches!(
            packet.optional_trusted_packet_sequence_id,
            Some(trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(1))
        ));
        let Some(trace_packet::Data::Trigger(trigger)) = &packet.data else {
            unreachable!()
        };
        assert_eq!(trigger.trigger_name.as_deref(), Some("t"));
        assert_eq!(trigger.producer_name.as_deref(), Some("sender"));
        assert_eq!(trigger.trusted_producer_uid, Some(321));
        assert_eq!(trigger.stop_delay_ms, Some(30));
    }

    #[test]
    fn clock_snapshots_are_in_order_and_one_is_of_the_trigger() {
        for mode in [TriggerMode::START_TRACING, TriggerMode::STOP_TRACING] {
            let (mut world, producer, consumer) = world();
            world.enable(consumer, &triggered(mode, DAY, &[trigger("t", 10)]));
            world.advance(7);
            // Only a clock that went its own way is worth a snapshot.
            world.now.monotonic_raw += 20_000_000;
            let at = world.now.boot;
            world.activate(producer, &["t"]);
            world.advance(10);
            world.acknowledge_flushes(producer);
            let trace = world.read(consumer);
            let snapshots = trace.iter().filter_map(|packet| match &packet.data {
                Some(trace_packet::Data::ClockSnapshot(snapshot)) => snapshot.clocks[0].timestamp,
                _ => None,
            });
            let times: Vec<u64> = snapshots.collect();
            assert!(times.is_sorted(), "{mode:?}: {times:?}");
            assert!(
                times.contains(&at),
                "{mode:?}: {times:?}, the trigger came at {at}"
            );
        }
    }

    #[test]
    fn a_config_that_wants_no_config_in_the_trace_gets_no_triggers_either() {
        let (mut world, producer, consumer) = world();
        let mut config = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]);
        config
            .builtin_data_sources
            .get_or_insert_default()
            .disable_trace_config = Some(true);
        world.enable(consumer, &config);
        world.activate(producer, &["t"]);
        let trace = world.read(consumer);
        assert!(!trace.is_empty());
        assert!(triggers(&trace).is_empty());
    }

    #[test]
    fn a_changed_config_keeps_the_duration_that_triggers_set() {
        let (mut world, producer, consumer) = world();
        let original = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 1)]);
        world.enable(consumer, &original);
        let mut changed = original.clone();
        changed.data_sources[0].producer_name_filter = vec!["mock_producer".into()];
        let input = ConfigInput {
            bytes: changed.encode_to_vec().into(),
            config: changed,
        };
        let now = world.now;
        world.service.change_config(consumer, &input, &now);
        world.activate(producer, &["t"]);
        let trace = world.read(consumer);
        let config = trace_config_of(&trace);
        assert_eq!(config.data_sources[0].producer_name_filter, ["mock_producer"]);
        assert_eq!(config.duration_ms, Some(DAY));
        assert!(
            !world.log.iter().any(|line| line.contains("differs")),
            "{:?}",
            world.log
        );
    }

    #[test]
    fn without_a_mode_a_trigger_only_makes_the_trace_readable() {
        let (mut world, producer, consumer) = world();
        let mut config = triggered(TriggerMode::UNSPECIFIED, 0, &[trigger("t", 1)]);
        config.duration_ms = Some(100);
        world.enable(consumer, &config);
        assert_eq!(world.count(producer, starts), 1);
        assert!(world.read(consumer).is_empty());
        world.activate(producer, &["t"]);
        assert_eq!(triggers(&world.read(consumer)), ["t"]);
        world.advance(99);
        assert_eq!(world.count(producer, flushes), 0);
        world.advance(1);
        assert_eq!(world.count(producer, flushes), 1, "the duration counts");
    }

    #[test]
    fn a_mode_without_triggers_hides_nothing() {
        let (mut world, producer, consumer) = world();
        world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, 50, &[]));
        world.commit(producer, 1, world.target(producer), &[&packet("data")]);
        assert_eq!(texts(&world.read(consumer)), ["data"]);
        world.advance(50);
        world.acknowledge_flushes(producer);
        assert!(is_over(&world, consumer));
    }

    #[test]
    fn a_long_name_of_a_producer_is_cut() {
        let (mut world, _, consumer) = world();
        world.enable(
            consumer,
            &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]),
        );
        let sender = world.producer(&"\u{e9}".repeat(limits::MAX_TRIGGER_PRODUCER_NAME));
        world.activate(sender, &["t"]);
        let trace = world.read(consumer);
        let names = trace.iter().filter_map(|packet| match &packet.data {
            Some(trace_packet::Data::Trigger(trigger)) => trigger.producer_name.clone(),
            _ => None,
        });
        let lengths: Vec<usize> = names.map(|name| name.len()).collect();
        assert_eq!(lengths, [limits::MAX_TRIGGER_PRODUCER_NAME]);
    }
}

mod refused {
    use super::*;

    fn refusal(config: &TraceConfig) -> String {
        let (mut world, _, consumer) = world();
        let error = world.try_enable(consumer, config).expect_err("to be refused");
        assert_eq!(world.service.buffer_bytes(), 0);
        error
    }

    fn accepted(config: &TraceConfig) {
        let (mut world, _, consumer) = world();
        world.enable(consumer, config);
    }

    const MODES: [TriggerMode; 3] = [
        TriggerMode::START_TRACING,
        TriggerMode::STOP_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ];

    #[test]
    fn timeouts_of_0_and_of_more_than_a_week() {
        let week = limits::MAX_DURATION.as_millis() as u32;
        for mode in MODES {
            accepted(&triggered(mode, week, &[trigger("t", 1)]));
            for timeout in [0, week + 1] {
                let error = refusal(&triggered(mode, timeout, &[trigger("t", 1)]));
                assert!(error.contains("trigger_timeout_ms"), "{error}");
            }
        }
        accepted(&triggered(TriggerMode::UNSPECIFIED, 0, &[trigger("t", 1)]));
    }

    #[test]
    fn a_duration_beside_a_mode() {
        for mode in MODES {
            let both = TraceConfig {
                duration_ms: Some(1),
                ..triggered(mode, 1, &[trigger("t", 1)])
            };
            assert!(refusal(&both).contains("duration_ms must not be set"));
        }
    }

    #[test]
    fn modes_that_this_service_does_not_know() {
        let config = triggered(TriggerMode::UNSPECIFIED, 1, &[trigger("t", 1)]);
        let with_mode = |number: u64| {
            let (mut world, _, consumer) = world();
            let mut bytes = ferretto_wire::Writer::new();
            bytes.raw(&config.encode_to_vec());
            bytes.nested(17, |triggers| triggers.varint_field(1, number));
            let input = ConfigInput {
                config: TraceConfig::decode_from_slice(bytes.as_slice()).unwrap(),
                bytes: bytes.as_slice().into(),
            };
            let now = world.now;
            world
                .service
                .enable_tracing(consumer, input, &OutputFile::None, 1, &now)
        };
        for number in [3, 5, u64::MAX] {
            assert!(
                with_mode(number).unwrap_err().contains("invalid trigger_mode"),
                "{number}"
            );
        }
        for number in [0, 1, 2, 4] {
            with_mode(number).unwrap();
        }
    }

    #[test]
    fn the_flag_for_older_services_without_the_mode_for_them() {
        for mode in [
            TriggerMode::UNSPECIFIED,
            TriggerMode::START_TRACING,
            TriggerMode::CLONE_SNAPSHOT,
        ] {
            let mut config = triggered(mode, 1, &[trigger("t", 1)]);
            config
                .trigger_config
                .get_or_insert_default()
                .use_clone_snapshot_if_available = Some(true);
            assert!(refusal(&config).contains("trigger_mode must be STOP_TRACING"));
        }
    }

    #[test]
    fn files_of_sessions_that_are_empty_until_they_are_over() {
        for mode in [TriggerMode::STOP_TRACING, TriggerMode::CLONE_SNAPSHOT] {
            let streaming = TraceConfig {
                write_into_file: Some(true),
                ..triggered(mode, 1, &[trigger("t", 1)])
            };
            assert!(refusal(&streaming).contains("write_into_file"));
        }
    }

    #[test]
    fn triggers_of_the_same_name() {
        for mode in [TriggerMode::UNSPECIFIED, TriggerMode::START_TRACING] {
            let twice = triggered(mode, 1, &[trigger("t", 1), trigger("u", 1), trigger("t", 2)]);
            assert!(refusal(&twice).contains("duplicate trigger name \"t\""));
        }
    }

    #[test]
    fn expressions_that_do_not_compile_explode_or_are_too_many() {
        let with = |number: usize, expression: String| Trigger {
            producer_name_regex: Some(expression),
            ..trigger(&format!("t{number}"), 1)
        };
        let of = |triggers: &[Trigger]| triggered(TriggerMode::STOP_TRACING, 1, triggers);
        for expression in ["(", "*", "[", "a{1000}{1000}{1000}", &"x".repeat(5000)] {
            let error = refusal(&of(&[trigger("good", 1), with(0, expression.to_owned())]));
            assert!(
                error.contains("producer_name_regex") && error.contains("t0"),
                "{error}"
            );
        }
        let different = |count| -> Vec<Trigger> {
            (0..count)
                .map(|number| with(number, format!("p{number}")))
                .collect()
        };
        let mut many = different(limits::MAX_TRIGGER_REGEXES_PER_CONFIG);
        // The same one again is none more.
        many.push(with(limits::MAX_TRIGGER_REGEXES_PER_CONFIG, "p0".into()));
        accepted(&of(&many));
        let error = refusal(&of(&different(limits::MAX_TRIGGER_REGEXES_PER_CONFIG + 1)));
        assert!(error.contains("too many different"), "{error}");
    }

    #[test]
    fn more_triggers_or_longer_names_than_a_config_may_have() {
        let many =
            |count| -> Vec<Trigger> { (0..count).map(|number| trigger(&number.to_string(), 1)).collect() };
        let of = |triggers: &[Trigger]| triggered(TriggerMode::STOP_TRACING, 1, triggers);
        accepted(&of(&many(limits::MAX_TRIGGERS_PER_CONFIG)));
        assert!(refusal(&of(&many(limits::MAX_TRIGGERS_PER_CONFIG + 1))).contains("too many triggers"));
        let named = |length| of(&[trigger(&"n".repeat(length), 1)]);
        accepted(&named(limits::MAX_TRIGGER_NAME));
        assert!(refusal(&named(limits::MAX_TRIGGER_NAME + 1)).contains("name of"));
    }
}

#[test]
fn a_session_that_is_gone_waits_for_nothing() {
    let (mut world, producer, consumer) = world();
    let start = triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]);
    world.enable(consumer, &start);
    let other = world.consumer();
    world.enable(other, &start);
    world.lose_consumer(consumer);
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1, "the other one's");
    world.lose_consumer(other);
    let timers_left = world.service.next_deadline();
    assert_eq!(timers_left, None);
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn who_has_gone_activates_nothing() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]),
    );
    let gone = world.producer("gone");
    world.lose_producer(gone);
    world.activate(gone, &["t"]);
    world.activate(ProducerId(9999), &["t"]);
    assert_eq!(world.count(producer, starts), 0);
}
