//! `ferretto open` over plain sockets.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::process::Signal;

use super::{SMALL, Serving, ferretto, free_port, said_by, trace_with};
use crate::support::{PATIENCE, write_script};

pub(super) const UI: &str = "https://ui.perfetto.dev";

pub(super) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("ferretto-test-")
        .tempdir()
        .unwrap()
}

pub(super) fn trace(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("t.pftrace");
    std::fs::write(&path, bytes).unwrap();
    path
}

pub(super) fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends a request as a browser does.
pub(super) fn ask(port: u16, method: &str, path: &str, host: &str, origin: &str) -> TcpStream {
    let mut stream = connect(port);
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nAccept-Encoding: gzip\r\nRange: bytes=1-2\r\n\r\n"
    )
    .unwrap();
    stream
}

pub(super) fn ask_as_ui(port: u16, method: &str, path: &str) -> TcpStream {
    ask(port, method, path, &format!("127.0.0.1:{port}"), UI)
}

/// Reads the head of an answer.
pub(super) fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads head and body of an answer that ends with its connection.
pub(super) fn answer(mut stream: TcpStream) -> (String, Vec<u8>) {
    let head = head(&mut stream);
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    (head, body)
}

pub(super) fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Fetches the trace, which ends the server; returns its messages.
pub(super) fn fetch(serving: Serving, path: &str, expected: &[u8]) -> String {
    let (head, body) = answer(ask_as_ui(serving.port(), "GET", path));
    assert_eq!((status(&head), body.as_slice()), (200, expected), "{head}");
    let (status, said) = serving.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.ends_with("; the browser has the trace now\n"), "{said}");
    said
}

/// Asserts that it serves nothing, and gives a reason with these words.
pub(super) fn assert_refused(arguments: &[&str], words: &str) {
    let output = refused(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(1), 0),
        "{said}"
    );
    assert!(
        said.starts_with("ferretto open: ") && said.contains(words),
        "{words}: {said}"
    );
}

