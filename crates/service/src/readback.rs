//! Read-back: from trace buffers to the consumer or the file.
//!
//! The driver pulls, a bounded batch at a time, as its socket or file can take it. A batch names what the packets are
//! made of: stretches of the trace buffers, which are not copied, and stretches of the service's own bytes (framing,
//! its own packets, the fields it adds to others'). The driver hands them to one vectored write. If the session is
//! compressed, a consumer gets the packets of a batch as one; for a file the driver makes it, on the thread that writes.

use std::iter;
use std::ops::{Deref, Range};
use std::time::Duration;

use ferretto_proto::write::TRACE_PACKET;
use ferretto_wire::Writer;

use crate::clock::Now;
use crate::compression::{CompressError, Compressor, FileCompression};
use crate::effort::Effort;
use crate::ids::{BufferId, ConsumerId, SessionId};
use crate::lifecycle::next_multiple;
use crate::limits;
use crate::ordered::OrderedMap;
use crate::output::{LogLevel, Output};
use crate::packet_validator::PacketValidator;
use crate::packets::{write_leading_packets, write_lifecycle_events, write_trusted_fields};
use crate::protovm::ProtoVms;
use crate::service::Service;
use crate::session::{BatchEnd, Drain, FlushStrategy, LifecycleEvent, State};
use crate::timers::Timer;
use crate::trace_buffer::{Span, TraceBuffer};
use crate::trace_filter::{Origin, SessionFilter};

/// A stretch of a packet.
#[derive(Clone, Debug)]
enum Piece {
    /// Bytes of the service's own.
    Own(Range<usize>),
    /// Bytes of a trace buffer.
    Buffer(BufferId, Span),
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
enum Framing {
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
    scratch: Writer,
    /// The filter of the session that is read.
    filter: Option<Box<SessionFilter>>,
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
    fn start(&mut self, framing: Framing) {
        self.framing = framing;
        self.own.clear();
        self.pieces.clear();
        self.packet_ends.clear();
        self.bytes = 0;
        self.cut = 0;
    }

    /// The filter of the session that is read.
    pub(crate) fn filter(&self) -> Option<&SessionFilter> {
        self.filter.as_deref()
    }

    /// Whether filtering the packets of this batch has taken long enough, however few they are.
    fn took_long(&self) -> bool {
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
    fn filtered_packet<'p>(&mut self, pieces: impl Iterator<Item = &'p [u8]>, size: usize, origin: Origin) {
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
            self.own.bytes_field_head(TRACE_PACKET, size);
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
    fn cut_below(&mut self, limit: u64) {
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
    buffers: &'a OrderedMap<BufferId, TraceBuffer>,
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

fn resolve<'a>(
    readout: &'a Readout,
    buffers: &'a OrderedMap<BufferId, TraceBuffer>,
    piece: &Piece,
) -> &'a [u8] {
    match piece {
        Piece::Own(range) => &readout.own.as_slice()[range.clone()],
        Piece::Buffer(id, span) => buffers.get(id).map_or(&[], |entry| entry.bytes(*span)),
    }
}

/// Bytes that a batch may hold, and how many of them may still go into the file.
struct Budget {
    batch: usize,
    file: u64,
}

impl Service {
    /// The consumer reads its session: about `budget` bytes, less of them or none where packets are invalid or filtered.
    /// `None` if it has no session to be read. If the session is compressed a batch is smaller than that.
    pub fn read_buffers(&mut self, consumer: ConsumerId, budget: usize, now: &Now) -> Option<ReadBatch<'_>> {
        let id = self.session_of(consumer)?;
        let session = self.sessions.get(&id)?;
        let budget = match session.codec {
            Some(_) => budget.min(limits::COMPRESSED_BATCH),
            None => budget,
        };
        if session.file.is_some() {
            self.log(
                LogLevel::Warning,
                "a consumer asked to read a session that streams into a file".into(),
            );
            return None;
        }
        let filtered = self.filtered(id);
        let end = self.read(
            id,
            Framing::Bare,
            &Budget {
                batch: budget,
                file: u64::MAX,
            },
            now,
        );
        if let Err(error) = self.compress_batch(id, end) {
            self.log(LogLevel::Warning, format!("{error}; they go out as they are"));
        }
        Some(self.batch(end, filtered, None))
    }

