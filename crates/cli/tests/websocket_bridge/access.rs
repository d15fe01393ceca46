//! Access: which pages may connect, and how many.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;

use tungstenite::Message;

use crate::support::{Program, Programs, Side, System};
use crate::websocket_bridge::bridge::*;
use crate::websocket_bridge::browser::*;

#[test]
fn pages_of_the_ui_are_let_in_and_others_are_not() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let mut bridge = Bridge::start_with(&system, |command| {
        command.arg("--http-additional-cors-origins=http://one.example,http://two.example:8080");
    });
    for (path, headers, expected) in [
        ("/traced", &[("Origin", "https://evil.example")][..], 403),
        ("/traced", &[("Origin", "null")], 403),
        ("/traced", &[], 403),
        ("/nothing", &[("Origin", UI)], 404),
        ("/", &[("Origin", UI)], 404),
    ] {
        let status = bridge
            .open(path, headers)
            .map(|_| 101)
            .unwrap_or_else(|status| status);
        assert_eq!(status, expected, "{path} {headers:?}");
    }
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "HTTP/1.1 404 "),
        (
            "GET /traced HTTP/1.1\r\nOrigin: https://ui.perfetto.dev\r\n\r\n",
            "HTTP/1.1 404 ",
        ),
        (
            "OPTIONS /traced HTTP/1.1\r\nOrigin: https://ui.perfetto.dev\r\n\r\n",
            "HTTP/1.1 204 ",
        ),
        (
            "OPTIONS /traced HTTP/1.1\r\nOrigin: https://evil.example\r\n\r\n",
            "HTTP/1.1 403 ",
        ),
        (
            "GET /traced HTTP/1.1\r\nOrigin: https://ui.perfetto.dev\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 12\r\n\r\n",
            "HTTP/1.1 505 ",
        ),
        ("\x16\x03\x01 no HTTP\r\n\r\n", "HTTP/1.1 400 "),
        ("", ""),
    ] {
        let mut stream = bridge.connect();
        stream.write_all(request.as_bytes()).unwrap();
        // Closes the sending direction, so that the bridge expects no more, whatever the request.
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(expected), "{request}: {answer}");
    }
    let endless = format!("GET /traced HTTP/1.1\r\nX: {}", "x".repeat(100_000));
    let answer = bridge.ask(endless.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(is_nobody_waiting(&listener), "one of those has got through");

    let line = bridge.next_line();
    assert!(
        line.contains("https://evil.example") && line.contains("--http-additional-cors-origins"),
        "{line}"
    );

    for origin in [
        UI,
        "http://localhost:10000",
        "http://127.0.0.1:10000",
        "http://one.example",
        "http://two.example:8080",
    ] {
        // Chromium offers this extension. If the bridge accepted it, the bytes could not be understood.
        let offer = (
            "Sec-WebSocket-Extensions",
            "permessage-deflate; client_max_window_bits",
        );
        let mut page = bridge
            .open("/traced", &[("Origin", origin), offer])
            .expect(origin);
        let service = echo(accept(&listener));
        page.send(Message::Binary(origin.as_bytes().to_vec().into()))
            .unwrap();
        assert_eq!(receive(&mut page, origin.len()).0, origin.as_bytes());
        page.close(None).unwrap();
        assert_eq!(closed(&mut page), None);
        service.join().unwrap();
    }
}

#[test]
fn a_browser_that_says_nothing_has_little_time_and_keeps_nobody_out() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let bridge = Bridge::start(&system);
    let mut silent: Vec<TcpStream> = (0..200).map(|_| bridge.connect()).collect();
    silent[199].write_all(b"GET /traced HTTP/1.1\r\n").unwrap();
    // The oldest silent connection makes room for the page.
    let mut page = bridge.page();
    let service = echo(accept(&listener));
    for stream in silent {
        assert!(hung_up(stream));
    }
    page.send(Message::Binary(vec![1].into())).unwrap();
    receive(&mut page, 1);
    drop(page);
    service.join().unwrap();
}

#[test]
fn there_are_so_many_sessions_and_no_more() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let mut bridge = Bridge::start(&system);
    let mut pages: Vec<_> = (0..32).map(|_| (bridge.page(), accept(&listener))).collect();
    assert_eq!(bridge.open("/traced", &[("Origin", UI)]).err(), Some(503));
    let line = bridge.next_line();
    assert!(line.contains("close tabs"), "{line}");
    let (page, service) = pages.pop().unwrap();
    drop(page);
    assert!(hung_up(service));
    bridge.page();
}

#[test]
fn without_a_service_pages_are_answered_503_until_there_is_one() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let mut bridge = Bridge::start(&system);
    assert_eq!(bridge.open("/traced", &[("Origin", UI)]).err(), Some(503));
    let line = bridge.next_line();
    assert!(line.contains("start traced"), "{line}");
    system.start(Side::Ours, Program::Traced);
    bridge.page();
}

#[test]
fn for_want_of_descriptors_browsers_wait() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let listener = listen(&system);
    let mut command = system.command(Path::new("sh"), "unused.log");
    let program = env!("CARGO_BIN_EXE_websocket_bridge");
    command.args(["-c", &format!("ulimit -n 16 && exec {program} --port=0")]);
    let mut bridge = Bridge::spawn(command);
    let silent: Vec<TcpStream> = (0..16).map(|_| bridge.connect()).collect();
    let line = bridge.next_line();
    assert!(line.contains("cannot accept a connection"), "{line}");
    let load = bridge.idle_load();
    assert!(
        load < IDLE,
        "it uses {load} of a processor to wait for descriptors"
    );
    drop(silent);
    let _page = bridge.page();
    accept(&listener);
}

#[test]
fn it_listens_on_loopback_only_and_on_all_of_it() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let bridge = Bridge::start(&system);
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // Without IPv6 there is no such table.
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, port) = fields[1].split_once(':').unwrap();
            let is_listening = fields[3] == "0A";
            if is_listening && u16::from_str_radix(port, 16) == Ok(bridge.port) {
                found.push(address.to_owned());
            }
        }
    }
    let mut expected = vec![format!(
        "{:08X}",
        u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets())
    )];
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        let words = Ipv6Addr::LOCALHOST.octets();
        let words = words
            .chunks(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
        expected.push(words.map(|word| format!("{word:08X}")).collect());
    }
    assert_eq!(found, expected);
}

#[test]
fn a_port_in_use_is_reported() {
    let programs = Programs::ours();
    let system = System::new(&programs);
    let bridge = Bridge::start(&system);
    let mut second = system.command(Path::new(env!("CARGO_BIN_EXE_websocket_bridge")), "second.log");
    let status = second.arg(format!("--port={}", bridge.port)).status().unwrap();
    let said = system.log("second.log");
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("is in use") && said.contains(&format!(":{}'", bridge.port)),
        "{said}"
    );
}
