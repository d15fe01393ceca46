//! Compression of packets on their way out of the service.
//!
//! The packets of a batch, framed as in a trace file, are compressed together and become the content of one packet (`compressed_packets`,
//! `zstd_compressed_packets`). Readers put the packets inside in its place. Each batch is compressed on its own, so a trace that was cut short
//! can be read up to the cut.
//!
//! The config chooses the codec ([`Codec`]). The service itself compresses the packets that a consumer reads, in batches that are small enough
//! for its only thread ([`COMPRESSED_BATCH`](crate::limits::COMPRESSED_BATCH)). The driver compresses the packets for a file with a
//! [`Compressor`]: it has a thread for that, so its batches are larger and every level may take its time.

use std::fmt;
use std::io::{self, Read};

use ferretto_proto::messages::{TraceConfig, trace_config};
use ferretto_proto::write::{Trace, TracePacket};
use ferretto_wire::{Reader, Value, Writer};

use codecs::Engine;

mod codecs;

/// How the packets of a session are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Deflate, as a zlib stream.
    Deflate,
    /// Zstd. Levels are those of its library: 1 to 22, 0 for the default of 3, negative ones for speed; others count as the nearest of these.
    Zstd {
        /// See there.
        level: i32,
    },
}

impl Codec {
    /// The codec of a config, if it names one that is built in. If `compression` has several, the one with the highest field number counts; the older
    /// `compression_type` counts only if it has none.
    pub(crate) fn of(config: &TraceConfig) -> Option<Codec> {
        let wanted = &config.compression;
        let zstd = wanted.zstd.as_option().map(|zstd| Codec::Zstd {
            level: zstd.level.unwrap_or_default(),
        });
        let legacy = config.compression_type == Some(trace_config::CompressionType::COMPRESSION_TYPE_DEFLATE);
        let deflate = (wanted.deflate.is_set() || legacy).then_some(Codec::Deflate);
        [zstd, deflate]
            .into_iter()
            .flatten()
            .find(|codec| codecs::is_built_in(*codec))
    }

    /// The same codec at a level that the thread of the service can afford.
    pub(crate) fn in_time(self) -> Codec {
        match self {
            Codec::Deflate => self,
            Codec::Zstd { level } => Codec::Zstd {
                level: level.min(crate::limits::MAX_ZSTD_LEVEL_WHILE_SERVING),
            },
        }
    }

    /// The field that holds the compressed packets.
    fn field(self) -> u32 {
        match self {
            Codec::Deflate => TracePacket::COMPRESSED_PACKETS,
            Codec::Zstd { .. } => TracePacket::ZSTD_COMPRESSED_PACKETS,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Codec::Deflate => f.write_str("deflate"),
            Codec::Zstd { level } => write!(f, "zstd (level {level})"),
        }
    }
}

/// Whether a config asks for compression and will not get it, because it names no codec that is built in. As in upstream, the trace is recorded
/// nevertheless.
pub(crate) fn is_unmet(config: &TraceConfig) -> bool {
    let asked = config.compression.is_set()
        || config
            .compression_type
            .is_some_and(|kind| kind != trace_config::CompressionType::COMPRESSION_TYPE_UNSPECIFIED);
    asked && Codec::of(config).is_none()
}

/// The compression of a batch on its way into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileCompression {
    /// The codec of the packet.
    pub codec: Codec,
    /// The bytes put into the file, compressed and framed, have to be fewer than this.
    pub room: u64,
}

/// How much of a batch there was room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// All of it.
    Whole,
    /// Packets from its start; with any more it would have been too much.
    Cut,
}

/// The codec could not do its work, for want of memory most likely.
#[derive(Debug)]
pub struct CompressError {
    codec: Codec,
    bytes: usize,
    reason: String,
}

impl fmt::Display for CompressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { codec, bytes, reason } = self;
        write!(
            f,
            "cannot compress {bytes} bytes of packets with {codec}: {reason}"
        )
    }
}

impl std::error::Error for CompressError {}

/// Compresses batch after batch; kept between them for its memory (deflate: 0.3 MB; zstd: 1 to 20 MB by level).
pub struct Compressor {
    codec: Codec,
    engine: Box<dyn Engine>,
    payload: Vec<u8>,
    packet: Writer,
}

impl Compressor {
    /// A compressor that has not compressed anything yet.
    ///
    /// # Errors
    /// If there is no memory for it, or the codec is not built in.
    pub fn new(codec: Codec) -> Result<Compressor, CompressError> {
        let engine = codecs::engine(codec).map_err(|error| CompressError {
            codec,
            bytes: 0,
            reason: error.to_string(),
        })?;
        Ok(Compressor {
            codec,
            engine,
            payload: Vec::new(),
            packet: Writer::new(),
        })
    }

    /// Makes one packet of many, which come in the format of a trace file. The result has no such framing.
    ///
    /// # Errors
    /// If the codec fails; then use the packets as they are.
    pub fn compress(&mut self, trace: &[u8]) -> Result<&[u8], CompressError> {
        self.payload.clear();
        let done = self.engine.compress(trace, &mut self.payload);
        done.map_err(|error| CompressError {
            codec: self.codec,
            bytes: trace.len(),
            reason: error.to_string(),
        })?;
        self.packet.clear();
        self.packet.bytes_field(self.codec.field(), &self.payload);
        Ok(self.packet.as_slice())
    }

