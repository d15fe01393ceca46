include perfetto module linux.cpu.utilization.thread_cpu;
create or replace perfetto function cpu_thread_utilization_per_period(interval LONG, utid LONG)
returns table(ts TIMESTAMP, utilization DOUBLE, unnormalized_utilization DOUBLE) as
select * from _cpu_utilization_per_period!($interval, (select ts, dur from sched where utid = $utid));

create or replace perfetto function cpu_thread_utilization_per_second(utid LONG)
returns table(ts TIMESTAMP, utilization DOUBLE, unnormalized_utilization DOUBLE) as
select * from cpu_thread_utilization_per_period(1000000000, $utid);

create or replace perfetto view cpu_cycles_per_thread as
select utid, _cpu_cycles!(dur) from _cpu_time_at_frequencies group by utid;

create or replace perfetto function cpu_cycles_per_thread_in_interval(ts TIMESTAMP, dur LONG)
returns table(
    utid LONG, millicycles LONG, megacycles LONG, runtime DURATION, awake_runtime DURATION, min_freq LONG, max_freq LONG, avg_freq LONG) as
select utid, millicycles, megacycles, runtime, awake_runtime, min_freq, max_freq, avg_freq
from (
    select utid, _cpu_cycles_in_interval!(), sum(_awake!(ts, dur)) as awake_runtime
    from _cpu_time_at_frequencies_in_interval($ts, $dur) group by utid);

-- In percent of the time that the machine was awake, of all CPUs and of one.
create or replace perfetto function cpu_thread_utilization_in_interval(ts TIMESTAMP, dur LONG)
returns table(
    upid LONG, utid LONG, thread_name STRING, awake_dur LONG, awake_utilization DOUBLE, awake_unnormalized_utilization DOUBLE) as
select thread.upid as upid, thread.utid as utid, thread.name as thread_name, awake_runtime as awake_dur,
    round(awake_runtime * 100.0 / _awake!($ts, $dur) / (select max(cpu) + 1 from cpu), 6) as awake_utilization,
    round(awake_runtime * 100.0 / _awake!($ts, $dur), 6) as awake_unnormalized_utilization
from cpu_cycles_per_thread_in_interval($ts, $dur) as cycles join thread on thread.utid = cycles.utid;
