//! Plans that are run for one trace after another give what they give of all traces at once.

use std::path::PathBuf;

use ferretto_sql::Database;
use ferretto_tables::{PartitionedFolder, TABLES};
use tempfile::TempDir;

use crate::{ask, generated, open};

/// Traces of three machines and two days, of which two have the same name.
fn several() -> (TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let tables = scratch.path().join("tables");
    let mut folder = PartitionedFolder::open(&tables).unwrap();
    for (trace, (name, machine)) in generated(scratch.path(), 5).iter().zip([
        ("one.pftrace", "a"),
        ("two.pftrace", "a"),
        ("one.pftrace", "b"),
        ("three.pftrace", "b"),
        ("four.pftrace", "c"),
    ]) {
        let file = std::fs::File::open(trace).unwrap();
        let options = ferretto_tables::Options::default();
        folder.add(file, name, Some(machine), &options).unwrap();
    }
    // All were recorded on the same day.
    for table in TABLES.iter().map(|table| tables.join(table.name)) {
        let of_day = |day: &str| table.join(format!("date=2006-07-{day}")).join("machine=c");
        if of_day("14").is_dir() {
            std::fs::create_dir_all(of_day("15").parent().unwrap()).unwrap();
            std::fs::rename(of_day("14"), of_day("15")).unwrap();
        }
    }
    (scratch, tables)
}

/// Plans as if there were so many processors.
async fn with_processors(all: &mut Database, processors: usize) {
    ask(
        all,
        &format!("set datafusion.execution.target_partitions = {processors}"),
    )
    .await;
}

/// The plan of a statement.
async fn plan(all: &mut Database, sql: &str) -> String {
    let plan = ask(all, &format!("explain {sql}")).await.join("\n");
    plan.replace("\\n", "\n")
}

/// Asks of each trace by itself and of all at once. Returns how many plans are run for each trace, and of how many traces.
async fn compare(all: &mut Database, sql: &str) -> Vec<String> {
    // More processors than traces.
    with_processors(all, 16).await;
    let at_once = plan(all, sql).await;
    assert!(!at_once.contains("EachTrace: "), "{sql}: {at_once}");
    let truth = ask(all, sql).await;
    assert!(!truth.is_empty(), "{sql}");
    with_processors(all, 2).await;
    assert_eq!(ask(all, sql).await, truth, "{sql}");
    let plan = plan(all, sql).await;
    let of_each = plan
        .lines()
        .filter_map(|line| line.split_once("EachTrace: traces="));
    of_each.map(|(_, traces)| traces.trim().to_owned()).collect()
}

