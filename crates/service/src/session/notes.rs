//! Notes for packets that the trace has yet to contain: clocks, events, missing data sources, other sessions.
//!
//! The session notes it as it happens, and `packets` writes it at the next read-back. Each kind has a limit, because days may pass between two
//! read-backs.

use std::collections::VecDeque;

use ferretto_proto::write::TracingServiceEvent;

use super::absences::Absences;
use super::machines::MachinesTold;
use crate::clock::Now;
use crate::clone::CloneTrigger;
use crate::limits;
use crate::session::concurrent::OtherSessions;

/// Kinds of events in the life of a session that are written into its trace; the values are field numbers of
/// `TracingServiceEvent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LifecycleEvent {
    AllDataSourcesStarted = TracingServiceEvent::ALL_DATA_SOURCES_STARTED,
    TracingStarted = TracingServiceEvent::TRACING_STARTED,
    AllDataSourcesFlushed = TracingServiceEvent::ALL_DATA_SOURCES_FLUSHED,
    ReadTracingBuffersCompleted = TracingServiceEvent::READ_TRACING_BUFFERS_COMPLETED,
    TracingDisabled = TracingServiceEvent::TRACING_DISABLED,
    FlushStarted = TracingServiceEvent::FLUSH_STARTED,
    CloneStarted = TracingServiceEvent::CLONE_STARTED,
    /// Ours, see the schema.
    ServiceEnded = TracingServiceEvent::SERVICE_ENDED,
}

impl LifecycleEvent {
    /// How many of a kind wait for the next read-back; older ones make room.
    fn kept(self) -> usize {
        match self {
            LifecycleEvent::AllDataSourcesFlushed | LifecycleEvent::FlushStarted => 64,
            _ => 1,
        }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The clocks at the start. Kept apart from later snapshots, which may replace each other: without the first one nothing in the trace
    /// could be placed in time.
    pub(crate) initial_clocks: Option<Now>,
    pub(crate) clock_snapshots: VecDeque<Now>,
    /// Events with their boot time, in order: many of them within one turn, at the same time.
    pub(crate) lifecycle_events: VecDeque<(LifecycleEvent, u64)>,
    /// How many flushes have ended.
    flushes: u64,
    /// Data sources that the trace has to name, because some of their data may be missing.
    pub(crate) absences: Absences,
    /// Changes of other sessions.
    pub(crate) other_sessions: OtherSessions,
    pub(crate) machines_told: MachinesTold,
    pub(crate) stats_due: bool,
    pub(crate) sync_marker_due: bool,
    /// The packets that come once are written.
    pub(crate) initial_packets_written: bool,
    /// For a clone: when each buffer was copied, in boot time.
    pub(crate) buffers_cloned: Vec<u64>,
    /// For a clone: the trigger that it was made for.
    pub(crate) clone_trigger: Option<CloneTrigger>,
}

impl Notes {
    /// The notes for the trace of a clone.
    pub(crate) fn for_clone(&self) -> Notes {
        // A clone is complete when it is made. If the service later ends the original, that does not concern the clone.
        let events = self.lifecycle_events.iter();
        let events = events.filter(|(event, _)| *event != LifecycleEvent::ServiceEnded);
        Notes {
            initial_clocks: self.initial_clocks,
            clock_snapshots: self.clock_snapshots.clone(),
            lifecycle_events: events.copied().collect(),
            absences: self.absences.for_clone(),
            stats_due: true,
            ..Notes::default()
        }
    }

    /// Something happened.
    pub(crate) fn note(&mut self, event: LifecycleEvent, now: &Now) {
        self.note_at(event, now.boot);
    }

    /// The same for an earlier moment of boot time.
    pub(crate) fn note_at(&mut self, event: LifecycleEvent, at: u64) {
        self.flushes += u64::from(event == LifecycleEvent::AllDataSourcesFlushed);
        let events = &mut self.lifecycle_events;
        let of_kind = |(kind, _): &(LifecycleEvent, u64)| *kind == event;
        if events.iter().filter(|noted| of_kind(noted)).count() >= event.kept()
            && let Some(oldest) = events.iter().position(of_kind)
        {
            events.remove(oldest);
        }
        events.push_back((event, at));
    }

    /// How many flushes have ended so far.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Takes the events to be written now. Readers sort up to the last flushes that they were told of, so those after the first `flushes`, whose data are not
    /// being read yet, stay.
    pub(super) fn take_events(&mut self, flushes: u64) -> VecDeque<(LifecycleEvent, u64)> {
        let is_flush = |event: LifecycleEvent| event == LifecycleEvent::AllDataSourcesFlushed;
        let noted = self.lifecycle_events.iter();
        let noted = noted.filter(|(event, _)| is_flush(*event)).count() as u64;
        let mut due = noted.saturating_sub(self.flushes.saturating_sub(flushes));
        let is_due = |(event, _): &(LifecycleEvent, u64)| {
            if !is_flush(*event) {
                return true;
            }
            let is_due = due > 0;
            due = due.saturating_sub(1);
            is_due
        };
        let (taken, later) = self.lifecycle_events.drain(..).partition(is_due);
        self.lifecycle_events = later;
        taken
    }

    /// Takes a clock snapshot, unless the last one still describes all clocks well.
    pub(super) fn snapshot_clocks(&mut self, now: &Now) {
        if self
            .clock_snapshots
            .back()
            .is_some_and(|last| !now.drifted_since(last))
        {
            return;
        }
        if self.clock_snapshots.len() >= limits::MAX_PENDING_CLOCK_SNAPSHOTS {
            self.clock_snapshots.pop_front();
        }
        self.clock_snapshots.push_back(*now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: u64) -> Now {
        Now {
            boot,
            ..Now::default()
        }
    }

    #[test]
    fn the_latest_of_each_kind_of_event_stay() {
        let mut notes = Notes::default();
        for boot in 0..100 {
            notes.note(LifecycleEvent::FlushStarted, &at(boot));
            notes.note(LifecycleEvent::TracingDisabled, &at(boot));
        }
        let of = |kind| {
            let events = notes.lifecycle_events.iter();
            events.filter(move |(event, _)| *event == kind).map(|(_, at)| *at)
        };
        assert!(of(LifecycleEvent::FlushStarted).eq(36..100));
        assert!(of(LifecycleEvent::TracingDisabled).eq([99]));
    }

    #[test]
    fn a_clone_does_not_record_that_the_service_ended() {
        let mut notes = Notes::default();
        notes.note(LifecycleEvent::TracingStarted, &at(1));
        notes.note(LifecycleEvent::ServiceEnded, &at(2));
        let clone = notes.for_clone();
        assert_eq!(clone.lifecycle_events, [(LifecycleEvent::TracingStarted, 1)]);
        assert!(clone.stats_due);
    }
}
