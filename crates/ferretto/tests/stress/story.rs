//! The events of threads: an endless story for each of them, the same each time.

use ferretto::track::{CounterTrack, NamedTrack};
use ferretto::{DynamicCategory, trace_counter, trace_event, trace_event_instant};

use super::Chance;

/// The categories of all events.
pub(crate) const CATEGORIES: [&str; 2] = ["stress.a", "stress.b"];

static COUNTER: CounterTrack<'static> = CounterTrack::new("Steps");
static TRACK: NamedTrack<'static> = NamedTrack::new("Elsewhere");

/// An event, as it can be recognised in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Index in [`CATEGORIES`].
    pub(crate) category: usize,
    pub(crate) kind: Kind,
    /// The step that it tells, if it tells.
    pub(crate) step: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Numbered,
    OnTrack,
    Counter,
    Long,
    Dynamic,
    Begin,
    End,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Plain,
    Numbered,
    OnTrack,
    Counter,
    /// With a text of this length.
    Long(usize),
    Dynamic,
    Slice,
}

fn step(stream: u64, number: u64) -> Step {
    let mut chance = Chance::new(stream << 32 ^ number);
    match chance.below(64) {
        0 => Step::Long(4_000 + chance.below(16_000) as usize),
        1..16 => Step::Plain,
        16..30 => Step::Numbered,
        30..38 => Step::OnTrack,
        38..46 => Step::Counter,
        46..52 => Step::Dynamic,
        _ => Step::Slice,
    }
}

/// The text of a long event.
fn text(stream: u64, number: u64, len: usize) -> String {
    let first = stream.wrapping_add(number);
    (0..len as u64)
        .map(|at| char::from(b'a' + (first.wrapping_add(at) % 26) as u8))
        .collect()
}

/// Whether this is the text of that step.
pub(crate) fn is_text_of(stream: u64, number: u64, found: &[u8]) -> bool {
    match step(stream, number) {
        Step::Long(len) => text(stream, number, len).as_bytes() == found,
        _ => false,
    }
}

/// The events of a step, in their order.
pub(crate) fn events(stream: u64, number: u64) -> Vec<Event> {
    let event = |category, kind| Event {
        category,
        kind,
        step: Some(number),
    };
    let silent = |category, kind| Event {
        category,
        kind,
        step: None,
    };
    match step(stream, number) {
        Step::Plain => vec![silent(0, Kind::Plain)],
        Step::Numbered => vec![event(1, Kind::Numbered)],
        Step::OnTrack => vec![event(0, Kind::OnTrack)],
        Step::Counter => vec![event(1, Kind::Counter)],
        Step::Long(_) => vec![event(0, Kind::Long)],
        Step::Dynamic => vec![event(1, Kind::Dynamic)],
        Step::Slice => vec![
            event(1, Kind::Begin),
            silent(0, Kind::Plain),
            silent(1, Kind::End),
        ],
    }
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Normal,
    /// With a panic, if it is one that has a slice open: its events are the same.
    Panic,
}

/// The payload of those panics.
pub(crate) struct Planned;

/// Writes the events of a step.
pub(crate) fn tell(stream: u64, number: u64, outcome: Outcome) {
    match step(stream, number) {
        Step::Plain => trace_event_instant!("stress.a", "Plain"),
        Step::Numbered => {
            trace_event_instant!("stress.b", "Numbered", "stream" => stream, "step" => number);
        }
        Step::OnTrack => {
            let track = TRACK.id(stream);
            trace_event_instant!("stress.a", "OnTrack", track = track, "stream" => stream, "step" => number);
        }
        Step::Counter => trace_counter!("stress.b", &COUNTER, number),
        Step::Long(len) => {
            let text = text(stream, number, len);
            trace_event_instant!("stress.a", "Long", "stream" => stream, "step" => number, "text" => text);
        }
        Step::Dynamic => {
            let name = format!("Dynamic {}", number % 100);
            trace_event_instant!(DynamicCategory("stress.b"), name, "stream" => stream, "step" => number);
        }
        Step::Slice => {
            trace_event!("stress.b", "Slice", "stream" => stream, "step" => number);
            trace_event_instant!("stress.a", "Plain");
            if outcome == Outcome::Panic {
                // Without a word.
                std::panic::resume_unwind(Box::new(Planned));
            }
        }
    }
}
