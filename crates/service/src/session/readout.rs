//! A batch of packets that were read back, while it is put together and ready to be written.

use std::iter;
use std::ops::{Deref, Range};

use ferretto_proto::write::Trace;
use ferretto_wire::Writer;

use super::{BatchEnd, Session};
use crate::compression::{CompressError, Compressor, FileCompression};
use crate::ids::SessionId;
use crate::limits;
use crate::trace_buffer::{Span, TraceBuffer};
use crate::trace_filter::{Origin, SessionFilter};

/// A stretch of a packet.
#[derive(Clone, Debug)]
enum Piece {
    /// Bytes of the service's own.
    Own(Range<usize>),
    /// Bytes of a trace buffer: which of the session's, and where.
    Buffer(usize, Span),
    /// A large packet of this many bytes, which is the whole batch.
    Large(usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own(range) => range.len(),
            Piece::Buffer(_, span) => span.size(),
            Piece::Large(size) => *size,
        }
    }
}

/// The amount that a call may still read of a session: as much as the buffers held when it began. Otherwise it would not end while writers are faster
/// than its reader.
#[derive(Debug, Default)]
pub struct ReadCall {
    /// Bytes of each buffer; empty before the first batch.
    left: Vec<u64>,
    /// The flushes that had ended when the first batch was put together.
    flushes: u64,
}

impl ReadCall {
    /// Takes note of the contents, at the first batch.
    pub(crate) fn begin(&mut self, buffers: &[TraceBuffer], flushes: u64) {
        if self.left.is_empty() {
            self.flushes = flushes;
            self.left = buffers.iter().map(TraceBuffer::used_size).collect();
        }
    }

    /// The flushes whose data it reads: the data of later ones may be left to the next call.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Whether it has read as much of this buffer as there was.
    pub(crate) fn is_over(&self, buffer: usize) -> bool {
        self.left.get(buffer).is_none_or(|left| *left == 0)
    }

    /// Counts a packet of this buffer.
    pub(crate) fn count(&mut self, buffer: usize, size: usize) {
        if let Some(left) = self.left.get_mut(buffer) {
            *left = left.saturating_sub(size as u64);
        }
    }
}

/// How packets follow each other in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// As fields of the `Trace` message, the format of trace files.
    #[default]
    Trace,
    /// Bare: a transport marks their borders.
    Bare,
}

/// A batch that is being put together; kept for its memory until there is no more to read.
#[derive(Default)]
pub(crate) struct Readout {
    framing: Framing,
    own: Writer,
    pieces: Vec<Piece>,
    packet_ends: Vec<PacketEnd>,
    bytes: usize,
    /// The contents of a batch that is one large packet.
    large: Vec<u8>,
    pub(crate) scratch: Writer,
    /// The filter of the session that is read.
    pub(crate) filter: Option<Box<SessionFilter>>,
    /// Bytes that were read for the batch and are not in it: cut out by the filter, or from invalid packets.
    cut: usize,
}

/// How much of a batch there was when a packet was complete.
#[derive(Clone, Copy, Debug, Default)]
struct PacketEnd {
    pieces: usize,
    bytes: usize,
}

impl Readout {
    pub(crate) fn start(&mut self, framing: Framing) {
        self.framing = framing;
        self.own.clear();
        self.pieces.clear();
        self.packet_ends.clear();
        self.bytes = 0;
        self.large = Vec::new();
        self.cut = 0;
    }

    /// How packets follow each other in this batch.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes that were read for it, including bytes that did not get into it.
    pub(crate) fn read(&self) -> u64 {
        (self.bytes + self.cut) as u64
    }

    /// Counts bytes that were read and do not get into the batch.
    pub(crate) fn cut(&mut self, bytes: usize) {
        self.cut += bytes;
    }

    /// Whether filtering the packets of this batch has taken long enough, however few they are.
    pub(crate) fn took_long(&self) -> bool {
        let took = self.filter.as_ref().map(|filter| filter.batch_took());
        took.is_some_and(|took| took >= limits::MAX_FILTER_TIME_PER_BATCH)
    }

