//! Recordings that span two machines, according to upstream's trace processor.

use std::path::PathBuf;

use ferretto_ipc::Address;
use ferretto_ipc::client::ServiceHandle;
use ferretto_ipc::ports::PRODUCER_PORT;
use ferretto_proto::messages::get_async_command_response::Cmd;
use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId};
use ferretto_proto::messages::{
    BuiltinClock, DataSourceDescriptor, GetAsyncCommandResponse, Message, RegisterDataSourceRequest, Trace,
    TraceConfig, TracePacket, TrackEvent, track_event,
};
use ferretto_service::{ConfigInput, ConsumerId, Identity, MachineId, Now, OutputFile, ReadCall, Service};
use ferretto_wire::Writer;
use rustix::time::ClockId;

use super::relay::{Client, Guest, Relay, reading};
use crate::support::address::free_address;
use crate::support::peers::{commit, introduction};
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{Program, Programs, Recording, Side, System};

const SECOND: u64 = 1_000_000_000;

fn guest() -> Guest {
    Guest {
        hint: "a boot id of another machine".into(),
        name: "guest".into(),
        behind: 100 * SECOND,
        processors: 77,
    }
}

/// A service with probes of its own machine, and a relay with other probes.
fn two_machines<'a>(programs: &'a Programs, traced: Side, probes: Side) -> (System<'a>, Relay) {
    let mut system = System::new(programs);
    let address = free_address();
    let sockets = format!("{},{address}", system.producer_socket().display());
    system.start_with(traced, Program::Traced, |command| {
        command.env("PERFETTO_PRODUCER_SOCK_NAME", sockets);
        command.arg("--enable-relay-endpoint");
    });
    system.start(Side::Ours, Program::TracedProbes);
    let socket = system.path("guest");
    let address: Address = address.parse().unwrap();
    let relay = Relay::start(&guest(), &socket, &address);
    system.start_at(probes, Program::TracedProbes, &socket.display().to_string());
    system.await_state(|state| {
        let offered = |source: &str| {
            let of_name = |name: Option<&str>| name == Some(source);
            state
                .data_sources
                .iter()
                .filter(|offered| of_name(offered.ds_descriptor.name.as_deref()))
                .count()
        };
        offered("linux.sys_stats") == 2 && offered("linux.process_stats") == 2
    });
    (system, relay)
}

pub(crate) fn config(machines: &str) -> String {
    format!(
        r#"
        duration_ms: 1200
        {machines}
        buffers {{ size_kb: 16384 }}
        data_sources {{
          config {{
            name: "linux.process_stats"
            process_stats_config {{ scan_all_processes_on_start: true }}
          }}
        }}
        data_sources {{
          config {{ name: "linux.sys_stats" sys_stats_config {{ meminfo_period_ms: 100 }} }}
        }}
        "#
    )
}

/// For each machine: whether its id shows another machine, its processors, its counters and processes.
pub(crate) const MACHINES: &str = "select raw_id != 0, num_cpus,
    (select count(*) > 50 from counter join counter_track track on track.id = counter.track_id
        where ifnull(track.machine_id, 0) = machine.id),
    (select count(*) > 5 from process where ifnull(process.machine_id, 0) = machine.id)
    from machine order by raw_id";

pub(crate) fn record(system: &mut System<'_>, config: &str) -> PathBuf {
    let trace = system.record(Side::Ours, config).finish();
    system.assert_running();
    trace
}

fn records_two_machines(programs: &Programs, traced: Side, probes: Side) {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let (mut system, _relay) = two_machines(programs, traced, probes);
    let trace = record(&mut system, &config("trace_all_machines: true"));
    let [losses, machines] = processor.query(&trace, [LOSSES, MACHINES]);
    assert_eq!(losses, Rows::new(), "{traced} service, {probes} probes");
    let [host, guest] = &machines[..] else {
        panic!("{machines:?}")
    };
    assert_eq!((&host[0][..], &host[2][..], &host[3][..]), ("0", "1", "1"));
    assert_eq!(guest, &["1", "77", "1", "1"]);
}

