//! Other machines: the machine of a producer, the relays that connect on behalf of machines, and what traces tell of both.
//!
//! A relay (`traced_relay`) forwards the connections of its machine's producers, which are producers here like any other, and has one
//! connection of its own. On that connection it describes its machine and compares its clocks with ours again and again. Readers of the trace need
//! both to place the events of those producers. The service trusts a relay as little as a producer: its statements are bounded, marked with its
//! machine, and apply to that machine only.

use std::collections::VecDeque;

use ferretto_proto::messages::{Message, SystemInfo};
use ferretto_proto::write;

use crate::clock::Now;
use crate::ids::{MachineId, RelayId, SessionId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::readback::Readout;
use crate::service::Service;
use crate::session::{SERVICE_SEQUENCE_ID, Session};

/// The machine that a producer runs on, as far as its connection tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// This one: the kernel vouches for it.
    #[default]
    Host,
    /// It came over a network, and no relay said from where: maybe from this machine. Traces make no difference to this one.
    Undeclared,
    /// Another one, says a relay.
    Other(Box<OtherMachine>),
}

/// A machine that a relay speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherMachine {
    /// Tells it from others. Not [`MachineId::HOST`].
    pub id: MachineId,
    /// What people call it, not necessarily it alone. May be empty.
    pub name: String,
}

impl Machine {
    /// The number under which traces know it.
    pub fn id(&self) -> MachineId {
        match self {
            Machine::Host | Machine::Undeclared => MachineId::HOST,
            Machine::Other(machine) => machine.id,
        }
    }
}

impl MachineId {
    /// The id of another machine, of which these bytes are characteristic. Upstream computes the same: the lower half of their
    /// FNV-1a hash.
    pub fn from_hint(hint: &[u8]) -> MachineId {
        const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        let hash = hint.iter().fold(OFFSET_BASIS, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
        });
        match MachineId(hash as u32) {
            MachineId::HOST => MachineId(1),
            id => id,
        }
    }
}

/// Readings of the clocks of two machines, one right after the other.
#[derive(Debug)]
struct Exchange {
    /// Clock ids and readings, as the relay sent them.
    theirs: Vec<(u32, u64)>,
    ours: Now,
}

/// A relay and its statements.
#[derive(Debug)]
struct Relay {
    machine: MachineId,
    /// Encoded `SystemInfo`, as it came.
    system: Vec<u8>,
    /// The latest of them.
    exchanges: VecDeque<Exchange>,
    /// It is gone; the last session that had begun by then. That one and those before it may hold data of its machine.
    gone: Option<SessionId>,
}

impl Relay {
    /// Whether it told how the clocks of the two machines relate. One exchange alone does not: nothing is known of how long the
    /// readings took to get here.
    fn has_synced(&self) -> bool {
        self.exchanges.len() >= 2
    }
}

/// Everything that relays have told.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    relays: OrderedMap<RelayId, Relay>,
    last_relay: u64,
}

/// Of which machines a trace has told.
#[derive(Debug, Default)]
pub(crate) struct MachinesTold {
    systems: OrderedSet<MachineId>,
    clocks: OrderedSet<MachineId>,
}

impl Machines {
    /// Forgets relays that are gone, unless a session is left that may hold data of their machines.
    pub(crate) fn forget_gone<'s>(&mut self, sessions: impl Iterator<Item = &'s Session>) {
        let oldest = sessions.map(|session| session.recorded_by).min();
        self.relays.retain(|_, relay| {
            relay
                .gone
                .is_none_or(|last| oldest.is_some_and(|oldest| oldest <= last))
        });
    }

    /// The relays that matter to a session: the connected ones, and those that disconnected since it began.
    fn relevant_to(&self, session: SessionId) -> impl Iterator<Item = &Relay> {
        self.relays
            .values()
            .filter(move |relay| relay.gone.is_none_or(|last| session <= last))
    }

    /// Writes what relays said of their machines, of each machine once.
    pub(crate) fn write_systems(&self, session: &mut Session, uid: u32, out: &mut Readout) {
        let told = &mut session.notes.machines_told.systems;
        for relay in self.relevant_to(session.recorded_by) {
            if relay.system.is_empty() || !tell_of(relay.machine, told) {
                continue;
            }
            out.own_packet(|packet| {
                packet.bytes_field(write::TracePacket::SYSTEM_INFO, &relay.system);
                write::TracePacket::new(packet)
                    .machine_id(relay.machine.0)
                    .trusted_uid(uid as i32)
                    .trusted_packet_sequence_id(SERVICE_SEQUENCE_ID);
            });
        }
    }

    /// Writes how the clocks of other machines relate to ours, of each machine once. Upstream does so at the first read-back at
    /// which a relay is connected and never again: what machines recorded whose clocks were not compared by then, readers cannot
    /// place.
    pub(crate) fn write_clocks(&self, session: &mut Session, uid: u32, out: &mut Readout) {
        let told = &mut session.notes.machines_told.clocks;
        for relay in self.relevant_to(session.recorded_by) {
            if !relay.has_synced() || !tell_of(relay.machine, told) {
                continue;
            }
            out.own_packet(|packet| {
                write::TracePacket::new(packet)
                    .machine_id(relay.machine.0)
                    .trusted_uid(uid as i32)
                    .remote_clock_sync(|sync| {
                        for exchange in &relay.exchanges {
                            sync.synced_clocks(|pair| {
                                pair.client_clocks(|message| {
                                    write_clocks(message, exchange.theirs.iter().copied());
                                });
                                pair.host_clocks(|message| write_clocks(message, exchange.ours.readings()));
                            });
                        }
                    });
            });
        }
    }
}

