//! The life of a session after it was configured: start, acknowledgements, stop, end.

use std::time::Duration;

use ferretto_proto::messages::{Message, TraceConfig, observable_events};

use crate::absences::{Absence, AbsenceKind, Absent};
use crate::clock::Now;
use crate::enable::{Attention, ConfigInput, only_filters_differ, resolve_targets};
use crate::ids::{ConsumerId, DataSourceInstanceId, ProducerId, SessionId};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{LogLevel, Output, ProducerCommand};
use crate::readback::Readout;
use crate::service::Service;
use crate::session::{Drain, FlushStrategy, InstanceState, LifecycleEvent, Session, State};
use crate::timers::{Clock, Timer};
use crate::wanted::Wanted;

/// Whether producers get time to acknowledge that they stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Graceful,
    AtOnce,
}

impl Service {
    /// The consumer starts the session that it configured with `deferred_start`.
    pub fn start_deferred(&mut self, consumer: ConsumerId, now: &Now) {
        match self.session_of(consumer) {
            Some(session) => self.start_tracing(session, now),
            None => self.log(
                LogLevel::Warning,
                "a consumer without a session asked to start tracing".into(),
            ),
        }
    }

    pub(crate) fn start_tracing(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.state != State::Configured {
            let line = format!(
                "cannot start tracing session {}: it is {}",
                id.0,
                session.state.name()
            );
            return self.log(LogLevel::Warning, line);
        }
        self.enter_state(id, State::Started, now);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.start_realtime = Some(now.realtime);
        // Kept apart from later snapshots, which may replace each other: without the first one nothing in the trace
        // could be placed in time.
        if !session.builtin().disable_clock_snapshotting.unwrap_or_default() {
            session.initial_clocks = Some(*now);
        }
        session.note(LifecycleEvent::TracingStarted, now);

        let duration = Duration::from_millis(session.config.duration_ms.unwrap_or_default().into());
        if !duration.is_zero() {
            let clock = session.duration_clock();
            self.timers
                .set_on(clock, after_on(clock, now, duration), Timer::Duration(id));
        }
        if let Some(file) = &session.file {
            self.timers
                .set(next_multiple(now, file.write_period), Timer::FileWrite(id));
        }
        if let FlushStrategy::Every(period) = session.flush_strategy {
            self.timers
                .set(next_multiple(now, period), Timer::PeriodicFlush(id));
        }
        if let Some(period) = clear_period(session) {
            self.timers
                .set(next_multiple(now, period), Timer::ClearIncrementalState(id));
        }
        self.snapshot(id, now);
        for instance in self.instance_ids(id) {
            self.start_instance(id, instance, now);
        }
        self.notify_all_started(id, now);
        // While nobody is attached, nobody is told that all have started, so it would seem that none has.
        if self
            .sessions
            .get(&id)
            .is_some_and(|session| session.consumer.is_some())
        {
            self.timers.set(
                after(now, limits::ALL_STARTED_TIMEOUT),
                Timer::AllStartedTimeout(id),
            );
        }
    }

    /// Clocks, sync marker and statistics are taken at the start and at every interval, to be written at the next
    /// read-back.
    pub(crate) fn snapshot(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self
            .sessions
            .get_mut(&id)
            .filter(|session| session.state == State::Started)
        else {
            return;
        };
        session.sync_marker_due = true;
        session.stats_due = true;
        session.snapshot_clocks(now);
        let (clock, interval) = (session.snapshot_clock(), session.snapshot_interval());
        self.timers
            .set_on(clock, next_multiple_on(clock, now, interval), Timer::Snapshot(id));
    }

    pub(crate) fn start_instance(&mut self, id: SessionId, instance_id: DataSourceInstanceId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(instance) = session.instances.get(instance_id) else {
            return;
        };
        let state = if instance.will_notify_on_start {
            InstanceState::Starting
        } else {
            InstanceState::Started
        };
        let (producer, config) = (instance.producer, instance.config.clone());
        if let Some(was_offered) = session.was_offered.get_mut(instance.source) {
            *was_offered = true;
        }
        session.instances.set_state(instance_id, state);
        self.observe_instance(id, instance_id);
        self.command(
            producer,
            ProducerCommand::StartDataSource {
                instance: instance_id,
                config,
            },
        );
        if state == InstanceState::Started {
            self.notify_all_started(id, now);
        }
    }

