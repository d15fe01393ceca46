//! Interned data that only the event knows: static strings, source locations, bodies of log messages, call stacks.
//!
//! Used by [`super::event::EventContext`]. Entries that an event refers to for the first time are collected here, and go out with the event's own
//! packet. Ids are the sequence's own, and start far above those of [`super::interning`].

use std::collections::HashMap;

use ferretto_proto::write::{InternedData, TracePacket};
use ferretto_wire::Writer;

use crate::callstack::{self, Frames, InternedStacks};

/// Ids below this are the process's.
const FIRST_LOCAL_ID: u64 = 1 << 32;

/// The most bodies that a sequence keeps, and the most bytes of them, because their number is unbounded. At the limit they start over.
const MAX_BODIES: usize = 4096;
const MAX_BODY_BYTES: usize = 256 * 1024;

/// The most names, and the most places, that a sequence keeps. They are parts of the program, unless it leaks others. At the limit they start over.
const MAX_STATIC: usize = 1 << 14;

/// The entries written so far, and the entries for the next packet.
#[derive(Default)]
pub(super) struct LocalStrings {
    event_names: HashMap<(usize, usize), u64>,
    last_event_name: u64,
    /// By file and line: generic code has more than one function at a place.
    locations: HashMap<(usize, usize, u32), Vec<Location>>,
    kept_locations: usize,
    last_location: u64,
    bodies: HashMap<Box<str>, u64>,
    body_bytes: usize,
    last_body: u64,
    /// `None` until there is one.
    stacks: Option<Box<InternedStacks>>,
    /// Fields of `InternedData`.
    pending: Writer,
    /// The bytes of `pending` that define call stacks.
    pending_of_stacks: usize,
}

/// A place in a function.
struct Location {
    function: Option<Box<str>>,
    id: u64,
}

impl LocalStrings {
    /// The id of an event's name that will stay at its address.
    pub(super) fn event_name(&mut self, name: &'static str) -> u64 {
        let key = (name.as_ptr().addr(), name.len());
        if let Some(&id) = self.event_names.get(&key) {
            return id;
        }
        if self.event_names.len() >= MAX_STATIC {
            self.event_names.clear();
        }
        let id = FIRST_LOCAL_ID + self.last_event_name;
        self.last_event_name += 1;
        self.event_names.insert(key, id);
        InternedData::new(&mut self.pending).event_names(|entry| {
            entry.iid(id).name(name);
        });
        id
    }

    /// The id of a place in the source.
    pub(super) fn source_location(&mut self, file: &'static str, function: Option<&str>, line: u32) -> u64 {
        if self.kept_locations >= MAX_STATIC {
            self.locations.clear();
            self.kept_locations = 0;
        }
        let key = (file.as_ptr().addr(), file.len(), line);
        let known = self.locations.entry(key).or_default();
        if let Some(location) = known.iter().find(|known| known.function.as_deref() == function) {
            return location.id;
        }
        self.last_location += 1;
        self.kept_locations += 1;
        let id = self.last_location;
        known.push(Location {
            function: function.map(Box::from),
            id,
        });
        InternedData::new(&mut self.pending).source_locations(|entry| {
            entry.iid(id).file_name(file).line_number(line);
            if let Some(function) = function {
                entry.function_name(function);
            }
        });
        id
    }

    /// The id of a log message's body.
    pub(super) fn log_message_body(&mut self, body: &str) -> u64 {
        if let Some(&id) = self.bodies.get(body) {
            return id;
        }
        if self.bodies.len() >= MAX_BODIES || self.body_bytes + body.len() > MAX_BODY_BYTES {
            self.bodies.clear();
            self.body_bytes = 0;
        }
        self.body_bytes += body.len();
        // Ids keep counting until the state is cleared: if one were used twice, its meaning would depend on lost packets.
        self.last_body += 1;
        let id = self.last_body;
        self.bodies.insert(body.into(), id);
        InternedData::new(&mut self.pending).log_message_body(|entry| {
            entry.iid(id).body(body);
        });
        id
    }

    /// The id of a call stack; `None` if it has no frames.
    pub(super) fn callstack(&mut self, stack: &dyn Frames) -> Option<u64> {
        let stacks = self.stacks.get_or_insert_default();
        let before = self.pending.len();
        let id = stacks.id(stack, &mut self.pending);
        self.pending_of_stacks += self.pending.len() - before;
        id
    }

    /// Writes the entries that the packet's event refers to for the first time. Returns the bytes of those that define call stacks.
    #[inline]
    pub(super) fn write_pending(&mut self, packet: &mut TracePacket<'_>) -> usize {
        if self.pending.is_empty() {
            return 0;
        }
        packet
            .writer()
            .bytes_field(TracePacket::INTERNED_DATA, self.pending.as_slice());
        callstack::clear(&mut self.pending);
        std::mem::take(&mut self.pending_of_stacks)
    }

    /// Starts over with the sequence's incremental state: readers forget all ids there.
    pub(super) fn clear(&mut self) {
        self.event_names.clear();
        self.last_event_name = 0;
        self.locations.clear();
        self.kept_locations = 0;
        self.last_location = 0;
        self.bodies.clear();
        self.body_bytes = 0;
        self.last_body = 0;
        self.stacks = None;
        self.pending.clear();
        self.pending_of_stacks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_same_only_with_file_function_and_line() {
        let mut strings = LocalStrings::default();
        let file = "file.rs.in";
        let places = [
            (file, None, 1),
            (file, None, 2),
            (file, Some("read"), 1),
            (file, Some("write"), 1),
            (&file[..7], None, 1),
        ];
        for _ in 0..2 {
            let ids = places.map(|(file, function, line)| strings.source_location(file, function, line));
            assert_eq!(ids, [1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn names_and_places_are_kept_up_to_a_number_and_ids_keep_their_meaning() {
        let mut strings = LocalStrings::default();
        let text: &'static str = "x".repeat(2 * MAX_STATIC).leak();
        let mut told = std::collections::HashSet::new();
        for end in 1..=2 * MAX_STATIC {
            assert!(
                told.insert(strings.event_name(&text[..end])),
                "an id has two meanings"
            );
            assert_eq!(strings.source_location("file.rs", None, end as u32), end as u64);
            assert!(strings.event_names.len() <= MAX_STATIC && strings.locations.len() <= MAX_STATIC);
        }
        assert_eq!(
            strings.event_name(text),
            *told.iter().max().unwrap(),
            "it is kept"
        );
    }

    #[test]
    fn bodies_are_kept_by_number_and_by_bytes() {
        let mut strings = LocalStrings::default();
        let first = strings.log_message_body("first");
        assert_eq!(strings.log_message_body("first"), first);
        let long = "x".repeat(MAX_BODY_BYTES - 6);
        assert_eq!(strings.log_message_body(&long), first + 1);
        assert_eq!(strings.log_message_body("first"), first);
        assert_eq!(strings.log_message_body("second"), first + 2);
        assert_eq!(strings.log_message_body("first"), first + 3);
        assert!(strings.body_bytes <= MAX_BODY_BYTES);
        for number in 0..2 * MAX_BODIES {
            strings.log_message_body(&number.to_string());
        }
        assert!(strings.bodies.len() <= MAX_BODIES);
        strings.clear();
        assert_eq!(strings.log_message_body("second"), 1);
        assert_eq!(strings.source_location("file.rs", None, 1), 1);
    }
}
