//! What ids say of many traces: rows with the same id are of the same trace.
//!
//! Views compare ids and also `date`, `machine` and `trace`, so that a condition on one of these reaches the files of all tables. Once DataFusion has moved the
//! conditions there, the comparisons are work without use: of texts, for each row. [`Implied`] takes them out of joins and windows, and columns that nothing
//! else needs are not even read then. [`Columns`] tells what is an id.

use std::sync::Arc;

use datafusion::common::NullEquality;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::known::{Columns, Known, Source, unaliased};

/// The rule. It stands behind those that move conditions, and before the one that leaves out columns.
#[derive(Debug)]
pub(crate) struct Implied;

impl OptimizerRule for Implied {
    fn name(&self) -> &str {
        "leave_out_what_ids_imply"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNothing => in_join(join),
            LogicalPlan::Window(window) => in_window(window),
            other => Ok(Transformed::no(other)),
        }
    }
}

fn in_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    if join.on.len() < 2 {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let (left, right) = (Columns::of(&join.left), Columns::of(&join.right));
    let known = |(one, other): &(Expr, Expr)| Some((left.get(one)?, right.get(other)?));
    let of_ids = |pair: &(Expr, Expr)| {
        let (one, other) = known(pair)?;
        Some((one.id()?, other.id()?))
    };
    let same_trace: Vec<(Source, Source)> = join.on.iter().filter_map(of_ids).collect();
    let is_implied = |pair: &(Expr, Expr)| match known(pair) {
        Some((Known::Partition(one, place), Known::Partition(other, same))) => {
            place == same && same_trace.contains(&(one, other))
        }
        _ => false,
    };
    let before = join.on.len();
    join.on.retain(|pair| !is_implied(pair));
    let is_changed = join.on.len() != before;
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_changed))
}

fn in_window(window: Window) -> Result<Transformed<LogicalPlan>> {
    let columns = Columns::of(&window.input);
    let mut is_changed = false;
    let values = window.window_expr.iter().map(|value| {
        let Expr::WindowFunction(function) = unaliased(value) else {
            return value.clone();
        };
        let keys = &function.params.partition_by;
        let same_trace: Vec<Known> = keys.iter().filter_map(|key| columns.get(key)).collect();
        let is_implied = |key: &Expr| match columns.get(key) {
            Some(Known::Partition(source, _)) => same_trace.contains(&Known::Id(source)),
            _ => false,
        };
        if !keys.iter().any(is_implied) {
            return value.clone();
        }
        is_changed = true;
        let mut fewer = function.clone();
        fewer.params.partition_by.retain(|key| !is_implied(key));
        // By its name the plan above knows the value.
        Expr::WindowFunction(fewer).alias(value.schema_name().to_string())
    });
    let values: Vec<Expr> = values.collect();
    if !is_changed {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    Window::try_new(values, Arc::clone(&window.input))
        .map(|window| Transformed::yes(LogicalPlan::Window(window)))
}
