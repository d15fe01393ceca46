//! Reads a trace's statements about the scheduler: which thread started which, and when each one got a CPU.
//!
//! `ferretto profile` and `ferretto heap` read it before the samples, to know which processes are a command's, and how long threads waited.

use std::collections::{HashMap, HashSet};

use ferretto_proto::messages::{FtraceClock, FtraceEventBundle, Message, ProcessTree};
use ferretto_proto::messages::{ftrace_event, ftrace_event_bundle::CompactSched};
use ferretto_proto::write::{PerfSampleDefaults, TracePacket, TracePacketDefaults};
use ferretto_wire::{Reader, Value};

use crate::packet::{bytes, varint};

/// Parents, and switches of threads. It grows with the number of switches: 16 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// The threads that a thread has started, and those of a process.
    children: HashMap<u32, Vec<u32>>,
    /// The times at which a thread began to run, in ns since boot; in order once [`Schedule::sort`] was called.
    arrivals: HashMap<u32, Vec<u64>>,
    /// The time of the last switch.
    end: u64,
    /// Bundles with another clock, whose times mean nothing here.
    other_clocks: u64,
    /// The process whose family a profiler counts, of each profiler and time; `None` if it counts others, too.
    counted: HashSet<Option<i32>>,
}

/// The facts from a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    Parents,
    ParentsAndSwitches,
}

impl Schedule {
    /// Takes in a packet.
    pub(crate) fn packet(&mut self, take: Take, packet: &[u8]) {
        for field in Reader::new(packet).map_while(Result::ok) {
            match (field.number, field.value) {
                (TracePacket::PROCESS_TREE, Value::Bytes(tree)) => {
                    if let Ok(tree) = ProcessTree::decode_from_slice(tree) {
                        self.process_tree(&tree);
                    }
                }
                (TracePacket::TRACE_PACKET_DEFAULTS, Value::Bytes(defaults)) => {
                    if let Some(perf) = bytes(defaults, TracePacketDefaults::PERF_SAMPLE_DEFAULTS) {
                        let family = varint(perf, PerfSampleDefaults::FAMILY_OF);
                        self.counted.insert(family.map(|pid| pid as i32));
                    }
                }
                (TracePacket::FTRACE_EVENTS, Value::Bytes(bundle)) => {
                    if let Ok(bundle) = FtraceEventBundle::decode_from_slice(bundle) {
                        self.bundle(take, &bundle);
                    }
                }
                _ => {}
            }
        }
    }

    fn process_tree(&mut self, tree: &ProcessTree) {
        for process in &tree.processes {
            if let (Some(pid), Some(parent)) = (process.pid, process.ppid) {
                self.child(parent, pid);
            }
        }
        for thread in &tree.threads {
            if let (Some(tid), Some(process)) = (thread.tid, thread.tgid) {
                self.child(process, tid);
            }
        }
    }

    fn child(&mut self, parent: i32, child: i32) {
        if parent != child {
            let children = self.children.entry(parent as u32).or_default();
            children.push(child as u32);
        }
    }

    fn bundle(&mut self, take: Take, bundle: &FtraceEventBundle) {
        let has_boot_time = matches!(
            bundle.ftrace_clock,
            None | Some(FtraceClock::FTRACE_CLOCK_UNSPECIFIED)
        );
        let switches = take == Take::ParentsAndSwitches;
        self.other_clocks += u64::from(switches && !has_boot_time);
        let switches = switches && has_boot_time;
        for event in &bundle.event {
            match &event.event {
                Some(ftrace_event::Event::TaskNewtask(task)) => {
                    if let (Some(parent), Some(child)) = (event.pid, task.pid) {
                        self.child(parent as i32, child);
                    }
                }
                Some(ftrace_event::Event::SchedSwitch(switch)) if switches => {
                    if let (Some(time), Some(tid)) = (event.timestamp, switch.next_pid) {
                        self.arrival(time, tid);
                    }
                }
                _ => {}
            }
        }
        if let (Some(compact), true) = (bundle.compact_sched.as_option(), switches) {
            self.compact(compact);
        }
    }

