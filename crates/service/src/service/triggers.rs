//! Activations of triggers: which sessions wait for a name, and how often it may come.
//!
//! A session registers the names that it waits for. So an activation costs the same however many sessions and triggers there are, and a name without
//! a waiting session costs one look-up.

use std::sync::Arc;

use super::Service;
use crate::clock::Now;
use crate::ids::{ProducerId, SessionId};
use crate::limits;
use crate::ordered::OrderedMap;
use crate::session::Session;
use crate::triggers::{Activation, Draws, Granted, History, beginning};
use crate::work_budget::WorkBudget;

/// The sessions that wait for each trigger, and how often each came.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Sessions by the name of the trigger, each with the trigger's index in its config.
    waiting: OrderedMap<Arc<str>, Vec<(SessionId, usize)>>,
    history: History,
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
            budget: WorkBudget::new(limits::MAX_MATCHING_WORK),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_without_waiting_producers_are_forgotten() {
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
}
