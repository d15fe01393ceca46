//! The registers of a thread in user space, by their DWARF numbers.
//!
//! The caller makes them from a sample ([`Registers::from_perf`]); unwinding replaces them by those of the caller of the function, frame by frame.

/// The architectures whose stacks can be unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arch {
    /// `x86_64`, with 64-bit pointers.
    X86_64,
    /// `aarch64`.
    Aarch64,
}

/// Registers that the callee of a function preserves, at most.
pub(crate) const MOST_PRESERVED: usize = 12;

impl Arch {
    /// The architecture that this program runs on.
    pub const fn current() -> Option<Arch> {
        if cfg!(target_arch = "x86_64") {
            Some(Arch::X86_64)
        } else if cfg!(target_arch = "aarch64") {
            Some(Arch::Aarch64)
        } else {
            None
        }
    }

    /// The registers to sample: `perf_event_attr.sample_regs_user`, a bit for each register of the kernel's `enum perf_event_x86_regs` (all but the
    /// segments that the kernel refuses) or `enum perf_event_arm_regs`.
    pub const fn perf_mask(self) -> u64 {
        match self {
            // AX to SS, and R8 to R15. DS, ES, FS and GS cannot be sampled.
            Arch::X86_64 => 0xff_0fff,
            // X0 to X29, LR, SP, PC.
            Arch::Aarch64 => (1 << 33) - 1,
        }
    }

    /// DWARF number of the stack pointer.
    pub(crate) const fn stack_pointer(self) -> u16 {
        match self {
            Arch::X86_64 => 7,
            Arch::Aarch64 => 31,
        }
    }

    /// DWARF number of the frame pointer.
    pub(crate) const fn frame_pointer(self) -> u16 {
        match self {
            Arch::X86_64 => 6,
            Arch::Aarch64 => 29,
        }
    }

    /// Place of the frame pointer among the [preserved](Self::preserved) registers.
    pub(crate) const fn frame_pointer_place(self) -> usize {
        match self {
            Arch::X86_64 => 1,
            Arch::Aarch64 => 10,
        }
    }

    /// DWARF number of the column that has the return address: on x86_64 of no register, on aarch64 of the link register.
    pub(crate) const fn return_address(self) -> u16 {
        match self {
            Arch::X86_64 => 16,
            Arch::Aarch64 => 30,
        }
    }

    /// DWARF numbers of the registers that hold the same value after a call as before, without the stack pointer.
    pub(crate) const fn preserved(self) -> &'static [u8] {
        match self {
            Arch::X86_64 => &[3, 6, 12, 13, 14, 15],
            Arch::Aarch64 => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30],
        }
    }

    /// Bits of [`Registers`]' known registers that stay known in the caller.
    const fn preserved_mask(self) -> u64 {
        let (numbers, mut index, mut mask) = (self.preserved(), 0, 0);
        while index < numbers.len() {
            mask |= 1 << numbers[index];
            index += 1;
        }
        mask
    }

    /// By how much a return address is lowered to be in the call, as libunwindstack does.
    pub(crate) const fn call_length(self) -> u64 {
        match self {
            Arch::X86_64 => 1,
            Arch::Aarch64 => 4,
        }
    }
}

/// Registers of a thread, some of which may be unknown.
#[derive(Debug, Clone, Copy)]
pub struct Registers {
    arch: Arch,
    /// Where the thread is.
    pc: u64,
    values: [u64; 32],
    /// A bit for each value that is known.
    known: u64,
}

impl Registers {
    /// Registers of which pc, stack pointer and frame pointer are known.
    pub fn new(arch: Arch, pc: u64, stack_pointer: u64, frame_pointer: u64) -> Registers {
        let mut registers = Registers {
            arch,
            pc,
            values: [0; 32],
            known: 0,
        };
        registers.set(arch.stack_pointer(), stack_pointer);
        registers.set(arch.frame_pointer(), frame_pointer);
        registers
    }

    /// The registers of a sample with `PERF_SAMPLE_REGS_USER`: `mask` is the event's `sample_regs_user`, `values` has one value for each of its
    /// bits, lowest first. `None` if pc or stack pointer are not among them.
    pub fn from_perf(arch: Arch, mask: u64, values: &[u64]) -> Option<Registers> {
        let mut registers = Registers {
            arch,
            pc: 0,
            values: [0; 32],
            known: 0,
        };
        let mut pc = None;
        let numbers = (0..64u16).filter(|number| mask >> number & 1 == 1);
        for (number, &value) in numbers.zip(values) {
            let dwarf = match (arch, number) {
                (Arch::X86_64, 8) | (Arch::Aarch64, 32) => {
                    pc = Some(value);
                    continue;
                }
                // The kernel's order is AX, BX, CX, DX, SI, DI, BP, SP; that of DWARF AX, DX, CX, BX, SI, DI, BP, SP.
                (Arch::X86_64, 1) => 3,
                (Arch::X86_64, 3) => 1,
                (Arch::X86_64, 0..8) => number,
                (Arch::X86_64, 16..24) => number - 8,
                (Arch::Aarch64, 0..32) => number,
                _ => continue,
            };
            registers.set(dwarf, value);
        }
        registers.pc = pc?;
        registers.get(arch.stack_pointer()).map(|_| registers)
    }

    /// Whose registers these are.
    pub(crate) fn arch(&self) -> Arch {
        self.arch
    }

    /// Where the thread is.
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// The stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.values[self.arch.stack_pointer() as usize]
    }

    /// The value of the register with the DWARF number `number`, if it is known.
    pub fn get(&self, number: u16) -> Option<u64> {
        let value = self.values.get(usize::from(number))?;
        (self.known >> number & 1 == 1).then_some(*value)
    }

    /// Sets the register with the DWARF number `number`; others than the general registers are left out.
    pub fn set(&mut self, number: u16, value: u64) {
        if let Some(place) = self.values.get_mut(usize::from(number)) {
            *place = value;
            self.known |= 1 << number;
        }
    }

    pub(crate) fn forget(&mut self, number: u16) {
        self.known &= !(1u64.checked_shl(number.into()).unwrap_or(0));
    }

    /// Goes to the caller, of which only stack pointer and frame pointer are known.
    pub(crate) fn leave_with_pointers(&mut self, pc: u64, stack_pointer: u64) {
        self.pc = pc;
        self.known &= 1 << self.arch.frame_pointer();
        self.set(self.arch.stack_pointer(), stack_pointer);
    }

    /// Goes to a function that was interrupted.
    pub(crate) fn resume(&mut self, pc: u64, stack_pointer: u64) {
        self.pc = pc;
        self.set(self.arch.stack_pointer(), stack_pointer);
    }

    pub(crate) fn set_pc(&mut self, pc: u64) {
        self.pc = pc;
    }

    /// Goes to the caller: registers that callees do not preserve become unknown.
    pub(crate) fn leave(&mut self, pc: u64, stack_pointer: u64) {
        self.pc = pc;
        self.known &= self.arch.preserved_mask();
        self.set(self.arch.stack_pointer(), stack_pointer);
    }
}
