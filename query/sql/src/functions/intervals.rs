//! `interval_intersect(a, b, columns)`, also called `span_join`, and `span_left_join`: where the intervals of two tables overlap.
//!
//! `a` and `b` are names of tables or queries with columns `ts` and `dur`; `columns` are names with commas between them that must be equal in both, and may be
//! left out. Each row of the result is a time that an interval of `a` and one of `b` share: `ts`, `dur`, the equal columns, then the other columns of `a` and of
//! `b`; a name that both have gets `_0` and `_1`. A duration of -1 means that the interval lasts to the end. Rows without `ts`, `dur` or an equal column are
//! left out. `span_left_join` also has the times of `a` that nothing of `b` overlaps, with nulls.
//!
//! Times of different traces have nothing to do with each other. Where there are many, and none of the equal columns is an id, intervals also must be of one
//! trace.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Column, plan_err};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType};
use datafusion::prelude::{SessionContext, cast};
use ferretto_tables::PARTITIONS;

use crate::many::{Traces, is_id};

use super::pairs::{Method, Pairs, sorted};
use super::sweep::Uncovered;

pub(super) fn register(context: &SessionContext) {
    for (name, uncovered) in [
        ("interval_intersect", Uncovered::LeftOut),
        ("span_join", Uncovered::LeftOut),
        ("span_left_join", Uncovered::Kept),
    ] {
        context.register_udtf(name, Arc::new(Function { name, uncovered }));
    }
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    uncovered: Uncovered,
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let name = self.name;
        let (a, b, columns) = match arguments.exprs() {
            [a, b] => (a, b, String::new()),
            [a, b, columns] => (a, b, super::text(name, columns)?),
            _ => return plan_err!("{name} takes two tables or queries, and the columns that must be equal"),
        };
        let mut equal: Vec<String> = columns
            .split(',')
            .map(|column| column.trim().to_lowercase())
            .filter(|column| !column.is_empty())
            .collect();
        let Some(state) = arguments.session().as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{name} needs a session with SQL");
        };
        let tells_traces = |column: &String| is_id(column) || PARTITIONS[2] == column.as_str();
        if Traces::of(state.scalar_functions()) == Traces::Many && !equal.iter().any(tells_traces) {
            equal.extend(
                PARTITIONS
                    .map(str::to_owned)
                    .into_iter()
                    .filter(|column| !equal.contains(column))
                    .collect::<Vec<_>>(),
            );
        }
        let inputs = [input(state, name, a, &equal)?, input(state, name, b, &equal)?];
        let method = Method::Overlaps(self.uncovered);
        Ok(Arc::new(Pairs::new(inputs, equal.len(), method, TableType::View)))
    }
}

/// Plans one of the inputs: `ts`, `dur`, the equal columns, the others; sorted.
fn input(state: &SessionState, function: &str, argument: &Expr, equal: &[String]) -> Result<LogicalPlan> {
    let source = super::text(function, argument)?;
    let is_name = source
        .chars()
        .all(|letter| letter.is_alphanumeric() || letter == '_');
    let plan = super::plan(
        state,
        &match is_name {
            true => format!("select * from {source}"),
            false => source.clone(),
        },
    )?;
    let names: Vec<String> = plan
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    for needed in ["ts", "dur"].into_iter().chain(equal.iter().map(String::as_str)) {
        if !names.iter().any(|name| name == needed) {
            let why = match PARTITIONS.contains(&needed) {
                true => ", which keeps traces apart where the third argument has no id such as utid",
                false => "",
            };
            return plan_err!(
                "{function}: `{source}` has no column `{needed}`{why}; it has {}",
                names.join(", ")
            );
        }
    }
    let column = |name: &str| Expr::Column(Column::from_name(name));
    let plan = LogicalPlanBuilder::from(plan)
        .filter(column("ts").is_not_null().and(column("dur").is_not_null()))?
        .build()?;
    let times = ["ts", "dur"].map(|name| cast(column(name), DataType::Int64));
    sorted(plan, times, equal)
}
