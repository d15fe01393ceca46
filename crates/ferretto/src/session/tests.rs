//! Sessions of the service in this process, as an application runs them, with a data source that writes on command.
#![cfg(feature = "in-process")]

mod asynchronous;
mod clones;
mod losses;
mod random;
mod reading;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use ferretto_client::trace_writer::TraceWriter;
use ferretto_proto::messages::Message;
use ferretto_proto::messages::{
    DataSourceConfig, DataSourceDescriptor, TestEvent, Trace, TracePacket, TrackEventCategory, trace_packet,
};

use super::*;
use crate::options::{BufferExhaustedPolicy, Options};
use crate::source::{self, Acknowledge, Instance, Output, Slot, Source};

/// Tests take turns: a service runs five sessions of one user at once, and no more.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the texts that tests give it into all sessions that record it. Waits when the shared memory is full.
struct Recorder {
    name: String,
    writers: Mutex<BTreeMap<usize, TraceWriter>>,
    /// Keeps acknowledgements of starts back, if tests want so.
    starts: Mutex<Option<Vec<Acknowledge>>>,
}

impl Recorder {
    /// A recorder with a name of its own, which the service knows.
    fn new() -> Arc<Recorder> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        crate::initialize(Options::in_process().producer_name("ferretto-tests"));
        let recorder = Arc::new(Recorder {
            name: format!("session.test.{}", COUNT.fetch_add(1, Ordering::Relaxed)),
            writers: Mutex::default(),
            starts: Mutex::default(),
        });
        muxer::register(recorder.clone());
        let asks = Session::in_process();
        let until = Instant::now() + PATIENCE;
        loop {
            let state = asks.query_service_state(StateScope::Everything).unwrap().state;
            let knows = state
                .data_sources
                .iter()
                .any(|source| source.ds_descriptor.name.as_deref() == Some(recorder.name.as_str()));
            if knows {
                return recorder;
            }
            assert!(
                Instant::now() < until,
                "the service never hears of the data source"
            );
            std::thread::yield_now();
        }
    }

    fn config(&self) -> TraceConfig {
        TraceConfig::new()
            .buffer_kb(4096)
            .data_source(DataSource::new(&self.name))
    }

    /// Writes a packet for each session.
    fn write(&self, text: &str) {
        let packet = TracePacket {
            data: Some(trace_packet::Data::ForTesting(Box::new(TestEvent {
                str: Some(text.into()),
                ..Default::default()
            }))),
            ..Default::default()
        }
        .encode_to_vec();
        self.writers()
            .values_mut()
            .for_each(|writer| writer.write_packet(&packet));
    }

    fn writers(&self) -> MutexGuard<'_, BTreeMap<usize, TraceWriter>> {
        self.writers.lock().unwrap()
    }

    fn hold_starts(&self) {
        *self.starts.lock().unwrap() = Some(Vec::new());
    }

    fn release_starts(&self) {
        drop(self.starts.lock().unwrap().take());
    }
}

impl Source for Recorder {
    fn forget(&self) {}
}

impl source::DataSource for Recorder {
    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(self.name.clone()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            ..Default::default()
        }
    }

    fn set_up(&self, _: &Instance) -> Result<(), String> {
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let writer = output.create_trace_writer().unwrap();
        self.writers().insert(instance.slot.index(), writer);
        if let Some(held) = &mut *self.starts.lock().unwrap() {
            held.push(started);
        }
        Ok(())
    }

    fn stop(&self, slot: Slot, _: Acknowledge) {
        self.writers().remove(&slot.index());
    }

    fn flush(&self, slot: Slot, _: u64, _: Acknowledge) {
        if let Some(writer) = self.writers().get_mut(&slot.index()) {
            writer.flush();
        }
    }

    fn clear_incremental_state(&self, _: Slot) {}

    fn exhausted_policy(&self, _: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::Stall
    }
}

fn started(config: &TraceConfig) -> Session {
    let session = Session::in_process();
    session.setup(config).unwrap();
    session.start_blocking().unwrap();
    session
}

/// The texts of the recorders in a trace file, in order.
fn texts(trace: &[u8]) -> Vec<String> {
    let trace = Trace::decode_from_slice(trace).unwrap();
    trace.packet.iter().filter_map(text).collect()
}

