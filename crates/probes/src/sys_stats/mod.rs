//! `linux.sys_stats`: counters of the whole system, polled from procfs and sysfs.
//!
//! Each group of counters (a file like `/proc/meminfo`, or a directory of devices like the thermal zones) has a period of its
//! own. All periods are multiples of the shortest one, which is the tick of the instance's timer. At each tick one packet has
//! the groups that are due. One instance serves one tracing session; the producer owns it and calls it as [`Probe`].
//!
//! | group | where | not there |
//! |---|---|---|
//! | meminfo, vmstat, stat, diskstat | `/proc/{meminfo,vmstat,stat,diskstats}` | keys the trace format has no number for |
//! | buddyinfo, slab | `/proc/{buddyinfo,slabinfo}` | slabinfo: for other users than root |
//! | psi | `/proc/pressure/{cpu,io,memory}` | before Linux 4.20 or without `CONFIG_PSI`; `irq` has no place in the format |
//! | devfreq, thermal | `/sys/class/{devfreq,thermal}` | on most virtual machines; degrees below zero |
//! | cpufreq, cpuidle | `/sys/devices/system/cpu/cpu*` | where the hypervisor does not show them; cpufreq is 0 then |
//! | gpufreq | `/sys/class/kgsl`, `/sys/class/drm/card0` | other cards than the first, other drivers than msm, i915, amdgpu |
//!
//! Guarantees: files are opened once, and once buffers have their size a sample allocates nothing. A group that this kernel
//! or machine lacks is reported once as a `Notice` and costs a failing system call or two per sample.

mod config;
mod devices;
mod keyed;
mod proc_files;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use ferretto_proto::messages::{DataSourceConfig, SysStatsConfig};
use ferretto_proto::write;
use ferretto_wire::Writer;
use rustix::io::Errno;

pub use self::config::SHORTEST_PERIOD_MS;
use self::config::{Group, Schedule};
use crate::kernel_files::KernelRoots;
use crate::metatrace::{Event, span};
use crate::notice::Notice;
use crate::time::next_multiple;
use ferretto_client::runtime::probe::{BootTime, PacketSink, Probe};
use ferretto_ipc::reactor::boot_now;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.sys_stats";

/// Why an instance samples nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SetupError {
    /// Groups are sampled on ticks of one timer.
    #[error(
        "linux.sys_stats: {field}: {period_ms} is not a multiple of {shortest_field}: {shortest_ms}; \
         make all periods multiples of the shortest one"
    )]
    PeriodsDoNotFit {
        /// The field of the config.
        field: &'static str,
        /// Its value in milliseconds, raised to the minimum.
        period_ms: u32,
        /// The field with the shortest period.
        shortest_field: &'static str,
        /// Its value in milliseconds, raised to the minimum.
        shortest_ms: u32,
    },
}

