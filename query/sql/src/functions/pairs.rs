//! A table of pairs of rows from two sorted inputs: what `sweep` and `spans` find, as batches of Arrow's.
//!
//! The functions of `intervals` and the virtual tables of [`span_join`](crate::span_join) are such tables. Both inputs are sorted, with spill, and gone through
//! once. Batches of the inputs are kept as long as a pair may need a row of them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use datafusion::arrow::compute::{cast, interleave};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use datafusion::arrow::row::{OwnedRow, RowConverter, Rows, SortField};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, TableType, lit};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{StreamExt, TryStreamExt};

use super::spans::{Merge, Met};
use super::sweep::{Interval, OPEN, Overlap, Side, Sweep, Uncovered};

/// The rows of a batch of the result.
const ROWS: usize = 8192;

/// Which pairs there are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Method {
    /// Any two intervals that overlap; and what becomes of `a` alone. A duration below 0 lasts to the end.
    Overlaps(Uncovered),
    /// Those of `SPAN_JOIN`; and what becomes of `a` and of `b` alone.
    Spans([Uncovered; 2]),
}

/// Plans one of the inputs: `ts` and `dur` as given, the equal columns, the others; sorted by the equal columns and the time. Rows without an equal column are
/// left out.
pub(crate) fn sorted(plan: LogicalPlan, [ts, dur]: [Expr; 2], equal: &[String]) -> Result<LogicalPlan> {
    let column = |name: &str| Expr::Column(Column::from_name(name));
    let others = plan.schema().fields().iter().map(|field| field.name().clone());
    let others = others.filter(|name| name != "ts" && name != "dur" && !equal.contains(name));
    let select = equal.iter().cloned().chain(others).map(|name| column(&name));
    let select = [ts.alias("ts"), dur.alias("dur")].into_iter().chain(select);
    let select: Vec<Expr> = select.collect();
    let known = equal
        .iter()
        .fold(lit(true), |all, name| all.and(column(name).is_not_null()));
    let order = equal.iter().map(String::as_str).chain(["ts", "dur"]);
    let order = order.map(|name| column(name).sort(true, false));
    LogicalPlanBuilder::from(plan)
        .filter(known)?
        .project(select)?
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
    fn new(a: &LogicalPlan, b: &LogicalPlan, equal: usize, method: Method) -> Shape {
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
        let kept = match method {
            Method::Overlaps(uncovered) => [uncovered, Uncovered::LeftOut],
            Method::Spans(uncovered) => uncovered,
        };
        // Where something of one side stands alone, the other has nulls.
        for (side, suffix, others) in [(of_a, "_0", kept[1]), (of_b, "_1", kept[0])] {
            let may_be_null = others == Uncovered::Kept;
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
pub(crate) struct Pairs {
    a: LogicalPlan,
    b: LogicalPlan,
    equal: usize,
    method: Method,
    kind: TableType,
    shape: Shape,
}

impl Pairs {
    /// Makes the table. Both inputs are [`sorted`] by the same number of equal columns.
    pub(crate) fn new([a, b]: [LogicalPlan; 2], equal: usize, method: Method, kind: TableType) -> Pairs {
        let shape = Shape::new(&a, &b, equal, method);
        Pairs {
            a,
            b,
            equal,
            method,
            kind,
            shape,
        }
    }
}

#[async_trait]
impl TableProvider for Pairs {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.shape.schema)
    }

    fn table_type(&self) -> TableType {
        self.kind
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let pairs = Partition {
            a: state.create_physical_plan(&self.a).await?,
            b: state.create_physical_plan(&self.b).await?,
            equal: self.equal,
            method: self.method,
            shape: self.shape.clone(),
        };
        let plan = StreamingTableExec::try_new(
            self.schema(),
            vec![Arc::new(pairs)],
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
    method: Method,
    shape: Shape,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pairs of intervals")
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
            streams.and_then(|streams| Join::new(streams, self.equal, self.method, self.shape.clone()));
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

/// What finds the pairs of a partition.
enum Finder {
    Sweep(Sweep<Place>),
    Merge(Merge<Place>),
}

/// A row of the result.
struct Pair {
    time: Range<i64>,
    rows: [Option<Place>; 2],
}

/// The state of one execution.
struct Join {
    sources: [Source; 2],
    equal: usize,
    converter: Option<RowConverter>,
    partition: Option<OwnedRow>,
    finder: Finder,
    found: Vec<Pair>,
    shape: Shape,
}

impl Finder {
    /// Takes the next interval of one side. Returns which, unless another step without one comes first.
    fn step(&mut self, next: [Option<Interval<Place>>; 2], found: &mut Vec<Pair>) -> Option<Side> {
        match self {
            Finder::Merge(merge) => merge.step(next, |pair| found.push(pair.into())),
            Finder::Sweep(sweep) => {
                let (side, interval) = match next {
                    [Some(a), None] => (Side::A, a),
                    [Some(a), Some(b)] if a.begin <= b.begin => (Side::A, a),
                    [_, Some(b)] => (Side::B, b),
                    [None, None] => return None,
                };
                sweep.next(side, interval, |overlap| found.push(overlap.into()));
                Some(side)
            }
        }
    }

    /// Ends the partition.
    fn finish(&mut self, found: &mut Vec<Pair>) {
        match self {
            Finder::Sweep(sweep) => sweep.finish(|overlap| found.push(overlap.into())),
            Finder::Merge(merge) => merge.finish(|pair| found.push(pair.into())),
        }
    }

    /// The rows of one side that later pairs may have.
    fn rows(&self, side: Side) -> Vec<Place> {
        match self {
            Finder::Sweep(sweep) => sweep.rows(side).into_iter().copied().collect(),
            Finder::Merge(merge) => merge.row(side).into_iter().copied().collect(),
        }
    }
}

impl From<Overlap<Place>> for Pair {
    fn from(overlap: Overlap<Place>) -> Pair {
        Pair {
            time: overlap.time,
            rows: [Some(overlap.a), overlap.b],
        }
    }
}

impl From<Met<Place>> for Pair {
    fn from(met: Met<Place>) -> Pair {
        Pair {
            time: met.time,
            rows: met.rows,
        }
    }
}

impl Join {
    fn new(
        streams: [SendableRecordBatchStream; 2],
        equal: usize,
        method: Method,
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
            finder: match method {
                Method::Overlaps(uncovered) => Finder::Sweep(Sweep::new(uncovered)),
                Method::Spans(uncovered) => Finder::Merge(Merge::new(uncovered)),
            },
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
            let heads = self.sources.each_ref().map(|source| source.batch.as_ref());
            let Some(first) = heads.into_iter().flatten().map(Current::partition).min() else {
                self.finder.finish(&mut self.found);
                return Ok(true);
            };
            if first != self.partition.as_ref().map(OwnedRow::row) {
                let first = first.map(|row| row.owned());
                self.finder.finish(&mut self.found);
                self.partition = first;
            }
            self.step();
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

    /// Goes on by one row of the partition.
    fn step(&mut self) {
        let partition = self.partition.as_ref().map(OwnedRow::row);
        let next = self.sources.each_ref().map(|source| {
            let current = source.batch.as_ref()?;
            if current.partition() != partition {
                return None;
            }
            let (begin, end) = current.times();
            let end = match (&self.finder, end < begin) {
                (Finder::Sweep(_), true) => OPEN,
                _ => end,
            };
            let row = (source.read - 1, current.row);
            Some(Interval { begin, end, row })
        });
        if let Some(side) = self.finder.step(next, &mut self.found)
            && let Some(current) = &mut self.sources[side as usize].batch
        {
            current.row += 1;
        }
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
        let of = |side: Side| move |pair: &Pair| Some((side, pair.rows[side as usize]?));
        let of_either: Vec<_> = found
            .iter()
            .map(|pair| of(Side::A)(pair).or(of(Side::B)(pair)))
            .collect();
        let from = 2 + self.equal;
        for place in 2..from {
            columns.push(self.column(place, columns.len(), &of_either)?);
        }
        for side in [Side::A, Side::B] {
            let places: Vec<_> = found.iter().map(of(side)).collect();
            for place in from..from + self.shape.others[side as usize] {
                columns.push(self.column(place, columns.len(), &places)?);
            }
        }
        self.forget();
        Ok(RecordBatch::try_new(Arc::clone(&self.shape.schema), columns)?)
    }

    /// Gathers a column of the inputs.
    fn column(&self, from: usize, to: usize, places: &[Option<(Side, Place)>]) -> Result<ArrayRef> {
        let kind = self.shape.schema.field(to).data_type();
        if places.is_empty() {
            return Ok(new_null_array(kind, 0));
        }
        // The first array is one null, for rows of the other side alone.
        let mut arrays = vec![new_null_array(kind, 1)];
        let mut numbers: [HashMap<usize, usize>; 2] = Default::default();
        let mut indices = Vec::with_capacity(places.len());
        for place in places {
            indices.push(match place {
                None => (0, 0),
                Some((side, (batch, row))) => {
                    let number = match numbers[*side as usize].entry(*batch) {
                        Entry::Occupied(number) => *number.get(),
                        Entry::Vacant(number) => {
                            let kept = &self.sources[*side as usize].kept[batch];
                            arrays.push(cast(kept.column(from), kind)?);
                            *number.insert(arrays.len() - 1)
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
            let rows = self.finder.rows(side).into_iter();
            let needed: HashSet<usize> = rows.map(|(batch, _)| batch).collect();
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

    fn partition(&self) -> Option<datafusion::arrow::row::Row<'_>> {
        self.partitions.as_ref().map(|rows| rows.row(self.row))
    }

    /// When the next row begins and ends.
    fn times(&self) -> (i64, i64) {
        let begin = self.times.value(self.row);
        (begin, begin.saturating_add(self.durations.value(self.row)))
    }
}
