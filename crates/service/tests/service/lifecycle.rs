//! From `EnableTracing` to `FreeBuffers`: the messages to each client, and their order.

use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceConfig, TracingServiceState, TrackEventCategory,
    TrackEventDescriptor, observable_events,
};
use ferretto_service::{ConfigInput, ProducerCommand, StateScope};

use crate::world::{World, config, packet, starts, stops, texts};

#[test]
fn a_matching_data_source_is_set_up_and_started_at_once() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "wanted");
    world.offer(producer, "other");
    let consumer = world.consumer();
    let session = world.enable(consumer, &config(&["wanted"]));

    let commands = &world.producers[&producer].commands;
    let kinds: Vec<_> = commands.iter().map(std::mem::discriminant).collect();
    let nothing: std::sync::Arc<[u8]> = std::sync::Arc::from([]);
    let instance = world.instances(producer)[0].0;
    let expected = [
        ProducerCommand::CreateSharedMemory {
            size: 0,
            page_size: 0,
        },
        ProducerCommand::SetupDataSource {
            instance,
            config: nothing.clone(),
        },
        ProducerCommand::StartDataSource {
            instance,
            config: nothing,
        },
    ];
    assert_eq!(
        kinds,
        expected.iter().map(std::mem::discriminant).collect::<Vec<_>>()
    );
    let config = &world.instances(producer)[0].1;
    assert_eq!(config.name.as_deref(), Some("wanted"));
    assert_eq!(config.tracing_session_id, Some(session.0));
    assert_eq!(config.stop_timeout_ms, Some(5000));
}

#[test]
fn the_config_reaches_the_producer_byte_for_byte_before_the_fields_of_the_service() {
    let (mut world, producer, consumer) = World::offering();
    // The config has a field that this version does not know, and tries to forge the fields that the service sets.
    let mut source = ferretto_wire::Writer::new();
    source.bytes_field(1, b"d");
    source.bytes_field(9999, b"from the future");
    source.varint_field(8, 1);
    let mut bytes = ferretto_wire::Writer::new();
    bytes.nested(1, |buffer| buffer.varint_field(1, 64));
    bytes.nested(2, |data_source| data_source.bytes_field(1, source.as_slice()));
    let input = ConfigInput {
        config: ferretto_proto::messages::TraceConfig::decode_from_slice(bytes.as_slice()).unwrap(),
        bytes: bytes.as_slice().into(),
    };
    let now = world.now;
    world
        .service
        .enable_tracing(consumer, input, &ferretto_service::OutputFile::None, 1, &now)
        .unwrap();
    world.run();

    let sent = world.producers[&producer]
        .commands
        .iter()
        .find_map(|command| match command {
            ProducerCommand::SetupDataSource { config, .. } => Some(config.clone()),
            _ => None,
        });
    assert!(sent.unwrap().starts_with(source.as_slice()));
    let decoded = &world.instances(producer)[0].1;
    assert_eq!(
        decoded.session_initiator.map(|initiator| initiator as i32),
        Some(0)
    );
}

#[test]
fn deferred_start_waits_for_start_tracing() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(
        consumer,
        &ferretto_proto::messages::TraceConfig {
            deferred_start: Some(true),
            ..config(&["d"])
        },
    );
    assert_eq!(world.instances(producer).len(), 1);
    assert_eq!(world.count(producer, starts), 0);
    world.start(consumer);
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn a_data_source_registered_later_joins_the_running_session() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let producer = world.producer("late");
    world.offer(producer, "d");
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn producer_filters_pick_by_name_and_by_whole_name_expressions() {
    let mut world = World::new();
    let producers: Vec<_> = ["com.app", "com.app.child", "other"]
        .map(|name| world.producer(name))
        .into();
    for producer in &producers {
        world.offer(*producer, "d");
    }
    let consumer = world.consumer();
    let mut filtered = config(&["d"]);
    filtered.data_sources[0].producer_name_filter = vec!["other".into()];
    filtered.data_sources[0].producer_name_regex_filter = vec!["com\\.[a-z]+".into()];
    world.enable(consumer, &filtered);
    let started: Vec<usize> = producers
        .iter()
        .map(|producer| world.count(*producer, starts))
        .collect();
    assert_eq!(started, [1, 0, 1]);
}

