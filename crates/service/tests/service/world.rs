//! A service with producers and consumers around it, without sockets, clocks or threads.

mod chunks;
mod disk;
mod packets;

use std::collections::BTreeMap;
use std::sync::Arc;

use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, TracePacket, TracingServiceState,
    observable_events, trace_config,
};
use ferretto_service::compression::Fit;
use ferretto_service::{
    CloneRequest, Cloned, ConfigInput, ConsumerId, Credentials, DataSourceInstanceId, FlushOutcome, Identity,
    Introduction, Now, Output, OutputFile, PriorityBoost, ProducerCommand, ProducerId, ReadCall, Scraping,
    Service, SessionId, SmbOrigin, StateScope,
};
use ferretto_smb::{PageSize, ProducerSmb, ServiceSmb, SharedMemory};

pub(crate) use disk::Disk;
pub(crate) use packets::{decoded, expanded, packet, packets_of, texts};

/// The test's view of a producer.
#[derive(Default)]
pub(crate) struct FakeProducer {
    pub(crate) commands: Vec<ProducerCommand>,
    smb: Option<Arc<ProducerSmb>>,
    next_chunk: BTreeMap<u16, u32>,
    pub(crate) disconnected: Option<String>,
    /// Whether it disconnected: then the service must not name it.
    gone: bool,
}

/// The messages to a consumer.
#[derive(Default)]
pub(crate) struct FakeConsumer {
    pub(crate) disabled: Vec<Option<String>>,
    /// The sessions whose end it has heard of.
    pub(crate) ended: Vec<SessionId>,
    pub(crate) flushes: Vec<(u64, FlushOutcome)>,
    pub(crate) all_started: usize,
    pub(crate) changes: Vec<(String, i32)>,
    pub(crate) snapshots_due: Vec<observable_events::CloneTriggerHit>,
    /// The outcomes of the clones that it asked for.
    pub(crate) clones: Vec<(SessionId, Result<Cloned, String>)>,
    /// Whether it disconnected: then the service must not name it.
    gone: bool,
}

pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) now: Now,
    pub(crate) producers: BTreeMap<ProducerId, FakeProducer>,
    pub(crate) consumers: BTreeMap<ConsumerId, FakeConsumer>,
    pub(crate) files: BTreeMap<SessionId, Vec<u8>>,
    pub(crate) closed_files: Vec<SessionId>,
    pub(crate) abandoned_files: Vec<SessionId>,
    pub(crate) syncs: usize,
    pub(crate) disk: Disk,
    /// The unfinished jobs of a slow disk.
    being_written: Vec<(SessionId, u64, Fit)>,
    being_closed: Vec<SessionId>,
    being_copied: Vec<SessionId>,
    pub(crate) log: Vec<String>,
    /// The priorities that the service's process was given, in their order.
    pub(crate) boosts: Vec<Option<PriorityBoost>>,
    /// Whether the process may raise its priority.
    pub(crate) may_boost: bool,
}

impl World {
    pub(crate) fn new() -> World {
        World::with_identity(Identity {
            uid: 42,
            version: "test".into(),
            machine_name: "testbed".into(),
            ..Default::default()
        })
    }

    pub(crate) fn with_identity(identity: Identity) -> World {
        let start = 1_000_000_000;
        World {
            service: Service::new(identity),
            now: Now {
                monotonic: start,
                boot: start,
                realtime: start,
                ..Default::default()
            },
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            files: BTreeMap::new(),
            closed_files: Vec::new(),
            abandoned_files: Vec::new(),
            syncs: 0,
            disk: Disk::Fast,
            being_written: Vec::new(),
            being_closed: Vec::new(),
            being_copied: Vec::new(),
            log: Vec::new(),
            boosts: Vec::new(),
            may_boost: true,
        }
    }

    /// A world with a producer `p`, which offers the data source `d`, and a consumer.
    pub(crate) fn offering() -> (World, ProducerId, ConsumerId) {
        let mut world = World::new();
        let producer = world.producer("p");
        world.offer(producer, "d");
        let consumer = world.consumer();
        (world, producer, consumer)
    }

    pub(crate) fn producer(&mut self, name: &str) -> ProducerId {
        self.producer_with(name, Scraping::Disabled)
    }

    pub(crate) fn producer_with(&mut self, name: &str, scraping: Scraping) -> ProducerId {
        self.producer_of(1000, name, scraping)
    }

    pub(crate) fn producer_of(&mut self, uid: u32, name: &str, scraping: Scraping) -> ProducerId {
        let who = Introduction {
            name: name.into(),
            scraping,
            ..Default::default()
        };
        self.introduce(uid, who)
    }

    pub(crate) fn introduce(&mut self, uid: u32, who: Introduction) -> ProducerId {
        let id = self
            .service
            .connect_producer(Credentials { uid, pid: Some(77) }, who)
            .expect("admitted");
        self.producers.insert(id, FakeProducer::default());
        id
    }

