//! The interface between a host and the program that it runs in. The daemon and the SDK implement it.

use std::fmt;

use ferretto_service::PriorityBoost;

/// The program around a [`Host`](crate::Host). Its methods are called on the host's thread.
pub trait Program: Send + Sync {
    /// The processor's time-stamp counter, in ticks, where there is one.
    fn time_stamp_counter(&self) -> Option<u64>;

    /// How many minutes local time is ahead of UTC now, if that is known.
    fn local_time_offset(&self) -> Option<i32>;

    /// Logs a success. Clients can cause any number of such lines, and of warnings.
    fn info(&self, line: fmt::Arguments<'_>);

    /// Logs that something will be missing.
    fn warning(&self, line: fmt::Arguments<'_>);

    /// Takes a line about a request that was refused. Its client is told the same.
    fn refused(&self, line: fmt::Arguments<'_>);

    /// Sets the priority of the calling thread, or restores the original one. Threads that it starts do not inherit a raised one.
    ///
    /// # Errors
    /// The reason why not; nothing has changed then.
    fn set_priority(&self, boost: Option<PriorityBoost>) -> Result<(), String>;
}
