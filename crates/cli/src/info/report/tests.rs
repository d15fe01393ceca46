use ferretto_proto::messages::TraceConfig;
use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::*;
use ferretto_trace_file::{End, Piece};

fn reported(summary: &Summary, findings: &[Finding], detail: Detail) -> String {
    let trace = Trace {
        name: "t.pftrace",
        compression: None,
        file_size: Some(2048),
        summary,
        end: End {
            size: 2048,
            cut: None,
        },
    };
    report(&trace, findings, detail)
}

fn observe(summary: &mut Summary, fill: impl FnOnce(&mut write::TracePacket<'_>)) {
    let mut packet = Writer::new();
    fill(&mut write::TracePacket::new(&mut packet));
    summary.piece(Piece::Packet(packet.as_slice()));
}

fn recorded() -> Summary {
    let mut summary = Summary::default();
    observe(&mut summary, |packet| {
        packet.trusted_packet_sequence_id(1).clock_snapshot(|snapshot| {
            for (id, time) in [(6, 1_000_000_000), (1, 1_795_158_735_000_000_000)] {
                snapshot.clocks(|clock| {
                    clock.clock_id(id).timestamp(time);
                });
            }
        });
    });
    observe(&mut summary, |packet| {
        packet.trusted_packet_sequence_id(1).system_info(|system| {
            system
                .tracing_service_version("v1")
                .timezone_off_mins(-90)
                .num_cpus(2);
            system.utsname(|name| {
                name.sysname("Linux").release("6.1").machine("x86_64");
            });
        });
    });
    for time in [1_500_000_000, 1_540_000_000] {
        observe(&mut summary, |packet| {
            packet
                .timestamp(time)
                .track_event(|_| {})
                .trusted_packet_sequence_id(2)
                .trusted_pid(77);
        });
    }
    summary.config = Some(TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(4096),
            name: Some("ma\x1bin".to_owned()),
            ..Default::default()
        }],
        ..Default::default()
    });
    summary
}

#[test]
fn a_small_trace_looks_like_this() {
    let expected = "\
trace     t.pftrace
size      2.0 KiB, 4 packets
recorded  2026-11-20 05:42:15 -01:30, for 40.0 ms
data      40.0 ms, from 1.500 to 1.540 s since boot
machine   Linux 6.1 x86_64, 2 CPUs
service   v1

BUFFER  NAME     SIZE  POLICY       WRITTEN  OVERWRITTEN
     0  main  4.0 MiB  RING_BUFFER        -            -

PACKETS OF      COUNT  BYTES  SHARE
system_info         1   44 B  44.9%
clock_snapshot      1   28 B  28.6%
track_event         2   26 B  26.5%

SEQUENCE  PID  PROCESS        PRODUCER  BUFFER  PACKETS  BYTES  GAPS  MOSTLY
       1    -  (the service)         -       -        2   72 B     0  system_info
       2   77  -                     -       -        2   26 B     0  track_event

NOTHING LOST, as far as the trace tells
";
    assert_eq!(reported(&recorded(), &[], Detail::Screen), expected);
}

#[test]
fn losses_come_before_notes_with_their_cause_and_advice() {
    let finding = |severity, advice: Option<&str>| Finding {
        severity,
        cause: "cause",
        what: "3 chunks\x1b[31m".to_owned(),
        why: "overwritten".to_owned(),
        advice: advice.map(str::to_owned),
    };
    let findings = [
        finding(Severity::Loss, Some("raise it")),
        finding(Severity::Note, None),
    ];
    let text = reported(&Summary::default(), &findings, Detail::Screen);
    assert!(
        text.ends_with(
            "\nLOST\n  3 chunks[31m: overwritten\n    -> raise it\n\nNOTE\n  3 chunks[31m: overwritten\n"
        ),
        "{text}"
    );
}

#[test]
fn long_tables_are_cut_unless_all_is_asked_for() {
    let mut summary = Summary::default();
    for sequence in 0..20 {
        observe(&mut summary, |packet| {
            packet.trusted_packet_sequence_id(sequence);
        });
    }
    let lines = |detail| reported(&summary, &[], detail).lines().count();
    assert_eq!(lines(Detail::All) - lines(Detail::Screen), 20 - ROWS - 1);
    assert!(reported(&summary, &[], Detail::Screen).contains("and 14 more (--all)"));
}

#[test]
fn uuids_are_written_as_usual() {
    assert_eq!(
        uuid((0x0123_4567_89ab_cdef, 0x0011_2233_4455_6677)),
        "01234567-89ab-cdef-0011-223344556677"
    );
}
