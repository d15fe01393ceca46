//! Records a trace: the loop between a [`Session`], the service, the output and the user.
//!
//! [`run`](super::run) calls it in the process that records. The session makes all decisions about the recording; this module moves bytes, counts,
//! and informs the user. It only decides about the output in the end: it keeps data, and removes a file without any.

mod accounting;
mod calls;
mod command;
mod conclusion;
mod replies;
mod snapshotting;
mod telling;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_ipc::client::{CallError, InvokeError, More};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::{
    Deadline, Event, Events, Interest, Reactor, ReactorError, Signal, Token, monotonic_now,
};
use ferretto_proto::messages::observable_events::{CloneTriggerHit, Type as ObservableEventType};
use ferretto_proto::messages::{
    CloneSessionRequest, CloneSessionResponse, Message, TraceConfig, clone_session_request,
};

use super::background::{START_WAIT, StartReport, StartStatus};
use super::console::{Console, Line, Loudness, StderrKind, Tone};
use super::contents::Contents;
use super::output::Output;
use super::plan::{AfterAttach, Job, Original, Process, Recording, Sink, Strictness, TraceFilter};
use super::progress::{Activity, Moment, Progress, Summary};
use super::session::{
    Acceptance, CLONE_PATIENCE, Call, Ending, Notice, Observer, Parameters, Purpose, Session, Stage, Step,
    Writer,
};
use super::signals::{Sender, Signals};
use super::snapshots::{SnapshotPlan, Snapshots};
use super::workload::{START_PATIENCE, Workload};
use super::{FAILURE, INCOMPLETE, NOT_ATTACHED, Program, SUCCESS, signals, triggers, warnings};
use crate::account::LastFlush;
use crate::account::counters::bytes_written;
use crate::config::config_source::WrittenConfig;
use crate::config::length::file_write_period;
use crate::figures::{Bytes, Elapsed};
use crate::service::{FindService, Service, unreachable};
use accounting::Knowledge;

/// Upstream's `FlushFlags`: initiator `perfetto_cmd` (2, bits 4 to 7), reason `trace stop` (2, bits 0 to 3).
const FLUSH_FLAGS: u64 = 2 << 4 | 2;
/// Zero makes the service use its own timeout.
const DEFAULT_FLUSH_TIMEOUT: u32 = 0;
/// The period of updates of the line on a terminal.
const TERMINAL_PERIOD: Duration = Duration::from_millis(500);
/// The period of progress lines on a pipe.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

/// The time after which the user is told which data sources have not started.
const PATIENCE: Duration = Duration::from_secs(5);

const SERVICE: Token = Token(0);
const COMMAND: Token = Token(1);

/// The time that abandoned snapshots have to report.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(2);

/// The result of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// The exit code, which is that of the command if there is one.
    pub(crate) code: u8,
    /// The exit code without a command: whether there is a trace.
    pub(crate) trace: u8,
    /// The process id of the command, if it was started.
    pub(crate) command: Option<u32>,
}

impl Recorded {
    /// Without a command.
    pub(super) fn alone(code: u8) -> Recorded {
        Recorded {
            code,
            trace: code,
            command: None,
        }
    }
}

