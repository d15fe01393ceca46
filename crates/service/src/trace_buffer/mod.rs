//! The trace buffer: it keeps the packets of producers in a session until someone reads them.
//!
//! The service calls [`TraceBuffer::copy_chunk`] for every chunk that a producer commits or that is scraped out of
//! its shared memory, `TraceBuffer::apply_patches` for the lengths that became known later, and reads whole
//! packets with [`TraceBuffer::begin_read`] and [`TraceBuffer::read_next_packet`]. The semantics are those of
//! upstream's second trace buffer (`trace_buffer_v2`).
//!
//! A *sequence* is the output of one trace writer of one producer: chunks numbered upwards. Chunks may arrive out of order, more than once (a scrape
//! sees a chunk that is still being written; the producer commits it later) and with holes that patches fill. A packet is one or more fragments in
//! consecutive chunks.
//!
//! Guarantees, per sequence: packets come out in the order they were written, whole, at most once, byte for byte;
//! and a packet before which something was lost says so, and why ([`LossReasons`]). Across sequences the order is
//! roughly that of the commits. A sequence that waits for a patch, for the rest of a packet or for the rest of a
//! scraped chunk holds up no other.
//!
//! Everything in a chunk except [`ChunkInfo::producer`] and [`ChunkInfo::identity`] is hostile. Invalid contents are counted and cut off; they cost
//! data of their own sequence and nobody else time or memory: memory is bounded by the size of the buffer, and no operation looks at other sequences.

mod evicted;
mod footprint;
mod fragment;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(any(test, fuzzing))]
mod invariants;
mod kept_packet;
mod memory;
mod read;
mod record;
mod sequence;
mod stats;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use footprint::Footprint;
pub(crate) use kept_packet::KeptPacket;
use record::{Flags, Ring};
use sequence::{SequenceKey, Sequences};
use stats::WriterStats;
pub use stats::{BufferStats, PayloadHistogram};

use crate::ids::{ChunkId, MachineId, ProducerId, WriterId};
use crate::protovm::ProtoVms;

/// The behaviour of a full buffer: `fill_policy` of a `BufferConfig` and, if that is `DISCARD`, `experimental_mode`. Rings differ by their readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillPolicy {
    /// The oldest chunks are overwritten.
    RingBuffer,
    /// The same, in a session that streams into a file. When it was read before it came to its end, it starts over in memory that it has used
    /// before. Nothing more is overwritten for that, but not always the same as in the other ring, which is upstream's.
    StreamedRing,
    /// New chunks overwrite chunks that were read. Once an unread chunk is in the way, the buffer accepts nothing more.
    Discard,
    /// The buffer is filled once. Once its end is reached it accepts nothing more, even if everything in it was read. Upstream's second trace
    /// buffer discards like this.
    DiscardAtEnd,
}

impl FillPolicy {
    fn overwrites(self) -> bool {
        matches!(self, FillPolicy::RingBuffer | FillPolicy::StreamedRing)
    }
}

/// The identity of a producer, as told by the kernel and not by the producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// User it runs as.
    pub uid: u32,
    /// Its process id, where the transport knows it.
    pub pid: Option<i32>,
    /// The machine it runs on.
    pub machine: MachineId,
}

/// Whether the producer has finished with a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// Committed, or scraped after the producer released it.
    Complete,
    /// Scraped while the producer holds it. The last fragment may still be growing and is left out; the rest of
    /// the chunk will come in a later commit.
    Incomplete,
}

/// One chunk, as its header in shared memory and the connection it came over describe it.
#[derive(Clone, Copy, Debug)]
pub struct ChunkInfo {
    /// The producer whose shared memory it came from (trusted).
    pub producer: ProducerId,
    /// The identity of that producer (trusted). Kept from the first chunk of a sequence.
    pub identity: ProducerIdentity,
    /// The writer named by the chunk's header.
    pub writer: WriterId,
    /// The position in the writer's sequence, from the chunk's header.
    pub chunk_id: ChunkId,
    /// How many fragments the header declares.
    pub num_fragments: u16,
    /// The header's flags, as in the shared memory ABI: 1 = first fragment continues from the previous chunk,
    /// 2 = last fragment continues in the next chunk, 4 = last fragment needs patching. Other bits are ignored.
    pub flags: u8,
    /// Whether more may come.
    pub state: ChunkState,
}

