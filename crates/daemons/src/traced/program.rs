//! The daemon as the program around its host: clock, log, priority.

use std::fmt;

use ferretto_host::Program;
use ferretto_service::PriorityBoost;

use super::tsc;
use crate::priority::ThreadPriority;

/// See [`Program`].
#[derive(Debug)]
pub(super) struct Traced {
    priority: ThreadPriority,
}

impl Traced {
    /// The program of the daemon whose main thread this is.
    pub(super) fn of_this_thread() -> Traced {
        Traced {
            priority: ThreadPriority::of_this_thread(),
        }
    }
}

/// How many minutes local time is ahead of UTC now.
pub(crate) fn local_time_offset() -> i32 {
    chrono::Local::now().offset().local_minus_utc() / 60
}

impl Program for Traced {
    fn time_stamp_counter(&self) -> Option<u64> {
        tsc::read()
    }

    fn local_time_offset(&self) -> Option<i32> {
        Some(local_time_offset())
    }

    fn info(&self, line: fmt::Arguments<'_>) {
        crate::log::info(line);
    }

    fn warning(&self, line: fmt::Arguments<'_>) {
        crate::log::warning(line);
    }

    fn refused(&self, line: fmt::Arguments<'_>) {
        crate::log::warning(line);
    }

    fn set_priority(&self, boost: Option<PriorityBoost>) -> Result<(), String> {
        self.priority.set(boost).map_err(|error| error.to_string())
    }
}
