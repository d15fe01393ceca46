//! The data source against made-up procfs trees of several kernels, hostile ones, and this machine's own.

mod describing;
mod parsing;
mod sampling;

use std::collections::BTreeSet;

use ferretto_proto::messages::process_stats_config::Quirks;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    DataSourceConfig, Message, MessageField, ProcessStats as Stats, ProcessStatsConfig, ProcessTree,
    TracePacket,
};

use super::*;
use crate::test_files::{Mutator, TempDir};

/// A procfs of our own and an instance that reads it.
struct Fixture {
    proc: TempDir,
    source: ProcessStats,
    sink: Vec<Vec<u8>>,
}

impl Fixture {
    fn new(config: ProcessStatsConfig) -> Self {
        let proc = TempDir::new("proc");
        let roots = KernelRoots {
            procfs: proc.path().to_owned(),
            ..KernelRoots::default()
        };
        let mut source = ProcessStats::from_config(&wrap(config), &roots).unwrap();
        // However slow the machine is, a scan of a few processes is one packet.
        source.scan_turn = BootTime::MAX;
        Self {
            proc,
            source,
            sink: Vec::new(),
        }
    }

    /// Adds a process with a main thread.
    fn process(&self, pid: i32, status_lines: &str, cmdline: &str) {
        let status = format!(
            "Name:\tcomm{pid}\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\nUid:\t{pid}\t7\t7\t7\n{status_lines}"
        );
        self.proc.write(&format!("{pid}/status"), status);
        self.proc.write(&format!("{pid}/cmdline"), cmdline);
        self.proc.write(&format!("{pid}/oom_score_adj"), "0\n");
        self.proc.write(&format!("{pid}/task/{pid}/comm"), "");
    }

    /// Adds a thread to a process. As in a real procfs, its directory beside the processes' is not listed.
    fn thread(&self, tgid: i32, tid: i32, status_lines: &str) {
        let status = format!("Name:\tthread{tid}\nTgid:\t{tgid}\nPid:\t{tid}\n{status_lines}");
        self.proc.write(&format!("{tgid}/task/{tid}/status"), status);
        let procfs = self.proc.path();
        self.proc.link(
            &tid.to_string(),
            procfs.join(format!("{tgid}/task/{tid}")).to_str().unwrap(),
        );
    }

    fn see(&mut self, tids: &[i32]) {
        self.source
            .on_threads_seen(&tids.iter().copied().collect(), 5, &mut self.sink);
    }

    fn start(&mut self) {
        self.source.start(1, &mut self.sink);
    }

    /// Takes the next sample when it is due.
    fn sample(&mut self) -> Vec<Stats> {
        let due = self.source.next_deadline().unwrap();
        self.source.on_deadline(due, &mut self.sink);
        self.stats()
    }

    fn packets(&mut self) -> Vec<TracePacket> {
        self.sink
            .drain(..)
            .map(|packet| TracePacket::decode_from_slice(&packet).unwrap())
            .collect()
    }

    fn trees(&mut self) -> Vec<ProcessTree> {
        self.packets().into_iter().filter_map(tree).collect()
    }

    fn only_tree(&mut self) -> ProcessTree {
        let trees = self.trees();
        assert_eq!(trees.len(), 1, "{trees:?}");
        trees.into_iter().next().unwrap()
    }

    fn stats(&mut self) -> Vec<Stats> {
        self.packets().into_iter().filter_map(stats).collect()
    }
}

fn wrap(config: ProcessStatsConfig) -> DataSourceConfig {
    DataSourceConfig {
        process_stats_config: MessageField::some(config),
        ..Default::default()
    }
}

fn tree(packet: TracePacket) -> Option<ProcessTree> {
    match packet.data {
        Some(Data::ProcessTree(tree)) => Some(*tree),
        _ => None,
    }
}

fn stats(packet: TracePacket) -> Option<Stats> {
    match packet.data {
        Some(Data::ProcessStats(stats)) => Some(*stats),
        _ => None,
    }
}

