//! The service with a hostile producer, whose shared memory and `CommitData` are the input, and with two consumers: one
//! traces the producer, the other one something else. Whatever the producer does, each packet that is read says truly
//! who wrote it, nothing reaches the other session, and when all are gone the memory is free.
//!
//! The first byte of the input chooses how the first session is read, the rest are operations.

#![no_main]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use ferretto_fuzz::{Input, RESERVED_FIELDS, TagWidth, naive_fields};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, commit_data_request,
    trace_config,
};
use ferretto_service::{
    ConfigInput, ConsumerId, Credentials, Identity, Introduction, Now, Output, OutputFile, ProducerCommand,
    ProducerId, ReadCall, Scraping, Service, SessionId, SmbOrigin,
};
use ferretto_smb::{PageSize, ServiceSmb, SharedMemory};
use ferretto_wire::Reader;
use libfuzzer_sys::fuzz_target;

const SERVICE_UID: u64 = 42;
const PRODUCER_UID: u32 = 1000;
const PAGES: usize = 4;
const PAGE_SIZE: usize = 4096;

/// Field numbers of `TracePacket` that the service adds to packets of producers.
mod field {
    pub(super) const TRUSTED_UID: u64 = 3;
    pub(super) const TRUSTED_PACKET_SEQUENCE_ID: u64 = 10;
    pub(super) const TRUSTED_PID: u64 = 79;
    pub(super) const MACHINE_ID: u64 = 98;
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let into_file = input.byte() % 4 == 0;
    let mut world = World::new();
    let producer = world.connect_producer();
    let tracer = world.trace("fuzzed", into_file);
    let bystander = world.trace("something_else", false);
    while !input.0.is_empty() {
        world.step(producer, tracer, &mut input);
        world.run();
    }
    world.read(tracer, Writers::Everyone);
    world.read(bystander, Writers::ServiceOnly);
    world.service.disconnect_producer(producer, &world.now);
    world.run();
    world.read(tracer, Writers::Everyone);
    world.read(bystander, Writers::ServiceOnly);
    for consumer in [tracer, bystander] {
        world.service.disconnect_consumer(consumer, &world.now);
        world.run();
    }
    world.pass(3_600_000);
    for file in world.files.values() {
        for packet in Reader::new(file) {
            let packet = packet.expect("a file of whole packets").value.as_bytes();
            check_packet(packet.expect("a file of whole packets"), Writers::Everyone);
        }
    }
    assert_eq!(world.service.buffer_bytes(), 0, "a trace buffer was left behind");
});

/// The producers that may have written into a session.
#[derive(Clone, Copy)]
enum Writers {
    Everyone,
    ServiceOnly,
}

struct World {
    service: Service,
    now: Now,
    memory: Arc<SharedMemory>,
    files: BTreeMap<SessionId, Vec<u8>>,
}

impl World {
    fn new() -> World {
        let identity = Identity {
            uid: SERVICE_UID as u32,
            version: "fuzz".into(),
            ..Identity::default()
        };
        World {
            service: Service::new(identity),
            now: Now {
                monotonic: 1_000_000_000,
                boot: 1_000_000_000,
                ..Now::default()
            },
            memory: Arc::new(SharedMemory::create(PAGES * PAGE_SIZE).expect("memory")),
            files: BTreeMap::new(),
        }
    }

    fn connect_producer(&mut self) -> ProducerId {
        let credentials = Credentials {
            uid: PRODUCER_UID,
            pid: Some(77),
        };
        let who = Introduction {
            name: "hostile".into(),
            scraping: Scraping::Enabled,
            ..Introduction::default()
        };
        let producer = self.service.connect_producer(credentials, who).expect("admitted");
        let page_size = PageSize::new(PAGE_SIZE).expect("a page size");
        let smb = ServiceSmb::new(self.memory.clone(), page_size).expect("pages");
        self.service
            .attach_shared_memory(producer, smb, SmbOrigin::Producer);
        let descriptor = DataSourceDescriptor {
            name: Some("fuzzed".into()),
            will_notify_on_stop: Some(true),
            ..DataSourceDescriptor::default()
        };
        self.service
            .register_data_source(producer, &descriptor.encode_to_vec(), &self.now);
        self.run();
        producer
    }

