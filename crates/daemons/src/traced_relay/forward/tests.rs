//! A pair between two sockets, with the reactor that the relay uses.

use std::os::fd::AsFd;

use ferretto_ipc::reactor::{Deadline, Events};
use ferretto_ipc::{Address, Listener};

use ferretto_ipc::reactor::Interest;

use super::*;

const TOKENS: [Token; 2] = [Token(2), Token(3)];
const GREETING: &[u8] = b"greeting";

/// A pair, and the peers of its two ends.
struct Scene {
    reactor: Reactor,
    pair: Pair,
    producer: Stream,
    service: Stream,
    buffer: Vec<u8>,
}

impl Scene {
    fn new() -> Scene {
        let (producer, near) = Stream::pair().unwrap();
        let (service, far) = network();
        let reactor = Reactor::new().unwrap();
        let mut pair = Pair::new(7, (near, TOKENS[0]), (far, TOKENS[1]), GREETING.to_vec(), 0);
        pair.watch(&reactor);
        Scene {
            reactor,
            pair,
            producer,
            service,
            buffer: vec![0; BUFFER],
        }
    }

    /// Gives the pair turns until it waits for its peers; returns whether it lives on, and the number of turns.
    fn settle(&mut self) -> (bool, usize) {
        let mut events = Events::new();
        for turns in 0.. {
            assert!(turns < 10_000, "it never rests");
            self.reactor.wait(&mut events, Deadline::Monotonic(0)).unwrap();
            let Some(event) = events.ready().first() else {
                return (true, turns);
            };
            let end = if event.token == TOKENS[0] {
                End::Producer
            } else {
                End::Service
            };
            match self.pair.on_event(end, event, &mut self.buffer, 0) {
                Fate::Lives => self.pair.watch(&self.reactor),
                Fate::Over(_) => return (false, turns),
            }
            assert!(self.pair.waiting_bytes() <= 2 * BUFFER);
        }
        unreachable!()
    }
}

/// A connection over TCP: the service's end, and the relay's.
fn network() -> (Stream, Stream) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = free.local_addr().unwrap().to_string().parse().unwrap();
    let listener = Listener::from_fd(free.into()).unwrap();
    let ours = Stream::connect(&address).unwrap();
    let mut reactor = Reactor::new().unwrap();
    reactor.register(&listener, Token(1), Interest::Readable).unwrap();
    reactor.wait(&mut Events::new(), None).unwrap();
    (listener.accept().unwrap().unwrap(), ours)
}

/// Reads everything that has arrived; also returns whether the peer has closed.
fn received(stream: &mut Stream) -> (Vec<u8>, bool) {
    let (mut all, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        match stream.recv(&mut buffer, &mut None).unwrap() {
            Received::Bytes(count) => all.extend_from_slice(&buffer[..count]),
            Received::WouldBlock => return (all, false),
            Received::Closed => return (all, true),
        }
    }
}

/// Reads until this many bytes have arrived.
fn received_bytes(scene: &mut Scene, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        scene.settle();
        all.extend(received(&mut scene.service).0);
    }
    all
}

/// Writes until the socket and the pair take no more; returns what was taken.
fn stuff(scene: &mut Scene, from: impl Fn(&mut Scene) -> &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes: Vec<u8> = (all.len()..all.len() + 50_000).map(|n| (n % 251) as u8).collect();
        let taken = from(scene).write(&bytes).unwrap();
        all.extend_from_slice(&bytes[..taken]);
        let (lives, _) = scene.settle();
        assert!(lives);
        if taken == 0 {
            return all;
        }
    }
}

/// Ends this peer.
fn gone(stream: &mut Stream) {
    std::mem::replace(stream, Stream::pair().unwrap().0).hang_up();
}

#[test]
fn bytes_pass_both_ways_after_the_greeting() {
    let mut scene = Scene::new();
    scene.producer.write(b"up").unwrap();
    assert_eq!(received_bytes(&mut scene, GREETING.len() + 2), b"greetingup");
    scene.service.write(b"down").unwrap();
    let mut down = Vec::new();
    while down.len() < 4 {
        scene.settle();
        down.extend(received(&mut scene.producer).0);
    }
    assert_eq!(down, b"down");
    assert_eq!(scene.pair.waiting_bytes(), 0);
    assert_eq!(
        scene.pair.up.waiting.capacity(),
        0,
        "an idle pair keeps no memory"
    );
    assert_eq!(scene.pair.deadline(), None);
}

#[test]
fn a_service_that_does_not_read_stops_its_producer_and_what_was_sent_before_the_end_arrives() {
    let mut scene = Scene::new();
    let sent = stuff(&mut scene, |scene| &mut scene.producer);
    assert!(scene.pair.up.is_stuck());
    // The other direction goes on.
    scene.service.write(b"down").unwrap();
    scene.settle();
    assert_eq!(received(&mut scene.producer).0, b"down");
    // The producer hangs up. The kernel reports this repeatedly, so the pair must wait for the service only.
    gone(&mut scene.producer);
    let (lives, turns) = scene.settle();
    assert!(lives && turns < 5, "{turns} turns");
    let (mut all, mut is_closed) = (Vec::new(), false);
    while !is_closed {
        scene.settle();
        let (bytes, closed) = received(&mut scene.service);
        all.extend(bytes);
        is_closed = closed;
    }
    assert!(
        all == [GREETING, &sent[..]].concat(),
        "{} of {}",
        all.len(),
        sent.len()
    );
    assert!(scene.pair.deadline().is_some(), "the service has to close soon");
    // Nobody gets the service's last replies, and they do not disturb the data under way.
    scene.service.write(b"late").unwrap();
    assert!(scene.settle().0);
    gone(&mut scene.service);
    let mut patience = 0;
    while scene.settle().0 {
        patience += 1;
        assert!(patience < 1_000_000, "the end of the service ends the pair");
    }
}

#[test]
fn a_producer_that_does_not_read_stops_its_service() {
    let mut scene = Scene::new();
    let sent = stuff(&mut scene, |scene| &mut scene.service);
    let mut all = Vec::new();
    while all.len() < sent.len() {
        all.extend(received(&mut scene.producer).0);
        scene.settle();
    }
    assert!(all == sent);
}

#[test]
fn what_a_service_sent_before_it_closed_reaches_the_producer() {
    let mut scene = Scene::new();
    scene.settle();
    scene.service.write(b"last").unwrap();
    scene.service.end_output();
    let mut patience = 0;
    while scene.settle().0 {
        patience += 1;
        assert!(patience < 1_000_000, "the end of the service ends the pair");
    }
    scene.pair.close(&scene.reactor);
    assert_eq!(received(&mut scene.producer), (b"last".to_vec(), true));
}

#[test]
fn descriptors_stay_behind() {
    let mut scene = Scene::new();
    let (kept, passed) = rustix::pipe::pipe().unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let fds = [passed.as_fd()];
    control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
    let slices = [std::io::IoSlice::new(b"up")];
    let flags = rustix::net::SendFlags::empty();
    rustix::net::sendmsg(&scene.producer, &slices, &mut control, flags).unwrap();
    drop(passed);
    assert_eq!(received_bytes(&mut scene, GREETING.len() + 2), b"greetingup");
    // The pipe ends because all copies are closed. The read waits for the thread that closes them.
    assert_eq!(rustix::io::read(&kept, &mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_pair_waits_neither_for_a_connection_nor_for_the_end_for_ever() {
    let scene = Scene::new();
    let deadline = scene.pair.deadline().unwrap();
    assert!(!scene.pair.is_too_late(deadline - 1));
    assert!(scene.pair.is_too_late(deadline));
}
