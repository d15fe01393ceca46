//! Arbitrary bytes as a program, and packets for it: the machine keeps its invariants and its limits, never panics, and as
//! long as no limit is reached does what the naive one does. Called by the tests of this folder with random bytes and by
//! the target `protovm` in `fuzz/` at the root of the repository with those that reach new code; not part of the crate
//! otherwise.

use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{
    Message, VmCursorEnum, VmInstruction, VmOpMerge, VmOpRegLoad, VmOpSelect, VmProgram,
};
use ferretto_wire::Writer;

use super::naive::{End, Naive};
use super::{Outcome, ProtoVm};
use crate::trace_buffer::fuzz::Input;

/// What became of the packets of a run.
#[derive(Debug, Default)]
pub struct Counts {
    /// Merged.
    pub merged: usize,
    /// The program found nothing to work on.
    pub failed: usize,
    /// Aborted because the program or the packet makes no sense.
    pub aborted: usize,
    /// Aborted because of a limit.
    pub limited: usize,
    /// Bytes of the state in the end.
    pub state: usize,
}

/// Interprets `data`: a program, the memory for its state, and packets.
///
/// # Panics
/// If the machine breaks one of its promises.
pub fn run(data: &[u8]) -> Counts {
    let mut counts = Counts::default();
    let mut input = Input(data);
    let mut parts = 60;
    let program = match input.byte() % 4 {
        0 => {
            let length = usize::from(input.byte()) << 2;
            VmProgram::decode_from_slice(input.bytes(length)).unwrap_or_default()
        }
        _ => VmProgram {
            version: None,
            instructions: instructions(&mut input, &mut parts, 0),
            ..Default::default()
        },
    };
    let memory_limit = match input.byte() {
        small @ 0..32 => u64::from(small) * 64,
        _ => 1 << 20,
    };
    let Ok(mut vm) = ProtoVm::new(&program, memory_limit) else {
        return counts;
    };
    let mut naive = Some(Naive::new(&program));
    while !input.0.is_empty() {
        let mut packet = Writer::new();
        match input.byte() % 8 {
            0 => {
                let length = usize::from(input.byte());
                packet.raw(input.bytes(length));
            }
            count => (0..count).for_each(|_| field(&mut input, &mut packet, 0)),
        }
        let outcome = vm.apply(packet.as_slice());
        vm.check_invariants();
        assert!(vm.memory_used() <= memory_limit, "more memory than the limit");
        let mut state = Writer::new();
        vm.write_state(&mut state);
        assert!(
            state.len() as u64 <= vm.memory_used(),
            "the state is larger than what is counted for it"
        );
        counts.state = state.len();
        let (count, expected) = match &outcome {
            Outcome::Merged => (&mut counts.merged, Ok(())),
            Outcome::Failed => (&mut counts.failed, Err(End::Failed)),
            Outcome::Aborted(abort) if abort.is_limit() => {
                naive = None;
                (&mut counts.limited, Ok(()))
            }
            Outcome::Aborted(_) => (&mut counts.aborted, Err(End::Aborted)),
        };
        *count += 1;
        if let Some(model) = &mut naive {
            match model.apply(packet.as_slice()) {
                Err(End::GivenUp) => naive = None,
                end => {
                    assert_eq!(end, expected, "{outcome:?}, {program:?}, {packet:?}");
                    assert_eq!(
                        state.as_slice(),
                        model.encoded_state(),
                        "{outcome:?}, {program:?}, {packet:?}"
                    );
                }
            }
        }
    }
    counts
}

fn instructions(input: &mut Input<'_>, parts: &mut usize, depth: usize) -> Vec<VmInstruction> {
    let mut list = Vec::new();
    let count = if depth == 0 {
        1 + input.byte() % 4
    } else {
        input.byte() % 4
    };
    for _ in 0..count {
        if *parts == 0 || depth > 5 {
            break;
        }
        *parts -= 1;
        if input.byte().is_multiple_of(4) {
            list.push(by_key(input));
            continue;
        }
        list.push(VmInstruction {
            operation: Some(operation(input)),
            abort_level: match input.byte() % 8 {
                0 => Some(AbortLevel::ABORT),
                1 => Some(AbortLevel::SKIP_CURRENT_INSTRUCTION_AND_BREAK_OUTER),
                2 | 3 => None,
                _ => Some(AbortLevel::SKIP_CURRENT_INSTRUCTION),
            },
            nested_instructions: instructions(input, parts, depth + 1),
            ..Default::default()
        });
    }
    list
}

fn select(cursor: VmCursorEnum, path: Vec<PathComponent>, nested: Vec<VmInstruction>) -> VmInstruction {
    VmInstruction {
        operation: Some(Operation::Select(Box::new(VmOpSelect {
            cursor: Some(cursor),
            relative_path: path,
            create_if_not_exist: (cursor == VmCursorEnum::VM_CURSOR_DST).then_some(true),
            ..Default::default()
        }))),
        abort_level: Some(AbortLevel::SKIP_CURRENT_INSTRUCTION),
        nested_instructions: nested,
        ..Default::default()
    }
}