fn text(packet: &TracePacket) -> Option<String> {
    match &packet.data {
        Some(trace_packet::Data::ForTesting(event)) => event.str.clone(),
        _ => None,
    }
}

fn contents(file: &mut std::fs::File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// How many sessions of this name the service has.
fn sessions_named(name: &str) -> usize {
    let state = Session::in_process()
        .query_service_state(StateScope::SessionsOnly)
        .unwrap()
        .state;
    let sessions = state.tracing_sessions.iter();
    sessions
        .filter(|session| session.unique_session_name.as_deref() == Some(name))
        .count()
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn events_between_start_and_stop_are_read() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    session.setup(&recorder.config()).unwrap();
    recorder.write("before the start");
    session.start_blocking().unwrap();
    recorder.write("one");
    recorder.write("two");
    session.stop_blocking().unwrap();
    recorder.write("after the stop");
    assert_eq!(texts(&session.read_to_end().unwrap()), ["one", "two"]);
    assert_eq!(texts(&session.read_to_end().unwrap()), [""; 0], "it was read");
}

#[test]
fn two_sessions_record_at_once_and_each_gets_its_own() {
    let _alone = alone();
    let (recorder, other) = (Recorder::new(), Recorder::new());
    let both = started(&recorder.config().data_source(DataSource::new(&other.name)));
    let one = started(&recorder.config());
    recorder.write("for both");
    other.write("for one of them");
    one.stop_blocking().unwrap();
    recorder.write("after the other ended");
    both.stop_blocking().unwrap();
    assert_eq!(texts(&one.read_to_end().unwrap()), ["for both"]);
    let mut all = texts(&both.read_to_end().unwrap());
    all.sort_unstable();
    assert_eq!(all, ["after the other ended", "for both", "for one of them"]);
}

#[test]
fn start_waits_for_data_sources_and_callbacks_report_start_and_stop() {
    let _alone = alone();
    let recorder = Recorder::new();
    recorder.hold_starts();
    let session = Session::in_process();
    let (sender, told) = mpsc::channel();
    let on_stop = sender.clone();
    session.on_start(move || sender.send("started").unwrap());
    session.on_stop(move || on_stop.send("stopped").unwrap());
    session.setup(&recorder.config()).unwrap();
    session.start();
    eventually("the data source starts", || !recorder.writers().is_empty());
    assert!(told.try_recv().is_err(), "it has not said so");
    recorder.release_starts();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("started"));
    session.start_blocking().unwrap();
    session.stop();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("stopped"));
    session.stop_blocking().unwrap();
    // A callback that is set after the stop is called at once.
    let (sender, told) = mpsc::channel();
    session.on_stop(move || sender.send(()).unwrap());
    told.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn callbacks_that_panic_do_no_harm() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    let (sender, told) = mpsc::channel();
    let (on_stop, on_read) = (sender.clone(), sender.clone());
    let fail = |told: &mpsc::Sender<&str>, what| {
        told.send(what).unwrap();
        panic!("for this test")
    };
    session.on_start(move || fail(&sender, "started"));
    session.on_stop(move || fail(&on_stop, "stopped"));
    session.setup(&recorder.config()).unwrap();
    session.start();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("started"));
    session.start_blocking().unwrap();
    session.stop_blocking().unwrap();
    assert_eq!(told.recv_timeout(PATIENCE), Ok("stopped"));
    session.read_with(move |_| fail(&on_read, "read"));
    assert_eq!(told.recv_timeout(PATIENCE), Ok("read"));
    session.losses_with(|_| panic!("for this test"));
    session.trace_stats_with(|_| panic!("for this test"));
    session.flush(Duration::ZERO, |_| panic!("for this test"));
    session.query_service_state_with(StateScope::SessionsOnly, |_| panic!("for this test"));
    session.clone_session_with(&CloneSource::Bugreport, |_| panic!("for this test"));
    session.query_capabilities().unwrap();
}