/// Records, unless a signal ends the process.
pub(super) fn record(
    recording: Recording,
    output: Option<Output>,
    reports: Vec<StartReport>,
    signals: Signals,
    find_service: FindService<'_>,
    console: &mut Console,
) -> Recorded {
    name_thread(&recording.config);
    let snapshots = SnapshotPlan::of(&recording, output.as_ref(), console.voice());
    // Nobody reads the lines of a background process.
    let period = match (recording.process, console.voice().loudness, console.kind()) {
        // The terminal belongs to the command.
        _ if recording.command.is_some() => None,
        _ if console.has_rows_below() => Some(TERMINAL_PERIOD),
        (Process::Background | Process::BackgroundOnceStarted, ..) | (_, Loudness::Quiet, _) => None,
        (Process::Foreground, Loudness::Usual, StderrKind::Terminal) => Some(TERMINAL_PERIOD),
        (Process::Foreground, Loudness::Usual, StderrKind::Plain) => Some(PLAIN_PERIOD),
    };
    let observer = match recording.job {
        // A process that detaches observes nothing but the start.
        Job::StartAndDetach(_) if reports.is_empty() => Observer::Absent,
        _ => Observer::Present,
    };
    let delay = start_delay(&recording.config);
    let purpose = match &recording.job {
        Job::Record => Purpose::Record,
        Job::StartAndDetach(_) => Purpose::StartAndDetach,
        Job::Attach(_, AfterAttach::Follow) => Purpose::Attach,
        Job::Attach(_, AfterAttach::Stop) => Purpose::AttachAndStop,
        Job::Attach(_, AfterAttach::DetachAgain) => Purpose::Probe,
        Job::Clone(..) => Purpose::Clone,
    };
    let awaited = triggers::awaited(&recording.config);
    let activity = match (&recording.job, observer) {
        (Job::Record, Observer::Present) if triggers::start_it(&recording.config) => {
            Activity::AwaitingTrigger
        }
        (Job::Record, Observer::Present) => Activity::Starting,
        // The session was started earlier, or no notification of the start will come.
        _ => Activity::Recording,
    };
    let starts_at_once = recording.job == Job::Record && activity != Activity::AwaitingTrigger;
    let acceptance = match awaited {
        Some(_) => Acceptance::Awaited,
        None => Acceptance::Assumed,
    };
    let knowledge = Knowledge::of(&recording);
    let waits_for_start = reports.iter().any(StartReport::has_a_deadline);
    let config = &recording.config;
    let parameters = Parameters::from_config(purpose, config, delay, observer, period, acceptance);
    let mut recorder = Recorder {
        job: recording.job,
        session: Session::new(parameters, now()),
        config: recording.config.encode_to_vec(),
        written: recording.written,
        sink: recording.sink,
        awaited,
        activity,
        progress: Progress::new(),
        output,
        output_failure: None,
        most_bytes: None,
        reports,
        console,
        endpoint: None,
        service: None,
        trouble: None,
        contents: Contents::default(),
        knowledge,
        patience_ends: starts_at_once.then(|| now() + delay + PATIENCE),
        start_due: waits_for_start.then(|| now() + START_WAIT),
        strictness: recording.strictness,
        signals,
        write_shown_at: Duration::ZERO,
        last_flush: LastFlush::AsCounted,
        snapshots: None,
        workload: recording.command.map(Workload::new),
        command_is_due: false,
        command_failed: None,
        once_started: recording.once_started,
        ends_at: None,
    };
    let ending = match recorder.run(snapshots, find_service) {
        Ok(ending) => ending,
        Err(error) => {
            recorder.trouble = Some(error.to_string());
            Ending::Disconnected(Stage::Connecting)
        }
    };
    let failed = recorder.command_failed;
    match recorder.conclude(ending) {
        (code, None) => Recorded::alone(code),
        (code, Some(workload)) => Recorded {
            trace: code,
            command: workload.pid(),
            code: command::exit_code(code, workload, failed, console),
        },
    }
}

struct Recorder<'a> {
    session: Session,
    /// Encoded.
    config: Vec<u8>,
    /// The config as the user wrote it, until the advice about it has been printed.
    written: Option<WrittenConfig>,
    job: Job,
    sink: Sink,
    /// A description of the triggers that the recording waits for.
    awaited: Option<String>,
    /// The activity that the line shows.
    activity: Activity,
    progress: Progress,
    /// `None` if the service opens the file.
    output: Option<Output>,
    /// The reason why the output is incomplete.
    output_failure: Option<String>,
    /// The size at which the file that this process writes in the service's place ends the recording.
    most_bytes: Option<u64>,
    /// The reports to processes that still wait for the start.
    reports: Vec<StartReport>,
    console: &'a mut Console,
    endpoint: Option<ConsumerEndpoint>,
    service: Option<Service>,
    /// The reason why the connection ended or was never made.
    trouble: Option<String>,
    contents: Contents,
    knowledge: Knowledge,
    /// The time at which the user is told which data sources have not started.
    patience_ends: Option<Duration>,
    /// The time at which processes that wait for the start are told that it took too long.
    start_due: Option<Duration>,
    strictness: Strictness,
    signals: Signals,
    write_shown_at: Duration,
    last_flush: LastFlush,
    /// `Some` if triggers clone the session.
    snapshots: Option<Snapshots>,
    /// The command that runs meanwhile.
    workload: Option<Workload>,
    /// Whether the command may start: all data sources have started, or a trigger is to start them.
    command_is_due: bool,
    /// The exit code for a command that could not be started, as a shell would return it.
    command_failed: Option<u8>,
    /// How long to record, counted from the time at which all data sources have started.
    once_started: Option<Duration>,
    /// The time at which this is over.
    ends_at: Option<Duration>,
}

