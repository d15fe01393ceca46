//! The whole service under random producers, consumers, sessions, losses and faults, replayed from a seed.
//!
//! Honest producers write numbered packets, each writer into one buffer, and acknowledge what they are asked late, in any
//! order or never. Hostile ones send whatever a request can hold. Consumers do everything a consumer can, in any order,
//! and any client may vanish at any time. After every step these hold:
//!
//! - nothing panics, and the service has only so much to say;
//! - nothing is due in the past, and nothing at all when there is no session;
//! - outputs name clients that are connected (checked by the [`World`]);
//! - the packets of a writer come out whole, in order and once, under one sequence id and the user who wrote them, and
//!   where some are missing the next says so;
//! - the end of a session is told to its owner, once;
//! - a file stays below its limit and is a valid trace.
//!
//! When everybody has left, no buffer, session or deadline is left either.
//!
//! `FERRETTO_SERVICE_SEED=n` runs one seed, `FERRETTO_SERVICE_SEEDS=n` that many, and `FERRETTO_SERVICE_STEPS=n` changes
//! the number of steps in each.

use std::collections::{BTreeMap, BTreeSet};

use buffa::Message;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::messages::trace_packet::{OptionalTrustedPacketSequenceId, OptionalTrustedUid};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, TraceConfig, TracePacket, commit_data_request,
    trace_config,
};
use ferretto_service::{
    ConfigInput, ConsumerId, DataSourceInstanceId, FlushRequestId, ProducerCommand, ProducerId, Scraping,
    SessionId, StateScope,
};
use ferretto_smb::WriteChunk;
use ferretto_wire::{Reader, Value};

use crate::world::{Disk, World, packet, texts};

const SEEDS: u64 = 40;
const STEPS: u64 = 400;

/// Users: of honest producers, of hostile ones, of consumers.
const HONEST: u32 = 1000;
const HOSTILE: u32 = 666;
const CONSUMERS: [u32; 3] = [0, 1000, 1001];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.below(from.len().max(1) as u64) as usize;
        from.get(index).copied()
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// Mostly small, sometimes at the edges.
    fn number(&mut self) -> u32 {
        match self.below(6) {
            0 => self.next() as u32,
            1 => [0, 0xffff, 0x7fff, 0x1_0000, u32::MAX, 0x8000][self.below(6) as usize],
            _ => self.below(12) as u32,
        }
    }
}

/// A writer of an honest producer.
struct Writer {
    id: u16,
    target: u16,
    /// Packets written so far.
    written: u64,
    open: Option<(WriteChunk, usize, usize)>,
    /// The data source stopped: the writer finishes and is given up.
    stopped: bool,
}

#[derive(Default)]
struct Honest {
    /// Commands that it has looked at.
    seen: usize,
    writers: BTreeMap<DataSourceInstanceId, Writer>,
    last_writer: u16,
    /// Requests that it has not sent yet, in any order.
    unsent: Vec<CommitDataRequest>,
    unacknowledged: Vec<FlushRequestId>,
    starting: Vec<DataSourceInstanceId>,
    stopping: Vec<DataSourceInstanceId>,
}

/// What came out of a session so far.
#[derive(Default)]
struct Told {
    /// The number of the next packet of each writer, by producer and writer.
    next: BTreeMap<String, u64>,
    /// Whose each sequence id is.
    sequences: BTreeMap<u32, String>,
    /// Bytes of the file that were looked at.
    file_checked: usize,
}

struct Owned {
    owner: Option<ConsumerId>,
    streams: Option<u64>,
    trace: Told,
}

