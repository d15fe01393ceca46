//! The SDK where it is off: it does nothing, with the same types.
//!
//! For builds with the feature `off` (`scripts/check-off`). One test, for it counts the process's threads and descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferretto::data_source::{DataSource, DataSourceHandle, SetUp};
use ferretto::session::{self, CloneSource, Session, SessionError, StateScope, TraceConfig};
use ferretto::startup::{StartupOptions, StartupOutcome};
use ferretto::track::{CounterTrack, StateTrack, Track, set_process_name, set_thread_name, track_descriptor};
use ferretto::{
    Category, DynamicCategory, Options, StaticName, TraceContext, trace_async, trace_category_enabled,
    trace_counter, trace_event, trace_event_begin, trace_event_end, trace_event_instant, trace_function,
    trace_slice, trace_state,
};

static KITCHEN: Category = Category::new("kitchen").description("Where bread is made");
static HEAP: CounterTrack = CounterTrack::new("Heap");
static OVEN: StateTrack = StateTrack::new("Oven");

/// An argument that must not be evaluated.
fn never<T>() -> T {
    panic!("evaluated although tracing is off")
}

#[trace_function("kitchen", args("x" => never::<u32>()))]
fn traced(x: u32) -> u32 {
    x + 1
}

#[trace_function("kitchen", args("x" => never::<u32>()))]
async fn traced_future(x: u32) -> u32 {
    x + 1
}

struct Temperature;

impl DataSource for Temperature {
    const NAME: &'static str = "com.example.temperature";
    type Incremental = ();
    type Thread = ();

    fn set_up(_: &SetUp<'_>) -> Self {
        never()
    }
}

static TEMPERATURE: DataSourceHandle<Temperature> = DataSourceHandle::new();

/// The number of the process's threads, and the targets of its descriptors.
fn surroundings() -> io::Result<(usize, BTreeSet<String>)> {
    let threads = fs::read_dir("/proc/self/task")?.count();
    let mut descriptors = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The folder's own is gone by now.
        if let Ok(target) = fs::read_link(entry.path())
            && !target.starts_with("/proc")
        {
            descriptors.insert(format!("{:?} {}", entry.file_name(), target.display()));
        }
    }
    Ok((threads, descriptors))
}

fn every_macro() {
    trace_event!("kitchen", "Bake", "x" => never::<u32>());
    let slice = trace_slice!(&KITCHEN, "Knead", flow = never::<u64>());
    assert!(!slice.is_recorded());
    drop(slice);
    trace_event!(DynamicCategory("kitchen"), never::<String>(), "x" => never::<u32>());
    trace_event_begin!(
        "kitchen",
        StaticName(never()),
        track = never::<Track>(),
        timestamp = never::<u64>()
    );
    trace_event_end!("kitchen", track = never::<Track>());
    trace_event_instant!("kitchen", "Ding", correlation_id = never::<u64>(), |_| never());
    trace_counter!("kitchen", "Loaves", never::<u64>());
    trace_counter!("kitchen", &HEAP, never::<f64>());
    trace_state!("kitchen", &OVEN, "Hot", "x" => never::<u32>());
    drop(trace_async!("kitchen", "Order", "x" => never::<u32>()));
    assert!(!trace_category_enabled!("kitchen"));
    assert!(!trace_category_enabled!(DynamicCategory("kitchen")));
    assert_eq!(traced(1), 2);
    drop(traced_future(1));
}

