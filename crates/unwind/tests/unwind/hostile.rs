//! Files and tables that mean harm: real ones, damaged at random. None may stop or end the profiler.

use std::sync::{Arc, LazyLock};

use ferretto_unwind::{Arch, Maps, Module, Process, Registers, StackCopy, Unusable, Unwinder};
use proptest::prelude::*;

/// A small program with sections of all kinds.
static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| std::fs::read("/bin/true").expect("a program"));

/// Loads a module and unwinds what looks like its stack. Returns whether there is one.
fn survive(file: &[u8], registers: &[u64], stack: &[u64]) -> bool {
    let Ok(module) = Module::read(&file) else {
        return false;
    };
    let arch = module.arch();
    let text = "400000-800000 r-xp 00000000 08:01 7 /module\n";
    let mut process = Process::with_maps(Maps::read(text.as_bytes()).expect("text"));
    process.provide(0, Ok(Arc::new(module)));
    let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let base = 0x7ffc_0000_0000;
    let mut unwinder = Unwinder::new(100);
    let mut frames = Vec::new();
    for &value in registers {
        let mut all = Registers::new(arch, 0x40_0000 + value % 0x10_0000, base, base + value % 0x200);
        for (number, &value) in registers
            .iter()
            .enumerate()
            .filter(|(number, _)| ![6, 7, 29, 31].contains(number))
        {
            all.set(number as u16, value);
        }
        unwinder.unwind(
            &process,
            &all,
            &StackCopy {
                base,
                bytes: &bytes,
                rest: &[],
            },
            &mut frames,
        );
        assert!(!frames.is_empty() && frames.len() <= 100);
        for frame in &frames {
            process.relative_pc(frame);
        }
    }
    true
}

fn any_stack() -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![
        Just(0),
        0x40_0000u64..0x48_0000,
        0x7ffc_0000_0000u64..0x7ffc_0000_0400,
        any::<u64>()
    ];
    prop::collection::vec(word, 0..128)
}

/// Mostly the first bytes, where the headers are.
fn any_damage() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let place = prop_oneof![0usize..64, 0usize..1024, any::<usize>()];
    let value = prop_oneof![Just(0), Just(0xff), any::<u8>()];
    prop::collection::vec((place, value), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_files_are_survived(
        damage in any_damage(),
        cut in prop::option::of(any::<usize>()),
        registers in prop::collection::vec(any::<u64>(), 32),
        stack in any_stack(),
    ) {
        let mut file = PROGRAM.clone();
        for (place, value) in damage {
            let length = file.len();
            file[place % length] = value;
        }
        file.truncate(cut.map_or(usize::MAX, |cut| cut % PROGRAM.len()));
        survive(&file, &registers, &stack);
    }

    #[test]
    fn damaged_tables_are_survived(
        damage in prop::collection::vec((any::<usize>(), any::<u8>()), 1..200),
        registers in prop::collection::vec(any::<u64>(), 32),
        stack in any_stack(),
    ) {
        let mut file = PROGRAM.clone();
        // The tables are in the second half of the file, behind the code.
        let (half, length) = (file.len() / 2, file.len());
        for (place, value) in damage {
            file[half + place % (length - half - 4096)] = value;
        }
        survive(&file, &registers, &stack);
    }
}

#[test]
fn the_undamaged_program_is_a_module() {
    assert!(survive(&PROGRAM, &[0x1234; 32], &[0; 64]));
}

#[test]
fn other_files_say_what_they_are() {
    let reason = |file: &[u8]| Module::read(&file).err();
    assert_eq!(reason(b""), Some(Unusable::NotElf));
    assert_eq!(reason(b"#!/bin/sh\n"), Some(Unusable::NotElf));
    assert_eq!(reason(&[0; 100]), Some(Unusable::NotElf));
    let mut of_32_bits = PROGRAM.clone();
    of_32_bits[4] = 1;
    assert_eq!(reason(&of_32_bits), Some(Unusable::OtherProcessor));
    assert_eq!(
        reason(&PROGRAM[..100]),
        Some(Unusable::Truncated("program headers"))
    );
}

#[test]
fn an_expression_that_never_ends_is_given_up() {
    // `jump back to here`, as the canonical frame address: DW_OP_skip -3.
    let file = with_expression(&[0x2f, 0xfd, 0xff]);
    // The function is at the end of the headers.
    assert!(survive(&file, &[120; 32], &[0x40_0000; 64]));
}

/// A module whose only function, at the start of the mapping, has an expression as its frame address.
fn with_expression(expression: &[u8]) -> Vec<u8> {
    let mut table = Vec::new();
    // What functions have in common: version 1, no augmentation, factors 1 and -8, return address in column 16.
    table.extend([0x0e, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x90, 1, 0, 0, 0]);
    let instructions = [&[0x0f, expression.len() as u8], expression].concat();
    let start = table.len();
    table.extend((4 + 16 + instructions.len() as u32).to_le_bytes());
    table.extend((start as u32 + 4).to_le_bytes());
    table.extend(0x40_0000u64.to_le_bytes());
    table.extend(0x40_0000u64.to_le_bytes());
    table.extend(instructions);
    table.extend([0; 4]);
    crate::model::elf(Arch::X86_64, &table, 0x100)
}
