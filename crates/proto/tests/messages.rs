//! The promise of the generated messages: nothing that a peer sent is lost by decoding and encoding again.

use ferretto_proto::messages::{DataSourceConfig, Message, TraceConfig, trace_config};
use ferretto_wire::push_varint;

/// `DataSourceConfig { name: "x", android_log_config (107) { 0x08 0x01 }, field 70000: varint 5 }`: one field whose
/// message has no Rust struct, one that no schema knows.
const FOREIGN: &[u8] = &[
    0x0a, 0x01, b'x', // name
    0xda, 0x06, 0x02, 0x08, 0x01, // android_log_config
    0x80, 0x97, 0x22, 0x05, // 70000
];

#[test]
fn fields_without_a_rust_struct_survive_byte_for_byte() {
    let config = DataSourceConfig::decode_from_slice(FOREIGN).unwrap();
    assert_eq!(config.name.as_deref(), Some("x"));
    assert_eq!(config.encode_to_vec(), FOREIGN);
}

#[test]
fn enum_values_of_a_newer_schema_survive() {
    // BufferConfig { size_kb: 1, fill_policy: 77 }
    let bytes = [0x08, 0x01, 0x20, 77];
    let buffer = trace_config::BufferConfig::decode_from_slice(&bytes).unwrap();
    assert_eq!(buffer.fill_policy, None);
    assert_eq!(buffer.encode_to_vec(), bytes);
}

#[test]
fn absent_and_zero_differ() {
    let zero = TraceConfig {
        duration_ms: Some(0),
        ..Default::default()
    };
    assert_eq!(zero.encode_to_vec(), [0x18, 0x00]);
    assert_eq!(TraceConfig::default().encode_to_vec(), []);
}

#[test]
fn hostile_nesting_is_refused_without_a_stack_overflow() {
    // DebugAnnotation.array_values (12) nested without end.
    let mut bytes = Vec::new();
    for _ in 0..10_000 {
        let mut outer = vec![0x62];
        push_varint(&mut outer, bytes.len() as u64);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    assert!(ferretto_proto::messages::DebugAnnotation::decode_from_slice(&bytes).is_err());
}

#[test]
fn bits_of_plain_numbers_have_names() {
    use ferretto_proto::messages::{Enumeration, trace_packet};
    assert_eq!(
        trace_packet::SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE.to_i32(),
        2
    );
    assert_eq!(trace_packet::DataLossReason::DATA_LOSS_SMB_FULL.to_i32(), 256);
}

#[test]
fn debugging_shows_the_fields_that_are_set_under_their_names() {
    let mut config = TraceConfig {
        duration_ms: Some(5),
        ..Default::default()
    };
    config.buffers.push(trace_config::BufferConfig {
        fill_policy: Some(trace_config::buffer_config::FillPolicy::RING_BUFFER),
        ..Default::default()
    });
    config.unknown_fields.push_varint(5000, 7);
    let shown = "TraceConfig { buffers: BufferConfig { fill_policy: RING_BUFFER }, duration_ms: 5, \
                 unknown_fields: {5000: Varint(7)} }";
    assert_eq!(format!("{config:?}"), shown);
}
