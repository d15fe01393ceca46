//! The border between a producer's runtime and data sources.
//!
//! The runtime (the module `runtime`) knows connections, instances and acknowledgements; a [`DataSource`] knows its data. The SDK's track events are
//! one data source, each custom one is another, and so is each of the probes'. The runtime's thread calls all methods. A data source that works only
//! when it is called, for example at deadlines, is easier to write as a `runtime::probe::Probe`.

use std::fmt;
use std::sync::Arc;

use ferretto_proto::messages::data_source_config::BufferExhaustedPolicy as ConfiguredPolicy;
use ferretto_proto::messages::{DataSourceConfig, DataSourceDescriptor, Message};
use ferretto_proto::write::TracePacket;
use ferretto_wire::{Field, Reader};

use crate::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, CreateWriterError};
use crate::trace_writer::TraceWriter;

/// A connection of a producer to a service. The program chooses the number when it adds the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// An instance's place among the instances of its data source: below [`DataSource::max_instances`], free again when the instance has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// The first `count` slots.
    pub fn first(count: usize) -> impl Iterator<Item = Slot> {
        (0..count).map(Slot::at)
    }

    /// Instances are far fewer than `u32::MAX`.
    pub(crate) fn at(index: usize) -> Slot {
        Slot(index as u32)
    }

    /// As an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its bit in masks of instances, for data sources with at most 32.
    #[inline]
    pub const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// An instance of a data source: it records for one session with one config.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its place.
    pub slot: Slot,
    /// Different for any two instances of this process; never 0.
    pub serial: u32,
    /// The connection whose session it is for.
    pub connection: ConnectionId,
    /// The config as far as our schema knows it.
    pub config: Arc<DataSourceConfig>,
    /// The config byte for byte, for data sources with a config message that our schema lacks.
    pub encoded_config: Arc<[u8]>,
}

/// The destination of a started instance's packets.
#[derive(Clone, Debug)]
pub struct Output {
    /// The arbiter of its connection, which hands out shared memory.
    pub arbiter: Arc<Arbiter>,
    /// The trace buffer.
    pub target: BufferId,
    /// The behaviour of its writers when the memory is full.
    pub policy: BufferExhaustedPolicy,
}

impl Output {
    /// A writer with a sequence of its own.
    ///
    /// # Errors
    /// If there are too many, or the connection is over.
    pub fn create_trace_writer(&self) -> Result<TraceWriter, CreateWriterError> {
        self.arbiter.create_trace_writer(self.target, self.policy)
    }
}

/// Dropping this, on any thread, tells the service that a command is done.
pub struct Acknowledge(Option<Box<dyn FnOnce() + Send>>);

impl Acknowledge {
    /// Calls `tell` when dropped.
    pub fn new(tell: impl FnOnce() + Send + 'static) -> Self {
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

/// The reason why an instance records nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The name of the data source.
    pub source: String,
    /// The rest of the sentence: `could not be started: …`.
    pub failure: String,
    /// When it was noticed, in nanoseconds of boot time.
    pub noticed: u64,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source, self.failure)
    }
}

impl Trouble {
    /// Writes it into the trace, as a `DataSourceFailure`. A data source whose instance fails on a thread of its own calls it; for others the runtime does.
    pub fn write(&self, writer: &mut TraceWriter) {
        writer.packet(|packet| {
            TracePacket::new(packet)
                .timestamp(self.noticed)
                .data_source_failure(|failure| {
                    failure.data_source_name(&self.source).failure(&self.failure);
                });
        });
        writer.flush();
    }
}

/// A data source, as the runtime drives it. Its methods are called on the runtime's thread, which serves nothing else meanwhile: they must not block.
pub trait DataSource: Send + Sync {
    /// The descriptor to register with services. The runtime adds that starting and stopping is acknowledged (stopping unless this says otherwise),
    /// and asks again when it hears that the data source has changed.
    fn descriptor(&self) -> DataSourceDescriptor;

    /// An instance will be started soon.
    ///
    /// # Errors
    /// If the config cannot be carried out: a clause that follows "could not be set up: ". The instance then stays in its slot until it
    /// is stopped, but only [`DataSource::tell_trouble`] is called for it. The service is never told that it has started, as by upstream's
    /// producers.
    fn set_up(&self, instance: &Instance) -> Result<(), String>;

    /// The instance may record from now on. Dropping `started` tells the service.
    ///
    /// # Errors
    /// If it cannot: a clause that follows "could not be started: ". The same holds as for [`DataSource::set_up`].
    fn start(&self, instance: &Instance, output: Output, started: Acknowledge) -> Result<(), String>;

    /// Has the instance stop recording; it may not have been started. Drop `stopped` when it has stopped. Then the service is told, unless the
    /// descriptor says `will_notify_on_stop: false`. The slot is not used again before.
    fn stop(&self, slot: Slot, stopped: Acknowledge);

    /// Writes out the data that the instance has buffered. The instance may not have been started, or be stopping. `flags` are upstream's
    /// `FlushFlags` (`flush_flags.h`), 0 if unknown.
    fn flush(&self, slot: Slot, flags: u64, flushed: Acknowledge);

    /// Repeats everything that later packets refer to, because the earlier packets may be gone.
    fn clear_incremental_state(&self, slot: Slot);

    /// The instance records nothing, for this reason, which is logged already. The trace gets it as a `DataSourceFailure`, unless the data source
    /// has packets of its own in which upstream's readers look for it.
    fn tell_trouble(&self, output: &Output, trouble: &Trouble) {
        // Without a writer only the log has it.
        if let Ok(mut writer) = output.create_trace_writer() {
            trouble.write(&mut writer);
        }
    }

