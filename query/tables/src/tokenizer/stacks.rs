//! Call stacks that a sequence has interned, and samples that refer to them.
//!
//! A sample refers to a stack by number, and that by number to frames, mappings and strings. The tokenizer resolves all of them into the [`Pool`], as the numbers
//! hold only until the sequence starts over. The trackers make rows of the pool's stacks in the order of time.

use ferretto_proto::write::profile_packet::{HeapSample, ProcessHeapSamples};
use ferretto_proto::write::{
    Callstack, Frame as FrameFields, InternedData, Mapping as MappingFields, PerfSample, ProfilePacket,
};
use ferretto_wire::push_varint;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::sequence::Sequence;
use crate::context::Context;
use crate::fields::{all_bytes, each_varint, fields, number_of};
use crate::strings::StringId;

/// In place of a stack that a sample does not have or that is not known.
pub(crate) const NO_STACK: u32 = u32::MAX;
/// The most frames of a stack, and the most stacks of a pool. Further ones are unknown.
const MOST_FRAMES: usize = 1 << 12;
const MOST_STACKS: usize = 1 << 24;
/// A build id of this size is text already.
const TEXT_BUILD_ID: usize = 33;

/// A part of a file in the memory of a process, as a sequence described it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    iid: u64,
    pub(crate) place: Place,
}

/// What a mapping is, whichever number a sequence gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) build_id: StringId,
    pub(crate) exact_offset: i64,
    pub(crate) start_offset: i64,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) load_bias: i64,
    pub(crate) name: StringId,
}

/// A function in a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    iid: u64,
    pub(crate) name: StringId,
    pub(crate) mapping: u32,
    pub(crate) rel_pc: i64,
}

/// A stack, the outermost frame first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Stack {
    pub(crate) frames: Box<[u32]>,
    /// The counter of what is missing behind these frames.
    pub(crate) missing: Option<&'static str>,
}

/// All distinct stacks that samples refer to.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) stacks: Vec<Stack>,
    /// What sequences say that their samples count.
    pub(crate) defaults: Vec<Box<[u8]>>,
    of_mappings: HashMap<Mapping, u32>,
    of_frames: HashMap<Frame, u32>,
    of_stacks: HashMap<Stack, u32>,
    of_defaults: HashMap<Box<[u8]>, u32>,
    /// How often sequences have started over: the number of the last time.
    generations: u32,
}

impl Pool {
    /// Returns a number for a sequence that starts over.
    pub(crate) fn next_generation(&mut self) -> u32 {
        self.generations += 1;
        self.generations
    }

    fn mapping(&mut self, mapping: Mapping) -> u32 {
        place(mapping, &mut self.of_mappings, &mut self.mappings)
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        place(frame, &mut self.of_frames, &mut self.frames)
    }

    fn stack(&mut self, stack: Stack) -> u32 {
        match self.stacks.len() < MOST_STACKS {
            true => place(stack, &mut self.of_stacks, &mut self.stacks),
            false => self.of_stacks.get(&stack).copied().unwrap_or(NO_STACK),
        }
    }

    fn set_of_defaults(&mut self, message: &[u8]) -> u32 {
        place(message.into(), &mut self.of_defaults, &mut self.defaults)
    }
}

/// Returns the place of a value in a list, and adds it if it is not there.
fn place<T: Clone + Eq + std::hash::Hash>(value: T, numbers: &mut HashMap<T, u32>, list: &mut Vec<T>) -> u32 {
    match numbers.entry(value) {
        Entry::Occupied(entry) => *entry.get(),
        Entry::Vacant(entry) => {
            let number = list.len() as u32;
            list.push(entry.key().clone());
            entry.insert(number);
            number
        }
    }
}

/// The messages that a sequence has interned since it started over, and what they were found to mean.
#[derive(Debug, Default)]
pub(crate) struct Interned {
    messages: HashMap<(u32, u64), Box<[u8]>>,
    stacks: HashMap<u64, u32>,
    frames: HashMap<u64, u32>,
}

impl Interned {
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
        self.stacks.clear();
        self.frames.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn add(&mut self, field: u32, iid: u64, message: &[u8]) {
        self.messages
            .entry((field, iid))
            .or_insert_with(|| message.into());
    }
}

