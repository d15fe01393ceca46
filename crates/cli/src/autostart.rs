//! Service and probes of one's own: what `ferretto` does when no service is listening, and [`tracebox`](crate::tracebox) unless one
//! listens where it is told to listen, or `tracebox ctl` has started one.
//!
//! Both run as children of this process, from the same binary, on sockets in a private folder unless they are to be found by others. They
//! are told to end when the recording is over, and end by themselves should this process die. What they say goes through this process,
//! which knows what else is on the terminal. `tracebox ctl` starts them [in the background](start_in_background) instead, where they
//! outlive it.

mod folder;

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferretto_ipc::socket_names::{CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME, SocketNameError};
use ferretto_ipc::{Address, socket_names};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};

use folder::SocketFolder;
pub(crate) use folder::parent as parent_of_socket_folders;

use crate::perfetto;
use crate::running::is_there;
use crate::service::{FindServiceError, Service, StartedService};
use ferretto_daemons::log;
use ferretto_daemons::starter::{MOUNT_TRACEFS, STARTED_BY};

/// How long a child has to come up. One that fails is noticed at once, by the end of its pipe.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a child has to end, which for the probes includes putting tracefs back.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The service that listens at the usual place, or where `PERFETTO_CONSUMER_SOCK_NAME` says; if nobody does, one that is
/// started for the purpose, with probes.
pub(crate) fn running_or_started_service() -> Result<Service, FindServiceError> {
    let usual = socket_names::consumer_address()?;
    match is_there(&usual) {
        true => Ok(Service {
            consumer_socket: usual,
            started: None,
        }),
        false => start(Sockets::PRIVATE).map_err(FindServiceError::Start),
    }
}

/// The children, ended when this is dropped: in this order, for without a service the probes would wait for another.
struct Daemons {
    _probes: Option<Daemon>,
    _traced: Daemon,
    /// The folder of the sockets, removed last.
    _folder: SocketFolder,
}

/// A child, and the thread that passes on what it says.
struct Daemon {
    child: Child,
    voice: Option<JoinHandle<()>>,
}

/// Where a socket of a service of one's own is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketPlace {
    /// In a folder of its own, where nobody looks.
    Private,
    /// At the usual place, or where its variable says.
    Usual,
}

/// Where both are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sockets {
    pub(crate) producers: SocketPlace,
    pub(crate) consumers: SocketPlace,
}

impl Sockets {
    /// Nobody finds either.
    pub(crate) const PRIVATE: Sockets = Sockets {
        producers: SocketPlace::Private,
        consumers: SocketPlace::Private,
    };
    /// Everybody finds both.
    pub(crate) const USUAL: Sockets = Sockets {
        producers: SocketPlace::Usual,
        consumers: SocketPlace::Usual,
    };
}

/// Starts service and probes as children.
///
/// # Errors
/// What kept them from coming up.
pub(crate) fn start(sockets: Sockets) -> Result<Service, String> {
    let folder = SocketFolder::new().map_err(|error| {
        format!("cannot make a folder for sockets: {error}; set TMPDIR to one with a short name that you may write to")
    })?;
    let launcher = Launcher::new(
        (sockets.producers == SocketPlace::Private).then(|| folder.producer_socket()),
        (sockets.consumers == SocketPlace::Private).then(|| folder.consumer_socket()),
    )?;
    let named = |error: SocketNameError| error.to_string();
    let consumer_socket = match &launcher.consumers {
        Some(path) => Address::Unix(path.clone()),
        None => socket_names::consumer_address().map_err(named)?,
    };
    let producer_socket = match &launcher.producers {
        Some(path) => Address::Unix(path.clone()),
        None => socket_names::producer_address().map_err(named)?,
    };
    let traced = launcher.start(&TRACED)?;
    let mut daemons = Daemons {
        _probes: None,
        _traced: traced,
        _folder: folder,
    };
    daemons._probes = Some(launcher.start(&TRACED_PROBES)?);
    Ok(Service {
        consumer_socket,
        started: Some(StartedService {
            producer_socket,
            keep_alive: Box::new(daemons),
        }),
    })
}

/// A daemon by its applet.
struct Applet {
    name: &'static str,
    /// The variable with the descriptor over which it says that it is there.
    notify: &'static str,
}

const TRACED: Applet = Applet {
    name: "traced",
    notify: "TRACED_NOTIFY_FD",
};
const TRACED_PROBES: Applet = Applet {
    name: "traced_probes",
    notify: "TRACED_PROBES_NOTIFY_FD",
};

/// A daemon in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InBackground {
    pub(crate) name: String,
    pub(crate) pid: i32,
}

/// Starts service and probes in the background, at the usual sockets; each is reported as soon as it is of use. If one does not come up,
/// those before it go on.
///
/// # Errors
/// What kept one from coming up.
pub(crate) fn start_in_background(
    mut report: impl FnMut(InBackground) -> Result<(), String>,
) -> Result<(), String> {
    let launcher = Launcher::new(None, None)?;
    for applet in [&TRACED, &TRACED_PROBES] {
        report(launcher.start_in_background(applet)?)?;
    }
    Ok(())
}

