//! The functions that programs call for memory, which have the innermost frames of each call stack of a heap profile.
//!
//! The [list](super) of functions passes over them: that `malloc` allocates everything says nothing.

use crate::samples::{FrameId, Profile};

/// Libraries that are nothing but allocators and clients of heap profilers, by the beginnings of their names.
const LIBRARIES: [&str; 6] = [
    "libferretto_heap",
    "libheapprofd",
    "libjemalloc",
    "libmimalloc",
    "libtcmalloc",
    "libc_malloc",
];

/// Functions of C, those of many programs that end when there is no memory, and those of Python.
const FUNCTIONS: [&str; 24] = [
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "mallocx",
    "xmalloc",
    "xcalloc",
    "xrealloc",
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "_PyMem_RawMalloc",
    "_PyMem_RawCalloc",
    "_PyMem_RawRealloc",
    "PyObject_Malloc",
];

/// Beginnings of names: C++, Rust's own functions, and the clients of heap profilers.
const BEGINNINGS: [&str; 16] = [
    "operator new",
    "__rust_alloc",
    "__rust_realloc",
    "__rdl_alloc",
    "__rdl_realloc",
    "__rustc::__rust_",
    "__rustc::__rdl_",
    "std::alloc::",
    "alloc::alloc::",
    "<alloc::alloc::Global as ",
    "<std::alloc::System as ",
    "alloc::raw_vec::",
    "<ferretto_heap_client::",
    "ferretto_heap_client::",
    "AHeapProfile_",
    "__gnu_cxx::new_allocator",
];

/// Whether a frame, with all that was inlined into it, is an allocator's.
pub(super) fn has(profile: &Profile, frame: FrameId) -> bool {
    let path = profile
        .module_of(frame)
        .map_or("", |(_, module)| profile.path(module));
    let file = path.rsplit('/').next().unwrap_or_default();
    if LIBRARIES.iter().any(|library| file.starts_with(library)) {
        return true;
    }
    let lines = profile.lines(frame);
    lines.iter().all(|line| {
        let name = &*line.name;
        FUNCTIONS.contains(&name) || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
    })
}
