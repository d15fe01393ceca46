//! The producer of `traced_probes`: data sources on one side, the connection to the service on the other.
//!
//! Driven by the daemon's event loop, in its one thread: the daemon watches [`Probes::socket`] and the deadline, and
//! calls in when either is due. One value lives as long as one connection; when that ends ([`Ended`]), so do its data
//! sources, and the daemon connects anew.
//!
//! The only wait in here is a trace writer's for a free chunk of shared memory, while the service catches up. Nothing is
//! missed by it: whatever else could be recorded meanwhile would have to go through the same memory, and the kernel's
//! buffers go on recording. It is bounded, commits go out meanwhile, and it ends at once when the connection breaks or the
//! daemon is to end (see `Link`).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ferretto_client::arbiter::{
    Arbiter, BufferExhaustedPolicy, BufferId, EMULATED_SMB_SIZE, Notify, Partitioning, Wake,
};
use ferretto_client::producer::{
    ConnectError, DataSourceInstanceId, DataSourceSetup, Disconnect, Flush, ProducerCommand,
    ProducerEndpoint, ProducerEvent, ProducerOptions, Scraping, SharedMemoryOffer,
};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::Address;
use ferretto_ipc::reactor::Interest;
use ferretto_proto::messages::{DataSourceDescriptor, PriorityBoostConfig};
use ferretto_smb::{PageSize, Peer, ProducerSmb, SharedMemory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::data_source::{BootTime, DataSource, PacketSink};
use crate::ftrace::control::FtraceSessionId;
use crate::ftrace::data_source::{self as ftrace, FtraceController, SessionSinks, Weight};
use crate::ftrace::restore::JournalDir;
use crate::ftrace::stats::encode_trouble;
use crate::ftrace::tracefs::{Tracefs, TracefsError};
use crate::kernel_files::KernelRoots;
use crate::process_stats::{self, ProcessStats};
use crate::sys_stats::{self, SysStats};
use crate::system_info::{self, SystemInfo};

/// The name under which consumers find these data sources.
pub const PRODUCER_NAME: &str = "perfetto.traced_probes";

/// What the producer asks for, as upstream's does.
const SMB_SIZE: u32 = 2 * 1024 * 1024;
const SMB_PAGE_SIZE: u32 = 32 * 1024;
/// Bytes of requests that the arbiter may come to have: all of the memory, where it is emulated, and the rest generously.
const ROOM_FOR_REQUESTS: usize = 2 * EMULATED_SMB_SIZE;
/// The most that it maps if the service decides otherwise.
const MAX_SMB_SIZE: usize = 256 * 1024 * 1024;

/// The connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The service or the socket ended it.
    #[error(transparent)]
    Disconnected(#[from] Disconnect),
    /// What the service sent as shared memory cannot be used.
    #[error("the shared memory that the service sent cannot be used: {0}")]
    SharedMemory(String),
}

/// Where the daemon's lines go.
pub trait Log {
    /// Something happened that is in order.
    fn info(&self, line: &str);
    /// Somebody will miss something.
    fn warning(&self, line: &str);
}

/// The daemon's priority, which data sources may ask to be raised.
pub trait Priority {
    /// Runs the daemon at that priority at least, until it is lowered for the same data source instance.
    ///
    /// # Errors
    /// Why that cannot be; then nothing has changed.
    fn raise(&mut self, instance: u64, config: &PriorityBoostConfig) -> Result<(), String>;

    /// The instance has ended. Nothing happens if the priority was never raised for it.
    fn lower(&mut self, instance: u64);
}

/// What to do about tracefs when a session wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracefsPolicy {
    /// Use it where it is mounted.
    AsFound,
    /// Mount it at its usual place if it is not.
    MountIfMissing,
}

