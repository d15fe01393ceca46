//! Our `traced` with producers whose memory, chunks and names are invalid. A single such message has been enough to crash tracing daemons. Here each
//! one costs its sender its own data, and nobody else anything.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::support::peers::{
    PAGE, Producer, Session, chunk, commit, config, enabling, introduction, memory, sealed,
};
use crate::support::wire::{Client, registration};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_ipc::ports::CONSUMER_PORT;
use ferretto_proto::messages::{
    ActivateTriggersRequest, AttachRequest, CommitDataRequest, DetachRequest, EnableTracingResponse,
    InitializeConnectionRequest, Message, QueryServiceStateRequest, QueryServiceStateResponse, TraceConfig,
    UnregisterDataSourceRequest, commit_data_request,
};
use ferretto_service::limits;
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::process::{Pid, Resource, Rlimit};

fn reopened(memory: &OwnedFd, flags: OFlags) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn memory_that_cannot_be_used_is_refused_and_its_producer_gets_other() {
    const SIZE: u64 = 256 * 1024;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let session = Session::begin(&system, config("d"));
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let offers: [(&str, OwnedFd); 16] = [
        ("empty", memory(0, sealed())),
        ("read-only", reopened(&memory(SIZE, sealed()), OFlags::RDONLY)),
        (
            "sealed against writing",
            memory(SIZE, sealed() | SealFlags::WRITE),
        ),
        (
            "sealed against being mapped for writing",
            memory(SIZE, sealed() | SealFlags::FUTURE_WRITE),
        ),
        ("not sealed", memory(SIZE, SealFlags::empty())),
        ("able to shrink", memory(SIZE, SealFlags::GROW | SealFlags::SEAL)),
        ("able to grow", memory(SIZE, SealFlags::SHRINK | SealFlags::SEAL)),
        ("an exabyte", memory(1 << 60, sealed())),
        ("more than is granted", memory(33 << 20, sealed())),
        ("no whole number of pages", memory(SIZE + 1, sealed())),
        (
            "a name without rights",
            reopened(&memory(SIZE, sealed()), OFlags::PATH),
        ),
        ("a file", file.into()),
        ("a device", File::open("/dev/zero").unwrap().into()),
        ("a folder", File::open("/").unwrap().into()),
        (
            "a pipe",
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .unwrap()
                .1,
        ),
        (
            "a socket",
            std::os::unix::net::UnixStream::pair().unwrap().0.into(),
        ),
    ];
    let offering = InitializeConnectionRequest {
        producer_provided_shmem: Some(true),
        ..introduction("p")
    };
    for (what, offered) in &offers {
        let mut producer = Producer::new(&system, &offering, Some(offered));
        assert_eq!(
            producer.answer.using_shmem_provided_by_producer,
            Some(false),
            "{what}"
        );
        let (memory, target) = producer.join("d");
        let memory = memory.unwrap_or_else(|| panic!("{what}: no memory instead"));
        assert_eq!(rustix::fs::fstat(&memory).unwrap().st_size, SIZE as i64, "{what}");
        producer
            .client
            .call("CommitData", &commit(target, chunk(0, what.as_bytes())));
        producer.sync();
    }
    // Announced memory that did not arrive is not used either.
    let mut without = Producer::new(&system, &offering, None);
    assert_eq!(without.answer.using_shmem_provided_by_producer, Some(false));
    assert!(without.join("d").0.is_some());

    // Valid memory is used, and the producer is told so.
    let good = memory(SIZE, sealed());
    let mut producer = Producer::new(&system, &offering, Some(&good));
    assert_eq!(producer.answer.using_shmem_provided_by_producer, Some(true));
    let (instead, _) = producer.join("d");
    assert!(instead.is_none());
    system.assert_running();
    let expected: Vec<_> = offers.iter().map(|(what, _)| what.as_bytes().to_vec()).collect();
    assert_eq!(session.end(), expected);
}

