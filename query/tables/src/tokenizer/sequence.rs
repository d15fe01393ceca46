//! What a sequence has said so far, as far as its packets still hold.

use std::ops::{Index, IndexMut};

use ferretto_proto::write::{InternedData, ThreadDescriptor, TracePacketDefaults, TrackEventDefaults};
use hashbrown::HashMap;

use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number, number_of};
use crate::strings::StringId;
use crate::tokenizer::stacks::{Interned, build_id};

/// The fields of interned messages that have a number and one string.
const IID: u32 = 1;
const TEXT: u32 = 2;
/// The most interned entries of one sequence. Further entries are passed over.
const MOST_INTERNED: usize = 1 << 20;

/// What packets say that leave it out.
#[derive(Debug, Default, Clone)]
pub(crate) struct Defaults {
    pub(crate) clock: Option<u32>,
    pub(crate) track_uuid: Option<u64>,
    pub(crate) counters: Vec<u64>,
    pub(crate) double_counters: Vec<u64>,
    /// What samples of linux.perf count.
    pub(crate) perf_samples: Option<Box<[u8]>>,
}

/// Where an event was, in the source of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SourceLocation {
    pub(crate) file: Option<StringId>,
    pub(crate) function: Option<StringId>,
    pub(crate) line: Option<i64>,
}

/// The thread of a sequence that describes one for all its events, and the times that count on from there.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) pid: i64,
    pub(crate) tid: i64,
}

/// Times that events give as differences.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) ts: i64,
    pub(crate) thread_time: i64,
    pub(crate) instructions: i64,
}

/// Interned strings, by field and number.
#[derive(Debug, Default)]
struct Names {
    /// Those of the first fields, which track events refer to, as far as their numbers follow each other.
    dense: [Vec<Option<StringId>>; DENSE_FIELDS],
    others: HashMap<(u32, u64), StringId>,
    len: usize,
}

/// Fields below this number are in [`Names::dense`].
const DENSE_FIELDS: usize = InternedData::DEBUG_ANNOTATION_NAMES as usize + 1;
/// Numbers that are left out make [`Names::dense`] no longer than this beside what it has.
const MOST_LEFT_OUT: usize = 8;

impl Names {
    /// Adds a string, unless there is one of this number.
    fn add(&mut self, field: u32, iid: u64, text: StringId) {
        if self.get(field, iid).is_some() {
            return;
        }
        self.len += 1;
        if let (Some(dense), Ok(at)) = (self.dense.get_mut(field as usize), usize::try_from(iid))
            && at <= dense.len().saturating_add(MOST_LEFT_OUT)
        {
            if at >= dense.len() {
                dense.resize(at + 1, None);
            }
            dense[at] = Some(text);
            return;
        }
        self.others.insert((field, iid), text);
    }

    #[inline]
    fn get(&self, field: u32, iid: u64) -> Option<StringId> {
        let dense = self.dense.get(field as usize);
        match dense.and_then(|dense| *dense.get(usize::try_from(iid).ok()?)?) {
            None if !self.others.is_empty() => self.others.get(&(field, iid)).copied(),
            name => name,
        }
    }

    fn clear(&mut self) {
        self.dense.iter_mut().for_each(Vec::clear);
        self.others.clear();
        self.len = 0;
    }
}

/// The state of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    /// Whether all is known that packets may refer to.
    pub(crate) is_whole: bool,
    /// Distinguishes what the sequence says until it starts over from what all sequences say at other times.
    pub(crate) generation: u32,
    pub(crate) defaults: Defaults,
    names: Names,
    locations: HashMap<u64, SourceLocation>,
    pub(crate) stacks: Interned,
    pub(crate) thread: Option<Thread>,
    /// Set from a description of the thread to the next loss.
    pub(crate) counts: Option<Counts>,
    /// The values of counters that count in differences, by track.
    pub(crate) counters: HashMap<u64, f64>,
    /// Packets after a loss.
    pub(crate) losses: i64,
    /// Packets that need the state, and those that were passed over because it was not known.
    pub(crate) needing: u64,
    pub(crate) skipped: u64,
}

