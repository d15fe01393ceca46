//! Our `traced` with expensive inputs: many data sources times many producers, many connections of one process, expressions that are slow to match.
//! They cost the client that causes them, and take little of the other clients' time.
//!
//! The cost is the daemon's processor time, which does not depend on the load of the machine.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::filter_bytecode::{Rule, bytecode};
use crate::support::peers::{Producer, Session, commit, config, enabling, introduction, state};
use crate::support::process::{Stopped, processor_time, status_kb};
use crate::support::wire::{Client, framed, invoke, registration};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT};
use ferretto_proto::messages::ipc_frame::{self, Msg};
use ferretto_proto::messages::trace_config::trace_filter::{
    StringFilterChain, StringFilterPolicy, StringFilterRule,
};
use ferretto_proto::messages::{IPCFrame, Message, ReadBuffersResponse, TraceConfig, trace_config};
use ferretto_proto::write::TracePacket;
use ferretto_service::limits;
use ferretto_wire::Writer;

#[test]
fn thousands_of_data_sources_wanted_of_hundreds_of_producers_are_no_million_instances() {
    const PRODUCERS: usize = 200;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let _crowd: Vec<Client> = (0..PRODUCERS)
        .map(|_| {
            let mut client = Client::connect(&system.producer_socket(), &PRODUCER_PORT);
            client.ask("InitializeConnection", &introduction("crowd").encode_to_vec());
            client.ask("RegisterDataSource", &registration("d"));
            client.call("GetAsyncCommand", &[]);
            client
        })
        .collect();
    let mut wanting = config("d");
    wanting.data_sources = vec![wanting.data_sources[0].clone(); limits::MAX_DATA_SOURCES_PER_CONFIG];
    let before = status_kb(pid, "VmHWM:");
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    consumer.call("EnableTracing", &enabling(wanting));
    let count = state(&mut consumer).tracing_sessions[0].num_data_sources;
    assert_eq!(count, Some(limits::MAX_INSTANCES_PER_UID as u32));
    let growth = status_kb(pid, "VmHWM:") - before;
    assert!(growth < 64 * 1024, "{growth} KB");
    system.assert_running();
}

const SOCKET: &str = "FERRETTO_TEST_SOCKET";
const QUESTIONS: usize = 40;

/// The other process of the next test: connects, waits for a line, asks, and prints a line after each step.
#[test]
#[ignore = "run by another test"]
#[expect(
    clippy::disallowed_macros,
    reason = "the other test reads these lines; stdout is the test harness's"
)]
fn another_process_asks() {
    let socket = std::env::var_os(SOCKET).expect("run by another test");
    let mut client = Client::connect(Path::new(&socket), &CONSUMER_PORT);
    eprintln!("connected");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for _ in 0..QUESTIONS {
        let question = client.call("QueryCapabilities", &[]);
        eprintln!("asked");
        client.answer(question).reply.expect("an answer");
    }
}

