//! SQLite's functions and operators where DataFusion's differ or lack.

use std::collections::HashMap;

use super::{Rows, ask, compare, error_of, generated, open, tpq};

const STATEMENTS: &[&str] = &[
    "select typeof(1) as a, typeof(1.5) as b, typeof('x') as c, typeof(null) as d, typeof(1 = 1) as e, typeof(sum(1)) as f, typeof(total(1)) as g",
    "select typeof(name) as kind, typeof(upid) as other, count() as n from thread group by 1, 2 order by 1, 2",
    "select hex('abc') as a, hex(12) as b, hex(null) as c, hex('é') as d, hex(name) as e from thread order by utid limit 3",
    "select quote('a''b') as a, quote(1.5) as b, quote(null) as c, quote(3) as d, quote(name) as e, quote(utid) as f from thread order by utid limit 3",
    "select unicode('é') as a, unicode('abc') as b, unicode('') as c, char(65, 66, 233) as d, char(97 + utid) as e from thread where utid < 3 order by utid",
    "select date(1700000000, 'unixepoch') as a, time(1700000000, 'unixepoch') as b, datetime(1700000000, 'unixepoch') as c, julianday('2000-01-01') as d, unixepoch('2000-01-01 12:00') as e",
    "select strftime('%Y-%m-%d %H:%M:%f %j %w %s %%', '2024-02-29 23:59:59.125') as a, strftime('%J', '2000-01-01') as b, strftime('%e|%I|%p|%T|%R|%F|%u', '2024-03-05 15:06:07') as c",
    "select datetime('2024-01-31', '+1 month') as a, date('2024-02-30') as b, datetime('2024-05-17 10:00:00', 'start of month', '-1 day') as c, date('2024-05-17', 'weekday 0') as d, time('12:34:56.789') as e",
    "select datetime('2024-05-17T10:00:00Z') as a, datetime('2024-05-17 10:00:00+02:30') as b, date('nonsense') as c, date(null) as d, datetime(2451545.25) as e, datetime('2024-05-17', '-36.5 hours', '+3 years') as f",
    "select datetime(ts / 1000000000, 'unixepoch') as at, count() as n from sched group by 1 order by 1 limit 5",
    "select json_extract('{\"a\":[1,2.5,\"x\",null,{\"b\":[1],\"z\":true}]}', '$.a[2]') as a, json_extract('{\"a\": 1}', '$.b') as b, json_extract('{\"a\": [1, {\"b\": 2, \"z\": 1}]}', '$.a[#-1]') as c",
    "select json_extract('{\"a\":{\"b c\":true}}', '$.a.\"b c\"') as a, json_extract('[null]', '$[0]') as b",
    "select substr('hello', -3, 2) as a, substr('hello', 0) as b, substr('hello', 0, 3) as c, substr('hello', 2, -1) as d, substr('hello', -10, 7) as e, substr(name, utid) as f, substr(name, -utid, 2) as g, substr(name, 2, 3) as h from thread order by utid limit 5",
    "select instr('hello', 'l') as a, instr('hello', 'z') as b, replace('aaa', 'a', 'b') as c, nullif(1, 1) as d, trim('  x ') as e, ltrim('xxa', 'x') as f, rtrim('axx', 'x') as g, trim('xax', 'x') as h",
    "select round(2.5) as a, round(2.567, 2) as b, round(434151.225, 2) as k, round(0.125, 2) as l, round(-7.5) as m, round(sum(dur) / 1e4, 3) as n, abs(-3) as c, sign(-2) as d, length('é') as e, length(12) as f, 7 / 2 as g, -7 / 2 as h, -7 % 3 as i, lower('ABC') as j from sched",
    "select printf('%q|%Q|%w|%Q', 'it''s', 'it''s', 'a\"b', null) as a, printf('%d|%d|%d|%.2f', 'abc', 3.9, '12x', '1.5') as b, printf('%s|%s|%s', null, 12.5, 3) as c, printf('%p|%u', 255, 9) as d",
    "select 5 || 'x' as a, 1 || 2 as b, 'a' || null as c, cast(12 as text) as d, cast(3.99 as int) as e, 5 << 2 as f, 5 >> 1 as g, 5 & 4 as h, 5 | 2 as i",
    "select total(tid) as a, total(null) as b, sum(null) as c, group_concat(tid, '+') as d from (select tid from thread where tid < 0)",
    "select group_concat(tid, '+' order by tid desc) as a, string_agg(tid, '-' order by tid) as b from thread",
    "select ifnull(null, 'x') as a, iif(1, 'a', 'b') as b, iif(0, 'a') as c, coalesce(null, 2) as d, if(1 > 2, 'a', 'b') as e",
    "select sqrt(16) as a, pow(2, 3) as b, power(2, 3) as c, floor(1.5) as d, ceil(1.2) as e, log2(8) as f, pi() as g, mod(7, 3) as h, mod(utid + 0.5, 2) as i from thread order by utid limit 3",
    "select sign(-2) as a, sign(0.5) as b, sign(0) as c",
    // Text and numbers.
    "select cast('12abc' as int) as a, cast('abc' as int) as b, cast('1.5x' as real) as c, cast('-7' as integer) as d, cast(null as int) as e, cast(3.99 as int) as f, cast('3.9' as int) as g",
    "select cast(name as int) as a, cast(name as double) as b, cast(tid as int) as c from thread order by utid limit 5",
    "select sum(cast(str_split(name, ' ', 1) as int)) as n from thread",
    "select count() as n from thread where name > 5",
    "select count() as n from thread where utid = '3' or '2' > tid",
    "select cast('--5' as int) as a, cast('+-5' as int) as b, cast('-9223372036854775808' as int) as c, cast('9223372036854775808' as int) as d, cast('+5' as int) as e, cast('--5' as real) as f, cast('1e' as real) as g, cast('.5' as real) as h",
    "select printf('%s|%s|%s|%s', 0.00001, 0.0001, 1e14, 1e15) as a",
    // A text that is no number is greater than every number.
    "select count() as n from thread where upid != 'systemd'",
    "select count() as n from thread where utid < 'x' and not utid >= 'x' and utid < '1x' and utid > -1",
    "select count(upid) as some, count(upid < 'x') as compared, sum(upid > '') as greater, sum('nan' > upid) as less, count(upid = 'x') as same from thread",
    "select 'x' > 5 as a, '5' = 5 as b, 5 < '5' as c, null < 'x' as d, 5.5 > 'inf' as e",
    "select utid, utid = ' 1 ' as a, utid = '1.0' as b, utid = '0x1' as c, utid >= '1e0' as d, '2' <= utid as e from thread order by utid",
    "select count() as n from sched where ts = (select cast(max(ts) as text) from sched) or ts + 1 > '1.5'",
    // Texts meet numbers only beside a column or a cast.
    "select count() as n, sum(dur + 0 > '5') as a, sum(dur + 0 < 'x') as b, sum(cast(dur + 0 as int) > '5') as c, sum(dur > '5') as d, max(dur) > '5' as e, max(cpu) = '1' as f from sched",
    "select sum(substr(name, 1, 1) > 5) as a, sum(cast(utid as text) = utid) as b, sum(cast(utid as text) = utid + 0) as c, sum(cast(utid as text) > 2) as d, sum(printf('%d', utid) = utid) as e, sum(printf('%d', utid) = utid + 0) as f, sum((select cast(max(tid) as text) from thread) >= tid) as g from thread",
    "select 0.00001 || 'x' as a, 'x' || 1e20 as b, cast(0.00001 as text) as c, cast(1e15 as text) as d, cast('a' as text) as e, cast(null as text) as f, 1.0 || 2 as g, sum(dur) || '' || avg(dur) as h, cast(avg(dur) as text) as i from sched",
    "select sum('5' in (5)) as a, sum(utid + 0 in ('1', '2')) as b, sum(utid in ('1', 'x', 3)) as c, sum(utid not in ('1', 'x')) as d, sum(name in (1, 'x')) as e, sum(utid between 'a' and 'b') as f, sum(utid not between '1' and 5) as g, sum(utid is 'x') as h, sum(utid is not 'x') as i, sum(upid is not '5') as j from thread",
    "select utid, case utid when 'x' then 1 when '2' then 2 end as a, (utid = 1) = '1' as b, (utid = 1) is 1 as c, (utid = 1) in (1) as d, utid is true as e, utid is not false as f, upid is true as g, (utid = 1) is (utid = 2) as h from thread order by utid",
    "select sign(5) = '1' as a, exists (select 1 from thread) = '1' as b, group_concat(utid < 'x') as c from (select utid from thread limit 3)",
    "select 0.00001 || 0.5 as a, (1e20) || max(utid) as b, group_concat(1e20) as c, cast(1e20 as char(5)) as d, cast(1e20 as varchar) as e from thread",
    // Digits beyond those of a number with a fraction.
    "create perfetto table large as select 1234567890123456789 as ts union all select 1234567890123456788; select ts, ts = '1234567890123456789' as a, ts < '1234567890123456789' as b, ts > '1234567890123456788.0' as c from large order by ts",
    "with large as (select 1234567890123456789 + utid as ts from thread) select count() as n from large where ts = 1234567890123456789",
    // Values of JSON in a query of their own.
    "with found as (select json_extract('{\"a\": 9, \"b\": \"x\"}', '$.a') as a, json_extract('{\"b\": 10.5}', '$.b') as b) select a > 10 as a, a < 10 as b, b = 10.5 as c, 8 < a as d from found",
    "select name, depth from (select json_extract('{\"n\": ' || utid || '}', '$.n') as depth, name from (select utid, name from thread)) where depth > 10 or depth = 2 order by cast(depth as int), name",
    "with found as (select json_extract('{\"n\": \"x' || (utid % 3) || '\"}', '$.n') as kind, utid from thread) select kind, count() as n, max(kind) as most from found group by kind order by kind",
    "with found as (select json_extract('{\"n\": ' || utid || '}', '$.n') as n, utid from thread) select a.utid, a.n > 2 as many, lag(a.n) over (order by a.utid) < 3 as few from found a join found b on a.utid = b.utid order by a.utid",
    "select x, x = 'a' as y from (select json_extract('[\"a\"]', '$[0]') as x union all select 'b' union all select 'a') order by x, y",
    "create perfetto table of_json as select json_extract('[9]', '$[0]') as x; select x < 10 as a, x > 10 as b from of_json where x is not null",
    "select json_extract('{\"z\": 1, \"a\": {\"y\": 2, \"b\": [1, {\"d\": 3, \"c\": 4}]}}', '$') as whole",
    // Modifiers of times.
    "select datetime('2024-01-31', '+1.5 months') as a, datetime('2024-01-31', '+1 month', 'floor') as b, datetime('2024-01-31', '+1 month', 'ceiling') as c, datetime('2024-02-30', 'floor') as d, datetime('2024-02-29', '+1 year', 'floor') as e, datetime('2024-01-31', '+1 month', '+1 hour', 'floor') as f, datetime('2024-02-29', '-1.5 years') as g",
    "select datetime('2024-01-15 10:00', '+01:30') as a, datetime('2024-01-15', '+0001-02-03') as b, datetime('2024-01-15', '+0001-02-03 04:05') as c, datetime('2024-03-31', '-0001-01-01') as d, datetime('2024-01-15 10:00', '-01:30:30.5', 'subsec') as e, datetime('2024-01-15', '01:00') as f, datetime('2024-01-15', '+00001-00-01') as g",
    "select time('12:34:56.789', 'subsec') as a, datetime('2024-01-15 12:34:56', 'subsecond') as b, unixepoch('2024-01-15 00:00:00.25', 'subsec') as c, typeof(unixepoch('2024-01-15', 'subsec')) as d, strftime('%s|%f', '2024-01-15 00:00:00.25', 'subsec') as e, strftime('%f', '2024-01-01 10:00:59.9999') as f, unixepoch('2024-01-15 00:00:00.75') as g",
    "select datetime('nan') as a, datetime('inf') as b, datetime(1e12) as c, datetime(-1) as d, datetime(5373484.49) as e, datetime(5373484.5) as f, date('-4713-11-24 12:00') as g, date('-4714-01-01') as h, datetime('9999-12-31', '+1 day') as i, datetime(1e12, 'unixepoch') as j",
    "select datetime('2024-01-01', 'auto') as a, datetime(1700000000, 'auto') as b, datetime('2024-01-01', 'julianday') as c, datetime(2451545, 'julianday') as d, datetime('2024-01-01', 'unixepoch') as e, datetime(5, 'auto') as f, datetime(1e13, 'auto') as g",
    "select datetime('2024-01-01 10:00:5') as a, datetime('2024-01-01 10:00+99:99') as b, datetime('2024-01-01', '9999999999999999 hours') as c, datetime('2024-01-01 10:00 +01:00 ') as d, datetime(' 2024-01-01') as e, datetime('2024-01-01', ' +1 day') as f, datetime('2024-01-01', '1 day') as g, datetime('2024-01-01', '.5 days') as h, datetime('2024-01-01', '+1day') as i, datetime('2024-01-01 10:00+2562047788015216:00') as j",
    "select date('2024-13-01') as a, date('2024-00-01') as b, time('5') as c, datetime('2024-01-01', 'weekday 1.0') as d, datetime('2024-01-01T') as e, datetime('2024-01-01  12:00') as f, datetime('2024-01-01', 'weekday 7') as g, datetime('2024-01-01', '+1 fortnight') as h, datetime('2024-1-1') as i, datetime('2024-01-01', null) as j",
    // Names in brackets.
    "select 1 as [a b], [utid] from thread order by [utid] limit 2",
    "select [thread].[utid] as x, t.[cpu] from thread join sched as t on t.[utid] = [thread].utid order by t.id limit 3",
    // Several values at once.
    "select count() as n from sched where (cpu, utid) in (select cpu, utid from sched where dur > 1000)",
    "select count() as n from sched where (cpu, utid) not in (select cpu, utid from sched where dur > 1000)",
    "select id, cpu from sched where (id, id) in (values (0, 0), (1, 1), (2, 0)) order by id",
    "select id, (cpu, utid) in (values (0, 1), (1, 2)) as x, (cpu, utid) = (0, 1) as y from sched order by id",
    "select count() as n from sched where (cpu, utid) < (1, 2) or (cpu, utid, id) >= (1, 3, 4) or (cpu, dur) != (0, 1)",
    // Conditions are numbers.
    "select utid > 2, upid is null, not utid, name like 'a%', name glob 't*', utid in (1, 2), utid between 1 and 2, true, null is null, 1 and 0 from thread order by utid",
    "select sum(busy) as n, max(busy) as any from (select dur > 1000 as busy from sched)",
    "select case when utid then utid > 2 else utid < 5 end as x, coalesce(upid > 1, utid > 3) as y from thread order by utid",
    "select dur > 1000 as busy, count() as n from sched group by busy order by busy",
    "select dur > 1000, count() as n from sched group by dur > 1000 order by 1",
    "select dur > 1000, count() as n from sched group by 1 having count() > 0 order by 1",
    "create perfetto table flags as select utid, utid > 2 as many from thread; select many, count() as n from flags where many or not many group by many order by many",
    "select x, typeof(x) as kind from (select utid = 1 as x from thread union select 7) order by x",
    // Patterns.
    "select 'a-b' glob '[a-c][-x]?' as a, 'abc' glob 'a[^b]c' as b, 'a]c' glob 'a[]]c' as c, 'ABC' glob 'abc' as d, 'a*c' glob 'a[*]c' as e",
    // `HAVING` means columns before names that `SELECT` gives.
    "select utid as cpu, count() as n from sched group by utid having n > 1 order by utid",
];

