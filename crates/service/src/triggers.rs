//! Triggers: names that producers activate, and that start, stop or snapshot the sessions whose configs name them.
//!
//! A session registers the names it waits for, so that an activation costs the same however many sessions and triggers
//! there are, and what is not waited for costs one look-up. Producers have a budget of activations.
//!
//! [`Triggers`] is what a session keeps; the trace holds a packet for each activation that it was waiting for.

mod budget;
mod config;
mod history;
mod received;

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::observable_events;

use crate::clock::Now;
use crate::effort::Effort;
use crate::ids::{ProducerId, SessionId};
use crate::lifecycle::after;
use crate::limits;
use crate::ordered::OrderedMap;
use crate::output::{LogLevel, Output};
use crate::service::Service;
use crate::session::{Session, State};
use crate::timers::Timer;

use budget::Granted;
pub(crate) use budget::TriggerBudget;
use config::Mode;
pub(crate) use config::TriggerConfig;
use history::History;
pub(crate) use received::Triggers;
use received::{Hit, Kept, Postponed};

/// Who waits for which trigger, and how often each came.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Sessions by the name of the trigger, each with the trigger's index in its config.
    waiting: OrderedMap<Arc<str>, Vec<(SessionId, usize)>>,
    history: History,
}

/// Random numbers from [0, 1) made of one of 64 bits, so that all randomness of an activation is one value among its
/// inputs. The generator is SplitMix64.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // As many as a double holds exactly.
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Service {
    /// A session was configured: it waits for its triggers from now on. Whether it is to start with one of them.
    pub(crate) fn await_triggers(&mut self, id: SessionId, now: &Now) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        for (index, definition) in session.triggers.definitions().iter().enumerate() {
            let waiting = self
                .triggers
                .waiting
                .get_or_insert_with(definition.name.clone(), Vec::new);
            waiting.push((id, index));
        }
        let timeout_ms = session.triggers.timeout_ms();
        match session.triggers.mode() {
            Mode::Unspecified => false,
            Mode::StartTracing => {
                let deadline = after(now, Duration::from_millis(timeout_ms.into()));
                self.timers.set(deadline, Timer::StartTriggerTimeout(id));
                true
            }
            Mode::StopTracing | Mode::CloneSnapshot => {
                session.set_duration(timeout_ms);
                false
            }
        }
    }

    /// The session is gone and waits for nothing any more.
    pub(crate) fn forget_triggers(&mut self, session: &Session) {
        for definition in session.triggers.definitions() {
            let Some(waiting) = self.triggers.waiting.get_mut(&definition.name) else {
                continue;
            };
            waiting.retain(|(id, _)| *id != session.id);
            if waiting.is_empty() {
                self.triggers.waiting.remove(&definition.name);
            }
        }
    }

    /// The producer activates triggers. `random` is 64 random bits, from which it is drawn whether a trigger with a
    /// `skip_probability` is skipped.
    pub fn activate_triggers(
        &mut self,
        producer: ProducerId,
        names: &[impl AsRef<str>],
        random: u64,
        now: &Now,
    ) {
        let Some(sender) = self.producers.get_mut(&producer) else {
            return;
        };
        let granted = match sender.trigger_budget.take(names.len(), now) {
            Granted::All => names.len(),
            Granted::Some(count) => count,
            Granted::SomeForTheFirstTime(count) => {
                let line = format!(
                    "producer {:?} activates more than {} triggers at once or {} a second: the others are ignored",
                    sender.name,
                    limits::TRIGGER_BURST,
                    limits::TRIGGERS_PER_SECOND
                );
                self.log(LogLevel::Warning, line);
                count
            }
        };
        let mut draws = Draws(random);
        let effort = Effort::new(self.processor_clock);
        for name in &names[..granted] {
            self.activate_trigger(producer, name.as_ref(), &mut draws, &effort, now);
        }
    }

    fn activate_trigger(
        &mut self,
        producer: ProducerId,
        name: &str,
        draws: &mut Draws,
        effort: &Effort,
        now: &Now,
    ) {
        let Some((name, waiting)) = self.triggers.waiting.get_key_value(name) else {
            return;
        };
        let (name, waiting) = (name.clone(), waiting.clone());
        let Some(sender) = self.producers.get(&producer) else {
            return;
        };
        let sender_name: Arc<str> = beginning(&sender.name, limits::MAX_TRIGGER_PRODUCER_NAME).into();
        let sender_uid = sender.credentials.uid;
        let earlier = self.triggers.history.count(&name, now.boot);
        let mut matched = false;
        for (id, index) in waiting {
            let (Some(session), Some(sender)) = (self.sessions.get(&id), self.producers.get(&producer))
            else {
                continue;
            };
            let Some(definition) = session.triggers.definitions().get(index) else {
                continue;
            };
            // What is over neither starts nor stops, and what it recorded is not changed any more.
            if session.state == State::Disabled
                || !definition.admits(&sender.name, effort)
                || definition.skips(draws.next())
                || definition.is_spent(earlier)
            {
                continue;
            }
            matched = true;
            let hit = Hit {
                at: now.boot,
                trigger: name.clone(),
                producer: sender_name.clone(),
                producer_uid: sender_uid,
                delay_ms: definition.delay_ms,
            };
            self.trigger_hit(id, hit, now);
        }
        if matched {
            self.triggers.history.add(&name, now.boot);
        }
    }

    /// A trigger that a session waits for was activated.
    fn trigger_hit(&mut self, id: SessionId, hit: Hit, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let delay = Duration::from_millis(hit.delay_ms.into());
        let (mode, state, is_first) = (
            session.triggers.mode(),
            session.state,
            !session.triggers.was_hit(),
        );
        // The clocks as they were at the trigger, lest its time be translated by a later snapshot only. Before the start
        // there is none to be taken: the one of the start comes first in the trace, and readers want them in order.
        if state != State::Configured {
            session.snapshot_clocks(now);
        }
        if session.triggers.receive(hit.clone()) == Kept::NoForTheFirstTime {
            let line = format!(
                "tracing session {}: more than {} triggers that were not read yet: later ones take effect, but are not \
                 in the trace",
                id.0,
                limits::MAX_TRIGGERS_RECEIVED
            );
            self.outputs.push_back(Output::Log(LogLevel::Warning, line));
        }
        match mode {
            Mode::Unspecified => {}
            Mode::StartTracing if state == State::Configured => {
                session.set_duration(hit.delay_ms);
                let line = activation(session, &hit);
                self.log(LogLevel::Info, line);
                self.start_tracing(id, now);
            }
            Mode::StopTracing if is_first => {
                let line = activation(session, &hit);
                self.log(LogLevel::Info, line);
                self.timers.set(after(now, delay), Timer::TriggeredStop(id));
            }
            // It has started, or will stop, by an earlier one.
            Mode::StartTracing | Mode::StopTracing => {}
            Mode::CloneSnapshot => {
                let line = activation(session, &hit);
                match session.triggers.postpone(hit) {
                    Postponed::As(number) => {
                        self.log(LogLevel::Info, line);
                        self.timers
                            .set(after(now, delay), Timer::TriggeredSnapshot(id, number));
                    }
                    Postponed::TooMany => {}
                    Postponed::TooManyForTheFirstTime => {
                        let line = format!("{line}: ignored, too many snapshots of it are due already");
                        self.log(LogLevel::Warning, line);
                    }
                }
            }
        }
    }

    /// `duration_ms` is over.
    pub(crate) fn duration_over(&mut self, id: SessionId, now: &Now) {
        let stops_by_trigger =
            |session: &Session| session.triggers.mode() == Mode::StopTracing && session.triggers.was_hit();
        if !self.sessions.get(&id).is_some_and(stops_by_trigger) {
            self.flush_and_disable(id, now);
        }
    }

    /// No trigger has started the session in time: it ends, with nothing to be read.
    pub(crate) fn start_trigger_timed_out(&mut self, id: SessionId, now: &Now) {
        if self
            .sessions
            .get(&id)
            .is_some_and(|session| session.state == State::Configured)
        {
            self.disable(id, now);
        }
    }

    /// The session stops now, as a trigger wanted.
    pub(crate) fn triggered_stop(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        match (session.state, session.consumer) {
            // It was triggered before it was started: there is nothing to flush.
            (State::Configured, Some(_)) => self.disable(id, now),
            _ => self.flush_and_disable(id, now),
        }
    }

    /// The snapshot that a trigger wanted is due: the consumer, if it observes such things, is to clone the session.
    pub(crate) fn triggered_snapshot(&mut self, id: SessionId, number: u64) {
        use observable_events::{CloneTriggerHit, Type};
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (hit, consumer) = (session.triggers.take_pending(number), session.consumer);
        let (Some(hit), Some(consumer)) = (hit, consumer) else {
            return;
        };
        // A message has room for one; what waits with an earlier one goes ahead.
        let waiting = self
            .consumers
            .get(&consumer)
            .and_then(|observer| observer.events.as_ref());
        if waiting.is_some_and(|events| events.clone_trigger_hit.is_set()) {
            let earlier = self.take_events(consumer);
            self.outputs.extend(earlier);
        }
        let Some(events) = self.events_for(consumer, Type::TYPE_CLONE_TRIGGER_HIT) else {
            return;
        };
        events.clone_trigger_hit = CloneTriggerHit {
            tracing_session_id: Some(id.0 as i64),
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
fn activation(session: &Session, hit: &Hit) -> String {
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

/// At most so many bytes of a text.
pub(crate) fn beginning(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_spread_evenly_over_the_interval() {
        let mut tenths = [0; 10];
        for random in 0..1000 {
            let mut draws = Draws(random);
            for _ in 0..10 {
                let draw = draws.next();
                assert!((0.0..1.0).contains(&draw));
                tenths[(draw * 10.0) as usize] += 1;
            }
        }
        assert!(
            tenths.iter().all(|count| (900..1100).contains(count)),
            "{tenths:?}"
        );
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_waits_for_any_more() {
        use ferretto_proto::messages::trace_config::trigger_config::Trigger;
        use ferretto_proto::messages::{Message, TraceConfig};
        let mut service = Service::new(crate::Identity::default());
        let mut config = TraceConfig::default();
        config.trigger_config.get_or_insert_default().triggers = vec![Trigger {
            name: Some("t".into()),
            ..Default::default()
        }];
        let now = Now::default();
        let consumers = [1, 2].map(|uid| service.connect_consumer(uid));
        for consumer in consumers {
            let input = crate::ConfigInput {
                bytes: config.encode_to_vec().into(),
                config: config.clone(),
            };
            let file = crate::OutputFile::None;
            service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        }
        service.disconnect_consumer(consumers[0], &now);
        assert_eq!(service.triggers.waiting.len(), 1);
        service.disconnect_consumer(consumers[1], &now);
        assert_eq!(service.triggers.waiting.len(), 0);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(beginning("caf\u{e9}", 4), "caf");
        assert_eq!(beginning("caf\u{e9}", 5), "caf\u{e9}");
        assert_eq!(beginning("", 5), "");
    }
}
