//! Advice on data sources: whether there are any, whether a producer offers them, and whether the rest of the config fits them.
//!
//! [`advise`](super::advise) calls it. It judges the offers only if the service was asked.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ferretto_probes::{inode_file_map, process_stats};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{DataSourceConfig, Message};
use ferretto_proto::text::nearest;
use ferretto_service::{Machine, ProducerFilter};

use super::known_sources::{self, FTRACE, Owner, TRACK_EVENT};
use super::{Adviser, name_of};

pub(super) fn advise(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    if config.data_sources.is_empty() {
        adviser.warn(
            "",
            "there is no data source: the trace will have nothing but the service's own packets",
            "add `data_sources { config { name: \"linux.ftrace\" … } }` or another",
        );
    }
    for (index, source) in config.data_sources.iter().enumerate() {
        if adviser.has_enough() {
            return;
        }
        let path = format!("data_sources[{index}]");
        let name = name_of(source);
        if name.is_empty() {
            no_name(adviser, &path, source);
            continue;
        }
        foreign_configs(adviser, &path, source);
        if offered(adviser, &path, name) {
            producers(adviser, &path, source);
        }
    }
    twice(adviser);
    no_process_stats(adviser);
    no_inodes(adviser);
}

/// A nested config that only one data source reads.
struct OwnConfig {
    field: &'static str,
    reader: &'static str,
    is_set: fn(&DataSourceConfig) -> bool,
}

const CONFIGS: &[OwnConfig] = &[
    OwnConfig {
        field: "ftrace_config",
        reader: FTRACE,
        is_set: |config| config.ftrace_config.is_set(),
    },
    OwnConfig {
        field: "process_stats_config",
        reader: process_stats::NAME,
        is_set: |config| config.process_stats_config.is_set(),
    },
    OwnConfig {
        field: "sys_stats_config",
        reader: ferretto_probes::sys_stats::NAME,
        is_set: |config| config.sys_stats_config.is_set(),
    },
    OwnConfig {
        field: "system_info_config",
        reader: ferretto_probes::system_info::NAME,
        is_set: |config| config.system_info_config.is_set(),
    },
    OwnConfig {
        field: "journald_config",
        reader: ferretto_probes::journald::NAME,
        is_set: |config| config.journald_config.is_set(),
    },
    OwnConfig {
        field: "inode_file_config",
        reader: inode_file_map::NAME,
        is_set: |config| config.inode_file_config.is_set(),
    },
    OwnConfig {
        field: "frozen_ftrace_config",
        reader: ferretto_probes::ftrace::frozen::NAME,
        is_set: |config| config.frozen_ftrace_config.is_set(),
    },
    OwnConfig {
        field: "track_event_config",
        reader: TRACK_EVENT,
        is_set: |config| config.track_event_config.is_set(),
    },
];

fn no_name(adviser: &mut Adviser<'_>, path: &str, source: &DataSource) {
    let given = CONFIGS.iter().find(|own| (own.is_set)(&source.config));
    let change = match given {
        Some(own) => format!("write `name: \"{}\"`", own.reader),
        None => "write `name: \"…\"` into its `config`".to_owned(),
    };
    adviser.warn(
        format!("{path}.config"),
        "the data source has no name: nobody will record it",
        change,
    );
}

/// Warns of a nested config that another data source reads.
fn foreign_configs(adviser: &mut Adviser<'_>, path: &str, source: &DataSource) {
    let name = name_of(source);
    let Some(owner) = known_sources::owner(name) else {
        return;
    };
    for OwnConfig {
        field,
        reader,
        is_set,
    } in CONFIGS
    {
        // Chrome's data sources read the config of track events.
        let related = *reader == TRACK_EVENT && owner == Owner::Chrome;
        if is_set(&source.config) && *reader != name && !related {
            adviser.warn(
                format!("{path}.config.{field}"),
                format!("{name} does not read {field}"),
                format!("give it to a data source of its own, with the name \"{reader}\""),
            );
        }
    }
}

/// Whether a producer offers it; true if the service was not asked. Warns if none does.
fn offered(adviser: &mut Adviser<'_>, path: &str, name: &str) -> bool {
    let Some(offers) = &adviser.surroundings.service else {
        return true;
    };
    if offers.offering(name).next().is_some() {
        return true;
    }
    let mut names: Vec<&str> = known_sources::names().collect();
    names.extend(offers.sources.iter().map(|source| source.name.as_str()));
    let owner = known_sources::owner(name);
    let similar = nearest(name, names);
    let listed = known_sources::names().any(|known| known == name);
    let change = match (owner, similar) {
        // The name belongs to a known family but is not in the table, and it resembles a known name.
        (_, Some(similar)) if !listed => format!("did you mean \"{similar}\"?"),
        (Some(Owner::Android), _) => "it exists on Android only: leave it out".to_owned(),
        (Some(Owner::Daemon { name, unit }), _) => {
            format!("start `{name}`, which offers it: `systemctl enable --now {unit}` where it is installed")
        }
        (Some(Owner::Applications), _) => {
            "start a program that is instrumented; it is recorded as soon as it connects".to_owned()
        }
        (Some(Owner::Chrome), _) => {
            "start Chrome with --enable-features=EnablePerfettoSystemTracing; it is recorded as soon as it connects"
                .to_owned()
        }
        (Some(Owner::GraphicsDrivers), _) => {
            "the driver of the graphics processor has it: start a program that uses it, or leave it out".to_owned()
        }
        (Some(Owner::OtherSystem(system)), _) => format!("it exists on {system} only: leave it out"),
        (None, _) => "`ferretto list sources` shows what there is; a producer that connects later is recorded".to_owned(),
    };
    adviser.warn(
        format!("{path}.config.name"),
        format!("nobody offers the data source \"{name}\" at the moment"),
        change,
    );
    false
}

