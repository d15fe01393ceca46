//! The tracing service in this process: a driver of [`Service`] on the SDK's thread.
//!
//! Called by the muxer, which makes it, calls [`InProcess::handle_timeout`] in each turn of its loop and sleeps no longer
//! than [`InProcess::deadlines`]. [`InProcess::connect_producer`] and [`InProcess::connect_consumer`] give ends that have the
//! methods and events of the endpoints over a socket. What an end asks for is done before its method returns; what
//! follows for itself and for others waits as events until they are taken. Nothing here waits for anybody: trace files have threads of
//! their own, and a consumer reads in slices as large as a turn can bear.
//!
//! The memory that producers write into is shared memory as across processes, so that chunks are committed, scraped and freed
//! by the same rules; it is only mapped once.

mod consumer;
mod files;
mod machine;
mod producer;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferretto_client::producer::{Disconnect, ProducerEvent, ProducerOptions};
use ferretto_ipc::reactor::{Deadlines, Waker};
use ferretto_service::compression::Fit;
use ferretto_service::ordered::OrderedMap;
use ferretto_service::{ConsumerId, LogLevel, MachineId, Now, Output, ProducerId, Service, SessionId};

pub(crate) use consumer::Consumer;
use consumer::ConsumerLink;
use files::{Done, FileWriter, Files, TraceFile};
pub(crate) use producer::Producer;

/// Bytes of trace data that are on their way into a file at once.
const FILE_BATCH: usize = 1024 * 1024;

/// The service of this process, see the [module](self). Clones are the same service.
#[derive(Clone)]
pub(crate) struct InProcess {
    core: Arc<Mutex<Core>>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess")
    }
}

impl InProcess {
    /// A service with nobody connected. It and its producers say that they are of `machine`. `waker` is woken when a trace file has
    /// made progress: then [`InProcess::handle_timeout`] is due.
    pub(crate) fn new(machine: MachineId, waker: Waker) -> InProcess {
        let core = Core {
            service: Service::new(machine::identity(machine)),
            machine,
            producers: OrderedMap::new(),
            consumers: OrderedMap::new(),
            files: Files::new(waker),
            writers: OrderedMap::new(),
            files_of_clones: OrderedMap::new(),
            log: Vec::new(),
        };
        InProcess {
            core: Arc::new(Mutex::new(core)),
        }
    }

    /// Connects a producer of this process. Its first event is that it is connected.
    pub(crate) fn connect_producer(&self, options: ProducerOptions) -> Producer {
        Producer::connect(self.core.clone(), options)
    }

    /// Connects a consumer of this process. Its first event is that it is connected.
    pub(crate) fn connect_consumer(&self) -> Consumer {
        Consumer::connect(self.core.clone())
    }

    /// Does what is due: timers of the service, what follows from what was written into files. Returns lines for the log, also
    /// those of what clients did since; where they go, the service may be called again.
    pub(crate) fn handle_timeout(&self) -> Vec<(LogLevel, String)> {
        let now = machine::now();
        let mut core = lock(&self.core);
        core.service.handle_timeout(&now);
        core.carry_out(&now);
        core.files_progressed(&now);
        std::mem::take(&mut core.log)
    }

    /// When [`InProcess::handle_timeout`] is due, or events are to be taken: at once if any wait, or lines for the log.
    pub(crate) fn deadlines(&self) -> Deadlines {
        let core = lock(&self.core);
        let waiting = !core.log.is_empty()
            || core.producers.values().any(|events| !events.is_empty())
            || core.consumers.values().any(ConsumerLink::has_events);
        Deadlines {
            monotonic: if waiting {
                Some(0)
            } else {
                core.service.next_deadline()
            },
            boot: core.service.next_boot_deadline(),
        }
    }

    /// Whether sessions stream into files.
    pub(crate) fn has_files(&self) -> bool {
        !lock(&self.core).writers.is_empty()
    }

    /// Ends all sessions, because the process does. What is due for files is still written, as far as they take it within
    /// this time. Returns lines for the log.
    pub(crate) fn end(&self, patience: Duration) -> Vec<(LogLevel, String)> {
        let now = machine::now();
        let mut core = lock(&self.core);
        core.service.end_all_sessions(&now);
        core.carry_out(&now);
        let until = Instant::now() + patience;
        while !core.writers.is_empty() {
            let Some(done) = core.files.wait(until.saturating_duration_since(Instant::now())) else {
                let count = core.writers.len();
                core.warn(format!("{count} trace files take no more data and are cut short"));
                break;
            };
            core.file_progressed(done, &now);
        }
        std::mem::take(&mut core.log)
    }
}

