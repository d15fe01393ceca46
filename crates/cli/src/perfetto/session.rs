//! One recording as a state machine, without sockets, clock or files.
//!
//! [`record`](super::record) drives it: it reports events and carries out the [`Step`]s. The order of calls, the timeouts and the conditions for the
//! end are those of upstream's `perfetto_cmd.cc`:
//!
//! connect → `EnableTracing` → (the service answers it when the recording is over) → `ReadBuffers` until the last packet, unless the service wrote
//! the file → stats for the summary. If the service should write the file but cannot be given its descriptor, the buffers are also read
//! [meanwhile](Session::read_meanwhile). A signal before the end leads to a `Flush`, then to `DisableTracing`, and then to the same steps, so that the
//! data are kept. The same signal a second time gives up at once, as in upstream.
//!
//! Times are since any fixed moment of a clock that the caller chooses.

use std::collections::VecDeque;
use std::time::Duration;

use ferretto_ipc::reactor::Signal;
use ferretto_proto::messages::{TraceConfig, TraceStats};

use super::signals::{Wish, Wishes};
use crate::account::Baseline;
use crate::config::length::longest;

/// The time beyond all expected delays after which the service counts as hung.
const SERVICE_GRACE: Duration = Duration::from_secs(60);
/// The longest silence of the service while the buffers are read. (Upstream polls every 3 s and gives up at the second silent one.)
const READ_SILENCE: Duration = Duration::from_secs(6);
/// The longest time for cloning a session.
pub(crate) const CLONE_PATIENCE: Duration = Duration::from_secs(30);
/// The longest wait for the stats of the summary.
const FINAL_STATS_WAIT: Duration = Duration::from_secs(2);

/// A call to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Requests the notifications that somebody needs.
    Observe,
    EnableTracing,
    Flush,
    DisableTracing,
    ReadBuffers,
    GetTraceStats,
    Detach,
    Attach,
    CloneSession,
}

/// An action for the driver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Connect to the service.
    Connect,
    /// Make this call.
    Call(Call),
    /// Report to waiting processes that all data sources have started.
    ReportStarted,
    /// Tell the user.
    Tell(Notice),
    /// Show the progress: new stats are there.
    ShowProgress,
    /// The recording is over.
    Finish(Ending),
}

/// An event that the user should know about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The recording has been requested; it will take this long, if known.
    Recording(Option<Duration>),
    /// The service has accepted the config.
    Accepted,
    /// This signal ends the recording.
    Stopping(Signal),
    /// The producers' newest data may be missing.
    FlushFailed,
    /// A first signal came while the recording was already ending.
    AlreadyEnding,
}

/// The way in which a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All data are in the output.
    Complete,
    /// The session goes on by itself.
    Detached,
    /// The session could not be detached.
    DetachFailed,
    /// There is no session to attach to.
    NotAttached,
    /// The service refused the request, or stopped the recording, for this reason.
    ServiceError(String),
    /// The connection was lost, at this stage.
    Disconnected(Stage),
    /// The service did not end the recording in time.
    TimedOut,
    /// The service did not clone the session in time.
    CloneTimedOut,
    /// The service fell silent while the buffers were read.
    ReadTimedOut,
    /// The output could not be written.
    OutputFailed(String),
    /// The command could not be run, for this reason.
    NothingToRecord(String),
    /// A signal ended the wait for a recording that had not begun or had not ended.
    Abandoned(Signal),
}

/// The progress of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The service had not answered.
    Connecting,
    /// The service was asked to attach, detach or clone.
    Asking,
    /// Data were being recorded.
    Recording,
    /// The buffers were being read.
    ReadingBack,
}

/// The process that writes the packets into the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// This process, from `ReadBuffers`.
    Us,
    /// The service, while recording (`write_into_file`).
    Service,
}

/// The session of a recording, and the use made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new session, recorded to its end.
    Record,
    /// A new session, which is then detached.
    StartAndDetach,
    /// A detached session, recorded to its end.
    Attach,
    /// A detached session, which ends now.
    AttachAndStop,
    /// A detached session, which is attached only to see whether it exists.
    Probe,
    /// A clone of a running session.
    Clone,
}

