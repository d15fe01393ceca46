//! The subject of counts: one event of a config, as the config names it and as `perf_event_open` takes it.
//!
//! [`config`](crate::config) makes these. The names of tracepoints and of dynamic PMUs are numbers of the running kernel, so an [`EventNumbers`] looks them up;
//! tests have one of their own. Names and numbers are those of upstream's `perf_events.proto` and of the kernel's `uapi/linux/perf_event.h`.

use std::fs;
use std::path::PathBuf;

use ferretto_probes::ftrace::tracefs::{EventName, Tracefs};
use ferretto_proto::messages::perf_events::{Counter, EventModifier, RawEvent, Tracepoint};
use perf_event_open_sys::bindings as sys;

/// The kernel's counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The name that readers of the trace will show, if the config has one.
    pub name: Option<String>,
    /// As the config describes it.
    pub kind: Kind,
    /// `perf_event_attr.type`.
    pub attr_type: u32,
    /// `perf_event_attr.config`, `config1` and `config2`.
    pub attr_config: [u64; 3],
    /// The place where it is counted.
    pub scope: CountingScope,
}

/// See [`Event::kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One that every kernel knows by name.
    Counter(Counter),
    /// A static event of the kernel's tracing, counted only where `filter` holds, if there is one.
    Tracepoint {
        /// As the config has it: `sched:sched_switch` or `sched/sched_switch`.
        name: String,
        /// In the kernel's language for filters; may be empty.
        filter: String,
    },
    /// An event of this machine's hardware, by numbers.
    Raw,
}

/// The place where an event is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountingScope {
    /// Not in user space.
    pub exclude_user: bool,
    /// Not in the kernel.
    pub exclude_kernel: bool,
    /// Not in the hypervisor.
    pub exclude_hypervisor: bool,
}

impl CountingScope {
    /// The places that the modifiers name; everywhere if they name none.
    pub(crate) fn of(modifiers: &[EventModifier]) -> CountingScope {
        let excluded = |place| !modifiers.is_empty() && !modifiers.contains(&place);
        CountingScope {
            exclude_user: excluded(EventModifier::EVENT_MODIFIER_COUNT_USERSPACE),
            exclude_kernel: excluded(EventModifier::EVENT_MODIFIER_COUNT_KERNEL),
            exclude_hypervisor: excluded(EventModifier::EVENT_MODIFIER_COUNT_HYPERVISOR),
        }
    }

    /// The modifiers that say this; none if it is counted everywhere.
    pub(crate) fn modifiers(self) -> impl Iterator<Item = EventModifier> {
        let excludes_some = self.exclude_user || self.exclude_kernel || self.exclude_hypervisor;
        let places = [
            (self.exclude_user, EventModifier::EVENT_MODIFIER_COUNT_USERSPACE),
            (self.exclude_kernel, EventModifier::EVENT_MODIFIER_COUNT_KERNEL),
            (
                self.exclude_hypervisor,
                EventModifier::EVENT_MODIFIER_COUNT_HYPERVISOR,
            ),
        ];
        let counted = places
            .into_iter()
            .filter(move |(excluded, _)| excludes_some && !excluded);
        counted.map(|(_, place)| place)
    }
}

/// Finds the numbers of events that differ from kernel to kernel.
pub(crate) trait EventNumbers {
    /// The id of a tracepoint.
    ///
    /// # Errors
    /// Why there is none: a sentence's end.
    fn tracepoint_id(&self, group: &str, name: &str) -> Result<u64, String>;

    /// The type of the events of a PMU.
    ///
    /// # Errors
    /// Why there is none: a sentence's end.
    fn pmu_type(&self, pmu: &str) -> Result<u32, String>;
}

/// The kernel that runs.
#[derive(Clone, Debug)]
pub(crate) struct RunningKernel {
    /// The mount point of sysfs.
    pub sysfs: PathBuf,
}

impl Default for RunningKernel {
    fn default() -> Self {
        Self { sysfs: "/sys".into() }
    }
}

