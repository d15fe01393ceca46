//! The configs of sessions: [`TraceConfig`] and its parts.
//!
//! A config is kept as its encoding, to which every method adds. In protobuf a later value replaces an earlier one, extends a list, or is merged. So
//! a config that was read from elsewhere can be extended and still reaches the service byte for byte, with the fields that this version does not
//! know.

use std::fmt;
use std::time::Duration;

use ferretto_proto::messages::trace_config::{BufferConfig, buffer_config::FillPolicy};
use ferretto_proto::messages::{self, DataSourceConfig, Message, TrackEventConfig, trace_config};
use ferretto_wire::Writer;

/// How often producers repeat the data that later packets refer to, unless a config with track events says otherwise.
const CLEAR_PERIOD: Duration = Duration::from_secs(5);

/// How often producers write out their data, unless a config that streams into a file says otherwise. Services of Perfetto 54 and later flush as
/// often by themselves.
const FLUSH_PERIOD: Duration = Duration::from_secs(5);

/// The data to record, the duration and the destination: Perfetto's `TraceConfig`.
///
/// A config needs a buffer, and a data source to be of use:
///
/// ```
/// use std::time::Duration;
/// use ferretto::session::{DataSource, TraceConfig};
///
/// let config = TraceConfig::new()
///     .buffer_kb(16 * 1024)
///     .data_source(DataSource::track_event().enable_category("rendering"))
///     .data_source(DataSource::ftrace(["sched/sched_switch"]).target_buffer(0))
///     .duration(Duration::from_secs(10));
/// ```
///
/// Fields that have no method here can be set in a config that [`TraceConfig::from_encoded`] or `from_text` take or, with the feature
/// `unstable-proto`, in a `proto::messages::TraceConfig`, from which a config is made with `from`.
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct TraceConfig {
    encoded: Vec<u8>,
}

impl TraceConfig {
    /// A config that records nothing.
    pub fn new() -> TraceConfig {
        TraceConfig::default()
    }

    /// Takes a config that is already encoded. It reaches the service as it is, with fields that this version does not know.
    ///
    /// # Errors
    /// If `encoded` is not a `TraceConfig`.
    pub fn from_encoded(encoded: impl Into<Vec<u8>>) -> Result<TraceConfig, InvalidConfig> {
        let encoded = encoded.into();
        match messages::TraceConfig::decode_from_slice(&encoded) {
            Ok(_) => Ok(TraceConfig { encoded }),
            Err(error) => Err(InvalidConfig(format!(
                "the {} bytes are not an encoded TraceConfig: {error}",
                encoded.len()
            ))),
        }
    }

    /// A config in protobuf's text format, as Perfetto's documentation and its UI write them.
    ///
    /// # Errors
    /// Every mistake in it, with its line and column.
    #[cfg(feature = "text-config")]
    pub fn from_text(text: &str) -> Result<TraceConfig, InvalidConfig> {
        use ferretto_proto::text as format;
        match format::encode(text, format::TRACE_CONFIG) {
            Ok(encoded) => Ok(TraceConfig { encoded }),
            Err(errors) => Err(InvalidConfig(format!(
                "the trace config is not valid\n{}",
                errors.render("config")
            ))),
        }
    }

