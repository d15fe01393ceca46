//! A consumer's questions to the service: its state with each option, its capabilities, and the statistics of a session.

use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceConfig, TracingServiceCapabilities, TracingServiceState,
    observable_events, trace_config, tracing_service_state,
};
use ferretto_service::{ConsumerId, Credentials, Introduction, Service, StateScope};

use crate::world::{World, config, packet};

/// The only session that this consumer sees.
fn session(world: &World, consumer: ConsumerId) -> tracing_service_state::TracingSession {
    let mut sessions = world.state(consumer, StateScope::Sessions).tracing_sessions;
    assert_eq!(sessions.len(), 1);
    sessions.remove(0)
}

#[test]
fn a_session_is_described_by_its_config_and_its_state() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "e");
    let consumer = world.consumer_of(1000);
    let mut asked = TraceConfig {
        duration_ms: Some(60_000),
        unique_session_name: Some("mine".into()),
        bugreport_score: Some(7),
        bugreport_filename: Some("mine.pftrace".into()),
        ..config(&["d", "e", "nobody has it"])
    };
    asked.buffers.push(trace_config::BufferConfig {
        size_kb: Some(128),
        ..Default::default()
    });
    let started = world.now.realtime as i64;
    let id = world.enable(consumer, &asked);
    world.advance(100);
    let expected = tracing_service_state::TracingSession {
        id: Some(id.0),
        consumer_uid: Some(1000),
        state: Some("STARTED".into()),
        unique_session_name: Some("mine".into()),
        buffer_size_kb: vec![64, 128],
        duration_ms: Some(60_000),
        num_data_sources: Some(2),
        start_realtime_ns: Some(started),
        bugreport_score: Some(7),
        bugreport_filename: Some("mine.pftrace".into()),
        is_started: Some(true),
        buffer_used_bytes: vec![0, 0],
        ..Default::default()
    };
    assert_eq!(session(&world, consumer), expected);
    // After a read, the state still has the start.
    world.read(consumer);
    assert_eq!(session(&world, consumer), expected);
}

#[test]
fn a_session_reports_how_much_of_its_buffers_was_written() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    world.advance(100);
    let target = world.target(producer);
    let used = |world: &World| session(world, consumer).buffer_used_bytes;
    assert_eq!(used(&world), [0]);
    world.commit(producer, 1, target, &[&packet(&"x".repeat(1000))]);
    let [once] = used(&world)[..] else {
        panic!("{:?}", used(&world))
    };
    assert!((1000..2000).contains(&once), "{once}");
    // Packets that were read still count as written, and a ring that has wrapped around is full.
    world.read(consumer);
    assert_eq!(used(&world), [once]);
    for _ in 0..100 {
        world.commit(producer, 1, target, &[&packet(&"x".repeat(1000))]);
    }
    let size = 64 << 10;
    let [all] = used(&world)[..] else {
        panic!("{:?}", used(&world))
    };
    assert!((size - 2000..=size).contains(&all), "{all}");
}

#[test]
fn a_session_reports_each_of_its_states() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
    let consumer = world.consumer();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    let mut seen = Vec::new();
    let mut look = |world: &World| {
        let state = world.state(consumer, StateScope::Sessions);
        let session = &state.tracing_sessions[0];
        assert_eq!(state.num_sessions, Some(1));
        assert_eq!(
            state.num_sessions_started == Some(1),
            session.is_started == Some(true)
        );
        seen.push(session.state.clone().expect("a state"));
    };
    world.enable(consumer, &deferred);
    look(&world);
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    look(&world);
    world.service.disable_tracing(consumer, &now);
    look(&world);
    world.run();
    world.advance(5_000);
    look(&world);
    assert_eq!(seen, ["CONFIGURED", "STARTED", "STOP_WAIT", "DISABLED"]);
}

#[test]
fn producers_and_data_sources_are_listed_unless_only_sessions_are_asked_for() {
    let mut world = World::new();
    let who = Introduction {
        name: "p".into(),
        sdk_version: "v1".into(),
        ..Default::default()
    };
    let credentials = Credentials { uid: 5, pid: Some(6) };
    let producer = world
        .service
        .connect_producer(credentials, who)
        .expect("admitted");
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        id: Some(3),
        ..Default::default()
    };
    let now = world.now;
    world
        .service
        .register_data_source(producer, &descriptor.encode_to_vec(), &now);
    let consumer = world.consumer();
    let state = world.state(consumer, StateScope::Everything);
    let expected = tracing_service_state::Producer {
        id: Some(producer.0 as i32),
        name: Some("p".into()),
        uid: Some(5),
        pid: Some(6),
        sdk_version: Some("v1".into()),
        frozen: Some(false),
        ..Default::default()
    };
    assert_eq!(state.producers, [expected]);
    assert_eq!(*state.data_sources[0].ds_descriptor, descriptor);
    assert_eq!(state.data_sources[0].producer_id, Some(producer.0 as i32));
    assert_eq!(state.tracing_service_version.as_deref(), Some("test"));
    assert_eq!(state.supports_tracing_sessions, Some(true));
    let brief = world.state(consumer, StateScope::Sessions);
    assert!(brief.producers.is_empty() && brief.data_sources.is_empty());
    assert_eq!(brief.tracing_service_version.as_deref(), Some("test"));
}