#[test]
fn all_data_sources_started_is_sent_once_after_the_last_acknowledgement() {
    let mut world = World::new();
    let producer = world.producer("p");
    let slow = DataSourceDescriptor {
        name: Some("slow".into()),
        will_notify_on_start: Some(true),
        ..Default::default()
    };
    world.register(producer, &slow);
    world.offer(producer, "quick");
    let consumer = world.consumer();
    let kinds = observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32;
    let now = world.now;
    world.service.observe_events(consumer, kinds, &now);
    world.enable(consumer, &config(&["slow", "quick"]));
    assert_eq!(world.consumers[&consumer].all_started, 0);
    let slow = world
        .instances(producer)
        .iter()
        .find(|(_, c)| c.name.as_deref() == Some("slow"))
        .unwrap()
        .0;
    world.service.data_source_started(producer, slow.0, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].all_started, 1);
    world.offer(producer, "unrelated");
    world.run();
    assert_eq!(world.consumers[&consumer].all_started, 1);
}

#[test]
fn an_attaching_consumer_learns_that_all_have_started_meanwhile() {
    let kinds = observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32;
    for observes_before in [false, true] {
        let mut world = World::new();
        let producer = world.producer("p");
        let slow = DataSourceDescriptor {
            name: Some("slow".into()),
            will_notify_on_start: Some(true),
            ..Default::default()
        };
        world.register(producer, &slow);
        let (consumer, now) = (world.consumer(), world.now);
        if observes_before {
            world.service.observe_events(consumer, kinds, &now);
        }
        world.enable(consumer, &config(&["slow", "quick"]));
        world.service.detach(consumer, "key").unwrap();
        let instance = world.instances(producer)[0].0;
        world.service.data_source_started(producer, instance.0, &now);
        world.service.attach(consumer, "key").unwrap();
        world.run();
        assert_eq!(world.consumers[&consumer].all_started, 0);
        // The consumer hears it when it asks, or when the next data source starts.
        if observes_before {
            world.offer(producer, "quick");
        } else {
            world.service.observe_events(consumer, kinds, &now);
        }
        world.run();
        assert_eq!(world.consumers[&consumer].all_started, 1);
    }
}

#[test]
fn instance_states_are_observed() {
    use observable_events::DataSourceInstanceState as Is;
    let (mut world, _, consumer) = World::offering();
    let now = world.now;
    world.service.observe_events(
        consumer,
        observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32,
        &now,
    );
    world.enable(consumer, &config(&["d"]));
    world.service.disable_tracing(consumer, &now);
    world.run();
    let states: Vec<i32> = world.consumers[&consumer]
        .changes
        .iter()
        .map(|(_, state)| *state)
        .collect();
    let (started, stopped) = (
        Is::DATA_SOURCE_INSTANCE_STATE_STARTED,
        Is::DATA_SOURCE_INSTANCE_STATE_STOPPED,
    );
    assert_eq!(states, [stopped as i32, started as i32, stopped as i32]);
}

#[test]
fn a_session_with_a_duration_flushes_stops_and_notifies_its_consumer() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(
        consumer,
        &ferretto_proto::messages::TraceConfig {
            duration_ms: Some(100),
            ..config(&["d"])
        },
    );
    world.advance(99);
    assert_eq!(world.count(producer, stops), 0);
    world.advance(1);
    world.acknowledge_flushes(producer);
    assert_eq!(world.count(producer, stops), 1);
    assert_eq!(world.consumers[&consumer].disabled, [None]);
}

