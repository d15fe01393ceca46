//! Non-blocking stream sockets: listening, connecting, bytes with descriptors beside them, the peer's identity.
//!
//! Called by the daemons and clients that own sockets; the state machines in [`crate::host`] and
//! [`crate::client`] never see one. Nothing here blocks, except looking up a TCP host name, and nothing
//! raises `SIGPIPE`. All descriptors are close-on-exec, received ones too.

mod attempts;
mod endpoint;
mod error;
mod permissions;
mod socket_file;
mod sys;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};

use crate::address::Address;
use crate::outgoing::OutgoingQueue;
use crate::passed_fd::PassedFd;
use attempts::Attempts;
pub use endpoint::look_up;
use endpoint::{internet_addresses, on_each_endpoint};
pub use error::TransportError;
pub use permissions::{PermissionsError, SocketPermissions};
use socket_file::SocketFile;

/// Descriptors accepted beside one read; no frame of the protocol carries more than one.
const MAX_FDS_PER_READ: usize = 4;

/// Descriptors that the kernel passes beside one write (`SCM_MAX_FD`). There is room for all of them. The kernel would close descriptors without room
/// itself, in the thread that reads.
const MOST_FDS_PER_READ: usize = 253;

/// The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The process at the other end of a Unix socket, as the kernel recorded when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Effective user id.
    pub uid: u32,
    /// Process id; `None` when the process is outside our process namespace.
    pub pid: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Passes descriptors and vouches for the peer.
    Unix,
    /// TCP or vsock.
    Network,
}

/// Connections to take from one listener in one turn. Whoever connects and leaves all the time holds up nothing else then.
pub const ACCEPTS_PER_TURN: usize = 64;

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    kind: Kind,
    /// The file of a socket that we bound to a path.
    file: Option<SocketFile>,
}

impl Listener {
    /// Listens on `address`. A socket file that a dead service left there is replaced. It is an error if a process listens there, or if there is a
    /// file of another kind; upstream takes the name in either case. The mode of the new file is left to the umask.
    ///
    /// # Errors
    /// If a process listens there, or may; if the address cannot be looked up or listened on.
    pub fn bind(address: &Address) -> Result<Listener, TransportError> {
        Listener::listen(address, SocketType::STREAM, None)
    }

    /// The same, with this group and mode for the socket file, which it has before any client can connect.
    ///
    /// # Errors
    /// As for [`bind`](Self::bind), and if the file cannot get that group or mode.
    pub fn bind_with(address: &Address, permissions: &SocketPermissions) -> Result<Listener, TransportError> {
        Listener::listen(address, SocketType::STREAM, Some(permissions))
    }

    /// Listens for connections that keep messages apart (`SOCK_SEQPACKET`), on a Unix socket, with this group and mode if they are given.
    ///
    /// # Errors
    /// As for [`bind_with`](Self::bind_with), and if the address is not of a Unix socket.
    pub fn bind_packets(
        address: &Address,
        permissions: Option<&SocketPermissions>,
    ) -> Result<Listener, TransportError> {
        Listener::listen(address, SocketType::SEQPACKET, permissions)
    }

    fn listen(
        address: &Address,
        socket_type: SocketType,
        permissions: Option<&SocketPermissions>,
    ) -> Result<Listener, TransportError> {
        let failed = |source| TransportError::Listen {
            address: address.clone(),
            source,
        };
        if permissions.is_some() && address.path().is_none() {
            return Err(TransportError::NoFile(address.clone()));
        }
        if let Address::Unix(path) = address {
            socket_file::make_way(path, address)?;
        }
        let kind = kind_of(address);
        let fd = on_each_endpoint(address, socket_type, failed, |fd, endpoint| {
            if kind == Kind::Network {
                sockopt::set_socket_reuseaddr(fd, true)?;
            }
            endpoint.bind(fd)
        })?;
        let listener = Listener {
            fd,
            kind,
            file: address.path().map(SocketFile::at).transpose().map_err(failed)?,
        };
        let permitted = match (permissions, address.path()) {
            (Some(permissions), Some(path)) => permissions.apply(path).map_err(TransportError::Permissions),
            _ => Ok(()),
        };
        match permitted.and_then(|()| rustix::net::listen(&listener.fd, BACKLOG).map_err(failed)) {
            Ok(()) => Ok(listener),
            Err(error) => {
                listener.close();
                Err(error)
            }
        }
    }

    /// Stops listening, and removes the socket file, if that was ours and is still the same. Dropping a listener leaves the file,
    /// as a process that dies does.
    pub fn close(self) {
        if let Some(file) = self.file {
            file.remove();
        }
    }

