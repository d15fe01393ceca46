//! Asks a service for its state; and the connection for this and other questions whose answers a thread waits for.
//!
//! `perfetto --query`, `ferretto config check`, and everything that examines this machine ask for the state. The recorder reads clones through a
//! [`Conversation`].

use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply, StateScope};
use ferretto_ipc::Address;
use ferretto_ipc::reactor::{Deadline, Events, Reactor, ReactorError, Token, monotonic_now};
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
    endpoint: ConsumerEndpoint,
    scope: StateScope,
    patience: Duration,
) -> Result<(Box<TracingServiceState>, Vec<u8>), String> {
    let failed = |error: &dyn std::fmt::Display| format!("cannot ask the service for its state: {error}");
    let mut conversation = Conversation::over(endpoint).map_err(|error| failed(&error))?;
    conversation
        .endpoint
        .query_service_state(scope)
        .map_err(|error| failed(&error))?;
    let until = monotonic_now().saturating_add(patience.as_nanos() as u64);
    loop {
        let left = Duration::from_nanos(until.saturating_sub(monotonic_now()));
        match conversation.next_event(left) {
            Ok(ConsumerEvent::Reply {
                reply: Ok(ConsumerReply::ServiceState { state, encoded }),
                ..
            }) => return Ok((state, encoded)),
            Ok(ConsumerEvent::Reply {
                reply: Err(error), ..
            }) => return Err(failed(&error)),
            Ok(ConsumerEvent::Disconnected(reason)) => return Err(failed(&reason)),
            Ok(ConsumerEvent::Connected | ConsumerEvent::Reply { .. }) => {}
            Err(Silence::TooLong) => {
                return Err(failed(&format_args!("no answer within {} s", patience.as_secs())));
            }
            Err(Silence::Reactor(error)) => return Err(failed(&error)),
        }
    }
}

/// A connection to a service whose answers a thread waits for.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) endpoint: ConsumerEndpoint,
    reactor: Reactor,
    events: Events,
}

/// The reason why there is no event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Silence {
    #[error("the service does not answer")]
    TooLong,
    #[error(transparent)]
    Reactor(#[from] ReactorError),
}

impl Conversation {
    /// Begins one over this connection.
    ///
    /// # Errors
    /// If there are no descriptors to be had.
    pub(crate) fn over(endpoint: ConsumerEndpoint) -> Result<Conversation, ReactorError> {
        let reactor = Reactor::new()?;
        reactor.register(&endpoint, SERVICE, endpoint.interest())?;
        Ok(Conversation {
            endpoint,
            reactor,
            events: Events::new(),
        })
    }

    /// Sends what was asked, and waits up to `patience` for the next event.
    ///
    /// # Errors
    /// If there is none in this time, or waiting fails.
    pub(crate) fn next_event(&mut self, patience: Duration) -> Result<ConsumerEvent, Silence> {
        let until = Deadline::after(patience);
        self.endpoint.flush();
        loop {
            if let Some(event) = self.endpoint.next_event() {
                return Ok(event);
            }
            if matches!(until, Deadline::Monotonic(at) if monotonic_now() >= at) {
                return Err(Silence::TooLong);
            }
            self.reactor
                .reregister(&self.endpoint, SERVICE, self.endpoint.interest())?;
            self.reactor.wait(&mut self.events, Some(until))?;
            for ready in self.events.ready() {
                if ready.readable || ready.hung_up {
                    self.endpoint.on_readable();
                }
            }
            self.endpoint.flush();
        }
    }
}
