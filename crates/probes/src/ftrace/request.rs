//! The demands of one `FtraceConfig` on the kernel. Names are checked, wildcards and categories become events, and system calls become numbers. Used
//! by `super::control`, which brings the requests of all sessions together.
//!
//! A config that could contain a kernel command is refused as a whole. Events that do not exist on this kernel, or whose names no event can have, are
//! left out and reported.

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::FtraceConfig;
use ferretto_proto::messages::ftrace_config::kprobe_event::KprobeType as ConfigKprobeType;
use ferretto_proto::messages::ftrace_config::tracefs_option::State;

use super::categories::events_of_category;
use super::session::KprobeType;
use super::stats::SetupErrors;
use super::syscalls;
use super::tracefs::{EventName, Setting, Tracefs, TracefsError, is_option_name};
use super::typed;

/// Group of the events that probes at the start of a function make. Reserved: configs cannot name its events.
pub(crate) const KPROBE_GROUP: &str = "perfetto_kprobes";
/// Group of the events that probes at the return of a function make.
pub(crate) const KRETPROBE_GROUP: &str = "perfetto_kretprobes";
/// Calls of one function that may be under way at once without losing a return.
const KRETPROBE_INSTANCES: u32 = 1024;

/// Buffer size for each CPU in KiB when the config sets none, on machines with less and with more than 7 GiB of memory.
pub const DEFAULT_BUFFER_KIB: (u64, u64) = (2 << 10, 8 << 10);
/// "8 GB", of which the kernel keeps some for itself.
const MUCH_MEMORY: u64 = 7 << 30;

/// The buffers of all CPUs together take at most this part of the memory when the config sets no size.
const DEFAULT_PART: u64 = 32;
/// The buffers take at most this part of the memory even if the config asks for more, because the kernel does not swap them.
const LARGEST_PART: u64 = 4;

/// Why a config is refused as a whole.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// A category or app with characters that cannot be in one.
    #[error("`{0}` in {1} is not printable ASCII")]
    AtraceName(String, &'static str),
    /// The file of an option would not be in `options/`.
    #[error("`{0}` in tracefs_options is no name of an option: letters, digits, `-` and `_` only")]
    OptionName(String),
    /// A filter for functions that is a command.
    #[error(
        "`{0}` in {1} contains `:`, which would make it a command for the kernel that affects all sessions; only names and globs are allowed"
    )]
    FunctionCommand(String, &'static str),
    /// Userspace categories need the top instance.
    #[error("atrace_categories and atrace_apps need the top instance of tracefs: leave out instance_name")]
    AtraceInInstance,
    /// Tracefs could not be read.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
}

/// Whether the tracefs directory is the top one or an instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstanceRole {
    /// The top directory: all features.
    Top,
    /// One of `instances/*`: events and buffer size only.
    Secondary,
}

/// Which system calls a session records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SyscallSet {
    /// None: it records no `raw_syscalls` event.
    None,
    /// Only these numbers, at least one.
    Only(BTreeSet<u16>),
    /// Every one.
    All,
}

impl SyscallSet {
    /// The system calls that several sessions need together.
    pub(crate) fn union(sets: impl IntoIterator<Item = SyscallSet>) -> SyscallSet {
        sets.into_iter()
            .fold(SyscallSet::None, |sum, set| match (sum, set) {
                (SyscallSet::All, _) | (_, SyscallSet::All) => SyscallSet::All,
                (SyscallSet::None, set) | (set, SyscallSet::None) => set,
                (SyscallSet::Only(mut sum), SyscallSet::Only(set)) => {
                    sum.extend(set);
                    SyscallSet::Only(sum)
                }
            })
    }

    /// The text for the events' `filter` files.
    pub(crate) fn filter(&self) -> String {
        match self {
            SyscallSet::None | SyscallSet::All => "0".to_owned(),
            SyscallSet::Only(numbers) => numbers
                .iter()
                .map(|number| format!("id == {number}"))
                .collect::<Vec<_>>()
                .join(" || "),
        }
    }
}

/// The function-graph tracer, if wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionGraph {
    /// Functions to trace; empty for all.
    pub filters: Vec<String>,
    /// Functions whose callees to trace; empty for all.
    pub roots: Vec<String>,
    /// How deep; 0 for no limit.
    pub max_depth: u32,
}

/// Which clock stamps the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockChoice {
    /// The best that the kernel has.
    Default,
    /// `mono_raw`, if the kernel has it.
    MonotonicRaw,
}

