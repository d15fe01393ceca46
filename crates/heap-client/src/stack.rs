//! How much of a thread's stack a sample has, and the copy of it.
//!
//! The bounds of the first thread's stack are known: all up to its end is there and can be copied. Other stacks are those of threads, or the program has
//! made them for signal handlers and coroutines. Their bounds are not looked up, because `pthread_getattr_np` holds a lock while it allocates, and a
//! program that calls it would wait for itself in a sample of that allocation. So the kernel copies, page by page, up to the first page that cannot be
//! read, and not beyond this thread's own variables, which are above its stack. A thread whose stack could be read up to there has a stack whose bounds are
//! known from then on, as far down as it was read. `report` calls this.
#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::layout::MOST_STACK_BYTES;
use crate::ring::Space;
use crate::system;
use crate::thread::Thread;

/// The part of a stack that can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    from: u64,
    /// A multiple of eight.
    bytes: usize,
    /// The stack goes on beyond what is copied.
    is_cut: bool,
    /// All of it is there for sure.
    is_own: bool,
}

/// The extent of this thread's stack from the stack pointer on, at most so many bytes.
pub(crate) fn extent(thread: &Thread, stack_pointer: u64, most: usize) -> Extent {
    let most = most.min(MOST_STACK_BYTES) & !7;
    let (low, high) = bounds(thread);
    let is_own = (low..high).contains(&stack_pointer);
    let bytes = if is_own {
        high - stack_pointer
    } else {
        // One byte more than wanted, to know whether the copy is cut.
        let wanted = most as u64 + 1;
        let variables = ptr::from_ref(thread) as u64;
        let to_variables = variables.checked_sub(stack_pointer).unwrap_or(u64::MAX);
        let there = system::readable(stack_pointer, wanted.min(to_variables) as usize) as u64;
        if there == to_variables {
            remember(thread, stack_pointer, variables);
        }
        there
    };
    Extent {
        from: stack_pointer,
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX).min(most) & !7,
        is_cut: bytes > most as u64,
        is_own,
    }
}

fn bounds(thread: &Thread) -> (u64, u64) {
    (thread.stack_low.load(Relaxed), thread.stack_high.load(Relaxed))
}

/// This thread's stack can be read from here up to its variables. Libc has made both in one piece, which stays until the thread has ended, so later copies
/// need not ask the kernel. For the first thread, whose variables are elsewhere, nothing is remembered.
fn remember(thread: &Thread, low: u64, variables: u64) {
    let is_unknown = matches!(bounds(thread), (_, high) if high == 0 || high == variables);
    let number = thread.number.load(Relaxed);
    if is_unknown && number != 0 && number != system::process().cast_unsigned() {
        // A signal handler in between finds a stack of no bytes, which is nobody's.
        thread.stack_high.store(0, Relaxed);
        thread.stack_low.store(low, Relaxed);
        thread.stack_high.store(variables, Relaxed);
    }
}

/// Looks up the bounds of this thread's stack. Only where the program cannot be looking up the same: libc holds a lock meanwhile, and may allocate.
pub(crate) fn look_up_bounds(thread: &Thread) {
    thread.is_looking.store(true, Relaxed);
    let (low, high) = system::stack_bounds().unwrap_or((0, 0));
    thread.stack_low.store(low, Relaxed);
    thread.stack_high.store(high, Relaxed);
    thread.is_looking.store(false, Relaxed);
}

/// Leaves out of samples what is on this thread's stack from an address on: no frames, but the environment, which is large and nobody's business.
pub(crate) fn leave_out_from(thread: &Thread, address: u64) {
    let (low, high) = bounds(thread);
    if (low..high).contains(&address) {
        thread.stack_high.store(address, Relaxed);
    }
}

impl Extent {
    /// Words that the copy takes.
    pub(crate) fn words(self) -> usize {
        self.bytes / 8
    }

