//! A map of bounded size that forgets the least recently used entry.
//!
//! Scans for inodes keep the found files in one. The CPU profiler keeps the sampled processes and their names in another.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// See the [module](self).
#[derive(Debug)]
pub struct LruMap<K, V> {
    capacity: usize,
    /// Each value has the time of its last use. The clock counts uses.
    entries: HashMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
    uses: u64,
}

impl<K: Clone + Eq + Hash, V> LruMap<K, V> {
    /// A map of at most so many entries, and at least one.
    pub fn new(capacity: usize) -> LruMap<K, V> {
        LruMap {
            capacity: capacity.max(1),
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An entry, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let (last_use, value) = self.entries.get_mut(key)?;
        // Often the entry is the one that was used last.
        if *last_use != self.uses {
            self.by_use.remove(last_use);
            self.uses += 1;
            *last_use = self.uses;
            self.by_use.insert(self.uses, key.clone());
        }
        Some(value)
    }

    /// An entry, or a new one, which counts as used now. A new one may replace the entry that was not used for longest.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if self.get(&key).is_none() {
            if self.entries.len() >= self.capacity
                && let Some((_, oldest)) = self.by_use.pop_first()
            {
                self.entries.remove(&oldest);
            }
            self.uses += 1;
            self.by_use.insert(self.uses, key.clone());
        }
        let last_use = self.uses;
        &mut self.entries.entry(key).or_insert_with(|| (last_use, make())).1
    }

    /// An entry, which does not count as used.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// An entry to be changed, which does not count as used.
    pub fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    /// All values, in no order. They do not count as used.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|(_, value)| value)
    }

    /// Forgets an entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (last_use, value) = self.entries.remove(key)?;
        self.by_use.remove(&last_use);
        Some(value)
    }

    /// Forgets the entry that was not used for longest.
    pub fn pop_oldest(&mut self) -> Option<V> {
        let (_, oldest) = self.by_use.pop_first()?;
        self.entries.remove(&oldest).map(|(_, value)| value)
    }

    /// Forgets all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.by_use.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Action {
        Get,
        Add,
        Peek,
        Remove,
        PopOldest,
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![
            4 => Just(Action::Get),
            8 => Just(Action::Add),
            1 => Just(Action::Peek),
            1 => Just(Action::Remove),
            1 => Just(Action::PopOldest),
        ]
    }

    proptest! {
        #[test]
        fn what_was_used_last_is_kept(actions in prop::collection::vec((0u64..12, any_action()), 0..60), capacity in 1usize..6) {
            let mut map = LruMap::new(capacity);
            // Least recently used first.
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (count, (key, action)) in actions.into_iter().enumerate() {
                let place = model.iter().position(|(known, _)| *known == key);
                let expected = place.map(|place| model[place].1);
                match action {
                    Action::Get => {
                        prop_assert_eq!(map.get(&key).copied(), expected);
                        let known = place.map(|place| model.remove(place));
                        model.extend(known);
                    }
                    Action::Add => {
                        prop_assert_eq!(*map.get_or_insert_with(key, || count), expected.unwrap_or(count));
                        let known = place.map(|place| model.remove(place));
                        model.push(known.unwrap_or((key, count)));
                    }
                    Action::Peek => prop_assert_eq!(map.peek(&key).copied(), expected),
                    Action::Remove => {
                        prop_assert_eq!(map.remove(&key), expected);
                        place.map(|place| model.remove(place));
                    }
                    Action::PopOldest => {
                        let oldest = (!model.is_empty()).then(|| model.remove(0).1);
                        prop_assert_eq!(map.pop_oldest(), oldest);
                    }
                }
                if model.len() > capacity {
                    model.remove(0);
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert_eq!(map.by_use.len(), model.len());
            }
        }
    }
}
