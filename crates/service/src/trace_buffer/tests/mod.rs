//! Tests of the trace buffer: cases by theme, a property test against a naive model, and arbitrary bytes.
//!
//! The cases cover the expectations of upstream's unit tests of `trace_buffer_v2`, and where we go further.

mod fuzzing;
mod hostile;
mod losses;
mod model;
mod overwriting;
mod patching;
mod protovms;
mod reading;
mod recommits;
mod snapshots;

use super::*;
use crate::split_mix;
use ferretto_wire::put_padded_varint;
use record::Record;

/// A chunk under construction. Fragments are named by a letter that fills them and their size in the chunk,
/// length prefix included.
#[derive(Clone)]
struct TestChunk {
    info: ChunkInfo,
    payload: Vec<u8>,
}

fn chunk(producer: u32, writer: u16, id: u32) -> TestChunk {
    let info = ChunkInfo {
        producer: ProducerId(producer),
        identity: ProducerIdentity {
            uid: 1000 + producer,
            pid: Some(7),
            machine: MachineId(0),
        },
        writer: WriterId(writer),
        chunk_id: ChunkId(id),
        num_fragments: 0,
        flags: 0,
        state: ChunkState::Complete,
    };
    TestChunk {
        info,
        payload: Vec::new(),
    }
}

impl TestChunk {
    fn fragment(mut self, letter: char, size: usize) -> Self {
        let prefix = if size <= 128 { 1 } else { 2 };
        let body = size - prefix;
        let start = self.payload.len();
        self.payload.resize(start + prefix, 0);
        put_padded_varint(&mut self.payload[start..], body as u64);
        self.payload.extend(std::iter::repeat_n(letter as u8, body));
        self.info.num_fragments += 1;
        self
    }

    fn whole(self, letter: char, size: usize) -> Self {
        self.fragment(letter, size)
    }

    fn begin(self, letter: char, size: usize) -> Self {
        self.fragment(letter, size).flag(2)
    }

    fn end(self, letter: char, size: usize) -> Self {
        assert_eq!(
            self.info.num_fragments, 0,
            "only the first fragment ends a packet of another chunk"
        );
        self.fragment(letter, size).flag(1)
    }

    fn middle(self, letter: char, size: usize) -> Self {
        self.end(letter, size).flag(2)
    }

    fn needs_patching(self) -> Self {
        self.flag(4)
    }

    fn flag(mut self, flag: u8) -> Self {
        self.info.flags |= flag;
        self
    }

    /// Bytes as they are, counted as one fragment.
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.payload.extend(bytes);
        self.info.num_fragments += 1;
        self
    }

    /// Zeroes up to the size that the chunk has in shared memory, header included.
    fn padded_to(mut self, size: usize) -> Self {
        self.payload.resize(size - 16, 0);
        self
    }

    fn uid(mut self, uid: u32) -> Self {
        self.info.identity.uid = uid;
        self
    }
}

const DROP_MARKER: [u8; 4] = [0xff, 0xff, 0xff, 0x7f];

/// A trace buffer and short ways to use it.
struct Fixture(TraceBuffer);

fn ring(size: u64) -> Fixture {
    Fixture(TraceBuffer::new(size, FillPolicy::RingBuffer).unwrap())
}

fn streamed_ring(size: u64) -> Fixture {
    Fixture(TraceBuffer::new(size, FillPolicy::StreamedRing).unwrap())
}

fn discard(size: u64) -> Fixture {
    Fixture(TraceBuffer::new(size, FillPolicy::Discard).unwrap())
}

fn discard_at_end(size: u64) -> Fixture {
    Fixture(TraceBuffer::new(size, FillPolicy::DiscardAtEnd).unwrap())
}

impl Fixture {
    fn try_commit(&mut self, chunk: &TestChunk) -> CopyOutcome {
        let outcome = self.0.copy_chunk(&chunk.info, &chunk.payload);
        self.0.check_invariants();
        outcome
    }

    #[track_caller]
    fn commit(&mut self, chunk: TestChunk) {
        assert_eq!(self.try_commit(&chunk), CopyOutcome::Stored);
    }

    #[track_caller]
    fn scrape(&mut self, mut chunk: TestChunk) {
        chunk.info.state = ChunkState::Incomplete;
        self.commit(chunk);
    }

    fn patch(
        &mut self,
        (producer, writer, id): (u32, u16, u32),
        offset: u32,
        data: &[u8; 4],
        more: MorePatches,
    ) -> bool {
        let patch = Patch { offset, data: *data };
        self.0.apply_patches(
            ProducerId(producer),
            WriterId(writer),
            ChunkId(id),
            &[patch],
            more,
        )
    }

    /// The next packet. `a10+b20` has two fragments, which took 10 and 20 bytes. After a loss, ` !` and the reasons
    /// follow.
    fn next(&mut self) -> Option<String> {
        let packet = self.0.read_next_packet()?;
        let fragments: Vec<String> = packet
            .fragments()
            .map(|bytes| {
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "mixed up: {bytes:?}");
                let prefix = if bytes.len() < 128 { 1 } else { 2 };
                format!("{}{}", bytes[0] as char, bytes.len() + prefix)
            })
            .collect();
        let losses = if packet.losses.any() {
            format!(" !{:?}", packet.losses)
        } else {
            String::new()
        };
        Some(fragments.join("+") + &losses)
    }

    /// All packets of one read cycle.
    fn read(&mut self) -> Vec<String> {
        self.0.begin_read();
        let packets = std::iter::from_fn(|| self.next()).collect();
        self.0.check_invariants();
        packets
    }

    /// The first `count` packets of a new read cycle.
    fn read_some(&mut self, count: usize) -> Vec<String> {
        self.0.begin_read();
        std::iter::from_fn(|| self.next()).take(count).collect()
    }

    fn stats(&self) -> BufferStats {
        *self.0.stats()
    }

    fn room_to_end(&self) -> u32 {
        self.0.ring.capacity() - self.0.write_at
    }
}

const NOTHING: [&str; 0] = [];

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        split_mix::next(&mut self.0)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }
}

/// An environment variable as a number.
fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is no number"))
    })
}
