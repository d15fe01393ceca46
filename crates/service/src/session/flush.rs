//! Flushes: producers are asked to commit their chunks, and acknowledge. The service then scrapes the rest out of their shared memory.
//!
//! [`Flushes`] is the machine: it knows the pending flushes, the producers that each waits for, and how flushes ended. The session sends the
//! commands, and continues with the work that a flush was for.

use std::time::Duration;

use ferretto_proto::messages::trace_stats::FinalFlushOutcome;

use super::absences::{Absence, AbsenceKind};
use super::{Drain, Instance, LifecycleEvent, Session, State, Stop};
use crate::clock::Now;
use crate::clone::BufferGroup;
use crate::ids::{ConsumerId, FlushRequestId, ProducerId, SessionId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{FlushOutcome, Output, ProducerCommand};
use crate::producers::Producer;
use crate::session::common::{Common, Effect};
use crate::timers::Timer;

/// `FlushFlags` of the schema: the purpose of a clone (bits 8 to 11), the initiator (bits 4 to 7) and the reason (bits 0 to 3).
pub(crate) mod flags {
    const INITIATOR_TRACED: u64 = 1 << 4;
    const REASON_PERIODIC: u64 = 1;
    const REASON_TRACE_STOP: u64 = 2;
    const REASON_TRACE_CLONE: u64 = 3;
    const CLONE_TARGET_BUGREPORT: u64 = 1 << 8;
    pub(in crate::session) const PERIODIC: u64 = INITIATOR_TRACED | REASON_PERIODIC;
    pub(super) const TRACE_STOP: u64 = INITIATOR_TRACED | REASON_TRACE_STOP;
    pub(crate) const TRACE_CLONE: u64 = INITIATOR_TRACED | REASON_TRACE_CLONE;
    pub(crate) const TRACE_CLONE_FOR_BUGREPORT: u64 = TRACE_CLONE | CLONE_TARGET_BUGREPORT;

    /// Whether this is the last flush before the data is read.
    pub(super) fn is_last(flags: u64) -> bool {
        matches!(flags & 0xf, REASON_TRACE_STOP | REASON_TRACE_CLONE)
    }
}

/// The reason for a flush, which determines what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushPurpose {
    /// A consumer wants an answer.
    Consumer { consumer: ConsumerId, token: u64 },
    /// `flush_period_ms`, or the default while streaming into a file.
    Periodic,
    /// The file is due, and the config wants everything flushed first.
    BeforeFileWrite,
    /// The session ends.
    Final,
    /// A group of buffers is about to be cloned.
    Clone { clone: SessionId, group: BufferGroup },
}

/// When producers are flushed without anybody asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushStrategy {
    Never,
    Every(Duration),
    BeforeEachFileWrite,
}

/// A flush that waits for acknowledgements.
#[derive(Debug)]
struct PendingFlush {
    waiting_for: OrderedSet<ProducerId>,
    purpose: FlushPurpose,
    /// The initiator and the reason: `FlushFlags` of the schema.
    flags: u64,
}

/// The flushes of a session: the pending ones, and counts of all.
#[derive(Debug)]
pub(crate) struct Flushes {
    pending: OrderedMap<FlushRequestId, PendingFlush>,
    pub(crate) strategy: FlushStrategy,
    pub(crate) requested: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// How the last one before the end went.
    pub(crate) final_outcome: FinalFlushOutcome,
}

impl Flushes {
    pub(crate) fn new(strategy: FlushStrategy) -> Flushes {
        Flushes {
            pending: OrderedMap::new(),
            strategy,
            requested: 0,
            succeeded: 0,
            failed: 0,
            final_outcome: FinalFlushOutcome::FINAL_FLUSH_UNSPECIFIED,
        }
    }

    /// The flushes for a clone, which has none of its own: its trace has the counts of the original's.
    pub(super) fn for_clone(&self) -> Flushes {
        Flushes {
            requested: self.requested,
            succeeded: self.succeeded,
            failed: self.failed,
            ..Flushes::new(FlushStrategy::Never)
        }
    }

