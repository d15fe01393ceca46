//! Going on in the background, as `--background` asks for.
#![allow(unsafe_code)]

use std::io::{self, Write};

/// Splits off a process that goes on without terminal, while the one that was started prints its id and ends.
///
/// To be called while the process has one thread only.
pub(crate) fn continue_in_background() -> io::Result<()> {
    // SAFETY: the process has one thread (the caller's contract), so the child starts with every lock free.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            std::env::set_current_dir("/")?;
            let nowhere = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/null")?;
            rustix::stdio::dup2_stdin(&nowhere)?;
            rustix::stdio::dup2_stdout(&nowhere)?;
            rustix::stdio::dup2_stderr(&nowhere)?;
            Ok(())
        }
        child => {
            println!("{child}");
            io::stdout().flush()?;
            std::process::exit(0);
        }
    }
}
