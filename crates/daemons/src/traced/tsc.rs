//! The time-stamp counter, the one clock that no system call reads.
#![allow(unsafe_code)]

/// The counter's reading in ticks, on processors that have one.
pub fn read() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction, and Linux lets user space use it unless a process
        // forbids it to itself with prctl(PR_SET_TSC), which we do not.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}
