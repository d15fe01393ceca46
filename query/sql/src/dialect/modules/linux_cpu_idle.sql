-- How long a CPU is in an idle state; -1 is none.
create or replace perfetto view cpu_idle_counters as
select states.id as id, track_id, ts, dur, cast(case when value = 4294967295 then -1 else value end as bigint) as idle, cpu
from counter_leading_intervals!((
        select counter.id, ts, track_id, value from counter join cpu_counter_track on cpu_counter_track.id = track_id
        where cpu_counter_track.name = 'cpuidle')) as states
    join cpu_counter_track on cpu_counter_track.id = track_id;
