//! Our client against upstream's service, and upstream's client against our host.

#![allow(clippy::unwrap_used)]

mod reference;

use std::process::Stdio;

use ferretto_ipc::client::{Call, CallError, ClientEvent, More, ServiceHandle};
use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply};
use ferretto_ipc::ports::{CONSUMER_PORT, ConsumerMethod, PRODUCER_PORT, ServiceDescriptor};
use ferretto_ipc::reactor::{Deadline, Events, Interest, Token};
use ferretto_ipc::transport::ReadEnd;
use ferretto_ipc::{Address, ClientConnection, HostConnection, Listener, Reactor, Stream};
use ferretto_proto::messages::{
    Message as _, QueryServiceStateResponse, TracingServiceState, tracing_service_state,
};
use reference::{Reference, Running};

/// Long enough for a loaded machine; a test that reaches it fails.
fn patience() -> Deadline {
    Deadline::after(std::time::Duration::from_secs(120))
}

/// A client on a socket of its own loop.
struct Client {
    reactor: Reactor,
    stream: Stream,
    connection: ClientConnection,
}

const SOCKET: Token = Token(0);

impl Client {
    fn connect(address: &Address) -> Client {
        let reactor = Reactor::new().unwrap();
        let stream = Stream::connect(address).unwrap();
        reactor.register(&stream, SOCKET, Interest::Both).unwrap();
        Client {
            reactor,
            stream,
            connection: ClientConnection::new(1 << 20),
        }
    }

    /// Runs until `found` makes something of an event.
    fn until<T>(&mut self, mut found: impl FnMut(ClientEvent<'_>) -> Option<T>) -> T {
        let deadline = patience();
        let mut events = Events::new();
        let mut scratch = vec![0; 65536];
        loop {
            while let Some(event) = self.connection.next_event().unwrap() {
                if let Some(result) = found(event) {
                    return result;
                }
            }
            self.stream.flush(self.connection.outgoing()).unwrap();
            self.reactor
                .reregister(&self.stream, SOCKET, self.connection.interest())
                .unwrap();
            self.reactor.wait(&mut events, Some(deadline)).unwrap();
            assert!(!events.ready().is_empty(), "the service does not answer");
            let end = self.stream.read_into(&mut self.connection, &mut scratch).unwrap();
            assert_ne!(end, ReadEnd::Closed, "the service hung up");
        }
    }

    fn bind(&mut self, service: &str) -> ServiceHandle {
        let handle = self.connection.bind(service).unwrap();
        self.until(|event| match event {
            ClientEvent::Bound(bound) => (bound == handle).then_some(()),
            other => panic!("{other:?}"),
        });
        handle
    }
}

fn lists_every_method_we_know_of(client: &mut Client, service: &ServiceDescriptor) {
    let handle = client.bind(service.name);
    let listed = client.connection.methods(handle);
    for method in service.methods {
        assert!(listed.contains(method), "{} lists {listed:?}", service.name);
    }
}

#[test]
fn upstreams_service_lists_the_methods_that_we_know() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    lists_every_method_we_know_of(&mut Client::connect(&sockets.consumer()), &CONSUMER_PORT);
    lists_every_method_we_know_of(&mut Client::connect(&sockets.producer()), &PRODUCER_PORT);
}

#[test]
fn upstreams_service_answers_calls_and_streams() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let _traced = sockets.start_traced();
    let mut client = Client::connect(&sockets.consumer());
    let service = client.bind(CONSUMER_PORT.name);
    let query = Call::new(ConsumerMethod::QueryServiceState.name(), Vec::new());
    let query = client.connection.invoke(service, query).unwrap();
    let state = client.until(|event| match event {
        ClientEvent::Reply {
            call,
            payload,
            more: More::Last,
            fd: None,
        } if call == query => Some(QueryServiceStateResponse::decode_from_slice(payload).unwrap()),
        other => panic!("{other:?}"),
    });
    assert!(
        state
            .service_state
            .as_option()
            .unwrap()
            .tracing_service_version
            .is_some()
    );

    // Nobody is attached, so there is nothing to detach from: a rejected call.
    let detach = Call::new(ConsumerMethod::Detach.name(), Vec::new());
    let detach = client.connection.invoke(service, detach).unwrap();
    client.until(|event| match event {
        ClientEvent::Failed {
            call,
            error: CallError::Rejected,
        } if call == detach => Some(()),
        other => panic!("{other:?}"),
    });
}

#[test]
fn upstreams_command_line_queries_our_host() {
    let Some(reference) = Reference::find() else {
        return;
    };
    let sockets = reference.sockets();
    let listener = Listener::bind(&sockets.consumer()).unwrap();
    let mut perfetto = Running(
        sockets
            .command("perfetto")
            .arg("--query")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );

    static SERVICES: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];
    const LISTENER: Token = Token(0);
    const CLIENT: Token = Token(1);
    let mut reactor = Reactor::new().unwrap();
    reactor.register(&listener, LISTENER, Interest::Readable).unwrap();
    let mut events = Events::new();
    let mut scratch = vec![0; 65536];
    let mut client = None;
    let deadline = patience();
    let mut queried = false;
    loop {
        reactor.wait(&mut events, Some(deadline)).unwrap();
        assert!(!events.ready().is_empty(), "perfetto does not call");
        if client.is_none() {
            let stream = listener.accept().unwrap().unwrap();
            let peer = stream.peer_credentials().unwrap().unwrap();
            assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
            reactor.register(&stream, CLIENT, Interest::Readable).unwrap();
            let host = HostConnection::new(&SERVICES, PeerIdentitySource::Kernel, HostLimits::default());
            client = Some((stream, host));
            continue;
        }
        let Some((stream, host)) = &mut client else {
            continue;
        };
        let end = stream.read_into(host, &mut scratch).unwrap();
        host.begin_turn();
        while let Some(request) = host.next_request().unwrap() {
            assert_eq!(request.method, ConsumerMethod::QueryServiceState.name());
            let to = request.reply_to;
            // In two parts, which the client has to join.
            for (name, reply) in [
                ("first", Reply::more as fn(Vec<u8>) -> Reply),
                ("second", Reply::last),
            ] {
                let state = TracingServiceState {
                    tracing_service_version: Some("a ferretto host".to_owned()),
                    producers: vec![tracing_service_state::Producer {
                        id: Some(1),
                        name: Some(format!("the {name} producer")),
                        ..Default::default()
                    }],
                    ..Default::default()
                };
                let response = QueryServiceStateResponse {
                    service_state: ferretto_proto::messages::MessageField::some(state),
                    ..Default::default()
                };
                host.reply(to, reply(response.encode_to_vec())).unwrap();
            }
            queried = true;
        }
        if end == ReadEnd::Closed {
            break;
        }
        stream.flush(host.outgoing()).unwrap();
        reactor.reregister(&*stream, CLIENT, host.interest()).unwrap();
    }
    assert!(queried);
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut perfetto.0.stdout.take().unwrap(), &mut printed).unwrap();
    for expected in ["a ferretto host", "the first producer", "the second producer"] {
        assert!(printed.contains(expected), "{printed}");
    }
}
