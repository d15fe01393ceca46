//! Our `traced` and clients that want all of it: floods of requests, of registrations, of connections, of sessions, and replies
//! that nobody reads. Whoever else is connected is served meanwhile.
//!
//! That a client has its turn is shown by counting, not by timing: the service is stopped (`SIGSTOP`) while everybody says what
//! they have to say, and goes on when it all waits to be read.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Instant;

use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{
    AttachRequest, DataSourceConfig, DataSourceDescriptor, EnableTracingRequest, EnableTracingResponse,
    GetTraceStatsResponse, Message, QueryServiceStateRequest, QueryServiceStateResponse,
    RegisterDataSourceRequest, TraceConfig, TracingServiceState, TrackEventCategory, TrackEventDescriptor,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};
use support::peers::{Producer, Session, chunk, commit, config, enabling, introduction, state};
use support::wire::{Client, registration};
use support::{PATIENCE, Program, Programs, Side, System};

/// What the daemon handles for one client before it turns to the next (`HostLimits::frames_per_turn`).
const FRAMES_PER_TURN: u64 = 256;

/// A process that does nothing for the time being.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let stopped = Stopped(Pid::from_raw(pid as i32).unwrap());
        rustix::process::kill_process(stopped.0, Signal::STOP).unwrap();
        let until = Instant::now() + PATIENCE;
        while !proc_file(pid, "stat").contains(") T ") {
            assert!(Instant::now() < until, "it does not stop");
        }
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        rustix::process::kill_process(self.0, Signal::CONT).unwrap();
    }
}

fn proc_file(pid: u32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap()
}

/// Nanoseconds that a process has been on a processor.
fn processor_time(pid: u32) -> u64 {
    let text = proc_file(pid, "schedstat");
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// A line of `/proc/pid/status` that is in KB.
fn status_kb(pid: u32, name: &str) -> u64 {
    let status = proc_file(pid, "status");
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Asks the other clients' question: they are served.
fn is_served(client: &mut Client) {
    client.ask("QueryCapabilities", &[]).reply.expect("an answer");
}

#[test]
fn a_flood_of_tiny_commits_is_handled_one_turn_at_a_time() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut session = Session::begin(&system, config("d"));
    let mut flooder = Producer::new(&system, &introduction("flooder"), None);
    let (_, target) = flooder.join("d");
    flooder.sync();
    let commits: Vec<Vec<u8>> = (0..20_000)
        .map(|id| {
            flooder
                .client
                .encoded_call("CommitData", &commit(target, chunk(id, b"")))
        })
        .collect();
    let flood = commits.concat();

    let stopped = Stopped::new(pid);
    let sent = flooder.client.send_what_fits(&flood);
    let waiting = sent / commits[commits.len() - 1].len();
    assert!(waiting as u64 > 8 * FRAMES_PER_TURN, "no flood: {waiting}");
    let asked = session.client.call("GetTraceStats", &[]);
    drop(stopped);

    let answer: GetTraceStatsResponse = session.client.answer(asked).decode();
    let handled = answer.trace_stats.buffer_stats[0].chunks_written.unwrap();
    assert!(
        handled <= 2 * FRAMES_PER_TURN,
        "{handled} of the flood came first"
    );
    // And the flooder loses nothing by it. Its answers have to be read, for it is not read from otherwise.
    flooder.client.read_while_sending(&flood[sent..]);
    flooder.sync();
    let all = session.stats().buffer_stats[0].chunks_written.unwrap();
    assert_eq!(all, commits.len() as u64);
}

/// Registers as many data sources as one producer may, and says what that cost the service.
fn cost_of_registering(system: &System<'_>, pid: u32, number: usize) -> (u64, Producer) {
    const SOURCES: usize = 1000;
    let mut producer = Producer::new(system, &introduction(&format!("p{number}")), None);
    let registrations: Vec<u8> = (0..SOURCES)
        .flat_map(|n| {
            let name = registration(&format!("source {number} {n}"));
            producer.client.encoded_call("RegisterDataSource", &name)
        })
        .collect();
    let before = processor_time(pid);
    producer.client.read_while_sending(&registrations);
    producer.sync();
    (processor_time(pid) - before, producer)
}

#[test]
fn a_registration_costs_the_same_however_many_there_are_and_whatever_sessions_want() {
    const PRODUCERS: usize = 10;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let (first, mut producers): (Vec<u64>, Vec<Producer>) = (0..3)
        .map(|number| cost_of_registering(&system, pid, number))
        .unzip();
    // Sessions that want thousands of other data sources, of certain producers.
    let wanted = |n: usize| DataSource {
        config: DataSourceConfig {
            name: Some(format!("wanted {n}")),
            ..Default::default()
        }
        .into(),
        producer_name_filter: vec!["somebody else".into()],
        ..Default::default()
    };
    let mut greedy = config("d");
    greedy.data_sources = (0..2000).map(wanted).collect();
    let _sessions: Vec<Session> = (0..5).map(|_| Session::begin(&system, greedy.clone())).collect();
    let (last, more): (Vec<u64>, Vec<Producer>) = (3..PRODUCERS)
        .map(|number| cost_of_registering(&system, pid, number))
        .unzip();
    producers.extend(more);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    assert_eq!(state(&mut consumer).data_sources.len(), PRODUCERS * 1000);
    // The least of several, for anything may make one dearer.
    let (few, many) = (first.iter().min().unwrap(), last.iter().min().unwrap());
    assert!(
        *many < 3 * few,
        "{few} ns a thousand at first, {many} ns with thousands there"
    );
    // They leave as cheaply as they came.
    let before = processor_time(pid);
    drop(producers);
    system.await_state(|state| state.producers.is_empty());
    let leaving = processor_time(pid) - before;
    assert!(
        leaving < 3 * few * PRODUCERS as u64,
        "{leaving} ns to leave, {few} ns a thousand to come"
    );
}

/// How many connections a test may open, here and in the service.
fn many_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    // A service lets one user have an eighth of the limit.
    limit.maximum.map_or(1000, |most| (most as usize / 16).min(1000))
}