struct Simulation {
    world: World,
    random: Random,
    honest: BTreeMap<ProducerId, Honest>,
    hostile: BTreeSet<ProducerId>,
    consumers: BTreeMap<ConsumerId, Option<SessionId>>,
    detached: Vec<(SessionId, String, u32)>,
    users: BTreeMap<ConsumerId, u32>,
    sessions: BTreeMap<SessionId, Owned>,
    /// How many ends of sessions each consumer was told of.
    heard: BTreeMap<ConsumerId, usize>,
    root: ConsumerId,
    packets: u64,
    losses: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut world = World::new();
        let root = world.consumer_of(0);
        Simulation {
            world,
            random: Random(seed),
            honest: BTreeMap::new(),
            hostile: BTreeSet::new(),
            consumers: BTreeMap::new(),
            detached: Vec::new(),
            users: BTreeMap::new(),
            sessions: BTreeMap::new(),
            heard: BTreeMap::new(),
            root,
            packets: 0,
            losses: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..4 | 5 => self.join_producer(),
            4 => self.lose_producer(),
            6..10 => self.join_consumer(),
            10..11 => self.lose_consumer(),
            11..61 => self.honest_step(),
            61..71 => self.hostile_step(),
            71..88 => self.consumer_step(),
            88..97 => self.time_step(),
            _ => self.disk_step(),
        }
        // Sometimes more happens before anything is done about it.
        if !self.random.one_in(4) {
            self.world.run();
            self.check();
        }
    }

    fn join_producer(&mut self) {
        if self.honest.len() + self.hostile.len() >= 6 {
            return;
        }
        let honest = !self.random.one_in(3);
        let name = format!("p{}", self.random.below(3));
        let scraping = if self.random.one_in(2) {
            Scraping::Enabled
        } else {
            Scraping::Disabled
        };
        let uid = if honest { HONEST } else { HOSTILE };
        let id = self.world.producer_of(uid, &name, scraping);
        if honest {
            self.honest.insert(id, Honest::default());
            for n in 0..3 {
                self.register(id, n);
            }
        } else {
            self.hostile.insert(id);
        }
    }

    /// An honest producer offers data source `d<n>`.
    fn register(&mut self, id: ProducerId, n: u64) {
        let random = &mut self.random;
        let descriptor = DataSourceDescriptor {
            id: Some(n + 1),
            name: Some(format!("d{n}")),
            will_notify_on_start: Some(random.one_in(2)),
            will_notify_on_stop: Some(random.one_in(2)),
            handles_incremental_state_clear: Some(random.one_in(2)),
            no_flush: Some(random.one_in(4)),
            ..Default::default()
        };
        self.world.register(id, &descriptor);
    }

    fn lose_producer(&mut self) {
        let all: Vec<ProducerId> = self.honest.keys().chain(&self.hostile).copied().collect();
        if let Some(id) = self.random.pick(&all) {
            self.honest.remove(&id);
            self.hostile.remove(&id);
            self.world.lose_producer(id);
        }
    }

    fn honest_step(&mut self) {
        let all: Vec<ProducerId> = self.honest.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        assert_eq!(self.world.producers[&id].disconnected, None, "it is honest");
        match self.random.below(12) {
            0..3 => self.take_commands(id),
            3..9 => (0..self.random.below(12)).for_each(|_| self.write(id)),
            9 => self.acknowledge(id),
            10 => {
                let n = self.random.below(3);
                self.world
                    .service
                    .unregister_data_source(id, &format!("d{n}"), &self.world.now);
                self.register(id, n);
            }
            _ => self.send(id),
        }
    }

    /// The producer does what it was told.
    fn take_commands(&mut self, id: ProducerId) {
        let producer = self.honest.get_mut(&id).expect("honest");
        let commands: Vec<ProducerCommand> = self.world.producers[&id].commands[producer.seen..].to_vec();
        producer.seen += commands.len();
        for command in commands {
            match command {
                ProducerCommand::StartDataSource { instance, config } => {
                    let config = DataSourceConfig::decode_from_slice(&config).expect("a config");
                    producer.last_writer += 1;
                    let writer = Writer {
                        id: producer.last_writer,
                        target: config.target_buffer.expect("set") as u16,
                        written: 0,
                        open: None,
                        stopped: false,
                    };
                    // One that registers its writers can be scraped.
                    if !self.random.one_in(4) {
                        self.world
                            .service
                            .register_trace_writer(id, writer.id.into(), writer.target.into());
                    }
                    producer.writers.insert(instance, writer);
                    producer.starting.push(instance);
                }
                ProducerCommand::StopDataSource { instance } => {
                    if let Some(writer) = producer.writers.get_mut(&instance) {
                        writer.stopped = true;
                    }
                    producer.stopping.push(instance);
                }
                ProducerCommand::Flush { request, .. } => producer.unacknowledged.push(request),
                _ => {}
            }
        }
    }

    /// A writer of the producer puts packets into a chunk: into a new one, which it goes on holding, commits or forgets.
    fn write(&mut self, id: ProducerId) {
        let producer = self.honest.get_mut(&id).expect("honest");
        let instances: Vec<DataSourceInstanceId> = producer.writers.keys().copied().collect();
        let Some(instance) = self.random.pick(&instances) else {
            return;
        };
        let writer = producer.writers.get_mut(&instance).expect("known");
        if let Some((chunk, page, index)) = writer.open.take() {
            chunk.complete();
            producer.unsent.push(CommitDataRequest {
                chunks_to_move: vec![commit_data_request::ChunksToMove {
                    page: Some(page as u32),
                    chunk: Some(index as u32),
                    target_buffer: Some(writer.target.into()),
                    ..Default::default()
                }],
                ..Default::default()
            });
        }
        if writer.stopped {
            let given_up = producer.writers.remove(&instance).expect("known");
            if self.random.one_in(2) {
                self.world.service.unregister_trace_writer(id, given_up.id.into());
            }
            return self.send(id);
        }
        let first = writer.written;
        let packets: Vec<Vec<u8>> = (0..1 + self.random.below(5))
            .map(|n| packet(&content(id, writer.id, first + n)))
            .collect();
        let slices: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
        if let Some(open) = self.world.try_write_open(id, writer.id, &slices) {
            writer.written += packets.len() as u64;
            writer.open = Some(open);
        }
        if self.random.one_in(3) {
            self.send(id);
        }
    }

    /// The producer sends requests, in the order in which they are lying around.
    fn send(&mut self, id: ProducerId) {
        let producer = self.honest.get_mut(&id).expect("honest");
        let count = self.random.below(producer.unsent.len() as u64 + 1);
        for _ in 0..count {
            let index = if self.random.one_in(4) {
                self.random.below(producer.unsent.len() as u64) as usize
            } else {
                0
            };
            let request = producer.unsent.remove(index);
            self.world.service.commit(id, &request, &self.world.now);
        }
    }

    fn acknowledge(&mut self, id: ProducerId) {
        let (service, now) = (&mut self.world.service, self.world.now);
        let producer = self.honest.get_mut(&id).expect("honest");
        if let Some(flush) = self.random.pick(&producer.unacknowledged) {
            producer.unacknowledged.retain(|other| *other > flush);
            let request = CommitDataRequest {
                flush_request_id: Some(flush.0),
                ..Default::default()
            };
            service.commit(id, &request, &now);
        }
        for instance in producer.starting.drain(..) {
            // Some are forgotten.
            if !self.random.one_in(4) {
                service.data_source_started(id, instance.0, &now);
            }
        }
        for instance in producer.stopping.drain(..) {
            if !self.random.one_in(4) {
                service.data_source_stopped(id, instance.0, &now);
            }
        }
    }

    fn hostile_step(&mut self) {
        let all: Vec<ProducerId> = self.hostile.iter().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        let random = &mut self.random;
        let (service, now) = (&mut self.world.service, self.world.now);
        match random.below(10) {
            0 => service.register_data_source(id, &random.bytes(12), &now),
            1 | 2 => {
                let descriptor = DataSourceDescriptor {
                    id: Some(random.number().into()),
                    name: Some(format!("d{}", random.below(4))),
                    will_notify_on_start: Some(random.one_in(2)),
                    will_notify_on_stop: Some(random.one_in(2)),
                    no_flush: Some(random.one_in(2)),
                    ..Default::default()
                };
                let bytes = descriptor.encode_to_vec();
                match random.below(3) {
                    0 => service.update_data_source(id, &bytes),
                    _ => service.register_data_source(id, &bytes, &now),
                }
            }
            3 => service.unregister_data_source(id, &format!("d{}", random.below(5)), &now),
            4 => service.register_trace_writer(id, random.number(), random.number()),
            5 => service.unregister_trace_writer(id, random.number()),
            6 => service.data_source_started(id, random.number().into(), &now),
            7 => service.data_source_stopped(id, random.number().into(), &now),
            _ => {
                let request = forged_commit(random);
                service.commit(id, &request, &now);
            }
        }
        self.world.run();
        if self.world.producers[&id].disconnected.is_some() {
            self.hostile.remove(&id);
        }
    }

    fn join_consumer(&mut self) {
        if self.consumers.len() < 6
            && let Some(uid) = self.random.pick(&CONSUMERS)
        {
            let id = self.world.consumer_of(uid);
            self.consumers.insert(id, None);
            self.users.insert(id, uid);
        }
    }

    fn lose_consumer(&mut self) {
        let all: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        let session = self.consumers.remove(&id).flatten();
        if let Some(session) = session.and_then(|session| self.sessions.get_mut(&session)) {
            session.owner = None;
        }
        self.world.lose_consumer(id);
    }

    fn consumer_step(&mut self) {
        let all: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        let now = self.world.now;
        match self.random.below(20) {
            0..5 => self.enable(id),
            5 => self.world.service.start_deferred(id, &now),
            6 if self.random.one_in(3) => self.world.service.disable_tracing(id, &now),
            7 if self.random.one_in(3) => {
                self.world.service.free_buffers(id, &now);
                self.consumers.insert(id, None);
            }
            8 | 9 => {
                let token = self.random.next();
                let (timeout, flags) = (self.random.below(300) as u32, self.random.below(64));
                self.world.service.flush(id, token, timeout, flags, &now);
            }
            10..15 => self.read(id),
            15 => self.detach_or_attach(id),
            16 => self
                .world
                .service
                .observe_events(id, self.random.below(8) as u32, &now),
            17 => {
                let config = self.config();
                let bytes = config.encode_to_vec().into();
                self.world
                    .service
                    .change_config(id, &ConfigInput { config, bytes }, &now);
            }
            18 => drop(self.world.state(id, StateScope::Everything)),
            _ => drop(self.world.service.trace_stats(id)),
        }
    }

    fn config(&mut self) -> TraceConfig {
        let random = &mut self.random;
        let buffers: Vec<trace_config::BufferConfig> = (0..random.below(4))
            .map(|_| trace_config::BufferConfig {
                size_kb: Some(4 << random.below(5)),
                fill_policy: Some(if random.one_in(3) {
                    FillPolicy::DISCARD
                } else {
                    FillPolicy::RING_BUFFER
                }),
                ..Default::default()
            })
            .collect();
        let sources = if buffers.is_empty() {
            0
        } else {
            1 + random.below(5)
        };
        let data_sources = (0..sources)
            .map(|_| trace_config::DataSource {
                config: DataSourceConfig {
                    name: Some(format!("d{}", random.below(4))),
                    target_buffer: Some(random.below(buffers.len() as u64) as u32),
                    ..Default::default()
                }
                .into(),
                producer_name_filter: match random.below(4) {
                    0 => vec![format!("p{}", random.below(3))],
                    _ => Vec::new(),
                },
                ..Default::default()
            })
            .collect();
        let mut maybe = |most: u64| random.one_in(2).then(|| 20 + random.below(most) as u32);
        let durations = [
            maybe(20_000),
            maybe(500),
            maybe(500),
            maybe(1000),
            maybe(500),
            maybe(500),
        ];
        let [
            duration,
            flush_period,
            flush_timeout,
            stop_timeout,
            clear,
            interval,
        ] = durations;
        let streams = random.one_in(2);
        TraceConfig {
            buffers,
            data_sources,
            duration_ms: duration,
            deferred_start: Some(random.one_in(4)),
            flush_period_ms: flush_period,
            flush_timeout_ms: flush_timeout,
            data_source_stop_timeout_ms: stop_timeout,
            write_into_file: streams.then_some(true),
            file_write_period_ms: streams.then(|| 100 + random.below(10_000) as u32),
            max_file_size_bytes: (streams && random.one_in(2)).then(|| 1 + random.below(20_000)),
            fflush_post_write: random
                .one_in(3)
                .then_some(trace_config::FFlushMode::FFLUSH_ENABLED),
            incremental_state_config: trace_config::IncrementalStateConfig {
                clear_period_ms: clear,
                ..Default::default()
            }
            .into(),
            builtin_data_sources: trace_config::BuiltinDataSource {
                snapshot_interval_ms: interval,
                disable_service_events: Some(random.one_in(4)),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
    }

    fn enable(&mut self, id: ConsumerId) {
        let config = self.config();
        let Ok(session) = self.world.try_enable(id, &config) else {
            return;
        };
        self.consumers.insert(id, Some(session));
        let streams = config.write_into_file == Some(true);
        let owned = Owned {
            owner: Some(id),
            streams: streams.then(|| config.max_file_size_bytes.unwrap_or(u64::MAX)),
            trace: Told::default(),
        };
        self.sessions.insert(session, owned);
    }

    fn detach_or_attach(&mut self, id: ConsumerId) {
        let uid = self.users[&id];
        let waiting = self.detached.iter().position(|(_, _, of)| *of == uid);
        match (self.consumers[&id], waiting) {
            (Some(session), _) => {
                let key = format!("key {}", self.random.below(3));
                if self.world.service.detach(id, &key).is_ok() {
                    self.consumers.insert(id, None);
                    self.sessions.get_mut(&session).expect("known").owner = None;
                    self.detached.push((session, key, uid));
                }
            }
            (None, Some(position)) => {
                let (session, key, _) = self.detached.remove(position);
                // It may have ended by itself.
                if self.world.service.attach(id, &key).is_ok() {
                    assert_eq!(self.world.service.await_disabled(id), Some(session));
                    self.consumers.insert(id, Some(session));
                    self.sessions.get_mut(&session).expect("known").owner = Some(id);
                }
            }
            (None, None) => {}
        }
    }

    fn read(&mut self, id: ConsumerId) {
        let budget = 1 << self.random.below(17);
        let packets = self.world.read_encoded(id, budget as usize);
        match self.consumers[&id] {
            Some(session) => {
                let owned = self.sessions.get_mut(&session).expect("known");
                // A file that failed or is full took packets with it; the rest can be read once it is closed.
                if !packets.is_empty() && owned.streams.take().is_some() {
                    assert!(self.world.closed_files.contains(&session));
                    owned.trace.next.clear();
                }
                self.check_packets(session, &packets);
            }
            None => assert!(packets.is_empty(), "there is nothing to read"),
        }
    }

    fn time_step(&mut self) {
        match self.random.below(20) {
            0 => self.world.jump(self.random.below(100_000_000)),
            1..4 => self.world.advance(self.random.below(6000)),
            _ => self.world.advance(self.random.below(150)),
        }
    }

    fn disk_step(&mut self) {
        self.world.disk_catches_up();
        self.world.disk = match self.random.below(5) {
            0 => Disk::Full,
            1 | 2 => Disk::Slow,
            _ => Disk::Fast,
        };
    }

    fn check(&mut self) {
        let due = self.world.service.next_deadline();
        self.world.service.handle_timeout(&self.world.now);
        self.world.run();
        let now = self.world.now.monotonic;
        assert!(
            self.world.service.next_deadline().is_none_or(|due| due > now),
            "{due:?} at {now}"
        );
        let state = self.world.state(self.root, StateScope::Sessions);
        if state.tracing_sessions.is_empty() {
            assert_eq!(self.world.service.buffer_bytes(), 0);
            assert_eq!(self.world.service.next_deadline(), None);
        }
        let alive: BTreeSet<u64> = state
            .tracing_sessions
            .iter()
            .filter_map(|session| session.id)
            .collect();
        for session in self.consumers.values_mut() {
            session.take_if(|session| !alive.contains(&session.0));
        }
        self.detached.retain(|(session, ..)| alive.contains(&session.0));
        for (id, consumer) in &self.world.consumers {
            let heard = self.heard.entry(*id).or_default();
            for session in &consumer.ended[*heard..] {
                let owner = self.sessions[session].owner;
                assert!(
                    owner == Some(*id) || owner.is_none(),
                    "the end of {session} was told to a stranger"
                );
            }
            *heard = consumer.ended.len();
        }
        let sessions: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in sessions {
            let told = self.times_told(session);
            assert!(told <= 1, "the end of {session} was told {told} times");
            self.check_file(session);
        }
    }

    fn times_told(&self, session: SessionId) -> usize {
        let consumers = self.world.consumers.values();
        consumers
            .flat_map(|consumer| &consumer.ended)
            .filter(|ended| **ended == session)
            .count()
    }

    fn check_file(&mut self, session: SessionId) {
        let owned = self.sessions.get_mut(&session).expect("known");
        let (Some(limit), Some(file)) = (owned.streams, self.world.files.get(&session)) else {
            return;
        };
        assert!((file.len() as u64) < limit);
        let new = file[owned.trace.file_checked..].to_vec();
        owned.trace.file_checked = file.len();
        let packets = Reader::new(&new).map(|packet| {
            let packet = packet.expect("a trace").value;
            packet.as_bytes().expect("a packet").to_vec()
        });
        self.check_packets(session, &packets.collect::<Vec<_>>());
    }

    /// The packets of honest producers: whole, in order, once, and with marks where some are missing.
    fn check_packets(&mut self, session: SessionId, packets: &[Vec<u8>]) {
        let trace = &mut self.sessions.get_mut(&session).expect("known").trace;
        for packet in packets.iter().filter_map(|packet| decode(packet)) {
            let [text] = &texts(std::slice::from_ref(&packet))[..] else {
                continue;
            };
            let mut parts = text.split(' ');
            let (Some(writer), Some(number)) = (parts.next(), parts.next()) else {
                panic!("{text:?}");
            };
            let number: u64 = number.parse().expect("a number");
            let (producer, id) = writer.split_once('/').expect("a writer");
            let whole = content(
                ProducerId(producer.parse().expect("a producer")),
                id.parse().expect("a writer"),
                number,
            );
            assert_eq!(*text, whole);
            let user = OptionalTrustedUid::TrustedUid(HONEST as i32);
            assert_eq!(packet.optional_trusted_uid, Some(user));
            let Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(sequence)) =
                packet.optional_trusted_packet_sequence_id
            else {
                panic!("{text:?} has no sequence id");
            };
            let of = trace
                .sequences
                .entry(sequence)
                .or_insert_with(|| writer.to_owned());
            assert_eq!(of, writer, "two writers under sequence id {sequence}");
            // With which chunk a writer began is not known: what is missing there is marked once it comes too late.
            let expected = trace.next.insert(writer.to_owned(), number + 1);
            let expected = expected.unwrap_or(number);
            assert!(number >= expected, "{writer}: {number} after {expected} was due");
            if number > expected {
                let mark = packet.previous_packet_dropped.unwrap_or_default();
                assert!(
                    mark != 0,
                    "{writer}: {expected} to {number} are missing, and nothing says so"
                );
                self.losses += 1;
            }
            self.packets += 1;
        }
    }

    /// Everybody finishes; then everybody leaves.
    fn end(mut self) -> (u64, u64) {
        self.world.disk = Disk::Fast;
        self.world.disk_catches_up();
        let now = self.world.now;
        let consumers: Vec<ConsumerId> = self.consumers.keys().copied().collect();
        for id in &consumers {
            self.world.service.disable_tracing(*id, &now);
        }
        self.world.run();
        self.world.advance(10_000);
        self.check();
        for id in &consumers {
            self.read(*id);
        }
        for (session, owned) in &self.sessions {
            if owned
                .owner
                .is_some_and(|owner| self.consumers.contains_key(&owner))
            {
                assert_eq!(self.times_told(*session), 1, "{session} has an owner");
            }
        }
        for id in consumers {
            self.world.lose_consumer(id);
        }
        let producers: Vec<ProducerId> = self.honest.keys().chain(&self.hostile).copied().collect();
        for id in producers {
            self.world.lose_producer(id);
        }
        let now = self.world.now;
        self.world.service.end_all_sessions(&now);
        self.world.run();
        let state = self.world.state(self.root, StateScope::Everything);
        assert!(state.tracing_sessions.is_empty() && state.producers.is_empty());
        assert!(state.data_sources.is_empty());
        assert_eq!(self.world.service.buffer_bytes(), 0);
        assert_eq!(self.world.service.next_deadline(), None);
        (self.packets, self.losses)
    }
}

