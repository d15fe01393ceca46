//! Reads all clocks at once, for the service, and only if it asks for them. And for relays.

use std::cell::OnceCell;
use std::sync::Arc;

use ferretto_ipc::time::{self, Clock};
use ferretto_service::Now;

use crate::program::Program;

/// The time of a turn of the event loop, read when it is first needed. Most turns only move chunks, which need no time, and reading all clocks takes
/// as long as a part of such a turn.
pub(crate) struct TurnTime {
    program: Arc<dyn Program>,
    now: OnceCell<Now>,
}

impl TurnTime {
    pub(crate) fn new(program: &Arc<dyn Program>) -> TurnTime {
        TurnTime {
            program: Arc::clone(program),
            now: OnceCell::new(),
        }
    }

    pub(crate) fn now(&self) -> &Now {
        self.now.get_or_init(|| now(self.program.time_stamp_counter()))
    }

    /// The program around the host.
    pub(crate) fn program(&self) -> &dyn Program {
        &*self.program
    }
}

/// The time, on every clock that traces refer to, beside this reading of the time-stamp counter.
pub fn now(time_stamp_counter: Option<u64>) -> Now {
    Now {
        boot: time::now(Clock::Boot),
        realtime_coarse: time::now(Clock::RealtimeCoarse),
        monotonic_coarse: time::now(Clock::MonotonicCoarse),
        realtime: time::now(Clock::Realtime),
        monotonic: time::now(Clock::Monotonic),
        monotonic_raw: time::now(Clock::MonotonicRaw),
        tsc: time_stamp_counter,
    }
}