/// The outcome of [`TraceBuffer::copy_chunk`] for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "violations are the reason to disconnect a producer"]
pub enum CopyOutcome {
    /// Its fragments are in the buffer, or were there already.
    Stored,
    /// It was not taken, through no fault of the producer.
    Discarded(Discard),
    /// It broke the rules of the shared memory ABI.
    Violation(AbiViolation),
}

/// Why a chunk was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The buffer is read-only.
    ReadOnly,
    /// The buffer is full and its policy is to discard.
    Full,
    /// The chunk, or a later one of its sequence, has been read or overwritten already.
    TooLate,
    /// Making room for it overwrote a later chunk of its own sequence: the buffer holds less than the producer has in flight.
    Overtaken,
}

/// A rule of the shared memory ABI that a chunk broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbiViolation {
    /// The fragments before the bad one are kept.
    MalformedFragments,
    /// Nothing is kept.
    TooLarge,
    /// The chunk stays as it was.
    BadRecommit,
    /// Nothing is kept.
    ChunkIdOutOfRange,
}

impl fmt::Display for AbiViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbiViolation::MalformedFragments => f.write_str("a fragment of the chunk is malformed or missing"),
            AbiViolation::TooLarge => f.write_str("the chunk is larger than the trace buffer or than any chunk can be"),
            AbiViolation::BadRecommit => f.write_str("the chunk was committed again with fewer bytes, more than it had room for, or without a flag it had"),
            AbiViolation::ChunkIdOutOfRange => f.write_str("the chunk's id is too far from those of the other chunks of its sequence"),
        }
    }
}

impl std::error::Error for AbiViolation {}

/// Four bytes that a producer could not write into a chunk before committing it: the length of a nested message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where, in bytes from the start of the chunk's payload.
    pub offset: u32,
    /// The bytes.
    pub data: [u8; 4],
}

/// Whether a chunk can be read once a batch of patches is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MorePatches {
    /// More will come (`has_more_patches`).
    Pending,
    /// These are the last.
    Done,
}

/// Why packets of a sequence are missing: the bitmask that goes into `TracePacket.previous_packet_dropped`
/// (`TracePacket.DataLossReason`). Zero when nothing is missing.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LossReasons(u32);

impl LossReasons {
    /// Nothing is missing.
    pub const NONE: Self = Self(0);
    /// Set whenever any other is: readers older than the causes test only whether the field is nonzero.
    pub(crate) const PRESENT: Self = Self(1);
    /// Chunks that should have come before the one being read did not.
    pub(crate) const READ_GAP: Self = Self(1 << 1);
    /// A chunk could not be cut into fragments.
    pub(crate) const CHUNK_CORRUPTED: Self = Self(1 << 2);
    /// A packet's start was missing.
    pub(crate) const ORPHAN_CONTINUATION: Self = Self(1 << 3);
    /// A chunk in the middle of a packet was missing.
    pub(crate) const REASSEMBLY_GAP: Self = Self(1 << 4);
    /// A packet was not continued where it should have been.
    pub(crate) const REASSEMBLY_BROKEN_CHAIN: Self = Self(1 << 5);
    /// The ring buffer overwrote unread data.
    pub(crate) const OVERWRITE: Self = Self(1 << 6);
    /// The trace writer gave up on a packet.
    pub(crate) const WRITER_ABORT: Self = Self(1 << 7);

