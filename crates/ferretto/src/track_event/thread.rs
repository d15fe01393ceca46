//! What each thread has of its own: its sequences, found through one thread-local pointer.
//!
//! Called for every event that somebody records. [`with`] lends a thread's state to one caller at a time: while it is lent the
//! pointer is null, so that an event in the middle of another, from a `Display` of the user's say, finds nothing there. It
//! is dropped then, and counted. When the thread ends its state is dropped, and with it every chunk goes back; an event even
//! later, from the destructor of another thread-local, gets a state for itself alone.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sequence::ThreadState;

thread_local! {
    /// The state, unless it is lent or there is none. Made by `Box::into_raw`.
    static STATE: Cell<*mut ThreadState> = const { Cell::new(null_mut()) };
    static PHASE: Cell<Phase> = const { Cell::new(Phase::New) };
    static END: End = const { End };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was recorded on this thread yet.
    New,
    /// `STATE` has it, or it is lent.
    Alive,
    /// The thread is ending.
    Ended,
}

/// Events that were not recorded because they happened in the middle of another.
static NESTED: AtomicU64 = AtomicU64::new(0);

/// How many events were not recorded because they happened while another was being written on the same thread.
pub(super) fn nested_events() -> u64 {
    NESTED.load(Ordering::Relaxed)
}

/// Has `use_state` called with this thread's state; `None` if it is lent already.
#[inline(always)]
pub(super) fn with<R>(use_state: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    let state = STATE.get();
    if state.is_null() {
        return without_state(use_state);
    }
    let lent = Lent(state);
    STATE.set(null_mut());
    // SAFETY: the pointer came from a box that nobody has freed, for only `End` does, which takes it out of `STATE` first. It was
    // in `STATE`, from where it is gone until `lent` is dropped: there is no other reference.
    Some(use_state(unsafe { &mut *lent.0 }))
}

/// Puts the state back, also when a user's code panics.
struct Lent(*mut ThreadState);

impl Drop for Lent {
    #[inline(always)]
    fn drop(&mut self) {
        STATE.set(self.0);
    }
}

#[cold]
#[inline(never)]
fn without_state<R>(use_state: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    match PHASE.get() {
        Phase::New => {
            // Has the state dropped when the thread ends; cannot be had if that is just happening.
            if END.try_with(|_| ()).is_err() {
                return Some(use_state(&mut ThreadState::new()));
            }
            PHASE.set(Phase::Alive);
            STATE.set(Box::into_raw(Box::new(ThreadState::new())));
            with(use_state)
        }
        Phase::Alive => {
            NESTED.fetch_add(1, Ordering::Relaxed);
            None
        }
        Phase::Ended => Some(use_state(&mut ThreadState::new())),
    }
}

/// Dropped when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        PHASE.set(Phase::Ended);
        let state = STATE.replace(null_mut());
        if !state.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`, is not lent, and is gone from `STATE`.
            drop(unsafe { Box::from_raw(state) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_lent_to_one_at_a_time_and_comes_back_after_a_panic() {
        let before = nested_events();
        assert_eq!(with(|_| with(|_| ())), Some(None));
        assert_eq!(nested_events(), before + 1);
        std::panic::catch_unwind(|| with(|_| panic!("for this test"))).unwrap_err();
        assert_eq!(with(|_| 1), Some(1));
    }

    #[test]
    fn a_thread_that_ends_has_a_state_to_the_last() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                assert_eq!(with(|_| 2), Some(2));
            }
        }
        thread_local!(static LATE: Late = const { Late });
        std::thread::spawn(|| {
            // Dropped in the order in which they are first used, or the other way round: both must do.
            LATE.with(|_| ());
            with(|_| ());
        })
        .join()
        .unwrap();
        std::thread::spawn(|| {
            with(|_| ());
            LATE.with(|_| ());
        })
        .join()
        .unwrap();
    }
}
