//! Upstream's C SDK, from the library in `perfetto-sdk-sys`. Its loops are in `perfetto_c.c`.

use std::ffi::{CString, c_char};
use std::process::ExitCode;
use std::sync::LazyLock;

// Links the library.
use perfetto_sdk_sys as _;

use ferretto_bench_sdk::case::{Case, NAMES, TEXT};
use ferretto_bench_sdk::peer::{Body, Destination, Peer, SharedMemory, Tracing};

// SAFETY: the signatures are those of the C part, which this crate compiles. Those called safe take numbers only.
unsafe extern "C" {
    safe fn bench_c_set_up(shared_memory_kb: u32);
    safe fn bench_c_recording() -> bool;
    safe fn bench_c_pair(count: u64);
    fn bench_c_instant(count: u64, text: *const c_char);
    safe fn bench_c_counter(count: u64);
    fn bench_c_dynamic_name(count: u64, names: *const *const c_char, names_count: u64);
}

struct PerfettoC;

fn main() -> ExitCode {
    ferretto_bench_sdk::measure::main(&PerfettoC)
}

impl Peer for PerfettoC {
    fn name(&self) -> &'static str {
        "perfetto-c"
    }

    fn package(&self) -> Option<&'static str> {
        Some("perfetto-sdk-sys")
    }

    fn destination(&self) -> Destination {
        Destination::Service
    }

    fn body(&self, case: Case) -> Option<Body> {
        match case {
            Case::Pair | Case::PairOnTwoThreads => Some(|count| bench_c_pair(count)),
            Case::Instant => Some(instant),
            Case::Counter => Some(|count| bench_c_counter(count)),
            Case::DynamicName => Some(dynamic_name),
            Case::Span => None,
        }
    }

    fn set_up(&self, _tracing: Tracing, shared_memory: SharedMemory) {
        bench_c_set_up(shared_memory.hint());
    }

    fn is_recording(&self) -> bool {
        bench_c_recording()
    }
}

fn instant(count: u64) {
    static C_TEXT: LazyLock<CString> = LazyLock::new(|| CString::new(TEXT).expect("it has no zero byte"));
    // SAFETY: the text ends with zero and is never freed.
    unsafe { bench_c_instant(count, C_TEXT.as_ptr()) }
}

fn dynamic_name(count: u64) {
    let names: Vec<_> = NAMES.c.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: the names end with zero and are never freed; the list of them lives until the call is over.
    unsafe { bench_c_dynamic_name(count, names.as_ptr(), names.len() as u64) }
}