#[test]
fn a_storm_of_connections_that_say_nothing_or_half_of_something_costs_little() {
    let count = many_connections();
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    is_served(&mut other);
    let before = status_kb(pid, "VmRSS:");
    let sockets = [system.producer_socket(), system.consumer_socket()];
    let connect = |n: usize| UnixStream::connect(&sockets[n % 2]).unwrap();
    for n in 0..3 * count {
        drop(connect(n));
    }
    is_served(&mut other);
    let silent: Vec<UnixStream> = (0..count / 2).map(connect).collect();
    is_served(&mut other);
    // A frame that is announced to be large, and never comes whole.
    let half = [&120_000_u32.to_le_bytes()[..], &[0x2a; 1000]].concat();
    let half_open: Vec<UnixStream> = (0..count / 2)
        .map(|n| {
            let stream = connect(n);
            assert_eq!(
                rustix::net::send(&stream, &half, rustix::net::SendFlags::NOSIGNAL),
                Ok(half.len())
            );
            stream
        })
        .collect();
    is_served(&mut other);
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let until = Instant::now() + PATIENCE;
    while descriptors() < silent.len() + half_open.len() {
        assert!(Instant::now() < until, "{} descriptors", descriptors());
        is_served(&mut other);
    }
    let each_kb = status_kb(pid, "VmHWM:").saturating_sub(before) / count as u64;
    assert!(each_kb <= 8, "{each_kb} KB a connection");
    drop((silent, half_open));
    while descriptors() > 40 {
        assert!(Instant::now() < until, "{} descriptors", descriptors());
        is_served(&mut other);
    }
    system.assert_running();
}

/// Whether the service hangs up on a client that asks it something.
fn is_turned_away(system: &System<'_>) -> bool {
    let mut stream = UnixStream::connect(system.consumer_socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A frame of a message without a body gets an answer.
    let _ = std::io::Write::write_all(&mut stream, &[2, 0, 0, 0, 0x10, 0x07]);
    !matches!(std::io::Read::read(&mut stream, &mut [0]), Ok(1))
}

#[test]
fn one_user_cannot_use_up_the_connections_of_the_others() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start_with_descriptors(Some(64), Some(256));
    let mut early = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut crowd = Vec::new();
    while !is_turned_away(&system) {
        crowd.push(UnixStream::connect(system.producer_socket()).unwrap());
        assert!(crowd.len() < 64, "nobody is turned away");
    }
    assert!(crowd.len() > 8, "{} connections and no more", crowd.len());
    // Those who are in are served, and so are others.
    is_served(&mut early);
    if rustix::process::geteuid().is_root() {
        as_nobody(&system);
    } else {
        println!("skipped in part: only root can be another user");
    }
    let told = || system.log("traced.log").matches("turned away").count();
    assert_eq!(told(), 1, "{}", system.log("traced.log"));
    drop(crowd);
    let until = Instant::now() + PATIENCE;
    while is_turned_away(&system) {
        assert!(Instant::now() < until, "{}", system.log("traced.log"));
    }
    system.assert_running();
}

