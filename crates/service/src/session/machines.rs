//! The relays of other machines, with their descriptions and clocks, and the packets about them in traces.

use std::collections::VecDeque;

use ferretto_proto::write;

use super::readout::Readout;
use super::{SERVICE_SEQUENCE_ID, Session};
use crate::clock::Now;
use crate::ids::{MachineId, RelayId, SessionId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};

/// Readings of the clocks of two machines, one right after the other.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Clock ids and readings, as the relay sent them.
    pub(crate) theirs: Vec<(u32, u64)>,
    pub(crate) ours: Now,
}

/// A relay and its statements.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) machine: MachineId,
    /// Encoded `SystemInfo`, as it came.
    pub(crate) system: Vec<u8>,
    /// The latest of them.
    pub(crate) exchanges: VecDeque<Exchange>,
    /// Once the relay is gone: the last session that had begun by then. That session and earlier ones may hold data of its machine.
    pub(crate) gone: Option<SessionId>,
}

impl Relay {
    /// Whether the relation of the two machines' clocks is known. One exchange is not enough, because it does not show how long the readings took to
    /// get here.
    pub(crate) fn has_synced(&self) -> bool {
        self.exchanges.len() >= 2
    }
}

/// The descriptions and clocks of all relays.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    pub(crate) relays: OrderedMap<RelayId, Relay>,
    pub(crate) last_relay: u64,
}

/// The machines that a trace already describes.
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

    /// Writes the relays' descriptions of their machines, of each machine once.
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

    /// Writes how the clocks of other machines relate to ours, of each machine once. Upstream does so at the first read-back at which a relay is
    /// connected and never again: readers cannot place the events of machines whose clocks were not compared by then.
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
