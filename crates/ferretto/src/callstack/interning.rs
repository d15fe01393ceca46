//! The call stacks that the readers of a sequence know, and their ids.
//!
//! Each sequence of track events has one (`track_event/local_strings.rs`), and each of samples (`stack_sample.rs`). Definitions of what a stack consists of
//! are collected and go out with the packet that refers to the stack.

use std::collections::HashMap;

use ferretto_proto::write::{InternedData, InternedString};
use ferretto_wire::Writer;

use super::modules;
use super::{Frame, Frames};

/// The most stacks that a sequence keeps, and the most bytes of all that it keeps. At the limit it forgets all.
const MAX_STACKS: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

/// A loaded part of a file. The fields are those of upstream's `Mapping`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mapping {
    pub(super) path: String,
    /// Empty if the file has none.
    pub(super) build_id: Vec<u8>,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The place in the file that `start` is mapped from.
    pub(super) exact_offset: u64,
    /// What is added to a place in the file to get an address as the file's symbols count it.
    pub(super) load_bias: u64,
}

/// See the [module](self). When its sequence starts over, a new one takes its place.
#[derive(Default)]
pub(crate) struct InternedStacks {
    /// By the keys of all frames.
    stacks: HashMap<Box<[u8]>, u64>,
    /// By [key](push_key).
    frames: HashMap<Box<[u8]>, u64>,
    mappings: HashMap<Mapping, u64>,
    functions: HashMap<Box<str>, u64>,
    sources: HashMap<Box<str>, u64>,
    /// Bytes of what is kept, roughly.
    bytes: usize,
    last_stack: u64,
    last_frame: u64,
    last_mapping: u64,
    last_string: u64,
    /// The key of the stack that is looked up.
    key: Vec<u8>,
}

impl InternedStacks {
    /// The id of a stack; `None` if it has no frames. What readers do not know yet is added to `definitions`, as fields of `InternedData`.
    pub(crate) fn id(&mut self, stack: &dyn Frames, definitions: &mut Writer) -> Option<u64> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        stack.for_each(&mut |frame| push_key(&mut key, &frame));
        let id = match self.stacks.get(&key[..]) {
            _ if key.is_empty() => None,
            Some(id) => Some(*id),
            None => Some(self.define(stack, &key, definitions)),
        };
        self.key = key;
        id
    }

    #[cold]
    fn define(&mut self, stack: &dyn Frames, key: &[u8], definitions: &mut Writer) -> u64 {
        if self.stacks.len() >= MAX_STACKS || self.bytes >= MAX_BYTES {
            self.forget();
        }
        let mut frames = Vec::new();
        stack.for_each(&mut |frame| frames.push(self.frame(&frame, definitions)));
        self.last_stack += 1;
        let id = self.last_stack;
        InternedData::new(definitions).callstacks(|entry| {
            entry.iid(id);
            // Readers want the outermost first.
            for frame in frames.iter().rev() {
                entry.frame_ids(*frame);
            }
        });
        self.bytes += key.len();
        self.stacks.insert(key.into(), id);
        id
    }

    /// Forgets what was defined. Ids keep counting: if one were used twice, its meaning would depend on lost packets.
    fn forget(&mut self) {
        self.stacks.clear();
        self.frames.clear();
        self.mappings.clear();
        self.functions.clear();
        self.sources.clear();
        self.bytes = 0;
    }

    fn frame(&mut self, frame: &Frame<'_>, definitions: &mut Writer) -> u64 {
        let mut key = Vec::new();
        push_key(&mut key, frame);
        if let Some(id) = self.frames.get(&key[..]) {
            return *id;
        }
        let place = frame.address.and_then(modules::find);
        let place = place.map(|(mapping, rel_pc)| (self.mapping(mapping, definitions), rel_pc));
        let function = match (frame.function, frame.address, place) {
            (Some(function), ..) => Some(self.string(Use::Function, function, definitions)),
            // Without a file only the address tells such frames apart: of code that was compiled just now, for example.
            (None, Some(address), None) => {
                Some(self.string(Use::Function, &format!("{address:#x}"), definitions))
            }
            _ => None,
        };
        let source = frame
            .source
            .map(|(file, line)| (self.string(Use::Source, file, definitions), line));
        self.last_frame += 1;
        let id = self.last_frame;
        InternedData::new(definitions).frames(|entry| {
            entry.iid(id);
            if let Some(function) = function {
                entry.function_name_id(function);
            }
            if let Some((mapping, rel_pc)) = place {
                entry.mapping_id(mapping).rel_pc(rel_pc);
            }
            if let Some((file, line)) = source {
                entry.source_path_iid(file).line_number(line);
            }
        });
        self.bytes += key.len();
        self.frames.insert(key.into(), id);
        id
    }

    fn mapping(&mut self, mapping: Mapping, definitions: &mut Writer) -> u64 {
        if let Some(id) = self.mappings.get(&mapping) {
            return *id;
        }
        self.last_mapping += 1;
        let id = self.last_mapping;
        // A file can have some mappings. Its names are repeated then, which is less than to remember them.
        let mut data = InternedData::new(definitions);
        let build_id = (!mapping.build_id.is_empty()).then_some(id);
        if let Some(iid) = build_id {
            data.build_ids(|entry| string(entry, iid, &mapping.build_id));
        }
        data.mapping_paths(|entry| string(entry, id, mapping.path.as_bytes()));
        data.mappings(|entry| {
            entry.iid(id);
            if let Some(iid) = build_id {
                entry.build_id(iid);
            }
            entry
                .exact_offset(mapping.exact_offset)
                .start(mapping.start)
                .end(mapping.end)
                .load_bias(mapping.load_bias)
                .path_string_ids(id);
        });
        self.bytes += mapping.path.len() + mapping.build_id.len();
        self.mappings.insert(mapping, id);
        id
    }

    fn string(&mut self, usage: Use, text: &str, definitions: &mut Writer) -> u64 {
        let known = match usage {
            Use::Function => &mut self.functions,
            Use::Source => &mut self.sources,
        };
        if let Some(id) = known.get(text) {
            return *id;
        }
        self.last_string += 1;
        let id = self.last_string;
        known.insert(text.into(), id);
        self.bytes += text.len();
        let mut data = InternedData::new(definitions);
        match usage {
            Use::Function => data.function_names(|entry| string(entry, id, text.as_bytes())),
            Use::Source => data.source_paths(|entry| string(entry, id, text.as_bytes())),
        };
        id
    }
}

/// What a string is used for.
#[derive(Clone, Copy)]
enum Use {
    Function,
    Source,
}

fn string(entry: &mut InternedString<'_>, id: u64, text: &[u8]) {
    entry.iid(id).str(text);
}

/// Appends bytes that tell the frame, and where they end, from all others.
fn push_key(key: &mut Vec<u8>, frame: &Frame<'_>) {
    let Frame {
        address,
        function,
        source,
    } = *frame;
    key.push(
        u8::from(address.is_some()) | u8::from(function.is_some()) << 1 | u8::from(source.is_some()) << 2,
    );
    if let Some(address) = address {
        key.extend(address.to_le_bytes());
    }
    let mut push_text = |text: &str| {
        key.extend(text.len().to_le_bytes());
        key.extend(text.as_bytes());
    };
    if let Some(function) = function {
        push_text(function);
    }
    if let Some((file, line)) = source {
        push_text(file);
        key.extend(line.to_le_bytes());
    }
}

#[cfg(test)]
mod tests;
