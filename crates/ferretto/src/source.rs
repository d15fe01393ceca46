//! The border between the SDK's thread and data sources.
//!
//! The muxer ([`crate::muxer`]) knows connections, instances and acknowledgements; a [`Source`] knows what it records. Track
//! events are one source, each custom data source is another. All methods are called on the SDK's thread.

use std::fmt;
use std::sync::Arc;

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, CreateWriterError};
use ferretto_client::trace_writer::TraceWriter;
use ferretto_proto::messages::data_source_config::BufferExhaustedPolicy as ConfiguredPolicy;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, Message};
use ferretto_wire::Reader;

use crate::options::{Backend, Concurrency};

/// Instances of one data source that may be active at once, over all backends; upstream's number.
pub(crate) const MAX_INSTANCES: usize = 8;

/// An instance's place among those of its data source: below [`MAX_INSTANCES`], free again when the instance has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot(u8);

impl Slot {
    /// All slots.
    pub(crate) fn all() -> impl Iterator<Item = Slot> {
        (0..MAX_INSTANCES as u8).map(Slot)
    }

    /// As an index into arrays of [`MAX_INSTANCES`].
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its bit in masks of instances.
    #[inline]
    pub(crate) const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// An instance of a data source: one of a config that some session has for it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    /// Its place.
    pub(crate) slot: Slot,
    /// Different for any two instances of this process; never 0.
    pub(crate) serial: u32,
    /// Whose session it is for.
    pub(crate) backend: Backend,
    /// The config as far as our schema knows it.
    pub(crate) config: Arc<DataSourceConfig>,
    /// The config byte for byte, for data sources whose config is theirs.
    pub(crate) encoded_config: Arc<[u8]>,
}

/// Where a started instance's packets go.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) arbiter: Arc<Arbiter>,
    pub(crate) target: BufferId,
    pub(crate) policy: BufferExhaustedPolicy,
}

impl Output {
    /// A writer with a sequence of its own.
    pub(crate) fn create_trace_writer(&self) -> Result<TraceWriter, CreateWriterError> {
        self.arbiter.create_trace_writer(self.target, self.policy)
    }
}

/// Has the service told that something is done: when it is dropped, on whatever thread that is.
pub(crate) struct Acknowledge(Option<Box<dyn FnOnce() + Send>>);

impl Acknowledge {
    /// Calls `tell` when dropped.
    pub(crate) fn new(tell: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }
}

impl Drop for Acknowledge {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell();
        }
    }
}

impl fmt::Debug for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acknowledge")
    }
}

/// A data source, as the SDK's thread drives it.
pub(crate) trait Source: Send + Sync {
    /// What is registered with services. Asked for again when the source has said that it changed.
    fn descriptor(&self) -> DataSourceDescriptor;

    /// An instance will be started soon.
    fn set_up(&self, instance: &Instance);

    /// The instance may record from now on. Dropping `started` tells the service, if the descriptor announces that.
    fn start(&self, instance: &Instance, output: Output, started: Acknowledge);

    /// The instance is to stop recording; it may not have been started. Dropping `stopped` tells the service, if the descriptor
    /// announces that; its slot is given to no other instance before.
    fn stop(&self, slot: Slot, stopped: Acknowledge);

    /// What is buffered is to be written out. `flags` tell who asks and why (upstream's `FlushFlags`).
    fn flush(&self, slot: Slot, flags: u64, flushed: Acknowledge);

    /// What later packets would refer to is to be repeated: the earlier ones may be gone.
    fn clear_incremental_state(&self, slot: Slot);

    /// This is a forked child, on its only thread: there are no instances here, their memory is the parent's, and locks that other
    /// threads held are held for ever. After this nothing may be written there.
    fn forget(&self);

    /// What writers of an instance with this config do when there is no room.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::Drop
    }

    /// How many instances there may be.
    fn concurrency(&self) -> Concurrency {
        Concurrency::Many
    }

    /// Whether what was recorded since startup by one config is what a session asks for by another.
    fn can_adopt(&self, startup: &DataSourceConfig, session: &DataSourceConfig) -> bool {
        equal_but_for_the_service(startup, session)
    }
}

/// What a config says of the policy, for data sources that let it.
pub(crate) fn policy_of(config: &DataSourceConfig, default: BufferExhaustedPolicy) -> BufferExhaustedPolicy {
    match config.buffer_exhausted_policy {
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_DROP) => BufferExhaustedPolicy::Drop,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_STALL_THEN_ABORT) => BufferExhaustedPolicy::Stall,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_STALL_THEN_DROP) => BufferExhaustedPolicy::StallThenDrop,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_UNSPECIFIED) | None => default,
    }
}

/// Whether two configs differ in nothing but what the service fills in.
pub(crate) fn equal_but_for_the_service(one: &DataSourceConfig, other: &DataSourceConfig) -> bool {
    asked_for(one) == asked_for(other)
}

/// The encoded fields of a config that the service does not fill in. As bytes they are compared without code for each message that
/// there may be in a config.
fn asked_for(config: &DataSourceConfig) -> Vec<u8> {
    /// `target_buffer`, `trace_duration_ms`, `tracing_session_id`, `enable_extra_guardrails`, `stop_timeout_ms` and
    /// `session_initiator`.
    const FILLED_IN: [u32; 6] = [2, 3, 4, 6, 7, 8];
    let encoded = config.encode_to_vec();
    let fields = Reader::new(&encoded).map_while(Result::ok);
    let asked_for = fields.filter(|field| !FILLED_IN.contains(&field.number));
    asked_for.flat_map(|field| field.raw).copied().collect()
}

#[cfg(test)]
mod tests {
    use ferretto_proto::messages::data_source_config::SessionInitiator;

    use super::*;

    #[test]
    fn a_config_decides_on_the_policy_where_it_says_something() {
        let policy = |configured| {
            let config = DataSourceConfig {
                buffer_exhausted_policy: configured,
                ..Default::default()
            };
            policy_of(&config, BufferExhaustedPolicy::Stall)
        };
        let drop = policy(Some(ConfiguredPolicy::BUFFER_EXHAUSTED_DROP));
        assert_eq!(drop, BufferExhaustedPolicy::Drop);
        let stall_then_drop = policy(Some(ConfiguredPolicy::BUFFER_EXHAUSTED_STALL_THEN_DROP));
        assert_eq!(stall_then_drop, BufferExhaustedPolicy::StallThenDrop);
        let unspecified = policy(Some(ConfiguredPolicy::BUFFER_EXHAUSTED_UNSPECIFIED));
        assert_eq!(unspecified, BufferExhaustedPolicy::Stall);
        assert_eq!(policy(None), BufferExhaustedPolicy::Stall);
    }

    #[test]
    fn configs_are_the_same_whatever_the_service_fills_in() {
        let asked = DataSourceConfig {
            name: Some("numbers".to_owned()),
            legacy_config: Some("all".to_owned()),
            ..Default::default()
        };
        let filled_in = DataSourceConfig {
            target_buffer: Some(4),
            tracing_session_id: Some(9),
            trace_duration_ms: Some(1000),
            stop_timeout_ms: Some(5000),
            enable_extra_guardrails: Some(true),
            session_initiator: Some(SessionInitiator::SESSION_INITIATOR_TRUSTED_SYSTEM),
            ..asked.clone()
        };
        assert!(equal_but_for_the_service(&asked, &filled_in));
        let another = DataSourceConfig {
            legacy_config: Some("some".to_owned()),
            ..filled_in
        };
        assert!(!equal_but_for_the_service(&asked, &another));
    }
}