/// The properties of a recording.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) purpose: Purpose,
    /// Wait before connecting (`cmd_trace_start_delay`).
    pub(crate) start_delay: Duration,
    /// Expected time from start to end, if it ends by itself.
    pub(crate) duration: Option<Duration>,
    /// The additional time that the service may take to flush and to stop.
    pub(crate) stop_allowance: Duration,
    pub(crate) writer: Writer,
    /// The period of reading the buffers while recording; `None` if they are read at the end only.
    pub(crate) read_period: Option<Duration>,
    /// Whether somebody needs the service's notifications.
    pub(crate) observer: Observer,
    /// The period of requesting stats while recording.
    pub(crate) progress_period: Option<Duration>,
    pub(crate) acceptance: Acceptance,
}

/// Whether the user is told that the service has accepted the config. The service answers `EnableTracing` only when the recording is over, but it
/// returns stats only for a session, so these show the acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acceptance {
    Awaited,
    Assumed,
}

/// Whether somebody needs the service's notifications: that all data sources have started, or that a trigger was hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observer {
    Present,
    Absent,
}

impl Parameters {
    /// Derives the parameters from a config. The caller has chosen `start_delay`.
    pub(crate) fn from_config(
        purpose: Purpose,
        config: &TraceConfig,
        start_delay: Duration,
        observer: Observer,
        progress_period: Option<Duration>,
        acceptance: Acceptance,
    ) -> Parameters {
        let ms = |value: Option<u32>| Duration::from_millis(u64::from(value.unwrap_or(0)));
        Parameters {
            purpose,
            start_delay,
            duration: longest(config),
            stop_allowance: ms(config.flush_timeout_ms)
                + ms(config.data_source_stop_timeout_ms)
                + SERVICE_GRACE,
            writer: Self::writer(config),
            read_period: None,
            observer,
            progress_period,
            acceptance,
        }
    }

