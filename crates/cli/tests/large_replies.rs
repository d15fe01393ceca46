//! Answers of our `traced` that would exceed the frames that clients accept, because of other clients' registrations, data or configs. They are
//! split, bounded or refused, and every question gets an answer.

use std::collections::BTreeSet;
use std::process::{Output, Stdio};

use crate::support::peers::{Producer, Session, commit, config, enabling, introduction, state};
use crate::support::process::processor_time;
use crate::support::wire::{Client, framed, registration, registration_of, registration_with};
use crate::support::{Program, Programs, Side, System};
use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::ports::CONSUMER_PORT;
use ferretto_proto::messages::get_async_command_response::Cmd;
use ferretto_proto::messages::ipc_frame::{self, Msg};
use ferretto_proto::messages::vm_instruction::Operation;
use ferretto_proto::messages::{
    AttachRequest, AttachResponse, CloneSessionRequest, CloneSessionResponse, CommitDataRequest,
    DataSourceConfig, DataSourceDescriptor, DetachRequest, EnableTracingRequest, EnableTracingResponse,
    GetTraceStatsResponse, IPCFrame, Message, ObserveEventsRequest, ObserveEventsResponse, ProtoVmConfig,
    QueryServiceStateResponse, RegisterDataSourceRequest, TraceConfig, TracingServiceState,
    TrackEventCategory, VmInstruction, VmProgram, clone_session_request::Selector, commit_data_request,
    observable_events,
};
use ferretto_proto::write;
use ferretto_proto::write::trace_packet::{ProtoVms, proto_vms};
use ferretto_service::limits;
use ferretto_wire::{Reader, Writer};

fn perfetto(system: &System<'_>, side: Side, flags: &[&str]) -> Output {
    let output = system
        .command(&system.program(side, Program::Perfetto), "query.log")
        .args(flags)
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{side} {flags:?}: {}",
        system.log("query.log")
    );
    output
}

/// A data source whose descriptor has nested messages.
fn nested(name: String, categories: usize, length: usize) -> Vec<u8> {
    let category = |n: usize| TrackEventCategory {
        name: Some(format!("category {n}")),
        description: Some("d".repeat(length)),
        tags: vec!["tag".into(); 3],
        ..Default::default()
    };
    registration_with(name, (0..categories).map(category).collect())
}

#[test]
fn the_state_can_be_queried_with_any_registrations() {
    let (programs, sides) = match Programs::of_both() {
        Some(programs) => (programs, vec![Side::Ours, Side::Upstream]),
        None => (Programs::ours(), vec![Side::Ours]),
    };
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut many = Producer::new(&system, &introduction("many"), None);
    for n in 0..1000 {
        many.client.call(
            "RegisterDataSource",
            &registration(&format!("source {n} {}", "s".repeat(500))),
        );
    }
    let mut long = Producer::new(&system, &introduction(&"p".repeat(60_000)), None);
    for n in 0..20 {
        let name = format!("long {n} {}", "l".repeat(30_000));
        long.client.call("RegisterDataSource", &registration(&name));
    }
    let mut deep = Producer::new(&system, &introduction("deep"), None);
    for n in 0..20 {
        deep.client
            .call("RegisterDataSource", &nested(format!("deep {n}"), 1000, 60));
    }
    // The largest possible request. With the other fields of an answer it does not fit into a frame.
    let widest = nested("widest".into(), 1, MAX_FRAME - 150);
    deep.client.call("RegisterDataSource", &widest);
    for producer in [&mut many, &mut long, &mut deep] {
        producer.sync();
    }
    const SOURCES: usize = 1000 + 20 + 21;
    for side in sides {
        let raw = perfetto(&system, side, &["--query-raw"]).stdout;
        let state = TracingServiceState::decode_from_slice(&raw).unwrap();
        assert_eq!(state.producers.len(), 3, "{side}");
        let names: BTreeSet<_> = state
            .data_sources
            .iter()
            .map(|source| source.ds_descriptor.name.clone().unwrap())
            .collect();
        assert_eq!(names.len(), SOURCES, "{side}");
        let of = |name: &str| {
            let mut sources = state.data_sources.iter();
            let found = sources.find(|source| source.ds_descriptor.name.as_deref() == Some(name));
            &found.unwrap().ds_descriptor
        };
        assert_eq!(
            of("deep 7").track_event_descriptor.available_categories.len(),
            1000,
            "{side}"
        );
        for flags in [&["--query", "--long"][..], &["--query"]] {
            let text = perfetto(&system, side, flags).stdout;
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains("deep 19") && text.contains("widest"),
                "{side} {flags:?}"
            );
        }
    }
    system.assert_running();
}

