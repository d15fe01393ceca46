//! Plans that are run for one trace after another.
//!
//! Joins and windows by ids never bring rows of different traces together ([`Columns`] tells what is an id). So what one trace gives does not depend on the
//! others, and all that a plan must hold at a time, such as rows to sort and to hash, are those of the few traces that are being read.
//!
//! [`EachTracePlanner`] finds the largest parts of an optimized plan that are so, and plans each of them once, for one processor. [`EachTrace`] runs
//! that plan for each trace with the files of this trace alone, and as many traces at a time as there are processors. What is above, such as an
//! aggregate by a name, sees all rows as before. [`Turns`] says which partition runs which traces, in this process and in a cluster.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchemaRef, JoinType, NullEquality, Statistics, internal_err};
use datafusion::datasource::listing::{ListingTable, PartitionedFile};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SendableRecordBatchStream, SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{
    Aggregate, Expr, Extension, Join, LogicalPlan, TableScan, UserDefinedLogicalNode,
    UserDefinedLogicalNodeCore, Window,
};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, reset_plan_states};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode, SortMergeJoinExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use datafusion::scalar::ScalarValue;
use ferretto_tables::PARTITIONS;
use futures::{TryStreamExt, stream};

use crate::database::Runs;
use crate::known::{Columns, Known, unaliased};

/// Plans statements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EachTracePlanner {
    /// Where the partitions of a plan run.
    pub(crate) runs: Runs,
}

#[async_trait]
impl QueryPlanner for EachTracePlanner {
    async fn create_physical_plan(
        &self,
        plan: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.clone().transform_down_with_subqueries(split).data()?;
        DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(*self)])
            .create_physical_plan(&plan, session)
            .await
    }
}

/// Marks a part of a plan.
fn split(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let holds_rows = |plan: &LogicalPlan| {
        matches!(
            plan,
            LogicalPlan::Join(_) | LogicalPlan::Window(_) | LogicalPlan::Aggregate(_)
        )
    };
    if !plan.exists(|it| Ok(holds_rows(it)))? || !keeps_traces_apart(&plan)? {
        return Ok(Transformed::no(plan));
    }
    let node = Arc::new(Part { plan });
    let part = LogicalPlan::Extension(Extension { node });
    Ok(Transformed::new(part, true, TreeNodeRecursion::Jump))
}

/// Whether a plan gives of all traces what it gives of each. The ids in a row of such a plan are of the same trace.
fn keeps_traces_apart(plan: &LogicalPlan) -> Result<bool> {
    let is_apart = match plan {
        LogicalPlan::TableScan(scan) => is_of_traces(scan)?,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => true,
        LogicalPlan::Join(join) => joins_by_id(join),
        LogicalPlan::Window(window) => is_by_id(window),
        LogicalPlan::Aggregate(aggregate) => groups_by_id(aggregate),
        _ => false,
    };
    // The rows of a subquery may be of all traces.
    let has_subquery = |expression: &Expr| {
        expression.exists(|it| {
            Ok(matches!(
                it,
                Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_)
            ))
        })
    };
    if !is_apart {
        return Ok(false);
    }
    for expression in plan.expressions() {
        if has_subquery(&expression)? {
            return Ok(false);
        }
    }
    for input in plan.inputs() {
        if !keeps_traces_apart(input)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a table has a folder of files for each trace, and all of its rows are wanted.
fn is_of_traces(scan: &TableScan) -> Result<bool> {
    let table = source_as_provider(&scan.source)?;
    let Some(table) = table.downcast_ref::<ListingTable>() else {
        return Ok(false);
    };
    let partitions = &table.options().table_partition_cols;
    Ok(scan.fetch.is_none() && partitions.iter().map(|(name, _)| name).eq(PARTITIONS.iter()))
}

fn joins_by_id(join: &Join) -> bool {
    let is_known = matches!(
        join.join_type,
        JoinType::Inner
            | JoinType::Left
            | JoinType::Right
            | JoinType::Full
            | JoinType::LeftSemi
            | JoinType::RightSemi
            | JoinType::LeftAnti
            | JoinType::RightAnti
    );
    // `NOT IN` asks for a null in any row, of whichever trace.
    if !is_known || join.null_aware || join.null_equality != NullEquality::NullEqualsNothing {
        return false;
    }
    let (left, right) = (Columns::of(&join.left), Columns::of(&join.right));
    let known = || {
        let pairs = join.on.iter();
        pairs.filter_map(|(one, other)| Some((left.get(one)?, right.get(other)?)))
    };
    let is_same = |place| {
        known().any(|pair| {
            matches!(pair, (Known::Partition(_, one), Known::Partition(_, other)) if one == place && other == place)
        })
    };
    known().any(|(one, other)| one.id().is_some() && other.id().is_some())
        || (0..PARTITIONS.len()).all(is_same)
}

fn is_by_id(window: &Window) -> bool {
    let columns = Columns::of(&window.input);
    window.window_expr.iter().all(|value| match unaliased(value) {
        Expr::WindowFunction(function) => has_id(&function.params.partition_by, &columns),
        _ => false,
    })
}

fn groups_by_id(aggregate: &Aggregate) -> bool {
    has_id(&aggregate.group_expr, &Columns::of(&aggregate.input))
}

/// Whether rows with equal keys are of the same trace. Nulls are equal, too.
fn has_id(keys: &[Expr], columns: &Columns) -> bool {
    let mut keys = keys.iter();
    keys.any(|key| matches!(columns.get(unaliased(key)), Some(Known::Id(_))))
}

/// A part of a plan that keeps traces apart.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd)]
struct Part {
    plan: LogicalPlan,
}

impl UserDefinedLogicalNodeCore for Part {
    fn name(&self) -> &str {
        "TracesApart"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.plan]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.plan.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TracesApart")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Part> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(plan), true) => Ok(Part { plan }),
            _ => internal_err!("TracesApart has one input"),
        }
    }
}

