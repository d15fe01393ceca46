//! Recording in the background: the fork behind `-d` and `-D`, and the byte that says "started".
//!
//! Called by [`run`](super::run), before anything else of the recording exists: there is one thread then, no connection and no
//! child process. As upstream's, the parent waits until the child has left its terminal, prints the child's process id
//! on stdout, and with `-D` waits up to 30 s for the data sources.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::plan::Process;
use ferretto_daemons::background::{self, Forked};

/// How long `-D` waits for all data sources to have started. The recorder tells when that is over, since it knows what has not.
pub(super) const START_WAIT: Duration = Duration::from_secs(30);
/// How much longer its word may take.
const GRACE: Duration = Duration::from_secs(5);

/// How a start went. The numbers are what `--notify-fd` receives and what `-D` exits with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartStatus {
    /// All data sources have started.
    Started = 0,
    /// The recording failed before.
    Failed = 1,
    /// No word in time.
    TimedOut = 2,
}

/// Where we are after [`detach`].
pub(crate) enum Detached {
    /// In the process the user started, whose work is done. It exits with the number of this status.
    Parent(StartStatus, Option<String>),
    /// In the process that records, and whom to tell that it has started.
    Recorder(Vec<StartReport>),
}

/// Somebody who waits for the start: one byte, then the end of the stream.
#[derive(Debug)]
pub(crate) struct StartReport {
    to: File,
    reader: Reader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Whoever passed `--notify-fd`: it gets the byte only.
    Foreign,
    /// The parent process: it gets the reason of a failure too, since our stderr leads nowhere.
    Parent,
}

impl StartReport {
    /// Whether it is for somebody who waits no longer than [`START_WAIT`].
    pub(crate) fn has_a_deadline(&self) -> bool {
        self.reader == Reader::Parent
    }

    /// Tells the outcome, and why it failed.
    pub(crate) fn send(mut self, status: StartStatus, reason: &str) {
        let mut message = vec![status as u8];
        if self.reader == Reader::Parent {
            message.extend_from_slice(reason.as_bytes());
        }
        // Whoever waited may be gone.
        let _ = self.to.write_all(&message);
    }
}

/// Why there is no background process, or nobody to report to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DetachError {
    #[error("cannot go on in the background: {what}: {source}")]
    Background { what: &'static str, source: io::Error },
    #[error("cannot report to the descriptor {fd} of --notify-fd: {source}")]
    NotifyFd { fd: i32, source: io::Error },
}

/// Takes over the descriptor of `--notify-fd`.
pub(crate) fn notify_report(fd: i32) -> Result<StartReport, DetachError> {
    let taken = match fd {
        0 | 1 => take_standard_stream(fd),
        _ => ferretto_daemons::inherited::take(fd),
    };
    let taken = taken.map_err(|source| DetachError::NotifyFd { fd, source })?;
    Ok(StartReport {
        to: File::from(taken),
        reader: Reader::Foreign,
    })
}

/// Takes stdin or stdout, and leaves nothing in its place: its reader sees the end once this is closed.
fn take_standard_stream(fd: i32) -> io::Result<OwnedFd> {
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    match fd {
        0 => {
            let taken = io::stdin().as_fd().try_clone_to_owned()?;
            rustix::stdio::dup2_stdin(&null)?;
            Ok(taken)
        }
        _ => {
            let taken = io::stdout().as_fd().try_clone_to_owned()?;
            rustix::stdio::dup2_stdout(&null)?;
            Ok(taken)
        }
    }
}

/// Forks if `process` asks for it. `before` are those who wait already.
pub(crate) fn detach(process: Process, before: Option<StartReport>) -> Result<Detached, DetachError> {
    let mut reports: Vec<StartReport> = before.into_iter().collect();
    if process == Process::Foreground {
        return Ok(Detached::Recorder(reports));
    }
    let pipe = |what| {
        pipe_with(PipeFlags::CLOEXEC).map_err(|source| DetachError::Background {
            what,
            source: source.into(),
        })
    };
    let (left_terminal, leaving_terminal) = pipe("making a pipe")?;
    let (started, starting) = pipe("making a pipe")?;

    let forked = background::fork().map_err(|source| DetachError::Background { what: "fork", source })?;
    match forked {
        Forked::Child => {
            drop((left_terminal, started));
            background::leave_terminal().map_err(|source| DetachError::Background {
                what: "leaving the terminal",
                source: source.into(),
            })?;
            let _ = rustix::io::write(&leaving_terminal, &[1]);
            if process == Process::BackgroundOnceStarted {
                reports.push(StartReport {
                    to: File::from(starting),
                    reader: Reader::Parent,
                });
            }
            Ok(Detached::Recorder(reports))
        }
        Forked::Parent(child) => {
            drop((leaving_terminal, starting, reports));
            // The end of the stream: the child failed before. It has said why.
            if File::from(left_terminal).read(&mut [0]).unwrap_or(0) == 0 {
                return Ok(Detached::Parent(StartStatus::Failed, None));
            }
            // A closed stdout does not stop the recording.
            let _ = writeln!(io::stdout(), "{child}");
            Ok(match process {
                Process::BackgroundOnceStarted => await_start(started),
                Process::Background | Process::Foreground => Detached::Parent(StartStatus::Started, None),
            })
        }
    }
}

/// Waits for what the recorder reports.
fn await_start(started: OwnedFd) -> Detached {
    let deadline = Instant::now() + START_WAIT + GRACE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&started, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => continue,
            Ok(0) => {
                let reason = format!(
                    "the data sources have not all started within {} s",
                    START_WAIT.as_secs()
                );
                return Detached::Parent(StartStatus::TimedOut, Some(reason));
            }
            Ok(_) | Err(_) => break,
        }
    }
    let mut message = Vec::new();
    // A report that breaks off is none.
    let _ = File::from(started).read_to_end(&mut message);
    match message.split_first() {
        Some((status, _)) if *status == StartStatus::Started as u8 => {
            Detached::Parent(StartStatus::Started, None)
        }
        Some((status, reason)) => Detached::Parent(
            match *status == StartStatus::TimedOut as u8 {
                true => StartStatus::TimedOut,
                false => StartStatus::Failed,
            },
            Some(String::from_utf8_lossy(reason).into_owned()),
        ),
        None => {
            let reason = "the background process ended without a word".to_owned();
            Detached::Parent(StartStatus::Failed, Some(reason))
        }
    }
}
