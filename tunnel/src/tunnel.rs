//! The tunnel's event loop: the listener, the pairs, and the addresses of the other side.
//!
//! Nothing here waits for a peer. Strangers cost little: at most [`HANDSHAKES`] of them are known to the host's end at a time, for at most 10 s. When another
//! comes, the oldest has to go. So a crowd of them that says nothing holds up no guest, whose handshake takes two round trips.
//!
//! A reload reads the files anew. If the authorities or the lists of revoked certificates are of no use, the tunnel logs that and keeps all the old files.
//! Otherwise the new ones count for each later handshake. They also end standing connections, but only those that they would have refused at the start: the
//! certificate is revoked now, or its authority has gone. A certificate that has merely expired since then keeps its connection. If only this end's own
//! certificate or key is of no use, the tunnel logs that, shows the old one, and still judges others by the new files.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ferretto_daemons::acceptor::{Acceptor, Room};
use ferretto_daemons::destination::Destination;
use ferretto_daemons::log;
use ferretto_daemons::open_files::most_descriptors;
use ferretto_ipc::reactor::{Deadlines, Event, Events, ReactorError, Signal, Token, monotonic_now};
use ferretto_ipc::transport::ACCEPTS_PER_TURN;
use ferretto_ipc::{Listener, Reactor, Stream};
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::{ServerName, UnixTime};

use crate::identity::{Files, GuestIdentity, HostIdentity, IdentityError, Judge, Renewed};
use crate::pair::{BUFFER, Failure, Fate, Pair, Side};

/// The signal that has the files read anew.
pub(crate) const RELOAD: Signal = Signal::HangUp;
/// Handshakes at the host's end at a time.
const HANDSHAKES: usize = 64;
/// Pairs at a time, if there are descriptors for as many.
const PAIRS: usize = 8192;
/// Descriptors that are not of pairs.
const OTHER_DESCRIPTORS: usize = 32;
/// How long peers have to take what was sent when the tunnel ends.
const PATIENCE_TO_DRAIN: Duration = Duration::from_secs(5);
/// From one complaint in the log to the next: strangers decide how many reasons there are.
const BETWEEN_COMPLAINTS: Duration = Duration::from_secs(10);

/// Which end of the tunnel this is.
pub(crate) enum End {
    /// Takes clients in the clear, and connects to the host's end, which has this name.
    Guest(GuestIdentity, ServerName<'static>),
    /// Takes guests' ends, and connects to the service in the clear.
    Host(HostIdentity),
}

impl End {
    /// The side that connects to this end.
    fn clients(&self) -> Side {
        match self {
            End::Guest(..) => Side::Near,
            End::Host(_) => Side::Far,
        }
    }

    fn judge(&self) -> &Judge {
        match self {
            End::Guest(identity, _) => &identity.judge,
            End::Host(identity) => &identity.judge,
        }
    }

    /// The same end with what the files hold now.
    fn renewed(&self, files: &Files) -> Result<Renewed<End>, IdentityError> {
        Ok(match self {
            End::Guest(identity, name) => {
                let (identity, kept) = files.guest_again(identity, name)?;
                (End::Guest(identity, name.clone()), kept)
            }
            End::Host(identity) => {
                let (identity, kept) = files.host_again(identity)?;
                (End::Host(identity), kept)
            }
        })
    }
}

/// See the [module](self).
pub(crate) struct Tunnel {
    reactor: Reactor,
    end: End,
    files: Files,
    destination: Destination,
    listeners: Acceptor<()>,
    /// By the half of their tokens: the oldest first.
    pairs: BTreeMap<u64, Pair>,
    most_pairs: usize,
    last_id: u64,
    /// The last pair whose handshake began by files of before the last reload.
    last_old: u64,
    complaints: Complaints,
    buffer: Vec<u8>,
}

/// The tokens of the pair with this number: the far socket, and the near one.
fn tokens(id: u64) -> [Token; 2] {
    [Token(2 * id), Token(2 * id + 1)]
}

impl Tunnel {
    pub(crate) fn new(
        reactor: Reactor,
        listener: Listener,
        end: End,
        files: Files,
        destination: Destination,
    ) -> Result<Tunnel, ReactorError> {
        let [token, _] = tokens(0);
        let descriptors = most_descriptors().saturating_sub(OTHER_DESCRIPTORS);
        let mut tunnel = Tunnel {
            reactor,
            end,
            files,
            destination,
            listeners: Acceptor::new(),
            pairs: BTreeMap::new(),
            most_pairs: (descriptors / 2).clamp(1, PAIRS),
            last_id: 0,
            last_old: 0,
            complaints: Complaints::default(),
            buffer: vec![0; BUFFER],
        };
        tunnel.listeners.add(&tunnel.reactor, token, listener, ())?;
        Ok(tunnel)
    }

