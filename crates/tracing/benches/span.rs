//! The cost of a span: made, entered, exited and closed, in nanoseconds of the thread's CPU time.
//!
//! `cargo bench -p ferretto-tracing` alternates among all cases, and prints the least and the median. With arguments it runs only the named case, the
//! given number of times: `… -- span 1000000`, for an instruction count under callgrind.

use std::hint::black_box;
use std::process::Command;
use std::time::Duration;

use ferretto::session::{DataSource, Session, TraceConfig};
use tracing::{Instrument, Subscriber, info_span};
use tracing_subscriber::Layer;
use tracing_subscriber::prelude::*;

struct Empty;

impl<S: Subscriber> Layer<S> for Empty {}

/// Something that is done so many times.
type Body = fn(u32);

fn native(count: u32) {
    for _ in 0..count {
        ferretto::trace_event!("bench", "slice");
    }
}

fn span(count: u32) {
    for _ in 0..count {
        let _span = info_span!("slice").entered();
    }
}

fn span_with_field(count: u32) {
    for number in 0..count {
        let _span = info_span!("slice", number).entered();
    }
}

fn event(count: u32) {
    for number in 0..count {
        tracing::info!(number, "event");
    }
}

fn future(count: u32) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..count {
        let future = std::pin::pin!(async {}.instrument(info_span!("future")));
        let _ = black_box(future.poll(&mut context));
    }
}

struct Case {
    name: &'static str,
    recorded: bool,
    layer: Option<bool>,
    body: Body,
    count: u32,
}

const fn case(name: &'static str, recorded: bool, layer: Option<bool>, body: Body) -> Case {
    let count = if recorded { 20_000 } else { 200_000 };
    Case {
        name,
        recorded,
        layer,
        body,
        count,
    }
}

const CASES: &[Case] = &[
    case("native slice", true, None, native),
    case("empty layer", true, Some(false), span),
    case("span", true, Some(true), span),
    case("empty layer, field", true, Some(false), span_with_field),
    case("span, field", true, Some(true), span_with_field),
    case("empty layer, event", true, Some(false), event),
    case("event", true, Some(true), event),
    case("empty layer, future", true, Some(false), future),
    case("future", true, Some(true), future),
    case("span, off", false, Some(true), span),
    case("span, no subscriber", false, None, span),
];

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn session() -> Session {
    let session = Session::in_process();
    let config = TraceConfig::new()
        .buffer_kb(8 * 1024)
        .data_source(DataSource::track_event());
    session.setup(&config).expect("the config is valid");
    session.start_blocking().expect("there is a service");
    session
}

/// Measures a case in this process, which runs nothing else, because `tracing` treats a single subscriber for all threads better than several.
fn measure(case: &Case, count: u32) -> f64 {
    ferretto::initialize(
        ferretto::Options::in_process()
            .shared_memory_size(32 << 20)
            .log(|_, _| ()),
    );
    let registry = tracing_subscriber::registry();
    match case.layer {
        None => {}
        Some(false) => registry.with(Empty).init(),
        Some(true) => registry.with(ferretto_tracing::layer()).init(),
    }
    let _session = case.recorded.then(session);
    // First uses are not measured.
    (case.body)(1000);
    let before = cpu_time();
    (case.body)(count);
    (cpu_time() - before).as_nanos() as f64 / f64::from(count)
}

/// The same in another process.
fn measure_elsewhere(case: &Case) -> f64 {
    let this = std::env::current_exe().expect("a program knows its own path");
    let output = Command::new(this)
        .args([case.name, &case.count.to_string()])
        .output()
        .expect("the program can be run again");
    let printed = String::from_utf8_lossy(&output.stdout);
    printed
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{}: {output:?}", case.name))
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if let [name, count] = &arguments[..] {
        let case = CASES
            .iter()
            .find(|case| case.name == name)
            .expect("one of the cases");
        return println!("{:.1}", measure(case, count.parse().expect("a number")));
    }
    let mut times = vec![Vec::new(); CASES.len()];
    for _ in 0..15 {
        for (case, times) in CASES.iter().zip(&mut times) {
            times.push(measure_elsewhere(case));
        }
    }
    for (case, times) in CASES.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{:22} {:7.1} {:7.1}", case.name, times[0], times[times.len() / 2]);
    }
}
