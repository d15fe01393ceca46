//! Snapshots of a recording: with `trigger_mode: CLONE_SNAPSHOT` each hit of a trigger clones the session into `FILE.0`, `FILE.1`, …, while the
//! session goes on.
//!
//! [`record`](super::record), which is notified of the triggers, calls it. A thread takes the snapshots one after another, each over a connection of
//! its own and in the same way as `--clone`. The recording prints their messages.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use ferretto_ipc::address::Address;
use ferretto_ipc::reactor::{Signal, Waker};
use ferretto_proto::messages::TraceConfig;
use ferretto_proto::messages::observable_events::CloneTriggerHit;

use super::console::{Console, Voice};
use super::output::Output;
use super::plan::{
    CloneOf, ExistingFile, HitTrigger, Job, Original, Process, Recording, Sink, Strictness, TraceFilter,
};
use super::signals::{Relay, Signals};
use super::{SUCCESS, save_clone};
use crate::config::refusals::takes_snapshots;

/// The parameters for a recording's snapshots.
pub(super) struct SnapshotPlan {
    voice: Voice,
    /// The path to which the number of the snapshot is added.
    path: PathBuf,
    config: TraceConfig,
    existing: ExistingFile,
}

impl SnapshotPlan {
    /// Returns the plan for a recording; `None` if it takes no snapshots.
    pub(super) fn of(recording: &Recording, output: Option<&Output>, voice: Voice) -> Option<SnapshotPlan> {
        let path = match (&recording.sink, recording.process) {
            (Sink::File(path), Process::Foreground) => path,
            // A background process has changed its directory, so it needs the absolute path.
            (Sink::File(_), Process::Background | Process::BackgroundOnceStarted) => {
                output?.absolute_path()?
            }
            _ => return None,
        };
        if recording.job != Job::Record || !takes_snapshots(&recording.config) {
            return None;
        }
        let mut config = recording.config.clone();
        // Snapshots must not be delayed.
        config.cmd_trace_start_delay = Default::default();
        Some(SnapshotPlan {
            voice,
            path: path.to_owned(),
            config,
            existing: recording.existing,
        })
    }

    /// Returns the file of a snapshot.
    fn path(&self, number: usize) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    fn recording(&self, number: usize, hit: &CloneTriggerHit) -> Recording {
        Recording {
            job: Job::Clone(CloneOf {
                original: Original::Id(hit.tracing_session_id.unwrap_or_default() as u64),
                filter: TraceFilter::Applied,
                trigger: Some(HitTrigger {
                    name: hit.trigger_name.clone().unwrap_or_default(),
                    producer_name: hit.producer_name.clone().unwrap_or_default(),
                    producer_uid: hit.producer_uid.unwrap_or_default(),
                    boot_time_ns: hit.boot_time_ns.unwrap_or_default(),
                    delay_ms: hit.trigger_delay_ms.unwrap_or_default(),
                }),
            }),
            config: self.config.clone(),
            written: None,
            sink: Sink::File(self.path(number)),
            existing: self.existing,
            process: Process::Foreground,
            notify_fd: None,
            strictness: Strictness::Lenient,
            command: None,
            once_started: None,
        }
    }
}

/// An order to take a snapshot from the service at this socket.
struct Order {
    recording: Recording,
    socket: Address,
}

/// The result of a snapshot.
struct Report {
    lines: Vec<String>,
    exit_code: u8,
}

/// The snapshots of a recording.
pub(super) struct Snapshots {
    plan: SnapshotPlan,
    /// The channel to the thread, once it has started. Dropping it ends the thread after its present snapshot.
    orders: Option<Sender<Order>>,
    reports: (Sender<Report>, Receiver<Report>),
    waker: Waker,
    /// Passes a signal to the present snapshot.
    relay: Relay,
    ordered: usize,
    reported: usize,
    succeeded: usize,
    failed: usize,
}

impl Snapshots {
    /// Starts without snapshots. Wakes `waker` whenever [`Snapshots::take_lines`] has new lines.
    pub(super) fn new(plan: SnapshotPlan, waker: Waker) -> Snapshots {
        Snapshots {
            plan,
            orders: None,
            reports: channel(),
            waker,
            relay: Relay::default(),
            ordered: 0,
            reported: 0,
            succeeded: 0,
            failed: 0,
        }
    }

