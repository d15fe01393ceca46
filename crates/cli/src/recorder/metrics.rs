//! The figures of the recorder and of the tracing service in Prometheus' text format, on a loopback port. Off unless the settings have `metrics`.
//!
//! [`run`](super::run) starts the thread and leaves a [`Page`] of its own figures there whenever the state is saved. The service is asked when somebody
//! looks. Only `GET /metrics` is answered, and nothing can be changed. As in [`open`](crate::open), the `Host` has to be a loopback address, so that no page of
//! the web reads the figures by a name that resolves to 127.0.0.1. Every user of the machine can read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferretto_client::consumer::StateScope;
use ferretto_daemons::log;
use ferretto_ipc::socket_names::consumer_address;
use ferretto_ipc::transport::TransportError;
use ferretto_proto::messages::{TraceStats, TracingServiceState};

use crate::ask::ask_within;
use crate::http::{Application, Browser, Exchange, Head, Response, Server, State, Waits, Wake};
use crate::open::is_loopback;

/// How long the service may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The most producers whose memory is told.
const MOST_PRODUCERS: usize = 50;

/// A page of figures.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
    /// The figure that was added last, whose type has been told.
    last: String,
}

impl Page {
    /// Adds a value. Values of one figure go together.
    pub(super) fn add(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        // Writing to a string cannot fail.
        if self.last != name {
            let kind = if name.ends_with("_total") {
                "counter"
            } else {
                "gauge"
            };
            let _ = writeln!(self.text, "# TYPE {name} {kind}");
            name.clone_into(&mut self.last);
        }
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.text, "{name} {value}"),
            false => writeln!(self.text, "{name}{{{}}} {value}", labels.join(",")),
        };
    }
}

/// Escapes the value of a label, as the format wants it.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Adds the counters of losses of sessions.
pub(super) fn add_stats(page: &mut Page, stats: &BTreeMap<String, TraceStats>) {
    type Counter = (
        &'static str,
        fn(&ferretto_proto::messages::trace_stats::BufferStats) -> Option<u64>,
    );
    const COUNTERS: [Counter; 6] = [
        ("ferretto_buffer_written_bytes_total", |buffer| {
            buffer.bytes_written
        }),
        ("ferretto_buffer_overwritten_bytes_total", |buffer| {
            buffer.bytes_overwritten
        }),
        ("ferretto_buffer_chunks_discarded_total", |buffer| {
            buffer.chunks_discarded
        }),
        ("ferretto_buffer_packet_losses_total", |buffer| {
            buffer.trace_writer_packet_loss
        }),
        ("ferretto_buffer_patches_failed_total", |buffer| {
            buffer.patches_failed
        }),
        ("ferretto_buffer_abi_violations_total", |buffer| {
            buffer.abi_violations
        }),
    ];
    for (name, counter) in COUNTERS {
        for (session, stats) in stats {
            for (number, buffer) in stats.buffer_stats.iter().enumerate() {
                let labels = [("session", session.as_str()), ("buffer", &number.to_string())];
                page.add(name, &labels, counter(buffer).unwrap_or(0));
            }
        }
    }
}

/// Adds the state of the service.
fn add_service(page: &mut Page, state: &TracingServiceState) {
    page.add("ferretto_service_producers", &[], state.producers.len());
    page.add("ferretto_service_data_sources", &[], state.data_sources.len());
    page.add("ferretto_service_sessions", &[], state.num_sessions.unwrap_or(0));
    let sizes = state
        .tracing_sessions
        .iter()
        .flat_map(|session| &session.buffer_size_kb);
    let kilobytes: u64 = sizes.map(|kb| u64::from(*kb)).sum();
    page.add("ferretto_service_buffer_bytes", &[], kilobytes << 10);
    // The process ids of other machines are those of strangers here.
    let here = state
        .producers
        .iter()
        .filter(|it| it.machine_id.unwrap_or(0) == 0);
    let mut told = BTreeSet::new();
    for producer in here.take(MOST_PRODUCERS) {
        let name = producer.name.as_deref().unwrap_or_default();
        let pid = producer.pid.unwrap_or(0).to_string();
        // A process may be a producer twice, and a value must not be there twice.
        if told.insert((name, pid.clone()))
            && let Some(bytes) = resident(&pid)
        {
            let labels = [("producer", name), ("pid", &pid)];
            page.add("ferretto_producer_resident_memory_bytes", &labels, bytes);
        }
    }
}

