//! Which slices are above or below others, and which arrows can be reached from them: held in memory for one execution of a plan.
//!
//! [`reached`](super::reached) fills and asks it. A slice takes 20 bytes, an arrow 32.

use std::collections::{HashSet, VecDeque};

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::exec_datafusion_err;
use datafusion::error::Result;

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kin {
    /// The slices that a slice is within.
    Ancestors,
    /// The slices within a slice.
    Descendants,
    /// The ancestors of each slice with a stack.
    AncestorsOfStack,
    /// The descendants of each slice with a stack.
    DescendantsOfStack,
    /// The arrows that can be reached from a slice, where a reached slice also reaches the slices within it.
    Following,
    /// The arrows from which a slice can be reached, where whatever reaches a slice also reaches the slices around it.
    Preceding,
    /// The arrows that can be followed from a slice, all forwards or all backwards.
    Connected,
}

impl Kin {
    pub(super) fn are_flows(self) -> bool {
        matches!(self, Kin::Following | Kin::Preceding | Kin::Connected)
    }

    pub(super) fn is_by_stack(self) -> bool {
        matches!(self, Kin::AncestorsOfStack | Kin::DescendantsOfStack)
    }
}

/// A slice, by its place among the sorted ids.
type Node = u32;
const NONE: Node = Node::MAX;

/// The arrows of one direction, sorted by the slice that they are followed from: that slice, the other one, the arrow's id.
type Arrows = Vec<(Node, Node, i64)>;

/// All slices, and what connects them.
#[derive(Debug, Default)]
pub(super) struct Family {
    ids: Vec<i64>,
    parents: Vec<Node>,
    /// The children of `n` are in `children` from `first_child[n]` to `first_child[n + 1]`.
    first_child: Vec<Node>,
    children: Vec<Node>,
    /// The slices by their stacks, sorted.
    stacks: Vec<(i64, Node)>,
    out: Arrows,
    into: Arrows,
}

/// Returns the columns of all batches, row by row. Rows without the first column are left out.
fn rows<const N: usize>(batches: &[RecordBatch]) -> Result<Vec<[Option<i64>; N]>> {
    let mut rows = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
    for batch in batches {
        let columns = batch.columns().iter().take(N);
        let columns = columns
            .map(|column| Ok(cast(column, &DataType::Int64)?))
            .collect::<Result<Vec<_>>>()?;
        for row in 0..batch.num_rows() {
            let mut values = [None; N];
            for (value, column) in values.iter_mut().zip(&columns) {
                *value = column
                    .is_valid(row)
                    .then(|| column.as_primitive::<Int64Type>().value(row));
            }
            if values[0].is_some() {
                rows.push(values);
            }
        }
    }
    Ok(rows)
}

impl Family {
    /// Takes in slices, with the columns id, id of the parent and stack; and arrows, with the columns from, to and id.
    pub(super) fn new(kin: Kin, slices: &[RecordBatch], flows: &[RecordBatch]) -> Result<Family> {
        let mut slices = rows::<3>(slices)?;
        slices.sort_unstable_by_key(|[id, ..]| *id);
        if u32::try_from(slices.len()).is_err() {
            return Err(exec_datafusion_err!(
                "{} slices are too many to be followed; ask about a part of the trace",
                slices.len()
            ));
        }
        let mut family = Family {
            ids: slices.iter().filter_map(|[id, ..]| *id).collect(),
            ..Family::default()
        };
        family.parents = slices
            .iter()
            .map(|[_, parent, _]| parent.and_then(|parent| family.node(parent)).unwrap_or(NONE))
            .collect();
        if kin.is_by_stack() {
            let nodes = slices.iter().zip(0..);
            let stacks = nodes.filter_map(|([_, _, stack], node)| Some(((*stack)?, node)));
            family.stacks = stacks.collect();
            family.stacks.sort_unstable();
        }
        drop(slices);
        family.find_children();
        for [from, to, id] in rows::<3>(flows)? {
            let ends = from.and_then(|from| Some((family.node(from)?, family.node(to?)?)));
            if let (Some((from, to)), Some(id)) = (ends, id) {
                family.out.push((from, to, id));
                family.into.push((to, from, id));
            }
        }
        family.out.sort_unstable_by_key(|arrow| (arrow.0, arrow.2));
        family.into.sort_unstable_by_key(|arrow| (arrow.0, arrow.2));
        Ok(family)
    }

