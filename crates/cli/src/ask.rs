//! Asks a service for its state.
//!
//! `perfetto --query`, `ferretto config check`, and everything that examines this machine call it.

use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_ipc::Address;
use ferretto_ipc::reactor::{Deadline, Events, Reactor, Token, monotonic_now};
use ferretto_proto::messages::TracingServiceState;

use crate::service::unreachable;

const SERVICE: Token = Token(0);

/// Asks the service at this socket and waits up to `patience`; returns the decoded state and its encoded form.
pub(crate) fn ask_within(
    patience: Duration,
    socket: &Address,
    scope: StateScope,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    let endpoint = ConsumerEndpoint::connect(socket).map_err(|error| unreachable(socket, &error))?;
    state_of(endpoint, scope, patience)
}

/// Asks the service at the other end of a connection and waits up to `patience`; returns the decoded state and its encoded form.
pub(crate) fn state_of(
    mut endpoint: ConsumerEndpoint,
    scope: StateScope,
    patience: Duration,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot ask the service for its state: {error}");
    endpoint
        .query_service_state(scope)
        .map_err(|error| failed(&error))?;

    let mut reactor = Reactor::new().map_err(|error| failed(&error))?;
    let mut events = Events::new();
    let deadline = Deadline::after(patience);
    endpoint.flush();
    reactor
        .register(&endpoint, SERVICE, endpoint.interest())
        .map_err(|error| failed(&error))?;
    loop {
        while let Some(event) = endpoint.next_event() {
            match event {
                ConsumerEvent::Reply {
                    reply: Ok(ConsumerReply::ServiceState { state, encoded }),
                    ..
                } => return Ok((state, encoded)),
                ConsumerEvent::Reply {
                    reply: Err(error), ..
                } => return Err(failed(&error)),
                ConsumerEvent::Disconnected(reason) => return Err(failed(&reason)),
                ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => {}
            }
        }
        if matches!(deadline, Deadline::Monotonic(at) if monotonic_now() >= at) {
            return Err(failed(&format_args!("no answer within {} s", patience.as_secs())));
        }
        reactor
            .reregister(&endpoint, SERVICE, endpoint.interest())
            .map_err(|error| failed(&error))?;
        reactor
            .wait(&mut events, Some(deadline))
            .map_err(|error| failed(&error))?;
        for ready in events.ready() {
            if ready.readable || ready.hung_up {
                endpoint.on_readable();
            }
        }
        endpoint.flush();
    }
}
