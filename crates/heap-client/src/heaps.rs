//! The heaps of a process: its allocator, and those that it registers itself, as with upstream's `AHeapInfo_*` and `AHeapProfile_registerHeap`.
//!
//! Heap 1 is the allocator that the preloaded library or [`HeapProfiled`](crate::HeapProfiled) stands in front of. Programs register up to 254 others.
//! A heap is never removed. `report` reads how a heap is sampled; `session` decides it; `callbacks` calls the program's functions.
//!
//! All of it is atomics: it is used in signal handlers, and by all threads without locks.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use crate::handshake::HEAP_NAME_BYTES;
use crate::sync::Word;
use crate::{callbacks, sampler, session};

/// Heaps of a process, the one without a number included, as upstream.
pub const MOST_HEAPS: usize = 256;

/// The number of the program's allocator.
pub(crate) const ALLOCATOR: u8 = 1;

/// The name of the preloaded library's file.
pub const LIBRARY_FILE: &str = "libferretto_heap.so";

/// The name of the heap of the preloaded library, as upstream's. It is sampled if a config names no heap.
pub const MALLOC: &str = "libc.malloc";

/// The name of the heap of a Rust program's global allocator.
///
/// A session that gives this name no interval samples it as it samples [`MALLOC`], so that configs for other programs do for such a program too.
pub const GLOBAL_ALLOC: &str = "rust.global_alloc";

/// The argument of an enabled callback: upstream's `AHeapProfileEnableCallbackInfo`.
#[derive(Debug)]
#[repr(C)]
pub struct EnableInfo {
    /// Bytes between two samples, on average.
    pub sampling_interval: u64,
}

/// The argument of a disabled callback, which is empty: upstream's `AHeapProfileDisableCallbackInfo`.
#[derive(Debug)]
#[repr(C)]
pub struct DisableInfo {
    nothing: u8,
}

impl DisableInfo {
    pub(crate) const NOTHING: DisableInfo = DisableInfo { nothing: 0 };
}

/// A function of the program, called when profiling of a heap begins.
pub type EnabledCallback = extern "C" fn(data: *mut c_void, info: *const EnableInfo);
/// A function of the program, called when profiling of a heap has ended.
pub type DisabledCallback = extern "C" fn(data: *mut c_void, info: *const DisableInfo);

/// One heap.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Heap {
    pace: Pace,
    /// Bytes between two samples as the session wants it; `pace` follows once the callback has returned.
    wanted: AtomicU64,
    name: [AtomicU64; HEAP_NAME_BYTES / 8],
    is_registered: AtomicBool,
    /// The program was told that profiling has begun, and not yet that it has ended.
    pub(crate) is_enabled: AtomicBool,
    pub(crate) enabled: Callback,
    pub(crate) disabled: Callback,
}

/// How a heap is sampled now. Read at each allocation.
#[derive(Debug)]
#[repr(C)]
struct Pace<W = AtomicU64> {
    /// Bytes between two samples. 0: it is not sampled.
    interval: W,
    /// By how much an allocated byte goes on to the next hit.
    rate: W,
}

impl<W: Word> Pace<W> {
    /// Doubles the interval, if no other thread does so. Returns the new one.
    fn double(&self, interval: u64) -> Option<u64> {
        let double = interval.checked_mul(2)?;
        self.interval
            .compare_exchange_weak(interval, double, AcqRel, Relaxed)
            .ok()?;
        let mut settled = double;
        loop {
            // If another thread has stored the rate of a later interval meanwhile, this one takes its place. But then the swap acquires what that thread
            // did before, so that the load sees the later interval.
            self.rate.swap(rate_of(settled), AcqRel);
            match self.interval.load(Acquire) {
                now if now == settled => return Some(double),
                now => settled = now,
            }
        }
    }
}

/// The rate of a heap with this interval: 0 only if it is not sampled.
fn rate_of(interval: u64) -> u64 {
    sampler::rate(interval).max((interval != 0).into())
}

