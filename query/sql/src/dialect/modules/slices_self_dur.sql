-- How long a slice lasted without the slices that are directly within it.
create or replace perfetto view slice_self_dur as
select slice.id as id, slice.dur - coalesce(children.dur, 0) as self_dur
from slice left join (select parent_id, sum(dur) as dur from slice group by parent_id) as children on children.parent_id = slice.id;
