//! Flushes: acknowledgements, timeouts, and their purposes.

use ferretto_proto::messages::{DataSourceDescriptor, TraceConfig, trace_config, trace_packet, trace_stats};
use ferretto_service::{FlushOutcome, Introduction, MemorySharing, ProducerCommand, Scraping};

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
    let (mut world, _, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    world.flush(consumer, 1, 250);
    world.advance(249);
    assert!(world.consumers[&consumer].flushes.is_empty());
    world.advance(1);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Failed)]);
    let told = |line: &String| line.contains("1 producer did not flush in time");
    assert!(world.log.iter().any(told), "{:?}", world.log);
}

#[test]
fn a_flush_waits_as_long_as_the_request_says_else_the_config_else_five_seconds() {
    for (request, config_ms, expected) in [
        (0, None, 5000),
        (0, Some(0), 5000),
        (0, Some(300), 300),
        (70, Some(300), 70),
        (8000, Some(300), 8000),
    ] {
        let (mut world, _, consumer) = World::offering();
        let timed = TraceConfig {
            flush_timeout_ms: config_ms,
            ..config(&["d"])
        };
        world.enable(consumer, &timed);
        let now = world.now;
        world.service.flush(consumer, 1, request, 0, &now);
        world.advance(expected - 1);
        assert!(
            world.consumers[&consumer].flushes.is_empty(),
            "{request} {config_ms:?}"
        );
        world.advance(1);
        assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Failed)]);
    }
}

#[test]
fn the_acknowledgement_of_a_later_flush_counts_for_earlier_ones() {
    let (mut world, producer, consumer) = World::offering();
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
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    world.service.disconnect_producer(producer, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].flushes.len(), 1);
}

#[test]
fn a_session_that_has_stopped_is_not_flushed_however_well_it_was_before() {
    let (mut world, producer, consumer) = World::offering();
    let timed = TraceConfig {
        duration_ms: Some(10),
        ..config(&["d"])
    };
    world.enable(consumer, &timed);
    world.advance(10);
    world.acknowledge_flushes(producer);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    world.flush(consumer, 1, 0);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Failed)]);
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
    world.flush(consumer, 1, 0);
    assert_eq!(world.count(producer, flushes), 0);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Succeeded)]);
}

