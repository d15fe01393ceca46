//! Recording a trace: the loop between a [`Session`], the service, the output and the user.
//!
//! Called by [`run`](super::run), in the process that records. It decides nothing about the recording; it moves bytes, counts
//! and tells. What it does decide is what becomes of the output in the end: data are kept, a file without any is removed.

mod conclusion;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_ipc::client::{CallError, InvokeError, More};
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::{
    Deadline, Events, Interest, Reactor, ReactorError, Signal, Token, monotonic_now,
};
use ferretto_proto::messages::observable_events::{CloneTriggerHit, Type as ObservableEventType};
use ferretto_proto::messages::{
    CloneSessionRequest, CloneSessionResponse, Message, TraceConfig, clone_session_request,
};

use super::background::{StartReport, StartStatus};
use super::config_source::WrittenConfig;
use super::console::{Console, Kind, Line, Loudness, Tone};
use super::contents::Contents;
use super::figures::{Bytes, Elapsed};
use super::losses::bytes_written;
use super::output::Output;
use super::plan::{AfterAttach, Job, Original, Process, Recording, Sink, TraceFilter};
use super::progress::{Activity, Moment, Progress, Summary};
use super::service::{FindService, Service, unreachable};
use super::session::{
    Acceptance, CLONE_PATIENCE, Call, Ending, Notice, Observer, Parameters, Purpose, Session, Stage, Step,
    Writer,
};
use super::signals::Signals;
use super::snapshots::{SnapshotPlan, Snapshots};
use super::{FAILURE, NOT_ATTACHED, Program, SUCCESS, signals, triggers, warnings};

/// Upstream's `FlushFlags`: initiator `perfetto_cmd` (2, bits 4 to 7), reason `trace stop` (2, bits 0 to 3).
const FLUSH_FLAGS: u64 = 2 << 4 | 2;
/// The service's own timeout of a flush.
const DEFAULT_FLUSH_TIMEOUT: u32 = 0;
/// How often the line on a terminal changes.
const TERMINAL_PERIOD: Duration = Duration::from_millis(500);
/// How often there is a line on a pipe.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);

const SERVICE: Token = Token(0);

/// How long snapshots that are given up have to say so.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(2);

/// Records; gives the exit code, unless a signal ends it.
pub(super) fn record(
    recording: Recording,
    output: Option<Output>,
    reports: Vec<StartReport>,
    signals: Signals,
    find_service: FindService<'_>,
    console: &mut Console,
) -> u8 {
    name_thread(&recording.config);
    let snapshots = SnapshotPlan::of(&recording, output.as_ref(), console.voice());
    // Nobody reads the lines of a background process.
    let period = match (recording.process, console.voice().loudness, console.kind()) {
        (Process::Background | Process::BackgroundOnceStarted, ..) | (_, Loudness::Quiet, _) => None,
        (Process::Foreground, Loudness::Usual, Kind::Terminal) => Some(TERMINAL_PERIOD),
        (Process::Foreground, Loudness::Usual, Kind::Plain) => Some(PLAIN_PERIOD),
    };
    // Whoever watches the line on a terminal is told when the recording has started, too.
    let watched = console.kind() == Kind::Terminal && period.is_some();
    let observer = if reports.is_empty() && snapshots.is_none() && !watched {
        Observer::Absent
    } else {
        Observer::Present
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
        // Others have started it, or nobody tells when it has.
        _ => Activity::Recording,
    };
    let acceptance = match awaited {
        Some(_) => Acceptance::Awaited,
        None => Acceptance::Assumed,
    };
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
        reports,
        console,
        endpoint: None,
        service: None,
        trouble: None,
        contents: Contents::of(&recording.config),
        signals,
        write_shown_at: Duration::ZERO,
        newest_may_be_missing: false,
        snapshots: None,
    };
    let ending = match recorder.run(snapshots, find_service) {
        Ok(ending) => ending,
        Err(error) => {
            recorder.trouble = Some(error.to_string());
            Ending::Disconnected(Stage::Connecting)
        }
    };
    recorder.conclude(ending)
}

