//! The call stacks that the readers of a sequence know, and their ids.
//!
//! Each sequence of track events has one (`track_event/local_strings.rs`), and each of samples (`stack_sample.rs`). Definitions of what a stack consists of
//! are collected and go out with the packet that refers to the stack.

use std::collections::HashMap;

use ferretto_proto::write::{InternedData, InternedString};
use ferretto_wire::Writer;

use super::modules;
use super::{Frame, Frames, KEPT_BYTES, LEFT_OUT};

/// The most stacks that a sequence keeps, and the most bytes of all that it keeps. At the limit it forgets all.
const MAX_STACKS: usize = 4096;
const MAX_BYTES: usize = 1 << 20;

/// What an entry takes beside its text or key.
const ENTRY_BYTES: usize = 48;

/// The most frames of a stack, and the most bytes of their [keys](Key). A frame is kept three times: in its stack, by itself, and as names. Together they
/// are fewer than [`MAX_BYTES`].
const MAX_FRAMES: usize = 1024;
const MAX_KEY_BYTES: usize = 256 << 10;

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

/// Where an address is.
#[allow(dead_code, reason = "where nothing is recorded, no files are known")]
pub(super) enum Place {
    /// In this mapping, and there at this address as the file's symbols count it.
    In(Mapping, u64),
    /// In no file.
    Nowhere,
    /// Nobody can be asked, because a thread forks.
    NotNow,
}

/// How often the dynamic loader has loaded and unloaded files.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) loads: u64,
    pub(super) unloads: u64,
}

/// See the [module](self). When its sequence starts over, a new one takes its place.
#[derive(Default)]
pub(crate) struct InternedStacks {
    /// By the keys of all frames.
    stacks: HashMap<Box<[u8]>, u64>,
    /// By the part of a [`Key`].
    frames: HashMap<Box<[u8]>, u64>,
    mappings: HashMap<Mapping, u64>,
    functions: HashMap<Box<str>, u64>,
    sources: HashMap<Box<str>, u64>,
    /// Bytes of what is kept, roughly.
    bytes: usize,
    /// The [changes](modules::changes) after which the places of `frames` were found.
    changes: Changes,
    /// Whether an address of `frames` was in no file.
    is_any_nowhere: bool,
    /// Whether an address of `frames` could not be looked up.
    is_any_unasked: bool,
    last_stack: u64,
    last_frame: u64,
    last_mapping: u64,
    last_string: u64,
    /// The key of the stack that is looked up.
    key: Key,
}

