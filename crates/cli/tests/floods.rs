//! Our `traced` with clients that send floods of requests, registrations, connections and sessions, or that do not read their replies. The other
//! clients are served meanwhile.
//!
//! The tests show by counting, not by timing, that a client has its turn. The service is stopped (`SIGSTOP`) while all clients send their requests,
//! and continues when everything is there to be read.

#![allow(clippy::unwrap_used)]

mod support;

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{
    AttachRequest, DataSourceConfig, DataSourceDescriptor, EnableTracingRequest, EnableTracingResponse,
    GetTraceStatsResponse, Message, QueryServiceStateRequest, QueryServiceStateResponse, TraceConfig,
    TracingServiceState, TrackEventCategory, UnregisterDataSourceRequest,
};
use ferretto_service::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::peers::{Producer, Session, chunk, commit, config, enabling, introduction, state};
use support::process::{Stopped, processor_time, status_kb};
use support::wire::{Client, invoke, registration, registration_of, registration_with};
use support::{PATIENCE, Program, Programs, Side, System};

/// The frames that the daemon handles for one client before it turns to the next (`HostLimits::frames_per_turn`).
const FRAMES_PER_TURN: u64 = 256;

/// Asks a question of the other clients, which are served.
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
    // The flooder loses nothing. Its answers have to be read, because otherwise the service does not read from it.
    flooder.client.read_while_sending(&flood[sent..]);
    flooder.sync();
    let all = session.stats().buffer_stats[0].chunks_written.unwrap();
    assert_eq!(all, commits.len() as u64);
}

/// Registers as many data sources as one producer may; returns the service's processor time for it.
fn cost_of_registering(system: &System<'_>, pid: u32, number: usize) -> (Duration, Producer) {
    const SOURCES: usize = 1000;
    let mut producer = Producer::new(system, &introduction(&format!("p{number}")), None);
    let registrations: Vec<u8> = (0..SOURCES)
        .flat_map(|n| {
            // Names of later producers sort before those of earlier ones.
            let name = registration(&format!("source {:03} {n}", 999 - number));
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
    const PRODUCERS: usize = 40;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let (first, mut producers): (Vec<Duration>, Vec<Producer>) = (0..3)
        .map(|number| cost_of_registering(&system, pid, number))
        .unzip();
    // Sessions that request thousands of other data sources, from certain producers.
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
    let (more, others): (Vec<Duration>, Vec<Producer>) = (3..PRODUCERS)
        .map(|number| cost_of_registering(&system, pid, number))
        .unzip();
    producers.extend(others);
    let last = &more[more.len() - 7..];
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    assert_eq!(state(&mut consumer).data_sources.len(), PRODUCERS * 1000);
    // The minimum of several measurements, because other work may slow down any of them.
    let (few, many) = (first.iter().min().unwrap(), last.iter().min().unwrap());
    assert!(
        *many < 3 * *few,
        "{few:?} a thousand at first, {many:?} with thousands there"
    );
    // Disconnecting is as cheap as connecting.
    let before = processor_time(pid);
    drop(producers);
    system.await_state(|state| state.producers.is_empty());
    let leaving = processor_time(pid) - before;
    assert!(
        leaving < 3 * *few * PRODUCERS as u32,
        "{leaving:?} to leave, {few:?} a thousand to come"
    );
}

/// A producer that takes part in sessions with as many data sources as it may have, all of one name. It reads no commands.
fn takes_part_with_all(system: &System<'_>, name: &str) -> Producer {
    let mut producer = Producer::new(system, &introduction("p"), None);
    let registrations: Vec<u8> = (0..1000)
        .flat_map(|_| {
            producer
                .client
                .encoded_call("RegisterDataSource", &registration(name))
        })
        .collect();
    producer.client.read_while_sending(&registrations);
    producer.sync();
    producer
}

#[test]
fn taking_back_a_data_source_costs_the_same_however_many_a_session_has() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let cost_of_coming_and_going = |system: &System<'_>| {
        let mut producer = Producer::new(system, &introduction("restless"), None);
        let calls: Vec<u8> = (0..500)
            .flat_map(|_| {
                let name = UnregisterDataSourceRequest {
                    data_source_name: Some("own".into()),
                    ..Default::default()
                };
                let mut both = producer
                    .client
                    .encoded_call("RegisterDataSource", &registration("own"));
                both.extend(
                    producer
                        .client
                        .encoded_call("UnregisterDataSource", &name.encode_to_vec()),
                );
                both
            })
            .collect();
        let before = processor_time(pid);
        producer.client.read_while_sending(&calls);
        producer.sync();
        processor_time(pid) - before
    };
    let sources = ["own", "crowded"];
    let mut wanting = config("own");
    wanting.data_sources = sources.map(|name| config(name).data_sources.remove(0)).into();
    let _session = Session::begin(&system, wanting);
    let few = (0..3).map(|_| cost_of_coming_and_going(&system)).min().unwrap();
    let _crowd: Vec<Producer> = (0..20).map(|_| takes_part_with_all(&system, "crowded")).collect();
    let many = (0..3).map(|_| cost_of_coming_and_going(&system)).min().unwrap();
    assert!(many < 3 * few, "{few:?} alone, {many:?} among 20,000 instances");
}

