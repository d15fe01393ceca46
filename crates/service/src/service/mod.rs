//! The service itself: it finds the session that an input concerns, and handles the consequences for others.
//!
//! Every input is a method named after an event, with the time. No method blocks or acts on the outside: outputs are queued for
//! [`Service::poll`]. After any input the driver polls until it gets `None`, and calls [`Service::handle_timeout`] at
//! [`Service::next_deadline`].
//!
//! [`Service::on_session`] hands an input to its session. A session reaches no other session. It leaves an [`Effect`] instead, which the service
//! handles before it returns.

mod admission;
mod boost;
mod clone;
mod commit;
mod consumer;
mod discarded;
pub(crate) mod enable;
mod ending;
mod machines;
mod producer;
pub(crate) mod query;
mod readback;
mod rescue;
mod sessions;
mod triggers;

use ferretto_wire::{DropOutOfLine, OutOfLine};

use self::clone::PendingClone;
use crate::boost::PriorityBoost;
use crate::clock::Clock;
use crate::clock::Now;
use crate::clock::ProcessorClock;
use crate::identity::Identity;
use crate::ids::{ConsumerId, FlushRequestId, ProducerId, SessionId};
use crate::ordered::OrderedMap;
use crate::output::{LogLevel, Output};
use crate::service::admission::GuardedStarts;
use crate::service::consumer::Consumer;
use crate::service::sessions::Sessions;
use crate::session::common::{Common, Effect};
use crate::session::machines::Machines;
use crate::session::readout::Readout;
use crate::session::{Session, State};
use crate::trace_buffer::TraceBuffer;

/// The tracing service.
pub struct Service {
    /// The state that sessions share.
    pub(crate) common: Common,
    pub(crate) sessions: Sessions,
    pub(crate) consumers: OrderedMap<ConsumerId, Consumer>,
    pub(crate) last_consumer: ConsumerId,
    /// Clones that are not complete yet, by the ids they will have as sessions.
    pub(crate) clones: OrderedMap<SessionId, PendingClone>,
    pub(crate) machines: Machines,
    pub(crate) triggers: triggers::Registry,
    pub(crate) guarded_starts: GuardedStarts,
    /// The priority that the driver was last asked for.
    pub(crate) boost: Option<PriorityBoost>,
    /// Reused by commits.
    pub(crate) moves: commit::Moves,
    /// Reused by read-backs.
    pub(crate) readout: Readout,
}

impl DropOutOfLine for Service {
    #[inline(never)]
    fn drop_out_of_line(self: Box<Self>) {}
}

impl Service {
    /// [`Service::new`] in a box that drops it in this crate, see [`OutOfLine`].
    pub fn out_of_line(identity: Identity) -> OutOfLine<Service> {
        OutOfLine::new(Service::new(identity))
    }

    /// A service without clients.
    pub fn new(identity: Identity) -> Service {
        Service {
            common: Common::new(identity),
            sessions: Sessions::default(),
            consumers: OrderedMap::new(),
            last_consumer: ConsumerId(0),
            clones: OrderedMap::new(),
            machines: Machines::default(),
            triggers: triggers::Registry::default(),
            guarded_starts: GuardedStarts::default(),
            boost: None,
            moves: commit::Moves::default(),
            readout: Readout::default(),
        }
    }

    /// Sets how many minutes local time is ahead of UTC. That changes with the seasons and when the machine travels, while the service goes on. A
    /// trace has the last value from before its first read-back.
    pub fn local_time_offset(&mut self, minutes: Option<i32>) {
        self.common.identity.system.timezone_offset_minutes = minutes;
    }

    /// Lends the service a clock of the thread's processor time, by which it ends work that takes too long, such as the matching of expressions.
    /// Without a clock such work has no limit of time.
    pub fn set_processor_clock(&mut self, clock: ProcessorClock) {
        self.common.processor_clock = Some(clock);
    }

    /// The next output, in order; `None` when there is none.
    pub fn poll(&mut self) -> Option<Output> {
        debug_assert!(self.common.effects.is_empty(), "every input sees to its effects");
        self.common.outbox.pop()
    }

    /// When [`Service::handle_timeout`] wants to be called next: nanoseconds on the monotonic clock.
    pub fn next_deadline(&self) -> Option<u64> {
        self.common.timers.next_deadline(Clock::Monotonic)
    }