#[test]
fn a_stop_waits_for_acknowledgements_and_no_longer_than_the_timeout() {
    let mut world = World::new();
    let producer = world.producer("p");
    let slow = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_stop: Some(true),
        ..Default::default()
    };
    world.register(producer, &slow);
    for acknowledged in [true, false] {
        let consumer = world.consumer();
        world.enable(
            consumer,
            &ferretto_proto::messages::TraceConfig {
                data_source_stop_timeout_ms: Some(300),
                ..config(&["d"])
            },
        );
        world.disable(consumer);
        assert!(world.consumers[&consumer].disabled.is_empty());
        if acknowledged {
            let instance = world.instances(producer).last().unwrap().0;
            world
                .service
                .data_source_stopped(producer, instance.0, &world.now);
            world.run();
        } else {
            world.advance(299);
            assert!(world.consumers[&consumer].disabled.is_empty());
            world.advance(1);
        }
        assert_eq!(world.consumers[&consumer].disabled, [None]);
        let told = |line: &String| line.contains("1 data sources did not acknowledge the stop in time");
        assert_eq!(world.log.iter().any(told), !acknowledged, "{:?}", world.log);
        world.free(consumer);
    }
}

#[test]
fn a_stop_waits_for_the_configured_time_or_five_seconds_and_producers_learn_it() {
    for (configured, expected) in [
        (None, 5000),
        (Some(0), 5000),
        (Some(1), 1),
        (Some(60_000), 60_000),
    ] {
        let mut world = World::new();
        let producer = world.producer("p");
        let slow = DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_stop: Some(true),
            ..Default::default()
        };
        world.register(producer, &slow);
        let consumer = world.consumer();
        let timed = TraceConfig {
            data_source_stop_timeout_ms: configured,
            ..config(&["d"])
        };
        world.enable(consumer, &timed);
        let told = world.instances(producer)[0].1.stop_timeout_ms;
        assert_eq!(told.map(u64::from), Some(expected));
        let now = world.now;
        world.service.disable_tracing(consumer, &now);
        world.advance(expected - 1);
        assert!(world.consumers[&consumer].disabled.is_empty(), "{configured:?}");
        world.advance(1);
        assert_eq!(world.consumers[&consumer].disabled, [None], "{configured:?}");
    }
}

#[test]
fn a_producer_that_dies_ends_its_instances_and_its_committed_packets_stay() {
    let mut world = World::new();
    let producer = world.producer("p");
    let slow = DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_stop: Some(true),
        ..Default::default()
    };
    world.register(producer, &slow);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("last words")]);
    let now = world.now;
    world.service.disconnect_producer(producer, &now);
    world.service.disable_tracing(consumer, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].disabled, [None]);
    assert_eq!(texts(&world.read(consumer)), ["last words"]);
}

#[test]
fn a_consumer_that_goes_away_takes_its_session_with_it() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    assert_eq!(world.service.buffer_bytes(), 64 * 1024);
    let now = world.now;
    world.service.disconnect_consumer(consumer, &now);
    world.run();
    assert_eq!(world.count(producer, stops), 1);
    assert_eq!(world.service.buffer_bytes(), 0);
}

#[test]
fn a_detached_session_lives_on_and_can_be_attached_by_the_same_user_only() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer_of(5);
    world.enable(consumer, &config(&["d"]));
    assert!(
        world.service.detach(consumer, "").is_err(),
        "an empty key names nothing"
    );
    let early = world.consumer_of(5);
    assert!(
        world.service.attach(early, "").is_err(),
        "a session that was not detached has no key, which is not the empty one"
    );
    world.service.detach(consumer, "key").unwrap();
    let now = world.now;
    world.service.disconnect_consumer(consumer, &now);
    world.run();
    assert_eq!(world.count(producer, stops), 0);

    let stranger = world.consumer_of(6);
    assert!(world.service.attach(stranger, "key").is_err());
    let owner = world.consumer_of(5);
    assert!(world.service.attach(owner, "other key").is_err());
    world.service.attach(owner, "key").unwrap();
    world.service.disable_tracing(owner, &now);
    world.run();
    assert_eq!(world.consumers[&owner].disabled, [None]);
}

