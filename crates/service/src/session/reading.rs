//! Reading a session back: the packets of its buffers, the service's packets around them, and the statistics.
//!
//! `readback` has the inputs and the batch itself.

use std::iter;

use ferretto_proto::messages::{Message, TraceStats, trace_stats};
use ferretto_proto::write;

use super::large_packet::Provenance;
use super::machines::Machines;
use super::{BatchEnd, LargePacket, LifecycleEvent, Session};
use crate::clock::Now;
use crate::limits;
use crate::packet_validator::PacketValidator;
use crate::protovm::ProtoVms;
use crate::session::common::Common;
use crate::session::packets::{
    service_header, write_leading_packets, write_lifecycle_events, write_trusted_fields,
};
use crate::session::readout::{Budget, Framing, ReadCall, Readout};
use crate::trace_buffer::{BufferStats, PayloadHistogram, TraceBuffer};
use crate::trace_filter::Origin;

/// How much there is in the whole service, for the statistics of each session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Census {
    pub(crate) sessions: usize,
    pub(crate) buffers: usize,
}

/// The state of the rest of the service that a batch reports.
pub(crate) struct Surroundings<'a> {
    pub(crate) common: &'a mut Common,
    pub(crate) machines: &'a Machines,
    pub(crate) census: Census,
    pub(crate) now: Now,
}

impl Session {
    /// Puts together one batch, of a call if a consumer reads. A file gets everything that there is.
    pub(crate) fn read(
        &mut self,
        framing: Framing,
        budget: &Budget,
        call: Option<&mut ReadCall>,
        around: &mut Surroundings<'_>,
        out: &mut Readout,
    ) -> BatchEnd {
        out.start(framing);
        out.filter = self.filter.take();
        if let Some(filter) = &mut out.filter {
            filter.begin_batch(around.common.processor_clock);
        }
        let end = self.fill_batch(budget, call, around, out);
        self.filter = out.filter.take();
        // A file stays below its limit and consists of whole packets.
        if out.len() as u64 >= budget.file {
            out.cut_below(budget.file);
            return BatchEnd::Full;
        }
        end
    }

    fn fill_batch(
        &mut self,
        budget: &Budget,
        mut call: Option<&mut ReadCall>,
        around: &mut Surroundings<'_>,
        out: &mut Readout,
    ) -> BatchEnd {
        self.log_protovms(around.common);
        if self.triggers.hides_trace() {
            return BatchEnd::Drained;
        }
        if let Some(large) = self.large_packet.take() {
            self.read_on(large, out);
            return BatchEnd::More;
        }
        if let Some(call) = &mut call {
            call.begin(&self.buffers, self.notes.flushes());
        }
        let flushes = call.as_ref().map_or(u64::MAX, |call| call.flushes());
        let identity = &around.common.identity;
        write_leading_packets(self, identity, around.machines, flushes, &around.now, out);
        let enough = (budget.batch as u64).min(budget.file);
        for (index, buffer) in self.buffers.iter_mut().enumerate() {
            if call.as_ref().is_some_and(|call| call.is_over(index)) {
                continue;
            }
            buffer.begin_read();
            while let Some(packet) = buffer.read_next_packet() {
                let size = packet.size();
                if let Some(call) = &mut call {
                    call.count(index, size);
                }
                // A filter needs all of the packet at once, and has limits of its own.
                if size > limits::LARGE_PACKET && out.filter.is_none() {
                    let (sequence, losses) = (packet.sequence, packet.losses);
                    let sequence_id = self.sequence_ids.of(sequence.producer, sequence.writer);
                    out.scratch.clear();
                    write_trusted_fields(&mut out.scratch, &sequence, sequence_id, losses);
                    let from = Provenance {
                        buffer: index,
                        sequence,
                        losses,
                    };
                    self.large_packet = LargePacket::take(buffer, from, size, &out.scratch, out.framing());
                    if self.large_packet.is_none() {
                        buffer.lose_packet(&sequence, losses);
                        self.losses.invalid_packets += 1;
                        let line = format!("no memory to read a packet of {size} bytes: it is lost");
                        around.common.outbox.warn(line);
                    }
                    return BatchEnd::More;
                }
                if PacketValidator::check(packet.fragments()).is_err() {
                    let (sequence, losses) = (packet.sequence, packet.losses);
                    buffer.lose_packet(&sequence, losses);
                    self.losses.invalid_packets += 1;
                    out.cut(size);
                    if out.read() >= enough {
                        return BatchEnd::More;
                    }
                    continue;
                }
                let sequence = packet.sequence;
                let sequence_id = self.sequence_ids.of(sequence.producer, sequence.writer);
                out.scratch.clear();
                write_trusted_fields(&mut out.scratch, &sequence, sequence_id, packet.losses);
                if out.filter.is_some() {
                    let trusted = std::mem::take(&mut out.scratch);
                    let pieces = packet.fragments().chain(iter::once(trusted.as_slice()));
                    let losses = packet.losses;
                    if !out.filtered_packet(pieces, size + trusted.len(), Origin::Buffer(index)) {
                        buffer.lose_packet(&sequence, losses);
                    }
                    out.scratch = trusted;
                } else {
                    out.buffered_packet(index, size, packet.spans());
                }
                // Packets that the filter cuts out have been read too.
                if out.read() >= enough || out.took_long() {
                    return BatchEnd::More;
                }
                if call.as_ref().is_some_and(|call| call.is_over(index)) {
                    break;
                }
            }
        }
        // The buffers are empty, or their contents at the begin of the call were read: a point up to which readers can sort.
        self.notes
            .note(LifecycleEvent::ReadTracingBuffersCompleted, &around.now);
        write_lifecycle_events(self, identity.author(), flushes, out);
        let (producers, buffers) = (&around.common.producers, &self.buffers);
        self.sequence_ids.forget(|producer, writer| {
            producers.get(producer).is_some() || buffers.iter().any(|buffer| buffer.knows(producer, writer))
        });
        if std::mem::take(&mut self.notes.stats_due) {
            self.write_stats(around, out);
        }
        BatchEnd::Drained
    }

