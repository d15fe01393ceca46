//! The data source `linux.ftrace`: sessions, their deadlines, and the way of events from the kernel's buffers into each session's
//! `PacketSink`.
//!
//! The producer of `traced_probes` drives it on its main thread. For each session it calls `FtraceController::setup_session` when the
//! service sets the data source up, `start_session`, then `drain` whenever `next_deadline` has passed, `flush` when the service
//! asks, and `flush_last` and `stop_session` at the end. A drain takes a bounded time, so that the producer gets back to its socket.
//! If the kernel has more, the next deadline is now. A flush may take several drains: `take_flushed` tells when it is over. Sessions
//! that set `drain_buffer_percent` are drained earlier when a buffer fills up: the producer's loop watches the `Watermarks` and calls
//! `drain_past_watermark`.
//!
//! Sessions share the kernel's buffers: a page is read once and given to every session, whose encoder picks the events that the session
//! wants. Each tracefs directory in use has one `Instance`. It exists from the first session's setup until the last one's end, when
//! tracefs is put back as it was found; dropping the controller does the same. Each read looks for changes that others made. The trace
//! reports them, and the producer gets them from `take_incidents`.

mod draining;
mod instance;
#[cfg(test)]
mod tests;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use draining::FlushId;
use draining::{Progress, TURN};
use ferretto_proto::messages::{DataSourceDescriptor, FtraceConfig, FtraceDescriptor};
use ferretto_wire::Writer;
use instance::Instance;
pub(crate) use watching::{Incident, Weight};

use super::bundle::{BundleWriter, SymbolSource};
use super::control::{ControlError, FtraceSessionId};
use super::kallsyms::KernelSymbols;
use super::metadata::FileId;
use super::reader::CpuBuffer;
use super::request::InstanceRole;
use super::restore::JournalDir;
use super::session::Session as Decoding;
use super::stats::{FtraceStats, KprobeStats, SetupErrors, SymbolStats, encode_preserved_buffer};
use super::tracefs::{EventName, Tracefs, TracefsError};
use super::watch::Depth;
use super::watermarks::Watermarks;
use crate::metatrace::{Counter, Event, count, span};
use ferretto_client::runtime::probe::{BootTime, PacketSink};

/// The name of the data source.
pub const NAME: &str = "linux.ftrace";

/// Time between drains, unless a config says otherwise.
const DEFAULT_PERIOD_MS: u32 = 100;
/// Time between drains where the kernel reports full buffers, unless a config says otherwise.
const WATERMARK_PERIOD_MS: u32 = 1000;
/// The periods that a config may ask for.
const PERIODS_MS: std::ops::RangeInclusive<u32> = 1..=60_000;
/// Describes this data source to the service. Categories are Android's and need its `atrace`.
pub(crate) fn descriptor() -> DataSourceDescriptor {
    DataSourceDescriptor {
        name: Some(NAME.to_owned()),
        will_notify_on_start: Some(true),
        will_notify_on_stop: Some(true),
        ftrace_descriptor: FtraceDescriptor::default().into(),
        ..DataSourceDescriptor::default()
    }
}

/// The sinks of all sessions.
pub(crate) trait SessionSinks {
    /// The sink of `session`. `None` if it no longer has one; its packets are then discarded.
    fn sink(&mut self, session: FtraceSessionId) -> Option<&mut dyn PacketSink>;
}

impl<S: PacketSink> SessionSinks for BTreeMap<FtraceSessionId, S> {
    fn sink(&mut self, session: FtraceSessionId) -> Option<&mut dyn PacketSink> {
        self.get_mut(&session).map(|sink| sink as &mut dyn PacketSink)
    }
}

/// Why a session cannot be set up or started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FtraceError {
    /// The kernel's settings cannot be made.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A tracefs file cannot be used.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// This program cannot read the layout of this kernel's buffers.
    #[error("the ring buffer of this kernel cannot be read: {0}")]
    Layout(String),
    /// The session was not set up.
    #[error("there is no ftrace session {}", .0.0)]
    NoSuchSession(FtraceSessionId),
    /// The id is in use.
    #[error("there is an ftrace session {} already", .0.0)]
    SessionExists(FtraceSessionId),
}

