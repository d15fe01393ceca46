//! Producers that follow the rules slowly. Their packets continue in later chunks, have lengths that are patched long after the chunk
//! was committed, and their requests and acknowledgements go out late, in any order, or never.

use std::collections::{BTreeMap, VecDeque};

use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, Message, commit_data_request,
};
use ferretto_service::{
    DataSourceInstanceId, FlushRequestId, Introduction, ProducerCommand, ProducerId, Scraping, SessionId,
};
use ferretto_smb::{ChunkFlags, ChunkId, DROPPED_PACKET_SIZE, FirstPacket, WriteChunk};

use super::{HONEST, HOSTILE, Simulation};
use crate::random::Random;
use crate::world::packet;

#[derive(Default)]
pub(super) struct Honest {
    /// The number of commands that it has handled.
    seen: usize,
    writers: BTreeMap<DataSourceInstanceId, Writer>,
    last_writer: u16,
    /// The requests that it has not sent yet.
    unsent: Vec<CommitDataRequest>,
    unacknowledged: Vec<FlushRequestId>,
    starting: Vec<DataSourceInstanceId>,
    stopping: Vec<DataSourceInstanceId>,
}

/// A writer of an honest producer.
struct Writer {
    id: u16,
    target: u16,
    session: SessionId,
    /// The number of packets begun so far.
    begun: u64,
    /// The fragments of the last packet that are still to be written.
    rest: VecDeque<Vec<u8>>,
    open: Option<Open>,
    /// Whether the data source has stopped: then the writer finishes, and is dropped.
    stopped: bool,
}

/// A chunk that its writer still holds.
struct Open {
    chunk: WriteChunk,
    id: ChunkId,
    fragments: u16,
    flags: ChunkFlags,
    /// The four bytes of the last fragment that are still to be patched, and their position in the payload.
    hole: Option<(u32, [u8; 4])>,
}

/// The packets of one writer that a session should hold.
#[derive(Default)]
pub(super) struct Account {
    /// The number of packets in completed chunks.
    pub(super) whole: u64,
    /// Whether the writer itself lost something: it dropped a packet, forgot a patch, or was killed.
    pub(super) blemished: bool,
}

/// The name of a writer in its packets.
pub(super) fn key(producer: ProducerId, writer: u16) -> String {
    format!("{producer}/{writer}")
}

/// The content of packet `number` of a writer.
pub(super) fn content(key: &str, number: u64) -> String {
    let size = (number * 37 + key.len() as u64) % 300;
    let size = if number % 11 == 5 { size * 8 } else { size };
    format!("{key} {number} {}", "x".repeat(size as usize))
}

/// Cuts a packet into two to four fragments.
fn cut(mut packet: Vec<u8>, random: &mut Random) -> VecDeque<Vec<u8>> {
    let mut fragments = VecDeque::new();
    for _ in 0..1 + random.below(3) {
        let at = 1 + random.below(packet.len() as u64 - 1) as usize;
        let rest = packet.split_off(at);
        fragments.push_back(std::mem::replace(&mut packet, rest));
        if packet.len() < 2 {
            break;
        }
    }
    fragments.push_back(packet);
    fragments
}

impl Simulation {
    pub(super) fn join_producer(&mut self) {
        if self.honest.len() + self.hostile.len() >= 6 {
            return;
        }
        let honest = self.peaceful || !self.random.one_in(3);
        let name = format!("p{}", self.random.below(3));
        let scraping = if self.random.one_in(2) {
            Scraping::Enabled
        } else {
            Scraping::Disabled
        };
        let uid = if honest { HONEST } else { HOSTILE };
        let machine = self.any_machine();
        let machine_id = machine.id();
        let who = Introduction {
            name,
            scraping,
            machine,
            ..Default::default()
        };
        let id = self.world.introduce(uid, who);
        self.machines.insert(id, machine_id);
        if honest {
            self.honest.insert(id, Honest::default());
            for n in 0..3 {
                self.register(id, n);
            }
        } else {
            self.hostile.insert(id);
        }
    }

    /// Connects an honest producer that offers data source `d<n>`.
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

