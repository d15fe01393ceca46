//! Data sources that a trace names as missing: data sources that went away, that no producer offered, or that never acknowledged their start.

use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::tracing_service_event::{DataSources, EventType};
use ferretto_proto::messages::{
    DataSourceDescriptor, TraceConfig, TracePacket, observable_events, trace_config,
};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, Original, ProducerId, Scraping, SessionId, limits,
};

use crate::world::{World, config, packets_of, texts};

/// Kind and time of the event, and the producer and data source of each missing one.
type Absence = (&'static str, u64, Vec<(Option<String>, String)>);

fn absences(packets: &[TracePacket]) -> Vec<Absence> {
    let named = |sources: &DataSources| {
        let names = sources.data_source.iter();
        names
            .map(|source| {
                let name = source.data_source_name.clone();
                (
                    source.producer_name.clone(),
                    name.expect("a data source has a name"),
                )
            })
            .collect()
    };
    let absence = |packet: &TracePacket| match &packet.data {
        Some(Data::ServiceEvent(event)) => {
            let (kind, sources) = match event.event_type.as_ref()? {
                EventType::DataSourcesGone(sources) => ("gone", sources),
                EventType::DataSourcesNotOffered(sources) => ("not offered", sources),
                EventType::SlowStartingDataSources(sources) => ("slow to start", sources),
                _ => return None,
            };
            Some((kind, packet.timestamp.expect("it has a time"), named(sources)))
        }
        _ => None,
    };
    packets.iter().filter_map(absence).collect()
}

fn of(producer: &str, source: &str) -> (Option<String>, String) {
    (Some(producer.into()), source.into())
}

fn not_offered(source: &str) -> (Option<String>, String) {
    (None, source.into())
}

/// A world in which producer `p` offers `d` and `e`.
fn offering() -> (World, ProducerId) {
    let mut world = World::new();
    let producer = world.producer("p");
    world.offer(producer, "d");
    world.offer(producer, "e");
    (world, producer)
}

#[test]
fn a_producer_that_goes_away_while_the_session_records_is_named_with_the_time() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d", "e"]));
    world.advance(300);
    let gone = world.now.boot;
    world.lose_producer(producer);
    world.advance(300);
    world.disable(consumer);
    assert_eq!(
        absences(&world.read(consumer)),
        [("gone", gone, vec![of("p", "d"), of("p", "e")])]
    );
}

#[test]
fn a_producer_that_withdraws_a_data_source_is_named_with_that_one_only() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d", "e"]));
    let now = world.now;
    world.service.unregister_data_source(producer, "e", &now);
    world.run();
    assert_eq!(
        absences(&world.read(consumer)),
        [("gone", now.boot, vec![of("p", "e")])]
    );
    world.lose_producer(producer);
    assert_eq!(
        absences(&world.read(consumer)),
        [("gone", now.boot, vec![of("p", "d")])]
    );
    assert_eq!(absences(&world.read(consumer)), [], "once");
}

#[test]
fn a_producer_that_goes_away_before_the_start_or_after_the_stop_is_not_named() {
    let (mut world, early) = offering();
    let late = world.producer("q");
    world.offer(late, "d");
    let consumer = world.consumer();
    world.enable(
        consumer,
        &TraceConfig {
            deferred_start: Some(true),
            ..config(&["d"])
        },
    );
    world.lose_producer(early);
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    world.service.disable_tracing(consumer, &now);
    world.run();
    world.lose_producer(late);
    assert_eq!(absences(&world.read(consumer)), []);
}

#[test]
fn a_session_that_others_take_no_part_in_says_nothing_of_them() {
    let (mut world, producer) = offering();
    let other = world.producer("q");
    world.offer(other, "other");
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    world.lose_producer(other);
    assert_eq!(absences(&world.read(consumer)), []);
    assert_eq!(world.instances(producer).len(), 1);
}

#[test]
fn a_data_source_that_was_never_offered_is_named_at_the_stop() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    let mut wanted = config(&["d", "late", "never", "filtered", "never", "left"]);
    wanted.data_sources[3].producer_name_filter = vec!["somebody else".into()];
    world.offer(producer, "filtered");
    world.offer(producer, "left");
    world.enable(consumer, &wanted);
    world.advance(100);
    world.offer(producer, "late");
    let left = world.now.boot;
    let now = world.now;
    world.service.unregister_data_source(producer, "left", &now);
    world.advance(100);
    assert_eq!(
        absences(&world.read(consumer)),
        [("gone", left, vec![of("p", "left")])]
    );
    world.disable(consumer);
    assert_eq!(
        absences(&world.read(consumer)),
        [(
            "not offered",
            world.now.boot,
            vec![not_offered("never"), not_offered("filtered")]
        )]
    );
    assert_eq!(absences(&world.read(consumer)), [], "once");
}

