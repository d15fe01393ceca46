//! The life of a client: it begins, and has one session after another.
//!
//! Sessions start in [`begin`], when the daemon sends its signal, and at the first allocation of a forked child. They end when the daemon says so, when
//! it is gone, or when the client gives up waiting for it. Then the client costs a load and a branch again.
//!
//! | state | next |
//! |---|---|
//! | before | `begin`: starting |
//! | off | the signal: starting |
//! | starting | the daemon grants a session: on; it does not: off |
//! | on | the daemon ends it or is gone: ending, then ended |
//! | ended | the last thread has left: off, or starting if a signal has come meanwhile |
//! | forked | the first allocation: starting |
//!
//! `report`, the preloaded library and the global allocator call this.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::handshake::{HEAP_SOCK_NAME, Reason, SIGNAL};
use crate::heaps::{self, GLOBAL_ALLOC, Heap, MALLOC};
use crate::layout::{Kind, REGISTERS, header, heap};
use crate::state::{self, BEFORE, ENDED, ENDING, FORKED, Inside, OFF, ON, STARTING};
use crate::system::{self, SocketName};
use crate::{callbacks, connect, stack, thread};

/// How long the end of the process waits for the daemon to read what is in the ring.
const FAREWELL_US: u64 = 500_000;

/// How long a waiting thread sleeps at most before it looks again, if few wait.
const SLICE_US: u64 = 10_000;

/// The same, if thousands wait.
const LONGEST_SLICE_US: u64 = 1_000_000;

/// How much longer a thread sleeps for each that waits, so that a thousand together look no more than a thousand times a second.
const SLICE_PER_WAITING_US: u64 = 1000;

/// A signal asked for a session that could not start yet.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// Begins: looks for the daemon and asks it for a session. Once in a process; later calls do nothing.
///
/// The preloaded library and [`HeapProfiled`](crate::HeapProfiled) call this. A program that has neither but registers heaps calls it at the start of
/// `main`. Nothing happens in programs that run with more rights than their user has.
pub fn begin() {
    begin_with(None);
}

/// Begins in a program whose allocator reports its allocations, under this name.
#[doc(hidden)]
pub fn begin_with(allocator: Option<&str>) {
    if !state::change(BEFORE, STARTING) {
        return;
    }
    heaps::allocator().sample(0);
    if let Some(name) = allocator {
        heaps::register_allocator(name);
    }
    if REGISTERS == 0 || system::has_borrowed_rights() {
        state::change(STARTING, OFF);
        return;
    }
    state::set_socket(match socket_of_environment() {
        Some(name) => SocketName::new(name),
        None => connect::usual_socket(),
    });
    // The handlers have no way back, and a program can close a library that has a global allocator of its own.
    system::keep_loaded(on_signal as *const c_void);
    // SAFETY: the handler is async-signal-safe.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if handle_signal() {
        system::map_mark(c"ferretto_heap");
    }
    stack::look_up_bounds(thread::current());
    stack::leave_out_from(thread::current(), system::environment());
    start(Reason::Startup);
}

/// Whether [`begin`] has been called.
pub(crate) fn has_begun() -> bool {
    state::now() != BEFORE
}

/// Another client in this process reports its allocations.
pub(crate) fn leave_to_others() {
    if state::change(BEFORE, OFF) {
        heaps::allocator().sample(0);
    }
}

fn socket_of_environment() -> Option<&'static [u8]> {
    let mut name = [0; HEAP_SOCK_NAME.len() + 1];
    for (to, from) in name.iter_mut().zip(HEAP_SOCK_NAME.bytes()) {
        *to = from;
    }
    // SAFETY: the name ends with a zero. Programs have one thread when this is called, or do not change their environment.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: a string of the environment, read at once.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Handles the daemon's signal, unless the program has a use for it. Returns whether it does.
