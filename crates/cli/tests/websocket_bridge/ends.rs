//! Ends: of sessions that break the rules, and of the bridge.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tungstenite::protocol::frame::coding::CloseCode;

use crate::support::{PATIENCE, Programs, System};
use crate::websocket_bridge::bridge::*;
use crate::websocket_bridge::browser::*;

#[test]
fn a_page_that_breaks_the_rules_is_told_and_its_session_ends() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let mut unmasked = frame(FINAL | BINARY, b"plain");
    unmasked[1] &= 0x7f;
    let mut large = frame(FINAL | BINARY, &[]);
    large.splice(1..2, [0x80 | 127].into_iter().chain((1_u64 << 40).to_be_bytes()));
    let fragments = [
        frame(BINARY, &[0; 700_000]),
        frame(FINAL | CONTINUATION, &[0; 700_000]),
    ];
    for (what, bytes, expected) in [
        ("text", frame(FINAL | TEXT, b"hello"), CloseCode::Unsupported),
        (
            "text that is none",
            frame(FINAL | TEXT, b"\xff"),
            CloseCode::Unsupported,
        ),
        ("not masked", unmasked, CloseCode::Protocol),
        ("too large", large, CloseCode::Size),
        ("too large in fragments", fragments.concat(), CloseCode::Size),
        (
            "compressed",
            frame(FINAL | 0x40 | BINARY, b"x"),
            CloseCode::Protocol,
        ),
        ("unknown opcode", frame(FINAL | 0x3, b"x"), CloseCode::Protocol),
        (
            "no beginning",
            frame(FINAL | CONTINUATION, b"x"),
            CloseCode::Protocol,
        ),
        ("long ping", frame(FINAL | PING, &[0; 126]), CloseCode::Protocol),
    ] {
        let mut page = bridge.page();
        let service = accept(&listener);
        let socket = page.get_mut();
        // More data than the bridge reads, so that closing with unread data would reset the connection.
        socket.write_all(&bytes).unwrap();
        let _ = socket.write_all(&frame(FINAL | BINARY, &[0; 50_000]));
        assert_eq!(closed(&mut page), Some(expected), "{what}");
        drop(page);
        let mut got = Vec::new();
        let mut service = service;
        service.read_to_end(&mut got).unwrap();
        assert!(got.is_empty(), "{what}: {} bytes got through", got.len());
    }
    // None of that has harmed the bridge.
    bridge.page();
}

#[test]
fn a_page_that_goes_on_talking_after_the_end_is_hung_up_on() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let mut page = bridge.page();
    let service = accept(&listener);
    let began = Instant::now();
    while page.get_mut().write_all(&frame(FINAL | TEXT, b"hello")).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it may talk for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(hung_up(service));
}

#[test]
fn a_signal_ends_it_and_pages_are_told() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    for signal in [Signal::INT, Signal::TERM] {
        let mut bridge = Bridge::start(&system);
        let mut page = bridge.page();
        let service = accept(&listener);
        bridge.running.signal(signal);
        assert_eq!(closed(&mut page), Some(CloseCode::Away));
        assert!(hung_up(service));
        assert_eq!(bridge.running.wait(PATIENCE).unwrap().code(), Some(0));
    }
}
