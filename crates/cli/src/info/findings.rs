//! What is missing in a trace, by cause, and what to change about it in the config.
//!
//! Called by [`report`](super::report) and [`json`](super::json) with the gathered [`Summary`]. Counters are those of
//! upstream's `trace_stats.proto`; what the config says, and what it should say instead, is quoted as one would type it. Advice
//! is only given where it follows from the numbers.

use std::collections::BTreeSet;

use ferretto_proto::messages::trace_stats::{BufferStats, FinalFlushOutcome};
use ferretto_proto::messages::{TraceConfig, TraceStats};
use ferretto_proto::write::TracePacket;

use super::sequences::{GapReason, OTHERS, Sequence};
use super::summary::{Late, Summary};
use crate::perfetto::figures::{Bytes, Counted};
use crate::trace_reader::End;

#[cfg(test)]
mod tests;

/// What upstream's service, and ours, gives a producer that does not say.
const DEFAULT_SHM_KB: u64 = 256;
/// More shared memory is not given to anybody.
const MAX_SHM_KB: u64 = 32 << 10;
/// From here on a buffer is better streamed into a file than made larger.
const LARGE_BUFFER_KB: u64 = 1 << 20;
/// How often a file is written, and kernel buffers are emptied, unless the config says.
const DEFAULT_FILE_WRITE_PERIOD_MS: u32 = 5000;
const MIN_FILE_WRITE_PERIOD_MS: u32 = 100;
const DEFAULT_FLUSH_TIMEOUT_MS: u32 = 5000;
/// So many names are listed.
const LISTED: usize = 4;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Something is lost.
    Loss,
    /// Something is not there that was asked for, or is otherwise worth knowing.
    Note,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// For scripts: does not change from version to version.
    pub(super) cause: &'static str,
    /// How much of what: `12 chunks (1.5 MiB) of buffer 0 "main"`.
    pub(super) what: String,
    /// How that came.
    pub(super) why: String,
    /// What to change.
    pub(super) advice: Option<String>,
}

/// All findings: losses first, those from which others follow before these.
pub(super) fn findings(summary: &Summary, end: &End) -> Vec<Finding> {
    let mut findings = Findings {
        summary,
        config: summary.config.clone().unwrap_or_default(),
        found: Vec::new(),
    };
    findings.file(end);
    if let Some(stats) = &summary.stats {
        for (index, buffer) in stats.buffer_stats.iter().enumerate() {
            findings.buffer(index, buffer);
        }
        findings.session(stats);
    }
    findings.sequences();
    findings.kernel();
    findings.data_sources();
    findings.limits(end);
    findings.found.sort_by_key(|finding| finding.severity);
    findings.found
}

