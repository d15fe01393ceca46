//! What every producer needs besides its data sources: connections to services, and the instances that these ask for.
//!
//! A daemon or the SDK's thread owns one [`Runtime`], adds connections and data sources, and gives it a turn whenever a descriptor or a
//! deadline is due. The runtime connects, again and again if need be, sets up shared memory, registers data sources, drives their
//! instances as services say, and acknowledges what they have done. It has no thread and no loop of its own, and blocks in one case
//! only: a writer on the runtime's own thread that may wait for a free chunk does so there. Meanwhile the runtime goes on sending what the service
//! needs to free one (see `link`).
//!
//! A turn goes like this:
//!
//! 1. [`Runtime::take_acknowledgements`]: what data sources have done on other threads;
//! 2. for each connection [`Runtime::connect_if_due`], and [`Runtime::serve`];
//! 3. [`Runtime::settle`]: deadlines, changed descriptors, and all that is to be sent;
//! 4. [`Runtime::next_event`] until there is none, then waiting until [`Runtime::deadlines`] or for [`Runtime::interest`].
//!
//! [`daemon::ServiceSocket`] does all of this for a daemon, whose one connection is a socket.

mod commands;
mod connection;
pub mod daemon;
mod inbox;
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

/// What the runtime needs from the program around it. It calls all of this on its own thread, but for [`ProducerProgram::is_own_thread`].
/// Data sources with threads of their own also log from there, and call [`ProducerProgram::join_instance`].
pub trait ProducerProgram: Send + Sync {
    /// Logs something that is in order, and good to know.
    fn info(&self, line: &str);

    /// Logs that somebody will miss something in a trace.
    fn warning(&self, line: &str);

    /// Whether the calling thread is the one that gives the runtime its turns. On any other thread that writes packets this must be false: then
    /// the runtime is woken to send them.
    fn is_own_thread(&self) -> bool;

    /// A writer on the runtime's thread waits for room, and `send` makes some: call it. While it runs, nothing on this thread may write
    /// packets.
    fn send_for_writer(&self, send: &mut dyn FnMut()) {
        send();
    }

    /// Whether the program is about to end, so that no writer should wait for a service any more.
    fn is_ending(&self) -> bool {
        false
    }

    /// Runs the program at that priority at least, until it is lowered for the same instance, which is named by its serial number.
    ///
    /// # Errors
    /// Why that cannot be; then nothing has changed.
    fn raise_priority(&self, _instance: u32, _config: &PriorityBoostConfig) -> Result<(), String> {
        Ok(())
    }

    /// The calling thread is new, and works for this instance alone: runs it at the priority that was raised for the instance, or else
    /// at the usual one, whatever it has inherited.
    fn join_instance(&self, _instance: u32) {}

    /// The instance has ended. Nothing happens if the priority was never raised for it.
    fn lower_priority(&self, _instance: u32) {}
}

