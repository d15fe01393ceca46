//! Trace writers against a strict reader on the service's side of the shared memory.

use super::*;
use crate::arbiter::{CreateWriterError, EMULATED_SMB_SIZE, Notify, Partitioning, Request, Wake};
use ferretto_proto::messages::CommitDataRequest;
use ferretto_smb::{
    ChunkHeader, Completeness, PageHeader, PageLayout, PageSize, ProducerSmb, ServiceSmb, SharedMemory,
};
use ferretto_wire::{Cursor, Reader, Value, Writer, decode_varint};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

mod partitioning;
mod stalls;
mod taking_back;

const TARGET: BufferId = BufferId(4);
const PREVIOUS_PACKET_DROPPED: u32 = 42;
const FIRST_PACKET_ON_SEQUENCE: u32 = 87;

/// Passes wake-ups on, for the tests to look at.
struct Channel(Mutex<Sender<Wake>>);

impl Notify for Channel {
    fn wake(&self, wake: Wake) {
        // The test may be over.
        let _ = self.0.lock().unwrap().send(wake);
    }
}

struct Silent;

impl Notify for Silent {
    fn wake(&self, _: Wake) {}
}

/// The packets of one writer that have arrived.
#[derive(Debug, Default)]
struct Sequence {
    next_chunk: u32,
    packets: Vec<Vec<u8>>,
    /// The fragments so far of a packet that goes on in the next chunk.
    partial: Option<Vec<u8>>,
    /// Packets that the writer gave up.
    dropped: usize,
}

impl Sequence {
    /// Reads a chunk as strictly as the format can be read: upstream's readers are not stricter.
    fn read(&mut self, header: ChunkHeader, payload: &[u8]) {
        assert_eq!(
            header.chunk.0, self.next_chunk,
            "chunks of a writer come in order"
        );
        self.next_chunk += 1;
        let continued = header.flags.contains(ChunkFlags::FIRST_CONTINUES);
        assert_eq!(
            continued,
            self.partial.is_some(),
            "a packet that goes on is continued, and no other"
        );
        assert!(!header.flags.contains(ChunkFlags::NEEDS_PATCHING));
        for (index, packet) in packets(header.packet_count, payload).into_iter().enumerate() {
            let Packet::Bytes(bytes) = packet else {
                self.partial = None;
                self.dropped += 1;
                continue;
            };
            let mut whole = if index == 0 {
                self.partial.take().unwrap_or_default()
            } else {
                Vec::new()
            };
            whole.extend(bytes);
            let last = index + 1 == usize::from(header.packet_count);
            if last && header.flags.contains(ChunkFlags::LAST_CONTINUES) {
                self.partial = Some(whole);
            } else if !whole.is_empty() {
                self.packets.push(whole);
            }
        }
    }
}

enum Packet<'a> {
    Bytes(&'a [u8]),
    Dropped,
}

fn packets(count: u16, mut payload: &[u8]) -> Vec<Packet<'_>> {
    let mut packets = Vec::new();
    for _ in 0..count {
        let (size, size_len) = decode_varint(payload).unwrap();
        assert!(
            size_len <= 4,
            "upstream's first trace buffer reads no longer sizes"
        );
        if size == DROPPED_PACKET_SIZE.into() {
            packets.push(Packet::Dropped);
            assert_eq!(
                packets.len(),
                usize::from(count),
                "what follows a dropped packet is never read"
            );
            break;
        }
        let (packet, rest) = payload[size_len..].split_at(size as usize);
        packets.push(Packet::Bytes(packet));
        payload = rest;
    }
    packets
}

/// The service's end: carries out the endpoint's requests.
struct Service {
    smb: ServiceSmb,
    arbiter: Arc<Arbiter>,
    registered: BTreeMap<WriterId, BufferId>,
    sequences: BTreeMap<WriterId, Sequence>,
    flushed: Vec<u64>,
    payload: Vec<u8>,
}

