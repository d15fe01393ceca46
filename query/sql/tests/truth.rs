//! Compares answers with the trace processor's and with plain definitions, on traces of random events.
//!
//! `FERRETTO_TPQ` names the program that asks the trace processor, `FERRETTO_TRACES` a folder of recorded traces.
#![allow(clippy::unwrap_used)]

#[path = "truth/arguments.rs"]
mod arguments;
#[path = "truth/dialect.rs"]
mod dialect;
#[path = "truth/each_trace.rs"]
mod each_trace;
#[path = "../../tables/tests/truth/generator.rs"]
#[allow(dead_code)]
mod generator;
#[path = "truth/laterals.rs"]
mod laterals;
#[path = "truth/many.rs"]
mod many;
#[path = "truth/modules.rs"]
mod modules;
#[path = "truth/spans.rs"]
mod spans;
#[path = "truth/sqlite.rs"]
mod sqlite;
#[path = "../../tables/tests/truth/tpq.rs"]
mod tpq;

use std::path::{Path, PathBuf};

use ferretto_sql::datafusion::arrow::array::{Array, AsArray, RecordBatch};
use ferretto_sql::datafusion::arrow::compute::cast;
use ferretto_sql::datafusion::arrow::datatypes::{DataType, Float64Type};
use ferretto_sql::{Database, EXAMPLES, Options};

/// The trace processor counts some losses that these tables do not.
const NOT_COMPARED: [&str; 1] = ["losses"];
/// The trace processor's modules with the views that examples use.
const MODULES: &str = "INCLUDE PERFETTO MODULE linux.cpu.frequency; INCLUDE PERFETTO MODULE sched.latency; INCLUDE PERFETTO MODULE slices.with_context; ";

fn text(batch: &RecordBatch, column: usize, row: usize) -> String {
    let values = batch.column(column);
    if values.is_null(row) {
        return "\\N".to_owned();
    }
    match values.data_type() {
        DataType::Float64 => {
            let value = values.as_primitive::<Float64Type>().value(row);
            match value.fract() == 0.0 && value.abs() < 1e16 {
                true => format!("{value:.1}"),
                false => value.to_string(),
            }
        }
        // As SQLite has truth.
        DataType::Boolean => u8::from(values.as_boolean().value(row)).to_string(),
        _ => {
            let values = cast(values, &DataType::Utf8).unwrap();
            let value = values.as_string::<i32>().value(row);
            value
                .replace('\\', "\\\\")
                .replace('\t', "\\t")
                .replace('\n', "\\n")
        }
    }
}

/// Returns the rows of the last statement, as the trace processor's program prints them.
async fn ask(database: &mut Database, sql: &str) -> Vec<String> {
    let mut rows = Vec::new();
    for statement in database.parse(sql).unwrap() {
        let frame = database
            .run(statement)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        let batches = frame
            .collect()
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        rows.clear();
        for batch in &batches {
            for row in 0..batch.num_rows() {
                let cells: Vec<String> = (0..batch.num_columns())
                    .map(|column| text(batch, column, row))
                    .collect();
                rows.push(cells.join("\t"));
            }
        }
    }
    rows
}

/// Returns the error of the last statement, or of the text.
async fn error_of(database: &mut Database, sql: &str) -> String {
    let statements = match database.parse(sql) {
        Ok(statements) => statements,
        Err(error) => return error.to_string(),
    };
    let mut error = None;
    for statement in statements {
        error = match database.run(statement).await {
            Err(error) => Some(error.to_string()),
            Ok(frame) => {
                let failed = frame.collect().await.err();
                failed.map(|error| ferretto_sql::Error::from(error).to_string())
            }
        };
    }
    error.unwrap_or_else(|| panic!("{sql} has an answer"))
}

async fn open(trace: &Path) -> Database {
    Database::open(trace.as_os_str(), &Options::default())
        .await
        .unwrap()
}

/// Whether the answer to a statement must have rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Of each generated trace.
    Needed,
    MayLack,
}

/// Compares the answers to statements with the trace processor's. Each has an order, or one row.
async fn compare(statements: &[&str], rows: Rows) {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for trace in [generated(folder.path(), 2), recorded()].concat() {
        let is_recorded = !trace.starts_with(folder.path());
        let mut database = open(&trace).await;
        // Definitions stay; each statement has its own.
        let replaced: Vec<String> = statements
            .iter()
            .map(|sql| sql.replace("create perfetto", "create or replace perfetto"))
            .collect();
        let theirs = tpq::ask(&trace, &replaced).unwrap();
        for (sql, theirs) in replaced.iter().zip(theirs) {
            assert!(
                is_recorded || rows == Rows::MayLack || !theirs.is_empty(),
                "{sql} has no rows of {}",
                trace.display()
            );
            assert_eq!(
                ask(&mut database, sql).await,
                theirs,
                "{sql} on {}",
                trace.display()
            );
        }
    }
}

/// Traces of random events.
fn generated(folder: &Path, seeds: u64) -> Vec<PathBuf> {
    let trace = |seed| {
        let path = folder.join(format!("seed-{seed}.pftrace"));
        std::fs::write(&path, generator::Generator::whole(seed)).unwrap();
        path
    };
    (0..seeds).map(trace).collect()
}