/// A registration of a data source with these bytes, which the service passes on unchanged.
fn opaque(name: &str, passed_on: &[u8]) -> Vec<u8> {
    const PASSED_ON: [u32; 3] = [
        DataSourceDescriptor::GPU_COUNTER_DESCRIPTOR,
        DataSourceDescriptor::TRACK_EVENT_DESCRIPTOR,
        DataSourceDescriptor::FTRACE_DESCRIPTOR,
    ];
    let mut request = Writer::new();
    request.nested(RegisterDataSourceRequest::DATA_SOURCE_DESCRIPTOR, |descriptor| {
        for number in PASSED_ON {
            descriptor.bytes_field(number, passed_on);
        }
        descriptor.bytes_field(DataSourceDescriptor::NAME, name.as_bytes());
        // A field that the schema lacks.
        descriptor.varint_field(1000, 4711);
    });
    request.into_vec()
}

#[test]
fn descriptors_are_in_the_state_byte_for_byte() {
    const SOURCES: usize = 60;
    let programs = Programs::of_both().unwrap_or_else(Programs::ours);
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut producer = Producer::new(&system, &introduction("p"), None);
    // Texts as in upstream's tests, and bytes that are no message: several frames in total.
    let registrations: Vec<Vec<u8>> = (0..SOURCES)
        .map(|n| match n % 3 {
            0 => opaque(&format!("d{n}"), b"DESC_"),
            1 => opaque(&format!("d{n}"), &[0xff; 10_000]),
            _ => opaque(&format!("d{n}"), "text ".repeat(2000).as_bytes()),
        })
        .collect();
    for registration in &registrations {
        producer.client.call("RegisterDataSource", registration);
    }
    producer.sync();
    let sides = [Side::Ours, Side::Upstream];
    for side in sides
        .into_iter()
        .filter(|side| *side == Side::Ours || programs.has_upstreams())
    {
        let raw = perfetto(&system, side, &["--query-raw"]).stdout;
        let of = |message: &[u8], number: u32| -> Vec<Vec<u8>> {
            let fields = Reader::new(message).map(Result::unwrap);
            let wanted = fields.filter(|field| field.number == number);
            wanted
                .map(|field| field.value.as_bytes().unwrap().to_vec())
                .collect()
        };
        // Upstream's command line encodes the fields again, in another order.
        let parts = |descriptor: Vec<u8>| match side {
            Side::Ours => vec![descriptor],
            Side::Upstream => [1, 6].map(|number| of(&descriptor, number).concat()).to_vec(),
        };
        let descriptors = |messages: &[Vec<u8>]| -> BTreeSet<Vec<Vec<u8>>> {
            let descriptors = messages.iter().flat_map(|message| of(message, 1));
            descriptors.map(parts).collect()
        };
        let (told, registered) = (descriptors(&of(&raw, 2)), descriptors(&registrations));
        assert_eq!(told.len(), SOURCES, "{side}");
        assert!(told == registered, "{side}: not as it was registered");
    }
    let text = String::from_utf8(perfetto(&system, Side::Ours, &["--query"]).stdout).unwrap();
    assert!(
        text.contains("d0") && text.contains(&format!("d{}", SOURCES - 1)),
        "{text}"
    );
    // An update of the same data source is treated alike.
    producer
        .client
        .call("UpdateDataSource", &opaque("d0", b"DESC_NO"));
    producer.sync();
    system.assert_running();
}