    /// The producer says that an instance has started.
    pub fn data_source_started(&mut self, producer: ProducerId, instance: u64, now: &Now) {
        let id = DataSourceInstanceId(instance);
        let Some((session_id, state)) = self.session_of_instance(producer, id) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return;
        };
        if session.state != State::Started || state != InstanceState::Starting {
            return;
        }
        session.instances.set_state(id, InstanceState::Started);
        self.observe_instance(session_id, id);
        self.notify_all_started(session_id, now);
    }

    /// The producer says that an instance has stopped.
    pub fn data_source_stopped(&mut self, producer: ProducerId, instance: u64, now: &Now) {
        let id = DataSourceInstanceId(instance);
        let Some((session_id, state)) = self.session_of_instance(producer, id) else {
            return;
        };
        if state == InstanceState::Stopping {
            self.instance_stopped(session_id, id, now);
        }
    }

    fn instance_stopped(&mut self, session_id: SessionId, id: DataSourceInstanceId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return;
        };
        session.instances.set_state(id, InstanceState::Stopped);
        let all_acknowledged =
            session.state == State::DisablingWaitingStopAcks && session.instances.all(InstanceState::Stopped);
        self.observe_instance(session_id, id);
        if all_acknowledged {
            self.disabled(session_id, now);
        }
    }

    /// Tells the consumer, once, when every instance has started.
    pub(crate) fn notify_all_started(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(consumer) = session.consumer else { return };
        if session.all_started_notified
            || session.state != State::Started
            || !session.instances.all(InstanceState::Started)
        {
            return;
        }
        session.all_started_notified = true;
        session.snapshot_clocks(now);
        session.note(LifecycleEvent::AllDataSourcesStarted, now);
        if let Some(events) =
            self.events_for(consumer, observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED)
        {
            events.all_data_sources_started = Some(true);
        }
    }

    pub(crate) fn all_started_timed_out(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.all_started_notified || session.consumer.is_none() {
            return;
        }
        let slow = session
            .instances
            .values()
            .filter(|instance| instance.state != InstanceState::Started);
        let slow = Absence::new(AbsenceKind::SlowToStart, slow, &self.producers, now);
        let lines: Vec<String> = slow
            .who
            .iter()
            .map(|Absent { producer, source }| {
                let producer = producer.as_deref().unwrap_or_default();
                format!("data source {source:?} of producer {producer:?} has not started within 20 s")
            })
            .collect();
        session.note_absence(slow);
        for line in lines {
            self.log(LogLevel::Warning, line);
        }
    }

    pub(crate) fn clear_incremental_state(&mut self, id: SessionId, now: &Now) {
        let Some(session) = self
            .sessions
            .get(&id)
            .filter(|session| session.state == State::Started)
        else {
            return;
        };
        let Some(period) = clear_period(session) else {
            return;
        };
        self.timers
            .set(next_multiple(now, period), Timer::ClearIncrementalState(id));
        let of_producers =
            instances_by_producer(session, |instance| instance.handles_incremental_state_clear);
        for (producer, instances) in of_producers {
            self.command(producer, ProducerCommand::ClearIncrementalState { instances });
        }
    }

    /// The consumer changes the config of its running session. Only the producer filters may differ: data sources of
    /// producers that newly pass are set up and started.
    pub fn change_config(&mut self, consumer: ConsumerId, input: &ConfigInput, now: &Now) {
        let Some(id) = self.session_of(consumer) else {
            return self.log(
                LogLevel::Warning,
                "a consumer without a session asked to change its config".into(),
            );
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !matches!(session.state, State::Started | State::Configured) {
            return self.log(
                LogLevel::Warning,
                "cannot change the config of a session that is not running".into(),
            );
        }
        let surplus = !only_filters_differ(&session.config, &input.config);
        let mut filters = adopted_filters(&session.config, &input.config);
        exchange_filters(&mut session.config, &mut filters);
        let config = &session.config;
        let this_machine = &self.identity.machine_name;
        let wanted = resolve_targets(config)
            .and_then(|targets| Ok((Wanted::new(config, &targets, this_machine)?, targets)));
        let (wanted, targets) = match wanted {
            Ok(wanted) => wanted,
            Err(error) => {
                exchange_filters(&mut session.config, &mut filters);
                return self.log(LogLevel::Warning, format!("config not changed: {error}"));
            }
        };
        session.wanted = wanted;
        session.config_bytes = session.config.encode_to_vec().into();
        let instances = session.instances.values();
        let set_up: OrderedSet<_> = instances.map(|i| (i.source, i.registration)).collect();
        if surplus {
            let line =
                "a changed config differs in more than producer filters: only those take effect".into();
            self.log(LogLevel::Warning, line);
        }
        let mut attention = Attention::new(self.processor_clock);
        for (index, target) in targets.into_iter().enumerate() {
            self.set_up_data_source(id, index, target, &set_up, &mut attention, now);
        }
    }

    /// The consumer ends its recording; the buffers stay to be read.
    pub fn disable_tracing(&mut self, consumer: ConsumerId, now: &Now) {
        match self.session_of(consumer) {
            Some(session) => self.disable(session, now),
            None => self.log(
                LogLevel::Warning,
                "a consumer without a session asked to stop tracing".into(),
            ),
        }
    }

    pub(crate) fn disable(&mut self, id: SessionId, now: &Now) {
        self.stop_session(id, Stop::Graceful, now);
    }

    fn stop_session(&mut self, id: SessionId, stop: Stop, now: &Now) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let stop = match session.state {
            State::Disabled | State::ClonedReadOnly => return,
            State::DisablingWaitingStopAcks => {
                if stop == Stop::AtOnce {
                    self.disabled(id, now);
                }
                return;
            }
            // Nothing ran, so nothing has to be brought to an end.
            State::Configured => Stop::AtOnce,
            State::Started => stop,
        };
        for absence in session.absences_at_the_end(&self.producers, now) {
            session.note_absence(absence);
        }
        let timeout = session.stop_timeout();
        // Only told to others if there is something to wait for.
        session.state = State::DisablingWaitingStopAcks;
        for instance in self.instance_ids(id) {
            self.stop_instance(id, instance, stop);
        }
        if self
            .sessions
            .get(&id)
            .is_some_and(|session| session.instances.all(InstanceState::Stopped))
        {
            self.disabled(id, now);
        } else {
            self.enter_state(id, State::DisablingWaitingStopAcks, now);
            self.timers.set(after(now, timeout), Timer::StopTimeout(id));
        }
    }

    fn stop_instance(&mut self, id: SessionId, instance_id: DataSourceInstanceId, stop: Stop) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(instance) = session.instances.get(instance_id) else {
            return;
        };
        if matches!(instance.state, InstanceState::Stopping | InstanceState::Stopped) {
            return;
        }
        let waits = instance.will_notify_on_stop && stop == Stop::Graceful;
        let state = if waits {
            InstanceState::Stopping
        } else {
            InstanceState::Stopped
        };
        let producer = instance.producer;
        session.instances.set_state(instance_id, state);
        self.observe_instance(id, instance_id);
        self.command(
            producer,
            ProducerCommand::StopDataSource {
                instance: instance_id,
            },
        );
    }

    /// An instance ends because its producer or data source is gone.
    pub(crate) fn end_instance(&mut self, id: SessionId, instance_id: DataSourceInstanceId, now: &Now) {
        let state = self
            .sessions
            .get(&id)
            .and_then(|session| session.instances.get(instance_id))
            .map(|instance| instance.state);
        match state {
            None | Some(InstanceState::Stopped) => {}
            // The session waits for an acknowledgement that will not come.
            Some(InstanceState::Stopping) => self.instance_stopped(id, instance_id, now),
            Some(_) => self.stop_instance(id, instance_id, Stop::AtOnce),
        }
        self.instances.remove(&instance_id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.instances.remove(instance_id);
        }
        self.notify_all_started(id, now);
    }

    pub(crate) fn stop_timed_out(&mut self, id: SessionId, now: &Now) {
        let waiting = |session: &&Session| session.state == State::DisablingWaitingStopAcks;
        let Some(session) = self.sessions.get(&id).filter(waiting) else {
            return;
        };
        let silent = session
            .instances
            .values()
            .filter(|instance| instance.state != InstanceState::Stopped)
            .count();
        let line = format!(
            "tracing session {}: {silent} data sources did not acknowledge the stop in time",
            id.0
        );
        self.log(LogLevel::Warning, line);
        self.disabled(id, now);
    }

    /// Nothing records any more: saves what producers did not return, completes the file, tells the consumer.
    fn disabled(&mut self, id: SessionId, now: &Now) {
        self.enter_state(id, State::Disabled, now);
        for instance_id in self.instance_ids(id) {
            let session = self.sessions.get_mut(&id);
            let instances = session.map(|session| &mut session.instances);
            let running = instances.filter(|instances| {
                let instance = instances.get(instance_id);
                instance.is_some_and(|instance| instance.state != InstanceState::Stopped)
            });
            if let Some(instances) = running {
                instances.set_state(instance_id, InstanceState::Stopped);
                self.observe_instance(id, instance_id);
            }
        }
        self.scrape_all(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.snapshot_clocks(now);
        session.note(LifecycleEvent::TracingDisabled, now);
        if session.file.is_some() {
            session.stats_due = true;
            self.drain_into_file(id, Drain::Final);
        } else {
            self.announce_disabled(id);
        }
    }

    /// The consumer may now read, or open the file.
    pub(crate) fn announce_disabled(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match session
            .consumer
            .filter(|consumer| self.consumers.contains_key(consumer))
        {
            Some(consumer) => {
                session.end_untold = false;
                let error = session.disabled_error.take();
                self.output(Output::TracingDisabled {
                    consumer,
                    session: id,
                    error,
                });
            }
            None => session.end_untold = true,
        }
    }

    /// A consumer that attached to a session wants to be told of its end, with
    /// [`TracingDisabled`](crate::Output::TracingDisabled); that comes at once if the session ended while nobody was
    /// attached. Returns the session, or `None` if the consumer has none.
    pub fn await_disabled(&mut self, consumer: ConsumerId) -> Option<SessionId> {
        let id = self.session_of(consumer)?;
        if self.sessions.get(&id)?.end_untold {
            self.announce_disabled(id);
        }
        Some(id)
    }

    /// The consumer has no more use for its session.
    pub fn free_buffers(&mut self, consumer: ConsumerId, now: &Now) {
        let Some(entry) = self.consumers.get_mut(&consumer) else {
            return;
        };
        let Some(session) = entry.session.take() else {
            return self.log(
                LogLevel::Warning,
                "a consumer without a session asked to free its buffers".into(),
            );
        };
        self.free_session(session, now);
    }

    /// Ends a session and everything it holds; if it streams into a file, once that is complete or was given up.
    pub(crate) fn free_session(&mut self, id: SessionId, now: &Now) {
        self.stop_session(id, Stop::AtOnce, now);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.file.is_none() {
            return self.remove_session(id, now);
        }
        if std::mem::replace(&mut session.free_when_drained, true) {
            return;
        }
        let deadline = after(now, limits::ABANDONED_FILE_PATIENCE);
        self.timers.set(deadline, Timer::FileAbandoned(id));
        session.detach_key = None;
        let flushes = std::mem::take(&mut session.pending_flushes);
        self.abandon_flushes(flushes);
        self.adjust_boost(None);
    }

    pub(crate) fn remove_session(&mut self, id: SessionId, now: &Now) {
        // Others are told of the end of a session when it stops; a clone does not.
        if self.sessions.get(&id).is_some_and(Session::is_clone) {
            self.enter_state(id, State::Disabled, now);
        }
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        self.timers.forget(|timer| timer.session() == id);
        self.abandon_flushes(std::mem::take(&mut session.pending_flushes));
        self.forget_triggers(&session);
        for instance in session.instances.keys() {
            self.instances.remove(&instance);
        }
        self.machines.forget_gone(self.sessions.values());
        // It may have been read in part.
        self.readout = Readout::default();
        for buffer in &session.buffers {
            self.buffers.remove(buffer);
            for producer in self.producers.values_mut() {
                producer.allowed_buffers.remove(buffer);
            }
        }
        if let Some(consumer) = session
            .consumer
            .and_then(|consumer| self.consumers.get_mut(&consumer))
            && consumer.session == Some(id)
        {
            consumer.session = None;
        }
        let line = format!(
            "tracing session {} ended, {} sessions now",
            id.0,
            self.sessions.len()
        );
        self.log(LogLevel::Info, line);
        self.adjust_boost(None);
    }

    /// The instances of a session in the order in which things happen to them, which is seen by who observes: producer by
    /// producer.
    pub(crate) fn instance_ids(&self, id: SessionId) -> Vec<DataSourceInstanceId> {
        self.sessions
            .get(&id)
            .map(|session| session.instances.by_producer())
            .unwrap_or_default()
    }

    fn session_of_instance(
        &self,
        producer: ProducerId,
        id: DataSourceInstanceId,
    ) -> Option<(SessionId, InstanceState)> {
        let session = *self.instances.get(&id)?;
        let instance = self.sessions.get(&session)?.instances.get(id)?;
        (instance.producer == producer).then_some((session, instance.state))
    }
}

