//! Producers of other machines, and relays: the producers that a config selects, the machine ids in their packets, and the trace's packets about their
//! machines' systems and clocks.

use ferretto_proto::messages::trace_config::{BuiltinDataSource, LockdownModeOperation};
use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedPacketSequenceId, OptionalTrustedUid};
use ferretto_proto::messages::{ClockSnapshot, Message, SystemInfo, TraceConfig, TracePacket};
use ferretto_service::{
    CloneFile, CloneFilter, ClonePurpose, CloneRequest, ConsumerId, Credentials, Identity, Introduction,
    Machine, MachineId, Now, Original, OtherMachine, ProducerId, RelayId, StateScope, limits,
};

use crate::world::{World, config, packet, starts, texts};

const GUEST: MachineId = MachineId(1234);
const ANOTHER: MachineId = MachineId(5678);
const BOOTTIME: u32 = 6;
const MONOTONIC: u32 = 3;

pub(crate) fn other(id: MachineId, name: &str) -> Machine {
    let name = name.to_owned();
    Machine::Other(Box::new(OtherMachine { id, name }))
}

fn introduction(machine: Machine) -> Introduction {
    Introduction {
        name: "p".into(),
        machine,
        ..Default::default()
    }
}

/// One producer on this machine, one that came over a network and did not introduce itself, and one on each of two other machines. All offer the
/// same data source.
fn producers(world: &mut World) -> [ProducerId; 4] {
    let machines = [
        Machine::Host,
        Machine::Undeclared,
        other(GUEST, "guest"),
        other(ANOTHER, "another"),
    ];
    machines.map(|machine| {
        let producer = world.introduce(1000, introduction(machine));
        world.offer(producer, "d");
        producer
    })
}

fn of_machines(names: &[&str]) -> TraceConfig {
    let mut filtered = config(&["d"]);
    filtered.data_sources[0].machine_name_filter = names.iter().map(|name| (*name).into()).collect();
    filtered
}

fn of_all_machines() -> TraceConfig {
    TraceConfig {
        trace_all_machines: Some(true),
        ..config(&["d"])
    }
}

#[test]
fn other_machines_are_recorded_if_the_config_names_them_or_wants_them_all() {
    let everywhere = |names| TraceConfig {
        trace_all_machines: Some(true),
        ..of_machines(names)
    };
    for (config, expected) in [
        (of_machines(&[]), [1, 1, 0, 0]),
        (of_machines(&["host"]), [1, 1, 0, 0]),
        (of_machines(&["testbed"]), [1, 0, 0, 0]),
        (of_machines(&["guest"]), [0, 0, 1, 0]),
        (of_machines(&["another", "host"]), [1, 1, 0, 1]),
        (of_machines(&["Guest"]), [0, 0, 0, 0]),
        (everywhere(&[]), [1, 1, 1, 1]),
        // Names take precedence.
        (everywhere(&["guest"]), [0, 0, 1, 0]),
    ] {
        let mut world = World::new();
        let early = producers(&mut world);
        let consumer = world.consumer();
        world.enable(consumer, &config);
        let late = producers(&mut world);
        for producers in [early, late] {
            let started = producers.map(|producer| world.count(producer, starts));
            assert_eq!(
                started, expected,
                "{:?}",
                config.data_sources[0].machine_name_filter
            );
        }
    }
}

#[test]
fn a_name_that_machines_share_means_all_of_them() {
    let mut world = World::new();
    let machines = [Machine::Host, other(GUEST, "testbed"), other(ANOTHER, "host")];
    let producers = machines.map(|machine| {
        let producer = world.introduce(1000, introduction(machine));
        world.offer(producer, "d");
        producer
    });
    for (name, expected) in [("testbed", [1, 1, 0]), ("host", [2, 1, 1])] {
        let consumer = world.consumer();
        world.enable(consumer, &of_machines(&[name]));
        assert_eq!(
            producers.map(|producer| world.count(producer, starts)),
            expected,
            "{name}"
        );
    }
}