struct Recorder<'a> {
    session: Session,
    /// Encoded.
    config: Vec<u8>,
    /// As it was asked for, until what there is to be said of it was said.
    written: Option<WrittenConfig>,
    job: Job,
    sink: Sink,
    /// What the recording waits for.
    awaited: Option<String>,
    /// What the line tells of.
    activity: Activity,
    progress: Progress,
    /// `None` when the service opens the file.
    output: Option<Output>,
    /// Who still waits for the start.
    reports: Vec<StartReport>,
    console: &'a mut Console,
    endpoint: Option<ConsumerEndpoint>,
    service: Option<Service>,
    /// Why the connection ended, or never was.
    trouble: Option<String>,
    contents: Contents,
    signals: Signals,
    write_shown_at: Duration,
    /// Producers were asked for their newest data at the end, and some did not answer.
    newest_may_be_missing: bool,
    /// If triggers have the session cloned.
    snapshots: Option<Snapshots>,
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
            if self.take_events() {
                continue;
            }
            let deadline = self
                .session
                .next_deadline()
                .map(|at| Deadline::Monotonic(nanoseconds(at)));
            if let Signals::Relayed(relay) = &self.signals
                && let Some(signal) = relay.signal()
            {
                self.session.give_up(signal);
                continue;
            }
            reactor.wait(&mut events, deadline)?;
            for signal in events.signals() {
                self.session.interrupted(*signal, now());
            }
            if events.ready().iter().any(|event| event.readable || event.hung_up)
                && let Some(endpoint) = &mut self.endpoint
            {
                endpoint.on_readable();
                self.take_events();
            }
            self.show_snapshots();
            self.session.handle_timeout(now());
        }
    }

    /// Waits for the snapshots that are under way: they are of a session that ends with our connection. A signal has them given
    /// up, and so has one that gave up the recording; it is what this gives.
    fn await_snapshots(
        &mut self,
        ending: &Ending,
        reactor: &mut Reactor,
        events: &mut Events,
    ) -> Result<Option<Signal>, ReactorError> {
        let Some(snapshots) = self.snapshots.as_ref().filter(|all| all.under_way()) else {
            return Ok(None);
        };
        if let Some(endpoint) = &self.endpoint {
            // What the service says does not matter any more.
            reactor.deregister(endpoint, SERVICE)?;
        }
        let mut given_up = None;
        if let Ending::Abandoned(signal) = ending {
            snapshots.give_up(*signal);
            given_up = Some((*signal, now() + GIVE_UP_PATIENCE));
        }
        while self.snapshots.as_ref().is_some_and(Snapshots::under_way) {
            let deadline = given_up.map(|(_, until)| Deadline::Monotonic(nanoseconds(until)));
            reactor.wait(events, deadline)?;
            self.show_snapshots();
            let signal = events.signals().first().filter(|_| !self.session.is_echo(now()));
            match (given_up, signal) {
                (None, Some(signal)) => {
                    self.snapshots
                        .iter()
                        .for_each(|snapshots| snapshots.give_up(*signal));
                    given_up = Some((*signal, now() + GIVE_UP_PATIENCE));
                }
                (Some(_), Some(_)) => break,
                (Some((_, until)), None) if now() >= until => break,
                _ => {}
            }
        }
        for file in self.snapshots.iter().flat_map(Snapshots::unfinished) {
            self.console
                .say(format_args!("{} is given up in the middle", file.display()));
        }
        Ok(given_up.map(|(signal, _)| signal))
    }

    /// Says what became of snapshots since.
    fn show_snapshots(&mut self) {
        for line in self.snapshots.iter_mut().flat_map(Snapshots::take_lines) {
            self.console.pass_on(line);
        }
    }

    /// A trigger was hit that wants a snapshot.
    fn take_snapshot(&mut self, hit: &CloneTriggerHit) {
        if let (Some(snapshots), Some(service)) = (&mut self.snapshots, &self.service)
            && let Err(error) = snapshots.take(hit, &service.consumer_socket)
        {
            self.console.say(format_args!("cannot take a snapshot: {error}"));
        }
    }

    fn perform(&mut self, step: Step, find_service: FindService<'_>) {
        match step {
            Step::Connect => self.connect(find_service),
            Step::Call(call) => self.call(call),
            Step::ReportStarted => self.report(StartStatus::Started, ""),
            Step::Tell(notice) => self.tell(notice),
            Step::ShowProgress => self.show_progress(),
            // Taken out by the loop.
            Step::Finish(_) => {}
        }
    }

    fn show_progress(&mut self) {
        let Some(stats) = self.session.stats() else {
            return;
        };
        // Services that are older do not tell that all has started.
        if bytes_written(stats) > 0 {
            self.activity = Activity::Recording;
        }
        let mut line = self.progress.line(&Moment {
            activity: self.activity,
            recorded: self.session.recorded(now()),
            duration: self.session.duration(),
            stats,
        });
        if self.console.kind() == Kind::Terminal {
            line.push(6, Tone::Usual, " (Ctrl-C ends it)");
        }
        self.console.progress(line);
    }

    fn connect(&mut self, find_service: FindService<'_>) {
        self.console.live(Line::new("connecting to the tracing service"));
        let connected = find_service()
            .map_err(|error| error.to_string())
            .and_then(|service| {
                let endpoint = ConsumerEndpoint::connect(&service.consumer_socket)
                    .map_err(|error| unreachable(&service.consumer_socket, &error))?;
                Ok((service, endpoint))
            });
        match connected {
            Ok((service, endpoint)) => {
                self.service = Some(service);
                self.endpoint = Some(endpoint);
            }
            Err(reason) => {
                self.trouble = Some(reason);
                self.session.disconnected();
            }
        }
    }

    fn call(&mut self, call: Call) {
        let file = match self.open_for(call) {
            Ok(file) => file,
            Err(error) => return self.session.output_failed(why(&error)),
        };
        if call == Call::ReadBuffers
            && let Some(output) = self.output.as_ref().filter(|output| output.awaits_reader())
        {
            self.console
                .say(format_args!("waiting for somebody to read {}", output.name()));
        }
        let Some(endpoint) = &mut self.endpoint else {
            return;
        };
        let called: Result<_, InvokeError> = match call {
            Call::Observe => {
                let start_awaited = !self.reports.is_empty() || self.activity != Activity::Recording;
                let start = start_awaited.then_some(ObservableEventType::TYPE_ALL_DATA_SOURCES_STARTED);
                let triggers = self
                    .snapshots
                    .is_some()
                    .then_some(ObservableEventType::TYPE_CLONE_TRIGGER_HIT);
                let kinds: Vec<ObservableEventType> = start.into_iter().chain(triggers).collect();
                endpoint.observe_events(&kinds)
            }
            Call::EnableTracing => {
                // First, so that the answer is about what is there when the recording begins. One that cannot be asked is
                // found out by the next call.
                if self.written.is_some() {
                    let _ = endpoint.query_service_state(StateScope::Everything);
                }
                endpoint.enable_tracing(&self.config, file)
            }
            Call::Flush => endpoint.flush_producers(DEFAULT_FLUSH_TIMEOUT, FLUSH_FLAGS),
            Call::DisableTracing => endpoint.disable_tracing(),
            Call::ReadBuffers => endpoint.read_buffers(),
            Call::GetTraceStats => endpoint.trace_stats(),
            Call::Detach => endpoint.detach(key(&self.job)),
            Call::Attach => endpoint.attach(key(&self.job)),
            Call::CloneSession => endpoint.clone_session(&clone_request(&self.job), file),
        };
        if let Err(error) = called {
            match call {
                Call::EnableTracing => {
                    let error = format!("the trace config cannot be sent: {error}");
                    self.session.tracing_disabled(Some(error), now());
                }
                // The service reads nothing any more.
                _ => {
                    self.trouble = Some(error.to_string());
                    self.session.disconnected();
                }
            }
        }
    }

    /// Begins the output before the call that has data written into it, and gives what goes along with that call.
    fn open_for(&mut self, call: Call) -> io::Result<Option<OwnedFd>> {
        let Some(output) = &mut self.output else {
            return Ok(None);
        };
        let writer = match call {
            Call::EnableTracing => self.session.writer(),
            // Only the service knows whether the original writes into a file. Until it tells, the clone may as well.
            Call::CloneSession => Writer::Service,
            Call::ReadBuffers => Writer::Us,
            _ => return Ok(None),
        };
        output.begin(writer)?;
        match writer {
            Writer::Service => output.descriptor().map(Some),
            Writer::Us => Ok(None),
        }
    }

    /// Passes on what the service said. Whether it said anything.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.as_mut().and_then(ConsumerEndpoint::next_event) {
            any = true;
            match event {
                ConsumerEvent::Connected => self.session.connected(now()),
                // What follows is the end of the connection, which says why.
                ConsumerEvent::Reply {
                    reply: Err(CallError::ConnectionLost),
                    ..
                } => {}
                ConsumerEvent::Reply { method, reply, .. } => self.take_reply(method, reply),
                ConsumerEvent::Disconnected(reason) => {
                    self.trouble.get_or_insert(reason.to_string());
                    self.session.disconnected();
                }
            }
        }
        any
    }

    fn take_reply(&mut self, method: ConsumerMethod, reply: Result<ConsumerReply, CallError>) {
        match (method, reply) {
            (_, Ok(ConsumerReply::TracingDisabled { error })) => self.session.tracing_disabled(error, now()),
            (_, Ok(ConsumerReply::TraceData { packets, more })) => {
                let written = packets.iter().try_for_each(|packet| self.write_packet(packet));
                let written = match more {
                    More::Last => written.and_then(|()| self.output.as_mut().map_or(Ok(()), Output::finish)),
                    More::Follows => written,
                };
                match (written, more) {
                    (Err(error), _) => self.session.output_failed(why(&error)),
                    (Ok(()), More::Follows) => {
                        self.session.packets_read(now());
                        self.show_writing();
                    }
                    (Ok(()), More::Last) => self.session.all_packets_read(now()),
                }
            }
            (_, Ok(ConsumerReply::TraceStats(stats))) => {
                // A service without a session for us answers with nothing in it.
                let stats = (!stats.buffer_stats.is_empty()).then_some(*stats);
                self.session.trace_stats(stats, now());
            }
            (_, Ok(ConsumerReply::Observed(events))) => {
                if events.all_data_sources_started == Some(true) {
                    self.activity = Activity::Recording;
                    self.session.all_data_sources_started();
                }
                if let Some(hit) = events.clone_trigger_hit.as_option() {
                    self.take_snapshot(hit);
                }
            }
            (_, Ok(ConsumerReply::Attached { trace_config })) => {
                let config = TraceConfig::decode_from_slice(&trace_config).map_err(drop);
                self.session.attached(config, now());
            }
            (_, Ok(ConsumerReply::SessionCloned(response))) => {
                self.session.cloned(cloned(&self.job, &response), now());
            }
            (ConsumerMethod::QueryServiceState, state) => {
                if let Some(written) = self.written.take() {
                    let state = match &state {
                        Ok(ConsumerReply::ServiceState { state, .. }) => Some(&**state),
                        _ => None,
                    };
                    warnings::warn(&written, state, self.console);
                }
            }
            (ConsumerMethod::Attach, Err(_)) => self.session.attached(Err(()), now()),
            (ConsumerMethod::Detach, outcome) => self.session.detached(outcome.map(drop).map_err(drop)),
            (ConsumerMethod::CloneSession, Err(error)) => {
                self.session.cloned(Err(format!("cannot clone: {error}")), now());
            }
            (ConsumerMethod::EnableTracing, Err(error)) => {
                self.session.tracing_disabled(Some(error.to_string()), now());
            }
            (ConsumerMethod::ReadBuffers, Err(error)) => self.session.read_failed(error.to_string()),
            (ConsumerMethod::GetTraceStats, Err(_)) => self.session.trace_stats(None, now()),
            (ConsumerMethod::Flush, outcome) => self.session.flushed(outcome.map(drop).map_err(drop)),
            _ => {}
        }
    }

    fn write_packet(&mut self, packet: &[u8]) -> io::Result<()> {
        self.contents.observe(packet);
        self.output
            .as_mut()
            .map_or(Ok(()), |output| output.write_packet(packet))
    }

    fn show_writing(&mut self) {
        if self.console.kind() == Kind::Terminal
            && now().saturating_sub(self.write_shown_at) >= TERMINAL_PERIOD
            && let Some(output) = &mut self.output
        {
            self.write_shown_at = now();
            let bytes = Bytes(output.size().unwrap_or(0));
            let line = Line::new(format_args!("writing {}: {bytes}", output.name()));
            self.console.live(line);
        }
    }

    fn report(&mut self, status: StartStatus, reason: &str) {
        for report in self.reports.drain(..) {
            report.send(status, reason);
        }
    }

    /// The sentences about the connection and the line "Wrote … bytes into …" are upstream's: scripts wait for them.
    fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::Recording(duration) => self.tell_of_the_start(duration),
            Notice::Accepted => {
                if let Some(awaited) = &self.awaited {
                    self.console.notice(awaited);
                }
                if let Some(started) = self.service.as_ref().and_then(|service| service.started.as_ref()) {
                    self.console.notice(format_args!(
                        "to activate one: PERFETTO_PRODUCER_SOCK_NAME={} ferretto trigger_perfetto NAME",
                        started.producer_socket
                    ));
                }
            }
            Notice::Stopping(signal) => {
                self.console.key_pressed();
                let signal = signals::name(signal);
                self.console.notice(format_args!(
                    "{signal}: ending the recording (again to give it up)"
                ));
                self.console.live(Line::new("waiting for the newest data"));
            }
            // Said with the summary: a recording that still waits for its trigger has nothing to miss.
            Notice::FlushFailed => self.newest_may_be_missing = true,
            Notice::AlreadyReadingBack => {
                self.console.key_pressed();
                self.console
                    .notice("the recording is over and being written (again to give it up)");
            }
        }
    }

    fn tell_of_the_start(&mut self, duration: Option<Duration>) {
        let upstreams = match duration {
            Some(duration) => {
                let seconds = duration.as_millis().div_ceil(1000);
                format!("Connected to the Perfetto traced service, TTL: {seconds}s")
            }
            None => "Connected to the Perfetto traced service, starting tracing".to_owned(),
        };
        match (self.console.voice().program, duration, &self.awaited) {
            (Program::Perfetto, Some(_), _) => self.console.notice(upstreams),
            (Program::Perfetto, None, _) => {
                self.console.notice(upstreams);
                self.console
                    .notice("Ctrl-C ends the recording and keeps the data");
            }
            // What it waits for is said next.
            (Program::Ferretto, _, Some(_)) => {}
            (Program::Ferretto, Some(duration), None) => self.console.notice(format_args!(
                "recording for {}; Ctrl-C ends it earlier and keeps the data",
                Elapsed(duration)
            )),
            (Program::Ferretto, None, None) => {
                self.console
                    .notice("recording until Ctrl-C, which keeps the data");
            }
        }
    }
}

