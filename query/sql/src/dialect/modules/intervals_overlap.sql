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