    pub(crate) fn set_final_outcome(&mut self, outcome: FlushOutcome) {
        self.final_outcome = match outcome {
            FlushOutcome::Succeeded => FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED,
            FlushOutcome::Failed => FinalFlushOutcome::FINAL_FLUSH_FAILED,
        };
    }

    /// Whether the flush is under way with which the session ends.
    pub(crate) fn has_final(&self) -> bool {
        let mut purposes = self.pending.values().map(|flush| flush.purpose);
        purposes.any(|purpose| purpose == FlushPurpose::Final)
    }

    fn is_full(&self) -> bool {
        self.pending.len() > limits::MAX_PENDING_FLUSHES
    }

    fn begin(&mut self, request: FlushRequestId, flush: PendingFlush) {
        self.requested += 1;
        self.pending.insert(request, flush);
    }

    /// The producer has finished all flushes up to this request, or will never do so. Returns the flushes that now wait for no producer: finish them.
    pub(crate) fn acknowledged(
        &mut self,
        producer: ProducerId,
        up_to: FlushRequestId,
    ) -> impl Iterator<Item = FlushRequestId> {
        let pending = self.pending.iter_mut();
        let earlier = pending.take_while(move |(request, _)| **request <= up_to);
        earlier.filter_map(move |(request, flush)| {
            let waits_no_more = flush.waiting_for.remove(&producer) && flush.waiting_for.is_empty();
            waits_no_more.then_some(*request)
        })
    }

    /// Removes and counts a flush that has ended. Returns its purpose.
    fn finish(&mut self, request: FlushRequestId, outcome: FlushOutcome) -> Option<FlushPurpose> {
        let flush = self.pending.remove(&request)?;
        match outcome {
            FlushOutcome::Succeeded => self.succeeded += 1,
            FlushOutcome::Failed => self.failed += 1,
        }
        Some(flush.purpose)
    }
}

/// Whether shared memory is scraped for a flush that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scrape {
    Always,
    /// Not again for flushes of one session that end together.
    Shared,
}

impl Session {
    /// The session's time is over: last flush, then stop. A session that was stopped earlier is freed now if no consumer is attached: its
    /// consumer detached and expects it to end by itself at this time.
    pub(crate) fn flush_and_stop(&mut self, common: &mut Common, now: &Now) {
        if self.state == State::Started {
            self.flush(None, FlushPurpose::Final, flags::TRACE_STOP, common, now);
        } else if self.consumer.is_none() {
            self.free(common, now);
        }
    }

    pub(super) fn periodic_flush(&mut self, common: &mut Common, now: &Now) {
        if let (State::Started, FlushStrategy::Every(period)) = (self.state, self.flushes.strategy) {
            common
                .timers
                .set(self.id, now.next_multiple(period), Timer::PeriodicFlush);
            self.flush(None, FlushPurpose::Periodic, flags::PERIODIC, common, now);
        }
    }

    /// Flushes all data sources, except those that want no flushes. Without a timeout, the config's counts.
    pub(crate) fn flush(
        &mut self,
        timeout: Option<Duration>,
        purpose: FlushPurpose,
        flags: u64,
        common: &mut Common,
        now: &Now,
    ) {
        self.notes.note(LifecycleEvent::FlushStarted, now);
        let timeout = timeout.unwrap_or_else(|| self.flush_timeout());
        self.flush_instances(timeout, purpose, flags, common, now, |_| true);
    }