    pub(crate) fn register(&mut self, producer: ProducerId, descriptor: &DataSourceDescriptor) {
        self.service
            .register_data_source(producer, &descriptor.encode_to_vec(), &self.now);
        self.run();
    }

    /// Registers a data source that acknowledges nothing.
    pub(crate) fn offer(&mut self, producer: ProducerId, name: &str) {
        self.register(
            producer,
            &DataSourceDescriptor {
                name: Some(name.into()),
                ..Default::default()
            },
        );
    }

    /// Registers a data source that acknowledges stops only.
    pub(crate) fn offer_acknowledging_stops(&mut self, producer: ProducerId, name: &str) {
        self.register(
            producer,
            &DataSourceDescriptor {
                name: Some(name.into()),
                will_notify_on_stop: Some(true),
                ..Default::default()
            },
        );
    }

    pub(crate) fn consumer(&mut self) -> ConsumerId {
        self.consumer_of(1000)
    }

    pub(crate) fn consumer_of(&mut self, uid: u32) -> ConsumerId {
        let id = self.service.connect_consumer(uid);
        self.consumers.insert(id, FakeConsumer::default());
        id
    }

    pub(crate) fn try_enable(
        &mut self,
        consumer: ConsumerId,
        config: &TraceConfig,
    ) -> Result<SessionId, String> {
        let file = if config.write_into_file == Some(true) {
            OutputFile::Passed
        } else {
            OutputFile::None
        };
        let input = ConfigInput {
            config: config.clone(),
            bytes: config.encode_to_vec().into(),
        };
        let session = self.service.enable_tracing(consumer, input, &file, 7, &self.now);
        if let (Ok(session), OutputFile::Passed) = (&session, file) {
            self.files.insert(*session, Vec::new());
        }
        self.run();
        session
    }

    pub(crate) fn enable(&mut self, consumer: ConsumerId, config: &TraceConfig) -> SessionId {
        self.try_enable(consumer, config).expect("a good config")
    }

    /// Starts the consumer's session, whose config defers that.
    pub(crate) fn start(&mut self, consumer: ConsumerId) {
        self.service.start_deferred(consumer, &self.now);
        self.run();
    }

    /// Has the consumer ask for a flush without flags.
    pub(crate) fn flush(&mut self, consumer: ConsumerId, token: u64, timeout_ms: u32) {
        self.service.flush(consumer, token, timeout_ms, 0, &self.now);
        self.run();
    }

    /// Has the consumer stop its session.
    pub(crate) fn disable(&mut self, consumer: ConsumerId) {
        self.service.disable_tracing(consumer, &self.now);
        self.run();
    }

    /// Has the consumer free its session's buffers.
    pub(crate) fn free(&mut self, consumer: ConsumerId) {
        self.service.free_buffers(consumer, &self.now);
        self.run();
    }

    /// Has the consumer ask for a clone. Returns its id if there will be one once producers have flushed.
    pub(crate) fn try_clone(
        &mut self,
        consumer: ConsumerId,
        request: CloneRequest,
    ) -> Result<SessionId, String> {
        let clone = self.service.clone_session(consumer, request, !0, &self.now);
        self.run();
        clone
    }

    /// The outcome of the only clone that the consumer asked for, if there is one.
    pub(crate) fn cloned(&self, consumer: ConsumerId) -> Option<Result<Cloned, String>> {
        let clones = &self.consumers[&consumer].clones;
        assert!(clones.len() <= 1, "answered twice: {clones:?}");
        clones.first().map(|(_, result)| result.clone())
    }

    /// Disconnects the producer.
    pub(crate) fn lose_producer(&mut self, producer: ProducerId) {
        self.service.disconnect_producer(producer, &self.now);
        self.producers.get_mut(&producer).expect("known").gone = true;
        self.run();
    }

    /// Disconnects the consumer.
    pub(crate) fn lose_consumer(&mut self, consumer: ConsumerId) {
        self.service.disconnect_consumer(consumer, &self.now);
        self.consumers.get_mut(&consumer).expect("known").gone = true;
        self.run();
    }

    fn connected(&mut self, consumer: ConsumerId) -> &mut FakeConsumer {
        let consumer = self.consumers.get_mut(&consumer).expect("known");
        assert!(!consumer.gone, "an output names a consumer that went away");
        consumer
    }

