//! Forks amid threads that take the locks over and over. The test runs itself once more, as the process that forks.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferretto::session::{DataSource, Session, TraceConfig};
use ferretto::{Options, trace_event_instant};
use tracing_core::{Dispatch, Level, Metadata, metadata::Kind};
use tracing_subscriber::prelude::*;

use crate::counters::Counter;
use crate::sites::tests::metadata;
use crate::sites::{LOG_SITES, SITES};

/// Set in the process that forks, and not in the one that watches it.
const SUBJECT: &str = "FERRETTO_TRACING_FORK_SUBJECT";

const FORKS: usize = 25;
/// The number of call sites. Sites are never freed, and each session visits all.
const MAX_NEW_SITES: u64 = 2000;
/// Seconds after which a waiting child is ended.
const PATIENCE: u32 = 20;

static ENOUGH: AtomicBool = AtomicBool::new(false);

/// Takes every lock that is held over forks, the way that recording does.
fn take_each(shared: &'static Metadata<'static>, sum: &Counter, turn: u64) {
    if turn < MAX_NEW_SITES {
        SITES.of(metadata("new", Kind::EVENT, &["monotonic_counter.shared"]));
    } else {
        drop(SITES.hold());
    }
    LOG_SITES.of(if turn.is_multiple_of(2) { "even" } else { "odd" }, Level::INFO);
    sum.sample(crate::counters::Number::Integer(1));
    let lanes = &SITES.of(shared).lanes;
    lanes.give_back(lanes.take(turn), turn);
    // New subscribers take tracing's own lock, which is not held over forks.
    drop(crate::interest::dispatches());
}

/// In a child: records, after all locks were taken.
fn record(shared: &'static Metadata<'static>, sum: &Counter) -> bool {
    take_each(shared, sum, 0);
    ferretto::initialize(Options::in_process());
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64)
        .data_source(DataSource::track_event());
    if session.setup(&config).is_err() || session.start_blocking().is_err() {
        return false;
    }
    take_each(shared, sum, 1);
    trace_event_instant!("fork", "Recorded");
    session.stop_blocking().is_ok()
        && session
            .read_to_end()
            .is_ok_and(|trace| holds(&trace, b"Recorded"))
}

fn holds(trace: &[u8], text: &[u8]) -> bool {
    trace.windows(text.len()).any(|window| window == text)
}

fn subject() {
    let _dispatch = Dispatch::new(tracing_subscriber::registry().with(crate::layer()));
    ferretto::initialize(Options::in_process());
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64)
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    let event = metadata("event", Kind::EVENT, &["monotonic_counter.shared"]);
    let shared = metadata("span", Kind::SPAN, &[]);
    let sum = Counter::of_field(event, "monotonic_counter.shared").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                static TURN: AtomicU64 = AtomicU64::new(0);
                while !ENOUGH.load(Ordering::Relaxed) {
                    take_each(shared, &sum, TURN.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
        for number in 0..FORKS {
            // SAFETY: the child only does things that this test proves to be allowed.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: these two have no conditions.
                unsafe { libc::alarm(PATIENCE) };
                let code = if record(shared, &sum) { 0 } else { 1 };
                // SAFETY: as above.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: waits for a child of this process's.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if status != 0 {
                // Not `eprintln`: the test harness would keep it, and dies here.
                let _ = writeln!(std::io::stderr(), "child {number} has ended with {status:#x}");
                // Not a normal exit: exit handlers may wait for locks that this thread holds.
                std::process::abort();
            }
        }
        ENOUGH.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_that_is_forked_amid_busy_threads_finds_no_lock_held() {
    if std::env::var_os(SUBJECT).is_some() {
        return subject();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg("fork::tests::a_child_that_is_forked_amid_busy_threads_finds_no_lock_held")
        .env(SUBJECT, "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
