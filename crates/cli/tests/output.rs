//! Our `traced` writing into files that fail or take no data, and sending to consumers that do not read. The affected consumer is told, the written
//! data are a trace, and other sessions go on.
//!
//! `traced.rs` has pipes whose reader is gone or slow, and the tests of the service have files that are given up after a while.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::support::peers::{Producer, chunk, commit, config, enabling, introduction, state};
use crate::support::process::status_kb;
use crate::support::wire::Client;
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_ipc::ports::CONSUMER_PORT;
use ferretto_proto::messages::trace_config::{CompressionType, compression_config};
use ferretto_proto::messages::{
    EnableTracingResponse, ReadBuffersResponse, TraceConfig, TracingServiceState, trace_config,
};
use ferretto_proto::write;
use ferretto_service::compression::expand;
use ferretto_wire::{Reader, Writer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Resource, Rlimit};

fn service(programs: &Programs) -> System<'_> {
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    system
}

/// A consumer whose session streams into a file.
struct Streaming {
    client: Client,
    enabled: u64,
}

impl Streaming {
    fn begin(system: &System<'_>, config: TraceConfig, file: impl Into<OwnedFd>) -> Streaming {
        let mut client = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
        let enabled = client.call_with("EnableTracing", &enabling(config), Some(&file.into()));
        // An answer to this shows that the service has handled the request.
        state(&mut client);
        Streaming { client, enabled }
    }

    /// Waits for the end of the session; returns the error.
    fn ended(&mut self) -> Option<String> {
        let end: EnableTracingResponse = self.client.answer(self.enabled).decode();
        end.error
    }

    fn stop(&mut self) -> Option<String> {
        self.client.call("DisableTracing", &[]);
        self.ended()
    }
}

fn into_file(source: &str) -> TraceConfig {
    TraceConfig {
        write_into_file: Some(true),
        file_write_period_ms: Some(100),
        ..config(source)
    }
}

/// A producer that writes packets of noise, which cannot be compressed.
struct Noise {
    producer: Producer,
    target: u32,
    chunks: u32,
}

impl Noise {
    /// Joins a session that waits for this data source.
    fn join(system: &System<'_>, source: &str) -> Noise {
        let mut producer = Producer::new(system, &introduction(source), None);
        let (_, target) = producer.join(source);
        Noise {
            producer,
            target,
            chunks: 0,
        }
    }

    fn write(&mut self, packets: usize, size: usize) {
        for _ in 0..packets {
            let mut state = u64::from(self.chunks) << 20 | 1;
            let noise = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            });
            let payload: Vec<u8> = noise.take(size).collect();
            let data = chunk(self.chunks, &payload);
            self.producer
                .client
                .call("CommitData", &commit(self.target, data));
            self.chunks += 1;
        }
        self.producer.sync();
    }
}

/// Returns the number of test packets in a trace file, which has to consist of complete packets.
fn test_packets(trace: &[u8]) -> usize {
    Reader::new(trace)
        .map(|field| {
            let packet = field.expect("a trace").value.as_bytes().expect("a packet");
            match expand(packet, 1 << 30).expect("well compressed") {
                Some(inside) => test_packets(&inside),
                None => usize::from(
                    Reader::new(packet).any(|field| field.unwrap().number == write::TracePacket::FOR_TESTING),
                ),
            }
        })
        .sum()
}

