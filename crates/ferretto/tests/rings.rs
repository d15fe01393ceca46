//! Ring buffers of track events that have wrapped: the rest of them can be read, and the log warns of a config without which that would not be
//! certain.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod trace_processor;

use std::sync::{Arc, Mutex};

use ferretto::options::LogLevel;
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{BufferExhaustedPolicy, Options, trace_event};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::{Message, TracePacket, debug_annotation, track_event};
use ferretto_wire::Reader;

/// Slices of one thread that come to several times the buffer.
const SLICES: u32 = 300_000;
const BUFFER_KB: u32 = 1024;

const INCREMENTAL_STATE_CLEARED: u32 = 1;

#[test]
fn a_ring_that_has_wrapped_reads_back_with_its_last_slices() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    // On a busy machine the newest slices might be dropped otherwise.
    let options = Options::in_process()
        .track_event_policy(BufferExhaustedPolicy::StallThenDrop)
        .log(move |level, line| {
            if level == LogLevel::Warning {
                log.lock().unwrap().push(line.to_owned());
            }
        });
    ferretto::initialize(options);

    let built = TraceConfig::new()
        .buffer_kb(BUFFER_KB)
        .data_source(DataSource::track_event());
    let trace = wrapped(&built);
    assert_eq!(*lines.lock().unwrap(), Vec::<String>::new());
    read_by_trace_processor(&trace);

    // As somebody else made it. The SDK's writers repeat themselves all the same.
    let mut foreign = built.decode();
    foreign.incremental_state_config = Default::default();
    wrapped(&TraceConfig::from(&foreign));
    let lines = lines.lock().unwrap();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        line.contains("incremental_state_config { clear_period_ms: 5000 }"),
        "{line}"
    );
}

/// A trace of a ring that was filled several times. Readers understand the newest slices, and most of all that it has.
fn wrapped(config: &TraceConfig) -> Vec<u8> {
    let session = Session::in_process();
    session.setup(config).unwrap();
    session.start_blocking().unwrap();
    for number in 0..SLICES {
        trace_event!("ring", "Slice", "number" => number);
    }
    session.stop_blocking().unwrap();
    let bytes = session.read_to_end().unwrap();
    let mut understood = std::collections::HashSet::new();
    let (mut began, mut kept, mut newest) = (0, 0, None);
    // A trace of so many packets is decoded one by one.
    for field in Reader::new(&bytes) {
        let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
        let sequence = match packet.optional_trusted_packet_sequence_id {
            Some(TrustedPacketSequenceId(id)) => id,
            None => 0,
        };
        let flags = packet.sequence_flags.unwrap_or_default();
        if flags & INCREMENTAL_STATE_CLEARED != 0 {
            understood.insert(sequence);
        }
        if let Some(Data::TrackEvent(event)) = &packet.data
            && event.r#type == Some(track_event::Type::TYPE_SLICE_BEGIN)
        {
            kept += 1;
            if understood.contains(&sequence) {
                began += 1;
                newest = event
                    .debug_annotations
                    .first()
                    .and_then(|number| number.value.clone());
            }
        }
    }
    assert!(kept < SLICES, "the ring of {BUFFER_KB} KB has not wrapped");
    assert!(began > kept / 2, "of {kept} slices only {began} can be read");
    assert_eq!(
        newest,
        Some(debug_annotation::Value::UintValue(u64::from(SLICES) - 1))
    );
    bytes
}

/// Has upstream's trace processor read it, if there is one.
fn read_by_trace_processor(trace: &[u8]) {
    let query =
        "select max(extract_arg(arg_set_id, 'debug.number')) as newest from slice where name = 'Slice'";
    if let Some(newest) = trace_processor::ask_numbers(trace, query) {
        assert_eq!(newest, [u64::from(SLICES - 1)]);
    }
}