/// Runs one that has nothing to serve.
fn refused(arguments: &[&str]) -> Output {
    ferretto("open")
        .args(["-n", "--port", "0"])
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_trace_is_fetched_once_and_then_it_is_over() {
    let folder = folder();
    let payload: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let bytes = trace_with(&payload);
    let serving = Serving::start(&trace(&folder, &bytes), |command| {
        command.arg("--no-open-browser");
    });
    let port = serving.port();
    assert_eq!(
        serving.address,
        format!("{UI}/#!/?url=http://127.0.0.1:{port}/t.pftrace&referrer=open_trace_in_ui")
    );
    // Requests that do not fetch the trace do not count.
    for (method, code) in [("HEAD", 200), ("OPTIONS", 204), ("POST", 405)] {
        let (head, body) = answer(ask_as_ui(port, method, "/t.pftrace"));
        assert_eq!((status(&head), body.len()), (code, 0), "{head}");
        assert!(
            head.contains(&format!("\r\nAccess-Control-Allow-Origin: {UI}\r\n")),
            "{head}"
        );
        assert_eq!(
            head.contains(&format!("\r\nContent-Length: {}\r\n", bytes.len())),
            method == "HEAD",
            "{head}"
        );
    }
    let said = fetch(serving, "/t.pftrace", &bytes);
    assert!(
        said.contains("serving t.pftrace (2.9 MiB) on 127.0.0.1:"),
        "{said}"
    );
}

#[test]
fn upstreams_flags_work_and_so_do_strange_names() {
    let folder = folder();
    let path = folder.path().join("ä #1? 100%.pftrace");
    std::fs::write(&path, SMALL).unwrap();
    let child = ferretto("open")
        .args(["-n", "--port", "0", "--origin", "http://localhost:10000/", "-i"])
        .arg(&path)
        .spawn()
        .unwrap();
    let serving = Serving::of(child);
    assert!(
        serving
            .address
            .starts_with("http://localhost:10000/#!/?url=http://127.0.0.1:")
            && serving
                .address
                .ends_with("/%C3%A4%20%25231%253F%20100%2525.pftrace&referrer=open_trace_in_ui"),
        "{}",
        serving.address
    );
    let port = serving.port();
    let path = "/%C3%A4%20%231%3F%20100%25.pftrace";
    let (head, _) = answer(ask_as_ui(port, "GET", path));
    assert_eq!(status(&head), 403, "the public UI may not have it");
    let (head, body) = answer(ask(
        port,
        "GET",
        path,
        &format!("localhost:{port}"),
        "http://localhost:10000",
    ));
    assert_eq!((status(&head), body), (200, SMALL.to_vec()));
    assert!(serving.end().0.success());
}

#[test]
fn strangers_get_nothing_and_end_nothing() {
    let folder = folder();
    let serving = Serving::start(&trace(&folder, SMALL), |_| {});
    let port = serving.port();
    let here = format!("127.0.0.1:{port}");
    for (method, path, host, origin, code) in [
        ("GET", "/t.pftrace", here.as_str(), "https://evil.example", 403),
        ("GET", "/t.pftrace", &here, "https://evil.example", 403),
        ("GET", "/t.pftrace", &here, "null", 403),
        ("GET", "/t.pftrace", "rebound.example", UI, 403),
        ("GET", "/", &here, UI, 404),
        ("GET", "/../t.pftrace", &here, UI, 404),
        ("GET", "/etc/passwd", &here, UI, 404),
        ("POST", "/status", &here, UI, 405),
    ] {
        let (head, body) = answer(ask(port, method, path, host, origin));
        assert_eq!(
            (status(&head), body.len()),
            (code, 0),
            "{method} {path} {host} {origin}"
        );
        assert_eq!(
            head.contains("Access-Control-Allow-Origin"),
            code != 403,
            "{head}"
        );
    }
    let mut garbage = connect(port);
    garbage.write_all(b"\x16\x03\x01 hello\r\n\r\n").unwrap();
    assert_eq!(status(&answer(garbage).0), 400);

    let said = fetch(serving, "/t.pftrace", SMALL);
    assert_eq!(
        said.matches("refused a page of https://evil.example: ").count(),
        1,
        "{said}"
    );
    assert!(
        said.contains("refused a request for the host rebound.example: "),
        "{said}"
    );
}

#[test]
fn only_this_machine_can_connect() {
    let folder = folder();
    let serving = Serving::start(&trace(&folder, SMALL), |_| {});
    // All of 127/8 is this machine, but the server listens on only one address of it.
    let other = TcpStream::connect((Ipv4Addr::new(127, 0, 0, 2), serving.port()));
    assert_eq!(other.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    fetch(serving, "/t.pftrace", SMALL);
}

#[test]
fn silent_connections_hold_up_no_others() {
    let folder = folder();
    let bytes = trace_with(&vec![7; 10 << 20]);
    let serving = Serving::start(&trace(&folder, &bytes), |_| {});
    let port = serving.port();
    // A client that does not read its answer, one that does not complete its request, and many that send nothing.
    let unread = ask_as_ui(port, "GET", "/t.pftrace");
    let mut half = connect(port);
    half.write_all(b"GET /t.pfrace HTTP/1.1\r\nHost: ").unwrap();
    let silent: Vec<_> = (0..200).map(|_| connect(port)).collect();
    let said = fetch(serving, "/t.pftrace", &bytes);
    assert!(!said.contains("hung up"), "{said}");
    drop((unread, half, silent));
}

#[test]
fn silent_connections_have_little_time() {
    let folder = folder();
    let serving = Serving::start(&trace(&folder, SMALL), |_| {});
    let silent = connect(serving.port());
    let mut half = connect(serving.port());
    half.write_all(b"GET /t.pfrace HTTP/1.1\r\nHost: ").unwrap();
    for mut stream in [silent, half] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    fetch(serving, "/t.pftrace", SMALL);
}

#[test]
fn there_are_so_many_answers_at_a_time_and_no_more() {
    let folder = folder();
    let bytes = trace_with(&vec![7; 50 << 20]);
    let serving = Serving::start(&trace(&folder, &bytes), |_| {});
    let ask = || {
        let mut stream = ask_as_ui(serving.port(), "GET", "/t.pftrace");
        (status(&head(&mut stream)), stream)
    };
    let mut unread: Vec<_> = (0..32).map(|_| ask()).collect();
    assert!(unread.iter().all(|(status, _)| *status == 200));
    assert_eq!(ask().0, 503);
    unread.pop();
    while ask().0 == 503 {}
    drop(unread);
    serving.signal(Signal::TERM);
    let (_, said) = serving.end();
    assert!(said.contains("the browser hung up after "), "{said}");
}

#[test]
fn a_browser_that_hangs_up_may_come_again() {
    let folder = folder();
    let bytes = trace_with(&vec![7; 50 << 20]);
    let serving = Serving::start(&trace(&folder, &bytes), |_| {});
    let mut stream = ask_as_ui(serving.port(), "GET", "/t.pftrace");
    head(&mut stream);
    drop(stream);
    let said = fetch(serving, "/t.pftrace", &bytes);
    assert!(said.contains("the browser hung up after "), "{said}");
    assert!(said.contains(" of 50.0 MiB; still serving"), "{said}");
}

#[test]
fn a_client_that_only_writes_and_then_reads_is_served() {
    let folder = folder();
    let serving = Serving::start(&trace(&folder, SMALL), |_| {});
    let stream = ask_as_ui(serving.port(), "GET", "/t.pftrace");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(stream).1, SMALL);
    assert!(serving.end().0.success());
}

#[test]
fn traces_are_larger_than_memory_should_be() {
    const SIZE: u64 = (4 << 30) + (1 << 20);
    let folder = folder();
    let path = folder.path().join("t.pftrace");
    let mut file = File::create(&path).unwrap();
    file.write_all(SMALL).unwrap();
    file.set_len(SIZE).unwrap();
    file.seek(SeekFrom::Start(SIZE - 3)).unwrap();
    file.write_all(b"end").unwrap();
    let serving = Serving::start(&path, |_| {});
    let mut stream = ask_as_ui(serving.port(), "GET", "/t.pftrace");
    assert!(head(&mut stream).contains(&format!("\r\nContent-Length: {SIZE}\r\n")));

    let mut buffer = vec![0; 1 << 20];
    let mut last = [0; 3];
    let mut length = 0;
    let mut peak = None;
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        length += count as u64;
        for byte in &buffer[count.saturating_sub(3)..count] {
            last = [last[1], last[2], *byte];
        }
        if length > SIZE / 2 && peak.is_none() {
            let status = std::fs::read_to_string(format!("/proc/{}/status", serving.process.pid())).unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))
                .unwrap();
            peak = Some(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap());
        }
    }
    assert_eq!((length, &last), (SIZE, b"end"));
    assert!(peak.is_some_and(|kib| kib < 64 << 10), "{peak:?} KiB");
    assert!(serving.end().0.success());
}

