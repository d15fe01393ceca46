//! An arbitrary ELF file, and stacks that are unwound by its tables.
//!
//! The input is 32 registers, 64 words of a stack, and the file, which is mapped at `MAPPED`. Registers say in turn where in the file the thread is.

#![no_main]

use std::sync::Arc;

use ferretto_fuzz::Input;
use ferretto_unwind::{Maps, Module, Process, Registers, StackCopy, Unwinder};
use libfuzzer_sys::fuzz_target;

const MAPPED: u64 = 0x40_0000;
const STACK: u64 = 0x7ffc_0000_0000;
const MOST_FRAMES: usize = 64;

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut words = |count: usize| -> Vec<u64> {
        let bytes = input.bytes(count * 8);
        let words = bytes
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        words.collect()
    };
    let (values, stack) = (words(32), words(64));
    let Ok(module) = Module::read(&input.0) else {
        return;
    };
    let arch = module.arch();
    let maps = format!("{MAPPED:x}-{:x} r-xp 0 8:1 7 /module\n", MAPPED + 0x40_0000);
    let mut process = Process::with_maps(Maps::read(maps.as_bytes()).expect("text"));
    process.provide(0, Ok(Arc::new(module)));
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let stack = StackCopy {
        base: STACK,
        bytes: &stack,
        rest: &[],
    };
    let mut unwinder = Unwinder::new(MOST_FRAMES);
    let mut frames = Vec::new();
    for place in values.iter().take(8) {
        let mut registers = Registers::new(arch, MAPPED + place % 0x1_0000, STACK, STACK + 16);
        for (number, value) in values
            .iter()
            .enumerate()
            .filter(|(number, _)| ![7, 31].contains(number))
        {
            registers.set(number as u16, *value);
        }
        let end = unwinder.unwind(&process, &registers, &stack, &mut frames);
        assert!((1..=MOST_FRAMES).contains(&frames.len()));
        let first = frames.clone();
        // The rules that were found give the same again.
        assert_eq!(unwinder.unwind(&process, &registers, &stack, &mut frames), end);
        assert_eq!(frames, first);
    }
});