/// The key of a detached session.
fn key(job: &Job) -> &str {
    match job {
        Job::StartAndDetach(key) | Job::Attach(key, _) => key,
        Job::Record | Job::Clone(..) => "",
    }
}

fn clone_request(job: &Job) -> CloneSessionRequest {
    let Job::Clone(clone) = job else {
        return CloneSessionRequest::default();
    };
    let for_bugreport = clone.filter == TraceFilter::Skipped;
    let request = CloneSessionRequest {
        selector: Some(match &clone.original {
            Original::Id(id) => clone_session_request::Selector::SessionId(*id),
            Original::Name(name) => clone_session_request::Selector::UniqueSessionName(name.clone()),
        }),
        skip_trace_filter: Some(for_bugreport),
        for_bugreport: Some(for_bugreport),
        ..Default::default()
    };
    let Some(trigger) = &clone.trigger else {
        return request;
    };
    CloneSessionRequest {
        clone_trigger_name: Some(trigger.name.clone()),
        clone_trigger_producer_name: Some(trigger.producer_name.clone()),
        clone_trigger_trusted_producer_uid: Some(trigger.producer_uid as i32),
        clone_trigger_boot_time_ns: Some(trigger.boot_time_ns),
        clone_trigger_delay_ms: Some(trigger.delay_ms),
        ..request
    }
}

