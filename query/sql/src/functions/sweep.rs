//! Goes through two sets of intervals in the order of time and finds where they overlap.
//!
//! Both sets are sorted by partition, then by beginning. The sweep sees one interval after the other and keeps those of its partition that have not ended.
//! `intervals` feeds it and makes rows of the pairs. It knows nothing of Arrow, so that a test compares it with the plain definition.

use std::ops::Range;

/// The end of an interval that the trace does not end.
pub(super) const OPEN: i64 = i64::MAX;

/// Which of the two sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

/// An interval. One without a duration is a moment, which is within the intervals that begin at it or before and end after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interval<Row> {
    pub(super) begin: i64,
    pub(super) end: i64,
    pub(super) row: Row,
}

/// A part of one or two intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overlap<Row> {
    pub(super) time: Range<i64>,
    pub(super) a: Row,
    /// `None` for a part of `a` that nothing of `b` overlaps.
    pub(super) b: Option<Row>,
}

/// What becomes of parts of `a` that nothing of `b` overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncovered {
    LeftOut,
    Kept,
}

#[derive(Debug)]
struct OfA<Row> {
    interval: Interval<Row>,
    /// Until where it is known what overlaps it.
    covered: i64,
    /// Whether it is a moment that something overlaps.
    met: bool,
}

/// The state of a sweep.
#[derive(Debug)]
pub(super) struct Sweep<Row> {
    uncovered: Uncovered,
    a: Vec<OfA<Row>>,
    b: Vec<Interval<Row>>,
}

impl<Row: Clone> Sweep<Row> {
    pub(super) fn new(uncovered: Uncovered) -> Sweep<Row> {
        Sweep {
            uncovered,
            a: Vec::new(),
            b: Vec::new(),
        }
    }

    /// Takes the next interval of the partition. Of two with one beginning, either may be first.
    pub(super) fn next(&mut self, side: Side, interval: Interval<Row>, mut found: impl FnMut(Overlap<Row>)) {
        self.end_before(interval.begin, &mut found);
        match side {
            Side::A => {
                let mut a = OfA {
                    covered: interval.begin,
                    met: false,
                    interval,
                };
                for b in &self.b {
                    a.meet(b, self.uncovered, &mut found);
                }
                self.a.push(a);
            }
            Side::B => {
                for a in &mut self.a {
                    a.meet(&interval, self.uncovered, &mut found);
                }
                self.b.push(interval);
            }
        }
    }

    /// Ends the partition.
    pub(super) fn finish(&mut self, mut found: impl FnMut(Overlap<Row>)) {
        for a in self.a.drain(..) {
            a.finish(self.uncovered, &mut found);
        }
        self.b.clear();
    }

    /// The rows of one set that later intervals may still meet.
    pub(super) fn rows(&self, side: Side) -> Vec<&Row> {
        match side {
            Side::A => self.a.iter().map(|a| &a.interval.row).collect(),
            Side::B => self.b.iter().map(|b| &b.row).collect(),
        }
    }

    /// Forgets what has ended. Moments last until the time goes on.
    fn end_before(&mut self, time: i64, found: &mut impl FnMut(Overlap<Row>)) {
        let over = |begin: i64, end: i64| end < time || (end == time && begin < end);
        self.b.retain(|b| !over(b.begin, b.end));
        let uncovered = self.uncovered;
        self.a.retain_mut(|a| {
            let is_over = over(a.interval.begin, a.interval.end);
            if is_over {
                a.finish(uncovered, found);
            }
            !is_over
        });
    }
}

impl<Row: Clone> OfA<Row> {
    fn meet(&mut self, b: &Interval<Row>, uncovered: Uncovered, found: &mut impl FnMut(Overlap<Row>)) {
        let begin = self.interval.begin.max(b.begin);
        let end = self.interval.end.min(b.end);
        let has_moment = self.interval.begin == self.interval.end || b.begin == b.end;
        if begin > end || (begin == end && !has_moment) {
            return;
        }
        if uncovered == Uncovered::Kept && self.covered < begin {
            found(self.alone(begin));
        }
        self.covered = self.covered.max(end);
        self.met = true;
        found(Overlap {
            time: begin..end,
            a: self.interval.row.clone(),
            b: Some(b.row.clone()),
        });
    }

