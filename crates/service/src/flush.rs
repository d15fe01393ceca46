//! Flushes: producers are asked to commit what they hold, and acknowledge; what is left in their shared memory is
//! then scraped.

use std::time::Duration;

use crate::absences::{Absence, AbsenceKind};
use crate::clock::Now;
use crate::ids::{ConsumerId, FlushRequestId, ProducerId, SessionId};
use crate::lifecycle::{after, instances_by_producer, next_multiple};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{FlushOutcome, LogLevel, Output, ProducerCommand};
use crate::producer::Producer;
use crate::service::Service;
use crate::session::{Drain, FlushPurpose, FlushStrategy, Instance, LifecycleEvent, PendingFlush, State};
use crate::timers::Timer;
use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::messages::trace_stats::FinalFlushOutcome;

/// `FlushFlags` of the schema: what a clone is for (bits 8 to 11), who asked (bits 4 to 7) and why (bits 0 to 3).
pub(crate) mod flags {
    const INITIATOR_TRACED: u64 = 1 << 4;
    const REASON_PERIODIC: u64 = 1;
    const REASON_TRACE_STOP: u64 = 2;
    const REASON_TRACE_CLONE: u64 = 3;
    const CLONE_TARGET_BUGREPORT: u64 = 1 << 8;
    pub(super) const PERIODIC: u64 = INITIATOR_TRACED | REASON_PERIODIC;
    pub(super) const TRACE_STOP: u64 = INITIATOR_TRACED | REASON_TRACE_STOP;
    pub(crate) const TRACE_CLONE: u64 = INITIATOR_TRACED | REASON_TRACE_CLONE;
    pub(crate) const TRACE_CLONE_FOR_BUGREPORT: u64 = TRACE_CLONE | CLONE_TARGET_BUGREPORT;

    /// Whether this is the last flush before the data is read, whoever asked for it.
    pub(super) fn is_last(flags: u64) -> bool {
        matches!(flags & 0xf, REASON_TRACE_STOP | REASON_TRACE_CLONE)
    }
}

impl Service {
    /// The consumer wants its producers flushed. [`Output::FlushDone`] with `token` answers. A `timeout_ms` of 0
    /// means the config's; `flags` go to producers as they are.
    pub fn flush(&mut self, consumer: ConsumerId, token: u64, timeout_ms: u32, flags: u64, now: &Now) {
        let purpose = FlushPurpose::Consumer { consumer, token };
        match self.session_of(consumer) {
            Some(session) => {
                let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
                self.flush_session(session, timeout, purpose, flags, now);
            }
            None => self.flush_done(consumer, token, FlushOutcome::Failed),
        }
    }

    /// The session is over: last flush, then stop. One that was stopped before is freed now if nobody holds it: for whoever
    /// detached from it this is the time at which it ends by itself.
    pub(crate) fn flush_and_disable(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.state == State::Started {
            self.flush_session(id, None, FlushPurpose::Final, flags::TRACE_STOP, now);
        } else if session.consumer.is_none() {
            self.free_session(id, now);
        }
    }

    pub(crate) fn periodic_flush(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self
            .sessions
            .get(&id)
            .filter(|session| session.state == State::Started)
        else {
            return;
        };
        let FlushStrategy::Every(period) = session.flush_strategy else {
            return;
        };
        self.timers
            .set(next_multiple(now, period), Timer::PeriodicFlush(id));
        self.flush_session(id, None, FlushPurpose::Periodic, flags::PERIODIC, now);
    }

    pub(crate) fn flush_before_write(&mut self, id: SessionId, now: &Now) {
        self.flush_session(id, None, FlushPurpose::BeforeFileWrite, flags::PERIODIC, now);
    }

