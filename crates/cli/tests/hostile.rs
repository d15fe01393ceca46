//! Our `traced` with clients that send invalid data: it hangs up on them, and goes on recording for others.
//!
//! Everything is made from a seed, which is printed; `FERRETTO_SEED` repeats one.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::peers::{Producer, config, enabling, introduction};
use crate::support::process::resident_kb;
use crate::support::random::Random;
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::wire::{Client, registration_of};
use crate::support::{PATIENCE, Program, Programs, Running, Side, System};
use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT, ServiceDescriptor};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, EnableTracingRequest, EnableTracingResponse,
    InitializeConnectionRequest, Message, TraceConfig, commit_data_request, trace_config,
};
use ferretto_proto::write;
use ferretto_wire::{Reader, Writer};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::Signal;

/// The number of attacks of each kind.
const ATTACKS: usize = 60;
/// The memory in KB that the service may keep after them.
const MEMORY_KEPT: u64 = 32 * 1024;

impl Random {
    fn bytes_up_to(&mut self, at_most: usize) -> Vec<u8> {
        let count = self.below(at_most + 1);
        self.bytes(count)
    }

    /// Returns numbers of every magnitude, with extremes more often than their share.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.next() % 4,
            1 => u64::MAX >> self.below(64),
            2 => 1 << self.below(64),
            _ => self.next() >> self.below(64),
        }
    }

    /// Returns a message with random fields.
    fn message(&mut self, depth: usize) -> Vec<u8> {
        let mut message = Writer::new();
        for _ in 0..self.below(6) {
            let number = self.below(20) as u32 + 1;
            match self.below(if depth == 0 { 4 } else { 6 }) {
                0 => message.varint_field(number, self.number()),
                1 => message.fixed32_field(number, self.next() as u32),
                2 => message.fixed64_field(number, self.next()),
                3 => message.bytes_field(number, &self.bytes_up_to(40)),
                _ => message.bytes_field(number, &self.message(depth - 1)),
            };
        }
        message.as_slice().to_vec()
    }

    /// Changes, removes and doubles some bytes.
    fn damage(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        for _ in 0..self.below(4) {
            if bytes.is_empty() {
                break;
            }
            let at = self.below(bytes.len());
            match self.below(3) {
                0 => bytes[at] = self.next() as u8,
                1 => bytes.truncate(at),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

fn bind(port: &ServiceDescriptor) -> Vec<u8> {
    let mut frame = Writer::new();
    write::IPCFrame::new(&mut frame)
        .request_id(1)
        .msg_bind_service(|bind| {
            bind.service_name(port.name);
        });
    framed(frame.as_slice())
}

fn invoke(service: u32, method: u32, arguments: &[u8]) -> Vec<u8> {
    let mut frame = Writer::new();
    write::IPCFrame::new(&mut frame)
        .request_id(2)
        .msg_invoke_method(|invoke| {
            invoke.service_id(service).method_id(method).args_proto(arguments);
        });
    framed(frame.as_slice())
}

/// A possible request before it is damaged. Its numbers are out of all bounds.
fn request(random: &mut Random, method: &str) -> Vec<u8> {
    let name = || Some("hostile".to_owned());
    match method {
        "InitializeConnection" => InitializeConnectionRequest {
            producer_name: name(),
            shared_memory_size_hint_bytes: Some(random.number() as u32),
            shared_memory_page_size_hint_bytes: Some(random.number() as u32),
            producer_provided_shmem: Some(random.below(2) == 0),
            ..Default::default()
        }
        .encode_to_vec(),
        "RegisterDataSource" => {
            let descriptor = DataSourceDescriptor {
                name: name(),
                ..Default::default()
            };
            registration_of(descriptor)
        }
        "CommitData" => {
            let chunk = commit_data_request::ChunksToMove {
                page: Some(random.number() as u32),
                chunk: Some(random.number() as u32),
                target_buffer: Some(random.number() as u32),
                ..Default::default()
            };
            let patch = commit_data_request::chunk_to_patch::Patch {
                offset: Some(random.number() as u32),
                data: Some(random.bytes_up_to(8)),
                ..Default::default()
            };
            let patched = commit_data_request::ChunkToPatch {
                target_buffer: Some(random.number() as u32),
                writer_id: Some(random.number() as u32),
                chunk_id: Some(random.number() as u32),
                patches: vec![patch; random.below(5)],
                ..Default::default()
            };
            CommitDataRequest {
                chunks_to_move: vec![chunk; random.below(5)],
                chunks_to_patch: vec![patched; random.below(5)],
                flush_request_id: Some(random.number()),
                ..Default::default()
            }
            .encode_to_vec()
        }
        "EnableTracing" => {
            let source = DataSourceConfig {
                name: name(),
                ..Default::default()
            };
            let config = TraceConfig {
                buffers: vec![trace_config::BufferConfig {
                    size_kb: Some(random.below(8192) as u32),
                    ..Default::default()
                }],
                data_sources: vec![trace_config::DataSource {
                    config: source.into(),
                    ..Default::default()
                }],
                duration_ms: Some(random.number() as u32),
                flush_period_ms: Some(random.number() as u32),
                ..Default::default()
            };
            EnableTracingRequest {
                trace_config: config.into(),
                ..Default::default()
            }
            .encode_to_vec()
        }
        _ => random.message(2),
    }
}

/// A hostile client.
struct Attacker<'a> {
    random: &'a mut Random,
    socket: &'a Path,
    port: &'static ServiceDescriptor,
}

impl Attacker<'_> {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket).expect("the service listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // The service may stop reading from a client that does not read its replies.
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        stream
    }

    /// Sends these bytes, and waits until the service has hung up.
    fn send(&self, bytes: &[u8]) {
        let mut stream = self.connect();
        // The service may hang up in the middle.
        let _ = stream.write_all(bytes);
        hang_up(stream);
    }

    fn random_bytes(&mut self) {
        let bytes = self.random.bytes_up_to(10_000);
        self.send(&bytes);
    }

    fn half_a_frame(&mut self) {
        let whole = framed(&self.random.message(3));
        let half = self.random.below(whole.len());
        self.send(&whole[..half]);
    }

    fn huge_length(&mut self) {
        let length = match self.random.below(3) {
            0 => u32::MAX,
            1 => MAX_FRAME as u32 - 3,
            _ => self.random.next() as u32 | 1 << 20,
        };
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(self.random.bytes_up_to(MAX_FRAME));
        self.send(&bytes);
    }

    fn wrong_message(&mut self) {
        let frames: Vec<u8> = (0..20).flat_map(|_| framed(&self.random.message(3))).collect();
        self.send(&frames);
    }

    /// Sends the port's methods and unknown ones in random order, with damaged arguments.
    fn damaged_calls(&mut self) {
        let mut bytes = bind(self.port);
        if self.random.below(4) > 0 && self.port.name == PRODUCER_PORT.name {
            bytes.extend(invoke(
                1,
                1,
                &InitializeConnectionRequest::default().encode_to_vec(),
            ));
        }
        for _ in 0..30 {
            let method = self.random.below(self.port.methods.len() + 2);
            let name = self.port.methods.get(method).copied().unwrap_or_default();
            let arguments = match self.random.below(3) {
                0 => self.random.message(3),
                _ => {
                    let request = request(self.random, name);
                    self.random.damage(request)
                }
            };
            bytes.extend(invoke(
                1 + self.random.below(8) as u32 / 7,
                method as u32 + 1,
                &arguments,
            ));
        }
        if self.random.below(2) == 0 {
            bytes = self.random.damage(bytes);
        }
        self.send(&bytes);
    }

    /// Offers invalid shared memory, or memory that its owner truncates later.
    fn bad_shared_memory(&mut self) {
        let memory = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 1 << 20).unwrap();
        let offered: OwnedFd = match self.random.below(4) {
            0 => std::fs::File::open("/dev/zero").unwrap().into(),
            1 => {
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                    .unwrap()
                    .0
            }
            2 => std::fs::File::open("/").unwrap().into(),
            _ => memory.try_clone().unwrap(),
        };
        let stream = self.connect();
        send_with(&stream, &bind(self.port), None);
        let request = InitializeConnectionRequest {
            shared_memory_page_size_hint_bytes: Some(4096),
            producer_provided_shmem: Some(true),
            ..Default::default()
        };
        send_with(&stream, &invoke(1, 1, &request.encode_to_vec()), Some(&offered));
        // A service that relied on the memory's size would now fault.
        rustix::fs::ftruncate(&memory, 0).unwrap();
        for _ in 0..5 {
            let commit = request_of_commit(self.random);
            send_with(&stream, &invoke(1, 4, &commit), Some(&offered));
        }
        hang_up(stream);
    }
}

