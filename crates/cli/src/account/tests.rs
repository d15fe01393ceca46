//! Accounts of recordings, from made-up packets and made-up answers of the service.

use std::time::Duration;

use ferretto_proto::messages::observable_events::{DataSourceInstanceState, DataSourceInstanceStateChange};
use ferretto_proto::messages::{DataSourceConfig, FtraceConfig, trace_config};
use ferretto_proto::write::{self, TracePacket};
use ferretto_wire::Writer;

use super::watch::Question;
use super::*;

mod data_sources;
mod ends;
mod failed;
mod kernel_events;
mod losses;

fn asking_for(sources: &[&str]) -> TraceConfig {
    let source = |name: &&str| trace_config::DataSource {
        config: DataSourceConfig {
            name: Some((*name).to_owned()),
            ftrace_config: FtraceConfig {
                ftrace_events: vec!["sched/sched_switch".to_owned()],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    TraceConfig {
        duration_ms: Some(1000),
        data_sources: sources.iter().map(source).collect(),
        ..Default::default()
    }
}

fn judged(config: &TraceConfig, evidence: Option<&Evidence>, watch: Option<&Watch>) -> Account {
    Account::of(&Case {
        evidence,
        watch,
        ..Case::of(config, Wording::Config)
    })
}

/// The findings about missing data: cause and sentence.
fn missing(account: &Account) -> Vec<(&'static str, String)> {
    let findings = account.findings.iter();
    let missing = findings.filter(|finding| finding.severity == Severity::Missing);
    missing
        .map(|finding| (finding.cause, finding.sentence()))
        .collect()
}

fn packet(evidence: &mut Evidence, fill: impl FnOnce(&mut TracePacket<'_>)) {
    let mut packet = Writer::new();
    fill(&mut TracePacket::new(&mut packet));
    evidence.observe(packet.as_slice());
}

fn ftrace_stats(evidence: &mut Evidence, fill: impl FnOnce(&mut write::FtraceStats<'_>)) {
    packet(evidence, |packet| {
        packet.ftrace_stats(fill);
    });
}

fn kernel_events(evidence: &mut Evidence) {
    packet(evidence, |packet| {
        packet.ftrace_events(|bundle| {
            bundle.cpu(0);
        });
    });
}

/// A mark of the service, in ms since boot.
fn event(evidence: &mut Evidence, ms: u64, fill: impl FnOnce(&mut write::TracingServiceEvent<'_>)) {
    packet(evidence, |packet| {
        packet.timestamp(ms * 1_000_000).service_event(fill);
    });
}

const STARTED: DataSourceInstanceState = DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
const STOPPED: DataSourceInstanceState = DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STOPPED;
const PROBES: &str = "perfetto.traced_probes";

fn change(
    watch: &mut Watch,
    producer: &str,
    source: &str,
    state: DataSourceInstanceState,
    ms: u64,
) -> Question {
    let change = DataSourceInstanceStateChange {
        producer_name: Some(producer.to_owned()),
        data_source_name: Some(source.to_owned()),
        state: Some(state),
        ..Default::default()
    };
    watch.changed(&change, Duration::from_millis(ms))
}

#[test]
fn sizes_to_choose_are_round_and_large_enough() {
    for (needed, size) in [
        (0, 4),
        (4, 4),
        (5, 6),
        (7, 8),
        (4096, 4096),
        (4097, 6144),
        (6145, 8192),
        (7373, 8192),
    ] {
        assert_eq!(roomy(needed), size, "{needed}");
    }
    assert!(roomy(u64::MAX) >= 1 << 63);
}

#[test]
fn long_lists_are_cut() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let name = |name: &&str| (*name).to_owned();
    assert_eq!(listed(&names, name).as_deref(), Some("a, b, c, d, 2 more"));
    assert_eq!(listed(&names[..2], name).as_deref(), Some("a, b"));
    assert_eq!(listed(&names[..0], name), None);
}
