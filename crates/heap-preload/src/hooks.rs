//! `malloc` and its relatives, with libc's results and `errno`: the real function does the work, and the client is told.
//!
//! A release is reported before the real function, because another thread may get the memory at once, and an allocation after. `realloc` is both. If a
//! `realloc` fails, a sampled allocation is counted as released although it lives on, as with upstream's library.
//!
//! `operator new` and `delete` of C++ come here through `malloc` and `free`. `malloc_usable_size` is libc's: the memory is.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr;

use ferretto_heap_client::{allocated, freed, may_be_sampled, set_errno};

use crate::real;

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: as the caller says.
    let memory = unsafe { real::malloc(size) };
    allocated(memory.cast(), size);
    memory
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    // Nothing is to be done after either call, so nothing is kept on the stack for it.
    match may_be_sampled(memory.cast()) {
        // SAFETY: as the caller says.
        true => unsafe { free_sampled(memory) },
        // SAFETY: as the caller says.
        false => unsafe { real::free(memory) },
    }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn free_sampled(memory: *mut c_void) {
    freed(memory.cast());
    // SAFETY: as the caller of `free` says.
    unsafe { real::free(memory) };
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: as the caller says.
    let memory = unsafe { real::calloc(count, size) };
    allocated(memory.cast(), count.wrapping_mul(size));
    memory
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    freed(memory.cast());
    // SAFETY: as the caller says.
    let memory = unsafe { real::realloc(memory, size) };
    allocated(memory.cast(), size);
    memory
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as the caller says.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: as the caller says.
    let memory = unsafe { real::memalign(alignment, size) };
    allocated(memory.cast(), size);
    memory
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: as the caller says.
    unsafe { memalign(alignment, size) }
}

/// As libc's.
///
/// # Safety
///
/// As libc's: `result` is valid for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: as the caller says.
    let memory = unsafe { memalign(alignment, size) };
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller says that it is valid.
    unsafe { result.write(memory) };
    0
}

fn page() -> usize {
    // SAFETY: takes a number.
    let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    if bytes.is_power_of_two() { bytes } else { 4096 }
}

/// As libc's.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe { memalign(page(), size) }
}

/// As glibc's: whole pages.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page();
    match size.checked_next_multiple_of(page) {
        // SAFETY: as the caller says.
        Some(bytes) => unsafe { memalign(page, bytes) },
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// As C23's: `free`.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, _size: usize) {
    // SAFETY: as the caller says.
    unsafe { free(memory) };
}

/// As C23's: `free`.
///
/// # Safety
///
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, _alignment: usize, _size: usize) {
    // SAFETY: as the caller says.
    unsafe { free(memory) };
}
