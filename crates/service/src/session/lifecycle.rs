//! The life of a session after its set-up: start, acknowledgements, stop, end.

use std::time::Duration;

use ferretto_proto::messages::observable_events;

use super::absences::{Absence, AbsenceKind, Absent};
use super::stop::Stopping;
use super::{Drain, FlushStrategy, InstanceState, LifecycleEvent, Session, State, Stop};
use crate::clock::Now;
use crate::ids::DataSourceInstanceId;
use crate::limits;
use crate::output::{Output, ProducerCommand};
use crate::session::common::{Common, Effect};
use crate::timers::Timer;
use crate::triggers::beginning;

impl Session {
    /// A deadline of this session is over.
    pub(crate) fn timer_fired(&mut self, timer: Timer, common: &mut Common, now: &Now) {
        match timer {
            Timer::Duration => self.duration_over(common, now),
            Timer::Snapshot => self.snapshot(common, now),
            Timer::FileWrite => self.file_write_due(common, now),
            Timer::PeriodicFlush => self.periodic_flush(common, now),
            Timer::ClearIncrementalState => self.clear_incremental_state(common, now),
            Timer::StopTimeout => self.stop_timed_out(common, now),
            Timer::FlushTimeout(request) => self.flush_timed_out(request, common, now),
            Timer::AllStartedTimeout => self.all_started_timed_out(common, now),
            Timer::StartTriggerTimeout => self.start_trigger_timed_out(common, now),
            Timer::TriggeredStop => self.triggered_stop(common, now),
            Timer::TriggeredSnapshot(number) => self.triggered_snapshot(number, common),
            Timer::FileAbandoned => self.give_up_idle_file(common, now),
        }
    }

    /// Recording begins.
    pub(crate) fn start(&mut self, common: &mut Common, now: &Now) {
        if self.state != State::Configured {
            return common.outbox.warn(format!(
                "cannot start tracing session {}: it is {}",
                self.id,
                self.state.name()
            ));
        }
        self.enter(State::Started, common, now);
        self.start_realtime = Some(now.realtime);
        if !self.builtin().disable_clock_snapshotting.unwrap_or_default() {
            self.notes.initial_clocks = Some(*now);
        }
        self.notes.note(LifecycleEvent::TracingStarted, now);

        let timers = &mut common.timers;
        let duration = Duration::from_millis(self.config.duration_ms.unwrap_or_default().into());
        if !duration.is_zero() {
            let clock = self.duration_clock();
            timers.set_on(clock, self.id, now.after_on(clock, duration), Timer::Duration);
        }
        if let Some(file) = &self.file {
            timers.set(self.id, now.next_multiple(file.write_period()), Timer::FileWrite);
        }
        if let FlushStrategy::Every(period) = self.flushes.strategy {
            timers.set(self.id, now.next_multiple(period), Timer::PeriodicFlush);
        }
        if let Some(period) = self.clear_period() {
            timers.set(self.id, now.next_multiple(period), Timer::ClearIncrementalState);
        }
        self.snapshot(common, now);
        for instance in self.instances.ids() {
            self.start_instance(instance, common, now);
        }
        self.notify_all_started(common, now);
        // Without a consumer, the notice that all have started is not given, so the timeout would report all of them as slow.
        if self.consumer.is_some() {
            let deadline = now.after(limits::ALL_STARTED_TIMEOUT);
            common.timers.set(self.id, deadline, Timer::AllStartedTimeout);
        }
    }

    /// Clocks, sync marker and statistics are taken at the start and at every interval, to be written at the next
    /// read-back.
    fn snapshot(&mut self, common: &mut Common, now: &Now) {
        if self.state != State::Started {
            return;
        }
        self.notes.sync_marker_due = true;
        self.notes.stats_due = true;
        self.snapshot_clocks(now);
        let (clock, interval) = (self.snapshot_clock(), self.snapshot_interval());
        let next = now.next_multiple_on(clock, interval);
        common.timers.set_on(clock, self.id, next, Timer::Snapshot);
    }

    pub(super) fn start_instance(&mut self, id: DataSourceInstanceId, common: &mut Common, now: &Now) {
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        let state = if instance.will_notify_on_start {
            InstanceState::Starting
        } else {
            InstanceState::Started
        };
        let (producer, config) = (instance.producer, instance.config.clone());
        self.note_offer(instance.source);
        self.set_instance_state(id, state, common);
        let command = ProducerCommand::StartDataSource { instance: id, config };
        common.outbox.command(producer, command);
        if state == InstanceState::Started {
            self.notify_all_started(common, now);
        }
    }

