//! Numbers for the objects that samples refer to: strings, mappings, frames and call stacks, each written once for a sequence.
//!
//! `Output` and the dumps of heap profiles ask for the numbers of call stacks. An entry that readers do not know yet is
//! [pending](Interning::take_pending), and goes out before or with the packet that refers to it. Numbers begin at 1, as everywhere in interned data; 0 is the empty
//! string. No number is given twice.
//!
//! Memory is bounded by [`Limits`]. CPU profiles start anew when [the limits are reached](Interning::is_full). The books of heap
//! profiles keep numbers, so there what is new has no number of its own from then on: it counts as one call stack, which is [named
//! beforehand](Interning::with_overflow).

use std::collections::HashSet;
use std::sync::Arc;

use ferretto_proto::write::{InternedData, InternedString};
use ferretto_wire::Writer;

use table::Table;

mod table;

/// How much is known, or may be known at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Call stacks.
    pub callstacks: usize,
    /// Frames.
    pub frames: usize,
    /// Mappings.
    pub mappings: usize,
    /// Frames of all call stacks together.
    pub frames_of_stacks: usize,
    /// Bytes of names and paths.
    pub string_bytes: usize,
}

impl Limits {
    /// Of a CPU profile: call stacks take some 20 MB at 40 frames each.
    pub(crate) const CPU_PROFILE: Limits = Limits {
        callstacks: 1 << 16,
        frames: 1 << 19,
        mappings: 1 << 17,
        frames_of_stacks: 1 << 23,
        string_bytes: 32 << 20,
    };

    /// Of a heap profile: some 300 MB, if all of it is used.
    pub const HEAP_PROFILE: Limits = Limits {
        callstacks: 1 << 20,
        frames: 1 << 20,
        mappings: 1 << 18,
        frames_of_stacks: 1 << 24,
        string_bytes: 64 << 20,
    };

    /// Each of these and its counterpart, put together.
    #[must_use]
    pub fn with(self, other: Limits, together: impl Fn(usize, usize) -> usize) -> Limits {
        Limits {
            callstacks: together(self.callstacks, other.callstacks),
            frames: together(self.frames, other.frames),
            mappings: together(self.mappings, other.mappings),
            frames_of_stacks: together(self.frames_of_stacks, other.frames_of_stacks),
            string_bytes: together(self.string_bytes, other.string_bytes),
        }
    }

    /// Whether so much of anything is known.
    pub fn is_reached_by(self, known: Limits) -> bool {
        known.callstacks >= self.callstacks
            || known.frames >= self.frames
            || known.frames_of_stacks >= self.frames_of_stacks
            || known.mappings >= self.mappings
            || known.string_bytes >= self.string_bytes
    }
}

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
    /// The place in the file where the mapping begins.
    pub exact_offset: u64,
    /// The place in the file where the ELF image begins.
    pub start_offset: u64,
    /// First address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// The number to add to an offset in the image to get a virtual address of the ELF file.
    pub load_bias: u64,
    /// A path, or a name like `kernel` or `[vdso]`.
    pub path: &'a [u8],
}

/// The use of a string. Each use has a table of its own for readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    BuildId,
    Path,
    FunctionName,
}

const USES: [Use; 3] = [Use::BuildId, Use::Path, Use::FunctionName];

/// See [`Interning::set_edition`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edition(pub u32);

/// Bit of the number that stands for an [`Edition`] behind the frames of a call stack.
const EDITION: u64 = 1 << 63;

/// See the [module](self).
#[derive(Debug)]
pub struct Interning {
    limits: Limits,
    /// By [`Use`].
    strings: [Table<Arc<[u8]>>; 3],
    string_bytes: usize,
    mappings: Table<Arc<MappingKey>>,
    frames: Table<FrameKey>,
    callstacks: Table<Arc<[FrameId]>>,
    frames_of_stacks: usize,
    overflow: Option<Overflow>,
    growth: Growth,
    edition: Edition,
    /// A call stack with its edition.
    key: Vec<FrameId>,
}

/// The entry for everything that has no room.
#[derive(Clone, Copy, Debug)]
struct Overflow {
    mapping: MappingId,
    frame: FrameId,
    callstack: CallstackId,
}

/// Whether what is new gets a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// While there is room.
    Allowed,
    /// It does not; it [counts as one call stack](Interning::with_overflow).
    Refused,
}

/// The numbers of a mapping's parts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct MappingKey {
    build_id: u64,
    numbers: [u64; 5],
    path: Box<[u64]>,
}

/// The numbers of a frame's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FrameKey {
    mapping: MappingId,
    function: u64,
    rel_pc: u64,
}

impl Default for Interning {
    /// That of a CPU profile.
    fn default() -> Interning {
        Interning::new(Limits::CPU_PROFILE)
    }
}

