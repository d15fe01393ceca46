//! A table of pairs: each slice or stack that is asked about (`of`), and the slices or arrows that [`kin`](super::kin) finds for it (`other`).
//!
//! The table functions of [`trees`](super::trees) join it. Only the pairs of those are made that the filters of the plan want. A hash join passes the values
//! that its other side has down to this table once it knows them. So a function of a column costs what it finds, and its slices are read once.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{exec_datafusion_err, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan, TableType};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::expressions::Column;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, execute_stream,
};
use futures::{StreamExt, TryStreamExt};

use super::kin::{Family, Kin};

/// The columns of the table.
pub(super) const OF: &str = "of";
pub(super) const OTHER: &str = "other";

/// The rows of a batch, and how many ids a filter judges at once.
const ROWS: usize = 8192;

/// What a row of the inputs takes until the table is at its end.
const BYTES_OF_ROW: usize = 48;

/// What a pair takes until it is handed out.
const BYTES_OF_PAIR: usize = 16;

fn schema() -> SchemaRef {
    let column = |name| Field::new(name, DataType::Int64, false);
    Arc::new(Schema::new(vec![column(OF), column(OTHER)]))
}

/// The table.
#[derive(Debug)]
pub(super) struct Reached {
    kin: Kin,
    /// Slices, with id, parent and stack; and arrows, with from, to and id, if they are followed.
    inputs: Vec<LogicalPlan>,
    schema: SchemaRef,
}

impl Reached {
    pub(super) fn new(kin: Kin, inputs: Vec<LogicalPlan>) -> Reached {
        Reached {
            kin,
            inputs,
            schema: schema(),
        }
    }
}

#[async_trait]
impl TableProvider for Reached {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut inputs = Vec::new();
        for input in &self.inputs {
            inputs.push(state.create_physical_plan(input).await?);
        }
        let plan = Arc::new(Scan::new(self.kin, inputs, Vec::new()));
        let Some(places) = projection else {
            return Ok(plan);
        };
        let columns = places.iter().map(|&place| {
            let name = self.schema.field(place).name();
            let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, place));
            (column, name.clone())
        });
        Ok(Arc::new(ProjectionExec::try_new(
            columns.collect::<Vec<_>>(),
            plan,
        )?))
    }
}

/// The plan of a scan.
#[derive(Debug)]
struct Scan {
    kin: Kin,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// Conditions on `of`, which is their column 0.
    wanted: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl Scan {
    fn new(kin: Kin, inputs: Vec<Arc<dyn ExecutionPlan>>, wanted: Vec<Arc<dyn PhysicalExpr>>) -> Scan {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Scan {
            kin,
            inputs,
            wanted,
            properties: Arc::new(properties),
        }
    }
}

impl DisplayAs for Scan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reached: {:?}", self.kin)?;
        let mut separator = ", of: ";
        for wanted in &self.wanted {
            write!(f, "{separator}{wanted}")?;
            separator = " and ";
        }
        Ok(())
    }
}

impl ExecutionPlan for Scan {
    fn name(&self) -> &'static str {
        "Reached"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs.len()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for wanted in &self.wanted {
            if f(wanted)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.inputs.len() {
            return internal_err!("{} has {} inputs", self.name(), self.inputs.len());
        }
        Ok(Arc::new(Scan::new(self.kin, children, self.wanted.clone())))
    }

    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        results: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut wanted = self.wanted.clone();
        let mut taken = Vec::new();
        for result in results.parent_filters {
            let is_ours = collect_columns(&result.filter)
                .iter()
                .all(|column| column.index() == 0);
            taken.push(if is_ours { PushedDown::Yes } else { PushedDown::No });
            if is_ours {
                wanted.push(result.filter);
            }
        }
        let propagation = FilterPushdownPropagation::with_parent_pushdown_result(taken);
        if wanted.len() == self.wanted.len() {
            return Ok(propagation);
        }
        let scan: Arc<dyn ExecutionPlan> = Arc::new(Scan::new(self.kin, self.inputs.clone(), wanted));
        Ok(propagation.with_updated_node(scan))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("{} has one partition", self.name());
        }
        let (kin, inputs, wanted) = (self.kin, self.inputs.clone(), self.wanted.clone());
        let batches = futures::stream::once(async move {
            let memory = MemoryConsumer::new("slices to follow").register(context.memory_pool());
            let mut read = Vec::new();
            for input in inputs {
                let mut batches = Vec::new();
                let mut stream = execute_stream(input, Arc::clone(&context))?;
                while let Some(batch) = stream.next().await.transpose()? {
                    memory.try_grow(batch.num_rows() * BYTES_OF_ROW)?;
                    batches.push(batch);
                }
                read.push(batches);
            }
            let flows = read.get(1).map_or(&[][..], Vec::as_slice);
            let slices = read.first().map_or(&[][..], Vec::as_slice);
            let family = Family::new(kin, slices, flows)?;
            let asked = family.asked(kin);
            let walk = Walk {
                kin,
                family,
                asked,
                next: 0,
                wanted,
                judged: Vec::new().into_iter(),
                found: Vec::new(),
                of_found: memory.new_empty(),
                _memory: memory,
            };
            Ok::<_, DataFusionError>(futures::stream::try_unfold(walk, Walk::step))
        });
        let batches = batches.try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema(), batches)))
    }
}

