//! Our `traced_relay`: recordings with service and probes of either side, services that come late, go away or do not read, producers that misbehave, and
//! two network namespaces.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferretto_ipc::host::PeerIdentity;
use ferretto_ipc::ports::PRODUCER_PORT;
use ferretto_ipc::transport::TransportError;
use ferretto_ipc::{Address, Listener, Stream};
use ferretto_service::MachineId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::time::ClockId;

use super::relay::{Client, reading};
use super::relayed::{Events, MACHINES, config, record};
use crate::support::address::free_address;
use crate::support::peers::introduction;
use crate::support::process::resident_kb;
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{PATIENCE, Program, Programs, Side, System, await_that};

const MACHINE: &str = "a machine of the test";

/// A service that listens on a Unix socket and a network address, and a relay to it.
struct Scene<'a> {
    system: System<'a>,
    address: String,
    /// Where the relay listens.
    socket: PathBuf,
}

impl<'a> Scene<'a> {
    fn new(programs: &'a Programs) -> Scene<'a> {
        let system = System::new(programs);
        Scene {
            socket: system.path("guest"),
            system,
            address: free_address(),
        }
    }

    fn start_service(&mut self, side: Side, flags: &[&str]) -> u32 {
        let sockets = format!("{},{}", self.system.producer_socket().display(), self.address);
        self.system.start_with(side, Program::Traced, |command| {
            command.env("PERFETTO_PRODUCER_SOCK_NAME", sockets).args(flags);
        })
    }

    fn start_relay(&mut self) -> u32 {
        let address = self.address.clone();
        self.start_relay_to(&address)
    }

    fn start_relay_to(&mut self, address: &str) -> u32 {
        let socket = self.socket.clone();
        self.system
            .start_with(Side::Ours, Program::TracedRelay, |command| {
                command
                    .env("PERFETTO_RELAY_SOCK_NAME", address)
                    .env("PERFETTO_PRODUCER_SOCK_NAME", socket)
                    .env("PERFETTO_MACHINE_NAME", "guest")
                    .args(["--machine-id", MACHINE]);
            })
    }

    fn start_upstreams_relay(&mut self, relay: &Path) {
        let (socket, address) = (self.socket.clone(), self.address.clone());
        self.system.start_copy(relay, Program::TracedRelay, |command| {
            command
                .env("PERFETTO_RELAY_SOCK_NAME", address)
                .env("PERFETTO_PRODUCER_SOCK_NAME", socket)
                .env("PERFETTO_MACHINE_NAME", "guest");
        });
    }

    fn relay_log(&self) -> String {
        self.system.log("traced_relay.log")
    }

    fn await_relay_log(&self, text: &str) {
        await_that(text, || self.relay_log().contains(text));
    }

    fn start_probes_of_guest(&mut self, side: Side) {
        let socket = self.socket.display().to_string();
        self.system.start_at(side, Program::TracedProbes, &socket);
    }

    /// Connects a producer of ours to the relay, which forwards it to the service once the service is there.
    fn producer(&self) -> Client {
        let address = Address::Unix(self.socket.clone());
        let mut client = Client::connect(&address);
        let port = client.bind(PRODUCER_PORT.name).expect("a port for producers");
        client
            .call(port, "InitializeConnection", &introduction("p"))
            .unwrap();
        client
    }
}

/// Records through our relay, or through upstream's in this file.
fn records_two_machines(programs: &Programs, traced: Side, probes: Side, relay: Option<&Path>) {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let mut scene = Scene::new(programs);
    scene.start_service(traced, &["--enable-relay-endpoint"]);
    scene.system.start(Side::Ours, Program::TracedProbes);
    match relay {
        Some(relay) => scene.start_upstreams_relay(relay),
        None => {
            scene.start_relay();
            scene.await_relay_log("the service knows this machine's clocks");
        }
    }
    scene.start_probes_of_guest(probes);
    scene.system.await_state(|state| {
        let offered = state.data_sources.iter();
        let offered =
            offered.filter(|source| source.ds_descriptor.name.as_deref() == Some("linux.process_stats"));
        offered.count() == 2
    });
    let trace = record(&mut scene.system, &config("trace_all_machines: true"));
    let [losses, machines] = processor.query(&trace, [LOSSES, MACHINES]);
    assert_eq!(losses, Rows::new(), "{traced} service, {probes} probes");
    let [host, guest] = &machines[..] else {
        panic!("{machines:?}")
    };
    // Both are really the same machine, so they have the same number of processors.
    assert_eq!((&host[0][..], &host[2][..], &host[3][..]), ("0", "1", "1"));
    assert_eq!((&guest[0][..], &guest[2][..], &guest[3][..]), ("1", "1", "1"));
    assert_eq!(host[1], guest[1]);
    let state = scene.system.state();
    if relay.is_some() {
        return;
    }
    let ids: Vec<_> = state.producers.iter().filter_map(|p| p.machine_id).collect();
    assert!(
        ids.contains(&MachineId::from_hint(MACHINE.as_bytes()).0),
        "{ids:?}"
    );
}

#[test]
fn our_relay_takes_our_probes_to_our_service() {
    records_two_machines(&Programs::ours(), Side::Ours, Side::Ours, None);
}

#[test]
fn service_and_probes_on_either_side_of_our_relay_may_be_upstreams() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    records_two_machines(&programs, Side::Upstream, Side::Ours, None);
    records_two_machines(&programs, Side::Ours, Side::Upstream, None);
    records_two_machines(&programs, Side::Upstream, Side::Upstream, None);
}

