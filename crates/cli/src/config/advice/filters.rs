//! Advice on names that data sources are given (kernel events, categories, system calls, counters, units), and on periods that are too short.
//!
//! [`advise`](super::advise) calls it. It compares names only with a kernel and with producers that have been examined.

use ferretto_probes::ftrace::syscalls;
use ferretto_probes::journald;
use ferretto_probes::process_stats;
use ferretto_probes::sys_stats::{self, SetupError};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{
    FtraceConfig, ProcessStatsConfig, SysStatsConfig, SystemdJournaldConfig, TraceConfig, TrackEventConfig,
};
use ferretto_proto::text::{nearest, nearest_within};

use super::known_sources::{FTRACE, TRACK_EVENT};
use super::{Adviser, MOST, name_of};
use crate::config::surroundings::{Category, Kernel};

pub(super) fn advise(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    for (index, source) in config.data_sources.iter().enumerate() {
        if adviser.has_enough() {
            return;
        }
        let path = format!("data_sources[{index}].config");
        match name_of(source) {
            FTRACE => ftrace(
                adviser,
                &format!("{path}.ftrace_config"),
                &source.config.ftrace_config,
            ),
            TRACK_EVENT => track_event(adviser, &format!("{path}.track_event_config"), source),
            sys_stats::NAME => system_counters(adviser, &path, &source.config.sys_stats_config),
            journald::NAME => {
                let path = format!("{path}.journald_config");
                journal(adviser, &path, &source.config.journald_config);
            }
            process_stats::NAME => {
                processes(adviser, &path, &source.config.process_stats_config);
            }
            _ => {}
        }
    }
}

fn ftrace(adviser: &mut Adviser<'_>, path: &str, config: &FtraceConfig) {
    let nothing = config.ftrace_events.is_empty()
        && config.atrace_categories.is_empty()
        && config.atrace_apps.is_empty()
        && config.syscall_events.is_empty()
        && config.kprobe_events.is_empty()
        && !config.enable_function_graph.unwrap_or_default();
    if nothing {
        adviser.warn(
            path,
            "linux.ftrace is asked for no events",
            "add `ftrace_config { ftrace_events: \"sched/sched_switch\" }` or others that `ferretto list events` shows",
        );
    }
    instance_and_tracer(adviser, path, config);
    kernel_events(adviser, &format!("{path}.ftrace_events"), &config.ftrace_events);
    atrace_categories(
        adviser,
        &format!("{path}.atrace_categories"),
        &config.atrace_categories,
    );
    if !config.atrace_apps.is_empty() {
        adviser.warn(
            format!("{path}.atrace_apps[0]"),
            "atrace_apps has programs for Android write events, and does nothing elsewhere",
            "record programs with the data source \"track_event\"",
        );
    }
    if config.throttle_rss_stat.unwrap_or_default() {
        adviser.warn(
            format!("{path}.throttle_rss_stat"),
            "throttle_rss_stat needs a kernel of Android: kmem/rss_stat is recorded unthrottled",
            "leave it out",
        );
    }
    for (index, name) in config.syscall_events.iter().enumerate() {
        if syscalls::number(name).is_none() {
            adviser.warn(
                format!("{path}.syscall_events[{index}]"),
                format!("this machine has no system call \"{name}\""),
                "spell it as the kernel does: \"sys_openat\"",
            );
        }
    }
}

/// Warns if the kernel lacks something without which the data source does not start.
fn instance_and_tracer(adviser: &mut Adviser<'_>, path: &str, config: &FtraceConfig) {
    const GRAPH: &str = "function_graph";
    let Some(kernel) = &adviser.surroundings.kernel else {
        return;
    };
    let instance = config.instance_name.as_deref().unwrap_or_default();
    if kernel.instances.get(instance) == Some(&false) {
        adviser.warn(
            format!("{path}.instance_name"),
            format!("there is no tracefs instance \"{instance}\": no kernel event of this data source will be recorded"),
            format!("as root, type `mkdir /sys/kernel/tracing/instances/{instance}`, or leave it out"),
        );
    }
    let graph = config.enable_function_graph.unwrap_or_default();
    if graph && !kernel.tracers.is_empty() && !kernel.tracers.contains(GRAPH) {
        adviser.warn(
            format!("{path}.enable_function_graph"),
            "this kernel has no tracer function_graph (CONFIG_FUNCTION_GRAPH_TRACER): no kernel event of this data source will be recorded",
            "leave it out",
        );
    }
}

