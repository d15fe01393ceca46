//! A client and a host joined without sockets, for the tests of both.

use crate::client::{Call, CallError, CallId, ClientConnection, ClientEvent, More, ServiceHandle};
use crate::host::{HostConnection, HostLimits, PeerIdentity, PeerIdentitySource};
use crate::outgoing::OutgoingQueue;
use crate::passed_fd::PassedFd;
use crate::ports::ServiceDescriptor;
use crate::transport::Connection;
use crate::wire_protocol;

pub(crate) static GREETER: ServiceDescriptor = ServiceDescriptor {
    name: "Greeter",
    methods: &["SayHello", "CountTo", "TakeFile"],
};
pub(crate) static OTHER: ServiceDescriptor = ServiceDescriptor {
    name: "Other",
    methods: &["Nothing"],
};
static SERVICES: [&ServiceDescriptor; 2] = [&OTHER, &GREETER];

/// Moves everything that waits in `queue` to `receive`, with one read for each write.
pub(crate) fn carry(queue: &mut OutgoingQueue, mut receive: impl FnMut(&[u8], Option<PassedFd>)) {
    while let Some(transmit) = queue.next_transmit() {
        let bytes: Vec<u8> = transmit
            .slices
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect();
        let fd = transmit.fd.map(|fd| fd.try_clone_to_owned().unwrap().into());
        receive(&bytes, fd);
        queue.sent(bytes.len());
    }
}

/// A client event that owns its payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Bound,
    BindFailed,
    Reply(CallId, Vec<u8>, More),
    ReplyWithFd(CallId),
    Failed(CallId, CallError),
}

pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) host: HostConnection,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(PeerIdentitySource::Kernel, HostLimits::default())
    }

    pub(crate) fn with(identity: PeerIdentitySource, limits: HostLimits) -> Pair {
        Pair {
            client: ClientConnection::new(1 << 20),
            host: HostConnection::new(&SERVICES, identity, limits),
        }
    }

    /// A pair whose client has bound the greeter.
    pub(crate) fn bound() -> (Pair, ServiceHandle) {
        let mut pair = Pair::new();
        let greeter = pair.client.bind("Greeter").unwrap();
        pair.carry_to_host();
        pair.answer_nothing();
        assert_eq!(pair.events(), [Seen::Bound]);
        (pair, greeter)
    }

    pub(crate) fn carry_to_host(&mut self) {
        carry(self.client.outgoing(), |bytes, fd| self.host.receive(bytes, fd));
        self.host.begin_turn();
    }

    pub(crate) fn carry_to_client(&mut self) {
        carry(self.host.outgoing(), |bytes, fd| self.client.receive(bytes, fd));
    }

    /// Lets the host handle its input, and checks that none of it is a call.
    pub(crate) fn answer_nothing(&mut self) {
        assert!(self.host.next_request().unwrap().is_none());
    }

    /// The identity that the host has for the client when the client calls.
    pub(crate) fn caller(&mut self) -> Option<PeerIdentity> {
        let call = wire_protocol::invoke_method(9, 1, 1, true, Vec::new(), None).unwrap();
        self.host.receive(&call.parts().concat(), None);
        self.host.begin_turn();
        let request = self.host.next_request().unwrap().expect("a call");
        request.identity.cloned()
    }

    /// Carries the host's output over and takes all events.
    pub(crate) fn events(&mut self) -> Vec<Seen> {
        self.carry_to_client();
        let mut seen = Vec::new();
        while let Some(event) = self.client.next_event().unwrap() {
            seen.push(match event {
                ClientEvent::Bound(_) => Seen::Bound,
                ClientEvent::BindFailed(_) => Seen::BindFailed,
                ClientEvent::Reply {
                    call, fd: Some(_), ..
                } => Seen::ReplyWithFd(call),
                ClientEvent::Reply {
                    call, payload, more, ..
                } => Seen::Reply(call, payload.to_vec(), more),
                ClientEvent::Failed { call, error } => Seen::Failed(call, error),
            });
        }
        seen
    }

    pub(crate) fn call(&mut self, service: ServiceHandle, method: &'static str, arguments: &[u8]) -> CallId {
        self.client
            .invoke(service, Call::new(method, arguments.to_vec()))
            .unwrap()
    }
}
