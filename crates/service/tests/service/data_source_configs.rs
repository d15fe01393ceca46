//! Data sources in configs: the producers and machines that they select, the configs that producers get, and changes during the session.

use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, trace_config, trace_packet,
};
use ferretto_service::{
    ConfigInput, ConsumerId, Credentials, Introduction, OutputFile, ProducerCommand, Service, SmbOrigin,
};
use ferretto_smb::{PageSize, ServiceSmb, SharedMemory};

use crate::data_sources::{EVERYTHING, commands, descriptor, told};
use crate::world::{World, config, starts, stops};

/// Changes the config of the consumer's session.
fn change(world: &mut World, consumer: ConsumerId, config: &TraceConfig) {
    let input = ConfigInput {
        bytes: config.encode_to_vec().into(),
        config: config.clone(),
    };
    let now = world.now;
    world.service.change_config(consumer, &input, &now);
    world.run();
}

#[test]
fn changed_filters_bring_in_producers_that_pass_and_nothing_else() {
    let mut world = World::new();
    let producers = ["mock_1", "mock_2", "mock_3"].map(|name| world.producer(name));
    for producer in producers {
        world.offer(producer, "d");
    }
    world.offer(producers[2], "not in the config");
    let consumer = world.consumer();
    let mut filtered = config(&["d"]);
    filtered.data_sources[0].producer_name_filter = vec!["mock_1".into()];
    world.enable(consumer, &filtered);
    let started = |world: &World| producers.map(|producer| world.count(producer, starts));
    assert_eq!(started(&world), [1, 0, 0]);

    filtered.data_sources[0].producer_name_regex_filter = vec![".*_[2]".into()];
    change(&mut world, consumer, &filtered);
    assert_eq!(started(&world), [1, 1, 0]);

    filtered.data_sources[0]
        .producer_name_filter
        .push("mock_3".into());
    let mut more = filtered.clone();
    more.data_sources
        .extend(config(&["not in the config"]).data_sources);
    change(&mut world, consumer, &more);
    assert_eq!(
        started(&world),
        [1, 1, 1],
        "a session gets no further data sources"
    );
    let surplus = |line: &&String| line.contains("differs in more than producer filters");
    assert_eq!(world.log.iter().filter(surplus).count(), 1);

    // No instance is stopped, and none is set up again.
    filtered.data_sources[0].producer_name_filter = vec!["nobody".into()];
    filtered.data_sources[0].producer_name_regex_filter.clear();
    change(&mut world, consumer, &filtered);
    filtered.data_sources[0].producer_name_filter.clear();
    change(&mut world, consumer, &filtered);
    assert_eq!(started(&world), [1, 1, 1]);
    let stopped = producers.map(|producer| world.count(producer, stops));
    assert_eq!(stopped, [0, 0, 0]);

    // The current filters apply to later producers.
    let late = world.producer("any");
    world.offer(late, "d");
    assert_eq!(world.count(late, starts), 1);
}

#[test]
fn a_filter_that_changes_brings_in_every_registration() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "d");
    world.offer(producer, "e");
    let consumer = world.consumer();
    let mut filtered = config(&["d", "e"]);
    filtered.data_sources[0].producer_name_filter = vec!["nobody".into()];
    world.enable(consumer, &filtered);
    assert_eq!(world.count(producer, starts), 1, "e, which is not filtered");
    filtered.data_sources[0].producer_name_filter.clear();
    change(&mut world, consumer, &filtered);
    assert_eq!(world.count(producer, starts), 3);
}

/// A config with filters that match no producer, and the same config without the filters.
fn closed_and_open(names: &[&str]) -> (TraceConfig, TraceConfig) {
    let open = config(names);
    let mut closed = open.clone();
    for source in &mut closed.data_sources {
        source.producer_name_filter = vec!["nobody".into()];
    }
    (closed, open)
}

#[test]
fn data_sources_that_come_with_a_change_come_in_the_order_of_the_config() {
    let mut world = World::new();
    let producer = world.producer("p");
    let names = ["c", "a", "b", "a"];
    for name in ["a", "b", "c"] {
        world.offer(producer, name);
    }
    let (closed, open) = closed_and_open(&names);
    let consumer = world.consumer();
    world.enable(consumer, &closed);
    change(&mut world, consumer, &open);
    let instances = world.instances(producer);
    let set_up: Vec<&str> = instances.iter().filter_map(|(_, c)| c.name.as_deref()).collect();
    assert_eq!(set_up, names);
    // Each instance starts before the next is set up, as an instance of a late producer does.
    let commands = commands(&world.producers[&producer], 1);
    assert_eq!(commands, ["set up", "start"].repeat(names.len()));
}

