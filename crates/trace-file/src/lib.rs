//! Reads trace files of any size and any content, packet by packet.
//!
//! `ferretto info`, `text` and `open` call it, the recording does for its summary, and `ferretto-tables` to make tables. A trace file is
//! one encoded `perfetto.protos.Trace`: each packet is its field 1, length-delimited. Packets inside a compressed packet appear individually, between [`Piece::CompressedStart`] and
//! [`Piece::CompressedEnd`]. Files that are compressed as a whole are expanded underneath ([`Input`]).
//!
//! Memory holds one packet at a time, of at most [`MAX_PACKET`]. Damage is reported with its offset, and reading resumes at the next packet that can
//! be recognised, by fields that the service puts into every packet. A file that ends inside a packet is not damaged: it is still
//! being written, or its writer was killed.
#![forbid(unsafe_code)]

mod expand;
mod follow;
mod foreign;
mod input;

use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;

use ferretto_proto::write::{Trace, TracePacket};
use ferretto_service::compression::{ExpandError, Expander, expander};
use ferretto_wire::{
    MAX_VARINT_LEN, Reader, Value, VarintError, WireType, decode_varint, encode_varint, tag, take_varint,
};

pub use expand::{Broken, Compression};
pub use follow::{Follower, Reached};
pub use foreign::{Foreign, Shown, nothing_read};
pub use input::{Input, expanded, expanding};

#[cfg(test)]
mod tests;

/// A packet larger than this counts as damage. Services and producers write much smaller ones.
pub const MAX_PACKET: usize = 64 << 20;
/// The most bytes that a compressed packet may expand to. Services compress about 1 MB at once, or one larger packet.
const MAX_EXPANDED: u64 = 64 << 20;
/// The tag of `Trace.packet`.
pub const PACKET_TAG: u8 = tag(Trace::PACKET, WireType::Bytes) as u8;
/// The bytes of a damaged place that are reported, enough to recognise another format. `tar` archives have their mark at 257.
const HEAD: usize = 264;
/// A tag and the longest varint.
pub const MAX_PREAMBLE: usize = 1 + MAX_VARINT_LEN;
/// The bytes that are read at once.
const BUFFER: usize = 256 << 10;
/// The largest packet that is recognised after damage. The limit bounds the work for each byte that could begin a packet.
const MAX_RECOGNIZED: usize = 64 << 10;

/// Encodes the preamble of a packet: its tag and its length.
pub fn packet_preamble(length: u64, buffer: &mut [u8; MAX_PREAMBLE]) -> &[u8] {
    let [tag, varint @ ..] = buffer;
    *tag = PACKET_TAG;
    let len = encode_varint(length, varint).len();
    &buffer[..1 + len]
}

/// A piece of a trace.
#[derive(Debug)]
pub enum Piece<'a> {
    /// An encoded `TracePacket`.
    Packet(&'a [u8]),
    /// The packets from here to [`Piece::CompressedEnd`] were compressed together.
    CompressedStart(Compressed),
    /// The end of these packets.
    CompressedEnd,
    /// Bytes that are no packet.
    Damage(Damage),
}

/// A compressed packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressed {
    /// The field of `TracePacket` that contains it, which determines the codec.
    pub field: u32,
    /// Its size in the file.
    pub bytes: u64,
}

/// Bytes that are no packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The offset of their beginning in the file. For bytes inside a compressed packet, the offset of that packet.
    pub offset: u64,
    /// The number of bytes skipped until the next packet; 0 inside a compressed packet.
    pub skipped: u64,
    /// The kind of damage.
    pub reason: Reason,
}

impl Damage {
    /// Whether the file is compressed as a whole, and cannot be expanded any further.
    pub fn is_broken(&self) -> bool {
        matches!(self.reason, Reason::Broken(_))
    }
}

