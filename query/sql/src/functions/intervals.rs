//! `interval_intersect(a, b, columns)`, also called `span_join`, and `span_left_join`: where the intervals of two tables overlap.
//!
//! `a` and `b` are names of tables or queries with columns `ts` and `dur`; `columns` are names with commas between them that must be equal in both, and may be
//! left out. Each row of the result is a time that an interval of `a` and one of `b` share: `ts`, `dur`, the equal columns, then the other columns of `a` and of
//! `b`; a name that both have gets `_0` and `_1`. A duration of -1 means that the interval lasts to the end. Rows without `ts`, `dur` or an equal column are
//! left out. `span_left_join` also has the times of `a` that nothing of `b` overlaps, with nulls.
//!
//! Times of different traces have nothing to do with each other. Where there are many, and none of the equal columns is an id, intervals also must be of one
//! trace.
//!
//! Both inputs are sorted, with spill, and gone through once.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use datafusion::arrow::compute::{cast, interleave};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::arrow::row::{OwnedRow, RowConverter, Rows, SortField};
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType, lit};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use ferretto_tables::PARTITIONS;
use futures::{StreamExt, TryStreamExt};

use crate::many::{Traces, is_id};

use super::sweep::{Interval, OPEN, Overlap, Side, Sweep, Uncovered};

/// The rows of a batch of the result.
const ROWS: usize = 8192;

pub(super) fn register(context: &SessionContext) {
    for (name, uncovered) in [
        ("interval_intersect", Uncovered::LeftOut),
        ("span_join", Uncovered::LeftOut),
        ("span_left_join", Uncovered::Kept),
    ] {
        context.register_udtf(name, Arc::new(Function { name, uncovered }));
    }
}

#[derive(Debug)]
struct Function {
    name: &'static str,
    uncovered: Uncovered,
}

impl TableFunctionImpl for Function {
    fn call_with_args(&self, arguments: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let name = self.name;
        let (a, b, columns) = match arguments.exprs() {
            [a, b] => (a, b, String::new()),
            [a, b, columns] => (a, b, super::text(name, columns)?),
            _ => return plan_err!("{name} takes two tables or queries, and the columns that must be equal"),
        };
        let mut equal: Vec<String> = columns
            .split(',')
            .map(|column| column.trim().to_lowercase())
            .filter(|column| !column.is_empty())
            .collect();
        let Some(state) = arguments.session().as_any().downcast_ref::<SessionState>() else {
            return plan_err!("{name} needs a session with SQL");
        };
        let tells_traces = |column: &String| is_id(column) || PARTITIONS[2] == column.as_str();
        if Traces::of(state.scalar_functions()) == Traces::Many && !equal.iter().any(tells_traces) {
            equal.extend(
                PARTITIONS
                    .map(str::to_owned)
                    .into_iter()
                    .filter(|column| !equal.contains(column))
                    .collect::<Vec<_>>(),
            );
        }
        let a = input(state, name, a, &equal)?;
        let b = input(state, name, b, &equal)?;
        let shape = Shape::new(&a, &b, equal.len(), self.uncovered);
        Ok(Arc::new(Overlaps {
            a,
            b,
            equal: equal.len(),
            uncovered: self.uncovered,
            shape,
        }))
    }
}