#[test]
fn packets_of_other_machines_bear_their_ids_and_the_users_and_processes_there() {
    let mut world = World::new();
    let producers = producers(&mut world);
    let consumer = world.consumer();
    world.enable(consumer, &of_all_machines());
    let target = world.target(producers[0]);
    for (producer, text) in producers
        .into_iter()
        .zip(["host", "undeclared", "guest", "another"])
    {
        world.commit(producer, 1, target, &[&packet(text)]);
    }
    let packets = world.read(consumer);
    let marked: Vec<_> = packets
        .iter()
        .filter(|packet| packet.trusted_pid == Some(77))
        .map(|packet| (texts(std::slice::from_ref(packet)).concat(), packet.machine_id))
        .collect();
    let expected = [
        ("host", None),
        ("undeclared", None),
        ("guest", Some(GUEST.0)),
        ("another", Some(ANOTHER.0)),
    ];
    assert_eq!(marked, expected.map(|(text, machine)| (text.to_owned(), machine)));
    for packet in packets.iter().filter(|packet| packet.trusted_pid.is_none()) {
        assert_eq!(packet.machine_id, None, "the service is on this one: {packet:?}");
    }
    let users = packets.iter().filter_map(|packet| {
        let OptionalTrustedUid::TrustedUid(uid) = packet.optional_trusted_uid.as_ref()?;
        packet.machine_id.map(|_| *uid)
    });
    assert!(users.eq([1000, 1000]));
}

/// Upstream looks up the sequences of its statistics under another machine, and so gives two numbers to sequences of other machines.
#[test]
fn the_statistics_name_sequences_of_other_machines_as_their_packets_do() {
    let mut world = World::new();
    let [.., guest] = producers(&mut world);
    let consumer = world.consumer();
    world.enable(consumer, &of_all_machines());
    let target = world.target(guest);
    world.commit(guest, 1, target, &[&packet("x")]);
    let packets = world.read(consumer);
    let sequence = packets.iter().find_map(|packet| {
        packet.machine_id?;
        let OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(id) =
            packet.optional_trusted_packet_sequence_id.as_ref()?;
        Some(u64::from(*id))
    });
    let stats = world.service.trace_stats(consumer).unwrap();
    assert_eq!(stats.writer_stats.len(), 1);
    assert_eq!(stats.writer_stats[0].sequence_id, sequence);
}

#[test]
fn the_state_of_the_service_names_the_machines_of_producers_that_are_elsewhere() {
    let mut world = World::new();
    producers(&mut world);
    world.introduce(1000, introduction(other(MachineId(9), "")));
    let consumer = world.consumer();
    let state = world.state(consumer, StateScope::Everything);
    let machines: Vec<_> = state
        .producers
        .iter()
        .map(|producer| (producer.machine_id, producer.machine_name.as_deref()))
        .collect();
    assert_eq!(
        machines,
        [
            (None, None),
            (None, None),
            (Some(GUEST.0), Some("guest")),
            (Some(ANOTHER.0), Some("another")),
            (Some(9), None),
        ]
    );
}

#[test]
fn the_services_user_on_another_machine_is_a_stranger_in_lockdown() {
    const OWN: u32 = 42;
    let mut world = World::new();
    let connect = |world: &mut World, machine| {
        let credentials = Credentials { uid: OWN, pid: None };
        world.service.connect_producer(credentials, introduction(machine))
    };
    let early = world.introduce(OWN, introduction(other(GUEST, "guest")));
    world.offer(early, "d");
    let consumer = world.consumer();
    let locked = TraceConfig {
        lockdown_mode: Some(LockdownModeOperation::LOCKDOWN_SET),
        ..of_all_machines()
    };
    world.enable(consumer, &locked);
    assert_eq!(world.count(early, starts), 0);
    assert!(connect(&mut world, Machine::Host).is_some());
    for machine in [Machine::Undeclared, other(GUEST, "guest")] {
        assert_eq!(connect(&mut world, machine), None);
    }
}

