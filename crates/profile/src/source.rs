//! `linux.perf`: the data source.
//!
//! It judges configs when instances are set up, opens the kernel's events when they start, and gives each instance a thread. If a config asks for counters
//! of the processor that the machine lacks, as most virtual machines do, the CPU clock takes the place of the leader, followers are left out, and the
//! log says so; the trace says what was really counted. If processes cannot be counted alone, all are, and samples of others are left out; that costs more,
//! and the log says so.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferretto_client::data_source::Instance;
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Threaded, Work};
use ferretto_proto::messages::{DataSourceDescriptor, PerfEventConfig};

use crate::config::{Counted, OnOpenFailure, PerfConfig, Shard, shard_count};
use crate::cpu::{CpuEvents, OpenError, RingSize, describe};
use crate::cpus;
use crate::event::{Event, RunningKernel};
use crate::hotplug::Hotplug;
use crate::profiler::Profiler;
use crate::thread::PerfThread;

/// The name it is registered with.
pub const NAME: &str = "linux.perf";

/// See the [module](self).
pub(crate) struct LinuxPerf {
    program: Arc<dyn ProducerProgram>,
    /// Decides which shard of all processes a session gets: the same for all of its instances.
    shards: RandomState,
    sysfs: PathBuf,
}

/// The events of an instance.
#[derive(Default)]
struct Opened {
    events: Vec<CpuEvents>,
    /// CPUs that have none.
    left_out: Vec<u32>,
}

impl LinuxPerf {
    /// Touches nothing until the first instance starts.
    pub(crate) fn new(program: Arc<dyn ProducerProgram>) -> LinuxPerf {
        LinuxPerf {
            program,
            shards: RandomState::new(),
            sysfs: "/sys".into(),
        }
    }

    fn warn(&self, what: std::fmt::Arguments<'_>) {
        self.program.warning(&format!("{NAME}: {what}"));
    }

    fn shard(&self, config: &PerfEventConfig, session: u64) -> Option<Shard> {
        let count = shard_count(config)?;
        Some(Shard {
            count,
            chosen: (self.shards.hash_one(session) % u64::from(count)) as u32,
        })
    }

    /// Opens the events on all CPUs. Replaces what the hardware cannot count.
    fn open(&self, config: &mut PerfConfig) -> Result<Opened, String> {
        let cpus = cpus::of(config, &self.sysfs)?;
        if let Some(pids) = config.counted.named() {
            let is_there = |pid: &i32| Path::new("/proc").join(pid.to_string()).exists();
            // One that starts later is sampled, too.
            if !pids.iter().all(is_there) {
                config.counted = Counted::Everybody;
            }
        }
        // All CPUs count the same: if one cannot count something, all are opened again without it.
        let opened = loop {
            let before = config.clone();
            let with_rings = |size| self.open_on_all(&cpus, size, config);
            let opened = RingSize::largest_with_room(&before, cpus.len(), with_rings);
            let opened = opened.map_err(|error| error.to_string())?;
            if before == *config {
                break opened;
            }
        };
        match opened.events.is_empty() {
            true => Err("no CPU is left".to_owned()),
            false => Ok(opened),
        }
    }

    fn open_on_all(
        &self,
        cpus: &[u32],
        size: RingSize,
        config: &mut PerfConfig,
    ) -> Result<Opened, OpenError> {
        let mut opened = Opened::default();
        for cpu in cpus {
            match self.open_on(*cpu, cpus.len(), size, config) {
                Ok(events) => opened.events.push(events),
                Err(error @ OpenError::NotAlone { .. }) => {
                    self.warn(format_args!(
                        "{error}; all processes are sampled, and the samples of others left out"
                    ));
                    config.counted = Counted::Everybody;
                    // Descriptors may be scarce, so the others are closed first.
                    return Ok(Opened::default());
                }
                Err(error @ OpenError::NoRing { .. }) if !size.is_least => return Err(error),
                Err(error) if config.on_open_failure == OnOpenFailure::LeaveOutCpu => {
                    self.warn(format_args!("CPU {cpu} is left out: {error}"));
                    opened.left_out.push(*cpu);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(opened)
    }

    fn open_on(
        &self,
        cpu: u32,
        cpus: usize,
        size: RingSize,
        config: &mut PerfConfig,
    ) -> Result<CpuEvents, OpenError> {
        loop {
            let missing = match CpuEvents::open(config, cpu, cpus, size) {
                Err(OpenError::NoCounter(missing)) => missing,
                Ok(events) if events.counts_nobody() => {
                    let reason = "they have ended".to_owned();
                    return Err(OpenError::NotAlone { cpu, reason });
                }
                Err(error @ OpenError::NoKernel) => {
                    self.warn(format_args!("{error}"));
                    config.leader.scope.exclude_kernel = true;
                    continue;
                }
                opened => return opened,
            };
            if config.leader.needs_hardware() && describe(&config.leader) == missing {
                self.warn(format_args!(
                    "this machine's processors do not count {missing}; the CPU clock, in nanoseconds, takes its place"
                ));
                let leader = &config.leader;
                config.leader = Event::cpu_clock(leader.name.clone(), leader.scope);
            } else {
                self.warn(format_args!(
                    "this machine's processors do not count {missing}; it is left out"
                ));
                config.followers.retain(|follower| describe(follower) != missing);
            }
        }
    }
}

impl Threaded for LinuxPerf {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "perf_reader";
    type Config = PerfConfig;

    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(NAME.to_owned()),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        }
    }

    fn judge(&self, instance: &Instance) -> Result<PerfConfig, String> {
        let none = PerfEventConfig::default();
        let asked = instance.config.perf_event_config.as_option().unwrap_or(&none);
        let shard = self.shard(asked, instance.config.tracing_session_id.unwrap_or_default());
        let config = PerfConfig::of(asked, shard, &RunningKernel::default())?;
        if !asked.target_installed_by.is_empty() {
            self.warn(format_args!(
                "target_installed_by has no meaning on Linux and is ignored"
            ));
        }
        Ok(config)
    }

    fn work(&self, instance: &Instance, mut config: PerfConfig) -> Result<Work, String> {
        let opened = self.open(&mut config)?;
        let instance = instance.serial;
        let program = self.program.clone();
        let hotplug = Hotplug::new(self.sysfs.clone());
        Ok(Box::new(move |inbox, writer, started| {
            let thread = PerfThread {
                program,
                instance,
                profiler: Profiler::new(&config, opened.events, opened.left_out),
                hotplug,
                config,
                writer,
                has_told_missing: false,
            };
            thread.run(inbox, started);
        }))
    }
}

#[cfg(test)]
mod tests;
