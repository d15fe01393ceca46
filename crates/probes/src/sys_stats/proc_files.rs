//! Samplers of the other files of procfs: `stat`, `buddyinfo`, `diskstats`, `pressure/*` and `slabinfo`.
//!
//! Their formats grew columns over time, always at the end, and are those of proc(5) and the kernel's
//! `Documentation/admin-guide/iostats.rst` and `Documentation/accounting/psi.rst`. A column that a kernel lacks is left out.

use std::path::Path;

use ferretto_proto::messages::sys_stats::psi_sample::PsiResource;
use ferretto_proto::messages::sys_stats_config::StatCounters;
use ferretto_proto::write;

use super::{Missing, Sampler};
use crate::kernel_files::{Keep, PolledFile};
use crate::kernel_text::{leading_u64, lines, whole_u32, whole_u64, words};
use crate::time::nanos_per_clock_tick;

/// The content of a file that stays open.
fn read<'buffer>(file: &mut PolledFile, buffer: &'buffer mut Vec<u8>) -> Result<&'buffer [u8], Missing> {
    file.read(buffer)
        .map_err(|error| Missing::new(file.path(), error))
}

/// Which lines of `/proc/stat` are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StatLines {
    cpu_times: bool,
    irqs: bool,
    softirqs: bool,
    forks: bool,
}

/// `/proc/stat`: CPU times, interrupts, forks.
#[derive(Debug)]
pub(crate) struct Stat {
    file: PolledFile,
    lines: StatLines,
    nanos_per_tick: u64,
}

impl Stat {
    /// Samples the counters of `only`, or all counters if `only` is empty.
    pub(crate) fn new(procfs: &Path, only: &[StatCounters]) -> Self {
        let wants = |counter| only.is_empty() || only.contains(&counter);
        let lines = StatLines {
            cpu_times: wants(StatCounters::STAT_CPU_TIMES),
            irqs: wants(StatCounters::STAT_IRQ_COUNTS),
            softirqs: wants(StatCounters::STAT_SOFTIRQ_COUNTS),
            forks: wants(StatCounters::STAT_FORK_COUNT),
        };
        let file = PolledFile::new(procfs.join("stat"), Keep::Open);
        Self {
            file,
            lines,
            nanos_per_tick: nanos_per_clock_tick(),
        }
    }
}