/// Threads and files that a session's events mention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenThreads {
    /// Threads that events are about.
    pub seen: BTreeSet<i32>,
    /// The `seen` threads whose name has changed.
    pub renamed: BTreeSet<i32>,
    /// Files that threads opened: thread and file descriptor.
    pub opened_files: BTreeSet<(i32, u64)>,
    /// Files that events are about.
    pub files: BTreeSet<FileId>,
}

/// One session's `linux.ftrace`.
#[derive(Debug)]
struct Session {
    instance: String,
    drain_period_ms: Option<u32>,
    symbols: SymbolsWanted,
    preserves_buffer: bool,
    has_kprobes: bool,
    setup_errors: SetupErrors,
    /// Events that are recorded for the session.
    recorded: BTreeSet<EventName>,
    started: BootTime,
    /// Sentences for the trace about changes that others made meanwhile.
    troubles: Vec<String>,
    /// How many sentences about other programs' changes this session was told, troubles and remarks together.
    told: usize,
    decoding: Decoding,
    stats_at_start: FtraceStats,
    threads: SeenThreads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymbolsWanted {
    No,
    UntilStop,
    /// As `UntilStop`, and they are kept for later sessions.
    Forever,
}

/// All of this machine's ftrace, for all sessions.
#[derive(Debug)]
pub(crate) struct FtraceController {
    top: Tracefs,
    journal_dir: Option<JournalDir>,
    instances: BTreeMap<String, Instance>,
    sessions: BTreeMap<FtraceSessionId, Session>,
    bundles: BundleWriter,
    packet: Writer,
    symbols: Option<KernelSymbols>,
    keep_symbols: bool,
    next_drain: Option<BootTime>,
    /// Where this kernel reports how full buffers are.
    watermarks: Option<Arc<Watermarks>>,
    /// Instances opened so far.
    opened: u32,
    /// How long a drain may take.
    turn: BootTime,
    last_flush: u64,
    /// Flushes that have ended and that the producer has not taken yet.
    flushed: Vec<FlushId>,
    /// Incidents that the producer has not taken yet.
    incidents: Vec<Incident>,
}

impl FtraceController {
    /// Touches nothing until the first session. With a `journal_dir`, [`super::restore::replay`] can put back the sessions' changes even
    /// after a crash. Without `watermarks`, only deadlines drain the sessions.
    pub(crate) fn new(
        top: Tracefs,
        journal_dir: Option<JournalDir>,
        watermarks: Option<Arc<Watermarks>>,
    ) -> FtraceController {
        FtraceController {
            top,
            journal_dir,
            instances: BTreeMap::new(),
            sessions: BTreeMap::new(),
            bundles: BundleWriter::default(),
            packet: Writer::new(),
            symbols: None,
            keep_symbols: false,
            next_drain: None,
            watermarks,
            opened: 0,
            turn: TURN,
            last_flush: 0,
            flushed: Vec::new(),
            incidents: Vec::new(),
        }
    }

    /// Prepares the kernel and the formats of events for `config`. Recording does not start yet. Returns what a person should know of events and features
    /// that are not recorded, one sentence each. The trace has them, too.
    ///
    /// # Errors
    /// If there is such a session already, its instance of ftrace cannot be opened, or the kernel cannot be set up for the config.
    pub(crate) fn setup_session(
        &mut self,
        id: FtraceSessionId,
        config: &FtraceConfig,
        now: BootTime,
    ) -> Result<Vec<String>, FtraceError> {
        if self.sessions.contains_key(&id) {
            return Err(FtraceError::SessionExists(id));
        }
        let name = config.instance_name.clone().unwrap_or_default();
        // Changes that others made until now must not look like this session's.
        self.look_at_settings(&name, Depth::Whole, now);
        if !self.instances.contains_key(&name) {
            let instance = self.open_instance(&name)?;
            self.instances.insert(name.clone(), instance);
        }
        let result = match self.instances.get_mut(&name) {
            Some(instance) => {
                let result = instance.setup(id, config);
                if instance.watch.is_some() {
                    instance.expect_what_is_there(now);
                }
                result
            }
            None => return Err(FtraceError::NoSuchSession(id)),
        };
        match result {
            Ok((session, report)) => {
                self.sessions.insert(id, session);
                Ok(report)
            }
            Err(error) => {
                self.close_if_unused(&name);
                Err(error)
            }
        }
    }

