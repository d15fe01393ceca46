//! Counters that the service and the kernel's buffers give at the end of a recording.

use ferretto_proto::write::TraceStats;

use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number_of};

/// The counters of the whole service, by field.
const OF_SERVICE: [(u32, &str); 11] = [
    (TraceStats::PRODUCERS_CONNECTED, "traced_producers_connected"),
    (TraceStats::PRODUCERS_SEEN, "traced_producers_seen"),
    (
        TraceStats::DATA_SOURCES_REGISTERED,
        "traced_data_sources_registered",
    ),
    (TraceStats::DATA_SOURCES_SEEN, "traced_data_sources_seen"),
    (TraceStats::TRACING_SESSIONS, "traced_tracing_sessions"),
    (TraceStats::TOTAL_BUFFERS, "traced_total_buffers"),
    (TraceStats::CHUNKS_DISCARDED, "traced_chunks_discarded"),
    (TraceStats::PATCHES_DISCARDED, "traced_patches_discarded"),
    (TraceStats::FLUSHES_REQUESTED, "traced_flushes_requested"),
    (TraceStats::FLUSHES_SUCCEEDED, "traced_flushes_succeeded"),
    (TraceStats::FLUSHES_FAILED, "traced_flushes_failed"),
];

/// The counters of a buffer, by field of `BufferStats`.
const OF_BUFFER: [(u32, &str); 19] = [
    (12, "traced_buf_buffer_size"),
    (1, "traced_buf_bytes_written"),
    (13, "traced_buf_bytes_overwritten"),
    (14, "traced_buf_bytes_read"),
    (15, "traced_buf_padding_bytes_written"),
    (16, "traced_buf_padding_bytes_cleared"),
    (2, "traced_buf_chunks_written"),
    (10, "traced_buf_chunks_rewritten"),
    (3, "traced_buf_chunks_overwritten"),
    (18, "traced_buf_chunks_discarded"),
    (17, "traced_buf_chunks_read"),
    (11, "traced_buf_chunks_committed_out_of_order"),
    (4, "traced_buf_write_wrap_count"),
    (5, "traced_buf_patches_succeeded"),
    (6, "traced_buf_patches_failed"),
    (7, "traced_buf_readaheads_succeeded"),
    (8, "traced_buf_readaheads_failed"),
    (9, "traced_buf_abi_violations"),
    (19, "traced_buf_trace_writer_packet_loss"),
];

/// The counters of the trace filter, by field of `FilterStats`.
const OF_FILTER: [(u32, &str); 5] = [
    (4, "filter_errors"),
    (2, "filter_input_bytes"),
    (1, "filter_input_packets"),
    (3, "filter_output_bytes"),
    (5, "filter_time_taken_ns"),
];

/// Takes in the service's counters. `sequence` says how often packets of a sequence were lost, and whether all of it was.
pub(super) fn trace_stats(
    stats: &[u8],
    context: &mut Context<'_>,
    sequence: impl Fn(u32) -> Option<(i64, bool)>,
) {
    const DISCARDED_PER_BUFFER: u32 = 20;
    const SEQUENCE_ID: u32 = 1;
    const BUFFER: u32 = 4;
    let get = |message, field| number_of(message, field).unwrap_or(0) as i64;
    for (field, name) in OF_SERVICE {
        context.stats.set(name, None, get(stats, field));
    }
    if let Some(filter) = bytes_of(stats, TraceStats::FILTER_STATS) {
        for (field, name) in OF_FILTER {
            context.stats.set(name, None, get(filter, field));
        }
        let mut buffer = 0;
        for field in fields(filter).filter(|field| field.number == DISCARDED_PER_BUFFER) {
            each_varint(field.value, |bytes| {
                context
                    .stats
                    .set("traced_buf_bytes_filtered_out", Some(buffer), bytes as i64);
                buffer += 1;
            });
        }
    }
    match get(stats, TraceStats::FINAL_FLUSH_OUTCOME) {
        1 => context.stats.add("traced_final_flush_succeeded", None, 1),
        2 => context.stats.add("traced_final_flush_failed", None, 1),
        _ => {}
    }
    for (number, buffer) in all_bytes(stats, TraceStats::BUFFER_STATS).enumerate() {
        for (field, name) in OF_BUFFER {
            context.stats.set(name, Some(number as i64), get(buffer, field));
        }
    }
    let mut losses = std::collections::BTreeMap::<i64, (i64, i64)>::new();
    for writer in all_bytes(stats, TraceStats::WRITER_STATS) {
        if let Some((lost, is_lost)) = sequence(get(writer, SEQUENCE_ID) as u32) {
            let buffer = losses.entry(i64::from(get(writer, BUFFER) as i32)).or_default();
            buffer.0 += lost;
            buffer.1 += i64::from(is_lost);
        }
    }
    for (buffer, (lost, are_lost)) in losses {
        context
            .stats
            .set("traced_buf_sequence_packet_loss", Some(buffer), lost);
        context
            .stats
            .set("traced_buf_incremental_sequences_dropped", Some(buffer), are_lost);
    }
}

/// Takes in the counters of the kernel's buffers.
pub(super) fn ftrace_stats(_stats: &[u8], _is_end: bool, _context: &mut Context<'_>) {}
