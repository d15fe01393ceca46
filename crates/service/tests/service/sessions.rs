//! The owners of sessions: names, detaching and attaching, requests of a consumer without a session, observed events, and the state that remains
//! when a consumer leaves.

use std::sync::Arc;

use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceConfig, observable_events, trace_config, trace_packet,
};
use ferretto_service::{ConfigInput, ConsumerId, FlushOutcome, Output, ProducerId, ReadCall, StateScope};

use crate::world::{Disk, World, config, flushes, packet, starts, stops, texts};

/// A producer with data source `d`, which acknowledges according to the arguments.
fn producer_of_d(world: &mut World, acknowledges_start: bool, acknowledges_stop: bool) -> ProducerId {
    let producer = world.producer("p");
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_start: Some(acknowledges_start),
        will_notify_on_stop: Some(acknowledges_stop),
        ..Default::default()
    };
    world.register(producer, &descriptor);
    producer
}

fn states(world: &mut World) -> Vec<String> {
    let root = world.consumer_of(0);
    let sessions = world.state(root, StateScope::Sessions).tracing_sessions;
    sessions
        .into_iter()
        .map(|session| session.state.unwrap_or_default())
        .collect()
}

#[test]
fn the_duration_counts_from_the_start() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, false);
    let consumer = world.consumer();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        duration_ms: Some(100),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    world.advance(60_000);
    assert_eq!(states(&mut world), ["CONFIGURED"]);
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    world.advance(99);
    assert_eq!(world.count(producer, flushes), 0);
    world.advance(1);
    assert_eq!(world.count(producer, flushes), 1);
}

#[test]
fn a_name_is_taken_until_its_session_is_freed() {
    let mut world = World::new();
    let named = TraceConfig {
        unique_session_name: Some("mine".into()),
        ..config(&[])
    };
    let (first, second) = (world.consumer(), world.consumer());
    world.enable(first, &named);
    let now = world.now;
    world.service.disable_tracing(first, &now);
    assert!(world.try_enable(second, &named).unwrap_err().contains("mine"));
    world.service.free_buffers(first, &now);
    world.enable(second, &named);
}

#[test]
fn the_uuid_is_the_configs_or_the_one_that_was_made_up() {
    for (configured, expected) in [(Some((2, 1)), (2, 1)), (None, (0, 7)), (Some((0, 0)), (0, 7))] {
        let mut world = World::new();
        let consumer = world.consumer();
        let named = TraceConfig {
            trace_uuid_msb: configured.map(|(msb, _)| msb),
            trace_uuid_lsb: configured.map(|(_, lsb)| lsb),
            ..config(&[])
        };
        world.enable(consumer, &named);
        let written = world
            .read(consumer)
            .into_iter()
            .find_map(|packet| match packet.data {
                Some(trace_packet::Data::TraceUuid(uuid)) => {
                    Some((uuid.msb.unwrap_or_default(), uuid.lsb.unwrap_or_default()))
                }
                _ => None,
            });
        assert_eq!(written, Some(expected), "{configured:?}");
    }
}

#[test]
fn a_consumer_without_a_session_gets_answers_and_changes_nothing() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, false);
    let owner = world.consumer();
    world.enable(owner, &config(&["d"]));
    let commands = world.producers[&producer].commands.len();
    let stranger = world.consumer();
    let now = world.now;
    let input = ConfigInput {
        config: config(&["d"]),
        bytes: config(&["d"]).encode_to_vec().into(),
    };
    assert!(world.service.trace_stats(stranger).is_none());
    assert!(
        world
            .service
            .read_buffers(stranger, &mut ReadCall::default(), 1000, &now)
            .is_none()
    );
    assert!(world.service.detach(stranger, "key").is_err());
    assert!(world.service.await_disabled(stranger).is_none());
    world.service.flush(stranger, 3, 0, 0, &now);
    world.service.start_deferred(stranger, &now);
    world.service.change_config(stranger, &input, &now);
    world.service.disable_tracing(stranger, &now);
    world.service.free_buffers(stranger, &now);
    world.run();
    assert_eq!(world.consumers[&stranger].flushes, [(3, FlushOutcome::Failed)]);
    assert!(world.consumers[&stranger].disabled.is_empty());
    assert_eq!(states(&mut world), ["STARTED"]);
    assert_eq!(world.producers[&producer].commands.len(), commands);
}