/// The state of one execution, which yields batches.
struct Walk {
    kin: Kin,
    family: Family,
    asked: Vec<i64>,
    /// How many of `asked` were judged.
    next: usize,
    wanted: Vec<Arc<dyn PhysicalExpr>>,
    /// The ids that are wanted and were not yet followed.
    judged: std::vec::IntoIter<i64>,
    /// Batches that were made and not yet handed out, the last first.
    found: Vec<RecordBatch>,
    /// The memory of these batches.
    of_found: MemoryReservation,
    _memory: MemoryReservation,
}

impl Walk {
    /// Returns the next batch and what is left. It gives way to other tasks, such as the one that waits for Ctrl-C.
    async fn step(mut self) -> Result<Option<(RecordBatch, Walk)>> {
        loop {
            if let Some(batch) = self.found.pop() {
                return Ok(Some((batch, self)));
            }
            tokio::task::consume_budget().await;
            if self.judged.len() == 0 {
                if self.next == self.asked.len() {
                    return Ok(None);
                }
                self.judge()?;
            }
            self.make()?;
        }
    }

    /// Takes the next ids, as far as they are wanted.
    fn judge(&mut self) -> Result<()> {
        let end = self.asked.len().min(self.next + ROWS);
        let chunk = Int64Array::from_iter_values(self.asked[self.next..end].iter().copied());
        self.next = end;
        self.judged = self.judged(chunk)?.values().to_vec().into_iter();
        Ok(())
    }

    /// Makes pairs of the next ids, until a batch is full. Only the pairs of the last id may be more.
    fn make(&mut self) -> Result<()> {
        self.of_found.free();
        let (mut ofs, mut others) = (Vec::new(), Vec::new());
        while others.len() < ROWS
            && let Some(of) = self.judged.next()
        {
            self.family.kin(self.kin, of, &mut others);
            self.of_found
                .try_grow((others.len() - ofs.len()) * BYTES_OF_PAIR)?;
            ofs.resize(others.len(), of);
        }
        let columns: [ArrayRef; 2] = [
            Arc::new(Int64Array::from(ofs)),
            Arc::new(Int64Array::from(others)),
        ];
        let batch = RecordBatch::try_new(schema(), columns.into())?;
        let rows = batch.num_rows();
        let begins = (0..rows).step_by(ROWS).rev();
        self.found = begins
            .map(|begin| batch.slice(begin, ROWS.min(rows - begin)))
            .collect();
        Ok(())
    }

    /// Returns those of the ids that all conditions want.
    fn judged(&self, mut ids: Int64Array) -> Result<Int64Array> {
        let only = Arc::new(Schema::new(vec![schema().field(0).clone()]));
        for wanted in &self.wanted {
            let batch = RecordBatch::try_new(Arc::clone(&only), vec![Arc::new(ids.clone())])?;
            let truth = wanted.evaluate(&batch)?.into_array(ids.len())?;
            let Some(truth) = truth.as_boolean_opt() else {
                return Err(exec_datafusion_err!("`{wanted}` is no condition"));
            };
            let kept = ids.values().iter().zip(truth.iter());
            ids = kept
                .filter(|(_, is_wanted)| *is_wanted == Some(true))
                .map(|(id, _)| *id)
                .collect::<Vec<i64>>()
                .into();
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
    use futures::FutureExt;

    use super::*;

    /// The walk over a chain of slices, each of which flows to the next one.
    fn walk(slices: i64, memory: usize) -> Walk {
        let batch = |columns: [Vec<Option<i64>>; 3]| {
            let [a, b, c] = columns.map(|column| -> ArrayRef { Arc::new(Int64Array::from(column)) });
            RecordBatch::try_from_iter([("a", a), ("b", b), ("c", c)]).unwrap()
        };
        let ids = |range: std::ops::Range<i64>| range.map(Some).collect::<Vec<_>>();
        let none = vec![None; slices as usize];
        let family = Family::new(
            Kin::Following,
            &[batch([ids(0..slices), none.clone(), none])],
            &[batch([ids(0..slices - 1), ids(1..slices), ids(0..slices - 1)])],
        )
        .unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
        let memory = MemoryConsumer::new("test").register(&pool);
        Walk {
            kin: Kin::Following,
            asked: family.asked(Kin::Following),
            family,
            next: 0,
            wanted: Vec::new(),
            judged: Vec::new().into_iter(),
            found: Vec::new(),
            of_found: memory.new_empty(),
            _memory: memory,
        }
    }

    #[tokio::test]
    async fn pairs_come_in_batches_and_take_little_memory() {
        const SLICES: usize = 3000;
        let mut walk = walk(SLICES as i64, (ROWS + SLICES) * BYTES_OF_PAIR);
        let mut pairs = 0;
        while let Some((batch, rest)) = walk.step().await.unwrap() {
            assert!((1..=ROWS).contains(&batch.num_rows()));
            pairs += batch.num_rows();
            walk = rest;
        }
        assert_eq!(pairs, SLICES * (SLICES - 1) / 2);
    }

    #[tokio::test]
    async fn pairs_that_do_not_fit_into_memory_are_refused() {
        let error = walk(3000, 20_000).step().await.err().unwrap();
        assert!(
            matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
            "{error}"
        );
    }

    /// Otherwise nothing else runs on the thread until a statement is answered.
    #[tokio::test]
    async fn a_walk_gives_way_to_others() {
        let all = async {
            let mut walk = walk(3000, usize::MAX);
            while let Some((_, rest)) = walk.step().await.unwrap() {
                walk = rest;
            }
        };
        // In a task of its own, as there the budget is counted.
        let at_once = tokio::spawn(async move { all.now_or_never() }).await.unwrap();
        assert!(at_once.is_none());
    }
}