    fn find_children(&mut self) {
        let mut first = vec![0; self.ids.len() + 1];
        for &parent in self.parents.iter().filter(|&&parent| parent != NONE) {
            first[parent as usize + 1] += 1;
        }
        for node in 1..first.len() {
            first[node] += first[node - 1];
        }
        let mut next = first.clone();
        let has_parent = self.parents.iter().filter(|&&parent| parent != NONE).count();
        self.children = vec![NONE; has_parent];
        for (&parent, node) in self.parents.iter().zip(0..) {
            if parent != NONE {
                let place = &mut next[parent as usize];
                self.children[*place as usize] = node;
                *place += 1;
            }
        }
        self.first_child = first;
    }

    /// Returns what can be asked about, in order: ids of slices, or stacks.
    pub(super) fn asked(&self, kin: Kin) -> Vec<i64> {
        if !kin.is_by_stack() {
            return self.ids.clone();
        }
        let mut stacks: Vec<i64> = self.stacks.iter().map(|(stack, _)| *stack).collect();
        stacks.dedup();
        stacks
    }

    /// Adds the ids of the kin of a slice, or of a stack.
    pub(super) fn kin(&self, kin: Kin, of: i64, found: &mut Vec<i64>) {
        match kin {
            Kin::Ancestors => found.extend(
                self.node(of)
                    .into_iter()
                    .flat_map(|node| self.above(node))
                    .map(|node| self.id(node)),
            ),
            Kin::Descendants => {
                if let Some(node) = self.node(of) {
                    self.below(node, |node| found.push(self.id(node)));
                }
            }
            Kin::AncestorsOfStack | Kin::DescendantsOfStack => {
                let begin = self.stacks.partition_point(|(stack, _)| *stack < of);
                let same = self.stacks[begin..].iter().take_while(|(stack, _)| *stack == of);
                for &(_, node) in same {
                    match kin {
                        Kin::AncestorsOfStack => found.extend(self.above(node).map(|node| self.id(node))),
                        _ => self.below(node, |node| found.push(self.id(node))),
                    }
                }
            }
            Kin::Following | Kin::Preceding | Kin::Connected => {
                if let Some(node) = self.node(of) {
                    self.follow(kin, node, found);
                }
            }
        }
    }

    fn node(&self, id: i64) -> Option<Node> {
        let place = self.ids.binary_search(&id).ok()?;
        Node::try_from(place).ok()
    }

    fn id(&self, node: Node) -> i64 {
        self.ids[node as usize]
    }

    /// The slices that one is within. Their number is bounded, though a damaged table may have a circle.
    fn above(&self, node: Node) -> impl Iterator<Item = Node> {
        let parent = |node: &Node| Some(self.parents[*node as usize]).filter(|parent| *parent != NONE);
        std::iter::successors(parent(&node), parent).take(self.ids.len())
    }

    /// Calls `each` for every slice within one.
    fn below(&self, node: Node, mut each: impl FnMut(Node)) {
        let children = |node: Node| {
            let node = node as usize;
            let (begin, end) = (self.first_child[node], self.first_child[node + 1]);
            &self.children[begin as usize..end as usize]
        };
        let mut left = self.ids.len();
        let mut open = children(node).to_vec();
        while let Some(next) = open.pop()
            && left > 0
        {
            left -= 1;
            each(next);
            open.extend_from_slice(children(next));
        }
    }

