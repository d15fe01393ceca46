//! Sessions that an application runs with a real service, ours or upstream's: the SDK's consumer and producer over sockets.
//!
//! It is one test, because a process has one SDK: our service is its system backend, and it reaches upstream's through a transport of its own.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use ferretto::options::{Address, Port};
use ferretto::session::{
    CloneSource, DataSource, ExhaustedPolicy, ObservableEventType, Session, SessionError, StateScope,
    TraceConfig,
};
use ferretto::{Backend, Options, trace_event_instant};
use ferretto_proto::messages::Message;
use ferretto_proto::messages::{Trace, trace_packet};
use support::trace::{LOSSES, TraceProcessor, numbers};
use support::{PATIENCE, Program, Programs, Side, System, await_that};

const NAME: &str = "sdk-sessions";

/// A service, and the backend for sessions with it.
struct Service<'a> {
    side: Side,
    backend: Backend,
    system: System<'a>,
}

impl Service<'_> {
    fn session(&self) -> Session {
        Session::with_backend(self.backend)
    }

    fn started(&self, config: &TraceConfig) -> Session {
        let session = self.session();
        session.setup(config).unwrap();
        session.start_blocking().unwrap();
        session
    }

    /// Returns the number of the service's sessions with this name.
    fn sessions_named(&self, name: &str) -> usize {
        let state = self.session().query_service_state(StateScope::Everything);
        let sessions = state.unwrap().state.tracing_sessions;
        sessions
            .iter()
            .filter(|session| session.unique_session_name.as_deref() == Some(name))
            .count()
    }
}

