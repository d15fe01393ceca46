//! Where memory is allocated: a global allocator that records its allocations.
//!
//! ```text
//! cargo run --example allocations [FILE]
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use ferretto::track::{CounterTrack, CounterUnit};
use ferretto::{trace_counter, trace_event_instant, trace_function};

/// The system's allocator, observed.
struct Observed;

#[global_allocator]
static ALLOCATOR: Observed = Observed;

static LIVE: CounterTrack = CounterTrack::new("Live memory").unit(CounterUnit::SizeBytes);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

fn count(bytes: i64) {
    let live = LIVE_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes;
    trace_counter!("memory", &LIVE, live);
}

// SAFETY: every call is the system's, unchanged. Events may happen in allocators.
unsafe impl GlobalAlloc for Observed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        if layout.size() >= 4096 {
            trace_event_instant!("memory", "Allocate", "bytes" => layout.size());
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1);
    let _trace = ferretto::record_to(path.as_deref().unwrap_or("trace.pftrace"))?;
    for number in 0..10 {
        let page = load(number);
        println!("{} bytes", compress(&page).len());
    }
    Ok(())
}

#[trace_function("app", args)]
fn load(number: usize) -> Vec<u8> {
    vec![b'x'; 20_000_000 + 2_000_000 * number]
}

#[trace_function("app")]
fn compress(page: &[u8]) -> Vec<u8> {
    let half = page[..page.len() / 2].to_vec();
    half[..half.len() / 2].to_vec()
}
