//! Turns the service's counters into findings about lost data, and says how full the buffers are.
//!
//! [`Account`] calls it for its findings. The recording calls [`fill`] and [`bytes_written`] for its progress line. Fields have the meaning that
//! upstream's `trace_stats.proto` gives them. Advice quotes the config's present value and a better one as a user would type them. There is advice
//! only where it follows from the numbers.

use ferretto_probes::producer::PRODUCER_NAME as PROBES;
use ferretto_proto::messages::trace_config::buffer_config::{ExperimentalMode, FillPolicy};
use ferretto_proto::messages::trace_stats::{BufferStats, FinalFlushOutcome};
use ferretto_proto::messages::{TraceConfig, TraceStats};
use ferretto_service::limits;

use super::evidence::SourceOf;
use super::{Account, Baseline, Case, LastFlush, Severity, Wording, listed, roomy};
use crate::config::advice::LARGE_BUFFER_KB;
use crate::config::length::{Length, file_write_period};
use crate::figures::{Bytes, Counted};

/// The default size of a producer's shared memory, and the largest that the service grants.
const DEFAULT_SHM_KB: u64 = limits::DEFAULT_SMB_SIZE as u64 / 1024;
const MAX_SHM_KB: u64 = limits::MAX_SMB_SIZE as u64 / 1024;
/// The largest chunk that a producer may hand over: a page of its shared memory.
const LARGEST_CHUNK_KB: u64 = limits::MAX_SMB_PAGE_SIZE as u64 / 1024;
const DEFAULT_FLUSH_TIMEOUT_MS: u32 = limits::DEFAULT_FLUSH_TIMEOUT.as_millis() as u32;

/// Judges the counters of one session.
pub(super) struct Counters<'a> {
    config: &'a TraceConfig,
    length: Length,
    wording: Wording,
    stats: &'a TraceStats,
    baseline: Option<Baseline>,
    worst_writer: &'a dyn Fn(usize) -> Option<String>,
}

