//! Conditions of queries within queries that name columns of the query around: they are moved up to where DataFusion looks for them.
//!
//! DataFusion joins a query with the one around it by such conditions, and finds them below projections and aggregates, but not below a table in parentheses with
//! a name. The plan of a table function is one. So before DataFusion optimizes a plan, [`Lift`] moves these conditions above the name.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, not_impl_err};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SubqueryAlias,
    Window,
};
use datafusion::optimizer::AnalyzerRule;

use crate::error::NO_JOIN;

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

/// Whether a plan has columns of the query around below a name, or below a window, which DataFusion would compute over the rows of all of them.
fn is_below_a_name(plan: &LogicalPlan) -> Result<bool> {
    let mut is_below = false;
    plan.apply(|node| {
        is_below |= match node {
            LogicalPlan::SubqueryAlias(alias) => !alias.input.all_out_ref_exprs().is_empty(),
            LogicalPlan::Window(window) => !window.input.all_out_ref_exprs().is_empty(),
            _ => false,
        };
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
            LogicalPlan::Join(join) if is_of_the_left(join.join_type) => {
                let (left, mut lifted) = self.lift(Arc::unwrap_or_clone(join.left))?;
                let right = Arc::unwrap_or_clone(join.right);
                let right = match join.join_type {
                    JoinType::Inner => {
                        let (right, more) = self.lift(right)?;
                        lifted.extend(more);
                        right
                    }
                    // A condition on its rows would take rows of the left side away.
                    _ => self.settle(right)?,
                };
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
            LogicalPlan::Sort(mut sort) if sort.fetch.is_none() => {
                let (input, lifted) = self.lift(Arc::unwrap_or_clone(sort.input))?;
                sort.input = Arc::new(input);
                Ok((LogicalPlan::Sort(sort), lifted))
            }
            LogicalPlan::Window(window) => {
                let (input, lifted) = self.lift(window.input.as_ref().clone())?;
                // Rows that meet equalities with the same values are one partition. What is not lifted DataFusion would take out of the window itself.
                let keys = lifted.iter().map(own_side).collect::<Option<Vec<Expr>>>();
                let keys = keys.filter(|_| input.all_out_ref_exprs().is_empty());
                let Some(keys) = keys else {
                    return not_impl_err!("{NO_JOIN}");
                };
                if keys.is_empty() {
                    return Ok((LogicalPlan::Window(window), lifted));
                }
                let within = window
                    .window_expr
                    .into_iter()
                    .map(|value| partitioned(value, &keys));
                let within = Window::try_new(within.collect::<Result<_>>()?, Arc::new(input))?;
                Ok((LogicalPlan::Window(within), lifted))
            }
            // Its columns are those of the plan around it.
            LogicalPlan::Subquery(_) => Ok((plan, Vec::new())),
            other => Ok((self.settled_inside(other)?, Vec::new())),
        }
    }

    /// Settles what is below a plan.
    fn settled_inside(&mut self, plan: LogicalPlan) -> Result<LogicalPlan> {
        plan.map_children(|child| Ok(Transformed::yes(self.settle(child)?)))?
            .data
            .recompute_schema()
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

/// Whether a condition on the left side of a join keeps its meaning above the join.
fn is_of_the_left(kind: JoinType) -> bool {
    matches!(
        kind,
        JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti
    )
}

/// The side without columns of the query around of an equality whose other side has only those.
fn own_side(condition: &Expr) -> Option<Expr> {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = condition
    else {
        return None;
    };
    let is_outer = |side: &Expr| side.contains_outer() && side.column_refs().is_empty();
    match (left.as_ref(), right.as_ref()) {
        (own, outer) | (outer, own) if is_outer(outer) && !own.contains_outer() => Some(own.clone()),
        _ => None,
    }
}

/// Adds keys of partitions to a window's function, which keeps its name.
fn partitioned(value: Expr, keys: &[Expr]) -> Result<Expr> {
    let name = value.schema_name().to_string();
    let value = value.transform_up(|part| {
        Ok(match part {
            Expr::WindowFunction(mut function) => {
                function.params.partition_by.extend_from_slice(keys);
                Transformed::yes(Expr::WindowFunction(function))
            }
            other => Transformed::no(other),
        })
    });
    Ok(value?.data.alias(name))
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