#[test]
fn a_data_source_that_does_not_start_is_not_waited_for_for_ever() {
    let _alone = alone();
    let recorder = Recorder::new();
    recorder.hold_starts();
    let mut session = Session::in_process();
    session.setup(&recorder.config()).unwrap();
    session.set_patience(Duration::from_millis(50));
    let error = session.start_blocking().unwrap_err();
    assert!(
        matches!(
            error,
            SessionError::TimedOut {
                request: "start the session",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "cannot start the session: the service has not answered within 0.05 s"
    );
    session.set_patience(PATIENCE);
    session.stop_blocking().unwrap();
    recorder.release_starts();
    let error = session.start_blocking().unwrap_err();
    assert!(matches!(error, SessionError::EndedEarly), "{error}");
}

#[test]
fn a_session_without_data_sources_starts_and_stops() {
    let _alone = alone();
    Recorder::new();
    let session = started(&TraceConfig::new().buffer_kb(64));
    session.stop_blocking().unwrap();
    assert!(
        !session.read_to_end().unwrap().is_empty(),
        "the service has its own packets"
    );
}

#[test]
fn a_trace_filter_needs_its_feature_and_the_refusal_names_it() {
    let _alone = alone();
    Recorder::new();
    let empty = ferretto_proto::messages::TraceConfig {
        trace_filter: ferretto_proto::messages::trace_config::TraceFilter::default().into(),
        ..Default::default()
    };
    let config = TraceConfig::new().buffer_kb(64);
    let session = Session::in_process();
    session
        .setup(&config.merge(&TraceConfig::from_encoded(empty.encode_to_vec()).unwrap()))
        .unwrap();
    let error = session.start_blocking().unwrap_err().to_string();
    // In a build together with the command line, cargo turns the feature on for both.
    let is_built_in = cfg!(feature = "trace-filter") || !error.contains("built into");
    let reason = if is_built_in {
        "trace_filter.bytecode"
    } else {
        "filters are not built into this service; build it with the feature `trace-filter`"
    };
    assert!(error.contains(reason), "{error}");
}

#[test]
fn a_config_that_the_service_refuses_is_reported_with_its_reason() {
    let _alone = alone();
    Recorder::new();
    let nonsense = TraceConfig::new()
        .buffer_kb(64)
        .data_source(DataSource::new("x").target_buffer(5));
    let session = Session::in_process();
    let (sender, errors) = mpsc::channel();
    session.on_error(move |error| sender.send(error.to_string()).unwrap());
    session.setup(&nonsense).unwrap();
    let error = session.start_blocking().unwrap_err().to_string();
    assert!(
        error.starts_with("the tracing service refused the session: "),
        "{error}"
    );
    assert!(error.contains('5'), "{error}");
    assert_eq!(errors.recv_timeout(PATIENCE).unwrap(), error);
    // All later calls fail in the same way, until the session is set up anew.
    assert_eq!(session.stop_blocking().unwrap_err().to_string(), error);
    assert_eq!(session.start_blocking().unwrap_err().to_string(), error);
    session.setup(&TraceConfig::new().buffer_kb(64)).unwrap();
    session.start_blocking().unwrap();

    let deferred = Session::in_process();
    deferred.setup(&nonsense.deferred_start()).unwrap();
    assert_eq!(deferred.start_blocking().unwrap_err().to_string(), error);
}

#[test]
fn methods_that_need_a_session_fail_without_one() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    let flush = || session.flush_blocking(Duration::ZERO);
    let attempts: [(&str, Result<(), SessionError>); 7] = [
        ("start the session", session.start_blocking()),
        ("stop the session", session.stop_blocking()),
        ("flush", flush()),
        ("read the trace", session.read_to_end().map(drop)),
        (
            "change the trace config",
            session.change_config(&recorder.config()),
        ),
        ("detach from the session", session.detach("key")),
        ("read the trace", session.read().unwrap().next_chunk().map(drop)),
    ];
    for (what, result) in attempts {
        let error = result.unwrap_err();
        assert!(
            matches!(error, SessionError::NotSetUp { request } if request == what),
            "{what}: {error}"
        );
    }
    assert!(matches!(
        session.trace_stats().unwrap_err(),
        SessionError::Rejected { .. }
    ));
    let (sender, errors) = mpsc::channel();
    session.on_error(move |error| sender.send(error).unwrap());
    session.start();
    let error = errors.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(error, SessionError::NotSetUp { .. }), "{error}");
}

