//! Views on the tables: those of the trace processor that are plain SQL, from its prelude and its standard library.
//!
//! Columns have names of their own where ClickHouse would keep that of the table. [`Database`](crate::Database) registers a view when a statement names it. A
//! view may use tables, functions, and views before it in [`VIEWS`].

use ferretto_tables::PARTITIONS;

use crate::many::Traces;

/// A view.
#[derive(Debug)]
pub struct View {
    /// Its name, which is the trace processor's.
    pub name: &'static str,
    /// What a row is, as one sentence.
    pub about: &'static str,
    /// Its query. `{x}` stands where the columns `date`, `machine` and `trace` of `x` belong if there are many traces, and `{}` where they need no name before
    /// them; `{x.}` gives them no name of their own. `{x=y}` is the condition that those of `x` are those of `y`: ids alone tell traces apart, but a condition on the view's columns reaches the files
    /// of all its tables only through joins and windows that have these columns.
    sql: &'static str,
}

impl View {
    /// Returns its query.
    pub fn sql(&self, traces: Traces) -> String {
        let mut sql = String::new();
        let mut rest = self.sql;
        while let Some((before, (of, after))) = rest
            .split_once('{')
            .and_then(|(before, after)| Some((before, after.split_once('}')?)))
        {
            sql += before;
            if traces == Traces::Many {
                sql.extend(PARTITIONS.map(|column| match (of, of.split_once('=')) {
                    ("", _) => format!(", {column}"),
                    (of, _) if of.ends_with('.') => format!(", {of}{column}"),
                    (_, Some((one, other))) => format!(" and {one}.{column} = {other}.{column}"),
                    // ClickHouse would keep the name before the dot.
                    (of, None) => format!(", {of}.{column} as {column}"),
                }));
            }
            rest = after;
        }
        sql + rest
    }
}

const fn view(name: &'static str, about: &'static str, sql: &'static str) -> View {
    View { name, about, sql }
}

/// All views.
pub const VIEWS: &[View] = &[
    view("sched", "The same as `sched_slice`, with the end.", "select *, ts + dur as ts_end from sched_slice"),
    view("slices", "The same as `slice`.", "select * from slice"),
    view("instant", "A slice without a duration.", "select ts, track_id, name, arg_set_id{} from slice where dur = 0"),
    view("counters", "A value of a counter, with the name of its track.", "select v.*, t.name as name from counter v join counter_track t on v.track_id = t.id{v=t}"),
    view(
        "thread_slice",
        "A slice of a thread, with the names of thread and process.",
        "select slice.id as id, slice.ts as ts, slice.dur as dur, slice.category as category, slice.name as name, slice.track_id as track_id,
            thread_track.name as track_name, thread.name as thread_name, thread.utid as utid, thread.tid as tid, thread.is_main_thread as is_main_thread,
            process.name as process_name, process.upid as upid, process.pid as pid, slice.depth as depth, slice.parent_id as parent_id,
            slice.arg_set_id as arg_set_id, slice.thread_ts as thread_ts, slice.thread_dur as thread_dur{slice}
        from slice join thread_track on slice.track_id = thread_track.id{slice=thread_track} join thread on thread_track.utid = thread.utid{slice=thread}
            left join process on thread.upid = process.upid{slice=process}",
    ),
    view(
        "process_slice",
        "A slice of a process, with the name of the process.",
        "select slice.id as id, slice.ts as ts, slice.dur as dur, slice.category as category, slice.name as name, slice.track_id as track_id,
            process_track.name as track_name, process.name as process_name, process.upid as upid, process.pid as pid, slice.depth as depth,
            slice.parent_id as parent_id, slice.arg_set_id as arg_set_id, slice.thread_ts as thread_ts, slice.thread_dur as thread_dur{slice}
        from slice join process_track on slice.track_id = process_track.id{slice=process_track}
            join process on process_track.upid = process.upid{slice=process}",
    ),
    view(
        "thread_or_process_slice",
        "A slice of a thread or of a process.",
        "select id, ts, dur, category, name, track_id, track_name, thread_name, utid, tid, process_name, upid, pid, depth, parent_id, arg_set_id{}
        from thread_slice
        union all
        select id, ts, dur, category, name, track_id, track_name, null as thread_name, null as utid, null as tid, process_name, upid, pid, depth, parent_id,
            arg_set_id{}
        from process_slice",
    ),
    view(
        "sched_with_thread_process",
        "A time that a thread ran, with the names of thread and process.",
        "select sched_slice.id as id, sched_slice.ts as ts, sched_slice.dur as dur, thread.utid as utid, thread.upid as upid, thread.name as thread_name,
            process.name as process_name, sched_slice.cpu as cpu, sched_slice.end_state as end_state, sched_slice.priority as priority{sched_slice}
        from sched_slice join thread on sched_slice.utid = thread.utid{sched_slice=thread}
            left join process on thread.upid = process.upid{sched_slice=process}",
    ),
    view(
        "sched_latency_for_running_interval",
        "For each time that a thread ran, how long it had been runnable before.",
        "select running.id as thread_state_id, sched_slice.id as sched_id, running.utid as utid, before.id as runnable_latency_id, before.dur as latency_dur{running}
        from (
            select id, utid, ts, dur, state, max(case when state != 'Running' then id end) over (partition by utid{} order by id) as before_id{}
            from thread_state where state in ('R', 'R+', 'Running') and dur != -1) as running
        join thread_state as before on running.before_id = before.id and running.utid = before.utid{running=before}
        join sched_slice on running.utid = sched_slice.utid and running.ts = sched_slice.ts and running.dur = sched_slice.dur{running=sched_slice}
        where running.state = 'Running'",
    ),
    view(
        "cpu_frequency_counters",
        "The frequency of a CPU from a time on, in kHz; the last one of each CPU lasts to the end of the trace. Of a run of one frequency, the first two rows are there.",
        "select id, track_id, ts, coalesce(lead(ts) over (partition by track_id{} order by ts, id), end_ts) - ts as dur, cast(value as bigint) as freq,
            cpu + track_id - track_id % 1000000000000 as ucpu, cpu{}
        from (
            select counter.id as id, track_id, ts, value, cpu, end_ts, lag(value, 1) over (partition by track_id{counter.} order by ts, counter.id) as earlier,
                lag(value, 2) over (partition by track_id{counter.} order by ts, counter.id) as before_that{counter}
            from counter join cpu_counter_track on counter.track_id = cpu_counter_track.id{counter=cpu_counter_track}
                join trace_bounds on true{counter=trace_bounds} where cpu_counter_track.name = 'cpufreq')
        where earlier is null or before_that is null or value != earlier or value != before_that",
    ),
];

/// Returns the view of this name.
pub(crate) fn find(name: &str) -> Option<&'static View> {
    VIEWS.iter().find(|view| view.name == name)
}
