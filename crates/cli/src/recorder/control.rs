//! The recorder's socket, by which `ferretto recorder seal` asks for seals.
//!
//! [`run`](super::run) owns the listener and its clients; the command calls [`ask`]. A client sends one line, `seal NAME REASON`, with `*` for all
//! sessions. It gets a line for each session, `sealed PATH BYTES` or `refused NAME WHY`, and then the end of the connection. Only the user of the
//! recorder may connect. Clients and their lines are bounded.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use ferretto_ipc::reactor::{Interest, Reactor, Token, Watch};
use ferretto_ipc::transport::SocketPermissions;
use ferretto_ipc::{Address, Listener};
use ferretto_recorder::{Reason, SessionName};

use super::{FAILURE, NAME, NOT_RUNNING, SUCCESS};
use crate::figures::Bytes;
use crate::stderr;
use crate::stdout::print;

/// The longest request.
const LONGEST: usize = 256;
/// The most clients at the same time.
pub(super) const MOST_CLIENTS: usize = 16;
/// How long a seal may take, with a slow disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// Listens at a path. A socket file that a killed recorder left there is replaced.
///
/// # Errors
/// If it cannot be listened on.
pub(super) fn listen(path: &Path) -> Result<UnixListener, String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot listen on {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
    }
    let private: SocketPermissions = "-1:0600".parse().map_err(|error| failed(&error))?;
    let listener = Listener::bind_with(&Address::Unix(path.to_owned()), &private);
    let listener = listener.map_err(|error| failed(&error))?;
    let listener = listener.as_fd().try_clone_to_owned().map(UnixListener::from);
    let listener = listener.map_err(|error| failed(&error))?;
    listener.set_nonblocking(true).map_err(|error| failed(&error))?;
    Ok(listener)
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// The session; `None` for all.
    pub(super) session: Option<SessionName>,
    pub(super) reason: Reason,
}

/// Takes a line apart.
fn parse(line: &str) -> Result<Request, String> {
    let mut words = line.split(' ');
    let (Some("seal"), Some(name), Some(reason), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("the request is not of the form: seal NAME REASON".to_owned());
    };
    let session = match name {
        "*" => None,
        name => Some(SessionName::new(name).map_err(|error| error.to_string())?),
    };
    Ok(Request {
        session,
        reason: Reason::new(reason),
    })
}

/// A connection of a client.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    watch: Watch,
    received: Vec<u8>,
}

/// A client's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Less than a line.
    Nothing,
    Request(Request),
    /// Something else, or the end; the client can be dropped.
    Over,
}

impl Client {
    /// Takes over a connection, whose events come with `token`; `None` if it has failed already.
    pub(super) fn new(stream: UnixStream, token: Token) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client {
            stream,
            watch: Watch::new(token),
            received: Vec::new(),
        })
    }

    /// Returns the token of its events.
    pub(super) fn token(&self) -> Token {
        self.watch.token()
    }

    /// Waits for its request.
    pub(super) fn watch(&mut self, reactor: &Reactor) {
        self.watch
            .update(reactor, Some((self.stream.as_fd(), Interest::Readable)));
    }

    /// Reads what it has sent.
    pub(super) fn on_ready(&mut self) -> Heard {
        let mut buffer = [0; LONGEST];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Heard::Over,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::Over,
            }
            let end = self.received.iter().position(|byte| *byte == b'\n');
            let Some(end) = end else {
                if self.received.len() > LONGEST {
                    return Heard::Over;
                }
                continue;
            };
            let line: Vec<u8> = self.received.drain(..=end).take(end).collect();
            return match parse(&String::from_utf8_lossy(&line)) {
                Ok(request) => Heard::Request(request),
                Err(reason) => {
                    self.tell(&format!("refused - {reason}"));
                    Heard::Over
                }
            };
        }
    }

    /// Sends a line. A client that does not read has itself to blame.
    pub(super) fn tell(&mut self, line: &str) {
        let _ = self
            .stream
            .write_all(format!("{}\n", line.replace('\n', " ")).as_bytes());
    }
}

/// Asks the recorder at this socket for a seal, and prints the answers; returns the exit code.
///
/// # Errors
/// If the recorder does not answer.
pub(super) fn ask(socket: &Path, session: Option<&SessionName>, reason: &Reason) -> Result<u8, String> {
    let failed = |error: std::io::Error| format!("cannot ask the recorder at {}: {error}", socket.display());
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            stderr::say(
                NAME,
                &format_args!(
                    "no recorder listens at {}; start one with `systemctl start ferretto-recorder` or `ferretto recorder run`",
                    socket.display()
                ),
            );
            return Ok(NOT_RUNNING);
        }
        Err(error) => return Err(failed(error)),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let name = session.map_or("*", SessionName::as_str);
    stream
        .write_all(format!("seal {name} {reason}\n").as_bytes())
        .map_err(failed)?;
    let (mut sealed, mut refused) = (0, 0);
    for line in BufReader::new(stream).lines() {
        let line = line.map_err(failed)?;
        if let Some((path, bytes)) = line
            .strip_prefix("sealed ")
            .and_then(|rest| rest.rsplit_once(' '))
        {
            sealed += 1;
            print(format!("{path}\n").as_bytes())?;
            let bytes = bytes
                .parse()
                .map_or_else(|_| bytes.to_owned(), |bytes| Bytes(bytes).to_string());
            stderr::say(NAME, &bytes);
        } else {
            refused += 1;
            let reason = line.strip_prefix("refused ").unwrap_or(&line);
            stderr::say(NAME, &format_args!("not sealed: {reason}"));
        }
    }
    match (sealed, refused) {
        (0, 0) => Err("the recorder has sealed nothing: it has no sessions, or it ended".to_owned()),
        (_, 0) => Ok(SUCCESS),
        _ => Ok(FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_and_anything_else_ends_the_connection() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut client = Client::new(near, Token(1)).unwrap();
        assert_eq!(client.on_ready(), Heard::Nothing);
        far.write_all(b"seal sched ").unwrap();
        assert_eq!(client.on_ready(), Heard::Nothing);
        far.write_all(b"disk/full\nseal * x\n").unwrap();
        let request = Request {
            session: Some(SessionName::new("sched").unwrap()),
            reason: Reason::new("disk_full"),
        };
        assert_eq!(client.on_ready(), Heard::Request(request));
        for (bytes, answer) in [
            (&b"steal * x\n"[..], true),
            (b"seal a/b x\n", true),
            (&[b'x'; 1000], false),
            (b"", false),
        ] {
            let (mut far, near) = UnixStream::pair().unwrap();
            let mut client = Client::new(near, Token(1)).unwrap();
            far.write_all(bytes).unwrap();
            far.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(client.on_ready(), Heard::Over);
            drop(client);
            let mut said = String::new();
            // Data that nobody read reset the connection.
            let _ = far.read_to_string(&mut said);
            assert_eq!(said.starts_with("refused"), answer, "{said}");
        }
    }
}
