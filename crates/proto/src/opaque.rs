//! Fields that the service passes on undecoded: the descriptors inside a `DataSourceDescriptor`, which upstream's schema calls lazy.
//!
//! A producer may put any bytes there; upstream's tests put plain text. So the service decodes only the [`essence`] of a descriptor and keeps the
//! producer's bytes. Consumers decode the state of the service with [`decode_state`], so that one odd descriptor does not cost them the
//! whole state.

use ferretto_wire::{Reader, Value, Writer};

use crate::messages::{
    DataSourceDescriptor, DecodeError, FtraceDescriptor, Message, TracingServiceState, TrackEventDescriptor,
    tracing_service_state,
};

/// Decodes a `DataSourceDescriptor` without its opaque fields.
///
/// # Errors
/// If the other fields do not decode.
pub fn essence(descriptor: &[u8]) -> Result<DataSourceDescriptor, DecodeError> {
    DataSourceDescriptor::decode_from_slice(&without(descriptor, |number, _| is_opaque(number))?)
}

/// Decodes a `TracingServiceState`. Opaque fields that do not decode are left out.
///
/// # Errors
/// If anything else does not decode.
pub fn decode_state(encoded: &[u8]) -> Result<TracingServiceState, DecodeError> {
    TracingServiceState::decode_from_slice(encoded).or_else(|_| {
        let legible = rewritten(encoded, TracingServiceState::DATA_SOURCES, |source| {
            rewritten(
                source,
                tracing_service_state::DataSource::DS_DESCRIPTOR,
                |descriptor| without(descriptor, is_illegible),
            )
        })?;
        TracingServiceState::decode_from_slice(&legible)
    })
}

fn is_opaque(number: u32) -> bool {
    matches!(
        number,
        DataSourceDescriptor::GPU_COUNTER_DESCRIPTOR
            | DataSourceDescriptor::TRACK_EVENT_DESCRIPTOR
            | DataSourceDescriptor::FTRACE_DESCRIPTOR
    )
}

/// Whether this is an opaque field that does not decode.
fn is_illegible(number: u32, value: Value<'_>) -> bool {
    let Value::Bytes(bytes) = value else {
        return is_opaque(number);
    };
    match number {
        DataSourceDescriptor::TRACK_EVENT_DESCRIPTOR => {
            TrackEventDescriptor::decode_from_slice(bytes).is_err()
        }
        DataSourceDescriptor::FTRACE_DESCRIPTOR => FtraceDescriptor::decode_from_slice(bytes).is_err(),
        // `gpu_counter_descriptor` is left out of our structs: it stays an unknown field and cannot fail to decode.
        _ => false,
    }
}

/// The message without the fields that `leaves_out` names.
fn without(message: &[u8], leaves_out: impl Fn(u32, Value<'_>) -> bool) -> Result<Vec<u8>, DecodeError> {
    let mut rest = Writer::new();
    for field in Reader::new(message) {
        let field = field?;
        if !leaves_out(field.number, field.value) {
            rest.raw(field.raw);
        }
    }
    Ok(rest.into_vec())
}

/// The message, with `rewrite` applied to each nested message of this number.
fn rewritten(
    message: &[u8],
    number: u32,
    rewrite: impl Fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
) -> Result<Vec<u8>, DecodeError> {
    let mut result = Writer::new();
    for field in Reader::new(message) {
        let field = field?;
        match field.value {
            Value::Bytes(inner) if field.number == number => result.bytes_field(number, &rewrite(inner)?),
            _ => result.raw(field.raw),
        }
    }
    Ok(result.into_vec())
}

#[cfg(test)]
mod tests {
    use super::tracing_service_state::DataSource;
    use super::*;
    use crate::messages::TrackEventCategory;

    fn descriptor(name: &str, track_event_descriptor: &[u8]) -> Vec<u8> {
        let mut descriptor = Writer::new();
        descriptor.bytes_field(
            DataSourceDescriptor::TRACK_EVENT_DESCRIPTOR,
            track_event_descriptor,
        );
        descriptor.bytes_field(DataSourceDescriptor::NAME, name.as_bytes());
        descriptor.varint_field(DataSourceDescriptor::NO_FLUSH, 1);
        descriptor.into_vec()
    }

    fn state(descriptors: &[Vec<u8>]) -> Vec<u8> {
        let mut state = Writer::new();
        for descriptor in descriptors {
            state.nested(TracingServiceState::DATA_SOURCES, |source| {
                source.bytes_field(DataSource::DS_DESCRIPTOR, descriptor);
                source.varint_field(DataSource::PRODUCER_ID, 7);
            });
        }
        state.bytes_field(TracingServiceState::TRACING_SERVICE_VERSION, b"a service");
        state.into_vec()
    }

    #[test]
    fn a_data_source_is_known_whatever_it_passes_on() {
        for opaque in [&b"DESC_"[..], b"", b"\xff\xff\xff"] {
            let known = essence(&descriptor("d", opaque)).unwrap();
            assert_eq!((known.name.as_deref(), known.no_flush), (Some("d"), Some(true)));
            assert!(!known.track_event_descriptor.is_set());
        }
        assert!(essence(b"\x0a\x05x").is_err());
        assert!(essence(b"\x0a\x01\xff").is_err(), "a name is a text");
    }

    #[test]
    fn one_illegible_descriptor_hides_no_other() {
        let categories = TrackEventDescriptor {
            available_categories: vec![TrackEventCategory {
                name: Some("c".into()),
                ..Default::default()
            }],
            ..Default::default()
        };
        let sources = [
            descriptor("odd", b"DESC_"),
            descriptor("good", &categories.encode_to_vec()),
        ];
        let decoded = decode_state(&state(&sources)).unwrap();
        let [odd, good] = &decoded.data_sources[..] else {
            panic!("{decoded:?}")
        };
        assert_eq!(odd.ds_descriptor.name.as_deref(), Some("odd"));
        assert!(!odd.ds_descriptor.track_event_descriptor.is_set());
        assert_eq!(*good.ds_descriptor.track_event_descriptor, categories);
        assert_eq!((odd.producer_id, good.producer_id), (Some(7), Some(7)));
        assert_eq!(decoded.tracing_service_version.as_deref(), Some("a service"));
        assert!(decode_state(b"\x12\x05x").is_err());
    }
}
