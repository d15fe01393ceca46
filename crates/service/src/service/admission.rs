//! Whether a session may begin beside the existing ones: exclusive sessions, semaphores, names, limits and guardrails.
//!
//! `enable` calls this before anything of a new session exists. A freed session that is only completing its file blocks no other. The number of such
//! sessions is limited too, because they hold memory.

use std::time::Duration;

use ferretto_proto::messages::{ProtoVmConfig, TraceConfig};

use crate::clock::Now;
use crate::ids::SessionId;
use crate::limits;
use crate::ordered::OrderedMap;
use crate::service::Service;
use crate::session::{Session, State};

/// The starts of sessions with `enable_extra_guardrails`, by name: nanoseconds of boot time. A session of the same name must not begin again too
/// soon.
#[derive(Debug, Default)]
pub(crate) struct GuardedStarts(OrderedMap<String, Start>);

/// The start of a session, and its user.
#[derive(Clone, Copy, Debug)]
struct Start {
    at: u64,
    uid: u32,
}

impl GuardedStarts {
    /// Seconds since a session of this name began, if that is too short a time ago.
    fn too_recent(&self, name: &str, now: &Now) -> Option<u64> {
        let began = self.0.get(name)?.at;
        is_recent(began, now).then(|| seconds_since(began, now))
    }

    /// How many of this user began within that time.
    fn count(&self, uid: u32, now: &Now) -> usize {
        let recent = |start: &&Start| start.uid == uid && is_recent(start.at, now);
        self.0.values().filter(recent).count()
    }

    fn note(&mut self, name: String, uid: u32, now: &Now) {
        self.0.retain(|_, start| is_recent(start.at, now));
        self.0.insert(name, Start { at: now.boot, uid });
    }
}

/// Whole seconds, as upstream counts them.
fn seconds_since(began: u64, now: &Now) -> u64 {
    const NS_PER_S: u64 = 1_000_000_000;
    (now.boot / NS_PER_S).saturating_sub(began / NS_PER_S)
}

fn is_recent(began: u64, now: &Now) -> bool {
    seconds_since(began, now) <= limits::GUARDRAIL_MIN_SECONDS_BETWEEN_SESSIONS
}

impl Service {
    /// Checks a config of a consumer of this user against the sessions there are. Changes nothing.
    ///
    /// # Errors
    /// Why the session may not begin.
    pub(crate) fn admit(&self, config: &TraceConfig, uid: u32, now: &Now) -> Result<(), String> {
        self.check_completing(uid)?;
        self.check_exclusive(config)?;
        // An exclusive session ends all others, so it cannot clash with them.
        let alone = config.exclusive_prio.unwrap_or_default() != 0;
        if !alone {
            self.check_name(config)?;
            self.check_semaphores(config)?;
        }
        self.check_guarded_start(config, uid, now)?;
        if alone { Ok(()) } else { self.check_counts(uid) }
    }

    /// Clones are not counted: they are limited by themselves.
    fn check_completing(&self, uid: u32) -> Result<(), String> {
        let completing = self
            .sessions
            .iter()
            .filter(|session| session.is_freed && !session.is_clone());
        let of_uid = completing.clone().filter(|session| session.uid == uid).count();
        if of_uid >= limits::MAX_COMPLETING_SESSIONS_PER_UID {
            return Err(format!(
                "{of_uid} ended tracing sessions of uid {uid} still write into their files; wait until some are complete"
            ));
        }
        let count = completing.count();
        if count >= limits::MAX_COMPLETING_SESSIONS {
            return Err(format!(
                "{count} ended tracing sessions still write into their files; wait until some are complete"
            ));
        }
        Ok(())
    }

    fn check_exclusive(&self, config: &TraceConfig) -> Result<(), String> {
        let wanted = config.exclusive_prio.unwrap_or_default();
        let priority = |session: &Session| session.config.exclusive_prio.unwrap_or_default();
        let current = self.sessions.recordings().map(priority).max().unwrap_or_default();
        if current > 0 && current >= wanted {
            return Err(format!(
                "an exclusive session with exclusive_prio {current} is active: exclusive_prio {wanted} would have to \
                 be higher; wait until that session ends"
            ));
        }
        Ok(())
    }

    fn check_name(&self, config: &TraceConfig) -> Result<(), String> {
        let name = config.unique_session_name.as_deref().unwrap_or_default();
        let taken = |session: &Session| session.has_unique_name(name);
        if !name.is_empty() && self.sessions.recordings().any(taken) {
            return Err(format!(
                "a trace with this unique session name ({name}) already exists"
            ));
        }
        Ok(())
    }

