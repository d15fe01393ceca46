//! The end of a session in a program that just ends. The test is that program, too.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_event_instant};
use ferretto_proto::messages::{Message, TracePacket, trace_packet};
use ferretto_wire::Reader;

/// Environment variable: the file into which the program streams its trace.
const TRACE: &str = "FERRETTO_TEST_TRACE";
const EVENTS: usize = 1000;
/// Environment variable: the trace goes into a pipe that is read only after a while.
const SLOWLY: &str = "FERRETTO_TEST_TRACE_SLOWLY";
/// These take more than a pipe holds.
const MANY_EVENTS: usize = 50_000;

/// Streams track events, and writes them when the session ends.
fn config(buffer_kb: u32) -> TraceConfig {
    TraceConfig::new()
        .buffer_kb(buffer_kb)
        .data_source(DataSource::track_event())
        .write_into_file(Duration::from_secs(3600))
}

/// Runs this program again for a test of it, with this variable; it has to end well.
fn run(test: &str, variable: &str, trace: &Path) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(variable, trace)
        .status()
        .unwrap();
    assert!(status.success());
}

fn program(trace: &OsStr, events: usize) -> ! {
    ferretto::initialize(Options::in_process());
    let session = Session::in_process();
    let config = config(4096);
    session
        .setup_with_file(&config, File::create(trace).unwrap())
        .unwrap();
    session.start_blocking().unwrap();
    for number in 0..events {
        trace_event_instant!("program", "Event", "number" => number);
    }
    std::process::exit(0);
}

#[test]
fn a_file_has_everything_when_the_program_ends() {
    if let Some(trace) = std::env::var_os(TRACE) {
        program(&trace, EVENTS);
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    run("a_file_has_everything_when_the_program_ends", TRACE, &trace);
    assert_eq!(events(&std::fs::read(trace).unwrap()), EVENTS);
}

/// Environment variable: a session begins just before the end.
const AT_THE_END: &str = "FERRETTO_TEST_TRACE_AT_THE_END";

#[test]
fn a_session_that_begins_just_before_the_end_still_has_its_file() {
    if let Some(trace) = std::env::var_os(AT_THE_END) {
        ferretto::initialize(Options::in_process());
        let session = Session::in_process();
        let config = config(256).output_path(trace.to_str().unwrap());
        session.setup(&config).unwrap();
        // Neither waits for the service.
        session.start();
        session.stop();
        File::create(Path::new(&trace).with_extension("ends")).unwrap();
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    for attempt in 0..20 {
        let trace = folder.path().join(format!("{attempt}.trace"));
        run(
            "a_session_that_begins_just_before_the_end_still_has_its_file",
            AT_THE_END,
            &trace,
        );
        let began_to_end = std::fs::metadata(trace.with_extension("ends")).unwrap();
        let took = began_to_end.modified().unwrap().elapsed().unwrap_or_default();
        match std::fs::read(trace) {
            Ok(trace) if !trace.is_empty() => return assert_eq!(events(&trace), 0),
            // An exit waits that long for a session to begin, and on a busy machine that may be too short.
            _ => assert!(took >= Duration::from_millis(100), "there was time: {took:?}"),
        }
    }
    panic!("no session had its file");
}

/// Environment variable: the SDK's thread is busy when the program ends.
const BUSY: &str = "FERRETTO_TEST_TRACE_BUSY";

#[test]
fn a_file_has_everything_though_the_sdks_thread_is_late() {
    if let Some(trace) = std::env::var_os(BUSY) {
        ferretto::initialize(Options::in_process());
        let session = Session::in_process();
        let config = config(64 * 1024);
        session
            .setup_with_file(&config, File::create(trace).unwrap())
            .unwrap();
        session.start_blocking().unwrap();
        for number in 0..MANY_EVENTS {
            trace_event_instant!("program", "Event", "number" => number);
        }
        session.flush_blocking(Duration::from_secs(60)).unwrap();
        // This takes longer than the end of a process usually waits.
        session.trace_stats_with(|_| std::thread::sleep(Duration::from_millis(300)));
        std::thread::sleep(Duration::from_millis(50));
        std::process::exit(0);
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    run(
        "a_file_has_everything_though_the_sdks_thread_is_late",
        BUSY,
        &trace,
    );
    assert_eq!(events(&std::fs::read(trace).unwrap()), MANY_EVENTS);
}

/// Returns the number of events in a trace.
fn events(trace: &[u8]) -> usize {
    let packets = Reader::new(trace).map(|field| {
        let packet = field.unwrap().value.as_bytes().unwrap();
        TracePacket::decode_from_slice(packet).unwrap()
    });
    packets
        .filter(|packet| matches!(packet.data, Some(trace_packet::Data::TrackEvent(_))))
        .count()
}

#[test]
fn a_pipe_has_everything_too_though_its_reader_is_late() {
    if let Some(trace) = std::env::var_os(SLOWLY) {
        program(&trace, MANY_EVENTS);
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_pipe_has_everything_too_though_its_reader_is_late"])
        .env(SLOWLY, &pipe)
        .spawn()
        .unwrap();
    let mut reader = File::open(pipe).unwrap();
    let mut trace = vec![0];
    // The program writes its recordings at its end, so it has reached the end when the first byte comes.
    reader.read_exact(&mut trace).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    reader.read_to_end(&mut trace).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(events(&trace), MANY_EVENTS);
}
