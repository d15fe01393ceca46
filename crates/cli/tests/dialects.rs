//! Our `traced` with older, newer and foreign clients, from the bytes that these send (`tests/dialects`); and our clients with a service that is
//! older or newer than they are.
//!
//! `recorded-*` are real conversations with upstream's service; [`record_the_dialects_of_others`] records them again. `older-*` and `newer-*` are
//! written by hand: requests from before the protocol grew, and possible requests of a protocol that has grown further.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::dialect::{self, Player};
use crate::support::{Program, Programs, Running, Side, System};
use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT, ServiceDescriptor};
use ferretto_proto::messages::{
    AttachResponse, CloneSessionResponse, Message, QueryServiceStateResponse, ReadBuffersResponse,
};
use ferretto_wire::Reader;

/// The session in which producers are recorded.
const RECORDED: &str =
    "duration_ms: 1000 flush_period_ms: 300 incremental_state_config { clear_period_ms: 400 }";
/// The session in which recorded conversations are played. The number of messages within a second depends on the start and on the load of the
/// machine, so this session has no end.
const PLAYED: &str = "flush_period_ms: 200 incremental_state_config { clear_period_ms: 250 }";

fn session(periods: &str) -> String {
    format!(
        r#"
        buffers {{ size_kb: 1024 }}
        {periods}
        data_sources {{ config {{ name: "linux.system_info" }} }}
        data_sources {{ config {{ name: "track_event" track_event_config {{ enabled_categories: "interop" }} }} }}
        # What was recorded may end before it acknowledges everything.
        data_source_stop_timeout_ms: 500
        flush_timeout_ms: 500
        "#
    )
}

/// A session to clone.
const ORIGINAL: &str = "buffers { size_kb: 64 } unique_session_name: \"original\"";

/// The recorded releases of upstream: the oldest one in distributions, and the current one.
const RELEASES: [&str; 2] = ["v56", "v58"];

/// Returns the release in a program's `--version`.
fn version_of(program: &std::path::Path) -> String {
    let said = Command::new(program).arg("--version").output().unwrap().stdout;
    let said = String::from_utf8(said).unwrap();
    let version = said
        .split_whitespace()
        .find(|word| word.starts_with('v'))
        .unwrap();
    version.split('.').next().unwrap().to_owned()
}