    /// Every session that names a semaphore says how many others it bears; the smallest such number counts.
    fn check_semaphores(&self, config: &TraceConfig) -> Result<(), String> {
        if config.session_semaphores.is_empty() {
            return Ok(());
        }
        let mut others: OrderedMap<&str, (u64, u64)> = OrderedMap::new();
        let of_others = self
            .sessions
            .recordings()
            .filter(|session| session.state != State::Disabled)
            .flat_map(|session| &session.config.session_semaphores);
        for other in of_others {
            let name = other.name.as_deref().unwrap_or_default();
            let (count, smallest) = others.get_or_insert_with(name, || (0, u64::MAX));
            *count += 1;
            *smallest = (*smallest).min(other.max_other_session_count.unwrap_or_default());
        }
        for semaphore in &config.session_semaphores {
            let own = semaphore.max_other_session_count.unwrap_or_default();
            let name = semaphore.name.as_deref().unwrap_or_default();
            let Some((count, smallest)) = others.get(name) else {
                continue;
            };
            if *count > own.min(*smallest) {
                return Err(format!(
                    "semaphore {name:?} exceeds maximum allowed other session count ({count} > min({own}, {smallest}))"
                ));
            }
        }
        Ok(())
    }

    fn check_counts(&self, uid: u32) -> Result<(), String> {
        let of_uid = self
            .sessions
            .recordings()
            .filter(|session| session.uid == uid)
            .count();
        if of_uid >= limits::MAX_SESSIONS_PER_UID {
            return Err(format!(
                "too many concurrent tracing sessions ({of_uid}) for uid {uid}, the limit is {}",
                limits::MAX_SESSIONS_PER_UID
            ));
        }
        let count = self.sessions.recordings().count();
        if count >= limits::MAX_SESSIONS {
            return Err(format!(
                "too many concurrent tracing sessions ({count}), the limit is {}",
                limits::MAX_SESSIONS
            ));
        }
        Ok(())
    }

    fn check_guarded_start(&self, config: &TraceConfig, uid: u32, now: &Now) -> Result<(), String> {
        if !config.enable_extra_guardrails.unwrap_or_default() {
            return Ok(());
        }
        let name = config.unique_session_name.as_deref().unwrap_or_default();
        if let Some(seconds) = self.guarded_starts.too_recent(name, now) {
            return Err(format!(
                "enable_extra_guardrails: a trace with unique session name {name:?} began {seconds} s ago; wait until \
                 that is more than {} s",
                limits::GUARDRAIL_MIN_SECONDS_BETWEEN_SESSIONS
            ));
        }
        if self.guarded_starts.count(uid, now) >= limits::MAX_GUARDED_STARTS_PER_UID {
            return Err(format!(
                "enable_extra_guardrails: {} sessions of uid {uid} began within {} s, which is the limit",
                limits::MAX_GUARDED_STARTS_PER_UID,
                limits::GUARDRAIL_MIN_SECONDS_BETWEEN_SESSIONS
            ));
        }
        Ok(())
    }

    /// The session was admitted and now begins: others make room if it is exclusive.
    pub(crate) fn make_way(&mut self, config: &TraceConfig, uid: u32, now: &Now) {
        if config.enable_extra_guardrails.unwrap_or_default() {
            let name = config.unique_session_name.clone().unwrap_or_default();
            self.guarded_starts.note(name, uid, now);
        }
        let priority = config.exclusive_prio.unwrap_or_default();
        if priority == 0 {
            return;
        }
        let others: Vec<SessionId> = self.sessions.live().map(|session| session.id).collect();
        for other in others {
            let reason = format!("aborted for an exclusive session of higher priority ({priority})");
            self.abort_session(other, reason, now);
        }
    }

    /// Ends a session at once and for good. Its consumer gets the reason, and may begin another session.
    pub(crate) fn abort_session(&mut self, id: SessionId, reason: String, now: &Now) {
        let consumer = self.sessions.get(id).and_then(|session| session.consumer);
        if let Some(consumer) = consumer.and_then(|consumer| self.consumers.get_mut(&consumer)) {
            consumer.session = None;
        }
        self.on_session(id, now, |session, common| {
            session.disabled_error.get_or_insert(reason);
            session.free(common, now);
        });
    }
}

