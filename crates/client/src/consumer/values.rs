//! The arguments and results of consumers' requests, apart from any connection: all of [`consumer`](crate::consumer) where there are none.

/// The part of the service's state to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateScope {
    /// Producers, data sources and sessions.
    Everything,
    /// Tracing sessions only.
    SessionsOnly,
}

/// Whole packets, each an encoded `TracePacket`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Packets {
    pub(super) bytes: Vec<u8>,
    /// Where each packet ends in `bytes`.
    pub(super) ends: Vec<usize>,
}

impl Packets {
    /// The packets in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.bytes[start..end])
    }

    /// Bytes of all of them.
    pub fn size(&self) -> usize {
        self.ends.last().copied().unwrap_or_default()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
