//! Table functions that follow slices up and down, and along flows. Each is a recursive query; its plan takes the place of the call.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::plan_err;
use datafusion::datasource::ViewTable;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;

/// A function of one number, and the query that `$1` makes of it.
#[derive(Debug)]
struct Query {
    name: &'static str,
    sql: &'static str,
}

/// As in the trace processor, a slice is no ancestor of itself.
const QUERIES: [Query; 4] = [
    Query {
        name: "ancestor_slice",
        sql: "with recursive up as (
            select parent_id as of from slice where id = $1
            union all
            select slice.parent_id as of from up join slice on slice.id = up.of)
            select slice.* from slice where id in (select of from up)",
    },
    Query {
        name: "descendant_slice",
        sql: "with recursive down as (
            select id as of from slice where parent_id = $1
            union all
            select slice.id as of from down join slice on slice.parent_id = down.of)
            select slice.* from slice where id in (select of from down)",
    },
    // A reached slice also reaches the slices within it.
    Query {
        name: "following_flow",
        sql: "with recursive reached as (
            select id as of from slice where id = $1
            union
            select step.target as of from reached join (
                select slice_out as source, slice_in as target from flow
                union all
                select parent_id as source, id as target from slice where parent_id is not null) as step
            on step.source = reached.of)
            select flow.* from flow where slice_out in (select of from reached)",
    },
    // A reached slice also reaches the slices that contain it.
    Query {
        name: "preceding_flow",
        sql: "with recursive reached as (
            select id as of from slice where id = $1
            union
            select step.target as of from reached join (
                select slice_in as source, slice_out as target from flow
                union all
                select id as source, parent_id as target from slice where parent_id is not null) as step
            on step.source = reached.of)
            select flow.* from flow where slice_in in (select of from reached)",
    },
];

pub(super) fn register(context: &SessionContext) {
    for query in QUERIES {
        context.register_udtf(query.name, Arc::new(query));
    }
}

pub(super) fn tables_of(function: &str) -> &'static [&'static str] {
    match function {
        "ancestor_slice" | "descendant_slice" => &["slice"],
        "following_flow" | "preceding_flow" => &["flow", "slice"],
        _ => &[],
    }
}

impl TableFunctionImpl for Query {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let [id] = arguments.exprs() else {
            return plan_err!("{} takes one id", self.name);
        };
        let Some(id) = number(id) else {
            return plan_err!("{}: `{id}` is no number; write the id itself", self.name);
        };
        let Some(state) = arguments.session().as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{} needs a session with SQL", self.name);
        };
        let plan = super::plan(state, &self.sql.replace("$1", &id.to_string()))?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

fn number(argument: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = argument else {
        return None;
    };
    match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(number)) => number,
        _ => None,
    }
}