#[test]
fn our_service_records_another_machine_through_a_relay() {
    records_two_machines(&Programs::ours(), Side::Ours, Side::Ours);
}

#[test]
fn either_side_of_a_relay_may_be_upstreams() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    records_two_machines(&programs, Side::Ours, Side::Upstream);
    records_two_machines(&programs, Side::Upstream, Side::Ours);
}

/// An instant track event at this time of a machine's boot clock.
fn instant(boot_time: u64, name: &str) -> TracePacket {
    let event = TrackEvent {
        r#type: Some(track_event::Type::TYPE_INSTANT),
        name_field: Some(track_event::NameField::Name(name.into())),
        track_uuid: Some(1),
        ..Default::default()
    };
    TracePacket {
        timestamp: Some(boot_time),
        timestamp_clock_id: Some(BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32),
        sequence_flags: Some(1),
        data: Some(Data::TrackEvent(Box::new(event))),
        ..Default::default()
    }
}

/// The same event in a chunk with this number, as a producer without shared memory sends it.
fn instant_chunk(number: u32, boot_time: u64, name: &str) -> Vec<u8> {
    let packet = instant(boot_time, name).encode_to_vec();
    let mut chunk = Writer::new();
    chunk.raw(&number.to_le_bytes());
    chunk.raw(&[1, 0, 1, 0]);
    chunk.varint(packet.len() as u64);
    chunk.raw(&packet);
    chunk.as_slice().to_vec()
}

/// A producer of track events, written by hand.
pub(super) struct Events {
    producer: Client,
    port: ServiceHandle,
    target: u32,
    chunks: u32,
}

