//! Producers, consumers and their service, upstream's or ours, over real sockets. Each client logs the messages to it.

use std::collections::BTreeMap;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_client::producer::{
    DataSourceInstanceId, FlushRequestId, ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions,
};
use ferretto_ipc::Address;
use ferretto_ipc::client::{CallId, More};
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::observable_events::DataSourceInstanceState;
use ferretto_proto::messages::trace_config::{BufferConfig, BuiltinDataSource, DataSource};
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, TracePacket, TraceStats,
    TracingServiceState,
};
use ferretto_wire::{Field, Reader};
use rustix::event::{PollFd, PollFlags};

use crate::support::{PATIENCE, Program, Programs, Side, System};

/// Waits for events of a client's socket.
pub(crate) fn await_readable(fd: &impl std::os::fd::AsFd, interest: Interest) {
    let flags = match interest {
        Interest::None => PollFlags::empty(),
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
        Interest::Both => PollFlags::IN | PollFlags::OUT,
    };
    let patience = PATIENCE.try_into().unwrap();
    let ready = rustix::event::poll(&mut [PollFd::new(fd, flags)], Some(&patience)).unwrap();
    assert!(ready > 0, "nothing happens");
}

pub(crate) struct Producer {
    pub(crate) endpoint: ProducerEndpoint,
    /// The messages so far.
    pub(crate) log: Vec<String>,
    /// The data sources that the messages are about.
    pub(crate) meant: Vec<String>,
    pub(crate) instances: Vec<DataSourceInstanceId>,
    /// The config of each instance.
    pub(crate) configs: Vec<DataSourceConfig>,
    pub(crate) flushes: Vec<FlushRequestId>,
    pub(crate) target: u32,
}

impl Producer {
    pub(crate) fn connect(address: &Address, name: &str) -> Producer {
        let options = ProducerOptions {
            name: name.into(),
            ..Default::default()
        };
        let mut producer = Producer {
            endpoint: ProducerEndpoint::connect(address, options).unwrap(),
            log: Vec::new(),
            meant: Vec::new(),
            instances: Vec::new(),
            configs: Vec::new(),
            flushes: Vec::new(),
            target: 0,
        };
        producer.settle();
        producer
    }

    /// Returns the data source of an instance, and its number among this producer's instances.
    pub(crate) fn name_of(&self, instance: DataSourceInstanceId) -> String {
        let Some(at) = self.instances.iter().position(|known| *known == instance) else {
            return "one that was never set up".into();
        };
        let name = self.configs[at].name.as_deref().unwrap_or_default();
        format!("{name} {at}")
    }

    /// Waits until the service has handled everything and has sent all consequences.
    pub(crate) fn settle(&mut self) {
        let sync = self.endpoint.sync().unwrap();
        let mut synced = false;
        while !synced {
            self.endpoint.flush();
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    ProducerEvent::Synced(call) => synced |= call == sync,
                    ProducerEvent::Command(command) => self.command(command),
                    ProducerEvent::Connected(_) | ProducerEvent::Committed(_) => {}
                    ProducerEvent::RequestFailed { method, .. } => {
                        self.log.push(format!("{method:?} failed"))
                    }
                    ProducerEvent::Disconnected(why) => panic!("disconnected: {why}"),
                }
            }
            if !synced {
                await_readable(&self.endpoint, self.endpoint.interest());
                self.endpoint.on_readable();
            }
        }
    }

    /// Waits for a message that begins with this.
    pub(crate) fn until_told(&mut self, what: &str) {
        while !self.log.iter().any(|told| told.starts_with(what)) {
            self.settle();
        }
    }

    pub(crate) fn command(&mut self, command: ProducerCommand) {
        let named = |instances: &[DataSourceInstanceId]| {
            let names: Vec<String> = instances.iter().map(|id| self.name_of(*id)).collect();
            names.join(" and ")
        };
        let meant = match &command {
            ProducerCommand::StartDataSource(start) => named(&[start.instance]),
            ProducerCommand::StopDataSource(instance) => named(&[*instance]),
            ProducerCommand::Flush(flush) => named(&flush.instances),
            ProducerCommand::ClearIncrementalState(instances) => named(instances),
            ProducerCommand::SetupDataSource(setup) => {
                let config = &setup.config;
                let name = config.name.as_deref().unwrap_or_default();
                format!("{name} for buffer {:?}", config.target_buffer.unwrap_or_default())
            }
            ProducerCommand::SetupTracing(_) => String::new(),
        };
        self.meant.push(meant);
        self.log.push(match command {
            ProducerCommand::SetupTracing(_) => "memory".into(),
            ProducerCommand::SetupDataSource(setup) => {
                self.target = setup.config.target_buffer.unwrap_or_default();
                self.instances.push(setup.instance);
                self.configs.push(*setup.config);
                "set up".into()
            }
            ProducerCommand::StartDataSource(_) => "start".into(),
            ProducerCommand::StopDataSource(_) => "stop".into(),
            ProducerCommand::Flush(flush) => {
                self.flushes.push(flush.id);
                format!("flush {} because of {:#x}", flush.instances.len(), flush.flags)
            }
            ProducerCommand::ClearIncrementalState(instances) => format!("clear {}", instances.len()),
        });
    }

    pub(crate) fn register(&mut self, descriptor: DataSourceDescriptor) {
        self.endpoint.register_data_source(descriptor).unwrap();
        self.settle();
    }
}