/// Whether the trace is still to tell of a machine, which it then has.
fn tell_of(machine: MachineId, told: &mut OrderedSet<MachineId>) -> bool {
    told.len() < limits::MAX_MACHINES_PER_TRACE && told.insert(machine)
}

fn write_clocks(message: &mut write::ClockSnapshot<'_>, readings: impl Iterator<Item = (u32, u64)>) {
    for (id, reading) in readings {
        message.clocks(|clock| {
            clock.clock_id(id).timestamp(reading);
        });
    }
}

impl Service {
    /// A relay of another machine connected. `None` if there are as many as may be.
    pub fn connect_relay(&mut self, machine: MachineId) -> Option<RelayId> {
        let machines = &mut self.machines;
        if machines.relays.len() >= limits::MAX_RELAYS {
            let gone = machines.relays.iter().find(|(_, relay)| relay.gone.is_some());
            let oldest = gone.map(|(id, _)| *id)?;
            machines.relays.remove(&oldest);
        }
        machines.last_relay += 1;
        let id = RelayId(machines.last_relay);
        let relay = Relay {
            machine,
            system: Vec::new(),
            exchanges: VecDeque::new(),
            gone: None,
        };
        machines.relays.insert(id, relay);
        Some(id)
    }

    /// A relay describes its machine: an encoded `SystemInfo`, which goes into traces as it came.
    ///
    /// # Errors
    /// If it is too long, or no such message. What it said before stays.
    pub fn describe_machine(&mut self, relay: RelayId, system: &[u8]) -> Result<(), String> {
        let Some(relay) = self.machines.relays.get_mut(&relay) else {
            return Ok(());
        };
        if system.len() > limits::MAX_SYSTEM_INFO {
            return Err(format!(
                "the description of a machine has {} bytes, the limit is {}",
                system.len(),
                limits::MAX_SYSTEM_INFO
            ));
        }
        // It becomes a part of a packet for which the service vouches, and which every reader has to understand.
        SystemInfo::decode_from_slice(system)
            .map_err(|error| format!("the description of a machine is no SystemInfo: {error}"))?;
        relay.system = system.to_vec();
        Ok(())
    }

    /// A relay sent readings of its clocks, clock ids with nanoseconds or ticks, which came in at `now`. It is to do so twice in a
    /// row, the second time when it knows that the first have arrived: thereby readers know how long they took.
    ///
    /// # Errors
    /// If there are too many: they are ignored.
    pub fn sync_clocks(&mut self, relay: RelayId, theirs: Vec<(u32, u64)>, now: &Now) -> Result<(), String> {
        let Some(relay) = self.machines.relays.get_mut(&relay) else {
            return Ok(());
        };
        if theirs.len() > limits::MAX_CLOCKS_PER_EXCHANGE {
            return Err(format!(
                "{} clocks were read at once, the limit is {}",
                theirs.len(),
                limits::MAX_CLOCKS_PER_EXCHANGE
            ));
        }
        if relay.exchanges.len() >= limits::MAX_CLOCK_EXCHANGES {
            relay.exchanges.pop_front();
        }
        relay.exchanges.push_back(Exchange { theirs, ours: *now });
        Ok(())
    }

    /// A relay is gone. Sessions that have begun so far still write what it told; upstream forgets it, and with it when all that
    /// happened which its machine recorded.
    pub fn disconnect_relay(&mut self, id: RelayId) {
        let last = self.sessions.last_id();
        let machines = &mut self.machines;
        let Some(relay) = machines.relays.get_mut(&id) else {
            return;
        };
        if !relay.has_synced() {
            machines.relays.remove(&id);
            return;
        }
        relay.gone = Some(last);
        // One that is gone is enough: it is the same machine, and it was not restarted.
        let machine = relay.machine;
        machines
            .relays
            .retain(|other, relay| *other == id || relay.machine != machine || relay.gone.is_none());
        machines.forget_gone(self.sessions.iter());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_session_is_to_be_told_is_forgotten_at_once() {
        let mut service = Service::new(crate::Identity::default());
        let now = Now::default();
        let relay = service.connect_relay(MachineId(7)).expect("room");
        for _ in 0..2 {
            service.sync_clocks(relay, vec![(6, 1)], &now).expect("few");
        }
        service.disconnect_relay(relay);
        assert!(service.machines.relays.is_empty());
    }

    #[test]
    fn what_a_relay_said_is_forgotten_with_the_last_session_that_is_to_be_told() {
        let mut service = Service::new(crate::Identity::default());
        let now = Now::default();
        let consumer = service.connect_consumer(1);
        let config = ferretto_proto::messages::TraceConfig::default();
        let bytes = Vec::new().into();
        let input = crate::ConfigInput { config, bytes };
        let file = crate::OutputFile::None;
        service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        let relay = service.connect_relay(MachineId(7)).expect("room");
        for _ in 0..2 {
            service.sync_clocks(relay, vec![(6, 1)], &now).expect("few");
        }
        service.disconnect_relay(relay);
        assert_eq!(service.machines.relays.len(), 1);
        service.disconnect_consumer(consumer, &now);
        assert!(service.machines.relays.is_empty());
    }

    #[test]
    fn ids_of_machines_are_the_lower_halves_of_fnv_1a_hashes_and_never_the_hosts() {
        // Of the test vectors of its authors.
        assert_eq!(MachineId::from_hint(b"a"), MachineId(0x8601_ec8c));
        assert_eq!(MachineId::from_hint(b"foobar"), MachineId(0xf739_67e8));
        // Found by trying: the hash is 0x5732_855f_0000_0000.
        assert_eq!(MachineId::from_hint(b"5cb7f729"), MachineId(1));
    }
}
