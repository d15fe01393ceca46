//! Counters of the kernel, of the machine and of processes.

use ferretto_proto::kernel_names::{MEMINFO_KEYS, VMSTAT_KEYS};
use ferretto_proto::write::sys_stats::{
    BuddyInfo, CpuTimes, DevfreqValue, InterruptCount, MeminfoValue, PsiSample, ThermalZone, VmstatValue,
};
use ferretto_proto::write::{ProcessStats, SysStats};

use super::Trackers;
use super::tracks::{Dimension, Has, Key};
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, each_varint, fields, number, number_of};
use crate::rows::Cell;
use crate::schema::FILEDESCRIPTOR;

const COUNTER: Has = Has::Counter { unit: None };
/// Fields of `CpuTimes`, with the words in the names of their counters.
const CPU_TIMES: [(u32, &str); 8] = [
    (CpuTimes::USER_NS, "user_ns"),
    (CpuTimes::USER_NICE_NS, "user_nice_ns"),
    (CpuTimes::SYSTEM_MODE_NS, "system_mode_ns"),
    (CpuTimes::IDLE_NS, "idle_ns"),
    (CpuTimes::IO_WAIT_NS, "io_wait_ns"),
    (CpuTimes::IRQ_NS, "irq_ns"),
    (CpuTimes::SOFTIRQ_NS, "softirq_ns"),
    (CpuTimes::STEAL_NS, "steal_ns"),
];
/// Fields of `ProcessStats.Process` in kB.
const MEMORY: [(u32, &str); 9] = [
    (2, "virt"),
    (3, "rss"),
    (4, "rss.anon"),
    (5, "rss.file"),
    (6, "rss.shmem"),
    (7, "swap"),
    (8, "locked"),
    (9, "rss.watermark"),
    (24, "dmabuf_rss"),
];
/// Fields of `ProcessStats.Process` about the mappings of the process, in kB.
const SMAPS: [(u32, &str); 5] = [
    (16, "rss"),
    (17, "pss"),
    (18, "pss.anon"),
    (19, "pss.file"),
    (20, "pss.smem"),
];
const PID: u32 = 1;
const OOM_SCORE_ADJ: u32 = 10;
const THREADS: u32 = 11;
const OF_CHROME_1: u32 = 12;
const OF_CHROME_2: u32 = 13;
const FDS: u32 = 15;
const SWAP_PSS: u32 = 23;
const USER_NS: u32 = 21;
const KERNEL_NS: u32 = 22;
const PSI_RESOURCES: [&str; 7] = [
    "resource.unspecified",
    "cpu.some",
    "cpu.full",
    "io.some",
    "io.full",
    "mem.some",
    "mem.full",
];

impl Trackers {
    /// Writes the value of a counter that belongs to nothing but its dimensions.
    pub(super) fn count(
        &mut self,
        ts: i64,
        value: f64,
        key: &Key,
        name: impl FnOnce() -> String,
        has: Has,
        context: &mut Context<'_>,
    ) {
        let track = self
            .tracks
            .intern(key, has, |strings| Some(strings.intern(&name())), context);
        self.tracks
            .count(ts, track, value, None, &context.strings, &mut context.output);
    }

    pub(crate) fn cpu_frequency(&mut self, ts: i64, cpu: u32, value: f64, context: &mut Context<'_>) {
        let key = Key::new("cpu_frequency", &[("cpu", Dimension::Int(cpu.into()))]);
        self.count(ts, value, &key, || "cpufreq".to_owned(), COUNTER, context);
    }

    pub(crate) fn cpu_idle(&mut self, ts: i64, cpu: u32, value: f64, context: &mut Context<'_>) {
        let key = Key::new("cpu_idle", &[("cpu", Dimension::Int(cpu.into()))]);
        self.count(ts, value, &key, || "cpuidle".to_owned(), COUNTER, context);
    }

