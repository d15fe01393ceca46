//! The things that a process inherits from its starter: descriptors that are known by their number only, ignored signals, and a service manager that
//! waits for its report.
//!
//! Called by the start-up code of applets.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ferretto_ipc::reactor::Signal;

/// Takes the descriptor of this number, which the environment or a flag names as meant for us.
///
/// # Errors
/// If no such descriptor is open, or it is one of the standard three, which others here use.
pub fn take(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `fcntl(F_GETFD)` reads a flag and takes any number.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the starter that named it gave it to this process for this one use. The callers are the start-up code of an
    // applet, which runs once, before anything here has opened descriptors that it keeps.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // Children of ours must not keep it open.
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Takes the descriptor whose number this variable of the environment holds; `None` if it is not set.
///
/// Standard output and error can be named, too, as `TRACED_NOTIFY_FD=1 traced | …` does. Afterwards they lead nowhere, so that the reader sees the
/// end when the descriptor is closed.
///
/// # Errors
/// If it is not the number of an open descriptor.
pub fn named_by(variable: &'static str) -> Result<Option<OwnedFd>, InheritedError> {
    let Some(value) = std::env::var_os(variable) else {
        return Ok(None);
    };
    let refused = |reason: String| InheritedError {
        variable,
        value: value.to_string_lossy().into_owned(),
        reason,
    };
    let number: i32 = value
        .to_string_lossy()
        .parse()
        .map_err(|_| refused("it is no number".into()))?;
    let taken = match number {
        1 => replaced(rustix::stdio::stdout(), rustix::stdio::dup2_stdout),
        2 => replaced(rustix::stdio::stderr(), rustix::stdio::dup2_stderr),
        number => take(number),
    };
    taken.map(Some).map_err(|error| refused(error.to_string()))
}

/// A variable of the environment that names no descriptor.
#[derive(Debug, thiserror::Error)]
#[error("{variable}={value} names no descriptor that was handed over: {reason}")]
pub struct InheritedError {
    variable: &'static str,
    value: String,
    reason: String,
}

/// Moves a standard stream elsewhere and puts `/dev/null` in its place.
fn replaced(stream: BorrowedFd<'_>, replace: fn(OwnedFd) -> rustix::io::Result<()>) -> io::Result<OwnedFd> {
    let moved = rustix::io::fcntl_dupfd_cloexec(stream, 3)?;
    replace(File::options().write(true).open("/dev/null")?.into())?;
    Ok(moved)
}

/// systemd, if it started this process and waits to hear that it is ready (`Type=notify`).
#[derive(Debug)]
pub struct ServiceManager {
    /// Connected from the start, because a daemon may give up the right to connect to anybody.
    socket: UnixDatagram,
}

impl ServiceManager {
    /// Connects to the service manager that `NOTIFY_SOCKET` names.
    ///
    /// # Errors
    /// If the name is none of a socket, or nobody is there.
    pub fn of_this_process() -> io::Result<Option<ServiceManager>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Some(ServiceManager { socket }))
    }

    /// Reports that this process is ready, with its status: the protocol of sd_notify(3), one datagram of lines.
    ///
    /// # Errors
    /// If the service manager does not take it.
    pub fn ready(&self, status: &str) -> io::Result<()> {
        let message = format!("READY=1\nSTATUS={}\n", status.replace('\n', " "));
        self.socket.send(message.as_bytes())?;
        Ok(())
    }
}

/// Whether this process ignores a signal. Ask before the signal is watched: then the answer is the choice of the process's starter, `nohup` or a
/// script that runs it with `&`.
pub fn ignores(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, signal.number())
}

/// Reads the set of ignored signals out of `/proc/PID/status`.
fn is_ignored(status: &str, signal: i32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits_of_a_number() {
        let status =
            "Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001003\nSigCgt:\tffffffffffffffff\n";
        let ignored: Vec<i32> = (1..=64).filter(|signal| is_ignored(status, *signal)).collect();
        assert_eq!(ignored, [1, 2, 13]);
        assert!(!is_ignored("", 1));
    }
}
