//! A memory barrier for two sides of which only one pays: the arbiter, once for many chunks, and not the writers, for each packet.
//!
//! Suppose that one thread stores a word and then reads another, while a second thread does the same the other way round. Both need a barrier in
//! between, or both may miss the other's store. [`light`] is a barrier to the compiler alone, and costs nothing. [`heavy`] has the kernel make it one
//! to the processor as well: every running thread of the process passes a barrier before the call returns (`membarrier(2)`, since Linux 4.14). Where
//! the kernel cannot do that, [`light`] must not be relied on, and [`heavy`] says so.

use std::sync::atomic::{Ordering, compiler_fence};

/// The barrier on the frequent side.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Has the kernel prepare for [`heavy`], once for the process. Returns whether the kernel can. The first call may take some ten milliseconds if there
/// are several threads.
pub(crate) fn prepare() -> bool {
    system::prepare()
}

/// The barrier on the other side. False if there was none.
pub(crate) fn heavy() -> bool {
    prepare() && system::heavy()
}

#[cfg(all(target_endian = "little", any(target_os = "linux", target_os = "android")))]
mod system {
    // The crate for system calls has this one too, but takes more than twice as long to compile with the feature that it belongs to.
    #![allow(unsafe_code)]

    use std::sync::OnceLock;

    pub(super) fn prepare() -> bool {
        static PREPARED: OnceLock<bool> = OnceLock::new();
        *PREPARED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED))
    }

    pub(super) fn heavy() -> bool {
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }

    /// Whether the kernel did it.
    fn membarrier(command: libc::c_int) -> bool {
        const NO_FLAGS: libc::c_uint = 0;
        const NO_CPU: libc::c_int = 0;
        // SAFETY: the call takes no pointers, and none of its commands touches memory.
        unsafe { libc::syscall(libc::SYS_membarrier, command, NO_FLAGS, NO_CPU) == 0 }
    }
}

#[cfg(not(all(target_endian = "little", any(target_os = "linux", target_os = "android"))))]
mod system {
    pub(super) fn prepare() -> bool {
        false
    }

    pub(super) fn heavy() -> bool {
        false
    }
}
