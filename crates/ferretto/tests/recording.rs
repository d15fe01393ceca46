//! The contents of a recording's file, however the program ends. The tests are those programs, too.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

mod trace_processor;

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferretto::session::{
    CloneSource, DataSource, ExhaustedPolicy, Session, SessionError, StateScope, TriggerAction,
};
use ferretto::track::{set_process_name, set_thread_name};
use ferretto::{Options, Recording, RecordingOptions, TraceConfig, trace_event, trace_event_instant};
use ferretto_proto::messages::{Message, TracePacket, trace_packet, track_event};
use ferretto_wire::Reader;

/// Environment variable: the file into which the program records. It is set only in children.
const TRACE: &str = "FERRETTO_TEST_RECORDING";
const SLICES: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where this process is to record to, if it is a child of a test.
fn of_child() -> Option<std::ffi::OsString> {
    std::env::var_os(TRACE)
}

fn command(test: &str, trace: &OsStr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(TRACE, trace)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Runs this test as a program of its own; returns its output, and the number of slices in its trace.
fn run(test: &str) -> (Output, Counts) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pftrace");
    let output = command(test, trace.as_os_str()).output().unwrap();
    ask_trace_processor(&trace);
    (output, counts(&std::fs::read(trace).unwrap()))
}

#[derive(Debug, PartialEq, Eq)]
struct Counts {
    begun: usize,
    ended: usize,
}

impl Counts {
    fn whole(slices: usize) -> Counts {
        Counts {
            begun: slices,
            ended: slices,
        }
    }
}

/// Returns the number of slices in a trace file. All its packets must be complete.
fn counts(trace: &[u8]) -> Counts {
    let mut counts = Counts::whole(0);
    for field in Reader::new(trace) {
        let packet = TracePacket::decode_from_slice(field.unwrap().value.as_bytes().unwrap()).unwrap();
        if let Some(trace_packet::Data::TrackEvent(event)) = packet.data {
            match event.r#type {
                Some(track_event::Type::TYPE_SLICE_BEGIN) => counts.begun += 1,
                Some(track_event::Type::TYPE_SLICE_END) => counts.ended += 1,
                _ => {}
            }
        }
    }
    counts
}

/// Has upstream's trace processor find no fault, if there is one.
fn ask_trace_processor(trace: &Path) {
    let query = "select name, value from stats where severity in ('error', 'data_loss') and value != 0";
    if let Some(faults) = trace_processor::ask(trace, query) {
        assert_eq!(faults, Vec::<Vec<String>>::new());
    }
}

/// Recordings contain the events of the whole process, so tests that record in this one take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record_slices(count: usize) {
    for number in 0..count {
        trace_event!("program", "Slice", "number" => number);
    }
}

/// Records half of the slices on this thread, and half on another one, which lives on.
fn record_on_two_threads() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        record_slices(SLICES / 2);
        done.send(()).unwrap();
        loop {
            std::thread::park();
        }
    });
    record_slices(SLICES / 2);
    is_done.recv().unwrap();
}

fn said(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn a_program_that_returns_has_everything_and_says_nothing() {
    if let Some(trace) = of_child() {
        let recording = ferretto::record_to(&trace).unwrap();
        assert_eq!(recording.path(), Path::new(&trace));
        record_on_two_threads();
        return;
    }
    let (output, counts) = run("a_program_that_returns_has_everything_and_says_nothing");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(&output), "");
    assert_eq!(counts, Counts::whole(SLICES));
}

/// Records far more than the shared memory holds, on threads that do not wait.
fn record_too_much(trace: &OsStr, source: DataSource) -> Recording {
    ferretto::initialize(Options::in_process().shared_memory_size(4 * 4096));
    let recording = RecordingOptions::new()
        .track_events(source)
        .record_to(trace)
        .unwrap();
    let record = || record_slices(20 * SLICES);
    let threads = [(); 3].map(|()| std::thread::spawn(record));
    for thread in threads {
        thread.join().unwrap();
    }
    recording
}

/// Runs this test as a program that loses events, which has to be in its log.
fn assert_says_what_is_lost(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let output = command(test, trace.as_os_str()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        counts(&std::fs::read(&trace).unwrap()).begun < 60 * SLICES,
        "nothing is lost"
    );
    let lines: Vec<&str> = said(&output)
        .lines()
        .filter(|line| line.contains("lacks"))
        .collect();
    let [line] = lines.as_slice() else {
        panic!("one line says so: {output:?}")
    };
    let parts = [
        trace.to_str().unwrap(),
        "shared memory was full",
        "when_exhausted(ExhaustedPolicy::Stall)",
        "Options::shared_memory_size",
    ];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
}

