//! The hand-written codec against the generated `IPCFrame`, in both directions.

use ferretto_proto::messages::ipc_frame::Msg;
use ferretto_proto::messages::{IPCFrame, Message as _};
use ferretto_wire::{WireType, tag};
use proptest::prelude::*;

use super::*;

fn generated(frame: Result<OutgoingFrame, PayloadTooLarge>) -> (u64, Msg) {
    let bytes = frame.unwrap().parts().concat();
    let frame = IPCFrame::decode_from_slice(&bytes[crate::frame::HEADER..]).unwrap();
    (frame.request_id.unwrap(), frame.msg.unwrap())
}

fn ours(request_id: u64, msg: Msg) -> (Vec<u8>, Message) {
    let frame = IPCFrame {
        request_id: Some(request_id),
        msg: Some(msg),
        ..Default::default()
    };
    let bytes = frame.encode_to_vec();
    let message = Message::decode(&bytes).unwrap();
    (bytes, message)
}

proptest! {
    #[test]
    fn a_call_means_the_same_to_both(
        id: u64, service_id: u32, method_id: u32, drop_reply: bool, arguments: Vec<u8>,
    ) {
        let (decoded_id, msg) =
            generated(invoke_method(id, service_id, method_id, drop_reply, arguments.clone(), None));
        prop_assert_eq!(decoded_id, id);
        let Msg::MsgInvokeMethod(invoke) = &msg else { panic!("{msg:?}") };
        prop_assert_eq!(invoke.service_id, Some(service_id));
        prop_assert_eq!(invoke.method_id, Some(method_id));
        prop_assert_eq!(invoke.drop_reply, Some(drop_reply));
        prop_assert_eq!(invoke.args_proto.as_deref(), Some(arguments.as_slice()));

        let (bytes, message) = ours(id, msg);
        prop_assert_eq!(message.request_id, id);
        let Body::InvokeMethod { service_id: s, method_id: m, arguments: a, drop_reply: d } = message.body
            else { panic!("{message:?}") };
        prop_assert_eq!((s, m, &bytes[a], d), (service_id, method_id, arguments.as_slice(), drop_reply));
    }

    #[test]
    fn a_reply_means_the_same_to_both(id: u64, has_more: bool, reply: Option<Vec<u8>>) {
        let frame = match reply.clone() {
            Some(reply) => invoke_method_reply(id, has_more, reply, None),
            None => rejection(id, String::new()),
        };
        let has_more = has_more && reply.is_some();
        let (_, msg) = generated(frame);
        let Msg::MsgInvokeMethodReply(decoded) = &msg else { panic!("{msg:?}") };
        prop_assert_eq!(decoded.success, Some(reply.is_some()));
        prop_assert_eq!(decoded.has_more, Some(has_more));
        prop_assert_eq!(&decoded.reply_proto, &reply);

        let (bytes, message) = ours(id, msg);
        let Body::InvokeMethodReply { success, has_more: m, reply: r } = message.body
            else { panic!("{message:?}") };
        prop_assert_eq!((success, m), (reply.is_some(), has_more));
        prop_assert_eq!(&bytes[r], reply.as_deref().unwrap_or_default());
    }

    #[test]
    fn any_bytes_decode_to_ranges_within_them_or_are_refused(bytes: Vec<u8>, number in 2..9u8) {
        // Most often a known field, so that its inside is decoded too.
        let mut frame = vec![tag(number.into(), WireType::Bytes) as u8, bytes.len().min(127) as u8];
        frame.extend_from_slice(&bytes);
        match Message::decode(&frame) {
            Ok(Message { body: Body::InvokeMethod { arguments: range, .. }, .. })
            | Ok(Message { body: Body::InvokeMethodReply { reply: range, .. }, .. }) => {
                prop_assert!(frame.get(range).is_some());
            }
            Ok(_) => prop_assert!(Reader::new(&frame).all(|field| field.is_ok())),
            Err(_) => {}
        }
    }
}

#[test]
fn binding_means_the_same_to_both() {
    let (_, msg) = generated(bind_service(3, "ConsumerPort"));
    let Msg::MsgBindService(bind) = &msg else {
        panic!("{msg:?}")
    };
    assert_eq!(bind.service_name.as_deref(), Some("ConsumerPort"));
    assert_eq!(
        ours(3, msg).1.body,
        Body::BindService {
            service: "ConsumerPort".into()
        }
    );

    let methods = [(1u32, "A"), (2, "B")];
    let (_, msg) = generated(bind_service_reply(3, Some((9, methods.into_iter()))));
    let Msg::MsgBindServiceReply(reply) = &msg else {
        panic!("{msg:?}")
    };
    assert_eq!((reply.success, reply.service_id), (Some(true), Some(9)));
    let names: Vec<_> = reply
        .methods
        .iter()
        .map(|method| (method.id, method.name.clone()))
        .collect();
    assert_eq!(
        names,
        [(Some(1), Some("A".to_owned())), (Some(2), Some("B".to_owned()))]
    );
    let expected = Body::BindServiceReply {
        success: true,
        service_id: 9,
        methods: vec![(1, "A".into()), (2, "B".into())],
    };
    assert_eq!(ours(3, msg).1.body, expected);

    let (_, msg) = generated(bind_service_reply(
        4,
        None::<(u32, std::iter::Empty<(u32, &str)>)>,
    ));
    assert_eq!(
        ours(4, msg).1.body,
        Body::BindServiceReply {
            success: false,
            service_id: 0,
            methods: Vec::new()
        }
    );
}

#[test]
fn errors_and_identities_mean_the_same_to_both() {
    let (_, msg) = generated(request_error(5, "unknown request"));
    assert_eq!(
        ours(5, msg).1.body,
        Body::RequestError {
            error: "unknown request".into()
        }
    );

    let identity = PeerIdentity {
        pid: -1,
        uid: 1000,
        machine_id_hint: "boot".into(),
        machine_name: "guest".into(),
    };
    let (_, msg) = generated(set_peer_identity(&identity));
    assert_eq!(ours(0, msg).1.body, Body::SetPeerIdentity(identity));
}
