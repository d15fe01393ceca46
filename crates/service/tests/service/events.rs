//! Events of the session itself and of others in a trace: service events and concurrent sessions.

use ferretto_proto::messages::concurrent_session_event::State;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{BuiltinDataSource, TriggerConfig};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::tracing_service_event::EventType;
use ferretto_proto::messages::{ConcurrentSessionEvent, DataSourceDescriptor, TraceConfig, TracePacket};
use ferretto_service::{CloneFile, CloneFilter, ClonePurpose, CloneRequest, Original, limits};

use crate::world::{Disk, World, config, decoded, packet, texts};

/// The names of the service events in their order, each with its time in milliseconds.
fn service_events(packets: &[TracePacket]) -> Vec<(&'static str, u64)> {
    let name = |event: &EventType| match event {
        EventType::TracingStarted(true) => "tracing started",
        EventType::AllDataSourcesStarted(true) => "all started",
        EventType::FlushStarted(true) => "flush started",
        EventType::AllDataSourcesFlushed(true) => "all flushed",
        EventType::ReadTracingBuffersCompleted(true) => "read",
        EventType::TracingDisabled(true) => "disabled",
        EventType::SlowStartingDataSources(_) => "slow to start",
        EventType::LastFlushSlowDataSources(_) => "slow to flush",
        other => panic!("{other:?}"),
    };
    packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ServiceEvent(event)) => Some((
                name(event.event_type.as_ref()?),
                packet.timestamp.expect("a time") / 1_000_000,
            )),
            _ => None,
        })
        .collect()
}

fn concurrent_events(packets: &[TracePacket]) -> Vec<(u64, Box<ConcurrentSessionEvent>)> {
    packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ConcurrentSessionEvent(event)) => {
                Some((packet.timestamp.expect("a time") / 1_000_000, event.clone()))
            }
            _ => None,
        })
        .collect()
}

/// State, session and name of each event.
fn told(packets: &[TracePacket]) -> Vec<(State, u64, String)> {
    concurrent_events(packets)
        .into_iter()
        .map(|(_, event)| {
            (
                event.state.expect("a state"),
                event.session_id.expect("an id"),
                event.session_name.clone().unwrap_or_default(),
            )
        })
        .collect()
}

fn watching(name: &str, sources: &[&str]) -> TraceConfig {
    TraceConfig {
        unique_session_name: Some(name.into()),
        builtin_data_sources: BuiltinDataSource {
            enable_concurrent_session_events: Some(true),
            ..Default::default()
        }
        .into(),
        ..config(sources)
    }
}

#[test]
fn the_life_of_a_session_is_recorded_in_its_order() {
    let mut world = World::new();
    let producer = world.producer("p");
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_start: Some(true),
        ..Default::default()
    };
    world.register(producer, &descriptor);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    world.advance(1000);
    let instance = world.instances(producer)[0].0;
    let now = world.now;
    world.service.data_source_started(producer, instance.0, &now);
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("data")]);
    world.advance(1000);
    world.flush(consumer, 1, 0);
    world.advance(1000);
    world.acknowledge_flushes(producer);
    world.advance(1000);
    world.disable(consumer);
    world.advance(1000);
    let packets = world.read(consumer);
    let expected = [
        ("tracing started", 1000),
        ("all started", 2000),
        ("flush started", 3000),
        ("all flushed", 4000),
        ("disabled", 5000),
        ("read", 6000),
    ];
    assert_eq!(service_events(&packets), expected);
    // Readers rely on this order: the start comes before any data.
    let data = packets
        .iter()
        .position(|p| !texts(std::slice::from_ref(p)).is_empty());
    let start = packets
        .iter()
        .position(|packet| matches!(&packet.data, Some(Data::ServiceEvent(_))));
    assert!(start < data);
    // Each read-back ends with an event that says that it is complete. No event comes twice.
    assert_eq!(service_events(&world.read(consumer)), [("read", 6000)]);
}

