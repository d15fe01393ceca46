//! The interned data of one sequence, as it came and as it was looked up.
//!
//! The reader of samples has one for each sequence. Entries are kept encoded until a sample needs them, because a packet may describe a frame before
//! the mapping that the frame refers to.

use std::collections::HashMap;

use ferretto_proto::messages::{Callstack, Mapping, Message};
use ferretto_proto::write::{Frame as FrameFields, InternedData, InternedString, ProfilePacket};
use ferretto_wire::{Reader, Value};

use super::model::{Frame, FrameId, MAX_FRAMES, Module, Profile, StackId, Text};
use crate::packet::{bytes, varint};
use ferretto_proto::messages::frame::Kind;

/// The mapping that upstream's profiler gives to frames of the kernel.
const KERNEL: &str = "/kernel";

/// An interned entry.
#[derive(Debug)]
enum Entry<T> {
    /// As encoded in the packet.
    Encoded(Box<[u8]>),
    /// As looked up; `None` if it refers to something that is missing.
    Known(Option<T>),
}

/// The interned data of a sequence since its state was cleared.
#[derive(Debug, Default)]
pub(super) struct Interned {
    functions: HashMap<u64, Text>,
    paths: HashMap<u64, Text>,
    sources: HashMap<u64, Text>,
    build_ids: HashMap<u64, Box<[u8]>>,
    mappings: HashMap<u64, Entry<u32>>,
    frames: HashMap<u64, Entry<FrameId>>,
    stacks: HashMap<u64, Entry<StackId>>,
}

impl Interned {
    /// Takes in an encoded `InternedData`. The first of two entries with one id holds, as for upstream's trace processor.
    pub(super) fn take(&mut self, profile: &mut Profile, encoded: &[u8]) {
        for field in Reader::new(encoded).map_while(Result::ok) {
            let Value::Bytes(entry) = field.value else {
                continue;
            };
            match field.number {
                InternedData::FUNCTION_NAMES => name(&mut self.functions, profile, entry),
                InternedData::MAPPING_PATHS => name(&mut self.paths, profile, entry),
                InternedData::SOURCE_PATHS => name(&mut self.sources, profile, entry),
                InternedData::BUILD_IDS => {
                    let text = bytes(entry, InternedString::STR).unwrap_or_default();
                    self.build_ids.entry(iid(entry)).or_insert_with(|| text.into());
                }
                InternedData::MAPPINGS => keep(&mut self.mappings, entry),
                InternedData::FRAMES => keep(&mut self.frames, entry),
                InternedData::CALLSTACKS => keep(&mut self.stacks, entry),
                _ => {}
            }
        }
    }

    /// Takes in the tables of an encoded `ProfilePacket`, which old heap profilers write: all its strings have ids of one kind.
    pub(super) fn take_profile_packet(&mut self, profile: &mut Profile, encoded: &[u8]) {
        for field in Reader::new(encoded).map_while(Result::ok) {
            let Value::Bytes(entry) = field.value else {
                continue;
            };
            match field.number {
                ProfilePacket::STRINGS => {
                    name(&mut self.functions, profile, entry);
                    name(&mut self.paths, profile, entry);
                    let text = bytes(entry, InternedString::STR).unwrap_or_default();
                    self.build_ids.entry(iid(entry)).or_insert_with(|| text.into());
                }
                ProfilePacket::MAPPINGS => keep(&mut self.mappings, entry),
                ProfilePacket::FRAMES => keep(&mut self.frames, entry),
                ProfilePacket::CALLSTACKS => keep(&mut self.stacks, entry),
                _ => {}
            }
        }
    }

    /// Returns the call stack with this id; `None` if it, or a part of it, is missing.
    pub(super) fn stack(&mut self, profile: &mut Profile, iid: u64) -> Option<StackId> {
        let encoded = match self.stacks.get_mut(&iid)? {
            Entry::Known(stack) => return *stack,
            Entry::Encoded(encoded) => std::mem::take(encoded),
        };
        let stack = self.look_up_stack(profile, &encoded);
        self.stacks.insert(iid, Entry::Known(stack));
        stack
    }

