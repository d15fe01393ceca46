//! Upstream's trace processor, for tests that have it read a trace. Found through `FERRETTO_TPQ`.

#![allow(dead_code, reason = "each test that includes this file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The trace processor's answer to a query: the columns of each row. Without a trace processor, `None`, and a line that says that the test is
/// skipped.
pub(crate) fn ask(trace: &Path, query: &str) -> Option<Vec<Vec<String>>> {
    let program = std::env::var_os("FERRETTO_TPQ").map(PathBuf::from);
    let Some(program) = program.filter(|path| path.exists()) else {
        println!("skipped: no trace processor; name the program tpq in FERRETTO_TPQ");
        return None;
    };
    // It may be a script, and shells complain of locales that are not installed.
    let mut program = Command::new(program);
    let output = program.arg(trace).arg(query).env("LC_ALL", "C").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
    let answer = String::from_utf8(output.stdout).unwrap();
    // The first line has the names of the columns.
    let rows = answer.lines().skip(1);
    Some(
        rows.map(|row| row.split('\t').map(str::to_owned).collect())
            .collect(),
    )
}

/// As [`ask`], of a trace in memory, for one row of numbers.
pub(crate) fn ask_numbers<const N: usize>(trace: &[u8], query: &str) -> Option<[u64; N]> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace).unwrap();
    let rows = ask(file.path(), query)?;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let numbers: Vec<u64> = rows[0].iter().map(|cell| cell.trim().parse().unwrap()).collect();
    Some(numbers.try_into().unwrap())
}
