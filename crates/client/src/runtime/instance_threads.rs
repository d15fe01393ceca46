//! Data sources whose reading may take long: each instance has a thread.
//!
//! [`ThreadPerInstance`] is the data source. It asks a [`Threaded`], which judges configs, and says what the thread of an instance does. The
//! thread gets what the runtime says as [`Command`]s, in the order in which they came; dropping a command's `done` tells the service. If a thread is
//! gone, its commands are done at once. If it panics, the program's log says that nothing more is recorded.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferretto_ipc::channel::{Nothing, Receiver, Sender, channel};
use ferretto_ipc::reactor::{Reactor, ReactorError, Waker};
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor};

use super::ProducerProgram;
use crate::arbiter::BufferExhaustedPolicy;
use crate::data_source::{Acknowledge, DataSource, Instance, Output, Slot};
use crate::trace_writer::TraceWriter;

/// Instances of a data source at a time.
const MOST_INSTANCES: usize = 64;

/// A message of the runtime to an instance.
#[derive(Debug)]
pub struct Command {
    /// The command.
    pub what: What,
    /// To be dropped when it is done.
    pub done: Acknowledge,
}

/// See [`Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Write out what there is so far.
    Flush,
    /// As a flush, and then no more.
    Stop,
    /// Repeat what later packets refer to. Nobody waits for it.
    ClearIncrementalState,
}

/// The receiving end of a thread's commands, with the event loop that they wake.
#[derive(Debug)]
pub struct Inbox {
    /// The thread's event loop.
    pub reactor: Reactor,
    commands: Receiver<Command>,
}

impl Inbox {
    /// An inbox and the way into it.
    ///
    /// # Errors
    /// If the system has no event loop for it.
    pub fn new() -> Result<(Sender<Command>, Inbox), ReactorError> {
        let (sender, commands) = channel();
        let reactor = Reactor::new()?;
        Ok((sender, Inbox { reactor, commands }))
    }

    /// The next command, if there is one.
    ///
    /// # Errors
    /// [`Nothing::SoFar`] if no command waits; [`Nothing::EverAgain`] if the data source is gone.
    pub fn try_receive(&self) -> Result<Command, Nothing> {
        self.commands.try_receive()
    }

    /// Waits for the command to stop; others are done at once. `None` if the data source is gone.
    pub fn await_stop(&self) -> Option<Acknowledge> {
        while let Some(command) = self.commands.receive() {
            if command.what == What::Stop {
                return Some(command.done);
            }
        }
        None
    }
}

/// The way to a thread.
struct Running {
    commands: Sender<Command>,
    waker: Waker,
}

/// The work of an instance's thread, with its commands and the writer of its packets. It drops the [`Acknowledge`] when the instance has started.
pub type Work = Box<dyn FnOnce(Inbox, TraceWriter, Acknowledge) + Send>;

/// A data source that reads on threads. [`ThreadPerInstance`] drives it.
pub trait Threaded: Send + Sync {
    /// The name under which it is registered.
    const NAME: &'static str;

    /// The name of its threads.
    const THREAD: &'static str;

    /// A config of it, judged.
    type Config: Send;

    /// As [`DataSource::descriptor`].
    fn descriptor(&self) -> DataSourceDescriptor;

    /// Judges the config of an instance.
    ///
    /// # Errors
    /// As [`DataSource::set_up`].
    fn judge(&self, instance: &Instance) -> Result<Self::Config, String>;

    /// Returns what the thread of an instance does.
    ///
    /// # Errors
    /// As [`DataSource::start`].
    fn work(&self, instance: &Instance, config: Self::Config) -> Result<Work, String>;
}

/// See the [module](self).
pub struct ThreadPerInstance<S: Threaded> {
    source: S,
    threads: InstanceThreads,
    /// Configs of instances that have not started.
    prepared: Mutex<BTreeMap<Slot, S::Config>>,
}

