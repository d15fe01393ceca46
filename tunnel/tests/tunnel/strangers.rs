//! Refused strangers: ends that show other certificates or none, and clients that do not speak TLS. Their cost is bounded, and they hurt nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::ExtendedKeyUsagePurpose;
use rustix::net::{self, AddressFamily, SocketType};

use crate::ends::{PATIENCE, Scene};
use crate::fleet::{Fleet, HOST, Identity, Valid};

/// Whether the tunnel closes a client's connection without a word.
pub(crate) fn is_hung_up_on(socket: &Path) -> bool {
    let mut client = UnixStream::connect(socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    matches!(client.read(&mut [0]), Ok(0))
}

/// Whether bytes go through this connection, and a new one.
pub(crate) fn assert_served(scene: &Scene, old: &mut (UnixStream, TcpStream), socket: &Path) {
    let mut new = scene.connect(socket);
    for (client, served) in [old, &mut new] {
        let mut buffer = [0; 2];
        client.write_all(b"up").unwrap();
        served.read_exact(&mut buffer).unwrap();
        served.write_all(&buffer).unwrap();
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"up");
    }
}

/// A guest's end with this certificate is refused, and both ends say why.
fn assert_guest_is_refused(identity: &Identity, scene: &mut Scene, host_says: &str, guest_says: &str) {
    let (mut guest, socket) = scene.guest_that_expects(identity, HOST);
    assert!(is_hung_up_on(&socket));
    guest.await_log(guest_says);
    assert!(
        guest.log().contains(&identity.cert.display().to_string()),
        "{}",
        guest.log()
    );
    scene.host.await_log(host_says);
    assert!(!scene.is_reached(), "the service has been reached");
}

#[test]
fn a_guest_with_a_strangers_certificate_is_refused_and_the_service_never_knows() {
    let mut scene = Scene::new();
    let strangers = Fleet::new();
    let mut identity = strangers.guest();
    // It knows the fleet's authority, which is public.
    identity.ca = scene.fleet.path("ca.pem");
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let authority = scene.fleet.path("ca.pem");
    let host_says = format!("its certificate is of no authority in {}", authority.display());
    assert_guest_is_refused(
        &identity,
        &mut scene,
        &host_says,
        "whose authority it does not know",
    );
    assert_served(&scene, &mut old, &socket);
}

#[test]
fn a_guest_with_the_certificate_of_a_server_is_refused() {
    let mut scene = Scene::new();
    let identity = scene.fleet.host();
    assert_guest_is_refused(
        &identity,
        &mut scene,
        "see its extended key usage",
        "it does not take the certificate in",
    );
}

#[test]
fn a_guest_refuses_a_host_of_another_authority_of_another_name_or_for_another_purpose() {
    let fleet = Fleet::new();
    let other = Fleet::new();
    let other_name = fleet.issue(
        "elsewhere.example",
        ExtendedKeyUsagePurpose::ServerAuth,
        Valid::Now,
    );
    let other_purpose = fleet.issue(HOST, ExtendedKeyUsagePurpose::ClientAuth, Valid::Now);
    let mut of_other = other.host();
    of_other.ca = fleet.path("ca.pem");
    let guest = fleet.guest();
    let says = format!("its certificate is of no authority in {}", guest.ca.display());
    let mut fleet = Some(fleet);
    for (identity, guest_says) in [
        (of_other, says.as_str()),
        (other_name, "its certificate is for another machine"),
        (other_purpose, "see its extended key usage"),
    ] {
        let scene = Scene::with_host(fleet.take().unwrap(), &identity);
        let (mut running, socket) = scene.guest_that_expects(&guest, HOST);
        assert!(is_hung_up_on(&socket), "{guest_says}");
        running.await_log(guest_says);
        assert!(!scene.is_reached(), "{guest_says}");
        fleet = Some(scene.fleet);
    }
}

