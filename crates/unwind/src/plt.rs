//! The stubs through which a file calls functions of other files: its procedure linkage table.
//!
//! [`SymbolTable`](crate::SymbolTable) asks for them, because no symbol has their names. A stub jumps to the address in a slot, and a relocation says what
//! the dynamic linker puts there. So a stub is found by its instructions, whichever linker has made it and in whatever order. Stubs of other
//! instructions are left out: those that run once, because they ask the linker to find the function, and those of other processors. As in
//! [`elf`](crate::elf), the file may say anything.

use std::collections::HashMap;

use object::LittleEndian;
use object::elf::{self, Rela64};
use object::pod::slice_from_bytes;

use crate::elf::{Headers, Image};
use crate::expand;
use crate::registers::Arch;

/// Stubs begin at multiples of this.
const STEP: usize = 8;

/// A stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stub {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) calls: Callee,
}

/// The target of a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callee {
    /// The dynamic symbol with this index.
    Symbol(u32),
    /// The choice of the function at this address, in the same file.
    ChosenBy(u64),
}

/// The stubs of a file, in the order of addresses in each section. Sections with more than `limit` bytes are left out.
pub(crate) fn stubs(image: &dyn Image, headers: &Headers, limit: u64) -> Vec<Stub> {
    let content = |name| {
        let section = headers.section(name)?;
        let bytes = expand::section(image, headers, section, limit, "stubs").ok()?;
        Some((section.address, bytes))
    };
    let mut slots = HashMap::new();
    let mut stubs = Vec::new();
    let sections: [(&[u8], &[u8]); 3] = [
        (b".plt", b".rela.plt"),
        (b".plt.sec", b".rela.plt"),
        (b".plt.got", b".rela.dyn"),
    ];
    for (code, relocations) in sections {
        let Some((start, code)) = content(code) else {
            continue;
        };
        if let Some((_, relocations)) = content(relocations) {
            add_slots(&relocations, headers.arch, &mut slots);
        }
        add_stubs(start, &code, headers.arch, &slots, &mut stubs);
    }
    stubs
}

fn add_slots(relocations: &[u8], arch: Arch, slots: &mut HashMap<u64, Callee>) {
    let count = relocations.len() / size_of::<Rela64<LittleEndian>>();
    let relocations = slice_from_bytes::<Rela64<LittleEndian>>(relocations, count);
    for relocation in relocations.map_or(&[][..], |(relocations, _)| relocations) {
        let info = relocation.r_info.get(LittleEndian);
        let (symbol, kind) = ((info >> 32) as u32, info as u32);
        let callee = match (arch, elf::RelocationType(kind)) {
            (Arch::X86_64, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT) => Callee::Symbol(symbol),
            (Arch::Aarch64, elf::R_AARCH64_JUMP_SLOT | elf::R_AARCH64_GLOB_DAT) => Callee::Symbol(symbol),
            (Arch::X86_64, elf::R_X86_64_IRELATIVE) | (Arch::Aarch64, elf::R_AARCH64_IRELATIVE) => {
                Callee::ChosenBy(relocation.r_addend.get(LittleEndian).cast_unsigned())
            }
            _ => continue,
        };
        slots.insert(relocation.r_offset.get(LittleEndian), callee);
    }
}

fn add_stubs(start: u64, code: &[u8], arch: Arch, slots: &HashMap<u64, Callee>, stubs: &mut Vec<Stub>) {
    let first = stubs.len();
    // The longest stubs; some have less room.
    let longest = match arch {
        Arch::X86_64 => 16,
        Arch::Aarch64 => 24,
    };
    let slot = |address, code| match arch {
        Arch::X86_64 => slot_x86_64(address, code),
        Arch::Aarch64 => slot_aarch64(address, code),
    };
    for at in (0..code.len()).step_by(STEP) {
        let address = start.wrapping_add(at as u64);
        let Some(&calls) = slot(address, &code[at..]).and_then(|slot| slots.get(&slot)) else {
            continue;
        };
        if let Some(before) = stubs[first..].last_mut() {
            before.size = longest.min(address.wrapping_sub(before.address));
        }
        stubs.push(Stub {
            address,
            size: longest.min((code.len() - at) as u64),
            calls,
        });
    }
}

/// The slot of `jmp *slot(%rip)`, perhaps behind `endbr64` and with a `bnd` prefix.
fn slot_x86_64(address: u64, code: &[u8]) -> Option<u64> {
    let mut rest = code;
    for prefix in [&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xf2]] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let (distance, after) = rest.strip_prefix(&[0xff, 0x25])?.split_first_chunk()?;
    let next = address.wrapping_add((code.len() - after.len()) as u64);
    Some(next.wrapping_add_signed(i32::from_le_bytes(*distance).into()))
}

/// The slot of `adrp x16, page; ldr x17, [x16, #offset]`, perhaps behind `bti c`.
fn slot_aarch64(address: u64, code: &[u8]) -> Option<u64> {
    const BTI_C: u32 = 0xd503_245f;
    let mut words = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
    let mut place = address;
    let mut adrp = words.next()?;
    if adrp == BTI_C {
        adrp = words.next()?;
        place = place.wrapping_add(4);
    }
    let ldr = words.next()?;
    if adrp & 0x9f00_001f != 0x9000_0010 || ldr & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    let pages = (adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3;
    // A number of 21 bits with a sign, in pages of 4 KiB.
    let pages = i64::from((pages << 11).cast_signed() >> 11) << 12;
    let offset = u64::from(ldr >> 10 & 0xfff) * 8;
    Some((place & !0xfff).wrapping_add_signed(pages).wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_are_told_by_their_instructions() {
        let jump = [0xff, 0x25, 0x10, 0, 0, 0];
        let plain = [&jump[..], &[0x68, 0, 0, 0, 0, 0xe9, 0, 0, 0, 0]].concat();
        assert_eq!(slot_x86_64(0x1000, &plain), Some(0x1016));
        let guarded = [&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2][..], &jump].concat();
        assert_eq!(slot_x86_64(0x1000, &guarded), Some(0x101b));
        assert_eq!(slot_x86_64(0x1000, &jump[..5]), None);
        let backwards = [0xff, 0x25, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(slot_x86_64(0x1000, &backwards), Some(0xff6));
        // adrp x16, 0x1f000; ldr x17, [x16, #0xfb8]
        let stub = [0xf000_00f0u32, 0xf947_de11].map(u32::to_le_bytes).concat();
        assert_eq!(slot_aarch64(0x640, &stub), Some(0x1ffb8));
        let guarded = [&0xd503_245fu32.to_le_bytes()[..], &stub].concat();
        assert_eq!(slot_aarch64(0x640, &guarded), Some(0x1ffb8));
        assert_eq!(slot_aarch64(0x640, &stub[..7]), None);
    }
}