    pub(super) fn lose_producer(&mut self) {
        let all: Vec<ProducerId> = self.honest.keys().chain(&self.hostile).copied().collect();
        if let Some(id) = self.random.pick(&all) {
            self.blemish(id);
            self.honest.remove(&id);
            self.hostile.remove(&id);
            self.world.lose_producer(id);
        }
    }

    pub(super) fn honest_step(&mut self) {
        let all: Vec<ProducerId> = self.honest.keys().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        assert_eq!(self.world.producers[&id].disconnected, None, "it is honest");
        match self.random.below(13) {
            12 => self.activate_triggers(id),
            0..3 => self.take_commands(id),
            3..9 => (0..self.random.below(12)).for_each(|_| self.write(id)),
            9 => self.acknowledge(id),
            10 => {
                let n = self.random.below(3);
                // The session may end, and then the writers may not commit the chunks that they still hold.
                self.world.run();
                self.take_commands(id);
                self.blemish(id);
                self.world
                    .service
                    .unregister_data_source(id, &format!("d{n}"), &self.world.now);
                self.register(id, n);
            }
            _ => self.send(id),
        }
    }

    /// Has the producer carry out its commands.
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
                        session: SessionId(config.tracing_session_id.expect("set")),
                        begun: 0,
                        rest: VecDeque::new(),
                        open: None,
                        stopped: false,
                    };
                    // If a producer registers its writers, the service can scrape it.
                    if !self.random.one_in(4) {
                        self.world
                            .service
                            .register_trace_writer(id, writer.id.into(), writer.target.into());
                    }
                    let session = self.sessions.get_mut(&writer.session).expect("known");
                    session.accounts.insert(key(id, writer.id), Account::default());
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

    /// Notes that some chunks of the producer's writers will never be committed.
    fn blemish(&mut self, id: ProducerId) {
        let own = key(id, 0);
        let prefix = own.trim_end_matches('0');
        for session in self.sessions.values_mut() {
            let accounts = session.accounts.iter_mut();
            let own = accounts.filter(|(writer, _)| writer.starts_with(prefix));
            own.for_each(|(_, account)| account.blemished = true);
        }
    }

    fn account(&mut self, producer: ProducerId, writer: u16, session: SessionId) -> &mut Account {
        let session = self.sessions.get_mut(&session).expect("known");
        session
            .accounts
            .get_mut(&key(producer, writer))
            .expect("opened with the writer")
    }

    /// Has a writer of the producer complete its chunk and begin another one, which it keeps. If the writer was told to
    /// stop, it finishes instead.
    fn write(&mut self, id: ProducerId) {
        let producer = self.honest.get_mut(&id).expect("honest");
        let instances: Vec<DataSourceInstanceId> = producer.writers.keys().copied().collect();
        let Some(instance) = self.random.pick(&instances) else {
            return;
        };
        self.complete_chunk(id, instance);
        let producer = self.honest.get_mut(&id).expect("honest");
        let writer = producer.writers.get_mut(&instance).expect("known");
        if writer.stopped && writer.rest.is_empty() {
            let given_up = producer.writers.remove(&instance).expect("known");
            if self.random.one_in(2) {
                self.world.service.unregister_trace_writer(id, given_up.id.into());
            }
            return self.send(id);
        }
        self.begin_chunk(id, instance);
        if self.random.one_in(3) {
            self.send(id);
        }
    }

    fn begin_chunk(&mut self, id: ProducerId, instance: DataSourceInstanceId) {
        let random = &mut self.random;
        let producer = self.honest.get_mut(&id).expect("honest");
        let writer = producer.writers.get_mut(&instance).expect("known");
        let first = if writer.rest.is_empty() {
            FirstPacket::Whole
        } else {
            FirstPacket::Continued
        };
        let Some((mut chunk, chunk_id)) = self.world.try_take_chunk(id, writer.id, first) else {
            return;
        };
        let mut fragments: Vec<Vec<u8>> = writer.rest.pop_front().into_iter().collect();
        let mut flags = match first {
            FirstPacket::Whole => ChunkFlags::NONE,
            FirstPacket::Continued => ChunkFlags::FIRST_CONTINUES,
        };
        if writer.rest.is_empty() {
            let name = key(id, writer.id);
            for _ in 0..u64::from(fragments.is_empty()) + random.below(4) {
                fragments.push(packet(&content(&name, writer.begun)));
                writer.begun += 1;
            }
            if random.one_in(5)
                && first == FirstPacket::Whole
                && let Some(last) = fragments.pop()
            {
                writer.rest = cut(last, random);
                fragments.extend(writer.rest.pop_front());
            }
        }
        if !writer.rest.is_empty() {
            flags = flags.with(ChunkFlags::LAST_CONTINUES);
        }
        let mut payload = ferretto_wire::Writer::new();
        let mut last_at = 0;
        for fragment in &fragments {
            payload.varint(fragment.len() as u64);
            last_at = payload.len();
            payload.raw(fragment);
        }
        let mut payload = payload.as_slice().to_vec();
        let mut hole = None;
        if flags.contains(ChunkFlags::LAST_CONTINUES) && payload.len() - last_at >= 4 && random.one_in(2) {
            let at = last_at + random.below((payload.len() - last_at - 3) as u64) as usize;
            let bytes = &mut payload[at..at + 4];
            hole = Some((at as u32, [bytes[0], bytes[1], bytes[2], bytes[3]]));
            bytes.fill(0);
            flags = flags.with(ChunkFlags::NEEDS_PATCHING);
        }
        let mut count = fragments.len() as u16;
        // The writer drops a packet. The reader must find a mark for it.
        let drops = writer.rest.is_empty() && random.one_in(30);
        if drops {
            let mut mark = ferretto_wire::Writer::new();
            mark.varint(DROPPED_PACKET_SIZE.into());
            payload.extend_from_slice(mark.as_slice());
            count += 1;
            writer.begun += 1;
        }
        chunk.write(0, &payload);
        chunk.publish(count);
        writer.open = Some(Open {
            chunk,
            id: chunk_id,
            fragments: count,
            flags,
            hole,
        });
        let (writer, session) = (writer.id, writer.session);
        self.account(id, writer, session).blemished |= drops;
    }

    fn complete_chunk(&mut self, id: ProducerId, instance: DataSourceInstanceId) {
        let random = &mut self.random;
        let producer = self.honest.get_mut(&id).expect("honest");
        let writer = producer.writers.get_mut(&instance).expect("known");
        let Some(mut open) = writer.open.take() else {
            return;
        };
        let mut blemished = false;
        open.chunk.set_flags(open.flags);
        open.chunk.publish(open.fragments);
        let (page, index) = (open.chunk.page() as u32, open.chunk.index() as u32);
        open.chunk.complete();
        producer.unsent.push(CommitDataRequest {
            chunks_to_move: vec![commit_data_request::ChunksToMove {
                page: Some(page),
                chunk: Some(index),
                target_buffer: Some(writer.target.into()),
                ..Default::default()
            }],
            ..Default::default()
        });
        if let Some((offset, bytes)) = open.hole {
            let patch = commit_data_request::ChunkToPatch {
                target_buffer: Some(writer.target.into()),
                writer_id: Some(writer.id.into()),
                chunk_id: Some(open.id.0),
                patches: vec![commit_data_request::chunk_to_patch::Patch {
                    offset: Some(offset),
                    data: Some(bytes.to_vec()),
                    ..Default::default()
                }],
                ..Default::default()
            };
            if random.one_in(8) {
                blemished = true;
            } else {
                producer.unsent.push(CommitDataRequest {
                    chunks_to_patch: vec![patch],
                    ..Default::default()
                });
            }
        }
        let (writer_id, session) = (writer.id, writer.session);
        let whole = writer.begun - u64::from(!writer.rest.is_empty());
        let account = self.account(id, writer_id, session);
        account.whole = whole;
        account.blemished |= blemished;
    }

    /// Has the producer send requests, mostly in the order in which they were made.
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

    /// Has all honest producers commit everything that they have.
    pub(super) fn commit_everything(&mut self) {
        let all: Vec<ProducerId> = self.honest.keys().copied().collect();
        for id in all {
            let instances: Vec<DataSourceInstanceId> = self.honest[&id].writers.keys().copied().collect();
            for instance in instances {
                self.complete_chunk(id, instance);
            }
            let producer = self.honest.get_mut(&id).expect("honest");
            for request in std::mem::take(&mut producer.unsent) {
                self.world.service.commit(id, &request, &self.world.now);
            }
        }
        self.world.run();
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
            // The producer forgets some of them.
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
}