fn pids(tree: &ProcessTree) -> Vec<i32> {
    tree.processes
        .iter()
        .map(|process| process.pid.unwrap())
        .collect()
}

/// Thread, process and name of each thread.
fn threads(tree: &ProcessTree) -> Vec<(i32, i32, Option<&str>)> {
    tree.threads
        .iter()
        .map(|thread| (thread.tid.unwrap(), thread.tgid.unwrap(), thread.name.as_deref()))
        .collect()
}

fn polling() -> ProcessStatsConfig {
    ProcessStatsConfig {
        proc_stats_poll_ms: Some(100),
        ..Default::default()
    }
}

const MEMORY: &str = "VmPeak:\t  900 kB\nVmSize:\t     800 kB\nVmRSS:\t 70 kB\n";

#[test]
fn processes_that_are_gone_make_no_packet() {
    let mut proc = Fixture::new(polling());
    proc.proc.write("30/status", "");
    proc.start();
    proc.see(&[30, 31]);
    assert!(proc.sample().is_empty());
    assert!(proc.sink.is_empty());
}

#[test]
fn samples_are_due_at_once_and_then_on_multiples_of_the_period() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        proc_stats_poll_ms: Some(250),
        ..Default::default()
    });
    assert_eq!(proc.source.next_deadline(), None);
    proc.source.start(1_100_000_000, &mut proc.sink);
    assert_eq!(proc.source.next_deadline(), Some(1_100_000_000));
    proc.source.on_deadline(1_100_000_000, &mut proc.sink);
    assert_eq!(proc.source.next_deadline(), Some(1_250_000_000));
    // Late by more than a period: the missed sample is not made up for.
    proc.source.on_deadline(1_600_000_000, &mut proc.sink);
    assert_eq!(proc.source.next_deadline(), Some(1_750_000_000));
    proc.source.stop(1_700_000_000, &mut proc.sink);
    assert_eq!(proc.source.next_deadline(), None);
}

#[test]
fn a_period_that_is_too_short_is_raised_with_a_notice() {
    let mut proc = Fixture::new(ProcessStatsConfig {
        proc_stats_poll_ms: Some(1),
        ..Default::default()
    });
    let notices: Vec<String> = proc
        .source
        .take_notices()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        notices,
        ["proc_stats_poll_ms: 1 is less than the minimum of 100 ms; sampling every 100 ms"]
    );
    assert!(proc.source.take_notices().is_empty());
    proc.start();
    proc.sample();
    assert_eq!(proc.source.next_deadline(), Some(100_000_000));
}

#[test]
fn without_procfs_there_is_no_instance() {
    let roots = KernelRoots {
        procfs: "/nonexistent/proc".into(),
        ..KernelRoots::default()
    };
    let error = ProcessStats::from_config(&wrap(polling()), &roots).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/proc"), "{error}");
}

#[test]
fn damaged_files_never_stop_it_and_its_packets_stay_well_formed() {
    let memory = "NSpid:\t1\t2\nKthread:\t0\nVmSize:\t 800 kB\nVmRSS:\t 70 kB\nRssAnon:\t 1 kB\n";
    let config = ProcessStatsConfig {
        record_thread_names: Some(true),
        record_process_age: Some(true),
        record_process_runtime: Some(true),
        scan_smaps_rollup: Some(true),
        record_process_dmabuf_rss: Some(true),
        scan_all_processes_on_start: Some(true),
        ..polling()
    };
    let mut proc = Fixture::new(config);
    for seed in 0..400 {
        let mut mutator = Mutator::new(seed);
        let status = format!("Name:\tx\nTgid:\t1\nPid:\t1\nPPid:\t1\nUid:\t1\t1\t1\t1\n{memory}");
        proc.proc.write("1/status", mutator.damage(status.as_bytes()));
        proc.proc.write("1/cmdline", mutator.damage(b"a\0b\0"));
        proc.proc
            .write("1/stat", mutator.damage(stat_text("x", 1, 2, 3).as_bytes()));
        proc.proc
            .write("1/smaps_rollup", mutator.damage(b"Rss: 11 kB\nPss: 12 kB\n"));
        proc.proc.write("1/dmabuf_rss", mutator.damage(b"8192\n"));
        proc.proc.write("1/oom_score_adj", mutator.damage(b"-1000\n"));
        proc.source.clear_incremental_state();
        proc.start();
        proc.source.on_deadline(1, &mut proc.sink);
        proc.see(&[1, i32::MAX, -1]);
        for packet in proc.sink.drain(..) {
            let fields: Result<Vec<_>, _> = ferretto_wire::Reader::new(&packet).collect();
            assert!(fields.is_ok(), "seed {seed}: {fields:?}");
        }
    }
}

