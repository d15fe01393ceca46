//! The `IPCFrame` message of upstream's `wire_protocol.proto`: reading it in place, and writing it around a
//! payload without copying that.
//!
//! Called by [`crate::host`] and [`crate::client`]. The generated type of `ferretto-proto` would copy every
//! payload once more in each direction; a test holds this codec against it.

use std::ops::Range;
use std::os::fd::OwnedFd;

use ferretto_wire::{Reader, Value, WireError, Writer};

use crate::frame::{Head, OutgoingFrame, PayloadTooLarge};

#[cfg(test)]
mod tests;

/// Field numbers of `IPCFrame`.
mod field {
    pub(super) const REQUEST_ID: u32 = 2;
    pub(super) const BIND_SERVICE: u32 = 3;
    pub(super) const BIND_SERVICE_REPLY: u32 = 4;
    pub(super) const INVOKE_METHOD: u32 = 5;
    pub(super) const INVOKE_METHOD_REPLY: u32 = 6;
    pub(super) const REQUEST_ERROR: u32 = 7;
    pub(super) const SET_PEER_IDENTITY: u32 = 8;
}

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
    /// None that we know.
    Unknown,
}

/// What a relay says about the producer it speaks for (`SetPeerIdentity`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerIdentity {
    /// Process id on its machine.
    pub pid: i32,
    /// User id on its machine.
    pub uid: i32,
    /// Differs between machines: the kernel's boot id, or a hash that stands for it.
    pub machine_id_hint: String,
    /// What people call the machine.
    pub machine_name: String,
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
                (field::REQUEST_ID, Value::Varint(id)) => message.request_id = id,
                (field::BIND_SERVICE, Value::Bytes(inner)) => message.body = decode_bind_service(inner)?,
                (field::BIND_SERVICE_REPLY, Value::Bytes(inner)) => message.body = decode_bind_reply(inner)?,
                (field::INVOKE_METHOD, Value::Bytes(inner)) => message.body = decode_invoke(bytes, inner)?,
                (field::INVOKE_METHOD_REPLY, Value::Bytes(inner)) => {
                    message.body = decode_invoke_reply(bytes, inner)?;
                }
                (field::REQUEST_ERROR, Value::Bytes(inner)) => message.body = decode_error(inner)?,
                (field::SET_PEER_IDENTITY, Value::Bytes(inner)) => message.body = decode_identity(inner)?,
                _ => {}
            }
        }
        Ok(message)
    }
}

fn decode_bind_service(bytes: &[u8]) -> Result<Body, WireError> {
    let mut service = String::new();
    for field in Reader::new(bytes) {
        if let (1, Value::Bytes(name)) = number_and_value(field?) {
            service = text(name);
        }
    }
    Ok(Body::BindService { service })
}

fn decode_bind_reply(bytes: &[u8]) -> Result<Body, WireError> {
    let (mut success, mut service_id, mut methods) = (false, 0, Vec::new());
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (1, Value::Varint(value)) => success = value != 0,
            (2, Value::Varint(value)) => service_id = value as u32,
            (3, Value::Bytes(method)) => methods.push(decode_method(method)?),
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
            (1, Value::Varint(value)) => id = value as u32,
            (2, Value::Bytes(value)) => name = text(value),
            _ => {}
        }
    }
    Ok((id, name))
}

fn decode_invoke(frame: &[u8], bytes: &[u8]) -> Result<Body, WireError> {
    let (mut service_id, mut method_id, mut arguments, mut drop_reply) = (0, 0, 0..0, false);
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (1, Value::Varint(value)) => service_id = value as u32,
            (2, Value::Varint(value)) => method_id = value as u32,
            (3, Value::Bytes(value)) => arguments = range_within(frame, value),
            (4, Value::Varint(value)) => drop_reply = value != 0,
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
            (1, Value::Varint(value)) => success = value != 0,
            (2, Value::Varint(value)) => has_more = value != 0,
            (3, Value::Bytes(value)) => reply = range_within(frame, value),
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
        if let (1, Value::Bytes(value)) = number_and_value(field?) {
            error = text(value);
        }
    }
    Ok(Body::RequestError { error })
}

fn decode_identity(bytes: &[u8]) -> Result<Body, WireError> {
    let mut identity = PeerIdentity::default();
    for field in Reader::new(bytes) {
        match number_and_value(field?) {
            (1, Value::Varint(value)) => identity.pid = value as i32,
            (2, Value::Varint(value)) => identity.uid = value as i32,
            (3, Value::Bytes(value)) => identity.machine_id_hint = text(value),
            (4, Value::Bytes(value)) => identity.machine_name = text(value),
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
    inner.bytes_field(1, service.as_bytes());
    frame(
        request_id,
        field::BIND_SERVICE,
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
        inner.varint_field(1, 1);
        inner.varint_field(2, u64::from(service_id));
        for (id, name) in methods {
            inner.nested(3, |method| {
                method.varint_field(1, u64::from(id));
                method.bytes_field(2, name.as_bytes());
            });
        }
    }
    frame(
        request_id,
        field::BIND_SERVICE_REPLY,
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
    inner.varint_field(1, u64::from(service_id));
    inner.varint_field(2, u64::from(method_id));
    inner.varint_field(4, u64::from(drop_reply));
    inner.length_delimited(3, arguments.len());
    frame(request_id, field::INVOKE_METHOD, inner, arguments, fd)
}

/// The answer to a call.
pub(crate) fn invoke_method_reply(
    request_id: u64,
    has_more: bool,
    reply: Vec<u8>,
    fd: Option<OwnedFd>,
) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Head::new();
    inner.varint_field(1, 1);
    inner.varint_field(2, u64::from(has_more));
    inner.length_delimited(3, reply.len());
    frame(request_id, field::INVOKE_METHOD_REPLY, inner, reply, fd)
}

/// The answer to a call that failed. The reason, unless it is empty, stands in the place of the reply, which upstream's clients do not look
/// at then.
pub(crate) fn rejection(request_id: u64, reason: String) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Head::new();
    inner.varint_field(1, 0);
    inner.varint_field(2, 0);
    if !reason.is_empty() {
        inner.length_delimited(3, reason.len());
    }
    frame(
        request_id,
        field::INVOKE_METHOD_REPLY,
        inner,
        reason.into_bytes(),
        None,
    )
}

/// The answer to something that is no request.
pub(crate) fn request_error(request_id: u64, error: &str) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    inner.bytes_field(1, error.as_bytes());
    frame(
        request_id,
        field::REQUEST_ERROR,
        Head::new(),
        inner.as_slice().to_vec(),
        None,
    )
}

/// What a relay says before it forwards a producer's frames.
pub(crate) fn set_peer_identity(identity: &PeerIdentity) -> Result<OutgoingFrame, PayloadTooLarge> {
    let mut inner = Writer::new();
    inner.varint_field(1, i64::from(identity.pid) as u64);
    inner.varint_field(2, i64::from(identity.uid) as u64);
    inner.bytes_field(3, identity.machine_id_hint.as_bytes());
    inner.bytes_field(4, identity.machine_name.as_bytes());
    frame(
        0,
        field::SET_PEER_IDENTITY,
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
    head.varint_field(field::REQUEST_ID, request_id);
    head.length_delimited(number, inner.fields_len() + payload.len());
    head.append(&inner);
    OutgoingFrame::new(head, payload, fd)
}
