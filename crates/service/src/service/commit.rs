//! Commits: chunks that a producer finished, patches for chunks that it committed earlier, and the flush that it acknowledges.
//!
//! A busy service receives hardly anything else. Most requests name one chunk in a dozen bytes, so the service reads a request in place instead
//! of decoding it into a message. A malformed request has no effect at all, as if it had been decoded first.

use std::ops::Range;

use ferretto_proto::messages::commit_data_request::{ChunkToPatch, ChunksToMove};
use ferretto_proto::messages::{CommitDataRequest, DecodeError, Message};
use ferretto_proto::write;
use ferretto_smb::ChunkHeader;
use ferretto_wire::{Field, Reader};

use crate::clock::Now;
use crate::ids::{BufferId, ChunkId, FlushRequestId, ProducerId};
use crate::limits;
use crate::producers::{MemorySharing, Placed, writer_id};
use crate::service::Service;
use crate::service::discarded::Discarded;
use crate::trace_buffer::{ChunkState, MorePatches, Patch};

/// Chunks for which there is room from one request to the next.
const KEPT_CAPACITY: usize = 256;

/// A chunk to be moved into a trace buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Move {
    page: u32,
    chunk: u32,
    target_buffer: u32,
    /// For a chunk that came along: whether the producer goes on writing it.
    incomplete: bool,
}

/// The chunks of one request, each with where in the request its bytes are if they came along; kept for its allocation.
#[derive(Debug, Default)]
pub(crate) struct Moves(Vec<(Move, Option<Range<usize>>)>);

/// The rest of a request, besides its chunks.
#[derive(Debug, Default, PartialEq)]
struct Rest {
    patches: Vec<ChunkToPatch>,
    flush: Option<u64>,
}

impl Service {
    /// The producer finished chunks, sends patches, or acknowledges a flush.
    pub fn commit(&mut self, producer: ProducerId, request: &CommitDataRequest, now: &Now) {
        if !self.may_commit(producer) {
            return;
        }
        let moves = request.chunks_to_move.iter();
        let discarded = self.move_chunks(
            producer,
            moves.map(|entry| (Move::from(entry), entry.data.as_deref())),
        );
        self.count_discarded(producer, &discarded);
        self.patch_chunks(producer, &request.chunks_to_patch);
        if let Some(flush) = request.flush_request_id.filter(|id| *id != 0) {
            self.strike_off(producer, FlushRequestId(flush), now);
        }
    }

    /// The same, with an encoded `CommitDataRequest`. The time matters only if a flush is acknowledged.
    ///
    /// # Errors
    /// If it cannot be decoded; nothing of it is done then.
    pub fn commit_encoded(
        &mut self,
        producer: ProducerId,
        request: &[u8],
        now: impl FnOnce() -> Now,
    ) -> Result<(), DecodeError> {
        let mut moves = std::mem::take(&mut self.moves);
        let rest = read_request(request, &mut moves);
        if let Ok(Rest { patches, flush }) = &rest
            && self.may_commit(producer)
        {
            let moves = moves.0.iter();
            let discarded = self.move_chunks(
                producer,
                moves.map(|(entry, data)| (*entry, data.clone().and_then(|data| request.get(data)))),
            );
            self.count_discarded(producer, &discarded);
            self.patch_chunks(producer, patches);
            if let Some(flush) = flush.filter(|id| *id != 0) {
                self.strike_off(producer, FlushRequestId(flush), &now());
            }
        }
        moves.0.clear();
        moves.0.shrink_to(KEPT_CAPACITY);
        self.moves = moves;
        rest.map(drop)
    }

    /// Whether the producer has memory to commit from, or can have none.
    fn may_commit(&self, producer: ProducerId) -> bool {
        self.common
            .producers
            .get(producer)
            .is_some_and(|entry| entry.smb.is_some() || entry.sharing == MemorySharing::Impossible)
    }

    /// Returns the chunks that reach no buffer.
    fn move_chunks<'a>(
        &mut self,
        producer: ProducerId,
        moves: impl Iterator<Item = (Move, Option<&'a [u8]>)>,
    ) -> Discarded {
        let mut discarded = Discarded::default();
        let Some(sender) = self.common.producers.get(producer) else {
            return discarded;
        };
        let mut protovm_work = limits::MAX_PROTOVM_WORK_AT_ONCE;
        let chunk = &mut self.common.chunk;
        for (entry, data) in moves {
            // A number that no buffer can have is as good as 0, the id of none: the chunk is lost, but its place is free again.
            let target = BufferId(u16::try_from(entry.target_buffer).unwrap_or_default());
            let taken = match data {
                // A producer on another machine has no memory to share and sends the chunk along.
                Some(data) => ChunkHeader::split(data).map(|(header, payload)| {
                    chunk.clear();
                    chunk.extend_from_slice(payload);
                    let state = if entry.incomplete {
                        ChunkState::Incomplete
                    } else {
                        ChunkState::Complete
                    };
                    (header, state)
                }),
                None => sender
                    .smb
                    .as_ref()
                    .and_then(|smb| {
                        smb.copy_chunk(entry.page as usize, entry.chunk as usize, chunk)
                            .ok()
                    })
                    .map(|header| (header, ChunkState::Complete)),
            };
            let placed = taken.map_or(Placed::Nowhere, |(header, state)| {
                let buffer = self.sessions.buffer_mut(target);
                sender.copy_chunk(
                    producer,
                    target,
                    buffer,
                    (&header, state, chunk),
                    &mut protovm_work,
                )
            });
            if placed == Placed::Nowhere
                && let Some(counts) = discarded.counts(target, sender, &self.sessions)
            {
                counts.chunks += 1;
            }
        }
        discarded
    }