fn kernel_events(adviser: &mut Adviser<'_>, path: &str, events: &[String]) {
    let Some(kernel) = &adviser.surroundings.kernel else {
        return;
    };
    // Events without a similar name in this kernel are reported together.
    let mut missing = Vec::new();
    for (index, event) in events.iter().enumerate() {
        if adviser.has_enough() || kernel.has(event) {
            continue;
        }
        match nearest_event(kernel, event) {
            Some(meant) => adviser.warn(
                format!("{path}[{index}]"),
                format!("this kernel has no event \"{event}\""),
                format!("did you mean \"{meant}\"?"),
            ),
            None => missing.push((index, event.as_str())),
        }
    }
    if let Some((first, _)) = missing.first() {
        adviser.warn(
            format!("{path}[{first}]"),
            format!("this kernel has no {}", listed("event", "events", &missing)),
            "`ferretto list events` shows what it has",
        );
    }
}

fn atrace_categories(adviser: &mut Adviser<'_>, path: &str, categories: &[String]) {
    let Some(kernel) = &adviser.surroundings.kernel else {
        return;
    };
    let missing: Vec<(usize, &str)> = categories
        .iter()
        .map(String::as_str)
        .enumerate()
        .filter(|(_, category)| kernel.atrace_categories.get(*category) == Some(&0))
        .collect();
    if let Some((first, _)) = missing.first() {
        adviser.warn(
            format!("{path}[{first}]"),
            format!(
                "this kernel has no events of the atrace {}, and what programs write into them is Android's",
                listed("category", "categories", &missing)
            ),
            "name kernel events with ftrace_events",
        );
    }
}

/// Quotes the first few names, with a noun in front of them.
fn listed(one: &str, several: &str, names: &[(usize, &str)]) -> String {
    const FEW: usize = 5;
    let quoted: Vec<String> = names
        .iter()
        .take(FEW)
        .map(|(_, name)| format!("\"{name}\""))
        .collect();
    match names.len() {
        1 => format!("{one} {}", quoted.join(", ")),
        count if count > FEW => format!("{several} {} and {} more", quoted.join(", "), count - FEW),
        _ => format!("{several} {}", quoted.join(", ")),
    }
}

/// Returns the event of this kernel that a user probably meant by `event`.
pub(crate) fn nearest_event(kernel: &Kernel, event: &str) -> Option<String> {
    // `perf` and the kernel itself write a colon.
    let slashed = event.replacen(':', "/", 1);
    if slashed != event && kernel.has(&slashed) {
        return Some(slashed);
    }
    let (group, name) = slashed.split_once('/').unwrap_or(("", &slashed));
    if name == "*" {
        let groups = kernel.events.keys().map(String::as_str);
        return nearest(group, groups).map(|group| format!("{group}/*"));
    }
    // Users easily mistake the group of an event.
    let elsewhere = kernel.events.iter().find(|(_, names)| names.contains(name));
    if let Some((group, _)) = elsewhere {
        return Some(format!("{group}/{name}"));
    }
    // Event names often differ by little. If the distance is larger, the event may exist in another kernel, and is no typing error.
    let slips = (name.len() / 6).clamp(1, 3);
    let of = |group: &String| {
        let names = kernel.events.get(group)?.iter().map(String::as_str);
        nearest_within(name, slips, names).map(|name| format!("{group}/{name}"))
    };
    if let Some(meant) = of(&group.to_owned()) {
        return Some(meant);
    }
    let groups = kernel.events.keys().map(String::as_str);
    if let Some(meant) = nearest(group, groups).and_then(|group| {
        let has = kernel.events.get(group)?.contains(name);
        has.then(|| format!("{group}/{name}"))
    }) {
        return Some(meant);
    }
    let all = kernel
        .events
        .iter()
        .flat_map(|(group, names)| names.iter().map(move |name| (group, name)));
    let similar = nearest_within(name, slips, kernel.events.values().flatten().map(String::as_str))?;
    all.into_iter()
        .find(|(_, name)| *name == similar)
        .map(|(group, name)| format!("{group}/{name}"))
}