/// `/proc/<pid>/stat` as of Linux 6.18.
fn stat_text(name: &str, user: u64, kernel: u64, start: u64) -> String {
    format!(
        "9346 ({name}) S 9245 9245 9245 0 -1 4194304 1006608 10781 8130 5 {user} {kernel} 115 25 20 0 15 0 {start} \
         3133440 411 18446744073709551615 1 1 140734634308656 0 0 0 0 2 4608 0 0 0 17 3 0 0 0 0 0\n"
    )
}

fn nanos_per_tick() -> u64 {
    crate::time::nanos_per_clock_tick()
}

#[test]
fn this_machine_is_described_as_it_is() {
    let config = ProcessStatsConfig {
        scan_all_processes_on_start: Some(true),
        record_thread_names: Some(true),
        record_process_age: Some(true),
        record_process_runtime: Some(true),
        resolve_process_fds: Some(true),
        scan_smaps_rollup: Some(true),
        ..polling()
    };
    let mut source = ProcessStats::from_config(&wrap(config), &KernelRoots::default()).unwrap();
    source.scan_turn = BootTime::MAX;
    let mut sink: Vec<Vec<u8>> = Vec::new();
    let before = boot_now();
    source.start(before, &mut sink);
    source.on_deadline(before, &mut sink);
    let packets: Vec<_> = sink
        .iter()
        .map(|packet| TracePacket::decode_from_slice(packet).unwrap())
        .collect();
    let trees: Vec<_> = packets.iter().cloned().filter_map(tree).collect();
    let all_stats: Vec<_> = packets.into_iter().filter_map(stats).collect();

    let own = i32::try_from(std::process::id()).unwrap();
    let me = trees[0]
        .processes
        .iter()
        .find(|process| process.pid == Some(own))
        .unwrap();
    assert_eq!(
        me.ppid,
        Some(i32::try_from(std::os::unix::process::parent_id()).unwrap())
    );
    assert_eq!(me.uid, Some(rustix::process::getuid().as_raw().cast_signed()));
    assert_eq!(
        me.cmdline,
        std::env::args()
            .filter(|argument| !argument.is_empty())
            .collect::<Vec<_>>()
    );
    assert!(me.process_start_from_boot.unwrap() < before);
    let this_thread = rustix::thread::gettid().as_raw_nonzero().get();
    assert!(
        threads(&trees[0])
            .iter()
            .any(|thread| (thread.0, thread.1) == (this_thread, own))
    );
    assert!(
        trees[0].threads.len() > trees[0].processes.len(),
        "each has one, and this one more"
    );
    let end = trees[0].collection_end_timestamp.unwrap();
    assert!(before < end && end <= boot_now());

    // First the open files, then the sample.
    let mine: Vec<_> = all_stats
        .iter()
        .flat_map(|stats| &stats.processes)
        .filter(|process| process.pid == Some(own))
        .collect();
    assert!(
        mine[0]
            .fds
            .iter()
            .any(|file| file.path.as_deref() == Some("/proc")),
        "{:?}",
        mine[0].fds
    );
    let sample = mine[1];
    assert!(
        sample.vm_size_kb >= sample.vm_rss_kb && sample.vm_rss_kb > Some(100),
        "{sample:?}"
    );
    assert!(
        sample.smr_pss_kb > Some(0) && sample.oom_score_adj.is_some() && sample.runtime_user_mode.is_some()
    );
    assert!(source.take_notices().is_empty());
}
