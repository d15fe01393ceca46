//! Compares the table with the output of upstream's `perfetto --query` for the same state.

use super::*;
use ferretto_proto::messages::{
    DataSourceDescriptor, FtraceDescriptor, TrackEventCategory, TrackEventDescriptor,
    ftrace_descriptor::AtraceCategory,
    tracing_service_state::{DataSource, TracingSession},
};

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

fn probes() -> Producer {
    Producer {
        id: Some(1),
        name: text("perfetto.traced_probes"),
        pid: Some(10995),
        uid: Some(0),
        sdk_version: text("Perfetto v56.0 (N/A)"),
        ..Default::default()
    }
}

fn source(name: &str, producer: i32) -> DataSource {
    DataSource {
        ds_descriptor: DataSourceDescriptor {
            name: text(name),
            ..Default::default()
        }
        .into(),
        producer_id: Some(producer),
        ..Default::default()
    }
}

fn state() -> TracingServiceState {
    TracingServiceState {
        tracing_service_version: text("Perfetto v56.0 (N/A)"),
        num_sessions: Some(1),
        num_sessions_started: Some(1),
        supports_tracing_sessions: Some(true),
        producers: vec![probes()],
        data_sources: vec![source("linux.ftrace", 1)],
        tracing_sessions: vec![TracingSession {
            id: Some(3),
            consumer_uid: Some(1000),
            state: text("STARTED"),
            unique_session_name: text("mine"),
            buffer_size_kb: vec![1024, 32768],
            duration_ms: Some(10_500),
            num_data_sources: Some(4),
            // 2023-11-14 22:13:20 UTC
            start_realtime_ns: Some(1_700_000_000_000_000_000),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[test]
fn the_table_is_upstreams_to_the_column() {
    let expected = "\
Not meant for machine consumption. Use --query-raw for scripts.

Service: Perfetto v56.0 (N/A)
Tracing sessions: 1 (started: 1)


PRODUCER PROCESSES CONNECTED:

ID     PID      UID      FLAGS  NAME                                       SDK
==     ===      ===      =====  ====                                       ===
1      10995    0               perfetto.traced_probes                     Perfetto v56.0 (N/A)


DATA SOURCES REGISTERED:

NAME                                     PRODUCER                     DETAILS
===                                      ========                     ========
linux.ftrace                             perfetto.traced_probes (1)  \x20


TRACING SESSIONS:

ID      UID     STATE      BUF (#) KB   DUR (s)   #DS  STARTED  NAME
===     ===     =====      ==========   =======   ===  =======  ====
3       1000    STARTED    (2) 33792    10        4    22:13:20 mine
";
    assert_eq!(
        table(&state(), QueryFormat::Table, Viewer::Root, Style::Plain),
        expected
    );
    let coloured = table(&state(), QueryFormat::Table, Viewer::Root, Style::Coloured);
    let (first, rest) = coloured.split_once('\n').unwrap();
    assert_eq!(
        first,
        "\x1b[31mNot meant for machine consumption. Use --query-raw for scripts.\x1b[0m"
    );
    assert_eq!(rest, expected.split_once('\n').unwrap().1);
}

#[test]
fn a_second_machine_brings_its_column() {
    let mut state = state();
    state.producers.push(Producer {
        id: Some(2),
        machine_id: Some(0x2a),
        frozen: Some(true),
        ..probes()
    });
    state.producers.push(Producer {
        id: Some(3),
        machine_id: Some(1),
        machine_name: text("guest"),
        ..probes()
    });
    state.data_sources.push(source("linux.ftrace", 2));
    let table = table(&state, QueryFormat::Table, Viewer::Root, Style::Plain);
    for line in [
        "ID     PID      UID      FLAGS  MACHINE              NAME                                       SDK",
        "1      10995    0               (host)               perfetto.traced_probes                     Perfetto v56.0 (N/A)",
        "2      10995    0        F      0x2a                 perfetto.traced_probes                     Perfetto v56.0 (N/A)",
        "3      10995    0               guest                perfetto.traced_probes                     Perfetto v56.0 (N/A)",
        "NAME                                     PRODUCER                     MACHINE              DETAILS",
        "linux.ftrace                             perfetto.traced_probes (2)   0x2a                 ",
    ] {
        assert!(
            table.lines().any(|printed| printed == line),
            "{line:?} is not in\n{table}"
        );
    }
}

#[test]
fn categories_are_cut_unless_all_are_wanted() {
    let names = ["rendering", "input.latency", "memory-infra", "scheduler"];
    let categories = || names.iter().map(|name| name.to_string());
    let track_event = TrackEventDescriptor {
        available_categories: categories()
            .map(|name| TrackEventCategory {
                name: Some(name),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    let ftrace = FtraceDescriptor {
        atrace_categories: categories()
            .map(|name| AtraceCategory {
                name: Some(name),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    for descriptor in [
        DataSourceDescriptor {
            track_event_descriptor: track_event.into(),
            ..Default::default()
        },
        DataSourceDescriptor {
            ftrace_descriptor: ftrace.into(),
            ..Default::default()
        },
    ] {
        let mut state = state();
        state.data_sources[0].ds_descriptor = descriptor.into();
        let short = table(&state, QueryFormat::Table, Viewer::Root, Style::Plain);
        assert!(
            short.contains("rendering,input.latency,memory-infra,sch... (use --long to expand)\n"),
            "{short}"
        );
        let long = table(&state, QueryFormat::LongTable, Viewer::Root, Style::Plain);
        assert!(
            long.contains("rendering,input.latency,memory-infra,scheduler\n"),
            "{long}"
        );
    }
}

#[test]
fn users_are_told_of_sessions_they_cannot_see() {
    let mut state = state();
    state.num_sessions = Some(2);
    assert!(
        table(&state, QueryFormat::Table, Viewer::User, Style::Plain)
            .contains("NOTE: sessions of other users")
    );
    assert!(!table(&state, QueryFormat::Table, Viewer::Root, Style::Plain).contains("NOTE"));
}

#[test]
fn an_older_service_lists_no_sessions() {
    let mut state = state();
    state.supports_tracing_sessions = None;
    assert!(!table(&state, QueryFormat::Table, Viewer::Root, Style::Plain).contains("TRACING SESSIONS"));
}
