//! Data that was recorded and lost, and advice against it.

use ferretto_proto::messages::perf_sample::SampleSkipReason;
use ferretto_proto::messages::perf_sample::producer_event::CpuEvent;
use ferretto_proto::messages::trace_stats::BufferStats;

use super::*;

#[test]
fn counters_of_the_whole_service_count_from_the_start_of_the_session() {
    let stats = TraceStats {
        chunks_discarded: Some(7),
        ..Default::default()
    };
    let found = |baseline| {
        let account = Account::of(&Case {
            stats: Some(&stats),
            baseline,
            ..Case::of(&TraceConfig::default(), Wording::Config)
        });
        let finding = account.findings.into_iter().next();
        finding.map(|finding| (finding.severity, finding.what))
    };
    let at = |chunks_discarded| {
        Some(Baseline {
            chunks_discarded,
            ..Default::default()
        })
    };
    assert_eq!(found(at(7)), None);
    assert_eq!(found(at(5)), Some((Severity::Loss, "2 chunks".to_owned())));
    assert_eq!(
        found(None),
        Some((Severity::Note, "7 chunks".to_owned())),
        "the service's"
    );
}

#[test]
fn fields_that_no_flag_sets_are_advised_with_a_config_to_put_them_into() {
    let mut config = asking_for(&["linux.ftrace"]);
    let stats = TraceStats {
        buffer_stats: vec![BufferStats {
            trace_writer_packet_loss: Some(1),
            ..Default::default()
        }],
        flushes_failed: Some(1),
        ..Default::default()
    };
    let mut evidence = Evidence::default();
    packet(&mut evidence, |packet| {
        packet.ftrace_events(|bundle| {
            bundle.cpu(0).lost_events(true);
        });
    });
    let advice = |config: &TraceConfig, wording| {
        let account = Account::of(&Case {
            stats: Some(&stats),
            evidence: Some(&evidence),
            ..Case::of(config, wording)
        });
        let losses = account
            .findings
            .into_iter()
            .filter(|finding| finding.severity == Severity::Loss);
        losses
            .map(|finding| (finding.cause, finding.advice.unwrap()))
            .collect::<Vec<_>>()
    };
    let causes = ["shared_memory_full", "flush_failed", "kernel_buffer_overrun"];
    let (flags, fields) = (advice(&config, Wording::Flags), advice(&config, Wording::Config));
    assert_eq!(
        [&flags, &fields].map(|all| all.iter().map(|(cause, _)| *cause).collect::<Vec<_>>()),
        [causes, causes]
    );
    for ((_, with_flags), (_, with_config)) in flags.iter().zip(&fields) {
        assert!(with_flags.contains("ferretto config new"), "{with_flags}");
        assert!(!with_config.contains("ferretto config new"), "{with_config}");
    }
    let ftrace = config.data_sources[0]
        .config
        .get_or_insert_default()
        .ftrace_config
        .get_or_insert_default();
    ftrace.buffer_size_kb = Some(1024);
    ftrace.buffer_size_lower_bound = Some(true);
    let bounded = advice(&config, Wording::Config).remove(2).1;
    assert!(
        bounded.starts_with("raise ftrace_config.buffer_size_kb from 1024 to 16384"),
        "{bounded}"
    );
}

#[test]
fn a_buffer_that_is_smaller_than_a_chunk_is_blamed_itself() {
    let with_buffer = |size_kb: u32, wording| {
        let config = TraceConfig {
            buffers: vec![trace_config::BufferConfig {
                size_kb: Some(size_kb),
                ..Default::default()
            }],
            ..asking_for(&["linux.ftrace"])
        };
        let stats = TraceStats {
            buffer_stats: vec![BufferStats {
                abi_violations: Some(2),
                ..Default::default()
            }],
            ..Default::default()
        };
        let account = Account::of(&Case {
            stats: Some(&stats),
            ..Case::of(&config, wording)
        });
        let finding = account
            .findings
            .into_iter()
            .find(|finding| finding.severity == Severity::Loss);
        let finding = finding.unwrap();
        (finding.cause, finding.sentence(), finding.advice.unwrap())
    };
    let (cause, sentence, advice) = with_buffer(1, Wording::Flags);
    assert_eq!(cause, "chunk_too_large");
    assert_eq!(
        sentence,
        "2 chunks of buffer 0: probably did not fit into the buffer, because a chunk may have up to 32.0 KiB"
    );
    assert_eq!(advice, "raise the buffer to 32.0 KiB or more with -b 32kb");
    let (_, _, advice) = with_buffer(31, Wording::Config);
    assert_eq!(advice, "raise buffers[0].size_kb from 31 to 32 or more");
    assert_eq!(with_buffer(32, Wording::Flags).0, "malformed_chunk");
}

#[test]
fn whatever_is_missing_of_a_cpu_profile_is_reported_with_its_cause() {
    let mut evidence = Evidence::default();
    let mut tell = |fill: fn(&mut write::PerfSample<'_>)| {
        packet(&mut evidence, |packet| {
            packet.perf_sample(fill);
        });
    };
    tell(|sample| {
        sample.cpu(1).kernel_records_lost(7);
    });
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_UNWIND_ENQUEUE);
    });
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_READ_STAGE);
    });
    // Nothing is missing.
    tell(|sample| {
        sample.sample_skipped_reason(SampleSkipReason::PROFILER_SKIP_NOT_IN_SCOPE);
    });
    for event in [
        CpuEvent::CPU_THROTTLED,
        CpuEvent::CPU_UNTHROTTLED,
        CpuEvent::CPU_GONE,
        CpuEvent::CPU_SAMPLED,
        CpuEvent::CPU_UNAVAILABLE,
        CpuEvent::CPU_UNREADABLE,
    ] {
        packet(&mut evidence, |packet| {
            packet.perf_sample(|sample| {
                sample.cpu(3).producer_event(|out| {
                    out.cpu_event(event);
                });
            });
        });
    }
    let account = judged(&asking_for(&["linux.perf"]), Some(&evidence), None);
    let findings = account.findings.iter();
    let found: Vec<(Severity, &str, &str)> = findings
        .map(|finding| (finding.severity, finding.cause, &*finding.what))
        .collect();
    let expected = [
        (Severity::Loss, "perf_ring_overrun", "7 records of linux.perf"),
        (Severity::Loss, "perf_throttled", "samples of linux.perf, 1 time"),
        (Severity::Loss, "perf_samples_skipped", "the stacks of 1 sample"),
        (Severity::Missing, "perf_processes_gone", "the stacks of 1 sample"),
        (
            Severity::Missing,
            "perf_cpu_gone",
            "what linux.perf would have recorded on CPU 3 after it went offline",
        ),
        (
            Severity::Missing,
            "perf_cpu_unavailable",
            "what linux.perf would have recorded on CPU 3",
        ),
        (
            Severity::Missing,
            "perf_counters_unreadable",
            "1 reading of counters",
        ),
    ];
    assert_eq!(found, expected);
}