    /// The encoded `TraceConfig`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.encoded
    }

    /// The config, as far as this version knows its fields. It is one of the schema's types, so it is [not part of the stable
    /// interface](crate#stability).
    #[cfg(feature = "unstable-proto")]
    pub fn decode(&self) -> messages::TraceConfig {
        self.decoded()
    }

    pub(super) fn decoded(&self) -> messages::TraceConfig {
        // It decodes, because it was checked or made here.
        messages::TraceConfig::decode_from_slice(&self.encoded).unwrap_or_default()
    }

    /// Adds a buffer of this many kilobytes that keeps the latest packets. Buffers are numbered from 0 in the order in which they
    /// are added; data sources write into the first unless they say otherwise.
    pub fn buffer_kb(self, size_kb: u32) -> TraceConfig {
        self.buffer(Buffer::new(size_kb))
    }

    /// Adds a buffer.
    pub fn buffer(self, buffer: Buffer) -> TraceConfig {
        self.add(|config| config.bytes_field(messages::TraceConfig::BUFFERS, &buffer.encoded))
    }

    /// Adds a data source. If it is [`DataSource::track_event`] in a ring buffer, producers repeat every 5 s the data that later packets refer to,
    /// unless [`clear_incremental_state`](TraceConfig::clear_incremental_state) sets another period.
    pub fn data_source(self, source: DataSource) -> TraceConfig {
        let encoded = source.encode();
        let added = self.add(|config| config.bytes_field(messages::TraceConfig::DATA_SOURCES, &encoded));
        let decoded = added.decoded();
        match decoded.data_sources.last() {
            Some(source) if names_are_overwritten(&decoded, source) => {
                added.clear_incremental_state(CLEAR_PERIOD)
            }
            _ => added,
        }
    }

    /// Ends the session after this time from its start, including sleep of the machine. In milliseconds; 7 days at most.
    pub fn duration(self, duration: Duration) -> TraceConfig {
        self.milliseconds(messages::TraceConfig::DURATION_MS, duration)
    }

    /// Has producers write out their data at this period. In milliseconds; zero is never.
    pub fn flush_period(self, period: Duration) -> TraceConfig {
        self.milliseconds(messages::TraceConfig::FLUSH_PERIOD_MS, period)
    }

    /// How long producers may take for a flush; 5 s by default. In milliseconds.
    pub fn flush_timeout(self, timeout: Duration) -> TraceConfig {
        self.milliseconds(messages::TraceConfig::FLUSH_TIMEOUT_MS, timeout)
    }

    /// How long data sources may take to stop; 5 s by default. In milliseconds.
    pub fn stop_timeout(self, timeout: Duration) -> TraceConfig {
        self.milliseconds(messages::TraceConfig::DATA_SOURCE_STOP_TIMEOUT_MS, timeout)
    }

    /// Has producers repeat at this period the data that later packets refer to, so that a ring buffer can lose the beginning. In milliseconds; zero
    /// is never.
    pub fn clear_incremental_state(self, period: Duration) -> TraceConfig {
        let period = milliseconds(period);
        self.add(|config| {
            config.nested(messages::TraceConfig::INCREMENTAL_STATE_CONFIG, |message| {
                message.varint_field(trace_config::IncrementalStateConfig::CLEAR_PERIOD_MS, period);
            });
        })
    }

    /// A name that no other session has, by which this one can be [cloned](super::Session::clone_session).
    pub fn unique_session_name(self, name: &str) -> TraceConfig {
        self.add(|config| config.bytes_field(messages::TraceConfig::UNIQUE_SESSION_NAME, name.as_bytes()))
    }

    /// Streams the trace into a file at this period (milliseconds, at least 100), instead of keeping it to be read. The file is the one given to
    /// [`Session::setup_with_file`](super::Session::setup_with_file), or [`TraceConfig::output_path`]'s.
    ///
    /// Producers write out their data every 5 s, unless [`flush_period`](TraceConfig::flush_period) says otherwise. Without this the file would lack
    /// the events of threads with few events for a long time. (Services of Perfetto 54 and later decide for themselves: every 5 s, or before each
    /// write if writes are rarer.)
    pub fn write_into_file(self, period: Duration) -> TraceConfig {
        let streaming = self
            .add(|config| config.varint_field(messages::TraceConfig::WRITE_INTO_FILE, 1))
            .milliseconds(messages::TraceConfig::FILE_WRITE_PERIOD_MS, period);
        match streaming.decoded().flush_period_ms {
            None => streaming.flush_period(FLUSH_PERIOD),
            Some(_) => streaming,
        }
    }

    /// Ends the session when the file has this many bytes.
    pub fn max_file_size(self, bytes: u64) -> TraceConfig {
        self.add(|config| config.varint_field(messages::TraceConfig::MAX_FILE_SIZE_BYTES, bytes))
    }

    /// The file to stream into. The service creates it, with the service's rights; it must not exist.
    pub fn output_path(self, path: &str) -> TraceConfig {
        self.add(|config| config.bytes_field(messages::TraceConfig::OUTPUT_PATH, path.as_bytes()))
    }

    /// Has the service make buffers and set up data sources at [`Session::setup`](super::Session::setup), so that the start is quick.
    pub fn deferred_start(self) -> TraceConfig {
        self.add(|config| config.varint_field(messages::TraceConfig::DEFERRED_START, 1))
    }

    /// Adds a trigger that acts on the session. Any producer may activate it by this name. For several triggers call this several times, with the
    /// same action and timeout.
    pub fn trigger(
        self,
        name: &str,
        action: TriggerAction,
        delay: Duration,
        timeout: Duration,
    ) -> TraceConfig {
        use trace_config::TriggerConfig;
        use trace_config::trigger_config::Trigger;
        self.add(|config| {
            config.nested(messages::TraceConfig::TRIGGER_CONFIG, |message| {
                message.varint_field(TriggerConfig::TRIGGER_MODE, action as u64);
                message.nested(TriggerConfig::TRIGGERS, |trigger| {
                    trigger.bytes_field(Trigger::NAME, name.as_bytes());
                    trigger.varint_field(Trigger::STOP_DELAY_MS, milliseconds(delay));
                });
                message.varint_field(TriggerConfig::TRIGGER_TIMEOUT_MS, milliseconds(timeout));
            });
        })
    }

    /// Has the service compress the trace with deflate, to about a fifth.
    pub fn compress(self) -> TraceConfig {
        use trace_config::CompressionConfig;
        self.add(|config| {
            config.nested(messages::TraceConfig::COMPRESSION, |message| {
                message.bytes_field(CompressionConfig::DEFLATE, &[])
            })
        })
    }

    /// Returns a warning if the config shows that the trace will disappoint.
    pub(super) fn advice(&self) -> Option<&'static str> {
        let config = self.decoded();
        // A file keeps data that the buffer overwrites later, unless the buffer is too small.
        let streams = config.write_into_file.unwrap_or_default();
        let mut sources = config.data_sources.iter();
        let forgets = !streams && sources.any(|source| names_are_overwritten(&config, source));
        forgets.then_some(
            "the trace config has \"track_event\" write into a ring buffer, which overwrites names that later events refer to: those cannot be \
             read then. Add `incremental_state_config { clear_period_ms: 5000 }` to it, or call \
             TraceConfig::clear_incremental_state",
        )
    }

    /// Adds the fields of another config. Its buffers and data sources come after the existing ones; its other fields replace existing values.
    pub fn merge(self, other: &TraceConfig) -> TraceConfig {
        self.add(|config| config.raw(&other.encoded))
    }

    pub(super) fn from_message(config: &messages::TraceConfig) -> TraceConfig {
        TraceConfig {
            encoded: config.encode_to_vec(),
        }
    }

    fn milliseconds(self, number: u32, duration: Duration) -> TraceConfig {
        self.add(|config| config.varint_field(number, milliseconds(duration)))
    }

    fn add(mut self, fields: impl Fn(&mut Writer)) -> TraceConfig {
        append(&mut self.encoded, &fields);
        self
    }
}