#[test]
fn a_session_that_runs_is_not_set_up_as_another() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(&recorder.config());
    let attempts = [
        session.setup(&recorder.config()),
        session.attach("key").map(drop),
        session.clone_session(&CloneSource::Id(1)).map(drop),
    ];
    for attempt in attempts {
        let error = attempt.unwrap_err();
        assert!(matches!(error, SessionError::InUse), "{error}");
    }
    recorder.write("it runs");
    session.stop_blocking().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["it runs"]);
}

#[test]
fn a_session_is_used_again_and_again() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    for round in 0..5 {
        session.setup(&recorder.config()).unwrap();
        session.start_blocking().unwrap();
        recorder.write(&format!("round {round}"));
        session.stop_blocking().unwrap();
        if round % 2 == 0 {
            assert_eq!(texts(&session.read_to_end().unwrap()), [format!("round {round}")]);
        }
    }
}

#[test]
fn a_deferred_start_records_from_the_start_on() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    session.setup(&recorder.config().deferred_start()).unwrap();
    recorder.write("too early");
    session.start_blocking().unwrap();
    recorder.write("in time");
    session.stop_blocking().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["in time"]);

    let never_started = Session::in_process();
    never_started.setup(&recorder.config().deferred_start()).unwrap();
    never_started.stop_blocking().unwrap();
    assert_eq!(texts(&never_started.read_to_end().unwrap()), [""; 0]);
}

#[test]
fn the_duration_ends_a_session() {
    let _alone = alone();
    let recorder = Recorder::new();
    let mut seconds = 1;
    loop {
        let duration = Duration::from_secs(seconds);
        let begun = Instant::now();
        let session = started(&recorder.config().duration(duration));
        recorder.write("within");
        let early = session.wait_until_stopped(Duration::from_millis(1));
        let in_time = begun.elapsed() < duration / 2;
        session.wait_until_stopped(PATIENCE).unwrap();
        session.wait_until_stopped(PATIENCE).unwrap();
        // On a busy machine the session may be over before this thread has written.
        if in_time {
            assert!(matches!(early, Err(SessionError::TimedOut { .. })), "{early:?}");
            assert_eq!(texts(&session.read_to_end().unwrap()), ["within"]);
            return;
        }
        seconds *= 2;
    }
}

#[test]
fn a_session_streams_into_a_file() {
    let _alone = alone();
    let recorder = Recorder::new();
    let mut file = tempfile::tempfile().unwrap();
    let session = Session::in_process();
    let config = recorder.config().write_into_file(Duration::from_millis(100));
    session
        .setup_with_file(&config, file.try_clone().unwrap())
        .unwrap();
    session.start_blocking().unwrap();
    recorder.write("into the file");
    let error = session.read_to_end().unwrap_err();
    assert!(matches!(error, SessionError::WritesIntoFile), "{error}");
    session.stop_blocking().unwrap();
    assert_eq!(texts(&contents(&mut file)), ["into the file"]);

    let error = Session::in_process()
        .setup_with_file(&recorder.config(), tempfile::tempfile().unwrap())
        .unwrap_err();
    assert!(error.to_string().contains("write_into_file"), "{error}");
    let config = config.output_path("nowhere");
    let error = Session::in_process()
        .setup_with_file(&config, tempfile::tempfile().unwrap())
        .unwrap_err();
    assert!(error.to_string().contains("drop one"), "{error}");

    let long = recorder.config().unique_session_name(&"x".repeat(200_000));
    let session = Session::in_process();
    session.setup(&long).unwrap();
    let error = session.start_blocking().unwrap_err();
    assert!(error.to_string().contains("the trace config has 200"), "{error}");
}

#[test]
fn a_file_that_takes_no_more_ends_the_session_with_the_reason() {
    let _alone = alone();
    let recorder = Recorder::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let session = Session::in_process();
    let config = recorder.config().write_into_file(Duration::from_millis(100));
    session.setup_with_file(&config, full).unwrap();
    session.start_blocking().unwrap();
    let error = session.wait_until_stopped(PATIENCE).unwrap_err();
    assert!(matches!(error, SessionError::Failed(_)), "{error:?}");
    assert!(error.to_string().contains("No space left"), "{error}");
}

