//! A trace against the journals of the threads that wrote it.
//!
//! Each sequence of packets is one thread's, so its events must be that thread's story: every event in its place, except those in categories that the
//! session does not record. Where packets are missing the trace says so. The events of a thread between the session's start and the moment before its
//! end are there from the first step to the last, unless they are in such a gap.

use std::collections::BTreeMap;
use std::fmt;

use ferretto_proto::messages::{Message, TraceStats};
use ferretto_wire::{Reader, Value};

use super::recording::Recording;
use super::story::{self, CATEGORIES, Event, Kind};

/// The recording that a session was to make, and its time.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// Which of [`CATEGORIES`].
    pub(crate) categories: [bool; 2],
    /// Boot times: before it was set up, when all had started, before it was told to stop, when it had.
    pub(crate) set_up: u64,
    pub(crate) started: u64,
    pub(crate) stopping: u64,
    pub(crate) stopped: u64,
}

/// The counts of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sequences: u64,
    pub(crate) events: u64,
    /// Marks of missing packets.
    pub(crate) gaps: u64,
    /// Threads of which the last events or all events are missing. Only the session's statistics show this.
    pub(crate) ends_lost: u64,
}

impl std::ops::AddAssign for Found {
    fn add_assign(&mut self, other: Found) {
        self.sequences += other.sequences;
        self.events += other.events;
        self.gaps += other.gaps;
        self.ends_lost += other.ends_lost;
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found {
            sequences,
            events,
            gaps,
            ends_lost,
        } = self;
        write!(
            f,
            "{events} events of {sequences} threads, {gaps} gaps, {ends_lost} ends lost"
        )
    }
}

/// An item of a sequence.
#[derive(Clone, Copy, Debug)]
enum Told {
    Gap,
    Event(Event),
}

/// A sequence of packets.
#[derive(Default)]
struct Sequence {
    begun: bool,
    /// Strings by id, as they were told since the state was cleared last.
    categories: BTreeMap<u64, Vec<u8>>,
    names: BTreeMap<u64, Vec<u8>>,
    annotations: BTreeMap<u64, Vec<u8>>,
    /// Whether packets were lost, and the state was not cleared since.
    blind: bool,
    stream: Option<u64>,
    told: Vec<Told>,
}

/// The service's treatment of a writer that was never registered, because the application ended first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NeverHeardOf {
    /// It counts the lost packets.
    Counted,
    /// It counts nothing. Upstream's service cannot know the buffer of these chunks, and leaves them.
    Ignored,
}

