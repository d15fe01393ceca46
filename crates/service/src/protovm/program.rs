//! Programs as the machine runs them: a `VmProgram` with its paths cut into steps and its defaults filled in.
//!
//! They are made once, when a data source is set up. As in upstream's machine, a faulty instruction matters only when it is reached. So it is kept, as
//! the reason for which the machine will abort.

use std::fmt;

use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation as Encoded};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{
    UnknownFields, VmCursorEnum, VmInstruction, VmOpRegLoad, VmOpSelect, VmProgram,
};

use super::machine::Reason;
use super::state::MAX_FIELD;
use crate::limits;

/// Instructions, with their nested instructions.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) instructions: Vec<Instruction>,
}

#[derive(Debug)]
pub(super) struct Instruction {
    pub(super) operation: Operation,
    pub(super) on_failure: OnFailure,
    /// Run after the operation if it succeeds; for a selection, on the selected element.
    pub(super) nested: Vec<Instruction>,
}

/// The reaction when an instruction finds nothing to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFailure {
    /// The next instruction.
    Skip,
    /// The instruction that this one is nested in fails too.
    BreakOuter,
    /// The program aborts.
    Abort,
}

#[derive(Debug)]
pub(super) enum Operation {
    Select {
        cursor: Cursor,
        path: Vec<Step>,
        absent: Absent,
    },
    /// Loads a number into a register.
    Load {
        cursor: Cursor,
        register: u8,
    },
    Delete,
    Merge(MergeRules),
    Set,
    /// The machine aborts here.
    Impossible(Reason),
}

/// Which side an instruction moves or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cursor {
    /// The packet.
    Source,
    /// The state.
    Target,
    /// Both, or anything unknown. Upstream's interpreter then moves the state's cursor, but does not iterate.
    Both,
}

/// The treatment of absent fields by a selection in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    Fails,
    IsCreated,
}

/// A part of a path.
#[derive(Debug)]
pub(super) enum Step {
    /// Into a field.
    Field(u32),
    /// Into each element of a repeated field in turn.
    Each(u32),
    /// Into the element at an index.
    At { field: u32, index: u32 },
    /// Into the element of which a field equals a register.
    Keyed {
        field: u32,
        key_field: u32,
        register: Option<u8>,
    },
    /// The machine aborts here.
    Impossible(Reason),
}

/// How fields of the packet get into the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeRules {
    pub(super) submessages: Submessages,
    pub(super) empty: Empty,
}

/// Messages of the state that were taken apart, in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submessages {
    Replaced,
    Kept,
}

/// The effect of an empty string or message in the packet on the field of the state, in a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Empty {
    Replaces,
    Deletes,
}

/// Why a program is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// It has more instructions and parts of paths than [`MAX_PROTOVM_INSTRUCTIONS`](limits::MAX_PROTOVM_INSTRUCTIONS).
    TooLong,
    /// Instructions and parts of paths are nested deeper than [`MAX_PROTOVM_DEPTH`](limits::MAX_PROTOVM_DEPTH).
    TooDeep,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProgramError::TooLong => write!(
                f,
                "the program has more than {} instructions and parts of paths",
                limits::MAX_PROTOVM_INSTRUCTIONS
            ),
            ProgramError::TooDeep => write!(
                f,
                "the program nests instructions and parts of paths more than {} deep",
                limits::MAX_PROTOVM_DEPTH
            ),
        }
    }
}

impl std::error::Error for ProgramError {}

impl Program {
    pub(super) fn new(program: &VmProgram) -> Result<Self, ProgramError> {
        let mut room = limits::MAX_PROTOVM_INSTRUCTIONS;
        let instructions = instructions(&program.instructions, 0, &mut room)?;
        Ok(Self { instructions })
    }
}

/// `room` is how many instructions and parts of paths there may still be.
fn instructions(
    encoded: &[VmInstruction],
    depth: usize,
    room: &mut usize,
) -> Result<Vec<Instruction>, ProgramError> {
    let mut list = Vec::with_capacity(encoded.len());
    for encoded in encoded {
        let parts = match &encoded.operation {
            Some(Encoded::Select(select)) => 1 + select.relative_path.len(),
            _ => 1,
        };
        *room = room.checked_sub(parts).ok_or(ProgramError::TooLong)?;
        let depth = depth + parts;
        if depth > limits::MAX_PROTOVM_DEPTH {
            return Err(ProgramError::TooDeep);
        }
        list.push(Instruction {
            operation: operation(encoded.operation.as_ref()),
            on_failure: on_failure(encoded),
            nested: instructions(&encoded.nested_instructions, depth, room)?,
        });
    }
    Ok(list)
}

