//! From an allocation to a record in the ring.
//!
//! The hooks call [`allocated`] and [`freed`] around each call of the real allocator. While there is no session these cost a load and a branch. During
//! one, an allocation that is not sampled costs a multiplication and a subtraction in this thread's state, and a release of one a load and a compare.
//!
//! Nothing here panics. Nothing allocates or takes a lock, but for the bounds of a thread's stack, which libc looks up once (`stack::bounds`). So signal
//! handlers may interrupt it and come here themselves. `errno` stays as it was.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::handshake::WhenFull;
use crate::heaps::{self, ALLOCATOR, Heap};
use crate::layout::{Kind, REGISTERS, allocation, free, header};
use crate::ring::{Ring, Space};
use crate::state::{self, Inside};
use crate::thread::{self, Thread};
use crate::{registers, sampler, session, stack, system};

/// How long a client that loses samples believes that the daemon is alive.
const BELIEF_NS: u64 = 1_000_000_000;

/// The program's allocator has allocated this memory. Called after the real allocator; null is no allocation.
#[inline(always)]
pub fn allocated(address: *const u8, size: usize) {
    allocated_or(address, size, session::start_in_child);
}

/// As [`allocated`]. Calls `look` instead if the allocator's heap is not sampled, but wants a look at its next allocation.
#[inline(always)]
pub(crate) fn allocated_or(address: *const u8, size: usize, look: fn()) {
    let heap = heaps::allocator();
    let interval = heap.interval();
    if interval != 0 && is_due(heap, interval, size as u64) {
        due(address, size as u64, look);
    }
}

/// An allocation of the program's allocator that [is due](is_due). Its arguments are where the caller has them, so that callers do nothing for it on the
/// way of all other allocations. Its frame is where the sampled stack begins.
#[cold]
#[inline(never)]
fn due(address: *const u8, size: u64, look: fn()) {
    let registers = registers::capture();
    if address.is_null() {
        return;
    }
    let allocation = Allocation {
        heap: ALLOCATOR,
        id: address as u64,
        size,
        chosen: None,
    };
    sample(heaps::allocator(), &allocation, &registers, look);
}

/// Whether the program's allocator has to call [`freed`] for this memory. A load and a compare.
#[inline(always)]
pub fn may_be_sampled(address: *const u8) -> bool {
    state::may_be_live(ALLOCATOR, address as u64)
}

/// The program's allocator is about to release this memory. Called before the real allocator, which may give it to another thread at once.
#[inline(always)]
pub fn freed(address: *const u8) {
    if state::may_be_live(ALLOCATOR, address as u64) {
        maybe_live(ALLOCATOR, address as u64);
    }
}

/// Upstream's `AHeapProfile_reportAllocation`: a heap of the program's own has allocated. Returns whether it is sampled. `id` is the address, or any
/// number that the heap has only one living allocation for.
#[inline]
pub fn report_allocation(heap: u32, id: u64, size: u64) -> bool {
    match known(heap) {
        Some((number, heap)) => {
            let interval = heap.interval();
            let allocation = Allocation {
                heap: number,
                id,
                size,
                chosen: None,
            };
            interval != 0 && is_due(heap, interval, size) && sampled(heap, &allocation)
        }
        None => false,
    }
}

/// Upstream's `AHeapProfile_reportSample`: a heap that samples for itself has chosen an allocation, which stands for so many bytes. Returns whether the
/// heap is being profiled.
#[inline]
pub fn report_sample(heap: u32, id: u64, size: u64) -> bool {
    match known(heap) {
        Some((number, heap)) if heap.interval() != 0 => {
            let allocation = Allocation {
                heap: number,
                id,
                size,
                chosen: Some(size),
            };
            sampled(heap, &allocation);
            heap.is_sampled()
        }
        _ => false,
    }
}

/// Upstream's `AHeapProfile_reportFree`: a heap of the program's own is about to release an allocation. One that was not sampled changes nothing.
#[inline]
pub fn report_free(heap: u32, id: u64) {
    if let Ok(number) = u8::try_from(heap)
        && state::may_be_live(number, id)
        && known(heap).is_some()
    {
        maybe_live(number, id);
    }
}

/// Heaps of the program's own ignore that their next allocation is to have a look. Only the allocator's looks.
fn look_elsewhere() {}

#[inline(always)]
fn known(heap: u32) -> Option<(u8, &'static Heap)> {
    Some((u8::try_from(heap).ok()?, heaps::get(heap)?))
}