    /// The value for `previous_packet_dropped`; leave the field out when it is 0.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether anything is missing.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::NONE
    }

    /// Whether all of `other` are among the reasons.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn add(&mut self, reason: Self) {
        self.0 |= reason.0 | Self::PRESENT.0;
    }

    /// Adds the losses after the last fragment that is kept of a chunk.
    fn add_those_at_the_end_of(&mut self, flags: Flags) {
        if flags.has(Flags::WRITER_ABORTED) {
            self.add(Self::WRITER_ABORT);
        }
        if flags.has(Flags::MALFORMED) {
            self.add(Self::CHUNK_CORRUPTED);
        }
    }
}

impl std::ops::BitOr for LossReasons {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for LossReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = [
            "PRESENT",
            "READ_GAP",
            "CHUNK_CORRUPTED",
            "ORPHAN_CONTINUATION",
            "REASSEMBLY_GAP",
            "REASSEMBLY_BROKEN_CHAIN",
            "OVERWRITE",
            "WRITER_ABORT",
        ];
        f.debug_set()
            .entries(
                (0..NAMES.len())
                    .filter(|bit| self.0 & 1 << bit != 0)
                    .map(|bit| NAMES[bit]),
            )
            .finish()
    }
}

/// The facts that the service vouches for about every packet of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceInfo {
    /// The producer.
    pub producer: ProducerId,
    /// The writer within it.
    pub writer: WriterId,
    /// The producer's identity.
    pub identity: ProducerIdentity,
}

/// The place of a fragment in its buffer. [`TraceBuffer::bytes`] turns it into bytes. It is valid until the next write, so that many packets can be
/// gathered for one vectored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u16,
}

impl Span {
    /// Bytes in it.
    pub fn size(self) -> usize {
        self.len.into()
    }
}

/// A packet taken out of the buffer: its bytes, in place, and where it came from.
#[derive(Clone, Copy, Debug)]
pub struct ReadPacket<'a> {
    buffer: &'a TraceBuffer,
    spans: &'a [Span],
    /// Its writer.
    pub sequence: SequenceInfo,
    /// The losses since the previous packet of the same sequence.
    pub losses: LossReasons,
}

impl<'a> ReadPacket<'a> {
    /// Its fragments, in order; together they are the packet. At least one, none of them empty.
    pub fn fragments(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let buffer = self.buffer;
        self.spans.iter().map(|&span| buffer.bytes(span))
    }

    /// The same as places in the buffer, which stay valid beyond the next packet.
    #[must_use]
    pub(crate) fn spans(&self) -> &'a [Span] {
        self.spans
    }

    /// Size of the packet in bytes. Never 0.
    #[must_use]
    pub fn size(&self) -> usize {
        self.spans.iter().map(|span| usize::from(span.len)).sum()
    }
}

/// Why a trace buffer could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceBufferError {
    /// The system has no such amount of memory to give.
    OutOfMemory {
        /// The size in question.
        bytes: u64,
    },
    /// Sizes are limited to the reach of 32-bit offsets.
    TooLarge {
        /// The size in question.
        bytes: u64,
    },
}

impl fmt::Display for TraceBufferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceBufferError::OutOfMemory { bytes } => write!(
                f,
                "cannot reserve {bytes} bytes of memory for a trace buffer; ask for a smaller one"
            ),
            TraceBufferError::TooLarge { bytes } => write!(
                f,
                "a trace buffer of {bytes} bytes is too large; the limit is {limit} bytes",
                limit = TraceBuffer::MAX_SIZE
            ),
        }
    }
}

impl std::error::Error for TraceBufferError {}