#[test]
fn a_flush_that_ends_while_a_consumer_reads_is_told_with_its_data() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("before")]);
    world.flush(consumer, 1, 0);
    world.acknowledge_flushes(producer);
    let mut flushed = false;
    // The second batch of the call comes after the flush, which may be in the same turn.
    let read = world.read_while(consumer, 1, |world, _| {
        if !std::mem::replace(&mut flushed, true) {
            for text in ["some", "some", "some", "last"] {
                world.commit(producer, 1, target, &[&packet(text)]);
            }
            world.flush(consumer, 2, 0);
            world.acknowledge_flushes(producer);
        }
    });
    let read = decoded(&read);
    assert!(!texts(&read).contains(&"last".to_owned()), "{:?}", texts(&read));
    // Readers sort up to the last flush once they hear that the buffers were read.
    let told = |packets: &[TracePacket]| {
        let names = service_events(packets).into_iter().map(|(name, _)| name);
        names
            .filter(|name| ["all flushed", "read"].contains(name))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(&read), ["all flushed", "read"]);
    let read = world.read(consumer);
    assert_eq!(texts(&read).last().unwrap(), "last");
    assert_eq!(told(&read), ["all flushed", "read"]);
}

#[test]
fn flushes_are_recorded_up_to_a_number_and_other_events_once() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&[]));
    for token in 0..100 {
        world.advance(10);
        world.flush(consumer, token, 0);
    }
    let events = service_events(&world.read(consumer));
    let count = |name| events.iter().filter(|(event, _)| *event == name).count();
    assert_eq!((count("flush started"), count("all flushed")), (64, 64));
    assert_eq!(count("tracing started"), 1);
    let newest: Vec<u64> = (0..64).map(|n| 2000 - 10 * (63 - n)).collect();
    for name in ["flush started", "all flushed"] {
        let of_kind = events.iter().filter(|(event, _)| *event == name);
        let kept: Vec<u64> = of_kind.map(|(_, at)| *at).collect();
        assert_eq!(kept, newest, "the newest {name} are kept");
    }
}

#[test]
fn data_sources_that_are_slow_to_start_are_named_after_twenty_seconds() {
    let mut world = World::new();
    let producer = world.producer("p");
    for (name, notifies) in [("quick", false), ("slow", true)] {
        let descriptor = DataSourceDescriptor {
            name: Some(name.into()),
            will_notify_on_start: Some(notifies),
            ..Default::default()
        };
        world.register(producer, &descriptor);
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&["quick", "slow"]));
    world.advance(19_999);
    assert!(
        !service_events(&world.read(consumer))
            .iter()
            .any(|(event, _)| *event == "slow to start")
    );
    world.advance(1);
    let packets = world.read(consumer);
    let named: Vec<String> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ServiceEvent(event)) => match &event.event_type {
                Some(EventType::SlowStartingDataSources(slow)) => Some(slow),
                _ => None,
            },
            _ => None,
        })
        .flat_map(|slow| &slow.data_source)
        .map(|source| source.data_source_name.clone().unwrap())
        .collect();
    assert_eq!(named, ["slow"]);
    world.advance(60_000);
    assert!(
        !service_events(&world.read(consumer))
            .iter()
            .any(|(event, _)| *event == "slow to start")
    );
}

#[test]
fn a_session_that_starts_while_detached_names_no_slow_data_source() {
    for will_notify_on_start in [None, Some(true)] {
        let mut world = World::new();
        let producer = world.producer("p");
        let descriptor = DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_start,
            ..Default::default()
        };
        world.register(producer, &descriptor);
        let consumer = world.consumer();
        let triggered = TraceConfig {
            trigger_config: TriggerConfig {
                trigger_mode: Some(TriggerMode::START_TRACING),
                trigger_timeout_ms: Some(100_000),
                triggers: vec![Trigger {
                    name: Some("t".into()),
                    stop_delay_ms: Some(100_000),
                    ..Default::default()
                }],
                ..Default::default()
            }
            .into(),
            ..config(&["d"])
        };
        world.enable(consumer, &triggered);
        world.service.detach(consumer, "key").unwrap();
        world.activate(producer, &["t"]);
        world.service.attach(consumer, "key").unwrap();
        world.advance(30_000);
        let told = service_events(&world.read(consumer));
        let names: Vec<&str> = told.iter().map(|(name, _)| *name).collect();
        // The trace does not say that all have started either, because no consumer was there to hear it.
        assert_eq!(names, ["tracing started", "read"]);
    }
}

