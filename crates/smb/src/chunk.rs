//! The contents of a chunk's header. Values only, no memory.
//!
//! Eight bytes: `u32` chunk id, `u16` writer id, `u16` packet count (bits 0-9) and flags (bits 10-15). Packets follow,
//! each behind its size as a varint of up to four bytes.

/// Bytes in front of a chunk's packets.
pub(crate) const CHUNK_HEADER_SIZE: usize = 8;

/// Offsets within the header.
pub(crate) const CHUNK_ID_OFFSET: usize = 0;
pub(crate) const WRITER_ID_OFFSET: usize = 4;
pub(crate) const PACKETS_OFFSET: usize = 6;

const COUNT_BITS: u32 = 10;

/// The largest packet count that a chunk's header can hold.
pub const MAX_PACKETS_PER_CHUNK: u16 = (1 << COUNT_BITS) - 1;

/// The largest writer id; 0 is none.
pub const MAX_WRITER_ID: u16 = (1 << 15) - 1;

/// A size that no packet has. The writer ran out of chunks in the middle of a packet. The last fragment of the packet has this size, and the reader
/// drops the packet. The size is encoded in four bytes (`ff ff ff 7f`). Bytes after it in the chunk are not read.
pub const DROPPED_PACKET_SIZE: u32 = (1 << 28) - 1;

/// A writer, unique within its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u16);

/// Counts the chunks of one writer from 0, and wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// The id of the writer's next chunk.
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// How many chunks after `other` this one is: negative when it comes before. Ids wrap, so this means something as
    /// long as the two are less than half the number space apart, as with TCP's sequence numbers.
    #[inline]
    pub const fn distance_from(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }
}

/// Six bits beside a chunk's packet count. Flags without a name are kept as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChunkFlags(u8);

impl ChunkFlags {
    /// No flag.
    pub const NONE: ChunkFlags = ChunkFlags(0);
    /// The first packet is a fragment that continues one from the writer's previous chunk.
    pub const FIRST_CONTINUES: ChunkFlags = ChunkFlags(1);
    /// The last packet is a fragment that continues in the writer's next chunk.
    pub const LAST_CONTINUES: ChunkFlags = ChunkFlags(1 << 1);
    /// The last packet has holes that the producer sends patches for, even though the chunk is complete.
    pub const NEEDS_PATCHING: ChunkFlags = ChunkFlags(1 << 2);

    /// The flags as bits 0 to 5.
    #[inline]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Flags from bits 0 to 5; the others are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 0x3f)
    }

    /// Whether all of `flags` are set.
    #[inline]
    pub const fn contains(self, flags: ChunkFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags and `other`.
    #[inline]
    #[must_use]
    pub const fn with(self, other: ChunkFlags) -> Self {
        Self(self.0 | other.0)
    }
}

/// A chunk's header, as its producer wrote it: any values are possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The chunk's writer.
    pub writer: WriterId,
    /// Its place in the writer's sequence.
    pub chunk: ChunkId,
    /// Packets and fragments begun, up to [`MAX_PACKETS_PER_CHUNK`]. In a chunk that is being written the last one does
    /// not count.
    pub packet_count: u16,
    /// How the first and last packets go on.
    pub flags: ChunkFlags,
}

impl ChunkHeader {
    /// A chunk that came over a socket instead of shared memory, as header and payload; `None` if it is too short.
    pub fn split(chunk: &[u8]) -> Option<(ChunkHeader, &[u8])> {
        let (header, payload) = chunk.split_first_chunk::<CHUNK_HEADER_SIZE>()?;
        let word = |offset: usize| u16::from_le_bytes([header[offset], header[offset + 1]]);
        let (packet_count, flags) = unpack_packets(word(PACKETS_OFFSET));
        let chunk = u32::from(word(CHUNK_ID_OFFSET)) | u32::from(word(CHUNK_ID_OFFSET + 2)) << 16;
        let header = ChunkHeader {
            writer: WriterId(word(WRITER_ID_OFFSET)),
            chunk: ChunkId(chunk),
            packet_count,
            flags,
        };
        Some((header, payload))
    }

    /// A chunk as it goes over a socket: the inverse of [`ChunkHeader::split`].
    pub fn join(&self, payload: &[u8]) -> Vec<u8> {
        let mut chunk = Vec::with_capacity(CHUNK_HEADER_SIZE + payload.len());
        chunk.extend_from_slice(&self.chunk.0.to_le_bytes());
        chunk.extend_from_slice(&self.writer.0.to_le_bytes());
        chunk.extend_from_slice(&pack_packets(self.packet_count, self.flags).to_le_bytes());
        chunk.extend_from_slice(payload);
        chunk
    }
}

#[inline]
pub(crate) const fn pack_packets(count: u16, flags: ChunkFlags) -> u16 {
    count & MAX_PACKETS_PER_CHUNK | (flags.bits() as u16) << COUNT_BITS
}

#[inline]
pub(crate) const fn unpack_packets(packed: u16) -> (u16, ChunkFlags) {
    (
        packed & MAX_PACKETS_PER_CHUNK,
        ChunkFlags::from_bits((packed >> COUNT_BITS) as u8),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_a_chunk_reverses_joining() {
        let header = ChunkHeader {
            writer: WriterId(0x1234),
            chunk: ChunkId(0x5678_9abc),
            packet_count: 1000,
            flags: ChunkFlags::LAST_CONTINUES,
        };
        let chunk = header.join(b"payload");
        assert_eq!(chunk[..4], [0xbc, 0x9a, 0x78, 0x56]);
        assert_eq!(ChunkHeader::split(&chunk), Some((header, &b"payload"[..])));
        assert_eq!(ChunkHeader::split(&chunk[..7]), None);
    }

    #[test]
    fn count_and_flags_share_their_sixteen_bits_as_upstreams_bit_field_does() {
        let flags = ChunkFlags::FIRST_CONTINUES.with(ChunkFlags::NEEDS_PATCHING);
        assert_eq!(pack_packets(3, flags), 0b000101_0000000011);
        for packed in 0..=u16::MAX {
            let (count, flags) = unpack_packets(packed);
            assert_eq!(pack_packets(count, flags), packed);
        }
    }
}
