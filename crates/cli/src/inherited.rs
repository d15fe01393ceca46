//! Descriptors that were inherited from whoever started this process, known by their number only.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// Takes the descriptor of this number, which the environment or a flag names as meant for us.
///
/// # Errors
/// If no such descriptor is open, or it is one of the standard three, which others here use.
pub(crate) fn take(number: i32) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `fcntl(F_GETFD)` reads a flag and takes any number.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and whoever named it gave it to this process for this one use; callers are the start-up code of an
    // applet, which runs once, before anything here has opened descriptors that it keeps.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // Children of ours must not keep it open.
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// Tells whoever started this process that it is ready, over the descriptor that this variable of the environment names: one
/// byte, then it is closed. Nothing if the variable is not set.
///
/// # Errors
/// If it names no descriptor that can be written to.
pub(crate) fn notify(variable: &str) -> Result<(), String> {
    let Some(value) = std::env::var_os(variable) else {
        return Ok(());
    };
    let refused = |reason: &dyn std::fmt::Display| {
        format!(
            "{variable}={} names no descriptor that can be written to: {reason}",
            value.to_string_lossy()
        )
    };
    let number: i32 = value.to_string_lossy().parse().map_err(|error| refused(&error))?;
    let written = take(number).and_then(|fd| File::from(fd).write_all(b"1"));
    written.map_err(|error| refused(&error))
}