    fn compact(&mut self, compact: &CompactSched) {
        let mut time = 0_u64;
        for (delta, tid) in compact.switch_timestamp.iter().zip(&compact.switch_next_pid) {
            time = time.wrapping_add(*delta);
            self.arrival(time, *tid);
        }
    }

    pub(crate) fn arrival(&mut self, time: u64, tid: i32) {
        self.end = self.end.max(time);
        if tid > 0 {
            self.arrivals.entry(tid as u32).or_default().push(time);
        }
    }

    /// Puts switches in order: each CPU has its own.
    pub(crate) fn sort(&mut self) {
        for times in self.arrivals.values_mut() {
            times.sort_unstable();
        }
    }

    /// Returns the next time after `left` at which a thread began to run, or the end of the recording. `None` if the trace has no switch after `left`.
    pub(crate) fn back(&self, tid: u32, left: u64) -> Option<u64> {
        let times = self.arrivals.get(&tid).map_or(&[][..], Vec::as_slice);
        let next = times.partition_point(|time| *time <= left);
        let back = times.get(next).copied().unwrap_or(self.end);
        Some(back).filter(|back| *back > left)
    }

    /// Whether switches were left out because their clock is not that of the samples.
    pub(crate) fn has_other_clocks(&self) -> bool {
        self.other_clocks > 0
    }

    /// Whether nobody was sampled but a process and all that it started, as far as the trace says.
    pub(crate) fn has_samples_of_family_only(&self, root: u32) -> bool {
        self.counted.iter().eq([&Some(root.cast_signed())])
    }

    /// Returns a process with all processes and threads that it started, and those that these started.
    pub(crate) fn family(&self, root: u32) -> HashSet<u32> {
        let mut family = HashSet::from([root]);
        let mut new = vec![root];
        while let Some(parent) = new.pop() {
            for child in self.children.get(&parent).into_iter().flatten() {
                if family.insert(*child) {
                    new.push(*child);
                }
            }
        }
        family
    }
}

#[cfg(test)]
mod tests {
    use ferretto_wire::Writer;

    use super::*;

    #[test]
    fn a_family_has_children_of_threads_and_of_children() {
        let mut schedule = Schedule::default();
        for (parent, child) in [(10, 11), (11, 12), (12, 13), (1, 10), (1, 20), (20, 21), (13, 10)] {
            schedule.child(parent, child);
        }
        assert_eq!(schedule.family(10), HashSet::from([10, 11, 12, 13]));
    }

    #[test]
    fn samples_are_of_a_family_only_if_each_profiler_says_so_all_the_time() {
        let says = |schedule: &mut Schedule, family: Option<i32>| {
            let mut packet = Writer::new();
            TracePacket::new(&mut packet).trace_packet_defaults(|defaults| {
                defaults.perf_sample_defaults(|perf| {
                    if let Some(pid) = family {
                        perf.family_of(pid);
                    }
                });
            });
            schedule.packet(Take::Parents, packet.as_slice());
            [7, 8].map(|root| schedule.has_samples_of_family_only(root))
        };
        let mut schedule = Schedule::default();
        assert!(!schedule.has_samples_of_family_only(7), "nobody says so");
        assert_eq!(says(&mut schedule, Some(7)), [true, false]);
        assert_eq!(says(&mut schedule, Some(7)), [true, false]);
        assert_eq!(says(&mut schedule, None), [false, false]);
    }

    #[test]
    fn a_thread_is_back_when_it_next_runs_or_else_at_the_end() {
        let mut schedule = Schedule::default();
        for (time, tid) in [(50, 7), (20, 7), (30, 8), (90, 0)] {
            schedule.arrival(time, tid);
        }
        schedule.sort();
        assert_eq!(schedule.back(7, 10), Some(20));
        assert_eq!(schedule.back(7, 20), Some(50));
        assert_eq!(schedule.back(7, 50), Some(90));
        assert_eq!(schedule.back(9, 60), Some(90));
        assert_eq!(schedule.back(7, 95), None);
    }
}
