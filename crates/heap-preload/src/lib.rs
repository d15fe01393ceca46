//! The library that is preloaded into programs to have their heap profiled: `malloc` and its relatives in front of libc's, and upstream's functions for
//! heaps of the program's own.
//!
//! | module | has |
//! |---|---|
//! | `hooks` | `malloc`, `free` and the others |
//! | `real` | libc's own ones |
//! | `api` | `AHeapInfo_*` and `AHeapProfile_*`, as in `include/ferretto_heap.h` |
//! | `ends` | what runs when the library is loaded, and when the program ends |
//!
//! `ferretto-heap-client` does all else. Nothing here allocates or panics.
#![deny(unsafe_code)]

pub mod api;
pub mod ends;
pub mod hooks;
mod real;
