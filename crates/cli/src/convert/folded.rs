//! Folded stacks: one line for each call stack, as `stackcollapse-perf` of the FlameGraph scripts writes them.
//!
//! `process;thread;outermost;…;innermost count`. Other tools of that family read them, and so does the module that draws flame graphs. Processes and
//! threads of the same name are one, so that a picture does not fall apart into workers. In heap profiles the heap has the place of the thread.
//! Functions that were inlined are frames of their own.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::samples::{EventId, FrameId, Key, Owner, Profile, Recording};

/// Writes the samples of one event.
///
/// # Errors
/// The errors of `out`.
pub(super) fn write(recording: &Recording, event: EventId, out: &mut impl Write) -> io::Result<()> {
    for (stack, count) in lines(recording, event) {
        writeln!(out, "{stack} {count}")?;
    }
    out.flush()
}

/// Returns the lines with their counts, sorted.
pub(super) fn lines(recording: &Recording, event: EventId) -> Vec<(String, u64)> {
    let mut names = FrameNames::default();
    let mut counts: HashMap<String, u64> = HashMap::new();
    for (key, count) in recording.totals.sorted() {
        if key.event == event {
            *counts
                .entry(line(&recording.profile, &mut names, &key))
                .or_default() += count;
        }
    }
    let mut lines: Vec<(String, u64)> = counts.into_iter().collect();
    lines.sort_unstable();
    lines
}

/// The frames with their inlined functions, outermost first, joined by semicolons.
#[derive(Debug, Default)]
struct FrameNames {
    known: HashMap<FrameId, String>,
}

impl FrameNames {
    fn get(&mut self, profile: &Profile, frame: FrameId) -> &str {
        self.known.entry(frame).or_insert_with(|| {
            let lines = profile.lines(frame);
            let names: Vec<String> = lines.iter().rev().map(|line| part(&line.name)).collect();
            names.join(";")
        })
    }
}

fn line(profile: &Profile, names: &mut FrameNames, key: &Key) -> String {
    let mut line = part(&process_name(profile, key.owner.pid(profile)));
    line.push(';');
    line.push_str(&part(&owner_name(profile, key.owner)));
    let mut frames: Vec<FrameId> = profile.stacks.frames(key.stack).collect();
    frames.reverse();
    for frame in frames {
        line.push(';');
        line.push_str(names.get(profile, frame));
    }
    line
}

/// Returns the name of a process, or its id.
pub(super) fn process_name(profile: &Profile, pid: u32) -> String {
    match profile.names.process(pid) {
        Some(name) => name.to_owned(),
        None => format!("pid {pid}"),
    }
}

/// Returns the name of a thread or heap.
pub(super) fn owner_name(profile: &Profile, owner: Owner) -> String {
    match owner {
        Owner::Thread(thread) => thread_name(profile, thread),
        Owner::Heap(heap) => profile.heap(heap).map_or(String::new(), |heap| heap.name.clone()),
    }
}

/// Returns the name of a thread, or its id.
pub(super) fn thread_name(profile: &Profile, thread: crate::samples::Thread) -> String {
    match profile.names.thread(thread) {
        Some(name) => name.to_owned(),
        None => format!("tid {}", thread.tid),
    }
}

/// Returns a name as one part of a line: without semicolons and line breaks.
fn part(name: &str) -> String {
    let clean = |letter: char| match letter {
        ';' => ':',
        letter if letter.is_control() => ' ',
        letter => letter,
    };
    name.chars().map(clean).collect()
}
