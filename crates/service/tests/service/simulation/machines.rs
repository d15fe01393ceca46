//! Another machine. Some producers run on it, and honest and dishonest relays come, describe it, and go.

use ferretto_proto::messages::trace_packet::{Data, OptionalTrustedUid};
use ferretto_proto::messages::{TraceConfig, TracePacket};
use ferretto_service::{Machine, MachineId, RelayId};

use super::Simulation;
use crate::machines::other;

/// A machine that is not the service's.
const GUEST: MachineId = MachineId(4711);
/// The user of the service.
const SERVICE: i32 = 42;

impl Simulation {
    /// The machine of a producer that connects now.
    pub(super) fn any_machine(&mut self) -> Machine {
        match self.random.one_in(3) {
            true => other(GUEST, "guest"),
            false => Machine::Host,
        }
    }

    /// Adds conditions about machines to a config.
    pub(super) fn pick_machines(&mut self, config: &mut TraceConfig) {
        config.trace_all_machines = self.random.one_in(2).then_some(true);
        for source in &mut config.data_sources {
            if self.random.one_in(8) {
                let name = self.random.pick(&["host", "testbed", "guest", "nowhere"]);
                source.machine_name_filter.extend(name.map(str::to_owned));
            }
        }
    }

    pub(super) fn relay_step(&mut self) {
        let relays: Vec<RelayId> = self.relays.iter().copied().collect();
        let random = &mut self.random;
        let service = &mut self.world.service;
        let now = self.world.now;
        let Some(relay) = random.pick(&relays).filter(|_| !random.one_in(8)) else {
            if relays.len() < 4 {
                self.relays.extend(service.connect_relay(GUEST));
            }
            return;
        };
        match random.below(8) {
            0 => {
                self.relays.remove(&relay);
                service.disconnect_relay(relay);
            }
            // A relay may also try to send descriptions that are not allowed.
            1 | 2 => drop(service.describe_machine(relay, &random.bytes(40))),
            _ => {
                let readings = (0..random.below(70)).map(|_| (random.number(), random.next()));
                drop(service.sync_clocks(relay, readings.collect(), &now));
            }
        }
    }

    pub(super) fn lose_relays(&mut self) {
        for relay in std::mem::take(&mut self.relays) {
            self.world.service.disconnect_relay(relay);
        }
    }
}

/// Whether this is the service's packet about the other machine's clocks. Also checks that packets come from known machines.
pub(super) fn compares_clocks(packet: &TracePacket) -> bool {
    let is_others = packet.machine_id.is_some_and(|id| id != GUEST.0);
    assert!(!is_others, "a machine that is not there: {packet:?}");
    let of_service = packet.optional_trusted_uid == Some(OptionalTrustedUid::TrustedUid(SERVICE));
    let compares = matches!(&packet.data, Some(Data::RemoteClockSync(_)));
    if compares && of_service {
        assert_eq!(packet.machine_id, Some(GUEST.0));
    }
    compares && of_service
}