/// A trace buffer. See the module's documentation.
#[derive(Debug)]
pub struct TraceBuffer {
    ring: Ring,
    /// Offset at which the next chunk will be written. The oldest record is the one at or after it.
    write_at: u32,
    sequences: Sequences,
    policy: FillPolicy,
    /// The buffer discards, and has refused a chunk for want of room.
    full: bool,
    read_only: bool,
    /// It has taken the place of another one, in which sequences may have begun.
    replaces_another: bool,
    stats: BufferStats,
    writer_stats: WriterStats,
    /// Counts calls of `begin_read`; a sequence that stalls is skipped until the next.
    read_cycle: u64,
    /// A read cycle has begun since a chunk was last appended.
    was_read: bool,
    /// The position of the read cycle. `None` when there is none, or a write has ended it.
    walk: Option<read::Walk>,
    /// Fragments of the packet being read; kept for its allocation.
    spans: Vec<Span>,
    /// Fragments seen while looking ahead for the rest of a packet; kept for its allocation.
    lookahead: Vec<read::Lookahead>,
    /// The programs that merge packets which are overwritten unread. `None` if there are none, as is usual.
    protovms: Option<Box<ProtoVms>>,
}

impl TraceBuffer {
    /// The size of the largest buffer, in bytes.
    pub(crate) const MAX_SIZE: u64 = (u32::MAX - 4095) as u64;

    /// Makes an empty buffer of `size` bytes, rounded up to 4 KiB. Memory is reserved now and used as it fills.
    ///
    /// # Errors
    /// When the size is beyond `TraceBuffer::MAX_SIZE` or the memory cannot be reserved.
    pub fn new(size: u64, policy: FillPolicy) -> Result<Self, TraceBufferError> {
        Self::with_pieces_of(memory::PIECE, size, policy)
    }

    /// The same with pieces of memory of another size, for tests.
    fn with_pieces_of(piece: u32, size: u64, policy: FillPolicy) -> Result<Self, TraceBufferError> {
        if size > Self::MAX_SIZE {
            return Err(TraceBufferError::TooLarge { bytes: size });
        }
        let capacity = (size as u32).max(1).next_multiple_of(4096);
        Ok(Self {
            ring: Ring::new(capacity, piece)?,
            write_at: 0,
            sequences: Sequences::default(),
            policy,
            full: false,
            read_only: false,
            replaces_another: false,
            stats: BufferStats {
                buffer_size: u64::from(capacity),
                ..BufferStats::default()
            },
            writer_stats: WriterStats::default(),
            read_cycle: 0,
            was_read: false,
            walk: None,
            spans: Vec::new(),
            lookahead: Vec::new(),
            protovms: None,
        })
    }

    /// Makes an empty buffer like this one, to take its place. Packets of writers that go on are then marked: readers of the new buffer do not know what
    /// came before.
    ///
    /// # Errors
    /// When the memory cannot be reserved.
    pub(crate) fn replacement(&self) -> Result<Self, TraceBufferError> {
        Ok(Self {
            replaces_another: true,
            ..Self::new(self.size(), self.policy)?
        })
    }

    /// Makes a copy of the unread packets that can be read but not written. Its counters go on from this buffer's, except those of reading, which
    /// start at 0.
    ///
    /// No packet is copied now: the two share memory, in pieces, and this buffer copies each piece when it first writes or reads there again. The
    /// lists of chunks are copied, 8 bytes for each. Ends the read cycle.
    ///
    /// # Errors
    /// When the address space cannot be reserved into which this buffer will copy.
    pub fn clone_read_only(&mut self) -> Result<Self, TraceBufferError> {
        self.end_walk();
        Ok(Self {
            ring: self.ring.share()?,
            write_at: self.write_at,
            sequences: self.sequences.clone(),
            policy: self.policy,
            full: self.full,
            read_only: true,
            replaces_another: self.replaces_another,
            stats: BufferStats {
                bytes_read: 0,
                chunks_read: 0,
                readaheads_failed: 0,
                readaheads_succeeded: 0,
                ..self.stats
            },
            writer_stats: self.writer_stats.clone(),
            read_cycle: self.read_cycle,
            was_read: false,
            walk: None,
            spans: Vec::new(),
            lookahead: Vec::new(),
            protovms: self.protovms.as_ref().map(|vms| vms.clone_read_only().into()),
        })
    }

