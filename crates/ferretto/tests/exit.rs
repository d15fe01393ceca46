//! What becomes of a session in a program that just ends. The test is that program, too.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::File;
use std::process::Command;
use std::time::Duration;

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_event_instant};
use ferretto_proto::messages::{Message, Trace, trace_packet};

/// Says where the program is to stream its trace to.
const TRACE: &str = "FERRETTO_TEST_TRACE";
const EVENTS: usize = 1000;

fn program(trace: &OsStr) -> ! {
    ferretto::initialize(Options::in_process());
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(4096)
        .data_source(DataSource::track_event())
        .write_into_file(Duration::from_secs(3600));
    session
        .setup_with_file(&config, File::create(trace).unwrap())
        .unwrap();
    session.start_blocking().unwrap();
    for number in 0..EVENTS {
        trace_event_instant!("program", "Event", "number" => number);
    }
    std::process::exit(0);
}

#[test]
fn a_file_has_everything_when_the_program_ends() {
    if let Some(trace) = std::env::var_os(TRACE) {
        program(&trace);
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_file_has_everything_when_the_program_ends"])
        .env(TRACE, &trace)
        .status()
        .unwrap();
    assert!(status.success());
    let trace = Trace::decode_from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let events = trace
        .packet
        .iter()
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackEvent(_))));
    assert_eq!(events.count(), EVENTS);
}