impl Interning {
    /// Nothing is known.
    pub(crate) fn new(limits: Limits) -> Interning {
        Interning {
            limits,
            strings: Default::default(),
            string_bytes: 0,
            mappings: Table::default(),
            frames: Table::default(),
            callstacks: Table::default(),
            frames_of_stacks: 0,
            overflow: None,
            growth: Growth::Allowed,
            edition: Edition::default(),
            key: Vec::new(),
        }
    }

    /// The same, with a call stack of one function with this name, which takes the place of all that have no room.
    pub fn with_overflow(limits: Limits, name: &str) -> Interning {
        let mut interning = Interning::new(limits);
        let mapping = interning.mapping(&Mapping::default());
        let frame = interning.frame(mapping, name.as_bytes(), 0);
        let callstack = interning.callstack(&[frame]);
        interning.overflow = Some(Overflow {
            mapping,
            frame,
            callstack,
        });
        interning
    }

    /// The call stack that takes the place of those without room.
    pub fn overflow(&self) -> Option<CallstackId> {
        self.overflow.map(|overflow| overflow.callstack)
    }

    /// Whether a limit is reached.
    pub fn is_full(&self) -> bool {
        self.limits.is_reached_by(self.known())
    }

    /// How much is known.
    pub fn known(&self) -> Limits {
        Limits {
            callstacks: self.callstacks.len(),
            frames: self.frames.len(),
            mappings: self.mappings.len(),
            frames_of_stacks: self.frames_of_stacks,
            string_bytes: self.string_bytes,
        }
    }

    /// Call stacks that have a number.
    pub fn callstacks(&self) -> usize {
        self.callstacks.len()
    }

    /// Bytes of all that is known, roughly.
    pub fn memory_bytes(&self) -> usize {
        /// An entry twice, with its number, and the overhead of an allocation.
        const PER_ENTRY: usize = 80;
        let strings: usize = self.strings.iter().map(Table::len).sum();
        let entries = strings + self.mappings.len() + self.frames.len() + self.callstacks.len();
        entries * PER_ENTRY + self.string_bytes + self.frames_of_stacks * size_of::<FrameId>()
    }

    /// Whether what is new gets a number from now on. Only with [an overflow](Self::with_overflow) it can be refused one.
    pub fn set_growth(&mut self, growth: Growth) {
        self.growth = growth;
    }

    /// Call stacks of different editions have different numbers even if all their frames are the same. Upstream's readers take the totals of one number
    /// for those of one process, so a process that takes the place of another one with the same id needs numbers of its own.
    pub fn set_edition(&mut self, edition: Edition) {
        self.edition = edition;
    }

    /// Forgets everything. Numbers that were given are void.
    pub(crate) fn clear(&mut self) {
        *self = Interning::new(self.limits);
    }

    /// Hands over what readers have to know from now on, to be written as the field `interned_data`. Empty if they know everything.
    pub fn take_pending(&mut self) -> Writer {
        self.take_some_pending(usize::MAX)
    }

