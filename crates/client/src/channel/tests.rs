//! Names with several addresses: a client goes on until a service answers it.

use std::net::TcpListener;
use std::time::Duration;

use ferretto_ipc::Listener;
use ferretto_ipc::client::CallError;
use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
use ferretto_ipc::reactor::{Deadline, Events, Reactor, Token};

use super::*;
use crate::fake_service::FakeService;

static CONSUMERS: [&ServiceDescriptor; 1] = [&CONSUMER_PORT];

/// Waits until a descriptor is readable.
fn await_input(fd: &impl AsFd) {
    let mut reactor = Reactor::new().unwrap();
    reactor.register(fd, Token(0), Interest::Readable).unwrap();
    let mut events = Events::new();
    reactor
        .wait(&mut events, Deadline::after(Duration::from_secs(60)))
        .unwrap();
    assert!(!events.ready().is_empty(), "nothing comes");
}

fn accept(listener: &Listener) -> Stream {
    await_input(listener);
    listener.accept().unwrap().expect("a connection waits")
}

/// Lets a channel handle what its peer did, and tells how it ended, if it did.
fn settle(channel: &mut Channel) -> Option<Disconnect> {
    await_input(channel);
    channel.on_readable();
    loop {
        match channel.step() {
            Step::Idle => break channel.flush(),
            Step::Again | Step::Event(_) => {}
            Step::Lost(reason) => return Some(reason),
        }
    }
    None
}

/// A channel, already with a call, to listeners at these loopback addresses.
fn channel(hosts: &[&str]) -> (Channel, Vec<Listener>) {
    let listeners: Vec<TcpListener> = hosts
        .iter()
        .map(|host| TcpListener::bind((*host, 0)).unwrap())
        .collect();
    let addresses: Vec<_> = listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect();
    let stream = Stream::connect_in_turn(&addresses).unwrap();
    let listeners = listeners
        .into_iter()
        .map(|listener| Listener::from_fd(listener.into()).unwrap());
    let mut channel = Channel::bind(stream, CONSUMER_PORT.name, 4096).unwrap();
    channel
        .invoke(Call::new("QueryServiceState", b"state".to_vec()))
        .unwrap();
    (channel, listeners.collect())
}

/// How a host that is no service ends a connection.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Close,
    /// With requests unread, which resets the connection.
    Reset,
    Garbage,
}

impl Refusal {
    fn carry_out(self, stream: &mut Stream) {
        match self {
            Refusal::Close => {
                await_input(stream);
                stream.recv(&mut [0; 4096], &mut None).unwrap();
            }
            Refusal::Reset => await_input(stream),
            Refusal::Garbage => assert_eq!(stream.write(&[0xff; 64]).unwrap(), 64),
        }
    }
}

