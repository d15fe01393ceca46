//! The addresses of a TCP name, tried one after the other until somebody answers at one.
//!
//! Called by [`Stream`](super::Stream). All attempts are made on one socket, so that an event loop goes on watching it. One for IPv6 reaches both
//! families; where all addresses are of IPv4, it is one for that.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::State;

/// How long an address may take to accept while there are others. The kernel would try for two minutes.
const PATIENCE: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// The next one last.
    left: Vec<SocketAddr>,
    family: Family,
    /// After how long without a word the connection is to end once it is there.
    silence: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Family {
    #[default]
    V4,
    Both,
}

impl Attempts {
    /// Makes the socket, on which nothing has been tried yet.
    pub(super) fn new(addresses: &[SocketAddr]) -> Result<(OwnedFd, Attempts), Errno> {
        let socket = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        };
        let mut left: Vec<SocketAddr> = addresses.iter().rev().copied().collect();
        if left.iter().any(SocketAddr::is_ipv6) {
            match socket(AddressFamily::INET6) {
                Ok(fd) => {
                    // The machine's default may be otherwise.
                    let _ = sockopt::set_ipv6_v6only(&fd, false);
                    let family = Family::Both;
                    return Ok((
                        fd,
                        Attempts {
                            left,
                            family,
                            silence: None,
                        },
                    ));
                }
                Err(error) if left.iter().all(SocketAddr::is_ipv6) => return Err(error),
                // A kernel without IPv6.
                Err(_) => left.retain(SocketAddr::is_ipv4),
            }
        }
        let fd = socket(AddressFamily::INET)?;
        Ok((
            fd,
            Attempts {
                left,
                ..Attempts::default()
            },
        ))
    }

    /// Begins to connect with the next address at which that is possible. `None` if none is left.
    ///
    /// # Errors
    /// Of the last address, if it was tried here.
    pub(super) fn next(&mut self, fd: &OwnedFd) -> Result<Option<State>, Errno> {
        let mut last_error = None;
        while let Some(address) = self.left.pop() {
            // Clears everything that the last attempt left, its error too.
            let _ = rustix::net::connect_unspec(fd);
            let _ = sockopt::socket_error(fd);
            self.set_patience(fd, State::Connecting);
            match self.connect(fd, address) {
                Ok(()) => {
                    self.set_patience(fd, State::Connected);
                    return Ok(Some(State::Connected));
                }
                Err(Errno::INPROGRESS) => return Ok(Some(State::Connecting)),
                Err(error) => last_error = Some(error),
            }
        }
        last_error.map_or(Ok(None), Err)
    }

    fn connect(&self, fd: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
        let address = match (self.family, address.ip()) {
            (Family::Both, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        };
        loop {
            match rustix::net::connect(fd, &address) {
                Err(Errno::INTR) => continue,
                result => return result,
            }
        }
    }

    /// Sets how long the peer may be silent once it is there.
    pub(super) fn set_silence(&mut self, silence: Duration) {
        self.silence = Some(silence);
    }

    /// Has the kernel give up in time.
    pub(super) fn set_patience(&self, fd: &OwnedFd, state: State) {
        let limit = match state {
            State::Connecting if !self.left.is_empty() => Some(PATIENCE),
            State::Connecting | State::Connected => self.silence,
        };
        // Zero is the kernel's own limit.
        let _ = sockopt::set_tcp_user_timeout(fd, limit.unwrap_or_default().as_millis() as u32);
    }
}