#[tokio::test(flavor = "multi_thread")]
async fn functions_and_operators_are_sqlites() {
    compare(STATEMENTS, Rows::Needed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_brackets_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    let error = error_of(&mut database, "select [nothing] from thread").await;
    assert!(error.contains("No field named"), "{error}");
    let plain = "create view bracketed as select utid as [a b] from thread; select [a b] from bracketed order by 1 limit 1";
    assert_eq!(ask(&mut database, plain).await, ["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_has_one_present_time() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    // Several batches of several queries.
    let sql = "with many as (select a.id from sched a, sched b limit 50000)
        select count(distinct now) as n, min(length(now)) as least from (select strftime('%J', 'now') as now from many union all select strftime('%J', 'NOW') from many)";
    let row = ask(&mut database, sql).await.remove(0);
    assert!(row.starts_with("1\t"), "{row}");
    let sql = "select date() = date('now') as a, time() is not null as b, datetime() = datetime('now') as c, julianday() = julianday('now') as d, unixepoch() = unixepoch('now') as e, strftime('%s') = strftime('%s', 'now') as f";
    assert_eq!(ask(&mut database, sql).await, ["1\t1\t1\t1\t1\t1"]);
    let sql = "select length(time('subsec')) as a, time('now') is not null as b, abs(unixepoch('now') - unixepoch(datetime('now'))) as c, typeof(unixepoch('subsec')) as d";
    assert_eq!(ask(&mut database, sql).await, ["12\t1\t0\treal"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_called_as_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    let sql = "select not utid, utid > 2 and upid, iif(utid, 1, 2), utid / tid, utid is 1, cast(name as int), ~utid, total(tid), name, thread.tid, trace_dur(), extract_metadata('trace_type'),
        exists (select 1 from sched), (select not utid from thread limit 1) from thread";
    let statement = database.parse(sql).unwrap().remove(0);
    let frame = database.run(statement).await.unwrap();
    let names: Vec<&str> = frame
        .schema()
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    assert_eq!(
        names[..13],
        [
            "NOT utid",
            "utid > 2 AND upid",
            "iif(utid, 1, 2)",
            "utid / tid",
            "utid IS 1",
            "CAST(name AS INTEGER)",
            "~utid",
            "total(tid)",
            "name",
            "tid",
            "trace_dur()",
            "extract_metadata('trace_type')",
            "EXISTS (SELECT 1 FROM sched)",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_as_bad_as_there() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for trace in generated(folder.path(), 2) {
        let sql = "select distinct name, severity || ' ' || source as what from stats order by name";
        let theirs = tpq::ask(&trace, &[sql.to_owned()]).unwrap().remove(0);
        let theirs: HashMap<_, _> = theirs.iter().filter_map(|row| row.split_once('\t')).collect();
        for row in ask(&mut open(&trace).await, sql).await {
            let (name, what) = row.split_once('\t').unwrap();
            if let Some(known) = theirs.get(name) {
                assert_eq!(what, *known, "{name}");
                compared += 1;
            }
        }
        let undescribed = "select name from stats where description = ''";
        assert_eq!(ask(&mut open(&trace).await, undescribed).await, [""; 0]);
    }
    assert!(compared > 5, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_text_or_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let sql = "select extract_metadata('system_name'), extract_metadata('trace_type'), extract_metadata('none'), extract_metadata('trace_time_clock_id') + 1";
    let truth =
        "select (select str_value from metadata where name = 'system_name'), 'proto', cast(null as text),
        (select int_value from metadata where name = 'trace_time_clock_id') + 1";
    let mut database = open(&trace).await;
    assert_eq!(ask(&mut database, sql).await, ask(&mut database, truth).await);
}
