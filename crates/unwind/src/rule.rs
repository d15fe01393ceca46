//! How to get from the registers in a function to those in its caller, in 36 bytes.
//!
//! A rule holds for one instruction. [`tables`](crate::tables) makes it from the file's tables, the [`Unwinder`](crate::Unwinder) keeps it, and
//! [`Rule::step`] follows it: with a few loads, and without the tables.

use crate::registers::{MOST_PRESERVED, Registers};
use crate::stack::{Outside, StackCopy};
use crate::unwinder::FrameKind;
use crate::work::Spent;

/// The action of a rule.
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

/// Which registers are followed from frame to frame. Nearly all functions need no others than the pointers to leave them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The pc, the stack pointer and the frame pointer.
    Pointers,
    /// All that callees preserve.
    Preserved,
}

/// Why there is no next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// This is the last one.
    Root,
    /// The needed word lies behind the copy of the stack, at this address.
    StackEnds(u64),
    /// The needed word is not in the stack, a register is unknown, or the stack pointer does not move.
    Broken,
    /// The sample's work is spent.
    OverBudget,
}

impl From<Spent> for Stop {
    fn from(_: Spent) -> Stop {
        Stop::OverBudget
    }
}

impl From<Outside> for Stop {
    fn from(outside: Outside) -> Stop {
        match outside {
            Outside::Behind(address) => Stop::StackEnds(address),
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

    /// Replaces `registers` by those of the caller of a function that is active as `kind` says.
    pub(crate) fn step(
        &self,
        registers: &mut Registers,
        stack: &StackCopy<'_>,
        kind: FrameKind,
        kept: Kept,
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
            UNCHANGED if kind.is_exact() => registers.get(arch.return_address()).ok_or(Stop::Broken)?,
            // A function that has called another has saved its return address.
            UNCHANGED | LOST => return Err(Stop::Broken),
            slot => stack.read(at(caller, slot))?,
        };
        // So that unwinding comes to an end. An interrupted function may not have pushed anything yet.
        if caller <= registers.stack_pointer() && !kind.is_exact() {
            return Err(Stop::Broken);
        }
        match kept {
            Kept::Pointers => {
                let slot = self.saved[arch.frame_pointer_place()];
                restore(registers, stack, kind, arch.frame_pointer(), caller, slot);
                registers.leave_with_pointers(pc, caller);
            }
            Kept::Preserved => {
                for (&number, &slot) in arch.preserved().iter().zip(&self.saved) {
                    restore(registers, stack, kind, number.into(), caller, slot);
                }
                registers.leave(pc, caller);
            }
        }
        Ok(())
    }
}

/// Gives a register the value that it has in the caller.
#[inline]
fn restore(
    registers: &mut Registers,
    stack: &StackCopy<'_>,
    kind: FrameKind,
    number: u16,
    caller: u64,
    slot: Slot,
) {
    let value = match slot {
        UNCHANGED => return,
        LOST => None,
        _ => match stack.read(at(caller, slot)) {
            // In an epilogue, tables often still say where a register was saved below the stack pointer. It has its value already.
            Err(Outside::Elsewhere) if kind.is_exact() => return,
            value => value.ok(),
        },
    };
    match value {
        Some(value) => registers.set(number, value),
        None => registers.forget(number),
    }
}

fn at(caller: u64, slot: Slot) -> u64 {
    caller.wrapping_add_signed(i64::from(slot) * 8)
}
