//! The printer against upstream's `traceconv text`: packets of every type that the schema has, with every field, at random.

use std::collections::BTreeSet;

use ferretto_proto::{descriptors, text};
use ferretto_wire::Writer;
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, Value};

use crate::dice::Dice;
use crate::traceconv::{Traceconv, compare};

/// So many packets with each of the fields.
const ROUNDS: u64 = 20;

#[test]
fn our_text_of_every_kind_of_packet_is_that_of_traceconv() {
    let Some(traceconv) = Traceconv::find() else {
        return;
    };
    let descriptor = DescriptorPool::decode(descriptors::TRACE)
        .expect("the embedded descriptors hang together")
        .get_message_by_name(text::TRACE_PACKET)
        .expect("the embedded descriptors have TracePacket");
    let printer = text::Printer::new(text::TRACE_PACKET).expect("the schema has TracePacket");
    let (mut trace, mut ours) = (Writer::new(), Vec::new());
    let mut names = BTreeSet::new();
    for (number, field) in (0..).zip(descriptor.fields()) {
        // Theirs expands what these hold, which nonsense does not survive.
        if field.name().ends_with("compressed_packets") {
            continue;
        }
        names.insert(field.name().to_owned());
        for round in 0..ROUNDS {
            let mut dice = Dice(number * ROUNDS + round);
            let mut packet = DynamicMessage::new(descriptor.clone());
            if let Kind::Message(inner) = field.kind() {
                packet.set_field(&field, Value::Message(dice.message(&inner, 1)));
            } else {
                let mut any = dice.message(&descriptor, 0);
                any.clear_field_by_name("compressed_packets");
                any.clear_field_by_name("zstd_compressed_packets");
                packet = any;
            }
            let packet = packet.encode_to_vec();
            trace.bytes_field(1, &packet);
            ours.extend(b"packet {\n");
            printer.print(&packet, 1, &mut ours).expect("memory");
            ours.extend(b"}\n");
        }
    }
    assert!(names.len() > 40, "{names:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), trace.as_slice()).expect("written");
    let ours = String::from_utf8(ours).expect("only ASCII");
    let found = compare(&traceconv.text(file.path()), &ours);
    println!("{found:?}");
    assert_eq!(found.unknown, 0, "our printer knows our own schema: {found:?}");
    assert!(found.same > 3000 && found.newer < found.same / 5, "{found:?}");
}