    fn finish(&self, uncovered: Uncovered, found: &mut impl FnMut(Overlap<Row>)) {
        let is_moment = self.interval.begin == self.interval.end;
        if uncovered == Uncovered::Kept && (self.covered < self.interval.end || (is_moment && !self.met)) {
            found(self.alone(self.interval.end));
        }
    }

    fn alone(&self, until: i64) -> Overlap<Row> {
        Overlap {
            time: self.covered..until,
            a: self.interval.row.clone(),
            b: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Numbers that look random, the same for each seed (splitmix64).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % bound
        }

        fn intervals(&mut self) -> Vec<Interval<usize>> {
            let mut intervals: Vec<_> = (0..self.below(8) as usize)
                .map(|row| {
                    let begin = self.below(12) as i64;
                    let end = match self.below(6) {
                        0 => begin,
                        1 => OPEN,
                        _ => begin + self.below(6) as i64,
                    };
                    Interval { begin, end, row }
                })
                .collect();
            intervals.sort_by_key(|it| it.begin);
            intervals
        }
    }

    /// Whether a time is within an interval.
    fn holds(interval: &Interval<usize>, time: i64) -> bool {
        interval.begin <= time
            && (time < interval.end || interval.begin == interval.end && time == interval.begin)
    }

    #[test]
    fn a_sweep_finds_what_the_definition_says() {
        let (mut moments, mut open, mut alone) = (0, 0, 0);
        for seed in 0..3000 {
            let mut random = Random(seed);
            let (a, b) = (random.intervals(), random.intervals());
            let mut found = Vec::new();
            let mut sweep = Sweep::new(Uncovered::Kept);
            let (mut next_a, mut next_b) = (a.iter().peekable(), b.iter().peekable());
            loop {
                let takes_a = match (next_a.peek(), next_b.peek()) {
                    (None, None) => break,
                    (Some(_), None) => true,
                    (None, Some(_)) => false,
                    (Some(a), Some(b)) => a.begin < b.begin || (a.begin == b.begin && random.below(2) == 0),
                };
                let (side, interval) = match takes_a {
                    true => (Side::A, next_a.next()),
                    false => (Side::B, next_b.next()),
                };
                if let Some(interval) = interval {
                    sweep.next(side, interval.clone(), |overlap| found.push(overlap));
                }
            }
            sweep.finish(|overlap| found.push(overlap));

            let mut pairs = BTreeSet::new();
            for a in &a {
                for b in &b {
                    let begin = a.begin.max(b.begin);
                    if holds(a, begin) && holds(b, begin) {
                        pairs.insert((begin, a.end.min(b.end), a.row, b.row));
                    }
                }
            }
            let ours: BTreeSet<_> = found
                .iter()
                .filter_map(|it| it.b.map(|b| (it.time.start, it.time.end, it.a, b)))
                .collect();
            assert_eq!(ours, pairs, "seed {seed}: {a:?} {b:?}");
            assert_eq!(
                found.iter().filter(|it| it.b.is_some()).count(),
                pairs.len(),
                "seed {seed}"
            );

            // Each time of each interval of `a` is alone if and only if no interval of `b` has it.
            for a in &a {
                for time in 0..20 {
                    let expected = holds(a, time)
                        && !b.iter().any(|b| holds(b, time) && b.end > b.begin)
                        && !(a.begin == a.end && b.iter().any(|b| holds(b, time)));
                    let is_alone = found.iter().any(|it| {
                        it.b.is_none()
                            && it.a == a.row
                            && holds(
                                &Interval {
                                    begin: it.time.start,
                                    end: it.time.end,
                                    row: 0,
                                },
                                time,
                            )
                    });
                    assert_eq!(
                        is_alone, expected,
                        "seed {seed}, time {time}, {a:?}: {b:?}, {found:?}"
                    );
                }
            }
            moments += found.iter().filter(|it| it.time.is_empty()).count();
            open += found.iter().filter(|it| it.time.end == OPEN).count();
            alone += found.iter().filter(|it| it.b.is_none()).count();
        }
        assert!(
            moments > 100 && open > 100 && alone > 100,
            "{moments} {open} {alone}"
        );
    }
}
