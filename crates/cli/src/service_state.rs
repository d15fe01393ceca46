//! Formats the service's state: as a table for people (`perfetto --query`), and for scripts (`ferretto --query --json`, [`json`]).
//!
//! `perfetto --query` calls it. Columns, widths and headings are those of upstream's `PrintServiceState`. People know these, and scripts parse them
//! against upstream's advice. Scripts should use `--json` or `--query-raw`.

use std::fmt::{self, Write};

use ferretto_proto::messages::{DataSourceDescriptor, TracingServiceState, tracing_service_state::Producer};

use crate::stdout::Style;

pub(crate) mod json;

pub(crate) use json::json;

/// The length to which lists of categories are cut in the short table.
const SHORT_CATEGORIES: usize = 40;
/// The length to which the column of the producer's name is always cut.
const MAX_PRODUCER_LABEL: usize = 127;

/// The format of the service's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryFormat {
    /// A table, with long cells cut.
    Table,
    /// A table, with everything.
    LongTable,
    /// The encoded `TracingServiceState`.
    Raw,
    /// JSON, for scripts.
    Json,
}

/// Whether sessions of other users may be missing from the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// Sees every session.
    Root,
    /// Sees its own sessions.
    User,
}

/// Formats the table. With [`QueryFormat::LongTable`] it cuts no lists of categories.
pub(crate) fn table(
    state: &TracingServiceState,
    format: QueryFormat,
    viewer: Viewer,
    style: Style,
) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = Table {
        state,
        format,
        viewer,
        style,
    }
    .print(&mut out);
    out
}

struct Table<'a> {
    state: &'a TracingServiceState,
    format: QueryFormat,
    viewer: Viewer,
    style: Style,
}

