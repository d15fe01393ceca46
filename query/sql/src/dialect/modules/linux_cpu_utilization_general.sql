-- Which part of each period CPUs were in these spans. A span counts in the period in which it begins, and there to its end only.
create or replace perfetto macro _cpu_utilization_per_period(period Expr, spans TableOrSubquery) returns TableOrSubquery as (
    select begins as ts, sum(ran) / (cast($period as double) * (select max(cpu) + 1 from sched)) as utilization,
        sum(ran) / cast($period as double) as unnormalized_utilization
    from (
        select ts / ($period) * ($period) as begins, min(ts + dur, ts / ($period) * ($period) + ($period)) - ts as ran from $spans)
    group by begins
);

create or replace perfetto view _cpu_time_of_threads as
select ts, dur, utid, ucpu from sched where dur != -1 and utid not in (select utid from thread where is_idle);

create or replace perfetto view _cpu_frequencies as
select ts, dur, ucpu, freq from cpu_frequency_counters;

-- When threads ran, at which frequency; without one where none is known.
create virtual table if not exists _cpu_time_at_frequencies using
    span_left_join(_cpu_time_of_threads partitioned ucpu, _cpu_frequencies partitioned ucpu);

-- The same within a part of the time.
create or replace perfetto function _cpu_time_at_frequencies_in_interval(ts TIMESTAMP, dur DURATION)
returns table(ts TIMESTAMP, dur DURATION, utid LONG, ucpu LONG, freq LONG) as
select max(ts, $ts) as ts, min(ts + dur, $ts + $dur) - max(ts, $ts) as dur, utid, ucpu, freq
from _cpu_time_at_frequencies where ts < $ts + $dur and ts + dur > $ts;

-- What CPUs did in spans: a frequency in kHz times a time in ns, divided by 1000, is a number of thousandths of cycles. The average frequency is that of
-- the time `averaged`.
create or replace perfetto macro _cpu_cycles(averaged Expr) returns ProjectionFragment as
    sum(dur * freq / 1000) as millicycles, cast(sum(dur * freq / 1000) / 1e9 as bigint) as megacycles, sum(dur) as runtime,
    min(freq) as min_freq, max(freq) as max_freq, sum(dur * freq / 1000) / nullif(sum($averaged) / 1000, 0) as avg_freq;
create or replace perfetto macro _cpu_cycles_in_interval() returns ProjectionFragment as
    _cpu_cycles!(case when freq is not null then dur end);
-- How long a span was while the machine was awake.
create or replace perfetto macro _awake(ts Expr, dur Expr) returns Expr as (to_monotonic($ts + $dur) - to_monotonic($ts));