#[test]
fn a_data_source_wanted_and_registered_a_thousand_times_is_no_million_instances() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let _greedy = takes_part_with_all(&system, "d");
    let mut wanting = config("d");
    wanting.data_sources = vec![wanting.data_sources[0].clone(); 3000];
    let before = status_kb(pid, "VmHWM:");
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    consumer.call("EnableTracing", &enabling(wanting));
    let count = state(&mut consumer).tracing_sessions[0].num_data_sources;
    assert_eq!(count, Some(limits::MAX_INSTANCES_PER_PRODUCER as u32));
    let growth = status_kb(pid, "VmHWM:") - before;
    assert!(growth < 16 * 1024, "{growth} KB");
    let told = system
        .log("traced.log")
        .matches("by registering names more than once")
        .count();
    assert_eq!(told, 1, "{}", system.log("traced.log"));
}

/// A config that takes long to check, with hundreds of expressions, each an automaton.
fn with_many_expressions() -> TraceConfig {
    let mut config = config("d");
    config.data_sources[0].producer_name_regex_filter = (0..limits::MAX_REGEXES_PER_CONFIG)
        .map(|n| format!("(a|b)*c.{{50}}{n}"))
        .collect();
    config
}

#[test]
fn slow_requests_take_turns_with_those_of_other_clients() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut greedy = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    is_served(&mut other);
    let request = enabling(with_many_expressions());
    let calls: Vec<u8> = (0..10)
        .flat_map(|_| {
            let mut both = greedy.encoded_call("EnableTracing", &request);
            both.extend(greedy.encoded_call("FreeBuffers", &[]));
            both
        })
        .collect();
    let stopped = Stopped::new(pid);
    assert_eq!(greedy.send_what_fits(&calls), calls.len(), "no flood");
    let query = other.call(
        "QueryServiceState",
        &QueryServiceStateRequest::default().encode_to_vec(),
    );
    drop(stopped);
    let answer = other.answer(query).decode::<QueryServiceStateResponse>();
    let begun = answer
        .service_state
        .tracing_sessions
        .first()
        .map(|session| session.id.unwrap());
    assert!(
        begun.is_none_or(|number| number <= 2),
        "{begun:?} sessions came first"
    );
    // The other clients have their turns.
    is_served(&mut greedy);
    assert_eq!(
        system
            .log("traced.log")
            .matches("configured tracing session")
            .count(),
        10
    );
}

/// Returns the number of connections that a test may open, here and in the service.
fn many_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    // A service grants one user an eighth of the limit.
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
    // A frame that is announced as large, and never completed.
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