fn request_of_commit(random: &mut Random) -> Vec<u8> {
    let chunk = commit_data_request::ChunksToMove {
        page: Some(random.below(300) as u32),
        chunk: Some(random.below(16) as u32),
        target_buffer: Some(random.below(4) as u32),
        ..Default::default()
    };
    CommitDataRequest {
        chunks_to_move: vec![chunk; 3],
        ..Default::default()
    }
    .encode_to_vec()
}

fn send_with(stream: &UnixStream, bytes: &[u8], fd: Option<&OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    // The service may have hung up.
    let _ = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// Closes the sending direction, and reads until the service has hung up.
fn hang_up(mut stream: UnixStream) {
    let _ = stream.shutdown(Shutdown::Write);
    let mut replies = [0; 4096];
    loop {
        match stream.read(&mut replies) {
            Ok(0) => return,
            Ok(_) => {}
            // The service has left some of our bytes unread.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the service does not hang up: {error}"),
        }
    }
}

fn packets_with(trace: &Path, field: u32) -> usize {
    let bytes = std::fs::read(trace).unwrap();
    Reader::new(&bytes)
        .filter(|packet| {
            let packet = packet.as_ref().unwrap().value.as_bytes().unwrap();
            Reader::new(packet).any(|found| found.unwrap().number == field)
        })
        .count()
}

const PROCESSES: &str = r#"
buffers { size_kb: 4096 }
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true }
} }
"#;