#[test]
fn a_detached_session_records_on_and_is_whole_for_a_consumer_that_attaches() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, false);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("attached")]);
    world.service.detach(consumer, "key").unwrap();
    world.lose_consumer(consumer);
    world.commit(producer, 1, target, &[&packet("detached")]);
    let next = world.consumer();
    let sent: Arc<[u8]> = config(&["d"]).encode_to_vec().into();
    assert_eq!(world.service.attach(next, "key").unwrap(), sent);
    world.disable(next);
    assert_eq!(world.consumers[&next].disabled, [None]);
    assert_eq!(texts(&world.read(next)), ["attached", "detached"]);
    // Now the session belongs to this consumer as it did to the first.
    world.lose_consumer(next);
    assert_eq!(world.service.buffer_bytes(), 0);
}

#[test]
fn a_key_names_one_detached_session_of_a_user_and_nothing_else() {
    let mut world = World::new();
    let [first, second, third] = [5, 5, 6].map(|uid| world.consumer_of(uid));
    for consumer in [first, second, third] {
        world.enable(consumer, &config(&[]));
    }
    let attach = |world: &mut World, uid, key: &str| {
        let consumer = world.consumer_of(uid);
        world.service.attach(consumer, key).is_ok()
    };
    assert!(
        !attach(&mut world, 5, ""),
        "an empty key is the key of no session"
    );
    assert!(!attach(&mut world, 5, "key"));
    world.service.detach(first, "key").unwrap();
    assert!(
        world.service.detach(first, "key").is_err(),
        "it has none any more"
    );
    assert!(world.service.detach(second, "key").is_err(), "the key is taken");
    world.service.detach(third, "key").unwrap();
    assert!(
        world.service.attach(second, "key").is_err(),
        "it still has its own session"
    );
    assert!(!attach(&mut world, 0, "key"), "not even root's");
    assert!(attach(&mut world, 5, "key"));
    assert!(!attach(&mut world, 5, "key"), "it is attached");
    world.service.detach(second, "key").unwrap();
    // A consumer that has detached may begin anew.
    world.enable(first, &config(&[]));
}

#[test]
fn a_detached_session_ends_by_itself_with_its_duration_and_leaves_a_whole_file() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, true);
    let consumer = world.consumer();
    let streaming = TraceConfig {
        duration_ms: Some(100),
        write_into_file: Some(true),
        file_write_period_ms: Some(100_000),
        ..config(&["d"])
    };
    let session = world.enable(consumer, &streaming);
    world.service.detach(consumer, "key").unwrap();
    world.lose_consumer(consumer);
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("kept")]);
    world.advance(100);
    assert!(world.files[&session].is_empty(), "the last flush comes first");
    world.acknowledge_flushes(producer);
    let trace = ferretto_proto::messages::Trace::decode_from_slice(&world.files[&session]).unwrap();
    assert_eq!(texts(&trace.packet), ["kept"]);
    assert_eq!(world.closed_files, [session]);
    assert_eq!(world.count(producer, stops), 1);
    let late = world.consumer();
    assert!(world.service.attach(late, "key").is_err());
    assert_eq!(world.service.buffer_bytes(), 0);
    assert_eq!(world.service.next_deadline(), None);
}

#[test]
fn a_session_that_was_stopped_before_it_was_detached_is_freed_at_the_end_of_its_duration() {
    for attached_again in [false, true] {
        let mut world = World::new();
        let consumer = world.consumer();
        let timed = TraceConfig {
            duration_ms: Some(1000),
            ..config(&[])
        };
        world.enable(consumer, &timed);
        world.disable(consumer);
        world.service.detach(consumer, "key").unwrap();
        world.advance(999);
        if attached_again {
            world.service.attach(consumer, "key").unwrap();
        }
        assert_eq!(states(&mut world), ["DISABLED"]);
        world.advance(1);
        let expected: &[&str] = if attached_again { &["DISABLED"] } else { &[] };
        assert_eq!(states(&mut world), expected);
        let stats = world.service.trace_stats(consumer);
        let outcome = stats.map(|stats| stats.final_flush_outcome.map_or(0, |outcome| outcome as i32));
        assert_eq!(
            outcome,
            attached_again.then_some(0),
            "no last flush was tried, so none failed"
        );
    }
}