    /// Flushes the data sources that `picks` picks, except those that want no flushes.
    pub(crate) fn flush_instances(
        &mut self,
        timeout: Duration,
        purpose: FlushPurpose,
        flags: u64,
        common: &mut Common,
        now: &Now,
        picks: impl Fn(&Instance) -> bool,
    ) {
        let request = common.next_flush_id();
        if self.state != State::Started || self.flushes.is_full() {
            // The service ends and has stopped the session. If that flushed all producers in time, this flush has nothing left to do.
            let was_flushed = self.state != State::Started
                && self.flushes.final_outcome == FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED;
            let outcome = if common.is_ending && was_flushed {
                FlushOutcome::Succeeded
            } else {
                FlushOutcome::Failed
            };
            return self.flush_finished(purpose, outcome, common, now);
        }
        self.notes.absences.forget_slow_flushes();
        let mut instances = self
            .instances
            .grouped(|instance| !instance.no_flush && picks(instance));
        for instance in self.instances.values().filter(|instance| picks(instance)) {
            // Only this producer can scrape its own memory. It does so when flushed, even without a data source to flush.
            if common
                .producers
                .get(instance.producer)
                .is_some_and(Producer::scrapes_itself)
            {
                instances.get_or_insert_with(instance.producer, Vec::new);
            }
        }
        let waiting_for: OrderedSet<ProducerId> = instances.keys().copied().collect();
        let nobody = waiting_for.is_empty();
        self.flushes.begin(
            request,
            PendingFlush {
                waiting_for,
                purpose,
                flags,
            },
        );
        for (producer, instances) in instances {
            common.outbox.command(
                producer,
                ProducerCommand::Flush {
                    request,
                    instances,
                    flags,
                },
            );
        }
        if nobody {
            self.flush_ended(request, FlushOutcome::Succeeded, Scrape::Always, common, now);
        } else {
            let timer = Timer::FlushTimeout(request);
            common.timers.set(self.id, now.after(timeout), timer);
        }
    }

    /// Producers had their time to acknowledge this flush.
    pub(super) fn flush_timed_out(&mut self, request: FlushRequestId, common: &mut Common, now: &Now) {
        let Some(flush) = self.flushes.pending.get(&request) else {
            return;
        };
        let silent = flush.waiting_for.len();
        if flags::is_last(flush.flags) {
            let slow = self
                .instances
                .values()
                .filter(|instance| flush.waiting_for.contains(&instance.producer));
            let slow = Absence::new(AbsenceKind::SlowToFlush, slow, &common.producers, now);
            self.notes.absences.note(slow);
        }
        let producers = if silent == 1 { "producer" } else { "producers" };
        common.outbox.warn(format!(
            "tracing session {}: {silent} {producers} did not flush in time",
            self.id
        ));
        self.flush_ended(request, FlushOutcome::Failed, Scrape::Shared, common, now);
    }

    /// Every producer has acknowledged this flush, or is gone.
    pub(crate) fn flush_acknowledged(&mut self, request: FlushRequestId, common: &mut Common, now: &Now) {
        self.flush_ended(request, FlushOutcome::Succeeded, Scrape::Shared, common, now);
    }

    /// Ends this flush, which waits for no producer any more.
    fn flush_ended(
        &mut self,
        request: FlushRequestId,
        outcome: FlushOutcome,
        scrape: Scrape,
        common: &mut Common,
        now: &Now,
    ) {
        let Some(purpose) = self.flushes.finish(request, outcome) else {
            return;
        };
        common.timers.forget(self.id, Timer::FlushTimeout(request));
        if scrape == Scrape::Always || common.scraped.insert(self.id) {
            // Producers may acknowledge and still hold chunks, for example those of other threads.
            self.scrape_all(common);
        }
        self.snapshot_clocks(now);
        self.notes.note(LifecycleEvent::AllDataSourcesFlushed, now);
        self.flush_finished(purpose, outcome, common, now);
    }