#[test]
fn the_trace_and_an_attaching_consumer_get_the_current_filters_and_nothing_else_of_a_change() {
    let mut world = World::new();
    let consumer = world.consumer();
    let (closed, open) = closed_and_open(&["d", "e"]);
    world.enable(consumer, &closed);
    // The change leaves out one data source, which keeps its filter. It is too late to add a data source and a name.
    let mut changed = config(&["d", "late"]);
    changed.unique_session_name = Some("late".into());
    change(&mut world, consumer, &changed);
    let mut expected = open;
    expected.data_sources[1].producer_name_filter = vec!["nobody".into()];
    world.service.detach(consumer, "key").unwrap();
    let attached = world.service.attach(consumer, "key").unwrap();
    assert_eq!(TraceConfig::decode_from_slice(&attached).unwrap(), expected);
    let packets = world.read(consumer);
    let in_trace = packets.iter().find_map(|packet| match &packet.data {
        Some(trace_packet::Data::TraceConfig(config)) => Some(&**config),
        _ => None,
    });
    assert_eq!(in_trace, Some(&expected));
}

#[test]
fn a_change_to_a_filter_that_is_no_expression_changes_nothing() {
    let mut world = World::new();
    let producer = world.producer("p");
    for name in ["d", "e"] {
        world.offer(producer, name);
    }
    let consumer = world.consumer();
    let (closed, mut broken) = closed_and_open(&["d", "e"]);
    world.enable(consumer, &closed);
    broken.data_sources[1].producer_name_regex_filter = vec!["(".into()];
    change(&mut world, consumer, &broken);
    assert_eq!(world.instances(producer).len(), 0);
    world.service.detach(consumer, "key").unwrap();
    let attached = world.service.attach(consumer, "key").unwrap();
    assert_eq!(TraceConfig::decode_from_slice(&attached).unwrap(), closed);
    // The refused change does not affect the next one, which leaves out the data source with the wrong filter.
    change(&mut world, consumer, &closed_and_open(&["d"]).1);
    assert_eq!(world.instances(producer).len(), 1);
}

#[test]
fn a_config_that_changes_before_the_start_sets_up_and_starts_nothing() {
    let (mut world, producer, consumer) = World::offering();
    let mut deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    deferred.data_sources[0].producer_name_filter = vec!["nobody".into()];
    world.enable(consumer, &deferred);
    deferred.data_sources[0].producer_name_filter.clear();
    change(&mut world, consumer, &deferred);
    assert_eq!(
        (world.instances(producer).len(), world.count(producer, starts)),
        (1, 0)
    );
    world.start(consumer);
    assert_eq!(world.count(producer, starts), 1);
    world.service.disable_tracing(consumer, &world.now);
    world.lose_producer(producer);
    let late = world.producer("late");
    world.offer(late, "d");
    change(&mut world, consumer, &deferred);
    assert_eq!(world.instances(late).len(), 0, "it has ended");
}

#[test]
fn a_machine_is_picked_by_its_name_or_as_the_host() {
    let machines: [(&[&str], usize); 5] = [
        (&[], 1),
        (&["host"], 1),
        (&["testbed"], 1),
        (&["another"], 0),
        (&["another", "host"], 1),
    ];
    for (names, expected) in machines {
        let (mut world, producer, consumer) = World::offering();
        let mut filtered = config(&["d"]);
        filtered.data_sources[0].machine_name_filter = names.iter().map(|name| (*name).into()).collect();
        world.enable(consumer, &filtered);
        assert_eq!(world.count(producer, starts), expected, "{names:?}");
    }
}