#[async_trait]
impl ExtensionPlanner for EachTracePlanner {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let ([plan], true) = (inputs, node.as_any().is::<Part>()) else {
            return Ok(None);
        };
        let processors = session.config().target_partitions();
        let hashed = with_hash_joins(Arc::clone(plan))?;
        let places = match places(&hashed) {
            Some(places) if places.len() >= processors => places,
            // Few traces are read faster by all processors together.
            _ => return Ok(Some(Arc::clone(plan))),
        };
        let plan = for_one_processor(hashed, session)?;
        Ok(Some(Arc::new(match self.runs {
            Runs::Here => EachTrace::new(plan, places, Turns::Taken(Arc::default()), processors)?,
            Runs::Elsewhere => EachTrace::of_rows(plan, rows(&places, processors)?)?,
        })))
    }
}

/// Joins by hashes, as a trace's rows have room in memory. Ballista plans joins of sorted rows.
fn with_hash_joins(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let Some(join) = node.downcast_ref::<SortMergeJoinExec>() else {
            return Ok(Transformed::no(node));
        };
        let hashed = HashJoinExec::try_new(
            Arc::clone(&join.left),
            Arc::clone(&join.right),
            join.on.clone(),
            join.filter.clone(),
            &join.join_type,
            None,
            PartitionMode::Auto,
            join.null_equality,
            false,
        )?;
        Ok(Transformed::yes(Arc::new(hashed) as Arc<dyn ExecutionPlan>))
    })
    .data()
}

/// Optimizes a plan for one processor.
fn for_one_processor(plan: Arc<dyn ExecutionPlan>, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
        return internal_err!("a plan for each trace needs the state of its session");
    };
    let config = session.config().clone().with_target_partitions(1);
    // A new one would take the place of the one with the tables.
    let mut config = config.with_create_default_catalog_and_schema(false);
    // What a join learns of one trace would filter the files of the next.
    config.options_mut().optimizer.enable_join_dynamic_filter_pushdown = false;
    let one = SessionStateBuilder::new_from_existing(state.clone())
        .with_config(config)
        // Ballista has others, for plans of several machines.
        .with_physical_optimizer_rules(PhysicalOptimizer::new().rules)
        .build();
    // Files were dealt to all processors.
    let plan = plan.transform_up(|node| {
        Ok(match scan(&node) {
            Some(config) => Transformed::yes(with_files(config, files(config).cloned().collect())?),
            None => Transformed::no(node),
        })
    });
    DefaultPhysicalPlanner::default().optimize_physical_plan(plan.data()?, &one, |_, _| {})
}

/// The values of [`PARTITIONS`].
type Place = Vec<ScalarValue>;