    fn open_instance(&mut self, name: &str) -> Result<Instance, FtraceError> {
        let (tracefs, role) = match name {
            "" => (self.top.clone(), InstanceRole::Top),
            name => (self.top.instance(name)?, InstanceRole::Secondary),
        };
        self.opened += 1;
        Instance::open(self.opened, tracefs, role, self.journal_dir.clone())
    }

    /// Starts recording for the session, and writes its first packets to `sink`. Reads the kernel's symbols if the config wants them,
    /// which takes about a hundred milliseconds; acknowledge the start only after this returns. Returns warnings. After an error nothing
    /// is recorded, and the caller must stop the session.
    ///
    /// # Errors
    /// If there is no such session, the kernel refuses to record, or its buffers cannot be opened.
    pub(crate) fn start_session(
        &mut self,
        id: FtraceSessionId,
        now: BootTime,
        sink: &mut dyn PacketSink,
    ) -> Result<Vec<String>, FtraceError> {
        let session = self.sessions.get(&id).ok_or(FtraceError::NoSuchSession(id))?;
        let (symbols, preserves_buffer) = (session.symbols, session.preserves_buffer);
        let instance = self
            .instances
            .get_mut(&session.instance)
            .ok_or(FtraceError::NoSuchSession(id))?;
        instance.watch_writers();
        let mut warnings: Vec<String> = instance.control.activate(id)?.into_iter().collect();
        let missing = instance.open_buffers()?;
        instance.started.insert(id);
        instance.expect_what_is_there(now);
        if let Some(watch) = &mut instance.watch {
            watch.tell_anew();
        }
        self.update_watermark_watches();
        let due = self.tick_after(now);
        self.next_drain = Some(self.next_drain.map_or(due, |next| next.min(due)));

        if symbols != SymbolsWanted::No {
            self.keep_symbols |= symbols == SymbolsWanted::Forever;
            warnings.extend(self.load_symbols());
        }
        let stats = self.read_stats(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.stats_at_start = stats;
            session.started = now;
            for (cpu, error) in missing {
                let text = format!("CPU {cpu} is not recorded: {error}");
                session.tell(id, now, &mut self.incidents, || (Weight::Trouble, text));
            }
        }
        count(Counter::FtraceSessions, self.started_sessions());
        if preserves_buffer {
            self.packet.clear();
            encode_preserved_buffer(&mut self.packet);
            sink.write_packet(self.packet.as_slice());
        }
        Ok(warnings)
    }

    fn load_symbols(&mut self) -> Option<String> {
        if self.symbols.as_ref().is_some_and(|symbols| !symbols.is_empty()) {
            return None;
        }
        let _span = span(Event::KallsymsParse);
        let (symbols, warning) = match KernelSymbols::of_this_kernel() {
            Ok(symbols) if symbols.is_empty() => (
                symbols,
                Some(
                    "symbolize_ksyms: /proc/kallsyms shows no addresses; set /proc/sys/kernel/kptr_restrict to 1, or start traced_probes again as root"
                        .to_owned(),
                ),
            ),
            Ok(symbols) => (symbols, None),
            Err(error) => {
                (KernelSymbols::default(), Some(format!("symbolize_ksyms: cannot read /proc/kallsyms: {error}")))
            }
        };
        self.symbols = Some(symbols);
        warning
    }

    /// When to call [`FtraceController::drain`] next; `None` while no session is started.
    pub(crate) fn next_deadline(&self) -> Option<BootTime> {
        self.next_drain
    }

    /// Ends the session. Events since its last flush are lost. With the last session of an instance, tracefs is put back; returns the
    /// errors of doing so. The session may never have started, or may not exist.
    pub(crate) fn stop_session(&mut self, id: FtraceSessionId, now: BootTime) -> Vec<TracefsError> {
        self.give_up_flushes(id);
        let Some(session) = self.sessions.remove(&id) else {
            return Vec::new();
        };
        if let Some(instance) = self.instances.get_mut(&session.instance) {
            instance.control.remove(id);
            instance.started.remove(&id);
            if instance.started.is_empty() {
                instance.close_buffers();
                instance.watch = None;
                instance.writers = None;
            } else {
                instance.expect_what_is_there(now);
            }
        }
        let errors = self.close_if_unused(&session.instance);
        self.update_watermark_watches();
        if self.started_sessions() == 0 {
            self.next_drain = None;
        } else {
            self.next_drain = self.next_drain.map(|next| next.min(self.tick_after(now)));
        }
        if self.sessions.is_empty() {
            let useless = self.symbols.as_ref().is_some_and(KernelSymbols::is_empty);
            if !self.keep_symbols || useless {
                self.symbols = None;
            }
            self.keep_symbols = false;
        }
        errors
    }

