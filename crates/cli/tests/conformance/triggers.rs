//! Stories of triggers: refused configs, starts and stops, and the notes in the trace.

use ferretto_proto::messages::clone_session_request::Selector;
use ferretto_proto::messages::observable_events::Type as ObservableEventType;
use ferretto_proto::messages::trace_config::trigger_config::{Trigger, TriggerMode};
use ferretto_proto::messages::trace_config::{BuiltinDataSource, TriggerConfig};
use ferretto_proto::messages::{CloneSessionRequest, Message, TraceConfig, TracePacket, trace_packet};

use crate::conformance::parties::{Consumer, Producer, Service, alike, config, plain, skeleton, steady};
use crate::conformance::stories::taken;

const WEEK_MS: u32 = 7 * 24 * 3600 * 1000;
const LONG: u32 = 600_000;

fn trigger(name: &str, stop_delay_ms: u32) -> Trigger {
    Trigger {
        name: Some(name.into()),
        stop_delay_ms: Some(stop_delay_ms),
        ..Default::default()
    }
}

/// A config without clock snapshots and service events, because their number depends on the time that steps take.
fn triggered(mode: TriggerMode, timeout_ms: u32, triggers: &[Trigger]) -> TraceConfig {
    TraceConfig {
        trigger_config: TriggerConfig {
            trigger_mode: Some(mode),
            trigger_timeout_ms: Some(timeout_ms),
            triggers: triggers.to_vec(),
            ..Default::default()
        }
        .into(),
        builtin_data_sources: BuiltinDataSource {
            disable_clock_snapshotting: Some(true),
            disable_service_events: Some(true),
            ..steady()
        }
        .into(),
        ..config("d")
    }
}

fn activate(producer: &mut Producer, triggers: &[&str]) {
    producer.endpoint.activate_triggers(triggers).unwrap();
    producer.settle();
}

/// Reads everything; returns the kinds of packets, the triggers in full, and the duration in the config.
fn read(consumer: &mut Consumer) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for packet in consumer.read() {
        told.push(skeleton(&packet));
        match TracePacket::decode_from_slice(&packet).unwrap().data {
            Some(trace_packet::Data::Trigger(trigger)) => told.push(format!("{trigger:?}")),
            Some(trace_packet::Data::TraceConfig(config)) => {
                told.push(format!("{:?}, {:?}", config.duration_ms, config.trigger_config));
            }
            _ => {}
        }
    }
    told.push("read".into());
    told
}

/// Waits for the end with [`until_disabled`], and returns the messages and the packets since.
fn told_at_the_end(producer: &mut Producer, consumer: &mut Consumer) -> Vec<String> {
    until_disabled(producer, consumer);
    let mut told = heard(producer);
    told.extend(read(consumer));
    told
}

/// Makes a producer with the data source `d` acknowledge all flushes, until the consumer is told of the end.
fn until_disabled(producer: &mut Producer, consumer: &mut Consumer) {
    while !consumer.log.iter().any(|told| told == "disabled") {
        producer.settle();
        for flush in std::mem::take(&mut producer.flushes) {
            producer.endpoint.acknowledge_flush(flush).unwrap();
        }
        consumer.state();
    }
    producer.settle();
}

/// Returns the messages to a producer since the last call.
fn heard(producer: &mut Producer) -> Vec<String> {
    producer.settle();
    std::mem::take(&mut producer.log)
}

