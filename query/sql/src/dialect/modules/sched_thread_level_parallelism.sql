include perfetto module intervals.overlap;
-- How many threads wait for a CPU from a time on.
create or replace perfetto view sched_runnable_thread_count as
select ts, value as runnable_thread_count from intervals_overlap_count!((select ts, dur from thread_state where state = 'R'), ts, dur);

-- How many threads sleep and cannot be interrupted.
create or replace perfetto view sched_uninterruptible_sleep_thread_count as
select ts, value as uninterruptible_sleep_thread_count
from intervals_overlap_count!((select ts, dur from thread_state where state = 'D'), ts, dur);

-- How many CPUs run a thread that is not their idle one.
create or replace perfetto view sched_active_cpu_count as
select ts, value as active_cpu_count
from intervals_overlap_count!((select ts, dur from sched where utid not in (select utid from thread where is_idle)), ts, dur);
