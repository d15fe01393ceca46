//! Clears the changing line when Ctrl-Z stops the process, so that the shell begins on a clean line.
//!
//! [`console`](super::console), which draws that line, calls it. The signal handler does the work instead of the recording's loop, because a loop
//! that writes to a slow pipe would delay the stop, and the shell with it. The handler then takes the signal's default action, which is no effect in
//! an orphaned process group. After the process continues, the line reappears with its next change.
#![allow(unsafe_code)]

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{SIG_DFL, SIG_IGN, SIG_UNBLOCK, SIGTSTP, STDERR_FILENO, c_int, sighandler_t, sigset_t};

use super::console::CLEAR;

/// Whether the line is on the screen. A process has at most one terminal.
static LINE: AtomicBool = AtomicBool::new(false);
static WATCHING: Once = Once::new();

/// Notes that the line is about to be drawn.
pub(super) fn line_is_there() {
    WATCHING.call_once(watch);
    LINE.store(true, Ordering::Relaxed);
}

/// Whether the line was on the screen. Notes that it no longer is, because the caller clears it.
pub(super) fn line_is_gone() -> bool {
    LINE.swap(false, Ordering::Relaxed)
}

fn watch() {
    // Shells without job control start processes with this signal ignored, and it stays ignored.
    let before = react(on_stop as *const () as sighandler_t);
    if before == SIG_IGN {
        react(SIG_IGN);
    }
}

/// Sets the action for the signal; returns the action before.
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
