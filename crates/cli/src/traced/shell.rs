//! The event loop of the daemon: sockets, files and clocks around one [`Service`].
//!
//! A turn reads from each connection that has something to say, within that connection's budget, then carries out
//! what the service wants done, then moves trace data towards consumers and files as far as they take it. Nothing here waits for a peer,
//! and when there is no time for all of them, they take turns ([`super::turns`]).

mod farewell;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::host::{HostConnection, HostLimits, PeerIdentitySource, Reply};
use ferretto_ipc::ports::{
    CONSUMER_PORT, ConsumerMethod, PRODUCER_PORT, ProducerMethod, RELAY_PORT, RelayMethod, ServiceDescriptor,
};
use ferretto_ipc::reactor::{Deadline, Deadlines, Events, Interest, ReactorError, Token};
use ferretto_ipc::time::{self, Clock};
use ferretto_ipc::transport::PeerCredentials;
use ferretto_ipc::{Listener, Reactor, Stream};
use ferretto_service::compression::Fit;
use ferretto_service::{
    ConsumerId, LogLevel, MemorySharing, Output, ProducerCommand, ProducerId, Service, SessionId, SmbOrigin,
};

use super::admission::Admission;
use super::bounds::split_events;
use super::clocks::TurnTime;
use super::connection::{Connection, Role};
use super::consumer_port::{ConsumerLink, Effect};
use super::files::{Done, FileWriter, Files, Written};
use super::freed_memory::FreedMemory;
use super::producer_port::{ProducerLink, create_shared_memory, encode_command};
use super::relay_port::{Caller, RelayLink};
use super::system;
use super::trace_file::TraceFile;
use super::turns::{self, Candidate, Turns};
use crate::priority::ThreadPriority;
use farewell::Farewell;

/// Bytes of trace data that are on their way into a file at once.
const FILE_BATCH: usize = 1024 * 1024;
/// How long a listener rests when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a connection's requests are handled, give or take a tick of the kernel's, before others have their turn; the one that is
/// being handled is still finished. Most clients never get there: configs with hundreds of expressions to compile do, or registrations
/// that a session wants a thousand times.
const TIME_PER_TURN: Duration = Duration::from_millis(2);
/// Connections taken from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Who connects to a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Producer,
    ProducerOrRelay,
    Consumer,
}

static PRODUCER_SERVICES: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];
static PRODUCER_AND_RELAY_SERVICES: [&ServiceDescriptor; 2] = [&PRODUCER_PORT, &RELAY_PORT];
static CONSUMER_SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];

pub(super) struct Shell {
    service: Service,
    reactor: Reactor,
    listeners: BTreeMap<Token, (Listener, Port)>,
    /// Until when the listeners rest.
    resting: Option<u64>,
    /// Accepting a connection failed, and clients have been waiting for theirs since.
    accept_fails: bool,
    admission: Admission,
    connections: BTreeMap<Token, Connection>,
    producers: BTreeMap<ProducerId, Token>,
    consumers: BTreeMap<ConsumerId, Token>,
    files: Files,
    writers: BTreeMap<SessionId, FileWriter>,
    priority: ThreadPriority,
    freed: FreedMemory,
    /// Files that came with requests for clones which are not made yet.
    files_of_clones: BTreeMap<SessionId, TraceFile>,
    /// Connections with work that does not need the socket to become ready.
    busy: BTreeSet<Token>,
    /// Connections that are served in this turn; kept for its allocation.
    due: Vec<Token>,
    /// Connections with something to send or a changed interest.
    touched: BTreeSet<Token>,
    /// Connections that are to be closed.
    ending: BTreeSet<Token>,
    turns: Turns,
    /// A signal told the daemon to end.
    farewell: Option<Farewell>,
    last_token: u64,
    receive_buffer: Vec<u8>,
}

