//! The producers' chunks: in shared memory, and on their way to the service.

use ferretto_proto::messages::{CommitDataRequest, commit_data_request};
use ferretto_service::{FlushRequestId, ProducerCommand, ProducerId};
use ferretto_smb::{ChunkId, FirstPacket, NewChunk, PageLayout, WriteChunk, WriterId};

use super::World;

impl World {
    /// Has the producer write packets into one new chunk, and commit it.
    pub(crate) fn commit(&mut self, producer: ProducerId, writer: u16, target: u16, packets: &[&[u8]]) {
        let request = self.write(producer, writer, target, packets);
        self.service.commit(producer, &request, &self.now);
        self.run();
    }

    /// Has the producer write packets into one new chunk, and complete it without a commit.
    pub(crate) fn write(
        &mut self,
        producer: ProducerId,
        writer: u16,
        target: u16,
        packets: &[&[u8]],
    ) -> CommitDataRequest {
        let (chunk, page, index) = self.write_open(producer, writer, packets);
        chunk.complete();
        CommitDataRequest {
            chunks_to_move: vec![commit_data_request::ChunksToMove {
                page: Some(page as u32),
                chunk: Some(index as u32),
                target_buffer: Some(target.into()),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    /// Has the producer commit one packet in several chunks, each with one fragment of at most this size. The chunks are in the
    /// request itself.
    pub(crate) fn commit_in_fragments(
        &mut self,
        producer: ProducerId,
        writer: u16,
        target: u16,
        packet: &[u8],
        size: usize,
    ) {
        const CONTINUES_BEFORE: u8 = 1;
        const CONTINUES_AFTER: u8 = 2;
        let fragments: Vec<&[u8]> = packet.chunks(size).collect();
        for (index, fragment) in fragments.iter().enumerate() {
            let mut flags = 0;
            if index > 0 {
                flags |= CONTINUES_BEFORE;
            }
            if index + 1 < fragments.len() {
                flags |= CONTINUES_AFTER;
            }
            let writers = &mut self.producers.get_mut(&producer).expect("known").next_chunk;
            let next = writers.entry(writer).or_default();
            let mut chunk = ferretto_wire::Writer::new();
            chunk.raw(&next.to_le_bytes());
            *next += 1;
            chunk.raw(&writer.to_le_bytes());
            chunk.raw(&(1 | u16::from(flags) << 10).to_le_bytes());
            chunk.varint(fragment.len() as u64);
            chunk.raw(fragment);
            let request = CommitDataRequest {
                chunks_to_move: vec![commit_data_request::ChunksToMove {
                    target_buffer: Some(target.into()),
                    data: Some(chunk.as_slice().to_vec()),
                    ..Default::default()
                }],
                ..Default::default()
            };
            self.service.commit(producer, &request, &self.now);
            self.run();
        }
    }

    /// Has the producer write packets into a new chunk, and keep it.
    pub(crate) fn write_open(
        &mut self,
        producer: ProducerId,
        writer: u16,
        packets: &[&[u8]],
    ) -> (WriteChunk, usize, usize) {
        let (mut chunk, _) = self
            .try_take_chunk(producer, writer, FirstPacket::Whole)
            .expect("a free chunk");
        let mut offset = 0;
        for packet in packets {
            let mut framed = ferretto_wire::Writer::new();
            framed.varint(packet.len() as u64);
            framed.raw(packet);
            chunk.write(offset, framed.as_slice());
            offset += framed.len();
        }
        chunk.publish(packets.len() as u16);
        let (page, index) = (chunk.page(), chunk.index());
        (chunk, page, index)
    }

    /// The next chunk of a writer, unless the producer has no shared memory or no chunk in it is free.
    pub(crate) fn try_take_chunk(
        &mut self,
        producer: ProducerId,
        writer: u16,
        first: FirstPacket,
    ) -> Option<(WriteChunk, ChunkId)> {
        let producer = self.producers.get_mut(&producer).expect("known");
        let smb = producer.smb.as_ref()?;
        let next = producer.next_chunk.entry(writer).or_default();
        let chunk = ChunkId(*next);
        let new = NewChunk {
            writer: WriterId(writer),
            chunk,
            first,
        };
        let taken = smb.take_chunk(PageLayout::Div1, new)?;
        *next += 1;
        Some((taken, chunk))
    }

    /// Takes this chunk.
    pub(crate) fn take_chunk(&mut self, producer: ProducerId, new: NewChunk) -> WriteChunk {
        let smb = self.producers[&producer].smb.as_ref().expect("it has memory");
        smb.take_chunk(PageLayout::Div1, new).expect("a free chunk")
    }

    /// Acknowledges every flush that the producer was asked for.
    pub(crate) fn acknowledge_flushes(&mut self, producer: ProducerId) {
        let requests: Vec<FlushRequestId> = self.producers[&producer]
            .commands
            .iter()
            .filter_map(|command| match command {
                ProducerCommand::Flush { request, .. } => Some(*request),
                _ => None,
            })
            .collect();
        if let Some(last) = requests.last() {
            let request = CommitDataRequest {
                flush_request_id: Some(last.0),
                ..Default::default()
            };
            self.service.commit(producer, &request, &self.now);
            self.run();
        }
    }
}
