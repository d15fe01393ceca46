//! The SDK's thread: one loop around everything that has to be waited for.
//!
//! Each turn takes the commands of other threads, has the [`Runtime`] open connections that are due and carry out the services' commands, serves
//! sessions, and sends pending requests. Then it sleeps until a descriptor, a deadline or a [`Waker`](ferretto_ipc::reactor::Waker) wakes it. All of
//! it is cheap, and nothing of it blocks, except for callbacks of data sources.

#[cfg(feature = "in-process")]
mod in_process;
mod program;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_client::data_source::ConnectionId;
use ferretto_client::runtime::{
    self, ConnectionOptions, ConnectionState, Runtime, SourceId, StartupOutcome as Outcome,
};
use ferretto_ipc::channel::Sender;
use ferretto_ipc::client::CallId;
use ferretto_ipc::reactor::{Deadlines, Event, Events, Reactor, Token, Watch, monotonic_now};
use ferretto_wire::OutOfLine;

use super::backend::BackendState;
use super::registry::{self, Entry};
use super::served::{Readiness, Served, Services, Turn};
use super::{Command, Drained, Muxer, log};
use crate::options::{Backend, BackendOptions, LogLevel, MemoryOptions};
use crate::startup::StartupRequest;
use crate::status::{BackendStatus, ConnectionStatus, DataSourceStatus, StartupStatus, Status};
use program::SdkThread;

/// How long to wait when the event loop fails, which should not happen, so that it does not take all of a processor.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Something served, with its place in the event loop.
struct Client {
    served: Box<dyn Served>,
    watch: Watch,
}

/// A callback that waits until services have processed all earlier requests.
struct Sync {
    /// The connections that have not answered, and the calls that they are to answer.
    waiting: Vec<(ConnectionId, CallId)>,
    done: Box<dyn FnOnce() + Send>,
}

struct Thread {
    muxer: &'static Muxer,
    reactor: Reactor,
    runtime: OutOfLine<Runtime>,
    backends: Vec<BackendState>,
    /// The data sources that the runtime has.
    sources: Vec<(SourceId, &'static Entry)>,
    clients: Vec<Client>,
    /// The startup sessions whose end the application waits for.
    startup: Vec<StartupRequest>,
    draining: Vec<Sender<Drained>>,
    syncs: Vec<Sync>,
    last_token: u64,
}

/// Runs the thread.
pub(super) fn run(muxer: &'static Muxer, reactor: Reactor) {
    let runtime = Runtime::new(Arc::new(SdkThread), muxer.waker.clone());
    let mut thread = Thread {
        muxer,
        reactor,
        runtime,
        backends: Vec::new(),
        sources: Vec::new(),
        clients: Vec::new(),
        startup: Vec::new(),
        draining: Vec::new(),
        syncs: Vec::new(),
        last_token: 0,
    };
    let mut events = Events::new();
    loop {
        thread.turn(events.ready());
        let deadlines = thread.deadlines();
        if let Err(error) = thread.reactor.wait(&mut events, deadlines) {
            log(LogLevel::Warning, &error.to_string());
            std::thread::sleep(PAUSE_AFTER_FAILURE);
        }
    }
}

/// The readiness that `ready` reports for the descriptor of `watch`.
fn readiness(ready: &[Event], watch: &Watch) -> Readiness {
    let event = ready.iter().find(|event| event.token == watch.token());
    event.map_or_else(Readiness::default, |event| Readiness {
        readable: event.readable,
        writable: event.writable,
        hung_up: event.hung_up,
    })
}

impl Thread {
    fn turn(&mut self, ready: &[Event]) {
        self.take_commands();
        for index in 0..self.backends.len() {
            self.connect_if_due(index);
            let readiness = readiness(ready, &self.backends[index].watch);
            self.serve_backend(index, readiness);
            #[cfg(feature = "in-process")]
            self.serve_in_process(index);
        }
        self.serve_clients(|watch| readiness(ready, watch));
        // First, because a program that learns from a service that an instance has started or stopped may ask for the status right away.
        self.runtime.take_acknowledgements();
        self.publish_status();
        self.runtime.settle();
        self.take_events();
        self.drain();
        self.publish_status();
        self.update_watches();
    }

    fn take_commands(&mut self) {
        let commands = self.muxer.take_commands();
        // Acknowledgements that a thread made before it left a command take effect before that command.
        self.runtime.take_acknowledgements();
        for command in commands {
            match command {
                Command::AddBackends(backends, memory) => self.add_backends(backends, memory),
                Command::LookAtSources => self.look_at_sources(),
                Command::Serve(served) => {
                    let watch = self.new_watch();
                    self.clients.push(Client { served, watch });
                    // For its first turn.
                    self.muxer.waker.wake();
                }
                Command::ActivateTriggers { names, expiry } => self.runtime.activate_triggers(&names, expiry),
                Command::StartUp(request) => self.start_up(request),
                Command::AbortStartup(number) => self.runtime.abort_startup(number),
                Command::Call(call) => drop(super::guarded(call)),
                Command::Sync(done) => self.sync(done),
                Command::Drain(done) => self.begin_to_drain(done),
            }
        }
    }

