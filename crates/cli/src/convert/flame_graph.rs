//! Flame graphs: a picture (SVG) in which the width of a function is its share of the samples, or of the memory.
//!
//! The crate `inferno` draws them from folded stacks.

use std::borrow::Cow;
use std::io::{self, Write};

use inferno::flamegraph::{self, Options};

use super::folded;
use crate::samples::{EventId, Measure, Period, Recording};

/// Draws the samples of one event. There has to be at least one with a call stack.
///
/// # Errors
/// The errors of `out`.
pub(super) fn write(recording: &Recording, event: EventId, out: &mut impl Write) -> io::Result<()> {
    let lines: Vec<String> = folded::lines(recording, event)
        .into_iter()
        .map(|(stack, count)| format!("{} {count}", without_number(&stack)))
        .collect();
    let described = recording.profile.events.get(event.0 as usize);
    let name = described.map_or("", |event| &event.name);
    let mut options = Options::default();
    options.title = match recording.measure(event) {
        Some(_) => name.to_owned(),
        None => format!("Samples of {name}"),
    };
    options.count_name = match (recording.measure(event), described.and_then(|event| event.period)) {
        (Some(Measure::LiveSize | Measure::AllocatedSize), _) => "bytes".to_owned(),
        (Some(Measure::LiveCount | Measure::AllocatedCount), _) => "allocations".to_owned(),
        (None, Some(Period::Weighted)) => match described.map_or("", |event| &*event.unit) {
            "nanoseconds" => "ns".to_owned(),
            unit => unit.to_owned(),
        },
        (None, _) => "samples".to_owned(),
    };
    // The same function has the same colour in every picture.
    options.hash = true;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut *out)?;
    out.flush()
}

/// Returns a stack whose last name does not end with a number of its own, which would be taken for a second count.
fn without_number(stack: &str) -> Cow<'_, str> {
    match stack.rsplit_once(' ') {
        Some((name, number)) if number.parse::<f64>().is_ok() => format!("{name}\u{a0}{number}").into(),
        _ => stack.into(),
    }
}
