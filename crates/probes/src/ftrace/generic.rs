//! Events that the trace format has no message for.
//!
//! There are two encodings, and a config chooses (`denser_generic_event_encoding`). The dense one is an ordinary message
//! under a number from 65,536 on, described by a descriptor in the same bundle. The older one spells out the name of
//! the event and of every field in every event.

use super::event::Encoder;
use super::field::ProtoType;
use super::table::{EventPlan, FieldPlan};
use ferretto_proto::write::GenericFtraceEvent;
use ferretto_proto::write::ftrace_event_bundle::GenericEventDescriptor;
use ferretto_proto::write::generic_ftrace_event::Field;
use ferretto_wire::Writer;

/// How a session wants events that the trace format has no message for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GenericEncoding {
    /// As messages that are described once per bundle.
    #[default]
    Descriptors,
    /// As `GenericFtraceEvent`, with all names in each event.
    Names,
}

/// Encodes a `GenericEventDescriptor`.
pub(super) fn describe(group: &str, name: &str, number: u32, fields: &[FieldPlan]) -> Vec<u8> {
    /// Of `google.protobuf.DescriptorProto`.
    const NAME: u32 = 1;
    const FIELD: u32 = 2;
    /// Of `google.protobuf.FieldDescriptorProto`.
    const FIELD_NAME: u32 = 1;
    const FIELD_NUMBER: u32 = 3;
    const FIELD_TYPE: u32 = 5;

    let mut out = Writer::new();
    out.varint_field(GenericEventDescriptor::FIELD_ID, number.into());
    out.bytes_field(GenericEventDescriptor::GROUP_NAME, group.as_bytes());
    out.nested(GenericEventDescriptor::EVENT_DESCRIPTOR, |message| {
        message.bytes_field(NAME, name.as_bytes());
        for field in fields {
            message.nested(FIELD, |out| {
                out.bytes_field(FIELD_NAME, field.name.as_bytes());
                out.varint_field(FIELD_NUMBER, field.number.into());
                out.varint_field(FIELD_TYPE, descriptor_type(field.proto_type));
            });
        }
    });
    out.as_slice().to_vec()
}

/// The number of a type in `FieldDescriptorProto.Type`.
fn descriptor_type(proto_type: ProtoType) -> u64 {
    match proto_type {
        ProtoType::Int64 => 3,
        ProtoType::Uint64 => 4,
        ProtoType::Int32 => 5,
        ProtoType::String => 9,
        ProtoType::Bytes => 12,
        ProtoType::Uint32 => 13,
    }
}

/// Appends the fields of a `GenericFtraceEvent`.
///
/// It has no type for bytes. Upstream gives up on the rest of the page when it meets such a field; here the field's name
/// is written without a value and the recording goes on.
pub(super) fn write_with_names(
    encoder: &mut Encoder<'_>,
    out: &mut Writer,
    plan: &EventPlan,
    payload: &[u8],
) {
    out.bytes_field(GenericFtraceEvent::EVENT_NAME, plan.name.as_bytes());
    for field in &plan.fields {
        out.nested(GenericFtraceEvent::FIELD, |out| {
            out.bytes_field(Field::NAME, field.name.as_bytes());
            let number = match field.proto_type {
                ProtoType::String => Field::STR_VALUE,
                ProtoType::Int32 | ProtoType::Int64 => Field::INT_VALUE,
                ProtoType::Uint32 | ProtoType::Uint64 => Field::UINT_VALUE,
                ProtoType::Bytes => return,
            };
            encoder.write_field(out, field, number, payload);
        });
    }
}
