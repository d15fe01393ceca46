//! Hosts against clients that err, flood, lie or do not read.

use super::*;
use crate::client::{Call, CallError, More};
use crate::frame::HEADER;
use crate::pair::{Pair, Seen, carry};

/// A frame with any message, correctly framed.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}

fn invoke(request_id: u64, service_id: u32, method_id: u32) -> Vec<u8> {
    wire_protocol::invoke_method(
        request_id,
        service_id,
        method_id,
        false,
        b"arguments".into(),
        None,
    )
    .unwrap()
    .parts()
    .concat()
}

/// The host's answers, decoded.
fn answers(host: &mut HostConnection) -> Vec<Message> {
    let mut decoder = FrameDecoder::new();
    carry(host.outgoing(), |bytes, fd| decoder.push(bytes, fd));
    let mut answers = Vec::new();
    while let Some(frame) = decoder.next_frame().unwrap() {
        answers.push(Message::decode(decoder.body(&frame)).unwrap());
    }
    answers
}

#[test]
fn calls_of_services_and_methods_that_do_not_exist_are_rejected() {
    let mut pair = Pair::new();
    for (service_id, method_id) in [(0, 1), (3, 1), (u32::MAX, 1), (2, 0), (2, 4), (2, u32::MAX)] {
        pair.host.receive(&invoke(5, service_id, method_id), None);
        pair.answer_nothing();
        let rejected = Body::InvokeMethodReply {
            success: false,
            has_more: false,
            reply: 0..0,
        };
        assert_eq!(
            answers(&mut pair.host),
            [Message {
                request_id: 5,
                body: rejected
            }]
        );
    }
    pair.host.receive(&invoke(6, 2, 3), None);
    let request = pair.host.next_request().unwrap().unwrap();
    assert_eq!((request.service.name, request.method), ("Greeter", "TakeFile"));
    assert_eq!(request.payload, b"arguments");
}

#[test]
fn messages_that_are_no_requests_get_an_error_and_the_connection_lives() {
    let mut pair = Pair::new();
    // Nothing at all; a field of the future; a reply.
    let of_the_future = [16, 3, 200 << 1 & 0x7f | 2, 0];
    let a_reply = wire_protocol::rejection(3, String::new())
        .unwrap()
        .parts()
        .concat();
    for bytes in [framed(&[16, 3]), framed(&of_the_future), a_reply] {
        pair.host.receive(&bytes, None);
        pair.answer_nothing();
        let error = Body::RequestError {
            error: "unknown request".into(),
        };
        assert_eq!(
            answers(&mut pair.host),
            [Message {
                request_id: 3,
                body: error
            }]
        );
    }
}

#[test]
fn malformed_and_huge_frames_end_the_connection_and_name_the_rule() {
    let mut pair = Pair::new();
    pair.host.receive(&framed(&[0x2a, 200]), None);
    let violation = pair.host.next_request().unwrap_err();
    assert!(
        violation.to_string().starts_with("malformed frame"),
        "{violation}"
    );

    let mut pair = Pair::new();
    pair.host
        .receive(&((MAX_FRAME - HEADER + 1) as u32).to_le_bytes(), None);
    let violation = pair.host.next_request().unwrap_err();
    assert!(
        violation.to_string().starts_with("frame too large"),
        "{violation}"
    );
}

#[test]
fn a_turn_hands_out_a_bounded_number_of_frames_and_the_next_turn_goes_on() {
    let limits = HostLimits {
        frames_per_turn: 3,
        ..HostLimits::default()
    };
    let mut pair = Pair::with(PeerIdentitySource::Kernel, limits);
    for request_id in 0..7 {
        pair.host.receive(&invoke(request_id, 2, 1), None);
    }
    let mut per_turn = Vec::new();
    loop {
        pair.host.begin_turn();
        let mut taken = 0;
        while pair.host.next_request().unwrap().is_some() {
            taken += 1;
        }
        per_turn.push(taken);
        if !pair.host.turn_is_over() {
            break;
        }
    }
    assert_eq!(per_turn, [3, 3, 1]);
}

#[test]
fn a_turn_hands_out_a_bounded_number_of_bytes() {
    let limits = HostLimits {
        bytes_per_turn: 20,
        ..HostLimits::default()
    };
    let mut pair = Pair::with(PeerIdentitySource::Kernel, limits);
    for request_id in 0..3 {
        pair.host.receive(&invoke(request_id, 2, 1), None);
    }
    assert!(pair.host.next_request().unwrap().is_some());
    assert!(pair.host.next_request().unwrap().is_none());
    assert!(pair.host.turn_is_over());
}

