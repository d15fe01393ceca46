//! The process under test, and the services behind it, which tests play.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tungstenite::client::ClientRequestBuilder;
use tungstenite::handshake::HandshakeError;
use tungstenite::{Error, WebSocket};

use crate::support::{PATIENCE, Running, System};

pub(crate) const UI: &str = "https://ui.perfetto.dev";
/// The time without progress after which something counts as stuck.
pub(crate) const STUCK: Duration = Duration::from_millis(500);
/// A part of a processor that a waiting bridge does not use.
pub(crate) const IDLE: f64 = 0.1;

/// A running `websocket_bridge`.
pub(crate) struct Bridge {
    pub(crate) running: Running,
    said: BufReader<ChildStderr>,
    pub(crate) greeting: String,
    pub(crate) port: u16,
}

impl Bridge {
    /// Starts it with this system's sockets, at any port.
    pub(crate) fn start(system: &System<'_>) -> Bridge {
        Bridge::start_with(system, |_| {})
    }

    /// Starts it after `prepare` has changed the command.
    pub(crate) fn start_with(system: &System<'_>, prepare: impl FnOnce(&mut Command)) -> Bridge {
        let program = Path::new(env!("CARGO_BIN_EXE_websocket_bridge"));
        let mut command = system.command(program, "unused.log");
        command.arg("--port=0");
        prepare(&mut command);
        Bridge::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Bridge {
        let mut running = Running(command.stderr(Stdio::piped()).spawn().unwrap());
        let said = BufReader::new(running.0.stderr.take().unwrap());
        let mut bridge = Bridge {
            running,
            said,
            greeting: String::new(),
            port: 0,
        };
        bridge.greeting = bridge.next_line();
        let port = bridge.greeting.split("ready on port ").nth(1);
        let port = port.and_then(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next());
        bridge.port = port.and_then(|port| port.parse().ok()).expect(&bridge.greeting);
        bridge
    }

    /// Returns the next line of its stderr.
    pub(crate) fn next_line(&mut self) -> String {
        if self.said.buffer().is_empty() {
            await_readable(self.said.get_ref());
        }
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line
    }

    /// Opens a connection and sends nothing.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these bytes; returns its answer up to the end of the connection.
    pub(crate) fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends a handshake with these additional fields; returns the connection, or the status of the refusal.
    pub(crate) fn open(&self, path: &str, headers: &[(&str, &str)]) -> Result<WebSocket<TcpStream>, u16> {
        let uri = format!("ws://127.0.0.1:{}{path}", self.port);
        let mut request = ClientRequestBuilder::new(uri.parse().unwrap());
        for (name, value) in headers {
            request = request.with_header(*name, *value);
        }
        match tungstenite::client(request, self.connect()) {
            Ok((websocket, _)) => Ok(websocket),
            Err(HandshakeError::Failure(Error::Http(response))) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects like a page of the UI.
    pub(crate) fn page(&self) -> WebSocket<TcpStream> {
        self.open("/traced", &[("Origin", UI)]).unwrap()
    }

    /// Returns the part of a processor that it uses while it has nothing to do.
    pub(crate) fn idle_load(&self) -> f64 {
        let spent = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.running.pid())).unwrap();
            // User and system time are fields 14 and 15; the name of the program, field 2, ends with a parenthesis.
            let fields = stat.rsplit(')').next().unwrap().split_whitespace();
            fields
                .skip(11)
                .take(2)
                .map(|ticks| ticks.parse::<f64>().unwrap())
                .sum::<f64>()
        };
        let used = || {
            let before = spent();
            std::thread::sleep(STUCK);
            (spent() - before) / rustix::param::clock_ticks_per_second() as f64 / STUCK.as_secs_f64()
        };
        let mut load = used();
        for _ in 0..10 {
            if load < IDLE {
                break;
            }
            load = used();
        }
        load
    }

    /// Returns its peak memory in KB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

pub(crate) fn await_readable(fd: &impl AsFd) {
    let mut polled = [PollFd::new(fd, PollFlags::IN)];
    let patience = PATIENCE.try_into().unwrap();
    assert!(
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&patience))).unwrap() > 0,
        "nothing comes"
    );
}

/// Listens on the service's socket of this system.
pub(crate) fn listen(system: &System<'_>) -> UnixListener {
    UnixListener::bind(system.consumer_socket()).unwrap()
}

/// Accepts the next connection.
pub(crate) fn accept(listener: &UnixListener) -> UnixStream {
    await_readable(listener);
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn is_nobody_waiting(listener: &UnixListener) -> bool {
    listener.set_nonblocking(true).unwrap();
    let error = listener.accept().map(|_| ()).unwrap_err();
    listener.set_nonblocking(false).unwrap();
    error.kind() == ErrorKind::WouldBlock
}

/// Sends all received data back until the end.
pub(crate) fn echo(mut stream: UnixStream) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 100_000];
        loop {
            let count = stream.read(&mut buffer).unwrap_or(0);
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    })
}
