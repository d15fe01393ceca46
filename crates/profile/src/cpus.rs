//! Which CPUs an instance samples.
//!
//! [`LinuxPerf`](crate::source::LinuxPerf) asks when an instance starts, and [`Hotplug`](crate::hotplug::Hotplug) while it records. Source: the kernel's `Documentation/admin-guide/cputopology.rst`.

use std::fs;
use std::io;
use std::path::Path;

use ferretto_probes::cpu_ranges;

use crate::config::PerfConfig;

/// The CPUs that are online, in order.
///
/// # Errors
/// If the kernel does not say: a sentence's end.
pub(crate) fn online(sysfs: &Path) -> Result<Vec<u32>, String> {
    let path = sysfs.join("devices/system/cpu/online");
    let list =
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    cpu_ranges::parse(&list)
        .ok_or_else(|| format!("{}: {:?} is no list of CPUs", path.display(), list.trim()))
}

/// The CPUs among these that the config names.
pub(crate) fn chosen(config: &PerfConfig, online: &[u32], sysfs: &Path) -> Vec<u32> {
    let is_named = |cpu: &u32| config.cpus.is_empty() || config.cpus.contains(cpu);
    let has_id = |cpu: &u32| {
        let ids = &config.cpu_ids;
        ids.is_empty()
            || arm_id(sysfs, *cpu).is_ok_and(|id| ids.iter().any(|wanted| id.starts_with(wanted.as_str())))
    };
    let mut chosen: Vec<u32> = online.to_vec();
    chosen.retain(|cpu| is_named(cpu) && has_id(cpu));
    chosen
}

/// The CPUs that are online and that the config names, in order.
///
/// # Errors
/// If there is none, or the kernel does not say: a sentence's end.
pub(crate) fn of(config: &PerfConfig, sysfs: &Path) -> Result<Vec<u32>, String> {
    let online = online(sysfs)?;
    let chosen = chosen(config, &online, sysfs);
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    if !online
        .iter()
        .any(|cpu| config.cpus.is_empty() || config.cpus.contains(cpu))
    {
        return Err(format!(
            "target_cpu names no CPU that is online; online are {online:?}"
        ));
    }
    Err(format!(
        "cpuid: no CPU that is online has an id that begins with {}",
        config.cpu_ids.join(" or ")
    ))
}

/// Implementer, part, variant and revision of an ARM CPU, in hexadecimal digits one after the other, as upstream.
fn arm_id(sysfs: &Path, cpu: u32) -> io::Result<String> {
    let path = sysfs.join(format!(
        "devices/system/cpu/cpu{cpu}/regs/identification/midr_el1"
    ));
    let text = fs::read_to_string(path)?;
    let digits = text.trim().trim_start_matches("0x");
    let register = u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
    let (implementer, variant, part, revision) = (
        register >> 24 & 0xff,
        register >> 20 & 0xf,
        register >> 4 & 0xfff,
        register & 0xf,
    );
    Ok(format!("{implementer:x}{part:x}{variant:x}{revision:x}"))
}
