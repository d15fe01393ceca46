//! Entries with numbers, in the order in which they got them.
//!
//! [`Interning`](super::Interning) has one for each kind of entry. Numbers begin at 1 and are never given twice, also after entries were
//! [removed](Table::retain).

use std::borrow::Borrow;
use std::hash::Hash;

/// See the [module](self). A key is cheap to clone.
#[derive(Debug)]
pub(super) struct Table<K> {
    /// With a quick hash, which begins with random numbers.
    numbers: foldhash::HashMap<K, u64>,
    /// The same, by number.
    entries: Vec<(u64, K)>,
    /// How many of these readers know.
    told: usize,
    last: u64,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table {
            numbers: foldhash::HashMap::default(),
            entries: Vec::new(),
            told: 0,
            last: 0,
        }
    }
}

impl<K> Table<K> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().map(|(_, key)| key)
    }

    pub(super) fn forget_told(&mut self) {
        self.told = 0;
    }

    /// The next entry that readers do not know, which they do from now on.
    pub(super) fn take_untold(&mut self) -> Option<(u64, &K)> {
        let (number, key) = self.entries.get(self.told)?;
        self.told += 1;
        Some((*number, key))
    }
}

impl<K: Clone + Eq + Hash> Table<K> {
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        self.numbers.get(key).copied()
    }

    /// Gives a new entry its number.
    pub(super) fn insert(&mut self, key: K) -> u64 {
        self.last += 1;
        self.entries.push((self.last, key.clone()));
        self.numbers.insert(key, self.last);
        self.last
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(u64, &K) -> bool) {
        let (told, mut index, mut still_told) = (self.told, 0, 0);
        let numbers = &mut self.numbers;
        self.entries.retain(|(number, key)| {
            let keeps = keep(*number, key);
            match keeps {
                true => still_told += usize::from(index < told),
                false => drop(numbers.remove(key)),
            }
            index += 1;
            keeps
        });
        self.told = still_told;
        self.entries.shrink_to_fit();
        self.numbers.shrink_to_fit();
    }
}