    /// Follows arrows as the trace processor does: the walk never goes back along the arrow that it came by, and it looks at the kin of a slice once.
    fn follow(&self, kin: Kin, from: Node, found: &mut Vec<i64>) {
        let mut known = HashSet::from([from]);
        let mut open = VecDeque::from([(from, Way::Start)]);
        while let Some((node, way)) = open.pop_front() {
            if way != Way::Kin {
                let mut visit = |node| {
                    if known.insert(node) {
                        open.push_back((node, Way::Kin));
                    }
                };
                match kin {
                    Kin::Following => self.below(node, visit),
                    Kin::Preceding => self.above(node).for_each(&mut visit),
                    _ => {}
                }
            }
            for (arrows, follows, back, along) in [
                (&self.into, kin != Kin::Following, Way::Forwards, Way::Backwards),
                (&self.out, kin != Kin::Preceding, Way::Backwards, Way::Forwards),
            ] {
                if !follows || way == back {
                    continue;
                }
                let begin = arrows.partition_point(|arrow| arrow.0 < node);
                for &(_, other, id) in arrows[begin..].iter().take_while(|arrow| arrow.0 == node) {
                    found.push(id);
                    if known.insert(other) {
                        open.push_back((other, along));
                    }
                }
            }
        }
    }
}

/// How a slice was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Start,
    Forwards,
    Backwards,
    Kin,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn batch(rows: &[[Option<i64>; 3]]) -> RecordBatch {
        let column =
            |at: usize| -> ArrayRef { Arc::new(rows.iter().map(|row| row[at]).collect::<Int64Array>()) };
        RecordBatch::try_from_iter([("a", column(0)), ("b", column(1)), ("c", column(2))]).unwrap()
    }

    /// `1` has `2` and `3`, `3` has `4`; `9` is alone. Arrows: 2 -> 9 (20), 9 -> 4 (21), 4 -> 9 (22).
    fn family(kin: Kin) -> Family {
        let slices = [
            [Some(4), Some(3), Some(7)],
            [Some(1), None, Some(5)],
            [Some(2), Some(1), Some(7)],
            [Some(3), Some(1), Some(6)],
            [Some(9), Some(100), Some(5)],
        ];
        let flows = [
            [Some(2), Some(9), Some(20)],
            [Some(9), Some(4), Some(21)],
            [Some(4), Some(9), Some(22)],
            [Some(4), Some(100), Some(23)],
        ];
        Family::new(kin, &[batch(&slices)], &[batch(&flows)]).unwrap()
    }

    fn found(kin: Kin, of: i64) -> Vec<i64> {
        let mut found = Vec::new();
        family(kin).kin(kin, of, &mut found);
        found.sort_unstable();
        found
    }

    #[test]
    fn slices_above_and_below() {
        assert_eq!(found(Kin::Ancestors, 4), [1, 3]);
        assert_eq!(found(Kin::Ancestors, 9), [0; 0]);
        assert_eq!(found(Kin::Ancestors, 77), [0; 0]);
        assert_eq!(found(Kin::Descendants, 1), [2, 3, 4]);
        assert_eq!(found(Kin::AncestorsOfStack, 7), [1, 1, 3]);
        assert_eq!(found(Kin::DescendantsOfStack, 5), [2, 3, 4]);
        assert_eq!(
            family(Kin::AncestorsOfStack).asked(Kin::AncestorsOfStack),
            [5, 6, 7]
        );
    }

    #[test]
    fn arrows_are_followed_in_one_direction() {
        assert_eq!(found(Kin::Following, 1), [20, 21, 22]);
        assert_eq!(found(Kin::Following, 9), [21, 22]);
        assert_eq!(found(Kin::Preceding, 9), [20, 21, 22]);
        assert_eq!(found(Kin::Preceding, 2), [0; 0]);
        // Backwards from 4: 21, then 20 and 22; forwards: 22, whose end is known.
        assert_eq!(found(Kin::Connected, 4), [20, 21, 22, 22]);
    }

    #[test]
    fn a_circle_ends() {
        let slices = [[Some(1), Some(2), None], [Some(2), Some(1), None]];
        let family = Family::new(Kin::Ancestors, &[batch(&slices)], &[]).unwrap();
        for kin in [Kin::Ancestors, Kin::Descendants] {
            let mut found = Vec::new();
            family.kin(kin, 1, &mut found);
            assert_eq!(found, [2, 1]);
        }
    }
}
