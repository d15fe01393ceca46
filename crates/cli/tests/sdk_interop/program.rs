//! The common program, with our SDK: every kind of track event, always the same events in the same order.
//!
//! Its twin is `interop/cxx-producer/src/common_program.cc`. The test compares the trace processor's view of both, so a change here needs the same
//! change there.

use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use ferretto::debug_annotation::from_fn;
use ferretto::track::{
    ChildOrdering, CounterTrack, CounterUnit, NamedTrack, SiblingMerge, StateTrack, Track,
    erase_track_descriptor, set_track_descriptor, track_descriptor,
};
use ferretto::{
    Category, DynamicCategory, Flow, LogPriority, Options, StaticName, Timestamp, trace_category_enabled,
    trace_counter, trace_event, trace_event_begin, trace_event_end, trace_event_instant, trace_state,
};
use ferretto_proto::messages::BuiltinClock;
use ferretto_proto::messages::track_descriptor::ChildTracksOrdering;

use crate::support::PATIENCE;

static COMMON: Category = Category::new("common").description("What every session of the test records");
static RENDERING: Category = Category::new("rendering").description("What the player sees");
static LAYOUT: Category = Category::new("rendering.layout").tags(&["slow"]);
static NETWORK: Category = Category::new("network").tags(&["net"]);
static RAW: Category = Category::new("network.raw").tags(&["net", "debug"]);

