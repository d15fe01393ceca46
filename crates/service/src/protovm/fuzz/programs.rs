//! Programs, and packets with fields for them, made from arbitrary bytes. Used by the fuzz targets, which compare our machine with a naive one, and
//! by the conformance tests of `cli`, which compare it with upstream's.

use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{VmCursorEnum, VmInstruction, VmOpMerge, VmOpRegLoad, VmOpSelect, VmProgram};
use ferretto_wire::Writer;

use super::Input;

/// Few, so that programs meet existing fields; none that only the service may write.
const FIELDS: [u32; 4] = [1, 2, 4, 5];

fn number(choice: u8) -> u32 {
    FIELDS[usize::from(choice) % FIELDS.len()]
}

/// A program.
pub(crate) fn program(input: &mut Input<'_>) -> VmProgram {
    let mut parts = 60;
    VmProgram {
        instructions: instructions(input, &mut parts, 0),
        ..Default::default()
    }
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

/// The usual form of programs: for each element of a repeated field of the packet, change the element of the state that has the same key.
fn by_key(input: &mut Input<'_>) -> VmInstruction {
    let (from, to, key) = (input.byte(), input.byte(), input.byte());
    let (from, to, key) = (number(from), number(to), number(key));
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
        other => self::number(other),
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
pub(crate) fn field(input: &mut Input<'_>, out: &mut Writer) {
    nested_field(input, out, 0);
}

fn nested_field(input: &mut Input<'_>, out: &mut Writer, depth: usize) {
    let shape = input.byte();
    let number = number(shape >> 4);
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
                (0..count).for_each(|_| nested_field(input, out, depth + 1))
            });
        }
        _ => out.bytes_field(number, &[]),
    }
}
