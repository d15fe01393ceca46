//! A process that waits to become the command of a recording, so that its id is known before anything is recorded.
//!
//! [`Workload`](super::workload::Workload) starts it if the config names the command. This program itself runs in it at first: it waits for a byte on a
//! pipe and then becomes the command, in the same process. If the pipe is closed instead, also because this process was killed, it ends without running
//! anything.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use ferretto_daemons::inherited;
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::workload::NOT_RUNNABLE;
use crate::stderr;
use crate::usage::FERRETTO;

/// The first argument of the program in that process. It is no subcommand for users: behind it come the number of a descriptor and the command.
pub(crate) const WORD: &str = "held-command";

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Held {
    pub(super) child: Child,
    release: OwnedFd,
}

impl Held {
    /// Starts the process. It has the environment, arguments and streams of `command`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(command: &Command) -> io::Result<Held> {
        let (wait, release) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut held = Command::new(std::env::current_exe()?);
        // The name decides which program this is, if the file is a link.
        held.arg0(FERRETTO);
        held.arg(WORD).arg(wait.as_raw_fd().to_string());
        held.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => held.env(name, value),
                None => held.env_remove(name),
            };
        }
        // Another process that this one starts at the same moment may inherit this end, too. It never reads, so it changes nothing.
        rustix::io::fcntl_setfd(&wait, FdFlags::empty())?;
        let child = held.spawn()?;
        Ok(Held { child, release })
    }

    /// Lets it become the command.
    ///
    /// # Errors
    /// If it has ended. It is reaped then.
    pub(super) fn release(mut self) -> io::Result<Child> {
        match rustix::io::write(&self.release, &[1]) {
            Ok(_) => Ok(self.child),
            Err(_) => {
                let status = self.child.wait()?;
                Err(io::Error::other(format!(
                    "its process has ended before ({status})"
                )))
            }
        }
    }

    /// Ends it.
    pub(super) fn abandon(self) {
        let Held { mut child, release } = self;
        drop(release);
        // It is killed lest this waits for a process that somebody has stopped.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits in the process that becomes the command, and becomes it. Returns the exit code if it does not.
pub(crate) fn run(words: Vec<OsString>) -> u8 {
    let mut words = words.into_iter();
    let descriptor = words.next().and_then(|word| word.to_str()?.parse().ok());
    let (Some(descriptor), Some(program)) = (descriptor, words.next()) else {
        stderr::say(FERRETTO, &format_args!("{WORD} is for ferretto itself"));
        return NOT_RUNNABLE;
    };
    match await_release(descriptor) {
        Ok(true) => become_command(&program, words),
        Ok(false) => 0,
        Err(error) => {
            let program = program.to_string_lossy();
            stderr::say(
                FERRETTO,
                &format_args!("cannot wait for the start of {program}: {error}"),
            );
            NOT_RUNNABLE
        }
    }
}

/// Whether it was released.
fn await_release(descriptor: i32) -> io::Result<bool> {
    let wait = inherited::take(descriptor)?;
    let mut byte = [0];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(&wait, &mut byte))?;
    Ok(read == 1)
}

fn become_command(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> u8 {
    let error = Command::new(program).args(arguments).exec();
    let program = program.to_string_lossy();
    stderr::say(FERRETTO, &format_args!("cannot run {program}: {error}"));
    NOT_RUNNABLE
}
