//! The words of a recording: the line while it runs, the summary when it is over.
//!
//! Called by [`record`](super::record).

use std::collections::VecDeque;
use std::time::Duration;

use ferretto_proto::messages::TraceStats;

use super::console::{Line, Tone};
use super::figures::{Bytes, Counted, Elapsed, Word};
use super::kernel_report::KernelReport;
use super::losses::{Loss, LossKind, bytes_written, fill, losses};

/// The rate is that of this time.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// What a recording is doing, or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Not all data sources have started.
    Starting,
    /// None will start before a trigger is activated.
    AwaitingTrigger,
    Recording,
}

/// A recording at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) activity: Activity,
    /// How long it has been recording.
    pub(crate) recorded: Duration,
    /// How long it is going to, if it ends by itself.
    pub(crate) duration: Option<Duration>,
    pub(crate) stats: &'a TraceStats,
}

/// Makes the line that changes while recording, from one moment after the other.
#[derive(Debug)]
pub(crate) struct Progress {
    /// When so many bytes had been written, for the rate. Never empty.
    samples: VecDeque<(Duration, u64)>,
}

impl Progress {
    /// At the start of a recording.
    pub(crate) fn new() -> Progress {
        Progress {
            samples: VecDeque::from([(Duration::ZERO, 0)]),
        }
    }

    /// Elapsed and remaining time, buffer fill, bytes, rate, losses; or what the recording waits for.
    pub(crate) fn line(&mut self, moment: &Moment<'_>) -> Line {
        let &Moment {
            activity,
            recorded,
            duration,
            stats,
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
        let (oldest, holes): (Vec<Loss>, Vec<Loss>) = losses(stats)
            .into_iter()
            .partition(|loss| loss.kind == LossKind::Oldest);
        match (holes.as_slice(), oldest.as_slice()) {
            ([], []) => line.push(5, Tone::Usual, ", nothing lost"),
            ([], _) => line.push(3, Tone::Usual, ", the newest data are kept"),
            ([first, rest @ ..], _) => {
                line.push(1, Tone::Alarm, format_args!(", LOST {}", first.what));
                if !rest.is_empty() {
                    line.push(2, Tone::Alarm, format_args!(" and {} more", rest.len()));
                }
            }
        }
        line
    }

    /// Bytes per second of late.
    fn rate(&mut self, recorded: Duration, bytes: u64) -> Option<u64> {
        self.samples.push_back((recorded, bytes));
        // The first one left is the last of those before the window.
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
    /// In bytes, where that is known.
    pub(crate) size: Option<u64>,
    /// How many, where that is known.
    pub(crate) packets: Option<u64>,
    /// How long, unless it is a copy of something that goes on.
    pub(crate) recorded: Option<Duration>,
    pub(crate) stats: Option<&'a TraceStats>,
    /// From the packets, if they were looked at.
    pub(crate) kernel: Option<&'a KernelReport>,
}

impl Summary<'_> {
    /// The rest of the line that names the file: how long, how much, whether all of it.
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
        facts.push_str(match (self.alarms().is_empty(), self.stats, self.kernel) {
            (false, ..) => ", not complete:",
            (true, Some(_), Some(_)) => ", nothing lost",
            // What was not looked at is not vouched for.
            (true, Some(_), None) => ", nothing lost after the kernel",
            (true, None, _) => " (the service gave no statistics of losses)",
        });
        facts
    }

    /// A line for each loss, and each thing that is not there: what, why, and what to do about it.
    pub(crate) fn alarms(&self) -> Vec<String> {
        let losses = self.losses().into_iter();
        let notes = self.kernel.into_iter().flat_map(KernelReport::notes);
        losses
            .map(|loss| format!("  lost: {}, {}", loss.what, loss.why))
            .chain(notes.map(|note| format!("  {note}")))
            .collect()
    }

    /// How to look at it, if there is anything to look at.
    pub(crate) fn next_step(&self) -> Option<String> {
        let file = self.file.filter(|_| self.size != Some(0))?;
        Some(format!(
            "  to see it: ferretto open {} (or load it at https://ui.perfetto.dev)",
            Word(file)
        ))
    }

    fn losses(&self) -> Vec<Loss> {
        let mut losses: Vec<Loss> = self.stats.map(losses).unwrap_or_default();
        losses.extend(self.kernel.and_then(KernelReport::losses));
        losses
    }
}

#[cfg(test)]
mod tests;
