//! The `IPCFrame` message of upstream's `wire_protocol.proto`: reading it in place, and writing it around a
//! payload without copying that.
//!
//! Called by [`crate::host`] and [`crate::client`]. The generated type of `ferretto-proto` would copy every
//! payload once more in each direction; a test holds this codec against it. Frames without a payload have no such
//! cost, so generated writers write these. The field numbers are the generated ones too.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ferretto_proto::write::IPCFrame;
use ferretto_proto::write::ipc_frame::bind_service_reply::MethodInfo;
use ferretto_proto::write::ipc_frame::{
    BindService, BindServiceReply, InvokeMethod, InvokeMethodReply, RequestError, SetPeerIdentity,
};
use ferretto_wire::{Reader, Value, WireError, Writer};

use crate::frame::{Head, OutgoingFrame, PayloadTooLarge};

#[cfg(test)]
mod tests;

/// A decoded frame. Texts are lossy where they are not UTF-8; payloads are ranges of the frame's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) request_id: u64,
    pub(crate) body: Body,
}

/// The `msg` of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    BindService {
        service: String,
    },
    BindServiceReply {
        success: bool,
        service_id: u32,
        methods: Vec<(u32, String)>,
    },
    InvokeMethod {
        service_id: u32,
        method_id: u32,
        arguments: Range<usize>,
        drop_reply: bool,
    },
    InvokeMethodReply {
        success: bool,
        has_more: bool,
        reply: Range<usize>,
    },
    RequestError {
        error: String,
    },
    SetPeerIdentity(PeerIdentity),
    /// A message that we do not know.
    Unknown,
}

/// A relay's statements about the producer it speaks for (`SetPeerIdentity`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerIdentity {
    /// Process id on its machine.
    pub pid: i32,
    /// User id on its machine.
    pub uid: i32,
    /// Differs between machines: the kernel's boot id, or a hash that stands for it.
    pub machine_id_hint: String,
    /// The name by which people know the machine.
    pub machine_name: String,
}

impl PeerIdentity {
    /// The frame that declares it, as the first bytes of a connection that a relay forwards.
    ///
    /// # Errors
    /// If its texts are larger than a frame.
    pub fn to_frame(&self) -> Result<Vec<u8>, PayloadTooLarge> {
        Ok(set_peer_identity(self)?.parts().concat())
    }
}

impl Message {
    /// Decodes the bytes of a frame. Fields that are unknown, or of another wire type than the schema's, are
    /// passed over.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Message, WireError> {
        let mut message = Message {
            request_id: 0,
            body: Body::Unknown,
        };
        for field in Reader::new(bytes) {
            let field = field?;
            match (field.number, field.value) {
                (IPCFrame::REQUEST_ID, Value::Varint(id)) => message.request_id = id,
                (IPCFrame::MSG_BIND_SERVICE, Value::Bytes(inner)) => {
                    message.body = decode_bind_service(inner)?
                }
                (IPCFrame::MSG_BIND_SERVICE_REPLY, Value::Bytes(inner)) => {
                    message.body = decode_bind_reply(inner)?
                }
                (IPCFrame::MSG_INVOKE_METHOD, Value::Bytes(inner)) => {
                    message.body = decode_invoke(bytes, inner)?
                }
                (IPCFrame::MSG_INVOKE_METHOD_REPLY, Value::Bytes(inner)) => {
                    message.body = decode_invoke_reply(bytes, inner)?;
                }
                (IPCFrame::MSG_REQUEST_ERROR, Value::Bytes(inner)) => message.body = decode_error(inner)?,
                (IPCFrame::SET_PEER_IDENTITY, Value::Bytes(inner)) => message.body = decode_identity(inner)?,
                _ => {}
            }
        }
        Ok(message)
    }
}

fn decode_bind_service(bytes: &[u8]) -> Result<Body, WireError> {
    let mut service = String::new();
    for field in Reader::new(bytes) {
        if let (BindService::SERVICE_NAME, Value::Bytes(name)) = number_and_value(field?) {
            service = text(name);
        }
    }
    Ok(Body::BindService { service })
}

