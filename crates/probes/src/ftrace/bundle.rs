//! Turns the pages of one read of one CPU's buffer into `FtraceEventBundle` packets, for one session at a time.
//!
//! The data source reads pages once and calls [`BundleWriter::encode`] for each session: sessions differ in the events
//! they want and share everything else. This is the hot path of `traced_probes`. For each event it takes one step of
//! the page parser, looks once into the session's table of actions, and encodes. It allocates nothing once the buffers
//! have grown.
//!
//! A bundle holds the events of contiguous pages. A new one starts where the kernel lost events. The bundle reports
//! pages that cannot be parsed. It keeps the events in front of the error and drops those behind it. Parsing resumes
//! with the next page.

use super::compact_sched::CompactSched;
use super::event::Encoder;
use super::field::Read;
use super::generic::GenericEncoding;
use super::page::{Loss, Page, ParseStatus};
use super::print_filter::Verdict;
use super::session::{Action, Session};
use super::table::{Encoding, EventPlan, FIRST_SELF_DESCRIBED, Table};
use ferretto_client::runtime::probe::PacketSink;
use ferretto_proto::messages::FtraceClock;
use ferretto_proto::messages::trace_packet::SequenceFlags;
use ferretto_proto::write::{
    FtraceEventBundle, InternedData, InternedString, TracePacket, ftrace_event_bundle,
};
use ferretto_wire::{Writer, varint_len};

#[cfg(test)]
mod tests;

const INCREMENTAL_STATE_CLEARED: u64 = SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u64;

/// The ring buffer's clock and the boot clock at one instant, for sessions that do not record by the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSnapshot {
    /// The clock of the pages' timestamps.
    pub clock: FtraceClock,
    /// The time of `clock` in nanoseconds.
    pub ftrace_timestamp: i64,
    /// The boot clock's time at the same instant, in nanoseconds.
    pub boot_timestamp: i64,
}

/// Pages read from one CPU's buffer, in the order in which they were read.
#[derive(Clone, Copy, Debug)]
pub struct CpuRead<'a> {
    /// The CPU.
    pub cpu: u32,
    /// Whole pages, one behind the other.
    pub pages: &'a [u8],
    /// Size of each page: that of the machine's page or of the kernel's sub-buffer.
    pub page_size: usize,
    /// Set unless the kernel records by the boot clock.
    pub clock: Option<ClockSnapshot>,
}

/// Names for addresses in the kernel.
pub trait SymbolSource {
    /// Replaces `name` by the name of the function at `address`; false if there is none.
    fn lookup(&self, address: u64, name: &mut String) -> bool;
}

/// Buffers for making bundles, used again and again for all CPUs and sessions.
#[derive(Debug, Default)]
pub struct BundleWriter {
    /// Fields of the bundle that are written as they come: events and errors.
    body: Writer,
    compact: CompactSched,
    described: DescribedEvents,
    /// The bundle's other fields, when it is put together.
    head: Writer,
    packet: Writer,
    symbol: String,
}

/// The bundle being filled.
struct Bundle {
    lost_events: bool,
    previous_end: u64,
}

/// The facts about a page that could be read to its end.
struct WholePage {
    /// The number of all events in the page.
    records: u64,
    /// Time of the last event that the session wanted.
    last_written: Option<u64>,
}

impl BundleWriter {
    /// Writes the events that `session` wants from the pages into `sink`, as whole packets: usually one, and none if
    /// nothing in the pages concerns the session. With `symbols`, packets also name the kernel functions that their
    /// events refer to. Returns the number of all events in the pages, or `None` if not all could be read.
    pub fn encode(
        &mut self,
        table: &Table,
        session: &mut Session,
        read: &CpuRead<'_>,
        symbols: Option<&dyn SymbolSource>,
        sink: &mut dyn PacketSink,
    ) -> Option<u64> {
        let mut records = Some(0);
        let mut bundle = Bundle {
            lost_events: false,
            previous_end: session.last_written(read.cpu),
        };
        for bytes in read.pages.chunks(read.page_size.max(1)) {
            let page = match Page::parse(table.layout(), bytes) {
                Ok(page) => page,
                Err(invalid) => {
                    self.report(session, invalid.timestamp, ParseStatus::InvalidPageHeader);
                    records = None;
                    continue;
                }
            };
            if page.loss != Loss::None {
                // A bundle has one flag for losses, so the bundle with the events before the loss ends here.
                self.finish(table, session, read, &bundle, symbols, sink);
                bundle = Bundle {
                    lost_events: true,
                    previous_end: session.last_written(read.cpu),
                };
            }
            match self.encode_page(table, session, &page) {
                Ok(read_to_end) => {
                    if let Some(last_written) = read_to_end.last_written {
                        session.set_last_written(read.cpu, last_written);
                    }
                    records = records.map(|records| records + read_to_end.records);
                }
                // A broken page does not prove when its last event happened.
                Err(status) => {
                    self.report(session, page.timestamp, status);
                    records = None;
                }
            }
        }
        self.finish(table, session, read, &bundle, symbols, sink);
        records
    }

