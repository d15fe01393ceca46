//! Speed of the trace buffer and the packet validator. Chunks of 4 KiB in a buffer of 64 MiB, which is larger than
//! the caches, so that every write and every read goes to memory as it does in a long recording.
//!
//! Run with `cargo bench -p ferretto-service`; the throughput counts bytes of payload.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use ferretto_service::packet_validator::PacketValidator;
use ferretto_service::trace_buffer::{
    ChunkInfo, ChunkState, CopyOutcome, FillPolicy, ProducerIdentity, TraceBuffer,
};
use ferretto_service::{ChunkId, ProducerId, WriterId};
use ferretto_wire::put_padded_varint;

const BUFFER_SIZE: u64 = 64 << 20;
const CHUNK_PAYLOAD: usize = 4096 - 16;

/// Sizes of the packets in a chunk: a page of compact scheduler events, large and usual track events, tiny counters.
const PACKET_SIZES: [usize; 4] = [4000, 400, 100, 20];

/// The length in front of a packet: in four bytes as upstream's writers put it, or in two as ours do for packets of this size.
fn length(packet_size: usize) -> Vec<u8> {
    let mut length = vec![0; if packet_size == 400 { 2 } else { 4 }];
    put_padded_varint(&mut length, packet_size as u64);
    length
}

fn main() {
    divan::main();
}

/// The payload of a chunk, and how many packets are in it.
struct Payload {
    bytes: Vec<u8>,
    packets: u16,
}

impl Payload {
    /// As many packets of `packet_size` bytes as go into a chunk.
    fn of_packets(packet_size: usize) -> Self {
        let mut bytes = Vec::new();
        let mut packets = 0;
        while bytes.len() + 4 + packet_size <= CHUNK_PAYLOAD {
            bytes.extend(length(packet_size));
            // One length-delimited field, so that the packet is valid.
            let start = bytes.len() + 2;
            bytes.extend([0xa2, 0x38, 0, 0]);
            put_padded_varint(&mut bytes[start..], (packet_size - 4) as u64);
            bytes.extend(std::iter::repeat_n(7, packet_size - 4));
            packets += 1;
        }
        Self { bytes, packets }
    }

    /// The hundred chunks with which upstream measures its trace buffers (`src/tracing/service/trace_buffer_benchmark.cc`): 5 to
    /// 15 packets of 50 to 500 bytes, chosen by the generator `std::minstd_rand` from 42. Less than 3 KB on average, which
    /// upstream counts as 4 KB written.
    fn of_upstreams_benchmark() -> Vec<Self> {
        let mut state = 42u64;
        let mut random = |limit: u64| {
            state = state * 48_271 % ((1 << 31) - 1);
            (state % limit) as usize
        };
        let mut payloads = Vec::new();
        for _ in 0..100 {
            let mut payload = Self {
                bytes: Vec::new(),
                packets: 0,
            };
            for _ in 0..5 + random(11) {
                if payload.bytes.len() >= CHUNK_PAYLOAD - 50 {
                    break;
                }
                let size = (50 + random(451)).min(CHUNK_PAYLOAD - payload.bytes.len());
                let prefix = if size <= 0x80 { 1 } else { 2 };
                let body = size - prefix;
                let start = payload.bytes.len();
                payload.bytes.resize(start + prefix, 0);
                put_padded_varint(&mut payload.bytes[start..], body as u64);
                payload.bytes.extend(std::iter::repeat_n(7, body));
                payload.packets += 1;
            }
            payloads.push(payload);
        }
        payloads
    }
}

/// Commits chunk after chunk, with payloads and of writers each in turn.
struct Producers {
    payloads: Vec<Payload>,
    next_payload: usize,
    writers: Vec<ChunkInfo>,
    turn: usize,
}

impl Producers {
    fn new(payloads: Vec<Payload>, writers: u16) -> Self {
        let writers = (0..writers)
            .map(|index| ChunkInfo {
                producer: ProducerId(1 + u32::from(index) / 100),
                identity: ProducerIdentity::default(),
                writer: WriterId(1 + index % 100),
                chunk_id: ChunkId(0),
                num_fragments: 0,
                flags: 0,
                state: ChunkState::Complete,
            })
            .collect();
        Self {
            payloads,
            next_payload: 0,
            writers,
            turn: 0,
        }
    }

    fn of_packets(packet_size: usize, writers: u16) -> Self {
        Self::new(vec![Payload::of_packets(packet_size)], writers)
    }