/// Plans one of the inputs: `ts`, `dur`, the equal columns, the others; sorted.
fn input(state: &SessionState, function: &str, argument: &Expr, equal: &[String]) -> Result<LogicalPlan> {
    let source = super::text(function, argument)?;
    let is_name = source
        .chars()
        .all(|letter| letter.is_alphanumeric() || letter == '_');
    let plan = super::plan(
        state,
        &match is_name {
            true => format!("select * from {source}"),
            false => source.clone(),
        },
    )?;
    let names: Vec<String> = plan
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    for needed in ["ts", "dur"].into_iter().chain(equal.iter().map(String::as_str)) {
        if !names.iter().any(|name| name == needed) {
            let why = match PARTITIONS.contains(&needed) {
                true => ", which keeps traces apart where the third argument has no id such as utid",
                false => "",
            };
            return plan_err!(
                "{function}: `{source}` has no column `{needed}`{why}; it has {}",
                names.join(", ")
            );
        }
    }
    let column = |name: &str| Expr::Column(datafusion::common::Column::from_name(name));
    let first = ["ts", "dur"].into_iter().chain(equal.iter().map(String::as_str));
    let others = names
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "ts" && *name != "dur" && !equal.iter().any(|it| it == name));
    let bigint = |name: &str| datafusion::prelude::cast(column(name), DataType::Int64).alias(name);
    let select = first.chain(others).map(|name| match name {
        "ts" | "dur" => bigint(name),
        name => column(name),
    });
    let known = ["ts", "dur"]
        .into_iter()
        .chain(equal.iter().map(String::as_str))
        .fold(lit(true), |all, name| all.and(column(name).is_not_null()));
    let order = equal
        .iter()
        .map(String::as_str)
        .chain(["ts"])
        .map(|name| column(name).sort(true, false));
    LogicalPlanBuilder::from(plan)
        .filter(known)?
        .project(select.collect::<Vec<_>>())?
        .alias("input")?
        .sort(order.collect::<Vec<_>>())?
        .build()
}

/// The columns of the result.
#[derive(Debug, Clone)]
struct Shape {
    schema: SchemaRef,
    /// The columns of `a` and of `b` that each input has beyond `ts`, `dur` and the equal ones.
    others: [usize; 2],
}

impl Shape {
    fn new(a: &LogicalPlan, b: &LogicalPlan, equal: usize, uncovered: Uncovered) -> Shape {
        let (a, b) = (a.schema().fields(), b.schema().fields());
        let mut fields = vec![
            Field::new("ts", DataType::Int64, false),
            Field::new("dur", DataType::Int64, false),
        ];
        fields.extend(a[2..2 + equal].iter().map(|field| field.as_ref().clone()));
        let (of_a, of_b) = (&a[2 + equal..], &b[2 + equal..]);
        let both = |name: &String| {
            [of_a, of_b]
                .iter()
                .all(|side| side.iter().any(|field| field.name() == name))
        };
        for (side, suffix) in [(of_a, "_0"), (of_b, "_1")] {
            let may_be_null = uncovered == Uncovered::Kept && suffix == "_1";
            fields.extend(side.iter().map(|field| {
                let name = match both(field.name()) {
                    true => format!("{}{suffix}", field.name()),
                    false => field.name().clone(),
                };
                Field::new(
                    name,
                    field.data_type().clone(),
                    field.is_nullable() || may_be_null,
                )
            }));
        }
        Shape {
            schema: Arc::new(Schema::new(fields)),
            others: [of_a.len(), of_b.len()],
        }
    }
}

/// The result as a table.
#[derive(Debug)]
struct Overlaps {
    a: LogicalPlan,
    b: LogicalPlan,
    equal: usize,
    uncovered: Uncovered,
    shape: Shape,
}

#[async_trait]
impl TableProvider for Overlaps {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.shape.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let overlaps = Partition {
            a: state.create_physical_plan(&self.a).await?,
            b: state.create_physical_plan(&self.b).await?,
            equal: self.equal,
            uncovered: self.uncovered,
            shape: self.shape.clone(),
        };
        let plan = StreamingTableExec::try_new(
            self.schema(),
            vec![Arc::new(overlaps)],
            projection,
            Vec::new(),
            false,
            limit,
        )?;
        Ok(Arc::new(plan))
    }
}

struct Partition {
    a: Arc<dyn ExecutionPlan>,
    b: Arc<dyn ExecutionPlan>,
    equal: usize,
    uncovered: Uncovered,
    shape: Shape,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("overlaps of intervals")
    }
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.shape.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.shape.schema);
        let streams = execute_stream(Arc::clone(&self.a), Arc::clone(&context))
            .and_then(|a| Ok([a, execute_stream(Arc::clone(&self.b), context)?]));
        let join =
            streams.and_then(|streams| Join::new(streams, self.equal, self.uncovered, self.shape.clone()));
        let batches = futures::stream::once(async { join })
            .map_ok(Join::batches)
            .try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}

