//! A program in which all goes well has nothing on its standard error. The test is that program, too.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use ferretto::options::LogLevel;
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_event_instant};

/// Says that the test is the program.
const PROGRAM: &str = "FERRETTO_TEST_QUIET";

fn record(options: Options) {
    ferretto::initialize(options);
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64)
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    trace_event_instant!("program", "Event");
    session.stop_blocking().unwrap();
    assert!(!session.read_to_end().unwrap().is_empty());
}

#[test]
fn success_is_not_printed() {
    if std::env::var_os(PROGRAM).is_some() {
        return record(Options::in_process());
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "success_is_not_printed"])
        .env(PROGRAM, "")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");

    // A log of one's own gets it.
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = lines.clone();
    record(Options::in_process().log(move |level, line| log.lock().unwrap().push((level, line.to_owned()))));
    let connected = (LogLevel::Info, "in-process service: connected".to_owned());
    assert!(lines.lock().unwrap().contains(&connected));
}