/// The files of one trace that each scan reads, in the order in which scans are met from the leaves on.
type Files = Vec<Vec<PartitionedFile>>;

/// A plan that is run for each trace.
#[derive(Debug)]
pub(crate) struct EachTrace {
    /// The plan with the files of all traces, which tells what is read.
    whole: Arc<dyn ExecutionPlan>,
    /// The same without files.
    empty: Arc<dyn ExecutionPlan>,
    traces: Arc<Vec<Files>>,
    turns: Turns,
    shown: Shown,
    /// Those of all traces.
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
}

/// Which partition runs which traces.
#[derive(Debug, Clone)]
enum Turns {
    /// The partitions, all in this process, take one after another. This is the next one.
    Taken(Arc<AtomicUsize>),
    /// Each partition has traces of its own, as it knows nothing of those in other processes. The places of these traces are the rows of a plan below: of
    /// what is below, a task gets the partitions that it runs, and of a plan that Ballista does not know it would get all.
    Dealt {
        rows: Arc<dyn ExecutionPlan>,
        traces: Vec<Range<usize>>,
    },
}

impl Turns {
    fn afresh(&self) -> Turns {
        match self {
            Turns::Taken(_) => Turns::Taken(Arc::default()),
            dealt => dealt.clone(),
        }
    }
}

/// Whether others see the plan below. Rules would change it to suit several processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    No,
    Yes,
}

impl EachTrace {
    /// Each partition of `rows` has the places of the traces that the same partition of this plan runs.
    pub(crate) fn of_rows(whole: Arc<dyn ExecutionPlan>, rows: Arc<dyn ExecutionPlan>) -> Result<EachTrace> {
        let dealt = dealt(&rows)?;
        let mut end = 0;
        let traces = dealt.iter().map(|places| {
            let start = end;
            end += places.len();
            start..end
        });
        let traces: Vec<Range<usize>> = traces.collect();
        let partitions = traces.len();
        EachTrace::new(whole, dealt.concat(), Turns::Dealt { rows, traces }, partitions)
    }

