//! The relays of other machines, with their descriptions and clocks, and the packets about them in traces.

use std::collections::VecDeque;

use ferretto_proto::write;

use super::readout::Readout;
use super::{SERVICE_SEQUENCE_ID, Session};
use crate::clock::{Now, clock_id};
use crate::ids::{MachineId, RelayId, SessionId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};

/// Readers take two exchanges for one comparison if less than this lies between them on the relay's boot clock, in nanoseconds.
const SAME_COMPARISON: u64 = 30_000_000_000;
/// A trace gets the comparisons of a machine no more often than this, in nanoseconds. Relays compare every 30 s.
const TOLD_AGAIN_AFTER: u64 = 20_000_000_000;

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
    /// How many there have been.
    pub(crate) exchanged: u64,
    /// Once the relay is gone: the last session that had begun by then. That session and earlier ones may hold data of its machine.
    pub(crate) gone: Option<SessionId>,
}

impl Relay {
    /// Whether the relation of the two machines' clocks is known. One exchange is not enough, because it does not show how long the readings took to
    /// get here.
    pub(crate) fn has_synced(&self) -> bool {
        self.exchanges.len() >= 2
    }

    /// The last two exchanges, if they are one comparison.
    fn latest_comparison(&self) -> Option<[&Exchange; 2]> {
        let mut latest = self.exchanges.iter().rev();
        let (update, ping) = (latest.next()?, latest.next()?);
        let boot = |exchange: &Exchange| {
            let mut readings = exchange.theirs.iter();
            readings
                .find(|(id, _)| *id == clock_id::BOOTTIME)
                .map(|(_, reading)| *reading)
        };
        let between = boot(update)?.checked_sub(boot(ping)?)?;
        (between < SAME_COMPARISON).then_some([ping, update])
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
    clocks: OrderedMap<MachineId, Compared>,
}

/// A trace's knowledge of a machine's clocks.
#[derive(Clone, Copy, Debug)]
struct Compared {
    relay: RelayId,
    /// [`Relay::exchanged`] at that time.
    exchanged: u64,
    /// Boot time.
    at: u64,
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

    /// Writes how the clocks of other machines relate to ours: first all that is known, then each new comparison, because clocks drift, and
    /// jump when their machine sleeps. Upstream does so at the first read-back at which a relay is connected and never again: readers cannot place the
    /// events of machines whose clocks were not compared by then, and misplace those of long traces.
    pub(crate) fn write_clocks(&self, session: &mut Session, uid: u32, now: &Now, out: &mut Readout) {
        let told = &mut session.notes.machines_told.clocks;
        for (id, relay) in self.relays.iter() {
            if relay.gone.is_some_and(|last| session.recorded_by > last) || !relay.has_synced() {
                continue;
            }
            let exchanges: Vec<&Exchange> = match told.get(&relay.machine) {
                None if told.len() < limits::MAX_MACHINES_PER_TRACE => relay.exchanges.iter().collect(),
                Some(earlier) if self.has_news(*id, relay, earlier, now) => {
                    relay.latest_comparison().into_iter().flatten().collect()
                }
                _ => continue,
            };
            if exchanges.is_empty() {
                continue;
            }
            let compared = Compared {
                relay: *id,
                exchanged: relay.exchanged,
                at: now.boot,
            };
            told.insert(relay.machine, compared);
            out.own_packet(|packet| {
                write::TracePacket::new(packet)
                    .machine_id(relay.machine.0)
                    .trusted_uid(uid as i32)
                    .remote_clock_sync(|sync| {
                        for exchange in exchanges {
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

    /// Whether a relay has compared clocks since the trace was told of its machine's. The first relay of a machine counts for as long as it is
    /// connected.
    fn has_news(&self, id: RelayId, relay: &Relay, told: &Compared, now: &Now) -> bool {
        let counts = match id == told.relay {
            true => relay.exchanged >= told.exchanged + 2,
            false => {
                let earlier = self.relays.get(&told.relay);
                id > told.relay && earlier.is_none_or(|earlier| earlier.gone.is_some())
            }
        };
        counts && now.boot.saturating_sub(told.at) >= TOLD_AGAIN_AFTER
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