/// Returns a build id as text.
pub(crate) fn build_id(raw: &[u8], context: &mut Context<'_>) -> StringId {
    if raw.len() == TEXT_BUILD_ID {
        return context.strings.intern_bytes(raw);
    }
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    context.strings.intern(&hex)
}

impl Sequence {
    /// Returns the stack that this number means; [`NO_STACK`] if that is not known.
    pub(super) fn stack(&mut self, iid: u64, context: &mut Context<'_>) -> u32 {
        if let Some(stack) = self.stacks.stacks.get(&iid) {
            return *stack;
        }
        let Some(message) = self.stacks.messages.get(&(InternedData::CALLSTACKS, iid)) else {
            return NO_STACK;
        };
        let mut iids = Vec::new();
        for field in fields(message).filter(|field| field.number == Callstack::FRAME_IDS) {
            each_varint(field.value, |iid| {
                if iids.len() < MOST_FRAMES {
                    iids.push(iid);
                }
            });
        }
        let (mut frames, mut missing) = (Vec::with_capacity(iids.len()), None);
        for iid in iids {
            match self.frame(iid, context) {
                Ok(frame) => frames.push(frame),
                Err(counter) => {
                    missing = Some(counter);
                    break;
                }
            }
        }
        if frames.is_empty() && missing.is_none() {
            missing = Some("stackprofile_empty_callstack");
        }
        let is_whole = missing.is_none();
        let stack = context.stacks.stack(Stack {
            frames: frames.into(),
            missing,
        });
        if is_whole {
            self.stacks.stacks.insert(iid, stack);
        }
        stack
    }

