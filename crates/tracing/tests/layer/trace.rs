//! Traces as their readers see them: slices, instants, counters and tracks, with all interned data resolved.
//!
//! Slices are matched as Perfetto's trace processor does it: in the order of times, on each track an end ends the innermost slice. Where the trace
//! processor would have to guess or leave something out, these functions fail.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto_proto::messages::track_event::{CorrelationIdField, CounterValueField, NameField, Type};
use ferretto_proto::messages::{self, Message, debug_annotation, trace_packet};
use ferretto_proto::write::TracePacket;
use ferretto_wire::Reader;

/// A session of the service in this process.
pub(crate) struct Recording {
    session: Session,
    _alone: MutexGuard<'static, ()>,
}

impl Recording {
    /// A recording with the default config.
    pub(crate) fn start() -> Self {
        Self::of(DataSource::track_event())
    }

    pub(crate) fn of(source: DataSource) -> Self {
        Self::begun(alone(), source)
    }

    /// A recording in a test that has its turn already.
    pub(crate) fn begun(alone: MutexGuard<'static, ()>, source: DataSource) -> Self {
        Self {
            session: session(source),
            _alone: alone,
        }
    }

    /// A further recording at the same time.
    pub(crate) fn also(&self, source: DataSource) -> Session {
        session(source)
    }

    pub(crate) fn stop(self) -> Trace {
        stop(&self.session)
    }

    pub(crate) fn stop_to_bytes(self) -> Vec<u8> {
        self.session.stop_blocking().unwrap();
        self.session.read_to_end().unwrap()
    }

    /// Stops it, but lets no other test begin.
    pub(crate) fn stop_early(&self) {
        self.session.stop_blocking().unwrap();
    }
}

/// Sessions record all events of the process, so tests take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static READY: Once = Once::new();
    READY.call_once(|| ferretto::initialize(ferretto::Options::in_process()));
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn session(source: DataSource) -> Session {
    let session = Session::in_process();
    let config = TraceConfig::new().buffer_kb(16 * 1024).data_source(source);
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    session
}

/// Stops a session when nothing is open.
pub(crate) fn stop(session: &Session) -> Trace {
    session.stop_blocking().unwrap();
    Trace::read(&session.read_to_end().unwrap(), AtTheEnd::NothingIsOpen)
}

/// Stops a session at any time.
pub(crate) fn stop_amid(session: &Session) -> Trace {
    session.stop_blocking().unwrap();
    Trace::read(&session.read_to_end().unwrap(), AtTheEnd::SlicesAreOpen)
}

/// Whether slices may have no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtTheEnd {
    NothingIsOpen,
    SlicesAreOpen,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) track: u64,
    pub(crate) name: String,
    pub(crate) category: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) depth: usize,
    /// The index of the enclosing slice.
    pub(crate) parent: Option<usize>,
    pub(crate) arguments: BTreeMap<String, Argument>,
    /// The number of arguments, whatever their names.
    pub(crate) arguments_told: usize,
    pub(crate) correlation: Option<u64>,
    pub(crate) flows_in: Vec<u64>,
    pub(crate) line: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Instant {
    pub(crate) track: u64,
    pub(crate) name: String,
    pub(crate) category: String,
    pub(crate) time: u64,
    pub(crate) arguments: BTreeMap<String, Argument>,
    pub(crate) log: Option<(String, messages::log_message::Priority)>,
    pub(crate) flows_out: Vec<u64>,
    pub(crate) file: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Double(f64),
}

#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Slices in the order of their beginnings.
    pub(crate) slices: Vec<Slice>,
    pub(crate) instants: Vec<Instant>,
    pub(crate) counters: Vec<(String, Value)>,
    pub(crate) tracks: BTreeMap<u64, messages::TrackDescriptor>,
}

/// The state of a sequence so far.
#[derive(Default)]
struct Sequence {
    last: u64,
    track: u64,
    names: BTreeMap<u64, String>,
    categories: BTreeMap<u64, String>,
    annotations: BTreeMap<u64, String>,
    bodies: BTreeMap<u64, String>,
    places: BTreeMap<u64, (String, u32)>,
}

