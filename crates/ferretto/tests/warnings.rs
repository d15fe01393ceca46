//! What the log says when nobody else would be told. A program of its own, because the log is the process's.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferretto::options::LogLevel;
use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, Timestamp, trace_event_instant};

const PATIENCE: Duration = Duration::from_secs(60);

type Lines = Arc<Mutex<Vec<String>>>;

fn warnings(lines: &Lines) -> Vec<String> {
    std::mem::take(&mut lines.lock().unwrap())
}

fn refused() -> TraceConfig {
    TraceConfig::new().data_source(DataSource::track_event())
}

/// A session that is refused, and then answers once more, so that all callbacks were called.
fn start(session: &Session) {
    session.setup(&refused()).unwrap();
    session.start();
    let asked = session.start_blocking();
    assert!(asked.is_err());
}

#[test]
fn warnings_are_for_those_who_are_not_told() {
    let lines = Lines::default();
    let log = lines.clone();
    ferretto::initialize(Options::in_process().log(move |level, line| {
        if level == LogLevel::Warning {
            log.lock().unwrap().push(line.to_owned());
        }
    }));

    // A session that asks for no answer, and is refused.
    let begun = Instant::now();
    let silent = Session::in_process();
    silent.setup(&refused()).unwrap();
    silent.start();
    while lines.lock().unwrap().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "nothing is said");
        std::thread::sleep(Duration::from_millis(1));
    }
    let said = warnings(&lines);
    assert!(said.len() == 1 && said[0].contains("buffer"), "{said:?}");

    // One that is told.
    let told = Session::in_process();
    let (sender, errors) = std::sync::mpsc::channel();
    told.on_error(move |error| sender.send(error.to_string()).unwrap());
    start(&told);
    assert!(errors.recv().unwrap().contains("buffer"));
    let waits = Session::in_process();
    waits.setup(&refused()).unwrap();
    assert!(waits.start_blocking().is_err());
    // One that is not even set up.
    let idle = Session::in_process();
    idle.start();
    assert!(idle.flush_blocking(Duration::from_secs(1)).is_err());
    let said = warnings(&lines);
    assert!(said.len() == 1 && said[0].contains("no config"), "{said:?}");

    // Times on the clocks that sequences have for themselves.
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64)
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    for clock_id in [63, 64, 127, 128] {
        trace_event_instant!(
            "c",
            "Instant",
            timestamp = Timestamp::OnClock { clock_id, value: 1 }
        );
    }
    session.stop_blocking().unwrap();
    let said = warnings(&lines);
    assert!(said.len() == 1 && said[0].contains("clock 64"), "{said:?}");
}
