//! Evidence of a trace's completeness, gathered from its packets.
//!
//! The recording and `info` hand over each packet. [`Evidence`] keeps the statistics of `linux.ftrace`, the losses of `linux.perf` and `android.heapprofd`, the service's notes about data sources that
//! were late, disconnected or were never offered, producers' notes about those that failed, and the kinds of packets that the trace has. Its size does not grow with the trace.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use ferretto_proto::messages::tracing_service_event::{DataSources, EventType};
use ferretto_proto::messages::{DataSourceFailure, Message, TracingServiceEvent};
use ferretto_proto::write::{FtraceEventBundle, TracePacket};
use ferretto_wire::{Reader, Value};

use super::kernel::KernelReport;
use super::producer_name;
use crate::config::advice::known_sources::{FTRACE, WRITTEN};
use crate::samples::{Losses, Remark, dumps};

/// Marks of one kind that are remembered; further ones are ignored.
const MAX_MARKS: usize = 1 << 10;
/// The most characters of a producer's text that are kept.
const MAX_TEXT: usize = 1000;

/// A data source, with the producer that offers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceOf {
    pub(crate) source: String,
    pub(crate) producer: String,
}

impl fmt::Display for SourceOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.source, producer_name(&self.producer))
    }
}

/// A producer that disconnected while the session recorded it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Departure {
    pub(crate) producer: String,
    /// Its data sources that were being recorded.
    pub(crate) sources: Vec<String>,
    /// The time of the recording at which it disconnected, if known.
    pub(crate) after: Option<Duration>,
    /// The time at which it connected again, if it did.
    pub(crate) back: Option<Duration>,
}

/// A data source that a producer could not set up or start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) source: String,
    /// The failure and its reason: `could not be started: …`.
    pub(crate) failure: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source, self.failure)
    }
}

/// The evidence from the packets of one trace.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(super) kernel: KernelReport,
    pub(super) samples: Losses,
    /// The fields of [`WRITTEN`] of which the trace has packets.
    kinds: BTreeSet<u32>,
    /// The number of bundles of kernel events that report a loss before them.
    pub(super) bundles_after_a_loss: u64,
    /// The number of pages of the kernel's buffer that could not be read completely.
    pub(super) kernel_page_errors: u64,
    /// Data sources that had not started after some time.
    pub(crate) late_to_start: Vec<SourceOf>,
    /// Whether all data sources had started in the end.
    pub(super) all_started: bool,
    pub(crate) late_to_flush: Vec<SourceOf>,
    pub(super) departures: Vec<Departure>,
    /// Names of data sources that no producer offered.
    pub(super) not_offered: BTreeSet<String>,
    /// Data sources of which a producer says that they record nothing.
    pub(super) failed: Vec<Failed>,
    started_at: Option<u64>,
    /// Whether the service noted the end of the session.
    pub(super) has_ended: bool,
    /// Set if the service had to end during the recording: the time since boot, if known.
    service_ended: Option<Option<u64>>,
    /// Whether the trace is marked as a clone of a session that goes on. Older services do not mark clones.
    pub(super) is_clone: bool,
}

impl Evidence {
    /// Looks at a packet. For almost all packets it reads only the tags of the fields.
    pub(crate) fn observe(&mut self, packet: &[u8]) {
        let (mut sequence, mut timestamp) = (0, None);
        for field in Reader::new(packet) {
            match field.map(|field| (field.number, field.value)) {
                Ok((TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(id))) => sequence = id,
                Ok((TracePacket::TIMESTAMP, Value::Varint(time))) => timestamp = Some(time),
                Ok(_) => {}
                // A malformed packet has no effect on the account.
                Err(_) => break,
            }
        }
        for field in Reader::new(packet).map_while(Result::ok) {
            if let Value::Bytes(content) = field.value {
                self.take(field.number, sequence, timestamp, content);
            }
        }
    }

    /// Takes in one field of a packet of this sequence.
    pub(crate) fn take(&mut self, field: u32, sequence: u64, timestamp: Option<u64>, content: &[u8]) {
        if WRITTEN.iter().any(|written| written.has(field)) {
            self.kinds.insert(field);
        }
        match field {
            TracePacket::FTRACE_EVENTS => self.bundle(content),
            TracePacket::FTRACE_STATS => self.kernel.take(sequence, content),
            TracePacket::PERF_SAMPLE => {
                if let Some(remark) = Remark::of(content) {
                    self.samples.add(remark);
                }
            }
            TracePacket::PROFILE_PACKET => {
                for dump in dumps(content) {
                    self.samples.heaps.add(sequence, &dump);
                }
            }
            TracePacket::SERVICE_EVENT => {
                if let Ok(event) = TracingServiceEvent::decode_from_slice(content) {
                    self.service_event(event, timestamp);
                }
            }
            TracePacket::DATA_SOURCE_FAILURE => {
                if let Ok(failure) = DataSourceFailure::decode_from_slice(content) {
                    self.source_failed(failure);
                }
            }
            TracePacket::CLONE_SNAPSHOT_TRIGGER => self.is_clone = true,
            _ => {}
        }
    }