    /// Reads the next part of a large packet. The batch has the packet if that was the last part, and nothing otherwise.
    fn read_on(&mut self, mut large: Box<LargePacket>, out: &mut Readout) {
        match large.advance() {
            Ok(false) => self.large_packet = Some(large),
            Ok(true) => out.large_packet(large.into_bytes()),
            Err(_) => {
                let from = large.provenance();
                if let Some(buffer) = self.buffers.get_mut(from.buffer) {
                    buffer.lose_packet(&from.sequence, from.losses);
                }
                self.losses.invalid_packets += 1;
                out.cut(large.size());
            }
        }
    }

    /// Logs the errors of programs once, when their state is written.
    fn log_protovms(&self, common: &mut Common) {
        if self.notes.initial_packets_written {
            return;
        }
        let vms = self.buffers.iter().filter_map(TraceBuffer::protovms);
        for line in vms.flat_map(ProtoVms::complaints) {
            common.outbox.warn(line);
        }
    }

    /// Writes the statistics as a packet.
    fn write_stats(&mut self, around: &Surroundings<'_>, out: &mut Readout) {
        let mut stats = self.stats(limits::MAX_WRITERS_IN_STATS, around.common, around.census);
        if let Some(filter) = &out.filter {
            stats.filter_stats = filter.stats().into();
        }
        let author = around.common.identity.author();
        out.unfiltered_packet(|packet| {
            service_header(&mut write::TracePacket::new(packet), author);
            packet.bytes_field(write::TracePacket::TRACE_STATS, &stats.encode_to_vec());
        });
    }

