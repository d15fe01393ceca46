//! The file that a session streams into: when data is due for it, and the next step when the data has arrived.
//!
//! [`FileSink`] is the machine. The driver does the writing: it reads a batch, writes it however long that takes, and reports. The machine then
//! decides the next step.

use std::time::Duration;

use super::flush::flags;
use super::{FlushPurpose, FlushStrategy, Session, State, Stop};
use crate::clock::Now;
use crate::limits;
use crate::output::Output;
use crate::session::common::{Common, Effect};
use crate::timers::Timer;

/// The output file of a session, as far as the service is concerned with it.
#[derive(Debug)]
pub(crate) struct FileSink {
    write_period: Duration,
    max_size: u64,
    written: u64,
    after_write: AfterWrite,
    drain: Drain,
    /// The driver has a batch and has not reported it yet: how that batch ended.
    handed_out: Option<BatchEnd>,
    /// When the driver last reported something (ns, monotonic).
    progress: u64,
}

/// Whether the file is pushed down to the disk after each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterWrite {
    LeaveToTheKernel,
    Sync,
}

/// Whether data is on its way from the buffers into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drain {
    Idle,
    /// A periodic write is under way.
    Periodic,
    /// The session is over: everything left is written, then the file is closed.
    Final,
    /// Writing is over; the driver is closing the file.
    Closing,
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// There is more to read.
    More,
    /// The buffers are empty.
    Drained,
    /// The file has reached its size.
    Full,
}

/// The next step after a batch has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// The next batch is read at once.
    ReadOn,
    /// The next write is due after a period.
    Rest,
    /// The file is complete.
    Close,
    /// The file is complete because it takes no more: the session stops.
    CloseAndStop,
}

impl FileSink {
    /// The file of a session that records.
    pub(crate) fn new(write_period: Duration, max_size: u64, after_write: AfterWrite) -> FileSink {
        FileSink {
            write_period,
            max_size,
            written: 0,
            after_write,
            drain: Drain::Idle,
            handed_out: None,
            progress: 0,
        }
    }

    /// The file of a clone: everything is there already.
    pub(crate) fn of_clone() -> FileSink {
        FileSink {
            drain: Drain::Final,
            ..FileSink::new(Duration::ZERO, u64::MAX, AfterWrite::LeaveToTheKernel)
        }
    }

    pub(crate) fn write_period(&self) -> Duration {
        self.write_period
    }

    /// Whether nothing will be written any more.
    pub(crate) fn is_complete(&self) -> bool {
        self.drain == Drain::Closing
    }

    /// Whether a batch is on its way into the file.
    pub(crate) fn awaits_batch(&self) -> bool {
        self.handed_out.is_some()
    }

    /// Bytes that a batch may have; `None` if none may be read now.
    pub(crate) fn room(&self) -> Option<u64> {
        let is_free = !self.awaits_batch() && !self.is_complete();
        is_free.then(|| self.max_size.saturating_sub(self.written))
    }

    /// The driver got a batch that ended like this.
    pub(crate) fn hand_out(&mut self, end: BatchEnd) {
        self.handed_out = Some(end);
    }

    /// No more than a part of the batch on its way fits.
    pub(crate) fn fill(&mut self) {
        if let Some(end) = &mut self.handed_out {
            *end = BatchEnd::Full;
        }
    }

    /// Data is due. Returns whether to tell the driver, who may already be reading.
    fn begin(&mut self, drain: Drain) -> bool {
        let is_idle = self.drain == Drain::Idle;
        self.drain = self.drain.max(drain);
        // There is more now than when that batch was put together.
        if let Some(end @ BatchEnd::Drained) = &mut self.handed_out {
            *end = BatchEnd::More;
        }
        is_idle
    }

    /// The driver reports on its batch: it has written this many bytes, or none because writing failed. Returns how the batch ended; `None` if the
    /// driver has none.
    fn arrived(&mut self, written: Option<u64>, now: &Now) -> Option<BatchEnd> {
        let end = self.handed_out.take()?;
        self.progress = now.monotonic;
        let Some(bytes) = written else {
            return Some(BatchEnd::Full);
        };
        self.written += bytes;
        Some(end)
    }

