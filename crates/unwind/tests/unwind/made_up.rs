//! Made-up files and unwind tables, and stacks for them. The benchmark uses them as well.

use std::sync::Arc;

use ferretto_unwind::{Arch, End, Frame, Maps, Module, Process, Registers, StackCopy, Unwinder, WorkBudget};

/// Where made-up modules count their addresses from.
pub(crate) const MODULE: u64 = 0x40_0000;

/// A file of a header, one executable segment that is the file, and the section `.eh_frame`.
pub(crate) fn elf(arch: Arch, eh_frame: &[u8], text: u64) -> Vec<u8> {
    elf_of(arch, text, &[(".eh_frame", eh_frame)])
}

/// A file of a header, one executable segment that is the file, and these sections. The first begins behind so many bytes of code.
pub(crate) fn elf_of(arch: Arch, text: u64, sections: &[(&str, &[u8])]) -> Vec<u8> {
    let (segments_at, tables_at) = (64u64, 64 + 56 + text);
    let mut names = vec![0];
    let mut headers = Vec::new();
    let mut at = tables_at;
    for (name, content) in sections {
        headers.push((names.len() as u32, 1, at, content.len()));
        names.extend([name.as_bytes(), &[0]].concat());
        at += content.len() as u64;
    }
    let name = names.len() as u32;
    names.extend(b".shstrtab\0");
    headers.push((name, 3, at, names.len()));
    let sections_at = (at + names.len() as u64).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let words =
        |file: &mut Vec<u8>, values: &[u32]| values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    let longs =
        |file: &mut Vec<u8>, values: &[u64]| values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    let machine = match arch {
        Arch::X86_64 => 62,
        Arch::Aarch64 => 183,
    };
    half(&mut file, 3);
    half(&mut file, machine);
    words(&mut file, &[1]);
    longs(&mut file, &[0, segments_at, sections_at]);
    words(&mut file, &[0]);
    let count = headers.len() as u16;
    [64, 56, 1, 64, count + 1, count]
        .iter()
        .for_each(|&value| half(&mut file, value));
    words(&mut file, &[1, 5]);
    // The functions are behind the headers; the module counts the file from here on.
    let address = MODULE - 64 - 56;
    longs(
        &mut file,
        &[0, address, address, sections_at, sections_at, 0x1000],
    );
    file.resize(tables_at as usize, 0x90);
    for (_, content) in sections {
        file.extend(*content);
    }
    file.extend(names);
    file.resize(sections_at as usize, 0);
    file.resize(file.len() + 64, 0);
    for (name, kind, at, size) in headers {
        words(&mut file, &[name, kind]);
        longs(&mut file, &[2, address + at, at, size as u64]);
        words(&mut file, &[0, 0]);
        longs(&mut file, &[1, 0]);
    }
    file
}

/// A module whose only function, at the start of the mapping, has these instructions.
pub(crate) fn with_instructions(instructions: &[u8]) -> Vec<u8> {
    elf(Arch::X86_64, &table(b"", &[(0x40_0000, instructions)]), 0x100)
}

/// A table whose functions, of 4 MiB each, have these starts and instructions. Their common part has this augmentation.
pub(crate) fn table(augmentation: &[u8], functions: &[(u64, &[u8])]) -> Vec<u8> {
    let mut table = Vec::new();
    // The common part of functions: version 1, factors 1 and -8, return address in column 16, which is saved on top of the frame.
    let common = [
        &[0, 0, 0, 0, 1],
        augmentation,
        &[0, 1, 0x78, 16, 0x90, 1, 0, 0, 0],
    ]
    .concat();
    table.extend((common.len() as u32).to_le_bytes());
    table.extend(common);
    for (start, instructions) in functions {
        let place = table.len();
        table.extend((4 + 16 + instructions.len() as u32).to_le_bytes());
        table.extend((place as u32 + 4).to_le_bytes());
        table.extend(start.to_le_bytes());
        table.extend(0x40_0000u64.to_le_bytes());
        table.extend(*instructions);
    }
    table.extend([0; 4]);
    table
}

const BASE: u64 = 0x7ffc_0000_0000;
/// The number of frames of the deepest stack that profilers unwind.
pub(crate) const DEEP: usize = 1000;

/// A process with this module, and a deep stack of 16 bytes for each frame, whose return addresses follow each other in the module's only function.
pub(crate) fn deep(file: &[u8]) -> (Process, Vec<u8>) {
    let text = "400000-800000 r-xp 00000000 08:01 7 /module\n";
    let mut process = Process::with_maps(Maps::read(text.as_bytes()).expect("text"));
    process.provide(0, Module::read(&file).map(Arc::new));
    let words = (0..DEEP as u64).flat_map(|number| [0, 0x40_2000 + number]);
    (process, words.flat_map(u64::to_le_bytes).collect())
}

/// Unwinds a [`deep`] stack. Returns its end and its cost as well.
pub(crate) fn unwind_deep_stack(process: &Process, stack: &[u8], units: u32) -> (End, Vec<Frame>, u32) {
    let stack = StackCopy {
        base: BASE,
        bytes: stack,
        rest: &[],
    };
    let (work, mut frames) = (WorkBudget::new(units), Vec::new());
    let registers = Registers::new(Arch::X86_64, 0x40_1000, BASE, BASE);
    let end = Unwinder::new(DEEP).unwind(process, &registers, &stack, &work, &mut frames);
    (end, frames, units - work.left())
}

/// Makes a [`deep`] stack and unwinds it.
pub(crate) fn unwind_deep(file: &[u8], units: u32) -> (End, Vec<Frame>, u32) {
    let (process, stack) = deep(file);
    unwind_deep_stack(&process, &stack, units)
}

/// The frame ends 16 bytes above the stack pointer: DW_CFA_def_cfa.
pub(crate) const SHORT_FRAME: [u8; 3] = [0x0c, 7, 16];