    /// Bytes and packets in a buffer's worth of chunks, if all payloads are the same.
    fn in_a_buffer(&self) -> (u64, u64) {
        let chunks = BUFFER_SIZE / 4096;
        let payload = &self.payloads[0];
        (
            chunks * payload.bytes.len() as u64,
            chunks * u64::from(payload.packets),
        )
    }

    fn commit(&mut self, buffer: &mut TraceBuffer) {
        let payload = &self.payloads[self.next_payload];
        let info = &mut self.writers[self.turn];
        info.num_fragments = payload.packets;
        assert_eq!(
            buffer.copy_chunk(info, black_box(&payload.bytes)),
            CopyOutcome::Stored
        );
        info.chunk_id = info.chunk_id.next();
        self.turn = (self.turn + 1) % self.writers.len();
        self.next_payload = (self.next_payload + 1) % self.payloads.len();
    }

    fn fill(&mut self, buffer: &mut TraceBuffer) -> u64 {
        let chunks = BUFFER_SIZE / 4096;
        for _ in 0..chunks {
            self.commit(buffer);
        }
        chunks
    }
}

/// A buffer that has been written from end to end, so that its memory is there.
fn warm_buffer(producers: &mut Producers) -> TraceBuffer {
    let mut buffer =
        TraceBuffer::new(BUFFER_SIZE, FillPolicy::RingBuffer).expect("memory for a trace buffer");
    producers.fill(&mut buffer);
    buffer
}

fn drain(buffer: &mut TraceBuffer) -> (u64, u64) {
    let (mut packets, mut bytes) = (0, 0);
    buffer.begin_read();
    while let Some(packet) = buffer.read_next_packet() {
        packets += 1;
        for fragment in packet.fragments() {
            bytes += black_box(fragment).len() as u64;
        }
    }
    (packets, bytes)
}

/// The bound: copying the same chunks to where they would go.
#[divan::bench(sample_count = 20)]
fn copy_only(bencher: Bencher<'_, '_>) {
    let source = vec![7u8; CHUNK_PAYLOAD];
    let mut target = vec![1u8; BUFFER_SIZE as usize];
    bencher.counter(BytesCount::new(BUFFER_SIZE)).bench_local(|| {
        for chunk in target.chunks_exact_mut(4096) {
            chunk[16..].copy_from_slice(black_box(&source));
        }
        black_box(&target);
    });
}

/// Commits that overwrite unread chunks.
#[divan::bench(args = PACKET_SIZES, consts = [1, 1000], sample_count = 20)]
fn write_overwriting<const WRITERS: u16>(bencher: Bencher<'_, '_>, packet_size: usize) {
    let mut producers = Producers::of_packets(packet_size, WRITERS);
    let mut buffer = warm_buffer(&mut producers);
    let (bytes, _) = producers.in_a_buffer();
    bencher
        .counter(BytesCount::new(bytes))
        .bench_local(|| producers.fill(&mut buffer));
}

/// Making a clone of a full buffer, and giving it up. `BytesCount` is the buffer's size.
#[divan::bench(consts = [1, 1000])]
fn clone_read_only<const WRITERS: u16>(bencher: Bencher<'_, '_>) {
    let mut producers = Producers::of_packets(100, WRITERS);
    let mut buffer = warm_buffer(&mut producers);
    bencher
        .counter(BytesCount::new(BUFFER_SIZE))
        .bench_local(|| drop(black_box(buffer.clone_read_only())));
}

/// Commits that overwrite a whole buffer that has just been cloned.
#[divan::bench(args = PACKET_SIZES, sample_count = 20)]
fn write_over_what_a_clone_has(bencher: Bencher<'_, '_>, packet_size: usize) {
    let mut producers = Producers::of_packets(packet_size, 1);
    let mut buffer = warm_buffer(&mut producers);
    let mut clone = None;
    let (bytes, _) = producers.in_a_buffer();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        clone = buffer.clone_read_only().ok();
        producers.fill(&mut buffer)
    });
}

/// Reading a clone of a full buffer.
#[divan::bench(args = PACKET_SIZES, sample_count = 20)]
fn read_clone(bencher: Bencher<'_, '_>, packet_size: usize) {
    let mut producers = Producers::of_packets(packet_size, 1);
    let mut buffer = warm_buffer(&mut producers);
    let (bytes, _) = producers.in_a_buffer();
    bencher
        .counter(BytesCount::new(bytes))
        .with_inputs(|| buffer.clone_read_only().expect("memory for a clone"))
        .bench_local_values(|mut clone| drain(&mut clone));
}

