//! Asks upstream's trace processor.

use std::path::Path;
use std::process::Command;

/// Whether there is a program to ask. Says so if there is none.
pub(crate) fn is_there() -> bool {
    let is_there = std::env::var_os("FERRETTO_TPQ").is_some();
    if !is_there {
        println!("skipped: FERRETTO_TPQ does not name a program that asks upstream's trace processor");
    }
    is_there
}

/// Returns the rows of each statement, as text with tabs. Fails if the trace processor does not read the trace.
pub(crate) fn ask(trace: &Path, statements: &[String]) -> Result<Vec<Vec<String>>, String> {
    const CANNOT_READ: i32 = 3;
    let program = std::env::var_os("FERRETTO_TPQ").unwrap();
    let output = Command::new(program)
        .arg(trace)
        .args(statements)
        .output()
        .unwrap();
    if output.status.code() == Some(CANNOT_READ) {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    assert!(
        output.status.success(),
        "{}: {}",
        trace.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let mut results: Vec<Vec<String>> = Vec::new();
    for part in text.trim_end_matches('\n').split("\n\n") {
        results.push(part.lines().skip(1).map(str::to_owned).collect());
    }
    assert_eq!(results.len(), statements.len(), "{text:.2000}");
    Ok(results)
}
