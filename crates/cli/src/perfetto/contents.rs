//! What is in a trace, packet by packet: how many there are, and what the [`KernelReport`] makes of them. Packets inside
//! compressed ones count as if they stood in their place.
//!
//! Called by the recording, for each packet that it writes or that it finds in the file that the service wrote.

use std::convert::Infallible;
use std::ops::ControlFlow;

use ferretto_proto::messages::TraceConfig;

use super::kernel_report::KernelReport;
use crate::trace_reader::{Piece, look_inside};

/// A count of packets, and a report on what they are.
#[derive(Debug)]
pub(super) struct Contents {
    packets: u64,
    kernel: KernelReport,
    /// A packet could not be looked into: what is known of the trace is not all there is to know.
    opaque: bool,
    /// For what is in compressed packets.
    spare: Vec<u8>,
}

impl Contents {
    /// Those of an empty trace of this config.
    pub(super) fn of(config: &TraceConfig) -> Contents {
        Contents {
            packets: 0,
            kernel: KernelReport::of(config),
            opaque: false,
            spare: Vec::new(),
        }
    }

    /// Looks at the next packet.
    pub(super) fn observe(&mut self, packet: &[u8]) {
        let mut spare = std::mem::take(&mut self.spare);
        let ControlFlow::Continue(()) = look_inside(packet, 0, &mut spare, &mut |piece| {
            match piece {
                Piece::Packet(packet) => {
                    self.packets += 1;
                    self.kernel.observe(packet);
                }
                Piece::Damage(_) => self.opaque = true,
                Piece::CompressedStart(_) | Piece::CompressedEnd => {}
            }
            ControlFlow::<Infallible>::Continue(())
        });
        self.spare = spare;
    }

    /// How many packets there are, if that is known.
    pub(super) fn packets(&self) -> Option<u64> {
        (!self.opaque).then_some(self.packets)
    }

    /// The report, if it is one on the whole trace.
    pub(super) fn kernel(&self) -> Option<&KernelReport> {
        (!self.opaque).then_some(&self.kernel)
    }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::{DataSourceConfig, trace_config};
    use ferretto_service::compression::{Codec, Compressor};
    use ferretto_wire::Writer;

    use super::*;
    use crate::trace_reader::MAX_PACKET;

    const FTRACE_STATS: u32 = 34;

    fn compressed(codec: Codec, packets: &[Vec<u8>]) -> Vec<u8> {
        let mut trace = Writer::new();
        packets.iter().for_each(|packet| trace.bytes_field(1, packet));
        let mut compressor = Compressor::new(codec).expect("memory");
        compressor.compress(trace.as_slice()).expect("memory").to_vec()
    }

    #[test]
    fn packets_inside_compressed_ones_count_like_others() {
        let config = TraceConfig {
            data_sources: vec![trace_config::DataSource {
                config: DataSourceConfig {
                    name: Some("linux.ftrace".into()),
                    ..Default::default()
                }
                .into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let mut stats = Writer::new();
        stats.nested(FTRACE_STATS, |_| {});
        let stats = stats.as_slice().to_vec();
        let mut other = Writer::new();
        other.varint_field(8, 1);
        let other = other.as_slice().to_vec();
        for codec in [Codec::Deflate, Codec::Zstd { level: 3 }] {
            let mut contents = Contents::of(&config);
            contents.observe(&other);
            assert_eq!(
                contents.kernel().expect("all seen").notes().len(),
                1,
                "none answered"
            );
            contents.observe(&compressed(codec, &[other.clone(), stats.clone(), other.clone()]));
            assert_eq!(contents.packets(), Some(4));
            assert!(contents.kernel().expect("all seen").notes().is_empty());
        }
    }

    #[test]
    fn of_a_trace_that_cannot_be_looked_into_nothing_is_claimed() {
        let mut damaged = Writer::new();
        damaged.bytes_field(50, b"nonsense");
        let bomb = compressed(Codec::Zstd { level: 3 }, &[vec![0; MAX_PACKET]]);
        for packet in [damaged.as_slice(), &bomb] {
            let mut contents = Contents::of(&TraceConfig::default());
            contents.observe(packet);
            assert_eq!(contents.packets(), None);
            assert!(contents.kernel().is_none());
        }
    }
}