/// A data source with this number and a descriptor of this many bytes.
struct Wordy(usize, usize);

impl Source for Wordy {
    fn forget(&self) {}
}

impl source::DataSource for Wordy {
    fn descriptor(&self) -> DataSourceDescriptor {
        let mut descriptor = DataSourceDescriptor {
            name: Some(format!("session.test.wordy.{}.{}", self.0, self.1)),
            ..Default::default()
        };
        let categories = &mut descriptor.track_event_descriptor.get_or_insert_default();
        categories.available_categories.push(TrackEventCategory {
            name: Some("x".repeat(self.1)),
            ..Default::default()
        });
        descriptor
    }

    fn set_up(&self, _: &Instance) -> Result<(), String> {
        Ok(())
    }

    fn start(&self, _: &Instance, _: Output, _: Acknowledge) -> Result<(), String> {
        Ok(())
    }

    fn stop(&self, _: Slot, _: Acknowledge) {}

    fn flush(&self, _: Slot, _: u64, _: Acknowledge) {}

    fn clear_incremental_state(&self, _: Slot) {}
}

#[test]
fn services_hear_of_all_data_sources_up_to_the_limits() {
    const COUNT: usize = 60;
    let _alone = alone();
    let recorder = Recorder::new();
    // One descriptor is too large for a frame. The others together exceed the queue.
    let mut registered = vec![muxer::register(Arc::new(Wordy(0, 200_000)))];
    registered.extend((0..COUNT).map(|number| muxer::register(Arc::new(Wordy(number, 100_000)))));
    let known = |size: usize| {
        let state = Session::in_process()
            .query_service_state(StateScope::Everything)
            .unwrap()
            .state;
        let names = state
            .data_sources
            .iter()
            .map(|source| source.ds_descriptor.name.clone());
        names
            .flatten()
            .filter(|name| name.starts_with("session.test.wordy.") && name.ends_with(&format!(".{size}")))
            .count()
    };
    eventually("all are known", || known(100_000) == COUNT);
    assert_eq!(known(200_000), 0);
    // Other data sources still work.
    let session = started(&recorder.config());
    recorder.write("heard");
    session.stop_blocking().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["heard"]);
    registered.into_iter().for_each(muxer::unregister);
}

#[test]
fn a_session_is_left_and_taken_over() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(&recorder.config().unique_session_name("left"));
    recorder.write("before");
    session.detach("the key").unwrap();
    drop(session);
    recorder.write("meanwhile");
    let other = Session::in_process();
    let error = other.attach("another key").unwrap_err();
    assert!(error.to_string().contains("another key"), "{error}");
    let config = other.attach("the key").unwrap();
    assert_eq!(config, recorder.config().unique_session_name("left"));
    recorder.write("after");
    other.stop_blocking().unwrap();
    assert_eq!(
        texts(&other.read_to_end().unwrap()),
        ["before", "meanwhile", "after"]
    );
}

#[test]
fn a_session_ends_when_it_is_dropped() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = started(&recorder.config().unique_session_name("dropped"));
    assert_eq!(sessions_named("dropped"), 1);
    drop(session);
    eventually("the session ends", || sessions_named("dropped") == 0);
    eventually("its data source stops", || recorder.writers().is_empty());
}