    fn new_watch(&mut self) -> Watch {
        self.last_token += 1;
        Watch::new(Token(self.last_token))
    }

    // --- Services. ---

    fn add_backends(&mut self, backends: Vec<BackendOptions>, memory: MemoryOptions) {
        for options in backends {
            let backend = options.backend();
            if self.backends.iter().any(|known| known.backend() == backend) {
                self.runtime.retry_soon(backend.connection());
                continue;
            }
            let watch = self.new_watch();
            self.backends.push(BackendState::new(options, watch));
            self.runtime.add_connection(ConnectionOptions {
                id: backend.connection(),
                name: backend.to_string(),
                producer_name: self.muxer.settings.producer_name.clone(),
                sdk_version: concat!("ferretto ", env!("CARGO_PKG_VERSION")).to_owned(),
                memory,
            });
        }
        // Sources registered before there was a thread.
        self.discover_sources();
        // To connect.
        self.muxer.waker.wake();
    }

    fn connect_if_due(&mut self, index: usize) {
        let backend = &mut self.backends[index];
        self.runtime
            .connect_if_due(backend.backend().connection(), |options| backend.connect(options));
        self.take_events();
    }

    /// Carries out a service's commands; returns how many there were.
    fn serve_backend(&mut self, index: usize, ready: Readiness) -> usize {
        let connection = self.backends[index].backend().connection();
        if ready.readable {
            self.runtime.on_readable(connection);
        }
        let count = self.runtime.serve(connection);
        self.take_events();
        count
    }

    fn take_events(&mut self) {
        while let Some(event) = self.runtime.next_event() {
            match event {
                runtime::Event::Connected(connection) => {
                    log(LogLevel::Info, &format!("{}: connected", Backend::of(connection)));
                    self.discover_sources();
                    self.runtime.register_sources();
                }
                runtime::Event::CannotConnect(connection, reason) => {
                    self.log_disconnection(Backend::of(connection), &reason);
                }
                runtime::Event::Disconnected {
                    connection,
                    news,
                    closed,
                } => self.disconnected(Backend::of(connection), news, closed),
                runtime::Event::Synced(connection, call) => self.synced(connection, call),
                runtime::Event::StartupEnded(number, outcome) => self.startup_ended(number, outcome),
            }
        }
    }

    fn disconnected(&mut self, backend: Backend, news: Option<String>, closed: Option<runtime::Closed>) {
        let state = self.backends.iter_mut().find(|state| state.backend() == backend);
        if let (Some(state), Some(closed)) = (state, closed) {
            state.watch.end(&self.reactor, &closed);
        }
        let connection = backend.connection();
        self.syncs
            .retain(|sync| sync.waiting.iter().all(|(waiting, _)| *waiting != connection));
        if let Some(reason) = news {
            self.log_disconnection(backend, &reason);
        }
    }

    fn log_disconnection(&self, backend: Backend, reason: &str) {
        log(LogLevel::Warning, &format!("{backend}: not connected: {reason}"));
    }

    // --- Data sources. ---

    /// Adds data sources registered since the last call.
    fn discover_sources(&mut self) {
        for entry in registry::entries().skip(self.sources.len()) {
            let id = self.runtime.add_source(Some(entry.id), entry.source.clone());
            self.sources.push((id, entry));
        }
    }

    /// Tells services of data sources that were registered, withdrawn or have changed.
    fn look_at_sources(&mut self) {
        self.discover_sources();
        for &(id, entry) in &self.sources {
            if entry.take_changed() {
                self.runtime.source_changed(id);
            }
            if !entry.is_offered() {
                self.runtime.withdraw_source(id);
            }
        }
        self.runtime.register_sources();
    }

    // --- Startup tracing. ---

    fn start_up(&mut self, request: StartupRequest) {
        self.discover_sources();
        let backend = request.backend;
        if !self.backends.iter().any(|state| state.backend() == backend) {
            return request.refused(format!(
                "the {backend} is not among the backends given to ferretto::initialize"
            ));
        }
        #[cfg(feature = "in-process")]
        if backend == Backend::InProcess {
            let reason = "the service is in this process: start a session of it at once";
            return request.refused(reason.to_owned());
        }
        let started = self.runtime.start_up(runtime::StartupRequest {
            number: request.number,
            connection: backend.connection(),
            timeout: request.timeout,
            configs: request.configs(),
        });
        match started {
            Err(reason) => request.refused(reason),
            Ok(count) => {
                request.set_up(count);
                // Without instances nothing can end.
                if count > 0 {
                    self.startup.push(request);
                }
            }
        }
    }

