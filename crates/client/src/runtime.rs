//! The runtime of every producer besides its data sources: connections to services, and the instances that services ask for.
//!
//! A daemon or the SDK's thread owns one [`Runtime`], adds connections and data sources, and gives it a turn whenever a descriptor or a deadline is
//! due. The runtime connects (and reconnects), sets up shared memory, registers data sources, drives their instances as services command, and
//! acknowledges finished commands. It has no thread and no loop of its own, and blocks in one case only: a writer on the runtime's own thread that
//! may wait for a free chunk does so there. Meanwhile the runtime goes on sending the requests that let the service free one (see `link`).
//!
//! A turn goes like this:
//!
//! 1. [`Runtime::take_acknowledgements`]: work that data sources have finished on other threads;
//! 2. for each connection [`Runtime::connect_if_due`], and [`Runtime::serve`];
//! 3. [`Runtime::settle`]: deadlines, changed descriptors, and all pending requests;
//! 4. [`Runtime::next_event`] until there is none, then waiting until [`Runtime::deadlines`] or for [`Runtime::interest`].
//!
//! [`daemon::ServiceSocket`] does all of this for a daemon, whose one connection is a socket.

mod commands;
mod connection;
pub mod daemon;
mod inbox;
pub mod instance_threads;
mod instances;
mod link;
mod options;
pub mod probe;
mod registration;
mod startup;
mod status;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferretto_ipc::client::CallId;
use ferretto_ipc::reactor::{Deadlines, Interest, Waker, boot_now, monotonic_now};
use ferretto_proto::messages::PriorityBoostConfig;
use ferretto_wire::{DropOutOfLine, OutOfLine};

use crate::data_source::ConnectionId;
use crate::producer::{ProducerEndpoint, ProducerEvent, ProducerOptions};
pub use connection::{Connected, ConnectionOptions};
use connection::{Connection, OwnMemory};
use inbox::{Done, Inbox};
use instances::{SourceState, Sources};
pub use link::{Help, Producer};
pub use options::MemoryOptions;
use startup::StartupSession;
pub use startup::{StartupOutcome, StartupRequest};
pub use status::{ConnectionState, StartupState};

/// The program around the runtime. The runtime calls all of this on its own thread, except for [`ProducerProgram::is_own_thread`].
/// Data sources with threads of their own also log from these threads, and call [`ProducerProgram::join_instance`].
pub trait ProducerProgram: Send + Sync {
    /// Logs a success.
    fn info(&self, line: &str);

    /// Logs that a trace will lack something.
    fn warning(&self, line: &str);

    /// Whether the calling thread is the one that gives the runtime its turns. On any other thread that writes packets this must be false, so that
    /// the runtime is woken to send them.
    fn is_own_thread(&self) -> bool;

    /// Called when a writer on the runtime's thread waits for room. Call `send`, which makes some. While it runs, nothing on this thread may write
    /// packets.
    fn send_for_writer(&self, send: &mut dyn FnMut()) {
        send();
    }

    /// Whether the program is about to end, so that no writer should wait for a service any more.
    fn is_ending(&self) -> bool {
        false
    }

    /// Raises the program's priority at least to that of the config, until it is lowered for the same instance, which is named by its serial number.
    ///
    /// # Errors
    /// The reason why not; then nothing has changed.
    fn raise_priority(&self, _instance: u32, _config: &PriorityBoostConfig) -> Result<(), String> {
        Ok(())
    }

    /// Runs the calling thread, which is new and works for this instance alone, at the priority that was raised for the instance. Without one it
    /// runs at the usual priority.
    fn join_instance(&self, _instance: u32) {}

    /// Lowers the priority again after the instance has ended. Has no effect if the priority was never raised for it.
    fn lower_priority(&self, _instance: u32) {}
}

/// An event for the program, about connections and startup sessions.
#[derive(Debug)]
pub enum Event {
    /// The service has answered, and gets all data sources registered now.
    Connected(ConnectionId),
    /// There is no connection so far, for this reason, which has changed since the last time. The runtime tries again and again.
    CannotConnect(ConnectionId, String),
    /// The connection is over. All recordings for it have ended. The runtime tries to connect again.
    Disconnected {
        /// Its id.
        connection: ConnectionId,
        /// The reason, if it has changed since the last time.
        news: Option<String>,
        /// The lost connection. A program that watches its descriptor stops watching before it drops this: another process may have a copy, and the
        /// next connection may have the same number.
        closed: Option<Closed>,
    },
    /// The service has processed all requests before a [`Runtime::sync`].
    Synced(ConnectionId, CallId),
    /// The startup session of this number is over.
    StartupEnded(u64, StartupOutcome),
}

/// The producer's end of a connection that is over.
pub struct Closed(Producer);

impl AsFd for Closed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl fmt::Debug for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed")
    }
}

