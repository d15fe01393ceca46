//! Samplers of sysfs: `devfreq`, CPU frequencies and idle states, thermal zones, graphics processors.
//!
//! Devices come and go. Each sampler lists its directory at every sample, which costs one or two system calls, and looks
//! for the devices' files anew only if the list has changed.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ferretto_proto::write;
use rustix::fd::OwnedFd;
use rustix::fs::FileType;
use rustix::io::Errno;

use super::{Missing, Sampler};
use crate::kernel_files::{Keep, PolledFile, for_each_entry, open_dir, read_once};
use crate::kernel_text::{leading_i64, leading_u64, lines, trimmed, whole_u32, whole_u64, words};

/// Files of devices that one sampler keeps open. Large machines have more idle states than a process may have open
/// files, so further files are opened for each sample.
const KEPT_FILES: usize = 64;

/// Decides for each file whether it may stay open.
#[derive(Debug, Default)]
struct FileBudget {
    used: usize,
}

impl FileBudget {
    fn file(&mut self, path: PathBuf) -> PolledFile {
        PolledFile::new(path, self.keep())
    }

    fn keep(&mut self) -> Keep {
        self.used += 1;
        if self.used <= KEPT_FILES {
            Keep::Open
        } else {
            Keep::Closed
        }
    }
}

/// A directory with an entry for each device.
#[derive(Debug)]
struct DeviceDir {
    path: PathBuf,
    open: Option<OwnedFd>,
    /// The names of the last list, each with a NUL behind it, in the kernel's order.
    names: Vec<u8>,
    listed: Vec<u8>,
}

/// The result of [`DeviceDir::list`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Devices {
    AsBefore,
    Changed,
}

impl DeviceDir {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            open: None,
            names: Vec::new(),
            listed: Vec::new(),
        }
    }

    /// Lists the entries for which `is_device` is true.
    fn list(&mut self, is_device: impl Fn(&[u8], FileType) -> bool) -> Result<Devices, Missing> {
        self.listed.clear();
        self.collect(is_device)
            .map_err(|error| Missing::new(&self.path, error))?;
        if self.listed == self.names {
            return Ok(Devices::AsBefore);
        }
        std::mem::swap(&mut self.listed, &mut self.names);
        Ok(Devices::Changed)
    }

    fn collect(&mut self, is_device: impl Fn(&[u8], FileType) -> bool) -> Result<(), Errno> {
        let dir = match self.open.take() {
            Some(dir) => dir,
            None => open_dir(&self.path)?,
        };
        for_each_entry(&dir, |name, kind| {
            if is_device(name, kind) {
                self.listed.extend_from_slice(name);
                self.listed.push(0);
            }
        })?;
        self.open = Some(dir);
        Ok(())
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
    }

    fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(std::ffi::OsStr::from_bytes(name))
    }
}

/// Devices in the class directories are links to where they are in the tree of devices.
fn is_link(_: &[u8], kind: FileType) -> bool {
    kind == FileType::Symlink
}

/// `/sys/class/devfreq/*/cur_freq`: frequencies of buses, memory and the like.
#[derive(Debug)]
pub(crate) struct Devfreq {
    dir: DeviceDir,
    devices: Vec<(Vec<u8>, PolledFile)>,
}

impl Devfreq {
    pub(crate) fn new(sysfs: &Path) -> Self {
        Self {
            dir: DeviceDir::new(sysfs.join("class/devfreq")),
            devices: Vec::new(),
        }
    }
}

impl Sampler for Devfreq {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        if self.dir.list(is_link)? == Devices::Changed {
            let mut budget = FileBudget::default();
            let device = |name: &[u8]| {
                (
                    name.to_vec(),
                    budget.file(self.dir.path_of(name).join("cur_freq")),
                )
            };
            self.devices = self.dir.names().map(device).collect();
        }
        for (name, file) in &mut self.devices {
            if let Some(value) = file.read(buffer).ok().and_then(leading_u64) {
                stats.devfreq(|device| {
                    device.key(&*name).value(value);
                });
            }
        }
        Ok(())
    }
}

/// The number of the CPU whose directory is called `name`.
fn cpu_number(name: &[u8]) -> Option<u32> {
    whole_u32(name.strip_prefix(b"cpu")?)
}

fn is_cpu(name: &[u8], kind: FileType) -> bool {
    kind == FileType::Directory && cpu_number(name).is_some()
}

/// More CPUs than any kernel supports: bounds the work for a made-up directory.
const MOST_CPUS: u32 = 1 << 16;

