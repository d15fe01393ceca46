//! The summary of a heap profile for the terminal: how much is live and was allocated, and the functions that hold most of it.
//!
//! [`run`](super::run) prints it after a recording. Bytes are estimates: each sample stands for as many as were allocated since the one before, on
//! average. Allocations are those that were sampled.

use std::fmt::Display;
use std::path::Path;

use super::args::NAME;
use crate::convert::losses;
use crate::figures::{Bytes, Counted};
use crate::profiling::{Goal, top};
use crate::samples::{EventId, Measure, Recording};
use crate::stderr;
use crate::stdout::Screen;

/// Returns the lines.
pub(super) fn summary(recording: &Recording, goal: &Goal, file: &Path) -> String {
    let screen = Screen::of_stderr();
    let mut text = String::new();
    let event = |measure| {
        let mut events = recording.events_with_stacks().into_iter();
        events.find(|event| recording.measure(*event) == Some(measure))
    };
    let sum = |event: Option<EventId>| event.map_or(0, |event| recording.sum(event));
    let allocated = event(Measure::AllocatedSize);
    let live = event(Measure::LiveSize);
    let is_at_max = recording.profile.heaps.iter().any(|heap| heap.is_at_max);
    // The most important part is printed last, because people look at the end first.
    if let Some(allocated) = allocated.filter(|_| !is_at_max) {
        let count = sum(event(Measure::AllocatedCount));
        text += &format!(
            "\nallocated{}: {}\n",
            of(recording),
            amount(recording.sum(allocated), count)
        );
        text += &top::table(recording, allocated, screen);
    }
    let when = if is_at_max {
        "live at the maximum"
    } else {
        "live at the end"
    };
    match live {
        Some(live) => {
            let count = sum(event(Measure::LiveCount));
            text += &format!(
                "\n{when}{}: {}\n",
                of(recording),
                amount(recording.sum(live), count)
            );
            text += &top::table(recording, live, screen);
        }
        None => text += &format!("\n{when}{}: nothing of what was sampled\n", of(recording)),
    }
    text.push('\n');
    for loss in losses(&recording.profile) {
        text += &format!("{NAME}: {loss}\n");
    }
    text += &format!("{NAME}: {}\n", goal.shown_by(file));
    text
}

/// Says of how many processes the memory is, if of several.
fn of(recording: &Recording) -> String {
    let mut pids: Vec<u32> = recording.profile.heaps.iter().map(|heap| heap.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    match pids.len() {
        0 | 1 => String::new(),
        processes => format!(" in {} processes", processes),
    }
}

fn amount(bytes: u64, count: u64) -> String {
    format!("{} in {}", Bytes(bytes), Counted(count, "sampled allocation"))
}

pub(super) fn say(message: &(impl Display + ?Sized)) {
    stderr::say(NAME, message);
}