/// How the producer is to work.
pub struct Setup {
    /// Version line, shown in the state of the service.
    pub sdk_version: &'static str,
    /// Where changes to tracefs are noted, so that they can be put back after a crash.
    pub journal_dir: Option<JournalDir>,
    /// See [`TracefsPolicy`].
    pub tracefs: TracefsPolicy,
    /// Where lines for the log go.
    pub log: Box<dyn Log>,
    /// Who raises the daemon's priority. Ends with the connection.
    pub priority: Box<dyn Priority>,
    /// Set, by a signal's handler, when the daemon is to end: nobody waits for the service any more.
    pub ending: Arc<AtomicBool>,
}

/// What came of serving the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing that concerns the daemon.
    Served,
    /// The service now knows all data sources. Comes once.
    Registered,
}

/// The connection, and what waits to be sent over it. Shared with the arbiter's notifier, since a writer that waits for
/// a chunk has to have its own commits sent: the daemon's one thread is the writer's.
struct Link {
    endpoint: ProducerEndpoint,
    arbiter: Weak<Arbiter>,
    /// The arbiter has requests to be sent.
    requests_due: bool,
    /// See [`Setup::ending`].
    ending: Arc<AtomicBool>,
}

impl Link {
    /// A writer waits for the service: sends what would help, and ends the wait if there is nothing to wait for.
    fn help_stalled_writer(&mut self) {
        self.pump();
        if (self.ending.load(Ordering::Relaxed) || self.is_hung_up())
            && let Some(arbiter) = self.arbiter.upgrade()
        {
            arbiter.close();
        }
    }

