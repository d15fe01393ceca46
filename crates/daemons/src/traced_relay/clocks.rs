//! The relay's own client of the service, without I/O: it describes this machine, and compares its clocks with the service's again and again.
//!
//! The relay's loop carries bytes between the [`ClientConnection`] in here and a socket, and gives it turns. A comparison is two exchanges, one right
//! after the other (`PING` and `UPDATE`), from which readers compute how long messages take. Upstream's relay does the same, at the same times.
//!
//! The relay only forwards producers. So a service that rejects all this is reported and otherwise left alone: the producers' data is recorded,
//! and readers cannot place it in time.

use std::time::Duration;

use ferretto_ipc::ClientConnection;
use ferretto_ipc::client::{Call, CallId, ClientEvent, InvokeError, ServiceHandle};
use ferretto_ipc::host::PeerIdentity;
use ferretto_ipc::ports::{RELAY_PORT, RelayMethod};
use ferretto_proto::messages::sync_clock_request::{Clock, Phase};
use ferretto_proto::messages::{InitRelayRequest, Message, SyncClockRequest, SystemInfo};

/// From the end of a comparison to the next. Readers take two exchanges for one comparison if less than this lies between them.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);
/// A service that does not answer for so long is gone, with its machine or the network.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Room for the few requests that wait at once.
const OUTGOING_BYTES: usize = 256 * 1024;

/// Clock ids and readings, all taken now.
pub(super) type Readings = Vec<(u32, u64)>;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RelayClient {
    connection: ClientConnection,
    port: ServiceHandle,
    description: Vec<u8>,
    awaited: Awaited,
    /// When to compare again, or to give up waiting, on the monotonic clock.
    deadline: u64,
    has_compared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Port,
    Ping(CallId),
    Update(CallId),
    /// The time of the next comparison.
    Interval,
}

/// News for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The service takes what this client says.
    Connected,
    /// The clocks have been compared for the first time.
    Compared,
    /// The service does not take something.
    Rejected(String),
}

/// Why the connection is to be closed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error(
        "the service takes no relays on this socket; start traced with --enable-relay-endpoint, or -on with its name"
    )]
    NoPort,
    #[error("the service has not answered for {} s", PATIENCE.as_secs())]
    Silent,
    #[error("the service sent data that is no frame: {0}")]
    Violation(#[from] ferretto_ipc::frame::Violation),
    #[error(transparent)]
    Invoke(#[from] InvokeError),
}

impl RelayClient {
    /// A client on a new connection. `identity` is of the relay itself.
    pub(super) fn new(
        identity: &PeerIdentity,
        system: &SystemInfo,
        now: u64,
    ) -> Result<RelayClient, InvokeError> {
        let mut connection = ClientConnection::new(OUTGOING_BYTES);
        connection.set_peer_identity(identity)?;
        let port = connection.bind(RELAY_PORT.name)?;
        let description = InitRelayRequest {
            system_info: system.clone().into(),
            ..Default::default()
        };
        Ok(RelayClient {
            connection,
            port,
            description: description.encode_to_vec(),
            awaited: Awaited::Port,
            deadline: now + PATIENCE.as_nanos() as u64,
            has_compared: false,
        })
    }

    /// The bytes in and out.
    pub(super) fn connection(&mut self) -> &mut ClientConnection {
        &mut self.connection
    }

    /// When to call [`turn`](Self::turn) even if nothing has come, on the monotonic clock.
    pub(super) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Handles what has come, at this monotonic time. Reads the clocks right before it sends them. To be called until there is no news.
    pub(super) fn turn(
        &mut self,
        now: u64,
        read_clocks: &mut impl FnMut() -> Readings,
    ) -> Result<Option<News>, Ended> {
        while let Some(event) = self.connection.next_event()? {
            let (call, outcome) = match event {
                ClientEvent::Bound(_) => {
                    let call = Call::new(
                        RelayMethod::InitRelay.name(),
                        std::mem::take(&mut self.description),
                    );
                    self.connection.invoke(self.port, call)?;
                    self.compare(Phase::PING, now, read_clocks)?;
                    return Ok(Some(News::Connected));
                }
                ClientEvent::BindFailed(_) => return Err(Ended::NoPort),
                ClientEvent::Reply { call, .. } => (call, Ok(())),
                ClientEvent::Failed { call, error } => (call, Err(error)),
            };
            match (self.awaited, outcome) {
                (Awaited::Ping(ping), Ok(())) if call == ping => {
                    self.compare(Phase::UPDATE, now, read_clocks)?;
                }
                (Awaited::Update(update), Ok(())) if call == update => {
                    self.rest(now);
                    if !std::mem::replace(&mut self.has_compared, true) {
                        return Ok(Some(News::Compared));
                    }
                }
                (Awaited::Ping(awaited) | Awaited::Update(awaited), Err(error)) if call == awaited => {
                    self.rest(now);
                    return Ok(Some(News::Rejected(error.to_string())));
                }
                (_, Err(error)) => return Ok(Some(News::Rejected(error.to_string()))),
                // The description was taken.
                (_, Ok(())) => {}
            }
        }
        if self.deadline > now {
            return Ok(None);
        }
        match self.awaited {
            Awaited::Interval => {
                self.compare(Phase::PING, now, read_clocks)?;
                Ok(None)
            }
            Awaited::Port | Awaited::Ping(_) | Awaited::Update(_) => Err(Ended::Silent),
        }
    }

    fn rest(&mut self, now: u64) {
        self.awaited = Awaited::Interval;
        self.deadline = now + INTERVAL.as_nanos() as u64;
    }

    fn compare(
        &mut self,
        phase: Phase,
        now: u64,
        read_clocks: &mut impl FnMut() -> Readings,
    ) -> Result<(), InvokeError> {
        let clock = |(id, reading)| Clock {
            clock_id: Some(id),
            timestamp: Some(reading),
            ..Default::default()
        };
        let request = SyncClockRequest {
            phase: Some(phase),
            clocks: read_clocks().into_iter().map(clock).collect(),
            ..Default::default()
        };
        let call = Call::new(RelayMethod::SyncClock.name(), request.encode_to_vec());
        let call = self.connection.invoke(self.port, call)?;
        self.awaited = match phase {
            Phase::UPDATE => Awaited::Update(call),
            _ => Awaited::Ping(call),
        };
        self.deadline = now + PATIENCE.as_nanos() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
