-- How many intervals are open from a time on, for each time at which the number may change.
create or replace perfetto macro intervals_overlap_count(segments TableOrSubquery, ts_column ColumnName, dur_column ColumnName)
returns TableOrSubquery as (
    select ts, sum(sum(change)) over (order by ts) as value
    from (
        select $ts_column as ts, 1 as change from $segments
        union all
        select $ts_column + $dur_column, -1 from $segments where $dur_column != -1)
    group by ts
);

-- The same for each group of intervals.
create or replace perfetto macro intervals_overlap_count_by_group(
    segments TableOrSubquery, ts_column ColumnName, dur_column ColumnName, group_column ColumnName)
returns TableOrSubquery as (
    select ts, sum(sum(change)) over (partition by group_name order by ts) as value, group_name
    from (
        select $ts_column as ts, 1 as change, $group_column as group_name from $segments
        union all
        select $ts_column + $dur_column, -1, $group_column from $segments where $dur_column != -1)
    group by group_name, ts
);

-- The intervals with those merged that overlap, or whose distance is `epsilon` at most. The count of the open ones is 0 before and behind each.
create or replace perfetto macro interval_merge_overlapping(intervals TableOrSubquery, epsilon Expr)
returns TableOrSubquery as (
    select begins as ts, ts - ($epsilon) - begins as dur
    from (
        select ts, value, lag(ts) over (order by ts) as begins
        from (
            select ts, value, lag(value, 1, 0) over (order by ts) as before
            from intervals_overlap_count!($intervals, ts, dur + ($epsilon)))
        where before = 0 or value = 0)
    where value = 0
);
