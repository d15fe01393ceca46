//! Data that passes through a tunnel between ends that know each other.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::ends::{PATIENCE, Scene, await_that, free_address, start_host};

/// Bytes that do not repeat soon.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let next = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    next.take(count).collect()
}

#[test]
fn bytes_pass_both_ways_and_each_direction_ends_on_its_own() {
    let scene = Scene::new();
    let (_guest, socket) = scene.guest();
    for end_of_client in [true, false] {
        let (mut client, mut served) = scene.connect(&socket);
        let mut buffer = [0; 5];
        client.write_all(b"there").unwrap();
        served.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"there");
        served.write_all(b"back!").unwrap();
        client.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"back!");
        // The last words go before the end, and the other direction goes on.
        let mut rest = Vec::new();
        if end_of_client {
            client.write_all(b"last").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            served.read_to_end(&mut rest).unwrap();
            served.write_all(b"after").unwrap();
            drop(served);
            client.read_exact(&mut buffer).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        } else {
            served.write_all(b"last").unwrap();
            served.shutdown(Shutdown::Write).unwrap();
            client.read_to_end(&mut rest).unwrap();
            client.write_all(b"after").unwrap();
            drop(client);
            served.read_exact(&mut buffer).unwrap();
            assert_eq!(served.read(&mut [0]).unwrap(), 0);
        }
        assert_eq!((&rest[..], &buffer), (&b"last"[..], b"after"));
    }
}

#[test]
fn many_bytes_pass_both_ways_at_once_and_cost_no_more_memory_than_few() {
    let scene = Scene::new();
    let (guest, socket) = scene.guest();
    let sent = bytes(32 << 20);
    let (client, served) = scene.connect(&socket);
    let before = [guest.resident_kb(), scene.host.resident_kb()];
    thread::scope(|scope| {
        let (mut up, mut down) = (&client, &served);
        scope.spawn(|| {
            let mut client = &client;
            client.write_all(&sent).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            let mut served = &served;
            served.write_all(&sent).unwrap();
            served.shutdown(Shutdown::Write).unwrap();
        });
        let received = scope.spawn(move || {
            let mut all = Vec::new();
            up.read_to_end(&mut all).unwrap();
            all
        });
        let mut all = Vec::new();
        down.read_to_end(&mut all).unwrap();
        assert!(all == sent, "{} bytes up", all.len());
        let all = received.join().unwrap();
        assert!(all == sent, "{} bytes down", all.len());
    });
    let after = [guest.resident_kb(), scene.host.resident_kb()];
    assert!(
        after
            .iter()
            .zip(before)
            .all(|(after, before)| *after < before + 4096),
        "{before:?} KB before, {after:?} after"
    );
}

#[test]
fn a_service_that_does_not_read_stops_its_client_and_nobody_else() {
    let scene = Scene::new();
    let (guest, socket) = scene.guest();
    let (mut client, mut served) = scene.connect(&socket);
    client
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let before = guest.resident_kb();
    let mut sent = 0;
    while let Ok(count) = client.write(&[1; 65536]) {
        sent += count;
        assert!(sent < 1 << 30, "it is never stopped");
    }
    assert!(guest.resident_kb() < before + 4096);
    let (mut other, mut other_served) = scene.connect(&socket);
    other.write_all(b"x").unwrap();
    other_served.read_exact(&mut [0]).unwrap();
    drop(client);
    let mut all = Vec::new();
    served.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), sent);
}

#[test]
fn the_last_words_of_a_client_that_has_not_read_reach_the_service_and_the_other_way_round() {
    let scene = Scene::new();
    let (_guest, socket) = scene.guest();
    let (mut client, mut served) = scene.connect(&socket);
    // More bytes than all sockets on the way hold.
    served
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while served.write(&[1; 65536]).is_ok() {}
    client.write_all(b"last words").unwrap();
    drop(client);
    let mut all = Vec::new();
    served.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words");

    let (mut client, mut served) = scene.connect(&socket);
    client
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while client.write(&[1; 65536]).is_ok() {}
    served.write_all(b"last words").unwrap();
    served.shutdown(Shutdown::Both).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last words");
}

