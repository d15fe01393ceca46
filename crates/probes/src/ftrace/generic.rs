//! Events that the trace format has no message for.
//!
//! There are two encodings, and a config chooses (`denser_generic_event_encoding`). The dense one is an ordinary message
//! under a number from 65,536 on, described by a descriptor in the same bundle. The older one spells out the name of
//! the event and of every field in every event.

use super::event::Encoder;
use super::field::ProtoType;
use super::table::{EventPlan, FieldPlan};
use ferretto_proto::messages::field_descriptor_proto::Type;
use ferretto_proto::write::ftrace_event_bundle::GenericEventDescriptor;
use ferretto_proto::write::generic_ftrace_event::Field;
use ferretto_proto::write::{DescriptorProto, GenericFtraceEvent};
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
    let mut out = Writer::new();
    out.varint_field(GenericEventDescriptor::FIELD_ID, number.into());
    out.bytes_field(GenericEventDescriptor::GROUP_NAME, group.as_bytes());
    out.nested(GenericEventDescriptor::EVENT_DESCRIPTOR, |message| {
        let mut message = DescriptorProto::new(message);
        message.name(name);
        for field in fields {
            message.field(|out| {
                out.name(&field.name)
                    .number(field.number as i32)
                    .r#type(descriptor_type(field.proto_type));
            });
        }
    });
    out.as_slice().to_vec()
}

fn descriptor_type(proto_type: ProtoType) -> Type {
    match proto_type {
        ProtoType::Int64 => Type::TYPE_INT64,
        ProtoType::Uint64 => Type::TYPE_UINT64,
        ProtoType::Int32 => Type::TYPE_INT32,
        ProtoType::String => Type::TYPE_STRING,
        ProtoType::Bytes => Type::TYPE_BYTES,
        ProtoType::Uint32 => Type::TYPE_UINT32,
    }
}

/// Appends the fields of a `GenericFtraceEvent`.
///
/// The message has no type for bytes. Upstream drops the rest of the page when it meets such a field. This function
/// writes the field's name without a value, and the recording goes on.
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
