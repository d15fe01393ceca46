//! In the place of `system.rs` where nothing is recorded: uses the standard library alone.

/// The process's number, which not all systems have.
pub(crate) fn process_id() -> u32 {
    0
}

/// A constant in place of the calling thread's number, which is not used.
pub(crate) fn thread_id() -> u32 {
    0
}

/// The calling thread's name.
pub(crate) fn thread_name() -> Option<Vec<u8>> {
    std::thread::current().name().map(|name| name.as_bytes().to_vec())
}