#[test]
fn clients_come_again_when_the_hosts_end_or_the_service_does() {
    let mut scene = Scene::new();
    let identity = scene.fleet.host();
    let (mut guest, socket) = scene.guest();
    drop(scene.connect(&socket));
    scene.host.signal("-KILL");
    scene.host.wait();
    // As if nobody listened.
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    guest.await_log("the host's end at");
    let service = scene.service.local_addr().unwrap().to_string();
    scene.host = start_host(scene.folder.path(), &scene.address, &service, &identity);
    drop(scene.connect(&socket));
}

#[test]
fn a_service_that_is_not_there_is_named_and_its_clients_are_hung_up_on() {
    let mut scene = Scene::new();
    let address = free_address();
    scene.host.signal("-KILL");
    scene.host.wait();
    scene.address = free_address();
    scene.host = start_host(scene.folder.path(), &scene.address, &address, &scene.fleet.host());
    let (guest, socket) = scene.guest();
    // Otherwise it might hang up before the client has said something.
    guest.signal("-STOP");
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"hello").unwrap();
    guest.signal("-CONT");
    assert!(matches!(client.read(&mut [0]), Ok(0)));
    scene.host.await_log(&format!(
        "the service at {address}: cannot connect: Connection refused"
    ));
}

#[test]
fn an_end_that_is_told_to_end_passes_on_what_its_clients_have_sent() {
    for stopped in ["guest", "host"] {
        let mut scene = Scene::new();
        let (mut guest, socket) = scene.guest();
        let (mut client, mut served) = scene.connect(&socket);
        let sent = bytes(100_000);
        let end = if stopped == "guest" {
            &mut guest
        } else {
            &mut scene.host
        };
        // All of this lies in a socket of it, when it learns that it is to end.
        end.signal("-STOP");
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        if stopped == "host" {
            // It is there once the guest's end has nothing left to send.
            await_that("the guest's end has sent everything", || {
                unread(&scene.address) > sent.len() as u64
            });
        }
        let end = if stopped == "guest" {
            &mut guest
        } else {
            &mut scene.host
        };
        end.signal("-TERM");
        end.signal("-CONT");
        let mut all = Vec::new();
        served.read_to_end(&mut all).unwrap();
        assert!(all == sent, "{stopped}: {} bytes", all.len());
        drop(served);
        assert!(end.wait().success(), "{stopped}");
    }
}

/// The bytes that wait to be read on connections to this address, as `/proc/net/tcp` has them.
fn unread(address: &str) -> u64 {
    let address: std::net::SocketAddrV4 = address.parse().unwrap();
    let local = format!(
        "{:08X}:{:04X}",
        u32::from_ne_bytes(address.ip().octets()),
        address.port()
    );
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let connected = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields.get(1) == Some(&&local[..]) && fields.get(3) != Some(&"0A");
        let (_, unread) = fields.get(4).filter(|_| is_ours)?.split_once(':')?;
        u64::from_str_radix(unread, 16).ok()
    });
    connected.sum()
}

#[test]
fn only_its_owner_reaches_a_guests_end_unless_somebody_says_otherwise() {
    let scene = Scene::new();
    let (mut guest, socket) = scene.guest();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    guest.signal("-TERM");
    assert!(guest.wait().success());
    assert!(!socket.exists());
}

#[test]
fn both_ends_give_up_their_rights_before_anybody_comes() {
    let scene = Scene::new();
    let (guest, _) = scene.guest();
    for end in [&guest, &scene.host] {
        // All daemons keep CAP_SYS_NICE where they need it to raise their priority and root has it.
        let kept = 1 << 23;
        for name in ["CapEff", "CapPrm"] {
            let held = u64::from_str_radix(&end.status(name), 16).unwrap();
            assert_eq!(held & !kept, 0, "{name}\n{}", end.log());
        }
        for (name, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
            assert_eq!(end.status(name), expected, "{name}\n{}", end.log());
        }
    }
}