impl InternedStacks {
    /// The id of a stack; `None` if it has no frames. What readers do not know yet is added to `definitions`, as fields of `InternedData`.
    pub(crate) fn id(&mut self, stack: &dyn Frames, definitions: &mut Writer) -> Option<u64> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        // Once: the next time it might call with other frames.
        stack.for_each(&mut |frame| key.push(&frame));
        if key.has_addresses {
            self.note_changes();
        }
        let id = match self.stacks.get(&key.bytes[..]) {
            _ if key.bytes.is_empty() => None,
            Some(id) => Some(*id),
            None => Some(self.define(&key.bytes, definitions)),
        };
        self.key = key;
        id
    }

    /// Forgets what was defined if an address may be in another file by now.
    fn note_changes(&mut self) {
        let changes = modules::changes();
        let is_loaded = self.is_any_nowhere && changes.loads != self.changes.loads;
        if is_loaded || self.is_any_unasked || changes.unloads != self.changes.unloads {
            self.forget();
        }
        self.changes = changes;
    }

    #[cold]
    fn define(&mut self, key: &[u8], definitions: &mut Writer) -> u64 {
        if self.stacks.len() >= MAX_STACKS {
            self.forget();
        }
        let mut frames = Vec::new();
        let mut rest = key;
        while let Some((frame, next)) = take_frame(rest) {
            frames.push(self.frame(&frame, &rest[..rest.len() - next.len()], definitions));
            rest = next;
        }
        self.last_stack += 1;
        let id = self.last_stack;
        InternedData::new(definitions).callstacks(|entry| {
            entry.iid(id);
            // Readers want the outermost first.
            for frame in frames.iter().rev() {
                entry.frame_ids(*frame);
            }
        });
        self.make_room(key.len());
        self.stacks.insert(key.into(), id);
        id
    }

    /// Counts an entry with these bytes, which is about to be kept, and forgets all others if they do not all fit. It may do so in the middle of a stack,
    /// because readers know what was defined all the same.
    fn make_room(&mut self, bytes: usize) {
        let bytes = bytes + ENTRY_BYTES;
        if self.bytes + bytes > MAX_BYTES {
            self.forget();
        }
        self.bytes += bytes;
    }

    /// Forgets what was defined. Ids keep counting: if one were used twice, its meaning would depend on lost packets.
    fn forget(&mut self) {
        self.stacks.clear();
        self.frames.clear();
        self.mappings.clear();
        self.functions.clear();
        self.sources.clear();
        self.is_any_nowhere = false;
        self.is_any_unasked = false;
        self.bytes = 0;
    }

    fn frame(&mut self, frame: &Frame<'_>, key: &[u8], definitions: &mut Writer) -> u64 {
        if let Some(id) = self.frames.get(key) {
            return *id;
        }
        let place = match frame.address.map(modules::find) {
            Some(Place::In(mapping, rel_pc)) => Some((self.mapping(mapping, definitions), rel_pc)),
            Some(Place::Nowhere) => {
                self.is_any_nowhere = true;
                None
            }
            Some(Place::NotNow) => {
                self.is_any_unasked = true;
                None
            }
            None => None,
        };
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
        self.make_room(key.len());
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
        self.make_room(mapping.path.len() + mapping.build_id.len());
        self.mappings.insert(mapping, id);
        id
    }

    fn string(&mut self, usage: Use, text: &str, definitions: &mut Writer) -> u64 {
        if let Some(id) = self.strings(usage).get(text) {
            return *id;
        }
        self.last_string += 1;
        let id = self.last_string;
        self.make_room(text.len());
        self.strings(usage).insert(text.into(), id);
        let mut data = InternedData::new(definitions);
        match usage {
            Use::Function => data.function_names(|entry| string(entry, id, text.as_bytes())),
            Use::Source => data.source_paths(|entry| string(entry, id, text.as_bytes())),
        };
        id
    }

    fn strings(&mut self, usage: Use) -> &mut HashMap<Box<str>, u64> {
        match usage {
            Use::Function => &mut self.functions,
            Use::Source => &mut self.sources,
        }
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

/// The frames of a stack as bytes, which tell the stack, and where each frame ends, from all others.
#[derive(Default)]
struct Key {
    bytes: Vec<u8>,
    frames: usize,
    has_addresses: bool,
    /// There was no room for further frames.
    is_full: bool,
}

impl Key {
    fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        if bytes.capacity() > KEPT_BYTES {
            bytes = Vec::new();
        }
        *self = Self {
            bytes,
            ..Self::default()
        };
    }

    /// Adds a frame, or [`LEFT_OUT`] in the place of this and all further ones.
    fn push(&mut self, frame: &Frame<'_>) {
        if self.is_full {
            return;
        }
        let texts = frame.function.map_or(0, str::len) + frame.source.map_or(0, |(file, _)| file.len());
        self.is_full =
            self.frames == MAX_FRAMES || texts > MAX_KEY_BYTES - self.bytes.len().min(MAX_KEY_BYTES);
        self.frames += 1;
        self.append(if self.is_full { &LEFT_OUT } else { frame });
    }

    fn append(&mut self, frame: &Frame<'_>) {
        let key = &mut self.bytes;
        let Frame {
            address,
            function,
            source,
        } = *frame;
        key.push(
            (u8::from(address.is_some()) * HAS_ADDRESS)
                | (u8::from(function.is_some()) * HAS_FUNCTION)
                | (u8::from(source.is_some()) * HAS_SOURCE),
        );
        if let Some(address) = address {
            self.has_addresses = true;
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
}

/// The first byte of a frame in a [`Key`] says by these bits what follows.
const HAS_ADDRESS: u8 = 1;
const HAS_FUNCTION: u8 = 2;
const HAS_SOURCE: u8 = 4;

/// The first frame of a [`Key`]'s bytes, and the bytes after it; `None` at their end.
fn take_frame(key: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
        let (number, rest) = bytes.split_first_chunk()?;
        Some((usize::from_le_bytes(*number), rest))
    }
    fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
        let (len, rest) = number(bytes)?;
        let (text, rest) = rest.split_at_checked(len)?;
        Some((std::str::from_utf8(text).ok()?, rest))
    }
    let (&parts, mut rest) = key.split_first()?;
    let (mut address, mut function, mut source) = (None, None, None);
    if parts & HAS_ADDRESS != 0 {
        let (number, next) = number(rest)?;
        (address, rest) = (Some(number), next);
    }
    if parts & HAS_FUNCTION != 0 {
        let (name, next) = text(rest)?;
        (function, rest) = (Some(name), next);
    }
    if parts & HAS_SOURCE != 0 {
        let (file, next) = text(rest)?;
        let (line, next) = next.split_first_chunk()?;
        (source, rest) = (Some((file, u32::from_le_bytes(*line))), next);
    }
    let frame = Frame {
        address,
        function,
        source,
    };
    Some((frame, rest))
}

#[cfg(test)]
mod tests;