#[test]
#[ignore = "needs upstream's traced_relay, which FERRETTO_UPSTREAM_RELAY names; upstream's package has none"]
fn upstreams_relay_takes_probes_to_a_service_of_either_side() {
    let relay =
        std::env::var_os("FERRETTO_UPSTREAM_RELAY").expect("FERRETTO_UPSTREAM_RELAY names upstream's relay");
    let relay = PathBuf::from(relay);
    records_two_machines(&Programs::ours(), Side::Ours, Side::Ours, Some(&relay));
    let Some(programs) = Programs::of_both() else {
        return;
    };
    records_two_machines(&programs, Side::Upstream, Side::Ours, Some(&relay));
    records_two_machines(&programs, Side::Ours, Side::Upstream, Some(&relay));
}

#[test]
fn the_service_knows_user_process_and_machine_of_a_producer() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_service(Side::Ours, &["--enable-relay-endpoint"]);
    scene.start_relay();
    let _producer = scene.producer();
    let state = scene.system.state();
    let [producer] = &state.producers[..] else {
        panic!("{state:?}")
    };
    assert_eq!(producer.pid, Some(std::process::id() as i32));
    assert_eq!(producer.uid, Some(rustix::process::geteuid().as_raw() as i32));
    assert_eq!(producer.machine_name.as_deref(), Some("guest"));
    // The service ignores the identity that a producer behind a relay declares.
    let mut liar = Client::connect(&Address::Unix(scene.socket.clone()));
    liar.declare(&PeerIdentity {
        pid: 1,
        uid: 4711,
        machine_id_hint: "elsewhere".to_owned(),
        machine_name: "elsewhere".to_owned(),
    });
    let port = liar.bind(PRODUCER_PORT.name).unwrap();
    liar.call(port, "InitializeConnection", &introduction("liar"))
        .unwrap();
    let state = scene.system.state();
    assert!(
        state
            .producers
            .iter()
            .all(|producer| producer.machine_name.as_deref() == Some("guest")),
        "{state:?}"
    );
}

