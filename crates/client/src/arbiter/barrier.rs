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
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::OnceLock;

    pub(super) fn prepare() -> bool {
        static PREPARED: OnceLock<bool> = OnceLock::new();
        *PREPARED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    pub(super) fn heavy() -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
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