#[test]
fn a_consumer_that_leaves_during_the_last_flush_ends_its_session_at_once() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, true);
    let consumer = world.consumer();
    let timed = TraceConfig {
        duration_ms: Some(100),
        ..config(&["d"])
    };
    world.enable(consumer, &timed);
    world.advance(100);
    assert_eq!(world.count(producer, flushes), 1);
    world.lose_consumer(consumer);
    assert_eq!(world.count(producer, stops), 1);
    assert_eq!(world.service.buffer_bytes(), 0);
    // Later messages of the producer have no effect.
    world.acknowledge_flushes(producer);
    let instance = world.instances(producer)[0].0;
    let now = world.now;
    world.service.data_source_stopped(producer, instance.0, &now);
    world.advance(60_000);
    assert_eq!(world.service.next_deadline(), None);
}

#[test]
fn a_session_that_is_freed_while_it_stops_waits_for_no_producer() {
    let mut world = World::new();
    let producer = producer_of_d(&mut world, false, true);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    world.service.free_buffers(consumer, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert_eq!(world.count(producer, stops), 1);
    world.enable(consumer, &config(&["d"]));
    assert_eq!(world.count(producer, starts), 2);
}

#[test]
fn sessions_that_ended_make_room_for_others() {
    let mut world = World::new();
    for _ in 0..3 * ferretto_service::limits::MAX_SESSIONS {
        let consumer = world.consumer();
        world.enable(consumer, &config(&[]));
        world.lose_consumer(consumer);
    }
    // Each of these sessions named buffers. In all they named three times as many as there are ids.
    let consumer = world.consumer();
    let many = TraceConfig {
        buffers: vec![
            trace_config::BufferConfig {
                size_kb: Some(4),
                ..Default::default()
            };
            128
        ],
        ..Default::default()
    };
    for _ in 0..3 * 65536 / 128 {
        world.enable(consumer, &many);
        world.free(consumer);
    }
}

/// Kinds of `ObservableEvents`.
const INSTANCES: u32 = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32;
const ALL_STARTED: u32 = observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32;

/// The states of `d` that the consumer has heard of since the last call.
fn changes(world: &mut World, consumer: ConsumerId) -> Vec<&'static str> {
    use observable_events::DataSourceInstanceState as Is;
    world.run();
    let consumer = world.consumers.get_mut(&consumer).expect("known");
    std::mem::take(&mut consumer.changes)
        .into_iter()
        .map(|(_, state)| match state {
            state if state == Is::DATA_SOURCE_INSTANCE_STATE_STARTED as i32 => "started",
            _ => "stopped",
        })
        .collect()
}

#[test]
fn a_new_observer_gets_the_current_states_and_one_that_stops_gets_no_more() {
    let mut world = World::new();
    producer_of_d(&mut world, false, false);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.observe_events(consumer, INSTANCES, &now);
    assert_eq!(changes(&mut world, consumer), ["started"]);
    world.service.disable_tracing(consumer, &now);
    assert_eq!(changes(&mut world, consumer), ["stopped"]);
    world.service.free_buffers(consumer, &now);

    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    assert_eq!(
        changes(&mut world, consumer),
        ["stopped"],
        "it observes the next session as well"
    );
    world.service.start_deferred(consumer, &now);
    assert_eq!(changes(&mut world, consumer), ["started"]);
    world.service.observe_events(consumer, 0, &now);
    world.service.disable_tracing(consumer, &now);
    assert!(changes(&mut world, consumer).is_empty());
}

