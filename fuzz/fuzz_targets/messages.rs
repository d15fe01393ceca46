//! Messages with all their fields, from arbitrary bytes: a config, a packet, a commit. What is decoded is encoded as what decodes to the
//! same, and has the fields that no version of the schema knows, in every message that is read here on the way to them.
//!
//! The first byte says which message.

#![no_main]

use ferretto_proto::messages::{CommitDataRequest, Message, TraceConfig, TracePacket};
use ferretto_wire::{Field, Reader, Value};
use libfuzzer_sys::fuzz_target;

/// Fields above this are in no message.
const UNKNOWN: u32 = 100_000;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        // Of `DataSource` the config, of that the one for track events; of a buffer; of a trigger.
        0 => check::<TraceConfig>(data, &[&[], &[2], &[2, 1], &[2, 1, 113], &[1], &[17], &[17, 2]]),
        // Of interned data the names of events; of defaults those of track events.
        1 => check::<TracePacket>(data, &[&[], &[12], &[12, 2], &[59], &[59, 11]]),
        // Of chunks that move, and that are patched, the patches.
        _ => check::<CommitDataRequest>(data, &[&[], &[1], &[2], &[2, 4]]),
    }
});

/// `paths` are numbers of fields that lead to nested messages: repeated ones, or such as are merged if there are several.
fn check<M: Message>(data: &[u8], paths: &[&[u32]]) {
    let Ok(message) = M::decode_from_slice(data) else {
        return;
    };
    let encoded = message.encode_to_vec();
    assert_eq!(message.encoded_len(), encoded.len());
    let again = M::decode_from_slice(&encoded).expect("what we encode can be decoded");
    assert_eq!(again.encode_to_vec(), encoded, "not the same once more");
    // A float that is not a number is not equal to itself.
    let is_comparable = message == message.clone();
    assert!(!is_comparable || again == message, "{message:?} became {again:?}");
    for path in paths {
        assert_eq!(
            unknown(&encoded, path),
            unknown(data, path),
            "unknown fields at {path:?}"
        );
    }
}

/// The unknown fields of the messages that a path leads to, in their order.
fn unknown<'a>(message: &'a [u8], path: &[u32]) -> Vec<(u32, Value<'a>)> {
    let fields = Reader::new(message).map(|field| field.expect("it was decoded"));
    match path {
        [] => fields
            .filter(|field| field.number > UNKNOWN)
            .map(|Field { number, value, .. }| (number, value))
            .collect(),
        [first, rest @ ..] => fields
            .filter(|field| field.number == *first)
            .filter_map(|field| field.value.as_bytes())
            .flat_map(|nested| unknown(nested, rest))
            .collect(),
    }
}