/// The fate of events that were recorded before the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExistingData {
    /// The buffers are emptied.
    Clear,
    /// The events are kept, and so are clock and size.
    Preserve,
}

/// The demands of one session.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Events to record, all of which exist.
    pub events: BTreeSet<EventName>,
    /// Probes to make and record.
    pub kprobes: BTreeMap<EventName, KprobeType>,
    /// System calls to record.
    pub syscalls: SyscallSet,
    /// Function calls to record.
    pub function_graph: Option<FunctionGraph>,
    /// The clock, where it can still be chosen.
    pub clock: ClockChoice,
    /// Pages for each CPU, where they can still be chosen; never 0.
    pub buffer_pages: u32,
    /// The fill level at which a buffer is read ahead of time; `None` to leave that to the deadline.
    pub drain_percent: Option<u32>,
    /// The fate of the events in the buffers.
    pub existing_data: ExistingData,
    /// Settings of the kernel that no two sessions can share, in the order in which they are made.
    pub exclusive: Vec<(Setting, String)>,
    /// Things that are left out because the kernel lacks them.
    pub errors: SetupErrors,
    /// Warnings for the person at the terminal, one sentence each.
    pub warnings: Vec<String>,
}

impl Request {
    /// Reads `config` against what `tracefs` offers.
    ///
    /// # Errors
    /// If the config asks for something that could harm other sessions or that an instance cannot have, or if it needs a list of tracefs that cannot
    /// be read.
    pub(crate) fn new(
        config: &FtraceConfig,
        tracefs: &Tracefs,
        role: InstanceRole,
    ) -> Result<Request, RequestError> {
        check_names(config)?;
        let wants_atrace = !config.atrace_categories.is_empty() || !config.atrace_apps.is_empty();
        if wants_atrace && role == InstanceRole::Secondary {
            return Err(RequestError::AtraceInInstance);
        }
        let machine = Machine {
            memory: physical_memory(),
            cpus: tracefs.cpus().map_or(1, |cpus| cpus.len() as u64),
            page_bytes: rustix::param::page_size() as u64,
        };
        let (buffer_pages, warning) = buffer_pages(config, machine);
        let mut request = Request {
            events: BTreeSet::new(),
            kprobes: BTreeMap::new(),
            syscalls: SyscallSet::None,
            function_graph: None,
            clock: match config.use_monotonic_raw_clock.unwrap_or(false) {
                true => ClockChoice::MonotonicRaw,
                false => ClockChoice::Default,
            },
            buffer_pages,
            drain_percent: config.drain_buffer_percent.filter(|percent| *percent > 0),
            existing_data: match config.preserve_ftrace_buffer.unwrap_or(false) {
                true => ExistingData::Preserve,
                false => ExistingData::Clear,
            },
            exclusive: exclusive_settings(config)?,
            errors: SetupErrors::default(),
            warnings: warning.into_iter().collect(),
        };
        request.add_events(config, tracefs)?;
        request.add_kprobes(config);
        request.add_syscalls(config);
        request.add_function_graph(config);
        if wants_atrace {
            request.warnings.push(
                "atrace's userspace categories and apps exist on Android only; their kernel events and ftrace/print are recorded"
                    .to_owned(),
            );
        }
        if config.throttle_rss_stat.unwrap_or(false) {
            request.warnings.push(
                "throttle_rss_stat needs an Android kernel: kmem/rss_stat is recorded unthrottled".to_owned(),
            );
        }
        Ok(request)
    }

    /// Whether ftrace has to be this session's alone.
    pub(crate) fn is_exclusive(&self) -> bool {
        !self.exclusive.is_empty()
    }