impl EventNumbers for RunningKernel {
    fn tracepoint_id(&self, group: &str, name: &str) -> Result<u64, String> {
        let event = EventName::new(group, name);
        if !event.is_valid() {
            return Err("no event has such a name".to_owned());
        }
        let tracefs = Tracefs::find().map_err(|error| error.to_string())?;
        if !tracefs.has_event(&event) {
            return Err(
                "this kernel has no such event; `ferretto list events` shows which it has".to_owned(),
            );
        }
        let id = tracefs
            .read(&format!("events/{group}/{name}/id"))
            .map_err(|error| error.to_string())?;
        id.trim()
            .parse()
            .map_err(|_| format!("its id, {:?}, is no number", id.trim()))
    }

    fn pmu_type(&self, pmu: &str) -> Result<u32, String> {
        if pmu.is_empty() || pmu.starts_with("..") || pmu.contains('/') {
            return Err("no PMU has such a name".to_owned());
        }
        let devices = self.sysfs.join("bus/event_source/devices");
        let path = devices.join(pmu).join("type");
        let number = fs::read_to_string(&path).map_err(|error| {
            let all = fs::read_dir(&devices).into_iter().flatten().flatten();
            let mut names: Vec<_> = all
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort_unstable();
            format!(
                "cannot read {}: {error}; this machine has {}",
                path.display(),
                names.join(", ")
            )
        })?;
        number
            .trim()
            .parse()
            .map_err(|_| format!("{}: {:?} is no number", path.display(), number.trim()))
    }
}

impl Event {
    /// The one that is counted if a config says nothing.
    pub(crate) fn cpu_clock(name: Option<String>, scope: CountingScope) -> Event {
        let (attr_type, config) = attr_of(Counter::SW_CPU_CLOCK).unwrap_or_default();
        Event {
            name,
            kind: Kind::Counter(Counter::SW_CPU_CLOCK),
            attr_type,
            attr_config: [config, 0, 0],
            scope,
        }
    }

    /// # Errors
    /// If the number has no meaning here.
    pub(crate) fn counter(
        counter: Counter,
        name: Option<String>,
        scope: CountingScope,
    ) -> Result<Event, String> {
        let (attr_type, config) = attr_of(counter).ok_or("UNKNOWN_COUNTER is no counter; name one")?;
        Ok(Event {
            name,
            kind: Kind::Counter(counter),
            attr_type,
            attr_config: [config, 0, 0],
            scope,
        })
    }

    /// # Errors
    /// If the kernel has no such tracepoint.
    pub(crate) fn tracepoint(
        tracepoint: &Tracepoint,
        name: Option<String>,
        scope: CountingScope,
        numbers: &dyn EventNumbers,
    ) -> Result<Event, String> {
        let full_name = tracepoint.name.as_deref().unwrap_or_default();
        let parts = full_name.split_once('/').or_else(|| full_name.split_once(':'));
        let Some((group, event)) = parts.filter(|(group, event)| !group.is_empty() && !event.is_empty())
        else {
            return Err(format!(
                "tracepoint {full_name:?} is not of the form sched:sched_switch or sched/sched_switch"
            ));
        };
        let id = numbers
            .tracepoint_id(group, event)
            .map_err(|reason| format!("tracepoint {full_name:?}: {reason}"))?;
        Ok(Event {
            name,
            kind: Kind::Tracepoint {
                name: full_name.to_owned(),
                filter: tracepoint.filter.clone().unwrap_or_default(),
            },
            attr_type: sys::PERF_TYPE_TRACEPOINT,
            attr_config: [id, 0, 0],
            scope,
        })
    }

    /// # Errors
    /// If it has both a type and a PMU, or neither, or the machine has no such PMU.
    pub(crate) fn raw(
        raw: &RawEvent,
        name: Option<String>,
        scope: CountingScope,
        numbers: &dyn EventNumbers,
    ) -> Result<Event, String> {
        let pmu = raw.pmu_name.as_deref().filter(|pmu| !pmu.is_empty());
        let attr_type = match (raw.r#type, pmu) {
            (Some(_), Some(_)) => {
                return Err("raw_event has both `type` and `pmu_name`; leave one out".to_owned());
            }
            (None, None) => return Err("raw_event needs `type` or `pmu_name`".to_owned()),
            (Some(number), None) => number,
            (None, Some(pmu)) => numbers
                .pmu_type(pmu)
                .map_err(|reason| format!("raw_event: pmu_name {pmu:?}: {reason}"))?,
        };
        Ok(Event {
            name,
            kind: Kind::Raw,
            attr_type,
            attr_config: [raw.config, raw.config1, raw.config2].map(Option::unwrap_or_default),
            scope,
        })
    }