    /// Whether the service has closed its end. What it said before stays to be read.
    fn is_hung_up(&self) -> bool {
        let fd = self.endpoint.as_fd();
        let mut polled = [PollFd::new(&fd, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    fn pump(&mut self) {
        self.endpoint.flush();
        // Where there is no room now the socket is full, and will say when it no longer is.
        if self.requests_due
            && self.endpoint.outgoing_room() >= ROOM_FOR_REQUESTS
            && let Some(arbiter) = self.arbiter.upgrade()
        {
            self.requests_due = false;
            for request in arbiter.take_requests() {
                // Queued, or the connection is over, of which there is an event to come.
                let _ = self.endpoint.send(request);
            }
            self.endpoint.flush();
        }
    }
}

#[derive(Clone)]
struct SharedLink(Arc<Mutex<Link>>);

impl SharedLink {
    fn lock(&self) -> MutexGuard<'_, Link> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notify for SharedLink {
    fn wake(&self, wake: Wake) {
        let mut link = self.lock();
        link.requests_due = true;
        match wake {
            // Everything that runs in the daemon ends with a pump.
            Wake::Within(_) | Wake::Now => {}
            // Unless it is a long one, in which the memory would fill up and the next writer have to wait.
            Wake::HalfFull => link.pump(),
            Wake::Stalled => link.help_stalled_writer(),
        }
    }
}

/// A trace writer as data sources see it.
struct Sink(TraceWriter);

impl PacketSink for Sink {
    fn write_packet(&mut self, packet: &[u8]) {
        self.0.write_packet(packet);
    }

    fn losses(&self) -> u64 {
        self.0.losses()
    }
}

#[derive(Default)]
struct FtraceSinks(BTreeMap<FtraceSessionId, Sink>);

impl SessionSinks for FtraceSinks {
    fn sink(&mut self, session: FtraceSessionId) -> Option<&mut dyn PacketSink> {
        self.0.get_mut(&session).map(|sink| sink as &mut dyn PacketSink)
    }
}

/// What an instance is.
enum Kind {
    Ftrace,
    /// Threads that ftrace sees are described by it.
    ProcessStats(Box<ProcessStats>),
    SysStats(Box<SysStats>),
    SystemInfo(SystemInfo),
    /// Its config cannot be carried out, so it records nothing. The service is never told that it started, so nobody takes it
    /// for a recording; a stop is acknowledged at once. Holds the sentence for the trace, if the data source's packets have a
    /// field for one.
    Broken(Option<String>),
}

struct Instance {
    session: u64,
    target: BufferId,
    kind: Kind,
    /// Present while it runs, except for ftrace, whose sinks are together.
    sink: Option<Sink>,
}

impl Instance {
    fn source(&mut self) -> Option<&mut dyn DataSource> {
        match &mut self.kind {
            Kind::ProcessStats(source) => Some(source.as_mut()),
            Kind::SysStats(source) => Some(source.as_mut()),
            Kind::SystemInfo(source) => Some(source),
            Kind::Ftrace | Kind::Broken(_) => None,
        }
    }

    /// The data source with its sink, while it runs.
    fn running(&mut self) -> Option<(&mut dyn DataSource, &mut Sink)> {
        let sink = self.sink.as_mut()?;
        match &mut self.kind {
            Kind::ProcessStats(source) => Some((source.as_mut(), sink)),
            Kind::SysStats(source) => Some((source.as_mut(), sink)),
            Kind::SystemInfo(source) => Some((source, sink)),
            Kind::Ftrace | Kind::Broken(_) => None,
        }
    }

    fn take_notices(&mut self) -> Vec<String> {
        match &mut self.kind {
            Kind::ProcessStats(source) => source.take_notices().iter().map(ToString::to_string).collect(),
            Kind::SysStats(source) => source.take_notices().iter().map(ToString::to_string).collect(),
            Kind::SystemInfo(source) => source.take_notices().iter().map(ToString::to_string).collect(),
            Kind::Ftrace | Kind::Broken(_) => Vec::new(),
        }
    }
}

/// The data sources of this machine, connected to a service.
pub struct Probes {
    link: SharedLink,
    arbiter: Option<Arc<Arbiter>>,
    instances: BTreeMap<DataSourceInstanceId, Instance>,
    ftrace: Option<FtraceController>,
    ftrace_sinks: FtraceSinks,
    journal_dir: Option<JournalDir>,
    tracefs: TracefsPolicy,
    roots: KernelRoots,
    log: Box<dyn Log>,
    priority: Box<dyn Priority>,
}

impl Probes {
    /// Connects to the service at `address`.
    ///
    /// # Errors
    /// If nobody listens there, or the socket may not be used.
    pub fn connect(address: &Address, setup: Setup) -> Result<Probes, ConnectError> {
        let options = ProducerOptions {
            name: PRODUCER_NAME.to_owned(),
            sdk_version: setup.sdk_version.to_owned(),
            page_size_hint: SMB_PAGE_SIZE,
            shared_memory_size_hint: SMB_SIZE,
            // Upstream's probes have it off. With it, what a killed daemon had written is not lost: a drain fills a chunk
            // in part, and nothing is committed before it is full or somebody asks for a flush.
            scraping: Scraping::Enabled,
            shared_memory: None,
        };
        let mut endpoint = ProducerEndpoint::connect(address, options)?;
        endpoint.flush();
        let link = Link {
            endpoint,
            arbiter: Weak::new(),
            requests_due: false,
            ending: setup.ending,
        };
        Ok(Probes {
            link: SharedLink(Arc::new(Mutex::new(link))),
            arbiter: None,
            instances: BTreeMap::new(),
            ftrace: None,
            ftrace_sinks: FtraceSinks::default(),
            journal_dir: setup.journal_dir,
            tracefs: setup.tracefs,
            roots: KernelRoots::default(),
            log: setup.log,
            priority: setup.priority,
        })
    }

    /// The socket to watch, for as long as this connection lasts.
    ///
    /// # Errors
    /// If no descriptor is left for the copy that the daemon's loop watches.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.link.lock().endpoint.as_fd().try_clone_to_owned()
    }

    /// What to watch the socket for.
    pub fn interest(&self) -> Interest {
        self.link.lock().endpoint.interest()
    }

    /// More descriptors to watch: kernel buffers that have filled up. Changes when data sources start or stop.
    pub fn watermark_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ftrace.iter().flat_map(FtraceController::watermark_fds)
    }

    /// When [`Probes::on_deadline`] wants to be called, in boot time.
    pub fn next_deadline(&self) -> Option<BootTime> {
        let sources = self
            .instances
            .values()
            .filter_map(|instance| match &instance.kind {
                _ if instance.sink.is_none() => None,
                Kind::ProcessStats(source) => source.next_deadline(),
                Kind::SysStats(source) => source.next_deadline(),
                Kind::SystemInfo(source) => source.next_deadline(),
                Kind::Ftrace | Kind::Broken(_) => None,
            });
        sources
            .chain(self.ftrace.as_ref().and_then(FtraceController::next_deadline))
            .min()
    }

    /// The socket is readable or writable: does what the service says.
    ///
    /// # Errors
    /// If the connection is over. Drop this value then.
    pub fn on_socket(&mut self, now: BootTime) -> Result<Progress, Ended> {
        let mut progress = Progress::Served;
        {
            let mut link = self.link.lock();
            link.endpoint.on_readable();
        }
        loop {
            let event = self.link.lock().endpoint.next_event();
            match event {
                None => break,
                Some(ProducerEvent::Connected(_)) => self.register(),
                Some(ProducerEvent::Command(command)) => self.command(command, now)?,
                Some(ProducerEvent::RequestFailed { method, reason }) => {
                    self.log.warning(&format!("{}: {reason}", method.name()));
                }
                // The one that follows the registrations.
                Some(ProducerEvent::Synced(_)) => progress = Progress::Registered,
                Some(ProducerEvent::Committed(_)) => {}
                Some(ProducerEvent::Disconnected(reason)) => return Err(reason.into()),
            }
        }
        self.link.lock().pump();
        Ok(progress)
    }

    /// The deadline has passed: samples what is due.
    pub fn on_deadline(&mut self, now: BootTime) {
        let due = |deadline: Option<BootTime>| deadline.is_some_and(|deadline| deadline <= now);
        if let Some(controller) = &mut self.ftrace
            && due(controller.next_deadline())
        {
            controller.drain(now, &mut self.ftrace_sinks);
            self.pass_on_threads(now);
            self.pass_on_incidents();
        }
        for instance in self.instances.values_mut() {
            if let Some((source, sink)) = instance.running()
                && due(source.next_deadline())
            {
                source.on_deadline(now, sink);
                for notice in instance.take_notices() {
                    self.log.warning(&notice);
                }
            }
        }
        self.link.lock().pump();
    }

    /// One of the [`Probes::watermark_fds`] is readable.
    pub fn on_watermark(&mut self, now: BootTime) {
        if let Some(controller) = &mut self.ftrace {
            controller.drain_past_watermark(now, &mut self.ftrace_sinks);
            self.pass_on_threads(now);
            self.pass_on_incidents();
        }
        self.link.lock().pump();
    }

    fn register(&mut self) {
        let descriptor = |name: &str, clears_incremental_state: bool| DataSourceDescriptor {
            name: Some(name.to_owned()),
            will_notify_on_start: Some(true),
            will_notify_on_stop: Some(true),
            handles_incremental_state_clear: clears_incremental_state.then_some(true),
            ..Default::default()
        };
        let descriptors = [
            ftrace::descriptor(),
            descriptor(
                process_stats::NAME,
                process_stats::HANDLES_INCREMENTAL_STATE_CLEAR,
            ),
            descriptor(sys_stats::NAME, sys_stats::HANDLES_INCREMENTAL_STATE_CLEAR),
            descriptor(system_info::NAME, system_info::HANDLES_INCREMENTAL_STATE_CLEAR),
        ];
        self.log.info("connected to the service");
        let mut link = self.link.lock();
        for descriptor in descriptors {
            // If it cannot be queued the connection is over, of which there is an event to come.
            let _ = link.endpoint.register_data_source(descriptor);
        }
        let _ = link.endpoint.sync();
    }

    fn command(&mut self, command: ProducerCommand, now: BootTime) -> Result<(), Ended> {
        match command {
            ProducerCommand::SetupTracing(offer) => self.set_up_memory(offer)?,
            ProducerCommand::SetupDataSource(setup) => self.set_up(&setup, now),
            ProducerCommand::StartDataSource(setup) => self.start(setup.instance, now),
            ProducerCommand::StopDataSource(instance) => self.stop(instance, now),
            ProducerCommand::Flush(flush) => self.flush(&flush, now),
            ProducerCommand::ClearIncrementalState(instances) => {
                for id in instances {
                    if let Some(source) = self.instances.get_mut(&id).and_then(Instance::source) {
                        source.clear_incremental_state();
                    }
                }
            }
        }
        Ok(())
    }

    fn set_up_memory(&mut self, offer: SharedMemoryOffer) -> Result<(), Ended> {
        let failed = |error: &dyn std::fmt::Display| Ended::SharedMemory(error.to_string());
        let pages_of = |size: u32| {
            PageSize::new(size as usize)
                .ok_or_else(|| Ended::SharedMemory(format!("{size} bytes are no page size")))
        };
        let over = |memory: Arc<SharedMemory>, page_size: u32| -> Result<_, Ended> {
            let smb = ProducerSmb::new(memory, pages_of(page_size)?).map_err(|error| failed(&error))?;
            Ok(Arbiter::new(smb, Partitioning::ByWriters, self.link.clone()))
        };
        let arbiter = match offer {
            SharedMemoryOffer::FromService { fd, page_size } => {
                let memory =
                    SharedMemory::attach(fd, Peer::Service, MAX_SMB_SIZE).map_err(|error| failed(&error))?;
                over(Arc::new(memory), page_size)?
            }
            SharedMemoryOffer::InProcess { memory, page_size } => over(memory, page_size)?,
            SharedMemoryOffer::Emulated { page_size } => {
                Arbiter::emulating(pages_of(page_size)?, Partitioning::ByWriters, self.link.clone())
                    .map_err(|error| failed(&error))?
            }
            SharedMemoryOffer::Ours => {
                return Err(Ended::SharedMemory("this producer has offered none".into()));
            }
        };
        self.link.lock().arbiter = Arc::downgrade(&arbiter);
        self.arbiter = Some(arbiter);
        Ok(())
    }

    fn set_up(&mut self, setup: &DataSourceSetup, now: BootTime) {
        let config = &setup.config;
        let name = config.name.as_deref().unwrap_or_default();
        let kind = match name {
            ftrace::NAME => match self.set_up_ftrace(setup, now) {
                Ok(()) => Ok(Kind::Ftrace),
                Err(error) => {
                    let trouble = format!("{} could not be set up: {error}", ftrace::NAME);
                    self.log.warning(&trouble);
                    Ok(Kind::Broken(Some(trouble)))
                }
            },
            process_stats::NAME => ProcessStats::from_config(config, &self.roots)
                .map(|source| Kind::ProcessStats(Box::new(source)))
                .map_err(|error| error.to_string()),
            sys_stats::NAME => SysStats::from_config(config, &self.roots)
                .map(|source| Kind::SysStats(Box::new(source)))
                .map_err(|error| error.to_string()),
            system_info::NAME => Ok(Kind::SystemInfo(SystemInfo::from_config(config, &self.roots))),
            _ => Err("this producer has no such data source".to_owned()),
        };
        let kind = kind.unwrap_or_else(|error| {
            self.log.warning(&format!("{name} could not be set up: {error}"));
            Kind::Broken(None)
        });
        let boost = &config.priority_boost;
        if boost.is_set()
            && !matches!(kind, Kind::Broken(_))
            && let Err(error) = self.priority.raise(setup.instance.0, boost)
        {
            self.log
                .warning(&format!("{name} is recorded at the usual priority: {error}"));
        }
        let instance = Instance {
            session: config.tracing_session_id.unwrap_or_default(),
            target: BufferId(config.target_buffer.unwrap_or_default() as u16),
            kind,
            sink: None,
        };
        self.instances.insert(setup.instance, instance);
    }

    fn set_up_ftrace(&mut self, setup: &DataSourceSetup, now: BootTime) -> Result<(), String> {
        if self.ftrace.is_none() {
            let tracefs = self.find_tracefs().map_err(|error| error.to_string())?;
            self.ftrace = Some(FtraceController::new(tracefs, self.journal_dir.clone()));
        }
        let Some(controller) = &mut self.ftrace else {
            return Ok(());
        };
        let id = FtraceSessionId(setup.instance.0);
        let report = controller
            .setup_session(id, &setup.config.ftrace_config, now)
            .map_err(|error| error.to_string())?;
        for warning in &report.warnings {
            self.log.warning(&format!("{}: {warning}", ftrace::NAME));
        }
        Ok(())
    }

    fn find_tracefs(&self) -> Result<Tracefs, TracefsError> {
        match (Tracefs::find(), self.tracefs) {
            (Err(TracefsError::NotMounted), TracefsPolicy::MountIfMissing) => {
                let tracefs = Tracefs::mount()?;
                self.log
                    .warning(&format!("mounted tracefs at {}", tracefs.root().display()));
                Ok(tracefs)
            }
            (found, _) => found,
        }
    }

    fn start(&mut self, id: DataSourceInstanceId, now: BootTime) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        if let Kind::Broken(trouble) = &mut instance.kind {
            if let Some(trouble) = trouble.take() {
                let target = instance.target;
                self.tell(target, now, &trouble);
            }
            return;
        }
        match self.try_to_start(id, now) {
            Ok(()) => {
                let _ = self.link.lock().endpoint.notify_data_source_started(id);
            }
            // As upstream: who waits for it is not told that all is well.
            Err(trouble) => {
                self.log.warning(&trouble);
                self.break_down(id, trouble, now);
            }
        }
    }