#[test]
fn garbage_ends_the_connection_that_brings_it_and_no_other() {
    let mut scene = Scene::new();
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    // A client that speaks no TLS; a record that announces more than there may be; the beginning of a handshake, then something else.
    let hello = [&[0x16, 3, 1, 0, 4, 1, 0, 0xff, 0xff][..], &[0; 64]].concat();
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x16, 3, 1, 0xff, 0xff, 1],
        &[0xff; 4096],
        &hello,
    ] {
        let mut stranger = TcpStream::connect(&scene.address).unwrap();
        stranger.write_all(garbage).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = Vec::new();
        let end = stranger.read_to_end(&mut answer);
        let is_over = end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(is_over, "{garbage:x?} is not refused at once");
        assert!(answer.len() < 16, "an alert at most: {answer:x?}");
    }
    assert!(!scene.is_reached());
    scene.host.await_log("it does not speak TLS 1.3 as it should");
    assert_served(&scene, &mut old, &socket);
}

#[test]
fn a_crowd_that_never_finishes_its_handshakes_costs_little_and_keeps_no_guest_out() {
    let scene = Scene::new();
    let (_guest, socket) = scene.guest();
    let mut old = scene.connect(&socket);
    let [before, descriptors] = [scene.host.resident_kb() as usize, scene.host.descriptors()];
    let mut crowd = Vec::new();
    for number in 0..500 {
        let mut stranger = TcpStream::connect(&scene.address).unwrap();
        if number % 2 == 0 {
            // A record that never ends. Its place may be another's by now.
            let _ = stranger.write_all(&[&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc][..], &[3; 8000]].concat());
        }
        crowd.push(stranger);
    }
    assert_served(&scene, &mut old, &socket);
    let grown = (scene.host.resident_kb() as usize).saturating_sub(before);
    assert!(grown < 8192, "{grown} KB for a crowd");
    let descriptors = scene.host.descriptors() - descriptors;
    assert!(descriptors < 80, "{descriptors} descriptors for a crowd");
    assert!(
        scene.host.log().contains("so many strangers come"),
        "{}",
        scene.host.log()
    );
    // Strangers cannot multiply complaints.
    assert!(scene.host.log().lines().count() < 10, "{}", scene.host.log());
    assert!(!scene.is_reached());
}

/// Strangers that the host's end has at a time.
const STRANGERS: usize = 64;

/// Connects to the host's end from another address of this machine.
fn connect_from(source: Ipv4Addr, address: &str) -> TcpStream {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrV4::new(source, 0)).unwrap();
    net::connect(&socket, &address.parse::<SocketAddrV4>().unwrap()).unwrap();
    TcpStream::from(socket)
}

#[test]
fn a_crowd_from_one_address_drives_out_nobody_from_another() {
    let scene = Scene::new();
    let mut elsewhere = TcpStream::connect(&scene.address).unwrap();
    let crowd_address = Ipv4Addr::new(127, 0, 0, 2);
    let mut crowd: Vec<TcpStream> = (0..100)
        .map(|_| connect_from(crowd_address, &scene.address))
        .collect();
    // Once the newest of the crowd that cannot stay is gone, so is everybody who came before it and had to go.
    let gone = crowd.len() - STRANGERS;
    crowd[gone].set_read_timeout(Some(PATIENCE)).unwrap();
    let left = crowd[gone].read(&mut [0]).map_err(|error| error.kind());
    assert_ne!(left, Err(ErrorKind::WouldBlock), "nobody was hung up on");
    elsewhere.set_nonblocking(true).unwrap();
    let still_there = elsewhere.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(still_there, Err(ErrorKind::WouldBlock));
}

#[test]
fn one_that_says_nothing_or_a_byte_now_and_then_has_ten_seconds() {
    let mut scene = Scene::new();
    let begun = Instant::now();
    let mut silent = TcpStream::connect(&scene.address).unwrap();
    let mut slow = TcpStream::connect(&scene.address).unwrap();
    slow.write_all(&[0x16, 3, 1, 0x40, 0]).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let ended = loop {
        match slow.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(begun.elapsed() < PATIENCE, "it goes on for ever");
                let _ = slow.write(&[1]);
            }
            _ => break begun.elapsed(),
        }
    };
    assert!(ended > Duration::from_secs(9), "{ended:?}");
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    scene.host.await_log("it does not finish the handshake");
}