#[test]
fn producers_come_again_when_the_service_comes_late_or_goes_away() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_relay();
    scene.await_relay_log("waiting for the service at");
    // The relay hangs up, as if there were no service on this machine.
    assert!(Client::connect(&Address::Unix(scene.socket.clone())).is_hung_up_on());
    let socket = scene.socket.display().to_string();
    let probes = scene.system.program(Side::Ours, Program::TracedProbes);
    let mut command = scene.system.command(&probes, "traced_probes.log");
    let _probes = crate::support::Running(
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", socket)
            .spawn()
            .unwrap(),
    );
    for times in 1..3 {
        let service = scene.start_service(Side::Ours, &["--enable-relay-endpoint"]);
        scene.system.await_state(|state| {
            let is_guests = |name: Option<&str>| name == Some("guest");
            state
                .producers
                .iter()
                .any(|p| is_guests(p.machine_name.as_deref()))
        });
        await_that("the relay itself is connected", || {
            scene.relay_log().matches("connected to the service at").count() == times
        });
        scene.system.end(service);
    }
    scene.system.assert_running();
}

#[test]
fn a_service_without_a_port_for_relays_is_reported_and_gets_the_producers_all_the_same() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_service(Side::Ours, &[]);
    scene.start_relay();
    scene.await_relay_log("start traced with --enable-relay-endpoint");
    let _producer = scene.producer();
    assert_eq!(scene.system.state().producers.len(), 1);
}

#[test]
fn no_producer_stops_another() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_service(Side::Ours, &["--enable-relay-endpoint"]);
    scene.start_relay();
    let mut steady = scene.producer();
    // The first client announces a frame that is too large, the second stops in the middle of a frame, and the others send nothing.
    let mut huge = UnixStream::connect(&scene.socket).unwrap();
    huge.write_all(&[0xff; 64]).unwrap();
    let mut half = UnixStream::connect(&scene.socket).unwrap();
    half.write_all(&[0, 1, 0, 0, 1]).unwrap();
    let _silent: Vec<UnixStream> = (0..50)
        .map(|_| UnixStream::connect(&scene.socket).unwrap())
        .collect();
    // The service hangs up on the first.
    huge.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = huge.read(&mut [0; 16]);
    assert!(
        end.as_ref().is_ok_and(|count| *count == 0)
            || end.is_err_and(|error| error.raw_os_error() == Some(104))
    );
    let port = steady.bind(PRODUCER_PORT.name).unwrap();
    steady.call_encoded(port, "Sync", Vec::new()).unwrap();
    scene.producer();
    scene.system.assert_running();
}

#[test]
fn a_service_that_does_not_read_costs_the_relay_little_and_producers_only_their_own_time() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    let service = TcpListener::bind(&scene.address).unwrap();
    let relay = scene.start_relay();
    let own = service.accept().unwrap();
    let before = resident_kb(relay);
    let mut flooding = Vec::new();
    for _ in 0..20 {
        let producer = UnixStream::connect(&scene.socket).unwrap();
        flooding.push((producer, service.accept().unwrap()));
    }
    std::thread::scope(|threads| {
        for (producer, _) in &mut flooding {
            threads.spawn(|| flood(producer));
        }
    });
    let grown = resident_kb(relay).saturating_sub(before);
    assert!(grown < 20 * 256 + 2048, "{grown} KB for 20 producers");
    // The relay serves another producer while those wait.
    let mut producer = UnixStream::connect(&scene.socket).unwrap();
    let (mut taken, _) = service.accept().unwrap();
    producer.write_all(b"up").unwrap();
    taken.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut all = Vec::new();
    while !all.ends_with(b"up") {
        let mut bytes = [0; 4096];
        let count = taken.read(&mut bytes).unwrap();
        assert_ne!(count, 0);
        all.extend_from_slice(&bytes[..count]);
    }
    taken.write_all(b"down").unwrap();
    producer.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut down = [0; 4];
    producer.read_exact(&mut down).unwrap();
    assert_eq!(&down, b"down");
    drop(own);
}

