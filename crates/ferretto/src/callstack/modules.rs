//! The files that the dynamic loader has loaded into this process.
//!
//! Asked when a sequence meets an address for the first time. Nothing is kept: files can be unloaded, and others loaded in their place.
#![allow(unsafe_code)]
// The loader's numbers have 32 bits on some machines.
#![allow(clippy::unnecessary_cast)]

use std::ffi::{CStr, c_int, c_void};
use std::slice;

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as Header;
#[cfg(target_pointer_width = "64")]
use libc::Elf64_Phdr as Header;

use super::interning::Mapping;

/// The type of the note with a build id, `NT_GNU_BUILD_ID`, and its owner.
const BUILD_ID: u32 = 3;
const OWNER: &[u8] = b"GNU\0";

/// The flag of a readable part, `PF_R`. `libc` has it for some systems only.
const READABLE: u32 = 4;

/// Parts of files are mapped from such borders on. Pages are larger on some machines, but linkers and readers only need a border.
const PAGE: u64 = 4096;

/// The mapping that an address is in, and the address as the file's symbols count it.
pub(super) fn find(address: usize) -> Option<(Mapping, u64)> {
    let mut search = Search { address, found: None };
    // SAFETY: `visit` takes the argument for what it is, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    let (mut mapping, rel_pc) = search.found?;
    if mapping.path.is_empty() || mapping.path == "/proc/self/exe" {
        // The loader does not name the program itself.
        let program = std::env::current_exe().unwrap_or_default();
        mapping.path = program.to_string_lossy().into_owned();
    }
    Some((mapping, rel_pc))
}

struct Search {
    address: usize,
    found: Option<(Mapping, u64)>,
}

/// Looks at one file; returns other than 0 to end the search.
///
/// # Safety
///
/// `info` is a description of the loader's, and `search` a [`Search`] that nothing else uses meanwhile.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: `find` passes a pointer to its `Search`, which nothing else uses meanwhile, and the loader a valid description.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's own table of that many program headers, which stays while the file is loaded. It is, because the loader holds its lock.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr as u64;
    let address = search.address as u64;
    let is_loaded = |header: &&Header| header.p_type == libc::PT_LOAD;
    let Some(segment) = headers.iter().filter(is_loaded).find(|header| {
        let start = base.wrapping_add(header.p_vaddr as u64);
        address.wrapping_sub(start) < header.p_memsz as u64
    }) else {
        return 0;
    };
    // SAFETY: null, or a text of the loader's that ends in zero.
    let path = unsafe {
        info.dlpi_name
            .as_ref()
            .map(|name| CStr::from_ptr(name).to_string_lossy())
    };
    let notes = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_NOTE)
        .filter(|note| {
            let (start, end) = (
                note.p_vaddr as u64,
                (note.p_vaddr as u64).saturating_add(note.p_memsz as u64),
            );
            headers.iter().filter(is_loaded).any(|segment| {
                let loaded = segment.p_vaddr as u64;
                let is_within = loaded <= start && end <= loaded.saturating_add(segment.p_filesz as u64);
                is_within && segment.p_flags & READABLE != 0
            })
        });
    let build_id = notes
        .filter_map(|note| {
            let start = base.wrapping_add(note.p_vaddr as u64) as usize as *const u8;
            // SAFETY: within what is loaded of this file, which is readable and does not change.
            build_id_in(unsafe { slice::from_raw_parts(start, note.p_memsz as usize) })
        })
        .next();
    let (virtual_address, offset) = (segment.p_vaddr as u64, segment.p_offset as u64);
    let from_page = virtual_address % PAGE;
    let start = base.wrapping_add(virtual_address - from_page);
    let mapping = Mapping {
        path: path.unwrap_or_default().into_owned(),
        build_id: build_id.unwrap_or_default().to_vec(),
        start,
        end: start.wrapping_add((from_page + segment.p_memsz as u64).next_multiple_of(PAGE)),
        exact_offset: offset.wrapping_sub(from_page),
        load_bias: virtual_address.wrapping_sub(offset),
    };
    search.found = Some((mapping, address.wrapping_sub(base)));
    1
}

/// The build id among notes.
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let padded = |len: u32| (len as usize).next_multiple_of(4);
        let (name, rest) = rest.split_at_checked(padded(word(0)))?;
        let contents = rest.get(..word(4) as usize)?;
        if word(8) == BUILD_ID && name == OWNER {
            return Some(contents);
        }
        notes = rest.get(padded(word(4))..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_found_among_other_notes() {
        let note = |kind: u32, name: &[u8], contents: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, contents.len() as u32, kind] {
                note.extend(number.to_le_bytes());
            }
            for part in [name, contents] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let wanted = note(3, b"GNU\0", &[1, 2, 3, 4, 5]);
        let others = [note(1, b"GNU\0", &[9; 16]), note(3, b"Other\0", &[8; 7])].concat();
        assert_eq!(
            build_id_in(&[others.as_slice(), &wanted].concat()),
            Some(&[1, 2, 3, 4, 5][..])
        );
        assert_eq!(build_id_in(&others), None);
        for len in 0..wanted.len() - 3 {
            assert_eq!(build_id_in(&wanted[..len]), None, "{len}");
        }
        assert_eq!(build_id_in(&note(3, b"GNU\0", &[0; 3])[..11]), None);
        assert_eq!(build_id_in(&[0xff; 40]), None);
    }

    #[test]
    fn this_program_and_its_libraries_are_found() {
        let (program, rel_pc) = find(find as fn(usize) -> Option<(Mapping, u64)> as usize).unwrap();
        assert_eq!(program.path, std::env::current_exe().unwrap().to_str().unwrap());
        assert!(
            (program.start..program.end)
                .contains(&(find as fn(usize) -> Option<(Mapping, u64)> as usize as u64))
        );
        // What readers compute from the fields of the mapping.
        let address = find as fn(usize) -> Option<(Mapping, u64)> as usize as u64;
        assert_eq!(
            address - program.start + program.exact_offset + program.load_bias,
            rel_pc
        );
        let local = 0;
        assert!(find((&raw const local).addr()).is_none(), "the stack is no file");
    }
}
