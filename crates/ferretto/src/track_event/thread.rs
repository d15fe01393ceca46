//! Each thread's own state: its sequences, found through one thread-local pointer.
//!
//! Called for every event that somebody records. [`with`] lends a thread's state to one caller at a time. While it is lent the pointer is null, so
//! that an event in the middle of another, from a `Display` of the user's for example, finds nothing there. Such an event is dropped and counted.
//! When the thread ends its state is dropped, which returns every chunk. An event even later, from the destructor of another thread-local, gets a
//! state for itself alone.
//!
//! **Confined threads.** Events come from anywhere: from allocators, also while the SDK itself allocates; from signal handlers, also while the
//! interrupted code holds a lock of the SDK's or of the C library's. A thread is [confined](confine) while it must not allocate, free, or wait for a
//! lock to record an event. The SDK confines its own thread, except in the application's code there, and every thread where it allocates for an event
//! or holds a lock that an event may need. [`without_waiting`](super::without_waiting) confines the caller. An event on a confined thread is recorded
//! if the existing state suffices: the sequence has begun, the chunk has room, and readers know the site and the track. It is dropped otherwise, and
//! counted.
//!
//! **Locks.** An event on a thread that is not confined may wait for these locks. The last column says why it never waits for ever.
//!
//! | lock | an event takes it | under the lock |
//! |---|---|---|
//! | the registry of track events, the tables of names | for the first event of a session, and the first use of a call site; starts, stops and forks take it too | nobody allocates, frees or calls the application ([`ferretto_client::room`]) |
//! | the muxer's inbox | for a new category | the same |
//! | the registered tracks | for the first event on a track, and for changes | the holder allocates, on a confined thread |
//! | the arbiter's requests, and the ids of writers | when a chunk is full, and for a new writer | chunks are added without allocating; for all else the holder is confined |
//! | slices that lost an event ([`super::open_slices`]) | while memory is full, and afterwards | the holder allocates, in the middle of an event |
//! | a chunk that the arbiter takes back (`held.rs` in `ferretto_client`) | when a writer finds its chunk wanted | the holder allocates, on the SDK's thread |
//! | the dynamic loader's | for a call stack with an address that the sequence does not know, and once in a millisecond for others with addresses | the SDK only copies, on a confined thread, and the event holds no lock; a program's callback of `dl_iterate_phdr` may trace, because look-ups do not exclude each other (`callstack/modules.rs`) |
//!
//! The unwinder of [`Callstack::capture`](crate::callstack::Callstack::capture) may take the loader's lock as well. It does not allocate under that lock. A
//! program's own callback of `dl_iterate_phdr` may allocate, so an allocator that holds a lock traces stacks inside
//! [`without_waiting`](super::without_waiting), as it traces everything else, where none is captured or looked up.
//!
//! Two more groups are here for completeness. The SDK's thread alone takes the lock of the link to a service. That thread is always confined, except in the
//! application's code. No track event takes the locks of observers, of the instances of data sources, or of the status.
//!
//! **Forks.** A fork takes the locks of `ferretto-tracing` first. Then it waits until no thread looks up an address, and takes those of the observers, the registry, the
//! tables and the open slices. So a forked child finds none of them held, nor the loader's because of a look-up. Look-ups do not wait for a fork, which
//! may need the loader's lock itself.
//!
//! **Signals.** A handler may run between any two instructions here. It leaves the thread's variables as it found them. So it is enough that a state
//! in use is in neither pointer: compiler fences keep the stores around its use in order.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sequence::ThreadState;

// Only `END` has a destructor or is initialized at its first use. The others can be used before `main`, in signal handlers and while other
// thread-locals are destroyed.
thread_local! {
    /// The state, unless it is lent or set aside, or there is none. Made by `Box::into_raw`.
    static STATE: AtomicPtr<ThreadState> = const { AtomicPtr::new(null_mut()) };
    /// The state while the thread is confined, unless it is lent.
    static SET_ASIDE: AtomicPtr<ThreadState> = const { AtomicPtr::new(null_mut()) };
    static CONFINED: AtomicBool = const { AtomicBool::new(false) };
    static PHASE: Cell<Phase> = const { Cell::new(Phase::New) };
    static END: End = const { End };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was recorded on this thread yet.
    New,
    /// There is a state.
    Alive,
    /// The thread is ending.
    Ended,
}

/// Events that were not recorded because of where they happened.
static UNRECORDED: AtomicU64 = AtomicU64::new(0);

/// How many events were not recorded because they happened while another was being written on the same thread, or on a confined thread.
pub(super) fn nested_events() -> u64 {
    UNRECORDED.load(Ordering::Relaxed)
}

/// Counts an event that would have been recorded elsewhere.
#[cold]
pub(crate) fn count_unrecorded() {
    UNRECORDED.fetch_add(1, Ordering::Relaxed);
}

