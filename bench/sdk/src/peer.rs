//! The demands on a client library, and the list of libraries.

use crate::case::Case;

/// Does a case so many times on the calling thread. Made once and called for each batch: what can be prepared outside of the loop
/// by a program that cares should be.
pub type Body = fn(count: u64);

/// Whether events go anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tracing {
    On,
    /// The library is set up and connected, and nobody records.
    Off,
}

/// The memory that a producer shares with the service.
#[derive(Clone, Copy, Debug)]
pub enum SharedMemory {
    /// As the library or the service would have it.
    Default,
    Kilobytes(u32),
}

impl SharedMemory {
    /// As upstream's libraries take it: zero is the default.
    pub fn hint(self) -> u32 {
        match self {
            SharedMemory::Default => 0,
            SharedMemory::Kilobytes(kilobytes) => kilobytes,
        }
    }
}

/// The destination of a peer's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into a trace, through the tracing service.
    Service,
    /// Into memory of the process; what it would take to keep them is not measured.
    Memory,
    /// Nowhere.
    Nowhere,
}

/// A client library. One process sets up one, once.
pub trait Peer: Sync {
    /// Its program, and the word for it in the table.
    fn name(&self) -> &'static str;

    /// The package in `Cargo.lock` that says which version this is.
    fn package(&self) -> Option<&'static str>;

    fn destination(&self) -> Destination;

    /// The library's means for a case, if it has any.
    fn body(&self, case: Case) -> Option<Body>;

    /// Sets the library up. The calling thread is the one that will be measured.
    fn set_up(&self, tracing: Tracing, shared_memory: SharedMemory);

    /// Whether an event would be recorded now.
    fn is_recording(&self) -> bool;

    /// How often the case was done as the library knows it, for those that could lose something without a trace telling.
    fn kept(&self) -> Option<u64> {
        None
    }

    /// Whether this can be measured with tracing off, in a program that could turn it on.
    fn can_be_off(&self, _case: Case) -> bool {
        true
    }
}

/// All peers, in the order of the table. Each is a program of its own beside the runner's: what one of them links, or starts
/// before `main`, is no other's business.
pub const NAMES: [&str; 11] = [
    "floor",
    "perfetto-c",
    "perfetto-cxx",
    "perfetto-sdk",
    "tracing-perfetto-sdk",
    "empty-layer",
    "tracy-client",
    "fastrace",
    "perfetto-recorder",
    "ferretto",
    "ferretto-tracing",
];
