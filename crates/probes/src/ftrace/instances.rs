//! Connects `linux.ftrace` with the producer's runtime: each instance of the data source has one ftrace session.
//!
//! All instances share one `FtraceController`, because the machine has one ftrace. Sessions hand the threads and files of their events
//! to the `linux.process_stats` and the `linux.inode_file_map` of the same tracing session, which describe them in the trace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_client::arbiter::BufferExhaustedPolicy;
use ferretto_client::data_source::{Acknowledge, DataSource, Instance, Output, Slot, Trouble};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::probe::{BootTime, Probes};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};

use super::control::FtraceSessionId;
use super::data_source::{FlushId, FtraceController, NAME, Weight, descriptor};
use super::restore::JournalDir;
use super::stats::encode_trouble;
use super::tracefs::{Tracefs, TracefsError};
use super::watermarks::Watermarks;
use crate::inode_file_map::InodeFileMap;
use crate::pid_namespace;
use crate::process_stats::ProcessStats;
use ferretto_ipc::reactor::boot_now;

/// The way to treat tracefs when a session wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracefsPolicy {
    /// Use it where it is mounted.
    AsFound,
    /// Mount it at its usual place if it is not.
    MountIfMissing,
}

impl TracefsPolicy {
    /// Finds the tracefs of this machine. Mounting it puts a line into the log.
    pub(super) fn find(self, program: &dyn ProducerProgram) -> Result<Tracefs, TracefsError> {
        match (Tracefs::find(), self) {
            (Err(TracefsError::NotMounted), TracefsPolicy::MountIfMissing) => {
                let tracefs = Tracefs::mount()?;
                let line = format!("mounted tracefs at {}", tracefs.root().display());
                program.warning(&line);
                Ok(tracefs)
            }
            (found, _) => found,
        }
    }
}

/// Data sources that describe what events refer to, for the same tracing session.
pub struct Listeners {
    /// Describes threads and the files that they open.
    pub process_stats: Arc<Probes<ProcessStats>>,
    /// Finds the paths of files.
    pub inode_file_map: Arc<Probes<InodeFileMap>>,
}

/// See the [module](self).
pub struct Ftrace {
    program: Arc<dyn ProducerProgram>,
    listeners: Listeners,
    journal_dir: Option<JournalDir>,
    tracefs: TracefsPolicy,
    thread_ids: ThreadIds,
    watermarks: Option<Arc<Watermarks>>,
    /// Behind a lock because data sources are shared. Only the runtime's thread takes it.
    state: Mutex<State>,
}

/// Whether `/proc` has the threads of kernel events under the ids that the events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadIds {
    AsInProc,
    OtherThanInProc,
}

#[derive(Default)]
struct State {
    /// From the first session on.
    controller: Option<FtraceController>,
    /// The writers of sessions that have started.
    writers: BTreeMap<FtraceSessionId, TraceWriter>,
    instances: BTreeMap<Slot, Session>,
    /// The actions that wait for flushes to end.
    pending: BTreeMap<FlushId, AfterFlush>,
}

/// The purpose of a flush.
#[derive(Debug)]
enum AfterFlush {
    /// The service asked for it.
    Tell(Slot, Acknowledge),
    /// The instance stops.
    Stop(Slot, Acknowledge),
}

struct Session {
    id: FtraceSessionId,
    /// The tracing session that it is part of.
    tracing_session: u64,
    /// Present once the instance has started.
    output: Option<Output>,
}

impl std::fmt::Debug for Ftrace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ftrace").finish_non_exhaustive()
    }
}

impl Ftrace {
    /// Touches nothing of the kernel until the first session. With a `journal_dir`, [`super::restore::replay`] can put back the sessions'
    /// changes even after a crash.
    pub(crate) fn new(
        program: Arc<dyn ProducerProgram>,
        listeners: Listeners,
        journal_dir: Option<JournalDir>,
        tracefs: TracefsPolicy,
    ) -> Ftrace {
        let watermarks = Watermarks::new().unwrap_or_else(|error| {
            program.warning(&format!(
                "{NAME}: drain_buffer_percent will have no effect: {error}"
            ));
            None
        });
        Ftrace {
            program,
            listeners,
            journal_dir,
            tracefs,
            thread_ids: match pid_namespace::is_initial() {
                true => ThreadIds::AsInProc,
                false => ThreadIds::OtherThanInProc,
            },
            watermarks: watermarks.map(Arc::new),
            state: Mutex::default(),
        }
    }