    fn bundle(&mut self, content: &[u8]) {
        for field in Reader::new(content).map_while(Result::ok) {
            match (field.number, field.value) {
                (FtraceEventBundle::LOST_EVENTS, Value::Varint(1..)) => self.bundles_after_a_loss += 1,
                (FtraceEventBundle::ERROR, _) => self.kernel_page_errors += 1,
                _ => {}
            }
        }
    }

    fn service_event(&mut self, event: TracingServiceEvent, timestamp: Option<u64>) {
        match event.event_type {
            Some(EventType::TracingStarted(_)) => self.started_at = self.started_at.or(timestamp),
            Some(EventType::AllDataSourcesStarted(_)) => self.all_started = true,
            Some(EventType::TracingDisabled(_)) => self.has_ended = true,
            Some(EventType::CloneStarted(_)) => self.is_clone = true,
            Some(EventType::ServiceEnded(_)) => self.service_ended = Some(timestamp),
            Some(EventType::SlowStartingDataSources(late)) => remember(&mut self.late_to_start, &late),
            Some(EventType::LastFlushSlowDataSources(late)) => remember(&mut self.late_to_flush, &late),
            Some(EventType::DataSourcesGone(gone)) => {
                let after = self.since_the_start(timestamp);
                for gone in sources(&gone) {
                    self.gone(gone, after);
                }
            }
            Some(EventType::DataSourcesNotOffered(absent)) => {
                let room = MAX_MARKS.saturating_sub(self.not_offered.len());
                self.not_offered
                    .extend(sources(&absent).map(|absent| absent.source).take(room));
            }
            _ => {}
        }
    }

    fn source_failed(&mut self, told: DataSourceFailure) {
        let cut = |text: Option<String>| text.unwrap_or_default().chars().take(MAX_TEXT).collect();
        let failed = Failed {
            source: cut(told.data_source_name),
            failure: cut(told.failure),
        };
        if self.failed.len() < MAX_MARKS && !self.failed.contains(&failed) {
            self.failed.push(failed);
        }
    }

    /// Returns the data sources of which a producer says that they record nothing, in the order of the trace.
    pub(crate) fn failed(&self) -> &[Failed] {
        &self.failed
    }

    /// Returns the same with kernel events, whose failures are in packets of their own, as upstream's readers expect them.
    pub(crate) fn failed_to_start(&self) -> Vec<Failed> {
        let kernel = self.kernel.troubles().iter().filter_map(|trouble| {
            let failure = trouble.strip_prefix(FTRACE)?.strip_prefix(' ')?;
            let is_one = ["could not be set up: ", "could not be started: "]
                .iter()
                .any(|what| failure.starts_with(what));
            is_one.then(|| Failed {
                source: FTRACE.to_owned(),
                failure: failure.to_owned(),
            })
        });
        self.failed.iter().cloned().chain(kernel).collect()
    }

    /// Returns the time that the session had recorded at `timestamp`, if known.
    fn since_the_start(&self, timestamp: Option<u64>) -> Option<Duration> {
        let (now, start) = timestamp.zip(self.started_at)?;
        Some(Duration::from_nanos(now.saturating_sub(start)))
    }

    /// Returns `Some` if the service had to end and therefore ended the session; inside, the time of the recording, if known.
    pub(super) fn ended_by_the_service(&self) -> Option<Option<Duration>> {
        Some(self.since_the_start(self.service_ended?))
    }

    fn gone(&mut self, gone: SourceOf, after: Option<Duration>) {
        let mut all = self.departures.iter_mut();
        if let Some(departure) = all.find(|known| known.producer == gone.producer && known.after == after) {
            departure.sources.push(gone.source);
            departure.sources.sort();
        } else if self.departures.len() < MAX_MARKS {
            self.departures.push(Departure {
                producer: gone.producer,
                sources: vec![gone.source],
                after,
                back: None,
            });
        }
    }

    /// Whether there are packets of a data source; `None` if the packets of this source are not known.
    pub(crate) fn has_packets_of(&self, source: &str) -> Option<bool> {
        let written = WRITTEN.iter().find(|written| written.source == source)?;
        Some(self.kinds.iter().any(|kind| written.has(*kind)))
    }

    /// Whether the service noted that the session began.
    pub(super) fn has_begun(&self) -> bool {
        self.started_at.is_some()
    }

    /// Whether there are kernel events.
    pub(super) fn has_kernel_events(&self) -> bool {
        self.kinds.contains(&TracePacket::FTRACE_EVENTS)
    }
}

fn sources(marked: &DataSources) -> impl Iterator<Item = SourceOf> {
    marked.data_source.iter().map(|source| SourceOf {
        source: source.data_source_name.clone().unwrap_or_default(),
        producer: source.producer_name.clone().unwrap_or_default(),
    })
}

fn remember(known: &mut Vec<SourceOf>, marked: &DataSources) {
    for source in sources(marked) {
        if known.len() < MAX_MARKS && !known.contains(&source) {
            known.push(source);
        }
    }
}