#[test]
fn a_session_without_its_consumer_records_no_slow_start() {
    let mut world = World::new();
    let producer = world.producer("p");
    let descriptor = DataSourceDescriptor {
        name: Some("slow".into()),
        will_notify_on_start: Some(true),
        ..Default::default()
    };
    world.register(producer, &descriptor);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["slow"]));
    world.service.detach(consumer, "key").unwrap();
    world.advance(30_000);
    world.service.attach(consumer, "key").unwrap();
    let told = service_events(&world.read(consumer));
    let names: Vec<&str> = told.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["tracing started", "read"]);
}

#[test]
fn no_more_data_sources_are_named_than_the_limit() {
    for count in [
        limits::MAX_LISTED_DATA_SOURCES,
        limits::MAX_LISTED_DATA_SOURCES + 1,
    ] {
        let mut world = World::new();
        let producer = world.producer("p");
        let descriptor = DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_start: Some(true),
            ..Default::default()
        };
        world.register(producer, &descriptor);
        let consumer = world.consumer();
        world.enable(consumer, &config(&vec!["d"; count]));
        world.advance(20_000);
        let packets = world.read(consumer);
        let named: usize = packets
            .iter()
            .filter_map(|packet| match &packet.data {
                Some(Data::ServiceEvent(event)) => match &event.event_type {
                    Some(EventType::SlowStartingDataSources(slow)) => Some(slow.data_source.len()),
                    _ => None,
                },
                _ => None,
            })
            .sum();
        assert_eq!(named, limits::MAX_LISTED_DATA_SOURCES);
    }
}

#[test]
fn sessions_record_the_lives_of_other_sessions() {
    use State::{STATE_CONFIGURED, STATE_DISABLED, STATE_STARTED};
    let mut world = World::new();
    let [a, b, c] = [1, 2001, 2002].map(|uid| world.consumer_of(uid));
    world.enable(a, &watching("a", &[]));
    world.advance(10);
    world.enable(b, &watching("b", &[]));
    world.advance(10);
    world.disable(b);
    assert_eq!(told(&world.read(b)), [(STATE_STARTED, 1, "a".into())]);
    // The second session has ended, but still exists.
    world.advance(10);
    world.enable(c, &watching("c", &[]));
    world.disable(c);
    assert!(told(&world.read(b)).is_empty(), "it has ended");
    let seen = world.read(c);
    assert_eq!(
        told(&seen),
        [(STATE_STARTED, 1, "a".into()), (STATE_DISABLED, 2, "b".into())]
    );
    let since: Vec<u64> = concurrent_events(&seen).iter().map(|(at, _)| *at).collect();
    assert_eq!(since, [1000, 1020], "since when they are so");
    world.disable(a);
    let seen = world.read(a);
    let lives = [(2, "b"), (3, "c")].into_iter().flat_map(|(id, name)| {
        [STATE_CONFIGURED, STATE_STARTED, STATE_DISABLED].map(|state| (state, id, name.to_owned()))
    });
    assert_eq!(told(&seen), lives.collect::<Vec<_>>());
    for (_, event) in concurrent_events(&seen) {
        let uid = if event.session_id == Some(2) { 2001 } else { 2002 };
        assert_eq!(event.consumer_uid, Some(uid));
        assert_eq!(event.num_data_sources, Some(0));
    }
    assert!(told(&world.read(a)).is_empty(), "once");
}

#[test]
fn earlier_states_of_other_sessions_are_recorded_in_their_order() {
    use State::STATE_STARTED;
    let mut world = World::new();
    let [a, b, c] = [world.consumer(), world.consumer(), world.consumer()];
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&[])
    };
    world.enable(a, &deferred);
    world.enable(b, &config(&[]));
    world.advance(10);
    world.start(a);
    world.enable(c, &watching("c", &[]));
    let seen = told(&world.read(c));
    assert_eq!(
        seen,
        [
            (STATE_STARTED, 2, String::new()),
            (STATE_STARTED, 1, String::new())
        ]
    );
}

