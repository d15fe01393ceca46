//! One recording as a state machine: no sockets, no clock, no files.
//!
//! Driven by [`record`](super::record), which tells it what happened and does the [`Step`]s it asks for. The order of calls,
//! the timeouts and what ends a recording are those of upstream's `perfetto_cmd.cc`:
//!
//! connect → `EnableTracing` → (the service answers it when the recording is over) → `ReadBuffers` until the last packet, unless
//! the service wrote the file → stats for the summary. A signal before the end asks for a `Flush`, then `DisableTracing`, and
//! goes on as above, so that the data are kept; the same signal once more gives up at once, which upstream's does too.
//!
//! Times are since any fixed moment of a clock that the caller chooses.

use std::collections::VecDeque;
use std::time::Duration;

use ferretto_ipc::reactor::Signal;
use ferretto_proto::messages::{TraceConfig, TraceStats};

use super::signals::{Wish, Wishes};
use crate::account::Baseline;
use crate::config::length::longest;

/// Added to everything else that a recording may take, before the service counts as hung.
const SERVICE_GRACE: Duration = Duration::from_secs(60);
/// How long the service may be silent in the middle of reading the buffers. (Upstream's polls every 3 s and gives up at
/// the second silent one.)
const READ_SILENCE: Duration = Duration::from_secs(6);
/// How long cloning a session may take.
pub(crate) const CLONE_PATIENCE: Duration = Duration::from_secs(30);
/// How long the stats for the summary are waited for.
const FINAL_STATS_WAIT: Duration = Duration::from_secs(2);

/// A call to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// Observe what somebody waits for.
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

/// What the driver must do next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Connect to the service.
    Connect,
    /// Make this call.
    Call(Call),
    /// Tell whoever waits that all data sources have started.
    ReportStarted,
    /// Tell the user.
    Tell(Notice),
    /// Show how the recording goes: the stats have come.
    ShowProgress,
    /// The recording is over.
    Finish(Ending),
}

/// Something the user should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The recording was asked for; it takes so long, if that is known.
    Recording(Option<Duration>),
    /// The service has taken its config.
    Accepted,
    /// A signal ends the recording.
    Stopping(Signal),
    /// The producers' newest data may be missing.
    FlushFailed,
    /// A first signal came when the recording was ending already.
    AlreadyEnding,
}

/// How a recording ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// All data are in the output.
    Complete,
    /// The session goes on by itself.
    Detached,
    /// The session would not go on by itself.
    DetachFailed,
    /// There is no session to attach to.
    NotAttached,
    /// The service would not have it, or stopped it for this reason.
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
    /// The command that was to run meanwhile could not.
    NothingToRecord(String),
    /// A signal ended the wait for a recording that had not begun or had not ended.
    Abandoned(Signal),
}

/// How far a recording had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The service did not answer yet.
    Connecting,
    /// The service was asked to attach, detach or clone.
    Asking,
    /// Data were being recorded.
    Recording,
    /// The buffers were being read.
    ReadingBack,
}

/// Who puts the packets into the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// This process, from `ReadBuffers`.
    Us,
    /// The service, while recording (`write_into_file`).
    Service,
}

/// Which session it is, and what is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new one, to its end.
    Record,
    /// A new one, which then goes on by itself.
    StartAndDetach,
    /// A detached one, to its end.
    Attach,
    /// A detached one, which ends now.
    AttachAndStop,
    /// A detached one, which is only asked for and goes on.
    Probe,
    /// A copy of a running one.
    Clone,
}

/// What a recording is like.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) purpose: Purpose,
    /// Wait before connecting (`cmd_trace_start_delay`).
    pub(crate) start_delay: Duration,
    /// Expected time from start to end, if it ends by itself.
    pub(crate) duration: Option<Duration>,
    /// What the service may take on top of that to flush and to stop.
    pub(crate) stop_allowance: Duration,
    pub(crate) writer: Writer,
    /// Whether somebody waits for what the service can tell meanwhile.
    pub(crate) observer: Observer,
    /// How often stats are asked for while recording.
    pub(crate) progress_period: Option<Duration>,
    pub(crate) acceptance: Acceptance,
}

