//! The processor time of filtering: matching the strings of packets with regular expressions of configs.
//!
//! The filter announces its work in units, each of which takes less than a tenth of a nanosecond at worst ([`Effort::spend`]), and asks from time to
//! time how long the work has taken ([`Effort::taken`]). A bound in units would drop packets that do no harm, because an ordinary filter takes a
//! thousandth of its worst case. The driver lends a clock of processor time ([`crate::Service::set_processor_clock`]), because other clocks advance
//! on a busy machine while the thread does nothing. Without a clock, work takes no time.

use std::cell::Cell;
use std::time::Duration;

use crate::clock::ProcessorClock;

/// Units after which the clock is looked at.
const UNITS_PER_LOOK: u64 = 1 << 25;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    clock: Option<ProcessorClock>,
    began: u64,
    last_look: Cell<u64>,
    units: Cell<u64>,
}

impl Effort {
    /// Begins now.
    pub(crate) fn new(clock: Option<ProcessorClock>) -> Effort {
        let now = clock.map_or(0, |clock| clock());
        Effort {
            clock,
            began: now,
            last_look: Cell::new(now),
            units: Cell::new(0),
        }
    }

    /// Announces this many units of work.
    #[inline]
    pub(crate) fn spend(&self, units: u64) {
        let units = self.units.get().saturating_add(units);
        self.units.set(units);
        if units >= UNITS_PER_LOOK {
            self.look();
        }
    }

    #[cold]
    fn look(&self) {
        self.units.set(0);
        if let Some(clock) = self.clock {
            self.last_look.set(clock());
        }
    }

    /// The time of the clock when it was last read.
    pub(crate) fn last_look(&self) -> u64 {
        self.last_look.get()
    }

    /// The time since this began.
    pub(crate) fn taken(&self) -> Duration {
        self.taken_since(self.began)
    }

    /// The time since the clock showed this.
    pub(crate) fn taken_since(&self, then: u64) -> Duration {
        Duration::from_nanos(self.last_look.get().saturating_sub(then))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that goes on by a millisecond with each look.
    fn ticking() -> u64 {
        thread_local!(static LOOKS: Cell<u64> = const { Cell::new(0) });
        LOOKS.set(LOOKS.get() + 1);
        LOOKS.get() * 1_000_000
    }

    #[test]
    fn the_clock_is_looked_at_when_there_is_a_reason() {
        let effort = Effort::new(Some(ticking));
        for _ in 0..1000 {
            effort.spend(UNITS_PER_LOOK / 2000);
        }
        assert_eq!(effort.taken(), Duration::ZERO);
        effort.spend(UNITS_PER_LOOK);
        assert_eq!(effort.taken(), Duration::from_millis(1));
        let then = effort.last_look();
        effort.spend(u64::MAX);
        assert_eq!(effort.taken_since(then), Duration::from_millis(1));
    }

    #[test]
    fn without_a_clock_nothing_takes_time() {
        let effort = Effort::new(None);
        effort.spend(u64::MAX);
        assert_eq!(effort.taken(), Duration::ZERO);
    }
}