#[test]
fn the_service_survives_garbage_and_records_afterwards() {
    let seed = std::env::var("FERRETTO_SEED").map_or(20_261_120, |seed| seed.parse().unwrap());
    println!("FERRETTO_SEED={seed}");
    let random = &mut Random(seed);
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = system.start(Side::Ours, Program::Traced);
    system.start(Side::Ours, Program::TracedProbes);
    let before = resident_kb(service);
    let ports = [
        (system.producer_socket(), &PRODUCER_PORT),
        (system.consumer_socket(), &CONSUMER_PORT),
    ];
    for number in 0..6 * ATTACKS {
        let (socket, port) = &ports[random.below(2)];
        let mut attacker = Attacker { random, socket, port };
        match number % 6 {
            0 => attacker.random_bytes(),
            1 => attacker.half_a_frame(),
            2 => attacker.huge_length(),
            3 => attacker.wrong_message(),
            4 => attacker.damaged_calls(),
            _ => attacker.bad_shared_memory(),
        }
    }
    system.assert_running();
    system.await_state(|state| state.producers.len() == 1 && state.num_sessions == Some(0));
    let kept = resident_kb(service).saturating_sub(before);
    assert!(kept <= MEMORY_KEPT, "the service grew by {kept} KB");

    let trace = system.record(Side::Ours, PROCESSES).interrupt();
    assert!(
        packets_with(&trace, write::TracePacket::PROCESS_TREE) > 0,
        "no processes in {}",
        trace.display()
    );
}

/// A socket whose last descriptor takes a minute to close, and its peer, which reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while (&sender).write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(2 * PATIENCE)).unwrap();
    (sender.into(), peer)
}