#[test]
fn a_service_for_one_program_puts_their_machine_into_traces() {
    const OWN: u32 = 42;
    let mut world = World::with_identity(Identity {
        uid: OWN,
        machine: GUEST,
        ..Default::default()
    });
    let producer = world.introduce(OWN, introduction(other(GUEST, "")));
    world.offer(producer, "d");
    let consumer = world.consumer();
    // For this service, too, the machine is another one.
    world.enable(consumer, &config(&["d"]));
    assert_eq!(world.count(producer, starts), 0);
    world.lose_consumer(consumer);

    let consumer = world.consumer();
    let locked = TraceConfig {
        lockdown_mode: Some(LockdownModeOperation::LOCKDOWN_SET),
        ..of_all_machines()
    };
    world.enable(consumer, &locked);
    assert_eq!(world.count(producer, starts), 1, "it is no stranger");
    let target = world.target(producer);
    world.commit(producer, 1, target, &[&packet("one")]);
    let packets = world.read(consumer);
    assert_eq!(texts(&packets), ["one"]);
    let is_marker = |packet: &&TracePacket| matches!(packet.data, Some(Data::SynchronizationMarker(_)));
    for packet in packets.iter().filter(|packet| !is_marker(packet)) {
        assert_eq!(packet.machine_id, Some(GUEST.0), "{packet:?}");
    }
    assert_eq!(packets.iter().filter(is_marker).count(), 1);
}

/// A relay whose clocks were this many nanoseconds ahead of ours in two comparisons.
fn synced_relay(world: &mut World, machine: MachineId, ahead: u64) -> RelayId {
    let relay = world.service.connect_relay(machine).expect("room");
    for _ in 0..2 {
        exchange(world, relay, ahead);
    }
    relay
}

fn exchange(world: &mut World, relay: RelayId, ahead: u64) {
    let now = world.now;
    let theirs = vec![(BOOTTIME, now.boot + ahead), (MONOTONIC, now.monotonic + ahead)];
    world.service.sync_clocks(relay, theirs, &now).expect("few");
    world.jump(1);
}

fn describe(world: &mut World, relay: RelayId, cpus: u32) {
    let system = SystemInfo {
        num_cpus: Some(cpus),
        ..Default::default()
    };
    let bytes = system.encode_to_vec();
    world.service.describe_machine(relay, &bytes).expect("short");
}

/// The machines whose clocks these packets compare with ours, each with the boot times of both.
fn synced(packets: &[TracePacket]) -> Vec<(MachineId, Vec<(u64, u64)>)> {
    let boot = |snapshot: &ClockSnapshot| {
        let boot = snapshot
            .clocks
            .iter()
            .find(|clock| clock.clock_id == Some(BOOTTIME));
        boot.and_then(|clock| clock.timestamp).expect("read")
    };
    let synced = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::RemoteClockSync(sync)) => {
            let uid = Some(OptionalTrustedUid::TrustedUid(42));
            assert_eq!(packet.optional_trusted_uid, uid, "the service's own");
            let pairs = sync.synced_clocks.iter();
            let pairs = pairs.map(|pair| (boot(&pair.client_clocks), boot(&pair.host_clocks)));
            Some((MachineId(packet.machine_id.expect("marked")), pairs.collect()))
        }
        _ => None,
    });
    synced.collect()
}

/// The machines that these packets describe, `None` for this one, each with its number of processors.
fn described(packets: &[TracePacket]) -> Vec<(Option<u32>, Option<u32>)> {
    let described = packets.iter().filter_map(|packet| match &packet.data {
        Some(Data::SystemInfo(system)) => Some((packet.machine_id, system.num_cpus)),
        _ => None,
    });
    described.collect()
}

fn recording(world: &mut World, config: &TraceConfig) -> ConsumerId {
    let consumer = world.consumer();
    world.enable(consumer, config);
    consumer
}

