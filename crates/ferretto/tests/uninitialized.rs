//! The messages to an application that has not initialized tracing. A program of its own, because nothing undoes initialization.

use std::time::Duration;

use ferretto::Options;
use ferretto::session::{Session, SessionError, TraceConfig};

#[test]
fn sessions_report_missing_initialization_and_work_after_it() {
    let session = Session::new();
    let attempts = [
        session.setup(&TraceConfig::new()),
        session.start_blocking(),
        session.flush_blocking(Duration::ZERO),
        session.read().map(drop),
        session.trace_stats().map(drop),
    ];
    for attempt in attempts {
        let error = attempt.unwrap_err();
        assert!(matches!(error, SessionError::NotInitialized), "{error:?}");
        assert!(error.to_string().contains("ferretto::initialize"), "{error}");
    }
    let (sender, flushed) = std::sync::mpsc::channel();
    session.flush(Duration::ZERO, move |result| {
        sender.send(result.is_err()).unwrap()
    });
    assert_eq!(flushed.recv(), Ok(true), "it is told all the same");

    ferretto::initialize(Options::in_process());
    session.setup(&TraceConfig::new().buffer_kb(64)).unwrap();
    session.start_blocking().unwrap();
    session.stop_blocking().unwrap();
    assert!(!session.read_to_end().unwrap().is_empty());
}
