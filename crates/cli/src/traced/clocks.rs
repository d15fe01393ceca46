//! Reads all clocks at once, for the service, and only if it asks for them.

use std::cell::OnceCell;

use ferretto_service::Now;
use rustix::time::{ClockId, clock_gettime};

use super::tsc;

/// The time of a turn of the event loop: of when it was first asked for. Most turns only move chunks, which are not asked when they
/// came, and reading all clocks takes as long as a part of that.
#[derive(Debug, Default)]
pub(super) struct TurnTime(OnceCell<Now>);

impl TurnTime {
    pub(super) fn now(&self) -> &Now {
        self.0.get_or_init(now)
    }
}

/// The time, on every clock that traces refer to.
pub(super) fn now() -> Now {
    let read = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    Now {
        boot: read(ClockId::Boottime),
        realtime_coarse: read(ClockId::RealtimeCoarse),
        monotonic_coarse: read(ClockId::MonotonicCoarse),
        realtime: read(ClockId::Realtime),
        monotonic: read(ClockId::Monotonic),
        monotonic_raw: read(ClockId::MonotonicRaw),
        tsc: tsc::read(),
    }
}