    fn writer(config: &TraceConfig) -> Writer {
        if config.write_into_file == Some(true) {
            Writer::Service
        } else {
            Writer::Us
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Delaying {
        until: Duration,
    },
    Connecting,
    Attaching,
    Detaching,
    Cloning,
    Recording,
    /// After a signal or the end of the command: the flush is under way.
    Flushing,
    /// Waits for the service to report the end of the recording.
    Disabling,
    ReadingBack {
        silent_until: Duration,
    },
    AwaitingStats {
        until: Duration,
    },
    Finished,
}

/// A recording, see the [module](self).
#[derive(Debug)]
pub(crate) struct Session {
    parameters: Parameters,
    phase: Phase,
    steps: VecDeque<Step>,
    /// The user's signals to end it.
    wishes: Wishes,
    /// The time at which the service counts as hung.
    give_up_at: Option<Duration>,
    next_stats_at: Option<Duration>,
    next_read_at: Option<Duration>,
    /// `ReadBuffers` that have not been answered to their end.
    pending_reads: u32,
    stats: Option<TraceStats>,
    /// The service-wide counters in the first stats, for a session that began here.
    baseline: Option<Baseline>,
    started_at: Option<Duration>,
    stopped_at: Option<Duration>,
}

impl Session {
    /// Starts a recording with the delay before it connects.
    pub(crate) fn new(parameters: Parameters, now: Duration) -> Session {
        let mut session = Session {
            phase: Phase::Delaying {
                until: now + parameters.start_delay,
            },
            parameters,
            steps: VecDeque::new(),
            wishes: Wishes::default(),
            give_up_at: None,
            next_stats_at: None,
            next_read_at: None,
            pending_reads: 0,
            stats: None,
            baseline: None,
            started_at: None,
            stopped_at: None,
        };
        session.handle_timeout(now);
        session
    }

    /// Returns the next action, if any.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout).
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Delaying { until } | Phase::AwaitingStats { until } => Some(until),
            Phase::ReadingBack { silent_until } => Some(silent_until),
            Phase::Connecting
            | Phase::Attaching
            | Phase::Detaching
            | Phase::Cloning
            | Phase::Recording
            | Phase::Flushing
            | Phase::Disabling => None,
            Phase::Finished => return None,
        };
        [phase, self.give_up_at, self.next_stats_at, self.next_read_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the latest stats.
    pub(crate) fn stats(&self) -> Option<&TraceStats> {
        self.stats.as_ref()
    }

    /// Returns the service-wide counters from the session's beginning; `None` if unknown.
    pub(crate) fn baseline(&self) -> Option<Baseline> {
        self.baseline
    }

    /// Whether data are being recorded, and nobody has asked for the end.
    pub(crate) fn is_recording(&self) -> bool {
        self.phase == Phase::Recording
    }

    /// Returns the time recorded so far, without the time that data sources need to stop.
    pub(crate) fn recorded(&self, now: Duration) -> Duration {
        let started = self.started_at.unwrap_or(now);
        let elapsed = self.stopped_at.unwrap_or(now).saturating_sub(started);
        self.parameters
            .duration
            .map_or(elapsed, |duration| elapsed.min(duration))
    }

    /// Returns the process that writes the packets into the output, as far as known.
    pub(crate) fn writer(&self) -> Writer {
        self.parameters.writer
    }

    /// Returns the expected length of the recording.
    pub(crate) fn duration(&self) -> Option<Duration> {
        self.parameters.duration
    }

    /// Reads the buffers in this period while recording, too: what the service cannot write into the file by itself, for it has no descriptor of it.
    pub(crate) fn read_meanwhile(&mut self, period: Duration) {
        self.parameters.writer = Writer::Us;
        self.parameters.read_period = Some(period);
    }

    /// Notes that the connection is up and the service bound.
    pub(crate) fn connected(&mut self, now: Duration) {
        if self.phase != Phase::Connecting {
            return;
        }
        match self.parameters.purpose {
            Purpose::Record => self.enable(now),
            Purpose::StartAndDetach => {
                self.enable(now);
                self.call(Call::Detach);
                self.phase = Phase::Detaching;
            }
            Purpose::Attach | Purpose::AttachAndStop | Purpose::Probe => {
                self.call(Call::Attach);
                self.phase = Phase::Attaching;
            }
            Purpose::Clone => {
                self.call(Call::CloneSession);
                self.phase = Phase::Cloning;
                self.give_up_at = Some(now + CLONE_PATIENCE);
            }
        }
    }

    fn enable(&mut self, now: Duration) {
        if self.parameters.observer == Observer::Present {
            self.call(Call::Observe);
        }
        self.steps
            .push_back(Step::Tell(Notice::Recording(self.parameters.duration)));
        self.call(Call::EnableTracing);
        // Some counters are service-wide, so the first stats give their values before the recording. Besides, the answer shows that the config was
        // accepted.
        if self.parameters.purpose == Purpose::Record || self.parameters.acceptance == Acceptance::Awaited {
            self.call(Call::GetTraceStats);
        }
        self.phase = Phase::Recording;
        self.started_at = Some(now);
        self.give_up_at = self
            .parameters
            .duration
            .map(|duration| now + duration + self.parameters.stop_allowance);
        self.next_stats_at = self.parameters.progress_period.map(|period| now + period);
        self.plan_read(now);
    }

    fn plan_read(&mut self, now: Duration) {
        self.next_read_at = self.parameters.read_period.map(|period| now + period);
    }

    fn read(&mut self) {
        self.next_read_at = None;
        self.pending_reads += 1;
        self.call(Call::ReadBuffers);
    }

    /// Notes the answer to attaching: the config of the session, or that there is none.
    pub(crate) fn attached(&mut self, config: Result<TraceConfig, ()>, now: Duration) {
        if self.phase != Phase::Attaching {
            return;
        }
        let Ok(config) = config else {
            return self.finish(Ending::NotAttached);
        };
        self.parameters.writer = Parameters::writer(&config);
        self.started_at = Some(now);
        match self.parameters.purpose {
            Purpose::Probe => {
                self.call(Call::Detach);
                self.phase = Phase::Detaching;
            }
            Purpose::AttachAndStop => self.stop(now),
            Purpose::Record | Purpose::StartAndDetach | Purpose::Attach | Purpose::Clone => {
                if self.parameters.observer == Observer::Present {
                    self.call(Call::Observe);
                }
                self.phase = Phase::Recording;
                self.next_stats_at = self.parameters.progress_period.map(|period| now + period);
            }
        }
    }

    /// Notes the answer to detaching.
    pub(crate) fn detached(&mut self, outcome: Result<(), ()>) {
        if self.phase == Phase::Detaching {
            self.finish(match outcome {
                Ok(()) => Ending::Detached,
                Err(()) => Ending::DetachFailed,
            });
        }
    }

    /// Notes the answer to cloning: the writer of the clone's output, or the reason for a failure.
    pub(crate) fn cloned(&mut self, outcome: Result<Writer, String>, now: Duration) {
        if self.phase == Phase::Cloning {
            self.started_at = Some(now);
            match outcome {
                Err(reason) => self.finish(Ending::ServiceError(reason)),
                Ok(writer) => {
                    self.parameters.writer = writer;
                    self.collect(now);
                }
            }
        }
    }

    /// Notes that every data source acknowledged its start.
    pub(crate) fn all_data_sources_started(&mut self) {
        self.steps.push_back(Step::ReportStarted);
    }

    /// Notes the answer to `EnableTracing`: the recording is over, perhaps with an error.
    pub(crate) fn tracing_disabled(&mut self, error: Option<String>, now: Duration) {
        let running = matches!(self.phase, Phase::Recording | Phase::Flushing | Phase::Disabling);
        // A refused config also ends the attempt to detach.
        if !(running || self.phase == Phase::Detaching && error.is_some()) {
            return;
        }
        self.stopped_at.get_or_insert(now);
        self.next_stats_at = None;
        self.next_read_at = None;
        match error {
            Some(error) => self.finish(Ending::ServiceError(error)),
            None => self.collect(now),
        }
    }

    /// Reads the recorded data, unless the service wrote them.
    fn collect(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
        match self.parameters.writer {
            Writer::Service => self.ask_for_final_stats(now),
            Writer::Us => {
                self.give_up_at = None;
                self.phase = Phase::ReadingBack {
                    silent_until: now + READ_SILENCE,
                };
                self.read();
            }
        }
    }

    /// Notes the end of the flush after a signal.
    pub(crate) fn flushed(&mut self, outcome: Result<(), ()>) {
        if self.phase == Phase::Flushing {
            if outcome.is_err() {
                self.steps.push_back(Step::Tell(Notice::FlushFailed));
            }
            self.phase = Phase::Disabling;
            self.call(Call::DisableTracing);
        }
    }

    /// Notes that packets came, and others follow.
    pub(crate) fn packets_read(&mut self, now: Duration) {
        if let Phase::ReadingBack { silent_until } = &mut self.phase {
            *silent_until = now + READ_SILENCE;
        }
    }

    /// Notes that the last packets of a read came.
    pub(crate) fn all_packets_read(&mut self, now: Duration) {
        self.pending_reads = self.pending_reads.saturating_sub(1);
        match self.phase {
            Phase::Recording => self.plan_read(now),
            Phase::ReadingBack { .. } if self.pending_reads == 0 => self.ask_for_final_stats(now),
            // The next answer is that of the read at the end.
            Phase::ReadingBack { .. } => self.packets_read(now),
            _ => {}
        }
    }

    /// Notes that the service refused to return the buffers.
    pub(crate) fn read_failed(&mut self, reason: String) {
        self.pending_reads = self.pending_reads.saturating_sub(1);
        // Until the end, nothing is lost by it.
        if let Phase::ReadingBack { .. } = self.phase {
            self.finish(Ending::ServiceError(reason));
        }
    }

    /// Notes stats; `None` if the service has none.
    pub(crate) fn trace_stats(&mut self, stats: Option<TraceStats>, now: Duration) {
        let have = stats.is_some();
        let running = matches!(self.phase, Phase::Recording | Phase::Detaching);
        if let (true, None, Some(first), true) = (running, self.baseline, &stats, self.began_here()) {
            self.baseline = Some(Baseline::of(first));
            if self.parameters.acceptance == Acceptance::Awaited {
                self.steps.push_back(Step::Tell(Notice::Accepted));
            }
            self.stats = stats;
            return;
        }
        self.stats = stats.or(self.stats.take());
        match self.phase {
            Phase::AwaitingStats { .. } => self.finish(Ending::Complete),
            Phase::Recording if have => {
                self.next_stats_at = self.parameters.progress_period.map(|period| now + period);
                self.steps.push_back(Step::ShowProgress);
            }
            _ => {}
        }
    }

    fn began_here(&self) -> bool {
        matches!(self.parameters.purpose, Purpose::Record | Purpose::StartAndDetach)
    }

    /// Handles a signal that asks to stop.
    pub(crate) fn interrupted(&mut self, signal: Signal, now: Duration) {
        let wish = self.wishes.hear(signal, now);
        match (self.phase, wish) {
            (Phase::Finished, _) | (_, Wish::Known) => {}
            (Phase::Recording, Wish::First) => {
                self.steps.push_back(Step::Tell(Notice::Stopping(signal)));
                self.stop(now);
            }
            // A terminal's Ctrl-C also ends the command, whose end may be noticed first.
            (Phase::Flushing | Phase::Disabling | Phase::ReadingBack { .. }, Wish::First) => {
                self.steps.push_back(Step::Tell(Notice::AlreadyEnding))
            }
            _ => self.give_up(signal),
        }
    }

    /// Classifies a signal that comes after the recording has finished, while snapshots are still being taken.
    pub(crate) fn hear(&mut self, signal: Signal, now: Duration) -> Wish {
        self.wishes.hear(signal, now)
    }

    /// Ends the recording because its command has ended.
    pub(crate) fn nothing_more_to_record(&mut self, now: Duration) {
        if self.phase == Phase::Recording {
            self.stop(now);
        }
    }

    /// Abandons the recording because its command cannot be run.
    pub(crate) fn nothing_to_record(&mut self, reason: String) {
        if self.phase == Phase::Recording {
            self.finish(Ending::NothingToRecord(reason));
        }
    }

    /// Handles a request to end at once.
    pub(crate) fn give_up(&mut self, signal: Signal) {
        match self.phase {
            Phase::Finished => {}
            // Everything is in the output already.
            Phase::AwaitingStats { .. } => self.finish(Ending::Complete),
            _ => self.finish(Ending::Abandoned(signal)),
        }
    }

    fn stop(&mut self, now: Duration) {
        self.phase = Phase::Flushing;
        self.next_read_at = None;
        self.stopped_at = Some(now);
        self.give_up_at = Some(now + self.parameters.stop_allowance);
        self.call(Call::Flush);
    }

    /// Notes that the connection ended or was never made.
    pub(crate) fn disconnected(&mut self) {
        let stage = match self.phase {
            Phase::Finished => return,
            Phase::AwaitingStats { .. } => return self.finish(Ending::Complete),
            Phase::Delaying { .. } | Phase::Connecting => Stage::Connecting,
            Phase::Attaching | Phase::Detaching | Phase::Cloning => Stage::Asking,
            Phase::Recording | Phase::Flushing | Phase::Disabling => Stage::Recording,
            Phase::ReadingBack { .. } => Stage::ReadingBack,
        };
        self.finish(Ending::Disconnected(stage));
    }

    /// Notes that the output could not be written.
    pub(crate) fn output_failed(&mut self, reason: String) {
        if self.phase != Phase::Finished {
            self.finish(Ending::OutputFailed(reason));
        }
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::Delaying { until } if now >= until => {
                self.phase = Phase::Connecting;
                self.steps.push_back(Step::Connect);
            }
            Phase::ReadingBack { silent_until } if now >= silent_until => self.finish(Ending::ReadTimedOut),
            Phase::AwaitingStats { until } if now >= until => self.finish(Ending::Complete),
            _ => {}
        }
        if self.phase != Phase::Finished && self.give_up_at.is_some_and(|at| now >= at) {
            self.finish(match self.phase {
                Phase::Cloning => Ending::CloneTimedOut,
                _ => Ending::TimedOut,
            });
        }
        if self.phase == Phase::Recording && self.next_stats_at.is_some_and(|at| now >= at) {
            // The answer sets the next time. So a service that does not know the call is asked only once.
            self.next_stats_at = None;
            self.call(Call::GetTraceStats);
        }
        if self.phase == Phase::Recording && self.next_read_at.is_some_and(|at| now >= at) {
            // The answer sets the next time, so a slow connection is not asked for more than it can carry.
            self.read();
        }
    }

    fn ask_for_final_stats(&mut self, now: Duration) {
        self.give_up_at = None;
        self.phase = Phase::AwaitingStats {
            until: now + FINAL_STATS_WAIT,
        };
        self.call(Call::GetTraceStats);
    }

    fn call(&mut self, call: Call) {
        self.steps.push_back(Step::Call(call));
    }

    fn finish(&mut self, ending: Ending) {
        self.phase = Phase::Finished;
        self.give_up_at = None;
        self.next_stats_at = None;
        self.next_read_at = None;
        self.steps.push_back(Step::Finish(ending));
    }
}

#[cfg(test)]
mod tests;
