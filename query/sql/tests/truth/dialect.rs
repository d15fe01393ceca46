//! The trace processor's SQL where it differs from DataFusion's: functions, macros, conditions that are numbers, SQLite's functions.

use super::{Rows, compare, generated, open};

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
    // A name that `SELECT` gives is known unless a column has it; a text may be in double quotes.
    "select dur / 1000 as us, utid from sched where us >= 0 order by ts, id limit 5",
    "select name as dur, utid as tid from thread where tid > 2 and dur is not null order by utid limit 5",
    "select utid % 4 as bucket, count() as n from sched where bucket != 2 group by bucket having n > 1 and bucket < 3 order by bucket",
    "select upper(name) as loud from thread where lower(loud) like 'thread%' order by utid limit 3",
    "select n from (select utid as n from thread where n > 1) where n < 5 order by n",
    "select count() as n from thread where name != \"swapper\" and name like \"%a%\" and name not glob \"x*\"",
    "select \"text\" as x, upper(\"text\") || \"y\" as y, \"name\" is name as same from thread order by utid limit 2",
    // Definitions.
    "create view if not exists of_one as select 1 as x; create view if not exists of_one as select 2 as x; select x from of_one",
    "create table if not exists of_two as select 2 as x; create table if not exists of_two as select 3 as x; select x from of_two",
    "drop view if exists none_such; create view none_such as select 3 as x; select x from none_such",
    "create or replace perfetto table typed(x LONG, y STRING) as select 1 as x, 'a' as y; select y, x from typed",
    "create or replace perfetto view typed_view(x LONG, utid JOINID(thread.id)) as select 1 as x, utid from thread; select x, utid from typed_view order by utid limit 2",
    "create or replace perfetto table with_index as select utid, name from thread; create or replace perfetto index by_utid on with_index(utid, name); select count() as n from with_index where utid > 1",
    // Queries within queries.
    "select count() as n from thread where exists (select 1 from sched where sched.utid = thread.utid)",
    "select count() as n from thread where not exists (select 1 from sched where sched.utid = thread.utid and dur > 1000)",
    "select utid, exists (select 1 from sched where sched.utid = thread.utid) as ran, not exists(select max(utid) from thread where 0) as none from thread order by utid",
    "select case when exists (select 1 from sched where dur > 100 limit 1) then 'some' else 'none' end as x, exists(select * from sched where 0) + 1 as y",
    "select utid, (select dur from sched where sched.utid = thread.utid order by ts desc, id desc limit 1) as last from thread order by utid",
    "select ftrace_event.id, (select display_value from args where args.arg_set_id = ftrace_event.arg_set_id and key = 'prev_comm') as comm from ftrace_event where name = 'sched_switch' order by 1 limit 20",
    "select ftrace_event.id, extract_arg(arg_set_id, \"prev_pid\") as pid from ftrace_event where name = 'sched_switch' order by 1 limit 20",
    "with recursive n(x) as (select 1 union all select x + 1 from n where x < 5) select sum(x) as sum from n",
    // Clocks and units.
    "select to_realtime(ts) as real, to_monotonic(ts) as monotonic, abs_time_str(ts) as text, to_realtime(null) as none from sched order by ts, id limit 200",
    "include perfetto module time.conversion; select time_to_ms(dur * 1000) as ms, time_to_us(dur) as us, time_to_min(ts) as m, time_from_us(utid) as a, time_from_hours(2) as b from sched order by ts, id limit 5",
    "include perfetto module sched.with_context; select * from sched_with_thread_process order by id limit 20",
    "select * from sched order by id limit 20",
    // Numbers and texts.
    "select utid / 0 as a, utid % (utid - 1) as b, 1.5 / (utid - utid) as c, 7 / 2 as d, avg(dur) / count() as e from sched group by utid order by utid",
    "select name from thread where name regexp '^t' and name not regexp '[5-9]$' order by utid",
    "select glob('a*', 'abc') + like('A%', 'abc') as n, ifnull(null, 2) as two, coalesce(null, nullif(1, 1), 3) as three",
    "select cast(dur / 1e3 as INT64) as a, cast('7x' as uint32) as b, cast(12.7 as tinyint) as c from sched order by id limit 5",
    "select 0x1F + 1 as a, 0x10 as b, 0xffffffffffffffff as c, utid & 0xf as d from sched where utid != 0x0 order by id limit 5",
    // Columns of one name.
    "select *, ts from sched order by id limit 5",
    "select dur, sched.*, sched.ts, utid from sched order by id limit 5",
    "select ts, ts, count(), count(), 1, 1, dur as d, utid as d from sched group by ts, dur, utid order by ts, utid limit 5",
    "select d, ts from (select *, dur as d, dur from sched) where dur > 1000 order by id limit 5",
    "select thread.name, process.name, thread.* from thread join process using (upid) order by utid limit 5",
    // What is often asked.
    "select process.name as process, thread.name as thread, count() as n from sched_slice left join thread using (utid) left join process using (upid) group by 1, 2 order by n desc, 1, 2",
    "select ts, ts - lag(ts) over (partition by cpu order by ts, id) as since, lead(ts) over w - ts as until from sched window w as (partition by cpu order by ts, id) order by id limit 20",
    "select thread.name as name, round(sum(dur) / 1e3, 2) as us from sched join thread using (utid) where dur > 0 and not is_idle group by thread.utid order by us desc, thread.utid limit 5",
    "select sum(dur) * 100.0 / (select sum(dur) from sched where dur > 0) as percent, cpu from sched where dur > 0 group by cpu order by cpu",
    "select * from (select utid, dur, row_number() over (partition by utid order by dur desc, id) as place from sched) where place = 1 order by utid",
    "select state, count() filter (where dur > 1000) as longer, max(dur) / 1e6 as ms from thread_state where state != \"Running\" group by state order by state",
    "select iif(dur < 0, trace_end() - ts, dur) as dur from sched order by ts desc, id desc limit 5",
    "with busy as (select utid, sum(dur) as total from sched where dur > 0 group by utid), named as (select busy.*, name from busy join thread using (utid)) select name, total from named where total > (select avg(total) from busy) order by total desc, utid",
    "select a.utid, b.utid as other from sched a join sched b on a.cpu = b.cpu and b.ts = a.ts + a.dur where a.dur > 0 order by a.id, b.id limit 20",
    "select printf('%s [%d]', name, tid) as label from thread where name is not null order by utid limit 5",
    "select cpu, group_concat(distinct end_state) is not null as has_states from sched where cpu in (0, 1, 2) group by cpu order by cpu",
    "select 'sched' as source, count() as n from sched union all select 'states', count() from thread_state order by 1",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_processors_sql_has_its_answers() {
    compare(STATEMENTS, Rows::Needed).await;
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
        (
            "include perfetto module android.startup.startups; select 1",
            "the module `android.startup.startups` is not here; there are android.memory.heap_profile.summary_tree, counters.intervals, intervals.overlap",
        ),
        (
            "include perfetto module slices.*",
            "the module `slices.*` is not here",
        ),
        (
            "select \"name\" from sched where nothing = \"text\"",
            "No field named nothing",
        ),
        (
            "select utid + 1 as next, next + 1 as more from sched",
            "No field named next",
        ),
        ("select p as q, q as p from sched where p", "No field named"),
        ("select sum(dur) as total from sched where total > 1", "ggregate"),
    ] {
        let error = super::error_of(&mut database, sql).await;
        assert!(error.contains(message), "{sql}: {error}");
    }
}
