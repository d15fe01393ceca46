//! The memory of a process's session, and the right to use it.
//!
//! Three kinds of memory: the ring, which is mapped for one session; an area for the set of live allocations, which is mapped for the first session and
//! stays; and the session's settings. [`enter`] lets a thread use them while a session is on. They change only while nobody is inside: in the state
//! [`STARTING`], or [`tidy`] by the thread that finds an ended session empty.
//!
//! The area starts with a word that is zero in a forked child, where the kernel wipes memory for children. So a child that no handler was called for
//! (bare `clone`) finds out without a system call that the session is not its own. The session of a process that shares its memory with its parent
//! (`vfork`) is its own: what it allocates there stays allocated in the parent.
//!
//! `session` changes states, `report` enters.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ptr;
use core::slice;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

use crate::connect::Granted;
use crate::handshake::{Welcome, WhenFull};
use crate::live::{FILTER_BYTES, Grain, LINES, Line, Live};
use crate::ring::Ring;
use crate::system::{self, InChildren, SocketName};
use crate::thread::{self, Thread};

/// The client has not begun.
pub(crate) const BEFORE: u32 = 0;
/// No session.
pub(crate) const OFF: u32 = 1;
/// A thread begins the client, or asks for a session.
pub(crate) const STARTING: u32 = 2;
/// A session.
pub(crate) const ON: u32 = 3;
/// A thread ends the session, or tidies it up.
pub(crate) const ENDING: u32 = 4;
/// The session has ended. Threads may still be inside.
pub(crate) const ENDED: u32 = 5;
/// The process is the child of one with a session, and asks for its own at its first allocation.
pub(crate) const FORKED: u32 = 6;

static STATE: AtomicU32 = AtomicU32::new(BEFORE);

/// Threads that are inside, or that look whether they may.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Forks between the process in which the client began and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

static RING: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static RING_WORDS: AtomicUsize = AtomicUsize::new(0);
static AREA: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The filter of the set of live allocations; null while there is no session. It begins as many bytes into a page as its grain shifts addresses, so that one
/// load gives both.
static FILTER: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
/// What the session's filter shifts addresses by.
static SHIFT: AtomicUsize = AtomicUsize::new(0);

/// Whether a child of this process has zeroes in place of the area.
static IS_WIPED: AtomicBool = AtomicBool::new(false);

/// The process whose session it is. Looked at where a child would have a copy of the area.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The daemon; 0 if it is in another pid namespace.
static DAEMON: AtomicI32 = AtomicI32::new(0);

/// The state that only one thread at a time may change.
struct Guarded<T>(UnsafeCell<T>);

// SAFETY: `STATE` says who may use it.
unsafe impl<T> Sync for Guarded<T> {}

static SETTINGS: Guarded<Welcome> = Guarded(UnsafeCell::new(Welcome::new(0, WhenFull::Lose)));
static BUFFER: Guarded<[u8; Welcome::MOST_BYTES]> = Guarded(UnsafeCell::new([0; Welcome::MOST_BYTES]));
static SOCKET: Guarded<Option<SocketName>> = Guarded(UnsafeCell::new(None));

const PAGE: usize = 4096;
/// Where in the first page the set of live allocations has a byte.
const LAST_TABLE: usize = 64;
const LINES_BYTES: usize = LINES * size_of::<Line>();
/// Behind the filter, wherever it begins.
const LINES_AT: usize = PAGE + FILTER_BYTES + Grain::SHIFTS;
const AREA_BYTES: usize = LINES_AT + LINES_BYTES;

/// The state.
pub(crate) fn now() -> u32 {
    STATE.load(SeqCst)
}

/// Changes the state, if it is the expected one.
pub(crate) fn change(from: u32, to: u32) -> bool {
    STATE.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
}

/// Whether the allocation may be a member of the set of live ones. A load and a compare where it is not, for the heap of the allocator.
#[inline(always)]
pub(crate) fn may_be_live(heap: u8, id: u64) -> bool {
    let filter = FILTER.load(Relaxed);
    if filter.is_null() {
        return false;
    }
    let grain = Grain::of_shift(filter.addr());
    // SAFETY: the area has the filter, of which this is a place, and stays mapped.
    let count = unsafe { &*filter.wrapping_add(grain.place_in(heap, id)) };
    count.load(Relaxed) != 0
}

