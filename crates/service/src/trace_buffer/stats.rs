//! Counters of a trace buffer. The service copies them into `TraceStats.BufferStats` and `TraceStats.WriterStats`; a field here has the meaning of
//! the field of the same name there.

use std::collections::HashMap;

use super::LossReasons;
use super::sequence::SequenceKey;
use crate::ids::{IdHasher, ProducerId, WriterId};

/// Counters of one buffer since it was made. Sizes are in bytes and include chunk headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Size of the buffer.
    pub buffer_size: u64,
    /// Written by producers.
    pub bytes_written: u64,
    /// Overwritten before they were read: lost.
    pub bytes_overwritten: u64,
    /// In chunks that were read to their end.
    pub bytes_read: u64,
    /// Made unusable when a larger chunk gave way to a smaller one.
    pub padding_bytes_written: u64,
    /// Bytes of this padding that were overwritten since.
    pub padding_bytes_cleared: u64,
    /// Chunks written.
    pub chunks_written: u64,
    /// Chunks that were committed again with more fragments and grew in place.
    pub chunks_rewritten: u64,
    /// Chunks that were committed again after their scraped copy had been read, and moved to the write cursor.
    pub chunks_relocated: u64,
    /// Chunks overwritten before they were read: lost.
    pub chunks_overwritten: u64,
    /// Chunks refused: the buffer discards when full, or they had been read already.
    pub chunks_discarded: u64,
    /// Chunks read to their end.
    pub chunks_read: u64,
    /// Chunks that arrived after a later one of their sequence.
    pub chunks_committed_out_of_order: u64,
    /// Times the write cursor went back to the start.
    pub write_wrap_count: u64,
    /// Patches applied.
    pub patches_succeeded: u64,
    /// Batches of patches that found no chunk or did not fit it.
    pub patches_failed: u64,
    /// Packets put together from several chunks.
    pub readaheads_succeeded: u64,
    /// Attempts to read ahead that found a fragment missing. A few are normal: the last packet of a sequence is often still being written.
    pub readaheads_failed: u64,
    /// Breaches of the shared memory ABI.
    pub abi_violations: u64,
    /// Times a trace writer reported that it had to drop packets.
    pub trace_writer_packet_loss: u64,
}

#[cfg(test)]
impl BufferStats {
    /// Bytes that cannot be written without losing something: unread chunks and padding. An estimate, because a
    /// scraped chunk that grows after it was read counts as read twice.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        (self.bytes_written + self.padding_bytes_written)
            .saturating_sub(self.bytes_read + self.bytes_overwritten + self.padding_bytes_cleared)
    }
}

/// How many chunks of which payload size a writer committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayloadHistogram {
    counts: [u64; Self::BUCKETS],
    sums: [i64; Self::BUCKETS],
}

impl PayloadHistogram {
    /// Upper bounds of the buckets, in bytes, inclusive (`chunk_payload_histogram_def`). One more bucket takes larger payloads.
    pub(crate) const BOUNDS: [i64; 10] = [8, 32, 128, 512, 1024, 2048, 4096, 8192, 12288, 16384];
    /// Number of buckets.
    pub(crate) const BUCKETS: usize = Self::BOUNDS.len() + 1;

    pub(super) fn add(&mut self, bytes: usize) {
        let bytes = bytes as i64;
        let bucket = Self::BOUNDS.partition_point(|&bound| bound < bytes);
        self.counts[bucket] += 1;
        self.sums[bucket] += bytes;
    }

    /// Number of chunks in each bucket (`chunk_payload_histogram_counts`).
    #[must_use]
    pub fn counts(&self) -> &[u64; Self::BUCKETS] {
        &self.counts
    }

    /// Sum of their payloads in each bucket, in bytes (`chunk_payload_histogram_sum`).
    #[must_use]
    pub(crate) fn sums(&self) -> &[i64; Self::BUCKETS] {
        &self.sums
    }
}

/// Writers whose histogram a buffer keeps. Histograms outlive their writer, so a producer that makes up writers
/// could otherwise grow them for ever; this is far more than the threads of a busy day and 13 MB at most.
const MAX_WRITERS: usize = 1 << 16;

/// Index of a writer's histogram.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterSlot(u32);

/// What stays of a writer when its sequence has been idle for so long that it was forgotten.
#[derive(Clone, Debug)]
struct Writer {
    key: SequenceKey,
    histogram: PayloadHistogram,
    /// The losses to be marked on its next packet.
    losses: LossReasons,
}

/// Histograms of every writer that committed to a buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct WriterStats {
    writers: Vec<Writer>,
    index: HashMap<SequenceKey, u32, IdHasher>,
}

impl WriterStats {
    /// The place of a writer's histogram, or `None` when there are too many already.
    pub(super) fn slot_for(&mut self, key: SequenceKey) -> Option<WriterSlot> {
        if let Some(&at) = self.index.get(&key) {
            return Some(WriterSlot(at));
        }
        if self.writers.len() == MAX_WRITERS {
            return None;
        }
        let at = self.writers.len() as u32;
        self.writers.push(Writer {
            key,
            histogram: PayloadHistogram::default(),
            losses: LossReasons::NONE,
        });
        self.index.insert(key, at);
        Some(WriterSlot(at))
    }

    /// Whether there is a histogram of this writer.
    pub(super) fn knows(&self, key: SequenceKey) -> bool {
        self.index.contains_key(&key)
    }

    pub(super) fn add(&mut self, slot: WriterSlot, bytes: usize) {
        self.writers[slot.0 as usize].histogram.add(bytes);
    }

    /// Keeps the losses of a writer whose sequence is forgotten.
    pub(super) fn keep_losses(&mut self, slot: WriterSlot, losses: LossReasons) {
        self.writers[slot.0 as usize].losses = losses;
    }

    /// Takes them, for the sequence that begins anew.
    pub(super) fn take_losses(&mut self, slot: WriterSlot) -> LossReasons {
        std::mem::take(&mut self.writers[slot.0 as usize].losses)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ProducerId, WriterId, &PayloadHistogram)> {
        let writers = self.writers.iter();
        writers.map(|writer| (writer.key.producer, writer.key.writer, &writer.histogram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_writers_have_a_histogram_and_keep_it() {
        let mut stats = WriterStats::default();
        let key = |number: usize| SequenceKey {
            producer: ProducerId(number as u32),
            writer: WriterId(1),
        };
        assert!((0..MAX_WRITERS).all(|number| stats.slot_for(key(number)).is_some()));
        assert!(stats.slot_for(key(MAX_WRITERS)).is_none());
        assert!(stats.slot_for(key(0)).is_some() && stats.knows(key(0)));
        assert!(!stats.knows(key(MAX_WRITERS)));
    }

    #[test]
    fn a_payload_lands_in_the_first_bucket_that_is_not_smaller() {
        let mut histogram = PayloadHistogram::default();
        for bytes in [0, 8, 9, 32, 16_384, 16_385, 65_535] {
            histogram.add(bytes);
        }
        assert_eq!(histogram.counts(), &[2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(histogram.sums(), &[8, 41, 0, 0, 0, 0, 0, 0, 0, 16_384, 81_920]);
    }
}
