//! What `linux.ftrace` notes in a trace about itself: events that the kernel lost, and those it does not have.
//!
//! Called by [`record`](super::record) with every packet on its way to the output, for the summary. The service's own stats know
//! nothing of this: what the kernel's ring buffers dropped was never sent.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::{FtraceStats, Message, TraceConfig, ftrace_stats::Phase};
use ferretto_proto::write::TracePacket;
use ferretto_wire::{Reader, Value};

use super::figures::Counted;
use super::losses::{Loss, LossKind};

/// At most so many names are remembered; a config can name any number.
const MAX_NAMES: usize = 1000;
/// At most so many names are listed.
const LISTED: usize = 8;

/// Gathered from the packets of one trace.
#[derive(Debug, Default)]
pub(crate) struct KernelReport {
    /// By writer and CPU, since each tracefs instance counts by itself.
    lost: BTreeMap<(u64, u64), Lost>,
    /// Events that this kernel does not have.
    unknown: BTreeSet<String>,
    /// Events that could not be enabled.
    failed: BTreeSet<String>,
    /// Whether the config asks for kernel events.
    awaited: bool,
    /// Whether a source of them reported.
    reported: bool,
}

/// The kernel's counters, which go on from session to session.
#[derive(Debug, Default, Clone, Copy)]
struct Lost {
    at_start: u64,
    at_end: u64,
}

impl KernelReport {
    /// A report on a trace of this config.
    pub(crate) fn of(config: &TraceConfig) -> KernelReport {
        let mut sources = config.data_sources.iter();
        let awaited = sources.any(|source| source.config.name.as_deref() == Some("linux.ftrace"));
        KernelReport {
            awaited,
            ..KernelReport::default()
        }
    }

    /// Looks at a packet. Almost all are passed over after a look at the tags of their fields.
    pub(crate) fn observe(&mut self, packet: &[u8]) {
        let mut sequence = 0;
        let mut stats = None;
        for field in Reader::new(packet) {
            match field {
                Ok(field) => match (field.number, field.value) {
                    (TracePacket::FTRACE_STATS, Value::Bytes(bytes)) => stats = Some(bytes),
                    (TracePacket::TRUSTED_PACKET_SEQUENCE_ID, Value::Varint(id)) => sequence = id,
                    _ => {}
                },
                // The trace is what it is; this is only about the summary.
                Err(_) => return,
            }
        }
        if let Some(Ok(stats)) = stats.map(FtraceStats::decode_from_slice) {
            self.take(sequence, &stats);
        }
    }

    fn take(&mut self, sequence: u64, stats: &FtraceStats) {
        self.reported = true;
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
                        at_start: lost,
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
    }

    /// What the kernel lost while recording, if anything.
    pub(crate) fn losses(&self) -> Option<Loss> {
        let per_cpu = self
            .lost
            .values()
            .map(|lost| lost.at_end.saturating_sub(lost.at_start));
        let (mut events, mut cpus) = (0_u64, 0);
        for lost in per_cpu.filter(|lost| *lost > 0) {
            events = events.saturating_add(lost);
            cpus += 1;
        }
        (events > 0).then(|| Loss {
            what: format!("{} on {}", Counted(events, "kernel event"), Counted(cpus, "CPU")),
            why: "faster than they were fetched; larger kernel buffers help (ftrace_config.buffer_size_kb)",
            kind: LossKind::Hole,
        })
    }

    /// What was asked for and is not in the trace.
    pub(crate) fn notes(&self) -> Vec<String> {
        let silent = (self.awaited && !self.reported).then(|| {
            "not recorded: kernel events, since no linux.ftrace source answered; they need root (sudo), a running traced_probes, \
             and tracefs. `ferretto doctor` finds out what is missing"
                .to_owned()
        });
        let missing = [
            (&self.unknown, "this kernel has no event"),
            (&self.failed, "the kernel would not enable"),
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
            format!("not recorded: {why} {listed}")
        });
        silent.into_iter().chain(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::{DataSourceConfig, trace_config};
    use ferretto_wire::Writer;

    fn observe(report: &mut KernelReport, sequence: u32, phase: Phase, cpu: u32, overrun: u64, dropped: u64) {
        let mut packet = Writer::new();
        TracePacket::new(&mut packet)
            .timestamp(1)
            .trusted_packet_sequence_id(sequence)
            .ftrace_stats(|stats| {
                stats.phase(phase).cpu_stats(|stats| {
                    stats.cpu(cpu.into()).overrun(overrun).dropped_events(dropped);
                });
            });
        report.observe(packet.as_slice());
    }

    #[test]
    fn only_what_was_lost_during_the_recording_counts() {
        let mut report = KernelReport::default();
        observe(&mut report, 1, Phase::START_OF_TRACE, 0, 100, 0);
        observe(&mut report, 1, Phase::START_OF_TRACE, 1, 7, 0);
        observe(&mut report, 2, Phase::START_OF_TRACE, 0, 0, 0);
        assert_eq!(report.losses(), None);
        observe(&mut report, 1, Phase::END_OF_TRACE, 0, 1_100, 200);
        observe(&mut report, 1, Phase::END_OF_TRACE, 1, 7, 0);
        observe(&mut report, 2, Phase::END_OF_TRACE, 0, 34, 0);
        assert_eq!(report.losses().unwrap().what, "1,234 kernel events on 2 CPUs");
    }

    #[test]
    fn events_that_are_not_there_are_named_once() {
        let mut report = KernelReport::default();
        for _ in 0..2 {
            let mut packet = Writer::new();
            TracePacket::new(&mut packet).ftrace_stats(|stats| {
                stats
                    .unknown_ftrace_events("sched/sched_swich")
                    .failed_ftrace_events("irq/locked");
            });
            report.observe(packet.as_slice());
        }
        let expected = [
            "not recorded: this kernel has no event sched/sched_swich",
            "not recorded: the kernel would not enable irq/locked",
        ];
        assert_eq!(report.notes(), expected);
    }

    #[test]
    fn a_source_that_never_answers_is_missed_where_it_was_wanted() {
        let wanting = |name: &str| {
            let source = DataSourceConfig {
                name: Some(name.to_owned()),
                ..Default::default()
            };
            let source = trace_config::DataSource {
                config: source.into(),
                ..Default::default()
            };
            KernelReport::of(&TraceConfig {
                data_sources: vec![source],
                ..Default::default()
            })
        };
        assert_eq!(wanting("linux.sys_stats").notes(), [""; 0]);
        let mut report = wanting("linux.ftrace");
        assert!(report.notes()[0].contains("no linux.ftrace source answered"));
        observe(&mut report, 1, Phase::START_OF_TRACE, 0, 0, 0);
        assert_eq!(report.notes(), [""; 0]);
    }

    #[test]
    fn long_lists_are_cut() {
        let mut report = KernelReport::default();
        let mut packet = Writer::new();
        TracePacket::new(&mut packet).ftrace_stats(|stats| {
            for number in 0..10 {
                stats.unknown_ftrace_events(format!("a/{number}"));
            }
        });
        report.observe(packet.as_slice());
        assert!(
            report.notes()[0].ends_with("a/7 and 2 others"),
            "{:?}",
            report.notes()
        );
    }

    #[test]
    fn other_packets_and_garbage_are_passed_over() {
        let mut report = KernelReport::default();
        report.observe(&[]);
        report.observe(&[0xff; 20]);
        report.observe(&[0x92, 0x02, 0x02, 0xff, 0xff]);
        assert_eq!((report.losses(), report.notes()), (None, vec![]));
    }
}
