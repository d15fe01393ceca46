//! Ring buffers of track events that have wrapped: what is left of them can be read, and a config without which that would not be certain is
//! told of in the log.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use ferretto::options::LogLevel;
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_event};
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::{Message, TracePacket, track_event};
use ferretto_wire::Reader;

/// Slices of one thread that come to several times the buffer.
const SLICES: u32 = 300_000;
const BUFFER_KB: u32 = 1024;

const INCREMENTAL_STATE_CLEARED: u32 = 1;

#[test]
fn a_ring_that_has_wrapped_reads_back_with_its_last_slices() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    let options = Options::in_process().log(move |level, line| {
        if level == LogLevel::Warning {
            log.lock().unwrap().push(line.to_owned());
        }
    });
    ferretto::initialize(options);

    let built = TraceConfig::new()
        .buffer_kb(BUFFER_KB)
        .data_source(DataSource::track_event());
    let (began, trace) = wrapped(&built);
    assert!(began > 0, "no slice can be read");
    assert_eq!(*lines.lock().unwrap(), Vec::<String>::new());
    read_by_trace_processor(&trace);

    // As somebody else made it. The SDK's writers repeat themselves all the same.
    let mut foreign = built.decode();
    foreign.incremental_state_config = Default::default();
    let (began, _) = wrapped(&TraceConfig::from(&foreign));
    assert!(began > 0, "no slice can be read");
    let lines = lines.lock().unwrap();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        line.contains("incremental_state_config { clear_period_ms: 5000 }"),
        "{line}"
    );
}

/// The beginnings of slices that readers understand in a ring that was filled several times, and the trace.
fn wrapped(config: &TraceConfig) -> (u32, Vec<u8>) {
    let session = Session::in_process();
    session.setup(config).unwrap();
    session.start_blocking().unwrap();
    for number in 0..SLICES {
        trace_event!("ring", "Slice", "number" => number);
    }
    session.stop_blocking().unwrap();
    let bytes = session.read_to_end().unwrap();
    let mut understood = std::collections::HashSet::new();
    let (mut began, mut kept) = (0, 0);
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
            began += u32::from(understood.contains(&sequence));
        }
    }
    assert!(kept < SLICES, "the ring of {BUFFER_KB} KB has not wrapped");
    (began, bytes)
}

/// What upstream's trace processor makes of it, if there is one.
fn read_by_trace_processor(trace: &[u8]) {
    let program = std::env::var_os("FERRETTO_TPQ").map(PathBuf::from);
    let Some(program) = program.filter(|path| path.exists()) else {
        println!("skipped: no trace processor; name the program tpq in FERRETTO_TPQ");
        return;
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), trace).unwrap();
    let output = Command::new(program)
        .arg(file.path())
        .arg("select count(*) as slices from slice where name = 'Slice'")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let slices: u32 = said.lines().last().unwrap().trim().parse().unwrap();
    assert!(slices > 0 && slices < SLICES, "{said}");
}