#[test]
fn nothing_is_done_and_nothing_fails() {
    let before = surroundings().unwrap();
    let lines = Arc::new(AtomicU32::new(0));
    let logged = Arc::clone(&lines);
    ferretto::initialize(Options::system().and_in_process().log(move |_, _| {
        logged.fetch_add(1, Ordering::Relaxed);
    }));
    ferretto::register_categories(&[&KITCHEN]);
    ferretto::add_test_category_prefixes(&["test."]);
    ferretto::activate_triggers(&["ding"], Duration::from_secs(1));
    assert!(!ferretto::is_initialized());
    let status = ferretto::status();
    assert!(!status.is_recording());
    assert!(status.to_string().contains("feature `off`"), "{status}");

    TEMPERATURE.register();
    TEMPERATURE.update_descriptor();
    assert!(!TEMPERATURE.is_active());
    TEMPERATURE.trace(|_| never());
    TEMPERATURE.unregister();

    let startup = ferretto::startup_tracing(
        &TraceConfig::new().data_source(session::DataSource::track_event()),
        StartupOptions::default(),
    )
    .unwrap();
    assert_eq!(startup.outcome(), Some(StartupOutcome::Aborted));
    startup.abort();

    set_thread_name("cook");
    set_process_name("kitchen");
    assert_ne!(
        track_descriptor(&Track::thread()).thread.thread_name.as_deref(),
        Some("cook")
    );

    // Requests are passed on all the same.
    let context = TraceContext::start().with_tracestate("vendor=1");
    let entered = context.clone().enter();
    let sent = TraceContext::outgoing();
    assert_eq!(
        (sent.trace_id(), sent.tracestate()),
        (context.trace_id(), Some("vendor=1"))
    );
    drop(entered);
    assert_eq!(TraceContext::current(), None);

    // A recording leaves its file alone, and an earlier trace in it.
    let folder = tempfile::tempdir().unwrap();
    let (earlier, none) = (folder.path().join("earlier"), folder.path().join("none"));
    fs::write(&earlier, "an earlier trace").unwrap();
    for path in [&earlier, &none] {
        let recording = ferretto::record_to(path).unwrap();
        assert_eq!(recording.path(), path);
        assert_eq!(surroundings().unwrap(), before, "a thread or a descriptor is new");
        recording.flush(Duration::ZERO).unwrap();
        assert_eq!(&recording.finish().unwrap(), path);
    }
    assert_eq!(fs::read(&earlier).unwrap(), b"an earlier trace");
    assert!(!none.exists());

    // A program that records itself comes to its end, with an empty trace.
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(64)
        .data_source(session::DataSource::track_event());
    session.on_error(|error| panic!("{error}"));
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    every_macro();
    session.flush_blocking(Duration::ZERO).unwrap();
    session.change_config(&config).unwrap();
    assert_eq!(surroundings().unwrap(), before, "a thread or a descriptor is new");
    session.stop_blocking().unwrap();
    session.wait_until_stopped(Duration::from_secs(3600)).unwrap();
    assert_eq!(session.read().unwrap().count(), 0);
    assert_eq!(session.read_to_end().unwrap(), []);
    let told = Arc::new(AtomicU32::new(0));
    let (started, stopped, read) = (Arc::clone(&told), Arc::clone(&told), Arc::clone(&told));
    session.on_start(move || {
        started.fetch_add(1, Ordering::Relaxed);
    });
    session.on_stop(move || {
        stopped.fetch_add(10, Ordering::Relaxed);
    });
    session.read_with(move |chunk| {
        assert!(matches!(chunk, Ok(None)), "{chunk:?}");
        read.fetch_add(100, Ordering::Relaxed);
    });
    assert_eq!(told.load(Ordering::Relaxed), 111, "who waits for it is told");

    session.on_clone_trigger(|_| never());

    // Questions about a session have no answer.
    for error in [
        session.losses().map(drop).unwrap_err(),
        session.trace_stats().map(drop).unwrap_err(),
        session.query_capabilities().map(drop).unwrap_err(),
        session
            .query_service_state(StateScope::Everything)
            .map(drop)
            .unwrap_err(),
        session
            .clone_session(&CloneSource::Bugreport)
            .map(drop)
            .unwrap_err(),
        session.attach("key").map(drop).unwrap_err(),
    ] {
        assert!(matches!(error, SessionError::Off(_)), "{error:?}");
    }
    drop(session);
    assert_eq!(lines.load(Ordering::Relaxed), 0, "nothing is said");
    assert_eq!(surroundings().unwrap(), before);
}