/// `/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq`: frequencies of the CPUs.
#[derive(Debug)]
pub(crate) struct Cpufreq {
    dir: DeviceDir,
    /// By number of the CPU.
    cpus: Vec<PolledFile>,
}

impl Cpufreq {
    pub(crate) fn new(sysfs: &Path) -> Self {
        Self {
            dir: DeviceDir::new(sysfs.join("devices/system/cpu")),
            cpus: Vec::new(),
        }
    }
}

impl Sampler for Cpufreq {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        if self.dir.list(is_cpu)? == Devices::Changed {
            let cpus = self
                .dir
                .names()
                .filter_map(cpu_number)
                .filter(|&cpu| cpu < MOST_CPUS)
                .max();
            let mut budget = FileBudget::default();
            self.cpus = (0..cpus.map_or(0, |last| last + 1))
                .map(|cpu| budget.file(self.dir.path.join(format!("cpu{cpu}/cpufreq/scaling_cur_freq"))))
                .collect();
        }
        for file in &mut self.cpus {
            // The place in the list is the CPU's number. A CPU that is offline or has no such file is 0.
            let khz = file.read(buffer).ok().and_then(|text| whole_u32(trimmed(text)));
            stats.cpufreq_khz(khz.unwrap_or(0));
        }
        Ok(())
    }
}

/// `/sys/devices/system/cpu/cpu*/cpuidle/state*`: time that each CPU spent in each idle state.
#[derive(Debug)]
pub(crate) struct Cpuidle {
    dir: DeviceDir,
    cpus: Vec<IdleCpu>,
    budget: FileBudget,
}

#[derive(Debug)]
struct IdleCpu {
    number: u32,
    /// Name and time of each state; none while the CPU has not been online yet.
    states: Vec<(Vec<u8>, PolledFile)>,
}

impl Cpuidle {
    pub(crate) fn new(sysfs: &Path) -> Self {
        let dir = DeviceDir::new(sysfs.join("devices/system/cpu"));
        Self {
            dir,
            cpus: Vec::new(),
            budget: FileBudget::default(),
        }
    }

    fn list_cpus(&mut self) -> Result<(), Missing> {
        if self.dir.list(is_cpu)? == Devices::Changed {
            let mut numbers: Vec<u32> = self.dir.names().filter_map(cpu_number).collect();
            numbers.sort_unstable();
            self.cpus = numbers
                .into_iter()
                .map(|number| IdleCpu {
                    number,
                    states: Vec::new(),
                })
                .collect();
            self.budget = FileBudget::default();
        }
        Ok(())
    }
}

/// The idle states of the CPU with this directory, in the order of their numbers.
fn idle_states(cpuidle: &Path, budget: &mut FileBudget, buffer: &mut Vec<u8>) -> Vec<(Vec<u8>, PolledFile)> {
    let mut numbers = Vec::new();
    if let Ok(dir) = open_dir(cpuidle) {
        // If listing fails midway, the states listed until then are sampled.
        let _ = for_each_entry(&dir, |name, _| {
            numbers.extend(name.strip_prefix(b"state").and_then(whole_u32))
        });
    }
    numbers.sort_unstable();
    let state = |number| {
        let dir = cpuidle.join(format!("state{number}"));
        Some((
            read_once(dir.join("name"), buffer)?,
            budget.file(dir.join("time")),
        ))
    };
    numbers.into_iter().filter_map(state).collect()
}

impl Sampler for Cpuidle {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        self.list_cpus()?;
        let mut found = false;
        for cpu in &mut self.cpus {
            if cpu.states.is_empty() {
                let cpuidle = self.dir.path.join(format!("cpu{}/cpuidle", cpu.number));
                cpu.states = idle_states(&cpuidle, &mut self.budget, buffer);
            }
            found |= !cpu.states.is_empty();
            stats.cpuidle_state(|out| {
                out.cpu_id(cpu.number);
                for (name, file) in &mut cpu.states {
                    if let Some(micros) = file.read(buffer).ok().and_then(leading_u64) {
                        out.cpuidle_state_entry(|entry| {
                            entry.state(&*name).duration_us(micros);
                        });
                    }
                }
            });
        }
        if found {
            Ok(())
        } else {
            Err(Missing::new(&self.dir.path.join("cpu0/cpuidle"), Errno::NOENT))
        }
    }
}

/// `/sys/class/thermal/thermal_zone*`: temperatures.
#[derive(Debug)]
pub(crate) struct Thermal {
    dir: DeviceDir,
    zones: Vec<ThermalZone>,
}

