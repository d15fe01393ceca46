//! Data sources of an application's own, recorded by the service in its process.
#![cfg(feature = "in-process")]
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferretto::Options;
use ferretto::data_source::{DataSource, DataSourceHandle, Flush, SetUp, Start, Stop};
use ferretto::session::{DataSource as Source, Session, StateScope, TraceConfig};
use ferretto_proto::messages::{DataSourceDescriptor, Message, Trace, trace_packet};

const PATIENCE: Duration = Duration::from_secs(120);

/// Its descriptor contains the number of requests for it, and it logs all calls.
struct Diary {
    wish: String,
}

static DIARY: DataSourceHandle<Diary> = DataSourceHandle::new();
static DESCRIBED: AtomicU32 = AtomicU32::new(0);
static ENTRIES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(entry: String) {
    ENTRIES.lock().unwrap().push(entry);
}

impl DataSource for Diary {
    const NAME: &'static str = "ferretto.test.diary";
    /// Whether the sequence has written its introduction.
    type Incremental = bool;
    /// The number of packets of a thread so far.
    type Thread = u32;

    fn descriptor() -> DataSourceDescriptor {
        let asked = DESCRIBED.fetch_add(1, Ordering::Relaxed);
        let mut descriptor = DataSourceDescriptor {
            name: Some(Self::NAME.to_owned()),
            ..Default::default()
        };
        let categories = &mut descriptor
            .track_event_descriptor
            .get_or_insert_default()
            .available_categories;
        categories.push(ferretto_proto::messages::TrackEventCategory {
            name: Some(format!("asked {asked}")),
            ..Default::default()
        });
        descriptor
    }

    fn set_up(set_up: &SetUp<'_>) -> Self {
        let wish = set_up.config.legacy_config.clone().unwrap_or_default();
        note(format!("{wish}: set up"));
        Diary { wish }
    }

    fn start(&self, start: Start) {
        note(format!("{}: start", self.wish));
        drop(start);
    }

    fn stop(&self, stop: Stop<Self>) {
        note(format!("{}: stop", self.wish));
        // Packets that are written before `stop` is dropped are still recorded.
        write(999);
        drop(stop);
    }

    fn flush(&self, flush: Flush) {
        note(format!("{}: flush", self.wish));
        drop(flush);
    }

    fn will_clear_incremental_state(&self) {
        note(format!("{}: clear", self.wish));
    }
}

/// Writes a number into each session.
fn write(number: u32) {
    DIARY.trace(|ctx| {
        if !std::mem::replace(ctx.incremental, true) {
            ctx.packet(|packet| {
                packet.for_testing(|event| {
                    event.str("introduction");
                });
            });
        }
        *ctx.thread += 1;
        let (count, wish) = (*ctx.thread, &ctx.instance.wish);
        ctx.writer.packet(|packet| {
            packet.for_testing(|event| {
                event.str(wish).seq_value(number).counter(u64::from(count));
            });
        });
    });
}

fn start(wish: &str, clear: Option<Duration>) -> Session {
    let fields = ferretto_proto::messages::DataSourceConfig {
        legacy_config: Some(wish.to_owned()),
        ..Default::default()
    };
    let source = Source::new(Diary::NAME).encoded_config(&fields.encode_to_vec());
    let mut config = TraceConfig::new().buffer_kb(1024).data_source(source);
    if let Some(period) = clear {
        config = config.clear_incremental_state(period);
    }
    let session = Session::in_process();
    session.setup(&config).unwrap();
    session.start_blocking().unwrap();
    session
}

/// Stops the session; returns the numbers in its trace, each with the count of its sequence, and the number of introductions.
fn stop(session: &Session, wish: &str) -> (Vec<(u32, u64)>, usize) {
    session.stop_blocking().unwrap();
    let trace = Trace::decode_from_slice(&session.read_to_end().unwrap()).unwrap();
    let mut introductions = 0;
    let mut numbers = Vec::new();
    for packet in &trace.packet {
        let Some(trace_packet::Data::ForTesting(event)) = &packet.data else {
            continue;
        };
        match event.seq_value {
            None => introductions += 1,
            Some(number) => {
                assert_eq!(event.str.as_deref(), Some(wish), "the other session's");
                numbers.push((number, event.counter.unwrap()));
            }
        }
    }
    (numbers, introductions)
}

fn await_that(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The service's description of the data source.
fn described() -> Option<String> {
    let state = Session::in_process()
        .query_service_state(StateScope::Everything)
        .unwrap();
    let mut found = state.state.data_sources.iter().filter_map(|source| {
        let descriptor = source.ds_descriptor.as_option()?;
        (descriptor.name.as_deref() == Some(Diary::NAME)).then_some(descriptor)
    });
    let categories = &found.next()?.track_event_descriptor.available_categories;
    categories.first()?.name.clone()
}

#[test]
fn a_data_source_is_set_up_started_written_through_flushed_and_stopped_for_each_session() {
    ferretto::initialize(Options::in_process());
    DIARY.register();
    assert!(!DIARY.is_active());
    write(1);
    let one = start("one", None);
    write(2);
    let other = start("other", None);
    std::thread::spawn(|| write(3)).join().unwrap();
    write(4);
    other.flush_blocking(PATIENCE).unwrap();
    let (mut numbers, introductions) = stop(&one, "one");
    numbers.sort();
    assert_eq!(
        (numbers, introductions),
        (vec![(2, 1), (3, 1), (4, 2), (999, 1)], 3)
    );
    write(5);
    let (mut numbers, introductions) = stop(&other, "other");
    numbers.sort();
    // The SDK's thread wrote 999 at the end of each instance.
    assert_eq!(numbers, [(3, 1), (4, 1), (5, 2), (999, 1), (999, 2)]);
    assert_eq!(introductions, 3, "one of each thread's sequence");
    assert!(!DIARY.is_active());

    // Introductions are repeated when they may be lost.
    let clearing = start("clearing", Some(Duration::from_millis(20)));
    let cleared = || {
        ENTRIES
            .lock()
            .unwrap()
            .iter()
            .filter(|entry| *entry == "clearing: clear")
            .count()
    };
    await_that("the state is cleared", || {
        write(6);
        cleared() >= 3
    });
    write(6);
    let (_, introductions) = stop(&clearing, "clearing");
    assert!(introductions >= 3, "{introductions}");
    let entries = ENTRIES.lock().unwrap().clone();
    let of = |wish: &str| -> Vec<String> {
        let entries = entries.iter().filter_map(|entry| entry.strip_prefix(wish));
        entries
            .map(|entry| entry.trim_start_matches(": ").to_owned())
            .collect()
    };
    let one = of("one");
    assert_eq!(
        [&one[0], &one[1], one.last().unwrap()],
        ["set up", "start", "stop"]
    );
    assert!(of("other").contains(&"flush".to_owned()));

    // The descriptor is asked for again when the program says that it has changed.
    await_that("it is described", || described().is_some());
    let before = described().unwrap();
    DIARY.update_descriptor();
    await_that("the service is told", || {
        described().is_some_and(|now| now != before)
    });
    DIARY.unregister();
    await_that("it is withdrawn", || described().is_none());
}