    /// Adds the events of a page.
    fn encode_page(
        &mut self,
        table: &Table,
        session: &mut Session,
        page: &Page<'_>,
    ) -> Result<WholePage, ParseStatus> {
        let mut last_written = None;
        let mut records = 0;
        for record in page.records() {
            let record = record?;
            records += 1;
            let action = session
                .actions
                .get(usize::from(record.event_id))
                .copied()
                .unwrap_or(Action::Skip);
            match (action, &session.switch, &session.waking) {
                (Action::Skip, ..) => continue,
                (Action::CompactSwitch, Some(format), _) => self
                    .compact
                    .add_switch(format, record.timestamp, record.payload, &mut session.metadata)
                    .map_err(|_| ParseStatus::ShortCompactEvent)?,
                (Action::CompactWaking, _, Some(format)) => self
                    .compact
                    .add_waking(format, record.timestamp, record.payload, &mut session.metadata)
                    .map_err(|_| ParseStatus::ShortCompactEvent)?,
                _ => {
                    let plan = table.plan(record.event_id).ok_or(ParseStatus::InvalidEvent)?;
                    if action == Action::FilteredPrint && is_unwanted_print(session, plan, record.payload) {
                        continue;
                    }
                    self.write_event(table, session, plan, record.timestamp, record.payload)?;
                }
            }
            last_written = Some(record.timestamp);
        }
        Ok(WholePage {
            records,
            last_written,
        })
    }

    fn write_event(
        &mut self,
        table: &Table,
        session: &mut Session,
        plan: &EventPlan,
        timestamp: u64,
        payload: &[u8],
    ) -> Result<(), ParseStatus> {
        if payload.len() < plan.size {
            return Err(ParseStatus::InvalidEvent);
        }
        let mut encoder = Encoder {
            printk_formats: table.printk_formats(),
            config: &session.config,
            metadata: &mut session.metadata,
            malformed: false,
        };
        self.body.nested(FtraceEventBundle::EVENT, |event| {
            encoder.write_event(event, plan, timestamp, payload)
        });
        let malformed = encoder.malformed;
        if let Encoding::Generic(described) = &plan.encoding
            && session.config.generic_encoding == GenericEncoding::Descriptors
        {
            self.described.note(table, described.number, plan.id);
        }
        if malformed {
            Err(ParseStatus::InvalidEvent)
        } else {
            Ok(())
        }
    }

    /// Puts an error into the bundle and into the session's stats.
    fn report(&mut self, session: &mut Session, page_timestamp: u64, status: ParseStatus) {
        session.add_parse_error(status);
        self.body.nested(FtraceEventBundle::ERROR, |error| {
            if page_timestamp != 0 {
                error.varint_field(ftrace_event_bundle::FtraceError::TIMESTAMP, page_timestamp);
            }
            error.varint_field(ftrace_event_bundle::FtraceError::STATUS, status as u64);
        });
    }

    /// Writes the bundle if it reports anything, and starts a new one.
    fn finish(
        &mut self,
        table: &Table,
        session: &mut Session,
        read: &CpuRead<'_>,
        bundle: &Bundle,
        symbols: Option<&dyn SymbolSource>,
        sink: &mut dyn PacketSink,
    ) {
        if self.body.is_empty() && self.compact.is_empty() && !bundle.lost_events {
            return;
        }
        self.packet.clear();
        self.write_bundle(table, read, bundle);
        if let Some(symbols) = symbols {
            self.write_symbols(&mut session.metadata, symbols);
        }
        sink.write_packet(self.packet.as_slice());
        self.body.clear();
        self.compact.clear();
        self.described.clear();
    }

