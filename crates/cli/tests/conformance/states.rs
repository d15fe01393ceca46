//! One data source in every state of its session, with every event.

use ferretto_proto::messages::observable_events::Type;
use ferretto_proto::messages::{DataSourceDescriptor, Message, TraceConfig};

use crate::conformance::parties::{Producer, Service, config};
use crate::support::{Programs, Side};

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

/// The state of a session and its only data source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum In {
    Configured,
    Starting,
    Started,
    Detached,
    Stopping,
    Disabled,
}

/// An event in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum When {
    StartIsAcknowledged,
    StopIsAcknowledged,
    TheDescriptorIsUpdated,
    TheDataSourceIsUnregistered,
    TheProducerIsLost,
    AnotherProducerOffersIt,
    TheConsumerStarts,
    TheConsumerFlushes,
    TheConsumerDisables,
    TheConsumerFrees,
    TheConsumerIsLost,
    TheConsumerDetaches,
    TheConsumerObservesAgain,
    TheConsumerEnablesAgain,
    TheFiltersChange,
    TheStopTimesOut,
}

/// Returns the state of the session, the commands to the first and to another producer, and the messages to the consumer.
fn what_follows(service: &Service<'_>, state: In, event: When) -> String {
    let mut producer = service.producer("p");
    let mut other = service.producer("q");
    let mut consumer = service.consumer();
    let mut asks = service.consumer();
    producer.register(descriptor("d"));
    let observed = [
        Type::TYPE_DATA_SOURCES_INSTANCES,
        Type::TYPE_ALL_DATA_SOURCES_STARTED,
    ];
    consumer.endpoint.observe_events(&observed).unwrap();
    let mut wanted = TraceConfig {
        deferred_start: Some(state == In::Configured),
        // The stop times out soon if that is the event, and otherwise never.
        data_source_stop_timeout_ms: Some(if event == When::TheStopTimesOut { 1 } else { 60_000 }),
        ..config("d")
    };
    wanted.data_sources[0].producer_name_filter = vec!["p".into(), "r".into()];
    if event == When::AnotherProducerOffersIt {
        wanted.data_sources[0].producer_name_filter.clear();
    }
    consumer.enable(&wanted);
    producer.settle();
    let instance = producer.instances[0];
    if !matches!(state, In::Configured | In::Starting) {
        producer.endpoint.notify_data_source_started(instance).unwrap();
        producer.settle();
    }
    match state {
        In::Configured | In::Starting | In::Started => {}
        In::Detached => {
            let call = consumer.endpoint.detach("key").unwrap();
            consumer.answer(call).unwrap();
        }
        In::Stopping | In::Disabled => {
            consumer.endpoint.disable_tracing().unwrap();
            consumer.state();
        }
    }
    if state == In::Disabled {
        producer.endpoint.notify_data_source_stopped(instance).unwrap();
        producer.settle();
    }
    if event == When::AnotherProducerOffersIt || event == When::TheFiltersChange {
        other.settle();
    }
    consumer.state();
    producer.settle();
    if !(event == When::TheStopTimesOut && state == In::Stopping) {
        consumer.log.clear();
    }
    producer.log.clear();

    let mut answers = Vec::new();
    let mut producer = Some(producer);
    let mut consumer = Some(consumer);
    let plain = DataSourceDescriptor {
        name: Some("d".into()),
        ..Default::default()
    };
    if let (Some(producer), Some(consumer)) = (&mut producer, &mut consumer) {
        let call = match event {
            When::StartIsAcknowledged => {
                producer.endpoint.notify_data_source_started(instance).unwrap();
                None
            }
            When::StopIsAcknowledged => {
                producer.endpoint.notify_data_source_stopped(instance).unwrap();
                None
            }
            When::TheDescriptorIsUpdated => {
                let changed = DataSourceDescriptor {
                    no_flush: Some(true),
                    ..descriptor("d")
                };
                producer.endpoint.update_data_source(changed).unwrap();
                None
            }
            When::TheDataSourceIsUnregistered => {
                producer.endpoint.unregister_data_source("d").unwrap();
                None
            }
            When::AnotherProducerOffersIt => {
                other.register(plain.clone());
                None
            }
            When::TheFiltersChange => {
                other.register(plain.clone());
                let mut wider = wanted.clone();
                wider.data_sources[0].producer_name_filter.push("q".into());
                Some(
                    consumer
                        .endpoint
                        .change_trace_config(&wider.encode_to_vec())
                        .unwrap(),
                )
            }
            When::TheConsumerStarts => Some(consumer.endpoint.start_tracing().unwrap()),
            When::TheConsumerFlushes => {
                // Nobody acknowledges the flush, so it stays pending unless it is refused.
                consumer.endpoint.flush_producers(600_000, 0x21).unwrap();
                None
            }
            When::TheConsumerDisables => Some(consumer.endpoint.disable_tracing().unwrap()),
            When::TheConsumerFrees => Some(consumer.endpoint.free_buffers().unwrap()),
            When::TheConsumerDetaches => Some(consumer.endpoint.detach("another key").unwrap()),
            When::TheConsumerObservesAgain => {
                consumer.endpoint.observe_events(&observed).unwrap();
                None
            }
            When::TheConsumerEnablesAgain => {
                consumer
                    .endpoint
                    .enable_tracing(&config("nothing").encode_to_vec(), None)
                    .unwrap();
                None
            }
            When::TheStopTimesOut => {
                if state == In::Stopping {
                    consumer.until_told("disabled");
                }
                None
            }
            When::TheProducerIsLost | When::TheConsumerIsLost => None,
        };
        if let Some(call) = call {
            answers.push(match consumer.answer(call) {
                Ok(_) => "done",
                Err(_) => "rejected",
            });
        }
    }
    if event == When::TheProducerIsLost {
        producer = None;
        while asks.state().producers.len() > 1 {}
    }
    if event == When::TheConsumerIsLost {
        consumer = None;
        // While its session is detached, nothing shows that the consumer is gone.
        while state != In::Detached && asks.state().num_sessions != Some(0) {}
    }
    // The consequences may have consequences.
    for _ in 0..2 {
        other.settle();
        producer.iter_mut().for_each(Producer::settle);
        asks.state();
        consumer.iter_mut().for_each(|consumer| drop(consumer.state()));
    }

    let now = asks.state();
    let mut outcome = match &now.tracing_sessions[..] {
        [] => "gone".to_owned(),
        [session] => session.state.clone().unwrap_or_default(),
        _ => "several".into(),
    };
    let commands = producer
        .map(|producer| producer.log.join(", "))
        .unwrap_or_default();
    for (name, commands) in [("p", commands), ("q", other.log.join(", "))] {
        if !commands.is_empty() {
            outcome += &format!("; {name}: {commands}");
        }
    }
    if !answers.is_empty() {
        outcome += &format!("; {}", answers.join(", "));
    }
    let told = consumer
        .map(|consumer| consumer.log.join(", "))
        .unwrap_or_default();
    if !told.is_empty() {
        outcome += &format!("; told: {told}");
    }
    drop((other, asks));
    // The session has no consumer, so another consumer has to attach to end it.
    let mut heir = service.consumer();
    for key in ["key", "another key"] {
        let call = heir.endpoint.attach(key).unwrap();
        if heir.answer(call).is_ok() {
            let call = heir.endpoint.free_buffers().unwrap();
            heir.answer(call).unwrap();
        }
    }
    drop(heir);
    service.await_quiet();
    outcome
}

