//! `INCLUDE PERFETTO MODULE`: runs the definitions of a module that is here, which are SQL of our own. Modules whose views and functions exist from the start have
//! none. For a module that is not here it fails at once, instead of later where a statement misses the module's tables.

use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use super::starts_with;

/// The modules that are here, besides those of the prelude, and their definitions.
const MODULES: &[(&str, &str)] = &[
    (
        "android.memory.heap_profile.summary_tree",
        concat!(
            include_str!("modules/stacks.sql"),
            include_str!("modules/android_memory_heap_profile_summary_tree.sql")
        ),
    ),
    (
        "counters.intervals",
        include_str!("modules/counters_intervals.sql"),
    ),
    ("intervals.overlap", include_str!("modules/intervals_overlap.sql")),
    ("linux.cpu.frequency", ""),
    (
        "linux.cpu.idle",
        concat!(
            include_str!("modules/counters_intervals.sql"),
            include_str!("modules/linux_cpu_idle.sql")
        ),
    ),
    (
        "linux.cpu.utilization.general",
        include_str!("modules/linux_cpu_utilization_general.sql"),
    ),
    (
        "linux.cpu.utilization.process",
        include_str!("modules/linux_cpu_utilization_process.sql"),
    ),
    (
        "linux.cpu.utilization.system",
        include_str!("modules/linux_cpu_utilization_system.sql"),
    ),
    (
        "linux.cpu.utilization.thread",
        include_str!("modules/linux_cpu_utilization_thread.sql"),
    ),
    (
        "linux.cpu.utilization.thread_cpu",
        include_str!("modules/linux_cpu_utilization_thread_cpu.sql"),
    ),
    (
        "linux.perf.samples",
        concat!(
            include_str!("modules/stacks.sql"),
            include_str!("modules/linux_perf_samples.sql")
        ),
    ),
    ("linux.threads", include_str!("modules/linux_threads.sql")),
    ("sched.latency", ""),
    ("sched.runnable", include_str!("modules/sched_runnable.sql")),
    ("sched.states", include_str!("modules/sched_states.sql")),
    (
        "sched.thread_level_parallelism",
        include_str!("modules/sched_thread_level_parallelism.sql"),
    ),
    (
        "sched.time_in_state",
        include_str!("modules/sched_time_in_state.sql"),
    ),
    ("sched.with_context", ""),
    ("slices.cpu_time", include_str!("modules/slices_cpu_time.sql")),
    ("slices.self_dur", include_str!("modules/slices_self_dur.sql")),
    (
        "slices.time_in_state",
        include_str!("modules/slices_time_in_state.sql"),
    ),
    ("slices.with_context", ""),
    (
        "stacks.cpu_profiling",
        concat!(
            include_str!("modules/stacks.sql"),
            include_str!("modules/stacks_cpu_profiling.sql")
        ),
    ),
    ("time.conversion", ""),
];

/// Returns the definitions of the module that a statement includes; nothing if it includes none.
pub(super) fn included(statement: &[TokenWithSpan]) -> Result<Option<&'static str>> {
    if !starts_with(statement, &["include", "perfetto", "module"]) {
        return Ok(None);
    }
    let name: String = statement[3..]
        .iter()
        .map(|token| token.token.to_string().to_lowercase())
        .collect();
    if name.starts_with("prelude.") {
        return Ok(Some(""));
    }
    let Some((_, definitions)) = MODULES.iter().find(|(module, _)| *module == name) else {
        let names: Vec<&str> = MODULES.iter().map(|(module, _)| *module).collect();
        return plan_err!(
            "the module `{name}` is not here; there are {}. Leave the statement out, and define what you need of the module",
            names.join(", ")
        );
    };
    Ok(Some(definitions))
}
