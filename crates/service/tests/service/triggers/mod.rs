//! Triggers: how they start, stop or snapshot a session, which producers may activate them, how often, and their packets in the trace.

mod clone_snapshot;
mod how_often;
mod in_the_trace;
mod model;
mod refused;
mod start_tracing;
mod stop_tracing;

use ferretto_proto::messages::{
    Message, TraceConfig, TracePacket, observable_events, trace_config,
    trace_config::trigger_config::{Trigger, TriggerMode},
    trace_packet,
};
use ferretto_service::{ConfigInput, ConsumerId, OutputFile, ProducerId, StateScope, limits};

use crate::world::{World, config, flushes, packet, starts, stops, texts};

const HOUR: u64 = 3600 * 1000;
const DAY: u32 = 24 * HOUR as u32;
const CLONE_TRIGGER_HIT: u32 = observable_events::Type::TYPE_CLONE_TRIGGER_HIT as u32;

fn trigger(name: &str, stop_delay_ms: u32) -> Trigger {
    Trigger {
        name: Some(name.into()),
        stop_delay_ms: Some(stop_delay_ms),
        ..Default::default()
    }
}

/// A config with the data source `d` and these triggers.
fn triggered(mode: TriggerMode, timeout_ms: u32, triggers: &[Trigger]) -> TraceConfig {
    TraceConfig {
        trigger_config: trace_config::TriggerConfig {
            trigger_mode: Some(mode),
            trigger_timeout_ms: Some(timeout_ms),
            triggers: triggers.to_vec(),
            ..Default::default()
        }
        .into(),
        ..config(&["d"])
    }
}

/// A world with a producer that offers `d`, and a consumer.
fn world() -> (World, ProducerId, ConsumerId) {
    let mut world = World::new();
    let producer = world.producer("mock_producer");
    world.offer(producer, "d");
    let consumer = world.consumer();
    (world, producer, consumer)
}

/// Names of the triggers in a trace.
fn triggers(packets: &[TracePacket]) -> Vec<String> {
    let names = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::Trigger(trigger)) => trigger.trigger_name.clone(),
        _ => None,
    });
    names.collect()
}

/// The config in a trace.
fn trace_config_of(packets: &[TracePacket]) -> &TraceConfig {
    let mut configs = packets.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::TraceConfig(config)) => Some(&**config),
        _ => None,
    });
    let config = configs.next().expect("a config");
    assert_eq!(configs.next(), None, "one config");
    config
}

fn is_over(world: &World, consumer: ConsumerId) -> bool {
    match world.consumers[&consumer].disabled.as_slice() {
        [] => false,
        [None] => true,
        other => panic!("ended more than once, or with an error: {other:?}"),
    }
}

#[test]
fn a_session_that_is_gone_waits_for_nothing() {
    let (mut world, producer, consumer) = world();
    let start = triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]);
    world.enable(consumer, &start);
    let other = world.consumer();
    world.enable(other, &start);
    world.lose_consumer(consumer);
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1, "the other one's");
    world.lose_consumer(other);
    let timers_left = world.service.next_deadline();
    assert_eq!(timers_left, None);
    world.activate(producer, &["t"]);
    assert_eq!(world.count(producer, starts), 1);
}

#[test]
fn a_gone_producer_activates_nothing() {
    let (mut world, producer, consumer) = world();
    world.enable(
        consumer,
        &triggered(TriggerMode::START_TRACING, DAY, &[trigger("t", 1)]),
    );
    let gone = world.producer("gone");
    world.lose_producer(gone);
    world.activate(gone, &["t"]);
    world.activate(ProducerId(9999), &["t"]);
    assert_eq!(world.count(producer, starts), 0);
}