/// The reason why bytes are no packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The first byte cannot begin a packet. Contains the next bytes, 264 at most.
    NotAPacket(Vec<u8>),
    /// The length is no number.
    NoLength,
    /// The length is above [`MAX_PACKET`].
    TooLarge(u64),
    /// The packet reaches beyond the end of the file, but other packets begin inside it.
    RunsIntoOthers(u64),
    /// A compressed packet cannot be expanded to its end.
    Compressed(String),
    /// The file is compressed as a whole, and cannot be expanded any further. This is the last piece.
    Broken(Broken),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NotAPacket(head) => {
                write!(f, "no packet begins with {:#04x}", head.first().unwrap_or(&0))
            }
            Reason::NoLength => f.write_str("a packet's length is no number"),
            Reason::TooLarge(length) => write!(f, "a packet claims to have {length} bytes"),
            Reason::RunsIntoOthers(length) => {
                write!(
                    f,
                    "a packet claims to have {length} bytes, of which others are part"
                )
            }
            Reason::Compressed(reason) => f.write_str(reason),
            Reason::Broken(broken) => broken.fmt(f),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged at byte {}: {}", self.offset, self.reason)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, "; {skipped} bytes are passed over"),
        }
    }
}

/// The end of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The number of bytes read.
    pub size: u64,
    /// Set if it ends inside a packet.
    pub cut: Option<Cut>,
}

/// The beginning of a packet whose end is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The offset at which it begins.
    pub offset: u64,
    /// The number of its bytes that are there.
    pub bytes: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ends inside the packet at byte {} ({} bytes of it are there): still being written, or its writer was killed",
            self.offset, self.bytes
        )
    }
}

