//! Starts a private service with producers.
//!
//! `ferretto` does so when no service is listening. [`tracebox`](crate::tracebox) does so unless it is told of a socket on which a service listens,
//! or `tracebox ctl` has started one. Service, probes and profilers run as children of this process, from the same binary. Their sockets are in a private
//! folder, unless others should find them. The children are told to end when the recording is over, and end by themselves if this process dies. This
//! process passes on what they log, because it knows what else is on the terminal. `tracebox ctl` starts them [in the
//! background](start_in_background) instead, where they outlive this process.

mod folder;

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferretto_heap_client::handshake::HEAP_SOCK_NAME;
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

/// The time that a child has to start. A child that fails closes its pipe, which is noticed at once.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that a child has to end. For the probes that includes restoring tracefs.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the service at the usual socket, or at the one that `PERFETTO_CONSUMER_SOCK_NAME` names. If none listens there, starts one, with producers.
pub(crate) fn running_or_started_service() -> Result<Service, FindServiceError> {
    running_or_started(Sockets::PRIVATE)
}

/// The same, but programs that run already find the heap profiler of a started service.
pub(crate) fn running_or_started_service_for_running_programs() -> Result<Service, FindServiceError> {
    running_or_started(Sockets {
        heaps: SocketPlace::Usual,
        ..Sockets::PRIVATE
    })
}

fn running_or_started(sockets: Sockets) -> Result<Service, FindServiceError> {
    let usual = socket_names::consumer_address()?;
    match is_there(&usual) {
        true => Ok(Service {
            consumer_socket: usual,
            started: None,
        }),
        false => start(sockets).map_err(FindServiceError::Start),
    }
}

/// The children. Dropping this ends them in the order of the fields: without a service, the producers would wait for another one.
struct Daemons {
    _producers: Vec<Daemon>,
    _traced: Daemon,
    /// The folder of the sockets, which is removed last.
    _folder: SocketFolder,
}

/// A child, and the thread that passes on its log.
struct Daemon {
    child: Child,
    voice: Option<JoinHandle<()>>,
}

/// The place of a socket of a started service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketPlace {
    /// In a private folder.
    Private,
    /// At the usual place, or the one that its environment variable names.
    Usual,
}

/// The places of the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sockets {
    pub(crate) producers: SocketPlace,
    pub(crate) consumers: SocketPlace,
    /// The socket of the heap profiler. Programs that run already look for it at the usual place.
    pub(crate) heaps: SocketPlace,
}

impl Sockets {
    /// Nobody else finds any socket.
    pub(crate) const PRIVATE: Sockets = Sockets {
        producers: SocketPlace::Private,
        consumers: SocketPlace::Private,
        heaps: SocketPlace::Private,
    };
    /// Everybody finds all sockets.
    pub(crate) const USUAL: Sockets = Sockets {
        producers: SocketPlace::Usual,
        consumers: SocketPlace::Usual,
        heaps: SocketPlace::Usual,
    };
}

/// Starts the service, probes and profilers as children.
///
/// # Errors
/// If one of them does not start. At the usual sockets there may be a heap profiler already.
pub(crate) fn start(sockets: Sockets) -> Result<Service, String> {
    let folder = SocketFolder::new().map_err(|error| {
        format!("cannot make a folder for sockets: {error}; set TMPDIR to one with a short name that you may write to")
    })?;
    let heap = (sockets.heaps == SocketPlace::Private).then(|| folder.heap_socket());
    let launcher = Launcher::new(
        (sockets.producers == SocketPlace::Private).then(|| folder.producer_socket()),
        (sockets.consumers == SocketPlace::Private).then(|| folder.consumer_socket()),
        heap.clone(),
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
        _producers: Vec::new(),
        _traced: traced,
        _folder: folder,
    };
    for producer in [&TRACED_PROBES, &TRACED_PERF] {
        daemons._producers.push(launcher.start(producer)?);
    }
    match launcher.start(&HEAPPROFD) {
        Ok(daemon) => daemons._producers.push(daemon),
        // One that is there already waits for this service.
        Err(_) if sockets == Sockets::USUAL => {}
        Err(error) => return Err(error),
    }
    Ok(Service {
        consumer_socket,
        started: Some(StartedService {
            producer_socket,
            heap_socket: heap.map(PathBuf::into_os_string),
            _keep_alive: Box::new(daemons),
        }),
    })
}

