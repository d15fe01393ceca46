//! Questions that people often ask of a trace, each with its query and a picture: what `ferretto report` prints.
//!
//! Each query is also the trace processor's, and a test compares the answers. Over many traces, rows about one thread, process or slice say which trace has
//! it, and rows about a CPU say which machine; rows about names count all traces together.

use crate::many::Traces;

/// A question and its query.
#[derive(Debug)]
pub struct Example {
    /// The report's name.
    pub name: &'static str,
    /// What it answers.
    pub question: &'static str,
    /// The query to one trace. Its last column is what bars show.
    pub sql: &'static str,
    /// The column that tells rows of different traces apart; empty for rows about names. [`Example::of`] adds it.
    whose: &'static str,
    /// What the last column counts.
    pub unit: Unit,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Times in ns.
    Duration,
    /// Sizes in bytes.
    Bytes,
    /// Anything else.
    Count,
}

impl Example {
    /// Returns the query to one trace or to many.
    pub fn of(&self, traces: Traces) -> String {
        if traces == Traces::One || self.whose.is_empty() {
            return self.sql.to_owned();
        }
        let mut sql = self.sql.to_owned();
        // Behind what ranks the rows, so that it only decides between equal ones.
        let end = sql.find(" limit ").unwrap_or(sql.len());
        sql.insert_str(end, &format!(", {}", self.whose));
        let name = self.whose.rsplit('.').next().unwrap_or(self.whose);
        let columns = [
            ("\ngroup by ", format!("{}, ", self.whose)),
            ("select ", format!("{} as {name}, ", self.whose)),
        ];
        for (clause, column) in columns {
            if let Some(place) = sql.find(clause) {
                sql.insert_str(place + clause.len(), &column);
            }
        }
        sql
    }
}

const fn example(
    name: &'static str,
    question: &'static str,
    unit: Unit,
    whose: &'static str,
    sql: &'static str,
) -> Example {
    Example {
        name,
        question,
        sql,
        unit,
        whose,
    }
}