/// The instances that a condition picks, for each producer that has some.
pub(crate) fn instances_by_producer(
    session: &Session,
    picks: impl Fn(&crate::session::Instance) -> bool,
) -> crate::ordered::OrderedMap<ProducerId, Vec<DataSourceInstanceId>> {
    let mut map = crate::ordered::OrderedMap::<ProducerId, Vec<DataSourceInstanceId>>::new();
    for (id, instance) in session.instances.iter().filter(|(_, instance)| picks(instance)) {
        map.get_or_insert_with(instance.producer, Vec::new).push(id);
    }
    map
}

/// Which producers a data source may be of: `producer_name_filter` and `producer_name_regex_filter`.
type ProducerFilters = (Vec<String>, Vec<String>);

/// The producer filters of each data source: those of the new config, if it names it too.
fn adopted_filters(config: &TraceConfig, new: &TraceConfig) -> Vec<ProducerFilters> {
    // The first of a name counts.
    let by_name: OrderedMap<_, _> = new
        .data_sources
        .iter()
        .rev()
        .map(|source| (source.config.name.as_deref(), source))
        .collect();
    let adopted = config.data_sources.iter().map(|source| {
        let source = *by_name.get(&source.config.name.as_deref()).unwrap_or(&source);
        (
            source.producer_name_filter.clone(),
            source.producer_name_regex_filter.clone(),
        )
    });
    adopted.collect()
}