    /// Passes bytes on until a signal comes that ends the program. Then passes on the data so far.
    pub(crate) fn run(mut self) -> Result<(), ReactorError> {
        let mut events = Events::new();
        self.find();
        while !is_told_to_end(&events) {
            if events.signals().contains(&RELOAD) {
                self.reload();
            }
            self.turn(&events)?;
            let deadlines = self.deadlines(None);
            self.reactor.wait(&mut events, deadlines)?;
        }
        self.drain()
    }

    /// Goes on by what the files hold now, see the [module](self).
    fn reload(&mut self) {
        let (end, kept) = match self.renewed() {
            Ok(renewed) => renewed,
            Err(error) => {
                return log::error(format_args!(
                    "goes on by the files of before, because the new ones are of no use: {error}"
                ));
            }
        };
        if let Some(error) = kept {
            log::error(format_args!(
                "shows the certificate of before, because that of now is of no use: {error}"
            ));
        }
        self.end = end;
        self.last_old = self.last_id;
        let known = self.pairs.iter().filter_map(|(id, pair)| {
            let (chain, at) = pair.shown()?;
            Some((*id, chain, at))
        });
        let failed = self.end.judge().judge_all(known);
        let ended = failed.len();
        for (id, error) in failed {
            self.failed(id, &Failure::Tls(error));
            self.end_pair(id);
        }
        let left = self.pairs.len();
        log::info(format_args!(
            "has read the files anew: {left} connections go on, {ended} have ended because their certificates do not count any more"
        ));
    }

    /// This end by what the files hold now, unless their lists are of no use.
    fn renewed(&self) -> Result<Renewed<End>, IdentityError> {
        let renewed = self.end.renewed(&self.files)?;
        let (end, _) = &renewed;
        let known = self.pairs.values().filter_map(Pair::shown);
        match end.judge().refusal_by_lists(known, UnixTime::now()) {
            Some(error) => Err(self.files.lists_refuse_all(&error)),
            None => Ok(renewed),
        }
    }

    /// Judges a pair that knows its far end by the files as they were read last.
    fn judge(&self, id: u64) -> Result<(), Failure> {
        match self.pairs.get(&id).and_then(Pair::shown) {
            Some((chain, at)) => self.end.judge().judge(chain, at).map_err(Failure::Tls),
            None => Ok(()),
        }
    }

    fn drain(mut self) -> Result<(), ReactorError> {
        let until = monotonic_now() + PATIENCE_TO_DRAIN.as_nanos() as u64;
        self.listeners.close(&self.reactor);
        let clients = self.end.clients();
        let unknown: Vec<u64> = self.ids(|pair| !pair.is_known());
        unknown.into_iter().for_each(|id| self.end_pair(id));
        for pair in self.pairs.values_mut() {
            pair.end_input(clients);
            pair.watch(&self.reactor);
        }
        let mut events = Events::new();
        while !self.pairs.is_empty() && monotonic_now() < until && !is_told_to_end(&events) {
            let deadlines = self.deadlines(Some(until));
            self.reactor.wait(&mut events, deadlines)?;
            self.turn(&events)?;
        }
        if !self.pairs.is_empty() {
            log::warning(format_args!(
                "ends although {} connections have not taken all that was sent; the rest is lost",
                self.pairs.len()
            ));
        }
        Ok(())
    }

