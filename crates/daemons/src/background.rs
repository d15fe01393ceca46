//! Going on in the background: the fork behind `perfetto -d` and the daemons' `--background`.
#![allow(unsafe_code)]

use std::io;

use rustix::io::Errno;

/// The two processes after a [`fork`].
pub enum Forked {
    /// The process that the user started. The other one has this process id.
    Parent(i32),
    /// The other.
    Child,
}

/// Splits this process in two. To be called at the start of an applet, while the process has only one thread.
///
/// # Errors
/// If the system cannot make another process.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread (the caller's contract), so the child's copy of its memory is consistent: no lock
    // is held and no thread is missing there.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        child => Ok(Forked::Parent(child)),
    }
}

/// Its own session, the root directory, nothing on the standard streams.
///
/// # Errors
/// If the process leads a group of processes, or `/dev/null` cannot be used.
pub fn leave_terminal() -> Result<(), Errno> {
    rustix::process::setsid()?;
    // No mounted directory should stay busy because of this process.
    let _ = rustix::process::chdir("/");
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)
}