    /// Puts the bundle together. Computing its length first spares moving bytes.
    fn write_bundle(&mut self, table: &Table, read: &CpuRead<'_>, bundle: &Bundle) {
        let out = &mut self.head;
        out.clear();
        out.varint_field(FtraceEventBundle::CPU, read.cpu.into());
        if bundle.lost_events {
            out.varint_field(FtraceEventBundle::LOST_EVENTS, 1);
        }
        // Written even if it is zero: zero says that the bundle has all events since the start.
        out.varint_field(
            FtraceEventBundle::PREVIOUS_BUNDLE_END_TIMESTAMP,
            bundle.previous_end,
        );
        if let Some(clock) = &read.clock {
            out.varint_field(FtraceEventBundle::FTRACE_CLOCK, clock.clock as u64);
            out.varint_field(FtraceEventBundle::FTRACE_TIMESTAMP, clock.ftrace_timestamp as u64);
            out.varint_field(FtraceEventBundle::BOOT_TIMESTAMP, clock.boot_timestamp as u64);
        }
        for plan in self.described.in_order.iter().filter_map(|id| table.plan(*id)) {
            if let Encoding::Generic(described) = &plan.encoding {
                out.bytes_field(
                    FtraceEventBundle::GENERIC_EVENT_DESCRIPTORS,
                    &described.descriptor,
                );
            }
        }
        let (head, body, out) = (self.head.as_slice(), self.body.as_slice(), &mut self.packet);
        let compact_len = if self.compact.is_empty() {
            0
        } else {
            self.compact.encoded_len()
        };
        let compact_field_len = if compact_len == 0 {
            0
        } else {
            1 + varint_len(compact_len as u64) + compact_len
        };
        out.bytes_field_head(
            TracePacket::FTRACE_EVENTS,
            head.len() + body.len() + compact_field_len,
        );
        out.raw(head);
        out.raw(body);
        if compact_len > 0 {
            out.bytes_field_head(FtraceEventBundle::COMPACT_SCHED, compact_len);
            self.compact.write(out);
        }
    }

    /// Adds the names of the kernel functions that no earlier packet has named.
    fn write_symbols(&mut self, metadata: &mut super::metadata::Metadata, symbols: &dyn SymbolSource) {
        let before = self.packet.len();
        let name = &mut self.symbol;
        let found_any = self.packet.nested(TracePacket::INTERNED_DATA, |data| {
            let start = data.len();
            for (index, address) in metadata.unnamed_addresses() {
                // Pointers to data have no symbol; neither have functions of modules that are gone.
                if symbols.lookup(address, name) {
                    data.nested(InternedData::KERNEL_SYMBOLS, |symbol| {
                        symbol.varint_field(InternedString::IID, index);
                        symbol.bytes_field(InternedString::STR, name.as_bytes());
                    });
                }
            }
            data.len() > start
        });
        if !found_any {
            // The addresses stay unnamed: the packet with the first names has to say that older names are void.
            self.packet.truncate(before);
            return;
        }
        if metadata.nothing_named_yet() {
            self.packet
                .varint_field(TracePacket::SEQUENCE_FLAGS, INCREMENTAL_STATE_CLEARED);
        }
        metadata.mark_named();
    }
}

fn is_unwanted_print(session: &Session, plan: &EventPlan, payload: &[u8]) -> bool {
    let text = plan
        .fields
        .iter()
        .find(|field| field.read == Read::TrailingString);
    let text = text.and_then(|field| payload.get(field.offset..));
    match (&session.config.print_filter, text) {
        (Some(filter), Some(text)) => filter.judge(text) == Verdict::Deny,
        _ => false,
    }
}

/// Which self-described events the bundle holds.
#[derive(Debug, Default)]
struct DescribedEvents {
    /// By the event's number: the last bundle that it was noted for.
    noted_in: Vec<u64>,
    bundle: u64,
    /// Ids of the events.
    in_order: Vec<u16>,
}

impl DescribedEvents {
    #[inline]
    fn note(&mut self, table: &Table, number: u32, id: u16) {
        let index = (number - FIRST_SELF_DESCRIBED) as usize;
        if self.noted_in.len() <= index {
            // Bundles count from 1 here, so that zero is none of them.
            self.noted_in.resize(table.self_described_count(), 0);
        }
        if self.noted_in[index] != self.bundle + 1 {
            self.noted_in[index] = self.bundle + 1;
            self.in_order.push(id);
        }
    }

    fn clear(&mut self) {
        self.bundle += 1;
        self.in_order.clear();
    }
}
