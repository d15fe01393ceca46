//! The thread of an instance: reads rings when they fill or it is time, and does what the runtime says.
//!
//! [`LinuxPerf`](crate::source::LinuxPerf) starts it. Flushes and the stop are done when everything that the kernel had written by then is in packets.

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::{Acknowledge, Trouble};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Command, Inbox, What};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::channel::Nothing;
use ferretto_ipc::reactor::{Deadline, Events, Interest, Reactor, ReactorError, Token, boot_now};

use crate::config::{Counted, Mode, PerfConfig};
use crate::cpu::CpuEvents;
use crate::ends::Look;
use crate::guardrails::daemon_exceeds;
use crate::hotplug::Hotplug;
use crate::profiler::{Profiler, Progress};
use crate::source::NAME;

/// How often the daemon's memory is looked at, as upstream.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);

/// How often at most the list of CPUs is looked at.
const CPUS_PERIOD: Duration = Duration::from_millis(100);

const RINGS: Token = Token(0);

/// See the [module](self).
pub(crate) struct PerfThread {
    pub(crate) program: Arc<dyn ProducerProgram>,
    /// The instance's serial number.
    pub(crate) instance: u32,
    pub(crate) config: PerfConfig,
    pub(crate) profiler: Profiler,
    pub(crate) hotplug: Hotplug,
    pub(crate) writer: TraceWriter,
    /// The log says that samples are missing and go on missing.
    pub(crate) has_told_missing: bool,
}

/// Something that is due again and again, at multiples of its period.
#[derive(Clone, Copy, Debug)]
struct Periodic {
    /// In nanoseconds.
    period: u64,
    next: u64,
}

impl Periodic {
    fn new(period: Duration) -> Periodic {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        let mut periodic = Periodic { period, next: 0 };
        periodic.plan(boot_now());
        periodic
    }

    fn plan(&mut self, now: u64) {
        self.next = (now - now % self.period).saturating_add(self.period);
    }

    /// Whether it is due; then the next time is planned.
    fn is_due(&mut self, now: u64) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.plan(now);
        }
        is_due
    }
}

/// The times of the thread's periodic work.
struct Schedule {
    read: Periodic,
    /// Not before the next read.
    cpus: Periodic,
    memory: Option<(Periodic, u64)>,
    clear: Option<Periodic>,
}

impl Schedule {
    fn of(config: &PerfConfig) -> Schedule {
        match &config.mode {
            Mode::Polling(period) => Schedule {
                read: Periodic::new(*period),
                cpus: Periodic::new(CPUS_PERIOD),
                memory: None,
                clear: None,
            },
            Mode::Sampling(sampling) => Schedule {
                read: Periodic::new(sampling.read_period),
                cpus: Periodic::new(CPUS_PERIOD),
                memory: sampling
                    .most_daemon_memory_kb
                    .map(|most_kb| (Periodic::new(MEMORY_PERIOD), most_kb)),
                clear: sampling
                    .stacks
                    .as_ref()
                    .map(|_| Periodic::new(sampling.clear_period)),
            },
        }
    }

    fn next(&self) -> u64 {
        let memory = self.memory.iter().map(|(periodic, _)| periodic);
        let others = memory.chain(&self.clear).map(|periodic| periodic.next);
        others.fold(self.read.next, u64::min)
    }
}

/// Why the loop has ended.
enum Ended {
    /// The runtime wants it, and is told by dropping this.
    Stopped(Acknowledge),
    /// The data source is gone.
    Abandoned,
    /// The daemon has more memory than the config allows.
    TooMuchMemory,
}

impl PerfThread {
    /// Works until it is told to stop. Drops `started` once samples are taken.
    pub(crate) fn run(mut self, mut inbox: Inbox, started: Acknowledge) {
        self.program.join_instance(self.instance);
        if let Err(error) = self.begin(&inbox) {
            let trouble = Trouble {
                source: NAME.to_owned(),
                failure: format!("could not be started: {error}"),
                noticed: boot_now(),
            };
            self.program.warning(&trouble.to_string());
            trouble.write(&mut self.writer);
            drop(inbox.await_stop());
            // The instance has ended by now, so the service is not told that it had started.
            return drop(started);
        }
        drop(started);
        match self.follow(&mut inbox) {
            Ok(Ended::Stopped(stopped)) => {
                // With the writer goes the last chunk, before the service hears that the instance has stopped.
                drop(self);
                drop(stopped);
            }
            Ok(Ended::Abandoned) => {}
            Ok(Ended::TooMuchMemory) => {
                self.profiler.give_up(&mut self.writer);
                self.writer.flush();
                self.program.warning(&format!(
                    "{NAME}: the daemon needs more than max_daemon_memory_kb; nothing more is sampled"
                ));
                // Rings and the state of processes go now.
                drop(self);
                drop(inbox.await_stop());
            }
            Err(error) => {
                self.program
                    .warning(&format!("{NAME}: nothing more is sampled: {error}"));
                drop(self);
                drop(inbox.await_stop());
            }
        }
    }

