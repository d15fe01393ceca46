//! The relay port: turns calls of relays of other machines into inputs of the service, and knows the peers that come through a relay.
//!
//! The host calls this for connections of sockets that relays may use. A relay calls here for itself, once or several times. The producers that it
//! forwards use the producer port like all others, after the relay has declared them.

use ferretto_ipc::Stream;
use ferretto_ipc::host::{PeerIdentity, Reply, Request};
use ferretto_ipc::ports::RelayMethod;
use ferretto_ipc::transport::PeerCredentials;
use ferretto_proto::messages::{InitRelayRequest, Message, SyncClockRequest, sync_clock_request};
use ferretto_service::{Credentials, Machine, MachineId, OtherMachine, RelayId, Service};
use ferretto_wire::{Reader, Value};

use super::clocks::{self, TurnTime};
use super::connection::Replies;

/// The client at the other end of a connection.
pub(crate) struct Caller<'a> {
    /// The connection.
    pub(crate) stream: &'a Stream,
    /// The kernel's word.
    pub(crate) credentials: PeerCredentials,
    /// A relay's word, where the kernel has none.
    pub(crate) identity: Option<&'a PeerIdentity>,
    /// The service's own machine.
    pub(crate) host: MachineId,
}

impl Caller<'_> {
    /// Its user and process, on this machine or another.
    pub(crate) fn credentials(&self) -> Credentials {
        match self.identity {
            Some(identity) => Credentials {
                uid: identity.uid as u32,
                // Relays of systems without process ids send 0 or -1.
                pid: Some(identity.pid).filter(|pid| *pid > 0),
            },
            None => Credentials {
                uid: self.credentials.uid,
                pid: self.credentials.pid,
            },
        }
    }

    /// Its machine.
    pub(crate) fn machine(&self) -> Machine {
        match self.identity {
            Some(identity) => {
                let hint = match identity.machine_id_hint.as_str() {
                    "" => self.stream.peer_host().unwrap_or_default(),
                    hint => hint.to_owned(),
                };
                Machine::Other(Box::new(OtherMachine {
                    id: MachineId::from_hint(hint.as_bytes()),
                    name: identity.machine_name.clone(),
                }))
            }
            None if self.stream.passes_fds() && self.host == MachineId::HOST => Machine::Host,
            None if self.stream.passes_fds() => Machine::Other(Box::new(OtherMachine {
                id: self.host,
                name: String::new(),
            })),
            None => Machine::Undeclared,
        }
    }
}

/// The host's state for a relay's connection.
#[derive(Debug, Default)]
pub(crate) struct RelayLink {
    pub(crate) id: Option<RelayId>,
    /// Whether the log knows that the relay has nothing to add.
    told: bool,
}

impl RelayLink {
    /// Handles one call; the answer goes to `replies`.
    ///
    /// # Errors
    /// Why the call is rejected.
    pub(crate) fn call(
        &mut self,
        service: &mut Service,
        caller: &Caller<'_>,
        method: RelayMethod,
        request: &Request<'_>,
        replies: &mut Replies,
        turn: &TurnTime,
    ) -> Result<(), String> {
        // First of all, because the relay waits for the answer to measure the duration of the exchange.
        let now = clocks::now(turn.program().time_stamp_counter());
        let undecodable = |error: &dyn std::fmt::Display| format!("{error} of {}", method.name());
        if let Some(relay) = self.connected(service, caller, turn)? {
            match method {
                RelayMethod::InitRelay => {
                    let system = system_info(request.payload).map_err(|error| undecodable(&error))?;
                    service.describe_machine(relay, system)?;
                }
                RelayMethod::SyncClock => {
                    let readings = SyncClockRequest::decode_from_slice(request.payload)
                        .map_err(|error| undecodable(&error))?
                        .clocks;
                    let reading = |clock: &sync_clock_request::Clock| {
                        let id = clock.clock_id.unwrap_or_default();
                        (id, clock.timestamp.unwrap_or_default())
                    };
                    service.sync_clocks(relay, readings.iter().map(reading).collect(), &now)?;
                }
            }
        }
        replies.push(request.reply_to, Reply::last(Vec::new()));
        Ok(())
    }

    /// Returns the service's id of this relay. `None` if it speaks for no other machine: then its statements are ignored, because this machine's
    /// system and clocks are known. Upstream believes it.
    fn connected(
        &mut self,
        service: &mut Service,
        caller: &Caller<'_>,
        turn: &TurnTime,
    ) -> Result<Option<RelayId>, String> {
        if self.id.is_none() {
            match caller.machine() {
                Machine::Other(machine) => {
                    let id = service.connect_relay(machine.id);
                    self.id = Some(id.ok_or("there are as many relays of other machines as may be")?);
                }
                Machine::Host | Machine::Undeclared if !std::mem::replace(&mut self.told, true) => {
                    turn.program().warning(format_args!(
                        "a relay is taken to be on this machine, and what it says of its clocks is ignored: relays of other \
                         machines connect over TCP or vsock, and declare which machine they are on"
                    ));
                }
                Machine::Host | Machine::Undeclared => {}
            }
        }
        Ok(self.id)
    }
}

/// The `SystemInfo` inside `InitRelayRequest`, as it came.
fn system_info(payload: &[u8]) -> Result<&[u8], ferretto_wire::WireError> {
    const SYSTEM_INFO: u32 = InitRelayRequest::SYSTEM_INFO;
    let mut system: &[u8] = &[];
    for field in Reader::new(payload) {
        let field = field?;
        if let (SYSTEM_INFO, Value::Bytes(bytes)) = (field.number, field.value) {
            system = bytes;
        }
    }
    Ok(system)
}