/// Who fills the clone's output, or why there is none.
fn cloned(job: &Job, response: &CloneSessionResponse) -> Result<Writer, String> {
    if response.success == Some(true) {
        return Ok(if response.was_write_into_file == Some(true) {
            Writer::Service
        } else {
            Writer::Us
        });
    }
    let original = match job {
        Job::Clone(clone) => match &clone.original {
            &Original::BUGREPORT => "for a bug report".to_owned(),
            Original::Id(id) => id.to_string(),
            Original::Name(name) => format!("{name:?}"),
        },
        Job::Record | Job::StartAndDetach(_) | Job::Attach(..) => String::new(),
    };
    let reason = response.error.as_deref().unwrap_or_default();
    Err(format!("cannot clone the session {original}: {reason}"))
}

/// Why the output cannot be written, and what to do about it.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("{error}; free some space, or choose another place with -o")
        }
        _ => error.to_string(),
    }
}

/// Shows the session's name in `ps` and `top`, as upstream's does.
fn name_thread(config: &TraceConfig) {
    let Some(name) = config
        .unique_session_name
        .as_deref()
        .filter(|name| !name.is_empty())
    else {
        return;
    };
    if let Ok(name) = std::ffi::CString::new(format!("p-{name}")) {
        // A name is a convenience.
        let _ = rustix::thread::set_name(&name);
    }
}

/// A random delay between the two that the config gives.
fn start_delay(config: &TraceConfig) -> Duration {
    let delay = &config.cmd_trace_start_delay;
    let (Some(min), Some(max)) = (delay.min_delay_ms, delay.max_delay_ms) else {
        return Duration::ZERO;
    };
    let mut bytes = [0; 8];
    // Without randomness it is the shortest.
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
