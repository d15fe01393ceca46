//! Spelling of kernel event names (`group/name`, `group/*` or `name`), and conversion from the spelling of other tools.
//!
//! [`plan`](crate::perfetto::plan) and [`check`](super::check) call it for configs, and `perfetto::event_words` for the words of a command line. A
//! config with a malformed name is refused, because upstream's probes would then record no kernel event at all, and ours none for that name.

use ferretto_probes::ftrace::data_source::NAME as FTRACE;
use ferretto_probes::ftrace::request::is_event_pattern;
use ferretto_proto::messages::TraceConfig;
use ferretto_proto::text::Place;

use super::advice::ConfigOrigin;

/// A malformed name in a config.
#[derive(Debug)]
pub(crate) struct Malformed {
    /// The name of the config, and the place in it.
    place: Option<(String, Option<Place>)>,
    /// The mistake, and what to write instead.
    sentence: String,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sentence = &self.sentence;
        match &self.place {
            None => f.write_str(sentence),
            Some((name, None)) => write!(f, "{name}: error: {sentence}"),
            Some((name, Some(place))) => write!(
                f,
                "{name}:{}:{}: error: {sentence}\n{}",
                place.line,
                place.column,
                place.caret()
            ),
        }
    }
}

/// Returns the first malformed name of kernel events in a config.
pub(crate) fn malformed(config: &TraceConfig, origin: &ConfigOrigin) -> Option<Malformed> {
    let sources = config.data_sources.iter().enumerate();
    let mut ftrace = sources.filter(|(_, source)| source.config.name.as_deref() == Some(FTRACE));
    ftrace.find_map(|(index, source)| {
        let events = &source.config.ftrace_config.ftrace_events;
        let (position, event) = events
            .iter()
            .enumerate()
            .find(|(_, event)| !is_event_pattern(event))?;
        let path = format!("data_sources[{index}].config.ftrace_config.ftrace_events[{position}]");
        let change = match origin {
            ConfigOrigin::Flags => instead(event, |name| format!("'{name}'")),
            _ => instead(event, |name| format!("ftrace_events: \"{name}\"")),
        };
        Some(Malformed {
            place: match origin {
                ConfigOrigin::Flags => None,
                ConfigOrigin::Text { name, positions } => Some((name.clone(), positions.place(&path))),
                ConfigOrigin::Encoded { name } => Some((format!("{name}: {path}"), None)),
            },
            sentence: format!(
                "`{}` is no name of kernel events, which are `name`, `group/name` or `group/*`: {change}",
                event.escape_debug()
            ),
        })
    })
}

/// Suggests a correct name for a malformed one; `shown` formats it as the config needs it.
fn instead(name: &str, shown: impl Fn(&str) -> String) -> String {
    let right = names_in(name);
    if right.is_empty() || !right.iter().all(|name| is_name(name)) {
        return format!(
            "write {} for one event, {} for all of a group",
            shown("sched/sched_switch"),
            shown("sched/*")
        );
    }
    let right: Vec<String> = right.iter().map(|name| shown(name)).collect();
    format!("write {}", right.join(" "))
}

/// Returns the names in a word, each spelled as in configs. `perf` and `trace-cmd` write `group:name` and put commas between names, `bpftrace` writes
/// `tracepoint:group:name`, and the kernel has a folder for each.
pub(crate) fn names_in(word: &str) -> Vec<String> {
    word.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(as_configs_have_it)
        .collect()
}

fn as_configs_have_it(name: &str) -> String {
    let name = match name.strip_prefix('/') {
        Some(path) => path.rsplit_once("events/").map_or(path, |(_, event)| event),
        None => name.strip_prefix("events/").unwrap_or(name),
    };
    let name = ["tracepoint:", "t:"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    let name = name.replacen(':', "/", 1);
    let name = name.strip_suffix("/enable").unwrap_or(&name);
    match name.strip_suffix('/') {
        Some(group) => format!("{group}/*"),
        None => name.to_owned(),
    }
}

/// Whether advice may suggest this name. A `*` for all groups records nothing, so the groups must be named.
pub(crate) fn is_name(name: &str) -> bool {
    is_event_pattern(name) && name != "*"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_other_tools_are_understood() {
        for (typed, names) in [
            ("sched/sched_switch", &["sched/sched_switch"][..]),
            ("sched:sched_switch", &["sched/sched_switch"]),
            ("sched:*", &["sched/*"]),
            ("sched/*,irq/*", &["sched/*", "irq/*"]),
            (
                "sched:sched_switch, irq:softirq_entry,",
                &["sched/sched_switch", "irq/softirq_entry"],
            ),
            (
                "tracepoint:syscalls:sys_enter_openat",
                &["syscalls/sys_enter_openat"],
            ),
            ("t:sched:sched_switch", &["sched/sched_switch"]),
            (
                "/sys/kernel/tracing/events/sched/sched_switch/enable",
                &["sched/sched_switch"],
            ),
            ("events/sched/", &["sched/*"]),
            ("sched_switch", &["sched_switch"]),
            (",", &[]),
        ] {
            assert_eq!(names_in(typed), names, "{typed}");
        }
    }

    #[test]
    fn a_malformed_name_is_refused_with_the_right_one() {
        let change = |name: &str| instead(name, |name| format!("'{name}'"));
        assert_eq!(change("sched/*,irq/*"), "write 'sched/*' 'irq/*'");
        assert_eq!(change("/sched/sched_switch"), "write 'sched/sched_switch'");
        assert_eq!(change("sched/"), "write 'sched/*'");
        for name in ["*/*", "sched/*_switch", "a/b/c", "*"] {
            assert!(change(name).contains("'sched/*' for all of a group"), "{name}");
        }
    }
}
