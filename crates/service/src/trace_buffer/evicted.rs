//! Chunks that are overwritten unread.
//!
//! The write path calls this for a chunk that is about to leave its sequence. As in upstream's buffer, overwriting is reading by force: the losses, their
//! reasons and the place where reading continues are the same as if the packets had been read and thrown away, except that nothing waits for missing
//! data. If a packet begins in the chunk, its end goes too. Only the fragments that matter for this are looked at.
//!
//! If the buffer has programs that merge overwritten packets (see [`crate::protovm`]), they get the packets. Programs only look: everything else is the
//! same with and without them.

use super::fragment::{self, Part, Token};
use super::read::{Lookahead, Reassembly};
use super::record::{Chunk, Flags, HEADER_SIZE, Record};
use super::{LossReasons, Span, TraceBuffer};

impl TraceBuffer {
    /// Has the processor fetch the other memory that is needed when the chunk at the write cursor is overwritten: the chunk with the rest of its last
    /// packet.
    pub(super) fn prefetch_to_overwrite(&self) {
        if self.write_at < self.ring.used()
            && let Record::Chunk(chunk) = self.ring.record(self.write_at)
            && chunk.flags.has(Flags::CONTINUES_ON_NEXT)
            && let Some(next) = self.sequences.get(chunk.slot).chunks.get(1)
        {
            self.ring.prefetch_beginning(next.at);
        }
    }

    /// Notes the losses from overwriting the unread rest of the chunk at `at`, the first of its sequence.
    pub(super) fn overwrite(&mut self, at: u32, chunk: &Chunk) {
        if self.protovms.is_some() {
            self.offer_to_protovms(at, chunk);
        }
        let sequence = self.sequences.get_mut(chunk.slot);
        sequence.arrive_at(chunk.id);
        let mut a_packet_begins = chunk.flags.has(Flags::CONTINUES_ON_NEXT);
        let payload = self.ring.payload(at, chunk);
        let mut start = usize::from(chunk.consumed);
        while let Token::Fragment { start: body, end } = fragment::token(payload, start) {
            match fragment::part(chunk.flags, start, end, payload.len()) {
                Part::Whole if body == end => {}
                Part::Whole => {
                    sequence.losses.add(LossReasons::OVERWRITE);
                    // So are all that follow, except one that begins here.
                    break;
                }
                Part::Continue => {
                    sequence.losses.add(LossReasons::ORPHAN_CONTINUATION);
                    a_packet_begins = false;
                }
                Part::End => sequence.losses.add(LossReasons::ORPHAN_CONTINUATION),
                Part::Begin => break,
            }
            start = end;
        }
        if a_packet_begins {
            self.overwrite_last_packet(at, chunk);
        }
        self.count_overwritten(chunk);
    }

    /// The packet that begins in this chunk is lost, with the existing part of its rest.
    fn overwrite_last_packet(&mut self, at: u32, chunk: &Chunk) {
        let first = Lookahead {
            chunk_at: at,
            span: Span { start: at, len: 0 },
            end: chunk.payload,
        };
        let needs_patching = chunk.flags.has(Flags::NEEDS_PATCHING);
        let reason = match self.look_ahead(chunk.slot, first, chunk.id, needs_patching) {
            Reassembly::Done => {
                self.stats.readaheads_succeeded += 1;
                LossReasons::OVERWRITE
            }
            Reassembly::Missing => {
                self.stats.readaheads_failed += 1;
                LossReasons::OVERWRITE
            }
            Reassembly::Lost(reason) => {
                self.stats.readaheads_failed += 1;
                reason
            }
        };
        self.sequences.get_mut(chunk.slot).losses.add(reason);
        for index in 1..self.lookahead.len() {
            let found = self.lookahead[index];
            let rest = self.ring.consume(found.chunk_at, found.end);
            if rest.is_drained() {
                self.count_overwritten(&rest);
            }
        }
    }

    fn count_overwritten(&mut self, chunk: &Chunk) {
        self.stats.chunks_overwritten += 1;
        self.stats.bytes_overwritten += u64::from(chunk.outer_size());
    }

    /// Gives the programs the packets that begin in the chunk at `at`, the first of its sequence, and are unread and whole. The rest of a packet that
    /// ends in later chunks is fetched from there, where it will be passed over.
    #[cold]
    pub(super) fn offer_to_protovms(&mut self, at: u32, chunk: &Chunk) {
        let producer = self.sequences.get(chunk.slot).info.producer;
        let Some(mut vms) = self.protovms.take_if(|vms| vms.want(producer)) else {
            return;
        };
        let mut start = usize::from(chunk.consumed);
        while let Token::Fragment { start: body, end } = fragment::token(self.ring.payload(at, chunk), start)
        {
            let span = Span {
                start: at + HEADER_SIZE + body as u32,
                len: (end - body) as u16,
            };
            match fragment::part(chunk.flags, start, end, usize::from(chunk.payload)) {
                Part::Whole if span.len > 0 => vms.apply(producer, std::iter::once(self.bytes(span))),
                Part::Begin => {
                    let first = Lookahead {
                        chunk_at: at,
                        span,
                        end: end as u16,
                    };
                    let needs_patching = chunk.flags.has(Flags::NEEDS_PATCHING);
                    if let Reassembly::Done = self.look_ahead(chunk.slot, first, chunk.id, needs_patching) {
                        let pieces = self.lookahead.iter().map(|found| self.bytes(found.span));
                        vms.apply(producer, pieces.filter(|piece| !piece.is_empty()));
                    }
                }
                Part::Whole | Part::Continue | Part::End => {}
            }
            start = end;
        }
        self.protovms = Some(vms);
    }
}