impl fmt::Debug for TraceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TraceConfig").field(&self.decoded()).finish()
    }
}

#[cfg(feature = "unstable-proto")]
impl From<&messages::TraceConfig> for TraceConfig {
    fn from(config: &messages::TraceConfig) -> TraceConfig {
        TraceConfig::from_message(config)
    }
}

/// Bytes or text that are not a valid config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig(String);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidConfig {}

/// The effect of a [trigger](TraceConfig::trigger). The numbers are the schema's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TriggerAction {
    /// The session starts with the trigger, and ends after the trigger's delay. The timeout limits the wait for the trigger.
    Start = 1,
    /// The session ends after the trigger's delay. Without a trigger it ends with the timeout, and has no trace.
    Stop = 2,
    /// The service asks for a clone of the session, after the trigger's delay, each time that the trigger is activated: see
    /// [`Session::on_clone_trigger`](super::Session::on_clone_trigger). The session goes on until the timeout. Only its clones can be read, and it must not
    /// stream into a file.
    Clone = 4,
}

/// A buffer for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Buffer {
    encoded: Vec<u8>,
}

impl Buffer {
    /// A buffer of this many kilobytes that keeps the latest packets.
    pub fn new(size_kb: u32) -> Buffer {
        Buffer { encoded: Vec::new() }
            .add(|buffer| buffer.varint_field(BufferConfig::SIZE_KB, size_kb.into()))
    }