impl Sampler for Stat {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        for line in lines(read(&mut self.file, buffer)?) {
            let mut columns = words(line);
            let Some(key) = columns.next() else { continue };
            match key {
                b"intr" if self.lines.irqs => {
                    if let Some(total) = columns.next().and_then(whole_u64) {
                        stats.num_irq_total(total);
                    }
                    // The kernel has hundreds of interrupts, most of which were never used.
                    for (irq, count) in (0..).zip(columns) {
                        if let Some(count) = whole_u64(count).filter(|&count| count > 0) {
                            stats.num_irq(|entry| {
                                entry.irq(irq).count(count);
                            });
                        }
                    }
                }
                b"softirq" if self.lines.softirqs => {
                    if let Some(total) = columns.next().and_then(whole_u64) {
                        stats.num_softirq_total(total);
                    }
                    for (irq, count) in (0..).zip(columns) {
                        if let Some(count) = whole_u64(count) {
                            stats.num_softirq(|entry| {
                                entry.irq(irq).count(count);
                            });
                        }
                    }
                }
                b"processes" if self.lines.forks => {
                    if let Some(forks) = columns.next().and_then(whole_u64) {
                        stats.num_forks(forks);
                    }
                }
                _ if self.lines.cpu_times => {
                    // "cpu" without a number is the sum of the others.
                    let Some(cpu) = key.strip_prefix(b"cpu").and_then(whole_u32) else {
                        continue;
                    };
                    // Kernels before 2.6.11 have fewer columns than the eight.
                    let mut nanos = || {
                        let ticks = columns.next().and_then(whole_u64).unwrap_or(0);
                        ticks.saturating_mul(self.nanos_per_tick)
                    };
                    stats.cpu_stat(|times| {
                        times
                            .cpu_id(cpu)
                            .user_ns(nanos())
                            .user_nice_ns(nanos())
                            .system_mode_ns(nanos())
                            .idle_ns(nanos())
                            .io_wait_ns(nanos())
                            .irq_ns(nanos())
                            .softirq_ns(nanos())
                            .steal_ns(nanos());
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// `/proc/buddyinfo`: free blocks of memory by size.
#[derive(Debug)]
pub(crate) struct Buddyinfo(PolledFile);

impl Buddyinfo {
    pub(crate) fn new(procfs: &Path) -> Self {
        Self(PolledFile::new(procfs.join("buddyinfo"), Keep::Open))
    }
}

impl Sampler for Buddyinfo {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        for line in lines(read(&mut self.0, buffer)?) {
            // "Node 0, zone   Normal    623   1084    448 ..."
            let mut columns = words(line);
            let (Some(b"Node"), Some(node), Some(b"zone"), Some(zone)) =
                (columns.next(), columns.next(), columns.next(), columns.next())
            else {
                continue;
            };
            stats.buddy_info(|info| {
                info.node(node.strip_suffix(b",").unwrap_or(node)).zone(zone);
                for pages in columns {
                    // The place in the list is the size of the blocks, so no value may be left out.
                    info.order_pages(whole_u32(pages).unwrap_or(0));
                }
            });
        }
        Ok(())
    }
}

/// `/proc/diskstats`: reads and writes of each block device.
#[derive(Debug)]
pub(crate) struct Diskstats(PolledFile);

impl Diskstats {
    pub(crate) fn new(procfs: &Path) -> Self {
        Self(PolledFile::new(procfs.join("diskstats"), Keep::Open))
    }
}

impl Sampler for Diskstats {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        for line in lines(read(&mut self.0, buffer)?) {
            // Device numbers, name, then counters: eleven, fifteen since Linux 4.18, seventeen since 5.5.
            let mut columns = words(line).skip(2);
            let Some(name) = columns.next() else { continue };
            stats.disk_stat(|disk| {
                disk.device_name(name);
                for (column, word) in (4..=20).zip(columns) {
                    let value = whole_u64(word).unwrap_or(0);
                    match column {
                        6 => disk.read_sectors(value),
                        7 => disk.read_time_ms(value),
                        10 => disk.write_sectors(value),
                        11 => disk.write_time_ms(value),
                        17 => disk.discard_sectors(value),
                        18 => disk.discard_time_ms(value),
                        19 => disk.flush_count(value),
                        20 => disk.flush_time_ms(value),
                        _ => disk,
                    };
                }
            });
        }
        Ok(())
    }
}

/// `/proc/pressure/*`: time lost waiting for a resource. (`pressure/irq`, since Linux 6.1, has no place in the format.)
#[derive(Debug)]
pub(crate) struct Pressure {
    resources: [PressureFile; 3],
}

#[derive(Debug)]
struct PressureFile {
    file: PolledFile,
    /// Some tasks waited.
    some: PsiResource,
    /// All tasks waited that had something to do.
    full: PsiResource,
}

impl Pressure {
    pub(crate) fn new(procfs: &Path) -> Self {
        let resource = |name: &str, some, full| PressureFile {
            file: PolledFile::new(procfs.join("pressure").join(name), Keep::Open),
            some,
            full,
        };
        let resources = [
            resource(
                "cpu",
                PsiResource::PSI_RESOURCE_CPU_SOME,
                PsiResource::PSI_RESOURCE_CPU_FULL,
            ),
            resource(
                "io",
                PsiResource::PSI_RESOURCE_IO_SOME,
                PsiResource::PSI_RESOURCE_IO_FULL,
            ),
            resource(
                "memory",
                PsiResource::PSI_RESOURCE_MEMORY_SOME,
                PsiResource::PSI_RESOURCE_MEMORY_FULL,
            ),
        ];
        Self { resources }
    }
}

impl Sampler for Pressure {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        let mut first_missing = Ok(());
        for PressureFile { file, some, full } in &mut self.resources {
            let text = match read(file, buffer) {
                Ok(text) => text,
                Err(missing) => {
                    first_missing = first_missing.and(Err(missing));
                    continue;
                }
            };
            for line in lines(text) {
                // "some avg10=0.05 avg60=0.24 avg300=0.27 total=4240051", in microseconds
                let mut columns = words(line);
                let resource = match columns.next() {
                    Some(b"some") => *some,
                    Some(b"full") => *full,
                    _ => continue,
                };
                let total = columns
                    .find_map(|word| word.strip_prefix(b"total="))
                    .and_then(leading_u64);
                if let Some(micros) = total {
                    stats.psi(|sample| {
                        sample.resource(resource).total_ns(micros.saturating_mul(1000));
                    });
                }
            }
        }
        first_missing
    }
}

/// `/proc/slabinfo`: memory of the kernel's object caches. Only root may read it.
#[derive(Debug)]
pub(crate) struct Slabinfo(PolledFile);

impl Slabinfo {
    pub(crate) fn new(procfs: &Path) -> Self {
        Self(PolledFile::new(procfs.join("slabinfo"), Keep::Open))
    }
}

impl Sampler for Slabinfo {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        // Two lines say the version and the columns:
        // name active_objs num_objs objsize objperslab pagesperslab : tunables 3 numbers : slabdata active_slabs num_slabs
        for line in lines(read(&mut self.0, buffer)?).skip(2) {
            let mut columns = words(line);
            let Some(name) = columns.next() else { continue };
            let pages_per_slab = columns.nth(4).and_then(whole_u32);
            let slabs = columns.nth(8).and_then(whole_u32);
            stats.slab_info(|slab| {
                slab.name(name)
                    .pages_per_slab(pages_per_slab.unwrap_or(0))
                    .num_slabs(slabs.unwrap_or(0));
            });
        }
        Ok(())
    }
}
