//! The files that the dynamic loader has loaded into this process.
//!
//! Asked when a sequence meets an address for the first time. Sequences remember the answers while they hold: see [`changes`].
#![allow(unsafe_code)]
// The loader's numbers have 32 bits on some machines.
#![allow(clippy::unnecessary_cast)]

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as Header;
#[cfg(target_pointer_width = "64")]
use libc::Elf64_Phdr as Header;

use super::interning::{Changes, Mapping, Place};
use crate::clock;
use crate::track_event;

/// The type of the note with a build id, `NT_GNU_BUILD_ID`, and its owner.
const BUILD_ID: u32 = 3;
const OWNER: &[u8] = b"GNU\0";

/// The flag of a readable part, `PF_R`. `libc` has it for some systems only.
const READABLE: u32 = 4;

/// Parts of files are mapped from such borders on. Pages are larger on some machines, but linkers and readers only need a border.
const PAGE: u64 = 4096;

/// The most bytes of a path, `PATH_MAX`. Of a longer one the end is left out.
const MAX_PATH: usize = 4096;

/// The most bytes of a build id; linkers make 16 or 20. A longer one is left out.
const MAX_BUILD_ID: usize = 64;

/// What the kernel appends to the path of a program whose file was replaced.
const DELETED: &str = " (deleted)";

/// Where an address is.
pub(super) fn find(address: usize) -> Place {
    let mut search = Search {
        address,
        path: Vec::with_capacity(MAX_PATH),
        changes: None,
        found: None,
    };
    if !ask(visit, &mut search) {
        return Place::NotNow;
    }
    note(search.changes);
    match search.found.take() {
        Some(found) => found.placed(&search.path),
        None => Place::Nowhere,
    }
}

impl Found {
    /// `path` is what the loader calls the file.
    fn placed(self, path: &[u8]) -> Place {
        let mut path = String::from_utf8_lossy(path).into_owned();
        if path.is_empty() || path == "/proc/self/exe" {
            // The loader does not name the program itself.
            let program = std::env::current_exe().unwrap_or_default();
            path = undeleted(&program).to_string_lossy().into_owned();
        }
        let mapping = Mapping {
            path,
            build_id: self.build_id[..self.build_id_len].to_vec(),
            start: self.start,
            end: self.end,
            exact_offset: self.exact_offset,
            load_bias: self.load_bias,
        };
        Place::In(mapping, self.rel_pc)
    }
}

/// The path of a program's file before the file was replaced, if it was.
fn undeleted(program: &Path) -> &Path {
    let before = program.to_str().and_then(|path| path.strip_suffix(DELETED));
    match before {
        // A file can have such a name.
        Some(before) if !program.exists() => Path::new(before),
        _ => program,
    }
}

/// For so many nanoseconds [`changes`] are taken for the same.
const CHANGES_STAY: u64 = 1_000_000;

/// What the loader answered last, and the time at which [`changes`] asked it.
static LOADS: AtomicU64 = AtomicU64::new(0);
static UNLOADS: AtomicU64 = AtomicU64::new(0);
static ASKED_AT: AtomicU64 = AtomicU64::new(0);

/// What the loader has done so far, as of about a millisecond ago. To ask the loader takes its lock, so that is not done for each event.
pub(super) fn changes() -> Changes {
    let now = clock::now();
    if now.wrapping_sub(ASKED_AT.load(Ordering::Relaxed)) >= CHANGES_STAY {
        ASKED_AT.store(now, Ordering::Relaxed);
        let mut changes = None;
        if ask(visit_first, &mut changes) {
            note(changes);
        }
    }
    Changes {
        loads: LOADS.load(Ordering::Relaxed),
        unloads: UNLOADS.load(Ordering::Relaxed),
    }
}

/// Another thread may have asked later, and be here first. Then its answer returns a millisecond later. The greater number is not always the later one: with
/// namespaces (`dlmopen`), glibc's numbers fall as well.
fn note(changes: Option<Changes>) {
    if let Some(Changes { loads, unloads }) = changes {
        LOADS.store(loads, Ordering::Relaxed);
        UNLOADS.store(unloads, Ordering::Relaxed);
    }
}

/// How many threads ask the loader; with [`FORKING`] while a thread forks, or waits for that.
static LOOK_UPS: AtomicU32 = AtomicU32::new(0);

