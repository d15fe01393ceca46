//! The thread of an instance: opens the journal, reads new entries, and carries out the runtime's commands.
//!
//! [`super::Journald`] starts the thread and sends it commands. **Pace:** during a flood it reads [`TURN_BYTES`] in each [`TURN`], so that
//! shared memory is always left for other data sources. The journal itself keeps the rest meanwhile. **Flushes** read only the entries that the
//! journal had received when the flush was requested, so that a flood does not delay them either.

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::data_source::{self, Acknowledge};
use ferretto_client::runtime::ProducerProgram;
use ferretto_client::runtime::instance_threads::{Command, Inbox, What};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_ipc::channel::Nothing;
use ferretto_ipc::reactor::{Deadline, Events, Interest, ReactorError, Token, boot_now, monotonic_now};

use super::NAME;
use super::entry::{Filters, LONGEST_FIELD};
use super::follow::{FollowError, follow};
use super::libsystemd;
use super::reader::{Progress, Reader};

/// Bytes of packets that are written in one turn: an eighth of the shared memory that the probes ask for.
const TURN_BYTES: usize = 256 * 1024;

/// The time that a turn takes if there is more to read than fits.
const TURN: Duration = Duration::from_millis(10);

const JOURNAL: Token = Token(0);

/// The program that reads the journal for the data source.
const PROGRAM: &str = "traced_probes";

/// Whether the data source may still send commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    /// There are commands to carry out, or more may come.
    Commands,
    /// The data source is gone without a stop.
    Gone,
}

/// Why the journal is not read.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Library(#[from] libsystemd::Error),
    #[error(transparent)]
    Loop(#[from] ReactorError),
    #[error(transparent)]
    Follow(#[from] FollowError),
}

/// See the [module](self).
pub(super) struct JournalThread {
    pub(super) program: Arc<dyn ProducerProgram>,
    /// The instance's serial number.
    pub(super) instance: u32,
    pub(super) filters: Filters,
    pub(super) writer: TraceWriter,
    pub(super) inbox: Inbox,
    /// Commands, each with its time of arrival on the monotonic clock. A command waits until all entries that the journal received before that
    /// time have been read.
    pub(super) waiting: Vec<(u64, Command)>,
}

/// Takes the commands that have come.
pub(super) fn take_commands(inbox: &Inbox, waiting: &mut Vec<(u64, Command)>) -> Runtime {
    loop {
        match inbox.try_receive() {
            // The data source has no incremental state.
            Ok(command) if command.what == What::ClearIncrementalState => {}
            Ok(command) => waiting.push((monotonic_now(), command)),
            Err(Nothing::SoFar) => return Runtime::Commands,
            // The stop is the last command, and usually comes together with the end of the channel.
            Err(Nothing::EverAgain) => {
                let is_stop = |(_, command): &(u64, Command)| command.what == What::Stop;
                return match waiting.iter().any(is_stop) {
                    true => Runtime::Commands,
                    false => Runtime::Gone,
                };
            }
        }
    }
}

impl JournalThread {
    /// Works until it is told to stop. Drops `started` once new entries will be recorded.
    pub(super) fn run(mut self, started: Acknowledge) {
        self.program.join_instance(self.instance);
        let mut reader = match self.open() {
            Ok(reader) => reader,
            Err(trouble) => {
                let trouble = data_source::Trouble {
                    source: NAME.to_owned(),
                    failure: format!("could not be started: {trouble}"),
                    noticed: boot_now(),
                };
                self.program.warning(&trouble.to_string());
                trouble.write(&mut self.writer);
                drop(self.inbox.await_stop());
                // The instance has ended by now, so the service does not hear that it had started.
                return drop(started);
            }
        };
        drop(started);
        match self.follow(&mut reader) {
            Ok(stopped) => {
                // Dropping the writer sends the last chunk, before the service hears that the instance has stopped.
                drop(self);
                drop(stopped);
            }
            Err(trouble) => {
                self.warn(format_args!("nothing more of the journal is recorded: {trouble}"));
                reader.write_statistics(&mut self.writer);
                self.writer.flush();
                self.waiting.clear();
                drop(self.inbox.await_stop());
            }
        }
    }

    fn warn(&self, what: std::fmt::Arguments<'_>) {
        self.program.warning(&format!("{NAME}: {what}"));
    }

    fn open(&self) -> Result<Reader, Trouble> {
        let (journal, remark) = follow(PROGRAM, self.filters.matches())?;
        if let Some(remark) = remark {
            self.warn(format_args!("{remark}"));
        }
        let reader = Reader::new(journal);
        self.inbox
            .reactor
            .register(reader.journal().watch()?, JOURNAL, Interest::Readable)?;
        Ok(reader)
    }

    /// Reads on until it is told to stop. Returns the acknowledgement of the stop, or `None` if the data source is gone.
    fn follow(&mut self, reader: &mut Reader) -> Result<Option<Acknowledge>, Trouble> {
        let mut events = Events::new();
        loop {
            if take_commands(&self.inbox, &mut self.waiting) == Runtime::Gone {
                return Ok(None);
            }
            let began = monotonic_now();
            let progress = self.read(reader)?;
            let is_done = |(asked, _): &mut (u64, Command)| progress.has_reached(*asked);
            for (_, command) in self.waiting.extract_if(.., is_done) {
                reader.write_statistics(&mut self.writer);
                self.writer.flush();
                if command.what == What::Stop {
                    return Ok(Some(command.done));
                }
            }
            let deadline = match progress {
                Progress::CaughtUp => reader.journal().deadline()?,
                Progress::UpTo(_) => Some(began + TURN.as_nanos() as u64),
            };
            self.inbox
                .reactor
                .wait(&mut events, deadline.map(Deadline::Monotonic))?;
        }
    }

    /// Reads for one turn.
    fn read(&mut self, reader: &mut Reader) -> Result<Progress, libsystemd::Error> {
        let cut_before = reader.cut();
        let progress = reader.read(TURN_BYTES, &mut self.writer)?;
        if cut_before == 0 && reader.cut() > 0 {
            self.warn(format_args!(
                "a message is longer than {} KiB; the rest of it, and of others like it, is not recorded",
                LONGEST_FIELD / 1024
            ));
        }
        Ok(progress)
    }
}