fn field_of(number: u32, is_repeated: bool) -> PathComponent {
    PathComponent {
        field: Some(Field::FieldId(number)),
        is_repeated: Some(is_repeated),
        ..Default::default()
    }
}

/// What most programs consist of: for each element of a repeated field of the packet, something is done with the element
/// of the state that has the same key.
fn by_key(input: &mut Input<'_>) -> VmInstruction {
    let (from, to, key) = (input.byte() % 4, input.byte() % 4, input.byte() % 4);
    let (from, to, key) = (1 + u32::from(from), 1 + u32::from(to), 1 + u32::from(key));
    let register = Some(u32::from(input.byte()) % 3);
    let load = VmInstruction {
        operation: Some(Operation::RegLoad(Box::new(VmOpRegLoad {
            dst_register: register,
            ..Default::default()
        }))),
        ..Default::default()
    };
    let keyed = PathComponent {
        field: Some(Field::MapKeyFieldId(key)),
        register_to_match: register,
        ..Default::default()
    };
    let change = VmInstruction {
        operation: Some(operation(input)),
        ..Default::default()
    };
    let nested = vec![
        select(
            VmCursorEnum::VM_CURSOR_SRC,
            vec![field_of(key, false)],
            vec![load],
        ),
        select(
            VmCursorEnum::VM_CURSOR_DST,
            vec![field_of(to, false), keyed],
            vec![change],
        ),
    ];
    select(VmCursorEnum::VM_CURSOR_SRC, vec![field_of(from, true)], nested)
}

fn cursor(input: &mut Input<'_>) -> Option<VmCursorEnum> {
    match input.byte() % 16 {
        0 => Some(VmCursorEnum::VM_CURSOR_BOTH),
        1 => Some(VmCursorEnum::VM_CURSOR_UNSPECIFIED),
        2..8 => Some(VmCursorEnum::VM_CURSOR_DST),
        8 => Some(VmCursorEnum::VM_CURSOR_SRC),
        _ => None,
    }
}

fn operation(input: &mut Input<'_>) -> Operation {
    match input.byte() % 16 {
        0..8 => {
            let cursor = cursor(input);
            let in_state = cursor.is_some_and(|cursor| cursor != VmCursorEnum::VM_CURSOR_SRC);
            let relative_path = (0..input.byte() % 4).map(|_| component(input)).collect();
            let create = input.byte();
            let create_if_not_exist = (in_state || create == 0).then_some(create % 4 != 1);
            Operation::Select(Box::new(VmOpSelect {
                cursor,
                relative_path,
                create_if_not_exist,
                ..Default::default()
            }))
        }
        8..10 => Operation::RegLoad(Box::new(VmOpRegLoad {
            cursor: cursor(input),
            dst_register: Some(u32::from(input.byte()) % 3),
            ..Default::default()
        })),
        10..13 => Operation::Merge(Box::new(VmOpMerge {
            skip_submessages: Some(input.byte().is_multiple_of(2)),
            del_if_src_empty: Some(input.byte().is_multiple_of(2)),
            ..Default::default()
        })),
        13..15 => Operation::Set(Box::default()),
        _ => Operation::Del(Box::default()),
    }
}

fn component(input: &mut Input<'_>) -> PathComponent {
    let shape = input.byte();
    let number = match input.byte() {
        impossible @ ..8 => u32::from(impossible) % 2,
        other => 1 + u32::from(other) % 4,
    };
    match shape % 16 {
        0 => PathComponent {
            field: Some(Field::ArrayIndex(number)),
            ..Default::default()
        },
        1 | 2 => PathComponent {
            field: Some(Field::MapKeyFieldId(number)),
            register_to_match: Some(u32::from(input.byte()) % 3),
            ..Default::default()
        },
        _ => PathComponent {
            field: Some(Field::FieldId(number)),
            is_repeated: Some(shape & 0x30 == 0),
            ..Default::default()
        },
    }
}

/// Appends a field to a packet.
fn field(input: &mut Input<'_>, out: &mut Writer, depth: usize) {
    let shape = input.byte();
    let number = 1 + u32::from(shape >> 4) % 4;
    match shape % 8 {
        0 => out.fixed32_field(number, input.number()),
        1 => out.fixed64_field(number, u64::from(input.number()) << 20),
        2 | 3 => out.varint_field(number, u64::from(input.byte()) % 4),
        4 => {
            let length = usize::from(input.byte() % 8);
            out.bytes_field(number, input.bytes(length));
        }
        _ if depth < 4 => {
            let count = input.byte() % 4;
            out.nested(number, |out| {
                (0..count).for_each(|_| field(input, out, depth + 1))
            });
        }
        _ => out.bytes_field(number, &[]),
    }
}
