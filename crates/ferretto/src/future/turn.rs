//! Turns: exclusive use of a value by one thread at a time, without waiting.
//!
//! A thread that finds the turn taken does without, or leaves a mark, which the holder takes care of before it lets go. So no thread waits, a fork
//! finds nothing locked for ever, and user's code may run in a turn. [`super::lanes`] keeps the slices of a lane in one of these; it is contended
//! only where two threads begin or end slices of one lane at the same moment.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use ferretto_client::atomic_word::AtomicWord;

#[cfg(test)]
mod tests;

/// This bit of the word says that a thread has the turn. The other bits are marks; all are clear while the turn is free.
const HELD: u64 = 1 << 63;
/// Marks are numbers below this.
pub(super) const MARKS: u32 = 63;

/// Takes the turn, if it is free.
fn try_take(word: &impl AtomicWord) -> bool {
    word.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Takes the turn, or leaves `mark` for its holder. If the holder lets go in between, the caller takes the turn with its own mark set.
fn take_or_mark(word: &impl AtomicWord, mark: u32) -> bool {
    // Releases this thread's writes before the mark.
    try_take(word) || word.fetch_or(HELD | 1 << mark, Ordering::AcqRel) & HELD == 0
}

/// Gives the turn back, unless there are marks; then keeps it, clears the marks and returns them.
fn let_go(word: &impl AtomicWord) -> Option<u64> {
    match word.compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed) {
        Ok(_) => None,
        Err(_) => Some(word.swap(HELD, Ordering::Acquire) & !HELD),
    }
}

/// How the holder of a turn acts on a mark that another thread has left.
pub(super) trait Marked {
    fn take_care_of(&mut self, mark: u32);
}

/// `shared` is for all threads, the rest for the holder of the turn.
pub(super) struct Turn<S, T> {
    pub(super) shared: S,
    word: AtomicU64,
    own: UnsafeCell<T>,
}

// SAFETY: `own` is only reached through a `Held`, of which there is one at a time; it goes to other threads with the turn.
unsafe impl<S: Sync, T: Send> Sync for Turn<S, T> {}

impl<S, T: Marked> Turn<S, T> {
    pub(super) const fn new(shared: S, own: T) -> Self {
        Self {
            shared,
            word: AtomicU64::new(0),
            own: UnsafeCell::new(own),
        }
    }

    /// Takes the turn, if it is free.
    pub(super) fn try_take<P: Deref<Target = Self>>(this: P) -> Result<Held<S, T, P>, P> {
        match try_take(&this.word) {
            true => Ok(Held { turn: this }),
            false => Err(this),
        }
    }

    /// Takes the turn; if another thread has it, leaves `mark`, which is below [`MARKS`], to that thread.
    pub(super) fn take_or_mark<P: Deref<Target = Self>>(this: P, mark: u32) -> Option<Held<S, T, P>> {
        take_or_mark(&this.word, mark).then(|| {
            // If its own mark was set, the caller takes care of it.
            this.word.fetch_and(!(1 << mark), Ordering::Relaxed);
            Held { turn: this }
        })
    }
}

impl<S: fmt::Debug, T> fmt::Debug for Turn<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Turn").field(&self.shared).finish()
    }
}

/// The turn, until this is dropped.
pub(super) struct Held<S, T: Marked, P: Deref<Target = Turn<S, T>>> {
    pub(super) turn: P,
}

impl<S, T: Marked, P: Deref<Target = Turn<S, T>>> Held<S, T, P> {
    /// Gives the turn back.
    pub(super) fn let_go(mut self) -> P {
        self.settle();
        let this = ManuallyDrop::new(self);
        // SAFETY: `this.turn` is neither used again nor dropped, because `this` is a `ManuallyDrop`.
        unsafe { ptr::read(&this.turn) }
    }

    fn settle(&mut self) {
        while let Some(mut marks) = let_go(&self.turn.word) {
            while marks != 0 {
                // The highest first, because the topmost slice ends first.
                let mark = marks.ilog2();
                marks &= !(1 << mark);
                self.take_care_of(mark);
            }
        }
    }
}

impl<S, T: Marked, P: Deref<Target = Turn<S, T>>> Deref for Held<S, T, P> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: there is one `Held` of a turn at a time, and this borrows it.
        unsafe { &*self.turn.own.get() }
    }
}

impl<S, T: Marked, P: Deref<Target = Turn<S, T>>> DerefMut for Held<S, T, P> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one `Held` of a turn at a time, and this borrows it mutably.
        unsafe { &mut *self.turn.own.get() }
    }
}

impl<S, T: Marked, P: Deref<Target = Turn<S, T>>> Drop for Held<S, T, P> {
    fn drop(&mut self) {
        self.settle();
    }
}