    /// When it wants to be called at the latest on the clock that goes on while the machine sleeps: nanoseconds of
    /// `CLOCK_BOOTTIME`.
    pub fn next_boot_deadline(&self) -> Option<u64> {
        self.common.timers.next_deadline(Clock::Boot)
    }

    /// Fires the timers that are due.
    pub fn handle_timeout(&mut self, now: &Now) {
        self.common.begin_turn();
        while let Some((session, timer)) = self.common.timers.pop_due(now) {
            self.on_session(session, now, |session, common| {
                session.timer_fired(timer, common, now);
            });
        }
    }

    /// The producer has committed everything up to this request, and so for every earlier one, or it is gone: no flush waits for it any more.
    pub(crate) fn strike_off(&mut self, producer: ProducerId, up_to: FlushRequestId, now: &Now) {
        let mut ended = Vec::new();
        for session in self.sessions.iter_mut() {
            let requests = session.flushes.acknowledged(producer, up_to);
            ended.extend(requests.map(|request| (session.id, request)));
        }
        self.common.begin_turn();
        for (session, request) in ended {
            self.on_session(session, now, |session, common| {
                session.flush_acknowledged(request, common, now);
            });
        }
    }

    /// Hands an input to a session, if it exists, and handles the consequences for others before it returns.
    pub(crate) fn on_session(
        &mut self,
        id: SessionId,
        now: &Now,
        happens: impl FnOnce(&mut Session, &mut Common),
    ) {
        if let Some(session) = self.sessions.get_mut(id) {
            happens(session, &mut self.common);
            self.settle(now);
        }
    }

    /// Handles the effects that sessions left.
    pub(crate) fn settle(&mut self, now: &Now) {
        while let Some(effect) = self.common.effects.pop_front() {
            match effect {
                Effect::StateChanged(change) => self.sessions.tell_of(&change),
                Effect::FlushedForClone {
                    clone,
                    group,
                    outcome,
                } => self.flushed_for_clone(clone, group, outcome, now),
                Effect::BatchArrived { original, end } => self.batch_arrived_for_clones(original, end),
                Effect::OriginalEnded { clone } => self.fail_clone(
                    clone,
                    "the original session ended while it was being cloned".into(),
                ),
                Effect::CloneFileOver(clone) => self.clone_file_over(clone),
                Effect::PriorityReleased => self.adjust_boost(None),
                Effect::Over(session) => self.remove_session(session, now),
            }
        }
    }

    /// Removes a session that has nothing left to do.
    fn remove_session(&mut self, id: SessionId, now: &Now) {
        let Some(mut session) = self.sessions.remove(id) else {
            return;
        };
        // Others hear of the end of a session when it stops. A clone does not stop.
        if session.is_clone() {
            session.enter(State::Disabled, &mut self.common, now);
        }
        self.common.timers.forget_session(id);
        session.abandon_flushes(&mut self.common);
        self.triggers.forget(&session);
        self.machines.forget_gone(self.sessions.iter());
        // The removed session may have been read in part.
        self.readout = Readout::default();
        self.common.producers.forget_buffers(&session.buffer_ids);
        let consumer = session.consumer;
        if let Some(consumer) = consumer.and_then(|consumer| self.consumers.get_mut(&consumer)) {
            // The consumer may have another session by now.
            consumer.session.take_if(|session| *session == id);
        }
        let line = format!("tracing session {id} ended, {} sessions now", self.sessions.len());
        self.common.outbox.log(LogLevel::Info, line);
        self.adjust_boost(None);
    }

    /// Bytes of all trace buffers, for watchdogs of memory.
    pub fn buffer_bytes(&self) -> u64 {
        self.sessions.buffers().map(TraceBuffer::size).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producers::{Credentials, Introduction};

    #[test]
    fn instances_and_allowed_buffers_are_forgotten_with_their_session() {
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
            let may_write = service
                .common
                .producers
                .get(producer)
                .unwrap()
                .allowed_buffers
                .len();
            let instances = service.sessions.iter().map(|session| session.instances.len());
            (instances.sum::<usize>(), may_write)
        };
        assert_eq!(kept(&service), (2, 1));
        service.unregister_data_source(producer, "d", &now);
        assert_eq!(kept(&service), (1, 1));
        // Ids of buffers are used again, so a producer that may still write into this one could write into another session's.
        service.disconnect_consumer(consumer, &now);
        assert_eq!(kept(&service), (0, 0));
        assert_eq!(service.sessions.census().buffers, 0);
    }
}
