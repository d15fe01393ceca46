//! Replaces a name that is no column by what SQLite takes it for. [`planning`](crate::planning) says which.

use std::ops::ControlFlow;

use datafusion::common::Span;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, GroupByExpr, Ident, Select, SelectItem, Value, VisitMut, VisitorMut,
};

use super::expressions::visit;

/// Replaces a name: in `WHERE`, `GROUP BY` and `HAVING` by the value that `SELECT` gives it to, otherwise by a text if it is in double quotes. Returns whether
/// there was anything to replace. Where nobody knows which place is meant, values of several queries are not replaced.
pub(crate) fn replace_name(statement: &mut Statement, name: &str, span: Option<Span>) -> bool {
    let unknown = Unknown { name, span };
    let mut aliases = Aliases {
        unknown: &unknown,
        queries: 0,
    };
    // Neither visitor breaks off.
    let _ = visit(statement, &mut aliases);
    if aliases.queries > 0 {
        return aliases.queries == 1 || span.is_some();
    }
    let mut texts = Replacement {
        unknown: &unknown,
        by: None,
        has_replaced: false,
    };
    let _ = visit(statement, &mut texts);
    texts.has_replaced
}

/// A name that is no column.
struct Unknown<'a> {
    name: &'a str,
    /// Where it stands, if that is known.
    span: Option<Span>,
}

impl Unknown<'_> {
    fn is(&self, ident: &Ident) -> bool {
        let name = match ident.quote_style {
            None => ident.value.to_lowercase(),
            Some(_) => ident.value.clone(),
        };
        name == self.name && (self.span.is_none() || Span::try_from_sqlparser_span(ident.span) == self.span)
    }
}

struct Aliases<'a> {
    unknown: &'a Unknown<'a>,
    /// How many queries had it.
    queries: usize,
}

impl VisitorMut for Aliases<'_> {
    type Break = DataFusionError;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let named = select.projection.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias }
                if alias.value.eq_ignore_ascii_case(self.unknown.name) =>
            {
                Some(expr.clone())
            }
            _ => None,
        });
        let Some(value) = named else {
            return ControlFlow::Continue(());
        };
        let mut replacement = Replacement {
            unknown: self.unknown,
            by: Some(Expr::Nested(Box::new(value))),
            has_replaced: false,
        };
        for condition in [&mut select.selection, &mut select.having].into_iter().flatten() {
            let _ = condition.visit(&mut replacement);
        }
        if let GroupByExpr::Expressions(groups, _) = &mut select.group_by {
            let _ = groups.visit(&mut replacement);
        }
        self.queries += usize::from(replacement.has_replaced);
        ControlFlow::Continue(())
    }
}

struct Replacement<'a> {
    unknown: &'a Unknown<'a>,
    /// The value; without one, the name itself as a text if it is in double quotes.
    by: Option<Expr>,
    has_replaced: bool,
}

impl VisitorMut for Replacement<'_> {
    type Break = DataFusionError;

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<DataFusionError> {
        let Expr::Identifier(ident) = expression else {
            return ControlFlow::Continue(());
        };
        if !self.unknown.is(ident) {
            return ControlFlow::Continue(());
        }
        let value = match &self.by {
            Some(value) => value.clone(),
            None if ident.quote_style == Some('"') => {
                Expr::Value(Value::SingleQuotedString(ident.value.clone()).into())
            }
            None => return ControlFlow::Continue(()),
        };
        *expression = value;
        self.has_replaced = true;
        ControlFlow::Continue(())
    }
}
