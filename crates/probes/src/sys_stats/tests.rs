//! The data source against made-up kernel files of several versions, hostile ones, and this machine's own.

mod times;

use ferretto_proto::messages::sys_stats::psi_sample::PsiResource;
use ferretto_proto::messages::sys_stats_config::StatCounters;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{
    MeminfoCounters, Message, MessageField, SysStats as Stats, TracePacket, VmstatCounters,
};

use super::*;
use crate::test_files::{Mutator, TempDir};

/// A procfs and a sysfs of our own.
struct Fixture {
    files: TempDir,
    roots: KernelRoots,
}

impl Fixture {
    fn new() -> Self {
        let files = TempDir::new("sys");
        let roots = KernelRoots {
            procfs: files.path().join("proc"),
            sysfs: files.path().join("sys"),
        };
        Self { files, roots }
    }

    fn with(path: &str, content: &str) -> Self {
        let fixture = Self::new();
        fixture.files.write(path, content);
        fixture
    }

    fn source(&self, config: SysStatsConfig) -> SysStats {
        let mut source = SysStats::from_config(&wrap(config), &self.roots);
        source.start(0, &mut Vec::new());
        source
    }

    /// The first sample of an instance that was asked for `config`.
    fn sample(&self, config: SysStatsConfig) -> Stats {
        next_sample(&mut self.source(config))
    }
}

fn wrap(config: SysStatsConfig) -> DataSourceConfig {
    DataSourceConfig {
        sys_stats_config: MessageField::some(config),
        ..Default::default()
    }
}

fn next_sample(source: &mut SysStats) -> Stats {
    let mut sink: Vec<Vec<u8>> = Vec::new();
    let due = source.next_deadline().unwrap();
    source.on_deadline(due, &mut sink);
    assert_eq!(sink.len(), 1);
    let packet = TracePacket::decode_from_slice(&sink[0]).unwrap();
    assert_eq!(packet.timestamp, Some(due));
    match packet.data {
        Some(Data::SysStats(stats)) => *stats,
        other => panic!("{other:?}"),
    }
}

/// A config that asks for one group.
fn only(group: Group) -> SysStatsConfig {
    let mut config = SysStatsConfig::default();
    let field = match group {
        Group::Meminfo => &mut config.meminfo_period_ms,
        Group::Vmstat => &mut config.vmstat_period_ms,
        Group::Stat => &mut config.stat_period_ms,
        Group::Devfreq => &mut config.devfreq_period_ms,
        Group::Cpufreq => &mut config.cpufreq_period_ms,
        Group::Buddyinfo => &mut config.buddyinfo_period_ms,
        Group::Diskstat => &mut config.diskstat_period_ms,
        Group::Psi => &mut config.psi_period_ms,
        Group::Thermal => &mut config.thermal_period_ms,
        Group::Cpuidle => &mut config.cpuidle_period_ms,
        Group::Gpufreq => &mut config.gpufreq_period_ms,
        Group::Slab => &mut config.slab_period_ms,
    };
    *field = Some(10);
    config
}

fn everything() -> SysStatsConfig {
    SysStatsConfig {
        meminfo_period_ms: Some(10),
        vmstat_period_ms: Some(10),
        stat_period_ms: Some(10),
        devfreq_period_ms: Some(10),
        cpufreq_period_ms: Some(10),
        buddyinfo_period_ms: Some(10),
        diskstat_period_ms: Some(10),
        psi_period_ms: Some(10),
        thermal_period_ms: Some(10),
        cpuidle_period_ms: Some(10),
        gpufreq_period_ms: Some(10),
        slab_period_ms: Some(10),
        ..Default::default()
    }
}

const MEMINFO: &str = "MemTotal:        3744240 kB\nMemFree:           73328 kB\nActive:          1616348 kB\n\
    Active(anon):    1322636 kB\nInactive(file):   296320 kB\nNFS_Unstable:          0 kB\nCommitted_AS:   81911488 kB\n\
    HugePages_Total:       0\nCmaFree:              60 kB\n";

const STAT: &str = "cpu  2655987 822682 2352153 8801203 41917 322733 175055 0 0 0\n\
    cpu0 762178 198125 902284 8678856 41716 152974 68262 72386 0 0\ncpu7 180484 58196 139874 17975 3 9556 13407 28643 0 0\n\
    intr 238128517 0 0 0 63500984 0 6253792\nctxt 373122860\nbtime 1536912218\nprocesses 243320\nprocs_running 1\n\
    softirq 84611084 10220177 0 155083\n";

