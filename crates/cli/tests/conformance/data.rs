//! Data: producers commit chunks, and the packets that are read and the counters are compared.

mod conversations;

use std::collections::{BTreeMap, BTreeSet};

use ferretto_client::producer::CommitReply;
use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::messages::trace_config::buffer_config::{ExperimentalMode, FillPolicy};
use ferretto_proto::messages::trace_packet::OptionalTrustedPacketSequenceId::TrustedPacketSequenceId;
use ferretto_proto::messages::{
    CommitDataRequest, DataSourceDescriptor, Message, TraceConfig, TracePacket, TraceStats,
    commit_data_request,
};
use ferretto_proto::write;
use ferretto_wire::{Reader, Writer};

use crate::conformance::parties::{Service, config};
use crate::support::{Programs, Side};
use conversations::conversations;

/// A step of a conversation about data.
#[derive(Clone)]
pub(crate) enum Step {
    /// Commits a chunk, by the first session's only writer unless it says otherwise.
    Chunk(Chunk),
    /// Patches four bytes at this offset of a chunk's payload, and says whether more patches will come.
    Patch {
        writer: u16,
        chunk: u32,
        offset: u32,
        data: Vec<u8>,
        more: bool,
    },
    /// Reads everything that can be read.
    Read,
}

/// A chunk as it is in shared memory.
#[derive(Clone)]
pub(crate) struct Chunk {
    writer: u16,
    id: u32,
    /// 1: continues a packet, 2: is continued, 4: needs patches.
    flags: u16,
    fragments: u16,
    payload: Vec<u8>,
    /// Whether it is still being written.
    scraped: bool,
    /// Whether it is for another buffer than the writer's.
    astray: bool,
}

pub(crate) fn chunk(writer: u16, id: u32) -> Chunk {
    Chunk {
        writer,
        id,
        flags: 0,
        fragments: 0,
        payload: Vec::new(),
        scraped: false,
        astray: false,
    }
}

/// A packet with a text, as producers write it.
pub(crate) fn packet(text: &str) -> Vec<u8> {
    let mut packet = Writer::new();
    write::TracePacket::new(&mut packet).for_testing(|event| {
        event.str(text);
    });
    packet.as_slice().to_vec()
}

impl Chunk {
    fn raw(mut self, bytes: &[u8]) -> Chunk {
        self.payload.extend_from_slice(bytes);
        self.fragments += 1;
        self
    }

    pub(crate) fn fragment(self, bytes: &[u8]) -> Chunk {
        let mut framed = Writer::new();
        framed.varint(bytes.len() as u64);
        framed.raw(bytes);
        self.raw(framed.as_slice())
    }

    pub(crate) fn whole(self, text: &str) -> Chunk {
        self.fragment(&packet(text))
    }

    /// Adds a packet of this size or a little more.
    pub(crate) fn large(self, size: usize) -> Chunk {
        self.whole(&"x".repeat(size))
    }

    pub(crate) fn flags(mut self, flags: u16) -> Chunk {
        self.flags |= flags;
        self
    }

    fn padded_to(mut self, size: usize) -> Chunk {
        self.payload.resize(size, 0);
        self
    }

    fn scraped(mut self) -> Chunk {
        self.scraped = true;
        self
    }

    fn astray(mut self) -> Chunk {
        self.astray = true;
        self
    }

    pub(crate) fn request(&self, target: u32) -> CommitDataRequest {
        let mut data = self.id.to_le_bytes().to_vec();
        data.extend(self.writer.to_le_bytes());
        data.extend((self.fragments | self.flags << 10).to_le_bytes());
        data.extend_from_slice(&self.payload);
        CommitDataRequest {
            chunks_to_move: vec![commit_data_request::ChunksToMove {
                target_buffer: Some(target + u32::from(self.astray)),
                data: Some(data),
                chunk_incomplete: Some(self.scraped),
                ..Default::default()
            }],
            ..Default::default()
        }
    }
}

