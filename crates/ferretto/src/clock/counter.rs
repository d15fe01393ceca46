//! The processor's time-stamp counter. Read by anchors for every event, and by the timeline.
//!
//! [`read`] never fails. [`is_reliable`] tells whether its values can be used as a clock.
#![allow(unsafe_code)]

use std::fs;

/// The counter in ticks. The processor may execute this earlier than program order says, by as much as it reorders.
#[inline(always)]
pub(super) fn read() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 processor has the instruction. A process that has forbidden it to itself (PR_SET_TSC) gets a signal, as it does from
        // clock_gettime, which uses the same instruction in the kernel's vDSO.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: reads a register that Linux lets user space read (or emulates, where the hardware has errata).
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
        };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        0
    }
}

/// The counter in ticks, read when all earlier instructions in program order are done.
pub(super) fn read_in_order() -> u64 {
    finish_earlier_instructions();
    read()
}

/// Waits (some nanoseconds) until all earlier instructions in program order are done, so that a time that is read afterwards is later than they are.
#[inline]
pub(crate) fn finish_earlier_instructions() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: part of every x86-64 processor's instruction set. Linux has AMD's wait as Intel's do.
        unsafe { core::arch::x86_64::_mm_lfence() };
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: a barrier, without any other effect.
        unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
    }
}

/// Whether the counter goes at one speed whatever the processor does, and alike on all processors.
pub(super) fn is_reliable() -> bool {
    // The kernel compares the processors' counters when it starts and watches them against another clock from then on, so its judgement counts. Where
    // its file cannot be read, nothing vouches for the counter, and a slower clock is better than a wrong one.
    let current = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    is_constant() && current.is_ok_and(|source| is_made_of_counter(source.trim_end()))
}

/// Whether the kernel's clock source of this name is the counter, or a hypervisor's clock that the guest computes from it.
///
/// The kernel uses the others (`hpet`, `acpi_pm`, `jiffies`, `hyperv_clocksource_msr`, ...) when it found the counter unstable or had none. It uses
/// `tsc-early` while booting, before it has judged the counter.
pub(super) fn is_made_of_counter(clock_source: &str) -> bool {
    const TRUSTED: &[&str] = if cfg!(target_arch = "x86_64") {
        &["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen"]
    } else if cfg!(target_arch = "aarch64") {
        &["arch_sys_counter"]
    } else {
        &[]
    };
    TRUSTED.contains(&clock_source)
}

/// Whether the processor says that its counter goes at one speed in all of its power states. A hypervisor that moves guests
/// between machines and cannot keep the speed does not say so.
#[cfg(target_arch = "x86_64")]
#[allow(
    unused_unsafe,
    reason = "the intrinsic is safe in newer compilers than our oldest"
)]
fn is_constant() -> bool {
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8; // in EDX
    // SAFETY: every x86-64 processor has the instruction.
    let highest = unsafe { core::arch::x86_64::__cpuid(0x8000_0000) }.eax;
    // SAFETY: as above.
    highest >= POWER_MANAGEMENT
        && unsafe { core::arch::x86_64::__cpuid(POWER_MANAGEMENT) }.edx & INVARIANT != 0
}

/// Part of the architecture elsewhere.
#[cfg(not(target_arch = "x86_64"))]
fn is_constant() -> bool {
    true
}
