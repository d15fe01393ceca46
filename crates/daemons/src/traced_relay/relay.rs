//! The relay's event loop: listeners for producers, the pairs that are forwarded, and the relay's own connection to the service.
//!
//! Nothing here waits for a peer. A producer whose connection to the service fails is disconnected, and comes again when it likes, as if there were no
//! service on this machine.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use ferretto_host::{Admission, Holding};
use ferretto_ipc::host::PeerIdentity;
use ferretto_ipc::reactor::{Deadlines, Event, Events, Interest, ReactorError, Token, Watch, monotonic_now};
use ferretto_ipc::retry::Retry;
use ferretto_ipc::transport::{ACCEPTS_PER_TURN, PeerCredentials, ReadEnd};
use ferretto_ipc::{Listener, Reactor, Stream};
use ferretto_proto::messages::SystemInfo;

use super::clocks::{News, Readings, RelayClient};
use super::forward::{self, End, Fate, Pair};
use crate::acceptor::{Acceptor, Room};
use crate::destination::{Destination, Next};
use crate::log;
use crate::open_files::most_descriptors;
use crate::traced::tsc;

/// The facts about this machine that the service gets.
#[derive(Debug)]
pub(super) struct ThisMachine {
    /// The same for as long as the machine runs, and that of no other.
    pub(super) hint: String,
    pub(super) name: String,
    pub(super) system: SystemInfo,
}

impl ThisMachine {
    fn identity(&self, pid: Option<i32>, uid: u32) -> PeerIdentity {
        PeerIdentity {
            pid: pid.unwrap_or(-1),
            uid: uid as i32,
            machine_id_hint: self.hint.clone(),
            machine_name: self.name.clone(),
        }
    }
}

/// The relay's own connection.
enum Own {
    /// None until this time.
    Waiting(u64),
    /// Until the name of the service's machine is looked up.
    Looking,
    Open(Box<Open>),
}

struct Open {
    stream: Stream,
    client: RelayClient,
    since: u64,
}

/// See the [module](self).
pub(super) struct Relay {
    reactor: Reactor,
    machine: ThisMachine,
    destination: Destination,
    listeners: Acceptor<()>,
    admission: Admission,
    /// By the half of their tokens.
    pairs: HashMap<u64, Pair>,
    last_id: u64,
    own: Own,
    own_watch: Watch,
    retry: Retry,
    /// Why the addresses do not work that have been tried since the last pause.
    reasons: Vec<String>,
    /// The last reported reason why there is no connection.
    told: Option<String>,
    buffer: Vec<u8>,
}

/// How long the service has to take what producers have sent when the relay ends.
const PATIENCE_TO_DRAIN: Duration = Duration::from_secs(5);

/// The connections that wait for a listener to accept them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    MayHaveMore,
    Done,
}

/// The tokens of client number `id`, a producer or another, and of its connection to the service.
fn tokens(id: u64) -> [Token; 2] {
    [Token(2 * id), Token(2 * id + 1)]
}

impl Relay {
    pub(super) fn new(
        reactor: Reactor,
        listeners: Vec<Listener>,
        machine: ThisMachine,
        destination: Destination,
    ) -> Result<Relay, ReactorError> {
        let [own, _] = tokens(0);
        let mut relay = Relay {
            reactor,
            machine,
            destination,
            listeners: Acceptor::new(),
            admission: Admission::for_descriptors(most_descriptors()),
            pairs: HashMap::new(),
            last_id: 0,
            own: Own::Waiting(0),
            own_watch: Watch::new(own),
            retry: Retry::default(),
            reasons: Vec::new(),
            told: None,
            buffer: vec![0; forward::BUFFER],
        };
        for listener in listeners {
            let [token, _] = tokens(relay.next_id());
            relay.listeners.add(&relay.reactor, token, listener, ())?;
        }
        Ok(relay)
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Forwards until a signal comes. Then takes to the service what producers have sent until now.
    pub(super) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        while events.signals().is_empty() {
            self.turn(&events)?;
            let deadlines = self.deadlines();
            self.reactor.wait(&mut events, deadlines)?;
        }
        self.drain()
    }

