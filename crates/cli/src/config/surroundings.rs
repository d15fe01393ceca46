//! The context in which a config is judged: the data sources on offer, the kernel's abilities, and the machine's load.
//!
//! These are plain values, so tests can make them up. [`RecordedMachine::look`] and [`Kernel::look`] fill them in; they read a few small files and
//! never wait. The caller that talks to the service supplies its [`Offers`].

use std::collections::{BTreeMap, BTreeSet};

use ferretto_probes::ftrace::categories::events_of_category;
use ferretto_probes::ftrace::tracefs::{Tracefs, TracefsError};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{TraceConfig, TracingServiceState};
use ferretto_recorder::glob;

/// The whole context.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// `None` if the service could not be asked; then there is no advice about its offers.
    pub(crate) service: Option<Offers>,
    /// `None` if the config needs nothing of it, or tracefs cannot be read.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) machine: RecordedMachine,
}

/// The producers and data sources of a service.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Offers {
    pub(crate) producers: Vec<Producer>,
    pub(crate) sources: Vec<OfferedSource>,
}

/// A process that offers data sources.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Producer {
    pub(crate) id: i32,
    pub(crate) name: String,
    /// Empty for the service's own machine.
    pub(crate) machine: String,
}

/// A data source of a producer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct OfferedSource {
    pub(crate) name: String,
    pub(crate) producer: i32,
    /// Whether it can clear its incremental state.
    pub(crate) clears_incremental_state: bool,
    /// Its categories of track events, with their tags.
    pub(crate) categories: Vec<Category>,
}

/// A category of track events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Category {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

impl Offers {
    /// Reads them from a service's state.
    pub(crate) fn of(state: &TracingServiceState) -> Offers {
        let producers = state.producers.iter().map(|producer| Producer {
            id: producer.id.unwrap_or_default(),
            name: producer.name.clone().unwrap_or_default(),
            machine: producer.machine_name.clone().unwrap_or_default(),
        });
        let sources = state.data_sources.iter().map(|source| {
            let descriptor = &source.ds_descriptor;
            let categories = descriptor.track_event_descriptor.available_categories.iter();
            OfferedSource {
                name: descriptor.name.clone().unwrap_or_default(),
                producer: source.producer_id.unwrap_or_default(),
                clears_incremental_state: descriptor.handles_incremental_state_clear.unwrap_or_default(),
                categories: categories
                    .map(|category| Category {
                        name: category.name.clone().unwrap_or_default(),
                        tags: category.tags.clone(),
                    })
                    .collect(),
            }
        });
        Offers {
            producers: producers.collect(),
            sources: sources.collect(),
        }
    }

    /// Returns the offers of our own probes, for a service that does not run yet and would be started with them.
    pub(crate) fn of_own_probes() -> Offers {
        use ferretto_probes::{
            ftrace, inode_file_map, journald, metatrace, process_stats, producer, sys_stats, sysfs_power,
            system_info,
        };
        let names = [
            ftrace::data_source::NAME,
            process_stats::NAME,
            sys_stats::NAME,
            sysfs_power::NAME,
            system_info::NAME,
            journald::NAME,
            inode_file_map::NAME,
            ftrace::frozen::NAME,
            metatrace::NAME,
        ];
        Offers {
            producers: vec![Producer {
                id: 1,
                name: producer::PRODUCER_NAME.to_owned(),
                machine: String::new(),
            }],
            sources: names
                .map(|name| OfferedSource {
                    name: name.to_owned(),
                    producer: 1,
                    ..OfferedSource::default()
                })
                .into(),
        }
    }

    /// Returns each instance of a data source, with its producer.
    pub(crate) fn offering(&self, name: &str) -> impl Iterator<Item = (&OfferedSource, Option<&Producer>)> {
        let sources = self.sources.iter().filter(move |source| source.name == name);
        sources.map(|source| {
            let producer = self
                .producers
                .iter()
                .find(|producer| producer.id == source.producer);
            (source, producer)
        })
    }
}

/// The kernel's abilities.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Events by group.
    pub(crate) events: BTreeMap<String, BTreeSet<String>>,
    /// The number of this kernel's events behind each of the config's atrace categories.
    pub(crate) atrace_categories: BTreeMap<String, usize>,
    /// Its tracers; empty if unknown.
    pub(crate) tracers: BTreeSet<String>,
    /// The tracefs instances in the config, and whether they exist.
    pub(crate) instances: BTreeMap<String, bool>,
}

