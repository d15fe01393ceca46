//! The service itself: who is connected, which sessions and buffers exist, what is to be done next.
//!
//! Every input is a method named after what happened, with the time. None of them blocks, and none does anything to
//! the outside: what has to be done is queued for [`Service::poll`]. After any input the driver polls until it gets
//! `None`, and calls [`Service::handle_timeout`] at [`Service::next_deadline`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use ferretto_proto::messages::{ObservableEvents, observable_events};

use crate::admission::GuardedStarts;
use crate::boost::PriorityBoost;
use crate::clock::Now;
use crate::clone::PendingClone;
use crate::effort::ProcessorClock;
use crate::ids::{
    BufferId, ConsumerId, DataSourceInstanceId, FlushRequestId, IdHasher, MachineId, ProducerId, SessionId,
};
use crate::limits;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::output::{LogLevel, Output, ProducerCommand};
use crate::producer::{Offer, Offered, Owner, Producer};
use crate::session::{Session, State};
use crate::timers::{Clock, Timer, Timers};
use crate::trace_buffer::TraceBuffer;
use crate::triggers::beginning;

/// What the service says about itself and the machine in every trace.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// User under whom the service runs: the trusted uid of its own packets.
    pub uid: u32,
    /// Version line, as `--version` prints it.
    pub version: String,
    /// Name of this machine, by which a config may pick it (`machine_name_filter`); `host` does as well.
    pub machine_name: String,
    /// The machine that its own packets are said to be of. [`MachineId::HOST`], unless it records for a program only that has its
    /// traces told from others by an id; the program's producers are then of that machine, too.
    pub machine: MachineId,
    /// Facts for the `SystemInfo` packet.
    pub system: SystemFacts,
    /// Schemas of extensions that are written into every trace.
    pub extension_descriptors: Vec<ExtensionDescriptor>,
}

/// The schema of extensions that producers of this machine use, so that the trace can be understood without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionDescriptor {
    /// Where it comes from; may be empty.
    pub name: String,
    /// A `FileDescriptorSet`.
    pub bytes: Vec<u8>,
    /// How `bytes` are to be taken.
    pub encoding: DescriptorEncoding,
}

/// How the bytes of an [`ExtensionDescriptor`] are to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorEncoding {
    /// As they are.
    Plain,
    /// Compressed, as `gzip` does it.
    Gzip,
}

/// What `SystemInfo` says of the machine; absent facts are left out.
#[derive(Clone, Debug, Default)]
pub struct SystemFacts {
    /// `uname`: system name, release, version, machine.
    pub utsname: Option<[String; 4]>,
    /// Offset of local time from UTC in minutes, until [`Service::local_time_offset`] tells another.
    pub timezone_offset_minutes: Option<i32>,
    /// Size of a memory page in bytes.
    pub page_size: Option<u32>,
    /// Processors that are configured.
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub ram_bytes: Option<u64>,
}

/// A consumer that is connected.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    pub(crate) uid: u32,
    pub(crate) session: Option<SessionId>,
    /// Kinds of events it observes: bits of `ObservableEvents.Type`.
    pub(crate) observed: u32,
    /// Events since the last output.
    pub(crate) events: Option<Box<ObservableEvents>>,
}