    /// Makes the contents of this copy the beginning of a trace. Packets that were read before are in another trace. So if a sequence has had some read,
    /// its next packet is marked as after a loss.
    pub(crate) fn begin_trace(&mut self) {
        for sequence in self.sequences.iter_mut() {
            let Some(front) = sequence.chunks.front() else {
                continue;
            };
            if sequence.last_taken.is_some() || self.ring.chunk(front.at).consumed > 0 {
                sequence.losses.add(LossReasons::PRESENT);
            }
        }
    }

    /// Marks a loss on the next packet of this sequence, because the one that was read last is dropped. That one had a mark of these losses, which moves on.
    pub(crate) fn lose_packet(&mut self, sequence: &SequenceInfo, losses: LossReasons) {
        let key = SequenceKey {
            producer: sequence.producer,
            writer: sequence.writer,
        };
        if let Some(slot) = self.sequences.find(key) {
            self.sequences.get_mut(slot).losses.add(losses);
        }
    }

    /// Keeps the packet that [`read_next_packet`](TraceBuffer::read_next_packet) returned last, as it is now, for readers that need several turns for it.
    ///
    /// # Errors
    /// When the address space cannot be reserved into which the buffer copies what it changes meanwhile.
    pub(crate) fn keep_packet(&mut self) -> Result<KeptPacket, TraceBufferError> {
        let pieces = self.ring.keep(self.spans.iter().map(|span| span.start))?;
        Ok(KeptPacket::new(pieces, self.spans.clone()))
    }

    /// Refuses every write from now on.
    pub(crate) fn set_read_only(&mut self) {
        self.read_only = true;
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.ring.capacity())
    }

    /// How many bytes were written before the first wrap-around: the memory really in use, at most
    /// [`TraceBuffer::size`].
    #[must_use]
    pub(crate) fn used_size(&self) -> u64 {
        u64::from(self.ring.used())
    }

    /// The programs to which packets go that are overwritten unread. There are none until the first is set up.
    pub(crate) fn protovms_mut(&mut self) -> &mut ProtoVms {
        self.protovms.get_or_insert_default()
    }

    /// Limits the work of programs from now on, if there are any.
    #[inline]
    pub(crate) fn restrict_protovm_work(&mut self, left: u64) {
        if let Some(vms) = &mut self.protovms {
            vms.restrict_work(left);
        }
    }

    /// The rest of that, if there are programs.
    #[inline]
    #[must_use]
    pub(crate) fn protovm_work_left(&self) -> Option<u64> {
        self.protovms.as_ref().map(|vms| vms.work_left())
    }

    /// The programs, to look at them.
    #[must_use]
    pub(crate) fn protovms(&self) -> Option<&ProtoVms> {
        self.protovms.as_deref()
    }

    /// Whether anything was ever written.
    #[must_use]
    pub(crate) fn has_data(&self) -> bool {
        self.ring.used() > 0
    }

    /// The behaviour when it is full.
    #[must_use]
    pub fn policy(&self) -> FillPolicy {
        self.policy
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &BufferStats {
        &self.stats
    }

    /// Sizes of the chunks committed, by writer, in the order the writers appeared.
    pub fn writer_stats(&self) -> impl Iterator<Item = (ProducerId, WriterId, &PayloadHistogram)> {
        self.writer_stats.iter()
    }

    /// Whether anything is remembered of a writer: chunks, where it stands in its sequence, or sizes of chunks.
    #[must_use]
    pub fn knows(&self, producer: ProducerId, writer: WriterId) -> bool {
        let key = SequenceKey { producer, writer };
        self.sequences.find(key).is_some() || self.writer_stats.knows(key)
    }

    /// The bytes of a fragment. `span` must come from this buffer and no write may have happened since; if it
    /// has, the bytes are others, or none.
    #[must_use]
    pub fn bytes(&self, span: Span) -> &[u8] {
        let bytes = self.ring.bytes_from(span.start);
        bytes.get(..usize::from(span.len)).unwrap_or_default()
    }
}