impl Kernel {
    /// Examines the running kernel, as far as this config needs it; `None` if it does not.
    ///
    /// # Errors
    /// If tracefs cannot be read.
    pub(crate) fn look(config: &TraceConfig) -> Result<Option<Kernel>, String> {
        let wants_events = |source: &DataSource| source.config.ftrace_config.is_set();
        if !config.data_sources.iter().any(wants_events) {
            return Ok(None);
        }
        let tracefs = Tracefs::find().map_err(|error| error.to_string())?;
        let tracers = tracefs.read("available_tracers").unwrap_or_default();
        let mut kernel = Kernel {
            events: events_of_kernel(&tracefs).map_err(|error| error.to_string())?,
            tracers: tracers.split_ascii_whitespace().map(str::to_owned).collect(),
            ..Kernel::default()
        };
        for source in &config.data_sources {
            for category in &source.config.ftrace_config.atrace_categories {
                let count = events_of_category(category, &tracefs).len();
                kernel.atrace_categories.insert(category.clone(), count);
            }
            if let Some(name) = source
                .config
                .ftrace_config
                .instance_name
                .as_deref()
                .filter(|name| !name.is_empty())
            {
                let is_there = tracefs.instance(name).is_ok();
                kernel.instances.insert(name.to_owned(), is_there);
            }
        }
        Ok(Some(kernel))
    }

    /// Reads the events of the running kernel.
    ///
    /// # Errors
    /// If tracefs cannot be read.
    pub(crate) fn look_at_events() -> Result<Kernel, String> {
        let events = Tracefs::find().and_then(|tracefs| events_of_kernel(&tracefs));
        Ok(Kernel {
            events: events.map_err(|error| error.to_string())?,
            ..Kernel::default()
        })
    }

    /// Returns the groups with an event of this name.
    pub(crate) fn groups_of(&self, name: &str) -> impl Iterator<Item = &str> {
        let having = self.events.iter().filter(move |(_, names)| names.contains(name));
        having.map(|(group, _)| group.as_str())
    }

    /// Returns the events whose group and name match these patterns, in which `*` stands for anything.
    pub(crate) fn matching(&self, group: &str, name: &str) -> impl Iterator<Item = String> {
        let groups = self.events.iter().filter(move |(own, _)| glob(group, own));
        groups.flat_map(move |(group, names)| {
            let names = names.iter().filter(move |own| glob(name, own));
            names.map(move |name| format!("{group}/{name}"))
        })
    }

    /// Whether this kernel has the event `group/name`, the group of `group/*`, or an event called `name`.
    pub(crate) fn has(&self, event: &str) -> bool {
        match event.split_once('/') {
            Some((group, "*")) => self.events.contains_key(group),
            Some((group, name)) => self.events.get(group).is_some_and(|names| names.contains(name)),
            None => self.events.values().any(|names| names.contains(event)),
        }
    }
}

/// Reads the names of all events of the running kernel, by group.
///
/// # Errors
/// If tracefs cannot be read.
pub(crate) fn events_of_kernel(
    tracefs: &Tracefs,
) -> Result<BTreeMap<String, BTreeSet<String>>, TracefsError> {
    let listed = tracefs.read("available_events")?;
    let mut events: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (group, name) in listed.lines().filter_map(|line| line.split_once(':')) {
        events
            .entry(group.to_owned())
            .or_default()
            .insert(name.to_owned());
    }
    // `available_events` lacks the events of ftrace itself.
    let own = tracefs.events_of("ftrace").unwrap_or_default();
    if !own.is_empty() {
        events.entry("ftrace".to_owned()).or_default().extend(own);
    }
    Ok(events)
}

/// The machine that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedMachine {
    /// The name that a `machine_name_filter` has to match.
    pub(crate) name: String,
    /// The number of processors available to this process.
    pub(crate) cpus: u64,
    /// KB of memory; 0 if unknown.
    pub(crate) memory_kb: u64,
    /// Switches between threads per second on all processors together, averaged since the machine started; 0 if unknown.
    pub(crate) context_switches: u64,
}

impl RecordedMachine {
    /// Examines this machine.
    pub(crate) fn look() -> RecordedMachine {
        let info = rustix::system::sysinfo();
        let up = u64::try_from(info.uptime).unwrap_or_default();
        let name = std::env::var("PERFETTO_MACHINE_NAME")
            .unwrap_or_else(|_| rustix::system::uname().sysname().to_string_lossy().into_owned());
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let switches: u64 = stat
            .lines()
            .find_map(|line| line.strip_prefix("ctxt "))
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or_default();
        // The unit of memory is a byte, except on some old machines with 32-bit sizes.
        #[allow(clippy::unnecessary_cast)]
        let memory = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
        RecordedMachine {
            name,
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            memory_kb: memory / 1024,
            context_switches: switches.checked_div(up).unwrap_or_default(),
        }
    }
}