/// Whether it is of interest that the service has taken the config, which it does not say by itself: it answers when the recording is
/// over. Only a session has stats, so they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acceptance {
    Awaited,
    Assumed,
}

/// Whether somebody waits for what the service can tell meanwhile: that all data sources have started, that a trigger was hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observer {
    Present,
    Absent,
}

impl Parameters {
    /// Those of a config; `start_delay` was drawn by the caller.
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
    /// A signal or the end of the command ended the recording; the flush is under way.
    Flushing,
    /// Waiting for the service to say that the recording is over.
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
    /// The user's, to end it.
    wishes: Wishes,
    /// When the service counts as hung.
    give_up_at: Option<Duration>,
    next_stats_at: Option<Duration>,
    stats: Option<TraceStats>,
    /// What the first stats of a session that began here said.
    baseline: Option<Baseline>,
    started_at: Option<Duration>,
    stopped_at: Option<Duration>,
}

impl Session {
    /// A recording that waits, connects and goes on from there.
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
            stats: None,
            baseline: None,
            started_at: None,
            stopped_at: None,
        };
        session.handle_timeout(now);
        session
    }

    /// What to do next, if anything.
    pub(crate) fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
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
        [phase, self.give_up_at, self.next_stats_at]
            .into_iter()
            .flatten()
            .min()
    }

    /// The latest stats.
    pub(crate) fn stats(&self) -> Option<&TraceStats> {
        self.stats.as_ref()
    }

    /// What the service's counters showed when the session began; `None` if that is not known.
    pub(crate) fn baseline(&self) -> Option<Baseline> {
        self.baseline
    }

    /// Whether data are being recorded, and nobody has asked for the end.
    pub(crate) fn is_recording(&self) -> bool {
        self.phase == Phase::Recording
    }

    /// How long it has been recording, or did. What the data sources take to stop is not counted.
    pub(crate) fn recorded(&self, now: Duration) -> Duration {
        let started = self.started_at.unwrap_or(now);
        let elapsed = self.stopped_at.unwrap_or(now).saturating_sub(started);
        self.parameters
            .duration
            .map_or(elapsed, |duration| elapsed.min(duration))
    }

    /// Who puts the packets into the output, as far as is known.
    pub(crate) fn writer(&self) -> Writer {
        self.parameters.writer
    }

    /// How long it is expected to record.
    pub(crate) fn duration(&self) -> Option<Duration> {
        self.parameters.duration
    }

    /// The connection is up and the service bound.
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
        // Some counters are those of the whole service, so what they show at first is none of ours. And there is an answer only if
        // the config was accepted.
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
    }

    /// The service took us back as the consumer of a session of this config, or has none for us.
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

    /// The service let the session go on by itself, or did not.
    pub(crate) fn detached(&mut self, outcome: Result<(), ()>) {
        if self.phase == Phase::Detaching {
            self.finish(match outcome {
                Ok(()) => Ending::Detached,
                Err(()) => Ending::DetachFailed,
            });
        }
    }

    /// The clone is ours, filled by this writer, or there is none for this reason.
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

    /// Every data source acknowledged its start.
    pub(crate) fn all_data_sources_started(&mut self) {
        self.steps.push_back(Step::ReportStarted);
    }

    /// The service answered `EnableTracing`: the recording is over, well or with an error.
    pub(crate) fn tracing_disabled(&mut self, error: Option<String>, now: Duration) {
        let running = matches!(self.phase, Phase::Recording | Phase::Flushing | Phase::Disabling);
        // A config that is refused cannot be detached from either.
        if !(running || self.phase == Phase::Detaching && error.is_some()) {
            return;
        }
        self.stopped_at.get_or_insert(now);
        self.next_stats_at = None;
        match error {
            Some(error) => self.finish(Ending::ServiceError(error)),
            None => self.collect(now),
        }
    }

    /// Everything is recorded: the data are read, unless the service wrote them.
    fn collect(&mut self, now: Duration) {
        self.stopped_at.get_or_insert(now);
        match self.parameters.writer {
            Writer::Service => self.ask_for_final_stats(now),
            Writer::Us => {
                self.give_up_at = None;
                self.phase = Phase::ReadingBack {
                    silent_until: now + READ_SILENCE,
                };
                self.call(Call::ReadBuffers);
            }
        }
    }

    /// The flush that a signal asked for is done, or failed.
    pub(crate) fn flushed(&mut self, outcome: Result<(), ()>) {
        if self.phase == Phase::Flushing {
            if outcome.is_err() {
                self.steps.push_back(Step::Tell(Notice::FlushFailed));
            }
            self.phase = Phase::Disabling;
            self.call(Call::DisableTracing);
        }
    }

    /// Packets came, and others follow.
    pub(crate) fn packets_read(&mut self, now: Duration) {
        if let Phase::ReadingBack { silent_until } = &mut self.phase {
            *silent_until = now + READ_SILENCE;
        }
    }

    /// The last packets came.
    pub(crate) fn all_packets_read(&mut self, now: Duration) {
        if let Phase::ReadingBack { .. } = self.phase {
            self.ask_for_final_stats(now);
        }
    }

    /// The service would not let the buffers be read.
    pub(crate) fn read_failed(&mut self, reason: String) {
        if let Phase::ReadingBack { .. } = self.phase {
            self.finish(Ending::ServiceError(reason));
        }
    }

    /// Stats came; `None` when the service has none.
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

    /// A signal that asks to stop.
    pub(crate) fn interrupted(&mut self, signal: Signal, now: Duration) {
        let wish = self.wishes.hear(signal, now);
        match (self.phase, wish) {
            (Phase::Finished, _) | (_, Wish::Known) => {}
            (Phase::Recording, Wish::First) => {
                self.steps.push_back(Step::Tell(Notice::Stopping(signal)));
                self.stop(now);
            }
            // A terminal's Ctrl-C ends the recorded command too, whose end may be noticed first.
            (Phase::Flushing | Phase::Disabling | Phase::ReadingBack { .. }, Wish::First) => {
                self.steps.push_back(Step::Tell(Notice::AlreadyEnding))
            }
            _ => self.give_up(signal),
        }
    }

    /// What a signal means that comes when there is nothing left to end but what goes along with the recording.
    pub(crate) fn hear(&mut self, signal: Signal, now: Duration) -> Wish {
        self.wishes.hear(signal, now)
    }

    /// What was to be recorded is over.
    pub(crate) fn nothing_more_to_record(&mut self, now: Duration) {
        if self.phase == Phase::Recording {
            self.stop(now);
        }
    }

    /// What was to be recorded cannot be run.
    pub(crate) fn nothing_to_record(&mut self, reason: String) {
        if self.phase == Phase::Recording {
            self.finish(Ending::NothingToRecord(reason));
        }
    }

    /// A signal that asks to go at once.
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
        self.stopped_at = Some(now);
        self.give_up_at = Some(now + self.parameters.stop_allowance);
        self.call(Call::Flush);
    }

    /// The connection ended or was never made.
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

    /// The output could not be written.
    pub(crate) fn output_failed(&mut self, reason: String) {
        if self.phase != Phase::Finished {
            self.finish(Ending::OutputFailed(reason));
        }
    }

    /// Does what is due.
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
            // Until the answer comes there is no next time: a service that does not know the call is asked once.
            self.next_stats_at = None;
            self.call(Call::GetTraceStats);
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
        self.steps.push_back(Step::Finish(ending));
    }
}

#[cfg(test)]
mod tests;
