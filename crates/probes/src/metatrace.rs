//! `perfetto.metatrace`: the work of the probes themselves, for people who want to know the cost of a recording.
//!
//! Data sources mark their work with `span` and `count`. While no session records it, a mark costs a load and a branch. Otherwise it goes
//! into one ring of `CAPACITY` records, which the data source writes into the trace every `PERIOD`, at flushes and at the stop. Only one
//! session at a time gets the records, as with upstream. The numbers of events and counters are upstream's
//! (`include/perfetto/ext/base/metatrace_events.h`). The trace processor derives the names of slices and counters from them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_ipc::reactor::boot_now;
use ferretto_proto::write::{PerfettoMetatrace, TracePacket};
use ferretto_wire::Writer;

use crate::notice::Notice;

#[cfg(test)]
mod tests;

/// The name under which the data source is registered.
pub const NAME: &str = "perfetto.metatrace";

/// Records that wait to be written, at most. A further record replaces the oldest.
const CAPACITY: usize = 8192;

/// How often records are written into the trace.
const PERIOD: Duration = Duration::from_millis(500);

/// A step of the probes' work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// The beginning of a session's flush: reading the kernel's buffers.
    FtraceCpuFlush = 10,
    /// A drain of buffers because one was fuller than a session allows.
    FtraceCpuBufferWatermark = 11,
    /// One sample of `linux.sys_stats`.
    ReadSysStats = 12,
    /// The scan of all processes.
    PsWriteAllProcesses = 13,
    /// The description of threads that kernel events mentioned.
    PsOnPids = 14,
    /// The description of threads with a new name.
    PsOnRenamePids = 15,
    /// One sample of the counters of all processes.
    PsWriteAllProcessStats = 16,
    /// A drain of all CPUs' buffers at the drain period.
    FtraceReadTick = 18,
    /// The reading of one CPU's buffer.
    FtraceCpuReadCycle = 19,
    /// Some pages of one CPU's buffer: read and encoded.
    FtraceCpuReadBatch = 20,
    /// The reading of the kernel's symbols.
    KallsymsParse = 21,
    /// One sample of `linux.sysfs_power`.
    LinuxPowerSysfsTick = 38,
}

/// Something that the probes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Pages in a batch from a CPU's buffer.
    FtracePagesDrained = 1,
    /// Threads in kernel events that were not known before.
    PsPidsScanned = 2,
    /// Sessions that record kernel events.
    FtraceSessions = 11,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Span {
        event: Event,
        began: BootTime,
        ended: BootTime,
    },
    Count {
        counter: Counter,
        at: BootTime,
        value: i32,
    },
}

/// Records of one session, with the thread of each.
#[derive(Debug, Default)]
struct Ring {
    records: VecDeque<(Record, i32)>,
    overruns: Overruns,
}

/// Whether records had to be dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Overruns {
    #[default]
    None,
    Some,
}

impl Ring {
    fn push(&mut self, record: Record, thread: i32) {
        if self.records.len() == CAPACITY {
            self.records.pop_front();
            self.overruns = Overruns::Some;
        }
        self.records.push_back((record, thread));
    }
}

/// Whether a session records. The session that owns the ring sets it, and every mark reads it.
static RECORDING: AtomicBool = AtomicBool::new(false);

static RING: Mutex<Ring> = Mutex::new(Ring {
    records: VecDeque::new(),
    overruns: Overruns::None,
});

fn ring() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(record: Record) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    ring().push(record, thread);
}

/// Records how long a step took, from the creation of the span until it is dropped.
#[derive(Debug)]
#[must_use = "a span ends when it is dropped"]
pub(crate) struct Span(Option<(Event, BootTime)>);

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((event, began)) = self.0 {
            record(Record::Span {
                event,
                began,
                ended: boot_now(),
            });
        }
    }
}

/// Begins a step of work.
#[inline]
pub(crate) fn span(event: Event) -> Span {
    Span(RECORDING.load(Ordering::Relaxed).then(|| (event, boot_now())))
}

/// Records the value of a counter.
#[inline]
pub(crate) fn count(counter: Counter, value: usize) {
    if RECORDING.load(Ordering::Relaxed) {
        record(Record::Count {
            counter,
            at: boot_now(),
            value: value.try_into().unwrap_or(i32::MAX),
        });
    }
}

/// One instance. It gets the records if no other instance had them when it started.
#[derive(Debug, Default)]
pub(crate) struct Metatrace {
    role: Role,
    next: Option<BootTime>,
    packet: Writer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    #[default]
    NotStarted,
    GetsRecords,
    CameLater,
}

impl Metatrace {
    fn write_all(&mut self, sink: &mut dyn PacketSink) {
        if self.role != Role::GetsRecords {
            return;
        }
        let Ring { records, overruns } = std::mem::take(&mut *ring());
        for (record, thread) in records {
            self.packet.clear();
            encode(&mut self.packet, record, thread, overruns);
            sink.write_packet(self.packet.as_slice());
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.role) == Role::GetsRecords {
            RECORDING.store(false, Ordering::Relaxed);
            *ring() = Ring::default();
        }
    }
}

impl Probe for Metatrace {
    fn start(&mut self, now: BootTime, _sink: &mut dyn PacketSink) {
        self.role = match RECORDING.swap(true, Ordering::Relaxed) {
            true => Role::CameLater,
            false => Role::GetsRecords,
        };
        self.next = (self.role == Role::GetsRecords).then_some(now + PERIOD.as_nanos() as u64);
    }

    fn next_deadline(&self) -> Option<BootTime> {
        self.next
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.write_all(sink);
        self.next = Some(now + PERIOD.as_nanos() as u64);
    }

    fn flush(&mut self, _now: BootTime, sink: &mut dyn PacketSink) {
        self.write_all(sink);
    }

    fn stop(&mut self, _now: BootTime, sink: &mut dyn PacketSink) {
        self.write_all(sink);
        self.end();
    }

    fn take_notices(&mut self) -> Vec<String> {
        match self.role {
            Role::CameLater => vec![Notice::OneSessionAtATime { name: NAME }.to_string()],
            Role::NotStarted | Role::GetsRecords => Vec::new(),
        }
    }
}

impl Drop for Metatrace {
    fn drop(&mut self) {
        // If the service has gone, the instance is dropped without a stop.
        self.end();
    }
}

fn encode(packet: &mut Writer, record: Record, thread: i32, overruns: Overruns) {
    let at = match record {
        Record::Span { began, .. } => began,
        Record::Count { at, .. } => at,
    };
    packet.varint_field(TracePacket::TIMESTAMP, at);
    packet.nested(TracePacket::PERFETTO_METATRACE, |out| {
        match record {
            Record::Span { event, began, ended } => {
                out.varint_field(PerfettoMetatrace::EVENT_ID, event as u64);
                out.varint_field(PerfettoMetatrace::EVENT_DURATION_NS, ended.saturating_sub(began));
            }
            Record::Count { counter, value, .. } => {
                out.varint_field(PerfettoMetatrace::COUNTER_ID, counter as u64);
                out.varint_field(PerfettoMetatrace::COUNTER_VALUE, i64::from(value) as u64);
            }
        }
        out.varint_field(PerfettoMetatrace::THREAD_ID, i64::from(thread) as u64);
        if overruns == Overruns::Some {
            out.varint_field(PerfettoMetatrace::HAS_OVERRUNS, 1);
        }
    });
}