#[test]
fn flush_period_asks_at_every_multiple() {
    let (mut world, producer, consumer) = World::offering();
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
fn a_final_flush_that_fails_still_stops_and_is_recorded_in_the_trace() {
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
fn a_failed_last_flush_of_the_consumer_is_recorded_in_the_trace_until_the_next() {
    /// `FlushFlags`: the command line asks, because the trace ends.
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
    let (mut world, producer, consumer) = World::offering();
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
    world.offer_acknowledging_stops(producer, "d");
    let consumer = world.consumer();
    let ask = |world: &mut World, token| {
        world.flush(consumer, token, 0);
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
    let (mut world, producer, consumer) = World::offering();
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
    world.flush(consumer, 1, 60_000);
    assert_ne!(world.service.next_deadline(), before);
    world.acknowledge_flushes(producer);
    assert_eq!(world.service.next_deadline(), before);
}

/// The flags of the flushes that the producer was asked for, and the number of instances in each.
fn asked(world: &World, producer: ferretto_service::ProducerId) -> Vec<(u64, usize)> {
    let commands = world.producers[&producer].commands.iter();
    let asked = commands.filter_map(|command| match command {
        ProducerCommand::Flush { instances, flags, .. } => Some((*flags, instances.len())),
        _ => None,
    });
    asked.collect()
}

#[test]
fn producers_get_the_initiator_and_the_reason_of_a_flush() {
    /// `FlushFlags`: the service asks, either because the period is over or because the trace ends.
    const PERIODIC: u64 = 1 << 4 | 1;
    const TRACE_STOP: u64 = 1 << 4 | 2;
    let streaming = |mode, period| TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(period),
        write_flush_mode: Some(mode),
        ..config(&["d"])
    };
    use trace_config::WriteFlushMode::{WRITE_FLUSH_AUTO, WRITE_FLUSH_ENABLED};
    let cases = [
        (
            TraceConfig {
                flush_period_ms: Some(1000),
                ..config(&["d"])
            },
            PERIODIC,
        ),
        (streaming(WRITE_FLUSH_ENABLED, 1000), PERIODIC),
        (streaming(WRITE_FLUSH_AUTO, 1000), PERIODIC),
        (
            TraceConfig {
                duration_ms: Some(1000),
                ..config(&["d"])
            },
            TRACE_STOP,
        ),
    ];
    for (config, flags) in cases {
        let (mut world, producer, consumer) = World::offering();
        world.enable(consumer, &config);
        world.advance(5000);
        assert_eq!(asked(&world, producer).first(), Some(&(flags, 1)));
    }
}

#[test]
fn an_acknowledgement_counts_for_the_flushes_before_it_and_not_for_those_after() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    for token in 1..=3 {
        world.service.flush(consumer, token, 0, 0, &now);
    }
    world.service.flush(consumer, 4, 10, 0, &now);
    world.run();
    let requests: Vec<_> = world.producers[&producer]
        .commands
        .iter()
        .filter_map(|command| match command {
            ProducerCommand::Flush { request, .. } => Some(*request),
            _ => None,
        })
        .collect();
    let third = ferretto_proto::messages::CommitDataRequest {
        flush_request_id: Some(requests[2].0),
        ..Default::default()
    };
    world.service.commit(producer, &third, &now);
    world.run();
    let succeeded = [1, 2, 3].map(|token| (token, FlushOutcome::Succeeded));
    assert_eq!(world.consumers[&consumer].flushes, succeeded);
    world.advance(10);
    assert_eq!(
        world.consumers[&consumer].flushes[3..],
        [(4, FlushOutcome::Failed)]
    );
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(
        (
            stats.flushes_requested,
            stats.flushes_succeeded,
            stats.flushes_failed
        ),
        (Some(4), Some(3), Some(1))
    );
}

#[test]
fn only_instances_that_want_it_are_flushed() {
    let mut world = World::new();
    let (both, none) = (world.producer("both"), world.producer("none"));
    let plain = DataSourceDescriptor {
        name: Some("plain".into()),
        no_flush: Some(true),
        ..Default::default()
    };
    world.offer(both, "d");
    world.register(both, &plain);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d", "plain"]));
    world.register(none, &plain);
    world.flush(consumer, 1, 0);
    assert_eq!(asked(&world, both), [(0, 1)]);
    assert!(asked(&world, none).is_empty());
    world.acknowledge_flushes(both);
    assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Succeeded)]);
}

#[test]
fn a_flush_of_one_session_asks_no_producer_of_another() {
    let mut world = World::new();
    let (a, b) = (world.producer("a"), world.producer("b"));
    world.offer(a, "d");
    world.offer(b, "e");
    let (first, second) = (world.consumer(), world.consumer());
    world.enable(first, &config(&["d"]));
    world.enable(second, &config(&["d", "e"]));
    world.flush(first, 1, 0);
    assert_eq!((asked(&world, a).len(), asked(&world, b).len()), (1, 0));
    world.acknowledge_flushes(b);
    assert!(world.consumers[&first].flushes.is_empty());
    world.acknowledge_flushes(a);
    assert_eq!(world.consumers[&first].flushes.len(), 1);
}

#[test]
fn a_producer_without_shared_memory_is_flushed_because_only_it_can_scrape() {
    for (sharing, scraping, flushed) in [
        (MemorySharing::Impossible, Scraping::Enabled, true),
        (MemorySharing::Impossible, Scraping::Disabled, false),
        (MemorySharing::Possible, Scraping::Enabled, false),
    ] {
        let mut world = World::new();
        let producer = world.introduce(
            1000,
            Introduction {
                name: "p".into(),
                scraping,
                sharing,
                ..Default::default()
            },
        );
        let descriptor = DataSourceDescriptor {
            name: Some("d".into()),
            no_flush: Some(true),
            ..Default::default()
        };
        world.register(producer, &descriptor);
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
        world.flush(consumer, 1, 0);
        let asked: Vec<usize> = world.producers[&producer]
            .commands
            .iter()
            .filter_map(|command| match command {
                ProducerCommand::Flush { instances, .. } => Some(instances.len()),
                _ => None,
            })
            .collect();
        // The flush is for no data source. It is for the producer itself.
        assert_eq!(asked, vec![0; usize::from(flushed)]);
        assert_eq!(world.consumers[&consumer].flushes.is_empty(), flushed);
        world.acknowledge_flushes(producer);
        assert_eq!(world.consumers[&consumer].flushes, [(1, FlushOutcome::Succeeded)]);
    }
}
