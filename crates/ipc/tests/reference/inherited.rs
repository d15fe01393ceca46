//! Descriptors that one program inherits, and no other that the test's process starts meanwhile.
//!
//! Included by tests of several crates.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;

/// Has the program that `command` starts inherit `descriptor`, which must be open then; returns the number that it has there. In this process
/// it stays one that is closed when a program starts.
pub(crate) fn inherit(command: &mut Command, descriptor: impl AsFd) -> RawFd {
    let number = descriptor.as_fd().as_raw_fd();
    let keep_open = move || {
        // SAFETY: the new process has a copy of the descriptor, for it was open when that was forked.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).map_err(io::Error::from)
    };
    // SAFETY: the closure makes one system call, which is all that it may do between fork and exec.
    unsafe { command.pre_exec(keep_open) };
    number
}
