//! What a plan's columns are: ids, and the columns that tell a row's trace.
//!
//! An id is only one that a plan makes of a table's column and of its trace's first id ([`many`](crate::many)), as it is passed on without a change. What a
//! statement computes is no id, whatever its name.

use std::collections::HashMap;

use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};
use ferretto_tables::TABLES;

use crate::many::{FIRST_ID, is_id};

/// What a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// An id of the traces of this source, which may be null.
    MaybeId(Source),
    Id(Source),
    /// The first id of the trace.
    FirstId(Source),
    /// The column of [`PARTITIONS`] at this place.
    Partition(Source, usize),
}

/// Where rows with ids come from, as a number within one plan. Rows of a join have several.
pub(crate) type Source = usize;

/// The columns of a plan that are known.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    known: HashMap<Column, Known>,
    sources: usize,
}

impl Columns {
    /// What an expression is, if it is a column that is known.
    pub(crate) fn get(&self, expression: &Expr) -> Option<Known> {
        self.known.get(expression.try_as_col()?).copied()
    }

    pub(crate) fn of(plan: &LogicalPlan) -> Columns {
        match plan {
            LogicalPlan::Projection(projection) => {
                let mut input = Columns::of(&projection.input);
                let mut known = HashMap::new();
                let columns = || projection.expr.iter().zip(projection.schema.columns());
                for (expression, column) in columns() {
                    known.extend(input.made(expression).map(|it| (column, it)));
                }
                for (expression, column) in columns() {
                    known.extend(input.get(unaliased(expression)).map(|it| (column, it)));
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
                let left = left.known.into_iter();
                let left = left.filter_map(|(column, it)| Some((column, it.joined(0, fills_left)?)));
                let beside = right.known.into_iter();
                let beside =
                    beside.filter_map(|(column, it)| Some((column, it.joined(behind, fills_right)?)));
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
            LogicalPlan::Aggregate(aggregate) => {
                let input = Columns::of(&aggregate.input);
                // Grouping sets fill columns with nulls, and are one expression.
                let groups = aggregate.group_expr.iter().zip(aggregate.schema.columns());
                Columns {
                    known: groups
                        .filter_map(|(group, column)| Some((column, input.get(unaliased(group))?)))
                        .collect(),
                    sources: input.sources,
                }
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
        let id = |side: &Expr| self.get(side)?.id();
        let (Some(kept), Some(gone)) = (id(one), id(other)) else {
            return;
        };
        for it in self.known.values_mut() {
            let (Known::Id(source)
            | Known::MaybeId(source)
            | Known::FirstId(source)
            | Known::Partition(source, _)) = it;
            if *source == gone {
                *source = kept;
            }
        }
    }

    /// What an expression makes of these columns.
    fn made(&mut self, expression: &Expr) -> Option<Known> {
        let expression = unaliased(expression);
        if let Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Plus,
            right,
        }) = expression
            && let Expr::Column(of_table) = left.as_ref()
            && is_id(&of_table.name)
        {
            let source = self.first_id(right)?;
            return Some(match is_never_null(&of_table.name) {
                true => Known::Id(source),
                false => Known::MaybeId(source),
            });
        }
        self.first_id(expression).map(Known::FirstId)
    }

    /// The source of the traces whose first ids an expression is.
    fn first_id(&mut self, expression: &Expr) -> Option<Source> {
        // What several ids of a table need is computed once, below.
        if let Some(Known::FirstId(source)) = self.get(expression) {
            return Some(source);
        }
        let Expr::ScalarFunction(call) = expression else {
            return None;
        };
        if call.name() != FIRST_ID {
            return None;
        }
        let columns = call.args.iter().map(|argument| argument.try_as_col().cloned());
        let partitions: Vec<Column> = columns.collect::<Option<_>>()?;
        Some(self.source(partitions.try_into().ok()?))
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
    /// The source of an id, also of one that may be null.
    pub(crate) fn id(self) -> Option<Source> {
        match self {
            Known::Id(source) | Known::MaybeId(source) => Some(source),
            Known::FirstId(_) | Known::Partition(..) => None,
        }
    }

    /// What it is in rows of a join, whose other side has sources before its own. The join may fill its columns with nulls.
    fn joined(self, before: usize, is_filled: bool) -> Option<Known> {
        Some(match self {
            Known::Id(source) if !is_filled => Known::Id(source + before),
            Known::Id(source) | Known::MaybeId(source) => Known::MaybeId(source + before),
            Known::FirstId(_) => return None,
            Known::Partition(source, place) => Known::Partition(source + before, place),
        })
    }
}

pub(crate) fn unaliased(expression: &Expr) -> &Expr {
    match expression {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

/// Whether no table has nulls in its column of this name.
fn is_never_null(name: &str) -> bool {
    let columns = TABLES.iter().flat_map(|table| table.columns);
    !columns
        .into_iter()
        .any(|column| column.name == name && column.nullable)
}