#[test]
fn lost_events_are_in_the_log_with_what_to_do() {
    if let Some(trace) = of_child() {
        return drop(record_too_much(&trace, DataSource::track_event()));
    }
    assert_says_what_is_lost("lost_events_are_in_the_log_with_what_to_do");
}

#[test]
fn lost_events_of_a_program_that_exits_are_in_the_log_too() {
    if let Some(trace) = of_child() {
        let _recording = record_too_much(&trace, DataSource::track_event());
        std::process::exit(0);
    }
    assert_says_what_is_lost("lost_events_of_a_program_that_exits_are_in_the_log_too");
}

#[test]
fn threads_that_wait_lose_nothing_and_nothing_is_said() {
    if let Some(trace) = of_child() {
        let source = DataSource::track_event().when_exhausted(ExhaustedPolicy::Stall);
        return drop(record_too_much(&trace, source));
    }
    let (output, counts) = run("threads_that_wait_lose_nothing_and_nothing_is_said");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(&output), "");
    assert_eq!(counts, Counts::whole(60 * SLICES));
}

#[test]
fn a_program_that_returns_an_error_has_everything() {
    fn program(trace: &OsStr) -> Result<(), Box<dyn std::error::Error>> {
        let _trace = ferretto::record_to(trace)?;
        record_on_two_threads();
        "one".parse::<u32>()?;
        Ok(())
    }
    if let Some(trace) = of_child() {
        // `main` does the same with its result.
        std::process::exit(i32::from(program(&trace).is_err()));
    }
    let (output, counts) = run("a_program_that_returns_an_error_has_everything");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(counts, Counts::whole(SLICES));
}

#[test]
fn a_program_that_panics_has_everything_slices_that_unwound_included() {
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(trace).unwrap();
        record_on_two_threads();
        trace_event!("program", "Unwinds");
        panic!("for this test");
    }
    let (output, counts) = run("a_program_that_panics_has_everything_slices_that_unwound_included");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert_eq!(counts, Counts::whole(SLICES + 1));
}

#[test]
fn a_panic_of_another_thread_is_in_the_trace_that_goes_on() {
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(trace).unwrap();
        let panics = || {
            record_slices(SLICES / 2);
            panic!("for this test");
        };
        std::thread::spawn(panics).join().unwrap_err();
        record_slices(SLICES / 2);
        return;
    }
    let (output, counts) = run("a_panic_of_another_thread_is_in_the_trace_that_goes_on");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts, Counts::whole(SLICES));
}

#[test]
fn a_program_that_exits_on_any_thread_has_everything() {
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(trace).unwrap();
        record_on_two_threads();
        std::thread::spawn(|| std::process::exit(3));
        loop {
            std::thread::park();
        }
    }
    let (output, counts) = run("a_program_that_exits_on_any_thread_has_everything");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(said(&output), "");
    assert_eq!(counts, Counts::whole(SLICES));
}

#[test]
#[allow(unsafe_code, reason = "there is no other way to fork")]
fn a_forked_child_leaves_the_recording_to_its_parent() {
    if let Some(trace) = of_child() {
        let recording = ferretto::record_to(trace).unwrap();
        record_slices(SLICES / 2);
        // SAFETY: the child needs no lock that another thread of this program holds but the SDK's own, which are held over the fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // There is a thread that could be waited for, but it knows nothing of the parent's session.
            ferretto::initialize(ferretto::Options::in_process());
            drop(recording);
            // SAFETY: ends the child, without libtest's own end.
            unsafe { libc::_exit(4) };
        }
        let mut status = 0;
        // SAFETY: waits for the child of this process.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(libc::WEXITSTATUS(status), 4);
        record_slices(SLICES / 2);
        return;
    }
    let (output, counts) = run("a_forked_child_leaves_the_recording_to_its_parent");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(&output), "");
    assert_eq!(counts, Counts::whole(SLICES));
}