/// Passes all pieces of a trace to `visit`, in the order of the file, until `visit` breaks it off.
///
/// # Errors
/// If the source cannot be read. The pieces before the error have been passed on.
pub fn read<B>(
    source: impl Read,
    mut visit: impl FnMut(Piece<'_>) -> ControlFlow<B>,
) -> io::Result<ControlFlow<B, End>> {
    let mut packets = Splitter::new(source, Vec::new());
    let mut spare = Vec::new();
    loop {
        let offset = packets.offset;
        let flow = match packets.next()? {
            Step::Packet(packet) => look_inside(packet, offset, &mut spare, &mut visit),
            Step::Bad(reason) => {
                packets.find_packet()?;
                let skipped = packets.offset - offset;
                visit(Piece::Damage(Damage {
                    offset,
                    skipped,
                    reason,
                }))
            }
            Step::Cut { claimed } => {
                let end = packets.offset_of_end();
                packets.find_packet()?;
                let skipped = packets.offset - offset;
                let reason = match (packets.is_empty(), packets.broken.take()) {
                    (true, None) => {
                        let cut = Cut {
                            offset,
                            bytes: skipped,
                        };
                        return Ok(ControlFlow::Continue(End {
                            size: end,
                            cut: Some(cut),
                        }));
                    }
                    (true, Some(broken)) => Reason::Broken(broken),
                    (false, broken) => {
                        packets.broken = broken;
                        Reason::RunsIntoOthers(claimed)
                    }
                };
                visit(Piece::Damage(Damage {
                    offset,
                    skipped,
                    reason,
                }))
            }
            Step::End => match packets.broken.take() {
                Some(broken) => visit(Piece::Damage(Damage {
                    offset,
                    skipped: 0,
                    reason: Reason::Broken(broken),
                })),
                None => {
                    return Ok(ControlFlow::Continue(End {
                        size: offset,
                        cut: None,
                    }));
                }
            },
        };
        if let ControlFlow::Break(value) = flow {
            return Ok(ControlFlow::Break(value));
        }
    }
}

/// Passes a packet on, or the packets inside it if it is compressed. Its offset in the file is `offset`; `spare` is a buffer that is kept between
/// calls.
pub fn look_inside<B>(
    packet: &[u8],
    offset: u64,
    spare: &mut Vec<u8>,
    visit: &mut impl FnMut(Piece<'_>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let damage = |reason: String| {
        Piece::Damage(Damage {
            offset,
            skipped: 0,
            reason: Reason::Compressed(reason),
        })
    };
    let contents = match expander(packet) {
        Ok(None) => return visit(Piece::Packet(packet)),
        Ok(Some(contents)) => contents,
        Err(error) => return visit(damage(error.to_string())),
    };
    visit(Piece::CompressedStart(Compressed {
        field: contents.field(),
        bytes: contents.compressed_bytes() as u64,
    }))?;
    let (problem, flow) = visit_contents(contents, spare, visit);
    flow?;
    if let Some(problem) = problem {
        visit(damage(problem))?;
    }
    visit(Piece::CompressedEnd)
}

/// Passes on the packets inside a compressed one, up to the first damage. Nothing after that can be trusted.
fn visit_contents<B>(
    contents: Expander<'_>,
    spare: &mut Vec<u8>,
    visit: &mut impl FnMut(Piece<'_>) -> ControlFlow<B>,
) -> (Option<String>, ControlFlow<B>) {
    let mut packets = Splitter::new(contents.take(MAX_EXPANDED + 1), std::mem::take(spare));
    let (mut problem, mut flow) = (None, ControlFlow::Continue(()));
    while problem.is_none() && flow.is_continue() {
        if packets.offset_of_end() > MAX_EXPANDED {
            problem = Some(ExpandError::TooLarge(MAX_EXPANDED as usize).to_string());
            break;
        }
        match packets.next() {
            Ok(Step::Packet(packet)) => flow = visit(Piece::Packet(packet)),
            Ok(Step::End) => break,
            Ok(Step::Bad(reason)) => problem = Some(format!("inside a compressed packet {reason}")),
            Ok(Step::Cut { .. }) => {
                problem = Some("the contents of a compressed packet end too early".to_owned())
            }
            Err(error) => problem = Some(ExpandError::Damaged(error).to_string()),
        }
    }
    *spare = packets.into_buffer();
    (problem, flow)
}

/// Splits bytes into packets, by their preambles.
struct Splitter<R> {
    source: R,
    buffer: Vec<u8>,
    /// The part of the buffer that has been read and not yet returned.
    start: usize,
    end: usize,
    /// The offset of `start` in the source.
    offset: u64,
    /// Whether the source has ended.
    is_over: bool,
    /// The reason why a compressed source ended too early.
    broken: Option<Broken>,
}

/// The result of looking for a packet at the present offset.
enum Step<'a> {
    Packet(&'a [u8]),
    /// No packet. Nothing has been skipped yet.
    Bad(Reason),
    /// A packet whose end is missing. Nothing has been skipped yet.
    Cut {
        claimed: u64,
    },
    End,
}

/// The beginning of a packet.
enum Preamble {
    /// The length of the preamble itself, and that of the packet after it.
    Whole(usize, u64),
    /// More bytes are needed.
    Cut,
    Bad(Reason),
}

impl<R: Read> Splitter<R> {
    fn new(source: R, buffer: Vec<u8>) -> Splitter<R> {
        Splitter {
            source,
            buffer,
            start: 0,
            end: 0,
            offset: 0,
            is_over: false,
            broken: None,
        }
    }

    fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the offset of the end of the bytes read so far.
    fn offset_of_end(&self) -> u64 {
        self.offset + (self.end - self.start) as u64
    }

    /// Reads until `wanted` bytes are there, or the source ends. The buffer grows only with bytes that exist.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        while self.end - self.start < wanted && !self.is_over {
            if self.end == self.buffer.len() {
                if self.start > 0 {
                    self.buffer.copy_within(self.start..self.end, 0);
                    self.end -= self.start;
                    self.start = 0;
                } else {
                    let larger = (2 * self.buffer.len()).max(BUFFER);
                    self.buffer.resize(larger, 0);
                }
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_over = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.broken = Some(Broken::of(error)?);
                    self.is_over = true;
                }
            }
        }
        Ok(())
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    fn next(&mut self) -> io::Result<Step<'_>> {
        self.fill(MAX_PREAMBLE)?;
        match self.available().first() {
            None => return Ok(Step::End),
            Some(&PACKET_TAG) => {}
            Some(_) => self.fill(HEAD)?,
        }
        let (preamble, length) = match preamble(self.available()) {
            Preamble::Whole(preamble, length) => (preamble, length),
            Preamble::Cut => return Ok(Step::Cut { claimed: 0 }),
            Preamble::Bad(reason) => return Ok(Step::Bad(reason)),
        };
        if length > MAX_PACKET as u64 {
            return Ok(Step::Bad(Reason::TooLarge(length)));
        }
        let whole = preamble + length as usize;
        self.fill(whole)?;
        if self.available().len() < whole {
            return Ok(Step::Cut { claimed: length });
        }
        self.consume(whole);
        Ok(Step::Packet(
            &self.buffer[self.start - whole + preamble..self.start],
        ))
    }

    /// Skips at least one byte, up to the next packet or the end.
    fn find_packet(&mut self) -> io::Result<()> {
        let mut skip = 1;
        loop {
            self.consume(skip.min(self.end - self.start));
            self.fill(MAX_PREAMBLE + MAX_RECOGNIZED + 1)?;
            let available = self.available();
            match available.iter().position(|byte| *byte == PACKET_TAG) {
                None if available.is_empty() => return Ok(()),
                None => skip = available.len(),
                Some(0) if is_packet(available, self.is_over) => return Ok(()),
                Some(0) => skip = 1,
                Some(at) => skip = at,
            }
        }
    }
}

