//! System calls about processes that `rustix` has no safe form for: the process at the other end of a socket, and signals without a name in it.
//!
//! `process` and `marked` call these.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The process that has connected, whatever has its id by now (`SO_PEERPIDFD`, Linux 6.5).
///
/// # Errors
/// `ENOPROTOOPT` if the kernel has no such option; others if the process is gone.
pub(crate) fn of_peer(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the descriptor's number.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has made the descriptor for this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process of this descriptor.
///
/// # Errors
/// If it is gone, or this user may not.
pub(crate) fn send_signal(process: &impl AsFd, signal: i32) -> io::Result<()> {
    let process = process.as_fd().as_raw_fd();
    let information = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and the kernel reads nothing at a null pointer.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, information, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