    fn frame(&mut self, iid: u64, context: &mut Context<'_>) -> Result<u32, &'static str> {
        if let Some(frame) = self.stacks.frames.get(&iid) {
            return Ok(*frame);
        }
        let message = self.stacks.messages.get(&(InternedData::FRAMES, iid));
        let message = message.ok_or("stackprofile_invalid_frame_id")?;
        let get = |field| number_of(message, field).unwrap_or(0);
        let name = match get(FrameFields::FUNCTION_NAME_ID) {
            0 => context.strings.intern(""),
            iid => self
                .known_name(InternedData::FUNCTION_NAMES, iid)
                .ok_or("stackprofile_invalid_string_id")?,
        };
        let mapping = self.mapping(get(FrameFields::MAPPING_ID), context)?;
        let frame = context.stacks.frame(Frame {
            iid,
            name,
            mapping,
            rel_pc: get(FrameFields::REL_PC) as i64,
        });
        self.stacks.frames.insert(iid, frame);
        Ok(frame)
    }

    fn mapping(&self, iid: u64, context: &mut Context<'_>) -> Result<u32, &'static str> {
        let message = self.stacks.messages.get(&(InternedData::MAPPINGS, iid));
        let message = message.ok_or("stackprofile_invalid_mapping_id")?;
        let get = |field| number_of(message, field).unwrap_or(0);
        let mut name = String::new();
        let mut is_known = true;
        for field in fields(message).filter(|field| field.number == MappingFields::PATH_STRING_IDS) {
            each_varint(field.value, |iid| {
                // What follows an unknown part is left out.
                match self.known_name(InternedData::MAPPING_PATHS, iid) {
                    Some(part) if is_known => {
                        name.push('/');
                        name.push_str(context.strings.get(part));
                    }
                    _ => is_known = false,
                }
            });
        }
        if !is_known {
            context.stats.add("stackprofile_invalid_string_id", None, 1);
        }
        let name = match name.strip_prefix('/') {
            Some(rest) if rest.starts_with('/') => rest,
            _ => &name,
        };
        let build_id = match get(MappingFields::BUILD_ID) {
            0 => context.strings.intern(""),
            iid => self
                .known_name(InternedData::BUILD_IDS, iid)
                .ok_or("stackprofile_invalid_string_id")?,
        };
        let number = |field| get(field) as i64;
        let place = Place {
            build_id,
            exact_offset: number(MappingFields::EXACT_OFFSET),
            start_offset: number(MappingFields::START_OFFSET),
            start: number(MappingFields::START),
            end: number(MappingFields::END),
            load_bias: number(MappingFields::LOAD_BIAS),
            name: context.strings.intern(name),
        };
        Ok(context.stacks.mapping(Mapping { iid, place }))
    }

    /// Appends the state of the sequence that a sample of its stacks refers to.
    fn encode_state(&self, number: u32, context: &mut Context<'_>, to: &mut Vec<u8>) {
        push_varint(to, number.into());
        push_varint(to, self.generation.into());
        let defaults = self.defaults.perf_samples.as_deref();
        let defaults = defaults.map_or(0, |defaults| {
            u64::from(context.stacks.set_of_defaults(defaults)) + 1
        });
        push_varint(to, defaults);
    }
}

/// Encodes a sample of linux.perf: the state of its sequence, its stack, and the message.
pub(super) fn perf_sample(
    message: &[u8],
    number: u32,
    sequence: &mut Sequence,
    context: &mut Context<'_>,
) -> Vec<u8> {
    let mut event = Vec::with_capacity(message.len() + 16);
    sequence.encode_state(number, context, &mut event);
    let stack = match number_of(message, PerfSample::CALLSTACK_IID) {
        Some(iid) => sequence.stack(iid, context),
        None => NO_STACK,
    };
    push_varint(&mut event, stack.into());
    event.extend_from_slice(message);
    event
}

/// Encodes a dump of heaps: the state of its sequence, the stacks of all samples, and the message.
pub(super) fn heap_profile(
    message: &[u8],
    number: u32,
    sequence: &mut Sequence,
    context: &mut Context<'_>,
) -> Vec<u8> {
    let mut event = Vec::with_capacity(message.len() * 3 / 2);
    sequence.encode_state(number, context, &mut event);
    let samples = all_bytes(message, ProfilePacket::PROCESS_DUMPS)
        .flat_map(|dump| all_bytes(dump, ProcessHeapSamples::SAMPLES));
    let stacks: Vec<u32> = samples
        .map(|sample| sequence.stack(number_of(sample, HeapSample::CALLSTACK_ID).unwrap_or(0), context))
        .collect();
    push_varint(&mut event, stacks.len() as u64);
    stacks
        .iter()
        .for_each(|stack| push_varint(&mut event, (*stack).into()));
    event.extend_from_slice(message);
    event
}

/// Encodes a packet of samples of one thread, and returns its time, which is that of the sequence. `None` if the sequence has named no thread.
pub(super) fn streaming_profile(
    message: &[u8],
    number: u32,
    sequence: &mut Sequence,
    context: &mut Context<'_>,
) -> Option<(i64, Vec<u8>)> {
    const CALLSTACK_IID: u32 = 1;
    const TIMESTAMP_DELTA_US: u32 = 2;
    const PROCESS_PRIORITY: u32 = 3;
    let (thread, counts) = (sequence.thread?, sequence.counts?);
    let numbers = |wanted| {
        let mut numbers = Vec::new();
        for field in fields(message).filter(|field| field.number == wanted) {
            each_varint(field.value, |number| numbers.push(number));
        }
        numbers
    };
    let deltas: Vec<i64> = numbers(TIMESTAMP_DELTA_US)
        .into_iter()
        .map(|delta| (delta as i64).wrapping_mul(1000))
        .collect();
    let ts = context
        .clocks
        .trace_time(crate::clocks::MONOTONIC, counts.ts)
        .unwrap_or(counts.ts);
    if let Some(counts) = &mut sequence.counts {
        counts.ts = deltas.iter().fold(counts.ts, |ts, delta| ts.wrapping_add(*delta));
    }
    let stacks: Vec<u32> = numbers(CALLSTACK_IID)
        .into_iter()
        .map(|iid| sequence.stack(iid, context))
        .collect();
    let mut event = Vec::new();
    sequence.encode_state(number, context, &mut event);
    push_varint(&mut event, thread.pid as u64);
    push_varint(&mut event, thread.tid as u64);
    push_varint(&mut event, number_of(message, PROCESS_PRIORITY).unwrap_or(0));
    for (stack, delta) in stacks.iter().zip(&deltas) {
        push_varint(&mut event, (*stack).into());
        push_varint(&mut event, *delta as u64);
    }
    if stacks.len() > deltas.len() {
        context.stats.add("stackprofile_parser_error", None, 1);
    }
    Some((ts, event))
}