impl Service {
    fn new(
        pages: usize,
        page_size: usize,
        partitioning: impl Into<Partitioning>,
        notify: impl Notify + 'static,
    ) -> Self {
        let memory = Arc::new(SharedMemory::create(pages * page_size).unwrap());
        let page_size = PageSize::new(page_size).unwrap();
        let producer = ProducerSmb::new(memory.clone(), page_size).unwrap();
        Self::over(memory, page_size, Arbiter::new(producer, partitioning, notify))
    }

    fn over(memory: Arc<SharedMemory>, page_size: PageSize, arbiter: Arc<Arbiter>) -> Self {
        Self {
            smb: ServiceSmb::new(memory, page_size).unwrap(),
            arbiter,
            registered: BTreeMap::new(),
            sequences: BTreeMap::new(),
            flushed: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// One that shares no memory with its producer.
    fn far_away(page_size: usize, layout: PageLayout) -> Self {
        let nothing = Arc::new(SharedMemory::create(page_size).unwrap());
        let page_size = PageSize::new(page_size).unwrap();
        let arbiter = Arbiter::emulating(page_size, layout, Silent).unwrap();
        Self::over(nothing, page_size, arbiter)
    }

    fn writer(&self, policy: BufferExhaustedPolicy) -> TraceWriter {
        self.arbiter.create_trace_writer(TARGET, policy).unwrap()
    }

    fn serve(&mut self) {
        for request in self.arbiter.take_requests() {
            match request {
                Request::RegisterTraceWriter(writer, target) => {
                    assert_eq!(self.registered.insert(writer, target), None);
                }
                Request::UnregisterTraceWriter(writer) => assert!(self.registered.remove(&writer).is_some()),
                Request::CommitData(commit) => self.commit(commit),
            }
        }
    }

    fn commit(&mut self, commit: CommitDataRequest) {
        assert!(commit.chunks_to_patch.is_empty());
        for chunk in commit.chunks_to_move {
            let (page, index) = (chunk.page.unwrap() as usize, chunk.chunk.unwrap() as usize);
            let header = match &chunk.data {
                None => self.smb.copy_chunk(page, index, &mut self.payload).unwrap(),
                Some(data) => {
                    let (header, payload) = ChunkHeader::split(data).unwrap();
                    self.payload = payload.to_vec();
                    header
                }
            };
            let target = BufferId(chunk.target_buffer.unwrap() as u16);
            assert_eq!(
                self.registered.get(&header.writer),
                Some(&target),
                "chunks come from registered writers"
            );
            self.sequences
                .entry(header.writer)
                .or_default()
                .read(header, &self.payload);
        }
        self.flushed.extend(commit.flush_request_id);
    }

    /// The packets that arrived from `writer`, without the fields that the writer put in front.
    fn packets(&self, writer: WriterId) -> Vec<Received> {
        self.sequences[&writer]
            .packets
            .iter()
            .map(|packet| Received::new(packet))
            .collect()
    }

    fn all_pages_are_free(&self) -> bool {
        (0..self.smb.page_count()).all(|page| self.smb.page_header(page) == Some(PageHeader::FREE))
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Received {
    packet: Vec<u8>,
    first: bool,
    dropped: Option<u64>,
}

impl Received {
    fn new(bytes: &[u8]) -> Self {
        let mut reader = Reader::new(bytes);
        let (mut first, mut dropped) = (false, None);
        let mut rest = bytes;
        while let Some(Ok(field)) = reader.next() {
            match (field.number, field.value) {
                (PREVIOUS_PACKET_DROPPED, Value::Varint(reason)) => dropped = Some(reason),
                (FIRST_PACKET_ON_SEQUENCE, Value::Varint(1)) => first = true,
                _ => break,
            }
            rest = reader.remaining();
        }
        Self {
            packet: rest.to_vec(),
            first,
            dropped,
        }
    }
}

/// A packet of about `len` bytes that tells its place in its sequence.
fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.varint_field(1, number as u64);
    if len > 0 {
        let filler: Vec<u8> = (0..len).map(|index| (index ^ number) as u8).collect();
        writer.bytes_field(2, &filler);
    }
    writer.as_slice().to_vec()
}

fn number(packet: &[u8]) -> usize {
    Reader::new(packet)
        .next()
        .unwrap()
        .unwrap()
        .value
        .as_varint()
        .unwrap() as usize
}

fn layouts() -> impl Strategy<Value = PageLayout> {
    prop::sample::select(&PageLayout::ALL[..])
}

fn page_sizes() -> impl Strategy<Value = usize> {
    prop::sample::select(&[4096usize, 8192, 16384, 32768, 65536][..])
}

fn packet_len() -> impl Strategy<Value = usize> {
    prop_oneof![20 => 0usize..40, 10 => 0usize..600, 4 => 100usize..9_000, 1 => 0usize..1_000_000]
}

/// The ways into a chunk: a packet must look the same whichever it took.
#[derive(Clone, Copy, Debug)]
enum Way {
    Copied,
    Encoded,
    Short,
    Prepared,
}

/// Bytes that are put eight at a time. Any bytes can be a front.
struct Fronts<'a>(&'a [u8]);

impl ShortMessage for Fronts<'_> {
    fn put<'w>(self, cursor: Cursor<'w>) -> Option<Cursor<'w>> {
        self.0.chunks(8).try_fold(cursor, |cursor, part| {
            let mut bytes = [0xee; 8];
            bytes[..part.len()].copy_from_slice(part);
            cursor.front_of(&bytes, part.len())
        })
    }
}

