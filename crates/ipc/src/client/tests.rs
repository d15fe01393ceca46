//! A client against a host: binding, calling, and the failure of calls that cannot be made.

use std::fs::File;

use super::*;
use crate::host::{PeerIdentitySource, Reply, ReplyWanted};
use crate::pair::{Pair, Seen};

#[test]
fn binding_returns_the_methods_of_the_service() {
    let (pair, greeter) = Pair::bound();
    assert_eq!(pair.client.methods(greeter), ["CountTo", "SayHello", "TakeFile"]);
}

#[test]
fn binding_an_unknown_service_fails_and_so_do_the_calls_that_waited() {
    let mut pair = Pair::new();
    let service = pair.client.bind("NoSuchService").unwrap();
    let early = pair.call(service, "SayHello", b"");
    pair.carry_to_host();
    pair.answer_nothing();
    let unknown = || CallError::UnknownService {
        service: "NoSuchService".into(),
    };
    assert_eq!(pair.events(), [Seen::BindFailed, Seen::Failed(early, unknown())]);
    let late = pair.call(service, "SayHello", b"");
    assert_eq!(pair.events(), [Seen::Failed(late, unknown())]);
}

#[test]
fn calls_made_before_the_service_is_bound_are_sent_in_order_once_it_is() {
    let mut pair = Pair::new();
    let greeter = pair.client.bind("Greeter").unwrap();
    let first = pair.call(greeter, "SayHello", b"first");
    let second = pair.call(greeter, "SayHello", b"second");
    pair.carry_to_host();
    pair.answer_nothing();
    assert_eq!(pair.events(), [Seen::Bound]);
    pair.carry_to_host();
    for expected in [b"first".as_slice(), b"second"] {
        let request = pair.host.next_request().unwrap().unwrap();
        assert_eq!((request.method, request.payload), ("SayHello", expected));
        let to = request.reply_to;
        pair.host.reply(to, Reply::last(expected.to_vec())).unwrap();
    }
    assert_eq!(
        pair.events(),
        [
            Seen::Reply(first, b"first".into(), More::Last),
            Seen::Reply(second, b"second".into(), More::Last)
        ]
    );
}

#[test]
fn replies_find_their_calls_in_any_order() {
    let (mut pair, greeter) = Pair::bound();
    let calls: Vec<CallId> = (0..5u8)
        .map(|number| pair.call(greeter, "SayHello", &[number]))
        .collect();
    pair.carry_to_host();
    let mut requests = Vec::new();
    while let Some(request) = pair.host.next_request().unwrap() {
        requests.push((request.reply_to, request.payload.to_vec()));
    }
    for (to, payload) in requests.into_iter().rev() {
        pair.host.reply(to, Reply::last(payload)).unwrap();
    }
    let expected: Vec<Seen> = (0..5u8)
        .rev()
        .map(|n| Seen::Reply(calls[usize::from(n)], vec![n], More::Last))
        .collect();
    assert_eq!(pair.events(), expected);
}

#[test]
fn a_streamed_reply_goes_on_until_the_last_one() {
    let (mut pair, greeter) = Pair::bound();
    let call = pair.call(greeter, "CountTo", b"3");
    pair.carry_to_host();
    let to = pair.host.next_request().unwrap().unwrap().reply_to;
    pair.host.reply(to, Reply::more(b"1".into())).unwrap();
    assert_eq!(pair.events(), [Seen::Reply(call, b"1".into(), More::Follows)]);
    pair.host.reply(to, Reply::more(b"2".into())).unwrap();
    pair.host.reply(to, Reply::last(b"3".into())).unwrap();
    pair.host
        .reply(to, Reply::last(b"nobody listens".into()))
        .unwrap();
    assert_eq!(
        pair.events(),
        [
            Seen::Reply(call, b"2".into(), More::Follows),
            Seen::Reply(call, b"3".into(), More::Last)
        ]
    );
}

#[test]
fn a_method_that_the_service_does_not_list_is_a_rejected_call_and_not_a_broken_connection() {
    let (mut pair, greeter) = Pair::bound();
    let unknown = pair.call(greeter, "SayGoodbye", b"");
    let error = CallError::UnknownMethod {
        service: "Greeter".into(),
        method: "SayGoodbye",
    };
    assert_eq!(pair.events(), [Seen::Failed(unknown, error)]);
    pair.carry_to_host();
    pair.answer_nothing();
    pair.call(greeter, "SayHello", b"");
    pair.carry_to_host();
    assert_eq!(pair.host.next_request().unwrap().unwrap().method, "SayHello");
}

#[test]
fn a_rejection_fails_the_call() {
    let (mut pair, greeter) = Pair::bound();
    let call = pair.call(greeter, "SayHello", b"");
    pair.carry_to_host();
    let to = pair.host.next_request().unwrap().unwrap().reply_to;
    pair.host.reply(to, Reply::rejected()).unwrap();
    assert_eq!(pair.events(), [Seen::Failed(call, CallError::Rejected)]);
}

#[test]
fn a_rejection_says_why_if_the_host_does() {
    let (mut pair, greeter) = Pair::bound();
    let call = pair.call(greeter, "SayHello", b"");
    pair.carry_to_host();
    let to = pair.host.next_request().unwrap().unwrap().reply_to;
    pair.host
        .reply(to, Reply::rejected_for("nobody is at home".to_owned()))
        .unwrap();
    let error = CallError::Host("nobody is at home".to_owned());
    assert_eq!(pair.events(), [Seen::Failed(call, error)]);
}