struct Launcher {
    program: PathBuf,
    /// Where the sockets are, if not where they usually are.
    producers: Option<PathBuf>,
    consumers: Option<PathBuf>,
}

impl Launcher {
    fn new(producers: Option<PathBuf>, consumers: Option<PathBuf>) -> Result<Launcher, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's own file: {error}"))?;
        Ok(Launcher {
            program,
            producers,
            consumers,
        })
    }

    fn command(&self, applet: &Applet) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(applet.name)
            .env(MOUNT_TRACEFS, OsStr::new("1"))
            // Whoever started this process waits for its word, not for theirs.
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null());
        if let Some(path) = &self.producers {
            command.env(PRODUCER_SOCK_NAME, path);
        }
        if let Some(path) = &self.consumers {
            command.env(CONSUMER_SOCK_NAME, path);
        }
        command
    }

    /// Starts an applet and waits until it says that it is there.
    fn start(&self, applet: &Applet) -> Result<Daemon, String> {
        let mut command = self.command(applet);
        command
            .env(STARTED_BY, std::process::id().to_string())
            .env(log::LEVEL, "warning")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is for the command line alone, which ends the recording and then its children.
            .process_group(0);
        let failed = |error: &dyn std::fmt::Display| format!("{} did not start: {error}", applet.name);
        let (child, ready) = spawn(&mut command, applet).map_err(|error| failed(&error))?;
        let daemon = Daemon::of(child);
        match wait_for_byte(&ready) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                // It has said everything, then.
                drop(daemon);
                Err(failed(&error))
            }
        }
    }

    /// Starts an applet that outlives this process, and waits until it says that it is there.
    fn start_in_background(&self, applet: &Applet) -> Result<InBackground, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{} did not start: {error}", applet.name);
        let mut command = self.command(applet);
        command
            .arg("--background")
            .env_remove(STARTED_BY)
            .stdout(Stdio::piped());
        let (child, ready) = spawn(&mut command, applet).map_err(|error| failed(&error))?;
        // The process that was started prints the id of the one that goes on.
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        let pid = std::str::from_utf8(&output.stdout)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let Some(pid) = pid.filter(|pid| *pid > 0 && output.status.success()) else {
            return Err(failed(&format_args!("it ended with {}", output.status)));
        };
        match wait_for_byte(&ready) {
            Ok(()) => Ok(InBackground {
                name: applet.name.to_owned(),
                pid,
            }),
            Err(error) => {
                if let Some(pid) = Pid::from_raw(pid) {
                    // If it has ended, there is nothing to be told.
                    let _ = rustix::process::kill_process(pid, Signal::TERM);
                }
                Err(failed(&error))
            }
        }
    }
}

/// Starts a command, with a descriptor to say that it is there; gives the other end of that.
fn spawn(command: &mut Command, applet: &Applet) -> io::Result<(Child, OwnedFd)> {
    let (ready, notify) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // Inherited under a number of its own; the other end stays ours.
    let notify = rustix::io::fcntl_dupfd_cloexec(&notify, 10)?;
    rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty())?;
    command.env(applet.notify, notify.as_raw_fd().to_string());
    Ok((command.spawn()?, ready))
}

/// Waits until a child writes its byte; an end without one means that it has failed.
fn wait_for_byte(ready: &OwnedFd) -> io::Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut poll = [PollFd::from_borrowed_fd(ready.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("it said nothing for {} s", START_TIMEOUT.as_secs()),
                ));
            }
            Ok(_) => {}
        }
        let mut byte = [0];
        let mut pipe = std::fs::File::from(ready.try_clone()?);
        return match pipe.read(&mut byte)? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it ended; its own message is above",
            )),
            _ => Ok(()),
        };
    }
}

/// Tells a child to end and waits until it has; after the timeout it is killed.
fn end(child: &mut Child) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return;
    };
    let _ = rustix::process::kill_process(pid, Signal::TERM);
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut pause = Duration::from_millis(1);
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => {}
            _ => return,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
}

impl Daemon {
    fn of(mut child: Child) -> Daemon {
        let said = child.stderr.take();
        let pass_on = |said: ChildStderr| {
            let lines = BufReader::new(said).split(b'\n').map_while(Result::ok);
            lines.for_each(|line| perfetto::interject(log::text(&String::from_utf8_lossy(&line))));
        };
        // Without the thread it is not heard; a recording can do without that.
        let thread = |said| std::thread::Builder::new().spawn(move || pass_on(said)).ok();
        Daemon {
            voice: said.and_then(thread),
            child,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        end(&mut self.child);
        if let Some(voice) = self.voice.take() {
            // It ends with the child's stderr. A panic there has been told of.
            let _ = voice.join();
        }
    }
}
