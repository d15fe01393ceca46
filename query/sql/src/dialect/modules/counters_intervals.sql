-- For each value of a counter, how long it lasts; the last one lasts to the end of the trace. Of a run of the same value, the first two rows are there.
create or replace perfetto macro counter_leading_intervals(counter_table TableOrSubquery) returns TableOrSubquery as (
    select id, ts, coalesce(lead(ts) over later, trace_end()) - ts as dur, track_id, value, lead(value) over later as next_value,
        value - lag(value) over later as delta_value
    from (
        select id, ts, track_id, cast(value as double) as value, lag(value, 1) over earlier as before, lag(value, 2) over earlier as before_that
        from $counter_table window earlier as (partition by track_id order by ts, id))
    where before is null or before_that is null or value != before or value != before_that
    window later as (partition by track_id order by ts, id)
);
