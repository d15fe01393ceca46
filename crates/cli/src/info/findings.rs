//! Turns the summary of a trace into findings: missing data by cause, with advice about the config.
//!
//! [`report`](super::report) and [`json`](super::json) call it with the gathered [`Summary`]. It extends the [`Account`] that recordings give as
//! well: with the state of the file, the marks in the trace's sequences, and the limits of `info` itself.

use ferretto_proto::messages::TraceConfig;

use super::sequences::{GapReason, OTHERS, Sequence};
use super::summary::Summary;
use crate::account::{Account, Baseline, Case, FileState, Severity, TraceFile, Wording, listed};
use crate::config::length::Length;
use crate::figures::{Bytes, Counted};
use ferretto_trace_file::End;

#[cfg(test)]
mod tests;

/// Returns the account of a trace. The state of the file comes before other findings of the same severity.
pub(super) fn account(summary: &Summary, end: &End) -> Account {
    let config = summary.config.clone().unwrap_or_default();
    let ours = |version: &str| version.contains("(Ferretto ");
    let service = summary
        .system
        .as_ref()
        .and_then(|system| system.tracing_service_version.as_deref());
    let mut findings = Findings {
        summary,
        config: &config,
        account: Account::default(),
    };
    findings.file(end);
    findings.account.judge(&Case {
        stats: summary.stats.as_ref(),
        // Our service counts these from zero for each session.
        baseline: service.is_some_and(ours).then_some(Baseline::default()),
        evidence: Some(&summary.evidence),
        file: Some(TraceFile {
            size: end.size,
            state: FileState::Unknown,
        }),
        worst_writer: &|buffer| worst_writer(summary, buffer),
        ..Case::of(&config, Wording::Config)
    });
    findings.sequences();
    findings.limits();
    findings.account
}

/// Whether the trace has statistics and, as far as is known, all requested data.
pub(super) fn is_whole(summary: &Summary, account: &Account) -> bool {
    summary.stats.is_some() && account.is_whole()
}

/// Returns the process whose sequence has the most gaps, among the sequences of this buffer if the trace tells which these are.
fn worst_writer(summary: &Summary, buffer: usize) -> Option<String> {
    let affected = |sequence: &Sequence| {
        let mut gaps = sequence.gaps.iter();
        gaps.any(|(reason, _)| matches!(reason, GapReason::SharedMemoryFull | GapReason::Unknown))
    };
    let (_, worst) = summary
        .sequences
        .largest_first()
        .into_iter()
        .filter(|(id, sequence)| {
            let elsewhere = summary.buffer_of.get(id);
            affected(sequence) && elsewhere.is_none_or(|at| *at as usize == buffer)
        })
        .max_by_key(|(_, sequence)| sequence.all_gaps())?;
    summary.process_name(worst.pid?).map(str::to_owned)
}

struct Findings<'a> {
    summary: &'a Summary,
    config: &'a TraceConfig,
    account: Account,
}

impl Findings<'_> {
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
            let why = format!("the first is {first}");
            self.account.add(Severity::Loss, "file_damaged", what, why, None);
        }
        if let Some(cut) = &end.cut {
            let why = format!("it {cut}");
            let advice = "if it is still being written, look again when it is complete".to_owned();
            let what = "the end of the file";
            self.account
                .add(Severity::Loss, "file_cut", what, why, Some(advice));
        }
        if summary.stats.is_none() && summary.all.packets > 0 {
            let why = "the service writes its counters last; the losses of the buffers are not known";
            self.account.add(
                Severity::Note,
                "no_stats",
                "no trace stats in the file",
                why,
                None,
            );
        }
    }

    /// Adds the gaps that packets are marked with, by reason.
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
            // A flight recorder is meant to overwrite its oldest data.
            let severity = match reason {
                GapReason::Overwritten if self.keeps_the_newest() => Severity::Note,
                _ => Severity::Loss,
            };
            self.account
                .add(severity, cause, what, why, advice.map(str::to_owned));
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
            // The start of a wrapped ring buffer refers to overwritten packets, until each writer clears its incremental state.
            let begins_so = affected.iter().all(|(_, sequence)| {
                sequence.useless == sequence.useless_at_first && (sequence.was_cleared || period.is_some())
            });
            let (severity, why) = match self.keeps_the_newest() && begins_so {
                true => (
                    Severity::Note,
                    "refer to what the ring buffer has overwritten, so readers pass over the beginning of these sequences",
                ),
                false => (
                    Severity::Loss,
                    "refer to packets before them that are lost, so readers pass them over",
                ),
            };
            self.account.add(severity, "state_lost", what, why, Some(advice));
        }
        if self.summary.timeless > 0 {
            let what = Counted(self.summary.timeless, "packet").to_string();
            let why = "their clock is in no clock snapshot before them, so their time is not known";
            self.account.add(Severity::Note, "clock_unknown", what, why, None);
        }
    }

    fn limits(&mut self) {
        if self.summary.more_configs > 0 {
            let what = format!("{} traces in one file", self.summary.more_configs + 1);
            let why = "sequences of different traces may have the same id; these lines are about all of them together";
            self.account
                .add(Severity::Note, "several_traces", what, why, None);
        }
    }

    /// Whether this is a flight recorder's trace. A recording that lasted as long as a command looks the same, because the trace does not note it.
    fn keeps_the_newest(&self) -> bool {
        Length::of(self.config).keeps_the_newest(self.config)
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

/// The meaning of the marks: reason, cause, explanation, advice.
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
        "a producer wrote data that is no packet",
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
        "packets are missing; the writer of the trace does not say why",
        None,
    ),
];
