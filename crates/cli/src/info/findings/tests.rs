use ferretto_proto::messages::trace_config::buffer_config::{ExperimentalMode, FillPolicy};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource, ProducerConfig};
use ferretto_proto::messages::trace_stats::{BufferStats, FinalFlushOutcome};
use ferretto_proto::messages::{DataSourceConfig, FtraceConfig, SystemInfo, TraceConfig, TraceStats};
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::*;
use crate::account::Finding;
use crate::account::evidence::SourceOf;
use ferretto_trace_file::{Cut, Damage, Piece, Reason};

const END: End = End {
    size: 1000,
    cut: None,
};

/// A trace of a config with one buffer of 4 MB, named `main`.
fn summary(change: impl FnOnce(&mut TraceConfig), stats: BufferStats) -> Summary {
    let mut config = TraceConfig {
        duration_ms: Some(10_000),
        buffers: vec![BufferConfig {
            size_kb: Some(4096),
            name: Some("main".to_owned()),
            ..Default::default()
        }],
        ..Default::default()
    };
    change(&mut config);
    let mut summary = Summary::default();
    summary.config = Some(config);
    summary.stats = Some(TraceStats {
        buffer_stats: vec![stats],
        ..Default::default()
    });
    summary
}

fn findings(summary: &Summary, end: &End) -> Vec<Finding> {
    account(summary, end).findings
}

/// Returns the findings with this cause: their descriptions and their advice.
fn found(summary: &Summary, cause: &str) -> Vec<(String, String)> {
    findings(summary, &END)
        .into_iter()
        .filter(|finding| finding.cause == cause)
        .map(|finding| (finding.what, finding.advice.unwrap_or_default()))
        .collect()
}

/// Observes a packet of a sequence of process 77, called `app`.
fn observe(summary: &mut Summary, sequence: u32, dropped: u32, flags: u32) {
    let mut packet = Writer::new();
    write::TracePacket::new(&mut packet)
        .timestamp(5)
        .sequence_flags(flags)
        .trusted_packet_sequence_id(sequence)
        .trusted_pid(77)
        .previous_packet_dropped(dropped)
        .process_descriptor(|process| {
            process.pid(77).process_name("/usr/bin/app");
        });
    summary.piece(Piece::Packet(packet.as_slice()));
}

#[test]
fn a_clean_trace_has_no_findings() {
    let clean = BufferStats {
        buffer_size: Some(4 << 20),
        bytes_written: Some(100),
        chunks_overwritten: Some(0),
        readaheads_failed: Some(7),
        ..Default::default()
    };
    assert_eq!(findings(&summary(|_| {}, clean), &END), []);
    assert_eq!(findings(&Summary::default(), &END), []);
}

#[test]
fn an_overwritten_buffer_gets_a_sufficient_size_as_advice() {
    let overwritten = |bytes| BufferStats {
        chunks_overwritten: Some(820),
        bytes_overwritten: Some(bytes),
        ..Default::default()
    };
    let found_in = |summary| found(&summary, "buffer_overwritten").remove(0);
    let (what, advice) = found_in(summary(|_| {}, overwritten(3_300_000)));
    assert_eq!(what, "820 chunks (3.1 MiB) of buffer 0 \"main\"");
    assert_eq!(
        advice,
        "to keep all of it raise buffers[0].size_kb from 4096 to 8192, record shorter, or stream into a file (write_into_file: true)"
    );
    let (_, advice) = found_in(summary(|_| {}, overwritten(9 << 30)));
    assert_eq!(
        advice,
        "to keep all of it, which takes 12.0 GiB, stream into a file (write_into_file: true) or record shorter"
    );
    let streaming = |config: &mut TraceConfig| config.write_into_file = Some(true);
    let (_, advice) = found_in(summary(streaming, overwritten(1)));
    assert_eq!(
        advice,
        "lower file_write_period_ms from 5000 to 2500, or raise buffers[0].size_kb from 4096 to 8192"
    );
    let fastest = |config: &mut TraceConfig| {
        config.write_into_file = Some(true);
        config.file_write_period_ms = Some(100);
    };
    let (_, advice) = found_in(summary(fastest, overwritten(1)));
    assert_eq!(advice, "raise buffers[0].size_kb from 4096 to 8192");
}

