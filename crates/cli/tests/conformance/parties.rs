//! Producers, consumers and the service that they talk to, upstream's or ours, over real sockets. Each client notes what it
//! is told.

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

/// A client that can be waited for.
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
    /// What it was told.
    pub(crate) log: Vec<String>,
    /// Which data sources that was about.
    pub(crate) meant: Vec<String>,
    pub(crate) instances: Vec<DataSourceInstanceId>,
    /// What each of them was set up with.
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

    /// The data source of an instance, and which of this producer's instances it is.
    pub(crate) fn name_of(&self, instance: DataSourceInstanceId) -> String {
        let Some(at) = self.instances.iter().position(|known| *known == instance) else {
            return "one that was never set up".into();
        };
        let name = self.configs[at].name.as_deref().unwrap_or_default();
        format!("{name} {at}")
    }

    /// Waits until the service has handled everything and said what follows.
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

    /// Waits until it is told something that begins like this.
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
    /// What it was told without asking at that moment.
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
                    // The words are each service's own.
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

    /// The answer, if it has come.
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

    /// Everything that can be read now, but for what only our service writes.
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
        // A refusal comes some time after it was decided upon, but before the answer to the second question.
        self.state();
        self.state();
    }
}

/// A service and the addresses of its sockets.
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

    /// Waits until there are no more sessions than this. Whoever drops a consumer has to: the connection lasts until every process has
    /// closed it, and those that other tests are about to start have it open until they are.
    pub(crate) fn await_sessions(&self, wanted: i32) {
        let mut asks = self.consumer();
        let until = std::time::Instant::now() + PATIENCE;
        while asks.state().num_sessions != Some(wanted) {
            assert!(std::time::Instant::now() < until, "not {wanted} sessions");
        }
    }

    /// Waits until everybody has left.
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

/// A period that does not end in a story: one ends whenever the machine has been up for a multiple of it.
pub(crate) const NO_PERIOD_MS: u32 = u32::MAX;

/// The service's own data source as in every story here. Sync markers and statistics come whenever the clock shows a multiple of the
/// interval, which is ten seconds unless something else is asked for: now and then between any two steps, on one side only.
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

/// Service events, in a `TracePacket`.
const SERVICE_EVENT: u32 = 69;

/// Whether only our service writes such a packet: it names data sources that a trace lacks, or says that the service was told to end.
/// Upstream names those that are slow to start as well, but after 20 s, and no story takes that long.
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

/// What kind of packet it is, and which fields it has besides.
pub(crate) fn skeleton(packet: &[u8]) -> String {
    /// That the service's timestamps are boot time upstream says since v59.
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

/// What is told of a session, but for the clock snapshots after its first: there is one for each time the clocks were seen to have
/// drifted, and so they have for a service that had to wait for a processor between reading one and the next.
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

/// Runs a story with both services and compares what it tells, line by line, but for lines that begin like these.
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
