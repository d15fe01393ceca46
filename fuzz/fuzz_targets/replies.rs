//! The client's end of a connection: bytes of a hostile service, cut in any way, through `ClientConnection` with calls
//! outstanding. Every bind is answered once, and every call that wants a reply ends once.

#![no_main]

use std::collections::BTreeMap;

use ferretto_fuzz::{stream_in_pieces, take_outgoing};
use ferretto_ipc::ClientConnection;
use ferretto_ipc::client::{Call, CallId, ClientEvent, More, ServiceHandle};
use ferretto_ipc::frame::Violation;
use ferretto_ipc::transport::Connection;
use libfuzzer_sys::fuzz_target;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    Ended,
}

struct Seen {
    client: ClientConnection,
    /// Calls that want a reply.
    awaited: BTreeMap<CallId, Outcome>,
    /// Services in the order in which they were bound, and how often each was answered.
    services: Vec<(ServiceHandle, u32)>,
    violation: Option<Violation>,
}

fuzz_target!(|data: &[u8]| {
    let mut client = ClientConnection::new(1 << 20);
    let services = ["ProducerPort", "ConsumerPort"];
    let services = services
        .map(|name| (client.bind(name).expect("room"), 0))
        .to_vec();
    let mut seen = Seen {
        client,
        awaited: BTreeMap::new(),
        services,
        violation: None,
    };
    seen.call_all();
    let (_, pieces) = stream_in_pieces(data);
    for piece in pieces {
        if !seen.client.wants_input() {
            break;
        }
        seen.client.receive(piece, None);
        seen.take_events();
        take_outgoing(seen.client.outgoing());
    }
    seen.client.connection_lost();
    seen.take_events();
    assert!(
        seen.services.iter().all(|(_, answers)| *answers == 1),
        "a bind was not answered once"
    );
    let open = seen
        .awaited
        .iter()
        .find(|(_, outcome)| **outcome == Outcome::Open);
    assert_eq!(open, None, "a call never ended");
});

impl Seen {
    /// Calls that are answered once, with a stream, and not at all.
    fn call_all(&mut self) {
        let arguments = || b"\x08\x01".to_vec();
        for (service, _) in &self.services {
            for method in ["InitializeConnection", "ReadBuffers", "GetAsyncCommand"] {
                let call = self
                    .client
                    .invoke(*service, Call::new(method, arguments()))
                    .expect("room");
                self.awaited.insert(call, Outcome::Open);
            }
            let silent = Call::new("CommitData", arguments()).without_reply();
            self.client.invoke(*service, silent).expect("room");
        }
    }

    /// Takes events until there are none. When a service is bound, or is not, everything is called once more.
    fn take_events(&mut self) {
        let mut call_again = false;
        loop {
            let event = match self.client.next_event() {
                Ok(Some(event)) => event,
                Ok(None) if std::mem::take(&mut call_again) => {
                    self.call_all();
                    continue;
                }
                Ok(None) => return,
                Err(violation) => {
                    assert_eq!(
                        self.violation.replace(violation),
                        None,
                        "a violation was told twice"
                    );
                    continue;
                }
            };
            let (call, ended) = match event {
                ClientEvent::Bound(service) | ClientEvent::BindFailed(service) => {
                    let entry = self.services.iter_mut().find(|(handle, _)| *handle == service);
                    entry.expect("a service of ours").1 += 1;
                    call_again = true;
                    continue;
                }
                ClientEvent::Reply { call, more, .. } => (call, more == More::Last),
                // The client may say that a call without a reply cannot be made.
                ClientEvent::Failed { call, .. } if !self.awaited.contains_key(&call) => continue,
                ClientEvent::Failed { call, .. } => (call, true),
            };
            let outcome = self
                .awaited
                .get_mut(&call)
                .expect("a call of ours that wants a reply");
            assert_eq!(*outcome, Outcome::Open, "an event of a call that had ended");
            if ended {
                *outcome = Outcome::Ended;
            }
        }
    }
}
