//! Clones of sessions: which session to clone, the triggers that ask for it, and the result.

use std::time::Duration;

use ferretto_proto::messages::observable_events::CloneTriggerHit;
use ferretto_proto::messages::{CloneSessionRequest, CloneSessionResponse, clone_session_request::Selector};

use super::command::Command;
use super::{Session, SessionError};
use crate::muxer;

/// Triggers for clones.
impl Session {
    /// Has `tell` called, on the SDK's thread, when a trigger of this session with [`TriggerAction::Clone`](super::TriggerAction::Clone) is activated and
    /// its delay is over. Another call replaces `tell`.
    ///
    /// Nothing is cloned unless the program does so then, with another session of the same service. This one goes on.
    ///
    /// ```
    /// # #[cfg(feature = "in-process")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::sync::mpsc::channel;
    /// use std::time::Duration;
    ///
    /// use ferretto::session::{CloneSource, DataSource, Session, TraceConfig, TriggerAction};
    ///
    /// ferretto::initialize(ferretto::Options::in_process());
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let session = Session::in_process();
    /// session.setup(
    ///     &TraceConfig::new()
    ///         .buffer_kb(4096)
    ///         .data_source(DataSource::track_event())
    ///         .trigger("slow-request", TriggerAction::Clone, Duration::ZERO, day),
    /// )?;
    /// let (hit, hits) = channel();
    /// // The callback must not wait, so another thread makes the clone.
    /// session.on_clone_trigger(move |trigger| drop(hit.send(trigger)));
    /// session.start_blocking()?;
    ///
    /// ferretto::activate_triggers(&["slow-request"], Duration::from_secs(1));
    /// for trigger in hits {
    ///     let clone = Session::in_process();
    ///     clone.clone_session(&CloneSource::Trigger(trigger))?;
    ///     let trace = clone.read_to_end()?;
    /// #   assert!(!trace.is_empty());
    /// #   break;
    /// }
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "in-process"))]
    /// # fn main() {}
    /// ```
    pub fn on_clone_trigger(&self, mut tell: impl FnMut(CloneTrigger) + Send + 'static) {
        self.send(Command::OnCloneTrigger(Box::new(move |trigger| {
            muxer::guarded(|| tell(trigger));
        })));
    }
}

/// A trigger was activated that asks for a clone of a session: see [`Session::on_clone_trigger`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloneTrigger {
    /// The name.
    pub name: String,
    /// The id of the session that waits for it.
    pub session_id: u64,
    /// The producer that activated it.
    pub producer_name: String,
    /// The user of that producer.
    pub producer_uid: u32,
    /// The time of the activation: nanoseconds since the machine has started, of `CLOCK_BOOTTIME`.
    pub boot_time_ns: u64,
    /// The time that was to be recorded after the activation, and now has been.
    pub delay: Duration,
}

impl CloneTrigger {
    pub(super) fn of(hit: &CloneTriggerHit) -> CloneTrigger {
        CloneTrigger {
            name: hit.trigger_name.clone().unwrap_or_default(),
            session_id: hit.tracing_session_id.unwrap_or_default() as u64,
            producer_name: hit.producer_name.clone().unwrap_or_default(),
            producer_uid: hit.producer_uid.unwrap_or_default(),
            boot_time_ns: hit.boot_time_ns.unwrap_or_default(),
            delay: Duration::from_millis(hit.trigger_delay_ms.unwrap_or_default()),
        }
    }
}

/// The session to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloneSource {
    /// The one with this [`unique_session_name`](super::TraceConfig::unique_session_name).
    Name(String),
    /// The one with this id, as the [service's state](Session::query_service_state) tells it.
    Id(u64),
    /// The one with the highest `bugreport_score`, without its filter: for a bug report.
    Bugreport,
    /// The one that this trigger is for. The clone has a packet that says so.
    Trigger(CloneTrigger),
}

impl CloneSource {
    pub(super) fn request(&self) -> Box<CloneSessionRequest> {
        /// Services know the session for bug reports by this id.
        const BUGREPORT: u64 = u64::MAX;
        let (selector, for_bugreport) = match self {
            CloneSource::Name(name) => (Selector::UniqueSessionName(name.clone()), false),
            CloneSource::Id(id) => (Selector::SessionId(*id), false),
            CloneSource::Bugreport => (Selector::SessionId(BUGREPORT), true),
            CloneSource::Trigger(trigger) => (Selector::SessionId(trigger.session_id), false),
        };
        let mut request = CloneSessionRequest {
            selector: Some(selector),
            for_bugreport: for_bugreport.then_some(true),
            skip_trace_filter: for_bugreport.then_some(true),
            ..Default::default()
        };
        if let CloneSource::Trigger(trigger) = self {
            request.clone_trigger_name = Some(trigger.name.clone());
            request.clone_trigger_producer_name = Some(trigger.producer_name.clone());
            request.clone_trigger_trusted_producer_uid = Some(trigger.producer_uid as i32);
            request.clone_trigger_boot_time_ns = Some(trigger.boot_time_ns);
            request.clone_trigger_delay_ms = Some(trigger.delay.as_millis() as u64);
        }
        Box::new(request)
    }
}

/// A clone of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cloned {
    /// The uuid of the clone's trace; the lower half is the original's.
    pub uuid: u128,
    /// Whether the trace went into the given file, because the original streams into one. Otherwise it can be read from the session.
    pub wrote_into_file: bool,
}

impl Cloned {
    pub(super) fn of(response: &CloneSessionResponse) -> Result<Cloned, SessionError> {
        if response.success != Some(true) {
            let reason = response.error.clone().filter(|reason| !reason.is_empty());
            let reason = reason.unwrap_or_else(|| "the service does not say why".into());
            return Err(SessionError::NotCloned(reason));
        }
        let half = |half: Option<i64>| u128::from(half.unwrap_or_default() as u64);
        Ok(Cloned {
            uuid: half(response.uuid_msb) << 64 | half(response.uuid_lsb),
            wrote_into_file: response.was_write_into_file.unwrap_or_default(),
        })
    }
}
