//! Service and probes of one's own: what `ferretto` does when no service is listening.
//!
//! Both run as children of this process, from the same binary, on sockets in a private folder. They are told to end when the
//! recording is over, and end by themselves should this process die. What they say goes through this process, which knows what else is on
//! the terminal.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferretto_ipc::{Address, Stream, socket_names};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};

use crate::log;
use crate::perfetto::{self, FindServiceError, Service, StartedService};

/// Set in children of ours: the process id of the one that started them, with which they end.
pub(crate) const STARTED_BY: &str = "FERRETTO_STARTED_BY";
/// Set for our probes: tracefs is mounted if a recording needs it and it is not there.
pub(crate) const MOUNT_TRACEFS: &str = "FERRETTO_MOUNT_TRACEFS";

/// How long a child has to come up.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a child has to end, which for the probes includes putting tracefs back.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The service that listens at the usual place, or where `PERFETTO_CONSUMER_SOCK_NAME` says; if nobody does, one that is
/// started for the purpose, with probes.
pub(crate) fn running_or_started_service() -> Result<Service, FindServiceError> {
    let usual = socket_names::consumer_address()?;
    match Stream::connect(&usual) {
        Err(error) if error.is_unreachable() => start().map_err(FindServiceError::Start),
        // Whatever else is wrong with it will come out when it is used.
        _ => Ok(Service {
            consumer_socket: usual,
            started: None,
        }),
    }
}

/// The children, ended when this is dropped: in this order, for without a service the probes would wait for another.
struct Daemons {
    _probes: Option<Daemon>,
    _traced: Daemon,
    /// The folder of the sockets, removed last.
    _folder: tempfile::TempDir,
}

/// A child, and the thread that passes on what it says.
struct Daemon {
    child: Child,
    voice: Option<JoinHandle<()>>,
}

fn start() -> Result<Service, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let folder = tempfile::Builder::new()
        .prefix("ferretto-")
        .tempdir()
        .map_err(|error| {
            format!("cannot make a folder for sockets: {error}; set TMPDIR to one you may write to")
        })?;
    let consumer_socket = Address::Unix(folder.path().join("consumer"));
    let producer_socket = folder.path().join("producer");
    let launcher = Launcher {
        program: &program,
        folder: folder.path(),
    };
    let traced = launcher.start("traced", "TRACED_NOTIFY_FD")?;
    let mut daemons = Daemons {
        _probes: None,
        _traced: traced,
        _folder: folder,
    };
    let launcher = Launcher {
        program: &program,
        folder: daemons._folder.path(),
    };
    daemons._probes = Some(launcher.start("traced_probes", "TRACED_PROBES_NOTIFY_FD")?);
    Ok(Service {
        consumer_socket,
        started: Some(StartedService {
            producer_socket: Address::Unix(producer_socket),
            keep_alive: Box::new(daemons),
        }),
    })
}

struct Launcher<'a> {
    program: &'a Path,
    folder: &'a Path,
}

impl Launcher<'_> {
    /// Starts an applet and waits until it says, over the descriptor that this variable names, that it is there.
    fn start(&self, applet: &str, notify_variable: &str) -> Result<Daemon, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{applet} did not start: {error}");
        let (ready, notify) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| failed(&error))?;
        // Inherited under a number of its own; the other end stays ours.
        let notify = rustix::io::fcntl_dupfd_cloexec(&notify, 10).map_err(|error| failed(&error))?;
        rustix::io::fcntl_setfd(&notify, rustix::io::FdFlags::empty()).map_err(|error| failed(&error))?;
        let child = Command::new(self.program)
            .arg(applet)
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.folder.join("producer"))
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.folder.join("consumer"))
            .env(notify_variable, notify.as_raw_fd().to_string())
            .env(STARTED_BY, std::process::id().to_string())
            .env(MOUNT_TRACEFS, OsStr::new("1"))
            .env(crate::log::LEVEL, "warning")
            // Whoever started this process waits for its word, not for theirs.
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is for the command line alone, which ends the recording and then its children.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        drop(notify);
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
                    "it said nothing for 10 s",
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

/// To be called by an applet at its start: if a `ferretto` started it, it ends with that process.
pub(crate) fn end_with_starter() -> io::Result<()> {
    let Some(starter) = std::env::var(STARTED_BY)
        .ok()
        .and_then(|pid| pid.parse().ok())
        .and_then(Pid::from_raw)
    else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before that.
    if rustix::process::getppid() != Some(starter) {
        return Err(io::Error::other("the process that started this one is gone"));
    }
    Ok(())
}
