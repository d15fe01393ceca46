//! Recording in the background: forks for `-d` and `-D`, and reports the start with one byte.
//!
//! [`run`](super::run) calls it while there is only one thread, no connection and no child process. As upstream's, the parent waits until the child
//! has left its terminal, prints the child's process id on stdout, and with `-D` waits up to 30 s for the data sources.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::plan::Process;
use ferretto_daemons::background::{self, Forked};

/// The time that `-D` waits for all data sources to start. The recorder measures it, because it knows which ones have not started.
pub(super) const START_WAIT: Duration = Duration::from_secs(30);
/// The extra time for its report to arrive.
const GRACE: Duration = Duration::from_secs(5);

/// The outcome of a start. `--notify-fd` receives the number, and `-D` exits with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartStatus {
    /// All data sources have started.
    Started = 0,
    /// The recording failed before it started.
    Failed = 1,
    /// No report came in time.
    TimedOut = 2,
}

/// The process in which [`detach`] returns.
pub(crate) enum Detached {
    /// The process that the user started. Its work is done, and it exits with the number of this status.
    Parent(StartStatus, Option<String>),
    /// The process that records, with the reports to send about its start.
    Recorder(Vec<StartReport>),
}

/// A report of the start to a waiting process: one byte, then the end of the stream.
#[derive(Debug)]
pub(crate) struct StartReport {
    to: File,
    reader: Reader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// The process that passed `--notify-fd`. It gets only the byte.
    Foreign,
    /// The parent process. It also gets the reason of a failure, because the recorder's stderr leads nowhere.
    Parent,
}

impl StartReport {
    /// Whether the reader waits no longer than [`START_WAIT`].
    pub(crate) fn has_a_deadline(&self) -> bool {
        self.reader == Reader::Parent
    }

    /// Sends the outcome, and the reason of a failure.
    pub(crate) fn send(mut self, status: StartStatus, reason: &str) {
        let mut message = vec![status as u8];
        if self.reader == Reader::Parent {
            message.extend_from_slice(reason.as_bytes());
        }
        // The reader may have ended.
        let _ = self.to.write_all(&message);
    }
}

/// The reason why there is no background process, or no reader to report to.
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

/// Takes stdin or stdout and puts `/dev/null` in its place, so that closing it shows the reader the end.
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

/// Forks if `process` requires it. `before` is a report that must be sent anyway.
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
            // The stream ended without a byte, because the child failed. It has printed the reason.
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

/// Waits for the recorder's report.
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
    // An incomplete report counts as none.
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
