//! Repairs texts that are not UTF-8 in producers' requests.
//!
//! The protocol's schema calls them strings, but upstream's C++ never checks. The kernel allows any bytes in the name of a process, and a producer may
//! pass that name on. Our messages take only UTF-8, and so do the consumers that receive these texts. So when a request does not decode, the producer
//! port has [`decode`] try once more, with the invalid bytes replaced as a terminal would show them. Other damage stays.

use std::borrow::Cow;

use ferretto_proto::messages::{
    ActivateTriggersRequest, DataSourceDescriptor, DecodeError, InitializeConnectionRequest, Message,
    UnregisterDataSourceRequest,
};
use ferretto_wire::{Reader, Value, Writer};

/// The field numbers of a message's texts.
pub(crate) type Texts = [u32];

pub(crate) static INITIALIZE_CONNECTION: [u32; 2] = [
    InitializeConnectionRequest::PRODUCER_NAME,
    InitializeConnectionRequest::SDK_VERSION,
];
pub(crate) static UNREGISTER_DATA_SOURCE: [u32; 1] = [UnregisterDataSourceRequest::DATA_SOURCE_NAME];
pub(crate) static ACTIVATE_TRIGGERS: [u32; 1] = [ActivateTriggersRequest::TRIGGER_NAMES];
pub(crate) static DESCRIPTOR: [u32; 1] = [DataSourceDescriptor::NAME];

/// Decodes a request, repaired if need be. Also returns the bytes that did decode.
///
/// # Errors
/// The error of the original bytes.
pub(crate) fn decode<'a, M: Message>(
    bytes: &'a [u8],
    texts: &Texts,
) -> Result<(M, Cow<'a, [u8]>), DecodeError> {
    in_need(bytes, texts, M::decode_from_slice)
}

/// The same with another decoder.
///
/// # Errors
/// The error of the original bytes.
pub(crate) fn in_need<'a, M>(
    bytes: &'a [u8],
    texts: &Texts,
    decode: impl Fn(&[u8]) -> Result<M, DecodeError>,
) -> Result<(M, Cow<'a, [u8]>), DecodeError> {
    decode(bytes)
        .map(|message| (message, Cow::Borrowed(bytes)))
        .or_else(|error| {
            let repaired = repaired(bytes, texts).ok_or(error.clone())?;
            let message = decode(&repaired).map_err(|_| error)?;
            Ok((message, Cow::Owned(repaired)))
        })
}

/// The message with its texts made UTF-8; `None` if it is no message.
fn repaired(message: &[u8], texts: &Texts) -> Option<Vec<u8>> {
    let mut repaired = Writer::new();
    for field in Reader::new(message) {
        let field = field.ok()?;
        match field.value {
            Value::Bytes(bytes) if texts.contains(&field.number) => {
                repaired.bytes_field(field.number, String::from_utf8_lossy(bytes).as_bytes());
            }
            _ => repaired.raw(field.raw),
        }
    }
    Some(repaired.as_slice().to_vec())
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::{InitializeConnectionRequest, Message, UnregisterDataSourceRequest};

    use super::*;

    /// The encoded message with every `~` of its texts made a byte that no UTF-8 text has.
    fn spoilt(message: &impl Message) -> Vec<u8> {
        let encoded = message.encode_to_vec();
        encoded
            .into_iter()
            .map(|byte| if byte == b'~' { 0xff } else { byte })
            .collect()
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn every_text_of_a_producer_is_repaired_and_nothing_else_changed() {
        let request = |mark: &str| InitializeConnectionRequest {
            producer_name: text(mark),
            sdk_version: text(mark),
            shared_memory_size_hint_bytes: Some(4096),
            ..Default::default()
        };
        let bytes = spoilt(&request("p ~"));
        let (decoded, _) = decode::<InitializeConnectionRequest>(&bytes, &INITIALIZE_CONNECTION).unwrap();
        assert_eq!(decoded, request("p \u{fffd}"));

        let request = |mark: &str| UnregisterDataSourceRequest {
            data_source_name: text(mark),
            ..Default::default()
        };
        let bytes = spoilt(&request("~"));
        let (decoded, _) = decode::<UnregisterDataSourceRequest>(&bytes, &UNREGISTER_DATA_SOURCE).unwrap();
        assert_eq!(decoded, request("\u{fffd}"));
    }

    #[test]
    fn a_valid_request_is_passed_on_unchanged() {
        // A field of the future, and one that comes twice.
        let bytes = [0x0a, 0x01, b'a', 0xfa, 0x3f, 0x01, 0xff, 0x0a, 0x01, b'b'];
        let (request, unchanged) =
            decode::<UnregisterDataSourceRequest>(&bytes, &UNREGISTER_DATA_SOURCE).unwrap();
        assert_eq!(request.data_source_name.as_deref(), Some("b"));
        assert!(matches!(unchanged, Cow::Borrowed(same) if same == bytes));
    }

    #[test]
    fn bytes_that_are_no_message_are_not_repaired() {
        assert_eq!(repaired(&[0x0a, 0x05, b'x'], &UNREGISTER_DATA_SOURCE), None);
    }
}