fn meminfo(stats: &Stats) -> Vec<(MeminfoCounters, u64)> {
    stats
        .meminfo
        .iter()
        .map(|entry| (entry.key.unwrap(), entry.value.unwrap()))
        .collect()
}

#[test]
fn meminfo_has_all_known_counters_unless_some_are_chosen() {
    let fixture = Fixture::with("proc/meminfo", MEMINFO);
    let all = [
        (MeminfoCounters::MEMINFO_MEM_TOTAL, 3744240),
        (MeminfoCounters::MEMINFO_MEM_FREE, 73328),
        (MeminfoCounters::MEMINFO_ACTIVE, 1616348),
        (MeminfoCounters::MEMINFO_ACTIVE_ANON, 1322636),
        (MeminfoCounters::MEMINFO_INACTIVE_FILE, 296320),
        (MeminfoCounters::MEMINFO_COMMITED_AS, 81911488),
        (MeminfoCounters::MEMINFO_CMA_FREE, 60),
    ];
    assert_eq!(meminfo(&fixture.sample(only(Group::Meminfo))), all);
    let chosen = vec![
        MeminfoCounters::MEMINFO_CMA_FREE,
        MeminfoCounters::MEMINFO_MEM_FREE,
    ];
    let some = fixture.sample(SysStatsConfig {
        meminfo_counters: chosen,
        ..only(Group::Meminfo)
    });
    assert_eq!(meminfo(&some), [all[1], all[6]]);
}

#[test]
fn lines_that_come_and_go_are_followed() {
    let fixture = Fixture::with("proc/meminfo", "MemTotal: 1 kB\nMemFree: 2 kB\nDirty: 3 kB\n");
    let mut source = fixture.source(only(Group::Meminfo));
    let dirty = MeminfoCounters::MEMINFO_DIRTY;
    assert_eq!(meminfo(&next_sample(&mut source))[2], (dirty, 3));
    fixture
        .files
        .write("proc/meminfo", "MemTotal: 1 kB\nDirty: 4 kB\n");
    assert_eq!(meminfo(&next_sample(&mut source))[1], (dirty, 4));
    fixture.files.write(
        "proc/meminfo",
        "MemTotal: 1 kB\nNew: 7 kB\nOther: 8 kB\nDirty: 5 kB\n",
    );
    assert_eq!(meminfo(&next_sample(&mut source))[1], (dirty, 5));
}

#[test]
fn vmstat_has_all_known_counters_unless_some_are_chosen() {
    let fixture = Fixture::with(
        "proc/vmstat",
        "nr_free_pages 16449\nnr_free_pages_blocks 7\npgsteal_direct 91537\nworkingset_restore_file 12\nvma_lock_abort 1173728\n",
    );
    let vmstat = |stats: Stats| -> Vec<_> {
        stats
            .vmstat
            .iter()
            .map(|entry| (entry.key.unwrap(), entry.value.unwrap()))
            .collect()
    };
    assert_eq!(
        vmstat(fixture.sample(only(Group::Vmstat))),
        [
            (VmstatCounters::VMSTAT_NR_FREE_PAGES, 16449),
            (VmstatCounters::VMSTAT_PGSTEAL_DIRECT, 91537),
            (VmstatCounters::VMSTAT_WORKINGSET_RESTORE_FILE, 12),
            (VmstatCounters::VMSTAT_VMA_LOCK_ABORT, 1173728),
        ]
    );
    let chosen = vec![VmstatCounters::VMSTAT_VMA_LOCK_ABORT];
    let some = fixture.sample(SysStatsConfig {
        vmstat_counters: chosen,
        ..only(Group::Vmstat)
    });
    assert_eq!(vmstat(some), [(VmstatCounters::VMSTAT_VMA_LOCK_ABORT, 1173728)]);
}