#[test]
fn through_a_tunnel_whose_end_is_a_unix_socket_all_is_the_same() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_service(Side::Ours, &["--enable-relay-endpoint"]);
    let end = scene.system.path("tunnel");
    let listener = std::os::unix::net::UnixListener::bind(&end).unwrap();
    let address = scene.address.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&address).unwrap();
            let (mut near_out, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut near, mut far) = (near, far);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut near, &mut far_out);
                let _ = far_out.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut far, &mut near_out);
                let _ = near_out.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    scene.start_relay_to(end.to_str().unwrap());
    scene.await_relay_log("the service knows this machine's clocks");
    let _producer = scene.producer();
    let state = scene.system.state();
    assert_eq!(state.producers[0].machine_name.as_deref(), Some("guest"));
}

/// A free address on the vsock loopback, if this kernel has one.
fn free_vsock() -> Option<Address> {
    let port = 0x5000_0000 + std::process::id();
    let address = |cid| Address::Vsock { cid, port };
    let reached = Listener::bind(&address(u32::MAX)).and_then(|_listener| {
        let stream = Stream::connect(&address(1))?;
        let mut polled = [PollFd::new(&stream, PollFlags::OUT)];
        // With a loopback the connection succeeds at once. Without one the kernel tries for seconds.
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: 300_000_000,
        };
        poll(&mut polled, Some(&patience)).map_err(TransportError::Receive)?;
        Ok(polled[0].revents())
    });
    match reached {
        Ok(PollFlags::OUT) => return Some(address(1)),
        Ok(other) => println!("skipped: this kernel has no vsock loopback: {other:?}"),
        Err(error) => println!("skipped: this kernel has no vsock loopback: {error}"),
    }
    None
}

#[test]
fn over_vsock_all_is_the_same() {
    let Some(address) = free_vsock() else { return };
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.address = address.to_string();
    scene.start_service(Side::Ours, &["--enable-relay-endpoint-on", &address.to_string()]);
    scene.start_relay();
    scene.await_relay_log("the service knows this machine's clocks");
    let _producer = scene.producer();
    let state = scene.system.state();
    assert_eq!(state.producers[0].machine_name.as_deref(), Some("guest"));
}

#[test]
fn the_relay_refuses_what_it_cannot_do_and_says_why() {
    let programs = Programs::ours();
    let scene = Scene::new(&programs);
    let own = scene.socket.display().to_string();
    let long = "x".repeat(1025);
    for (variable, value, said) in [
        ("PERFETTO_RELAY_SOCK_NAME", "", "names no service to forward to"),
        ("PERFETTO_RELAY_SOCK_NAME", "vsock://x", "not a vsock address"),
        ("PERFETTO_RELAY_SOCK_NAME", "vsock://2:-1", "not a vsock address"),
        ("PERFETTO_RELAY_SOCK_NAME", own.as_str(), "forward to itself"),
        ("PERFETTO_MACHINE_NAME", long.as_str(), "has 1025 bytes"),
    ] {
        let program = scene.system.program(Side::Ours, Program::TracedRelay);
        let mut command = scene.system.command(&program, "traced_relay.log");
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", &scene.socket)
            .env("PERFETTO_RELAY_SOCK_NAME", "127.0.0.1:1")
            .env(variable, value);
        assert_eq!(command.status().unwrap().code(), Some(1), "{variable}={value}");
        let log = scene.relay_log();
        assert!(log.contains(said), "{log}");
        assert!(!scene.socket.exists());
    }
}

#[test]
fn the_relay_removes_its_socket_when_it_is_told_to_end() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    let relay = scene.start_relay();
    assert!(scene.socket.exists());
    let status = scene.system.end_with(relay, Signal::TERM);
    assert!(status.unwrap().success());
    assert!(!scene.socket.exists());
}