#[test]
fn a_service_that_is_locked_down_deals_with_its_own_user_only() {
    use trace_config::LockdownModeOperation::{LOCKDOWN_CLEAR, LOCKDOWN_SET, LOCKDOWN_UNCHANGED};
    let mut world = World::new();
    let scraping = Default::default();
    // The service runs as user 42.
    let own = world.producer_of(42, "own", scraping);
    let stranger = world.producer_of(43, "stranger", scraping);
    world.offer(own, "d");
    world.offer(stranger, "d");
    let locked = TraceConfig {
        lockdown_mode: Some(LOCKDOWN_SET),
        ..config(&["d"])
    };
    let consumer = world.consumer();
    world.enable(consumer, &locked);
    assert_eq!([world.count(own, starts), world.count(stranger, starts)], [1, 0]);
    let connect = |world: &mut World, uid| {
        let who = Introduction::default();
        world
            .service
            .connect_producer(Credentials { uid, pid: None }, who)
    };
    assert!(connect(&mut world, 43).is_none());
    assert!(connect(&mut world, 0).is_none(), "not even root");
    assert!(connect(&mut world, 42).is_some());

    // The service stays locked down after the session, until another session asks for the opposite.
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    let unchanged = TraceConfig {
        lockdown_mode: Some(LOCKDOWN_UNCHANGED),
        ..config(&["d"])
    };
    world.enable(consumer, &unchanged);
    assert_eq!([world.count(own, starts), world.count(stranger, starts)], [2, 0]);
    world.service.free_buffers(consumer, &now);
    let unlocked = TraceConfig {
        lockdown_mode: Some(LOCKDOWN_CLEAR),
        ..config(&["d"])
    };
    world.enable(consumer, &unlocked);
    assert_eq!([world.count(own, starts), world.count(stranger, starts)], [3, 1]);
    assert!(connect(&mut world, 43).is_some());
}

#[test]
fn a_config_that_is_refused_locks_the_service_down_and_opens_it_as_any_other() {
    use trace_config::LockdownModeOperation::{LOCKDOWN_CLEAR, LOCKDOWN_SET};
    let mut world = World::new();
    let consumer = world.consumer();
    let mut refused = |operation| {
        // The service refuses the config for another field. Upstream obeys `lockdown_mode` before it looks at others.
        let persistent = TraceConfig {
            lockdown_mode: Some(operation),
            persist_trace_across_reboots: Some(true),
            ..config(&[])
        };
        world.try_enable(consumer, &persistent).unwrap_err();
        let stranger = Credentials { uid: 43, pid: None };
        let connected = world.service.connect_producer(stranger, Introduction::default());
        connected.is_some()
    };
    assert!(!refused(LOCKDOWN_SET));
    assert!(refused(LOCKDOWN_CLEAR));
}

#[test]
fn the_config_goes_before_the_producers_wish_for_shared_memory() {
    const KB: usize = 1024;
    // Page and size in KB: in the config, in the wish of the producer, and as granted.
    let cases = [
        ((0, 0), (0, 0), (4, 256)),
        ((16, 16), (0, 0), (16, 16)),
        ((0, 0), (4, 16), (4, 16)),
        ((4, 16), (8, 32), (4, 16)),
        ((8, 32), (4, 16), (8, 32)),
        ((0, 32), (8, 0), (8, 32)),
        ((3, 0), (0, 0), (4, 256)),
        ((4096, 4_096_000), (0, 0), (32, 32 * KB)),
        ((0, 0), (4096, 4_096_000), (32, 32 * KB)),
        ((16, 18), (0, 0), (4, 256)),
    ];
    for (configured, wished, granted) in cases {
        let mut world = World::new();
        let who = Introduction {
            name: "p".into(),
            smb_page_size_hint: wished.0 * KB,
            smb_size_hint: wished.1 * KB,
            ..Default::default()
        };
        let producer = world.introduce(1000, who);
        world.offer(producer, "d");
        let consumer = world.consumer();
        let sized = TraceConfig {
            producers: vec![trace_config::ProducerConfig {
                producer_name: Some("p".into()),
                page_size_kb: Some(configured.0),
                shm_size_kb: Some(configured.1),
                ..Default::default()
            }],
            ..config(&["d"])
        };
        world.enable(consumer, &sized);
        let expected = ProducerCommand::CreateSharedMemory {
            page_size: granted.0 * KB,
            size: granted.1 * KB,
        };
        assert_eq!(
            world.producers[&producer].commands[0], expected,
            "{configured:?} {wished:?}"
        );
    }
}

#[test]
fn shared_memory_that_a_producer_brings_is_used_if_its_sizes_are_possible() {
    const KB: usize = 1024;
    assert!(Service::would_adopt(KB * KB, 4 * KB));
    for (size, page) in [
        (KB * KB, 20 * KB),
        (KB * KB, 0),
        (64 * KB * KB, 4 * KB),
        (6 * KB, 4 * KB),
    ] {
        assert!(!Service::would_adopt(size, page), "{size} {page}");
    }
    let mut world = World::new();
    let producer = world.producer("p");
    let memory = std::sync::Arc::new(SharedMemory::create(KB * KB).unwrap());
    let smb = ServiceSmb::new(memory, PageSize::new(4 * KB).unwrap()).unwrap();
    world
        .service
        .attach_shared_memory(producer, smb, SmbOrigin::Producer);
    world.run();
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let commands = commands(&world.producers[&producer], 0);
    assert_eq!(commands, ["memory", "set up", "start"], "and no other is made");
}

