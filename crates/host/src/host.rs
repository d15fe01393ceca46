//! The host: sockets, files and clocks around one [`Service`]. Programs call it in their loops.
//!
//! A turn reads from each connection that has sent something, within that connection's budget. Then it carries out the service's outputs, and
//! moves trace data to consumers and files as far as they take it. Nothing here waits for a peer. When time is short, connections take turns
//! ([`crate::turns`]).

mod settling;
mod writing;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::host::{HostConnection, HostLimits, PeerIdentitySource, Reply, ReplyTo};
use ferretto_ipc::ports::{
    CONSUMER_PORT, ConsumerMethod, PRODUCER_PORT, ProducerMethod, RELAY_PORT, RelayMethod, ServiceDescriptor,
};
use ferretto_ipc::reactor::{Deadline, Deadlines, Events, Interest, Reactor, ReactorError, Token};
use ferretto_ipc::time::{self, Clock};
use ferretto_ipc::transport::{PeerCredentials, Stream};
use ferretto_service::ordered::{OrderedMap, OrderedSet};
use ferretto_service::{
    ConsumerId, Identity, LogLevel, MachineId, MemorySharing, Output, ProducerCommand, ProducerId, Service,
    SessionId, SmbOrigin,
};
use ferretto_wire::bulk::PageAligned;
use ferretto_wire::{DropOutOfLine, OutOfLine};

use crate::admission::Admission;
use crate::bounds::split_events;
use crate::clocks::TurnTime;
use crate::connection::{Connection, PacketFlow, Role};
use crate::consumer_port::{ConsumerLink, Effect};
use crate::files::{FileWriter, Files};
use crate::producer_port::{ProducerLink, create_shared_memory, encode_command};
use crate::program::Program;
use crate::relay_port::{Caller, RelayLink};
use crate::trace_file::TraceFile;
use crate::turns::{self, Candidate, Turns};

/// The bytes of a batch of trace data for a file.
const FILE_BATCH: usize = 256 * 1024;
/// How long a connection's requests are handled, give or take a tick of the kernel's, before others have their turn; the current request is still
/// finished. Most clients never get there. Configs with hundreds of expressions to compile do, and registrations that a session wants a thousand
/// times.
const TIME_PER_TURN: Duration = Duration::from_millis(2);

/// The kinds of clients that may use a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A producer.
    Producer,
    /// A producer, or the relay of another machine.
    ProducerOrRelay,
    /// A consumer.
    Consumer,
}

/// The clients or files that an ending service waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// None: nothing is left that a client could read.
    Nobody,
    /// Consumers, to read the recordings.
    Readers,
    /// Producers or files.
    Others,
}

static PRODUCER_SERVICES: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];
static PRODUCER_AND_RELAY_SERVICES: [&ServiceDescriptor; 2] = [&PRODUCER_PORT, &RELAY_PORT];
static CONSUMER_SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];

/// A service and everything around it, see the [crate].
pub struct Host {
    program: Arc<dyn Program>,
    service: OutOfLine<Service>,
    machine: MachineId,
    reactor: Reactor,
    admission: Admission,
    connections: HashMap<Token, Connection>,
    producers: HashMap<ProducerId, Token>,
    consumers: HashMap<ConsumerId, Token>,
    files: Files,
    writers: OrderedMap<SessionId, FileWriter>,
    /// Files that came with requests for clones which are not made yet.
    files_of_clones: OrderedMap<SessionId, TraceFile>,
    /// Whether much memory was freed since the last call of `has_freed`.
    freed: bool,
    /// Connections with work that does not need the socket to become ready.
    busy: OrderedSet<Token>,
    /// Connections that are served in this turn; kept for its allocation.
    due: Vec<Token>,
    /// Connections with something to send or a changed interest.
    touched: OrderedSet<Token>,
    /// Connections that are to be closed.
    ending: OrderedSet<Token>,
    turns: Turns,
    last_token: u64,
    receive_buffer: PageAligned,
}

