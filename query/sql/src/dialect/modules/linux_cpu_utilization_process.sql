include perfetto module linux.cpu.utilization.thread_cpu;
create or replace perfetto function cpu_process_utilization_per_period(interval LONG, upid LONG)
returns table(ts TIMESTAMP, utilization DOUBLE, unnormalized_utilization DOUBLE) as
select * from _cpu_utilization_per_period!($interval, (
    select ts, dur from sched where utid in (select utid from thread where upid = $upid and not is_idle)));

create or replace perfetto function cpu_process_utilization_per_second(upid LONG)
returns table(ts TIMESTAMP, utilization DOUBLE, unnormalized_utilization DOUBLE) as
select * from cpu_process_utilization_per_period(1000000000, $upid);

create or replace perfetto view cpu_cycles_per_process as
select upid, _cpu_cycles!(dur) from _cpu_time_at_frequencies join thread using (utid) where upid is not null group by upid;

create or replace perfetto function cpu_cycles_per_process_in_interval(ts TIMESTAMP, dur LONG)
returns table(
    upid LONG, millicycles LONG, megacycles LONG, runtime DURATION, awake_runtime DURATION, min_freq LONG, max_freq LONG, avg_freq LONG) as
select upid, millicycles, megacycles, runtime, awake_runtime, min_freq, max_freq, avg_freq
from (
    select upid, _cpu_cycles_in_interval!(), sum(_awake!(ts, dur)) as awake_runtime
    from _cpu_time_at_frequencies_in_interval($ts, $dur) join thread using (utid) group by upid);

-- In percent of the time that the machine was awake, of all CPUs and of one.
create or replace perfetto function cpu_process_utilization_in_interval(ts TIMESTAMP, dur LONG)
returns table(upid LONG, process_name STRING, awake_dur LONG, awake_utilization DOUBLE, awake_unnormalized_utilization DOUBLE) as
select process.upid as upid, process.name as process_name, awake_runtime as awake_dur,
    round(awake_runtime * 100.0 / _awake!($ts, $dur) / (select max(cpu) + 1 from cpu), 6) as awake_utilization,
    round(awake_runtime * 100.0 / _awake!($ts, $dur), 6) as awake_unnormalized_utilization
from cpu_cycles_per_process_in_interval($ts, $dur) as cycles join process on process.upid = cycles.upid;
