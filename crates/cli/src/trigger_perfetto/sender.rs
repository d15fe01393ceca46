//! Sends triggers to the service, as a producer without data sources. `trigger_perfetto` and `perfetto` call it.

use std::time::Duration;

use ferretto_client::producer::{
    ConnectError, Disconnect, ProducerEndpoint, ProducerEvent, ProducerOptions, RequestError,
};
use ferretto_ipc::Address;
use ferretto_ipc::client::InvokeError;
use ferretto_ipc::frame::MAX_PAYLOAD;
use ferretto_ipc::ports::ProducerMethod;
use ferretto_ipc::reactor::{Deadline, Events, Reactor, ReactorError, Token, monotonic_now};
use ferretto_ipc::socket_names::{SocketNameError, producer_address};

/// The sender's name in traces. A trigger's `producer_name_regex` may require it, so it is upstream's.
const PRODUCER_NAME: &str = "perfetto_cmd_producer";
/// The time that the service has to answer.
const PATIENCE: Duration = Duration::from_secs(10);
const SERVICE: Token = Token(0);

/// The reason why the service does not have the triggers, or may not have them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Name(#[from] SocketNameError),
    #[error("no tracing service listens for producers at {0}: nothing waits for triggers")]
    NoService(Address),
    #[error("cannot connect to the tracing service: {0}")]
    Connect(ConnectError),
    #[error("cannot activate the triggers: {0}")]
    Invoke(#[from] InvokeError),
    #[error("some triggers cannot be sent: {0}; the others are activated")]
    Unsent(InvokeError),
    #[error("cannot activate the triggers: {0}")]
    Request(RequestError),
    #[error("cannot activate the triggers: {0}")]
    Disconnected(Disconnect),
    #[error("the tracing service has not taken the triggers within {} s", PATIENCE.as_secs())]
    TimedOut,
    #[error(transparent)]
    Reactor(#[from] ReactorError),
}

/// Activates triggers at the service with the usual address, or with the one in `PERFETTO_PRODUCER_SOCK_NAME`. The service has received them when
/// this returns.
pub(crate) fn send(triggers: &[String]) -> Result<(), SendError> {
    let address = producer_address()?;
    let options = ProducerOptions {
        name: PRODUCER_NAME.to_owned(),
        sdk_version: crate::VERSION.to_owned(),
        ..ProducerOptions::default()
    };
    let mut endpoint = ProducerEndpoint::connect(&address, options).map_err(|error| match error {
        ConnectError::Transport(transport) if transport.is_unreachable() => SendError::NoService(address),
        error => SendError::Connect(error),
    })?;
    let mut unsent = None;
    for request in requests(triggers) {
        if let Err(error) = endpoint.activate_triggers(request) {
            unsent.get_or_insert(SendError::Unsent(error));
        }
    }
    let last = endpoint.sync()?;
    endpoint.flush();

    let mut reactor = Reactor::new()?;
    let mut events = Events::new();
    let deadline = Deadline::after(PATIENCE);
    reactor.register(&endpoint, SERVICE, endpoint.interest())?;
    loop {
        while let Some(event) = endpoint.next_event() {
            match event {
                ProducerEvent::Synced(call) if call == last => return unsent.map_or(Ok(()), Err),
                ProducerEvent::RequestFailed {
                    method: ProducerMethod::ActivateTriggers,
                    reason,
                } => return Err(SendError::Request(reason)),
                ProducerEvent::Disconnected(reason) => return Err(SendError::Disconnected(reason)),
                ProducerEvent::Connected(_)
                | ProducerEvent::Command(_)
                | ProducerEvent::Synced(_)
                | ProducerEvent::Committed(_)
                | ProducerEvent::RequestFailed { .. } => {}
            }
        }
        if matches!(deadline, Deadline::Monotonic(at) if monotonic_now() >= at) {
            return Err(SendError::TimedOut);
        }
        reactor.reregister(&endpoint, SERVICE, endpoint.interest())?;
        reactor.wait(&mut events, Some(deadline))?;
        for ready in events.ready() {
            if ready.readable || ready.hung_up {
                endpoint.on_readable();
            }
        }
        endpoint.flush();
    }
}

/// Divides the triggers so that each part fits into a request, except for single names that are too long.
fn requests(triggers: &[String]) -> Vec<&[String]> {
    /// The tag and the length of a name.
    const OVERHEAD: usize = 8;
    let mut parts = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (index, trigger) in triggers.iter().enumerate() {
        let more = trigger.len() + OVERHEAD;
        if size + more > MAX_PAYLOAD && index > start {
            parts.push(&triggers[start..index]);
            (start, size) = (index, 0);
        }
        size += more;
    }
    parts.push(&triggers[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_sent_in_several_requests_in_order() {
        let names: Vec<String> = (0..300).map(|number| format!("{number:01000}")).collect();
        let parts = requests(&names);
        assert_eq!(parts.concat(), names);
        assert_eq!(parts.len(), 3);
        for part in parts {
            let bytes: usize = part.iter().map(|name| name.len() + 3).sum();
            assert!(bytes <= MAX_PAYLOAD);
        }
    }

    #[test]
    fn a_name_too_long_for_a_request_holds_up_no_other() {
        let names = ["a".to_owned(), "b".repeat(MAX_PAYLOAD), "c".to_owned()];
        assert_eq!(requests(&names), [&names[..1], &names[1..2], &names[2..]]);
    }
}
