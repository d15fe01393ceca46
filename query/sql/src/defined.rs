//! Functions that statements define: `CREATE PERFETTO FUNCTION`.
//!
//! [`Definitions`] has them for a [`Database`](crate::Database). Before a statement is planned, the bodies of the functions that it names are, those that others
//! call first, with a placeholder for each argument. A table function's body becomes the plan of its call at once. A call of a value's function is planned as a
//! call, and [`Expand`] puts the body in its place before all else that DataFusion does to a plan: columns are resolved by then, so a column of the caller cannot
//! be taken for one of the body.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Spans, exec_err, plan_err};
use datafusion::datasource::ViewTable;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::first_value;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Aggregate, ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, SortExpr, Subquery, Volatility, lit,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::{SessionContext, cast};

use crate::database::words;
use crate::dialect::{Function, Returns};
use crate::planning;

/// The functions that were defined so far, by their names in small letters.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    known: BTreeMap<String, Function>,
}

impl Definitions {
    /// Takes in a definition.
    pub(crate) fn define(&mut self, function: Function, context: &SessionContext) -> Result<()> {
        let name = &function.name;
        if !function.replaces && self.known.contains_key(name) {
            return plan_err!(
                "the function `{name}` exists; CREATE OR REPLACE PERFETTO FUNCTION replaces it"
            );
        }
        let state = context.state();
        let is_taken = state.scalar_functions().contains_key(name)
            || state.aggregate_functions().contains_key(name)
            || state.window_functions().contains_key(name)
            || state.table_functions().contains_key(name);
        if is_taken && !self.known.contains_key(name) {
            return plan_err!("`{name}` is a function of SQL; give yours another name");
        }
        self.known.insert(name.clone(), function);
        Ok(())
    }

    /// Returns a text with the bodies of the functions that it names.
    pub(crate) fn with_bodies(&self, sql: &str) -> Result<String> {
        let mut text = sql.to_owned();
        for function in self.order(sql)? {
            text += "\n";
            text += &function.body.to_string();
        }
        Ok(text)
    }

    /// Plans the functions that a text names, those that they call first.
    pub(crate) async fn plan_those_in(&self, sql: &str, context: &SessionContext) -> Result<()> {
        for function in self.order(sql)? {
            let body = planning::plan(&context.state(), function.body.clone()).await;
            let body = body.map_err(|error| error.context(format!("in the function `{}`", function.name)))?;
            let names = function.arguments.iter().map(|(name, _)| name.clone()).collect();
            match &function.returns {
                Returns::Value(kind) => {
                    if body.schema().fields().len() != 1 {
                        return plan_err!(
                            "the function `{}` selects several columns; a value is one",
                            function.name
                        );
                    }
                    context.register_udf(ScalarUDF::new_from_impl(Value {
                        name: function.name.clone(),
                        arguments: names,
                        returns: kind.clone(),
                        body,
                        signature: Signature::any(function.arguments.len(), Volatility::Stable),
                    }));
                }
                Returns::Table(columns) => context.register_udtf(
                    &function.name,
                    Arc::new(Table {
                        name: function.name.clone(),
                        arguments: names,
                        body: with_columns(&function.name, body, columns)?,
                    }),
                ),
            }
        }
        Ok(())
    }

    /// Returns the functions that a text names, those that others call first.
    fn order(&self, sql: &str) -> Result<Vec<&Function>> {
        let mut order = Vec::new();
        self.order_into(sql, &mut Vec::new(), &mut order)?;
        Ok(order)
    }

    fn order_into<'a>(
        &'a self,
        sql: &str,
        within: &mut Vec<&'a str>,
        order: &mut Vec<&'a Function>,
    ) -> Result<()> {
        for word in words(sql) {
            let Some(function) = self.known.get(&word) else {
                continue;
            };
            if within.contains(&function.name.as_str()) {
                return plan_err!("the function `{word}` calls itself; write WITH RECURSIVE instead");
            }
            if order.iter().any(|known| known.name == function.name) {
                continue;
            }
            within.push(&function.name);
            self.order_into(&function.body.to_string(), within, order)?;
            within.pop();
            order.push(function);
        }
        Ok(())
    }
}

/// Gives the columns of a table function their names and types.
fn with_columns(name: &str, body: LogicalPlan, columns: &[(String, DataType)]) -> Result<LogicalPlan> {
    let selected = body.schema().columns();
    if selected.len() != columns.len() {
        return plan_err!(
            "the function `{name}` selects {} columns and returns {}",
            selected.len(),
            columns.len()
        );
    }
    let columns = selected
        .into_iter()
        .zip(columns)
        .map(|(column, (name, kind))| cast(Expr::Column(column), kind.clone()).alias(name));
    LogicalPlanBuilder::from(body)
        .project(columns.collect::<Vec<_>>())?
        .build()
}