    /// The same, but ends after so many bytes, and the one entry that exceeds them. The rest stays pending. The entries to which another refers come before it.
    pub fn take_some_pending(&mut self, bytes: usize) -> Writer {
        let mut writer = Writer::new();
        for usage in USES {
            let strings = &mut self.strings[usage as usize];
            while writer.len() < bytes
                && let Some((iid, text)) = strings.take_untold()
            {
                let mut out = InternedData::new(&mut writer);
                let string = |string: &mut InternedString<'_>| {
                    string.iid(iid).str(text);
                };
                match usage {
                    Use::BuildId => out.build_ids(string),
                    Use::Path => out.mapping_paths(string),
                    Use::FunctionName => out.function_names(string),
                };
            }
        }
        while writer.len() < bytes
            && let Some((iid, key)) = self.mappings.take_untold()
        {
            let [exact_offset, start_offset, start, end, load_bias] = key.numbers;
            InternedData::new(&mut writer).mappings(|out| {
                out.iid(iid)
                    .build_id(key.build_id)
                    .exact_offset(exact_offset)
                    .start_offset(start_offset)
                    .start(start)
                    .end(end)
                    .load_bias(load_bias);
                for part in &key.path {
                    out.path_string_ids(*part);
                }
            });
        }
        while writer.len() < bytes
            && let Some((iid, key)) = self.frames.take_untold()
        {
            InternedData::new(&mut writer).frames(|out| {
                out.iid(iid)
                    .function_name_id(key.function)
                    .mapping_id(key.mapping.0)
                    .rel_pc(key.rel_pc);
            });
        }
        while writer.len() < bytes
            && let Some((iid, frames)) = self.callstacks.take_untold()
        {
            InternedData::new(&mut writer).callstacks(|out| {
                out.iid(iid);
                for frame in frames.iter().rev().filter(|frame| frame.0 & EDITION == 0) {
                    out.frame_ids(frame.0);
                }
            });
        }
        writer
    }

    /// Readers know nothing any more: everything is pending again, with the same numbers.
    pub fn forget_told(&mut self) {
        self.strings.iter_mut().for_each(Table::forget_told);
        self.mappings.forget_told();
        self.frames.forget_told();
        self.callstacks.forget_told();
    }

    /// Forgets call stacks that are not used, and the entries to which only these refer. Numbers of frames and mappings that are kept elsewhere are void.
    pub fn retain(&mut self, mut is_used: impl FnMut(CallstackId) -> bool) {
        let overflow = self.overflow();
        self.callstacks.retain(|id, _| {
            let id = CallstackId(id);
            overflow == Some(id) || is_used(id)
        });
        let stacks = self.callstacks.keys();
        let mut frames = HashSet::new();
        self.frames_of_stacks = 0;
        for stack in stacks {
            self.frames_of_stacks += stack.len();
            frames.extend(stack.iter().copied());
        }
        self.frames.retain(|id, _| frames.contains(&FrameId(id)));
        let mappings: HashSet<MappingId> = self.frames.keys().map(|frame| frame.mapping).collect();
        self.mappings.retain(|id, _| mappings.contains(&MappingId(id)));
        let mut strings: [HashSet<u64>; 3] = Default::default();
        for mapping in self.mappings.keys() {
            strings[Use::BuildId as usize].insert(mapping.build_id);
            strings[Use::Path as usize].extend(mapping.path.iter().copied());
        }
        strings[Use::FunctionName as usize].extend(self.frames.keys().map(|frame| frame.function));
        self.string_bytes = 0;
        for (table, used) in self.strings.iter_mut().zip(&strings) {
            table.retain(|id, _| used.contains(&id));
            self.string_bytes += table.keys().map(|text| text.len()).sum::<usize>();
        }
    }

    /// The entry that new ones count as now; `None` while they have room.
    fn no_room(&self) -> Option<Overflow> {
        let overflow = self.overflow?;
        (self.growth == Growth::Refused || self.is_full()).then_some(overflow)
    }

    /// The number of a mapping.
    pub fn mapping(&mut self, mapping: &Mapping<'_>) -> MappingId {
        let known_or_new = self.mapping_with_room(mapping);
        known_or_new.unwrap_or_else(|overflow| overflow.mapping)
    }

    fn mapping_with_room(&mut self, mapping: &Mapping<'_>) -> Result<MappingId, Overflow> {
        let build_id = self.string(Use::BuildId, mapping.build_id)?;
        // As upstream: a path is the row of its components.
        let components = mapping
            .path
            .split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty());
        let path: Result<Box<[u64]>, Overflow> =
            components.map(|part| self.string(Use::Path, part)).collect();
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
            path: path?,
        };
        if let Some(known) = self.mappings.get(&key) {
            return Ok(MappingId(known));
        }
        match self.no_room() {
            Some(overflow) => Err(overflow),
            None => Ok(MappingId(self.mappings.insert(Arc::new(key)))),
        }
    }

    /// The number of a frame: an address relative to its mapping's file, and the name of the function if it is known.
    pub fn frame(&mut self, mapping: MappingId, function: &[u8], rel_pc: u64) -> FrameId {
        let known_or_new = self.frame_with_room(mapping, function, rel_pc);
        known_or_new.unwrap_or_else(|overflow| overflow.frame)
    }

    fn frame_with_room(
        &mut self,
        mapping: MappingId,
        function: &[u8],
        rel_pc: u64,
    ) -> Result<FrameId, Overflow> {
        let key = FrameKey {
            mapping,
            function: self.string(Use::FunctionName, function)?,
            rel_pc,
        };
        if let Some(known) = self.frames.get(&key) {
            return Ok(FrameId(known));
        }
        match self.no_room() {
            Some(overflow) => Err(overflow),
            None => Ok(FrameId(self.frames.insert(key))),
        }
    }

    /// The number of a call stack, whose frames come with callees before callers.
    pub fn callstack(&mut self, frames: &[FrameId]) -> CallstackId {
        self.key.clear();
        self.key.extend_from_slice(frames);
        if self.edition != Edition::default() {
            self.key.push(FrameId(EDITION | u64::from(self.edition.0)));
        }
        if let Some(known) = self.callstacks.get(self.key.as_slice()) {
            return CallstackId(known);
        }
        if let Some(overflow) = self.no_room() {
            return overflow.callstack;
        }
        self.frames_of_stacks += self.key.len();
        CallstackId(self.callstacks.insert(self.key.as_slice().into()))
    }

    fn string(&mut self, usage: Use, text: &[u8]) -> Result<u64, Overflow> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(known) = self.strings[usage as usize].get(text) {
            return Ok(known);
        }
        match self.no_room() {
            Some(overflow) => Err(overflow),
            None => {
                self.string_bytes += text.len();
                Ok(self.strings[usage as usize].insert(text.into()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
