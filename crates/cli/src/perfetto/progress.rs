//! The text of a recording: the changing line while it runs, and the summary when it is over.
//!
//! [`record`](super::record) calls it. It reads statistics and accounts, and prints nothing itself.

use std::collections::VecDeque;
use std::time::Duration;

use ferretto_proto::messages::TraceStats;

use super::console::{Line, Tone};
use crate::account::counters::{bytes_written, fill};
use crate::account::{Account, Severity};
use crate::figures::{Bytes, Counted, Elapsed, Word};

/// The time over which the rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// The activity of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Not all data sources have started.
    Starting,
    /// No data source will start before a trigger is activated.
    AwaitingTrigger,
    Recording,
}

/// The state of a recording at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) activity: Activity,
    /// The time recorded so far.
    pub(crate) recorded: Duration,
    /// The planned time, if the recording ends by itself.
    pub(crate) duration: Option<Duration>,
    pub(crate) stats: &'a TraceStats,
    /// The losses known so far.
    pub(crate) account: &'a Account,
}

/// Makes the changing line from successive moments.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The bytes written at earlier times, for the rate. Never empty.
    samples: VecDeque<(Duration, u64)>,
}

impl Progress {
    /// Starts at the beginning of a recording.
    pub(crate) fn new() -> Progress {
        Progress {
            samples: VecDeque::from([(Duration::ZERO, 0)]),
        }
    }

    /// Returns the line: elapsed and remaining time, buffer fill, bytes, rate, losses; or the event that the recording waits for.
    pub(crate) fn line(&mut self, moment: &Moment<'_>) -> Line {
        let &Moment {
            activity,
            recorded,
            duration,
            stats,
            account,
        } = moment;
        let rate = self.rate(recorded, bytes_written(stats));
        let left = duration.map(|duration| duration.saturating_sub(recorded));
        let elapsed = Elapsed(recorded);
        let mut line = match (left, activity) {
            (Some(Duration::ZERO), _) => Line::new(format_args!(
                "recorded {elapsed}, waiting for the data sources to stop"
            )),
            (_, Activity::AwaitingTrigger) => Line::new(format_args!("waiting for a trigger: {elapsed}")),
            (_, Activity::Starting) => {
                Line::new(format_args!("waiting for the data sources to start: {elapsed}"))
            }
            (_, Activity::Recording) => Line::new(format_args!("recording {elapsed}")),
        };
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            line.push(2, Tone::Usual, format_args!(", {} left", Elapsed(left)));
        }
        if activity != Activity::Recording {
            return line;
        }
        if let Some(fill) = fill(stats) {
            line.push(3, Tone::Usual, format_args!(", buffer {:.0}%", fill * 100.0));
        }
        line.push(5, Tone::Usual, format_args!(", {}", Bytes(bytes_written(stats))));
        if let Some(rate) = rate {
            line.push(4, Tone::Usual, format_args!(", {}/s", Bytes(rate)));
        }
        let all = &account.findings;
        let with = |severity| all.iter().filter(move |finding| finding.severity == severity);
        let alarm = [(Severity::Loss, "LOST"), (Severity::Missing, "NOT RECORDED:")]
            .into_iter()
            .find_map(|(severity, title)| Some((title, with(severity).next()?, with(severity).count() - 1)));
        match alarm {
            None if account.has_wrapped() => line.push(3, Tone::Usual, ", the newest data are kept"),
            // Kernel losses are noted in the packets, which have not been read yet.
            None => line.push(6, Tone::Usual, ", nothing lost by the service"),
            Some((title, first, more)) => {
                line.push(1, Tone::Alarm, format_args!(", {title} {}", first.what));
                if more > 0 {
                    line.push(2, Tone::Alarm, format_args!(" and {more} more"));
                }
            }
        }
        line
    }

    /// Returns the bytes per second in the last [`RATE_WINDOW`].
    fn rate(&mut self, recorded: Duration, bytes: u64) -> Option<u64> {
        self.samples.push_back((recorded, bytes));
        // Keeps one sample from before the window, the latest.
        while self
            .samples
            .get(1)
            .is_some_and(|(at, _)| *at + RATE_WINDOW <= recorded)
        {
            self.samples.pop_front();
        }
        let &(since, before) = self.samples.front()?;
        let seconds = recorded.saturating_sub(since).as_secs_f64();
        (seconds > 0.0).then(|| (bytes.saturating_sub(before) as f64 / seconds) as u64)
    }
}

/// A finished recording.
pub(crate) struct Summary<'a> {
    /// The file's name, or `None` for stdout.
    pub(crate) file: Option<&'a str>,
    /// The size in bytes, if known.
    pub(crate) size: Option<u64>,
    /// The number of packets, if known.
    pub(crate) packets: Option<u64>,
    /// The time recorded; `None` for a clone of a session that goes on.
    pub(crate) recorded: Option<Duration>,
    pub(crate) account: &'a Account,
    pub(crate) known: Known,
}

/// The sources of information about losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// None: the service sent no statistics.
    Nothing,
    /// The service's statistics. The packets, which have the kernel's losses, were not read.
    ByTheService,
    ByTheKernelToo,
}

/// The importance of a line of the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    Alarm,
    Aside,
}

impl Summary<'_> {
    /// Returns the rest of the line that names the file: the time, the amount, and whether it is complete.
    pub(crate) fn facts(&self) -> String {
        let mut facts = match self.recorded {
            Some(recorded) => format!("recorded {}", Elapsed(recorded)),
            None => "cloned".to_owned(),
        };
        if let Some(size) = self.size {
            facts.push_str(&format!(", {}", Bytes(size)));
        }
        if let Some(packets) = self.packets {
            facts.push_str(&format!(", {}", Counted(packets, "packet")));
        }
        facts.push_str(match (self.account.is_whole(), self.known) {
            (false, _) => ", not complete:",
            (true, Known::Nothing) => " (the service gave no statistics of losses)",
            // The summary makes no claim about packets that were not read.
            (true, Known::ByTheService) => ", nothing lost by the service (kernel losses not checked)",
            (true, Known::ByTheKernelToo) if self.account.has_wrapped() => ", the newest data are kept",
            (true, Known::ByTheKernelToo) => ", nothing lost",
        });
        facts
    }

    /// Returns lines about lost data, missing data, and anything else worth knowing, each with its reason and advice.
    pub(crate) fn lines(&self) -> Vec<(LineKind, String)> {
        let mut lines = Vec::new();
        for finding in &self.account.findings {
            let (kind, title) = match finding.severity {
                Severity::Loss => (LineKind::Alarm, "lost: "),
                Severity::Missing => (LineKind::Alarm, "not recorded: "),
                Severity::Note => (LineKind::Aside, ""),
            };
            lines.push((kind, format!("  {title}{}", finding.sentence())));
            let advice = finding
                .advice
                .iter()
                .map(|advice| (LineKind::Aside, format!("    -> {advice}")));
            lines.extend(advice);
        }
        lines
    }

    /// Suggests how to view the trace, if there is one.
    pub(crate) fn next_step(&self) -> Option<String> {
        let file = self.file.filter(|_| self.size != Some(0))?;
        Some(format!(
            "  to see it: ferretto open {} (or load it at https://ui.perfetto.dev)",
            Word(file)
        ))
    }
}

#[cfg(test)]
mod tests;
