//! The events that the trace format knows by name, with the protobuf field that each kernel field becomes.
//!
//! The translation table, and tools that list events, ask [`find`] for an event. `events.txt` has all of them, generated from the schema: each
//! line has an event's group, its field in `FtraceEvent`, and the fields of its message. An event without a line becomes a generic event.
//!
//! Kernels differ: a field listed here may be missing in one, or have a type that does not fit. Then the field is left out.

use super::field::ProtoType;

#[cfg(test)]
mod tests;

/// One line for each event, sorted by group and name: `group/name=number field:type=number …`.
const EVENTS: &str = include_str!("events.txt");

/// Events whose name in the schema is neither the kernel's name nor the kernel's name with its group in front.
const RENAMED: &[(&str, &str, &str)] = &[("systrace", "0", "zero")];

/// Groups that were part of another group when the schema got their events: the present name and the schema's.
const MOVED: &[(&str, &str)] = &[("smbus", "i2c")];

/// Integers that are addresses of functions, by group, event and field. The kernel declares other such fields as pointers.
const ADDRESSES: &[(&str, &str, &str)] = &[
    ("ftrace", "funcgraph_entry", "func"),
    ("ftrace", "funcgraph_exit", "func"),
];

/// Fields that upstream's probes do not write either.
const LEFT_OUT: &[(&str, &str, &str)] = &[("ftrace", "print", "ip")];

/// An event of the kernel that has a message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedEvent {
    /// The group in the schema. The kernel's may be another one (`smbus` for `i2c`).
    pub group: &'static str,
    /// The name of the message's field in `FtraceEvent`. The kernel's name may lack the group in front.
    pub name: &'static str,
    /// Number of the message's field in `FtraceEvent`.
    pub number: u32,
    fields: &'static str,
}

/// A field of a [`TypedEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedField {
    /// The name that the kernel's field and the message's share.
    pub name: &'static str,
    /// Number of the field in the message.
    pub number: u32,
    /// Type of the field in the message.
    pub proto_type: ProtoType,
    /// How to understand the kernel's declaration.
    pub declared: Declared,
}

/// Whether the kernel's declaration describes the field correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The declaration is correct.
    Truly,
    /// The declaration says integer, and the value is the address of a function.
    AsInteger,
}

impl TypedEvent {
    fn parse(line: &'static str) -> Option<TypedEvent> {
        let (event, fields) = line.split_once(' ').unwrap_or((line, ""));
        let (event, number) = event.split_once('=')?;
        let (group, name) = event.split_once('/')?;
        Some(TypedEvent {
            group,
            name,
            number: number.parse().ok()?,
            fields,
        })
    }

    /// The fields to be written, in this order.
    pub fn fields(&self) -> impl Iterator<Item = TypedField> {
        let (group, event) = (self.group, self.name);
        let fields = self.fields.split_ascii_whitespace().filter_map(TypedField::parse);
        fields
            .filter(move |field| !LEFT_OUT.contains(&(group, event, field.name)))
            .map(
                move |field| match ADDRESSES.contains(&(group, event, field.name)) {
                    true => TypedField {
                        declared: Declared::AsInteger,
                        ..field
                    },
                    false => field,
                },
            )
    }
}

impl TypedField {
    fn parse(text: &'static str) -> Option<TypedField> {
        let (field, number) = text.split_once('=')?;
        let (name, written_as) = field.split_once(':')?;
        let proto_type = match written_as {
            "int32" => ProtoType::Int32,
            "int64" => ProtoType::Int64,
            "uint32" => ProtoType::Uint32,
            "uint64" => ProtoType::Uint64,
            "string" => ProtoType::String,
            "bytes" => ProtoType::Bytes,
            _ => return None,
        };
        Some(TypedField {
            name,
            number: number.parse().ok()?,
            proto_type,
            declared: Declared::Truly,
        })
    }
}

/// Every event with a message of its own, by group and name.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = TypedEvent> {
    EVENTS.lines().filter_map(TypedEvent::parse)
}

/// The message for the kernel's event of this group and name, if it has one.
///
/// If another group's event had the name already, upstream put the group in front: `mali/tracing_mark_write` is `mali_tracing_mark_write`.
pub fn find(group: &str, name: &str) -> Option<TypedEvent> {
    let moved = MOVED.iter().find(|(today, _)| *today == group);
    let group = moved.map_or(group, |(_, group)| group);
    let renamed = RENAMED.iter().find(|event| (event.0, event.1) == (group, name));
    match renamed {
        Some((_, _, name)) => in_schema(group, name),
        None => in_schema(group, name).or_else(|| in_schema(group, &format!("{group}_{name}"))),
    }
}

/// The event of this line of `events.txt`, by binary search over the text.
fn in_schema(group: &str, name: &str) -> Option<TypedEvent> {
    let (mut from, mut to) = (0, EVENTS.len());
    while from < to {
        let middle = from + (to - from) / 2;
        let start = EVENTS.get(..middle)?.rfind('\n').map_or(0, |end| end + 1);
        let line = EVENTS.get(start..)?.lines().next()?;
        let event = TypedEvent::parse(line)?;
        match (event.group, event.name).cmp(&(group, name)) {
            std::cmp::Ordering::Equal => return Some(event),
            std::cmp::Ordering::Less => from = start + line.len() + 1,
            std::cmp::Ordering::Greater => to = start,
        }
    }
    None
}
