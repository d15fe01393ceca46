//! Modules of the trace processor's standard library.

use super::{Rows, ask, compare, generated, open};

const STATEMENTS: &[&str] = &[
    "include perfetto module counters.intervals; select * from counter_leading_intervals!(counter) order by track_id, ts, id",
    "include perfetto module counters.intervals; select id, dur, value, next_value, delta_value from counter_leading_intervals!((select * from counter where value > 0)) order by id",
    "include perfetto module intervals.overlap; select ts, value from intervals_overlap_count!((select ts, dur from sched), ts, dur) order by ts",
    "include perfetto module intervals.overlap; select ts, value, group_name from intervals_overlap_count_by_group!(sched, ts, dur, cpu) order by group_name, ts",
    "include perfetto module sched.runnable; select * from sched_previous_runnable_on_thread order by id",
    "include perfetto module sched.states; select distinct state, io_wait, sched_state_to_human_readable_string(state) as name, sched_state_io_to_human_readable_string(state, io_wait) as whole from thread_state order by 1, 2",
    "include perfetto module sched.time_in_state; select * from sched_time_in_state_for_thread order by utid, state",
    "include perfetto module sched.time_in_state; select * from sched_percentage_of_time_in_state order by utid",
    "include perfetto module intervals.overlap; select ts, dur from interval_merge_overlapping!((select ts, dur from thread_state where dur > 0), 1000) order by ts",
    "include perfetto module sched.time_in_state; select end_state, dur from sched_time_in_state_for_cpu_in_interval(0, trace_start() + 1000, trace_dur() / 2) order by 1",
    "include perfetto module sched.latency; select thread_state_id, sched_id, utid, runnable_latency_id, latency_dur from sched_latency_for_running_interval order by thread_state_id, sched_id",
    "include perfetto module sched.thread_level_parallelism; select * from sched_runnable_thread_count order by ts",
    "include perfetto module sched.thread_level_parallelism; select * from sched_active_cpu_count order by ts",
    "include perfetto module linux.cpu.frequency; select * from cpu_frequency_counters order by id",
    "include perfetto module linux.cpu.utilization.thread_cpu; select * from cpu_cycles_per_thread_per_cpu order by utid, ucpu",
    "include perfetto module linux.cpu.utilization.thread_cpu; select * from cpu_cycles_per_thread_per_cpu_in_interval(trace_start() + 1000, trace_dur() / 2) order by utid, ucpu",
    "include perfetto module linux.cpu.utilization.thread; select * from cpu_cycles_per_thread order by utid",
    "include perfetto module linux.cpu.utilization.thread; select * from cpu_cycles_per_thread_in_interval(trace_start() + 1000, trace_dur() / 2) order by utid",
    "include perfetto module linux.cpu.utilization.thread; select * from cpu_thread_utilization_in_interval(trace_start() + 1000, trace_dur() / 2) order by utid",
    "include perfetto module linux.cpu.utilization.process; select * from cpu_cycles_per_process order by upid",
    "include perfetto module linux.cpu.utilization.process; select * from cpu_cycles_per_process_in_interval(trace_start() + 1000, trace_dur() / 2) order by upid",
    "include perfetto module linux.cpu.utilization.process; select * from cpu_process_utilization_in_interval(trace_start() + 1000, trace_dur() / 2) order by upid",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_utilization_per_second order by ts",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_cycles",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_cycles_in_interval(trace_start() + 1000, trace_dur() / 2)",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_utilization_in_interval(trace_start() + 1000, trace_dur() / 2)",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_cycles_per_cpu order by ucpu",
    // The trace processor leaves `cpu` out where no frequency is known.
    "include perfetto module linux.cpu.utilization.system; select ucpu, millicycles, megacycles, runtime, min_freq, max_freq, avg_freq from cpu_cycles_per_cpu_in_interval(trace_start() + 1000, trace_dur() / 2) order by ucpu",
    "include perfetto module linux.cpu.utilization.system; select * from cpu_utilization_per_period(trace_dur() / 3) order by ts",
    "include perfetto module slices.self_dur; select id, self_dur from slice_self_dur order by id",
];

/// Statements that may have no rows.
const SPARSE: &[&str] = &[
    "include perfetto module intervals.overlap; select ts, dur from interval_merge_overlapping!((select ts, dur from sched where dur > 0 and utid = 1), 0) order by ts",
    "include perfetto module sched.time_in_state; select state, io_wait, blocked_function, dur from sched_time_in_state_for_thread_in_interval(trace_start(), trace_dur() / 2, 1) order by 1, 2, 3",
    "include perfetto module sched.time_in_state; select state, io_wait, cpu, blocked_function, dur from sched_time_in_state_and_cpu_for_thread_in_interval(trace_start() + trace_dur() / 3, trace_dur() / 3, 1) order by 1, 2, 3, 4",
    "include perfetto module linux.cpu.idle; select * from cpu_idle_counters order by id",
    "include perfetto module linux.perf.samples; select * from linux_perf_samples_summary_tree where cumulative_count > 0 order by id",
    "include perfetto module stacks.cpu_profiling; select ts, utid, ucpu, callsite_id, tid, thread_name, cpu from cpu_profiling_samples order by ts, utid, callsite_id",
    "include perfetto module stacks.cpu_profiling; select * from cpu_profiling_summary_tree where cumulative_count > 0 order by id",
    "include perfetto module slices.cpu_time; select * from thread_slice_cpu_time order by id",
    "include perfetto module sched.thread_level_parallelism; select * from sched_uninterruptible_sleep_thread_count order by ts",
    "include perfetto module linux.threads; select * from linux_kernel_threads order by utid",
    "include perfetto module linux.cpu.utilization.thread; select * from cpu_thread_utilization_per_second(1) order by ts",
    "include perfetto module linux.cpu.utilization.thread; select * from cpu_thread_utilization_per_period(trace_dur() / 3, 1) order by ts",
    "include perfetto module linux.cpu.utilization.process; select * from cpu_process_utilization_per_second(1) order by ts",
    "include perfetto module linux.cpu.utilization.process; select * from cpu_process_utilization_per_period(trace_dur() / 3, 1) order by ts",
    "include perfetto module slices.time_in_state; select * from thread_slice_time_in_state order by id, state, io_wait, blocked_function",
];

/// The trace processor counts an allocation again for each function that is inlined at its place. So sizes are compared with the allocations themselves.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_allocated_are_a_tree_whose_sums_are_those_of_the_allocations() {
    const TREE: &str = "include perfetto module android.memory.heap_profile.summary_tree;";
    compare(
        &[&format!("{TREE} select id, parent_id, name, mapping_name, source_file, line_number from android_heap_profile_summary_tree order by id")],
        Rows::Needed,
    )
    .await;
    let folder = tempfile::tempdir().unwrap();
    for trace in generated(folder.path(), 4) {
        let mut database = open(&trace).await;
        let sums = "select sum(size), sum(max(size, 0)) from heap_profile_allocation";
        let sums = ask(&mut database, sums).await;
        let of_self = "select sum(self_size), sum(self_alloc_size) from android_heap_profile_summary_tree";
        assert_eq!(ask(&mut database, &format!("{TREE} {of_self}")).await, sums);
        let of_roots = "select sum(cumulative_size), sum(cumulative_alloc_size) from android_heap_profile_summary_tree where parent_id is null";
        assert_eq!(ask(&mut database, of_roots).await, sums);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_have_the_trace_processors_rows() {
    compare(STATEMENTS, Rows::Needed).await;
    compare(SPARSE, Rows::MayLack).await;
}
