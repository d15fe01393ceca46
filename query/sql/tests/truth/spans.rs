//! The virtual tables of `SPAN_JOIN` and its kin, compared with the trace processor's.

use super::{ask, error_of, generated, open, recorded, tpq};

/// What is joined: two queries, how each is partitioned, and the order of the rows.
const JOINS: &[[&str; 5]] = &[
    // Some partitions are on one side only.
    [
        "select ts, dur, utid, id as sched_id from sched where id % 3 != 0",
        "select ts, dur, utid, state, id as state_id from thread_state where utid % 5 != 0",
        "partitioned utid",
        "PARTITIONED utid",
        "utid, ts, dur, sched_id, state_id",
    ],
    // Without partitions, and with those of one side.
    [
        "select ts, dur, id as one from sched where cpu = 0 and id % 3 = 0",
        "select ts, dur, id as other from sched where cpu = 0 and id % 4 = 0",
        "",
        "",
        "ts, dur, one, other",
    ],
    [
        "select ts, dur, cpu, id as one from sched where id % 3 != 0",
        "select ts, dur, id as other from sched where cpu = 0 and id % 4 = 0",
        "partitioned cpu",
        "",
        "cpu, ts, dur, one, other",
    ],
    [
        "select ts, dur, id as other from sched where cpu = 0 and id % 4 = 0",
        "select ts, dur, cpu, id as one from sched where id % 3 != 0",
        "",
        "partitioned cpu",
        "cpu, ts, dur, one, other",
    ],
    // One side has no rows.
    [
        "select ts, dur, cpu, id as one from sched",
        "select ts, dur, id as other from sched where id < 0",
        "partitioned cpu",
        "",
        "cpu, ts, dur, one, other",
    ],
    [
        "select ts, dur, id as other from sched where id < 0",
        "select ts, dur, cpu, id as one from sched",
        "",
        "partitioned cpu",
        "cpu, ts, dur, one, other",
    ],
    [
        "select ts, dur, id as one from sched where cpu = 0",
        "select ts, dur, id as other from sched where id < 0",
        "",
        "",
        "ts, dur, one, other",
    ],
    // Moments: no durations on one side, and a last one without.
    [
        "select ts, utid, min(id) as sched_id from sched group by ts, utid",
        "select ts, dur, utid, state, id as state_id from thread_state where dur != 0",
        "partitioned utid",
        "partitioned utid",
        "utid, ts, dur, sched_id, state_id",
    ],
    [
        "select ts, dur, cpu, utid from sched where dur > 0",
        "select distinct ts, lead(ts) over (partition by cpu order by ts) - ts as dur, cpu, id % 7 as freq from sched where id % 2 = 0 and dur > 0",
        "partitioned cpu",
        "partitioned cpu",
        "cpu, ts, dur, utid, freq",
    ],
];

#[tokio::test(flavor = "multi_thread")]
async fn spans_are_joined_as_the_trace_processor_joins_them() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut statements = Vec::new();
    for (place, [a, b, of_a, of_b, order]) in JOINS.iter().enumerate() {
        for kind in ["SPAN_JOIN", "span_left_join", "SPAN_OUTER_JOIN"] {
            let name = format!("{kind}_{place}");
            statements.push(format!(
                "create view a_{name} as {a}; create view b_{name} as {b};
                create virtual table {name} using {kind}(a_{name} {of_a}, b_{name} {of_b});
                select * from {name} order by {order} limit 200"
            ));
            statements.push(format!(
                "select count() as n, sum(dur) as dur, sum(ts % 1000003) as ts, sum((ts % 1009) * (dur % 1013)) as both from {name}"
            ));
        }
    }
    let mut rows = vec![0; statements.len()];
    for trace in [generated(folder.path(), 3), recorded()].concat() {
        let mut database = open(&trace).await;
        let theirs = tpq::ask(&trace, &statements).unwrap();
        for ((sql, theirs), rows) in statements.iter().zip(theirs).zip(&mut rows) {
            assert_eq!(
                ask(&mut database, sql).await,
                theirs,
                "{sql} on {}",
                trace.display()
            );
            *rows += theirs.len();
        }
    }
    // Where one side has no rows, an inner join has none.
    let without = rows.iter().step_by(2).filter(|rows| **rows == 0).count();
    assert!(without <= 5, "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_come_in_the_trace_processors_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut database = open(&generated(folder.path(), 1)[0]).await;
    let sql = "create view a as select id as one, cpu, dur, ts from sched; create view b as select utid, ts, dur, cpu from sched;
        create virtual table x using span_join(a partitioned cpu, b partitioned cpu);
        create virtual table if not exists x using span_join(a, a);
        select string_agg(column_name, ' ' order by ordinal_position) from information_schema.columns where table_name = 'x'";
    assert_eq!(ask(&mut database, sql).await, ["ts dur cpu one utid"]);
    let again = "drop table x; create virtual table x using span_join(b partitioned cpu, a partitioned cpu); select count(*) > 0 from x";
    assert_eq!(ask(&mut database, again).await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_virtual_tables_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut database = open(&generated(folder.path(), 1)[0]).await;
    ask(
        &mut database,
        "create view a as select ts, dur, cpu, id as one from sched; create view b as select ts, dur, cpu, id as other from sched;
        create view moments as select ts from sched; create virtual table taken using span_join(b partitioned cpu, a partitioned cpu); select 1",
    )
    .await;
    for (sql, message) in [
        (
            "create virtual table x using fts5(a)",
            "there are no virtual tables of `fts5`",
        ),
        (
            "create virtual table x using span_join",
            "this makes no virtual table",
        ),
        ("create virtual table x using span_join(a)", "joins two tables"),
        (
            "create virtual table x using span_join((select 1), b)",
            "with names of tables or views",
        ),
        (
            "create virtual table x using span_join(a partitioned cpu, b partitioned other)",
            "`a` is partitioned by `cpu` and `b` by `other`",
        ),
        (
            "create virtual table x using span_join(a, nothing)",
            "table 'nothing' not found",
        ),
        (
            "create virtual table x using span_join(a, b)",
            "`a` and `b` both have the column `cpu`",
        ),
        (
            "create virtual table x using span_join(a partitioned cpu, b)",
            "`b` has the column `cpu` too, by which only `a` is partitioned",
        ),
        (
            "create virtual table x using span_join(a partitioned cpu, moments partitioned cpu)",
            "`moments` has no column `cpu`; it has ts",
        ),
        (
            "create virtual table x using span_join(thread, b)",
            "`thread` has no column `ts`",
        ),
        (
            "create virtual table x using span_join(moments, moments)",
            "no column `dur`, and `moments` neither",
        ),
        (
            "create virtual table taken using span_join(a partitioned cpu, b partitioned cpu)",
            "`taken` exists; DROP TABLE taken",
        ),
    ] {
        let error = error_of(&mut database, sql).await;
        assert!(error.contains(message), "{sql}: {error}");
    }
}
