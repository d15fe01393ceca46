//! Converts times of all clocks of a trace to the clock of the trace, as the trace processor does.
//!
//! The tokenizer calls it. A snapshot has the readings of several clocks at one moment. Snapshots of the same clocks make a *kind*. Two clocks that are in one
//! kind convert into each other; others convert along the shortest path. Between snapshots all clocks are taken to advance alike.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The clock of a trace that names none.
pub(crate) const BOOTTIME: i64 = 6;
pub(crate) const MONOTONIC: i64 = 3;
pub(crate) const MONOTONIC_COARSE: i64 = 4;
pub(crate) const MONOTONIC_RAW: i64 = 5;
/// Ids of clocks that a sequence defines for itself.
const OF_A_SEQUENCE: std::ops::Range<u32> = 64..128;
/// The most conversions in a row.
const LONGEST_PATH: usize = 4;
/// The most readings that are kept. A trace of a week has 60,000 snapshots.
const MOST_READINGS: usize = 1 << 22;
/// The paths that are remembered.
const REMEMBERED: usize = 8;

/// A clock: its id, with the sequence above if only that sequence has it.
pub(crate) type ClockId = i64;

/// Returns the clock that a sequence calls `id`. `None` if it would be a clock of a sequence that has no number.
pub(crate) fn clock_of(sequence: u32, id: u32) -> Option<ClockId> {
    match (OF_A_SEQUENCE.contains(&id), sequence) {
        (false, _) => Some(i64::from(id)),
        (true, 0) => None,
        (true, _) => Some(i64::from(sequence) << 32 | i64::from(id)),
    }
}

/// The reading of one clock in a snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) clock: ClockId,
    pub(crate) value: i64,
    /// The length of its steps, in ns.
    pub(crate) step: i64,
    pub(crate) is_incremental: bool,
}

#[derive(Debug, Default)]
struct Domain {
    /// By kind: the snapshots that have it, with what it showed, in ns.
    snapshots: BTreeMap<u64, Vec<(u32, i64)>>,
    step: i64,
    is_incremental: bool,
    /// What it showed last, in ns, if it is incremental.
    last: i64,
}

impl Domain {
    fn nanoseconds(&mut self, value: i64) -> i64 {
        let value = value.wrapping_mul(self.step);
        if !self.is_incremental {
            return value;
        }
        self.last = self.last.wrapping_add(value);
        self.last
    }
}

/// A conversion that holds from `min` up to `max`.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    from: ClockId,
    min: i64,
    max: i64,
    shift: i64,
}

/// All clocks of a trace, as far as it has been read.
#[derive(Debug)]
pub(crate) struct Clocks {
    trace_clock: ClockId,
    /// Whether times were converted already, which fixes the clock of the trace.
    is_used: bool,
    domains: BTreeMap<ClockId, Domain>,
    /// From, to, kind.
    edges: BTreeSet<(ClockId, ClockId, u64)>,
    not_monotonic: BTreeSet<ClockId>,
    snapshots: u32,
    readings: usize,
    remembered: Vec<Remembered>,
    oldest: usize,
}

/// Why a snapshot does not count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid;

impl Default for Clocks {
    fn default() -> Clocks {
        Clocks {
            trace_clock: BOOTTIME,
            is_used: false,
            domains: BTreeMap::new(),
            edges: BTreeSet::new(),
            not_monotonic: BTreeSet::new(),
            snapshots: 0,
            readings: 0,
            remembered: Vec::new(),
            oldest: 0,
        }
    }
}

impl Clocks {
    /// The clock of the trace.
    pub(crate) fn trace_clock(&self) -> ClockId {
        self.trace_clock
    }

    /// Whether a time has been converted already.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Makes this the clock of the trace, unless times have been converted to another one. Returns whether it is.
    pub(crate) fn set_trace_clock(&mut self, clock: ClockId) -> bool {
        if !self.is_used {
            self.trace_clock = clock;
        }
        self.trace_clock == clock
    }