    fn patch_chunks(&mut self, producer: ProducerId, chunks: &[ChunkToPatch]) {
        let mut discarded = Discarded::default();
        for chunk in chunks {
            let target = chunk.target_buffer.and_then(|id| u16::try_from(id).ok());
            let target = BufferId(target.unwrap_or_default());
            let in_vain = self.patch_chunk(producer, target, chunk);
            if in_vain > 0
                && let Some(sender) = self.common.producers.get(producer)
                && let Some(counts) = discarded.counts(target, sender, &self.sessions)
            {
                counts.patches += in_vain;
            }
        }
        self.count_discarded(producer, &discarded);
    }

    /// Returns how many of the patches cannot be applied anywhere.
    fn patch_chunk(&mut self, producer: ProducerId, target: BufferId, entry: &ChunkToPatch) -> u64 {
        let count = entry.patches.len() as u64;
        let writer = entry.writer_id.and_then(writer_id);
        let (Some(buffer), Some(writer)) = (self.sessions.buffer_mut(target), writer) else {
            return count;
        };
        if entry.patches.len() > limits::MAX_PATCHES_PER_CHUNK {
            return count;
        }
        let mut in_vain = 0;
        let mut patches = Vec::with_capacity(entry.patches.len());
        for patch in &entry.patches {
            match patch
                .data
                .as_deref()
                .and_then(|data| <[u8; 4]>::try_from(data).ok())
            {
                Some(data) => patches.push(Patch {
                    offset: patch.offset.unwrap_or_default(),
                    data,
                }),
                None => in_vain += 1,
            }
        }
        let more = if entry.has_more_patches.unwrap_or_default() {
            MorePatches::Pending
        } else {
            MorePatches::Done
        };
        // No check that the buffer is one the producer may write into: chunks are found by producer, and its id
        // cannot be forged.
        buffer.apply_patches(
            producer,
            writer,
            ChunkId(entry.chunk_id.unwrap_or_default()),
            &patches,
            more,
        );
        in_vain
    }
}

impl From<&ChunksToMove> for Move {
    fn from(entry: &ChunksToMove) -> Move {
        Move {
            page: entry.page.unwrap_or_default(),
            chunk: entry.chunk.unwrap_or_default(),
            target_buffer: entry.target_buffer.unwrap_or_default(),
            incomplete: entry.chunk_incomplete.unwrap_or_default(),
        }
    }
}

/// Reads an encoded `CommitDataRequest`: its chunks into `moves`, which are empty.
fn read_request(request: &[u8], moves: &mut Moves) -> Result<Rest, DecodeError> {
    let mut rest = Rest::default();
    for field in Reader::new(request) {
        let field = field?;
        match field.number {
            write::CommitDataRequest::CHUNKS_TO_MOVE => moves.0.push(read_move(request, bytes(&field)?)?),
            write::CommitDataRequest::CHUNKS_TO_PATCH => rest
                .patches
                .push(ChunkToPatch::decode_from_slice(bytes(&field)?)?),
            write::CommitDataRequest::FLUSH_REQUEST_ID => rest.flush = Some(varint(&field)?),
            _ => {}
        }
    }
    Ok(rest)
}

/// Reads a `ChunksToMove`, which lies in `request`; the bytes of a chunk that came along are a range of that.
fn read_move(request: &[u8], entry: &[u8]) -> Result<(Move, Option<Range<usize>>), DecodeError> {
    use write::commit_data_request::ChunksToMove;
    let (mut read, mut data) = (Move::default(), None);
    for field in Reader::new(entry) {
        let field = field?;
        match field.number {
            ChunksToMove::PAGE => read.page = varint(&field)? as u32,
            ChunksToMove::CHUNK => read.chunk = varint(&field)? as u32,
            ChunksToMove::TARGET_BUFFER => read.target_buffer = varint(&field)? as u32,
            ChunksToMove::DATA => {
                let bytes = bytes(&field)?;
                let start = bytes.as_ptr().addr() - request.as_ptr().addr();
                data = Some(start..start + bytes.len());
            }
            ChunksToMove::CHUNK_INCOMPLETE => read.incomplete = varint(&field)? != 0,
            _ => {}
        }
    }
    Ok((read, data))
}

