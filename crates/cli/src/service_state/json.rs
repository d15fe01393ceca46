//! Formats the service's state as one JSON object.
//!
//! [`query`](crate::perfetto::query) calls it; [`list`](crate::list) and [`status`](crate::status) call it for parts. `docs/schema/query.json`
//! describes the object.

use chrono::{DateTime, Local};
use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::tracing_service_state::{DataSource, Producer, TracingSession};
use serde_json::{Value, json};

use super::categories;

/// Formats everything in the service's state.
pub(crate) fn json(state: &TracingServiceState) -> Value {
    let sessions = (state.supports_tracing_sessions == Some(true)).then_some(&state.tracing_sessions);
    json!({
        "service": state.tracing_service_version,
        "session_count": state.num_sessions.unwrap_or(0),
        "started_session_count": state.num_sessions_started.unwrap_or(0),
        "producers": state.producers.iter().map(producer).collect::<Vec<_>>(),
        "data_sources": state.data_sources.iter().map(data_source).collect::<Vec<_>>(),
        "sessions": sessions.map(|sessions| sessions.iter().map(session).collect::<Vec<_>>()),
    })
}

/// Formats a producer.
pub(crate) fn producer(producer: &Producer) -> Value {
    json!({
        "id": producer.id,
        "name": producer.name,
        "pid": producer.pid,
        "uid": producer.uid,
        "sdk_version": producer.sdk_version,
        "is_frozen": producer.frozen.unwrap_or(false),
        "machine_id": producer.machine_id.unwrap_or(0),
        "machine": producer.machine_name.as_deref().filter(|name| !name.is_empty()),
    })
}

fn data_source(source: &DataSource) -> Value {
    let descriptor = &source.ds_descriptor;
    json!({
        "name": descriptor.name,
        "producer_id": source.producer_id,
        "will_notify_on_start": descriptor.will_notify_on_start.unwrap_or(false),
        "will_notify_on_stop": descriptor.will_notify_on_stop.unwrap_or(false),
        "handles_incremental_state_clear": descriptor.handles_incremental_state_clear.unwrap_or(false),
        "categories": categories(descriptor),
    })
}

/// Formats a session.
pub(crate) fn session(session: &TracingSession) -> Value {
    let started = session.start_realtime_ns.filter(|ns| *ns > 0);
    let buffers = session.buffer_size_kb.iter();
    json!({
        "id": session.id,
        "name": session.unique_session_name.as_deref().filter(|name| !name.is_empty()),
        "state": session.state,
        "is_started": session.is_started,
        "uid": session.consumer_uid,
        "buffers": buffers.map(|kb| u64::from(*kb) * 1024).collect::<Vec<_>>(),
        "buffers_used": (!session.buffer_used_bytes.is_empty()).then_some(&session.buffer_used_bytes),
        "data_sources": session.num_data_sources,
        "duration_ms": session.duration_ms.filter(|ms| *ms > 0),
        "started_at": started.map(|ns| DateTime::from_timestamp_nanos(ns).with_timezone(&Local).to_rfc3339()),
        "bugreport_score": session.bugreport_score,
        "bugreport_filename": session.bugreport_filename,
    })
}
