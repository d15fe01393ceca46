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
    let lent = if state.is_null() {
        lend_another()?
    } else {
        Lent::OfThread(state)
    };
    STATE.set(null_mut());
    let (Lent::OfThread(state) | Lent::Temporary(state)) = lent;
    // SAFETY: the pointer came from a box that nobody has freed: of one in `STATE` only `End` does so, which takes it out first, and a
    // temporary one is freed with `lent`. It is not in `STATE` until then: there is no other reference.
    Some(use_state(unsafe { &mut *state }))
}

/// As [`with`], if the thread has recorded something before, and is not just doing so.
pub(super) fn with_existing(use_state: impl FnOnce(&mut ThreadState)) {
    if !STATE.get().is_null() {
        with(use_state);
    }
}

/// A state while it is in use. Puts it back, also when a user's code panics.
enum Lent {
    OfThread(*mut ThreadState),
    /// For this once.
    Temporary(*mut ThreadState),
}

impl Drop for Lent {
    #[inline(always)]
    fn drop(&mut self) {
        match *self {
            Lent::OfThread(state) => STATE.set(state),
            Lent::Temporary(state) => drop_state(state),
        }
    }
}

#[cold]
fn drop_state(state: *mut ThreadState) {
    // SAFETY: only called with pointers from `Box::into_raw`, when nothing else has them any more.
    drop(unsafe { Box::from_raw(state) });
}

#[cold]
#[inline(never)]
fn lend_another() -> Option<Lent> {
    let phase = PHASE.get();
    if phase == Phase::Alive {
        NESTED.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let state = Box::into_raw(Box::new(ThreadState::new()));
    // Has the state dropped when the thread ends; cannot be had if that is just happening.
    if phase == Phase::New && END.try_with(|_| ()).is_ok() {
        PHASE.set(Phase::Alive);
        return Some(Lent::OfThread(state));
    }
    Some(Lent::Temporary(state))
}

/// Dropped when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        PHASE.set(Phase::Ended);
        let state = STATE.replace(null_mut());
        if !state.is_null() {
            drop_state(state);
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