    /// Makes one packet of a batch for a consumer, if its session is compressed.
    fn compress_batch(&mut self, id: SessionId, end: BatchEnd) -> Result<(), CompressError> {
        let Some(session) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        let Some(codec) = session.codec else { return Ok(()) };
        let batch = ReadBatch {
            readout: Contents::Kept(&self.readout),
            buffers: &self.buffers,
            has_more: end == BatchEnd::More,
            filtered: None,
            compression: None,
        };
        if !batch.is_empty() && batch.len() <= limits::MAX_COMPRESSED_BATCH {
            let mut trace = Writer::with_capacity(batch.len() + batch.len() / 8);
            for packet in batch.packets() {
                let slices: Vec<&[u8]> = packet.collect();
                trace.bytes_field_head(TRACE_PACKET, slices.iter().map(|slice| slice.len()).sum());
                slices.iter().for_each(|slice| trace.raw(slice));
            }
            let compressor = match &mut session.compressor {
                Some(compressor) => compressor,
                none => none.insert(Compressor::new(codec.in_time())?),
            };
            let packet = compressor.compress(trace.as_slice())?;
            self.readout.replace(packet);
        }
        // Its memory is not kept while nothing is read.
        session.compressor.take_if(|_| end != BatchEnd::More);
        Ok(())
    }

    /// The next bytes for the file of a session: about `budget` of them. To be written, however long that takes,
    /// compressed if the batch says so, and then reported with [`Service::file_written`] or [`Service::file_full`]; before
    /// that there are no others. `None` if nothing is due.
    pub fn read_for_file(&mut self, id: SessionId, budget: usize, now: &Now) -> Option<ReadBatch<'_>> {
        let session = self.sessions.get(&id)?;
        let file = session.file.as_ref()?;
        if file.handed_out.is_some() || file.drain == Drain::Closing {
            return None;
        }
        let room = file.max_size.saturating_sub(file.written);
        let filtered = self.filtered(id);
        let compression = session.codec.map(|codec| FileCompression { codec, room });
        let end = self.read(
            id,
            Framing::Trace,
            &Budget {
                batch: budget,
                // How much there is room for before it is compressed, nobody knows.
                file: if compression.is_some() { u64::MAX } else { room },
            },
            now,
        );
        self.sessions.get_mut(&id)?.file.as_mut()?.handed_out = Some(end);
        Some(self.batch(end, filtered, compression))
    }

