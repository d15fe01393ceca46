//! `android.heapprofd`: the data source.
//!
//! It judges configs when instances are set up, and gives each instance a thread when it starts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::data_source::{Acknowledge, DataSource, Instance, Output, Slot};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{InstanceThreads, What};
use ferretto_heap_client::layout::REGISTERS;
use ferretto_ipc::channel::channel;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, HeapprofdConfig};

use crate::config::HeapConfig;
use crate::sessions::Sessions;
use crate::thread::HeapThread;

/// The name it is registered with.
pub const NAME: &str = "android.heapprofd";

/// Instances at a time, each with a thread.
const MOST_INSTANCES: usize = 64;

/// The time that the service gives a data source to stop if the config does not say, as upstream.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// See the [module](self).
pub struct HeapProfiles {
    program: Arc<dyn ProducerProgram>,
    threads: InstanceThreads,
    sessions: Arc<Sessions>,
    /// Configs of instances that have not started.
    prepared: Mutex<BTreeMap<Slot, HeapConfig>>,
}

impl std::fmt::Debug for HeapProfiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapProfiles").finish_non_exhaustive()
    }
}

impl HeapProfiles {
    /// Processes that connect are given to these sessions.
    pub fn new(program: Arc<dyn ProducerProgram>, sessions: Arc<Sessions>) -> HeapProfiles {
        HeapProfiles {
            threads: InstanceThreads::new(program.clone(), NAME),
            program,
            sessions,
            prepared: Mutex::default(),
        }
    }

    fn prepared(&self) -> MutexGuard<'_, BTreeMap<Slot, HeapConfig>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DataSource for HeapProfiles {
    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(NAME.to_owned()),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        }
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        if REGISTERS == 0 {
            return Err("no stack can be unwound on this processor architecture".to_owned());
        }
        let none = HeapprofdConfig::default();
        let asked = instance.config.heapprofd_config.as_option().unwrap_or(&none);
        let config = HeapConfig::of(asked)?;
        if !asked.target_installed_by.is_empty() {
            self.program.warning(&format!(
                "{NAME}: target_installed_by has no meaning on Linux and is ignored"
            ));
        }
        self.prepared().insert(instance.slot, config);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let Some(config) = self.prepared().remove(&instance.slot) else {
            return Err("it was not set up".to_owned());
        };
        let stop_timeout = match instance.config.stop_timeout_ms {
            None | Some(0) => STOP_TIMEOUT,
            Some(milliseconds) => Duration::from_millis(milliseconds.into()),
        };
        let thread = HeapThread {
            program: self.program.clone(),
            instance: (instance.serial, instance.slot),
            config: Arc::new(config),
            sessions: self.sessions.clone(),
            news: channel(),
            writer: output.create_trace_writer().map_err(|error| error.to_string())?,
            stop_timeout,
        };
        self.threads.start(instance.slot, "heap_reader", move |inbox| {
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

    /// While it waits the rings of clients fill, and what has no space there is counted.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }

    fn max_instances(&self) -> usize {
        MOST_INSTANCES
    }
}