#[test]
fn a_data_source_that_took_part_once_or_was_refused_counts_as_offered() {
    const SIZE: usize = 100 * 1024;
    let mut world = World::new();
    for number in 0..=limits::MAX_INSTANCE_BYTES_PER_UID / SIZE {
        let producer = world.producer_of(7, "crowd", Scraping::Disabled);
        world.offer(producer, "d");
        if number == 0 {
            world.offer(producer, "refused");
        }
    }
    let consumer = world.consumer();
    let mut wanted = config(&["d", "d", "refused", "late"]);
    wanted.data_sources[0].producer_name_filter = vec!["somebody else".into()];
    for source in &mut wanted.data_sources[1..] {
        source.config.get_or_insert_default().legacy_config = Some("x".repeat(SIZE));
    }
    world.enable(consumer, &wanted);
    let late = world.producer_of(7, "crowd", Scraping::Disabled);
    world.offer(late, "late");
    assert!(
        world.log.iter().any(|line| line.contains("uid 7")),
        "{:?}",
        world.log
    );
    world.disable(consumer);
    assert_eq!(absences(&world.read(consumer)), []);
}

#[test]
fn a_limited_number_of_data_sources_without_offers_is_named() {
    let mut world = World::new();
    let consumer = world.consumer();
    let names: Vec<String> = (0..100).map(|number| format!("d{number}")).collect();
    world.enable(
        consumer,
        &config(&names.iter().map(String::as_str).collect::<Vec<_>>()),
    );
    world.disable(consumer);
    let told = absences(&world.read(consumer));
    assert_eq!(told[0].2.len(), limits::MAX_LISTED_DATA_SOURCES);
}

#[test]
fn an_offer_that_was_withdrawn_before_the_start_is_none() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..config(&["d"])
    };
    world.enable(consumer, &deferred);
    world.lose_producer(producer);
    let now = world.now;
    world.service.start_deferred(consumer, &now);
    world.service.disable_tracing(consumer, &now);
    world.run();
    assert_eq!(
        absences(&world.read(consumer)),
        [("not offered", world.now.boot, vec![not_offered("d")])]
    );
}

#[test]
fn names_that_take_too_much_work_to_match_hide_no_data_source_without_offers() {
    let mut world = World::new();
    for _ in 0..100 {
        let producer = world.producer(&"b".repeat(4000));
        world.offer(producer, "d");
    }
    let consumer = world.consumer();
    let mut config = config(&["d", "d", "never"]);
    for source in &mut config.data_sources[..2] {
        source.producer_name_regex_filter = vec!["a{0,150}b*".into()];
    }
    world.enable(consumer, &config);
    assert!(
        world
            .log
            .iter()
            .any(|line| line.contains("take too much work to be matched"))
    );
    world.disable(consumer);
    let lacking = vec![not_offered("never")];
    assert_eq!(
        absences(&world.read(consumer)),
        [("not offered", world.now.boot, lacking)]
    );
}

#[test]
fn a_session_that_never_started_lacks_nothing() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(
        consumer,
        &TraceConfig {
            deferred_start: Some(true),
            ..config(&["d"])
        },
    );
    world.disable(consumer);
    assert_eq!(absences(&world.read(consumer)), []);
}

/// Registers a data source that acknowledges its start and its stop.
fn offer_acknowledging(world: &mut World, producer: ProducerId, name: &str) {
    world.register(
        producer,
        &DataSourceDescriptor {
            name: Some(name.into()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            ..Default::default()
        },
    );
}

#[test]
fn a_data_source_that_has_not_acknowledged_the_start_by_the_stop_is_named() {
    let mut world = World::new();
    let producer = world.producer("p");
    for name in ["quick", "slow"] {
        offer_acknowledging(&mut world, producer, name);
    }
    let consumer = world.consumer();
    world.enable(consumer, &config(&["quick", "slow"]));
    let instances = world.instances(producer);
    let now = world.now;
    world
        .service
        .data_source_started(producer, instances[0].0.0, &now);
    world.advance(500);
    assert_eq!(absences(&world.read(consumer)), []);
    let stopped = world.now;
    world.service.disable_tracing(consumer, &stopped);
    world.run();
    for (instance, _) in &instances {
        world.service.data_source_stopped(producer, instance.0, &stopped);
    }
    world.run();
    assert_eq!(
        absences(&world.read(consumer)),
        [("slow to start", stopped.boot, vec![of("p", "slow")])]
    );
}

#[test]
fn a_data_source_named_as_slow_to_start_is_not_named_again_in_the_same_trace() {
    for is_read in [true, false] {
        let mut world = World::new();
        let producer = world.producer("p");
        offer_acknowledging(&mut world, producer, "slow");
        let (consumer, cloner) = (world.consumer(), world.consumer());
        let original = world.enable(consumer, &config(&["slow"]));
        world.advance(limits::ALL_STARTED_TIMEOUT.as_millis() as u64);
        let slow = [("slow to start", world.now.boot, vec![of("p", "slow")])];
        world.advance(100);
        let mut told = Vec::new();
        if is_read {
            told = absences(&world.read(consumer));
        }
        world
            .try_clone(cloner, snapshot_of(original))
            .expect("it can be cloned");
        world.acknowledge_flushes(producer);
        assert_eq!(
            absences(&world.read(cloner)).len(),
            1,
            "the trace of a clone is another"
        );
        world.disable(consumer);
        told.extend(absences(&world.read(consumer)));
        assert_eq!(told, slow);
    }
}

#[test]
fn a_trace_without_the_services_events_has_none_of_these() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    let mut silent = config(&["d", "never"]);
    silent.builtin_data_sources = trace_config::BuiltinDataSource {
        disable_service_events: Some(true),
        ..Default::default()
    }
    .into();
    world.enable(consumer, &silent);
    world.lose_producer(producer);
    world.disable(consumer);
    assert_eq!(absences(&world.read(consumer)), []);
}

