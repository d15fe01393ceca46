//! Read-back: from trace buffers to the consumer or the file.
//!
//! The driver pulls a bounded batch at a time, as its socket or file can take it. A batch consists of stretches of the trace buffers, which are
//! not copied, and stretches of the service's own bytes (framing, its own packets, the fields it adds). The driver hands them to one
//! vectored write. If the session is compressed, a consumer gets a batch as one packet. For a file, the driver compresses the batch on the thread
//! that writes.

use std::iter;
use std::ops::{Deref, Range};
use std::time::Duration;

use ferretto_proto::write::Trace;
use ferretto_wire::Writer;

use crate::clock::Now;
use crate::compression::{CompressError, Compressor, FileCompression};
use crate::ids::{ConsumerId, SessionId};
use crate::limits;
use crate::service::Service;
use crate::session::{BatchEnd, Session, Surroundings};
use crate::trace_buffer::{Span, TraceBuffer};
use crate::trace_filter::{Origin, SessionFilter};

/// A stretch of a packet.
#[derive(Clone, Debug)]
enum Piece {
    /// Bytes of the service's own.
    Own(Range<usize>),
    /// Bytes of a trace buffer: which of the session's, and where.
    Buffer(usize, Span),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own(range) => range.len(),
            Piece::Buffer(_, span) => span.size(),
        }
    }
}

/// How packets follow each other in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// As fields of the `Trace` message, which is what a trace file consists of.
    #[default]
    Trace,
    /// Bare: a transport marks their borders.
    Bare,
}

/// A batch while it is put together; kept for its memory until there is no more to read.
#[derive(Default)]
pub(crate) struct Readout {
    framing: Framing,
    own: Writer,
    pieces: Vec<Piece>,
    packet_ends: Vec<PacketEnd>,
    bytes: usize,
    pub(crate) scratch: Writer,
    /// The filter of the session that is read.
    pub(crate) filter: Option<Box<SessionFilter>>,
    /// Bytes that were read for the batch and are not in it: cut out by the filter, or of invalid packets.
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
        self.cut = 0;
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes that were read for it, including bytes that did not get into it.
    pub(crate) fn read(&self) -> u64 {
        (self.bytes + self.cut) as u64
    }

    /// So many bytes were read that do not get into it.
    pub(crate) fn cut(&mut self, bytes: usize) {
        self.cut += bytes;
    }

    /// Whether filtering the packets of this batch has taken long enough, however few they are.
    pub(crate) fn took_long(&self) -> bool {
        let took = self.filter.as_ref().map(|filter| filter.packets.batch_took());
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

    /// Adds what the filter lets stay of a packet of `size` bytes.
    pub(crate) fn filtered_packet<'p>(
        &mut self,
        pieces: impl Iterator<Item = &'p [u8]>,
        size: usize,
        origin: Origin,
    ) {
        let Some(mut filter) = self.filter.take() else {
            return;
        };
        match filter.filter(pieces, size, origin) {
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
    }

    /// Adds a packet that lies in a trace buffer, and after it what `scratch` holds.
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

    /// Writes what precedes a packet of this size.
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
            // The rest of the packet, if any, is the service's own bytes, in one piece with those before them.
            let rest = self.bytes - end.bytes - whole_pieces;
            if let Some(Piece::Own(shared)) = self.pieces.last_mut() {
                shared.end -= rest;
            }
            self.bytes = end.bytes;
        }
    }
}

/// What a batch consists of. The last one of a read takes the memory with it.
enum Contents<'a> {
    Kept(&'a Readout),
    Last(Readout),
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
    /// Whether there is more to read.
    pub has_more: bool,
    /// The session, if its packets were filtered: how long that took is to be reported with
    /// [`Service::filtering_took`].
    pub filtered: Option<SessionId>,
    /// To be compressed like this on its way into the file, with [`Compressor::compress_into`]; otherwise it goes there as
    /// it is.
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

    /// Everything in order, framing included, for one vectored write.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (readout, buffers) = (&*self.readout, self.buffers);
        readout
            .pieces
            .iter()
            .map(move |piece| resolve(readout, buffers, piece))
    }

    /// Each packet as the slices that it consists of.
    pub fn packets(&self) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
        let (readout, buffers) = (&*self.readout, self.buffers);
        let mut start = 0;
        readout.packet_ends.iter().map(move |end| {
            let pieces = &readout.pieces[start..end.pieces];
            start = end.pieces;
            pieces.iter().map(move |piece| resolve(readout, buffers, piece))
        })
    }
}

fn resolve<'a>(readout: &'a Readout, buffers: &'a [TraceBuffer], piece: &Piece) -> &'a [u8] {
    match piece {
        Piece::Own(range) => &readout.own.as_slice()[range.clone()],
        Piece::Buffer(index, span) => buffers[*index].bytes(*span),
    }
}

/// Bytes that a batch may hold, and how many of them may still go into the file.
pub(crate) struct Budget {
    pub(crate) batch: usize,
    pub(crate) file: u64,
}

