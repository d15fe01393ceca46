//! An unfinished clone: the step that it waits for, and the buffers that it has so far.
//!
//! First the producers of each group of buffers are flushed. If the original streams into a file, that file is then copied, and the buffers are
//! written behind it.

use crate::clock::Now;
use crate::clone::{CloneRequest, ClonedContent};
use crate::ids::{ConsumerId, SessionId};
use crate::output::FlushOutcome;
use crate::session::{BatchEnd, FileSink};
use crate::trace_buffer::TraceBuffer;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct PendingClone {
    pub(super) consumer: ConsumerId,
    pub(super) uid: u32,
    pub(super) original: SessionId,
    pub(super) request: CloneRequest,
    /// Random bits for its name.
    pub(super) uuid: u128,
    /// A file, if the original streams into a file.
    pub(super) content: ClonedContent,
    /// Boot time at which it was asked for.
    pub(super) started: u64,
    /// Whether all flushes so far succeeded.
    pub(super) outcome: FlushOutcome,
    pub(super) stage: Stage,
    /// The copies, by index in the config.
    pub(super) snapshots: Vec<Option<Snapshot>>,
}

/// The step that a clone waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The flushes of this many groups of buffers.
    Flushing { groups: usize },
    /// Its file. A batch was on its way into the original's file when the buffers were copied, and has not arrived.
    AwaitingBatch,
    /// Its file, which is being written.
    WritingFile,
}

/// A buffer of the clone.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) buffer: TraceBuffer,
    /// When it was copied: boot time.
    pub(super) at: u64,
}

/// The progress of a clone after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    ThisGroup,
    AllGroups,
}

impl PendingClone {
    /// The copies so far.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &TraceBuffer> {
        self.snapshots.iter().flatten().map(|snapshot| &snapshot.buffer)
    }

    /// The flush of a group has ended.
    pub(super) fn flushed(&mut self, outcome: FlushOutcome) -> Flushed {
        if outcome == FlushOutcome::Failed {
            self.outcome = outcome;
        }
        match &mut self.stage {
            Stage::Flushing { groups } if *groups > 1 => {
                *groups -= 1;
                Flushed::ThisGroup
            }
            _ => Flushed::AllGroups,
        }
    }

    /// Adds this buffer, which has this index in the config.
    pub(super) fn add(&mut self, index: usize, mut buffer: TraceBuffer, now: &Now) {
        // Otherwise its trace goes on where that of the file ends.
        if self.content == ClonedContent::Buffers {
            buffer.begin_trace();
        }
        if let Some(snapshot) = self.snapshots.get_mut(index) {
            *snapshot = Some(Snapshot { buffer, at: now.boot });
        }
    }

    /// Gives away the buffers, for the session that the clone becomes.
    pub(super) fn take_snapshots(&mut self) -> impl Iterator<Item = Snapshot> {
        std::mem::take(&mut self.snapshots).into_iter().flatten()
    }

    /// The buffers are complete. Its file remains, if the original has this one.
    pub(super) fn write_file(&mut self, original: Option<&FileSink>) {
        self.stage = match original {
            Some(file) if file.awaits_batch() => Stage::AwaitingBatch,
            _ => Stage::WritingFile,
        };
    }

    /// A batch arrived in the file of this session. Returns whether the clone fails, because the batch that it waited for did not arrive whole.
    pub(super) fn batch_arrived(&mut self, original: SessionId, end: BatchEnd) -> bool {
        if self.original != original || self.stage != Stage::AwaitingBatch {
            return false;
        }
        self.stage = Stage::WritingFile;
        end == BatchEnd::Full
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clone::{CloneFile, CloneFilter, ClonePurpose, Original};
    use crate::session::AfterWrite;

    const ORIGINAL: SessionId = SessionId(1);

    fn pending(groups: usize) -> PendingClone {
        let request = CloneRequest {
            original: Original::Id(1),
            purpose: ClonePurpose::Snapshot,
            filter: CloneFilter::Applied,
            trigger: None,
            file: CloneFile::Passed,
        };
        PendingClone {
            consumer: ConsumerId(1),
            uid: 1,
            original: ORIGINAL,
            request,
            uuid: 0,
            content: ClonedContent::File,
            started: 0,
            outcome: FlushOutcome::Succeeded,
            stage: Stage::Flushing { groups },
            snapshots: Vec::new(),
        }
    }

    #[test]
    fn a_clone_is_flushed_when_its_last_group_is_and_failed_if_any_was() {
        let mut clone = pending(2);
        assert_eq!(clone.flushed(FlushOutcome::Failed), Flushed::ThisGroup);
        assert_eq!(clone.flushed(FlushOutcome::Succeeded), Flushed::AllGroups);
        assert_eq!(clone.outcome, FlushOutcome::Failed);
    }

    #[test]
    fn a_clone_fails_if_the_batch_did_not_arrive_that_was_on_its_way_when_it_was_made() {
        let mut original = FileSink::new(Duration::ZERO, u64::MAX, AfterWrite::LeaveToTheKernel);
        original.hand_out(BatchEnd::More);
        let made = |original: &FileSink| {
            let mut clone = pending(1);
            clone.write_file(Some(original));
            clone
        };
        assert!(made(&original).batch_arrived(ORIGINAL, BatchEnd::Full));
        assert!(!made(&original).batch_arrived(SessionId(7), BatchEnd::Full));
        let mut clone = made(&original);
        assert!(!clone.batch_arrived(ORIGINAL, BatchEnd::Drained));
        assert!(
            !clone.batch_arrived(ORIGINAL, BatchEnd::Full),
            "a later one is no concern"
        );
        let idle = FileSink::new(Duration::ZERO, u64::MAX, AfterWrite::LeaveToTheKernel);
        assert!(!made(&idle).batch_arrived(ORIGINAL, BatchEnd::Full));
    }
}