#[test]
fn a_trace_records_how_the_clocks_of_other_machines_relate_to_ours() {
    let mut world = World::new();
    let begun = world.now.boot;
    synced_relay(&mut world, GUEST, 500);
    let consumer = recording(&mut world, &of_all_machines());
    let second = begun + 1_000_000;
    assert_eq!(
        synced(&world.read(consumer)),
        [(GUEST, vec![(begun + 500, begun), (second + 500, second)])]
    );
    assert_eq!(synced(&world.read(consumer)), []);
    // Other sessions have their own traces.
    let other = recording(&mut world, &config(&[]));
    assert_eq!(synced(&world.read(other)).len(), 1);
}

#[test]
fn later_comparisons_are_recorded_one_by_one_and_not_too_often() {
    let mut world = World::new();
    let relay = synced_relay(&mut world, GUEST, 500);
    let consumer = recording(&mut world, &of_all_machines());
    assert_eq!(synced(&world.read(consumer)).len(), 1);
    let ahead = |packets: &[TracePacket]| -> Vec<Vec<u64>> {
        let told = synced(packets).into_iter();
        let ahead = told.map(|(_, pairs)| pairs.iter().map(|(theirs, ours)| theirs - ours).collect());
        ahead.collect()
    };
    for n in 1..5 {
        world.jump(30_000);
        // Half of a comparison is none, and the half from half a minute before belongs to another one.
        exchange(&mut world, relay, 500 + n);
        assert_eq!(ahead(&world.read(consumer)), Vec::<Vec<u64>>::new());
        exchange(&mut world, relay, 600 + n);
        assert_eq!(ahead(&world.read(consumer)), [[500 + n, 600 + n]]);
        // A relay that compares all the time.
        for _ in 0..10 {
            exchange(&mut world, relay, 7);
        }
        assert_eq!(ahead(&world.read(consumer)), Vec::<Vec<u64>>::new());
    }
    // Another relay of the machine counts once this one is gone.
    let next = synced_relay(&mut world, GUEST, 9);
    world.jump(30_000);
    let of_first = ahead(&world.read(consumer));
    assert!(of_first.iter().flatten().all(|ahead| *ahead == 7), "{of_first:?}");
    world.service.disconnect_relay(relay);
    for _ in 0..2 {
        exchange(&mut world, next, 9);
    }
    world.jump(30_000);
    assert_eq!(ahead(&world.read(consumer)), [[9, 9]]);
    assert_eq!(ahead(&world.read(consumer)), Vec::<Vec<u64>>::new());
}

#[test]
fn every_clock_that_either_side_read_is_in_the_trace() {
    let mut world = World::new();
    world.now = Now {
        monotonic: 1,
        boot: 2,
        realtime: 3,
        realtime_coarse: 4,
        monotonic_coarse: 5,
        monotonic_raw: 6,
        tsc: Some(7),
    };
    let relay = world.service.connect_relay(GUEST).unwrap();
    // The service passes on ids that it does not know.
    let theirs: Vec<(u32, u64)> = vec![(77, u64::MAX), (0, 0), (BOOTTIME, 1)];
    let now = world.now;
    for _ in 0..2 {
        world.service.sync_clocks(relay, theirs.clone(), &now).unwrap();
    }
    let consumer = recording(&mut world, &config(&[]));
    let packets = world.read(consumer);
    let sync = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::RemoteClockSync(sync)) => Some(sync),
        _ => None,
    });
    let readings = |snapshot: &ClockSnapshot| -> Vec<(u32, u64)> {
        let clocks = snapshot.clocks.iter();
        clocks
            .map(|clock| (clock.clock_id.unwrap(), clock.timestamp.unwrap()))
            .collect()
    };
    for pair in &sync.unwrap().synced_clocks {
        assert_eq!(readings(&pair.client_clocks), theirs);
        let ours = [(6, 2), (2, 4), (4, 5), (1, 3), (3, 1), (5, 6), (9, 7)];
        assert_eq!(readings(&pair.host_clocks), ours);
    }
}