    /// Continues with the work that a flush was for.
    fn flush_finished(
        &mut self,
        purpose: FlushPurpose,
        outcome: FlushOutcome,
        common: &mut Common,
        now: &Now,
    ) {
        match purpose {
            FlushPurpose::Consumer { consumer, token } => common.outbox.push(Output::FlushDone {
                consumer,
                token,
                outcome,
            }),
            FlushPurpose::Periodic => {}
            FlushPurpose::BeforeFileWrite => self.drain_into_file(Drain::Periodic, common),
            FlushPurpose::Clone { clone, group } => common.effects.push_back(Effect::FlushedForClone {
                clone,
                group,
                outcome,
            }),
            FlushPurpose::Final => {
                self.flushes.set_final_outcome(outcome);
                if self.consumer.is_some() {
                    // The consumer may still want to read.
                    self.stop(Stop::Graceful, common, now);
                } else {
                    self.free(common, now);
                }
            }
        }
    }

    /// The session is over, so its pending flushes will not end. Tells the clients that wait for them.
    pub(crate) fn abandon_flushes(&mut self, common: &mut Common) {
        for flush in std::mem::take(&mut self.flushes.pending).into_values() {
            match flush.purpose {
                FlushPurpose::Consumer { .. } if common.is_ending => {}
                FlushPurpose::Consumer { consumer, token } => common.outbox.push(Output::FlushDone {
                    consumer,
                    token,
                    outcome: FlushOutcome::Failed,
                }),
                FlushPurpose::Clone { clone, .. } => {
                    common.effects.push_back(Effect::OriginalEnded { clone });
                }
                FlushPurpose::Periodic | FlushPurpose::BeforeFileWrite | FlushPurpose::Final => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProducerId = ProducerId(1);
    const B: ProducerId = ProducerId(2);

    fn flushes(waiting: &[(u64, &[ProducerId])]) -> Flushes {
        let mut flushes = Flushes::new(FlushStrategy::Never);
        for (request, producers) in waiting {
            let flush = PendingFlush {
                waiting_for: producers.iter().copied().collect(),
                purpose: FlushPurpose::Periodic,
                flags: 0,
            };
            flushes.begin(FlushRequestId(*request), flush);
        }
        flushes
    }

    fn acknowledge(flushes: &mut Flushes, producer: ProducerId, up_to: u64) -> Vec<u64> {
        let ended = flushes.acknowledged(producer, FlushRequestId(up_to));
        ended.map(|request| request.0).collect()
    }

    #[test]
    fn an_acknowledgement_counts_for_earlier_flushes_and_ends_those_without_other_producers() {
        let mut flushes = flushes(&[(1, &[A, B]), (2, &[A]), (3, &[A])]);
        assert_eq!(acknowledge(&mut flushes, A, 2), [2]);
        assert_eq!(acknowledge(&mut flushes, A, 2), [0; 0], "it comes once only");
        assert_eq!(acknowledge(&mut flushes, B, 3), [1]);
        assert_eq!(acknowledge(&mut flushes, A, u64::MAX), [3]);
    }

    #[test]
    fn each_flush_is_finished_and_counted_once() {
        let mut flushes = flushes(&[(1, &[A]), (2, &[B])]);
        let one = FlushRequestId(1);
        assert_eq!(
            flushes.finish(one, FlushOutcome::Succeeded),
            Some(FlushPurpose::Periodic)
        );
        assert_eq!(flushes.finish(one, FlushOutcome::Failed), None);
        flushes.finish(FlushRequestId(2), FlushOutcome::Failed);
        assert_eq!((flushes.requested, flushes.succeeded, flushes.failed), (2, 1, 1));
        let clone = flushes.for_clone();
        assert_eq!((clone.requested, clone.succeeded, clone.failed), (2, 1, 1));
    }

    #[test]
    fn a_last_flush_is_known_by_its_purpose_while_it_waits() {
        let mut flushes = flushes(&[(1, &[A])]);
        assert!(!flushes.has_final());
        let flush = PendingFlush {
            waiting_for: [A].into_iter().collect(),
            purpose: FlushPurpose::Final,
            flags: flags::TRACE_STOP,
        };
        flushes.begin(FlushRequestId(2), flush);
        assert!(flushes.has_final());
        flushes.finish(FlushRequestId(2), FlushOutcome::Succeeded);
        assert!(!flushes.has_final());
    }
}
