//! `linux.frozen_ftrace`: the events of a ring buffer that survived a reboot.
//!
//! The kernel keeps such a buffer in memory that was reserved when it booted, as an instance of tracefs (the kernel's parameters `reserve_mem`
//! The kernel keeps such a buffer in memory that was reserved when it booted, as an instance of tracefs (the kernel's parameters `reserve_mem`
//! and `trace_instance`; `Documentation/trace/debugging.rst` of the Linux source). After the next boot the instance still has the earlier events,
//! until somebody records into it. Any instance that has stopped looks the same to a reader, and is read as well.
//!
//! One instance of the data source reads one instance of tracefs to its end, a bounded amount in each turn. It reads the formats of all events
//! first, because the buffer may have any of them, and then the pages. The packets have the form of `linux.ftrace`'s. Each event has all its
//! fields, and the time that the buffer gives. Threads, files and kernel addresses of another boot mean nothing now, so they are not looked up.
//!
//! Guarantees: no setting of tracefs is changed. Reading takes the events out of the buffer. When the session ends after the whole buffer was
//! read, the buffer is emptied, so that the next boot does not find the same events again. If the session ends before that, trace and log say so
//! and the unread events stay.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_proto::messages::DataSourceConfig;
use ferretto_proto::messages::ftrace_stats::Phase;
use ferretto_wire::Writer;

use super::bundle::{BundleWriter, CpuRead};
use super::format::PageLayout;
use super::instances::TracefsPolicy;
use super::printk_formats::PrintkFormats;
use super::reader::{ASSUMED_PAGES, BATCH_PAGES, BatchEnd, CpuBuffer, PagePool};
use super::session::{DecodeConfig, SchedEncoding, Session};
use super::stats::{FtraceStats, encode_preserved_buffer, encode_trouble};
use super::table::Table;
use super::tracefs::{EventName, Recording, Setting, Tracefs, TracefsError};

/// The name under which the data source is registered.
pub const NAME: &str = "linux.frozen_ftrace";

/// Formats that are read in a turn: a few milliseconds.
const FORMATS_PER_TURN: usize = 100;
/// Pages that are read in a turn: about a millisecond.
const PAGES_PER_TURN: usize = 4 * BATCH_PAGES;

/// Why there is no buffer to read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrozenError {
    /// The config does not name the instance.
    #[error(
        "frozen_ftrace_config has no instance_name: name the tracefs instance that keeps the buffer, as it is called in the kernel's parameter trace_instance"
    )]
    NoName,
    /// There is no such instance.
    #[error(
        "there is no tracefs instance `{name}`, so nothing survived the last boot: to keep events from now on, boot with `reserve_mem=20M:4096:trace trace_instance={name}@trace` (Linux 6.12 or later)"
    )]
    NoInstance {
        /// The name in the config.
        name: String,
    },
    /// Tracefs cannot be used.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// This program cannot read the layout of this kernel's buffers.
    #[error("the ring buffer of this kernel cannot be read: {0}")]
    Layout(String),
}

/// Where the events in an instance's buffer come from, as its `last_boot_info` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    PreviousBoot,
    /// The memory survives a reboot, but this boot has written to it.
    ThisBoot,
    /// The memory does not survive a reboot.
    Ordinary,
}

impl Origin {
    fn of(tracefs: &Tracefs) -> Self {
        match tracefs.read("last_boot_info") {
            // `# Current`, or the addresses of the kernel and its modules in the earlier boot.
            Ok(text) if text.starts_with('#') => Self::ThisBoot,
            Ok(_) => Self::PreviousBoot,
            Err(_) => Self::Ordinary,
        }
    }
}

/// One instance of the data source.
#[derive(Debug)]
pub(crate) struct FrozenFtrace {
    tracefs: Tracefs,
    state: State,
    origin: Origin,
    /// Whether the instance was recording at setup.
    recording: Recording,
    next: Option<BootTime>,
    packet: Writer,
    notices: Vec<String>,
}

#[derive(Debug)]
enum State {
    Describing {
        table: Box<Table>,
        events: std::vec::IntoIter<EventName>,
    },
    Reading(Box<Reading>),
    /// Everything readable was read, except for the rest of the buffers of this many CPUs.
    Done {
        cut_off: usize,
    },
    /// Nothing can be read.
    Failed,
}

#[derive(Debug)]
struct Reading {
    table: Table,
    session: Session,
    bundles: BundleWriter,
    pool: PagePool,
    /// All CPUs, for the statistics.
    cpus: Vec<u32>,
    /// Buffers that may have more.
    unread: Vec<Unread>,
    pages: u64,
    /// CPUs whose buffers could not be read to their end.
    cut_off: usize,
}

/// A CPU's buffer, with the most pages that it can have: a buffer that still records has no end.
#[derive(Debug)]
struct Unread {
    buffer: CpuBuffer,
    pages: usize,
}

