//! The options for requests to services. The only part of the runtime that is compiled where no memory can be shared with a service.

use std::time::Duration;

/// The shared memory to ask a service for. The default leaves all to the service, and collects nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryOptions {
    /// In bytes; 0 leaves it to the service.
    pub size: u32,
    /// Bytes of a page: 4096, 8192, 16384 or 32768; 0 leaves it to the service.
    pub page_size: u32,
    /// How long full chunks may be collected before the service is told of them.
    pub batch_commits: Duration,
}