impl Table<'_> {
    fn print(&self, out: &mut String) -> fmt::Result {
        let state = self.state;
        let (red, usual) = match self.style {
            Style::Coloured => ("\x1b[31m", "\x1b[0m"),
            Style::Plain => ("", ""),
        };
        writeln!(
            out,
            "{red}Not meant for machine consumption. Use --query-raw for scripts.{usual}\n"
        )?;
        writeln!(
            out,
            "Service: {}",
            state.tracing_service_version.as_deref().unwrap_or_default()
        )?;
        let (sessions, started) = (
            state.num_sessions.unwrap_or(0),
            state.num_sessions_started.unwrap_or(0),
        );
        writeln!(out, "Tracing sessions: {sessions} (started: {started})")?;
        self.producers(out)?;
        self.data_sources(out)?;
        if state.supports_tracing_sessions == Some(true) {
            self.sessions(out)?;
        }
        Ok(())
    }

    /// Whether producers run on several machines; only then is there a column of machines.
    fn several_machines(&self) -> bool {
        self.state
            .producers
            .iter()
            .any(|producer| producer.machine_id.unwrap_or(0) != 0)
    }

    fn producers(&self, out: &mut String) -> fmt::Result {
        let machines = self.several_machines();
        out.push_str("\n\nPRODUCER PROCESSES CONNECTED:\n\n");
        for (id, pid, uid, flags, machine, name, sdk) in [
            ("ID", "PID", "UID", "FLAGS", "MACHINE", "NAME", "SDK"),
            ("==", "===", "===", "=====", "=======", "====", "==="),
        ] {
            write!(out, "{id:<6} {pid:<8} {uid:<8} {flags:<6} ")?;
            if machines {
                write!(out, "{machine:<20} ")?;
            }
            writeln!(out, "{name:<42} {sdk}")?;
        }
        for producer in &self.state.producers {
            let flags = if producer.frozen == Some(true) { "F" } else { "" };
            write!(
                out,
                "{:<6} {:<8} {:<8} {flags:<6} ",
                producer.id.unwrap_or(0),
                producer.pid.unwrap_or(0),
                producer.uid.unwrap_or(0)
            )?;
            if machines {
                write!(out, "{:<20} ", machine(Some(producer)))?;
            }
            let sdk = producer.sdk_version.as_deref().unwrap_or_default();
            writeln!(out, "{:<42} {sdk}", name(producer))?;
        }
        Ok(())
    }

    fn data_sources(&self, out: &mut String) -> fmt::Result {
        let machines = self.several_machines();
        out.push_str("\n\nDATA SOURCES REGISTERED:\n\n");
        for (name, producer, machine, details) in [
            ("NAME", "PRODUCER", "MACHINE", "DETAILS"),
            ("===", "========", "=======", "========"),
        ] {
            write!(out, "{name:<40} {producer:<28} ")?;
            if machines {
                write!(out, "{machine:<20} ")?;
            }
            writeln!(out, "{details}")?;
        }
        for source in &self.state.data_sources {
            let id = source.producer_id.unwrap_or(0);
            let producer = self
                .state
                .producers
                .iter()
                .find(|producer| producer.id.unwrap_or(0) == id);
            let mut label = producer
                .map(|producer| format!("{} ({id})", name(producer)))
                .unwrap_or_default();
            truncate(&mut label, MAX_PRODUCER_LABEL);
            let descriptor = &source.ds_descriptor;
            write!(
                out,
                "{:<40} {label:<28} ",
                descriptor.name.as_deref().unwrap_or_default()
            )?;
            if machines {
                write!(out, "{:<20} ", machine(producer))?;
            }
            writeln!(out, "{}", self.categories(descriptor))?;
        }
        Ok(())
    }

    fn categories(&self, descriptor: &DataSourceDescriptor) -> String {
        let mut categories = categories(descriptor).join(",");
        if self.format != QueryFormat::LongTable && categories.len() > SHORT_CATEGORIES {
            truncate(&mut categories, SHORT_CATEGORIES);
            categories.push_str("... (use --long to expand)");
        }
        categories
    }

    fn sessions(&self, out: &mut String) -> fmt::Result {
        out.push_str("\n\nTRACING SESSIONS:\n\n");
        out.push_str("ID      UID     STATE      BUF (#) KB   DUR (s)   #DS  STARTED  NAME\n");
        out.push_str("===     ===     =====      ==========   =======   ===  =======  ====\n");
        for session in &self.state.tracing_sessions {
            let total_kb = session
                .buffer_size_kb
                .iter()
                .fold(0_u32, |total, kb| total.saturating_add(*kb));
            let second = session
                .start_realtime_ns
                .unwrap_or(0)
                .div_euclid(1_000_000_000)
                .rem_euclid(86_400);
            writeln!(
                out,
                "{:<7} {:<7} {:<10} ({}) {total_kb:<8} {:<9} {:<4} {:02}:{:02}:{:02} {}",
                session.id.unwrap_or(0),
                session.consumer_uid.unwrap_or(0),
                session.state.as_deref().unwrap_or_default(),
                session.buffer_size_kb.len(),
                session.duration_ms.unwrap_or(0) / 1000,
                session.num_data_sources.unwrap_or(0),
                second / 3600,
                second / 60 % 60,
                second % 60,
                session.unique_session_name.as_deref().unwrap_or_default(),
            )?;
        }
        let listed = i32::try_from(self.state.tracing_sessions.len()).unwrap_or(i32::MAX);
        if listed != self.state.num_sessions.unwrap_or(0) && self.viewer == Viewer::User {
            out.push_str(
                "\nNOTE: sessions of other users run as well. Only root sees all of them: run this command again with sudo.\n",
            );
        }
        Ok(())
    }
}

/// Returns the categories that a source offers, of track events or of atrace.
fn categories(descriptor: &DataSourceDescriptor) -> Vec<&str> {
    if let Some(track_event) = descriptor.track_event_descriptor.as_option() {
        let categories = track_event.available_categories.iter();
        categories
            .filter_map(|category| category.name.as_deref())
            .collect()
    } else {
        let categories = descriptor.ftrace_descriptor.atrace_categories.iter();
        categories
            .filter_map(|category| category.name.as_deref())
            .collect()
    }
}

fn name(producer: &Producer) -> &str {
    producer.name.as_deref().unwrap_or_default()
}

fn machine(producer: Option<&Producer>) -> String {
    producer
        .and_then(other_machine)
        .unwrap_or_else(|| "(host)".to_owned())
}

/// Returns the name of a producer's machine, unless it is the service's own.
pub(crate) fn other_machine(producer: &Producer) -> Option<String> {
    let id = producer.machine_id.filter(|id| *id != 0)?;
    let name = producer.machine_name.clone().filter(|name| !name.is_empty());
    Some(name.unwrap_or_else(|| format!("{id:#x}")))
}

/// Cuts a text to at most `len` bytes, between characters.
fn truncate(text: &mut String, len: usize) {
    if text.len() > len {
        let end = (0..=len)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
    }
}

#[cfg(test)]
mod tests;
