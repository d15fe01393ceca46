//! `EXISTS` among values, where DataFusion does not know it: a count of rows takes its place. In conditions it stays.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, GroupByExpr, Query, SelectItem, SetExpr, VisitMut, VisitorMut,
};

use super::expressions::{binary, number, parsed};

/// Replaces `EXISTS` in what is selected.
pub(super) fn count(selected: &mut [SelectItem]) {
    let mut counts = Counts { within: 0 };
    for item in selected {
        let _ = item.visit(&mut counts);
    }
}

struct Counts {
    /// The queries within this one, which have been rewritten.
    within: usize,
}

impl VisitorMut for Counts {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if self.within == 0
            && let Expr::Exists { subquery, negated } = expression
            && let Some(count) = count_of(subquery)
        {
            let op = match negated {
                true => BinaryOperator::Eq,
                false => BinaryOperator::Gt,
            };
            *expression = Expr::Nested(Box::new(binary(count, op, number("0"))));
        }
        ControlFlow::Continue(())
    }
}

/// Returns a query for the number of rows of another.
fn count_of(query: &Query) -> Option<Expr> {
    let has_limits = query.limit_clause.is_some() || query.fetch.is_some();
    if let SetExpr::Select(select) = query.body.as_ref()
        && !has_limits
        && select.distinct.is_none()
        && select.having.is_none()
        && matches!(&select.group_by, GroupByExpr::Expressions(groups, _) if groups.is_empty())
        && select.projection.iter().all(is_plain)
    {
        // DataFusion joins it with the query around it.
        let Expr::Subquery(mut count) = parsed("(select count(*))")? else {
            return None;
        };
        let SetExpr::Select(counted) = count.body.as_mut() else {
            return None;
        };
        let projection = std::mem::take(&mut counted.projection);
        *counted = select.clone();
        counted.projection = projection;
        count.with = query.with.clone();
        return Some(Expr::Subquery(count));
    }
    parsed(&format!("(select count(*) from ({query}) as counted)"))
}

/// Whether a value aggregates nothing.
fn is_plain(item: &SelectItem) -> bool {
    match item {
        SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } => {
            matches!(
                value,
                Expr::Value(_) | Expr::Identifier(_) | Expr::CompoundIdentifier(_)
            )
        }
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => true,
        _ => false,
    }
}