#[test]
fn a_state_larger_than_all_that_may_wait_for_a_client_reaches_it_part_by_part() {
    const PRODUCERS: usize = 10;
    const EACH: usize = 65;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let producers: Vec<Producer> = (0..PRODUCERS)
        .map(|number| {
            let mut producer = Producer::new(&system, &introduction(&format!("p{number}")), None);
            for n in 0..EACH {
                let source = nested(format!("source {number} {n}"), 1, 124_000);
                producer.client.ask("RegisterDataSource", &source);
            }
            producer
        })
        .collect();
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    // Two queries at once: one is answered after the other.
    let both: Vec<u64> = (0..2).map(|_| consumer.call("QueryServiceState", &[])).collect();
    for query in both {
        let (mut bytes, mut names) = (0, BTreeSet::new());
        loop {
            let answer = consumer.next_answer().unwrap();
            assert_eq!(answer.request, query);
            assert!(answer.frame_size <= MAX_FRAME);
            bytes += answer.frame_size;
            let state = answer.decode::<QueryServiceStateResponse>().service_state;
            let sources = state.data_sources.iter();
            names.extend(sources.map(|source| source.ds_descriptor.name.clone().unwrap()));
            if !answer.has_more {
                break;
            }
        }
        assert!(bytes > 64 * 1024 * 1024, "{bytes} bytes are few");
        assert_eq!(names.len(), PRODUCERS * EACH);
    }
    drop(producers);
    system.assert_running();
}

#[test]
fn producers_with_long_names_do_not_flood_their_observer() {
    const PRODUCERS: usize = 8;
    const EACH: usize = 1000;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let kinds = ObserveEventsRequest {
        events_to_observe: vec![observable_events::Type::TYPE_DATA_SOURCES_INSTANCES],
        ..Default::default()
    };
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let observed = consumer.call("ObserveEvents", &kinds.encode_to_vec());
    consumer.call("EnableTracing", &enabling(config("d")));
    // The consumer is slow to read the answer.
    let producers: Vec<Producer> = (0..PRODUCERS)
        .map(|number| {
            let name = format!("{number}{}", "p".repeat(100_000));
            let mut producer = Producer::new(&system, &introduction(&name), None);
            let registrations: Vec<u8> = (0..EACH)
                .flat_map(|_| {
                    producer
                        .client
                        .encoded_call("RegisterDataSource", &registration("d"))
                })
                .collect();
            producer.client.read_while_sending(&registrations);
            producer.sync();
            producer
        })
        .collect();
    let mut running = vec![0; PRODUCERS];
    while running.iter().sum::<usize>() < PRODUCERS * EACH {
        let answer = consumer.answer(observed);
        for change in &answer
            .decode::<ObserveEventsResponse>()
            .events
            .instance_state_changes
        {
            let started = observable_events::DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
            let name = change.producer_name.as_deref().unwrap();
            running[usize::from(name.as_bytes()[0] - b'0')] += usize::from(change.state == Some(started));
        }
    }
    assert_eq!(running, [EACH; PRODUCERS]);
    drop(producers);
    system.assert_running();
}

#[test]
fn statistics_of_thousands_of_writers_fit_a_frame_and_are_whole_in_the_trace() {
    const WRITERS: u16 = 6000;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut config = config("d");
    config.buffers[0].size_kb = Some(8192);
    let file = std::fs::File::create_new(system.path("trace")).unwrap().into();
    let into_file = TraceConfig {
        write_into_file: Some(true),
        ..config
    };
    let mut client = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let enabled = client.call_with("EnableTracing", &enabling(into_file), Some(&file));
    client.ask("QueryCapabilities", &[]);
    let mut producer = Producer::new(&system, &introduction("p"), None);
    let (_, target) = producer.join("d");
    let chunk = |writer: u16| {
        let mut chunk = Writer::new();
        chunk.raw(&0_u32.to_le_bytes());
        chunk.raw(&writer.to_le_bytes());
        chunk.raw(&1_u16.to_le_bytes());
        chunk.raw(&[3, 0xa2, 0x38, 0]);
        commit_data_request::ChunksToMove {
            target_buffer: Some(target),
            data: Some(chunk.as_slice().to_vec()),
            ..Default::default()
        }
    };
    let writers: Vec<u16> = (1..=WRITERS).collect();
    for writers in writers.chunks(1000) {
        let request = CommitDataRequest {
            chunks_to_move: writers.iter().map(|writer| chunk(*writer)).collect(),
            ..Default::default()
        };
        producer.client.call("CommitData", &request.encode_to_vec());
    }
    producer.sync();
    let answer = client.ask("GetTraceStats", &[]);
    assert!(answer.frame_size <= MAX_FRAME, "{}", answer.frame_size);
    let stats = answer.decode::<GetTraceStatsResponse>().trace_stats;
    assert_eq!(stats.buffer_stats[0].chunks_written, Some(WRITERS.into()));
    let told = stats.writer_stats.len();
    assert!((1000..usize::from(WRITERS)).contains(&told), "{told} writers");

    client.call("DisableTracing", &[]);
    let end: EnableTracingResponse = client.answer(enabled).decode();
    assert_eq!(end.error, None);
    let trace = std::fs::read(system.path("trace")).unwrap();
    let writers = Reader::new(&trace)
        .map(|packet| packet.unwrap().value.as_bytes().unwrap())
        .flat_map(|packet| Reader::new(packet).map(Result::unwrap))
        .filter(|field| field.number == write::TracePacket::TRACE_STATS)
        .map(|field| {
            let stats =
                ferretto_proto::messages::TraceStats::decode_from_slice(field.value.as_bytes().unwrap());
            stats.unwrap().writer_stats.len()
        });
    assert_eq!(writers.last(), Some(WRITERS.into()));
    system.assert_running();
}

