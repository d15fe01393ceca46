//! The global allocator of Rust programs that have their heap profiled without a preloaded library: static ones, and those with an allocator of their
//! own.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use std::alloc::System;

use crate::heaps::GLOBAL_ALLOC;
use crate::{report, session};

/// A global allocator that reports what another one does, as the heap [`GLOBAL_ALLOC`].
///
/// ```
/// use ferretto_heap_client::HeapProfiled;
///
/// #[global_allocator]
/// static ALLOCATOR: HeapProfiled = HeapProfiled::system();
/// ```
///
/// It looks for the daemon at the first allocation, which is before `main`. While the heap is not profiled, each allocation costs a load and a branch
/// more. When the program ends normally, it waits up to half a second for the daemon to read the last samples.
///
/// If the library `libferretto_heap.so` is preloaded too, that one reports what reaches `malloc`, and this one reports nothing.
#[derive(Debug, Default)]
pub struct HeapProfiled<A = System> {
    inner: A,
}

impl HeapProfiled {
    /// In front of the system's allocator.
    pub const fn system() -> HeapProfiled {
        HeapProfiled { inner: System }
    }
}

impl<A> HeapProfiled<A> {
    /// In front of this allocator.
    pub const fn new(inner: A) -> HeapProfiled<A> {
        HeapProfiled { inner }
    }
}

/// The first allocation of the program, or of a forked child.
fn look() {
    if session::has_begun() {
        session::start_in_child();
        return;
    }
    // A function of the preloaded library that programs do not have themselves.
    // SAFETY: the name ends with a zero.
    let preloaded = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ferretto_heap_is_preloaded".as_ptr()) };
    if !preloaded.is_null() {
        session::leave_to_others();
        return;
    }
    session::begin_with(Some(GLOBAL_ALLOC));
    // SAFETY: the function may be called at any end.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    session::finish();
}

// SAFETY: each function is the inner allocator's. Reports do not touch the memory.
unsafe impl<A: GlobalAlloc> GlobalAlloc for HeapProfiled<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let address = unsafe { self.inner.alloc(layout) };
        report::allocated_or(address, layout.size(), look);
        address
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        report::freed(address);
        // SAFETY: as the caller says.
        unsafe { self.inner.dealloc(address, layout) };
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller says.
        let address = unsafe { self.inner.alloc_zeroed(layout) };
        report::allocated_or(address, layout.size(), look);
        address
    }

    /// A release before, because another thread may get the memory at once, and an allocation after. If the inner allocator fails, a sampled
    /// allocation is counted as released although it lives on.
    #[inline]
    unsafe fn realloc(&self, address: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        report::freed(address);
        // SAFETY: as the caller says.
        let address = unsafe { self.inner.realloc(address, layout, new_size) };
        report::allocated_or(address, new_size, look);
        address
    }
}