/// The loader has a lock, which a forked child would find held for ever if another thread held it.
const FORKING: u32 = 1 << 31;

/// One that asks the loader. It excludes forks, but no others that ask: a thread that waits for the loader's lock may wait for one that holds this lock and
/// traces a stack, in an allocator for example.
struct LookUp;

impl LookUp {
    /// Never waits: a thread that holds the loader's lock may ask while another one forks, and a fork may need that lock.
    fn begin() -> Option<LookUp> {
        let more = |count: u32| (count & FORKING == 0).then(|| count + 1);
        let begun = LOOK_UPS.fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
        begun.ok().map(|_| LookUp)
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        LOOK_UPS.fetch_sub(1, Ordering::Release);
    }
}

/// Until this is dropped, nobody asks the loader.
pub(crate) struct NoLookUps(());

impl NoLookUps {
    /// Waits until nobody asks the loader. The caller holds no lock of the SDK: who asks may wait for a thread that waits for that lock.
    pub(crate) fn hold() -> NoLookUps {
        let pause = || thread::sleep(Duration::from_micros(50));
        while LOOK_UPS.fetch_or(FORKING, Ordering::Acquire) & FORKING != 0 {
            // Another thread forks.
            pause();
        }
        while LOOK_UPS.load(Ordering::Acquire) != FORKING {
            pause();
        }
        NoLookUps(())
    }
}

impl Drop for NoLookUps {
    fn drop(&mut self) {
        LOOK_UPS.store(0, Ordering::Release);
    }
}

/// A function that the loader calls for each file, until the function returns other than 0: with a description, the description's size and the last argument
/// of [`ask`]. The loader may hold its lock meanwhile, so the function must not allocate: another thread, in an allocator that walks stacks, may wait for the
/// loader's lock.
type Visit = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Has the loader call `visit`, which takes its last argument for a `T`. Returns whether it did: not while a thread forks.
fn ask<T>(visit: Visit, argument: &mut T) -> bool {
    let Some(_look_up) = LookUp::begin() else {
        return false;
    };
    let _confined = track_event::confine();
    // SAFETY: the callers' `visit`s take the argument for what it is, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut *argument).cast()) };
    true
}

struct Search {
    address: usize,
    /// Of the file that was found, as far as there is capacity.
    path: Vec<u8>,
    changes: Option<Changes>,
    found: Option<Found>,
}

/// As [`Mapping`], without its path, and with the address as the file's symbols count it.
struct Found {
    build_id: [u8; MAX_BUILD_ID],
    build_id_len: usize,
    start: u64,
    end: u64,
    exact_offset: u64,
    load_bias: u64,
    rel_pc: u64,
}

/// How many files were loaded and unloaded. Android has told it since version 11.
///
/// # Safety
///
/// `info` is a description of the loader's, with so many bytes.
#[cfg(not(target_env = "uclibc"))]
unsafe fn changes_in(info: *const libc::dl_phdr_info, size: usize) -> Option<Changes> {
    let end = std::mem::offset_of!(libc::dl_phdr_info, dlpi_subs) + size_of::<u64>();
    // SAFETY: the description is so long that it has the fields.
    (size >= end).then(|| unsafe {
        Changes {
            loads: (*info).dlpi_adds as u64,
            unloads: (*info).dlpi_subs as u64,
        }
    })
}

/// uClibc does not tell it.
///
/// # Safety
///
/// Nothing is demanded. The other version demands something.
#[cfg(target_env = "uclibc")]
unsafe fn changes_in(_: *const libc::dl_phdr_info, _: usize) -> Option<Changes> {
    None
}

/// Looks at the first file for what the loader has done so far.
///
/// # Safety
///
/// `info` is a description of the loader's with so many bytes, and `changes` an `Option<Changes>` that nothing else uses meanwhile.
unsafe extern "C" fn visit_first(info: *mut libc::dl_phdr_info, size: usize, changes: *mut c_void) -> c_int {
    // SAFETY: as the function demands.
    unsafe { *changes.cast::<Option<Changes>>() = changes_in(info, size) };
    1
}