/// Whether a category of track events matches, by the SDK's rule: a `*` stands for any end.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, _)) => name.starts_with(start),
        None => pattern == name,
    }
}

fn track_event(adviser: &mut Adviser<'_>, path: &str, source: &DataSource) {
    let config: &TrackEventConfig = &source.config.track_event_config;
    let all_off =
        config.enabled_categories.is_empty() && config.disabled_categories.iter().any(|name| name == "*");
    if all_off {
        adviser.warn(
            format!("{path}.disabled_categories[0]"),
            "all categories are disabled and none is enabled: nothing will be recorded",
            "name some in enabled_categories",
        );
    }
    if !config.enabled_categories.is_empty()
        && config.disabled_categories.is_empty()
        && !config.enabled_categories.iter().any(|pattern| pattern == "*")
    {
        adviser.hint(
            format!("{path}.enabled_categories[0]"),
            "enabled_categories alone disables no other category: all are recorded but those tagged slow or debug",
            "add `disabled_categories: \"*\"` to record those that are enabled and no others",
        );
    }
    let Some(offers) = &adviser.surroundings.service else {
        return;
    };
    let categories: Vec<&Category> = offers
        .offering(TRACK_EVENT)
        .flat_map(|(source, _)| &source.categories)
        .collect();
    // The name of a category group is the list of its categories, separated by commas.
    let names: Vec<&str> = categories
        .iter()
        .flat_map(|category| category.name.split(','))
        .collect();
    // No program is connected, or none describes its categories.
    if names.is_empty() {
        return;
    }
    let mut missing = Vec::new();
    for (index, pattern) in config.enabled_categories.iter().enumerate() {
        if missing.len() < MOST && !names.iter().any(|name| matches(pattern, name)) {
            missing.push((
                format!("{path}.enabled_categories[{index}]"),
                format!("no program that is connected has a category \"{pattern}\""),
                nearest(pattern, names.iter().copied()).map(str::to_owned),
            ));
        }
    }
    let tags: Vec<&str> = categories
        .iter()
        .flat_map(|category| category.tags.iter().map(String::as_str))
        .chain(["slow", "debug"])
        .collect();
    for (index, tag) in config.enabled_tags.iter().enumerate() {
        if missing.len() < MOST && !tags.iter().any(|known| matches(tag, known)) {
            missing.push((
                format!("{path}.enabled_tags[{index}]"),
                format!("no category of a program that is connected has the tag \"{tag}\""),
                nearest(tag, tags.iter().copied()).map(str::to_owned),
            ));
        }
    }
    for (path, what, similar) in missing {
        let change = match similar {
            Some(similar) => format!("did you mean \"{similar}\"?"),
            None => {
                "`ferretto list categories` shows them; programs that connect later may have it".to_owned()
            }
        };
        adviser.warn(path, what, change);
    }
}

/// The advice for an empty `linux.process_stats`.
pub(crate) const SCAN_ALL: &str = "write `process_stats_config { scan_all_processes_on_start: true }`";

/// Whether nothing makes `linux.process_stats` look at a process. It looks at all of them at the start or periodically, or at those that kernel
/// events name.
pub(crate) fn looks_at_no_process(config: &TraceConfig, source: &ProcessStatsConfig) -> bool {
    !source.scan_all_processes_on_start.unwrap_or_default()
        && source.proc_stats_poll_ms.unwrap_or_default() == 0
        && !config.data_sources.iter().any(|source| name_of(source) == FTRACE)
}

