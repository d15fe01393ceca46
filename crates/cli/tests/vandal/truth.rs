//! The events that were emitted during a recording, and those in its trace, independently of the recording's own account.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::LazyLock;

use crate::support::tracefs::Instance;
use ferretto_proto::messages::debug_annotation::Value as Annotation;
use ferretto_proto::messages::ftrace_event::Event;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_wire::{Reader, Value};

/// The prefix of numbers. It distinguishes these events from all others, even those of another vandal, because the names of all threads are recorded.
/// Names have room for 15 characters.
static MARK: LazyLock<String> = LazyLock::new(|| format!("v{}-", std::process::id()));

/// Numbers of events, by kind.
#[derive(Default)]
pub(crate) struct Events {
    /// This thread was renamed.
    renames: BTreeSet<u64>,
    /// A line was written to `trace_marker`.
    prints: BTreeSet<u64>,
    /// The application emitted an event.
    pub(crate) steps: BTreeSet<u64>,
}

impl Events {
    /// Emits so many kernel events of each kind, which should be in the trace, whatever happened to tracing.
    pub(crate) fn emit(&mut self, instance: &Instance, count: u64) {
        let before = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        for _ in 0..count {
            let number = self.renames.len() as u64;
            std::fs::write("/proc/thread-self/comm", format!("{}{number}", *MARK)).unwrap();
            self.renames.insert(number);
            // It fails while tracing is off.
            let _ = std::fs::write(instance.file("trace_marker"), format!("{}{number}", *MARK));
            self.prints.insert(number);
        }
        std::fs::write("/proc/thread-self/comm", before.trim_end()).unwrap();
    }

    /// Returns the events in a trace, as far as it can be read.
    pub(crate) fn of_trace(trace: &Path) -> Events {
        let bytes = std::fs::read(trace).unwrap_or_default();
        let mut events = Events::default();
        for packet in Reader::new(&bytes) {
            let Ok(packet) = packet else { break };
            let Value::Bytes(packet) = packet.value else { break };
            let Ok(packet) = TracePacket::decode_from_slice(packet) else {
                break;
            };
            events.take(&packet);
        }
        events
    }

    fn take(&mut self, packet: &TracePacket) {
        match &packet.data {
            Some(Data::FtraceEvents(bundle)) => {
                for event in &bundle.event {
                    match &event.event {
                        Some(Event::TaskRename(rename)) => self.renames.extend(number(&rename.newcomm)),
                        Some(Event::Print(print)) => self.prints.extend(number(&print.buf)),
                        _ => {}
                    }
                }
            }
            Some(Data::TrackEvent(event)) => {
                let annotations = event.debug_annotations.iter();
                self.steps
                    .extend(annotations.filter_map(|annotation| match annotation.value {
                        Some(Annotation::UintValue(number)) => Some(number),
                        _ => None,
                    }));
            }
            _ => {}
        }
    }

    /// Returns the events that `held` lacks.
    pub(crate) fn missing_in(&self, held: &Events) -> Events {
        let without = |all: &BTreeSet<u64>, held: &BTreeSet<u64>| all.difference(held).copied().collect();
        Events {
            renames: without(&self.renames, &held.renames),
            prints: without(&self.prints, &held.prints),
            steps: without(&self.steps, &held.steps),
        }
    }

    pub(crate) fn are_none(&self) -> bool {
        self.renames.is_empty() && self.prints.is_empty() && self.steps.is_empty()
    }
}

fn number(text: &Option<String>) -> Option<u64> {
    text.as_deref()?
        .trim_end()
        .strip_prefix(MARK.as_str())?
        .parse()
        .ok()
}

impl fmt::Display for Events {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (renames, prints, steps) = (self.renames.len(), self.prints.len(), self.steps.len());
        write!(out, "{renames} renames, {prints} prints, {steps} steps")
    }
}
