//! The process's trace time: the current piece, which all threads compute with, and the choice of the thread that makes the next one.
//!
//! Called by anchors that are over ([`renew`]), at initialization ([`restart`]) and in forked children. Never blocks: one thread makes the next
//! piece; threads that come meanwhile look again a few times, then ask the kernel's clock.

use std::hint;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use super::anchor::Anchor;
use super::discipline::Discipline;
use super::seqlock::SeqLock;
use super::{chosen, counter};

/// The result of a renewal, for a thread whose anchor is over.
pub(super) struct Renewed {
    /// The current piece; [expired](Anchor::EXPIRED) where there is none.
    pub(super) anchor: Anchor,
    /// The counter's current value.
    pub(super) counter: u64,
    /// Trace time now.
    pub(super) ns: u64,
}

static STATE: SeqLock<{ Discipline::WORDS }> = SeqLock::new();

/// How often a thread checks whether another one has finished the next piece. Reading a clock takes the other some 60 ns.
const LOOKS: usize = 64;

/// Whether the counter is used: one of the three below.
static COUNTER: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const USED: u8 = 1;
const UNUSED: u8 = 2;

/// Returns the current piece of trace time, made if need be.
pub(super) fn renew() -> Renewed {
    if !uses_counter() {
        return without_counter(0);
    }
    let mut used = 0;
    for _ in 0..LOOKS {
        let Some((version, words)) = STATE.read() else {
            hint::spin_loop();
            continue;
        };
        let mut discipline = Discipline::from_words(words);
        let counter = counter::read_in_order();
        if let Some(ns) = discipline.anchor.at(counter) {
            return Renewed {
                anchor: discipline.anchor,
                counter,
                ns,
            };
        }
        used = discipline.anchor.end();
        let renewed = STATE.replace(version, || {
            let reading = discipline.read(|| {
                let before = counter::read_in_order();
                let ns = chosen().read();
                (before, ns, counter::read_in_order())
            });
            if let Some(reading) = reading {
                discipline.advance(reading);
            }
            if discipline.is_hopeless() {
                COUNTER.store(UNUSED, Ordering::Relaxed);
            }
            (
                discipline.to_words(),
                reading.is_some().then_some(discipline.anchor),
            )
        });
        match renewed {
            Some(Some(anchor)) => {
                return Renewed {
                    anchor,
                    counter: anchor.counter,
                    ns: anchor.ns,
                };
            }
            Some(None) => break,
            None => hint::spin_loop(),
        }
    }
    without_counter(used)
}

/// Discards the state of a clock that is no longer the trace clock, and finds out whether the counter can be used.
pub(super) fn restart() {
    uses_counter();
    loop {
        match STATE.read() {
            Some((version, _))
                if STATE
                    .replace(version, || (Discipline::default().to_words(), ()))
                    .is_some() =>
            {
                return;
            }
            _ => thread::yield_now(),
        }
    }
}

/// Makes trace time work in a child that was forked while another thread of the parent was making a piece. Async-signal-safe.
pub(crate) fn recover_in_forked_child() {
    STATE.abandon();
}

/// The kernel's time, but not before `used`, a time that events may already have.
fn without_counter(used: u64) -> Renewed {
    Renewed {
        anchor: Anchor::EXPIRED,
        counter: 0,
        ns: chosen().read().max(used),
    }
}

/// Whether there is a reliable counter.
pub(crate) fn uses_counter() -> bool {
    match COUNTER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let found = if counter::is_reliable() { USED } else { UNUSED };
            // Another thread may have found the same by now, or that the counter is useless.
            let _ = COUNTER.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed);
            found == USED
        }
        known => known == USED,
    }
}

/// Runs a hook at the moment when this thread is making a piece.
#[cfg(test)]
pub(crate) fn while_making_a_piece(act: impl FnOnce()) {
    let (version, words) = STATE.read().expect("no other thread makes one");
    let made = STATE.replace(version, || {
        act();
        (words, ())
    });
    assert!(made.is_some(), "no other thread makes one");
}