    /// Compresses packets, which come in the format of a trace file, and appends the result to `out`, which then holds fewer than `room` bytes and
    /// whole packets only. Compresses as many packets as there is room for: towards the end of a file in smaller and smaller parts.
    ///
    /// # Errors
    /// If the codec fails.
    pub fn compress_into(
        &mut self,
        out: &mut Vec<u8>,
        trace: &[u8],
        room: u64,
    ) -> Result<Fit, CompressError> {
        let mut parts = vec![trace];
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            self.compress(part)?;
            let before = out.len();
            push_framed(out, self.packet.as_slice());
            if (out.len() as u64) < room {
                continue;
            }
            out.truncate(before);
            let Some(middle) = border_near_the_middle(part) else {
                return Ok(Fit::Cut);
            };
            let (first, second) = part.split_at(middle);
            parts.push(second);
            parts.push(first);
        }
        Ok(Fit::Whole)
    }
}

/// Adds a packet as it stands in a trace file.
fn push_framed(out: &mut Vec<u8>, packet: &[u8]) {
    let mut preamble = Writer::new();
    preamble.bytes_field_head(Trace::PACKET, packet.len());
    out.extend_from_slice(preamble.as_slice());
    out.extend_from_slice(packet);
}

/// The place at which to cut packets, in the format of a trace file, into two parts of about the same size; `None` if there is only one packet.
fn border_near_the_middle(trace: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(trace);
    let mut last = None;
    while let Some(Ok(_)) = reader.next() {
        let border = reader.position();
        if border >= trace.len() {
            break;
        }
        last = Some(border);
        if border >= trace.len() / 2 {
            break;
        }
    }
    last
}

/// Why a compressed packet could not be expanded.
#[derive(Debug)]
pub enum ExpandError {
    /// It holds more than the limit.
    TooLarge(usize),
    /// It is damaged.
    Damaged(io::Error),
    /// It was made with a codec that is not built in.
    UnknownCodec,
}

impl fmt::Display for ExpandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpandError::TooLarge(value) => write!(f, "a compressed packet holds more than {value} bytes"),
            ExpandError::Damaged(value) => write!(f, "a compressed packet is damaged: {value}"),
            ExpandError::UnknownCodec => {
                f.write_str("a packet is compressed with a codec that this program was built without")
            }
        }
    }
}

impl std::error::Error for ExpandError {}

/// The contents of a compressed packet, as it stands in a trace file, expanded as they are read. Memory holds no more than the codec needs, however
/// large the contents are.
pub struct Expander<'a> {
    field: u32,
    compressed: usize,
    decoder: Box<dyn Read + 'a>,
}

impl Expander<'_> {
    /// The field of `TracePacket` that holds the packet, which identifies the codec.
    pub fn field(&self) -> u32 {
        self.field
    }

    /// Bytes before they are expanded.
    pub fn compressed_bytes(&self) -> usize {
        self.compressed
    }
}

impl Read for Expander<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(into)
    }
}

/// The contents of a compressed packet; `None` if the packet is not one. Damage inside shows when they are read.
///
/// # Errors
/// If they cannot be read at all.
pub fn expander(packet: &[u8]) -> Result<Option<Expander<'_>>, ExpandError> {
    let mut fields = Reader::new(packet);
    let compressed = std::iter::from_fn(|| fields.next_field()).find_map(|field| {
        let kind = match field.number {
            TracePacket::COMPRESSED_PACKETS => Codec::Deflate,
            TracePacket::ZSTD_COMPRESSED_PACKETS => Codec::Zstd { level: 0 },
            _ => return None,
        };
        match field.value {
            Value::Bytes(bytes) => Some((kind, bytes)),
            _ => None,
        }
    });
    let Some((kind, bytes)) = compressed else {
        return Ok(None);
    };
    let decoder = codecs::decoder(kind, bytes).map_err(ExpandError::Damaged)?;
    Ok(Some(Expander {
        field: kind.field(),
        compressed: bytes.len(),
        decoder: decoder.ok_or(ExpandError::UnknownCodec)?,
    }))
}

/// The packets inside a compressed packet, as they stand in a trace file; `None` if the packet is not a compressed one.
///
/// # Errors
/// If it is damaged, or holds more than `limit` bytes: a small packet can hold a lot.
pub fn expand(packet: &[u8], limit: usize) -> Result<Option<Vec<u8>>, ExpandError> {
    match expander(packet)? {
        Some(contents) => read_up_to(contents, limit),
        None => Ok(None),
    }
}

fn read_up_to(decoder: impl Read, limit: usize) -> Result<Option<Vec<u8>>, ExpandError> {
    let mut trace = Vec::new();
    decoder
        .take(limit as u64 + 1)
        .read_to_end(&mut trace)
        .map_err(ExpandError::Damaged)?;
    if trace.len() > limit {
        return Err(ExpandError::TooLarge(limit));
    }
    Ok(Some(trace))
}

#[cfg(test)]
mod tests;