#[test]
fn stat_has_cpu_times_interrupts_and_forks() {
    let stats = Fixture::with("proc/stat", STAT).sample(only(Group::Stat));
    let tick = crate::time::nanos_per_clock_tick();
    let cpus: Vec<_> = stats.cpu_stat.iter().map(|cpu| cpu.cpu_id.unwrap()).collect();
    assert_eq!(cpus, [0, 7], "the sum of all CPUs is none of them");
    let cpu = &stats.cpu_stat[0];
    assert_eq!(
        (cpu.user_ns, cpu.user_nice_ns),
        (Some(762178 * tick), Some(198125 * tick))
    );
    assert_eq!(
        (cpu.system_mode_ns, cpu.idle_ns),
        (Some(902284 * tick), Some(8678856 * tick))
    );
    assert_eq!(
        (cpu.io_wait_ns, cpu.irq_ns),
        (Some(41716 * tick), Some(152974 * tick))
    );
    assert_eq!(
        (cpu.softirq_ns, cpu.steal_ns),
        (Some(68262 * tick), Some(72386 * tick))
    );
    let irqs = |counts: &[ferretto_proto::messages::sys_stats::InterruptCount]| -> Vec<_> {
        counts
            .iter()
            .map(|entry| (entry.irq.unwrap(), entry.count.unwrap()))
            .collect()
    };
    assert_eq!(stats.num_irq_total, Some(238128517));
    assert_eq!(
        irqs(&stats.num_irq),
        [(3, 63500984), (5, 6253792)],
        "interrupts that never came are left out"
    );
    assert_eq!(stats.num_softirq_total, Some(84611084));
    assert_eq!(irqs(&stats.num_softirq), [(0, 10220177), (1, 0), (2, 155083)]);
    assert_eq!(stats.num_forks, Some(243320));
}

#[test]
fn stat_has_only_what_is_chosen() {
    let fixture = Fixture::with("proc/stat", STAT);
    let parts = |counter| {
        let stats = fixture.sample(SysStatsConfig {
            stat_counters: vec![counter],
            ..only(Group::Stat)
        });
        [
            !stats.cpu_stat.is_empty(),
            stats.num_irq_total.is_some() && !stats.num_irq.is_empty(),
            stats.num_softirq_total.is_some() && !stats.num_softirq.is_empty(),
            stats.num_forks.is_some(),
        ]
    };
    assert_eq!(parts(StatCounters::STAT_CPU_TIMES), [true, false, false, false]);
    assert_eq!(parts(StatCounters::STAT_IRQ_COUNTS), [false, true, false, false]);
    assert_eq!(
        parts(StatCounters::STAT_SOFTIRQ_COUNTS),
        [false, false, true, false]
    );
    assert_eq!(parts(StatCounters::STAT_FORK_COUNT), [false, false, false, true]);
}

#[test]
fn buddyinfo_has_a_list_of_sizes_for_each_zone() {
    let text = "Node 0, zone  DMA      2743  1659  2063\nNode 1, zone   HighMem  345   90    156   3\n";
    let stats = Fixture::with("proc/buddyinfo", text).sample(only(Group::Buddyinfo));
    let zones: Vec<_> = stats
        .buddy_info
        .iter()
        .map(|info| {
            (
                info.node.as_deref().unwrap(),
                info.zone.as_deref().unwrap(),
                &info.order_pages[..],
            )
        })
        .collect();
    assert_eq!(
        zones,
        [
            ("0", "DMA", &[2743, 1659, 2063][..]),
            ("1", "HighMem", &[345, 90, 156, 3])
        ]
    );
}

#[test]
fn diskstats_of_old_kernels_lack_columns() {
    let linux_4_14 = " 253       0 zram0 1 2 3 4 5 6 7 8 9 10 11\n";
    let linux_5_4 = "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n";
    let linux_5_5 = "   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n";
    let text = [linux_4_14, linux_5_4, linux_5_5].concat();
    let stats = Fixture::with("proc/diskstats", &text).sample(only(Group::Diskstat));
    let disks: Vec<_> = stats
        .disk_stat
        .iter()
        .map(|disk| {
            let reads = (disk.read_sectors.unwrap(), disk.read_time_ms.unwrap());
            let writes = (disk.write_sectors.unwrap(), disk.write_time_ms.unwrap());
            let discards = disk.discard_sectors.zip(disk.discard_time_ms);
            (
                disk.device_name.as_deref().unwrap(),
                reads,
                writes,
                discards,
                disk.flush_count.zip(disk.flush_time_ms),
            )
        })
        .collect();
    assert_eq!(
        disks,
        [
            ("zram0", (3, 4), (7, 8), None, None),
            ("sda", (3, 4), (7, 8), Some((14, 15)), None),
            ("sda1", (3, 4), (7, 8), Some((14, 15)), Some((16, 17))),
        ]
    );
}

