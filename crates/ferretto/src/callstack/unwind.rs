//! The frames of the calling thread, by the unwinder that the standard library is linked with.
//!
//! It is the one that panics use, so it is in each program on these systems, also in those that abort at a panic. It works with the tables that
//! compilers write for it, by default on all 64-bit processors.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

/// `_URC_NO_REASON`: go on.
const GO_ON: c_int = 0;
/// `_URC_END_OF_STACK`: end here. The unwinder ends at anything that is not [`GO_ON`].
const END: c_int = 5;

/// A frame while the unwinder is there.
#[repr(C)]
struct Context {
    _opaque: [u8; 0],
}

// SAFETY: the signatures are those that the Itanium C++ ABI defines ("Level I: Base ABI"), with GCC's extensions, which LLVM's unwinder has as well.
unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut Context, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, before_instruction: *mut c_int) -> usize;
}

/// Calls `visit` with an instruction of each frame, the innermost first, until it returns false. The first frame is that of the function which calls
/// this.
#[inline(always)]
pub(super) fn walk(mut visit: &mut dyn FnMut(usize) -> bool) {
    // SAFETY: `visit_frame` takes the argument for what it is, which lives until the call returns. The unwinder only reads the stack.
    unsafe {
        _Unwind_Backtrace(visit_frame, (&raw mut visit).cast());
    }
}

extern "C" fn visit_frame(context: *mut Context, visit: *mut c_void) -> c_int {
    // SAFETY: `walk` passes a pointer to such a reference, which nothing else uses meanwhile.
    let visit = unsafe { &mut *visit.cast::<&mut dyn FnMut(usize) -> bool>() };
    let mut before_instruction = 0;
    // SAFETY: the context is valid during this call, and the other pointer is to a local.
    let address = unsafe { _Unwind_GetIPInfo(context, &raw mut before_instruction) };
    if address == 0 {
        return END;
    }
    // The return address may belong to the next function. In a frame that a signal has interrupted the instruction has not begun.
    let instruction = if before_instruction == 0 {
        address - 1
    } else {
        address
    };
    if visit(instruction) { GO_ON } else { END }
}