    /// Orders a snapshot, which is taken after the ones before it.
    pub(super) fn take(&mut self, hit: &CloneTriggerHit, socket: &Address) -> std::io::Result<()> {
        let orders = match &self.orders {
            Some(orders) => orders,
            None => {
                let thread = start(
                    self.plan.voice,
                    self.reports.0.clone(),
                    self.waker.clone(),
                    self.relay.clone(),
                );
                self.orders.insert(thread.inspect_err(|_| self.failed += 1)?)
            }
        };
        let order = Order {
            recording: self.plan.recording(self.ordered, hit),
            socket: socket.clone(),
        };
        self.ordered += 1;
        // The thread lives as long as this sender.
        let _ = orders.send(order);
        Ok(())
    }

    /// Returns the messages of snapshots since the last call.
    pub(super) fn take_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(report) = self.reports.1.try_recv() {
            self.reported += 1;
            match report.exit_code {
                SUCCESS => self.succeeded += 1,
                _ => self.failed += 1,
            }
            lines.extend(report.lines);
        }
        lines
    }

    /// Makes unfinished snapshots end because of this signal, and report that.
    pub(super) fn give_up(&self, signal: Signal) {
        self.relay.pass_on(signal);
    }

    /// Returns the files of unfinished snapshots.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = PathBuf> {
        (self.reported..self.ordered).map(|number| self.plan.path(number))
    }

    /// Whether some snapshots are unfinished.
    pub(super) fn under_way(&self) -> bool {
        self.reported < self.ordered
    }

    /// Returns the number of snapshots taken.
    pub(super) fn taken(&self) -> usize {
        self.succeeded
    }

    /// Whether some snapshots failed.
    pub(super) fn any_failed(&self) -> bool {
        self.failed > 0
    }
}

fn start(
    voice: Voice,
    reports: Sender<Report>,
    waker: Waker,
    relay: Relay,
) -> std::io::Result<Sender<Order>> {
    let (orders, received) = channel::<Order>();
    std::thread::Builder::new()
        .name("snapshots".into())
        .spawn(move || {
            for Order { recording, socket } in received {
                let mut console = Console::kept(voice);
                let exit_code = save_clone(recording, &socket, Signals::Relayed(relay.clone()), &mut console);
                let report = Report {
                    lines: console.into_kept(),
                    exit_code,
                };
                if reports.send(report).is_err() {
                    break;
                }
                waker.wake();
            }
        })?;
    Ok(orders)
}

#[cfg(test)]
#[path = "../../../ipc/tests/reference/socket_folder.rs"]
mod socket_folder;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use ferretto_ipc::reactor::{Deadline, Events, Reactor};

    use super::socket_folder::socket_folder;
    use super::*;
    use crate::perfetto::Program;
    use crate::perfetto::console::Loudness;

    #[test]
    fn snapshots_that_are_given_up_say_so_and_leave_nothing() {
        let folder = socket_folder("ferretto-test-");
        let socket = folder.path().join("socket");
        // A service that never answers.
        let mute = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut reactor = Reactor::new().unwrap();
        let plan = SnapshotPlan {
            voice: Voice {
                program: Program::Perfetto,
                loudness: Loudness::Usual,
            },
            path: folder.path().join("trace"),
            config: TraceConfig::default(),
            existing: ExistingFile::Replace,
        };
        let mut snapshots = Snapshots::new(plan, reactor.waker());
        for _ in 0..2 {
            let (hit, socket) = (CloneTriggerHit::default(), Address::Unix(socket.clone()));
            snapshots.take(&hit, &socket).unwrap();
        }
        let (mut connection, _) = mute.accept().unwrap();
        // The first request has come.
        connection.read_exact(&mut [0; 4]).unwrap();
        let expected = [0, 1].map(|number| folder.path().join(format!("trace.{number}")));
        assert_eq!(snapshots.unfinished().collect::<Vec<_>>(), expected);

        snapshots.give_up(Signal::Interrupt);
        let (mut events, mut lines) = (Events::new(), Vec::new());
        while snapshots.under_way() {
            let patience = Deadline::after(Duration::from_secs(30));
            reactor.wait(&mut events, Some(patience)).unwrap();
            let more = snapshots.take_lines();
            assert!(!more.is_empty(), "no word from it");
            lines.extend(more);
        }
        assert_eq!(lines, ["perfetto: Ctrl-C: the clone is given up"; 2]);
        assert!(snapshots.any_failed() && snapshots.taken() == 0);
        assert!(expected.iter().all(|file| !file.exists()));
    }
}