    fn begin(&mut self, inbox: &Inbox) -> Result<(), Box<dyn std::error::Error>> {
        for cpu in self.profiler.cpus() {
            inbox.reactor.register(cpu, RINGS, Interest::Readable)?;
        }
        self.profiler.prepare();
        self.profiler.enable(&mut self.writer)?;
        self.writer.flush();
        Ok(())
    }

    fn follow(&mut self, inbox: &mut Inbox) -> Result<Ended, ReactorError> {
        let mut schedule = Schedule::of(&self.config);
        let mut events = Events::new();
        loop {
            loop {
                match inbox.try_receive() {
                    Ok(Command { what, done }) => match what {
                        What::ClearIncrementalState => self.profiler.clear_incremental_state(),
                        What::Flush => {
                            self.catch_up();
                            self.writer.flush();
                            drop(done);
                        }
                        What::Stop => {
                            self.look_at_cpus(&inbox.reactor);
                            self.profiler.disable();
                            self.catch_up();
                            self.tell_missing();
                            self.writer.flush();
                            return Ok(Ended::Stopped(done));
                        }
                    },
                    Err(Nothing::SoFar) => break,
                    Err(Nothing::EverAgain) => return Ok(Ended::Abandoned),
                }
            }
            let now = boot_now();
            let is_time = schedule.read.is_due(now);
            if is_time && schedule.cpus.is_due(now) {
                self.look_at_cpus(&inbox.reactor);
                self.look_at_threads(&inbox.reactor);
            }
            let progress = match &self.config.mode {
                Mode::Polling(_) => {
                    if is_time {
                        self.profiler.poll(&mut self.writer);
                    }
                    Progress::CaughtUp
                }
                Mode::Sampling(_) => self.profiler.turn(&mut self.writer),
            };
            if let Some((periodic, most_kb)) = &mut schedule.memory
                && periodic.is_due(now)
                && daemon_exceeds(*most_kb)
            {
                return Ok(Ended::TooMuchMemory);
            }
            if schedule.clear.as_mut().is_some_and(|clear| clear.is_due(now)) {
                self.profiler.clear_unwind_state();
            }
            let deadline = match progress {
                Progress::CaughtUp => schedule.next(),
                Progress::MoreToDo => now,
            };
            inbox.reactor.wait(&mut events, Some(Deadline::Boot(deadline)))?;
        }
    }

    fn look_at_cpus(&mut self, reactor: &Reactor) {
        let watched_by = (reactor, RINGS);
        let changes = self
            .hotplug
            .look(&self.config, &mut self.profiler, watched_by, &mut self.writer);
        for change in changes {
            self.program.warning(&format!("{NAME}: {change}"));
        }
    }

    /// Has everybody counted if much is missing of the processes that are counted alone.
    fn look_at_threads(&mut self, reactor: &Reactor) {
        let Some(why) = self.missing(Look::OneOfMany) else {
            return;
        };
        let line = match self.count_everybody(reactor) {
            Ok(()) => "all processes are sampled from now on, and the samples of others left out".to_owned(),
            Err(error) => {
                self.has_told_missing = true;
                format!("samples are missing, because not all processes can be sampled: {error}")
            }
        };
        self.program.warning(&format!("{NAME}: {why}; {line}"));
    }

    /// Says at the end what the looks before have not found: a command may be done before the first.
    fn tell_missing(&mut self) {
        if let Some(why) = self.missing(Look::Last) {
            self.program.warning(&format!(
                "{NAME}: {why}; samples are missing: sample more often, or for longer"
            ));
        }
    }

    fn missing(&mut self, look: Look) -> Option<String> {
        match self.has_told_missing {
            true => None,
            false => self.profiler.missing(&self.config.counted, look),
        }
    }

    /// # Errors
    /// If not all processes can be counted. Then all stays as it was.
    fn count_everybody(&mut self, reactor: &Reactor) -> Result<(), Box<dyn std::error::Error>> {
        let config = PerfConfig {
            counted: Counted::Everybody,
            ..self.config.clone()
        };
        let cpus: Vec<u32> = self.profiler.cpus().iter().map(|events| events.cpu).collect();
        let events = CpuEvents::open_each(&config, &cpus, cpus.len())?;
        for events in &events {
            reactor.register(events, RINGS, Interest::Readable)?;
        }
        for before in self.profiler.replace_events(&config, events, &mut self.writer)? {
            // It goes away now, whatever the system says.
            let _ = reactor.deregister(&before, RINGS);
        }
        self.config = config;
        Ok(())
    }

    /// Writes all that the kernel has counted so far.
    fn catch_up(&mut self) {
        match &self.config.mode {
            Mode::Polling(_) => self.profiler.poll(&mut self.writer),
            Mode::Sampling(_) => self.profiler.catch_up(&mut self.writer),
        }
    }
}

#[cfg(test)]
mod tests;
