//! Packets that are known beforehand, except for a number at their end.
//!
//! Made once per call site by the SDK, and written by [`TraceWriter::write_prepared`](super::TraceWriter::write_prepared) each time: three loads and
//! four stores of constant width, whatever the lengths are. The next packet overwrites the excess bytes.

use super::OpenChunk;
use ferretto_wire::{MAX_SHORT_VARINT, short_varint};

/// Bytes stored for the packet's front, of which the first is its size.
const CAPACITY: usize = 24;

/// Bytes stored for the number.
const END_CAPACITY: usize = 4;

/// The front of a packet that ends in a varint, up to the varint's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedPacket {
    /// Zero in place of the size, the front, then zeros.
    words: [u64; CAPACITY / 8],
    /// The number of valid bytes, with that of the size.
    len: u32,
}

impl PreparedPacket {
    /// The most bytes of a front.
    pub(crate) const MAX_FRONT: usize = CAPACITY - 1;

    /// The number at the end is less than this.
    pub const MAX_END: u32 = MAX_SHORT_VARINT;

    /// Prepares packets that begin with `front`; `None` if it has more than `PreparedPacket::MAX_FRONT` bytes.
    pub const fn new(front: &[u8]) -> Option<Self> {
        if front.len() > Self::MAX_FRONT {
            return None;
        }
        let mut words = [0; CAPACITY / 8];
        let mut index = 0;
        while index < front.len() {
            // The size comes before.
            let at = index + 1;
            words[at / 8] |= (front[index] as u64) << (at % 8 * 8);
            index += 1;
        }
        Some(Self {
            words,
            len: front.len() as u32 + 1,
        })
    }

    /// The front.
    pub fn front(&self) -> impl Iterator<Item = u8> + '_ {
        let bytes = self.words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take(self.len as usize).skip(1)
    }
}

impl OpenChunk {
    /// Appends and publishes a packet, if there is room.
    #[inline(always)]
    pub(super) fn append_prepared(&mut self, packet: &PreparedPacket, end: u32) -> bool {
        debug_assert!(end < PreparedPacket::MAX_END);
        // More than the longest packet takes, so that there is room for the empty packet at the end.
        if !self.may_count_another() || self.room() <= CAPACITY + END_CAPACITY {
            return false;
        }
        let (end, end_len) = short_varint(end);
        let front_len = packet.len as usize;
        let total = front_len + end_len;
        let [first, second, third] = packet.words;
        // The size does not count itself, and fits one byte.
        let first = first | (total - 1) as u64;
        let mut window = self.chunk.window::<{ CAPACITY + END_CAPACITY }>(self.used);
        window.store(0, first.to_le_bytes());
        window.store(8, second.to_le_bytes());
        window.store(16, third.to_le_bytes());
        window.store(front_len, end.to_le_bytes());
        self.used += total;
        self.packets += 1;
        self.publish();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_front_is_kept_if_it_is_short(front in proptest::collection::vec(any::<u8>(), 0..40)) {
            match PreparedPacket::new(&front) {
                Some(packet) => prop_assert!(packet.front().eq(front.iter().copied())),
                None => prop_assert!(front.len() > PreparedPacket::MAX_FRONT),
            }
        }
    }
}
