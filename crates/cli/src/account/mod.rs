//! What a recording was asked for and does not have, and what it lost: one account, by cause, with what to change about it.
//!
//! Called by the recording ([`perfetto`](crate::perfetto)), for the changing line, the summary and the exit code, and by
//! [`info`](crate::info) for a trace of whatever service in a file. It rests on what is there: the service's counters
//! ([`counters`]), the marks and packets in the trace ([`evidence`]), and what the service told while it recorded ([`watch`]).
//! Where nothing is known, the account claims neither a loss nor that all is there.

pub(crate) mod counters;
pub(crate) mod evidence;
pub(crate) mod kernel;
mod sources;
pub(crate) mod watch;

use ferretto_proto::messages::{TraceConfig, TraceStats};

use counters::Counters;
use evidence::Evidence;
use watch::Watch;

use crate::config::length::Length;
use crate::figures::{Bytes, Elapsed};

#[cfg(test)]
mod tests;

/// Bytes of a packet that is larger than most.
const LARGE_PACKET: u64 = 64 << 10;
/// So many names are listed.
const LISTED: usize = 4;

/// How bad it is. In the order in which it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Something was recorded and lost.
    Loss,
    /// Something was asked for and not recorded.
    Missing,
    /// Worth knowing; nothing is missing.
    Note,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// For scripts: does not change from version to version.
    pub(crate) cause: &'static str,
    /// How much of what: `12 chunks (1.5 MiB) of buffer 0 "main"`.
    pub(crate) what: String,
    /// How that came.
    pub(crate) why: String,
    /// What to change.
    pub(crate) advice: Option<String>,
}

impl Finding {
    /// `what: why`.
    pub(crate) fn sentence(&self) -> String {
        match self.why.as_str() {
            "" => self.what.clone(),
            why => format!("{}: {why}", self.what),
        }
    }
}

/// How the recording was configured, and so what an advice has to name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wording {
    /// By flags and names of events.
    Flags,
    /// By a trace config.
    Config,
}

impl Wording {
    /// A change of a field that no flag sets.
    fn in_config(self, change: String) -> String {
        match self {
            Wording::Flags => {
                format!("write a config (`ferretto config new sched -o sched.cfg`) and {change}")
            }
            Wording::Config => change,
        }
    }
}

/// All that is known of a recording.
pub(crate) struct Case<'a> {
    pub(crate) config: &'a TraceConfig,
    pub(crate) length: Length,
    pub(crate) wording: Wording,
    pub(crate) stats: Option<&'a TraceStats>,
    /// What counters of the whole service showed when the session began, if that is known.
    pub(crate) baseline: Option<Baseline>,
    /// From the packets; `None` if not all of them were seen.
    pub(crate) evidence: Option<&'a Evidence>,
    /// What the service told; `None` if it was not asked from the start on.
    pub(crate) watch: Option<&'a Watch>,
    pub(crate) subject: Subject,
    pub(crate) last_flush: LastFlush,
    /// What the packets came in; `None` if that is not known.
    pub(crate) file: Option<TraceFile>,
    /// The process that lost most in a buffer, where that is known.
    pub(crate) worst_writer: &'a dyn Fn(usize) -> Option<String>,
}

impl<'a> Case<'a> {
    /// A recording of which only the config is known.
    pub(crate) fn of(config: &'a TraceConfig, wording: Wording) -> Case<'a> {
        Case {
            config,
            length: Length::of(config),
            wording,
            stats: None,
            baseline: None,
            evidence: None,
            watch: None,
            subject: Subject::AsMarked,
            last_flush: LastFlush::AsCounted,
            file: None,
            worst_writer: &|_| None,
        }
    }
}

/// What a trace is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A copy of a session, which goes on, so its end is not in there.
    Clone,
    /// A session, or a clone if its packets say so.
    AsMarked,
}

/// Whether producers handed over their newest data when they were asked to in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastFlush {
    /// Not all in time: the recording asked by itself, and was told.
    Failed,
    /// As far as the service's counters say.
    AsCounted,
}

/// A file with a trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceFile {
    /// In bytes, without what it may be compressed with as a whole.
    pub(crate) size: u64,
    pub(crate) state: FileState,
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// No more: the service has said that the recording is over.
    Complete,
    /// It may be, it may have broken off, or somebody still writes.
    Unknown,
}

/// Counters that other services than ours keep for all their sessions together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Baseline {
    pub(crate) chunks_discarded: u64,
    pub(crate) patches_discarded: u64,
}

impl Baseline {
    /// What the stats at the beginning of a session say.
    pub(crate) fn of(stats: &TraceStats) -> Baseline {
        Baseline {
            chunks_discarded: stats.chunks_discarded.unwrap_or(0),
            patches_discarded: stats.patches_discarded.unwrap_or(0),
        }
    }
}

/// The account.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Losses, then what is missing, then notes. Within these, causes before what follows from them.
    pub(crate) findings: Vec<Finding>,
    /// The recording has none of the data sources that were asked for.
    pub(crate) is_void: bool,
}

impl Account {
    /// Gives an account of a recording.
    pub(crate) fn of(case: &Case<'_>) -> Account {
        let mut account = Account::default();
        account.judge(case);
        account
    }

