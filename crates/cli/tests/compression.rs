//! Compressed traces with real processes: deflate and zstd, into files and over IPC, with our and upstream's `perfetto` on our service, and ours on
//! upstream's. Upstream's trace processor reads the expanded packets.

use std::path::Path;
use std::process::Command;

use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{Program, Programs, Side, System};
use ferretto_proto::text;
use ferretto_proto::write::TracePacket;
use ferretto_service::compression::expand;
use ferretto_wire::Reader;

const RECORDING: &str = r#"
buffers { size_kb: 4096 }
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true }
} }
data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 10 vmstat_period_ms: 10 } } }
duration_ms: 1500
"#;

const INTO_FILE: &str = "write_into_file: true file_write_period_ms: 100";

const KINDS: [(&str, u32); 4] = [
    (
        "compression_type: COMPRESSION_TYPE_DEFLATE",
        TracePacket::COMPRESSED_PACKETS,
    ),
    ("compression { deflate {} }", TracePacket::COMPRESSED_PACKETS),
    (
        "compression { zstd { level: 19 } }",
        TracePacket::ZSTD_COMPRESSED_PACKETS,
    ),
    (
        "compression { deflate {} zstd {} } compression_type: COMPRESSION_TYPE_DEFLATE",
        TracePacket::ZSTD_COMPRESSED_PACKETS,
    ),
];

/// Records with this config to the end; returns the trace.
fn record(system: &System<'_>, perfetto: Side, config: &str) -> Vec<u8> {
    // The config is encoded here, because upstream's older program does not know all names.
    let config = text::encode(config, "perfetto.protos.TraceConfig").unwrap();
    let (file, trace) = (system.path("config"), system.path("trace"));
    std::fs::write(&file, config).unwrap();
    let mut command: Command = system.command(&system.program(perfetto, Program::Perfetto), "perfetto.log");
    command.arg("-c").arg(file).arg("-o").arg(&trace);
    let status = command.status().unwrap();
    assert!(
        status.success(),
        "{perfetto}: {status}\n{}",
        system.log("perfetto.log")
    );
    std::fs::read(trace).unwrap()
}

fn packets(trace: &[u8]) -> Vec<&[u8]> {
    Reader::new(trace)
        .map(|field| match field.unwrap().value {
            ferretto_wire::Value::Bytes(packet) => packet,
            other => panic!("{other:?} is no packet"),
        })
        .collect()
}

/// Returns the expanded trace, and asserts that each packet was compressed in this field.
fn expanded(trace: &[u8], field: u32) -> Vec<u8> {
    let mut plain = Vec::new();
    for packet in packets(trace) {
        let fields: Vec<u32> = Reader::new(packet).map(|field| field.unwrap().number).collect();
        assert_eq!(fields, [field]);
        plain.extend(expand(packet, 1 << 30).unwrap().unwrap());
    }
    plain
}

fn has(packets: &[&[u8]], number: u32) -> bool {
    let of = |packet: &&[u8]| Reader::new(packet).any(|field| field.unwrap().number == number);
    packets.iter().any(of)
}

/// Asserts that a trace of [`RECORDING`] has all its kinds of packets.
fn assert_complete(trace: &[u8], what: &str) {
    /// Clock snapshot, process tree, system statistics, the config, statistics of the trace.
    const FIELDS: [u32; 5] = [6, 2, 7, 33, 35];
    let packets = packets(trace);
    for field in FIELDS {
        assert!(has(&packets, field), "{what}: no packet with field {field}");
    }
}

fn assert_read_by_trace_processor(trace: &Path) {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let processes = "select count(*) from process where pid > 0";
    let counters = "select count(*) from counter";
    let [losses, processes, counters]: [Rows; 3] = processor.query(trace, [LOSSES, processes, counters]);
    assert!(losses.is_empty(), "{losses:?}");
    let ([processes], [counters]) = (numbers(&processes), numbers(&counters));
    assert!(processes > 1 && counters > 100, "{processes} {counters}");
}

/// Records with our service and each kind of compression, into a file and over IPC.
fn all_kinds(programs: &Programs, perfetto: Side) {
    let system = System::with_daemons(programs, Side::Ours, Side::Ours);
    let mut deflated_trace = Vec::new();
    let plain_trace = system.path("plain");
    for (kind, field) in KINDS {
        for sink in [INTO_FILE, ""] {
            let trace = record(&system, perfetto, &format!("{RECORDING}\n{sink}\n{kind}"));
            let plain = expanded(&trace, field);
            let what = format!("{perfetto}: {kind} {sink}");
            assert_complete(&plain, &what);
            assert!(
                plain.len() > 3 * trace.len(),
                "{what}: {} of {} bytes",
                trace.len(),
                plain.len()
            );
            if field == TracePacket::COMPRESSED_PACKETS {
                deflated_trace = trace;
            }
            std::fs::write(&plain_trace, plain).unwrap();
        }
    }
    // The processor reads the last deflated trace, and the expanded content of the last zstd trace, because not every version can read zstd.
    let deflated = system.path("deflated");
    std::fs::write(&deflated, deflated_trace).unwrap();
    assert_read_by_trace_processor(&deflated);
    assert_read_by_trace_processor(&plain_trace);
}

#[test]
fn our_service_compresses_for_our_command_line() {
    all_kinds(&Programs::ours(), Side::Ours);
}

#[test]
fn our_service_compresses_for_upstreams_command_line() {
    if let Some(programs) = Programs::of_both() {
        all_kinds(&programs, Side::Upstream);
    }
}

#[test]
fn our_command_line_reads_data_that_upstreams_service_compressed() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let system = System::with_daemons(&programs, Side::Upstream, Side::Ours);
    let kind = "compression_type: COMPRESSION_TYPE_DEFLATE";
    for sink in [INTO_FILE, ""] {
        let trace = record(&system, Side::Ours, &format!("{RECORDING}\n{sink}\n{kind}"));
        let plain = expanded(&trace, TracePacket::COMPRESSED_PACKETS);
        assert_complete(&plain, sink);
        let count = packets(&plain).len();
        let said = system.log("perfetto.log").replace(',', "");
        assert!(
            said.contains(&format!("{count} packets")),
            "{count} packets are in it, and it says: {said}"
        );
    }
}

#[test]
fn a_compressed_file_stops_below_its_limit_and_is_a_trace() {
    let programs = Programs::ours();
    let system = System::with_daemons(&programs, Side::Ours, Side::Ours);
    for (kind, field) in [KINDS[1], KINDS[2]] {
        let limit = 3000;
        // With packets of a few hundred bytes each, the file comes close to its limit.
        let small_packets = r#"
            buffers { size_kb: 4096 }
            data_sources { config { name: "linux.sys_stats" sys_stats_config { meminfo_period_ms: 10 } } }
        "#;
        let config = format!("{small_packets} max_file_size_bytes: {limit} {INTO_FILE} {kind}");
        let trace = record(&system, Side::Ours, &config);
        assert!(trace.len() < limit, "{kind}: {} bytes", trace.len());
        assert!(trace.len() > limit * 3 / 4, "{kind}: {} bytes", trace.len());
        let plain = expanded(&trace, field);
        assert!(has(&packets(&plain), 7), "{kind}: no system statistics");
    }
}