impl<'a> Counters<'a> {
    pub(super) fn of(case: &Case<'a>, stats: &'a TraceStats) -> Counters<'a> {
        Counters {
            config: case.config,
            length: case.length,
            wording: case.wording,
            stats,
            baseline: case.baseline,
            worst_writer: case.worst_writer,
        }
    }

    /// Adds the findings of each buffer, then those of the whole session.
    pub(super) fn add_to(&self, account: &mut Account) {
        for (index, buffer) in self.stats.buffer_stats.iter().enumerate() {
            self.buffer(index, buffer, account);
        }
        self.wrong_buffers(account);
        self.packets(account);
    }

    fn buffer(&self, index: usize, buffer: &BufferStats, account: &mut Account) {
        let name = self.buffer_name(index);
        let chunks = |count: u64, bytes: u64| {
            let bytes = if bytes > 0 {
                format!(" ({})", Bytes(bytes))
            } else {
                String::new()
            };
            format!("{}{bytes} of {name}", Counted(count, "chunk"))
        };
        let mut lost = |cause, what: String, why: &str, advice: Option<String>| {
            account.add(Severity::Loss, cause, what, why, advice);
        };
        let policy = self
            .config
            .buffers
            .get(index)
            .and_then(|buffer| buffer.fill_policy);
        // A ring buffer turns away the chunks that it has read before, as when shared memory is scraped again. Nothing is lost with them.
        if let (Some(count @ 1..), Some(FillPolicy::DISCARD)) = (buffer.chunks_discarded, policy) {
            let is_streamed = self.config.write_into_file == Some(true);
            let mode = self
                .config
                .buffers
                .get(index)
                .and_then(|buffer| buffer.experimental_mode);
            let advice = if is_streamed {
                // With DISCARD, this kind of buffer does not even reuse the space of data that was read.
                let otherwise = match mode == Some(ExperimentalMode::TRACE_BUFFER_V2) {
                    true => self.larger_buffer(index, buffer, "or more"),
                    false => self.write_more_often(index, buffer),
                };
                format!(
                    "leave out fill_policy: with DISCARD a buffer that was full once takes nothing more, whatever has been written \
                     into the file since; or {otherwise}"
                )
            } else {
                format!(
                    "{}, or keep the newest data instead of the oldest: fill_policy: RING_BUFFER",
                    self.larger_buffer(index, buffer, "or more")
                )
            };
            let why = "dropped: the buffer was full and its fill_policy is DISCARD";
            lost("buffer_full", chunks(count, 0), why, Some(advice));
        }
        if let Some(count @ 1..) = buffer.trace_writer_packet_loss {
            let what = format!("{} in {name}", Counted(count, "gap"));
            let why = "producers wrote faster than the service took it, and their shared memory was full";
            lost(
                "shared_memory_full",
                what,
                why,
                Some(self.about_shared_memory(index)),
            );
        }
        if let Some(count @ 1..) = buffer.patches_failed {
            let what = format!("{} for {name}", Counted(count, "patch"));
            let why = "came after their packets had been overwritten, which are incomplete therefore";
            lost(
                "patch_too_late",
                what,
                why,
                Some(self.larger_buffer(index, buffer, "")),
            );
        }
        if let Some(count @ 1..) = buffer.oversized_packets_dropped {
            let what = format!("{} for {name}", Counted(count, "packet"));
            let why = "did not fit into the buffer at all";
            lost(
                "packet_too_large",
                what,
                why,
                Some(self.larger_buffer(index, buffer, "")),
            );
        }
        if let Some(count @ 1..) = buffer.abi_violations {
            if (1..LARGEST_CHUNK_KB).contains(&self.buffer_size_kb(index, buffer)) {
                let why = format!(
                    "probably did not fit into the buffer, because a chunk may have up to {}",
                    Bytes(LARGEST_CHUNK_KB << 10)
                );
                let advice = self.buffer_of(index, buffer, LARGEST_CHUNK_KB, "or more");
                lost("chunk_too_large", chunks(count, 0), &why, Some(advice));
            } else {
                let why = "a producer broke the rules of shared memory; its data there is left out";
                let advice = "see the service's log for the producer, and update it".to_owned();
                lost("malformed_chunk", chunks(count, 0), why, Some(advice));
            }
        }
        if let Some(count @ 1..) = buffer.chunks_overwritten {
            let bytes = buffer.bytes_overwritten.unwrap_or(0);
            let (severity, why, advice) = self.about_overwriting(index, buffer, bytes);
            account.add(
                severity,
                "buffer_overwritten",
                chunks(count, bytes),
                why,
                Some(advice),
            );
        }
    }

    /// Says why a buffer was overwritten, whether the user wanted that, and how to keep more.
    fn about_overwriting(
        &self,
        index: usize,
        buffer: &BufferStats,
        bytes: u64,
    ) -> (Severity, &'static str, String) {
        if self.config.write_into_file == Some(true) {
            let why = "overwritten before they were written into the file";
            return (Severity::Loss, why, self.write_more_often(index, buffer));
        }
        let needed = roomy(self.buffer_size_kb(index, buffer) + bytes.div_ceil(1024));
        let stream = match self.wording {
            Wording::Flags => "stream into a file (-s SIZE)",
            Wording::Config => "stream into a file (write_into_file: true)",
        };
        if self.length.keeps_the_newest(self.config) {
            let why = "made room for newer data, as a ring buffer is to";
            let advice = format!(
                "to reach further back {}, or {stream}",
                self.buffer_of(index, buffer, needed, "")
            );
            return (Severity::Note, why, advice);
        }
        let why = "overwritten by newer data: the buffer is a ring, and was full";
        let advice = if needed <= LARGE_BUFFER_KB {
            format!(
                "to keep all of it {}, record shorter, or {stream}",
                self.buffer_of(index, buffer, needed, "")
            )
        } else {
            format!(
                "to keep all of it, which takes {}, {stream} or record shorter",
                Bytes(needed << 10)
            )
        };
        (Severity::Loss, why, advice)
    }

    /// Advises on a buffer that the service reads while it records.
    fn write_more_often(&self, index: usize, buffer: &BufferStats) -> String {
        let period = file_write_period(self.config).as_millis();
        let shorter = (period / 2).max(limits::MIN_FILE_WRITE_PERIOD.as_millis());
        let larger = self.larger_buffer(index, buffer, "");
        if shorter < period && self.wording == Wording::Config {
            format!("lower file_write_period_ms from {period} to {shorter}, or {larger}")
        } else {
            larger
        }
    }

    /// Advises to double a buffer.
    fn larger_buffer(&self, index: usize, buffer: &BufferStats, and: &str) -> String {
        let needed = roomy(2 * self.buffer_size_kb(index, buffer));
        self.buffer_of(index, buffer, needed, and)
    }

    /// Advises to give a buffer `kb` KB.
    fn buffer_of(&self, index: usize, buffer: &BufferStats, kb: u64, and: &str) -> String {
        let and = if and.is_empty() {
            String::new()
        } else {
            format!(" {and}")
        };
        match self.wording {
            Wording::Flags => {
                let flag = match kb.is_multiple_of(1024) {
                    true => format!("-b {}mb", kb / 1024),
                    false => format!("-b {kb}kb"),
                };
                format!("raise the buffer to {}{and} with {flag}", Bytes(kb << 10))
            }
            Wording::Config => {
                let size = self.buffer_size_kb(index, buffer);
                format!("raise buffers[{index}].size_kb from {size} to {kb}{and}")
            }
        }
    }

    fn about_shared_memory(&self, buffer: usize) -> String {
        let process = (self.worst_writer)(buffer);
        // The service knows the producer's name, which may differ from the name of its process.
        let (producer, who) = match process.as_deref() {
            Some("traced_probes") => (PROBES, ""),
            Some(name) => (
                name,
                "; producer_name has to be as `ferretto list sources` shows it",
            ),
            None => (
                "PRODUCER",
                "; for PRODUCER write the name that `ferretto list sources` shows",
            ),
        };
        let configured = self
            .config
            .producers
            .iter()
            .find(|configured| configured.producer_name.as_deref() == Some(producer))
            .and_then(|configured| configured.shm_size_kb);
        let (from, to) = match configured.map(u64::from) {
            Some(size) if size >= MAX_SHM_KB => {
                return format!("{producer} has all the shared memory that there may be: let it write less");
            }
            Some(size) => (format!(" (now {size})"), (4 * size).min(MAX_SHM_KB)),
            None => (String::new(), 16 * DEFAULT_SHM_KB),
        };
        let change = format!(
            "give it more: producers {{ producer_name: \"{producer}\" shm_size_kb: {to} page_size_kb: 32 }}{from}{who}; this takes \
             effect when the producer starts again, since its shared memory is made when it is first traced"
        );
        self.wording.in_config(change)
    }

    /// Adds chunks and patches that producers sent for buffers that are not theirs. Other services than ours count these since the service began.
    fn wrong_buffers(&self, account: &mut Account) {
        let before = self.baseline.unwrap_or_default();
        for (count, before, unit, cause) in [
            (
                self.stats.chunks_discarded,
                before.chunks_discarded,
                "chunk",
                "chunk_for_wrong_buffer",
            ),
            (
                self.stats.patches_discarded,
                before.patches_discarded,
                "patch",
                "patch_for_wrong_buffer",
            ),
        ] {
            let count = count.unwrap_or(0).saturating_sub(before);
            if count == 0 {
                continue;
            }
            let what = Counted(count, unit).to_string();
            if self.baseline.is_some() {
                let why = "sent by a producer for a buffer that is not its own, or left by one that died before it said for which";
                account.add(Severity::Loss, cause, what, why, None);
            } else {
                let why = "sent by producers for buffers that are not their own since the service began; whether any was for this \
                           recording is not known";
                account.add(Severity::Note, cause, what, why, None);
            }
        }
    }

    fn packets(&self, account: &mut Account) {
        if let Some(count @ 1..) = self.stats.invalid_packets {
            let what = Counted(count, "packet").to_string();
            let why = "malformed by a producer, so left out";
            account.add(Severity::Loss, "malformed_packet", what, why, None);
        }
        let filter = &self.stats.filter_stats;
        if let Some(count @ 1..) = filter.errors {
            let advice = "check that trace_filter.bytecode_v2 was made for this version's packets".to_owned();
            let what = Counted(count, "packet").to_string();
            let why = "refused by the config's trace_filter";
            account.add(Severity::Loss, "filter_error", what, why, Some(advice));
        }
        if let (Some(input), Some(output)) = (filter.input_bytes, filter.output_bytes)
            && input > output
        {
            let what = format!("{} of {}", Bytes(input - output), Bytes(input));
            let why = "removed by the config's trace_filter";
            account.add(Severity::Note, "filtered", what, why, None);
        }
    }

    fn buffer_name(&self, index: usize) -> String {
        let configured = self
            .config
            .buffers
            .get(index)
            .and_then(|buffer| buffer.name.as_deref());
        match configured {
            Some(name) => format!("buffer {index} {name:?}"),
            None => format!("buffer {index}"),
        }
    }

    fn buffer_size_kb(&self, index: usize, buffer: &BufferStats) -> u64 {
        let configured = self.config.buffers.get(index).and_then(|buffer| buffer.size_kb);
        configured.map_or(buffer.buffer_size.unwrap_or(0) >> 10, u64::from)
    }
}

