//! Conditions of queries within queries that name columns of the query around: they are moved up to where DataFusion looks for them.
//!
//! DataFusion joins a query with the one around it by such conditions, and finds them below projections and aggregates, but not below a table in parentheses with
//! a name. The plan of a table function is one. So before DataFusion optimizes a plan, [`Lift`] moves these conditions above the name.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias,
};
use datafusion::optimizer::AnalyzerRule;

/// The rule.
#[derive(Debug)]
pub(crate) struct Lift;

impl AnalyzerRule for Lift {
    fn name(&self) -> &str {
        "lift_conditions_on_outer_columns"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let lifted = plan.transform_up_with_subqueries(|node| {
            let node = match node {
                LogicalPlan::Subquery(mut query) if is_below_a_name(&query.subquery)? => {
                    query.subquery = lifted(&query.subquery)?;
                    LogicalPlan::Subquery(query)
                }
                node => node,
            };
            node.map_expressions(|expression| expression.transform_up(in_expression))
        });
        Ok(lifted?.data)
    }
}

fn in_expression(mut expression: Expr) -> Result<Transformed<Expr>> {
    let query = match &mut expression {
        Expr::ScalarSubquery(query) => query,
        Expr::Exists(exists) => &mut exists.subquery,
        Expr::InSubquery(within) => &mut within.subquery,
        _ => return Ok(Transformed::no(expression)),
    };
    if !is_below_a_name(&query.subquery)? {
        return Ok(Transformed::no(expression));
    }
    query.subquery = lifted(&query.subquery)?;
    Ok(Transformed::yes(expression))
}

/// Whether a plan has columns of the query around below a name.
fn is_below_a_name(plan: &LogicalPlan) -> Result<bool> {
    let mut is_below = false;
    plan.apply(|node| {
        is_below |=
            matches!(node, LogicalPlan::SubqueryAlias(alias) if !alias.input.all_out_ref_exprs().is_empty());
        Ok(match is_below {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(is_below)
}

fn lifted(plan: &LogicalPlan) -> Result<Arc<LogicalPlan>> {
    Ok(Arc::new(Lifting::default().settle(plan.clone())?))
}

/// The state of one query.
#[derive(Default)]
struct Lifting {
    /// The columns that were added so far.
    columns: usize,
}

impl Lifting {
    /// Lifts what is in a plan to its top, and keeps its columns.
    fn settle(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let columns: Vec<Expr> = plan.schema().iter().map(Expr::from).collect();
        let (plan, conditions) = self.lift(plan)?;
        match conjunction(conditions) {
            None => Ok(plan),
            Some(condition) => LogicalPlanBuilder::from(plan)
                .filter(condition)?
                .project(columns)?
                .build(),
        }
    }

    /// Takes the conditions on columns of the query around out of a plan. The plan that is left has the columns that they name.
    fn lift(&mut self, plan: LogicalPlan) -> Result<(LogicalPlan, Vec<Expr>)> {
        match plan {
            LogicalPlan::Filter(filter) => {
                let (input, mut lifted) = self.lift(Arc::unwrap_or_clone(filter.input))?;
                let conditions = split_conjunction_owned(filter.predicate);
                let (outer, own): (Vec<_>, Vec<_>) = conditions.into_iter().partition(Expr::contains_outer);
                lifted.extend(outer);
                let plan = match conjunction(own) {
                    Some(own) => LogicalPlan::Filter(Filter::try_new(own, Arc::new(input))?),
                    None => input,
                };
                Ok((plan, lifted))
            }
            LogicalPlan::Projection(projection) => {
                let (input, lifted) = self.lift(Arc::unwrap_or_clone(projection.input))?;
                let mut columns = projection.expr;
                let lifted = lifted
                    .into_iter()
                    .map(|condition| self.with_columns(condition, &mut columns))
                    .collect::<Result<_>>()?;
                let plan = LogicalPlan::Projection(Projection::try_new(columns, Arc::new(input))?);
                Ok((plan, lifted))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let (input, lifted) = self.lift(Arc::unwrap_or_clone(alias.input))?;
                let lifted = lifted
                    .into_iter()
                    .map(|condition| {
                        renamed(condition, |column| {
                            Column::new(Some(alias.alias.clone()), &column.name)
                        })
                    })
                    .collect::<Result<_>>()?;
                let plan = SubqueryAlias::try_new(Arc::new(input), alias.alias)?;
                Ok((LogicalPlan::SubqueryAlias(plan), lifted))
            }
            LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
                let (left, mut lifted) = self.lift(Arc::unwrap_or_clone(join.left))?;
                let (right, more) = self.lift(Arc::unwrap_or_clone(join.right))?;
                lifted.extend(more);
                let join = Join::try_new(
                    Arc::new(left),
                    Arc::new(right),
                    join.on,
                    join.filter,
                    join.join_type,
                    join.join_constraint,
                    join.null_equality,
                    join.null_aware,
                )?;
                Ok((LogicalPlan::Join(join), lifted))
            }
            // Its columns are those of the plan around it.
            LogicalPlan::Subquery(_) => Ok((plan, Vec::new())),
            other => {
                let settled = other
                    .map_children(|child| Ok(Transformed::yes(self.settle(child)?)))?
                    .data;
                Ok((settled.recompute_schema()?, Vec::new()))
            }
        }
    }

    /// Adds the columns that a condition names to those of a projection, with names of their own, and names them so.
    fn with_columns(&mut self, condition: Expr, columns: &mut Vec<Expr>) -> Result<Expr> {
        renamed(condition, |column| {
            let name = format!("__lifted_{}", self.columns);
            self.columns += 1;
            columns.push(Expr::Column(column.clone()).alias(&name));
            Column::from_name(name)
        })
    }
}

fn renamed(expression: Expr, mut name: impl FnMut(&Column) -> Column) -> Result<Expr> {
    let renamed = expression.transform_up(|part| {
        Ok(match &part {
            Expr::Column(column) => Transformed::yes(Expr::Column(name(column))),
            _ => Transformed::no(part),
        })
    });
    Ok(renamed?.data)
}
