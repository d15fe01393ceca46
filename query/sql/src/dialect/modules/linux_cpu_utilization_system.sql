include perfetto module linux.cpu.utilization.thread_cpu;
create or replace perfetto function cpu_utilization_per_period(interval LONG)
returns table(ts TIMESTAMP, utilization DOUBLE, unnormalized_utilization DOUBLE) as
select * from _cpu_utilization_per_period!($interval, (
    select ts, dur from sched where utid not in (select utid from thread where is_idle)));

create or replace perfetto view cpu_utilization_per_second as
select ts, utilization, unnormalized_utilization from cpu_utilization_per_period(1000000000);

create or replace perfetto view cpu_cycles as
select _cpu_cycles!(dur) from _cpu_time_at_frequencies;

create or replace perfetto function cpu_cycles_in_interval(ts TIMESTAMP, dur LONG)
returns table(millicycles LONG, megacycles LONG, runtime DURATION, awake_runtime DURATION, min_freq LONG, max_freq LONG, avg_freq LONG) as
select millicycles, megacycles, runtime, awake_runtime, min_freq, max_freq, avg_freq
from (
    select _cpu_cycles_in_interval!(), sum(_awake!(ts, dur)) as awake_runtime
    from _cpu_time_at_frequencies_in_interval($ts, $dur));

-- In percent of the time that the machine was awake, of all CPUs and of one.
create or replace perfetto function cpu_utilization_in_interval(ts TIMESTAMP, dur LONG)
returns table(awake_dur LONG, awake_utilization DOUBLE, awake_unnormalized_utilization DOUBLE) as
select awake_runtime as awake_dur,
    round(awake_runtime * 100.0 / _awake!($ts, $dur) / (select max(cpu) + 1 from cpu), 2) as awake_utilization,
    round(awake_runtime * 100.0 / _awake!($ts, $dur), 2) as awake_unnormalized_utilization
from cpu_cycles_in_interval($ts, $dur);

create or replace perfetto view cpu_cycles_per_cpu as
select ucpu, max(cpu.cpu) as cpu, _cpu_cycles!(dur)
from _cpu_time_at_frequencies join cpu using (ucpu) group by ucpu;

create or replace perfetto function cpu_cycles_per_cpu_in_interval(ts TIMESTAMP, dur LONG)
returns table(ucpu LONG, cpu LONG, millicycles LONG, megacycles LONG, runtime DURATION, min_freq LONG, max_freq LONG, avg_freq LONG) as
select ucpu, max(cpu.cpu) as cpu, _cpu_cycles_in_interval!()
from _cpu_time_at_frequencies_in_interval($ts, $dur) join cpu using (ucpu) group by ucpu;