/// The tracing service.
pub struct Service {
    pub(crate) identity: Identity,
    pub(crate) producers: OrderedMap<ProducerId, Producer>,
    pub(crate) consumers: OrderedMap<ConsumerId, Consumer>,
    pub(crate) machines: crate::machines::Machines,
    pub(crate) sessions: OrderedMap<SessionId, Session>,
    pub(crate) buffers: OrderedMap<BufferId, TraceBuffer>,
    /// Who offers a data source of this name, in the order of registration: a producer may do so more than once.
    pub(crate) offers: BTreeMap<String, Vec<Offer>>,
    /// What the producers of each owner have registered.
    pub(crate) offered: OrderedMap<Owner, Offered>,
    /// Bytes of the shared memory of each owner's producers.
    pub(crate) shared: OrderedMap<Owner, usize>,
    /// The session of every instance that was set up.
    pub(crate) instances: HashMap<DataSourceInstanceId, SessionId, IdHasher>,
    /// Clones that are not complete yet, by the ids they will have as sessions.
    pub(crate) clones: OrderedMap<SessionId, PendingClone>,
    pub(crate) lockdown: bool,
    /// The service ends, so no session may begin any more.
    pub(crate) is_ending: bool,
    pub(crate) triggers: crate::triggers::Registry,
    pub(crate) guarded_starts: GuardedStarts,
    /// What the driver was last asked to run the service at.
    pub(crate) boost: Option<PriorityBoost>,

    pub(crate) timers: Timers,
    pub(crate) outputs: VecDeque<Output>,
    /// Consumers with events to be sent.
    pub(crate) observers_due: OrderedSet<ConsumerId>,

    pub(crate) last_producer: ProducerId,
    pub(crate) producers_seen: u32,
    pub(crate) last_consumer: u64,
    pub(crate) last_session: u64,
    pub(crate) last_registration: u64,
    pub(crate) last_instance: u64,
    pub(crate) last_flush: u64,
    pub(crate) buffer_ids: BufferIds,

    /// What work is timed with that could take long.
    pub(crate) processor_clock: Option<ProcessorClock>,
    /// Reused by commits and scrapes for the chunk being copied.
    pub(crate) chunk: Vec<u8>,
    /// Reused by commits.
    pub(crate) moves: crate::commit::Moves,
    pub(crate) readout: crate::readback::Readout,
}

impl Service {
    /// A service with nobody connected.
    pub fn new(identity: Identity) -> Service {
        Service {
            identity,
            producers: OrderedMap::new(),
            consumers: OrderedMap::new(),
            machines: crate::machines::Machines::default(),
            sessions: OrderedMap::new(),
            buffers: OrderedMap::new(),
            offers: BTreeMap::new(),
            offered: OrderedMap::new(),
            shared: OrderedMap::new(),
            instances: HashMap::default(),
            clones: OrderedMap::new(),
            lockdown: false,
            is_ending: false,
            triggers: crate::triggers::Registry::default(),
            guarded_starts: GuardedStarts::default(),
            boost: None,
            timers: Timers::default(),
            outputs: VecDeque::new(),
            observers_due: OrderedSet::new(),
            last_producer: ProducerId(0),
            producers_seen: 0,
            last_consumer: 0,
            last_session: 0,
            last_registration: 0,
            last_instance: 0,
            last_flush: 0,
            buffer_ids: BufferIds::default(),
            processor_clock: None,
            chunk: Vec::new(),
            moves: crate::commit::Moves::default(),
            readout: crate::readback::Readout::default(),
        }
    }

    /// Local time is so many minutes ahead of UTC. That changes with the seasons and when the machine travels, while the service goes
    /// on; a trace tells what was last told here before it was first read.
    pub fn local_time_offset(&mut self, minutes: Option<i32>) {
        self.identity.system.timezone_offset_minutes = minutes;
    }

    /// Lends the service a clock of the thread's processor time, by which it ends what takes too long: expressions of configs can. Without
    /// one it takes its time.
    pub fn set_processor_clock(&mut self, clock: ProcessorClock) {
        self.processor_clock = Some(clock);
    }

    /// A consumer connected; `uid` is what its socket vouches for.
    pub fn connect_consumer(&mut self, uid: u32) -> ConsumerId {
        self.last_consumer += 1;
        let id = ConsumerId(self.last_consumer);
        self.consumers.insert(
            id,
            Consumer {
                uid,
                ..Consumer::default()
            },
        );
        id
    }