/// Sits between upstream's service and a client of upstream's, and saves the client's bytes.
#[test]
#[ignore = "writes tests/dialects; needs upstream's binaries and interop/cxx-producer"]
fn record_the_dialects_of_others() {
    let programs = Programs::of_both().expect("upstream's binaries");
    let version = version_of(&programs.path(Side::Upstream, Program::Perfetto));
    let cxx = PathBuf::from(std::env::var_os("FERRETTO_CXX_PRODUCER").expect("interop/cxx-producer"));
    let recording =
        |name: &str, about: &str, port: &'static ServiceDescriptor, run: &dyn Fn(&System<'_>, &str)| {
            let mut system = System::new(&programs);
            system.start(Side::Upstream, Program::Traced);
            let (here, there) = if port.name == PRODUCER_PORT.name {
                (system.path("between"), system.producer_socket())
            } else {
                (system.path("between"), system.consumer_socket())
            };
            std::thread::scope(|threads| {
                let service = UnixStream::connect(&there).unwrap();
                let here = &here;
                let recorder = threads.spawn(move || dialect::record(here, &service, port));
                while !here.exists() {
                    std::thread::yield_now();
                }
                run(&system, &here.display().to_string());
                dialect::save(name, about, &recorder.join().unwrap());
            });
        };
    let perfetto = |system: &System<'_>, between: &str, flags: &[&str]| {
        let status = system
            .command(&system.program(Side::Upstream, Program::Perfetto), "perfetto.log")
            .env("PERFETTO_CONSUMER_SOCK_NAME", between)
            .args(flags)
            .status()
            .unwrap();
        assert!(status.success(), "{}", system.log("perfetto.log"));
    };
    let config = |system: &System<'_>, text: &str| {
        std::fs::write(system.path("config"), text).unwrap();
        let path = |name| system.path(name).display().to_string();
        [
            "--txt".into(),
            "-c".into(),
            path("config"),
            "-o".into(),
            path("trace"),
        ]
    };
    recording(
        &format!("recorded-perfetto-{version}-record"),
        &format!("# perfetto {version} --txt -c CONFIG -o TRACE\n"),
        &CONSUMER_PORT,
        &|system, between| {
            let flags = config(system, "buffers { size_kb: 64 } duration_ms: 200");
            perfetto(system, between, &flags.each_ref().map(String::as_str));
        },
    );
    let detached = |system: &System<'_>, socket: &str| {
        let flags = config(system, "buffers { size_kb: 64 } write_into_file: true");
        let [a, b, c, d, e] = flags.each_ref().map(String::as_str);
        perfetto(system, socket, &[a, b, c, d, e, "--detach=key"]);
    };
    recording(
        &format!("recorded-perfetto-{version}-detach"),
        &format!("# perfetto {version} --txt -c CONFIG -o TRACE --detach=key\n"),
        &CONSUMER_PORT,
        &detached,
    );
    recording(
        &format!("recorded-perfetto-{version}-attach"),
        &format!("# perfetto {version} --attach=key --stop\n"),
        &CONSUMER_PORT,
        &|system, between| {
            detached(system, &system.consumer_socket().display().to_string());
            perfetto(system, between, &["--attach=key", "--stop"]);
        },
    );
    recording(
        &format!("recorded-perfetto-{version}-query"),
        &format!("# perfetto {version} --query-raw\n"),
        &CONSUMER_PORT,
        &|system, between| perfetto(system, between, &["--query-raw"]),
    );
    recording(
        &format!("recorded-perfetto-{version}-clone"),
        &format!("# perfetto {version} --clone-by-name original -o TRACE\n"),
        &CONSUMER_PORT,
        &|system, between| {
            let original = system.record(Side::Upstream, ORIGINAL);
            let trace = system.path("clone").display().to_string();
            perfetto(system, between, &["--clone-by-name", "original", "-o", &trace]);
            original.interrupt();
        },
    );
    recording(
        &format!("recorded-perfetto-{version}-trigger"),
        &format!("# perfetto {version} --txt -c CONFIG, with activate_triggers: \"enough\"\n"),
        &PRODUCER_PORT,
        &|system, between| {
            std::fs::write(system.path("config"), "activate_triggers: \"enough\"").unwrap();
            let program = system.program(Side::Upstream, Program::Perfetto);
            let mut command = system.command(&program, "perfetto.log");
            command.env("PERFETTO_PRODUCER_SOCK_NAME", between);
            command.arg("--txt").arg("-c").arg(system.path("config"));
            assert!(
                command.status().unwrap().success(),
                "{}",
                system.log("perfetto.log")
            );
        },
    );
    let with_session = |system: &System<'_>, producer: &mut Command| {
        let mut producer = Running(producer.spawn().unwrap());
        system.await_state(|state| !state.data_sources.is_empty());
        system.record(Side::Upstream, &session(RECORDED)).finish();
        producer.wait(std::time::Duration::ZERO);
    };
    recording(
        &format!("recorded-traced_probes-{version}"),
        &format!("# traced_probes {version}, which a session uses for a second\n"),
        &PRODUCER_PORT,
        &|system, between| {
            let mut probes = system.command(
                &system.program(Side::Upstream, Program::TracedProbes),
                "probes.log",
            );
            with_session(system, probes.env("PERFETTO_PRODUCER_SOCK_NAME", between));
        },
    );
    recording(
        "recorded-cxx-sdk",
        "# The C++ client library (interop/cxx-producer), five events and out\n",
        &PRODUCER_PORT,
        &|system, between| {
            let mut producer = system.command(&cxx, "producer.log");
            producer
                .args(["--events", "5", "--packets", "0"])
                .stdout(Stdio::null());
            with_session(system, producer.env("PERFETTO_PRODUCER_SOCK_NAME", between));
        },
    );
}