/// Formats a producer's packet as a reader sees it: text, sequence, origin, and whether there is a loss before it.
pub(crate) fn seen(packet: &[u8]) -> Option<String> {
    let decoded = TracePacket::decode_from_slice(packet).unwrap();
    decoded.trusted_pid?;
    let field = |message: &[u8], number| {
        Reader::new(message)
            .flatten()
            .find(|field| field.number == number)
            .and_then(|field| field.value.as_bytes().map(<[u8]>::to_vec))
    };
    let event = field(packet, write::TracePacket::FOR_TESTING).unwrap_or_default();
    let text =
        String::from_utf8_lossy(&field(&event, write::TestEvent::STR).unwrap_or_default()).into_owned();
    let text = match text.len() {
        0..40 => text,
        length => format!("{length} of {:?}", text.chars().next()),
    };
    let sequence = match decoded.optional_trusted_packet_sequence_id {
        Some(TrustedPacketSequenceId(id)) => id,
        _ => 0,
    };
    let uid = decoded.optional_trusted_uid.is_some();
    // Only the bit for any loss is compared, because the reasons are newer than the reference.
    let lost = decoded.previous_packet_dropped.unwrap_or_default() != 0;
    Some(format!(
        "{text} by {sequence}{}{}",
        if uid { "" } else { " of nobody" },
        if lost { ", after a loss" } else { "" }
    ))
}

/// A buffer with the semantics of upstream's second implementation, which ours has for every config.
pub(crate) fn buffer(size_kb: u32, policy: FillPolicy) -> BufferConfig {
    BufferConfig {
        size_kb: Some(size_kb),
        fill_policy: Some(policy),
        experimental_mode: Some(ExperimentalMode::TRACE_BUFFER_V2),
        ..Default::default()
    }
}

/// The result of a conversation.
pub(crate) struct Outcome {
    /// The result of each read.
    pub(crate) read: Vec<String>,
    /// The statistics at the end.
    pub(crate) stats: Box<TraceStats>,
    /// The chunks and patches that were discarded meanwhile.
    pub(crate) discarded: (u64, u64),
}

/// Holds a conversation in a session of its own.
pub(crate) fn what_comes_out(service: &Service<'_>, buffer: &BufferConfig, steps: &[Step]) -> Outcome {
    let mut producer = service.producer("p");
    let mut consumer = service.consumer();
    producer.register(DataSourceDescriptor {
        name: Some("d".into()),
        ..Default::default()
    });
    consumer.enable(&TraceConfig {
        buffers: vec![buffer.clone(); 2],
        ..config("d")
    });
    producer.settle();
    let mut read = Vec::new();
    for step in steps {
        let request = match step {
            Step::Chunk(chunk) => chunk.request(producer.target),
            Step::Patch {
                writer,
                chunk,
                offset,
                data,
                more,
            } => CommitDataRequest {
                chunks_to_patch: vec![commit_data_request::ChunkToPatch {
                    target_buffer: Some(producer.target),
                    writer_id: Some((*writer).into()),
                    chunk_id: Some(*chunk),
                    has_more_patches: Some(*more),
                    patches: vec![commit_data_request::chunk_to_patch::Patch {
                        offset: Some(*offset),
                        data: Some(data.clone()),
                        ..Default::default()
                    }],
                    ..Default::default()
                }],
                ..Default::default()
            },
            Step::Read => {
                producer.settle();
                let packets: Vec<String> = consumer.read().iter().filter_map(|p| seen(p)).collect();
                read.push(packets.join("; "));
                continue;
            }
        };
        producer.endpoint.commit(request, CommitReply::Unwanted).unwrap();
        producer.settle();
    }
    let stats = consumer.stats();
    let discarded = (
        stats.chunks_discarded.unwrap_or_default(),
        stats.patches_discarded.unwrap_or_default(),
    );
    // Upstream counts these over the life of the service.
    static BEFORE: std::sync::Mutex<BTreeMap<String, (u64, u64)>> = std::sync::Mutex::new(BTreeMap::new());
    let before = match service.side {
        Side::Upstream => {
            let key = format!("{:?}", service.producers);
            BEFORE.lock().unwrap().insert(key, discarded).unwrap_or_default()
        }
        Side::Ours => (0, 0),
    };
    drop((producer, consumer));
    service.await_quiet();
    Outcome {
        read,
        stats,
        discarded: (discarded.0 - before.0, discarded.1 - before.1),
    }
}

