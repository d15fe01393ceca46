//! Hostile files and tables: real ones, damaged at random. None may stop or end the profiler.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, LazyLock};

use ferretto_unwind::{
    Arch, End, Maps, Module, Process, Registers, StackCopy, SymbolTable, Unusable, Unwinder, WorkBudget,
};
use proptest::prelude::*;

use crate::made_up::{DEEP, MODULE, SHORT_FRAME, elf, elf_of, table, unwind_deep, with_instructions};

/// A small program with sections of all kinds.
static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| fs::read("/bin/true").expect("a program"));

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
            &WorkBudget::new(WorkBudget::FOR_SAMPLE),
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

/// Damages mostly the first bytes, where the headers are.
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
    with_instructions(&[&[0x0f, expression.len() as u8], expression].concat())
}

#[test]
fn a_deep_stack_with_short_instructions_stays_far_within_its_budget() {
    let (end, frames, spent) = unwind_deep(&with_instructions(&SHORT_FRAME), WorkBudget::FOR_SAMPLE);
    assert_eq!((end, frames.len()), (End::TooManyFrames, DEEP));
    assert!(spent * 2 < WorkBudget::FOR_SAMPLE, "{spent}");
}

#[test]
fn instructions_that_are_too_many_in_all_end_the_stack() {
    // The unwinder follows all instructions for each frame: they advance by nothing, set a rule, remember the row and restore it.
    let instructions = [&SHORT_FRAME[..], &[0x40, 0x83, 1, 0x0a, 0x0b].repeat(3000)].concat();
    let (end, frames, spent) = unwind_deep(&with_instructions(&instructions), WorkBudget::FOR_SAMPLE);
    assert_eq!((end, spent), (End::OverBudget(0), WorkBudget::FOR_SAMPLE));
    assert!(frames.len() < 20, "{}", frames.len());
}

#[test]
fn expressions_that_take_too_many_steps_in_all_end_the_stack() {
    // Counts down from 240 and jumps back, then adds 16 to the stack pointer: DW_OP_const1u, DW_OP_lit1, DW_OP_minus, DW_OP_dup, DW_OP_bra,
    // DW_OP_breg7.
    let expression = [0x08, 240, 0x31, 0x1c, 0x12, 0x28, 0xfa, 0xff, 0x77, 16];
    let file = with_expression(&expression);
    let (end, frames, _) = unwind_deep(&file, u32::MAX);
    assert_eq!((end, frames.len()), (End::TooManyFrames, DEEP));
    let (end, frames, spent) = unwind_deep(&file, WorkBudget::FOR_SAMPLE);
    assert_eq!((end, spent), (End::OverBudget(0), WorkBudget::FOR_SAMPLE));
    assert!(frames.len() < DEEP);
}

#[test]
fn a_table_whose_functions_share_something_long_is_not_indexed() {
    // If it were read anew for each function, the time would grow with the square of the table.
    let functions: Vec<(u64, &[u8])> = (0..2000)
        .map(|number| (0x40_0000 + number, &SHORT_FRAME[..]))
        .collect();
    let file = |augmentation: &[u8]| elf(Arch::X86_64, &table(augmentation, &functions), 0x100);
    assert!(Module::read(&file(b"S").as_slice()).is_ok());
    assert_eq!(
        Module::read(&file(&[b'S'; 10_000]).as_slice()).err(),
        Some(Unusable::TooCostly("unwind tables"))
    );
    // A table longer than anything that linkers write is not even read: the first frame is left by its frame pointer.
    let (end, frames, _) = unwind_deep(&file(&vec![b'S'; 1 << 20]), WorkBudget::FOR_SAMPLE);
    assert_eq!((end, frames.len()), (End::Complete, 2));
}

/// The most bytes of symbol tables that the profiler reads.
const LARGEST_TABLE: u64 = 24 << 20;

/// The symbol table of a file, as the profiler reads it.
fn symbols_of(file: &[u8]) -> SymbolTable {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("module");
    fs::write(&path, file).expect("a file");
    let inode = fs::metadata(&path).expect("a file").ino();
    let text = format!("400000-800000 r-xp 00000000 08:01 {inode} {}\n", path.display());
    let process = Process::ended(Maps::read(text.as_bytes()).expect("text")).expect("procfs");
    let request = process.load_request(0).expect("a mapping");
    SymbolTable::of(&request, LARGEST_TABLE)
}