/// Returns the packets in replies to `ReadBuffers`.
fn packets(replies: &[&[u8]]) -> Vec<Vec<u8>> {
    let (mut packets, mut packet) = (Vec::new(), Vec::new());
    for reply in replies {
        for slice in ReadBuffersResponse::decode_from_slice(reply).unwrap().slices {
            packet.extend(slice.data.unwrap_or_default());
            if slice.last_slice_for_packet.unwrap_or_default() {
                packets.push(std::mem::take(&mut packet));
            }
        }
    }
    packets
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A system with our service, on which scripts are played.
fn our_service<'a>(programs: &'a Programs) -> System<'a> {
    let mut system = System::new(programs);
    system.start(Side::Ours, Program::Traced);
    system
}

fn consumer(system: &System<'_>, script: &str) -> Player {
    Player::new(script, &system.consumer_socket(), &CONSUMER_PORT)
}

fn producer(system: &System<'_>, script: &str) -> Player {
    Player::new(script, &system.producer_socket(), &PRODUCER_PORT)
}

#[test]
fn upstreams_command_line_records_from_us() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    for release in RELEASES {
        let mut player = consumer(&system, &format!("recorded-perfetto-{release}-record"));
        player.play();
        assert_eq!(configs_in(&packets(&player.replies(3))), 1, "{release}");
    }
    system.assert_running();
}

/// Returns the number of packets with a trace config.
fn configs_in(packets: &[Vec<u8>]) -> usize {
    const TRACE_CONFIG: u32 = 33;
    let has_config = |packet: &&Vec<u8>| {
        Reader::new(packet)
            .flatten()
            .any(|field| field.number == TRACE_CONFIG)
    };
    packets.iter().filter(has_config).count()
}

#[test]
fn upstreams_command_line_clones_from_us() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    for release in RELEASES {
        let original = system.record(Side::Ours, ORIGINAL);
        let mut player = consumer(&system, &format!("recorded-perfetto-{release}-clone"));
        player.play();
        let [reply] = player.replies(2)[..] else {
            panic!("{release}: not one reply")
        };
        let cloned = CloneSessionResponse::decode_from_slice(reply).unwrap();
        assert_eq!(cloned.success, Some(true), "{release}");
        assert_eq!(configs_in(&packets(&player.stream(3))), 1, "{release}");
        original.interrupt();
    }
    system.assert_running();
}

#[test]
fn upstreams_triggers_end_recordings_of_ours() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    for release in RELEASES {
        let recording = system.record(
            Side::Ours,
            "buffers { size_kb: 64 }
            trigger_config { trigger_mode: STOP_TRACING trigger_timeout_ms: 60000 triggers { name: \"enough\" } }",
        );
        producer(&system, &format!("recorded-perfetto-{release}-trigger")).play();
        let trace = std::fs::read(recording.finish()).unwrap();
        assert!(contains(&trace, b"enough"), "{release}");
    }
    system.assert_running();
}

#[test]
fn upstreams_command_line_asks_us_for_our_state() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    for release in RELEASES {
        let mut player = consumer(&system, &format!("recorded-perfetto-{release}-query"));
        player.play();
        let [reply] = player.replies(2)[..] else {
            panic!("{release}: not one reply")
        };
        let state = QueryServiceStateResponse::decode_from_slice(reply)
            .unwrap()
            .service_state;
        assert_eq!(state.num_sessions, Some(0));
        assert_eq!(state.supports_tracing_sessions, Some(true));
    }
    system.assert_running();
}