    /// Carries out all outputs of the service.
    pub(crate) fn run(&mut self) {
        for outputs in 0.. {
            assert!(outputs < 100_000, "the service always wants more");
            let Some(output) = self.service.poll() else {
                return;
            };
            match output {
                Output::ToProducer(id, command) => self.command(id, command),
                Output::DisconnectProducer { producer, rule } => {
                    self.service.disconnect_producer(producer, &self.now);
                    let producer = self.producers.get_mut(&producer).expect("known");
                    assert!(!producer.gone, "an output names a producer that went away");
                    (producer.disconnected, producer.gone) = (Some(rule), true);
                }
                Output::TracingDisabled {
                    consumer,
                    session,
                    error,
                } => {
                    let consumer = self.connected(consumer);
                    consumer.ended.push(session);
                    consumer.disabled.push(error);
                }
                Output::FlushDone {
                    consumer,
                    token,
                    outcome,
                } => {
                    self.connected(consumer).flushes.push((token, outcome));
                }
                Output::Observed { consumer, events } => {
                    let consumer = self.connected(consumer);
                    consumer.all_started += usize::from(events.all_data_sources_started == Some(true));
                    consumer
                        .snapshots_due
                        .extend(events.clone_trigger_hit.as_option().cloned());
                    for change in &events.instance_state_changes {
                        let name = change.data_source_name.clone().unwrap_or_default();
                        consumer
                            .changes
                            .push((name, change.state.map_or(0, |state| state as i32)));
                    }
                }
                Output::FileDue(session) => self.write_file(session),
                Output::SyncFile(_) => self.syncs += 1,
                Output::CloseFile(session) => {
                    self.closed_files.push(session);
                    match self.disk {
                        Disk::Slow => self.being_closed.push(session),
                        Disk::Fast | Disk::Full => self.service.file_closed(session, Ok(()), &self.now),
                    }
                }
                Output::SetPriority { boost, on_behalf_of } => {
                    // A process that may not raise its priority may still go back to the usual one.
                    if self.may_boost || boost.is_none() {
                        self.boosts.push(boost);
                    } else {
                        self.service
                            .priority_not_set(boost, on_behalf_of, "not permitted", &self.now);
                    }
                }
                Output::SessionCloned {
                    consumer,
                    clone,
                    result,
                } => self.connected(consumer).clones.push((clone, result)),
                Output::CopyFile { from, to } => {
                    let copy = self.files[&from].clone();
                    self.files.insert(to, copy);
                    // Data that was handed over for the original before is written first.
                    let waits = self.being_written.iter().any(|(session, ..)| *session == from);
                    match self.disk {
                        Disk::Fast if waits => self.being_copied.push(to),
                        Disk::Fast => self.service.file_copied(to, Ok(()), &self.now),
                        Disk::Slow => self.being_copied.push(to),
                        Disk::Full => {
                            let error = "no space left on device".to_owned();
                            self.service.file_copied(to, Err(error), &self.now);
                        }
                    }
                }
                Output::AbandonFile(session) => self.abandoned_files.push(session),
                Output::Log(_, line) => self.log.push(line),
            }
        }
    }

    fn command(&mut self, id: ProducerId, command: ProducerCommand) {
        let producer = self.producers.get_mut(&id).expect("known");
        assert!(!producer.gone, "an output names a producer that went away");
        if let ProducerCommand::CreateSharedMemory { size, page_size } = command {
            let memory = Arc::new(SharedMemory::create(size).expect("memory"));
            let page_size = PageSize::new(page_size).expect("a page size");
            let smb = ServiceSmb::new(memory.clone(), page_size).expect("pages");
            producer.smb = Some(Arc::new(ProducerSmb::new(memory, page_size).expect("pages")));
            self.service.attach_shared_memory(id, smb, SmbOrigin::Service);
        }
        producer.commands.push(command);
    }

    /// Has the producer activate triggers. Triggers with a `skip_probability` of 0 are never skipped.
    pub(crate) fn activate(&mut self, producer: ProducerId, triggers: &[&str]) {
        self.activate_with(producer, triggers, 0);
    }

    /// The same, with these random bits.
    pub(crate) fn activate_with(&mut self, producer: ProducerId, triggers: &[&str], random: u64) {
        self.service
            .activate_triggers(producer, triggers, random, &self.now);
        self.run();
    }

    /// Lets time pass, from timer to timer.
    pub(crate) fn advance(&mut self, ms: u64) {
        let end = self.now.monotonic + ms * 1_000_000;
        while let Some(wait) = self.wait().filter(|wait| self.now.monotonic + wait <= end) {
            self.pass(wait);
            self.service.handle_timeout(&self.now);
            self.run();
        }
        self.pass(end - self.now.monotonic);
        self.service.handle_timeout(&self.now);
        self.run();
    }

    /// The time until the next deadline, in nanoseconds.
    fn wait(&self) -> Option<u64> {
        let left = |deadline: Option<u64>, now| deadline.map(|deadline: u64| deadline.saturating_sub(now));
        let monotonic = left(self.service.next_deadline(), self.now.monotonic);
        let boot = left(self.service.next_boot_deadline(), self.now.boot);
        [monotonic, boot].into_iter().flatten().min()
    }

