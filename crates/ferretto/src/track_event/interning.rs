//! Ids for strings that events repeat. They are process-wide, so that a call site knows its ids whatever sequence it writes to.
//!
//! Called when call sites are first used, never per event. Perfetto's ids are local to a sequence, but two sequences may use the same ids. Each
//! sequence emits the entries that it uses at their first use ([`super::sequence`]). Nothing is allocated or freed under the locks, because events
//! wait for them ([`ferretto_client::room`] has the reasons).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The strings of one field of `InternedData`.
pub(super) struct Interner(Mutex<Table>);

/// See [`Interner::hold`].
pub(super) type Held<'a> = MutexGuard<'a, Table>;

pub(super) struct Table {
    ids: HashMap<&'static str, u32, BuildHasherDefault<DefaultHasher>>,
    strings: Vec<&'static str>,
}

/// Names of events.
pub(super) static EVENT_NAMES: Interner = Interner::new();
/// Names of categories.
pub(super) static CATEGORIES: Interner = Interner::new();
/// Names of debug annotations.
pub(super) static ANNOTATION_NAMES: Interner = Interner::new();

impl Interner {
    const fn new() -> Self {
        Self(Mutex::new(Table::new()))
    }

    /// The id of a string: from 1 on, the same each time.
    pub(super) fn id(&self, string: &'static str) -> u32 {
        let mut spare = Table::new();
        loop {
            let mut table = self.hold();
            if !table.ids.contains_key(string) && table.room() == 0 && spare.room() > table.strings.len() {
                for string in &table.strings {
                    spare.add(string);
                }
                std::mem::swap(&mut *table, &mut spare);
            }
            let id = table.ids.get(string).copied().or_else(|| table.add(string));
            let needed = 2 * table.strings.len() + 16;
            drop(table);
            match id {
                Some(id) => return id,
                None => spare = Table::with_room_for(needed),
            }
        }
    }

    /// The string that has this id.
    pub(super) fn string(&self, id: u32) -> &'static str {
        let table = self.hold();
        let string = table.strings.get((id as usize).wrapping_sub(1));
        string.copied().unwrap_or_default()
    }

    /// Keeps all other threads out.
    pub(super) fn hold(&self) -> Held<'_> {
        // Nothing panics while it holds the lock, and a table is never half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    const fn new() -> Self {
        Self {
            ids: HashMap::with_hasher(BuildHasherDefault::new()),
            strings: Vec::new(),
        }
    }

    fn with_room_for(strings: usize) -> Self {
        Self {
            ids: HashMap::with_capacity_and_hasher(strings, BuildHasherDefault::new()),
            strings: Vec::with_capacity(strings),
        }
    }

    /// The number of entries that there is memory for.
    fn room(&self) -> usize {
        let len = self.strings.len();
        self.strings.capacity().min(self.ids.capacity()) - len
    }

    /// Adds a string that is not in the table, if there is room, with the next id.
    fn add(&mut self, string: &'static str) -> Option<u32> {
        if self.room() == 0 {
            return None;
        }
        self.strings.push(string);
        let id = self.strings.len() as u32;
        self.ids.insert(string, id);
        Some(id)
    }
}

/// The ids that a sequence has emitted.
#[derive(Clone, Debug, Default)]
pub(super) struct IdSet(Vec<u64>);

impl IdSet {
    #[inline(always)]
    pub(super) fn contains(&self, id: u32) -> bool {
        self.0
            .get(id as usize / 64)
            .is_some_and(|word| word >> (id % 64) & 1 != 0)
    }

    /// Adds an id; returns whether it was missing.
    pub(super) fn insert(&mut self, id: u32) -> bool {
        let (index, bit) = (id as usize / 64, 1 << (id % 64));
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        let missing = self.0[index] & bit == 0;
        self.0[index] |= bit;
        missing
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_string_keeps_its_id_and_an_id_its_string() {
        static TABLE: Interner = Interner::new();
        let (one, two) = (TABLE.id("one"), TABLE.id("two"));
        assert_eq!((one, two), (1, 2));
        assert_eq!(TABLE.id("one"), one);
        assert_eq!((TABLE.string(one), TABLE.string(two)), ("one", "two"));
    }

    #[test]
    fn a_table_that_grows_keeps_its_ids() {
        static TABLE: Interner = Interner::new();
        let text: &'static str = "x".repeat(1000).leak();
        for round in 0..2 {
            for len in 1..=text.len() {
                assert_eq!(TABLE.id(&text[..len]), len as u32, "round {round}");
                assert_eq!(TABLE.string(len as u32).len(), len);
            }
        }
    }

    proptest! {
        #[test]
        fn a_set_of_ids_is_a_set(ids in proptest::collection::vec(0u32..500, 0..100)) {
            let mut set = IdSet::default();
            let mut model = BTreeSet::new();
            for id in ids {
                prop_assert_eq!(set.insert(id), model.insert(id));
            }
            for id in 0..600 {
                prop_assert_eq!(set.contains(id), model.contains(&id));
            }
            set.clear();
            prop_assert!((0..600).all(|id| !set.contains(id)));
        }
    }
}
