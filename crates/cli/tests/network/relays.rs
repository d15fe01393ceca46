//! All kinds of relays: on sockets for relays and for others, with and without an identity, and excessive ones.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use ferretto_ipc::Address;
use ferretto_ipc::client::CallError;
use ferretto_ipc::frame::MAX_IDENTITY_TEXT;
use ferretto_ipc::host::PeerIdentity;
use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT, RELAY_PORT};
use ferretto_proto::messages::sync_clock_request::{Clock, Phase};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    InitRelayRequest, Message, SyncClockRequest, SystemInfo, Trace, TracePacket, TracingServiceState, Utsname,
};
use ferretto_service::{MachineId, limits};

use super::relay::{Client, Guest};
use crate::support::address::free_address;
use crate::support::peers::introduction;
use crate::support::{Program, Programs, Running, Side, System};

fn guest() -> Guest {
    Guest {
        hint: "boot id".into(),
        name: "guest".into(),
        behind: 0,
        processors: 2,
    }
}

fn identity(pid: i32, hint: &str, name: &str) -> PeerIdentity {
    PeerIdentity {
        pid,
        uid: 4321,
        machine_id_hint: hint.into(),
        machine_name: name.into(),
    }
}

/// Our service on a Unix socket and a network address.
struct Scene<'a> {
    system: System<'a>,
    unix: Address,
    network: Address,
}

