//! Trace time: the nanoseconds that events are stamped with.
//!
//! Trace time is one of the kernel's clocks ([`TraceClock`]), the same for the whole process. [`now`] asks the kernel. Event
//! sequences do not: each holds an `Anchor`, with which it computes the time from the processor's time-stamp counter.
//!
//! How the parts fit together: `counter` reads the time-stamp counter and says whether it can be relied on. `discipline`
//! is arithmetic alone: from readings of counter and kernel it makes the next piece of the function from ticks to time.
//! `timeline` keeps the process's current piece in a `seqlock`. `anchor` is a thread's copy of that piece. `pairing` converts times of the
//! standard library's clocks.
//!
//! Times from anchors keep these guarantees:
//! - A thread's times never go backwards. All threads compute with the same function, which never decreases, so an earlier event has no later
//!   timestamp. But a processor may read its counter before earlier loads are done: some hundreds of nanoseconds early, if a thread waits for a cache
//!   line that another thread writes. A fence would prevent that, and double the cost of a timestamp.
//! - They differ from the kernel's clock by tens of nanoseconds. While someone turns the kernel's clock faster or slower (`adjtimex`), they differ
//!   further by that fraction of `discipline::MAX_PIECE_NS`, until the piece is over.
//! - After a jump (the machine was suspended, or a virtual machine moved) they are right again with the next piece.

mod anchor;
mod counter;
mod discipline;
mod pairing;
mod seqlock;
#[cfg(test)]
mod tests;
mod timeline;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferretto_ipc::time::{self, Clock};

pub(crate) use anchor::Anchor;
pub(crate) use counter::finish_earlier_instructions;
use pairing::{Pairing, Reading};

/// The clock that a process stamps its events with.
///
/// The service knows how these clocks relate, so producers with different ones can be in one trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceClock {
    /// `CLOCK_BOOTTIME`: monotonic, and goes on while the machine is suspended.
    #[default]
    Boottime,
    /// `CLOCK_MONOTONIC`: stands still while the machine is suspended.
    Monotonic,
    /// `CLOCK_MONOTONIC_RAW`: the same, at the hardware's own pace, which no time synchronisation corrects.
    MonotonicRaw,
}

impl TraceClock {
    /// Its number in traces: that of Perfetto's `BuiltinClock`.
    pub const fn id(self) -> u32 {
        match self {
            TraceClock::Boottime => 6,
            TraceClock::Monotonic => 3,
            TraceClock::MonotonicRaw => 5,
        }
    }

    /// Reads the clock, in nanoseconds.
    fn read(self) -> u64 {
        time::now(match self {
            TraceClock::Boottime => Clock::Boot,
            TraceClock::Monotonic => Clock::Monotonic,
            TraceClock::MonotonicRaw => Clock::MonotonicRaw,
        })
    }
}

/// Trace time now, in nanoseconds: for timestamps that the caller supplies.
///
/// This asks the kernel, so it costs more than the timestamp that an event gets by itself.
///
/// ```
/// let began = ferretto::clock::now();
/// assert!(ferretto::clock::now() >= began);
/// ```
pub fn now() -> u64 {
    chosen().read()
}

/// Trace time of a moment by the standard library's monotonic clock. See [`Timestamp`](crate::Timestamp) on its accuracy.
pub(crate) fn of_instant(instant: Instant) -> u64 {
    /// The origin of the numbers that stand for instants.
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    static PAIRING: Pairing = Pairing::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    let count = |instant: Instant| match instant.checked_duration_since(origin) {
        Some(after) => nanoseconds(after),
        None => -nanoseconds(origin.duration_since(instant)),
    };
    PAIRING.trace_time(count(instant), || read_with(|| count(Instant::now())))
}

/// Trace time of a moment by the time of day. See [`Timestamp`](crate::Timestamp) on its accuracy.
pub(crate) fn of_system_time(time: SystemTime) -> u64 {
    static PAIRING: Pairing = Pairing::new();
    let count = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => nanoseconds(after),
        Err(before) => -nanoseconds(before.duration()),
    };
    PAIRING.trace_time(count(time), || read_with(|| count(SystemTime::now())))
}

/// Reads the trace clock and another one.
fn read_with(other: impl FnOnce() -> i64) -> Reading {
    let trace_time = || i64::try_from(now()).unwrap_or(i64::MAX);
    Reading {
        before: trace_time(),
        other: other(),
        after: trace_time(),
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// The processor's time-stamp counter in ticks, on processors that call it so: for clock snapshots.
#[cfg(feature = "in-process")]
pub(crate) fn time_stamp_counter() -> Option<u64> {
    cfg!(target_arch = "x86_64").then(counter::read)
}

/// The processor time that the calling thread has used so far, in nanoseconds. A system call.
pub(crate) fn thread_time_ns() -> u64 {
    time::now(Clock::Thread)
}

/// Sets the process's trace clock for good and prepares its timestamps, so that no event has to. To be called before any sequence takes a time,
/// because times of two clocks have no order.
///
/// # Errors
/// If the process has chosen another clock before.
pub(crate) fn choose(clock: TraceClock) -> Result<(), AlreadyChosen> {
    let choice = CHOICES.iter().position(|&choice| choice == clock).unwrap_or(0) as u8 + 1;
    let before = CHOICE.compare_exchange(0, choice, Ordering::AcqRel, Ordering::Acquire);
    match before {
        Ok(_) => {
            timeline::restart();
            Ok(())
        }
        Err(before) if before == choice => Ok(()),
        Err(_) => Err(AlreadyChosen {
            wanted: clock,
            chosen: chosen(),
        }),
    }
}

/// The process's trace clock.
pub(crate) fn chosen() -> TraceClock {
    match CHOICE.load(Ordering::Relaxed) {
        0 => TraceClock::default(),
        choice => CHOICES[choice as usize - 1],
    }
}

pub(crate) use timeline::recover_in_forked_child;
#[cfg(test)]
pub(crate) use timeline::{uses_counter, while_making_a_piece};

/// The process already has a trace clock, which is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadyChosen {
    /// The clock asked for.
    pub(crate) wanted: TraceClock,
    /// The clock that stays.
    pub(crate) chosen: TraceClock,
}

impl fmt::Display for AlreadyChosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, chosen } = self;
        write!(
            f,
            "cannot set the trace clock to {wanted:?}: this process already traces with {chosen:?}, and times of two clocks \
             have no order; initialize tracing with one clock everywhere"
        )
    }
}

impl std::error::Error for AlreadyChosen {}

/// The clocks that [`CHOICE`] numbers, from 1.
const CHOICES: [TraceClock; 3] = [
    TraceClock::Boottime,
    TraceClock::Monotonic,
    TraceClock::MonotonicRaw,
];

/// 0 until someone chooses.
static CHOICE: AtomicU8 = AtomicU8::new(0);