/// A data source that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceId(usize);

/// See the [module](self).
pub struct Runtime {
    program: Arc<dyn ProducerProgram>,
    waker: Waker,
    inbox: Arc<Inbox>,
    connections: Vec<Connection>,
    sources: Sources,
    startup: Vec<StartupSession>,
    events: VecDeque<Event>,
    /// Whether something has changed since [`Runtime::take_changed`] was last called.
    changed: bool,
    /// Whether a service does not know of some data source yet.
    has_unregistered: bool,
}

impl DropOutOfLine for Runtime {
    #[inline(never)]
    fn drop_out_of_line(self: Box<Self>) {}
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Makes a runtime without connections and data sources. `waker` ends the wait of the loop that gives it turns.
    pub fn new(program: Arc<dyn ProducerProgram>, waker: Waker) -> OutOfLine<Self> {
        OutOfLine::new(Self {
            inbox: Inbox::new(program.clone(), waker.clone()),
            program,
            waker,
            connections: Vec::new(),
            sources: Sources::default(),
            startup: Vec::new(),
            events: VecDeque::new(),
            changed: false,
            has_unregistered: false,
        })
    }

    /// Adds a connection, which is due at once.
    pub fn add_connection(&mut self, options: ConnectionOptions) {
        self.changed = true;
        let connection = Connection::new(options, self.program.clone(), self.waker.clone());
        self.connections.push(connection);
    }

    /// Takes the acknowledgements that data sources have made since the last call, on any thread.
    pub fn take_acknowledgements(&mut self) {
        for done in self.inbox.take() {
            match done {
                Done::Started(serial) => self.started(serial),
                Done::Stopped(serial) => self.stopped(serial),
                Done::Flushed(serial, flush) => {
                    if let Some(connection) = self.live_connection_of(serial) {
                        connection.flushed(serial, Some(flush));
                    }
                }
            }
        }
    }

    /// Takes the next event for the program.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [states](Runtime::state) or counts of instances have changed since the last call, for programs that publish them.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// When the next turn is due if no descriptor becomes ready before.
    pub fn deadlines(&self) -> Deadlines {
        let of_connections = self
            .connections
            .iter()
            .enumerate()
            .flat_map(|(index, connection)| {
                let answer_due = match self.has_startup(index) {
                    true => None,
                    false => connection.answer_due(),
                };
                [connection.retry_at(), answer_due, connection.link.deadline()]
            });
        let of_updates = self.sources.all.iter().map(|state| state.update_at);
        let of_startup = self.startup.iter().filter(|session| !session.aborting);
        let monotonic = of_connections
            .chain(of_updates)
            .chain(of_startup.map(|session| session.deadline))
            // Acknowledgements that this thread has left for itself: no other thread wakes it for them.
            .chain([(!self.inbox.is_empty()).then_some(0)]);
        let of_sources = self.sources.all.iter().map(|state| state.source.next_deadline());
        Deadlines {
            monotonic: monotonic.flatten().min(),
            boot: of_sources.flatten().min(),
        }
    }

    /// Does pending work: has data sources keep their deadlines, tells services of changed descriptors, acknowledges flushes, and sends pending
    /// requests.
    pub fn settle(&mut self) {
        self.keep_deadlines();
        // Acknowledgements of data sources that have carried out a command at once.
        self.take_acknowledgements();
        self.update_sources();
        self.end_startup_sessions();
        for connection in &mut self.connections {
            connection.acknowledge_flushes();
            connection.link.pump();
        }
    }

    fn keep_deadlines(&self) {
        let is_due = |state: &SourceState| {
            let deadline = state.source.next_deadline();
            deadline.is_some_and(|deadline| deadline <= boot_now())
        };
        for state in &self.sources.all {
            if is_due(state) {
                state.source.on_deadline();
            }
        }
    }

    // --- Connections. ---

    fn index(&self, id: ConnectionId) -> Option<usize> {
        self.connections
            .iter()
            .position(|connection| connection.id() == id)
    }

    fn link(&self, id: ConnectionId) -> Option<&link::Link> {
        Some(&self.connections[self.index(id)?].link)
    }

    /// While there is a connection, calls `watch` with its descriptor and the readiness to watch for. `watch` must not call the runtime.
    pub fn interest(&self, id: ConnectionId, watch: impl FnOnce(BorrowedFd<'_>, Interest)) {
        if let Some(link) = self.link(id) {
            link.with(|producer| watch(producer.as_fd(), producer.interest()));
        }
    }

    /// Connects, by calling `connect`, if it is time to.
    pub fn connect_if_due(
        &mut self,
        id: ConnectionId,
        connect: impl FnOnce(ProducerOptions) -> Result<Connected, String>,
    ) {
        let Some(index) = self.index(id) else { return };
        let due = self.connections[index].retry_at();
        if due.is_none_or(|at| at > monotonic_now()) {
            return;
        }
        self.changed = true;
        if let Some(news) = self.connections[index].connect(connect) {
            self.events.push_back(Event::CannotConnect(id, news));
        }
    }

    /// Makes the next attempt to connect due at once.
    pub fn retry_soon(&mut self, id: ConnectionId) {
        if let Some(index) = self.index(id) {
            self.connections[index].retry_soon();
        }
    }

    /// Reads the service's messages. To be called when the descriptor is readable.
    pub fn on_readable(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.with(ProducerEndpoint::on_readable);
        }
    }