/// All examples.
pub const EXAMPLES: &[Example] = &[
    example("cpu", "Which threads ran longest?", Unit::Duration, "thread.trace",
        "select thread.tid, thread.name as thread, process.name as process, sum(sched.dur) as ran
from sched join thread using (utid) left join process using (upid)
where sched.dur > 0 and thread.is_idle = 0
group by thread.utid, thread.tid, thread.name, process.name
order by ran desc, thread.utid limit 20"),
    example("cpu-processes", "Which processes ran longest?", Unit::Duration, "process.trace",
        "select process.pid, process.name as process, count(distinct utid) as threads, sum(sched.dur) as ran
from sched join thread using (utid) join process using (upid)
where sched.dur > 0 and thread.is_idle = 0
group by process.upid, process.pid, process.name
order by ran desc, process.upid limit 20"),
    example("cpu-use", "How busy was each CPU?", Unit::Duration, "sched.machine",
        "select sched.cpu, count(*) as switches, sum(case when thread.is_idle = 0 then sched.dur else 0 end) as busy
from sched join thread using (utid)
where sched.dur > 0
group by sched.cpu
order by sched.cpu"),
    example("sched-latency", "Which threads waited longest for a CPU, once they could run?", Unit::Duration, "thread.trace",
        "select thread.tid, thread.name as thread, count(*) as waits, sum(latency_dur) as total, max(latency_dur) as longest
from sched_latency_for_running_interval join thread using (utid)
where latency_dur > 0
group by thread.utid, thread.tid, thread.name
order by longest desc, thread.utid limit 20"),
    example("sched-latency-histogram", "How long do threads wait for a CPU?", Unit::Count, "",
        "select case when latency_dur < 10000 then '1: below 10 us' when latency_dur < 100000 then '2: below 100 us'
        when latency_dur < 1000000 then '3: below 1 ms' when latency_dur < 10000000 then '4: below 10 ms' else '5: longer' end as latency, count(*) as waits
from sched_latency_for_running_interval
group by 1
order by 1"),
    example("states", "In which states do threads spend their time?", Unit::Duration, "",
        "select state, count(*) as times, sum(dur) as total
from thread_state
where dur > 0
group by state
order by total desc, state"),
    example("blocked", "In which functions of the kernel do threads wait?", Unit::Duration, "",
        "select blocked_function, io_wait, count(*) as times, sum(dur) as waited
from thread_state
where dur > 0 and blocked_function is not null
group by blocked_function, io_wait
order by waited desc, blocked_function, io_wait limit 20"),
    example("io", "Which threads waited for input and output?", Unit::Duration, "thread.trace",
        "select thread.tid, thread.name as thread, count(*) as times, sum(thread_state.dur) as waited
from thread_state join thread using (utid)
where state in ('D', 'DK') and thread_state.dur > 0
group by thread.utid, thread.tid, thread.name
order by waited desc, thread.utid limit 20"),
    example("wakeups", "Who wakes whom?", Unit::Count, "",
        "select waker.name as waker, wakee.name as wakee, count(*) as wakeups
from thread_state join thread wakee on thread_state.utid = wakee.utid join thread waker on thread_state.waker_utid = waker.utid
group by waker.name, wakee.name
order by wakeups desc, waker, wakee limit 20"),
    example("migrations", "Which threads move between CPUs most?", Unit::Count, "thread.trace",
        "select thread.tid, thread.name as thread, count(*) as migrations
from (select utid, cpu, lag(cpu) over (partition by utid order by ts, id) as before from sched) as runs join thread using (utid)
where cpu != before and thread.is_idle = 0
group by thread.utid, thread.tid, thread.name
order by migrations desc, thread.utid limit 20"),
    example("slices", "Which slices took longest in total?", Unit::Duration, "",
        "select name, count(*) as times, max(dur) as longest, sum(dur) as total
from slice
where dur > 0
group by name
order by total desc, name limit 20"),
    example("slices-self", "In which slices themselves, without those within them, is the time spent?", Unit::Duration, "",
        "select slice.name, count(*) as times, sum(slice.dur - coalesce(inner_slices.dur, 0)) as self
from slice left join (select parent_id, sum(dur) as dur from slice where dur > 0 and parent_id is not null group by parent_id) as inner_slices
    on inner_slices.parent_id = slice.id
where slice.dur > 0
group by slice.name
order by self desc, slice.name limit 20"),
    example("slices-cpu", "How much processor time did the threads' slices take?", Unit::Duration, "",
        "select thread_slice.name, thread_name, count(*) as times, sum(thread_slice.dur) as total, sum(thread_dur) as ran
from thread_slice
where thread_dur is not null
group by thread_slice.name, thread_name
order by ran desc, thread_slice.name, thread_name limit 20"),
    example("longest", "Which single slices took longest?", Unit::Duration, "trace",
        "select id, name, category, depth, dur
from slice
order by dur desc, id limit 20"),
    example("flows", "Which slices do flows join?", Unit::Count, "",
        "select source.name as source, target.name as target, count(*) as flows
from flow join slice source on flow.slice_out = source.id join slice target on flow.slice_in = target.id
group by source.name, target.name
order by flows desc, source, target limit 20"),
    example("counters", "Between which values do the counters lie?", Unit::Count, "",
        "select name, min(value) as least, max(value) as greatest, count(*) as samples
from counters
group by name
order by samples desc, name limit 50"),
    example("frequencies", "At which frequencies did the CPUs run?", Unit::Duration, "machine",
        "select cpu, freq as khz, count(*) as times, sum(dur) as total
from cpu_frequency_counters
where dur > 0
group by cpu, freq
order by cpu, khz"),
    example("memory", "Which processes had the most memory?", Unit::Bytes, "process.trace",
        "select process.pid, process.name as process, cast(max(value) as bigint) as most
from counter join process_counter_track on counter.track_id = process_counter_track.id join process using (upid)
where process_counter_track.name = 'mem.rss'
group by process.upid, process.pid, process.name
order by most desc, process.upid limit 20"),
    example("processes", "Which processes began during the recording?", Unit::Count, "process.trace",
        "select process.pid, process.name as process, process.cmdline, count(*) as threads
from process join thread using (upid)
where process.start_ts is not null
group by process.upid, process.pid, process.name, process.cmdline
order by threads desc, process.upid limit 50"),
    example("syscalls", "Which system calls took longest in total?", Unit::Duration, "",
        "select slice.name, count(*) as times, max(slice.dur) as longest, sum(slice.dur) as total
from slice join thread_track on slice.track_id = thread_track.id
where slice.name glob 'sys_*' and slice.dur >= 0
group by slice.name
order by total desc, slice.name limit 20"),
    example("irq", "Which interrupts took longest in total?", Unit::Duration, "cpu_track.machine",
        "select cpu_track.cpu, cpu_track.type, slice.name, count(*) as times, max(slice.dur) as longest, sum(slice.dur) as total
from slice join cpu_track on slice.track_id = cpu_track.id
where cpu_track.type in ('cpu_irq', 'cpu_softirq') and slice.dur >= 0
group by cpu_track.cpu, cpu_track.type, slice.name
order by total desc, cpu_track.cpu, cpu_track.type, slice.name limit 20"),
    example("functions", "In which functions were most samples?", Unit::Count, "",
        "select coalesce(symbol.name, frame.name) as function, mapping.name as file, count(*) as samples
from perf_sample join stack_profile_callsite as callsite on perf_sample.callsite_id = callsite.id
    join stack_profile_frame as frame on callsite.frame_id = frame.id join stack_profile_mapping as mapping on frame.mapping = mapping.id
    left join (select symbol_set_id, min(id) as first from stack_profile_symbol group by symbol_set_id) as innermost
        on frame.symbol_set_id = innermost.symbol_set_id
    left join stack_profile_symbol as symbol on innermost.first = symbol.id
group by coalesce(symbol.name, frame.name), mapping.name
order by samples desc, function, file limit 30"),
    example("allocations", "Which functions allocated the memory that is still held?", Unit::Bytes, "",
        "select frame.name as function, mapping.name as file, sum(allocation.count) as blocks, sum(allocation.size) as held
from heap_profile_allocation as allocation join stack_profile_callsite as callsite on allocation.callsite_id = callsite.id
    join stack_profile_frame as frame on callsite.frame_id = frame.id join stack_profile_mapping as mapping on frame.mapping = mapping.id
group by frame.name, mapping.name
having sum(allocation.size) > 0
order by held desc, function, file limit 30"),
    example("losses", "What was lost, and what is wrong with the trace?", Unit::Count, "trace",
        "select name, idx, source, value
from stats
where value != 0 and (name glob '*loss*' or name glob '*lost*' or name glob '*drop*' or name glob '*overrun*' or name glob '*overwritten*'
    or name glob '*error*')
order by name, idx"),
];
