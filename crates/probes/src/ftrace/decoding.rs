//! Derives the config of a session's page decoder from its `FtraceConfig` and the events that it got. Used by
//! [`super::data_source`].

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::FtraceConfig;
use ferretto_proto::messages::ftrace_config::PrintFilter as ConfigPrintFilter;
use ferretto_proto::messages::ftrace_config::print_filter::rule::Match;

use super::generic::GenericEncoding;
use super::print_filter::{Pattern, PrintFilter, Rule, Verdict};
use super::session::{DecodeConfig, KprobeType, SchedEncoding};
use super::syscalls;
use super::table::Table;
use super::tracefs::EventName;

/// The decoder's view of `config`, given the `events` and `kprobes` that could be switched on.
pub(super) fn decode_config(
    config: &FtraceConfig,
    table: &Table,
    events: &BTreeSet<EventName>,
    kprobes: &BTreeMap<EventName, KprobeType>,
) -> DecodeConfig {
    let id = |event: &EventName| table.find(&event.group, &event.name).map(|plan| plan.id);
    let compact_sched = config
        .compact_sched
        .as_option()
        .and_then(|compact| compact.enabled)
        .unwrap_or(true);
    DecodeConfig {
        events: events.iter().chain(kprobes.keys()).filter_map(id).collect(),
        sched_encoding: match compact_sched {
            true => SchedEncoding::Compact,
            false => SchedEncoding::Verbose,
        },
        generic_encoding: match config.denser_generic_event_encoding.unwrap_or(true) {
            true => GenericEncoding::Descriptors,
            false => GenericEncoding::Names,
        },
        print_filter: config.print_filter.as_option().map(print_filter),
        // For `resolve_process_fds` of the session's linux.process_stats.
        syscalls_returning_fd: [
            "sys_open",
            "sys_openat",
            "sys_socket",
            "sys_dup",
            "sys_dup2",
            "sys_dup3",
        ]
        .into_iter()
        .filter_map(|call| syscalls::number(call).map(i64::from))
        .collect(),
        kprobes: kprobes
            .iter()
            .filter_map(|(event, kind)| Some((id(event)?, *kind)))
            .collect(),
    }
}

fn print_filter(config: &ConfigPrintFilter) -> PrintFilter {
    let rules = config.rules.iter().map(|rule| Rule {
        pattern: match &rule.r#match {
            Some(Match::AtraceMsg(message)) => Pattern::AtraceMessage {
                kind: message.r#type.clone().unwrap_or_default().into_bytes(),
                prefix: message.prefix.clone().unwrap_or_default().into_bytes(),
            },
            Some(Match::Prefix(prefix)) => Pattern::Prefix(prefix.clone().into_bytes()),
            None => Pattern::Prefix(Vec::new()),
        },
        verdict: match rule.allow.unwrap_or(false) {
            true => Verdict::Allow,
            false => Verdict::Deny,
        },
    });
    PrintFilter {
        rules: rules.collect(),
    }
}