#[test]
fn advice_for_a_full_discard_buffer_depends_on_whether_reading_makes_room() {
    let full = || BufferStats {
        chunks_discarded: Some(3),
        ..Default::default()
    };
    let advice = |streamed: bool, mode| {
        let change = move |config: &mut TraceConfig| {
            config.write_into_file = Some(streamed);
            config.buffers[0].fill_policy = Some(FillPolicy::DISCARD);
            config.buffers[0].experimental_mode = mode;
        };
        found(&summary(change, full()), "buffer_full").remove(0).1
    };
    let second = Some(ExperimentalMode::TRACE_BUFFER_V2);
    assert!(advice(false, None).contains("fill_policy: RING_BUFFER"));
    assert!(advice(false, second).contains("fill_policy: RING_BUFFER"));
    for mode in [None, second] {
        // With DISCARD, a buffer in either mode takes no more data after it was full once, with any service.
        let once = advice(true, mode);
        assert!(once.starts_with("leave out fill_policy"), "{once}");
        assert_eq!(
            once.contains("lower file_write_period_ms"),
            mode.is_none(),
            "{once}"
        );
    }
}

#[test]
fn chunks_that_a_ring_buffer_turns_away_are_no_loss() {
    let turned_away = || BufferStats {
        chunks_discarded: Some(46_778),
        ..Default::default()
    };
    for policy in [None, Some(FillPolicy::UNSPECIFIED), Some(FillPolicy::RING_BUFFER)] {
        let ring = move |config: &mut TraceConfig| config.buffers[0].fill_policy = policy;
        let findings = findings(&summary(ring, turned_away()), &END);
        assert!(findings.is_empty(), "{policy:?}");
    }
}

#[test]
fn every_counter_of_a_buffer_has_a_finding_of_its_own() {
    let all = BufferStats {
        chunks_overwritten: Some(1),
        chunks_discarded: Some(2),
        trace_writer_packet_loss: Some(3),
        patches_failed: Some(4),
        oversized_packets_dropped: Some(5),
        abi_violations: Some(6),
        ..Default::default()
    };
    let discards = |config: &mut TraceConfig| config.buffers[0].fill_policy = Some(FillPolicy::DISCARD);
    let causes: Vec<_> = findings(&summary(discards, all), &END)
        .into_iter()
        .map(|finding| (finding.cause, finding.what))
        .collect();
    let expected = [
        ("buffer_full", "2 chunks of buffer 0 \"main\""),
        ("shared_memory_full", "3 gaps in buffer 0 \"main\""),
        ("patch_too_late", "4 patches for buffer 0 \"main\""),
        ("packet_too_large", "5 packets for buffer 0 \"main\""),
        ("malformed_chunk", "6 chunks of buffer 0 \"main\""),
        ("buffer_overwritten", "1 chunk of buffer 0 \"main\""),
    ];
    assert_eq!(causes, expected.map(|(cause, what)| (cause, what.to_owned())));
}

#[test]
fn every_counter_of_the_session_has_one_too() {
    let mut lossy = summary(
        |config| config.flush_timeout_ms = Some(300),
        BufferStats::default(),
    );
    lossy.evidence.late_to_flush.push(SourceOf {
        source: "linux.ftrace".to_owned(),
        producer: "perfetto.traced_probes".to_owned(),
    });
    lossy.system = Some(SystemInfo {
        tracing_service_version: Some(crate::VERSION.to_owned()),
        ..Default::default()
    });
    lossy.stats = Some(TraceStats {
        chunks_discarded: Some(1),
        patches_discarded: Some(2),
        invalid_packets: Some(3),
        filter_stats: ferretto_proto::messages::trace_stats::FilterStats {
            errors: Some(4),
            input_bytes: Some(2048),
            output_bytes: Some(1024),
            ..Default::default()
        }
        .into(),
        flushes_requested: Some(9),
        flushes_failed: Some(5),
        final_flush_outcome: Some(FinalFlushOutcome::FINAL_FLUSH_FAILED),
        ..Default::default()
    });
    let findings = findings(&lossy, &END);
    let causes: Vec<_> = findings
        .iter()
        .map(|finding| (finding.severity, finding.cause, &*finding.what))
        .collect();
    let loss = |cause, what| (Severity::Loss, cause, what);
    assert_eq!(
        causes,
        [
            loss("chunk_for_wrong_buffer", "1 chunk"),
            loss("patch_for_wrong_buffer", "2 patches"),
            loss("malformed_packet", "3 packets"),
            loss("filter_error", "4 packets"),
            loss("flush_failed", "5 flushes of 9, the last one among them"),
            (Severity::Note, "filtered", "1.0 KiB of 2.0 KiB"),
        ]
    );
    let flush = findings
        .iter()
        .find(|finding| finding.cause == "flush_failed")
        .unwrap();
    assert!(
        flush.why.contains("linux.ftrace of traced_probes"),
        "{}",
        flush.why
    );
    assert_eq!(
        flush.advice.as_deref(),
        Some("raise flush_timeout_ms from 300 to 600")
    );
}

