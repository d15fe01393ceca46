//! The subject of a profile's counts: the event that triggers its samples.
//!
//! The reader of samples calls it with the defaults of a sequence (`PerfSampleDefaults`). Names are those of upstream's trace processor, which follow
//! `perf`.

use std::borrow::Cow;
use std::collections::HashMap;

use ferretto_proto::messages::PerfSampleDefaults;
use ferretto_proto::messages::perf_events::timebase;
use ferretto_proto::messages::perf_events::{Counter, EventModifier, RawEvent, Timebase, Tracepoint};

use super::EventId;
use super::heap::{Kind, Measure};

/// The name under which `ferretto profile` samples threads that leave a CPU.
pub(crate) const OFF_CPU: &str = "off-cpu";

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// The most events of a trace: real ones have a few, and each takes room in lists.
pub(super) const MAX_EVENTS: usize = 4096;

/// The event that triggers samples.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Event {
    /// As `perf` names it, with modifiers: `cpu-clock`, `instructions:u`.
    pub(crate) name: String,
    /// The unit of the counter.
    pub(crate) unit: Cow<'static, str>,
    /// The distance between samples, if it is known and does not change.
    pub(crate) period: Option<Period>,
    /// The number of heap profiles that it is, if it is one.
    pub(crate) measure: Option<Measure>,
}

/// The distance between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Period {
    /// In ns of the processor's time.
    Time(u64),
    /// In units of the counter.
    Count(u64),
    /// Each sample has a weight of its own, in units of the counter.
    Weighted,
}

impl Default for Event {
    /// The event of old producers, which write no defaults.
    fn default() -> Event {
        Event {
            name: counter_name(Counter::SW_CPU_CLOCK).to_owned(),
            unit: "nanoseconds".into(),
            period: None,
            measure: None,
        }
    }
}

impl Event {
    /// The event of a sequence with these defaults.
    pub(super) fn of(defaults: &PerfSampleDefaults) -> Event {
        let base: &Timebase = &defaults.timebase;
        let mut name = match (&base.name, &base.event) {
            (Some(name), _) if !name.is_empty() => name.clone(),
            (_, Some(timebase::Event::Counter(counter))) => counter_name(*counter).to_owned(),
            (_, Some(timebase::Event::Tracepoint(tracepoint))) => tracepoint_name(tracepoint),
            (_, Some(timebase::Event::RawEvent(raw))) => raw_name(raw),
            (_, None) => counter_name(Counter::SW_CPU_CLOCK).to_owned(),
        };
        let modifiers: String = base
            .modifiers
            .iter()
            .filter_map(|modifier| letter(*modifier))
            .collect();
        if !modifiers.is_empty() {
            name = format!("{name}:{modifiers}");
        }
        let unit = match &base.event {
            Some(timebase::Event::Counter(counter)) => unit_of(*counter),
            None => unit_of(Counter::SW_CPU_CLOCK),
            _ => "count",
        };
        let is_time = unit == "nanoseconds";
        let period = match &base.interval {
            Some(timebase::Interval::Frequency(frequency @ 1..)) if is_time => {
                Some(Period::Time(SECOND / frequency))
            }
            Some(timebase::Interval::Period(period)) if is_time => Some(Period::Time(*period)),
            Some(timebase::Interval::Period(period)) => Some(Period::Count(*period)),
            Some(timebase::Interval::PollPeriodMs(milliseconds)) => {
                Some(Period::Time(u64::from(*milliseconds) * MILLISECOND))
            }
            _ => None,
        };
        Event {
            name,
            unit: unit.into(),
            period,
            measure: None,
        }
    }

    /// A number of heap profiles of this kind; `None` if these have no such number.
    pub(super) fn of_heaps(kind: Kind, measure: Measure) -> Option<Event> {
        Some(Event {
            name: measure.name(kind)?.to_owned(),
            unit: measure.unit().into(),
            period: Some(Period::Weighted),
            measure: Some(measure),
        })
    }
}