#[test]
fn the_state_of_a_session_that_waits_for_its_data_sources_to_stop_is_reported() {
    use State::{STATE_CONFIGURED, STATE_DISABLED, STATE_DISABLING_WAITING_STOP_ACKS, STATE_STARTED};
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
    let (a, b) = (world.consumer(), world.consumer());
    world.enable(a, &watching("a", &[]));
    // The session has no name, and its own trace says nothing about other sessions.
    world.enable(b, &config(&["d"]));
    world.advance(10);
    world.disable(b);
    world.advance(5000);
    let seen = world.read(a);
    let states = [
        STATE_CONFIGURED,
        STATE_STARTED,
        STATE_DISABLING_WAITING_STOP_ACKS,
        STATE_DISABLED,
    ];
    assert_eq!(told(&seen), states.map(|state| (state, 2, String::new())));
    for (_, event) in concurrent_events(&seen) {
        assert_eq!(event.num_data_sources, Some(1));
        assert_eq!(event.session_name, None);
    }
    assert!(told(&world.read(b)).is_empty(), "it did not ask");
}

#[test]
fn a_session_that_was_freed_is_no_longer_beside_others_though_its_file_is_being_completed() {
    let mut world = World::new();
    world.disk = Disk::Slow;
    let (a, b) = (world.consumer(), world.consumer());
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    world.enable(a, &streaming);
    world.free(a);
    world.enable(b, &watching("b", &[]));
    assert!(told(&world.read(b)).is_empty());
}

#[test]
fn pending_events_of_a_gone_consumer_hold_up_no_other() {
    use ferretto_proto::messages::observable_events;
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumers = [world.consumer(), world.consumer()];
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    let now = world.now;
    for consumer in consumers {
        let kinds = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32;
        world.service.observe_events(consumer, kinds, &now);
        world.enable(consumer, &deferred);
    }
    // Both consumers are to hear that their data sources have started. By then, one consumer is gone.
    for consumer in consumers {
        world.service.start_deferred(consumer, &now);
    }
    world.lose_consumer(consumers[0]);
    let last = world.consumers[&consumers[1]].changes.last();
    let started = observable_events::DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
    assert_eq!(last, Some(&("d".to_owned(), started as i32)));
}

#[test]
fn events_of_other_sessions_are_recorded_up_to_a_number() {
    let mut world = World::new();
    let (a, b) = (world.consumer(), world.consumer());
    world.enable(a, &watching("a", &[]));
    // Each session adds three events.
    for _ in 0..limits::MAX_CONCURRENT_SESSION_EVENTS / 3 + 10 {
        world.enable(b, &config(&[]));
        world.free(b);
    }
    assert_eq!(told(&world.read(a)).len(), limits::MAX_CONCURRENT_SESSION_EVENTS);
    // There is room again.
    world.enable(b, &config(&[]));
    assert_eq!(told(&world.read(a)).len(), 2);
}

#[test]
fn names_of_other_sessions_are_kept_up_to_a_size() {
    let mut world = World::new();
    let (a, b) = (world.consumer(), world.consumer());
    world.enable(a, &watching("a", &[]));
    let size = 100 * 1024;
    let long = TraceConfig {
        unique_session_name: Some("x".repeat(size)),
        ..config(&[])
    };
    for _ in 0..limits::MAX_CONCURRENT_SESSION_NAME_BYTES / size {
        world.enable(b, &long);
        world.free(b);
    }
    let seen = told(&world.read(a)).len();
    assert_eq!(seen, limits::MAX_CONCURRENT_SESSION_NAME_BYTES / size);
    // Events that were read make room.
    world.enable(b, &long);
    assert_eq!(told(&world.read(a)).len(), 2);
}