impl FrozenFtrace {
    /// Makes an instance that reads the buffer named by the `frozen_ftrace_config` in `config`, from this machine's tracefs.
    ///
    /// # Errors
    /// If there is no such buffer: a clause that says why and what to do.
    pub(crate) fn find(
        config: &DataSourceConfig,
        policy: TracefsPolicy,
        program: &dyn ProducerProgram,
    ) -> Result<Self, String> {
        let top = policy.find(program).map_err(|error| error.to_string())?;
        Self::from_config(config, &top).map_err(|error| error.to_string())
    }

    /// As [`Self::find`], for the tracefs `top`.
    ///
    /// # Errors
    /// If there is no such buffer.
    pub(crate) fn from_config(config: &DataSourceConfig, top: &Tracefs) -> Result<Self, FrozenError> {
        let name = config.frozen_ftrace_config.instance_name.as_deref();
        let name = name.filter(|name| !name.is_empty()).ok_or(FrozenError::NoName)?;
        let tracefs = top.instance(name).map_err(|error| match error {
            TracefsError::NoInstance { .. } => FrozenError::NoInstance {
                name: name.to_owned(),
            },
            error => FrozenError::Tracefs(error),
        })?;
        let header = tracefs.read("events/header_page")?;
        let layout = PageLayout::parse(&header).map_err(|error| FrozenError::Layout(error.to_string()))?;
        let printk_formats = tracefs.read("printk_formats").unwrap_or_default();
        let mut events = Vec::new();
        for group in tracefs.groups()? {
            let names = tracefs.events_of(&group)?;
            events.extend(names.into_iter().map(|name| EventName::new(&group, name)));
        }
        let recording = tracefs.recording()?;
        Ok(Self {
            origin: Origin::of(&tracefs),
            recording,
            state: State::Describing {
                table: Box::new(Table::new(layout, PrintkFormats::parse(&printk_formats))),
                events: events.into_iter(),
            },
            tracefs,
            next: None,
            packet: Writer::new(),
            notices: Vec::new(),
        })
    }

    fn tell(&mut self, what: &str) {
        let path = self.tracefs.root().display();
        self.notices.push(format!("{NAME}: {path} {what}"));
    }

    /// Reads some formats; opens the buffers when all formats are read.
    fn describe(&mut self) {
        let State::Describing { table, events } = &mut self.state else {
            return;
        };
        for event in events.by_ref().take(FORMATS_PER_TURN) {
            // An event without a valid format cannot have been recorded.
            if let Ok(format) = self.tracefs.event_format(&event) {
                let _ = table.add(&event.group, &event.name, &format);
            }
        }
        if events.len() > 0 {
            return;
        }
        let State::Describing { table, .. } = std::mem::replace(&mut self.state, State::Failed) else {
            return;
        };
        match Reading::new(*table, &self.tracefs) {
            Ok(reading) => self.state = State::Reading(Box::new(reading)),
            Err(error) => self.tell(&format!("cannot be read: {error}")),
        }
    }

    /// Reads some pages; ends the reading when all pages are read.
    fn read(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let State::Reading(reading) = &mut self.state else {
            return;
        };
        reading.turn(sink);
        if !reading.unread.is_empty() {
            return;
        }
        let (pages, cut_off) = (reading.pages, reading.cut_off);
        self.write_stats(sink);
        if cut_off > 0 {
            let what = format!(
                "could not be read to the end for {cut_off} CPUs: record it again to get the rest, which is still there"
            );
            self.tell_trace_too(&what, now, sink);
        } else if pages == 0 {
            self.tell(
                "is empty: nothing was recorded there, its memory did not survive the reboot, or somebody has read it already",
            );
        }
        self.state = State::Done { cut_off };
    }

    /// Tells the log, and the trace.
    fn tell_trace_too(&mut self, what: &str, now: BootTime, sink: &mut dyn PacketSink) {
        self.tell(what);
        let trouble = format!("{NAME}: {} {what}", self.tracefs.root().display());
        self.packet.clear();
        encode_trouble(now, &trouble, &mut self.packet);
        sink.write_packet(self.packet.as_slice());
    }

    fn write_stats(&mut self, sink: &mut dyn PacketSink) {
        let State::Reading(reading) = &self.state else {
            return;
        };
        let mut stats = FtraceStats::default();
        // The packet lacks statistics that cannot be read, as upstream's does.
        stats.read_cpus(&self.tracefs, &reading.cpus);
        let pages = self.tracefs.buffer_pages(rustix::param::page_size());
        stats.buffer_pages = pages.ok().flatten().unwrap_or_default();
        self.packet.clear();
        stats.encode(
            Phase::END_OF_TRACE,
            reading.session.parse_errors(),
            &mut self.packet,
        );
        sink.write_packet(self.packet.as_slice());
    }
}

