//! The code that runs when the library is loaded, and when the program ends.
#![allow(unsafe_code)]

use ferretto_heap_client::{MALLOC, begin_with, finish};

extern "C" fn loaded() {
    begin_with(Some(MALLOC));
}

extern "C" fn unloaded() {
    finish();
}

// SAFETY: the loader calls what is in this section once, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

// SAFETY: the loader calls what is in this section once, when the program ends normally.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

/// By its presence a global allocator in the program knows that this library reports what reaches `malloc`.
#[unsafe(no_mangle)]
pub static ferretto_heap_is_preloaded: u8 = 1;