/// A packet; `None` for one of a hostile producer whose fields have not the types that the schema gives them, which is
/// for readers of the trace to find out.
fn decode(packet: &[u8]) -> Option<TracePacket> {
    const TRUSTED_UID: u32 = 3;
    let decoded = TracePacket::decode_from_slice(packet).ok();
    if decoded.is_none() {
        let uid = Reader::new(packet)
            .map(|field| field.expect("a field"))
            .find(|field| field.number == TRUSTED_UID)
            .map(|field| field.value);
        assert_eq!(uid, Some(Value::Varint(HOSTILE.into())), "it is hostile");
    }
    decoded
}

/// What packet `number` of a writer contains.
fn content(producer: ProducerId, writer: u16, number: u64) -> String {
    let size = (number * 37 + u64::from(writer)) % 300;
    format!("{producer}/{writer} {number} {}", "x".repeat(size as usize))
}

/// A request that no honest producer makes.
fn forged_commit(random: &mut Random) -> CommitDataRequest {
    let chunks_to_move = (0..random.below(4))
        .map(|_| commit_data_request::ChunksToMove {
            page: Some(random.number()),
            chunk: Some(random.number()),
            target_buffer: Some(random.number()),
            data: random.one_in(2).then(|| random.bytes(200)),
            chunk_incomplete: Some(random.one_in(2)),
            ..Default::default()
        })
        .collect();
    let chunks_to_patch = (0..random.below(3))
        .map(|_| commit_data_request::ChunkToPatch {
            target_buffer: Some(random.number()),
            writer_id: Some(random.number()),
            chunk_id: Some(random.number()),
            patches: (0..random.below(3))
                .map(|_| commit_data_request::chunk_to_patch::Patch {
                    offset: Some(random.number()),
                    data: Some(random.bytes(6)),
                    ..Default::default()
                })
                .collect(),
            has_more_patches: Some(random.one_in(2)),
            ..Default::default()
        })
        .collect();
    CommitDataRequest {
        chunks_to_move,
        chunks_to_patch,
        flush_request_id: random.one_in(3).then(|| random.number().into()),
        ..Default::default()
    }
}

/// Says which seed it was when a check fails.
struct SayWhich(u64);

impl Drop for SayWhich {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with FERRETTO_SERVICE_SEED={}", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn the_service_keeps_its_word_whatever_its_clients_do() {
    let steps = setting("FERRETTO_SERVICE_STEPS").unwrap_or(STEPS);
    let seeds = match setting("FERRETTO_SERVICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("FERRETTO_SERVICE_SEEDS").unwrap_or(SEEDS),
    };
    let (mut packets, mut losses) = (0, 0);
    for seed in seeds.clone() {
        let _which = SayWhich(seed);
        let mut simulation = Simulation::new(seed);
        for _ in 0..steps {
            simulation.step();
        }
        let (read, marked) = simulation.end();
        packets += read;
        losses += marked;
    }
    println!("{packets} packets, {losses} marked losses");
    if seeds.count() > 10 {
        assert!(packets > 1000 && losses > 10, "something was put to the test");
    }
}
