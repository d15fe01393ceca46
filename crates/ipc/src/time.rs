//! The system's clocks, and timers on them. Called by the [reactor](crate::reactor) and by code that needs a clock which the standard library lacks.
//!
//! Straight from the C library, which finds the kernel's vDSO by itself: the crate that does all other system calls takes a second and a
//! half to compile for these.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// A clock of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Clock {
    /// The time of day.
    Realtime = libc::CLOCK_REALTIME,
    /// The same as of the last tick.
    RealtimeCoarse = libc::CLOCK_REALTIME_COARSE,
    /// Stands still while the machine sleeps.
    Monotonic = libc::CLOCK_MONOTONIC,
    /// The same as of the last tick.
    MonotonicCoarse = libc::CLOCK_MONOTONIC_COARSE,
    /// The same at the hardware's own pace.
    MonotonicRaw = libc::CLOCK_MONOTONIC_RAW,
    /// Goes on while the machine sleeps.
    Boot = libc::CLOCK_BOOTTIME,
    /// The processor time of the calling thread.
    Thread = libc::CLOCK_THREAD_CPUTIME_ID,
}

/// Reads the clock, in nanoseconds.
#[must_use]
pub fn now(clock: Clock) -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the pointer is to a live local of the written type. The kernel has all of these clocks. For a missing one the time would stay zero,
    // which is valid for its integers.
    let time = unsafe {
        libc::clock_gettime(clock as libc::clockid_t, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A descriptor that becomes readable at a time of its clock.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    /// Makes a timer that is not set, on a clock that the kernel has timers for. Reading it does not block, and children do not inherit it.
    pub(crate) fn new(clock: Clock) -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::timerfd_create(clock as libc::clockid_t, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so this is its only owner.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Goes off once at `at` (nanoseconds), or never for 0. Replaces the previous setting.
    pub(crate) fn set(&self, at: u64) -> io::Result<()> {
        let setting = libc::itimerspec {
            it_interval: timespec(0),
            it_value: timespec(at),
        };
        // SAFETY: the descriptor is open and the setting a live local; the null pointer means that the old setting is not returned.
        let result = unsafe {
            libc::timerfd_settime(
                self.0.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &raw const setting,
                ptr::null_mut(),
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn timespec(nanos: u64) -> libc::timespec {
    // SAFETY: it consists of integers, for which all zeroes is a value. (Some targets have padding that has no name.)
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    time.tv_sec = (nanos / 1_000_000_000) as _;
    time.tv_nsec = (nanos % 1_000_000_000) as _;
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_the_standard_librarys_where_it_has_them() {
        let day = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        assert!(now(Clock::Realtime) >= day);
        assert!(now(Clock::Realtime) - day < 60_000_000_000);
        let begun = std::time::Instant::now();
        let before = now(Clock::Monotonic);
        while begun.elapsed().as_millis() < 2 {}
        let passed = now(Clock::Monotonic) - before;
        assert!((1_000_000..60_000_000_000).contains(&passed), "{passed}");
    }

    #[test]
    fn boot_time_counts_sleep_and_thread_time_only_work() {
        let awake = now(Clock::Monotonic);
        assert!(now(Clock::Boot) >= awake);
        assert!(now(Clock::Thread) < now(Clock::Boot));
        assert!(now(Clock::MonotonicCoarse) <= now(Clock::Monotonic));
    }
}