    /// Adds a packet of the service's own.
    pub(crate) fn own_packet(&mut self, fill: impl FnOnce(&mut Writer)) {
        self.scratch.clear();
        fill(&mut self.scratch);
        let packet = std::mem::take(&mut self.scratch);
        if self.filter.is_some() {
            self.filtered_packet(iter::once(packet.as_slice()), packet.len(), Origin::Service);
        } else {
            self.whole_packet(packet.as_slice());
        }
        self.scratch = packet;
    }

    /// Adds a packet of the service's own that no filter applies to.
    pub(crate) fn unfiltered_packet(&mut self, fill: impl FnOnce(&mut Writer)) {
        let mut filter = self.filter.take();
        self.own_packet(fill);
        if let Some(filter) = &mut filter {
            filter.passed_by(self.scratch.len());
        }
        self.filter = filter;
    }

    /// Adds the part of a packet of `size` bytes that the filter lets stay. Returns whether it could be filtered; if not, nothing of it stays.
    pub(crate) fn filtered_packet<'p>(
        &mut self,
        pieces: impl Iterator<Item = &'p [u8]>,
        size: usize,
        origin: Origin,
    ) -> bool {
        let Some(mut filter) = self.filter.take() else {
            return true;
        };
        let filtered = filter.filter(pieces, size, origin);
        let could_be = filtered.is_some();
        match filtered {
            Some(packet) => {
                self.cut += size - packet.len();
                self.whole_packet(packet);
            }
            None => {
                self.cut += size;
                self.frame(0);
                self.end_packet();
            }
        }
        self.filter = Some(filter);
        could_be
    }

    /// Adds a packet that lies in a trace buffer, and after it the contents of `scratch`.
    pub(crate) fn buffered_packet(&mut self, buffer: usize, size: usize, spans: &[Span]) {
        self.frame(size + self.scratch.len());
        self.bytes += size;
        self.pieces
            .extend(spans.iter().map(|span| Piece::Buffer(buffer, *span)));
        let start = self.own.len();
        self.own.raw(self.scratch.as_slice());
        self.push_own(start..self.own.len());
        self.end_packet();
    }

    /// Makes a large packet the batch, with its framing.
    pub(crate) fn large_packet(&mut self, bytes: Vec<u8>) {
        self.bytes += bytes.len();
        self.pieces.push(Piece::Large(bytes.len()));
        self.large = bytes;
        self.end_packet();
    }

    fn whole_packet(&mut self, packet: &[u8]) {
        self.frame(packet.len());
        let start = self.own.len();
        self.own.raw(packet);
        self.push_own(start..self.own.len());
        self.end_packet();
    }

    fn end_packet(&mut self) {
        self.packet_ends.push(PacketEnd {
            pieces: self.pieces.len(),
            bytes: self.bytes,
        });
    }

    /// Writes the head of a packet of this size.
    fn frame(&mut self, size: usize) {
        if self.framing == Framing::Trace {
            let start = self.own.len();
            self.own.bytes_field_head(Trace::PACKET, size);
            self.push_own(start..self.own.len());
        }
    }

    fn push_own(&mut self, range: Range<usize>) {
        self.bytes += range.len();
        let packet_begins = self
            .packet_ends
            .last()
            .is_some_and(|end| end.pieces == self.pieces.len());
        // Neighbours become one piece, except in a bare batch across the border of a packet.
        if let Some(Piece::Own(last)) = self.pieces.last_mut()
            && last.end == range.start
            && !(packet_begins && self.framing == Framing::Bare)
        {
            last.end = range.end;
            return;
        }
        self.pieces.push(Piece::Own(range));
    }

    /// Puts this packet in the place of all.
    fn replace(&mut self, packet: &[u8]) {
        self.start(Framing::Bare);
        self.own.raw(packet);
        self.push_own(0..packet.len());
        self.end_packet();
    }

    /// Takes back the packets at the end with which the batch would not stay below `limit` bytes.
    pub(crate) fn cut_below(&mut self, limit: u64) {
        while self.bytes as u64 >= limit && self.packet_ends.pop().is_some() {
            let end = self.packet_ends.last().copied().unwrap_or_default();
            let whole_pieces: usize = self.pieces.drain(end.pieces..).map(|piece| piece.len()).sum();
            // The rest of the packet, if any, is the service's own bytes, in one piece with earlier ones.
            let rest = self.bytes - end.bytes - whole_pieces;
            if let Some(Piece::Own(shared)) = self.pieces.last_mut() {
                shared.end -= rest;
            }
            self.bytes = end.bytes;
        }
    }
}

