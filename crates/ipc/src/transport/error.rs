//! Failures on sockets, and what to do about them.

use std::fmt;

use rustix::io::Errno;

use super::{MAX_FDS_PER_READ, PermissionsError};
use crate::address::Address;

/// A failure on a socket.
#[derive(Debug)]
pub enum TransportError {
    /// A socket could not be made, bound or listened on.
    Listen {
        /// Where.
        address: Address,
        /// Why.
        source: Errno,
    },
    /// The path is taken by something that is no socket; it is left alone.
    NotASocket(Address),
    /// Another process listens on this path's socket, which is left alone.
    Occupied {
        /// Where.
        address: Address,
        /// Its process, if there is a connection to ask the kernel about.
        pid: Option<i32>,
    },
    /// The path is a socket, and it is unknown whether a process listens there; it is left alone.
    MaybeOccupied {
        /// Where.
        address: Address,
        /// The reason why we could not find out.
        source: Errno,
    },
    /// Group and mode were asked for, and the socket has no file.
    NoFile(Address),
    /// The socket file did not get its group and mode.
    Permissions(PermissionsError),
    /// The name of a TCP host could not be looked up.
    Lookup {
        /// The address.
        address: Address,
        /// Why.
        reason: String,
    },
    /// The service could not be reached.
    Connect {
        /// Where.
        address: Address,
        /// Why.
        source: Errno,
    },
    /// Taking a connection off the queue failed.
    Accept(Errno),
    /// Receiving failed.
    Receive(Errno),
    /// Descriptors beside a read got lost.
    FdsCutOff,
    /// Sending failed.
    Send(Errno),
    /// Asking the kernel about the peer failed.
    Credentials(Errno),
    /// A descriptor handed in could not be made non-blocking.
    Adopt(Errno),
    /// There is no pair of sockets to be had.
    Pair(Errno),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::Listen { address, source } => {
                write!(f, "cannot listen on {address}: {source}{}", listen_hint(*source))
            }
            TransportError::NotASocket(address) => write!(
                f,
                "cannot listen on {address}: a file that is not a socket is in the way; remove it or choose another name"
            ),
            TransportError::Occupied { address, pid } => {
                write!(f, "cannot listen on {address}: another service")?;
                if let Some(pid) = pid {
                    write!(f, ", process {pid},")?;
                }
                f.write_str(" listens there; stop it, or choose another name")
            }
            TransportError::MaybeOccupied { address, source } => write!(
                f,
                "cannot listen on {address}: a socket is there, and whether somebody listens on it cannot be told: {source}; \
         remove it, or choose another name"
            ),
            TransportError::NoFile(address) => write!(
                f,
                "{address} can have no group and mode: only sockets that are files have; give it a path, or ask for none"
            ),
            TransportError::Permissions(error) => error.fmt(f),
            TransportError::Lookup { address, reason } => {
                write!(f, "cannot look up the host of {address}: {reason}")
            }
            TransportError::Connect { address, source } => write!(
                f,
                "cannot connect to {address}: {source}{}",
                connect_hint(*source)
            ),
            TransportError::Accept(source) => write!(f, "cannot accept a connection: {source}"),
            TransportError::Receive(source) => write!(f, "receiving from the peer failed: {source}"),
            TransportError::FdsCutOff => write!(
                f,
                "descriptors passed by the peer were cut off: it sent more than {MAX_FDS_PER_READ} at once, where a frame \
         carries one, or this process may open no more (see ulimit -n)"
            ),
            TransportError::Send(source) => write!(f, "sending to the peer failed: {source}"),
            TransportError::Credentials(source) => {
                write!(f, "cannot read the credentials of the peer: {source}")
            }
            TransportError::Adopt(source) => {
                write!(f, "cannot use the given descriptor as a socket: {source}")
            }
            TransportError::Pair(source) => write!(f, "cannot make a pair of sockets: {source}"),
        }
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TransportError::Listen { source, .. } | TransportError::MaybeOccupied { source, .. } => {
                Some(source)
            }
            TransportError::Permissions(error) => Some(error),
            TransportError::Connect { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl TransportError {
    /// Whether a connection failed because nothing listens there (yet).
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            TransportError::Connect {
                source: Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN,
                ..
            }
        )
    }
}

fn listen_hint(source: Errno) -> &'static str {
    match source {
        Errno::ADDRINUSE => " (another service listens there; stop it or choose another name)",
        Errno::NOENT => " (its directory does not exist)",
        Errno::ACCESS | Errno::PERM => {
            " (you may not create it there; use another directory or another user)"
        }
        Errno::AFNOSUPPORT => " (this kernel has no support for this kind of socket)",
        _ => "",
    }
}

fn connect_hint(source: Errno) -> &'static str {
    match source {
        Errno::NOENT | Errno::CONNREFUSED => " (no service is listening there; start traced first)",
        Errno::AGAIN => " (the service has too many connections waiting)",
        Errno::ACCESS | Errno::PERM => " (you lack the permission to use this socket)",
        Errno::AFNOSUPPORT => " (this kernel has no support for this kind of socket)",
        _ => "",
    }
}