#[test]
fn the_same_configs_with_triggers_are_refused() {
    let modes = [
        TriggerMode::UNSPECIFIED,
        TriggerMode::START_TRACING,
        TriggerMode::STOP_TRACING,
        TriggerMode::CLONE_SNAPSHOT,
    ];
    let mut configs = Vec::new();
    for mode in modes {
        let good = triggered(mode, 1, &[trigger("t", 1)]);
        let mut add = |what: &str, config: TraceConfig| configs.push((format!("{mode:?}, {what}"), config));
        add("good", good.clone());
        add("without triggers", triggered(mode, 1, &[]));
        add("without a timeout", triggered(mode, 0, &[trigger("t", 1)]));
        add("a week", triggered(mode, WEEK_MS, &[trigger("t", 1)]));
        add("longer", triggered(mode, WEEK_MS + 1, &[trigger("t", 1)]));
        add(
            "a name twice",
            triggered(mode, 1, &[trigger("t", 1), trigger("t", 2)]),
        );
        add("no names", triggered(mode, 1, &[Trigger::default()]));
        add(
            "with a duration",
            TraceConfig {
                duration_ms: Some(1),
                ..good.clone()
            },
        );
        add(
            "into a file that is not passed",
            TraceConfig {
                write_into_file: Some(true),
                ..good.clone()
            },
        );
        let mut fallback = good.clone();
        fallback
            .trigger_config
            .get_or_insert_default()
            .use_clone_snapshot_if_available = Some(true);
        add("with a fallback", fallback);
    }
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for (what, config) in &configs {
            let mut consumer = service.consumer();
            told.push(format!("{what}: {}", taken(&mut consumer, config)));
            drop(consumer);
            service.await_quiet();
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_trigger_starts_a_session_alike() {
    let story = |service: &Service<'_>| {
        let (mut p, mut q) = (service.producer("p"), service.producer("q"));
        p.register(plain("d"));
        let mut told = Vec::new();
        // The end of the first session is far away, so that the steps have enough time. The second one ends by itself.
        for delay_ms in [LONG, 1] {
            let mut consumer = service.consumer();
            let only_q = Trigger {
                producer_name_regex: Some("q|r".into()),
                ..trigger("only q", delay_ms)
            };
            let config = triggered(
                TriggerMode::START_TRACING,
                LONG,
                &[only_q, trigger("other", LONG)],
            );
            consumer.enable(&config);
            told.extend(heard(&mut p));
            told.extend(read(&mut consumer));
            activate(&mut p, &["only q", "unknown"]);
            told.extend(heard(&mut p));
            activate(&mut q, &["unknown", "only q", "other", "only q"]);
            if delay_ms == LONG {
                told.extend(heard(&mut p));
                // A producer that connects now gets the length of the session.
                let mut late = service.producer("late");
                late.register(plain("d"));
                late.settle();
                told.push(format!("late: {:?}", late.configs[0].trace_duration_ms));
                drop(late);
                consumer.endpoint.disable_tracing().unwrap();
            }
            told.extend(told_at_the_end(&mut p, &mut consumer));
            drop(consumer);
            service.await_sessions(0);
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_session_without_its_trigger_ends_alike() {
    for mode in [TriggerMode::START_TRACING, TriggerMode::STOP_TRACING] {
        let story = |service: &Service<'_>| {
            let mut p = service.producer("p");
            p.register(plain("d"));
            let mut consumer = service.consumer();
            consumer.enable(&triggered(mode, 100, &[trigger("t", 1)]));
            let mut told = heard(&mut p);
            told.extend(told_at_the_end(&mut p, &mut consumer));
            told
        };
        alike(story, &[]);
    }
}

#[test]
fn a_trigger_stops_a_session_alike() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        p.register(plain("d"));
        let mut told = Vec::new();
        // The end of the first session is far away, so that the steps have enough time. A trigger ends the second one.
        for (delay_ms, names) in [(LONG, &["t"][..]), (1, &["t", "u"])] {
            let mut consumer = service.consumer();
            let triggers = [trigger("t", delay_ms), trigger("u", LONG), trigger("v", 0)];
            consumer.enable(&triggered(TriggerMode::STOP_TRACING, LONG, &triggers));
            told.extend(heard(&mut p));
            told.extend(read(&mut consumer));
            let state = consumer.state();
            told.push(format!("{:?}", state.tracing_sessions[0].duration_ms));
            activate(&mut p, names);
            if delay_ms == LONG {
                told.extend(read(&mut consumer));
                // The first trigger determines the end.
                activate(&mut p, &["u", "v"]);
                told.extend(read(&mut consumer));
                told.extend(heard(&mut p));
                consumer.endpoint.disable_tracing().unwrap();
            }
            told.extend(told_at_the_end(&mut p, &mut consumer));
            drop(consumer);
            service.await_sessions(0);
        }
        told
    };
    alike(story, &[]);
}

#[test]
fn a_trigger_asks_for_a_snapshot_alike() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        p.register(plain("d"));
        let mut consumer = service.consumer();
        consumer
            .endpoint
            .observe_events(&[ObservableEventType::TYPE_CLONE_TRIGGER_HIT])
            .unwrap();
        let triggers = [trigger("t", 20), trigger("u", 5)];
        consumer.enable(&triggered(TriggerMode::CLONE_SNAPSHOT, LONG, &triggers));
        let mut told = heard(&mut p);
        for name in ["t", "u", "t"] {
            activate(&mut p, &[name]);
            let due = format!(
                "a snapshot is due: {name} of p, after {} ms",
                if name == "t" { 20 } else { 5 }
            );
            consumer.until_told(&due);
            told.append(&mut consumer.log);
            told.extend(read(&mut consumer));
        }
        told.extend(heard(&mut p));
        told
    };
    alike(story, &[]);
}

