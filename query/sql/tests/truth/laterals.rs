//! Table functions whose arguments are columns of tables before them.

use super::{Rows, ask, compare, generated, open};

const STATEMENTS: &[&str] = &[
    "select s.id, a.id as above, a.depth, a.name from slice s join ancestor_slice(s.id) a order by 1, 2",
    "select s.id, a.id as below from slice s, descendant_slice(s.id) a order by 1, 2",
    "select s.id, a.id as above, a.ts, a.dur, a.track_id, a.category, a.name, a.parent_id, a.thread_ts, a.thread_dur from slice s join ancestor_slice(s.id) a on a.depth = 0 order by s.id, a.id",
    "select s.id, a.id as above from slice s left join ancestor_slice(s.id) a order by 1, 2",
    "select s.id, a.id as above from slice s left join ancestor_slice(s.id) a on a.depth = 1 and s.depth > 2 order by 1, 2",
    "select s.id, a.id as above from slice s join ancestor_slice(s.parent_id) as a where s.depth = 2 and a.name is not null order by 1, 2",
    "select slice.name, count() as n from slice join descendant_slice(slice.id) as inside where slice.depth = 0 group by slice.name order by n desc, 1",
    "select id, (select count() from descendant_slice(slice.id)) as n from slice order by id",
    "select id, (select name from ancestor_slice(slice.id) where depth = 0) as root from slice order by id",
    "select id, (select max(a.dur) from ancestor_slice(slice.id) a where a.dur > 0) as longest from slice order by id",
    "select id from slice where exists (select 1 from descendant_slice(slice.id) d where d.dur > 0) order by id",
    "select id from slice where not exists (select 1 from ancestor_slice(slice.id)) order by id",
    "select id from slice where (select count() from descendant_slice(slice.id)) > 1 order by id",
    "select s.id, f.slice_out, f.slice_in from slice s join following_flow(s.id) f order by 1, 2, 3",
    "select s.id, f.slice_out, f.slice_in, f.trace_id from slice s join preceding_flow(s.id) f order by 1, 2, 3",
    "select s.id, f.slice_out, f.slice_in from slice s, directly_connected_flow(s.id) f order by 1, 2, 3",
    "select s.id, (select count() from following_flow(s.id)) as after, (select count() from preceding_flow(s.id)) as before from slice s order by 1",
    "select count() as n from slice s left join directly_connected_flow(s.id) f on f.slice_out = s.id",
    "select id, ts, dur, name from ancestor_slice((select max(id) from slice where depth = 2)) order by id",
    "select id, name from descendant_slice((select min(parent_id) from slice)) order by id",
    "select s.id, count(a.id) as n, sum(a.depth) as depths from slice s join ancestor_slice_by_stack(s.stack_id) a group by s.id order by s.id",
    "select id from ancestor_slice_by_stack((select stack_id from slice where depth = 2 order by id limit 1)) order by id",
    "select a.id, b.id as up, c.id as down from slice a join ancestor_slice(a.id) b join descendant_slice(b.id) c where a.depth = 1 and a.id < 200 order by 1, 2, 3",
    "select depth, ancestor_slice.id as above from (select id as one from slice where depth = 2) join ancestor_slice(one) order by 1, 2",
    "select s.id from slice s where s.id in (select a.parent_id from ancestor_slice(s.id) a) or s.depth = 2 order by 1",
    "select (select count() from ancestor_slice(s.id) a join thread on thread.utid = a.depth) as n, id from slice s order by id",
    "with chosen as (select id from slice where name is not null) select chosen.id, a.depth from chosen join ancestor_slice(chosen.id) a order by 1, 2",
    "create perfetto function above(x LONG) returns table(id LONG, depth LONG) as select id, depth from ancestor_slice($x);
        select s.id, a.id as above, a.depth from slice s join above(s.id) a order by 1, 2",
    "create perfetto function runs(u LONG) returns table(ts TIMESTAMP, cpu LONG) as select ts, cpu from sched where utid = $u;
        select name, ts, r.cpu from thread join runs(thread.utid) r order by ts, 3, 1",
    "create perfetto function runs(u LONG) returns table(ts TIMESTAMP, cpu LONG) as select ts, cpu from sched where utid = $u;
        select utid, (select max(ts) from runs(thread.utid)) as last, (select count() from runs(thread.utid)) as n from thread order by utid",
    "create perfetto function depth_above(x LONG) returns LONG as select count() from ancestor_slice($x); select id, depth_above(id) as n from slice order by id",
];

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_columns_have_the_trace_processors_rows() {
    compare(STATEMENTS, Rows::Needed).await;
}