/// The places of events in [`Profile::events`](super::Profile::events), which the reader fills.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<Event, EventId>);

impl Places {
    /// Returns the place of an event, which is added to `all` if it is new. `None` if there are too many.
    pub(super) fn of(&mut self, event: Event, all: &mut Vec<Event>) -> Option<EventId> {
        if let Some(place) = self.0.get(&event) {
            return Some(*place);
        }
        if all.len() >= MAX_EVENTS {
            return None;
        }
        let place = EventId(all.len() as u32);
        all.push(event.clone());
        self.0.insert(event, place);
        Some(place)
    }
}

fn tracepoint_name(tracepoint: &Tracepoint) -> String {
    tracepoint.name.clone().unwrap_or_default()
}

fn raw_name(raw: &RawEvent) -> String {
    format!(
        "raw.{:#x}.{:#x}.{:#x}.{:#x}",
        raw.r#type.unwrap_or(0),
        raw.config.unwrap_or(0),
        raw.config1.unwrap_or(0),
        raw.config2.unwrap_or(0),
    )
}

fn letter(modifier: EventModifier) -> Option<char> {
    match modifier {
        EventModifier::EVENT_MODIFIER_COUNT_USERSPACE => Some('u'),
        EventModifier::EVENT_MODIFIER_COUNT_KERNEL => Some('k'),
        EventModifier::EVENT_MODIFIER_COUNT_HYPERVISOR => Some('h'),
        _ => None,
    }
}

/// The counters with the names that `perf` gives them.
pub(crate) const COUNTERS: [(Counter, &str); 20] = [
    (Counter::SW_CPU_CLOCK, "cpu-clock"),
    (Counter::SW_PAGE_FAULTS, "page-faults"),
    (Counter::SW_TASK_CLOCK, "task-clock"),
    (Counter::SW_CONTEXT_SWITCHES, "context-switches"),
    (Counter::SW_CPU_MIGRATIONS, "cpu-migrations"),
    (Counter::SW_PAGE_FAULTS_MIN, "minor-faults"),
    (Counter::SW_PAGE_FAULTS_MAJ, "major-faults"),
    (Counter::SW_ALIGNMENT_FAULTS, "alignment-faults"),
    (Counter::SW_EMULATION_FAULTS, "emulation-faults"),
    (Counter::SW_DUMMY, "dummy"),
    (Counter::HW_CPU_CYCLES, "cpu-cycles"),
    (Counter::HW_INSTRUCTIONS, "instructions"),
    (Counter::HW_CACHE_REFERENCES, "cache-references"),
    (Counter::HW_CACHE_MISSES, "cache-misses"),
    (Counter::HW_BRANCH_INSTRUCTIONS, "branch-instructions"),
    (Counter::HW_BRANCH_MISSES, "branch-misses"),
    (Counter::HW_BUS_CYCLES, "bus-cycles"),
    (Counter::HW_STALLED_CYCLES_FRONTEND, "stalled-cycles-frontend"),
    (Counter::HW_STALLED_CYCLES_BACKEND, "stalled-cycles-backend"),
    (Counter::HW_REF_CPU_CYCLES, "ref-cycles"),
];

fn counter_name(counter: Counter) -> &'static str {
    let mut known = COUNTERS.iter();
    known
        .find(|(known, _)| *known == counter)
        .map_or("unknown", |(_, name)| name)
}

fn unit_of(counter: Counter) -> &'static str {
    match counter {
        Counter::SW_CPU_CLOCK | Counter::SW_TASK_CLOCK => "nanoseconds",
        Counter::HW_CPU_CYCLES | Counter::HW_BUS_CYCLES | Counter::HW_REF_CPU_CYCLES => "cycles",
        Counter::HW_INSTRUCTIONS => "instructions",
        _ => "count",
    }
}