#[test]
fn upstreams_command_line_detaches_from_us_and_attaches_again() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    for release in RELEASES {
        let mut detached = consumer(&system, &format!("recorded-perfetto-{release}-detach"));
        detached.play();
        system.await_state(|state| state.num_sessions == Some(1));
        let mut attached = consumer(&system, &format!("recorded-perfetto-{release}-attach"));
        attached.play();
        let [reply] = attached.replies(2)[..] else {
            panic!("{release}: not one reply")
        };
        let config = AttachResponse::decode_from_slice(reply).unwrap().trace_config;
        assert_eq!(config.write_into_file, Some(true));
        let trace = detached.file();
        assert!(Reader::new(&trace).all(|packet| packet.is_ok()) && !trace.is_empty());
        drop((detached, attached));
        system.await_state(|state| state.num_sessions == Some(0));
    }
    system.assert_running();
}

#[test]
fn upstreams_producers_record_for_us() {
    for script in [
        "recorded-traced_probes-v56",
        "recorded-traced_probes-v58",
        "recorded-cxx-sdk",
    ] {
        let programs = Programs::ours();
        let mut system = our_service(&programs);
        let mut player = producer(&system, script);
        let player = std::thread::scope(|threads| {
            let playing = threads.spawn(move || {
                player.play_to_stop();
                player
            });
            system.await_state(|state| !state.data_sources.is_empty());
            let recording = system.record(Side::Ours, &session(PLAYED));
            // The session goes on until it has had as many flushes and clearings as the recorded one.
            let mut player = playing.join().unwrap();
            let stopping = threads.spawn(move || {
                player.play();
                player
            });
            let trace = recording.interrupt();
            assert!(std::fs::metadata(trace).unwrap().len() > 0);
            stopping.join().unwrap()
        });
        assert!(!player.replies(3).is_empty(), "{script}: no commands");
        drop(player);
        system.await_state(|state| state.producers.is_empty());
        system.assert_running();
    }
}

#[test]
fn a_producer_and_a_consumer_from_before_most_of_the_protocol_record_together() {
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    let mut consumer = consumer(&system, "older-consumer");
    let mut producer = producer(&system, "older-producer");
    consumer.play_to("enabled");
    producer.play_to("committed");
    consumer.play_to("flushing");
    producer.play_to("flushed");
    consumer.play();
    producer.play();
    let packets = packets(&consumer.replies(5));
    let with_data = packets.iter().filter(|packet| contains(packet, b"from before"));
    assert_eq!(with_data.count(), 1);
    system.assert_running();
}

#[test]
fn a_producer_and_a_consumer_of_a_later_time_record_together() {
    /// The `DataSourceConfig` in the script.
    const CONFIG: &[u8] =
        b"\x0a\x01d\x9a\x3f\x11\x0a\x0dof the future\x10\x07\xa1\x3f\x01\x02\x03\x04\x05\x06\x07\x08";
    let programs = Programs::ours();
    let mut system = our_service(&programs);
    let mut consumer = consumer(&system, "newer-consumer");
    let mut producer = producer(&system, "newer-producer");
    consumer.play_to("enabled");
    producer.play_to("committed");
    let commands = producer.replies(6);
    let (_, with_config): (Vec<_>, Vec<_>) = commands.iter().partition(|command| command[0] == 0x1a);
    assert_eq!(with_config.len(), 2, "set up and start");
    for command in with_config {
        assert!(
            contains(command, CONFIG),
            "not as the consumer sent it: {command:02x?}"
        );
    }
    let state = system.state();
    let descriptor = state.data_sources[0].ds_descriptor.encode_to_vec();
    assert!(
        contains(&descriptor, b"changed"),
        "the unknown fields of the descriptor are lost"
    );
    consumer.play_to("stopping");
    producer.play();
    consumer.play();
    let packets = packets(&consumer.replies(9));
    let with_data = packets.iter().filter(|packet| contains(packet, b"from later"));
    assert_eq!(with_data.count(), 1);
    let with_config = packets.iter().filter(|packet| contains(packet, b"deep"));
    assert_eq!(
        with_config.count(),
        1,
        "the config in the trace is the consumer's"
    );
    system.assert_running();
}