#[test]
fn clocks_need_two_exchanges_however_late_they_come() {
    let mut world = World::new();
    let relay = world.service.connect_relay(GUEST).unwrap();
    let consumer = recording(&mut world, &of_all_machines());
    assert_eq!(synced(&world.read(consumer)), []);
    exchange(&mut world, relay, 0);
    assert_eq!(synced(&world.read(consumer)), []);
    exchange(&mut world, relay, 0);
    assert_eq!(synced(&world.read(consumer)).len(), 1);
    synced_relay(&mut world, ANOTHER, 0);
    let late: Vec<MachineId> = synced(&world.read(consumer)).iter().map(|(id, _)| *id).collect();
    assert_eq!(late, [ANOTHER], "a machine that came late");
}

#[test]
fn the_latest_exchanges_are_kept() {
    let mut world = World::new();
    let relay = world.service.connect_relay(GUEST).unwrap();
    let most = limits::MAX_CLOCK_EXCHANGES as u64;
    for ahead in 0..most + 2 {
        exchange(&mut world, relay, ahead);
    }
    let consumer = recording(&mut world, &config(&[]));
    let [(_, pairs)] = <[_; 1]>::try_from(synced(&world.read(consumer))).unwrap();
    let ahead: Vec<u64> = pairs.iter().map(|(theirs, ours)| theirs - ours).collect();
    assert_eq!(ahead, (2..most + 2).collect::<Vec<u64>>());
}

#[test]
fn of_several_relays_of_one_machine_the_first_with_exchanges_counts() {
    let mut world = World::new();
    world.service.connect_relay(GUEST).unwrap();
    let talking = synced_relay(&mut world, GUEST, 7);
    describe(&mut world, talking, 3);
    let third = synced_relay(&mut world, GUEST, 8);
    describe(&mut world, third, 4);
    let consumer = recording(&mut world, &config(&[]));
    let packets = world.read(consumer);
    let [(GUEST, pairs)] = &synced(&packets)[..] else {
        panic!("{packets:?}")
    };
    assert!(pairs.iter().all(|(theirs, ours)| theirs - ours == 7));
    assert_eq!(described(&packets), [(None, None), (Some(GUEST.0), Some(3))]);
}

#[test]
fn a_trace_describes_each_machine_in_its_relays_own_words() {
    let mut world = World::new();
    let relay = world.service.connect_relay(GUEST).unwrap();
    let consumer = recording(&mut world, &config(&[]));
    assert_eq!(described(&world.read(consumer)), [(None, None)]);
    // A field of a later version follows a field of ours.
    let mut system = SystemInfo {
        num_cpus: Some(3),
        ..Default::default()
    }
    .encode_to_vec();
    let mut future = ferretto_wire::Writer::new();
    future.bytes_field(1000, b"new");
    system.extend(future.as_slice());
    world.service.describe_machine(relay, &system).unwrap();
    let packets = world.read(consumer);
    assert_eq!(described(&packets), [(Some(GUEST.0), Some(3))]);
    let told = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::SystemInfo(system)) => Some(system.encode_to_vec()),
        _ => None,
    });
    assert_eq!(told, Some(system));
    let sequence = Some(OptionalTrustedPacketSequenceId::TrustedPacketSequenceId(1));
    let marked = packets.iter().find(|packet| packet.machine_id.is_some());
    assert_eq!(marked.unwrap().optional_trusted_packet_sequence_id, sequence);
    // The trace has it once, whatever the relay sends later.
    describe(&mut world, relay, 9);
    assert_eq!(described(&world.read(consumer)), []);
}