impl<S: Threaded> ThreadPerInstance<S> {
    /// A data source without instances.
    pub fn new(program: Arc<dyn ProducerProgram>, source: S) -> ThreadPerInstance<S> {
        ThreadPerInstance {
            source,
            threads: InstanceThreads::new(program, S::NAME),
            prepared: Mutex::default(),
        }
    }

    fn prepared(&self) -> MutexGuard<'_, BTreeMap<Slot, S::Config>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Threaded> DataSource for ThreadPerInstance<S> {
    fn descriptor(&self) -> DataSourceDescriptor {
        self.source.descriptor()
    }

    fn set_up(&self, instance: &Instance) -> Result<(), String> {
        let config = self.source.judge(instance)?;
        self.prepared().insert(instance.slot, config);
        Ok(())
    }

    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String> {
        let Some(config) = self.prepared().remove(&instance.slot) else {
            return Err("it was not set up".to_owned());
        };
        let work = self.source.work(instance, config)?;
        let writer = output.create_trace_writer().map_err(|error| error.to_string())?;
        self.threads.start(instance.slot, S::THREAD, move |inbox| {
            work(inbox, writer, started)
        })
    }

    fn stop(&self, slot: Slot, stopped: Acknowledge) {
        self.prepared().remove(&slot);
        self.threads.tell(slot, What::Stop, stopped);
    }

    fn flush(&self, slot: Slot, _flags: u64, flushed: Acknowledge) {
        self.threads.tell(slot, What::Flush, flushed);
    }

    fn clear_incremental_state(&self, slot: Slot) {
        self.threads
            .tell(slot, What::ClearIncrementalState, Acknowledge::new(|| {}));
    }

    /// A thread may wait, because what it reads is kept, or counted when it is not: by the kernel, by the journal, by the rings of clients.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::StallThenDrop
    }

    fn max_instances(&self) -> usize {
        MOST_INSTANCES
    }
}

/// The threads of a data source's instances. Only the runtime's thread uses it; it is behind a lock because data sources are shared.
struct InstanceThreads {
    program: Arc<dyn ProducerProgram>,
    /// The data source, for the log.
    source: &'static str,
    running: Mutex<BTreeMap<Slot, Running>>,
}

impl InstanceThreads {
    /// None so far. The program logs what happens to those of the data source with this name.
    fn new(program: Arc<dyn ProducerProgram>, source: &'static str) -> InstanceThreads {
        InstanceThreads {
            program,
            source,
            running: Mutex::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Slot, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of an instance.
    ///
    /// # Errors
    /// If the system has no thread or no event loop for it: a clause that says so.
    fn start(&self, slot: Slot, name: &str, work: impl FnOnce(Inbox) + Send + 'static) -> Result<(), String> {
        let (commands, inbox) = Inbox::new().map_err(|error| error.to_string())?;
        let waker = inbox.reactor.waker();
        let (program, source) = (self.program.clone(), self.source);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // With a panic all that `work` has is dropped, so nothing is seen half-changed. Its commands are done then.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(inbox))) {
                    let reason = reason(&*panic);
                    program.warning(&format!(
                        "{source}: the thread of a recording panicked ({reason}), so nothing more is recorded for it; please report this"
                    ));
                }
            })
            .map_err(|error| format!("there is no thread for it: {error}"))?;
        self.running().insert(slot, Running { commands, waker });
        Ok(())
    }

    /// Sends a command to an instance's thread. If there is none, `done` is dropped at once.
    fn tell(&self, slot: Slot, what: What, done: Acknowledge) {
        let mut running = self.running();
        let stopped = match what {
            What::Stop => running.remove(&slot),
            What::Flush | What::ClearIncrementalState => None,
        };
        if let Some(instance) = stopped.as_ref().or_else(|| running.get(&slot))
            && instance.commands.send(Command { what, done }).is_ok()
        {
            instance.waker.wake();
        }
    }
}

/// The message of a panic.
fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

#[cfg(test)]
mod tests;