#[test]
fn pressure_is_in_nanoseconds_and_a_missing_resource_does_not_hide_the_others() {
    let fixture = Fixture::new();
    // Before Linux 5.13, CPUs had no "full".
    fixture.files.write(
        "proc/pressure/cpu",
        "some avg10=23.10 avg60=5.06 avg300=15.10 total=417963\n",
    );
    let memory = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=9.00 avg60=19.20 avg300=3.23 total=205933\n";
    fixture.files.write("proc/pressure/memory", memory);
    let mut source = fixture.source(only(Group::Psi));
    let stats = next_sample(&mut source);
    let samples: Vec<_> = stats
        .psi
        .iter()
        .map(|psi| (psi.resource.unwrap(), psi.total_ns.unwrap()))
        .collect();
    assert_eq!(
        samples,
        [
            (PsiResource::PSI_RESOURCE_CPU_SOME, 417_963_000),
            (PsiResource::PSI_RESOURCE_MEMORY_SOME, 0),
            (PsiResource::PSI_RESOURCE_MEMORY_FULL, 205_933_000),
        ]
    );
    let notices: Vec<_> = source.take_notices().iter().map(ToString::to_string).collect();
    assert!(
        notices.len() == 1 && notices[0].contains("pressure/io"),
        "{notices:?}"
    );
}

#[test]
fn slabinfo_starts_after_its_header() {
    let text = "slabinfo - version: 2.1\n# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : \
        tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n\
        kmalloc-64          100    100     64   64    2 : tunables   32   16    8 : slabdata      3      4      0\n";
    let stats = Fixture::with("proc/slabinfo", text).sample(only(Group::Slab));
    assert_eq!(stats.slab_info.len(), 1);
    let slab = &stats.slab_info[0];
    assert_eq!(
        (slab.name.as_deref(), slab.pages_per_slab, slab.num_slabs),
        (Some("kmalloc-64"), Some(2), Some(4))
    );
}