#[test]
fn the_end_of_a_clone_is_reported_like_the_end_of_any_session() {
    use State::{STATE_CLONED_READ_ONLY, STATE_CONFIGURED, STATE_DISABLED, STATE_STARTED};
    let mut world = World::new();
    let [a, b, c] = [world.consumer(), world.consumer(), world.consumer()];
    world.enable(a, &watching("a", &[]));
    let streaming = TraceConfig {
        write_into_file: Some(true),
        ..config(&[])
    };
    let original = world.enable(b, &streaming);
    let request = CloneRequest {
        original: Original::Id(original.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::Passed,
    };
    world.try_clone(c, request.clone()).unwrap();
    world.free(c);
    // A clone that fails has an end as well.
    world.disk = Disk::Full;
    world.try_clone(c, request).unwrap();
    let lives = [
        (STATE_CONFIGURED, 2),
        (STATE_STARTED, 2),
        (STATE_CLONED_READ_ONLY, 3),
        (STATE_DISABLED, 3),
        (STATE_CLONED_READ_ONLY, 4),
        (STATE_DISABLED, 4),
    ];
    assert_eq!(
        told(&world.read(a)),
        lives.map(|(state, id)| (state, id, String::new()))
    );
}

#[test]
fn a_clone_records_its_originals_events_and_itself() {
    use State::{STATE_CLONED_READ_ONLY, STATE_CONFIGURED, STATE_STARTED};
    let mut world = World::new();
    let [a, b, c, d] = [1000, 2001, 2002, 0].map(|uid| world.consumer_of(uid));
    let original = world.enable(a, &watching("a", &[]));
    world.enable(b, &config(&[]));
    world.advance(10);
    let request = |file| CloneRequest {
        original: Original::Id(original.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file,
    };
    world.try_clone(d, request(CloneFile::None)).unwrap();
    world.enable(c, &config(&[]));
    let seen = world.read(d);
    let lives = [
        (STATE_CONFIGURED, 2, ""),
        (STATE_STARTED, 2, ""),
        (STATE_CLONED_READ_ONLY, 3, "a"),
    ];
    assert_eq!(
        told(&seen),
        lives.map(|(state, id, name)| (state, id, name.to_owned()))
    );
    let (at, clone) = concurrent_events(&seen).pop().unwrap();
    assert_eq!(
        (at, clone.consumer_uid, clone.num_data_sources),
        (1010, Some(0), Some(0))
    );
    // The original keeps all its events, and gets later ones.
    assert_eq!(told(&world.read(a))[..3], told(&seen));
    assert!(told(&world.read(d)).is_empty(), "once");
}

#[test]
fn of_flushes_that_were_slow_some_are_kept_and_of_names_the_beginning() {
    let mut world = World::new();
    let long = "x".repeat(100 * 1024);
    let producer = world.producer(&long);
    world.offer(producer, &long);
    let consumer = world.consumer();
    world.enable(consumer, &config(&[&long]));
    const REASON_TRACE_STOP: u64 = 2;
    let most = limits::MAX_SLOW_FLUSHES as u64;
    let now = world.now;
    for token in 0..2 * most {
        let timeout = 10 * (token as u32 + 1);
        world
            .service
            .flush(consumer, token, timeout, REASON_TRACE_STOP, &now);
    }
    world.run();
    world.advance(5000);
    let packets = world.read(consumer);
    let told = service_events(&packets);
    let since = told.iter().filter(|(event, _)| *event == "slow to flush");
    let since: Vec<u64> = since.map(|(_, at)| *at).collect();
    let newest: Vec<u64> = (most + 1..=2 * most).map(|nth| 1000 + 10 * nth).collect();
    assert_eq!(since, newest, "the newest are kept");
    let slow: Vec<_> = packets
        .iter()
        .filter_map(|packet| match &packet.data {
            Some(Data::ServiceEvent(event)) => match &event.event_type {
                Some(EventType::LastFlushSlowDataSources(slow)) => Some(&slow.data_source),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(slow.len() as u64, most);
    for sources in slow {
        let name = sources[0].producer_name.as_deref().unwrap();
        assert_eq!(name.len(), limits::MAX_LISTED_NAME);
        assert_eq!(sources[0].data_source_name.as_deref(), Some(name));
    }
}