    /// Counters of the machine.
    pub(crate) fn sys_stats(&mut self, ts: i64, stats: &[u8], context: &mut Context<'_>) {
        let get = |message: &[u8], field| number_of(message, field).unwrap_or(0);
        let bytes = Has::Counter {
            unit: Some(context.strings.intern("bytes")),
        };
        for value in all_bytes(stats, SysStats::MEMINFO) {
            let Some(name) = keyed(&MEMINFO_KEYS, get(value, MeminfoValue::KEY)) else {
                context.stats.add("meminfo_unknown_keys", None, 1);
                continue;
            };
            let key = Key::new(
                "meminfo",
                &[("meminfo_key", Dimension::Text(context.strings.intern(name)))],
            );
            let value = get(value, MeminfoValue::VALUE) as f64 * 1024.0;
            self.count(ts, value, &key, || name.to_owned(), bytes, context);
        }
        for value in all_bytes(stats, SysStats::DEVFREQ) {
            let name = context
                .strings
                .intern_bytes(bytes_of(value, DevfreqValue::KEY).unwrap_or(&[]));
            let key = Key::new("clock_frequency", &[("linux_device", Dimension::Text(name))]);
            let text = format!("{} Frequency", context.strings.get(name));
            self.count(
                ts,
                get(value, DevfreqValue::VALUE) as f64,
                &key,
                || text,
                COUNTER,
                context,
            );
        }
        let mut frequencies = Vec::new();
        for field in fields(stats).filter(|field| field.number == SysStats::CPUFREQ_KHZ) {
            each_varint(field.value, |frequency| frequencies.push(frequency));
        }
        for (cpu, frequency) in frequencies.iter().enumerate() {
            self.cpu_frequency(ts, cpu as u32, *frequency as f64, context);
        }
        for value in all_bytes(stats, SysStats::VMSTAT) {
            let Some(name) = keyed(&VMSTAT_KEYS, get(value, VmstatValue::KEY)) else {
                context.stats.add("vmstat_unknown_keys", None, 1);
                continue;
            };
            let key = Key::new(
                "vmstat",
                &[("vmstat_key", Dimension::Text(context.strings.intern(name)))],
            );
            self.count(
                ts,
                get(value, VmstatValue::VALUE) as f64,
                &key,
                || name.to_owned(),
                COUNTER,
                context,
            );
        }
        for times in all_bytes(stats, SysStats::CPU_STAT) {
            let Some(cpu) = number_of(times, CpuTimes::CPU_ID) else {
                context.stats.add("invalid_cpu_times", None, 1);
                continue;
            };
            for (field, name) in CPU_TIMES {
                let word = Dimension::Text(context.strings.intern(name));
                let cpu = Dimension::Int((cpu as u32).into());
                let key = Key::new("cpustat", &[("cpu", cpu), ("cpustat_key", word)]);
                self.count(
                    ts,
                    get(times, field) as f64,
                    &key,
                    || format!("cpu.times.{name}"),
                    COUNTER,
                    context,
                );
            }
        }
        for (field, kind) in [
            (SysStats::NUM_IRQ, "num_irq"),
            (SysStats::NUM_SOFTIRQ, "num_softirq"),
        ] {
            for count in all_bytes(stats, field) {
                let irq = get(count, InterruptCount::IRQ) as i32 as u32;
                let key = Key::new(kind, &[("irq", Dimension::Int(irq.into()))]);
                let name = || format!("{kind} (id: {irq})");
                self.count(
                    ts,
                    get(count, InterruptCount::COUNT) as f64,
                    &key,
                    name,
                    COUNTER,
                    context,
                );
            }
        }
        for (field, kind) in [
            (SysStats::NUM_FORKS, "num_forks"),
            (SysStats::NUM_IRQ_TOTAL, "num_irq_total"),
            (SysStats::NUM_SOFTIRQ_TOTAL, "num_softirq_total"),
        ] {
            if let Some(value) = number_of(stats, field) {
                self.count(
                    ts,
                    value as f64,
                    &Key::new(kind, &[]),
                    || kind.to_owned(),
                    COUNTER,
                    context,
                );
            }
        }
        for info in all_bytes(stats, SysStats::BUDDY_INFO) {
            let mut text = |field| context.strings.intern_bytes(bytes_of(info, field).unwrap_or(&[]));
            let (node, zone) = (text(BuddyInfo::NODE), text(BuddyInfo::ZONE));
            let mut pages = Vec::new();
            for field in fields(info).filter(|field| field.number == BuddyInfo::ORDER_PAGES) {
                each_varint(field.value, |count| pages.push(count as u32));
            }
            for (order, count) in pages.iter().take(32).enumerate() {
                let size = (1_i64 << order).wrapping_mul(context.page_size) / 1024;
                let size = size as u32;
                let dimensions = [
                    ("buddyinfo_node", Dimension::Text(node)),
                    ("buddyinfo_zone", Dimension::Text(zone)),
                    ("buddyinfo_chunk_size_kb", Dimension::Int(size.into())),
                ];
                let (node, zone) = (context.strings.get(node), context.strings.get(zone));
                let name = format!("mem.buddyinfo[{node}][{zone}][{size} kB]");
                let key = Key::new("buddyinfo", &dimensions);
                self.count(ts, f64::from(*count), &key, || name, COUNTER, context);
            }
        }
        for disk in all_bytes(stats, SysStats::DISK_STAT) {
            self.disk(ts, disk, context);
        }
        for sample in all_bytes(stats, SysStats::PSI) {
            let Some(resource) = PSI_RESOURCES.get(get(sample, PsiSample::RESOURCE) as usize) else {
                context.stats.add("psi_unknown_resource", None, 1);
                return;
            };
            let word = Dimension::Text(context.strings.intern(resource));
            let key = Key::new("psi", &[("psi_resource", word)]);
            let value = get(sample, PsiSample::TOTAL_NS) as f64;
            self.count(ts, value, &key, || format!("psi.{resource}"), COUNTER, context);
        }
        for zone in all_bytes(stats, SysStats::THERMAL_ZONE) {
            let name = context
                .strings
                .intern_bytes(bytes_of(zone, ThermalZone::TYPE).unwrap_or(&[]));
            let unit = Has::Counter {
                unit: Some(context.strings.intern("C")),
            };
            let key = Key::new(
                "thermal_temperature_sys",
                &[("thermal_zone", Dimension::Text(name))],
            );
            let text = context.strings.get(name).to_owned();
            self.count(
                ts,
                get(zone, ThermalZone::TEMP) as f64,
                &key,
                || text,
                unit,
                context,
            );
        }
        for of_cpu in all_bytes(stats, SysStats::CPUIDLE_STATE) {
            const CPU: u32 = 1;
            const ENTRIES: u32 = 2;
            const STATE: u32 = 1;
            const DURATION_US: u32 = 2;
            let cpu = get(of_cpu, CPU) as u32;
            let unit = Has::Counter {
                unit: Some(context.strings.intern("us")),
            };
            for entry in all_bytes(of_cpu, ENTRIES) {
                let state = context
                    .strings
                    .intern_bytes(bytes_of(entry, STATE).unwrap_or(&[]));
                let name = format!("cpuidle{cpu}.{}", context.strings.get(state));
                let dimensions = [
                    ("cpu", Dimension::Int(cpu.into())),
                    ("state", Dimension::Text(state)),
                ];
                let key = Key::new("cpu_idle_state", &dimensions);
                let value = get(entry, DURATION_US) as f64;
                self.count(ts, value, &key, || name, unit, context);
            }
        }
        for field in fields(stats).filter(|field| field.number == SysStats::GPUFREQ_MHZ) {
            // As in the trace processor, all are of one.
            each_varint(field.value, |frequency| {
                self.gpu_frequency(ts, 0, frequency as f64, context)
            });
        }
    }