fn on_failure(encoded: &VmInstruction) -> OnFailure {
    match encoded.abort_level {
        Some(AbortLevel::ABORT) => OnFailure::Abort,
        Some(AbortLevel::SKIP_CURRENT_INSTRUCTION) => OnFailure::Skip,
        // Upstream ignores a level that it does not know, and goes on.
        None if has(&encoded.unknown_fields, VmInstruction::ABORT_LEVEL) => OnFailure::Skip,
        None | Some(AbortLevel::SKIP_CURRENT_INSTRUCTION_AND_BREAK_OUTER) => OnFailure::BreakOuter,
    }
}

fn operation(encoded: Option<&Encoded>) -> Operation {
    match encoded {
        Some(Encoded::Select(select)) => selection(select),
        Some(Encoded::RegLoad(load)) => Operation::Load {
            cursor: cursor(load.cursor, &load.unknown_fields, VmOpRegLoad::CURSOR),
            register: register(load.dst_register.unwrap_or_default()),
        },
        Some(Encoded::Merge(merge)) => Operation::Merge(MergeRules {
            submessages: match merge.skip_submessages {
                Some(true) => Submessages::Kept,
                _ => Submessages::Replaced,
            },
            empty: match merge.del_if_src_empty {
                Some(true) => Empty::Deletes,
                _ => Empty::Replaces,
            },
        }),
        Some(Encoded::Set(_)) => Operation::Set,
        Some(Encoded::Del(_)) => Operation::Delete,
        None => Operation::Impossible(Reason::UnknownInstruction),
    }
}

fn selection(select: &VmOpSelect) -> Operation {
    let cursor = cursor(select.cursor, &select.unknown_fields, VmOpSelect::CURSOR);
    let absent = match select.create_if_not_exist {
        Some(true) => Absent::IsCreated,
        _ => Absent::Fails,
    };
    if cursor == Cursor::Source && absent == Absent::IsCreated {
        return Operation::Impossible(Reason::CreatesInPacket);
    }
    let mut path = Vec::with_capacity(select.relative_path.len());
    let mut components = select.relative_path.as_slice();
    while let [component, rest @ ..] = components {
        let (step, taken) = step(component, rest.first(), cursor);
        path.push(step);
        components = &components[taken..];
    }
    Operation::Select { cursor, path, absent }
}

/// The next step of a path, and how many of its components that is.
fn step(component: &PathComponent, next: Option<&PathComponent>, cursor: Cursor) -> (Step, usize) {
    let Some(Field::FieldId(field)) = component.field else {
        return (Step::Impossible(Reason::PathWithoutField), 1);
    };
    // A field of this number cannot be encoded, and is in no packet.
    if cursor != Cursor::Source && !(1..=MAX_FIELD).contains(&field) {
        return (Step::Impossible(Reason::NoSuchField(field)), 1);
    }
    if component.is_repeated == Some(true) {
        return (Step::Each(field), 1);
    }
    match next.map(|next| (next, &next.field)) {
        Some((_, Some(Field::ArrayIndex(index)))) => (Step::At { field, index: *index }, 2),
        Some((next, Some(Field::MapKeyFieldId(key_field)))) => {
            let register = next.register_to_match.map(register);
            let key_field = *key_field;
            (
                Step::Keyed {
                    field,
                    key_field,
                    register,
                },
                2,
            )
        }
        _ => (Step::Field(field), 1),
    }
}

/// The cursor that a field of this number names.
fn cursor(encoded: Option<VmCursorEnum>, unknown: &UnknownFields, number: u32) -> Cursor {
    match encoded {
        Some(VmCursorEnum::VM_CURSOR_SRC) => Cursor::Source,
        Some(VmCursorEnum::VM_CURSOR_DST) => Cursor::Target,
        None if !has(unknown, number) => Cursor::Source,
        None | Some(VmCursorEnum::VM_CURSOR_BOTH | VmCursorEnum::VM_CURSOR_UNSPECIFIED) => Cursor::Both,
    }
}

/// Upstream keeps the lower eight bits. Whether there is such a register turns out when it is used.
fn register(number: u32) -> u8 {
    number as u8
}

/// Whether a field has a value that this version does not know.
fn has(unknown: &UnknownFields, number: u32) -> bool {
    unknown.iter().any(|field| field.number == number)
}