/// Reading a full buffer, every fragment handed out once.
#[divan::bench(args = PACKET_SIZES, consts = [1, 1000], sample_count = 20)]
fn read<const WRITERS: u16>(bencher: Bencher<'_, '_>, packet_size: usize) {
    let mut producers = Producers::of_packets(packet_size, WRITERS);
    let buffer = std::cell::RefCell::new(warm_buffer(&mut producers));
    let (bytes, packets) = producers.in_a_buffer();
    let producers = std::cell::RefCell::new(producers);
    bencher
        .counter(BytesCount::new(bytes))
        .counter(ItemsCount::new(packets))
        .with_inputs(|| producers.borrow_mut().fill(&mut buffer.borrow_mut()))
        .bench_local_values(|_| {
            let (read, _) = drain(&mut buffer.borrow_mut());
            assert!(read >= packets - 64, "{read} of {packets}");
        });
}

/// Both together, a megabyte at a time, as `write_into_file` uses a buffer.
#[divan::bench(args = PACKET_SIZES, sample_count = 20)]
fn write_and_read_in_batches(bencher: Bencher<'_, '_>, packet_size: usize) {
    let mut producers = Producers::of_packets(packet_size, 10);
    let mut buffer = warm_buffer(&mut producers);
    drain(&mut buffer);
    let (bytes, _) = producers.in_a_buffer();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        for _ in 0..BUFFER_SIZE >> 20 {
            for _ in 0..(1 << 20) / 4096 {
                producers.commit(&mut buffer);
            }
            drain(&mut buffer);
        }
    });
}

/// The same work as upstream's `BM_TraceBuffer_WR_SingleWriter` and `_MultipleWriters`, counted as they count.
#[divan::bench(consts = [1, 1000], sample_count = 20)]
fn write_as_upstreams_benchmark<const WRITERS: u16>(bencher: Bencher<'_, '_>) {
    let mut producers = Producers::new(Payload::of_upstreams_benchmark(), WRITERS);
    let mut buffer = warm_buffer(&mut producers);
    bencher
        .counter(BytesCount::new(BUFFER_SIZE))
        .bench_local(|| producers.fill(&mut buffer));
}

/// The same work as upstream's `BM_TraceBuffer_RD`: a buffer of 128 MiB, filled anew each time.
#[divan::bench(sample_count = 20)]
fn read_as_upstreams_benchmark(bencher: Bencher<'_, '_>) {
    let fill = || {
        let mut producers = Producers::new(Payload::of_upstreams_benchmark(), 1);
        let mut buffer =
            TraceBuffer::new(2 * BUFFER_SIZE, FillPolicy::RingBuffer).expect("memory for a trace buffer");
        for _ in 0..2 {
            producers.fill(&mut buffer);
        }
        buffer
    };
    let (_, bytes) = drain(&mut fill());
    bencher
        .counter(BytesCount::new(bytes))
        .with_inputs(fill)
        .bench_local_values(|mut buffer| drain(&mut buffer));
}

/// A track event as the SDK writes it: timestamp, flags, the event, interned data.
fn typical_packet() -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(b"\x40\xd0\xa5\xf3\x8a\x9e\x07"); // timestamp
    packet.extend(b"\x68\x02"); // sequence_flags
    packet.extend(b"\x5a\x14"); // track_event, 20 bytes
    packet.extend([0; 20]);
    packet.extend(b"\x62\x0a"); // interned_data, 10 bytes
    packet.extend([0; 10]);
    packet
}

#[divan::bench]
fn validate_packet(bencher: Bencher<'_, '_>) {
    let packet = typical_packet();
    bencher
        .counter(ItemsCount::new(1u64))
        .bench_local(|| PacketValidator::check([black_box(&packet[..])]));
}

#[divan::bench]
fn validate_packet_in_two_fragments(bencher: Bencher<'_, '_>) {
    let packet = typical_packet();
    let (head, tail) = packet.split_at(12);
    bencher
        .counter(ItemsCount::new(1u64))
        .bench_local(|| PacketValidator::check([black_box(head), black_box(tail)]));
}

/// The same work as upstream's `BM_PacketStreamValidator`: ten bundles of scheduler events, in fragments of 512 bytes.
#[divan::bench]
fn validate_as_upstreams_benchmark(bencher: Bencher<'_, '_>) {
    let mut bundle = b"\x0a\xc2\x9e\x80\x00".to_vec();
    bundle.extend([7; 0x0f42]);
    let packets: Vec<&[u8]> = (0..10).flat_map(|_| bundle.chunks(512)).collect();
    bencher.counter(ItemsCount::new(10u64)).bench_local(|| {
        let checked = PacketValidator::check(black_box(&packets).iter().copied());
        assert_eq!(checked, Ok(()));
    });
}
