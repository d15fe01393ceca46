//! The promises between the modules of the trace buffer, as assertions. The tests and the interpreter that fuzzers drive call them between
//! operations. They are not part of the crate otherwise.

use super::record::Record;
use super::sequence::distance;
use super::{ChunkId, TraceBuffer};

impl TraceBuffer {
    /// Asserts everything the modules promise each other.
    pub(super) fn check_invariants(&self) {
        let mut at = 0;
        let mut live = 0;
        let (mut padding, mut not_done_with) = (0, 0);
        let mut cursor_on_boundary = self.write_at == 0 || self.write_at == self.ring.used();
        while at < self.ring.used() {
            cursor_on_boundary |= at == self.write_at;
            at += match self.ring.record(at) {
                Record::Free(run) => {
                    assert!(run.bytes >= 16 && run.bytes.is_multiple_of(16) && run.padding <= run.bytes);
                    padding += u64::from(run.padding);
                    run.bytes
                }
                Record::Chunk(chunk) => {
                    let chunk = self.as_read(at).unwrap_or(chunk);
                    live += 1;
                    not_done_with += u64::from(!chunk.is_drained() || chunk.payload == 0);
                    assert!(chunk.consumed <= chunk.payload && chunk.payload <= chunk.reserved);
                    assert!(
                        self.sequences
                            .get(chunk.slot)
                            .chunks
                            .iter()
                            .any(|held| held.at == at && held.id == chunk.id),
                        "orphan chunk at {at}"
                    );
                    chunk.outer_size()
                }
            };
        }
        assert_eq!(at, self.ring.used(), "records do not tile the ring");
        assert!(cursor_on_boundary, "the write cursor is inside a record");
        let mut listed = 0;
        let mut idle = 0;
        for sequence in self.sequences.iter() {
            listed += sequence.chunks.len();
            idle += u32::from(sequence.chunks.is_empty());
            let ids: Vec<ChunkId> = sequence.chunks.iter().map(|held| held.id).collect();
            assert!(
                ids.is_sorted_by(|a, b| distance(*b, *a) > 0),
                "chunks out of order: {ids:?}"
            );
        }
        assert_eq!(listed, live, "a sequence holds a chunk that is gone");
        assert_eq!(idle, self.sequences.idle_count());
        self.check_accounts(padding, not_done_with);
    }

    /// Asserts that all input came out, was lost or is here: `padding` bytes, and chunks `not_done_with`.
    fn check_accounts(&self, padding: u64, not_done_with: u64) {
        let stats = &self.stats;
        assert_eq!(stats.padding_bytes_written - stats.padding_bytes_cleared, padding);
        if self.read_only {
            // Chunks that were read before the snapshot are not in its counters.
            return;
        }
        let accounted = stats.chunks_read + stats.chunks_overwritten + not_done_with;
        let grown_after_reading = accounted.checked_sub(stats.chunks_written);
        assert!(
            grown_after_reading.is_some_and(|times| times <= stats.chunks_rewritten),
            "{accounted} chunks for {stats:?}"
        );
    }
}