    /// When [`DataSource::on_deadline`] should be called, in nanoseconds of boot time. Asked several times in each turn.
    fn next_deadline(&self) -> Option<u64> {
        None
    }

    /// The deadline has passed.
    fn on_deadline(&self) {}

    /// The behaviour of an instance's writers when there is no room, for this config.
    fn exhausted_policy(&self, _config: &DataSourceConfig) -> BufferExhaustedPolicy {
        BufferExhaustedPolicy::Drop
    }

    /// How many instances there may be at once, over all connections.
    fn max_instances(&self) -> usize {
        usize::MAX
    }

    /// How the config used for startup differs from a session's. `None` if the session may take over the recording.
    fn difference(&self, startup: &DataSourceConfig, session: &DataSourceConfig) -> Option<String> {
        difference(startup, session)
    }
}

/// The policy of a config, for data sources that let the config decide.
pub fn policy_of(config: &DataSourceConfig, default: BufferExhaustedPolicy) -> BufferExhaustedPolicy {
    match config.buffer_exhausted_policy {
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_DROP) => BufferExhaustedPolicy::Drop,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_STALL_THEN_ABORT) => BufferExhaustedPolicy::Stall,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_STALL_THEN_DROP) => BufferExhaustedPolicy::StallThenDrop,
        Some(ConfiguredPolicy::BUFFER_EXHAUSTED_UNSPECIFIED) | None => default,
    }
}

/// Returns how the config of a startup session and that of a session differ, except for the fields that the service fills in.
pub fn difference(startup: &DataSourceConfig, session: &DataSourceConfig) -> Option<String> {
    let (startup, session) = (startup.encode_to_vec(), session.encode_to_vec());
    let (startup, session) = (asked_for(&startup), asked_for(&session));
    let (mut left, mut right) = (startup.as_slice(), session.as_slice());
    let mut fields = Vec::new();
    while let Some(number) = lowest(left).into_iter().chain(lowest(right)).min() {
        let place = match (take(&mut left, number), take(&mut right, number)) {
            (one, other) if one.iter().map(|it| it.raw).eq(other.iter().map(|it| it.raw)) => continue,
            (_, []) => "is set only for startup",
            ([], _) => "is set only by the session",
            _ => "is not the same",
        };
        fields.push(format!("{} {place}", name_of(number)));
    }
    (!fields.is_empty()).then(|| fields.join(", "))
}

/// The fields of an encoded config that the service does not fill in, sorted by number; fields of one number keep their order. Comparing bytes
/// needs no code for each message in a config.
fn asked_for(encoded: &[u8]) -> Vec<Field<'_>> {
    const FILLED_IN: [u32; 6] = [
        DataSourceConfig::TARGET_BUFFER,
        DataSourceConfig::TRACE_DURATION_MS,
        DataSourceConfig::TRACING_SESSION_ID,
        DataSourceConfig::ENABLE_EXTRA_GUARDRAILS,
        DataSourceConfig::STOP_TIMEOUT_MS,
        DataSourceConfig::SESSION_INITIATOR,
    ];
    let fields = Reader::new(encoded).map_while(Result::ok);
    let mut asked_for: Vec<_> = fields
        .filter(|field| !FILLED_IN.contains(&field.number))
        .collect();
    // All are parts of `encoded`: the places of those of one number tell their order.
    asked_for.sort_unstable_by_key(|field| (field.number, field.raw.as_ptr()));
    asked_for
}

/// The number of the next field.
fn lowest(fields: &[Field<'_>]) -> Option<u32> {
    fields.first().map(|field| field.number)
}

/// Takes the next fields off, as far as they have this number.
fn take<'f, 'a>(fields: &mut &'f [Field<'a>], number: u32) -> &'f [Field<'a>] {
    let count = fields.iter().take_while(|field| field.number == number).count();
    let (taken, rest) = fields.split_at(count);
    *fields = rest;
    taken
}

/// Returns the name of a field of `DataSourceConfig`, as far as data sources of applications use it.
fn name_of(field: u32) -> String {
    let name = match field {
        DataSourceConfig::NAME => "name",
        DataSourceConfig::BUFFER_EXHAUSTED_POLICY => "buffer_exhausted_policy",
        DataSourceConfig::TARGET_BUFFER_NAME => "target_buffer_name",
        DataSourceConfig::TRACK_EVENT_CONFIG => "track_event_config",
        DataSourceConfig::LEGACY_CONFIG => "legacy_config",
        _ => return format!("field {field} of DataSourceConfig"),
    };
    format!("`{name}`")
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
    fn fields_that_the_service_fills_in_are_no_difference() {
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
        let another = DataSourceConfig {
            legacy_config: Some("some".to_owned()),
            ..filled_in.clone()
        };
        assert_eq!(difference(&asked, &filled_in), None);
        assert_eq!(
            difference(&asked, &another).as_deref(),
            Some("`legacy_config` is not the same")
        );
        let more = DataSourceConfig {
            legacy_config: None,
            buffer_exhausted_policy: Some(ConfiguredPolicy::BUFFER_EXHAUSTED_DROP),
            ..another
        };
        assert_eq!(
            difference(&asked, &more).as_deref(),
            Some(
                "`buffer_exhausted_policy` is set only by the session, `legacy_config` is set only for startup"
            )
        );
    }
}