    /// Keeps the first packets: when it is full, later ones are dropped.
    pub fn keep_first(self) -> Buffer {
        self.add(|buffer| buffer.varint_field(BufferConfig::FILL_POLICY, FillPolicy::DISCARD as u64))
    }

    /// A name, by which data sources can choose this buffer.
    pub fn name(self, name: &str) -> Buffer {
        self.add(|buffer| buffer.bytes_field(BufferConfig::NAME, name.as_bytes()))
    }

    fn add(mut self, fields: impl Fn(&mut Writer)) -> Buffer {
        append(&mut self.encoded, &fields);
        self
    }
}

/// A data source to record, and the producers to record it from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct DataSource {
    /// Fields of `DataSourceConfig`.
    config: Vec<u8>,
    /// Fields of `TrackEventConfig`.
    track_event: Vec<u8>,
    /// Fields of `TraceConfig.DataSource` beside the config.
    filters: Vec<u8>,
}

impl DataSource {
    /// The data source of this name.
    pub fn new(name: &str) -> DataSource {
        DataSource::default().configure(|config| config.bytes_field(DataSourceConfig::NAME, name.as_bytes()))
    }

    /// Track events: slices, instants, counters. Unless categories are chosen, all are recorded except for those tagged `slow` or `debug`.
    pub fn track_event() -> DataSource {
        DataSource::new("track_event")
    }

    /// Events of the kernel, such as `sched/sched_switch`; recorded by `traced_probes` for sessions of the system's service.
    pub fn ftrace(events: impl IntoIterator<Item = impl AsRef<str>>) -> DataSource {
        /// Of `FtraceConfig`, whose struct the SDK is built without.
        const FTRACE_EVENTS: u32 = 1;
        let mut ftrace = Vec::new();
        for event in events {
            append(&mut ftrace, &|message| {
                message.bytes_field(FTRACE_EVENTS, event.as_ref().as_bytes())
            });
        }
        DataSource::new("linux.ftrace")
            .configure(|config| config.bytes_field(DataSourceConfig::FTRACE_CONFIG, &ftrace))
    }

    /// Adds encoded fields of a `DataSourceConfig`, such as the message that a data source has for its own options.
    pub fn encoded_config(self, fields: &[u8]) -> DataSource {
        self.configure(|config| config.raw(fields))
    }

    /// Writes into the buffer of this number; 0 by default.
    pub fn target_buffer(self, number: u32) -> DataSource {
        self.configure(|config| config.varint_field(DataSourceConfig::TARGET_BUFFER, number.into()))
    }

    /// Writes into the buffer of this name.
    pub fn target_buffer_name(self, name: &str) -> DataSource {
        self.configure(|config| config.bytes_field(DataSourceConfig::TARGET_BUFFER_NAME, name.as_bytes()))
    }

    /// The behaviour of the data source's writers when the shared memory is full. By default the producer decides.
    pub fn when_exhausted(self, policy: ExhaustedPolicy) -> DataSource {
        self.configure(|config| config.varint_field(DataSourceConfig::BUFFER_EXHAUSTED_POLICY, policy as u64))
    }

    /// Records only producers of this name; several may be given.
    pub fn of_producer(mut self, name: &str) -> DataSource {
        append(&mut self.filters, &|source| {
            source.bytes_field(trace_config::DataSource::PRODUCER_NAME_FILTER, name.as_bytes())
        });
        self
    }

