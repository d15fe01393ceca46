//! Finds the kernel settings that several concurrent sessions need together, and makes them.
//!
//! In each tracefs directory, the kernel has one set of ring buffers and settings for everybody (upstream calls this part the config muxer). The
//! first session takes over a free directory and decides the settings that cannot change while recording: clock, buffer size, tracer. Later sessions
//! add their events. The kernel records each event once, and each session gets only the events that it asked for. When the last session leaves,
//! everything is put back.
//!
//! Called by [`super::data_source`]: [`Control::setup`] when a session is prepared, [`Control::activate`] when it starts,
//! [`Control::remove`] when it ends and, once no raw buffer is open, [`Control::put_back`]. All changes go through a
//! [`Restorer`].

use std::collections::{BTreeMap, BTreeSet};

use ferretto_proto::messages::{FtraceClock, FtraceConfig};

use super::request::{
    ClockChoice, ExistingData, FunctionGraph, InstanceRole, Request, RequestError, SyscallSet,
    kprobe_definition,
};
use super::restore::Restorer;
use super::session::KprobeType;
use super::stats::SetupErrors;
use super::tracefs::{EventName, Setting, Tracefs, TracefsError};

/// Identifies one `linux.ftrace` data source instance, that is one session's ftrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FtraceSessionId(pub u64);

/// Why a session cannot use ftrace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    /// Its config makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Another program uses a tracer.
    #[error(
        "ftrace is in use by another program: {path}/current_tracer is `{tracer}`. End that program, or as root type `echo nop > {path}/current_tracer`"
    )]
    InUse {
        /// The tracefs directory.
        path: String,
        /// The tracer.
        tracer: String,
    },
    /// The session wants ftrace for itself, or another session has it for itself.
    #[error("{0}")]
    Exclusive(&'static str),
    /// The kernel refused a setting that the recording depends on.
    #[error("{what}: {source}")]
    Setting {
        /// The purpose of the setting.
        what: &'static str,
        /// The kernel's error.
        source: TracefsError,
    },
}

const WANTS_ALL: &str = "this session wants ftrace for itself (tids_to_trace, tracefs_options or tracing_cpumask), but another session is using it";
const HAS_ALL: &str =
    "another session has ftrace for itself (tids_to_trace, tracefs_options or tracing_cpumask)";

/// `None` for the boot clock, which everything else in a trace uses.
fn clock_of_name(name: &str) -> Option<FtraceClock> {
    match name {
        "boot" => None,
        "global" => Some(FtraceClock::FTRACE_CLOCK_GLOBAL),
        "local" => Some(FtraceClock::FTRACE_CLOCK_LOCAL),
        "mono_raw" => Some(FtraceClock::FTRACE_CLOCK_MONO_RAW),
        _ => Some(FtraceClock::FTRACE_CLOCK_UNKNOWN),
    }
}

/// How an event can be written to the trace, as the caller of [`Control::setup`] finds from its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Description {
    /// As a message made for it.
    Typed,
    /// As a list of its fields.
    Generic,
}

/// The parts of a session's config that the kernel accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    /// Events that are recorded for the session, without its probes.
    pub events: BTreeSet<EventName>,
    /// The session's probes.
    pub kprobes: BTreeMap<EventName, KprobeType>,
    /// The things that the session asked for and did not get; goes into the trace.
    pub errors: SetupErrors,
    /// Warnings for the person at the terminal.
    pub warnings: Vec<String>,
}

#[derive(Debug)]
struct Session {
    events: BTreeSet<EventName>,
    syscalls: SyscallSet,
    drain_percent: Option<u32>,
}

/// The settings of one tracefs directory on behalf of all its sessions.
#[derive(Debug)]
pub(crate) struct Control {
    restorer: Restorer,
    role: InstanceRole,
    sessions: BTreeMap<FtraceSessionId, Session>,
    active: BTreeSet<FtraceSessionId>,
    clock: Option<FtraceClock>,
    buffer_pages: u32,
    syscalls: SyscallSet,
    function_graph_on: bool,
    exclusive: Vec<Setting>,
    /// Whether the kernel reports buffers that are as full as an active session wants.
    has_watermark: bool,
}

impl Control {
    /// Nothing is touched until the first session.
    pub(crate) fn new(restorer: Restorer, role: InstanceRole) -> Control {
        Control {
            restorer,
            role,
            sessions: BTreeMap::new(),
            active: BTreeSet::new(),
            clock: None,
            buffer_pages: 0,
            syscalls: SyscallSet::None,
            function_graph_on: false,
            exclusive: Vec::new(),
            has_watermark: false,
        }
    }

    /// The directory, for reading.
    pub(crate) fn tracefs(&self) -> &Tracefs {
        self.restorer.tracefs()
    }

