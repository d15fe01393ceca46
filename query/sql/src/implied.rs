//! What ids say of many traces: rows with the same id are of the same trace.
//!
//! Views compare ids and also `date`, `machine` and `trace`, so that a condition on one of these reaches the files of all tables. Once DataFusion has moved the
//! conditions there, the comparisons are work without use: of texts, for each row. [`Implied`] takes them out of joins and windows, and columns that nothing
//! else needs are not even read then.
//!
//! An id is only one that a plan makes of a table's column and of its trace's first id ([`many`](crate::many)), as it is passed on without a change. What a
//! statement computes is no id, whatever its name.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator, Window};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use ferretto_tables::{PARTITIONS, TABLES};

use crate::many::{FIRST_ID, is_id};

/// The rule. It stands behind those that move conditions, and before the one that leaves out columns.
#[derive(Debug)]
pub(crate) struct Implied;

impl OptimizerRule for Implied {
    fn name(&self) -> &str {
        "leave_out_what_ids_imply"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNothing => in_join(join),
            LogicalPlan::Window(window) => in_window(window),
            other => Ok(Transformed::no(other)),
        }
    }
}

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// An id of the traces of this source, which may be null.
    MaybeId(Source),
    Id(Source),
    /// The column of [`PARTITIONS`] at this place.
    Partition(Source, usize),
}

/// Where rows with ids come from, as a number within one plan. Rows of a join have several.
type Source = usize;

/// The columns of a plan that are known.
#[derive(Debug, Default)]
struct Columns {
    known: HashMap<Column, Known>,
    sources: usize,
}

impl Columns {
    fn of(plan: &LogicalPlan) -> Columns {
        match plan {
            LogicalPlan::Projection(projection) => {
                let mut input = Columns::of(&projection.input);
                let mut known = HashMap::new();
                let columns = || projection.expr.iter().zip(projection.schema.columns());
                for (expression, column) in columns() {
                    if let Some((of_table, partitions)) = made_id(expression, &projection.input) {
                        let source = input.source(partitions);
                        let id = match is_never_null(&of_table.name) {
                            true => Known::Id(source),
                            false => Known::MaybeId(source),
                        };
                        known.insert(column, id);
                    }
                }
                for (expression, column) in columns() {
                    if let Expr::Column(from) = unaliased(expression)
                        && let Some(it) = input.known.get(from)
                    {
                        known.insert(column, *it);
                    }
                }
                Columns {
                    known,
                    sources: input.sources,
                }
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = Columns::of(&alias.input);
                let columns = alias.input.schema().columns().into_iter();
                let renamed = columns
                    .zip(alias.schema.columns())
                    .filter_map(|(from, to)| Some((to, *input.known.get(&from)?)));
                Columns {
                    known: renamed.collect(),
                    sources: input.sources,
                }
            }
            LogicalPlan::Join(join) => {
                let (left, right) = (Columns::of(&join.left), Columns::of(&join.right));
                let (fills_left, fills_right) = match join.join_type {
                    JoinType::Inner => (false, false),
                    JoinType::Left => (false, true),
                    JoinType::Right => (true, false),
                    JoinType::Full => (true, true),
                    JoinType::LeftSemi | JoinType::LeftAnti => return left,
                    JoinType::RightSemi | JoinType::RightAnti => return right,
                    _ => return Columns::default(),
                };
                let behind = left.sources;
                let left = left
                    .known
                    .into_iter()
                    .map(|(column, it)| (column, it.joined(0, fills_left)));
                let beside = right.known.into_iter();
                let beside = beside.map(|(column, it)| (column, it.joined(behind, fills_right)));
                let mut columns = Columns {
                    known: left.chain(beside).collect(),
                    sources: behind + right.sources,
                };
                if join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNothing
                {
                    join.on.iter().for_each(|pair| columns.take_in(pair));
                }
                columns
            }
            LogicalPlan::Filter(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Repartition(_)
            | LogicalPlan::Window(_) => match plan.inputs().as_slice() {
                [input] => Columns::of(input),
                _ => Columns::default(),
            },
            _ => Columns::default(),
        }
    }

    /// These expressions are equal in all rows. If both are ids, the rows of both sources are of the same trace, so that they are one source.
    fn take_in(&mut self, (one, other): &(Expr, Expr)) {
        let id = |side: &Expr| match self.known.get(side.try_as_col()?)? {
            Known::Id(source) | Known::MaybeId(source) => Some(*source),
            Known::Partition(..) => None,
        };
        let (Some(kept), Some(gone)) = (id(one), id(other)) else {
            return;
        };
        for it in self.known.values_mut() {
            let (Known::Id(source) | Known::MaybeId(source) | Known::Partition(source, _)) = it;
            if *source == gone {
                *source = kept;
            }
        }
    }

    /// The source whose traces these columns tell.
    fn source(&mut self, partitions: [Column; 3]) -> Source {
        if let Some(Known::Partition(source, _)) = self.known.get(&partitions[0]) {
            return *source;
        }
        let source = self.sources;
        self.sources += 1;
        for (place, column) in partitions.into_iter().enumerate() {
            self.known.insert(column, Known::Partition(source, place));
        }
        source
    }
}

impl Known {
    /// What it is in rows of a join, whose other side has sources before its own. The join may fill its columns with nulls.
    fn joined(self, before: usize, is_filled: bool) -> Known {
        match self {
            Known::Id(source) if !is_filled => Known::Id(source + before),
            Known::Id(source) | Known::MaybeId(source) => Known::MaybeId(source + before),
            Known::Partition(source, place) => Known::Partition(source + before, place),
        }
    }
}

fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// The column of a table of an expression that makes an id of it, and the columns that tell the trace.
fn made_id<'a>(expression: &'a Expr, input: &LogicalPlan) -> Option<(&'a Column, [Column; 3])> {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Plus,
        right,
    }) = unaliased(expression)
    else {
        return None;
    };
    let (Expr::Column(of_table), first_id) = (left.as_ref(), right.as_ref()) else {
        return None;
    };
    if !is_id(&of_table.name) {
        return None;
    }
    let partitions: Vec<Column> = match first_id {
        Expr::ScalarFunction(call) if call.name() == FIRST_ID => {
            let columns = call.args.iter().map(|argument| argument.try_as_col().cloned());
            columns.collect::<Option<_>>()?
        }
        // The relation of first ids was joined by these columns.
        Expr::Column(column) if column.name == FIRST_ID => {
            let columns = input.schema().columns();
            let named = |name: &str| columns.iter().find(|column| column.name == name).cloned();
            PARTITIONS.iter().map(|name| named(name)).collect::<Option<_>>()?
        }
        _ => return None,
    };
    Some((of_table, partitions.try_into().ok()?))
}