    /// Decides the next step after a batch that ended like this.
    fn next_step(&mut self, end: BatchEnd) -> NextStep {
        let next = match (end, self.drain) {
            (BatchEnd::More, _) => NextStep::ReadOn,
            (BatchEnd::Drained, Drain::Idle | Drain::Periodic) => NextStep::Rest,
            (BatchEnd::Drained, Drain::Final | Drain::Closing) => NextStep::Close,
            (BatchEnd::Full, _) => NextStep::CloseAndStop,
        };
        match next {
            NextStep::ReadOn => {}
            NextStep::Rest => self.drain = Drain::Idle,
            NextStep::Close | NextStep::CloseAndStop => self.drain = Drain::Closing,
        }
        next
    }

    /// When it is given up if nothing is written into it until then (ns, monotonic).
    fn deadline(&self) -> u64 {
        self.progress + limits::ABANDONED_FILE_PATIENCE.as_nanos() as u64
    }
}

impl Session {
    pub(super) fn file_write_due(&mut self, common: &mut Common, now: &Now) {
        // Data sources that take their time to stop may write a lot while they do.
        if !self.state.is_running() {
            return;
        }
        match self.flushes.strategy {
            FlushStrategy::BeforeEachFileWrite => {
                self.flush(None, FlushPurpose::BeforeFileWrite, flags::PERIODIC, common, now);
            }
            FlushStrategy::Never | FlushStrategy::Every(_) => self.drain_into_file(Drain::Periodic, common),
        }
    }

    /// Has the buffers drained into the file, or goes on if that is under way.
    pub(super) fn drain_into_file(&mut self, drain: Drain, common: &mut Common) {
        if self.file.as_mut().is_some_and(|file| file.begin(drain)) {
            common.outbox.push(Output::FileDue(self.id));
        }
    }

    /// The batch that the driver had was written, or was not for this reason.
    pub(crate) fn file_written(&mut self, result: Result<u64, String>, common: &mut Common, now: &Now) {
        let Some(file) = &mut self.file else { return };
        let Some(end) = file.arrived(result.as_ref().ok().copied(), now) else {
            return;
        };
        if let Err(error) = result {
            let error = format!("cannot write into the trace file: {error}");
            self.disabled_error.get_or_insert(error.clone());
            common.outbox.warn(error);
        }
        common.effects.push_back(Effect::BatchArrived {
            original: self.id,
            end,
        });
        match file.next_step(end) {
            NextStep::ReadOn => common.outbox.push(Output::FileDue(self.id)),
            NextStep::Rest => {
                let next = now.next_multiple(file.write_period);
                common.timers.set(self.id, next, Timer::FileWrite);
                if file.after_write == AfterWrite::Sync {
                    common.outbox.push(Output::SyncFile(self.id));
                }
            }
            NextStep::Close => common.outbox.push(Output::CloseFile(self.id)),
            NextStep::CloseAndStop => {
                common.outbox.push(Output::CloseFile(self.id));
                self.stop(Stop::Graceful, common, now);
            }
        }
    }

    /// The driver has closed the file, or failed to for this reason.
    pub(crate) fn file_closed(&mut self, result: Result<(), String>, common: &mut Common) {
        if self.file.take_if(|file| file.is_complete()).is_none() {
            return;
        }
        if let Err(error) = result {
            let error = format!("cannot complete the trace file: {error}");
            self.disabled_error.get_or_insert(error.clone());
            common.outbox.warn(error);
        }
        self.file_over(common);
    }

    /// The driver could not push a part of the file down to the disk.
    pub(crate) fn file_sync_failed(&mut self, error: &str, common: &mut Common) {
        let error = format!("a part of the trace file may not be on the disk: {error}");
        if self.disabled_error.is_none() {
            common
                .outbox
                .warn(format!("tracing session {}: {error}", self.id));
            self.disabled_error = Some(error);
        }
    }

    /// The session has no file any more. Everything that waited for the file continues.
    fn file_over(&mut self, common: &mut Common) {
        match self.state {
            State::Disabled => self.announce_disabled(common),
            State::ClonedReadOnly => common.effects.push_back(Effect::CloneFileOver(self.id)),
            State::Configured | State::Started | State::DisablingWaitingStopAcks => {}
        }
        if self.is_freed {
            common.effects.push_back(Effect::Over(self.id));
        }
    }

