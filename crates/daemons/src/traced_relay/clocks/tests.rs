//! The client alone, and 64 machines whose clocks drift and jump, with one service, in simulated time.

use std::collections::{BTreeMap, VecDeque};

use ferretto_ipc::HostConnection;
use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply};
use ferretto_ipc::outgoing::OutgoingQueue;
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_ipc::transport::Connection as _;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{ClockSnapshot, TraceConfig, TracePacket};
use ferretto_service::{ConfigInput, Identity, MachineId, Now, OutputFile, ReadCall, RelayId, Service};

use super::*;

static SERVICES: [&ServiceDescriptor; 1] = [&RELAY_PORT];
static NO_SERVICES: [&ServiceDescriptor; 0] = [];

const BOOTTIME: u32 = 6;
const REALTIME: u32 = 1;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn identity(name: &str) -> PeerIdentity {
    PeerIdentity {
        pid: 1,
        uid: 0,
        machine_id_hint: name.to_owned(),
        machine_name: name.to_owned(),
    }
}

fn client(now: u64) -> RelayClient {
    let system = SystemInfo {
        num_cpus: Some(7),
        ..Default::default()
    };
    RelayClient::new(&identity("guest"), &system, now).unwrap()
}

fn host(services: &'static [&'static ServiceDescriptor]) -> HostConnection {
    HostConnection::new(services, PeerIdentitySource::Declared, HostLimits::default())
}

/// Takes all bytes out of a queue.
fn sent(queue: &mut OutgoingQueue) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(transmit) = queue.next_transmit() {
        let part: Vec<u8> = transmit.slices.iter().flat_map(|slice| slice.to_vec()).collect();
        queue.sent(part.len());
        bytes.extend(part);
    }
    bytes
}

/// The host's calls so far, each answered with `reply`.
fn calls(host: &mut HostConnection, reply: impl Fn() -> Reply) -> Vec<(&'static str, Vec<u8>)> {
    let mut calls = Vec::new();
    host.begin_turn();
    while let Some(request) = host.next_request().unwrap() {
        let (call, to) = ((request.method, request.payload.to_vec()), request.reply_to);
        assert_eq!(request.identity.unwrap().machine_name, "guest");
        calls.push(call);
        host.reply(to, reply()).unwrap();
    }
    calls
}