#[derive(Debug)]
struct ThermalZone {
    name: Vec<u8>,
    kind: Option<Vec<u8>>,
    temperature: PolledFile,
}

impl Thermal {
    pub(crate) fn new(sysfs: &Path) -> Self {
        Self {
            dir: DeviceDir::new(sysfs.join("class/thermal")),
            zones: Vec::new(),
        }
    }
}

impl Sampler for Thermal {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        let is_zone = |name: &[u8], kind| is_link(name, kind) && name.starts_with(b"thermal_zone");
        if self.dir.list(is_zone)? == Devices::Changed {
            let mut budget = FileBudget::default();
            let zone = |name: &[u8]| {
                let path = self.dir.path_of(name);
                ThermalZone {
                    name: name.to_vec(),
                    kind: read_once(path.join("type"), buffer),
                    temperature: budget.file(path.join("temp")),
                }
            };
            self.zones = self.dir.names().map(zone).collect();
        }
        for zone in &mut self.zones {
            // The file has thousandths of a degree Celsius. The format has whole degrees and no sign, so temperatures
            // below zero are lost.
            let millidegrees = zone.temperature.read(buffer).ok().and_then(leading_i64);
            stats.thermal_zone(|out| {
                out.name(&zone.name);
                if let Some(degrees) = millidegrees.and_then(|value| u64::try_from(value / 1000).ok()) {
                    out.temp(degrees);
                }
                if let Some(kind) = &zone.kind {
                    out.r#type(kind);
                }
            });
        }
        if self.zones.is_empty() {
            Err(Missing::new(&self.dir.path.join("thermal_zone0"), Errno::NOENT))
        } else {
            Ok(())
        }
    }
}

/// The frequency of the graphics processor. Each maker's driver has a file of its own.
#[derive(Debug)]
pub(crate) struct Gpufreq {
    drivers: [(PolledFile, ParseMegahertz); 3],
}

/// Parses the frequency in a driver's file.
type ParseMegahertz = fn(&[u8]) -> Option<u64>;

impl Gpufreq {
    pub(crate) fn new(sysfs: &Path) -> Self {
        let driver = |path, parse| (PolledFile::new(sysfs.join(path), Keep::Open), parse);
        Self {
            drivers: [
                driver(
                    "class/kgsl/kgsl-3d0/devfreq/cur_freq",
                    adreno_mhz as ParseMegahertz,
                ), // Qualcomm
                driver("class/drm/card0/gt_act_freq_mhz", leading_u64), // Intel
                driver("class/drm/card0/device/pp_dpm_sclk", amdgpu_mhz), // AMD
            ],
        }
    }
}

impl Sampler for Gpufreq {
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing> {
        for (file, parse) in &mut self.drivers {
            if let Some(mhz) = file.read(buffer).ok().and_then(*parse) {
                stats.gpufreq_mhz(mhz);
                return Ok(());
            }
        }
        Err(Missing::new(self.drivers[1].0.path(), Errno::NOENT))
    }
}

fn adreno_mhz(text: &[u8]) -> Option<u64> {
    leading_u64(text).map(|hertz| hertz / 1_000_000)
}

/// The file has one line for each available frequency, with an asterisk at the end of the current one: `1: 400Mhz *`.
fn amdgpu_mhz(text: &[u8]) -> Option<u64> {
    let current = lines(text).map(trimmed).find(|line| line.ends_with(b"*"))?;
    words(current).find_map(|word| whole_u64(word.strip_suffix(b"Mhz")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_files::TempDir;

    #[test]
    fn devices_are_looked_up_anew_only_when_there_are_others() {
        let dir = TempDir::new("devices");
        dir.link("a", "/nowhere");
        dir.write("file", "");
        let mut devices = DeviceDir::new(dir.path().to_owned());
        assert_eq!(devices.list(is_link).unwrap(), Devices::Changed);
        assert_eq!(devices.list(is_link).unwrap(), Devices::AsBefore);
        dir.link("b", "/nowhere");
        assert_eq!(devices.list(is_link).unwrap(), Devices::Changed);
        assert_eq!(devices.names().count(), 2);
        dir.remove("a");
        assert_eq!(devices.list(is_link).unwrap(), Devices::Changed);
        assert_eq!(devices.names().collect::<Vec<_>>(), [b"b"]);
    }

    #[test]
    fn only_so_many_files_stay_open() {
        let mut budget = FileBudget::default();
        let kept = (0..2 * KEPT_FILES)
            .filter(|_| budget.keep() == Keep::Open)
            .count();
        assert_eq!(kept, KEPT_FILES);
    }
}
