//! The life of a data source: every event in each state of its session; double registration, changes and returns; and the producers that a session
//! selects.

use ferretto_proto::messages::{
    DataSourceDescriptor, Message, TraceConfig, TrackEventCategory, TrackEventDescriptor, observable_events,
};
use ferretto_service::{ConsumerId, ProducerCommand, ProducerId, StateScope};

use crate::world::{FakeProducer, World, config, packet, starts, stops, texts};

/// The state of a session and of its only data source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    /// The session waits for `StartTracing`.
    Configured,
    /// The session has started, and the data source has not acknowledged it.
    Starting,
    Started,
    /// The session has started, and no consumer is attached.
    Detached,
    /// The service has told the data source to stop, and the data source has not acknowledged it.
    Stopping,
    Disabled,
}

/// An event in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    StartIsAcknowledged,
    StopIsAcknowledged,
    TheDescriptorIsUpdated,
    TheDataSourceIsUnregistered,
    TheProducerIsLost,
    /// The other producer's data source acknowledges nothing.
    AnotherProducerOffersIt,
    TheConsumerStarts,
    TheConsumerDisables,
    TheConsumerFrees,
    TheConsumerIsLost,
    TheStopTimesOut,
}

/// A data source that acknowledges everything.
pub(crate) fn descriptor(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        id: Some(1),
        name: Some(name.into()),
        will_notify_on_start: Some(true),
        will_notify_on_stop: Some(true),
        ..Default::default()
    }
}

pub(crate) const EVERYTHING: u32 = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32
    | observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32;

pub(crate) fn commands(producer: &FakeProducer, from: usize) -> Vec<&'static str> {
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

/// The consumer's messages, except for the first `changes`, `started` and `ended`.
pub(crate) fn told(
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

/// The state of the session, the commands to the first and to the other producer, and the messages to the consumer.
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
fn a_data_source_in_every_state_of_its_session_at_every_event() {
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
fn a_session_stops_when_all_acknowledging_instances_have_and_others_hold_up_nothing() {
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
fn no_producer_acknowledges_for_another() {
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
    // The service waits for one instance of each producer: the one whose descriptor promises an acknowledgement.
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
fn the_state_of_the_service_forgets_gone_producers() {
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