#[test]
fn chunks_of_any_length_inside_commits_cost_their_sender_those_chunks() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut session = Session::begin(&system, config("d"));
    let mut producer = Producer::new(&system, &introduction("p"), None);
    let (_, target) = producer.join("d");
    let whole = chunk(0, b"first");
    producer.client.call("CommitData", &commit(target, whole.clone()));
    // Too short for a header, cut off within the packet, longer than any chunk, and as long as a frame can be.
    let lengths = (0..whole.len()).chain([PAGE - 1, PAGE + 1, 32 * 1024, 65_536, 65_537, 130_000]);
    for length in lengths {
        // Each pretends to be the successor of the complete chunk, so that later chunks are in order.
        let mut data = chunk(1, b"first");
        data.resize(length, 0xff);
        producer.client.call("CommitData", &commit(target, data));
    }
    // A packet whose length reaches far beyond its chunk.
    let mut lying = chunk(2, b"lying");
    lying[8] = 0xff;
    producer.client.call("CommitData", &commit(target, lying));
    producer
        .client
        .call("CommitData", &commit(target, chunk(3, b"last")));
    producer.sync();
    let stats = session.stats();
    let discarded = stats.chunks_discarded.unwrap();
    assert!(
        discarded >= 8,
        "{discarded} discarded for being shorter than a header"
    );
    let packets = session.end();
    assert_eq!(packets.first().map(Vec::as_slice), Some(&b"first"[..]));
    assert_eq!(packets.last().map(Vec::as_slice), Some(&b"last"[..]));
    assert!(!packets.iter().any(|packet| packet.starts_with(b"lying")));
    system.assert_running();
}

#[test]
fn a_page_header_flipped_while_its_chunks_are_released_harms_nobody_else() {
    const COMMITS: u32 = 20_000;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let session = Session::begin(&system, config("d"));
    let mut honest = Producer::new(&system, &introduction("honest"), None);
    let (_, target) = honest.join("d");
    let mut flipping = Producer::new(&system, &introduction("flipping"), None);
    let (memory, flipping_target) = flipping.join("d");
    let memory = File::from(memory.unwrap());
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // Every layout, with all its chunks complete, being read, and free in turn; and an invalid layout.
            let complete = 0x3fff_ffff_u32;
            let words = [1_u32, 2, 3, 4, 5, 6, 7, 0].map(|layout| layout << 28);
            let states = [complete, 0x2aaa_aaaa & complete, 0x1555_5555, 0];
            while !done.load(Ordering::Relaxed) {
                for layout in words {
                    for state in states {
                        memory
                            .write_all_at(&(layout | state & 0x0fff_ffff).to_le_bytes(), 0)
                            .unwrap();
                    }
                }
            }
        });
        let of = |chunk| commit_data_request::ChunksToMove {
            page: Some(0),
            chunk: Some(chunk),
            target_buffer: Some(flipping_target),
            ..Default::default()
        };
        let request = CommitDataRequest {
            chunks_to_move: (0..14).map(of).collect(),
            ..Default::default()
        }
        .encode_to_vec();
        for _ in 0..COMMITS / 14 {
            flipping.client.call("CommitData", &request);
        }
        flipping.sync();
        done.store(true, Ordering::Relaxed);
    });
    honest
        .client
        .call("CommitData", &commit(target, chunk(0, b"honest")));
    honest.sync();
    system.assert_running();
    assert!(session.end().contains(&b"honest".to_vec()));
}

/// Returns the number of the next descriptor that a process will open.
fn next_descriptor(pid: u32) -> u64 {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    (0..)
        .find(|number| !folder.join(number.to_string()).is_symlink())
        .unwrap()
}

/// Sets the limit of descriptors of a process; returns the limit before.
fn limit_descriptors(pid: u32, count: Option<u64>) -> Rlimit {
    let pid = Pid::from_raw(pid as i32);
    let before = rustix::process::getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current: count.or(before.maximum),
        maximum: before.maximum,
    };
    rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap()
}

#[test]
fn a_service_out_of_descriptors_refuses_what_needs_one_and_goes_on() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut session = Session::begin(&system, config("d"));
    let mut served = Producer::new(&system, &introduction("served"), None);
    let (_, target) = served.join("d");
    let mut starving = Producer::new(&system, &introduction("starving"), None);
    let mut with_path = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut with_file = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    limit_descriptors(pid, Some(next_descriptor(pid)));

    // Memory for a producer.
    starving.client.call("RegisterDataSource", &registration("d"));
    while starving.client.next_answer().is_some() {}
    assert!(
        system.log("traced.log").contains("shared memory"),
        "{}",
        system.log("traced.log")
    );
    // The service closes a descriptor after it has hung up, and before it answers other clients.
    served.sync();
    limit_descriptors(pid, Some(next_descriptor(pid)));

    // A file that the service should create.
    let into_file = |path: Option<String>| TraceConfig {
        write_into_file: Some(true),
        output_path: path,
        ..config("d")
    };
    let path = system.path("trace").display().to_string();
    let answer: EnableTracingResponse = with_path
        .ask("EnableTracing", &enabling(into_file(Some(path))))
        .decode();
    let error = answer.error.unwrap();
    assert!(error.contains("cannot create the trace file"), "{error}");

    // A passed file, which the service cannot even receive.
    let file: OwnedFd = File::create(system.path("passed")).unwrap().into();
    with_file.call_with("EnableTracing", &enabling(into_file(None)), Some(&file));
    while with_file.next_answer().is_some() {}
    served.sync();
    limit_descriptors(pid, Some(next_descriptor(pid)));

    // A client that connects now waits for a free descriptor.
    let waiting = std::os::unix::net::UnixStream::connect(system.consumer_socket()).unwrap();
    let until = Instant::now() + PATIENCE;
    while !system.log("traced.log").contains("new clients have to wait") {
        assert!(Instant::now() < until, "{}", system.log("traced.log"));
        // Connected clients are served.
        session.stats();
    }
    served
        .client
        .call("CommitData", &commit(target, chunk(0, b"meanwhile")));
    served.sync();
    limit_descriptors(pid, None);
    drop(waiting);

    let mut late = Producer::new(&system, &introduction("late"), None);
    assert!(late.join("d").0.is_some());
    system.assert_running();
    assert_eq!(session.end(), [b"meanwhile"]);
}

