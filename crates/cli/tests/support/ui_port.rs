//! The one port that the pages of the real UI may fetch from, where `ferretto open` serves if it is not told otherwise: held by one
//! test at a time.

use super::machine_lock::{self, MachineLock};

/// Held while a test has a trace served there; tests in other processes wait for it.
pub(crate) struct UiPort(#[allow(dead_code, reason = "the lock is held as long as it is open")] MachineLock);

impl UiPort {
    /// Waits for its turn.
    pub(crate) fn lock() -> UiPort {
        UiPort(machine_lock::lock("ui-port"))
    }
}
