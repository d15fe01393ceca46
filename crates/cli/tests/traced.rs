//! The daemon `traced` on private sockets, with clients that misbehave.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::inherit;
use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_client::producer::{
    CommitReply, ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions,
};
use ferretto_ipc::client::{CallId, More};
use ferretto_ipc::reactor::Interest;
use ferretto_ipc::{Address, Stream};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, TracePacket,
    TracingServiceState, TrackEventCategory, TrackEventDescriptor, commit_data_request, trace_packet,
};
use ferretto_proto::write;
use ferretto_wire::{Reader, Value, Writer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, kill_process};

/// The time that a test waits for anything before it fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A daemon that ends with the test.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::start_as(Command::new(env!("CARGO_BIN_EXE_traced")))
    }

    fn start_as(mut command: Command) -> Daemon {
        let folder = crate::support::socket_folder::socket_folder("ferretto-test-");
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", folder.path().join("producer"))
            .env("PERFETTO_CONSUMER_SOCK_NAME", folder.path().join("consumer"));
        let (child, mut ready) = Daemon::spawn(command, folder.path());
        ready.read_exact(&mut [0]).unwrap();
        Daemon { child, folder }
    }

    /// Starts a daemon with a log in this folder; returns the descriptor that shows when it is ready.
    fn spawn(mut command: Command, folder: &Path) -> (Child, File) {
        let (read, write) = own_pipe();
        let number = inherit(&mut command, &write);
        let child = command
            .env("TRACED_NOTIFY_FD", number.to_string())
            .stdin(Stdio::null())
            .stderr(File::create(folder.join("log")).unwrap())
            .spawn()
            .unwrap();
        drop(write);
        (child, File::from(read))
    }

    fn address(&self, name: &str) -> Address {
        Address::Unix(self.folder.path().join(name))
    }

    fn consumer(&self) -> Consumer {
        Consumer {
            endpoint: ConsumerEndpoint::connect(&self.address("consumer")).unwrap(),
            replies: Vec::new(),
        }
    }

    fn producer(&self, name: &str) -> Producer {
        let options = ProducerOptions {
            name: name.into(),
            ..Default::default()
        };
        Producer {
            endpoint: ProducerEndpoint::connect(&self.address("producer"), options).unwrap(),
            log: Vec::new(),
            target: 0,
            chunks: 0,
        }
    }

    /// Returns the most memory that it has had resident so far, in KB.
    fn peak_memory_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that daemons of other tests do not inherit.
fn own_pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap()
}

/// Waits until a socket is as wanted; `false` after a while.
fn ready(fd: &impl AsFd, interest: Interest) -> bool {
    let flags = match interest {
        Interest::None => PollFlags::empty(),
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
        Interest::Both => PollFlags::IN | PollFlags::OUT,
    };
    let patience = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(fd, flags)], Some(&patience)).unwrap() > 0
}

struct Consumer {
    endpoint: ConsumerEndpoint,
    replies: Vec<(CallId, Option<ConsumerReply>)>,
}

