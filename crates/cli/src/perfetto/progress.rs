//! The words of a recording: the line while it runs, the summary when it is over.
//!
//! Called by [`record`](super::record).

use std::time::Duration;

use ferretto_proto::messages::TraceStats;

use super::figures::{Bytes, Counted, Elapsed};
use super::kernel_report::KernelReport;
use super::losses::{Loss, bytes_written, fill, losses};

/// One line: elapsed time, buffer fill, bytes, losses.
pub(crate) fn progress_line(recorded: Duration, duration: Option<Duration>, stats: &TraceStats) -> String {
    let over = duration.is_some_and(|duration| recorded >= duration);
    let activity = if over {
        "waiting for the data sources to stop"
    } else {
        "recording"
    };
    let mut line = format!("{activity}: {}", Elapsed(recorded));
    if let Some(duration) = duration {
        line.push_str(&format!(" of {}", Elapsed(duration)));
    }
    if let Some(fill) = fill(stats) {
        line.push_str(&format!(", buffer {:.0}% full", fill * 100.0));
    }
    line.push_str(&format!(", {}", Bytes(bytes_written(stats))));
    let losses = losses(stats);
    match losses.as_slice() {
        [] => line.push_str(", nothing lost"),
        [first, rest @ ..] => {
            line.push_str(&format!(", LOST {}", first.what));
            if !rest.is_empty() {
                line.push_str(&format!(" and {} more", rest.len()));
            }
        }
    }
    line
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
    /// The lines of the summary, below the one that names the file.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut facts = match self.recorded {
            Some(recorded) => format!("  recorded {}", Elapsed(recorded)),
            None => "  cloned".to_owned(),
        };
        if let Some(size) = self.size {
            facts.push_str(&format!(", {}", Bytes(size)));
        }
        if let Some(packets) = self.packets {
            facts.push_str(&format!(", {}", Counted(packets, "packet")));
        }
        let mut losses: Vec<Loss> = self.stats.map(losses).unwrap_or_default();
        losses.extend(self.kernel.and_then(KernelReport::losses));
        facts.push_str(match (losses.is_empty(), self.stats, self.kernel) {
            (false, ..) => "",
            (true, Some(_), Some(_)) => ", nothing lost",
            // What was not looked at is not vouched for.
            (true, Some(_), None) => ", nothing lost after the kernel",
            (true, None, _) => " (the service gave no statistics of losses)",
        });
        let mut lines = vec![facts];
        lines.extend(
            losses
                .iter()
                .map(|loss| format!("  lost: {}, {}", loss.what, loss.why)),
        );
        lines.extend(
            self.kernel
                .into_iter()
                .flat_map(KernelReport::notes)
                .map(|note| format!("  {note}")),
        );
        if let Some(file) = self.file.filter(|_| self.size != Some(0)) {
            lines.push(format!(
                "  to see it: https://ui.perfetto.dev, \"Open trace file\", {file}"
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::trace_stats::BufferStats;

    fn stats(overwritten: u64) -> TraceStats {
        TraceStats {
            buffer_stats: vec![BufferStats {
                buffer_size: Some(4 << 20),
                bytes_written: Some(1 << 20),
                chunks_overwritten: Some(overwritten),
                patches_failed: Some(overwritten),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn the_line_tells_time_fill_bytes_and_losses() {
        let (elapsed, total) = (Duration::from_millis(1500), Some(Duration::from_secs(5)));
        assert_eq!(
            progress_line(elapsed, total, &stats(0)),
            "recording: 1.5 s of 5.0 s, buffer 25% full, 1.0 MiB, nothing lost"
        );
        assert_eq!(
            progress_line(elapsed, None, &stats(7)),
            "recording: 1.5 s, buffer 25% full, 1.0 MiB, LOST 7 chunks of buffer 0 and 1 more"
        );
        assert_eq!(
            progress_line(elapsed, None, &TraceStats::default()),
            "recording: 1.5 s, 0 B, nothing lost"
        );
    }

    fn summary<'a>(stats: &'a TraceStats, kernel: &'a KernelReport) -> Summary<'a> {
        Summary {
            file: Some("trace.pftrace"),
            size: Some(1536),
            packets: Some(12_345),
            recorded: Some(Duration::from_secs(5)),
            stats: Some(stats),
            kernel: Some(kernel),
        }
    }

    #[test]
    fn the_summary_tells_size_packets_losses_and_how_to_open_the_file() {
        let expected = [
            "  recorded 5.0 s, 1.5 KiB, 12,345 packets",
            "  lost: 1 chunk of buffer 0, overwritten by newer data; a larger buffer (-b) reaches further back",
            "  lost: 1 patch of buffer 0, came after its packet had been overwritten",
            "  to see it: https://ui.perfetto.dev, \"Open trace file\", trace.pftrace",
        ];
        assert_eq!(summary(&stats(1), &KernelReport::default()).lines(), expected);
        let clean = &summary(&stats(0), &KernelReport::default()).lines()[0];
        assert_eq!(clean, "  recorded 5.0 s, 1.5 KiB, 12,345 packets, nothing lost");
    }

    #[test]
    fn what_is_not_known_is_not_claimed() {
        let (stats, kernel) = (stats(0), KernelReport::default());
        let unknown = Summary {
            file: None,
            size: None,
            packets: None,
            ..summary(&stats, &kernel)
        };
        let without_packets = Summary {
            kernel: None,
            ..unknown
        };
        assert_eq!(
            without_packets.lines(),
            ["  recorded 5.0 s, nothing lost after the kernel"]
        );
        let without_stats = Summary {
            stats: None,
            ..without_packets
        };
        assert_eq!(
            without_stats.lines(),
            ["  recorded 5.0 s (the service gave no statistics of losses)"]
        );
    }
}
