-- For each time that a thread ran, the last state before it in which it waited for a CPU, and the last one into which another thread woke it.
create or replace perfetto view sched_previous_runnable_on_thread as
select id, prev_runnable_id, prev_wakeup_runnable_id
from (
    select id, state, max(case when state != 'Running' then id end) over earlier as prev_runnable_id,
        max(case when waker_utid is not null and (irq_context is null or irq_context != 1) then id end) over earlier as prev_wakeup_runnable_id
    from thread_state where state like 'R%' and dur != -1
    window earlier as (partition by utid order by id))
where state = 'Running';
