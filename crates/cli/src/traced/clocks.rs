//! Reads all clocks at once, for the service.

use ferretto_service::Now;
use rustix::time::{ClockId, clock_gettime};

use super::tsc;

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