/// Whether an allocation is a sample, or the slow path has something else to do.
#[inline(always)]
fn is_due(heap: &Heap, interval: u64, size: u64) -> bool {
    if size >= interval {
        return true;
    }
    let remaining = &thread::current().remaining;
    // The product is less than two intervals, even if another thread is changing the two numbers.
    let now = remaining
        .load(Relaxed)
        .wrapping_sub(size.wrapping_mul(heap.rate()) as i64);
    remaining.store(now, Relaxed);
    now < 0
}

/// An allocation that may be a sample.
struct Allocation {
    heap: u8,
    id: u64,
    size: u64,
    /// The bytes that it stands for, if its heap samples for itself.
    chosen: Option<u64>,
}

/// An allocation of a heap of the program's own that may be a sample. Its frame is where the sampled stack begins. Returns whether a sample was recorded.
#[cold]
#[inline(never)]
fn sampled(heap: &'static Heap, allocation: &Allocation) -> bool {
    let registers = registers::capture();
    sample(heap, allocation, &registers, look_elsewhere)
}

/// The slow path of allocations. Returns whether a sample was recorded.
fn sample(heap: &'static Heap, allocation: &Allocation, registers: &[u64; REGISTERS], look: fn()) -> bool {
    system::keeping_errno(|| {
        let thread = thread::current();
        if thread.is_looking.load(Relaxed) {
            return false;
        }
        if !heap.is_sampled() {
            look();
            return false;
        }
        let interval = heap.interval();
        let stands_for = match allocation.chosen {
            Some(bytes) => bytes,
            None if allocation.size >= interval => allocation.size,
            None => match draw(thread) {
                0 => return false,
                hits => hits.wrapping_mul(interval),
            },
        };
        let Some(inside) = state::enter() else {
            return false;
        };
        adapt(&inside, allocation.heap, heap, interval);
        record(&inside, allocation, stands_for, registers)
    })
}

/// How often the allocation that used up this thread's distance is hit.
fn draw(thread: &Thread) -> u64 {
    let mut random = thread.random.load(Relaxed);
    let mut remaining = thread.remaining.load(Relaxed);
    if random == 0 {
        random = seed(thread);
        remaining = remaining.saturating_add(sampler::distance(&mut random));
    }
    let hits = sampler::hits(&mut remaining, &mut random);
    thread.random.store(random | u64::from(random == 0), Relaxed);
    thread.remaining.store(remaining, Relaxed);
    hits
}

/// Where a thread's random numbers begin: differs between processes and between threads.
fn seed(thread: &Thread) -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    let [one, other] = system::random_of_process();
    let mut mixed = one ^ u64::from(number(thread)) << 32 ^ other.rotate_left(7);
    mixed = mixed.wrapping_add(THREADS.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    sampler::next(&mut mixed) | 1
}

/// The kernel's number of this thread.
fn number(thread: &Thread) -> u32 {
    let known = thread.number.load(Relaxed);
    if known != 0 {
        return known;
    }
    let number = system::thread();
    thread.number.store(number, Relaxed);
    number
}

/// Doubles the heap's interval when the ring has become too full, as upstream does.
fn adapt(inside: &Inside, number: u8, heap: &Heap, interval: u64) {
    let settings = inside.settings();
    let Some(ring) = inside.ring() else { return };
    let is_below = settings.adaptive_most == 0 || interval < settings.adaptive_most;
    if settings.adaptive_threshold != 0
        && is_below
        && ring.bytes() - ring.used_bytes() < settings.adaptive_threshold
        && inside.is_own()
        && let Some(double) = heap.double(interval)
    {
        session::write_heap(inside, number, heap, double);
    }
}