fn preamble(bytes: &[u8]) -> Preamble {
    let Some((tag, rest)) = bytes.split_first() else {
        return Preamble::Cut;
    };
    if *tag != PACKET_TAG {
        return Preamble::Bad(Reason::NotAPacket(bytes[..bytes.len().min(HEAD)].to_vec()));
    }
    match decode_varint(rest) {
        Ok((length, len)) => Preamble::Whole(1 + len, length),
        Err(VarintError::Truncated) => Preamble::Cut,
        Err(VarintError::Overlong) => Preamble::Bad(Reason::NoLength),
    }
}

/// Whether `bytes` begin with something that looks like a packet. It must consist of fields, have the fields with which the service identifies the
/// writer, and be followed by another packet or, if the bytes are the last ones, by nothing. A compressed packet must have no other field.
fn is_packet(bytes: &[u8], are_last: bool) -> bool {
    let Preamble::Whole(preamble, length) = preamble(bytes) else {
        return false;
    };
    let Ok(length) = usize::try_from(length) else {
        return false;
    };
    let contents = &bytes[preamble..];
    if length <= MAX_PACKET && is_all_compressed(contents, length) {
        return true;
    }
    let Some((packet, after)) = contents.split_at_checked(length) else {
        return false;
    };
    let follows = match after.first() {
        Some(byte) => *byte == PACKET_TAG,
        None => are_last,
    };
    let (mut uid, mut sequence) = (false, false);
    follows
        && length <= MAX_RECOGNIZED
        && Reader::new(packet).all(|field| match field {
            Ok(field) => {
                let is_varint = matches!(field.value, Value::Varint(_));
                uid |= is_varint && field.number == TracePacket::TRUSTED_UID;
                sequence |= is_varint && field.number == TracePacket::TRUSTED_PACKET_SEQUENCE_ID;
                true
            }
            Err(_) => false,
        })
        && uid
        && sequence
}

/// Whether the first `length` bytes of `contents` are exactly one field of compressed packets.
fn is_all_compressed(contents: &[u8], length: usize) -> bool {
    let tags = [
        tag(TracePacket::COMPRESSED_PACKETS, WireType::Bytes),
        tag(TracePacket::ZSTD_COMPRESSED_PACKETS, WireType::Bytes),
    ];
    let mut rest = contents;
    let found = take_varint(&mut rest);
    let compressed = take_varint(&mut rest);
    let header = (contents.len() - rest.len()) as u64;
    tags.iter().any(|tag| found == Some((*tag).into()))
        && compressed.and_then(|compressed| compressed.checked_add(header)) == Some(length as u64)
}