impl Consumer {
    /// Sends pending data and reads until there is an answer.
    fn until<T>(
        &mut self,
        mut found: impl FnMut(&mut Vec<(CallId, Option<ConsumerReply>)>) -> Option<T>,
    ) -> T {
        loop {
            self.endpoint.flush();
            let mut lost = None;
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    ConsumerEvent::Connected => {}
                    ConsumerEvent::Reply { request, reply, .. } => self.replies.push((request, reply.ok())),
                    ConsumerEvent::Disconnected(why) => lost = Some(why),
                }
            }
            if let Some(answer) = found(&mut self.replies) {
                return answer;
            }
            assert!(lost.is_none(), "{lost:?}");
            assert!(ready(&self.endpoint, self.endpoint.interest()), "nothing happens");
            self.endpoint.on_readable();
        }
    }

    fn reply(&mut self, call: CallId) -> Option<ConsumerReply> {
        self.until(|replies| {
            let position = replies.iter().position(|(id, _)| *id == call)?;
            Some(replies.remove(position).1)
        })
    }

    /// Sends all pending data, without reading.
    fn send(&mut self) {
        while matches!(self.endpoint.interest(), Interest::Both | Interest::Writable) {
            assert!(ready(&self.endpoint, Interest::Writable));
            self.endpoint.flush();
        }
    }

    fn enable(&mut self, config: &TraceConfig, file: Option<OwnedFd>) -> CallId {
        let call = self
            .endpoint
            .enable_tracing(&config.encode_to_vec(), file)
            .unwrap();
        // An answer to this shows that the service has handled the request.
        self.state();
        call
    }

    fn state(&mut self) -> Box<TracingServiceState> {
        let call = self.endpoint.query_service_state(StateScope::Everything).unwrap();
        match self.reply(call) {
            Some(ConsumerReply::ServiceState { state, .. }) => state,
            other => panic!("{other:?}"),
        }
    }

    fn await_state(&mut self, wanted: impl Fn(&TracingServiceState) -> bool) {
        let start = Instant::now();
        while !wanted(&self.state()) {
            assert!(
                start.elapsed() < PATIENCE,
                "the service did not come to the wanted state"
            );
        }
    }

    /// Reads everything; calls `with` for each packet.
    fn read(&mut self, with: impl FnMut(&[u8])) {
        let call = self.endpoint.read_buffers().unwrap();
        self.read_all(call, with);
    }

    fn read_all(&mut self, call: CallId, mut with: impl FnMut(&[u8])) {
        loop {
            match self.reply(call) {
                Some(ConsumerReply::TraceData { packets, more }) => {
                    packets.iter().for_each(&mut with);
                    if more == More::Last {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Stops the session and waits for its end.
    fn disable(&mut self, enabled: CallId) -> Option<String> {
        self.endpoint.disable_tracing().unwrap();
        self.ended(enabled)
    }

    fn ended(&mut self, enabled: CallId) -> Option<String> {
        match self.reply(enabled) {
            Some(ConsumerReply::TracingDisabled { error }) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// A producer that sends its chunks inside its requests.
struct Producer {
    endpoint: ProducerEndpoint,
    log: Vec<&'static str>,
    target: u32,
    chunks: u32,
}

impl Producer {
    fn until(&mut self, wanted: &'static str) {
        loop {
            self.endpoint.flush();
            while let Some(event) = self.endpoint.next_event() {
                self.log.push(match event {
                    ProducerEvent::Connected(_) => "connected",
                    ProducerEvent::Synced(_) => "synced",
                    ProducerEvent::Committed(_) => "committed",
                    ProducerEvent::Command(ProducerCommand::SetupTracing(_)) => "memory",
                    ProducerEvent::Command(ProducerCommand::SetupDataSource(setup)) => {
                        self.target = setup.config.target_buffer.unwrap();
                        "set up"
                    }
                    ProducerEvent::Command(ProducerCommand::StartDataSource(_)) => "start",
                    ProducerEvent::Command(_) => "command",
                    ProducerEvent::RequestFailed { .. } => "failed",
                    ProducerEvent::Disconnected(_) => "disconnected",
                });
            }
            if self.log.contains(&wanted) {
                return;
            }
            assert!(
                ready(&self.endpoint, self.endpoint.interest()),
                "nothing happens: {:?}",
                self.log
            );
            self.endpoint.on_readable();
        }
    }

    fn offer(&mut self, name: &str) {
        self.register(DataSourceDescriptor {
            name: Some(name.into()),
            ..Default::default()
        });
    }

    fn register(&mut self, descriptor: DataSourceDescriptor) {
        self.endpoint.register_data_source(descriptor).unwrap();
        self.endpoint.sync().unwrap();
        self.until("synced");
        self.log.retain(|what| *what != "synced");
    }

    /// Commits a chunk with one packet of about this size.
    fn commit(&mut self, size: usize) {
        let request = self.chunk(size);
        while self.endpoint.outgoing_room() < 2 * size + 1000 {
            assert!(ready(&self.endpoint, Interest::Writable));
            self.endpoint.flush();
        }
        self.endpoint.commit(request, CommitReply::Unwanted).unwrap();
    }

    fn chunk(&mut self, size: usize) -> CommitDataRequest {
        let mut packet = Writer::new();
        packet.nested(write::TracePacket::FOR_TESTING, |event| {
            event.bytes_field(write::TestEvent::STR, &vec![b'x'; size.saturating_sub(10)]);
        });
        let mut chunk = Writer::new();
        chunk.raw(&self.chunks.to_le_bytes());
        chunk.raw(&[1, 0, 1, 0]);
        chunk.varint(packet.len() as u64);
        chunk.raw(packet.as_slice());
        self.chunks += 1;
        CommitDataRequest {
            chunks_to_move: vec![commit_data_request::ChunksToMove {
                target_buffer: Some(self.target),
                data: Some(chunk.as_slice().to_vec()),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// Waits until the service has copied all commits so far.
    fn await_commits(&mut self) {
        self.endpoint.sync().unwrap();
        self.until("synced");
        self.log.retain(|what| *what != "synced");
    }
}

fn config(size_kb: u32) -> TraceConfig {
    TraceConfig {
        buffers: vec![BufferConfig {
            size_kb: Some(size_kb),
            ..Default::default()
        }],
        data_sources: vec![DataSource {
            config: DataSourceConfig {
                name: Some("d".into()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn into_file(size_kb: u32) -> TraceConfig {
    TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(100),
        ..config(size_kb)
    }
}

/// Whether this packet is from a test's producer.
fn of_test(packet: &[u8]) -> bool {
    Reader::new(packet).any(|field| field.unwrap().number == write::TracePacket::FOR_TESTING)
}

/// Returns the number of packets of a test's producer in a trace file. Fails if it is no trace.
fn test_packets(trace: &[u8]) -> usize {
    let packets = Reader::new(trace).map(|packet| match packet.unwrap().value {
        Value::Bytes(bytes) => of_test(bytes),
        other => panic!("{other:?} is no packet"),
    });
    packets.filter(|of_test| *of_test).count()
}

#[test]
fn consequences_of_a_request_come_before_the_reply_to_sync() {
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    consumer.enable(&config(64), None);
    let mut producer = daemon.producer("p");
    producer
        .endpoint
        .register_data_source(DataSourceDescriptor {
            name: Some("d".into()),
            ..Default::default()
        })
        .unwrap();
    producer.endpoint.sync().unwrap();
    producer.until("synced");
    assert_eq!(producer.log, ["connected", "memory", "set up", "start", "synced"]);
}

#[test]
fn data_that_a_producer_sent_before_it_disconnected_are_kept() {
    const CHUNKS: usize = 5000;
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    let enabled = consumer.enable(&config(8192), None);
    let mut producer = daemon.producer("p");
    producer.offer("d");
    // Far more requests than one turn handles, and replies that nobody will read.
    for _ in 0..CHUNKS {
        producer.commit(50);
        producer
            .endpoint
            .register_trace_writer(ferretto_smb::WriterId(2), ferretto_client::arbiter::BufferId(1))
            .unwrap();
    }
    while producer.endpoint.interest() != Interest::Readable {
        assert!(ready(&producer.endpoint, Interest::Writable));
        producer.endpoint.flush();
    }
    drop(producer);
    consumer.await_state(|state| state.producers.is_empty());
    consumer.disable(enabled);
    let mut read = 0;
    consumer.read(|packet| read += usize::from(of_test(packet)));
    assert_eq!(read, CHUNKS);
}

#[test]
fn requests_that_waited_for_their_consumer_to_read_are_handled_when_it_does() {
    let daemon = Daemon::start();
    let mut producer = daemon.producer("p");
    for n in 1..=4 {
        producer.register(DataSourceDescriptor {
            name: Some(format!("bulky {n}")),
            id: Some(n),
            track_event_descriptor: TrackEventDescriptor {
                available_categories: vec![TrackEventCategory {
                    name: Some("x".repeat(100_000)),
                    ..Default::default()
                }],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        });
    }
    let (mut lazy, mut other) = (daemon.consumer(), daemon.consumer());
    let calls: Vec<CallId> = (0..50)
        .map(|_| lazy.endpoint.query_service_state(StateScope::Everything).unwrap())
        .collect();
    // The first answer shows that the calls, which follow it in one piece, are there.
    let first = lazy.reply(calls[0]);
    assert!(matches!(first, Some(ConsumerReply::ServiceState { .. })));
    lazy.send();
    for _ in 0..20 {
        assert_eq!(other.state().data_sources.len(), 4);
    }
    for call in &calls[1..] {
        match lazy.reply(*call) {
            Some(ConsumerReply::ServiceState { state, .. }) => assert_eq!(state.data_sources.len(), 4),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_flood_of_tiny_commits_leaves_others_their_turn() {
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    consumer.enable(&config(1024), None);
    let mut producer = daemon.producer("flood");
    producer.offer("d");
    // `floods.rs` counts the requests of a flood that are handled before an answer. Here the flood goes on until there were answers.
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let flood = threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                producer.commit(20);
            }
        });
        for _ in 0..50 {
            consumer.state();
            assert!(!flood.is_finished(), "the flood has ended");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn reading_a_large_buffer_takes_no_more_memory_than_the_buffer_however_slow_the_reader() {
    let size_mb: usize = std::env::var("FERRETTO_LARGE_BUFFER_MB").map_or(32, |text| text.parse().unwrap());
    const PACKET: usize = 30_000;
    let daemon = Daemon::start();
    let (mut reader, mut other) = (daemon.consumer(), daemon.consumer());
    let enabled = reader.enable(&config(u32::try_from(size_mb * 1024).unwrap()), None);
    let mut producer = daemon.producer("p");
    producer.offer("d");
    let count = size_mb * 1024 * 1024 * 9 / 10 / PACKET;
    for _ in 0..count {
        producer.commit(PACKET);
    }
    producer.await_commits();
    reader.disable(enabled);
    let before = daemon.peak_memory_kb();
    let call = reader.endpoint.read_buffers().unwrap();
    reader.send();
    // While it takes nothing, other clients are served.
    for _ in 0..100 {
        other.state();
    }
    let mut read = 0;
    reader.read_all(call, |packet| read += usize::from(of_test(packet)));
    assert_eq!(read, count);
    let growth = daemon.peak_memory_kb() - before;
    assert!(growth < 8 * 1024, "{growth} KB more than {before} KB");
}

#[test]
fn reading_comes_before_freeing_when_both_are_requested_at_once() {
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    let enabled = consumer.enable(&config(64), None);
    let mut producer = daemon.producer("p");
    producer.offer("d");
    producer.commit(100);
    producer.await_commits();
    consumer.disable(enabled);
    let read = consumer.endpoint.read_buffers().unwrap();
    let free = consumer.endpoint.free_buffers().unwrap();
    let mut packets = 0;
    consumer.read_all(read, |packet| packets += usize::from(of_test(packet)));
    assert_eq!(packets, 1);
    assert!(matches!(consumer.reply(free), Some(ConsumerReply::Done)));
}

#[test]
fn a_second_read_takes_over_from_the_first() {
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    let enabled = consumer.enable(&config(8192), None);
    let mut producer = daemon.producer("p");
    producer.offer("d");
    for _ in 0..200 {
        producer.commit(30_000);
    }
    producer.await_commits();
    consumer.disable(enabled);
    let first = consumer.endpoint.read_buffers().unwrap();
    let second = consumer.endpoint.read_buffers().unwrap();
    let mut packets = 0;
    while let Some(reply) = consumer.reply(first) {
        match reply {
            ConsumerReply::TraceData { packets: some, more } => {
                packets += some.iter().filter(|packet| of_test(packet)).count();
                assert_eq!(more, More::Follows, "it is ended with a rejection");
            }
            other => panic!("{other:?}"),
        }
    }
    consumer.read_all(second, |packet| packets += usize::from(of_test(packet)));
    assert_eq!(packets, 200);
}

#[test]
fn a_pipe_that_nobody_reads_holds_up_its_own_session_only() {
    let daemon = Daemon::start();
    let (mut streaming, mut other) = (daemon.consumer(), daemon.consumer());
    let (read, write) = own_pipe();
    let probe = write.try_clone().unwrap();
    let enabled = streaming.enable(&into_file(8192), Some(write));
    let mut producer = daemon.producer("p");
    producer.offer("d");
    for _ in 0..100 {
        producer.commit(30_000);
    }
    producer.await_commits();
    // Until the pipe takes no more data.
    let start = Instant::now();
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    while poll(&mut [PollFd::new(&probe, PollFlags::OUT)], Some(&at_once)).unwrap() > 0 {
        assert!(start.elapsed() < PATIENCE);
        other.state();
    }
    drop(probe);
    let beside = other.enable(&config(64), None);
    assert_eq!(other.disable(beside), None);
    other.read(|_| {});
    streaming.endpoint.disable_tracing().unwrap();
    streaming.state();
    let mut trace = Vec::new();
    File::from(read).read_to_end(&mut trace).unwrap();
    assert_eq!(test_packets(&trace), 100);
    assert_eq!(streaming.ended(enabled), None);
}

#[test]
fn a_pipe_whose_reader_is_gone_ends_the_session_with_an_error() {
    let daemon = Daemon::start();
    let mut consumer = daemon.consumer();
    let (read, write) = own_pipe();
    drop(read);
    // The pipe is in error once processes that other tests are starting have closed their copies of its reading end.
    assert!(ready(&write, Interest::None));
    let enabled = consumer.enable(&into_file(64), Some(write));
    let error = consumer.ended(enabled).unwrap();
    assert!(error.contains("trace file") && error.contains("pipe"), "{error}");
    consumer.endpoint.free_buffers().unwrap();
    consumer.await_state(|state| state.tracing_sessions.is_empty());
}

#[test]
fn a_daemon_that_is_told_to_end_completes_files_and_tells_consumers() {
    let mut daemon = Daemon::start();
    let mut producer = daemon.producer("p");
    producer.offer("d");
    let path = |name: &str| daemon.folder.path().join(name);
    let open = |name: &str| OwnedFd::from(File::create(path(name)).unwrap());
    let slow = TraceConfig {
        file_write_period_ms: Some(3_600_000),
        write_flush_mode: Some(ferretto_proto::messages::trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED),
        ..into_file(1024)
    };
    let (mut attached, mut detached) = (daemon.consumer(), daemon.consumer());
    let enabled = attached.enable(&slow, Some(open("attached")));
    producer.until("start");
    producer.commit(100);
    producer.log.clear();
    detached.enable(&slow, Some(open("detached")));
    let detach = detached.endpoint.detach("key").unwrap();
    assert!(matches!(detached.reply(detach), Some(ConsumerReply::Done)));
    drop(detached);
    producer.until("start");
    producer.commit(100);
    producer.await_commits();
    daemon.terminate();
    assert_eq!(attached.ended(enabled), None);
    // Then nobody is left who could read.
    drop(attached);
    assert!(daemon.child.wait().unwrap().success());
    for name in ["attached", "detached"] {
        let trace = std::fs::read(daemon.folder.path().join(name)).unwrap();
        assert_eq!(test_packets(&trace), 1, "{name}");
    }
}

#[test]
fn a_daemon_reports_a_failure_after_it_has_logged_the_reason() {
    let folder = crate::support::socket_folder::socket_folder("ferretto-test-");
    // Either may come first, so the test repeats.
    for _ in 0..20 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_traced"));
        command.env("PERFETTO_PRODUCER_SOCK_NAME", "x".repeat(200));
        let (mut child, mut ready) = Daemon::spawn(command, folder.path());
        assert_eq!(ready.read(&mut [0]).unwrap(), 0);
        let said = std::fs::read_to_string(folder.path().join("log")).unwrap();
        assert!(said.contains("is 200 bytes long"), "{said:?}");
        assert!(!child.wait().unwrap().success());
    }
}

#[test]
fn clients_that_say_nothing_cost_a_descriptor_and_nothing_else() {
    let daemon = Daemon::start();
    let silent: Vec<Stream> = (0..200)
        .map(|n| {
            let port = if n % 2 == 0 { "producer" } else { "consumer" };
            Stream::connect(&daemon.address(port)).unwrap()
        })
        .collect();
    let mut consumer = daemon.consumer();
    assert!(consumer.state().producers.is_empty());
    drop(silent);
    let enabled = consumer.enable(&config(64), None);
    assert_eq!(consumer.disable(enabled), None);
}

#[test]
fn a_trace_tells_the_local_time_of_the_season_that_it_was_read_in() {
    use chrono::{Datelike, Timelike};
    // A time zone whose summer time is about to begin.
    let begins = chrono::Utc::now() + Duration::from_secs(2);
    let (day, hour, minute, second) = (begins.ordinal0(), begins.hour(), begins.minute(), begins.second());
    let zone = format!(
        "WIN0SUM-2,{day}/{hour}:{minute:02}:{second:02},{}",
        (day + 100) % 365
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_traced"));
    command.env("TZ", zone);
    let daemon = Daemon::start_as(command);
    let mut consumer = daemon.consumer();
    while let Ok(left) = (begins - chrono::Utc::now()).to_std() {
        std::thread::sleep(left);
    }
    consumer.enable(&config(64), None);
    let mut offsets = Vec::new();
    consumer.read(|packet| {
        let packet = TracePacket::decode_from_slice(packet).unwrap();
        if let Some(trace_packet::Data::SystemInfo(info)) = packet.data {
            offsets.push(info.timezone_off_mins);
        }
    });
    assert_eq!(offsets, [Some(120)]);
}
