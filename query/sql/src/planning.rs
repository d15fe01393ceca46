//! Plans statements, with names as SQLite reads them.
//!
//! A name that is no column may be that of a value in `SELECT`, in `WHERE`, `GROUP BY` and `HAVING` of that query; otherwise one in double quotes is a text. Only
//! DataFusion knows what is a column there. So a statement with such a name is planned in vain, the name is replaced where the error points to, and the
//! statement is planned again. The same goes for columns of an answer that have one name.

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, SchemaError, Span, plan_err};
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{DdlStatement, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{SessionContext, cast};
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
        let has_changed = match (unknown(&error), repeated(&error)) {
            (Some((name, span)), _) => dialect::replace_name(&mut statement, name, span),
            (None, Some(name)) => dialect::number_repeated(&mut statement, &name),
            (None, None) => false,
        };
        if !has_changed {
            return Err(error);
        }
    }
    state.statement_to_plan(statement).await
}

/// Plans a statement of a text. It may say `IF NOT EXISTS` of a view, which DataFusion does not know. Conditions that a query answers with are 0 or 1.
pub(crate) async fn plan_answer(context: &SessionContext, mut statement: Statement) -> Result<LogicalPlan> {
    let is_query = matches!(&statement, Statement::Statement(inner) if matches!(inner.as_ref(), ast::Statement::Query(_)));
    if let Statement::Statement(inner) = &mut statement
        && let ast::Statement::CreateView(view) = inner.as_mut()
        && std::mem::take(&mut view.if_not_exists)
        && context.table_exist(view.name.to_string())?
    {
        return LogicalPlanBuilder::empty(false).build();
    }
    let plan = plan(&context.state(), statement).await?;
    let is_condition = |field: &FieldRef| *field.data_type() == DataType::Boolean;
    if !is_query || !plan.schema().fields().iter().any(is_condition) {
        return Ok(plan);
    }
    let columns = plan.schema().iter().map(|(table, field)| {
        let column = Expr::Column(Column::new(table.cloned(), field.name()));
        match is_condition(field) {
            true => cast(column, DataType::Int64).alias_qualified(table.cloned(), field.name()),
            false => column,
        }
    });
    let columns: Vec<Expr> = columns.collect();
    LogicalPlanBuilder::from(plan).project(columns)?.build()
}

/// Refuses a plan that other processes cannot run: with rows in the memory of this one, or with recursion, which Ballista has not. It also refuses plans that
/// write files: they would be on whichever machine ran that part.
pub(crate) fn check_for_elsewhere(context: &SessionContext, plan: &LogicalPlan) -> Result<()> {
    if matches!(plan, LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(_))) {
        return plan_err!("a table that a statement makes would be in this process only; make a view");
    }
    if matches!(plan, LogicalPlan::Ddl(_) | LogicalPlan::Statement(_)) {
        return Ok(());
    }
    context.state().optimize(plan)?.apply_with_subqueries(|node| {
        if matches!(node, LogicalPlan::Copy(_) | LogicalPlan::Dml(_)) {
            return plan_err!(
                "a statement on other machines would write files there; write the answer with --out, or ask without a scheduler"
            );
        }
        let is_here = match node {
            LogicalPlan::RecursiveQuery(_) => true,
            LogicalPlan::TableScan(scan) if scan.table_name.schema() == Some(INFORMATION_SCHEMA) => false,
            LogicalPlan::TableScan(scan) => !source_as_provider(&scan.source)?.is::<ListingTable>(),
            _ => false,
        };
        match is_here {
            true => plan_err!(
                "other machines run no table functions and no recursion; ask without a scheduler, or use joins"
            ),
            false => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(())
}

/// Returns the name of which an error says that two columns of an answer have it. Only its text tells.
fn repeated(error: &DataFusionError) -> Option<String> {
    let DataFusionError::Plan(text) = error.find_root() else {
        return None;
    };
    let (_, rest) = text.split_once("require unique expression names but the expression \"")?;
    let (expression, _) = rest.split_once("\" at position ")?;
    let column = Column::from_qualified_name(expression);
    Some(column.name)
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