    /// Records only producers whose whole name matches this regular expression; several may be given.
    pub fn of_producers_matching(mut self, expression: &str) -> DataSource {
        append(&mut self.filters, &|source| {
            source.bytes_field(
                trace_config::DataSource::PRODUCER_NAME_REGEX_FILTER,
                expression.as_bytes(),
            );
        });
        self
    }

    /// Records track events of the categories that match this name, besides the default ones: all but those tagged `slow` or `debug`. To record only
    /// these, [disable](DataSource::disable_category) `*` as well.
    ///
    /// A name may end with a `*`, which stands for any characters. Such a pattern does not enable a category with a tag that is disabled by its exact
    /// name, as `slow` and `debug` are by default: only the category's exact name does, or [`enable_tag`](DataSource::enable_tag).
    ///
    /// Of all names and patterns, enabled and disabled ones, exact names are looked at first, then all patterns such as `gpu.*`, however long, then `*`.
    /// Within each of these three steps the order is: enabled categories, disabled categories, disabled tags, enabled tags. The first that matches
    /// decides. These are the rules of Perfetto's C++ library.
    pub fn enable_category(self, pattern: &str) -> DataSource {
        self.track_event_pattern(TrackEventConfig::ENABLED_CATEGORIES, pattern)
    }

    /// Records no track events of the categories that match this name, which may end with a `*`. An enabled exact name counts before a pattern here, and
    /// an enabled pattern such as `gpu.*` before any such pattern here, even a longer one: see [`enable_category`](DataSource::enable_category).
    pub fn disable_category(self, pattern: &str) -> DataSource {
        self.track_event_pattern(TrackEventConfig::DISABLED_CATEGORIES, pattern)
    }

    /// Records track events of the categories that have this tag, or of all tags with this beginning if it ends with a `*`. As soon as any tag is enabled
    /// or disabled here, `slow` and `debug` are no longer disabled by default.
    pub fn enable_tag(self, pattern: &str) -> DataSource {
        self.track_event_pattern(TrackEventConfig::ENABLED_TAGS, pattern)
    }

    /// Records no track events of the categories that have this tag. If no tag is enabled or disabled, these are `slow` and `debug`.
    pub fn disable_tag(self, pattern: &str) -> DataSource {
        self.track_event_pattern(TrackEventConfig::DISABLED_TAGS, pattern)
    }

    /// Leaves debug annotations out, because they may hold private data; and with them what `#[trace_function(err)]` writes into the log.
    ///
    /// Names that are made at run time stay unless [`filter_dynamic_event_names`](DataSource::filter_dynamic_event_names) is called too, and what that
    /// leaves stays in any case.
    pub fn filter_debug_annotations(self) -> DataSource {
        self.track_event_switch(TrackEventConfig::FILTER_DEBUG_ANNOTATIONS)
    }

    /// Replaces names of events that are made at run time by `FILTERED`. Messages of the crates `tracing` and `log`, which are such names, are not in the
    /// trace's log either.
    ///
    /// Other text stays: names of tracks and categories, correlation ids, and what closures write by
    /// [`EventContext::log_message`](crate::EventContext::log_message).
    pub fn filter_dynamic_event_names(self) -> DataSource {
        self.track_event_switch(TrackEventConfig::FILTER_DYNAMIC_EVENT_NAMES)
    }

    /// Records with each event the processor time that its thread has used.
    pub fn thread_time(self) -> DataSource {
        self.track_event_switch(TrackEventConfig::ENABLE_THREAD_TIME_SAMPLING)
    }

    fn track_event_pattern(mut self, number: u32, pattern: &str) -> DataSource {
        append(&mut self.track_event, &|config| {
            config.bytes_field(number, pattern.as_bytes());
        });
        self
    }

    fn track_event_switch(mut self, number: u32) -> DataSource {
        append(&mut self.track_event, &|config| config.varint_field(number, 1));
        self
    }