impl Way {
    fn any() -> impl Strategy<Value = Way> {
        prop::sample::select(&[Way::Copied, Way::Encoded, Way::Short, Way::Prepared][..])
    }

    fn write(self, writer: &mut TraceWriter, packet: &[u8]) {
        match self {
            Way::Copied => writer.write_packet(packet),
            Way::Encoded => writer.packet(|encoder| packet.chunks(7).for_each(|part| encoder.raw(part))),
            Way::Short => {
                if !writer.write_short(Fronts(packet)) {
                    writer.write_packet(packet);
                }
            }
            Way::Prepared => {
                // Any last byte below 0x80 can be written as a varint.
                let prepared = packet
                    .split_last()
                    .filter(|(end, _)| **end < 0x80)
                    .and_then(|(end, front)| Some((PreparedPacket::new(front)?, u32::from(*end))));
                let written = prepared.is_some_and(|(prepared, end)| writer.write_prepared(&prepared, end));
                if !written {
                    writer.write_packet(packet);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn packets_arrive_whole_and_in_order(
        lens in prop::collection::vec((0usize..3, packet_len(), any::<bool>(), Way::any()), 1..60),
        page_size in page_sizes(),
        layout in layouts(),
    ) {
        // The memory has room for all packets, so no packet has to be dropped.
        let bytes: usize = lens.iter().map(|(_, len, _, _)| len + 2 * 65536 / layout.chunks() + 64).sum();
        let mut service = Service::new(bytes.div_ceil(page_size) + 4, page_size, layout, Silent);
        let mut writers: Vec<_> = (0..3).map(|_| service.writer(BufferExhaustedPolicy::Drop)).collect();
        let mut written = vec![Vec::new(); 3];
        for (number, (writer, len, flush, way)) in lens.iter().enumerate() {
            let packet = packet(number, *len);
            way.write(&mut writers[*writer], &packet);
            written[*writer].push(packet);
            if *flush && number % 7 == 0 {
                writers[*writer].flush();
                service.serve();
            }
        }
        let ids: Vec<_> = writers.iter().map(TraceWriter::id).collect();
        prop_assert!(writers.iter().all(|writer| writer.losses() == 0));
        drop(writers);
        service.serve();
        for (id, written) in ids.into_iter().zip(written).filter(|(_, written)| !written.is_empty()) {
            let expected: Vec<_> = written
                .into_iter()
                .enumerate()
                .map(|(index, packet)| Received { packet, first: index == 0, dropped: None })
                .collect();
            prop_assert_eq!(service.packets(id), expected);
        }
        prop_assert!(service.registered.is_empty());
        prop_assert!(service.all_pages_are_free());
    }

    #[test]
    fn packets_are_dropped_whole_and_the_next_one_says_so(
        steps in prop::collection::vec((packet_len(), 0u8..10, Way::any()), 1..150),
        pages in 1usize..6,
        layout in layouts(),
    ) {
        let mut service = Service::new(pages, 4096, layout, Silent);
        let mut writer = service.writer(BufferExhaustedPolicy::Drop);
        let id = writer.id();
        let mut lens = Vec::new();
        for (len, serve, way) in steps {
            way.write(&mut writer, &packet(lens.len(), len));
            lens.push(len);
            if serve == 0 {
                service.serve();
            }
        }
        // After the service has read everything there is room, and the last loss is marked.
        service.serve();
        writer.flush();
        service.serve();
        writer.write_packet(&packet(lens.len(), 1));
        lens.push(1);
        let losses = writer.losses();
        drop(writer);
        service.serve();

        let mut next = 0;
        let mut marked = 0;
        for received in service.packets(id) {
            let number = number(&received.packet);
            prop_assert_eq!(&received.packet, &packet(number, lens[number]), "packets arrive whole");
            prop_assert!(number >= next, "packets arrive in order");
            let lost = number > next;
            prop_assert_eq!(received.dropped, lost.then_some(257), "a loss shows, nothing else does");
            prop_assert_eq!(received.first, number == 0);
            marked += u64::from(lost);
            next = number + 1;
        }
        prop_assert_eq!(next, lens.len());
        prop_assert_eq!(marked, losses);
        let sequence = &service.sequences[&id];
        prop_assert!(sequence.dropped <= lens.len() - sequence.packets.len(), "the service counts no loss twice");
        prop_assert!(service.all_pages_are_free());
    }
}

#[test]
fn an_encoder_that_is_kept_beyond_its_packet_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "FERRETTO_TEST_KEEPS_THE_ENCODER";
    if std::env::var_os(CHILD).is_some() {
        let service = Service::new(4, 4096, PageLayout::Div1, Silent);
        let mut writer = service.writer(BufferExhaustedPolicy::Drop);
        writer.packet(|encoder| encoder.raw(&packet(0, 10)));
        let mut kept = writer.packet(std::mem::take);
        drop((writer, service));
        // This writes into memory that is gone.
        kept.raw(&packet(1, 10));
        return;
    }
    let name = "trace_writer::tests::an_encoder_that_is_kept_beyond_its_packet_ends_the_process";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(6), "SIGABRT: {child:?}");
}

#[test]
fn a_packet_whose_encoding_panics_is_not_written() {
    let mut service = Service::new(4, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    let id = writer.id();
    writer.packet(|encoder| encoder.raw(&packet(0, 10)));
    for len in [10, 10_000] {
        let unfinished = std::panic::AssertUnwindSafe(|| {
            writer.packet(|encoder| {
                encoder.raw(&packet(1, len));
                panic!("for this test");
            })
        });
        std::panic::catch_unwind(unfinished).unwrap_err();
    }
    writer.packet(|encoder| encoder.raw(&packet(2, 10)));
    drop(writer);
    service.serve();
    let numbers: Vec<_> = service
        .packets(id)
        .iter()
        .map(|received| number(&received.packet))
        .collect();
    assert_eq!(numbers, [0, 2]);
}

#[test]
fn a_packet_larger_than_the_buffer_is_dropped_whole() {
    let mut service = Service::new(4, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    writer.write_packet(&packet(0, 10));
    writer.write_packet(&packet(1, 20_000));
    service.serve();
    assert!(service.all_pages_are_free(), "no chunk was spent on it");
    assert_eq!(writer.losses(), 1);
    writer.write_packet(&packet(2, 10));
    writer.flush();
    service.serve();
    let received = service.packets(writer.id());
    assert_eq!(received.len(), 2);
    assert_eq!((number(&received[1].packet), received[1].dropped), (2, Some(257)));
    assert_eq!(
        service.sequences[&writer.id()].dropped,
        1,
        "the service can count the loss"
    );
}

#[test]
fn a_full_buffer_costs_one_loss_however_many_packets_it_drops() {
    let mut service = Service::new(1, 4096, PageLayout::Div2, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    (0..100).for_each(|number| writer.write_packet(&packet(number, 200)));
    assert_eq!(writer.losses(), 1);
    service.serve();
    (100..200).for_each(|number| writer.write_packet(&packet(number, 200)));
    assert_eq!(writer.losses(), 2);
}

#[test]
fn a_loss_before_the_first_packet_takes_its_mark_away() {
    let mut service = Service::new(1, 4096, PageLayout::Div1, Silent);
    let mut other = service.writer(BufferExhaustedPolicy::Drop);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    other.write_packet(&packet(0, 10));
    writer.write_packet(&packet(0, 10));
    other.flush();
    service.serve();
    writer.write_packet(&packet(1, 10));
    writer.flush();
    service.serve();
    let expected = Received {
        packet: packet(1, 10),
        first: false,
        dropped: Some(257),
    };
    assert_eq!(service.packets(writer.id()), [expected]);
}

#[test]
fn finished_packets_can_be_scraped_from_a_chunk_in_use() {
    let service = Service::new(1, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    for count in 1..20 {
        writer.write_packet(&packet(count, 30));
        let mut scraped = Vec::new();
        service.smb.scrape(|chunk| {
            assert_eq!(chunk.completeness(), Completeness::BeingWritten);
            let mut payload = Vec::new();
            chunk.copy_payload(&mut payload);
            // The count includes the packet that the writer would begin next.
            for packet in packets(chunk.header().packet_count - 1, &payload) {
                let Packet::Bytes(bytes) = packet else {
                    panic!("nothing was dropped")
                };
                scraped.push(number(&Received::new(bytes).packet));
            }
        });
        assert_eq!(scraped, (1..=count).collect::<Vec<_>>());
    }
}

#[test]
fn a_chunk_counts_no_more_packets_than_its_header_can() {
    let mut service = Service::new(2, 65536, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    (0..1500).for_each(|number| writer.write_packet(&packet(number, 0)));
    writer.flush();
    service.serve();
    let sequence = &service.sequences[&writer.id()];
    assert_eq!((sequence.packets.len(), sequence.next_chunk), (1500, 2));
}

#[test]
fn the_endpoint_is_woken_at_the_end_of_the_batch_or_when_half_the_buffer_waits() {
    let (sender, wakes) = channel();
    let mut service = Service::new(8, 4096, PageLayout::Div1, Channel(Mutex::new(sender)));
    let batch = Duration::from_millis(70);
    service.arbiter.set_batch_duration(batch);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    service.serve();
    assert_eq!(
        wakes.try_iter().collect::<Vec<_>>(),
        [Wake::Now],
        "writers are registered at once"
    );
    // Each packet fills a chunk. The next packet completes this chunk.
    let mut fill = |chunks: usize| (0..chunks).for_each(|_| writer.write_packet(&packet(0, 4_000)));
    fill(2);
    assert_eq!(wakes.try_iter().collect::<Vec<_>>(), [Wake::Within(batch)]);
    fill(2);
    assert_eq!(wakes.try_iter().count(), 0, "the batch goes on");
    fill(2);
    assert_eq!(
        wakes.try_iter().collect::<Vec<_>>(),
        [Wake::HalfFull],
        "half of the buffer"
    );
    service.serve();
    fill(1);
    assert_eq!(
        wakes.try_iter().collect::<Vec<_>>(),
        [Wake::Within(batch)],
        "a new batch begins"
    );
}

#[test]
fn an_endpoint_that_was_woken_for_a_chunk_is_woken_again_when_half_the_buffer_waits() {
    let (sender, wakes) = channel();
    let service = Service::new(8, 4096, PageLayout::Div1, Channel(Mutex::new(sender)));
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    // The endpoint may be busy until then, for example with draining the kernel's buffers.
    (0..7).for_each(|_| writer.write_packet(&packet(0, 4_000)));
    assert_eq!(wakes.try_iter().collect::<Vec<_>>(), [Wake::Now, Wake::HalfFull]);
}

#[test]
fn flushes_are_acknowledged_with_the_data_and_the_latest_counts() {
    let mut service = Service::new(4, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    writer.write_packet(&packet(0, 10));
    writer.flush();
    service.arbiter.acknowledge_flush(7);
    service.arbiter.acknowledge_flush(5);
    service.serve();
    assert_eq!(service.flushed, [7]);
    assert_eq!(service.packets(writer.id()).len(), 1);
    service.arbiter.acknowledge_flush(8);
    service.serve();
    assert_eq!(service.flushed, [7, 8], "without data too");
    service.serve();
    assert_eq!(service.flushed, [7, 8], "once");
}

#[test]
fn written_bytes_are_counted_and_not_the_room_for_them() {
    let mut service = Service::new(4, 4096, PageLayout::Div1, Silent);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    for number in 0..100 {
        writer.write_packet(&packet(number, 10));
        writer.flush();
        service.serve();
    }
    assert!((1000..2000).contains(&writer.returned()), "{}", writer.returned());
}

#[test]
fn an_id_is_free_again_only_after_its_end_was_sent() {
    let service = Service::new(1, 4096, PageLayout::Div1, Silent);
    // A writer that never had a chunk is unknown to the service, so it is not unregistered either.
    drop(service.writer(BufferExhaustedPolicy::Drop));
    assert_eq!(service.arbiter.take_requests(), []);
    let writer = service.writer(BufferExhaustedPolicy::Drop);
    let id = writer.id();
    assert_eq!(
        service.arbiter.take_requests(),
        [Request::RegisterTraceWriter(id, TARGET)]
    );
    drop(writer);
    assert_eq!(
        service.arbiter.take_requests(),
        [Request::UnregisterTraceWriter(id)]
    );
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    writer.write_packet(b"packet");
    let id = writer.id();
    drop(writer);
    let requests = service.arbiter.take_requests();
    assert_eq!(requests.first(), Some(&Request::RegisterTraceWriter(id, TARGET)));
    assert_eq!(requests.last(), Some(&Request::UnregisterTraceWriter(id)));
    assert_eq!(service.arbiter.take_requests(), []);
    assert_ne!(
        service.writer(BufferExhaustedPolicy::Drop).id(),
        id,
        "ids go round"
    );
}

#[test]
fn where_memory_cannot_be_shared_packets_arrive_with_the_commits_and_leave_it_free() {
    for (page_size, layout) in [(4096, PageLayout::Div1), (32_768, PageLayout::Div14)] {
        let mut service = Service::far_away(page_size, layout);
        let mut writer = service.writer(BufferExhaustedPolicy::Drop);
        let (id, packets) = (writer.id(), 5 * EMULATED_SMB_SIZE / 10_000);
        for number in 0..packets {
            writer.write_packet(&packet(number, 10_000));
            if number % 20 == 0 {
                service.serve();
            }
        }
        assert_eq!(writer.losses(), 0);
        drop(writer);
        service.serve();
        let received = service.packets(id);
        let whole = received
            .iter()
            .enumerate()
            .all(|(number, received)| received.packet == packet(number, 10_000));
        assert!(received.len() == packets && whole);
    }
}

#[test]
fn emulated_memory_fills_up_when_no_requests_are_taken() {
    let mut service = Service::far_away(4096, PageLayout::Div1);
    let mut writer = service.writer(BufferExhaustedPolicy::Drop);
    for number in 0..2 * EMULATED_SMB_SIZE / 10_000 {
        writer.write_packet(&packet(number, 10_000));
    }
    assert!(writer.losses() > 0, "it has grown");
    service.serve();
    writer.write_packet(&packet(0, 10_000));
    let id = writer.id();
    drop(writer);
    service.serve();
    assert_eq!(
        service.packets(id).last().map(|last| last.packet.clone()),
        Some(packet(0, 10_000))
    );
}
