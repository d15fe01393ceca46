-- How long the thread of a slice ran on a CPU while the slice lasted.
create or replace perfetto view thread_slice_cpu_time as
select thread_slice.id as id, thread_slice.name as name, thread_slice.utid as utid, thread_name, upid, process_name, cpu_time
from (
    select id_0, sum(dur) as cpu_time
    from interval_intersect('select id, ts, dur, utid from thread_slice where utid % 1000000000000 > 0 and dur > 0',
        'select id, ts, dur, utid from sched where dur > 0', 'utid')
    group by id_0)
join thread_slice on thread_slice.id = id_0;