/// The set of live allocations, once there has been a session.
pub(crate) fn live() -> Option<Live<'static>> {
    let area = AREA.load(Acquire);
    if area.is_null() {
        return None;
    }
    let grain = Grain::of_shift(SHIFT.load(Relaxed));
    // SAFETY: the area has these at these places. It stays mapped, is accessed by atomics only, and zeroes are valid.
    let (last, filter, lines) = unsafe {
        (
            &*area.add(LAST_TABLE).cast::<AtomicU8>(),
            slice::from_raw_parts(area.add(PAGE + grain.shift()).cast::<AtomicU8>(), FILTER_BYTES),
            slice::from_raw_parts(area.add(LINES_AT).cast::<Line>(), LINES),
        )
    };
    Live::new(filter, grain, lines, last)
}

/// No session's area, or that of a child of the process that mapped it.
const NOBODY: u64 = 0;
/// The area of this process, because children do not get it.
const SURELY_OURS: u64 = 1;
/// The area of this process or of a child: see [`PROCESS`].
const PERHAPS_OURS: u64 = 2;

/// Whose area it is.
fn owner(area: *mut u8) -> &'static AtomicU64 {
    // SAFETY: the area's first page, which stays mapped.
    unsafe { &*area.cast::<AtomicU64>() }
}

/// A thread that may use the session.
pub(crate) struct Inside {
    pub(crate) thread: &'static Thread,
    forks: u32,
}

/// Lets this thread use the session, if there is one.
pub(crate) fn enter() -> Option<Inside> {
    USERS.fetch_add(1, SeqCst);
    let thread = thread::current();
    thread.inside.store(thread.inside.load(Relaxed) + 1, Relaxed);
    let inside = Inside {
        thread,
        forks: FORKS.load(Relaxed),
    };
    (now() == ON).then_some(inside)
}

impl Inside {
    /// The ring.
    pub(crate) fn ring(&self) -> Option<Ring<'_>> {
        let (memory, words) = (RING.load(Acquire), RING_WORDS.load(Relaxed));
        if memory.is_null() {
            return None;
        }
        // SAFETY: mapped with this size while somebody is inside, and accessed by atomics only.
        Ring::new(unsafe { slice::from_raw_parts(memory, words) })
    }

    /// The settings of the session, as the daemon sent them.
    pub(crate) fn settings(&self) -> &Welcome {
        // SAFETY: nobody changes it while somebody is inside.
        unsafe { &*SETTINGS.0.get() }
    }

    /// Whether this is the process whose session it is, rather than a child that the client was not told of.
    pub(crate) fn is_own(&self) -> bool {
        let area = AREA.load(Acquire);
        if area.is_null() {
            return false;
        }
        match owner(area).load(Relaxed) {
            NOBODY => false,
            SURELY_OURS => true,
            _ => system::process() == PROCESS.load(Relaxed),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let thread = self.thread;
        thread
            .inside
            .store(thread.inside.load(Relaxed).saturating_sub(1), Relaxed);
        // A child that was forked in a signal handler meanwhile counts anew.
        if self.forks == FORKS.load(Relaxed) && USERS.fetch_sub(1, SeqCst) == 1 && now() == ENDED {
            crate::session::tidy_up();
        }
    }
}

/// Takes an ended session's memory back if nobody is inside. `false` if the session has not ended, or somebody is.
pub(crate) fn tidy(before_off: impl Fn()) -> bool {
    loop {
        if !change(ENDED, ENDING) {
            return false;
        }
        let is_empty = USERS.load(SeqCst) == 0;
        if is_empty {
            before_off();
            let memory = RING.swap(ptr::null_mut(), SeqCst);
            if !memory.is_null() {
                // SAFETY: the mapping of the session that has ended. All threads have left it, and no thread enters it again.
                unsafe { system::unmap(memory, RING_WORDS.load(Relaxed)) };
            }
            wipe();
        }
        STATE.store(if is_empty { OFF } else { ENDED }, SeqCst);
        // A thread that left meanwhile saw another state and did nothing.
        if is_empty || USERS.load(SeqCst) != 0 {
            return is_empty;
        }
    }
}