    fn new(
        whole: Arc<dyn ExecutionPlan>,
        wanted: Vec<Place>,
        turns: Turns,
        partitions: usize,
    ) -> Result<EachTrace> {
        let mut traces = vec![Files::new(); wanted.len()];
        let wanted: HashMap<Place, usize> = wanted.into_iter().zip(0..).collect();
        let mut scans = 0;
        let empty = Arc::clone(&whole).transform_up(|node| {
            let Some(config) = scan(&node) else {
                return Ok(Transformed::no(node));
            };
            traces.iter_mut().for_each(|files| files.push(Vec::new()));
            for file in files(config) {
                if let Some(trace) = wanted.get(&file.partition_values) {
                    traces[*trace][scans].push(file.clone());
                }
            }
            scans += 1;
            Ok(Transformed::yes(with_files(config, Vec::new())?))
        });
        let properties = PlanProperties::new(
            EquivalenceProperties::new(whole.schema()),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Ok(EachTrace {
            statistics: StatisticsContext::new().compute(whole.as_ref(), &StatisticsArgs::new())?,
            empty: empty.data()?,
            whole,
            traces: Arc::new(traces),
            turns,
            shown: Shown::No,
            properties: Arc::new(properties),
        })
    }

    fn with(&self, shown: Shown, turns: Turns) -> Arc<dyn ExecutionPlan> {
        Arc::new(EachTrace {
            whole: Arc::clone(&self.whole),
            empty: Arc::clone(&self.empty),
            traces: Arc::clone(&self.traces),
            turns,
            shown,
            statistics: Arc::clone(&self.statistics),
            properties: Arc::clone(&self.properties),
        })
    }

    /// The plan of which each process makes an own one by [`EachTrace::of_rows`], with the rows that are this plan's child. It has no files of other traces, and
    /// no statistics of files: these are most of a message, whose size is bounded, and only planning needs them.
    #[cfg(feature = "cluster")]
    pub(crate) fn to_send(&self) -> Result<Arc<dyn ExecutionPlan>> {
        let Turns::Dealt { .. } = &self.turns else {
            return internal_err!("partitions of several processes cannot take one trace after another");
        };
        let mut scans = 0;
        let sent = Arc::clone(&self.empty).transform_up(|node| {
            let Some(config) = scan(&node) else {
                return Ok(Transformed::no(node));
            };
            let files = self.traces.iter().filter_map(|files| files.get(scans));
            let files = files.flatten().cloned().map(|file| PartitionedFile {
                statistics: None,
                ..file
            });
            let files = files.collect();
            scans += 1;
            Ok(Transformed::yes(with_files(config, files)?))
        });
        sent.data()
    }
}

/// The places of traces as rows, dealt to so many partitions. Neighbours, which are often alike, come to different ones.
fn rows(places: &[Place], partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(first) = places.first() else {
        return internal_err!("there are no traces to deal to {partitions} partitions");
    };
    let types = first.iter().map(ScalarValue::data_type);
    let fields = PARTITIONS.iter().zip(types);
    let fields: Vec<Field> = fields.map(|(name, kind)| Field::new(*name, kind, true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let of_partition = |partition| {
        let own = || places.iter().skip(partition).step_by(partitions);
        let columns = (0..PARTITIONS.len()).map(|column| {
            let values = own().filter_map(|place| place.get(column).cloned());
            ScalarValue::iter_to_array(values)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        Ok(vec![RecordBatch::try_new(Arc::clone(&schema), columns)?])
    };
    let batches = (0..partitions).map(of_partition).collect::<Result<Vec<_>>>()?;
    let rows = MemorySourceConfig::try_new(&batches, schema, None)?;
    Ok(DataSourceExec::from_data_source(rows))
}

/// The places of each partition of [`rows`].
fn dealt(rows: &Arc<dyn ExecutionPlan>) -> Result<Vec<Vec<Place>>> {
    let source = rows
        .downcast_ref::<DataSourceExec>()
        .map(DataSourceExec::data_source);
    let Some(source) = source.and_then(|it| it.downcast_ref::<MemorySourceConfig>()) else {
        return internal_err!("a plan for each trace does not have the places of its traces below it");
    };
    let place = |batch: &RecordBatch, row| {
        let columns = batch.columns().iter();
        columns
            .map(|column| ScalarValue::try_from_array(column, row))
            .collect()
    };
    let partition = |batches: &Vec<RecordBatch>| {
        let rows = batches
            .iter()
            .flat_map(|batch| (0..batch.num_rows()).map(move |row| place(batch, row)));
        rows.collect()
    };
    source.partitions().iter().map(partition).collect()
}

/// What a plan's leaf reads, if it reads files.
fn scan(node: &Arc<dyn ExecutionPlan>) -> Option<&FileScanConfig> {
    node.downcast_ref::<DataSourceExec>()?
        .data_source()
        .downcast_ref::<FileScanConfig>()
}

fn files(config: &FileScanConfig) -> impl Iterator<Item = &PartitionedFile> {
    config.file_groups.iter().flat_map(FileGroup::iter)
}

fn with_files(config: &FileScanConfig, files: Vec<PartitionedFile>) -> Result<Arc<dyn ExecutionPlan>> {
    let scan = FileScanConfigBuilder::from(config.clone())
        .with_source(unread(config.file_source())?)
        .with_file_groups(vec![FileGroup::new(files)]);
    Ok(DataSourceExec::from_data_source(scan.build()))
}

/// The same source as if it had not read a file. A source remembers what it did with each of them.
fn unread(source: &Arc<dyn FileSource>) -> Result<Arc<dyn FileSource>> {
    let (Some(parquet), Some(projection)) = (source.downcast_ref::<ParquetSource>(), source.projection())
    else {
        return Ok(Arc::clone(source));
    };
    let options = parquet.table_parquet_options().clone();
    let mut unread = ParquetSource::new(parquet.table_schema().clone());
    if let Some(hint) = options.global.metadata_size_hint {
        unread = unread.with_metadata_size_hint(hint);
    }
    if let Some(filter) = parquet.filter() {
        unread = unread.with_predicate(filter);
    }
    if let Some(reader) = parquet.parquet_file_reader_factory() {
        unread = unread.with_parquet_file_reader_factory(Arc::clone(reader));
    }
    let unread = unread.with_table_parquet_options(options);
    let projected = unread.try_pushdown_projection(projection)?;
    Ok(projected.unwrap_or_else(|| Arc::clone(source)))
}

/// The traces of which a plan may have rows. `None` if it reads something else than files of traces.
fn places(plan: &Arc<dyn ExecutionPlan>) -> Option<Vec<Place>> {
    if let Some(config) = scan(plan) {
        let places: Vec<Place> = files(config).map(|file| file.partition_values.clone()).collect();
        let are_traces = places.iter().all(|place| place.len() == PARTITIONS.len());
        return are_traces.then(|| distinct(places));
    }
    let children = plan.children();
    if children.is_empty() {
        return plan.is::<EmptyExec>().then(Vec::new);
    }
    let mut sides = children.into_iter().map(places).collect::<Option<Vec<_>>>()?;
    let join = plan.downcast_ref::<HashJoinExec>().map(HashJoinExec::join_type);
    Some(match (join, sides.as_mut_slice()) {
        (Some(JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi), [left, right]) => {
            let right: HashSet<&Place> = right.iter().collect();
            left.retain(|place| right.contains(place));
            std::mem::take(left)
        }
        (Some(JoinType::Left | JoinType::LeftAnti), [left, _]) => std::mem::take(left),
        (Some(JoinType::Right | JoinType::RightAnti), [_, right]) => std::mem::take(right),
        _ => distinct(sides.into_iter().flatten().collect()),
    })
}

/// Leaves out all but the first of equal traces.
fn distinct(mut places: Vec<Place>) -> Vec<Place> {
    let mut known = HashSet::new();
    places.retain(|place| known.insert(place.clone()));
    places
}

/// The plan for one trace.
fn of_trace(empty: &Arc<dyn ExecutionPlan>, files: &Files) -> Result<Arc<dyn ExecutionPlan>> {
    let mut files = files.iter();
    let plan = Arc::clone(empty).transform_up(|node| {
        let Some(config) = scan(&node) else {
            return Ok(Transformed::no(node));
        };
        let Some(files) = files.next() else {
            return internal_err!("a plan for each trace has a scan without files");
        };
        Ok(Transformed::yes(with_files(config, files.clone())?))
    });
    reset_plan_states(plan.data()?)
}

impl DisplayAs for EachTrace {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EachTrace: traces={}", self.traces.len())
    }
}

impl ExecutionPlan for EachTrace {
    fn name(&self) -> &'static str {
        "EachTrace"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        match (&self.turns, self.shown) {
            (Turns::Dealt { rows, .. }, _) => vec![rows],
            (Turns::Taken(_), Shown::No) => Vec::new(),
            (Turns::Taken(_), Shown::Yes) => vec![&self.whole],
        }
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Turns::Dealt { rows: before, .. } = &self.turns else {
            return Ok(self);
        };
        match (children.pop(), children.is_empty()) {
            (Some(rows), true) if Arc::ptr_eq(&rows, before) => Ok(self),
            (Some(rows), true) => Ok(Arc::new(EachTrace::of_rows(Arc::clone(&self.whole), rows)?)),
            _ => internal_err!("a plan for each trace has one input"),
        }
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self.with(self.shown, self.turns.afresh()))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (empty, traces) = (Arc::clone(&self.empty), Arc::clone(&self.traces));
        let turns: Box<dyn Iterator<Item = usize> + Send> = match &self.turns {
            Turns::Taken(next) => {
                let next = Arc::clone(next);
                Box::new(std::iter::repeat_with(move || {
                    next.fetch_add(1, Ordering::Relaxed)
                }))
            }
            Turns::Dealt { traces, .. } => match traces.get(partition) {
                Some(traces) => Box::new(traces.clone()),
                None => return internal_err!("a plan for each trace has no partition {partition}"),
            },
        };
        let streams = turns.map_while(move |trace| {
            let plan = of_trace(&empty, traces.get(trace)?);
            Some(plan.and_then(|plan| plan.execute(0, Arc::clone(&context))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(
            self.schema(),
            stream::iter(streams).try_flatten(),
        )))
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        arguments: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(match arguments.partition() {
            None => Arc::clone(&self.statistics),
            Some(_) => Arc::new(Statistics::new_unknown(&self.schema())),
        })
    }
}

/// The rule that lets `EXPLAIN` see the plan for each trace. It is the last.
#[derive(Debug)]
pub(crate) struct Show;

impl PhysicalOptimizerRule for Show {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            Ok(match node.downcast_ref::<EachTrace>() {
                Some(each) => Transformed::yes(each.with(Shown::Yes, each.turns.clone())),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "show_each_trace"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
