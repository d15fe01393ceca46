//! The effect of triggers on a session: one starts it, stops it, or has its consumer clone it.

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::observable_events;

use super::common::Common;
use super::{Session, State, Stop};
use crate::clock::Now;
use crate::limits;
use crate::output::LogLevel;
use crate::timers::Timer;
use crate::triggers::{Activation, Hit, Kept, Mode, Postponed};

impl Session {
    /// Whether it starts when a trigger comes.
    pub(crate) fn starts_with_trigger(&self) -> bool {
        self.triggers.mode() == Mode::StartTracing
    }

    /// The session was configured. Sets the deadline for a trigger to come, or for the end of the session without one.
    pub(crate) fn set_trigger_timeout(&mut self, common: &mut Common, now: &Now) {
        let timeout_ms = self.triggers.timeout_ms();
        match self.triggers.mode() {
            Mode::Unspecified => {}
            Mode::StartTracing => {
                let deadline = now.after(Duration::from_millis(timeout_ms.into()));
                common.timers.set(self.id, deadline, Timer::StartTriggerTimeout);
            }
            Mode::StopTracing | Mode::CloneSnapshot => self.set_duration(timeout_ms),
        }
    }

    /// A producer activated the trigger at this index of the config; it had been activated `earlier` times before. Returns whether it counts
    /// for this session.
    pub(crate) fn trigger_activated(
        &mut self,
        name: &Arc<str>,
        index: usize,
        earlier: u64,
        activation: &mut Activation,
        common: &mut Common,
        now: &Now,
    ) -> bool {
        // A session that is over neither starts nor stops, and its trace does not change any more.
        if self.state == State::Disabled {
            return false;
        }
        let definition = &self.triggers.definitions()[index];
        if !definition.admits(&activation.sender, &activation.budget)
            || definition.skips(activation.draws.next())
            || definition.is_spent(earlier)
        {
            return false;
        }
        let hit = Hit {
            at: now.boot,
            trigger: name.clone(),
            producer: activation.sender_in_trace.clone(),
            producer_uid: activation.uid,
            delay_ms: definition.delay_ms,
        };
        self.trigger_hit(hit, common, now);
        true
    }

    /// A trigger that the session waits for was activated.
    fn trigger_hit(&mut self, hit: Hit, common: &mut Common, now: &Now) {
        let delay = Duration::from_millis(hit.delay_ms.into());
        let is_first = !self.triggers.was_hit();
        // Reads the clocks at the trigger, so that a nearby snapshot translates its time. Before the start no snapshot is taken, because the one of
        // the start has to come first in the trace.
        if self.state != State::Configured {
            self.snapshot_clocks(now);
        }
        if self.triggers.receive(hit.clone()) == Kept::NoForTheFirstTime {
            common.outbox.warn(format!(
                "tracing session {}: more than {} triggers that were not read yet: later ones take effect, but are not \
                 in the trace",
                self.id,
                limits::MAX_TRIGGERS_RECEIVED
            ));
        }
        match self.triggers.mode() {
            Mode::Unspecified => {}
            Mode::StartTracing if self.state == State::Configured => {
                self.set_duration(hit.delay_ms);
                common.outbox.log(LogLevel::Info, activation_line(self, &hit));
                self.start(common, now);
            }
            Mode::StopTracing if is_first => {
                common.outbox.log(LogLevel::Info, activation_line(self, &hit));
                common.timers.set(self.id, now.after(delay), Timer::TriggeredStop);
            }
            // An earlier trigger has started it, or will stop it.
            Mode::StartTracing | Mode::StopTracing => {}
            Mode::CloneSnapshot => {
                let line = activation_line(self, &hit);
                match self.triggers.postpone(hit) {
                    Postponed::As(number) => {
                        common.outbox.log(LogLevel::Info, line);
                        let timer = Timer::TriggeredSnapshot(number);
                        common.timers.set(self.id, now.after(delay), timer);
                    }
                    Postponed::TooMany => {}
                    Postponed::TooManyForTheFirstTime => common.outbox.warn(format!(
                        "{line}: ignored, too many snapshots of it are due already"
                    )),
                }
            }
        }
    }

    /// `duration_ms` is over.
    pub(crate) fn duration_over(&mut self, common: &mut Common, now: &Now) {
        let stops_by_trigger = self.triggers.mode() == Mode::StopTracing && self.triggers.was_hit();
        if !stops_by_trigger {
            self.flush_and_stop(common, now);
        }
    }

    /// No trigger has started the session in time: it ends, with nothing to be read.
    pub(crate) fn start_trigger_timed_out(&mut self, common: &mut Common, now: &Now) {
        if self.state == State::Configured {
            self.stop(Stop::Graceful, common, now);
        }
    }

    /// The session stops now, as a trigger wanted.
    pub(crate) fn triggered_stop(&mut self, common: &mut Common, now: &Now) {
        match (self.state, self.consumer) {
            // It was triggered before it was started, so there is nothing to flush.
            (State::Configured, Some(_)) => self.stop(Stop::Graceful, common, now),
            _ => self.flush_and_stop(common, now),
        }
    }

    /// The snapshot that a trigger wanted is due: the consumer, if it observes such things, is to clone the session.
    pub(crate) fn triggered_snapshot(&mut self, number: u64, common: &mut Common) {
        use observable_events::{CloneTriggerHit, Type};
        let (Some(hit), Some(consumer)) = (self.triggers.take_pending(number), self.consumer) else {
            return;
        };
        // A message has room for one; events that wait with an earlier one go ahead.
        let waiting = common.outbox.waiting_events(consumer);
        if waiting.is_some_and(|events| events.clone_trigger_hit.is_set()) {
            common.outbox.push_events(consumer);
        }
        let Some(events) = common.outbox.events_for(consumer, Type::TYPE_CLONE_TRIGGER_HIT) else {
            return;
        };
        events.clone_trigger_hit = CloneTriggerHit {
            tracing_session_id: Some(self.id.0 as i64),
            trigger_name: Some(hit.trigger.to_string()),
            producer_name: Some(hit.producer.to_string()),
            producer_uid: Some(hit.producer_uid),
            boot_time_ns: Some(hit.at),
            trigger_delay_ms: Some(hit.delay_ms.into()),
            ..Default::default()
        }
        .into();
    }
}

/// The line in the log about a trigger that does something.
fn activation_line(session: &Session, hit: &Hit) -> String {
    format!(
        "trigger {:?} of producer {:?} activated: {} in tracing session {}, name {:?}, trace {:032x}",
        hit.trigger,
        hit.producer,
        session.triggers.mode().name(),
        session.id.0,
        session.config.unique_session_name.as_deref().unwrap_or_default(),
        session.uuid
    )
}
