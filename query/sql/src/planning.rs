//! Plans statements, with names as SQLite reads them.
//!
//! A name that is no column may be that of a value in `SELECT`, in `WHERE`, `GROUP BY` and `HAVING` of that query; otherwise one in double quotes is a text. Only
//! DataFusion knows what is a column there. So a statement with such a name is planned in vain, the name is replaced where the error points to, and the
//! statement is planned again.

use datafusion::common::{Column, SchemaError, Span};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;

use crate::dialect;

/// The most names of a statement that are replaced. Two names of values may stand for each other for ever.
const MOST_NAMES: usize = 256;

/// Plans a statement.
pub(crate) async fn plan(state: &SessionState, mut statement: Statement) -> Result<LogicalPlan> {
    for _ in 0..MOST_NAMES {
        let error = match state.statement_to_plan(statement.clone()).await {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let Some((name, span)) = unknown(&error) else {
            return Err(error);
        };
        if !dialect::replace_name(&mut statement, name, span) {
            return Err(error);
        }
    }
    state.statement_to_plan(statement).await
}

/// Plans a statement that may say `IF NOT EXISTS` of a view, which DataFusion does not know.
pub(crate) async fn plan_definition(
    context: &SessionContext,
    mut statement: Statement,
) -> Result<LogicalPlan> {
    if let Statement::Statement(inner) = &mut statement
        && let ast::Statement::CreateView(view) = inner.as_mut()
        && std::mem::take(&mut view.if_not_exists)
        && context.table_exist(view.name.to_string())?
    {
        return LogicalPlanBuilder::empty(false).build();
    }
    plan(&context.state(), statement).await
}

/// Returns the name without a table that an error says is no column, and where it stands if it says so.
fn unknown(error: &DataFusionError) -> Option<(&str, Option<Span>)> {
    let DataFusionError::SchemaError(inner, _) = error.find_root() else {
        return None;
    };
    let SchemaError::FieldNotFound { field, .. } = inner.as_ref() else {
        return None;
    };
    let Column {
        relation: None,
        name,
        spans,
    } = field.as_ref()
    else {
        return None;
    };
    let span = spans.first().or_else(|| error.diagnostic()?.span);
    Some((name, span))
}