    fn startup_ended(&mut self, number: u64, outcome: Outcome) {
        for request in self.startup.extract_if(.., |request| request.number == number) {
            match outcome {
                Outcome::Aborted => request.aborted(),
                Outcome::Adopted => request.adopted(),
            }
        }
    }

    // --- Sessions, and the loop. ---

    fn serve_clients(&mut self, readiness: impl Fn(&Watch) -> Readiness) {
        let mut services = Services {
            backends: &mut self.backends,
            runtime: &mut self.runtime,
        };
        self.clients.retain_mut(|client| {
            let ready = readiness(&client.watch);
            let keep = client.served.turn(ready, &mut services) == Turn::Keep;
            if !keep && let Some((fd, _)) = client.served.interest() {
                client.watch.end(&self.reactor, fd);
            }
            keep
        });
    }

    fn begin_to_drain(&mut self, done: Sender<Drained>) {
        // All sockets first, because services may wait for files of ours.
        self.pump_now();
        #[cfg(feature = "in-process")]
        self.end_in_process(&done);
        self.draining.push(done);
    }

    fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.backends.iter().map(|state| state.backend().connection())
    }

    /// Sends all pending requests.
    fn pump_now(&self) {
        for connection in self.connections() {
            self.runtime.pump_now(connection);
        }
    }

    fn sync(&mut self, done: Box<dyn FnOnce() + Send>) {
        self.pump_now();
        let waiting: Vec<_> = self
            .connections()
            .filter(|connection| self.runtime.has_memory(*connection))
            .filter_map(|connection| Some((connection, self.runtime.sync(connection)?)))
            .collect();
        // Without a service nothing has processed the requests.
        if !waiting.is_empty() {
            self.syncs.push(Sync { waiting, done });
        }
    }

    fn synced(&mut self, connection: ConnectionId, call: CallId) {
        for sync in &mut self.syncs {
            sync.waiting.retain(|waiting| *waiting != (connection, call));
        }
        for sync in self.syncs.extract_if(.., |sync| sync.waiting.is_empty()) {
            super::guarded(sync.done);
        }
    }

    fn drain(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        self.pump_now();
        if self
            .connections()
            .all(|connection| self.runtime.is_idle(connection))
        {
            for done in self.draining.drain(..) {
                let _ = done.send(Drained::All);
            }
        }
    }

    fn deadlines(&self) -> Deadlines {
        let mut deadlines = self.runtime.deadlines();
        let mut add = |more: Deadlines| {
            deadlines.monotonic = deadlines.monotonic.into_iter().chain(more.monotonic).min();
            deadlines.boot = deadlines.boot.into_iter().chain(more.boot).min();
        };
        if self.muxer.has_commands() {
            // Commands that this thread left for itself: no other thread will wake it for them.
            add(Deadlines {
                monotonic: Some(0),
                boot: None,
            });
        }
        #[cfg(feature = "in-process")]
        for service in self.backends.iter().filter_map(BackendState::in_process) {
            add(service.deadlines());
        }
        for client in &self.clients {
            add(client.served.deadlines());
        }
        deadlines
    }

    fn update_watches(&mut self) {
        for backend in &mut self.backends {
            let connection = backend.backend().connection();
            let (watch, reactor) = (&mut backend.watch, &self.reactor);
            self.runtime.interest(connection, |fd, interest| {
                watch.update(reactor, Some((fd, interest)));
            });
            #[cfg(feature = "in-process")]
            backend.watch_in_process(&self.reactor);
        }
        for client in &mut self.clients {
            client.watch.update(&self.reactor, client.served.interest());
        }
    }

    fn publish_status(&mut self) {
        if !self.runtime.take_changed() {
            return;
        }
        let backends = self.backends.iter().map(|state| {
            let (backend, connection) = (state.backend(), state.backend().connection());
            BackendStatus {
                backend,
                connection: match self.runtime.state(connection) {
                    Some(ConnectionState::Connected) => ConnectionStatus::Connected,
                    Some(ConnectionState::Connecting) | None => ConnectionStatus::Connecting,
                    Some(ConnectionState::Waiting { reason, until }) => ConnectionStatus::NotConnected {
                        reason,
                        retry: Instant::now() + Duration::from_nanos(until.saturating_sub(monotonic_now())),
                    },
                },
                instances: self.runtime.instances_of(connection),
                startup: self.startup_status(connection),
            }
        });
        let data_sources = self.runtime.offered().map(|(name, instances)| DataSourceStatus {
            name: name.to_owned(),
            instances,
        });
        *self.muxer.published() = Status {
            backends: backends.collect(),
            data_sources: data_sources.collect(),
            problem: None,
        };
    }

    fn startup_status(&self, connection: ConnectionId) -> Vec<StartupStatus> {
        let waiting = self.runtime.startup_of(connection).into_iter();
        waiting
            .map(|waiting| StartupStatus {
                data_source: waiting.data_source,
                difference: waiting.difference,
            })
            .collect()
    }
}