/// Adds the flushes that producers did not acknowledge in time.
pub(super) fn flushes(case: &Case<'_>, account: &mut Account) {
    let counted = case.stats.and_then(|stats| stats.flushes_failed).unwrap_or(0);
    let outcome = case.stats.and_then(|stats| stats.final_flush_outcome);
    let last_failed =
        case.last_flush == LastFlush::Failed || outcome == Some(FinalFlushOutcome::FINAL_FLUSH_FAILED);
    let what = match (counted, last_failed) {
        (0, false) => return,
        (0, true) => "the last flush".to_owned(),
        (1.., _) => {
            let of = case.stats.and_then(|stats| stats.flushes_requested);
            let of = of.map(|all| format!(" of {all}")).unwrap_or_default();
            let last = if last_failed {
                ", the last one among them"
            } else {
                ""
            };
            format!("{}{of}{last}", Counted(counted, "flush"))
        }
    };
    let late = case
        .evidence
        .and_then(|evidence| listed(&evidence.late_to_flush, SourceOf::to_string));
    let by = late.map(|late| format!(" by {late}")).unwrap_or_default();
    let why = format!("not acknowledged in time{by}; the newest data may be missing");
    let timeout = case.config.flush_timeout_ms.filter(|timeout| *timeout > 0);
    let timeout = timeout.unwrap_or(DEFAULT_FLUSH_TIMEOUT_MS);
    let advice = case.wording.in_config(format!(
        "raise flush_timeout_ms from {timeout} to {}",
        2 * u64::from(timeout)
    ));
    account.add(Severity::Loss, "flush_failed", what, why, Some(advice));
}

