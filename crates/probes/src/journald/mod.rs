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
//! | `follow.rs` | from the journal's end onwards, for the flight recorder too |
//! | `entry.rs` | filters; from an entry to a packet |
//! | `reader.rs` | packets of new entries, and how many there were |
//! | `thread.rs` | when to read |
//! | `place.rs` | why there may be nothing to read |
//!
//! Each instance has a thread of its own, because the library reads files, and a slow disk may take any time. Guarantees that neither the
//! journal nor a flood of messages holds up other data sources, and that memory is bounded. If an instance cannot read the journal, the
//! trace and the daemon's log say why, and the session records the rest.

pub mod entry;
mod follow;
mod libsystemd;
mod place;
mod reader;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;

use ferretto_client::data_source::Instance;
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Threaded, Work};
use ferretto_client::runtime::probe::standalone;
use ferretto_proto::messages::DataSourceDescriptor;

pub use self::follow::{FollowError, follow};
pub use self::libsystemd::{Error, Journal};
pub use self::place::{Absence, Remark};

use self::entry::Filters;
use self::thread::JournalThread;

/// The name under which the data source is registered.
pub const NAME: &str = "linux.systemd_journald";

/// Names that the filters of one config may have. The library compares each with every entry.
pub const MOST_FILTERS: usize = 1000;

/// See the [module](self).
pub(crate) struct Journald {
    program: Arc<dyn ProducerProgram>,
}

impl Journald {
    /// Touches nothing until the first instance starts.
    pub(crate) fn new(program: Arc<dyn ProducerProgram>) -> Journald {
        Journald { program }
    }
}

impl Threaded for Journald {
    const NAME: &'static str = NAME;
    const THREAD: &'static str = "journal_reader";
    type Config = Filters;

    fn descriptor(&self) -> DataSourceDescriptor {
        standalone(NAME)
    }

    fn judge(&self, instance: &Instance) -> Result<Filters, String> {
        let filters = Filters::of(&instance.config.journald_config);
        match filters.names() {
            0..=MOST_FILTERS => Ok(filters),
            names => Err(format!(
                "filter_identifiers and filter_units have {names} names; use at most {MOST_FILTERS}"
            )),
        }
    }

    fn work(&self, instance: &Instance, filters: Filters) -> Result<Work, String> {
        let program = self.program.clone();
        let instance = instance.serial;
        Ok(Box::new(move |inbox, writer, started| {
            let thread = JournalThread {
                program,
                instance,
                filters,
                writer,
                inbox,
                waiting: Vec::new(),
            };
            thread.run(started);
        }))
    }
}