#[test]
fn a_relay_that_is_told_to_end_takes_to_the_service_what_producers_have_sent() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    // The socket takes this many events while nobody reads.
    const EVENTS: usize = 40;
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.start_service(Side::Ours, &["--enable-relay-endpoint"]);
    let relay = scene.start_relay();
    scene.await_relay_log("the service knows this machine's clocks");
    let producer = Client::connect(&Address::Unix(scene.socket.clone()));
    let (mut events, recording) = Events::record(producer, &scene.system);
    // All these events wait in the relay's socket when the relay is told to end.
    scene.system.signal(relay, Signal::STOP);
    for _ in 0..EVENTS {
        events.send(reading(ClockId::Boottime), &"x".repeat(1000));
    }
    scene.system.signal(relay, Signal::TERM);
    let status = scene.system.end_with(relay, Signal::CONT);
    assert!(status.unwrap().success());
    let trace = recording.interrupt();
    let [losses, count] = processor.query(&trace, [LOSSES, "select count(*) from slice"]);
    assert_eq!(losses, Rows::new());
    assert_eq!(numbers(&count), [EVENTS as i64]);
}

/// Stops a relay whose lanes, and whose sockets, are full of bytes from this producer. Returns how many there are.
fn fill(scene: &Scene<'_>) -> (UnixStream, usize) {
    let mut producer = UnixStream::connect(&scene.socket).unwrap();
    let sent = flood(&mut producer);
    (producer, sent)
}

/// Writes until the socket takes no more; returns the number of bytes written.
fn flood(producer: &mut UnixStream) -> usize {
    producer
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let (mut sent, mut vain) = (0, 0);
    // The relay may have got no processor during a single wait.
    while vain < 2 {
        match producer.write(&[1; 65536]) {
            Ok(count) => {
                sent += count;
                vain = 0;
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                vain += 1;
            }
        }
        assert!(sent < 1 << 30, "it is never stopped");
    }
    sent
}

#[test]
fn a_relay_that_is_told_to_end_waits_for_a_service_that_is_slow() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    let service = TcpListener::bind(&scene.address).unwrap();
    let relay = scene.start_relay();
    let _own = service.accept().unwrap();
    let (mut producer, mut sent) = fill(&scene);
    let (mut taken, _) = service.accept().unwrap();
    // The relay has not yet accepted this producer when it is told to end. It forwards this producer, too.
    scene.system.signal(relay, Signal::STOP);
    let mut late = UnixStream::connect(&scene.socket).unwrap();
    late.write_all(b"late").unwrap();
    scene.system.signal(relay, Signal::TERM);
    scene.system.signal(relay, Signal::CONT);
    // The producer can send no more, although nobody has read its data yet.
    await_that("the producer cannot write", || match producer.write(&[1]) {
        Ok(count) => {
            sent += count;
            false
        }
        Err(error) => error.kind() == std::io::ErrorKind::BrokenPipe,
    });
    let mut all = Vec::new();
    taken.read_to_end(&mut all).unwrap();
    assert_eq!(all.iter().rev().take_while(|byte| **byte == 1).count(), sent);
    let (mut taken_late, _) = service.accept().unwrap();
    let mut all = Vec::new();
    taken_late.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(b"late"));
    drop((taken, taken_late));
    assert!(scene.system.await_end(relay).unwrap().success());
    assert!(!scene.relay_log().contains("is lost"), "{}", scene.relay_log());
}

#[test]
fn a_relay_that_is_told_to_end_does_not_wait_for_ever_and_says_what_is_lost() {
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    let service = TcpListener::bind(&scene.address).unwrap();
    let mut ends_early = |signals| {
        let relay = scene.start_relay();
        let _own = service.accept().unwrap();
        let _full = fill(&scene);
        let _taken = service.accept().unwrap();
        let begun = Instant::now();
        scene.system.signal(relay, Signal::TERM);
        if signals == 2 {
            await_that("it ends", || !scene.socket.exists());
            scene.system.signal(relay, Signal::INT);
        }
        assert!(scene.system.await_end(relay).unwrap().success());
        let took = begun.elapsed();
        scene.await_relay_log("has not taken all that 1 producers have sent; the rest is lost");
        took < Duration::from_secs(5)
    };
    assert!(!ends_early(1));
    // On a busy machine the second signal may come late, but not each time.
    assert!((0..5).any(|_| ends_early(2)));
}

