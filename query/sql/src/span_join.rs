//! The virtual tables of `SPAN_JOIN`, `SPAN_LEFT_JOIN` and `SPAN_OUTER_JOIN`, with the trace processor's columns and rows.
//!
//! [`Database`](crate::Database) makes them. The columns are `ts`, `dur`, the column of the partitions if there is one, then the others of both tables. Rows
//! without a partition are left out; a null among times is 0.
//!
//! If one table has partitions only, the other is joined with each of them: its rows are repeated for each.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Column, JoinType, plan_err};
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::coalesce;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType, lit};
use datafusion::prelude::{SessionContext, cast};
use ferretto_tables::PARTITIONS;

use crate::dialect::{self, IfTaken, Kind, Side, SpanJoin};
use crate::functions::{Method, Pairs, Uncovered, sorted};
use crate::many::{Traces, is_id};

/// Plans the table.
pub(crate) async fn plan(join: &SpanJoin, context: &SessionContext) -> Result<Pairs> {
    let (a, b) = (
        Input::new(&join.sides[0], context).await?,
        Input::new(&join.sides[1], context).await?,
    );
    let partition = a.side.partition.as_ref().or(b.side.partition.as_ref());
    let is_mixed = a.side.partition.is_none() != b.side.partition.is_none();
    // Times of different traces have nothing to do with each other. An id tells traces apart, if both tables have it.
    let are_many = Traces::of(context.state().scalar_functions()) == Traces::Many;
    let has_id = !is_mixed && partition.is_some_and(|column| is_id(column));
    let traces: Vec<&str> = PARTITIONS
        .into_iter()
        .filter(|column| are_many && (!has_id || a.has(column) && b.has(column)))
        .collect();
    let mut equal: Vec<String> = partition.into_iter().cloned().collect();
    equal.extend(
        traces
            .iter()
            .map(|column| (*column).to_owned())
            .filter(|column| Some(column) != partition),
    );
    a.check(&b, &equal)?;
    b.check(&a, &equal)?;
    let (repeated_a, repeated_b) = (a.repeated(&b, &traces)?, b.repeated(&a, &traces)?);
    let inputs = [a.sorted(repeated_a, &equal)?, b.sorted(repeated_b, &equal)?];
    let uncovered = match join.kind {
        Kind::Inner => [Uncovered::LeftOut, Uncovered::LeftOut],
        Kind::Left => [Uncovered::Kept, Uncovered::LeftOut],
        Kind::Outer => [Uncovered::Kept, Uncovered::Kept],
    };
    Ok(Pairs::new(
        inputs,
        equal.len(),
        Method::Spans(uncovered),
        TableType::Base,
    ))
}

struct Input<'a> {
    side: &'a Side,
    plan: LogicalPlan,
    columns: Vec<String>,
}

impl<'a> Input<'a> {
    async fn new(side: &'a Side, context: &SessionContext) -> Result<Input<'a>> {
        let all = dialect::parse_one(&format!("select * from {}", side.table))?;
        let plan = context.state().statement_to_plan(all).await?;
        let columns = plan
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        Ok(Input { side, plan, columns })
    }

    fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|known| known == column)
    }

    /// Refuses what the trace processor refuses.
    fn check(&self, other: &Input<'_>, equal: &[String]) -> Result<()> {
        let (table, other_table) = (&self.side.table, &other.side.table);
        let missing = |column: &str, why: &str| {
            plan_err!(
                "SPAN_JOIN: `{table}` has no column `{column}`{why}; it has {}",
                self.columns.join(", ")
            )
        };
        if !self.has("ts") {
            return missing("ts", "");
        }
        if !self.has("dur") && !other.has("dur") {
            return missing("dur", &format!(", and `{other_table}` neither"));
        }
        for column in equal {
            let is_own =
                self.side.partition.as_ref() == Some(column) || PARTITIONS.contains(&column.as_str());
            match self.has(column) {
                true if !is_own => {
                    return plan_err!(
                        "SPAN_JOIN: `{table}` has the column `{column}` too, by which only `{other_table}` is partitioned; write `{table} PARTITIONED {column}`, or make a view without it"
                    );
                }
                false if PARTITIONS.contains(&column.as_str()) => {
                    return missing(
                        column,
                        ", which keeps traces apart where no id such as utid has the partitions",
                    );
                }
                false if is_own => return missing(column, ""),
                _ => {}
            }
        }
        let is_twice = |column: &&String| {
            !matches!(column.as_str(), "ts" | "dur") && !equal.contains(*column) && other.has(column.as_str())
        };
        match self.columns.iter().find(is_twice) {
            Some(column) => plan_err!(
                "SPAN_JOIN: `{table}` and `{other_table}` both have the column `{column}`; make a view without it, or with another name for it"
            ),
            None => Ok(()),
        }
    }

    /// Returns the rows, for each partition if only the other side has partitions.
    fn repeated(&self, other: &Input<'_>, traces: &[&str]) -> Result<LogicalPlan> {
        let partition = match (&self.side.partition, &other.side.partition) {
            (None, Some(partition)) => partition.as_str(),
            _ => return Ok(self.plan.clone()),
        };
        let columns = [partition].into_iter().chain(traces.iter().copied());
        let partitions = LogicalPlanBuilder::from(other.plan.clone())
            .project(columns.map(column).collect::<Vec<_>>())?
            .distinct()?
            .alias("partitions")?;
        let rows = LogicalPlanBuilder::from(self.plan.clone()).alias("spans")?;
        let of = |table: &str, name: &str| Column::new(Some(table), name);
        let joined = match traces {
            [] => rows.cross_join(partitions.build()?)?,
            traces => {
                let keys = |table| traces.iter().map(|name| of(table, name)).collect::<Vec<_>>();
                rows.join(
                    partitions.build()?,
                    JoinType::Inner,
                    (keys("spans"), keys("partitions")),
                    None,
                )?
            }
        };
        let own = self.columns.iter().map(|name| Expr::Column(of("spans", name)));
        let select = own.chain([Expr::Column(of("partitions", partition))]);
        joined.project(select.collect::<Vec<_>>())?.build()
    }

    fn sorted(&self, plan: LogicalPlan, equal: &[String]) -> Result<LogicalPlan> {
        let time = |name| match self.has(name) {
            true => coalesce(vec![cast(column(name), DataType::Int64), lit(0_i64)]),
            false => lit(0_i64),
        };
        sorted(plan, [time("ts"), time("dur")], equal)
    }
}

fn column(name: &str) -> Expr {
    Expr::Column(Column::from_name(name))
}

/// Makes the table, and registers it.
pub(crate) async fn create(join: &SpanJoin, context: &SessionContext) -> Result<()> {
    if context.table_exist(join.name.as_str())? {
        return match join.if_taken {
            IfTaken::Keep => Ok(()),
            IfTaken::Fail => plan_err!(
                "`{0}` exists; DROP TABLE {0} or DROP VIEW {0} removes it",
                join.name
            ),
        };
    }
    let table = plan(join, context).await?;
    context.register_table(join.name.as_str(), Arc::new(table))?;
    Ok(())
}
