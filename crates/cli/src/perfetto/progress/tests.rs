//! The text of a recording, from made-up statistics.

use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::trace_stats::BufferStats;
use ferretto_proto::messages::{DataSourceConfig, TraceConfig};

use super::*;
use crate::account::watch::Watch;
use crate::account::{Case, Wording};
use crate::config::length::Length;

fn stats(overwritten: u64, gaps: u64) -> TraceStats {
    TraceStats {
        buffer_stats: vec![BufferStats {
            buffer_size: Some(4 << 20),
            bytes_written: Some(1 << 20),
            chunks_overwritten: Some(overwritten),
            trace_writer_packet_loss: Some(gaps),
            patches_failed: Some(gaps),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn moment(stats: &TraceStats) -> Moment<'_> {
    Moment {
        account: Box::leak(Box::new(account(stats))),
        activity: Activity::Recording,
        recorded: Duration::from_millis(1500),
        duration: None,
        stats,
    }
}

fn line(moment: Moment<'_>) -> String {
    Progress::new().line(&moment).to_string()
}

#[test]
fn the_line_tells_times_fill_bytes_rate_and_losses() {
    let duration = Some(Duration::from_secs(5));
    assert_eq!(
        line(Moment {
            duration,
            ..moment(&stats(0, 0))
        }),
        "recording 1.5 s, 3.5 s left, buffer 25%, 1.0 MiB, 682.7 KiB/s, nothing lost by the service"
    );
    assert_eq!(
        line(moment(&stats(0, 7))),
        "recording 1.5 s, buffer 25%, 1.0 MiB, 682.7 KiB/s, LOST 7 gaps in buffer 0 and 1 more"
    );
    assert_eq!(
        line(moment(&stats(9, 0))),
        "recording 1.5 s, buffer 25%, 1.0 MiB, 682.7 KiB/s, LOST 9 chunks of buffer 0",
        "all of a given time was asked for"
    );
    let endless = account_of(&TraceConfig::default(), &stats(9, 0));
    assert_eq!(
        line(Moment {
            account: &endless,
            ..moment(&stats(9, 0))
        }),
        "recording 1.5 s, buffer 25%, 1.0 MiB, 682.7 KiB/s, the newest data are kept",
        "which is what a flight recorder is for"
    );
    assert_eq!(
        line(moment(&TraceStats::default())),
        "recording 1.5 s, 0 B, 0 B/s, nothing lost by the service"
    );
}

#[test]
fn a_recording_with_missing_data_does_not_claim_nothing_lost() {
    let config = TraceConfig {
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some("my.own".to_owned()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let (stats, watch) = (stats(0, 0), Watch::from_the_start());
    let account = Account::of(&Case {
        stats: Some(&stats),
        watch: Some(&watch),
        ..Case::of(&config, Wording::Config)
    });
    let line = line(Moment {
        account: &account,
        ..moment(&stats)
    });
    assert!(line.ends_with(", NOT RECORDED: the data source my.own"), "{line}");
}

#[test]
fn the_line_names_the_awaited_event() {
    let stats = stats(0, 0);
    let at = |activity, duration| {
        line(Moment {
            activity,
            duration,
            ..moment(&stats)
        })
    };
    let long = Some(Duration::from_secs(90));
    assert_eq!(
        at(Activity::Starting, None),
        "waiting for the data sources to start: 1.5 s"
    );
    assert_eq!(
        at(Activity::AwaitingTrigger, long),
        "waiting for a trigger: 1.5 s, 1:28 min left"
    );
    let over = Some(Duration::from_millis(1500));
    let stopping = at(Activity::Recording, over);
    assert!(
        stopping.starts_with("recorded 1.5 s, waiting for the data sources to stop"),
        "{stopping}"
    );
}

#[test]
fn the_rate_is_that_of_the_last_seconds() {
    let mut progress = Progress::new();
    let mut rate = |second: u64, bytes| progress.rate(Duration::from_secs(second), bytes);
    assert_eq!(rate(0, 0), None);
    assert_eq!(rate(1, 1000), Some(1000));
    // After a flood of data nothing more is written.
    let rates: Vec<Option<u64>> = (2..=12).map(|second| rate(second, 11_000)).collect();
    assert_eq!(rates[0], Some(5500));
    assert_eq!(rates.last(), Some(&Some(0)));
    assert!(rates.is_sorted_by(|a, b| a >= b), "{rates:?}");
}

fn account(stats: &TraceStats) -> Account {
    let config = TraceConfig {
        duration_ms: Some(5000),
        ..Default::default()
    };
    account_of(&config, stats)
}

fn account_of(config: &TraceConfig, stats: &TraceStats) -> Account {
    Account::of(&Case {
        stats: Some(stats),
        ..Case::of(config, Wording::Flags)
    })
}

fn summary(account: &Account) -> Summary<'_> {
    Summary {
        file: Some("trace.pftrace"),
        size: Some(1536),
        packets: Some(12_345),
        recorded: Some(Duration::from_secs(5)),
        account,
        known: Known::ByTheKernelToo,
    }
}

#[test]
fn the_summary_tells_size_packets_losses_and_how_to_open_the_file() {
    let lossy = account(&stats(1, 0));
    let lossy = summary(&lossy);
    assert_eq!(
        lossy.facts(),
        "recorded 5.0 s, 1.5 KiB, 12,345 packets, not complete:"
    );
    let expected = [
        (
            LineKind::Alarm,
            "  lost: 1 chunk of buffer 0: overwritten by newer data: the buffer is a ring, and was full",
        ),
        (
            LineKind::Aside,
            "    -> to keep all of it raise the buffer to 4.0 MiB with -b 4mb, record shorter, or stream into a file (-s SIZE)",
        ),
    ];
    assert_eq!(
        lossy.lines(),
        expected.map(|(kind, line)| (kind, line.to_owned()))
    );
    assert_eq!(
        lossy.next_step().unwrap(),
        "  to see it: ferretto open trace.pftrace (or load it at https://ui.perfetto.dev)"
    );
    let clean = account(&stats(0, 0));
    let clean = summary(&clean);
    assert_eq!(
        clean.facts(),
        "recorded 5.0 s, 1.5 KiB, 12,345 packets, nothing lost"
    );
    assert!(clean.lines().is_empty());
}

#[test]
fn a_ring_buffer_that_has_no_time_to_cover_lost_nothing() {
    let account = account_of(&TraceConfig::default(), &stats(1, 0));
    let summary = summary(&account);
    assert_eq!(
        summary.facts(),
        "recorded 5.0 s, 1.5 KiB, 12,345 packets, the newest data are kept"
    );
    let lines = summary.lines();
    assert!(
        lines.iter().all(|(kind, _)| *kind == LineKind::Aside),
        "{lines:?}"
    );
    assert!(lines[1].1.contains("to reach further back"), "{lines:?}");
}

#[test]
fn data_of_a_command_that_a_ring_buffer_overwrote_are_lost() {
    let (config, stats) = (TraceConfig::default(), stats(1, 0));
    let account = Account::of(&Case {
        stats: Some(&stats),
        length: Length::with_command(&config),
        ..Case::of(&config, Wording::Flags)
    });
    assert_eq!(
        summary(&account).facts(),
        "recorded 5.0 s, 1.5 KiB, 12,345 packets, not complete:"
    );
    assert!(account.findings[0].advice.as_deref().unwrap().contains("-s SIZE"));
}

#[test]
fn the_summary_claims_only_known_facts() {
    let account = account(&stats(0, 0));
    let unknown = Summary {
        file: None,
        size: None,
        packets: None,
        known: Known::ByTheService,
        ..summary(&account)
    };
    assert_eq!(
        unknown.facts(),
        "recorded 5.0 s, nothing lost by the service (kernel losses not checked)"
    );
    assert_eq!(unknown.next_step(), None);
    let without_stats = Summary {
        known: Known::Nothing,
        ..unknown
    };
    assert_eq!(
        without_stats.facts(),
        "recorded 5.0 s (the service gave no statistics of losses)"
    );
}

#[test]
fn there_is_no_advice_on_opening_an_empty_file() {
    let account = account(&stats(0, 0));
    let empty = Summary {
        size: Some(0),
        ..summary(&account)
    };
    assert_eq!(empty.next_step(), None);
}
