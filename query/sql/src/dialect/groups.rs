//! Columns beside an aggregate that are grouped by nothing, as SQLite has them: they are those of one row of the group. That is the row of the minimum or maximum
//! if `min` or `max` is the only aggregate, and any otherwise.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArguments, GroupByExpr,
    Ident, ObjectNamePart, OrderByExpr, OrderByOptions, Query, Select, SelectItem, Value, Visit, VisitMut,
    Visitor, VisitorMut,
};

use super::expressions::call;

/// The names of all aggregates.
static AGGREGATES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = all_default_aggregate_functions();
    let names = functions.iter().flat_map(|function| {
        let aliases = function.aliases().iter().cloned();
        aliases.chain([function.name().to_owned()])
    });
    names.collect()
});

/// Makes a value of one row of each column that is selected beside an aggregate and grouped by nothing.
pub(super) fn complete(select: &mut Select) {
    let GroupByExpr::Expressions(groups, modifiers) = &select.group_by else {
        return;
    };
    let mut found = Found::default();
    for item in &select.projection {
        let _ = item.visit(&mut found);
    }
    if groups.is_empty() && found.aggregates.is_empty() || !modifiers.is_empty() {
        return;
    }
    let order = match found.aggregates.as_slice() {
        [(name, Some(value))] if name == "min" || name == "max" => Some(OrderByExpr {
            expr: value.clone(),
            options: OrderByOptions {
                asc: Some(name == "min"),
                // Neither counts nulls.
                nulls_first: Some(false),
            },
            with_fill: None,
        }),
        _ => None,
    };
    let grouped = groups
        .iter()
        .flat_map(|group| grouped_by(group, &select.projection))
        .collect();
    let mut rows = OfOneRow {
        grouped,
        order,
        within: 0,
    };
    for item in &mut select.projection {
        let name = match item {
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(name.clone()),
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => names.last().cloned(),
            _ => None,
        };
        let _ = item.visit(&mut rows);
        if let (Some(alias), SelectItem::UnnamedExpr(expr @ Expr::Function(_))) = (name, &*item) {
            let expr = expr.clone();
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// Returns what a part of `GROUP BY` means: itself, and the selected value of that number or name.
fn grouped_by(group: &Expr, selected: &[SelectItem]) -> Vec<Expr> {
    let value = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr.clone()),
        _ => None,
    };
    let named = |name: &Ident| {
        let is_it = |item: &&SelectItem| matches!(item, SelectItem::ExprWithAlias { alias, .. } if is_same(alias, name));
        selected.iter().find(is_it).and_then(value)
    };
    let meant = match group {
        Expr::Value(number) => match &number.value {
            Value::Number(digits, _) => {
                let place = digits
                    .parse::<usize>()
                    .ok()
                    .and_then(|place| place.checked_sub(1));
                place.and_then(|place| selected.get(place)).and_then(value)
            }
            _ => None,
        },
        Expr::Identifier(name) => named(name),
        _ => None,
    };
    std::iter::once(group.clone()).chain(meant).collect()
}

fn is_same(one: &Ident, other: &Ident) -> bool {
    one.value.eq_ignore_ascii_case(&other.value)
}

/// Returns the name of an aggregate that is called, unless it is over a window.
fn aggregate(function: &Function) -> Option<String> {
    let [ObjectNamePart::Identifier(name)] = function.name.0.as_slice() else {
        return None;
    };
    let name = name.value.to_lowercase();
    (function.over.is_none() && AGGREGATES.contains(&name)).then_some(name)
}

/// The aggregates of a query, each with its value if it has one only.
#[derive(Default)]
struct Found {
    aggregates: Vec<(String, Option<Expr>)>,
    /// The queries within this one, whose aggregates are theirs.
    within: usize,
}

impl Visitor for Found {
    type Break = ();

    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.within += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        self.within -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        if self.within == 0
            && let Expr::Function(function) = expression
            && let Some(name) = aggregate(function)
        {
            let value = match &function.args {
                FunctionArguments::List(list) => match list.args.as_slice() {
                    [FunctionArg::Unnamed(FunctionArgExpr::Expr(value))] => Some(value.clone()),
                    _ => None,
                },
                _ => None,
            };
            self.aggregates.push((name, value));
        }
        ControlFlow::Continue(())
    }
}

/// Takes columns from one row.
struct OfOneRow {
    grouped: Vec<Expr>,
    /// What makes a row the first.
    order: Option<OrderByExpr>,
    /// How many aggregates, grouped values, windows and queries the expression is in. They have their columns.
    within: usize,
}

impl OfOneRow {
    fn has_its_columns(&self, expression: &Expr) -> bool {
        self.grouped.contains(expression)
            || matches!(expression, Expr::Function(function) if function.over.is_some() || aggregate(function).is_some())
    }
}

impl VisitorMut for OfOneRow {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        self.within += usize::from(self.has_its_columns(expression));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if self.has_its_columns(expression) {
            self.within -= 1;
        } else if self.within == 0 && matches!(expression, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        {
            let mut first = call("first_value", vec![expression.clone()]);
            if let (Some(order), Expr::Function(function)) = (&self.order, &mut first)
                && let FunctionArguments::List(list) = &mut function.args
            {
                list.clauses
                    .push(FunctionArgumentClause::OrderBy(vec![order.clone()]));
            }
            *expression = first;
        }
        ControlFlow::Continue(())
    }
}