    /// Counters of processes.
    pub(crate) fn process_stats(&mut self, ts: i64, stats: &[u8], context: &mut Context<'_>) {
        for process in all_bytes(stats, ProcessStats::PROCESSES) {
            let pid = i64::from(number_of(process, PID).unwrap_or(0) as u32);
            for field in fields(process) {
                match field.number {
                    PID | OF_CHROME_1 | OF_CHROME_2 => {}
                    FDS => self.file(ts, pid, field.value.as_bytes().unwrap_or(&[]), context),
                    THREADS => {
                        let thread = field.value.as_bytes().unwrap_or(&[]);
                        let tid = i64::from(number_of(thread, 1).unwrap_or(0) as u32);
                        self.processes.thread_of(tid, pid);
                    }
                    other => {
                        let value = number(field.value).unwrap_or(0) as i64;
                        self.process_counter(ts, pid, other, value, context);
                    }
                }
            }
        }
    }

    fn file(&mut self, ts: i64, pid: i64, file: &[u8], context: &mut Context<'_>) {
        const FD: u32 = 1;
        const PATH: u32 = 2;
        let upid = self.processes.process(pid);
        let path = bytes_of(file, PATH).map(|path| context.strings.intern_bytes(path));
        let row = [
            Cell::from(self.files),
            Cell::from(0),
            Cell::from(number_of(file, FD).unwrap_or(0) as i64),
            Cell::from(ts),
            Cell::from(upid),
            Cell::from(path),
        ];
        self.files += 1;
        context.output.push(&FILEDESCRIPTOR, &row, &context.strings);
    }

