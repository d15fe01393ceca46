//! The generated message of the same name decodes the bytes that a typed writer appends.

use ferretto_proto::messages::{self, Message, trace_packet};
use ferretto_proto::write::{FtraceEventBundle, TracePacket};
use ferretto_wire::Writer;

fn packet(fill: impl FnOnce(&mut TracePacket<'_>)) -> messages::TracePacket {
    let mut writer = Writer::new();
    fill(&mut TracePacket::new(&mut writer));
    messages::TracePacket::decode_from_slice(writer.as_slice()).expect("a well-formed message")
}

fn bundle(fill: impl FnOnce(&mut FtraceEventBundle<'_>)) -> messages::FtraceEventBundle {
    let mut writer = Writer::new();
    fill(&mut FtraceEventBundle::new(&mut writer));
    messages::FtraceEventBundle::decode_from_slice(writer.as_slice()).expect("a well-formed message")
}

#[test]
fn scalars_keep_sign_and_width() {
    let written = packet(|packet| {
        packet
            .trusted_uid(-1)
            .timestamp(u64::MAX)
            .sequence_flags(u32::MAX)
            .first_packet_on_sequence(true);
    });
    assert_eq!(
        written.optional_trusted_uid,
        Some(trace_packet::OptionalTrustedUid::TrustedUid(-1))
    );
    assert_eq!(written.timestamp, Some(u64::MAX));
    assert_eq!(written.sequence_flags, Some(u32::MAX));
    assert_eq!(written.first_packet_on_sequence, Some(true));
}

#[test]
fn floating_point_fixed_and_enum_fields() {
    let written = packet(|packet| {
        packet.track_event(|event| {
            event
                .r#type(messages::track_event::Type::TYPE_COUNTER)
                .double_counter_value(-0.5)
                .flow_ids(1)
                .flow_ids(u64::MAX)
                .debug_annotations(|note| {
                    note.name("note").int_value(i64::MIN);
                });
        });
    });
    let Some(trace_packet::Data::TrackEvent(event)) = written.data else {
        panic!("{:?}", written.data)
    };
    assert_eq!(event.r#type, Some(messages::track_event::Type::TYPE_COUNTER));
    assert_eq!(
        event.counter_value_field,
        Some(messages::track_event::CounterValueField::DoubleCounterValue(-0.5))
    );
    assert_eq!(event.flow_ids, [1, u64::MAX]);
    assert_eq!(
        event.debug_annotations[0].value,
        Some(messages::debug_annotation::Value::IntValue(i64::MIN))
    );
}

#[test]
fn packed_fields_hold_every_value_in_order() {
    let times: Vec<u64> = (0..200).map(|step| step * 1_000_003).collect();
    let written = bundle(|bundle| {
        bundle.cpu(1).compact_sched(|sched| {
            sched
                .switch_timestamp(times.iter().copied())
                .switch_prev_state([0, -1, i64::MAX])
                .switch_next_pid([7, -1])
                .intern_table("swapper/0")
                .intern_table("kworker");
        });
    });
    assert_eq!(written.compact_sched.switch_timestamp, times);
    assert_eq!(written.compact_sched.switch_prev_state, [0, -1, i64::MAX]);
    assert_eq!(written.compact_sched.switch_next_pid, [7, -1]);
    assert_eq!(written.compact_sched.intern_table, ["swapper/0", "kworker"]);
}

#[test]
fn names_that_are_not_utf8_go_through_as_they_are() {
    let mut writer = Writer::new();
    TracePacket::new(&mut writer).process_tree(|tree| {
        tree.processes(|process| {
            process.cmdline(b"\xff\xfe");
        });
    });
    assert!(writer.as_slice().ends_with(b"\x1a\x02\xff\xfe"));
}

#[test]
fn fields_known_only_at_run_time_go_through_the_untyped_writer() {
    let written = bundle(|bundle| {
        bundle.event(|event| {
            event
                .timestamp(9)
                .pid(4)
                .writer()
                .nested(70_000, |fields| fields.varint_field(1, 3));
        });
    });
    let event = &written.event[0];
    assert_eq!((event.timestamp, event.pid), (Some(9), Some(4)));
    assert!(event.event.is_none());
    assert_eq!(event.encode_to_vec(), b"\x08\x09\x10\x04\x82\x97\x22\x02\x08\x03");
}

#[test]
fn constants_name_fields_without_a_setter_too() {
    let config = messages::TraceConfig {
        duration_ms: Some(3),
        ..Default::default()
    };
    let written = packet(|packet| {
        packet
            .writer()
            .bytes_field(TracePacket::TRACE_CONFIG, &config.encode_to_vec());
    });
    assert_eq!(
        written.data,
        Some(trace_packet::Data::TraceConfig(Box::new(config)))
    );
}
