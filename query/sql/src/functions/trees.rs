//! Table functions that follow slices up and down, and along flows. The argument is a number, or a column of a table before the call.
//!
//! The plan that takes the place of a call joins the table that it selects from with the pairs of [`reached`](super::reached).

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, JoinType, plan_err};
use datafusion::datasource::{ViewTable, provider_as_source};
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::prelude::{SessionContext, cast};
use ferretto_tables::PARTITIONS;

use super::kin::Kin;
use super::reached::{OF, OTHER, Reached};

/// The columns of slices that the trace processor's functions have.
const SLICE: [&str; 13] = [
    "id",
    "ts",
    "dur",
    "track_id",
    "category",
    "name",
    "depth",
    "parent_id",
    "arg_set_id",
    "thread_ts",
    "thread_dur",
    "thread_instruction_count",
    "thread_instruction_delta",
];
const FLOW: [&str; 5] = ["id", "slice_out", "slice_in", "trace_id", "arg_set_id"];

/// A function of one number.
#[derive(Debug)]
struct Function {
    name: &'static str,
    kin: Kin,
}

/// As in the trace processor, a slice is no ancestor of itself.
const FUNCTIONS: [Function; 7] = [
    function("ancestor_slice", Kin::Ancestors),
    function("descendant_slice", Kin::Descendants),
    function("ancestor_slice_by_stack", Kin::AncestorsOfStack),
    function("descendant_slice_by_stack", Kin::DescendantsOfStack),
    function("following_flow", Kin::Following),
    function("preceding_flow", Kin::Preceding),
    function("directly_connected_flow", Kin::Connected),
];

const fn function(name: &'static str, kin: Kin) -> Function {
    Function { name, kin }
}

pub(super) fn register(context: &SessionContext) {
    for function in FUNCTIONS {
        context.register_udtf(function.name, Arc::new(function));
    }
}

pub(super) fn tables_of(function: &str) -> &'static [&'static str] {
    match FUNCTIONS.iter().find(|known| known.name == function) {
        Some(known) if known.kin.are_flows() => &["flow", "slice"],
        Some(_) => &["slice"],
        None => &[],
    }
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let [of] = arguments.exprs() else {
            return plan_err!("{} takes one id", self.name);
        };
        let of = self.number(of)?;
        let Some(state) = arguments.session().as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{} needs a session with SQL", self.name);
        };
        let stack = if self.kin.is_by_stack() {
            "stack_id"
        } else {
            "0 as stack_id"
        };
        let mut inputs = vec![super::plan(
            state,
            &format!("select id, parent_id, {stack} from slice"),
        )?];
        let (table, known) = match self.kin.are_flows() {
            true => {
                inputs.push(super::plan(state, "select slice_out, slice_in, id from flow")?);
                ("flow", &FLOW[..])
            }
            false => ("slice", &SLICE[..]),
        };
        let pairs = Arc::new(Reached::new(self.kin, inputs));
        let pairs = LogicalPlanBuilder::scan("pairs", provider_as_source(pairs), None)?.build()?;
        let rows = super::plan(state, &format!("select * from {table}"))?;
        let has = |name: &&str| rows.schema().has_column_with_unqualified_name(name);
        let columns = known.iter().copied().chain(PARTITIONS).filter(has);
        let columns: Vec<Expr> = columns
            .map(|name| Expr::Column(Column::new(Some(table), name)))
            .collect();
        // The first is what the join keeps in memory: few pairs of one id, or all rows instead of the pairs of all ids.
        let id = Column::new(Some(table), "id");
        let other = Column::new(Some("pairs"), OTHER);
        let is_of_many = of.contains_outer() || of.exists(|part| Ok(matches!(part, Expr::Placeholder(_))))?;
        let joined = match is_of_many {
            true => {
                LogicalPlanBuilder::from(rows).join(pairs, JoinType::Inner, (vec![id], vec![other]), None)?
            }
            false => {
                LogicalPlanBuilder::from(pairs).join(rows, JoinType::Inner, (vec![other], vec![id]), None)?
            }
        };
        let plan = joined
            .filter(Expr::Column(Column::new(Some("pairs"), OF)).eq(of))?
            .project(columns)?
            .build()?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

impl Function {
    /// Returns an argument as a number.
    fn number(&self, argument: &Expr) -> Result<Expr> {
        let is_text = |value: &Expr| match value {
            Expr::Literal(value, _) => value.cast_to(&DataType::Int64).is_err(),
            _ => false,
        };
        // A column that no table before the call has would be one of the slices.
        if is_text(argument) || !argument.column_refs().is_empty() {
            return plan_err!(
                "{}: `{argument}` is no number, and no column of a table before the call",
                self.name
            );
        }
        Ok(cast(argument.clone(), DataType::Int64))
    }
}
