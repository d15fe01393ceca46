//! Tracks: where slices and counters belong.
//!
//! A track is known by its type and its dimensions, for instance the CPU. All tracks stay in memory until the end, as names may come late.

use hashbrown::HashMap;

use super::args::Value;
use crate::context::Context;
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{
    COUNTER, COUNTER_TRACK, CPU_COUNTER_TRACK, CPU_TRACK, GPU_COUNTER_TRACK, PERF_COUNTER_TRACK,
    PROCESS_COUNTER_TRACK, PROCESS_TRACK, THREAD_COUNTER_TRACK, THREAD_TRACK, TRACK,
};
use crate::strings::{StringId, Strings};

/// The number of a track.
pub(crate) type TrackId = i64;

/// The value of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Dimension {
    Int(i64),
    Text(StringId),
}

/// What a track is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: &'static str,
    pub(crate) dimensions: Vec<(&'static str, Dimension)>,
}

impl Key {
    pub(crate) fn new(kind: &'static str, dimensions: &[(&'static str, Dimension)]) -> Key {
        Key {
            kind,
            dimensions: dimensions.to_vec(),
        }
    }

    fn dimension(&self, name: &str) -> Option<i64> {
        self.dimensions.iter().find_map(|(known, value)| match value {
            Dimension::Int(value) if *known == name => Some(*value),
            _ => None,
        })
    }
}

/// What a track has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Has {
    Slices,
    Counter { unit: Option<StringId> },
}

/// A row of `counter` that has no value yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count {
    id: i64,
    ts: i64,
    track: TrackId,
}

#[derive(Debug)]
struct Track {
    kind: &'static str,
    name: Option<StringId>,
    has: Has,
    parent: Option<TrackId>,
    dimensions: Option<i64>,
    source: Option<i64>,
    description: Option<StringId>,
    group: Option<i64>,
    utid: Option<i64>,
    upid: Option<i64>,
    cpu: Option<i64>,
    gpu: Option<i64>,
    /// The session of linux.perf that it is of.
    session: Option<i64>,
    is_timebase: bool,
}

/// All tracks so far.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    tracks: Vec<Track>,
    numbers: HashMap<Key, TrackId>,
    counters: i64,
}

impl Tracks {
    /// Returns the track of this key; makes it, if there is none.
    pub(crate) fn intern(
        &mut self,
        key: &Key,
        has: Has,
        name: impl FnOnce(&mut Strings) -> Option<StringId>,
        context: &mut Context<'_>,
    ) -> TrackId {
        if let Some(track) = self.numbers.get(key) {
            return *track;
        }
        let name = name(&mut context.strings);
        let track = self.create(key, has, name, context);
        self.numbers.insert(key.clone(), track);
        track
    }

    /// Returns a new track.
    pub(crate) fn create(
        &mut self,
        key: &Key,
        has: Has,
        name: Option<StringId>,
        context: &mut Context<'_>,
    ) -> TrackId {
        for (name, value) in &key.dimensions {
            let name = context.strings.intern(name);
            let value = match value {
                Dimension::Int(value) => Value::Int(*value),
                Dimension::Text(text) => Value::Text(*text),
            };
            context.args.add(name, name, value);
        }
        let dimensions = context.args.finish(&context.strings, &mut context.output);
        let cpu = key.dimension("cpu");
        if let Some(cpu) = cpu {
            context.cpus.mention(cpu as u32);
        }
        self.tracks.push(Track {
            kind: key.kind,
            name,
            has,
            parent: None,
            dimensions,
            source: None,
            description: None,
            group: None,
            utid: key.dimension("utid"),
            upid: key.dimension("upid"),
            cpu,
            gpu: key.dimension("gpu"),
            session: key.dimension("perf_session_id"),
            is_timebase: false,
        });
        self.tracks.len() as TrackId - 1
    }

    /// Says where a track comes from.
    pub(crate) fn describe(&mut self, track: TrackId, source: Option<i64>, description: Option<StringId>) {
        if let Some(track) = self.tracks.get_mut(track as usize) {
            (track.source, track.description) = (source, description);
        }
    }

    pub(crate) fn set_timebase(&mut self, track: TrackId, is_timebase: bool) {
        if let Some(track) = self.tracks.get_mut(track as usize) {
            track.is_timebase = is_timebase;
        }
    }

    pub(crate) fn set_parent(&mut self, track: TrackId, parent: Option<TrackId>) {
        if let (Some(track), Some(_)) = (self.tracks.get_mut(track as usize), parent) {
            track.parent = parent;
        }
    }

