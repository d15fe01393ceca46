//! Texts and numbers that are compared by `IN (..)`, `BETWEEN` and `CASE x WHEN y`, for which DataFusion asks no planner of expressions. They become the
//! comparisons that they stand for, and these meet as all others do ([`truth`](super::truth)).

use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Between, Case, Expr, LogicalPlan, Operator, binary_expr, lit, not};
use datafusion::optimizer::AnalyzerRule;

use super::truth::{are_alike, meet};
use crate::defined::with_names_kept;

/// The rule. It stands before DataFusion finds one type for the values.
#[derive(Debug)]
pub(crate) struct Mixed;

impl AnalyzerRule for Mixed {
    fn name(&self) -> &str {
        "compare_texts_with_numbers"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let compared = plan.transform_up_with_subqueries(|node| {
            let schema = merge_schema(&node.inputs());
            with_names_kept(node, |expression| {
                expression.transform_up(|expression| compared(expression, &schema))
            })
        });
        Ok(compared?.data)
    }
}

fn compared(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let compare = |one: &Expr, operator, other: Expr| {
        let (mut one, mut other) = (one.clone(), other);
        meet(&mut one, &mut other, schema)?;
        Ok(binary_expr(one, operator, other))
    };
    let negated = |is_negated, condition| match is_negated {
        true => not(condition),
        false => condition,
    };
    Ok(match expression {
        Expr::InList(list) if !list.list.iter().all(|it| are_alike(&list.expr, it, schema)) => {
            let InList {
                expr,
                list,
                negated: is_negated,
            } = list;
            let one_of = list.into_iter().map(|it| compare(&expr, Operator::Eq, it));
            let any = one_of.collect::<Result<Vec<_>>>()?.into_iter().reduce(Expr::or);
            Transformed::yes(negated(is_negated, any.unwrap_or_else(|| lit(false))))
        }
        Expr::Between(between)
            if !are_alike(&between.expr, &between.low, schema)
                || !are_alike(&between.expr, &between.high, schema) =>
        {
            let Between {
                expr,
                negated: is_negated,
                low,
                high,
            } = between;
            let within = compare(&expr, Operator::GtEq, *low)?.and(compare(&expr, Operator::LtEq, *high)?);
            Transformed::yes(negated(is_negated, within))
        }
        Expr::Case(case)
            if case.expr.as_ref().is_some_and(|value| {
                !case
                    .when_then_expr
                    .iter()
                    .all(|(when, _)| are_alike(value, when, schema))
            }) =>
        {
            let Case {
                expr,
                when_then_expr,
                else_expr,
            } = case;
            let value = expr.map_or_else(|| lit(true), |value| *value);
            let when_then = when_then_expr
                .into_iter()
                .map(|(when, then)| Ok((Box::new(compare(&value, Operator::Eq, *when)?), then)));
            let searched = Case::new(None, when_then.collect::<Result<Vec<_>>>()?, else_expr);
            Transformed::yes(Expr::Case(searched))
        }
        other => Transformed::no(other),
    })
}