/// The traces that were recorded.
fn recorded() -> Vec<PathBuf> {
    let Some(folder) = std::env::var_os("FERRETTO_TRACES") else {
        return Vec::new();
    };
    let paths = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "pftrace"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frequent_questions_have_the_trace_processors_answers() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let compared = || {
        EXAMPLES
            .iter()
            .filter(|example| !NOT_COMPARED.contains(&example.name))
    };
    let mut answered = vec![0; EXAMPLES.len()];
    for trace in [generated(folder.path(), 3), recorded()].concat() {
        let mut database = open(&trace).await;
        let statements: Vec<String> = compared()
            .map(|example| format!("{MODULES}{}", example.sql))
            .collect();
        let theirs = tpq::ask(&trace, &statements).unwrap();
        for (place, (example, theirs)) in compared().zip(theirs).enumerate() {
            let ours = ask(&mut database, &format!("{MODULES}{}", example.sql)).await;
            assert_eq!(ours, theirs, "{} on {}", example.name, trace.display());
            answered[place] += ours.len();
        }
    }
    let without: Vec<&str> = compared()
        .zip(&answered)
        .filter(|(_, rows)| **rows == 0)
        .map(|(example, _)| example.name)
        .collect();
    println!("no trace has rows for {without:?}");
    assert!(
        without.len() <= 5,
        "the traces answer too few questions: {without:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_above_and_below_and_along_flows_are_the_trace_processors() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut found = [0; 4];
    for trace in generated(folder.path(), 2) {
        let mut database = open(&trace).await;
        let sql = "select id from slice where depth between 1 and 3 or id in (select slice_out from flow) order by id limit 8";
        for id in ask(&mut database, sql).await {
            let [above, below] = ["ancestor_slice", "descendant_slice"]
                .map(|function| format!("select id, depth from {function}({id}) order by id"));
            let [after, before] = ["following_flow", "preceding_flow"]
                .map(|function| format!("select slice_out, slice_in from {function}({id}) order by 1, 2"));
            let statements = [above, below, after, before];
            let theirs = tpq::ask(&trace, &statements).unwrap();
            for ((statement, theirs), found) in statements.iter().zip(theirs).zip(&mut found) {
                let ours = ask(&mut database, statement).await;
                *found += ours.len();
                assert_eq!(ours, theirs, "{statement} on {}", trace.display());
            }
        }
    }
    assert!(found.iter().all(|rows| *rows > 0), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlaps_are_those_of_a_plain_join() {
    let folder = tempfile::tempdir().unwrap();
    for trace in generated(folder.path(), 2) {
        let mut database = open(&trace).await;
        let sides = "with a as (select id, ts, utid, case when dur < 0 then 9000000000000000000 else ts + dur end as last from thread_state where state != 'Running'),
            b as (select id, ts, utid, case when dur < 0 then 9000000000000000000 else ts + dur end as last from thread_state where ts % 3 != 0)";
        let plain = format!(
            "{sides} select greatest(a.ts, b.ts) as ts, a.id, b.id as other from a join b using (utid)
            where greatest(a.ts, b.ts) < least(a.last, b.last) or (a.ts = a.last and b.ts <= a.ts and (a.ts < b.last or b.ts = b.last and a.ts = b.ts))
                or (b.ts = b.last and a.ts <= b.ts and b.ts < a.last)
            order by 1, 2, 3"
        );
        let swept = "select ts, id_0, id_1 from interval_intersect('select id, ts, dur, utid from thread_state where state != ''Running''',
            'select id, ts, dur, utid from thread_state where ts % 3 != 0', 'utid') order by 1, 2, 3";
        let (plain, swept) = (ask(&mut database, &plain).await, ask(&mut database, swept).await);
        assert!(plain.len() > 50, "{}", plain.len());
        assert_eq!(swept, plain, "{}", trace.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_in_files_give_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    for trace in generated(folder.path(), 1) {
        // Tables do not fit and go into files.
        let options = Options {
            memory: 10_000,
            ..Options::default()
        };
        let mut spilled = Database::open(trace.as_os_str(), &options).await.unwrap();
        let mut in_memory = open(&trace).await;
        let exported = folder.path().join("tables");
        let mut files = ferretto_tables::ParquetFolder::create(&exported).unwrap();
        let file = std::fs::File::open(&trace).unwrap();
        ferretto_tables::import(file, &ferretto_tables::Options::default(), &mut files).unwrap();
        files.finish().unwrap();
        let mut from_folder = open(&exported).await;
        for example in EXAMPLES {
            let truth = ask(&mut in_memory, example.sql).await;
            assert_eq!(
                ask(&mut spilled, example.sql).await,
                truth,
                "{} in files",
                example.name
            );
            assert_eq!(
                ask(&mut from_folder, example.sql).await,
                truth,
                "{} of a folder",
                example.name
            );
        }
        std::fs::remove_dir_all(exported).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = &generated(folder.path(), 1)[0];
    let mut database = open(trace).await;
    for (sql, message) in [
        ("select * from nothing", "table 'nothing' not found"),
        ("selec 1", "the SQL cannot be read"),
        (
            "select * from span_join('thread', 'sched')",
            "`thread` has no column `ts`",
        ),
        ("select * from span_join('sched')", "takes two tables"),
        ("select * from ancestor_slice('x')", "is no number"),
        ("select name from thread where name glob '[a'", "without `]`"),
        ("select time_bucket(ts, 'week') from sched", "is no width"),
    ] {
        let error = error_of(&mut database, sql).await;
        assert!(error.contains(message), "{sql}: {error}");
    }
    let garbage = folder.path().join("garbage");
    std::fs::write(&garbage, "root:x:0:0").unwrap();
    let mut database = open(&garbage).await;
    let statement = database.parse("select * from sched").unwrap().remove(0);
    let error = database.run(statement).await.err().unwrap().to_string();
    assert!(error.contains("is no Perfetto trace"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let empty = Database::open(empty.path().as_os_str(), &Options::default()).await;
    assert!(empty.err().unwrap().to_string().contains("has no tables"));
}