/// The place of a row: the number of its batch, and its place there.
type Place = (usize, usize);

/// One of the inputs, as far as it was read.
struct Source {
    stream: SendableRecordBatchStream,
    /// The batch that is gone through, unless the input is at its end.
    batch: Option<Current>,
    /// Batches with rows that the result may still need, by their numbers.
    kept: HashMap<usize, RecordBatch>,
    read: usize,
}

struct Current {
    times: Int64Array,
    durations: Int64Array,
    partitions: Option<Rows>,
    row: usize,
}

/// The state of one execution.
struct Join {
    sources: [Source; 2],
    equal: usize,
    converter: Option<RowConverter>,
    partition: Option<OwnedRow>,
    sweep: Sweep<Place>,
    found: Vec<Overlap<Place>>,
    shape: Shape,
}

impl Join {
    fn new(
        streams: [SendableRecordBatchStream; 2],
        equal: usize,
        uncovered: Uncovered,
        shape: Shape,
    ) -> Result<Join> {
        let fields = shape.schema.fields()[2..2 + equal].iter();
        let fields: Vec<_> = fields
            .map(|field| SortField::new(field.data_type().clone()))
            .collect();
        let converter = match fields.is_empty() {
            true => None,
            false => Some(RowConverter::new(fields)?),
        };
        Ok(Join {
            sources: streams.map(|stream| Source {
                stream,
                batch: None,
                kept: HashMap::new(),
                read: 0,
            }),
            equal,
            converter,
            partition: None,
            sweep: Sweep::new(uncovered),
            found: Vec::new(),
            shape,
        })
    }

    fn batches(self) -> impl futures::Stream<Item = Result<RecordBatch>> {
        futures::stream::try_unfold((self, false), |(mut join, is_over)| async move {
            if is_over {
                return Ok(None);
            }
            let is_over = join.fill().await?;
            let batch = join.take()?;
            Ok(Some((batch, (join, is_over))))
        })
        .boxed()
    }

    /// Goes on until there are enough rows for a batch. Returns whether both inputs are at their end.
    async fn fill(&mut self) -> Result<bool> {
        while self.found.len() < ROWS {
            for side in [Side::A, Side::B] {
                self.advance(side).await?;
            }
            let side = match [&self.sources[0].batch, &self.sources[1].batch] {
                [None, None] => {
                    self.sweep.finish(|overlap| self.found.push(overlap));
                    return Ok(true);
                }
                [Some(_), None] => Side::A,
                [None, Some(_)] => Side::B,
                [Some(a), Some(b)] => match a.key() <= b.key() {
                    true => Side::A,
                    false => Side::B,
                },
            };
            self.step(side);
        }
        Ok(false)
    }

    /// Makes sure that an input has a row, unless it is at its end.
    async fn advance(&mut self, side: Side) -> Result<()> {
        let source = &mut self.sources[side as usize];
        while source.batch.as_ref().is_none_or(Current::is_at_end) {
            let Some(batch) = source.stream.next().await.transpose()? else {
                source.batch = None;
                return Ok(());
            };
            if batch.num_rows() == 0 {
                continue;
            }
            let partitions = match &self.converter {
                Some(converter) => {
                    // Types of equal columns may differ, as dictionaries do from plain text.
                    let columns = (0..self.equal)
                        .map(|place| {
                            cast(
                                batch.column(2 + place),
                                self.shape.schema.field(2 + place).data_type(),
                            )
                        })
                        .collect::<Result<Vec<_>, _>>()?;
                    Some(converter.convert_columns(&columns)?)
                }
                None => None,
            };
            source.batch = Some(Current {
                times: batch.column(0).as_primitive::<Int64Type>().clone(),
                durations: batch.column(1).as_primitive::<Int64Type>().clone(),
                partitions,
                row: 0,
            });
            source.kept.insert(source.read, batch);
            source.read += 1;
        }
        Ok(())
    }