    /// The clock of the time stamps, unless it is the boot clock.
    pub(crate) fn clock(&self) -> Option<FtraceClock> {
        self.clock
    }

    /// Size of each CPU's buffer as it was asked for, in pages; 0 if it was left as found.
    pub(crate) fn buffer_pages(&self) -> u32 {
        self.buffer_pages
    }

    /// Somebody else has changed the clock: events from now on have times of the new one.
    pub(crate) fn follow_clock(&mut self) {
        self.clock = self.current_clock();
    }

    /// The value that `setting` was given here.
    pub(crate) fn left(&self, setting: &Setting) -> Option<&str> {
        self.restorer.left(setting)
    }

    /// Whether the kernel knows how full a buffer has to be before it is drained, because an active session says so.
    pub(crate) fn has_watermark(&self) -> bool {
        self.has_watermark
    }

    /// Settings that were made for a session that has ftrace for itself.
    pub(crate) fn exclusive_settings(&self) -> &[Setting] {
        &self.exclusive
    }

    /// The events that active sessions record, without those that tracers and markers make.
    pub(crate) fn switchable_events(&self) -> BTreeSet<EventName> {
        let active = self.active.iter().filter_map(|id| self.sessions.get(id));
        let events = active.flat_map(|session| &session.events);
        events.filter(|event| event.group != "ftrace").cloned().collect()
    }