fn processes(adviser: &mut Adviser<'_>, path: &str, config: &ProcessStatsConfig) {
    let period = config.proc_stats_poll_ms;
    let path = format!("{path}.process_stats_config");
    if looks_at_no_process(adviser.config, config) {
        adviser.warn(
            path.as_str(),
            "without kernel events linux.process_stats is told of no process, and is not asked to look for any: nothing will be recorded",
            SCAN_ALL,
        );
    }
    least_period(
        adviser,
        format!("{path}.proc_stats_poll_ms"),
        period,
        process_stats::SHORTEST_POLL_MS,
    );
}

fn system_counters(adviser: &mut Adviser<'_>, path: &str, config: &SysStatsConfig) {
    let periods = sys_stats::periods(config);
    let mut silent = Vec::new();
    for (counters, wanted, period, value) in [
        (
            "meminfo_counters",
            !config.meminfo_counters.is_empty(),
            "meminfo_period_ms",
            config.meminfo_period_ms,
        ),
        (
            "vmstat_counters",
            !config.vmstat_counters.is_empty(),
            "vmstat_period_ms",
            config.vmstat_period_ms,
        ),
        (
            "stat_counters",
            !config.stat_counters.is_empty(),
            "stat_period_ms",
            config.stat_period_ms,
        ),
    ] {
        if wanted && value.unwrap_or_default() == 0 {
            silent.push((counters, period));
        }
    }
    for (counters, period) in &silent {
        adviser.warn(
            format!("{path}.sys_stats_config.{counters}[0]"),
            format!("{counters} are not sampled without {period}"),
            format!("write `{period}: 1000`"),
        );
    }
    if silent.is_empty() && periods.iter().all(|(_, period)| period.unwrap_or_default() == 0) {
        adviser.warn(
            format!("{path}.sys_stats_config"),
            "linux.sys_stats has no period: nothing will be sampled",
            "write for example `sys_stats_config { meminfo_period_ms: 1000 stat_period_ms: 1000 }`",
        );
    }
    for (field, period) in periods {
        least_period(
            adviser,
            format!("{path}.sys_stats_config.{field}"),
            period,
            sys_stats::SHORTEST_PERIOD_MS,
        );
    }
    if let Err(SetupError::PeriodsDoNotFit {
        field,
        period_ms,
        shortest_field,
        shortest_ms,
    }) = sys_stats::check(config)
    {
        adviser.warn(
            format!("{path}.sys_stats_config.{field}"),
            format!(
                "{period_ms} ms is not a multiple of the shortest period ({shortest_field}: {shortest_ms}): nothing of linux.sys_stats will be \
                 recorded"
            ),
            format!("write a multiple of {shortest_ms}"),
        );
    }
}

/// Filters of `linux.systemd_journald` that let through less than one might think.
fn journal(adviser: &mut Adviser<'_>, path: &str, config: &SystemdJournaldConfig) {
    match config.min_prio {
        Some(0) => adviser.warn(
            format!("{path}.min_prio"),
            "min_prio: 0 lets only emergencies through",
            "leave it out for all messages, or write 3 for errors and 4 for warnings too",
        ),
        Some(priority @ 8..) => adviser.warn(
            format!("{path}.min_prio"),
            format!("there is no priority {priority}: 7 is the last, for debugging"),
            "leave it out for all messages",
        ),
        _ => {}
    }
    for (index, unit) in config.filter_units.iter().enumerate() {
        if adviser.has_enough() {
            return;
        }
        if !unit.contains('.') {
            adviser.warn(
                format!("{path}.filter_units[{index}]"),
                format!("no unit has the name \"{unit}\": names of units end in their kind"),
                format!("write \"{unit}.service\", or another kind"),
            );
        }
    }
    let names = config.filter_identifiers.len() + config.filter_units.len();
    if names > journald::MOST_FILTERS {
        adviser.warn(
            path,
            format!("the filters have {names} names: nothing of linux.systemd_journald will be recorded"),
            format!("name at most {}", journald::MOST_FILTERS),
        );
    }
}

fn least_period(adviser: &mut Adviser<'_>, path: String, period: Option<u32>, least: u32) {
    if let Some(period @ 1..) = period
        && period < least
    {
        adviser.warn(
            path,
            format!("{period} ms is less than the shortest period: it will be {least} ms"),
            format!("write {least} or more"),
        );
    }
}