/// The service and what belongs to its clients. Behind a lock, for the ends move between threads; it is taken on the SDK's thread
/// alone and so never waited for.
struct Core {
    service: Service,
    machine: MachineId,
    /// What producers have not taken yet.
    producers: OrderedMap<ProducerId, VecDeque<ProducerEvent>>,
    consumers: OrderedMap<ConsumerId, ConsumerLink>,
    files: Files,
    writers: OrderedMap<SessionId, FileWriter>,
    /// Files that came with requests for clones which are not made yet.
    files_of_clones: OrderedMap<SessionId, TraceFile>,
    /// Lines that were not taken yet.
    log: Vec<(LogLevel, String)>,
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    // A panic of the service would leave it as consistent as a panic of the daemon's connections does.
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Does what the service wants done.
    fn carry_out(&mut self, now: &Now) {
        while let Some(output) = self.service.poll() {
            match output {
                Output::ToProducer(id, command) => self.command(id, command, now),
                Output::DisconnectProducer { producer, rule } => {
                    let line = format!("a producer of this process is disconnected: it {rule}");
                    self.close_producer(producer, line, now);
                }
                Output::TracingDisabled {
                    consumer,
                    session,
                    error,
                } => {
                    self.tell_consumer(consumer, |link| link.tracing_disabled(session, error));
                }
                Output::FlushDone {
                    consumer,
                    token,
                    outcome,
                } => {
                    self.tell_consumer(consumer, |link| link.flush_done(token, outcome));
                }
                Output::Observed { consumer, events } => {
                    self.tell_consumer(consumer, |link| link.observed(events));
                }
                Output::FileDue(session) => self.write_file(session, now),
                Output::SyncFile(session) => {
                    if let Some(file) = self.writers.get(&session) {
                        file.sync();
                    }
                }
                Output::CloseFile(session) => match self.writers.get(&session) {
                    Some(file) => file.close(),
                    None => self.service.file_closed(session, Ok(()), now),
                },
                Output::SetPriority {
                    boost: Some(boost),
                    on_behalf_of,
                } => {
                    let error = "it runs on a thread of this process, which only the program may do";
                    self.service
                        .priority_not_set(Some(boost), on_behalf_of, error, now);
                }
                Output::SetPriority { boost: None, .. } => {}
                Output::SessionCloned {
                    consumer,
                    clone,
                    result,
                } => {
                    self.files_of_clones.remove(&clone);
                    self.tell_consumer(consumer, |link| link.session_cloned(clone, result));
                }
                Output::CopyFile { from, to } => match self.writers.get(&from) {
                    Some(original) => original.share(to),
                    None => self.service.file_copied(to, Err("it is closed".into()), now),
                },
                Output::AbandonFile(session) => drop(self.writers.remove(&session)),
                Output::Log(level, line) => self.log.push((level, line)),
            }
        }
    }

    fn warn(&mut self, line: String) {
        self.log.push((LogLevel::Warning, line));
    }

    fn tell_consumer(&mut self, id: ConsumerId, tell: impl FnOnce(&mut ConsumerLink)) {
        if let Some(link) = self.consumers.get_mut(&id) {
            tell(link);
        }
    }

    fn tell_producer(&mut self, id: ProducerId, event: ProducerEvent) {
        if let Some(events) = self.producers.get_mut(&id) {
            events.push_back(event);
        }
    }

    /// Ends a producer's connection; the producer is told.
    fn close_producer(&mut self, id: ProducerId, why: String, now: &Now) {
        self.warn(why);
        self.tell_producer(id, ProducerEvent::Disconnected(Disconnect::Closed));
        self.service.disconnect_producer(id, now);
    }

    fn open_file(&mut self, session: SessionId, file: TraceFile) {
        match self.files.writer(session, file) {
            Ok(writer) => drop(self.writers.insert(session, writer)),
            // The session ends with the first batch, which finds no file.
            Err(error) => self.warn(format!("cannot start the thread of a trace file: {error}")),
        }
    }

    /// Hands the next batch for a file to its thread.
    fn write_file(&mut self, session: SessionId, now: &Now) {
        self.service
            .local_time_offset(crate::system::timezone_offset_minutes());
        let begun = Instant::now();
        let Some(batch) = self.service.read_for_file(session, FILE_BATCH, now) else {
            return;
        };
        let (filtered, took) = (batch.filtered, begun.elapsed());
        match self.writers.get(&session) {
            Some(file) => file.write(&batch),
            None => {
                let error = "its thread could not be started".into();
                self.service.file_written(session, Err(error), now);
            }
        }
        if filtered.is_some() {
            self.service.filtering_took(session, took);
        }
    }

    /// Takes note of what the threads of files have done.
    fn files_progressed(&mut self, now: &Now) {
        while let Some(done) = self.files.next_done() {
            self.file_progressed(done, now);
        }
    }

    fn file_progressed(&mut self, done: Done, now: &Now) {
        match done {
            Done::Written(session, Ok((bytes, Fit::Whole))) => {
                self.service.file_written(session, Ok(bytes), now);
            }
            Done::Written(session, Ok((bytes, Fit::Cut))) => self.service.file_full(session, bytes, now),
            Done::Written(session, Err(error)) => self.service.file_written(session, Err(error), now),
            Done::Shared(clone, original) => self.copy_file(clone, original, now),
            Done::Copied(clone, result) => {
                if result.is_err() {
                    self.writers.remove(&clone);
                }
                self.service
                    .file_copied(clone, result.map_err(|error| error.to_string()), now);
            }
            Done::NotSynced(session, error) => self.service.file_sync_failed(session, &error.to_string()),
            Done::Closed(session, result) => {
                self.writers.remove(&session);
                self.service
                    .file_closed(session, result.map_err(|error| error.to_string()), now);
            }
        }
        self.carry_out(now);
    }

    /// Has the file of a clone begin with what the file of the original holds.
    fn copy_file(&mut self, clone: SessionId, shared: io::Result<(File, u64)>, now: &Now) {
        let writer = shared.and_then(|original| {
            // The consumer may have gone, and its file with it.
            let file = self
                .files_of_clones
                .remove(&clone)
                .ok_or(io::ErrorKind::NotFound)?;
            let writer = self.files.writer(clone, file)?;
            writer.copy(original);
            Ok(writer)
        });
        match writer {
            Ok(writer) => drop(self.writers.insert(clone, writer)),
            Err(error) => self.service.file_copied(clone, Err(error.to_string()), now),
        }
    }
}
