//! Goes through two sets of spans side by side, as the trace processor's `SPAN_JOIN` does.
//!
//! The spans of one set do not overlap within a partition, so at each time there is at most one of each side. A side may have gaps between its spans, before the
//! first and behind the last. The side whose span or gap ends first goes on. `pairs` feeds it partition by partition. Spans that do overlap give what they give
//! in the trace processor.
//!
//! A duration of -1 is a moment here, unlike in `sweep`.

use std::ops::Range;

use super::sweep::{Interval, Side, Uncovered};

/// A time that spans of one or two sides have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Met<Row> {
    /// It ends 1 before it begins if the duration is -1.
    pub(super) time: Range<i64>,
    /// At least one side has a row.
    pub(super) rows: [Option<Row>; 2],
}

/// A span of a side, or a gap, which has no row.
#[derive(Debug, Clone)]
struct Span<Row> {
    begin: i64,
    end: i64,
    row: Option<Row>,
}

impl<Row> Span<Row> {
    fn last(&self) -> i64 {
        match self.end.saturating_sub(self.begin) {
            -1 => self.begin,
            _ => self.end,
        }
    }

    fn meets(&self, other: &Span<Row>) -> bool {
        let have_rows = [self.row.is_some(), other.row.is_some()];
        let begins_in =
            |one: &Span<Row>, other: &Span<Row>| one.begin >= other.begin && one.begin < other.last();
        match have_rows {
            [false, false] => false,
            [true, true] if self.begin == other.begin => true,
            _ => begins_in(self, other) || begins_in(other, self),
        }
    }
}

/// The state within a partition.
#[derive(Debug)]
pub(super) struct Merge<Row> {
    /// Whether a side has gaps: where what the other side has alone is kept.
    gaps: [bool; 2],
    current: [Option<Span<Row>>; 2],
    /// One side has nothing more, not even a gap.
    is_over: bool,
}

impl<Row: Clone> Merge<Row> {
    /// Keeps or leaves out what of `a` and of `b` nothing overlaps.
    pub(super) fn new([of_a, of_b]: [Uncovered; 2]) -> Merge<Row> {
        Merge {
            gaps: [of_b == Uncovered::Kept, of_a == Uncovered::Kept],
            current: [None, None],
            is_over: false,
        }
    }

    /// Goes on by one span or gap. `next` has the next interval of each side that has one in the partition. Returns the side whose interval was taken.
    pub(super) fn step(
        &mut self,
        next: [Option<Interval<Row>>; 2],
        found: impl FnOnce(Met<Row>),
    ) -> Option<Side> {
        if self.is_over {
            return match next {
                [Some(_), _] => Some(Side::A),
                [None, Some(_)] => Some(Side::B),
                [None, None] => None,
            };
        }
        let side = match &self.current {
            [None, _] => Side::A,
            [_, None] => Side::B,
            [Some(a), Some(b)] => {
                if a.meets(b) {
                    found(Met {
                        time: a.begin.max(b.begin)..a.end.min(b.end),
                        rows: [a.row.clone(), b.row.clone()],
                    });
                }
                match (a.last(), a.row.is_some()) < (b.last(), b.row.is_some()) {
                    true => Side::A,
                    false => Side::B,
                }
            }
        };
        let [a, b] = next;
        let next = match side {
            Side::A => a,
            Side::B => b,
        };
        self.follow(side, next).then_some(side)
    }

    /// Ends the partition.
    pub(super) fn finish(&mut self, mut found: impl FnMut(Met<Row>)) {
        let has_begun = self.current.iter().any(Option::is_some);
        while has_begun && !self.is_over {
            self.step([None, None], &mut found);
        }
        self.current = [None, None];
        self.is_over = false;
    }

    /// The row of one side that the next pair may have.
    pub(super) fn row(&self, side: Side) -> Option<&Row> {
        self.current[side as usize].as_ref()?.row.as_ref()
    }