/// A config with one data source whose own config has so many bytes, in a field that only the data source knows.
fn with_opaque_config(size: usize) -> (TraceConfig, Vec<u8>) {
    const OF_THE_FUTURE: u32 = 9999;
    let mut opaque = Writer::new();
    opaque.bytes_field(DataSourceConfig::NAME, b"d");
    let rest = size - opaque.len() - 6;
    opaque.bytes_field(OF_THE_FUTURE, &vec![0x5a; rest]);
    let mut config = config("d");
    config.data_sources[0].config = DataSourceConfig::decode_from_slice(opaque.as_slice())
        .unwrap()
        .into();
    assert_eq!(opaque.len(), size);
    (config, opaque.as_slice().to_vec())
}

#[test]
fn a_config_that_fits_no_command_is_refused_and_one_that_just_does_arrives_byte_for_byte() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let (too_large, _) = with_opaque_config(limits::MAX_DATA_SOURCE_CONFIG_SIZE + 1);
    let answer: EnableTracingResponse = consumer.ask("EnableTracing", &enabling(too_large)).decode();
    let error = answer.error.unwrap();
    assert!(error.contains("its config is 130049 bytes long"), "{error}");

    let (largest, bytes) = with_opaque_config(limits::MAX_DATA_SOURCE_CONFIG_SIZE);
    let _session = Session::begin(&system, largest);
    let mut producer = Producer::new(&system, &introduction("p"), None);
    producer.client.call("RegisterDataSource", &registration("d"));
    let (memory, _) = producer.next_command();
    assert!(matches!(memory, Cmd::SetupTracing(_)));
    for _ in ["set up", "start"] {
        let answer = producer.next_answer();
        assert!(answer.frame_size <= MAX_FRAME, "{}", answer.frame_size);
        let reply = answer.reply.unwrap();
        assert!(
            reply.windows(bytes.len()).any(|window| window == bytes),
            "not as it was sent"
        );
    }
    system.assert_running();
}

#[test]
fn refusals_have_their_reason_even_with_long_names() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    // In an error message, its escapes are five times as long.
    let name = "\u{1}".repeat(60_000);
    let mut astray = config(&name);
    astray.data_sources[0]
        .config
        .get_or_insert_default()
        .target_buffer = Some(7);
    let answer: EnableTracingResponse = consumer.ask("EnableTracing", &enabling(astray)).decode();
    let error = answer.error.unwrap();
    assert!(
        error.ends_with("target_buffer 7 is out of bounds (1 buffers)"),
        "{error}"
    );

    let request = CloneSessionRequest {
        selector: Some(Selector::UniqueSessionName(name)),
        ..Default::default()
    };
    let answer: CloneSessionResponse = consumer.ask("CloneSession", &request.encode_to_vec()).decode();
    let error = answer.error.unwrap();
    assert!(error.starts_with("Tracing session not found"), "{error}");
    system.assert_running();
}

#[test]
fn attaching_tells_the_whole_config_however_long_it_is() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut config = config("d");
    config.data_sources = (0..60)
        .map(|n| {
            let mut source = config.data_sources[0].clone();
            source.producer_name_filter = vec![format!("{n:02000}")];
            source
        })
        .collect();
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let request = EnableTracingRequest {
        trace_config: config.clone().into(),
        ..Default::default()
    };
    consumer.call("EnableTracing", &request.encode_to_vec());
    let key = Some("key".to_owned());
    let detach = DetachRequest {
        key: key.clone(),
        ..Default::default()
    };
    assert!(consumer.ask("Detach", &detach.encode_to_vec()).reply.is_some());
    let attach = AttachRequest {
        key,
        ..Default::default()
    };
    let mut other = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let attached: AttachResponse = other.ask("Attach", &attach.encode_to_vec()).decode();
    assert_eq!(*attached.trace_config, config);
}

