//! The fields of messages by number, for readers that show what they have no code for.
//!
//! `ferretto-tables` calls it for kernel events, and the command line for names.

use super::schema::{self, Encoding, Kind, MessageId, Schema};

/// The fields of one type of message.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    schema: &'static Schema,
    message: MessageId,
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub struct NamedField {
    /// Its name in the schema.
    pub name: &'static str,
    /// The kind of its values.
    pub values: Values,
}

/// The kind of a field's values.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// Signed numbers, truth values and enums: varints or fixed-width numbers, not zigzag.
    Signed,
    /// Unsigned numbers.
    Unsigned,
    /// Signed numbers in zigzag encoding.
    Zigzag,
    /// 64 bits of a floating-point number.
    Double,
    /// 32 bits of a floating-point number.
    Float,
    /// Strings and bytes.
    Bytes,
    /// Messages.
    Message(Fields),
}

impl Fields {
    /// The fields of `message` (full name, such as [`TRACE_PACKET`](super::TRACE_PACKET)). `None` if the schema does not have it.
    #[must_use]
    pub fn of(message: &str) -> Option<Fields> {
        let schema = &*schema::TRACE;
        let message = schema.find_message(message)?;
        Some(Fields { schema, message })
    }

    /// The name of the field of this number.
    #[must_use]
    pub fn name(self, number: u32) -> Option<&'static str> {
        Some(self.get(number)?.name)
    }

    /// The field of this number.
    #[must_use]
    pub fn get(self, number: u32) -> Option<NamedField> {
        let field = self.schema.message(self.message).field_numbered(number)?;
        let values = match field.kind {
            Kind::Integer(integer) if integer.encoding == Encoding::Zigzag => Values::Zigzag,
            Kind::Integer(integer) if integer.min == 0 => Values::Unsigned,
            Kind::Integer(_) | Kind::Bool | Kind::Enum(_) => Values::Signed,
            Kind::Double => Values::Double,
            Kind::Float => Values::Float,
            Kind::Text | Kind::Bytes => Values::Bytes,
            Kind::Message(message) => Values::Message(Fields { message, ..self }),
        };
        Some(NamedField {
            name: field.name,
            values,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_their_names_and_values() {
        let packet = Fields::of(super::super::TRACE_PACKET).expect("the schema has it");
        let timestamp = packet.get(8).expect("the schema has it");
        assert_eq!(timestamp.name, "timestamp");
        assert!(matches!(timestamp.values, Values::Unsigned));
        let bundle = packet.get(1).expect("the schema has it");
        let Values::Message(bundle) = bundle.values else {
            panic!("{bundle:?}");
        };
        assert_eq!(bundle.name(1), Some("cpu"));
        assert!(packet.get(7_000_000).is_none());
        assert!(Fields::of("perfetto.protos.None").is_none());
    }
}