    fn process_counter(&mut self, ts: i64, pid: i64, field: u32, value: i64, context: &mut Context<'_>) {
        let upid = self.processes.process(pid);
        let of_process = ("upid", Dimension::Int(upid.into()));
        let in_kilobytes = (value as f64) * 1024.0;
        let of = |list: &[(u32, &'static str)]| {
            list.iter()
                .find(|(known, _)| *known == field)
                .map(|(_, word)| *word)
        };
        if field == OOM_SCORE_ADJ {
            let key = Key::new("oom_score_adj", &[of_process]);
            self.count(
                ts,
                value as f64,
                &key,
                || "oom_score_adj".to_owned(),
                COUNTER,
                context,
            );
        } else if let Some(word) = of(&MEMORY) {
            let text = Dimension::Text(context.strings.intern(word));
            let key = Key::new("process_memory", &[of_process, ("process_memory_key", text)]);
            self.count(ts, in_kilobytes, &key, || format!("mem.{word}"), COUNTER, context);
        } else if let Some(word) = of(&SMAPS).or((field == SWAP_PSS).then_some("swap.pss")) {
            let text = Dimension::Text(context.strings.intern(word));
            let key = Key::new("smaps", &[of_process, ("smaps_key", text)]);
            self.count(
                ts,
                in_kilobytes,
                &key,
                || format!("mem.smaps.{word}"),
                COUNTER,
                context,
            );
        } else if field == USER_NS || field == KERNEL_NS {
            let word = if field == USER_NS { "user_ns" } else { "kernel_ns" };
            let text = Dimension::Text(context.strings.intern(word));
            let key = Key::new(
                "proc_stat_runtime",
                &[of_process, ("proc_stat_runtime_key", text)],
            );
            self.count(
                ts,
                value as f64,
                &key,
                || format!("runtime.{word}"),
                COUNTER,
                context,
            );
        } else {
            context.stats.add("proc_stat_unknown_counters", None, 1);
        }
    }
}

/// Returns the name of a counter that has a number; numbers begin at 1.
fn keyed(keys: &[&'static str], number: u64) -> Option<&'static str> {
    keys.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}