#[test]
fn two_sessions_with_one_data_source_are_two_instances() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let (a, b) = (world.consumer(), world.consumer());
    world.enable(a, &config(&["d"]));
    world.enable(b, &config(&["d"]));
    let instances = world.instances(producer);
    assert_eq!(instances.len(), 2);
    let target = |at: usize| instances[at].1.target_buffer.unwrap() as u16;
    assert_ne!(target(0), target(1));
    world.commit(producer, 1, target(0), &[&packet("for a")]);
    world.commit(producer, 2, target(1), &[&packet("for b")]);
    assert_eq!(texts(&world.read(a)), ["for a"]);
    assert_eq!(texts(&world.read(b)), ["for b"]);
}

#[test]
fn the_state_of_the_service_lists_everything_and_others_sessions_to_root_only() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer_of(5);
    world.enable(consumer, &config(&["d"]));
    let stranger = world.consumer_of(6);
    let root = world.consumer_of(0);
    let sessions = |world: &World, who| world.state(who, StateScope::Everything).tracing_sessions.len();
    let seen = [consumer, stranger, root].map(|who| sessions(&world, who));
    assert_eq!(seen, [1, 0, 1]);
    let state = world.state(root, StateScope::Everything);
    assert_eq!(state.producers[0].name.as_deref(), Some("p"));
    assert_eq!(state.tracing_sessions[0].state.as_deref(), Some("STARTED"));
    assert_eq!(state.data_sources[0].ds_descriptor.name.as_deref(), Some("d"));
    let brief = world.state(root, StateScope::Sessions);
    assert!(brief.producers.is_empty() && brief.data_sources.is_empty());
    assert_eq!(brief.tracing_sessions.len(), 1);
}

