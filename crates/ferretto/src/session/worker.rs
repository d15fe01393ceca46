//! A session on the SDK's thread: carries out the application's requests, in order, and reports the results.
//!
//! Made by [`Session`](super::Session), served by the muxer until the application drops its end or the connection is over.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_ipc::channel::{Nothing, Receiver};
use ferretto_ipc::client::{CallError, CallId, InvokeError, More};
use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::{Deadline, Deadlines, Interest, monotonic_now};
use ferretto_proto::messages::ObservableEvents;
use ferretto_proto::messages::observable_events::Type as ObservableEventType;

use super::command::{Answer, Command, Observer, Pending, ServicePlace, Sink, Waiting};
use super::config::TraceConfig;
use super::endpoint::{DataFlow, Endpoint};
use super::error::SessionError;
use super::{CloneTrigger, Cloned, ServiceState};
use crate::muxer::{self, Readiness, Served, Services, Turn};
use crate::options::LogLevel;

/// Bytes of trace data that one turn moves, so that the thread's other work does not wait.
const TURN_BYTES: usize = 1024 * 1024;

/// The initiator and reason of a flush, for producers: the SDK's user, explicitly. Numbers of upstream's `FlushFlags`.
const FLUSH_FLAGS: u64 = 3 << 4 | 4;

/// The phases of a session.
enum Phase {
    /// It has no config.
    Idle,
    /// The service has not seen its config.
    SetUp(TraceConfig, Option<OwnedFd>),
    /// The service waits for its start.
    Prepared,
    /// Not all data sources have started.
    Starting,
    Started,
    /// Not all data sources have stopped, or the file is not complete.
    Stopping,
    /// It recorded, or was refused. Its buffers may still be read.
    Ended(Result<(), SessionError>),
    /// It is a clone, which does not record.
    Clone,
}

/// A connection to a service.
enum Connection {
    /// Made in the next turn.
    Wanted(ServicePlace),
    Open(Endpoint),
    /// The connection ended for this reason.
    Over(SessionError),
}

/// See the [module](self).
pub(super) struct Worker {
    commands: Receiver<Command>,
    connection: Connection,
    /// The service has closed its end. The little that it sent before is read all at once.
    hung_up: bool,
    flow: DataFlow,
    /// There is more work than fits into one turn.
    unfinished: bool,
    phase: Phase,
    /// The trace goes into a file, and is not to be read.
    streams: bool,
    /// The service keeps buffers for us.
    holds_buffers: bool,
    /// The requests whose answers report the ends of sessions that were given up.
    given_up: Vec<CallId>,
    /// The request whose answer reports the end of this session, if it is known.
    enabled: Option<CallId>,
    pending: HashMap<CallId, Pending>,
    awaiting_start: Vec<Answer<()>>,
    awaiting_end: Vec<Answer<()>>,
    /// The first one is being served, by the current read request.
    reads: VecDeque<Sink>,
    reading: Option<CallId>,
    observer: Option<Observer>,
    on_clone_trigger: Option<Box<dyn FnMut(CloneTrigger) + Send>>,
    before_exit: Option<Box<dyn FnOnce() + Send>>,
    on_start: Option<Box<dyn FnOnce() + Send>>,
    on_stop: Option<Box<dyn FnOnce() + Send>>,
    on_error: Option<Box<dyn FnMut(SessionError) + Send>>,
}

impl Worker {
    pub(super) fn new(place: ServicePlace, commands: Receiver<Command>) -> Worker {
        Worker {
            commands,
            connection: Connection::Wanted(place),
            hung_up: false,
            flow: DataFlow::Open,
            unfinished: false,
            phase: Phase::Idle,
            streams: false,
            holds_buffers: false,
            given_up: Vec::new(),
            enabled: None,
            pending: HashMap::new(),
            awaiting_start: Vec::new(),
            awaiting_end: Vec::new(),
            reads: VecDeque::new(),
            reading: None,
            observer: None,
            on_clone_trigger: None,
            before_exit: None,
            on_start: None,
            on_stop: None,
            on_error: None,
        }
    }