/// Returns the resident memory of a process.
fn resident(pid: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Where the recorder leaves its page.
#[derive(Debug, Clone, Default)]
pub(super) struct Board(Arc<Mutex<String>>);

impl Board {
    /// Replaces the page.
    pub(super) fn put(&self, page: Page) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = page.text;
    }

    /// Serves the page on this port, on a thread of its own.
    ///
    /// # Errors
    /// If the port cannot be listened on.
    pub(super) fn serve(&self, port: u16) -> io::Result<()> {
        let server = Server::bind_beside_others(port)?;
        log::info(format_args!(
            "metrics are at http://127.0.0.1:{}/metrics",
            server.port()
        ));
        let mut metrics = Metrics(self.clone());
        let thread = move || {
            if let Err(error) = server.serve(&mut metrics) {
                log::error(format_args!("there are no metrics any more: {error}"));
            }
        };
        std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(thread)?;
        Ok(())
    }
}

/// Answers requests.
struct Metrics(Board);

/// Every request is answered at once.
enum Nothing {}

impl Exchange for Nothing {
    fn waits(&self) -> Waits<'_> {
        match *self {}
    }
}

impl Application for Metrics {
    type Exchange = Nothing;

    fn answer(&mut self, head: &Head<'_>, browser: Browser, _exchanges: usize) -> State<Nothing> {
        let is_for_us = matches!(head.one("Host"), Ok(Some(host)) if is_loopback(host));
        let path = head.path.split('?').next().unwrap_or_default();
        let response = match (head.method, path) {
            _ if !is_for_us => Response::new("403 Forbidden").text("Ask 127.0.0.1, [::1] or localhost.\n"),
            ("GET", "/metrics") => {
                let mut page = Page::default();
                let asked = consumer_address().map_err(|error| error.to_string());
                let state = asked.and_then(|socket| ask_within(PATIENCE, &socket, StateScope::Everything));
                page.add("ferretto_service_up", &[], u8::from(state.is_ok()));
                if let Ok((state, _)) = &state {
                    add_service(&mut page, state);
                }
                page.add(
                    "ferretto_recorder_resident_memory_bytes",
                    &[],
                    resident("self").unwrap_or(0),
                );
                let own = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
                Response::new("200 OK").text(&(page.text + &own))
            }
            ("GET", _) => Response::new("404 Not Found").text("The metrics are at /metrics.\n"),
            _ => Response::new("405 Method Not Allowed")
                .with("Allow", "GET")
                .text(""),
        };
        State::respond(browser, response)
    }

    fn turn(&mut self, exchange: Nothing, _wake: Wake) -> State<Nothing> {
        match exchange {}
    }

    fn cannot_accept(&mut self, error: &TransportError) {
        log::warning(format_args!("cannot accept a connection for metrics: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::tracing_service_state::Producer;

    use super::*;

    #[test]
    fn the_memory_of_producers_is_told_once_and_not_of_those_on_other_machines() {
        let producer = |name: &str, machine_id| Producer {
            name: Some(name.to_owned()),
            pid: Some(std::process::id() as i32),
            machine_id,
            ..Default::default()
        };
        let state = TracingServiceState {
            producers: vec![
                producer("far", Some(7)),
                producer("near", Some(0)),
                producer("near", None),
                producer("other", None),
            ],
            ..Default::default()
        };
        let mut page = Page::default();
        add_service(&mut page, &state);
        let lines = page.text.lines();
        let told: Vec<_> = lines
            .filter_map(|line| line.split_once("_memory_bytes{producer=\""))
            .filter_map(|(_, rest)| rest.split('"').next())
            .collect();
        assert_eq!(told, ["near", "other"]);
    }

    #[test]
    fn figures_are_written_as_prometheus_reads_them() {
        let mut page = Page::default();
        page.add("up", &[], 1);
        page.add("seals_total", &[("session", "a"), ("reason", "x\"y\\z\n")], 3);
        page.add("seals_total", &[("session", "b"), ("reason", "")], 4);
        let expected = "# TYPE up gauge\nup 1\n# TYPE seals_total counter\nseals_total{session=\"a\",reason=\"x\\\"y\\\\z\\n\"} 3\n\
                        seals_total{session=\"b\",reason=\"\"} 4\n";
        assert_eq!(page.text, expected);
    }
}
