//! What a track event says in the older form, which has phases: the part of it that Chromium still writes.
//!
//! The tokenizer keeps its bytes with the event; the trackers read them here.

use ferretto_wire::Value;

use crate::fields::fields;

/// Which way a flow goes, seen from the slice that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
    Both,
}

/// What a moment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstantScope {
    Thread,
    Process,
    Global,
}

/// The number of an event, and where it is distinct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Id {
    Unscoped(u64),
    Local(u64),
    Global(u64),
}

/// A `LegacyEvent`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Legacy<'a> {
    pub(crate) phase: Option<u8>,
    pub(crate) name_iid: u64,
    pub(crate) duration: Option<i64>,
    pub(crate) thread_duration: Option<i64>,
    pub(crate) instruction_delta: Option<i64>,
    pub(crate) id: Option<Id>,
    pub(crate) id_scope: Option<&'a [u8]>,
    pub(crate) has_async_thread_time: bool,
    pub(crate) bind_id: Option<u64>,
    pub(crate) binds_to_enclosing: bool,
    pub(crate) direction: Option<Direction>,
    pub(crate) instant_scope: Option<InstantScope>,
    pub(crate) pid: Option<i64>,
    pub(crate) tid: Option<i64>,
}

impl<'a> Legacy<'a> {
    /// What most events say, which have none.
    pub(crate) const NONE: &'static Legacy<'static> = &Legacy {
        phase: None,
        name_iid: 0,
        duration: None,
        thread_duration: None,
        instruction_delta: None,
        id: None,
        id_scope: None,
        has_async_thread_time: false,
        bind_id: None,
        binds_to_enclosing: false,
        direction: None,
        instant_scope: None,
        pid: None,
        tid: None,
    };

    pub(crate) fn new(message: &'a [u8]) -> Legacy<'a> {
        let mut legacy = *Legacy::NONE;
        let in_ns = |microseconds: u64| (microseconds as i64).wrapping_mul(1000);
        for field in fields(message) {
            match (field.number, field.value) {
                (1, Value::Varint(value)) => legacy.name_iid = value,
                (2, Value::Varint(value)) => legacy.phase = Some(value as u8),
                (3, Value::Varint(value)) => legacy.duration = Some(in_ns(value)),
                (4, Value::Varint(value)) => legacy.thread_duration = Some(in_ns(value)),
                (6, Value::Varint(value)) => legacy.id = Some(Id::Unscoped(value)),
                (7, Value::Bytes(value)) => legacy.id_scope = Some(value),
                (8, Value::Varint(value)) => legacy.bind_id = Some(value),
                (9, Value::Varint(value)) => legacy.has_async_thread_time = value != 0,
                (10, Value::Varint(value)) => legacy.id = Some(Id::Local(value)),
                (11, Value::Varint(value)) => legacy.id = Some(Id::Global(value)),
                (12, Value::Varint(value)) => legacy.binds_to_enclosing = value != 0,
                (13, Value::Varint(value)) => {
                    legacy.direction = match value {
                        1 => Some(Direction::In),
                        2 => Some(Direction::Out),
                        3 => Some(Direction::Both),
                        _ => None,
                    };
                }
                (14, Value::Varint(value)) => {
                    legacy.instant_scope = match value {
                        1 => Some(InstantScope::Global),
                        2 => Some(InstantScope::Process),
                        3 => Some(InstantScope::Thread),
                        _ => None,
                    };
                }
                (15, Value::Varint(value)) => legacy.instruction_delta = Some(value as i64),
                (18, Value::Varint(value)) => legacy.pid = Some(i64::from(value as u32)),
                (19, Value::Varint(value)) => legacy.tid = Some(i64::from(value as u32)),
                _ => {}
            }
        }
        legacy
    }
}