impl Sequence {
    /// Starts over.
    pub(crate) fn clear(&mut self, generation: u32) {
        self.is_whole = true;
        self.generation = generation;
        self.stacks.clear();
        self.defaults = Defaults::default();
        self.names.clear();
        self.locations.clear();
        self.counts = None;
        self.counters.clear();
    }

    /// Notes that packets are missing.
    pub(crate) fn lose(&mut self) {
        self.is_whole = false;
        self.counts = None;
    }

    /// Whether nothing that needs the state was understood.
    pub(crate) fn is_lost(&self) -> bool {
        self.skipped > 0 && self.skipped == self.needing
    }

    pub(crate) fn set_defaults(&mut self, message: &[u8]) {
        self.defaults = Defaults {
            clock: number_of(message, TracePacketDefaults::TIMESTAMP_CLOCK_ID).map(|clock| clock as u32),
            perf_samples: bytes_of(message, TracePacketDefaults::PERF_SAMPLE_DEFAULTS).map(Box::from),
            ..Defaults::default()
        };
        self.counts = None;
        self.counters.clear();
        let Some(of_events) = bytes_of(message, TracePacketDefaults::TRACK_EVENT_DEFAULTS) else {
            return;
        };
        for field in fields(of_events) {
            match field.number {
                TrackEventDefaults::TRACK_UUID => self.defaults.track_uuid = number(field.value),
                TrackEventDefaults::EXTRA_COUNTER_TRACK_UUIDS => {
                    each_varint(field.value, |uuid| self.defaults.counters.push(uuid));
                }
                TrackEventDefaults::EXTRA_DOUBLE_COUNTER_TRACK_UUIDS => {
                    each_varint(field.value, |uuid| self.defaults.double_counters.push(uuid));
                }
                _ => {}
            }
        }
    }

