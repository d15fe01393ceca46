//! Gives names the meaning that they have for SQLite, where DataFusion refuses them: a name that is no column, and columns of one name.
//! [`planning`](crate::planning) says which.

use std::collections::HashSet;
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

/// Gives columns of an answer that have the name of another one a number, as SQLite does (`ts:1`). `name` is the name of two columns that DataFusion has met.
/// Returns whether there was such a column.
pub(crate) fn number_repeated(statement: &mut Statement, name: &str) -> bool {
    let mut repeated = Repeated {
        name,
        has_numbered: false,
    };
    let _ = visit(statement, &mut repeated);
    repeated.has_numbered
}

struct Repeated<'a> {
    name: &'a str,
    has_numbered: bool,
}

impl Repeated<'_> {
    /// The name that a column of an answer has, if others may not have it.
    fn name_of(&self, item: &SelectItem) -> Option<String> {
        Some(match item {
            SelectItem::UnnamedExpr(Expr::Identifier(column)) => column.value.clone(),
            // Columns of several tables may have one name.
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
                let column = &parts.last()?.value;
                column.eq_ignore_ascii_case(self.name).then(|| column.clone())?
            }
            SelectItem::UnnamedExpr(value) => value.to_string(),
            SelectItem::ExprWithAlias { alias, .. } => alias.value.clone(),
            _ => return None,
        })
    }
}

impl VisitorMut for Repeated<'_> {
    type Break = DataFusionError;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let is_wildcard =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        let mut names = HashSet::new();
        if select.projection.iter().any(is_wildcard) {
            names.insert(self.name.to_lowercase());
        }
        for item in std::mem::take(&mut select.projection) {
            let repeated = self
                .name_of(&item)
                .filter(|name| !names.insert(name.to_lowercase()));
            select.projection.push(match (repeated, item) {
                (Some(name), SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => {
                    self.has_numbered = true;
                    let mut alias = format!("{name}:1");
                    for number in 2.. {
                        if names.insert(alias.to_lowercase()) {
                            break;
                        }
                        alias = format!("{name}:{number}");
                    }
                    let alias = Ident::with_quote('"', alias);
                    SelectItem::ExprWithAlias { expr, alias }
                }
                (_, item) => item,
            });
        }
        ControlFlow::Continue(())
    }
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