    fn try_to_start(&mut self, id: DataSourceInstanceId, now: BootTime) -> Result<(), String> {
        let Some(instance) = self.instances.get_mut(&id) else {
            return Err(format!("data source instance {} is not set up", id.0));
        };
        let writer = match &self.arbiter {
            Some(arbiter) => arbiter
                .create_trace_writer(instance.target, BufferExhaustedPolicy::StallThenDrop)
                .map_err(|error| error.to_string()),
            None => Err("the service has sent no shared memory".to_owned()),
        };
        let mut sink = Sink(writer.map_err(|error| format!("a data source could not be started: {error}"))?);
        if let Kind::Ftrace = instance.kind {
            let session = FtraceSessionId(id.0);
            let Some(controller) = &mut self.ftrace else {
                return Err(format!("{} is not set up", ftrace::NAME));
            };
            let warnings = controller
                .start_session(session, now, &mut sink)
                .map_err(|error| format!("{} could not be started: {error}", ftrace::NAME))?;
            self.ftrace_sinks.0.insert(session, sink);
            for warning in warnings {
                self.log.warning(&format!("{}: {warning}", ftrace::NAME));
            }
            return Ok(());
        }
        if let Some(source) = instance.source() {
            source.start(now, &mut sink);
        }
        // What is told once, at the start, must not wait for the writer to have more to say.
        sink.0.flush();
        instance.sink = Some(sink);
        for notice in instance.take_notices() {
            self.log.warning(&notice);
        }
        Ok(())
    }