#[test]
fn a_file_that_shrinks_meanwhile_is_not_passed_off_as_whole() {
    const SIZE: u64 = 100 << 20;
    let folder = folder();
    let path = folder.path().join("t.pftrace");
    let mut file = File::create(&path).unwrap();
    file.write_all(SMALL).unwrap();
    file.set_len(SIZE).unwrap();
    let serving = Serving::start(&path, |_| {});
    let mut stream = ask_as_ui(serving.port(), "GET", "/t.pftrace");
    // The server cannot be far ahead of a reader that has read only the head.
    head(&mut stream);
    file.set_len(5).unwrap();
    let mut got = Vec::new();
    // The connection may be reset, or end.
    let _ = stream.read_to_end(&mut got);
    assert!((got.len() as u64) < SIZE, "{} bytes", got.len());
    let said = fetch(serving, "/t.pftrace", &[SMALL, &[0]].concat());
    assert!(said.contains("became shorter while it was fetched"), "{said}");
}

#[test]
fn a_taken_port_is_reported_with_its_process() {
    let folder = folder();
    let path = trace(&folder, SMALL);
    let port = free_port();
    let serving = Serving::start_at(port, &path, |_| {});
    let output = ferretto("open")
        .arg(&path)
        .args(["-n", "-p", &port.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(1), 0),
        "{said}"
    );
    let expected = format!("port {port} is taken by open (pid {}): ", serving.process.pid());
    assert!(said.contains(&expected), "{said}");
    fetch(serving, "/t.pftrace", SMALL);
    // The port is free again at once, whatever connections there were.
    let again = Serving::start_at(port, &path, |_| {});
    fetch(again, "/t.pftrace", SMALL);
}

#[test]
fn signals_end_it() {
    let folder = folder();
    let path = trace(&folder, SMALL);
    for (signal, words) in [
        (Signal::INT, "ended by Ctrl-C before the trace was fetched\n"),
        (Signal::TERM, "told to end before the trace was fetched\n"),
    ] {
        let serving = Serving::start(&path, |_| {});
        serving.signal(signal);
        let (status, said) = serving.end();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.ends_with(words), "{said}");
    }
}

#[test]
fn an_unservable_file_is_reported_at_once() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("empty"), "").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for (name, words) in [
        ("missing", "No such file"),
        ("empty", "is empty"),
        ("pipe", "save a trace that comes out of a pipe first"),
        (".", "is not a file"),
    ] {
        assert_refused(&[&path(name)], words);
    }
    for nonsense in [
        &[][..],
        &["a", "b"],
        &["a", "--origin", "ui"],
        &["a", "--port", "x"],
    ] {
        assert_eq!(refused(nonsense).status.code(), Some(2), "{nonsense:?}");
    }
}