    /// The batch that was put together.
    fn batch(
        &mut self,
        end: BatchEnd,
        filtered: Option<SessionId>,
        compression: Option<FileCompression>,
    ) -> ReadBatch<'_> {
        let has_more = end == BatchEnd::More;
        let readout = if has_more {
            Contents::Kept(&self.readout)
        } else {
            Contents::Last(std::mem::take(&mut self.readout))
        };
        ReadBatch {
            readout,
            buffers: &self.buffers,
            has_more,
            filtered,
            compression,
        }
    }

    /// There was room for a part of what [`Service::read_for_file`] gave: this many bytes were written, and no packet more
    /// would fit.
    pub fn file_full(&mut self, id: SessionId, bytes: u64, now: &Now) {
        let session = self.sessions.get_mut(&id);
        if let Some(end) = session
            .and_then(|session| session.file.as_mut())
            .and_then(|file| file.handed_out.as_mut())
        {
            *end = BatchEnd::Full;
        }
        self.file_written(id, Ok(bytes), now);
    }

    /// What [`Service::read_for_file`] gave was written: this many bytes, or the write failed for this reason.
    pub fn file_written(&mut self, id: SessionId, result: Result<u64, String>, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(file) = &mut session.file else { return };
        let Some(end) = file.handed_out.take() else { return };
        file.progress = now.monotonic;
        let end = match result {
            Ok(bytes) => {
                file.written += bytes;
                end
            }
            Err(error) => {
                let error = format!("cannot write into the trace file: {error}");
                session.disabled_error.get_or_insert(error.clone());
                self.log(LogLevel::Warning, error);
                BatchEnd::Full
            }
        };
        self.batch_arrived_for_clones(id, end, now);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(file) = &mut session.file else { return };
        match (end, file.drain) {
            (BatchEnd::More, _) => self.output(Output::FileDue(id)),
            (BatchEnd::Drained, Drain::Final | Drain::Closing) => self.complete_file(id),
            (BatchEnd::Drained, Drain::Idle | Drain::Periodic) => {
                file.drain = Drain::Idle;
                let (period, sync) = (file.write_period, file.sync_after_write);
                self.timers.set(next_multiple(now, period), Timer::FileWrite(id));
                if sync {
                    self.output(Output::SyncFile(id));
                }
            }
            (BatchEnd::Full, _) => {
                self.complete_file(id);
                self.disable(id, now);
            }
        }
    }

    /// The file takes no more.
    fn complete_file(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(&id);
        if let Some(file) = session.and_then(|session| session.file.as_mut()) {
            file.drain = Drain::Closing;
            self.output(Output::CloseFile(id));
        }
    }

    /// What [`CloseFile`](crate::Output::CloseFile) asked for is done, or failed for this reason: whoever waited for
    /// the file goes on.
    pub fn file_closed(&mut self, id: SessionId, result: Result<(), String>, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session
            .file
            .take_if(|file| file.drain == Drain::Closing)
            .is_none()
        {
            return;
        }
        if let Err(error) = result {
            let error = format!("cannot complete the trace file: {error}");
            session.disabled_error.get_or_insert(error.clone());
            self.log(LogLevel::Warning, error);
        }
        self.file_over(id, now);
    }

    /// What [`SyncFile`](crate::Output::SyncFile) asked for failed for this reason. The session goes on, and its consumer is
    /// told when it ends: of what did not reach the disk the kernel tells once only, so that closing the file may succeed.
    pub fn file_sync_failed(&mut self, id: SessionId, error: &str) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let error = format!("a part of the trace file may not be on the disk: {error}");
        if session.disabled_error.is_none() {
            session.disabled_error = Some(error.clone());
            self.log(LogLevel::Warning, format!("tracing session {}: {error}", id.0));
        }
    }

    /// The session has no file any more.
    fn file_over(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let (state, free) = (session.state, session.free_when_drained);
        match state {
            State::Disabled => self.announce_disabled(id),
            State::ClonedReadOnly => self.clone_file_closed(id, now),
            State::Configured | State::Started | State::DisablingWaitingStopAcks => {}
        }
        if free {
            self.remove_session(id, now);
        }
    }

    /// Nobody waits for the file of this session any more. If nothing has become of it for a while either, it is given up:
    /// a pipe that nobody reads must not keep a session, and its memory, for ever.
    pub(crate) fn file_abandoned(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(file) = &session.file else { return };
        let deadline = file.progress + limits::ABANDONED_FILE_PATIENCE.as_nanos() as u64;
        if deadline > now.monotonic {
            return self.timers.set(deadline, Timer::FileAbandoned(id));
        }
        let error = format!(
            "the trace file took no data for {} s and was given up",
            limits::ABANDONED_FILE_PATIENCE.as_secs()
        );
        session.file = None;
        session.disabled_error.get_or_insert(error.clone());
        self.log(LogLevel::Warning, format!("tracing session {}: {error}", id.0));
        self.output(Output::AbandonFile(id));
        self.batch_arrived_for_clones(id, BatchEnd::Full, now);
        self.file_over(id, now);
    }

    pub(crate) fn file_write_due(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self
            .sessions
            .get_mut(&id)
            // Data sources that take their time to stop may write a lot while they do.
            .filter(|session| matches!(session.state, State::Started | State::DisablingWaitingStopAcks))
        else {
            return;
        };
        match session.flush_strategy {
            FlushStrategy::BeforeEachFileWrite => self.flush_before_write(id, now),
            FlushStrategy::Never | FlushStrategy::Every(_) => self.drain_into_file(id, Drain::Periodic),
        }
    }

    /// Has the buffers drained into the file, or goes on if that is under way.
    pub(crate) fn drain_into_file(&mut self, id: SessionId, drain: Drain) {
        let session = self.sessions.get_mut(&id);
        let Some(file) = session.and_then(|session| session.file.as_mut()) else {
            return;
        };
        let under_way = file.drain != Drain::Idle;
        file.drain = file.drain.max(drain);
        // There is more now than when that batch was put together.
        if let Some(end @ BatchEnd::Drained) = &mut file.handed_out {
            *end = BatchEnd::More;
        }
        if !under_way {
            self.output(Output::FileDue(id));
        }
    }

    fn filtered(&self, id: SessionId) -> Option<SessionId> {
        self.sessions.get(&id)?.filter.is_some().then_some(id)
    }

    /// Putting together a batch of [`filtered`](ReadBatch::filtered) packets took this long: reading, filtering and
    /// framing them. The service has no clock; what it is told goes into the statistics of the session.
    pub fn filtering_took(&mut self, id: SessionId, time: Duration) {
        let session = self.sessions.get_mut(&id);
        if let Some(filter) = session.and_then(|session| session.filter.as_mut()) {
            filter.took(time);
        }
    }

    /// Puts together one batch.
    fn read(&mut self, id: SessionId, framing: Framing, budget: &Budget, now: &Now) -> BatchEnd {
        let mut out = std::mem::take(&mut self.readout);
        out.start(framing);
        out.filter = self
            .sessions
            .get_mut(&id)
            .and_then(|session| session.filter.take());
        if let Some(filter) = &mut out.filter {
            filter.packets.begin_batch(Effort::new(self.processor_clock));
        }
        let end = self.read_into(id, &mut out, budget, now);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.filter = out.filter.take();
        }
        self.readout = out;
        end
    }

    fn read_into(&mut self, id: SessionId, out: &mut Readout, budget: &Budget, now: &Now) -> BatchEnd {
        let end = self.fill_batch(id, out, budget, now);
        // A file stays below its limit and consists of whole packets.
        if out.bytes as u64 >= budget.file {
            out.cut_below(budget.file);
            return BatchEnd::Full;
        }
        end
    }

    /// The state of programs is told once, and what went wrong with them then too.
    fn log_protovms(&mut self, id: SessionId) {
        let session = self.sessions.get(&id);
        let Some(session) = session.filter(|session| !session.initial_packets_written) else {
            return;
        };
        let buffers = session.buffers.iter().filter_map(|id| self.buffers.get(id));
        let vms = buffers.filter_map(TraceBuffer::protovms);
        let complaints: Vec<String> = vms.flat_map(ProtoVms::complaints).collect();
        for line in complaints {
            self.log(LogLevel::Warning, line);
        }
    }

    fn fill_batch(&mut self, id: SessionId, out: &mut Readout, budget: &Budget, now: &Now) -> BatchEnd {
        self.log_protovms(id);
        let enough = (budget.batch as u64).min(budget.file);
        let Some(session) = self.sessions.get_mut(&id) else {
            return BatchEnd::Drained;
        };
        if session.triggers.hides_trace() {
            return BatchEnd::Drained;
        }
        write_leading_packets(session, &self.identity, &self.machines, &self.buffers, now, out);
        for (index, buffer_id) in session.buffers.clone().into_iter().enumerate() {
            let Some(entry) = self.buffers.get_mut(&buffer_id) else {
                continue;
            };
            entry.begin_read();
            while let Some(packet) = entry.read_next_packet() {
                if PacketValidator::check(packet.fragments()).is_err() {
                    session.invalid_packets += 1;
                    out.cut += packet.size();
                    if (out.bytes + out.cut) as u64 >= enough {
                        return BatchEnd::More;
                    }
                    continue;
                }
                let sequence = packet.sequence;
                let sequence_id = session.sequence_ids.of(sequence.producer, sequence.writer);
                out.scratch.clear();
                write_trusted_fields(&mut out.scratch, &sequence, sequence_id, packet.losses);
                if out.filter.is_some() {
                    let trusted = std::mem::take(&mut out.scratch);
                    let size = packet.size() + trusted.len();
                    let pieces = packet.fragments().chain(iter::once(trusted.as_slice()));
                    out.filtered_packet(pieces, size, Origin::Buffer(index));
                    out.scratch = trusted;
                } else {
                    out.frame(packet.size() + out.scratch.len());
                    out.bytes += packet.size();
                    out.pieces
                        .extend(packet.spans().iter().map(|span| Piece::Buffer(buffer_id, *span)));
                    let start = out.own.len();
                    out.own.raw(out.scratch.as_slice());
                    out.push_own(start..out.own.len());
                    out.end_packet();
                }
                // What is cut out has been read too.
                if (out.bytes + out.cut) as u64 >= enough || out.took_long() {
                    return BatchEnd::More;
                }
            }
        }
        // The buffers are empty: a point up to which readers can sort.
        session.note(LifecycleEvent::ReadTracingBuffersCompleted, now);
        write_lifecycle_events(session, self.identity.author(), out);
        let (producers, buffers) = (&self.producers, &self.buffers);
        let of_session: Vec<&TraceBuffer> = session.buffers.iter().filter_map(|id| buffers.get(id)).collect();
        session.sequence_ids.forget(|producer, writer| {
            producers.contains_key(&producer)
                || of_session.iter().any(|buffer| buffer.knows(producer, writer))
        });
        if std::mem::take(&mut session.stats_due) {
            self.write_stats(id, out);
        }
        BatchEnd::Drained
    }
}
