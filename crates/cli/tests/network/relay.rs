//! A relay like `traced_relay`: it forwards producers' connections to a service over a network, declares their identities first, and compares clocks.
//! It pretends to be on another machine, whose clocks differ from this one's.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use ferretto_ipc::client::{Call, CallError, ClientEvent, ServiceHandle};
use ferretto_ipc::host::PeerIdentity;
use ferretto_ipc::ports::RELAY_PORT;
use ferretto_ipc::transport::{Flushed, ReadEnd};
use ferretto_ipc::{Address, ClientConnection, Stream};
use ferretto_proto::messages::sync_clock_request::{Clock, Phase};
use ferretto_proto::messages::{InitRelayRequest, Message, SyncClockRequest, SystemInfo};
use rustix::event::{PollFd, PollFlags};
use rustix::time::ClockId;

use crate::support::PATIENCE;

/// `BuiltinClock` numbers of the clocks that the relay compares.
const CLOCKS: [(u32, ClockId); 3] = [
    (6, ClockId::Boottime),
    (1, ClockId::Realtime),
    (3, ClockId::Monotonic),
];

/// Returns the reading of a clock of this machine, in nanoseconds.
pub(crate) fn reading(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A connection to a service whose calls are answered one by one.
pub(crate) struct Client {
    connection: ClientConnection,
    stream: Stream,
}

/// The outcome of a call.
enum Outcome {
    Bound(ServiceHandle),
    NotBound,
    Answered(Vec<u8>),
    Failed(CallError),
}

impl Client {
    pub(crate) fn connect(address: &Address) -> Client {
        Client {
            connection: ClientConnection::new(1 << 20),
            stream: Stream::connect(address).unwrap(),
        }
    }

    /// Declares the identity of this end.
    pub(crate) fn declare(&mut self, identity: &PeerIdentity) {
        self.connection.set_peer_identity(identity).unwrap();
    }

    /// Binds a service; `None` if the other end lacks it.
    pub(crate) fn bind(&mut self, service: &str) -> Option<ServiceHandle> {
        self.connection.bind(service).unwrap();
        match self.next() {
            Outcome::Bound(service) => Some(service),
            Outcome::NotBound => None,
            _ => panic!("another outcome than of the bind"),
        }
    }

    /// Calls a method, and waits for the answer.
    pub(crate) fn call(
        &mut self,
        service: ServiceHandle,
        method: &'static str,
        request: &impl Message,
    ) -> Result<Vec<u8>, CallError> {
        self.call_encoded(service, method, request.encode_to_vec())
    }

    /// Calls a method with any bytes as its request.
    pub(crate) fn call_encoded(
        &mut self,
        service: ServiceHandle,
        method: &'static str,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        self.send(service, method, request);
        match self.next() {
            Outcome::Answered(reply) => Ok(reply),
            Outcome::Failed(error) => Err(error),
            _ => panic!("another outcome than of the call"),
        }
    }

    /// Calls a method whose answers come later.
    pub(crate) fn send(&mut self, service: ServiceHandle, method: &'static str, request: Vec<u8>) {
        let call = Call::new(method, request);
        self.connection.invoke(service, call).unwrap();
        self.flush();
    }

    /// Returns the next answer to any call.
    pub(crate) fn answer(&mut self) -> Vec<u8> {
        match self.next() {
            Outcome::Answered(reply) => reply,
            _ => panic!("no answer"),
        }
    }

    /// Whether the other end hangs up within a while.
    pub(crate) fn is_hung_up_on(&mut self) -> bool {
        loop {
            if self.exchange() == ReadEnd::Closed {
                return true;
            }
        }
    }

    fn next(&mut self) -> Outcome {
        loop {
            match self.connection.next_event().unwrap() {
                Some(ClientEvent::Bound(service)) => return Outcome::Bound(service),
                Some(ClientEvent::BindFailed(_)) => return Outcome::NotBound,
                Some(ClientEvent::Reply { payload, .. }) => return Outcome::Answered(payload.to_vec()),
                Some(ClientEvent::Failed { error, .. }) => return Outcome::Failed(error),
                None => {}
            }
            if self.exchange() == ReadEnd::Closed {
                self.connection.connection_lost();
            }
        }
    }

    fn flush(&mut self) {
        loop {
            match self.stream.flush(self.connection.outgoing()) {
                Ok(Flushed::All) => return,
                Ok(Flushed::WouldBlock) => self.wait(PollFlags::OUT),
                // The peer has hung up, but may have sent data before that are still to be read.
                Err(_) => return self.connection.outgoing().clear(),
            }
        }
    }

    /// Sends pending data, and reads once there are data.
    fn exchange(&mut self) -> ReadEnd {
        self.flush();
        self.wait(PollFlags::IN);
        let mut scratch = vec![0; 1 << 17];
        self.stream
            .read_into(&mut self.connection, &mut scratch)
            .unwrap_or(ReadEnd::Closed)
    }

    fn wait(&self, flags: PollFlags) {
        let mut polled = [PollFd::new(&self.stream, flags)];
        let ready = rustix::event::poll(&mut polled, Some(&PATIENCE.try_into().unwrap())).unwrap();
        assert!(ready > 0, "the service says nothing");
    }
}

/// A pretended machine.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub(crate) hint: String,
    pub(crate) name: String,
    /// The time in nanoseconds by which its clocks are behind ours.
    pub(crate) behind: u64,
    pub(crate) processors: u32,
}