    /// Takes over a socket that is already bound, for example by systemd. The socket's file, if it has one, is left to the process that bound it.
    ///
    /// # Errors
    /// If the descriptor is no socket of a kind that we know, or cannot be made non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Listener, TransportError> {
        let kind = adopt(&fd)?;
        rustix::net::listen(&fd, BACKLOG).map_err(TransportError::Adopt)?;
        Ok(Listener { fd, kind, file: None })
    }

    /// The next connection, or `None` when no more are waiting.
    ///
    /// Out of descriptors (`EMFILE`) is an error that stays until some are closed: stop watching the listener
    /// for a while, rather than trying again at once.
    ///
    /// # Errors
    /// If the system has none to give: out of descriptors, above all.
    pub fn accept(&self) -> Result<Option<Stream>, TransportError> {
        loop {
            match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => {
                    disable_nagle(&fd, self.kind);
                    return Ok(Some(Stream {
                        fd,
                        kind: self.kind,
                        state: State::Connected,
                        attempts: None,
                    }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(source) => return Err(TransportError::Accept(source)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// TCP or vsock: the handshake is under way; the socket turns writable when it is over.
    Connecting,
    Connected,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, more than zero.
    Bytes(usize),
    /// Nothing for now; wait until the socket is readable.
    WouldBlock,
    /// The peer closed its end.
    Closed,
}

/// The state machine at this end of a stream: [`HostConnection`](crate::HostConnection) or
/// [`ClientConnection`](crate::ClientConnection).
pub trait Connection {
    /// Whether to go on reading.
    fn wants_input(&self) -> bool;
    /// Takes the result of one read.
    fn receive(&mut self, bytes: &[u8], fd: Option<PassedFd>);
}

/// Why [`Stream::read_into`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEnd {
    /// All that had arrived was read.
    Drained,
    /// The connection wants no more for now; there may be more to read.
    Paused,
    /// The peer closed its end; all its bytes have been read.
    Closed,
}

/// How far a flush came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// The queue is empty.
    All,
    /// The socket takes no more for now; go on when it is writable.
    WouldBlock,
}

/// A connected (or connecting) stream socket.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    kind: Kind,
    state: State,
    /// Set for a connection over TCP that this end has begun.
    attempts: Option<Box<Attempts>>,
}

impl Stream {
    /// Starts a connection to `address`. A network connection may still fail later, on the first
    /// [`recv`](Stream::recv) or [`flush`](Stream::flush). If the address is a name with several addresses, it fails when none of them
    /// accepts.
    ///
    /// # Errors
    /// If the address cannot be looked up, or no process listens there.
    pub fn connect(address: &Address) -> Result<Stream, TransportError> {
        let failed = |source| TransportError::Connect {
            address: address.clone(),
            source,
        };
        if let Some(addresses) = internet_addresses(address)? {
            return Stream::connect_in_turn(&addresses).map_err(failed);
        }
        let mut state = State::Connected;
        let fd = on_each_endpoint(address, SocketType::STREAM, failed, |fd, endpoint| {
            loop {
                match endpoint.connect(fd) {
                    Err(Errno::INTR) => continue,
                    Err(Errno::INPROGRESS) => {
                        state = State::Connecting;
                        return Ok(());
                    }
                    result => return result,
                }
            }
        })?;
        Ok(Stream {
            fd,
            kind: kind_of(address),
            state,
            attempts: None,
        })
    }

    /// Starts a connection to the first of these addresses that accepts. As long as nobody has answered there,
    /// [`connect_to_next`](Self::connect_to_next) goes on.
    ///
    /// # Errors
    /// If none can be tried.
    pub fn connect_in_turn(addresses: &[SocketAddr]) -> Result<Stream, Errno> {
        let (fd, mut attempts) = Attempts::new(addresses)?;
        disable_nagle(&fd, Kind::Network);
        let state = attempts.next(&fd)?.ok_or(Errno::ADDRNOTAVAIL)?;
        Ok(Stream {
            fd,
            kind: Kind::Network,
            state,
            attempts: Some(Box::new(attempts)),
        })
    }

    /// Gives up the connection, and starts one to the next address of the same name. Returns whether there is one. The descriptor stays the same.
    pub fn connect_to_next(&mut self) -> bool {
        match self.next_attempt() {
            Ok(Some(state)) => {
                self.state = state;
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    fn next_attempt(&mut self) -> Result<Option<State>, Errno> {
        match &mut self.attempts {
            Some(attempts) => attempts.next(&self.fd),
            None => Ok(None),
        }
    }

    /// Takes over a connected socket.
    ///
    /// # Errors
    /// If the descriptor is no socket of a kind that we know, or cannot be made non-blocking.
    pub fn from_fd(fd: OwnedFd) -> Result<Stream, TransportError> {
        let kind = adopt(&fd)?;
        Ok(Stream {
            fd,
            kind,
            state: State::Connected,
            attempts: None,
        })
    }

    /// Two connected Unix sockets.
    ///
    /// # Errors
    /// If the system is out of descriptors.
    pub fn pair() -> Result<(Stream, Stream), TransportError> {
        let (a, b) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(TransportError::Pair)?;
        let stream = |fd| Stream {
            fd,
            kind: Kind::Unix,
            state: State::Connected,
            attempts: None,
        };
        Ok((stream(a), stream(b)))
    }

    /// The process at the other end, where the kernel identifies it: on Unix sockets.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn peer_credentials(&self) -> Result<Option<PeerCredentials>, TransportError> {
        match self.kind {
            Kind::Unix => sys::peer_credentials(self.fd.as_fd())
                .map(Some)
                .map_err(TransportError::Credentials),
            Kind::Network => Ok(None),
        }
    }

    /// The machine at the other end of a network connection, as its address says: without the port, which differs from one
    /// connection to the next.
    pub fn peer_host(&self) -> Option<String> {
        let address = rustix::net::getpeername(&self.fd).ok()??;
        if let Some(cid) = sys::vsock_cid(&address) {
            return Some(format!("vsock://{cid}"));
        }
        Some(
            SocketAddr::try_from(address)
                .ok()?
                .ip()
                .to_canonical()
                .to_string(),
        )
    }

    /// Whether descriptors can be passed, and so memory shared.
    pub fn passes_fds(&self) -> bool {
        self.kind == Kind::Unix
    }

    /// Reads once into `buffer`, which must not be empty. A descriptor that came beside these bytes is put
    /// into `fd`; when several came, the first is kept and the rest are closed, as upstream does.
    ///
    /// # Errors
    /// If the socket fails, or descriptors that came were cut off for want of room.
    pub fn recv(&mut self, buffer: &mut [u8], fd: &mut Option<PassedFd>) -> Result<Received, TransportError> {
        debug_assert!(
            !buffer.is_empty(),
            "an empty buffer cannot tell bytes from the end of the stream"
        );
        if !self.is_connected().map_err(TransportError::Receive)? {
            return Ok(Received::WouldBlock);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS_PER_READ))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = loop {
            let mut slices = [IoSliceMut::new(buffer)];
            match rustix::net::recvmsg(&self.fd, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(Received::WouldBlock),
                // A peer that dies with our bytes unread resets the connection: the same end of the stream.
                Err(Errno::CONNRESET) => return Ok(Received::Closed),
                Err(source) => return Err(TransportError::Receive(source)),
            }
        };
        let mut count = 0;
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
                for received in fds.map(PassedFd::from) {
                    count += 1;
                    fd.get_or_insert(received);
                }
            }
        }
        if count > MAX_FDS_PER_READ || message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(TransportError::FdsCutOff);
        }
        Ok(match message.bytes {
            0 => Received::Closed,
            bytes => Received::Bytes(bytes),
        })
    }

    /// Reads into `connection` until the socket is drained or the connection has enough. `scratch` is where the bytes
    /// pass through; one buffer of up to [`MAX_FRAME`](crate::frame::MAX_FRAME) bytes can serve all sockets of a loop.
    ///
    /// # Errors
    /// If the socket fails, as for [`recv`](Self::recv).
    pub fn read_into(
        &mut self,
        connection: &mut impl Connection,
        scratch: &mut [u8],
    ) -> Result<ReadEnd, TransportError> {
        while connection.wants_input() {
            let mut fd = None;
            match self.recv(scratch, &mut fd)? {
                Received::Bytes(count) => connection.receive(&scratch[..count], fd),
                Received::WouldBlock => return Ok(ReadEnd::Drained),
                Received::Closed => return Ok(ReadEnd::Closed),
            }
        }
        Ok(ReadEnd::Paused)
    }

    /// Writes from `queue` until it is empty or the socket is full.
    ///
    /// # Errors
    /// If the socket fails: the other end is closed, most often.
    pub fn flush(&mut self, queue: &mut OutgoingQueue) -> Result<Flushed, TransportError> {
        if queue.is_empty() {
            return Ok(Flushed::All);
        }
        if !self.is_connected().map_err(TransportError::Send)? {
            return Ok(Flushed::WouldBlock);
        }
        loop {
            let sent = {
                let Some(transmit) = queue.next_transmit() else {
                    return Ok(Flushed::All);
                };
                match self.send(&transmit.slices, transmit.fd) {
                    Ok(sent) => sent,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return Ok(Flushed::WouldBlock),
                    Err(source) => return Err(TransportError::Send(source)),
                }
            };
            queue.sent(sent);
        }
    }

    /// Writes once. Returns how many of the bytes the socket took: 0 if it takes none for now.
    ///
    /// # Errors
    /// If the socket fails: the other end is closed, most often.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        if bytes.is_empty() || !self.is_connected().map_err(TransportError::Send)? {
            return Ok(0);
        }
        loop {
            match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(0),
                result => return result.map_err(TransportError::Send),
            }
        }
    }

    /// Tells the peer that no more will come. Its data can still be read.
    pub fn end_output(&mut self) {
        // It fails if the connection has ended already.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
    }

    /// Has the stream end for this process after the bytes that have arrived. The peer of a Unix socket can send no more.
    pub fn end_input(&mut self) {
        // It fails if the connection has ended already.
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    /// Has a TCP connection end with an error once its peer has been silent for this long although it was asked, or has taken nothing for this long:
    /// the machine or the network is gone, and nobody says so. Other connections have no such option.
    pub fn end_when_silent_for(&mut self, silence: Duration) {
        const PROBES: u32 = 3;
        let seconds = silence / (PROBES + 1);
        if self.kind == Kind::Unix || sockopt::set_socket_keepalive(&self.fd, true).is_err() {
            return;
        }
        // Vsock knows none of these.
        let _ = sockopt::set_tcp_keepidle(&self.fd, seconds);
        let _ = sockopt::set_tcp_keepintvl(&self.fd, seconds);
        let _ = sockopt::set_tcp_keepcnt(&self.fd, PROBES);
        let Some(attempts) = &mut self.attempts else {
            let _ = sockopt::set_tcp_user_timeout(&self.fd, silence.as_millis() as u32);
            return;
        };
        attempts.set_silence(silence);
        attempts.set_patience(&self.fd, self.state);
    }

    fn send(&self, slices: &[IoSlice<'_>], fd: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // Where descriptors cannot be passed the frame goes without, as upstream's does; the receiver then reports what is missing
        // (`use_shmem_emulation` tells producers beforehand).
        let fds = fd.filter(|_| self.kind == Kind::Unix).map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        rustix::net::sendmsg(&self.fd, slices, &mut control, SendFlags::NOSIGNAL)
    }

    /// Ends the connection at once, although the peer may have sent more. Descriptors among the unread bytes are closed as [`PassedFd`]s, not by the
    /// kernel in this thread.
    pub fn hang_up(mut self) {
        // After the shutdown nothing more arrives.
        if rustix::net::shutdown(&self.fd, Shutdown::Both).is_err() || self.kind == Kind::Network {
            return;
        }
        let mut unread = [0; 4096];
        while let Ok(Received::Bytes(_)) | Err(TransportError::FdsCutOff) = self.recv(&mut unread, &mut None)
        {
        }
    }

    /// Whether the connection is up by now. If not, wait until the socket is writable.
    ///
    /// # Errors
    /// When the other side refuses it, and the name has no other address.
    pub fn is_connected(&mut self) -> Result<bool, Errno> {
        if self.state == State::Connected {
            return Ok(true);
        }
        let mut poll = [PollFd::new(&self.fd, PollFlags::OUT)];
        let immediately = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if rustix::event::poll(&mut poll, Some(&immediately))? == 0 {
            return Ok(false);
        }
        if let Err(refusal) = sockopt::socket_error(&self.fd)? {
            return match self.next_attempt()? {
                Some(state) => {
                    self.state = state;
                    Ok(state == State::Connected)
                }
                None => Err(refusal),
            };
        }
        self.state = State::Connected;
        if let Some(attempts) = &self.attempts {
            attempts.set_patience(&self.fd, self.state);
        }
        Ok(true)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn kind_of(address: &Address) -> Kind {
    if address.is_unix() {
        Kind::Unix
    } else {
        Kind::Network
    }
}

/// Replies are small and awaited: Nagle's algorithm would hold them back for 40 ms.
fn disable_nagle(fd: &OwnedFd, kind: Kind) {
    if kind == Kind::Network {
        // Vsock has no such option and needs none.
        let _ = sockopt::set_tcp_nodelay(fd, true);
    }
}

/// Prepares a socket that another process made, and returns its kind.
fn adopt(fd: &OwnedFd) -> Result<Kind, TransportError> {
    let family = sockopt::socket_domain(fd).map_err(TransportError::Adopt)?;
    rustix::io::ioctl_fionbio(fd, true).map_err(TransportError::Adopt)?;
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).map_err(TransportError::Adopt)?;
    Ok(if family == AddressFamily::UNIX {
        Kind::Unix
    } else {
        Kind::Network
    })
}
