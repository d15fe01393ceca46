use ferretto::session::DataSource;
use ferretto_proto::messages::log_message::Priority;
use tracing::{debug, error, info, warn};

use crate::trace::{Argument, Recording, Value};
use crate::{with, with_layer};

#[test]
fn an_event_is_an_instant_by_its_name_or_message_and_a_line_of_the_log() {
    let recording = Recording::start();
    with_layer(|| {
        warn!(count = 3, "{} things", "many");
        info!(name: "named", "message of a named one");
        error!(alone = true);
        debug!("not asked for");
    });
    let trace = recording.stop();
    assert_eq!(trace.instants.len(), 3);
    let many = trace.instant("many things");
    assert_eq!(many.category, "layer::events");
    assert_eq!(many.arguments, [("count".to_owned(), Argument::Int(3))].into());
    assert_eq!(many.log, Some(("many things".to_owned(), Priority::PRIO_WARN)));
    let named = trace.instant("named");
    assert_eq!(
        named.log,
        Some(("message of a named one".to_owned(), Priority::PRIO_INFO))
    );
    let alone = &trace.instants[2];
    assert!(
        alone.name.starts_with("event ") && alone.name.contains("events.rs"),
        "{alone:?}"
    );
    assert_eq!(alone.log, None);
}

#[test]
fn events_can_be_kept_out_of_the_log() {
    let recording = Recording::start();
    with(ferretto_tracing::layer().without_log_messages(), || {
        info!("unnamed");
        info!(name: "named", "said");
    });
    let trace = recording.stop();
    assert!(trace.instants.iter().all(|instant| instant.log.is_none()));
    assert!(trace.instant("unnamed").arguments.is_empty());
    assert_eq!(
        trace.instant("named").arguments,
        [("message".to_owned(), Argument::Text("said".into()))].into()
    );
}

#[test]
fn fields_of_counters_are_samples_and_sums() {
    let recording = Recording::start();
    with_layer(|| {
        info!(counter.queue_len = 5);
        info!(gauge.temperature = 21.5);
        for _ in 0..2 {
            info!(monotonic_counter.requests = 2, route = "/", "served");
        }
        info!(monotonic_counter.requests = 1u8);
    });
    let trace = recording.stop();
    let counters: Vec<_> = trace
        .counters
        .iter()
        .map(|(name, value)| (&**name, *value))
        .collect();
    assert_eq!(
        counters,
        [
            ("queue_len", Value::Int(5)),
            ("temperature", Value::Double(21.5)),
            ("requests", Value::Int(2)),
            ("requests", Value::Int(4)),
            ("requests", Value::Int(5)),
        ]
    );
    assert_eq!(trace.instants.len(), 2);
    assert_eq!(
        trace.instants[0].arguments,
        [("route".to_owned(), Argument::Text("/".into()))].into()
    );
}

#[test]
fn records_of_log_are_events_of_their_own_targets() {
    let source = DataSource::track_event()
        .enable_category("chosen::*")
        .disable_category("*");
    let recording = Recording::of(source);
    let _ = tracing_log::LogTracer::init();
    with(ferretto_tracing::layer().with_source_locations(), || {
        log::info!(target: "chosen::one", "said {}", 1);
        log::info!(target: "other", "not asked for");
        log::debug!(target: "chosen::one", "for debugging");
    });
    let trace = recording.stop();
    assert_eq!(trace.instants.len(), 1, "{:?}", trace.instants);
    let said = trace.instant("said 1");
    assert_eq!(said.category, "chosen::one");
    assert_eq!(said.log, Some(("said 1".to_owned(), Priority::PRIO_INFO)));
    assert!(said.file.as_ref().unwrap().ends_with("events.rs"));
    assert!(said.arguments.is_empty());
}

#[test]
fn messages_are_dynamic_names_and_arguments_can_be_left_out() {
    let recording = Recording::of(
        DataSource::track_event()
            .filter_dynamic_event_names()
            .filter_debug_annotations(),
    );
    with_layer(|| {
        info!(secret = 1, "secret");
        let _span = tracing::info_span!("span", secret = 2).entered();
    });
    let trace = recording.stop();
    assert!(trace.instant("FILTERED").arguments.is_empty());
    assert!(trace.slice("span").arguments.is_empty());
}

#[test]
fn texts_that_filters_leave_out_are_nowhere_in_the_trace() {
    let both = || {
        DataSource::track_event()
            .filter_dynamic_event_names()
            .filter_debug_annotations()
    };
    let named = || DataSource::track_event().filter_debug_annotations();
    for (source, layer) in [
        (both(), ferretto_tracing::layer()),
        (both(), ferretto_tracing::layer().with_source_locations()),
        (
            DataSource::track_event().filter_dynamic_event_names(),
            ferretto_tracing::layer(),
        ),
    ] {
        let recording = Recording::of(source);
        with(layer, || info!("paying with {}", "SECRET"));
        assert_has_no_secret(&recording.stop_to_bytes());
    }
    // The message of an event with a name of its own is like an argument.
    for source in [both(), named()] {
        let recording = Recording::of(source);
        with_layer(|| tracing::event!(name: "payment", tracing::Level::INFO, "paying with {}", "SECRET"));
        assert_has_no_secret(&recording.stop_to_bytes());
    }
}

fn assert_has_no_secret(trace: &[u8]) {
    assert_ne!(trace, []);
    assert!(!trace.windows(6).any(|bytes| bytes == b"SECRET"));
}