#[test]
fn a_client_goes_on_to_the_next_address_until_a_service_answers_and_its_calls_go_with_it() {
    for refusal in [Refusal::Close, Refusal::Reset, Refusal::Garbage] {
        let (mut channel, listeners) = channel(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
        for listener in &listeners[..2] {
            let mut refusing = accept(listener);
            channel.flush();
            refusal.carry_out(&mut refusing);
            if !matches!(refusal, Refusal::Garbage) {
                drop(refusing);
            }
            assert!(settle(&mut channel).is_none(), "{refusal:?}");
        }
        let stream = accept(&listeners[2]);
        channel.flush();
        await_input(&stream);
        let mut service = FakeService::over(stream, &CONSUMERS);
        assert!(service.asked().is_empty());
        assert!(settle(&mut channel).is_none(), "{refusal:?}");
        let asked = service.asked();
        let asked: Vec<_> = asked
            .iter()
            .map(|asked| (asked.method, &asked.payload[..]))
            .collect();
        assert_eq!(asked, [("QueryServiceState", &b"state"[..])], "{refusal:?}");
        // It has answered: its end is the client's.
        drop(service);
        assert!(
            matches!(settle(&mut channel), Some(Disconnect::Closed)),
            "{refusal:?}"
        );
    }
}

#[test]
fn after_the_last_address_the_client_learns_why_that_failed_and_its_calls_fail() {
    let (mut channel, listeners) = channel(&["127.0.0.1", "127.0.0.2"]);
    for listener in &listeners {
        let mut refusing = accept(listener);
        channel.flush();
        Refusal::Garbage.carry_out(&mut refusing);
        if let Some(reason) = {
            await_input(&channel);
            channel.on_readable();
            let mut failed = false;
            loop {
                match channel.step() {
                    Step::Event(ClientEvent::Failed { error, .. }) => {
                        failed = error == CallError::ConnectionLost
                    }
                    Step::Again | Step::Event(_) => {}
                    Step::Idle => break None,
                    Step::Lost(reason) => break Some((reason, failed)),
                }
            }
        } {
            assert!(matches!(reason, (Disconnect::Violation(_), true)), "{reason:?}");
            return;
        }
    }
    panic!("it is never over");
}

/// Handles what there is after the time to answer; tells how the connection ended, if it did.
fn after_silence(channel: &mut Channel) -> Option<Disconnect> {
    let due = channel.answer_due().expect("a time by which to answer");
    channel.handle_timeout(due - 1);
    assert_eq!(channel.answer_due(), Some(due));
    channel.handle_timeout(due);
    loop {
        match channel.step() {
            Step::Idle => return None,
            Step::Again | Step::Event(_) => {}
            Step::Lost(reason) => return Some(reason),
        }
    }
}

#[test]
fn a_host_that_accepts_and_says_nothing_is_given_up() {
    let (ours, _silent) = Stream::pair().unwrap();
    let mut channel = Channel::bind(ours, CONSUMER_PORT.name, 4096).unwrap();
    channel.flush();
    let reason = after_silence(&mut channel);
    assert!(matches!(reason, Some(Disconnect::Silent(_))), "{reason:?}");
    assert_eq!(channel.answer_due(), None);
    assert!(matches!(channel.step(), Step::Idle));
}

#[test]
fn silence_at_one_address_of_a_name_leads_to_the_next() {
    let (mut channel, listeners) = channel(&["127.0.0.1", "127.0.0.2"]);
    let _silent = accept(&listeners[0]);
    channel.flush();
    assert!(after_silence(&mut channel).is_none());
    let _silent_too = accept(&listeners[1]);
    channel.flush();
    let reason = after_silence(&mut channel);
    assert!(matches!(reason, Some(Disconnect::Silent(_))), "{reason:?}");
}

#[test]
fn an_address_that_is_tried_just_when_the_time_of_the_last_is_over_has_its_own_time() {
    let (mut channel, listeners) = channel(&["127.0.0.1", "127.0.0.2"]);
    drop(accept(&listeners[0]));
    // The end of the first is read at the same moment.
    await_input(&channel);
    assert!(after_silence(&mut channel).is_none());
    assert!(channel.answer_due().is_some());
    let mut service = FakeService::over(accept(&listeners[1]), &CONSUMERS);
    channel.flush();
    assert!(service.asked().is_empty());
    assert!(settle(&mut channel).is_none());
    assert_eq!(service.asked().len(), 1);
}

#[test]
fn an_answer_that_waits_to_be_read_is_in_time() {
    let (mut service, ours) = FakeService::new(&CONSUMERS);
    let mut channel = Channel::bind(ours, CONSUMER_PORT.name, 4096).unwrap();
    channel.flush();
    assert!(service.asked().is_empty());
    assert!(after_silence(&mut channel).is_none());
    assert_eq!(channel.answer_due(), None);
    // It has answered once, so it may think about the rest for as long as it likes.
    channel.handle_timeout(u64::MAX);
    assert!(matches!(channel.step(), Step::Idle));
}