    /// Takes in interned data. The first entry of a number counts.
    pub(crate) fn intern(&mut self, message: &[u8], context: &mut Context<'_>) {
        for field in fields(message) {
            let Some(entry) = field.value.as_bytes() else {
                continue;
            };
            match field.number {
                InternedData::EVENT_CATEGORIES
                | InternedData::EVENT_NAMES
                | InternedData::DEBUG_ANNOTATION_NAMES
                | InternedData::DEBUG_ANNOTATION_VALUE_TYPE_NAMES
                | InternedData::DEBUG_ANNOTATION_STRING_VALUES
                | InternedData::CORRELATION_ID_STR
                | InternedData::LOG_MESSAGE_BODY
                | InternedData::BUILD_IDS
                | InternedData::MAPPING_PATHS
                | InternedData::FUNCTION_NAMES
                | InternedData::KERNEL_SYMBOLS => {
                    let (mut iid, mut text) = (None, &[][..]);
                    for part in fields(entry) {
                        match part.number {
                            IID => iid = number(part.value),
                            TEXT => text = part.value.as_bytes().unwrap_or(&[]),
                            _ => {}
                        }
                    }
                    let Some(iid) = iid else {
                        context.stats.add("interned_data_tokenizer_errors", None, 1);
                        continue;
                    };
                    if self.names.len < MOST_INTERNED {
                        let text = match field.number {
                            InternedData::BUILD_IDS => build_id(text, context),
                            _ => context.strings.intern_bytes(text),
                        };
                        self.names.add(field.number, iid, text);
                    }
                }
                InternedData::MAPPINGS | InternedData::FRAMES | InternedData::CALLSTACKS => {
                    match number_of(entry, IID) {
                        Some(iid) if self.stacks.len() < MOST_INTERNED => {
                            self.stacks.add(field.number, iid, entry);
                        }
                        Some(_) => {}
                        None => context.stats.add("interned_data_tokenizer_errors", None, 1),
                    }
                }
                InternedData::SOURCE_LOCATIONS => {
                    if let (Some(iid), true) = (number_of(entry, IID), self.locations.len() < MOST_INTERNED) {
                        let location = source_location(entry, context);
                        self.locations.entry(iid).or_insert(location);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns what a number means. `None` if that is not known, which is counted.
    #[inline]
    pub(crate) fn name(&self, field: u32, iid: u64, context: &mut Context<'_>) -> Option<StringId> {
        let name = self.names.get(field, iid);
        if name.is_none() {
            context.stats.add("interned_data_tokenizer_errors", None, 1);
        }
        name
    }

    /// Returns what a number means, if that is known.
    pub(crate) fn known_name(&self, field: u32, iid: u64) -> Option<StringId> {
        self.names.get(field, iid)
    }

    pub(crate) fn location(&self, iid: u64) -> Option<SourceLocation> {
        self.locations.get(&iid).copied()
    }

    /// Takes in the thread of the sequence.
    pub(crate) fn set_thread(&mut self, message: &[u8], is_sandboxed: bool) {
        let get = |field| number_of(message, field).unwrap_or(0) as i64;
        let pid = get(ThreadDescriptor::PID) as i32;
        let tid = get(ThreadDescriptor::TID) as i32;
        let tid = match is_sandboxed {
            true => synthetic_tid(tid.into(), pid.into()),
            false => tid.into(),
        };
        self.thread = Some(Thread { pid: pid.into(), tid });
        self.counts = Some(Counts {
            ts: get(ThreadDescriptor::REFERENCE_TIMESTAMP_US).wrapping_mul(1000),
            thread_time: get(ThreadDescriptor::REFERENCE_THREAD_TIME_US).wrapping_mul(1000),
            instructions: get(ThreadDescriptor::REFERENCE_THREAD_INSTRUCTION_COUNT),
        });
    }
}

/// All sequences so far.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    all: Vec<Sequence>,
    places: HashMap<u32, usize>,
    /// The sequence that was asked for last, which the next packet is often of.
    last: Option<(u32, usize)>,
}

impl Sequences {
    /// Returns the place of a sequence, and whether it is new.
    #[inline]
    pub(crate) fn place(&mut self, number: u32) -> (usize, bool) {
        match self.last {
            Some((last, place)) if last == number => (place, false),
            _ => self.find(number),
        }
    }

    fn find(&mut self, number: u32) -> (usize, bool) {
        let count = self.all.len();
        let place = *self.places.entry(number).or_insert(count);
        self.last = Some((number, place));
        if place == count {
            self.all.push(Sequence::default());
        }
        (place, place == count)
    }

    /// Returns the sequence of this number, if a packet has been of it.
    pub(crate) fn get(&self, number: u32) -> Option<&Sequence> {
        self.all.get(*self.places.get(&number)?)
    }
}

impl Index<usize> for Sequences {
    type Output = Sequence;

    #[inline]
    fn index(&self, place: usize) -> &Sequence {
        &self.all[place]
    }
}

impl IndexMut<usize> for Sequences {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut Sequence {
        &mut self.all[place]
    }
}

/// The thread of a process whose `tid` others may have too, as its sandbox gives its own.
pub(crate) fn synthetic_tid(tid: i64, pid: i64) -> i64 {
    pid << 32 | tid & 0xffff_ffff
}

/// Whether a thread has such a number.
pub(crate) fn is_synthetic_tid(tid: i64) -> bool {
    tid >> 32 != 0
}

/// Reads a `SourceLocation`.
fn source_location(message: &[u8], context: &mut Context<'_>) -> SourceLocation {
    const FILE: u32 = 2;
    const FUNCTION: u32 = 3;
    const LINE: u32 = 4;
    let mut text = |field| {
        all_bytes(message, field)
            .last()
            .map(|text| context.strings.intern_bytes(text))
    };
    SourceLocation {
        file: text(FILE),
        function: text(FUNCTION),
        line: number_of(message, LINE).map(|line| i64::from(line as u32)),
    }
}