#[test]
fn an_entry_that_fits_into_no_message_is_left_out() {
    let mut world = World::new();
    let consumer = world.consumer();
    let named = TraceConfig {
        unique_session_name: Some("x".repeat(10_000)),
        ..config(&[])
    };
    world.enable(consumer, &named);
    let parts = world
        .service
        .query_state(consumer, StateScope::Sessions, usize::MAX);
    let largest = parts.iter().map(Vec::len).max().expect("parts");
    let sessions = |max| {
        let parts = world.service.query_state(consumer, StateScope::Sessions, max);
        assert!(parts.iter().all(|part| part.len() <= max));
        let state = TracingServiceState::decode_from_slice(&parts.concat()).expect("a state");
        (state.num_sessions, state.tracing_sessions.len())
    };
    assert_eq!(sessions(largest), (Some(1), 1));
    assert_eq!(sessions(largest - 1), (Some(1), 0));
}

#[test]
fn data_sources_are_listed_by_name_and_in_the_order_of_their_registration() {
    let mut world = World::new();
    let producers = [world.producer("p"), world.producer("q")];
    for (producer, name, id) in [
        (1, "b", 1),
        (0, "c", 1),
        (0, "b", 2),
        (1, "a", 2),
        (1, "b", 3),
        (0, "B", 3),
    ] {
        let descriptor = DataSourceDescriptor {
            name: Some(name.into()),
            id: Some(id),
            ..Default::default()
        };
        world.register(producers[producer], &descriptor);
    }
    let consumer = world.consumer();
    let told = |world: &World| -> Vec<(String, i32, u64)> {
        let state = world.state(consumer, StateScope::Everything);
        let sources = state.data_sources.iter().map(|source| {
            let descriptor = &source.ds_descriptor;
            let name = descriptor.name.clone().expect("a name");
            (
                name,
                source.producer_id.expect("a producer"),
                descriptor.id.expect("an id"),
            )
        });
        sources.collect()
    };
    let expected = [
        ("B", 1, 3),
        ("a", 2, 2),
        ("b", 2, 1),
        ("b", 1, 2),
        ("b", 2, 3),
        ("c", 1, 1),
    ];
    let expected = expected.map(|(name, producer, id)| (name.to_owned(), producer, id));
    assert_eq!(told(&world), expected);
    // A producer that changes a descriptor keeps its place.
    let changed = DataSourceDescriptor {
        name: Some("b".into()),
        id: Some(1),
        no_flush: Some(true),
        ..Default::default()
    };
    world
        .service
        .update_data_source(producers[1], &changed.encode_to_vec());
    assert_eq!(told(&world), expected);
}

#[test]
fn the_service_lists_its_capabilities() {
    use observable_events::Type::{
        TYPE_ALL_DATA_SOURCES_STARTED, TYPE_CLONE_TRIGGER_HIT, TYPE_DATA_SOURCES_INSTANCES,
    };
    let expected = TracingServiceCapabilities {
        has_query_capabilities: Some(true),
        has_trace_config_output_path: Some(true),
        has_clone_session: Some(true),
        observable_events: vec![
            TYPE_DATA_SOURCES_INSTANCES,
            TYPE_ALL_DATA_SOURCES_STARTED,
            TYPE_CLONE_TRIGGER_HIT,
        ],
        ..Default::default()
    };
    assert_eq!(Service::query_capabilities(), expected);
}

#[test]
fn a_consumer_gets_the_statistics_of_its_own_session() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "e");
    let gone = world.producer("gone");
    world.lose_producer(gone);
    let consumer = world.consumer();
    assert!(world.service.trace_stats(consumer).is_none());
    world.enable(consumer, &config(&["d"]));
    let other = world.consumer();
    let mut two = config(&["e"]);
    two.buffers.push(two.buffers[0].clone());
    world.enable(other, &two);
    let stats = world.service.trace_stats(consumer).expect("a session");
    assert_eq!(stats.producers_connected, Some(1));
    assert_eq!(stats.producers_seen, Some(2));
    assert_eq!(stats.data_sources_registered, Some(2));
    assert_eq!(stats.data_sources_seen, Some(2));
    assert_eq!(stats.tracing_sessions, Some(2));
    assert_eq!(stats.total_buffers, Some(3));
    assert_eq!(stats.buffer_stats.len(), 1);
    let of_other = world.service.trace_stats(other).expect("a session");
    assert_eq!(of_other.buffer_stats.len(), 2);
}