/// Asks for the state of the service as another user, for whom that is possible.
fn as_nobody(system: &System<'_>) {
    const NOBODY: u32 = 65534;
    let open_up = |path: std::path::PathBuf| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, permissions).unwrap();
    };
    open_up(system.consumer_socket());
    open_up(system.path("."));
    let output = system
        .command(env!("CARGO_BIN_EXE_perfetto").as_ref(), "nobody.log")
        .arg("--query-raw")
        .stdout(Stdio::piped())
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return println!("skipped in part: another user cannot run our programs here: {error}"),
    };
    assert!(output.status.success(), "{}", system.log("nobody.log"));
    TracingServiceState::decode_from_slice(&output.stdout).unwrap();
}

#[test]
fn a_client_that_reads_no_replies_is_not_read_from() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    // Large replies to small requests.
    let mut producer = Producer::new(&system, &introduction("p"), None);
    for n in 0..8 {
        let descriptor = DataSourceDescriptor {
            name: Some(format!("bulky {n}")),
            track_event_descriptor: TrackEventDescriptor {
                available_categories: vec![TrackEventCategory {
                    name: Some("x".repeat(100_000)),
                    ..Default::default()
                }],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        let request = RegisterDataSourceRequest {
            data_source_descriptor: descriptor.into(),
            ..Default::default()
        };
        producer
            .client
            .call("RegisterDataSource", &request.encode_to_vec());
    }
    producer.sync();
    let mut lazy = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    is_served(&mut other);
    let before = status_kb(pid, "VmHWM:");
    let query = QueryServiceStateRequest::default().encode_to_vec();
    let calls: Vec<u8> = (0..100_000)
        .flat_map(|_| lazy.encoded_call("QueryServiceState", &query))
        .collect();
    // Until the service takes no more, however often it is given the time to.
    let (mut sent, mut rounds_in_vain) = (0, 0);
    while rounds_in_vain < 20 {
        let now = lazy.send_what_fits(&calls[sent..]);
        sent += now;
        rounds_in_vain = if now == 0 { rounds_in_vain + 1 } else { 0 };
        is_served(&mut other);
    }
    assert!(sent < calls.len(), "everything was read");
    let growth = status_kb(pid, "VmHWM:") - before;
    assert!(growth < 8 * 1024, "{growth} KB for replies that nobody reads");
    // It may take them up again where it stopped.
    let mut parts = 0;
    for _ in 0..50 {
        let answer = lazy.next_answer().unwrap();
        assert!(answer.reply.is_some());
        parts += answer
            .decode::<QueryServiceStateResponse>()
            .service_state
            .data_sources
            .len();
    }
    assert!(parts > 8, "{parts}");
    drop(lazy);
    is_served(&mut other);
}

#[test]
fn sixty_sessions_and_ten_thousand_data_sources_are_refused_with_a_reason() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut consumers: Vec<Client> = (0..60)
        .map(|_| Client::connect(&system.consumer_socket(), &CONSUMER_PORT))
        .collect();
    let calls: Vec<u64> = consumers
        .iter_mut()
        .map(|consumer| consumer.call("EnableTracing", &enabling(config("d"))))
        .collect();
    for consumer in &mut consumers {
        is_served(consumer);
    }
    let waiting = state(&mut consumers[0]).tracing_sessions.len();
    for (consumer, call) in consumers.iter_mut().zip(calls).skip(waiting) {
        let answer: EnableTracingResponse = consumer.answer(call).decode();
        assert!(
            answer
                .error
                .unwrap()
                .contains("too many concurrent tracing sessions")
        );
    }
    drop(consumers);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let many = TraceConfig {
        data_sources: vec![DataSource::default(); 10_000],
        ..config("d")
    };
    let answer: EnableTracingResponse = consumer.ask("EnableTracing", &enabling(many)).decode();
    assert!(answer.error.unwrap().contains("too many data sources"));
    let mut broken = config("d");
    broken.data_sources[0].producer_name_regex_filter = vec!["(".into()];
    let answer: EnableTracingResponse = consumer.ask("EnableTracing", &enabling(broken)).decode();
    assert!(answer.error.unwrap().contains("producer_name_regex_filter"));

    // A session that was never detached is nobody's to attach to.
    let _session = Session::begin(&system, config("d"));
    for key in [None, Some(String::new())] {
        let attach = AttachRequest {
            key,
            ..Default::default()
        };
        assert!(consumer.ask("Attach", &attach.encode_to_vec()).reply.is_none());
    }
    assert_eq!(state(&mut consumer).tracing_sessions.len(), 1);
    system.assert_running();
}

