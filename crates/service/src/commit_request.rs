//! `CommitDataRequest` decoded in place. The daemon calls it for every commit, and so for every few kilobytes of a trace: the
//! generated decoder would allocate for each, this one keeps its memory. It takes what the generated one takes, but that a
//! field of the wrong type is passed over, as an unknown one is.

use buffa::Message;
use ferretto_proto::messages::CommitDataRequest;
use ferretto_proto::messages::commit_data_request::{ChunkToPatch, ChunksToMove};
use ferretto_wire::{Reader, Value};

use crate::clock::Now;
use crate::ids::ProducerId;
use crate::service::Service;

/// Chunks that memory is kept for: the commits of a whole shared memory buffer of the usual size.
const KEPT_CHUNKS: usize = 64;

/// The request is not a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request is malformed")]
pub struct MalformedCommit;

impl Service {
    /// As [`Service::commit`], with the request as it came.
    ///
    /// # Errors
    /// If it cannot be decoded; nothing of it is done then.
    pub fn commit_encoded(
        &mut self,
        producer: ProducerId,
        request: &[u8],
        now: &Now,
    ) -> Result<(), MalformedCommit> {
        let mut decoded = std::mem::take(&mut self.commit_request);
        let result = decode(request, &mut decoded).ok_or(MalformedCommit);
        if result.is_ok() {
            self.commit(producer, &decoded, now);
        }
        decoded.chunks_to_move.clear();
        decoded.chunks_to_move.shrink_to(KEPT_CHUNKS);
        decoded.chunks_to_patch = Vec::new();
        self.commit_request = decoded;
        result
    }
}

/// Decodes `bytes` into `request`, whose lists are empty.
fn decode(bytes: &[u8], request: &mut CommitDataRequest) -> Option<()> {
    const CHUNKS_TO_MOVE: u32 = 1;
    const CHUNKS_TO_PATCH: u32 = 2;
    const FLUSH_REQUEST_ID: u32 = 3;
    request.flush_request_id = None;
    for field in Reader::new(bytes) {
        let field = field.ok()?;
        match (field.number, field.value) {
            (CHUNKS_TO_MOVE, Value::Bytes(chunk)) => request.chunks_to_move.push(decode_move(chunk)?),
            (CHUNKS_TO_PATCH, Value::Bytes(chunk)) => {
                request
                    .chunks_to_patch
                    .push(ChunkToPatch::decode_from_slice(chunk).ok()?);
            }
            (FLUSH_REQUEST_ID, Value::Varint(id)) => request.flush_request_id = Some(id),
            _ => {}
        }
    }
    Some(())
}

fn decode_move(bytes: &[u8]) -> Option<ChunksToMove> {
    const PAGE: u32 = 1;
    const CHUNK: u32 = 2;
    const TARGET_BUFFER: u32 = 3;
    const DATA: u32 = 4;
    const CHUNK_INCOMPLETE: u32 = 5;
    let mut chunk = ChunksToMove::default();
    for field in Reader::new(bytes) {
        let field = field.ok()?;
        match (field.number, field.value) {
            (PAGE, Value::Varint(page)) => chunk.page = Some(page as u32),
            (CHUNK, Value::Varint(index)) => chunk.chunk = Some(index as u32),
            (TARGET_BUFFER, Value::Varint(buffer)) => chunk.target_buffer = Some(buffer as u32),
            (DATA, Value::Bytes(data)) => chunk.data = Some(data.to_vec()),
            (CHUNK_INCOMPLETE, Value::Varint(incomplete)) => chunk.chunk_incomplete = Some(incomplete != 0),
            _ => {}
        }
    }
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::commit_data_request::chunk_to_patch::Patch;
    use proptest::prelude::*;

    fn decoded(bytes: &[u8]) -> Option<CommitDataRequest> {
        let mut request = CommitDataRequest::default();
        decode(bytes, &mut request).map(|()| request)
    }

    fn any_move() -> impl Strategy<Value = ChunksToMove> {
        let data = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40));
        let numbers = any::<[Option<u32>; 3]>();
        (numbers, data, any::<Option<bool>>()).prop_map(|([page, chunk, target_buffer], data, incomplete)| {
            ChunksToMove {
                page,
                chunk,
                target_buffer,
                data,
                chunk_incomplete: incomplete,
                ..Default::default()
            }
        })
    }

    fn any_patch() -> impl Strategy<Value = ChunkToPatch> {
        (any::<[Option<u32>; 3]>(), any::<Option<bool>>(), 0usize..4).prop_map(|(numbers, more, patches)| {
            let [target_buffer, writer_id, chunk_id] = numbers;
            ChunkToPatch {
                target_buffer,
                writer_id,
                chunk_id,
                patches: (0..patches as u32)
                    .map(|offset| Patch {
                        offset: Some(offset),
                        data: Some(vec![1, 2, 3, 4]),
                        ..Default::default()
                    })
                    .collect(),
                has_more_patches: more,
                ..Default::default()
            }
        })
    }

    proptest! {
        #[test]
        fn what_the_generated_decoder_reads_is_read_the_same(
            moves in proptest::collection::vec(any_move(), 0..5),
            patches in proptest::collection::vec(any_patch(), 0..3),
            flush: Option<u64>,
        ) {
            let request = CommitDataRequest {
                chunks_to_move: moves,
                chunks_to_patch: patches,
                flush_request_id: flush,
                ..Default::default()
            };
            prop_assert_eq!(decoded(&request.encode_to_vec()), Some(request));
        }
    }

    #[test]
    fn requests_that_end_early_are_malformed() {
        let request = CommitDataRequest {
            chunks_to_move: vec![ChunksToMove {
                page: Some(1),
                chunk: Some(300),
                ..Default::default()
            }],
            flush_request_id: Some(300),
            ..Default::default()
        };
        let bytes = request.encode_to_vec();
        let after_the_chunk = bytes.len() - 3;
        for end in 1..bytes.len() {
            assert_eq!(decoded(&bytes[..end]).is_some(), end == after_the_chunk, "{end}");
        }
    }

    #[test]
    fn fields_of_another_type_are_passed_over() {
        // flush_request_id as bytes, then an unknown field.
        let request = decoded(b"\x1a\x02ab\xa0\x06\x01").expect("a message");
        assert_eq!(request, CommitDataRequest::default());
    }
}