    /// Has the machine sleep for this long: only boot time and the wall clock advance. Then due timers fire.
    pub(crate) fn suspend(&mut self, ms: u64) {
        self.now.boot += ms * 1_000_000;
        self.now.realtime += ms * 1_000_000;
        self.service.handle_timeout(&self.now);
        self.run();
    }

    /// Stops the daemon for this long: time passes, and no timer fires meanwhile.
    pub(crate) fn jump(&mut self, ms: u64) {
        self.pass(ms * 1_000_000);
        self.service.handle_timeout(&self.now);
        self.run();
    }

    /// Sets the wall clock.
    pub(crate) fn set_wall_clock(&mut self, ns: u64) {
        self.now.realtime = ns;
    }

    fn pass(&mut self, ns: u64) {
        self.now.monotonic += ns;
        self.now.boot += ns;
        self.now.realtime += ns;
    }

    /// Reads all packets that can be read now.
    pub(crate) fn read(&mut self, consumer: ConsumerId) -> Vec<TracePacket> {
        self.read_in_batches(consumer, usize::MAX)
    }

    pub(crate) fn read_in_batches(&mut self, consumer: ConsumerId, budget: usize) -> Vec<TracePacket> {
        decoded(&self.read_encoded(consumer, budget))
    }

    pub(crate) fn read_encoded(&mut self, consumer: ConsumerId, budget: usize) -> Vec<Vec<u8>> {
        self.read_while(consumer, budget, |_, _| {})
    }

    /// Reads all packets, in one request. After each batch but the last, `between` changes the world; it also gets the packets of this batch.
    pub(crate) fn read_while(
        &mut self,
        consumer: ConsumerId,
        budget: usize,
        mut between: impl FnMut(&mut World, &[Vec<u8>]),
    ) -> Vec<Vec<u8>> {
        let mut packets: Vec<Vec<u8>> = Vec::new();
        let mut call = ReadCall::default();
        loop {
            let Some(batch) = self.service.read_buffers(consumer, &mut call, budget, &self.now) else {
                return packets;
            };
            let before = packets.len();
            packets.extend(batch.packets().map(|packet| packet.flatten().copied().collect()));
            if !batch.has_more {
                return packets;
            }
            between(self, &packets[before..]);
        }
    }

    /// The state of the service in the answer to this consumer.
    pub(crate) fn state(&self, consumer: ConsumerId, scope: StateScope) -> TracingServiceState {
        let parts = self.service.query_state(consumer, scope, usize::MAX);
        TracingServiceState::decode_from_slice(&parts.concat()).expect("a state")
    }

    pub(crate) fn instances(&self, producer: ProducerId) -> Vec<(DataSourceInstanceId, DataSourceConfig)> {
        let set_up = self.producers[&producer]
            .commands
            .iter()
            .filter_map(|command| match command {
                ProducerCommand::SetupDataSource { instance, config } => Some((
                    *instance,
                    DataSourceConfig::decode_from_slice(config).expect("a config"),
                )),
                _ => None,
            });
        set_up.collect()
    }

    /// The global id of the target buffer of the producer's first instance.
    pub(crate) fn target(&self, producer: ProducerId) -> u16 {
        self.instances(producer)[0]
            .1
            .target_buffer
            .expect("set by the service") as u16
    }

    pub(crate) fn count(&self, producer: ProducerId, what: fn(&ProducerCommand) -> bool) -> usize {
        self.producers[&producer]
            .commands
            .iter()
            .filter(|command| what(command))
            .count()
    }
}

/// A clock of processor time that advances by 60 ms with each call. Each test has its own.
pub(crate) fn slow_clock() -> u64 {
    use std::cell::Cell;
    thread_local!(static LOOKS: Cell<u64> = const { Cell::new(0) });
    LOOKS.set(LOOKS.get() + 1);
    LOOKS.get() * 60_000_000
}

pub(crate) fn starts(command: &ProducerCommand) -> bool {
    matches!(command, ProducerCommand::StartDataSource { .. })
}

pub(crate) fn stops(command: &ProducerCommand) -> bool {
    matches!(command, ProducerCommand::StopDataSource { .. })
}

pub(crate) fn flushes(command: &ProducerCommand) -> bool {
    matches!(command, ProducerCommand::Flush { .. })
}

/// A config with one ring buffer of 64 KB and these data sources.
pub(crate) fn config(sources: &[&str]) -> TraceConfig {
    TraceConfig {
        buffers: vec![trace_config::BufferConfig {
            size_kb: Some(64),
            ..Default::default()
        }],
        data_sources: sources
            .iter()
            .map(|name| trace_config::DataSource {
                config: DataSourceConfig {
                    name: Some((*name).into()),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}
