//! `linux.system_info`: a description of this machine, written once at the start of a session.
//!
//! A `CpuInfo` packet lists the CPUs that are online, in the kernel's order, with the values that distinguish fast CPUs from slow ones. With
//! `irq_names`, an `InterruptInfo` packet names the interrupts whose numbers `linux.ftrace` and `linux.sys_stats` record. One instance serves one
//! tracing session; the producer owns it and calls it as [`Probe`].
//!
//! | what | where | not there |
//! |---|---|---|
//! | processor, identifier, features | `/proc/cpuinfo` | identifier and features on others than ARM; the name on x86 and newer ARM kernels, which call it otherwise: `unknown` then |
//! | capacity | `/sys/devices/system/cpu/cpu*/cpu_capacity` | before Linux 6.12 on x86 |
//! | frequencies | `/sys/devices/system/cpu/cpu*/cpufreq/scaling_{available,boost}_frequencies` | on most virtual machines, and where the hardware chooses among any |
//! | names of interrupts | `/proc/interrupts` | for interrupts without a number, which every machine calls the same |
//!
//! Guarantees: files are read only at the start. The data taken from them and the number of CPUs are bounded, whatever the files contain.

mod cpu_list;
mod interrupts;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ferretto_proto::messages::DataSourceConfig;
use ferretto_proto::write;
use ferretto_wire::Writer;

use self::cpu_list::{Cpu, CpuList};
use self::interrupts::InterruptTable;
use crate::kernel_files::{Keep, KernelRoots, PolledFile, for_each_line};
use crate::kernel_text::{trimmed, whole_u32, words};
use crate::notice::Notice;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};

/// The name it is registered with.
pub const NAME: &str = "linux.system_info";

/// Whether interrupts are named: `SystemInfoConfig.irq_names`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupts {
    Named,
    LeftOut,
}

/// One instance of the data source.
#[derive(Debug)]
pub struct SystemInfo {
    roots: KernelRoots,
    interrupts: Interrupts,
    notices: Vec<Notice>,
}

impl SystemInfo {
    /// Makes an instance that does what the `system_info_config` in `config` says, reading below `roots`.
    pub fn from_config(config: &DataSourceConfig, roots: &KernelRoots) -> Self {
        let interrupts = match config.system_info_config.irq_names {
            Some(true) => Interrupts::Named,
            Some(false) | None => Interrupts::LeftOut,
        };
        Self {
            roots: roots.clone(),
            interrupts,
            notices: Vec::new(),
        }
    }

    /// Written even if it has no content: a reader of the trace then knows that the config asked for it.
    fn write_cpus(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let path = self.roots.procfs.join("cpuinfo");
        let mut list = CpuList::default();
        let read = for_each_line(&path, |line| list.take_line(line));
        let cpus = list.finish();
        self.notice(NAME, path, read);

        let dir = self.roots.sysfs.join("devices/system/cpu");
        let mut packet = Writer::default();
        write::TracePacket::new(&mut packet)
            .timestamp(now)
            .cpu_info(|info| {
                for cpu in &cpus {
                    info.cpus(|out| write_cpu(out, cpu, &dir.join(format!("cpu{}", cpu.number))));
                }
            });
        sink.write_packet(packet.as_slice());
    }

    fn write_interrupts(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        let path = self.roots.procfs.join("interrupts");
        let mut table = InterruptTable::default();
        let mut found = 0usize;
        let mut read = Ok(());
        let mut packet = Writer::default();
        write::TracePacket::new(&mut packet)
            .timestamp(now)
            .interrupt_info(|info| {
                read = for_each_line(&path, |line| {
                    if let Some(interrupt) = table.interrupt(line) {
                        found += 1;
                        info.irq_mapping(|out| {
                            out.irq_id(interrupt.number).name(&interrupt.name);
                        });
                    }
                });
            });
        self.notice("irq_names", path, read);
        if found > 0 {
            sink.write_packet(packet.as_slice());
        }
    }

    fn notice(&mut self, field: &'static str, path: PathBuf, read: std::io::Result<()>) {
        if let Err(source) = read {
            self.notices.push(Notice::Unreadable { field, path, source });
        }
    }
}

/// Writes the data about `cpu` from `/proc/cpuinfo` and from its directory in sysfs.
fn write_cpu(out: &mut write::cpu_info::Cpu<'_>, cpu: &Cpu, dir: &Path) {
    out.processor(&cpu.processor);
    if let Some(capacity) = read_small(dir.join("cpu_capacity")).and_then(|text| whole_u32(trimmed(&text))) {
        out.capacity(capacity);
    }
    for khz in frequencies(&dir.join("cpufreq")) {
        out.frequencies(khz);
    }
    if let Some(arm) = &cpu.identifier {
        out.arm_identifier(|id| {
            id.implementer(arm.implementer)
                .architecture(arm.architecture)
                .variant(arm.variant)
                .part(arm.part)
                .revision(arm.revision);
        });
    }
    if cpu.features != 0 {
        out.features(cpu.features);
    }
}

/// The frequencies in kHz that a CPU with this `cpufreq` directory supports, including those for short bursts.
fn frequencies(cpufreq: &Path) -> BTreeSet<u32> {
    let files = ["scaling_available_frequencies", "scaling_boost_frequencies"];
    let texts = files.iter().filter_map(|file| read_small(cpufreq.join(file)));
    texts
        .flat_map(|text| words(trimmed(&text)).filter_map(whole_u32).collect::<Vec<_>>())
        .collect()
}

/// The content of a file that some machines lack.
fn read_small(path: PathBuf) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    PolledFile::new(path, Keep::Closed).read(&mut text).ok()?;
    Some(text)
}

impl Probe for SystemInfo {
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.write_cpus(now, sink);
        if self.interrupts == Interrupts::Named {
            self.write_interrupts(now, sink);
        }
    }

    /// Reports settings that are not followed. They are known after the start.
    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}
