//! Flushes: acknowledgements, timeouts, and what they are for.

use ferretto_proto::messages::{DataSourceDescriptor, TraceConfig, trace_config, trace_packet, trace_stats};
use ferretto_service::{FlushOutcome, ProducerCommand};

use crate::world::{World, config, flushes, stops};

#[test]
fn a_flush_succeeds_when_every_producer_has_acknowledged() {
    let mut world = World::new();
    let producers = ["a", "b"].map(|name| world.producer(name));
    for producer in producers {
        world.offer(producer, "d");
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 9, 1000, 0x42, &now);
    world.run();
    for producer in producers {
        let asked = world.producers[&producer]
            .commands
            .iter()
            .find_map(|command| match command {
                ProducerCommand::Flush { instances, flags, .. } => Some((instances.len(), *flags)),
                _ => None,
            });
        assert_eq!(asked, Some((1, 0x42)));
    }
    world.acknowledge_flushes(producers[0]);
    assert!(world.consumers[&consumer].flushes.is_empty());
    world.acknowledge_flushes(producers[1]);
    assert_eq!(world.consumers[&consumer].flushes, [(9, FlushOutcome::Succeeded)]);
}

#[test]
fn a_flush_fails_when_a_producer_is_silent_for_too_long() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 250, 0, &now);
    world.run();
    world.advance(249);
    assert!(world.consumers[&consumer].flushes.is_empty());
    world.advance(1);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Failed)]);
}

#[test]
fn the_acknowledgement_of_a_later_flush_counts_for_earlier_ones() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    world.service.flush(consumer, 2, 0, 0, &now);
    world.run();
    world.acknowledge_flushes(producer);
    let done = [(1, FlushOutcome::Succeeded), (2, FlushOutcome::Succeeded)];
    assert_eq!(world.consumers[&consumer].flushes, done);
}

#[test]
fn a_producer_that_dies_holds_up_no_flush() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    world.service.disconnect_producer(producer, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].flushes.len(), 1);
}

#[test]
fn a_data_source_that_needs_no_flush_is_not_asked() {
    let mut world = World::new();
    let producer = world.producer("p");
    let plain = DataSourceDescriptor {
        name: Some("d".into()),
        no_flush: Some(true),
        ..Default::default()
    };
    world.register(producer, &plain);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    world.run();
    assert_eq!(world.count(producer, flushes), 0);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Succeeded)]);
}

#[test]
fn flush_period_asks_at_every_multiple() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(
        consumer,
        &TraceConfig {
            flush_period_ms: Some(100),
            ..config(&["d"])
        },
    );
    world.advance(350);
    assert_eq!(world.count(producer, flushes), 3);
}

#[test]
fn a_final_flush_that_fails_still_stops_and_is_told_in_the_trace() {
    let mut world = World::new();
    let producer = world.producer("sleepy");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(
        consumer,
        &TraceConfig {
            duration_ms: Some(50),
            flush_timeout_ms: Some(100),
            ..config(&["d"])
        },
    );
    world.advance(151);
    assert_eq!(world.count(producer, stops), 1);
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(
        stats.final_flush_outcome,
        Some(trace_stats::FinalFlushOutcome::FINAL_FLUSH_FAILED)
    );
    let slow = world.read(consumer).iter().any(|packet| match &packet.data {
        Some(trace_packet::Data::ServiceEvent(event)) => format!("{event:?}").contains("sleepy"),
        _ => false,
    });
    assert!(slow, "the trace names who did not flush");
}

#[test]
fn a_last_flush_of_the_consumer_that_fails_is_told_in_the_trace_until_the_next() {
    /// `FlushFlags`: asked for by the command line, because the trace ends.
    const TRACE_STOP: u64 = 2 << 4 | 2;
    let slow = |world: &mut World, consumer| {
        let packets = world.read(consumer);
        let events = packets.iter().filter(|packet| match &packet.data {
            Some(trace_packet::Data::ServiceEvent(event)) => format!("{event:?}").contains("sleepy"),
            _ => false,
        });
        events.count()
    };
    for (flags, later, expected) in [(TRACE_STOP, 0, 1), (TRACE_STOP, 1, 0), (0, 0, 0)] {
        let mut world = World::new();
        let producer = world.producer("sleepy");
        world.offer(producer, "d");
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
        let now = world.now;
        world.service.flush(consumer, 1, 100, flags, &now);
        world.advance(100);
        for token in 0..later {
            let now = world.now;
            world.service.flush(consumer, token, 100, 0, &now);
        }
        assert_eq!(slow(&mut world, consumer), expected, "{flags:#x}, {later} later");
    }
}

#[test]
fn a_flush_is_answered_even_if_its_session_is_freed_meanwhile() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 5, 0, 0, &now);
    world.service.free_buffers(consumer, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].flushes, [(5, FlushOutcome::Failed)]);
    world.acknowledge_flushes(producer);
    world.advance(10_000);
    assert_eq!(world.consumers[&consumer].flushes.len(), 1);
}

#[test]
fn a_flush_fails_at_once_in_every_state_but_started() {
    let mut world = World::new();
    let producer = world.producer("p");
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_stop: Some(true),
        ..Default::default()
    };
    world.register(producer, &descriptor);
    let consumer = world.consumer();
    let ask = |world: &mut World, token| {
        let now = world.now;
        world.service.flush(consumer, token, 0, 0, &now);
        world.run();
    };
    ask(&mut world, 1);
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    ask(&mut world, 2);
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    world.service.disable_tracing(consumer, &now);
    ask(&mut world, 3);
    world.advance(5_000);
    ask(&mut world, 4);
    let failed = [1, 2, 3, 4].map(|token| (token, FlushOutcome::Failed));
    assert_eq!(world.consumers[&consumer].flushes, failed);
    assert_eq!(world.count(producer, flushes), 0);
}

#[test]
fn flushes_that_are_done_leave_nothing_to_wait_for() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let quiet = TraceConfig {
        builtin_data_sources: trace_config::BuiltinDataSource {
            snapshot_interval_ms: Some(3_600_000),
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    };
    world.enable(consumer, &quiet);
    world.advance(20_000);
    let before = world.service.next_deadline();
    let now = world.now;
    world.service.flush(consumer, 1, 60_000, 0, &now);
    world.run();
    assert_ne!(world.service.next_deadline(), before);
    world.acknowledge_flushes(producer);
    assert_eq!(world.service.next_deadline(), before);
}
