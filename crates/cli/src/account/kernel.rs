//! The notes that `linux.ftrace` writes about itself: events that the kernel lost, events that the kernel does not have, and errors.
//!
//! [`Evidence`](super::evidence::Evidence) fills it from `FtraceStats`. The service's counters do not cover this, because events that the kernel's
//! ring buffers dropped never reached the service.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::{FtraceStats, Message, ftrace_stats::Phase};

use crate::figures::Counted;

/// The most names that are remembered; a config can have any number of them.
const MAX_NAMES: usize = 1000;
/// The most names that are listed.
const LISTED: usize = 8;
/// The most troubles that are kept.
const MAX_TROUBLES: usize = 16;
/// The most characters of a trouble that are kept.
const MAX_TROUBLE: usize = 1000;

/// The report from the packets of one trace.
#[derive(Debug, Default)]
pub(crate) struct KernelReport {
    /// By writer and CPU, since each tracefs instance counts by itself.
    lost: BTreeMap<(u64, u64), Lost>,
    /// Events that this kernel does not have.
    unknown: BTreeSet<String>,
    /// Events that could not be enabled.
    failed: BTreeSet<String>,
    /// Descriptions of errors, one sentence each, in the order of their arrival.
    troubles: Vec<String>,
    /// Whether the source's final statistics are there.
    pub(super) has_end: bool,
}

/// One CPU's counter of lost events. The kernel does not reset it between sessions.
#[derive(Debug, Default, Clone, Copy)]
struct Lost {
    /// `None` if the statistics of the start are missing, as in a ring buffer that has wrapped. The loss before the recording is unknown then.
    at_start: Option<u64>,
    at_end: u64,
}

impl KernelReport {
    /// Takes in an encoded `FtraceStats` from the writer of this sequence.
    pub(super) fn take(&mut self, sequence: u64, stats: &[u8]) {
        let Ok(stats) = FtraceStats::decode_from_slice(stats) else {
            // Malformed statistics have no effect on the account.
            return;
        };
        self.has_end |= stats.phase == Some(Phase::END_OF_TRACE);
        for cpu in &stats.cpu_stats {
            let key = (sequence, cpu.cpu.unwrap_or(0));
            let lost = cpu
                .overrun
                .unwrap_or(0)
                .saturating_add(cpu.dropped_events.unwrap_or(0));
            let entry = self.lost.entry(key).or_default();
            match stats.phase {
                Some(Phase::START_OF_TRACE) => {
                    *entry = Lost {
                        at_start: Some(lost),
                        at_end: lost,
                    }
                }
                Some(Phase::END_OF_TRACE) => entry.at_end = lost,
                _ => {}
            }
        }
        for (names, known) in [
            (&stats.unknown_ftrace_events, &mut self.unknown),
            (&stats.failed_ftrace_events, &mut self.failed),
        ] {
            let room = MAX_NAMES.saturating_sub(known.len());
            known.extend(names.iter().take(room).cloned());
        }
        let told = stats.atrace_errors.iter().flat_map(|text| text.lines());
        for trouble in told.map(str::trim).filter(|line| !line.is_empty()) {
            let trouble: String = trouble.chars().take(MAX_TROUBLE).collect();
            if self.troubles.len() < MAX_TROUBLES && !self.troubles.contains(&trouble) {
                self.troubles.push(trouble);
            }
        }
    }

    /// Describes the kernel's losses during the recording, if there are any: `12 kernel events on 2 CPUs`.
    pub(super) fn lost(&self) -> Option<String> {
        let per_cpu = self
            .lost
            .values()
            .filter_map(|lost| Some(lost.at_end.saturating_sub(lost.at_start?)));
        let (mut events, mut cpus) = (0_u64, 0);
        for lost in per_cpu.filter(|lost| *lost > 0) {
            events = events.saturating_add(lost);
            cpus += 1;
        }
        (events > 0).then(|| format!("{} on {}", Counted(events, "kernel event"), Counted(cpus, "CPU")))
    }

