//! A memory barrier of which one side pays for both: the arbiter's, once for many chunks, and not the writers', for each packet.
//!
//! Whoever stores a word and then reads another, while somebody else does so the other way round, needs a barrier in between on both
//! sides, or both may miss what the other has stored. [`light`] is one to the compiler alone, and costs nothing. [`heavy`] has the kernel
//! make it one to the processor as well: every running thread of the process passes a barrier before the call returns (`membarrier(2)`,
//! since Linux 4.14). Where the kernel cannot, nobody may rely on [`light`], and [`heavy`] says so.

use std::sync::atomic::{Ordering, compiler_fence};

/// The side that is passed often.
#[inline(always)]
pub(crate) fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Has the kernel prepare for [`heavy`], once for the process, and says whether it can. The first call may take some ten milliseconds, if there are several threads.
pub(crate) fn prepare() -> bool {
    system::prepare()
}

/// The other side. False if there was no barrier.
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