    /// Handles what has happened.
    fn turn(&mut self, events: &Events) -> Result<(), ReactorError> {
        if let Err(reason) = self.destination.poll() {
            self.complaints.log(&reason);
        }
        for event in events.ready() {
            match self.listeners.has(event.token) {
                true => self.accept(event.token)?,
                false => self.carry(event),
            }
        }
        if events.deadline_passed() {
            let now = monotonic_now();
            self.listeners.handle_timeout(&self.reactor, now)?;
            for id in self.ids(|pair| pair.deadline().is_some_and(|deadline| deadline <= now)) {
                match self.pairs.get(&id) {
                    Some(pair) if !pair.is_known() => {
                        self.failed(id, &Failure::Far("it does not finish the handshake".to_owned()));
                    }
                    Some(pair) if pair.holds_bytes() => {
                        let reason = "one side has ended, and the other has not taken all that was sent; the rest is lost";
                        self.failed(id, &Failure::Far(reason.to_owned()));
                    }
                    _ => {}
                }
                self.end_pair(id);
            }
        }
        Ok(())
    }

    fn deadlines(&self, until: Option<u64>) -> Deadlines {
        let pairs = self.pairs.values().filter_map(Pair::deadline).min();
        Deadlines {
            monotonic: [pairs, self.listeners.deadline(), until]
                .into_iter()
                .flatten()
                .min(),
            boot: None,
        }
    }

    fn ids(&self, which: impl Fn(&Pair) -> bool) -> Vec<u64> {
        let chosen = self.pairs.iter().filter(|(_, pair)| which(pair));
        chosen.map(|(id, _)| *id).collect()
    }

    /// Has the other side's name looked up, if it is not known.
    fn find(&mut self) {
        if self.destination.current().is_none()
            && let Err(reason) = self.destination.look_up()
        {
            self.complaints.log(&reason);
        }
    }

    fn accept(&mut self, listener: Token) -> Result<(), ReactorError> {
        for _ in 0..ACCEPTS_PER_TURN {
            let room = match self.pairs.len() < self.most_pairs {
                true => Room::Some,
                false => Room::None,
            };
            match self.listeners.accept(&self.reactor, listener, room)? {
                Some((client, ())) => self.begin(client),
                None => break,
            }
        }
        Ok(())
    }

    /// Makes a pair for a client. One that cannot have any is hung up on, as if nobody listened here.
    fn begin(&mut self, client: Stream) {
        let id = self.last_id + 1;
        self.last_id = id;
        let [far_token, near_token] = tokens(id);
        let now = monotonic_now();
        let begun = match &self.end {
            End::Guest(identity, name) => {
                let Some(address) = self.destination.current() else {
                    client.hang_up();
                    return self.find();
                };
                let far = Stream::connect(address).map_err(|error| error.to_string());
                let tls = ClientConnection::new(identity.config.clone(), name.clone())
                    .map_err(|error| error.to_string());
                far.and_then(|far| Ok((far, tls?))).map(|(far, tls)| {
                    let mut pair = Pair::new((far, far_token), tls.into(), now);
                    pair.join((client, near_token));
                    pair
                })
            }
            End::Host(identity) => {
                let tls = ServerConnection::new(identity.config.clone()).map_err(|error| error.to_string());
                tls.map(|tls| Pair::new((client, far_token), tls.into(), now))
            }
        };
        match begun {
            Ok(mut pair) => {
                if matches!(self.end, End::Host(_)) {
                    self.make_room();
                }
                let fate = pair.turn(&mut self.buffer, now);
                self.pairs.insert(id, pair);
                self.settle(id, fate);
            }
            Err(reason) => {
                self.destination.failed();
                self.complaints
                    .log(&format!("{}: {reason}", self.destination.name()));
            }
        }
    }

    /// Hangs up on a stranger, if there are as many as there may be: the oldest one of the address that has most. So strangers from one address make room for
    /// each other, and a guest from another address has its time.
    fn make_room(&mut self) {
        let mut strangers: BTreeMap<Option<&str>, Vec<u64>> = BTreeMap::new();
        for (id, pair) in self.pairs.iter().filter(|(_, pair)| !pair.is_known()) {
            strangers.entry(pair.far_host()).or_default().push(*id);
        }
        if strangers.values().map(Vec::len).sum::<usize>() < HANDSHAKES {
            return;
        }
        let oldest = strangers
            .values()
            .filter_map(|ids| Some((ids.len(), Reverse(*ids.first()?))))
            .max();
        if let Some((_, Reverse(oldest))) = oldest {
            let reason =
                "so many strangers come that those who do not finish their handshakes are hung up on";
            self.complaints.log(reason);
            self.end_pair(oldest);
        }
    }

