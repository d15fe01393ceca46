//! The trace filter with real programs: with either service, either command line and each output, the same packets come out, to the byte.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::filter_bytecode::{Rule, bytecode, escaped, overlay};
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Wake};
use ferretto_client::producer::{
    DataSourceInstanceId, ProducerCommand, ProducerEndpoint, ProducerEvent, ProducerOptions,
    SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::Address;
use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{DataSourceDescriptor, Message, TracePacket, trace_stats};
use ferretto_proto::write::{self, TestEvent};
use ferretto_smb::{PageLayout, PageSize, Peer, ProducerSmb, SharedMemory};
use ferretto_wire::{Reader, Writer};
use rustix::event::{PollFd, PollFlags};

const DATA_SOURCE: &str = "ferretto.filter";

/// An arbiter's notifier that does nothing, because the producer looks at the arbiter on every turn.
struct LookAnyway;

impl Notify for LookAnyway {
    fn wake(&self, _: Wake) {}
}

/// A producer that writes its packets whenever its data source starts. Its thread ends with the service.
struct Producer {
    endpoint: ProducerEndpoint,
    packets: Vec<Vec<u8>>,
    arbiter: Option<Arc<Arbiter>>,
    writers: HashMap<DataSourceInstanceId, TraceWriter>,
    synced: bool,
}

impl Producer {
    /// Starts it; returns once its data source is registered.
    fn start(system: &System<'_>, packets: Vec<Vec<u8>>) -> JoinHandle<()> {
        let options = ProducerOptions {
            name: "ferretto.filter.producer".into(),
            page_size_hint: 32 * 1024,
            shared_memory_size_hint: 8 << 20,
            ..Default::default()
        };
        let address = Address::Unix(system.producer_socket());
        let mut endpoint = ProducerEndpoint::connect(&address, options).unwrap();
        let descriptor = DataSourceDescriptor {
            name: Some(DATA_SOURCE.into()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            ..Default::default()
        };
        endpoint.register_data_source(descriptor).unwrap();
        endpoint.sync().unwrap();
        let mut producer = Producer {
            endpoint,
            packets,
            arbiter: None,
            writers: HashMap::new(),
            synced: false,
        };
        while !producer.synced {
            assert!(producer.turn(), "the service went away");
        }
        std::thread::spawn(move || while producer.turn() {})
    }

    /// Sends pending requests and handles commands; returns false once the service has gone.
    fn turn(&mut self) -> bool {
        for request in self.arbiter.iter().flat_map(|arbiter| arbiter.take_requests()) {
            self.endpoint.send(request).unwrap();
        }
        self.endpoint.flush();
        let mut flags = PollFlags::IN;
        if matches!(self.endpoint.interest(), Interest::Both | Interest::Writable) {
            flags |= PollFlags::OUT;
        }
        let timeout = PATIENCE.try_into().unwrap();
        let mut polled = [PollFd::new(&self.endpoint, flags)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&timeout)));
        assert!(ready.unwrap() > 0, "nothing happens");
        self.endpoint.on_readable();
        while let Some(event) = self.endpoint.next_event() {
            match event {
                ProducerEvent::Synced(_) => self.synced = true,
                ProducerEvent::Command(command) => self.command(command),
                ProducerEvent::Disconnected(_) => return false,
                _ => {}
            }
        }
        true
    }

    fn command(&mut self, command: ProducerCommand) {
        match command {
            ProducerCommand::SetupTracing(SharedMemoryOffer::FromService { fd, page_size }) => {
                let memory = Arc::new(SharedMemory::attach(fd, Peer::Service, usize::MAX).unwrap());
                let smb = ProducerSmb::new(memory, PageSize::new(page_size as usize).unwrap()).unwrap();
                self.arbiter = Some(Arbiter::new(smb, PageLayout::Div1, LookAnyway));
            }
            ProducerCommand::StartDataSource(setup) => {
                let target = BufferId(setup.config.target_buffer.unwrap().try_into().unwrap());
                let arbiter = self
                    .arbiter
                    .as_ref()
                    .expect("tracing is set up before sources are");
                let mut writer = arbiter
                    .create_trace_writer(target, BufferExhaustedPolicy::Drop)
                    .unwrap();
                for packet in &self.packets {
                    writer.write_packet(packet);
                }
                self.writers.insert(setup.instance, writer);
                self.endpoint.notify_data_source_started(setup.instance).unwrap();
            }
            ProducerCommand::Flush(flush) => {
                for instance in &flush.instances {
                    self.writers.get_mut(instance).unwrap().flush();
                }
                self.arbiter.as_ref().unwrap().acknowledge_flush(flush.id.0);
            }
            ProducerCommand::StopDataSource(instance) => {
                self.writers.remove(&instance);
                for request in self.arbiter.iter().flat_map(|arbiter| arbiter.take_requests()) {
                    self.endpoint.send(request).unwrap();
                }
                self.endpoint.notify_data_source_stopped(instance).unwrap();
            }
            _ => {}
        }
    }
}