/// A function of a column below a join that keeps rows, below a window and below an aggregate.
const NESTED: &[&str] = &[
    "select id, (select count(t.utid) from descendant_slice(slice.id) d left join thread t on t.utid = d.depth) as n from slice order by id",
    "select id, (select group_concat(place) from (select lag(d.id, 1, -1) over (order by d.id) as place from descendant_slice(slice.id) d order by d.id)) as n from slice order by id",
    "select id, (select max(least) from (select min(d.dur) over (partition by d.depth) as least from descendant_slice(slice.id) d)) as n from slice order by id",
    "select id, (select max(place) from (select row_number() over (order by d.ts, d.id) as place from descendant_slice(slice.id) d)) as n from slice order by id",
    "select id, (select sum(n) from (select depth, count() as n from descendant_slice(slice.id) group by depth)) as n from slice order by id",
    "select id from slice where exists (select 1 from ancestor_slice(slice.id) a left join thread t on t.utid = a.depth) order by id",
    "select s.id, n from slice s left join (select slice.id, count() as n from slice join ancestor_slice(slice.id) a group by slice.id) c on c.id = s.id order by s.id",
    // Windows of queries that depend on the one around by themselves.
    "select s.id, (select max(x) from (select rank() over (order by b.ts, b.id) as x from slice b where b.depth = s.depth)) as r from slice s order by s.id",
    "select s.id from slice s where s.id in (select first_value(b.id) over (order by b.ts, b.id) from slice b where b.depth = s.depth) order by s.id",
    "create perfetto function ranks(d LONG) returns LONG as select max(x) from (select rank() over (order by b.ts, b.id) as x from slice b where b.depth = $d); select id, ranks(depth) as r from slice order by id",
];

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_columns_below_other_operators() {
    compare(NESTED, Rows::Needed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_asked_for_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    for sql in [
        "select count(*) from slice s join ancestor_slice(s.id) a where s.name = 'x'",
        "select id, (select count(*) from descendant_slice(s.id)) from slice s where depth = 3",
        "select count(*) from ancestor_slice(3)",
    ] {
        let plan = ask(&mut database, &format!("explain {sql}")).await.join("\n");
        let (_, reached) = plan.split_once("Reached:").unwrap();
        let reached = &reached[..reached.find("\\n").unwrap_or(reached.len())];
        assert!(reached.contains("of:"), "{sql}: {plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_joined_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    for (sql, message) in [
        (
            "select * from ancestor_slice(id)",
            "`id` is no number, and no column of a table before the call",
        ),
        (
            "select * from ancestor_slice(1, 2)",
            "ancestor_slice takes one id",
        ),
        (
            "select * from slice s join ancestor_slice(s.id) a using (track_id)",
            "write ON with a condition instead of USING",
        ),
        (
            "select id, (select count(d.id) from thread t left join descendant_slice(slice.id) d on t.utid = d.depth) as n from slice",
            "depends on its columns in a way that cannot be planned",
        ),
        (
            "select id, (select max(place) from (select rank() over (order by d.id) as place from descendant_slice(slice.id) d where d.ts > slice.ts)) as n from slice",
            "depends on its columns in a way that cannot be planned",
        ),
        (
            "select s.id, (select max(x) from (select rank() over (order by b.ts) as x from slice b where b.depth > s.depth)) as r from slice s",
            "depends on its columns in a way that cannot be planned",
        ),
        (
            "create perfetto function f(x LONG) returns table(y LONG) as select utid as y from thread where utid = $x; select * from f(utid)",
            "`utid` is no value, and no column of a table before the call",
        ),
    ] {
        let error = super::error_of(&mut database, sql).await;
        assert!(error.contains(message), "{sql}: {error}");
    }
}
