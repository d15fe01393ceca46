//! The outcomes, and the two numbers that matter of many: the least and the median.

use std::collections::BTreeMap;
use std::fmt;

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::Tracing;

/// The subject of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Row {
    /// Nanoseconds of the client's CPU time for one case, in memory that was used before.
    Client(Tracing, Case),
    /// The same of a pair in the first batches, when shared memory is new.
    NewMemory,
    /// Nanoseconds of the service's CPU time for one case.
    Service(Case),
    /// In the trace, for one event of a case.
    Bytes(Case),
    /// Percent of the events of a paced load that are not in the trace.
    LostPaced,
    /// Pairs per second of the paced load, in millions.
    RatePaced,
    /// Percent of the events that are not in the trace if they are written as fast as can be.
    LostFlat,
    /// Pairs per second then, in millions.
    RateFlat,
    /// The same two on two threads at once.
    LostFlatTwo,
    /// Pairs per second of both, in millions.
    RateFlatTwo,
    /// Percent of the events of 1,024 threads that are not in the trace.
    LostCrowd,
    /// Pairs per second of all of them, in millions.
    RateCrowd,
    /// Instructions of the measured thread for one case.
    Instructions(Case),
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Row::Client(Tracing::On, case) => write!(f, "{}, ns", case.title()),
            Row::Client(Tracing::Off, case) => write!(f, "off: {}, ns", case.title().trim_start()),
            Row::NewMemory => f.write_str("begin+end, shared memory new, ns"),
            Row::Service(case) => write!(f, "service CPU: {}, ns", case.title().trim_start()),
            Row::Bytes(case) => write!(f, "bytes/event: {}", case.title().trim_start()),
            Row::LostPaced => f.write_str("2 M events/s for 10 s: lost, %"),
            Row::RatePaced => f.write_str("  reached, M events/s"),
            Row::LostFlat => f.write_str("20 M events flat out: lost, %"),
            Row::LostFlatTwo => f.write_str("20 M events flat out, two threads: lost, %"),
            Row::LostCrowd => f.write_str("1 M events/s, 1,024 threads, 256 KiB: lost, %"),
            Row::RateFlat | Row::RateFlatTwo | Row::RateCrowd => f.write_str("  reached, M events/s"),
            Row::Instructions(case) => write!(f, "instructions: {}", case.title().trim_start()),
        }
    }
}

/// All numbers of all peers.
#[derive(Default)]
pub(crate) struct Results(BTreeMap<Row, BTreeMap<&'static str, Vec<f64>>>);

/// The least of some numbers, and their median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) count: usize,
    pub(crate) least: f64,
    pub(crate) median: f64,
}

impl Results {
    pub(crate) fn add(&mut self, row: Row, peer: &'static str, numbers: impl IntoIterator<Item = f64>) {
        self.0
            .entry(row)
            .or_default()
            .entry(peer)
            .or_default()
            .extend(numbers);
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.0.keys().copied()
    }

    pub(crate) fn numbers(&self, row: Row) -> impl Iterator<Item = (&'static str, &[f64])> {
        self.0
            .get(&row)
            .into_iter()
            .flatten()
            .map(|(peer, numbers)| (*peer, numbers.as_slice()))
    }

    pub(crate) fn summary(&self, row: Row, peer: &str) -> Option<Summary> {
        let mut numbers = self.0.get(&row)?.get(peer)?.clone();
        numbers.sort_by(f64::total_cmp);
        Some(Summary {
            count: numbers.len(),
            least: *numbers.first()?,
            median: *numbers.get(numbers.len() / 2)?,
        })
    }
}
