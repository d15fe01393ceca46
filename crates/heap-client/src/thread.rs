//! A client's knowledge of each thread: 64 bytes of zeroes at first, without constructor or destructor, valid until the thread is gone.
//!
//! Where inline assembly can do it, the state is a thread-local variable of the initial-exec kind, which takes two instructions and never allocates.
//! `thread_local!` would be a call that may allocate in a library. Preloaded libraries and programs may use this kind; libraries that are loaded later
//! share some hundred bytes for it, of which this takes 64.
//!
//! Fields are atomics because signal handlers of the same thread use them too; no other thread does. `report`, `session` and `stack` call this.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

/// The state of a thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// The distance to the next hit; see `sampler`.
    pub(crate) remaining: AtomicI64,
    /// The random numbers' state. 0: the thread has drawn none yet.
    pub(crate) random: AtomicU64,
    /// The bounds of the stack; both 0 if they are not known.
    pub(crate) stack_low: AtomicU64,
    pub(crate) stack_high: AtomicU64,
    /// How many reports the thread is in: more than one in signal handlers.
    pub(crate) inside: AtomicU32,
    /// The kernel's number, 0 if nobody has asked yet.
    pub(crate) number: AtomicU32,
    /// Looking for the bounds of the stack, which may allocate.
    pub(crate) is_looking: AtomicBool,
}

const _: () = assert!(size_of::<Thread>() == 64);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection .tbss.ferretto_heap_client_thread,\"awT\",%nobits",
    ".globl ferretto_heap_client_thread",
    ".hidden ferretto_heap_client_thread",
    ".type ferretto_heap_client_thread, %object",
    ".size ferretto_heap_client_thread, 64",
    ".balign 64",
    "ferretto_heap_client_thread:",
    ".zero 64",
    ".popsection",
);

/// The state of this thread.
///
/// It is no longer there when the thread is gone: callers do not keep or pass on the reference.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    let address: *const Thread;
    // SAFETY: reads the offset that the linker or loader has filled in, and the thread pointer, which the ABI keeps at fs:0.
    unsafe {
        core::arch::asm!(
            "mov {address}, qword ptr [rip + ferretto_heap_client_thread@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(pure, nomem, nostack),
        );
    }
    // SAFETY: the variable has the size and alignment of `Thread`, for which zeroes are valid.
    unsafe { &*address }
}

/// The state of this thread.
///
/// It is no longer there when the thread is gone: callers do not keep or pass on the reference.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn current() -> &'static Thread {
    let address: *const Thread;
    // SAFETY: reads the offset that the linker or loader has filled in, and the thread pointer.
    unsafe {
        core::arch::asm!(
            "mrs {address}, tpidr_el0",
            "adrp {offset}, :gottprel:ferretto_heap_client_thread",
            "ldr {offset}, [{offset}, :gottprel_lo12:ferretto_heap_client_thread]",
            "add {address}, {address}, {offset}",
            address = out(reg) address,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    // SAFETY: the variable has the size and alignment of `Thread`, for which zeroes are valid.
    unsafe { &*address }
}

/// The state of this thread.
///
/// It is no longer there when the thread is gone: callers do not keep or pass on the reference.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn current() -> &'static Thread {
    std::thread_local! {
        static THREAD: Thread = const {
            Thread {
                remaining: AtomicI64::new(0),
                random: AtomicU64::new(0),
                stack_low: AtomicU64::new(0),
                stack_high: AtomicU64::new(0),
                inside: AtomicU32::new(0),
                number: AtomicU32::new(0),
                is_looking: AtomicBool::new(false),
            }
        };
    }
    let address = THREAD.with(core::ptr::from_ref);
    // SAFETY: without a destructor the variable is there as long as its thread.
    unsafe { &*address }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn each_thread_has_a_state_of_its_own_that_begins_as_zeroes() {
        let own = ptr::from_ref(current());
        assert_eq!(own, ptr::from_ref(current()));
        assert_eq!(own as usize % 64, 0);
        let own = own as usize;
        let other = std::thread::spawn(move || {
            let other = current();
            assert_ne!(ptr::from_ref(other) as usize, own);
            other.random.load(std::sync::atomic::Ordering::Relaxed)
        });
        assert_eq!(other.join().expect("no panic"), 0);
    }
}
