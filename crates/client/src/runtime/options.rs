//! What to ask services for. The only part of the runtime that is compiled where no memory can be shared with a service.

use std::time::Duration;

/// What to ask a service for in the way of shared memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// In bytes; 0 leaves it to the service.
    pub size: u32,
    /// Bytes of a page: 4096, 8192, 16384 or 32768; 0 leaves it to the service.
    pub page_size: u32,
    /// How long full chunks may be collected before the service is told of them.
    pub batch_commits: Duration,
}
