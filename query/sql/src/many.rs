//! Tables of many traces as if they were those of one.
//!
//! Numbers such as `utid` count within a trace, so a join on them would mix traces. Here each trace gets a number, and its ids begin at a multiple of
//! [`IDS_OF_A_TRACE`]: ids of different traces differ, and the SQL that is right for one trace is right for many. `id % 1000000000000` is the id in the
//! trace. Each table also has the columns `date`, `machine` and `trace`, by which DataFusion leaves out files.

#[cfg(feature = "cluster")]
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, StringArray};
use datafusion::arrow::datatypes::{DataType, Date32Type, Field, Schema, SchemaRef, UInt16Type};
use datafusion::common::{Column, exec_err};
#[cfg(feature = "cluster")]
use datafusion::error::DataFusionError;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit, when,
};
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use datafusion::scalar::ScalarValue;
use ferretto_tables::{PARTITIONS, Place, TABLES, Table};

use crate::database::Runs;

/// The ids that a trace may have before they meet those of the next.
pub(crate) const IDS_OF_A_TRACE: i64 = 1_000_000_000_000;
/// The function that gives the first id of a trace. That a session has it says that its tables have many traces.
pub(crate) const FIRST_ID: &str = "ferretto_first_id";

/// Whether tables have one trace or many, which then have the columns `date`, `machine` and `trace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traces {
    /// One trace, with its own ids.
    One,
    /// Many, or one that is partitioned as many are.
    Many,
}

impl Traces {
    /// What the tables of a session have.
    pub(crate) fn of(functions: &HashMap<String, Arc<ScalarUDF>>) -> Traces {
        match functions.contains_key(FIRST_ID) {
            true => Traces::Many,
            false => Traces::One,
        }
    }
}

/// Columns, of any table, that number what a trace has. `trace_id` of flows is the programs' own.
const IDS: [&str; 29] = [
    "arg_set_id",
    "callsite_id",
    "dimension_arg_set_id",
    "frame_id",
    "id",
    "machine_id",
    "mapping",
    "parent_id",
    NONE_IS_0,
    "parent_upid",
    "perf_session_id",
    "slice_id",
    "slice_in",
    "slice_out",
    "snapshot_id",
    "source_arg_set_id",
    "stack_id",
    "symbol_set_id",
    "thread_state_id",
    "track_group_id",
    "track_id",
    "ucpu",
    "ufd",
    "upid",
    "utid",
    "waker_id",
    "waker_utid",
    // Of views.
    "runnable_latency_id",
    "sched_id",
];

/// The id that is 0 where there is nothing, and stays so.
const NONE_IS_0: &str = "parent_stack_id";

/// Whether rows of different traces never have the same value in this column.
pub(crate) fn is_id(column: &str) -> bool {
    IDS.contains(&column)
}

/// The first ids of traces.
#[derive(Debug, Clone, Default)]
pub(crate) struct FirstIds {
    known: Arc<Mutex<HashMap<Place, i64>>>,
}

