//! `INCLUDE PERFETTO MODULE`: does nothing for a module whose views and functions are here, because they are there from the start. For any other it fails
//! at once, instead of later where a statement misses the module's tables.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use super::starts_with;

/// The modules whose views and functions are here, besides those of the prelude.
const MODULES: [&str; 5] = [
    "linux.cpu.frequency",
    "sched.latency",
    "sched.with_context",
    "slices.with_context",
    "time.conversion",
];

/// Whether a statement includes a module.
pub(super) fn is_include(statement: &[TokenWithSpan]) -> Result<bool> {
    if !starts_with(statement, &["include", "perfetto", "module"]) {
        return Ok(false);
    }
    let name: String = statement[3..]
        .iter()
        .map(|token| token.token.to_string().to_lowercase())
        .collect();
    match MODULES.contains(&name.as_str()) || name.starts_with("prelude.") {
        true => Ok(true),
        false => plan_err!(
            "the module `{name}` is not here; there are {}. Leave the statement out, and define what you need of the module",
            MODULES.join(", ")
        ),
    }
}
