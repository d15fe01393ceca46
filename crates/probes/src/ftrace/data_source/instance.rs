//! One tracefs directory in use, with what all its sessions share: settings, table of events, open buffers.

use std::collections::BTreeSet;

use ferretto_proto::messages::FtraceConfig;
use ferretto_proto::messages::ftrace_config::KsymsMemPolicy;

use super::{DEFAULT_PERIOD_MS, FtraceError, PERIODS_MS, SeenThreads, Session, SetupReport, SymbolsWanted};
use crate::ftrace::bundle::ClockSnapshot;
use crate::ftrace::control::{Control, Description, FtraceSessionId, Setup};
use crate::ftrace::decoding::decode_config;
use crate::ftrace::field::Read;
use crate::ftrace::format::PageLayout;
use crate::ftrace::printk_formats::PrintkFormats;
use crate::ftrace::reader::{CpuBuffer, PagePool};
use crate::ftrace::request::{InstanceRole, KPROBE_GROUP, KRETPROBE_GROUP};
use crate::ftrace::restore::{JournalDir, Restorer};
use crate::ftrace::session::Session as Decoding;
use crate::ftrace::stats::{CpuStats, FtraceStats};
use crate::ftrace::table::{EventPlan, Table};
use crate::ftrace::tracefs::{EventName, Tracefs};
use crate::ftrace::watch::Watch;
use crate::ftrace::watch::writers::Writers;
use ferretto_client::runtime::probe::BootTime;

/// One tracefs directory in use. The order of the fields is that in which they are dropped: the raw buffers have to be
/// closed before everything is put back.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) buffers: Vec<CpuBuffer>,
    pub(super) control: Control,
    pub(super) table: Table,
    pub(super) pool: PagePool,
    pub(super) started: BTreeSet<FtraceSessionId>,
    pub(super) watches_watermark: bool,
    /// Present while a session has started.
    pub(super) watch: Option<Watch>,
    /// Likewise, where the kernel tells of writes.
    pub(super) writers: Option<Writers>,
    /// When more than the most important is looked at again.
    pub(super) next_look: BootTime,
}

impl Instance {
    /// The directory, of which nothing is changed yet.
    pub(super) fn open(
        tracefs: Tracefs,
        role: InstanceRole,
        journal_dir: Option<JournalDir>,
    ) -> Result<Instance, FtraceError> {
        let header = tracefs.read("events/header_page")?;
        let layout = PageLayout::parse(&header).map_err(|error| FtraceError::Layout(error.to_string()))?;
        let printk_formats = tracefs.read("printk_formats").unwrap_or_default();
        let pool = PagePool::new(layout.page_size());
        let restorer = Restorer::new(tracefs, journal_dir);
        Ok(Instance {
            buffers: Vec::new(),
            control: Control::new(restorer, role),
            table: Table::new(layout, PrintkFormats::parse(&printk_formats)),
            pool,
            started: BTreeSet::new(),
            watches_watermark: false,
            watch: None,
            writers: None,
            next_look: 0,
        })
    }

    /// Prepares the kernel for the session.
    pub(super) fn setup(
        &mut self,
        id: FtraceSessionId,
        config: &FtraceConfig,
    ) -> Result<(Session, SetupReport), FtraceError> {
        let table = &mut self.table;
        let Setup {
            events,
            kprobes,
            mut errors,
            mut warnings,
        } = self
            .control
            .setup(id, config, &mut |tracefs, event| describe(table, tracefs, event))?;
        let decoding = Decoding::new(&self.table, decode_config(config, &self.table, &events, &kprobes));
        if has_odd_sched_format(&self.table) {
            errors
                .failed_events
                .push("perfetto/compact_sched (unexpected sched event format)".to_owned());
        }
        if config.print_filter.is_set() && has_odd_print_format(&self.table) {
            errors
                .failed_events
                .push("ftrace/print (unexpected format for filtering)".to_owned());
        }
        let drain_period_ms = config.drain_period_ms;
        if let Some(period) = drain_period_ms.filter(|period| !PERIODS_MS.contains(period)) {
            warnings.push(format!(
                "drain_period_ms is {period} and has to be {} to {}: {DEFAULT_PERIOD_MS} is used",
                PERIODS_MS.start(),
                PERIODS_MS.end()
            ));
        }
        let session = Session {
            instance: config.instance_name.clone().unwrap_or_default(),
            drain_period_ms,
            wants_watermark: config.drain_buffer_percent.is_some(),
            symbols: match (config.symbolize_ksyms.unwrap_or(false), config.ksyms_mem_policy) {
                (false, _) => SymbolsWanted::No,
                (true, Some(KsymsMemPolicy::KSYMS_RETAIN)) => SymbolsWanted::Forever,
                (true, _) => SymbolsWanted::UntilStop,
            },
            preserves_buffer: config.preserve_ftrace_buffer.unwrap_or(false),
            has_kprobes: !kprobes.is_empty(),
            setup_errors: errors.clone(),
            recorded: events.into_iter().chain(kprobes.into_keys()).collect(),
            started: 0,
            troubles: Vec::new(),
            told: 0,
            decoding,
            stats_at_start: FtraceStats::default(),
            threads: SeenThreads::default(),
        };
        Ok((session, SetupReport { errors, warnings }))
    }

    /// Both clocks now, unless the buffers' time stamps are of the boot clock anyway.
    pub(super) fn clock_snapshot(&self) -> Option<ClockSnapshot> {
        let clock = self.control.clock()?;
        let cpu = self.buffers.first()?.cpu();
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let stats = CpuStats::read(self.control.tracefs(), cpu).unwrap_or_default();
        Some(ClockSnapshot {
            clock,
            ftrace_timestamp: stats.now_nanoseconds(),
            boot_timestamp: boot.tv_sec * 1_000_000_000 + boot.tv_nsec,
        })
    }
}

/// Has the table learn how to write `event`.
fn describe(table: &mut Table, tracefs: &Tracefs, event: &EventName) -> Result<Description, String> {
    let format = tracefs.event_format(event).map_err(|error| error.to_string())?;
    let (group, name) = (event.group.as_str(), event.name.as_str());
    let id = match group {
        KPROBE_GROUP | KRETPROBE_GROUP => {
            // The kernel gives a probe that is made anew another number.
            table.remove(group, name);
            table.add_kprobe(group, name, &format)
        }
        _ => table.add(group, name, &format),
    };
    let id = id.map_err(|error| error.to_string())?;
    Ok(match table.plan(id).is_some_and(|plan| plan.is_generic()) {
        true => Description::Generic,
        false => Description::Typed,
    })
}

/// Whether a scheduler event is there whose fields are not those that the compact encoding is made for.
fn has_odd_sched_format(table: &Table) -> bool {
    let is_there = |name| table.find("sched", name).is_some();
    (is_there("sched_switch") && table.switch().is_none())
        || (is_there("sched_waking") && table.waking().is_none())
}

/// Whether print events have no text to filter by.
fn has_odd_print_format(table: &Table) -> bool {
    let has_text = |plan: &EventPlan| plan.fields.iter().any(|field| field.read == Read::TrailingString);
    table
        .find("ftrace", "print")
        .is_some_and(|print| !has_text(print))
}