    /// Copies the stack into a record from this word of its payload on, and returns the word that describes the copy:
    /// [`STACK_BYTES`](crate::layout::allocation::STACK_BYTES).
    pub(crate) fn copy(self, space: &Space<'_>, at: usize) -> u64 {
        let words = space.words(at);
        let bytes = self.bytes.min(words.len() * 8);
        if self.is_own {
            let from = self.from as *const u64;
            for (index, word) in words.iter().enumerate().take(bytes / 8) {
                // SAFETY: between the stack pointer and the end of the stack all is mapped, and the stack pointer is aligned. Functions that are
                // being called below may change their frames meanwhile: that is what volatile is for.
                word.store(unsafe { from.add(index).read_volatile() }, Relaxed);
            }
            return bytes as u64 | u64::from(self.is_cut) << 32;
        }
        // SAFETY: the words are so many bytes long, and accessed by atomics only.
        let there = unsafe { system::copy_if_there(self.from, words.as_ptr() as *mut u8, bytes) } & !7;
        there as u64 | u64::from(self.is_cut || there < bytes) << 32
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::layout::{HEADER_WORDS, Kind};
    use crate::ring::Ring;
    use crate::thread;

    fn copied(extent: Extent) -> (Vec<u64>, u64) {
        let memory: Vec<AtomicU64> = (0..HEADER_WORDS + 16384).map(|_| AtomicU64::new(0)).collect();
        let ring = Ring::new(&memory).expect("a possible size");
        let space = ring.take(Kind::Allocation, extent.words()).expect("space");
        let described = extent.copy(&space, 0);
        (
            space.words(0).iter().map(|word| word.load(Relaxed)).collect(),
            described,
        )
    }

    #[test]
    fn the_threads_own_stack_is_copied_up_to_its_end_or_to_the_limit() {
        let marks = [0x1234_5678_9abc_def0_u64; 4];
        let from = std::ptr::from_ref(std::hint::black_box(&marks)) as u64;
        look_up_bounds(thread::current());
        let extent_of = |most| extent(thread::current(), from, most);
        let cut = extent_of(64);
        assert!(cut.is_own && cut.is_cut);
        let (words, described) = copied(cut);
        assert_eq!(
            (words.len(), &words[..4], described),
            (8, &marks[..], 64 | 1 << 32)
        );
        std::thread::Builder::new()
            .stack_size(16 << 10)
            .spawn(|| {
                let local = 0_u64;
                let from = std::ptr::from_ref(&local) as u64;
                let whole = |is_own| {
                    let whole = extent(thread::current(), from, 1 << 20);
                    assert_eq!(whole.is_own, is_own);
                    assert!(!whole.is_cut || whole.bytes == MOST_STACK_BYTES, "{whole:?}");
                    whole.bytes
                };
                // The variables of the thread are at the end of its stack.
                let unknown = whole(false);
                look_up_bounds(thread::current());
                let known = whole(true);
                assert!(unknown <= known && known - unknown < 8192, "{unknown} {known}");
            })
            .expect("a thread")
            .join()
            .expect("no panic");
    }

    #[test]
    fn a_threads_stack_is_known_once_it_was_read_up_to_its_variables() {
        std::thread::spawn(|| {
            let local = [7_u64; 4];
            let from = std::ptr::from_ref(std::hint::black_box(&local)) as u64;
            let of = |most| extent(thread::current(), from, most);
            assert!(!of(MOST_STACK_BYTES).is_own);
            // Nothing is remembered before the thread has a number, or as the first one.
            assert!(!of(MOST_STACK_BYTES).is_own);
            thread::current().number.store(std::process::id(), Relaxed);
            assert!(!of(MOST_STACK_BYTES).is_own && !of(MOST_STACK_BYTES).is_own);
            thread::current().number.store(system::thread(), Relaxed);
            // Not all of it is wanted.
            assert!(!of(32).is_own && !of(32).is_own);
            let unknown = of(MOST_STACK_BYTES);
            let known = of(MOST_STACK_BYTES);
            assert!(!unknown.is_own && known.is_own);
            assert_eq!((known.bytes, known.is_cut), (unknown.bytes, unknown.is_cut));
            assert_eq!(&copied(known).0[..4], &local);
            // The part further down is not known yet.
            let lower = extent(thread::current(), from - 64, MOST_STACK_BYTES);
            assert!(!lower.is_own && lower.bytes == known.bytes + 64);
            assert!(extent(thread::current(), from - 64, MOST_STACK_BYTES).is_own);
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn another_stack_is_copied_up_to_the_first_page_that_is_not_there() {
        const PAGE: usize = 4096;
        let (memory, _) = system::map_private(3 * PAGE).expect("memory");
        // Nobody may get the place of a page that is not there.
        let take_away = |page: usize, pages: usize| {
            // SAFETY: these pages are of a mapping of our own, to which nothing refers.
            let taken =
                unsafe { libc::mprotect(memory.add(page * PAGE).cast(), pages * PAGE, libc::PROT_NONE) };
            assert_eq!(taken, 0);
        };
        take_away(2, 1);
        let from = memory as u64 + 96;
        // SAFETY: within the mapping, and aligned.
        unsafe { memory.add(96).cast::<u64>().write(7) };
        let extent = extent(thread::current(), from, MOST_STACK_BYTES);
        assert_eq!(
            extent,
            Extent {
                from,
                bytes: 2 * PAGE - 96,
                is_cut: false,
                is_own: false,
            }
        );
        let (words, described) = copied(extent);
        assert_eq!(
            (words.len(), words[0], described),
            ((2 * PAGE - 96) / 8, 7, 2 * PAGE as u64 - 96)
        );
        take_away(0, 2);
        assert_eq!(copied(extent), (vec![0; (2 * PAGE - 96) / 8], 1 << 32));
        // SAFETY: nothing refers to it.
        unsafe { system::unmap(memory.cast(), 3 * PAGE / 8) };
    }
}