#[test]
fn the_advice_names_the_producer_that_ran_out_of_shared_memory() {
    let lossy = || BufferStats {
        trace_writer_packet_loss: Some(1),
        ..Default::default()
    };
    let advice = |summary: &Summary| found(summary, "shared_memory_full").remove(0).1;
    let mut unnamed = summary(|_| {}, lossy());
    assert!(advice(&unnamed).contains("producer_name: \"PRODUCER\" shm_size_kb: 4096 page_size_kb: 32"));
    assert!(advice(&unnamed).contains("`ferretto list sources`"));
    observe(&mut unnamed, 5, 0, 0);
    observe(&mut unnamed, 5, 1 | 256, 0);
    assert!(
        advice(&unnamed).contains("producer_name: \"app\" shm_size_kb: 4096"),
        "{}",
        advice(&unnamed)
    );
    for (now, expected) in [
        (1024, "shm_size_kb: 4096 page_size_kb: 32 } (now 1024)"),
        (32 << 10, "let it write less"),
    ] {
        let configured = |config: &mut TraceConfig| {
            config.producers = vec![ProducerConfig {
                producer_name: Some("app".to_owned()),
                shm_size_kb: Some(now),
                ..Default::default()
            }];
        };
        let mut summary = summary(configured, lossy());
        observe(&mut summary, 5, 0, 0);
        observe(&mut summary, 5, 1 | 256, 0);
        assert!(advice(&summary).contains(expected), "{}", advice(&summary));
    }
}

#[test]
fn gaps_are_listed_by_reason_with_the_sequences_that_have_most() {
    let mut marked = summary(|_| {}, BufferStats::default());
    for (sequence, dropped) in [
        (5, 0),
        (5, 1 | 64),
        (6, 0),
        (6, 1 | 64),
        (6, 1 | 64),
        (6, 1),
        (7, 1),
    ] {
        observe(&mut marked, sequence, dropped, 0);
    }
    assert_eq!(
        found(&marked, "gap_overwritten")[0].0,
        "3 gaps in 2 sequences: 6 (app, pid 77), 5 (app, pid 77)"
    );
    assert_eq!(found(&marked, "gap")[0].0, "1 gap in 1 sequence: 6 (app, pid 77)");
    assert_eq!(found(&marked, "state_lost"), []);
}

#[test]
fn packets_that_lost_their_state_are_counted() {
    const NEEDS_STATE: u32 = 2;
    let mut summary = summary(|_| {}, BufferStats::default());
    observe(&mut summary, 5, 1, NEEDS_STATE);
    observe(&mut summary, 5, 0, NEEDS_STATE);
    let (what, advice) = found(&summary, "state_lost").remove(0);
    assert_eq!(what, "2 packets in 1 sequence: 5 (app, pid 77)");
    assert!(advice.contains("incremental_state_config { clear_period_ms: 5000 }"));
    summary
        .config
        .as_mut()
        .unwrap()
        .incremental_state_config
        .get_or_insert_default()
        .clear_period_ms = Some(8000);
    assert!(found(&summary, "state_lost")[0].1.ends_with("to 4000"));
}

