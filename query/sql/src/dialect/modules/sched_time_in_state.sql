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
