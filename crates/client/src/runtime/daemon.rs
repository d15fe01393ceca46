//! The turns of a daemon: a program with one event loop, whose only connection is a socket at a known address.
//!
//! `examples/load_average.rs` is a complete example.

use ferretto_ipc::Address;
use ferretto_ipc::reactor::{Events, Reactor, Token, Watch};

use super::{Connected, Event, Runtime};
use crate::data_source::ConnectionId;
use crate::producer::ProducerEndpoint;

/// The connection to the service, in the daemon's event loop.
#[derive(Debug)]
pub struct ServiceSocket {
    connection: ConnectionId,
    address: Address,
    watch: Watch,
}

impl ServiceSocket {
    /// The service at `address`. Events of the socket come with `token`.
    pub fn new(connection: ConnectionId, address: Address, token: Token) -> ServiceSocket {
        ServiceSocket {
            connection,
            address,
            watch: Watch::new(token),
        }
    }

    /// The address of the service.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Gives the runtime its turn after `events`, which may be none, and has the reactor watch the socket. Passes events about the connection to
    /// `tell`. To be called before each wait until [`Runtime::deadlines`].
    pub fn turn(
        &mut self,
        runtime: &mut Runtime,
        reactor: &Reactor,
        events: &Events,
        mut tell: impl FnMut(&Runtime, &Event),
    ) {
        runtime.take_acknowledgements();
        runtime.connect_if_due(self.connection, |options| {
            let endpoint = ProducerEndpoint::connect(&self.address, options);
            endpoint.map(Connected::new).map_err(|error| error.to_string())
        });
        let token = self.watch.token();
        if events.ready().iter().any(|event| event.token == token) {
            runtime.on_readable(self.connection);
        }
        runtime.serve(self.connection);
        runtime.settle();
        while let Some(event) = runtime.next_event() {
            if let Event::Disconnected {
                closed: Some(closed), ..
            } = &event
            {
                self.watch.end(reactor, closed);
            }
            tell(runtime, &event);
        }
        runtime.interest(self.connection, |fd, interest| {
            self.watch.update(reactor, Some((fd, interest)));
        });
    }
}
