//! A process that waits to become the command of a recording, so that its id is known before anything is recorded.
//!
//! [`Workload`](super::workload::Workload) starts it if the config names the command. This program itself runs in it at first: it waits for a byte on a
//! pipe and then becomes the command, in the same process. If the pipe is closed instead, also because this process was killed, it ends without running
//! anything.
//!
//! It has the command's arguments and name from the start, because those that list processes may look only once. So a variable says what it is for.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use ferretto_daemons::inherited;
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::workload::NOT_RUNNABLE;
use crate::stderr;
use crate::usage::FERRETTO;

/// The variable with the number of the descriptor that the program in that process reads.
const VARIABLE: &str = "FERRETTO_HELD_COMMAND";

/// This program, also if its file was replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

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
        let mut held = Command::new(THIS_PROGRAM);
        held.arg0(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => held.env(name, value),
                None => held.env_remove(name),
            };
        }
        held.env(VARIABLE, wait.as_raw_fd().to_string());
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
                    "its process has ended before the start ({status})"
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

/// If this is the process that becomes a command, waits and becomes it. Returns the exit code if it was to become one, but does not. The words are those of
/// the command.
pub(crate) fn run_if_held(words: impl IntoIterator<Item = OsString>) -> Option<u8> {
    let descriptor = std::env::var_os(VARIABLE)?;
    let mut words = words.into_iter();
    let (Some(descriptor), Some(program)) = (
        descriptor.to_str().and_then(|number| number.parse().ok()),
        words.next(),
    ) else {
        stderr::say(
            FERRETTO,
            &format_args!("{VARIABLE} is for ferretto itself; unset it"),
        );
        return Some(NOT_RUNNABLE);
    };
    take_name_of(&program);
    Some(match await_release(descriptor) {
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
    })
}

/// Calls this thread as the kernel will call the command's.
fn take_name_of(program: &OsStr) {
    if let Some(Ok(name)) = Path::new(program)
        .file_name()
        .map(|name| CString::new(name.as_bytes()))
    {
        // The kernel shortens it. A failure only leaves another name.
        let _ = rustix::thread::set_name(&name);
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
    let error = Command::new(program).args(arguments).env_remove(VARIABLE).exec();
    let program = program.to_string_lossy();
    stderr::say(FERRETTO, &format_args!("cannot run {program}: {error}"));
    NOT_RUNNABLE
}