fn wipe() {
    let area = AREA.load(Acquire);
    if !area.is_null() {
        // SAFETY: the area, which is accessed by atomics only.
        unsafe { system::wipe(area, AREA_BYTES) };
    }
}

/// Says where the daemon listens. Only in the state [`STARTING`].
pub(crate) fn set_socket(name: Option<SocketName>) {
    // SAFETY: the only thread that uses it is in this state.
    unsafe { *SOCKET.0.get() = name };
}

/// Where the daemon listens.
pub(crate) fn socket() -> Option<SocketName> {
    // SAFETY: nobody changes it once the client has begun.
    unsafe { *SOCKET.0.get() }
}

/// Calls `ask` with a buffer and with the settings to be filled in. Only in the state [`STARTING`].
pub(crate) fn asking<T>(ask: impl FnOnce(&mut [u8; Welcome::MOST_BYTES], &mut Welcome) -> T) -> T {
    // SAFETY: the only thread that uses them is in this state.
    unsafe { ask(&mut *BUFFER.0.get(), &mut *SETTINGS.0.get()) }
}

/// Makes what was granted the session's. `false` if there is no memory, or the ring is none. Only in the state [`STARTING`].
pub(crate) fn install(granted: &Granted) -> bool {
    // SAFETY: just mapped with this size.
    let memory = unsafe { slice::from_raw_parts(granted.memory, granted.words) };
    let is_ring = Ring::new(memory).is_some_and(Ring::is_initialized);
    let mut area = AREA.load(Acquire);
    if is_ring
        && area.is_null()
        && let Some((mapped, in_children)) = system::map_private(AREA_BYTES)
    {
        IS_WIPED.store(in_children == InChildren::Zeroes, Relaxed);
        area = mapped;
        AREA.store(area, Release);
    }
    if !is_ring || area.is_null() {
        // SAFETY: nobody else knows of it.
        unsafe { system::unmap(granted.memory, granted.words) };
        return false;
    }
    let ours = match IS_WIPED.load(Relaxed) {
        true => SURELY_OURS,
        false => PERHAPS_OURS,
    };
    owner(area).store(ours, Relaxed);
    PROCESS.store(system::process(), Relaxed);
    DAEMON.store(granted.daemon, Relaxed);
    RING_WORDS.store(granted.words, Relaxed);
    RING.store(granted.memory, Release);
    // SAFETY: nobody uses the settings before the state changes.
    let grain = Grain::of(unsafe { &*SETTINGS.0.get() }.least_interval());
    SHIFT.store(grain.shift(), Relaxed);
    FILTER.store(area.wrapping_add(PAGE + grain.shift()).cast(), SeqCst);
    true
}

/// The daemon's process; 0 if it is in another pid namespace.
pub(crate) fn daemon() -> i32 {
    DAEMON.load(Relaxed)
}

/// Releases are looked up no more.
pub(crate) fn look_no_more() {
    FILTER.store(ptr::null_mut(), SeqCst);
}

/// The process is a new child: forgets the session, and returns the state that its parent was in.
pub(crate) fn forget() -> u32 {
    look_no_more();
    FORKS.fetch_add(1, Relaxed);
    USERS.store(0, SeqCst);
    let memory = RING.swap(ptr::null_mut(), SeqCst);
    let thread = thread::current();
    thread.number.store(0, Relaxed);
    // If this thread was inside when a signal handler forked, it goes on there: then the mapping stays.
    if !memory.is_null() && thread.inside.load(Relaxed) == 0 {
        // SAFETY: the child has one thread, which is not inside.
        unsafe { system::unmap(memory, RING_WORDS.load(Relaxed)) };
    }
    wipe();
    let before = now();
    STATE.store(if before == BEFORE { BEFORE } else { OFF }, SeqCst);
    before
}