/// A function of the program with its data.
#[derive(Debug)]
pub(crate) struct Callback {
    pub(crate) function: AtomicPtr<c_void>,
    pub(crate) data: AtomicPtr<c_void>,
}

impl Callback {
    const fn none() -> Callback {
        Callback {
            function: AtomicPtr::new(ptr::null_mut()),
            data: AtomicPtr::new(ptr::null_mut()),
        }
    }

    fn set(&self, function: *mut c_void, data: *mut c_void) {
        self.data.store(data, Relaxed);
        self.function.store(function, Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        !self.function.load(Relaxed).is_null()
    }
}

/// The interval of a heap whose next allocation, of any size but 0, has to take the slow path.
const LOOK: u64 = 1;

/// The allocator's heap. Its first allocation takes the slow path, on which a global allocator begins.
static FIRST: Heap = Heap::new(LOOK);

static OTHERS: [Heap; MOST_HEAPS] = [const { Heap::new(0) }; MOST_HEAPS];

/// The number of the next heap to be made.
static NEXT: AtomicU32 = AtomicU32::new(ALLOCATOR as u32 + 1);

/// The program's allocator.
#[inline(always)]
pub(crate) fn allocator() -> &'static Heap {
    &FIRST
}

/// The heap with this number. `None` if there can be none.
#[inline(always)]
pub(crate) fn get(number: u32) -> Option<&'static Heap> {
    match number {
        0 => None,
        1 => Some(&FIRST),
        _ => OTHERS.get(number as usize),
    }
}

/// All registered heaps and their numbers.
pub(crate) fn registered() -> impl Iterator<Item = (u8, &'static Heap)> {
    let all = 1..NEXT.load(Acquire).min(MOST_HEAPS as u32);
    all.filter_map(|number| {
        let heap = get(number)?;
        heap.is_registered.load(Acquire).then_some((number as u8, heap))
    })
}

/// Makes the allocator's heap. Once.
pub(crate) fn register_allocator(name: &str) {
    FIRST.set_name(name.as_bytes());
    FIRST.is_registered.store(true, Release);
}

impl Heap {
    const fn new(interval: u64) -> Heap {
        Heap {
            pace: Pace {
                interval: AtomicU64::new(interval),
                rate: AtomicU64::new(0),
            },
            wanted: AtomicU64::new(0),
            name: [const { AtomicU64::new(0) }; HEAP_NAME_BYTES / 8],
            is_registered: AtomicBool::new(false),
            is_enabled: AtomicBool::new(false),
            enabled: Callback::none(),
            disabled: Callback::none(),
        }
    }

