//! A relay whose service has a name with several addresses.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use ferretto_ipc::host::{HostLimits, PeerIdentitySource};
use ferretto_ipc::ports::{PRODUCER_PORT, RELAY_PORT, ServiceDescriptor};
use ferretto_ipc::{Address, HostConnection};
use rustix::net::{AddressFamily, SocketType};

use super::*;

static PORTS: [&ServiceDescriptor; 2] = [&PRODUCER_PORT, &RELAY_PORT];
/// The most turns that anything takes.
const TURNS: usize = 1000;

fn relay_to(addresses: &[Address]) -> Relay {
    let reactor = Reactor::new().unwrap();
    let destination = Destination::found("service.example:7", addresses, reactor.waker());
    let machine = ThisMachine {
        hint: "hint".to_owned(),
        name: "guest".to_owned(),
        system: SystemInfo::default(),
    };
    Relay::new(reactor, Vec::new(), machine, destination).unwrap()
}

/// An address of this loopback host at which nobody listens. It belongs to the socket, so that nobody else will.
fn refusing(host: [u8; 4]) -> (OwnedFd, Address) {
    let bound = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from((host, 0))).unwrap();
    let address: SocketAddr = rustix::net::getsockname(&bound).unwrap().try_into().unwrap();
    (bound, address.to_string().parse().unwrap())
}

/// Gives the relay a turn, with all that happens within 10 ms.
fn turn(relay: &mut Relay) {
    let mut events = Events::new();
    let soon = monotonic_now() + 10_000_000;
    let mut deadlines = relay.deadlines();
    deadlines.monotonic = deadlines.monotonic.into_iter().chain([soon]).min();
    relay.reactor.wait(&mut events, deadlines).unwrap();
    relay.turn(&events).unwrap();
}

#[test]
fn addresses_that_refuse_close_at_once_or_speak_otherwise_are_passed_over_at_once() {
    let hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];
    let listeners = hosts.map(|host| TcpListener::bind((host, 0)).unwrap());
    let of = |listener: &TcpListener| listener.local_addr().unwrap().to_string().parse().unwrap();
    let [closes, babbles, serves] = &listeners;
    let (_bound, refuses) = refusing([127, 0, 0, 1]);
    let addresses = [refuses, of(closes), of(babbles), of(serves)];
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let mut relay = relay_to(&addresses);
    let mut babbling = Vec::new();
    let mut service: Option<(Stream, HostConnection)> = None;
    for _ in 0..TURNS {
        turn(&mut relay);
        drop(closes.accept());
        if let Ok((mut stream, _)) = babbles.accept() {
            stream.write_all(&[0xff; 64]).unwrap();
            babbling.push(stream);
        }
        if let Ok((stream, _)) = serves.accept() {
            let host = HostConnection::new(&PORTS, PeerIdentitySource::Declared, HostLimits::default());
            service = Some((Stream::from_fd(stream.into()).unwrap(), host));
        }
        if let Some((stream, host)) = &mut service {
            stream.read_into(host, &mut vec![0; forward::BUFFER]).unwrap();
            host.begin_turn();
            while host.next_request().unwrap().is_some() {}
            stream.flush(host.outgoing()).unwrap();
        }
        if relay.destination.for_producers().is_some() {
            break;
        }
        // The relay has begun no pause, because all these attempts are one round.
        assert_eq!(relay.told, None);
    }
    assert_eq!(relay.destination.for_producers(), Some(&addresses[3]));
    assert_eq!(babbling.len(), 1);
}

#[test]
fn when_no_address_works_the_log_says_why_of_each() {
    let refusing = [[127, 0, 0, 1], [127, 0, 0, 2]].map(refusing);
    let addresses = refusing.each_ref().map(|(_, address)| address.clone());
    let mut relay = relay_to(&addresses);
    for _ in 0..TURNS {
        turn(&mut relay);
        if let Some(told) = &relay.told {
            for address in &addresses {
                assert!(told.contains(&format!("{address}: ")), "{told}");
            }
            assert_eq!(
                relay.destination.current(),
                None,
                "the name is to be looked up again"
            );
            return;
        }
    }
    panic!("nothing is told");
}
