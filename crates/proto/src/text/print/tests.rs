use ferretto_wire::Writer;

use super::*;
use crate::text::TRACE_PACKET;

fn printed(fill: impl FnOnce(&mut Writer)) -> String {
    let mut packet = Writer::new();
    fill(&mut packet);
    let mut out = Vec::new();
    let printer = Printer::new(TRACE_PACKET).unwrap();
    printer.print(packet.as_slice(), 0, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Prints a double in a debug annotation of a track event.
fn printed_double(value: f64) -> String {
    let text = printed(|packet| {
        packet.nested(11, |event| {
            event.nested(4, |annotation| annotation.fixed64_field(5, value.to_bits()));
        });
    });
    let line = text.lines().nth(2).unwrap().trim();
    line.strip_prefix("double_value: ").unwrap().to_owned()
}

#[test]
fn fields_keep_the_order_of_the_bytes_and_messages_are_indented() {
    let text = printed(|packet| {
        packet.varint_field(10, 7);
        packet.nested(6, |clocks| {
            clocks.varint_field(2, 6);
            clocks.nested(1, |clock| clock.varint_field(1, 6));
            clocks.nested(1, |_| {});
        });
        packet.varint_field(8, u64::MAX);
    });
    assert_eq!(
        text,
        "trusted_packet_sequence_id: 7\nclock_snapshot {\n  primary_trace_clock: BUILTIN_CLOCK_BOOTTIME\n  clocks {\n    \
         clock_id: 6\n  }\n  clocks {\n  }\n}\ntimestamp: 18446744073709551615\n"
    );
}

#[test]
fn integers_have_the_width_and_the_sign_of_their_field() {
    let text = printed(|packet| {
        packet.varint_field(3, u64::MAX);
        packet.varint_field(10, u64::MAX);
        packet.varint_field(41, 2);
        packet.nested(89, |uuid| uuid.varint_field(1, u64::MAX));
        packet.nested(11, |event| event.fixed64_field(47, u64::MAX));
    });
    assert_eq!(
        text,
        "trusted_uid: -1\ntrusted_packet_sequence_id: 4294967295\nincremental_state_cleared: true\ntrace_uuid {\n  msb: -1\n}\n\
         track_event {\n  flow_ids: 18446744073709551615\n}\n"
    );
}

#[test]
fn what_the_schema_does_not_know_is_printed_by_number() {
    let text = printed(|packet| {
        packet.varint_field(1999, u64::MAX);
        packet.fixed32_field(1998, 7);
        packet.fixed64_field(1997, 8);
        packet.bytes_field(1996, b"hello");
        packet.bytes_field(8, &[0x80]);
        packet.fixed64_field(8, 1);
        packet.varint_field(11, 5);
        packet.nested(6, |clocks| clocks.varint_field(2, 77));
    });
    assert_eq!(
        text,
        "1999: -1\n1998: 0x00000007\n1997: 0x0000000000000008\n1996: \"hello\"\n# Packed decoding failure for field timestamp\n\
         8: 0x0000000000000001\n11: 5\nclock_snapshot {\n  primary_trace_clock: 77\n}\n"
    );
}

#[test]
fn every_byte_of_a_string_is_printable_ascii() {
    let all: Vec<u8> = (0..=255).collect();
    let text = printed(|packet| packet.bytes_field(36, &all));
    let value = text.strip_prefix(
        "synchronization_marker: \"\\000\\001\\002\\003\\004\\005\\006\\a\\b\\t\\n\\v\\f\\r\\016",
    );
    let value = value.expect(&text);
    assert!(
        value.contains(" !\\\"#$%&\\'()*+") && value.contains("[\\\\]") && value.contains("|}~\\177\\200")
    );
    assert!(value.ends_with("\\377\"\n"));
    assert!(
        text.trim_end().bytes().all(|byte| matches!(byte, b' '..=b'~')),
        "{text}"
    );
}

#[test]
fn packed_values_stand_on_lines_of_their_own() {
    let text = printed(|packet| {
        packet.nested(35, |stats| {
            stats.nested(18, |writer| {
                writer.packed_field(2, [1, 300]);
                writer.packed_field(3, [u64::MAX]);
                writer.varint_field(2, 9);
                writer.bytes_field(2, &[5, 0x80]);
            });
        });
    });
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(
        lines[2..lines.len() - 2],
        [
            "chunk_payload_histogram_counts: 1",
            "chunk_payload_histogram_counts: 300",
            "chunk_payload_histogram_sum: -1",
            "chunk_payload_histogram_counts: 9",
            "chunk_payload_histogram_counts: 5",
            "# Packed decoding failure for field chunk_payload_histogram_counts",
        ]
    );
}

#[test]
fn doubles_have_six_decimals_unless_these_lose_something() {
    let cases = [
        (0.1, "0.100000"),
        (-0.0, "-0.000000"),
        (1.0, "1.000000"),
        (123_456_789.125, "123456789.125000"),
        (1.0 / 3.0, "0.3333333333333333"),
        (1.5e-7, "1.5e-7"),
        (f64::MAX, &format!("{:.6}", f64::MAX)),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ];
    for (value, text) in cases {
        assert_eq!(printed_double(value), text);
    }
}

#[test]
fn bytes_that_are_no_fields_end_their_message_only() {
    let text = printed(|packet| {
        packet.nested(6, |clocks| {
            clocks.varint_field(2, 6);
            clocks.raw(b"\x0a\x20abc");
        });
        packet.varint_field(8, 1);
        // This is a group.
        packet.raw(b"\x6b\x6c");
    });
    assert_eq!(
        text,
        "clock_snapshot {\n  primary_trace_clock: BUILTIN_CLOCK_BOOTTIME\n  # Extra bytes: \"\\n abc\"\n}\ntimestamp: 1\n\
         # Extra bytes: \"kl\"\n"
    );
}

#[test]
fn messages_are_told_apart_to_a_depth_and_are_strings_below() {
    // The nested annotation is field 11 of an annotation.
    let mut annotation = vec![0x18, 5];
    for _ in 0..1000 {
        let mut outer = Writer::new();
        outer.bytes_field(11, &annotation);
        annotation = outer.into_vec();
    }
    let text = printed(|packet| packet.nested(11, |event| event.bytes_field(4, &annotation)));
    let deepest = text
        .lines()
        .map(|line| line.len() - line.trim_start().len())
        .max();
    assert_eq!(deepest, Some(2 * MAX_DEPTH as usize));
    assert_eq!(text.matches(": \"").count(), 1);
}
