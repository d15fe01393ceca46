//! Maps and sets in the order of their keys, for small numbers of things: sessions, buffers, consumers, names.
//!
//! The service and its drivers use them. They look and behave like the standard library's B-trees, but are vectors: a removal moves all later
//! entries. For hundreds of entries that is as fast. They exist for the sake of build time: the compiler generates 10,000 lines for each type of
//! entry in a B-tree, and two dozen of these took half of the build time of a program that embeds the service. Things that a hostile client can
//! create by the thousand are not kept here: data sources on offer are in a B-tree, and unordered things are in hash tables. Sets of small
//! values may have thousands: to move ten thousand tokens of connections takes a microsecond or two, and to serve one of these connections more.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Index;

/// A map in the order of its keys.
#[derive(Clone, PartialEq, Eq)]
pub struct OrderedMap<K, V>(Vec<(K, V)>);

impl<K, V> OrderedMap<K, V> {
    /// An empty one.
    pub const fn new() -> Self {
        OrderedMap(Vec::new())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The entries, in order, their values to be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// The values, in the order of their keys, to be changed.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// The values, in the order of their keys.
    pub(crate) fn into_values(self) -> impl Iterator<Item = V> {
        self.0.into_iter().map(|(_, value)| value)
    }

    /// Drops the entries that are not to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> OrderedMap<K, V> {
    /// The position of the key, or else the position to insert it at.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    /// The value of the key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&self.0[at].1)
    }

    /// The entry behind this key, which need not be there itself.
    pub fn after(&self, key: &K) -> Option<(&K, &V)> {
        let place = self.0.partition_point(|(known, _)| known <= key);
        self.0.get(place).map(|(key, value)| (key, value))
    }

    /// The key that is equal, and its value.
    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (key, value) = &self.0[self.find(key).ok()?];
        Some((key, value))
    }

    /// The value of the key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Whether there is a value of the key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Sets the value of the key; gives the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Takes the entry out; gives its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// The value of the key, put there by `make` if there was none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, make()));
            at
        });
        &mut self.0[at].1
    }
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        OrderedMap::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for OrderedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for OrderedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no entry found for key")
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for OrderedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = OrderedMap::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V> Extend<(K, V)> for OrderedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K, V> IntoIterator for OrderedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A set in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedSet<T>(Vec<T>);

impl<T> OrderedSet<T> {
    /// An empty one.
    pub const fn new() -> Self {
        OrderedSet(Vec::new())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The least value.
    pub fn first(&self) -> Option<&T> {
        self.0.first()
    }
}

impl<T: Ord> OrderedSet<T> {
    /// Whether the value is there.
    pub fn contains<Q: Ord + ?Sized>(&self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.0.binary_search_by(|other| other.borrow().cmp(value)).is_ok()
    }

    /// Adds the value; whether it was not there.
    pub fn insert(&mut self, value: T) -> bool {
        match self.0.binary_search(&value) {
            Ok(_) => false,
            Err(at) => {
                self.0.insert(at, value);
                true
            }
        }
    }

    /// Takes the least value out.
    pub fn pop_first(&mut self) -> Option<T> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes the value out; whether it was there.
    pub fn remove(&mut self, value: &T) -> bool {
        let at = self.0.binary_search(value);
        at.is_ok_and(|at| {
            self.0.remove(at);
            true
        })
    }
}

impl<T> Default for OrderedSet<T> {
    fn default() -> Self {
        OrderedSet::new()
    }
}

impl<T: Ord> FromIterator<T> for OrderedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut set = OrderedSet::new();
        set.extend(values);
        set
    }
}

impl<T: Ord> Extend<T> for OrderedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        for value in values {
            self.insert(value);
        }
    }
}

impl<T> IntoIterator for OrderedSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a OrderedSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_map_behaves_like_a_b_tree(steps in prop::collection::vec((0u8..4, 0u8..20, any::<u8>()), 0..200)) {
            let (mut map, mut model) = (OrderedMap::new(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    1 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    2 => prop_assert_eq!(map.get_or_insert_with(key, || value), model.entry(key).or_insert(value)),
                    _ => {
                        map.retain(|other, _| *other != key);
                        model.retain(|other, _| *other != key);
                    }
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                prop_assert_eq!(map.contains_key(&key), model.contains_key(&key));
                prop_assert!(map.iter().eq(model.iter()));
            }
        }

        #[test]
        fn a_set_behaves_like_a_b_tree(first in any::<Vec<u8>>(), steps in prop::collection::vec((0u8..3, any::<u8>()), 0..200)) {
            let (mut set, mut model): (OrderedSet<u8>, BTreeSet<u8>) =
                (first.iter().copied().collect(), first.iter().copied().collect());
            for (step, value) in steps {
                match step {
                    0 => prop_assert_eq!(set.insert(value), model.insert(value)),
                    1 => prop_assert_eq!(set.remove(&value), model.remove(&value)),
                    _ => prop_assert_eq!(set.pop_first(), model.pop_first()),
                }
                prop_assert_eq!(set.contains(&value), model.contains(&value));
                prop_assert!((&set).into_iter().eq(model.iter()));
            }
        }
    }
}