/// Checks a trace; returns the first error.
fn check(
    recording: &Recording,
    journals: &BTreeMap<u64, Vec<u64>>,
    never_heard_of: NeverHeardOf,
) -> Result<Found, String> {
    let (sequences, stats) = read(&recording.trace)?;
    let mut expected = recording.expected.clone();
    // A service that is told to end ends sessions before it answers a request to end them. It does not record later events, and says so.
    if let Some(ended) = first_service_event(&recording.trace, field::SERVICE_ENDED)? {
        expected.stopping = expected.stopping.min(ended);
    }
    let expected = &expected;
    let stats = recording
        .stats
        .clone()
        .or(stats)
        .ok_or("the trace has no statistics")?;
    let mut found = Found::default();
    let mut seen: BTreeMap<u64, Place> = BTreeMap::new();
    // Sequences that are too short to show which thread they belong to.
    let mut nameless = Vec::new();
    for (id, sequence) in &sequences {
        found.gaps += sequence
            .told
            .iter()
            .filter(|told| matches!(told, Told::Gap))
            .count() as u64;
        let Some(stream) = sequence.stream else {
            nameless.push(sequence);
            continue;
        };
        let times = journals
            .get(&stream)
            .ok_or_else(|| format!("sequence {id}: nobody has journal {stream}"))?;
        found.sequences += 1;
        found.events += sequence
            .told
            .iter()
            .filter(|told| matches!(told, Told::Event(_)))
            .count() as u64;
        let place = follow(sequence, stream, expected, times)
            .map_err(|problem| format!("sequence {id}, stream {stream}: {problem}"))?;
        if seen.insert(stream, place).is_some() {
            return Err(format!("stream {stream} has two sequences"));
        }
    }
    let mut missing = Vec::new();
    let mut unnamed = Vec::new();
    for (&stream, times) in journals {
        let Some((first, last)) = required(stream, expected, times) else {
            continue;
        };
        match seen.get(&stream) {
            None => unnamed.push((events_between(stream, (first, last), expected), stream)),
            Some(place) => {
                if !place.begins_with_gap && place.first > first {
                    return Err(format!(
                        "stream {stream} begins with {:?}, and not before {first:?}, without a word",
                        place.first
                    ));
                }
                if place.last < last && !place.ends_with_gap {
                    missing.push(format!("stream {stream} from {:?} to {last:?}", place.last));
                }
            }
        }
    }
    // Long stories come first, because a short story may match sequences of other threads.
    unnamed.sort_by_key(|(events, _)| std::cmp::Reverse(events.len()));
    nameless.sort_by_key(|sequence| sequence.told.len());
    let mut ignored = 0;
    for (events, stream) in unnamed {
        match nameless.iter().position(|sequence| sequence.tells(&events)) {
            Some(found) => drop(nameless.remove(found)),
            None => {
                missing.push(format!("all {} of stream {stream}", events.len()));
                ignored += u64::from(matches!(never_heard_of, NeverHeardOf::Ignored));
            }
        }
    }
    found.ends_lost = missing.len() as u64;
    let sum = |of: fn(&ferretto_proto::messages::trace_stats::BufferStats) -> Option<u64>| {
        stats.buffer_stats.iter().filter_map(of).sum::<u64>()
    };
    let writers_lost = sum(|buffer| buffer.trace_writer_packet_loss);
    let buffer_lost = sum(|buffer| buffer.chunks_overwritten) + sum(|buffer| buffer.chunks_discarded);
    // Chunks that come after the end of their session are discarded, but they are no loss.
    if sum(|buffer| buffer.abi_violations) + stats.invalid_packets.unwrap_or(0) > 0 {
        return Err(format!(
            "the service found packets or chunks that are not valid: {stats:?}"
        ));
    }
    // Only the application could tell how much it has lost since its memory was full. If it ended before that, the trace says that it is gone.
    let is_gone = first_service_event(&recording.trace, field::DATA_SOURCES_GONE)?.is_some();
    if found.ends_lost - ignored > writers_lost && buffer_lost == 0 && !is_gone {
        return Err(format!(
            "{} ends are missing, but the service knows of {writers_lost} losses only: {missing:?}",
            found.ends_lost
        ));
    }
    Ok(found)
}

/// Checks a recording. One that is wrong is kept for people, and ends the test.
pub(crate) fn check_or_keep(
    recording: &Recording,
    journals: &BTreeMap<u64, Vec<u64>>,
    never_heard_of: NeverHeardOf,
) -> Found {
    check(recording, journals, never_heard_of).unwrap_or_else(|problem| {
        let file = tempfile::Builder::new()
            .prefix("ferretto-stress-")
            .suffix(".pftrace")
            .tempfile();
        let (_, path) = file.unwrap().keep().unwrap();
        std::fs::write(&path, &recording.trace).unwrap();
        let Recording { what, expected, .. } = recording;
        panic!(
            "{what}: {problem}
{expected:?}
the trace is kept in {}",
            path.display()
        );
    })
}

/// A step, and the index of an event in it.
type Position = (u64, usize);

/// The places in a story at which a sequence begins and ends.
struct Place {
    first: Position,
    last: Position,
    begins_with_gap: bool,
    ends_with_gap: bool,
}

/// The first and the last event that must be there.
fn required(stream: u64, expected: &Expected, times: &[u64]) -> Option<(Position, Position)> {
    let first = times.partition_point(|time| *time < expected.started);
    // The first event after a step means that the step is over.
    let end = times
        .partition_point(|time| *time <= expected.stopping)
        .saturating_sub(1);
    let mut positions = (first..end).flat_map(|step| positions(stream, step as u64, expected));
    let first = positions.next()?;
    Some((first, positions.last().unwrap_or(first)))
}

/// The events of a step that the session records.
fn positions(stream: u64, step: u64, expected: &Expected) -> impl DoubleEndedIterator<Item = Position> {
    let events = story::events(stream, step);
    (0..events.len())
        .filter(move |&index| expected.categories[events[index].category])
        .map(move |index| (step, index))
}

/// The next event that the session records. There always is one: stories do not end.
fn next(stream: u64, (step, index): Position, expected: &Expected) -> Position {
    let mut rest = positions(stream, step, expected).filter(move |&(_, other)| other > index);
    rest.next().unwrap_or_else(|| {
        (step + 1..)
            .find_map(|step| positions(stream, step, expected).next())
            .unwrap()
    })
}