    /// Changes the state of an instance, and tells the consumer if it observes such changes.
    fn set_instance_state(&mut self, id: DataSourceInstanceId, state: InstanceState, common: &mut Common) {
        self.instances.set_state(id, state);
        self.observe_instance(id, common);
    }

    /// A producer says that an instance has started.
    pub(crate) fn instance_started(&mut self, id: DataSourceInstanceId, common: &mut Common, now: &Now) {
        let is_starting = self.instances.state(id) == Some(InstanceState::Starting);
        if is_starting && self.state == State::Started {
            self.set_instance_state(id, InstanceState::Started, common);
            self.notify_all_started(common, now);
        }
    }

    /// A producer says that an instance has stopped.
    pub(crate) fn instance_stopped(&mut self, id: DataSourceInstanceId, common: &mut Common, now: &Now) {
        if self.instances.state(id) == Some(InstanceState::Stopping) {
            self.set_instance_state(id, InstanceState::Stopped, common);
            self.end_stop(common, now);
        }
    }

    /// Tells the consumer, once, when every instance has started.
    pub(crate) fn notify_all_started(&mut self, common: &mut Common, now: &Now) {
        let Some(consumer) = self.consumer else { return };
        if self.all_started_notified
            || self.state != State::Started
            || !self.instances.all(InstanceState::Started)
        {
            return;
        }
        self.all_started_notified = true;
        self.snapshot_clocks(now);
        self.notes.note(LifecycleEvent::AllDataSourcesStarted, now);
        let kind = observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED;
        if let Some(events) = common.outbox.events_for(consumer, kind) {
            events.all_data_sources_started = Some(true);
        }
    }

    fn all_started_timed_out(&mut self, common: &mut Common, now: &Now) {
        if self.all_started_notified || self.consumer.is_none() {
            return;
        }
        let slow = self
            .instances
            .values()
            .filter(|instance| instance.state != InstanceState::Started);
        let slow = Absence::new(AbsenceKind::SlowToStart, slow, &common.producers, now);
        for Absent { producer, source } in &slow.who {
            let producer = producer.as_deref().unwrap_or_default();
            common.outbox.warn(format!(
                "data source {source:?} of producer {producer:?} has not started within 20 s"
            ));
        }
        self.notes.absences.note(slow);
    }

    fn clear_incremental_state(&mut self, common: &mut Common, now: &Now) {
        let (State::Started, Some(period)) = (self.state, self.clear_period()) else {
            return;
        };
        let next = now.next_multiple(period);
        common.timers.set(self.id, next, Timer::ClearIncrementalState);
        let of_producers = self
            .instances
            .grouped(|instance| instance.handles_incremental_state_clear);
        for (producer, instances) in of_producers {
            let command = ProducerCommand::ClearIncrementalState { instances };
            common.outbox.command(producer, command);
        }
    }

    /// Recording ends; the buffers stay to be read.
    pub(crate) fn stop(&mut self, stop: Stop, common: &mut Common, now: &Now) {
        let stop = match self.state.on_stop(stop) {
            None => return,
            Some(Stopping::CutShort) => return self.stopped(common, now),
            Some(Stopping::Begin(stop)) => stop,
        };
        for absence in self.absences_at_the_end(&common.producers, now) {
            self.notes.absences.note(absence);
        }
        // Other sessions hear of this state only if there is something to wait for.
        self.state = State::DisablingWaitingStopAcks;
        for instance in self.instances.ids() {
            self.stop_instance(instance, stop, common);
        }
        if !self.instances.all(InstanceState::Stopped) {
            self.enter(State::DisablingWaitingStopAcks, common, now);
            let deadline = now.after(self.stop_timeout());
            common.timers.set(self.id, deadline, Timer::StopTimeout);
        }
        self.end_stop(common, now);
    }

    /// The stop is complete when every instance has stopped.
    fn end_stop(&mut self, common: &mut Common, now: &Now) {
        if self.state == State::DisablingWaitingStopAcks && self.instances.all(InstanceState::Stopped) {
            self.stopped(common, now);
        }
    }

    fn stop_instance(&mut self, id: DataSourceInstanceId, stop: Stop, common: &mut Common) {
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        if matches!(instance.state, InstanceState::Stopping | InstanceState::Stopped) {
            return;
        }
        let state = match stop {
            Stop::Graceful if instance.will_notify_on_stop => InstanceState::Stopping,
            Stop::Graceful | Stop::AtOnce => InstanceState::Stopped,
        };
        let producer = instance.producer;
        self.set_instance_state(id, state, common);
        let command = ProducerCommand::StopDataSource { instance: id };
        common.outbox.command(producer, command);
    }