    fn look_up_stack(&mut self, profile: &mut Profile, encoded: &[u8]) -> Option<StackId> {
        let stack = Callstack::decode_from_slice(encoded).ok()?;
        if stack.frame_ids.len() > MAX_FRAMES {
            return None;
        }
        let frames: Option<Vec<FrameId>> = stack
            .frame_ids
            .iter()
            .map(|iid| self.frame(profile, *iid))
            .collect();
        profile.stacks.intern(&frames?)
    }

    fn frame(&mut self, profile: &mut Profile, iid: u64) -> Option<FrameId> {
        let encoded = match self.frames.get_mut(&iid)? {
            Entry::Known(frame) => return *frame,
            Entry::Encoded(encoded) => std::mem::take(encoded),
        };
        let frame = self.look_up_frame(profile, &encoded);
        self.frames.insert(iid, Entry::Known(frame));
        frame
    }

    fn look_up_frame(&mut self, profile: &mut Profile, encoded: &[u8]) -> Option<FrameId> {
        let name = text(&self.functions, varint(encoded, FrameFields::FUNCTION_NAME_ID))?;
        let file = text(&self.sources, varint(encoded, FrameFields::SOURCE_PATH_IID))?;
        let line = varint(encoded, FrameFields::LINE_NUMBER).and_then(|line| u32::try_from(line).ok());
        let module = match varint(encoded, FrameFields::MAPPING_ID) {
            // Frames of interpreters have no mapping.
            None | Some(0) => None,
            Some(iid) => Some(self.mapping(profile, iid)?),
        };
        let path = module
            .and_then(|place| profile.modules.get(place))
            .map(|module| profile.path(module));
        let is_kernel = varint(encoded, FrameFields::KIND) == Some(Kind::KIND_KERNEL as u64)
            || path.is_some_and(|path| {
                path == KERNEL || path.starts_with("/[kernel") || path.starts_with("[kernel")
            });
        Some(profile.intern_frame(Frame {
            module,
            rel_pc: varint(encoded, FrameFields::REL_PC).unwrap_or(0),
            name,
            file,
            line,
            is_kernel,
        }))
    }

    fn mapping(&mut self, profile: &mut Profile, iid: u64) -> Option<u32> {
        let encoded = match self.mappings.get_mut(&iid)? {
            Entry::Known(place) => return *place,
            Entry::Encoded(encoded) => std::mem::take(encoded),
        };
        let place = self.look_up_mapping(profile, &encoded);
        self.mappings.insert(iid, Entry::Known(place));
        place
    }

    fn look_up_mapping(&mut self, profile: &mut Profile, encoded: &[u8]) -> Option<u32> {
        let mapping = Mapping::decode_from_slice(encoded).ok()?;
        let mut path = String::new();
        // Upstream stops at a part that is missing, and so does this.
        for part in mapping
            .path_string_ids
            .iter()
            .map_while(|iid| self.paths.get(iid))
        {
            path.push('/');
            path.push_str(profile.strings.get(*part));
        }
        // A path that was written in one part begins with a slash of its own.
        let path = if path.starts_with("//") { &path[1..] } else { &path };
        let build_id = match mapping.build_id.unwrap_or(0) {
            0 => Box::default(),
            iid => self.build_ids.get(&iid)?.clone(),
        };
        let module = Module {
            path: profile.strings.intern(path.as_bytes()),
            build_id,
            start: mapping.start.unwrap_or(0),
            end: mapping.end.unwrap_or(0),
            offset: mapping.exact_offset.unwrap_or(0),
        };
        Some(profile.modules.intern(module))
    }
}

/// Returns the string with this id, or the empty one for none.
fn text(texts: &HashMap<u64, Text>, iid: Option<u64>) -> Option<Text> {
    match iid {
        None | Some(0) => Some(Text::default()),
        Some(iid) => texts.get(&iid).copied(),
    }
}

/// Returns the id of an entry. It is field 1 of all of them.
fn iid(entry: &[u8]) -> u64 {
    varint(entry, InternedString::IID).unwrap_or(0)
}

fn name(names: &mut HashMap<u64, Text>, profile: &mut Profile, entry: &[u8]) {
    let text = bytes(entry, InternedString::STR).unwrap_or_default();
    let strings = &mut profile.strings;
    names.entry(iid(entry)).or_insert_with(|| strings.intern(text));
}

fn keep<T>(entries: &mut HashMap<u64, Entry<T>>, entry: &[u8]) {
    entries
        .entry(iid(entry))
        .or_insert_with(|| Entry::Encoded(entry.into()));
}
