//! Compares a recording with its config: one finding for each cause of missing or lost data, with advice.
//!
//! The recording ([`perfetto`](crate::perfetto)) calls it for the progress line, the summary and the exit code. [`info`](crate::info) calls it for a
//! trace file from any service. It uses the service's counters ([`counters`]), the marks and packets in the trace ([`evidence`]), and the
//! notifications during the recording ([`watch`]). Without such information, the account reports neither a loss nor completeness.

pub(crate) mod counters;
pub(crate) mod evidence;
mod heaps;
pub(crate) mod kernel;
mod samples;
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

/// The size in bytes of a packet that is larger than most.
const LARGE_PACKET: u64 = 64 << 10;
/// The most names that are listed.
const LISTED: usize = 4;

/// How bad a finding is. Findings are reported in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Something was recorded and lost.
    Loss,
    /// Something was asked for and not recorded.
    Missing,
    /// Worth knowing; nothing is missing.
    Note,
}

/// One cause of missing or lost data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// An identifier for scripts. It does not change from version to version.
    pub(crate) cause: &'static str,
    /// The amount and the kind: `12 chunks (1.5 MiB) of buffer 0 "main"`.
    pub(crate) what: String,
    /// The reason.
    pub(crate) why: String,
    /// A change that would help.
    pub(crate) advice: Option<String>,
}

impl Finding {
    /// Formats it as `what: why`.
    pub(crate) fn sentence(&self) -> String {
        match self.why.as_str() {
            "" => self.what.clone(),
            why => format!("{}: {why}", self.what),
        }
    }
}

/// How the user configured the recording. Advice uses the same terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wording {
    /// By flags and names of events.
    Flags,
    /// By a trace config.
    Config,
}

impl Wording {
    /// Advises to change a field that has no flag.
    fn in_config(self, change: String) -> String {
        match self {
            Wording::Flags => {
                format!("write a config (`ferretto config new sched -o sched.cfg`) and {change}")
            }
            Wording::Config => change,
        }
    }
}

/// Everything that is known of a recording.
pub(crate) struct Case<'a> {
    pub(crate) config: &'a TraceConfig,
    pub(crate) length: Length,
    pub(crate) wording: Wording,
    pub(crate) stats: Option<&'a TraceStats>,
    /// Service-wide counters at the start of the session, if known.
    pub(crate) baseline: Option<Baseline>,
    /// The evidence from the packets; `None` if some packets were not seen.
    pub(crate) evidence: Option<&'a Evidence>,
    /// The service's notifications; `None` if they were not requested from the start.
    pub(crate) watch: Option<&'a Watch>,
    pub(crate) subject: Subject,
    pub(crate) last_flush: LastFlush,
    /// The file with the packets; `None` if it is not known.
    pub(crate) file: Option<TraceFile>,
    /// Returns the process that lost most in a buffer, if known.
    pub(crate) worst_writer: &'a dyn Fn(usize) -> Option<String>,
}

impl<'a> Case<'a> {
    /// Makes a case of which only the config is known.
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

/// The kind of session that a trace comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A clone of a session. The session goes on, so the clone has no note of its end.
    Clone,
    /// A session, or a clone if its packets say so.
    AsMarked,
}

/// Whether producers handed over their newest data in the final flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastFlush {
    /// Some did not in time. The recording requested this flush itself and got the failure.
    Failed,
    /// The service's counters have the outcome.
    AsCounted,
}

/// A file with a trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceFile {
    /// In bytes. For a file that is compressed as a whole, the size of its content.
    pub(crate) size: u64,
    pub(crate) state: FileState,
}

/// Whether the file is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileState {
    /// It is: the service reported the end of the recording.
    Complete,
    /// Unknown. It may be finished, cut short, or still being written.
    Unknown,
}

/// Counters that other services than ours share between all sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Baseline {
    pub(crate) chunks_discarded: u64,
    pub(crate) patches_discarded: u64,
}

impl Baseline {
    /// Reads the counters from the stats at the beginning of a session.
    pub(crate) fn of(stats: &TraceStats) -> Baseline {
        Baseline {
            chunks_discarded: stats.chunks_discarded.unwrap_or(0),
            patches_discarded: stats.patches_discarded.unwrap_or(0),
        }
    }
}

/// The account of a recording.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Losses, then missing data, then notes. Within each kind, a cause comes before its consequences.
    pub(crate) findings: Vec<Finding>,
    /// Whether the recording has none of the data sources that the user requested.
    pub(crate) is_void: bool,
}

impl Account {
    /// Gives an account of a recording.
    pub(crate) fn of(case: &Case<'_>) -> Account {
        let mut account = Account::default();
        account.judge(case);
        account
    }

    /// Adds the findings about a recording.
    pub(crate) fn judge(&mut self, case: &Case<'_>) {
        if let Some(stats) = case.stats {
            Counters::of(case, stats).add_to(self);
        }
        counters::flushes(case, self);
        sources::add_to(case, self);
        self.end_of_session(case);
    }

    /// Adds the finding that the service could not write the whole trace, so that the incomplete last packet was removed.
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

    /// Adds a finding after those of the same severity.
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

    /// Whether nothing is known to be missing.
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

    /// Services that note the start of a session also note its end. Ours also notes that it had to end, and therefore ended the session.
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

    /// Reports a full file. The service closes such a file and ends the session, so the file has no note about it.
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
    /// Returns the evidence from a session's beginning to its end; `None` for clones.
    fn evidence_of_session(&self) -> Option<&Evidence> {
        self.evidence
            .filter(|evidence| self.subject != Subject::Clone && !evidence.is_clone)
    }

    /// Returns the file and its size limit, if there is a limit that the service enforces.
    fn limited_file(&self) -> Option<(TraceFile, u64)> {
        let limit = self.config.max_file_size_bytes.filter(|limit| *limit > 0)?;
        let is_streamed = self.config.write_into_file == Some(true);
        self.file.filter(|_| is_streamed).map(|file| (file, limit))
    }
}

/// Whether a file of this size is close to its limit. Services write whole packets, and stop at the first one that does not fit.
fn has_reached(limit: u64, size: u64) -> bool {
    let packet = LARGE_PACKET.min(limit / 2);
    limit.saturating_sub(size) <= packet.max(limit / 20)
}

/// Lists the first few names and the number of the others; `None` if there are none.
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

/// Rounds up to a size that a user would choose: 1 or 1.5 times a power of two.
fn roomy(kb: u64) -> u64 {
    let power = kb.max(4).checked_next_power_of_two().unwrap_or(u64::MAX);
    if power / 4 * 3 >= kb.max(4) {
        power / 4 * 3
    } else {
        power
    }
}

/// Returns the name by which people know a producer.
pub(crate) fn producer_name(producer: &str) -> &str {
    producer.strip_prefix("perfetto.").unwrap_or(producer)
}
