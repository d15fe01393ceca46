//! The SDK's thread: one loop around everything that has to be waited for.
//!
//! Each turn takes the commands of other threads, connects what is due to be connected, does what services say, serves sessions, and
//! sends what is to be sent; then it sleeps until a descriptor, a deadline or a [`Waker`](ferretto_ipc::reactor::Waker) ends that. All
//! of it is cheap, and nothing of it blocks, but for what data sources do when they are called.

mod startup;

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::arbiter::{Arbiter, BufferId};
use ferretto_client::producer::{
    DataSourceInstanceId, DataSourceSetup, Flush, ProducerCommand, ProducerEvent,
};
use ferretto_ipc::client::CallId;
use ferretto_ipc::reactor::{Deadlines, Event, Events, Reactor, Token, monotonic_now};

use super::backend::{BackendState, OwnMemory};
use super::producer::ProducerLink;
use super::served::{Readiness, Served, Services, Turn, Watch};
use super::sources::{NoSource, Phase, Place, Running, Sources};
use super::{Command, Drained, Muxer, log};
use crate::channel::Sender;
use crate::options::{BackendOptions, LogLevel, MemoryOptions};
use crate::source::{Acknowledge, Instance, Output};
use crate::status::{BackendStatus, DataSourceStatus, Status};
use startup::StartupSession;

/// How long a changed descriptor waits for further changes before services are told.
const UPDATE_DELAY: Duration = Duration::from_millis(20);

/// How long to wait when the event loop fails, which should not happen: lest it take all of a processor.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Something served, with its place in the event loop.
struct Client {
    served: Box<dyn Served>,
    watch: Watch,
}

/// What waits until services have seen what was sent before.
struct Sync {
    /// The backends that have not answered, and what they are to answer.
    waiting: Vec<(usize, CallId)>,
    done: Box<dyn FnOnce() + Send>,
}

struct Thread {
    muxer: &'static Muxer,
    reactor: Reactor,
    backends: Vec<BackendState>,
    sources: Sources,
    clients: Vec<Client>,
    startup: Vec<StartupSession>,
    draining: Vec<Sender<Drained>>,
    syncs: Vec<Sync>,
    /// Something that the status tells has changed since it was published.
    status_changed: bool,
    last_token: u64,
}

