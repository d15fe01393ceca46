//! Unwind tables and stacks that are made up together, so that every caller is known. They are for both processors, regardless of the machine.

use std::sync::Arc;

use ferretto_unwind::{
    Arch, End, FrameKind, Maps, Module, Process, Registers, StackCopy, Unwinder, WorkBudget,
};
use gimli::constants::DW_EH_PE_absptr;
use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, FrameDescriptionEntry,
    FrameTable,
};
use gimli::{Encoding, Format, LittleEndian, Register};
use proptest::prelude::*;

use crate::made_up::{MODULE, elf};

/// Where the module is mapped.
const MAPPED: u64 = 0x7f12_3400_0000;
/// Bytes of each function.
const FUNCTION: u64 = 0x100;
const STACK: u64 = 0x7ffc_0000_0000;

/// A function's frame, in words of 8 bytes.
#[derive(Debug, Clone)]
struct Shape {
    /// The distance between the caller's stack pointer and the callee's, without the return address.
    words: u64,
    /// Registers that it saves and overwrites. They are saved in the words from the top of the frame.
    saved: Vec<u16>,
    /// The tables count from the frame pointer, which the function has set.
    by_frame_pointer: bool,
}

fn preserved(arch: Arch) -> Vec<u16> {
    match arch {
        Arch::X86_64 => vec![3, 6, 12, 13, 14, 15],
        Arch::Aarch64 => (19..30).collect(),
    }
}

fn pointers(arch: Arch) -> (u16, u16) {
    match arch {
        Arch::X86_64 => (7, 6),
        Arch::Aarch64 => (31, 29),
    }
}

fn any_shape(arch: Arch) -> impl Strategy<Value = Shape> {
    let saved = prop::sample::subsequence(preserved(arch), 0..6);
    (saved, 0u64..40, any::<bool>()).prop_map(move |(mut saved, more, by_frame_pointer)| {
        let (_, frame_pointer) = pointers(arch);
        if by_frame_pointer && !saved.contains(&frame_pointer) {
            saved.push(frame_pointer);
        }
        // aarch64 saves the link register, too.
        Shape {
            words: (saved.len() as u64 + 1 + more).next_multiple_of(2),
            saved,
            by_frame_pointer,
        }
    })
}

fn any_stack() -> impl Strategy<Value = (Arch, Vec<Shape>, Vec<u64>)> {
    prop::sample::select(vec![Arch::X86_64, Arch::Aarch64]).prop_flat_map(|arch| {
        let shapes = prop::collection::vec(any_shape(arch), 1..30);
        (Just(arch), shapes, prop::collection::vec(0..FUNCTION - 8, 30))
    })
}

/// An ELF file with the tables for these functions, which follow each other; the last has no caller.
fn module(arch: Arch, shapes: &[Shape]) -> Vec<u8> {
    let encoding = Encoding {
        address_size: 8,
        format: Format::Dwarf32,
        version: 1,
    };
    let (stack_pointer, frame_pointer) = pointers(arch);
    let column = match arch {
        Arch::X86_64 => 16,
        Arch::Aarch64 => 30,
    };
    let mut frames = FrameTable::default();
    let mut common = CommonInformationEntry::new(encoding, 1, -8, Register(column));
    common.fde_address_encoding = DW_EH_PE_absptr;
    common.add_instruction(CallFrameInstruction::Cfa(Register(stack_pointer), 8));
    let common = frames.add_cie(common);
    for (number, shape) in shapes.iter().enumerate() {
        let start = MODULE + number as u64 * FUNCTION;
        let mut entry = FrameDescriptionEntry::new(Address::Constant(start), FUNCTION as u32);
        let size = (shape.words as i32 + 1) * 8;
        let base = match shape.by_frame_pointer {
            true => (frame_pointer, 16),
            false => (stack_pointer, size),
        };
        entry.add_instruction(0, CallFrameInstruction::Cfa(Register(base.0), base.1));
        entry.add_instruction(0, CallFrameInstruction::Offset(Register(column), -8));
        for (place, &register) in shape.saved.iter().enumerate() {
            entry.add_instruction(
                0,
                CallFrameInstruction::Offset(Register(register), -16 - 8 * place as i32),
            );
        }
        if number + 1 == shapes.len() {
            entry.add_instruction(0, CallFrameInstruction::Undefined(Register(column)));
        }
        frames.add_fde(common, entry);
    }
    let mut table = EhFrame(EndianVec::new(LittleEndian));
    frames.write_eh_frame(&mut table).expect("a table");
    elf(arch, table.0.slice(), shapes.len() as u64 * FUNCTION)
}

/// The stack as it is in the first of these functions, whose caller is the second, and so on.
fn run(arch: Arch, shapes: &[Shape], places: &[u64]) -> (Registers, Vec<u8>, Vec<u64>) {
    let (stack_pointer, frame_pointer) = pointers(arch);
    let total: u64 = shapes.iter().map(|shape| (shape.words + 1) * 8).sum();
    let mut stack = vec![0; total as usize];
    let mut top = STACK + total;
    let mut registers = Registers::new(arch, 0, top, 0);
    for (number, &register) in preserved(arch).iter().enumerate() {
        registers.set(register, 0xabc0 + number as u64);
    }
    let mut pcs = Vec::new();
    let pc = |number: usize| MAPPED + 64 + 56 + number as u64 * FUNCTION + 4 + places[number];
    // From the thread's first function inwards.
    for (number, shape) in shapes.iter().enumerate().rev() {
        let mut store = |address: u64, value: u64| {
            let place = (address - STACK) as usize;
            stack[place..place + 8].copy_from_slice(&value.to_le_bytes());
        };
        store(top - 8, pcs.last().copied().unwrap_or(0x1234));
        for (place, &register) in shape.saved.iter().enumerate() {
            store(
                top - 16 - 8 * place as u64,
                registers.get(register).expect("a value"),
            );
            registers.set(register, 0xdead_0000 + number as u64 * 16 + place as u64);
        }
        if shape.by_frame_pointer {
            registers.set(frame_pointer, top - 16);
        }
        top -= (shape.words + 1) * 8;
        pcs.push(pc(number));
    }
    pcs.reverse();
    let frame = registers.get(frame_pointer).expect("a value");
    let mut innermost = Registers::new(arch, pcs[0], top, frame);
    for register in preserved(arch) {
        innermost.set(register, registers.get(register).expect("a value"));
    }
    innermost.set(stack_pointer, top);
    (innermost, stack, pcs)
}

