//! The events that the trace format knows by name: which protobuf field each field of the kernel becomes.
//!
//! Used by the translation table. One file per group of the kernel's events, each a list of constants; a test holds them
//! against the schema. An event that is in none of them becomes a generic event.
//!
//! Kernels differ: a field listed here may be missing there, or have a type that does not fit. It is left out then.

use super::field::ProtoType;

mod ftrace;
mod irq;
mod power;
mod raw_syscalls;
mod sched;
mod task;
mod workqueue;

/// An event of the kernel that has a message of its own.
#[derive(Debug)]
pub struct TypedEvent {
    /// The kernel's group, such as `sched`.
    pub group: &'static str,
    /// The kernel's name, such as `sched_switch`.
    pub name: &'static str,
    /// Number of the message's field in `FtraceEvent`.
    pub number: u32,
    /// The fields to be written, in this order.
    pub fields: &'static [TypedField],
}

/// A field of a [`TypedEvent`].
#[derive(Debug)]
pub struct TypedField {
    /// The name that the kernel's field and the message's share.
    pub name: &'static str,
    /// Number of the field in the message.
    pub number: u32,
    /// Type of the field in the message.
    pub proto_type: ProtoType,
    /// How to understand what the kernel declares.
    pub declared: Declared,
}

/// Whether the kernel's declaration says what a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// It does.
    Truly,
    /// It says integer and means the address of a function.
    AsInteger,
}

/// Every event with a message of its own.
pub fn all() -> impl Iterator<Item = &'static TypedEvent> {
    [
        sched::EVENTS,
        irq::EVENTS,
        workqueue::EVENTS,
        task::EVENTS,
        power::EVENTS,
        raw_syscalls::EVENTS,
        ftrace::EVENTS,
    ]
    .into_iter()
    .flatten()
}

/// The message for an event, if it has one.
pub fn find(group: &str, name: &str) -> Option<&'static TypedEvent> {
    all().find(|event| event.group == group && event.name == name)
}

const fn event(
    group: &'static str,
    name: &'static str,
    number: u32,
    fields: &'static [TypedField],
) -> TypedEvent {
    TypedEvent {
        group,
        name,
        number,
        fields,
    }
}

const fn field(name: &'static str, number: u32, proto_type: ProtoType) -> TypedField {
    TypedField {
        name,
        number,
        proto_type,
        declared: Declared::Truly,
    }
}

const fn int32(name: &'static str, number: u32) -> TypedField {
    field(name, number, ProtoType::Int32)
}

const fn int64(name: &'static str, number: u32) -> TypedField {
    field(name, number, ProtoType::Int64)
}

const fn uint32(name: &'static str, number: u32) -> TypedField {
    field(name, number, ProtoType::Uint32)
}

const fn uint64(name: &'static str, number: u32) -> TypedField {
    field(name, number, ProtoType::Uint64)
}

const fn string(name: &'static str, number: u32) -> TypedField {
    field(name, number, ProtoType::String)
}

/// The address of a function that the kernel declares as an integer.
const fn function(name: &'static str, number: u32) -> TypedField {
    TypedField {
        name,
        number,
        proto_type: ProtoType::Uint64,
        declared: Declared::AsInteger,
    }
}

#[cfg(test)]
mod tests;
