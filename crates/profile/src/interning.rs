//! Numbers for what samples refer to: strings, mappings, frames and call stacks, each written once for a sequence.
//!
//! [`Output`](crate::output::Output) asks for the number of a call stack; what its readers do not know yet is then [pending](Interning::take_pending) and
//! goes out with the sample. Numbers begin at 1, as everywhere in interned data; 0 is the empty string. Memory is bounded: when there are
//! `MOST_CALLSTACKS`, [`Interning::is_full`] says so, and everything starts anew.

use std::collections::HashMap;
use std::hash::Hash;

use ferretto_proto::write::{InternedData, InternedString};
use ferretto_wire::Writer;

/// Call stacks that are known at most: some 20 MB at 40 frames each.
const MOST_CALLSTACKS: usize = 1 << 16;

/// Frames that are known at most.
const MOST_FRAMES: usize = 1 << 19;

/// Mappings that are known at most.
const MOST_MAPPINGS: usize = 1 << 17;

/// Frames of all stacks together.
const MOST_FRAMES_OF_STACKS: usize = 1 << 23;

/// Bytes of names and paths that are known at most.
const MOST_STRING_BYTES: usize = 32 << 20;

/// The number of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MappingId(u64);

/// The number of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(u64);

/// The number of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallstackId(pub u64);

/// A mapping, as frames refer to it. The fields are those of upstream's `Mapping`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mapping<'a> {
    /// The build id's bytes; empty if the file has none.
    pub build_id: &'a [u8],
    /// Where in the file the mapping begins.
    pub exact_offset: u64,
    /// Where in the file the ELF image begins.
    pub start_offset: u64,
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// What is added to an offset in the image to get a virtual address of the ELF file.
    pub load_bias: u64,
    /// A path, or a name like `kernel` or `[vdso]`.
    pub path: &'a [u8],
}

/// What a string is used for. Each use has a table of its own for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    BuildId,
    Path,
    FunctionName,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Interning {
    strings: HashMap<(Use, Box<[u8]>), u64>,
    string_bytes: usize,
    mappings: HashMap<MappingKey, MappingId>,
    frames: HashMap<(MappingId, u64, u64), FrameId>,
    callstacks: HashMap<Box<[FrameId]>, CallstackId>,
    frames_of_stacks: usize,
    /// Fields of `InternedData`.
    pending: Writer,
}

/// The numbers of what a mapping consists of.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MappingKey {
    build_id: u64,
    numbers: [u64; 5],
    path: Box<[u64]>,
}

impl Interning {
    /// Whether it is time to [start anew](Self::clear).
    pub fn is_full(&self) -> bool {
        self.callstacks.len() >= MOST_CALLSTACKS
            || self.frames.len() >= MOST_FRAMES
            || self.frames_of_stacks >= MOST_FRAMES_OF_STACKS
            || self.mappings.len() >= MOST_MAPPINGS
            || self.string_bytes >= MOST_STRING_BYTES
    }

    /// Forgets everything. Numbers that were given are void.
    pub fn clear(&mut self) {
        *self = Interning::default();
    }

    /// Hands over what readers have to know from now on, to be written as the field `interned_data`. Empty if they know everything.
    pub fn take_pending(&mut self) -> Writer {
        std::mem::take(&mut self.pending)
    }

    /// The number of a mapping.
    pub fn mapping(&mut self, mapping: &Mapping<'_>) -> MappingId {
        let build_id = self.string(Use::BuildId, mapping.build_id);
        // As upstream: a path is the row of its components.
        let components = mapping
            .path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty());
        let path: Box<[u64]> = components.map(|part| self.string(Use::Path, part)).collect();
        let numbers = [
            mapping.exact_offset,
            mapping.start_offset,
            mapping.start,
            mapping.end,
            mapping.load_bias,
        ];
        let key = MappingKey {
            build_id,
            numbers,
            path,
        };
        if let Some(known) = self.mappings.get(&key) {
            return *known;
        }
        let id = MappingId(next(&self.mappings));
        InternedData::new(&mut self.pending).mappings(|out| {
            out.iid(id.0)
                .build_id(build_id)
                .exact_offset(mapping.exact_offset)
                .start_offset(mapping.start_offset)
                .start(mapping.start)
                .end(mapping.end)
                .load_bias(mapping.load_bias);
            for part in &key.path {
                out.path_string_ids(*part);
            }
        });
        self.mappings.insert(key, id);
        id
    }

    /// The number of a frame: an address relative to its mapping's file, and the name of the function if it is known.
    pub fn frame(&mut self, mapping: MappingId, function: &[u8], rel_pc: u64) -> FrameId {
        let function = self.string(Use::FunctionName, function);
        let key = (mapping, function, rel_pc);
        if let Some(known) = self.frames.get(&key) {
            return *known;
        }
        let id = FrameId(next(&self.frames));
        InternedData::new(&mut self.pending).frames(|out| {
            out.iid(id.0)
                .function_name_id(function)
                .mapping_id(mapping.0)
                .rel_pc(rel_pc);
        });
        self.frames.insert(key, id);
        id
    }

    /// The number of a call stack, whose frames come with callees before callers.
    pub fn callstack(&mut self, frames: &[FrameId]) -> CallstackId {
        if let Some(known) = self.callstacks.get(frames) {
            return *known;
        }
        let id = CallstackId(next(&self.callstacks));
        InternedData::new(&mut self.pending).callstacks(|out| {
            out.iid(id.0);
            for frame in frames.iter().rev() {
                out.frame_ids(frame.0);
            }
        });
        self.frames_of_stacks += frames.len();
        self.callstacks.insert(frames.into(), id);
        id
    }

    fn string(&mut self, usage: Use, text: &[u8]) -> u64 {
        if text.is_empty() {
            return 0;
        }
        // Each use has its own table for readers, so the same text gets a number for each use.
        let key = (usage, text.into());
        if let Some(known) = self.strings.get(&key) {
            return *known;
        }
        let iid = next(&self.strings);
        let mut out = InternedData::new(&mut self.pending);
        let string = |string: &mut InternedString<'_>| {
            string.iid(iid).str(text);
        };
        match usage {
            Use::BuildId => out.build_ids(string),
            Use::Path => out.mapping_paths(string),
            Use::FunctionName => out.function_names(string),
        };
        self.string_bytes += text.len();
        self.strings.insert(key, iid);
        iid
    }
}

/// The number of an entry that a table gets now.
fn next<K: Hash + Eq, V>(table: &HashMap<K, V>) -> u64 {
    table.len() as u64 + 1
}

#[cfg(test)]
mod tests;