impl FirstIds {
    /// Returns the first id of a trace, which is the next free one if the trace is new.
    pub(crate) fn of(&self, trace: Place) -> i64 {
        let mut known = self.lock();
        let next = known.len() as i64 * IDS_OF_A_TRACE;
        *known.entry(trace).or_insert(next)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, i64>> {
        // What a panic elsewhere has left is still a map.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the function to a session.
    pub(crate) fn register(&self, context: &SessionContext, runs: Runs) {
        context.register_udf(FirstId::new(self.clone(), runs).into());
    }

    /// Adds a table whose files are in a folder with partitions, to a session.
    pub(crate) async fn register_files(
        &self,
        context: &SessionContext,
        table: &'static Table,
        folder: &str,
        runs: Runs,
    ) -> Result<()> {
        // Files of earlier versions lack columns.
        let columns = table.arrow_schema();
        let columns = columns
            .fields()
            .iter()
            .map(|field| field.as_ref().clone().with_nullable(true));
        let schema = Schema::new(columns.collect::<Vec<_>>());
        let options = ParquetReadOptions::default()
            .schema(&schema)
            .table_partition_cols(partition_types(runs));
        let rows = context.read_parquet(folder, options).await?;
        let column = |name: &str| Expr::Column(Column::from_name(name));
        let function = ScalarUDF::from(FirstId::new(self.clone(), runs));
        let first = function.call(PARTITIONS.map(column).to_vec());
        let rows = match runs {
            Runs::Here => rows,
            // Others would read the files of traces that came since, and do not know their first ids.
            Runs::Elsewhere => rows.filter(first.clone().is_not_null())?,
        };
        let mut select = Vec::new();
        for name in table.columns.iter().map(|column| column.name) {
            let id = column(name) + first.clone();
            select.push(match name {
                NONE_IS_0 => when(column(name).eq(lit(0_i64)), lit(0_i64))
                    .otherwise(id)?
                    .alias(name),
                name if is_id(name) => id.alias(name),
                name => column(name),
            });
        }
        select.extend(PARTITIONS.map(column));
        context.register_table(table.name, rows.select(select)?.into_view())?;
        Ok(())
    }
}

/// The function [`FIRST_ID`].
#[derive(Debug)]
pub(crate) struct FirstId {
    ids: FirstIds,
    runs: Runs,
    signature: Signature,
}

impl FirstId {
    fn new(ids: FirstIds, runs: Runs) -> FirstId {
        let types = partition_types(runs).into_iter().map(|(_, kind)| kind).collect();
        FirstId {
            ids,
            runs,
            signature: Signature::exact(types, Volatility::Immutable),
        }
    }

    fn first_ids(&self, arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
        let is_one = arguments.iter().all(|it| matches!(it, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(arguments)?;
        let [dates, machines, traces] = columns.as_slice() else {
            return exec_err!("{FIRST_ID} takes the columns date, machine and trace");
        };
        let dates = dates.as_primitive::<Date32Type>();
        let (machines, traces) = (Texts::of(machines), Texts::of(traces));
        let mut last = None;
        let ids = (0..dates.len()).map(|row| {
            if dates.is_null(row) || machines.is_null(row) || traces.is_null(row) {
                return None;
            }
            let is_same = |known| {
                dates.value(known) == dates.value(row)
                    && machines.are_same(known, row)
                    && traces.are_same(known, row)
            };
            // A file has one trace, and so has nearly each batch.
            match last {
                Some((known, id)) if is_same(known) => id,
                _ => {
                    let date = Date32Type::to_naive_date_opt(dates.value(row));
                    let trace = Place {
                        date: date.map_or_else(String::new, |date| date.to_string()),
                        machine: machines.value(row).to_owned(),
                        trace: traces.value(row).to_owned(),
                    };
                    let id = match self.runs {
                        Runs::Here => Some(self.ids.of(trace)),
                        // Several processes would number a new trace differently.
                        Runs::Elsewhere => self.ids.lock().get(&trace).copied(),
                    };
                    last = Some((row, id));
                    id
                }
            }
        });
        let ids: Int64Array = ids.collect();
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&ids, 0)?),
            false => ColumnarValue::Array(Arc::new(ids)),
        })
    }
}

/// A column of [`partition_types`].
enum Texts<'a> {
    Keyed(&'a DictionaryArray<UInt16Type>, &'a StringArray),
    Plain(&'a StringArray),
}

impl Texts<'_> {
    fn of(column: &ArrayRef) -> Texts<'_> {
        match column.as_dictionary_opt() {
            Some(keyed) => Texts::Keyed(keyed, keyed.values().as_string()),
            None => Texts::Plain(column.as_string()),
        }
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Texts::Keyed(keyed, _) => keyed.is_null(row),
            Texts::Plain(texts) => texts.is_null(row),
        }
    }

    fn value(&self, row: usize) -> &str {
        match self {
            Texts::Keyed(keyed, texts) => texts.value(keyed.keys().value(row).into()),
            Texts::Plain(texts) => texts.value(row),
        }
    }

    /// Whether two rows have the same text.
    fn are_same(&self, one: usize, other: usize) -> bool {
        match self {
            Texts::Keyed(keyed, _) => keyed.keys().value(one) == keyed.keys().value(other),
            Texts::Plain(texts) => texts.value(one) == texts.value(other),
        }
    }
}

/// The numbers of traces, by date, machine and name: the traces of a machine are many, and a plan has them several times.
#[cfg(feature = "cluster")]
type Encoded<Name> = BTreeMap<Name, BTreeMap<Name, BTreeMap<Name, i64>>>;

#[cfg(feature = "cluster")]
impl FirstId {
    /// What another process makes the function of.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let known = self.ids.lock();
        let mut dates = Encoded::<&str>::new();
        for (Place { date, machine, trace }, id) in known.iter() {
            let machines = dates.entry(date).or_default();
            let traces = machines.entry(machine).or_default();
            traces.insert(trace, id / IDS_OF_A_TRACE);
        }
        serde_json::to_vec(&dates).map_err(|error| DataFusionError::External(error.into()))
    }

    /// What another process has encoded.
    pub(crate) fn decode(encoded: &[u8]) -> Result<FirstId> {
        let dates: Encoded<String> =
            serde_json::from_slice(encoded).map_err(|error| DataFusionError::External(error.into()))?;
        let mut known = HashMap::new();
        for (date, machines) in &dates {
            for (machine, traces) in machines {
                for (trace, number) in traces {
                    let (date, machine, trace) = (date.clone(), machine.clone(), trace.clone());
                    known.insert(Place { date, machine, trace }, number * IDS_OF_A_TRACE);
                }
            }
        }
        let known = Arc::new(Mutex::new(known));
        Ok(FirstId::new(FirstIds { known }, Runs::Elsewhere))
    }
}