impl Reading {
    fn new(table: Table, tracefs: &Tracefs) -> Result<Self, TracefsError> {
        let session = Session::new(
            &table,
            DecodeConfig {
                events: table.plans().map(|plan| plan.id).collect::<BTreeSet<u16>>(),
                sched_encoding: SchedEncoding::Verbose,
                ..DecodeConfig::default()
            },
        );
        let page_size = table.layout().page_size();
        let buffers = tracefs
            .cpus()?
            .into_iter()
            .map(|cpu| CpuBuffer::open(tracefs, cpu));
        let buffers = buffers.collect::<Result<Vec<_>, TracefsError>>()?;
        Ok(Self {
            cpus: buffers.iter().map(CpuBuffer::cpu).collect(),
            unread: buffers
                .into_iter()
                .map(|buffer| Unread {
                    pages: pages_of(tracefs, buffer.cpu(), page_size),
                    buffer,
                })
                .collect(),
            pool: PagePool::new(page_size),
            bundles: BundleWriter::default(),
            session,
            table,
            pages: 0,
            cut_off: 0,
        })
    }

    fn turn(&mut self, sink: &mut dyn PacketSink) {
        let mut left = PAGES_PER_TURN;
        while left > 0
            && let Some(unread) = self.unread.last_mut()
        {
            let batch = unread.buffer.read(&mut self.pool, unread.pages.min(BATCH_PAGES));
            left = left.saturating_sub(batch.count.max(1));
            unread.pages -= batch.count;
            self.pages += batch.count as u64;
            // A crash may leave a mostly empty page anywhere in the buffer, so only errors end the reading early.
            let failed = batch.end.parse_error();
            if let Some(status) = failed {
                self.session.add_parse_error(status);
            }
            if batch.count > 0 {
                let read = CpuRead {
                    cpu: unread.buffer.cpu(),
                    pages: batch.pages,
                    page_size: self.table.layout().page_size(),
                    // No snapshot means the boot clock. Nothing is known about another boot's clock.
                    clock: None,
                };
                self.bundles
                    .encode(&self.table, &mut self.session, &read, None, sink);
            }
            let is_cut_off = failed.is_some() || batch.end == BatchEnd::NotNow;
            self.cut_off += usize::from(is_cut_off);
            if batch.count == 0 || is_cut_off || unread.pages == 0 {
                self.unread.pop();
            }
        }
    }
}

/// The most pages that a CPU's buffer can have, including the page that the reader holds.
fn pages_of(tracefs: &Tracefs, cpu: u32, page_size: usize) -> usize {
    let kib = tracefs.get(&Setting::CpuBufferSizeKb(cpu)).ok();
    let bytes = kib
        .and_then(|kib| kib.parse::<usize>().ok())
        .and_then(|kib| kib.checked_mul(1024));
    bytes.map_or(ASSUMED_PAGES, |bytes| bytes.div_ceil(page_size) + 1)
}

impl Probe for FrozenFtrace {
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        match (self.origin, self.recording) {
            (_, Recording::On) => self.tell(
                "still records, so the trace also has events of this boot: to keep a buffer as the last boot left it, add ^traceoff to its name in the kernel's parameter trace_instance",
            ),
            (Origin::PreviousBoot, Recording::Off) => {}
            (Origin::ThisBoot, Recording::Off) => {
                self.tell("has been recorded into since the machine booted, so the trace has events of this boot");
            }
            (Origin::Ordinary, Recording::Off) => self.tell(
                "is not in memory that survives a reboot, so the trace has events of this boot: boot with the kernel's parameters reserve_mem and trace_instance to keep those of the next",
            ),
        }
        self.packet.clear();
        encode_preserved_buffer(&mut self.packet);
        sink.write_packet(self.packet.as_slice());
        self.next = Some(now);
    }

    fn next_deadline(&self) -> Option<BootTime> {
        self.next
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        match &self.state {
            State::Describing { .. } => self.describe(),
            State::Reading(_) => self.read(now, sink),
            State::Done { .. } | State::Failed => {}
        }
        self.next = match self.state {
            State::Describing { .. } | State::Reading(_) => Some(now),
            State::Done { .. } | State::Failed => None,
        };
    }

    fn stop(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.next = None;
        if matches!(self.state, State::Describing { .. } | State::Reading(_)) {
            self.write_stats(sink);
            let what = "was not read to its end because the recording was stopped: record longer to get the rest, which is still there";
            self.tell_trace_too(what, now, sink);
            return;
        }
        // Somebody may have begun to record into the instance meanwhile.
        let records_now = !matches!(self.tracefs.recording(), Ok(Recording::Off));
        match (&self.state, self.recording) {
            (State::Done { cut_off: 0 }, Recording::Off) if records_now => {
                self.tell("records again, so it was not emptied");
            }
            (State::Done { cut_off: 0 }, Recording::Off) => {
                if let Err(error) = self.tracefs.clear_buffers() {
                    self.tell(&format!(
                        "could not be emptied, so the next boot may find the same events again: {error}"
                    ));
                }
            }
            _ => {}
        }
    }

    /// Reports what the trace contains and what it lacks.
    fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}