    fn flush_session(
        &mut self,
        id: SessionId,
        timeout: Option<Duration>,
        purpose: FlushPurpose,
        flags: u64,
        now: &Now,
    ) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.note(LifecycleEvent::FlushStarted, now);
            self.flush_instances(id, timeout, purpose, flags, now, |_| true);
        }
    }

    /// Flushes the data sources that `picks` picks, but for those that want no flushes.
    pub(crate) fn flush_instances(
        &mut self,
        id: SessionId,
        timeout: Option<Duration>,
        purpose: FlushPurpose,
        flags: u64,
        now: &Now,
        picks: impl Fn(&Instance) -> bool,
    ) {
        let request = self.next_flush_id();
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.state != State::Started || session.pending_flushes.len() > limits::MAX_PENDING_FLUSHES {
            // The service ends and has stopped the session. If that flushed all producers in time, this flush has nothing left to do.
            let was_flushed = session.state != State::Started
                && session.final_flush_outcome == FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED;
            let outcome = if self.is_ending && was_flushed {
                FlushOutcome::Succeeded
            } else {
                FlushOutcome::Failed
            };
            return self.flush_finished(id, purpose, outcome, now);
        }
        session.flushes_requested += 1;
        // Only the last flush is of interest, and only if the trace was not read since.
        session
            .absences
            .retain(|absence| absence.kind != AbsenceKind::SlowToFlush);
        let mut instances = instances_by_producer(session, |instance| !instance.no_flush && picks(instance));
        for instance in session.instances.values().filter(|instance| picks(instance)) {
            // What it did not return nobody else can scrape: it does so when flushed, if not for any data source.
            if self
                .producers
                .get(&instance.producer)
                .is_some_and(Producer::scrapes_itself)
            {
                instances.get_or_insert_with(instance.producer, Vec::new);
            }
        }
        let waiting_for: OrderedSet<ProducerId> = instances.keys().copied().collect();
        let nobody = waiting_for.is_empty();
        let timeout = timeout.unwrap_or_else(|| session.flush_timeout());
        session.pending_flushes.insert(
            request,
            PendingFlush {
                waiting_for,
                purpose,
                flags,
            },
        );
        for (producer, instances) in instances {
            self.command(
                producer,
                ProducerCommand::Flush {
                    request,
                    instances,
                    flags,
                },
            );
        }
        if nobody {
            self.complete_flush(id, request, FlushOutcome::Succeeded, &mut OrderedSet::new(), now);
        } else {
            self.timers
                .set(after(now, timeout), Timer::FlushTimeout(id, request));
        }
    }

    /// The producer has committed everything up to this request, and so for every earlier one.
    pub(crate) fn flush_acknowledged(&mut self, producer: ProducerId, request: FlushRequestId, now: &Now) {
        self.strike_off(producer, request, now);
    }

    /// The producer is gone and will not acknowledge anything.
    pub(crate) fn forget_in_flushes(&mut self, producer: ProducerId, now: &Now) {
        self.strike_off(producer, FlushRequestId(u64::MAX), now);
    }

    fn strike_off(&mut self, producer: ProducerId, up_to: FlushRequestId, now: &Now) {
        let mut complete = Vec::new();
        for (id, session) in self.sessions.iter_mut() {
            for (request, flush) in session
                .pending_flushes
                .iter_mut()
                .take_while(|(request, _)| **request <= up_to)
            {
                if flush.waiting_for.remove(&producer) && flush.waiting_for.is_empty() {
                    complete.push((*id, *request));
                }
            }
        }
        let mut scraped = OrderedSet::new();
        for (session, request) in complete {
            self.complete_flush(session, request, FlushOutcome::Succeeded, &mut scraped, now);
        }
    }

    /// Producers had their time to acknowledge this flush. `scraped`: see [`Service::complete_flush`].
    pub(crate) fn flush_timed_out(
        &mut self,
        id: SessionId,
        request: FlushRequestId,
        scraped: &mut OrderedSet<SessionId>,
        now: &Now,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(flush) = session.pending_flushes.get(&request) else {
            return;
        };
        let silent = flush.waiting_for.len();
        if flags::is_last(flush.flags) {
            let slow = session
                .instances
                .values()
                .filter(|instance| flush.waiting_for.contains(&instance.producer));
            let slow = Absence::new(AbsenceKind::SlowToFlush, slow, &self.producers, now);
            session.note_absence(slow);
        }
        let line = format!(
            "tracing session {}: {silent} producers did not flush in time",
            id.0
        );
        self.log(LogLevel::Warning, line);
        self.complete_flush(id, request, FlushOutcome::Failed, scraped, now);
    }

    /// A flush has ended. `scraped` has the sessions with flushes that ended just now as well: for all of those, shared memory is scraped
    /// once.
    fn complete_flush(
        &mut self,
        id: SessionId,
        request: FlushRequestId,
        outcome: FlushOutcome,
        scraped: &mut OrderedSet<SessionId>,
        now: &Now,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(flush) = session.pending_flushes.remove(&request) else {
            return;
        };
        self.timers
            .forget(|timer| *timer == Timer::FlushTimeout(id, request));
        if scraped.insert(id) {
            // Producers may say that they are done and still hold chunks: writers of other threads, for one.
            self.scrape_all(id);
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.snapshot_clocks(now);
        session.note(LifecycleEvent::AllDataSourcesFlushed, now);
        match outcome {
            FlushOutcome::Succeeded => session.flushes_succeeded += 1,
            FlushOutcome::Failed => session.flushes_failed += 1,
        }
        let clone = match flush.purpose {
            FlushPurpose::Clone { clone, .. } => Some(clone),
            _ => None,
        };
        self.flush_finished(id, flush.purpose, outcome, now);
        if clone.is_some_and(|clone| !self.clones.contains_key(&clone)) && self.hands_buffers_over(id) {
            // The clone may have taken buffers away, and those that came in their place have nothing yet.
            scraped.remove(&id);
        }
    }

    /// Whether clones of this session take buffers away from it.
    fn hands_buffers_over(&self, id: SessionId) -> bool {
        let buffers = self.sessions.get(&id).map(|session| &session.config.buffers);
        let is_handed_over = |buffer: &BufferConfig| buffer.transfer_on_clone.unwrap_or_default();
        buffers.is_some_and(|buffers| buffers.iter().any(is_handed_over))
    }

    /// What a flush was wanted for can go on.
    fn flush_finished(&mut self, id: SessionId, purpose: FlushPurpose, outcome: FlushOutcome, now: &Now) {
        match purpose {
            FlushPurpose::Consumer { consumer, token } => self.flush_done(consumer, token, outcome),
            FlushPurpose::Periodic => {}
            FlushPurpose::BeforeFileWrite => self.drain_into_file(id, Drain::Periodic),
            FlushPurpose::Clone { clone, group } => self.flushed_for_clone(clone, group, outcome, now),
            FlushPurpose::Final => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                session.final_flush_outcome = match outcome {
                    FlushOutcome::Succeeded => FinalFlushOutcome::FINAL_FLUSH_SUCCEEDED,
                    FlushOutcome::Failed => FinalFlushOutcome::FINAL_FLUSH_FAILED,
                };
                if session.consumer.is_some() {
                    // The consumer may still want to read.
                    self.disable(id, now);
                } else {
                    self.free_session(id, now);
                }
            }
        }
    }

    /// Answers a consumer, if it is still there to hear it.
    fn flush_done(&mut self, consumer: ConsumerId, token: u64, outcome: FlushOutcome) {
        if self.consumers.contains_key(&consumer) {
            self.output(Output::FlushDone {
                consumer,
                token,
                outcome,
            });
        }
    }

    /// The session of these flushes is gone: whoever waits for them waits in vain.
    pub(crate) fn abandon_flushes(&mut self, flushes: OrderedMap<FlushRequestId, PendingFlush>) {
        for flush in flushes.into_values() {
            match flush.purpose {
                FlushPurpose::Consumer { .. } if self.is_ending => {}
                FlushPurpose::Consumer { consumer, token } => {
                    self.flush_done(consumer, token, FlushOutcome::Failed);
                }
                FlushPurpose::Clone { clone, .. } => {
                    self.fail_clone(
                        clone,
                        "the original session ended while it was being cloned".into(),
                    );
                }
                FlushPurpose::Periodic | FlushPurpose::BeforeFileWrite | FlushPurpose::Final => {}
            }
        }
    }
}