    /// Takes the next row of an input, which has one.
    fn step(&mut self, side: Side) {
        let source = &mut self.sources[side as usize];
        let Some(current) = &mut source.batch else {
            return;
        };
        let row = current.row;
        current.row += 1;
        let begin = current.times.value(row);
        let end = match current.durations.value(row) {
            ..0 => OPEN,
            duration => begin.saturating_add(duration),
        };
        let place = (source.read - 1, row);
        let partition = current.partitions.as_ref().map(|rows| rows.row(row));
        if partition != self.partition.as_ref().map(OwnedRow::row) {
            self.partition = partition.map(|row| row.owned());
            self.sweep.finish(|overlap| self.found.push(overlap));
        }
        let interval = Interval {
            begin,
            end,
            row: place,
        };
        self.sweep
            .next(side, interval, |overlap| self.found.push(overlap));
    }

    /// Makes a batch of what was found, and forgets batches that nothing needs any more.
    fn take(&mut self) -> Result<RecordBatch> {
        let found = std::mem::take(&mut self.found);
        let begins = found.iter().map(|it| it.time.start);
        let durations = found.iter().map(|it| match it.time.end {
            OPEN => -1,
            end => end - it.time.start,
        });
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(begins.collect::<Int64Array>()),
            Arc::new(durations.collect::<Int64Array>()),
        ];
        let of_a: Vec<Option<Place>> = found.iter().map(|it| Some(it.a)).collect();
        let of_b: Vec<Option<Place>> = found.iter().map(|it| it.b).collect();
        let others = self.shape.others;
        let from = 2 + self.equal;
        for place in 2..from + others[0] {
            columns.push(self.column(Side::A, place, columns.len(), &of_a)?);
        }
        for place in from..from + others[1] {
            columns.push(self.column(Side::B, place, columns.len(), &of_b)?);
        }
        self.forget();
        Ok(RecordBatch::try_new(Arc::clone(&self.shape.schema), columns)?)
    }

    /// Gathers a column of an input.
    fn column(&self, side: Side, from: usize, to: usize, places: &[Option<Place>]) -> Result<ArrayRef> {
        let kind = self.shape.schema.field(to).data_type();
        if places.is_empty() {
            return Ok(new_null_array(kind, 0));
        }
        // The first array is one null, for rows of the other side alone.
        let mut arrays = vec![new_null_array(kind, 1)];
        let mut numbers = HashMap::new();
        let mut indices = Vec::with_capacity(places.len());
        for place in places {
            indices.push(match place {
                None => (0, 0),
                Some((batch, row)) => {
                    let number = match numbers.get(batch) {
                        Some(number) => *number,
                        None => {
                            arrays.push(cast(self.sources[side as usize].kept[batch].column(from), kind)?);
                            numbers.insert(*batch, arrays.len() - 1);
                            arrays.len() - 1
                        }
                    };
                    (number, *row)
                }
            });
        }
        let arrays: Vec<_> = arrays.iter().map(AsRef::as_ref).collect();
        Ok(interleave(&arrays, &indices)?)
    }

    /// Forgets batches of which no row is current or still open.
    fn forget(&mut self) {
        for side in [Side::A, Side::B] {
            let needed: HashSet<usize> = self
                .sweep
                .rows(side)
                .into_iter()
                .map(|(batch, _)| *batch)
                .collect();
            let source = &mut self.sources[side as usize];
            let current = source.read.wrapping_sub(1);
            source
                .kept
                .retain(|number, _| *number == current || needed.contains(number));
        }
    }
}

impl Current {
    fn is_at_end(&self) -> bool {
        self.row >= self.times.len()
    }

    /// What the next row is sorted by.
    fn key(&self) -> (Option<datafusion::arrow::row::Row<'_>>, i64) {
        let partition = self.partitions.as_ref().map(|rows| rows.row(self.row));
        (partition, self.times.value(self.row))
    }
}