///
/// A program may install a handler of its own later. Nothing tells the client, which does nothing while there is no session, and `/proc/PID/status` does
/// not tell the daemon whose handler it is. Such a program gets the daemon's signal and is not profiled; see [`SIGNAL`].
fn handle_signal() -> bool {
    // SAFETY: a struct of zeroes is valid, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(SIGNAL, core::ptr::null(), &raw mut action) != 0
            || action.sa_sigaction != libc::SIG_DFL
        {
            return false;
        }
        action = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        // On the alternate stack: programs with small stacks of their own have one.
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut()) == 0
    }
}

extern "C" fn on_signal(_signal: c_int) {
    system::keeping_errno(|| {
        if let Some(inside) = state::enter() {
            if !has_ended(&inside) {
                // There is a session.
                return;
            }
            end(&inside);
        }
        IS_WANTED.store(true, SeqCst);
        tidy_up();
        start_if_wanted();
    });
}

/// Tidies an ended session up if nobody is inside, and starts the next if a signal has asked for it.
pub(crate) fn tidy_up() {
    let all_off = || {
        for (_, heap) in heaps::registered() {
            heap.sample(0);
        }
    };
    if state::tidy(all_off) {
        start_if_wanted();
    }
}

fn start_if_wanted() {
    while IS_WANTED.load(SeqCst) && (state::change(OFF, STARTING) || state::change(FORKED, STARTING)) {
        IS_WANTED.store(false, SeqCst);
        // A signal that comes meanwhile asks again.
        if ask(Reason::Signal) {
            return;
        }
    }
}

/// The first allocation of a forked child.
pub(crate) fn start_in_child() {
    if state::change(FORKED, STARTING) {
        heaps::allocator().sample(0);
        start(Reason::Fork);
    }
}

/// Asks for a session, and once more if a signal has come meanwhile. In the state `STARTING`.
fn start(reason: Reason) {
    if !ask(reason) {
        start_if_wanted();
    }
}

/// Asks for a session. In the state `STARTING`. `false` if there is none.
fn ask(reason: Reason) -> bool {
    let granted = state::socket()
        .and_then(|name| state::asking(|buffer, welcome| connect::ask(&name, reason, buffer, welcome)));
    if !granted.is_some_and(|granted| state::install(&granted)) {
        heaps::allocator().sample(0);
        state::change(STARTING, OFF);
        return false;
    }
    state::change(STARTING, ON);
    for (number, heap) in heaps::registered() {
        offer(number, heap);
    }
    callbacks::call_soon();
    true
}

/// Has a heap sampled if the session wants it. One with callbacks waits for them.
fn offer(number: u8, heap: &'static Heap) {
    let Some(inside) = state::enter() else { return };
    let settings = inside.settings();
    let wanted = heap.with_name(|name| {
        if name == GLOBAL_ALLOC.as_bytes() {
            let own = settings.own_interval_of(name);
            return own.unwrap_or_else(|| settings.interval_of(MALLOC.as_bytes()));
        }
        settings.interval_of(name)
    });
    heap.want(wanted);
    if wanted != 0 && !heap.enabled.is_set() && !heap.disabled.is_set() {
        begin_heap(number, heap, wanted);
    }
}

/// Tells the daemon of a heap, and has it sampled.
pub(crate) fn begin_heap(number: u8, heap: &'static Heap, interval: u64) {
    let Some(inside) = state::enter() else { return };
    if inside.is_own() && write_heap(&inside, number, heap, interval) {
        heap.sample(interval);
    }
}

/// Tells the daemon how a heap is sampled. `false` if it could not be told.
pub(crate) fn write_heap(inside: &Inside, number: u8, heap: &Heap, interval: u64) -> bool {
    let space = inside.ring().and_then(|ring| ring.take(Kind::Heap, heap::WORDS));
    let Some(space) = space else { return false };
    space.write(heap::HEAP, number.into());
    space.write(heap::INTERVAL, interval);
    for (index, word) in heap.name_words().enumerate() {
        space.write(heap::NAME + index, word);
    }
    space.complete();
    true
}