    pub(crate) fn set_group(&mut self, track: TrackId, group: i64) {
        if let Some(track) = self.tracks.get_mut(track as usize) {
            track.group = Some(group);
        }
    }

    pub(crate) fn set_name(&mut self, track: TrackId, name: StringId) {
        if let Some(track) = self.tracks.get_mut(track as usize) {
            track.name = Some(name);
        }
    }

    pub(crate) fn name(&self, track: TrackId) -> Option<StringId> {
        self.tracks.get(track as usize)?.name
    }

    /// Whether a track with this key and description was made before.
    pub(crate) fn is_described(&self, track: TrackId) -> bool {
        self.tracks
            .get(track as usize)
            .is_none_or(|track| track.source.is_some())
    }

    /// Writes the value of a counter.
    #[inline]
    pub(crate) fn count(
        &mut self,
        ts: i64,
        track: TrackId,
        value: f64,
        arg_set: Option<i64>,
        strings: &Strings,
        output: &mut Output<'_>,
    ) {
        let row = [
            Cell::from(self.counters),
            Cell::from(ts),
            Cell::from(track),
            Cell::from(value),
            Cell::from(arg_set),
        ];
        self.counters += 1;
        output.time(ts, 0);
        output.push(&COUNTER, &row, strings);
    }

    /// Returns a row whose value comes later.
    pub(crate) fn reserve_count(&mut self, ts: i64, track: TrackId) -> Count {
        self.counters += 1;
        Count {
            id: self.counters - 1,
            ts,
            track,
        }
    }

    /// Writes a row that was reserved.
    pub(crate) fn write_count(
        &mut self,
        count: Count,
        value: f64,
        strings: &Strings,
        output: &mut Output<'_>,
    ) {
        let row = [
            Cell::from(count.id),
            Cell::from(count.ts),
            Cell::from(count.track),
            Cell::from(value),
            Cell::NULL,
        ];
        output.time(count.ts, 0);
        output.push(&COUNTER, &row, strings);
    }

    /// Writes the tables of tracks.
    pub(crate) fn write(&self, strings: &mut Strings, output: &mut Output<'_>) {
        for (id, track) in self.tracks.iter().enumerate() {
            let id = Cell::from(id as TrackId);
            let (name, kind, parent) = (
                Cell::from(track.name),
                Cell::from(strings.intern(track.kind)),
                Cell::from(track.parent),
            );
            let (dimensions, source) = (Cell::from(track.dimensions), Cell::from(track.source));
            let group = Cell::from(track.group);
            output.push(
                &TRACK,
                &[id, name, kind, dimensions, parent, source, Cell::NULL, group],
                strings,
            );
            let of = [
                (&THREAD_TRACK, &THREAD_COUNTER_TRACK, track.utid),
                (&PROCESS_TRACK, &PROCESS_COUNTER_TRACK, track.upid),
                (&CPU_TRACK, &CPU_COUNTER_TRACK, track.cpu),
            ];
            let of_counters = [(&GPU_COUNTER_TRACK, track.gpu)];
            match track.has {
                Has::Slices => {
                    for (table, _, value) in of {
                        if let Some(value) = value {
                            let row = [id, name, kind, parent, source, Cell::NULL, Cell::from(value)];
                            output.push(table, &row, strings);
                        }
                    }
                }
                Has::Counter { unit } => {
                    let (unit, about) = (Cell::from(unit), Cell::from(track.description));
                    let row = [
                        id,
                        name,
                        Cell::NULL,
                        kind,
                        dimensions,
                        source,
                        Cell::NULL,
                        unit,
                        about,
                    ];
                    output.push(&COUNTER_TRACK, &row, strings);
                    if let Some(session) = track.session {
                        let row = [
                            id,
                            name,
                            kind,
                            Cell::NULL,
                            source,
                            Cell::NULL,
                            unit,
                            about,
                            Cell::from(session),
                            Cell::from(track.cpu),
                            Cell::from(track.is_timebase),
                        ];
                        output.push(&PERF_COUNTER_TRACK, &row, strings);
                    }
                    let of = of.map(|(_, table, value)| (table, value));
                    for (table, value) in of.into_iter().chain(of_counters) {
                        if let Some(value) = value {
                            let row = [
                                id,
                                name,
                                kind,
                                Cell::NULL,
                                source,
                                Cell::NULL,
                                unit,
                                about,
                                Cell::from(value),
                            ];
                            output.push(table, &row, strings);
                        }
                    }
                }
            }
        }
    }
}