    /// The consumer is gone, and only the file keeps the session. If the file has taken no data for a while, it is given up: a pipe without a
    /// reader must not keep a session and its memory for ever.
    pub(super) fn give_up_idle_file(&mut self, common: &mut Common, now: &Now) {
        let Some(file) = &self.file else { return };
        let deadline = file.deadline();
        if deadline > now.monotonic {
            return common.timers.set(self.id, deadline, Timer::FileAbandoned);
        }
        let error = format!(
            "the trace file took no data for {} s and was given up",
            limits::ABANDONED_FILE_PATIENCE.as_secs()
        );
        self.file = None;
        common
            .outbox
            .warn(format!("tracing session {}: {error}", self.id));
        self.disabled_error.get_or_insert(error);
        common.outbox.push(Output::AbandonFile(self.id));
        common.effects.push_back(Effect::BatchArrived {
            original: self.id,
            end: BatchEnd::Full,
        });
        self.file_over(common);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink() -> FileSink {
        FileSink::new(Duration::from_secs(1), 100, AfterWrite::LeaveToTheKernel)
    }

    /// Writes a batch of this size into the file. Returns the next step.
    fn write(file: &mut FileSink, bytes: u64, end: BatchEnd) -> NextStep {
        file.hand_out(end);
        let end = file.arrived(Some(bytes), &Now::default()).expect("a batch");
        file.next_step(end)
    }

    #[test]
    fn a_periodic_write_reads_until_the_buffers_are_empty_and_then_rests() {
        let mut file = sink();
        assert!(file.begin(Drain::Periodic));
        assert!(!file.begin(Drain::Periodic), "it is under way");
        assert_eq!(write(&mut file, 10, BatchEnd::More), NextStep::ReadOn);
        assert_eq!(file.room(), Some(90));
        assert_eq!(write(&mut file, 10, BatchEnd::Drained), NextStep::Rest);
        assert!(file.begin(Drain::Periodic));
    }

    #[test]
    fn data_that_comes_due_while_a_batch_is_on_its_way_is_read_after_it() {
        let mut file = sink();
        file.begin(Drain::Periodic);
        file.hand_out(BatchEnd::Drained);
        assert_eq!(file.room(), None, "one batch at a time");
        assert!(!file.begin(Drain::Final));
        let end = file.arrived(Some(1), &Now::default()).expect("a batch");
        assert_eq!(file.next_step(end), NextStep::ReadOn);
        assert_eq!(write(&mut file, 1, BatchEnd::Drained), NextStep::Close);
        assert!(file.is_complete());
        assert_eq!(file.room(), None);
    }

    #[test]
    fn a_periodic_write_that_comes_late_does_not_take_back_the_end() {
        let mut file = sink();
        file.begin(Drain::Final);
        file.begin(Drain::Periodic);
        assert_eq!(write(&mut file, 1, BatchEnd::Drained), NextStep::Close);
        file.begin(Drain::Periodic);
        assert!(file.is_complete());
    }

    #[test]
    fn a_file_that_takes_no_more_is_closed_and_ends_the_session() {
        let mut file = sink();
        file.begin(Drain::Periodic);
        file.hand_out(BatchEnd::More);
        file.fill();
        let end = file.arrived(Some(5), &Now::default()).expect("a batch");
        assert_eq!(file.next_step(end), NextStep::CloseAndStop);
        let mut failed = sink();
        failed.begin(Drain::Periodic);
        failed.hand_out(BatchEnd::More);
        assert_eq!(failed.arrived(None, &Now::default()), Some(BatchEnd::Full));
        assert_eq!(failed.arrived(None, &Now::default()), None, "it had one batch");
    }

    #[test]
    fn a_clones_file_is_read_to_its_end_without_being_asked() {
        let mut file = FileSink::of_clone();
        assert_eq!(file.room(), Some(u64::MAX));
        assert_eq!(write(&mut file, 1000, BatchEnd::Drained), NextStep::Close);
    }
}