/// A client that passes a descriptor controls how long closing it takes.
#[test]
fn descriptors_that_take_long_to_close_hold_up_nobody() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = system.start(Side::Ours, Program::Traced);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut peers = Vec::new();
    let mut lingering = || {
        let (socket, peer) = lingering();
        peers.push(peer);
        socket
    };
    let mut is_served = |after: &str| {
        println!("{after}");
        assert!(other.ask("QueryCapabilities", &[]).reply.is_some());
    };

    let offering = InitializeConnectionRequest {
        producer_provided_shmem: Some(true),
        ..introduction("p")
    };
    let producer = Producer::new(&system, &offering, Some(&lingering()));
    assert_eq!(producer.answer.using_shmem_provided_by_producer, Some(false));
    is_served("one that is offered as shared memory");

    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    consumer.call_with("GetTraceStats", &[], Some(&lingering()));
    is_served("one that comes with a call that takes none");
    let refused = TraceConfig {
        write_into_file: Some(true),
        duration_ms: Some(u32::MAX),
        ..config("d")
    };
    let call = consumer.call_with("EnableTracing", &enabling(refused), Some(&lingering()));
    let answer: EnableTracingResponse = consumer.answer(call).decode();
    assert!(answer.error.is_some());
    is_served("one for the trace of a config that is refused");
    consumer.send(&[8], Some(&lingering()));
    drop(consumer);
    is_served("one with a frame that does not come whole");

    let stream = UnixStream::connect(system.consumer_socket()).unwrap();
    let many: Vec<OwnedFd> = (0..200).map(|_| lingering()).collect();
    {
        let borrowed: Vec<_> = many.iter().map(AsFd::as_fd).collect();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
        rustix::net::sendmsg(&stream, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
    }
    drop(many);
    hang_up(stream);
    is_served("more than any message may bring");

    // The kernel closes descriptors in unread messages, in the thread that closes the connection.
    let pid = rustix::process::Pid::from_raw(service as i32).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let stream = UnixStream::connect(system.consumer_socket()).unwrap();
    let huge = [0xff; 8];
    rustix::net::send(&stream, &huge, SendFlags::NOSIGNAL).unwrap();
    send_with(&stream, b"x", Some(&lingering()));
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    is_served("one behind bytes that end the connection");
    hang_up(stream);
    is_served("when that connection has ended");
    system.assert_running();
}

/// The trace has only complete packets, regardless of the state in which a killed producer leaves its shared memory.
#[test]
fn producers_killed_while_they_write_leave_whole_packets() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let Some(program) = std::env::var_os("FERRETTO_CXX_PRODUCER").map(PathBuf::from) else {
        println!("skipped: name the program of interop/cxx-producer in FERRETTO_CXX_PRODUCER");
        return;
    };
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    // The buffer has room for all packets of 1 MiB, however long a slow disk keeps the service from writing them into the file.
    let config = r#"
        buffers { size_kb: 524288 fill_policy: RING_BUFFER }
        data_sources { config { name: "ferretto.interop.large" } }
        write_into_file: true file_write_period_ms: 100 flush_period_ms: 1000
        "#;
    let recording = system.record(Side::Ours, config);
    for written in [1, 8 << 20, 20 << 20] {
        let mut producer = system.command(&program, "producer.log");
        let producer = Running(
            producer
                .args(["--events", "0", "--packets", "150"])
                .spawn()
                .unwrap(),
        );
        let until = Instant::now() + PATIENCE;
        while std::fs::metadata(recording.trace()).unwrap().len() < written {
            assert!(Instant::now() < until, "{}", system.log("producer.log"));
            std::thread::yield_now();
        }
        producer.signal(Signal::KILL);
    }
    system.await_state(|state| state.producers.is_empty());
    let trace = recording.interrupt();
    system.assert_running();
    let [losses, large] = processor.query(
        &trace,
        [
            LOSSES,
            "select count(*) >= 20, sum(length(payload) != 1048576 or replace(payload, word, '') != '')
            from (select payload, printf('%08x%08x', number, (number * 2654435761) & 4294967295) word
                from (select extract_arg(arg_set_id, 'debug.number') number,
                        extract_arg(arg_set_id, 'debug.payload') payload
                    from slice where name = 'large'))",
        ],
    );
    assert_eq!(numbers(&large), [1, 0]);
    assert_eq!(losses, Rows::new());
}