#[test]
fn descriptions_and_clocks_of_machines_can_be_turned_off() {
    let mut world = World::new();
    let relay = synced_relay(&mut world, GUEST, 0);
    describe(&mut world, relay, 3);
    for (builtin, expected) in [
        (BuiltinDataSource::default(), [2, 1]),
        (
            BuiltinDataSource {
                disable_system_info: Some(true),
                ..Default::default()
            },
            [0, 1],
        ),
        (
            BuiltinDataSource {
                disable_clock_snapshotting: Some(true),
                ..Default::default()
            },
            [2, 0],
        ),
    ] {
        let quiet = TraceConfig {
            builtin_data_sources: builtin.into(),
            ..config(&[])
        };
        let consumer = recording(&mut world, &quiet);
        let packets = world.read(consumer);
        assert_eq!([described(&packets).len(), synced(&packets).len()], expected);
    }
}

#[test]
fn a_relay_that_is_gone_is_in_traces_and_clones_that_began_before() {
    let mut world = World::new();
    let relay = synced_relay(&mut world, GUEST, 5);
    describe(&mut world, relay, 3);
    let before = world.consumer();
    let session = world.enable(before, &of_all_machines());
    world.service.disconnect_relay(relay);
    let after = recording(&mut world, &of_all_machines());
    let packets = world.read(after);
    assert_eq!((synced(&packets).len(), described(&packets).len()), (0, 1));
    // A clone of the original, or of another clone, contains the comparisons of the original at any time.
    let cloners = [world.consumer(), world.consumer()];
    let mut original = session;
    for cloner in cloners {
        let request = CloneRequest {
            original: Original::Id(original.0),
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: CloneFile::None,
        };
        original = world.try_clone(cloner, request).unwrap();
    }
    for consumer in [cloners[0], cloners[1], before] {
        let packets = world.read(consumer);
        assert_eq!((synced(&packets).len(), described(&packets).len()), (1, 2));
    }
}

#[test]
fn of_gone_relays_of_one_machine_the_last_one_is_recorded() {
    let mut world = World::new();
    let consumer = recording(&mut world, &of_all_machines());
    for ahead in [5, 6, 7] {
        let relay = synced_relay(&mut world, GUEST, ahead);
        describe(&mut world, relay, ahead as u32);
        let another = synced_relay(&mut world, ANOTHER, 9);
        world.service.disconnect_relay(relay);
        world.service.disconnect_relay(another);
    }
    let packets = world.read(consumer);
    let told = synced(&packets).into_iter();
    let ahead: Vec<_> = told
        .map(|(machine, pairs)| (machine, pairs[0].0 - pairs[0].1))
        .collect();
    assert_eq!(ahead, [(GUEST, 7), (ANOTHER, 9)]);
    assert_eq!(described(&packets), [(None, None), (Some(GUEST.0), Some(7))]);
}

#[test]
fn the_description_of_a_relay_lasts_as_long_as_the_sessions_of_its_time() {
    let mut world = World::new();
    let relay = synced_relay(&mut world, GUEST, 5);
    let during = recording(&mut world, &config(&[]));
    world.service.disconnect_relay(relay);
    let after = recording(&mut world, &config(&[]));
    // This connects the maximum number of relays again. Disconnected relays make room, and the earliest are forgotten first.
    let relays = |world: &mut World| {
        let relays: Vec<RelayId> = (0..limits::MAX_RELAYS as u32)
            .map(|n| world.service.connect_relay(MachineId(n + 1)).unwrap())
            .collect();
        assert_eq!(world.service.connect_relay(GUEST), None);
        relays
            .into_iter()
            .for_each(|relay| world.service.disconnect_relay(relay));
    };
    world.lose_consumer(during);
    relays(&mut world);
    assert_eq!(synced(&world.read(after)), []);
    // No session records, so the service keeps nothing.
    world.lose_consumer(after);
    let relay = synced_relay(&mut world, GUEST, 5);
    world.service.disconnect_relay(relay);
    relays(&mut world);
}