impl<'a> Scene<'a> {
    fn with(programs: &'a Programs, flags: impl FnOnce(&str) -> Vec<String>) -> Scene<'a> {
        let mut system = System::new(programs);
        let address = free_address();
        let sockets = format!("{},{address}", system.producer_socket().display());
        system.start_with(Side::Ours, Program::Traced, |command| {
            command.env("PERFETTO_PRODUCER_SOCK_NAME", sockets);
            command.args(flags(&address));
        });
        Scene {
            unix: Address::Unix(system.producer_socket()),
            network: address.parse().unwrap(),
            system,
        }
    }

    fn for_relays(programs: &'a Programs) -> Scene<'a> {
        Scene::with(programs, |_| vec!["--enable-relay-endpoint".into()])
    }

    /// A producer over the network, which declared the identities `before` first, and `after` once it had introduced itself.
    fn producer(&self, before: &[PeerIdentity], after: Option<&PeerIdentity>) -> Client {
        let mut client = Client::connect(&self.network);
        before.iter().for_each(|identity| client.declare(identity));
        let port = client.bind(PRODUCER_PORT.name).unwrap();
        let introduced = client.call(port, "InitializeConnection", &introduction("p"));
        introduced.unwrap();
        after.into_iter().for_each(|identity| client.declare(identity));
        client.call_encoded(port, "Sync", Vec::new()).unwrap();
        client
    }

    /// Returns the service's view of the only producer.
    fn the_producer(&self) -> (i32, Option<i32>, Option<u32>, Option<String>) {
        let TracingServiceState { producers, .. } = self.system.state();
        let [producer] = <[_; 1]>::try_from(producers).unwrap();
        (
            producer.uid.unwrap(),
            producer.pid,
            producer.machine_id,
            producer.machine_name,
        )
    }

    /// Returns the packets of a short recording.
    fn trace(&self) -> Vec<TracePacket> {
        let config = "duration_ms: 1 buffers { size_kb: 64 }";
        let trace = self.system.record(Side::Ours, config).finish();
        packets(&trace)
    }
}

fn packets(trace: &Path) -> Vec<TracePacket> {
    let bytes = std::fs::read(trace).unwrap();
    Trace::decode_from_slice(&bytes).unwrap().packet
}

/// Returns the numbers of clock comparisons and of machine descriptions among these packets.
fn told(packets: &[TracePacket]) -> [usize; 2] {
    let count = |of: fn(&Data) -> bool| {
        let data = packets.iter().filter_map(|packet| packet.data.as_ref());
        data.filter(|data| of(data)).count()
    };
    [
        count(|data| matches!(data, Data::RemoteClockSync(_))),
        count(|data| matches!(data, Data::SystemInfo(_))),
    ]
}

#[test]
fn relays_may_use_the_sockets_that_are_chosen_for_them_and_no_others() {
    let programs = Programs::ours();
    let has_port = |address: &Address| Client::connect(address).bind(RELAY_PORT.name).is_some();
    let nowhere = Scene::with(&programs, |_| Vec::new());
    assert!(!has_port(&nowhere.unix) && !has_port(&nowhere.network));
    let somewhere = Scene::with(&programs, |address| {
        vec![format!("--enable-relay-endpoint-on={address}")]
    });
    assert!(!has_port(&somewhere.unix) && has_port(&somewhere.network));
    let everywhere = Scene::for_relays(&programs);
    assert!(has_port(&everywhere.unix) && has_port(&everywhere.network));
    let consumers = Address::Unix(everywhere.system.consumer_socket());
    assert!(!has_port(&consumers));
    // These sockets still accept producers.
    assert!(
        Client::connect(&everywhere.network)
            .bind(PRODUCER_PORT.name)
            .is_some()
    );
    assert!(
        Client::connect(&everywhere.network)
            .bind(CONSUMER_PORT.name)
            .is_none()
    );
}

#[test]
fn a_relays_clocks_and_description_are_in_the_trace_with_its_machine() {
    let programs = Programs::ours();
    let scene = Scene::for_relays(&programs);
    let relay = guest().introduce(&scene.network);
    let packets = scene.trace();
    assert_eq!(told(&packets), [1, 2]);
    let machine = Some(MachineId::from_hint(b"boot id").0);
    let compared = packets.iter().find_map(|packet| match &packet.data {
        Some(Data::RemoteClockSync(sync)) => Some((packet.machine_id, sync)),
        _ => None,
    });
    let (id, sync) = compared.unwrap();
    assert_eq!(id, machine);
    assert_eq!(sync.synced_clocks.len(), 2);
    // The readings in the order theirs, ours, theirs, ours. Both are the same clock.
    let boot_times: Vec<u64> = sync
        .synced_clocks
        .iter()
        .flat_map(|pair| [&pair.client_clocks, &pair.host_clocks])
        .map(|snapshot| {
            let boot = snapshot.clocks.iter().find(|clock| clock.clock_id == Some(6));
            boot.unwrap().timestamp.unwrap()
        })
        .collect();
    assert!(boot_times.is_sorted(), "{boot_times:?}");
    // The relay has gone, so later traces lack its clocks.
    drop(relay);
    let until = std::time::Instant::now() + crate::support::PATIENCE;
    while told(&scene.trace()) != [0, 1] {
        assert!(std::time::Instant::now() < until, "the relay has gone");
    }
}

#[test]
fn on_a_unix_socket_the_kernel_identifies_a_peer_and_declarations_do_not_count() {
    let programs = Programs::ours();
    let scene = Scene::for_relays(&programs);
    let _relay = guest().introduce(&scene.unix);
    let mut producer = Client::connect(&scene.unix);
    producer.declare(&identity(1, "boot id", "guest"));
    let port = producer.bind(PRODUCER_PORT.name).unwrap();
    let introduced = producer.call(port, "InitializeConnection", &introduction("p"));
    introduced.unwrap();
    let pid = std::process::id() as i32;
    let uid = rustix::process::geteuid().as_raw() as i32;
    assert_eq!(scene.the_producer(), (uid, Some(pid), None, None));
    assert_eq!(told(&scene.trace()), [0, 1]);
    let log = scene.system.log("traced.log");
    assert_eq!(
        log.matches("a relay is taken to be on this machine").count(),
        1,
        "{log}"
    );
}

#[test]
fn over_a_network_a_producers_identity_is_its_relays_first_declaration() {
    let programs = Programs::ours();
    let machine = |hint: &str| Some(MachineId::from_hint(hint.as_bytes()).0);
    // Upstream accepts declarations on sockets without a relay port as well.
    for scene in [
        Scene::for_relays(&programs),
        Scene::with(&programs, |_| Vec::new()),
    ] {
        let name = || Some("guest".to_owned());
        let known = identity(7, "boot id", "guest");
        let other = identity(8, "another", "another");
        for (before, after, expected) in [
            (&[][..], None, (-1, None, None, None)),
            (
                std::slice::from_ref(&known),
                None,
                (4321, Some(7), machine("boot id"), name()),
            ),
            (
                &[known.clone(), other.clone()],
                Some(&other),
                (4321, Some(7), machine("boot id"), name()),
            ),
            // Too late.
            (&[], Some(&known), (-1, None, None, None)),
            // A system without process ids, without a name and a hint: the address takes their place.
            (
                &[identity(-1, "", "")],
                None,
                (4321, None, machine("127.0.0.1"), None),
            ),
        ] {
            let producer = scene.producer(before, after);
            assert_eq!(scene.the_producer(), expected, "{before:?} {after:?}");
            drop(producer);
            scene.system.await_state(|state| state.producers.is_empty());
        }
    }
}

#[test]
fn producers_of_several_machines_are_distinguished() {
    let programs = Programs::ours();
    let scene = Scene::for_relays(&programs);
    let producers = ["one", "two", "one"].map(|hint| scene.producer(&[identity(7, hint, "guest")], None));
    let machines: Vec<_> = scene
        .system
        .state()
        .producers
        .iter()
        .map(|p| p.machine_id)
        .collect();
    let id = |hint: &[u8]| Some(MachineId::from_hint(hint).0);
    assert_eq!(machines, [id(b"one"), id(b"two"), id(b"one")]);
    assert_ne!(machines[0], machines[1]);
    drop(producers);
}

#[test]
fn a_relay_that_says_no_machine_tells_nothing() {
    let programs = Programs::ours();
    let scene = Scene::for_relays(&programs);
    let mut relay = Client::connect(&scene.network);
    let port = relay.bind(RELAY_PORT.name).unwrap();
    relay.call(port, "InitRelay", &guest().system()).unwrap();
    for phase in [Phase::PING, Phase::UPDATE] {
        relay.call(port, "SyncClock", &guest().readings(phase)).unwrap();
    }
    assert_eq!(told(&scene.trace()), [0, 1]);
}

#[test]
fn a_relay_that_overdoes_it_is_rejected_and_the_service_lives_on() {
    let programs = Programs::ours();
    let mut scene = Scene::for_relays(&programs);
    let mut relay = guest().introduce(&scene.network);
    let port = relay.bind(RELAY_PORT.name).unwrap();
    let rejected = |outcome: Result<Vec<u8>, CallError>| {
        assert!(matches!(outcome, Err(CallError::Host(_))), "{outcome:?}");
    };
    let wordy = InitRelayRequest {
        system_info: SystemInfo {
            utsname: Utsname {
                sysname: Some("x".repeat(limits::MAX_SYSTEM_INFO)),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    };
    rejected(relay.call(port, "InitRelay", &wordy));
    rejected(relay.call_encoded(port, "InitRelay", b"\x0a\x03\x0a\x05a".to_vec()));
    rejected(relay.call_encoded(port, "SyncClock", b"\x12\x09a".to_vec()));
    let busy = SyncClockRequest {
        clocks: vec![Clock::default(); limits::MAX_CLOCKS_PER_EXCHANGE + 1],
        ..Default::default()
    };
    rejected(relay.call(port, "SyncClock", &busy));
    // None of these requests has an effect.
    assert_eq!(told(&scene.trace()), [1, 2]);
    // A machine name that is too long ends the connection.
    for identity in [
        identity(1, &"h".repeat(MAX_IDENTITY_TEXT + 1), ""),
        identity(1, "", &"n".repeat(MAX_IDENTITY_TEXT + 1)),
    ] {
        let mut client = Client::connect(&scene.network);
        client.declare(&identity);
        assert!(client.is_hung_up_on());
    }
    // As many relays as allowed, and one more.
    let mut relays: Vec<Client> = (1..limits::MAX_RELAYS)
        .map(|n| {
            let mut client = Client::connect(&scene.network);
            client.declare(&identity(1, &n.to_string(), ""));
            let port = client.bind(RELAY_PORT.name).unwrap();
            client.call(port, "InitRelay", &guest().system()).unwrap();
            client
        })
        .collect();
    let mut late = Client::connect(&scene.network);
    late.declare(&identity(1, "late", ""));
    let late_port = late.bind(RELAY_PORT.name).unwrap();
    rejected(late.call(late_port, "InitRelay", &guest().system()));
    // Once another relay disconnects, it may try again.
    drop(relays.pop());
    let until = std::time::Instant::now() + crate::support::PATIENCE;
    while late.call(late_port, "InitRelay", &guest().system()).is_err() {
        assert!(std::time::Instant::now() < until, "there is room");
    }
    scene.system.assert_running();
    let log = scene.system.log("traced.log");
    assert!(log.contains("a name of a machine has 1025 bytes"), "{log}");
}

#[test]
fn relays_may_use_sockets_of_systemd_and_none_of_androids_init() {
    let programs = Programs::ours();
    for (environment, relays) in [
        (
            "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=producer:consumer",
            true,
        ),
        (
            "ANDROID_SOCKET_traced_producer=3 ANDROID_SOCKET_traced_consumer=4",
            false,
        ),
    ] {
        let system = System::new(&programs);
        let file = system.path("handed-producer");
        let producers = OwnedFd::from(UnixListener::bind(&file).unwrap());
        let consumers = OwnedFd::from(UnixListener::bind(system.path("handed-consumer")).unwrap());
        let mut command = system.command(Path::new("sh"), "traced.log");
        command.stdin(producers).stdout(consumers).arg("-c").arg(format!(
            "exec 3<&0 4<&1 </dev/null >/dev/null; {environment} exec {} --enable-relay-endpoint",
            system.program(Side::Ours, Program::Traced).display()
        ));
        let _traced = Running(command.spawn().unwrap());
        let mut client = Client::connect(&Address::Unix(file));
        assert_eq!(client.bind(RELAY_PORT.name).is_some(), relays, "{environment}");
    }
}

#[test]
fn a_socket_that_is_chosen_for_relays_must_be_one_for_producers() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    for chosen in ["127.0.0.1:1", "@nobody", "", "vsock://x"] {
        let mut command = system.command(&system.program(Side::Ours, Program::Traced), "traced.log");
        command.arg(format!("--enable-relay-endpoint-on={chosen}"));
        let ended = command.status().unwrap();
        assert_eq!(ended.code(), Some(1), "{chosen}");
        let log = system.log("traced.log");
        assert!(log.contains("--enable-relay-endpoint-on"), "{chosen}: {log}");
        assert!(!system.producer_socket().exists(), "{chosen}");
        assert!(UnixStream::connect(system.consumer_socket()).is_err(), "{chosen}");
    }
}