fn packet(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.nested(write::TracePacket::FOR_TESTING, fill);
    packet.as_slice().to_vec()
}

fn text(text: &str) -> Vec<u8> {
    packet(|event| event.bytes_field(TestEvent::STR, text.as_bytes()))
}

/// Packets that are different for a filter.
fn packets() -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = [
        "B|12|payload7 and more",
        "B|12|other x:123 x:4 y:5 x:67890123456789",
        "B|12|stays as it is",
        "B|12|not this one",
        "E|12|payload7",
        "plain secret text",
        "plain secret tex\u{e9}",
        "break plain secret text",
        "nothing of interest",
        "",
    ]
    .map(text)
    .into();
    packets.push(packet(|event| {
        event.bytes_field(TestEvent::STR, b"plain secret \xff\xfe")
    }));
    packets.push(packet(|event| {
        event.bytes_field(TestEvent::STR, b"with a payload");
        event.varint_field(TestEvent::COUNTER, u64::MAX);
        event.nested(TestEvent::PAYLOAD, |payload| {
            payload.bytes_field(TestEvent::STR, b"typed secret");
            payload.bytes_field(7, &[0x55; 300]);
            payload.nested(2, |nested| nested.fixed32_field(3, 9));
        });
        event.fixed64_field(200, 8);
        event.bytes_field(TestEvent::PAYLOAD, b"");
    }));
    // The filter removes all of it.
    packets.push(packet(|event| event.varint_field(4, 1)));
    let mut others = Writer::new();
    others.bytes_field(5000, b"not listed");
    packets.push(others.as_slice().to_vec());
    // Tags, numbers and lengths in more bytes than necessary.
    packets.push(b"\xa2\xb8\x00\x8d\x00\x8a\x00\x83\x80\x00abc\x98\x00\x81\x80\x00".to_vec());
    // Fields of a message type that contain no message.
    packets.push(packet(|event| event.bytes_field(TestEvent::PAYLOAD, b"\x0b")));
    packets.push(packet(|event| event.raw(b"\x0a\x05abc")));
    // More packets than one batch of read-back.
    for number in 0..3000 {
        packets.push(text(&format!(
            "{number} plain secret {}",
            "z".repeat(number % 900)
        )));
    }
    packets
}

/// A filter that keeps strings, counters and payloads of test events.
fn filter() -> String {
    let bytes = bytecode(&[
        &[Rule::Nested(1, 1)],
        &[
            Rule::Keep(write::TracePacket::TRACE_STATS),
            Rule::Nested(write::TracePacket::FOR_TESTING, 2),
        ],
        &[
            Rule::Text(TestEvent::STR),
            Rule::Keep(TestEvent::COUNTER),
            Rule::Nested(TestEvent::PAYLOAD, 3),
            Rule::KeepRange(200, 5),
        ],
        &[Rule::Nested(2, 4)],
        &[Rule::KeepRange(1, 10)],
    ]);
    let later = overlay(&[(3, Rule::TextOf(TestEvent::STR, 1))]);
    format!(
        "bytecode_v2: \"{}\" bytecode_overlay_v54: \"{}\" {RULES}",
        escaped(&bytes),
        escaped(&later)
    )
}

/// One rule of each policy, one that is replaced, and one for a semantic type.
const RULES: &str = r#"
string_filter_chain {
  rules {
    policy: SFP_ATRACE_MATCH_REDACT_GROUPS
    regex_pattern: "B\\|(\\d+)\\|payload(\\d) (.*)"
    atrace_payload_starts_with: "payload"
  }
  rules { policy: SFP_ATRACE_REPEATED_SEARCH_REDACT_GROUPS regex_pattern: "x:(\\d+)" }
  rules { policy: SFP_ATRACE_MATCH_BREAK regex_pattern: "B\\|\\d+\\|stays.*" atrace_payload_starts_with: "st" }
  rules { policy: SFP_MATCH_BREAK regex_pattern: "break.*" }
  rules { policy: SFP_MATCH_REDACT_GROUPS regex_pattern: "never(.*)" name: "later" }
  rules { policy: SFP_MATCH_REDACT_GROUPS regex_pattern: "B\\|(\\d+)\\|.*" }
}
string_filter_chain_v54 {
  rules { policy: SFP_MATCH_REDACT_GROUPS regex_pattern: "(?:\\d+ )?plain (\\w+) .*" name: "later" }
  rules { policy: SFP_MATCH_REDACT_GROUPS regex_pattern: "typed (.*)" semantic_type: SEMANTIC_TYPE_ATRACE }
}"#;