/// Two network namespaces, joined by a pair of devices, which are removed when this is dropped.
struct Namespaces {
    names: [String; 2],
}

/// The addresses in the two namespaces.
const ADDRESSES: [&str; 2] = ["10.213.7.1", "10.213.7.2"];

impl Namespaces {
    fn new() -> Option<Namespaces> {
        let id = std::process::id();
        let namespaces = Namespaces {
            names: [format!("ferretto-a-{id}"), format!("ferretto-b-{id}")],
        };
        let [a, b] = &namespaces.names;
        let (device_a, device_b) = (format!("fa{id}"), format!("fb{id}"));
        let mut steps = vec![
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add {device_a} netns {a} type veth peer name {device_b} netns {b}"),
        ];
        for (name, device, address) in [(a, &device_a, ADDRESSES[0]), (b, &device_b, ADDRESSES[1])] {
            steps.push(format!("-n {name} address add {address}/24 dev {device}"));
            steps.push(format!("-n {name} link set {device} up"));
            steps.push(format!("-n {name} link set lo up"));
        }
        for step in steps {
            match Command::new("ip").args(step.split(' ')).output() {
                Ok(output) if output.status.success() => {}
                Ok(output) => {
                    let why = String::from_utf8_lossy(&output.stderr).into_owned();
                    println!("skipped: ip {step}: {}", why.trim());
                    return None;
                }
                Err(error) => {
                    println!("skipped: ip: {error}");
                    return None;
                }
            }
        }
        Some(namespaces)
    }

    /// Starts a command in one of the namespaces, with this log. All namespaces share the sockets in the file system.
    fn enter(&self, which: usize, command: &mut Command, log: &Path) {
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", &self.names[which]])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log).unwrap());
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        *command = inside;
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

#[test]
fn two_network_namespaces_are_recorded_into_one_trace() {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let Some(namespaces) = Namespaces::new() else {
        return;
    };
    let programs = Programs::ours();
    let mut scene = Scene::new(&programs);
    scene.address = format!("{}:20001", ADDRESSES[0]);
    let sockets = format!("{},{}", scene.system.producer_socket().display(), scene.address);
    let logs = ["traced.log", "traced_relay.log"].map(|log| scene.system.path(log));
    scene.system.start_with(Side::Ours, Program::Traced, |command| {
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", sockets)
            .arg("--enable-relay-endpoint");
        namespaces.enter(0, command, &logs[0]);
    });
    scene.system.start(Side::Ours, Program::TracedProbes);
    let (socket, address) = (scene.socket.clone(), scene.address.clone());
    scene
        .system
        .start_with(Side::Ours, Program::TracedRelay, |command| {
            command
                .env("PERFETTO_RELAY_SOCK_NAME", address)
                .env("PERFETTO_PRODUCER_SOCK_NAME", socket)
                .env("PERFETTO_MACHINE_NAME", "guest");
            namespaces.enter(1, command, &logs[1]);
        });
    scene.start_probes_of_guest(Side::Ours);
    scene.system.await_state(|state| {
        let offered = state.data_sources.iter();
        offered
            .filter(|source| source.ds_descriptor.name.as_deref() == Some("linux.process_stats"))
            .count()
            == 2
    });
    let trace = record(&mut scene.system, &config("trace_all_machines: true"));
    let [losses, machines] = processor.query(&trace, [LOSSES, MACHINES]);
    assert_eq!(losses, Rows::new());
    assert_eq!(machines.len(), 2, "{machines:?}");
    assert_eq!(
        (&machines[1][0][..], &machines[1][2][..], &machines[1][3][..]),
        ("1", "1", "1")
    );
    // Without `--machine-id` it is the boot id, as upstream's.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let expected = MachineId::from_hint(boot.trim_end().as_bytes()).0;
    let state = scene.system.state();
    assert!(state.producers.iter().any(|p| p.machine_id == Some(expected)));
}