#[test]
fn thousands_of_instances_are_reported_to_observers_in_parts() {
    const INSTANCES: usize = 3000;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let mut producer = Producer::new(&system, &introduction(&"p".repeat(300)), None);
    let name = "s".repeat(20);
    producer.client.call("RegisterDataSource", &registration(&name));
    producer.sync();
    let mut config = config(&name);
    config.data_sources = vec![config.data_sources[0].clone(); INSTANCES];
    let kinds = ObserveEventsRequest {
        events_to_observe: vec![
            observable_events::Type::TYPE_DATA_SOURCES_INSTANCES,
            observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED,
        ],
        ..Default::default()
    };
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let observed = consumer.call("ObserveEvents", &kinds.encode_to_vec());
    consumer.call("EnableTracing", &enabling(config));
    let (mut running, mut parts, mut all_started) = (0, 0, false);
    while running < INSTANCES || !all_started {
        let answer = consumer.answer(observed);
        assert!(answer.has_more && answer.frame_size <= MAX_FRAME, "{answer:?}");
        let events = answer.decode::<ObserveEventsResponse>().events;
        let started = observable_events::DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED;
        let changes = events.instance_state_changes.iter();
        running += changes.filter(|change| change.state == Some(started)).count();
        all_started |= events.all_data_sources_started.unwrap_or_default();
        parts += 1;
    }
    assert_eq!(running, INSTANCES);
    assert!(parts > 3, "{parts} parts");
    // The producer is told of the same number.
    let mut started = 0;
    while started < INSTANCES {
        started += usize::from(matches!(producer.next_command().0, Cmd::StartDataSource(_)));
    }
    assert_eq!(
        state(&mut consumer).tracing_sessions[0].num_data_sources,
        Some(INSTANCES as u32)
    );
    system.assert_running();
}

/// Waits until a producer's only data source was started; returns the buffer to write into.
fn started(producer: &mut Producer) -> u32 {
    let mut target = None;
    loop {
        match producer.next_command().0 {
            Cmd::SetupDataSource(setup) => target = setup.config.target_buffer,
            Cmd::StartDataSource(_) => return target.unwrap(),
            _ => {}
        }
    }
}

/// Makes a producer overwrite 300 KB of packets in a ring of 64 KB. Its program keeps the latest value of each field.
fn overwrite_merged(producer: &mut Producer, target: u32) {
    for n in 0..MERGED {
        let mut packet = Writer::new();
        packet.bytes_field(FIRST_MERGED + n, &vec![b'a' + n as u8; 30_000]);
        let mut chunk = Writer::new();
        chunk.raw(&n.to_le_bytes());
        chunk.raw(&[1, 0, 1, 0]);
        chunk.varint(packet.len() as u64);
        chunk.raw(packet.as_slice());
        let commit = commit(target, chunk.into_vec());
        producer.client.call("CommitData", &commit);
    }
    producer.sync();
}

const MERGED: u32 = 10;
/// The first of the packets' fields that the schema lacks.
const FIRST_MERGED: u32 = 5000;

/// Returns the fields from [`overwrite_merged`] in these packets: those in the merged state, and those that were not overwritten.
fn merged_and_kept<'p>(packets: impl Iterator<Item = &'p [u8]>) -> (Vec<u32>, Vec<u32>) {
    let part = |message: &'p [u8], number| {
        let mut fields = Reader::new(message).map(Result::unwrap);
        let field = fields.find(|field| field.number == number)?;
        field.value.as_bytes()
    };
    let written = |message: &'p [u8]| {
        let fields = Reader::new(message).map(Result::unwrap);
        let ours = fields.filter(|field| (FIRST_MERGED..FIRST_MERGED + MERGED).contains(&field.number));
        let checked = ours.map(|field| {
            let letter = b'a' + (field.number - FIRST_MERGED) as u8;
            assert_eq!(field.value.as_bytes(), Some(&vec![letter; 30_000][..]));
            field.number - FIRST_MERGED
        });
        checked.collect::<Vec<u32>>()
    };
    let (mut merged, mut kept) = (Vec::new(), Vec::new());
    for packet in packets {
        kept.extend(written(packet));
        if let Some(vms) = part(packet, write::TracePacket::PROTOVMS) {
            let state = part(part(vms, ProtoVms::INSTANCE).unwrap(), proto_vms::Instance::STATE).unwrap();
            assert!(state.len() > MAX_FRAME, "{}", state.len());
            merged.extend(written(state));
        }
    }
    (merged, kept)
}

