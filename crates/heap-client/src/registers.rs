//! The registers that a call stack is unwound from: those that functions preserve for their callers, the stack pointer and the place in the code.
//!
//! `report` calls this in the function whose frame the stack begins with. The order is that of the kernel's `perf_regs.h`; registers that calls do not
//! preserve are 0.
#![allow(unsafe_code)]

use crate::layout::REGISTERS;

/// The place of the stack pointer.
#[cfg(target_arch = "x86_64")]
pub(crate) const STACK_POINTER: usize = 7;
/// The place of the stack pointer.
#[cfg(target_arch = "aarch64")]
pub(crate) const STACK_POINTER: usize = 31;

/// The registers at this place in the calling function.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn capture() -> [u64; REGISTERS] {
    let mut registers = [0; REGISTERS];
    // AX, BX, CX, DX, SI, DI, BP, SP, IP, FLAGS, CS, SS, and R8 to R15 from 12 on.
    // SAFETY: writes to eight of the 20 words, and reads registers.
    unsafe {
        core::arch::asm!(
            "mov [{to} + 8], rbx",
            "mov [{to} + 48], rbp",
            "mov [{to} + 56], rsp",
            "lea {pc}, [rip]",
            "mov [{to} + 64], {pc}",
            "mov [{to} + 128], r12",
            "mov [{to} + 136], r13",
            "mov [{to} + 144], r14",
            "mov [{to} + 152], r15",
            to = in(reg) registers.as_mut_ptr(),
            pc = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    registers
}

/// The registers at this place in the calling function.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn capture() -> [u64; REGISTERS] {
    let mut registers = [0; REGISTERS];
    // X0 to X29, LR, SP, PC.
    // SAFETY: writes to 14 of the 33 words, and reads registers.
    unsafe {
        core::arch::asm!(
            "stp x19, x20, [{to}, #152]",
            "stp x21, x22, [{to}, #168]",
            "stp x23, x24, [{to}, #184]",
            "stp x25, x26, [{to}, #200]",
            "stp x27, x28, [{to}, #216]",
            "stp x29, x30, [{to}, #232]",
            "mov {scratch}, sp",
            "str {scratch}, [{to}, #248]",
            "adr {scratch}, .",
            "str {scratch}, [{to}, #256]",
            to = in(reg) registers.as_mut_ptr(),
            scratch = out(reg) _,
            options(nostack, preserves_flags),
        );
    }
    registers
}

/// The place of the stack pointer, which samples of this architecture lack.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const STACK_POINTER: usize = 0;

/// No registers: nothing is sampled on this architecture.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
pub(crate) fn capture() -> [u64; REGISTERS] {
    [0; REGISTERS]
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[test]
    fn stack_pointer_and_code_are_this_functions() {
        let local = 0_u64;
        let registers = capture();
        let pointer = registers[STACK_POINTER];
        assert!((std::ptr::from_ref(&local) as u64).abs_diff(pointer) < 64 << 10);
        let code = registers[STACK_POINTER + 1];
        assert!((stack_pointer_and_code_are_this_functions as *const () as u64).abs_diff(code) < 64 << 10);
    }
}