impl Recorder<'_> {
    fn run(
        &mut self,
        snapshots: Option<SnapshotPlan>,
        find_service: FindService<'_>,
    ) -> Result<Ending, ReactorError> {
        let mut reactor = Reactor::new()?;
        match &self.signals {
            Signals::Taken => {
                let interrupted = signals::watch(&mut reactor)?;
                if let Some(output) = &mut self.output {
                    output.heed(interrupted);
                }
            }
            Signals::Relayed(relay) => relay.wake(reactor.waker()),
            Signals::LeftAlone => {}
        }
        self.snapshots = snapshots.map(|plan| Snapshots::new(plan, reactor.waker()));
        let mut events = Events::new();
        let mut watched: Option<Interest> = None;
        loop {
            while let Some(step) = self.session.next_step() {
                if let Step::Finish(ending) = step {
                    return Ok(match self.await_snapshots(&ending, &mut reactor, &mut events)? {
                        None => ending,
                        Some(signal) => Ending::Abandoned(signal),
                    });
                }
                self.perform(step, &mut *find_service);
            }
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.flush();
                let interest = endpoint.interest();
                match watched {
                    None => reactor.register(&*endpoint, SERVICE, interest)?,
                    Some(before) if before != interest => {
                        reactor.reregister(&*endpoint, SERVICE, interest)?
                    }
                    Some(_) => {}
                }
                watched = Some(interest);
            }
            if self.take_events() || self.attend_to_command(&reactor)? || self.attend_to_length() {
                continue;
            }
            let command = self.workload.as_ref().and_then(Workload::next_deadline);
            let answer = self.endpoint.as_ref().and_then(ConsumerEndpoint::answer_due);
            let deadline = [
                self.session.next_deadline(),
                answer.map(Duration::from_nanos),
                self.patience_ends,
                self.start_due,
                self.ends_at,
                command,
            ]
            .into_iter()
            .flatten()
            .min()
            .map(|at| Deadline::Monotonic(nanoseconds(at)));
            if let Signals::Relayed(relay) = &self.signals
                && let Some(signal) = relay.signal()
            {
                self.session.give_up(signal);
                continue;
            }
            reactor.wait(&mut events, deadline)?;
            for signal in events.signals() {
                self.signalled(*signal, Sender::of(*signal, &events));
            }
            let of_service = |event: &&Event| event.token == SERVICE && (event.readable || event.hung_up);
            if events.ready().iter().any(|event| of_service(&event))
                && let Some(endpoint) = &mut self.endpoint
            {
                endpoint.on_readable();
                self.take_events();
            }
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.handle_timeout(monotonic_now());
            }
            self.show_snapshots();
            self.session.handle_timeout(now());
            self.start_may_be_late();
        }
    }

    /// Ends the recording when its length is over. Returns whether it is.
    fn attend_to_length(&mut self) -> bool {
        let is_over = self.ends_at.take_if(|at| now() >= *at).is_some();
        if is_over {
            self.session.nothing_more_to_record(now());
        }
        is_over
    }

    fn perform(&mut self, step: Step, find_service: FindService<'_>) {
        match step {
            Step::Connect => self.connect(find_service),
            Step::Call(call) => self.call(call),
            Step::ReportStarted => self.report_start(),
            Step::Tell(notice) => self.tell(notice),
            Step::ShowProgress => self.show_progress(),
            // The loop handles it.
            Step::Finish(_) => {}
        }
    }

    fn connect(&mut self, find_service: FindService<'_>) {
        self.console.live(Line::new("connecting to the tracing service"));
        let connected = find_service()
            .map_err(|error| error.to_string())
            .and_then(|service| {
                self.check_reach_of_command(&service.consumer_socket)?;
                let endpoint = ConsumerEndpoint::connect(&service.consumer_socket)
                    .map_err(|error| unreachable(&service.consumer_socket, &error))?;
                Ok((service, endpoint))
            });
        match connected {
            Ok((service, endpoint)) => {
                if !service.consumer_socket.is_unix() {
                    self.write_for_the_service();
                }
                self.service = Some(service);
                self.endpoint = Some(endpoint);
            }
            Err(reason) => {
                self.trouble = Some(reason);
                self.session.disconnected();
            }
        }
    }

    /// Has this process write the file that the service is to write: no descriptor of it can be sent over this connection.
    fn write_for_the_service(&mut self) {
        let asked = &self.knowledge.config;
        if self.job != Job::Record || self.output.is_none() || asked.write_into_file != Some(true) {
            return;
        }
        self.session.read_meanwhile(file_write_period(asked));
        let most = asked.max_file_size_bytes.filter(|most| *most != 0);
        self.most_bytes = most;
        self.config = TraceConfig {
            write_into_file: None,
            ..asked.clone()
        }
        .encode_to_vec();
    }

    fn report(&mut self, status: StartStatus, reason: &str) {
        for report in self.reports.drain(..) {
            report.send(status, reason);
        }
    }
}

/// Returns the key of a detached session.
fn key(job: &Job) -> &str {
    match job {
        Job::StartAndDetach(key) | Job::Attach(key, _) => key,
        Job::Record | Job::Clone(..) => "",
    }
}

/// Describes a failure of the output, with advice.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("{error}; free some space, or choose another place with -o")
        }
        _ => error.to_string(),
    }
}

/// Shows the session's name in `ps` and `top`, as upstream does.
fn name_thread(config: &TraceConfig) {
    let Some(name) = config
        .unique_session_name
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        return;
    };
    if let Ok(name) = std::ffi::CString::new(format!("p-{name}")) {
        // The name is only a convenience.
        let _ = rustix::thread::set_name(&name);
    }
}

/// Returns a random delay between the config's two limits.
fn start_delay(config: &TraceConfig) -> Duration {
    let delay = &config.cmd_trace_start_delay;
    let (Some(min), Some(max)) = (delay.min_delay_ms, delay.max_delay_ms) else {
        return Duration::ZERO;
    };
    let mut bytes = [0; 8];
    // Without random bits it is the shortest delay.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let span = u64::from(max.saturating_sub(min)) + 1;
    Duration::from_millis(u64::from(min) + u64::from_ne_bytes(bytes) % span)
}

fn now() -> Duration {
    Duration::from_nanos(monotonic_now())
}

fn nanoseconds(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}