fn previous(stream: u64, (step, index): Position, expected: &Expected) -> Option<Position> {
    let mut before = positions(stream, step, expected).filter(move |&(_, other)| other < index);
    before.next_back().or_else(|| {
        (0..step)
            .rev()
            .find_map(|step| positions(stream, step, expected).next_back())
    })
}

fn at(stream: u64, (step, index): Position) -> Event {
    story::events(stream, step)[index]
}

/// The events that the session records from one to another.
fn events_between(stream: u64, (first, last): (Position, Position), expected: &Expected) -> Vec<Event> {
    std::iter::successors(Some(first), |&position| Some(next(stream, position, expected)))
        .take_while(|position| *position <= last)
        .map(|position| at(stream, position))
        .collect()
}

/// Follows a sequence through its thread's story.
fn follow(sequence: &Sequence, stream: u64, expected: &Expected, times: &[u64]) -> Result<Place, String> {
    let mut place: Option<Place> = None;
    // The position of the last event, unless packets were lost since.
    let mut known: Option<Position> = None;
    // The events since then that do not contain their steps.
    let mut unplaced: Vec<Event> = Vec::new();
    let mut gap = false;
    for (number, told) in sequence.told.iter().enumerate() {
        let event = match told {
            Told::Gap => {
                gap = true;
                known = None;
                unplaced.clear();
                continue;
            }
            Told::Event(event) => *event,
        };
        if !expected.categories[event.category] {
            return Err(format!("{event:?}, whose category the session does not record"));
        }
        let position = match (known, event.step) {
            (Some(last), _) => {
                let position = next(stream, last, expected);
                if at(stream, position) != event {
                    return Err(format!(
                        "{event:?} (the {number}th) follows {last:?}, where {:?} of {position:?} should, and no gap was told",
                        at(stream, position)
                    ));
                }
                position
            }
            (None, None) => {
                if event.kind == Kind::End && !gap && unplaced.is_empty() {
                    return Err("it begins with the end of a slice".to_owned());
                }
                unplaced.push(event);
                continue;
            }
            (None, Some(step)) => {
                let found = positions(stream, step, expected).find(|&position| at(stream, position) == event);
                let position = found.ok_or_else(|| format!("{event:?} is not in step {step}"))?;
                let mut first = position;
                while let Some(before) = unplaced.pop() {
                    let mut candidate = previous(stream, first, expected);
                    if let Some(position) = candidate
                        && at(stream, position).kind == Kind::End
                        && before.kind != Kind::End
                        && unplaced.is_empty()
                    {
                        // The session began within a slice, or the beginning was lost: then its end is not recorded.
                        candidate =
                            previous(stream, position, expected).filter(|before| before.0 == position.0);
                    }
                    first = candidate
                        .filter(|&position| at(stream, position) == before)
                        .ok_or_else(|| format!("{before:?} is not what comes before {first:?}"))?;
                }
                match &place {
                    Some(place) if first <= place.last => {
                        return Err(format!("{first:?} comes after {:?}", place.last));
                    }
                    Some(_) => {}
                    None => {
                        place = Some(Place {
                            first,
                            last: first,
                            begins_with_gap: gap,
                            ends_with_gap: false,
                        });
                    }
                }
                position
            }
        };
        gap = false;
        known = Some(position);
        if let Some(place) = &mut place {
            place.last = position;
        }
    }
    let mut place = place.ok_or("it tells no step")?;
    place.ends_with_gap = known.is_none();
    let (first, last) = (place.first.0 as usize, place.last.0 as usize);
    if last >= times.len() {
        return Err(format!("step {last} was never begun"));
    }
    if times.get(first + 1).is_some_and(|over| *over < expected.set_up) {
        return Err(format!("step {first} was over before the session was set up"));
    }
    if times[last] > expected.stopped {
        return Err(format!("step {last} began after the session had stopped"));
    }
    Ok(place)
}

mod field {
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SERVICE_EVENT: u32 = 69;
    /// Fields of service events that are our own extensions.
    pub(super) const DATA_SOURCES_GONE: u32 = 9901;
    pub(super) const SERVICE_ENDED: u32 = 9903;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const TRACE_STATS: u32 = 35;
    pub(super) const TIMESTAMP_CLOCK_ID: u32 = 58;
    pub(super) const PREVIOUS_PACKET_DROPPED: u32 = 42;
    pub(super) const FIRST_PACKET_ON_SEQUENCE: u32 = 87;
}

fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u32, Value<'_>), String>> {
    Reader::new(message).map(|field| match field {
        Ok(field) => Ok((field.number, field.value)),
        Err(error) => Err(format!("corrupt: {error:?}")),
    })
}

fn number(value: Value<'_>) -> Result<u64, String> {
    value.as_varint().ok_or_else(|| format!("{value:?} is no number"))
}

fn bytes(value: Value<'_>) -> Result<&[u8], String> {
    value
        .as_bytes()
        .ok_or_else(|| "not a string or message".to_owned())
}

/// Returns the time of the first service event with this field.
fn first_service_event(trace: &[u8], field: u32) -> Result<Option<u64>, String> {
    for packet in fields(trace) {
        let (mut time, mut is_such) = (0, false);
        for entry in fields(bytes(packet?.1)?) {
            match entry? {
                (field::TIMESTAMP, value) => time = number(value)?,
                (field::SERVICE_EVENT, value) => {
                    let mut events = fields(bytes(value)?);
                    is_such = events.any(|event| event.is_ok_and(|(number, _)| number == field));
                }
                _ => {}
            }
        }
        if is_such {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

/// The sequences with track events, and the last statistics.
fn read(trace: &[u8]) -> Result<(BTreeMap<u64, Sequence>, Option<TraceStats>), String> {
    let mut sequences: BTreeMap<u64, Sequence> = BTreeMap::new();
    let mut stats = None;
    for packet in fields(trace) {
        let (number_of_field, packet) = packet?;
        if number_of_field != 1 {
            return Err(format!("field {number_of_field} among packets"));
        }
        let packet = bytes(packet)?;
        let (mut id, mut flags, mut dropped, mut first) = (0, 0, false, false);
        let (mut interned, mut event, mut has_own_clock) = (None, None, false);
        for entry in fields(packet) {
            match entry? {
                (field::SEQUENCE_ID, value) => id = number(value)?,
                (field::SEQUENCE_FLAGS, value) => flags = number(value)?,
                (field::PREVIOUS_PACKET_DROPPED, value) => dropped = number(value)? != 0,
                (field::FIRST_PACKET_ON_SEQUENCE, value) => first = number(value)? != 0,
                (field::INTERNED_DATA, value) => interned = Some(bytes(value)?),
                (field::TRACK_EVENT, value) => event = Some(bytes(value)?),
                (field::TIMESTAMP_CLOCK_ID, _) => has_own_clock = true,
                (field::TRACE_STATS, value) => {
                    let decoded = TraceStats::decode_from_slice(bytes(value)?);
                    stats = Some(decoded.map_err(|error| format!("statistics: {error}"))?);
                }
                _ => {}
            }
        }
        if flags == 0 && interned.is_none() && event.is_none() && !sequences.contains_key(&id) {
            // The service's own.
            continue;
        }
        let sequence = sequences.entry(id).or_default();
        let timing = match has_own_clock {
            true => Timing::Late,
            false => Timing::Now,
        };
        sequence
            .packet(
                flags,
                dropped,
                first,
                interned,
                event.map(|event| (event, timing)),
            )
            .map_err(|problem| format!("sequence {id}: {problem}"))?;
    }
    sequences.retain(|_, sequence| !sequence.told.is_empty());
    Ok((sequences, stats))
}

/// Whether an event was written when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timing {
    Now,
    Late,
}

impl Sequence {
    /// Whether these events are in it, one after the other.
    fn tells(&self, events: &[Event]) -> bool {
        self.told.windows(events.len()).any(|told| {
            let mut pairs = told.iter().zip(events);
            pairs.all(|(told, event)| matches!(told, Told::Event(told) if told == event))
        })
    }

    fn packet(
        &mut self,
        flags: u64,
        dropped: bool,
        first: bool,
        interned: Option<&[u8]>,
        event: Option<(&[u8], Timing)>,
    ) -> Result<(), String> {
        const CLEARED: u64 = 1;
        if !self.begun && !first && !dropped {
            return Err("it begins with a packet that is not the first, without a word".to_owned());
        }
        if self.begun && first {
            return Err("it begins twice".to_owned());
        }
        self.begun = true;
        if dropped {
            self.blind = true;
            self.miss();
        }
        if flags & CLEARED != 0 {
            self.blind = false;
            self.categories.clear();
            self.names.clear();
            self.annotations.clear();
        }
        if let Some(interned) = interned {
            self.intern(interned)?;
        }
        if let Some((event, timing)) = event {
            // Readers skip these packets, because they know of the loss.
            if self.blind {
                self.miss();
                return Ok(());
            }
            match (self.event(event), timing) {
                // This end was lost at first. It belongs before the gap or into it.
                (Ok(Event { kind: Kind::End, .. }), Timing::Late)
                    if matches!(self.told.last(), Some(Told::Gap)) => {}
                (Ok(event), Timing::Now) => self.told.push(Told::Event(event)),
                (Ok(event), Timing::Late) => return Err(format!("{event:?} is late")),
                (Err(problem), _) => return Err(problem),
            }
        }
        Ok(())
    }

    fn miss(&mut self) {
        if !matches!(self.told.last(), Some(Told::Gap)) {
            self.told.push(Told::Gap);
        }
    }

    fn intern(&mut self, interned: &[u8]) -> Result<(), String> {
        for entry in fields(interned) {
            let (table, entry) = entry?;
            let table = match table {
                1 => &mut self.categories,
                2 => &mut self.names,
                3 => &mut self.annotations,
                _ => continue,
            };
            let (mut iid, mut name) = (0, &[][..]);
            for field in fields(bytes(entry)?) {
                match field? {
                    (1, value) => iid = number(value)?,
                    (2, value) => name = bytes(value)?,
                    _ => {}
                }
            }
            table.insert(iid, name.to_vec());
        }
        Ok(())
    }

    /// Reads an event, and the stream that it names.
    fn event(&mut self, event: &[u8]) -> Result<Event, String> {
        let (mut kind, mut counter) = (0, None);
        let (mut category, mut name) = (Vec::new(), Vec::new());
        let (mut stream, mut step, mut text) = (None, None, None);
        let known = |table: &BTreeMap<u64, Vec<u8>>, iid| {
            table
                .get(&iid)
                .cloned()
                .ok_or_else(|| format!("nobody has told what {iid} stands for"))
        };
        for entry in fields(event) {
            match entry? {
                (9, value) => kind = number(value)?,
                (3, value) => category = known(&self.categories, number(value)?)?,
                (22, value) => category = bytes(value)?.to_vec(),
                (10, value) => name = known(&self.names, number(value)?)?,
                (23, value) => name = bytes(value)?.to_vec(),
                (30, value) => counter = Some(number(value)?),
                (4, value) => {
                    let (mut name, mut found, mut found_text) = (Vec::new(), None, None);
                    for field in fields(bytes(value)?) {
                        match field? {
                            (1, value) => name = known(&self.annotations, number(value)?)?,
                            (3 | 4, value) => found = Some(number(value)?),
                            (6, value) => found_text = Some(bytes(value)?),
                            _ => {}
                        }
                    }
                    match &*name {
                        b"stream" => stream = found,
                        b"step" => step = found,
                        b"text" => text = found_text,
                        _ => return Err(format!("a strange argument: {name:?}")),
                    }
                }
                _ => {}
            }
        }
        if stream.is_some() {
            if self.stream.is_some() && self.stream != stream {
                return Err(format!("events of {:?} and of {stream:?}", self.stream));
            }
            self.stream = stream;
        }
        let kind = match (kind, &*name) {
            (1, b"Slice") => Kind::Begin,
            (2, b"") => Kind::End,
            (3, b"Plain") => Kind::Plain,
            (3, b"Numbered") => Kind::Numbered,
            (3, b"OnTrack") => Kind::OnTrack,
            (3, b"Long") => Kind::Long,
            (3, name) if name.starts_with(b"Dynamic ") => Kind::Dynamic,
            (4, b"") => Kind::Counter,
            (kind, name) => {
                return Err(format!(
                    "a strange event: {kind} {}",
                    String::from_utf8_lossy(name)
                ));
            }
        };
        if kind == Kind::Counter {
            step = counter;
        }
        if kind == Kind::Long {
            let whole = stream.zip(step).zip(text);
            if !whole.is_some_and(|((stream, step), text)| story::is_text_of(stream, step, text)) {
                return Err(format!("the text of step {step:?} is not what it should be"));
            }
        }
        let category = match kind {
            // These events do not name their category.
            Kind::End | Kind::Counter => Some(1),
            _ => CATEGORIES.iter().position(|name| name.as_bytes() == category),
        }
        .ok_or_else(|| format!("{kind:?} of {step:?}, of a strange category {category:?}"))?;
        Ok(Event { category, kind, step })
    }
}