/// Returns how full the fullest buffer is, from 0 to 1. `None` without buffers of a known size.
pub(crate) fn fill(stats: &TraceStats) -> Option<f64> {
    stats.buffer_stats.iter().filter_map(buffer_fill).reduce(f64::max)
}

fn buffer_fill(buffer: &BufferStats) -> Option<f64> {
    let size = buffer.buffer_size.filter(|size| *size > 0)?;
    let get = |value: Option<u64>| i128::from(value.unwrap_or(0));
    let used = get(buffer.bytes_written) - get(buffer.bytes_read) - get(buffer.bytes_overwritten)
        + get(buffer.padding_bytes_written)
        - get(buffer.padding_bytes_cleared);
    Some((used.max(0) as f64 / size as f64).min(1.0))
}

/// Returns the number of bytes written into the buffers so far.
pub(crate) fn bytes_written(stats: &TraceStats) -> u64 {
    stats
        .buffer_stats
        .iter()
        .map(|buffer| buffer.bytes_written.unwrap_or(0))
        .fold(0, u64::saturating_add)
}

/// Whether a buffer lost anything. If so, a packet that the trace lacks may have been written.
pub(super) fn has_holes(stats: &TraceStats) -> bool {
    stats.buffer_stats.iter().any(|buffer| {
        [
            buffer.chunks_overwritten,
            buffer.chunks_discarded,
            buffer.trace_writer_packet_loss,
            buffer.patches_failed,
            buffer.oversized_packets_dropped,
            buffer.abi_violations,
        ]
        .into_iter()
        .flatten()
        .any(|count| count > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(buffer: BufferStats) -> TraceStats {
        TraceStats {
            buffer_stats: vec![buffer],
            ..Default::default()
        }
    }

    #[test]
    fn the_fullest_buffer_counts() {
        let buffer = |size, written, read| BufferStats {
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
