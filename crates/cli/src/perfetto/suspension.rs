//! Ctrl-Z while a changing line is on the screen: it is cleared before the process stops, so that the shell begins on a clean line.
//!
//! Called by [`console`](super::console), which draws that line. The signal is answered where it arrives, not in the recording's
//! loop: one that writes to a slow pipe would stop late, and its shell wait for it. Then the signal does what it does by default, which is
//! nothing where no shell is there to let the process go on. Once it does, the line comes back with its next change.
#![allow(unsafe_code)]

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SIG_DFL, SIG_IGN, SIG_UNBLOCK, SIGTSTP, STDERR_FILENO, c_int, sighandler_t, sigset_t};

use super::console::CLEAR;

/// Whether the line is on the screen. A process has one terminal at most.
static LINE: AtomicBool = AtomicBool::new(false);
static WATCHING: Once = Once::new();

/// The line is about to be drawn.
pub(super) fn line_is_there() {
    WATCHING.call_once(watch);
    LINE.store(true, Ordering::Relaxed);
}

/// Whether the line was there. From now on it is not: the caller clears it.
pub(super) fn line_is_gone() -> bool {
    LINE.swap(false, Ordering::Relaxed)
}

fn watch() {
    // Shells without job control start processes with this signal ignored, and so it stays.
    let before = react(on_stop as *const () as sighandler_t);
    if before == SIG_IGN {
        react(SIG_IGN);
    }
}

/// Sets what the signal does; gives what it did.
fn react(action: sighandler_t) -> sighandler_t {
    // SAFETY: all zeros are a value of this plain C struct: no flags, an empty mask.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { (zeroed(), zeroed()) };
    new.sa_sigaction = action;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: both are valid for the call. The handler, if it is one, is `on_stop`, which calls only what signal handlers may.
    unsafe { libc::sigaction(SIGTSTP, &new, &mut old) };
    old.sa_sigaction
}

extern "C" fn on_stop(_: c_int) {
    // SAFETY: the location is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    if line_is_gone() {
        // SAFETY: the bytes are of this length.
        unsafe { libc::write(STDERR_FILENO, CLEAR.as_ptr().cast(), CLEAR.len()) };
    }
    let handler = react(SIG_DFL);
    // SAFETY: all zeros are a value of this plain C struct, which is then made an empty set.
    let mut this_signal: sigset_t = unsafe { zeroed() };
    // SAFETY: the set is valid for the calls. The signal is blocked in its own handler, so it is pending until it is unblocked; there the
    // process stops, and goes on in the last call. At the return from the handler the mask is as it was before.
    unsafe {
        libc::sigemptyset(&mut this_signal);
        libc::sigaddset(&mut this_signal, SIGTSTP);
        libc::raise(SIGTSTP);
        libc::pthread_sigmask(SIG_UNBLOCK, &this_signal, null_mut());
    }
    react(handler);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
