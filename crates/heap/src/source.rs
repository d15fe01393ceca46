//! `android.heapprofd`: the data source.
//!
//! It judges configs when instances are set up. Each instance has a `thread`.

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::Instance;
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Threaded, Work};
use ferretto_heap_client::layout::REGISTERS;
use ferretto_ipc::channel::channel;
use ferretto_proto::messages::{DataSourceDescriptor, HeapprofdConfig};

use crate::config::HeapConfig;
use crate::sessions::Sessions;
use crate::thread::HeapThread;

/// The name it is registered with.
pub(crate) const NAME: &str = "android.heapprofd";

/// The time that the service gives a data source to stop if the config does not say, as upstream.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// See the [module](self).
pub(crate) struct HeapProfiles {
    program: Arc<dyn ProducerProgram>,
    sessions: Arc<Sessions>,
}

impl HeapProfiles {
    /// Processes that connect are given to these sessions.
    pub(crate) fn new(program: Arc<dyn ProducerProgram>, sessions: Arc<Sessions>) -> HeapProfiles {
        HeapProfiles { program, sessions }
    }
}

impl Threaded for HeapProfiles {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "heap_reader";
    type Config = HeapConfig;

    fn descriptor(&self) -> DataSourceDescriptor {
        DataSourceDescriptor {
            name: Some(NAME.to_owned()),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: Some(true),
            ..Default::default()
        }
    }

    fn judge(&self, instance: &Instance) -> Result<HeapConfig, String> {
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
        Ok(config)
    }

    fn work(&self, instance: &Instance, config: HeapConfig) -> Result<Work, String> {
        let stop_timeout = match instance.config.stop_timeout_ms {
            None | Some(0) => STOP_TIMEOUT,
            Some(milliseconds) => Duration::from_millis(milliseconds.into()),
        };
        let instance = (instance.serial, instance.slot);
        let (program, sessions) = (self.program.clone(), self.sessions.clone());
        Ok(Box::new(move |inbox, writer, started| {
            let thread = HeapThread {
                program,
                instance,
                config: Arc::new(config),
                sessions,
                news: channel(),
                writer,
                stop_timeout,
            };
            thread.run(inbox, started);
        }))
    }
}
