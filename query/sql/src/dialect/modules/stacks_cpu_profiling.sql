-- All samples of threads, those too that programs made of themselves.
create or replace perfetto view cpu_profiling_samples as
select ts, samples.utid as utid, cpu as ucpu, callsite_id, tid, thread.name as thread_name, cpu
from (
    select ts, utid, cpu, callsite_id from perf_sample
    union all select ts, utid, null, callsite_id from cpu_profile_stack_sample) as samples
    left join thread on thread.utid = samples.utid;

-- How many samples have a call as their innermost one, and how many have it anywhere.
create or replace perfetto view cpu_profiling_summary_tree as
select id, parent_id, name, mapping_name, source_file, line_number, self_a as self_count, cumulative_a as cumulative_count
from ferretto_summary_tree!((select callsite_id, 1 as a, 0 as b from cpu_profiling_samples where callsite_id is not null));
