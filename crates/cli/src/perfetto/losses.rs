//! What the trace stats say about lost data, and how full the buffers are.
//!
//! Called while recording (the live line) and at the end (the summary). Fields and their meaning are those of upstream's
//! `trace_stats.proto`. Losses inside a data source (the kernel's ring buffers, for one) are noted in the trace itself and
//! not in these stats.

use ferretto_proto::messages::{TraceStats, trace_stats};

use super::figures::{Bytes, Counted};

/// One way in which data were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loss {
    /// How much, and from what: `12 chunks (1.5 MiB) of buffer 0`.
    pub(crate) what: String,
    /// Why, and what helps.
    pub(crate) why: &'static str,
    pub(crate) kind: LossKind,
}

/// Whether a loss is one that was agreed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossKind {
    /// A ring buffer keeps what is newest: that is what it is for.
    Oldest,
    /// Data are missing in the middle of others, or at their end.
    Hole,
}

/// Every loss that the stats know, buffer by buffer, then those of the whole session.
pub(crate) fn losses(stats: &TraceStats) -> Vec<Loss> {
    let mut losses = Vec::new();
    for (index, buffer) in stats.buffer_stats.iter().enumerate() {
        buffer_losses(index, buffer, &mut losses);
    }
    let mut add = |count: Option<u64>, unit: &'static str, why: &'static str| {
        if let Some(count @ 1..) = count {
            losses.push(Loss {
                what: Counted(count, unit).to_string(),
                why,
                kind: LossKind::Hole,
            });
        }
    };
    add(
        stats.chunks_discarded,
        "chunk",
        "sent by a producer for a buffer that is not its own",
    );
    add(
        stats.patches_discarded,
        "patch",
        "sent by a producer for a buffer that is not its own",
    );
    add(
        stats.invalid_packets,
        "packet",
        "malformed by a producer, so left out",
    );
    add(
        stats.filter_stats.errors,
        "packet",
        "refused by the config's trace_filter",
    );
    add(
        stats.flushes_failed,
        "flush",
        "not acknowledged in time; the newest data may be missing (flush_timeout_ms)",
    );
    if stats.final_flush_outcome == Some(trace_stats::FinalFlushOutcome::FINAL_FLUSH_FAILED) {
        losses.push(Loss {
            what: "the last flush".to_owned(),
            why: "not acknowledged in time; the newest data may be missing (flush_timeout_ms)",
            kind: LossKind::Hole,
        });
    }
    losses
}

fn buffer_losses(index: usize, buffer: &trace_stats::BufferStats, losses: &mut Vec<Loss>) {
    let mut add =
        |count: Option<u64>, unit: &'static str, bytes: Option<u64>, kind: LossKind, why: &'static str| {
            let Some(count @ 1..) = count else { return };
            let size = bytes
                .filter(|bytes| *bytes > 0)
                .map(|bytes| format!(" ({})", Bytes(bytes)))
                .unwrap_or_default();
            losses.push(Loss {
                what: format!("{}{size} of buffer {index}", Counted(count, unit)),
                why,
                kind,
            });
        };
    add(
        buffer.chunks_overwritten,
        "chunk",
        buffer.bytes_overwritten,
        LossKind::Oldest,
        "overwritten by newer data; a larger buffer (-b) reaches further back",
    );
    add(
        buffer.chunks_discarded,
        "chunk",
        None,
        LossKind::Hole,
        "came when the buffer was full; a larger buffer holds more",
    );
    add(
        buffer.trace_writer_packet_loss,
        "gap",
        None,
        LossKind::Hole,
        "left by producers whose shared memory was full; a larger one helps (shm_size_kb)",
    );
    add(
        buffer.patches_failed,
        "patch",
        None,
        LossKind::Hole,
        "came after its packet had been overwritten",
    );
    add(
        buffer.abi_violations,
        "chunk",
        None,
        LossKind::Hole,
        "malformed by a producer, so left out",
    );
}

/// How full the fullest buffer is, from 0 to 1. `None` without buffers of a known size.
pub(crate) fn fill(stats: &TraceStats) -> Option<f64> {
    stats.buffer_stats.iter().filter_map(buffer_fill).reduce(f64::max)
}

fn buffer_fill(buffer: &trace_stats::BufferStats) -> Option<f64> {
    let size = buffer.buffer_size.filter(|size| *size > 0)?;
    let get = |value: Option<u64>| i128::from(value.unwrap_or(0));
    let used = get(buffer.bytes_written) - get(buffer.bytes_read) - get(buffer.bytes_overwritten)
        + get(buffer.padding_bytes_written)
        - get(buffer.padding_bytes_cleared);
    Some((used.max(0) as f64 / size as f64).min(1.0))
}

/// Bytes that went into the buffers so far.
pub(crate) fn bytes_written(stats: &TraceStats) -> u64 {
    stats
        .buffer_stats
        .iter()
        .map(|buffer| buffer.bytes_written.unwrap_or(0))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(buffer: trace_stats::BufferStats) -> TraceStats {
        TraceStats {
            buffer_stats: vec![buffer],
            ..Default::default()
        }
    }

    #[test]
    fn a_clean_session_lost_nothing() {
        let clean = trace_stats::BufferStats {
            buffer_size: Some(4096),
            bytes_written: Some(1024),
            chunks_overwritten: Some(0),
            readaheads_failed: Some(3),
            ..Default::default()
        };
        assert_eq!(losses(&stats(clean)), []);
    }

    #[test]
    fn each_counter_is_told_with_its_amount_and_its_cause() {
        let lossy = TraceStats {
            buffer_stats: vec![
                trace_stats::BufferStats::default(),
                trace_stats::BufferStats {
                    chunks_overwritten: Some(1200),
                    bytes_overwritten: Some(3 << 20),
                    chunks_discarded: Some(1),
                    trace_writer_packet_loss: Some(2),
                    patches_failed: Some(3),
                    abi_violations: Some(4),
                    ..Default::default()
                },
            ],
            chunks_discarded: Some(5),
            patches_discarded: Some(6),
            invalid_packets: Some(7),
            flushes_failed: Some(8),
            final_flush_outcome: Some(trace_stats::FinalFlushOutcome::FINAL_FLUSH_FAILED),
            ..Default::default()
        };
        let amounts: Vec<String> = losses(&lossy).into_iter().map(|loss| loss.what).collect();
        let expected = [
            "1,200 chunks (3.0 MiB) of buffer 1",
            "1 chunk of buffer 1",
            "2 gaps of buffer 1",
            "3 patches of buffer 1",
            "4 chunks of buffer 1",
            "5 chunks",
            "6 patches",
            "7 packets",
            "8 flushes",
            "the last flush",
        ];
        assert_eq!(amounts, expected);
    }

    #[test]
    fn the_fullest_buffer_counts() {
        let buffer = |size, written, read| trace_stats::BufferStats {
            buffer_size: Some(size),
            bytes_written: Some(written),
            bytes_read: Some(read),
            ..Default::default()
        };
        let two = TraceStats {
            buffer_stats: vec![buffer(1000, 250, 0), buffer(1000, 900, 150)],
            ..Default::default()
        };
        assert_eq!(fill(&two), Some(0.75));
        assert_eq!(bytes_written(&two), 1150);
        assert_eq!(fill(&TraceStats::default()), None);
        assert_eq!(fill(&stats(buffer(0, 10, 0))), None);
        assert_eq!(
            fill(&stats(buffer(100, 10, 20))),
            Some(0.0),
            "counters of different moments may cross"
        );
    }
}