fn content(mut file: &File) -> Vec<u8> {
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

fn no_sessions(state: &TracingServiceState) -> bool {
    state.tracing_sessions.is_empty()
}

/// A file on a disk of this size; or prints that the test is skipped.
fn on_small_disk(folder: &Path, kb: usize) -> Option<File> {
    let size = std::ffi::CString::new(format!("size={kb}k")).unwrap();
    if let Err(error) = rustix::mount::mount("ferretto-test", folder, "tmpfs", MountFlags::empty(), &*size) {
        println!("skipped: cannot mount a small disk: {error}");
        return None;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(folder.join("trace"));
    // The file system stays as long as the file.
    rustix::mount::unmount(folder, UnmountFlags::DETACH).unwrap();
    Some(file.unwrap())
}

/// Checks a session whose file takes no more at some point: it is told why, while another session goes on.
fn runs_out_of_room(system: &System<'_>, file: &File, compression: Option<CompressionType>, why: &str) {
    const PACKET: usize = 7000;
    let limited = TraceConfig {
        compression_type: compression,
        ..into_file("d")
    };
    let other = File::create(system.path("other")).unwrap();
    let mut full = Streaming::begin(system, limited, file.try_clone().unwrap());
    let mut noise = Noise::join(system, "d");
    let mut beside = Streaming::begin(system, into_file("other"), other);
    let mut others = Noise::join(system, "other");
    others.write(10, PACKET);
    // In small steps, because data that are compressed together are lost together.
    for _ in 0..2 * ROOM_KB * 1024 / (4 * PACKET) {
        noise.write(4, PACKET);
        let before = file.metadata().unwrap().len();
        let start = std::time::Instant::now();
        let record = |state: &TracingServiceState| state.num_sessions_started == Some(2);
        while record(&state(&mut beside.client)) && file.metadata().unwrap().len() == before {
            assert!(start.elapsed() < PATIENCE);
        }
    }
    let error = full.ended().expect("an error");
    assert!(
        error.contains("cannot write into the trace file") && error.contains(why),
        "{error}"
    );
    let trace = content(file);
    let kept = test_packets(&trace);
    assert!(
        kept * PACKET > ROOM_KB * 1024 / 2 && kept * PACKET <= ROOM_KB * 1024,
        "{kept} packets in {} bytes",
        trace.len()
    );
    full.client.ask("FreeBuffers", &[]);
    others.write(10, PACKET);
    assert_eq!(beside.stop(), None);
    assert_eq!(test_packets(&std::fs::read(system.path("other")).unwrap()), 20);
}

/// The size of a disk that should soon be full.
const ROOM_KB: usize = 300;

#[test]
fn a_full_disk_ends_the_session_with_an_error_and_leaves_whole_packets() {
    let programs = Programs::ours();
    let system = service(&programs);
    let folder = system.path("disk");
    std::fs::create_dir(&folder).unwrap();
    for compression in [None, Some(CompressionType::COMPRESSION_TYPE_DEFLATE)] {
        let Some(disk) = on_small_disk(&folder, ROOM_KB) else {
            return;
        };
        runs_out_of_room(&system, &disk, compression, "No space left");
    }
}

#[test]
fn a_file_that_reaches_the_limit_of_the_process_does_not_end_the_daemon() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = Pid::from_raw(system.start(Side::Ours, Program::Traced) as i32);
    let limit = Rlimit {
        current: Some(ROOM_KB as u64 * 1024),
        maximum: None,
    };
    rustix::process::prlimit(pid, Resource::Fsize, limit).unwrap();
    for compression in [None, Some(CompressionType::COMPRESSION_TYPE_DEFLATE)] {
        let file = tempfile::tempfile().unwrap();
        runs_out_of_room(&system, &file, compression, "File too large");
    }
}

#[test]
fn a_device_that_is_always_full_is_an_error_too() {
    let programs = Programs::ours();
    let system = service(&programs);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut streaming = Streaming::begin(&system, into_file("d"), full);
    let error = streaming.ended().expect("an error");
    assert!(error.contains("No space left"), "{error}");
    drop(streaming);
    system.await_state(no_sessions);
}

#[test]
fn a_descriptor_that_cannot_be_written_is_refused_with_a_reason() {
    let programs = Programs::ours();
    let system = service(&programs);
    let read_only = File::open("/dev/null").unwrap();
    let read_end = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .unwrap()
        .0;
    let fds: [OwnedFd; 2] = [read_only.into(), read_end];
    for fd in fds {
        let mut streaming = Streaming::begin(&system, into_file("d"), fd);
        let error = streaming.ended().expect("an error");
        assert!(error.contains("not open for writing"), "{error}");
        assert!(no_sessions(&state(&mut streaming.client)));
    }
    // No descriptor at all.
    let mut client = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let end: EnableTracingResponse = client.ask("EnableTracing", &enabling(into_file("d"))).decode();
    let error = end.error.expect("an error");
    assert!(error.contains("file descriptor"), "{error}");
}

#[test]
fn a_socket_whose_reader_goes_away_ends_the_session_with_an_error() {
    let programs = Programs::ours();
    let system = service(&programs);
    let (near, far) = UnixStream::pair().unwrap();
    let probe = near.try_clone().unwrap();
    let mut streaming = Streaming::begin(&system, into_file("d"), near);
    let mut noise = Noise::join(&system, "d");
    noise.write(1, 1000);
    // The reader reads a little, then closes its end.
    (&far).read_exact(&mut [0; 20]).unwrap();
    drop(far);
    // Waits until processes that other tests are starting have closed their copies.
    let patience = PATIENCE.try_into().unwrap();
    let mut hung_up = [PollFd::new(&probe, PollFlags::empty())];
    assert!(poll(&mut hung_up, Some(&patience)).unwrap() > 0);
    drop(probe);
    noise.write(1, 1000);
    let error = streaming.ended().expect("an error");
    assert!(
        error.contains("Broken pipe") || error.contains("Connection reset"),
        "{error}"
    );
    noise.producer.sync();
}

/// Waits until a pipe or socket takes no more data.
fn await_full(fd: &OwnedFd, client: &mut Client) {
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let start = std::time::Instant::now();
    while poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&at_once)).unwrap() > 0 {
        assert!(start.elapsed() < PATIENCE);
        state(client);
    }
}