/// Calls `use_state` with this thread's state; `None` if it is already lent.
#[inline(always)]
pub(super) fn with<R>(use_state: impl FnOnce(&mut ThreadState) -> R) -> Option<R> {
    let state = state();
    let lent = if state.is_null() {
        lend_another()?
    } else {
        Lent::OfThread(state)
    };
    set_state(null_mut());
    compiler_fence(Ordering::SeqCst);
    let (Lent::OfThread(state) | Lent::Otherwise(state)) = lent;
    // SAFETY: the pointer came from a box that is not freed: only `End` frees one in `STATE` or `SET_ASIDE`, after it has taken it out, and a
    // temporary one is freed with `lent`. Until then it is in neither, not for signal handlers either, so there is no other reference.
    Some(use_state(unsafe { &mut *state }))
}

/// As [`with`], if the thread has recorded something before, and is not doing so right now.
pub(super) fn with_existing(use_state: impl FnOnce(&mut ThreadState)) {
    if !state().is_null() {
        with(use_state);
    }
}

#[inline(always)]
fn state() -> *mut ThreadState {
    STATE.with(|state| state.load(Ordering::Relaxed))
}

#[inline(always)]
fn set_state(new: *mut ThreadState) {
    STATE.with(|state| state.store(new, Ordering::Relaxed));
}

fn set_aside() -> *mut ThreadState {
    SET_ASIDE.with(|state| state.load(Ordering::Relaxed))
}

fn put_aside(new: *mut ThreadState) {
    SET_ASIDE.with(|state| state.store(new, Ordering::Relaxed));
}

/// Whether this thread is confined: see the [module's documentation](self).
pub(crate) fn is_confined() -> bool {
    CONFINED.with(|confined| confined.load(Ordering::Relaxed))
}

fn set_confined(confined: bool) {
    CONFINED.with(|it| it.store(confined, Ordering::Relaxed));
}

/// Confines the thread until it is dropped. To be dropped in the reverse order of creation.
#[must_use = "the thread is confined until this is dropped"]
pub(crate) struct Confined {
    was_confined: bool,
    state: *mut ThreadState,
    aside: *mut ThreadState,
    of_thread: PhantomData<*const ()>,
}

/// Confines this thread: see the [module's documentation](self). Async-signal-safe.
pub(crate) fn confine() -> Confined {
    let before = Confined {
        was_confined: is_confined(),
        state: state(),
        aside: set_aside(),
        of_thread: PhantomData,
    };
    // A signal handler between any two of these stores finds the state in at least one place, and it is not in use.
    if !before.state.is_null() {
        put_aside(before.state);
    }
    compiler_fence(Ordering::SeqCst);
    set_state(null_mut());
    compiler_fence(Ordering::SeqCst);
    set_confined(true);
    compiler_fence(Ordering::SeqCst);
    before
}

/// A locked mutex. Its thread is confined while this exists, because changes to the value allocate, and the allocator may trace an event that needs
/// this lock.
pub(crate) struct LockedConfined<T: 'static> {
    // Unlocked before the confinement ends.
    guard: MutexGuard<'static, T>,
    _confined: Confined,
}

/// Locks the mutex that `find` returns, after confining the thread. Nothing may panic halfway through a change of the value.
pub(crate) fn lock_confined<T>(find: impl FnOnce() -> &'static Mutex<T>) -> LockedConfined<T> {
    let confined = confine();
    LockedConfined {
        guard: find().lock().unwrap_or_else(PoisonError::into_inner),
        _confined: confined,
    }
}

impl<T> Deref for LockedConfined<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for LockedConfined<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// As [`confine`], for a thread that is about to fork. Until this is dropped, events do not reach its state either, because that writes to memory of
/// the parent alone.
pub(super) fn confine_for_fork() -> Confined {
    let before = confine();
    put_aside(null_mut());
    before
}

impl Drop for Confined {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let now = set_aside();
        if self.state.is_null() && self.aside.is_null() && !now.is_null() {
            // The application's code, which the SDK called, has made a state meanwhile.
            match self.was_confined {
                true => self.aside = now,
                false => self.state = now,
            }
        }
        set_confined(self.was_confined);
        compiler_fence(Ordering::SeqCst);
        set_state(self.state);
        compiler_fence(Ordering::SeqCst);
        put_aside(self.aside);
    }
}

/// Calls the application's code on a thread that the SDK has confined, and records its events as anywhere. To be called without holding a lock.
pub(crate) fn unconfined<R>(call: impl FnOnce() -> R) -> R {
    /// Confines the thread again, also when the call panics.
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            put_aside(state());
            compiler_fence(Ordering::SeqCst);
            set_state(null_mut());
            compiler_fence(Ordering::SeqCst);
            set_confined(true);
        }
    }
    if !is_confined() {
        return call();
    }
    set_confined(false);
    compiler_fence(Ordering::SeqCst);
    set_state(set_aside());
    compiler_fence(Ordering::SeqCst);
    put_aside(null_mut());
    let _again = Again;
    call()
}

