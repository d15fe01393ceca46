//! One tracefs directory in use, with everything that its sessions share: settings, table of events, open buffers.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use ferretto_proto::messages::FtraceConfig;
use ferretto_proto::messages::ftrace_config::KsymsMemPolicy;

use super::draining::{Flush, Progress};
use super::{DEFAULT_PERIOD_MS, FtraceError, PERIODS_MS, SeenThreads, Session, SymbolsWanted};
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
use crate::ftrace::tracefs::{EventName, Setting, Tracefs, TracefsError};
use crate::ftrace::watch::Watch;
use crate::ftrace::watch::writers::Writers;
use crate::ftrace::watermarks::{CpuBufferId, Watermarks};
use ferretto_client::runtime::probe::BootTime;

/// No kernel has larger sub-buffers.
const MOST_SUB_BUFFER_KIB: usize = 16 << 10;

/// One tracefs directory in use. The fields are dropped in this order: the raw buffers have to be closed before everything is put
/// back.
#[derive(Debug)]
pub(super) struct Instance {
    /// A number that no other instance of this process has.
    pub(super) serial: u32,
    /// In the order of the CPUs.
    pub(super) buffers: Vec<CpuBuffer>,
    /// The index of the buffer with which the next turn begins.
    pub(super) next_buffer: usize,
    /// The number of buffers that were read until nothing was left since one last had more, over all turns. When it reaches the
    /// number of buffers, a drain has caught up.
    pub(super) caught_up: usize,
    /// How the last turn ended.
    pub(super) progress: Progress,
    pub(super) flushes: Vec<Flush>,
    /// CPUs whose buffers cannot be read, and whose sessions were told so.
    pub(super) unreadable: BTreeSet<u32>,
    /// CPUs whose buffers were reported as full and have not been read since.
    pub(super) reported: BTreeSet<u32>,
    /// The `reported` CPUs that were read in this turn.
    pub(super) emptied: Vec<u32>,
    pub(super) control: Control,
    pub(super) table: Table,
    pub(super) pool: PagePool,
    pub(super) started: BTreeSet<FtraceSessionId>,
    pub(super) watches_watermark: bool,
    /// Present while a session has started.
    pub(super) watch: Option<Watch>,
    /// Notices writes to files, where the kernel reports them. Present while a session has started.
    pub(super) writers: Option<Writers>,
    /// When the next regular look is due.
    pub(super) next_look: BootTime,
    /// Warnings for the next session.
    warnings: Vec<String>,
}

impl Instance {
    /// Opens the directory without changing anything in it.
    pub(super) fn open(
        serial: u32,
        tracefs: Tracefs,
        role: InstanceRole,
        journal_dir: Option<JournalDir>,
    ) -> Result<Instance, FtraceError> {
        let (layout, warning) = page_layout(&tracefs)?;
        // All instances share the top directory's file.
        let printk_formats = tracefs.top().read("printk_formats").unwrap_or_default();
        let pool = PagePool::new(layout.page_size());
        let restorer = Restorer::new(tracefs, journal_dir);
        Ok(Instance {
            serial,
            buffers: Vec::new(),
            next_buffer: 0,
            caught_up: 0,
            progress: Progress::CaughtUp,
            flushes: Vec::new(),
            unreadable: BTreeSet::new(),
            reported: BTreeSet::new(),
            emptied: Vec::new(),
            control: Control::new(restorer, role),
            table: Table::new(layout, PrintkFormats::parse(&printk_formats)),
            pool,
            started: BTreeSet::new(),
            watches_watermark: false,
            watch: None,
            writers: None,
            next_look: 0,
            warnings: warning.into_iter().collect(),
        })
    }

    /// Opens the buffers that are not open yet. Returns the CPUs whose buffers cannot be opened, with the reason.
    pub(super) fn open_buffers(&mut self) -> Result<Vec<(u32, TracefsError)>, FtraceError> {
        self.caught_up = 0;
        let tracefs = self.control.tracefs();
        let mut missing = Vec::new();
        for cpu in tracefs.cpus()? {
            if self.buffers.iter().any(|buffer| buffer.cpu() == cpu) {
                continue;
            }
            match CpuBuffer::open(tracefs, cpu) {
                Ok(buffer) => self.buffers.push(buffer),
                Err(error) => missing.push((cpu, error)),
            }
        }
        self.buffers.sort_unstable_by_key(CpuBuffer::cpu);
        match missing.pop() {
            Some((_, error)) if self.buffers.is_empty() => Err(error.into()),
            last => {
                missing.extend(last);
                Ok(missing)
            }
        }
    }