/// Checks that concern the config alone: its duration, the limits of `enable_extra_guardrails`, and options that this service does not support.
///
/// # Errors
/// A description of the first error.
pub(crate) fn check_config(config: &TraceConfig) -> Result<(), String> {
    check_duration(config)?;
    if config.enable_extra_guardrails == Some(true) {
        check_guardrails(config)?;
    }
    if config.persist_trace_across_reboots.unwrap_or_default() {
        return Err(
            "persist_trace_across_reboots is not supported: the service keeps no sessions on disk; remove it, and have \
             the session started again after a reboot"
                .into(),
        );
    }
    for source in &config.data_sources {
        if let Some(protovm) = source.config.protovm_config.as_option() {
            check_protovm(protovm).map_err(|why| {
                let name = source.config.name.as_deref().unwrap_or_default();
                format!("data source {name:?}: protovm_config{why}")
            })?;
        }
    }
    let configs = config
        .data_sources
        .iter()
        .map(|source| &source.config.protovm_config);
    let in_all: u64 = configs
        .map(|vm| u64::from(vm.memory_limit_kb.unwrap_or_default()))
        .sum();
    if in_all > limits::MAX_PROTOVM_MEMORY_KB_PER_SESSION.into() {
        return Err(format!(
            "the protovm_config.memory_limit_kb of all data sources come to {in_all}, the limit is {}: clones copy the states",
            limits::MAX_PROTOVM_MEMORY_KB_PER_SESSION
        ));
    }
    Ok(())
}

#[cfg(feature = "protovm")]
fn check_protovm(config: &ProtoVmConfig) -> Result<(), String> {
    let limit = config.memory_limit_kb.unwrap_or_default();
    if limit > limits::MAX_PROTOVM_MEMORY_KB {
        return Err(format!(
            ".memory_limit_kb is {limit}, the limit is {}: what is merged goes into a packet of the trace",
            limits::MAX_PROTOVM_MEMORY_KB
        ));
    }
    Ok(())
}

#[cfg(not(feature = "protovm"))]
fn check_protovm(_: &ProtoVmConfig) -> Result<(), String> {
    Err(format!(": {}", crate::protovm::NOT_BUILT_IN))
}

/// The longest duration of a session with this config.
pub(crate) fn max_duration(config: &TraceConfig) -> Duration {
    match config.enable_extra_guardrails {
        Some(true) => limits::GUARDRAIL_MAX_DURATION,
        _ => limits::MAX_DURATION,
    }
}

fn check_duration(config: &TraceConfig) -> Result<(), String> {
    let limit = max_duration(config);
    let whose = if limit == limits::GUARDRAIL_MAX_DURATION {
        "24 hours with enable_extra_guardrails"
    } else {
        "7 days"
    };
    let duration = Duration::from_millis(config.duration_ms.unwrap_or_default().into());
    if duration > limit {
        return Err(format!(
            "duration_ms: {} ms is more than the limit of {} ms ({whose})",
            duration.as_millis(),
            limit.as_millis()
        ));
    }
    Ok(())
}

fn check_guardrails(config: &TraceConfig) -> Result<(), String> {
    if config.deferred_start.unwrap_or_default() {
        return Err(
            "deferred_start is not supported with enable_extra_guardrails; remove one of them".into(),
        );
    }
    let sizes = || {
        config
            .buffers
            .iter()
            .map(|buffer| buffer.size_kb.unwrap_or_default())
    };
    if let Some(size) = sizes().find(|size| size % 4 != 0) {
        return Err(format!(
            "buffers.size_kb must be a multiple of 4 with enable_extra_guardrails, got {size}"
        ));
    }
    let sum: u64 = sizes().map(u64::from).sum();
    let overridden = config
        .guardrail_overrides
        .max_tracing_buffer_size_kb
        .unwrap_or_default();
    let limit = u64::from(overridden.max(limits::GUARDRAIL_MAX_BUFFERS_KB));
    if sum > limit {
        return Err(format!(
            "the buffers have {sum} KB in all, the limit with enable_extra_guardrails is {limit} KB; \
             guardrail_overrides.max_tracing_buffer_size_kb raises it"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_may_begin_again_are_forgotten() {
        let mut starts = GuardedStarts::default();
        for minute in 0..1000u64 {
            let now = Now {
                boot: minute * 60 * 1_000_000_000,
                ..Now::default()
            };
            starts.note(minute.to_string(), 1, &now);
            // The starts of the last five minutes, both ends included.
            assert_eq!(starts.0.len() as u64, (minute + 1).min(6));
        }
    }
}