#[test]
fn a_call_that_does_not_decode_is_rejected_and_its_client_goes_on() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let no_messages: [&[u8]; 3] = [&[0xff; 12], &[0x0a, 0x7f], &[0x0b]];
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let with_arguments = [
        "EnableTracing",
        "Detach",
        "Attach",
        "ObserveEvents",
        "Flush",
        "QueryServiceState",
    ];
    for method in with_arguments {
        for arguments in no_messages {
            assert!(
                consumer.ask(method, arguments).reply.is_none(),
                "{method} {arguments:?}"
            );
        }
    }
    let mut producer = Client::connect(&system.producer_socket(), &PRODUCER_PORT);
    for arguments in no_messages {
        assert!(producer.ask("InitializeConnection", arguments).reply.is_none());
    }
    // Bytes that are no text, as the kernel takes them for the name of a process.
    let mut unnameable = introduction("p").encode_to_vec();
    let name = unnameable.iter().position(|byte| *byte == b'p').unwrap();
    unnameable[name] = 0xfe;
    assert!(producer.ask("InitializeConnection", &unnameable).reply.is_some());
    let mut source = registration("source");
    let name = source.iter().position(|byte| *byte == b's').unwrap();
    source[name] = 0xff;
    assert!(producer.ask("RegisterDataSource", &source).reply.is_some());
    for method in [
        "RegisterDataSource",
        "CommitData",
        "RegisterTraceWriter",
        "ActivateTriggers",
    ] {
        for arguments in no_messages {
            assert!(
                producer.ask(method, arguments).reply.is_none(),
                "{method} {arguments:?}"
            );
        }
    }
    let state = state(&mut consumer);
    assert_eq!(state.producers[0].name.as_deref(), Some("\u{fffd}"));
    let descriptor = &state.data_sources[0].ds_descriptor;
    assert_eq!(descriptor.name.as_deref(), Some("\u{fffd}ource"));
    let told = system.log("traced.log").matches("rejected a call").count();
    assert_eq!(told, 2, "once for each client: {}", system.log("traced.log"));
    system.assert_running();
}

#[test]
fn of_several_that_wait_for_the_end_of_a_session_the_last_is_told() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut waiting = consumer.call("EnableTracing", &enabling(config("nobody's")));
    let attached = EnableTracingRequest {
        attach_notification_only: Some(true),
        ..Default::default()
    };
    for _ in 0..3 {
        let next = consumer.call("EnableTracing", &attached.encode_to_vec());
        assert_eq!(consumer.answer(waiting).reply, None, "another took over");
        waiting = next;
    }
    consumer.call("DisableTracing", &[]);
    let end: EnableTracingResponse = consumer.answer(waiting).decode();
    assert_eq!(end.error, None);
}

#[test]
fn of_several_calls_for_commands_the_last_gets_them() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut producer = Client::connect(&system.producer_socket(), &PRODUCER_PORT);
    producer.ask("InitializeConnection", &introduction("p").encode_to_vec());
    let mut open = producer.call("GetAsyncCommand", &[]);
    for _ in 0..3 {
        let next = producer.call("GetAsyncCommand", &[]);
        assert_eq!(producer.answer(open).reply, None, "another took over");
        open = next;
    }
    producer.ask("RegisterDataSource", &registration("d"));
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    consumer.call("EnableTracing", &enabling(config("d")));
    assert!(producer.answer(open).reply.is_some());
}

#[test]
fn a_flood_of_calls_that_fail_is_no_flood_in_the_log() {
    const CALLS: usize = 5000;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let attach = |key: String| {
        AttachRequest {
            key: Some(key),
            ..Default::default()
        }
        .encode_to_vec()
    };
    for _ in 0..CALLS {
        consumer.call("Attach", &attach("k".repeat(1000)));
    }
    assert_eq!(consumer.ask("Attach", &attach("k".repeat(100_000))).reply, None);
    let log = std::fs::read_to_string(system.path("traced.log")).unwrap();
    assert!(log.contains("cannot attach"), "{log}");
    assert!(log.len() < 1_000_000, "{} bytes", log.len());
    system.assert_running();
}
