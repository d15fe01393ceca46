//! Tables of many traces as if they were those of one.
//!
//! Numbers such as `utid` count within a trace, so a join on them would mix traces. Here each trace gets a number, and its ids begin at a multiple of
//! [`IDS_OF_A_TRACE`]: ids of different traces differ, and the SQL that is right for one trace is right for many. `id % 1000000000000` is the id in the
//! trace. Each table also has the columns `date`, `machine` and `trace`, by which DataFusion leaves out files.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::{Array, AsArray, Int64Array};
use datafusion::arrow::datatypes::{DataType, Date32Type, Field, Schema, SchemaRef, UInt16Type};
use datafusion::common::{Column, JoinType, exec_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlanBuilder, ScalarUDF, Volatility, cast, create_udf, lit, when,
};
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
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
        // What a panic elsewhere has left is still a map.
        let mut known = self
            .known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = known.len() as i64 * IDS_OF_A_TRACE;
        *known.entry(trace).or_insert(next)
    }

    pub(crate) fn len(&self) -> usize {
        self.known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .len()
    }

    /// Adds the function to a session.
    pub(crate) fn register(&self, context: &SessionContext) {
        context.register_udf(self.function());
    }

    fn function(&self) -> ScalarUDF {
        let ids = self.clone();
        let arguments = partition_types().into_iter().map(|(_, kind)| kind).collect();
        create_udf(
            FIRST_ID,
            arguments,
            DataType::Int64,
            Volatility::Immutable,
            Arc::new(move |arguments: &[ColumnarValue]| ids.first_ids(arguments)),
        )
    }

    fn first_ids(&self, arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
        let is_one = arguments.iter().all(|it| matches!(it, ColumnarValue::Scalar(_)));
        let columns = ColumnarValue::values_to_arrays(arguments)?;
        let [dates, machines, traces] = columns.as_slice() else {
            return exec_err!("{FIRST_ID} takes the columns date, machine and trace");
        };
        let dates = dates.as_primitive::<Date32Type>();
        let (machines, traces) = (
            machines.as_dictionary::<UInt16Type>(),
            traces.as_dictionary::<UInt16Type>(),
        );
        let texts = (
            machines.values().as_string::<i32>(),
            traces.values().as_string::<i32>(),
        );
        let mut last = None;
        let ids = (0..dates.len()).map(|row| {
            if dates.is_null(row) || machines.is_null(row) || traces.is_null(row) {
                return None;
            }
            let key = (
                dates.value(row),
                machines.keys().value(row),
                traces.keys().value(row),
            );
            // A file has one trace, and so has nearly each batch.
            Some(match last {
                Some((known, id)) if known == key => id,
                _ => {
                    let date = Date32Type::to_naive_date_opt(key.0);
                    let id = self.of(Place {
                        date: date.map_or_else(String::new, |date| date.to_string()),
                        machine: texts.0.value(key.1.into()).to_owned(),
                        trace: texts.1.value(key.2.into()).to_owned(),
                    });
                    last = Some((key, id));
                    id
                }
            })
        });
        let ids: Int64Array = ids.collect();
        Ok(match is_one {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&ids, 0)?),
            false => ColumnarValue::Array(Arc::new(ids)),
        })
    }

    /// The traces with their first ids, as a relation: a function with the ids of this process does not run in others.
    fn relation(&self, context: &SessionContext) -> Result<DataFrame> {
        let rows = {
            let known = self
                .known
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let row = |(place, id): (&Place, &i64)| {
                let texts = [&place.date, &place.machine, &place.trace];
                texts
                    .map(|text| lit(text.as_str()))
                    .into_iter()
                    .chain([lit(*id)])
                    .collect()
            };
            known.iter().map(row).collect::<Vec<Vec<Expr>>>()
        };
        let columns = (1..).zip(partition_types()).map(|(place, (name, kind))| {
            let value = Column::from_name(format!("column{place}"));
            cast(Expr::Column(value), kind).alias(of_first_id(&name))
        });
        let first_id = Expr::Column(Column::from_name("column4")).alias(FIRST_ID);
        let rows = LogicalPlanBuilder::values(rows)?
            .project(columns.chain([first_id]).collect::<Vec<_>>())?
            .build()?;
        Ok(DataFrame::new(context.state(), rows))
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
            .table_partition_cols(partition_types());
        let mut rows = context.read_parquet(folder, options).await?;
        let column = |name: &str| Expr::Column(Column::from_name(name));
        let first = match runs {
            Runs::Here => self.function().call(PARTITIONS.map(column).to_vec()),
            Runs::Elsewhere => {
                let traces = self.relation(context)?;
                let keys = PARTITIONS.map(of_first_id);
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                rows = rows.join(traces, JoinType::Inner, &PARTITIONS, &keys, None)?;
                column(FIRST_ID)
            }
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

/// The name of a partition's column in the relation of first ids.
fn of_first_id(partition: &str) -> String {
    format!("{FIRST_ID}_{partition}")
}

/// The columns of partitions. Two of them repeat few values.
fn partition_types() -> Vec<(String, DataType)> {
    let names = DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8));
    let types = [DataType::Date32, names.clone(), names];
    PARTITIONS.map(str::to_owned).into_iter().zip(types).collect()
}

/// The schema of a table of many traces.
pub(crate) fn schema(table: &Table) -> SchemaRef {
    let columns = table.arrow_schema();
    let mut columns: Vec<_> = columns.fields().iter().cloned().collect();
    columns.extend(
        partition_types()
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