impl Shell {
    pub(super) fn new(listeners: Vec<(Listener, Port)>) -> Result<Shell, ReactorError> {
        let mut reactor = Reactor::new()?;
        reactor.watch_signals(&crate::daemon::ending_signals())?;
        let waker = reactor.waker();
        let priority = ThreadPriority::of_this_thread();
        let mut service = Service::new(system::identity());
        service.set_processor_clock(|| time::now(Clock::Thread));
        let mut shell = Shell {
            service,
            reactor,
            listeners: BTreeMap::new(),
            resting: None,
            accept_fails: false,
            admission: Admission::of_process(),
            connections: BTreeMap::new(),
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            files: Files::new(waker, priority),
            writers: BTreeMap::new(),
            priority,
            freed: FreedMemory::default(),
            files_of_clones: BTreeMap::new(),
            busy: BTreeSet::new(),
            due: Vec::new(),
            touched: BTreeSet::new(),
            ending: BTreeSet::new(),
            turns: Turns::default(),
            farewell: None,
            last_token: 0,
            receive_buffer: vec![0; MAX_FRAME],
        };
        for (listener, port) in listeners {
            let token = shell.next_token();
            shell.reactor.register(&listener, token, Interest::Readable)?;
            shell.listeners.insert(token, (listener, port));
        }
        Ok(shell)
    }