#[test]
fn questions_are_answered() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Session::in_process();
    assert_eq!(
        session.query_capabilities().unwrap().has_clone_session,
        Some(true)
    );
    let (sender, observed) = mpsc::channel();
    session.observe(
        &[ObservableEventType::TYPE_DATA_SOURCES_INSTANCES],
        move |events| sender.send(events.clone()).unwrap(),
    );
    session.setup(&recorder.config()).unwrap();
    session.start_blocking().unwrap();
    recorder.write("counted");
    session.flush_blocking(Duration::ZERO).unwrap();
    let stats = session.trace_stats().unwrap();
    assert!(stats.buffer_stats[0].bytes_written.unwrap() > 0);
    let (sender, told) = mpsc::channel();
    session.trace_stats_with(move |stats| sender.send(stats).unwrap());
    let later = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(later.buffer_stats.len(), 1);
    let (sender, told) = mpsc::channel();
    session.query_service_state_with(StateScope::Everything, move |state| sender.send(state).unwrap());
    let state = told.recv_timeout(PATIENCE).unwrap().unwrap();
    assert!(!state.encoded.is_empty());
    assert!(!state.state.producers.is_empty());
    session.stop_blocking().unwrap();
    let changes: Vec<_> = observed
        .try_iter()
        .flat_map(|events| events.instance_state_changes)
        .filter_map(|change| change.data_source_name)
        .collect();
    assert!(changes.len() >= 2, "a start and a stop: {changes:?}");
    assert!(changes.iter().all(|name| *name == recorder.name));
}

#[test]
fn a_changed_config_lets_others_record() {
    let _alone = alone();
    let recorder = Recorder::new();
    let of = |producer| {
        TraceConfig::new()
            .buffer_kb(64)
            .data_source(DataSource::new(&recorder.name).of_producer(producer))
    };
    let session = started(&of("nobody"));
    recorder.write("not yet");
    let state = session.query_service_state(StateScope::Everything).unwrap().state;
    let name = state.producers[0].name.clone().unwrap();
    session.change_config(&of(&name)).unwrap();
    eventually("the data source starts", || !recorder.writers().is_empty());
    recorder.write("now");
    session.stop_blocking().unwrap();
    assert_eq!(texts(&session.read_to_end().unwrap()), ["now"]);
}

#[test]
fn callbacks_cannot_wait_but_can_do_all_else() {
    let _alone = alone();
    let recorder = Recorder::new();
    let session = Arc::new(Session::in_process());
    session.setup(&recorder.config()).unwrap();
    let (sender, told) = mpsc::channel();
    let inner = session.clone();
    session.on_start(move || {
        let refused = [
            inner.start_blocking().unwrap_err(),
            inner.stop_blocking().unwrap_err(),
            inner.flush_blocking(Duration::ZERO).unwrap_err(),
            inner.trace_stats().unwrap_err(),
            inner.read().unwrap_err(),
        ];
        let all = refused
            .iter()
            .all(|error| matches!(error, SessionError::OnSdkThread { .. }));
        let on_stop = inner.clone();
        let stopped = sender.clone();
        inner.on_stop(move || {
            let mut trace = Vec::new();
            on_stop.read_with(move |chunk| match chunk.unwrap() {
                Some(chunk) => trace.extend(chunk.into_bytes()),
                None => stopped.send((true, std::mem::take(&mut trace))).unwrap(),
            });
        });
        inner.stop();
        sender.send((all, Vec::new())).unwrap();
    });
    session.start();
    assert!(told.recv_timeout(PATIENCE).unwrap().0);
    let (_, trace) = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(texts(&trace), [""; 0]);
    assert!(!trace.is_empty());
}

#[test]
fn a_service_that_is_not_there_is_named() {
    let _alone = alone();
    Recorder::new();
    // A socket whose other end hangs up.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let session = Session::over(ours).unwrap();
    let (sender, errors) = mpsc::channel();
    session.on_error(move |error| sender.send(error).unwrap());
    drop(theirs);
    let error = session.query_capabilities().unwrap_err();
    assert!(matches!(error, SessionError::Disconnected(_)), "{error:?}");
    assert!(error.to_string().contains("closed the connection"), "{error}");
    assert!(matches!(
        errors.recv_timeout(PATIENCE).unwrap(),
        SessionError::Disconnected(_)
    ));
    // The session stays disconnected.
    let error = session.setup(&TraceConfig::new()).unwrap_err();
    assert!(matches!(error, SessionError::Disconnected(_)), "{error:?}");

    let error = Session::with_backend(Backend::Custom)
        .setup(&TraceConfig::new())
        .unwrap_err();
    assert!(matches!(error, SessionError::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("custom service"), "{error}");
}

#[test]
fn a_session_moves_between_threads_and_is_used_by_several() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Session>();
    fn is_sent<T: Send>() {}
    is_sent::<TraceReader>();
}