pub(crate) struct Consumer {
    pub(crate) endpoint: ConsumerEndpoint,
    /// The messages that are no answers.
    pub(crate) log: Vec<String>,
    answers: BTreeMap<u64, Result<ConsumerReply, String>>,
    calls: Vec<CallId>,
    read: Vec<Vec<u8>>,
}

impl Consumer {
    pub(crate) fn connect(address: &Address) -> Consumer {
        Consumer {
            endpoint: ConsumerEndpoint::connect(address).unwrap(),
            log: Vec::new(),
            answers: BTreeMap::new(),
            calls: Vec::new(),
            read: Vec::new(),
        }
    }

    pub(crate) fn events(&mut self) {
        self.endpoint.flush();
        while let Some(event) = self.endpoint.next_event() {
            let (request, reply) = match event {
                ConsumerEvent::Connected => continue,
                ConsumerEvent::Disconnected(why) => panic!("disconnected: {why}"),
                ConsumerEvent::Reply { request, reply, .. } => (request, reply),
            };
            match reply {
                Ok(ConsumerReply::TracingDisabled { error }) => {
                    // Each service has its own words for the reason.
                    let how = if error.is_some() {
                        "disabled: refused"
                    } else {
                        "disabled"
                    };
                    self.log.push(how.into());
                }
                Ok(ConsumerReply::Observed(events)) => {
                    for change in &events.instance_state_changes {
                        let started =
                            change.state == Some(DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED);
                        let name = change.data_source_name.as_deref().unwrap_or_default();
                        let what = if started { "started" } else { "stopped" };
                        self.log.push(format!("{name} {what}"));
                    }
                    if events.all_data_sources_started == Some(true) {
                        self.log.push("all started".into());
                    }
                    if let Some(hit) = events.clone_trigger_hit.as_option() {
                        let name = hit.trigger_name.as_deref().unwrap_or_default();
                        let producer = hit.producer_name.as_deref().unwrap_or_default();
                        let delay = hit.trigger_delay_ms.unwrap_or_default();
                        self.log.push(format!(
                            "a snapshot is due: {name} of {producer}, after {delay} ms"
                        ));
                    }
                }
                Ok(ConsumerReply::ObservationEnded) => self.log.push("no more is told".into()),
                Ok(ConsumerReply::TraceData { packets, more }) => {
                    self.read.extend(packets.iter().map(<[u8]>::to_vec));
                    if more == More::Last {
                        self.calls.push(request);
                        let position = self.calls.len() as u64 - 1;
                        self.answers.insert(position, Ok(ConsumerReply::Done));
                    }
                }
                reply => {
                    self.calls.push(request);
                    let position = self.calls.len() as u64 - 1;
                    self.answers
                        .insert(position, reply.map_err(|error| error.to_string()));
                }
            }
        }
    }

