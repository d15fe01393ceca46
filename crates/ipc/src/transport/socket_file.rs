//! The files of listening Unix sockets: whether the name is free, and when the file is removed.
//!
//! Called by [`Listener`](super::Listener). A socket file outlives its socket, so a file alone says nothing: only a refused connection shows that no
//! process listens.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{TransportError, sys};
use crate::address::Address;

/// Makes sure that a socket can be bound to `path`: removes a socket file on which no process listens.
///
/// # Errors
/// If a process listens there, or may, or the file is no socket.
pub(super) fn make_way(path: &Path, address: &Address) -> Result<(), TransportError> {
    let failed = |source| TransportError::Listen {
        address: address.clone(),
        source,
    };
    let file = match path.symlink_metadata() {
        // A symbolic link is judged by its target. A dangling link means that no process listens. The link is removed below, never its target.
        Ok(link) if link.is_symlink() => path.metadata(),
        file => file,
    };
    match file {
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => return Err(TransportError::NotASocket(address.clone())),
        // Nothing is there, or a dangling link, which is removed below.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(errno(&error))),
    }
    match listener_at(path).map_err(failed)? {
        Occupant::Somebody(pid) => Err(TransportError::Occupied {
            address: address.clone(),
            pid,
        }),
        Occupant::Unknown(source) => Err(TransportError::MaybeOccupied {
            address: address.clone(),
            source,
        }),
        Occupant::Nobody => match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(errno(&error))),
            _ => Ok(()),
        },
    }
}

/// Whether a process listens on a socket file.
enum Occupant {
    Nobody,
    /// This process, if the kernel says.
    Somebody(Option<i32>),
    /// The kernel does not let us try.
    Unknown(Errno),
}

fn listener_at(path: &Path) -> Result<Occupant, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address = SocketAddrUnix::new(path)?;
    let connected = rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address));
    Ok(match connected {
        Ok(()) => {
            let peer = sys::peer_credentials(std::os::fd::AsFd::as_fd(&socket));
            Occupant::Somebody(peer.ok().and_then(|peer| peer.pid))
        }
        // Its queue is full; or it is bound, but no stream socket.
        Err(Errno::AGAIN | Errno::PROTOTYPE) => Occupant::Somebody(None),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Occupant::Nobody,
        Err(source) => Occupant::Unknown(source),
    })
}

/// A socket file of ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    /// Absolute, since daemons change their folder.
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file of a socket that was just bound to `path`.
    pub(super) fn at(path: &Path) -> Result<SocketFile, Errno> {
        let of_path = || {
            let path = std::path::absolute(path)?;
            let identity = identity(&path)?;
            Ok(SocketFile { path, identity })
        };
        of_path().map_err(|error| errno(&error))
    }

    /// Removes it, unless another socket has taken its name meanwhile.
    pub(super) fn remove(self) {
        if identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            // If this fails, the next service replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = path.symlink_metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