#[test]
fn a_client_that_does_not_read_its_replies_is_not_read_from_until_it_does() {
    let (mut pair, greeter) = Pair::bound();
    let mut handled = 0;
    while !pair.host.is_congested() {
        pair.call(greeter, "SayHello", b"");
        pair.carry_to_host();
        let to = pair.host.next_request().unwrap().unwrap().reply_to;
        pair.host.reply(to, Reply::last(vec![0; 100_000])).unwrap();
        handled += 1;
    }
    assert!((5..12).contains(&handled), "{handled} replies of 100 kB");
    assert!(!pair.host.wants_input());
    assert_eq!(pair.host.interest(), Interest::Writable);

    let call = pair.call(greeter, "SayHello", b"");
    pair.carry_to_host();
    pair.answer_nothing();
    assert_eq!(pair.events().len(), handled);
    let to = pair
        .host
        .next_request()
        .unwrap()
        .expect("the client caught up")
        .reply_to;
    pair.host.reply(to, Reply::last(b"at last".into())).unwrap();
    assert_eq!(pair.events(), [Seen::Reply(call, b"at last".into(), More::Last)]);
}

#[test]
fn a_stream_can_be_held_back_by_the_room_left_and_overrunning_it_is_an_error() {
    let (mut pair, greeter) = Pair::bound();
    pair.call(greeter, "CountTo", b"");
    pair.carry_to_host();
    let to = pair.host.next_request().unwrap().unwrap().reply_to;
    while pair.host.outgoing_room() >= 50_000 + crate::frame::WAITING_COST {
        pair.host.reply(to, Reply::more(vec![0; 50_000])).unwrap();
    }
    let error = pair.host.reply(to, Reply::more(vec![0; 50_000])).unwrap_err();
    assert!(matches!(error, ReplyError::Full(_)), "{error}");
    let error = pair.host.reply(to, Reply::more(vec![0; MAX_FRAME])).unwrap_err();
    assert!(matches!(error, ReplyError::TooLarge(_)), "{error}");
}

#[test]
fn an_identity_counts_only_where_declared_and_only_the_first() {
    let identity = |pid| PeerIdentity {
        pid,
        ..PeerIdentity::default()
    };
    for (source, expected) in [
        (PeerIdentitySource::Kernel, None),
        (PeerIdentitySource::Declared, Some(identity(1))),
    ] {
        let mut pair = Pair::with(source, HostLimits::default());
        pair.client.set_peer_identity(&identity(1)).unwrap();
        pair.client.set_peer_identity(&identity(2)).unwrap();
        pair.carry_to_host();
        pair.answer_nothing();
        assert!(pair.host.outgoing().is_empty(), "no answer is due");
        assert_eq!(pair.caller(), expected);
    }
}

#[test]
fn names_in_an_identity_are_bounded() {
    let named = |hint: usize, name: usize| PeerIdentity {
        machine_id_hint: "h".repeat(hint),
        machine_name: "n".repeat(name),
        ..PeerIdentity::default()
    };
    let most = MAX_IDENTITY_TEXT;
    for (identity, too_long) in [
        (named(most, most), None),
        (named(most + 1, 0), Some(most + 1)),
        (named(0, most + 1), Some(most + 1)),
    ] {
        let mut pair = Pair::with(PeerIdentitySource::Declared, HostLimits::default());
        pair.client.set_peer_identity(&identity).unwrap();
        pair.carry_to_host();
        let violation = pair.host.next_request().err();
        let expected = too_long.map(|length| Violation::IdentityTooLong { length });
        assert_eq!(violation, expected);
    }
    // Where identities do not count, any identity is passed over.
    let mut pair = Pair::with(PeerIdentitySource::Kernel, HostLimits::default());
    pair.client.set_peer_identity(&named(most + 1, 0)).unwrap();
    pair.carry_to_host();
    pair.answer_nothing();
    assert_eq!(pair.caller(), None);
}

#[test]
fn several_services_on_one_connection_are_distinguished() {
    let mut pair = Pair::new();
    let greeter = pair.client.bind("Greeter").unwrap();
    let other = pair.client.bind("Other").unwrap();
    pair.carry_to_host();
    pair.answer_nothing();
    assert_eq!(pair.events(), [Seen::Bound, Seen::Bound]);
    pair.call(other, "Nothing", b"");
    let misdirected = pair
        .client
        .invoke(greeter, Call::new("Nothing", Vec::new()))
        .unwrap();
    pair.carry_to_host();
    assert_eq!(pair.host.next_request().unwrap().unwrap().service.name, "Other");
    pair.answer_nothing();
    let error = CallError::UnknownMethod {
        service: "Greeter".into(),
        method: "Nothing",
    };
    assert_eq!(pair.events(), [Seen::Failed(misdirected, error)]);
}