struct Findings<'a> {
    summary: &'a Summary,
    config: TraceConfig,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(
        &mut self,
        severity: Severity,
        cause: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        advice: Option<String>,
    ) {
        self.found.push(Finding {
            severity,
            cause,
            what: what.into(),
            why: why.into(),
            advice,
        });
    }

    fn lost(&mut self, cause: &'static str, what: String, why: &str, advice: Option<String>) {
        self.add(Severity::Loss, cause, what, why, advice);
    }

    fn file(&mut self, end: &End) {
        let summary = self.summary;
        if summary.damaged > 0 {
            let skipped = summary.damages.iter().map(|damage| damage.skipped).sum();
            let first = summary
                .damages
                .first()
                .map(ToString::to_string)
                .unwrap_or_default();
            let what = format!(
                "{} ({}) of the file",
                Counted(summary.damaged, "damaged place"),
                Bytes(skipped)
            );
            self.lost("file_damaged", what, &format!("the first is {first}"), None);
        }
        if let Some(cut) = &end.cut {
            let what = "the end of the file".to_owned();
            let why = format!("it {cut}");
            let advice = "if it is still being written, look again when it is complete".to_owned();
            self.lost("file_cut", what, &why, Some(advice));
        }
        if summary.stats.is_none() && summary.all.packets > 0 {
            let why = "the service writes its counters last; what the buffers lost is not known";
            self.add(
                Severity::Note,
                "no_stats",
                "no trace stats in the file",
                why,
                None,
            );
        }
    }

    fn buffer(&mut self, index: usize, buffer: &BufferStats) {
        let name = self.buffer_name(index);
        let chunks = |count: u64, bytes: u64| {
            let bytes = if bytes > 0 {
                format!(" ({})", Bytes(bytes))
            } else {
                String::new()
            };
            format!("{}{bytes} of {name}", Counted(count, "chunk"))
        };
        if let Some(count @ 1..) = buffer.chunks_overwritten {
            let bytes = buffer.bytes_overwritten.unwrap_or(0);
            let (why, advice) = self.about_overwriting(index, buffer, bytes);
            self.lost("buffer_overwritten", chunks(count, bytes), why, Some(advice));
        }
        if let Some(count @ 1..) = buffer.chunks_discarded {
            let size = self.buffer_size_kb(index, buffer);
            let advice = format!(
                "raise buffers[{index}].size_kb from {size} to {} or more, or keep the newest data instead of the oldest: \
                 fill_policy: RING_BUFFER",
                roomy(2 * size)
            );
            let why = "came when the buffer was full, and its policy is DISCARD";
            self.lost("buffer_full", chunks(count, 0), why, Some(advice));
        }
        if let Some(count @ 1..) = buffer.trace_writer_packet_loss {
            let advice = self.about_shared_memory(index);
            let what = format!("{} in {name}", Counted(count, "gap"));
            let why = "producers wrote faster than the service took it, and their shared memory was full";
            self.lost("shared_memory_full", what, why, Some(advice));
        }
        if let Some(count @ 1..) = buffer.patches_failed {
            let size = self.buffer_size_kb(index, buffer);
            let advice = format!(
                "raise buffers[{index}].size_kb from {size} to {}",
                roomy(2 * size)
            );
            let what = format!("{} for {name}", Counted(count, "patch"));
            let why = "came after their packets had been overwritten, which are incomplete therefore";
            self.lost("patch_too_late", what, why, Some(advice));
        }
        if let Some(count @ 1..) = buffer.oversized_packets_dropped {
            let size = self.buffer_size_kb(index, buffer);
            let advice = format!(
                "raise buffers[{index}].size_kb from {size} to {}",
                roomy(2 * size)
            );
            let what = format!("{} for {name}", Counted(count, "packet"));
            self.lost(
                "packet_too_large",
                what,
                "did not fit into the buffer at all",
                Some(advice),
            );
        }
        if let Some(count @ 1..) = buffer.abi_violations {
            let why = "a producer broke the rules of shared memory; what it wrote there is left out";
            let advice = "see the service's log for the producer, and update it".to_owned();
            self.lost("malformed_chunk", chunks(count, 0), why, Some(advice));
        }
    }

    /// Why a buffer was overwritten, and what helps. Of a ring buffer that is the point: only who wants more needs advice.
    fn about_overwriting(&self, index: usize, buffer: &BufferStats, bytes: u64) -> (&'static str, String) {
        let size = self.buffer_size_kb(index, buffer);
        if self.config.write_into_file == Some(true) {
            let period = self
                .config
                .file_write_period_ms
                .unwrap_or(DEFAULT_FILE_WRITE_PERIOD_MS);
            let shorter = (period / 2).max(MIN_FILE_WRITE_PERIOD_MS);
            let larger = format!(
                "raise buffers[{index}].size_kb from {size} to {}",
                roomy(2 * size)
            );
            let advice = if shorter < period {
                format!("lower file_write_period_ms from {period} to {shorter}, or {larger}")
            } else {
                larger
            };
            return ("overwritten before they were written into the file", advice);
        }
        let needed = roomy(size + bytes.div_ceil(1024));
        let keep_all = if needed <= LARGE_BUFFER_KB {
            format!(
                "to keep all of it raise buffers[{index}].size_kb from {size} to {needed}, record shorter, or stream into a file \
                 (write_into_file: true)"
            )
        } else {
            format!(
                "to keep all of it, which takes {}, stream into a file (write_into_file: true) or record shorter",
                Bytes(needed << 10)
            )
        };
        (
            "overwritten by newer data: the buffer is a ring, and was full",
            keep_all,
        )
    }

    fn about_shared_memory(&self, buffer: usize) -> String {
        let affected = |sequence: &Sequence| {
            let mut gaps = sequence.gaps.iter();
            gaps.any(|(reason, _)| matches!(reason, GapReason::SharedMemoryFull | GapReason::Unknown))
        };
        // The sequence with the most gaps, of those in this buffer if the trace tells which are.
        let worst = self
            .summary
            .sequences
            .largest_first()
            .into_iter()
            .filter(|(id, sequence)| {
                let elsewhere = self.summary.buffer_of.get(id);
                affected(sequence) && elsewhere.is_none_or(|at| *at as usize == buffer)
            })
            .max_by_key(|(_, sequence)| sequence.all_gaps());
        let process = worst.and_then(|(_, sequence)| self.summary.process_name(sequence.pid?));
        let producer = match process {
            Some("traced_probes") => "perfetto.traced_probes",
            Some(name) => name,
            None => "PRODUCER",
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
        format!(
            "give it more: producers {{ producer_name: \"{producer}\" shm_size_kb: {to} page_size_kb: 32 }}{from}; it counts \
             for producers that connect later"
        )
    }

    fn session(&mut self, stats: &TraceStats) {
        for (count, unit, cause) in [
            (stats.chunks_discarded, "chunk", "chunk_for_wrong_buffer"),
            (stats.patches_discarded, "patch", "patch_for_wrong_buffer"),
        ] {
            if let Some(count @ 1..) = count {
                let what = Counted(count, unit).to_string();
                self.lost(
                    cause,
                    what,
                    "sent by a producer for a buffer that is not its own",
                    None,
                );
            }
        }
        if let Some(count @ 1..) = stats.invalid_packets {
            let what = Counted(count, "packet").to_string();
            self.lost(
                "malformed_packet",
                what,
                "malformed by a producer, so left out",
                None,
            );
        }
        let filter = &stats.filter_stats;
        if let Some(count @ 1..) = filter.errors {
            let advice = "check that trace_filter.bytecode_v2 was made for this version's packets".to_owned();
            let what = Counted(count, "packet").to_string();
            self.lost(
                "filter_error",
                what,
                "refused by the config's trace_filter",
                Some(advice),
            );
        }
        if let (Some(input), Some(output)) = (filter.input_bytes, filter.output_bytes)
            && input > output
        {
            let what = format!("{} of {}", Bytes(input - output), Bytes(input));
            let why = "removed by the config's trace_filter, as it should";
            self.add(Severity::Note, "filtered", what, why, None);
        }
        let timeout = self.config.flush_timeout_ms.filter(|timeout| *timeout > 0);
        let timeout = timeout.unwrap_or(DEFAULT_FLUSH_TIMEOUT_MS);
        let advice = format!(
            "raise flush_timeout_ms from {timeout} to {}",
            2 * u64::from(timeout)
        );
        let failed = stats.final_flush_outcome == Some(FinalFlushOutcome::FINAL_FLUSH_FAILED);
        let why = match listed(&self.summary.late_to_flush, late_name) {
            Some(late) => format!("not acknowledged in time by {late}; the newest data may be missing"),
            None => "not acknowledged in time; the newest data may be missing".to_owned(),
        };
        match stats.flushes_failed {
            Some(count @ 1..) => {
                let last = if failed { ", the last one among them" } else { "" };
                let of = stats
                    .flushes_requested
                    .map(|all| format!(" of {all}"))
                    .unwrap_or_default();
                let what = format!("{}{of}{last}", Counted(count, "flush"));
                self.lost("flush_failed", what, &why, Some(advice));
            }
            _ if failed => self.lost("flush_failed", "the last flush".to_owned(), &why, Some(advice)),
            _ => {}
        }
    }

    /// What the marks in packets say, reason by reason.
    fn sequences(&mut self) {
        let all = self.summary.sequences.largest_first();
        for (reason, cause, why, advice) in GAPS {
            let with = |sequence: &Sequence| {
                let mut gaps = sequence.gaps.iter();
                gaps.find(|(known, _)| *known == reason)
                    .map_or(0, |(_, count)| *count)
            };
            let mut affected: Vec<_> = all.iter().filter(|(_, sequence)| with(sequence) > 0).collect();
            affected.sort_by_key(|(_, sequence)| std::cmp::Reverse(with(sequence)));
            let total: u64 = affected.iter().map(|(_, sequence)| with(sequence)).sum();
            if total == 0 {
                continue;
            }
            let what = format!(
                "{} in {}: {}",
                Counted(total, "gap"),
                Counted(affected.len() as u64, "sequence"),
                listed(&affected, |(id, sequence)| self.sequence_name(*id, sequence)).unwrap_or_default()
            );
            self.lost(cause, what, why, advice.map(str::to_owned));
        }
        let useless: u64 = all.iter().map(|(_, sequence)| sequence.useless).sum();
        if useless > 0 {
            let mut affected: Vec<_> = all.iter().filter(|(_, sequence)| sequence.useless > 0).collect();
            affected.sort_by_key(|(_, sequence)| std::cmp::Reverse(sequence.useless));
            let what = format!(
                "{} in {}: {}",
                Counted(useless, "packet"),
                Counted(affected.len() as u64, "sequence"),
                listed(&affected, |(id, sequence)| self.sequence_name(*id, sequence)).unwrap_or_default()
            );
            let period = self
                .config
                .incremental_state_config
                .clear_period_ms
                .filter(|period| *period > 0);
            let advice = match period {
                Some(period) => format!(
                    "lower incremental_state_config {{ clear_period_ms: {period} }} to {}",
                    (period / 2).max(1)
                ),
                None => {
                    "have writers start over now and then: incremental_state_config { clear_period_ms: 5000 }"
                        .to_owned()
                }
            };
            let why = "refer to packets before them that are lost, so readers pass them over";
            self.lost("state_lost", what, why, Some(advice));
        }
        if self.summary.timeless > 0 {
            let what = Counted(self.summary.timeless, "packet").to_string();
            let why = "their clock is in no clock snapshot before them, so their time is not known";
            self.add(Severity::Note, "clock_unknown", what, why, None);
        }
    }

    fn kernel(&mut self) {
        let ftrace = self
            .config
            .data_sources
            .iter()
            .find_map(|source| source.config.ftrace_config.as_option());
        let buffer = ftrace
            .and_then(|config| config.buffer_size_kb)
            .filter(|size| *size > 0);
        let larger = match buffer {
            Some(size) => format!(
                "raise ftrace_config.buffer_size_kb from {size} to {}",
                roomy(2 * u64::from(size))
            ),
            None => "set ftrace_config.buffer_size_kb: 8192 (per CPU)".to_owned(),
        };
        let advice = match ftrace
            .and_then(|config| config.drain_period_ms)
            .filter(|period| *period > 100)
        {
            Some(period) => format!(
                "{larger}, or lower ftrace_config.drain_period_ms from {period} to {}",
                period / 2
            ),
            None => format!("{larger}, or ask for fewer events"),
        };
        let why = "the kernel's buffers were full before they were read";
        let summary = self.summary;
        if let Some(loss) = summary.kernel.losses() {
            self.lost("kernel_buffer_overrun", loss.what, why, Some(advice));
        } else if summary.bundles_after_a_loss > 0 {
            let what = format!("kernel events, {}", Counted(summary.bundles_after_a_loss, "time"));
            self.lost("kernel_buffer_overrun", what, why, Some(advice));
        }
        if summary.kernel_page_errors > 0 {
            let what = Counted(summary.kernel_page_errors, "page").to_string() + " of kernel events";
            self.lost(
                "kernel_page_unreadable",
                what,
                "were not what the kernel's format says",
                None,
            );
        }
        for note in summary.kernel.notes() {
            self.add(Severity::Note, "kernel_event_unavailable", note, "", None);
        }
    }

    fn data_sources(&mut self) {
        let sources = self.config.data_sources.iter();
        let names: BTreeSet<String> = sources.filter_map(|source| source.config.name.clone()).collect();
        for name in names
            .into_iter()
            .filter(|name| self.is_silent(name))
            .collect::<Vec<_>>()
        {
            let advice = if name.starts_with("linux.") {
                "see whether traced_probes is running and may do it: `ferretto doctor`"
            } else {
                "see whether a producer offers it: `perfetto --query`"
            };
            let what = format!("nothing of the data source {name}");
            let why = "the config asks for it, and the trace has no packet of its kinds";
            self.add(
                Severity::Note,
                "data_source_silent",
                what,
                why,
                Some(advice.to_owned()),
            );
        }
        if let Some(late) = listed(&self.summary.late_to_start, late_name) {
            let what = format!("the beginning of {late}");
            let why = "started late, others did not wait";
            self.add(Severity::Note, "data_source_late", what, why, None);
        }
    }

    /// Whether a data source whose packets are known left none.
    fn is_silent(&self, name: &str) -> bool {
        let kinds: &[u32] = match name {
            "linux.ftrace" => &[TracePacket::FTRACE_EVENTS, TracePacket::FTRACE_STATS],
            "linux.process_stats" => &[TracePacket::PROCESS_TREE, TracePacket::PROCESS_STATS],
            "linux.sys_stats" => &[TracePacket::SYS_STATS],
            "linux.system_info" => &[TracePacket::CPU_INFO, TracePacket::INTERRUPT_INFO],
            "track_event" => &[TracePacket::TRACK_EVENT, TracePacket::TRACK_DESCRIPTOR],
            _ => return false,
        };
        !kinds.iter().any(|kind| self.summary.kinds.contains_key(kind))
    }

    fn limits(&mut self, end: &End) {
        if let Some(limit @ 1..) = self.config.max_file_size_bytes
            && self.config.write_into_file == Some(true)
            && end.size >= limit / 100 * 95
        {
            let what = format!("what came after {}", Bytes(end.size));
            let why = format!(
                "the file was as large as max_file_size_bytes allows ({})",
                Bytes(limit)
            );
            let advice = format!(
                "raise max_file_size_bytes from {limit} to {}",
                2 * u128::from(limit)
            );
            self.add(Severity::Note, "file_full", what, why, Some(advice));
        }
        if self.summary.more_configs > 0 {
            let what = format!("{} traces in one file", self.summary.more_configs + 1);
            let why = "sequences of different traces may have the same id; what is said here is of all of them together";
            self.add(Severity::Note, "several_traces", what, why, None);
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

    fn sequence_name(&self, id: u32, sequence: &Sequence) -> String {
        let process = sequence.pid.and_then(|pid| self.summary.process_name(pid));
        match (process, sequence.pid) {
            _ if id == OTHERS => "others".to_owned(),
            (Some(name), Some(pid)) => format!("{id} ({name}, pid {pid})"),
            (_, Some(pid)) => format!("{id} (pid {pid})"),
            (_, None) => id.to_string(),
        }
    }
}

/// What the marks mean: reason, cause, explanation, advice.
const GAPS: [(GapReason, &str, &str, Option<&str>); 7] = [
    (
        GapReason::SharedMemoryFull,
        "gap_shared_memory_full",
        "the producer's shared memory was full, so packets were never written",
        Some("raise shm_size_kb of that producer (producers { … } in the config)"),
    ),
    (
        GapReason::Overwritten,
        "gap_overwritten",
        "the buffer was overwritten before these packets were read",
        Some("raise size_kb of its buffer"),
    ),
    (
        GapReason::GivenUp,
        "gap_given_up",
        "the writer gave up in the middle of a packet",
        None,
    ),
    (
        GapReason::Fragments,
        "gap_fragments",
        "a part of a packet is missing, so all of it is",
        None,
    ),
    (
        GapReason::CorruptedChunk,
        "gap_corrupted_chunk",
        "a producer wrote what is no packet",
        None,
    ),
    (
        GapReason::ReadGap,
        "gap_in_chunks",
        "chunks are missing in the buffer: overwritten, or never committed",
        None,
    ),
    (
        GapReason::Unknown,
        "gap",
        "packets are missing; who wrote the trace does not say why",
        None,
    ),
];

/// A size that people would choose, of at least this: 1 or 1.5 times a power of two.
fn roomy(kb: u64) -> u64 {
    let power = kb.max(4).checked_next_power_of_two().unwrap_or(u64::MAX);
    if power / 4 * 3 >= kb.max(4) {
        power / 4 * 3
    } else {
        power
    }
}

/// The first of some names, and how many more there are; `None` if there are none.
fn listed<T>(items: &[T], name: impl Fn(&T) -> String) -> Option<String> {
    if items.is_empty() {
        return None;
    }
    let mut names: Vec<String> = items.iter().take(LISTED).map(name).collect();
    if items.len() > LISTED {
        names.push(format!("{} more", items.len() - LISTED));
    }
    Some(names.join(", "))
}

fn late_name(late: &Late) -> String {
    format!("{} of {}", late.source, late.producer)
}