    pub(crate) fn answer(&mut self, call: CallId) -> Result<ConsumerReply, String> {
        loop {
            if let Some(answer) = self.answered(call) {
                return answer;
            }
            await_readable(&self.endpoint, self.endpoint.interest());
            self.endpoint.on_readable();
        }
    }

    /// Returns the answer, if it has arrived.
    pub(crate) fn answered(&mut self, call: CallId) -> Option<Result<ConsumerReply, String>> {
        self.events();
        let position = self.calls.iter().position(|answered| *answered == call)?;
        self.answers.remove(&(position as u64))
    }

    pub(crate) fn state(&mut self) -> Box<TracingServiceState> {
        let call = self.endpoint.query_service_state(StateScope::Everything).unwrap();
        match self.answer(call) {
            Ok(ConsumerReply::ServiceState { state, .. }) => state,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn until_told(&mut self, what: &str) {
        while !self.log.iter().any(|told| told == what) {
            self.events();
            if !self.log.iter().any(|told| told == what) {
                await_readable(&self.endpoint, self.endpoint.interest());
                self.endpoint.on_readable();
            }
        }
    }

    pub(crate) fn stats(&mut self) -> Box<TraceStats> {
        let call = self.endpoint.trace_stats().unwrap();
        match self.answer(call) {
            Ok(ConsumerReply::TraceStats(stats)) => stats,
            other => panic!("{other:?}"),
        }
    }

    /// Reads everything that is there, without the packets that only our service writes.
    pub(crate) fn read(&mut self) -> Vec<Vec<u8>> {
        let call = self.endpoint.read_buffers().unwrap();
        self.answer(call).unwrap();
        self.read.retain(|packet| !is_ours_alone(packet));
        std::mem::take(&mut self.read)
    }

    pub(crate) fn enable(&mut self, config: &TraceConfig) {
        self.endpoint
            .enable_tracing(&config.encode_to_vec(), None)
            .unwrap();
        // A refusal comes some time after the decision, but before the answer to the second question.
        self.state();
        self.state();
    }
}

/// A service, with the addresses of its sockets.
pub(crate) struct Service<'a> {
    _system: System<'a>,
    pub(crate) side: Side,
    pub(crate) producers: Address,
    consumers: Address,
}

impl<'a> Service<'a> {
    pub(crate) fn start(programs: &'a Programs, side: Side) -> Service<'a> {
        let mut system = System::new(programs);
        system.start(side, Program::Traced);
        Service {
            producers: Address::Unix(system.producer_socket()),
            consumers: Address::Unix(system.consumer_socket()),
            _system: system,
            side,
        }
    }

    pub(crate) fn producer(&self, name: &str) -> Producer {
        Producer::connect(&self.producers, name)
    }

    pub(crate) fn consumer(&self) -> Consumer {
        Consumer::connect(&self.consumers)
    }

    /// Waits until there are exactly this many sessions. A test must call it after it drops a consumer: the connection lasts until every process has
    /// closed it, and processes that other tests are starting hold it open until their `exec`.
    pub(crate) fn await_sessions(&self, wanted: i32) {
        let mut asks = self.consumer();
        let until = std::time::Instant::now() + PATIENCE;
        while asks.state().num_sessions != Some(wanted) {
            assert!(std::time::Instant::now() < until, "not {wanted} sessions");
        }
    }

    /// Waits until all producers and sessions are gone.
    pub(crate) fn await_quiet(&self) {
        let mut asks = self.consumer();
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            let state = asks.state();
            if state.producers.is_empty() && state.num_sessions == Some(0) {
                return;
            }
            assert!(std::time::Instant::now() < until, "{state:?}");
        }
    }
}

/// A period that does not end during a story. (A period ends whenever the machine has been up for a multiple of it.)
pub(crate) const NO_PERIOD_MS: u32 = u32::MAX;

/// The service's own data source in every story here. Sync markers and statistics come whenever the clock shows a multiple of the interval, by
/// default ten seconds. With the default they would come between two steps on one side only.
pub(crate) fn steady() -> BuiltinDataSource {
    BuiltinDataSource {
        snapshot_interval_ms: Some(NO_PERIOD_MS),
        ..Default::default()
    }
}

pub(crate) fn config(name: &str) -> TraceConfig {
    TraceConfig {
        builtin_data_sources: steady().into(),
        buffers: vec![BufferConfig {
            size_kb: Some(64),
            ..Default::default()
        }],
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some(name.into()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// The field of service events in `TracePacket`.
const SERVICE_EVENT: u32 = 69;

/// Whether only our service writes such a packet: it names data sources that a trace lacks, or says that the service was told to end. Upstream also
/// names data sources that are slow to start, but only after 20 s, and no story takes that long.
pub(crate) fn is_ours_alone(packet: &[u8]) -> bool {
    const SLOW_STARTING_DATA_SOURCES: u32 = 7;
    const DATA_SOURCES_GONE: u32 = 9901;
    const DATA_SOURCES_NOT_OFFERED: u32 = 9902;
    const SERVICE_ENDED: u32 = 9903;
    let is_event = |field: &Field<'_>| field.number == SERVICE_EVENT;
    let event = Reader::new(packet).flatten().find(is_event);
    let kind = event
        .and_then(|event| event.value.as_bytes())
        .and_then(|event| Reader::new(event).flatten().next());
    kind.is_some_and(|kind| {
        matches!(
            kind.number,
            SLOW_STARTING_DATA_SOURCES | DATA_SOURCES_GONE | DATA_SOURCES_NOT_OFFERED | SERVICE_ENDED
        )
    })
}

/// Describes a packet by its kind and its other fields.
pub(crate) fn skeleton(packet: &[u8]) -> String {
    /// Since v59 upstream says with this field that the service's timestamps are boot time.
    const TIMESTAMP_CLOCK_ID: u32 = 58;
    let fields: Vec<String> = Reader::new(packet)
        .flatten()
        .filter(|field| field.number != TIMESTAMP_CLOCK_ID)
        .map(|field| match (field.number, field.value.as_bytes()) {
            (SERVICE_EVENT, Some(event)) => {
                let kind = Reader::new(event).flatten().next().map(|field| field.number);
                format!("69 ({})", kind.unwrap_or_default())
            }
            (number, _) => number.to_string(),
        })
        .collect();
    let sequence = match TracePacket::decode_from_slice(packet)
        .unwrap()
        .optional_trusted_packet_sequence_id
    {
        Some(TrustedPacketSequenceId(id)) => id,
        None => 0,
    };
    let mut fields = fields;
    fields.sort();
    format!("{} of sequence {sequence}", fields.join(" "))
}

/// Removes the clock snapshots after the first one of a session. A snapshot is taken whenever the clocks seem to have drifted, which also happens
/// when the service has to wait for a processor between reading two clocks.
pub(crate) fn without_later_clocks(told: Vec<String>) -> Vec<String> {
    const CLOCKS: &str = "10 3 6 of sequence 1";
    let first = told.iter().position(|line| line == CLOCKS);
    let lines = told.into_iter().enumerate();
    lines
        .filter(|(at, line)| line != CLOCKS || Some(*at) == first)
        .map(|(_, line)| line)
        .collect()
}

/// A data source that acknowledges nothing.
pub(crate) fn plain(name: &str) -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(name.into()),
        ..Default::default()
    }
}

/// Runs a story with both services and compares its lines, except those that begin like one of `on_purpose`.
pub(crate) fn alike(story: impl Fn(&Service<'_>) -> Vec<String> + Sync, on_purpose: &[&str]) {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let run = |side| story(&Service::start(&programs, side));
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    let differs = |(upstream, ours): &(&String, &String)| {
        upstream != ours && !on_purpose.iter().any(|start| upstream.starts_with(start))
    };
    let differences: Vec<String> = upstream
        .iter()
        .zip(&ours)
        .filter(differs)
        .map(|(upstream, ours)| format!("upstream: {upstream}\nours:     {ours}"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(upstream.len(), ours.len(), "{upstream:#?}\n{ours:#?}");
}