    /// A consumer is gone. A session that it had not detached from ends, after its file was completed.
    pub fn disconnect_consumer(&mut self, consumer: ConsumerId, now: &Now) {
        let Some(gone) = self.consumers.remove(&consumer) else {
            return;
        };
        self.observers_due.remove(&consumer);
        self.outputs.retain(|output| output.consumer() != Some(consumer));
        self.forget_clones_of(consumer);
        if let Some(session) = gone.session {
            if let Some(session) = self.sessions.get_mut(&session) {
                session.consumer = None;
            }
            self.free_session(session, now);
        }
    }

    /// What has to be done next, in order; `None` when nothing has.
    pub fn poll(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        let observer = *self.observers_due.first()?;
        self.take_events(observer)
    }

    /// What a consumer observed since it was last told.
    pub(crate) fn take_events(&mut self, consumer: ConsumerId) -> Option<Output> {
        self.observers_due.remove(&consumer);
        let events = self.consumers.get_mut(&consumer)?.events.take()?;
        Some(Output::Observed { consumer, events })
    }

    /// When [`Service::handle_timeout`] wants to be called next: nanoseconds on the monotonic clock.
    pub fn next_deadline(&self) -> Option<u64> {
        self.timers.next_deadline(Clock::Monotonic)
    }

    /// When it wants to be called at the latest on the clock that goes on while the machine sleeps: nanoseconds of
    /// `CLOCK_BOOTTIME`.
    pub fn next_boot_deadline(&self) -> Option<u64> {
        self.timers.next_deadline(Clock::Boot)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: &Now) {
        let mut scraped = OrderedSet::new();
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Duration(session) => self.duration_over(session, now),
                Timer::Snapshot(session) => self.snapshot(session, now),
                Timer::FileWrite(session) => self.file_write_due(session, now),
                Timer::PeriodicFlush(session) => self.periodic_flush(session, now),
                Timer::ClearIncrementalState(session) => self.clear_incremental_state(session, now),
                Timer::StopTimeout(session) => self.stop_timed_out(session, now),
                Timer::FlushTimeout(session, request) => {
                    self.flush_timed_out(session, request, &mut scraped, now);
                }
                Timer::AllStartedTimeout(session) => self.all_started_timed_out(session, now),
                Timer::StartTriggerTimeout(session) => self.start_trigger_timed_out(session, now),
                Timer::TriggeredStop(session) => self.triggered_stop(session, now),
                Timer::TriggeredSnapshot(session, number) => self.triggered_snapshot(session, number),
                Timer::FileAbandoned(session) => self.file_abandoned(session, now),
            }
        }
    }

    pub(crate) fn output(&mut self, output: Output) {
        // What a consumer observed before comes before.
        let observed = output.consumer().and_then(|consumer| self.take_events(consumer));
        self.outputs.extend(observed);
        self.outputs.push_back(output);
    }

    pub(crate) fn log(&mut self, level: LogLevel, line: String) {
        self.outputs.push_back(Output::Log(level, line));
    }

    pub(crate) fn command(&mut self, producer: ProducerId, command: ProducerCommand) {
        self.outputs.push_back(Output::ToProducer(producer, command));
    }

    /// The session that this consumer controls.
    pub(crate) fn session_of(&self, consumer: ConsumerId) -> Option<SessionId> {
        self.consumers.get(&consumer)?.session
    }

    pub(crate) fn next_flush_id(&mut self) -> FlushRequestId {
        self.last_flush += 1;
        FlushRequestId(self.last_flush)
    }

    /// A buffer id that is not in use, or `None` if all are. Ids go round, so that a late commit into a freed buffer
    /// does not meet its successor.
    pub(crate) fn allocate_buffer_id(&mut self) -> Option<BufferId> {
        for _ in 0..u16::MAX {
            let id = self.buffer_ids.next();
            if !self.buffers.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    /// Records for the consumer of a session, if it observes such things, that an instance changed its state.
    pub(crate) fn observe_instance(&mut self, session: SessionId, instance: DataSourceInstanceId) {
        use observable_events::{DataSourceInstanceState, DataSourceInstanceStateChange, Type};
        let Some(session) = self.sessions.get(&session) else {
            return;
        };
        let (Some(consumer), Some(instance)) = (session.consumer, session.instances.get(instance)) else {
            return;
        };
        let state = match instance.state {
            crate::session::InstanceState::Started => {
                DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STARTED
            }
            crate::session::InstanceState::Configured | crate::session::InstanceState::Stopped => {
                DataSourceInstanceState::DATA_SOURCE_INSTANCE_STATE_STOPPED
            }
            crate::session::InstanceState::Starting | crate::session::InstanceState::Stopping => return,
        };
        let change = DataSourceInstanceStateChange {
            producer_name: self
                .producers
                .get(&instance.producer)
                .map(|producer| beginning(&producer.name, limits::MAX_LISTED_NAME).to_owned()),
            data_source_name: Some(instance.name.clone()),
            state: Some(state),
            ..Default::default()
        };
        if let Some(events) = self.events_for(consumer, Type::TYPE_DATA_SOURCES_INSTANCES) {
            events.instance_state_changes.push(change);
        }
    }

    /// The events that wait to be sent to a consumer, if it observes this kind.
    pub(crate) fn events_for(
        &mut self,
        consumer: ConsumerId,
        kind: observable_events::Type,
    ) -> Option<&mut ObservableEvents> {
        let observer = self.consumers.get_mut(&consumer)?;
        if observer.observed & kind as u32 == 0 {
            return None;
        }
        self.observers_due.insert(consumer);
        Some(observer.events.get_or_insert_default())
    }

    /// The consumer wants to hear of these kinds of events from now on: bits of `ObservableEvents.Type`.
    pub fn observe_events(&mut self, consumer: ConsumerId, kinds: u32, now: &Now) {
        let Some(observer) = self.consumers.get_mut(&consumer) else {
            return;
        };
        observer.observed = kinds;
        let Some(session) = observer.session else { return };
        for instance in self.instance_ids(session) {
            self.observe_instance(session, instance);
        }
        if kinds & observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32 != 0 {
            self.notify_all_started(session, now);
        }
    }

    /// Takes the consumer off its session, which goes on without it under this key.
    ///
    /// # Errors
    /// If it has no session, the key is empty, or a session of the same user is detached under the same key.
    pub fn detach(&mut self, consumer: ConsumerId, key: &str) -> Result<(), String> {
        let session = self
            .session_of(consumer)
            .ok_or("cannot detach: this consumer has no tracing session")?;
        let uid = self.consumers.get(&consumer).map_or(0, |consumer| consumer.uid);
        if key.is_empty() {
            return Err("cannot detach: the key is empty; give it a name to attach to again".into());
        }
        if self.detached_session(uid, key).is_some() {
            return Err(format!(
                "cannot detach: another session is detached under the key {key:?}; use another key"
            ));
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.consumer = None;
            session.detach_key = Some(key.to_owned());
        }
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = None;
        }
        Ok(())
    }

    /// Makes the consumer the owner of the session that was detached under this key by the same user, and returns
    /// that session's config.
    ///
    /// # Errors
    /// If the consumer has a session already, or there is none under the key.
    pub fn attach(&mut self, consumer: ConsumerId, key: &str) -> Result<std::sync::Arc<[u8]>, String> {
        if self.session_of(consumer).is_some() {
            return Err("cannot attach: this consumer has a tracing session already".into());
        }
        let uid = self.consumers.get(&consumer).map_or(0, |consumer| consumer.uid);
        let id = self.detached_session(uid, key).ok_or_else(|| {
            format!("cannot attach: no session of uid {uid} is detached under the key {key:?}")
        })?;
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = Some(id);
        }
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or("cannot attach: the session has just ended")?;
        session.consumer = Some(consumer);
        session.detach_key = None;
        Ok(session.config_bytes.clone())
    }

    fn detached_session(&self, uid: u32, key: &str) -> Option<SessionId> {
        let detached = |session: &&Session| session.uid == uid && session.detach_key.as_deref() == Some(key);
        self.sessions.values().find(detached).map(|session| session.id)
    }

    pub(crate) fn sessions_in(&self, state: State) -> usize {
        self.sessions
            .values()
            .filter(|session| session.state == state)
            .count()
    }

    /// Bytes of trace buffers, for whoever watches over memory.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.values().map(TraceBuffer::size).sum()
    }

    /// Whether another producer may connect; counts against [`limits::MAX_PRODUCERS`].
    pub(crate) fn next_producer_id(&mut self) -> Option<ProducerId> {
        if self.producers.len() >= limits::MAX_PRODUCERS {
            return None;
        }
        loop {
            self.last_producer = ProducerId(self.last_producer.0 % limits::MAX_PRODUCER_ID + 1);
            if !self.producers.contains_key(&self.last_producer) {
                self.producers_seen += 1;
                return Some(self.last_producer);
            }
        }
    }
}