fn varint(field: &Field<'_>) -> Result<u64, DecodeError> {
    field.value.as_varint().ok_or_else(|| wrong_type(field))
}

fn bytes<'a>(field: &Field<'a>) -> Result<&'a [u8], DecodeError> {
    field.value.as_bytes().ok_or_else(|| wrong_type(field))
}

fn wrong_type(field: &Field<'_>) -> DecodeError {
    DecodeError::WrongType { field: field.number }
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::commit_data_request::chunk_to_patch::Patch;
    use proptest::prelude::*;

    use super::*;
    use crate::producers::{Credentials, Introduction};

    /// The contents of a request: its chunks with the bytes that came along, and the rest.
    type Said = (Vec<(Move, Option<Vec<u8>>)>, Rest);

    /// Decodes the request as a message.
    fn decoded(request: &[u8]) -> Result<Said, DecodeError> {
        let message = CommitDataRequest::decode_from_slice(request)?;
        let moves = message.chunks_to_move.iter();
        Ok((
            moves
                .map(|entry| (Move::from(entry), entry.data.clone()))
                .collect(),
            Rest {
                patches: message.chunks_to_patch,
                flush: message.flush_request_id,
            },
        ))
    }

    /// Reads the request in place.
    fn read(request: &[u8]) -> Result<Said, DecodeError> {
        let mut moves = Moves::default();
        let rest = read_request(request, &mut moves)?;
        let with_data =
            |(entry, data): (Move, Option<Range<usize>>)| (entry, data.map(|data| request[data].to_vec()));
        Ok((moves.0.into_iter().map(with_data).collect(), rest))
    }

    fn chunk() -> impl Strategy<Value = ChunksToMove> {
        let number = proptest::option::of(prop_oneof![0..10u32, any::<u32>()]);
        let data = proptest::option::weighted(0.2, proptest::collection::vec(any::<u8>(), 0..20));
        (
            number.clone(),
            number.clone(),
            number,
            data,
            any::<Option<bool>>(),
        )
            .prop_map(
                |(page, chunk, target_buffer, data, chunk_incomplete)| ChunksToMove {
                    page,
                    chunk,
                    target_buffer,
                    data,
                    chunk_incomplete,
                    ..Default::default()
                },
            )
    }

    fn chunk_to_patch() -> impl Strategy<Value = ChunkToPatch> {
        let patch = (any::<Option<u32>>(), any::<Option<[u8; 4]>>()).prop_map(|(offset, data)| Patch {
            offset,
            data: data.map(Vec::from),
            ..Default::default()
        });
        (any::<Option<u32>>(), proptest::collection::vec(patch, 0..3)).prop_map(|(chunk_id, patches)| {
            ChunkToPatch {
                chunk_id,
                patches,
                ..Default::default()
            }
        })
    }

    fn request() -> impl Strategy<Value = CommitDataRequest> {
        let chunks = proptest::collection::vec(chunk(), 0..4);
        let patches = proptest::collection::vec(chunk_to_patch(), 0..3);
        (chunks, patches, any::<Option<u64>>()).prop_map(|(chunks_to_move, chunks_to_patch, flush)| {
            CommitDataRequest {
                chunks_to_move,
                chunks_to_patch,
                flush_request_id: flush,
                ..Default::default()
            }
        })
    }

    proptest! {
        #[test]
        fn requests_read_in_place_agree_with_their_messages(request in request()) {
            let bytes = request.encode_to_vec();
            prop_assert!(read(&bytes).is_ok());
            prop_assert_eq!(read(&bytes), decoded(&bytes));
        }

        #[test]
        fn damaged_requests_are_refused_for_the_same_reason(
            request in request(),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
            length in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = request.encode_to_vec();
            bytes.push(0x18);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            prop_assert_eq!(read(&bytes), decoded(&bytes));
            bytes.truncate(length.index(bytes.len()));
            prop_assert_eq!(read(&bytes), decoded(&bytes));
        }
    }

    #[test]
    fn a_request_that_names_all_buffers_there_could_be_is_counted_in_little_room() {
        let mut service = Service::new(Default::default());
        let producer = service
            .connect_producer(Credentials { uid: 1, pid: None }, Introduction::default())
            .unwrap();
        let every = (0..=u16::MAX).rev().map(|id| {
            let entry = Move {
                target_buffer: id.into(),
                ..Move::default()
            };
            (entry, None)
        });
        let discarded = service.move_chunks(producer, every);
        assert_eq!(discarded.astray.chunks, 1 << 16);
        assert!(discarded.for_buffers.is_empty());
    }

    #[test]
    fn room_for_many_chunks_is_not_kept() {
        let mut service = Service::new(Default::default());
        let request = [0x0a, 0x00].repeat(10_000);
        service
            .commit_encoded(ProducerId(1), &request, Now::default)
            .unwrap();
        assert!(service.moves.0.capacity() <= KEPT_CAPACITY);
    }
}
