-- In which states the thread of a slice was, and how long, while the slice lasted.
create or replace perfetto view thread_slice_time_in_state as
select thread_slice.id as id, thread_slice.name as name, thread_slice.utid as utid, thread_name, upid, process_name, state, io_wait, blocked_function,
    overlap.dur as dur
from (
    select id_0, state, io_wait, blocked_function, sum(dur) as dur
    from interval_intersect('select id, ts, dur, utid from thread_slice where utid % 1000000000000 > 0 and dur > 0',
        'select id, ts, dur, utid, state, io_wait, blocked_function from thread_state where dur > 0', 'utid')
    group by id_0, state, io_wait, blocked_function) as overlap
join thread_slice on thread_slice.id = id_0;
