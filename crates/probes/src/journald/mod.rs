//! `linux.systemd_journald`: the entries that systemd's journal receives while a session records.
//!
//! Each entry becomes a packet with the time at which the journal received it, on the monotonic clock (`entry.rs` has the fields). At each flush and
//! at the end, a packet gives the number of entries. Entries from before the start are not recorded. The config filters: the number of an entry's
//! priority must be at most `min_prio` (0 is an emergency, 7 debugging; 7 if it is not set). If the config names identifiers, the entry must have one
//! of them, and likewise with units. As with upstream, an entry without a priority is never recorded.
//!
//! | file | has |
//! |---|---|
//! | `libsystemd.rs` | the functions of the library |
//! | `entry.rs` | filters; from an entry to a packet |
//! | `reader.rs` | from the journal's end onwards |
//! | `thread.rs` | when to read |
//! | `place.rs` | why there may be nothing to read |
//!
//! Each instance has a thread of its own, because the library reads files, and a slow disk may take any time. Guarantees that neither the
//! journal nor a flood of messages holds up other data sources, and that memory is bounded. If an instance cannot read the journal, the
//! trace and the daemon's log say why, and the session records the rest.

pub mod entry;
mod libsystemd;
mod place;
mod reader;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::data_source::{Acknowledge, DataSource, Instance, Output, Slot};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{InstanceThreads, What};
use ferretto_client::runtime::probe::standalone;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};

use self::entry::Filters;
use self::thread::JournalThread;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.systemd_journald";

/// Names that the filters of one config may have. The library compares each with every entry.
pub const MOST_FILTERS: usize = 1000;

/// Instances at a time, each with a thread.
const MOST_INSTANCES: usize = 64;

/// See the [module](self).
pub struct Journald {
    program: Arc<dyn ProducerProgram>,
    threads: InstanceThreads,
}

impl std::fmt::Debug for Journald {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journald").finish_non_exhaustive()
    }
}

impl Journald {
    /// Touches nothing until the first instance starts.
    pub fn new(program: Arc<dyn ProducerProgram>) -> Journald {
        Journald {
            threads: InstanceThreads::new(program.clone(), NAME),
            program,
        }
    }
}

impl DataSource for Journald {
    fn descriptor(&self) -> DataSourceDescriptor {
        standalone(NAME)
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        match Filters::of(&instance.config.journald_config).names() {
            0..=MOST_FILTERS => Ok(()),
            names => Err(format!(
                "filter_identifiers and filter_units have {names} names; use at most {MOST_FILTERS}"
            )),
        }
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let program = self.program.clone();
        let number = instance.serial;
        let filters = Filters::of(&instance.config.journald_config);
        let writer = output.create_trace_writer().map_err(|error| error.to_string())?;
        self.threads.start(instance.slot, "journal_reader", move |inbox| {
            let thread = JournalThread {
                program,
                instance: number,
                filters,
                writer,
                inbox,
                waiting: Vec::new(),
            };
            thread.run(started);
        })
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        self.threads.tell(slot, What::Stop, stopped);
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        self.threads.tell(slot, What::Flush, flushed);
    }

    fn clear_incremental_state(&self, _slot: Slot) {
        // There is none.
    }

    /// Waiting loses nothing, because the journal keeps its entries.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }

    fn max_instances(&self) -> usize {
        MOST_INSTANCES
    }
}