    /// An instance ends because its producer or data source is gone.
    pub(crate) fn end_instance(&mut self, id: DataSourceInstanceId, common: &mut Common, now: &Now) {
        match self.instances.state(id) {
            None | Some(InstanceState::Stopped) => {}
            // The session waits for an acknowledgement that will not come.
            Some(InstanceState::Stopping) => self.instance_stopped(id, common, now),
            Some(_) => self.stop_instance(id, Stop::AtOnce, common),
        }
        self.instances.remove(id);
        self.notify_all_started(common, now);
    }

    fn stop_timed_out(&mut self, common: &mut Common, now: &Now) {
        if self.state != State::DisablingWaitingStopAcks {
            return;
        }
        let silent = self
            .instances
            .values()
            .filter(|instance| instance.state != InstanceState::Stopped)
            .count();
        common.outbox.warn(format!(
            "tracing session {}: {silent} data sources did not acknowledge the stop in time",
            self.id
        ));
        self.stopped(common, now);
    }

    /// No producer records any more: saves chunks that producers did not return, completes the file, tells the consumer.
    fn stopped(&mut self, common: &mut Common, now: &Now) {
        self.enter(State::Disabled, common, now);
        for id in self.instances.ids() {
            if self.instances.state(id) != Some(InstanceState::Stopped) {
                self.set_instance_state(id, InstanceState::Stopped, common);
            }
        }
        self.scrape_all(common);
        self.snapshot_clocks(now);
        self.notes.note(LifecycleEvent::TracingDisabled, now);
        if self.file.is_some() {
            self.notes.stats_due = true;
            self.drain_into_file(Drain::Final, common);
        } else {
            self.announce_disabled(common);
        }
    }

    /// The consumer may now read, or open the file.
    pub(crate) fn announce_disabled(&mut self, common: &mut Common) {
        let consumer = self.consumer.filter(|consumer| common.outbox.reaches(*consumer));
        self.end_untold = consumer.is_none();
        if let Some(consumer) = consumer {
            common.outbox.push(Output::TracingDisabled {
                consumer,
                session: self.id,
                error: self.disabled_error.take(),
            });
        }
    }

    /// Ends everything that the session holds; if it streams into a file, once that is complete or was given up.
    pub(crate) fn free(&mut self, common: &mut Common, now: &Now) {
        self.stop(Stop::AtOnce, common, now);
        if self.file.is_none() {
            return common.effects.push_back(Effect::Over(self.id));
        }
        if std::mem::replace(&mut self.is_freed, true) {
            return;
        }
        let deadline = now.after(limits::ABANDONED_FILE_PATIENCE);
        common.timers.set(self.id, deadline, Timer::FileAbandoned);
        self.detach_key = None;
        self.abandon_flushes(common);
        common.effects.push_back(Effect::PriorityReleased);
    }

    /// Reports the state of an instance to the consumer, if it observes such changes.
    pub(crate) fn observe_instance(&self, id: DataSourceInstanceId, common: &mut Common) {
        use observable_events::{DataSourceInstanceState, DataSourceInstanceStateChange, Type};
        let (Some(consumer), Some(instance)) = (self.consumer, self.instances.get(id)) else {
            return;
        };
        let state = match instance.state {
            InstanceState::Started => DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED,
            InstanceState::Configured | InstanceState::Stopped => {
                DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STOPPED
            }
            InstanceState::Starting | InstanceState::Stopping => return,
        };
        let events = common
            .outbox
            .events_for(consumer, Type::TYPE_DATA_SOURCES_INSTANCES);
        let Some(events) = events else { return };
        let producer = common.producers.get(instance.producer);
        events.instance_state_changes.push(DataSourceInstanceStateChange {
            producer_name: producer
                .map(|producer| beginning(&producer.name, limits::MAX_LISTED_NAME).to_owned()),
            data_source_name: Some(instance.name.clone()),
            state: Some(state),
            ..Default::default()
        });
    }

    fn clear_period(&self) -> Option<Duration> {
        let ms = self.config.incremental_state_config.clear_period_ms;
        let ms = ms.filter(|ms| *ms != 0)?;
        Some(Duration::from_millis(ms.into()))
    }
}