#[test]
fn the_service_raises_its_limit_of_descriptors_to_the_maximum() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let before = rustix::process::getrlimit(Resource::Nofile);
    let pid = system.start_with_descriptors(Some(64), before.maximum);
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let [soft, hard]: [&str; 2] = line
        .split_whitespace()
        .skip(3)
        .take(2)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(soft, hard);
    assert_ne!(soft, "64");
}

#[test]
fn names_of_thirty_thousand_characters_are_names() {
    let long = |letter: &str| letter.repeat(30_000);
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut filtered = config(&long("s"));
    // A backtracking engine would take forever on the first, and a recursive one would overflow its stack on the second.
    filtered.data_sources[0].producer_name_regex_filter = vec!["(p|pp)+q?".into(), "((p*)*)*x".into()];
    filtered.unique_session_name = Some(long("u"));
    let session = Session::begin(&system, filtered);
    let mut producer = Producer::new(
        &system,
        &InitializeConnectionRequest {
            sdk_version: Some(long("v")),
            ..introduction(&long("p"))
        },
        None,
    );
    let (_, target) = producer.join(&long("s"));
    producer
        .client
        .call("CommitData", &commit(target, chunk(0, b"named")));
    let triggers = ActivateTriggersRequest {
        trigger_names: vec![long("t"); 3],
        ..Default::default()
    };
    producer.client.ask("ActivateTriggers", &triggers.encode_to_vec());
    let unknown = UnregisterDataSourceRequest {
        data_source_name: Some(long("z")),
        ..Default::default()
    };
    producer
        .client
        .ask("UnregisterDataSource", &unknown.encode_to_vec());

    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let attach = AttachRequest {
        key: Some(long("k")),
        ..Default::default()
    };
    assert!(other.ask("Attach", &attach.encode_to_vec()).reply.is_none());
    let again = TraceConfig {
        unique_session_name: Some(long("u")),
        ..config("d")
    };
    let answer: EnableTracingResponse = other.ask("EnableTracing", &enabling(again)).decode();
    assert!(answer.error.unwrap().contains("already exists"));
    let no_file_name = TraceConfig {
        bugreport_filename: Some(long("/")),
        ..config("d")
    };
    let answer: EnableTracingResponse = other.ask("EnableTracing", &enabling(no_file_name)).decode();
    assert!(answer.error.unwrap().contains("bugreport_filename"));
    let enabled = other.call("EnableTracing", &enabling(config("d")));
    let detach = DetachRequest {
        key: Some(long("k")),
        ..Default::default()
    };
    assert!(other.ask("Detach", &detach.encode_to_vec()).reply.is_some());
    assert!(other.ask("Attach", &attach.encode_to_vec()).reply.is_some());
    other.call("DisableTracing", &[]);
    let _ = enabled;

    let query = other.call(
        "QueryServiceState",
        &QueryServiceStateRequest::default().encode_to_vec(),
    );
    let mut names = Vec::new();
    loop {
        let answer = other.answer(query);
        let state = answer.decode::<QueryServiceStateResponse>().service_state;
        names.extend(
            state
                .producers
                .iter()
                .filter_map(|producer| producer.name.clone()),
        );
        if !answer.has_more {
            break;
        }
    }
    // The path of a program is no longer than this.
    assert_eq!(names, [&long("p")[..limits::MAX_PRODUCER_NAME]]);
    system.assert_running();
    assert_eq!(session.end(), [b"named"]);
}