    /// The instance does nothing from now on, and what it had of the kernel is given back.
    fn break_down(&mut self, id: DataSourceInstanceId, trouble: String, now: BootTime) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        let target = instance.target;
        let kind = std::mem::replace(&mut instance.kind, Kind::Broken(None));
        self.priority.lower(id.0);
        if let (Kind::Ftrace, Some(controller)) = (kind, &mut self.ftrace) {
            for error in controller.stop_session(FtraceSessionId(id.0), now, &mut self.ftrace_sinks) {
                self.log.warning(&format!("{}: {error}", ftrace::NAME));
            }
            self.tell(target, now, &trouble);
        }
    }

    /// Tells the trace of a trouble with ftrace. It uses a new writer each time, because upstream's readers take only one such packet from
    /// each sequence.
    fn tell(&self, target: BufferId, now: BootTime, trouble: &str) {
        let Some(arbiter) = &self.arbiter else { return };
        match arbiter.create_trace_writer(target, BufferExhaustedPolicy::StallThenDrop) {
            Ok(mut writer) => {
                writer.packet(|packet| encode_trouble(now, trouble, packet));
            }
            Err(error) => self.log.warning(&format!("the trace is not told of it: {error}")),
        }
    }

    fn stop(&mut self, id: DataSourceInstanceId, now: BootTime) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        if let (Kind::Ftrace, Some(controller)) = (&instance.kind, &mut self.ftrace) {
            let session = FtraceSessionId(id.0);
            for error in controller.stop_session(session, now, &mut self.ftrace_sinks) {
                self.log.warning(&format!("{}: {error}", ftrace::NAME));
            }
            self.ftrace_sinks.0.remove(&session);
            self.pass_on_incidents();
        }
        let Some(mut instance) = self.instances.remove(&id) else {
            return;
        };
        if let Some((source, sink)) = instance.running() {
            source.stop(now, sink);
        }
        // Its writer goes, and with it the last chunk, before the service hears that it has stopped.
        drop(instance);
        self.priority.lower(id.0);
        let mut link = self.link.lock();
        link.pump();
        let _ = link.endpoint.notify_data_source_stopped(id);
    }

    fn flush(&mut self, flush: &Flush, now: BootTime) {
        // Ftrace first: the threads it tells of are described by the others, in the same flush.
        for id in &flush.instances {
            let session = FtraceSessionId(id.0);
            if let (Some(controller), true) = (&mut self.ftrace, self.ftrace_sinks.0.contains_key(&session)) {
                controller.flush(session, now, &mut self.ftrace_sinks);
            }
        }
        self.pass_on_threads(now);
        self.pass_on_incidents();
        for id in &flush.instances {
            if let Some(sink) = self.ftrace_sinks.0.get_mut(&FtraceSessionId(id.0)) {
                sink.0.flush();
            }
            if let Some((source, sink)) = self.instances.get_mut(id).and_then(Instance::running) {
                source.flush(now, sink);
                sink.0.flush();
            }
        }
        match &self.arbiter {
            Some(arbiter) => arbiter.acknowledge_flush(flush.id.0),
            None => drop(self.link.lock().endpoint.acknowledge_flush(flush.id)),
        }
    }

    /// Tells log and traces of what others did to ftrace.
    fn pass_on_incidents(&mut self) {
        let Some(controller) = &mut self.ftrace else {
            return;
        };
        for incident in controller.take_incidents() {
            let line = format!("{}: {}", ftrace::NAME, incident.text);
            match incident.weight {
                Weight::Remark => self.log.info(&line),
                Weight::Trouble => {
                    self.log.warning(&line);
                    let instance = self.instances.get(&DataSourceInstanceId(incident.session.0));
                    if let Some(target) = instance.map(|instance| instance.target) {
                        self.tell(target, incident.noticed, &incident.text);
                    }
                }
            }
        }
    }

    /// Tells each session's process_stats of the threads that its ftrace has seen.
    fn pass_on_threads(&mut self, now: BootTime) {
        let Some(controller) = &mut self.ftrace else {
            return;
        };
        let ftrace_instances = self
            .instances
            .iter()
            .filter(|(_, instance)| matches!(instance.kind, Kind::Ftrace));
        let sessions: Vec<(u64, FtraceSessionId)> = ftrace_instances
            .map(|(id, instance)| (instance.session, FtraceSessionId(id.0)))
            .collect();
        for (session, id) in sessions {
            let threads = controller.take_threads(id);
            for instance in self
                .instances
                .values_mut()
                .filter(|instance| instance.session == session)
            {
                if let (Kind::ProcessStats(source), Some(sink)) = (&mut instance.kind, &mut instance.sink) {
                    source.on_threads_renamed(&threads.renamed);
                    source.on_threads_seen(&threads.seen, now, sink);
                    if !threads.opened_files.is_empty() {
                        source.on_files_seen(&threads.opened_files, now, sink);
                    }
                }
            }
        }
    }
}

/// How long to wait before connecting again: longer each time, as upstream does.
#[derive(Clone, Copy, Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff(Duration::from_millis(100))
    }
}

impl Backoff {
    /// The time to wait now.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.0;
        self.0 = (delay * 2).min(Duration::from_secs(30));
        delay
    }
}