/// Looks at one file.
///
/// # Safety
///
/// `info` is a description of the loader's with so many bytes, and `search` a [`Search`] that nothing else uses meanwhile.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, size: usize, search: *mut c_void) -> c_int {
    // SAFETY: `find` passes a pointer to its `Search`, which nothing else uses meanwhile.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: as the function demands.
    search.changes = unsafe { changes_in(info, size) };
    // SAFETY: all loaders' descriptions have these fields. There is no reference to the description, which may lack later ones.
    let (base, name, headers, number) = unsafe {
        (
            (*info).dlpi_addr as u64,
            (*info).dlpi_name,
            (*info).dlpi_phdr,
            (*info).dlpi_phnum,
        )
    };
    if headers.is_null() {
        return 0;
    }
    // SAFETY: the loader's own table of that many program headers, which stays while the file is loaded. The file is loaded until this returns: the loader
    // holds its lock, but for musl's, which unloads no files.
    let headers = unsafe { slice::from_raw_parts(headers, usize::from(number)) };
    let address = search.address as u64;
    let is_loaded = |header: &&Header| header.p_type == libc::PT_LOAD;
    let Some(segment) = headers.iter().filter(is_loaded).find(|header| {
        let start = base.wrapping_add(header.p_vaddr as u64);
        address.wrapping_sub(start) < header.p_memsz as u64
    }) else {
        return 0;
    };
    if !name.is_null() {
        // SAFETY: a text of the loader's that ends in zero, and stays while the file is loaded.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        search.path.clear();
        // Within the capacity, so without allocating.
        search.path.extend_from_slice(&path[..path.len().min(MAX_PATH)]);
    }
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
    let build_id = build_id.filter(|id| id.len() <= MAX_BUILD_ID).unwrap_or_default();
    let (virtual_address, offset) = (segment.p_vaddr as u64, segment.p_offset as u64);
    let from_page = virtual_address % PAGE;
    let start = base.wrapping_add(virtual_address - from_page);
    let size = (segment.p_memsz as u64)
        .checked_add(from_page)
        .and_then(|size| size.checked_next_multiple_of(PAGE));
    let mut found = Found {
        build_id: [0; MAX_BUILD_ID],
        build_id_len: build_id.len(),
        start,
        end: start.wrapping_add(size.unwrap_or(0)),
        exact_offset: offset.wrapping_sub(from_page),
        load_bias: virtual_address.wrapping_sub(offset),
        rel_pc: address.wrapping_sub(base),
    };
    found.build_id[..build_id.len()].copy_from_slice(build_id);
    search.found = Some(found);
    1
}

/// The build id among notes.
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let padded = |len: u32| (len as usize).checked_next_multiple_of(4);
        let (name, rest) = rest.split_at_checked(padded(word(0))?)?;
        let contents = rest.get(..word(4) as usize)?;
        if word(8) == BUILD_ID && name == OWNER {
            return Some(contents);
        }
        notes = rest.get(padded(word(4))?..)?;
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
        // The lengths of name and contents are those of the last bytes of memory on a 32-bit machine.
        assert_eq!(build_id_in(&[0xff; 40]), None);
        let mut long = note(3, b"Other\0", &[8; 7]);
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(build_id_in(&[long.as_slice(), &wanted].concat()), None);
    }

    #[test]
    fn a_replaced_program_has_the_path_that_it_was_started_from() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(undeleted(&program), program);
        let replaced = Path::new("/no/such/program (deleted)");
        assert_eq!(undeleted(replaced), Path::new("/no/such/program"));
        let folder = tempfile::tempdir().unwrap();
        let named_so = folder.path().join("program (deleted)");
        std::fs::write(&named_so, "").unwrap();
        assert_eq!(undeleted(&named_so), named_so);
    }

    #[test]
    fn this_program_and_its_libraries_are_found() {
        let address = find as fn(usize) -> Place as usize;
        let Place::In(program, rel_pc) = find(address) else {
            panic!("the program is not found");
        };
        assert_eq!(program.path, std::env::current_exe().unwrap().to_str().unwrap());
        let address = address as u64;
        assert!((program.start..program.end).contains(&address));
        // What readers compute from the fields of the mapping.
        assert_eq!(
            address - program.start + program.exact_offset + program.load_bias,
            rel_pc
        );
        let local = 0;
        let place = find((&raw const local).addr());
        assert!(matches!(place, Place::Nowhere), "the stack is no file");
    }
}