impl Outcome {
    /// Formats it as lines that begin with their subject.
    fn lines(&self) -> Vec<String> {
        let stats = &self.stats;
        let mut lines: Vec<String> = self.read.iter().map(|read| format!("read {read}")).collect();
        lines.push(format!(
            "discarded {:?} chunks and patches; invalid: {:?}",
            self.discarded, stats.invalid_packets
        ));
        lines.push(format!("counted {:?}", counters(stats)));
        let mut writers: Vec<String> = stats
            .writer_stats
            .iter()
            .map(|writer| {
                format!(
                    "writer {:?} in {:?}: {:?} {:?}",
                    writer.sequence_id,
                    writer.buffer,
                    writer.chunk_payload_histogram_counts,
                    writer.chunk_payload_histogram_sum
                )
            })
            .collect();
        writers.sort();
        lines.push(format!(
            "sizes {:?} {writers:?}",
            stats.chunk_payload_histogram_def
        ));
        lines
    }
}

/// Returns the counters of the first buffer that are not zero, by name.
pub(crate) fn counters(stats: &TraceStats) -> BTreeMap<&'static str, u64> {
    let buffer = &stats.buffer_stats[0];
    let counters = [
        ("buffer_size", buffer.buffer_size),
        ("bytes_written", buffer.bytes_written),
        ("bytes_overwritten", buffer.bytes_overwritten),
        ("bytes_read", buffer.bytes_read),
        ("padding_bytes_written", buffer.padding_bytes_written),
        ("padding_bytes_cleared", buffer.padding_bytes_cleared),
        ("chunks_written", buffer.chunks_written),
        ("chunks_rewritten", buffer.chunks_rewritten),
        ("chunks_overwritten", buffer.chunks_overwritten),
        ("chunks_discarded", buffer.chunks_discarded),
        ("chunks_read", buffer.chunks_read),
        (
            "chunks_committed_out_of_order",
            buffer.chunks_committed_out_of_order,
        ),
        ("write_wrap_count", buffer.write_wrap_count),
        ("patches_succeeded", buffer.patches_succeeded),
        ("patches_failed", buffer.patches_failed),
        ("readaheads_succeeded", buffer.readaheads_succeeded),
        ("readaheads_failed", buffer.readaheads_failed),
        ("abi_violations", buffer.abi_violations),
        ("trace_writer_packet_loss", buffer.trace_writer_packet_loss),
    ];
    counters
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|value| *value != 0)?)))
        .collect()
}

