//! The event loop of the daemon: sockets, files and clocks around one [`Service`].
//!
//! A turn reads from each connection that has something to say, within that connection's budget, then carries out
//! what the service wants done, then moves trace data towards consumers and files as far as they take it. No
//! connection is served twice before all others had their turn, and nothing here waits for a peer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use ferretto_ipc::frame::MAX_FRAME;
use ferretto_ipc::host::{HostConnection, HostLimits, PeerIdentitySource, Reply};
use ferretto_ipc::ports::{CONSUMER_PORT, ConsumerMethod, PRODUCER_PORT, ProducerMethod, ServiceDescriptor};
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Signal, Token};
use ferretto_ipc::transport::{Connection as _, PeerCredentials, Received};
use ferretto_ipc::{Listener, Reactor, Stream};
use ferretto_service::{
    ConsumerId, LogLevel, Now, Output, ProducerCommand, ProducerId, Service, SessionId, SmbOrigin,
};

use super::connection::{Connection, Role};
use super::consumer_port::{ConsumerLink, read_buffers_payloads};
use super::files::TraceFile;
use super::producer_port::{Answer, ProducerLink, create_shared_memory, encode_command};
use super::{clocks, system};

/// Bytes of trace data that one turn moves towards one consumer or file.
const BYTES_PER_TURN: usize = 1024 * 1024;
/// How long a listener rests when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections taken from one listener in one turn.
const ACCEPTS_PER_TURN: usize = 64;

/// Who connects to a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Producer,
    Consumer,
}

static PRODUCER_SERVICES: [&ServiceDescriptor; 1] = [&PRODUCER_PORT];
static CONSUMER_SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];

pub(super) struct Shell {
    service: Service,
    reactor: Reactor,
    listeners: BTreeMap<Token, (Listener, Port)>,
    /// Listeners that rest, and until when.
    resting: Option<u64>,
    connections: BTreeMap<Token, Connection>,
    producers: BTreeMap<ProducerId, Token>,
    consumers: BTreeMap<ConsumerId, Token>,
    files: BTreeMap<SessionId, TraceFile>,
    files_due: VecDeque<SessionId>,
    /// Connections with work that does not need the socket to become ready.
    busy: BTreeSet<Token>,
    /// Connections with something to send or a changed interest.
    touched: BTreeSet<Token>,
    last_token: u64,
    receive_buffer: Vec<u8>,
}