#[test]
fn outputs_that_nobody_reads_hold_up_neither_commits_nor_other_sessions() {
    let programs = Programs::ours();
    let system = service(&programs);
    let fifo = system.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let fifo = OpenOptions::new().read(true).write(true).open(fifo).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let outputs: [(OwnedFd, File); 2] = [
        (fifo.try_clone().unwrap().into(), fifo),
        (near.into(), File::from(OwnedFd::from(far))),
    ];
    for (number, (output, mut reader)) in outputs.into_iter().enumerate() {
        let (stuck_source, free_source) = (format!("stuck {number}"), format!("free {number}"));
        let probe = output.try_clone().unwrap();
        let slow = TraceConfig {
            compression: trace_config::CompressionConfig {
                zstd: compression_config::Zstd {
                    level: Some(19),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            }
            .into(),
            ..into_file(&stuck_source)
        };
        let mut stuck = Streaming::begin(&system, slow, output);
        let mut noise = Noise::join(&system, &stuck_source);
        noise.write(60, 10_000);
        await_full(&probe, &mut stuck.client);
        drop(probe);

        // Commits to the same session, and another whole session.
        noise.write(5, 10_000);
        let path = system.path(&free_source);
        let mut free = Streaming::begin(&system, into_file(&free_source), File::create_new(&path).unwrap());
        let mut others = Noise::join(&system, &free_source);
        others.write(10, 1000);
        assert_eq!(free.stop(), None);
        assert_eq!(test_packets(&std::fs::read(path).unwrap()), 10);

        // Once there is a reader, it gets everything.
        stuck.client.call("DisableTracing", &[]);
        let reading = std::thread::spawn(move || {
            let mut trace = Vec::new();
            let mut buffer = [0; 1 << 16];
            while test_packets_so_far(&trace) < 65 {
                let count = reader.read(&mut buffer).unwrap();
                trace.extend_from_slice(&buffer[..count]);
            }
            // The statistics are still to come.
            (trace, reader)
        });
        let (_, mut reader) = reading.join().unwrap();
        let rest = std::thread::spawn(move || while reader.read(&mut [0; 1 << 16]).is_ok_and(|n| n > 0) {});
        assert_eq!(stuck.ended(), None);
        drop(rest);
    }
}

/// Returns the number of test packets in an incomplete trace.
fn test_packets_so_far(trace: &[u8]) -> usize {
    let mut reader = Reader::new(trace);
    let mut whole = 0;
    while let Some(Ok(_)) = reader.next() {
        whole = reader.position();
    }
    test_packets(&trace[..whole])
}

/// Returns the packets in the replies to a `ReadBuffers` call.
fn read_all(client: &mut Client, call: u64) -> Vec<Vec<u8>> {
    let (mut packet, mut packets) = (Vec::new(), Vec::new());
    loop {
        let answer = client.answer(call);
        for slice in answer.decode::<ReadBuffersResponse>().slices {
            packet.extend(slice.data.unwrap_or_default());
            if slice.last_slice_for_packet.unwrap_or_default() {
                packets.push(std::mem::take(&mut packet));
            }
        }
        if !answer.has_more {
            return packets;
        }
    }
}

#[test]
fn a_consumer_that_does_not_read_its_compressed_data_costs_little() {
    const PACKETS: usize = 400;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut compressed = TraceConfig {
        compression_type: Some(CompressionType::COMPRESSION_TYPE_DEFLATE),
        ..config("d")
    };
    compressed.buffers[0].size_kb = Some(16 * 1024);
    let mut lazy = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let enabled = lazy.call("EnableTracing", &enabling(compressed));
    state(&mut lazy);
    let mut noise = Noise::join(&system, "d");
    noise.write(PACKETS, 30_000);
    lazy.call("DisableTracing", &[]);
    lazy.answer(enabled);
    let before = status_kb(pid, "VmHWM:");
    let read = lazy.call("ReadBuffers", &[]);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    for _ in 0..200 {
        state(&mut other);
    }
    let packets = read_all(&mut lazy, read);
    let mut trace = Writer::new();
    packets
        .iter()
        .for_each(|packet| trace.bytes_field(write::Trace::PACKET, packet));
    assert_eq!(test_packets(trace.as_slice()), PACKETS);
    let growth = status_kb(pid, "VmHWM:") - before;
    assert!(growth < 4 * 1024, "{growth} KB more than {before} KB");
}

/// A chunk with a fragment of a packet. In its flags, 1 means that it continues the chunk before, 2 that it continues in the next.
fn fragment(id: u32, flags: u8, piece: &[u8]) -> Vec<u8> {
    let mut chunk = Writer::new();
    chunk.raw(&id.to_le_bytes());
    chunk.raw(&[1, 0, 1, flags << 2]);
    chunk.varint(piece.len() as u64);
    chunk.raw(piece);
    chunk.as_slice().to_vec()
}

#[test]
fn a_packet_larger_than_all_that_may_wait_for_a_client_reaches_it_slice_by_slice() {
    const PIECE: usize = 60_000;
    /// Together they have more than 64 MB.
    const PIECES: u32 = 1150;
    let programs = Programs::ours();
    let system = service(&programs);
    let mut large = config("d");
    large.buffers[0].size_kb = Some(80 * 1024);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let enabled = consumer.call("EnableTracing", &enabling(large));
    state(&mut consumer);
    let mut producer = Producer::new(&system, &introduction("p"), None);
    let (_, target) = producer.join("d");
    let mut packet = Writer::new();
    packet.bytes_field(write::TracePacket::FOR_TESTING, &vec![7; PIECE * PIECES as usize]);
    let pieces: Vec<&[u8]> = packet.as_slice().chunks(PIECE).collect();
    let last = pieces.len() - 1;
    for (number, piece) in pieces.into_iter().enumerate() {
        let flags = u8::from(number > 0) | u8::from(number < last) << 1;
        let chunk = fragment(number as u32, flags, piece);
        producer.client.call("CommitData", &commit(target, chunk));
    }
    producer.sync();
    consumer.call("DisableTracing", &[]);
    consumer.answer(enabled);
    let read = consumer.call("ReadBuffers", &[]);
    let packets = read_all(&mut consumer, read);
    let found = packets
        .iter()
        .filter(|found| found.starts_with(packet.as_slice()))
        .count();
    assert_eq!(found, 1);
}

#[test]
#[ignore = "takes half a minute"]
fn a_pipe_that_nobody_reads_does_not_keep_the_session_of_a_consumer_that_left() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
    let before = threads();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let probe = write.try_clone().unwrap();
    let mut streaming = Streaming::begin(&system, into_file("d"), write);
    let mut noise = Noise::join(&system, "d");
    noise.write(60, 10_000);
    await_full(&probe, &mut streaming.client);
    drop((streaming, probe));
    assert_eq!(system.state().tracing_sessions.len(), 1);
    std::thread::sleep(ferretto_service::limits::ABANDONED_FILE_PATIENCE);
    system.await_state(no_sessions);
    let start = std::time::Instant::now();
    while threads() > before {
        assert!(start.elapsed() < PATIENCE);
    }
    // The pipe is closed as well.
    let mut trace = Vec::new();
    File::from(read).read_to_end(&mut trace).unwrap();
    assert!(system.log("traced.log").contains("took no data for 30 s"));
}

#[test]
fn a_file_that_the_service_makes_is_its_owners_only_whatever_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let programs = Programs::ours();
    for umask in ["000", "022", "177"] {
        let mut system = System::new(&programs);
        let traced = system.program(Side::Ours, Program::Traced);
        system.start_copy(Path::new("sh"), Program::Traced, |command| {
            command
                .arg("-c")
                .arg(format!("umask {umask} && exec {}", traced.display()));
        });
        let path = system.path("by-the-service");
        let wanted = TraceConfig {
            write_into_file: Some(true),
            output_path: Some(path.display().to_string()),
            ..config("d")
        };
        let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
        consumer.call("EnableTracing", &enabling(wanted));
        assert_eq!(state(&mut consumer).tracing_sessions.len(), 1);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600, "umask {umask}");
    }
}
