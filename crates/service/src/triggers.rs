//! Triggers: names that producers activate, and that start, stop or snapshot the sessions whose configs name them.
//!
//! A session registers the names that it waits for. So an activation costs the same however many sessions and triggers there are, and a name that
//! nobody waits for costs one look-up. Each producer has a budget of activations.
//!
//! [`Triggers`] is the session's part. The trace holds a packet for each activation that the session waited for.

mod budget;
mod config;
mod history;
mod received;

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::observable_events;

use crate::clock::Now;
use crate::common::Common;
use crate::effort::Effort;
use crate::ids::{ProducerId, SessionId};
use crate::limits;
use crate::ordered::OrderedMap;
use crate::output::LogLevel;
use crate::service::Service;
use crate::session::{Session, State, Stop};
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

impl Registry {
    /// A session was configured: it waits for its triggers from now on.
    pub(crate) fn await_triggers(&mut self, session: &Session) {
        for (index, definition) in session.triggers.definitions().iter().enumerate() {
            let waiting = self.waiting.get_or_insert_with(definition.name.clone(), Vec::new);
            waiting.push((session.id, index));
        }
    }

    /// The session is gone and waits for nothing any more.
    pub(crate) fn forget(&mut self, session: &Session) {
        for definition in session.triggers.definitions() {
            let Some(waiting) = self.waiting.get_mut(&definition.name) else {
                continue;
            };
            waiting.retain(|(id, _)| *id != session.id);
            if waiting.is_empty() {
                self.waiting.remove(&definition.name);
            }
        }
    }
}

impl Service {
    /// The producer activates triggers. `random` is 64 random bits, from which it is drawn whether a trigger with a
    /// `skip_probability` is skipped.
    pub fn activate_triggers(
        &mut self,
        producer: ProducerId,
        names: &[impl AsRef<str>],
        random: u64,
        now: &Now,
    ) {
        let Some(entry) = self.common.producers.get_mut(producer) else {
            return;
        };
        let granted = match entry.trigger_budget.take(names.len(), now) {
            Granted::All => names.len(),
            Granted::Some(count) => count,
            Granted::SomeForTheFirstTime(count) => {
                self.common.outbox.warn(format!(
                    "producer {:?} activates more than {} triggers at once or {} a second: the others are ignored",
                    entry.name,
                    limits::TRIGGER_BURST,
                    limits::TRIGGERS_PER_SECOND
                ));
                count
            }
        };
        let names = &names[..granted];
        let is_awaited = |name: &_| self.triggers.waiting.contains_key(AsRef::<str>::as_ref(name));
        if !names.iter().any(is_awaited) {
            return;
        }
        let mut activation = Activation {
            sender: entry.name.clone(),
            sender_in_trace: beginning(&entry.name, limits::MAX_TRIGGER_PRODUCER_NAME).into(),
            uid: entry.credentials.uid,
            draws: Draws(random),
            effort: self.common.effort(),
        };
        for name in names {
            self.activate_trigger(name.as_ref(), &mut activation, now);
        }
    }

    fn activate_trigger(&mut self, name: &str, activation: &mut Activation, now: &Now) {
        let Some((name, waiting)) = self.triggers.waiting.get_key_value(name) else {
            return;
        };
        let (name, waiting) = (name.clone(), waiting.clone());
        let earlier = self.triggers.history.count(&name, now.boot);
        let mut matched = false;
        for (id, index) in waiting {
            self.on_session(id, now, |session, common| {
                matched |= session.trigger_activated(&name, index, earlier, activation, common, now);
            });
        }
        if matched {
            self.triggers.history.add(&name, now.boot);
        }
    }
}

/// Triggers that a producer activates at once.
struct Activation {
    sender: String,
    /// As much of its name as traces hold.
    sender_in_trace: Arc<str>,
    uid: u32,
    draws: Draws,
    effort: Effort,
}

impl Session {
    /// Whether it starts when a trigger comes.
    pub(crate) fn starts_with_trigger(&self) -> bool {
        self.triggers.mode() == Mode::StartTracing
    }

    /// It was configured: from now on counts how long it may wait for a trigger, or how long it lasts if none comes.
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
    fn trigger_activated(
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
        if !definition.admits(&activation.sender, &activation.effort)
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
        // The clocks as they were at the trigger, lest its time be translated by a later snapshot only. Before the start
        // there is none to be taken: the one of the start comes first in the trace, and readers want them in order.
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
            // It has started, or will stop, by an earlier one.
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
            // It was triggered before it was started: there is nothing to flush.
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
        // A message has room for one; what waits with an earlier one goes ahead.
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