proptest! {
    #[test]
    fn every_caller_is_found((arch, shapes, places) in any_stack()) {
        let file = module(arch, &shapes);
        let module = Module::read(&file.as_slice()).expect("a module");
        let text = format!("{MAPPED:x}-{:x} r-xp 00000000 08:01 7 /module\n", MAPPED + file.len() as u64);
        let mut process = Process::with_maps(Maps::read(text.as_bytes()).expect("text"));
        process.provide(0, Ok(Arc::new(module)));
        let (registers, stack, pcs) = run(arch, &shapes, &places);
        let stack = StackCopy { base: STACK, bytes: &stack, rest: &[] };
        let mut unwinder = Unwinder::new(100);
        let mut frames = Vec::new();
        // The second time with the rules that the first has found.
        for _ in 0..2 {
            let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
            let end = unwinder.unwind(&process, &registers, &stack, &work, &mut frames);
            prop_assert_eq!(frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), &pcs[..]);
            prop_assert_eq!(end, End::Complete);
        }
        for frame in &frames {
            let lowered = match (frame.kind, arch) {
                (FrameKind::Sampled, _) => 0,
                (_, Arch::X86_64) => 1,
                (_, Arch::Aarch64) => 4,
            };
            prop_assert_eq!(process.relative_pc(frame), frame.pc - MAPPED + (MODULE - 64 - 56) - lowered);
        }
    }

    #[test]
    fn a_stack_that_was_not_copied_whole_says_so((arch, shapes, places) in any_stack(), part in 0.0..0.99) {
        let file = module(arch, &shapes);
        let text = format!("{MAPPED:x}-{:x} r-xp 00000000 08:01 7 /module\n", MAPPED + file.len() as u64);
        let mut process = Process::with_maps(Maps::read(text.as_bytes()).expect("text"));
        process.provide(0, Module::read(&file.as_slice()).map(Arc::new));
        let (registers, stack, pcs) = run(arch, &shapes, &places);
        let copied = (stack.len() as f64 * part) as usize;
        let stack = StackCopy { base: STACK, bytes: &stack[..copied], rest: &[] };
        let mut frames = Vec::new();
        let work = WorkBudget::new(WorkBudget::FOR_SAMPLE);
        let end = Unwinder::new(100).unwind(&process, &registers, &stack, &work, &mut frames);
        let found: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
        prop_assert_eq!(&found[..], &pcs[..found.len()]);
        // The root function needs no word of the stack.
        prop_assert_eq!(end == End::Complete, found.len() == pcs.len());
        prop_assert!(matches!(end, End::Complete | End::StackEnds(_)), "{:?}", end);
    }

    #[test]
    fn a_stack_takes_the_same_work_each_time_and_ends_early_without_it((arch, shapes, places) in any_stack(), part in 0.0..1.0) {
        let file = module(arch, &shapes);
        let text = format!("{MAPPED:x}-{:x} r-xp 00000000 08:01 7 /module\n", MAPPED + file.len() as u64);
        let mut process = Process::with_maps(Maps::read(text.as_bytes()).expect("text"));
        process.provide(0, Module::read(&file.as_slice()).map(Arc::new));
        let (registers, stack, pcs) = run(arch, &shapes, &places);
        let stack = StackCopy { base: STACK, bytes: &stack, rest: &[] };
        let mut frames = Vec::new();
        let mut unwind = |unwinder: &mut Unwinder, units| {
            let work = WorkBudget::new(units);
            let end = unwinder.unwind(&process, &registers, &stack, &work, &mut frames);
            (end, frames.iter().map(|frame| frame.pc).collect::<Vec<_>>(), units - work.left())
        };
        let mut unwinder = Unwinder::new(100);
        let (end, found, spent) = unwind(&mut unwinder, WorkBudget::FOR_SAMPLE);
        prop_assert_eq!((end, &found), (End::Complete, &pcs));
        // Known rules cost no more than their frames. A few take each other's place.
        let (_, _, spent_again) = unwind(&mut unwinder, WorkBudget::FOR_SAMPLE);
        prop_assert!((pcs.len() as u32..=spent / 2 + 1).contains(&spent_again), "{} of {}", spent_again, spent);
        // Another unwinder has to find the rules as well.
        prop_assert_eq!(unwind(&mut Unwinder::new(100), spent), (End::Complete, pcs.clone(), spent));
        let less = (f64::from(spent) * part) as u32;
        let (end, found, spent_of_less) = unwind(&mut Unwinder::new(100), less);
        prop_assert_eq!(end, End::OverBudget(0));
        prop_assert_eq!(&found[..], &pcs[..found.len()]);
        prop_assert!(!found.is_empty());
        prop_assert_eq!(spent_of_less, less);
    }
}