    /// Whether it counts the time for which threads run.
    pub(crate) fn is_clock(&self) -> bool {
        self.attr_type == sys::PERF_TYPE_SOFTWARE
            && [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK]
                .map(u64::from)
                .contains(&self.attr_config[0])
    }

    /// Whether code of programs may cause it outside of the kernel. The kernel counts the others for itself only.
    pub(crate) fn happens_in_user_code(&self) -> bool {
        const OF_KERNEL: [sys::perf_sw_ids; 5] = [
            sys::PERF_COUNT_SW_CONTEXT_SWITCHES,
            sys::PERF_COUNT_SW_CPU_MIGRATIONS,
            sys::PERF_COUNT_SW_DUMMY,
            sys::PERF_COUNT_SW_BPF_OUTPUT,
            sys::PERF_COUNT_SW_CGROUP_SWITCHES,
        ];
        let [config, ..] = self.attr_config;
        let is_of_kernel = match self.attr_type {
            sys::PERF_TYPE_TRACEPOINT => true,
            sys::PERF_TYPE_SOFTWARE => OF_KERNEL.map(u64::from).contains(&config),
            _ => false,
        };
        !is_of_kernel && !self.scope.exclude_user
    }

    /// Whether it needs counters of the processor, which most virtual machines lack.
    pub(crate) fn needs_hardware(&self) -> bool {
        self.attr_type == sys::PERF_TYPE_HARDWARE
    }
}

/// `perf_event_attr.type` and `config`; `None` for an event that is no counter.
fn attr_of(counter: Counter) -> Option<(u32, u64)> {
    let hardware = |config: u32| Some((sys::PERF_TYPE_HARDWARE, u64::from(config)));
    let software = |config: u32| Some((sys::PERF_TYPE_SOFTWARE, u64::from(config)));
    match counter {
        Counter::UNKNOWN_COUNTER => None,
        Counter::SW_CPU_CLOCK => software(sys::PERF_COUNT_SW_CPU_CLOCK),
        Counter::SW_PAGE_FAULTS => software(sys::PERF_COUNT_SW_PAGE_FAULTS),
        Counter::SW_TASK_CLOCK => software(sys::PERF_COUNT_SW_TASK_CLOCK),
        Counter::SW_CONTEXT_SWITCHES => software(sys::PERF_COUNT_SW_CONTEXT_SWITCHES),
        Counter::SW_CPU_MIGRATIONS => software(sys::PERF_COUNT_SW_CPU_MIGRATIONS),
        Counter::SW_PAGE_FAULTS_MIN => software(sys::PERF_COUNT_SW_PAGE_FAULTS_MIN),
        Counter::SW_PAGE_FAULTS_MAJ => software(sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
        Counter::SW_ALIGNMENT_FAULTS => software(sys::PERF_COUNT_SW_ALIGNMENT_FAULTS),
        Counter::SW_EMULATION_FAULTS => software(sys::PERF_COUNT_SW_EMULATION_FAULTS),
        Counter::SW_DUMMY => software(sys::PERF_COUNT_SW_DUMMY),
        Counter::HW_CPU_CYCLES => hardware(sys::PERF_COUNT_HW_CPU_CYCLES),
        Counter::HW_INSTRUCTIONS => hardware(sys::PERF_COUNT_HW_INSTRUCTIONS),
        Counter::HW_CACHE_REFERENCES => hardware(sys::PERF_COUNT_HW_CACHE_REFERENCES),
        Counter::HW_CACHE_MISSES => hardware(sys::PERF_COUNT_HW_CACHE_MISSES),
        Counter::HW_BRANCH_INSTRUCTIONS => hardware(sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
        Counter::HW_BRANCH_MISSES => hardware(sys::PERF_COUNT_HW_BRANCH_MISSES),
        Counter::HW_BUS_CYCLES => hardware(sys::PERF_COUNT_HW_BUS_CYCLES),
        Counter::HW_STALLED_CYCLES_FRONTEND => hardware(sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
        Counter::HW_STALLED_CYCLES_BACKEND => hardware(sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
        Counter::HW_REF_CPU_CYCLES => hardware(sys::PERF_COUNT_HW_REF_CPU_CYCLES),
    }
}