/// The contents of a batch. The last one of a read takes the memory with it.
enum Contents<'a> {
    Kept(&'a Readout),
    Last(Box<Readout>),
}

impl Deref for Contents<'_> {
    type Target = Readout;

    fn deref(&self) -> &Readout {
        match self {
            Contents::Kept(readout) => readout,
            Contents::Last(readout) => readout,
        }
    }
}

/// Packets that were read back, ready to be written.
pub struct ReadBatch<'a> {
    readout: Contents<'a>,
    buffers: &'a [TraceBuffer],
    /// The contents, if it is one large packet; otherwise empty.
    large: Vec<u8>,
    /// Whether there is more to read.
    pub has_more: bool,
    /// The session, if its packets were filtered. Then report the time of that with [`Service::filtering_took`](crate::Service::filtering_took).
    pub filtered: Option<SessionId>,
    /// The compression on the way into the file, with [`Compressor::compress_into`]; without it, the batch goes there as it is.
    pub compression: Option<FileCompression>,
}

impl ReadBatch<'_> {
    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.readout.bytes
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.readout.bytes == 0
    }

    /// Takes the contents, framing included, if they are one large packet, so that the driver can send it without a copy. The batch is empty then.
    pub fn take_large(&mut self) -> Option<Vec<u8>> {
        (!self.large.is_empty()).then(|| std::mem::take(&mut self.large))
    }

    /// Everything in order, framing included, for one vectored write.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.readout.pieces.iter().map(|piece| self.resolve(piece))
    }

    /// Each packet as slices.
    pub fn packets(&self) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
        let mut start = 0;
        self.readout.packet_ends.iter().map(move |end| {
            let pieces = &self.readout.pieces[start..end.pieces];
            start = end.pieces;
            pieces.iter().map(|piece| self.resolve(piece))
        })
    }

    #[inline]
    fn resolve(&self, piece: &Piece) -> &[u8] {
        match piece {
            Piece::Own(range) => &self.readout.own.as_slice()[range.clone()],
            Piece::Buffer(index, span) => self.buffers[*index].bytes(*span),
            Piece::Large(_) => &self.large,
        }
    }
}

/// Bytes that a batch may hold, and how many of them may still go into the file.
pub(crate) struct Budget {
    pub(crate) batch: usize,
    pub(crate) file: u64,
}

/// Compresses a batch for a consumer into one packet, if its session is compressed.
pub(crate) fn compress_batch(
    session: &mut Session,
    readout: &mut Readout,
    end: BatchEnd,
) -> Result<(), CompressError> {
    let Some(codec) = session.codec else { return Ok(()) };
    let batch = ReadBatch {
        readout: Contents::Kept(readout),
        buffers: &session.buffers,
        large: Vec::new(),
        has_more: end == BatchEnd::More,
        filtered: None,
        compression: None,
    };
    if !batch.is_empty() && batch.len() <= limits::MAX_COMPRESSED_BATCH {
        let mut trace = Writer::with_capacity(batch.len() + batch.len() / 8);
        for packet in batch.packets() {
            let slices: Vec<&[u8]> = packet.collect();
            trace.bytes_field_head(Trace::PACKET, slices.iter().map(|slice| slice.len()).sum());
            slices.iter().for_each(|slice| trace.raw(slice));
        }
        let compressor = match &mut session.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(codec.in_time())?),
        };
        let packet = compressor.compress(trace.as_slice())?;
        readout.replace(packet);
    }
    // Its memory is not kept while nothing is read.
    session.compressor.take_if(|_| end != BatchEnd::More);
    Ok(())
}

/// The batch that was put together.
pub(crate) fn batch<'a>(
    session: &'a Session,
    readout: &'a mut Readout,
    end: BatchEnd,
    compression: Option<FileCompression>,
) -> ReadBatch<'a> {
    let has_more = end == BatchEnd::More;
    let large = std::mem::take(&mut readout.large);
    let readout = if has_more {
        Contents::Kept(readout)
    } else {
        Contents::Last(Box::new(std::mem::take(readout)))
    };
    ReadBatch {
        readout,
        buffers: &session.buffers,
        large,
        has_more,
        filtered: session.filter.as_ref().map(|_| session.id),
        compression,
    }
}