#[test]
fn a_trigger_without_a_mode_is_noted_alike() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        p.register(plain("d"));
        let mut consumer = service.consumer();
        consumer.enable(&triggered(TriggerMode::UNSPECIFIED, 0, &[trigger("t", 1)]));
        let mut told = heard(&mut p);
        told.extend(read(&mut consumer));
        activate(&mut p, &["t"]);
        told.extend(read(&mut consumer));
        told.extend(heard(&mut p));
        told
    };
    alike(story, &[]);
}

#[test]
fn limits_of_a_day_are_held_alike() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        let limited = |max| {
            let trigger = Trigger {
                max_per_24_h: Some(max),
                ..trigger("t", LONG)
            };
            triggered(TriggerMode::STOP_TRACING, LONG, &[trigger])
        };
        let (mut a, mut b) = (service.consumer(), service.consumer());
        a.enable(&limited(2));
        b.enable(&limited(3));
        for _ in 0..5 {
            activate(&mut p, &["t"]);
        }
        let mut told = read(&mut a);
        told.extend(read(&mut b));
        let mut c = service.consumer();
        c.enable(&limited(1));
        activate(&mut p, &["t"]);
        told.extend(read(&mut c));
        told
    };
    alike(story, &[]);
}

#[test]
fn a_trigger_before_the_start_ends_a_session_alike() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        p.register(plain("d"));
        let mut consumer = service.consumer();
        consumer.enable(&TraceConfig {
            deferred_start: Some(true),
            ..triggered(TriggerMode::STOP_TRACING, LONG, &[trigger("t", 0)])
        });
        activate(&mut p, &["t"]);
        consumer.until_told("disabled");
        let mut told = heard(&mut p);
        told.append(&mut consumer.log);
        told.extend(read(&mut consumer));
        let stats = consumer.stats();
        told.push(format!("last flush: {:?}", stats.final_flush_outcome));
        told
    };
    // Nothing ran, so nothing was flushed. Upstream counts this as a failed flush.
    alike(story, &["last flush: "]);
}

#[test]
fn a_trigger_after_the_end_does_nothing() {
    use TriggerMode::{CLONE_SNAPSHOT, START_TRACING, STOP_TRACING};
    let story = |service: &Service<'_>| {
        let mut told = Vec::new();
        for mode in [START_TRACING, STOP_TRACING, CLONE_SNAPSHOT] {
            let mut p = service.producer("p");
            p.register(plain("d"));
            let mut consumer = service.consumer();
            consumer
                .endpoint
                .observe_events(&[ObservableEventType::TYPE_CLONE_TRIGGER_HIT])
                .unwrap();
            consumer.enable(&triggered(mode, 1, &[trigger("t", 0)]));
            until_disabled(&mut p, &mut consumer);
            told.extend(read(&mut consumer));
            heard(&mut p);
            consumer.log.clear();
            activate(&mut p, &["t"]);
            consumer.state();
            told.extend(heard(&mut p));
            let packets = consumer.read().len();
            told.push(format!(
                "after the end of {mode:?}: {packets} packets, {:?}",
                consumer.log
            ));
            drop((p, consumer));
            service.await_quiet();
        }
        told
    };
    // Upstream returns the data of a session that timed out without a trigger, and requests a snapshot of a session that is over.
    alike(story, &["after the end of"]);
}

#[test]
fn a_clone_does_not_take_its_trigger_from_a_session_that_is_to_stop() {
    let story = |service: &Service<'_>| {
        let mut p = service.producer("p");
        p.register(plain("d"));
        let mut consumer = service.consumer();
        consumer.enable(&triggered(TriggerMode::STOP_TRACING, LONG, &[trigger("t", LONG)]));
        activate(&mut p, &["t"]);
        let session = consumer.state().tracing_sessions[0].id.unwrap();
        let mut cloner = service.consumer();
        let request = CloneSessionRequest {
            selector: Some(Selector::SessionId(session)),
            ..Default::default()
        };
        let call = cloner.endpoint.clone_session(&request, None).unwrap();
        cloner.state();
        p.settle();
        for flush in std::mem::take(&mut p.flushes) {
            p.endpoint.acknowledge_flush(flush).unwrap();
        }
        p.settle();
        cloner.answer(call).unwrap();
        let mut told: Vec<String> = read(&mut cloner);
        consumer.endpoint.disable_tracing().unwrap();
        consumer.until_told("disabled");
        told.push(format!("packets of the original: {}", consumer.read().len()));
        told
    };
    // Upstream's session then waits for another trigger, and has no data.
    alike(story, &["packets of the original"]);
}
