//! From a config to a session: every check that a config must pass, then its buffers and data source instances.
//!
//! The service refuses a config before anything of the session exists, so it never has to undo anything. It also refuses unsupported options, because
//! the trace would not be the one that the consumer asked for.

use std::sync::Arc;

use ferretto_proto::messages::{TraceConfig, trace_config};

use super::{Service, admission};
use crate::boost::PriorityBoost;
use crate::clock::Now;
use crate::compression;
use crate::ids::{ConsumerId, SessionId};
use crate::output::LogLevel;
use crate::session::config::{self, OutputFile};
use crate::session::{Beginning, Session, State};
use crate::triggers::{TriggerConfig, Triggers};
use crate::wanted::Wanted;

/// A config as it came and as it was decoded.
#[derive(Clone, Debug)]
pub struct ConfigInput {
    /// Decoded.
    pub config: TraceConfig,
    /// The bytes it was decoded from.
    pub bytes: Arc<[u8]>,
}

impl Service {
    /// A consumer wants to trace. Unless the config asks for `deferred_start`, data sources start at once.
    ///
    /// `uuid` names the trace, if the config does not. On success the outputs end, some time later, with
    /// [`TracingDisabled`](crate::Output::TracingDisabled).
    ///
    /// # Errors
    /// The reason why the config is refused. Nothing has changed then, except `lockdown_mode`, which upstream changes first too.
    pub fn enable_tracing(
        &mut self,
        consumer: ConsumerId,
        input: ConfigInput,
        file: &OutputFile,
        uuid: u128,
        now: &Now,
    ) -> Result<SessionId, String> {
        self.check_not_ending()?;
        let ConfigInput { config, bytes } = input;
        let uid = self
            .consumers
            .get(&consumer)
            .ok_or("the consumer is not connected")?
            .uid;
        self.change_lockdown(&config);
        if self.session_of(consumer).is_some() {
            return Err("this consumer has a tracing session already; free its buffers first".into());
        }
        admission::check_config(&config)?;
        let triggers = TriggerConfig::check(&config, &bytes, admission::max_duration(&config))?;
        config::check_bugreport_filename(&config)?;
        let targets = config::resolve_targets(&config)?;
        let wanted = Wanted::new(&config, &targets, &self.common.identity.machine_name)?;
        let filter = config::trace_filter(&config)?;
        let boost = config
            .priority_boost
            .as_option()
            .map(PriorityBoost::requested)
            .transpose()?;
        let data_source_configs = config::data_source_configs(&bytes);
        config::check_config_sizes(&config, &data_source_configs)?;
        self.admit(&config, uid, now)?;
        let file = config::file_sink(&config, file)?;
        let buffers = config::make_buffers(&config)?;
        let buffer_ids = self.sessions.allocate_buffer_ids(buffers.len())?;
        self.make_way(&config, uid, now);

        let id = self.sessions.next_id();
        let buffer_kb: u64 = buffers.iter().map(|buffer| buffer.size() / 1024).sum();
        if compression::is_unmet(&config) {
            self.common.outbox.warn(
                "the config names no kind of compression that this service has: the trace is not compressed",
            );
        }
        let mut session = Session::new(Beginning {
            id,
            consumer,
            uid,
            flush_strategy: config::flush_strategy(&config, file.as_ref()),
            uuid: config::trace_uuid(&config).unwrap_or(uuid),
            config,
            data_source_configs,
            wanted,
            config_bytes: bytes,
            buffer_ids,
            buffers,
            file,
            triggers: Triggers::new(triggers),
            filter,
            boost,
        });
        let line = format!(
            "configured tracing session {id}: {} data sources, duration {} ms, {} buffers of {buffer_kb} KB in all, uid {uid}, \
             name {:?}, {} sessions now",
            session.config.data_sources.len(),
            session.config.duration_ms.unwrap_or_default(),
            session.buffers.len(),
            session.config.unique_session_name.as_deref().unwrap_or_default(),
            self.sessions.len() + 1,
        );
        let deferred = session.config.deferred_start.unwrap_or_default();
        let surplus = config::surplus_flush_period(&session.config);
        // A config that says nothing of the mode may be meant for services that do not have it, as that of `perfetto -s` is.
        let level = match session.config.write_flush_mode {
            None => LogLevel::Info,
            Some(_) => LogLevel::Warning,
        };
        session.record_others(self.sessions.live());
        let starts_with_trigger = session.starts_with_trigger();
        self.triggers.await_triggers(&session);
        self.sessions.insert(session);
        // First of all: if it cannot be done, the session does not begin.
        self.adjust_boost(Some(id));
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            consumer.session = Some(id);
        }
        self.on_session(id, now, |session, common| {
            session.set_up_data_sources(common, now);
            session.enter(State::Configured, common, now);
            common.outbox.log(LogLevel::Info, line);
            if surplus {
                let line = "flush_period_ms is ignored: write_flush_mode decides when producers are flushed; set it to \
                            WRITE_FLUSH_DISABLED to use flush_period_ms";
                common.outbox.log(level, line.into());
            }
            session.set_trigger_timeout(common, now);
            if !deferred && !starts_with_trigger {
                session.start(common, now);
            }
        });
        Ok(id)
    }

    fn change_lockdown(&mut self, config: &TraceConfig) {
        match config.lockdown_mode {
            Some(trace_config::LockdownModeOperation::LOCKDOWN_SET) => self.common.producers.lockdown = true,
            Some(trace_config::LockdownModeOperation::LOCKDOWN_CLEAR) => {
                self.common.producers.lockdown = false
            }
            _ => {}
        }
    }
}
