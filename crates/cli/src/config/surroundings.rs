//! What a config is judged against: which data sources the service has on offer, what the kernel can record, how busy the machine is.
//!
//! Values, so that what is said of a config can be tested without any of them. [`RecordedMachine::look`] and [`Kernel::look`] fill them in;
//! they read a few small files and wait for nobody. What the service offers comes from whoever talks to it.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_probes::ftrace::categories::events_of_category;
use ferretto_probes::ftrace::tracefs::{Tracefs, TracefsError};
use ferretto_proto::messages::trace_config::DataSource;
use ferretto_proto::messages::{TraceConfig, TracingServiceState};

use crate::glob::glob;

/// All of it.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// `None` if it could not be asked: then nothing is said of what it offers.
    pub(crate) service: Option<Offers>,
    /// `None` if nothing is wanted of it, or tracefs may not be read.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) machine: RecordedMachine,
}

/// What is connected to a service.
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
    /// Whether it forgets what it told readers when it is asked to.
    pub(crate) clears_incremental_state: bool,
    /// Categories of track events that it has, with their tags.
    pub(crate) categories: Vec<Category>,
}

/// A category of track events.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Category {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

impl Offers {
    /// From what a service says of itself.
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

    /// What our own probes would offer, for a service that is not there yet and would be started with them.
    pub(crate) fn of_own_probes() -> Offers {
        use ferretto_probes::{ftrace, inode_file_map, process_stats, producer, sys_stats, system_info};
        let names = [
            ftrace::data_source::NAME,
            process_stats::NAME,
            sys_stats::NAME,
            system_info::NAME,
            inode_file_map::NAME,
            ftrace::frozen::NAME,
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

    /// The producers that offer a data source, each with it.
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

/// What the kernel can record.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Events by group.
    pub(crate) events: BTreeMap<String, BTreeSet<String>>,
    /// How many events of this kernel each of the config's atrace categories stands for.
    pub(crate) atrace_categories: BTreeMap<String, usize>,
    /// Its tracers; empty if that is not known.
    pub(crate) tracers: BTreeSet<String>,
    /// The tracefs instances that the config names, and whether they are there.
    pub(crate) instances: BTreeMap<String, bool>,
}

impl Kernel {
    /// Looks at the running kernel, for what this config wants of it; `None` if that is nothing.
    ///
    /// # Errors
    /// Why that is not possible.
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

    /// Looks at the events that the running kernel has.
    ///
    /// # Errors
    /// Why that is not possible.
    pub(crate) fn look_at_events() -> Result<Kernel, String> {
        let events = Tracefs::find().and_then(|tracefs| events_of_kernel(&tracefs));
        Ok(Kernel {
            events: events.map_err(|error| error.to_string())?,
            ..Kernel::default()
        })
    }

    /// The groups with an event of this name.
    pub(crate) fn groups_of(&self, name: &str) -> impl Iterator<Item = &str> {
        let having = self.events.iter().filter(move |(_, names)| names.contains(name));
        having.map(|(group, _)| group.as_str())
    }

    /// The events whose group and name match these patterns, in which `*` stands for anything.
    pub(crate) fn matching(&self, group: &str, name: &str) -> impl Iterator<Item = String> {
        let groups = self.events.iter().filter(move |(own, _)| glob(group, own));
        groups.flat_map(move |(group, names)| {
            let names = names.iter().filter(move |own| glob(name, own));
            names.map(move |name| format!("{group}/{name}"))
        })
    }

    /// Whether `group/name`, `group/*` or `name` is an event of it.
    pub(crate) fn has(&self, event: &str) -> bool {
        match event.split_once('/') {
            Some((group, "*")) => self.events.contains_key(group),
            Some((group, name)) => self.events.get(group).is_some_and(|names| names.contains(name)),
            None => self.events.values().any(|names| names.contains(event)),
        }
    }
}

/// The names of all events of the running kernel, by group.
///
/// # Errors
/// If tracefs does not tell.
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
    // The kernel's own events are in no list.
    let own = tracefs.events_of("ftrace").unwrap_or_default();
    if !own.is_empty() {
        events.entry("ftrace".to_owned()).or_default().extend(own);
    }
    Ok(events)
}

/// The machine that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedMachine {
    /// As it calls itself in `machine_name_filter`.
    pub(crate) name: String,
    /// Processors that run.
    pub(crate) cpus: u64,
    /// KB of memory; 0 if that is not known.
    pub(crate) memory_kb: u64,
    /// Switches between threads in a second, all processors together, since the machine was started; 0 if that is not known.
    pub(crate) context_switches: u64,
}

impl RecordedMachine {
    /// Looks at this machine.
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
        // The unit of memory is a byte on all but some old machines, where the size is 32 bits wide.
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