    /// Carries out the service's commands received so far; returns how many there were.
    pub fn serve(&mut self, id: ConnectionId) -> usize {
        let Some(index) = self.index(id) else { return 0 };
        self.end_silence(index, monotonic_now());
        let mut count = 0;
        while let Some(event) = self.connections[index]
            .link
            .with(ProducerEndpoint::next_event)
            .flatten()
        {
            count += 1;
            if let Err(reason) = self.heed(index, event) {
                self.disconnected(index, reason);
                break;
            }
        }
        count
    }

    /// Gives up a service that has not answered by now, unless what is recorded for startup waits for it: that has a deadline of its own, or none, and
    /// would be lost with the connection.
    fn end_silence(&self, index: usize, now: u64) {
        if !self.has_startup(index) {
            self.connections[index].end_silence(now);
        }
    }

    /// Sends due requests now, without waiting for [`Runtime::settle`].
    pub fn pump(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.pump();
        }
    }

    /// Sends all requests, without waiting for the end of a batch.
    pub fn pump_now(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.pump_now();
        }
    }

    /// Whether everything was sent.
    pub fn is_idle(&self, id: ConnectionId) -> bool {
        self.link(id).is_none_or(link::Link::is_idle)
    }

    /// Asks the service, if there is one, to report when it has processed all requests so far: [`Event::Synced`] has the returned id.
    pub fn sync(&self, id: ConnectionId) -> Option<CallId> {
        self.link(id)?.with(ProducerEndpoint::sync)?.ok()
    }

    /// Whether the service has set up tracing, so that chunks may have been committed to it.
    pub fn has_memory(&self, id: ConnectionId) -> bool {
        self.index(id)
            .is_some_and(|index| self.connections[index].arbiter.is_some())
    }

    /// Activates triggers on all connections. Connections without a service keep them until `expiry`, in nanoseconds of boot time.
    pub fn activate_triggers(&mut self, names: &[String], expiry: u64) {
        for connection in &mut self.connections {
            connection.activate_triggers(names, expiry);
        }
    }

    fn heed(&mut self, index: usize, event: ProducerEvent) -> Result<(), String> {
        match event {
            ProducerEvent::Connected(features) => {
                if self.connections[index].accepted(features) == OwnMemory::Refused
                    && self.startup.iter().any(|session| session.connection == index)
                {
                    return Err(
                        "the service would not use this process's memory, which startup tracing needs; \
                         connecting again without"
                            .to_owned(),
                    );
                }
                self.connected(index);
            }
            ProducerEvent::Command(command) => self.obey(index, command)?,
            ProducerEvent::RequestFailed { method, reason } => {
                let name = &self.connections[index].options.name;
                let line = format!("{name}: {}: {reason}", method.name());
                self.program.warning(&line);
            }
            ProducerEvent::Synced(call) => {
                let id = self.connections[index].id();
                self.events.push_back(Event::Synced(id, call));
            }
            ProducerEvent::Committed(_) => {}
            ProducerEvent::Disconnected(reason) => return Err(reason.to_string()),
        }
        Ok(())
    }

    fn connected(&mut self, index: usize) {
        self.changed = true;
        let id = self.connections[index].id();
        self.events.push_back(Event::Connected(id));
        self.register_sources();
        self.connections[index].activate_waiting_triggers();
    }

    fn disconnected(&mut self, index: usize, reason: String) {
        let (news, closed) = self.give_up(index, reason);
        self.tell_disconnected(index, news, closed);
    }

    /// Ends the connection, and the recordings for it.
    fn give_up(&mut self, index: usize, reason: String) -> (Option<String>, Option<Closed>) {
        self.changed = true;
        let generation = self.connections[index].generation;
        // First ends all writing there.
        let (news, closed) = self.connections[index].lost(reason);
        for place in self
            .sources
            .places(|running| running.connection == index && running.generation == generation)
        {
            self.stop(place);
        }
        for session in &mut self.startup {
            if session.connection == index {
                session.aborting = true;
            }
        }
        (news, closed.map(Closed))
    }

    fn tell_disconnected(&mut self, index: usize, news: Option<String>, closed: Option<Closed>) {
        self.events.push_back(Event::Disconnected {
            connection: self.connections[index].id(),
            news,
            closed,
        });
    }
}
