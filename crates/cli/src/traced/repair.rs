//! Texts that are not UTF-8, in what producers say of themselves.
//!
//! The protocol's schema calls them strings, upstream's C++ never looks: the name of a process, which a producer may give for its
//! own, is any bytes to the kernel. Our messages take UTF-8 only, and so do the consumers that get these texts passed on. So the
//! producer port, when a request does not decode, has [`decode`] try once more: what is not UTF-8 in the texts
//! is replaced as a terminal would show it. Other damage stays.

use std::borrow::Cow;

use ferretto_proto::messages::{DecodeError, Message};
use ferretto_wire::{Reader, Value, Writer};

/// Where a message has its texts: field numbers.
pub(super) struct Texts {
    strings: &'static [u32],
    nested: &'static [(u32, &'static Texts)],
}

const fn strings(strings: &'static [u32]) -> Texts {
    Texts { strings, nested: &[] }
}

/// `InitializeConnectionRequest`: `producer_name`, `sdk_version`.
pub(super) static INITIALIZE_CONNECTION: Texts = strings(&[3, 8]);
/// `UnregisterDataSourceRequest.data_source_name`, `ActivateTriggersRequest.trigger_names`.
pub(super) static FIRST: Texts = strings(&[1]);
/// `RegisterDataSourceRequest` and `UpdateDataSourceRequest`, whose descriptor both have under the same number.
pub(super) static REGISTER: Texts = Texts {
    strings: &[],
    nested: &[(1, &DESCRIPTOR)],
};
/// `DataSourceDescriptor`: `name`, `track_event_descriptor`.
static DESCRIPTOR: Texts = Texts {
    strings: &[1],
    nested: &[(6, &TRACK_EVENT_DESCRIPTOR)],
};
/// `TrackEventDescriptor.available_categories`.
static TRACK_EVENT_DESCRIPTOR: Texts = Texts {
    strings: &[],
    nested: &[(1, &CATEGORY)],
};
/// `TrackEventCategory`: `name`, `description`, `tags`.
static CATEGORY: Texts = strings(&[1, 2, 3]);

/// Decodes a request, repaired if need be, and gives the bytes that did decode with it.
///
/// # Errors
/// What is wrong with the bytes as they came.
pub(super) fn decode<'a, M: Message>(
    bytes: &'a [u8],
    texts: &Texts,
) -> Result<(M, Cow<'a, [u8]>), DecodeError> {
    M::decode_from_slice(bytes)
        .map(|message| (message, Cow::Borrowed(bytes)))
        .or_else(|error| {
            let repaired = repaired(bytes, texts).ok_or(error.clone())?;
            let message = M::decode_from_slice(&repaired).map_err(|_| error)?;
            Ok((message, Cow::Owned(repaired)))
        })
}

/// The message with its texts made UTF-8; `None` if it is none.
fn repaired(message: &[u8], texts: &Texts) -> Option<Vec<u8>> {
    let mut repaired = Writer::new();
    for field in Reader::new(message) {
        let field = field.ok()?;
        match field.value {
            Value::Varint(value) => repaired.varint_field(field.number, value),
            Value::Fixed32(value) => repaired.fixed32_field(field.number, value),
            Value::Fixed64(value) => repaired.fixed64_field(field.number, value),
            Value::Bytes(bytes) => {
                let nested = texts.nested.iter().find(|(number, _)| *number == field.number);
                if let Some((_, texts)) = nested {
                    repaired.bytes_field(field.number, &self::repaired(bytes, texts)?);
                } else if texts.strings.contains(&field.number) {
                    repaired.bytes_field(field.number, String::from_utf8_lossy(bytes).as_bytes());
                } else {
                    repaired.bytes_field(field.number, bytes);
                }
            }
        }
    }
    Some(repaired.as_slice().to_vec())
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::{
        DataSourceDescriptor, InitializeConnectionRequest, Message, RegisterDataSourceRequest,
        TrackEventCategory, TrackEventDescriptor, UnregisterDataSourceRequest,
    };

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

    fn descriptor(mark: &str) -> RegisterDataSourceRequest {
        let category = TrackEventCategory {
            name: text(&format!("category {mark}")),
            description: text(&format!("{mark} described")),
            tags: vec![mark.to_owned(), "tag".to_owned()],
            ..Default::default()
        };
        let descriptor = DataSourceDescriptor {
            name: text(&format!("source {mark}")),
            id: Some(7),
            track_event_descriptor: TrackEventDescriptor {
                available_categories: vec![category; 2],
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        RegisterDataSourceRequest {
            data_source_descriptor: descriptor.into(),
            ..Default::default()
        }
    }

    #[test]
    fn every_text_of_a_producer_is_repaired_and_nothing_else_changed() {
        let bytes = spoilt(&descriptor("~"));
        assert!(RegisterDataSourceRequest::decode_from_slice(&bytes).is_err());
        let (request, repaired) = decode::<RegisterDataSourceRequest>(&bytes, &REGISTER).unwrap();
        assert_eq!(request, descriptor("\u{fffd}"));
        assert_eq!(repaired, request.encode_to_vec());

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
        let (decoded, _) = decode::<UnregisterDataSourceRequest>(&bytes, &FIRST).unwrap();
        assert_eq!(decoded, request("\u{fffd}"));
    }

    #[test]
    fn what_decodes_is_passed_on_as_it_came() {
        // A field of the future, and one that comes twice.
        let bytes = [0x0a, 0x01, b'a', 0xfa, 0x3f, 0x01, 0xff, 0x0a, 0x01, b'b'];
        let (request, unchanged) = decode::<UnregisterDataSourceRequest>(&bytes, &FIRST).unwrap();
        assert_eq!(request.data_source_name.as_deref(), Some("b"));
        assert!(matches!(unchanged, Cow::Borrowed(same) if same == bytes));
    }

    #[test]
    fn what_is_no_message_stays_none() {
        assert_eq!(repaired(&[0x0a, 0x05, b'x'], &FIRST), None);
        let inner_cut_off = [0x0a, 0x02, 0x0a, 0x09];
        assert_eq!(repaired(&inner_cut_off, &REGISTER), None);
    }
}