#[test]
fn gone_relays_make_room_for_new_ones() {
    let mut world = World::new();
    let consumer = recording(&mut world, &config(&[]));
    let relays: Vec<RelayId> = (1..=limits::MAX_RELAYS as u32)
        .map(|n| synced_relay(&mut world, MachineId(n), 0))
        .collect();
    assert_eq!(world.service.connect_relay(GUEST), None);
    for relay in &relays[3..5] {
        world.service.disconnect_relay(*relay);
    }
    assert!(world.service.connect_relay(GUEST).is_some());
    let told: Vec<MachineId> = synced(&world.read(consumer)).iter().map(|(id, _)| *id).collect();
    assert!(!told.contains(&MachineId(4)), "the one that is gone for longest");
    assert!(told.contains(&MachineId(5)));
    // A new relay takes the place of a disconnected one.
    for _ in 0..limits::MAX_RELAYS {
        let relay = synced_relay(&mut world, MachineId(5), 0);
        world.service.disconnect_relay(relay);
    }
    assert!(world.service.connect_relay(ANOTHER).is_some());
}

#[test]
fn the_machines_in_a_trace_are_limited() {
    let mut world = World::new();
    let consumer = recording(&mut world, &config(&[]));
    let [mut clocks, mut systems] = [0; 2];
    for n in 0..limits::MAX_MACHINES_PER_TRACE as u32 + 2 {
        let relay = synced_relay(&mut world, MachineId(n + 1), 0);
        describe(&mut world, relay, 1);
        let packets = world.read(consumer);
        clocks += synced(&packets).len();
        systems += described(&packets).iter().filter(|(id, _)| id.is_some()).count();
        world.service.disconnect_relay(relay);
    }
    assert_eq!([clocks, systems], [limits::MAX_MACHINES_PER_TRACE; 2]);
}

#[test]
fn statements_of_a_relay_are_bounded() {
    let mut world = World::new();
    let relay = world.service.connect_relay(GUEST).unwrap();
    let now = world.now;
    let of_length = |length: usize| {
        // Tag and length take two bytes each.
        let mut system = ferretto_wire::Writer::new();
        system.bytes_field(1000, &vec![b'x'; length - 4]);
        assert_eq!(system.len(), length);
        system.as_slice().to_vec()
    };
    let longest = of_length(limits::MAX_SYSTEM_INFO);
    world.service.describe_machine(relay, &longest).unwrap();
    let too_long = of_length(limits::MAX_SYSTEM_INFO + 1);
    let error = world.service.describe_machine(relay, &too_long).unwrap_err();
    assert!(error.contains("the limit is 16384"), "{error}");
    // One text is cut off, and one name is not UTF-8.
    for bytes in [&b"\x22\x05abc"[..], b"\x22\x01\xff"] {
        let error = world.service.describe_machine(relay, bytes).unwrap_err();
        assert!(error.contains("is no SystemInfo"), "{error}");
    }

    let clocks = |count: usize| vec![(BOOTTIME, 1); count];
    let most = limits::MAX_CLOCKS_PER_EXCHANGE;
    for _ in 0..2 {
        world.service.sync_clocks(relay, clocks(most), &now).unwrap();
        let error = world
            .service
            .sync_clocks(relay, clocks(most + 1), &now)
            .unwrap_err();
        assert!(error.contains("the limit is 64"), "{error}");
    }
    let consumer = recording(&mut world, &config(&[]));
    let packets = world.read(consumer);
    assert_eq!(synced(&packets)[0].1.len(), 2, "the others were not taken");
    let told = packets.iter().find(|packet| packet.machine_id == Some(GUEST.0));
    assert!(told.unwrap().encode_to_vec().len() > limits::MAX_SYSTEM_INFO);
}

#[test]
fn words_of_a_relay_that_is_not_connected_mean_nothing() {
    let mut world = World::new();
    let relay = synced_relay(&mut world, GUEST, 0);
    world.service.disconnect_relay(relay);
    let now = world.now;
    world.service.describe_machine(relay, &[]).unwrap();
    world.service.sync_clocks(relay, Vec::new(), &now).unwrap();
    world.service.disconnect_relay(relay);
    let consumer = recording(&mut world, &of_all_machines());
    let packets = world.read(consumer);
    assert_eq!((synced(&packets).len(), described(&packets).len()), (0, 1));
}
