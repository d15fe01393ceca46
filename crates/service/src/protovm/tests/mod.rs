//! Tests of the machine: cases by theme, and arbitrary programs and packets against a naive one.
//!
//! The cases cover the expectations of upstream's unit tests of `src/protovm`, and where we go further.

mod bounds;
mod naive;
mod programs;
mod routing;
mod selections;

use ferretto_proto::messages::vm_instruction::{AbortLevel, Operation};
use ferretto_proto::messages::vm_op_select::PathComponent;
use ferretto_proto::messages::vm_op_select::path_component::Field;
use ferretto_proto::messages::{VmCursorEnum, VmInstruction, VmOpMerge, VmOpRegLoad, VmOpSelect, VmProgram};
use ferretto_wire::Writer;

use super::*;
use crate::split_mix;

const MEMORY: u64 = 1 << 20;

fn program(instructions: Vec<VmInstruction>) -> VmProgram {
    VmProgram {
        instructions,
        ..Default::default()
    }
}

fn instruction(operation: Operation) -> VmInstruction {
    VmInstruction {
        operation: Some(operation),
        ..Default::default()
    }
}

fn select(cursor: VmCursorEnum, path: &[PathComponent]) -> VmInstruction {
    instruction(Operation::Select(Box::new(VmOpSelect {
        cursor: Some(cursor),
        relative_path: path.to_vec(),
        ..Default::default()
    })))
}

/// A path in the packet.
fn src(path: &[PathComponent]) -> VmInstruction {
    select(VmCursorEnum::VM_CURSOR_SRC, path)
}

/// A path in the state that must exist.
fn dst(path: &[PathComponent]) -> VmInstruction {
    select(VmCursorEnum::VM_CURSOR_DST, path)
}

/// A path in the state that is created if it does not exist.
fn make(path: &[PathComponent]) -> VmInstruction {
    let mut instruction = dst(path);
    if let Some(Operation::Select(select)) = &mut instruction.operation {
        select.create_if_not_exist = Some(true);
    }
    instruction
}

fn load(register: u32) -> VmInstruction {
    instruction(Operation::RegLoad(Box::new(VmOpRegLoad {
        dst_register: Some(register),
        ..Default::default()
    })))
}

fn merge() -> VmInstruction {
    merge_with(|_| {})
}

fn merge_with(rules: impl FnOnce(&mut VmOpMerge)) -> VmInstruction {
    let mut merge = VmOpMerge::default();
    rules(&mut merge);
    instruction(Operation::Merge(Box::new(merge)))
}

fn set() -> VmInstruction {
    instruction(Operation::Set(Box::default()))
}

fn del() -> VmInstruction {
    instruction(Operation::Del(Box::default()))
}

/// Functions that build instructions.
trait Nest {
    fn then(self, nested: VmInstruction) -> Self;
    fn on_failure(self, level: AbortLevel) -> Self;
}

impl Nest for VmInstruction {
    fn then(mut self, nested: VmInstruction) -> Self {
        self.nested_instructions.push(nested);
        self
    }

    fn on_failure(mut self, level: AbortLevel) -> Self {
        self.abort_level = Some(level);
        self
    }
}

fn field(number: u32) -> PathComponent {
    PathComponent {
        field: Some(Field::FieldId(number)),
        ..Default::default()
    }
}

fn each(number: u32) -> PathComponent {
    PathComponent {
        is_repeated: Some(true),
        ..field(number)
    }
}

fn at(index: u32) -> PathComponent {
    PathComponent {
        field: Some(Field::ArrayIndex(index)),
        ..Default::default()
    }
}

fn keyed(key_field: u32, register: u32) -> PathComponent {
    PathComponent {
        field: Some(Field::MapKeyFieldId(key_field)),
        register_to_match: Some(register),
        ..Default::default()
    }
}

/// A message with these fields, which are numbers or messages.
#[derive(Clone, Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn new() -> Self {
        Self::default()
    }

    fn with(mut self, write: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::new();
        write(&mut writer);
        self.0.extend_from_slice(writer.as_slice());
        self
    }

    fn number(self, field: u32, number: u64) -> Self {
        self.with(|writer| writer.varint_field(field, number))
    }

    fn message(self, field: u32, message: Fields) -> Self {
        self.with(|writer| writer.bytes_field(field, &message.0))
    }
}

/// The machine under test.
struct Machine(ProtoVm);

impl Machine {
    fn new(instructions: Vec<VmInstruction>) -> Self {
        Self::with_memory(instructions, MEMORY)
    }

    fn with_memory(instructions: Vec<VmInstruction>, memory: u64) -> Self {
        Self(ProtoVm::new(&program(instructions), memory).expect("a good program"))
    }

    fn apply(&mut self, packet: &Fields) -> Outcome {
        let outcome = self.0.apply(&packet.0);
        self.0.check_invariants();
        outcome
    }

    #[track_caller]
    fn merges(&mut self, packet: &Fields) {
        assert_eq!(self.apply(packet), Outcome::Merged);
    }

    #[track_caller]
    fn fails(&mut self, packet: &Fields) {
        assert_eq!(self.apply(packet), Outcome::Failed);
    }

    /// The reason for which it aborts, and the place.
    #[track_caller]
    fn aborts(&mut self, packet: &Fields) -> String {
        match self.apply(packet) {
            Outcome::Aborted(abort) => abort.to_string(),
            other => panic!("not aborted: {other:?}"),
        }
    }

    fn state(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.0.write_state(&mut out);
        out.into_vec()
    }

    #[track_caller]
    fn has_state(&self, expected: &Fields) {
        assert_eq!(self.state(), expected.0);
    }
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        split_mix::next(&mut self.0)
    }
}
