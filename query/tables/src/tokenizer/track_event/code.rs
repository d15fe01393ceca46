//! Track events between the tokenizer and the trackers: fields of fixed sizes, what few events have, and arguments as a list behind them.

use std::collections::BTreeMap;

use ferretto_wire::{push_varint, take_varint, unzigzag, zigzag};

use super::legacy::Legacy;
use crate::strings::StringId;
use crate::tokenizer::sequence::SourceLocation;
use crate::trackers::args::{Pending, Value};

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Begin,
    End,
    Instant,
    Counter,
    /// What the older form says in its phase; without a phase, a type that is not known.
    Phase,
}

/// An event without its lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) uuid: u64,
    /// Whether the event names no track of its own, so its thread decides.
    pub(crate) has_no_track: bool,
    pub(crate) sequence: u32,
    pub(crate) category: Option<StringId>,
    pub(crate) name: Option<StringId>,
    /// The process and thread that the sequence described.
    pub(crate) thread: Option<(i64, i64)>,
    pub(crate) thread_time: Option<i64>,
    pub(crate) instructions: Option<i64>,
    pub(crate) value: Option<f64>,
}

/// A number of a list, the lowest byte first.
pub(crate) type Number = [u8; 8];

/// The lists of an event, which few events have.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) struct Lists<'a> {
    /// Further counters: the track of each, and the bits of its value.
    pub(crate) counters: &'a [Number],
    pub(crate) flows: &'a [Number],
    pub(crate) ended_flows: &'a [Number],
}

impl<'a> Lists<'a> {
    /// Returns the values of further counters, by track.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (u64, f64)> + use<'a> {
        let pairs = self.counters.as_chunks::<2>().0.iter();
        pairs.map(|[uuid, value]| (u64::from_le_bytes(*uuid), f64::from_le_bytes(*value)))
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.flows.iter().map(|flow| u64::from_le_bytes(*flow))
    }

    pub(crate) fn ended_flows(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.ended_flows.iter().map(|flow| u64::from_le_bytes(*flow))
    }

    fn all(&self) -> [&'a [Number]; 3] {
        [self.counters, self.flows, self.ended_flows]
    }
}

/// What all events have: kind, flags, track, sequence, category and name.
const HEAD: usize = 22;
/// In place of a category or a name that is missing.
const NO_STRING: u32 = u32::MAX;
/// Flags: what an event has besides.
const THREAD: u8 = 1;
const THREAD_TIME: u8 = 1 << 1;
const INSTRUCTIONS: u8 = 1 << 2;
const VALUE: u8 = 1 << 3;
const NO_TRACK: u8 = 1 << 4;
const LISTS: u8 = 1 << 5;
const LEGACY: u8 = 1 << 6;

/// The two keys of an argument.
const KEYS: usize = 8;
const BOOL: u8 = 0;
const UINT: u8 = 1;
const INT: u8 = 2;
const REAL: u8 = 3;
const POINTER: u8 = 4;
const TEXT: u8 = 5;
const POOLED: u8 = 7;
const LOG: u8 = 8;
const SOURCE: u8 = 9;
const NAME: u8 = 10;
const PROCESS: u8 = 11;

/// A message that a program logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) body: StringId,
    pub(crate) priority: Option<i64>,
    pub(crate) location: Option<SourceLocation>,
}

/// What an event says among its arguments that is more, or other, than an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    Log(Log),
    /// The place of the number that an event of the older form has.
    Source,
    /// The name that an event gives to its thread or process.
    Name(StringId),
    /// A process that is there.
    Process(i64),
}

impl Event {
    /// Appends the event and its lists, and the message that has its older form; arguments follow with a [`Coder`].
    pub(crate) fn encode(&self, lists: &Lists<'_>, legacy: Option<&[u8]>, to: &mut Vec<u8>) {
        let lists = lists.all();
        let some = [
            (self.thread.is_some(), THREAD),
            (self.thread_time.is_some(), THREAD_TIME),
            (self.instructions.is_some(), INSTRUCTIONS),
            (self.value.is_some(), VALUE),
            (self.has_no_track, NO_TRACK),
            (lists.iter().any(|list| !list.is_empty()), LISTS),
            (legacy.is_some(), LEGACY),
        ];
        let flags = some.iter().fold(0, |flags, (is, flag)| match is {
            true => flags | flag,
            false => flags,
        });
        let string = |id: Option<StringId>| id.map_or(NO_STRING, |id| id.0).to_le_bytes();
        let mut head = [0; HEAD];
        head[0] = self.kind as u8;
        head[1] = flags;
        head[2..10].copy_from_slice(&self.uuid.to_le_bytes());
        head[10..14].copy_from_slice(&self.sequence.to_le_bytes());
        head[14..18].copy_from_slice(&string(self.category));
        head[18..].copy_from_slice(&string(self.name));
        to.extend_from_slice(&head);
        if let Some((pid, tid)) = self.thread {
            to.extend_from_slice(&pid.to_le_bytes());
            to.extend_from_slice(&tid.to_le_bytes());
        }
        for number in [self.thread_time, self.instructions].into_iter().flatten() {
            to.extend_from_slice(&number.to_le_bytes());
        }
        if let Some(value) = self.value {
            to.extend_from_slice(&value.to_le_bytes());
        }
        if flags & LISTS != 0 {
            for list in lists {
                push_varint(to, list.len() as u64);
                to.extend_from_slice(list.as_flattened());
            }
        }
        if let Some(legacy) = legacy {
            push_varint(to, legacy.len() as u64);
            to.extend_from_slice(legacy);
        }
    }