/// Puts values in the place of a body's arguments.
fn with_values(body: &LogicalPlan, names: &[String], values: &[Expr]) -> Result<LogicalPlan> {
    let plan = body.clone().transform_down_with_subqueries(|node| {
        with_names_kept(node, |expression| with_values_in(expression, names, values))
    });
    Ok(plan?.data)
}

/// Changes the expressions of a part of a plan. Its columns keep their names, by which the parts above refer to them.
pub(crate) fn with_names_kept(
    node: LogicalPlan,
    mut change: impl FnMut(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_expressions(|expression| {
        let name = names.save(&expression);
        let changed = change(expression)?;
        Ok(match changed.transformed {
            true => changed.update_data(|expression| name.restore(expression)),
            false => changed,
        })
    })?
    .map_data(LogicalPlan::recompute_schema)
}

fn with_values_in(expression: Expr, names: &[String], values: &[Expr]) -> Result<Transformed<Expr>> {
    expression.transform_up(|expression| {
        let Expr::Placeholder(placeholder) = &expression else {
            return Ok(Transformed::no(expression));
        };
        let is_it = |name: &String| placeholder.id.strip_prefix('$') == Some(name);
        match names.iter().position(is_it) {
            Some(place) => Ok(Transformed::yes(values[place].clone())),
            None => Ok(Transformed::no(expression)),
        }
    })
}

/// A function whose result is a table.
#[derive(Debug)]
struct Table {
    name: String,
    arguments: Vec<String>,
    body: LogicalPlan,
}

impl TableFunctionImpl for Table {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let values = arguments.exprs();
        if values.len() != self.arguments.len() {
            return plan_err!(
                "{} takes {} values, not {}",
                self.name,
                self.arguments.len(),
                values.len()
            );
        }
        // A column that no table before the call has would be one of the body.
        if let Some(value) = values.iter().find(|value| !value.column_refs().is_empty()) {
            return plan_err!(
                "{}: `{value}` is no value, and no column of a table before the call",
                self.name
            );
        }
        let plan = with_values(&self.body, &self.arguments, values)?;
        Ok(Arc::new(ViewTable::new(plan, None)))
    }
}

/// A function whose result is a value.
#[derive(Debug)]
struct Value {
    name: String,
    arguments: Vec<String>,
    returns: DataType,
    body: LogicalPlan,
    signature: Signature,
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.name == other.name && self.body == other.body
    }
}

impl Eq for Value {}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Value {
    /// Returns the expression that takes the place of a call in a query whose columns are in `schema`.
    fn expanded(&self, values: &[Expr], schema: &DFSchema) -> Result<Expr> {
        // A body without tables is an expression.
        if let LogicalPlan::Projection(projection) = &self.body
            && let LogicalPlan::EmptyRelation(_) = projection.input.as_ref()
            && let [value] = projection.expr.as_slice()
        {
            let value = with_values_in(value.clone().unalias(), &self.arguments, values)?.data;
            let value = Expand::in_expression(value, schema)?.data;
            return Ok(cast(value, self.returns.clone()));
        }
        let mut outer = Vec::new();
        let values = values
            .iter()
            .map(|value| outside(value.clone(), schema, &mut outer))
            .collect::<Result<Vec<_>>>()?;
        let body = one_row(with_values(&self.body, &self.arguments, &values)?)?;
        let value = Expr::ScalarSubquery(Subquery {
            subquery: Arc::new(Expand::in_plan(body)?),
            outer_ref_columns: outer,
            spans: Spans::new(),
        });
        Ok(cast(value, self.returns.clone()))
    }
}

/// Makes the columns of an argument those of the query around the body, whose columns are in `schema`; adds them to `outer`.
fn outside(value: Expr, schema: &DFSchema, outer: &mut Vec<Expr>) -> Result<Expr> {
    let moved = value.transform_up(|value| {
        let Expr::Column(column) = &value else {
            return Ok(Transformed::no(value));
        };
        let (_, field) = schema.qualified_field_from_column(column)?;
        let moved = Expr::OuterReferenceColumn(Arc::clone(field), column.clone());
        if !outer.contains(&moved) {
            outer.push(moved.clone());
        }
        Ok(Transformed::yes(moved))
    });
    Ok(moved?.data)
}

/// Makes the first row of a query its only one: a row of nulls if it has none. DataFusion joins a query with the one around it only if it aggregates.
fn one_row(plan: LogicalPlan) -> Result<LogicalPlan> {
    if has_one_row(&plan) {
        return Ok(plan);
    }
    let (value, order, input) = first_of(&plan);
    LogicalPlanBuilder::from(input)
        .aggregate(Vec::<Expr>::new(), vec![first_value(value, order)])?
        .build()
}

fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        _ => false,
    }
}

/// Returns the value of a query's first row, the order that makes it the first, and the query without that order and without `LIMIT 1`.
fn first_of(plan: &LogicalPlan) -> (Expr, Vec<SortExpr>, LogicalPlan) {
    let mut inner = plan;
    if let LogicalPlan::Limit(limit) = inner
        && limit.skip.is_none()
        && limit.fetch.as_deref() == Some(&lit(1_i64))
    {
        inner = limit.input.as_ref();
    }
    let mut value = Expr::from(inner.schema().qualified_field(0));
    let mut sorted = inner;
    if let LogicalPlan::Projection(projection) = inner
        && let [only @ Expr::Column(_)] = projection.expr.as_slice()
    {
        // The order is by a column that is not selected.
        (value, sorted) = (only.clone(), projection.input.as_ref());
    }
    match sorted {
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
            (value, sort.expr.clone(), sort.input.as_ref().clone())
        }
        _ => (
            Expr::from(plan.schema().qualified_field(0)),
            Vec::new(),
            plan.clone(),
        ),
    }
}

impl ScalarUDFImpl for Value {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("{} is planned by ferretto-sql only", self.name)
    }
}

/// Puts the bodies of functions in the place of their calls. A query that is a value has one row, its first.
#[derive(Debug)]
pub(crate) struct Expand;

impl Expand {
    fn in_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
        let expanded = plan.transform_up_with_subqueries(|node| {
            let node = match node {
                LogicalPlan::Aggregate(aggregate) => calls_below(aggregate)?,
                node => node,
            };
            let schema = merge_schema(&node.inputs());
            with_names_kept(node, |expression| Expand::in_expression(expression, &schema))
        });
        Ok(expanded?.data)
    }

    fn in_expression(expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        expression.transform_up(|expression| {
            let call = match &expression {
                Expr::ScalarFunction(call) => call,
                Expr::ScalarSubquery(query)
                    if !query.outer_ref_columns.is_empty() && !has_one_row(&query.subquery) =>
                {
                    let first = one_row(query.subquery.as_ref().clone())?;
                    return Ok(Transformed::yes(Expr::ScalarSubquery(
                        query.with_plan(Arc::new(first)),
                    )));
                }
                _ => return Ok(Transformed::no(expression)),
            };
            match call.func.inner().downcast_ref::<Value>() {
                Some(function) => Ok(Transformed::yes(function.expanded(&call.args, schema)?)),
                None => Ok(Transformed::no(expression)),
            }
        })
    }
}

/// Moves the calls in an aggregation into a projection below it, as DataFusion joins queries with projections and filters only.
fn calls_below(aggregate: Aggregate) -> Result<LogicalPlan> {
    let mut calls: Vec<Expr> = Vec::new();
    let is_call = |expression: &Expr| matches!(expression, Expr::ScalarFunction(call) if call.func.inner().is::<Value>());
    for expression in aggregate.group_expr.iter().chain(&aggregate.aggr_expr) {
        expression.apply(|part| {
            if is_call(part) && !calls.contains(part) {
                calls.push(part.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    if calls.is_empty() {
        return Ok(LogicalPlan::Aggregate(aggregate));
    }
    let name = |place: usize| format!("__call_{place}");
    let input = aggregate.input.as_ref();
    let columns = input.schema().iter().map(Expr::from);
    let named = calls
        .iter()
        .enumerate()
        .map(|(place, call)| call.clone().alias(name(place)));
    let below = LogicalPlanBuilder::from(input.clone())
        .project(columns.chain(named).collect::<Vec<_>>())?
        .build()?;
    let names = NamePreserver::new_for_projection();
    let moved = |expression: &Expr| {
        let before = names.save(expression);
        let moved = expression.clone().transform_down(|part| {
            Ok(match calls.iter().position(|call| *call == part) {
                Some(place) => Transformed::yes(Expr::Column(Column::from_name(name(place)))),
                None => Transformed::no(part),
            })
        });
        Ok(before.restore(moved?.data))
    };
    let groups = aggregate
        .group_expr
        .iter()
        .map(moved)
        .collect::<Result<Vec<_>>>()?;
    let values = aggregate
        .aggr_expr
        .iter()
        .map(moved)
        .collect::<Result<Vec<_>>>()?;
    Expand::in_plan(below)
        .and_then(|below| Aggregate::try_new(Arc::new(below), groups, values))
        .map(LogicalPlan::Aggregate)
}

impl AnalyzerRule for Expand {
    fn name(&self) -> &str {
        "expand_perfetto_functions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Expand::in_plan(plan)
    }
}