/// Warns of filters that exclude every producer of the data source.
fn producers(adviser: &mut Adviser<'_>, path: &str, source: &DataSource) {
    let machines = &source.machine_name_filter;
    let this = &adviser.surroundings.machine.name;
    let Some(offers) = &adviser.surroundings.service else {
        return;
    };
    let known: Vec<&str> = offers
        .producers
        .iter()
        .map(|producer| producer.machine.as_str())
        .filter(|machine| !machine.is_empty())
        .chain(["host", this])
        .collect();
    let strange: Vec<usize> = (0..machines.len())
        .filter(|index| !known.contains(&machines[*index].as_str()))
        .collect();
    let own = |machine: &String| machine == "host" || machine == this;
    let passing: Vec<&str> = offers
        .offering(name_of(source))
        .filter_map(|(_, producer)| Some(producer?.name.as_str()))
        .collect();
    let mut missing = Vec::new();
    for index in strange {
        missing.push((
            format!("{path}.machine_name_filter[{index}]"),
            format!("no machine is called \"{}\"", machines[index]),
            format!("this one is \"host\" or \"{this}\""),
        ));
    }
    let filtered = !source.producer_name_filter.is_empty() || !source.producer_name_regex_filter.is_empty();
    // The other advice covers machine filters, so this one asks for the names alone.
    let by_name = DataSource {
        machine_name_filter: Vec::new(),
        ..source.clone()
    };
    if filtered
        && (machines.is_empty() || machines.iter().any(own))
        // The service refuses a filter that is no regular expression, and says why.
        && let Ok(filter) = ProducerFilter::of(&by_name, this)
        && !passing.iter().any(|name| filter.passes(name, &Machine::Host))
    {
        let field = match source.producer_name_filter.is_empty() {
            true => "producer_name_regex_filter",
            false => "producer_name_filter",
        };
        let wanted = source.producer_name_filter.first();
        let similar = wanted.and_then(|wanted| nearest(wanted, passing.iter().copied()));
        let names = || {
            const MOST: usize = 5;
            let mut names: Vec<String> = passing
                .iter()
                .take(MOST)
                .map(|name| format!("\"{name}\""))
                .collect();
            names.dedup();
            if passing.len() > MOST {
                names.push("…".to_owned());
            }
            names.join(", ")
        };
        missing.push((
            format!("{path}.{field}[0]"),
            format!(
                "of the producers that offer \"{}\" at the moment none has such a name",
                name_of(source)
            ),
            match similar {
                Some(similar) => format!("did you mean \"{similar}\"?"),
                None => format!("there is {}; one that connects later is recorded", names()),
            },
        ));
    }
    for (path, what, change) in missing {
        adviser.warn(path, what, change);
    }
}

/// Warns of identical data sources, which every producer would record twice.
fn twice(adviser: &mut Adviser<'_>) {
    let mut seen = HashMap::new();
    let mut again = Vec::new();
    for (index, source) in adviser.config.data_sources.iter().enumerate() {
        let mut plain = source.clone();
        let config = plain.config.get_or_insert_default();
        config.target_buffer = None;
        config.target_buffer_name = None;
        if name_of(source).is_empty() {
            continue;
        }
        match seen.entry(plain.encode_to_vec()) {
            Entry::Vacant(first) => _ = first.insert(index),
            Entry::Occupied(first) => again.push((index, *first.get())),
        }
    }
    for (index, first) in again {
        adviser.warn(
            format!("data_sources[{index}].config.name"),
            format!("data_sources[{first}] is the same: every event will be recorded twice"),
            "leave one of them out, or make their configs differ",
        );
    }
}

/// Warns if `linux.process_stats` is missing. Kernel events have only threads, and that source assigns these to processes.
fn no_process_stats(adviser: &mut Adviser<'_>) {
    let sources = &adviser.config.data_sources;
    let ftrace = sources.iter().position(|source| name_of(source) == FTRACE);
    let processes = sources
        .iter()
        .any(|source| name_of(source) == process_stats::NAME);
    if let (Some(index), false) = (ftrace, processes) {
        adviser.hint(
            format!("data_sources[{index}].config.name"),
            "without \"linux.process_stats\" the trace does not say which threads belong to which process",
            "add `data_sources { config { name: \"linux.process_stats\" process_stats_config { scan_all_processes_on_start: true \
             } } }`",
        );
    }
}

/// Paths are looked for only for inodes that kernel events name.
fn no_inodes(adviser: &mut Adviser<'_>) {
    let sources = &adviser.config.data_sources;
    let map = sources
        .iter()
        .position(|source| name_of(source) == inode_file_map::NAME);
    let ftrace = sources.iter().any(|source| name_of(source) == FTRACE);
    if let (Some(index), false) = (map, ftrace) {
        adviser.warn(
            format!("data_sources[{index}].config.name"),
            "\"linux.inode_file_map\" has the paths of inodes that \"linux.ftrace\" sees, and there is no such data source",
            "add `data_sources { config { name: \"linux.ftrace\" ftrace_config { ftrace_events: \"ext4/*\" } } }` or the events of \
             your file system",
        );
    }
}
