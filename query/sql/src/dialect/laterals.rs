//! Table functions of columns, as SQLite has them: `FROM slice JOIN ancestor_slice(slice.id)`. For DataFusion the call becomes a query in parentheses with
//! `LATERAL`, which knows the columns of the tables before it. A call without a name gets that of the function.

use std::ops::ControlFlow;

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, Ident, Join, JoinConstraint, JoinOperator, Select, SetExpr, TableAlias, TableFactor,
    Value, Visit, Visitor,
};

use super::expressions::parsed;

/// Rewrites the calls in the `FROM` of a query.
pub(super) fn complete(select: &mut Select) -> Result<()> {
    for (place, from) in select.from.iter_mut().enumerate() {
        name(&mut from.relation);
        if place > 0 {
            wrap(&mut from.relation);
        }
        for join in &mut from.joins {
            name(&mut join.relation);
            if wrap(&mut join.relation) {
                constrain(join)?;
            }
        }
    }
    Ok(())
}

/// Gives a call the name of its function.
fn name(factor: &mut TableFactor) {
    if let TableFactor::Table {
        name,
        alias: alias @ None,
        args: Some(_),
        ..
    } = factor
        && let Some(name) = name.0.last().and_then(|part| part.as_ident())
    {
        *alias = Some(TableAlias {
            explicit: true,
            name: Ident::new(name.value.to_lowercase()),
            columns: Vec::new(),
            at: None,
        });
    }
}

/// Makes a query of a call that has a column among its arguments. Returns whether it is one.
fn wrap(factor: &mut TableFactor) -> bool {
    let TableFactor::Table {
        alias,
        args: Some(arguments),
        ..
    } = &mut *factor
    else {
        return false;
    };
    if !arguments.args.iter().any(has_column) {
        return false;
    }
    let Some(Expr::Subquery(mut query)) = parsed("(select * from call)") else {
        return false;
    };
    let SetExpr::Select(select) = query.body.as_mut() else {
        return false;
    };
    let [from] = select.from.as_mut_slice() else {
        return false;
    };
    let alias = alias.take();
    std::mem::swap(&mut from.relation, factor);
    *factor = TableFactor::Derived {
        lateral: true,
        subquery: query,
        alias,
        sample: None,
    };
    true
}

/// Whether an argument names a column. What is in double quotes may be a text.
fn has_column(argument: &FunctionArg) -> bool {
    struct Columns;
    impl Visitor for Columns {
        type Break = ();
        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            match expression {
                Expr::Identifier(name) if name.quote_style.is_none() => ControlFlow::Break(()),
                Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    argument.visit(&mut Columns).is_break()
}

/// Gives a join without a condition one that is true. DataFusion would forget columns that must be equal.
fn constrain(join: &mut Join) -> Result<()> {
    use JoinOperator::{Inner, Join as Plain, Left, LeftOuter};
    let (Inner(constraint) | Plain(constraint) | Left(constraint) | LeftOuter(constraint)) =
        &mut join.join_operator
    else {
        return Ok(());
    };
    match constraint {
        JoinConstraint::None => {
            *constraint = JoinConstraint::On(Expr::Value(Value::Boolean(true).into()));
            Ok(())
        }
        JoinConstraint::On(_) => Ok(()),
        JoinConstraint::Using(_) | JoinConstraint::Natural => plan_err!(
            "`{join}` joins with a function of a column; write ON with a condition instead of USING or NATURAL"
        ),
    }
}