#[test]
fn a_data_source_in_every_state_of_its_session_fares_alike() {
    use In::*;
    use When::*;
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let states = [Configured, Starting, Started, Detached, Stopping, Disabled];
    let events = [
        StartIsAcknowledged,
        StopIsAcknowledged,
        TheDescriptorIsUpdated,
        TheDataSourceIsUnregistered,
        TheProducerIsLost,
        AnotherProducerOffersIt,
        TheConsumerStarts,
        TheConsumerFlushes,
        TheConsumerDisables,
        TheConsumerFrees,
        TheConsumerIsLost,
        TheConsumerDetaches,
        TheConsumerObservesAgain,
        TheConsumerEnablesAgain,
        TheFiltersChange,
        TheStopTimesOut,
    ];
    let cells = || {
        states
            .into_iter()
            .flat_map(|state| events.map(|event| (state, event)))
    };
    let run = |side| -> Vec<String> {
        let service = Service::start(&programs, side);
        cells()
            .map(|(state, event)| what_follows(&service, state, event))
            .collect()
    };
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    // When a session has lost its last data source, upstream reports that all data sources have started, even if the session has not started. It then
    // does not report it when it is true.
    let on_purpose = [
        (Configured, TheDataSourceIsUnregistered),
        (Configured, TheProducerIsLost),
    ];
    let differences: Vec<String> = cells()
        .zip(upstream.iter().zip(&ours))
        .filter(|(_, (upstream, ours))| upstream != ours)
        .filter(|(cell, (upstream, ours))| {
            !(on_purpose.contains(cell) && **upstream == format!("{ours}, all started"))
        })
        .map(|((state, event), (upstream, ours))| {
            format!("{state:?}, {event:?}:\n  upstream: {upstream}\n  ours:     {ours}")
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
