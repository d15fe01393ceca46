//! The only port from which pages of the real UI may fetch, and the default of `ferretto open`. One test at a time holds it.

use super::machine_lock::{self, MachineLock};

/// Held while a test serves a trace there; tests in other processes wait for it.
pub(crate) struct UiPort(#[allow(dead_code, reason = "the lock is held as long as it is open")] MachineLock);

impl UiPort {
    /// Waits for its turn.
    pub(crate) fn lock() -> UiPort {
        UiPort(machine_lock::lock("ui-port"))
    }
}
