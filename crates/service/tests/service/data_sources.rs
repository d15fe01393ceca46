//! What becomes of a data source: in each state of its session whatever happens, when it is registered twice, changed or
//! comes back, and which producers a session is meant for.

use buffa::Message;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, TraceConfig, TrackEventCategory, TrackEventDescriptor,
    observable_events, trace_config,
};
use ferretto_service::{
    ConfigInput, ConsumerId, Credentials, Introduction, OutputFile, ProducerCommand, ProducerId, Service,
    SmbOrigin, StateScope,
};
use ferretto_smb::{PageSize, ServiceSmb, SharedMemory};

use crate::world::{FakeProducer, World, config, packet, starts, stops, texts};

/// Where a session and its only data source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    /// Waiting for `StartTracing`.
    Configured,
    /// Started, and the data source has not said so.
    Starting,
    Started,
    /// Started, and no consumer attached.
    Detached,
    /// Told to stop, and the data source has not said that it did.
    Stopping,
    Disabled,
}

/// What may happen then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    StartIsAcknowledged,
    StopIsAcknowledged,
    TheDescriptorIsUpdated,
    TheDataSourceIsUnregistered,
    TheProducerIsLost,
    /// One that acknowledges nothing.
    AnotherProducerOffersIt,
    TheConsumerStarts,
    TheConsumerDisables,
    TheConsumerFrees,
    TheConsumerIsLost,
    TheStopTimesOut,
}

/// A data source that acknowledges everything.
fn descriptor(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        id: Some(1),
        name: Some(name.into()),
        will_notify_on_start: Some(true),
        will_notify_on_stop: Some(true),
        ..Default::default()
    }
}

const EVERYTHING: u32 = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32
    | observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32;

fn commands(producer: &FakeProducer, from: usize) -> Vec<&'static str> {
    let names = producer.commands[from..].iter().map(|command| match command {
        ProducerCommand::CreateSharedMemory { .. }
        | ProducerCommand::EmulateSharedMemory { .. }
        | ProducerCommand::SharedMemoryAdopted => "memory",
        ProducerCommand::SetupDataSource { .. } => "set up",
        ProducerCommand::StartDataSource { .. } => "start",
        ProducerCommand::StopDataSource { .. } => "stop",
        ProducerCommand::Flush { .. } => "flush",
        ProducerCommand::ClearIncrementalState { .. } => "clear",
    });
    names.collect()
}

/// What a consumer was told beyond the first `changes`, `started` and `ended`.
fn told(
    world: &World,
    consumer: ConsumerId,
    (changes, started, ended): (usize, usize, usize),
) -> Vec<String> {
    use observable_events::DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
    let consumer = &world.consumers[&consumer];
    let started_now = consumer.all_started > started;
    let changes = consumer.changes[changes..].iter().map(|(name, state)| {
        let started = *state == DATA_SOURCE_INSTANCE_STATE_STARTED as i32;
        format!("{name} {}", if started { "started" } else { "stopped" })
    });
    let mut told: Vec<String> = changes.collect();
    told.extend(started_now.then(|| "all started".into()));
    told.extend(consumer.disabled[ended..].iter().map(|error| match error {
        None => "disabled".into(),
        Some(error) => format!("disabled: {error}"),
    }));
    told
}