#[test]
fn a_file_names_missing_data_sources_too() {
    let (mut world, producer) = offering();
    let consumer = world.consumer();
    let session = world.enable(
        consumer,
        &TraceConfig {
            write_into_file: Some(true),
            ..config(&["d", "never"])
        },
    );
    let gone = world.now.boot;
    world.lose_producer(producer);
    world.advance(100);
    world.disable(consumer);
    let packets: Vec<TracePacket> = packets_of(&world.files[&session])
        .iter()
        .map(|packet| ferretto_proto::messages::Message::decode_from_slice(packet).expect("a packet"))
        .collect();
    assert_eq!(
        absences(&packets),
        [
            ("gone", gone, vec![of("p", "d")]),
            ("not offered", world.now.boot, vec![not_offered("never")])
        ]
    );
    assert_eq!(texts(&packets), Vec::<String>::new());
}

fn snapshot_of(session: SessionId) -> CloneRequest {
    CloneRequest {
        original: Original::Id(session.0),
        purpose: ClonePurpose::Snapshot,
        filter: CloneFilter::Applied,
        trigger: None,
        file: CloneFile::None,
    }
}

#[test]
fn a_clone_names_the_data_sources_that_its_original_lacked() {
    let (mut world, producer) = offering();
    let other = world.producer("q");
    offer_acknowledging(&mut world, other, "slow");
    let (consumer, cloner) = (world.consumer(), world.consumer());
    let original = world.enable(consumer, &config(&["d", "slow", "never"]));
    let gone = world.now.boot;
    world.lose_producer(producer);
    world.advance(100);
    let now = world.now;
    world
        .try_clone(cloner, snapshot_of(original))
        .expect("it can be cloned");
    world.acknowledge_flushes(other);
    assert_eq!(
        absences(&world.read(cloner)),
        [
            ("gone", gone, vec![of("p", "d")]),
            ("slow to start", now.boot, vec![of("q", "slow")]),
            ("not offered", world.now.boot, vec![not_offered("never")]),
        ]
    );
    assert_eq!(
        absences(&world.read(consumer)),
        [("gone", gone, vec![of("p", "d")])],
        "the original goes on"
    );
}

#[test]
fn gone_producers_of_one_user_do_not_hide_those_of_another() {
    let (mut world, honest) = offering();
    let consumer = world.consumer();
    world.enable(consumer, &config(&["d"]));
    let since = world.now.boot;
    world.lose_producer(honest);
    for number in 0..2 * limits::MAX_GONE_PER_OWNER {
        let fleeting = world.producer_of(66, &format!("f{number}"), Scraping::Disabled);
        world.offer(fleeting, "d");
        world.lose_producer(fleeting);
    }
    let told = absences(&world.read(consumer));
    assert_eq!(told.len(), limits::MAX_GONE_PER_OWNER + 1);
    assert_eq!(told[0], ("gone", since, vec![of("p", "d")]));
    let newest = format!("f{}", 2 * limits::MAX_GONE_PER_OWNER - 1);
    assert_eq!(told[told.len() - 1].2, [of(&newest, "d")], "the newest are kept");
}

#[test]
fn an_observer_learns_that_each_instance_of_a_lost_producer_has_stopped() {
    use observable_events::DataSourceInstanceState as InState;
    let (mut world, producer) = offering();
    let other = world.producer("q");
    offer_acknowledging(&mut world, other, "slow");
    let consumer = world.consumer();
    let kinds = observable_events::Type::TYPE_DATA_SOURCES_INSTANCES as u32;
    let now = world.now;
    world.service.observe_events(consumer, kinds, &now);
    world.enable(consumer, &config(&["d", "e", "slow"]));
    world.consumers.get_mut(&consumer).expect("known").changes.clear();
    world.lose_producer(producer);
    let stopped = InState::DATA_SOURCE_INSTANCE_STATE_STOPPED as i32;
    let told =
        |world: &mut World| std::mem::take(&mut world.consumers.get_mut(&consumer).expect("known").changes);
    assert_eq!(
        told(&mut world),
        [("d".to_owned(), stopped), ("e".to_owned(), stopped)]
    );
    world.lose_producer(other);
    assert_eq!(
        told(&mut world),
        [("slow".to_owned(), stopped)],
        "also of one that was starting"
    );
}
