//! Samples counted by function, of pprof profiles and of `perf report`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Read;

use ferretto_unwind::symbols::demangle;
use ferretto_wire::{Reader, Value, take_varint};
use flate2::read::GzDecoder;

/// Two measurements of the same share differ by more than this many standard deviations only once in two million times.
pub(super) const DEVIATIONS: f64 = 5.0;

/// A profile's samples by function.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) samples: u64,
    /// The number of samples whose stacks do not begin with the thread's first function.
    pub(super) incomplete: u64,
    functions: HashMap<String, Count>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    own: u64,
    total: u64,
}

/// The samples that count for a function.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reading {
    /// The samples in which it ran itself.
    Own,
    /// The samples in which it was on the stack.
    Total,
}

/// How samples in an inlined function count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inlined {
    Apart,
    /// They count for the function into which it was inlined.
    InItsCaller,
}

impl Counts {
    /// Reads a pprof profile with one event. The numbers of its fields are those of `proto/profile.proto`.
    pub(super) fn of_pprof(compressed: &[u8], inlined: Inlined) -> Counts {
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
        let all = |number| parts(&bytes, number);
        let texts: Vec<String> = all(6)
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect();
        let functions: HashMap<u64, String> = all(5)
            .map(|function| {
                (
                    numbers(function, 1)[0],
                    plain(&texts[numbers(function, 2)[0] as usize]),
                )
            })
            .collect();
        // The functions at each location, innermost first.
        let locations: HashMap<u64, Vec<&String>> = all(4)
            .map(|location| {
                let lines = parts(location, 4).map(|line| &functions[&numbers(line, 1)[0]]);
                let mut lines: Vec<&String> = lines.collect();
                if inlined == Inlined::InItsCaller {
                    lines.drain(..lines.len() - 1);
                }
                (numbers(location, 1)[0], lines)
            })
            .collect();
        let mut counts = Counts::default();
        for sample in all(2) {
            let count = numbers(sample, 2)[0];
            let frames: Vec<&String> = numbers(sample, 1)
                .iter()
                .flat_map(|location| locations[location].iter().copied())
                .collect();
            counts.samples += count;
            counts.incomplete += count * u64::from(frames[frames.len() - 1].starts_with("ERROR "));
            for frame in frames.iter().copied().collect::<HashSet<_>>() {
                counts.function(frame).total += count;
            }
            counts.function(frames[0]).own += count;
        }
        counts
    }

    /// Reads a report of `perf` without call graphs, with the columns sample, dso and symbol, whose names are mangled, between bars.
    pub(super) fn of_report(report: &str) -> Counts {
        let mut counts = Counts::default();
        for line in report.lines().filter(|line| !line.starts_with('#')) {
            let parts: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
            let [count, module, symbol] = parts[..] else {
                continue;
            };
            let Ok(count) = count.parse::<u64>() else { continue };
            // `[.] name`, or `[k]` in the kernel.
            let symbol = symbol.split_once("] ").map_or(symbol, |(_, name)| name.trim());
            let name = match symbol.strip_prefix("0x") {
                Some(address) => {
                    let module = module.rsplit('/').next().unwrap_or(module);
                    format!("{module}+0x{}", address.trim_start_matches('0'))
                }
                None => demangle(symbol),
            };
            counts.samples += count;
            let function = counts.function(&plain(&name));
            function.own += count;
            function.total += count;
        }
        counts
    }

    fn function(&mut self, name: &str) -> &mut Count {
        self.functions.entry(name.to_owned()).or_default()
    }

    /// The samples of all functions whose names contain `part`. If `part` is the whole name of a function, only this function counts.
    pub(super) fn sum_of(&self, reading: Reading, part: &str) -> u64 {
        let count = |count: &Count| match reading {
            Reading::Own => count.own,
            Reading::Total => count.total,
        };
        match self.functions.get(part) {
            Some(function) => count(function),
            None => self
                .functions
                .iter()
                .filter(|(name, _)| name.contains(part))
                .map(|(_, function)| count(function))
                .sum(),
        }
    }

    /// The functions of both profiles with the samples in which they ran, the most frequent first.
    pub(super) fn beside(&self, others: &Counts) -> Vec<Row> {
        let names: BTreeSet<&String> = self.functions.keys().chain(others.functions.keys()).collect();
        let own = |counts: &Counts, name| counts.functions.get(name).map_or(0, |count| count.own);
        let mut rows: Vec<Row> = names
            .into_iter()
            .map(|name| Row {
                name: name.clone(),
                ours: (own(self, name), self.samples),
                others: (own(others, name), others.samples),
            })
            .collect();
        rows.sort_by(|a, b| b.largest().total_cmp(&a.largest()));
        rows.truncate(30);
        rows
    }
}

/// A function's samples, and all samples, in two profiles.
#[derive(Debug)]
pub(super) struct Row {
    #[expect(dead_code, reason = "it is printed")]
    name: String,
    ours: (u64, u64),
    others: (u64, u64),
}

impl Row {
    pub(super) fn largest(&self) -> f64 {
        share(self.ours).max(share(self.others))
    }

    /// Whether the difference may be chance.
    pub(super) fn agrees(&self) -> bool {
        let (ours, others) = (self.ours, self.others);
        let together = share((ours.0 + others.0, ours.1 + others.1));
        let deviation = (together * (1.0 - together) * (1.0 / ours.1 as f64 + 1.0 / others.1 as f64)).sqrt();
        (share(ours) - share(others)).abs() < DEVIATIONS * deviation
    }
}

fn share((part, all): (u64, u64)) -> f64 {
    part as f64 / all as f64
}

/// Reduces a name to what both profilers have: without versions of symbols, without the endings that compilers give to parts of a function, and
/// without the underscores that only some names of a function have. Names of stubs through which a library calls others stay, because only `perf` has them.
fn plain(name: &str) -> String {
    let name = match name.ends_with("@plt") {
        true => name,
        false => name.split('@').next().unwrap_or(name),
    };
    let added = [".part.", ".cold", ".isra.", ".constprop."];
    let end = added.iter().filter_map(|part| name.find(part)).min();
    name[..end.unwrap_or(name.len())]
        .trim_start_matches('_')
        .to_owned()
}

/// The messages and texts in this field.
fn parts(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let fields = Reader::new(message).map(Result::unwrap);
    fields.filter_map(move |field| match field.value {
        Value::Bytes(bytes) if field.number == number => Some(bytes),
        _ => None,
    })
}

/// The numbers in this field, one by one or packed.
fn numbers(message: &[u8], number: u32) -> Vec<u64> {
    let mut numbers = Vec::new();
    for field in Reader::new(message).map(Result::unwrap) {
        match field.value {
            Value::Varint(value) if field.number == number => numbers.push(value),
            Value::Bytes(mut packed) if field.number == number => {
                numbers.extend(std::iter::from_fn(|| take_varint(&mut packed)));
            }
            _ => {}
        }
    }
    numbers
}