    fn connect(place: ServicePlace, services: &mut Services<'_>) -> Result<Endpoint, SessionError> {
        let backend = match place {
            ServicePlace::Stream(stream) => {
                return ConsumerEndpoint::over(*stream)
                    .map(|endpoint| Endpoint::over(endpoint, None))
                    .map_err(|error| SessionError::Unavailable(error.to_string()));
            }
            ServicePlace::Backend(backend) => backend,
            ServicePlace::Default => services.default_backend().ok_or(SessionError::NotInitialized)?,
        };
        services
            .connect_consumer(backend)
            .map_err(|error| SessionError::Unavailable(error.0))
    }

    /// The endpoint; `Some` whenever a command or an event is handled.
    fn endpoint(&mut self) -> Option<&mut Endpoint> {
        match &mut self.connection {
            Connection::Open(endpoint) => Some(endpoint),
            Connection::Wanted(_) | Connection::Over(_) => None,
        }
    }

    /// Makes a request. `pending` gets the reply.
    fn request(
        &mut self,
        pending: Pending,
        make: impl FnOnce(&mut ConsumerEndpoint) -> Result<CallId, InvokeError>,
    ) -> Option<CallId> {
        let made = make(self.endpoint()?);
        self.requested(made, pending)
    }

    fn requested(&mut self, made: Result<CallId, InvokeError>, pending: Pending) -> Option<CallId> {
        match made {
            Ok(call) => {
                self.pending.insert(call, pending);
                Some(call)
            }
            Err(error) => {
                let reason = error.to_string();
                pending.fail(&|request| SessionError::Rejected {
                    request,
                    reason: reason.clone(),
                });
                None
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::SetUp(config, file, waiting) => {
                let result = self.set_up(config, file);
                self.tell(waiting, result);
            }
            Command::Start(waiting) => self.start(waiting),
            Command::Stop(waiting) => self.stop(waiting),
            Command::AwaitEnd(answer) => match &self.phase {
                Phase::Idle | Phase::Clone => answer.give(Err(not_set_up("wait for the end of the session"))),
                Phase::Ended(result) => {
                    let result = result.clone();
                    answer.give(result);
                }
                _ => self.awaiting_end.push(answer),
            },
            Command::Flush(timeout, answer) => {
                let timeout_ms = timeout.as_millis().min(u32::MAX.into()) as u32;
                match self.phase {
                    Phase::Idle | Phase::SetUp(..) => answer.give(Err(not_set_up("flush"))),
                    _ => drop(self.request(Pending::Flush(answer), |endpoint| {
                        endpoint.flush_producers(timeout_ms, FLUSH_FLAGS)
                    })),
                }
            }
            Command::Read(sink) => self.read(sink),
            Command::ChangeConfig(config, answer) => {
                const REQUEST: &str = "change the trace config";
                match &mut self.phase {
                    Phase::SetUp(current, _) => {
                        *current = config;
                        answer.give(Ok(()));
                    }
                    Phase::Prepared | Phase::Starting | Phase::Started | Phase::Stopping => {
                        self.request(Pending::Done(REQUEST, answer), |endpoint| {
                            endpoint.change_trace_config(config.as_bytes())
                        });
                    }
                    Phase::Idle | Phase::Ended(_) | Phase::Clone => answer.give(Err(not_set_up(REQUEST))),
                }
            }
            Command::Clone(request, file, answer) => {
                if self.is_active() {
                    return answer.give(Err(SessionError::InUse));
                }
                self.give_up();
                self.request(Pending::Clone(answer), |endpoint| {
                    endpoint.clone_session(&request, file)
                });
            }
            Command::Detach(key, answer) => {
                if !self.is_active() {
                    return answer.give(Err(not_set_up("detach from the session")));
                }
                self.request(Pending::Detach(answer), |endpoint| endpoint.detach(&key));
            }
            Command::Attach(key, answer) => {
                if self.is_active() {
                    return answer.give(Err(SessionError::InUse));
                }
                self.give_up();
                self.request(Pending::Attach(answer), |endpoint| endpoint.attach(&key));
            }
            Command::Stats(answer) => {
                self.request(Pending::Stats(answer), ConsumerEndpoint::trace_stats);
            }
            Command::State(scope, answer) => {
                self.request(Pending::State(answer), |endpoint| {
                    endpoint.query_service_state(scope)
                });
            }
            Command::Capabilities(answer) => {
                self.request(
                    Pending::Capabilities(answer),
                    ConsumerEndpoint::query_capabilities,
                );
            }
            Command::Observe(observer) => {
                self.observer = Some(observer);
                self.observe();
            }
            Command::OnCloneTrigger(tell) => {
                self.on_clone_trigger = Some(tell);
                self.observe();
            }
            Command::BeforeExit(tell) => self.before_exit = Some(tell),
            Command::OnStart(tell) => match self.phase {
                Phase::Started => tell(),
                _ => self.on_start = Some(tell),
            },
            Command::OnStop(tell) => match self.phase {
                Phase::Ended(_) => tell(),
                _ => self.on_stop = Some(tell),
            },
            Command::OnError(mut tell) => {
                if let Phase::Ended(Err(error)) = &self.phase {
                    tell(error.clone());
                }
                self.on_error = Some(tell);
            }
            Command::End => {}
        }
    }

    /// Gives the result to the code that waits for it. If none does, errors go to the callback for errors, or else to the log.
    fn tell(&mut self, waiting: Waiting, result: Result<(), SessionError>) {
        match (waiting, result, &mut self.on_error) {
            (Some(answer), result, _) => answer.give(result),
            (None, Err(error), Some(tell)) => tell(error),
            (None, Err(error), None) => muxer::log(LogLevel::Warning, &error.to_string()),
            (None, Ok(()), _) => {}
        }
    }

    /// Whether the service has a session of ours that has not ended.
    fn is_active(&self) -> bool {
        matches!(
            self.phase,
            Phase::Prepared | Phase::Starting | Phase::Started | Phase::Stopping
        )
    }

    /// Frees the service's buffers of a session that has ended or is a clone.
    fn give_up(&mut self) {
        if std::mem::take(&mut self.holds_buffers) {
            self.request(Pending::Unawaited, ConsumerEndpoint::free_buffers);
        }
        self.given_up.extend(self.enabled.take());
        self.phase = Phase::Idle;
        self.streams = false;
    }

    fn set_up(&mut self, config: TraceConfig, file: Option<OwnedFd>) -> Result<(), SessionError> {
        if self.is_active() {
            return Err(SessionError::InUse);
        }
        self.give_up();
        let decoded = config.decoded();
        self.streams = decoded.write_into_file.unwrap_or_default();
        if file.is_some() && !self.streams {
            return Err(SessionError::Refused(
                "there is a file to write into, but the config does not say so; set write_into_file".into(),
            ));
        }
        // With both, services would use the path and ignore the file.
        if file.is_some()
            && decoded
                .output_path
                .as_deref()
                .is_some_and(|path| !path.is_empty())
        {
            return Err(SessionError::Refused(
                "there is a file to write into, and the config has an output_path: drop one".into(),
            ));
        }
        if decoded.deferred_start.unwrap_or_default() {
            self.enable(&config, file)?;
            self.phase = Phase::Prepared;
        } else {
            self.phase = Phase::SetUp(config, file);
        }
        Ok(())
    }

    fn enable(&mut self, config: &TraceConfig, file: Option<OwnedFd>) -> Result<(), SessionError> {
        let Some(endpoint) = self.endpoint() else {
            return Ok(());
        };
        match endpoint.enable_tracing(config.as_bytes(), file) {
            Ok(call) => {
                if let Some(advice) = config.advice() {
                    muxer::log(LogLevel::Warning, advice);
                }
                self.enabled = Some(call);
                self.holds_buffers = true;
                Ok(())
            }
            Err(InvokeError::TooLarge(_)) => Err(SessionError::Refused(format!(
                "the trace config has {} bytes, and no service takes more than {MAX_PAYLOAD}",
                config.as_bytes().len()
            ))),
            Err(error) => Err(SessionError::Refused(error.to_string())),
        }
    }

    fn start(&mut self, waiting: Waiting) {
        match std::mem::replace(&mut self.phase, Phase::Starting) {
            Phase::SetUp(config, file) => {
                self.awaiting_start.extend(waiting);
                if let Err(error) = self.enable(&config, file) {
                    self.ended(Err(error));
                }
            }
            Phase::Prepared => {
                self.awaiting_start.extend(waiting);
                self.request(Pending::Unawaited, ConsumerEndpoint::start_tracing);
            }
            Phase::Starting => self.awaiting_start.extend(waiting),
            // It has ended before it started, and the answer will say so.
            Phase::Stopping => {
                self.phase = Phase::Stopping;
                self.awaiting_start.extend(waiting);
            }
            phase @ Phase::Started => {
                self.phase = phase;
                self.tell(waiting, Ok(()));
            }
            Phase::Ended(result) => {
                let error = result.clone().err().unwrap_or(SessionError::EndedEarly);
                self.phase = Phase::Ended(result);
                self.tell(waiting, Err(error));
            }
            phase @ (Phase::Idle | Phase::Clone) => {
                self.phase = phase;
                self.tell(waiting, Err(not_set_up("start the session")));
            }
        }
    }

    fn stop(&mut self, waiting: Waiting) {
        match &self.phase {
            Phase::Idle | Phase::Clone => self.tell(waiting, Err(not_set_up("stop the session"))),
            Phase::SetUp(..) => {
                self.awaiting_end.extend(waiting);
                self.ended(Ok(()));
            }
            Phase::Stopping => self.awaiting_end.extend(waiting),
            Phase::Prepared | Phase::Starting | Phase::Started => {
                self.awaiting_end.extend(waiting);
                self.phase = Phase::Stopping;
                self.request(Pending::Unawaited, ConsumerEndpoint::disable_tracing);
            }
            Phase::Ended(result) => {
                let result = result.clone();
                // The error callback has already had this error.
                if let Some(answer) = waiting {
                    answer.give(result);
                }
            }
        }
    }

    fn read(&mut self, sink: Sink) {
        match self.phase {
            Phase::Idle | Phase::SetUp(..) => sink.end(Err(not_set_up("read the trace"))),
            _ if self.streams => sink.end(Err(SessionError::WritesIntoFile)),
            _ => {
                self.reads.push_back(sink);
                self.read_next();
            }
        }
    }

    /// Begins the first of the waiting reads, if none is being served.
    fn read_next(&mut self) {
        if self.reading.is_some() || self.reads.is_empty() {
            return;
        }
        let Some(endpoint) = self.endpoint() else { return };
        match endpoint.read_buffers() {
            Ok(call) => self.reading = Some(call),
            Err(error) => self.read_ended(Err(SessionError::Rejected {
                request: "read the trace",
                reason: error.to_string(),
            })),
        }
    }

    fn read_ended(&mut self, result: Result<(), SessionError>) {
        self.reading = None;
        if let Some(sink) = self.reads.pop_front() {
            sink.end(result);
        }
        self.read_next();
    }

    /// Has the service report the events of interest.
    fn observe(&mut self) {
        let mut types = vec![ObservableEventType::TYPE_ALL_DATA_SOURCES_STARTED];
        types.extend(self.observer.iter().flat_map(|observer| &observer.types));
        if self.on_clone_trigger.is_some() {
            types.push(ObservableEventType::TYPE_CLONE_TRIGGER_HIT);
        }
        self.request(Pending::Unawaited, |endpoint| endpoint.observe_events(&types));
    }

    fn started(&mut self) {
        if !matches!(self.phase, Phase::Starting) {
            return;
        }
        self.phase = Phase::Started;
        self.awaiting_start
            .drain(..)
            .for_each(|answer| answer.give(Ok(())));
        if let Some(tell) = self.on_start.take() {
            tell();
        }
    }

    /// The session does not record any more.
    fn ended(&mut self, result: Result<(), SessionError>) {
        // That a session never began would be noticed late.
        let never_began = matches!(self.phase, Phase::Prepared | Phase::Starting);
        let someone_waits = !self.awaiting_start.is_empty() || !self.awaiting_end.is_empty();
        self.phase = Phase::Ended(result.clone());
        let not_started = result.clone().err().unwrap_or(SessionError::EndedEarly);
        for answer in self.awaiting_start.drain(..) {
            answer.give(Err(not_started.clone()));
        }
        for answer in self.awaiting_end.drain(..) {
            answer.give(result.clone());
        }
        match (&result, &mut self.on_error) {
            (Err(error), Some(tell)) => tell(error.clone()),
            (Err(error), None) if never_began && !someone_waits => {
                muxer::log(LogLevel::Warning, &error.to_string());
            }
            _ => {}
        }
        if let Some(tell) = self.on_stop.take() {
            tell();
        }
    }

    /// Handles an event; returns the number of bytes of trace data in it.
    fn event(&mut self, event: ConsumerEvent) -> Result<usize, SessionError> {
        match event {
            ConsumerEvent::Connected => Ok(0),
            ConsumerEvent::Disconnected(reason) => Err(SessionError::Disconnected(reason.to_string())),
            // The reason for the end of the connection is reported last.
            ConsumerEvent::Reply {
                reply: Err(CallError::ConnectionLost | CallError::UnknownService { .. }),
                ..
            } => Ok(0),
            ConsumerEvent::Reply {
                request,
                method: ConsumerMethod::EnableTracing,
                reply,
            } => {
                self.tracing_ended(request, reply);
                Ok(0)
            }
            ConsumerEvent::Reply {
                request,
                method: ConsumerMethod::ReadBuffers,
                reply,
            } => Ok(self.trace_data(request, reply)),
            ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::Observed(events)),
                ..
            } => {
                self.observed(&events);
                Ok(0)
            }
            ConsumerEvent::Reply { request, reply, .. } => {
                if let Some(pending) = self.pending.remove(&request) {
                    self.reply(pending, reply);
                }
                Ok(0)
            }
        }
    }

    fn tracing_ended(&mut self, request: CallId, reply: Result<ConsumerReply, CallError>) {
        if let Some(position) = self.given_up.iter().position(|call| *call == request) {
            self.given_up.swap_remove(position);
            return;
        }
        if !self.is_active() {
            return;
        }
        let wrong = match self.phase {
            Phase::Started | Phase::Stopping => SessionError::Failed,
            _ => SessionError::Refused,
        };
        self.ended(match reply {
            Ok(ConsumerReply::TracingDisabled { error }) => error.map_or(Ok(()), |error| Err(wrong(error))),
            Ok(_) => Ok(()),
            Err(error) => Err(wrong(error.to_string())),
        });
    }

    fn trace_data(&mut self, request: CallId, reply: Result<ConsumerReply, CallError>) -> usize {
        if self.reading != Some(request) {
            return 0;
        }
        match reply {
            Ok(ConsumerReply::TraceData { packets, more }) => {
                if let Some(sink) = self.reads.front_mut() {
                    sink.push(&packets);
                }
                if more == More::Last {
                    self.read_ended(Ok(()));
                }
                packets.size()
            }
            Ok(_) => 0,
            Err(error) => {
                self.read_ended(Err(SessionError::Rejected {
                    request: "read the trace",
                    reason: error.to_string(),
                }));
                0
            }
        }
    }

    fn observed(&mut self, events: &ObservableEvents) {
        if events.all_data_sources_started.unwrap_or_default() {
            self.started();
        }
        if let (Some(tell), Some(hit)) = (&mut self.on_clone_trigger, events.clone_trigger_hit.as_option()) {
            tell(CloneTrigger::of(hit));
        }
        if let Some(Observer { types, tell }) = &mut self.observer {
            let of_interest = |kind, is_there: bool| is_there && types.contains(&kind);
            if of_interest(
                ObservableEventType::TYPE_DATA_SOURCES_INSTANCES,
                !events.instance_state_changes.is_empty(),
            ) || of_interest(
                ObservableEventType::TYPE_ALL_DATA_SOURCES_STARTED,
                events.all_data_sources_started.is_some(),
            ) || of_interest(
                ObservableEventType::TYPE_CLONE_TRIGGER_HIT,
                events.clone_trigger_hit.is_set(),
            ) {
                tell(events);
            }
        }
    }

    fn reply(&mut self, pending: Pending, reply: Result<ConsumerReply, CallError>) {
        let reply = match reply {
            Ok(reply) => reply,
            Err(_) if matches!(pending, Pending::Flush(_)) => {
                return pending.fail(&|_| SessionError::NotFlushed);
            }
            Err(error) => {
                return pending.fail(&|request| SessionError::Rejected {
                    request,
                    reason: error.to_string(),
                });
            }
        };
        match (pending, reply) {
            (Pending::Done(_, answer) | Pending::Flush(answer), ConsumerReply::Done) => answer.give(Ok(())),
            (Pending::Detach(answer), ConsumerReply::Done) => {
                // A detached session ends without this process.
                self.holds_buffers = false;
                self.given_up.extend(self.enabled.take());
                self.phase = Phase::Idle;
                self.streams = false;
                for waiting in self.awaiting_start.drain(..).chain(self.awaiting_end.drain(..)) {
                    waiting.give(Err(not_set_up("wait for the session")));
                }
                answer.give(Ok(()));
            }
            (Pending::Attach(answer), ConsumerReply::Attached { trace_config }) => {
                let config = TraceConfig::from_encoded(trace_config).unwrap_or_default();
                self.streams = config.decoded().write_into_file.unwrap_or_default();
                self.phase = Phase::Started;
                self.holds_buffers = true;
                answer.give(Ok(config));
            }
            (Pending::Clone(answer), ConsumerReply::SessionCloned(response)) => {
                let result = Cloned::of(&response);
                if let Ok(cloned) = &result {
                    self.phase = Phase::Clone;
                    self.holds_buffers = true;
                    self.streams = cloned.wrote_into_file;
                }
                answer.give(result);
            }
            (Pending::Stats(answer), ConsumerReply::TraceStats(stats)) => answer.give(Ok(stats)),
            #[cfg(feature = "unstable-proto")]
            (Pending::State(answer), ConsumerReply::ServiceState { state, encoded }) => {
                answer.give(Ok(ServiceState { state, encoded }));
            }
            #[cfg(not(feature = "unstable-proto"))]
            (Pending::State(answer), ConsumerReply::ServiceState { encoded, .. }) => {
                answer.give(Ok(ServiceState { encoded }));
            }
            (Pending::Capabilities(answer), ConsumerReply::Capabilities(capabilities)) => {
                answer.give(Ok(capabilities));
            }
            // Services send no reply of another kind. Dropping `pending` would report that the session is over.
            (_, _) => {}
        }
    }

    /// Lets trace data come as fast as it is read.
    fn adjust_flow(&mut self) {
        let reads_slowly = self.reading.is_some() && self.reads.front().is_some_and(Sink::is_full);
        let full = reads_slowly && !self.hung_up;
        let flow = if full { DataFlow::Paused } else { DataFlow::Open };
        if flow != self.flow {
            self.flow = flow;
            if let Some(endpoint) = self.endpoint() {
                endpoint.set_flow(flow);
            }
        }
    }

    /// Takes events until there are none, or enough for one turn.
    fn take_events(&mut self) -> Result<(), SessionError> {
        let mut bytes = 0;
        loop {
            self.adjust_flow();
            let Some(event) = self.endpoint().and_then(Endpoint::next_event) else {
                return Ok(());
            };
            bytes += self.event(event)?;
            if bytes >= TURN_BYTES {
                self.unfinished = true;
                return Ok(());
            }
        }
    }

    /// The connection is over, or there is none: reports the reason to all waiting requests.
    fn over(&mut self, error: &SessionError) {
        self.connection = Connection::Over(error.clone());
        self.unfinished = false;
        for (_, pending) in self.pending.drain() {
            pending.fail(&|_| error.clone());
        }
        self.reading = None;
        for sink in std::mem::take(&mut self.reads) {
            sink.end(Err(error.clone()));
        }
        self.ended(Err(error.clone()));
    }

    /// Connects if that is still to be done, and lets the connection progress. An error ends it.
    fn advance(&mut self, ready: Readiness, services: &mut Services<'_>) -> Result<Turn, SessionError> {
        self.unfinished = false;
        if let Connection::Wanted(place) = &mut self.connection {
            let place = std::mem::replace(place, ServicePlace::Default);
            self.connection = Connection::Open(Self::connect(place, services)?);
            self.observe();
        }
        if ready.readable
            && let Some(endpoint) = self.endpoint()
        {
            let is_blocked = endpoint.is_blocked();
            if !is_blocked || ready.hung_up {
                endpoint.on_readable();
            }
            self.hung_up |= is_blocked && ready.hung_up;
        }
        while let Some(command) = self.next_command() {
            match command {
                Command::End => return Ok(Turn::Done),
                command => self.command(command),
            }
        }
        if let Some(endpoint) = self.endpoint() {
            endpoint.handle_timeout(monotonic_now());
        }
        self.take_events()?;
        if let Some(endpoint) = self.endpoint() {
            endpoint.flush();
        }
        Ok(Turn::Keep)
    }

    fn next_command(&self) -> Option<Command> {
        match self.commands.try_receive() {
            Ok(command) => Some(command),
            Err(Nothing::SoFar) => None,
            Err(Nothing::EverAgain) => Some(Command::End),
        }
    }

    /// Refuses all later commands, because there is no connection.
    fn refuse_commands(&self, error: &SessionError) -> Turn {
        while let Some(command) = self.next_command() {
            match command {
                Command::End => return Turn::Done,
                command => command.refuse(error.clone()),
            }
        }
        Turn::Keep
    }
}

impl Served for Worker {
    fn interest(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        match &self.connection {
            Connection::Open(endpoint) => Some(endpoint.interest()),
            Connection::Wanted(_) | Connection::Over(_) => None,
        }
    }

    fn deadlines(&self) -> Deadlines {
        let answer = match &self.connection {
            Connection::Open(endpoint) => endpoint.answer_due(),
            Connection::Wanted(_) | Connection::Over(_) => None,
        };
        let deadline = self.unfinished.then_some(0).or(answer);
        deadline.map(Deadline::Monotonic).into()
    }

    #[cfg(feature = "in-process")]
    fn before_exit(&mut self) {
        if let Some(tell) = self.before_exit.take() {
            tell();
        }
    }

    fn turn(&mut self, ready: Readiness, services: &mut Services<'_>) -> Turn {
        if let Connection::Over(error) = &self.connection {
            return self.refuse_commands(error);
        }
        self.advance(ready, services).unwrap_or_else(|error| {
            self.over(&error);
            self.refuse_commands(&error)
        })
    }
}

fn not_set_up(request: &'static str) -> SessionError {
    SessionError::NotSetUp { request }
}