    /// Puts what follows in the place of a side's current span. Returns whether that is the next interval.
    fn follow(&mut self, side: Side, next: Option<Interval<Row>>) -> bool {
        let current = &mut self.current[side as usize];
        let until = next.as_ref().map_or(i64::MAX, |next| next.begin);
        // A gap follows a span, or comes first.
        let gap = match current {
            None => Some(i64::MIN),
            Some(span) if span.row.is_some() => Some(span.last()),
            Some(_) => None,
        };
        let gap = gap.filter(|begin| self.gaps[side as usize] && *begin != until);
        match (gap, next) {
            (Some(begin), _) => {
                *current = Some(Span {
                    begin,
                    end: until,
                    row: None,
                });
                false
            }
            (None, Some(Interval { begin, end, row })) => {
                let row = Some(row);
                *current = Some(Span { begin, end, row });
                true
            }
            (None, None) => {
                self.is_over = true;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, the same for each seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) % bound
        }

        /// Spans that do not overlap, each with a duration.
        fn spans(&mut self) -> Vec<Interval<usize>> {
            let mut time = 0;
            let mut spans = Vec::new();
            for row in 0..self.below(6) as usize {
                let begin = time + self.below(4) as i64;
                let end = begin + 1 + self.below(4) as i64;
                spans.push(Interval { begin, end, row });
                time = end;
            }
            spans
        }
    }

    fn merged(sides: [&[Interval<usize>]; 2], uncovered: [Uncovered; 2]) -> Vec<Met<usize>> {
        let (mut merge, mut found, mut taken) = (Merge::new(uncovered), Vec::new(), [0, 0]);
        loop {
            let next = [0, 1].map(|side| sides[side].get(taken[side]).cloned());
            if next == [None, None] {
                break;
            }
            if let Some(side) = merge.step(next, |met| found.push(met)) {
                taken[side as usize] += 1;
            }
        }
        merge.finish(|met| found.push(met));
        found
    }

    #[test]
    fn each_time_has_the_spans_of_both_sides() {
        let mut rows = 0;
        for seed in 0..2000 {
            let mut random = Random(seed);
            let (a, b) = (random.spans(), random.spans());
            for kept in 0..4 {
                let uncovered = [kept & 1, kept >> 1].map(|kept| match kept {
                    1 => Uncovered::Kept,
                    _ => Uncovered::LeftOut,
                });
                let found = merged([&a, &b], uncovered);
                for time in 0..60 {
                    let at = |side: &[Interval<usize>]| {
                        side.iter()
                            .find(|it| it.begin <= time && time < it.end)
                            .map(|it| it.row)
                    };
                    let truth = match [at(&a), at(&b)] {
                        [None, None] => None,
                        [Some(_), None] if uncovered[0] == Uncovered::LeftOut => None,
                        [None, Some(_)] if uncovered[1] == Uncovered::LeftOut => None,
                        both => Some(both),
                    };
                    let ours: Vec<_> = found.iter().filter(|it| it.time.contains(&time)).collect();
                    assert!(ours.len() < 2, "seed {seed}: {a:?} {b:?} {found:?}");
                    assert_eq!(
                        ours.first().map(|it| it.rows),
                        truth,
                        "seed {seed}, time {time}: {a:?} {b:?}"
                    );
                }
                assert!(found.is_sorted_by_key(|it| it.time.start));
                rows += found.len();
            }
        }
        assert!(rows > 10_000, "{rows}");
    }

    #[test]
    fn moments_are_within_what_begins_at_them_and_before() {
        let interval = |begin, end, row| Interval { begin, end, row };
        let a = [interval(5, 4, 0), interval(7, 7, 1), interval(9, 9, 2)];
        let b = [interval(5, 9, 0)];
        let found = merged([&a, &b], [Uncovered::Kept, Uncovered::LeftOut]);
        let rows: Vec<_> = found
            .into_iter()
            .map(|it| (it.time.start, it.time.end, it.rows))
            .collect();
        assert_eq!(
            rows,
            [
                (5, 4, [Some(0), Some(0)]),
                (7, 7, [Some(1), Some(0)]),
                (9, 9, [Some(2), None])
            ]
        );
    }
}