#[test]
fn a_call_without_reply_gets_none() {
    let (mut pair, greeter) = Pair::bound();
    pair.client
        .invoke(greeter, Call::new("SayHello", Vec::new()).without_reply())
        .unwrap();
    pair.carry_to_host();
    let to = pair.host.next_request().unwrap().unwrap().reply_to;
    assert_eq!(to.wanted(), ReplyWanted::No);
    pair.host.reply(to, Reply::last(b"hello".into())).unwrap();
    assert!(pair.host.outgoing().is_empty());
    assert_eq!(pair.events(), []);
}

#[test]
fn descriptors_go_both_ways_each_with_its_own_message() {
    let (mut pair, greeter) = Pair::bound();
    let file = || OwnedFd::from(File::open("/dev/null").unwrap());
    pair.call(greeter, "SayHello", b"before");
    let call = pair
        .client
        .invoke(
            greeter,
            Call::new("TakeFile", b"with".into()).with_fd(Some(file())),
        )
        .unwrap();
    let after = pair.call(greeter, "SayHello", b"after");
    pair.carry_to_host();
    let mut replies = Vec::new();
    while let Some(request) = pair.host.next_request().unwrap() {
        assert_eq!(request.fd.is_some(), request.method == "TakeFile");
        replies.push(request.reply_to);
    }
    pair.host
        .reply(replies[1], Reply::last(Vec::new()).with_fd(file()))
        .unwrap();
    pair.host.reply(replies[2], Reply::last(Vec::new())).unwrap();
    assert_eq!(
        pair.events(),
        [
            Seen::ReplyWithFd(call),
            Seen::Reply(after, Vec::new(), More::Last)
        ]
    );
}

#[test]
fn a_lost_connection_fails_outstanding_calls_after_replies_that_had_arrived() {
    let (mut pair, greeter) = Pair::bound();
    let other = pair.client.bind("Other").unwrap();
    let held = pair.call(other, "Nothing", b"");
    let answered = pair.call(greeter, "SayHello", b"");
    let unanswered = pair.call(greeter, "CountTo", b"");
    // The host sees the calls of the greeter, and answers one; its answer to the bind request gets lost.
    let (mut lost, _) = Pair::bound();
    crate::pair::carry(pair.client.outgoing(), |bytes, fd| lost.host.receive(bytes, fd));
    lost.host.begin_turn();
    let to = lost.host.next_request().unwrap().unwrap().reply_to;
    lost.host.outgoing().clear();
    lost.host.reply(to, Reply::last(b"in time".into())).unwrap();
    crate::pair::carry(lost.host.outgoing(), |bytes, fd| pair.client.receive(bytes, fd));
    pair.client.connection_lost();
    let lost = || CallError::ConnectionLost;
    let seen = pair.events();
    assert_eq!(seen[0], Seen::Reply(answered, b"in time".into(), More::Last));
    assert!(seen.contains(&Seen::BindFailed), "{seen:?}");
    assert!(seen.contains(&Seen::Failed(held, lost())), "{seen:?}");
    assert!(seen.contains(&Seen::Failed(unanswered, lost())), "{seen:?}");
    assert_eq!(seen.len(), 4);
    let late = pair.call(greeter, "SayHello", b"");
    assert_eq!(pair.events(), [Seen::Failed(late, lost())]);
}

#[test]
fn a_call_that_does_not_fit_is_refused_before_anything_is_sent() {
    let (mut pair, greeter) = Pair::bound();
    let huge = pair
        .client
        .invoke(greeter, Call::new("SayHello", vec![0; MAX_PAYLOAD + 1]));
    assert!(matches!(huge, Err(InvokeError::TooLarge(_))), "{huge:?}");
    let mut sent = 0;
    while pair.client.outgoing_room() >= 100_000 + WAITING_COST {
        pair.call(greeter, "SayHello", &[0; 100_000]);
        sent += 1;
    }
    let full = pair
        .client
        .invoke(greeter, Call::new("SayHello", vec![0; 100_000]));
    assert!(matches!(full, Err(InvokeError::Full(_))), "{full:?}");
    assert_eq!(sent, 10);
    pair.client.outgoing().clear();
    pair.call(greeter, "SayHello", &[0; 100_000]);
}

#[test]
fn calls_that_wait_for_their_service_count_against_the_limit() {
    let mut pair = Pair::new();
    let greeter = pair.client.bind("Greeter").unwrap();
    for _ in 0..10 {
        pair.call(greeter, "SayHello", &[0; 100_000]);
    }
    let full = pair
        .client
        .invoke(greeter, Call::new("SayHello", vec![0; 100_000]));
    assert!(matches!(full, Err(InvokeError::Full(_))), "{full:?}");
}

#[test]
fn unasked_replies_are_ignored() {
    let (mut pair, _) = Pair::bound();
    let stray = wire_protocol::invoke_method_reply(99, false, b"x".into(), None).unwrap();
    pair.client.receive(&stray.parts().concat(), None);
    assert_eq!(pair.events(), []);
}

#[test]
fn a_relay_declares_its_peer_before_any_call() {
    let mut pair = Pair::with(PeerIdentitySource::Declared, Default::default());
    let identity = PeerIdentity {
        pid: 12,
        uid: 34,
        machine_name: "guest".into(),
        ..Default::default()
    };
    pair.client.set_peer_identity(&identity).unwrap();
    pair.carry_to_host();
    assert_eq!(pair.caller(), Some(identity));
}

#[test]
fn a_violation_by_the_host_is_reported_once_and_fails_everything_outstanding() {
    let (mut pair, greeter) = Pair::bound();
    let call = pair.call(greeter, "SayHello", b"");
    pair.client.receive(&u32::MAX.to_le_bytes(), None);
    assert!(pair.client.next_event().is_err());
    assert_eq!(pair.events(), [Seen::Failed(call, CallError::ConnectionLost)]);
    assert!(!pair.client.wants_input());
}
