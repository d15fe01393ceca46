//! Values in parentheses, as SQLite has them: `(a, b) IN (SELECT ..)`, `(a, b) IN (VALUES ..)`, and comparisons such as `(a, b) < (c, d)`.
//!
//! DataFusion has them of one value only. So the first two become `EXISTS`, and a comparison becomes comparisons of its parts. Where a part is null, SQLite's
//! answer may be null; here it is false, and true of `NOT IN`.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Query, SetExpr, TableAlias, TableAliasColumnDef, TableFactor,
};

use super::expressions::{binary, parsed};

/// Returns what takes the place of an expression, if it has values in parentheses.
pub(super) fn replaced(expression: &Expr) -> Result<Option<Expr>> {
    match expression {
        Expr::InSubquery {
            expr,
            subquery,
            negated,
        } if let Expr::Tuple(values) = expr.as_ref() => exists(values, subquery, *negated).map(Some),
        Expr::BinaryOp { left, op, right }
            if let (Expr::Tuple(left), Expr::Tuple(right)) = (left.as_ref(), right.as_ref()) =>
        {
            if left.len() != right.len() {
                return plan_err!(
                    "`{expression}` compares {} values with {}",
                    left.len(),
                    right.len()
                );
            }
            Ok(compared(left, op, right).map(|compared| Expr::Nested(Box::new(compared))))
        }
        _ => Ok(None),
    }
}

fn exists(values: &[Expr], query: &Query, negated: bool) -> Result<Expr> {
    let wrong = || plan_err!("`IN ({query})` cannot be rewritten; write EXISTS instead");
    let name = |place: usize| Ident::new(format!("__value_{place}"));
    let column = |place| TableAliasColumnDef {
        name: name(place),
        data_type: None,
    };
    let equal = values
        .iter()
        .enumerate()
        .map(|(place, value)| binary(Expr::Identifier(name(place)), BinaryOperator::Eq, value.clone()))
        .reduce(|one, other| binary(one, BinaryOperator::And, other));
    let Some(Expr::Subquery(mut found)) = parsed("(select 1 from (select 1))") else {
        return wrong();
    };
    let SetExpr::Select(select) = found.body.as_mut() else {
        return wrong();
    };
    let [from] = select.from.as_mut_slice() else {
        return wrong();
    };
    from.relation = TableFactor::Derived {
        lateral: false,
        subquery: Box::new(query.clone()),
        alias: Some(TableAlias {
            explicit: true,
            name: Ident::new("__values"),
            columns: (0..values.len()).map(column).collect(),
            at: None,
        }),
        sample: None,
    };
    select.selection = equal;
    Ok(Expr::Exists {
        subquery: found,
        negated,
    })
}

/// Compares from the first part on: a later one counts where those before it are equal.
fn compared(left: &[Expr], op: &BinaryOperator, right: &[Expr]) -> Option<Expr> {
    use BinaryOperator as Op;
    let (strict, each) = match op {
        Op::Eq => (None, Op::And),
        Op::NotEq => (None, Op::Or),
        Op::Lt | Op::LtEq => (Some(Op::Lt), Op::Or),
        Op::Gt | Op::GtEq => (Some(Op::Gt), Op::Or),
        _ => return None,
    };
    let nested = |expression| Expr::Nested(Box::new(expression));
    let mut parts = left.iter().zip(right).rev();
    let (one, other) = parts.next()?;
    let last = binary(one.clone(), op.clone(), other.clone());
    Some(parts.fold(last, |behind, (one, other)| {
        let here = |op| binary(one.clone(), op, other.clone());
        match &strict {
            None => nested(binary(here(op.clone()), each.clone(), behind)),
            Some(strict) => {
                let later = nested(binary(here(Op::Eq), Op::And, behind));
                nested(binary(here(strict.clone()), each.clone(), later))
            }
        }
    }))
}
