//! Files of procfs and sysfs with arbitrary content, through the data sources that read them.
//!
//! The first byte of the input chooses a file, the rest is what it contains; all others are as below.

#![no_main]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use ferretto_client::runtime::probe::Probe;
use ferretto_fuzz::{Input, assert_message};
use ferretto_probes::kernel_files::KernelRoots;
use ferretto_probes::process_stats::ProcessStats;
use ferretto_probes::sys_stats::SysStats;
use ferretto_probes::system_info::SystemInfo;
use ferretto_proto::messages::{DataSourceConfig, ProcessStatsConfig, SysStatsConfig, SystemInfoConfig};
use ferretto_wire::Reader;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

/// Path and usual content. New ones go to the end, so that inputs keep their meaning.
const FILES: &[(&str, &str)] = &[
    (
        "proc/stat",
        "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 7 0 7\nprocesses 9\nsoftirq 3 1 2\n",
    ),
    (
        "proc/meminfo",
        "MemTotal:       16000 kB\nMemFree:         8000 kB\n",
    ),
    ("proc/vmstat", "nr_free_pages 1000\npgfault 12\n"),
    (
        "proc/diskstats",
        " 253 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
    ),
    (
        "proc/buddyinfo",
        "Node 0, zone   Normal  1 2 3 4 5 6 7 8 9 10 11\n",
    ),
    (
        "proc/slabinfo",
        "slabinfo - version: 2.1\n# name\ntask 1 2 3 4 5 : tunables 0 0 0 : slabdata 1 2 0\n",
    ),
    (
        "proc/pressure/cpu",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=2\n",
    ),
    (
        "proc/pressure/memory",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
    ),
    (
        "proc/7/status",
        "Name:\tseven\nTgid:\t7\nPid:\t7\nPPid:\t1\nUid:\t1\t1\t1\t1\nVmRSS:\t 12 kB\nNSpid:\t7\t1\n",
    ),
    (
        "proc/7/stat",
        "7 (seven) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 10 11 12\n",
    ),
    ("proc/7/cmdline", "seven\0--of\0nine\0"),
    ("proc/7/oom_score_adj", "0\n"),
    (
        "proc/7/smaps_rollup",
        "0-1 ---p 0 0:0 0 [rollup]\nRss: 1 kB\nPss: 2 kB\nAnonHugePages: 3 kB\n",
    ),
    ("proc/7/task/8/status", "Name:\teight\nTgid:\t7\nPid:\t8\n"),
    (
        "proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU\nCPU implementer\t: 0x41\nFeatures\t: fp asimd\n\n",
    ),
    (
        "proc/interrupts",
        "           CPU0       CPU1\n  1:  9  0  IO-APIC  1-edge  i8042\nNMI:  0  0  Non-maskable\n",
    ),
    ("sys/devices/system/cpu/cpu0/cpu_capacity", "1024\n"),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
        "1800000\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_frequencies",
        "600000 1800000\n",
    ),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/time", "12\n"),
    ("sys/class/thermal/thermal_zone0/type", "acpitz\n"),
    ("sys/class/thermal/thermal_zone0/temp", "42000\n"),
    ("sys/class/devfreq/bus/cur_freq", "100000\n"),
];

/// The files, for as long as the process lives. libFuzzer leaves without running destructors: `fuzz/run` removes them.
static TREE: LazyLock<TempDir> = LazyLock::new(|| {
    let tree = TempDir::new().expect("a directory below TMPDIR");
    for (path, content) in FILES {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a directory");
        fs::write(path, content).expect("a file");
    }
    tree
});

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let (path, usual) = FILES[usize::from(input.byte()) % FILES.len()];
    let root = TREE.path();
    fs::write(root.join(path), input.0).expect("a file");
    let roots = KernelRoots {
        procfs: root.join("proc"),
        sysfs: root.join("sys"),
    };
    let config = config();
    run(&mut SysStats::from_config(&config, &roots));
    run(&mut ProcessStats::from_config(&config, &roots).expect("a directory"));
    run(&mut SystemInfo::from_config(&config, &roots));
    fs::write(root.join(path), usual).expect("a file");
});

/// Everything that these data sources can do.
fn config() -> DataSourceConfig {
    const PERIOD: Option<u32> = Some(100);
    DataSourceConfig {
        sys_stats_config: SysStatsConfig {
            meminfo_period_ms: PERIOD,
            vmstat_period_ms: PERIOD,
            stat_period_ms: PERIOD,
            devfreq_period_ms: PERIOD,
            cpufreq_period_ms: PERIOD,
            buddyinfo_period_ms: PERIOD,
            diskstat_period_ms: PERIOD,
            psi_period_ms: PERIOD,
            thermal_period_ms: PERIOD,
            cpuidle_period_ms: PERIOD,
            gpufreq_period_ms: PERIOD,
            slab_period_ms: PERIOD,
            ..Default::default()
        }
        .into(),
        process_stats_config: ProcessStatsConfig {
            scan_all_processes_on_start: Some(true),
            record_thread_names: Some(true),
            proc_stats_poll_ms: PERIOD,
            scan_smaps_rollup: Some(true),
            record_process_age: Some(true),
            record_process_runtime: Some(true),
            resolve_process_fds: Some(true),
            ..Default::default()
        }
        .into(),
        system_info_config: SystemInfoConfig {
            irq_names: Some(true),
            ..Default::default()
        }
        .into(),
        ..Default::default()
    }
}

/// One life of a data source with two samples. Every packet has to be one, and its fields, all messages, too.
fn run(source: &mut dyn Probe) {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    source.start(1, &mut packets);
    for _ in 0..2 {
        let Some(deadline) = source.next_deadline() else {
            break;
        };
        source.on_deadline(deadline, &mut packets);
    }
    source.flush(2, &mut packets);
    source.stop(3, &mut packets);
    for field in packets.iter().flat_map(|packet| Reader::new(packet)) {
        field
            .expect("a packet")
            .value
            .as_bytes()
            .into_iter()
            .for_each(assert_message);
    }
}
