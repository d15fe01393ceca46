//! The functions that tracing needs and SQL lacks. [`register`] adds them to a session of DataFusion's, also one of another engine that is built on it.
//!
//! - `human_duration(ns)`, `human_bytes(bytes)`, `time_bucket(ts, width)`: `units`.
//! - `printf(format, values..)`, `str_split(text, separator, n)`, `regexp_extract(text, pattern)`: `texts`.
//! - `typeof(x)`, `hex(x)`, `quote(x)`, `unicode(x)`, `char(n..)`, `json_extract(x, path)`, parts of texts: `sqlite`; `strftime(format, x)` and the like: `dates`.
//! - `truth(x)`, which [`dialect`](crate::dialect) puts around conditions that are numbers: `truth`.
//! - `ancestor_slice(id)`, `descendant_slice(id)`, the same `_by_stack`, `following_flow(slice_id)`, `preceding_flow(slice_id)`, `directly_connected_flow(slice_id)`: `trees`.
//! - `interval_intersect(a, b, columns)`, `span_join(a, b, columns)`, `span_left_join(a, b, columns)`: `intervals`.

mod dates;
mod intervals;
mod kin;
mod mixed;
mod pairs;
mod reached;
mod scalar;
mod spans;
mod sqlite;
mod sweep;
mod texts;
mod trees;
mod truth;
mod units;
mod values;

use std::sync::Arc;

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{Expr, LogicalPlan, ScalarUDF};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use futures::FutureExt;

use crate::{arguments, clock_functions, dialect, planning};

pub(crate) use dates::EPOCH_WITH_FRACTION;
pub(crate) use mixed::Mixed;
pub(crate) use pairs::{Method, Pairs, sorted};
pub(crate) use sqlite::{REAL, SUBSTRING, TEXT, WHOLE};
pub(crate) use sweep::Uncovered;
pub(crate) use truth::TRUTH;
pub use units::{bytes as human_bytes, duration as human_duration};

/// Adds the functions to a session.
pub fn register(context: &SessionContext) {
    let truth = ScalarUDF::new_from_impl(truth::Truth::new());
    for function in units::functions()
        .into_iter()
        .chain(texts::functions())
        .chain(sqlite::functions())
        .chain(dates::functions())
        .chain([truth, truth::number_of_text()])
    {
        context.register_udf(function);
    }
    trees::register(context);
    intervals::register(context);
}

/// Lets conditions and numbers meet.
pub(crate) fn register_planner(context: &mut SessionContext) -> Result<()> {
    context.register_expr_planner(Arc::new(truth::Numbers))
}

/// Returns the tables that a function reads by itself.
pub(crate) fn tables_of(function: &str) -> &'static [&'static str] {
    match trees::tables_of(function) {
        [] => match arguments::tables_of(function) {
            [] => clock_functions::tables_of(function),
            tables => tables,
        },
        tables => tables,
    }
}

/// Whether a value function has what it knows in the memory of this process, so that no other can run it.
pub(crate) fn runs_here_only(function: &str) -> bool {
    !arguments::tables_of(function).is_empty() || !clock_functions::tables_of(function).is_empty()
}

/// Plans the one statement of a text, while another is being planned.
fn plan(state: &SessionState, sql: &str) -> Result<LogicalPlan> {
    match planning::plan(state, dialect::parse_one(sql)?).now_or_never() {
        Some(plan) => plan,
        None => {
            plan_err!("`{sql}` has a table that is still looked for; name tables of this session only")
        }
    }
}

/// Returns a text that an argument is.
fn text(function: &str, argument: &Expr) -> Result<String> {
    match argument {
        Expr::Literal(ScalarValue::Utf8(Some(text)), _)
        | Expr::Literal(ScalarValue::Utf8View(Some(text)), _) => Ok(text.clone()),
        Expr::Column(column) if column.relation.is_none() => Ok(column.name.clone()),
        other => plan_err!(
            "{function}: `{other}` is no text; write the name of a table, a query or names of columns in quotes"
        ),
    }
}
