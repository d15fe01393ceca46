//! Sends signals that have no name, which `rustix` has no safe form for.
//!
//! `marked` sends one to processes that handle it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sends a signal to the process of this descriptor.
pub(crate) fn send(process: &impl AsFd, signal: i32) -> io::Result<()> {
    let process = process.as_fd().as_raw_fd();
    let information = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open, and the kernel reads nothing at a null pointer.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, information, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
