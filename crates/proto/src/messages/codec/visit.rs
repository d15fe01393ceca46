//! The receivers of generated messages' fields: the wire, or a formatter. Fields that are not set are skipped.

use std::fmt;

use ferretto_wire::Writer;

use super::message::{Enums, Fields, Messages, UnknownFields};
use super::scalar::Scalar;

/// The destination of a message's fields.
#[derive(Debug)]
pub struct Visitor<'v, 'a, 'f>(Target<'v, 'a, 'f>);

enum Target<'v, 'a, 'f> {
    Wire(&'v mut Writer),
    Debug {
        to: &'v mut fmt::DebugStruct<'a, 'f>,
        names: &'static [(u32, &'static str)],
    },
}

impl fmt::Debug for Target<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Wire(_) => "Wire",
            Target::Debug { .. } => "Debug",
        })
    }
}

impl<'v> Visitor<'v, '_, '_> {
    pub(super) fn wire(writer: &'v mut Writer) -> Self {
        Visitor(Target::Wire(writer))
    }

    /// Shows a field that is set; does nothing unless this formats.
    #[cold]
    fn show(&mut self, number: u32, value: &dyn fmt::Debug) {
        if let Target::Debug { to, names } = &mut self.0 {
            let named = names.iter().find(|(its_number, _)| *its_number == number);
            match named {
                Some((_, name)) => to.field(name, value),
                None => to.field(&format!("field {number}"), value),
            };
        }
    }
}

/// A message as its fields show it.
struct Shown<'m>(&'m dyn Fields);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(self.0, f)
    }
}

/// Formats the fields that are set.
#[inline(never)]
pub(crate) fn debug(message: &dyn Fields, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (name, names) = message.names();
    let mut to = f.debug_struct(name);
    message.visit(&mut Visitor(Target::Debug { to: &mut to, names }));
    to.finish()
}

/// A scalar that is set.
#[inline]
pub(crate) fn value<S: Scalar>(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: S::Value) {
    match &mut visitor.0 {
        Target::Wire(writer) => S::put(writer, number, value),
        Target::Debug { .. } => visitor.show(number, &value),
    }
}

/// A scalar.
#[inline(never)]
pub(crate) fn scalar<S: Scalar>(visitor: &mut Visitor<'_, '_, '_>, number: u32, field: &Option<S::Value>) {
    if let Some(found) = field {
        value::<S>(visitor, number, *found);
    }
}

/// Scalars, each with its tag.
#[inline(never)]
pub(crate) fn scalars<S: Scalar>(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &[S::Value]) {
    for found in values {
        value::<S>(visitor, number, *found);
    }
}

/// Scalars, packed.
#[inline(never)]
pub(crate) fn packed<S: Scalar>(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &[S::Value]) {
    if values.is_empty() {
        return;
    }
    match &mut visitor.0 {
        Target::Wire(writer) => writer.nested(number, |writer| {
            for value in values {
                S::put_packed(writer, *value);
            }
        }),
        Target::Debug { .. } => visitor.show(number, &values),
    }
}

/// Values of an enum, each with its tag.
#[inline(never)]
pub(crate) fn enums(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &dyn Enums) {
    let mut at = 0;
    while let Some((value, name)) = values.get(at) {
        match &mut visitor.0 {
            Target::Wire(writer) => writer.varint_field(number, i64::from(value) as u64),
            Target::Debug { .. } if name.is_empty() => visitor.show(number, &value),
            Target::Debug { .. } => visitor.show(number, &format_args!("{name}")),
        }
        at += 1;
    }
}

/// A text that is set.
#[inline]
pub(crate) fn text(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: &str) {
    match &mut visitor.0 {
        Target::Wire(writer) => writer.bytes_field(number, value.as_bytes()),
        Target::Debug { .. } => visitor.show(number, &value),
    }
}

/// Bytes that are there.
#[inline]
pub(crate) fn contents(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: &[u8]) {
    match &mut visitor.0 {
        Target::Wire(writer) => writer.bytes_field(number, value),
        Target::Debug { .. } => visitor.show(number, &value),
    }
}

/// A text.
#[inline(never)]
pub(crate) fn string(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: &Option<String>) {
    if let Some(value) = value {
        text(visitor, number, value);
    }
}

/// Texts.
#[inline(never)]
pub(crate) fn strings(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &[String]) {
    for value in values {
        text(visitor, number, value);
    }
}

/// Bytes.
#[inline(never)]
pub(crate) fn bytes(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: &Option<Vec<u8>>) {
    if let Some(value) = value {
        contents(visitor, number, value);
    }
}

/// Several byte strings.
#[inline(never)]
pub(crate) fn bytes_list(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &[Vec<u8>]) {
    for value in values {
        contents(visitor, number, value);
    }
}

/// A message that is set.
#[inline(never)]
pub(crate) fn nested(visitor: &mut Visitor<'_, '_, '_>, number: u32, value: &dyn Fields) {
    match &mut visitor.0 {
        Target::Wire(writer) => writer.nested(number, |writer| value.visit(&mut Visitor::wire(writer))),
        Target::Debug { .. } => visitor.show(number, &Shown(value)),
    }
}

/// Messages.
#[inline(never)]
pub(crate) fn messages(visitor: &mut Visitor<'_, '_, '_>, number: u32, values: &dyn Messages) {
    let mut at = 0;
    while let Some(value) = values.get(at) {
        nested(visitor, number, value);
        at += 1;
    }
}

/// The fields that the schema does not know.
#[inline(never)]
pub(crate) fn unknown(visitor: &mut Visitor<'_, '_, '_>, fields: &UnknownFields) {
    match &mut visitor.0 {
        Target::Wire(writer) => writer.raw(fields.as_bytes()),
        Target::Debug { .. } if fields.is_empty() => {}
        Target::Debug { to, .. } => {
            to.field("unknown_fields", fields);
        }
    }
}