/// A symbol of a global function: the place of its name, and its address.
fn symbol(name: u32, address: u64) -> [u8; 24] {
    let mut symbol = [0; 24];
    symbol[..4].copy_from_slice(&name.to_le_bytes());
    // STB_GLOBAL and STT_FUNC, in a section.
    symbol[4] = 0x12;
    symbol[6] = 1;
    symbol[8..16].copy_from_slice(&address.to_le_bytes());
    symbol[16..].copy_from_slice(&16u64.to_le_bytes());
    symbol
}

/// A name almost as long as any that is read, with the zero at its end.
fn long_name() -> Vec<u8> {
    [&[b'a'; 60_000][..], &[0]].concat()
}

#[test]
fn functions_that_share_an_address_and_a_long_name_are_not_all_looked_at() {
    let symbols_of = |count: usize, names: &[u8]| {
        let symbols = symbol(0, MODULE).repeat(count);
        symbols_of(&elf_of(
            Arch::X86_64,
            0x100,
            &[(".symtab", &symbols), (".strtab", names)],
        ))
    };
    let few = symbols_of(10, &long_name());
    assert_eq!(few.lookup(MODULE).map(str::len), Some(60_000));
    // If the name were looked at anew for each, the time would grow with the square of the table.
    assert_eq!(symbols_of(1000, &long_name()).memory_bytes(), 0);
    // The same if its end is looked for in vain.
    assert!(symbols_of(10, &[b'a'; 60_000]).memory_bytes() > 0);
    assert_eq!(symbols_of(1000, &[b'a'; 60_000]).memory_bytes(), 0);
}

#[test]
fn stubs_behind_too_many_names_without_an_end_have_no_names() {
    // The last of so many stubs calls a function with a name; the others call one whose name has no end.
    let name_of_last = |count: u64| {
        let plt = MODULE + 0x100;
        let slots = plt + (1 << 20);
        let jump = |number: u64| {
            let at = plt + 16 * number;
            let slot = slots + 8 * u64::from(number + 1 == count);
            let distance = (slot - at - 6) as u32;
            [&[0xff, 0x25][..], &distance.to_le_bytes(), &[0; 10]].concat()
        };
        let code: Vec<u8> = (0..count).flat_map(jump).collect();
        // R_X86_64_JUMP_SLOT.
        let relocation = |slot: u64, symbol: u64| [slot, symbol << 32 | 7, 0].map(u64::to_le_bytes).concat();
        let relocations = [relocation(slots, 1), relocation(slots + 8, 2)].concat();
        let symbols = [[0; 24], symbol(5, MODULE + 8), symbol(0, MODULE + 32)].concat();
        let names = [&b"good\0"[..], &[b'a'; 70_000]].concat();
        let table = symbols_of(&elf_of(
            Arch::X86_64,
            0x100,
            &[
                (".plt", &code),
                (".rela.plt", &relocations),
                (".dynsym", &symbols),
                (".dynstr", &names),
            ],
        ));
        table.lookup(plt + 16 * (count - 1)).map(str::to_owned)
    };
    assert_eq!(name_of_last(10).as_deref(), Some("good@plt"));
    assert_eq!(name_of_last(1000), None);
}

#[test]
fn the_symbol_tables_of_ordinary_files_are_far_within_their_work() {
    // This program, which is Rust's, and the libraries of C that it uses.
    let mut process = Process::open(std::process::id()).expect("this process");
    process.refresh(0, 0).expect("mappings");
    let mut with_names = Vec::new();
    for index in 0..process.maps().mappings().len() as u32 {
        let mapping = process.mapping(index).expect("a mapping");
        let Some(path) = mapping.path().filter(|path| path.starts_with(b"/")) else {
            continue;
        };
        let request = process.load_request(index).expect("a mapping");
        let symbols = SymbolTable::of(&request, 1 << 30);
        assert!(symbols.memory_bytes() > 0, "{}", String::from_utf8_lossy(path));
        with_names.push(path.to_vec());
    }
    let own = std::env::current_exe().expect("a path");
    let own = own.as_os_str().as_encoded_bytes();
    assert!(with_names.iter().any(|path| path == own));
    let is_c = |path: &&Vec<u8>| path.windows(5).any(|part| part == b"/libc");
    assert!(with_names.iter().any(|path| is_c(&path)));
}