    fn add_events(&mut self, config: &FtraceConfig, tracefs: &Tracefs) -> Result<(), RequestError> {
        let mut groups: Option<BTreeSet<String>> = None;
        for wanted in &config.ftrace_events {
            if !is_event_pattern(wanted) {
                // Upstream then records no kernel event at all.
                self.warnings.push(format!(
                    "`{}` in ftrace_events is not of the form `name`, `group/name` or `group/*`; the other events are recorded",
                    wanted.escape_debug()
                ));
                self.errors.unknown_events.push(wanted.clone());
                continue;
            }
            let found: Vec<EventName> = match wanted.split_once('/') {
                Some((group, "*")) => {
                    let names = tracefs.events_of(group)?;
                    names
                        .into_iter()
                        .map(|name| EventName::new(group, name))
                        .collect()
                }
                Some((group, name)) => vec![EventName::new(group, name)],
                None => {
                    if groups.is_none() {
                        groups = Some(tracefs.groups()?);
                    }
                    let candidates = groups.iter().flatten().map(|group| EventName::new(group, wanted));
                    let found: Vec<_> = candidates.filter(|event| tracefs.has_event(event)).collect();
                    // Several groups may have an event of this name. The config means the one with a message of its own.
                    let typed = found
                        .iter()
                        .find(|event| typed::find(&event.group, &event.name).is_some());
                    typed.or(found.first()).cloned().into_iter().collect()
                }
            };
            let before = found.len();
            let existing: Vec<EventName> = found
                .into_iter()
                .filter(|event| event.group != KPROBE_GROUP && event.group != KRETPROBE_GROUP)
                .filter(|event| tracefs.has_event(event))
                .collect();
            if existing.is_empty() || existing.len() < before {
                self.errors.unknown_events.push(wanted.clone());
            }
            self.events.extend(existing);
        }

        let mut implied: Vec<EventName> = Vec::new();
        if !config.atrace_categories.is_empty() || !config.atrace_apps.is_empty() {
            implied.push(EventName::new("ftrace", "print"));
        }
        if !config.atrace_userspace_only.unwrap_or(false) {
            for category in &config.atrace_categories {
                implied.extend(events_of_category(category, tracefs));
            }
        }
        if !config.syscall_events.is_empty() {
            implied.extend(["sys_enter", "sys_exit"].map(|name| EventName::new("raw_syscalls", name)));
        }
        if config.enable_function_graph.unwrap_or(false) {
            implied.extend(["funcgraph_entry", "funcgraph_exit"].map(|name| EventName::new("ftrace", name)));
        }
        for event in implied {
            if tracefs.has_event(&event) {
                self.events.insert(event);
            } else {
                self.errors.unknown_events.push(event.to_string());
            }
        }
        Ok(())
    }

    fn add_kprobes(&mut self, config: &FtraceConfig) {
        for probe in &config.kprobe_events {
            let function = probe.probe.as_deref().unwrap_or_default();
            let (entry, exit) = match probe.r#type.unwrap_or(ConfigKprobeType::KPROBE_TYPE_UNKNOWN) {
                ConfigKprobeType::KPROBE_TYPE_KPROBE => (Some(KprobeType::Instant), None),
                ConfigKprobeType::KPROBE_TYPE_KRETPROBE => (None, Some(KprobeType::Instant)),
                ConfigKprobeType::KPROBE_TYPE_BOTH => (Some(KprobeType::Begin), Some(KprobeType::End)),
                ConfigKprobeType::KPROBE_TYPE_UNKNOWN => {
                    self.warnings
                        .push(format!("kprobe_events: `{function}` has no type and is left out"));
                    continue;
                }
            };
            for (group, kind) in [(KPROBE_GROUP, entry), (KRETPROBE_GROUP, exit)] {
                let Some(kind) = kind else { continue };
                let event = EventName::new(group, function);
                let is_identifier = function.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                if is_identifier && !function.is_empty() {
                    self.kprobes.insert(event, kind);
                } else {
                    self.errors.failed_events.push(event.to_string());
                }
            }
        }
    }

    fn add_syscalls(&mut self, config: &FtraceConfig) {
        if !self.events.iter().any(|event| event.group == "raw_syscalls") {
            return;
        }
        if config.syscall_events.is_empty() {
            self.syscalls = SyscallSet::All;
            return;
        }
        let mut numbers = BTreeSet::new();
        for name in &config.syscall_events {
            match syscalls::number(name) {
                Some(number) => {
                    numbers.insert(number);
                }
                None => self.warnings.push(format!(
                    "syscall_events: this architecture has no system call `{name}`; spell it as in `sys_read`"
                )),
            }
        }
        if numbers.is_empty() {
            // No filter of numbers would work: `raw_syscalls` has events with any number, such as the -1 at the end of a signal handler.
            self.events.retain(|event| event.group != "raw_syscalls");
            return;
        }
        self.syscalls = SyscallSet::Only(numbers);
    }

    fn add_function_graph(&mut self, config: &FtraceConfig) {
        if config.enable_function_graph.unwrap_or(false) {
            self.function_graph = Some(FunctionGraph {
                filters: config.function_filters.clone(),
                roots: config.function_graph_roots.clone(),
                max_depth: config.function_graph_max_depth.unwrap_or(0),
            });
        }
    }
}