/// A state in use. Dropping it puts the state back, also when a user's code panics.
enum Lent {
    OfThread(*mut ThreadState),
    /// The state of a confined thread; or a temporary one, on a thread that is confined meanwhile, so that an allocator's events do not need one more
    /// each.
    Otherwise(*mut ThreadState),
}

impl Drop for Lent {
    #[inline(always)]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        match *self {
            Lent::OfThread(state) => set_state(state),
            Lent::Otherwise(state) => take_back(state),
        }
    }
}

#[cold]
fn take_back(state: *mut ThreadState) {
    // SAFETY: as in `with`, whose reference is gone.
    let used = unsafe { &mut *state };
    if used.confined {
        used.end_confined_use();
        compiler_fence(Ordering::SeqCst);
        put_aside(state);
    } else {
        drop_state(state);
        // The thread was not confined before, and there was no other state.
        set_confined(false);
    }
}

#[cold]
fn drop_state(state: *mut ThreadState) {
    // SAFETY: only called with pointers from `Box::into_raw`, when there is no other pointer any more.
    drop(unsafe { Box::from_raw(state) });
}

#[cold]
#[inline(never)]
fn lend_another() -> Option<Lent> {
    if is_confined() {
        let state = set_aside();
        if state.is_null() {
            count_unrecorded();
            return None;
        }
        put_aside(null_mut());
        compiler_fence(Ordering::SeqCst);
        // SAFETY: it was set aside, so there is no other reference, and now no one can make one.
        unsafe { (*state).begin_confined_use() };
        return Some(Lent::Otherwise(state));
    }
    let phase = PHASE.get();
    if phase == Phase::Alive {
        count_unrecorded();
        return None;
    }
    // Making a state allocates, and so may registering `END`. Meanwhile an event of the allocator must not make another state.
    let confined = confine();
    let state = Box::into_raw(Box::new(ThreadState::new()));
    // Has the state dropped when the thread ends. Fails if the thread is just ending.
    if phase == Phase::New && END.try_with(|_| ()).is_ok() {
        PHASE.set(Phase::Alive);
        return Some(Lent::OfThread(state));
    }
    // Until `take_back`.
    std::mem::forget(confined);
    Some(Lent::Otherwise(state))
}

/// Dropped when the thread ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        PHASE.set(Phase::Ended);
        let state = STATE.with(|state| state.swap(null_mut(), Ordering::Relaxed));
        if !state.is_null() {
            let _confined = confine();
            drop_state(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track_event::tests::alone;

    #[test]
    fn a_state_is_lent_to_one_at_a_time_and_comes_back_after_a_panic() {
        let _alone = alone();
        let before = nested_events();
        assert_eq!(with(|_| with(|_| ())), Some(None));
        assert!(nested_events() > before, "other tests count too");
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

    /// Which state there is, and whether it is confined.
    fn which() -> Option<(*const ThreadState, bool)> {
        with(|state| (&raw const *state, state.confined))
    }

    #[test]
    fn a_confined_thread_has_its_state_and_knows_that_it_is_confined() {
        let _alone = alone();
        std::thread::spawn(|| {
            let confined = confine();
            assert_eq!(which(), None, "none is made there");
            drop(confined);
            let (state, _) = which().unwrap();
            let outer = confine();
            let inner = confine();
            assert_eq!(which(), Some((state, true)));
            assert_eq!(with(|_| which()), Some(None), "it is lent once there too");
            assert_eq!(unconfined(which), Some((state, false)));
            drop(inner);
            assert_eq!(which(), Some((state, true)));
            drop(outer);
            assert_eq!(which(), Some((state, false)));
            assert_eq!(with(|_| drop(confine())), Some(()));
            assert_eq!(which(), Some((state, false)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_state_that_is_made_while_the_application_is_called_stays() {
        let _alone = alone();
        std::thread::spawn(|| {
            let confined = confine();
            let inner = confine();
            let (state, _) = unconfined(which).unwrap();
            drop(inner);
            assert_eq!(which(), Some((state, true)));
            drop(confined);
            assert_eq!(which(), Some((state, false)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_forks_has_no_state_meanwhile() {
        let _alone = alone();
        std::thread::spawn(|| {
            let (state, _) = which().unwrap();
            let forking = confine_for_fork();
            assert_eq!(which(), None);
            drop(forking);
            assert_eq!(which(), Some((state, false)));
            let confined = confine();
            let forking = confine_for_fork();
            assert_eq!(which(), None);
            drop(forking);
            assert_eq!(which(), Some((state, true)));
            drop(confined);
            assert_eq!(which(), Some((state, false)));
        })
        .join()
        .unwrap();
    }
}
