-- How many samples have a call as their innermost one, and how many have it anywhere.
create or replace perfetto view linux_perf_samples_summary_tree as
select id, parent_id, name, mapping_name, source_file, line_number, self_a as self_count, cumulative_a as cumulative_count
from ferretto_summary_tree!((select callsite_id, 1 as a, 0 as b from perf_sample where callsite_id is not null));
