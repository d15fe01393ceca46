//! The trace processor's SQL where it differs from DataFusion's: functions, macros, conditions that are numbers, SQLite's functions.

use super::{ask, generated, open, tpq};

/// Statements whose answers are the trace processor's. Each has an order, or one row.
const STATEMENTS: &[&str] = &[
    "select name, tid from thread where is_main_thread order by tid, utid",
    "select count() from thread where not is_main_thread and utid",
    "select count() from thread where utid - 3 or upid is null",
    "select case when utid then 'some' else 'none' end as kind from thread order by utid limit 3",
    "select utid, sum(dur > 1000) as longer, avg(dur > 1000) as share, max(end_state = 'S') as slept from sched group by utid order by utid",
    "select sum(is_main_thread = 1) + (3 > 2) as sum, 1 = (2 > 1) as same from thread",
    "select a.utid from thread a join thread b on b.is_main_thread where a.utid = b.utid order by 1",
    "select count() from thread where name is 'swapper' or upid is not null and name is not 'x'",
    "select count() from thread where upid is 1 or tid is null",
    "select count() from thread where name like 'THREAD%' or name like 'Sw%'",
    "select utid from thread order by name collate nocase, utid",
    "select iif(utid > 2, 'many', 'few') as kind, iif(utid > 3, 1) as value from thread order by utid limit 5",
    "select total(dur) as whole, total(utid) as sum from sched where dur > 0",
    "select min(utid, 2) as least, max(utid, 3, 1) as most, max(utid, null) as none from thread order by utid limit 6",
    "select group_concat(tid) as plain, group_concat(tid, '-') as dashed from (select tid from thread order by tid limit 5)",
    // The name is the same in each group.
    "select thread.utid, name, tid, count(), sum(dur) as total from sched join thread using (utid) group by thread.utid order by thread.utid",
    "select upid is null as free, 'x' || count() as n from thread group by 1 order by 1",
    "select utid as u, utid + 1 as next, count() from sched group by u order by u",
    // The row of the minimum or maximum, which is one only.
    "select utid, ts, max(id) as last, end_state from sched group by utid order by utid",
    "select utid, ts - 1 as before, min(id) as first, cpu, coalesce(end_state, 'none') as state from sched group by utid order by utid",
    "select ts, utid, max(id) as last from sched",
    "select utid, count() as n from sched group by utid having n > 3 order by n desc, utid",
    "select cpu, sum(dur), rank() over (order by sum(dur)) as place from sched group by cpu order by cpu",
    "select trace_start() as start, trace_end() as end, trace_dur() as dur",
    "select start_ts, end_ts from trace_bounds",
    "select (ts - trace_start()) / 1000 as at from sched where ts < trace_start() + trace_dur() / 2 order by ts limit 5",
    "select percentile(dur, 50) as half from sched where dur > 0",
    "select count() from thread where glob('*a*', name) and name not glob '*b*' and name glob '*' || 'e' || '*'",
    "select printf('%d|%5d|%-5d|%05d|%+d|%,d|%x|%X|%o', utid, utid, utid, utid, utid, 1234567, 255, 255, 8) as text from thread order by utid limit 3",
    "select printf('%f|%.2f|%8.3f|%e|%g|%g|%g', 3.25, 2.0 / 3, 1.5, 12345.678, 0.0001, 100000, 0.5) as text",
    "select format('%s|%6s|%-6s|%.2s|%%|%c', 'abc', 'abc', 'abc', 'abc', 'xyz') as text",
    "select str_split('a:b:c', ':', utid) as part from thread order by utid limit 4",
    "select regexp_extract('slice-42', '[0-9]+') as whole, regexp_extract('slice-42', '([a-z]+)-') as part, regexp_extract('a', 'b') as none",
    "select ~5 as a, ~utid as b, substr('abcdef', -3) as c, substr('abcdef', -3, 2) as d, char(65) as e from thread where utid = 2",
    "create perfetto function f(x INT) returns INT as select $x * 2 + 1; select f(utid) as a, f(f(utid)) as b from thread where f(utid) > 3 order by utid limit 4",
    // The body has a column with the name of the caller's.
    "create perfetto function thread_name(utid LONG) returns STRING as select name from thread where utid = $utid;
        select id, thread_name(utid) as name from sched order by id limit 50",
    "create perfetto function thread_name(u JOINID(thread.id)) returns STRING as select name from thread where utid = $u;
        select thread_name(utid) as name, count() as times from sched group by name order by 2 desc, 1",
    "create perfetto function times(u LONG) returns LONG as select count() from sched where utid = $u; select utid, times(utid) as n from thread order by utid",
    "create perfetto function last(u LONG) returns LONG as select ts from sched where utid = $u order by ts desc limit 1; select utid, last(utid) as ts from thread order by utid",
    "create perfetto function is_late(u LONG) returns BOOL as select $u > 2; select count() from thread where is_late(utid) and is_late(utid) = 1",
    "create perfetto function one(x LONG) returns LONG as select $x + 1; create perfetto function two(x LONG) returns LONG as select one($x) * one(one($x));
        select two(utid) as n from thread order by utid limit 5",
    "create perfetto function of_thread(u LONG, least LONG) returns table(start TIMESTAMP, cpu LONG) as select ts as start, cpu from sched where utid = $u and dur >= $least;
        select * from of_thread(0, -1) order by start, cpu",
    "create perfetto function named(g STRING) returns LONG as select count() from thread where name glob $g; select named('*a*') as a, named('*') as b",
    "create perfetto macro known(t TableOrSubquery, c ColumnName) returns TableOrSubquery as (select $c as value from $t where $c is not null);
        select count(value) as n from known!(thread, upid)",
    "create perfetto macro twice(x Expr) returns Expr as ($x) * 2; create perfetto macro thrice(x Expr) returns Expr as twice!($x) + $x;
        select thrice!(utid + 1) as n from thread order by utid limit 3",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_processors_sql_has_its_answers() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for trace in generated(folder.path(), 2) {
        let mut database = open(&trace).await;
        // Definitions stay; each statement has its own.
        let replaced: Vec<String> = STATEMENTS
            .iter()
            .map(|sql| sql.replace("create perfetto", "create or replace perfetto"))
            .collect();
        let theirs = tpq::ask(&trace, &replaced).unwrap();
        for (sql, theirs) in replaced.iter().zip(theirs) {
            assert!(!theirs.is_empty(), "{sql} has no rows of {}", trace.display());
            assert_eq!(
                ask(&mut database, sql).await,
                theirs,
                "{sql} on {}",
                trace.display()
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_definitions_and_calls_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    for (sql, message) in [
        (
            "create perfetto function f returns INT as select 1",
            "this is no definition of a function",
        ),
        (
            "create perfetto function f(x INT) returns INT as select $y",
            "the function `f` has no argument `$y`",
        ),
        (
            "create perfetto function f(x NUMBER) returns INT as select $x",
            "the type `NUMBER`, which does not exist",
        ),
        (
            "create perfetto function f() returns TABLE as select 1",
            "a table without columns",
        ),
        (
            "create perfetto function sum(x INT) returns INT as select $x",
            "`sum` is a function of SQL",
        ),
        (
            "create perfetto function a() returns INT as select 1; create perfetto function a() returns INT as select 2",
            "the function `a` exists",
        ),
        (
            "create perfetto function b() returns INT as select 1, 2; select b()",
            "selects several columns",
        ),
        (
            "create perfetto function c() returns table(x INT) as select 1, 2; select * from c()",
            "selects 2 columns and returns 1",
        ),
        (
            "create perfetto function d(x INT) returns INT as select d($x); select d(1)",
            "the function `d` calls itself",
        ),
        (
            "create perfetto function e() returns INT as select x from nothing; select e()",
            "table 'nothing' not found",
        ),
        (
            "create perfetto function g(x INT) returns INT as select max(ts) from sched where ts < $x; select g(ts) from sched",
            "may compare them by `=` only",
        ),
        ("select unknown!(1)", "there is no macro `unknown`"),
        (
            "create perfetto macro m(x Expr) returns Expr as $x; select m!()",
            "the macro `m` takes 1 arguments, not 0",
        ),
        (
            "create perfetto macro n(x Expr) returns Expr as $y; select n!(1)",
            "the macro `n` has no argument `$y`",
        ),
        (
            "create perfetto macro o() returns Expr as o!(); select o!()",
            "use each other more than 64 levels deep",
        ),
        (
            "create perfetto macro p0(x Expr) returns Expr as $x $x $x $x $x $x $x $x $x $x $x $x $x $x $x $x; create perfetto macro p1(x Expr) returns Expr as p0!(p0!(p0!(p0!(p0!(p0!($x)))))); select p1!(1)",
            "words",
        ),
        (
            "select count() from thread where name",
            "a condition is a comparison or a number",
        ),
        (
            "select name collate french from thread",
            "COLLATE french does not exist",
        ),
        ("select str_split('a')", "str_split takes 3 values, not 1"),
    ] {
        let error = super::error_of(&mut database, sql).await;
        assert!(error.contains(message), "{sql}: {error}");
    }
}