#[test]
fn thermal_zones_have_name_type_and_degrees() {
    let fixture = Fixture::new();
    let zone = |number: u32, kind: &str, temperature: &str| {
        fixture
            .files
            .write(&format!("sys/devices/virtual/z{number}/type"), kind);
        fixture
            .files
            .write(&format!("sys/devices/virtual/z{number}/temp"), temperature);
        let target = fixture.roots.sysfs.join(format!("devices/virtual/z{number}"));
        fixture.files.link(
            &format!("sys/class/thermal/thermal_zone{number}"),
            target.to_str().unwrap(),
        );
    };
    zone(0, "TSR0\n", "25999\n");
    zone(1, "outside\n", "-5000\n");
    fixture
        .files
        .link("sys/class/thermal/cooling_device0", "/nowhere");
    let mut source = fixture.source(only(Group::Thermal));
    let zones = |stats: Stats| -> Vec<_> {
        let mut zones: Vec<_> = stats
            .thermal_zone
            .into_iter()
            .map(|zone| (zone.name.unwrap(), zone.r#type, zone.temp))
            .collect();
        zones.sort();
        zones
    };
    let told =
        |number: u32, kind: &str, degrees| (format!("thermal_zone{number}"), Some(kind.to_owned()), degrees);
    assert_eq!(
        zones(next_sample(&mut source)),
        [told(0, "TSR0", Some(25)), told(1, "outside", None)]
    );

    fixture.files.write("sys/devices/virtual/z0/temp", "31000\n");
    zone(2, "new\n", "1000\n");
    let all = [
        told(0, "TSR0", Some(31)),
        told(1, "outside", None),
        told(2, "new", Some(1)),
    ];
    assert_eq!(zones(next_sample(&mut source)), all);
}

#[test]
fn devfreq_has_a_frequency_for_each_device() {
    let fixture = Fixture::new();
    for (name, frequency) in [("bus0", "1000000\n"), ("bus1", "20000000\n"), ("broken", "\n")] {
        fixture
            .files
            .write(&format!("sys/devices/{name}/cur_freq"), frequency);
        let target = fixture.roots.sysfs.join("devices").join(name);
        fixture
            .files
            .link(&format!("sys/class/devfreq/{name}"), target.to_str().unwrap());
    }
    let stats = fixture.sample(only(Group::Devfreq));
    let mut devices: Vec<_> = stats
        .devfreq
        .into_iter()
        .map(|entry| (entry.key.unwrap(), entry.value.unwrap()))
        .collect();
    devices.sort();
    assert_eq!(
        devices,
        [("bus0".to_owned(), 1_000_000), ("bus1".to_owned(), 20_000_000)]
    );
}

#[test]
fn more_devices_than_files_kept_open_are_all_sampled_each_time() {
    let fixture = Fixture::new();
    for cpu in 0..150 {
        fixture.files.write(
            &format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"),
            cpu.to_string(),
        );
    }
    let mut source = fixture.source(only(Group::Cpufreq));
    let by_number: Vec<u32> = (0..150).collect();
    assert_eq!(next_sample(&mut source).cpufreq_khz, by_number);
    fixture
        .files
        .write("sys/devices/system/cpu/cpu149/cpufreq/scaling_cur_freq", "7000");
    assert_eq!(next_sample(&mut source).cpufreq_khz[148..], [148, 7000]);
}

#[test]
fn cpu_frequencies_stand_at_the_place_of_their_cpu() {
    let fixture = Fixture::with(
        "sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq",
        "1800000\n",
    );
    fixture.files.write(
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
        "2650000\n",
    );
    fixture.files.write("sys/devices/system/cpu/cpu3/online", "0\n");
    fixture.files.write("sys/devices/system/cpu/cpufreq/boost", "1\n");
    assert_eq!(
        fixture.sample(only(Group::Cpufreq)).cpufreq_khz,
        [2_650_000, 0, 1_800_000, 0]
    );
}

#[test]
fn idle_states_are_found_when_their_cpu_comes_online() {
    let fixture = Fixture::with("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n");
    fixture
        .files
        .write("sys/devices/system/cpu/cpu0/cpuidle/state1/time", "10000\n");
    fixture
        .files
        .write("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n");
    fixture
        .files
        .write("sys/devices/system/cpu/cpu0/cpuidle/state0/time", "7\n");
    fixture.files.write("sys/devices/system/cpu/cpu1/online", "0\n");
    let mut source = fixture.source(only(Group::Cpuidle));
    let states = |stats: Stats| -> Vec<_> {
        stats
            .cpuidle_state
            .into_iter()
            .map(|cpu| {
                let states = cpu.cpuidle_state_entry.into_iter();
                (
                    cpu.cpu_id.unwrap(),
                    states
                        .map(|state| (state.state.unwrap(), state.duration_us.unwrap()))
                        .collect(),
                )
            })
            .collect()
    };
    let first: Vec<(u32, Vec<(String, u64)>)> =
        vec![(0, vec![("POLL".into(), 7), ("C1".into(), 10000)]), (1, vec![])];
    assert_eq!(states(next_sample(&mut source)), first);
    fixture
        .files
        .write("sys/devices/system/cpu/cpu1/cpuidle/state0/name", "POLL\n");
    fixture
        .files
        .write("sys/devices/system/cpu/cpu1/cpuidle/state0/time", "3\n");
    assert_eq!(states(next_sample(&mut source))[1], (1, vec![("POLL".into(), 3)]));
    assert!(source.take_notices().is_empty());
}

#[test]
fn the_graphics_frequency_comes_from_whichever_driver_there_is() {
    let makers = [
        (
            "sys/class/kgsl/kgsl-3d0/devfreq/cur_freq",
            "400000000\n",
            vec![400],
        ),
        ("sys/class/drm/card0/gt_act_freq_mhz", "300\n", vec![300]),
        (
            "sys/class/drm/card0/device/pp_dpm_sclk",
            "0: 200Mhz \n1: 400Mhz *\n2: 2000Mhz \n",
            vec![400],
        ),
        ("sys/class/drm/card0/device/pp_dpm_sclk", "0: 200Mhz \n", vec![]),
    ];
    for (path, text, expected) in makers {
        assert_eq!(
            Fixture::with(path, text).sample(only(Group::Gpufreq)).gpufreq_mhz,
            expected,
            "{path}"
        );
    }
}

#[test]
fn what_the_kernel_lacks_is_noticed_once_and_leaves_the_rest() {
    let fixture = Fixture::with("proc/meminfo", MEMINFO);
    let mut source = fixture.source(everything());
    let stats = next_sample(&mut source);
    assert_eq!(stats.meminfo.len(), 7);
    assert!(stats.collection_end_timestamp.is_some());
    let notices: Vec<_> = source.take_notices().iter().map(ToString::to_string).collect();
    assert_eq!(notices.len(), 11, "{notices:#?}");
    assert!(notices[0].starts_with("vmstat_period_ms: cannot read ") && notices[0].contains("proc/vmstat"));
    next_sample(&mut source);
    assert!(source.take_notices().is_empty());
}

#[test]
fn damaged_files_never_stop_it_and_its_packets_stay_well_formed() {
    let fixture = Fixture::new();
    let files = [
        ("proc/meminfo", MEMINFO),
        ("proc/vmstat", "nr_free_pages 16449\nvma_lock_abort 1173728\n"),
        ("proc/stat", STAT),
        ("proc/buddyinfo", "Node 0, zone  DMA      2743  1659  2063\n"),
        (
            "proc/diskstats",
            "   8       1 sda1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n",
        ),
        (
            "proc/pressure/cpu",
            "some avg10=23.10 avg60=5.06 avg300=15.10 total=417963\n",
        ),
        (
            "proc/slabinfo",
            "v\n#\nkmalloc-64 100 100 64 64 2 : tunables 32 16 8 : slabdata 3 4 0\n",
        ),
        (
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq",
            "1800000\n",
        ),
        ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state0/time", "3\n"),
        (
            "sys/class/drm/card0/device/pp_dpm_sclk",
            "0: 200Mhz \n1: 400Mhz *\n",
        ),
    ];
    for seed in 0..200 {
        let mut mutator = Mutator::new(seed);
        for (path, text) in files {
            fixture.files.write(path, mutator.damage(text.as_bytes()));
        }
        let mut source = fixture.source(everything());
        let mut sink: Vec<Vec<u8>> = Vec::new();
        source.on_deadline(0, &mut sink);
        let fields: Result<Vec<_>, _> = ferretto_wire::Reader::new(&sink[0]).collect();
        assert!(fields.is_ok(), "seed {seed}: {fields:?}");
    }
}

#[test]
fn a_directory_of_endless_cpus_is_bounded() {
    let fixture = Fixture::with("sys/devices/system/cpu/cpu4294967295/online", "1\n");
    fixture.files.write("sys/devices/system/cpu/cpu1/online", "1\n");
    assert_eq!(fixture.sample(only(Group::Cpufreq)).cpufreq_khz, [0, 0]);
}

#[test]
fn this_machine_is_sampled_as_it_is() {
    let mut source = SysStats::from_config(&wrap(everything()), &KernelRoots::default());
    source.start(boot_now(), &mut Vec::new());
    let first = next_sample(&mut source);
    let second = next_sample(&mut source);
    let total = |stats: &Stats| {
        meminfo(stats)
            .into_iter()
            .find(|(key, _)| *key == MeminfoCounters::MEMINFO_MEM_TOTAL)
            .unwrap()
            .1
    };
    assert!(total(&first) > 100_000, "kB");
    assert!(
        first.meminfo.len() > 20 && first.vmstat.len() > 60,
        "{} {}",
        first.meminfo.len(),
        first.vmstat.len()
    );
    assert_eq!(
        first.cpu_stat.len(),
        std::thread::available_parallelism()
            .unwrap()
            .get()
            .max(first.cpu_stat.len())
    );
    assert!(
        second
            .cpu_stat
            .iter()
            .zip(&first.cpu_stat)
            .all(|(later, earlier)| later.user_ns >= earlier.user_ns)
    );
    assert!(first.num_forks > Some(0) && second.num_forks >= first.num_forks);
    let softirqs: u64 = first.num_softirq.iter().filter_map(|entry| entry.count).sum();
    assert_eq!(first.num_softirq_total, Some(softirqs));
    assert!(first.buddy_info.iter().all(|zone| zone.order_pages.len() >= 8) && !first.buddy_info.is_empty());
    assert_eq!(first.cpufreq_khz.len(), first.cpuidle_state.len());
    for notice in source.take_notices() {
        println!("{notice}");
    }
}
