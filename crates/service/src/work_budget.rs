//! A bound for the work of matching names of producers with regular expressions of configs, whose cost is unknown beforehand.
//!
//! It counts units, each of which takes less than a tenth of a nanosecond at worst, and not time: so the producers that match do not depend on the
//! machine's speed.

use std::cell::Cell;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct WorkBudget {
    left: Cell<u64>,
}

impl WorkBudget {
    /// So many units.
    pub(crate) fn new(units: u64) -> WorkBudget {
        WorkBudget {
            left: Cell::new(units),
        }
    }

    /// Announces this many units of work. The last work may take more than is left.
    pub(crate) fn spend(&self, units: u64) {
        self.left.set(self.left.get().saturating_sub(units));
    }

    /// Whether nothing is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_come_to_an_end() {
        let budget = WorkBudget::new(10);
        budget.spend(9);
        assert!(!budget.is_used_up());
        budget.spend(9);
        assert!(budget.is_used_up());
    }
}
