//! How much work the stack of one sample may take.
//!
//! A process has written the tables that its stack is unwound by, and chooses how often they are asked. Each lookup, row and expression is short by
//! itself, but a stack has many frames. So the [`Unwinder`](crate::Unwinder) takes each piece of work from the sample's budget before it does it. The
//! units are counted, not measured, so that the same sample always ends at the same frame.

use std::cell::Cell;

/// The remaining work for one sample.
///
/// A unit is a frame whose rule is known, a byte of the instructions for a function, or a step of an expression. The fixed part of a lookup or an
/// expression counts as several, and the more instructions a function has, the more each of them counts.
#[derive(Debug, Clone)]
pub struct WorkBudget {
    left: Cell<u32>,
}

/// The budget is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent;

impl WorkBudget {
    /// Units for one sample. A stack of 1,000 frames takes about 200,000 of 2 ns each if none of its rules are known, and 1,000 if all are. The
    /// costliest tables that were found take 25 ns for each unit. Rules that were found before the budget was spent are known for the next sample.
    pub const FOR_SAMPLE: u32 = 1 << 19;

    /// A budget of so many units.
    pub const fn new(units: u32) -> WorkBudget {
        WorkBudget {
            left: Cell::new(units),
        }
    }

    /// The units that are left.
    pub fn left(&self) -> u32 {
        self.left.get()
    }

    /// Takes work that is about to be done. Once there was not enough, nothing is left.
    #[inline]
    pub(crate) fn spend(&self, units: u32) -> Result<(), Spent> {
        match self.left.get().checked_sub(units) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Spent)
            }
        }
    }
}