impl DropOutOfLine for Host {
    #[inline(never)]
    fn drop_out_of_line(self: Box<Self>) {}
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Makes a service without connections. `admission` bounds their number. The program says how far local time is ahead.
    ///
    /// # Errors
    /// If the kernel has no descriptors for its event loop.
    pub fn new(
        mut identity: Identity,
        admission: Admission,
        program: Arc<dyn Program>,
    ) -> Result<OutOfLine<Host>, ReactorError> {
        let reactor = Reactor::new()?;
        let machine = identity.machine;
        identity.system.timezone_offset_minutes = program.local_time_offset();
        let mut service = Service::out_of_line(identity);
        service.set_processor_clock(|| time::now(Clock::Thread));
        Ok(OutOfLine::new(Host {
            files: Files::new(reactor.waker()),
            program,
            service,
            machine,
            reactor,
            admission,
            connections: HashMap::new(),
            producers: HashMap::new(),
            consumers: HashMap::new(),
            writers: OrderedMap::new(),
            files_of_clones: OrderedMap::new(),
            freed: false,
            busy: OrderedSet::new(),
            due: Vec::new(),
            touched: OrderedSet::new(),
            ending: OrderedSet::new(),
            turns: Turns::default(),
            last_token: 0,
            receive_buffer: PageAligned::new(MAX_FRAME),
        }))
    }

    /// The host's event loop. The program can wait for its own descriptors in it, under tokens of [`next_token`](Self::next_token).
    pub fn reactor(&mut self) -> &mut Reactor {
        &mut self.reactor
    }

    /// Returns an unused token.
    pub fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    /// Sleeps until there is work for the host, or one of the `further` deadlines passes.
    ///
    /// # Errors
    /// If the event loop fails.
    pub fn wait(&mut self, events: &mut Events, further: Deadlines) -> Result<(), ReactorError> {
        let own = self.deadlines();
        self.reactor.wait(
            events,
            Deadlines {
                monotonic: own.monotonic.into_iter().chain(further.monotonic).min(),
                boot: own.boot.into_iter().chain(further.boot).min(),
            },
        )
    }

    /// When the host has work that no descriptor announces.
    pub fn deadlines(&self) -> Deadlines {
        if !(self.busy.is_empty() && self.touched.is_empty() && self.ending.is_empty()) {
            return Deadline::Monotonic(0).into();
        }
        Deadlines {
            monotonic: self.service.next_deadline(),
            boot: self.service.next_boot_deadline(),
        }
    }

    /// Whether as many clients are connected as may be; others have to wait.
    pub fn is_full(&self) -> bool {
        self.admission.is_full()
    }

    /// Whether much memory was freed since the last call.
    pub fn has_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Whether this is the connection of a consumer.
    pub fn is_consumer(&self, token: Token) -> bool {
        let connection = self.connections.get(&token);
        connection.is_some_and(|connection| matches!(connection.role, Role::Consumer(_)))
    }

