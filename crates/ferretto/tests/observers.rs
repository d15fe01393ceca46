//! The application is told of sessions that come and go, and its flushed events are with the service.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferretto::session::{DataSource, Session, SessionError, TraceConfig};
use ferretto::{
    Backend, Category, DynamicCategory, Options, SessionEvent, trace_category_enabled, trace_event_instant,
};
use ferretto_proto::messages::{Message, TracePacket, trace_packet};
use ferretto_wire::Reader;

const PATIENCE: Duration = Duration::from_secs(60);

/// The listeners are global to the process, so tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ferretto::initialize(Options::in_process());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Sessions that were dropped end soon.
    let start = Instant::now();
    while trace_category_enabled!(DynamicCategory("observed")) {
        assert!(start.elapsed() < PATIENCE, "a session does not end");
        std::thread::yield_now();
    }
    alone
}

fn started(source: DataSource) -> Session {
    let session = Session::in_process();
    let config = TraceConfig::new().buffer_kb(1024).data_source(source);
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    session
}

/// The values of the annotations of all events, which have one each.
fn annotations(trace: &[u8]) -> Vec<u64> {
    let packets = Reader::new(trace).map(|field| {
        let packet = field.unwrap().value.as_bytes().unwrap();
        TracePacket::decode_from_slice(packet).unwrap()
    });
    let events = packets.filter_map(|packet| match packet.data {
        Some(trace_packet::Data::TrackEvent(event)) => Some(event),
        _ => None,
    });
    use ferretto_proto::messages::debug_annotation::Value;
    events
        .flat_map(|event| event.debug_annotations)
        .filter_map(|annotation| match annotation.value {
            Some(Value::UintValue(value)) => Some(value),
            Some(Value::IntValue(value)) => Some(value as u64),
            _ => None,
        })
        .collect()
}

fn channel<T: Send + 'static>() -> (Mutex<Sender<T>>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (Mutex::new(sender), receiver)
}

#[test]
fn an_observer_hears_of_each_step_and_records_the_first_and_last_events() {
    let _alone = alone();
    let (sender, told) = channel();
    let observing = ferretto::observe_sessions(move |event| {
        let what = match event {
            SessionEvent::SetUp(_) => 1u64,
            SessionEvent::Started(_) => 2,
            SessionEvent::Stopping(_) => 3,
            SessionEvent::Stopped(_) => 4,
            // Incremental state is cleared every five seconds, and printing the panics may take longer than that.
            _ => return,
        };
        trace_event_instant!("observed", "Told", "what" => what);
        let session = event.session();
        assert_eq!(session.backend(), Backend::InProcess);
        assert_eq!(session.track_event_config().enabled_categories, ["observed"]);
        assert_ne!(session.tracing_session_id(), 0);
        sender.lock().unwrap().send((what, session.instance())).unwrap();
        // Callbacks may fail; others, and the thread, go on.
        panic!("for this test");
    });
    let session = started(DataSource::track_event().enable_category("observed"));
    trace_event_instant!("observed", "In between", "what" => 10u64);
    session.stop_blocking().unwrap();
    let steps: Vec<(u64, u32)> = (0..4).map(|_| told.recv_timeout(PATIENCE).unwrap()).collect();
    assert_eq!(steps.iter().map(|step| step.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(steps.iter().all(|step| step.1 == steps[0].1), "{steps:?}");
    // Two threads recorded, so the order in the trace may vary.
    let mut recorded = annotations(&session.read_to_end().unwrap());
    recorded.sort_unstable();
    assert_eq!(recorded, [2, 3, 10]);

    drop(observing);
    drop(started(DataSource::track_event().enable_category("observed")));
    assert!(told.recv().is_err(), "whoever is told no more is dropped");
}

#[test]
fn clearing_incremental_state_is_reported() {
    let _alone = alone();
    let (sender, cleared) = channel();
    let _observing = ferretto::observe_sessions(move |event| {
        if let SessionEvent::ClearsIncrementalState(_) = event {
            let _ = sender.lock().unwrap().send(());
        }
    });
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(1024)
        .clear_incremental_state(Duration::from_millis(100))
        .data_source(DataSource::track_event());
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    cleared.recv_timeout(PATIENCE).unwrap();
    session.stop_blocking().unwrap();
}

#[test]
fn a_category_is_reported_from_the_first_session_to_the_last() {
    static SEEN: Category = Category::new("seen");
    static SLOW: Category = Category::new("seen slowly").tags(&["slow"]);
    static ANY: Category = Category::new("unseen,seen");
    let _alone = alone();
    let told: Arc<Mutex<Vec<(&str, bool)>>> = Arc::default();
    let observe = |category: &'static Category| {
        let told = Arc::clone(&told);
        ferretto::observe_category(category, move |is_recorded| {
            told.lock().unwrap().push((category.name(), is_recorded));
        })
    };
    // Makes sure that the SDK's thread has carried out all earlier commands.
    let settle = || drop(started(DataSource::new("no data source of this name")));
    let take = || std::mem::take(&mut *told.lock().unwrap());
    let observing = [observe(&SEEN), observe(&SLOW), observe(&ANY)];
    settle();
    assert_eq!(take(), []);
    let first = started(DataSource::track_event());
    assert_eq!(take(), [("seen", true), ("unseen,seen", true)]);
    let second = started(DataSource::track_event().enable_tag("slow"));
    assert_eq!(take(), [("seen slowly", true)]);
    first.stop_blocking().unwrap();
    assert_eq!(take(), []);
    let late = observe(&SEEN);
    settle();
    assert_eq!(take(), [("seen", true)], "one that comes late is told how it is");
    drop(late);
    second.stop_blocking().unwrap();
    assert_eq!(
        take(),
        [("seen", false), ("seen slowly", false), ("unseen,seen", false)]
    );
    drop(observing);
    drop(started(DataSource::track_event()));
    assert_eq!(take(), []);
    assert_eq!(Arc::strong_count(&told), 1);
}

#[test]
fn flushed_events_can_be_read_at_once() {
    let _alone = alone();
    ferretto::flush(PATIENCE).unwrap();
    let session = started(DataSource::track_event());
    let other = started(DataSource::track_event());
    let mut read = Vec::new();
    for number in 0..100u64 {
        trace_event_instant!("flush", "Event", "number" => number);
        ferretto::flush(PATIENCE).unwrap();
        read.extend(annotations(&session.read_to_end().unwrap()));
        assert_eq!(read.len() as u64, number + 1, "{read:?}");
    }
    assert_eq!(read, (0..100).collect::<Vec<_>>());
    session.stop_blocking().unwrap();
    other.stop_blocking().unwrap();
    assert_eq!(annotations(&other.read_to_end().unwrap()), read);
}

#[test]
fn flush_does_not_wait_where_it_would_wait_for_itself() {
    let _alone = alone();
    let (sender, result) = channel();
    let calls = AtomicUsize::new(0);
    let _observing = ferretto::observe_sessions(move |event| {
        if let SessionEvent::Started(_) = event
            && calls.fetch_add(1, Ordering::Relaxed) == 0
        {
            sender.lock().unwrap().send(ferretto::flush(PATIENCE)).unwrap();
        }
    });
    let session = started(DataSource::track_event());
    let result = result.recv_timeout(PATIENCE).unwrap();
    assert!(
        matches!(result, Err(SessionError::OnSdkThread { .. })),
        "{result:?}"
    );
    session.stop_blocking().unwrap();
}
