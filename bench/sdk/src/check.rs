//! Before anything is measured: whether each peer records what its case says, by upstream's trace processor.

use std::path::Path;
use std::process::Command;

use ferretto_bench_sdk::case::{Case, NAMES, TEXT};

/// How often a case is done for this.
pub(crate) const COUNT: u64 = 1000;

/// Whether a trace of a case done so often by each thread holds just that, and no statistic of errors or losses.
pub(crate) fn check(tpq: &Path, trace: &Path, case: Case) -> Result<(), String> {
    let statistics = Command::new(tpq)
        .arg("--stats")
        .arg(trace)
        .output()
        .map_err(|error| format!("starting {}: {error}", tpq.display()))?;
    if !statistics.status.success() {
        let lines = String::from_utf8_lossy(&statistics.stdout).into_owned();
        return Err(format!("the trace has errors or losses: {lines}"));
    }
    let query = query(case);
    let answer = Command::new(tpq)
        .arg(trace)
        .arg(&query)
        .output()
        .map_err(|error| format!("starting {}: {error}", tpq.display()))?;
    let text = String::from_utf8_lossy(&answer.stdout);
    match text.lines().nth(1).map(str::trim) {
        Some("1") => Ok(()),
        _ => Err(format!(
            "the trace is not what it should be: {query} gives {text}"
        )),
    }
}

/// Gives 1 if all is there.
fn query(case: Case) -> String {
    let count = COUNT * case.threads();
    match case {
        Case::Pair | Case::PairOnTwoThreads => format!(
            "select count(*) = {count} and min(dur) >= 0 and count(distinct utid) = {} from slice \
             join thread_track on track_id = thread_track.id where slice.name = 'slice'",
            case.threads()
        ),
        Case::Instant => format!(
            "select count(*) = {count} and count(distinct extract_arg(arg_set_id, 'debug.number')) = {count} \
             and min(extract_arg(arg_set_id, 'debug.text')) = '{TEXT}' from slice where name = 'instant' and dur = 0"
        ),
        Case::Counter => format!(
            "select count(*) = {count} and min(value) = 0 and max(value) = {count} - 1 from counter \
             join track on track_id = track.id where name = 'counter'"
        ),
        Case::DynamicName => format!(
            "select count(*) = {count} and min(dur) >= 0 and count(distinct name) = {} from slice \
             where name glob 'request-*'",
            NAMES.rust.len()
        ),
        Case::Span => {
            format!("select count(*) = {count} and min(dur) >= 0 from slice where name = 'slice'")
        }
    }
}