    /// Whether no session is left, active or not.
    pub(crate) fn is_unused(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Makes the kernel ready for the session `id`, without recording yet. `describe` says for each event how it would be written; events that it
    /// refuses are not switched on. On an error nothing has changed.
    ///
    /// # Errors
    /// If the config is invalid, another program or session has ftrace for itself, or the kernel refuses a setting that the recording depends on.
    pub(crate) fn setup(
        &mut self,
        id: FtraceSessionId,
        config: &FtraceConfig,
        describe: &mut dyn FnMut(&Tracefs, &EventName) -> Result<Description, String>,
    ) -> Result<Setup, ControlError> {
        let request = Request::new(config, self.restorer.tracefs(), self.role)?;
        let generic_wanted = !config.disable_generic_events.unwrap_or(false);
        let result = self.try_setup(id, request, generic_wanted, describe);
        match &result {
            Ok(_) => {}
            Err(_) if self.sessions.is_empty() => {
                // There are no other sessions, so this session made all changes.
                self.put_back();
            }
            Err(_) => self.disable_unwanted_events(),
        }
        result.map(|mut setup| {
            let journal_error = self.restorer.take_journal_error();
            setup
                .warnings
                .extend(journal_error.map(|error| error.to_string()));
            setup
        })
    }

    fn try_setup(
        &mut self,
        id: FtraceSessionId,
        request: Request,
        generic_wanted: bool,
        describe: &mut dyn FnMut(&Tracefs, &EventName) -> Result<Description, String>,
    ) -> Result<Setup, ControlError> {
        let mut setup = Setup {
            errors: request.errors.clone(),
            warnings: request.warnings.clone(),
            ..Setup::default()
        };
        if self.sessions.is_empty() {
            setup.warnings.extend(self.take_over(&request)?);
        } else if request.is_exclusive() {
            return Err(ControlError::Exclusive(WANTS_ALL));
        } else if !self.exclusive.is_empty() {
            return Err(ControlError::Exclusive(HAS_ALL));
        }
        for (setting, value) in &request.exclusive {
            self.set("cannot have ftrace as the config asks for", setting, value)?;
        }
        self.exclusive = request
            .exclusive
            .iter()
            .map(|(setting, _)| setting.clone())
            .collect();

        for (probe, kind) in &request.kprobes {
            let made = self.restorer.add_kprobe(probe, &kprobe_definition(probe));
            let described = made
                .map_err(|error| error.to_string())
                .and_then(|()| describe(self.restorer.tracefs(), probe).map(|_| ()));
            match described {
                Ok(()) => {
                    setup.kprobes.insert(probe.clone(), *kind);
                }
                Err(reason) => {
                    setup.errors.failed_events.push(probe.to_string());
                    setup.warnings.push(format!("no probe {probe}: {reason}"));
                }
            }
        }
        for event in request.events {
            match describe(self.restorer.tracefs(), &event) {
                Ok(Description::Generic) if !generic_wanted => {
                    setup.errors.failed_events.push(event.to_string());
                }
                Ok(_) => {
                    setup.events.insert(event);
                }
                Err(reason) => {
                    setup.errors.unknown_events.push(event.to_string());
                    setup.warnings.push(format!("{event} is not recorded: {reason}"));
                }
            }
        }
        // The filter is in place before the events are.
        self.update_syscall_filter(Some(&request.syscalls))?;
        self.enable(&mut setup);
        if let Some(function_graph) = &request.function_graph {
            self.start_function_graph(function_graph)?;
        }

        let mut events = setup.events.clone();
        events.extend(setup.kprobes.keys().cloned());
        let session = Session {
            events,
            syscalls: request.syscalls,
            drain_percent: request.drain_percent,
        };
        self.sessions.insert(id, session);
        Ok(setup)
    }

    /// Takes ftrace over for the first session. Returns warnings.
    fn take_over(&mut self, request: &Request) -> Result<Vec<String>, ControlError> {
        let tracer = self
            .restorer
            .tracefs()
            .get(&Setting::CurrentTracer)
            .unwrap_or_default();
        if request.existing_data == ExistingData::Preserve {
            // Changing the clock or a size would lose the events to be preserved.
            self.clock = self.current_clock();
            self.buffer_pages = 0;
            return Ok(Vec::new());
        }
        // In general it is unknown whether somebody reads the events that are on. A tracer shows that somebody does.
        if !tracer.is_empty() && tracer != "nop" {
            let path = self.restorer.tracefs().root().display().to_string();
            return Err(ControlError::InUse { path, tracer });
        }
        self.set("cannot stop recording", &Setting::TracingOn, "0")?;
        // If single events can be switched off but not all at once, events that others left on stay on and are not parsed.
        let _ = self.restorer.disable_all_events();
        let not_cleared = self.clear_buffers()?;
        self.choose_clock(request.clock);
        let kib = (u64::from(request.buffer_pages) * rustix::param::page_size() as u64) >> 10;
        self.buffer_pages = request.buffer_pages;
        // A recording in buffers that are too small is better than none, and its statistics show the loss.
        let resized = self.restorer.set(&Setting::BufferSizeKb, &kib.to_string());
        let not_resized = resized
            .err()
            .map(|error| format!("the kernel's buffers stay as they are: {error}"));
        let not_cleared = not_cleared
            .into_iter()
            .map(|error| format!("a CPU that is off keeps the events of another recording: {error}"));
        Ok(not_cleared.chain(not_resized).collect())
    }

    fn clear_buffers(&self) -> Result<Vec<TracefsError>, ControlError> {
        let cleared = self.restorer.tracefs().clear_buffers();
        cleared.map_err(|source| ControlError::Setting {
            what: "cannot empty the buffers",
            source,
        })
    }

    fn choose_clock(&mut self, choice: ClockChoice) {
        let available = self.restorer.tracefs().clocks().unwrap_or_default();
        let preferred: &[&str] = match choice {
            ClockChoice::Default => &["boot", "global", "local"],
            ClockChoice::MonotonicRaw => &["mono_raw", "boot", "global", "local"],
        };
        let chosen = preferred.iter().find(|clock| available.contains(**clock));
        let current = self
            .restorer
            .tracefs()
            .get(&Setting::TraceClock)
            .unwrap_or_default();
        if let Some(clock) = chosen
            && **clock != current
        {
            // If the kernel refuses, the trace says which clock it has, and a snapshot relates it to the others.
            let _ = self.restorer.set(&Setting::TraceClock, clock);
        }
        self.clock = self.current_clock();
    }

    fn current_clock(&self) -> Option<FtraceClock> {
        clock_of_name(
            &self
                .restorer
                .tracefs()
                .get(&Setting::TraceClock)
                .unwrap_or_default(),
        )
    }

    fn set(&mut self, what: &'static str, setting: &Setting, value: &str) -> Result<(), ControlError> {
        self.restorer
            .set(setting, value)
            .map_err(|source| ControlError::Setting { what, source })
    }

    fn enable(&mut self, setup: &mut Setup) {
        // Tracers and markers make the events of the group `ftrace`, which have no switch.
        let switchable = setup
            .events
            .iter()
            .chain(setup.kprobes.keys())
            .filter(|event| event.group != "ftrace");
        let switchable: Vec<EventName> = switchable.cloned().collect();
        for (event, error) in self.restorer.enable_events(&switchable) {
            setup.events.remove(&event);
            setup.kprobes.remove(&event);
            setup.errors.failed_events.push(event.to_string());
            setup.warnings.push(format!("{event} is not recorded: {error}"));
        }
    }

    fn disable_unwanted_events(&mut self) {
        let wanted: BTreeSet<&EventName> = self
            .sessions
            .values()
            .flat_map(|session| &session.events)
            .collect();
        let unwanted: Vec<EventName> = self
            .restorer
            .events_on()
            .filter(|event| !wanted.contains(event))
            .cloned()
            .collect();
        for event in unwanted {
            // An event that cannot be switched off is recorded until the end, and nobody reads it.
            let _ = self.restorer.disable_event(&event);
        }
    }

    /// Has the kernel record the system calls of all sessions and of `joining`.
    fn update_syscall_filter(&mut self, joining: Option<&SyscallSet>) -> Result<(), ControlError> {
        let present = self.sessions.values().map(|session| session.syscalls.clone());
        let wanted = SyscallSet::union(present.chain(joining.cloned()));
        if wanted == self.syscalls || wanted == SyscallSet::None {
            return Ok(());
        }
        for name in ["sys_enter", "sys_exit"] {
            let setting = Setting::EventFilter(EventName::new("raw_syscalls", name));
            self.set("cannot select the system calls", &setting, &wanted.filter())?;
        }
        self.syscalls = wanted;
        Ok(())
    }

    fn start_function_graph(&mut self, graph: &FunctionGraph) -> Result<(), ControlError> {
        const WHAT: &str = "cannot trace function calls (this needs CONFIG_FUNCTION_GRAPH_TRACER, see available_tracers, and no other session recording without)";
        if !self.function_graph_on {
            self.set(WHAT, &Setting::FunctionFilter, "")?;
            self.set(WHAT, &Setting::GraphFunctions, "")?;
            self.set(WHAT, &Setting::MaxGraphDepth, "0")?;
        }
        // The lists of functions grow with each session and are reset only when the last one leaves: nothing notes which session wanted which
        // function.
        for (setting, functions) in [
            (Setting::FunctionFilter, &graph.filters),
            (Setting::GraphFunctions, &graph.roots),
        ] {
            if !functions.is_empty() {
                self.restorer
                    .append(&setting, &functions.join("\n"))
                    .map_err(|source| ControlError::Setting { what: WHAT, source })?;
            }
        }
        if !self.function_graph_on {
            self.set(WHAT, &Setting::MaxGraphDepth, &graph.max_depth.to_string())?;
            self.set(WHAT, &Setting::CurrentTracer, "function_graph")?;
            self.function_graph_on = true;
        }
        Ok(())
    }

    /// The session `id` starts. Switches recording on for the first active session. Returns a warning for a failure that does not stop the recording.
    ///
    /// # Errors
    /// If the kernel refuses to record.
    pub(crate) fn activate(&mut self, id: FtraceSessionId) -> Result<Option<String>, ControlError> {
        let first = self.active.is_empty();
        self.active.insert(id);
        let warning = self
            .update_buffer_percent()
            .err()
            .map(|error| format!("drain_buffer_percent has no effect, buffers are drained by time: {error}"));
        if first && let Err(error) = self.set("cannot start recording", &Setting::TracingOn, "1") {
            self.active.remove(&id);
            return Err(error);
        }
        Ok(warning)
    }

    /// Has the kernel report buffers at the lowest percentage that an active session asks for.
    fn update_buffer_percent(&mut self) -> Result<(), TracefsError> {
        let active = self.active.iter().filter_map(|id| self.sessions.get(id));
        let percent = active.filter_map(|session| session.drain_percent).min();
        let set = match percent {
            Some(percent) => self.restorer.set(&Setting::BufferPercent, &percent.to_string()),
            None => Ok(()),
        };
        self.has_watermark = percent.is_some() && set.is_ok();
        set
    }

    /// The session `id` has ended: switches off the settings that only it needed. If it was the last, the caller closes the raw buffers and calls
    /// [`Control::put_back`].
    pub(crate) fn remove(&mut self, id: FtraceSessionId) {
        if self.sessions.remove(&id).is_none() {
            return;
        }
        self.active.remove(&id);
        if self.sessions.is_empty() {
            self.has_watermark = false;
            // `put_back` looks whether somebody else records by now, and does not stop that recording.
            return;
        }
        // If somebody else has switched recording off, their setting stays.
        if self.active.is_empty() && self.restorer.looks_as_left(&Setting::TracingOn) {
            let _ = self.set("cannot stop recording", &Setting::TracingOn, "0");
        }
        // If this fails, the buffers hold more than needed until the last session ends.
        self.disable_unwanted_events();
        let _ = self.update_syscall_filter(None);
        let _ = self.update_buffer_percent();
    }

    /// Puts tracefs back as it was found. The caller has ended all sessions and closed all raw buffers. Returns the settings that could not be put
    /// back.
    pub(crate) fn put_back(&mut self) -> Vec<TracefsError> {
        self.syscalls = SyscallSet::None;
        self.function_graph_on = false;
        self.exclusive.clear();
        self.buffer_pages = 0;
        self.restorer.restore()
    }
}

#[cfg(test)]
mod tests;
