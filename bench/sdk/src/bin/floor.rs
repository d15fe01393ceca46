//! The least cost of any library: the time-stamp counter read, scaled, and stored with sixteen bytes for each event.

use std::arch::x86_64::_rdtsc;
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use ferretto_bench_sdk::case::Case;
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

static ON: AtomicBool = AtomicBool::new(false);
/// Words of the ring that events are stored in: it fits in the second cache, as chunks that are used again do.
const WORDS: usize = 8192;
/// Nanoseconds for a tick of the counter, times 2^32.
const SCALE: u64 = (1 << 32) / 3;

thread_local! {
    static RING: UnsafeCell<[u64; WORDS]> = const { UnsafeCell::new([0; WORDS]) };
}

struct Floor;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&Floor)
}

impl Peer for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn package(&self) -> Option<&'static str> {
        None
    }

    fn destination(&self) -> Destination {
        Destination::Memory
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(pair),
            Case::Counter => Some(counter),
            Case::Instant | Case::DynamicName | Case::Span => None,
        }
    }

    fn set_up(&self, tracing: Tracing, _shared_memory: SharedMemory) {
        ON.store(tracing == Tracing::On, Ordering::Relaxed);
    }

    fn is_recording(&self) -> bool {
        ON.load(Ordering::Relaxed)
    }
}

fn pair(count: u64) {
    RING.with(|ring| {
        let ring = ring.get();
        let mut at = 0;
        for number in 0..count {
            event(ring, &mut at, number);
            event(ring, &mut at, number);
        }
        black_box(ring);
    });
}

fn counter(count: u64) {
    RING.with(|ring| {
        let ring = ring.get();
        let mut at = 0;
        for number in 0..count {
            event(ring, &mut at, number);
        }
        black_box(ring);
    });
}

#[inline(always)]
fn event(ring: *mut [u64; WORDS], at: &mut usize, value: u64) {
    if ON.load(Ordering::Relaxed) {
        // SAFETY: every x86-64 processor has the counter; the ring is this thread's alone, and both indices are below its length,
        // which is even.
        unsafe {
            let time = (u128::from(_rdtsc()) * u128::from(SCALE)) >> 32;
            (*ring)[*at] = value;
            (*ring)[*at + 1] = time as u64;
        }
        *at = (*at + 2) % WORDS;
    }
}
