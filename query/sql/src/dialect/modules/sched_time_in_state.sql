-- How long each thread was in each state.
create or replace perfetto view sched_time_in_state_for_thread as
select utid, sum(sum(dur)) over (partition by utid) as total_runtime, state, sum(dur) as time_in_state,
    sum(dur) * 100 / nullif(sum(sum(dur)) over (partition by utid), 0) as percentage_in_state
from thread_state group by utid, state;

-- The percentages of each thread.
create or replace perfetto view sched_percentage_of_time_in_state as
select utid, max(case when state = 'Running' then percentage_in_state end) as running,
    max(case when state = 'R' then percentage_in_state end) as runnable, max(case when state = 'R+' then percentage_in_state end) as runnable_preempted,
    max(case when state = 'S' then percentage_in_state end) as sleeping, max(case when state = 'D' then percentage_in_state end) as uninterruptible_sleep,
    sum(case when state in ('T', 't', 'X', 'Z', 'x', 'I', 'K', 'W', 'P', 'N') then time_in_state end) * 100 / nullif(max(total_runtime), 0) as other
from sched_time_in_state_for_thread group by utid;

-- The same for a part of the time.
create or replace perfetto function sched_time_in_state_for_thread_in_interval(ts TIMESTAMP, dur DURATION, utid LONG)
returns table(state STRING, io_wait LONG, blocked_function STRING, dur DURATION) as
select state, io_wait, blocked_function, sum(min(ts + dur, $ts + $dur) - max(ts, $ts)) as dur
from thread_state where utid = $utid and dur > 0 and ts < $ts + $dur and ts + dur > $ts
group by state, io_wait, blocked_function;

create or replace perfetto function sched_time_in_state_and_cpu_for_thread_in_interval(ts TIMESTAMP, dur DURATION, utid LONG)
returns table(state STRING, io_wait LONG, cpu LONG, blocked_function STRING, dur DURATION) as
select state, io_wait, cpu, blocked_function, sum(min(ts + dur, $ts + $dur) - max(ts, $ts)) as dur
from thread_state where utid = $utid and dur > 0 and ts < $ts + $dur and ts + dur > $ts
group by state, io_wait, cpu, blocked_function;

-- How long a CPU ran what left it in which state, in a part of the time.
create or replace perfetto function sched_time_in_state_for_cpu_in_interval(cpu LONG, ts TIMESTAMP, dur LONG)
returns table(end_state STRING, dur LONG) as
select end_state, sum(min(ts + dur, $ts + $dur) - max(ts, $ts)) as dur
from sched where cpu = $cpu and dur > 0 and ts < $ts + $dur and ts + dur > $ts
group by end_state;
