//! A map from numbers to nodes, in ascending order: the fields of a message, or the elements of a repeated field.
//!
//! Most messages have few fields and there are many of them, so small maps are sorted vectors that grow by little. Large ones are trees, because
//! producers choose the keys. An entry is 40 bytes; either way it takes at most about [`ENTRY`](super::budget::ENTRY), with unused room beside it and
//! the allocator's overhead.

use std::collections::{BTreeMap, btree_map};
use std::slice;

use super::state::Node;

/// Entries that a vector may have.
const FEW: usize = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(super) enum Map {
    Few(Vec<(u64, Node)>),
    Many(BTreeMap<u64, Node>),
}

impl Map {
    pub(super) const fn new() -> Self {
        Map::Few(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Map::Few(entries) => entries.len(),
            Map::Many(entries) => entries.len(),
        }
    }

    pub(super) fn get(&self, key: u64) -> Option<&Node> {
        match self {
            Map::Few(entries) => {
                let at = entries.binary_search_by_key(&key, |entry| entry.0).ok()?;
                Some(&entries[at].1)
            }
            Map::Many(entries) => entries.get(&key),
        }
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Node> {
        match self {
            Map::Few(entries) => {
                let at = entries.binary_search_by_key(&key, |entry| entry.0).ok()?;
                Some(&mut entries[at].1)
            }
            Map::Many(entries) => entries.get_mut(&key),
        }
    }

    /// Adds a node, or puts it into the place of another, which is returned.
    pub(super) fn insert(&mut self, key: u64, node: Node) -> Option<Node> {
        match self {
            Map::Few(entries) => match entries.binary_search_by_key(&key, |entry| entry.0) {
                Ok(at) => Some(std::mem::replace(&mut entries[at].1, node)),
                Err(at) if entries.len() < FEW => {
                    if entries.len() == entries.capacity() {
                        entries.reserve_exact(1 + entries.len() / 2);
                    }
                    entries.insert(at, (key, node));
                    None
                }
                Err(_) => {
                    let mut many: BTreeMap<u64, Node> = std::mem::take(entries).into_iter().collect();
                    many.insert(key, node);
                    *self = Map::Many(many);
                    None
                }
            },
            Map::Many(entries) => entries.insert(key, node),
        }
    }

    /// Takes a node out, and gives up the room of many removed ones: programs may drain as many maps as they fill.
    pub(super) fn remove(&mut self, key: u64) -> Option<Node> {
        match self {
            Map::Few(entries) => {
                let at = entries.binary_search_by_key(&key, |entry| entry.0).ok()?;
                let (_, node) = entries.remove(at);
                if entries.capacity() > 2 * entries.len() {
                    entries.shrink_to(entries.len() + entries.len() / 2);
                }
                Some(node)
            }
            Map::Many(entries) => {
                let node = entries.remove(&key)?;
                if entries.len() <= FEW / 2 {
                    *self = Map::Few(std::mem::take(entries).into_iter().collect());
                }
                Some(node)
            }
        }
    }

    /// In ascending order of keys.
    pub(super) fn iter(&self) -> Iter<'_> {
        match self {
            Map::Few(entries) => Iter::Few(entries.iter()),
            Map::Many(entries) => Iter::Many(entries.iter()),
        }
    }

    /// In ascending order of keys.
    pub(super) fn nodes_mut(&mut self) -> NodesMut<'_> {
        match self {
            Map::Few(entries) => NodesMut::Few(entries.iter_mut()),
            Map::Many(entries) => NodesMut::Many(entries.values_mut()),
        }
    }

    /// Takes it apart, in ascending order of keys.
    pub(super) fn into_nodes(self) -> impl Iterator<Item = Node> {
        let (few, many) = match self {
            Map::Few(entries) => (Some(entries), None),
            Map::Many(entries) => (None, Some(entries)),
        };
        let few = few.into_iter().flatten().map(|(_, node)| node);
        few.chain(many.into_iter().flatten().map(|(_, node)| node))
    }
}

