//! A connection in the clear and the one over TLS that stands for it: bytes from one to the other, as they come.
//!
//! The tunnel's loop gives each pair turns. A pair reads from one socket only while the other takes all that it has, so it keeps at most a buffer for each
//! direction. The end of either direction is passed on after its bytes, and the other direction goes on.
//!
//! Nothing passes before both ends know each other. At the host's end there is not even a connection to the service until then.

use std::io::{self, Read, Write};
use std::time::Duration;

use ferretto_daemons::paired_socket::PairedSocket;
use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Event, Reactor, Token};
use ferretto_ipc::transport::Received;
use rustls::Connection;
use rustls_pki_types::{CertificateDer, UnixTime};

/// The size of the buffer that all pairs share, and the share of it that a pair may keep.
pub(crate) const BUFFER: usize = 64 * 1024;
/// Reads from one socket in one turn.
const READS_PER_TURN: usize = 8;
/// How long a handshake may take, from the connection on.
const PATIENCE: Duration = Duration::from_secs(10);
/// After one direction has ended, how long the other may go on.
const PATIENCE_TO_END: Duration = Duration::from_secs(10);
/// A peer whose machine says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(60);

/// How a turn ended.
#[derive(Debug)]
pub(crate) enum Fate {
    Lives,
    /// Both ends know each other from now on. Reported once.
    Known,
    /// Both sockets are to be closed.
    Over(Option<Failure>),
}

/// Why a pair ended before its peers ended it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The far end is not whom it should be, or does not speak TLS.
    Tls(rustls::Error),
    /// The socket of the far end.
    Far(String),
    /// The socket in the clear.
    Near(String),
}

/// Whether the far end may be left without its farewell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// An end without a farewell may be somebody else's doing.
    NotAsked,
    /// The tunnel itself reads no more.
    Asked,
}

/// See the [module](self).
pub(crate) struct Pair {
    far: PairedSocket,
    /// Where the far end is; `None` if it has gone.
    far_host: Option<String>,
    near: Option<PairedSocket>,
    tls: Connection,
    /// When both ends got to know each other.
    known_at: Option<UnixTime>,
    /// Bytes for the near socket, and how many of them it has taken.
    down: Vec<u8>,
    taken: usize,
    /// The near socket sends no more, and the far end knows.
    up_ended: bool,
    /// The far end sends no more.
    down_ended: bool,
    /// The near socket has been told, or takes nothing more.
    near_told: bool,
    /// The near peer has gone. Bytes for it are dropped, and bytes from it are still passed on.
    drops: bool,
    /// The far socket has been told, after everything.
    far_told: bool,
    ending: Ending,
    deadline: Option<u64>,
}

impl Pair {
    /// A pair whose handshake begins now.
    pub(crate) fn new((mut far, token): (Stream, Token), mut tls: Connection, now: u64) -> Pair {
        far.end_when_silent_for(SILENCE);
        // The bound is ours: nothing is read for it before all is sent.
        tls.set_buffer_limit(None);
        Pair {
            far_host: far.peer_host(),
            far: PairedSocket::new(far, token),
            near: None,
            tls,
            known_at: None,
            down: Vec::new(),
            taken: 0,
            up_ended: false,
            down_ended: false,
            near_told: false,
            drops: false,
            far_told: false,
            ending: Ending::NotAsked,
            deadline: Some(now + PATIENCE.as_nanos() as u64),
        }
    }

    /// Joins the socket in the clear.
    pub(crate) fn join(&mut self, (near, token): (Stream, Token)) {
        self.near = Some(PairedSocket::new(near, token));
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known_at.is_some()
    }

    /// What the far end has shown, and when both ends got to know each other; `None` before.
    pub(crate) fn shown(&self) -> Option<(&[CertificateDer<'static>], UnixTime)> {
        Some((self.tls.peer_certificates().unwrap_or_default(), self.known_at?))
    }

    pub(crate) fn far_host(&self) -> Option<&str> {
        self.far_host.as_deref()
    }

    /// Whether bytes wait here for one of the sockets.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.tls.wants_write() || !self.down.is_empty()
    }

    /// Until when something has to happen.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Lets the clients of this end send no more. Their data so far is still passed on.
    pub(crate) fn end_input(&mut self, side: Side) {
        self.ending = Ending::Asked;
        match (side, &mut self.near) {
            (Side::Near, Some(near)) => near.stream.end_input(),
            _ => self.far.stream.end_input(),
        }
    }

    /// Something has happened at one of the sockets.
    pub(crate) fn on_event(&mut self, event: &Event, buffer: &mut [u8], now: u64) -> Fate {
        for socket in std::iter::once(&mut self.far).chain(&mut self.near) {
            socket.hung_up |= event.hung_up && socket.watch.token() == event.token;
        }
        self.turn(buffer, now)
    }