/// A part of a descriptor that takes about this many bytes.
fn bulk(size: usize) -> TrackEventDescriptor {
    TrackEventDescriptor {
        available_categories: vec![TrackEventCategory {
            name: Some("x".repeat(size)),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[test]
fn a_descriptor_that_fits_into_no_part_of_the_state_is_cut_to_its_name() {
    let mut world = World::new();
    let producer = world.producer("p");
    for (name, size) in [("small", 100), ("huge", 5000)] {
        let descriptor = DataSourceDescriptor {
            name: Some(name.into()),
            track_event_descriptor: bulk(size).into(),
            ..Default::default()
        };
        world.register(producer, &descriptor);
    }
    let consumer = world.consumer();
    let max = 1000;
    let parts = world.service.query_state(consumer, StateScope::Everything, max);
    assert!(parts.iter().all(|part| part.len() <= max));
    let state = TracingServiceState::decode_from_slice(&parts.concat()).unwrap();
    let descriptors = state.data_sources.iter().map(|source| {
        let descriptor = &source.ds_descriptor;
        (descriptor.name.clone().unwrap(), descriptor.encoded_len() > 100)
    });
    assert_eq!(
        descriptors.collect::<Vec<_>>(),
        [("huge".into(), false), ("small".into(), true)]
    );
}

#[test]
fn the_descriptors_of_a_producer_are_bounded_in_all() {
    let mut world = World::new();
    let producer = world.producer("p");
    let mut descriptor = DataSourceDescriptor {
        track_event_descriptor: bulk(100 * 1024).into(),
        ..Default::default()
    };
    for n in 1..=200 {
        descriptor.id = Some(n);
        descriptor.name = Some(format!("d{n}"));
        world.register(producer, &descriptor);
    }
    let root = world.consumer_of(0);
    let kept = world.state(root, StateScope::Everything).data_sources.len();
    assert!((70..=81).contains(&kept), "{kept}");
    // When a data source is withdrawn, there is room for another.
    let now = world.now;
    world.service.unregister_data_source(producer, "d1", &now);
    world.register(producer, &descriptor);
    assert_eq!(world.state(root, StateScope::Everything).data_sources.len(), kept);
}

#[test]
fn an_unregistered_data_source_ends_in_running_sessions() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.unregister_data_source(producer, "d", &now);
    world.run();
    assert_eq!(world.count(producer, stops), 1);
    let late = world.consumer();
    world.enable(late, &config(&["d"]));
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn an_instance_that_ends_with_its_producer_is_observed_to_stop_once() {
    for (acknowledges, expected) in [(false, 1), (true, 1)] {
        let mut world = World::new();
        let producer = world.producer("p");
        let descriptor = DataSourceDescriptor {
            name: Some("d".into()),
            will_notify_on_stop: Some(acknowledges),
            ..Default::default()
        };
        world.register(producer, &descriptor);
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
        let now = world.now;
        let kinds = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32;
        world.service.observe_events(consumer, kinds, &now);
        world.run();
        world.consumers.get_mut(&consumer).unwrap().changes.clear();
        world.service.disable_tracing(consumer, &now);
        world.service.disconnect_producer(producer, &now);
        world.run();
        let changes = &world.consumers[&consumer].changes;
        assert_eq!(changes.len(), expected, "{changes:?}");
        assert_eq!(world.consumers[&consumer].disabled, [None]);
    }
}

#[test]
fn a_session_that_ends_before_it_started_takes_its_instances_back() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
    let consumer = world.consumer();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    world.disable(consumer);
    assert_eq!(
        (world.count(producer, starts), world.count(producer, stops)),
        (0, 1)
    );
    assert_eq!(
        world.consumers[&consumer].disabled,
        [None],
        "without waiting for the producer"
    );
}

#[test]
fn a_changed_filter_sets_up_each_data_source_of_a_producer_once() {
    let mut world = World::new();
    let producer = world.producer("late");
    world.offer(producer, "d");
    let consumer = world.consumer();
    let mut narrow = config(&["d", "d"]);
    for source in &mut narrow.data_sources {
        source.producer_name_filter = vec!["nobody".into()];
    }
    world.enable(consumer, &narrow);
    let wide = config(&["d", "d"]);
    let bytes: std::sync::Arc<[u8]> = wide.encode_to_vec().into();
    let input = ConfigInput {
        config: wide,
        bytes: bytes.clone(),
    };
    let now = world.now;
    world.service.change_config(consumer, &input, &now);
    world.run();
    assert_eq!(world.count(producer, starts), 2);
    // The trace and a consumer that attaches get the current config.
    world.service.detach(consumer, "key").unwrap();
    assert_eq!(world.service.attach(consumer, "key").unwrap(), bytes);
}

#[test]
fn a_consumer_that_attaches_after_the_end_of_a_session_learns_of_it() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer_acknowledging_stops(producer, "d");
    let (first, second) = (world.consumer(), world.consumer());
    let session = world.enable(first, &config(&["d"]));
    let now = world.now;
    world.service.disable_tracing(first, &now);
    world.service.detach(first, "key").unwrap();
    let instance = world.instances(producer)[0].0;
    world.service.data_source_stopped(producer, instance.0, &now);
    world.run();
    world.service.attach(second, "key").unwrap();
    assert_eq!(world.service.await_disabled(second), Some(session));
    world.service.await_disabled(second);
    world.run();
    assert!(world.consumers[&first].ended.is_empty());
    assert_eq!(world.consumers[&second].ended, [session], "once");
}

#[test]
fn outputs_for_a_client_that_went_away_are_taken_back() {
    let (mut world, producer, consumer) = World::offering();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.flush(consumer, 1, 0, 0, &now);
    world.service.disable_tracing(consumer, &now);
    world.service.disconnect_consumer(consumer, &now);
    world.service.disconnect_producer(producer, &now);
    while let Some(output) = world.service.poll() {
        assert!(matches!(output, ferretto_service::Output::Log(..)), "{output:?}");
    }
}

#[test]
fn nothing_is_due_any_more_when_the_last_session_is_gone() {
    let mut world = World::new();
    let consumer = world.consumer();
    let busy = TraceConfig {
        duration_ms: Some(600_000),
        flush_period_ms: Some(100_000),
        ..config(&[])
    };
    for _ in 0..3 {
        world.enable(consumer, &busy);
        assert!(world.service.next_deadline().is_some());
        world.free(consumer);
    }
    assert_eq!(world.service.next_deadline(), None);
}