/// Statements with parts that are run for each trace, and of how many traces each part is.
const APART: [(&str, &[&str]); 13] = [
    (
        "select process.name, count(*), sum(latency_dur), min(sched_id), max(runnable_latency_id)
            from sched_latency_for_running_interval join thread using (utid) join process using (upid) group by 1 order by 1",
        &["5"],
    ),
    (
        "select thread_name, count(*), sum(dur), min(id), max(id) from thread_slice group by 1 order by 1",
        &["5"],
    ),
    (
        "select count(*), sum(dur), min(id), max(id) from thread_or_process_slice",
        &["5", "5"],
    ),
    // Columns of the other side are null, of no trace.
    (
        "select count(*), count(a.utid), count(b.utid), sum(a.utid), sum(b.utid)
            from (select * from thread where utid % 2 = 0) a full join (select * from thread where utid % 3 = 0) b on a.utid = b.utid",
        &["5"],
    ),
    (
        "select a.trace, count(*), count(b.utid) from thread a left join (select * from thread where trace = 'one.pftrace') b
            on a.utid = b.utid group by 1 order by 1",
        &["5"],
    ),
    (
        "select count(*), sum(utid) from thread where utid in (select utid from sched where cpu = 0)",
        &["5"],
    ),
    (
        "select count(*), sum(utid) from thread where not exists (select 1 from sched where sched.utid = thread.utid and cpu = 0)",
        &["5"],
    ),
    (
        "select sum(n * ts), max(n) from (select ts, row_number() over (partition by utid order by ts, id) as n from sched)",
        &["5"],
    ),
    // All rows of a group by an id are of one trace, and so are the rows that are joined with it.
    (
        "select name, sum(n) from (select utid, count(*) as n from sched group by utid) join thread using (utid) group by 1 order by 1",
        &["5"],
    ),
    (
        "select count(*), sum(a.id), sum(b.id) from sched a join thread_state b
            on a.ts = b.ts and a.date = b.date and a.machine = b.machine and a.trace = b.trace",
        &["5"],
    ),
    // What one side has no rows of is not read on the other.
    (
        "select count(*), sum(sched.id) from sched join thread using (utid) where thread.machine = 'a' or thread.date = '2006-07-15'",
        &["3"],
    ),
    (
        "select count(*), count(thread.utid) from (select * from sched where machine = 'a') sched left join thread using (utid)",
        &["2"],
    ),
    // A number for all traces is no reason to hold them.
    (
        "select name, n, (select max(dur) from sched) from (select utid, count(*) as n from sched group by utid) join thread using (utid)
            order by name, n, utid limit 7",
        &["5"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_different_traces_are_not_held_together() {
    let (_scratch, tables) = several();
    let mut all = open(&tables).await;
    for (sql, parts) in APART {
        assert_eq!(compare(&mut all, sql).await, parts, "{sql}");
    }
}

#[cfg(feature = "cluster")]
mod sent {
    use std::sync::Arc;

    use async_trait::async_trait;
    use datafusion_proto::bytes::{
        logical_plan_from_bytes_with_extension_codec, logical_plan_to_bytes_with_extension_codec,
        physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
    };
    use datafusion_proto::logical_plan::DefaultLogicalExtensionCodec;
    use datafusion_proto::physical_plan::DefaultPhysicalExtensionCodec;
    use ferretto_sql::cluster::{Codec, session};
    use ferretto_sql::datafusion::catalog::Session;
    use ferretto_sql::datafusion::error::Result;
    use ferretto_sql::datafusion::execution::context::QueryPlanner;
    use ferretto_sql::datafusion::execution::{SessionState, SessionStateBuilder};
    use ferretto_sql::datafusion::logical_expr::LogicalPlan;
    use ferretto_sql::datafusion::physical_plan::ExecutionPlan;
    use ferretto_sql::{Database, Engine, Options};

    use ferretto_tables::PartitionedFolder;

    use super::{APART, compare, several};
    use crate::{ask, generated};

    /// Plans as a scheduler does, and sends each plan as bytes, but to this process.
    #[derive(Debug)]
    struct Sent;

    impl Engine for Sent {
        fn take_over(&self, state: SessionState) -> Result<SessionState> {
            let state = SessionStateBuilder::new_from_existing(state);
            Ok(state.with_query_planner(Arc::new(Sent)).build())
        }
    }

    #[async_trait]
    impl QueryPlanner for Sent {
        async fn create_physical_plan(
            &self,
            plan: &LogicalPlan,
            asks: &dyn Session,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            let plans = session(asks.config().clone());
            let context = plans.task_ctx();
            let codec = Codec(DefaultLogicalExtensionCodec {});
            let sent = logical_plan_to_bytes_with_extension_codec(plan, &codec)?;
            let plan = logical_plan_from_bytes_with_extension_codec(&sent, &context, &codec)?;
            let plan = plans.create_physical_plan(&plan).await?;
            let codec = Codec(DefaultPhysicalExtensionCodec {});
            let sent = physical_plan_to_bytes_with_extension_codec(plan, &codec)?;
            physical_plan_from_bytes_with_extension_codec(&sent, &context, &codec)
        }
    }

    /// Deep plans are read by functions that call themselves, and without optimizations these need more than the stack of a test's thread.
    const STACK: usize = 16 << 20;

    #[test]
    fn plans_that_were_sent_run_for_each_trace_too() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let thread = std::thread::Builder::new().stack_size(STACK);
        let compared = thread.spawn(move || runtime.block_on(compare_sent()));
        compared.unwrap().join().unwrap();
    }

    async fn compare_sent() {
        let (_scratch, tables) = several();
        let options = Options {
            engine: Some(Arc::new(Sent)),
            ..Options::default()
        };
        let mut all = Database::open(tables.as_os_str(), &options).await.unwrap();
        for (sql, parts) in APART {
            assert_eq!(compare(&mut all, sql).await, parts, "{sql}");
        }
        // Processes would give a trace that comes now different ids, so its rows are left out.
        let count = "select count(*), max(utid) from sched join thread using (utid)";
        let before = ask(&mut all, count).await;
        let scratch = tempfile::tempdir().unwrap();
        let file = std::fs::File::open(&generated(scratch.path(), 1)[0]).unwrap();
        let mut folder = PartitionedFolder::open(&tables).unwrap();
        let options = ferretto_tables::Options::default();
        folder.add(file, "new.pftrace", Some("d"), &options).unwrap();
        assert_eq!(ask(&mut all, count).await, before);
        let mut anew = crate::open(&tables).await;
        assert_ne!(ask(&mut anew, count).await, before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_different_traces_that_belong_together_stay_so() {
    let (_scratch, tables) = several();
    let mut all = open(&tables).await;
    for sql in [
        "select count(*), sum(a.utid), sum(b.utid) from thread a join thread b on a.tid = b.tid",
        "select count(*) from thread a join thread b on a.utid % 1000000000000 = b.utid % 1000000000000",
        "select count(*) from thread a join thread b on a.tid = b.tid and a.trace = b.trace",
        "select count(*) from sched a join sched b on a.utid = b.cpu",
        // A null is in no trace, and equal to nulls of others.
        "select count(*) from process a join process b on a.parent_upid is not distinct from b.parent_upid",
        "select sum(n) from (select count(*) over (partition by parent_upid) as n from process)",
        "select sum(n * n) from (select parent_upid, count(*) as n from process group by 1)",
        "select count(*) from process where upid not in (select parent_upid from process)",
        "select count(*) from process where upid not in (select parent_upid from process where parent_upid is not null)",
        "select sum(n) from (select row_number() over (order by ts, id) as n from sched)",
        "select sum(n) from (select count(*) over (partition by cpu) as n from sched)",
        "select cpu, count(*) from sched group by 1 order by 1",
        "select sum(n * n) from (select utid, count(*) as n from sched group by rollup (utid))",
        "select count(*) from (select * from sched order by ts, id limit 100) s join (select * from thread order by tid, utid limit 10) t using (utid)",
        "select count(*) from sched s join thread t on s.utid = t.utid and s.dur > (select avg(dur) from sched)",
    ] {
        assert_eq!(compare(&mut all, sql).await, Vec::<String>::new(), "{sql}");
    }
    // What is below them may be of each trace.
    for sql in [
        "select sum(n) from (select count(*) over (partition by b.utid) as n from thread a left join thread b on a.utid = b.utid and b.utid % 2 = 0)",
        "select sum(n * m) from (select count(*) over (partition by utid) as n, count(*) over () as m from sched)",
        "select sum(n) from (select row_number() over (order by s.ts, s.id) as n, s.id from sched s join thread using (utid)) where id % 2 = 0",
        "select sum(a.utid), count(*) from (select utid from sched join thread using (utid) order by sched.ts, sched.id limit 50) a join thread using (utid)",
    ] {
        assert_eq!(compare(&mut all, sql).await, ["5"], "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_for_each_trace_is_run_as_often_as_it_is_wanted() {
    let (_scratch, tables) = several();
    let mut all = open(&tables).await;
    with_processors(&mut all, 2).await;
    let latencies = "select count(*), sum(latency_dur) from sched_latency_for_running_interval";
    let whole = ask(&mut all, latencies).await;
    assert_eq!(ask(&mut all, latencies).await, whole);
    let first = format!("select * from ({latencies}) union all select * from ({latencies})");
    assert_eq!(ask(&mut all, &first).await, [whole[0].clone(), whole[0].clone()]);
    // Not all rows are wanted.
    let some = "select latency_dur from sched_latency_for_running_interval limit 3";
    assert_eq!(ask(&mut all, some).await.len(), 3);
    let analyzed = ask(&mut all, &format!("explain analyze {latencies}")).await;
    assert!(analyzed.join("\n").contains("EachTrace: traces=5"));
    // A table that a statement makes.
    ask(&mut all, &format!("create table kept as {latencies}")).await;
    assert_eq!(ask(&mut all, "select * from kept").await, whole);
}
