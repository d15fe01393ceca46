//! pprof profiles, for `go tool pprof` and everything else that reads them: gzip around a `perftools.profiles.Profile`.
//!
//! Mappings, locations and functions are those of upstream's `traceconv profile --perf`. It writes a file for each process; this writes one file, in
//! which each sample has labels for its process and thread (`pprof -tagroot=process,thread`, `-tagfocus=pid=…`). Where the distance between samples is
//! known, samples are also given in the unit of the counter. Samples of heap profiles have the four numbers that `traceconv profile --alloc` gives
//! them, and a label for their heap.
//!
//! The numbers of the fields are those of pprof's `proto/profile.proto`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use ferretto_wire::Writer;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::folded::{owner_name, process_name};
use crate::samples::{Event, EventId, FrameId, Owner, Period, Profile, Recording, StackId};

mod field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Writes the samples of these events.
///
/// # Errors
/// The errors of `out`.
pub(super) fn write(recording: &Recording, events: &[EventId], out: &mut impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(&mut *out, Compression::default());
    Pprof::new(&recording.profile).write(recording, events, &mut gzip)?;
    gzip.finish()?;
    out.flush()
}

/// One of the values of a sample.
struct SampleType {
    name: String,
    unit: Cow<'static, str>,
    /// The samples that have it, and its value for each.
    event: EventId,
    factor: u64,
}

struct Pprof<'a> {
    profile: &'a Profile,
    strings: HashMap<String, u64>,
    texts: Vec<String>,
    /// Name, system name, file; the place plus one is the id.
    functions: HashMap<(u64, u64, u64), u64>,
    locations: HashMap<FrameId, u64>,
    mappings: HashMap<u32, u64>,
    labels: HashMap<Owner, (u64, u64)>,
}