    fn configure(mut self, fields: impl Fn(&mut Writer)) -> DataSource {
        append(&mut self.config, &fields);
        self
    }

    /// Encodes a `TraceConfig.DataSource`.
    fn encode(&self) -> Vec<u8> {
        let mut source = Writer::new();
        source.nested(trace_config::DataSource::CONFIG, |config| {
            config.raw(&self.config);
            if !self.track_event.is_empty() {
                config.bytes_field(DataSourceConfig::TRACK_EVENT_CONFIG, &self.track_event);
            }
        });
        source.raw(&self.filters);
        source.as_slice().to_vec()
    }
}

/// The behaviour of writers when the shared memory is full. The numbers are the schema's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExhaustedPolicy {
    /// Writers drop packets.
    Drop = 1,
    /// Writers wait. If the service is stuck for long, they drop packets after all.
    Stall = 2,
    /// Writers wait, but only once for a service that is stuck.
    StallThenDrop = 3,
}

/// Whether the buffer may overwrite names that later packets of the data source refer to. A buffer that is not in the config yet may be a ring.
fn names_are_overwritten(
    config: &messages::TraceConfig,
    source: &messages::trace_config::DataSource,
) -> bool {
    let number = source.config.target_buffer.unwrap_or_default() as usize;
    let buffer = match source.config.target_buffer_name.as_deref().unwrap_or_default() {
        "" => config.buffers.get(number),
        name => {
            let mut buffers = config.buffers.iter();
            buffers.find(|buffer| buffer.name.as_deref() == Some(name))
        }
    };
    source.config.name.as_deref() == Some("track_event")
        && !config.incremental_state_config.is_set()
        && buffer.is_none_or(|buffer| buffer.fill_policy != Some(FillPolicy::DISCARD))
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().min(u32::MAX.into()) as u64
}

