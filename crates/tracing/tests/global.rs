//! Tests that need a subscriber for all threads: `tracing` passes nothing to other subscribers while they run.

#![allow(clippy::unwrap_used, unsafe_code)]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "layer/trace.rs"]
mod trace;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Once;
use std::sync::mpsc::channel;
use std::time::Duration;

use trace::{Argument, Recording, Value};
use tracing::info_span;
use tracing_subscriber::prelude::*;

/// Counts the allocations of threads that ask for it.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: memory is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTED.replace(false) {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            count(1);
            IS_COUNTED.set(true);
        }
        // SAFETY: as of this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as of this method.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn count(allocations: i64) {
    tracing::info!(monotonic_counter.allocations = allocations);
}

fn layer_for_all() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::registry()
            .with(ferretto_tracing::layer())
            .init()
    });
}

#[test]
fn a_sum_that_grows_while_a_sample_of_it_is_written_is_whole_in_the_end() {
    layer_for_all();
    let recording = Recording::start();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Registering a call site takes locks, and the first event makes the thread's state for all its events.
        count(0);
        IS_COUNTED.set(true);
        // From time to time a chunk is full, and goes into a list.
        for _ in 0..20_000 {
            count(0);
        }
        IS_COUNTED.set(false);
        count(0);
        tell.send(ALLOCATIONS.get()).unwrap();
    });
    let allocations = told.recv_timeout(Duration::from_secs(120));
    let allocations = allocations.expect("it waits for itself");
    let trace = recording.stop();
    assert!(allocations > 0, "nothing happened in the middle of an event");
    let last = trace.counters.last().unwrap();
    assert_eq!(*last, ("allocations".to_owned(), Value::Int(allocations)));
}

#[test]
fn events_of_values_that_are_being_formatted_are_recorded_too() {
    struct Tracing;
    impl std::fmt::Debug for Tracing {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let _span = info_span!("formatting").entered();
            tracing::info!(nested = 1, "within");
            f.write_str("formatted")
        }
    }
    layer_for_all();
    let recording = Recording::start();
    {
        let _span = info_span!("outer", value = ?Tracing).entered();
        tracing::info!(value = ?Tracing, "event");
    }
    let trace = recording.stop();
    let formatted = [("value".to_owned(), Argument::Text("formatted".into()))];
    assert_eq!(trace.slice("outer").arguments, formatted.clone().into());
    assert_eq!(trace.instant("event").arguments, formatted.into());
    assert_eq!(trace.named("formatting").count(), 2);
    assert_eq!(
        trace
            .instants
            .iter()
            .filter(|instant| instant.name == "within")
            .count(),
        2
    );
}