    /// Takes in a snapshot. Returns its number.
    ///
    /// # Errors
    /// If its clocks contradict earlier snapshots, or if there are too many readings.
    pub(crate) fn snapshot(&mut self, readings: &[Reading]) -> Result<u32, Invalid> {
        let number = self.snapshots;
        self.snapshots = self.snapshots.wrapping_add(1);
        self.remembered.clear();
        let kind = kind_of(readings);
        for reading in readings {
            self.add(reading, kind, number)?;
        }
        for (at, one) in readings.iter().enumerate() {
            for other in &readings[at + 1..] {
                for (from, to) in [(one.clock, other.clock), (other.clock, one.clock)] {
                    if !self.not_monotonic.contains(&from) {
                        self.edges.insert((from, to, kind));
                    }
                }
            }
        }
        Ok(number)
    }

    fn add(&mut self, reading: &Reading, kind: u64, number: u32) -> Result<(), Invalid> {
        let Reading {
            clock,
            value,
            step,
            is_incremental,
        } = *reading;
        if self.readings >= MOST_READINGS {
            return Err(Invalid);
        }
        let domain = self.domains.entry(clock).or_default();
        if domain.snapshots.is_empty() {
            if is_incremental && clock >> 32 == 0 {
                return Err(Invalid);
            }
            (domain.step, domain.is_incremental) = (step, is_incremental);
        } else if (domain.step, domain.is_incremental) != (step, is_incremental) {
            return Err(Invalid);
        }
        if clock == self.trace_clock && domain.step != 1 {
            return Err(Invalid);
        }
        let nanoseconds = value.wrapping_mul(domain.step);
        domain.last = nanoseconds;
        let snapshots = domain.snapshots.entry(kind).or_default();
        if let Some((last, shown)) = snapshots.last() {
            if *last == number {
                return Err(Invalid);
            }
            if nanoseconds < *shown {
                if clock == self.trace_clock {
                    return Err(Invalid);
                }
                // It was set back: a time on it may be two moments, so nothing converts from it any more.
                self.not_monotonic.insert(clock);
                self.edges.retain(|(from, ..)| *from != clock);
            }
        }
        snapshots.push((number, nanoseconds));
        self.readings += 1;
        Ok(())
    }

    /// Returns what the clock of the trace showed when `clock` showed `value`. `None` if no snapshots lead there.
    #[inline]
    pub(crate) fn trace_time(&mut self, clock: ClockId, value: i64) -> Option<i64> {
        self.is_used = true;
        match clock == self.trace_clock {
            true => Some(value),
            false => self.convert(clock, value),
        }
    }

    fn convert(&mut self, clock: ClockId, value: i64) -> Option<i64> {
        let nanoseconds = self.domains.get_mut(&clock)?.nanoseconds(value);
        let holds = |it: &&Remembered| it.from == clock && (it.min..it.max).contains(&nanoseconds);
        if let Some(found) = self.remembered.iter().find(holds) {
            return Some(nanoseconds.wrapping_add(found.shift));
        }
        let path = self.path(clock)?;
        let mut way = Remembered {
            from: clock,
            min: i64::MIN,
            max: i64::MAX,
            shift: 0,
        };
        for (from, to, kind) in path {
            let now = nanoseconds.wrapping_add(way.shift);
            let source = self.domains.get(&from)?.snapshots.get(&kind)?;
            // Values may go back where the clock was set back; it is no source then.
            let at = source
                .partition_point(|(_, shown)| *shown <= now)
                .saturating_sub(1);
            let (number, shown) = *source.get(at)?;
            let target = self.domains.get(&to)?.snapshots.get(&kind)?;
            let Ok(found) = target.binary_search_by_key(&number, |(number, _)| *number) else {
                continue;
            };
            let min = if at == 0 {
                i64::MIN
            } else {
                shown.saturating_sub(way.shift)
            };
            let max = source
                .get(at + 1)
                .map_or(i64::MAX, |(_, next)| next.saturating_sub(way.shift));
            way.min = way.min.max(min);
            way.max = way.max.min(max);
            way.shift = way.shift.wrapping_add(target[found].1.wrapping_sub(shown));
        }
        match self.remembered.get_mut(self.oldest) {
            Some(place) => *place = way,
            None => self.remembered.push(way),
        }
        self.oldest = (self.oldest + 1) % REMEMBERED;
        Some(nanoseconds.wrapping_add(way.shift))
    }

