//! The events that one session wants from the pages that all sessions read, and the state of its decoding.
//! The config muxer makes a [`DecodeConfig`] from a session's `FtraceConfig`; a [`Session`] is made from it and the
//! translation table, and handed to the bundle writer with each read of a CPU's buffer.

use super::compact_sched::{SwitchFormat, WakingFormat};
use super::generic::GenericEncoding;
use super::metadata::Metadata;
use super::page::ParseStatus;
use super::print_filter::PrintFilter;
use super::table::Table;
use std::collections::{BTreeMap, BTreeSet};

/// How scheduler events are to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedEncoding {
    /// In columns, where the kernel's formats and the events asked for allow it.
    #[default]
    Compact,
    /// Each event by itself with all its fields.
    Verbose,
}

/// The meaning of a kprobe. The numbers are those of `KprobeEvent.KprobeType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KprobeType {
    /// Entering a function.
    Begin = 1,
    /// Leaving a function.
    End = 2,
    /// Passing by.
    Instant = 3,
}

/// The data that a session wants written.
#[derive(Clone, Debug, Default)]
pub struct DecodeConfig {
    /// Ids of the events. Others in the same pages belong to other sessions.
    pub events: BTreeSet<u16>,
    /// How to write scheduler events.
    pub sched_encoding: SchedEncoding,
    /// How to write events that the trace format has no message for.
    pub generic_encoding: GenericEncoding,
    /// Which print events to keep, if not all.
    pub print_filter: Option<PrintFilter>,
    /// Numbers of the system calls whose results are noted in `Metadata::opened_fds`.
    pub syscalls_returning_fd: BTreeSet<i64>,
    /// The meaning of the session's kprobes, by event id.
    pub kprobes: BTreeMap<u16, KprobeType>,
}

/// The treatment of an event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Action {
    Skip,
    CompactSwitch,
    CompactWaking,
    FilteredPrint,
    Write,
}

/// The state of one session's decoding.
#[derive(Debug)]
pub struct Session {
    pub(super) config: DecodeConfig,
    /// By event id; ids beyond the end are skipped.
    pub(super) actions: Vec<Action>,
    pub(super) switch: Option<SwitchFormat>,
    pub(super) waking: Option<WakingFormat>,
    pub(super) metadata: Metadata,
    pub(super) parse_errors: BTreeSet<ParseStatus>,
    /// By CPU: time of the last event written, zero before the first.
    last_written: Vec<u64>,
}

impl Session {
    /// Prepares to decode the events of `config` that are in the table.
    pub fn new(table: &Table, config: DecodeConfig) -> Self {
        let wants = |id: u16| config.events.contains(&id);
        let switch = table.switch().filter(|(id, _)| wants(*id));
        let waking = table.waking().filter(|(id, _)| wants(*id));
        let waking_is_odd = waking.is_none()
            && table
                .find("sched", "sched_waking")
                .is_some_and(|plan| wants(plan.id));
        // Readers derive the waking thread from the thread that was running, so compact wakings need the switches. If
        // one format of a kernel is unexpected, the other is not trusted either.
        let compact = config.sched_encoding == SchedEncoding::Compact && switch.is_some() && !waking_is_odd;

        let mut actions = Vec::new();
        for plan in table.plans().filter(|plan| wants(plan.id)) {
            let is = |format: Option<u16>| compact && format == Some(plan.id);
            let action = if is(switch.map(|(id, _)| id)) {
                Action::CompactSwitch
            } else if is(waking.map(|(id, _)| id)) {
                Action::CompactWaking
            } else if config.print_filter.is_some() && plan.group == "ftrace" && plan.name == "print" {
                Action::FilteredPrint
            } else {
                Action::Write
            };
            actions.resize(usize::from(plan.id) + 1, Action::Skip);
            actions[usize::from(plan.id)] = action;
        }
        Self {
            config,
            actions,
            switch: switch.map(|(_, format)| format),
            waking: waking.map(|(_, format)| format),
            metadata: Metadata::default(),
            parse_errors: BTreeSet::new(),
            last_written: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The facts gathered since the last clear. They are cleared after each round over the CPUs.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// All kinds of errors so far, for the stats at the end of the trace.
    pub(crate) fn parse_errors(&self) -> &BTreeSet<ParseStatus> {
        &self.parse_errors
    }

    /// Adds an error of a read that gave no page to decode.
    pub(crate) fn add_parse_error(&mut self, status: ParseStatus) {
        self.parse_errors.insert(status);
    }

    /// Time of the last event written for a CPU; zero if there was none.
    pub(super) fn last_written(&self, cpu: u32) -> u64 {
        self.last_written.get(cpu as usize).copied().unwrap_or_default()
    }

    pub(super) fn set_last_written(&mut self, cpu: u32, timestamp: u64) {
        let index = cpu as usize;
        if self.last_written.len() <= index {
            self.last_written.resize(index + 1, 0);
        }
        self.last_written[index] = timestamp;
    }
}
