//! Track events between the tokenizer and the trackers: fields as varints, arguments as a list behind them.

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

/// The lists of an event.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Lists {
    /// Values of further counters, by track.
    pub(crate) counters: Vec<(u64, f64)>,
    pub(crate) flows: Vec<u64>,
    pub(crate) ended_flows: Vec<u64>,
}

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
    pub(crate) fn encode(&self, lists: &Lists, legacy: Option<&[u8]>, to: &mut Vec<u8>) {
        let some = [
            self.category.is_some(),
            self.name.is_some(),
            self.thread.is_some(),
            self.thread_time.is_some(),
            self.instructions.is_some(),
            self.value.is_some(),
            self.has_no_track,
            legacy.is_some(),
        ];
        let flags = some
            .iter()
            .enumerate()
            .fold(0, |flags, (at, is)| flags | u8::from(*is) << at);
        to.push(self.kind as u8);
        to.push(flags);
        push_varint(to, self.uuid);
        push_varint(to, self.sequence.into());
        for id in [self.category, self.name].into_iter().flatten() {
            push_varint(to, id.0.into());
        }
        if let Some((pid, tid)) = self.thread {
            push_varint(to, zigzag(pid));
            push_varint(to, zigzag(tid));
        }
        for number in [self.thread_time, self.instructions].into_iter().flatten() {
            push_varint(to, zigzag(number));
        }
        if let Some(value) = self.value {
            to.extend_from_slice(&value.to_le_bytes());
        }
        push_varint(to, lists.counters.len() as u64);
        for (uuid, value) in &lists.counters {
            push_varint(to, *uuid);
            to.extend_from_slice(&value.to_le_bytes());
        }
        for list in [&lists.flows, &lists.ended_flows] {
            push_varint(to, list.len() as u64);
            list.iter().for_each(|flow| push_varint(to, *flow));
        }
        if let Some(legacy) = legacy {
            push_varint(to, legacy.len() as u64);
            to.extend_from_slice(legacy);
        }
    }

    /// Reads what [`encode`](Event::encode) wrote. Arguments are left in `from`.
    pub(crate) fn decode<'a>(from: &mut &'a [u8]) -> Option<(Event, Lists, Legacy<'a>)> {
        let ([kind, flags], rest) = from.split_first_chunk::<2>()?;
        *from = rest;
        let kind = match *kind {
            0 => Kind::Begin,
            1 => Kind::End,
            2 => Kind::Instant,
            3 => Kind::Counter,
            _ => Kind::Phase,
        };
        let has = |at: u8| flags >> at & 1 != 0;
        let uuid = take_varint(from)?;
        let sequence = take_varint(from)? as u32;
        let mut id = |at| match has(at) {
            true => Some(take_varint(from).map(|id| StringId(id as u32))),
            false => None,
        };
        let (category, name) = (id(0), id(1));
        let thread = match has(2) {
            true => Some((unzigzag(take_varint(from)?), unzigzag(take_varint(from)?))),
            false => None,
        };
        let mut number = |at| match has(at) {
            true => Some(take_varint(from).map(unzigzag)),
            false => None,
        };
        let (thread_time, instructions) = (number(3), number(4));
        let value = if has(5) { Some(take_real(from)?) } else { None };
        let mut lists = Lists::default();
        for _ in 0..take_varint(from)? {
            lists.counters.push((take_varint(from)?, take_real(from)?));
        }
        for list in [&mut lists.flows, &mut lists.ended_flows] {
            for _ in 0..take_varint(from)? {
                list.push(take_varint(from)?);
            }
        }
        let legacy = match has(7) {
            true => Legacy::new(take_bytes(from)?),
            false => Legacy::default(),
        };
        let event = Event {
            kind,
            uuid,
            has_no_track: has(6),
            sequence,
            category: category.flatten(),
            name: name.flatten(),
            thread,
            thread_time: thread_time.flatten(),
            instructions: instructions.flatten(),
            value,
        };
        Some((event, lists, legacy))
    }
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
    elements: BTreeMap<String, usize>,
}

impl<'a> Coder<'a> {
    pub(crate) fn new(to: &'a mut Vec<u8>) -> Coder<'a> {
        Coder {
            to,
            arguments: 0,
            elements: BTreeMap::new(),
        }
    }

    /// The arguments so far.
    pub(crate) fn arguments(&self) -> usize {
        self.arguments
    }

    /// Returns the place of the next element of an array.
    pub(crate) fn next_element(&self, array: &str) -> usize {
        self.elements.get(array).copied().unwrap_or(0)
    }

    /// Notes that an array has one more element.
    pub(crate) fn add_element(&mut self, array: &str) {
        match self.elements.get_mut(array) {
            Some(elements) => *elements += 1,
            None => drop(self.elements.insert(array.to_owned(), 1)),
        }
    }

    fn begin(&mut self, kind: u8, flat: StringId, whole: StringId) {
        self.arguments += 1;
        self.to.push(kind);
        push_varint(self.to, flat.0.into());
        push_varint(self.to, whole.0.into());
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
    let flat = StringId(take_varint(from)? as u32);
    let whole = StringId(take_varint(from)? as u32);
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