/// Waits until it is recorded, writes `rounds` rounds, prints `done`, and stays until its standard input ends.
pub(crate) fn run(rounds: u64, pause: Duration) {
    ferretto::add_test_category_prefixes(&["test"]);
    ferretto::register_categories(&[&COMMON, &RENDERING, &LAYOUT, &NETWORK, &RAW]);
    ferretto::initialize(Options::system().shared_memory_size(4 << 20));
    let mut descriptor = track_descriptor(&Track::process());
    let process = descriptor.process.get_or_insert_default();
    process.process_name = Some("common program".to_owned());
    process.process_labels = vec!["label".to_owned()];
    set_track_descriptor(&Track::process(), descriptor);

    let until = Instant::now() + PATIENCE;
    while !trace_category_enabled!("common") {
        assert!(Instant::now() < until, "nobody records the category `common`");
        thread::sleep(Duration::from_millis(1));
    }
    named("teller", move || {
        for number in 0..rounds {
            if number > 0 {
                thread::sleep(pause);
            }
            round();
        }
    });
    println!("\ndone");
    // An error ends it like the end of the input.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Runs this on a thread of this name, and waits for it.
fn named(name: &str, work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned());
        thread.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

fn round() {
    slices();
    tracks();
    counters();
    states();
    flows();
    annotations();
    names();
    categories();
    timestamps();
    threads();
    descriptors();
    details();
}

fn slices() {
    trace_event!("common", "outer");
    {
        trace_event!("common", "middle");
        for number in 0..3 {
            trace_event!("common", "inner", "number" => number);
            trace_event_instant!("common", "tick");
        }
    }
    trace_event_begin!("common", "begun");
    trace_event_instant!("common", "within");
    trace_event_end!("common");
    trace_event_begin!("common", "with a result");
    trace_event_end!("common", "result" => 7, "text" => "seven");
    trace_event_begin!("rendering", "two categories");
    trace_event_begin!("network", "within it");
    trace_event_end!("network");
    trace_event_end!("rendering");
}

static QUEUE: NamedTrack = NamedTrack::new("Queue");

fn tracks() {
    static EVERYONE: NamedTrack = NamedTrack::new("Everyone").global();
    static SECOND: NamedTrack = NamedTrack::new("Queue").id(1);
    // The parent is not described with its child, because upstream's is not.
    let nested = NamedTrack::new("Nested").parent(ferretto::track::TrackLike::track(&QUEUE));
    trace_event_begin!("common", "queued", track = &QUEUE);
    trace_event_begin!("common", "queued within", track = &QUEUE);
    trace_event_begin!("common", "on the other", track = &SECOND);
    trace_event_begin!("common", "below", track = nested);
    trace_event_instant!("common", "on nested", track = nested, "depth" => 1u32);
    trace_event_end!("common", track = &QUEUE);
    trace_event_end!("common", track = &SECOND, "result" => true);
    trace_event_end!("common", track = nested);
    trace_event_end!("common", track = &QUEUE);

    let request = Track::new(17);
    let step = Track::with_parent(1, request);
    trace_event_begin!("common", "request", track = request);
    trace_event_begin!("common", "step", track = step);
    named("helper", || {
        trace_event_end!("common", track = step);
        trace_event_end!("common", track = request);
    });

    trace_event_instant!("common", "for all", track = &EVERYONE);
    trace_event_instant!("common", "for all by number", track = Track::global(0xabcdef));
    trace_event_instant!("common", "of the process", track = Track::process());
    trace_event_instant!("common", "of the thread", track = Track::thread());
    trace_event_instant!("common", "mine", track = NamedTrack::new("Mine").thread_scoped());
    let name = format!("Tenant {}", 7);
    trace_event_instant!("common", "of a tenant", track = NamedTrack::dynamic(&name));
    let alone = NamedTrack::new("Alone").sibling_merge(SiblingMerge::Never);
    trace_event_instant!("common", "alone", track = alone);
    let by_key = NamedTrack::new("By key").sibling_merge(SiblingMerge::ByKey("key"));
    trace_event_instant!("common", "with key", track = by_key);
    let by_number = NamedTrack::new("By number").sibling_merge(SiblingMerge::ByNumber(12));
    trace_event_instant!("common", "with number", track = by_number);
    // Upstream's twin begins and ends these by hand, because its scoped slices end on the thread's track, wherever they began.
    {
        trace_event!("common", "scoped", track = &QUEUE, "number" => 1);
        trace_event!("common", "scoped within", track = &QUEUE);
    }
}

fn counters() {
    static BYTES: CounterTrack = CounterTrack::new("bytes").unit(CounterUnit::SizeBytes);
    static KILOBYTES: CounterTrack = CounterTrack::new("kilobytes")
        .unit(CounterUnit::SizeBytes)
        .unit_multiplier(1024);
    trace_counter!("common", "plain", 1);
    trace_counter!("common", "plain", -2);
    trace_counter!("common", "plain", i64::MAX);
    trace_counter!("common", "double", 1.5);
    trace_counter!("common", "double", -0.25f32);
    trace_counter!("common", "mixed", 3);
    trace_counter!("common", "mixed", 3.75);
    trace_counter!("common", &BYTES, 4096u32);
    trace_counter!(
        "common",
        CounterTrack::new("time").unit(CounterUnit::TimeNs),
        123_456_789_012_u64
    );
    trace_counter!(
        "common",
        CounterTrack::new("count").unit(CounterUnit::Count),
        200u8
    );
    trace_counter!("common", CounterTrack::new("frames").unit_name("fps"), 60);
    trace_counter!("common", &KILOBYTES, 4);
    let incremental = CounterTrack::new("incremental")
        .unit_name("things")
        .incremental()
        .category("rendering");
    for value in [100, 110, 90, 90, -5] {
        trace_counter!("common", incremental, value);
    }
    trace_counter!(
        "common",
        CounterTrack::new("of the thread").parent(Track::thread()),
        5
    );
    trace_counter!("common", CounterTrack::new("of all").unit_name("mW").global(), 7);
    let name = format!("Tenant {}", 7);
    trace_counter!("common", CounterTrack::dynamic(&name), 8);
    trace_counter!("common", CounterTrack::new("numbered").id(2), 9);
}

fn states() {
    static CONNECTION: StateTrack = StateTrack::new("Connection");
    trace_state!("common", &CONNECTION, "connecting");
    let retry = format!("retry {}", 3);
    trace_state!("common", &CONNECTION, retry, "reason" => "timeout");
    trace_state!("common", &CONNECTION, "connected");
    trace_state!(
        "common",
        StateTrack::new("Of the thread").parent(Track::thread()),
        "on"
    );
    trace_state!("common", &CONNECTION, "");
    trace_state!("common", &CONNECTION, "closed");
}

fn flows() {
    {
        trace_event!("common", "producer", flow = 1, flow = Flow::global(77));
    }
    trace_event_instant!("common", "handed on", flow = 1);
    {
        trace_event!("common", "consumer", terminating_flow = 1);
    }
    trace_event_instant!("common", "a new one", flow = 1);
    trace_event_instant!(
        "common",
        "on a track",
        track = Track::new(17),
        terminating_flow = 1
    );
    trace_event_begin!("common", "to its end");
    trace_event_end!("common", terminating_flow = Flow::global(77));
}

fn annotations() {
    trace_event_instant!("common", "scalars", "bool" => true, "i8" => -8i8, "u8" => 8u8, "i64" => i64::MIN,
        "u64" => u64::MAX, "f32" => 0.5f32, "f64" => 1e-300, "text" => "static", "empty" => "");
    let pointer = from_fn(|value| value.pointer(0xdead_beef));
    trace_event_instant!("common", "others", "string" => String::from("owned"), "pointer" => pointer,
        "enum" => 1u32, "unicode" => "ä€");
    trace_event_instant!("common", "list", "list" => [1, 2, 3], "lists" => vec![vec!["a", "b"], vec!["c"]]);
    let tree = from_fn(|value| {
        value.dictionary(|tree| {
            tree.entry("number", 1).entry("text", "leaf");
            let inner = from_fn(|value| {
                value.dictionary(|inner| {
                    inner.entry("deep", 2.5);
                    let list = from_fn(|value| {
                        value.array(|list| {
                            list.push(true).push("two");
                            list.push(from_fn(|value| {
                                value.dictionary(|item| {
                                    item.entry("key", 3u64);
                                });
                            }));
                        });
                    });
                    inner.entry("list", list);
                });
            });
            tree.entry("inner", inner).entry("last", [0.25, 0.5]);
        });
    });
    trace_event_instant!("common", "tree", "tree" => tree);
    let name = format!("row {}", 1);
    trace_event_instant!("common", "named at run time", |event| {
        event.annotation(&name, 11).annotation("static row", "x");
    });
    {
        trace_event!("common", "many", "a" => 1, "b" => 2, "c" => 3, "d" => 4, "e" => 5, "f" => 6);
    }
}

fn names() {
    for number in 0..3 {
        trace_event!("rendering", format!("frame {number}"), "number" => number);
    }
    for name in ["load", "store", "load"] {
        trace_event_instant!("common", StaticName(name));
    }
    trace_event_begin!("common", String::from("dynamic on a track"), track = &QUEUE);
    trace_event_end!("common", track = &QUEUE);
}

fn categories() {
    {
        trace_event!(&RENDERING, "rendering");
    }
    {
        trace_event!(&LAYOUT, "slow");
    }
    {
        trace_event!("network", "tagged");
    }
    {
        trace_event!("network.raw", "tagged debug");
    }
    {
        trace_event!("rendering,network", "group");
    }
    {
        trace_event!("rendering.layout,network.raw", "group with tags");
    }
    let plugin = format!("plugin.{}", "blur");
    trace_event_begin!(DynamicCategory(&plugin), "dynamic category", "number" => 1);
    trace_event_end!(DynamicCategory(&plugin));
    trace_event_instant!(DynamicCategory("network"), "dynamic by a known name");
    trace_event_instant!("test.only", "test category");
}

fn timestamps() {
    // A multiple of any unit of timestamps.
    let base = ferretto::clock::now() / 1_000_000 * 1_000_000;
    let timed = NamedTrack::new("Timed");
    trace_event_begin!("common", "timed", track = timed, timestamp = base - 9000);
    trace_event_instant!("common", "timed instant", track = timed, timestamp = base - 7000, "number" => 1);
    trace_event_end!("common", track = timed, timestamp = base - 5000);
    // Earlier than the events before.
    trace_event_begin!("common", "timed before", track = timed, timestamp = base - 20000);
    trace_event_end!("common", track = timed, timestamp = base - 19000);
    let counter = CounterTrack::new("timed");
    trace_counter!("common", counter, 3, timestamp = base - 3000);
    trace_counter!("common", counter, 8, timestamp = base - 8000);
    trace_counter!("common", counter, 1.5, timestamp = base - 1000);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let monotonic = now / 1_000_000 * 1_000_000;
    let on_monotonic = |value| Timestamp::OnClock {
        clock_id: BuiltinClock::BUILTIN_CLOCK_MONOTONIC as u32,
        value,
    };
    let other = NamedTrack::new("Other clock");
    trace_event_begin!(
        "common",
        "on another clock",
        track = other,
        timestamp = on_monotonic(monotonic - 6000)
    );
    trace_event_end!(
        "common",
        track = other,
        timestamp = on_monotonic(monotonic - 2000)
    );
}

fn threads() {
    for number in 0..3 {
        named(&format!("worker {number}"), || {
            trace_event!("common", "work", "number" => number);
            {
                trace_event!("common", "inner");
            }
            trace_counter!(
                "common",
                CounterTrack::new("done").parent(Track::thread()),
                number
            );
            if number == 2 {
                trace_event_begin!("common", "never ended", track = NamedTrack::new("Unfinished"));
            }
        });
    }
    named("before", || {
        let mut descriptor = track_descriptor(&Track::thread());
        descriptor.thread.get_or_insert_default().thread_name = Some("renamed".to_owned());
        set_track_descriptor(&Track::thread(), descriptor);
        trace_event_instant!("common", "on a renamed thread");
        erase_track_descriptor(&Track::thread());
    });
}

fn descriptors() {
    let custom = Track::new(99);
    let mut descriptor = track_descriptor(&custom);
    descriptor.static_or_dynamic_name = called("Custom");
    descriptor.description = Some("Of a descriptor of its own".to_owned());
    set_track_descriptor(&custom, descriptor.clone());
    trace_event_instant!("common", "on a custom track", track = custom);
    trace_event_instant!(
        "common",
        "below a custom track",
        track = Track::with_parent(1, custom)
    );
    descriptor.static_or_dynamic_name = called("Custom again");
    set_track_descriptor(&custom, descriptor);
    trace_event_instant!("common", "on the changed track", track = custom);

    let ordered = NamedTrack::new("Ordered").child_ordering(ChildOrdering::Explicit);
    let mut order = track_descriptor(&ordered);
    order.child_ordering = Some(ChildTracksOrdering::EXPLICIT);
    set_track_descriptor(&ordered, order);
    let first = NamedTrack::new("Last by name")
        .child_of(&ordered)
        .sibling_order_rank(-5);
    trace_event_instant!("common", "ordered", track = first);
}

fn called(name: &str) -> Option<ferretto_proto::messages::track_descriptor::StaticOrDynamicName> {
    Some(ferretto_proto::messages::track_descriptor::StaticOrDynamicName::Name(name.to_owned()))
}

fn details() {
    trace_event_instant!("common", "numbered", correlation_id = 7u64);
    trace_event_instant!("common", "in words", correlation_id = "job 9");
    for _ in 0..2 {
        trace_event_instant!("common", "located", |event| {
            event.source_location("common.cc", Some("Details"), 42);
        });
    }
    trace_event_instant!("common", "located without a function", |event| {
        event.source_location("common.cc", None, 43);
    });
    let messages = [
        ("first message", LogPriority::Info),
        ("second message", LogPriority::Warning),
        ("first message", LogPriority::Error),
    ];
    for (body, priority) in messages {
        trace_event_instant!("common", "log", |event| {
            event.log_message(body, priority);
        });
    }
    trace_event_instant!("common", "log", |event| {
        event.log_message_at("located message", LogPriority::Verbose, "log.cc", 12);
    });
}
