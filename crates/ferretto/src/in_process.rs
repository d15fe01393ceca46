//! The tracing service in this process: a [`Host`] on the SDK's thread, whose clients are connected by pairs of sockets.
//!
//! Called by the muxer, which makes it, has it [take turns](InProcess::turn) in its loop, and sleeps no longer than
//! [`InProcess::deadlines`] or until the [`InProcess`] becomes readable. Clients have the endpoints that they have for a service in
//! another process.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferretto_host::{Admission, Host, PacketFlow, Port, Program};
use ferretto_ipc::Stream;
use ferretto_ipc::reactor::{Deadline, Deadlines, Events, Token, monotonic_now};
use ferretto_service::{MachineId, PriorityBoost};
use ferretto_wire::OutOfLine;

use crate::session::{DataFlow, Valve};
use crate::{clock, system};

/// How long a turn may take, beyond the round that is under way then. The SDK's thread has other work, too.
const TIME_PER_TURN: Duration = Duration::from_millis(2);

/// Whether a turn has left something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    None,
    Some,
}

/// The service of this process, see the [module](self). Clones are the same service.
#[derive(Clone)]
pub(crate) struct InProcess {
    /// Behind a lock, because sessions move between threads. Only the SDK's thread takes it, so it never waits.
    core: Arc<Mutex<Core>>,
    surroundings: Arc<Surroundings>,
    /// Readable when there is work.
    readiness: Arc<OwnedFd>,
    /// Whether sessions stream into files, as of the last turn.
    has_files: &'static AtomicBool,
}

struct Core {
    host: OutOfLine<Host>,
    events: Events,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess")
    }
}

impl InProcess {
    /// Makes a service without connections. The service and its producers say that they are of `machine`. Each turn says in `has_files` whether
    /// sessions stream into files.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub(crate) fn new(machine: MachineId, has_files: &'static AtomicBool) -> Result<InProcess, String> {
        let surroundings = Arc::<Surroundings>::default();
        // Its clients are the process's own, which may have as many connections as one user. It notices by itself if it runs out of descriptors.
        let admission = Admission::for_descriptors(usize::MAX);
        let program: Arc<dyn Program> = surroundings.clone();
        let version = concat!("Ferretto v", env!("CARGO_PKG_VERSION"));
        let mut host = Host::new(ferretto_host::identity(version, machine), admission, program)
            .map_err(|error| error.to_string())?;
        let readiness = host.reactor().as_fd().try_clone_to_owned();
        Ok(InProcess {
            readiness: Arc::new(readiness.map_err(|error| error.to_string())?),
            core: Arc::new(Mutex::new(Core {
                host,
                events: Events::new(),
            })),
            surroundings,
            has_files,
        })
    }

    /// Connects a producer; returns the producer's end of the connection.
    ///
    /// # Errors
    /// If the process has no descriptors left, or has as many clients as one user may.
    pub(crate) fn connect_producer(&self) -> Result<Stream, String> {
        self.connect(Port::Producer).map(|(stream, _)| stream)
    }

    /// Connects a consumer. Returns the consumer's end of the connection, and a valve that lets trace data come or holds it back.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn connect_consumer(&self) -> Result<(Stream, Valve), String> {
        let (stream, token) = self.connect(Port::Consumer)?;
        let service = self.clone();
        let valve = move |flow| {
            let flow = match flow {
                DataFlow::Open => PacketFlow::Open,
                DataFlow::Paused => PacketFlow::Paused,
            };
            service.lock().host.set_packet_flow(token, flow);
        };
        Ok((stream, Box::new(valve)))
    }

    fn connect(&self, port: Port) -> Result<(Stream, Token), String> {
        let (ours, theirs) = Stream::pair().map_err(|error| error.to_string())?;
        let token = self.lock().host.connect(theirs, port);
        let token = token.ok_or("the service in this process takes no more clients; its log says why")?;
        Ok((ours, token))
    }

    /// Does the pending work: requests of clients, timers, and the consequences of writes into files. If that is much, the rest is left for another
    /// turn.
    pub(crate) fn turn(&self) -> Rest {
        let core = &mut *self.lock();
        let until = monotonic_now() + TIME_PER_TURN.as_nanos() as u64;
        let rest = loop {
            core.round();
            let has_more =
                !core.events.ready().is_empty() || core.host.deadlines() == Deadline::Monotonic(0).into();
            if !has_more {
                break Rest::None;
            }
            if monotonic_now() >= until {
                break Rest::Some;
            }
        };
        self.has_files.store(core.host.has_files(), Ordering::Release);
        rest
    }

    /// When a turn is due that readiness does not announce.
    pub(crate) fn deadlines(&self) -> Deadlines {
        self.lock().host.deadlines()
    }

    /// Takes the warnings that were not taken yet.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.surroundings.warnings().waiting)
    }

    /// Ends all sessions, because the process ends. Pending data is still written into files, as far as they take it within this time.
    pub(crate) fn end(&self, patience: Duration) {
        let until = Instant::now() + patience;
        self.lock()
            .host
            .end(|| until.saturating_duration_since(Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // A panic of the service would leave it as consistent as a panic of the daemon's connections does.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for InProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }
}

impl Core {
    fn round(&mut self) {
        let Core { host, events } = self;
        // If the wait fails there are no events, and timers still work.
        let _ = host.reactor().wait(events, Deadline::Monotonic(0));
        host.turn(events);
    }
}

/// This process, as the program around the host.
#[derive(Default)]
struct Surroundings {
    warnings: Mutex<Warnings>,
}

#[derive(Default)]
struct Warnings {
    /// The log may call the service again, so warnings wait here until the turn is over.
    waiting: Vec<String>,
    /// The latest ones, which say nothing new when they come again: they name their sessions.
    latest: VecDeque<String>,
}

impl Warnings {
    /// How many are known again. Each session has a few kinds at most.
    const LATEST: usize = 16;

    fn add(&mut self, line: String) {
        if self.latest.contains(&line) {
            return;
        }
        if self.latest.len() == Self::LATEST {
            self.latest.pop_front();
        }
        self.latest.push_back(line.clone());
        self.waiting.push(line);
    }
}

impl Surroundings {
    fn warnings(&self) -> MutexGuard<'_, Warnings> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Program for Surroundings {
    fn time_stamp_counter(&self) -> Option<u64> {
        clock::time_stamp_counter()
    }

    fn local_time_offset(&self) -> Option<i32> {
        system::timezone_offset_minutes()
    }

    /// Drops lines about the service's work: the application did not ask for them.
    fn info(&self, _: fmt::Arguments<'_>) {}

    fn warning(&self, line: fmt::Arguments<'_>) {
        self.warnings().add(line.to_string());
    }

    /// Drops the line: the client that asked gets the reason as an error.
    fn refused(&self, _: fmt::Arguments<'_>) {}

    fn set_priority(&self, boost: Option<PriorityBoost>) -> Result<(), String> {
        match boost {
            Some(_) => Err("it runs on a thread of this process, which only the program may do".to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_comes_again_is_told_once() {
        let surroundings = Surroundings::default();
        for session in [1, 1, 2, 1] {
            surroundings.warning(format_args!("session {session} is slow"));
        }
        assert_eq!(
            surroundings.warnings().waiting,
            ["session 1 is slow", "session 2 is slow"]
        );
        // Nothing grows with the number of lines.
        for session in 0..100 {
            surroundings.warning(format_args!("session {session} is slow"));
        }
        assert_eq!(surroundings.warnings().latest.len(), Warnings::LATEST);
    }
}
