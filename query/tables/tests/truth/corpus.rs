//! Compares the tables of all traces in a folder, which `FERRETTO_TRACES` names, and says for each table what is equal.
//!
//! A difference is expected in a trace with packets of a kind that is not read, which `ferretto_loss` tells, and where `known.txt` has it with a reason. Lines
//! of that file that nothing needed are named, if the folder has a trace of their name. `FERRETTO_TABLES_ONLY` names one table, whose differences are then all
//! shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::{Comparison, compare_each, tpq, whole};

/// The memory with which recorded traces are read.
const MEMORY: usize = 64 << 20;
/// As many traces are compared at a time.
const AT_ONCE: usize = 3;
const KNOWN: &str = include_str!("known.txt");

/// A difference that is known: the trace, the table and the reason.
struct Known {
    trace: &'static str,
    table: &'static str,
}

fn known() -> Vec<Known> {
    let lines = KNOWN
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let (trace, table) = (words.next().unwrap(), words.next().unwrap());
            assert!(words.next().is_some(), "known.txt: {line} has no reason");
            Known { trace, table }
        })
        .collect()
}

/// What all traces have of one table.
#[derive(Default)]
struct Sum {
    traces: usize,
    rows: usize,
    unread: usize,
    known: usize,
    different: Vec<String>,
}

/// Returns all traces below a folder, in the order of their names.
fn traces_below(folder: &Path) -> Vec<PathBuf> {
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            traces.extend(traces_below(&path));
        } else if path.to_str().is_some_and(|name| name.contains(".pftrace")) {
            traces.push(path);
        }
    }
    traces.sort();
    traces
}

/// Compares traces, some at a time. Returns what came out, in the order of the traces.
fn compare_all(traces: &[PathBuf]) -> Vec<Result<Comparison, String>> {
    let (next, results) = (Mutex::new(0..traces.len()), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(at) = next.lock().unwrap().next() else {
                        break;
                    };
                    let result = compare_each(&traces[at], &whole(MEMORY));
                    results.lock().unwrap().insert(at, result);
                }
            });
        }
    });
    results.into_inner().unwrap().into_values().collect()
}

#[test]
fn recorded_traces_have_the_same_tables() {
    let Some(folder) = std::env::var_os("FERRETTO_TRACES").map(PathBuf::from) else {
        return;
    };
    if !tpq::is_there() {
        return;
    }
    let only = std::env::var("FERRETTO_TABLES_ONLY").ok();
    let traces = traces_below(&folder);
    assert!(!traces.is_empty(), "{} has no traces", folder.display());
    let known = known();
    let (mut used, mut equal, mut unread) = (vec![false; known.len()], 0, 0);
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    let mut unread_kinds: BTreeMap<String, usize> = BTreeMap::new();
    for (trace, result) in traces.iter().zip(compare_all(&traces)) {
        let name = trace.file_name().unwrap().to_string_lossy().into_owned();
        let each = match result {
            Ok(each) => each,
            Err(why) => {
                println!("{name}: {}", why.trim_end());
                unread += 1;
                continue;
            }
        };
        let Comparison {
            tables: each,
            unread: kinds,
        } = each;
        for kind in &kinds {
            *unread_kinds.entry(kind.clone()).or_default() += 1;
        }
        equal += usize::from(each.iter().all(|it| it.difference.is_none()));
        for compared in each {
            let sum = sums.entry(compared.table).or_default();
            let place = known
                .iter()
                .position(|known| name.starts_with(known.trace) && known.table == compared.table);
            match (compared.difference, place) {
                (None, _) => {
                    sum.traces += usize::from(compared.rows > 0);
                    sum.rows += compared.rows;
                }
                (Some(_), Some(place)) => {
                    sum.known += 1;
                    used[place] = true;
                }
                (Some(_), None) if !kinds.is_empty() => sum.unread += 1,
                (Some(what), None) => sum.different.push(format!("{name}: {what}")),
            }
        }
    }
    println!(
        "{} traces; {equal} are equal in all tables; {unread} are not read",
        traces.len()
    );
    println!(
        "{:<32} {:>8} {:>10} {:>7} {:>7} {:>10}",
        "table", "traces", "rows", "unread", "known", "different"
    );
    for (table, sum) in &sums {
        let different = sum.different.len();
        println!(
            "{table:<32} {:>8} {:>10} {:>7} {:>7} {different:>10}",
            sum.traces, sum.rows, sum.unread, sum.known
        );
    }
    for (kind, traces) in &unread_kinds {
        println!("not read in {traces} traces: {kind}");
    }
    let mut failures = 0;
    for (table, sum) in &sums {
        failures += sum.different.len();
        let shown = match &only {
            Some(only) if only == table => sum.different.len(),
            Some(_) => 0,
            None => 1,
        };
        for what in sum.different.iter().take(shown) {
            println!("\n{what}");
        }
    }
    for (known, _) in known.iter().zip(used).filter(|(_, used)| !used) {
        let is_here = |trace: &PathBuf| {
            trace
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(known.trace))
        };
        if traces.iter().any(is_here) {
            println!("known.txt: {} {} was not different", known.trace, known.table);
        }
    }
    assert!(failures == 0, "{failures} tables differ");
}