fn decode_bind_reply(bytes: &[u8]) -> Result<Body, WireError> {
    let (mut success, mut service_id, mut methods) = (false, 0, Vec::new());
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (BindServiceReply::SUCCESS, Value::Varint(value)) => success = value != 0,
            (BindServiceReply::SERVICE_ID, Value::Varint(value)) => service_id = value as u32,
            (BindServiceReply::METHODS, Value::Bytes(method)) => methods.push(decode_method(method)?),
            _ => {}
        }
    }
    Ok(Body::BindServiceReply {
        success,
        service_id,
        methods,
    })
}

fn decode_method(bytes: &[u8]) -> Result<(u32, String), WireError> {
    let (mut id, mut name) = (0, String::new());
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (MethodInfo::ID, Value::Varint(value)) => id = value as u32,
            (MethodInfo::NAME, Value::Bytes(value)) => name = text(value),
            _ => {}
        }
    }
    Ok((id, name))
}

fn decode_invoke(frame: &[u8], bytes: &[u8]) -> Result<Body, WireError> {
    let (mut service_id, mut method_id, mut arguments, mut drop_reply) = (0, 0, 0..0, false);
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (InvokeMethod::SERVICE_ID, Value::Varint(value)) => service_id = value as u32,
            (InvokeMethod::METHOD_ID, Value::Varint(value)) => method_id = value as u32,
            (InvokeMethod::ARGS_PROTO, Value::Bytes(value)) => arguments = range_within(frame, value),
            (InvokeMethod::DROP_REPLY, Value::Varint(value)) => drop_reply = value != 0,
            _ => {}
        }
    }
    Ok(Body::InvokeMethod {
        service_id,
        method_id,
        arguments,
        drop_reply,
    })
}

fn decode_invoke_reply(frame: &[u8], bytes: &[u8]) -> Result<Body, WireError> {
    let (mut success, mut has_more, mut reply) = (false, false, 0..0);
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (InvokeMethodReply::SUCCESS, Value::Varint(value)) => success = value != 0,
            (InvokeMethodReply::HAS_MORE, Value::Varint(value)) => has_more = value != 0,
            (InvokeMethodReply::REPLY_PROTO, Value::Bytes(value)) => reply = range_within(frame, value),
            _ => {}
        }
    }
    Ok(Body::InvokeMethodReply {
        success,
        has_more,
        reply,
    })
}

fn decode_error(bytes: &[u8]) -> Result<Body, WireError> {
    let mut error = String::new();
    for field in Reader::new(bytes) {
        if let (RequestError::ERROR, Value::Bytes(value)) = number_and_value(field?) {
            error = text(value);
        }
    }
    Ok(Body::RequestError { error })
}

fn decode_identity(bytes: &[u8]) -> Result<Body, WireError> {
    let mut identity = PeerIdentity::default();
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (SetPeerIdentity::PID, Value::Varint(value)) => identity.pid = value as i32,
            (SetPeerIdentity::UID, Value::Varint(value)) => identity.uid = value as i32,
            (SetPeerIdentity::MACHINE_ID_HINT, Value::Bytes(value)) => identity.machine_id_hint = text(value),
            (SetPeerIdentity::MACHINE_NAME, Value::Bytes(value)) => identity.machine_name = text(value),
            _ => {}
        }
    }
    Ok(Body::SetPeerIdentity(identity))
}