    /// Readable when kernel buffers have filled up, for as long as this lives. `None` where this kernel does not report them.
    pub fn watermarks(&self) -> Option<&Watermarks> {
        self.watermarks.as_deref()
    }

    /// To be called when [`Ftrace::watermarks`] is readable.
    pub fn on_watermark(&self) {
        let now = boot_now();
        let state = &mut *self.state();
        if let Some(controller) = &mut state.controller {
            controller.drain_past_watermark(now, &mut state.writers);
            self.pass_on_what_was_seen(state, now);
            self.after_flushes(state, now);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warn(&self, what: impl std::fmt::Display) {
        self.program.warning(&format!("{NAME}: {what}"));
    }

    /// Ends a session, and puts back its kernel settings.
    fn end(&self, state: &mut State, id: FtraceSessionId) {
        if let Some(controller) = &mut state.controller {
            for error in controller.stop_session(id, boot_now()) {
                self.warn(error);
            }
        }
    }

    /// Carries out the actions that waited for flushes that are over.
    fn after_flushes(&self, state: &mut State, now: BootTime) {
        loop {
            let flushed = state
                .controller
                .as_mut()
                .map(FtraceController::take_flushed)
                .unwrap_or_default();
            if flushed.is_empty() {
                return;
            }
            for id in flushed {
                match state.pending.remove(&id) {
                    Some(AfterFlush::Tell(slot, flushed)) => {
                        self.hand_over(state, slot, now);
                        drop(flushed);
                    }
                    Some(AfterFlush::Stop(slot, stopped)) => {
                        self.pass_on_what_was_seen(state, now);
                        self.stop_now(state, slot);
                        drop(stopped);
                    }
                    None => {}
                }
            }
        }
    }

    /// Sends the packets that an instance has written.
    fn hand_over(&self, state: &mut State, slot: Slot, now: BootTime) {
        self.pass_on_what_was_seen(state, now);
        let Some(session) = state.instances.get(&slot) else {
            return;
        };
        if let Some(writer) = state.writers.get_mut(&session.id) {
            writer.flush();
        }
        // The threads and files above belong to the same flush, and the service may have asked their data sources first.
        self.listeners
            .process_stats
            .flush_session(session.tracing_session);
        self.listeners
            .inode_file_map
            .flush_session(session.tracing_session);
    }

    fn stop_now(&self, state: &mut State, slot: Slot) {
        let Some(id) = state.instances.get(&slot).map(|session| session.id) else {
            return;
        };
        self.end(state, id);
        self.pass_on_incidents(state);
        state.instances.remove(&slot);
        // Dropping the writer sends the last chunk, before the service hears that the instance has stopped.
        state.writers.remove(&id);
    }

    /// Passes threads and files to their data sources, and incidents to the log and to traces.
    fn pass_on_what_was_seen(&self, state: &mut State, now: BootTime) {
        let Some(controller) = &mut state.controller else {
            return;
        };
        for session in state.instances.values() {
            let threads = controller.take_threads(session.id);
            if self.thread_ids == ThreadIds::AsInProc {
                self.listeners
                    .process_stats
                    .for_session(session.tracing_session, |stats, sink| {
                        stats.on_threads_renamed(&threads.renamed);
                        stats.on_threads_seen(&threads.seen, now, sink);
                        if !threads.opened_files.is_empty() {
                            stats.on_files_seen(&threads.opened_files, now, sink);
                        }
                    });
                self.listeners
                    .inode_file_map
                    .for_session(session.tracing_session, |map, sink| {
                        map.on_files_seen(&threads.files, now, sink);
                    });
            }
        }
        self.pass_on_incidents(state);
    }

    /// Reports other programs' changes to ftrace in the log, and troubles also in the trace.
    fn pass_on_incidents(&self, state: &mut State) {
        let Some(controller) = &mut state.controller else {
            return;
        };
        for incident in controller.take_incidents() {
            let line = format!("{NAME}: {}", incident.text);
            if incident.weight == Weight::Remark {
                self.program.info(&line);
                continue;
            }
            self.program.warning(&line);
            let session = state
                .instances
                .values()
                .find(|session| session.id == incident.session);
            if let Some(output) = session.and_then(|session| session.output.as_ref()) {
                self.tell(output, incident.noticed, &incident.text);
            }
        }
    }

    /// Tells the trace of a trouble with ftrace. It uses a new writer each time, because upstream's readers take only one such packet from
    /// each sequence.
    fn tell(&self, output: &Output, noticed: BootTime, trouble: &str) {
        match output.create_trace_writer() {
            Ok(mut writer) => {
                writer.packet(|packet| encode_trouble(noticed, trouble, packet));
            }
            Err(error) => {
                let line = format!("the trace is not told of it: {error}");
                self.program.warning(&line);
            }
        }
    }
}

impl DataSource for Ftrace {
    fn descriptor(&self) -> DataSourceDescriptor {
        descriptor()
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        let state = &mut *self.state();
        let controller = match &mut state.controller {
            Some(controller) => controller,
            none => {
                let tracefs = self
                    .tracefs
                    .find(&*self.program)
                    .map_err(|error| error.to_string())?;
                none.insert(FtraceController::new(
                    tracefs,
                    self.journal_dir.clone(),
                    self.watermarks.clone(),
                ))
            }
        };
        let id = FtraceSessionId(instance.serial.into());
        let warnings = controller
            .setup_session(id, &instance.config.ftrace_config, boot_now())
            .map_err(|error| error.to_string())?;
        for warning in &warnings {
            self.warn(warning);
        }
        if self.thread_ids == ThreadIds::OtherThanInProc {
            self.warn(
                "kernel events name threads by the machine's ids, which this container's /proc does not have: they get no names, and their files no paths. \
                 Run traced_probes in the machine's pid namespace (docker run --pid=host)",
            );
        }
        let session = Session {
            id,
            tracing_session: instance.config.tracing_session_id.unwrap_or_default(),
            output: None,
        };
        state.instances.insert(instance.slot, session);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, _started: Acknowledge) -> Result<(), String> {
        let state = &mut *self.state();
        let id = FtraceSessionId(instance.serial.into());
        let started = start(state, id, &output);
        match started {
            Ok(warnings) => {
                if let Some(session) = state.instances.get_mut(&instance.slot) {
                    session.output = Some(output);
                }
                for warning in warnings {
                    self.warn(warning);
                }
                Ok(())
            }
            Err(error) => {
                self.end(state, id);
                state.instances.remove(&instance.slot);
                Err(error)
            }
        }
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        let now = boot_now();
        let state = &mut *self.state();
        let Some(id) = state.instances.get(&slot).map(|session| session.id) else {
            return;
        };
        if let Some(controller) = &mut state.controller {
            let flush = controller.flush_last(id, now, &mut state.writers);
            state.pending.insert(flush, AfterFlush::Stop(slot, stopped));
        }
        self.after_flushes(state, now);
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        let now = boot_now();
        let state = &mut *self.state();
        let Some(id) = state.instances.get(&slot).map(|session| session.id) else {
            return;
        };
        if let Some(controller) = &mut state.controller {
            let flush = controller.flush(id, now, &mut state.writers);
            state.pending.insert(flush, AfterFlush::Tell(slot, flushed));
        }
        self.after_flushes(state, now);
    }

    fn clear_incremental_state(&self, _slot: Slot) {
        // Every packet stands alone.
    }

    fn tell_trouble(&self, output: &Output, trouble: &Trouble) {
        self.tell(output, trouble.noticed, &trouble.to_string());
    }

    fn next_deadline(&self) -> Option<u64> {
        self.state()
            .controller
            .as_ref()
            .and_then(FtraceController::next_deadline)
    }

    fn on_deadline(&self) {
        let now = boot_now();
        let state = &mut *self.state();
        if let Some(controller) = &mut state.controller {
            controller.drain(now, &mut state.writers);
            self.pass_on_what_was_seen(state, now);
            self.after_flushes(state, now);
        }
    }

    /// Waiting loses no events, because the kernel's buffers go on recording.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }
}

/// Starts a session; returns warnings for the log.
fn start(state: &mut State, id: FtraceSessionId, output: &Output) -> Result<Vec<String>, String> {
    let controller = state.controller.as_mut().ok_or("it is not set up")?;
    let mut writer = output.create_trace_writer().map_err(|error| error.to_string())?;
    let warnings = controller
        .start_session(id, boot_now(), &mut writer)
        .map_err(|error| error.to_string())?;
    state.writers.insert(id, writer);
    Ok(warnings)
}
