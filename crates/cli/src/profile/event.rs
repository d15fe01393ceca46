//! Events in the spelling of `perf`.
//!
//! The [flags](super::args) call it, and [`config`](super::config) turns the result into a time base.

use ferretto_proto::messages::perf_events::{Counter, EventModifier, Timebase, Tracepoint, timebase};
use ferretto_proto::text::nearest_within;

use crate::samples::COUNTERS;

/// Other names that `perf` has for counters.
const ALIASES: [(&str, &str); 6] = [
    ("cycles", "cpu-cycles"),
    ("branches", "branch-instructions"),
    ("faults", "page-faults"),
    ("cs", "context-switches"),
    ("migrations", "cpu-migrations"),
    ("idle-cycles-frontend", "stalled-cycles-frontend"),
];
/// The letters that a misspelt name may differ by.
const SLIPS: usize = 3;

/// An event to sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    name: String,
    what: What,
    modifiers: Vec<EventModifier>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Counter(Counter),
    /// `GROUP:NAME`.
    Tracepoint,
}

/// A name that is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EventError {
    #[error("there is no event {name:?}{}; tracepoints are GROUP:NAME, as in sched:sched_switch", meant(.nearest.as_deref()))]
    Unknown {
        name: String,
        nearest: Option<&'static str>,
    },
    #[error(
        "{letter:?} in {name:?} is no modifier that can be recorded; leave it out, or use u (user space) or k (kernel)"
    )]
    Modifier { name: String, letter: char },
    #[error(
        "{0:?} is an event of a PMU; name it in a config for `ferretto -c CONFIG`: data source linux.perf, timebase {{ raw_event }}"
    )]
    Pmu(String),
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |name| format!("; did you mean {name}?"))
}

impl Event {
    pub(super) fn is_tracepoint(&self) -> bool {
        self.what == What::Tracepoint
    }

    /// Returns the time base that counts it, without an interval.
    pub(super) fn timebase(&self) -> Timebase {
        Timebase {
            event: Some(match self.what {
                What::Counter(counter) => timebase::Event::Counter(counter),
                What::Tracepoint => timebase::Event::Tracepoint(Box::new(Tracepoint {
                    name: Some(self.name.clone()),
                    ..Default::default()
                })),
            }),
            modifiers: self.modifiers.clone(),
            ..Default::default()
        }
    }
}

/// Reads a name: a counter, with modifiers after a colon if there are any, or a tracepoint.
pub(super) fn event(typed: &str) -> Result<Event, EventError> {
    let (name, modifiers) = typed.split_once(':').unwrap_or((typed, ""));
    let name = ALIASES
        .iter()
        .find(|(alias, _)| *alias == name)
        .map_or(name, |(_, name)| name);
    if let Some((counter, name)) = COUNTERS.iter().find(|(_, known)| *known == name) {
        let modifiers = modifiers.chars().map(|letter| modifier(typed, letter));
        return Ok(Event {
            name: (*name).to_owned(),
            what: What::Counter(*counter),
            modifiers: modifiers.collect::<Result<_, _>>()?,
        });
    }
    let is_raw = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if typed.contains('=') || typed.ends_with('/') || typed.strip_prefix('r').is_some_and(is_raw) {
        return Err(EventError::Pmu(typed.to_owned()));
    }
    match typed.split_once([':', '/']) {
        Some((group, name)) if !group.is_empty() && !name.is_empty() => Ok(Event {
            name: format!("{group}:{name}"),
            what: What::Tracepoint,
            modifiers: Vec::new(),
        }),
        _ => {
            let names = COUNTERS.iter().map(|(_, name)| *name);
            Err(EventError::Unknown {
                name: typed.to_owned(),
                nearest: nearest_within(typed, SLIPS, names),
            })
        }
    }
}

fn modifier(typed: &str, letter: char) -> Result<EventModifier, EventError> {
    match letter {
        'u' => Ok(EventModifier::EVENT_MODIFIER_COUNT_USERSPACE),
        'k' => Ok(EventModifier::EVENT_MODIFIER_COUNT_KERNEL),
        'h' => Ok(EventModifier::EVENT_MODIFIER_COUNT_HYPERVISOR),
        _ => Err(EventError::Modifier {
            name: typed.to_owned(),
            letter,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_perf_are_understood() {
        let counter = |typed: &str| match event(typed).unwrap().timebase().event {
            Some(timebase::Event::Counter(counter)) => counter,
            other => panic!("{typed}: {other:?}"),
        };
        assert_eq!(counter("cpu-clock"), Counter::SW_CPU_CLOCK);
        assert_eq!(counter("cycles"), Counter::HW_CPU_CYCLES);
        assert_eq!(counter("cs"), Counter::SW_CONTEXT_SWITCHES);
        assert_eq!(counter("page-faults:u"), Counter::SW_PAGE_FAULTS);
        let modifiers = event("cycles:uk").unwrap().timebase().modifiers;
        assert_eq!(
            modifiers,
            [
                EventModifier::EVENT_MODIFIER_COUNT_USERSPACE,
                EventModifier::EVENT_MODIFIER_COUNT_KERNEL
            ]
        );
        for typed in ["sched:sched_switch", "sched/sched_switch"] {
            match event(typed).unwrap().timebase().event {
                Some(timebase::Event::Tracepoint(tracepoint)) => {
                    assert_eq!(tracepoint.name.as_deref(), Some("sched:sched_switch"));
                }
                other => panic!("{typed}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_name_that_is_no_event_is_reported_with_the_nearest() {
        for (typed, said) in [
            ("page-fault", "did you mean page-faults?"),
            ("gibberish", "tracepoints are GROUP:NAME"),
            ("cycles:p", "'p' in \"cycles:p\" is no modifier"),
            ("r1a8", "raw_event"),
            ("cpu/event=0x3c/", "raw_event"),
            ("intel_pt//", "raw_event"),
        ] {
            let error = event(typed).unwrap_err().to_string();
            assert!(error.contains(said), "{typed}: {error}");
        }
    }
}