/// The ids of buffers that were given out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BufferIds {
    last: u16,
    /// All of them were, once.
    went_round: bool,
}

impl BufferIds {
    fn next(&mut self) -> BufferId {
        self.last = self.last.checked_add(1).unwrap_or_else(|| {
            self.went_round = true;
            1
        });
        BufferId(self.last)
    }

    /// Whether there is or was a buffer with this id.
    pub(crate) fn contain(self, id: BufferId) -> bool {
        id.0 != 0 && (id.0 <= self.last || self.went_round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::{Credentials, Introduction};

    #[test]
    fn nothing_is_kept_of_instances_and_of_what_may_be_written_when_their_session_is_gone() {
        use ferretto_proto::messages::{
            DataSourceConfig, DataSourceDescriptor, Message, TraceConfig, trace_config,
        };
        let now = Now::default();
        let mut service = Service::new(Identity::default());
        let producer = service
            .connect_producer(Credentials { uid: 1, pid: None }, Introduction::default())
            .unwrap();
        for name in ["d", "e"] {
            let descriptor = DataSourceDescriptor {
                name: Some(name.into()),
                ..Default::default()
            };
            service.register_data_source(producer, &descriptor.encode_to_vec(), &now);
        }
        let source = |name: &str| trace_config::DataSource {
            config: DataSourceConfig {
                name: Some(name.into()),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        let config = TraceConfig {
            buffers: vec![trace_config::BufferConfig {
                size_kb: Some(4),
                ..Default::default()
            }],
            data_sources: vec![source("d"), source("e")],
            ..Default::default()
        };
        let input = crate::ConfigInput {
            bytes: config.encode_to_vec().into(),
            config,
        };
        let consumer = service.connect_consumer(1);
        let file = crate::OutputFile::None;
        service.enable_tracing(consumer, input, &file, 1, &now).unwrap();
        let kept = |service: &Service| {
            let may_write = service.producers[&producer].allowed_buffers.len();
            (service.instances.len(), may_write)
        };
        assert_eq!(kept(&service), (2, 1));
        service.unregister_data_source(producer, "d", &now);
        assert_eq!(kept(&service), (1, 1));
        // Ids of buffers go round: whoever could still write into this one could write into another's.
        service.disconnect_consumer(consumer, &now);
        assert_eq!(kept(&service), (0, 0));
    }

    #[test]
    fn behind_the_last_id_of_a_producer_comes_the_first_that_is_not_in_use() {
        let mut service = Service::new(Identity::default());
        let mut connect = |last| {
            service.last_producer = ProducerId(last);
            service.connect_producer(Credentials { uid: 1, pid: None }, Introduction::default())
        };
        assert_eq!(connect(0), Some(ProducerId(1)));
        assert_eq!(
            connect(limits::MAX_PRODUCER_ID - 1),
            Some(ProducerId(limits::MAX_PRODUCER_ID))
        );
        assert_eq!(connect(limits::MAX_PRODUCER_ID), Some(ProducerId(2)));
    }
}