/// Entries of a map. Small, because recursion goes through it.
pub(super) enum Iter<'m> {
    Few(slice::Iter<'m, (u64, Node)>),
    Many(btree_map::Iter<'m, u64, Node>),
}

impl<'m> Iterator for Iter<'m> {
    type Item = (u64, &'m Node);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Few(entries) => entries.next().map(|(key, node)| (*key, node)),
            Iter::Many(entries) => entries.next().map(|(key, node)| (*key, node)),
        }
    }
}

/// Nodes of a map, to be changed.
pub(super) enum NodesMut<'m> {
    Few(slice::IterMut<'m, (u64, Node)>),
    Many(btree_map::ValuesMut<'m, u64, Node>),
}

impl<'m> Iterator for NodesMut<'m> {
    type Item = &'m mut Node;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            NodesMut::Few(entries) => entries.next().map(|(_, node)| node),
            NodesMut::Many(nodes) => nodes.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_sorted_map_whether_small_or_large() {
        for count in [1, FEW as u64 - 1, FEW as u64, FEW as u64 + 1, 1000] {
            let mut map = Map::new();
            let mut model = BTreeMap::new();
            for step in 0..count {
                // Odd numbers are invertible modulo a power of two: no key twice.
                let key = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                assert!(map.insert(key, Node::number(step)).is_none());
                model.insert(key, step);
            }
            let replaced = *model.keys().next().expect("some");
            assert_eq!(
                map.insert(replaced, Node::number(7))
                    .and_then(|node| node.as_number()),
                model.insert(replaced, 7)
            );
            let removed = *model.keys().next_back().expect("some");
            assert_eq!(
                map.remove(removed).and_then(|node| node.as_number()),
                model.remove(&removed)
            );
            assert!(map.remove(removed).is_none());
            assert_eq!(map.len(), model.len());
            let entries: Vec<(u64, u64)> = map
                .iter()
                .map(|(key, node)| (key, node.as_number().expect("a number")))
                .collect();
            assert_eq!(entries, model.into_iter().collect::<Vec<_>>());
            let nodes = map.nodes_mut().map(|node| node.as_number().expect("a number"));
            assert!(nodes.eq(entries.iter().map(|(_, number)| *number)));
            assert!(entries.iter().all(|(key, number)| {
                map.get(*key).and_then(|node| node.as_number()) == Some(*number)
                    && map.get_mut(*key).and_then(|node| node.as_number()) == Some(*number)
            }));
            let nodes = map.into_nodes().filter_map(|node| node.as_number());
            assert!(nodes.eq(entries.iter().map(|(_, number)| *number)));
        }
    }

    /// What counts for a map is its entries.
    #[test]
    fn a_map_that_was_filled_and_drained_keeps_little_room() {
        for most in [1, 2, 5, FEW as u64, FEW as u64 + 1, 1000] {
            let mut map = Map::new();
            for key in 0..most {
                map.insert(key, Node::number(key));
            }
            for key in 0..most {
                assert_eq!(map.remove(key).and_then(|node| node.as_number()), Some(key));
                let left: Vec<u64> = map.iter().map(|(key, _)| key).collect();
                assert!(left.into_iter().eq(key + 1..most));
                match &map {
                    Map::Few(entries) => assert!(entries.capacity() <= 2 * entries.len(), "{entries:?}"),
                    Map::Many(entries) => assert!(entries.len() > FEW / 2, "{entries:?}"),
                }
            }
        }
    }

    #[test]
    fn an_entry_is_smaller_than_its_counted_size() {
        let entry = size_of::<(u64, Node)>();
        assert_eq!(entry, 40);
        // The fullest a vector gets beyond its contents, and the emptiest leaf of a tree, which has 11 places and 5 entries.
        assert!(entry * 3 / 2 < super::super::budget::ENTRY as usize);
        assert!(entry * 11 / 5 < super::super::budget::ENTRY as usize);
    }
}