    /// Makes a heap with this name, which is not yet [registered](Self::register). `None` if the name is longer than 63 bytes, or if 254 heaps have
    /// been made before.
    pub fn create(name: &[u8]) -> Option<&'static Heap> {
        if name.len() >= HEAP_NAME_BYTES || name.contains(&0) {
            return None;
        }
        let more = |next: u32| (next < MOST_HEAPS as u32).then_some(next + 1);
        let number = NEXT.fetch_update(AcqRel, Relaxed, more).ok()?;
        let heap = get(number)?;
        heap.set_name(name);
        Some(heap)
    }

    fn set_name(&self, name: &[u8]) {
        let mut padded = [0; HEAP_NAME_BYTES];
        for (to, from) in padded.iter_mut().zip(name) {
            *to = *from;
        }
        for (word, bytes) in self.name.iter().zip(padded.chunks_exact(8)) {
            let bytes = bytes.first_chunk().copied().unwrap_or_default();
            word.store(u64::from_ne_bytes(bytes), Relaxed);
        }
    }

    /// Its name, with zeroes at the end, as eight words of memory.
    pub(crate) fn name_words(&self) -> impl Iterator<Item = u64> {
        self.name.iter().map(|word| word.load(Relaxed))
    }

    /// Calls `with` with its name.
    pub(crate) fn with_name<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        let mut name = [0; HEAP_NAME_BYTES];
        for (bytes, word) in name.chunks_exact_mut(8).zip(self.name_words()) {
            for (to, from) in bytes.iter_mut().zip(word.to_ne_bytes()) {
                *to = from;
            }
        }
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        with(name.get(..length).unwrap_or(&[]))
    }

    /// Has a function called when profiling of the heap begins. It comes too late, and is refused, once the heap is registered.
    #[must_use]
    pub fn set_enabled_callback(&self, function: EnabledCallback, data: *mut c_void) -> bool {
        let may = !self.is_registered.load(Relaxed);
        if may {
            self.enabled.set(function as *mut c_void, data);
        }
        may
    }

    /// Has a function called when profiling of the heap has ended. It comes too late, and is refused, once the heap is registered.
    #[must_use]
    pub fn set_disabled_callback(&self, function: DisabledCallback, data: *mut c_void) -> bool {
        let may = !self.is_registered.load(Relaxed);
        if may {
            self.disabled.set(function as *mut c_void, data);
        }
        may
    }

    /// Registers the heap, and returns its number. If a session wants it, profiling of it begins, and its callback is called before this returns.
    pub fn register(&'static self) -> u32 {
        let number = self.number();
        if !self.is_registered.swap(true, AcqRel) {
            if self.enabled.is_set() || self.disabled.is_set() {
                callbacks::prepare();
            }
            session::add_heap(number, self);
        }
        number.into()
    }

    fn number(&self) -> u8 {
        let heaps =
            (1..MOST_HEAPS as u32).find(|number| get(*number).is_some_and(|heap| ptr::eq(heap, self)));
        heaps.unwrap_or(0) as u8
    }

    /// Bytes between two samples. 0: it is not sampled.
    #[inline(always)]
    pub(crate) fn interval(&self) -> u64 {
        self.pace.interval.load(Relaxed)
    }

    /// By how much an allocated byte goes on to the next hit.
    #[inline(always)]
    pub(crate) fn rate(&self) -> u64 {
        self.pace.rate.load(Relaxed)
    }

    /// Whether the heap is sampled now.
    pub(crate) fn is_sampled(&self) -> bool {
        self.rate() != 0
    }

    /// The session's interval. 0: it is not to be sampled.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.load(Acquire)
    }

    pub(crate) fn want(&self, interval: u64) {
        self.wanted.store(interval, Release);
    }

    /// Samples the heap with this interval from now on, 0: not at all.
    pub(crate) fn sample(&self, interval: u64) {
        self.pace.rate.store(rate_of(interval), Relaxed);
        self.pace.interval.store(interval, Release);
    }

    /// Doubles the interval, if no other thread does so. Returns the new one.
    pub(crate) fn double(&self, interval: u64) -> Option<u64> {
        self.pace.double(interval)
    }

    /// The next allocation takes the slow path, and is not sampled.
    pub(crate) fn look(&self) {
        self.pace.rate.store(0, Relaxed);
        self.pace.interval.store(LOOK, Release);
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn threads_that_double_one_after_the_other_leave_the_rate_of_the_last_interval() {
        loom::model(|| {
            let pace = Arc::new(Pace {
                interval: AtomicU64::new(4096),
                rate: AtomicU64::new(rate_of(4096)),
            });
            let threads = [(); 2].map(|()| {
                let pace = pace.clone();
                loom::thread::spawn(move || {
                    let interval = Word::load(&pace.interval, Relaxed);
                    pace.double(interval)
                })
            });
            let doubled = threads.map(|thread| thread.join().expect("no panic"));
            let interval = Word::load(&pace.interval, Acquire);
            assert_eq!(Some(interval), doubled.into_iter().flatten().max());
            assert_eq!(Word::load(&pace.rate, Acquire), rate_of(interval));
        });
    }
}
