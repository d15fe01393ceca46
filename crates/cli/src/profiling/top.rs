//! The functions with the most samples, or the most memory, for the terminal.
//!
//! `ferretto profile` and `ferretto heap` print it after a recording, and `ferretto profile --top` while it runs.

mod allocators;

use std::collections::{HashMap, HashSet};

use crate::figures::{Bytes, Count, Counted};
use crate::samples::{EventId, FrameId, Measure, Period, Profile, Recording, StackId};
use crate::stdout::{Column, Screen, Table};

/// The functions that are listed.
const ROWS: usize = 10;
/// Stands for all addresses of a module that have no name. Each for itself would be no function, and of no use to anybody.
const NO_NAME: &str = "[no name]";
/// The longest name that is printed whole. Names of templates have no end.
const LONGEST: usize = 100;

/// A function's share.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Share {
    /// While it ran itself.
    own: u64,
    /// While it was on the call stack.
    total: u64,
}

/// A function, by its name and the file that it is in.
type Function = (String, String);

/// Returns the table of an event; empty if it has no samples.
pub(crate) fn table(recording: &Recording, event: EventId, screen: Screen) -> String {
    table_of(recording, event, screen, ROWS)
}

/// Returns a table with so many functions at most.
pub(crate) fn table_of(recording: &Recording, event: EventId, screen: Screen, most: usize) -> String {
    let profile = &recording.profile;
    let mut shares: HashMap<Function, Share> = HashMap::new();
    let mut functions: HashMap<FrameId, Vec<Function>> = HashMap::new();
    let mut all = 0;
    for (key, count) in recording.totals.sorted() {
        if key.event != event {
            continue;
        }
        all += count;
        let mut seen = HashSet::new();
        for frame in own_frames(recording, key.stack, event) {
            let lines = functions
                .entry(frame)
                .or_insert_with(|| functions_of(profile, frame));
            for function in lines.iter() {
                let share = shares.entry(function.clone()).or_default();
                if seen.is_empty() {
                    share.own += count;
                }
                // A stack with a recursion counts once.
                if seen.insert(function.clone()) {
                    share.total += count;
                }
            }
        }
    }
    let mut rows: Vec<(Function, Share)> = shares.into_iter().collect();
    rows.sort_by(|(a, one), (b, other)| {
        (other.own, other.total)
            .cmp(&(one.own, one.total))
            .then_with(|| a.cmp(b))
    });
    let columns = [
        Column::number("SELF"),
        Column::number("TOTAL"),
        Column::text("MODULE"),
        Column::text("FUNCTION"),
    ];
    let mut table = Table::new(columns);
    let cell = |part| match recording.measure(event) {
        Some(Measure::LiveSize | Measure::AllocatedSize) => Bytes(part).to_string(),
        Some(Measure::LiveCount | Measure::AllocatedCount) => Count(part).to_string(),
        None => percent(part, all),
    };
    for ((name, module), share) in rows.into_iter().take(most) {
        table.row([cell(share.own), cell(share.total), module, name]);
    }
    table.print(screen)
}

/// Returns what an event has in all, in words: samples, or the time of waiting.
pub(crate) fn amount(recording: &Recording, event: EventId) -> String {
    let all = recording.sum(event);
    let Some(described) = recording.profile.events.get(event.0 as usize) else {
        return String::new();
    };
    match described.period {
        Some(Period::Weighted) => format!("{} ms {}", Count(all / 1_000_000), described.name),
        _ => format!("{} of {}", Counted(all, "sample"), described.name),
    }
}

/// Returns the frames that count, innermost first. Where a thread waits, the kernel's own functions are always the same, and where it allocates, those
/// of the allocator.
fn own_frames(recording: &Recording, stack: StackId, event: EventId) -> Vec<FrameId> {
    let profile = &recording.profile;
    let frames: Vec<FrameId> = profile.stacks.frames(stack).collect();
    if recording.measure(event).is_some() {
        let of_program = frames.iter().position(|frame| !allocators::has(profile, *frame));
        return frames[of_program.unwrap_or(0)..].to_vec();
    }
    let described = profile.events.get(event.0 as usize);
    if described.is_some_and(|event| event.period == Some(Period::Weighted)) {
        let of_program = frames.iter().position(|frame| !profile.is_kernel(*frame));
        if let Some(first) = of_program {
            return frames[first..].to_vec();
        }
    }
    frames
}

/// Returns the functions of a frame, innermost first.
fn functions_of(profile: &Profile, frame: FrameId) -> Vec<Function> {
    let module = profile.module_of(frame);
    let path = module.map_or("", |(_, module)| profile.path(module));
    let module = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("");
    let lines = profile.lines(frame);
    lines
        .iter()
        .map(|line| match line.system_name {
            "" => (NO_NAME.to_owned(), module.to_owned()),
            _ => (shortened(&line.name), module.to_owned()),
        })
        .collect()
}

fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