    /// Names of events that the trace lacks, and the reason for each.
    pub(super) fn unavailable(&self) -> impl Iterator<Item = (String, &'static str)> {
        [
            (&self.unknown, "this kernel has no event of that name"),
            (&self.failed, "the kernel would not enable it"),
        ]
        .into_iter()
        .filter(|(names, _)| !names.is_empty())
        .map(|(names, why)| {
            let mut listed = names
                .iter()
                .take(LISTED)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ");
            if names.len() > LISTED {
                listed.push_str(&format!(" and {} others", names.len() - LISTED));
            }
            (listed, why)
        })
    }

    /// Whether this event is one of the unavailable ones.
    pub(super) fn is_unavailable(&self, event: &str) -> bool {
        self.unknown.contains(event) || self.failed.contains(event)
    }

    /// Descriptions of errors, one sentence each.
    pub(super) fn troubles(&self) -> &[String] {
        &self.troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::write;
    use ferretto_wire::Writer;

    fn stats(fill: impl FnOnce(&mut write::FtraceStats<'_>)) -> Vec<u8> {
        let mut stats = Writer::new();
        fill(&mut write::FtraceStats::new(&mut stats));
        stats.as_slice().to_vec()
    }

    fn observe(report: &mut KernelReport, sequence: u64, phase: Phase, cpu: u32, overrun: u64, dropped: u64) {
        let stats = stats(|stats| {
            stats.phase(phase).cpu_stats(|stats| {
                stats.cpu(cpu.into()).overrun(overrun).dropped_events(dropped);
            });
        });
        report.take(sequence, &stats);
    }

    #[test]
    fn only_losses_during_the_recording_count() {
        let mut report = KernelReport::default();
        observe(&mut report, 1, Phase::START_OF_TRACE, 0, 100, 0);
        observe(&mut report, 1, Phase::START_OF_TRACE, 1, 7, 0);
        observe(&mut report, 2, Phase::START_OF_TRACE, 0, 0, 0);
        assert_eq!(report.lost(), None);
        observe(&mut report, 1, Phase::END_OF_TRACE, 0, 1_100, 200);
        observe(&mut report, 1, Phase::END_OF_TRACE, 1, 7, 0);
        observe(&mut report, 2, Phase::END_OF_TRACE, 0, 34, 0);
        assert_eq!(report.lost().unwrap(), "1,234 kernel events on 2 CPUs");
    }

    #[test]
    fn a_counter_of_which_only_the_end_is_known_says_nothing() {
        let mut report = KernelReport::default();
        observe(&mut report, 1, Phase::END_OF_TRACE, 0, 1_100, 200);
        assert_eq!(report.lost(), None, "it may all be from before the recording");
        observe(&mut report, 2, Phase::START_OF_TRACE, 0, 3, 0);
        observe(&mut report, 2, Phase::END_OF_TRACE, 0, 8, 0);
        assert_eq!(report.lost().unwrap(), "5 kernel events on 1 CPU");
    }

    #[test]
    fn events_and_troubles_are_named_once() {
        let mut report = KernelReport::default();
        for _ in 0..2 {
            report.take(
                1,
                &stats(|stats| {
                    stats
                        .unknown_ftrace_events("sched/sched_swich")
                        .failed_ftrace_events("irq/locked")
                        .atrace_errors("Somebody took it.\n\nIt is gone.\n");
                }),
            );
        }
        let expected = [
            (
                "sched/sched_swich".to_owned(),
                "this kernel has no event of that name",
            ),
            ("irq/locked".to_owned(), "the kernel would not enable it"),
        ];
        assert_eq!(report.unavailable().collect::<Vec<_>>(), expected);
        assert!(report.is_unavailable("irq/locked") && !report.is_unavailable("irq/other"));
        assert_eq!(report.troubles(), ["Somebody took it.", "It is gone."]);
    }

    #[test]
    fn long_lists_are_cut() {
        let mut report = KernelReport::default();
        report.take(
            1,
            &stats(|stats| {
                for number in 0..10 {
                    stats.unknown_ftrace_events(format!("a/{number}"));
                }
            }),
        );
        let (names, _) = report.unavailable().next().unwrap();
        assert!(names.ends_with("a/7 and 2 others"), "{names}");
    }

    #[test]
    fn garbage_is_passed_over() {
        let mut report = KernelReport::default();
        report.take(0, &[]);
        report.take(0, &[0xff; 20]);
        assert_eq!((report.lost(), report.unavailable().count()), (None, 0));
    }
}