impl Service {
    /// The consumer reads its session: about `budget` bytes, less of them or none where packets are invalid or filtered.
    /// `None` if it has no session to be read. If the session is compressed a batch is smaller than that.
    pub fn read_buffers(&mut self, consumer: ConsumerId, budget: usize, now: &Now) -> Option<ReadBatch<'_>> {
        let id = self.session_of(consumer)?;
        let (session, readout, mut around) = self.reading(id, now)?;
        if session.file.is_some() {
            around
                .common
                .outbox
                .warn("a consumer asked to read a session that streams into a file");
            return None;
        }
        let budget = Budget {
            batch: session
                .codec
                .map_or(budget, |_| budget.min(limits::COMPRESSED_BATCH)),
            file: u64::MAX,
        };
        let end = session.read(Framing::Bare, &budget, &mut around, readout);
        if let Err(error) = compress_batch(session, readout, end) {
            around
                .common
                .outbox
                .warn(format!("{error}; they go out as they are"));
        }
        Some(batch(session, readout, end, None))
    }

    /// The next bytes for the file of a session: about `budget` of them. To be written, however long that takes,
    /// compressed if the batch says so, and then reported with [`Service::file_written`] or [`Service::file_full`]; before
    /// that there are no others. `None` if nothing is due.
    pub fn read_for_file(&mut self, id: SessionId, budget: usize, now: &Now) -> Option<ReadBatch<'_>> {
        let (session, readout, mut around) = self.reading(id, now)?;
        let room = session.file.as_ref()?.room()?;
        let compression = session.codec.map(|codec| FileCompression { codec, room });
        let budget = Budget {
            batch: budget,
            // The size before compression that would fit is unknown.
            file: if compression.is_some() { u64::MAX } else { room },
        };
        let end = session.read(Framing::Trace, &budget, &mut around, readout);
        session.file.as_mut()?.hand_out(end);
        Some(batch(session, readout, end, compression))
    }

    /// A session that is to be read, and what that takes.
    fn reading(
        &mut self,
        id: SessionId,
        now: &Now,
    ) -> Option<(&mut Session, &mut Readout, Surroundings<'_>)> {
        let census = self.sessions.census();
        let around = Surroundings {
            common: &mut self.common,
            machines: &self.machines,
            census,
            now: *now,
        };
        Some((self.sessions.get_mut(id)?, &mut self.readout, around))
    }

    /// There was room for a part of what [`Service::read_for_file`] gave: this many bytes were written, and no packet more
    /// would fit.
    pub fn file_full(&mut self, id: SessionId, bytes: u64, now: &Now) {
        let session = self.sessions.get_mut(id);
        if let Some(file) = session.and_then(|session| session.file.as_mut()) {
            file.fill();
        }
        self.file_written(id, Ok(bytes), now);
    }

    /// What [`Service::read_for_file`] gave was written: this many bytes, or the write failed for this reason.
    pub fn file_written(&mut self, id: SessionId, result: Result<u64, String>, now: &Now) {
        self.on_session(id, now, |session, common| {
            session.file_written(result, common, now)
        });
    }

    /// The driver closed the file ([`CloseFile`](crate::Output::CloseFile)), or failed to for this reason. Whatever waited for the
    /// file continues.
    pub fn file_closed(&mut self, id: SessionId, result: Result<(), String>, now: &Now) {
        self.on_session(id, now, |session, common| session.file_closed(result, common));
    }

    /// What [`SyncFile`](crate::Output::SyncFile) asked for failed for this reason. The session goes on, and its consumer is
    /// told when it ends: of what did not reach the disk the kernel tells once only, so that closing the file may succeed.
    pub fn file_sync_failed(&mut self, id: SessionId, error: &str) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.file_sync_failed(error, &mut self.common);
        }
    }

    /// Putting together a batch of [`filtered`](ReadBatch::filtered) packets took this long: reading, filtering and
    /// framing them. The service has no clock, so the driver tells it. The time goes into the statistics of the session.
    pub fn filtering_took(&mut self, id: SessionId, time: Duration) {
        let session = self.sessions.get_mut(id);
        if let Some(filter) = session.and_then(|session| session.filter.as_mut()) {
            filter.took(time);
        }
    }
}

/// Makes one packet of a batch for a consumer, if its session is compressed.
fn compress_batch(session: &mut Session, readout: &mut Readout, end: BatchEnd) -> Result<(), CompressError> {
    let Some(codec) = session.codec else { return Ok(()) };
    let batch = ReadBatch {
        readout: Contents::Kept(readout),
        buffers: &session.buffers,
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
fn batch<'a>(
    session: &'a Session,
    readout: &'a mut Readout,
    end: BatchEnd,
    compression: Option<FileCompression>,
) -> ReadBatch<'a> {
    let has_more = end == BatchEnd::More;
    let readout = if has_more {
        Contents::Kept(readout)
    } else {
        Contents::Last(std::mem::take(readout))
    };
    ReadBatch {
        readout,
        buffers: &session.buffers,
        has_more,
        filtered: session.filter.as_ref().map(|_| session.id),
        compression,
    }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::{TraceConfig, trace_config::CompressionType};

    use super::*;

    #[test]
    fn the_memory_of_a_compressor_is_given_back_once_all_is_read() {
        let mut service = Service::new(crate::Identity::default());
        let now = Now::default();
        let consumer = service.connect_consumer(1);
        let config = TraceConfig {
            compression_type: Some(CompressionType::COMPRESSION_TYPE_DEFLATE),
            ..Default::default()
        };
        let bytes = Vec::new().into();
        let input = crate::ConfigInput { config, bytes };
        let file = crate::OutputFile::None;
        let session = service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        assert_eq!(
            service.read_buffers(consumer, 1, &now).unwrap().packets().count(),
            1
        );
        assert!(service.sessions.get(session).unwrap().compressor.is_none());
    }
}