impl Shell {
    pub(super) fn new(listeners: Vec<(Listener, Port)>) -> Result<Shell, ReactorError> {
        let mut reactor = Reactor::new()?;
        reactor.watch_signals(&[Signal::Interrupt, Signal::Terminate])?;
        let mut shell = Shell {
            service: Service::new(system::identity()),
            reactor,
            listeners: BTreeMap::new(),
            resting: None,
            connections: BTreeMap::new(),
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            files: BTreeMap::new(),
            files_due: VecDeque::new(),
            busy: BTreeSet::new(),
            touched: BTreeSet::new(),
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

    /// Serves until a signal ends the daemon.
    pub(super) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        loop {
            self.reactor.wait(&mut events, self.deadline())?;
            if !events.signals().is_empty() {
                self.finish_files();
                return Ok(());
            }
            self.turn(&events)?;
        }
    }

    fn deadline(&self) -> Option<Deadline> {
        if !self.busy.is_empty() || !self.files_due.is_empty() {
            return Some(Deadline::Monotonic(0));
        }
        [self.service.next_deadline(), self.resting]
            .into_iter()
            .flatten()
            .min()
            .map(Deadline::Monotonic)
    }

    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        let now = clocks::now();
        if self.resting.is_some_and(|until| until <= now.monotonic) {
            self.watch_listeners(Interest::Readable)?;
            self.resting = None;
        }
        self.service.handle_timeout(&now);
        self.carry_out(&now);

        let mut due = std::mem::take(&mut self.busy);
        for event in events.ready() {
            if self.listeners.contains_key(&event.token) {
                self.accept(event.token, &now)?;
                continue;
            }
            self.touched.insert(event.token);
            if event.readable {
                self.receive(event.token);
                due.insert(event.token);
            }
        }
        for token in due {
            self.serve(token, &now);
            self.carry_out(&now);
        }
        self.write_files(&now);
        self.carry_out(&now);
        self.settle(&now);
        Ok(())
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

    fn accept(&mut self, listener: Token, now: &Now) -> Result<(), ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some((socket, port)) = self.listeners.get(&listener) else {
                return Ok(());
            };
            let port = *port;
            match socket.accept() {
                Ok(Some(stream)) => self.connected(stream, port),
                Ok(None) => return Ok(()),
                Err(error) => {
                    // Out of descriptors, most likely: the queue stays full, so stop looking at it for a while.
                    crate::log::warning(format_args!("{error}"));
                    self.resting = Some(now.monotonic + ACCEPT_PAUSE.as_nanos() as u64);
                    return self.watch_listeners(Interest::None);
                }
            }
        }
        Ok(())
    }

    fn connected(&mut self, stream: Stream, port: Port) {
        // Only the kernel's word counts; what cannot vouch for its peers is nobody.
        let peer = match stream.peer_credentials() {
            Ok(peer) => peer.unwrap_or(PeerCredentials {
                uid: u32::MAX,
                pid: None,
            }),
            Err(error) => return crate::log::warning(format_args!("{error}")),
        };
        let token = self.next_token();
        if let Err(error) = self.reactor.register(&stream, token, Interest::Readable) {
            return crate::log::warning(format_args!("{error}"));
        }
        let (services, role): (&'static [_], _) = match port {
            Port::Producer => (&PRODUCER_SERVICES, Role::Producer(ProducerLink::default())),
            Port::Consumer => {
                let id = self.service.connect_consumer(peer.uid);
                self.consumers.insert(id, token);
                (&CONSUMER_SERVICES, Role::Consumer(ConsumerLink::new(id)))
            }
        };
        let host = HostConnection::new(services, PeerIdentitySource::Kernel, HostLimits::default());
        self.connections
            .insert(token, Connection::new(stream, host, peer, role));
    }

    /// Reads once from a socket.
    fn receive(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if !connection.host.wants_input() {
            return;
        }
        let mut fd = None;
        match connection.stream.recv(&mut self.receive_buffer, &mut fd) {
            Ok(Received::Bytes(count)) => connection.host.receive(&self.receive_buffer[..count], fd),
            Ok(Received::WouldBlock) => {}
            Ok(Received::Closed) => connection.closing = Some(String::new()),
            Err(error) => connection.closing = Some(error.to_string()),
        }
    }

    /// Handles the requests that wait on one connection, as far as its budget goes.
    fn serve(&mut self, token: Token, now: &Now) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        self.touched.insert(token);
        connection.release_held();
        connection.host.begin_turn();
        loop {
            let request = match connection.host.next_request() {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(violation) => {
                    connection.closing = Some(violation.to_string());
                    break;
                }
            };
            let to = request.reply_to;
            match &mut connection.role {
                Role::Producer(link) => {
                    let Some(method) = ProducerMethod::from_name(request.method) else {
                        continue;
                    };
                    let peer = connection.peer;
                    let answer = link.call(&mut self.service, peer, method, request, now);
                    let early = link.take_early();
                    if let Some(id) = link.id {
                        self.producers.insert(id, token);
                    }
                    match answer {
                        Answer::Now(reply) => connection.reply(to, reply),
                        Answer::Later => {}
                        Answer::Violation(rule) => connection.closing = Some(rule),
                    }
                    for (to, reply) in early
                        .into_iter()
                        .flat_map(|(to, replies)| replies.into_iter().map(move |r| (to, r)))
                    {
                        connection.reply(to, reply);
                    }
                }
                Role::Consumer(link) => {
                    let Some(method) = ConsumerMethod::from_name(request.method) else {
                        continue;
                    };
                    let outcome = link.call(&mut self.service, method, request, now);
                    if let Some((session, file)) = outcome.file {
                        self.files.insert(session, file);
                    }
                    connection.closing = connection.closing.take().or(outcome.violation);
                    for (to, reply) in outcome.replies {
                        connection.reply(to, reply);
                    }
                }
            }
            if connection.closing.is_some() {
                break;
            }
        }
        if connection.host.turn_is_over() {
            self.busy.insert(token);
        }
        self.send_trace_data(token, now);
    }

    /// Moves trace data towards a consumer that reads, as far as it takes it.
    fn send_trace_data(&mut self, token: Token, now: &Now) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if !connection.has_room() {
            return;
        }
        let Role::Consumer(link) = &mut connection.role else {
            return;
        };
        let (id, Some(to)) = (link.id, link.read) else {
            return;
        };
        let Some(batch) = self.service.read_buffers(id, 2 * MAX_FRAME, now) else {
            link.read = None;
            connection.reply(to, Reply::last(Vec::new()));
            return;
        };
        let mut payloads = read_buffers_payloads(&batch);
        let last = if batch.has_more {
            None
        } else {
            Some(payloads.pop().unwrap_or_default())
        };
        match last {
            Some(_) => link.read = None,
            None => drop(self.busy.insert(token)),
        }
        for payload in payloads {
            connection.reply(to, Reply::more(payload));
        }
        if let Some(payload) = last {
            connection.reply(to, Reply::last(payload));
        }
    }

    /// Does what the service wants done.
    fn carry_out(&mut self, now: &Now) {
        while let Some(output) = self.service.poll() {
            match output {
                Output::ToProducer(id, command) => self.command(id, &command, now),
                Output::DisconnectProducer { producer, rule } => self.close_producer(producer, rule),
                Output::TracingDisabled { consumer, error } => {
                    self.reply_to_consumer(consumer, |link| link.tracing_disabled(error));
                }
                Output::FlushDone {
                    consumer,
                    token,
                    outcome,
                } => {
                    self.reply_to_consumer(consumer, |link| link.flush_done(token, outcome));
                }
                Output::Observed { consumer, events } => {
                    self.reply_to_consumer(consumer, |link| link.observed(*events));
                }
                Output::FileDue(session) => self.files_due.push_back(session),
                Output::SyncFile(session) => {
                    if let Some(Err(error)) = self.files.get(&session).map(TraceFile::sync) {
                        crate::log::warning(format_args!("cannot sync a trace file: {error}"));
                    }
                }
                Output::CloseFile(session) => {
                    if let Some(Err(error)) = self.files.remove(&session).map(|file| file.sync()) {
                        crate::log::warning(format_args!("cannot sync a trace file: {error}"));
                    }
                }
                Output::Log(LogLevel::Info, line) => crate::log::info(format_args!("{line}")),
                Output::Log(LogLevel::Warning, line) => crate::log::warning(format_args!("{line}")),
            }
        }
    }

    fn command(&mut self, id: ProducerId, command: &ProducerCommand, _now: &Now) {
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
        let Role::Producer(link) = &mut connection.role else {
            return;
        };
        self.touched.insert(token);
        if let Some((to, reply)) = link.command(reply) {
            connection.reply(to, reply);
        }
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

    /// Writes one batch into each file that is due; what is left comes in later turns.
    fn write_files(&mut self, now: &Now) {
        for _ in 0..self.files_due.len() {
            let Some(session) = self.files_due.pop_front() else {
                return;
            };
            self.write_file(session, now);
        }
    }

    fn write_file(&mut self, session: SessionId, now: &Now) {
        let Some(batch) = self.service.read_for_file(session, BYTES_PER_TURN, now) else {
            return;
        };
        let result = match self.files.get_mut(&session) {
            Some(file) => file.write(batch.slices()),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        self.service
            .file_written(session, result.map_err(|error| error.to_string()), now);
    }

    /// Ends the daemon: what is due for files is still written.
    fn finish_files(&mut self) {
        let now = clocks::now();
        for consumer in self.consumers.keys() {
            self.service.disconnect_consumer(*consumer, &now);
        }
        self.carry_out(&now);
        while !self.files_due.is_empty() {
            self.write_files(&now);
            self.carry_out(&now);
        }
    }

    /// Sends what waits, closes what is over, and tells the reactor what to watch for.
    fn settle(&mut self, now: &Now) {
        while let Some(token) = self.touched.pop_first() {
            let Some(connection) = self.connections.get_mut(&token) else {
                continue;
            };
            if let Err(error) = connection.stream.flush(connection.host.outgoing()) {
                connection.closing.get_or_insert(error.to_string());
            }
            if let Some(why) = connection.closing.take() {
                self.close(token, &why, now);
                continue;
            }
            connection.release_held();
            let reading = matches!(&connection.role, Role::Consumer(link) if link.read.is_some());
            let congested = !connection.has_room();
            if reading && !congested {
                self.busy.insert(token);
            }
            let output = !connection.host.outgoing().is_empty();
            let interest = Interest::from_wants(connection.host.wants_input(), output);
            if interest != connection.interest {
                connection.interest = interest;
                if let Err(error) = self.reactor.reregister(&connection.stream, token, interest) {
                    crate::log::warning(format_args!("{error}"));
                }
            }
        }
    }

    fn close(&mut self, token: Token, why: &str, now: &Now) {
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        self.busy.remove(&token);
        let _ = self.reactor.deregister(&connection.stream, token);
        if !why.is_empty() {
            let pid = connection
                .peer
                .pid
                .map_or(String::new(), |pid| format!(" (pid {pid})"));
            crate::log::warning(format_args!("closed the connection of a client{pid}: {why}"));
        }
        match connection.role {
            Role::Producer(link) => {
                if let Some(id) = link.id {
                    self.producers.remove(&id);
                    self.service.disconnect_producer(id, now);
                }
            }
            Role::Consumer(link) => {
                self.consumers.remove(&link.id);
                self.service.disconnect_consumer(link.id, now);
            }
        }
        self.carry_out(now);
    }
}