    /// Reads what [`encode`](Event::encode) wrote. Arguments are left in `from`.
    pub(crate) fn decode<'a>(from: &mut &'a [u8]) -> Option<(Event, Lists<'a>, Option<Legacy<'a>>)> {
        let ([kind, flags, head @ ..], rest) = from.split_first_chunk::<HEAD>()?;
        *from = rest;
        let kind = match *kind {
            0 => Kind::Begin,
            1 => Kind::End,
            2 => Kind::Instant,
            3 => Kind::Counter,
            _ => Kind::Phase,
        };
        let (uuid, rest) = head.split_first_chunk::<8>()?;
        let (sequence, rest) = rest.split_first_chunk::<4>()?;
        let (category, rest) = rest.split_first_chunk::<4>()?;
        let (name, _) = rest.split_first_chunk::<4>()?;
        let string = |id: &[u8; 4]| match u32::from_le_bytes(*id) {
            NO_STRING => None,
            id => Some(StringId(id)),
        };
        let mut event = Event {
            kind,
            uuid: u64::from_le_bytes(*uuid),
            has_no_track: flags & NO_TRACK != 0,
            sequence: u32::from_le_bytes(*sequence),
            category: string(category),
            name: string(name),
            thread: None,
            thread_time: None,
            instructions: None,
            value: None,
        };
        let has = |flag: u8| flags & flag != 0;
        if has(THREAD) {
            event.thread = Some((take_int(from)?, take_int(from)?));
        }
        if has(THREAD_TIME) {
            event.thread_time = Some(take_int(from)?);
        }
        if has(INSTRUCTIONS) {
            event.instructions = Some(take_int(from)?);
        }
        if has(VALUE) {
            event.value = Some(take_real(from)?);
        }
        let mut lists = Lists::default();
        if has(LISTS) {
            lists = Lists {
                counters: take_numbers(from)?,
                flows: take_numbers(from)?,
                ended_flows: take_numbers(from)?,
            };
        }
        let legacy = match has(LEGACY) {
            true => Some(Legacy::new(take_bytes(from)?)),
            false => None,
        };
        Some((event, lists, legacy))
    }
}

fn take_numbers<'a>(from: &mut &'a [u8]) -> Option<&'a [Number]> {
    let count = usize::try_from(take_varint(from)?).ok()?;
    let (numbers, rest) = from.split_at_checked(count.checked_mul(size_of::<Number>())?)?;
    *from = rest;
    Some(numbers.as_chunks().0)
}

fn take_int(from: &mut &[u8]) -> Option<i64> {
    let (bytes, rest) = from.split_first_chunk::<8>()?;
    *from = rest;
    Some(i64::from_le_bytes(*bytes))
}

fn take_real(from: &mut &[u8]) -> Option<f64> {
    let (bytes, rest) = from.split_first_chunk::<8>()?;
    *from = rest;
    Some(f64::from_le_bytes(*bytes))
}

/// Appends arguments behind an event.
pub(crate) struct Coder<'a> {
    to: &'a mut Vec<u8>,
    arguments: usize,
    /// The elements of each array so far. Annotations of one name go on with one array.
    elements: Option<BTreeMap<String, usize>>,
}