#[test]
fn a_program_that_returns_while_others_record_has_a_whole_file() {
    if let Some(trace) = of_child() {
        static RECORDS: AtomicBool = AtomicBool::new(false);
        let _trace = ferretto::record_to(trace).unwrap();
        for _ in 0..3 {
            std::thread::spawn(|| {
                loop {
                    trace_event_instant!("program", "Goes on");
                    RECORDS.store(true, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        while !RECORDS.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        record_slices(SLICES);
        return;
    }
    let (output, counts) = run("a_program_that_returns_while_others_record_has_a_whole_file");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(counts, Counts::whole(SLICES));
}

/// Waits until the file has all slices. Its last packet may still be incomplete.
fn await_slices(trace: &Path) {
    let until = Instant::now() + PATIENCE;
    loop {
        let bytes = std::fs::read(trace).unwrap_or_default();
        let packets = Reader::new(&bytes).map_while(Result::ok);
        let ends = packets.filter(|packet| {
            let event = packet
                .value
                .as_bytes()
                .and_then(|packet| TracePacket::decode_from_slice(packet).ok());
            matches!(event.and_then(|event| event.data), Some(trace_packet::Data::TrackEvent(event))
                if event.r#type == Some(track_event::Type::TYPE_SLICE_END))
        });
        if ends.count() >= SLICES {
            return;
        }
        assert!(Instant::now() < until, "the file never has what was recorded");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_program_that_aborts_keeps_the_streamed_events() {
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(&trace).unwrap();
        record_on_two_threads();
        await_slices(Path::new(&trace));
        std::process::abort();
    }
    let (output, counts) = run("a_program_that_aborts_keeps_the_streamed_events");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
    assert_eq!(counts, Counts::whole(SLICES));
}

/// Ends its child when it is dropped, whatever the result of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_is_killed_keeps_the_streamed_events() {
    const NAME: &str = "a_program_that_is_killed_keeps_the_streamed_events";
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(trace).unwrap();
        record_on_two_threads();
        loop {
            std::thread::park();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.pftrace");
    let child = Running(command(NAME, trace.as_os_str()).spawn().unwrap());
    await_slices(&trace);
    drop(child);
    ask_trace_processor(&trace);
    assert_eq!(counts(&std::fs::read(trace).unwrap()), Counts::whole(SLICES));
}

/// Upstream's service with sockets of its own, if it is there: `$PERFETTO_REFERENCE` is the folder.
fn service(folder: &Path) -> Option<Running> {
    let Some(programs) = std::env::var_os("PERFETTO_REFERENCE") else {
        println!("skipped: PERFETTO_REFERENCE names no folder with traced");
        return None;
    };
    let mut traced = Command::new(Path::new(&programs).join("traced"));
    Some(Running(
        at_sockets(&mut traced, folder)
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    ))
}

fn at_sockets<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command
        .env("PERFETTO_PRODUCER_SOCK_NAME", folder.join("producer"))
        .env("PERFETTO_CONSUMER_SOCK_NAME", folder.join("consumer"))
}

/// As [`service`], once programs can connect.
fn listening_service(folder: &Path) -> Option<Running> {
    let service = service(folder)?;
    let until = Instant::now() + PATIENCE;
    // A socket's file is there a moment before anybody can connect.
    let listens = |name: &str| UnixStream::connect(folder.join(name)).is_ok();
    while !listens("consumer") || !listens("producer") {
        assert!(Instant::now() < until, "the service does not listen");
        std::thread::yield_now();
    }
    Some(service)
}

/// Runs this test as a program that the machine's service records. The program begins to record before the service knows it as a producer.
fn run_with_service(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(_service) = listening_service(folder.path()) else {
        return;
    };
    let trace = folder.path().join("trace.pftrace");
    let output = at_sockets(&mut command(test, trace.as_os_str()), folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(&output), "");
    // When the program is gone, the service completes the file by itself.
    await_slices(&trace);
    ask_trace_processor(&trace);
    assert_eq!(counts(&std::fs::read(trace).unwrap()), Counts::whole(SLICES));
}

#[test]
fn the_machines_service_records_into_the_file_from_the_first_slice() {
    if let Some(trace) = of_child() {
        let recording = RecordingOptions::new().system().record_to(trace).unwrap();
        record_on_two_threads();
        let path = recording.finish().unwrap();
        return assert_eq!(counts(&std::fs::read(path).unwrap()), Counts::whole(SLICES));
    }
    run_with_service("the_machines_service_records_into_the_file_from_the_first_slice");
}

#[test]
fn the_machines_service_completes_the_file_of_a_program_that_exits() {
    if let Some(trace) = of_child() {
        let _trace = RecordingOptions::new().system().record_to(trace).unwrap();
        record_on_two_threads();
        std::process::exit(0);
    }
    run_with_service("the_machines_service_completes_the_file_of_a_program_that_exits");
}

#[test]
fn a_trigger_at_the_machines_service_asks_for_a_clone_that_can_be_read() {
    if let Some(trace) = of_child() {
        ferretto::initialize(Options::system().producer_name("of-this-test"));
        let session = Session::system();
        let config = TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::track_event())
            .trigger("of-this-test", TriggerAction::Clone, Duration::ZERO, PATIENCE);
        session.setup(&config).unwrap();
        let (hit, hits) = std::sync::mpsc::channel();
        session.on_clone_trigger(move |trigger| hit.send(trigger).unwrap());
        let (recorded, is_recorded) = std::sync::mpsc::channel();
        let _observing = ferretto::observe_sessions(move |event| {
            if let ferretto::SessionEvent::Started(_) = event {
                let _ = recorded.send(());
            }
        });
        session.start_blocking().unwrap();
        is_recorded.recv_timeout(PATIENCE).unwrap();
        record_slices(SLICES);
        ferretto::activate_triggers(&["of-this-test"], PATIENCE);
        let trigger = hits.recv_timeout(PATIENCE).unwrap();
        assert_eq!(
            (&*trigger.name, &*trigger.producer_name),
            ("of-this-test", "of-this-test")
        );
        let clone = Session::system();
        clone.clone_session(&CloneSource::Trigger(trigger)).unwrap();
        return std::fs::write(trace, clone.read_to_end().unwrap()).unwrap();
    }
    run_with_service("a_trigger_at_the_machines_service_asks_for_a_clone_that_can_be_read");
}

#[test]
fn a_service_that_ends_a_recording_is_in_the_log_and_in_the_result() {
    const NAME: &str = "a_service_that_ends_a_recording_is_in_the_log_and_in_the_result";
    if let Some(trace) = of_child() {
        let recording = RecordingOptions::new().system().record_to(&trace).unwrap();
        record_on_two_threads();
        // The test ends the service when it sees the slices, and then makes this file.
        let is_over = Path::new(&trace).with_extension("over");
        while !is_over.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = recording.finish().unwrap_err();
        // Upstream's service takes no leave.
        let says_so = matches!(error, SessionError::EndedEarly | SessionError::Disconnected(_));
        return assert!(says_so, "{error:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(mut service) = listening_service(folder.path()) else {
        return;
    };
    let trace = folder.path().join("trace.pftrace");
    let child = at_sockets(&mut command(NAME, trace.as_os_str()), folder.path())
        .spawn()
        .unwrap();
    let mut child = Running(child);
    await_slices(&trace);
    let pid = rustix::process::Pid::from_child(&service.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // It waits for consumers, so it ends only if the recording lets go of it.
    service.0.wait().unwrap();
    std::fs::write(trace.with_extension("over"), "").unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(child.0.wait().unwrap().success(), "{said}");
    assert!(said.contains("trace.pftrace has ended early"), "{said}");
    assert_eq!(counts(&std::fs::read(trace).unwrap()), Counts::whole(SLICES));
}

#[test]
fn a_service_that_is_not_there_is_an_error() {
    const NAME: &str = "a_service_that_is_not_there_is_an_error";
    if let Some(trace) = of_child() {
        let error = RecordingOptions::new().system().record_to(trace).unwrap_err();
        assert!(matches!(error, SessionError::Unavailable(_)), "{error:?}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let output = at_sockets(&mut command(NAME, trace.as_os_str()), folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_full_disk_is_in_the_log_and_in_the_result() {
    if let Some(trace) = of_child() {
        // Write periods end at multiples of the clock, so the first write may come before the answer to the start.
        let error = match ferretto::record_to(trace) {
            Ok(recording) => {
                record_slices(SLICES);
                recording.finish().unwrap_err()
            }
            Err(error) => error,
        };
        assert!(error.to_string().contains("No space left on device"), "{error:?}");
        return;
    }
    const NAME: &str = "a_full_disk_is_in_the_log_and_in_the_result";
    let output = command(NAME, OsStr::new("/dev/full")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut lines = said(&output).lines();
    let line = lines.find(|line| line.contains("the recording into /dev/full has ended early"));
    assert!(
        line.is_some_and(|line| line.contains("No space left on device")),
        "{output:?}"
    );
}

#[test]
fn a_full_disk_is_reported_even_if_the_program_just_exits() {
    if let Some(trace) = of_child() {
        // If the first write comes before the answer, this fails.
        let _trace = ferretto::record_to(trace);
        record_slices(SLICES);
        std::process::exit(0);
    }
    const NAME: &str = "a_full_disk_is_reported_even_if_the_program_just_exits";
    let output = command(NAME, OsStr::new("/dev/full")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(said(&output).contains("No space left on device"), "{output:?}");
}

#[test]
fn a_file_that_cannot_be_opened_is_named_with_the_reason_and_keeps_its_contents() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("there is none/trace");
    let error = ferretto::record_to(&nowhere).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "cannot write the trace to {}: No such file or directory (os error 2); create its folder first",
            nowhere.display()
        )
    );
    let trace = folder.path().join("trace");
    std::fs::write(&trace, "of an earlier run").unwrap();
    let first = ferretto::record_to(&trace).unwrap();
    record_slices(SLICES);
    let error = ferretto::record_to(&trace).unwrap_err().to_string();
    assert!(error.contains("another recording writes it"), "{error}");
    let path = first.finish().unwrap();
    assert_eq!(counts(&std::fs::read(path).unwrap()), Counts::whole(SLICES));
    // Now no recording writes into this file.
    drop(ferretto::record_to(&trace).unwrap());
}

#[test]
fn a_file_is_free_when_its_recording_has_ended_although_other_threads_start_programs() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::process::Command::new("true").status().unwrap();
                }
            });
        }
        let results: Vec<_> = (0..50)
            .map(|_| ferretto::record_to(&trace).and_then(ferretto::session::Recording::finish))
            .collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
}

/// Whether the service in this process has a session of this name.
fn has_session(name: &str) -> bool {
    let state = Session::in_process().query_service_state(StateScope::SessionsOnly);
    let sessions = state.unwrap().state.tracing_sessions;
    sessions
        .iter()
        .any(|session| session.unique_session_name.as_deref() == Some(name))
}

#[test]
fn a_session_that_its_config_ends_is_given_up_at_its_end_and_its_file_is_whole() {
    const NAME: &str = "of a recording that ends by itself";
    const SIZE: u64 = 100_000;
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let config = TraceConfig::new().unique_session_name(NAME).max_file_size(SIZE);
    let recording = RecordingOptions::new()
        .write_period(Duration::from_millis(100))
        .config(&config)
        .record_to(folder.path().join("trace"))
        .unwrap();
    assert!(has_session(NAME));
    let until = Instant::now() + PATIENCE;
    while has_session(NAME) {
        assert!(Instant::now() < until, "the service keeps the session");
        record_slices(100);
    }
    recording.flush(PATIENCE).unwrap_err();
    let trace = std::fs::read(recording.finish().unwrap()).unwrap();
    // Whole packets are written, as long as there is room for them.
    assert!(
        (SIZE / 2..=SIZE).contains(&(trace.len() as u64)),
        "{}",
        trace.len()
    );
    assert!(counts(&trace).begun > 0);
}

#[test]
fn names_that_the_program_chooses_are_those_of_thread_and_process() {
    if let Some(trace) = of_child() {
        let _trace = ferretto::record_to(trace).unwrap();
        set_process_name("a process (blue)");
        let thread = std::thread::Builder::new().name("the kernel's".to_owned());
        let worker = thread.spawn(|| {
            record_slices(SLICES);
            set_thread_name("a name of more than 15 bytes");
        });
        return worker.unwrap().join().unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    const NAME: &str = "names_that_the_program_chooses_are_those_of_thread_and_process";
    let output = command(NAME, trace.as_os_str()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let query = "select distinct thread.name, process.name from slice
        join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)";
    if let Some(names) = trace_processor::ask(&trace, query) {
        assert_eq!(names, [["a name of more than 15 bytes", "a process (blue)"]]);
    }
}

#[test]
fn options_choose_the_recorded_events() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let recording = RecordingOptions::new()
        .buffer_kb(4096)
        .write_period(Duration::from_secs(3600))
        .track_events(DataSource::track_event().disable_category("program"))
        .config(&ferretto::TraceConfig::new().unique_session_name("of this test"))
        .record_to(&trace)
        .unwrap();
    record_slices(SLICES);
    {
        trace_event!("another", "Slice");
    }
    recording.flush(PATIENCE).unwrap();
    drop(recording);
    assert_eq!(counts(&std::fs::read(trace).unwrap()), Counts::whole(1));
}
