//! Events of the real kernel, with a list of CPUs that the tests write.

use std::fs;

use ferretto_proto::messages::perf_sample::producer_event::CpuEvent;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, PerfEventConfig, TracePacket};
use tempfile::TempDir;

use super::*;
use crate::event::RunningKernel;

const TOKEN: Token = Token(0);

/// An instance that samples the CPU clock of all CPUs.
struct Recording {
    sysfs: TempDir,
    config: PerfConfig,
    profiler: Profiler,
    hotplug: Hotplug,
    reactor: Reactor,
    packets: Vec<Vec<u8>>,
}

impl Recording {
    /// Samples only the first CPU. `None` if this user may not sample, or if there is no second CPU.
    fn start() -> Option<Recording> {
        let config = PerfConfig::of(&PerfEventConfig::default(), None, &RunningKernel::default()).unwrap();
        let can_open = |cpu| CpuEvents::open_each(&config, &[cpu], 2).is_ok();
        if !can_open(0) || !can_open(1) {
            println!("skipped: CPU 0 or CPU 1 cannot be sampled by this user");
            return None;
        }
        let reactor = Reactor::new().unwrap();
        let events = begin(&config, 0, 1, (&reactor, TOKEN)).unwrap();
        let sysfs = tempfile::tempdir().unwrap();
        fs::create_dir_all(sysfs.path().join("devices/system/cpu")).unwrap();
        let mut recording = Recording {
            profiler: Profiler::new(&config, vec![events], []),
            hotplug: Hotplug::new(sysfs.path().to_owned()),
            sysfs,
            config,
            reactor,
            packets: Vec::new(),
        };
        assert_eq!(recording.look("0"), []);
        Some(recording)
    }

    /// Looks while these CPUs are online; returns the events in the trace.
    fn look(&mut self, online: &str) -> Vec<(u32, CpuEvent)> {
        let list = self.sysfs.path().join("devices/system/cpu/online");
        fs::write(list, format!("{online}\n")).unwrap();
        let watched_by = (&self.reactor, TOKEN);
        let profiler = &mut self.profiler;
        self.hotplug
            .look(&self.config, profiler, watched_by, &mut self.packets);
        let event = |packet: Vec<u8>| match TracePacket::decode_from_slice(&packet).unwrap().data {
            Some(Data::PerfSample(sample)) => Some((sample.cpu.unwrap(), sample.producer_event.cpu_event?)),
            _ => None,
        };
        self.packets.drain(..).filter_map(event).collect()
    }

    fn sampled(&self) -> Vec<u32> {
        self.profiler.cpus().iter().map(|events| events.cpu).collect()
    }
}

#[test]
fn a_cpu_that_comes_is_sampled_and_one_that_goes_is_told() {
    let Some(mut recording) = Recording::start() else {
        return;
    };
    assert_eq!(recording.look("0-1"), [(1, CpuEvent::CPU_SAMPLED)]);
    assert_eq!(recording.look("0-1"), []);
    assert_eq!(recording.look("1"), [(0, CpuEvent::CPU_GONE)]);
    assert_eq!(recording.sampled(), [1]);
    let both = [(1, CpuEvent::CPU_GONE), (0, CpuEvent::CPU_SAMPLED)];
    assert_eq!(recording.look("0"), both);
}

#[test]
fn a_cpu_that_cannot_be_sampled_is_told_once_and_tried_again() {
    let Some(mut recording) = Recording::start() else {
        return;
    };
    // No machine has this CPU.
    let told = recording.look("0,65535");
    assert_eq!(told, [(65535, CpuEvent::CPU_UNAVAILABLE)]);
    assert_eq!(recording.look("0,65535"), []);
    assert_eq!(recording.sampled(), [0]);
    assert_eq!(recording.look("0-1"), [(1, CpuEvent::CPU_SAMPLED)]);
}

#[test]
fn after_a_sleep_other_cpus_than_the_first_are_opened_again() {
    let Some(mut recording) = Recording::start() else {
        return;
    };
    recording.look("0-1");
    let minute = 60_000_000_000;
    let slept = recording.hotplug.slept + minute;
    let changes = recording
        .hotplug
        .changes(&recording.config, &recording.profiler, vec![0, 1], slept);
    let expected = Changes {
        gone: vec![1],
        come: vec![1],
    };
    assert_eq!(changes, expected);
    let changes = recording
        .hotplug
        .changes(&recording.config, &recording.profiler, vec![0, 1], slept);
    assert_eq!(changes, Changes::default());
}