impl Sequence {
    fn learn(&mut self, packet: &messages::TracePacket) {
        if packet.sequence_flags.unwrap_or(0) & 1 != 0 {
            *self = Self::default();
        }
        if let Some(defaults) = packet.trace_packet_defaults.as_option() {
            self.track = defaults.track_event_defaults.track_uuid.unwrap();
        }
        if let Some(trace_packet::Data::ClockSnapshot(snapshot)) = &packet.data {
            for clock in &snapshot.clocks {
                if clock.clock_id == Some(64) {
                    self.last = clock.timestamp.unwrap();
                }
            }
        }
        let Some(interned) = packet.interned_data.as_option() else {
            return;
        };
        for entry in &interned.event_names {
            self.names.insert(entry.iid.unwrap(), entry.name.clone().unwrap());
        }
        for entry in &interned.event_categories {
            self.categories
                .insert(entry.iid.unwrap(), entry.name.clone().unwrap());
        }
        for entry in &interned.debug_annotation_names {
            self.annotations
                .insert(entry.iid.unwrap(), entry.name.clone().unwrap());
        }
        for entry in &interned.log_message_body {
            self.bodies
                .insert(entry.iid.unwrap(), entry.body.clone().unwrap());
        }
        for entry in &interned.source_locations {
            let place = (entry.file_name.clone().unwrap(), entry.line_number.unwrap());
            self.places.insert(entry.iid.unwrap(), place);
        }
    }

    fn time(&mut self, packet: &messages::TracePacket) -> u64 {
        match (packet.timestamp_clock_id, packet.timestamp) {
            (None, since_last) => {
                self.last += since_last.unwrap_or(0);
                self.last
            }
            (Some(_), time) => time.unwrap(),
        }
    }

    fn arguments(&self, event: &messages::TrackEvent) -> BTreeMap<String, Argument> {
        let arguments = event.debug_annotations.iter().map(|annotation| {
            let name = match annotation.name_field.as_ref().unwrap() {
                debug_annotation::NameField::NameIid(id) => self.annotations[id].clone(),
                debug_annotation::NameField::Name(name) => name.clone(),
            };
            let value = match annotation.value.as_ref().unwrap() {
                debug_annotation::Value::BoolValue(value) => Argument::Bool(*value),
                debug_annotation::Value::IntValue(value) => Argument::Int(*value),
                debug_annotation::Value::UintValue(value) => Argument::Uint(*value),
                debug_annotation::Value::DoubleValue(value) => Argument::Double(*value),
                debug_annotation::Value::StringValue(value) => Argument::Text(value.clone()),
                other => panic!("{other:?}"),
            };
            (name, value)
        });
        arguments.collect()
    }

    fn name(&self, event: &messages::TrackEvent) -> String {
        match &event.name_field {
            Some(NameField::Name(name)) => name.clone(),
            Some(NameField::NameIid(id)) => self.names[id].clone(),
            None => String::new(),
        }
    }

    fn place(&self, event: &messages::TrackEvent) -> Option<(String, u32)> {
        use messages::track_event::SourceLocationField;
        match event.source_location_field.as_ref()? {
            SourceLocationField::SourceLocationIid(id) => Some(self.places[id].clone()),
            SourceLocationField::SourceLocation(place) => {
                Some((place.file_name.clone().unwrap(), place.line_number.unwrap()))
            }
        }
    }
}

fn varint(message: &[u8], number: u32) -> Option<u64> {
    let mut fields = Reader::new(message).map(|field| field.unwrap());
    fields.find(|field| field.number == number)?.value.as_varint()
}

/// An event on a track.
enum Happening {
    Begin(Slice),
    End(BTreeMap<String, Argument>, usize),
}

impl Trace {
    fn read(bytes: &[u8], at_the_end: AtTheEnd) -> Self {
        let mut trace = Trace::default();
        let mut sequences: BTreeMap<Option<u64>, Sequence> = BTreeMap::new();
        let mut happenings = Vec::new();
        for field in Reader::new(bytes) {
            let encoded = field.unwrap().value.as_bytes().unwrap();
            let packet = &messages::TracePacket::decode_from_slice(encoded).unwrap();
            let id = varint(encoded, TracePacket::TRUSTED_PACKET_SEQUENCE_ID);
            let sequence = sequences.entry(id).or_default();
            sequence.learn(packet);
            match &packet.data {
                Some(trace_packet::Data::TrackDescriptor(track)) => {
                    sequence.time(packet);
                    trace.tracks.insert(track.uuid.unwrap(), (**track).clone());
                }
                Some(trace_packet::Data::TrackEvent(event)) => {
                    let time = sequence.time(packet);
                    trace.take(event, time, sequence, &mut happenings);
                }
                _ => {}
            }
        }
        trace.match_slices(happenings, at_the_end);
        trace.instants.sort_by_key(|instant| instant.time);
        trace
    }