/// A part of the test with one service.
type Story = fn(&Service<'_>);

fn config() -> TraceConfig {
    TraceConfig::new().buffer_kb(8 * 1024).data_source(
        DataSource::track_event()
            .enable_category("story")
            .of_producer(NAME),
    )
}

fn record(number: u64) {
    trace_event_instant!("story", "Event", "number" => number);
}

/// Returns the values of the annotations of all events, in order.
fn recorded(trace: &[u8]) -> Vec<u64> {
    let trace = Trace::decode_from_slice(trace).unwrap();
    let annotations = trace.packet.iter().filter_map(|packet| match &packet.data {
        Some(trace_packet::Data::TrackEvent(event)) => event.debug_annotations.first().cloned(),
        _ => None,
    });
    use ferretto_proto::messages::debug_annotation::Value;
    annotations
        .map(|annotation| match annotation.value {
            Some(Value::UintValue(number)) => number,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn sessions_of_services_behind_sockets() {
    let programs = Programs::of_both();
    let with_upstream = programs.is_some();
    let programs = programs.unwrap_or_else(Programs::ours);
    let mut ours = Service {
        side: Side::Ours,
        backend: Backend::System,
        system: System::new(&programs),
    };
    ours.system.start(Side::Ours, Program::Traced);
    let mut options = Options::system()
        .producer_name(NAME)
        .producer_socket(Address::Unix(ours.system.producer_socket()))
        .consumer_socket(Address::Unix(ours.system.consumer_socket()));
    let mut services = vec![ours];
    if with_upstream {
        let mut upstreams = Service {
            side: Side::Upstream,
            backend: Backend::Custom,
            system: System::new(&programs),
        };
        upstreams.system.start(Side::Upstream, Program::Traced);
        let (producers, consumers) = (
            upstreams.system.producer_socket(),
            upstreams.system.consumer_socket(),
        );
        options = options.and_custom(move |port: Port| {
            let socket: &PathBuf = match port {
                Port::Producer => &producers,
                Port::Consumer => &consumers,
            };
            UnixStream::connect(socket).map(OwnedFd::from)
        });
        services.push(upstreams);
    }
    ferretto::initialize(options);
    let stories: [(&str, Story); 11] = [
        ("records", records),
        ("reads while recording", reads_while_recording),
        ("streams into a file", streams_into_a_file),
        ("clones", clones),
        ("detaches and attaches", detaches_and_attaches),
        ("ends with its duration", ends_with_its_duration),
        ("refuses", refuses),
        ("answers questions", answers_questions),
        ("two sessions", two_sessions),
        ("large trace", large_trace),
        ("over a stream of the embedder's", over_a_stream),
    ];
    for service in &services {
        await_that("the service knows the data source", || {
            let state = service.session().query_service_state(StateScope::Everything);
            let sources = state.unwrap().state.data_sources;
            sources
                .iter()
                .any(|source| source.ds_descriptor.name.as_deref() == Some("track_event"))
        });
        for (name, story) in stories {
            println!("{}: {name}", service.side);
            story(service);
        }
    }
    services.into_iter().for_each(ends_with_the_service);
}

fn records(service: &Service<'_>) {
    let session = service.started(&config());
    (0..1000).for_each(record);
    session.stop_blocking().unwrap();
    record(1000);
    let trace = session.read_to_end().unwrap();
    assert!(recorded(&trace).into_iter().eq(0..1000));
    if let Some(processor) = TraceProcessor::find() {
        let file = service.system.path("recorded.pftrace");
        std::fs::write(&file, &trace).unwrap();
        let [events, losses] = processor.query(
            &file,
            [
                "select count(*) from slice where name = 'Event' and dur = 0",
                LOSSES,
            ],
        );
        assert_eq!(numbers(&events), [1000]);
        assert_eq!(losses, [] as [Vec<String>; 0]);
    }
}

fn reads_while_recording(service: &Service<'_>) {
    let session = service.started(&config());
    for round in 0..5 {
        record(round);
        session.flush_blocking(PATIENCE).unwrap();
        assert_eq!(recorded(&session.read_to_end().unwrap()), [round]);
    }
    let (sender, flushed) = mpsc::channel();
    session.flush(Duration::ZERO, move |result| sender.send(result).unwrap());
    flushed.recv_timeout(PATIENCE).unwrap().unwrap();
}

fn streams_into_a_file(service: &Service<'_>) {
    let mut file = tempfile::tempfile().unwrap();
    let session = service.session();
    let config = config().write_into_file(Duration::from_millis(100));
    session
        .setup_with_file(&config, file.try_clone().unwrap())
        .unwrap();
    session.start_blocking().unwrap();
    (0..100).for_each(record);
    let error = session.read_to_end().unwrap_err();
    assert!(matches!(error, SessionError::WritesIntoFile), "{error}");
    session.stop_blocking().unwrap();
    assert!(recorded(&contents(&mut file)).into_iter().eq(0..100));
}

fn clones(service: &Service<'_>) {
    let original = service.started(&config().unique_session_name("original"));
    record(1);
    let clone = service.session();
    clone
        .clone_session(&CloneSource::Name("original".into()))
        .unwrap();
    record(2);
    assert_eq!(recorded(&clone.read_to_end().unwrap()), [1]);
    original.stop_blocking().unwrap();
    assert_eq!(recorded(&original.read_to_end().unwrap()), [1, 2]);
    let error = clone
        .clone_session(&CloneSource::Name("nobody".into()))
        .unwrap_err();
    assert!(matches!(error, SessionError::NotCloned(_)), "{error}");
}

fn detaches_and_attaches(service: &Service<'_>) {
    let session = service.started(&config().unique_session_name("left"));
    record(1);
    session.detach("key").unwrap();
    drop(session);
    record(2);
    let other = service.session();
    assert_eq!(other.attach("key").unwrap(), config().unique_session_name("left"));
    record(3);
    other.stop_blocking().unwrap();
    assert_eq!(recorded(&other.read_to_end().unwrap()), [1, 2, 3]);
    drop(other);
    await_that("the session is gone", || service.sessions_named("left") == 0);
    let error = service.session().attach("key").unwrap_err();
    assert!(matches!(error, SessionError::Rejected { .. }), "{error}");
}

fn ends_with_its_duration(service: &Service<'_>) {
    // On a busy machine a short session may be over before anything is recorded.
    let has_recorded = [200, 2_000, 20_000].into_iter().any(|ms| {
        let (sender, told) = mpsc::channel();
        let session = service.session();
        session.on_stop(move || sender.send(()).unwrap());
        session
            .setup(&config().duration(Duration::from_millis(ms)))
            .unwrap();
        session.start_blocking().unwrap();
        record(1);
        told.recv_timeout(PATIENCE).unwrap();
        session.wait_until_stopped(PATIENCE).unwrap();
        recorded(&session.read_to_end().unwrap()) == [1]
    });
    assert!(has_recorded);
}

fn refuses(service: &Service<'_>) {
    let (sender, errors) = mpsc::channel();
    let session = service.session();
    session.on_error(move |error| sender.send(error).unwrap());
    let twice = config().unique_session_name("only once");
    let first = service.started(&twice);
    session.setup(&twice).unwrap();
    session.start();
    let error = errors.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(error, SessionError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("only once"), "{error}");
    let again = session.start_blocking().unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    drop(first);
    await_that("the first session is gone", || {
        service.sessions_named("only once") == 0
    });
    session.setup(&twice).unwrap();
    session.start_blocking().unwrap();
}

fn answers_questions(service: &Service<'_>) {
    let session = service.session();
    assert_eq!(
        session.query_capabilities().unwrap().has_query_capabilities,
        Some(true)
    );
    let (sender, observed) = mpsc::channel();
    session.observe(
        &[ObservableEventType::TYPE_DATA_SOURCES_INSTANCES],
        move |events| sender.send(events.clone()).unwrap(),
    );
    session.setup(&config()).unwrap();
    session.start_blocking().unwrap();
    record(1);
    session.flush_blocking(Duration::ZERO).unwrap();
    let stats = session.trace_stats().unwrap();
    assert!(stats.buffer_stats[0].bytes_written.unwrap() > 0);
    let state = session.query_service_state(StateScope::Everything).unwrap();
    let mut producers = state.state.producers.iter();
    assert!(producers.any(|producer| producer.name.as_deref() == Some(NAME)));
    session.change_config(&config()).unwrap();
    session.stop_blocking().unwrap();
    let changes = observed
        .try_iter()
        .flat_map(|events| events.instance_state_changes)
        .filter(|change| change.data_source_name.as_deref() == Some("track_event"))
        .count();
    assert!(changes >= 2, "{changes}");
}

fn two_sessions(service: &Service<'_>) {
    let first = service.started(&config());
    record(1);
    let second = service.started(&config());
    record(2);
    first.stop_blocking().unwrap();
    record(3);
    second.stop_blocking().unwrap();
    assert_eq!(recorded(&first.read_to_end().unwrap()), [1, 2]);
    assert_eq!(recorded(&second.read_to_end().unwrap()), [2, 3]);
}

/// Returns the anonymous memory of this process in KB.
fn memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn large_trace(service: &Service<'_>) {
    const EVENTS: u64 = 5000;
    let config = TraceConfig::new().buffer_kb(128 * 1024).data_source(
        DataSource::track_event()
            .enable_category("story")
            .when_exhausted(ExhaustedPolicy::Stall),
    );
    let session = service.started(&config);
    let long = "x".repeat(20 * 1024);
    for number in 0..EVENTS {
        trace_event_instant!("story", "Large", "number" => number, "long" => long.as_str());
    }
    session.stop_blocking().unwrap();
    let before = memory_kb();
    let (mut bytes, mut most, mut next) = (0, 0, 0);
    let reader = session.read().unwrap();
    for chunk in reader {
        let chunk = chunk.unwrap();
        bytes += chunk.as_bytes().len();
        for number in recorded(chunk.as_bytes()) {
            assert_eq!(number, next);
            next += 1;
        }
        most = most.max(memory_kb().saturating_sub(before));
    }
    assert_eq!(next, EVENTS);
    assert!(bytes > 100_000_000, "{bytes}");
    assert!(most < 24 * 1024, "{most} KB more while reading {bytes} bytes");
}

fn over_a_stream(service: &Service<'_>) {
    let stream = UnixStream::connect(service.system.consumer_socket()).unwrap();
    let session = Session::over(stream).unwrap();
    session.setup(&config()).unwrap();
    session.start_blocking().unwrap();
    record(7);
    session.stop_blocking().unwrap();
    assert_eq!(recorded(&session.read_to_end().unwrap()), [7]);
    // That socket accepts no sessions.
    let wrong = UnixStream::connect(service.system.producer_socket()).unwrap();
    let error = Session::over(wrong).unwrap().query_capabilities().unwrap_err();
    assert!(matches!(error, SessionError::Disconnected(_)), "{error:?}");
    assert!(error.to_string().contains("ConsumerPort"), "{error}");
}

/// The last story: the service ends.
fn ends_with_the_service(service: Service<'_>) {
    let session = service.started(&config());
    let (sender, errors) = mpsc::channel();
    session.on_error(move |error| sender.send(error).unwrap());
    let (backend, socket) = (service.backend, service.system.consumer_socket());
    // After this answer, the session's errors reach the callback.
    session.query_capabilities().unwrap();
    drop(service);
    // Our service ends its sessions first; upstream's just exits.
    let error = errors.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(error, SessionError::Disconnected(_) | SessionError::Failed(_)),
        "{error:?}"
    );
    let error = session.wait_until_stopped(PATIENCE).unwrap_err();
    await_that("the session says so", || session.trace_stats().is_err());
    println!("{error}");

    let error = Session::with_backend(backend).setup(&config()).unwrap_err();
    assert!(matches!(error, SessionError::Unavailable(_)), "{error:?}");
    if backend == Backend::System {
        let socket = Path::new(&socket).to_string_lossy().into_owned();
        assert!(error.to_string().contains(&socket), "{error}");
    }
}