impl<'a> Pprof<'a> {
    fn new(profile: &'a Profile) -> Pprof<'a> {
        let mut pprof = Pprof {
            profile,
            strings: HashMap::new(),
            texts: Vec::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            mappings: HashMap::new(),
            labels: HashMap::new(),
        };
        // The table begins with the empty string.
        pprof.string("");
        pprof
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(place) = self.strings.get(text) {
            return *place;
        }
        let place = self.texts.len() as u64;
        self.texts.push(text.to_owned());
        self.strings.insert(text.to_owned(), place);
        place
    }

    /// Writes the message field by field, so that only tables are in memory.
    fn write(mut self, recording: &Recording, events: &[EventId], out: &mut impl Write) -> io::Result<()> {
        let types = sample_types(recording, events);
        let mut writer = Writer::new();
        for sample_type in &types {
            self.value_type(
                &mut writer,
                field::SAMPLE_TYPE,
                &sample_type.name,
                &sample_type.unit,
            );
        }
        self.about(recording, events, &types, &mut writer);
        out.write_all(writer.as_slice())?;
        let mut samples: BTreeMap<(Owner, StackId), Vec<(EventId, u64)>> = BTreeMap::new();
        for (key, count) in recording.totals.sorted() {
            if events.contains(&key.event) {
                let counts = samples.entry((key.owner, key.stack)).or_default();
                counts.push((key.event, count));
            }
        }
        for ((owner, stack), counts) in samples {
            writer.clear();
            self.sample(&types, owner, stack, &counts, &mut writer);
            out.write_all(writer.as_slice())?;
        }
        writer.clear();
        for text in &self.texts {
            writer.bytes_field(field::STRING_TABLE, text.as_bytes());
        }
        out.write_all(writer.as_slice())
    }

    fn value_type(&mut self, writer: &mut Writer, number: u32, name: &str, unit: &str) {
        let (name, unit) = (self.string(name), self.string(unit));
        writer.nested(number, |value_type| {
            value_type.varint_field(1, name);
            value_type.varint_field(2, unit);
        });
    }

    /// Writes when and how the profile was made.
    fn about(
        &mut self,
        recording: &Recording,
        events: &[EventId],
        types: &[SampleType],
        writer: &mut Writer,
    ) {
        if let Some((first, last)) = recording.span {
            if let Some(boot) = self.profile.boot {
                writer.varint_field(field::TIME_NANOS, boot.saturating_add(first));
            }
            writer.varint_field(field::DURATION_NANOS, last - first);
        }
        let described = |event: &EventId| recording.profile.events.get(event.0 as usize);
        let first = events.first().and_then(described);
        let interval = self.profile.heaps.iter().map(|heap| heap.interval).max();
        if let (Some(interval), Some(true)) = (interval, first.map(|event| event.measure.is_some())) {
            self.value_type(writer, field::PERIOD_TYPE, "space", "bytes");
            writer.varint_field(field::PERIOD, interval);
            if self.profile.heaps.iter().any(|heap| heap.is_at_max) {
                let comment = self.string("the memory is that of the time at which each heap was largest");
                writer.varint_field(field::COMMENT, comment);
            }
        }
        if let ([_], Some(event)) = (events, first) {
            match event.period {
                Some(Period::Time(period)) => {
                    self.value_type(writer, field::PERIOD_TYPE, "cpu", "nanoseconds");
                    writer.varint_field(field::PERIOD, period);
                }
                Some(Period::Count(period)) => {
                    self.value_type(writer, field::PERIOD_TYPE, &event.name, &event.unit);
                    writer.varint_field(field::PERIOD, period);
                }
                Some(Period::Weighted) | None => {}
            }
        }
        for loss in super::losses(self.profile) {
            let comment = self.string(&loss);
            writer.varint_field(field::COMMENT, comment);
        }
        // The first number of a heap profile is the one that was asked for.
        let asked = events
            .first()
            .filter(|event| recording.measure(**event).is_some());
        let asked = asked.and_then(|event| types.iter().find(|of| of.event == *event));
        if let Some(default) = asked.or_else(|| types.first()) {
            let name = self.string(&default.name);
            writer.varint_field(field::DEFAULT_SAMPLE_TYPE, name);
        }
    }

    /// Writes a sample, after everything that it refers to first.
    fn sample(
        &mut self,
        types: &[SampleType],
        owner: Owner,
        stack: StackId,
        counts: &[(EventId, u64)],
        writer: &mut Writer,
    ) {
        let profile = self.profile;
        let locations: Vec<u64> = profile
            .stacks
            .frames(stack)
            .map(|frame| self.location(frame, writer))
            .collect();
        let pid = owner.pid(profile);
        let (process, name) = match self.labels.get(&owner) {
            Some(labels) => *labels,
            None => {
                let process = self.string(&process_name(profile, pid));
                let name = self.string(&owner_name(profile, owner));
                self.labels.insert(owner, (process, name));
                (process, name)
            }
        };
        let named = match owner {
            Owner::Thread(_) => "thread",
            Owner::Heap(_) => "heap",
        };
        let texts = [("process", process), (named, name)].map(|(key, text)| (self.string(key), text));
        let mut numbers = vec![(self.string("pid"), pid)];
        if let Owner::Thread(thread) = owner {
            numbers.push((self.string("tid"), thread.tid));
        }
        writer.nested(field::SAMPLE, |sample| {
            sample.packed_field(1, locations.iter().copied());
            let value = |sample_type: &SampleType| {
                let mut counts = counts.iter();
                let count = counts.find(|(event, _)| *event == sample_type.event);
                count.map_or(0, |(_, count)| count.saturating_mul(sample_type.factor))
            };
            sample.packed_field(2, types.iter().map(value));
            for (key, text) in texts {
                sample.nested(3, |label| {
                    label.varint_field(1, key);
                    label.varint_field(2, text);
                });
            }
            for (key, number) in numbers {
                sample.nested(3, |label| {
                    label.varint_field(1, key);
                    label.varint_field(3, number.into());
                });
            }
        });
    }

    fn location(&mut self, frame: FrameId, writer: &mut Writer) -> u64 {
        if let Some(id) = self.locations.get(&frame) {
            return *id;
        }
        let mapping = self.mapping(frame, writer);
        let profile = self.profile;
        let lines: Vec<(u64, u64)> = profile
            .lines(frame)
            .iter()
            .map(|line| {
                let function = self.function(&line.name, line.system_name, line.file, writer);
                (function, line.line.unwrap_or(0).into())
            })
            .collect();
        let id = self.locations.len() as u64 + 1;
        self.locations.insert(frame, id);
        writer.nested(field::LOCATION, |location| {
            location.varint_field(1, id);
            if let Some(mapping) = mapping {
                location.varint_field(2, mapping);
            }
            for (function, number) in &lines {
                location.nested(4, |line| {
                    line.varint_field(1, *function);
                    line.varint_field(2, *number);
                });
            }
        });
        id
    }

    fn mapping(&mut self, frame: FrameId, writer: &mut Writer) -> Option<u64> {
        let (place, module) = self.profile.module_of(frame)?;
        if let Some(id) = self.mappings.get(&place) {
            return Some(*id);
        }
        let id = self.mappings.len() as u64 + 1;
        self.mappings.insert(place, id);
        let path = self.string(self.profile.path(module));
        let build_id = self.string(&module.build_id_digits());
        writer.nested(field::MAPPING, |mapping| {
            mapping.varint_field(1, id);
            mapping.varint_field(2, module.start);
            mapping.varint_field(3, module.end);
            mapping.varint_field(4, module.offset);
            mapping.varint_field(5, path);
            mapping.varint_field(6, build_id);
            // Names are as good as they get: pprof need not look for more.
            mapping.varint_field(7, 1);
        });
        Some(id)
    }

    fn function(&mut self, name: &str, system_name: &str, file: &str, writer: &mut Writer) -> u64 {
        let key = (self.string(name), self.string(system_name), self.string(file));
        if let Some(id) = self.functions.get(&key) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(key, id);
        writer.nested(field::FUNCTION, |function| {
            function.varint_field(1, id);
            function.varint_field(2, key.0);
            function.varint_field(3, key.1);
            function.varint_field(4, key.2);
        });
        id
    }
}

/// Returns the values of samples: their number, as upstream has it, and the same in the unit of the counter if that is known. With several events, a
/// number for each. They are in the order of the trace.
fn sample_types(recording: &Recording, chosen: &[EventId]) -> Vec<SampleType> {
    let all = (0..).map(EventId).zip(&recording.profile.events);
    let events: Vec<(EventId, &Event)> = all.filter(|(id, _)| chosen.contains(id)).collect();
    let mut types = Vec::new();
    for &(id, event) in &events {
        let is_weighted = event.period == Some(Period::Weighted);
        types.push(SampleType {
            name: match events.len() {
                1 if !is_weighted => "samples".to_owned(),
                _ => event.name.clone(),
            },
            unit: match is_weighted {
                true => event.unit.clone(),
                false => "count".into(),
            },
            event: id,
            factor: 1,
        });
        let (name, unit, factor) = match event.period {
            Some(Period::Time(period)) if events.len() == 1 => ("cpu", "nanoseconds".into(), period),
            Some(Period::Count(period)) if events.len() == 1 => (&*event.name, event.unit.clone(), period),
            _ => continue,
        };
        types.push(SampleType {
            name: name.to_owned(),
            unit,
            event: id,
            factor,
        });
    }
    types
}