    /// Passes on as much as possible.
    pub(crate) fn turn(&mut self, buffer: &mut [u8], now: u64) -> Fate {
        match self.far.stream.is_connected() {
            Ok(true) => {}
            Ok(false) => return Fate::Lives,
            Err(error) => return Fate::Over(Some(Failure::Far(format!("cannot connect: {error}")))),
        }
        if let Some(Err(error)) = self.near.as_mut().map(|near| near.stream.is_connected()) {
            return Fate::Over(Some(Failure::Near(format!("cannot connect: {error}"))));
        }
        let received = self.receive(buffer);
        // Also an alert: it says why.
        let sent = self.send();
        // Bytes from before a failure still go to the near socket.
        self.write_down();
        if let Err(failure) = received.and(sent) {
            return Fate::Over(Some(failure));
        }
        if self.tls.is_handshaking() {
            return Fate::Lives;
        }
        if self.known_at.is_none() {
            self.known_at = Some(UnixTime::now());
            self.deadline = None;
            return Fate::Known;
        }
        if let Err(failure) = self.read_up(buffer) {
            self.tls.send_close_notify();
            let _ = self.send();
            return Fate::Over(Some(failure));
        }
        self.pass_on_ends();
        if (self.up_ended || self.down_ended) && self.deadline.is_none() {
            self.deadline = Some(now + PATIENCE_TO_END.as_nanos() as u64);
        }
        match self.far_told && self.near_told {
            true => Fate::Over(None),
            false => Fate::Lives,
        }
    }

    /// Reads from the far end, as long as the near socket takes all.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        for _ in 0..READS_PER_TURN {
            if self.down_ended || !self.down.is_empty() || !self.tls.wants_read() {
                break;
            }
            let count = match self.tls.read_tls(&mut Wire(&mut self.far.stream)) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Failure::Far(error.to_string())),
            };
            self.tls.process_new_packets().map_err(Failure::Tls)?;
            self.take_plaintext(buffer)?;
            if count == 0 && !self.down_ended {
                self.down_ended = self.ending == Ending::Asked;
                return match self.ending {
                    Ending::Asked => Ok(()),
                    Ending::NotAsked => Err(Failure::Far("it has closed the connection".to_owned())),
                };
            }
            self.write_down();
        }
        Ok(())
    }

    fn take_plaintext(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        loop {
            match self.tls.reader().read(buffer) {
                Ok(0) => {
                    self.down_ended = true;
                    return Ok(());
                }
                Ok(count) => self.down.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The caller sees the same end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(Failure::Far(error.to_string())),
            }
        }
    }

    fn write_down(&mut self) {
        let Some(near) = self.near.as_mut().filter(|_| !self.down.is_empty()) else {
            return;
        };
        let written = match self.drops {
            true => None,
            false => near.stream.write(&self.down[self.taken..]).ok(),
        };
        self.drops = written.is_none();
        self.taken = written.map_or(self.down.len(), |written| self.taken + written);
        if self.taken == self.down.len() {
            self.down = Vec::new();
            self.taken = 0;
        }
    }

    /// Reads from the near socket, as long as the far one takes all.
    fn read_up(&mut self, buffer: &mut [u8]) -> Result<(), Failure> {
        for _ in 0..READS_PER_TURN {
            let Some(near) = self.near.as_mut().filter(|_| !self.up_ended) else {
                break;
            };
            if self.tls.wants_write() {
                break;
            }
            // Descriptors that a producer passes are closed: no network carries them.
            let received = near.stream.recv(buffer, &mut None);
            match received.map_err(|error| Failure::Near(error.to_string()))? {
                Received::Bytes(count) => {
                    let written = self.tls.writer().write_all(&buffer[..count]);
                    written.map_err(|error| Failure::Far(error.to_string()))?;
                }
                Received::WouldBlock => break,
                Received::Closed => {
                    self.up_ended = true;
                    self.tls.send_close_notify();
                }
            }
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Wire(&mut self.far.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Failure::Far(error.to_string())),
            }
        }
        Ok(())
    }

    fn pass_on_ends(&mut self) {
        if self.down_ended
            && self.down.is_empty()
            && !std::mem::replace(&mut self.near_told, true)
            && let Some(near) = &mut self.near
        {
            near.stream.end_output();
        }
        if self.up_ended && !self.tls.wants_write() && !std::mem::replace(&mut self.far_told, true) {
            self.far.stream.end_output();
        }
    }

    /// Has the reactor watch both sockets for the events that the pair waits for.
    pub(crate) fn watch(&mut self, reactor: &Reactor) {
        let is_connected = self.far.stream.is_connected().unwrap_or(true);
        let input = is_connected && !self.down_ended && self.down.is_empty() && self.tls.wants_read();
        let output = !is_connected || self.tls.wants_write();
        self.far.watch(reactor, input, output);
        let near_input = self.is_known() && !self.up_ended && !self.tls.wants_write();
        let near_output = self.is_known() && !self.down.is_empty();
        if let Some(near) = &mut self.near {
            near.watch(reactor, near_input, near_output);
        }
    }

    pub(crate) fn close(self, reactor: &Reactor) {
        self.far.close(reactor);
        if let Some(near) = self.near {
            near.close(reactor);
        }
    }
}

/// The sockets of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// In the clear.
    Near,
    /// Over TLS.
    Far,
}

/// A stream as `rustls` reads and writes it.
struct Wire<'a>(&'a mut Stream);

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.recv(buffer, &mut None).map_err(io::Error::other)? {
            Received::Bytes(count) => Ok(count),
            Received::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
            Received::Closed => Ok(0),
        }
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes).map_err(io::Error::other)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