#[test]
fn a_flight_recorder_may_begin_without_its_state() {
    const CLEARED: u32 = 1;
    const NEEDS_STATE: u32 = 2;
    const FULL: u32 = 1 | 256;
    let severity = |duration_ms, clear_period_ms, packets: &[(u32, u32)]| {
        let mut summary = summary(
            |config| {
                config.duration_ms = duration_ms;
                let clears = config.incremental_state_config.get_or_insert_default();
                clears.clear_period_ms = clear_period_ms;
            },
            BufferStats::default(),
        );
        for (dropped, flags) in packets {
            observe(&mut summary, 5, *dropped, *flags);
        }
        let findings = findings(&summary, &END);
        let lost = findings.iter().find(|finding| finding.cause == "state_lost");
        lost.unwrap().severity
    };
    let wrapped = [(1, NEEDS_STATE), (0, CLEARED), (0, NEEDS_STATE)];
    assert_eq!(severity(None, Some(5000), &wrapped), Severity::Note);
    assert_eq!(
        severity(Some(1000), Some(5000), &wrapped),
        Severity::Loss,
        "all of it was asked for"
    );
    let later = [(0, CLEARED), (FULL, NEEDS_STATE)];
    assert_eq!(severity(None, Some(5000), &later), Severity::Loss);
    let never = [(1, NEEDS_STATE), (0, NEEDS_STATE)];
    assert_eq!(
        severity(None, None, &never),
        Severity::Loss,
        "nothing of it is left"
    );
    assert_eq!(
        severity(None, Some(5000), &never),
        Severity::Note,
        "it would have been, soon"
    );
}

#[test]
fn kernel_losses_come_with_the_sizes_of_the_config() {
    let with_config = |buffer_size_kb, drain_period_ms| {
        let mut summary = summary(
            |config| {
                config.data_sources = vec![DataSource {
                    config: DataSourceConfig {
                        name: Some("linux.ftrace".to_owned()),
                        ftrace_config: FtraceConfig {
                            buffer_size_kb,
                            drain_period_ms,
                            ..Default::default()
                        }
                        .into(),
                        ..Default::default()
                    }
                    .into(),
                    ..Default::default()
                }];
            },
            BufferStats::default(),
        );
        let mut packet = Writer::new();
        write::TracePacket::new(&mut packet).ftrace_events(|bundle| {
            bundle.cpu(0).lost_events(true);
        });
        summary.piece(Piece::Packet(packet.as_slice()));
        found(&summary, "kernel_buffer_overrun").remove(0)
    };
    let (what, advice) = with_config(Some(2048), Some(250));
    assert_eq!(what, "kernel events, 1 time");
    assert_eq!(
        advice,
        "raise ftrace_config.buffer_size_kb from 2048 to 4096, or lower ftrace_config.drain_period_ms from 250 to 125"
    );
    let (_, advice) = with_config(None, None);
    assert_eq!(
        advice, "set ftrace_config.buffer_size_kb: 16384 (per CPU), or ask for fewer events",
        "8192 is the default of large machines"
    );
}

#[test]
fn requested_data_that_are_missing_are_noted() {
    let source = |name: &str| DataSource {
        config: DataSourceConfig {
            name: Some(name.to_owned()),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    let mut summary = summary(
        |config| config.data_sources = ["linux.sys_stats", "track_event", "my.own"].map(source).into(),
        BufferStats::default(),
    );
    let mut packet = Writer::new();
    write::TracePacket::new(&mut packet).track_event(|_| {});
    summary.piece(Piece::Packet(packet.as_slice()));
    let silent = found(&summary, "data_source_silent");
    assert_eq!(silent.len(), 1, "{silent:?}");
    assert_eq!(silent[0].0, "nothing of the data source linux.sys_stats");
    assert!(silent[0].1.contains("ferretto doctor"));
}

#[test]
fn the_state_of_the_file_comes_first() {
    let mut damaged = summary(
        |_| {},
        BufferStats {
            chunks_overwritten: Some(1),
            ..Default::default()
        },
    );
    damaged.piece(Piece::Damage(Damage {
        offset: 70,
        skipped: 2048,
        reason: Reason::NoLength,
    }));
    let cut = End {
        size: 900,
        cut: Some(Cut {
            offset: 880,
            bytes: 20,
        }),
    };
    let findings = findings(&damaged, &cut);
    let causes: Vec<_> = findings.iter().map(|finding| finding.cause).collect();
    assert_eq!(causes, ["file_damaged", "file_cut", "buffer_overwritten"]);
    assert_eq!(findings[0].what, "1 damaged place (2.0 KiB) of the file");
    assert!(findings[0].why.contains("byte 70"), "{}", findings[0].why);
    assert!(findings[1].why.contains("byte 880"), "{}", findings[1].why);
}

#[test]
fn a_file_that_reached_its_limit_is_noted() {
    let limited = |limit| {
        summary(
            |config| {
                config.write_into_file = Some(true);
                config.max_file_size_bytes = Some(limit);
            },
            BufferStats::default(),
        )
    };
    assert_eq!(found(&limited(1030), "file_full").len(), 1);
    assert_eq!(found(&limited(5000), "file_full"), []);
}