/// A daemon, by its applet.
struct Applet {
    name: &'static str,
    /// The environment variable with the descriptor over which the daemon reports that it is ready.
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
const TRACED_PERF: Applet = Applet {
    name: "traced_perf",
    notify: "TRACED_PERF_NOTIFY_FD",
};
const HEAPPROFD: Applet = Applet {
    name: "heapprofd",
    notify: "HEAPPROFD_NOTIFY_FD",
};

/// A daemon in the background.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InBackground {
    pub(crate) name: String,
    pub(crate) pid: i32,
}

/// Starts service and probes in the background, at the usual sockets. Reports each one as soon as it is ready. If one does not start, those before it
/// go on.
///
/// # Errors
/// If one of them does not start, or `report` fails.
pub(crate) fn start_in_background(
    mut report: impl FnMut(InBackground) -> Result<(), String>,
) -> Result<(), String> {
    let launcher = Launcher::new(None, None, None)?;
    for applet in [&TRACED, &TRACED_PROBES] {
        report(launcher.start_in_background(applet)?)?;
    }
    Ok(())
}

struct Launcher {
    program: PathBuf,
    /// The paths of the sockets; `None` for the usual ones.
    producers: Option<PathBuf>,
    consumers: Option<PathBuf>,
    heap: Option<PathBuf>,
}

impl Launcher {
    fn new(
        producers: Option<PathBuf>,
        consumers: Option<PathBuf>,
        heap: Option<PathBuf>,
    ) -> Result<Launcher, String> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program's own file: {error}"))?;
        Ok(Launcher {
            program,
            producers,
            consumers,
            heap,
        })
    }

    fn command(&self, applet: &Applet) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(applet.name)
            .env(MOUNT_TRACEFS, OsStr::new("1"))
            // The service manager waits for this process's notification, not for the child's.
            .env_remove("NOTIFY_SOCKET")
            // A heap profiler that profiles itself, or its service, would wait for itself.
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        if let Some(path) = &self.producers {
            command.env(PRODUCER_SOCK_NAME, path);
        }
        if let Some(path) = &self.consumers {
            command.env(CONSUMER_SOCK_NAME, path);
        }
        if let Some(path) = &self.heap {
            command.env(HEAP_SOCK_NAME, path);
            if applet.name == HEAPPROFD.name && rustix::process::geteuid().is_root() {
                // Programs that root starts may go on as other users.
                command.arg("--set-socket-permissions=-1:0666");
            }
        }
        command
    }

    /// Starts an applet and waits until it is ready.
    fn start(&self, applet: &Applet) -> Result<Daemon, String> {
        let mut command = self.command(applet);
        command
            .env(STARTED_BY, std::process::id().to_string())
            .env(log::LEVEL, "warning")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Only the command line gets Ctrl-C. It ends the recording first and then its children.
            .process_group(0);
        let failed = |error: &dyn std::fmt::Display| format!("{} did not start: {error}", applet.name);
        let (child, ready) = spawn(&mut command, applet).map_err(|error| failed(&error))?;
        let daemon = Daemon::of(child);
        match wait_for_byte(&ready) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                // Dropping it first passes on its whole log.
                drop(daemon);
                Err(failed(&error))
            }
        }
    }

    /// Starts an applet that outlives this process, and waits until it is ready.
    fn start_in_background(&self, applet: &Applet) -> Result<InBackground, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{} did not start: {error}", applet.name);
        let mut command = self.command(applet);
        command
            .arg("--background")
            .env_remove(STARTED_BY)
            .stdout(Stdio::piped());
        let (child, ready) = spawn(&mut command, applet).map_err(|error| failed(&error))?;
        // The started process prints the id of the daemon, then ends.
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
                    // An error means that the daemon has already ended.
                    let _ = rustix::process::kill_process(pid, Signal::TERM);
                }
                Err(failed(&error))
            }
        }
    }
}

/// Starts a command with a descriptor for its notification; returns the other end.
fn spawn(command: &mut Command, applet: &Applet) -> io::Result<(Child, OwnedFd)> {
    let (ready, notify) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // The child inherits this end under a number of its own. The other end has close-on-exec.
    let notify = rustix::io::fcntl_dupfd_cloexec(&notify, 10)?;
    rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty())?;
    command.env(applet.notify, notify.as_raw_fd().to_string());
    Ok((command.spawn()?, ready))
}

/// Waits until a child writes its byte. If the pipe closes without one, the child has failed.
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

/// Asks a child to end and waits; kills it after the timeout.
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
        // Without the thread the child's log is lost, which does not affect the recording.
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
            // The thread ends when the child's stderr closes. The panic handler has reported any panic.
            let _ = voice.join();
        }
    }
}