impl PartialEq for FirstId {
    fn eq(&self, other: &FirstId) -> bool {
        Arc::ptr_eq(&self.ids.known, &other.ids.known) && self.runs == other.runs
    }
}

impl Eq for FirstId {}

impl Hash for FirstId {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Arc::as_ptr(&self.ids.known).hash(hasher);
        self.runs.hash(hasher);
    }
}

impl ScalarUDFImpl for FirstId {
    fn name(&self) -> &str {
        FIRST_ID
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.first_ids(&arguments.args)
    }
}

/// The views, with their names, that make tables of many traces of their files in another engine, as `ferretto query` does by itself. There the files of each
/// table are a table `TABLE_files`, with the partitions as columns. `has` says whether the folder has a table: others, such as `ftrace_event`, have no view.
pub fn views_of_files(has: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let partitions = PARTITIONS.join(", ");
    let first_ids = format!(
        "select {partitions}, (row_number() over (order by {partitions}) - 1) * {IDS_OF_A_TRACE} as first_id
        from (select distinct {partitions} from metadata_files) as traces"
    );
    let of_table = |table: &&Table| {
        let columns = table.columns.iter().map(|column| match column.name {
            NONE_IS_0 => {
                format!("case when {NONE_IS_0} = 0 then 0 else {NONE_IS_0} + first_id end as {NONE_IS_0}")
            }
            name if is_id(name) => format!("{name} + first_id as {name}"),
            // Some are words of SQL.
            name => format!("\"{name}\""),
        });
        let columns = columns.collect::<Vec<_>>().join(", ");
        let files = format!("{}_files", table.name);
        let sql = format!(
            "select {columns}, {partitions}\n        from {files} join {FIRST_ID} using ({partitions})"
        );
        (table.name.to_owned(), sql)
    };
    std::iter::once((FIRST_ID.to_owned(), first_ids))
        .chain(TABLES.iter().filter(|table| has(table.name)).map(of_table))
        .collect()
}

/// The columns of partitions.
fn partition_types(runs: Runs) -> Vec<(String, DataType)> {
    let names = match runs {
        // They repeat few values.
        Runs::Here => DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8)),
        // Between executors, Ballista makes texts of dictionaries, and then finds that these are not what it has planned.
        Runs::Elsewhere => DataType::Utf8,
    };
    let types = [DataType::Date32, names.clone(), names];
    PARTITIONS.map(str::to_owned).into_iter().zip(types).collect()
}

/// The schema of a table of many traces.
pub(crate) fn schema(table: &Table, runs: Runs) -> SchemaRef {
    let columns = table.arrow_schema();
    let mut columns: Vec<_> = columns.fields().iter().cloned().collect();
    columns.extend(
        partition_types(runs)
            .into_iter()
            .map(|(name, kind)| Arc::new(Field::new(name, kind, true))),
    );
    Arc::new(Schema::new(columns))
}

#[cfg(test)]
mod tests {
    use ferretto_tables::Kind;

    use super::*;

    /// Whoever adds a column decides whether it numbers what a trace has.
    #[test]
    fn each_column_that_looks_like_an_id_is_known() {
        const NO_IDS: [&str; 9] = [
            "android_appid",
            "android_user_id",
            "build_id",
            "clock_id",
            "cluster_id",
            "gpu_id",
            "group_id",
            "module_debugid",
            "trace_id",
        ];
        const NUMBERS: [&str; 5] = ["pid", "raw_id", "tid", "uid", "pid"];
        let columns = || TABLES.iter().flat_map(|table| table.columns.iter());
        for column in columns().filter(|column| column.name.ends_with("id")) {
            let known = is_id(column.name) || NO_IDS.contains(&column.name) || NUMBERS.contains(&column.name);
            assert!(known, "{} is neither an id nor none", column.name);
        }
        for column in columns().filter(|column| is_id(column.name)) {
            assert_eq!(column.kind, Kind::Int, "{}", column.name);
        }
        for table in TABLES {
            assert!(
                table
                    .columns
                    .iter()
                    .all(|column| !PARTITIONS.contains(&column.name)),
                "{}",
                table.name
            );
        }
    }
}