    /// Handles what has happened.
    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        self.own_turn(events);
        for event in events.ready() {
            if self.listeners.has(event.token) {
                self.accept(event.token)?;
            } else {
                self.carry(event);
            }
        }
        if events.deadline_passed() {
            let now = monotonic_now();
            self.listeners.handle_timeout(&self.reactor, now)?;
            self.end_late_pairs(now);
        }
        Ok(())
    }

    /// Lets producers send no more, and forwards until the service has taken everything, its time is over, or a second signal comes.
    fn drain(mut self) -> Result<(), ReactorError> {
        let until = monotonic_now() + PATIENCE_TO_DRAIN.as_nanos() as u64;
        // Some may have connected and sent already.
        for listener in self.listeners.tokens() {
            while monotonic_now() < until && self.accept(listener)? == Queue::MayHaveMore {}
        }
        self.listeners.close(&self.reactor);
        for pair in self.pairs.values_mut() {
            pair.end_input();
            pair.watch(&self.reactor);
        }
        let mut events = Events::new();
        while !self.pairs.is_empty() && monotonic_now() < until && events.signals().is_empty() {
            let mut deadlines = self.deadlines();
            deadlines.monotonic = deadlines.monotonic.into_iter().chain([until]).min();
            self.reactor.wait(&mut events, deadlines)?;
            self.turn(&events)?;
        }
        if !self.pairs.is_empty() {
            log::warning(format_args!(
                "ends although the service at {} has not taken all that {} producers have sent; the rest is lost",
                self.destination.name(),
                self.pairs.len()
            ));
        }
        Ok(())
    }

    fn deadlines(&self) -> Deadlines {
        let own = match &self.own {
            Own::Waiting(until) => Some(*until),
            Own::Looking => None,
            Own::Open(open) => Some(open.client.deadline()),
        };
        let pairs = self.pairs.values().filter_map(Pair::deadline).min();
        Deadlines {
            monotonic: [own, pairs, self.listeners.deadline()]
                .into_iter()
                .flatten()
                .min(),
            boot: None,
        }
    }

    fn accept(&mut self, listener: Token) -> Result<Queue, ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let room = match self.admission.is_full() {
                true => Room::None,
                false => Room::Some,
            };
            match self.listeners.accept(&self.reactor, listener, room)? {
                Some((producer, ())) => self.forward(producer),
                None => return Ok(Queue::Done),
            }
        }
        Ok(Queue::MayHaveMore)
    }

    /// Connects a producer with the service. One that cannot be is hung up on, which leaves descriptors that it has passed to another thread.
    fn forward(&mut self, producer: Stream) {
        let peer = match producer.peer_credentials() {
            Ok(Some(peer)) => peer,
            // It came over a network.
            Ok(None) => PeerCredentials {
                uid: u32::MAX,
                pid: None,
            },
            // It has gone.
            Err(_) => return producer.hang_up(),
        };
        if let Err(turned_away) = self.admission.enter(peer.uid) {
            if let Some(line) = turned_away.line {
                log::warning(format_args!("{line}"));
            }
            return producer.hang_up();
        }
        let service = self.destination.for_producers().map(Stream::connect);
        let greeting = self.machine.identity(peer.pid, peer.uid).to_frame();
        // If the service cannot be reached, the relay's own connection cannot either, and reports it.
        let (Some(Ok(service)), Ok(greeting)) = (service, greeting) else {
            self.admission.leave(peer.uid);
            return producer.hang_up();
        };
        let id = self.next_id();
        let [producer_token, service_token] = tokens(id);
        let mut pair = Pair::new(
            peer.uid,
            (producer, producer_token),
            (service, service_token),
            greeting,
            monotonic_now(),
        );
        pair.watch(&self.reactor);
        self.pairs.insert(id, pair);
    }

    /// Gives the pair of an event its turn.
    fn carry(&mut self, event: &Event) {
        let id = event.token.0 / 2;
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        let end = match event.token == tokens(id)[0] {
            true => End::Producer,
            false => End::Service,
        };
        let fate = pair.on_event(end, event, &mut self.buffer, monotonic_now());
        let held = pair.waiting_bytes();
        let holding = self.admission.holds(pair.uid, pair.held, held);
        pair.held = held;
        match (fate, holding) {
            (Fate::Lives, Holding::Fine) => pair.watch(&self.reactor),
            (Fate::Lives, Holding::TooMuch) => {
                log::warning(format_args!(
                    "a producer of uid {} is disconnected: too much of this user's data waits for the service",
                    pair.uid
                ));
                self.end_pair(id);
            }
            (Fate::Over(error), _) => {
                if let Some(error) = error {
                    log::warning(format_args!("a producer is disconnected: {error}"));
                }
                self.end_pair(id);
            }
        }
    }

    fn end_pair(&mut self, id: u64) {
        if let Some(pair) = self.pairs.remove(&id) {
            self.admission.holds(pair.uid, pair.held, 0);
            self.admission.leave(pair.uid);
            pair.close(&self.reactor);
        }
    }

    fn end_late_pairs(&mut self, now: u64) {
        let late = self.pairs.iter().filter(|(_, pair)| pair.is_too_late(now));
        let late: Vec<u64> = late.map(|(id, _)| *id).collect();
        late.into_iter().for_each(|id| self.end_pair(id));
    }

    /// Gives the relay's own connection its turn.
    fn own_turn(&mut self, events: &Events) {
        let now = monotonic_now();
        let has_found = self.destination.poll();
        match &mut self.own {
            Own::Waiting(until) if *until > now => return,
            Own::Waiting(_) => self.connect(now),
            Own::Looking => match has_found {
                Err(reason) => self.wait(reason),
                Ok(()) if self.destination.current().is_some() => self.connect(now),
                Ok(()) => return,
            },
            Own::Open(_) => {}
        }
        let token = self.own_watch.token();
        if let Own::Open(open) = &mut self.own {
            let is_ready = events.ready().iter().any(|event| event.token == token);
            let turned = open.turn(is_ready, &mut self.buffer, now);
            let since = open.since;
            match turned {
                Ok(news) => news.into_iter().for_each(|news| self.report(news)),
                Err(reason) => {
                    self.retry.lasted(Duration::from_nanos(now.saturating_sub(since)));
                    self.wait(reason);
                }
            }
        }
        if let Own::Open(open) = &mut self.own {
            let interest = match open.stream.is_connected() {
                Ok(true) => open.client.connection().interest(),
                _ => Interest::Writable,
            };
            self.own_watch
                .update(&self.reactor, Some((open.stream.as_fd(), interest)));
        }
    }

    fn connect(&mut self, now: u64) {
        let Some(address) = self.destination.current() else {
            match self.destination.look_up() {
                Ok(()) => self.own = Own::Looking,
                Err(reason) => self.wait(reason),
            }
            return;
        };
        let opened = Stream::connect(address)
            .map_err(|error| error.to_string())
            .and_then(|mut stream| {
                let uid = rustix::process::geteuid().as_raw();
                let identity = self.machine.identity(Some(std::process::id() as i32), uid);
                let client = RelayClient::new(&identity, &self.machine.system, now);
                let client = client.map_err(|error| error.to_string())?;
                stream.end_when_silent_for(forward::SILENCE);
                Ok(Box::new(Open {
                    stream,
                    client,
                    since: now,
                }))
            });
        match opened {
            Ok(open) => self.own = Own::Open(open),
            Err(reason) => self.wait(reason),
        }
    }

    /// Begins to wait for the next attempt.
    fn wait(&mut self, reason: String) {
        let mut answered = false;
        if let Own::Open(open) = &mut self.own {
            self.own_watch.end(&self.reactor, &open.stream);
            answered = open.client.connection().is_answered();
        }
        let (name, current) = (self.destination.name(), self.destination.current());
        self.reasons
            .push(match current.filter(|current| *current != name) {
                Some(address) => format!("{address}: {reason}"),
                None => reason,
            });
        let next = match answered {
            true => {
                self.destination.answered();
                Next::AfterAPause
            }
            false => self.destination.failed(),
        };
        if next == Next::AtOnce {
            self.own = Own::Waiting(monotonic_now());
            return;
        }
        self.own = Own::Waiting(monotonic_now() + self.retry.pause().as_nanos() as u64);
        let reason = std::mem::take(&mut self.reasons).join("; ");
        if self.told.as_ref() != Some(&reason) {
            log::warning(format_args!(
                "waiting for the service at {}: {reason}",
                self.destination.name()
            ));
            self.told = Some(reason);
        }
    }

    fn report(&mut self, news: News) {
        match news {
            News::Connected => {
                self.told = None;
                self.reasons.clear();
                self.destination.answered();
                log::info(format_args!(
                    "connected to the service at {}",
                    self.destination.name()
                ));
            }
            News::Compared => log::info(format_args!("the service knows this machine's clocks")),
            News::Rejected(reason) => {
                if self.told.as_ref() != Some(&reason) {
                    log::warning(format_args!(
                        "the service refuses the facts about this machine: {reason}"
                    ));
                    self.told = Some(reason);
                }
            }
        }
    }
}

impl Open {
    /// Exchanges bytes with the service and handles them. Returns the news, or why the connection is to be closed.
    fn turn(&mut self, is_ready: bool, buffer: &mut [u8], now: u64) -> Result<Vec<News>, String> {
        let connected = self.stream.is_connected();
        let connected = connected.map_err(|error| format!("cannot connect: {error}"))?;
        let mut closed = false;
        if connected && is_ready {
            let read = self.stream.read_into(self.client.connection(), buffer);
            closed = read.map_err(|error| error.to_string())? == ReadEnd::Closed;
        }
        let mut all = Vec::new();
        while let Some(news) = self
            .client
            .turn(now, &mut read_clocks)
            .map_err(|error| error.to_string())?
        {
            all.push(news);
        }
        if closed {
            return Err("it has closed the connection".to_owned());
        }
        if connected {
            let flushed = self.stream.flush(self.client.connection().outgoing());
            flushed.map_err(|error| error.to_string())?;
        }
        Ok(all)
    }
}

fn read_clocks() -> Readings {
    ferretto_host::now(tsc::read()).readings().collect()
}

#[cfg(test)]
mod tests;
