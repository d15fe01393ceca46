//! `linux.perf`: the data source.
//!
//! It judges configs when instances are set up, opens the kernel's events when they start, and gives each instance a thread. If a config asks for counters
//! of the processor that the machine lacks, as most virtual machines do, the CPU clock takes the place of the leader, followers are left out, and the
//! log says so; the trace says what was really counted.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::data_source::{Acknowledge, DataSource, Instance, Output, Slot};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{InstanceThreads, What};
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, PerfEventConfig};

use crate::config::{OnOpenFailure, PerfConfig, Shard, shard_count};
use crate::cpu::{CpuEvents, OpenError, describe};
use crate::cpus;
use crate::event::{Event, RunningKernel};
use crate::hotplug::Hotplug;
use crate::profiler::Profiler;
use crate::thread::PerfThread;

/// The name it is registered with.
pub const NAME: &str = "linux.perf";

/// Instances at a time, each with a thread and a ring for each CPU.
const MOST_INSTANCES: usize = 64;

/// See the [module](self).
pub struct LinuxPerf {
    program: Arc<dyn ProducerProgram>,
    threads: InstanceThreads,
    /// Configs of instances that have not started.
    prepared: Mutex<BTreeMap<Slot, PerfConfig>>,
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

impl std::fmt::Debug for LinuxPerf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxPerf").finish_non_exhaustive()
    }
}

impl LinuxPerf {
    /// Touches nothing until the first instance starts.
    pub fn new(program: Arc<dyn ProducerProgram>) -> LinuxPerf {
        LinuxPerf {
            threads: InstanceThreads::new(program.clone(), NAME),
            program,
            prepared: Mutex::default(),
            shards: RandomState::new(),
            sysfs: "/sys".into(),
        }
    }

    fn prepared(&self) -> MutexGuard<'_, BTreeMap<Slot, PerfConfig>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
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
        // All CPUs count the same: if one cannot count something, all are opened again without it.
        let opened = loop {
            let before = config.clone();
            let opened = self.open_on_all(&cpus, config)?;
            if before == *config {
                break opened;
            }
        };
        match opened.events.is_empty() {
            true => Err("no CPU is left".to_owned()),
            false => Ok(opened),
        }
    }

    fn open_on_all(&self, cpus: &[u32], config: &mut PerfConfig) -> Result<Opened, String> {
        let mut opened = Opened::default();
        for cpu in cpus {
            match self.open_on(*cpu, cpus.len(), config) {
                Ok(events) => opened.events.push(events),
                Err(error) if config.on_open_failure == OnOpenFailure::LeaveOutCpu => {
                    self.warn(format_args!("CPU {cpu} is left out: {error}"));
                    opened.left_out.push(*cpu);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(opened)
    }

    fn open_on(&self, cpu: u32, cpus: usize, config: &mut PerfConfig) -> Result<CpuEvents, OpenError> {
        loop {
            let missing = match CpuEvents::open(config, cpu, cpus) {
                Err(OpenError::NoCounter(missing)) => missing,
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

impl DataSource for LinuxPerf {
    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(NAME.to_owned()),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        }
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        let none = PerfEventConfig::default();
        let asked = instance.config.perf_event_config.as_option().unwrap_or(&none);
        let shard = self.shard(asked, instance.config.tracing_session_id.unwrap_or_default());
        let config = PerfConfig::of(asked, shard, &RunningKernel::default())?;
        if !asked.target_installed_by.is_empty() {
            self.warn(format_args!(
                "target_installed_by has no meaning on Linux and is ignored"
            ));
        }
        self.prepared().insert(instance.slot, config);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let Some(mut config) = self.prepared().remove(&instance.slot) else {
            return Err("it was not set up".to_owned());
        };
        let opened = self.open(&mut config)?;
        let thread = PerfThread {
            program: self.program.clone(),
            instance: instance.serial,
            profiler: Profiler::new(&config, opened.events, opened.left_out),
            hotplug: Hotplug::new(self.sysfs.clone()),
            config,
            writer: output.create_trace_writer().map_err(|error| error.to_string())?,
        };
        self.threads.start(instance.slot, "perf_reader", move |inbox| {
            thread.run(inbox, started)
        })
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        self.prepared().remove(&slot);
        self.threads.tell(slot, What::Stop, stopped);
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        self.threads.tell(slot, What::Flush, flushed);
    }

    fn clear_incremental_state(&self, slot: Slot) {
        self.threads
            .tell(slot, What::ClearIncrementalState, Acknowledge::new(|| {}));
    }

    /// While it waits the kernel keeps samples, and counts those that it cannot keep.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }

    fn max_instances(&self) -> usize {
        MOST_INSTANCES
    }
}
