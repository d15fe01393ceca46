//! Many traces at once: a query of all of them gives what the same query of each gives.

use std::path::PathBuf;

use ferretto_sql::{Database, EXAMPLES, Options, Traces, VIEWS};
use ferretto_tables::{PARTITIONS, PartitionedFolder, TABLES};
use tempfile::TempDir;

use crate::{ask, generated, open};

/// Some traces, and the same as a folder of tables.
fn some(count: u64) -> (TempDir, Vec<PathBuf>, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let traces = generated(scratch.path(), count);
    let tables = scratch.path().join("tables");
    let mut folder = PartitionedFolder::open(&tables).unwrap();
    for trace in &traces {
        let name = trace.file_name().unwrap().to_str().unwrap();
        let file = std::fs::File::open(trace).unwrap();
        folder
            .add(file, name, None, &ferretto_tables::Options::default())
            .unwrap();
    }
    (scratch, traces, tables)
}

async fn columns(database: &mut Database, table: &str) -> Vec<String> {
    let rows = ask(database, &format!("describe {table}")).await;
    rows.iter()
        .map(|row| row.split('\t').next().unwrap().to_owned())
        .collect()
}

/// Ids as they are in the trace, as far as a name tells which columns are ids.
fn own(column: &str) -> String {
    let is_id = column.ends_with("id")
        || column.starts_with("slice_")
        || ["mapping", "ucpu", "ufd"].contains(&column);
    match is_id && !["build_id", "module_debugid"].contains(&column) {
        true => format!("{column} % 1000000000000 as {column}"),
        false => format!("\"{column}\""),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_table_and_view_has_of_each_trace_the_rows_that_it_has_alone() {
    let (_scratch, traces, tables) = some(2);
    let mut all = open(&tables).await;
    assert_eq!(all.traces(), Traces::Many);
    // Kernel events are exported on request only.
    let names = || {
        let tables = TABLES.iter().map(|table| table.name);
        let tables = tables.filter(|name| *name != "ftrace_event");
        tables.chain(VIEWS.iter().map(|view| view.name))
    };
    let mut with_rows = 0;
    for trace in &traces {
        let mut one = open(trace).await;
        for name in names() {
            // Views have their tables only once somebody asks.
            ask(&mut one, &format!("select * from {name} limit 0")).await;
            ask(&mut all, &format!("select * from {name} limit 0")).await;
            let columns = columns(&mut one, name).await;
            let of_all = self::columns(&mut all, name).await;
            assert_eq!(
                of_all[..columns.len()].len() + 3,
                of_all.len(),
                "{name}: {of_all:?}"
            );
            assert!(
                PARTITIONS
                    .iter()
                    .all(|column| of_all.iter().any(|it| it == column)),
                "{name}"
            );
            let select = columns
                .iter()
                .map(|column| own(column))
                .collect::<Vec<_>>()
                .join(", ");
            let order = (1..=columns.len())
                .map(|place| place.to_string())
                .collect::<Vec<_>>()
                .join(", ");
            let file = trace.file_name().unwrap().display().to_string();
            let truth = ask(&mut one, &format!("select {select} from {name} order by {order}")).await;
            let sql = format!("select {select} from {name} where trace = '{file}' order by {order}");
            assert_eq!(ask(&mut all, &sql).await, truth, "{name} of {file}");
            with_rows += usize::from(!truth.is_empty());
        }
    }
    assert!(with_rows > 55, "{with_rows}");
}

/// The rows of a query without its limit, and with groups that it leaves out by their sums.
async fn unlimited(database: &mut Database, sql: &str) -> Vec<Vec<String>> {
    let sql = sql.rsplit_once(" limit ").map_or(sql, |(sql, _)| sql);
    let rows = ask(database, &sql.replace("\nhaving sum(allocation.size) > 0", "")).await;
    rows.iter()
        .map(|row| row.split('\t').map(str::to_owned).collect())
        .collect()
}

/// The sum of the last column.
fn sum(rows: &[Vec<String>]) -> f64 {
    rows.iter()
        .map(|row| row.last().unwrap().parse::<f64>().unwrap())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frequent_questions_to_all_traces_are_answered_from_each() {
    let (_scratch, traces, tables) = some(3);
    let mut all = open(&tables).await;
    let sources: Vec<_> = traces
        .iter()
        .map(|trace| trace.clone().into_os_string())
        .collect();
    let mut direct = Database::open_traces(&sources, &Options::default())
        .await
        .unwrap();
    let mut ones = Vec::new();
    for trace in &traces {
        ones.push((
            trace.file_name().unwrap().display().to_string(),
            open(trace).await,
        ));
    }
    for example in EXAMPLES {
        let sql = example.of(Traces::Many);
        let mut answer = unlimited(&mut all, &sql).await;
        answer.sort();
        // Traces have other numbers there, which decide between rows of equal rank.
        let mut of_direct = unlimited(&mut direct, &sql).await;
        of_direct.sort();
        if example.name != "longest" {
            assert_eq!(of_direct, answer, "{}", example.name);
        }
        let mut of_ones = Vec::new();
        for (name, one) in &mut ones {
            for row in unlimited(one, example.sql).await {
                of_ones.push([vec![name.clone()], row].concat());
            }
        }
        let per_trace = sql.contains("trace, ") && example.sql.find("trace, ").is_none();
        match (per_trace, example.name) {
            (true, "longest") => assert_eq!(answer.len(), of_ones.len()),
            (true, _) => {
                // The same rows; only their order is that of all together.
                of_ones.sort();
                assert_eq!(answer, of_ones, "{}", example.name);
            }
            (false, _) => assert_eq!(sum(&answer), sum(&of_ones), "{}", example.name),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_files_of_the_wanted_traces_are_read() {
    let (_scratch, _, tables) = some(4);
    let mut all = open(&tables).await;
    for (condition, files) in [
        ("trace = 'seed-2.pftrace'", 1),
        (
            "date = '2006-07-14' and sched.trace in ('seed-0.pftrace', 'seed-3.pftrace')",
            2,
        ),
        ("date < '2006-07-14'", 0),
        ("date >= '2006-07-14'", 4),
        ("machine glob 'Linux*'", 4),
    ] {
        let sql = format!(
            "explain select sched.trace, name, sum(sched.dur) from sched join thread using (utid) where sched.{condition} group by 1, 2"
        );
        let plan = ask(&mut all, &sql).await.join("\n");
        let of_sched = plan.matches("sched_slice/date=").count();
        assert_eq!(of_sched, files, "{condition}: {plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_on_a_view_leaves_out_files_of_all_its_tables() {
    let (_scratch, _, tables) = some(3);
    let mut all = open(&tables).await;
    for view in VIEWS {
        for condition in [
            "trace = 'seed-1.pftrace'",
            "trace in ('seed-1.pftrace') and machine glob 'Linux*'",
        ] {
            let sql = format!("explain select * from {} where {condition}", view.name);
            let plan = ask(&mut all, &sql).await.join("\n");
            assert!(plan.contains("trace=seed-1"), "{}: {plan}", view.name);
            for other in ["trace=seed-0", "trace=seed-2"] {
                assert!(!plan.contains(other), "{} reads {other}: {plan}", view.name);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ids_imply_of_traces_is_not_compared() {
    let (_scratch, _, tables) = some(3);
    let mut all = open(&tables).await;
    for sql in [
        "select sum(latency_dur), count(sched_id) from sched_latency_for_running_interval",
        "select thread_name, sum(dur) from thread_slice group by 1",
        "select count(*) from slice a left join thread_track b on a.track_id = b.id and a.trace = b.trace and a.date = b.date",
        "select sum(n) from (select count(*) over (partition by utid, machine, trace order by ts) as n from sched)",
    ] {
        let plan = ask(&mut all, &format!("explain {sql}")).await.join("\n");
        let plan = plan.replace("\\n", "\n");
        let compares = |line: &&str| {
            let compares = ["Join", "Window", "Sort", "Repartition"]
                .iter()
                .any(|it| line.contains(it));
            compares && ["machine@", "trace@", "date@"].iter().any(|it| line.contains(it))
        };
        assert_eq!(plan.lines().find(compares), None, "{sql}: {plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_no_ids_imply_nothing() {
    let (_scratch, _, tables) = some(3);
    let mut all = open(&tables).await;
    let threads = ask(&mut all, "select count(*) from thread").await;
    let squares = ask(
        &mut all,
        "select sum(n * n) from (select count(*) as n from thread group by trace)",
    )
    .await;
    let own = "(select utid % 1000000000000 as utid, date, machine, trace from thread)";
    for (sql, rows) in [
        (format!("select count(*) from {own} a join {own} b on a.utid = b.utid and a.trace = b.trace"), &threads),
        (format!("select count(*) from (select utid, count(*) over (partition by utid, trace) as n from {own}) where n = 1"), &threads),
        // The trace is not that of the thread whose id it is beside.
        ("select count(*) from (select a.utid, b.trace from thread a, thread b) x join thread y on x.utid = y.utid and x.trace = y.trace".to_owned(), &squares),
        // Joins that keep rows fill ids with nulls.
        ("select count(*) from (select count(*) over (partition by b.utid, b.trace, a.utid, a.trace) as n from thread a left join thread b on a.utid = b.utid and b.utid < 0) where n = 1".to_owned(), &threads),
        ("select count(*) from (select count(*) over (partition by b.utid, a.trace) as n from thread a left join thread b on a.utid = b.utid and b.utid < 0) where n = (select max(n) from (select count(*) as n from thread group by trace))".to_owned(),
            &ask(&mut all, "select sum(n) from (select count(*) as n from thread group by trace) where n = (select max(n) from (select count(*) as n from thread group by trace))").await),
    ] {
        assert_eq!(&ask(&mut all, &sql).await, rows, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_one_trace_lead_nowhere_else() {
    let (_scratch, traces, tables) = some(3);
    let mut all = open(&tables).await;
    let mut one = open(&traces[2]).await;
    let deepest = ask(&mut one, "select id from slice order by depth desc, id limit 1")
        .await
        .remove(0);
    let sql =
        format!("select id from slice where trace = 'seed-2.pftrace' and id % 1000000000000 = {deepest}");
    let id = ask(&mut all, &sql).await.remove(0);
    let above =
        |id: &str| format!("select id % 1000000000000, depth, name from ancestor_slice({id}) order by 1");
    let truth = ask(&mut one, &above(&deepest)).await;
    assert!(!truth.is_empty());
    assert_eq!(ask(&mut all, &above(&id)).await, truth);
    let all_above = "select count(*) from slice s join ancestor_slice(s.id) a";
    let mut sum = 0;
    for trace in &traces {
        let count = ask(&mut open(trace).await, all_above).await.remove(0);
        sum += count.parse::<u64>().unwrap();
    }
    assert_eq!(ask(&mut all, all_above).await, [sum.to_string()]);
    // Intervals of different traces do not meet, with an id or without.
    for columns in ["", ", 'cpu'", ", 'utid'"] {
        let swept = format!(
            "select count(*), sum(dur) from span_join('sched', 'select * from thread_state where state = ''Running'''{columns})"
        );
        let mut parts = (0.0, 0.0);
        for trace in &traces {
            let row = ask(&mut open(trace).await, &swept).await.remove(0);
            let (count, sum) = row.split_once('\t').unwrap();
            parts = (
                parts.0 + count.parse::<f64>().unwrap(),
                parts.1 + sum.parse::<f64>().unwrap(),
            );
        }
        assert_eq!(
            ask(&mut all, &swept).await,
            [format!("{}\t{}", parts.0, parts.1)],
            "{columns}"
        );
    }
    // Virtual tables too: by an id, by another column, and by one that one side has.
    let views = "create view a as select *, id as a_id from (select id, ts, dur, utid, cpu{} from sched);
        create view b as select ts, dur, utid, state{} from thread_state where state = 'Running';
        create view c as select ts, dur, cpu, utid as c_utid{} from sched where id % 2 = 0;
        create view d as select ts, dur, c_utid as d_utid{} from c where cpu = 0;";
    for join in [
        "a partitioned utid, b partitioned utid",
        "a partitioned cpu, c partitioned cpu",
        "a partitioned cpu, d",
    ] {
        for kind in ["span_join", "span_left_join"] {
            let sql = |columns: &str| {
                format!(
                    "drop table if exists x; drop view if exists d; drop view if exists c; drop view if exists b; drop view if exists a; {}
                    create virtual table x using {kind}({join}); select count(*), sum(dur) from x",
                    views.replace("{}", columns)
                )
            };
            let mut parts = (0, 0);
            for trace in &traces {
                let row = ask(&mut open(trace).await, &sql("")).await.remove(0);
                let (count, sum) = row.split_once('\t').unwrap();
                parts = (
                    parts.0 + count.parse::<i64>().unwrap(),
                    parts.1 + sum.parse::<i64>().unwrap(),
                );
            }
            let whole = ask(&mut all, &sql(", date, machine, trace")).await;
            assert_eq!(whole, [format!("{}\t{}", parts.0, parts.1)], "{kind} {join}");
        }
    }
    let error = super::error_of(
        &mut all,
        "create view without as select ts, dur, cpu from sched; create virtual table y using span_join(without partitioned cpu, without partitioned cpu)",
    )
    .await;
    assert!(
        error.contains("has no column `date`, which keeps traces apart"),
        "{error}"
    );
    let error = super::error_of(&mut all, "select to_realtime(ts) from sched").await;
    assert!(error.contains("to_realtime is for one trace"), "{error}");
    for sql in [
        "select extract_metadata('system_name')",
        "create perfetto function f() returns STRING as select extract_metadata('system_name'); select f()",
    ] {
        let error = super::error_of(&mut all, sql).await;
        assert!(error.contains("extract_metadata is for one trace"), "{error}");
    }
    assert!(all.parse("select 'extract_metadata' -- extract_metadata").is_ok());
    let statement = all
        .parse("select * from span_join('select ts, dur from sched', 'sched')")
        .unwrap()
        .remove(0);
    let error = all.run(statement).await.err().unwrap().to_string();
    assert!(
        error.contains("has no column `date`, which keeps traces apart"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_traces_is_several_traces() {
    let scratch = tempfile::tempdir().unwrap();
    generated(scratch.path(), 2);
    let mut all = open(scratch.path()).await;
    let sql = "select distinct trace from thread order by 1";
    assert_eq!(ask(&mut all, sql).await, ["seed-0.pftrace", "seed-1.pftrace"]);
    // A table that was not built with the first has the same ids.
    let sql = "select count(distinct thread.trace || process.trace), count(distinct thread.trace) from thread join process using (upid)";
    assert_eq!(ask(&mut all, sql).await, ["2\t2"]);
    std::fs::write(scratch.path().join("garbage"), "no trace").unwrap();
    let mut all = open(scratch.path()).await;
    let statement = all.parse(sql).unwrap().remove(0);
    let error = all.run(statement).await.err().unwrap().to_string();
    assert!(
        error.contains("garbage") && error.contains("is no Perfetto trace"),
        "{error}"
    );
}
