//! `ferretto open` and `ferretto doctor` as a user runs them: the real program, real sockets, a real browser.

mod browser;
mod checked;
mod doctor;
mod local_ui;
mod open;

use ferretto_proto::write::{Trace, TracePacket};
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::support::{PATIENCE, Running};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

/// The program, without environment variables of this session that would affect it.
fn ferretto(applet: &str) -> Command {
    crate::support::signals::as_usual();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferretto"));
    command
        .arg(applet)
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .env_remove("SSH_CONNECTION")
        .env_remove("https_proxy")
        .env_remove("http_proxy")
        .env_remove("all_proxy")
        .env_remove("HTTPS_PROXY")
        .env_remove("HTTP_PROXY")
        .env_remove("ALL_PROXY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The smallest trace: a packet with a timestamp.
const SMALL: &[u8] = &[0x0a, 2, 0x40, 5];

/// A trace of one packet with this payload.
fn trace_with(payload: &[u8]) -> Vec<u8> {
    let mut trace = ferretto_wire::Writer::new();
    trace.nested(Trace::PACKET, |packet| {
        packet.bytes_field(TracePacket::FOR_TESTING, payload)
    });
    trace.into_vec()
}

/// A `ferretto open` that serves.
struct Serving {
    process: Running,
    stdout: BufReader<ChildStdout>,
    /// The address to visit, from its stdout.
    address: String,
}

impl Serving {
    /// Starts it on any port; returns once it serves.
    fn start(trace: &Path, prepare: impl FnOnce(&mut Command)) -> Serving {
        Serving::start_at(0, trace, prepare)
    }

    /// Starts it on this port.
    fn start_at(port: u16, trace: &Path, prepare: impl FnOnce(&mut Command)) -> Serving {
        let mut command = ferretto("open");
        command.arg(trace).args(["--port", &port.to_string()]);
        prepare(&mut command);
        Serving::of(command.spawn().unwrap())
    }

    fn of(mut child: Child) -> Serving {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let process = Running(child);
        let mut address = String::new();
        stdout.read_line(&mut address).unwrap();
        assert!(address.ends_with('\n'), "no address: {}", said_by(process));
        address.pop();
        Serving {
            process,
            stdout,
            address,
        }
    }

    /// Returns the port of the address.
    fn port(&self) -> u16 {
        let (_, rest) = self.address.split_once("?url=http://127.0.0.1:").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// Waits until it prints this on stderr.
    fn until_said(&mut self, words: &str) {
        let stderr = self.process.0.stderr.as_mut().unwrap();
        let (mut said, mut next) = (Vec::new(), [0]);
        // Byte by byte, so that other readers get the rest.
        while !said.ends_with(words.as_bytes()) {
            let count = stderr.read(&mut next).unwrap();
            assert_eq!(
                count,
                1,
                "it does not say `{words}` but {}",
                String::from_utf8_lossy(&said)
            );
            said.extend(next);
        }
    }

    fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end; returns the exit status and all of stderr.
    fn end(mut self) -> (ExitStatus, String) {
        let status = self.process.wait(PATIENCE).expect("it goes on serving");
        let mut more = String::new();
        self.stdout.read_to_string(&mut more).unwrap();
        assert_eq!(more, "", "more than the address on stdout");
        (status, said_by(self.process))
    }
}

/// Returns all of a process's stderr until its end.
fn said_by(mut process: Running) -> String {
    let mut said = String::new();
    process
        .0
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    said
}

/// Returns a port that was free a moment ago, below the range for outgoing connections. The socket that finds it never listens: a process that another
/// test starts at that moment inherits it, and nobody else could listen there for a while.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    loop {
        let number = std::process::id() * 7 + u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (number % 20_000) as u16;
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.unwrap();
        rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        if rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
