//! The command after `--`, which runs while the recording does.
//!
//! [`run`](super::run) refuses a command that cannot be run, before anything is recorded. [`record`](super::record) starts the command once all data
//! sources have started, and ends the recording when the command ends. If the config names the command, its process is there before ([`Held`]). The command has our standard streams, process group and user, so a terminal's
//! Ctrl-C reaches both. It inherits no other descriptors and no signal handlers. Its exit status becomes ours, in the form that shells use.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use ferretto_heap_client::handshake::HEAP_SOCK_NAME;
use ferretto_ipc::reactor::{Deadline, Events, Interest, Reactor, ReactorError, Signal, Token};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::process::{Pid, PidfdFlags};

use super::console::Console;
use super::held::Held;
use super::signals::{self, SAME_INTERRUPT, Sender};
use crate::figures::Word;
use crate::service::StartedService;
use ferretto_daemons::inherited;

/// The time after which the command starts even if not all data sources have started, and after which a length counts that begins with their start.
pub(super) const START_PATIENCE: Duration = Duration::from_secs(10);
/// So many signals cannot be an accident. Then this process exits, and the command goes on.
const ENOUGH: u32 = 3;
const END: Token = Token(0);
/// The exit codes of a shell for a command that it does not find, and for one that it cannot run.
const NOT_FOUND: u8 = 127;
pub(super) const NOT_RUNNABLE: u8 = 126;
/// The search path of `execvp` without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The words after `--`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
    /// Variables that it gets besides our own.
    environment: Vec<(OsString, OsString)>,
}

/// The reason why a command cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}: {reason}")]
pub(crate) struct NotRun {
    program: String,
    reason: String,
    /// The exit code of a shell in that case.
    pub(crate) status: u8,
}

impl CommandLine {
    /// Reads the words after `--`; `None` if there are none.
    pub(crate) fn of(words: impl IntoIterator<Item = OsString>) -> Option<CommandLine> {
        let mut words = words.into_iter();
        Some(CommandLine {
            program: words.next()?,
            arguments: words.collect(),
            environment: Vec::new(),
        })
    }

    /// Sets a variable in its environment.
    pub(crate) fn with_variable(mut self, name: &str, value: OsString) -> CommandLine {
        self.environment.push((name.into(), value));
        self
    }

    /// Returns the program as typed.
    pub(crate) fn program(&self) -> &OsStr {
        &self.program
    }

    /// Returns the command's name for messages.
    pub(crate) fn name(&self) -> String {
        Word(&self.program.to_string_lossy()).to_string()
    }

    /// Checks that the command can be run, by the same rules as the start.
    pub(crate) fn check(&self) -> Result<(), NotRun> {
        let refused = |status, reason: &dyn std::fmt::Display| NotRun {
            program: self.name(),
            reason: reason.to_string(),
            status,
        };
        // The start needs a pidfd to wait for the end.
        if let Err(error) = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
            return Err(refused(
                NOT_RUNNABLE,
                &format_args!("this kernel lacks pidfd_open (Linux 5.3 has it): {error}"),
            ));
        }
        match is_runnable(&self.program) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(refused(NOT_FOUND, &"there is no such command; is it in PATH?"))
            }
            Err(error) => Err(refused(NOT_RUNNABLE, &error)),
        }
    }
}

/// Whether there is a program of this name, in PATH unless the name is a path.
pub(crate) fn is_runnable(program: &OsStr) -> io::Result<()> {
    find(program).map(|_| ())
}

/// Returns the file of the program of this name, in PATH unless the name is a path.
pub(crate) fn find(program: &OsStr) -> io::Result<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return is_executable(Path::new(program)).map(|()| program.into());
    }
    let mut best = io::Error::from(io::ErrorKind::NotFound);
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    for folder in std::env::split_paths(&path) {
        let file = folder.join(program);
        match is_executable(&file) {
            Ok(()) if !program.is_empty() => return Ok(file),
            // A folder that this user may not enter provides no commands. After `su`, PATH often has the first user's folders.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && file.exists() => best = error,
            _ => {}
        }
    }
    Err(best)
}

