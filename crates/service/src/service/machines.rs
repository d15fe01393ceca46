//! Other machines: the machine of a producer, the relays that connect on behalf of machines, and their descriptions in traces.
//!
//! A relay (`traced_relay`) forwards the connections of its machine's producers, which are producers here like any other, and has one
//! connection of its own. On that connection it describes its machine and compares its clocks with ours again and again. Readers of the trace need
//! both to place the events of those producers. The service trusts a relay as little as a producer: its statements are bounded, marked with its
//! machine, and apply to that machine only.

use std::collections::VecDeque;

use ferretto_proto::messages::{Message, SystemInfo};

use super::Service;
use crate::clock::Now;
use crate::ids::{MachineId, RelayId};
use crate::limits;
use crate::session::machines::{Exchange, Relay};

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
            exchanged: 0,
            gone: None,
        };
        machines.relays.insert(id, relay);
        Some(id)
    }

    /// A relay describes its machine: an encoded `SystemInfo`, which goes into traces as it came.
    ///
    /// # Errors
    /// If it is too long, or is not a `SystemInfo`. The previous description stays.
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
        // The description becomes a part of a packet for which the service vouches, and which every reader has to understand.
        SystemInfo::decode_from_slice(system)
            .map_err(|error| format!("the description of a machine is no SystemInfo: {error}"))?;
        relay.system = system.to_vec();
        Ok(())
    }

    /// A relay sent readings of its clocks, clock ids with nanoseconds or ticks, which arrived at `now`. A relay has to do this twice in a row, the
    /// second time when it knows that the first readings have arrived. From this, readers compute the time that the readings took.
    ///
    /// # Errors
    /// If there are too many readings, which are then ignored.
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
        relay.exchanged += 1;
        Ok(())
    }

    /// A relay is gone. Sessions that have begun so far still write its description and clocks. Upstream forgets both, and readers cannot place the
    /// events of its machine.
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
        // One disconnected relay of a machine suffices: it is the same machine, and it was not restarted.
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
    fn a_relay_that_no_session_needs_is_forgotten_at_once() {
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
    fn a_relay_is_forgotten_with_the_last_session_that_needs_it() {
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
}