    /// Adds what is to be said of a recording.
    pub(crate) fn judge(&mut self, case: &Case<'_>) {
        if let Some(stats) = case.stats {
            Counters::of(case, stats).add_to(self);
        }
        counters::flushes(case, self);
        sources::add_to(case, self);
        self.end_of_session(case);
    }

    /// The service could not write all of the trace, and what there was of its last packet was taken away.
    pub(crate) fn add_cut_off(&mut self) {
        let why = "the service's last packet is incomplete and was removed; is the disk full?";
        let advice = "free some space, or choose another place with -o".to_owned();
        self.add(
            Severity::Loss,
            "file_cut",
            "the end of the trace",
            why,
            Some(advice),
        );
    }

    /// Adds a cause, behind those that are as bad.
    pub(crate) fn add(
        &mut self,
        severity: Severity,
        cause: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        advice: Option<String>,
    ) {
        let finding = Finding {
            severity,
            cause,
            what: what.into(),
            why: why.into(),
            advice,
        };
        let place = self.findings.partition_point(|known| known.severity <= severity);
        self.findings.insert(place, finding);
    }

    /// Whether all that was asked for is there, as far as is known.
    pub(crate) fn is_whole(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity == Severity::Note)
    }

    /// Whether a ring buffer overwrote its oldest data.
    pub(crate) fn has_wrapped(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.cause == "buffer_overwritten")
    }

    /// Services that note the start of a session note its end, too. Ours also notes if it was told to end, and so ended the session.
    fn end_of_session(&mut self, case: &Case<'_>) {
        let Some(evidence) = case.evidence_of_session() else {
            return;
        };
        if let Some(after) = evidence.ended_by_the_service() {
            let what = after.map(|after| format!("everything after {}", Elapsed(after)));
            let what = what.unwrap_or_else(|| "the rest".to_owned());
            let why = "the recording ended then, because the tracing service was told to end";
            let advice =
                "record again when the service is back: `ferretto status` says whether it is".to_owned();
            self.add(Severity::Missing, "service_ended", what, why, Some(advice));
        }
        if evidence.has_ended {
            return;
        }
        let breaks_off = evidence.has_begun() && !case.config.trace_filter.is_set();
        if let Some((file, limit)) = case.limited_file()
            && (has_reached(limit, file.size) || breaks_off && file.state == FileState::Complete)
        {
            self.file_full(case, file.size, limit);
        } else if breaks_off {
            let why = "the service did not note the end of the session in it: it broke off, or is still being written";
            self.add(Severity::Loss, "no_end", "the end of the trace", why, None);
        }
    }

    /// The service closes a file that takes no more, and then ends the session, which it cannot note in there.
    fn file_full(&mut self, case: &Case<'_>, size: u64, limit: u64) {
        let what = format!("what came after {}", Bytes(size));
        let larger = 2 * u128::from(limit);
        let (limit, advice) = match case.wording {
            Wording::Flags => (
                Bytes(limit).to_string(),
                format!("for a longer one write -s {}", larger.div_ceil(1 << 20)) + "mb",
            ),
            Wording::Config => (
                format!("max_file_size_bytes: {limit}"),
                format!("for a longer one raise max_file_size_bytes from {limit} to {larger}"),
            ),
        };
        let why = format!("the file reached its size limit ({limit}), which ends the recording");
        self.add(Severity::Note, "file_full", what, why, Some(advice));
    }
}

impl Case<'_> {
    /// The evidence that a session left from its beginning to its end; `None` of clones.
    fn evidence_of_session(&self) -> Option<&Evidence> {
        self.evidence
            .filter(|evidence| self.subject != Subject::Clone && !evidence.is_clone)
    }

    /// The file, and how large it may be, if there is a limit and the service keeps to it.
    fn limited_file(&self) -> Option<(TraceFile, u64)> {
        let limit = self.config.max_file_size_bytes.filter(|limit| *limit > 0)?;
        let is_streamed = self.config.write_into_file == Some(true);
        self.file.filter(|_| is_streamed).map(|file| (file, limit))
    }
}

/// Whether a file of this size is about as large as it may be. Services write whole packets, and stop at the first one that does not fit.
fn has_reached(limit: u64, size: u64) -> bool {
    let packet = LARGE_PACKET.min(limit / 2);
    limit.saturating_sub(size) <= packet.max(limit / 20)
}

/// The first of some names, and how many more there are; `None` if there are none.
pub(crate) fn listed<T>(items: &[T], name: impl Fn(&T) -> String) -> Option<String> {
    if items.is_empty() {
        return None;
    }
    let mut names: Vec<String> = items.iter().take(LISTED).map(name).collect();
    if items.len() > LISTED {
        names.push(format!("{} more", items.len() - LISTED));
    }
    Some(names.join(", "))
}

/// A size that people would choose, of at least this: 1 or 1.5 times a power of two.
fn roomy(kb: u64) -> u64 {
    let power = kb.max(4).checked_next_power_of_two().unwrap_or(u64::MAX);
    if power / 4 * 3 >= kb.max(4) {
        power / 4 * 3
    } else {
        power
    }
}

/// What people call a producer.
pub(crate) fn producer_name(producer: &str) -> &str {
    producer.strip_prefix("perfetto.").unwrap_or(producer)
}