    /// Lets trace data go to a consumer that reads, or holds it back. Data under way arrives all the same: a megabyte and the contents of its socket.
    pub fn set_packet_flow(&mut self, token: Token, flow: PacketFlow) {
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.packet_flow = flow;
            if flow == PacketFlow::Open {
                self.busy.insert(token);
            }
        }
    }

    /// Whether sessions stream into files.
    pub fn has_files(&self) -> bool {
        !self.writers.is_empty()
    }

    /// Begins to stop all sessions. Returns whether there are any.
    pub fn begin_ending(&mut self) -> bool {
        let turn = self.turn_time();
        self.service.begin_ending(turn.now());
        self.carry_out(&turn);
        self.service.has_sessions()
    }

    /// Returns who the end waits for, once no new client is let in.
    pub fn awaited(&self) -> Awaited {
        let only_readers = !self.service.has_running_sessions() && self.writers.is_empty();
        // A consumer that has detached cannot come back.
        if !self.service.has_sessions() || only_readers && self.consumers.is_empty() {
            Awaited::Nobody
        } else if only_readers {
            Awaited::Readers
        } else {
            Awaited::Others
        }
    }

    /// Ends all sessions. Files still get the rest of their data, as long as they take some within `patience`, which is called before each wait.
    pub fn end(&mut self, mut patience: impl FnMut() -> Duration) {
        let turn = self.turn_time();
        self.service.end_all_sessions(turn.now());
        self.carry_out(&turn);
        while !self.writers.is_empty() {
            let Ok(done) = self.files.wait(patience()) else {
                let count = self.writers.len();
                self.program.warning(format_args!(
                    "{count} trace files take no more data and are cut short"
                ));
                break;
            };
            let turn = self.turn_time();
            self.file_progressed(done, &turn);
        }
        self.settle(&turn);
        while !self.ending.is_empty() {
            self.settle(&turn);
        }
    }

    fn turn_time(&self) -> TurnTime {
        TurnTime::new(&self.program)
    }

    /// Handles the `events` of a wait.
    pub fn turn(&mut self, events: &Events) {
        let turn = self.turn_time();
        if events.deadline_passed() {
            self.service.handle_timeout(turn.now());
            self.carry_out(&turn);
        }

        let busy = std::mem::take(&mut self.busy);
        let mut due = std::mem::take(&mut self.due);
        due.extend(&busy);
        for event in events.ready() {
            let Some(connection) = self.connections.get_mut(&event.token) else {
                continue;
            };
            // A client that is not served in this round may have filled its input buffer.
            self.touched.insert(event.token);
            if !event.readable {
                continue;
            }
            connection.receive(&mut self.receive_buffer);
            if !busy.contains(&event.token) {
                due.push(event.token);
            }
        }
        // In the order in which they connected. The kernel's order is unpredictable.
        due.sort_unstable();
        self.serve_all(&mut due, &turn);
        self.due = due;
        self.files_progressed(&turn);
        self.settle(&turn);
    }

    /// Serves these connections until the round is over. The rest is served in later rounds, in turn.
    fn serve_all(&mut self, due: &mut Vec<Token>, turn: &TurnTime) {
        let round = self.turns.begin_round();
        self.turns.put_in_turn(due, candidates(&self.connections));
        let until = turns::end_of_round();
        let mut due = due.drain(..);
        for token in due.by_ref() {
            self.serve(token, round, turn);
            self.carry_out(turn);
            if time::now(Clock::MonotonicCoarse) >= until {
                break;
            }
        }
        if due.len() > 0 {
            self.turns.note_crowded();
            self.busy.extend(due);
        }
    }

    /// Takes a new client; returns its token. Returns `None` if it hangs up, because the client's user has as many connections as one may have, or
    /// the kernel does not identify the client, or cannot watch it. The log has the reason.
    pub fn connect(&mut self, stream: Stream, port: Port) -> Option<Token> {
        // Only the kernel's word counts here. A peer that the kernel does not identify gets no user's id.
        let peer = match stream.peer_credentials() {
            Ok(peer) => peer.unwrap_or(PeerCredentials {
                uid: u32::MAX,
                pid: None,
            }),
            Err(error) => {
                self.program.warning(format_args!("{error}"));
                stream.hang_up();
                return None;
            }
        };
        if let Err(turned_away) = self.admission.enter(peer.uid) {
            if let Some(line) = turned_away.line {
                self.program.warning(format_args!("{line}"));
            }
            stream.hang_up();
            return None;
        }
        let token = self.next_token();
        if let Err(error) = self.reactor.register(&stream, token, Interest::Readable) {
            self.admission.leave(peer.uid);
            self.program.warning(format_args!("{error}"));
            stream.hang_up();
            return None;
        }
        let (services, role): (&'static [_], _) = match port {
            Port::Producer | Port::ProducerOrRelay => {
                let sharing = if stream.passes_fds() {
                    MemorySharing::Possible
                } else {
                    MemorySharing::Impossible
                };
                let services: &[_] = match port {
                    Port::ProducerOrRelay => &PRODUCER_AND_RELAY_SERVICES,
                    _ => &PRODUCER_SERVICES,
                };
                let role = Role::Producer(ProducerLink::new(sharing), RelayLink::default());
                (services, role)
            }
            Port::Consumer => {
                let id = self.service.connect_consumer(peer.uid);
                self.consumers.insert(id, token);
                (&CONSUMER_SERVICES, Role::Consumer(ConsumerLink::new(id)))
            }
        };
        // A relay declares the identities of its clients. None of them is a consumer: sessions belong to users of this machine.
        let identities = if stream.passes_fds() || port == Port::Consumer {
            PeerIdentitySource::Kernel
        } else {
            PeerIdentitySource::Declared
        };
        let host = HostConnection::new(services, identities, HostLimits::default());
        self.connections.insert(
            token,
            Connection::new(stream, host, peer, role, Arc::clone(&self.program)),
        );
        Some(token)
    }

    /// Handles the waiting requests of one connection, within its budget, and sends it trace data if it reads.
    fn serve(&mut self, token: Token, round: u64, turn: &TurnTime) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        self.touched.insert(token);
        if connection.closing.is_some() {
            return;
        }
        connection.served = round;
        connection.release_replies();
        connection.host.begin_turn();
        let consumes = matches!(connection.role, Role::Consumer(_));
        if consumes {
            self.send_state(token);
        }
        // The precise clock would cost as much as the rest of a small commit.
        let until = time::now(Clock::MonotonicCoarse) + TIME_PER_TURN.as_nanos() as u64;
        // The consequences of a request are sent before the next request is answered: `Sync` relies on it.
        while self.serve_request(token, turn) {
            self.carry_out(turn);
            if time::now(Clock::MonotonicCoarse) >= until
                && let Some(connection) = self.connections.get_mut(&token)
            {
                connection.host.end_turn();
            }
        }
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.end_turn() {
            self.busy.insert(token);
        }
        if consumes {
            self.send_packets(token, turn);
        }
    }

    /// Handles the next request of a connection; returns whether there was one and more may follow.
    fn serve_request(&mut self, token: Token, turn: &TurnTime) -> bool {
        let Some(connection) = self.connections.get_mut(&token) else {
            return false;
        };
        let request = match connection.host.next_request() {
            Ok(Some(request)) if connection.closing.is_none() => request,
            Ok(_) => return false,
            Err(violation) => {
                connection.closing.get_or_insert_with(|| violation.to_string());
                return false;
            }
        };
        let to = request.reply_to;
        let is_relays = std::ptr::eq(request.service, &RELAY_PORT);
        let (service, replies) = (&mut *self.service, &mut connection.replies);
        let caller = Caller {
            stream: &connection.stream,
            credentials: connection.peer,
            identity: request.identity,
            host: self.machine,
        };
        let effect = match &mut connection.role {
            Role::Producer(_, link) if is_relays => {
                RelayMethod::from_name(request.method).map_or(Ok(Effect::None), |method| {
                    link.call(service, &caller, method, &request, replies, turn)?;
                    Ok(Effect::None)
                })
            }
            Role::Producer(link, _) => {
                ProducerMethod::from_name(request.method).map_or(Ok(Effect::None), |method| {
                    link.call(service, &caller, method, request, replies, turn)?;
                    if method == ProducerMethod::InitializeConnection {
                        self.producers.extend(link.id.map(|id| (id, token)));
                    }
                    Ok(Effect::None)
                })
            }
            Role::Consumer(link) => ConsumerMethod::from_name(request.method)
                .map_or(Ok(Effect::None), |method| {
                    link.call(service, method, request, replies, turn)
                }),
        };
        connection.release_replies();
        if is_relays {
            // At once, because a relay measures how long the answer takes. The end of the turn sends the rest, as for all clients.
            connection.send();
        }
        match effect {
            Ok(Effect::None) => {}
            Ok(Effect::Reads) => {
                self.send_state(token);
                self.send_packets(token, turn);
            }
            Ok(Effect::Frees) => self.freed = true,
            Ok(Effect::Streams(session, file)) => self.open_file(session, file),
            Ok(Effect::Clones(clone, file)) => drop(self.files_of_clones.insert(clone, file)),
            Err(why) => connection.reject(to, &why),
        }
        true
    }

    /// Sends a consumer the state that it asked for, as far as there is room: the consumer has to read before it can get more.
    fn send_state(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        while connection.has_room_for_a_frame()
            && let Role::Consumer(link) = &mut connection.role
            && link.asks_for_state()
        {
            link.send_state(&self.service, &mut connection.replies);
            connection.release_replies();
        }
    }

    /// Moves trace data towards a consumer that reads, if it has room for it.
    fn send_packets(&mut self, token: Token, turn: &TurnTime) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.packet_flow == PacketFlow::Open
            && connection.has_room()
            && let Role::Consumer(link) = &mut connection.role
        {
            connection.takes_packets |= link.reads(PacketFlow::Open);
            link.send_packets(&mut self.service, &mut connection.replies, turn);
            connection.release_replies();
        }
    }

    /// Carries out the service's outputs.
    fn carry_out(&mut self, turn: &TurnTime) {
        while let Some(output) = self.service.poll() {
            match output {
                Output::ToProducer(id, command) => self.command(id, &command),
                Output::DisconnectProducer { producer, rule } => self.close_producer(producer, rule),
                Output::TracingDisabled {
                    consumer,
                    session,
                    error,
                } => {
                    self.reply_to_consumer(consumer, |link| link.tracing_disabled(session, error));
                }
                Output::FlushDone {
                    consumer,
                    token,
                    outcome,
                } => {
                    self.reply_to_consumer(consumer, |link| link.flush_done(token, outcome));
                }
                Output::Observed { consumer, events } => {
                    for events in split_events(*events) {
                        self.reply_to_consumer(consumer, |link| link.observed(events));
                    }
                }
                Output::FileDue(session) => self.write_file(session, turn),
                Output::SyncFile(session) => {
                    if let Some(file) = self.writers.get(&session) {
                        file.sync();
                    }
                }
                Output::CloseFile(session) => match self.writers.get(&session) {
                    Some(file) => file.close(),
                    None => self.service.file_closed(session, Ok(()), turn.now()),
                },
                Output::SetPriority { boost, on_behalf_of } => {
                    if let Err(error) = self.program.set_priority(boost) {
                        self.service
                            .priority_not_set(boost, on_behalf_of, &error, turn.now());
                    }
                }
                Output::SessionCloned {
                    consumer,
                    clone,
                    result,
                } => {
                    self.files_of_clones.remove(&clone);
                    self.reply_to_consumer(consumer, |link| link.session_cloned(clone, result, turn));
                }
                Output::CopyFile { from, to } => match self.writers.get(&from) {
                    Some(original) => original.share(to),
                    None => self
                        .service
                        .file_copied(to, Err("it is closed".into()), turn.now()),
                },
                Output::AbandonFile(session) => drop(self.writers.remove(&session)),
                Output::Log(LogLevel::Info, line) => self.program.info(format_args!("{line}")),
                Output::Log(LogLevel::Warning, line) => self.program.warning(format_args!("{line}")),
            }
        }
    }

    fn command(&mut self, id: ProducerId, command: &ProducerCommand) {
        let Some(token) = self.producers.get(&id).copied() else {
            return;
        };
        let reply = match encode_command(command) {
            Some(reply) => reply,
            None => {
                let ProducerCommand::CreateSharedMemory { size, page_size } = *command else {
                    return;
                };
                match create_shared_memory(size, page_size) {
                    Ok((smb, reply)) => {
                        self.service.attach_shared_memory(id, smb, SmbOrigin::Service);
                        reply
                    }
                    Err(error) => return self.close_producer(id, error),
                }
            }
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let Role::Producer(link, _) = &mut connection.role else {
            return;
        };
        self.touched.insert(token);
        if let Err(rule) = link.command(reply, &mut connection.replies) {
            connection.closing.get_or_insert(rule);
        }
        connection.release_replies();
    }

    fn close_producer(&mut self, id: ProducerId, why: String) {
        let Some(token) = self.producers.get(&id).copied() else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.closing.get_or_insert(why);
            self.touched.insert(token);
        }
    }

    fn reply_to_consumer(
        &mut self,
        id: ConsumerId,
        reply: impl FnOnce(&mut ConsumerLink) -> Option<(ReplyTo, Reply)>,
    ) {
        let Some(token) = self.consumers.get(&id).copied() else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let Role::Consumer(link) = &mut connection.role else {
            return;
        };
        if let Some((to, reply)) = reply(link) {
            connection.reply(to, reply);
            self.touched.insert(token);
        }
    }
}

/// All connections, for [`Turns`].
fn candidates(connections: &HashMap<Token, Connection>) -> impl Iterator<Item = Candidate> {
    connections.iter().map(|(token, it)| it.candidate(*token))
}
