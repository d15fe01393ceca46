//! Inputs of consumers about a session: start, stop, flush, observe, detach, give up.
//!
//! `enable` and `clone` have the beginning of sessions, `readback` their reading.

use std::sync::Arc;
use std::time::Duration;

use ferretto_proto::messages::observable_events;

use crate::clock::Now;
use crate::ids::{ConsumerId, SessionId};
use crate::output::{FlushOutcome, Output};
use crate::service::Service;
use crate::service::enable::ConfigInput;
use crate::session::{FlushPurpose, Session, Stop};

/// A consumer that is connected.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) uid: u32,
    /// The session that it controls.
    pub(crate) session: Option<SessionId>,
}

impl Service {
    /// A consumer connected; the kernel identifies its user as `uid`.
    pub fn connect_consumer(&mut self, uid: u32) -> ConsumerId {
        self.last_consumer.0 += 1;
        let id = self.last_consumer;
        self.consumers.insert(id, Consumer { uid, session: None });
        self.common.outbox.consumer_connected(id);
        id
    }

    /// A consumer is gone. A session that it had not detached from ends, after its file was completed.
    pub fn disconnect_consumer(&mut self, consumer: ConsumerId, now: &Now) {
        let Some(gone) = self.consumers.remove(&consumer) else {
            return;
        };
        self.common.outbox.consumer_gone(consumer);
        self.forget_clones_of(consumer);
        if let Some(session) = gone.session {
            self.on_session(session, now, |session, common| {
                session.consumer = None;
                session.free(common, now);
            });
        }
    }

    /// The session that this consumer controls.
    pub(crate) fn session_of(&self, consumer: ConsumerId) -> Option<SessionId> {
        self.consumers.get(&consumer)?.session
    }

    /// The session of a consumer for an operation. Logs a line if the consumer has none.
    fn session_to(&mut self, what: &str, consumer: ConsumerId) -> Option<SessionId> {
        let session = self.session_of(consumer);
        if session.is_none() {
            self.common
                .outbox
                .warn(format!("a consumer without a session asked to {what}"));
        }
        session
    }

    /// The consumer starts the session that it configured with `deferred_start`.
    pub fn start_deferred(&mut self, consumer: ConsumerId, now: &Now) {
        if let Some(session) = self.session_to("start tracing", consumer) {
            self.on_session(session, now, |session, common| session.start(common, now));
        }
    }

    /// The consumer changes the config of its running session. Only the producer filters may differ: data sources of
    /// producers that newly pass are set up and started.
    pub fn change_config(&mut self, consumer: ConsumerId, input: &ConfigInput, now: &Now) {
        if let Some(session) = self.session_to("change its config", consumer) {
            self.on_session(session, now, |session, common| {
                session.change_config(&input.config, common, now);
            });
        }
    }

    /// The consumer ends its recording; the buffers stay to be read.
    pub fn disable_tracing(&mut self, consumer: ConsumerId, now: &Now) {
        if let Some(session) = self.session_to("stop tracing", consumer) {
            self.on_session(session, now, |session, common| {
                session.stop(Stop::Graceful, common, now);
            });
        }
    }

    /// The consumer has no more use for its session.
    pub fn free_buffers(&mut self, consumer: ConsumerId, now: &Now) {
        if let Some(session) = self.session_to("free its buffers", consumer) {
            if let Some(consumer) = self.consumers.get_mut(&consumer) {
                consumer.session = None;
            }
            self.on_session(session, now, |session, common| session.free(common, now));
        }
    }

    /// The consumer wants its producers flushed. [`Output::FlushDone`] with `token` answers. A `timeout_ms` of 0
    /// means the config's; `flags` go to producers as they are.
    pub fn flush(&mut self, consumer: ConsumerId, token: u64, timeout_ms: u32, flags: u64, now: &Now) {
        let Some(session) = self.session_of(consumer) else {
            return self.common.outbox.push(Output::FlushDone {
                consumer,
                token,
                outcome: FlushOutcome::Failed,
            });
        };
        let purpose = FlushPurpose::Consumer { consumer, token };
        let timeout = (timeout_ms != 0).then(|| Duration::from_millis(timeout_ms.into()));
        self.on_session(session, now, |session, common| {
            session.flush(timeout, purpose, flags, common, now);
        });
    }

    /// The consumer wants to hear of these kinds of events from now on: bits of `ObservableEvents.Type`.
    pub fn observe_events(&mut self, consumer: ConsumerId, kinds: u32, now: &Now) {
        self.common.outbox.observe(consumer, kinds);
        let Some(session) = self.session_of(consumer) else {
            return;
        };
        self.on_session(session, now, |session, common| {
            for instance in session.instances.ids() {
                session.observe_instance(instance, common);
            }
            if kinds & observable_events::Type::TYPE_ALL_DATA_SOURCES_STARTED as u32 != 0 {
                session.notify_all_started(common, now);
            }
        });
    }

    /// A consumer that attached to a session wants to be told of its end, with [`TracingDisabled`](crate::Output::TracingDisabled). If the session
    /// ended while no consumer was attached, that comes at once. Returns the session, or `None` if the consumer has none.
    pub fn await_disabled(&mut self, consumer: ConsumerId) -> Option<SessionId> {
        let session = self.sessions.get_mut(self.session_of(consumer)?)?;
        if session.end_untold {
            session.announce_disabled(&mut self.common);
        }
        Some(session.id)
    }

    /// Takes the consumer off its session, which goes on without it under this key.
    ///
    /// # Errors
    /// If it has no session, the key is empty, or a session of the same user is detached under the same key.
    pub fn detach(&mut self, consumer: ConsumerId, key: &str) -> Result<(), String> {
        const NO_SESSION: &str = "cannot detach: this consumer has no tracing session";
        let entry = self.consumers.get_mut(&consumer).ok_or(NO_SESSION)?;
        let id = entry.session.ok_or(NO_SESSION)?;
        if key.is_empty() {
            return Err("cannot detach: the key is empty; give it a name to attach to again".into());
        }
        let uid = entry.uid;
        if self.sessions.iter().any(|session| session.is_detached(uid, key)) {
            return Err(format!(
                "cannot detach: another session is detached under the key {key:?}; use another key"
            ));
        }
        let session = self.sessions.get_mut(id).ok_or(NO_SESSION)?;
        session.consumer = None;
        session.detach_key = Some(key.to_owned());
        entry.session = None;
        Ok(())
    }

    /// Makes the consumer the owner of the session that was detached under this key by the same user, and returns
    /// that session's config.
    ///
    /// # Errors
    /// If the consumer has a session already, or there is none under the key.
    pub fn attach(&mut self, consumer: ConsumerId, key: &str) -> Result<Arc<[u8]>, String> {
        let entry = self
            .consumers
            .get_mut(&consumer)
            .ok_or("the consumer is not connected")?;
        if entry.session.is_some() {
            return Err("cannot attach: this consumer has a tracing session already".into());
        }
        let uid = entry.uid;
        let mut sessions = self.sessions.iter_mut();
        let session = sessions
            .find(|session| session.is_detached(uid, key))
            .ok_or_else(|| {
                format!("cannot attach: no session of uid {uid} is detached under the key {key:?}")
            })?;
        entry.session = Some(session.id);
        session.consumer = Some(consumer);
        session.detach_key = None;
        Ok(session.config_bytes.clone())
    }
}

impl Session {
    /// Whether this user has detached from it under this key.
    fn is_detached(&self, uid: u32, key: &str) -> bool {
        self.uid == uid && self.detach_key.as_deref() == Some(key)
    }
}
