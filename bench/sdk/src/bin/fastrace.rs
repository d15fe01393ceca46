//! The crate `fastrace`: spans that are collected in memory, a tree of a thousand at a time, and counted when they are reported.

use fastrace::Event;
use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
use fastrace::local::LocalSpan;
use fastrace::prelude::Span;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ferretto_bench_sdk::case::{Case, NAMES, TEXT};
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

/// Children of one root: the library drops what is more than 10,240.
const TREE: u64 = 1000;
const ROOT: &str = "root";

/// Whether the spans have a root; without, they are dropped at once, which is how its tracing is off.
static ON: AtomicBool = AtomicBool::new(false);

/// Spans and events that came out, but for the roots.
static REPORTED: AtomicU64 = AtomicU64::new(0);

struct Counter;

impl Reporter for Counter {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        for span in spans {
            let is_root = span.name == ROOT;
            REPORTED.fetch_add(u64::from(!is_root) + span.events.len() as u64, Ordering::Relaxed);
        }
    }
}

struct Fastrace;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&Fastrace)
}

impl Peer for Fastrace {
    fn name(&self) -> &'static str {
        "fastrace"
    }

    fn package(&self) -> Option<&'static str> {
        Some("fastrace")
    }

    fn destination(&self) -> Destination {
        Destination::Memory
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(pair),
            Case::Instant => Some(instant),
            Case::DynamicName => Some(dynamic_name),
            Case::Counter | Case::Span => None,
        }
    }

    fn set_up(&self, tracing: Tracing, _shared_memory: SharedMemory) {
        fastrace::set_reporter(Counter, Config::default());
        ON.store(tracing == Tracing::On, Ordering::Relaxed);
    }

    fn is_recording(&self) -> bool {
        ON.load(Ordering::Relaxed)
    }

    fn kept(&self) -> Option<u64> {
        fastrace::flush();
        Some(REPORTED.load(Ordering::Relaxed))
    }
}

fn pair(count: u64) {
    in_trees(count, |_| {
        let _span = LocalSpan::enter_with_local_parent("slice");
    });
}

fn instant(count: u64) {
    in_trees(count, |number| {
        LocalSpan::add_event(
            Event::new("instant")
                .with_properties(|| [("number", number.to_string()), ("text", TEXT.to_owned())]),
        );
    });
}

fn dynamic_name(count: u64) {
    let names = &NAMES.rust;
    in_trees(count, |number| {
        // It wants to own the name.
        let name = names[number as usize % names.len()].clone();
        let _span = LocalSpan::enter_with_local_parent(name);
    });
}

#[inline(always)]
fn in_trees(count: u64, mut each: impl FnMut(u64)) {
    let on = ON.load(Ordering::Relaxed);
    let mut number = 0;
    while number < count {
        let root = on.then(|| Span::root(ROOT, SpanContext::random()));
        let _parent = root.as_ref().map(Span::set_local_parent);
        let end = count.min(number + TREE);
        while number < end {
            each(number);
            number += 1;
        }
    }
}