    /// Statistics of the session, with no more writers than this.
    pub(crate) fn stats(&mut self, writers: usize, common: &Common, census: Census) -> TraceStats {
        let mut stats = TraceStats {
            producers_connected: Some(common.producers.len() as u32),
            producers_seen: Some(common.producers.seen().into()),
            data_sources_registered: Some(common.producers.data_sources() as u32),
            data_sources_seen: Some(common.instances_seen()),
            tracing_sessions: Some(census.sessions as u32),
            total_buffers: Some(census.buffers as u32),
            chunks_discarded: Some(self.losses.chunks_discarded),
            patches_discarded: Some(self.losses.patches_discarded),
            invalid_packets: Some(self.losses.invalid_packets),
            flushes_requested: Some(self.flushes.requested),
            flushes_succeeded: Some(self.flushes.succeeded),
            flushes_failed: Some(self.flushes.failed),
            final_flush_outcome: Some(self.flushes.final_outcome),
            filter_stats: self.filter.as_ref().map(|filter| filter.stats()).into(),
            ..Default::default()
        };
        let with_histograms = !self.builtin().disable_chunk_usage_histograms.unwrap_or_default();
        for (index, buffer) in self.buffers.iter().enumerate() {
            stats.buffer_stats.push(buffer_stats(buffer.stats()));
            if !with_histograms {
                continue;
            }
            let room = writers - stats.writer_stats.len();
            for (producer, writer, histogram) in buffer.writer_stats().take(room) {
                if stats.chunk_payload_histogram_def.is_empty() {
                    stats.chunk_payload_histogram_def = PayloadHistogram::BOUNDS.to_vec();
                }
                stats.writer_stats.push(trace_stats::WriterStats {
                    sequence_id: Some(self.sequence_ids.of(producer, writer).into()),
                    buffer: Some(index as u32),
                    chunk_payload_histogram_counts: histogram.counts().to_vec(),
                    chunk_payload_histogram_sum: histogram.sums().to_vec(),
                    ..Default::default()
                });
            }
        }
        stats
    }
}

/// The counters of a buffer, as the schema has them.
fn buffer_stats(stats: &BufferStats) -> trace_stats::BufferStats {
    trace_stats::BufferStats {
        buffer_size: Some(stats.buffer_size),
        bytes_written: Some(stats.bytes_written),
        bytes_overwritten: Some(stats.bytes_overwritten),
        bytes_read: Some(stats.bytes_read),
        padding_bytes_written: Some(stats.padding_bytes_written),
        padding_bytes_cleared: Some(stats.padding_bytes_cleared),
        chunks_written: Some(stats.chunks_written),
        chunks_rewritten: Some(stats.chunks_rewritten),
        chunks_relocated: Some(stats.chunks_relocated),
        chunks_overwritten: Some(stats.chunks_overwritten),
        chunks_discarded: Some(stats.chunks_discarded),
        chunks_read: Some(stats.chunks_read),
        chunks_committed_out_of_order: Some(stats.chunks_committed_out_of_order),
        write_wrap_count: Some(stats.write_wrap_count),
        patches_succeeded: Some(stats.patches_succeeded),
        patches_failed: Some(stats.patches_failed),
        readaheads_succeeded: Some(stats.readaheads_succeeded),
        readaheads_failed: Some(stats.readaheads_failed),
        abi_violations: Some(stats.abi_violations),
        trace_writer_packet_loss: Some(stats.trace_writer_packet_loss),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::ReadCall;
    use ferretto_proto::messages::TraceConfig;

    use crate::clock::Now;
    use crate::ids::{ProducerId, WriterId};
    use crate::service::Service;

    #[test]
    fn the_ids_of_many_writers_that_are_gone_are_forgotten_once_all_is_read() {
        let mut service = Service::new(crate::Identity::default());
        let now = Now::default();
        let consumer = service.connect_consumer(1);
        let config = TraceConfig::default();
        let bytes = Vec::new().into();
        let input = crate::ConfigInput { config, bytes };
        let file = crate::OutputFile::None;
        let session = service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        let writer = |producer| (ProducerId(producer), WriterId(1));
        let id_of = |service: &mut Service, (producer, writer)| {
            let session = service.sessions.get_mut(session).unwrap();
            session.sequence_ids.of(producer, writer)
        };
        let first = id_of(&mut service, writer(1));
        for producer in 2..=1 << 16 {
            id_of(&mut service, writer(producer));
        }
        assert_eq!(id_of(&mut service, writer(1)), first);
        service
            .read_buffers(consumer, &mut ReadCall::default(), usize::MAX, &now)
            .unwrap();
        assert!(id_of(&mut service, writer(1)) > 1 << 16);
    }
}