    /// Gives the pair of an event its turn.
    fn carry(&mut self, event: &Event) {
        let id = event.token.0 / 2;
        if let Some(pair) = self.pairs.get_mut(&id) {
            let fate = pair.on_event(event, &mut self.buffer, monotonic_now());
            self.settle(id, fate);
        }
    }

    fn settle(&mut self, id: u64, mut fate: Fate) {
        if matches!(fate, Fate::Known) {
            fate = match self.know(id) {
                Ok(()) => self.again(id),
                Err(failure) => Fate::Over(Some(failure)),
            };
        }
        match fate {
            Fate::Lives | Fate::Known => {
                if let Some(pair) = self.pairs.get_mut(&id) {
                    pair.watch(&self.reactor);
                }
            }
            Fate::Over(failure) => {
                if let Some(failure) = failure {
                    self.failed(id, &failure);
                }
                self.end_pair(id);
            }
        }
    }

    /// The bytes that came together with the last of the handshake.
    fn again(&mut self, id: u64) -> Fate {
        match self.pairs.get_mut(&id) {
            Some(pair) => pair.turn(&mut self.buffer, monotonic_now()),
            None => Fate::Lives,
        }
    }

    /// Both ends of a pair know each other. At the host's end, it gets its connection to the service.
    fn know(&mut self, id: u64) -> Result<(), Failure> {
        if id <= self.last_old {
            self.judge(id)?;
        }
        match &self.end {
            End::Guest(..) => self.destination.answered(),
            End::Host(_) => {
                let Some(address) = self.destination.current() else {
                    self.find();
                    return Err(Failure::Near("its address is being looked up".to_owned()));
                };
                let near = Stream::connect(address).map_err(|error| Failure::Near(error.to_string()))?;
                let [_, token] = tokens(id);
                if let Some(pair) = self.pairs.get_mut(&id) {
                    pair.join((near, token));
                }
            }
        }
        Ok(())
    }

    fn failed(&mut self, id: u64, failure: &Failure) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let what = match failure {
            Failure::Tls(error) => self.files.explain(error),
            Failure::Far(reason) | Failure::Near(reason) => reason.clone(),
        };
        let name = self.destination.name();
        let line = match (&self.end, failure) {
            (End::Guest(..), Failure::Near(_)) => return,
            (End::Guest(..), _) => format!("the host's end at {name}: {what}"),
            (End::Host(_), Failure::Near(_)) => format!("the service at {name}: {what}"),
            (End::Host(_), _) => {
                let host = pair.far_host().unwrap_or("somebody who has gone");
                format!("a guest's end at {host}: {what}")
            }
        };
        let is_stranger = !pair.is_known();
        self.complaints.log(&line);
        if is_stranger && matches!(self.end, End::Guest(..)) {
            self.destination.failed();
            self.find();
        }
    }

    fn end_pair(&mut self, id: u64) {
        if let Some(pair) = self.pairs.remove(&id) {
            pair.close(&self.reactor);
        }
    }
}

fn is_told_to_end(events: &Events) -> bool {
    events.signals().iter().any(|signal| *signal != RELOAD)
}

/// Failures of connections, in the log: not more often than one line in [`BETWEEN_COMPLAINTS`].
#[derive(Debug, Default)]
struct Complaints {
    next: u64,
    held: u32,
}

impl Complaints {
    fn log(&mut self, line: &str) {
        let now = monotonic_now();
        if now < self.next {
            self.held = self.held.saturating_add(1);
            return;
        }
        self.next = now + BETWEEN_COMPLAINTS.as_nanos() as u64;
        match std::mem::take(&mut self.held) {
            0 => log::warning(format_args!("{line}")),
            held => log::warning(format_args!("{line} ({held} others since the last line)")),
        }
    }
}
