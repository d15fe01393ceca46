//! How much of a limited resource each owner has: the connections, bytes or data sources of a user or a process.
//!
//! Code that hands out such a resource keeps a [`Ledger`] of it. It takes from the ledger before it hands out, and gives back at the end. The limits
//! are in [`limits`](crate::limits). An owner that has nothing takes no memory.

use crate::ordered::OrderedMap;

/// The amounts of one resource, by owner.
#[derive(Clone, Debug)]
pub struct Ledger<K> {
    amounts: OrderedMap<K, usize>,
    total: usize,
}

impl<K: Ord> Ledger<K> {
    /// A ledger in which no owner has anything.
    pub const fn new() -> Self {
        Ledger {
            amounts: OrderedMap::new(),
            total: 0,
        }
    }

    /// Returns the amount of this owner.
    pub fn of(&self, owner: &K) -> usize {
        self.amounts.get(owner).copied().unwrap_or_default()
    }

    /// Returns the amount of all owners together.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether this owner may have `more`, given this limit for each owner.
    pub fn has_room(&self, owner: &K, more: usize, limit: usize) -> bool {
        self.of(owner).checked_add(more).is_some_and(|sum| sum <= limit)
    }

    /// Adds to the owner's amount.
    pub fn take(&mut self, owner: K, amount: usize) {
        self.replace(owner, 0, amount);
    }

    /// Subtracts from the owner's amount.
    pub fn give_back(&mut self, owner: K, amount: usize) {
        self.replace(owner, amount, 0);
    }

    /// Something of the owner that took `before` takes `now`.
    pub fn replace(&mut self, owner: K, before: usize, now: usize) {
        let had = self.of(&owner);
        debug_assert!(had >= before, "an owner gives back what it has");
        let has = had.saturating_sub(before).saturating_add(now);
        self.total = self.total - had + has;
        match has {
            0 => drop(self.amounts.remove(&owner)),
            _ => *self.amounts.get_or_insert_with(owner, usize::default) = has,
        }
    }

    /// Whether no owner has anything.
    pub fn is_empty(&self) -> bool {
        self.amounts.is_empty()
    }
}

impl<K: Ord> Default for Ledger<K> {
    fn default() -> Self {
        Ledger::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_ledger_sums_up_the_amounts_of_each_owner(steps in prop::collection::vec((0u8..5, 0usize..100), 0..100)) {
            let mut ledger = Ledger::new();
            let mut items: Vec<(u8, usize)> = Vec::new();
            for (owner, size) in steps {
                match items.iter().position(|(other, _)| *other == owner) {
                    Some(at) if size % 3 == 0 => {
                        let (_, gone) = items.swap_remove(at);
                        ledger.give_back(owner, gone);
                    }
                    Some(at) if size % 3 == 1 => {
                        ledger.replace(owner, items[at].1, size);
                        items[at].1 = size;
                    }
                    _ => {
                        ledger.take(owner, size);
                        items.push((owner, size));
                    }
                }
                let of = |owner| items.iter().filter(|item| item.0 == owner).map(|item| item.1).sum::<usize>();
                for owner in 0..5 {
                    prop_assert_eq!(ledger.of(&owner), of(owner));
                    prop_assert!(ledger.has_room(&owner, 100 - of(owner).min(100), 100.max(of(owner))));
                    prop_assert!(!ledger.has_room(&owner, 101, 100 + of(owner)));
                }
                prop_assert_eq!(ledger.total(), items.iter().map(|item| item.1).sum::<usize>());
            }
        }
    }

    #[test]
    fn owners_that_have_nothing_are_forgotten() {
        let mut ledger = Ledger::new();
        ledger.take(1, 5);
        ledger.take(2, 0);
        ledger.replace(1, 5, 7);
        ledger.give_back(1, 7);
        assert!(ledger.is_empty());
        assert!(!ledger.has_room(&1, usize::MAX, usize::MAX - 1));
    }
}