/// Writes a sample into the ring. `false` if it cannot be.
fn record(inside: &Inside, sample: &Allocation, stands_for: u64, registers: &[u64; REGISTERS]) -> bool {
    let (Some(ring), Some(live)) = (inside.ring(), state::live()) else {
        return false;
    };
    if !inside.is_own() {
        return false;
    }
    if session::has_ended(inside) {
        session::end(inside);
        return false;
    }
    // A member already: its release was not reported. The daemon takes the new allocation for it.
    if !live.contains(sample.heap, sample.id) && !live.insert(sample.heap, sample.id) {
        ring.header(header::UNTRACKED).fetch_add(1, Relaxed);
        return false;
    }
    let pointer = registers.get(registers::STACK_POINTER).copied().unwrap_or(0);
    // A copy of a quarter of the ring at most, so that there is space for it some time.
    let extent = stack::extent(inside.thread, pointer, (ring.bytes() / 4) as usize);
    let words = allocation::STACK + extent.words();
    let Some(space) = take(inside, ring, Kind::Allocation, words) else {
        live.remove(sample.heap, sample.id);
        ring.header(header::LOST_SAMPLES).fetch_add(1, Relaxed);
        ring.header(header::LOST_BYTES).fetch_add(stands_for, Relaxed);
        return false;
    };
    let thread = u64::from(number(inside.thread)) << 32;
    space.write(allocation::TIMESTAMP, system::now(libc::CLOCK_MONOTONIC_COARSE));
    space.write(allocation::ADDRESS, sample.id);
    space.write(allocation::SIZE, sample.size);
    space.write(allocation::SAMPLE_SIZE, stands_for);
    space.write(allocation::HEAP_AND_THREAD, thread | u64::from(sample.heap));
    for (index, register) in registers.iter().enumerate() {
        space.write(allocation::REGISTERS + index, *register);
    }
    space.write(allocation::STACK_BYTES, extent.copy(&space, allocation::STACK));
    space.complete();
    true
}

/// Takes space in the ring, and waits for it if the session wants that.
fn take<'a>(inside: &Inside, ring: Ring<'a>, kind: Kind, words: usize) -> Option<Space<'a>> {
    if let Some(space) = ring.take(kind, words) {
        return Some(space);
    }
    let WhenFull::Wait { at_most_us } = inside.settings().when_full else {
        doubt(inside);
        return None;
    };
    let at_most = match at_most_us {
        0 => u64::MAX,
        at_most => at_most.into(),
    };
    let mut waited = 0_u64;
    while waited < at_most && !session::has_ended(inside) {
        let us = session::wait_for_daemon(inside, at_most - waited, || ring.has_space(kind, words));
        ring.header(header::WAITED_US).fetch_add(us, Relaxed);
        waited = waited.saturating_add(us.max(1));
        if let Some(space) = ring.take(kind, words) {
            return Some(space);
        }
        doubt(inside);
        if state::now() != state::ON {
            return None;
        }
    }
    if !session::has_ended(inside) {
        ring.header(header::TIMED_OUT).store(1, Relaxed);
    }
    session::end(inside);
    None
}

/// The ring is full: looks whether the daemon is alive, once a second, and ends the session if it has read nothing since the last look and is not there.
fn doubt(inside: &Inside) {
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    /// The position read at the last look: none yet.
    static READ: AtomicU64 = AtomicU64::new(u64::MAX);
    let now = system::now(libc::CLOCK_MONOTONIC_COARSE);
    let looked = LOOKED.load(Relaxed);
    let is_due = now.wrapping_sub(looked) > BELIEF_NS;
    if !is_due || LOOKED.compare_exchange(looked, now, Relaxed, Relaxed).is_err() {
        return;
    }
    let Some(ring) = inside.ring() else { return };
    // A daemon that reads is alive, also where the process cannot see its socket, as after `chroot`.
    let read = ring.header(header::READ).load(Relaxed);
    if READ.swap(read, Relaxed) == read && !session::is_daemon_there() {
        // If it is alive all the same, it has to know.
        ring.header(header::OUT_OF_REACH).store(1, Relaxed);
        session::end(inside);
    }
}

/// The slow path of releases: some living sample is near.
#[cold]
#[inline(never)]
fn maybe_live(heap: u8, id: u64) {
    if state::live().is_some_and(|live| live.contains(heap, id)) {
        system::keeping_errno(|| released(heap, id));
    }
}

fn released(heap: u8, id: u64) {
    let Some(inside) = state::enter() else { return };
    let (Some(ring), Some(live)) = (inside.ring(), state::live()) else {
        return;
    };
    if !inside.is_own() {
        return;
    }
    if session::has_ended(&inside) {
        session::end(&inside);
        return;
    }
    if !live.remove(heap, id) {
        return;
    }
    match take(&inside, ring, Kind::Free, free::WORDS) {
        Some(space) => {
            space.write(free::ADDRESS, id);
            space.write(free::HEAP, heap.into());
            space.complete();
        }
        None => {
            ring.header(header::LOST_FREES).fetch_add(1, Relaxed);
        }
    }
}
