//! How much memory several trace buffers take together: what they share counts once. The service asks before it makes a clone.

use std::collections::HashSet;

use super::TraceBuffer;

/// The memory of some buffers.
#[derive(Debug, Default)]
pub(crate) struct Footprint {
    /// The addresses of pieces that were counted and may come again.
    shared: HashSet<usize>,
    bytes: u64,
}

impl Footprint {
    /// Counts this buffer too: its packets, its lists of chunks, the headers that it keeps beside them, and its programs with their state.
    pub(crate) fn add(&mut self, buffer: &TraceBuffer) {
        self.bytes += buffer.sequences.memory() + buffer.ring.memory_of_changed_headers();
        self.bytes += buffer.protovms.as_ref().map_or(0, |vms| vms.memory_used());
        for (address, bytes) in buffer.ring.pieces() {
            if address.is_none_or(|address| self.shared.insert(address)) {
                self.bytes += bytes;
            }
        }
    }

    /// The memory of all of them, in bytes.
    #[must_use]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
