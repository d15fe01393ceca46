//! A session of the recorder that runs: its connection to the tracing service.
//!
//! [`run`](super::run) calls it. The session lives as long as its connection, so a recorder that is killed leaves none behind.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_ipc::Address;
use ferretto_ipc::client::CallError;
use ferretto_ipc::ports::ConsumerMethod;
use ferretto_ipc::reactor::{Reactor, Token, Watch, monotonic_now};
use ferretto_proto::messages::TraceStats;
use ferretto_proto::messages::observable_events::{CloneTriggerHit, Type as ObservableEventType};

use crate::service::unreachable;

/// A session that ran this long did not end because of its config.
const STEADY: Duration = Duration::from_secs(10);

/// Something that a session reports.
#[derive(Debug)]
pub(super) enum Event {
    /// A trigger of its config was activated.
    Triggered(CloneTriggerHit),
    /// Its statistics, which were asked for.
    Stats(Box<TraceStats>),
    /// The service has disabled it, for this reason; the connection is there. This is the last event.
    Disabled(String),
    /// It has ended, for this reason. This is the last event.
    Ended(String),
}

/// A session, see the [module](self).
#[derive(Debug)]
pub(super) struct LiveSession {
    endpoint: ConsumerEndpoint,
    watch: Watch,
    /// When it was started.
    since: Instant,
}

impl LiveSession {
    /// Starts a session with this encoded config. Events of its connection come with `token`.
    ///
    /// # Errors
    /// If there is no service, or it cannot be asked.
    pub(super) fn start(socket: &Address, config: &[u8], token: Token) -> Result<LiveSession, String> {
        let mut endpoint = ConsumerEndpoint::connect(socket).map_err(|error| unreachable(socket, &error))?;
        let failed = |error| format!("cannot ask the service: {error}");
        endpoint
            .observe_events(&[ObservableEventType::TYPE_CLONE_TRIGGER_HIT])
            .map_err(failed)?;
        endpoint.enable_tracing(config, None).map_err(failed)?;
        endpoint.flush();
        Ok(LiveSession {
            endpoint,
            watch: Watch::new(token),
            since: Instant::now(),
        })
    }

    /// Starts it anew over the same connection after it was disabled, so that its name is free. Returns whether that was asked for: not if it ran only
    /// for a moment, because it would end again, and not if the service does not take it.
    pub(super) fn renew(&mut self, config: &[u8]) -> bool {
        if self.since.elapsed() < STEADY {
            return false;
        }
        self.since = Instant::now();
        let asked = self
            .endpoint
            .free_buffers()
            .and_then(|_| self.endpoint.enable_tracing(config, None));
        self.endpoint.flush();
        asked.is_ok()
    }

    /// Returns the token of its events.
    pub(super) fn token(&self) -> Token {
        self.watch.token()
    }

    /// Waits for its next input. To be called before each wait.
    pub(super) fn watch(&mut self, reactor: &Reactor) {
        self.watch
            .update(reactor, Some((self.endpoint.as_fd(), self.endpoint.interest())));
    }

    /// When [`on_ready`](Self::on_ready) is to be called though nothing comes: the service has not answered by then.
    pub(super) fn answer_due(&self) -> Option<u64> {
        self.endpoint.answer_due()
    }

    /// Asks for its statistics.
    pub(super) fn ask_for_stats(&mut self) {
        // A service that does not read will not answer either.
        let _ = self.endpoint.trace_stats();
        self.endpoint.flush();
    }

    /// Reads what has come; returns what it means.
    pub(super) fn on_ready(&mut self) -> Vec<Event> {
        self.endpoint.on_readable();
        self.endpoint.handle_timeout(monotonic_now());
        self.endpoint.flush();
        let mut events = Vec::new();
        while let Some(event) = self.endpoint.next_event() {
            match event {
                ConsumerEvent::Reply {
                    reply: Ok(ConsumerReply::Observed(observed)),
                    ..
                } => events.extend(observed.clone_trigger_hit.into_option().map(Event::Triggered)),
                ConsumerEvent::Reply {
                    reply: Ok(ConsumerReply::TraceStats(stats)),
                    ..
                } => events.push(Event::Stats(stats)),
                ConsumerEvent::Reply {
                    reply: Ok(ConsumerReply::TracingDisabled { error }),
                    ..
                } => {
                    let reason = error.unwrap_or_else(|| "the service has ended it".to_owned());
                    events.push(Event::Disabled(reason));
                    break;
                }
                ConsumerEvent::Reply {
                    method: ConsumerMethod::EnableTracing,
                    reply: Err(error),
                    ..
                } if error != CallError::ConnectionLost => {
                    events.push(Event::Ended(error.to_string()));
                    break;
                }
                ConsumerEvent::Disconnected(reason) => {
                    events.push(Event::Ended(reason.to_string()));
                    break;
                }
                ConsumerEvent::Connected | ConsumerEvent::Reply { .. } => {}
            }
        }
        events
    }
}