/// Carries bytes between both ends until neither sends more; returns the calls and the news.
fn exchange(
    client: &mut RelayClient,
    host: &mut HostConnection,
    now: u64,
    reply: impl Fn() -> Reply,
) -> (Vec<(&'static str, Vec<u8>)>, Vec<News>) {
    let (mut all, mut news) = (Vec::new(), Vec::new());
    loop {
        while let Some(new) = client.turn(now, &mut || vec![(BOOTTIME, now)]).unwrap() {
            news.push(new);
        }
        let up = sent(client.connection().outgoing());
        host.receive(&up, None);
        all.extend(calls(host, &reply));
        let down = sent(host.outgoing());
        client.connection().receive(&down, None);
        if up.is_empty() && down.is_empty() {
            return (all, news);
        }
    }
}

fn phases(calls: &[(&'static str, Vec<u8>)]) -> Vec<Phase> {
    let syncs = calls.iter().filter(|(method, _)| *method == "SyncClock");
    let phase = |(_, payload): &(_, Vec<u8>)| SyncClockRequest::decode_from_slice(payload).unwrap().phase;
    syncs.map(|call| phase(call).unwrap()).collect()
}

fn accepted() -> Reply {
    Reply::last(Vec::new())
}

#[test]
fn the_machine_is_described_once_and_clocks_are_compared_twice_every_interval() {
    let mut client = client(0);
    let mut host = host(&SERVICES);
    let (calls, news) = exchange(&mut client, &mut host, 0, accepted);
    assert_eq!(news, [News::Connected, News::Compared]);
    let described = InitRelayRequest::decode_from_slice(&calls[0].1).unwrap();
    assert_eq!(
        (calls[0].0, described.system_info.num_cpus),
        ("InitRelay", Some(7))
    );
    assert_eq!(phases(&calls), [Phase::PING, Phase::UPDATE]);
    let mut now = 0;
    for _ in 0..3 {
        assert_eq!(client.deadline(), now + INTERVAL.as_nanos() as u64);
        let deadline = client.deadline();
        let early = exchange(&mut client, &mut host, deadline - 1, accepted);
        assert_eq!(early, (Vec::new(), Vec::new()));
        now = client.deadline();
        let (calls, news) = exchange(&mut client, &mut host, now, accepted);
        assert_eq!(news, []);
        assert_eq!(phases(&calls), [Phase::PING, Phase::UPDATE]);
        assert_eq!(calls.len(), 2);
    }
}

#[test]
fn a_service_that_rejects_everything_is_told_again_later_and_reported() {
    let mut client = client(0);
    let mut host = host(&SERVICES);
    let rejected = || Reply::rejected_for("no".to_owned());
    let (calls, news) = exchange(&mut client, &mut host, 0, rejected);
    assert_eq!(phases(&calls), [Phase::PING]);
    assert_eq!(news[0], News::Connected);
    assert!(matches!(&news[1..], [News::Rejected(_), News::Rejected(why)] if why.contains("no")));
    let now = client.deadline();
    assert_eq!(now, INTERVAL.as_nanos() as u64);
    let (calls, news) = exchange(&mut client, &mut host, now, accepted);
    assert_eq!(phases(&calls), [Phase::PING, Phase::UPDATE]);
    assert_eq!(news, [News::Compared]);
}

#[test]
fn a_service_without_the_port_or_without_answers_ends_the_connection() {
    let turn = |client: &mut RelayClient, now| client.turn(now, &mut Vec::new);
    let mut refused = client(0);
    let mut host = host(&NO_SERVICES);
    host.receive(&sent(refused.connection().outgoing()), None);
    host.begin_turn();
    assert!(host.next_request().unwrap().is_none());
    refused.connection().receive(&sent(host.outgoing()), None);
    assert!(matches!(turn(&mut refused, 0), Err(Ended::NoPort)));

    let mut unanswered = client(5);
    let patience = PATIENCE.as_nanos() as u64;
    assert!(matches!(turn(&mut unanswered, 5 + patience - 1), Ok(None)));
    assert!(matches!(turn(&mut unanswered, 5 + patience), Err(Ended::Silent)));

    let mut garbled = client(0);
    garbled.connection().receive(&[0xff; 8], None);
    assert!(matches!(turn(&mut garbled, 0), Err(Ended::Violation(_))));
}

/// A generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// The clocks of a machine: what they read at a time of the world.
struct Clocks {
    boot_offset: u64,
    real_offset: u64,
    /// Nanoseconds that its clocks gain or lose in a second.
    drift: i64,
    /// The jumps of its clocks and their times: it sleeps, or somebody sets its time.
    jumps: Vec<(u64, u64, i64)>,
}

impl Clocks {
    fn any(random: &mut Random) -> Clocks {
        let jumps = (0..random.below(3)).map(|_| {
            let forwards = random.below(3) * SECOND;
            let time_of_day = random.below(7200 * SECOND) as i64 - (3600 * SECOND) as i64;
            (random.below(300 * SECOND), forwards, time_of_day)
        });
        let jumps = jumps.collect();
        Clocks {
            boot_offset: random.below(1_000_000 * SECOND),
            real_offset: 1_700_000_000 * SECOND + random.below(86_400 * SECOND),
            drift: random.below(200_000) as i64 - 100_000,
            jumps,
        }
    }

    /// The monotonic clock, which stands still while the machine sleeps, boot time and time of day.
    fn at(&self, world: u64) -> [u64; 3] {
        let ran = (world as i64 + self.drift * (world / SECOND) as i64) as u64;
        let jumped = self.jumps.iter().filter(|(when, ..)| *when <= world);
        let (slept, set) = jumped.fold((0, 0), |(slept, set), jump| (slept + jump.1, set + jump.2));
        let boot = self.boot_offset + ran + slept;
        [
            self.boot_offset + ran,
            boot,
            (self.real_offset + ran + slept).wrapping_add_signed(set),
        ]
    }

    fn readings(&self, world: u64) -> Readings {
        let [_, boot, real] = self.at(world);
        vec![(BOOTTIME, boot), (REALTIME, real)]
    }
}

/// A machine with its relay, the network, and the service's end of the relay's connection.
struct Guest {
    name: String,
    clocks: Clocks,
    client: RelayClient,
    host: HostConnection,
    relay: Option<RelayId>,
    /// Bytes under way, with the time of the world at which they arrive.
    up: VecDeque<(u64, Vec<u8>)>,
    down: VecDeque<(u64, Vec<u8>)>,
    latency: u64,
    compared: usize,
}

impl Guest {
    fn new(name: String, random: &mut Random) -> Guest {
        let clocks = Clocks::any(random);
        let system = SystemInfo {
            num_cpus: Some(1 + random.below(100) as u32),
            ..Default::default()
        };
        let now = clocks.at(0)[0];
        Guest {
            client: RelayClient::new(&identity(&name), &system, now).unwrap(),
            host: host(&SERVICES),
            name,
            clocks,
            relay: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            latency: MILLISECOND / 10 + random.below(5 * MILLISECOND),
            compared: 0,
        }
    }

    fn machine(&self) -> MachineId {
        MachineId::from_hint(self.name.as_bytes())
    }

    /// Gives both ends a turn at this time of the world.
    fn step(&mut self, service: &mut Service, world: u64, now: &Now) {
        while let Some(bytes) = arrived(&mut self.down, world) {
            self.client.connection().receive(&bytes, None);
        }
        let monotonic = self.clocks.at(world)[0];
        let clocks = &self.clocks;
        while self
            .client
            .turn(monotonic, &mut || clocks.readings(world))
            .unwrap()
            .is_some()
        {}
        let bytes = sent(self.client.connection().outgoing());
        if !bytes.is_empty() {
            self.up.push_back((world + self.latency, bytes));
        }
        while let Some(bytes) = arrived(&mut self.up, world) {
            self.host.receive(&bytes, None);
        }
        self.host.begin_turn();
        let machine = self.machine();
        while let Some(request) = self.host.next_request().unwrap() {
            let relay = *self
                .relay
                .get_or_insert_with(|| service.connect_relay(machine).expect("room"));
            match RelayMethod::from_name(request.method).unwrap() {
                RelayMethod::InitRelay => {
                    let described = InitRelayRequest::decode_from_slice(request.payload).unwrap();
                    let system = described.system_info.encode_to_vec();
                    service.describe_machine(relay, &system).unwrap();
                }
                RelayMethod::SyncClock => {
                    let sync = SyncClockRequest::decode_from_slice(request.payload).unwrap();
                    let readings = sync.clocks.iter();
                    let readings = readings.map(|clock| (clock.clock_id.unwrap(), clock.timestamp.unwrap()));
                    service.sync_clocks(relay, readings.collect(), now).unwrap();
                    self.compared += usize::from(sync.phase == Some(Phase::UPDATE));
                }
            }
            let to = request.reply_to;
            self.host.reply(to, Reply::last(Vec::new())).unwrap();
        }
        let bytes = sent(self.host.outgoing());
        if !bytes.is_empty() {
            self.down.push_back((world + self.latency, bytes));
        }
    }
}

/// The next bytes that have arrived by now.
fn arrived(under_way: &mut VecDeque<(u64, Vec<u8>)>, world: u64) -> Option<Vec<u8>> {
    match under_way.front() {
        Some((at, _)) if *at <= world => under_way.pop_front().map(|(_, bytes)| bytes),
        _ => None,
    }
}

fn host_now(world: u64) -> Now {
    Now {
        monotonic: world + SECOND,
        boot: world + SECOND,
        realtime: world + 1_700_000_000 * SECOND,
        ..Now::default()
    }
}

fn read(service: &mut Service, consumer: ferretto_service::ConsumerId, now: &Now) -> Vec<TracePacket> {
    let mut packets = Vec::new();
    let mut call = ReadCall::default();
    loop {
        let batch = service
            .read_buffers(consumer, &mut call, usize::MAX, now)
            .expect("a session");
        packets.extend(batch.packets().map(|packet| {
            let bytes: Vec<u8> = packet.flatten().copied().collect();
            TracePacket::decode_from_slice(&bytes).unwrap()
        }));
        if !batch.has_more {
            return packets;
        }
    }
}

fn clock(snapshot: &ClockSnapshot, id: u32) -> u64 {
    let clock = snapshot.clocks.iter().find(|clock| clock.clock_id == Some(id));
    clock.unwrap().timestamp.unwrap()
}

/// How far a machine's clock is ahead of the service's, computed from a comparison as readers do it.
fn ahead(pairs: &[(&ClockSnapshot, &ClockSnapshot)], id: u32) -> i64 {
    let [.., (their_ping, our_ping), (their_update, our_update)] = pairs else {
        panic!("{} exchanges", pairs.len())
    };
    let middle = |a: u64, b: u64| (a / 2 + b / 2) as i64;
    let first = middle(clock(their_ping, id), clock(their_update, id)) - clock(our_ping, id) as i64;
    let second = clock(their_update, id) as i64 - middle(clock(our_ping, id), clock(our_update, id));
    i64::midpoint(first, second)
}

#[test]
fn the_clocks_of_64_machines_that_drift_and_jump_are_right_in_one_trace() {
    let mut random = Random(20_261_126);
    let mut service = Service::new(Identity::default());
    let mut guests: Vec<Guest> = (0..64)
        .map(|n| Guest::new(format!("machine {n}"), &mut random))
        .collect();
    let consumer = service.connect_consumer(1);
    let input = ConfigInput {
        config: TraceConfig::default(),
        bytes: Vec::new().into(),
    };
    let begun = service.enable_tracing(consumer, input, &OutputFile::None, 1, &host_now(0));
    begun.unwrap();
    let mut told: BTreeMap<u32, usize> = BTreeMap::new();
    let mut described: BTreeMap<u32, usize> = BTreeMap::new();
    const STEP: u64 = MILLISECOND / 4;
    let mut world = 0;
    // Five minutes, in which all of them compare ten times; only around those times anything happens.
    while world < 300 * SECOND {
        let now = host_now(world);
        let mut next = world + SECOND / 2;
        for guest in &mut guests {
            guest.step(&mut service, world, &now);
            let under_way = guest.up.iter().chain(&guest.down).map(|(at, _)| *at).min();
            next = next.min(under_way.unwrap_or(next));
        }
        if world % (5 * SECOND) < SECOND / 2 {
            for packet in read(&mut service, consumer, &now) {
                let Some(guest) = guests
                    .iter()
                    .find(|guest| packet.machine_id == Some(guest.machine().0))
                else {
                    continue;
                };
                match &packet.data {
                    Some(Data::SystemInfo(_)) => *described.entry(guest.machine().0).or_default() += 1,
                    Some(Data::RemoteClockSync(sync)) => {
                        *told.entry(guest.machine().0).or_default() += 1;
                        let synced = sync.synced_clocks.iter();
                        let pairs: Vec<_> = synced
                            .map(|pair| (&*pair.client_clocks, &*pair.host_clocks))
                            .collect();
                        // The time of the comparison on the service's clock.
                        let at = clock(pairs[pairs.len() - 1].1, BOOTTIME) - SECOND;
                        let [_, boot, real] = guest.clocks.at(at);
                        let ours = host_now(at);
                        let is_jumping = guest
                            .clocks
                            .jumps
                            .iter()
                            .any(|(when, ..)| when.abs_diff(at) < 20 * guest.latency);
                        if is_jumping {
                            continue;
                        }
                        for (id, theirs, ours) in
                            [(BOOTTIME, boot, ours.boot), (REALTIME, real, ours.realtime)]
                        {
                            let truth = theirs as i64 - ours as i64;
                            let off = (ahead(&pairs, id) - truth).unsigned_abs();
                            assert!(
                                off <= guest.latency + 2 * STEP,
                                "{}: clock {id} is {off} ns off after {at} ns, messages take {} ns",
                                guest.name,
                                guest.latency
                            );
                        }
                    }
                    _ => {}
                }
            }
        }
        world = next.max(world + STEP);
    }
    for guest in &guests {
        assert_eq!(described.get(&guest.machine().0), Some(&1), "{}", guest.name);
        assert!(guest.compared >= 9, "{} comparisons", guest.compared);
        // If a machine sleeps during a comparison, the next comparison counts instead.
        let told = told.get(&guest.machine().0).copied().unwrap_or_default();
        assert!(told >= 8, "{} is told of {told} times", guest.name);
    }
}