#[test]
fn shared_memory_is_made_once_for_all_sessions() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    for _ in 0..2 {
        let consumer = world.consumer();
        world.enable(consumer, &config(&["d"]));
    }
    let commands = commands(&world.producers[&producer], 0);
    assert_eq!(commands, ["memory", "set up", "start", "set up", "start"]);
}

#[test]
fn the_config_is_the_same_at_set_up_and_start_and_names_session_and_buffer() {
    let mut world = World::new();
    let (a, b) = (world.producer("a"), world.producer("b"));
    world.offer(a, "d");
    world.offer(a, "e");
    world.offer(b, "d");
    let consumer = world.consumer();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let input = TraceConfig {
            duration_ms: Some(1234),
            data_source_stop_timeout_ms: Some(77),
            ..config(&["d", "e"])
        };
        sessions.push(world.enable(consumer, &input).0);
        world.free(consumer);
    }
    let mut instances = std::collections::BTreeSet::new();
    for producer in [a, b] {
        let mut set_up = std::collections::BTreeMap::new();
        for command in &world.producers[&producer].commands {
            match command {
                ProducerCommand::SetupDataSource { instance, config } => {
                    assert!(instances.insert(*instance), "each instance has its own number");
                    set_up.insert(*instance, config.clone());
                }
                ProducerCommand::StartDataSource { instance, config } => {
                    assert_eq!(set_up.get(instance), Some(config));
                }
                _ => {}
            }
        }
        let configs: Vec<DataSourceConfig> = set_up
            .values()
            .map(|config| DataSourceConfig::decode_from_slice(config).unwrap())
            .collect();
        let mut named: Vec<u64> = configs
            .iter()
            .map(|config| config.tracing_session_id.unwrap())
            .collect();
        named.dedup();
        assert_eq!(named, sessions, "the same in all instances of a session");
        for config in configs {
            assert_ne!(config.target_buffer, Some(0));
            assert_eq!(config.trace_duration_ms, Some(1234));
            assert_eq!(config.stop_timeout_ms, Some(77));
        }
    }
}

#[test]
fn incremental_state_is_cleared_in_the_instances_that_have_some_until_the_session_stops() {
    let mut world = World::new();
    let producer = world.producer("p");
    for (name, handles) in [("a", true), ("b", true), ("plain", false), ("unused", true)] {
        let source = DataSourceDescriptor {
            name: Some(name.into()),
            handles_incremental_state_clear: Some(handles),
            ..Default::default()
        };
        world.register(producer, &source);
    }
    let consumer = world.consumer();
    let mut clearing = config(&["plain", "a", "b"]);
    clearing.incremental_state_config = trace_config::IncrementalStateConfig {
        clear_period_ms: Some(1),
        ..Default::default()
    }
    .into();
    world.enable(consumer, &clearing);
    world.advance(3);
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    world.advance(10);
    let ids: Vec<_> = world.instances(producer).iter().map(|(id, _)| *id).collect();
    let cleared: Vec<_> = world.producers[&producer]
        .commands
        .iter()
        .filter_map(|command| match command {
            ProducerCommand::ClearIncrementalState { instances } => Some(instances.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(cleared, vec![ids[1..].to_vec(); 3]);
}

#[test]
fn a_session_may_be_enabled_before_any_producer_is_there() {
    let mut world = World::new();
    let consumer = world.consumer();
    let input = ConfigInput {
        bytes: config(&["d"]).encode_to_vec().into(),
        config: config(&["d"]),
    };
    let now = world.now;
    world.service.observe_events(consumer, EVERYTHING, &now);
    world
        .service
        .enable_tracing(consumer, input, &OutputFile::None, 7, &now)
        .unwrap();
    world.run();
    assert_eq!(told(&world, consumer, (0, 0, 0)), ["all started"], "all of none");
    let producer = world.producer("p");
    world.register(producer, &descriptor("d"));
    let instance = world.instances(producer)[0].0;
    world.service.data_source_started(producer, instance.0, &now);
    world.run();
    assert_eq!(
        told(&world, consumer, (0, 1, 0)),
        ["d stopped", "d started"],
        "that all have started is told once"
    );
}