impl Guest {
    pub(crate) fn identity(&self, pid: i32, uid: i32) -> PeerIdentity {
        PeerIdentity {
            pid,
            uid,
            machine_id_hint: self.hint.clone(),
            machine_name: self.name.clone(),
        }
    }

    /// Returns the `SystemInfo` of the machine.
    pub(crate) fn system(&self) -> InitRelayRequest {
        InitRelayRequest {
            system_info: SystemInfo {
                num_cpus: Some(self.processors),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        }
    }

    /// Returns the present readings of the machine's clocks.
    pub(crate) fn readings(&self, phase: Phase) -> SyncClockRequest {
        let clocks = CLOCKS.map(|(id, clock)| Clock {
            clock_id: Some(id),
            timestamp: Some(reading(clock) - self.behind),
            ..Default::default()
        });
        SyncClockRequest {
            phase: Some(phase),
            clocks: clocks.into(),
            ..Default::default()
        }
    }

    /// Connects the relay's own client, which describes the machine and compares clocks in one round.
    pub(crate) fn introduce(&self, address: &Address) -> Client {
        let mut client = Client::connect(address);
        client.declare(&self.identity(1, 0));
        let port = client.bind(RELAY_PORT.name).expect("a relay port");
        client.call(port, "InitRelay", &self.system()).unwrap();
        for phase in [Phase::PING, Phase::UPDATE] {
            client.call(port, "SyncClock", &self.readings(phase)).unwrap();
        }
        client
    }
}

/// A running relay. Its producers lose their connections when it ends.
pub(crate) struct Relay {
    socket: PathBuf,
    ending: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
    _own: Client,
}

impl Relay {
    /// Listens for producers on `socket`, and forwards them to `address`.
    pub(crate) fn start(guest: &Guest, socket: &Path, address: &Address) -> Relay {
        let own = guest.introduce(address);
        let listener = UnixListener::bind(socket).unwrap();
        let ending = Arc::new(AtomicBool::new(false));
        let (guest, address, ended) = (guest.clone(), address.clone(), Arc::clone(&ending));
        let acceptor = thread::spawn(move || {
            let mut forwarded = Vec::new();
            while let Ok((producer, _)) = listener.accept() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                forwarded.push(Forwarded::start(&guest, producer, &address));
            }
        });
        Relay {
            socket: socket.to_owned(),
            ending,
            acceptor: Some(acceptor),
            _own: own,
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // This wakes the thread.
        let _ = UnixStream::connect(&self.socket);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// A producer's connection and its connection to the service, with a thread for each direction.
struct Forwarded {
    producer: UnixStream,
    service: TcpStream,
    threads: [Option<JoinHandle<()>>; 2],
}

impl Forwarded {
    fn start(guest: &Guest, producer: UnixStream, address: &Address) -> Forwarded {
        let peer = Stream::from_fd(OwnedFd::from(producer.try_clone().unwrap())).unwrap();
        let credentials = peer.peer_credentials().unwrap().unwrap();
        let identity = guest.identity(credentials.pid.unwrap_or(-1), credentials.uid as i32);
        let Address::Tcp { host, port } = address else {
            panic!("{address}")
        };
        let service = TcpStream::connect((host.as_str(), *port)).unwrap();
        service.set_nodelay(true).unwrap();
        let mut connection = ClientConnection::new(1 << 20);
        connection.set_peer_identity(&identity).unwrap();
        // A new connection takes so little data at once.
        let mut stream = Stream::from_fd(OwnedFd::from(service.try_clone().unwrap())).unwrap();
        assert_eq!(stream.flush(connection.outgoing()).unwrap(), Flushed::All);
        producer.set_nonblocking(false).unwrap();
        service.set_nonblocking(false).unwrap();
        let (mut from, mut to) = (producer.try_clone().unwrap(), service.try_clone().unwrap());
        let upwards = thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut from, mut to) = (service.try_clone().unwrap(), producer.try_clone().unwrap());
        let downwards = thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
        Forwarded {
            producer,
            service,
            threads: [Some(upwards), Some(downwards)],
        }
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        let _ = self.producer.shutdown(Shutdown::Both);
        let _ = self.service.shutdown(Shutdown::Both);
        for thread in self.threads.iter_mut().filter_map(Option::take) {
            let _ = thread.join();
        }
    }
}
