//! `ferretto list sessions`: the tracing sessions of the running service.
//!
//! [`run`](super::run) calls it, and [`status`](crate::status) lists the sessions of a state with it.

use std::time::Duration;

use chrono::{DateTime, Local};
use ferretto_proto::messages::TracingServiceState;
use ferretto_proto::messages::tracing_service_state::TracingSession;
use serde_json::json;

use super::Listing;
use super::pattern::Patterns;
use crate::figures::{Bytes, Counted, Elapsed};
use crate::machine::{ThisMachine, user_name};
use crate::running::ask_service;
use crate::service_state::json::session as session_json;
use crate::stdout::{Column, Table};

pub(super) fn list(patterns: &Patterns) -> Result<Listing, String> {
    sessions_of(&ask_service()?.state, patterns)
}

/// Lists the sessions in a service's state.
///
/// # Errors
/// If the service is too old to report its sessions.
pub(crate) fn sessions_of(state: &TracingServiceState, patterns: &Patterns) -> Result<Listing, String> {
    if state.supports_tracing_sessions != Some(true) {
        return Err("the tracing service is too old to tell of its sessions".to_owned());
    }
    let mut table = Table::new([
        Column::number("ID"),
        Column::text("STATE"),
        Column::text("USER"),
        Column::number("BUFFERS"),
        Column::number("USED"),
        Column::number("SOURCES"),
        Column::text("STARTED"),
        Column::text("DURATION"),
        Column::text("NAME"),
    ]);
    let mut sessions = Vec::new();
    for session in &state.tracing_sessions {
        let id = session.id.unwrap_or(0).to_string();
        let name = session
            .unique_session_name
            .as_deref()
            .filter(|name| !name.is_empty());
        // An id has to match as a whole.
        if !patterns.want_whole_or_part(&id, name) {
            continue;
        }
        let started = session.start_realtime_ns.filter(|ns| *ns > 0).map(local);
        table.row([
            id,
            session.state.clone().unwrap_or_default().to_lowercase(),
            user(session),
            Bytes(bytes(session).iter().sum()).to_string(),
            used(session),
            session.num_data_sources.unwrap_or(0).to_string(),
            started.map_or("-".to_owned(), clock),
            duration(session).map_or("until stopped".to_owned(), |duration| {
                Elapsed(duration).to_string()
            }),
            name.unwrap_or_default().to_owned(),
        ]);
        sessions.push(session_json(session));
    }
    let all = usize::try_from(state.num_sessions.unwrap_or(0)).unwrap_or(0);
    let hidden = all.saturating_sub(state.tracing_sessions.len());
    let notes = match hidden {
        0 => Vec::new(),
        _ => vec![format!(
            "{} of other users not shown: root sees all",
            Counted(hidden as u64, "session")
        )],
    };
    Ok(Listing {
        table,
        below: None,
        json: json!({
            "service": state.tracing_service_version,
            "sessions": sessions,
            "sessions_of_others": hidden,
        }),
        notes,
    })
}

fn user(session: &TracingSession) -> String {
    let uid = session.consumer_uid.and_then(|uid| u32::try_from(uid).ok());
    uid.map_or("-".to_owned(), |uid| user_name(&ThisMachine, uid))
}

fn bytes(session: &TracingSession) -> Vec<u64> {
    let sizes = session.buffer_size_kb.iter();
    sizes.map(|kb| u64::from(*kb) * 1024).collect()
}

/// Returns the used part of the buffers, if the service reports it.
fn used(session: &TracingSession) -> String {
    let (used, size): (u64, u64) = (
        session.buffer_used_bytes.iter().sum(),
        bytes(session).iter().sum(),
    );
    match used.saturating_mul(100).checked_div(size) {
        Some(percent) if !session.buffer_used_bytes.is_empty() => format!("{percent} %"),
        _ => "-".to_owned(),
    }
}

fn duration(session: &TracingSession) -> Option<Duration> {
    let ms = session.duration_ms.filter(|ms| *ms > 0)?;
    Some(Duration::from_millis(ms.into()))
}

fn local(ns: i64) -> DateTime<Local> {
    DateTime::from_timestamp_nanos(ns).with_timezone(&Local)
}

/// Formats a time, with the date unless it is today.
fn clock(time: DateTime<Local>) -> String {
    let today = time.date_naive() == Local::now().date_naive();
    let format = if today { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" };
    time.format(format).to_string()
}