/// What has become of connections, for the program.
#[derive(Debug)]
pub enum Event {
    /// The service has answered, and is being told of all data sources.
    Connected(ConnectionId),
    /// There cannot be a connection so far, for this reason, which is another than the last time. It is tried again and again.
    CannotConnect(ConnectionId, String),
    /// The connection is over. All that was recorded for it has ended. It is tried again.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Why, if that is another reason than the last time.
        news: Option<String>,
        /// What the connection was. A program that watches its descriptor ends that before it drops this: another process may have a copy, and
        /// the next connection may have the same number.
        closed: Option<Closed>,
    },
    /// The service has seen all that was requested before a [`Runtime::sync`].
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
    /// Something has changed that [`Runtime::take_changed`] tells of.
    changed: bool,
    /// Some service does not know of a data source yet.
    has_unregistered: bool,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// One without connections and data sources. `waker` ends the wait of the loop that gives it turns.
    pub fn new(program: Arc<dyn ProducerProgram>, waker: Waker) -> Self {
        Self {
            inbox: Inbox::new(program.clone(), waker.clone()),
            program,
            waker,
            connections: Vec::new(),
            sources: Sources::default(),
            startup: Vec::new(),
            events: VecDeque::new(),
            changed: false,
            has_unregistered: false,
        }
    }

    /// Adds a connection, which is due at once.
    pub fn add_connection(&mut self, options: ConnectionOptions) {
        self.changed = true;
        let connection = Connection::new(options, self.program.clone(), self.waker.clone());
        self.connections.push(connection);
    }

    /// Takes what data sources have done since, on whatever thread.
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

    /// The next thing that the program may want to know.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [states](Runtime::state) or counts of instances have changed since this was asked last, for programs that publish them.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// When the next turn is due if no descriptor becomes ready before.
    pub fn deadlines(&self) -> Deadlines {
        let of_connections = self
            .connections
            .iter()
            .flat_map(|connection| [connection.retry_at(), connection.link.deadline()]);
        let of_updates = self.sources.all.iter().map(|state| state.update_at);
        let of_startup = self.startup.iter().filter(|session| !session.aborting);
        let monotonic = of_connections
            .chain(of_updates)
            .chain(of_startup.map(|session| session.deadline))
            // What the thread has left for itself: nobody else wakes it for that.
            .chain([(!self.inbox.is_empty()).then_some(0)]);
        let of_sources = self.sources.all.iter().map(|state| state.source.next_deadline());
        Deadlines {
            monotonic: monotonic.flatten().min(),
            boot: of_sources.flatten().min(),
        }
    }

    /// Does what is due: has data sources do their work, tells services of changed descriptors, acknowledges flushes, and sends what there is to
    /// send.
    pub fn settle(&mut self) {
        self.keep_deadlines();
        // Of those data sources that have done at once what they were asked for.
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

    /// Gives the descriptor to watch, as long as there is a connection, and for what, to `watch`. That must not call the runtime.
    pub fn interest(&self, id: ConnectionId, watch: impl FnOnce(BorrowedFd<'_>, Interest)) {
        if let Some(link) = self.link(id) {
            link.with(|producer| watch(producer.as_fd(), producer.interest()));
        }
    }

    /// Connects if it is time to; `connect` does it.
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

    /// Does not wait any longer for the next attempt to connect.
    pub fn retry_soon(&mut self, id: ConnectionId) {
        if let Some(index) = self.index(id) {
            self.connections[index].retry_soon();
        }
    }

    /// Takes what the service has sent; to be called when the descriptor is readable.
    pub fn on_readable(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.with(ProducerEndpoint::on_readable);
        }
    }

    /// Does what the service has said so far; returns how much that was.
    pub fn serve(&mut self, id: ConnectionId) -> usize {
        let Some(index) = self.index(id) else { return 0 };
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

    /// Sends what is due now, and not only in [`Runtime::settle`].
    pub fn pump(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.pump();
        }
    }

    /// Sends all that there is, without waiting for the end of a batch.
    pub fn pump_now(&self, id: ConnectionId) {
        if let Some(link) = self.link(id) {
            link.pump_now();
        }
    }

    /// Whether everything was sent.
    pub fn is_idle(&self, id: ConnectionId) -> bool {
        self.link(id).is_none_or(link::Link::is_idle)
    }

    /// Has the service say when it has seen all that was requested so far, if there is one: [`Event::Synced`] brings the id.
    pub fn sync(&self, id: ConnectionId) -> Option<CallId> {
        self.link(id)?.with(ProducerEndpoint::sync)?.ok()
    }

    /// Whether the service has set up tracing, so that chunks can have been committed to it.
    pub fn has_memory(&self, id: ConnectionId) -> bool {
        self.index(id)
            .is_some_and(|index| self.connections[index].arbiter.is_some())
    }

    /// Activates triggers on all connections. Those that have no service keep them until `expiry`, in nanoseconds of boot time.
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

    /// Ends the connection, and what was recorded for it.
    fn give_up(&mut self, index: usize, reason: String) -> (Option<String>, Option<Closed>) {
        self.changed = true;
        let generation = self.connections[index].generation;
        // First nothing is written there any more.
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