/// A heap was registered. If there is a session that wants it, its callback is called here.
pub(crate) fn add_heap(number: u8, heap: &'static Heap) {
    if state::now() != ON {
        return;
    }
    offer(number, heap);
    callbacks::update(number, heap);
}

/// Whether the daemon has ended the session.
pub(crate) fn has_ended(inside: &Inside) -> bool {
    inside
        .ring()
        .is_none_or(|ring| ring.header(header::ENDED).load(Acquire) != 0)
}

/// Ends the session. Threads that are inside may go on writing, and the last one tidies up.
pub(crate) fn end(_inside: &Inside) {
    if !state::change(ON, ENDING) {
        return;
    }
    state::look_no_more();
    for (_, heap) in heaps::registered() {
        heap.sample(0);
        heap.want(0);
    }
    state::change(ENDING, ENDED);
    callbacks::call_soon();
}

/// Whether the daemon is there still, as far as can be told without talking to it.
pub(crate) fn is_daemon_there() -> bool {
    system::is_alive(state::daemon()) && state::socket().is_none_or(|name| system::is_listening(&name))
}

/// Waits until the daemon says that it has made space, for at most so many microseconds, and less if it does not say so. Returns how long it waited.
pub(crate) fn wait_for_daemon(inside: &Inside, at_most_us: u64, is_enough: impl Fn() -> bool) -> u64 {
    let Some(ring) = inside.ring() else { return 0 };
    let began = system::now(libc::CLOCK_MONOTONIC);
    let (waiting, space) = (ring.header(header::WAITING), ring.header(header::SPACE));
    let others = waiting.fetch_add(1, SeqCst);
    let seen = space.load(SeqCst);
    if !is_enough() && !has_ended(inside) {
        system::wait(space, seen, at_most_us.min(slice(others)));
    }
    waiting.fetch_sub(1, SeqCst);
    system::now(libc::CLOCK_MONOTONIC).saturating_sub(began) / 1000
}

/// How long a thread sleeps at most while so many others wait.
fn slice(others: u64) -> u64 {
    let longer = others.saturating_add(1).saturating_mul(SLICE_PER_WAITING_US);
    longer.clamp(SLICE_US, LONGEST_SLICE_US)
}

/// The process is about to end: waits until the daemon has read what the ring has now, at most half a second. Afterwards the mappings of files that
/// stacks lead into are gone.
pub fn finish() {
    system::keeping_errno(|| {
        let Some(inside) = state::enter() else { return };
        let Some(ring) = inside.ring().filter(|_| inside.is_own()) else {
            return;
        };
        let end = ring.header(header::WRITE).load(Acquire);
        let is_read = || {
            end.wrapping_sub(ring.header(header::READ).load(Acquire))
                .cast_signed()
                <= 0
        };
        let mut waited = 0;
        while !is_read() && !has_ended(&inside) && waited < FAREWELL_US && is_daemon_there() {
            // The time is short, and this thread is one.
            let at_most = SLICE_US.min(FAREWELL_US - waited);
            waited += wait_for_daemon(&inside, at_most, is_read);
        }
    });
}

/// In a forked child, before `fork` returns.
extern "C" fn in_child() {
    system::keeping_errno(|| {
        let before = state::forget();
        IS_WANTED.store(false, Relaxed);
        if before == BEFORE {
            return;
        }
        callbacks::after_fork();
        for (_, heap) in heaps::registered() {
            heap.sample(0);
            heap.want(0);
            heap.is_enabled.store(false, Relaxed);
        }
        if matches!(before, ON | FORKED) && state::change(OFF, FORKED) {
            heaps::allocator().look();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_threads_wait_the_less_often_each_looks() {
        assert_eq!(slice(0), SLICE_US);
        for waiting in 1..=1000 {
            let looks_per_second = waiting * 1_000_000 / slice(waiting - 1);
            assert!(looks_per_second <= 1000, "{waiting} wait");
        }
        assert_eq!(slice(u64::MAX), LONGEST_SLICE_US);
    }
}