/// Whether the service hangs up on a new client that sends a request.
fn is_turned_away(system: &System<'_>) -> bool {
    let mut stream = UnixStream::connect(system.consumer_socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The service answers a frame of a message without a body.
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
    // The connected clients are served, and so are other users.
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

/// Queries the service's state as another user.
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
    // Small requests with large replies.
    let mut producer = Producer::new(&system, &introduction("p"), None);
    for n in 0..8 {
        producer
            .client
            .call("RegisterDataSource", &bulky_registration(n, 100_000));
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
    // Sends until the service takes no more, even after several rounds.
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
    // The client may resume reading where it stopped.
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
fn a_producer_that_reads_no_commands_holds_up_no_session_and_is_cut_off_in_the_end() {
    /// The most data that may wait for one client; see `connection.rs`.
    const MOST_KB: u64 = 64 * 1024;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut producer = Producer::new(&system, &introduction("lazy"), None);
    let registration = registration_of(DataSourceDescriptor {
        name: Some("d".into()),
        will_notify_on_stop: Some(true),
        ..Default::default()
    });
    producer.client.ask("RegisterDataSource", &registration);
    let mut large = TraceConfig {
        data_source_stop_timeout_ms: Some(1),
        flush_timeout_ms: Some(1),
        ..config("d")
    };
    // The service sends it out in two commands for each session.
    let source = large.data_sources[0].config.get_or_insert_default();
    source.legacy_config = Some("x".repeat(100_000));
    let enabling = enabling(large);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    is_served(&mut consumer);
    let before = status_kb(pid, "VmRSS:");
    let mut sessions = 0;
    while !state(&mut consumer).producers.is_empty() {
        let enabled = consumer.call("EnableTracing", &enabling);
        let disabled = consumer.call("DisableTracing", &[]);
        let ended: EnableTracingResponse = consumer.answer(enabled).decode();
        assert_eq!(ended.error.unwrap_or_default(), "");
        consumer.answer(disabled);
        consumer.ask("FreeBuffers", &[]);
        sessions += 1;
        assert!(sessions < 1000, "it was never cut off");
    }
    assert!(sessions > 100, "{sessions}");
    let growth = status_kb(pid, "VmHWM:") - before;
    assert!(growth < MOST_KB / 4 * 5, "{growth} KB");
    system.assert_running();
}

/// A request to register a data source whose descriptor has so many bytes.
fn bulky_registration(number: usize, size: usize) -> Vec<u8> {
    let category = TrackEventCategory {
        name: Some("x".repeat(size)),
        ..Default::default()
    };
    registration_with(format!("bulky {number}"), vec![category])
}

/// A producer that has registered as many bytes of descriptors as it may.
fn bulky_producer(system: &System<'_>) -> Producer {
    let mut producer = Producer::new(system, &introduction("bulky"), None);
    for n in 0..limits::MAX_DESCRIPTOR_BYTES_PER_PRODUCER / 125_000 {
        producer
            .client
            .ask("RegisterDataSource", &bulky_registration(n, 124_000));
    }
    producer
}

#[test]
fn many_clients_that_read_no_replies_cost_no_more_than_one_user_may_have_the_service_hold() {
    const MOST_KB: u64 = limits::MAX_HELD_BYTES_PER_UID as u64 / 1024;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let _producer = bulky_producer(&system);
    is_served(&mut other);
    let before = status_kb(pid, "VmRSS:");
    let query = QueryServiceStateRequest::default().encode_to_vec();
    let ask = || {
        let mut lazy = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
        lazy.call("QueryServiceState", &query);
        lazy
    };
    let mut lazy: Vec<Client> = (0..50).map(|_| ask()).collect();
    is_served(&mut other);
    let each = (status_kb(pid, "VmRSS:") - before) / 50;
    assert!((500..1500).contains(&each), "{each} KB each");
    let told = || system.log("traced.log").contains("do not read their replies");
    while !told() {
        lazy.push(ask());
        is_served(&mut other);
        let held = status_kb(pid, "VmRSS:") - before;
        assert!(held < MOST_KB / 4 * 5, "{held} KB for {}", lazy.len());
    }
    lazy.extend((0..20).map(|_| ask()));
    is_served(&mut other);
    let most = status_kb(pid, "VmHWM:") - before;
    assert!(most < MOST_KB / 4 * 5, "{most} KB");
    system.assert_running();
}

#[test]
fn short_replies_that_nobody_reads_cost_no_more_memory_than_long_ones() {
    const CLIENTS: u64 = 10;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    is_served(&mut other);
    let before = status_kb(pid, "VmRSS:");
    // The reply to a method that does not exist is a few bytes: over a hundred thousand of them fit in what one client may leave unread.
    let call = invoke(2, u32::MAX, &[]);
    let calls = call.repeat(200_000);
    let lazy: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut lazy = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
            let (mut sent, mut refused) = (0, 0);
            // In each of its turns the service handles some hundred calls, and it reads when it has handled them all.
            while refused < 200 {
                let more = lazy.send_what_fits(&calls[sent % call.len()..]);
                sent += more;
                refused = if more == 0 { refused + 1 } else { 0 };
                is_served(&mut other);
            }
            lazy
        })
        .collect();
    let each = (status_kb(pid, "VmHWM:") - before) / CLIENTS;
    // A megabyte of replies, and a frame that is being read.
    assert!(each < 2500, "{each} KB each");
    drop(lazy);
    system.assert_running();
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
    let sessions = state(&mut consumers[0]).tracing_sessions.len();
    // A consumer with a session gets its answer when the session ends. The order of the requests does not determine which consumers have sessions.
    let mut refused = 0;
    for (consumer, call) in consumers.iter_mut().zip(calls) {
        consumer.call("DisableTracing", &[]);
        let answer: EnableTracingResponse = consumer.answer(call).decode();
        if let Some(error) = answer.error.filter(|error| !error.is_empty()) {
            assert!(error.contains("too many concurrent tracing sessions"), "{error}");
            refused += 1;
        }
    }
    assert!(sessions > 0);
    assert_eq!(refused, 60 - sessions);
    drop(consumers);
    system.await_state(|state| state.num_sessions == Some(0));
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

    // A session that was never detached cannot be attached to.
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
    // A name that is no valid text, as the kernel allows for names of processes.
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
fn only_the_last_of_several_waiters_is_told_of_a_sessions_end() {
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
        // The answers have to be read, because each has an error message.
        consumer.ask("Attach", &attach("k".repeat(1000)));
    }
    assert_eq!(consumer.ask("Attach", &attach("k".repeat(100_000))).reply, None);
    let log = std::fs::read_to_string(system.path("traced.log")).unwrap();
    assert!(log.contains("cannot attach"), "{log}");
    assert!(log.len() < 1_000_000, "{} bytes", log.len());
    system.assert_running();
}
