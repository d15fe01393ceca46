//! Queries of traces with upstream's trace processor.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The command line of upstream's trace processor.
pub(crate) struct TraceProcessor(PathBuf);

impl TraceProcessor {
    /// Finds the program `tpq`, which `$FERRETTO_TPQ` names; or prints that the test is skipped.
    pub(crate) fn find() -> Option<TraceProcessor> {
        let program = std::env::var_os("FERRETTO_TPQ")
            .map(PathBuf::from)
            .filter(|path| path.exists());
        if program.is_none() {
            println!("skipped: no trace processor; name the program tpq in FERRETTO_TPQ");
        }
        program.map(TraceProcessor)
    }

    /// Returns the rows of each SQL query, as text. The trace is loaded only once, because loading takes long.
    pub(crate) fn query<const N: usize>(&self, trace: &Path, queries: [&str; N]) -> [Rows; N] {
        let mut program = Command::new(&self.0);
        // The program may be a script, and shells complain of locales that are not installed.
        program.arg(trace).args(queries).env("LC_ALL", "C");
        let output = program.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", trace.display());
        assert_eq!(said, "", "{}", trace.display());
        let text = String::from_utf8(output.stdout).unwrap();
        // The output of a query is a header and rows. A blank line separates the outputs.
        let results: Vec<Rows> = text
            .trim_end()
            .split("\n\n")
            .map(|result| {
                result
                    .lines()
                    .skip(1)
                    .map(|row| row.split('\t').map(str::to_owned).collect())
                    .collect()
            })
            .collect();
        results
            .try_into()
            .unwrap_or_else(|_| panic!("not {N} results: {text}"))
    }
}

/// The result of a query.
pub(crate) type Rows = Vec<Vec<String>>;

/// Returns the numbers of a result with one row; 0 for NULL.
pub(crate) fn numbers<const N: usize>(rows: &Rows) -> [i64; N] {
    let [row] = rows.as_slice() else {
        panic!("not one row: {rows:?}")
    };
    let numbers: Vec<i64> = row.iter().map(|cell| cell.parse().unwrap_or(0)).collect();
    numbers
        .try_into()
        .unwrap_or_else(|_| panic!("not {N} columns: {row:?}"))
}

/// Selects the statistics of errors and losses. A good trace has none.
pub(crate) const LOSSES: &str =
    "select name, idx, severity, value from stats where severity in ('error', 'data_loss') and value != 0";