/// The thread's whole life.
pub(super) fn run(muxer: &'static Muxer, reactor: Reactor) {
    let mut thread = Thread {
        muxer,
        reactor,
        backends: Vec::new(),
        sources: Sources::default(),
        clients: Vec::new(),
        startup: Vec::new(),
        draining: Vec::new(),
        syncs: Vec::new(),
        status_changed: false,
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

/// What the descriptor watched so is ready for.
fn readiness(ready: &[Event], watch: &Watch) -> Readiness {
    let event = ready.iter().find(|event| event.token == watch.token());
    event.map_or_else(Readiness::default, |event| Readiness {
        readable: event.readable,
        writable: event.writable,
    })
}

impl Thread {
    fn turn(&mut self, ready: &[Event]) {
        self.take_commands();
        for index in 0..self.backends.len() {
            if self.backends[index]
                .retry_at()
                .is_some_and(|at| at <= monotonic_now())
            {
                self.connect(index);
            }
            let readiness = readiness(ready, &self.backends[index].watch);
            self.serve_backend(index, readiness);
        }
        self.serve_clients(ready);
        #[cfg(feature = "in-process")]
        self.serve_in_process();
        self.update_sources();
        self.end_startup_sessions();
        for backend in &mut self.backends {
            backend.acknowledge_flushes();
            backend.link.pump();
        }
        self.drain();
        self.publish_status();
        self.update_watches();
    }

    fn take_commands(&mut self) {
        for command in self.muxer.take_commands() {
            match command {
                Command::AddBackends(backends, memory) => self.add_backends(backends, memory),
                Command::LookAtSources => self.look_at_sources(),
                Command::Serve(served) => {
                    let watch = self.new_watch();
                    self.clients.push(Client { served, watch });
                    // For its first turn.
                    self.muxer.waker.wake();
                }
                Command::ActivateTriggers { names, expiry } => {
                    for backend in &mut self.backends {
                        backend.activate_triggers(&names, expiry);
                    }
                }
                Command::Started(serial) => self.started(serial),
                Command::Stopped(serial) => self.stopped(serial),
                Command::Flushed(serial, flush) => {
                    if let Some(backend) = self.connected_backend_of(serial) {
                        backend.flushed(serial, Some(flush));
                    }
                }
                Command::StartUp(request) => self.start_up(request),
                Command::AbortStartup(number) => self.abort_startup(number),
                Command::Sync(done) => self.sync(done),
                Command::Drain(done) => self.begin_to_drain(done),
            }
        }
    }

    fn new_watch(&mut self) -> Watch {
        self.last_token += 1;
        Watch::new(Token(self.last_token))
    }

    fn add_backends(&mut self, backends: Vec<BackendOptions>, memory: MemoryOptions) {
        self.status_changed = true;
        for options in backends {
            let known = self
                .backends
                .iter_mut()
                .find(|known| known.backend() == options.backend());
            if let Some(known) = known {
                known.retry_soon();
                continue;
            }
            let watch = self.new_watch();
            let waker = self.muxer.waker.clone();
            self.backends
                .push(BackendState::new(options, memory, watch, waker));
        }
        // Sources registered before there was a thread.
        self.sources.discover();
        // To connect.
        self.muxer.waker.wake();
    }

    // --- Services. ---

    fn connect(&mut self, index: usize) {
        self.status_changed = true;
        if let Some(reason) = self.backends[index].connect(&self.muxer.settings.producer_name) {
            self.log_disconnection(index, &reason);
        }
    }

    fn serve_backend(&mut self, index: usize, ready: Readiness) {
        if ready.readable {
            self.backends[index].link.with(ProducerLink::on_readable);
        }
        while let Some(event) = self.backends[index].link.with(ProducerLink::next_event).flatten() {
            match event {
                ProducerEvent::Connected(features) => {
                    if self.backends[index].accepted(features) == OwnMemory::Refused
                        && self.startup.iter().any(|session| session.backend == index)
                    {
                        let reason = "the service would not use this process's memory, which startup \
                                      tracing needs; connecting again without";
                        self.disconnected(index, reason);
                        return;
                    }
                    self.connected(index);
                }
                ProducerEvent::Command(command) => {
                    if let Err(reason) = self.obey(index, command) {
                        self.disconnected(index, &reason);
                        return;
                    }
                }
                ProducerEvent::RequestFailed { method, reason } => {
                    let backend = self.backends[index].backend();
                    log(
                        LogLevel::Warning,
                        &format!("{backend}: {}: {reason}", method.name()),
                    );
                }
                ProducerEvent::Synced(call) => self.synced(index, call),
                ProducerEvent::Committed(_) => {}
                ProducerEvent::Disconnected(reason) => {
                    self.disconnected(index, &reason.to_string());
                    return;
                }
            }
        }
    }

    fn connected(&mut self, index: usize) {
        self.status_changed = true;
        log(
            LogLevel::Info,
            &format!("{}: connected", self.backends[index].backend()),
        );
        self.sources.discover();
        let backend = &mut self.backends[index];
        for state in &self.sources.all {
            if state.entry.is_offered() {
                backend.registered.push(state.entry.id);
                let descriptor = &state.descriptor;
                backend
                    .link
                    .with(|producer| producer.register_data_source(descriptor));
            }
        }
        backend.activate_waiting_triggers();
    }

    fn disconnected(&mut self, index: usize, reason: &str) {
        if let Some(reason) = self.give_up_connection(index, reason) {
            self.log_disconnection(index, &reason);
        }
    }

    /// Ends the connection, and what was recorded for it. Says why, if that is news.
    fn give_up_connection(&mut self, index: usize, reason: &str) -> Option<String> {
        self.status_changed = true;
        let BackendState {
            watch,
            link,
            generation,
            ..
        } = &mut self.backends[index];
        let generation = *generation;
        link.with(|producer| watch.end(&self.reactor, producer.interest()));
        // First nothing is written there any more.
        let news = self.backends[index].lost(reason.to_owned());
        for place in self
            .sources
            .places(|running| running.backend == index && running.generation == generation)
        {
            self.stop(place);
        }
        for session in &mut self.startup {
            if session.backend == index {
                session.aborting = true;
            }
        }
        self.syncs
            .retain(|sync| sync.waiting.iter().all(|(waiting, _)| *waiting != index));
        news
    }

    fn log_disconnection(&self, index: usize, reason: &str) {
        let backend = self.backends[index].backend();
        log(LogLevel::Warning, &format!("{backend}: not connected: {reason}"));
    }

    fn obey(&mut self, index: usize, command: ProducerCommand) -> Result<(), String> {
        match command {
            ProducerCommand::SetupTracing(offer) => {
                self.backends[index].set_up_memory(offer).map_err(|reason| {
                    format!("the shared memory that the service sent cannot be used: {reason}")
                })?
            }
            ProducerCommand::SetupDataSource(setup) => self.set_up(index, setup),
            ProducerCommand::StartDataSource(setup) => self.start(index, setup.instance),
            ProducerCommand::StopDataSource(id) => match self.place(index, id) {
                Some(place) => self.stop(place),
                // Nobody should wait for it.
                None => {
                    let link = &self.backends[index].link;
                    link.with(|producer| producer.notify_data_source_stopped(id));
                }
            },
            ProducerCommand::Flush(flush) => self.flush(index, &flush),
            ProducerCommand::ClearIncrementalState(ids) => {
                for id in ids {
                    if let Some(place) = self.place(index, id) {
                        let source = &self.sources.all[place.source].entry.source;
                        source.clear_incremental_state(place.slot);
                    }
                }
            }
        }
        Ok(())
    }

    fn place(&self, index: usize, id: DataSourceInstanceId) -> Option<Place> {
        self.sources.by_id(index, self.backends[index].generation, id)
    }

    // --- Instances. ---

    fn set_up(&mut self, index: usize, setup: DataSourceSetup) {
        let generation = self.backends[index].generation;
        if self.adopt(index, &setup) {
            return;
        }
        let config = Arc::new(*setup.config);
        let source = match self.sources.for_config(
            index,
            generation,
            config.name.as_deref().unwrap_or_default(),
            &setup.encoded_config,
        ) {
            Ok(source) => source,
            Err(NoSource::ServedAlready) => return,
            Err(NoSource::Unknown) => {
                let name = config.name.as_deref().unwrap_or_default();
                let line = format!("asked to record {name:?}, of which there is none");
                return log(LogLevel::Warning, &line);
            }
        };
        let backend = self.backends[index].backend();
        let concurrency = self.muxer.settings.concurrency;
        let encoded_config = setup.encoded_config.into();
        let placed = self.sources.insert(source, concurrency, |slot, serial| Running {
            instance: Instance {
                slot,
                serial,
                backend,
                config,
                encoded_config,
            },
            backend: index,
            generation,
            id: Some(setup.instance),
            phase: Phase::SetUp,
            startup: None,
        });
        self.tell_set_up(source, placed);
    }

    /// Has the data source set up the instance that was put into its place, or says why there was none.
    fn tell_set_up(&mut self, source: usize, placed: Result<Place, &'static str>) {
        let state = &self.sources.all[source];
        match placed {
            Ok(place) => {
                if let Some(running) = self.sources.at(place) {
                    state.entry.source.set_up(&running.instance);
                }
            }
            Err(reason) => {
                let line = format!("a session does not get {:?}: {reason}", state.name);
                log(LogLevel::Warning, &line);
            }
        }
    }

    fn start(&mut self, index: usize, id: DataSourceInstanceId) {
        let Some(place) = self.place(index, id) else {
            // One for which there was no room, say: nobody should wait for it.
            self.notify_started(index, id);
            return;
        };
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        if let Some(startup) = running.startup.take() {
            let (target, serial) = (running.target(), running.instance.serial);
            startup.arbiter.bind(target);
            for session in &mut self.startup {
                if session.number == startup.session {
                    session.unbound.retain(|unbound| *unbound != serial);
                }
            }
            self.notify_started(index, id);
            return;
        }
        if running.phase == Phase::SetUp {
            let Some(arbiter) = self.backends[index].arbiter.clone() else {
                return log(
                    LogLevel::Warning,
                    "the service starts a data source without having set up shared memory",
                );
            };
            let target = running.target();
            self.start_with(place, arbiter, target);
        }
    }

    fn notify_started(&self, index: usize, id: DataSourceInstanceId) {
        let link = &self.backends[index].link;
        link.with(|producer| producer.notify_data_source_started(id));
    }

    /// Starts an instance whose packets go through `arbiter`.
    fn start_with(&mut self, place: Place, arbiter: Arc<Arbiter>, target: BufferId) {
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        running.phase = Phase::Started;
        self.status_changed = true;
        let serial = running.instance.serial;
        let instance = running.instance.clone();
        let backend = running.backend;
        self.backends[backend].populate_memory();
        let source = &self.sources.all[place.source].entry.source;
        let output = Output {
            arbiter,
            target,
            policy: source.exhausted_policy(&instance.config),
        };
        source.start(&instance, output, self.acknowledge(Command::Started(serial)));
    }

    /// Has `command` done when it is dropped, on whatever thread.
    fn acknowledge(&self, command: Command) -> Acknowledge {
        let muxer = self.muxer;
        Acknowledge::new(move || muxer.post(command))
    }

    fn stop(&mut self, place: Place) {
        let Some(running) = self.sources.at_mut(place) else {
            return;
        };
        if running.phase == Phase::Stopping {
            return;
        }
        running.phase = Phase::Stopping;
        self.status_changed = true;
        let stopped = Command::Stopped(running.instance.serial);
        let source = &self.sources.all[place.source].entry.source;
        source.stop(place.slot, self.acknowledge(stopped));
    }

    fn flush(&mut self, index: usize, flush: &Flush) {
        let places: Vec<Place> = flush
            .instances
            .iter()
            .filter_map(|&id| self.place(index, id))
            .collect();
        let serial = |place: &Place| self.sources.at(*place).map(|running| running.instance.serial);
        let serials = places.iter().filter_map(serial).collect();
        self.backends[index].begin_flush(flush.id, serials);
        for place in places {
            if let Some(running) = self.sources.at(place) {
                let flushed = Command::Flushed(running.instance.serial, flush.id);
                let source = &self.sources.all[place.source].entry.source;
                source.flush(place.slot, flush.flags, self.acknowledge(flushed));
            }
        }
    }

    fn started(&mut self, serial: u32) {
        let Some(place) = self.sources.by_serial(serial) else {
            return;
        };
        let id = self.sources.at(place).and_then(|running| running.id);
        if let (Some(id), Some(backend)) = (id, self.connected_backend_of(serial)) {
            backend
                .link
                .with(|producer| producer.notify_data_source_started(id));
        }
    }

    fn stopped(&mut self, serial: u32) {
        let Some(place) = self.sources.by_serial(serial) else {
            return;
        };
        let notify = self.sources.all[place.source].descriptor.will_notify_on_stop;
        if let Some(backend) = self.connected_backend_of(serial) {
            backend.flushed(serial, None);
        }
        let id = self.sources.at(place).and_then(|running| running.id);
        if let (Some(id), Some(true), Some(backend)) = (id, notify, self.connected_backend_of(serial)) {
            // What it wrote last comes before.
            backend.link.pump_now();
            backend
                .link
                .with(|producer| producer.notify_data_source_stopped(id));
        }
        let Some(running) = self.sources.take(place) else {
            return;
        };
        if let Some(startup) = running.startup {
            startup.arbiter.discard();
            for session in &mut self.startup {
                if session.number == startup.session {
                    session.unbound.retain(|unbound| *unbound != serial);
                    session.aborting = true;
                }
            }
        }
    }

    /// The backend of an instance, if the connection that it belongs to exists still.
    fn connected_backend_of(&mut self, serial: u32) -> Option<&mut BackendState> {
        let running = self.sources.at(self.sources.by_serial(serial)?)?;
        let backend = &mut self.backends[running.backend];
        (backend.is_connected() && backend.generation == running.generation).then_some(backend)
    }

    // --- Data sources. ---

    /// Tells services of data sources that were registered, withdrawn or have changed.
    fn look_at_sources(&mut self) {
        self.status_changed = true;
        self.sources.discover();
        let later = monotonic_now() + UPDATE_DELAY.as_nanos() as u64;
        let mut withdrawn = Vec::new();
        for (index, state) in self.sources.all.iter_mut().enumerate() {
            let id = state.entry.id;
            if state.entry.take_changed() {
                state.update_at.get_or_insert(later);
            }
            for backend in &mut self.backends {
                if state.entry.is_offered() {
                    if backend.is_connected() && !backend.registered.contains(&id) {
                        backend.registered.push(id);
                        let descriptor = &state.descriptor;
                        backend
                            .link
                            .with(|producer| producer.register_data_source(descriptor));
                    }
                } else if let Some(at) = backend.registered.iter().position(|other| *other == id) {
                    backend.registered.swap_remove(at);
                    backend
                        .link
                        .with(|producer| producer.unregister_data_source(&state.name));
                }
            }
            if !state.entry.is_offered() {
                withdrawn.push(index);
            }
        }
        if !withdrawn.is_empty() {
            let running = self.sources.places(|_| true);
            for place in running {
                if withdrawn.contains(&place.source) {
                    self.stop(place);
                }
            }
        }
    }

    /// Tells services of changed descriptors for which it is time.
    fn update_sources(&mut self) {
        let now = monotonic_now();
        for state in &mut self.sources.all {
            if state.update_at.is_none_or(|at| at > now) {
                continue;
            }
            state.update_at = None;
            state.read_descriptor();
            for backend in &mut self.backends {
                if backend.registered.contains(&state.entry.id) {
                    let descriptor = &state.descriptor;
                    backend
                        .link
                        .with(|producer| producer.update_data_source(descriptor));
                }
            }
        }
    }

    // --- Sessions, and the loop. ---

    fn serve_clients(&mut self, ready: &[Event]) {
        let mut services = Services {
            backends: &mut self.backends,
        };
        self.clients.retain_mut(|client| {
            let ready = readiness(ready, &client.watch);
            let keep = client.served.turn(ready, &mut services) == Turn::Keep;
            if !keep {
                client.watch.end(&self.reactor, client.served.interest());
            }
            keep
        });
    }

    #[cfg(feature = "in-process")]
    fn serve_in_process(&mut self) {
        for service in self.backends.iter().filter_map(BackendState::in_process) {
            log_in_process(service.handle_timeout());
        }
    }

    /// The process ends. The service that is in it has all that there is to come, for nothing is in its way.
    #[cfg(feature = "in-process")]
    fn end_in_process(&self, done: &Sender<Drained>) {
        for service in self.backends.iter().filter_map(BackendState::in_process) {
            if service.has_files() {
                let _ = done.send(Drained::WritingFiles);
            }
            log_in_process(service.end(super::LAST_WRITE_PATIENCE));
        }
    }

    fn begin_to_drain(&mut self, done: Sender<Drained>) {
        // All sockets first, lest services wait for files of ours.
        for backend in &self.backends {
            backend.link.pump_now();
        }
        #[cfg(feature = "in-process")]
        self.end_in_process(&done);
        self.draining.push(done);
    }

    fn sync(&mut self, done: Box<dyn FnOnce() + Send>) {
        let mut waiting = Vec::new();
        for (index, backend) in self.backends.iter().enumerate() {
            backend.link.pump_now();
            if backend.arbiter.is_some()
                && let Some(call) = backend.link.with(ProducerLink::sync).flatten()
            {
                waiting.push((index, call));
            }
        }
        // Without a service there is none that will have seen it.
        if !waiting.is_empty() {
            self.syncs.push(Sync { waiting, done });
        }
    }

    fn synced(&mut self, index: usize, call: CallId) {
        for sync in &mut self.syncs {
            sync.waiting.retain(|waiting| *waiting != (index, call));
        }
        for sync in self.syncs.extract_if(.., |sync| sync.waiting.is_empty()) {
            super::guarded(sync.done);
        }
    }

    fn drain(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        for backend in &self.backends {
            backend.link.pump_now();
        }
        if self.backends.iter().all(|backend| backend.link.is_idle()) {
            for done in self.draining.drain(..) {
                let _ = done.send(Drained::All);
            }
        }
    }

    fn deadlines(&self) -> Deadlines {
        let mut deadlines = Deadlines::default();
        let mut add = |more: Deadlines| {
            deadlines.monotonic = deadlines.monotonic.into_iter().chain(more.monotonic).min();
            deadlines.boot = deadlines.boot.into_iter().chain(more.boot).min();
        };
        let monotonic = |at| Deadlines {
            monotonic: at,
            boot: None,
        };
        if self.muxer.has_commands() {
            // Of the thread to itself: nobody else will wake it for them.
            add(monotonic(Some(0)));
        }
        for backend in &self.backends {
            add(monotonic(backend.retry_at()));
            add(monotonic(backend.link.deadline()));
            #[cfg(feature = "in-process")]
            if let Some(service) = backend.in_process() {
                add(service.deadlines());
            }
        }
        for state in &self.sources.all {
            add(monotonic(state.update_at));
        }
        for session in self.startup.iter().filter(|session| !session.aborting) {
            add(monotonic(session.deadline));
        }
        for client in &self.clients {
            add(client.served.deadlines());
        }
        deadlines
    }

    fn update_watches(&mut self) {
        for backend in &mut self.backends {
            let BackendState { watch, link, .. } = backend;
            link.with(|producer| watch.update(&self.reactor, producer.interest()));
        }
        for client in &mut self.clients {
            client.watch.update(&self.reactor, client.served.interest());
        }
    }

    fn publish_status(&mut self) {
        if !std::mem::take(&mut self.status_changed) {
            return;
        }
        let instances = |holds: &dyn Fn(&Running) -> bool| {
            let running = self.sources.all.iter().flat_map(|state| state.running());
            running
                .filter(|running| running.phase == Phase::Started && holds(running))
                .count()
        };
        let backends = self
            .backends
            .iter()
            .enumerate()
            .map(|(index, backend)| BackendStatus {
                backend: backend.backend(),
                connection: backend.status(),
                instances: instances(&|running| running.backend == index),
            });
        let offered = self.sources.all.iter().filter(|state| state.entry.is_offered());
        let data_sources = offered.map(|state| DataSourceStatus {
            name: state.name.clone(),
            instances: state
                .running()
                .filter(|running| running.phase == Phase::Started)
                .count(),
        });
        *self.muxer.published() = Status {
            backends: backends.collect(),
            data_sources: data_sources.collect(),
            problem: None,
        };
    }
}

#[cfg(feature = "in-process")]
fn log_in_process(lines: Vec<(ferretto_service::LogLevel, String)>) {
    for (level, line) in lines {
        if level == ferretto_service::LogLevel::Warning {
            log(LogLevel::Warning, &format!("in-process service: {line}"));
        }
    }
}