/// The periods that `config` asks for, in milliseconds, with the names of their fields; a group without one is not sampled.
pub fn periods(config: &SysStatsConfig) -> [(&'static str, Option<u32>); 12] {
    config::asked(config).map(|(group, period)| (group.period_field(), period))
}

/// Whether an instance could sample what `config` asks for.
///
/// # Errors
/// If a period is no multiple of the shortest.
pub fn check(config: &SysStatsConfig) -> Result<(), SetupError> {
    Schedule::new(config, &mut Vec::new()).map(|_| ())
}

/// Reads one group of counters.
trait Sampler: std::fmt::Debug + Send {
    /// Appends the counters' values to `stats`. `buffer` is for the files' content.
    fn sample(&mut self, stats: &mut write::SysStats<'_>, buffer: &mut Vec<u8>) -> Result<(), Missing>;
}

/// A file or directory that cannot be read.
#[derive(Debug)]
struct Missing {
    path: PathBuf,
    error: Errno,
}

impl Missing {
    fn new(path: &Path, error: Errno) -> Self {
        Self {
            path: path.to_path_buf(),
            error,
        }
    }
}

/// A group that is being sampled.
#[derive(Debug)]
struct Polled {
    group: Group,
    /// Ticks from one sample to the next.
    every: u32,
    sampler: Box<dyn Sampler>,
    /// Whether a notice has said that the group cannot be read.
    reported: bool,
}

/// One instance of the data source.
#[derive(Debug)]
pub struct SysStats {
    groups: Vec<Polled>,
    /// Nanoseconds between ticks; 0 if there is nothing to sample.
    period: u64,
    tick: u64,
    next_tick: Option<BootTime>,
    packet: Writer,
    buffer: Vec<u8>,
    /// Why it samples nothing, until the trace has been told.
    failure: Option<SetupError>,
    notices: Vec<Notice>,
}

impl SysStats {
    /// Makes an instance with the settings of the `sys_stats_config` in `config`, which reads below `roots`. If a period is no multiple of the shortest, it
    /// starts, as upstream's does, and samples nothing. The trace and a notice say why.
    pub fn from_config(config: &DataSourceConfig, roots: &KernelRoots) -> Self {
        let config: &SysStatsConfig = &config.sys_stats_config;
        let mut notices = Vec::new();
        let (schedule, failure) = match Schedule::new(config, &mut notices) {
            Ok(schedule) => (schedule, None),
            Err(error) => {
                let why = error.to_string();
                notices.push(Notice::NothingSampled { why });
                (None, Some(error))
            }
        };
        let period = schedule.as_ref().map_or(0, |schedule| schedule.period);
        let polled = |(group, every)| Polled {
            group,
            every,
            sampler: sampler(group, config, roots),
            reported: false,
        };
        let groups = schedule
            .into_iter()
            .flat_map(|schedule| schedule.groups)
            .map(polled);
        Self {
            groups: groups.collect(),
            period,
            tick: 0,
            next_tick: None,
            packet: Writer::default(),
            buffer: Vec::new(),
            failure,
            notices,
        }
    }

    fn sample(&mut self, began: BootTime, sink: &mut dyn PacketSink) {
        let _span = span(Event::ReadSysStats);
        let Self {
            groups,
            tick,
            packet,
            buffer,
            notices,
            ..
        } = self;
        packet.clear();
        write::TracePacket::new(packet)
            .timestamp(began)
            .sys_stats(|stats| {
                for polled in groups
                    .iter_mut()
                    .filter(|polled| tick.is_multiple_of(u64::from(polled.every)))
                {
                    if let Err(Missing { path, error }) = polled.sampler.sample(stats, buffer)
                        && !std::mem::replace(&mut polled.reported, true)
                    {
                        let field = polled.group.period_field();
                        notices.push(Notice::Unreadable {
                            field,
                            path,
                            source: error.into(),
                        });
                    }
                }
                stats.collection_end_timestamp(boot_now());
            });
        sink.write_packet(packet.as_slice());
        self.tick += 1;
    }
}

fn sampler(group: Group, config: &SysStatsConfig, roots: &KernelRoots) -> Box<dyn Sampler> {
    let KernelRoots { procfs, sysfs } = roots;
    match group {
        Group::Meminfo => Box::new(keyed::CounterFile::new(
            procfs.join("meminfo"),
            &config.meminfo_counters,
        )),
        Group::Vmstat => Box::new(keyed::CounterFile::new(
            procfs.join("vmstat"),
            &config.vmstat_counters,
        )),
        Group::Stat => Box::new(proc_files::Stat::new(procfs, &config.stat_counters)),
        Group::Devfreq => Box::new(devices::Devfreq::new(sysfs)),
        Group::Cpufreq => Box::new(devices::Cpufreq::new(sysfs)),
        Group::Buddyinfo => Box::new(proc_files::Buddyinfo::new(procfs)),
        Group::Diskstat => Box::new(proc_files::Diskstats::new(procfs)),
        Group::Psi => Box::new(proc_files::Pressure::new(procfs)),
        Group::Thermal => Box::new(devices::Thermal::new(sysfs)),
        Group::Cpuidle => Box::new(devices::Cpuidle::new(sysfs)),
        Group::Gpufreq => Box::new(devices::Gpufreq::new(sysfs)),
        Group::Slab => Box::new(proc_files::Slabinfo::new(procfs)),
    }
}

impl Probe for SysStats {
    fn start(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        self.next_tick = (self.period > 0).then_some(now);
        if let Some(error) = self.failure.take() {
            self.packet.clear();
            write::TracePacket::new(&mut self.packet)
                .timestamp(now)
                .data_source_failure(|failure| {
                    failure
                        .data_source_name(NAME)
                        .failure(format!("could not be set up: {error}"));
                });
            sink.write_packet(self.packet.as_slice());
        }
    }

    fn next_deadline(&self) -> Option<BootTime> {
        self.next_tick
    }

    fn on_deadline(&mut self, now: BootTime, sink: &mut dyn PacketSink) {
        if self.next_tick.is_none_or(|due| now < due) {
            return;
        }
        self.next_tick = Some(next_multiple(now, self.period));
        self.sample(now, sink);
    }

    fn flush(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {
        // The data source holds nothing back.
    }

    fn stop(&mut self, _now: BootTime, _sink: &mut dyn PacketSink) {
        self.next_tick = None;
    }

    fn clear_incremental_state(&mut self) {
        // The data source has no incremental state.
    }

    /// Reports settings that are not followed. They are known after the start and after the first sample of each group.
    fn take_notices(&mut self) -> Vec<String> {
        let notices = std::mem::take(&mut self.notices);
        notices.iter().map(ToString::to_string).collect()
    }
}