    /// Serves until a signal comes, and then until all sessions are read or a second signal comes.
    pub(super) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        loop {
            self.reactor.wait(&mut events, self.deadlines())?;
            if !events.signals().is_empty() {
                if self.farewell.is_some() {
                    crate::log::info(format_args!("a second signal ends traced at once"));
                    break;
                }
                self.begin_farewell();
            }
            self.turn(&events)?;
            if self.is_farewell_over(&events) {
                break;
            }
        }
        self.end();
        Ok(())
    }

    fn deadlines(&self) -> Deadlines {
        if !(self.busy.is_empty() && self.touched.is_empty() && self.ending.is_empty()) {
            return Deadline::Monotonic(0).into();
        }
        let monotonic = [
            self.service.next_deadline(),
            self.resting,
            self.freed.deadline(),
            self.farewell_deadline(),
        ];
        Deadlines {
            monotonic: monotonic.into_iter().flatten().min(),
            boot: self.service.next_boot_deadline(),
        }
    }

    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        let turn = TurnTime::default();
        if events.deadline_passed() {
            let now = turn.now();
            if self.resting.is_some_and(|until| until <= now.monotonic) {
                self.watch_listeners(Interest::Readable)?;
                self.resting = None;
            }
            self.service.handle_timeout(now);
            self.freed.handle_timeout(now);
            self.carry_out(&turn);
        }

        let busy = std::mem::take(&mut self.busy);
        let mut due = std::mem::take(&mut self.due);
        due.extend(&busy);
        for event in events.ready() {
            let Some(connection) = self.connections.get_mut(&event.token) else {
                if self.listeners.contains_key(&event.token) {
                    self.accept(event.token, &turn)?;
                }
                continue;
            };
            // Whoever is not served in this round may have sent as much as is kept for it.
            self.touched.insert(event.token);
            if !event.readable {
                continue;
            }
            connection.receive(&mut self.receive_buffer);
            if !busy.contains(&event.token) {
                due.push(event.token);
            }
        }
        // In the order in which they came to be, not in the kernel's, which nobody can predict.
        due.sort_unstable();
        self.serve_all(&mut due, &turn);
        self.due = due;
        self.files_progressed(&turn);
        self.settle(&turn);
        Ok(())
    }

    /// Serves these connections until it is time to look who else has something to say: the rest comes next, in turn.
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

    fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    fn watch_listeners(&self, interest: Interest) -> Result<(), ReactorError> {
        self.listeners
            .iter()
            .try_for_each(|(token, (listener, _))| self.reactor.reregister(listener, *token, interest))
    }

    fn accept(&mut self, listener: Token, turn: &TurnTime) -> Result<(), ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((socket, port)) = self.listeners.get(&listener) else {
                return Ok(());
            };
            let port = *port;
            if self.admission.is_full() {
                return self.rest(&"there are as many clients as the daemon can serve", turn);
            }
            match socket.accept() {
                Ok(Some(stream)) => self.connected(stream, port),
                Ok(None) => {
                    self.accept_fails = false;
                    return Ok(());
                }
                // Out of descriptors, most likely.
                Err(error) => return self.rest(&error, turn),
            }
        }
        Ok(())
    }

    /// Nobody can be let in for now: the queue stays full, so stop looking at it for a while.
    fn rest(&mut self, why: &dyn std::fmt::Display, turn: &TurnTime) -> Result<(), ReactorError> {
        if !std::mem::replace(&mut self.accept_fails, true) {
            crate::log::warning(format_args!("new clients have to wait: {why}"));
        }
        self.resting = Some(turn.now().monotonic + ACCEPT_PAUSE.as_nanos() as u64);
        self.watch_listeners(Interest::None)
    }

    fn connected(&mut self, stream: Stream, port: Port) {
        // Only the kernel's word counts here; whom it does not vouch for is nobody.
        let peer = match stream.peer_credentials() {
            Ok(peer) => peer.unwrap_or(PeerCredentials {
                uid: u32::MAX,
                pid: None,
            }),
            Err(error) => {
                crate::log::warning(format_args!("{error}"));
                return stream.hang_up();
            }
        };
        if let Err(turned_away) = self.admission.enter(peer.uid) {
            if let Some(line) = turned_away.line {
                crate::log::warning(format_args!("{line}"));
            }
            return stream.hang_up();
        }
        let token = self.next_token();
        if let Err(error) = self.reactor.register(&stream, token, Interest::Readable) {
            self.admission.leave(peer.uid);
            crate::log::warning(format_args!("{error}"));
            return stream.hang_up();
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
        // Who comes through a relay is whom it says, but no consumer: sessions belong to users of this machine.
        let identities = if stream.passes_fds() || port == Port::Consumer {
            PeerIdentitySource::Kernel
        } else {
            PeerIdentitySource::Declared
        };
        let host = HostConnection::new(services, identities, HostLimits::default());
        self.connections
            .insert(token, Connection::new(stream, host, peer, role));
    }

    /// Handles the requests that wait on one connection, as far as its budget goes, and sends it trace data if it reads.
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
        // What follows from a request is said before the next is answered: `Sync` relies on it.
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
        let (service, replies) = (&mut self.service, &mut connection.replies);
        let caller = Caller {
            stream: &connection.stream,
            credentials: connection.peer,
            identity: request.identity,
        };
        let effect = match &mut connection.role {
            Role::Producer(_, link) if is_relays => {
                RelayMethod::from_name(request.method).map_or(Ok(Effect::None), |method| {
                    link.call(service, &caller, method, &request, replies)?;
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
                    link.call(service, method, request, replies, turn.now())
                }),
        };
        connection.release_replies();
        if is_relays {
            // It measures how long this takes. What is left over is dealt with at the end of the turn, as for all others.
            connection.send();
        }
        match effect {
            Ok(Effect::None) => {}
            Ok(Effect::Reads) => {
                self.send_state(token);
                self.send_packets(token, turn);
            }
            Ok(Effect::Frees) => self.freed.note(turn.now()),
            Ok(Effect::Streams(session, file)) => self.open_file(session, file),
            Ok(Effect::Clones(clone, file)) => drop(self.files_of_clones.insert(clone, file)),
            Err(why) => connection.reject(to, &why),
        }
        true
    }

    /// Tells a consumer the state that it asked for, as far as there is room: it has to read before it can ask for more.
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
        if connection.has_room()
            && let Role::Consumer(link) = &mut connection.role
        {
            connection.takes_packets |= link.reads();
            link.send_packets(&mut self.service, &mut connection.replies, turn.now());
            connection.release_replies();
        }
    }

    /// Does what the service wants done.
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
                    if let Err(error) = self.priority.set(boost) {
                        self.service
                            .priority_not_set(boost, on_behalf_of, &error.to_string(), turn.now());
                    }
                }
                Output::SessionCloned {
                    consumer,
                    clone,
                    result,
                } => {
                    self.files_of_clones.remove(&clone);
                    self.reply_to_consumer(consumer, |link| link.session_cloned(clone, result));
                }
                Output::CopyFile { from, to } => match self.writers.get(&from) {
                    Some(original) => original.share(to),
                    None => self
                        .service
                        .file_copied(to, Err("it is closed".into()), turn.now()),
                },
                Output::AbandonFile(session) => drop(self.writers.remove(&session)),
                Output::Log(LogLevel::Info, line) => crate::log::info(format_args!("{line}")),
                Output::Log(LogLevel::Warning, line) => crate::log::warning(format_args!("{line}")),
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
        reply: impl FnOnce(&mut ConsumerLink) -> Option<(ferretto_ipc::host::ReplyTo, Reply)>,
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

    fn open_file(&mut self, session: SessionId, file: TraceFile) {
        match self.files.writer(session, file) {
            Ok(writer) => drop(self.writers.insert(session, writer)),
            // The session ends with the first batch, which finds no file.
            Err(error) => {
                crate::log::warning(format_args!("cannot start the thread of a trace file: {error}"))
            }
        }
    }

    /// Hands the next batch for a file to its thread.
    fn write_file(&mut self, session: SessionId, turn: &TurnTime) {
        self.service.local_time_offset(system::local_time_offset());
        let begun = Instant::now();
        let Some(batch) = self.service.read_for_file(session, FILE_BATCH, turn.now()) else {
            return;
        };
        let (filtered, took) = (batch.filtered, begun.elapsed());
        match self.writers.get_mut(&session) {
            Some(file) => file.write(&batch),
            None => self.service.file_written(
                session,
                Err("its thread could not be started; the daemon's log says why".into()),
                turn.now(),
            ),
        }
        if filtered.is_some() {
            self.service.filtering_took(session, took);
        }
    }

    /// Takes note of what the threads of files have done.
    fn files_progressed(&mut self, turn: &TurnTime) {
        while let Some(done) = self.files.next_done() {
            self.file_progressed(done, turn);
        }
    }

    fn file_progressed(&mut self, done: Done, turn: &TurnTime) {
        match done {
            Done::Written(session, batch, result) => {
                match batch {
                    Some(batch) => {
                        if let Some(file) = self.writers.get_mut(&session) {
                            file.take_back(batch);
                        }
                    }
                    None => self.freed.note(turn.now()),
                }
                match result {
                    Ok(Written { bytes, fit }) => match fit {
                        Fit::Whole => self.service.file_written(session, Ok(bytes), turn.now()),
                        Fit::Cut => self.service.file_full(session, bytes, turn.now()),
                    },
                    Err(error) => self.service.file_written(session, Err(error), turn.now()),
                }
            }
            Done::Shared(clone, shared) => self.copy_file(clone, shared, turn),
            Done::Copied(clone, result) => {
                if result.is_err() {
                    self.writers.remove(&clone);
                }
                self.service
                    .file_copied(clone, result.map_err(|error| error.to_string()), turn.now());
            }
            Done::Synced(_, Ok(())) => {}
            Done::Synced(session, Err(error)) => self.service.file_sync_failed(session, &error.to_string()),
            Done::Closed(session, result) => {
                self.writers.remove(&session);
                self.service
                    .file_closed(session, result.map_err(|error| error.to_string()), turn.now());
            }
        }
        self.carry_out(turn);
    }

    /// Has the file of a clone begin with what the file of the original holds.
    fn copy_file(&mut self, clone: SessionId, shared: io::Result<(File, u64)>, turn: &TurnTime) {
        let writer = shared.and_then(|original| {
            // The consumer may have gone, and its descriptor with it.
            let file = self
                .files_of_clones
                .remove(&clone)
                .ok_or(io::ErrorKind::NotFound)?;
            let writer = self.files.writer(clone, file)?;
            writer.copy(original);
            Ok(writer)
        });
        match writer {
            Ok(writer) => drop(self.writers.insert(clone, writer)),
            Err(error) => self
                .service
                .file_copied(clone, Err(error.to_string()), turn.now()),
        }
    }
}

/// All connections, for [`Turns`].
fn candidates(connections: &BTreeMap<Token, Connection>) -> impl Iterator<Item = Candidate> {
    connections.iter().map(|(token, it)| it.candidate(*token))
}
