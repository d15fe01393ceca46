-- The bytes that a call has allocated and not freed (`size`), and all that it has allocated; by itself, and with those that it called.
create or replace perfetto view android_heap_profile_summary_tree as
select id, parent_id, name, mapping_name, source_file, line_number, self_a as self_size, cumulative_a as cumulative_size, self_b as self_alloc_size,
    cumulative_b as cumulative_alloc_size
from ferretto_summary_tree!((select callsite_id, size as a, case when size > 0 then size else 0 end as b from heap_profile_allocation));