impl<'a> Coder<'a> {
    pub(crate) fn new(to: &'a mut Vec<u8>) -> Coder<'a> {
        Coder {
            to,
            arguments: 0,
            elements: None,
        }
    }

    /// The arguments so far.
    pub(crate) fn arguments(&self) -> usize {
        self.arguments
    }

    /// Returns the place of the next element of an array.
    pub(crate) fn next_element(&self, array: &str) -> usize {
        let elements = self.elements.as_ref().and_then(|elements| elements.get(array));
        elements.copied().unwrap_or(0)
    }

    /// Notes that an array has one more element.
    pub(crate) fn add_element(&mut self, array: &str) {
        let all = self.elements.get_or_insert_default();
        match all.get_mut(array) {
            Some(elements) => *elements += 1,
            None => drop(all.insert(array.to_owned(), 1)),
        }
    }

    #[inline]
    fn begin(&mut self, kind: u8, flat: StringId, whole: StringId) {
        self.arguments += 1;
        let mut head = [kind; 1 + KEYS];
        head[1..5].copy_from_slice(&flat.0.to_le_bytes());
        head[5..].copy_from_slice(&whole.0.to_le_bytes());
        self.to.extend_from_slice(&head);
    }

    pub(crate) fn bool(&mut self, flat: StringId, whole: StringId, value: bool) {
        self.begin(BOOL, flat, whole);
        self.to.push(value.into());
    }

    pub(crate) fn uint(&mut self, flat: StringId, whole: StringId, value: u64) {
        self.begin(UINT, flat, whole);
        push_varint(self.to, value);
    }

    pub(crate) fn int(&mut self, flat: StringId, whole: StringId, value: i64) {
        self.begin(INT, flat, whole);
        push_varint(self.to, zigzag(value));
    }

    pub(crate) fn real(&mut self, flat: StringId, whole: StringId, bits: u64) {
        self.begin(REAL, flat, whole);
        self.to.extend_from_slice(&bits.to_le_bytes());
    }

    pub(crate) fn pointer(&mut self, flat: StringId, whole: StringId, value: u64) {
        self.begin(POINTER, flat, whole);
        push_varint(self.to, value);
    }

    pub(crate) fn text(&mut self, flat: StringId, whole: StringId, value: &[u8]) {
        self.begin(TEXT, flat, whole);
        self.bytes(value);
    }

    pub(crate) fn pooled(&mut self, flat: StringId, whole: StringId, value: StringId) {
        self.begin(POOLED, flat, whole);
        push_varint(self.to, value.0.into());
    }

    pub(crate) fn log(&mut self, log: &Log) {
        let id = |id: Option<StringId>| id.map_or(0, |id| u64::from(id.0) + 1);
        self.arguments += 1;
        self.to.push(LOG);
        push_varint(self.to, log.body.0.into());
        push_varint(self.to, log.priority.map_or(0, |priority| zigzag(priority) + 1));
        self.to.push(log.location.is_some().into());
        if let Some(location) = &log.location {
            push_varint(self.to, id(location.file));
            push_varint(self.to, id(location.function));
            push_varint(self.to, location.line.map_or(0, |line| line as u64));
        }
    }

    /// Leaves a place for the number that an event of the older form has.
    pub(crate) fn source(&mut self) {
        self.to.push(SOURCE);
    }

    pub(crate) fn name(&mut self, name: StringId) {
        self.to.push(NAME);
        push_varint(self.to, name.0.into());
    }

    pub(crate) fn process(&mut self, pid: i64) {
        self.to.push(PROCESS);
        push_varint(self.to, zigzag(pid));
    }

    fn bytes(&mut self, value: &[u8]) {
        push_varint(self.to, value.len() as u64);
        self.to.extend_from_slice(value);
    }
}

/// Reads the arguments behind an event. `extra` takes what is no argument.
pub(crate) fn arguments(mut from: &[u8], pending: &mut Pending, mut extra: impl FnMut(Extra, &mut Pending)) {
    while next(&mut from, pending, &mut extra).is_some() {}
}

fn take_log(from: &mut &[u8]) -> Option<Log> {
    let body = StringId(take_varint(from)? as u32);
    let priority = take_varint(from)?.checked_sub(1).map(unzigzag);
    let (has_location, rest) = from.split_first()?;
    *from = rest;
    let id = |number: u64| number.checked_sub(1).map(|id| StringId(id as u32));
    let location = match has_location {
        0 => None,
        _ => Some(SourceLocation {
            file: id(take_varint(from)?),
            function: id(take_varint(from)?),
            line: Some(take_varint(from)? as i64),
        }),
    };
    Some(Log {
        body,
        priority,
        location,
    })
}

fn next(from: &mut &[u8], pending: &mut Pending, visit: &mut impl FnMut(Extra, &mut Pending)) -> Option<()> {
    let (kind, rest) = from.split_first()?;
    *from = rest;
    let extra = match *kind {
        LOG => Some(Extra::Log(take_log(from)?)),
        SOURCE => Some(Extra::Source),
        NAME => Some(Extra::Name(StringId(take_varint(from)? as u32))),
        PROCESS => Some(Extra::Process(unzigzag(take_varint(from)?))),
        _ => None,
    };
    if let Some(extra) = extra {
        visit(extra, pending);
        return Some(());
    }
    let ([f0, f1, f2, f3, w0, w1, w2, w3], rest) = from.split_first_chunk::<KEYS>()?;
    *from = rest;
    let flat = StringId(u32::from_le_bytes([*f0, *f1, *f2, *f3]));
    let whole = StringId(u32::from_le_bytes([*w0, *w1, *w2, *w3]));
    let value = match *kind {
        BOOL => {
            let (value, rest) = from.split_first()?;
            *from = rest;
            Value::Bool(*value != 0)
        }
        UINT => Value::Uint(take_varint(from)?),
        INT => Value::Int(unzigzag(take_varint(from)?)),
        REAL => Value::Real(take_real(from)?),
        POINTER => Value::Pointer(take_varint(from)?),
        TEXT => Value::Str(text(from)?),
        _ => Value::Text(StringId(take_varint(from)? as u32)),
    };
    pending.add(flat, whole, value);
    Some(())
}

fn text(from: &mut &[u8]) -> Option<Box<str>> {
    take_bytes(from).map(|text| String::from_utf8_lossy(text).into())
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(take_varint(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes)
}