    /// Returns the shortest path to the clock of the trace. Clocks and kinds of lower numbers come first.
    fn path(&self, from: ClockId) -> Option<Vec<(ClockId, ClockId, u64)>> {
        let mut seen = BTreeSet::from([from]);
        let mut paths = VecDeque::from([(from, Vec::new())]);
        while let Some((at, path)) = paths.pop_front() {
            if path.len() >= LONGEST_PATH {
                continue;
            }
            for edge in self.edges.range((at, i64::MIN, 0)..=(at, i64::MAX, u64::MAX)) {
                let longer = || path.iter().copied().chain([*edge]).collect();
                if edge.1 == self.trace_clock {
                    return Some(longer());
                }
                if seen.insert(edge.1) {
                    paths.push_back((edge.1, longer()));
                }
            }
        }
        None
    }
}

/// Tells snapshots of different clocks apart.
fn kind_of(readings: &[Reading]) -> u64 {
    let hash = readings.iter().fold(0xcbf2_9ce4_8422_2325, |hash, reading| {
        let bytes = reading.clock.to_le_bytes();
        bytes.iter().fold(hash, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    });
    // Where several kinds lead from one clock to another, the lowest of the trace processor's 32 bits wins.
    hash & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(clock: ClockId, value: i64) -> Reading {
        Reading {
            clock,
            value,
            step: 1,
            is_incremental: false,
        }
    }

    #[test]
    fn clocks_convert_by_the_snapshot_before_and_along_paths() {
        let mut clocks = Clocks::default();
        let of_sequence = clock_of(7, 64).unwrap();
        assert_eq!(clocks.trace_time(of_sequence, 5), None);
        clocks
            .snapshot(&[reading(BOOTTIME, 1000), reading(MONOTONIC, 500)])
            .unwrap();
        clocks
            .snapshot(&[reading(BOOTTIME, 2000), reading(MONOTONIC, 1400)])
            .unwrap();
        assert_eq!(clocks.trace_time(MONOTONIC, 400), Some(900));
        assert_eq!(clocks.trace_time(MONOTONIC, 600), Some(1100));
        assert_eq!(clocks.trace_time(MONOTONIC, 1399), Some(1899));
        assert_eq!(clocks.trace_time(MONOTONIC, 1400), Some(2000));
        assert_eq!(clocks.trace_time(BOOTTIME, 3), Some(3));
        let incremental = Reading {
            clock: of_sequence,
            value: 0,
            step: 1000,
            is_incremental: true,
        };
        clocks.snapshot(&[incremental, reading(MONOTONIC, 1500)]).unwrap();
        assert_eq!(clocks.trace_time(of_sequence, 1), Some(2100 + 1000));
        assert_eq!(clocks.trace_time(of_sequence, 1), Some(2100 + 2000));
    }

    #[test]
    fn a_clock_that_was_set_back_is_no_source() {
        let mut clocks = Clocks::default();
        clocks
            .snapshot(&[reading(BOOTTIME, 1000), reading(1, 500)])
            .unwrap();
        clocks
            .snapshot(&[reading(BOOTTIME, 2000), reading(1, 400)])
            .unwrap();
        assert_eq!(clocks.trace_time(1, 450), None);
        assert_eq!(
            clocks.snapshot(&[reading(BOOTTIME, 1500), reading(1, 600)]),
            Err(Invalid)
        );
    }
}