/// Whether no table has nulls in its column of this name.
fn is_never_null(name: &str) -> bool {
    let columns = TABLES.iter().flat_map(|table| table.columns);
    !columns
        .into_iter()
        .any(|column| column.name == name && column.nullable)
}

fn in_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    if join.on.len() < 2 {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    }
    let (left, right) = (Columns::of(&join.left), Columns::of(&join.right));
    let known = |(one, other): &(Expr, Expr)| {
        let (Expr::Column(one), Expr::Column(other)) = (one, other) else {
            return None;
        };
        Some((*left.known.get(one)?, *right.known.get(other)?))
    };
    let of_ids = |pair: &(Expr, Expr)| match known(pair)? {
        (Known::Id(one) | Known::MaybeId(one), Known::Id(other) | Known::MaybeId(other)) => {
            Some((one, other))
        }
        _ => None,
    };
    let same_trace: Vec<(Source, Source)> = join.on.iter().filter_map(of_ids).collect();
    let is_implied = |pair: &(Expr, Expr)| match known(pair) {
        Some((Known::Partition(one, place), Known::Partition(other, same))) => {
            place == same && same_trace.contains(&(one, other))
        }
        _ => false,
    };
    let before = join.on.len();
    join.on.retain(|pair| !is_implied(pair));
    let is_changed = join.on.len() != before;
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), is_changed))
}

fn in_window(window: Window) -> Result<Transformed<LogicalPlan>> {
    let columns = Columns::of(&window.input);
    let known = |key: &Expr| match key {
        Expr::Column(column) => columns.known.get(column).copied(),
        _ => None,
    };
    let mut is_changed = false;
    let values = window.window_expr.iter().map(|value| {
        let Expr::WindowFunction(function) = unaliased(value) else {
            return value.clone();
        };
        let keys = &function.params.partition_by;
        let same_trace: Vec<Known> = keys.iter().filter_map(known).collect();
        let is_implied = |key: &Expr| match known(key) {
            Some(Known::Partition(source, _)) => same_trace.contains(&Known::Id(source)),
            _ => false,
        };
        if !keys.iter().any(is_implied) {
            return value.clone();
        }
        is_changed = true;
        let mut fewer = function.clone();
        fewer.params.partition_by.retain(|key| !is_implied(key));
        // By its name the plan above knows the value.
        Expr::WindowFunction(fewer).alias(value.schema_name().to_string())
    });
    let values: Vec<Expr> = values.collect();
    if !is_changed {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    Window::try_new(values, Arc::clone(&window.input))
        .map(|window| Transformed::yes(LogicalPlan::Window(window)))
}