    /// Closes all buffers.
    pub(super) fn close_buffers(&mut self) {
        self.buffers.clear();
        self.reported.clear();
        self.unreadable.clear();
    }

    fn buffer_id(&self, buffer: &CpuBuffer) -> CpuBufferId {
        CpuBufferId {
            instance: self.serial,
            cpu: buffer.cpu(),
        }
    }

    /// Watches all buffers for the fill level, including those of CPUs that had never been on before.
    pub(super) fn watch_buffers(&mut self, watermarks: &Watermarks) {
        if self.watches_watermark {
            for buffer in &self.buffers {
                watermarks.watch(self.buffer_id(buffer), buffer.as_fd());
            }
        }
    }

    /// Stops watching the buffers.
    pub(super) fn forget_buffers(&mut self, watermarks: &Watermarks) {
        for buffer in &self.buffers {
            watermarks.forget(buffer.as_fd());
        }
        self.reported.clear();
    }

    /// Watches buffers again that were reported as full and have been read since.
    pub(super) fn watch_emptied_again(&mut self, watermarks: &Watermarks) {
        let emptied = std::mem::take(&mut self.emptied);
        self.watch_again(emptied, watermarks);
    }

    /// Watches buffers again that were reported as full and gave nothing so far.
    pub(super) fn watch_reported_again(&mut self, watermarks: &Watermarks) {
        let reported = std::mem::take(&mut self.reported);
        self.watch_again(reported, watermarks);
    }

    fn watch_again(&self, cpus: impl IntoIterator<Item = u32>, watermarks: &Watermarks) {
        for cpu in cpus {
            if let Some(buffer) = self.buffers.iter().find(|buffer| buffer.cpu() == cpu) {
                watermarks.watch_again(self.buffer_id(buffer), buffer.as_fd());
            }
        }
    }

    /// Prepares the kernel for the session; returns the warnings, too.
    pub(super) fn setup(
        &mut self,
        id: FtraceSessionId,
        config: &FtraceConfig,
    ) -> Result<(Session, Vec<String>), FtraceError> {
        let table = &mut self.table;
        let Setup {
            events,
            kprobes,
            mut errors,
            warnings,
        } = self
            .control
            .setup(id, config, &mut |tracefs, event| describe(table, tracefs, event))?;
        let mut warnings = [std::mem::take(&mut self.warnings), warnings].concat();
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
            symbols: match (config.symbolize_ksyms.unwrap_or(false), config.ksyms_mem_policy) {
                (false, _) => SymbolsWanted::No,
                (true, Some(KsymsMemPolicy::KSYMS_RETAIN)) => SymbolsWanted::Forever,
                (true, _) => SymbolsWanted::UntilStop,
            },
            preserves_buffer: config.preserve_ftrace_buffer.unwrap_or(false),
            has_kprobes: !kprobes.is_empty(),
            setup_errors: errors,
            recorded: events.into_iter().chain(kprobes.into_keys()).collect(),
            started: 0,
            troubles: Vec::new(),
            told: 0,
            decoding,
            stats_at_start: FtraceStats::default(),
            threads: SeenThreads::default(),
        };
        Ok((session, warnings))
    }

    /// Both clocks now; `None` if the buffers' time stamps are of the boot clock.
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

/// How the pages of `tracefs` are laid out. If the kernel does not tell, returns the usual layout and a sentence that says so.
fn page_layout(tracefs: &Tracefs) -> Result<(PageLayout, Option<String>), FtraceError> {
    match tracefs.read("events/header_page") {
        Ok(header) if !header.is_empty() => {
            let layout =
                PageLayout::parse(&header).map_err(|error| FtraceError::Layout(error.to_string()))?;
            Ok((layout, None))
        }
        unread => {
            let sub_buffer_kib = tracefs.get(&Setting::SubBufferSizeKb).ok();
            let page_bytes = sub_buffer_kib
                .and_then(|kib| kib.parse::<usize>().ok())
                .filter(|kib| (1..=MOST_SUB_BUFFER_KIB).contains(kib))
                .map_or_else(rustix::param::page_size, |kib| kib << 10);
            let reason = match unread {
                Ok(_) => format!("{}/events/header_page is empty", tracefs.root().display()),
                Err(error) => error.to_string(),
            };
            let warning = format!(
                "{reason}: the kernel's pages are taken to have {page_bytes} bytes, and their usual layout"
            );
            Ok((PageLayout::usual(page_bytes), Some(warning)))
        }
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

/// Whether the fields of a scheduler event differ from those that the compact encoding is made for.
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