fn is_executable(file: &Path) -> io::Result<()> {
    if std::fs::metadata(file)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(rustix::fs::accessat(
        CWD,
        file,
        Access::EXEC_OK,
        AtFlags::EACCESS,
    )?)
}

/// The command of a recording.
#[derive(Debug)]
pub(super) struct Workload {
    command: CommandLine,
    state: State,
    /// The time at which it starts even if not all data sources have started.
    start_at: Option<Duration>,
    /// The signal that it got instead of this process, and the time.
    signalled: Option<(Signal, Duration)>,
    /// Its process id, once it has been started.
    pid: Option<u32>,
}

#[derive(Debug)]
enum State {
    NotStarted,
    /// Its process waits to become the command.
    Held(Held),
    Running {
        child: Child,
        end: OwnedFd,
    },
    Ended(ExitStatus),
    /// It could not be started, or its exit status cannot be known.
    NotRun,
}

impl Workload {
    pub(super) fn new(command: CommandLine) -> Workload {
        Workload {
            command,
            state: State::NotStarted,
            start_at: None,
            signalled: None,
            pid: None,
        }
    }

    /// Returns the process id of the command, also after its end; `None` if it was not started.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(super) fn name(&self) -> String {
        self.command.name()
    }

    /// Notes that the recording was requested.
    pub(super) fn recording_begins(&mut self, now: Duration) {
        self.start_at = Some(now + START_PATIENCE);
    }

    /// Returns the time at which it starts even if not all data sources have started.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.start_at.filter(|_| self.is_awaited())
    }

    /// Whether it still has to be started.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.state, State::NotStarted | State::Held(_))
    }

    /// Starts its process, which waits for [`start`](Self::start) before it becomes the command; returns the process id. Does nothing the second time.
    pub(super) fn hold(&mut self, service: Option<&StartedService>) -> Result<u32, NotRun> {
        if let State::NotStarted = self.state {
            heed_children();
            let held = Held::start(&self.process(service)).map_err(|error| self.not_run(&error))?;
            self.state = State::Held(held);
        }
        match &self.state {
            State::Held(held) => Ok(held.child.id()),
            State::NotStarted | State::Running { .. } | State::Ended(_) | State::NotRun => {
                Err(self.not_run(&"it was started before"))
            }
        }
    }

    /// Starts it. Programs find the daemons of `service` only by their addresses.
    pub(super) fn start(&mut self, service: Option<&StartedService>) -> Result<(), NotRun> {
        let child = match std::mem::replace(&mut self.state, State::NotRun) {
            State::Held(held) => held.release(),
            _ => {
                heed_children();
                self.process(service).spawn()
            }
        };
        let started = child.and_then(|mut child| {
            match rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                Ok(end) => Ok((child, end)),
                Err(error) => {
                    // Its end could not be noticed.
                    let _ = child.kill();
                    let _ = child.wait();
                    Err(error.into())
                }
            }
        });
        let (child, end) = started.map_err(|error| self.not_run(&error))?;
        self.pid = Some(child.id());
        self.state = State::Running { child, end };
        Ok(())
    }

    /// Its process, not started yet.
    fn process(&self, service: Option<&StartedService>) -> Command {
        let mut command = Command::new(&self.command.program);
        command.args(&self.command.arguments);
        command.envs(self.command.environment.iter().map(|(name, value)| (name, value)));
        if let Some(service) = service {
            command.env("PERFETTO_PRODUCER_SOCK_NAME", service.producer_socket.to_string());
            if let Some(socket) = &service.heap_socket {
                command.env(HEAP_SOCK_NAME, socket);
            }
        }
        command
    }

    /// The program was found before, so if a file is missing, it may be the program's interpreter.
    fn not_run(&self, reason: &dyn std::fmt::Display) -> NotRun {
        NotRun {
            program: self.name(),
            reason: reason.to_string(),
            status: NOT_RUNNABLE,
        }
    }

    /// Returns the descriptor that becomes readable when it ends.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Running { end, .. } => Some(end.as_fd()),
            State::NotStarted | State::Held(_) | State::Ended(_) | State::NotRun => None,
        }
    }

    /// Whether it has ended since the last call.
    pub(super) fn has_just_ended(&mut self) -> bool {
        let State::Running { child, .. } = &mut self.state else {
            return false;
        };
        match child.try_wait() {
            Ok(None) => false,
            Ok(Some(status)) => {
                self.state = State::Ended(status);
                true
            }
            // Something else took its status; a handler that ignores children can do that.
            Err(_) => {
                self.state = State::NotRun;
                true
            }
        }
    }

    /// Whether it has got a signal that came to this process.
    pub(super) fn has_a_signal(&self) -> bool {
        self.signalled.is_some()
    }

    /// Whether a signal to this process is for the command. The command gets the first one; the next ends the recording.
    pub(super) fn takes(&mut self, signal: Signal, sender: Sender, now: Duration) -> bool {
        let State::Running { child, .. } = &self.state else {
            return false;
        };
        match self.signalled {
            // `timeout` sends one signal to a process and then to its group.
            Some((first, at)) => signal == first && now < at + SAME_INTERRUPT,
            None => {
                self.signalled = Some((signal, now));
                pass_on(child, signal, sender);
                true
            }
        }
    }

    /// Asks the command to end if it already got a signal, because another one ended or abandoned the recording.
    pub(super) fn terminate(&self) {
        if let (State::Running { child, .. }, Some(_)) = (&self.state, self.signalled) {
            send(child, Signal::Terminate);
        }
    }

    /// Waits for a command that still runs; returns its exit status in the form of shells, or `None` if it was not run.
    pub(super) fn outlive(mut self, console: &mut Console) -> Result<Option<u8>, ReactorError> {
        match std::mem::replace(&mut self.state, State::NotRun) {
            State::Held(held) => held.abandon(),
            other => self.state = other,
        }
        let State::Running { child, end } = &self.state else {
            return Ok(self.exit_status());
        };
        console.notice(format_args!(
            "{} goes on as process {}; waiting for its end (Ctrl-C is for it)",
            self.name(),
            child.id()
        ));
        let mut reactor = Reactor::new()?;
        signals::watch(&mut reactor)?;
        reactor.register(end, END, Interest::Readable)?;
        let mut events = Events::new();
        let mut signals_seen = 0;
        while !self.has_just_ended() {
            reactor.wait(&mut events, Deadline::Monotonic(u64::MAX))?;
            let State::Running { child, .. } = &self.state else {
                break;
            };
            for signal in events.signals() {
                signals_seen += 1;
                if signals_seen == ENOUGH {
                    console.say(format_args!("{} keeps running; ferretto exits", self.name()));
                    signals::die_of(*signal);
                }
                pass_on(child, *signal, Sender::of(*signal, &events));
            }
        }
        Ok(self.exit_status())
    }

    fn exit_status(&self) -> Option<u8> {
        let State::Ended(status) = &self.state else {
            return None;
        };
        let of_signal = || status.signal().map_or(1, |signal| 128 + signal);
        // The value fits: statuses have eight bits, and there are 64 signals.
        Some(status.code().unwrap_or_else(of_signal) as u8)
    }
}

/// A process that ignores SIGCHLD does not get the exit statuses of its children.
fn heed_children() {
    if inherited::ignores(Signal::Child) {
        let _ = signal_hook::flag::register(Signal::Child.number(), Arc::default());
    }
}

/// Passes a signal on, unless the command has it already: a terminal sends Ctrl-C to all processes of its foreground.
fn pass_on(child: &Child, signal: Signal, sender: Sender) {
    if (signal, sender) != (Signal::Interrupt, Sender::Kernel) {
        send(child, signal);
    }
}

fn send(child: &Child, signal: Signal) {
    let signal = match signal {
        Signal::Interrupt => rustix::process::Signal::INT,
        Signal::HangUp => rustix::process::Signal::HUP,
        _ => rustix::process::Signal::TERM,
    };
    // The process has not been reaped, so the id is still its own. It may have ended.
    let _ = rustix::process::kill_process(Pid::from_child(child), signal);
}
