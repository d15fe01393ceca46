//! Counts the packets of a trace and gathers [`Evidence`] from them. Packets inside compressed packets count individually.
//!
//! The recording calls it for each packet that it writes, or that it finds in a file that the service wrote.

use std::convert::Infallible;
use std::ops::ControlFlow;

use crate::account::evidence::Evidence;
use ferretto_trace_file::{Piece, look_inside};

/// A count of packets, with the evidence from them.
#[derive(Debug, Default)]
pub(super) struct Contents {
    packets: u64,
    evidence: Evidence,
    /// Whether a packet could not be decoded, so that count and evidence are incomplete.
    opaque: bool,
    /// A buffer for decompressed packets.
    spare: Vec<u8>,
}

impl Contents {
    /// Looks at the next packet.
    pub(super) fn observe(&mut self, packet: &[u8]) {
        let mut spare = std::mem::take(&mut self.spare);
        let ControlFlow::Continue(()) = look_inside(packet, 0, &mut spare, &mut |piece| {
            match piece {
                Piece::Packet(packet) => {
                    self.packets += 1;
                    self.evidence.observe(packet);
                }
                Piece::Damage(_) => self.opaque = true,
                Piece::CompressedStart(_) | Piece::CompressedEnd => {}
            }
            ControlFlow::<Infallible>::Continue(())
        });
        self.spare = spare;
    }

    /// Returns the number of packets, if all of them could be decoded.
    pub(super) fn packets(&self) -> Option<u64> {
        (!self.opaque).then_some(self.packets)
    }

    /// Returns the evidence, if all packets could be decoded.
    pub(super) fn evidence(&self) -> Option<&Evidence> {
        (!self.opaque).then_some(&self.evidence)
    }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::write::{Trace, TracePacket};
    use ferretto_service::compression::{Codec, Compressor};
    use ferretto_wire::Writer;

    use super::*;
    use ferretto_trace_file::MAX_PACKET;

    fn compressed(codec: Codec, packets: &[Vec<u8>]) -> Vec<u8> {
        let mut trace = Writer::new();
        packets
            .iter()
            .for_each(|packet| trace.bytes_field(Trace::PACKET, packet));
        let mut compressor = Compressor::new(codec).expect("memory");
        compressor.compress(trace.as_slice()).expect("memory").to_vec()
    }

    #[test]
    fn packets_inside_compressed_ones_count_like_others() {
        let mut stats = Writer::new();
        stats.nested(TracePacket::SYS_STATS, |_| {});
        let stats = stats.as_slice().to_vec();
        let mut other = Writer::new();
        other.varint_field(TracePacket::TIMESTAMP, 1);
        let other = other.as_slice().to_vec();
        for codec in [Codec::Deflate, Codec::Zstd { level: 3 }] {
            let mut contents = Contents::default();
            contents.observe(&other);
            let has_stats = |contents: &Contents| {
                contents
                    .evidence()
                    .expect("all seen")
                    .has_packets_of("linux.sys_stats")
            };
            assert_eq!(has_stats(&contents), Some(false));
            contents.observe(&compressed(codec, &[other.clone(), stats.clone(), other.clone()]));
            assert_eq!(contents.packets(), Some(4));
            assert_eq!(has_stats(&contents), Some(true));
        }
    }

    #[test]
    fn of_a_trace_that_cannot_be_looked_into_nothing_is_claimed() {
        let mut damaged = Writer::new();
        damaged.bytes_field(TracePacket::COMPRESSED_PACKETS, b"nonsense");
        let bomb = compressed(Codec::Zstd { level: 3 }, &[vec![0; MAX_PACKET]]);
        for packet in [damaged.as_slice(), &bomb] {
            let mut contents = Contents::default();
            contents.observe(packet);
            assert_eq!(contents.packets(), None);
            assert!(contents.evidence().is_none());
        }
    }
}
