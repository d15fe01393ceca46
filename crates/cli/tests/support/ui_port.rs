//! The one port that the pages of the real UI may fetch from, where `ferretto open` serves if it is not told otherwise: held by one
//! test at a time.

use std::fs::File;

/// Held while a test has a trace served there; tests in other processes wait for it.
pub(crate) struct UiPort(#[allow(dead_code, reason = "the lock is held as long as it is open")] File);

impl UiPort {
    /// Waits for its turn.
    pub(crate) fn lock() -> UiPort {
        let path = std::env::temp_dir().join("ferretto-tests.ui-port.lock");
        let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        lock.lock()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        UiPort(lock)
    }
}
