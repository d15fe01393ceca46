//! Bytes pass both ways, in pieces of any size. A receiver that does not read holds up the sender.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::{Programs, System};
use crate::websocket_bridge::bridge::*;
use crate::websocket_bridge::browser::*;

#[test]
fn bytes_pass_both_ways_in_whatever_pieces() {
    let mut random = random();
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let mut page = bridge.page();
    let service = echo(accept(&listener));

    let data = random.bytes(3_000_000);
    let (mut wire, mut pings) = (Vec::new(), 0);
    let mut rest = data.as_slice();
    while !rest.is_empty() {
        // A message of several fragments, some of them empty, with pings between them.
        let fragments = 1 + random.below(4);
        for number in 0..fragments {
            let limit = [1, 2, 130, 70_000, 200_000][random.below(5)];
            let (piece, more) = rest.split_at(random.below(limit).min(rest.len()));
            rest = more;
            let opcode = if number == 0 { BINARY } else { CONTINUATION };
            let last = if number + 1 == fragments { FINAL } else { 0 };
            wire.extend(frame(opcode | last, piece));
            if random.below(3) == 0 {
                pings += 1;
                wire.extend(frame(FINAL | PING, b"still there?"));
            }
        }
    }
    let mut sender = page.get_ref().try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            let limit = [2, 20, 5_000, 100_000][random.below(4)];
            let (piece, more) = rest.split_at((1 + random.below(limit)).min(rest.len()));
            sender.write_all(piece).unwrap();
            rest = more;
        }
    });
    let (received, pongs) = receive(&mut page, data.len());
    assert!(received == data, "the bytes differ");
    sent.join().unwrap();
    // If pings come faster than they can be answered, only the last one is (RFC 6455, 5.5.3).
    assert!((1..=pings).contains(&pongs), "{pongs} of {pings}");
    page.send(Message::Ping(vec![7].into())).unwrap();
    while page.read().unwrap() != Message::Pong(vec![7].into()) {}
    drop(page);
    service.join().unwrap();
}

#[test]
fn services_on_the_network_and_the_debug_bridge_are_reached() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let on_network = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (traced, adb) = (on_network(), on_network());
    let bridge = Bridge::start_with(&system, |command| {
        let address = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        command.env("PERFETTO_CONSUMER_SOCK_NAME", address(&traced));
        command.env("ADB_SERVER_SOCKET", format!("tcp:{}", address(&adb)));
    });
    for (path, listener) in [("/traced", traced), ("/adb", adb)] {
        let mut page = bridge.open(path, &[("Origin", UI)]).unwrap();
        page.send(Message::Binary(path.as_bytes().to_vec().into()))
            .unwrap();
        await_readable(&listener);
        let (mut service, _) = listener.accept().unwrap();
        let mut question = vec![0; path.len()];
        service.read_exact(&mut question).unwrap();
        assert_eq!(question, path.as_bytes());
        service.write_all(b"answer").unwrap();
        assert_eq!(receive(&mut page, 6).0, b"answer");
        drop((service, listener));
        assert_eq!(closed(&mut page), Some(CloseCode::Away));
        assert_eq!(bridge.open(path, &[("Origin", UI)]).err(), Some(503), "{path}");
    }
}

#[test]
fn a_page_that_does_not_read_holds_up_the_service_and_nothing_else() {
    let mut random = random();
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let mut other = bridge.page();
    let other_service = echo(accept(&listener));
    let mut page = bridge.page();
    let mut service = accept(&listener);
    let before = bridge.peak_memory();

    service.set_nonblocking(true).unwrap();
    let sent = write_until_stuck(&mut service, || random.bytes(100_000));
    assert!(!sent.is_empty());
    // The other direction is open, and so are other connections.
    page.send(Message::Binary(b"stop".to_vec().into())).unwrap();
    await_readable(&service);
    let mut stop = [0; 4];
    service.read_exact(&mut stop).unwrap();
    assert_eq!(&stop, b"stop");
    for _ in 0..10 {
        other.send(Message::Binary(vec![1; 1000].into())).unwrap();
        receive(&mut other, 1000);
    }
    let grown = bridge.peak_memory() - before;
    assert!(
        grown < 4 * 1024,
        "it took {grown} KB to keep {} bytes",
        sent.len()
    );

    // The service hangs up, and its data still come out, however late.
    drop(service);
    let load = bridge.idle_load();
    assert!(load < IDLE, "waiting for the page, it uses {load} of a processor");
    assert!(receive(&mut page, sent.len()).0 == sent, "the bytes differ");
    assert_eq!(closed(&mut page), Some(CloseCode::Away));
    drop(other);
    other_service.join().unwrap();
}

#[test]
fn a_service_that_does_not_read_holds_up_the_page() {
    let mut random = random();
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let page = bridge.page();
    let mut service = accept(&listener);
    let before = bridge.peak_memory();

    let mut socket = page.get_ref().try_clone().unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut sent = Vec::new();
    write_until_stuck(&mut socket, || {
        let bytes = random.bytes(100_000);
        sent.extend_from_slice(&bytes);
        frame(FINAL | BINARY, &bytes)
    });
    let grown = bridge.peak_memory() - before;
    assert!(
        grown < 4 * 1024,
        "it took {grown} KB to keep up to {} bytes",
        sent.len()
    );
    // When the service reads, data come out, and further data move up.
    let mut received = vec![0; 1_000_000];
    service.read_exact(&mut received).unwrap();
    assert!(received == sent[..received.len()], "the bytes differ");
    write_until_stuck(&mut socket, || vec![0; 1]);
    // A browser that dies now is noticed, although nothing is read from it.
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop((page, socket));
    assert!(hung_up(service));
}

#[test]
fn a_message_without_end_does_not_hold_up_others() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let endless = bridge.page();
    let _service_of_endless = accept(&listener);
    let mut other = bridge.page();
    let service = echo(accept(&listener));

    /// Sets the flag even if the test fails.
    struct SetAtTheEnd<'a>(&'a AtomicBool);
    impl Drop for SetAtTheEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetAtTheEnd(&enough);
        scope.spawn(|| {
            let mut socket = endless.get_ref();
            socket.write_all(&frame(BINARY, &[])).unwrap();
            let nothing = frame(CONTINUATION, &[]).repeat(10_000);
            while !enough.load(Ordering::Relaxed) {
                if let Err(error) = socket.write_all(&nothing) {
                    let is_over = enough.load(Ordering::Relaxed);
                    assert!(is_over, "its session has ended: {error}");
                }
            }
        });
        for _ in 0..50 {
            other.send(Message::Binary(b"hello".to_vec().into())).unwrap();
            receive(&mut other, 5);
        }
    });
    drop(other);
    service.join().unwrap();
}
