with
  recorded as (select category, count(*) as events from slice group by 1),
  left_out as (
    select counted.name as category, cast(max(value) - min(value) as int) as events
    from counter
    join track counted on counted.id = counter.track_id
    join track parent on parent.id = counted.parent_id
    where parent.name = 'Left out'
    group by 1
  )
select category, recorded.events as recorded, recorded.events + left_out.events as happened
from recorded
join left_out using (category)