fn number_and_value(field: ferretto_wire::Field<'_>) -> (u32, Value<'_>) {
    (field.number, field.value)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where `part`, a slice of `whole`, lies in it.
fn range_within(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// A request for the methods of a service.
pub(crate) fn bind_service(request_id: u64, service: &str) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    BindService::new(&mut inner).service_name(service);
    frame(
        request_id,
        IPCFrame::MSG_BIND_SERVICE,
        Head::new(),
        inner.as_slice().to_vec(),
        None,
    )
}

/// The answer to it: the methods and their ids, or `None` when there is no such service.
pub(crate) fn bind_service_reply<'a>(
    request_id: u64,
    service: Option<(u32, impl Iterator<Item = (u32, &'a str)>)>,
) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    if let Some((service_id, methods)) = service {
        let mut reply = BindServiceReply::new(&mut inner);
        reply.success(true).service_id(service_id);
        for (id, name) in methods {
            reply.methods(|method| {
                method.id(id).name(name);
            });
        }
    }
    frame(
        request_id,
        IPCFrame::MSG_BIND_SERVICE_REPLY,
        Head::new(),
        inner.as_slice().to_vec(),
        None,
    )
}

/// A call.
pub(crate) fn invoke_method(
    request_id: u64,
    service_id: u32,
    method_id: u32,
    drop_reply: bool,
    arguments: Vec<u8>,
    fd: Option<OwnedFd>,
) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Head::new();
    inner.varint_field(InvokeMethod::SERVICE_ID, u64::from(service_id));
    inner.varint_field(InvokeMethod::METHOD_ID, u64::from(method_id));
    inner.varint_field(InvokeMethod::DROP_REPLY, u64::from(drop_reply));
    inner.length_delimited(InvokeMethod::ARGS_PROTO, arguments.len());
    frame(request_id, IPCFrame::MSG_INVOKE_METHOD, inner, arguments, fd)
}

/// The answer to a call.
pub(crate) fn invoke_method_reply(
    request_id: u64,
    has_more: bool,
    reply: Vec<u8>,
    fd: Option<OwnedFd>,
) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Head::new();
    inner.varint_field(InvokeMethodReply::SUCCESS, 1);
    inner.varint_field(InvokeMethodReply::HAS_MORE, u64::from(has_more));
    inner.length_delimited(InvokeMethodReply::REPLY_PROTO, reply.len());
    frame(request_id, IPCFrame::MSG_INVOKE_METHOD_REPLY, inner, reply, fd)
}

/// The answer to a call that failed. The reason, unless it is empty, takes the place of the reply, which upstream's clients ignore then.
pub(crate) fn rejection(request_id: u64, reason: String) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Head::new();
    inner.varint_field(InvokeMethodReply::SUCCESS, 0);
    inner.varint_field(InvokeMethodReply::HAS_MORE, 0);
    if !reason.is_empty() {
        inner.length_delimited(InvokeMethodReply::REPLY_PROTO, reason.len());
    }
    frame(
        request_id,
        IPCFrame::MSG_INVOKE_METHOD_REPLY,
        inner,
        reason.into_bytes(),
        None,
    )
}

/// The answer to something that is no request.
pub(crate) fn request_error(request_id: u64, error: &str) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    RequestError::new(&mut inner).error(error);
    frame(
        request_id,
        IPCFrame::MSG_REQUEST_ERROR,
        Head::new(),
        inner.as_slice().to_vec(),
        None,
    )
}

/// The message that a relay sends before it forwards a producer's frames.
pub(crate) fn set_peer_identity(identity: &PeerIdentity) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    SetPeerIdentity::new(&mut inner)
        .pid(identity.pid)
        .uid(identity.uid)
        .machine_id_hint(&identity.machine_id_hint)
        .machine_name(&identity.machine_name);
    frame(
        0,
        IPCFrame::SET_PEER_IDENTITY,
        Head::new(),
        inner.as_slice().to_vec(),
        None,
    )
}

/// A frame whose message `number` has the fields `inner` and then `payload`.
fn frame(
    request_id: u64,
    number: u32,
    inner: Head,
    payload: Vec<u8>,
    fd: Option<OwnedFd>,
) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut head = Head::new();
    head.varint_field(IPCFrame::REQUEST_ID, request_id);
    head.length_delimited(number, inner.fields_len() + payload.len());
    head.append(&inner);
    OutgoingFrame::new(head, payload, fd)
}