/// Puts these filters in the place of those that the data sources have.
fn exchange_filters(config: &mut TraceConfig, filters: &mut [ProducerFilters]) {
    for (source, (names, expressions)) in config.data_sources.iter_mut().zip(filters) {
        std::mem::swap(&mut source.producer_name_filter, names);
        std::mem::swap(&mut source.producer_name_regex_filter, expressions);
    }
}

fn clear_period(session: &Session) -> Option<Duration> {
    let ms = session
        .config
        .incremental_state_config
        .clear_period_ms
        .unwrap_or_default();
    (ms != 0).then(|| Duration::from_millis(ms.into()))
}

pub(crate) fn after(now: &Now, delay: Duration) -> u64 {
    after_on(Clock::Monotonic, now, delay)
}

fn after_on(clock: Clock, now: &Now, delay: Duration) -> u64 {
    now.on(clock).saturating_add(delay.as_nanos() as u64)
}

/// The next instant that is a multiple of the period: sessions with the same period wake producers together.
pub(crate) fn next_multiple(now: &Now, period: Duration) -> u64 {
    next_multiple_on(Clock::Monotonic, now, period)
}

fn next_multiple_on(clock: Clock, now: &Now, period: Duration) -> u64 {
    let period_ms = (period.as_millis() as u64).max(1);
    let wait_ms = period_ms - now.on(clock) / 1_000_000 % period_ms;
    now.on(clock).saturating_add(wait_ms * 1_000_000)
}