#[test]
fn over_ssh_the_tunnels_command_is_printed() {
    let folder = folder();
    let path = trace(&folder, SMALL);
    let port = free_port();
    let serving = Serving::start_at(port, &path, |command| {
        command
            .env("SSH_CONNECTION", "192.0.2.7 51234 192.0.2.1 2222")
            .env("USER", "maria");
    });
    // The near end of the tunnel.
    assert_eq!(serving.port(), 9001);
    let (head, _) = answer(ask(port, "GET", "/t.pftrace", "127.0.0.1:9001", UI));
    assert_eq!(status(&head), 200);
    let (status, said) = serving.end();
    assert!(status.success());
    let line = format!("\n    ssh -L 9001:localhost:{port} -p 2222 maria@192.0.2.1\n");
    assert!(said.contains(&line), "{said}");
}

/// Makes a folder with an `xdg-open` that notes its argument, and then runs `end`.
pub(super) fn opener(folder: &Path, end: &str) -> PathBuf {
    let script = folder.join("xdg-open");
    write_script(
        &script,
        &format!("#!/bin/sh\necho \"$@\" > {}/asked\n{end}\n", folder.display()),
    );
    folder.join("asked")
}

#[test]
fn a_browser_is_started_where_it_can_be_seen() {
    for (display, flag, words) in [
        (
            Some("DISPLAY"),
            None,
            "a browser should show it in a moment; if none does, visit\n",
        ),
        (
            Some("WAYLAND_DISPLAY"),
            None,
            "a browser should show it in a moment; if none does, visit\n",
        ),
        (
            None,
            None,
            "there is no display here to start a browser on; to see it, visit\n",
        ),
        (Some("DISPLAY"), Some("-n"), "open: to see it, visit\n"),
    ] {
        let folder = folder();
        let (path, pipe) = (trace(&folder, SMALL), folder.path().join("done"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let asked = opener(folder.path(), &format!("echo done > {}", pipe.display()));
        // A UI that is there, whether or not this machine reaches the public one.
        let ui = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let origin = format!("http://{}", ui.local_addr().unwrap());
        let serving = Serving::start(&path, |command| {
            command
                .args(flag)
                .args(["--origin", &origin])
                .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
            if let Some(variable) = display {
                command.env(variable, ":7");
            }
        });
        let started = display.is_some() && flag.is_none();
        if started {
            // Opening succeeds once the script writes.
            assert_eq!(std::fs::read_to_string(&pipe).unwrap(), "done\n");
            assert_eq!(
                std::fs::read_to_string(&asked).unwrap().trim_end(),
                serving.address
            );
        }
        let (head, _) = answer(ask(
            serving.port(),
            "GET",
            "/t.pftrace",
            &format!("127.0.0.1:{}", serving.port()),
            &origin,
        ));
        assert_eq!(status(&head), 200);
        let (_, said) = serving.end();
        assert!(said.contains(words), "{said}");
        assert_eq!(asked.exists(), started);
    }
}

#[test]
fn without_a_way_to_start_a_browser_the_address_is_enough() {
    let folder = folder();
    let path = trace(&folder, SMALL);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let ui = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let origin = format!("http://{}", ui.local_addr().unwrap());
    let serving = Serving::start(&path, |command| {
        command
            .args(["--origin", &origin])
            .env("DISPLAY", ":7")
            .env("PATH", &empty);
    });
    serving.signal_after("there is no xdg-open here");

    opener(folder.path(), "exit 3");
    let serving = Serving::start(&path, |command| {
        command
            .args(["--origin", &origin])
            .env("DISPLAY", ":7")
            .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    });
    serving.signal_after("xdg-open found no browser to start: visit the address yourself");
}

impl Serving {
    /// Waits until it prints this, then ends it.
    pub(super) fn signal_after(mut self, words: &str) {
        self.until_said(words);
        self.signal(Signal::TERM);
        assert_eq!(
            self.process.wait(PATIENCE).and_then(|status| status.code()),
            Some(1)
        );
    }
}

#[test]
fn help_names_every_flag() {
    let output = ferretto("open").arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for flag in [
        "--trace",
        "--no-open-browser",
        "--origin",
        "--port",
        "--ui",
        "--force",
        "Usage: ferretto open ",
    ] {
        assert!(help.contains(flag), "{help}");
    }
    assert_eq!(
        said_by(super::Running(ferretto("open").arg("-h").spawn().unwrap())),
        ""
    );
}
