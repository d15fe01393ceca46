//! How to get from the registers in a function to those in its caller, in 36 bytes.
//!
//! A rule holds for one instruction. [`tables`](crate::tables) makes it from the file's tables, the [`Unwinder`](crate::Unwinder) keeps it, and
//! [`Rule::step`] follows it: with a few loads, and without the tables.

use crate::registers::{MOST_PRESERVED, Registers};
use crate::stack::{Outside, StackCopy};

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleKind {
    /// The caller's stack pointer (the *canonical frame address*) is a register plus an offset.
    Register,
    /// It is in the stack, where a register plus an offset points.
    InStack,
    /// There is no caller: the tables say that the return address is undefined.
    Root,
    /// No rule of these kinds: the tables have to be evaluated each time.
    Evaluated,
}

/// Where the caller's value of a register is, as multiples of 8 bytes above the caller's stack pointer.
pub(crate) type Slot = i16;
/// The register has the same value.
pub(crate) const UNCHANGED: Slot = 0;
/// The value is lost.
pub(crate) const LOST: Slot = Slot::MIN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) kind: RuleKind,
    /// DWARF number of the register that the caller's stack pointer is computed from.
    pub(crate) base: u8,
    pub(crate) offset: i32,
    /// Where the return address is; [`UNCHANGED`] if it is in the link register.
    pub(crate) return_address: Slot,
    /// Where the registers of [`Arch::preserved`](crate::Arch) are, in that order.
    pub(crate) saved: [Slot; MOST_PRESERVED],
}

/// Why there is no next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// This is the last one.
    Root,
    /// What is needed lies behind the copy of the stack.
    StackEnds,
    /// What is needed is not in the stack, a register is unknown, or the stack pointer does not move.
    Broken,
}

impl From<Outside> for Stop {
    fn from(outside: Outside) -> Stop {
        match outside {
            Outside::Behind => Stop::StackEnds,
            Outside::Elsewhere => Stop::Broken,
        }
    }
}

impl Rule {
    pub(crate) const ROOT: Rule = Rule::of_kind(RuleKind::Root);
    pub(crate) const EVALUATED: Rule = Rule::of_kind(RuleKind::Evaluated);

    const fn of_kind(kind: RuleKind) -> Rule {
        Rule {
            kind,
            base: 0,
            offset: 0,
            return_address: UNCHANGED,
            saved: [UNCHANGED; MOST_PRESERVED],
        }
    }

    /// Replaces `registers` by those of the caller. `interrupted`: the thread was stopped at the pc, it is not one that a callee returns to.
    pub(crate) fn step(
        &self,
        registers: &mut Registers,
        stack: &StackCopy<'_>,
        interrupted: bool,
    ) -> Result<(), Stop> {
        if self.kind == RuleKind::Root {
            return Err(Stop::Root);
        }
        let base = registers.get(self.base.into()).ok_or(Stop::Broken)?;
        let mut caller = base.wrapping_add_signed(self.offset.into());
        if self.kind == RuleKind::InStack {
            caller = stack.read(caller)?;
        }
        let arch = registers.arch();
        let pc = match self.return_address {
            UNCHANGED if interrupted => registers.get(arch.return_address()).ok_or(Stop::Broken)?,
            // A function that has called another has saved its return address.
            UNCHANGED | LOST => return Err(Stop::Broken),
            slot => stack.read(at(caller, slot))?,
        };
        advances(registers, caller, interrupted)?;
        for (&number, &slot) in arch.preserved().iter().zip(&self.saved) {
            if slot == UNCHANGED {
                continue;
            }
            // In an epilogue, tables often still say where a register was saved below the stack pointer. It has its value already.
            let value = match slot {
                LOST => None,
                _ => match stack.read(at(caller, slot)) {
                    Err(Outside::Elsewhere) if interrupted => continue,
                    value => value.ok(),
                },
            };
            match value {
                Some(value) => registers.set(number.into(), value),
                None => registers.forget(number.into()),
            }
        }
        registers.leave(pc, caller);
        Ok(())
    }
}

/// That the caller's stack pointer is above that of the callee, so that unwinding comes to an end. An interrupted function may not have pushed
/// anything yet, on processors that do not push return addresses; a signal handler may have another stack.
pub(crate) fn advances(registers: &Registers, caller: u64, may_stay: bool) -> Result<(), Stop> {
    if caller > registers.stack_pointer() || may_stay {
        Ok(())
    } else {
        Err(Stop::Broken)
    }
}

fn at(caller: u64, slot: Slot) -> u64 {
    caller.wrapping_add_signed(i64::from(slot) * 8)
}