    /// Threads and files that the session's events mentioned since the last call, for `linux.process_stats` and `linux.inode_file_map`
    /// to describe.
    pub(crate) fn take_threads(&mut self, id: FtraceSessionId) -> SeenThreads {
        self.sessions
            .get_mut(&id)
            .map(|session| std::mem::take(&mut session.threads))
            .unwrap_or_default()
    }

    fn close_if_unused(&mut self, name: &str) -> Vec<TracefsError> {
        if !self
            .instances
            .get(name)
            .is_some_and(|instance| instance.control.is_unused())
        {
            return Vec::new();
        }
        let Some(mut instance) = self.instances.remove(name) else {
            return Vec::new();
        };
        instance.close_buffers();
        instance.control.put_back()
    }

    fn started_sessions(&self) -> usize {
        self.instances
            .values()
            .map(|instance| instance.started.len())
            .sum()
    }

    fn update_watermark_watches(&mut self) {
        let Some(watermarks) = &self.watermarks else {
            return;
        };
        for instance in self.instances.values_mut() {
            instance.watches_watermark = instance.control.has_watermark();
            match instance.watches_watermark {
                true => instance.watch_buffers(watermarks),
                false => instance.forget_buffers(watermarks),
            }
        }
    }

    /// The shortest period that a started session asks for.
    fn period_ms(&self) -> u32 {
        let mut shortest: Option<u32> = None;
        let mut all_watch = true;
        for instance in self
            .instances
            .values()
            .filter(|instance| !instance.started.is_empty())
        {
            all_watch &= instance.watches_watermark;
            for session in instance.started.iter().filter_map(|id| self.sessions.get(id)) {
                shortest = [shortest, session.drain_period_ms].into_iter().flatten().min();
            }
        }
        match shortest {
            None if all_watch => WATERMARK_PERIOD_MS,
            None => DEFAULT_PERIOD_MS,
            Some(period) if PERIODS_MS.contains(&period) => period,
            Some(_) => DEFAULT_PERIOD_MS,
        }
    }

    /// The next multiple of the period: daemons of several machines, and this one's restarts, drain in step.
    fn tick_after(&self, now: BootTime) -> BootTime {
        let period = u64::from(self.period_ms()) * 1_000_000;
        (now / period + 1) * period
    }

    fn plan_next_drain(&mut self, now: BootTime, progress: Progress) {
        self.next_drain = match progress {
            _ if self.started_sessions() == 0 => None,
            Progress::MoreToRead => Some(now),
            Progress::CaughtUp => Some(self.tick_after(now)),
        };
    }

    fn read_stats(&self, id: FtraceSessionId) -> FtraceStats {
        let Some(session) = self.sessions.get(&id) else {
            return FtraceStats::default();
        };
        let mut stats = FtraceStats {
            setup_errors: session.setup_errors.clone(),
            ..FtraceStats::default()
        };
        if let Some(instance) = self.instances.get(&session.instance) {
            let tracefs = instance.control.tracefs();
            let cpus: Vec<u32> = instance.buffers.iter().map(CpuBuffer::cpu).collect();
            stats.read_cpus(tracefs, &cpus);
            stats.buffer_pages = tracefs
                .buffer_pages(rustix::param::page_size())
                .ok()
                .flatten()
                .unwrap_or_default();
            stats.requested_buffer_pages = instance.control.buffer_pages();
            if session.has_kprobes {
                stats.kprobes = KprobeStats::parse(&tracefs.top().read("kprobe_profile").unwrap_or_default());
            }
        }
        if let Some(symbols) = &self.symbols {
            stats.symbols = SymbolStats {
                parsed: symbols.len() as u32,
                memory_kib: (symbols.memory_bytes() >> 10) as u32,
            };
        }
        stats
    }
}

impl SymbolSource for KernelSymbols {
    fn lookup(&self, address: u64, name: &mut String) -> bool {
        KernelSymbols::lookup(self, address, name)
    }
}
