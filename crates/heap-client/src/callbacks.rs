//! Calling the program's functions when profiling of its heaps begins and ends.
//!
//! A session may begin in a signal handler and end within any `malloc`, where functions of the program must not be called. So a thread of its own
//! calls them. It exists in programs that have registered a heap with a callback, and only there. A forked child gets one when it registers such a
//! heap; until then its heaps with callbacks are not sampled.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};

use crate::heaps::{self, Callback, DisableInfo, DisabledCallback, EnableInfo, EnabledCallback, Heap};
use crate::{session, system};

/// Bytes of the thread's stack, on which the program's functions run.
const STACK_BYTES: usize = 1 << 20;

static EXISTS: AtomicBool = AtomicBool::new(false);
/// How often there was something to do.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Makes the thread, unless it exists. Not in signal handlers.
pub(crate) fn prepare() {
    if EXISTS.swap(true, AcqRel) {
        return;
    }
    // Signals are for the program's own threads.
    // SAFETY: the sets are initialized before they are read.
    let before = unsafe {
        let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let made = std::thread::Builder::new()
        .name("ferretto_heap".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(run);
    // SAFETY: sets what was set before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
    if made.is_err() {
        EXISTS.store(false, Release);
    }
}

/// There may be something to do. Safe in signal handlers.
pub(crate) fn call_soon() {
    CALLS.fetch_add(1, AcqRel);
    system::wake_private(&CALLS);
}

/// The process is a new child: the thread is the parent's.
pub(crate) fn after_fork() {
    EXISTS.store(false, Relaxed);
}

fn run() {
    loop {
        let calls = CALLS.load(Acquire);
        for (number, heap) in heaps::registered() {
            update(number, heap);
        }
        system::wait_private(&CALLS, calls);
    }
}

/// Calls what is to be called for a heap, and has it sampled as the session wants it.
pub(crate) fn update(number: u8, heap: &'static Heap) {
    let wanted = heap.wanted();
    if wanted == 0 && heap.is_enabled.swap(false, AcqRel) {
        disabled(&heap.disabled);
    } else if wanted != 0 && !heap.is_sampled() {
        if !heap.is_enabled.swap(true, AcqRel) {
            enabled(&heap.enabled, wanted);
        }
        session::begin_heap(number, heap, wanted);
    }
}

fn enabled(callback: &Callback, sampling_interval: u64) {
    let function = callback.function.load(Acquire);
    if function.is_null() {
        return;
    }
    // SAFETY: only `Heap::set_enabled_callback` sets it, to a function of this type.
    let function: EnabledCallback = unsafe { core::mem::transmute(function) };
    let info = EnableInfo { sampling_interval };
    function(callback.data.load(Relaxed), &raw const info);
}

fn disabled(callback: &Callback) {
    let function = callback.function.load(Acquire);
    if function.is_null() {
        return;
    }
    // SAFETY: only `Heap::set_disabled_callback` sets it, to a function of this type.
    let function: DisabledCallback = unsafe { core::mem::transmute(function) };
    let info = DisableInfo::NOTHING;
    function(callback.data.load(Relaxed), &raw const info);
}