#[test]
fn the_state_of_a_program_is_read_in_as_many_frames_as_it_takes() {
    let (programs, sides) = match Programs::of_both() {
        Some(programs) => (programs, vec![Side::Ours, Side::Upstream]),
        None => (Programs::ours(), vec![Side::Ours]),
    };
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let merge = VmInstruction {
        operation: Some(Operation::Merge(Box::default())),
        ..Default::default()
    };
    let descriptor = DataSourceDescriptor {
        name: Some("d".into()),
        no_flush: Some(true),
        protovm_program: VmProgram {
            instructions: vec![merge],
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    let registration = registration_of(descriptor);
    let mut producer = Producer::new(&system, &introduction("p"), None);
    producer.client.call("RegisterDataSource", &registration);
    producer.sync();
    let everything = |(merged, kept): (Vec<u32>, Vec<u32>)| {
        let all: Vec<u32> = merged.into_iter().chain(kept).collect();
        assert_eq!(all, Vec::from_iter(0..MERGED), "each once, and in order");
    };

    let mut merging = config("d");
    merging.buffers[0].size_kb = Some(64);
    merging.data_sources[0]
        .config
        .get_or_insert_default()
        .protovm_config = ProtoVmConfig {
        memory_limit_kb: Some(1024),
        ..Default::default()
    }
    .into();
    let mut session = Session::begin(&system, merging);
    let target = started(&mut producer);
    overwrite_merged(&mut producer, target);
    let (packets, frames) = session.read();
    assert!(frames.iter().all(|size| *size <= MAX_FRAME), "{frames:?}");
    everything(merged_and_kept(packets.iter().map(Vec::as_slice)));
    drop(session);
    assert!(matches!(producer.next_command().0, Cmd::StopDataSource(_)));

    let text = "buffers { size_kb: 64 } \
                data_sources { config { name: \"d\" protovm_config { memory_limit_kb: 1024 } } }";
    for side in sides {
        let recording = system.record(side, text);
        let target = started(&mut producer);
        overwrite_merged(&mut producer, target);
        let trace = std::fs::read(recording.interrupt()).unwrap();
        let packets = Reader::new(&trace).map(|packet| packet.unwrap().value.as_bytes().unwrap());
        everything(merged_and_kept(packets));
        while !matches!(producer.next_command().0, Cmd::StopDataSource(_)) {}
    }
    system.assert_running();
}

/// A consumer's call whose answer is not wanted.
fn dropped_call(method: &str) -> Vec<u8> {
    let names = &CONSUMER_PORT.methods;
    let position = names.iter().position(|name| *name == method).unwrap();
    let frame = IPCFrame {
        request_id: Some(1000),
        msg: Some(Msg::MsgInvokeMethod(Box::new(ipc_frame::InvokeMethod {
            service_id: Some(1),
            method_id: Some(position as u32 + 1),
            drop_reply: Some(true),
            ..Default::default()
        }))),
        ..Default::default()
    };
    framed(&frame.encode_to_vec())
}

#[test]
fn an_unwanted_state_is_not_assembled() {
    const SOURCES: u64 = 60;
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let pid = system.start(Side::Ours, Program::Traced);
    let mut bulky = Producer::new(&system, &introduction("bulky"), None);
    for id in 1..=SOURCES {
        let descriptor = DataSourceDescriptor {
            name: Some("n".repeat(120_000)),
            id: Some(id),
            ..Default::default()
        };
        let request = registration_of(descriptor);
        bulky.client.ask("RegisterDataSource", &request);
    }
    let mut consumer = Client::connect(&system.consumer_socket(), &CONSUMER_PORT);
    let before = processor_time(pid);
    assert_eq!(state(&mut consumer).data_sources.len() as u64, SOURCES);
    let asked_once = processor_time(pid) - before;
    let before = processor_time(pid);
    let query = dropped_call("QueryServiceState");
    consumer.send(&query.repeat(500), None);
    consumer.ask("QueryCapabilities", &[]);
    let in_vain = processor_time(pid) - before;
    assert!(
        in_vain < 20 * asked_once,
        "{in_vain:?} for nobody, {asked_once:?} for whoever reads"
    );
}
