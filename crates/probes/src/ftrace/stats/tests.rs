//! Tests of the module.

use super::*;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{self, Message};

const CPU_STATS: &str = "entries: 12
overrun: 34
commit overrun: 5
bytes: 678
oldest event ts:  4321.123456
now ts:  9876.500001
dropped events: 9
read events: 1000
a line of a later kernel: 4
";

#[test]
fn counters_are_read_from_a_stats_file() {
    let expected = CpuStats {
        cpu: 3,
        entries: 12,
        overrun: 34,
        commit_overrun: 5,
        bytes: 678,
        oldest_event_ts: 4321.123456,
        now_ts: 9876.500001,
        dropped_events: 9,
        read_events: 1000,
    };
    let stats = CpuStats::parse(3, CPU_STATS);
    assert_eq!(stats, expected);
    assert_eq!(stats.now_nanoseconds(), 9_876_500_001_000);
    assert_eq!(
        CpuStats::parse(3, "entries: x\nnonsense"),
        CpuStats {
            cpu: 3,
            ..CpuStats::default()
        }
    );
}

#[test]
fn probes_are_summed() {
    let text =
        "  perfetto_kprobes/fuse_open      10       1\n  perfetto_kretprobes/fuse_open     20   2\nodd\n";
    assert_eq!(KprobeStats::parse(text), KprobeStats { hits: 30, misses: 3 });
}

#[test]
fn a_packet_holds_what_was_collected() {
    let stats = FtraceStats {
        cpus: vec![CpuStats::parse(1, CPU_STATS)],
        setup_errors: SetupErrors {
            unknown_events: vec!["a/b".into()],
            failed_events: vec!["c/d".into()],
        },
        troubles: vec!["One thing.".into(), "Another.".into()],
        symbols: SymbolStats {
            parsed: 7,
            memory_kib: 8,
        },
        kprobes: KprobeStats::default(),
        buffer_pages: 513,
        requested_buffer_pages: 512,
    };
    let errors = BTreeSet::from([ParseStatus::InvalidEvent]);
    let decode = |phase| {
        let mut writer = Writer::new();
        stats.encode(phase, &errors, &mut writer);
        match messages::TracePacket::decode_from_slice(writer.as_slice())
            .unwrap()
            .data
        {
            Some(Data::FtraceStats(stats)) => stats,
            other => panic!("{other:?}"),
        }
    };
    let start = decode(Phase::START_OF_TRACE);
    assert_eq!(start.phase, Some(Phase::START_OF_TRACE));
    assert!(start.ftrace_parse_errors.is_empty());
    assert_eq!(start.atrace_errors.as_deref(), Some("One thing.\nAnother."));

    let end = decode(Phase::END_OF_TRACE);
    assert_eq!(end.cpu_stats[0].cpu, Some(1));
    assert_eq!(end.cpu_stats[0].bytes_read, Some(678));
    assert_eq!(end.cpu_stats[0].now_ts, Some(9876.500001));
    assert_eq!(end.unknown_ftrace_events, ["a/b"]);
    assert_eq!(end.failed_ftrace_events, ["c/d"]);
    assert_eq!(
        (end.kernel_symbols_parsed, end.kernel_symbols_mem_kb),
        (Some(7), Some(8))
    );
    assert_eq!(
        (end.cpu_buffer_size_pages, end.cached_cpu_buffer_size_pages),
        (Some(513), Some(512))
    );
    assert_eq!(
        end.ftrace_parse_errors,
        [messages::FtraceParseStatus::FTRACE_STATUS_INVALID_EVENT]
    );
    assert!(!end.kprobe_stats.is_set());
}

#[test]
fn a_trouble_is_one_line_with_its_time() {
    let mut writer = Writer::new();
    encode_trouble(
        77,
        "ftrace is in use. As root, type\n    echo nop > tracer",
        &mut writer,
    );
    let packet = messages::TracePacket::decode_from_slice(writer.as_slice()).unwrap();
    assert_eq!(packet.timestamp, Some(77));
    let Some(Data::FtraceStats(stats)) = packet.data else {
        panic!("{packet:?}");
    };
    assert_eq!(stats.phase, Some(Phase::START_OF_TRACE));
    assert_eq!(
        stats.atrace_errors.as_deref(),
        Some("ftrace is in use. As root, type echo nop > tracer")
    );
}