#[test]
fn data_comes_out_alike_and_is_counted_alike() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let run = |side| -> Vec<Vec<String>> {
        let service = Service::start(&programs, side);
        conversations()
            .into_iter()
            .map(|(_, policy, steps)| what_comes_out(&service, &buffer(8, policy), &steps).lines())
            .collect()
    };
    let (upstream, ours) = std::thread::scope(|scope| {
        let upstream = scope.spawn(|| run(Side::Upstream));
        let ours = scope.spawn(|| run(Side::Ours));
        (upstream.join().unwrap(), ours.join().unwrap())
    });
    // The conversation, the difference, and the reason.
    let on_purpose = [
        (
            "an empty chunk",
            "counted",
            "upstream never counts it as read, so that it seems to be in use for ever",
        ),
        (
            "fragments that are not there",
            "counted",
            "the same: what is kept of these chunks is empty",
        ),
        (
            "more than a ring holds, of two writers, read in between",
            "counted",
            "upstream counts what was read and then overwritten as padding that was cleared, though it never was padding",
        ),
        (
            "a scraped chunk that is committed later",
            "counted",
            "the copy of a scraped chunk, once read, makes way when more of it is committed; upstream's does since v58",
        ),
        (
            "a writer that gave up",
            "read",
            "upstream marks the packet before the loss, if that was not yet read",
        ),
        (
            "a writer that gave up",
            "counted",
            "no breach of the ABI; for upstream neither, since v58",
        ),
        (
            "packets that a producer may not write",
            "read",
            "a packet that is dropped is a loss, and the next one says so; upstream counts it and marks nothing",
        ),
        ("packets that are none", "read", "the same"),
    ];
    let mut expected: BTreeSet<(&str, &str)> =
        on_purpose.iter().map(|(name, what, _)| (*name, *what)).collect();
    let mut differences = Vec::new();
    for ((name, ..), (upstream, ours)) in conversations().into_iter().zip(upstream.iter().zip(&ours)) {
        for (upstream, ours) in upstream
            .iter()
            .zip(ours)
            .filter(|(upstream, ours)| upstream != ours)
        {
            let what = upstream.split(' ').next().unwrap_or_default();
            let listed = on_purpose.iter().any(|(n, w, _)| (*n, *w) == (name, what));
            expected.remove(&(name, what));
            if !listed {
                differences.push(format!("{name}:\n  upstream: {upstream}\n  ours:     {ours}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(expected.is_empty(), "no longer different: {expected:?}");
}

/// In a DISCARD buffer, data that were read make room until something unread is in the way. In the second implementation nothing makes room.
#[test]
fn a_buffer_that_discards_takes_in_the_same() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    let large = |id| Step::Chunk(chunk(1, id).large(900));
    let mut kept_up: Vec<Step> = (0..40).flat_map(|id| [large(id), Step::Read]).collect();
    // A burst that no reader keeps up with.
    kept_up.extend((40..50).map(large));
    kept_up.push(Step::Read);
    kept_up.extend((50..60).flat_map(|id| [large(id), Step::Read]));
    for mode in [
        ExperimentalMode::MODE_UNSPECIFIED,
        ExperimentalMode::TRACE_BUFFER_V2,
    ] {
        let discarding = BufferConfig {
            experimental_mode: Some(mode),
            ..buffer(4, FillPolicy::DISCARD)
        };
        let [upstream, ours] = [Side::Upstream, Side::Ours].map(|side| {
            let service = Service::start(&programs, side);
            let read = what_comes_out(&service, &discarding, &kept_up).read;
            // Upstream's first implementation marks a loss before the first packet in any case.
            let unmarked = read.iter().map(|read| read.replace(", after a loss", ""));
            unmarked.collect::<Vec<String>>()
        });
        assert_eq!(ours, upstream, "{mode:?}");
        let packets = ours.iter().filter(|read| !read.is_empty()).count();
        assert_eq!(
            packets > 20,
            mode == ExperimentalMode::MODE_UNSPECIFIED,
            "{mode:?}: {ours:#?}"
        );
    }
}

/// The second of two sessions cannot be detached and ends, and data on the way to it are discarded. Upstream also counts them as a loss of the first
/// session.
#[test]
fn losses_of_a_refused_session_do_not_count_for_another() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    for (side, lost) in [(Side::Upstream, 1), (Side::Ours, 0)] {
        let service = Service::start(&programs, side);
        let mut producer = service.producer("p");
        producer.register(DataSourceDescriptor {
            name: Some("d".into()),
            ..Default::default()
        });
        let (mut first, mut second, mut asks) = (service.consumer(), service.consumer(), service.consumer());
        first.enable(&config("d"));
        let call = first.endpoint.detach("key").unwrap();
        assert!(first.answer(call).is_ok());
        second.enable(&config("d"));
        producer.settle();
        let of_second = producer.target;
        let call = second.endpoint.detach("key").unwrap();
        assert!(second.answer(call).is_err(), "{side}");
        drop(second);
        while asks.state().tracing_sessions.len() > 1 {}
        let late = chunk(1, 0).whole("late").request(of_second);
        producer.endpoint.commit(late, CommitReply::Unwanted).unwrap();
        producer.settle();
        let call = first.endpoint.attach("key").unwrap();
        assert!(first.answer(call).is_ok());
        assert_eq!(first.stats().chunks_discarded, Some(lost), "{side}");
    }
}
