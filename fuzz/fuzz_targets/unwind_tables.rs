//! An arbitrary ELF file, and stacks that are unwound by its tables.
//!
//! The input is 32 registers, 64 words of a stack, and the file, which is mapped at `MAPPED`. Registers say in turn where in the file the thread is.
//!
//! No input may take longer than its units of work allow, nor end elsewhere with the same budget. Time is the thread's own on the processor, and each
//! unit has many times what it takes, because the sanitizers are slow.

#![no_main]

use std::sync::Arc;

use ferretto_fuzz::Input;
use ferretto_unwind::{End, Maps, Module, Process, Registers, StackCopy, Unwinder, WorkBudget};
use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};

const MAPPED: u64 = 0x40_0000;
const STACK: u64 = 0x7ffc_0000_0000;
const MOST_FRAMES: usize = 64;
/// Units of work for a stack: fewer than for a sample, so that inputs stay quick.
const UNITS: u32 = WorkBudget::FOR_SAMPLE / 16;
/// Nanoseconds for a unit of work. Without sanitizers it takes 25 at most.
const UNIT: u64 = 2_000;
/// Nanoseconds for the work that is done once for each stack.
const ONCE: u64 = 5_000_000;

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
    let (mut unwinder, mut forgetful) = (Unwinder::new(MOST_FRAMES), Unwinder::new(MOST_FRAMES));
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
        let mut unwind = |unwinder: &mut Unwinder, units| {
            let (work, began) = (WorkBudget::new(units), processor_time());
            let end = unwinder.unwind(&process, &registers, &stack, &work, &mut frames);
            let (taken, spent) = (processor_time() - began, units - work.left());
            assert!(
                taken <= ONCE + UNIT * u64::from(spent),
                "{spent} units of work took {taken} ns"
            );
            assert!((1..=MOST_FRAMES).contains(&frames.len()));
            assert!(!matches!(end, End::OverBudget(_)) || work.left() == 0);
            (end, frames.clone(), spent)
        };
        let (end, found, _) = unwind(&mut unwinder, UNITS);
        // The rules that were found give the same again.
        let (end_again, found_again, _) = unwind(&mut unwinder, UNITS);
        if !matches!(end, End::OverBudget(_)) {
            assert_eq!((end_again, &found_again), (end, &found));
        }
        // With half the work that it takes without them, the stack ends early.
        forgetful.clear();
        let (_, _, spent) = unwind(&mut forgetful, UNITS);
        forgetful.clear();
        let (end, _, _) = unwind(&mut forgetful, spent / 2);
        assert!(
            matches!(end, End::OverBudget(_)) || spent == 0,
            "{end:?} after {spent} units"
        );
    }
});

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