/// State of the session, commands to the first and the other producer, what the consumer is told.
fn what_follows(state: In, event: When) -> String {
    let mut world = World::new();
    let (producer, consumer) = (world.producer("p"), world.consumer());
    let other = world.producer("q");
    let root = world.consumer_of(0);
    world.register(producer, &descriptor("d"));
    let now = world.now;
    world.service.observe_events(consumer, EVERYTHING, &now);
    let deferred = TraceConfig {
        deferred_start: Some(state == In::Configured),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    let instance = world.instances(producer)[0].0.0;
    if !matches!(state, In::Configured | In::Starting) {
        world.service.data_source_started(producer, instance, &now);
    }
    match state {
        In::Configured | In::Starting | In::Started => {}
        In::Detached => world.service.detach(consumer, "key").expect("a free key"),
        In::Stopping => world.service.disable_tracing(consumer, &now),
        In::Disabled => {
            world.service.disable_tracing(consumer, &now);
            world.service.data_source_stopped(producer, instance, &now);
        }
    }
    world.run();
    let seen = [producer, other].map(|producer| world.producers[&producer].commands.len());
    let heard = &world.consumers[&consumer];
    let heard = (heard.changes.len(), heard.all_started, heard.disabled.len());

    match event {
        When::StartIsAcknowledged => world.service.data_source_started(producer, instance, &now),
        When::StopIsAcknowledged => world.service.data_source_stopped(producer, instance, &now),
        When::TheDescriptorIsUpdated => {
            let changed = DataSourceDescriptor {
                no_flush: Some(true),
                ..descriptor("d")
            };
            world
                .service
                .update_data_source(producer, &changed.encode_to_vec());
        }
        When::TheDataSourceIsUnregistered => world.service.unregister_data_source(producer, "d", &now),
        When::TheProducerIsLost => world.lose_producer(producer),
        When::AnotherProducerOffersIt => world.offer(other, "d"),
        When::TheConsumerStarts => world.service.start_deferred(consumer, &now),
        When::TheConsumerDisables => world.service.disable_tracing(consumer, &now),
        When::TheConsumerFrees => world.service.free_buffers(consumer, &now),
        When::TheConsumerIsLost => world.lose_consumer(consumer),
        When::TheStopTimesOut => world.advance(5000),
    }
    world.run();

    let sessions = world.state(root, StateScope::Sessions).tracing_sessions;
    let state = sessions.first().and_then(|session| session.state.clone());
    let mut outcome = state.unwrap_or("gone".into());
    for (name, producer, seen) in [("p", producer, seen[0]), ("q", other, seen[1])] {
        let commands = commands(&world.producers[&producer], seen);
        if !commands.is_empty() {
            outcome += &format!("; {name}: {}", commands.join(", "));
        }
    }
    let told = told(&world, consumer, heard);
    if !told.is_empty() {
        outcome += &format!("; told: {}", told.join(", "));
    }
    outcome
}

#[test]
fn a_data_source_in_every_state_of_its_session_whatever_happens() {
    use In::*;
    use When::*;
    let expected = [
        (Configured, StartIsAcknowledged, "CONFIGURED"),
        (Configured, StopIsAcknowledged, "CONFIGURED"),
        (Configured, TheDescriptorIsUpdated, "CONFIGURED"),
        (
            Configured,
            TheDataSourceIsUnregistered,
            "CONFIGURED; p: stop; told: d stopped",
        ),
        (Configured, TheProducerIsLost, "CONFIGURED; told: d stopped"),
        (
            Configured,
            AnotherProducerOffersIt,
            "CONFIGURED; q: memory, set up; told: d stopped",
        ),
        (Configured, TheConsumerStarts, "STARTED; p: start"),
        (
            Configured,
            TheConsumerDisables,
            "DISABLED; p: stop; told: d stopped, disabled",
        ),
        (
            Configured,
            TheConsumerFrees,
            "gone; p: stop; told: d stopped, disabled",
        ),
        (Configured, TheConsumerIsLost, "gone; p: stop"),
        (Configured, TheStopTimesOut, "CONFIGURED"),
        (
            Starting,
            StartIsAcknowledged,
            "STARTED; told: d started, all started",
        ),
        (Starting, StopIsAcknowledged, "STARTED"),
        (Starting, TheDescriptorIsUpdated, "STARTED"),
        (
            Starting,
            TheDataSourceIsUnregistered,
            "STARTED; p: stop; told: d stopped, all started",
        ),
        (
            Starting,
            TheProducerIsLost,
            "STARTED; told: d stopped, all started",
        ),
        (
            Starting,
            AnotherProducerOffersIt,
            "STARTED; q: memory, set up, start; told: d stopped, d started",
        ),
        (Starting, TheConsumerStarts, "STARTED"),
        (Starting, TheConsumerDisables, "STOP_WAIT; p: stop"),
        (
            Starting,
            TheConsumerFrees,
            "gone; p: stop; told: d stopped, disabled",
        ),
        (Starting, TheConsumerIsLost, "gone; p: stop"),
        (Starting, TheStopTimesOut, "STARTED"),
        (Started, StartIsAcknowledged, "STARTED"),
        (Started, StopIsAcknowledged, "STARTED"),
        (Started, TheDescriptorIsUpdated, "STARTED"),
        (
            Started,
            TheDataSourceIsUnregistered,
            "STARTED; p: stop; told: d stopped",
        ),
        (Started, TheProducerIsLost, "STARTED; told: d stopped"),
        (
            Started,
            AnotherProducerOffersIt,
            "STARTED; q: memory, set up, start; told: d stopped, d started",
        ),
        (Started, TheConsumerStarts, "STARTED"),
        (Started, TheConsumerDisables, "STOP_WAIT; p: stop"),
        (
            Started,
            TheConsumerFrees,
            "gone; p: stop; told: d stopped, disabled",
        ),
        (Started, TheConsumerIsLost, "gone; p: stop"),
        (Started, TheStopTimesOut, "STARTED"),
        (Detached, StartIsAcknowledged, "STARTED"),
        (Detached, StopIsAcknowledged, "STARTED"),
        (Detached, TheDescriptorIsUpdated, "STARTED"),
        (Detached, TheDataSourceIsUnregistered, "STARTED; p: stop"),
        (Detached, TheProducerIsLost, "STARTED"),
        (
            Detached,
            AnotherProducerOffersIt,
            "STARTED; q: memory, set up, start",
        ),
        (Detached, TheConsumerStarts, "STARTED"),
        (Detached, TheConsumerDisables, "STARTED"),
        (Detached, TheConsumerFrees, "STARTED"),
        (Detached, TheConsumerIsLost, "STARTED"),
        (Detached, TheStopTimesOut, "STARTED"),
        (Stopping, StartIsAcknowledged, "STOP_WAIT"),
        (
            Stopping,
            StopIsAcknowledged,
            "DISABLED; told: d stopped, disabled",
        ),
        (Stopping, TheDescriptorIsUpdated, "STOP_WAIT"),
        (
            Stopping,
            TheDataSourceIsUnregistered,
            "DISABLED; told: d stopped, disabled",
        ),
        (Stopping, TheProducerIsLost, "DISABLED; told: d stopped, disabled"),
        (Stopping, AnotherProducerOffersIt, "STOP_WAIT"),
        (Stopping, TheConsumerStarts, "STOP_WAIT"),
        (Stopping, TheConsumerDisables, "STOP_WAIT"),
        (Stopping, TheConsumerFrees, "gone; told: d stopped, disabled"),
        (Stopping, TheConsumerIsLost, "gone"),
        (Stopping, TheStopTimesOut, "DISABLED; told: d stopped, disabled"),
        (Disabled, StartIsAcknowledged, "DISABLED"),
        (Disabled, StopIsAcknowledged, "DISABLED"),
        (Disabled, TheDescriptorIsUpdated, "DISABLED"),
        (Disabled, TheDataSourceIsUnregistered, "DISABLED"),
        (Disabled, TheProducerIsLost, "DISABLED"),
        (Disabled, AnotherProducerOffersIt, "DISABLED"),
        (Disabled, TheConsumerStarts, "DISABLED"),
        (Disabled, TheConsumerDisables, "DISABLED"),
        (Disabled, TheConsumerFrees, "gone"),
        (Disabled, TheConsumerIsLost, "gone"),
        (Disabled, TheStopTimesOut, "DISABLED"),
    ];
    let wrong: Vec<String> = expected
        .into_iter()
        .map(|(state, event, expected)| (state, event, expected, what_follows(state, event)))
        .filter(|(_, _, expected, outcome)| expected != outcome)
        .map(|(state, event, expected, outcome)| format!("{state:?}, {event:?}: {outcome}, not {expected}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_session_stops_when_all_that_acknowledge_have_and_those_that_do_not_hold_up_nothing() {
    let mut world = World::new();
    let (a, b, consumer) = (world.producer("a"), world.producer("b"), world.consumer());
    world.register(a, &descriptor("slow"));
    world.offer(a, "quick");
    world.register(b, &descriptor("slow"));
    world.enable(consumer, &config(&["slow", "quick"]));
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    for producer in [a, b] {
        world.run();
        assert!(world.consumers[&consumer].disabled.is_empty());
        for (instance, _) in world.instances(producer) {
            world.service.data_source_stopped(producer, instance.0, &now);
        }
    }
    world.run();
    assert_eq!(world.consumers[&consumer].disabled, [None]);
}

#[test]
fn nobody_acknowledges_for_another_producer() {
    let mut world = World::new();
    let (producer, intruder) = (world.producer("p"), world.producer("intruder"));
    world.register(producer, &descriptor("d"));
    world.offer(intruder, "e");
    let consumer = world.consumer();
    let now = world.now;
    world.service.observe_events(consumer, EVERYTHING, &now);
    world.enable(consumer, &config(&["d", "e"]));
    let instance = world.instances(producer)[0].0;
    world.service.data_source_started(intruder, instance.0, &now);
    world.run();
    assert_eq!(world.consumers[&consumer].all_started, 0);
    world.service.disable_tracing(consumer, &now);
    world.service.data_source_stopped(intruder, instance.0, &now);
    world.run();
    assert!(world.consumers[&consumer].disabled.is_empty());
}

#[test]
fn a_data_source_registered_twice_has_two_instances_each_as_it_was_registered() {
    let mut world = World::new();
    let register_both = |world: &mut World, producer: ProducerId| {
        for (id, acknowledges) in [(1, false), (2, true)] {
            let registration = DataSourceDescriptor {
                id: Some(id),
                will_notify_on_stop: Some(acknowledges),
                will_notify_on_start: Some(false),
                ..descriptor("d")
            };
            world.register(producer, &registration);
        }
    };
    let (early, late) = (world.producer("early"), world.producer("late"));
    register_both(&mut world, early);
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    register_both(&mut world, late);
    for producer in [early, late] {
        assert_eq!(world.count(producer, starts), 2);
    }
    // Of each producer one instance is waited for: the one whose registration said so.
    let now = world.now;
    world.service.disable_tracing(consumer, &now);
    for producer in [early, late] {
        world.run();
        assert!(world.consumers[&consumer].disabled.is_empty(), "{producer}");
        let second = world.instances(producer)[1].0;
        world.service.data_source_stopped(producer, second.0, &now);
    }
    world.run();
    assert_eq!(world.consumers[&consumer].disabled, [None]);
}

#[test]
fn unregistering_one_of_two_ends_both_instances_and_leaves_the_other_registration() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let now = world.now;
    world.service.unregister_data_source(producer, "d", &now);
    world.run();
    assert_eq!(world.count(producer, stops), 2);
    let next = world.consumer();
    world.enable(next, &config(&["d"]));
    assert_eq!(world.count(producer, starts), 3);
}

#[test]
fn a_producer_that_comes_back_takes_part_again() {
    let mut world = World::new();
    let first = world.producer("p");
    world.offer(first, "d");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let target = world.target(first);
    world.commit(first, 1, target, &[&packet("before")]);
    world.lose_producer(first);
    let second = world.producer("p");
    world.offer(second, "d");
    assert_eq!(world.count(second, starts), 1);
    assert_eq!(world.target(second), target);
    world.commit(second, 1, target, &[&packet("after")]);
    let packets = world.read(consumer);
    assert_eq!(texts(&packets), ["before", "after"]);
    let sequences: std::collections::BTreeSet<_> = packets
        .iter()
        .filter(|packet| packet.trusted_pid.is_some())
        .map(|packet| format!("{:?}", packet.optional_trusted_packet_sequence_id))
        .collect();
    assert_eq!(sequences.len(), 2, "another producer writes another sequence");
}

/// A track event data source with these categories.
fn track_event(id: u64, categories: &[&str]) -> DataSourceDescriptor {
    let category = |name: &&str| TrackEventCategory {
        name: Some((*name).into()),
        ..Default::default()
    };
    DataSourceDescriptor {
        id: Some(id),
        name: Some("track_event".into()),
        track_event_descriptor: TrackEventDescriptor {
            available_categories: categories.iter().map(category).collect(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    }
}

#[test]
fn an_update_replaces_the_descriptor_with_its_id_and_no_other() {
    let mut world = World::new();
    let (a, b, consumer) = (world.producer("a"), world.producer("b"), world.consumer());
    world.register(a, &track_event(1, &["first"]));
    world.register(b, &track_event(1, &[]));
    world.register(b, &track_event(2, &[]));
    world.register(b, &track_event(2, &["an id that is taken"]));
    let known = |world: &World| -> Vec<(i32, u64, Vec<String>)> {
        let state = world.state(consumer, StateScope::Everything);
        let source = |source: &ferretto_proto::messages::tracing_service_state::DataSource| {
            let descriptor = &source.ds_descriptor;
            let categories = descriptor.track_event_descriptor.available_categories.iter();
            let names = categories.map(|category| category.name.clone().unwrap_or_default());
            (
                source.producer_id.unwrap_or_default(),
                descriptor.id.unwrap_or_default(),
                names.collect(),
            )
        };
        state.data_sources.iter().map(source).collect()
    };
    let expected = |second: &[&str], third: &[&str]| -> Vec<(i32, u64, Vec<String>)> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        vec![
            (1, 1, names(&["first"])),
            (2, 1, names(second)),
            (2, 2, names(third)),
        ]
    };
    assert_eq!(known(&world), expected(&[], &[]));
    let update = |world: &mut World, id, categories: &[&str]| {
        world
            .service
            .update_data_source(b, &track_event(id, categories).encode_to_vec());
    };
    update(&mut world, 2, &["x", "y"]);
    assert_eq!(known(&world), expected(&[], &["x", "y"]));
    update(&mut world, 2, &["y"]);
    assert_eq!(known(&world), expected(&[], &["y"]));
    update(&mut world, 1, &["z"]);
    assert_eq!(known(&world), expected(&["z"], &["y"]));
    for unknown in [0, 3] {
        update(&mut world, unknown, &["nobody's"]);
    }
    assert_eq!(known(&world), expected(&["z"], &["y"]));
}

#[test]
fn an_update_counts_for_sessions_that_begin_after_it() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.register(producer, &descriptor("d"));
    let (before, after) = (world.consumer(), world.consumer());
    world.enable(before, &config(&["d"]));
    let silent = DataSourceDescriptor {
        will_notify_on_stop: Some(false),
        ..descriptor("d")
    };
    world
        .service
        .update_data_source(producer, &silent.encode_to_vec());
    world.enable(after, &config(&["d"]));
    let now = world.now;
    world.service.disable_tracing(before, &now);
    world.service.disable_tracing(after, &now);
    world.run();
    assert!(
        world.consumers[&before].disabled.is_empty(),
        "is still waited for"
    );
    assert_eq!(world.consumers[&after].disabled, [None]);
}

#[test]
fn the_state_of_the_service_forgets_who_is_gone() {
    let mut world = World::new();
    let (a, b, consumer) = (world.producer("a"), world.producer("b"), world.consumer());
    for (producer, name) in [
        (a, "common"),
        (b, "common"),
        (a, "of a"),
        (b, "of b"),
        (b, "common"),
    ] {
        world.offer(producer, name);
    }
    let known = |world: &World| {
        let state = world.state(consumer, StateScope::Everything);
        let producers: Vec<i32> = state.producers.iter().map(|p| p.id.unwrap_or_default()).collect();
        let mut sources: Vec<String> = state
            .data_sources
            .iter()
            .map(|source| {
                let name = source.ds_descriptor.name.clone().unwrap_or_default();
                format!("{name} by {}", source.producer_id.unwrap_or_default())
            })
            .collect();
        sources.sort();
        (producers, sources.join(", "))
    };
    assert_eq!(
        known(&world),
        (
            vec![1, 2],
            "common by 1, common by 2, common by 2, of a by 1, of b by 2".into()
        )
    );
    world.lose_producer(a);
    assert_eq!(
        known(&world),
        (vec![2], "common by 2, common by 2, of b by 2".into())
    );
    let now = world.now;
    world.service.unregister_data_source(b, "of b", &now);
    world.service.unregister_data_source(b, "never registered", &now);
    assert_eq!(known(&world), (vec![2], "common by 2, common by 2".into()));
    world.lose_producer(b);
    assert_eq!(known(&world), (vec![], String::new()));
}

/// Changes the config of the consumer's session to this one.
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
fn filters_that_change_bring_in_who_passes_and_nothing_else() {
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

    // Nobody is sent away, and nobody set up again.
    filtered.data_sources[0].producer_name_filter = vec!["nobody".into()];
    filtered.data_sources[0].producer_name_regex_filter.clear();
    change(&mut world, consumer, &filtered);
    filtered.data_sources[0].producer_name_filter.clear();
    change(&mut world, consumer, &filtered);
    assert_eq!(started(&world), [1, 1, 1]);
    let stopped = producers.map(|producer| world.count(producer, stops));
    assert_eq!(stopped, [0, 0, 0]);

    // The filters as they are now count for who comes later.
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

#[test]
fn a_config_that_changes_before_the_start_sets_up_and_starts_nothing() {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    let consumer = world.consumer();
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
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    world.run();
    assert_eq!(world.count(producer, starts), 1);
    world.service.disable_tracing(consumer, &now);
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
        let mut world = World::new();
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        let mut filtered = config(&["d"]);
        filtered.data_sources[0].machine_name_filter = names.iter().map(|name| (*name).into()).collect();
        world.enable(consumer, &filtered);
        assert_eq!(world.count(producer, starts), expected, "{names:?}");
    }
}

#[test]
fn a_service_that_is_locked_down_deals_with_its_own_user_only() {
    use trace_config::LockdownModeOperation::{LOCKDOWN_CLEAR, LOCKDOWN_SET};
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

    // It stays so beyond the session that asked for it, until another asks for the opposite.
    let now = world.now;
    world.service.free_buffers(consumer, &now);
    world.enable(consumer, &config(&["d"]));
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
fn the_config_goes_before_the_producers_wish_for_shared_memory() {
    const KB: usize = 1024;
    // Page and size: of the config, wished for, granted, in KB.
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
        let now = world.now;
        world.service.free_buffers(consumer, &now);
        world.run();
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