/// The line for `kprobe_events` that makes `probe`.
pub(crate) fn kprobe_definition(probe: &EventName) -> String {
    let kind = match probe.group.as_str() {
        KRETPROBE_GROUP => format!("r{KRETPROBE_INSTANCES}"),
        _ => "p".to_owned(),
    };
    format!("{kind}:{}/{} {}", probe.group, probe.name, probe.name)
}

/// Whether an event can have this name, or whether it can stand for a group. For any other name in a config, upstream's probes record no kernel event
/// at all. So the command line asks before it records.
pub fn is_event_pattern(name: &str) -> bool {
    let is_printable = name.bytes().all(|b| (32..127).contains(&b));
    let parts_are_whole = !name.starts_with('/') && !name.ends_with('/') && name.matches('/').count() <= 1;
    let star_is_last = name.find('*').is_none_or(|at| at == name.len() - 1);
    is_printable && parts_are_whole && star_is_last
}

fn check_names(config: &FtraceConfig) -> Result<(), RequestError> {
    let is_printable = |name: &str| name.bytes().all(|b| (32..127).contains(&b));
    for (field, names) in [
        ("atrace_categories", &config.atrace_categories),
        ("atrace_apps", &config.atrace_apps),
    ] {
        if let Some(name) = names.iter().find(|name| !is_printable(name)) {
            return Err(RequestError::AtraceName(name.clone(), field));
        }
    }
    for (field, filters) in [
        ("function_filters", &config.function_filters),
        ("function_graph_roots", &config.function_graph_roots),
    ] {
        if let Some(filter) = filters.iter().find(|filter| filter.contains([':', '\n'])) {
            return Err(RequestError::FunctionCommand(filter.clone(), field));
        }
    }
    Ok(())
}

fn exclusive_settings(config: &FtraceConfig) -> Result<Vec<(Setting, String)>, RequestError> {
    let mut settings = Vec::new();
    if !config.tids_to_trace.is_empty() {
        let tids: Vec<String> = config.tids_to_trace.iter().map(u32::to_string).collect();
        settings.push((Setting::EventPids, tids.join(" ")));
    }
    for option in &config.tracefs_options {
        let name = option.name.clone().unwrap_or_default();
        let value = match option.state.unwrap_or(State::STATE_UNKNOWN) {
            State::STATE_UNKNOWN => continue,
            State::STATE_ENABLED => "1",
            State::STATE_DISABLED => "0",
        };
        if !is_option_name(&name) {
            return Err(RequestError::OptionName(name));
        }
        settings.push((Setting::Option(name), value.to_owned()));
    }
    if let Some(mask) = config.tracing_cpumask.as_deref().filter(|mask| !mask.is_empty()) {
        settings.push((Setting::CpuMask, mask.to_owned()));
    }
    Ok(settings)
}

/// The facts that limit the size of buffers.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// In bytes.
    memory: u64,
    cpus: u64,
    page_bytes: u64,
}

/// Pages for each CPU's buffer, at least one, and a warning if the config asks for another number. The buffers of all CPUs together take a bounded
/// part of the memory.
fn buffer_pages(config: &FtraceConfig, machine: Machine) -> (u32, Option<String>) {
    let by_memory = match machine.memory >= MUCH_MEMORY {
        true => DEFAULT_BUFFER_KIB.1,
        false => DEFAULT_BUFFER_KIB.0,
    };
    let share_kib = |part: u64| (machine.memory >> 10) / part / machine.cpus.max(1);
    let default = by_memory.min(share_kib(DEFAULT_PART));
    let kib = match u64::from(config.buffer_size_kb.unwrap_or(0)) {
        0 => default,
        asked if config.buffer_size_lower_bound.unwrap_or(false) => asked.max(default),
        asked => asked,
    };
    let most = share_kib(LARGEST_PART);
    let warning = (kib > most).then(|| {
        format!(
            "buffer_size_kb: {kib} KB for each of {} CPUs is more than a quarter of this machine's memory; {most} KB are used",
            machine.cpus
        )
    });
    let pages = (kib.min(most) << 10) / machine.page_bytes;
    (pages.clamp(1, u64::from(u32::MAX)) as u32, warning)
}

fn physical_memory() -> u64 {
    let info = rustix::system::sysinfo();
    // `unsigned long` is 32 bits wide on some machines, where the unit is not one byte.
    #[allow(clippy::unnecessary_cast)]
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests;