fn config(filter: &str, more: &str) -> String {
    format!(
        "buffers {{ size_kb: 64 }} buffers {{ size_kb: 8192 }}
        data_sources {{ config {{ name: \"{DATA_SOURCE}\" target_buffer: 1 }} }}
        duration_ms: 100 {more} trace_filter {{ {filter} }}"
    )
}

fn packets_of(trace: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(trace).unwrap();
    let packets = Reader::new(&bytes).map(|field| field.unwrap().value.as_bytes().unwrap().to_vec());
    packets.collect()
}

/// Returns the producer's packets of which the filter left something.
fn of_producer(packets: &[Vec<u8>]) -> Vec<&[u8]> {
    let is_of_producer = |packet: &&[u8]| {
        Reader::new(packet).any(|field| field.unwrap().number == write::TracePacket::FOR_TESTING)
    };
    packets.iter().map(Vec::as_slice).filter(is_of_producer).collect()
}

/// Returns the statistics about the filter in a trace of ours.
fn stats_of(packets: &[Vec<u8>]) -> trace_stats::FilterStats {
    match TracePacket::decode_from_slice(packets.last().unwrap())
        .unwrap()
        .data
    {
        Some(Data::TraceStats(stats)) => (*stats.filter_stats).clone(),
        other => panic!("the statistics come last: {other:?}"),
    }
}

#[test]
fn every_mixture_filters_the_same() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let filter = filter();
    let mut traces: Vec<(String, Vec<Vec<u8>>)> = Vec::new();
    for traced in [Side::Ours, Side::Upstream] {
        let mut system = System::new(&programs);
        system.start(traced, Program::Traced);
        let producer = Producer::start(&system, packets());
        for perfetto in [Side::Ours, Side::Upstream] {
            for (output, more) in [("pipe", ""), ("file", "write_into_file: true")] {
                let trace = system.record(perfetto, &config(&filter, more)).finish();
                let packets = packets_of(&trace);
                assert!(
                    packets.contains(&Vec::new()),
                    "what is filtered away is an empty packet"
                );
                if perfetto == Side::Ours {
                    // The command line requests the statistics after it has read everything.
                    let number = trace.file_stem().unwrap().to_str().unwrap();
                    let said = system.log(&format!("perfetto.{number}.log"));
                    assert!(
                        said.contains("2 packets: refused by the config's trace_filter"),
                        "{said}"
                    );
                    assert!(!said.contains("malformed"), "{said}");
                }
                traces.push((format!("traced {traced}, perfetto {perfetto}, {output}"), packets));
            }
        }
        system.assert_running();
        drop(system);
        producer.join().unwrap();
    }
    let first = of_producer(&traces[0].1);
    for wanted in [
        "B|P6|payloadP P60REDAC",
        "B|12|other x:P60 x:P y:5 x:P60REDACTED---",
        "B|12|stays as it is",
        "B|P6|not this one",
        "E|12|payload7",
        "plain P60RED text",
        "typed P60RED",
        "break plain secret text",
        "2999 plain P60RED zzz",
        "nothing of interest",
    ] {
        let wanted = wanted.as_bytes();
        let has = |packet: &&[u8]| packet.windows(wanted.len()).any(|window| window == wanted);
        assert!(first.iter().any(has), "{}", String::from_utf8_lossy(wanted));
    }
    for (told, packets) in &traces[1..] {
        let packets = of_producer(packets);
        for (ours, theirs) in first.iter().zip(&packets) {
            assert_eq!(ours, theirs, "{told}");
        }
        assert_eq!(packets.len(), first.len(), "{told}");
    }
    // Older services also filter their statistics, and write them before they have filtered the last packets.
    let ours: Vec<_> = traces[..4]
        .iter()
        .map(|(told, packets)| (told, packets, stats_of(packets)))
        .collect();
    for (told, packets, stats) in &ours {
        let bytes: usize = packets[..packets.len() - 1].iter().map(Vec::len).sum();
        assert_eq!(stats.output_bytes, Some(bytes as u64), "{told}");
        assert!(stats.input_packets >= Some(packets.len() as u64 - 1), "{told}");
        assert!(stats.input_bytes > stats.output_bytes, "{told}");
        assert_eq!(stats.errors, Some(2), "{told}");
        assert!(stats.time_taken_ns > Some(0), "{told}");
        assert!(
            matches!(stats.bytes_discarded_per_buffer[..], [0, second] if second > 0),
            "{told}"
        );
        assert_eq!(
            stats.bytes_discarded_per_buffer, ours[0].2.bytes_discarded_per_buffer,
            "{told}"
        );
    }
}

/// Packets several times as large as a frame, and their filtered form. Their nested messages come before a field that stays. So wherever a packet is
/// cut into frames, the data after the cut have moved.
fn large_packets() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let filtered = |number: u8, everything: bool| {
        let text = [&[number; 8][..], &vec![b'.'; 8 * MAX_FRAME]].concat();
        packet(|event| {
            event.varint_field(TestEvent::COUNTER, u64::from(number));
            event.nested(TestEvent::PAYLOAD, |payload| {
                if everything {
                    payload.bytes_field(7, &vec![0x55; 2 * MAX_FRAME]);
                }
                payload.bytes_field(TestEvent::STR, &vec![number; 3 * MAX_FRAME]);
                if everything {
                    payload.varint_field(3, 1);
                }
            });
            if everything {
                event.bytes_field(4, &vec![0x66; MAX_FRAME]);
            }
            event.bytes_field(TestEvent::STR, &text);
        })
    };
    let all = |everything| (0..3).map(|number| filtered(number, everything)).collect();
    (all(true), all(false))
}

#[test]
fn packets_larger_than_frames_are_filtered_alike_in_every_mixture() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let filter = format!(
        "bytecode_v2: \"{}\"",
        escaped(&bytecode(&[
            &[Rule::Nested(1, 1)],
            &[Rule::Nested(write::TracePacket::FOR_TESTING, 2)],
            &[
                Rule::Keep(TestEvent::STR),
                Rule::Keep(TestEvent::COUNTER),
                Rule::Nested(TestEvent::PAYLOAD, 3)
            ],
            &[Rule::Keep(TestEvent::STR)],
        ]))
    );
    let (packets, expected) = large_packets();
    for traced in [Side::Ours, Side::Upstream] {
        let mut system = System::new(&programs);
        system.start(traced, Program::Traced);
        let producer = Producer::start(&system, packets.clone());
        for perfetto in [Side::Ours, Side::Upstream] {
            for (output, more) in [("pipe", ""), ("file", "write_into_file: true")] {
                let told = format!("traced {traced}, perfetto {perfetto}, {output}");
                let trace = system.record(perfetto, &config(&filter, more)).finish();
                let packets = packets_of(&trace);
                let packets = of_producer(&packets);
                assert_eq!(packets.len(), expected.len(), "{told}");
                for (packet, expected) in packets.iter().zip(&expected) {
                    assert!(packet == expected, "{told}: {} bytes", packet.len());
                }
            }
        }
        system.assert_running();
        drop(system);
        producer.join().unwrap();
    }
}

#[test]
fn a_name_of_thirty_thousand_characters_does_not_end_the_service() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    system.start(Side::Ours, Program::Traced);
    let producer = Producer::start(&system, vec![text(&"n".repeat(30_000)), text("n1")]);
    let filter = format!(
        "bytecode_v2: \"{}\" string_filter_chain {{
            rules {{ policy: SFP_MATCH_REDACT_GROUPS regex_pattern: '((?:[a-z]|\\\\d)*)' }}
        }}",
        escaped(&bytecode(&[
            &[Rule::Nested(1, 1)],
            &[Rule::Nested(write::TracePacket::FOR_TESTING, 2)],
            &[Rule::Text(TestEvent::STR)],
        ]))
    );
    let trace = system.record(Side::Ours, &config(&filter, "")).finish();
    system.assert_running();
    let hidden = "P60REDACTED".to_owned() + &"-".repeat(30_000 - 11);
    let packets = packets_of(&trace);
    assert!(packets.contains(&text(&hidden)) && packets.contains(&text("P6")));
    assert!(!packets.contains(&text("n1")));
    drop(system);
    producer.join().unwrap();
}