impl Events {
    /// Registers the data source `d` on a connection, and begins a recording of it.
    pub(super) fn record(mut producer: Client, system: &System<'_>) -> (Events, Recording) {
        let port = producer.bind(PRODUCER_PORT.name).unwrap();
        producer
            .call(port, "InitializeConnection", &introduction("p"))
            .unwrap();
        let offer = RegisterDataSourceRequest {
            data_source_descriptor: DataSourceDescriptor {
                name: Some("d".into()),
                no_flush: Some(true),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        producer.call(port, "RegisterDataSource", &offer).unwrap();
        producer.send(port, "GetAsyncCommand", Vec::new());
        let config =
            "trace_all_machines: true buffers { size_kb: 4096 } data_sources { config { name: 'd' } }";
        let recording = system.record(Side::Ours, config);
        let target = loop {
            let command = GetAsyncCommandResponse::decode_from_slice(&producer.answer()).unwrap();
            if let Some(Cmd::StartDataSource(start)) = command.cmd {
                break start.config.target_buffer.unwrap();
            }
        };
        let events = Events {
            producer,
            port,
            target,
            chunks: 0,
        };
        (events, recording)
    }

    /// Sends an event at this time of its machine's boot clock, and does not wait for the answer.
    pub(super) fn send(&mut self, boot_time: u64, name: &str) {
        let chunk = instant_chunk(self.chunks, boot_time, name);
        self.chunks += 1;
        self.producer
            .send(self.port, "CommitData", commit(self.target, chunk));
    }

    /// Waits until the service has taken what was sent.
    fn sync(&mut self) {
        self.producer.send(self.port, "Sync", Vec::new());
        for _ in 0..=self.chunks {
            self.producer.answer();
        }
    }
}

/// Asserts that the trace has the host's time for an event that a producer recorded with the guest's time.
fn tells_when_it_was_here(programs: &Programs, traced: Side) {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let mut system = System::new(programs);
    let address = free_address();
    system.start_with(traced, Program::Traced, |command| {
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &address);
        command.arg("--enable-relay-endpoint");
    });
    let address: Address = address.parse().unwrap();
    let guest = guest();
    let _relay = guest.introduce(&address);
    let mut producer = Client::connect(&address);
    producer.declare(&guest.identity(7, 0));
    let (mut events, recording) = Events::record(producer, &system);
    let boot_time = reading(ClockId::Boottime);
    events.send(boot_time - guest.behind, "now");
    events.sync();
    let trace = recording.interrupt();
    let [losses, at] = processor.query(&trace, [LOSSES, "select ts from slice where name = 'now'"]);
    assert_eq!(losses, Rows::new(), "{traced}");
    let [at] = numbers(&at);
    // The accuracy of the comparison depends on the duration of the messages.
    let off = at - boot_time as i64;
    assert!(off.unsigned_abs() < SECOND, "{traced}: {off} ns off");
}

#[test]
fn readers_can_tell_when_something_on_another_machine_was_here() {
    tells_when_it_was_here(&Programs::ours(), Side::Ours);
    if let Some(programs) = Programs::of_both() {
        tells_when_it_was_here(&programs, Side::Upstream);
    }
}

/// All packets that the service has for a consumer at this time.
fn read(service: &mut Service, consumer: ConsumerId, now: &Now) -> Vec<TracePacket> {
    let batch = service.read_buffers(consumer, &mut ReadCall::default(), usize::MAX, now);
    let batch = batch.unwrap();
    assert!(!batch.has_more);
    let packets = batch.packets().map(|packet| {
        let bytes: Vec<u8> = packet.flatten().copied().collect();
        TracePacket::decode_from_slice(&bytes).unwrap()
    });
    packets.collect()
}

/// The service's own packets, in simulated time, and events of a machine that sleeps in between.
#[test]
fn readers_place_the_events_of_a_machine_that_slept_while_it_was_recorded() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let machine = MachineId::from_hint(b"sleeper");
    let mut service = Service::new(Identity::default());
    let consumer = service.connect_consumer(1);
    let input = ConfigInput {
        config: TraceConfig::default(),
        bytes: Vec::new().into(),
    };
    let at = |seconds: u64| Now {
        boot: seconds * SECOND,
        monotonic: seconds * SECOND,
        ..Now::default()
    };
    let begun = service.enable_tracing(consumer, input, &OutputFile::None, 1, &at(999));
    begun.unwrap();
    let relay = service.connect_relay(machine).unwrap();
    let mut packets = Vec::new();
    // The time of the comparison in seconds, and how far the machine's clock is behind by then.
    for (second, behind, name) in [
        (1000, 500, "before"),
        (1040, 493, "after"),
        (1080, 400, "much later"),
    ] {
        for _ in 0..2 {
            let theirs = vec![(
                BuiltinClock::BUILTIN_CLOCK_BOOTTIME as u32,
                (second - behind) * SECOND,
            )];
            service.sync_clocks(relay, theirs, &at(second)).unwrap();
        }
        packets.extend(read(&mut service, consumer, &at(second)));
        packets.push(TracePacket {
            machine_id: Some(machine.0),
            optional_trusted_packet_sequence_id: Some(
                OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(7),
            ),
            ..instant((second + 1 - behind) * SECOND, name)
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let bytes = Trace {
        packet: packets,
        ..Default::default()
    };
    std::fs::write(&trace, bytes.encode_to_vec()).unwrap();
    let [found] = processor.query(&trace, ["select ts from slice order by id"]);
    assert_eq!(found, [["1001000000000"], ["1041000000000"], ["1081000000000"]]);
}

#[test]
fn a_config_picks_machines_by_name() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let programs = Programs::ours();
    let (mut system, relay) = two_machines(&programs, Side::Ours, Side::Ours);
    let filtered = |name: &str| {
        let filter = format!("data_sources {{ machine_name_filter: \"{name}\"");
        config("").replace("data_sources {", &filter)
    };
    for (config, expected) in [
        (config(""), ["1", "0"]),
        (filtered("host"), ["1", "0"]),
        (filtered("guest"), ["0", "1"]),
    ] {
        let trace = record(&mut system, &config);
        let [machines] = processor.query(&trace, [MACHINES]);
        // Both machines are described, whichever are recorded.
        let recorded: Vec<&str> = machines.iter().map(|machine| &machine[2][..]).collect();
        assert_eq!(recorded, expected, "{config}");
    }
    drop(relay);
    system.await_state(|state| state.producers.len() == 1);
}