#[test]
fn instances_are_reported_producer_by_producer_and_those_of_a_lost_one_by_name() {
    let mut world = World::new();
    let [first, second] = ["p", "q"].map(|name| world.producer(name));
    let consumer = world.consumer();
    world.enable(consumer, &config(&["a", "b", "c"]));
    for (producer, name) in [(first, "c"), (second, "b"), (first, "a"), (second, "a")] {
        world.offer(producer, name);
    }
    let told = |world: &mut World| -> Vec<String> {
        world.run();
        let changes = &mut world.consumers.get_mut(&consumer).expect("known").changes;
        changes.drain(..).map(|(name, _)| name).collect()
    };
    let now = world.now;
    world.service.observe_events(consumer, INSTANCES, &now);
    assert_eq!(told(&mut world), ["c", "a", "b", "a"]);
    world.lose_producer(first);
    assert_eq!(told(&mut world), ["a", "c"]);
    world.offer(second, "c");
    let first = world.producer("p");
    world.offer(first, "a");
    told(&mut world);
    world.service.disable_tracing(consumer, &now);
    assert_eq!(told(&mut world), ["b", "a", "c", "a"]);
}

#[test]
fn observed_events_come_before_the_end_that_follows_them() {
    let mut world = World::new();
    producer_of_d(&mut world, false, false);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.observe_events(consumer, INSTANCES, &now);
    world.run();
    world.service.disable_tracing(consumer, &now);
    let mut told = Vec::new();
    while let Some(output) = world.service.poll() {
        match output {
            Output::Observed { .. } => told.push("observed"),
            Output::TracingDisabled { .. } => told.push("disabled"),
            _ => {}
        }
    }
    assert_eq!(told, ["observed", "disabled"]);
}

#[test]
fn all_data_sources_started_is_sent_in_each_session_and_not_before_the_start() {
    for (acknowledges, sources) in [(true, &["d"][..]), (false, &["d"]), (true, &[])] {
        let mut world = World::new();
        let producer = producer_of_d(&mut world, acknowledges, false);
        let consumer = world.consumer();
        let deferred = TraceConfig {
            deferred_start: Some(true),
            ..config(sources)
        };
        for round in 1..=3 {
            world.enable(consumer, &deferred);
            let now = world.now;
            world.service.observe_events(consumer, ALL_STARTED, &now);
            world.run();
            assert_eq!(world.consumers[&consumer].all_started, round - 1);
            assert_eq!(all_started_events(&mut world, consumer), 0);
            world.service.start_deferred(consumer, &now);
            if acknowledges && !sources.is_empty() {
                world.run();
                assert_eq!(world.consumers[&consumer].all_started, round - 1);
                assert_eq!(all_started_events(&mut world, consumer), 0);
                let instance = world.instances(producer)[round - 1].0;
                world.service.data_source_started(producer, instance.0, &now);
            }
            world.run();
            assert_eq!(world.consumers[&consumer].all_started, round);
            assert_eq!(all_started_events(&mut world, consumer), 1);
            world.service.observe_events(consumer, ALL_STARTED, &now);
            world.run();
            assert_eq!(world.consumers[&consumer].all_started, round, "once");
            world.service.free_buffers(consumer, &now);
            world.run();
        }
    }
}

/// The number of readable packets which say that all data sources have started.
fn all_started_events(world: &mut World, consumer: ConsumerId) -> usize {
    let packets = world.read(consumer);
    let told = packets.iter().filter(|packet| match &packet.data {
        Some(trace_packet::Data::ServiceEvent(event)) => {
            matches!(event.event_type, Some(EventType::AllDataSourcesStarted(true)))
        }
        _ => false,
    });
    told.count()
}

#[test]
fn a_key_is_free_again_once_its_session_has_ended_though_the_file_is_being_completed() {
    let mut world = World::new();
    world.disk = Disk::Slow;
    let (first, second) = (world.consumer(), world.consumer());
    let streaming = TraceConfig {
        write_into_file: Some(true),
        duration_ms: Some(1000),
        ..config(&[])
    };
    world.enable(first, &streaming);
    world.service.detach(first, "key").unwrap();
    world.advance(1000);
    assert!(
        world.service.attach(first, "key").is_err(),
        "there is nothing to attach to"
    );
    world.enable(second, &config(&[]));
    world.service.detach(second, "key").unwrap();
}
