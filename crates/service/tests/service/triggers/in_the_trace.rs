//! The packets about triggers in a triggered session's trace.

use super::*;

#[test]
fn a_trigger_is_a_packet_of_the_service_right_after_the_config() {
    let mut world = World::new();
    let consumer = world.consumer();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]),
    );
    world.advance(7);
    let sender = world.producer_of(321, "sender", ferretto_service::Scraping::Disabled);
    world.activate(sender, &["t"]);
    let at = world.now.boot;
    world.advance(5);
    let trace = world.read(consumer);
    let position = trace
        .iter()
        .position(|packet| matches!(packet.data, Some(trace_packet::Data::Trigger(_))))
        .expect("a trigger");
    assert!(matches!(
        trace[position - 1].data,
        Some(trace_packet::Data::TraceConfig(_))
    ));
    assert!(matches!(
        trace[position + 1].data,
        Some(trace_packet::Data::TraceUuid(_))
    ));
    let packet = &trace[position];
    assert_eq!(packet.timestamp, Some(at));
    assert_eq!(packet.timestamp_clock_id, Some(6));
    assert!(matches!(
        packet.optional_trusted_packet_sequence_id,
        Some(trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(1))
    ));
    let Some(trace_packet::Data::Trigger(trigger)) = &packet.data else {
        unreachable!()
    };
    assert_eq!(trigger.trigger_name.as_deref(), Some("t"));
    assert_eq!(trigger.producer_name.as_deref(), Some("sender"));
    assert_eq!(trigger.trusted_producer_uid, Some(321));
    assert_eq!(trigger.stop_delay_ms, Some(30));
}

#[test]
fn clock_snapshots_are_in_order_and_one_is_of_the_trigger() {
    for mode in [TriggerMode::START_TRACING, TriggerMode::STOP_TRACING] {
        let (mut world, producer, consumer) = world();
        world.enable(consumer, &triggered(mode, DAY, &[trigger("t", 10)]));
        world.advance(7);
        // The service writes a snapshot only if a clock has drifted.
        world.now.monotonic_raw += 20_000_000;
        let at = world.now.boot;
        world.activate(producer, &["t"]);
        world.advance(10);
        world.acknowledge_flushes(producer);
        let trace = world.read(consumer);
        let snapshots = trace.iter().filter_map(|packet| match &packet.data {
            Some(trace_packet::Data::ClockSnapshot(snapshot)) => snapshot.clocks[0].timestamp,
            _ => None,
        });
        let times: Vec<u64> = snapshots.collect();
        assert!(times.is_sorted(), "{mode:?}: {times:?}");
        assert!(
            times.contains(&at),
            "{mode:?}: {times:?}, the trigger came at {at}"
        );
    }
}

#[test]
fn a_config_that_wants_no_config_in_the_trace_gets_no_triggers_either() {
    let (mut world, producer, consumer) = world();
    let mut config = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]);
    config
        .builtin_data_sources
        .get_or_insert_default()
        .disable_trace_config = Some(true);
    world.enable(consumer, &config);
    world.activate(producer, &["t"]);
    let trace = world.read(consumer);
    assert!(!trace.is_empty());
    assert!(triggers(&trace).is_empty());
}

#[test]
fn a_changed_config_keeps_the_duration_that_triggers_set() {
    let (mut world, producer, consumer) = world();
    let original = triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 1)]);
    world.enable(consumer, &original);
    let mut changed = original.clone();
    changed.data_sources[0].producer_name_filter = vec!["mock_producer".into()];
    let input = ConfigInput {
        bytes: changed.encode_to_vec().into(),
        config: changed,
    };
    let now = world.now;
    world.service.change_config(consumer, &input, &now);
    world.activate(producer, &["t"]);
    let trace = world.read(consumer);
    let config = trace_config_of(&trace);
    assert_eq!(config.data_sources[0].producer_name_filter, ["mock_producer"]);
    assert_eq!(config.duration_ms, Some(DAY));
    assert!(
        !world.log.iter().any(|line| line.contains("differs")),
        "{:?}",
        world.log
    );
}

#[test]
fn without_a_mode_a_trigger_only_makes_the_trace_readable() {
    let (mut world, producer, consumer) = world();
    let mut config = triggered(TriggerMode::UNSPECIFIED, 0, &[trigger("t", 1)]);
    config.duration_ms = Some(100);
    world.enable(consumer, &config);
    assert_eq!(world.count(producer, starts), 1);
    assert!(world.read(consumer).is_empty());
    world.activate(producer, &["t"]);
    assert_eq!(triggers(&world.read(consumer)), ["t"]);
    world.advance(99);
    assert_eq!(world.count(producer, flushes), 0);
    world.advance(1);
    assert_eq!(world.count(producer, flushes), 1, "the duration counts");
}

#[test]
fn a_mode_without_triggers_hides_nothing() {
    let (mut world, producer, consumer) = world();
    world.enable(consumer, &triggered(TriggerMode::STOP_TRACING, 50, &[]));
    world.commit(producer, 1, world.target(producer), &[&packet("data")]);
    assert_eq!(texts(&world.read(consumer)), ["data"]);
    world.advance(50);
    world.acknowledge_flushes(producer);
    assert!(is_over(&world, consumer));
}

#[test]
fn a_long_name_of_a_producer_is_cut() {
    let (mut world, _, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", 30)]),
    );
    let sender = world.producer(&"\u{e9}".repeat(limits::MAX_TRIGGER_PRODUCER_NAME));
    world.activate(sender, &["t"]);
    let trace = world.read(consumer);
    let names = trace.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::Trigger(trigger)) => trigger.producer_name.clone(),
        _ => None,
    });
    let lengths: Vec<usize> = names.map(|name| name.len()).collect();
    assert_eq!(lengths, [limits::MAX_TRIGGER_PRODUCER_NAME]);
}

#[test]
fn the_clocks_of_the_start_come_before_those_of_any_trigger() {
    let (mut world, producer, consumer) = world();
    let deferred = TraceConfig {
        deferred_start: Some(true),
        ..triggered(TriggerMode::STOP_TRACING, DAY, &[trigger("t", DAY)])
    };
    world.enable(consumer, &deferred);
    world.activate(producer, &["t"]);
    world.advance(100);
    world.start(consumer);
    let packets = world.read(consumer);
    let clocks = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::ClockSnapshot(snapshot)) => Some(&snapshot.clocks),
        _ => None,
    });
    let earliest = clocks
        .flatten()
        .filter_map(|clock| clock.timestamp)
        .filter(|at| *at > 0)
        .min();
    assert_eq!(earliest, Some(world.now.monotonic));
}
