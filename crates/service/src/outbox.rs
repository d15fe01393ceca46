//! The outputs of the service, in order, until [`Service::poll`](crate::Service::poll) hands them out.
//!
//! All messages of the service to clients and to its driver go through here, so the rules are kept in one place. An output names only clients that
//! are connected; when a producer disconnects, its outputs are taken back. A consumer hears of events before it hears of anything later.

use std::collections::VecDeque;

use ferretto_proto::messages::{ObservableEvents, observable_events};

use crate::ids::{ConsumerId, ProducerId};
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{LogLevel, Output, ProducerCommand};

/// A consumer that is connected, as one that observes events.
#[derive(Debug, Default)]
struct Observer {
    /// Bits of `ObservableEvents.Type`.
    kinds: u32,
    /// Events since the last output.
    events: Option<Box<ObservableEvents>>,
}

/// The outputs that wait.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    outputs: VecDeque<Output>,
    observers: OrderedMap<ConsumerId, Observer>,
    /// Observers with events to be sent.
    due: OrderedSet<ConsumerId>,
}

impl Outbox {
    pub(crate) fn consumer_connected(&mut self, consumer: ConsumerId) {
        self.observers.insert(consumer, Observer::default());
    }

    /// A consumer disconnected: its outputs are taken back.
    pub(crate) fn consumer_gone(&mut self, consumer: ConsumerId) {
        self.observers.remove(&consumer);
        self.due.remove(&consumer);
        self.outputs.retain(|output| output.consumer() != Some(consumer));
    }

    /// A producer disconnected: its outputs are taken back.
    pub(crate) fn producer_gone(&mut self, producer: ProducerId) {
        self.outputs.retain(|output| output.producer() != Some(producer));
    }

    /// Whether this consumer is connected.
    pub(crate) fn reaches(&self, consumer: ConsumerId) -> bool {
        self.observers.contains_key(&consumer)
    }

    /// Queues an output, unless its client is gone.
    pub(crate) fn push(&mut self, output: Output) {
        if let Some(consumer) = output.consumer() {
            if !self.reaches(consumer) {
                return;
            }
            self.push_events(consumer);
        }
        self.outputs.push_back(output);
    }

    /// Has this done before anything that waits.
    pub(crate) fn push_first(&mut self, output: Output) {
        self.outputs.push_front(output);
    }

    pub(crate) fn log(&mut self, level: LogLevel, line: String) {
        self.outputs.push_back(Output::Log(level, line));
    }

    pub(crate) fn warn(&mut self, line: impl Into<String>) {
        self.log(LogLevel::Warning, line.into());
    }

    pub(crate) fn command(&mut self, producer: ProducerId, command: ProducerCommand) {
        self.outputs.push_back(Output::ToProducer(producer, command));
    }

    /// Has a consumer observe these kinds of events: bits of `ObservableEvents.Type`.
    pub(crate) fn observe(&mut self, consumer: ConsumerId, kinds: u32) {
        if let Some(observer) = self.observers.get_mut(&consumer) {
            observer.kinds = kinds;
        }
    }

    /// The events that wait to be sent to a consumer, if it observes this kind.
    pub(crate) fn events_for(
        &mut self,
        consumer: ConsumerId,
        kind: observable_events::Type,
    ) -> Option<&mut ObservableEvents> {
        let observer = self.observers.get_mut(&consumer)?;
        if observer.kinds & kind as u32 == 0 {
            return None;
        }
        self.due.insert(consumer);
        Some(observer.events.get_or_insert_default())
    }

    /// The events that wait to be sent to a consumer, of all types that it observes.
    pub(crate) fn waiting_events(&self, consumer: ConsumerId) -> Option<&ObservableEvents> {
        self.observers.get(&consumer)?.events.as_deref()
    }

    /// Has the events sent that wait for a consumer.
    pub(crate) fn push_events(&mut self, consumer: ConsumerId) {
        let events = self.take_events(consumer);
        self.outputs.extend(events);
    }

    fn take_events(&mut self, consumer: ConsumerId) -> Option<Output> {
        self.due.remove(&consumer);
        let events = self.observers.get_mut(&consumer)?.events.take()?;
        Some(Output::Observed { consumer, events })
    }

    /// Removes and returns the next output.
    pub(crate) fn pop(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let observer = *self.due.first()?;
        self.take_events(observer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;
    use crate::output::FlushOutcome;
    use observable_events::Type;

    const CONSUMER: ConsumerId = ConsumerId(1);

    fn answer() -> Output {
        Output::FlushDone {
            consumer: CONSUMER,
            token: 1,
            outcome: FlushOutcome::Succeeded,
        }
    }

    /// The outputs that wait, by their names.
    fn names(outbox: &mut Outbox) -> Vec<String> {
        let outputs = std::iter::from_fn(|| outbox.pop());
        let name = |output: Output| {
            format!("{output:?}")
                .split([' ', '('])
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        outputs.map(name).collect()
    }

    #[test]
    fn a_consumer_that_is_not_connected_gets_no_message() {
        let mut outbox = Outbox::default();
        outbox.push(answer());
        assert_eq!(names(&mut outbox), [""; 0]);
        outbox.consumer_connected(CONSUMER);
        outbox.push(answer());
        outbox.push(Output::FileDue(SessionId(1)));
        outbox.consumer_gone(CONSUMER);
        assert_eq!(names(&mut outbox), ["FileDue"]);
    }

    #[test]
    fn events_come_before_a_later_answer_and_after_outputs_for_others() {
        let mut outbox = Outbox::default();
        outbox.consumer_connected(CONSUMER);
        let kind = Type::TYPE_ALL_DATA_SOURCES_STARTED;
        assert!(outbox.events_for(CONSUMER, kind).is_none());
        outbox.observe(CONSUMER, kind as u32);
        outbox
            .events_for(CONSUMER, kind)
            .unwrap()
            .all_data_sources_started = Some(true);
        outbox.push(answer());
        outbox
            .events_for(CONSUMER, kind)
            .unwrap()
            .all_data_sources_started = Some(true);
        outbox.push(Output::FileDue(SessionId(1)));
        assert_eq!(
            names(&mut outbox),
            ["Observed", "FlushDone", "FileDue", "Observed"]
        );
    }

    #[test]
    fn each_consumer_hears_of_the_kinds_of_events_that_it_observes() {
        let mut outbox = Outbox::default();
        let kinds = [Type::TYPE_ALL_DATA_SOURCES_STARTED, Type::TYPE_CLONE_TRIGGER_HIT];
        for (id, kind) in (1..).zip(kinds) {
            outbox.consumer_connected(ConsumerId(id));
            outbox.observe(ConsumerId(id), kind as u32);
        }
        for kind in kinds {
            let told = [1, 2].map(|id| outbox.events_for(ConsumerId(id), kind).is_some());
            assert_eq!(told, kinds.map(|observed| observed == kind));
        }
        assert_eq!(names(&mut outbox), ["Observed", "Observed"]);
    }
}