#[test]
fn a_process_with_hundreds_of_busy_connections_takes_turns_with_one_that_has_a_single_one() {
    // More connections than one wait of the event loop reports.
    const CONNECTIONS: usize = 600;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    // A slow request that fails: expressions are compiled before the missing buffer is noticed.
    let mut dear = config("d");
    dear.buffers[0].size_kb = Some(0);
    dear.data_sources[0].producer_name_regex_filter = (0..16).map(|n| format!("(a|b)*c.{{50}}{n}")).collect();
    let method = CONSUMER_PORT
        .methods
        .iter()
        .position(|name| *name == "EnableTracing");
    let request = enabling(dear);
    let call = invoke(7, method.unwrap() as u32 + 1, &request);
    let bind = IPCFrame {
        request_id: Some(1),
        msg: Some(Msg::MsgBindService(Box::new(ipc_frame::BindService {
            service_name: Some(CONSUMER_PORT.name.to_owned()),
            ..Default::default()
        }))),
        ..Default::default()
    };
    let bind = framed(&bind.encode_to_vec());
    let until_answered = |stream: &UnixStream| {
        let until = Instant::now() + PATIENCE;
        while rustix::io::ioctl_fionread(stream).unwrap() == 0 {
            assert!(Instant::now() < until, "no answer");
            std::thread::yield_now();
        }
    };
    let crowd: Vec<UnixStream> = (0..CONNECTIONS)
        .map(|_| UnixStream::connect(system.consumer_socket()).unwrap())
        .collect();
    for mut stream in &crowd {
        stream.write_all(&bind).unwrap();
        until_answered(stream);
    }
    const SAMPLES: u32 = 10;
    let before = processor_time(pid);
    let mut answered = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    for _ in 0..SAMPLES {
        answered.ask("EnableTracing", &request);
    }
    let cost = (processor_time(pid) - before) / SAMPLES;
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "crowds::another_process_asks",
        ])
        .env(SOCKET, system.consumer_socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stderr.take().unwrap()).lines();
    let mut told = |what: &str| assert_eq!(lines.next().unwrap().unwrap(), what);
    told("connected");

    let stopped = Stopped::new(pid);
    // More data than the service reads from one connection in a turn.
    let flood = call.repeat(256 * 1024 / call.len());
    for mut stream in &crowd {
        stream.set_nonblocking(true).unwrap();
        let sent = stream.write(&flood).unwrap();
        assert!(sent > 160 * 1024, "no flood: {sent}");
    }
    other.stdin.take().unwrap().write_all(b"ask\n").unwrap();
    told("asked");
    let before = processor_time(pid);
    drop(stopped);
    assert!(other.wait().unwrap().success());
    // A round takes 20 ms plus the request that exceeds them. Each question takes one or two rounds. It would take ten if the whole crowd were read
    // from again and again, because one wait of the event loop reports 64 connections. On a busy machine, rounds cost more than in the measurement
    // above.
    let took = processor_time(pid) - before;
    let round = Duration::from_millis(20) + cost;
    assert!(
        took < 5 * QUESTIONS as u32 * round,
        "{took:?} with rounds of {round:?}"
    );
}

/// A packet with a text for tests.
fn packet_of(text: &[u8]) -> Vec<u8> {
    let mut packet = Writer::new();
    TracePacket::new(&mut packet).for_testing(|test| {
        test.str(text);
    });
    packet.into_vec()
}

fn chunk_of(id: u32, packet: &[u8]) -> Vec<u8> {
    let mut chunk = Writer::new();
    chunk.raw(&id.to_le_bytes());
    chunk.raw(&[1, 0, 1, 0]);
    chunk.varint(packet.len() as u64);
    chunk.raw(packet);
    chunk.into_vec()
}

/// A text on which the patterns below are slow.
fn confusing(size: usize) -> String {
    let letter = |n: u32| {
        if n.wrapping_mul(2_654_435_761) >> 13 & 1 == 0 {
            'a'
        } else {
            'b'
        }
    };
    (0..size as u32).map(letter).collect()
}

#[test]
fn patterns_that_take_long_to_match_cost_the_packets_that_take_too_long() {
    const PACKETS: u32 = 4;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let rule = StringFilterRule {
        policy: Some(StringFilterPolicy::SFP_MATCH_BREAK),
        regex_pattern: Some("[ab]*a[ab]{200}c".into()),
        ..Default::default()
    };
    let filter = trace_config::TraceFilter {
        bytecode_v2: Some(bytecode(&[
            &[Rule::Nested(1, 1)],
            &[Rule::Nested(900, 2)],
            &[Rule::Text(1)],
        ])),
        string_filter_chain: StringFilterChain {
            rules: vec![rule; limits::MAX_STRING_FILTER_RULES],
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    let mut session = Session::begin(
        &system,
        TraceConfig {
            trace_filter: filter.into(),
            ..config("d")
        },
    );
    let mut producer = Producer::new(&system, &introduction("p"), None);
    let (_, target) = producer.join("d");
    for id in 0..PACKETS {
        let chunk = chunk_of(id, &packet_of(confusing(16_000).as_bytes()));
        producer.client.call("CommitData", &commit(target, chunk));
    }
    let short = chunk_of(PACKETS, &packet_of(b"short"));
    producer.client.call("CommitData", &commit(target, short));
    producer.sync();
    let before = processor_time(pid);
    let read = session.client.call("ReadBuffers", &[]);
    let mut sizes = Vec::new();
    loop {
        let answer = session.client.answer(read);
        let slices = answer.decode::<ReadBuffersResponse>().slices;
        sizes.extend(slices.iter().map(|slice| slice.data.as_ref().map_or(0, Vec::len)));
        if !answer.has_more {
            break;
        }
    }
    let took = processor_time(pid) - before;
    assert!(sizes.contains(&packet_of(b"short").len()), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size < 16_000), "{sizes:?}");
    // In an unoptimised build, the last search before the limit may take some seconds.
    assert!(took < Duration::from_secs(20), "{took:?}");
}