fn append(encoded: &mut Vec<u8>, fields: &dyn Fn(&mut Writer)) {
    let mut writer = Writer::new();
    fields(&mut writer);
    encoded.extend_from_slice(writer.as_slice());
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
    use ferretto_proto::messages::trace_config::trigger_config::TriggerMode;

    #[test]
    fn every_method_sets_the_field_that_it_names() {
        let ms = Duration::from_millis;
        let config = TraceConfig::new()
            .buffer_kb(64)
            .buffer(Buffer::new(128).keep_first().name("small"))
            .data_source(
                DataSource::track_event()
                    .enable_category("a*")
                    .enable_category("b")
                    .disable_category("*")
                    .enable_tag("net")
                    .disable_tag("slow")
                    .filter_debug_annotations()
                    .filter_dynamic_event_names()
                    .thread_time()
                    .target_buffer(1)
                    .when_exhausted(ExhaustedPolicy::Stall)
                    .of_producer("p")
                    .of_producers_matching("q.*"),
            )
            .data_source(DataSource::ftrace(["sched/sched_switch", "power/*"]).target_buffer_name("small"))
            .duration(ms(1))
            .flush_period(ms(2))
            .flush_timeout(ms(3))
            .stop_timeout(ms(4))
            .clear_incremental_state(ms(5))
            .unique_session_name("unique")
            .write_into_file(ms(600))
            .max_file_size(7)
            .output_path("/path")
            .deferred_start()
            .trigger("one", TriggerAction::Stop, ms(8), ms(9))
            .trigger("two", TriggerAction::Stop, ms(10), ms(9))
            .compress()
            .decode();
        let buffers: Vec<_> = config
            .buffers
            .iter()
            .map(|buffer| (buffer.size_kb, buffer.fill_policy, buffer.name.as_deref()))
            .collect();
        assert_eq!(
            buffers,
            [
                (Some(64), None, None),
                (Some(128), Some(FillPolicy::DISCARD), Some("small"))
            ]
        );
        let events = &config.data_sources[0];
        assert_eq!(events.producer_name_filter, ["p"]);
        assert_eq!(events.producer_name_regex_filter, ["q.*"]);
        assert_eq!(events.config.name.as_deref(), Some("track_event"));
        assert_eq!(events.config.target_buffer, Some(1));
        assert_eq!(
            events.config.buffer_exhausted_policy.map(|policy| policy as u64),
            Some(2)
        );
        let categories = &events.config.track_event_config;
        assert_eq!(categories.enabled_categories, ["a*", "b"]);
        assert_eq!(categories.disabled_categories, ["*"]);
        assert_eq!(categories.enabled_tags, ["net"]);
        assert_eq!(categories.disabled_tags, ["slow"]);
        assert_eq!(categories.filter_debug_annotations, Some(true));
        assert_eq!(categories.filter_dynamic_event_names, Some(true));
        assert_eq!(categories.enable_thread_time_sampling, Some(true));
        let kernel = &config.data_sources[1].config;
        assert_eq!(kernel.name.as_deref(), Some("linux.ftrace"));
        assert_eq!(kernel.target_buffer_name.as_deref(), Some("small"));
        assert_eq!(
            kernel.ftrace_config.ftrace_events,
            ["sched/sched_switch", "power/*"]
        );
        assert_eq!(
            [
                config.duration_ms,
                config.flush_period_ms,
                config.flush_timeout_ms,
                config.data_source_stop_timeout_ms,
                config.incremental_state_config.clear_period_ms,
                config.file_write_period_ms,
                config.trigger_config.trigger_timeout_ms,
            ],
            [1, 2, 3, 4, 5, 600, 9].map(Some)
        );
        assert_eq!(config.unique_session_name.as_deref(), Some("unique"));
        assert_eq!(config.write_into_file, Some(true));
        assert_eq!(config.max_file_size_bytes, Some(7));
        assert_eq!(config.output_path.as_deref(), Some("/path"));
        assert_eq!(config.deferred_start, Some(true));
        assert_eq!(
            config.trigger_config.trigger_mode,
            Some(TriggerMode::STOP_TRACING)
        );
        let triggers: Vec<_> = config
            .trigger_config
            .triggers
            .iter()
            .map(|trigger| (trigger.name.as_deref(), trigger.stop_delay_ms))
            .collect();
        assert_eq!(triggers, [(Some("one"), Some(8)), (Some("two"), Some(10))]);
        assert!(config.compression.deflate.is_set());
    }

    #[test]
    fn an_encoded_config_stays_as_it_is_and_can_be_extended() {
        // A field that no version knows.
        let mut unknown = Writer::new();
        unknown.bytes_field(60_000, b"of the future");
        unknown.varint_field(messages::TraceConfig::DURATION_MS, 5);
        let config = TraceConfig::from_encoded(unknown.as_slice()).unwrap();
        assert_eq!(config.as_bytes(), unknown.as_slice());
        let longer = config.duration(Duration::from_secs(1));
        assert!(longer.as_bytes().starts_with(unknown.as_slice()));
        assert_eq!(longer.decode().duration_ms, Some(1000));
        let merged = TraceConfig::new().duration(Duration::from_secs(9)).merge(&longer);
        assert!(merged.as_bytes().ends_with(longer.as_bytes()));
        assert_eq!(merged.decode().duration_ms, Some(1000));
        let error = TraceConfig::from_encoded(b"buffers {}").unwrap_err().to_string();
        assert!(
            error.starts_with("the 10 bytes are not an encoded TraceConfig"),
            "{error}"
        );
    }

    #[test]
    fn track_events_are_readable_from_the_middle_unless_somebody_says_otherwise() {
        let period = |config: &TraceConfig| config.decode().incremental_state_config.clear_period_ms;
        let ring = || TraceConfig::new().buffer_kb(64);
        let built = ring().data_source(DataSource::track_event());
        assert_eq!(period(&built), Some(5000));
        let seconds = Duration::from_secs;
        let before = ring().clear_incremental_state(seconds(1));
        assert_eq!(period(&before.data_source(DataSource::track_event())), Some(1000));
        assert_eq!(period(&built.clear_incremental_state(Duration::ZERO)), Some(0));
        let keeping = TraceConfig::new().buffer(Buffer::new(64).keep_first());
        for (config, source) in [
            (ring(), DataSource::new("com.example.mine")),
            (keeping, DataSource::track_event()),
        ] {
            let config = config.data_source(source);
            assert_eq!((period(&config), config.advice()), (None, None));
        }
        assert_eq!(
            period(&TraceConfig::new().data_source(DataSource::track_event())),
            Some(5000)
        );
        let streaming = ring().write_into_file(seconds(1));
        assert_eq!(
            period(&streaming.data_source(DataSource::track_event())),
            Some(5000)
        );
    }

    #[test]
    fn files_are_flushed_into_unless_somebody_says_otherwise() {
        let period = |config: &TraceConfig| config.decode().flush_period_ms;
        let seconds = Duration::from_secs;
        assert_eq!(period(&TraceConfig::new().buffer_kb(64)), None);
        let streaming = TraceConfig::new().write_into_file(seconds(1));
        assert_eq!(period(&streaming), Some(5000));
        assert_eq!(period(&streaming.flush_period(Duration::ZERO)), Some(0));
        let before = TraceConfig::new().flush_period(seconds(2));
        assert_eq!(period(&before.write_into_file(seconds(1))), Some(2000));
    }

    #[test]
    fn configs_of_others_are_not_changed_but_judged() {
        let source = |name: &str, buffer: u32| messages::trace_config::DataSource {
            config: messages::DataSourceConfig {
                name: Some(name.to_owned()),
                target_buffer: Some(buffer),
                ..Default::default()
            }
            .into(),
            ..Default::default()
        };
        let buffer = |policy: FillPolicy, name: &str| messages::trace_config::BufferConfig {
            size_kb: Some(64),
            fill_policy: Some(policy),
            name: Some(name.to_owned()),
            ..Default::default()
        };
        let config = messages::TraceConfig {
            buffers: vec![
                buffer(FillPolicy::DISCARD, "first"),
                buffer(FillPolicy::RING_BUFFER, "ring"),
            ],
            data_sources: vec![source("track_event", 1)],
            ..Default::default()
        };
        let advice = TraceConfig::from(&config).advice().unwrap();
        assert!(
            advice.contains("incremental_state_config { clear_period_ms: 5000 }"),
            "{advice}"
        );
        let given = TraceConfig::from_encoded(config.encode_to_vec()).unwrap();
        assert_eq!(given.as_bytes(), config.encode_to_vec());
        assert_eq!(given.advice(), Some(advice));
        let mut named = config.clone();
        named.data_sources = vec![source("track_event", 0)];
        assert_eq!(TraceConfig::from(&named).advice(), None, "the first discards");
        let into = named.data_sources[0].config.get_or_insert_default();
        into.target_buffer_name = Some("ring".to_owned());
        assert!(TraceConfig::from(&named).advice().is_some());
        for (changed, why) in [
            (
                given.clone().clear_incremental_state(Duration::from_secs(1)),
                "it is cleared",
            ),
            (
                given.write_into_file(Duration::from_secs(1)),
                "the file has the beginning",
            ),
        ] {
            assert_eq!(changed.advice(), None, "{why}");
        }
        let other = messages::TraceConfig {
            data_sources: vec![source("com.example.mine", 1)],
            ..config
        };
        assert_eq!(TraceConfig::from(&other).advice(), None);
    }

    #[test]
    fn durations_beyond_the_field_are_its_largest() {
        let config = TraceConfig::new().duration(Duration::MAX);
        assert_eq!(config.decode().duration_ms, Some(u32::MAX));
    }

    #[cfg(feature = "text-config")]
    #[test]
    fn text_is_read_with_errors_that_point() {
        let config = TraceConfig::from_text("duration_ms: 20 // short").unwrap();
        assert_eq!(config, TraceConfig::new().duration(Duration::from_millis(20)));
        let error = TraceConfig::from_text("duration: 20").unwrap_err().to_string();
        assert!(error.contains("config:1:1"), "{error}");
    }
}