    fn take(
        &mut self,
        event: &messages::TrackEvent,
        time: u64,
        sequence: &Sequence,
        happenings: &mut Vec<(u64, u64, Happening)>,
    ) {
        let track = event.track_uuid.unwrap_or(sequence.track);
        let categories: Vec<_> = event
            .category_iids
            .iter()
            .map(|id| &*sequence.categories[id])
            .collect();
        let category = categories.join(",");
        match event.r#type.unwrap() {
            Type::TYPE_SLICE_BEGIN => {
                let slice = Slice {
                    track,
                    name: sequence.name(event),
                    category,
                    begin: time,
                    arguments: sequence.arguments(event),
                    arguments_told: event.debug_annotations.len(),
                    correlation: match event.correlation_id_field {
                        Some(CorrelationIdField::CorrelationId(id)) => Some(id),
                        _ => None,
                    },
                    flows_in: event.terminating_flow_ids.clone(),
                    line: sequence.place(event).map(|(_, line)| line),
                    ..Slice::default()
                };
                happenings.push((time, track, Happening::Begin(slice)));
            }
            Type::TYPE_SLICE_END => {
                let end = Happening::End(sequence.arguments(event), event.debug_annotations.len());
                happenings.push((time, track, end));
            }
            Type::TYPE_INSTANT => self.instants.push(Instant {
                track,
                name: sequence.name(event),
                category,
                time,
                arguments: sequence.arguments(event),
                log: event
                    .log_message
                    .as_option()
                    .map(|log| (sequence.bodies[&log.body_iid.unwrap()].clone(), log.prio.unwrap())),
                flows_out: event.flow_ids.clone(),
                file: sequence.place(event).map(|(file, _)| file),
            }),
            Type::TYPE_COUNTER => {
                let name = static_or_dynamic_name(&self.tracks[&track]);
                let value = match event.counter_value_field.as_ref().unwrap() {
                    CounterValueField::CounterValue(value) => Value::Int(*value),
                    CounterValueField::DoubleCounterValue(value) => Value::Double(*value),
                };
                self.counters.push((name, value));
            }
            other => panic!("{other:?}"),
        }
    }

    fn match_slices(&mut self, mut happenings: Vec<(u64, u64, Happening)>, at_the_end: AtTheEnd) {
        // The sort is stable: on one sequence packets are in order.
        happenings.sort_by_key(|(time, ..)| *time);
        let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (time, track, happening) in happenings {
            let open = open.entry(track).or_default();
            match happening {
                Happening::Begin(slice) => {
                    let (depth, parent) = (open.len(), open.last().copied());
                    open.push(self.slices.len());
                    self.slices.push(Slice {
                        depth,
                        parent,
                        ..slice
                    });
                }
                Happening::End(arguments, told) => {
                    let slice = open
                        .pop()
                        .unwrap_or_else(|| panic!("an end without a beginning on track {track}"));
                    self.slices[slice].end = time;
                    self.slices[slice].arguments_told += told;
                    self.slices[slice].arguments.extend(arguments);
                }
            }
        }
        for (track, open) in open {
            if at_the_end == AtTheEnd::SlicesAreOpen {
                break;
            }
            let open: Vec<_> = open.iter().map(|&slice| &self.slices[slice].name).collect();
            assert!(open.is_empty(), "{open:?} did not end on track {track}");
        }
    }

    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Slice> {
        self.slices.iter().filter(move |slice| slice.name == name)
    }

    /// The only slice of this name.
    pub(crate) fn slice<'a>(&'a self, name: &'a str) -> &'a Slice {
        let slices: Vec<_> = self.named(name).collect();
        assert_eq!(slices.len(), 1, "{slices:?}");
        slices[0]
    }

    pub(crate) fn instant(&self, name: &str) -> &Instant {
        let instants: Vec<_> = self
            .instants
            .iter()
            .filter(|instant| instant.name == name)
            .collect();
        assert_eq!(instants.len(), 1, "{instants:?} of {:?}", self.instants);
        instants[0]
    }

    pub(crate) fn is_on_thread(&self, slice: &Slice) -> bool {
        self.tracks[&slice.track].thread.is_set()
    }

    /// Slices of this name on threads, and lives.
    pub(crate) fn runs_and_lives<'a>(&'a self, name: &'a str) -> (Vec<&'a Slice>, Vec<&'a Slice>) {
        self.named(name).partition(|slice| self.is_on_thread(slice))
    }

    pub(crate) fn track_name(&self, uuid: u64) -> String {
        static_or_dynamic_name(&self.tracks[&uuid])
    }

    pub(crate) fn parent_name(&self, slice: &Slice) -> Option<&str> {
        slice.parent.map(|parent| &*self.slices[parent].name)
    }
}

fn static_or_dynamic_name(track: &messages::TrackDescriptor) -> String {
    use messages::track_descriptor::StaticOrDynamicName;
    match track.static_or_dynamic_name.as_ref().unwrap() {
        StaticOrDynamicName::Name(name) | StaticOrDynamicName::StaticName(name) => name.clone(),
        other => panic!("{other:?}"),
    }
}