    /// A consumer that traces the data source of this name into a ring and a discarding buffer.
    fn trace(&mut self, source: &str, into_file: bool) -> ConsumerId {
        let buffer = |policy| trace_config::BufferConfig {
            size_kb: Some(8),
            fill_policy: Some(policy),
            ..Default::default()
        };
        let data_source = |target_buffer| trace_config::DataSource {
            config: DataSourceConfig {
                name: Some(source.into()),
                target_buffer: Some(target_buffer),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        let config = TraceConfig {
            buffers: [
                trace_config::buffer_config::FillPolicy::RING_BUFFER,
                trace_config::buffer_config::FillPolicy::DISCARD,
            ]
            .map(buffer)
            .into(),
            data_sources: vec![data_source(0), data_source(1)],
            write_into_file: into_file.then_some(true),
            file_write_period_ms: into_file.then_some(100),
            ..Default::default()
        };
        let consumer = self.service.connect_consumer(PRODUCER_UID);
        let input = ConfigInput {
            bytes: config.encode_to_vec().into(),
            config,
        };
        let file = if into_file {
            OutputFile::Passed
        } else {
            OutputFile::None
        };
        let session = self
            .service
            .enable_tracing(consumer, input, &file, 7, &self.now)
            .expect("a good config");
        if into_file {
            self.files.insert(session, Vec::new());
        }
        self.run();
        consumer
    }

    /// Does what the next bytes of the input say.
    fn step(&mut self, producer: ProducerId, tracer: ConsumerId, input: &mut Input<'_>) {
        let service = &mut self.service;
        match input.byte() % 16 {
            0..4 => {
                let page = usize::from(input.byte()) % PAGES;
                let offset = usize::from(u16::from_le_bytes([input.byte(), input.byte()])) % PAGE_SIZE;
                let count = input.byte();
                let bytes = input.bytes(count.into());
                let at = page * PAGE_SIZE + offset.min(PAGE_SIZE - bytes.len());
                let written = rustix::io::pwrite(self.memory.as_fd(), bytes, at as u64);
                assert_eq!(written.expect("a file in memory"), bytes.len());
            }
            4 | 5 => {
                let count = input.byte();
                if let Ok(request) = CommitDataRequest::decode_from_slice(input.bytes(count.into())) {
                    service.commit(producer, &request, &self.now);
                }
            }
            6..9 => {
                let chunk = commit_data_request::ChunksToMove {
                    page: Some((input.byte() % 5).into()),
                    chunk: Some((input.byte() % 15).into()),
                    target_buffer: Some((input.byte() % 6).into()),
                    ..Default::default()
                };
                let request = CommitDataRequest {
                    chunks_to_move: vec![chunk],
                    ..Default::default()
                };
                service.commit(producer, &request, &self.now);
            }
            9 => service.register_trace_writer(producer, input.byte().into(), (input.byte() % 6).into()),
            10 => service.unregister_trace_writer(producer, input.byte().into()),
            11 => service.flush(tracer, 1, 100, 0, &self.now),
            12 => self.read(tracer, Writers::Everyone),
            13 => service.disable_tracing(tracer, &self.now),
            14 => {
                let instance = input.byte();
                service.data_source_started(producer, instance.into(), &self.now);
                service.data_source_stopped(producer, instance.into(), &self.now);
            }
            _ => self.pass(u64::from(input.byte()) * 20),
        }
    }

    /// Lets time pass.
    fn pass(&mut self, ms: u64) {
        let end = self.now.monotonic + ms * 1_000_000;
        for _ in 0..100 {
            let Some(deadline) = self.service.next_deadline().filter(|deadline| *deadline <= end) else {
                break;
            };
            let time = deadline.max(self.now.monotonic);
            self.now = Now {
                monotonic: time,
                boot: time,
                ..self.now
            };
            self.service.handle_timeout(&self.now);
            self.run();
        }
        self.now = Now {
            monotonic: end,
            boot: end,
            ..self.now
        };
    }

    /// Carries out what the service wants done.
    fn run(&mut self) {
        while let Some(output) = self.service.poll() {
            match output {
                Output::DisconnectProducer { producer, .. } => {
                    self.service.disconnect_producer(producer, &self.now);
                }
                Output::ToProducer(_, ProducerCommand::CreateSharedMemory { .. }) => {
                    panic!("the producer has shared memory")
                }
                Output::FileDue(session) => {
                    let Some(batch) = self.service.read_for_file(session, 4096, &self.now) else {
                        continue;
                    };
                    let file = self.files.get_mut(&session).expect("a session with a file");
                    let before = file.len();
                    batch.slices().for_each(|slice| file.extend_from_slice(slice));
                    assert_eq!(file.len() - before, batch.len());
                    let written = batch.len() as u64;
                    self.service.file_written(session, Ok(written), &self.now);
                }
                Output::CloseFile(session) => self.service.file_closed(session, Ok(()), &self.now),
                _ => {}
            }
        }
    }

    fn read(&mut self, consumer: ConsumerId, writers: Writers) {
        let mut call = ReadCall::default();
        while let Some(batch) = self.service.read_buffers(consumer, &mut call, 1000, &self.now) {
            for packet in batch.packets() {
                check_packet(&packet.flatten().copied().collect::<Vec<u8>>(), writers);
            }
            if !batch.has_more {
                break;
            }
        }
    }
}

/// Asserts that a packet says who wrote it, and says nothing else that only the service may say if a producer did.
fn check_packet(packet: &[u8], writers: Writers) {
    let fields = naive_fields(packet, TagWidth::Bits64).expect("a packet of whole fields");
    let all = |number| {
        fields
            .iter()
            .filter(move |field| field.number == number)
            .map(|field| field.value)
    };
    let uids: Vec<u64> = all(field::TRUSTED_UID).collect();
    match (&uids[..], writers) {
        ([SERVICE_UID], _) => {}
        ([uid], Writers::Everyone) if *uid == u64::from(PRODUCER_UID) => {
            let sequences: Vec<u64> = all(field::TRUSTED_PACKET_SEQUENCE_ID).collect();
            assert!(
                matches!(sequences[..], [sequence] if sequence > 1),
                "sequence ids {sequences:?}"
            );
            assert!(all(field::TRUSTED_PID).eq([77]));
            let the_services = [
                field::TRUSTED_UID,
                field::TRUSTED_PACKET_SEQUENCE_ID,
                field::TRUSTED_PID,
                field::MACHINE_ID,
            ];
            let forged = RESERVED_FIELDS
                .iter()
                .filter(|number| !the_services.contains(number));
            assert_eq!(forged.flat_map(|number| all(*number)).next(), None);
            assert_eq!(all(field::MACHINE_ID).next(), None);
        }
        _ => panic!("a packet with the trusted uids {uids:?}"),
    }
}
